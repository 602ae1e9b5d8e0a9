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
#define RSSM_VERIFY_K                       128
#define RSSM_VERIFY_KB                      (RSSM_VERIFY_K + 8)
#define RSSM_VERIFY_VECTORS(family, TB)     ((family) == 3 ? ((TB) < 8 ? 8 : (TB)) : 2 * (TB))
#define RSSM_VERIFY_X_TERMS(family)         ((family) == 1 ? 2 : 1)
#define RSSM_VERIFY_DRAFTS(family, TB)      ((family) == 1 ? 0 : (TB) < 8 ? 8 : (TB))
#define RSSM_VERIFY_HEADS(V, VT)            ((VT) > (V) ? (VT) / (V) : 1)
#define RSSM_VERIFY_HEAD_FLOATS(family, TB) (16 + 2 * (TB) + 4 + ((family) == 1 ? 0 : (TB) * (TB)))
#define RSSM_VERIFY_SUMS(family, TB)                                                              \
    ((family) == 1   ? RSSM_VERIFY_K + 4 * RSSM_VERIFY_VECTORS(family, TB) * 16 + 4 * (TB) * (TB) \
     : (family) == 2 ? 4 * (TB) * (TB)                                                            \
                     : 0)
#define RSSM_VERIFY_SMEM(family, dtype, V, VT, TB)                                                                    \
    ((VT)*RSSM_VERIFY_K * ((dtype) == 1 ? 4 : 2) +                                                                    \
     2 * RSSM_VERIFY_KB *                                                                                             \
         (RSSM_VERIFY_X_TERMS(family) * RSSM_VERIFY_VECTORS(family, TB) + 16 * RSSM_CUDA_K_TERMS(family, dtype) +     \
          RSSM_VERIFY_DRAFTS(family, TB)) +                                                                           \
     4 * (RSSM_VERIFY_SUMS(family, TB) + 4 * (TB) + RSSM_VERIFY_HEADS(V, VT) * RSSM_VERIFY_HEAD_FLOATS(family, TB)) + \
     32)

#define RSSM_VERIFY_NAME(family, state, V, VT, TB) rssm_verify_##family##_##state##_v##V##_t##VT##_w##TB

/* X(family, state, V, VT, TB, blocks, fill): VT state rows per block, windows of up to TB tokens; `blocks` per multiprocessor
 * bounds the registers. Of a bucket the first variant is taken that has at least `fill` blocks per multiprocessor to run;
 * where none has, the one with the smallest tile. The figures are measured (H200). */
#define RSSM_VERIFY_LIST_DELTA(X, family, fill4, fill8) \
    X(family, f32, 128, 128, 4, 2, fill4)               \
    X(family, f32, 128, 64, 4, 4, 0)                    \
    X(family, f32, 128, 128, 8, 2, fill8)               \
    X(family, f32, 128, 64, 8, 3, 0)                    \
    X(family, f32, 128, 64, 16, 2, 0)                   \
    X(family, bf16, 128, 128, 4, 4, 1)                  \
    X(family, bf16, 128, 64, 4, 5, 0)                   \
    X(family, bf16, 128, 128, 8, 4, 1)                  \
    X(family, bf16, 128, 64, 8, 4, 0)                   \
    X(family, bf16, 128, 128, 16, 2, 0)
#define RSSM_VERIFY_LIST_KDA(X) RSSM_VERIFY_LIST_DELTA(X, kda, 4, 1)
#define RSSM_VERIFY_LIST_GDN(X) RSSM_VERIFY_LIST_DELTA(X, gdn, 3, 4)
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
