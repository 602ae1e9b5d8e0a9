/* Windows of drafts: verify against the oracle token by token, and bit by bit against plain steps of the same tokens; a
 * window with no room folds first; later tokens, other threads, bad rows change nothing that they must not. Then
 * verify_begin and commit, and random histories of windows and steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step_case.h"

/* A case whose rows have several tokens; c.rows[w] is the cursor of window w. The last tokens may belong to no row. */
typedef struct window_case {
    step_case c;
    rssm_window window;
    int32_t count; /* windows */
    int32_t start[MAX_ROWS], len[MAX_ROWS];
} window_case;

static void write_rows(window_case *w)
{
    step_case *c = &w->c;
    for (int32_t i = 0; i < w->count; i++) {
        case_row *row = &c->rows[i];
        row->flush = row->slot >= 0 && row->count + w->len[i] > c->step.L;
        const int32_t values[8] = {(int32_t)row->slot, row->base, row->count, row->flush, 0, w->start[i], w->len[i], 0};
        memcpy(c->mem[MEM_ROWS].data + i * c->step.rows_row * 4, values, sizeof values);
    }
}

/* The tokens of the case, cut into windows of 0 .. drafts. */
static void cut(window_case *w, random_state *r, int32_t tokens, int32_t max_T)
{
    int32_t at = 0;
    for (w->count = 0; w->count < tokens; w->count++) {
        int32_t len = (int32_t)random_between(r, random_between(r, 0, 5) ? 1 : 0, max_T);
        if (at + len > tokens)
            break;
        w->start[w->count] = at;
        w->len[w->count] = len;
        at += len;
    }
    w->c.step.B = w->count;
}

static void window_case_make(window_case *w, random_state *r, const case_wish *wish)
{
    case_wish with = *wish;
    memset(w, 0, sizeof *w);
    with.drafts = wish->drafts ? wish->drafts : (int32_t)random_between(r, 2, 8);
    with.H = wish->H ? wish->H : (int32_t)random_between(r, 1, 2);
    with.group = wish->group ? wish->group : (int32_t)random_between(r, 1, 3);
    with.K = wish->K ? wish->K : (int32_t)random_dim(r);
    with.V = wish->V ? wish->V : (int32_t)random_dim(r);
    int32_t affordable = 150000 / (with.H * with.group * with.K * with.V);
    if (!with.B)
        with.B = affordable < 3 ? 3 : affordable < 20 ? affordable : 20;
    step_case_make(&w->c, r, &with);
    w->window = (rssm_window){.tokens = with.B, .max_T = with.drafts};
    cut(w, r, with.B, with.drafts);
    write_rows(w);
    w->window.step = w->c.step;
}

static void window_case_copy(window_case *to, const window_case *from)
{
    *to = *from;
    step_case_copy(&to->c, &from->c);
    to->window.step = to->c.step;
}

static void window_case_free(window_case *w)
{
    step_case_free(&w->c);
}

static void describe(const char *level, const window_case *w, uint64_t seed)
{
    static const char *const families[] = {"none", "kda", "gdn", "mamba2"};
    const rssm_step *s = &w->c.step;
    check_context(
        "%s %s window rows=%d tokens=%d Tm=%d H=%d HV=%d K=%d V=%d L=%d io=%s state=%s ring=%s out=%s case %llu", level,
        families[s->family], w->count, (int)w->window.tokens, w->window.max_T, s->H, s->HV, s->K, s->V, s->L,
        element_name(s->q.dtype), element_name(s->state.dtype), element_name(s->d_cache.dtype),
        element_name(s->out_dtype), (unsigned long long)seed);
}

static void verify(void *ctx, const window_case *w)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->verify(ctx, &w->window, NULL, &err) == RSSM_OK, "verify: %s", err.message);
}

/* ---- one token of one window as a plain step ---- */

static const void *ahead(const rssm_input *x, int64_t rows)
{
    return x->data ? (const char *)x->data + rows * x->row * element_bytes(x->dtype) : NULL;
}

/* Token i of window n: a view of w's memory with B = 1. The row begins behind a fold. */
static step_case token_view(const window_case *w, int32_t n, int32_t i)
{
    step_case view = w->c;
    rssm_step *s = &view.step;
    int64_t token = w->start[n] + i;
    rssm_input *inputs[] = {&s->q, &s->k, &s->v, &s->a, &s->b, &s->z};
    for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
        inputs[j]->data = ahead(inputs[j], token);
    s->out = (char *)s->out + token * s->out_row * element_bytes(s->out_dtype);
    s->B = 1;
    view.rows[0] = w->c.rows[n];
    if (view.rows[0].flush) {
        view.rows[0].base = (view.rows[0].base + view.rows[0].count) % s->R;
        view.rows[0].count = 0;
    }
    view.rows[0].count += i;
    view.rows[0].flush = 0;
    return view;
}

