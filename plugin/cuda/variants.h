/* Every step kernel of the fatbin, as data: C11 for the host, and the list from which the .cu files are instantiated.
 *
 * A tuned kernel is fixed in family, state dtype, K and V; io, ring and weight dtypes are run-time. It needs 16-byte
 * aligned state and key/gate ring rows (base and slot stride) and L <= 16; "ring" kernels serve L >= 2, "rw" kernels
 * L = 1, the plain read-and-write step. The general kernel serves everything.
 * A kernel's argument is the rssm_step, by value. Load with cuLibraryGetKernel(name); set
 * CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES to smem and CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT to
 * 100: the state travels through shared memory, and occupancy is what hides its latency.
 */
#ifndef RSSM_CUDA_VARIANTS_H_
#define RSSM_CUDA_VARIANTS_H_

#include "core/step.h"
#include <stdint.h>

#define RSSM_CUDA_MAX_RING   16 /* L of a tuned kernel */
#define RSSM_CUDA_ORDER_MIN  12 /* rows of a call for which rows[i][7] is looked at */
#define RSSM_CUDA_ORDER_MAX  768
#define RSSM_CUDA_ORDER_WORK (192 * 32 * 128) /* state rows of the call, B HV V, up to which it is */

#define RSSM_CUDA_GENERAL_ROWS    32 /* state rows per block of the general kernel */
#define RSSM_CUDA_GENERAL_THREADS 128

/* Records that a fold sees at once: the ring and the token. */
#define RSSM_CUDA_NREC(ring) ((ring) ? RSSM_CUDA_MAX_RING + 1 : 1)
#define RSSM_CUDA_PAD4(n)    (((n) + 3) / 4 * 4)

/* Dynamic shared memory of a tuned kernel in bytes; step_tile.cuh lays it out in this order. */
#define RSSM_CUDA_READOUTS(family) ((family) == 3 ? 1 : 2)
#define RSSM_CUDA_MAX(a, b)        ((a) > (b) ? (a) : (b))
/* A fold on tensor cores needs a bfloat16 ring; keys (KDA: decayed) are bfloat16 terms. Otherwise records are floats. */
#define RSSM_CUDA_FOLD_IS_MMA(VT, NT, ring, io) ((ring) && (io) == 2 && (VT) / ((NT) / 32) % 16 == 0)
#define RSSM_CUDA_K_TERMS(family, dtype)        ((family) != 1 ? 1 : (dtype) == 1 ? 3 : 2)
/* Three terms take more room than floats: those are split in the fold. */
#define RSSM_CUDA_FOLD(family, dtype, K, VT, NT, ring, io)                                 \
    (!RSSM_CUDA_FOLD_IS_MMA(VT, NT, ring, io)                                              \
         ? 4 * RSSM_CUDA_NREC(ring) * ((K) + (NT) / 8 * RSSM_CUDA_PAD4((VT) / ((NT) / 8))) \
     : RSSM_CUDA_K_TERMS(family, dtype) == 3 ? 64 * (K)                                    \
                                             : RSSM_CUDA_K_TERMS(family, dtype) * 32 * ((K) + 8))
/* q and k as given, of which Mamba-2 needs one where scores come from tensor cores; then the token's record. */
#define RSSM_CUDA_X_ROWS(family, ring, io) ((family) == 3 && (ring) && (io) == 2 ? 1 : 2)
#define RSSM_CUDA_TOKEN(family, K, VT, NT, ring, io)          \
    RSSM_CUDA_MAX(4 * (K)*RSSM_CUDA_X_ROWS(family, ring, io), \
                  RSSM_CUDA_FOLD_IS_MMA(VT, NT, ring, io) ? 4 * ((K) + (VT)) : 0)
/* bfloat16 terms of the vectors that meet the state: 1 where q and k enter as given. */
#define RSSM_CUDA_X_TERMS(family, io)            ((io) != 2 || (family) == 1 ? 3 : 1)
#define RSSM_CUDA_SCORE_IS_MMA(family, ring, io) ((ring) && (io) == 2 && (family) != 1)
/* Rows of those vectors, padded but for the last one: 64 bytes more, and five blocks of KDA would not fit. */
#define RSSM_CUDA_X_HALVES(rows, K) ((rows) == 0 ? 0 : (rows) * ((K) + 32) - 32)
#define RSSM_CUDA_HALVES(family, dtype, K, ring, io)                                                  \
    RSSM_CUDA_X_HALVES(RSSM_CUDA_READOUTS(family) * ((dtype) == 2 ? RSSM_CUDA_X_TERMS(family, io)     \
                                                     : RSSM_CUDA_SCORE_IS_MMA(family, ring, io) ? 1   \
                                                                                                : 0), \
                       K)
