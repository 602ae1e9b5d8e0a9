/* Whole steps of every level against the oracle (the bars of maths.md) and against the reference: every family, dtype,
 * layout; all bytes that the step must not touch stay as they were. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "step_case.h"

static void bar_add(bar *bar, int32_t dtype, double got, double exact)
{
    double rounding = element_round(dtype, exact) - exact;
    bar->error += (got - exact) * (got - exact);
    bar->exact += exact * exact;
    bar->rounding += rounding * rounding;
    bar->n++;
}

/* fp32: relative error at most `limit`; 16 bits: at most 1.05 x what rounding the exact values costs. */
static void bar_check(const bar *bar, const char *level, const char *what, int32_t dtype, double limit)
{
    if (bar->n < 512 || bar->exact == 0)
        return;
    double figure = sqrt(bar->error / (dtype == RSSM_DTYPE_FLOAT32 ? bar->exact : bar->rounding));
    double most = dtype == RSSM_DTYPE_FLOAT32 ? limit : 1.05;
    check(figure <= most, "%s: %s %s: %.4g > %.4g", level, what, element_name(dtype), figure, most);
    worst(what[0] == 'o'
              ? (dtype == RSSM_DTYPE_FLOAT32 ? "output float32, relative L2" : "output 16-bit / its rounding")
              : (dtype == RSSM_DTYPE_FLOAT32 ? "state float32, relative L2" : "state 16-bit / its rounding"),
          figure, most);
}

static void run(void *ctx, const step_case *c)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->step(ctx, &c->step, NULL, &err) == RSSM_OK, "step: %s", err.message);
}

/* A value within `ulps` of its dtype and `relative` of the magnitudes that were added. */
int is_near(int32_t dtype, double got, double exact, double scale, double ulps)
{
    double tolerance = ulps * element_ulp(dtype, exact) + 40 * 0x1p-24 * scale + 0x1p-126;
    return fabs(got - exact) <= tolerance;
}

void check_case_out(const step_case *c, const oracle *o, level_bars *bars)
{
    const rssm_step *s = &c->step;
    int64_t bad = 0, width = (int64_t)s->HV * s->V;
    for (int64_t i = 0; i < s->B * width; i++) {
        int64_t b = i / width;
        double got = element_get(s->out_dtype, s->out, b * s->out_row + i % width);
        if (c->rows[b].slot < 0) {
            bad += !(got == 0 && !signbit(got));
            continue;
        }
        bad += !is_near(s->out_dtype, got, o->out[i], o->out_scale[i], s->out_dtype == RSSM_DTYPE_FLOAT32 ? 1 : 0.51);
        bar_add(&bars->out[s->out_dtype], s->out_dtype, got, o->out[i]);
    }
    check(bad == 0, "%lld outputs are wrong", (long long)bad);
}

void check_case_state(const step_case *c, const oracle *o, int64_t b, level_bars *bars)
{
    const rssm_step *s = &c->step;
    int64_t bad = 0, n = (int64_t)s->HV * s->V * s->K;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = b * n + i;
        if (o->state_unsure[at])
            continue;
        double got = element_get(s->state.dtype, s->state.data, c->rows[b].slot * s->state.slot + i);
        bad += !is_near(s->state.dtype, got, o->state[at], o->state_scale[at],
                        s->state.dtype == RSSM_DTYPE_FLOAT32 ? 1 : .51);
        bar_add(&bars->state[s->state.dtype], s->state.dtype, got, o->state[at]);
    }
    check(bad == 0, "row %lld: %lld state elements are wrong", (long long)b, (long long)bad);
}

