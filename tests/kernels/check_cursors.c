/* step_begin and reset of the CPU backend: rows and cursors over whole windows, wraps, padding, bad cursors, phases; then
 * many steps in a row against the plain recurrence carried in double (bar T). */
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
static void check_windows(void *ctx, int32_t L, int32_t R, random_state *r)
{
    cursors c;
    int32_t base[SLOTS] = {0}, count[SLOTS] = {0}, wrong = 0;
    start(&c, ctx, L, R);
    check_context("cursors L=%d R=%d", L, R);
    for (int32_t step = 0; step < 5 * R + 7; step++) {
        for (int32_t i = 0; i < SLOTS; i++)
            c.force[i] = random_between(r, 0, 9) == 0;
        begin(&c);
        for (int32_t i = 0; i < SLOTS; i++) {
            int32_t flush = count[i] >= L - 1 || c.force[i];
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
        check_windows(ctx, lengths[i], lengths[i], &r);
        check_windows(ctx, lengths[i], lengths[i] + 3, &r);
        check_reset(ctx, lengths[i]);
    }
    check_padding_and_faults(ctx);
    rssm_cpu_backend()->close(ctx);
    for (int32_t i = 0; i < n; i++)
        for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++)
            for (int32_t L = 1; L <= 16; L += 5)
                check_trajectory(&levels[i], family, L, &r, options->is_long ? 64 : 8);
}
