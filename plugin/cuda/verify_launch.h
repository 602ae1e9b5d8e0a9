/* Which verify kernel runs a window pass, and how it is launched: plain C for the host, no CUDA header needed. */
#ifndef RSSM_CUDA_VERIFY_LAUNCH_H_
#define RSSM_CUDA_VERIFY_LAUNCH_H_

#include "launch.h"
#include "verify_variants.h"

/* One tuned kernel, as the host sees it. */
typedef struct rssm_verify_variant {
    const char *name;
    int32_t family, state_dtype, V;
    int32_t tile;   /* state rows per block */
    int32_t tokens; /* of the longest window */
    int32_t fill;   /* blocks per multiprocessor from which it is the best choice */
    int32_t smem;   /* dynamic shared memory, bytes */
} rssm_verify_variant;

/* clang-format off */
#define RSSM_VERIFY_VARIANT(family, state, V, VT, TB, blocks, fill)        \
    {RSSM_CUDA_STRING(RSSM_VERIFY_NAME(family, state, V, VT, TB)),         \
     RSSM_CUDA_FAMILY_##family,                                            \
     RSSM_CUDA_DTYPE_##state,                                              \
     V,                                                                    \
     VT,                                                                   \
     TB,                                                                   \
     fill,                                                                 \
     RSSM_VERIFY_SMEM(RSSM_CUDA_FAMILY_##family, RSSM_CUDA_DTYPE_##state, V, VT, TB)},
/* clang-format on */

static const rssm_verify_variant rssm_verify_variants[] = {RSSM_VERIFY_LIST_KDA(
    RSSM_VERIFY_VARIANT) RSSM_VERIFY_LIST_GDN(RSSM_VERIFY_VARIANT) RSSM_VERIFY_LIST_MAMBA2(RSSM_VERIFY_VARIANT)};

enum { RSSM_VERIFY_VARIANTS = (int)(sizeof rssm_verify_variants / sizeof rssm_verify_variants[0]) };

/* Whether 8-byte loads of consecutive elements of this 16-bit input are aligned. */
static inline int rssm_verify_input_fits(const rssm_input *x)
{
    return ((uintptr_t)x->data & 7) == 0 && x->row % 4 == 0;
}

/* Whether this variant can run this pass, whatever its shared memory. */
static inline int rssm_verify_variant_fits(const rssm_verify_variant *v, const rssm_window *window)
{
    const rssm_step *s = &window->step;
    if (v->family != s->family || v->state_dtype != s->state.dtype || s->K != RSSM_VERIFY_K || v->V != s->V)
        return 0;
    if (window->max_T > v->tokens || s->L > RSSM_VERIFY_MAX_RING || !rssm_cuda_io_is(s, RSSM_CUDA_DTYPE_bf16))
        return 0;
    if (v->tile > v->V && s->HV / s->H % (v->tile / v->V) != 0) /* heads of a block share their key head */
        return 0;
    return rssm_verify_input_fits(&s->q) && rssm_verify_input_fits(&s->k) && rssm_verify_input_fits(&s->v) &&
           rssm_cuda_pool_fits(&s->state) && rssm_cuda_pool_fits(&s->d_cache) && rssm_cuda_pool_fits(&s->k_cache) &&
           rssm_cuda_pool_fits(&s->g_cache);
}

/* The kernel for a pass: of the variants with the smallest bucket that holds its windows, the first in the list that has
 * at least `fill` blocks per multiprocessor to run; where none has, the one with the smallest tile. variant -1: the
 * general kernel. */
static inline rssm_cuda_launch rssm_verify_choose(const rssm_window *window, int sms, int64_t shared)
{
    const rssm_step *s = &window->step;
    const rssm_verify_variant *v = 0;
    for (int i = 0; i < RSSM_VERIFY_VARIANTS; ++i) {
        const rssm_verify_variant *u = &rssm_verify_variants[i];
        if (u->smem > shared || !rssm_verify_variant_fits(u, window) || (v && u->tokens > v->tokens))
            continue;
        if (v && u->tokens == v->tokens && (int64_t)s->B * s->HV * s->V / v->tile >= (int64_t)sms * v->fill)
            continue; /* the one before has enough blocks */
        v = u;
    }
    rssm_cuda_launch l = {v ? (int32_t)(v - rssm_verify_variants) : -1, {0, 0, 0}, RSSM_VERIFY_THREADS, 0};
    l.smem = v ? (uint32_t)v->smem : 0;
    l.grid[0] = v ? (uint32_t)(s->HV * s->V / v->tile)
                  : (uint32_t)(s->HV * ((s->V + RSSM_VERIFY_GENERAL_ROWS - 1) / RSSM_VERIFY_GENERAL_ROWS));
    l.grid[1] = (uint32_t)(s->B < 65535 ? s->B : 65535);
    l.grid[2] = (uint32_t)(((int64_t)s->B + 65534) / 65535);
    return l;
}

#endif