#define RSSM_CUDA_SMEM(family, dtype, K, VT, NT, ring, io)                                      \
    ((VT) * (K) * ((dtype) == 1 ? 4 : 2) + RSSM_CUDA_FOLD(family, dtype, K, VT, NT, ring, io) + \
     RSSM_CUDA_TOKEN(family, K, VT, NT, ring, io) + 4 * ((family) == 1 ? (K) : 0) +             \
     2 * RSSM_CUDA_HALVES(family, dtype, K, ring, io) +                                         \
     4 * ((NT) / 32 * 16 * RSSM_CUDA_READOUTS(family) + (NT) / 32 * 10))

/* The numbers behind the names in the lists below. */
enum { RSSM_CUDA_FAMILY_kda = 1, RSSM_CUDA_FAMILY_gdn = 2, RSSM_CUDA_FAMILY_mamba2 = 3 };
enum { RSSM_CUDA_DTYPE_f32 = 1, RSSM_CUDA_DTYPE_bf16 = 2, RSSM_CUDA_DTYPE_f16 = 3 };
enum { RSSM_CUDA_IO_any = 0, RSSM_CUDA_IO_bf16 = 2 }; /* 0: whatever the step says */
enum { RSSM_CUDA_RING_ring = 1, RSSM_CUDA_RING_roomy = 1, RSSM_CUDA_RING_rw = 0 };
enum { RSSM_CUDA_UNTIL_ring = 0, RSSM_CUDA_UNTIL_roomy = 9, RSSM_CUDA_UNTIL_rw = 0 }; /* blocks per SM; 0: any */

#define RSSM_CUDA_NAME(family, state, K, V, VT, NT, kind, io) \
    rssm_step_##family##_##state##_k##K##_v##V##_t##VT##_n##NT##_##kind##_##io

/* X(family, state, K, V, VT, NT, kind, io, blocks, fill): VT state rows per block (parts of a head, or several heads that
 * share a key head), NT threads; io bf16: inputs, output and ring all bfloat16. `blocks` per SM bounds the registers.
 * The first variant of a shape is taken that fits and has at least `fill` blocks per SM to run (kind roomy, which is a ring
 * kernel with more registers: and fewer than 9); where none has, the one with the smallest tile. The figures are measured (H200): 128 rows per block win from about 3 blocks per SM on, half of
 * that below; five blocks per SM instead of four gain 2 to 4 % with a 16-bit state, 6 % with 64 rows of fp32;
 * but KDA from 4 to 9 blocks per SM is 1 to 8 % faster with four. Smaller
 * tiles than these lose everywhere in ring kernels, and only there: each block does its head's scores anew. Two heads of 80
 * rows make a block of five warps of 32 (one head: of 16 rows each, 4 to 15 % slower from 8 rows of 128 heads on). */
#define RSSM_CUDA_LIST_DELTA(X, family, most)           \
    RSSM_CUDA_LIST_DELTA32(X, family, bf16)             \
    RSSM_CUDA_LIST_DELTA32(X, family, any)              \
    RSSM_CUDA_LIST_DELTA16(X, family, bf16, bf16, most) \
    RSSM_CUDA_LIST_DELTA16(X, family, bf16, any, 4)     \
    RSSM_CUDA_LIST_DELTA16(X, family, f16, bf16, most)  \
    RSSM_CUDA_LIST_DELTA16(X, family, f16, any, 4)
#define RSSM_CUDA_LIST_DELTA32(X, family, io)          \
    X(family, f32, 128, 128, 128, 128, ring, io, 3, 3) \
    X(family, f32, 128, 128, 64, 128, ring, io, 4, 0)  \
    X(family, f32, 128, 128, 64, 128, rw, io, 5, 3)    \
    X(family, f32, 128, 128, 32, 128, rw, io, 5, 0)
