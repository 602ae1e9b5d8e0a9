/* Which kernel for small batches runs a step, and how it is launched: plain C for the host. */
#ifndef RSSM_CUDA_SMALL_LAUNCH_H_
#define RSSM_CUDA_SMALL_LAUNCH_H_

#include "launch.h"
#include "small_variants.h"

/* One of them, as the host sees it. */
typedef struct rssm_cuda_small {
    const char *name;
    int32_t family, state_dtype, K, V;
    int32_t tile, threads; /* state rows and threads per block */
    int32_t io;
    int32_t ring, rw,
        kept; /* 1024 state rows of the largest batch: L > 1 where small batches flush, L = 1, L > 1 else */
} rssm_cuda_small;

/* clang-format off */
#define RSSM_CUDA_SMALL_ENTRY(family, state, K, V, WR, NW, kind, io, blocks, ring, rw)   \
    {RSSM_CUDA_STRING(RSSM_CUDA_SMALL_NAME(family, state, K, V, WR, NW, kind, io)),      \
     RSSM_CUDA_FAMILY_##family,                                                    \
     RSSM_CUDA_DTYPE_##state,                                                      \
     K,                                                                            \
     V,                                                                            \
     (WR) * (NW),                                                                  \
     (NW) * 32,                                                                    \
     RSSM_CUDA_IO_##io,                                                            \
     RSSM_CUDA_KIND_##kind ? 0 : (ring),                                           \
     rw,                                                                           \
     RSSM_CUDA_KIND_##kind ? (ring) : 0},
/* clang-format on */

static const rssm_cuda_small rssm_cuda_smalls[] = {RSSM_CUDA_SMALL_LIST(RSSM_CUDA_SMALL_ENTRY)};

enum { RSSM_CUDA_SMALLS = (int)(sizeof rssm_cuda_smalls / sizeof rssm_cuda_smalls[0]) };

static inline uint8_t rssm_small_dtype(const rssm_input *weight)
{
    return (uint8_t)(weight->data ? weight->dtype : 0);
}

static inline rssm_small rssm_small_argument(const rssm_step *s)
{
    const rssm_input *const b = s->family == RSSM_CUDA_FAMILY_mamba2 ? &s->z : &s->b;
    return (rssm_small){
        .rows = s->rows,
        .q = s->q.data,
        .k = s->k.data,
        .v = s->v.data,
        .a = s->a.data,
        .b = b->data,
        .state = (unsigned char *)s->state.data,
        .rows_row = (uint32_t)s->rows_row,
        .state_slot = (uint32_t)s->state.slot,
        .A_log = s->A_log.data,
        .dt_bias = s->dt_bias.data,
        .D = s->D.data,
        .out = s->out,
        .q_row = (uint32_t)s->q.row,
        .k_row = (uint32_t)s->k.row,
        .v_row = (uint32_t)s->v.row,
        .a_row = (uint32_t)s->a.row,
        .b_row = (uint32_t)b->row,
        .out_row = (uint32_t)s->out_row,
        .group = s->HV / s->H,
        .A_log_dtype = rssm_small_dtype(&s->A_log),
        .dt_bias_dtype = rssm_small_dtype(&s->dt_bias),
        .D_dtype = rssm_small_dtype(&s->D),
        .rounds = s->d_cache.dtype == RSSM_CUDA_DTYPE_bf16,
        .scale = s->scale,
        .lower_bound = s->lower_bound,
        .beta_scale = s->beta_scale,
        .dt_min = s->dt_min,
        .dt_max = s->dt_max,
        .norm_eps = s->norm_eps,
        .flags = s->flags,
        .S = (int32_t)s->S,
        .pad_slot = s->pad_slot >= 0 && s->pad_slot < s->S ? (int32_t)s->pad_slot : -1, /* a host's may be any number */
        .L = s->L,
        .R = s->R,
        .most = RSSM_MOST_RECORDS(s->L),
        .fault = s->fault,
        .d_cache = s->d_cache.data,
        .k_cache = s->k_cache.data,
        .g_cache = (float *)s->g_cache.data,
        .d_slot = (uint32_t)s->d_cache.slot,
        .k_slot = (uint32_t)s->k_cache.slot,
        .g_slot = (uint32_t)s->g_cache.slot,
        .state_indices = s->state_indices,
        .write_pos = s->write_pos,
        .force_flush = s->force_flush,
    };
}

/* Channels are read in vectors. */
static inline int rssm_small_aligned(const void *data, int64_t row, int32_t dtype)
{
    const int64_t bytes = dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2;
    return ((uintptr_t)data & 15) == 0 && row * bytes % 16 == 0;
}

static inline int rssm_small_inputs_fit(const rssm_step *s)
{
    const int one = s->B == 1; /* then strides of rows do not count */
    if (!rssm_small_aligned(s->q.data, one ? 0 : s->q.row, s->q.dtype) ||
        !rssm_small_aligned(s->k.data, one ? 0 : s->k.row, s->k.dtype))
        return 0;
    return s->family != RSSM_CUDA_FAMILY_kda || (rssm_small_aligned(s->a.data, one ? 0 : s->a.row, s->a.dtype) &&
                                                 rssm_small_aligned(s->dt_bias.data, 0, s->dt_bias.dtype));
}

/* What outlives a token at L = 1 is rounded as the ring's dtype says: kernels know that of the inputs, and float32. */
static inline int rssm_small_rounds(const rssm_cuda_small *v, const rssm_step *s)
{
    const int32_t d = s->d_cache.dtype, k = s->k_cache.dtype;
    return d == k && (d == v->io || d == 0 || d == RSSM_CUDA_DTYPE_f32);
}

/* Keys and KDA's gates are read in vectors too; d where rows keep their records. */
static inline int rssm_small_ring_fits(const rssm_cuda_small *v, const rssm_step *s)
{
    return rssm_cuda_pool_fits(&s->k_cache) && (!v->kept || rssm_cuda_pool_fits(&s->d_cache)) &&
           (s->family != RSSM_CUDA_FAMILY_kda || rssm_cuda_pool_fits(&s->g_cache));
}

static inline int rssm_small_fits(const rssm_cuda_small *v, const rssm_step *s)
{
    if (v->family != s->family || v->state_dtype != s->state.dtype || v->K != s->K || v->V != s->V)
        return 0;
    if (s->L > RSSM_CUDA_MAX_RING || (v->kept && (s->L == 1 || !s->rows)) || !rssm_cuda_io_is(s, v->io) ||
        !rssm_small_rounds(v, s))
        return 0;
    if (s->S < 1 || s->S > INT32_MAX || s->B > 65535 || !rssm_cuda_pool_fits(&s->state) || !rssm_cuda_numbers_fit(s))
        return 0;
    return rssm_small_inputs_fit(s) && (s->L == 1 || rssm_small_ring_fits(v, s));
}

/* The kernel for a step, an index of rssm_cuda_smalls; -1: none. small_batch is the instance's. */
static inline int rssm_small_choose(const rssm_step *s, int32_t small_batch)
{
    if (!RSSM_CUDA_SMALL_ON || (s->L > 1 && !s->rows))
        return -1;
    const int64_t rows = (int64_t)s->B * s->HV * s->V;
    for (int i = 0; i < RSSM_CUDA_SMALLS; ++i) {
        const rssm_cuda_small *const v = &rssm_cuda_smalls[i];
        const int64_t most = s->L == 1                      ? v->rw
                             : s->B <= small_batch          ? v->ring
                             : s->B <= RSSM_CUDA_KEPT_BATCH ? v->kept
                                                            : 0;
        if (rows <= 1024 * most && rssm_small_fits(v, s))
            return i;
    }
    return -1;
}

static inline rssm_cuda_launch rssm_small_launch(int kernel, const rssm_step *s)
{
    const rssm_cuda_small *const v = &rssm_cuda_smalls[kernel];
    return (rssm_cuda_launch){
        .variant = kernel,
        .grid = {(uint32_t)(s->HV / s->H * (s->V / v->tile)), (uint32_t)s->H, (uint32_t)s->B},
        .threads = (uint32_t)v->threads,
    };
}

#endif
