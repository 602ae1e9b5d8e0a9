/* Extension "replayssm.conv/1": the short causal convolution in front of the recurrence, with its history in the pool's
 * conv tensor as a ring of raw inputs that moves with the slot's cursor, so that a rejected draft rolls back
 * convolution and recurrence together. Needs RSSM_INIT_CONV_STATE, a model with a convolution and the pool's cursors
 * (rows of step_begin or verify_begin); else RSSM_ERR_UNSUPPORTED.
 *
 * For channel c of the packed row (q | k | v, or x | B | C) and width w:
 *     y_t[c] = silu(bias[c] + sum_{i<w} weight[c, i] * x_{t-w+1+i}[c])   in float32; x = 0 before the slot's first token,
 *                                                                        or what import_state gave.
 * The ring: conv[slot, c, w'] with w' = w - 1 columns, w + max_draft_tokens with drafts; column cursor[2] is where the next
 * input goes, x_{t-i} lies i columns before it (mod w'). A host that runs its own convolution uses the tensor as plain storage.
 * get_extension(RSSM_EXT_CONV) gives a rssm_conv_api. */
#ifndef RSSM_CONV_H_
#define RSSM_CONV_H_

#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_CONV "replayssm.conv/1"

/* Roles of both calls, in decode's args (scale and lower_bound have no place here):
 *   conv_in     [N, channels]        io dtype, any row stride; N = B, with verify one row per token
 *   conv_weight [channels, w]        any float type; [channels, 1, w] is fine
 *   conv_bias   [channels]           optional
 *   conv        [S, channels, w']    of pool_tensors
 *   rows        [B, 8]               of step_begin (conv) or verify_begin (conv_verify)
 *   conv_out    [N, channels]        io dtype: decode's packed input
 * One call per layer, before decode or verify of the layer. Padding rows get zeros. conv_in and conv_out may not overlap. */
typedef struct rssm_conv_api {
    uint64_t struct_size;
    /* Either call without computing; touches no device. [instance] */
    rssm_status (*validate)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*conv)(rssm_plugin *plugin, const rssm_decode_args *args,
                        rssm_error *err); /* [instance] [capture-safe] */
    /* The same for the windows of verify_begin; commit moves the history with the cursor. [instance] [capture-safe] */
    rssm_status (*conv_verify)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
} rssm_conv_api;

#ifdef __cplusplus
}
#endif
#endif