#define RSSM_CUDA_LIST_DELTA16(X, family, st, io, most)  \
    X(family, st, 128, 128, 128, 128, ring, io, most, 3) \
    X(family, st, 128, 128, 64, 128, ring, io, 5, 0)     \
    X(family, st, 128, 128, 64, 128, rw, io, 5, 12)      \
    X(family, st, 128, 128, 128, 128, rw, io, 5, 3)      \
    X(family, st, 128, 128, 32, 128, rw, io, 5, 0)

#define RSSM_CUDA_LIST_KDA(X)                           \
    X(kda, bf16, 128, 128, 128, 128, roomy, bf16, 4, 4) \
    RSSM_CUDA_LIST_DELTA(X, kda, 5)
#define RSSM_CUDA_LIST_GDN(X) RSSM_CUDA_LIST_DELTA(X, gdn, 5)
#define RSSM_CUDA_LIST_MAMBA2(X)           \
    RSSM_CUDA_LIST_M2_32(X, bf16, 5)       \
    RSSM_CUDA_LIST_M2_32(X, any, 4)        \
    RSSM_CUDA_LIST_M2_80(X, bf16)          \
    RSSM_CUDA_LIST_M2_80(X, f16)           \
    RSSM_CUDA_LIST_M2_16(X, bf16, bf16, 5) \
    RSSM_CUDA_LIST_M2_16(X, f16, bf16, 5)  \
    RSSM_CUDA_LIST_M2_16(X, bf16, any, 4)  \
    RSSM_CUDA_LIST_M2_16(X, f16, any, 4)
#define RSSM_CUDA_LIST_M2_80(X, st) X(mamba2, st, 128, 80, 160, 160, ring, bf16, 4, 3)
#define RSSM_CUDA_LIST_M2_32(X, io, most)               \
    X(mamba2, f32, 128, 64, 64, 128, ring, io, most, 0) \
    X(mamba2, f32, 128, 80, 80, 160, ring, io, 4, 0)    \
    X(mamba2, f32, 128, 32, 128, 128, ring, io, 2, 1)   \
    X(mamba2, f32, 128, 32, 32, 128, ring, io, 4, 0)    \
    X(mamba2, f32, 256, 128, 64, 128, ring, io, 3, 0)   \
    X(mamba2, f32, 256, 64, 64, 128, ring, io, 3, 0)    \
    X(mamba2, f32, 128, 64, 64, 128, rw, io, 4, 3)      \
    X(mamba2, f32, 128, 64, 32, 128, rw, io, 5, 0)      \
    X(mamba2, f32, 128, 80, 80, 160, rw, io, 4, 0)      \
    X(mamba2, f32, 128, 32, 128, 128, rw, io, 2, 3)     \
    X(mamba2, f32, 128, 32, 32, 128, rw, io, 4, 0)      \
    X(mamba2, f32, 256, 128, 32, 128, rw, io, 4, 0)     \
    X(mamba2, f32, 256, 64, 32, 128, rw, io, 4, 0)
#define RSSM_CUDA_LIST_M2_16(X, st, io, most)           \
    X(mamba2, st, 128, 64, 128, 128, ring, io, most, 3) \
    X(mamba2, st, 128, 64, 64, 128, ring, io, 4, 0)     \
    X(mamba2, st, 128, 80, 80, 160, ring, io, most, 0)  \
    X(mamba2, st, 128, 32, 128, 128, ring, io, most, 1) \
    X(mamba2, st, 128, 32, 32, 128, ring, io, 4, 0)     \
    X(mamba2, st, 256, 128, 64, 128, ring, io, most, 0) \
    X(mamba2, st, 256, 64, 64, 128, ring, io, most, 0)  \
    X(mamba2, st, 128, 64, 64, 128, rw, io, 4, 12)      \
    X(mamba2, st, 128, 64, 128, 128, rw, io, 4, 3)      \
    X(mamba2, st, 128, 64, 32, 128, rw, io, 5, 0)       \
    X(mamba2, st, 128, 80, 80, 160, rw, io, 4, 0)       \
    X(mamba2, st, 128, 32, 32, 128, rw, io, 4, 0)       \
    X(mamba2, st, 256, 128, 64, 128, rw, io, 2, 3)      \
    X(mamba2, st, 256, 128, 32, 128, rw, io, 4, 0)      \
    X(mamba2, st, 256, 64, 64, 128, rw, io, 2, 3)       \
    X(mamba2, st, 256, 64, 32, 128, rw, io, 4, 0)

#endif
