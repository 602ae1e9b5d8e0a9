/* step_begin, verify_begin, commit and reset of the CPU backend: rows and cursors over whole windows, wraps, padding, bad
 * cursors, bad windows, wrong commits, phases; then many steps in a row against the plain recurrence carried in double (bar T). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step_case.h"

enum { SLOTS = 8, COLUMNS = 3 };

typedef struct cursors {
    void *ctx;
    int32_t cursor[SLOTS * 6], rows[SLOTS * 9], slots[SLOTS], force[SLOTS];
    uint32_t fault;
    rssm_begin begin;
} cursors;

static void start(cursors *c, void *ctx, int32_t L, int32_t R)
{
    memset(c, 0, sizeof *c);
    c->ctx = ctx;
    for (int32_t i = 0; i < SLOTS; i++)
        c->slots[i] = i;
    c->begin = (rssm_begin){.B = SLOTS,
                            .L = L,
                            .R = R,
                            .conv_len = COLUMNS,
                            .S = SLOTS,
                            .pad_slot = -1,
                            .slots = {.data = c->slots, .stride = 1, .bits = 32},
                            .force_flush = {.data = c->force, .stride = 1, .bits = 32},
                            .cursor = c->cursor,
                            .cursor_slot = 6,
                            .rows = c->rows,
                            .rows_row = 9,
                            .fault = &c->fault};
}

static void begin(cursors *c)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->step_begin(c->ctx, &c->begin, NULL, &err) == RSSM_OK, "step_begin: %s", err.message);
}

/* Against a model that keeps a list of pending records' ring rows. */
static void check_moves(void *ctx, int32_t L, int32_t R, random_state *r)
{
    cursors c;
    int32_t base[SLOTS] = {0}, count[SLOTS] = {0}, wrong = 0;
    start(&c, ctx, L, R);
    check_context("cursors L=%d R=%d", L, R);
    for (int32_t step = 0; step < 5 * R + 7; step++) {
        for (int32_t i = 0; i < SLOTS; i++)
            c.force[i] = random_between(r, 0, 9) == 0;
        c.begin.flush_all = random_between(r, 0, 5) == 0;
        begin(&c);
        for (int32_t i = 0; i < SLOTS; i++) {
            int32_t flush = count[i] >= L - 1 || c.force[i] || c.begin.flush_all;
            const int32_t expected[8] = {i, base[i], count[i], flush, step % COLUMNS, i, 1, 0};
            wrong += memcmp(c.rows + 9 * i, expected, sizeof expected) != 0;
            base[i] = flush ? (base[i] + count[i]) % R : base[i];
            count[i] = flush ? 0 : count[i] + 1;
            const int32_t moved[4] = {base[i], count[i], (step + 1) % COLUMNS, 0};
            wrong += memcmp(c.cursor + 6 * i, moved, sizeof moved) != 0;
            wrong += c.cursor[6 * i + 4] != 0 || c.cursor[6 * i + 5] != 0 || c.rows[9 * i + 8] != 0;
        }
    }
    check(wrong == 0, "%d rows or cursors are wrong", wrong);
    check(c.fault == 0, "fault word %u", (unsigned)c.fault);
}

/* A small batch flushes all rows and leaves their phases alone: when the batch grows, windows end where the phases say. */
static void check_small_batches(void *ctx, int32_t L)
{
    cursors c;
    start(&c, ctx, L, L);
    check_context("small batches L=%d", L);
    for (int32_t i = 0; i < SLOTS; i++)
        c.cursor[6 * i + 3] = i % L;
    for (int32_t step = 0; step < 3; step++) {
        c.begin.flush_all = 1;
        begin(&c);
        for (int32_t i = 0; i < SLOTS; i++) {
            int32_t ends = i % L == L - 1; /* a window of one token: it ends in the first step, and so does its phase */
            check(c.rows[9 * i + 2] == 0 && c.rows[9 * i + 3] == 1, "step %d: row %d does not flush alone", step, i);
            check(c.cursor[6 * i + 1] == 0 && c.cursor[6 * i + 3] == (ends ? 0 : i % L), "step %d: phase of slot %d",
                  step, i);
        }
    }
    c.begin.flush_all = 0;
    for (int32_t step = 0; step < 2 * L; step++) {
        begin(&c);
        for (int32_t i = 0; i < SLOTS; i++) {
            int32_t first = i % L == L - 1 ? L : L - i % L; /* tokens of the first window */
            int32_t flush = step + 1 >= first && (step + 1 - first) % L == 0;
            check(c.rows[9 * i + 3] == flush, "step %d after them: row %d flush %d", step, i, c.rows[9 * i + 3]);
        }
    }
}