/* Token after token, where no step flushes. The state must be as a fold of the window would leave it. */
static void run_plain(void *ctx, window_case *w)
{
    for (int32_t n = 0; n < w->count; n++)
        for (int32_t i = 0; i < w->len[n]; i++) {
            step_case view = token_view(w, n, i);
            const case_row *row = &view.rows[0];
            const int32_t values[8] = {(int32_t)row->slot, row->base, row->count, 0, 0, 0, 1, 0};
            view.step.rows = values;
            view.step.fault = &w->c.fault;
            rssm_error err = {.struct_size = sizeof err};
            check(rssm_cpu_backend()->step(ctx, &view.step, NULL, &err) == RSSM_OK, "step: %s", err.message);
        }
}

/* ---- checks ---- */

static int same_bytes(const window_case *a, const window_case *b, int which)
{
    return !a->c.mem[which].raw ||
           memcmp(a->c.mem[which].data, b->c.mem[which].data, (size_t)a->c.mem[which].bytes) == 0;
}

static void check_tokens(const window_case *w, level_bars *bars)
{
    for (int32_t n = 0; n < w->count; n++)
        for (int32_t i = 0; i < w->len[n]; i++) {
            step_case view = token_view(w, n, i);
            oracle o;
            oracle_make(&o, &view);
            check_case_out(&view, &o, bars);
            if (view.rows[0].slot >= 0)
                check_case_record(&view, &o, 0);
            oracle_free(&o);
        }
}

/* The fold against the recurrence of the records; the states of other rows as they were. */
static void check_states(const window_case *before, const window_case *after, level_bars *bars)
{
    oracle o;
    oracle_fold(&o, &before->c);
    for (int32_t n = 0; n < after->count; n++) {
        const case_row *row = &after->c.rows[n];
        const rssm_pooled *state = &after->c.step.state;
        int64_t e = element_bytes(state->dtype),
                bytes = (int64_t)after->c.step.HV * after->c.step.V * after->c.step.K * e;
        if (row->slot >= 0 && row->flush)
            check_case_state(&after->c, &o, n, bars);
        else if (row->slot >= 0)
            check(memcmp((char *)state->data + row->slot * state->slot * e,
                         (char *)before->c.step.state.data + row->slot * state->slot * e, (size_t)bytes) == 0,
                  "row %d: a state changed without a flush", n);
    }
    oracle_free(&o);
}

/* Plain steps behind the same fold leave the same bytes everywhere. */
static void check_bits(void *ctx, const window_case *before, const window_case *after)
{
    window_case plain;
    window_case_copy(&plain, before);
    memcpy(plain.c.mem[MEM_STATE].data, after->c.mem[MEM_STATE].data, (size_t)after->c.mem[MEM_STATE].bytes);
    run_plain(ctx, &plain);
    for (int i = 0; i < MEM_COUNT; i++) {
        check(same_bytes(&plain, after, i), "array %d: other bytes than plain steps leave", i);
        check(!after->c.mem[i].raw || guarded_intact(&after->c.mem[i]), "guard bytes of array %d", i);
    }
    window_case_free(&plain);
}

/* NaN in the last token of every window reaches no other. */
static void check_causal(void *ctx, const window_case *before, const window_case *after)
{
    window_case poisoned;
    const rssm_step *s = &before->c.step;
    int64_t e = element_bytes(s->out_dtype), bytes = (int64_t)s->HV * s->V * e, wrong = 0;
    window_case_copy(&poisoned, before);
    for (int32_t n = 0; n < poisoned.count; n++)
        for (int64_t i = 0; poisoned.len[n] > 0 && i < (int64_t)s->HV * s->V; i++)
            element_set(s->v.dtype, (void *)(uintptr_t)poisoned.c.step.v.data,
                        (poisoned.start[n] + poisoned.len[n] - 1) * s->v.row + i, i % 2 ? 1e4 : -3e4);
    verify(ctx, &poisoned);
    for (int32_t n = 0; n < poisoned.count; n++)
        for (int64_t i = poisoned.start[n]; i < poisoned.start[n] + poisoned.len[n] - 1; i++)
            wrong += memcmp((char *)poisoned.c.step.out + i * s->out_row * e,
                            (char *)after->c.step.out + i * s->out_row * e, (size_t)bytes) != 0;
    check(wrong == 0, "%lld outputs depend on a later token", (long long)wrong);
    window_case_free(&poisoned);
}

static void check_one(const char *level, void *ctx, const window_case *before, uint64_t seed, level_bars *bars)
{
    window_case after;
    window_case_copy(&after, before);
    describe(level, before, seed);
    verify(ctx, &after);
    check(after.c.fault == 0, "fault word %u", (unsigned)after.c.fault);
    check_tokens(&after, bars);
    check_states(before, &after, bars);
    check_bits(ctx, before, &after);
    check_causal(ctx, before, &after);
    window_case_free(&after);
}

/* ---- threads ---- */

