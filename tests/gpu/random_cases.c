/* Random cases: every byte against double precision (decode_case.h, over the mirror), and against the CPU backend of
 * the same plugin. A case is its number: all of it follows from that. */
#include "random_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/verify_variants.h"
#include "test_gpu.h"

#define KDA    RSSM_FAMILY_KDA
#define GDN    RSSM_FAMILY_GDN
#define MAMBA2 RSSM_FAMILY_MAMBA2
#define F32    RSSM_DTYPE_FLOAT32
#define BF16   RSSM_DTYPE_BFLOAT16
#define FP16   RSSM_DTYPE_FLOAT16

enum { MAX_ROWS = 640, REPEATS = 4, REPEAT_EVERY = 12 };

/* ---- a case from its number ------------------------------------------------------------------------------------- */

static int64_t below(uint64_t *random, int64_t n)
{
    return (int64_t)(h_random(random) % (uint64_t)n);
}

static bool one_in(uint64_t *random, int64_t n)
{
    return below(random, n) == 0;
}

typedef struct head_dims {
    int32_t K, V;
} head_dims;

static const head_dims delta_tuned[] = {{128, 128}};
static const head_dims mamba_tuned[] = {{128, 64}, {128, 80}, {256, 128}, {128, 32}, {256, 64}};
static const head_dims odd[] = {{7, 13},   {31, 37},  {67, 5},   {1, 1},   {96, 192}, {192, 96}, {80, 80},  {64, 64},
                                {100, 60}, {128, 40}, {40, 128}, {3, 257}, {128, 96}, {256, 32}, {129, 127}};

#define PICK(random, table) (table)[below(random, (int64_t)(sizeof(table) / sizeof((table)[0])))]

static void choose_dims(h_spec *s, uint64_t *random)
{
    static const int32_t families[] = {KDA, GDN, MAMBA2}, heads[] = {1, 1, 2, 3}, groups[] = {1, 1, 2, 4};
    s->family = PICK(random, families);
    bool tuned = below(random, 8) < (share.small ? 7 : 5);
    head_dims dims = !tuned                ? PICK(random, odd)
                     : s->family == MAMBA2 ? PICK(random, mamba_tuned)
                                           : PICK(random, delta_tuned);
    s->K = dims.K;
    s->V = dims.V;
    s->H = PICK(random, heads);
    s->HV = s->H * PICK(random, groups);
    while (s->HV * s->V < 96) /* the bars are of a row: few values may all cancel */
        s->HV += s->H;
}

static void choose_dtypes(h_spec *s, uint64_t *random)
{
    static const int32_t any[] = {F32, BF16, FP16};
    bool usual = below(random, 2);
    s->io = usual ? BF16 : PICK(random, any);
    s->state = usual ? (one_in(random, 2) ? F32 : BF16) : PICK(random, any);
    s->ring = usual ? (one_in(random, 3) ? F32 : s->io) : PICK(random, any);
    s->gate = one_in(random, 3) ? F32 : s->io;
    s->out = one_in(random, 3) ? F32 : s->io;
    s->weights = usual ? F32 : PICK(random, any);
}

static void choose_ring(h_spec *s, uint64_t *random)
{
    static const int32_t common[] = {1, 16, 16, 8, 5, 2};
    s->L = one_in(random, 2) ? PICK(random, common) : 2 + (int32_t)below(random, one_in(random, 3) ? 63 : 15);
    if (one_in(random, 6) && s->L > 1)
        s->drafts = 1 + (int32_t)below(random, s->L - 1);
    if (s->drafts >= RSSM_VERIFY_MAX_T) /* refused: longest_window */
        s->drafts = RSSM_VERIFY_MAX_T - 1;
    s->host_pos = one_in(random, 3);
}

/* A batch that fills a GPU makes it choose other kernels. */
static void choose_batch(h_spec *s, uint64_t *random)
{
    bool filling = one_in(random, share.small ? 3 : 20);
    s->B = filling ? 400 / s->HV : !share.small && one_in(random, 5) ? 8 + below(random, 32) : 1 + below(random, 5);
    s->S = s->B + 1 + below(random, 4);
}

static void choose_memory(dc_options *o, uint64_t *random)
{
    h_spec *s = &o->spec;
    static const int64_t row_gaps[] = {0, 0, 1, 3, 8, 64};
    s->apart = one_in(random, 2);
    s->index_bits = one_in(random, 2) ? 32 : 64;
    s->row_gap = PICK(random, row_gaps);
    s->slot_gap = one_in(random, 2) ? 0 : 8 * (1 + below(random, 20));
    o->misaligned = s->row_gap && one_in(random, 2);
    o->flat = one_in(random, 4);
    o->no_ring = s->L == 1 && one_in(random, 2);
}