static void check_padding_and_faults(void *ctx)
{
    static const int32_t bad[][4] = {{-1, 0, 0, 0}, {8, 0, 0, 0},  {0, 6, 0, 0}, {0, -1, 0, 0},
                                     {0, 0, 3, 0},  {0, 0, -1, 0}, {0, 0, 0, 5}, {0, 0, 0, -1}};
    cursors c;
    start(&c, ctx, 5, 8);
    check_context("padding rows of step_begin");
    c.begin.pad_slot = 3;
    c.slots[0] = -1;
    c.slots[1] = SLOTS;
    c.slots[2] = 3;
    begin(&c);
    const int32_t first[8] = {-1, 0, 0, 0, 0, 0, 1, 0};
    check(memcmp(c.rows, first, sizeof first) == 0 && c.rows[9] == -1 && c.rows[18] == -1 && c.rows[36] == 4, "rows");
    check(c.cursor[0] == 0 && c.cursor[1] == 0 && c.cursor[3 * 6 + 1] == 0 && c.cursor[4 * 6 + 1] == 1, "cursors");
    check(c.fault == 0, "padding is no fault");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        start(&c, ctx, 5, 8);
        check_context("bad cursor %d of step_begin", (int)i);
        memcpy(c.cursor + 6 * 2, bad[i], sizeof bad[i]);
        begin(&c);
        check(c.fault == RSSM_FAULTBIT_CURSOR, "fault word %u", (unsigned)c.fault);
        check(c.rows[18] == -1 && memcmp(c.cursor + 12, bad[i], sizeof bad[i]) == 0, "padding, and cursor left alone");
        check(c.rows[0] == 0 && c.cursor[1] == 1, "the other rows go on");
    }
}

/* ---- windows ---- */

/* What a slot's cursor should be. */
typedef struct slot_model {
    int32_t base, count, conv, shortened;
} slot_model;

typedef struct windows {
    cursors c;
    int64_t cu[SLOTS + 1];
    int32_t accepted[SLOTS];
    rssm_verify_begin verify;
    rssm_commit commit;
    slot_model slot[SLOTS];
    uint32_t fault; /* expected */
} windows;

static void start_windows(windows *w, void *ctx, int32_t L, int32_t Tm)
{
    memset(w, 0, sizeof *w);
    start(&w->c, ctx, L, L + Tm);
    const rssm_begin *b = &w->c.begin;
    w->verify = (rssm_verify_begin){.B = SLOTS,
                                    .L = L,
                                    .R = L + Tm,
                                    .conv_len = COLUMNS,
                                    .max_T = Tm,
                                    .S = SLOTS,
                                    .pad_slot = -1,
                                    .slots = b->slots,
                                    .cu_seqlens = {.data = w->cu, .stride = 1, .bits = 64},
                                    .cursor = b->cursor,
                                    .cursor_slot = b->cursor_slot,
                                    .rows = b->rows,
                                    .rows_row = b->rows_row,
                                    .fault = b->fault};
    w->commit = (rssm_commit){.B = SLOTS,
                              .L = L,
                              .R = L + Tm,
                              .conv_len = COLUMNS,
                              .S = SLOTS,
                              .pad_slot = -1,
                              .rows = b->rows,
                              .rows_row = b->rows_row,
                              .accepted = {.data = w->accepted, .stride = 1, .bits = 32},
                              .cursor = b->cursor,
                              .cursor_slot = b->cursor_slot,
                              .fault = b->fault};
}

static void empty(slot_model *m, int32_t R)
{
    m->base = (m->base + m->count) % R;
    m->count = m->shortened = 0;
}

