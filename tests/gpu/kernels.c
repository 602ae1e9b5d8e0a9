/* Every tuned kernel of the plugin's table: the rule that chooses one is asked for a batch that chooses it, and that batch
 * is decoded and checked. This looks inside the plugin, at the table alone. */
#include "test_gpu.h"

#include <stdio.h>

#include "cuda/small_launch.h"
#include "gpu.h"
#include "random_cases.h"

#define F32  RSSM_DTYPE_FLOAT32
#define BF16 RSSM_DTYPE_BFLOAT16
#define FP16 RSSM_DTYPE_FLOAT16

enum { H = 2, HV = 8, MOST_ROWS = 600 };

/* io, ring and out of kernels that take any. */
static const struct {
    int32_t io, ring, out;
} dtypes[] = {{F32, F32, F32}, {BF16, F32, F32}, {FP16, FP16, FP16}, {BF16, BF16, F32}};

static dc_options options_of(int kernel)
{
    static const int32_t lengths[] = {16, 6, 16, 2};
    const rssm_cuda_variant *v = &rssm_cuda_variants[kernel];
    dc_options o = {.engine = ON_GPU, .record_bar = 2};
    bool any = v->io == 0;
    o.spec = (h_spec){.family = v->family, .H = H, .HV = HV, .K = v->K, .V = v->V, .state = v->state_dtype};
    o.spec.io = o.spec.gate = any ? dtypes[kernel % 4].io : v->io;
    o.spec.ring = any ? dtypes[kernel % 4].ring : v->io;
    o.spec.out = any ? dtypes[kernel % 4].out : v->io;
    o.spec.L = v->ring ? lengths[kernel / 4 % 4] : 1;
    o.spec.slot_gap = kernel % 3 ? 0 : 16;
    o.spec.row_gap = kernel % 2;
    o.spec.host_pos = kernel % 5 == 0;
    o.spec.init_flags = RSSM_INIT_NO_SMALL_FLUSH;
    o.spec.bounded = v->family != RSSM_FAMILY_MAMBA2 && kernel % 7 == 0;
    o.no_z = kernel % 2;
    return o;
}

static rssm_pooled pooled(int32_t dtype)
{
    return (rssm_pooled){.data = (void *)256, .slot = 1024, .dtype = dtype};
}

/* What the rule looks at. */
static rssm_step step_of(const dc_options *o, int64_t B)
{
    const h_spec *s = &o->spec;
    const rssm_input in = {.data = (void *)256, .dtype = s->io};
    return (rssm_step){.family = s->family,
                       .B = (int32_t)B,
                       .H = s->H,
                       .HV = s->HV,
                       .K = s->K,
                       .V = s->V,
                       .L = s->L,
                       .R = s->L,
                       .S = B + 2,
                       .rows = s->host_pos ? NULL : (void *)256,
                       .q = in,
                       .k = in,
                       .v = in,
                       .a = in,
                       .b = in,
                       .out_dtype = s->out,
                       .state = pooled(s->state),
                       .d_cache = pooled(s->ring),
                       .k_cache = pooled(s->ring),
                       .g_cache = pooled(F32)};
}

/* The least batch for which this GPU's choice is the kernel; 0 = none. */
static int64_t rows_of(int kernel, const dc_options *o)
{
    int sms = 0, shared = 0;
    GPU(device_attribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu()->device));
    GPU(device_attribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, gpu()->device));
    for (int64_t B = 1; B <= MOST_ROWS; B++) {
        rssm_step step = step_of(o, B);
        if (rssm_small_choose(&step, 0) < 0 && rssm_cuda_choose(&step, sms, shared).variant == kernel)
            return B;
    }
    return 0;
}

START_TEST(tuned_kernel)
{
    int kernel = (int)(share.part + (int64_t)_i * share.parts);
    dc_options o = options_of(kernel);
    o.spec.B = rows_of(kernel, &o);
    if (o.spec.B == 0) {
        fprintf(stderr, "%s is chosen at no batch up to %d here: left out\n", rssm_cuda_variants[kernel].name,
                MOST_ROWS);
        return;
    }
    o.spec.S = o.spec.B + 2;
    dc_case *c = dc_new(&o, (uint64_t)kernel);
    dc_worst worst = {0};
    case_enter_windows(c);
    for (int step = 0; step < (share.small ? 1 : 2); step++)
        dc_merge(&worst, case_step(c));
    dc_equal(dc_fault(c), 0);
    dc_print_worst(rssm_cuda_variants[kernel].name, ON_GPU, worst);
    dc_free(c);
}
END_TEST