void check_case_record(const step_case *c, const oracle *o, int64_t b)
{
    const rssm_step *s = &c->step;
    const case_row *row = &c->rows[b];
    int64_t at = (row->base + row->count) % s->R, bad_d = 0, bad_k = 0, bad_g = 0;
    int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
    double error = 0, size = 0;
    for (int64_t i = 0; i < (int64_t)s->HV * s->V; i++) {
        double got = element_get(s->d_cache.dtype, s->d_cache.data,
                                 row->slot * s->d_cache.slot + (i / s->V * s->R + at) * s->V + i % s->V);
        int64_t of = b * s->HV * s->V + i;
        double exact = element_round(s->d_cache.dtype, o->d[of]);
        bad_d += !is_near(s->d_cache.dtype, got, exact, o->d_scale[of], 1);
    }
    for (int64_t i = 0; i < (int64_t)s->H * s->K; i++) {
        double got = element_get(s->k_cache.dtype, s->k_cache.data,
                                 row->slot * s->k_cache.slot + (i / s->K * s->R + at) * s->K + i % s->K);
        bad_k += !is_near(s->k_cache.dtype, got, element_round(s->k_cache.dtype, o->k[b * s->H * s->K + i]), 0,
                          c->record_ulps > 0 ? c->record_ulps : 1.01);
    }
    for (int64_t i = 0; i < s->HV * gates; i++) {
        double got = element_get(RSSM_DTYPE_FLOAT32, s->g_cache.data,
                                 row->slot * s->g_cache.slot + (i / gates * s->R + at) * gates + i % gates);
        double exact = o->g[b * s->HV * gates + i];
        error += (got - exact) * (got - exact);
        size += exact * exact;
        bad_g += !(fabs(got - exact) <= 8e-6 * fabs(exact) + 1e-37); /* a + dt_bias = -60 costs 4e-6 */
    }
    /* Relative to 0.01 where gates are less: a + dt_bias far below 0 may be all there is, and 1e-8 of a log decay is below the
     * rounding of the decay. */
    size = fmax(size, 1e-4 * (double)(s->HV * gates));
    check(error <= 1e-12 * size, "row %lld: gates: relative L2 %.3g", (long long)b, sqrt(error / size));
    check(bad_d + bad_k + bad_g == 0, "row %lld: record: %lld d, %lld k, %lld g are wrong", (long long)b,
          (long long)bad_d, (long long)bad_k, (long long)bad_g);
}

/* What the step may write, taken over from `after`, so that the rest must be equal byte by byte. */
static void take_written(step_case *before, const step_case *after)
{
    const rssm_step *s = &after->step;
    for (int64_t b = 0; b < s->B; b++) {
        const case_row *row = &after->rows[b];
        int64_t n = (int64_t)s->HV * s->V, e = element_bytes(s->out_dtype);
        memcpy((char *)before->step.out + b * s->out_row * e, (char *)s->out + b * s->out_row * e, (size_t)(n * e));
        if (row->slot < 0)
            continue;
        if (row->flush) {
            e = element_bytes(s->state.dtype);
            memcpy((char *)before->step.state.data + row->slot * s->state.slot * e,
                   (char *)s->state.data + row->slot * s->state.slot * e, (size_t)(n * s->K * e));
            continue;
        }
        int64_t r = (row->base + row->count) % s->R, gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
        const struct {
            const rssm_pooled *to, *from;
            int64_t heads, width;
        } rings[] = {{&before->step.d_cache, &s->d_cache, s->HV, s->V},
                     {&before->step.k_cache, &s->k_cache, s->H, s->K},
                     {&before->step.g_cache, &s->g_cache, s->HV, gates}};
        for (int i = 0; i < 3; i++)
            for (int64_t head = 0; head < rings[i].heads; head++) {
                int64_t at = row->slot * rings[i].from->slot + (head * s->R + r) * rings[i].width;
                e = element_bytes(rings[i].from->dtype);
                memcpy((char *)rings[i].to->data + at * e, (char *)rings[i].from->data + at * e,
                       (size_t)(rings[i].width * e));
            }
    }
}

void check_case_untouched(const step_case *original, const step_case *after)
{
    step_case before;
    step_case_copy(&before, original);
    take_written(&before, after);
    for (int i = 0; i < MEM_COUNT; i++) {
        if (!after->mem[i].raw)
            continue;
        check(guarded_intact(&after->mem[i]), "guard bytes of array %d", i);
        check(memcmp(before.mem[i].data, after->mem[i].data, (size_t)after->mem[i].bytes) == 0,
              "array %d: bytes changed that the step must not write", i);
    }
    step_case_free(&before);
}

static void describe(const char *level, const step_case *c, uint64_t seed)
{
    static const char *const families[] = {"none", "kda", "gdn", "mamba2"};
    const rssm_step *s = &c->step;
    check_context("%s %s B=%d H=%d HV=%d K=%d V=%d L=%d R=%d io=%s state=%s ring=%s out=%s %s case %llu", level,
                  families[s->family], s->B, s->H, s->HV, s->K, s->V, s->L, s->R, element_name(s->q.dtype),
                  element_name(s->state.dtype), element_name(s->d_cache.dtype), element_name(s->out_dtype),
                  s->rows ? "rows" : "write_pos", (unsigned long long)seed);
}