/* A plain step by the model, to have every kind of cursor. */
static void step_windows(windows *w, random_state *r)
{
    for (int32_t i = 0; i < SLOTS; i++) {
        slot_model *m = &w->slot[i];
        w->c.force[i] = random_between(r, 0, 9) == 0;
        if (m->count >= w->verify.L - 1 - m->shortened || w->c.force[i])
            empty(m, w->verify.R);
        else
            m->count++;
        m->conv = (m->conv + 1) % COLUMNS;
    }
    begin(&w->c);
}

/* One window a slot; now and then one that no row may have. Returns wrong rows. */
static int32_t begin_windows(windows *w, random_state *r)
{
    rssm_error err = {.struct_size = sizeof err};
    int32_t expected[SLOTS][8], wrong = 0;
    w->cu[0] = random_between(r, 0, 3);
    for (int32_t i = 0; i < SLOTS; i++) {
        int64_t bad[] = {-1, -w->verify.max_T, w->verify.max_T + 1, INT32_MAX, INT64_MIN};
        int64_t len = random_between(r, 0, w->verify.max_T);
        if (random_between(r, 0, 30) == 0)
            len = bad[random_between(r, 0, 4)];
        w->cu[i + 1] = (int64_t)((uint64_t)w->cu[i] + (uint64_t)len);
    }
    for (int32_t i = 0; i < SLOTS; i++) {
        slot_model *m = &w->slot[i];
        int64_t len;
        int is_bad = __builtin_sub_overflow(w->cu[i + 1], w->cu[i], &len) || len < 0 || len > w->verify.max_T ||
                     w->cu[i] < 0 || w->cu[i + 1] > INT32_MAX;
        int32_t T = is_bad ? 0 : (int32_t)len, flush = m->count + T > w->verify.L;
        const int32_t row[8] = {i, m->base, m->count, flush, m->conv, (int32_t)w->cu[i], T, 0};
        const int32_t none[8] = {-1, 0, 0, 0, 0, 0, 0, 0};
        memcpy(expected[i], is_bad ? none : row, sizeof row);
        w->fault |= is_bad ? RSSM_FAULTBIT_SEQLENS : 0;
        if (flush && !is_bad)
            empty(m, w->verify.R);
    }
    check(rssm_cpu_backend()->verify_begin(w->c.ctx, &w->verify, NULL, &err) == RSSM_OK, "verify_begin");
    for (int32_t i = 0; i < SLOTS; i++)
        wrong += memcmp(w->c.rows + 9 * i, expected[i], sizeof expected[i]) != 0;
    return wrong;
}

/* Accepts some tokens of each window, or too many, or fewer than none. */
static void commit_windows(windows *w, random_state *r)
{
    rssm_error err = {.struct_size = sizeof err};
    for (int32_t i = 0; i < SLOTS; i++) {
        const int32_t *row = w->c.rows + 9 * i;
        slot_model *m = &w->slot[i];
        int32_t n = (int32_t)random_between(r, 0, row[6] > 0 ? row[6] : 0);
        if (random_between(r, 0, 20) == 0)
            n = random_between(r, 0, 1) ? row[6] + 1 : -1;
        w->accepted[i] = n;
        if (row[0] < 0)
            continue;
        if (n < 0 || n > row[6]) {
            w->fault |= RSSM_FAULTBIT_ACCEPTED;
            continue;
        }
        m->count += n;
        m->conv = (m->conv + n) % COLUMNS;
    }
    check(rssm_cpu_backend()->commit(w->c.ctx, &w->commit, NULL, &err) == RSSM_OK, "commit");
}

/* A second commit of the same rows changes nothing, except where the first took no token. */
static void commit_again(windows *w)
{
    rssm_error err = {.struct_size = sizeof err};
    for (int32_t i = 0; i < SLOTS; i++) {
        int is_moved = w->c.rows[9 * i] >= 0 && w->accepted[i] > 0 && w->accepted[i] <= w->c.rows[9 * i + 6];
        w->accepted[i] = is_moved ? 1 : 0;
        w->fault |= is_moved ? RSSM_FAULTBIT_ACCEPTED : 0;
    }
    rssm_cpu_backend()->commit(w->c.ctx, &w->commit, NULL, &err);
}

static int32_t wrong_cursors(const windows *w)
{
    int32_t wrong = 0;
    for (int32_t i = 0; i < SLOTS; i++)
        wrong += memcmp(w->c.cursor + 6 * i, &w->slot[i], sizeof(slot_model)) != 0 || w->c.cursor[6 * i + 4] != 0;
    return wrong;
}

