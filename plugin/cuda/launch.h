/* Which kernel of the fatbin runs a step, and how it is launched: plain C for the host, no CUDA header needed. */
#ifndef RSSM_CUDA_LAUNCH_H_
#define RSSM_CUDA_LAUNCH_H_

#include "variants.h"

/* One tuned kernel, as the host sees it. */
typedef struct rssm_cuda_variant {
    const char *name;
    int32_t family, state_dtype, K, V;
    int32_t tile;    /* state rows per block */
    int32_t threads; /* per block */
    int32_t ring;    /* 1: L >= 2, 0: L = 1 */
    int32_t io;      /* dtype of inputs, output and ring, 0 = any */
    int32_t fill;    /* blocks per multiprocessor from which it is the best choice, */
    int32_t until;   /* and below which; 0: any */
    int32_t smem;    /* dynamic shared memory, bytes */
} rssm_cuda_variant;

#define RSSM_CUDA_STRING_(x) #x
#define RSSM_CUDA_STRING(x)  RSSM_CUDA_STRING_(x)
/* clang-format off */
#define RSSM_CUDA_VARIANT(family, state, K, V, VT, NT, kind, io, blocks, fill) \
    {RSSM_CUDA_STRING(RSSM_CUDA_NAME(family, state, K, V, VT, NT, kind, io)),  \
     RSSM_CUDA_FAMILY_##family,                                                \
     RSSM_CUDA_DTYPE_##state,                                                  \
     K,                                                                        \
     V,                                                                        \
     VT,                                                                       \
     NT,                                                                       \
     RSSM_CUDA_RING_##kind,                                                    \
     RSSM_CUDA_IO_##io,                                                        \
     fill,                                                                     \
     RSSM_CUDA_UNTIL_##kind,                                                   \
     RSSM_CUDA_SMEM(RSSM_CUDA_FAMILY_##family, RSSM_CUDA_DTYPE_##state, K, VT, NT, RSSM_CUDA_RING_##kind,       \
                     RSSM_CUDA_IO_##io)},
/* clang-format on */

static const rssm_cuda_variant rssm_cuda_variants[] = {RSSM_CUDA_LIST_KDA(RSSM_CUDA_VARIANT) RSSM_CUDA_LIST_GDN(
    RSSM_CUDA_VARIANT) RSSM_CUDA_LIST_MAMBA2(RSSM_CUDA_VARIANT)};

enum { RSSM_CUDA_VARIANTS = (int)(sizeof rssm_cuda_variants / sizeof rssm_cuda_variants[0]) };

/* How to launch a step. variant: index above, -1 = "rssm_step_general". grid[2] carries rows beyond 65535. */
typedef struct rssm_cuda_launch {
    int32_t variant;
    uint32_t grid[3], threads, smem;
} rssm_cuda_launch;

static inline int rssm_cuda_pool_fits(const rssm_pooled *p)
{
    const int64_t bytes = p->dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2;
    return ((uintptr_t)p->data & 15) == 0 && p->slot * bytes % 16 == 0;
}

/* Whether inputs, output and ring are all of one dtype. */
static inline int rssm_cuda_io_is(const rssm_step *s, int32_t dtype)
{
    const rssm_input *in[] = {&s->q, &s->k, &s->v, &s->a, &s->b, &s->z};
    for (int i = 0; i < 6; ++i)
        if (in[i]->data && in[i]->dtype != dtype)
            return 0;
    return s->out_dtype == dtype && (s->L == 1 || (s->k_cache.dtype == dtype && s->d_cache.dtype == dtype));
}

/* The tuned kernels take strides (elements) as 32 bits, and find the key head of hv by floats;
 * rows are read 16 bytes at a time. */
static inline int rssm_cuda_numbers_fit(const rssm_step *s)
{
    const int64_t n[] = {s->q.row,   s->k.row,        s->v.row,        s->a.row,        s->b.row,      s->z.row,
                         s->out_row, s->d_cache.slot, s->k_cache.slot, s->g_cache.slot, s->state.slot, s->rows_row};
    for (int i = 0; i < (int)(sizeof n / sizeof n[0]); ++i)
        if (n[i] < 0 || n[i] > INT32_MAX)
            return 0;
    return s->HV <= 1024 && ((uintptr_t)s->rows & 15) == 0 && s->rows_row % 4 == 0;
}

/* Whether this variant can run this step. */
static inline int rssm_cuda_variant_fits(const rssm_cuda_variant *v, const rssm_step *s)
{
    if (v->family != s->family || v->state_dtype != s->state.dtype || v->K != s->K || v->V != s->V)
        return 0;
    if (v->ring != (s->L > 1) || s->L > RSSM_CUDA_MAX_RING || (v->io && !rssm_cuda_io_is(s, v->io)))
        return 0;
    if (v->tile > v->V && s->HV / s->H % (v->tile / v->V) != 0) /* heads of a block share their key head */
        return 0;
    if (!rssm_cuda_pool_fits(&s->state) || !rssm_cuda_numbers_fit(s))
        return 0;
    return !v->ring ||
           (rssm_cuda_pool_fits(&s->d_cache) && rssm_cuda_pool_fits(&s->k_cache) && rssm_cuda_pool_fits(&s->g_cache));
}

/* The kernel for a step, as variants.h says, on a device of `sms` multiprocessors whose blocks may have `shared` bytes of
 * dynamic shared memory (227 KB on sm_90, 99 KB on sm_120). */
static inline rssm_cuda_launch rssm_cuda_choose(const rssm_step *s, int sms, int64_t shared)
{
    rssm_cuda_launch l = {-1, {0, 0, 0}, 0, 0};
    for (int i = 0; i < RSSM_CUDA_VARIANTS; ++i) {
        const rssm_cuda_variant *v = &rssm_cuda_variants[i];
        if (v->smem > shared || !rssm_cuda_variant_fits(v, s))
            continue;
        const int64_t blocks = (int64_t)s->B * s->HV * s->V / v->tile;
        if (blocks >= (int64_t)sms * v->fill && (!v->until || blocks < (int64_t)sms * v->until)) {
            l.variant = i;
            break;
        }
        if (l.variant < 0 || v->tile < rssm_cuda_variants[l.variant].tile)
            l.variant = i;
    }
    const rssm_cuda_variant *v = l.variant < 0 ? 0 : &rssm_cuda_variants[l.variant];
    l.threads = v ? (uint32_t)v->threads : RSSM_CUDA_GENERAL_THREADS;
    l.smem = v ? (uint32_t)v->smem : 0;
    l.grid[0] = v ? (uint32_t)(s->HV * s->V / v->tile)
                  : (uint32_t)(s->HV * ((s->V + RSSM_CUDA_GENERAL_ROWS - 1) / RSSM_CUDA_GENERAL_ROWS));
    l.grid[1] = (uint32_t)(s->B < 65535 ? s->B : 65535);
    l.grid[2] = (uint32_t)(((int64_t)s->B + 65534) / 65535);
    return l;
}

#endif