static void check_one(const char *level, void *ctx, const step_case *c, const oracle *o, uint64_t seed,
                      level_bars *bars)
{
    step_case mine;
    step_case_copy(&mine, c);
    describe(level, c, seed);
    run(ctx, &mine);
    check(mine.fault == 0, "fault word %u", (unsigned)mine.fault);
    check_case_out(&mine, o, bars);
    for (int32_t b = 0; b < c->step.B; b++) {
        if (c->rows[b].slot < 0)
            continue;
        if (c->rows[b].flush)
            check_case_state(&mine, o, b, bars);
        else
            check_case_record(&mine, o, b);
    }
    check_case_untouched(c, &mine);
    step_case_free(&mine);
}

static void one_case(uint64_t seed, const case_wish *wish, int32_t n, const level_under_test *levels, void *const *ctx,
                     level_bars *bars)
{
    random_state r = {seed};
    step_case c;
    oracle o;
    step_case_make(&c, &r, wish);
    oracle_make(&o, &c);
    for (int32_t i = 0; i < n; i++)
        check_one(levels[i].name, ctx[i], &c, &o, seed, &bars[i]);
    oracle_free(&o);
    step_case_free(&c);
}

void bars_check(const level_under_test *level, const level_bars *bars)
{
    for (int32_t dtype = RSSM_DTYPE_FLOAT32; dtype <= RSSM_DTYPE_FLOAT16; dtype++) {
        bar_check(&bars->out[dtype], level->name, "output", dtype, 2e-6);
        bar_check(&bars->state[dtype], level->name, "state", dtype, 1e-6);
    }
}

/* Every family x io x state x ring once per round with sizes of real models, whose L2 figures are checked alone; then
 * random sizes. */
static void check_family_grid(const test_options *options, int32_t n, const level_under_test *levels, void *const *ctx)
{
    uint64_t seed = options->seed * 1000000;
    for (int32_t i = 0; i < 3 * 27; i++) {
        level_bars bars[MAX_LEVELS];
        memset(bars, 0, sizeof bars);
        case_wish wish = {.family = 1 + i / 27, .io = 1 + i / 9 % 3, .state = 1 + i / 3 % 3, .ring = 1 + i % 3};
        wish.K = i % 2 ? 64 : 128;
        wish.V = i % 5 ? 64 : 48;
        wish.L = i % 4 ? 16 : 1;
        wish.H = 1;
        wish.group = 2;
        wish.B = 2;
        one_case(seed + (uint64_t)i, &wish, n, levels, ctx, bars);
        for (int32_t level = 0; level < n; level++)
            bars_check(&levels[level], &bars[level]);
    }
}

/* What does not fit in 16 bits: each row of the table makes one kind overflow. */
static const struct overflow {
    int32_t io, state, ring, all_flush, only; /* only: this family; 0 = all */
    double v, magnitude;                      /* v of row 0, 0 = as it is; of state and records */
    uint32_t expected;
} overflows[] = {
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, 2, 0, 3e30, 1, RSSM_FAULTBIT_RING},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 2, RSSM_FAMILY_MAMBA2, 3.402e38, 1,
     RSSM_FAULTBIT_RING},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, 1, 0, 3e30, 1, RSSM_FAULTBIT_RING},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, RSSM_DTYPE_FLOAT32, 1, 0, 3e30, 1, RSSM_FAULTBIT_STATE},
    {RSSM_DTYPE_FLOAT16, RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT32, 2, 0, 0, 1e8, RSSM_FAULTBIT_OUTPUT},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, RSSM_DTYPE_FLOAT16, 1, 0, 0, 1, 0},
};

static int64_t count_not_finite(const step_case *c)
{
    const rssm_step *s = &c->step;
    int64_t n = 0;
    for (int64_t i = 0; i < (int64_t)s->HV * s->V * s->K; i++)
        n += !isfinite(element_get(s->state.dtype, s->state.data, c->rows[0].slot * s->state.slot + i));
    for (int64_t i = 0; i < (int64_t)s->HV * s->V; i++)
        n += !isfinite(element_get(s->out_dtype, s->out, i));
    return n;
}