static void check_window_cursors(void *ctx, int32_t L, int32_t Tm, random_state *r)
{
    windows w;
    int32_t wrong_rows = 0, wrong = 0;
    check_context("window cursors L=%d Tm=%d", L, Tm);
    start_windows(&w, ctx, L, Tm);
    for (int32_t i = 0; i < SLOTS; i++)
        w.c.cursor[6 * i + 3] = w.slot[i].shortened = i % L;
    for (int32_t pass = 0; pass < 300; pass++) {
        if (random_between(r, 0, 2) == 0) {
            step_windows(&w, r);
        } else {
            wrong_rows += begin_windows(&w, r);
            wrong += wrong_cursors(&w);
            if (random_between(r, 0, 4)) /* else as if the window had never been */
                commit_windows(&w, r);
            else
                memset(w.accepted, 0, sizeof w.accepted);
            if (random_between(r, 0, 9) == 0)
                commit_again(&w);
        }
        wrong += wrong_cursors(&w);
    }
    check(wrong_rows == 0 && wrong == 0, "%d rows, %d cursors are wrong", wrong_rows, wrong);
    check(w.c.fault == w.fault, "fault word %u, not %u", (unsigned)w.c.fault, (unsigned)w.fault);
}

/* Rows that no verify_begin wrote, and cursors that moved since. */
static void check_forged_commits(void *ctx)
{
    static const int32_t forged[][7] = {{0, 1, 2, 0, 1, 0, 9},         {0, -1, 2, 0, 1, 0, 1}, {0, 8, 2, 0, 1, 0, 1},
                                        {0, 1, 3, 0, 1, 0, 1},         {0, 1, 2, 0, 9, 0, 1},  {0, 1, 2, 0, -1, 0, 1},
                                        {0, 1, INT32_MAX, 1, 1, 0, 1}, {0, 2, 2, 0, 1, 0, 1},  {0, 1, 2, 1, 1, 0, 1},
                                        {0, 1, 2, 0, 1, 0, INT32_MAX}, {0, 1, 2, 0, 1, 0, 4}};
    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        windows w;
        rssm_error err = {.struct_size = sizeof err};
        check_context("forged commit %d", (int)i);
        start_windows(&w, ctx, 5, 3);
        const int32_t cursor[4] = {1, 2, 1, 0};
        memcpy(w.c.cursor, cursor, sizeof cursor);
        memcpy(w.c.rows, forged[i], sizeof forged[i]);
        w.commit.B = 2;
        w.c.rows[9] = -1;
        w.accepted[0] = i == 0 ? 9 : 1;
        rssm_cpu_backend()->commit(ctx, &w.commit, NULL, &err);
        check(w.c.fault == RSSM_FAULTBIT_ACCEPTED, "fault word %u", (unsigned)w.c.fault);
        check(memcmp(w.c.cursor, cursor, sizeof cursor) == 0, "the cursor moved");
    }
}