static void check_thread_bits(const level_under_test *level, uint64_t seed)
{
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++) {
        random_state r = {seed + (uint64_t)family};
        case_wish wish = {.family = family, .K = 128, .V = 97, .L = 8, .H = 2, .group = 3, .B = 20, .drafts = 5};
        window_case w, first;
        window_case_make(&w, &r, &wish);
        for (int32_t threads = 1; threads <= 5; threads++) {
            window_case mine;
            void *ctx = open_level(level, threads);
            window_case_copy(&mine, &w);
            describe(level->name, &w, (uint64_t)threads);
            verify(ctx, &mine);
            if (threads == 1)
                window_case_copy(&first, &mine);
            for (int i = 0; i < MEM_COUNT; i++)
                check(same_bytes(&first, &mine, i), "%d threads: array %d has other bits", threads, i);
            window_case_free(&mine);
            rssm_cpu_backend()->close(ctx);
        }
        window_case_free(&first);
        window_case_free(&w);
    }
}

/* ---- rows that are not what they should be ---- */

/* base, count, flush, start, len of row 0; L = 5, Tm = 3, R = 8, 6 tokens of which row 1 has token 3 and row 2 none. Tokens out
 * of range are none: none of them gets zeros. */
static const struct bad_row {
    int32_t values[5];
    uint32_t fault;
    int32_t zeros_from, zeros; /* tokens that get zeros */
} bad_rows[] = {
    {{-1, 0, 0, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{8, 0, 0, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{0, -1, 0, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{0, 6, 1, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{0, 4, 0, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{0, 3, 1, 0, 2}, RSSM_FAULTBIT_CURSOR, 0, 2},
    {{0, 0, 0, 0, 4}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, 0, -1}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, 4, 3}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, -1, 2}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, 7, 2}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, INT32_MAX, 2}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{0, 0, 0, INT32_MIN, 3}, RSSM_FAULTBIT_SEQLENS, 0, 0},
    {{INT32_MAX, INT32_MAX, 1, 0, INT32_MAX}, RSSM_FAULTBIT_SEQLENS | RSSM_FAULTBIT_CURSOR, 0, 0},
    {{0, 6, 0, 7, 2}, RSSM_FAULTBIT_SEQLENS | RSSM_FAULTBIT_CURSOR, 0, 0},
};

static void check_bad_row(const level_under_test *level, void *ctx, const struct bad_row *bad, random_state *r)
{
    case_wish wish = {.K = 33, .V = 19, .L = 5, .H = 2, .group = 2, .B = 6, .drafts = 3, .no_padding = 1};
    window_case before, after;
    window_case_make(&before, r, &wish);
    before.count = before.c.step.B = before.window.step.B = 3;
    for (int32_t n = 0; n < 3; n++) {
        before.start[n] = 3;
        before.len[n] = n == 1;
    }
    write_rows(&before);
    int32_t *row = (int32_t *)(void *)before.c.mem[MEM_ROWS].data;
    row[1] = bad->values[0], row[2] = bad->values[1], row[3] = bad->values[2];
    row[5] = bad->values[3], row[6] = bad->values[4];
    window_case_copy(&after, &before);
    describe(level->name, &before, (uint64_t)(bad - bad_rows));
    verify(ctx, &after);
    check(after.c.fault == bad->fault, "fault word %u, not %u", (unsigned)after.c.fault, (unsigned)bad->fault);
    before.len[0] = 0;
    const rssm_step *s = &before.c.step;
    int64_t e = element_bytes(s->out_dtype);
    for (int64_t i = bad->zeros_from; i < bad->zeros_from + bad->zeros; i++)
        memset((char *)s->out + i * s->out_row * e, 0, (size_t)(s->HV * s->V * e));
    before.c.fault = 0;
    check_bits(ctx, &before, &after);
    window_case_free(&after);
    window_case_free(&before);
}

void check_windows(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    level_bars bars[MAX_LEVELS];
    int32_t n = available_levels(levels);
    uint64_t seed = options->seed * 1000000 + 5000;
    memset(bars, 0, sizeof bars);
    for (int32_t i = 0; i < n; i++) {
        void *ctx = open_level(&levels[i], 1);
        random_state rows = {seed};
        for (uint64_t j = 0; j < (options->is_long ? 3000 : 150); j++) {
            random_state r = {seed + j};
            case_wish wish = {
                .family = 1 + (int32_t)(j % 3), .io = 1 + (int32_t)(j / 3 % 3), .ring = 1 + (int32_t)(j / 9 % 3)};
            window_case w;
            window_case_make(&w, &r, &wish);
            check_one(levels[i].name, ctx, &w, seed + j, &bars[i]);
            window_case_free(&w);
        }
        for (size_t j = 0; j < sizeof bad_rows / sizeof bad_rows[0]; j++)
            check_bad_row(&levels[i], ctx, &bad_rows[j], &rows);
        check_context("%s windows of random sizes", levels[i].name);
        bars_check(&levels[i], &bars[i]);
        rssm_cpu_backend()->close(ctx);
        check_thread_bits(&levels[i], seed);
    }
}
