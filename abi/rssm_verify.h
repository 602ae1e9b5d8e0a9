/* Extension "replayssm.verify/1": speculative decoding. A window of up to Tm = max_draft_tokens + 1 tokens per slot (the
 * bonus token counted) is computed against checkpoint + ring and committed by moving the cursor; a rejected draft leaves no
 * trace. Needs max_draft_tokens >= 1 at init (else every call answers RSSM_ERR_UNSUPPORTED) and the pool.
 *
 *     verify_begin(slots, cu_seqlens, max_T) -> rows     once per pass
 *     for layer: verify(layer, ..., rows)                inputs and out have one row per token; row b of `rows` has tokens
 *                                                        cu_seqlens[b] .. cu_seqlens[b + 1] - 1
 *     commit(rows, accepted)                             once per pass, after the host sampled; commit(0) or none: as if
 *                                                        the window had never been
 *
 * The serial equivalent of commit(n): n plain steps. Output t equals that of t + 1 plain steps and depends on no later
 * token. Before a window that has no room in the ring (count + T > L) the committed records are folded into the
 * checkpoint. Plain steps, windows, forced flushes and slot operations may come in any order on a slot.
 *
 * A window longer than max_T or below 0, or with tokens beyond those that verify is given, has no tokens at all: none of them is
 * read or written, since a part of them may be another row's. RSSM_FAULT_SEQLENS is set, also where the row is a padding row. The
 * fold that verify_begin has decided on happens all the same. Tokens of a padding row that are in range get zeros; tokens that
 * no row has are left alone. rssm_conv.h's windows follow the same rule.
 *
 * A slot that was reset, imported, loaded or copied to since verify_begin has no window any more: commit notices only where
 * its cursor has changed, so leave its row out (slot -1).
 * get_extension(RSSM_EXT_VERIFY) gives a rssm_verify_api. */
#ifndef RSSM_VERIFY_H_
#define RSSM_VERIFY_H_

#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_VERIFY "replayssm.verify/1"

typedef struct rssm_verify_begin_args {
    uint64_t struct_size;
    const DLTensor *slots;      /* int32|int64 [B], as step_begin's                                          */
    const DLTensor *cu_seqlens; /* int32|int64 [B + 1], not decreasing, from 0; windows of 0 tokens are allowed */
    const DLTensor *rows_out;   /* int32 [B, 8]: start and len of each row in columns 5 and 6                */
    void *stream;
    int32_t max_T;  /* no window of the batch is longer; 1 .. max_draft_tokens + 1; verify launches for it  */
    uint32_t flags; /* RSSM_CHECK_DEEP */
} rssm_verify_begin_args;

/* accepted[b] tokens of row b's window are kept: 0 .. len. Beyond that, or when the slot's cursor is no longer where
 * verify_begin left it (a second commit), or the row is a plain step's: the slot stays as it is and RSSM_FAULT_ACCEPTED is
 * set. (One row of a plain step looks like a window's: of a slot whose ring was full, in a pool without convolution.) */
typedef struct rssm_commit_args {
    uint64_t struct_size;
    const DLTensor *rows;     /* of verify_begin                                                            */
    const DLTensor *accepted; /* int32|int64 [B]                                                            */
    void *stream;
    uint32_t flags; /* RSSM_CHECK_DEEP */
    uint32_t reserved_;
} rssm_commit_args;

typedef struct rssm_verify_api {
    uint64_t struct_size;
    rssm_status (*verify_begin)(rssm_plugin *plugin, const rssm_verify_begin_args *args,
                                rssm_error *err); /* [instance] [capture-safe] */
    /* decode's args with rows (no write_pos, force_flush, state_indices): inputs and out have N >= 0 rows, one per token.
     * validate touches no device. [instance], verify also [capture-safe] */
    rssm_status (*validate)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*verify)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*commit)(rssm_plugin *plugin, const rssm_commit_args *args,
                          rssm_error *err); /* [instance] [capture-safe] */
} rssm_verify_api;

#ifdef __cplusplus
}
#endif
#endif