/* reset: zeroes exactly the listed slots; phases of n neighbours are as even as they can be. */
static void check_reset(void *ctx, int32_t L)
{
    enum { MANY = 1000, STRIDE = 48, BYTES = 40 };
    static unsigned char data[MANY * STRIDE];
    static int32_t cursor[MANY * 4];
    rssm_region region = {.data = data, .slot_stride = STRIDE, .slot_bytes = BYTES};
    rssm_pool pool = {.regions = &region,
                      .num_regions = 1,
                      .L = L,
                      .S = MANY,
                      .pad_slot = 7,
                      .cursor = cursor,
                      .cursor_slot = 4,
                      .spread_step = 1};
    const int64_t slots[] = {3, 7, -1, MANY, 999, 0};
    rssm_index index = {.data = slots, .stride = 1, .bits = 64};
    rssm_error err = {.struct_size = sizeof err};
    check_context("reset L=%d", L);
    memset(data, 0xff, sizeof data);
    memset(cursor, 0xff, sizeof cursor);
    rssm_cpu_backend()->bind(ctx, &pool, &err);
    rssm_cpu_backend()->reset(ctx, &index, 6, NULL, &err);
    int32_t wrong = 0;
    for (int32_t slot = 0; slot < MANY; slot++) {
        int is_reset = slot == 0 || slot == 3 || slot == 999;
        for (int32_t i = 0; i < STRIDE; i++)
            wrong += data[slot * STRIDE + i] != (is_reset && i < BYTES ? 0 : 0xff);
        wrong += cursor[4 * slot] != (is_reset ? 0 : -1) || cursor[4 * slot + 2] != (is_reset ? 0 : -1);
    }
    check(wrong == 0, "%d bytes or cursors are wrong", wrong);
    index.data = NULL;
    rssm_cpu_backend()->reset(ctx, &index, 0, NULL, &err);
    for (int32_t n = 1; n <= 3 * L; n += 5)
        for (int32_t first = 0; first + n < MANY; first += 13) {
            int32_t times[64] = {0}, most = 0, least = MANY;
            for (int32_t slot = first; slot < first + n; slot++)
                times[cursor[4 * slot + 3] & 63]++;
            for (int32_t phase = 0; phase < L; phase++) {
                most = times[phase] > most ? times[phase] : most;
                least = times[phase] < least ? times[phase] : least;
            }
            wrong += most - least > 1 || least < n / L;
        }
    check(wrong == 0, "%d runs of slots have uneven phases", wrong);
}

/* One slot of one pool, decoded for many steps; state and rings live in the case, the truth in `truth`. */
static void copy_input_row(step_case *c, const step_case *source)
{
    rssm_step *s = &c->step;
    const rssm_step *from = &source->step;
    s->q = from->q;
    s->k = from->k;
    s->v = from->v;
    s->a = from->a;
    s->b = from->b;
    s->z = from->z;
}

/* The truth's state: the checkpoint in double would lose nothing, but the oracle reads elements; so carry it apart. */
typedef struct truth {
    double *S;
    double error, size, state_error, state_size;
} truth;

static double at(const rssm_input *x, int64_t i)
{
    return x->data ? element_get(x->dtype, x->data, i) : 0;
}

/* The plain recurrence of one head, in double, without rounding a record: bar T (float32 ring). */
static void advance_truth(truth *t, const rssm_step *s, int64_t hv, double *out)
{
    int64_t K = s->K, h = hv / (s->HV / s->H);
    double q[64], k[64], qq = 0, kk = 0, A = exp(at(&s->A_log, hv));
    int is_mamba2 = s->family == RSSM_FAMILY_MAMBA2;
    for (int64_t i = 0; i < K; i++) {
        q[i] = at(&s->q, h * K + i);
        k[i] = at(&s->k, h * K + i);
        qq += q[i] * q[i];
        kk += k[i] * k[i];
    }
    for (int64_t i = 0; i < K && (s->flags & RSSM_STEP_QK_NORM); i++) {
        q[i] /= sqrt(qq + 1e-6);
        k[i] /= sqrt(kk + 1e-6);
    }
    double beta = (double)s->beta_scale / (1 + exp(-at(&s->b, hv)));
    double x = at(&s->a, hv) + at(&s->dt_bias, hv), dt = log1p(exp(x));
    for (int64_t v = 0; v < s->V; v++) {
        double *S = t->S + (hv * s->V + v) * K, sq = 0, sk = 0, kq = 0, value = at(&s->v, hv * s->V + v);
        for (int64_t i = 0; i < K; i++) {
            double y = s->family == RSSM_FAMILY_KDA ? at(&s->a, hv * K + i) + at(&s->dt_bias, hv * K + i) : x;
            double g = s->flags & RSSM_STEP_HAS_BOUND ? -5 / (1 + exp(-A * y)) : -A * log1p(exp(y));
            S[i] *= exp(g);
            sq += S[i] * q[i];
            sk += S[i] * k[i];
            kq += k[i] * q[i];
        }
        double d = is_mamba2 ? dt * value : beta * (value - sk);
        for (int64_t i = 0; i < K; i++)
            S[i] += d * k[i];
        out[hv * s->V + v] = is_mamba2 ? sq + d * kq : (sq + d * kq) * (double)s->scale;
    }
}

static void compare_out(truth *t, const rssm_step *s, const double *out)
{
    for (int64_t i = 0; i < (int64_t)s->HV * s->V; i++) {
        double got = element_get(RSSM_DTYPE_FLOAT32, s->out, i);
        t->error += (got - out[i]) * (got - out[i]);
        t->size += out[i] * out[i];
    }
}