static void check_overflow(const struct overflow *o, int32_t family, random_state *r, int32_t n,
                           const level_under_test *levels, void *const *ctx)
{
    case_wish wish = {.family = family,
                      .io = o->io,
                      .state = o->state,
                      .ring = o->ring,
                      .L = 5,
                      .K = 33,
                      .V = 19,
                      .H = 3,
                      .group = 3,
                      .B = 4,
                      .all_flush = o->all_flush,
                      .no_padding = 1,
                      .magnitude = o->magnitude,
                      .out_is_io = 1};
    step_case c, mine;
    step_case_make(&c, r, &wish);
    for (int64_t i = 0; o->v > 0 && i < c.step.HV * c.step.V; i++)
        element_set(c.step.v.dtype, (void *)(uintptr_t)c.step.v.data, i, i % 2 ? o->v : -o->v);
    for (int32_t i = 0; i < n; i++) {
        step_case_copy(&mine, &c);
        describe(levels[i].name, &c, 0);
        run(ctx[i], &mine);
        check(mine.fault == o->expected, "overflow: fault word %u, not %u", (unsigned)mine.fault,
              (unsigned)o->expected);
        if (o->v < 1e38) /* else the float32 output overflows, as it should */
            check(count_not_finite(&mine) == 0, "overflow: infinities or NaN remain");
        step_case_free(&mine);
    }
    step_case_free(&c);
}

static void check_overflows(const test_options *options, int32_t n, const level_under_test *levels, void *const *ctx)
{
    random_state r = {options->seed + 77};
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++)
        for (size_t i = 0; i < sizeof overflows / sizeof overflows[0]; i++)
            if (!overflows[i].only || overflows[i].only == family)
                check_overflow(&overflows[i], family, &r, n, levels, ctx);
}

/* Cursors out of range: the row is padding, and the fault word says so. */
static void check_bad_cursors(const test_options *options, int32_t n, const level_under_test *levels, void *const *ctx)
{
    static const int32_t bad[][3] = {{-1, 0, 1}, {8, 0, 1},         {0, -1, 1},        {0, 6, 1},
                                     {0, 5, 0},  {INT32_MAX, 0, 0}, {0, INT32_MAX, 1}, {INT32_MIN, INT32_MIN, 0}};
    random_state r = {options->seed + 99};
    for (size_t which = 0; which < sizeof bad / sizeof bad[0]; which++) {
        case_wish wish = {.family = 1 + (int32_t)(which % 3), .L = 5, .B = 2, .no_padding = 1};
        step_case c;
        do {
            step_case_make(&c, &r, &wish);
            if (!c.step.rows)
                step_case_free(&c);
        } while (!c.step.rows);
        memcpy(c.mem[MEM_ROWS].data + 4, bad[which], sizeof bad[which]);
        if (c.step.R == 5 || bad[which][0] != 8) {
            c.rows[0].slot = -1;
            oracle o;
            oracle_make(&o, &c);
            for (int32_t i = 0; i < n; i++) {
                level_bars bars;
                memset(&bars, 0, sizeof bars);
                step_case mine;
                step_case_copy(&mine, &c);
                describe(levels[i].name, &c, 0);
                run(ctx[i], &mine);
                check(mine.fault == RSSM_FAULTBIT_CURSOR, "bad cursor %d: fault word %u", (int)which,
                      (unsigned)mine.fault);
                check_case_out(&mine, &o, &bars);
                check_case_untouched(&c, &mine);
                step_case_free(&mine);
            }
            oracle_free(&o);
        }
        step_case_free(&c);
    }
}

void check_steps(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    void *ctx[MAX_LEVELS];
    int32_t n = available_levels(levels);
    for (int32_t i = 0; i < n; i++)
        ctx[i] = open_level(&levels[i], 1);
    check_family_grid(options, n, levels, ctx);
    level_bars bars[MAX_LEVELS];
    memset(bars, 0, sizeof bars);
    uint64_t seed = options->seed * 1000000 + 1000;
    case_wish anything = {0};
    for (int32_t i = 0; i < (options->is_long ? 4000 : 250); i++)
        one_case(seed + (uint64_t)i, &anything, n, levels, ctx, bars);
    check_context("random sizes");
    for (int32_t i = 0; i < n; i++)
        bars_check(&levels[i], &bars[i]);
    check_overflows(options, n, levels, ctx);
    check_bad_cursors(options, n, levels, ctx);
    for (int32_t i = 0; i < n; i++)
        rssm_cpu_backend()->close(ctx[i]);
}