/* ---- small batches ---------------------------------------------------------------------------------------------- */

static dc_options small_options_of(int kernel)
{
    const rssm_cuda_small *v = &rssm_cuda_smalls[kernel];
    dc_options o = {.engine = ON_GPU, .record_bar = 2};
    o.spec = (h_spec){.family = v->family, .H = H, .HV = HV, .K = v->K, .V = v->V, .state = v->state_dtype};
    o.spec.HV *= v->kept ? 2 : 1; /* kept kernels are for few rows of a batch */
    o.spec.io = o.spec.gate = o.spec.ring = o.spec.out = v->io;
    o.spec.weights = kernel % 3 + 1;
    o.spec.L = kernel % 2 ? 16 : 5;
    o.spec.slot_gap = kernel % 3 ? 0 : 16;
    o.spec.row_gap = kernel % 2 ? 16 : 0;
    o.spec.bounded = v->family != RSSM_FAMILY_MAMBA2 && kernel % 5 == 0;
    o.spec.init_flags = v->kept ? RSSM_INIT_NO_SMALL_FLUSH : 0;
    o.no_z = kernel % 2;
    return o;
}

/* The least batch of an instance with small batches, or without, that takes the kernel; 0 = none. */
static int64_t small_rows_of(int kernel, const dc_options *o)
{
    bool flushes = !(o->spec.init_flags & RSSM_INIT_NO_SMALL_FLUSH);
    for (int64_t B = 1; B <= MOST_ROWS; B++) {
        rssm_step step = step_of(o, B);
        if (rssm_small_choose(&step, flushes ? (int32_t)B : 0) == kernel)
            return B;
    }
    return 0;
}

/* Rows that do not flush, as of a larger batch's step_begin: every second one with room. */
static void hold_back(dc_case *c)
{
    for (int64_t b = 0; b < c->spec.B; b += 2) {
        int32_t *row = h_at(c->calls[0]->roles[RSSM_T_ROWS], b, 0, 0, 0);
        if (row[2] < c->spec.L - 1)
            row[3] = 0;
    }
}

static void break_rows(dc_case *c)
{
    for (int64_t b = 0; b < c->spec.B; b++) {
        int32_t *row = h_at(c->calls[0]->roles[RSSM_T_ROWS], b, 0, 0, 0);
        row[0] = 0;
        row[1] = -1;
    }
}

/* First rows with records, of which some do not flush, then those that the kernel is made for, then bad ones; at last
 * L = 1, from rows or from the host's own cursors. Kernels for kept rows: those that do not flush, and as their cursors come to
 * it those that do, then bad ones. */
START_TEST(small_kernel)
{
    int kernel = (int)(share.part + (int64_t)_i * share.parts);
    dc_options o = small_options_of(kernel);
    bool kept = rssm_cuda_smalls[kernel].kept > 0;
    bool ring = rssm_cuda_smalls[kernel].ring > 0 || kept; /* else it is for L = 1 alone */
    o.spec.L = ring ? o.spec.L : 1;
    o.spec.B = small_rows_of(kernel, &o);
    if (!RSSM_CUDA_SMALL_ON)
        return;
    dc_check(o.spec.B > 0, "%s is chosen at no batch", rssm_cuda_smalls[kernel].name);
    o.spec.S = o.spec.B + 2;
    dc_worst worst = {0};
    for (int part = ring ? 0 : 2; part < (kept ? 1 : 3); part++) {
        o.spec.L = part < 2 ? o.spec.L : 1;
        o.spec.host_pos = part == 2 && kernel % 2;
        dc_case *c = dc_new(&o, (uint64_t)kernel);
        dc_assert(part == 2 || kept || c->small_batch >= o.spec.B);
        case_enter_windows(c);
        for (int step = 0; step < (kept ? 6 : 3); step++)
            dc_merge(&worst, case_step_of(c, part == 0 && step == 0 ? hold_back : NULL));
        dc_equal(dc_fault(c), 0);
        if (!o.spec.host_pos) {
            case_step_of(c, break_rows);
            dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
        }
        dc_free(c);
    }
    dc_print_worst(rssm_cuda_smalls[kernel].name, ON_GPU, worst);
}
END_TEST

void add_kernels(Suite *s)
{
    TCase *t = tcase_create("kernels");
    tcase_add_loop_test(t, small_kernel, 0, gpu_share_of(RSSM_CUDA_SMALLS));
    tcase_add_loop_test(t, tuned_kernel, 0, gpu_share_of(RSSM_CUDA_VARIANTS));
    suite_add_tcase(s, t);
}