static void choose_model(dc_options *o, uint64_t *random)
{
    bool mamba = o->spec.family == MAMBA2;
    o->spec.bounded = !mamba && one_in(random, 3);
    o->no_norm = !mamba && one_in(random, 5);
    o->neg_eigval = !mamba && one_in(random, 5);
    o->no_A_log = o->spec.bounded && one_in(random, 3);
    o->has_scale = !mamba && one_in(random, 6);
    o->scale = o->has_scale ? .3 : 0;
    o->has_dt_limit = mamba && one_in(random, 3);
    o->dt_min = o->has_dt_limit ? .05 : 0;
    o->dt_max = o->has_dt_limit ? 1.5 : 0;
    o->decay = mamba && one_in(random, 4);
    o->no_D = mamba && one_in(random, 3);
    o->no_z = mamba && one_in(random, 2);
    o->no_dt_bias = mamba && one_in(random, 3);
    o->spread = !o->spec.host_pos && one_in(random, 5);
    o->has_pad_slot = one_in(random, 3);
    o->pad_slot = o->has_pad_slot ? below(random, o->spec.S) : 0;
}

static dc_options options_of(int64_t number)
{
    uint64_t random = (uint64_t)number * 7919 + 1;
    dc_options o = {.engine = ON_GPU, .record_bar = 2};
    choose_dims(&o.spec, &random);
    choose_dtypes(&o.spec, &random);
    choose_ring(&o.spec, &random);
    choose_batch(&o.spec, &random);
    choose_memory(&o, &random);
    choose_model(&o, &random);
    o.spec.init_flags = RSSM_INIT_NO_SMALL_FLUSH; /* the CPU beside it has no small batches */
    return o;
}

/* Every 25th: states near the end of their type, inputs to match. The ring is wide, so that records stay exact. */
static bool is_extreme(int64_t number)
{
    return number % 25 == 7;
}

static dc_options extreme(dc_options o)
{
    o.spec.ring = F32;
    o.spec.io = o.spec.state = o.spec.out = o.spec.gate = FP16;
    o.no_norm = false;
    return o;
}

/* ---- cursors in the middle of a window -------------------------------------------------------------------------- */

static double record_number(dc_case *c, int which)
{
    if (which == DC_POOL_G && c->spec.family == MAMBA2)
        return h_uniform(&c->random, .01, .5);
    if (which == DC_POOL_G)
        return h_uniform(&c->random, -.3, -.001);
    double size = which == DC_POOL_K ? sqrt(3. / c->spec.K) : 1;
    return h_uniform(&c->random, -size, size);
}

static void fill_ring(dc_case *c, int which, int64_t slot)
{
    int64_t n = dc_pool_inner(c, which);
    for (int64_t i = 0; i < n; i++)
        rec_store(dc_pool_dtype(c, which), dc_slot(c, 0, which, slot), i, record_number(c, which));
}

void case_enter_windows(dc_case *c)
{
    for (int64_t slot = 0; slot < c->spec.S; slot++) {
        int64_t count = c->spec.L == 1 ? 0 : below(&c->random, c->spec.L + (c->spec.L > 2));
        if (c->spec.host_pos)
            c->host_count[slot] = count;
        dc_cursor(c, slot)[0] = c->spec.host_pos || c->spec.L == 1 ? 0 : (int32_t)below(&c->random, c->R);
        dc_cursor(c, slot)[1] = c->spec.host_pos ? 0 : (int32_t)count;
        for (int which = DC_POOL_D; which < DC_POOL_COUNT; which++)
            fill_ring(c, which, slot);
    }
}

