/* Every verify kernel, as data: C11 for the host, and the list from which the .cu files are instantiated.
 *
 * A tuned kernel is fixed in family, state dtype, K = 128, V and the longest window (a bucket: 4, 8 or 16); inputs, output
 * and ring are bfloat16, weights any. It needs L <= 16 and 16-byte aligned state and rings (base and slot stride). The
 * general kernel serves everything. A kernel's argument is the rssm_window, by value.
 */
#ifndef RSSM_CUDA_VERIFY_VARIANTS_H_
#define RSSM_CUDA_VERIFY_VARIANTS_H_

#include "variants.h"

#define RSSM_VERIFY_MAX_T           16 /* tokens of a window */
#define RSSM_VERIFY_MAX_RING        16 /* L of a tuned kernel */
#define RSSM_VERIFY_THREADS         128
#define RSSM_VERIFY_GENERAL_ROWS    32 /* state rows per block of the general kernel */
#define RSSM_VERIFY_GENERAL_THREADS 128

/* Shared memory of a tuned kernel, in the order of verify_tile.cuh: the state, then bfloat16 rows of 128 channels (padded
 * to 136 against bank conflicts) - vectors that meet the state, keys of the records, keys of the drafts -, then floats. */
#define RSSM_VERIFY_K                   128
#define RSSM_VERIFY_KB                  (RSSM_VERIFY_K + 8)
#define RSSM_VERIFY_VECTORS(family, TB) ((family) == 3 ? ((TB) < 8 ? 8 : (TB)) : 2 * (TB))
#define RSSM_VERIFY_DRAFTS(TB)          ((TB) < 8 ? 8 : (TB))
#define RSSM_VERIFY_HEADS(V, VT)        ((VT) > (V) ? (VT) / (V) : 1)
#define RSSM_VERIFY_HEAD_FLOATS(TB)     (16 + 2 * (TB) + 4 + (TB) * (TB))
#define RSSM_VERIFY_SUMS(family, TB)    ((family) == 2 ? 4 * (TB) * (TB) : 0)
#define RSSM_VERIFY_TILE_SMEM(family, dtype, V, VT, TB)                                     \
    ((VT)*RSSM_VERIFY_K * ((dtype) == 1 ? 4 : 2) +                                          \
     2 * RSSM_VERIFY_KB * (RSSM_VERIFY_VECTORS(family, TB) + 16 + RSSM_VERIFY_DRAFTS(TB)) + \
     4 * (RSSM_VERIFY_SUMS(family, TB) + 4 * (TB) + RSSM_VERIFY_HEADS(V, VT) * RSSM_VERIFY_HEAD_FLOATS(TB)) + 32)

/* The same of verify_kda.cuh: the state, floats of the vectors, the vectors that meet the state (rows of RSSM_VERIFY_KDA_YS bytes,
 * one for a token and term or, up to four tokens, for a vector and two terms), the keys of the records, small things. */
#define RSSM_VERIFY_KDA_XS                (RSSM_VERIFY_K + 16)
#define RSSM_VERIFY_KDA_YS(dtype)         (RSSM_VERIFY_K * ((dtype) == 1 ? 8 : 4) + 16)
#define RSSM_VERIFY_KDA_Y_ROWS(dtype, TB) ((TB) * ((dtype) == 1 ? 2 : (TB) > 4 ? 3 : 4))
#define RSSM_VERIFY_KDA_PAIRS(TB)         ((TB) == 4 ? 8 : (TB) == 8 ? 32 : 128) /* of drafts, at most, and room */
#define RSSM_VERIFY_KDA_SMEM(dtype, VT, TB)                                        \
    ((VT)*RSSM_VERIFY_K * ((dtype) == 1 ? 4 : 2) + 8 * RSSM_VERIFY_KDA_XS * (TB) + \
     RSSM_VERIFY_KDA_YS(dtype) * RSSM_VERIFY_KDA_Y_ROWS(dtype, TB) +               \
     4 * (RSSM_VERIFY_K * (16 + 1) + 8 * RSSM_VERIFY_KDA_PAIRS(TB) + 2 * (TB)) + 32)

#define RSSM_VERIFY_SMEM(family, dtype, V, VT, TB) \
    ((family) == 1 ? RSSM_VERIFY_KDA_SMEM(dtype, VT, TB) : RSSM_VERIFY_TILE_SMEM(family, dtype, V, VT, TB))

#define RSSM_VERIFY_NAME(family, state, V, VT, TB) rssm_verify_##family##_##state##_v##V##_t##VT##_w##TB

/* X(family, state, V, VT, TB, blocks, fill): VT state rows per block, windows of up to TB tokens; `blocks` per multiprocessor
 * bounds the registers. Of a bucket the first variant is taken that has at least `fill` blocks per multiprocessor to run;
 * where none has, the one with the smallest tile. The figures are measured (H200). */
#define RSSM_VERIFY_LIST_KDA(X)     \
    X(kda, f32, 128, 128, 4, 2, 4)  \
    X(kda, f32, 128, 64, 4, 4, 0)   \
    X(kda, f32, 128, 128, 8, 2, 1)  \
    X(kda, f32, 128, 64, 8, 3, 0)   \
    X(kda, f32, 128, 64, 16, 2, 0)  \
    X(kda, bf16, 128, 128, 4, 4, 2) \
    X(kda, bf16, 128, 64, 4, 5, 0)  \
    X(kda, bf16, 128, 128, 8, 3, 1) \
    X(kda, bf16, 128, 64, 8, 4, 0)  \
    X(kda, bf16, 128, 128, 16, 2, 0)
#define RSSM_VERIFY_LIST_GDN(X)     \
    X(gdn, f32, 128, 128, 4, 2, 16) \
    X(gdn, f32, 128, 64, 4, 4, 0)   \
    X(gdn, f32, 128, 128, 8, 2, 4)  \
    X(gdn, f32, 128, 64, 8, 3, 0)   \
    X(gdn, f32, 128, 64, 16, 2, 0)  \
    X(gdn, bf16, 128, 128, 4, 4, 1) \
    X(gdn, bf16, 128, 64, 4, 5, 0)  \
    X(gdn, bf16, 128, 128, 8, 4, 1) \
    X(gdn, bf16, 128, 64, 8, 4, 0)  \
    X(gdn, bf16, 128, 128, 16, 2, 0)
#define RSSM_VERIFY_LIST_MAMBA2(X)     \
    X(mamba2, f32, 64, 64, 4, 5, 0)    \
    X(mamba2, bf16, 64, 128, 4, 4, 2)  \
    X(mamba2, bf16, 64, 64, 4, 5, 0)   \
    X(mamba2, f32, 64, 64, 8, 4, 0)    \
    X(mamba2, f32, 64, 64, 16, 4, 0)   \
    X(mamba2, bf16, 64, 128, 8, 4, 2)  \
    X(mamba2, bf16, 64, 64, 8, 5, 0)   \
    X(mamba2, bf16, 64, 128, 16, 3, 2) \
    X(mamba2, bf16, 64, 64, 16, 4, 0)

#endif
