/* Extension "replayssm.verify/1": speculative decoding. A window of up to max_draft_tokens + 1 tokens per slot is
 * computed against checkpoint + ring and committed by moving the cursor; a rejected draft leaves no trace. Draft:
 * answers RSSM_ERR_UNSUPPORTED in this version. get_extension(RSSM_EXT_VERIFY) gives a rssm_verify_api.
 *
 *     verify_begin(slots, cu_seqlens, max_T) -> rows     once per pass
 *     for layer: verify(layer, ...)                      the inputs of row b are tokens cu_seqlens[b] .. [b+1]
 *     commit(rows, accepted)                             once per pass, after the host sampled
 */
#ifndef RSSM_VERIFY_H_
#define RSSM_VERIFY_H_

#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_VERIFY "replayssm.verify/1"

typedef struct rssm_verify_begin_args {
    uint64_t struct_size;
    const DLTensor *slots;      /* [B] */
    const DLTensor *cu_seqlens; /* [B + 1], not decreasing, from 0 */
    const DLTensor *rows_out;   /* int32 [B, 8] */
    void *stream;
    int32_t max_T; /* longest window of the batch, <= max_draft_tokens + 1 */
    uint32_t flags;
} rssm_verify_begin_args;

typedef struct rssm_commit_args {
    uint64_t struct_size;
    const DLTensor *rows;     /* of verify_begin */
    const DLTensor *accepted; /* [B], 0 .. len: tokens kept, the bonus token counted */
    void *stream;
    uint32_t flags;
    uint32_t reserved_;
} rssm_commit_args;

typedef struct rssm_verify_api {
    uint64_t struct_size;
    rssm_status (*verify_begin)(rssm_plugin *plugin, const rssm_verify_begin_args *args,
                                rssm_error *err); /* [instance] [capture-safe] */
    /* Takes decode's args; inputs and out have one row per token. [instance] [capture-safe] */
    rssm_status (*validate)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*verify)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*commit)(rssm_plugin *plugin, const rssm_commit_args *args,
                          rssm_error *err); /* [instance] [capture-safe] */
} rssm_verify_api;

#ifdef __cplusplus
}
#endif
#endif