/* Few of them: sums of many large numbers would cancel to what no float32 arithmetic can resolve. */
static void enlarge_states(dc_case *c)
{
    for (int64_t slot = 0; slot < c->spec.S; slot++)
        for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
            if (one_in(&c->random, 200))
                rec_store(c->spec.state, dc_slot(c, 0, DC_POOL_STATE, slot), i, h_uniform(&c->random, -7e4, 7e4));
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static int64_t bad_slot(dc_case *c)
{
    const int64_t far = c->spec.index_bits == 64 ? (int64_t)1 << 40 : INT32_MAX;
    const int64_t bad[] = {-1, c->spec.S, c->spec.S + 1000, far, -far};
    return PICK(&c->random, bad);
}

/* Different slots in random order, some rows padding, some flushed by force. */
static void choose_rows(dc_case *c, int64_t *slots, int32_t *force)
{
    int64_t deck[MAX_ROWS + 8];
    for (int64_t i = 0; i < c->spec.S; i++) {
        int64_t j = below(&c->random, i + 1);
        deck[i] = deck[j];
        deck[j] = i;
    }
    for (int64_t b = 0; b < c->spec.B; b++) {
        slots[b] = one_in(&c->random, 9) ? bad_slot(c) : deck[b];
        force[b] = one_in(&c->random, c->spec.L + 2);
    }
}

/* What a padding row brings may be anything. */
static void spoil_padding(dc_case *c)
{
    for (int64_t b = 0; b < c->spec.B; b++)
        for (int i = 0; dc_row_at(c, b).slot < 0 && i < DC_NUM_INPUTS; i++)
            for (int64_t x = 0; x < dc_inner(c, i); x++)
                c->in[i][b * dc_inner(c, i) + x] = (double)NAN;
}

static void prepare_step(dc_case *c, int64_t *slots, int32_t *force)
{
    choose_rows(c, slots, force);
    dc_poison(c);
}

/* Where q and k come normalised: length about 1. */
static void shrink(dc_case *c)
{
    for (int i = DC_Q; i <= DC_K; i++)
        for (int64_t x = 0; x < c->spec.B * dc_inner(c, i); x++)
            c->in[i][x] /= sqrt(.75 * c->spec.K);
}

/* Where q k nearly vanishes, its rounding error is all that a head's output has: q leans towards k. */
static void lean(dc_case *c)
{
    double slope = c->spec.K < 16 ? 2 : 1;
    for (int64_t x = 0; x < c->spec.B * dc_inner(c, DC_Q); x++)
        c->in[DC_Q][x] += slope * c->in[DC_K][x];
}

static void give_inputs(dc_case *c)
{
    dc_randomise(c);
    lean(c);
    if (c->options.no_norm)
        shrink(c);
    spoil_padding(c);
    dc_put_inputs(c, 0);
}

dc_worst case_step_of(dc_case *c, void (*change)(dc_case *c))
{
    int64_t slots[MAX_ROWS];
    int32_t force[MAX_ROWS];
    prepare_step(c, slots, force);
    dc_begin(c, slots, force);
    if (change)
        change(c);
    give_inputs(c);
    return dc_decode_checked(c, 0);
}

dc_worst case_step(dc_case *c)
{
    return case_step_of(c, NULL);
}

static dc_case *case_new(int64_t number, int engine)
{
    dc_options o = options_of(number);
    if (is_extreme(number))
        o = extreme(o);
    o.engine = engine;
    dc_case *c = dc_new(&o, (uint64_t)number);
    if (is_extreme(number))
        enlarge_states(c);
    case_enter_windows(c);
    return c;
}

/* ---- the CPU backend beside it ---------------------------------------------------------------------------------- */

static double tolerance(int32_t dtype, double single)
{
    return dtype == F32 ? single : dtype == BF16 ? 5e-3 : 7e-4;
}

/* A record value near a rounding tie may go either way, and a flush folds it into the state. */
static double pool_tolerance(const dc_case *c, int which)
{
    int32_t dtype = dc_pool_dtype(c, which);
    bool ties = which == DC_POOL_STATE && dtype == F32;
    return ties ? fmax(tolerance(c->spec.ring, 2e-6) / 2, 2e-6) : tolerance(dtype, 2e-6);
}

/* Relative L2 of two stretches of elements; NaN in both at one place is agreement, in one infinity. */
static double difference(int32_t dtype, const void *a, const void *b, int64_t n)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = rec_load(dtype, a, i), y = rec_load(dtype, b, i);
        if (isnan(x) && isnan(y))
            continue;
        error += (x - y) * (x - y);
        size += y * y;
    }
    return error == 0 ? 0 : isnan(error) ? (double)INFINITY : sqrt(error / size);
}

static int32_t out_dtype(const dc_case *c)
{
    return c->spec.out;
}

static void compare_rows(const dc_case *gpu, const dc_case *cpu)
{
    const DLTensor *x = gpu->calls[0]->roles[RSSM_T_OUT], *y = cpu->calls[0]->roles[RSSM_T_OUT];
    for (int64_t b = 0; b < gpu->spec.B; b++) {
        double error = difference(out_dtype(gpu), h_at(x, b, 0, 0, 0), h_at(y, b, 0, 0, 0), dc_inner(gpu, DC_V));
        dc_check(error <= tolerance(out_dtype(gpu), 4e-6), "row %d: outputs of GPU and CPU differ by %g", (int)b,
                 error);
        dc_row p = dc_row_at(gpu, b), q = dc_row_at(cpu, b);
        dc_check(p.slot == q.slot && p.base == q.base && p.count == q.count && p.flush == q.flush,
                 "row %d is not the same on GPU and CPU", (int)b);
    }
}

