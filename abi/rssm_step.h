/* replayssm plugin ABI 1.0: one decode step.
 *
 * The serial equivalent of a forward pass over B requests with one token each:
 *
 *     step_begin(slots, force_flush) -> rows      once per pass: reads and moves each slot's cursor
 *     for layer in 0 .. num_linear_layers - 1:    every layer exactly once
 *         decode(layer, inputs, weights, pool tensors of the layer, rows) -> out
 *
 * Per row and value head hv, with key head (group) h = hv / (HV / H), everything in float32:
 *
 *   KDA, GDN   q <- q / sqrt(sum_K q^2 + norm_eps) * scale     (without qk_norm: q * scale)
 *              k <- k / sqrt(sum_K k^2 + norm_eps)             (without qk_norm: k)
 *              g <- -exp(A_log[hv]) * softplus(a + dt_bias), or with a bound lower_bound * sigmoid(exp(A_log[hv]) *
 *                   (a + dt_bias)); no A_log = no exp(A_log) factor. KDA: one g per key channel (a[hv, K], dt_bias[hv * K + k]),
 *                   which scales column k of S; GDN: one per value head
 *              beta <- beta_scale * sigmoid(b)
 *              S <- S exp(g);  d = beta (v - S k);  S <- S + d k^T;  out = S q
 *   Mamba-2    dt <- clamp(softplus(dt + dt_bias), time_step_limit);  A = -exp(A_log)
 *              S <- S exp(A dt) + dt x B^T;  out = S C + D x;  with z: out <- out * z * sigmoid(z)
 *
 * softplus(x) = x above 20, else log1p(exp(x)). The convolution with its SiLU comes before, the output norm and projection
 * after: both are the host's (z is the gate alone, not a gated norm).
 *
 * The state is not written at every token: the checkpoint and the `count` records of the ring stand for it, and a flush
 * folds them and the current token into the checkpoint: at count >= L - 1 at the latest, where it is forced, and in every
 * step of at most small_batch rows (rssm_description). Records hold d and k (x and B) rounded
 * once to the ring dtype, and so does the token that a flush folds (every token at L = 1); its own output uses them
 * unrounded.
 *
 * Bringing up a host: pass RSSM_CHECK_DEEP to step_begin and decode, and read the fault word (rssm_fault.h) after each pass.
 * Without them a bad index or cursor is a padding row: zeros, and no error.
 */
#ifndef RSSM_STEP_H_
#define RSSM_STEP_H_

#include "rssm_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* rows: int32 [B, RSSM_ROW_WIDTH], made by step_begin or verify_begin, read by every layer of the pass.
 *   0 slot   slot, or -1 for a padding row
 *   1 base   physical ring row of the oldest record
 *   2 count  pending records before this pass, 0 .. L; none at L = 1, where every token is folded
 *   3 flush  1 = this pass folds the ring into the checkpoint
 *   4 conv   position in the convolution's ring before this pass
 *   5 start  first token of this row in the packed inputs (plain step: the row's number)
 *   6 len    tokens of this row (plain step: 1)
 *   7 0, or an order of work for the device, ignored for a slice of the array; set it to 0 in rows that you put together
 *     from two arrays
 * A padding row (-1, 0, 0, 0, 0, row, 1, 0): its outputs are zeroed, its inputs may be anything, nothing else is touched.
 * cursor: int32 [S, 4]: base, count, conv, short. step_begin moves it: count + 1, or on a flush base + count (mod R) and
 * count = 0; conv is the position in the convolution's ring, where the pool holds one. `short` is 0, or with
 * RSSM_INIT_SPREAD_FLUSH by how much the slot's first window is shortened: it flushes at count >= L - 1 - short. A flush for
 * the small batch alone keeps `short`, so that slots which leave it together still flush apart. */
enum { RSSM_ROW_WIDTH = 8, RSSM_CURSOR_WIDTH = 4 };

/* All tensors on the instance's device. A slot may appear once in a batch. */
typedef struct rssm_step_begin_args {
    uint64_t struct_size;
    const DLTensor *slots;       /* int32|int64 [B]; < 0, >= S or the pad slot = a padding row; a slot twice is
                                    undefined (RSSM_CHECK_DEEP finds it)                                 */
    const DLTensor *force_flush; /* int32|int64 [B] or NULL                                             */
    const DLTensor *rows_out;    /* int32 [B, 8], the caller's, inner dim compact                       */
    void *stream;
    uint32_t flags; /* RSSM_CHECK_DEEP */
    uint32_t reserved_;
} rssm_step_begin_args;

/* Flags. RSSM_SKIP_VALIDATE (decode; validate ignores it): these args passed validate() before and only addresses of the
 * same kind changed; a wrong tensor is then undefined behaviour. RSSM_CHECK_DEEP (step_begin, validate, decode; [may-sync]):
 * also read the index arrays and refuse duplicate slots, bad cursors, rows that step_begin did not write. */
enum { RSSM_SKIP_VALIDATE = 1u << 0, RSSM_CHECK_DEEP = 1u << 1 };

/* One layer of one step. Exactly one of rows and write_pos. With write_pos the host keeps the cursor itself: base = 0,
 * count = write_pos[b], flush when count >= L - 1 or force_flush[b], slot = state_indices[b] or b; after the step the
 * host sets write_pos to 0 for flushed rows and adds 1 to the others. The pool's cursor takes no part: a slot may go from
 * rows to write_pos right after a reset, and back after another one. has_lower_bound turns a softplus gate into a bounded
 * one for this call. A layer decoded twice in a pass, or left out, is not noticed: its slots are undefined until reset. */
typedef struct rssm_decode_args {
    uint64_t struct_size;
    const DLTensor *const *tensors; /* indexed by role (RSSM_T_*); cursor and conv of pool_tensors may stay in it */
    uint32_t num_tensors;           /* entries of tensors, usually RSSM_T_COUNT                          */
    int32_t layer;                  /* ordinal of the linear layer, 0 .. num_linear_layers - 1           */
    void *stream;                   /* CUDA stream of the host, NULL = legacy default; ignored on CPU    */
    uint32_t flags;
    int32_t has_scale;       /* 1: scale replaces the model's (KDA, GDN)                                */
    int32_t has_lower_bound; /* 1: lower_bound (< 0) replaces the model's (KDA, GDN)                     */
    int32_t reserved_;
    double scale;
    double lower_bound;
} rssm_decode_args;

#ifdef __cplusplus
}
#endif
#endif