static void compare_state(truth *t, const rssm_step *s)
{
    for (int64_t i = 0; i < (int64_t)s->HV * s->V * s->K; i++) {
        double got = element_get(RSSM_DTYPE_FLOAT32, s->state.data, i);
        t->state_error += (got - t->S[i]) * (got - t->S[i]);
        t->state_size += t->S[i] * t->S[i];
    }
}

static void check_trajectory(const level_under_test *level, int32_t family, int32_t L, random_state *r, int32_t windows)
{
    case_wish wish = {.family = family,
                      .io = 1,
                      .state = 1,
                      .ring = 1,
                      .L = L,
                      .K = 48,
                      .V = 40,
                      .H = 1,
                      .group = 2,
                      .B = 1,
                      .no_padding = 1,
                      .plain = 1};
    void *ctx = open_level(level, 1);
    step_case c;
    step_case_make(&c, r, &wish);
    rssm_step *s = &c.step;
    int64_t n = (int64_t)s->HV * s->V * s->K;
    truth t = {.S = calloc((size_t)n, sizeof(double))};
    double *out = calloc((size_t)n, sizeof(double));
    int32_t cursor[4] = {0}, rows[8] = {0}, slot = 0;
    uint32_t fault = 0;
    rssm_begin pass = {.B = 1,
                       .L = L,
                       .R = s->R,
                       .S = 1,
                       .pad_slot = -1,
                       .slots = {.data = &slot, .bits = 32, .stride = 1},
                       .cursor = cursor,
                       .cursor_slot = 4,
                       .rows = rows,
                       .rows_row = 8,
                       .fault = &fault};
    s->S = 1;
    s->pad_slot = -1;
    s->rows = rows;
    s->rows_row = 8;
    s->write_pos.data = NULL;
    memset(s->state.data, 0, (size_t)(n * 4));
    check_context("%s family %d trajectory L=%d", level->name, family, L);
    rssm_error err = {.struct_size = sizeof err};
    for (int32_t step = 0; step < windows * L; step++) {
        step_case fresh;
        step_case_make(&fresh, r, &wish);
        copy_input_row(&c, &fresh);
        rssm_cpu_backend()->step_begin(ctx, &pass, NULL, &err);
        rssm_cpu_backend()->step(ctx, s, NULL, &err);
        for (int64_t hv = 0; hv < s->HV; hv++)
            advance_truth(&t, s, hv, out);
        compare_out(&t, s, out);
        if (rows[3])
            compare_state(&t, s);
        step_case_free(&fresh);
    }
    double error = sqrt(t.error / t.size), state_error = sqrt(t.state_error / t.state_size);
    worst("trajectory output, relative L2", error, 2e-6);
    worst("trajectory state, relative L2", state_error, 1e-6);
    check(error <= 2e-6 && state_error <= 1e-6 && fault == 0, "output %.3g, state %.3g", error, state_error);
    free(t.S);
    free(out);
    step_case_free(&c);
    rssm_cpu_backend()->close(ctx);
}

void check_cursors(const test_options *options)
{
    static const int32_t lengths[] = {1, 2, 3, 5, 16, 64};
    level_under_test levels[MAX_LEVELS];
    int32_t n = available_levels(levels);
    random_state r = {options->seed + 5};
    void *ctx = open_level(&levels[0], 1);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check_moves(ctx, lengths[i], lengths[i], &r);
        check_moves(ctx, lengths[i], lengths[i] + 3, &r);
        check_small_batches(ctx, lengths[i]);
        check_reset(ctx, lengths[i]);
    }
    check_padding_and_faults(ctx);
    for (int32_t Tm = 2; Tm <= 5; Tm++)
        for (int32_t L = Tm; L <= 16; L += 3)
            check_window_cursors(ctx, L, Tm, &r);
    check_forged_commits(ctx);
    rssm_cpu_backend()->close(ctx);
    for (int32_t i = 0; i < n; i++)
        for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++)
            for (int32_t L = 1; L <= 16; L += 5)
                check_trajectory(&levels[i], family, L, &r, options->is_long ? 64 : 8);
}