static void compare_pools(const dc_case *gpu, const dc_case *cpu)
{
    for (int64_t slot = 0; slot < gpu->spec.S; slot++) {
        dc_check(memcmp(dc_cursor(gpu, slot), dc_cursor(cpu, slot), 4 * sizeof(int32_t)) == 0,
                 "the cursor of slot %d is not the same on GPU and CPU", (int)slot);
        for (int which = 0; which < DC_POOL_COUNT; which++) {
            int32_t dtype = dc_pool_dtype(gpu, which);
            double error = difference(dtype, dc_slot(gpu, 0, which, slot), dc_slot(cpu, 0, which, slot),
                                      dc_pool_inner(gpu, which));
            dc_check(error <= pool_tolerance(gpu, which), "slot %d, pool tensor %d: GPU and CPU differ by %g",
                     (int)slot, which, error);
        }
    }
}

static void step_both(dc_case *gpu, dc_case *cpu, dc_worst *worst)
{
    int64_t slots[MAX_ROWS];
    int32_t force[MAX_ROWS];
    prepare_step(gpu, slots, force);
    dc_copy_start(cpu, gpu); /* a record near a tie may have gone either way: no step inherits that */
    memcpy(cpu->host_count, gpu->host_count, (size_t)gpu->spec.S * sizeof *cpu->host_count);
    dc_begin(gpu, slots, force);
    dc_begin(cpu, slots, force);
    give_inputs(gpu);
    dc_copy_inputs(cpu, gpu);
    dc_put_inputs(cpu, 0);
    dc_merge(worst, dc_decode_checked(gpu, 0));
    dc_decode(cpu, 0);
    compare_rows(gpu, cpu);
    compare_pools(gpu, cpu);
}

static int steps_of(const dc_case *c)
{
    return c->spec.B > 40 || share.small ? 2 : 4;
}

/* The same from the same start, four times: the same bits. */
static void repeat(int64_t number, const dc_case *first)
{
    int64_t slots[MAX_ROWS];
    int32_t force[MAX_ROWS];
    for (int i = 0; i < REPEATS; i++) {
        dc_case *again = case_new(number, ON_GPU);
        for (int s = 0; s < steps_of(again); s++) {
            prepare_step(again, slots, force);
            dc_begin(again, slots, force);
            give_inputs(again);
            dc_decode(again, 0);
        }
        dc_assert_same(first, again);
        dc_free(again);
    }
}

START_TEST(random_case)
{
    int64_t number = share.first + share.part + (int64_t)_i * share.parts;
    dc_case *gpu = case_new(number, ON_GPU), *cpu = case_new(number, ON_CPU);
    dc_worst worst = {0};
    for (int s = 0; s < steps_of(gpu); s++)
        step_both(gpu, cpu, &worst);
    dc_equal(dc_fault(gpu), dc_fault(cpu));
    if (number % REPEAT_EVERY == 0 && !share.small)
        repeat(number, gpu);
    dc_print_worst("random case", ON_GPU, worst);
    dc_free(gpu);
    dc_free(cpu);
}
END_TEST

/* The kernels' longest window is planned, and one token more is not. */
START_TEST(longest_window)
{
    for (int drafts = RSSM_VERIFY_MAX_T - 1; drafts <= RSSM_VERIFY_MAX_T; drafts++) {
        h_spec spec = h_defaults((h_spec){.family = GDN, .L = RSSM_VERIFY_MAX_T + 8, .drafts = drafts});
        rssm_dims dims = h_dims(&spec);
        rssm_init_args args = h_init_args(&spec, &dims);
        args.cpu_level = RSSM_CPU_SCALAR; /* the mirror's word for the GPU */
        rssm_plugin *plugin = NULL;
        rssm_error err = h_error();
        rssm_status status = h_api()->init(&args, &plugin, &err);
        bool fits = drafts < RSSM_VERIFY_MAX_T;
        dc_check(status == (fits ? RSSM_OK : RSSM_ERR_UNSUPPORTED), "%d drafts: %s", drafts, err.message);
        dc_check(fits || (!plugin && strstr(err.message, "max_draft_tokens = 16")), "%d drafts: %s", drafts,
                 err.message);
        h_teardown(&plugin);
    }
}
END_TEST

void add_random_cases(Suite *s)
{
    TCase *t = tcase_create("random");
    tcase_add_test(t, longest_window);
    tcase_add_loop_test(t, random_case, 0, gpu_share_of(share.last - share.first));
    suite_add_tcase(s, t);
}
