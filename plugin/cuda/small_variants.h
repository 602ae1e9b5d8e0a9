/* The kernels for steps of small batches (step_small.cuh) as data, and their argument: C11 for the host, and the list from
 * which the .cu file is instantiated.
 *
 * A kernel of kind `small` serves L = 1 and L > 1. It is made for rows without pending records that flush: what step_begin makes
 * of every row of a batch of at most small_batch (rssm_begin.flush_all), and every row of L = 1. Other rows are right, but slow.
 * Kind `kept` (step_kept.cuh) is for the same few rows where they keep their records in the ring.
 */
#ifndef RSSM_CUDA_SMALL_VARIANTS_H_
#define RSSM_CUDA_SMALL_VARIANTS_H_

#include "variants.h"

enum { RSSM_CUDA_IO_f32 = 1 };

#define RSSM_CUDA_SMALL_ON 1 /* 0: none of these kernels is ever taken, and small_batch is 0 */

enum { RSSM_CUDA_KIND_small = 0, RSSM_CUDA_KIND_kept = 1 };

/* In larger batches a row flushes at almost every step, which is not what kept kernels are best at. */
#define RSSM_CUDA_KEPT_BATCH 8

#define RSSM_CUDA_SMALL_NAME(family, state, K, V, WR, NW, kind, io) \
    rssm_step_##family##_##state##_k##K##_v##V##_r##WR##_w##NW##_##kind##_##io

/* X(family, state, K, V, WR, NW, kind, io, blocks, ring, rw): WR state rows per warp, NW warps per block, inputs, output and
 * ring all of dtype io; `blocks` per SM bounds the registers. The first is taken that is for the batch: a batch has B HV V
 * state rows, and kind `small` is for L > 1 (where the instance flushes small batches) up to 1024 `ring` of them, for L = 1 up to
 * 1024 `rw`; kind `kept` for L > 1 where it does not, up to 1024 `ring` and RSSM_CUDA_KEPT_BATCH rows of the batch.
 * Measured (H200): few rows per warp are best while there are few of them, from about one batch row of 32 heads of 128 on each
 * doubling wants twice as many; beyond `ring` the ring kernels of variants.h are ahead, beyond `rw` their kernels for L = 1. */
#define RSSM_CUDA_SMALL_LIST(X)                             \
    RSSM_CUDA_SMALL_DELTA(X, kda, 16)                       \
    X(kda, bf16, 128, 128, 4, 2, small, bf16, 12, 12, 12)   \
    X(kda, bf16, 128, 128, 8, 2, small, bf16, 16, 24, 24)   \
    X(kda, bf16, 128, 128, 8, 4, small, bf16, 8, 64, 128)   \
    RSSM_CUDA_SMALL_DELTA(X, gdn, 12)                       \
    X(gdn, bf16, 128, 128, 4, 4, small, bf16, 6, 12, 12)    \
    X(gdn, bf16, 128, 128, 8, 4, small, bf16, 5, 16, 16)    \
    X(gdn, bf16, 128, 128, 8, 8, small, bf16, 4, 32, 32)    \
    X(gdn, bf16, 128, 128, 8, 2, kept, bf16, 8, 4, 0)       \
    X(gdn, bf16, 128, 128, 16, 2, kept, bf16, 8, 16, 0)     \
    X(mamba2, f32, 128, 64, 4, 4, small, bf16, 6, 8, 8)     \
    X(mamba2, f32, 128, 64, 8, 4, small, bf16, 5, 16, 16)   \
    X(mamba2, f32, 128, 64, 16, 4, small, bf16, 4, 0, 128)  \
    X(mamba2, bf16, 128, 64, 2, 4, small, bf16, 8, 4, 4)    \
    X(mamba2, bf16, 128, 64, 4, 4, small, bf16, 6, 12, 12)  \
    X(mamba2, bf16, 128, 64, 8, 4, small, bf16, 5, 16, 16)  \
    X(mamba2, bf16, 128, 64, 16, 4, small, bf16, 4, 32, 64) \
    X(mamba2, bf16, 128, 64, 8, 2, kept, bf16, 8, 4, 0)     \
    X(mamba2, bf16, 128, 64, 16, 2, kept, bf16, 8, 16, 0)   \
    X(mamba2, f32, 128, 64, 4, 4, small, f32, 6, 8, 8)      \
    X(mamba2, f32, 128, 64, 8, 4, small, f32, 5, 16, 16)    \
    X(mamba2, f32, 128, 32, 8, 4, small, bf16, 5, 8, 16)    \
    X(mamba2, bf16, 128, 32, 8, 4, small, bf16, 5, 8, 16)   \
    X(mamba2, f32, 256, 128, 2, 4, small, bf16, 8, 4, 4)    \
    X(mamba2, f32, 256, 128, 4, 4, small, bf16, 5, 6, 64)   \
    X(mamba2, bf16, 256, 128, 2, 4, small, bf16, 8, 6, 6)   \
    X(mamba2, bf16, 256, 128, 8, 4, small, bf16, 4, 12, 32) \
    X(mamba2, bf16, 256, 128, 4, 2, kept, bf16, 8, 6, 0)
#define RSSM_CUDA_SMALL_DELTA(X, family, ring32)               \
    X(family, f32, 128, 128, 4, 4, small, bf16, 6, 8, 8)       \
    X(family, f32, 128, 128, 8, 4, small, bf16, 5, ring32, 16) \
    X(family, f32, 128, 128, 16, 4, small, bf16, 4, 0, 128)    \
    X(family, f32, 128, 128, 4, 4, small, f32, 6, 8, 8)        \
    X(family, f32, 128, 128, 8, 4, small, f32, 5, ring32, 16)  \
    X(family, bf16, 128, 128, 4, 4, small, f32, 6, 8, 8)       \
    X(family, bf16, 128, 128, 2, 4, small, bf16, 8, 4, 4)

/* The argument, by value. Arguments come through the constant cache, a cold line of 64 bytes at a time: what every row needs
 * comes first; what only pending records or a host's own cursors need comes last. Strides are elements. */
typedef struct rssm_small {
    const int32_t *rows; /* NULL: the three arrays at the end */
    const void *q, *k, *v, *a;
    const void *b; /* Mamba-2: z, may be NULL */
    unsigned char *state;
    uint32_t rows_row, state_slot;

    const void *A_log, *dt_bias, *D;
    void *out;
    uint32_t q_row, k_row, v_row, a_row, b_row, out_row;
    int32_t group;                               /* value heads of a key head */
    uint8_t A_log_dtype, dt_bias_dtype, D_dtype; /* 0: absent */
    uint8_t rounds;                              /* 1: the record that is folded is rounded to the inputs' dtype */

    float scale, lower_bound, beta_scale, dt_min, dt_max, norm_eps;
    uint32_t flags;
    int32_t S, pad_slot, L, R;
    int32_t most; /* pending records that a flushing row may have */
    uint32_t *fault;
    void *d_cache;

    void *k_cache;
    float *g_cache;
    uint32_t d_slot, k_slot, g_slot;
    uint32_t pad_;
    rssm_index state_indices, write_pos, force_flush;
} rssm_small;

#endif
