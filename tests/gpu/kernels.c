/* Every tuned kernel of the plugin's table: the rule that chooses one is asked for a batch that chooses it, and that batch
 * is decoded and checked. This looks inside the plugin, at the table alone. */
#include "test_gpu.h"

#include <stdio.h>

#include "cuda/launch.h"
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
        if (rssm_cuda_choose(&step, sms, shared).variant == kernel)
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

void add_kernels(Suite *s)
{
    TCase *t = tcase_create("kernels");
    int64_t mine = (RSSM_CUDA_VARIANTS - share.part + share.parts - 1) / share.parts;
    tcase_add_loop_test(t, tuned_kernel, 0, (int)mine);
    suite_add_tcase(s, t);
}
