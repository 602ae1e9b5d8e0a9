/* Extension "replayssm.conv/1": the short causal convolution in front of the recurrence, with its history in the pool's
 * conv tensor as a ring of raw inputs that moves with the slot's cursor, so that a rejected draft rolls back
 * convolution and recurrence together. Needs RSSM_INIT_CONV_STATE. Draft: answers RSSM_ERR_UNSUPPORTED in this version.
 *
 * For channel c of the packed row and width w:
 *     y_t[c] = silu(bias[c] + sum_{i<w} weight[c, i] * x_{t-w+1+i}[c])   in float32; x = 0 before the first token.
 * get_extension(RSSM_EXT_CONV) gives a rssm_conv_api. */
#ifndef RSSM_CONV_H_
#define RSSM_CONV_H_

#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_CONV "replayssm.conv/1"

typedef struct rssm_conv_api {
    uint64_t struct_size;
    /* Roles: conv_in [B, channels], conv_weight [channels, w], conv_bias [channels] (optional), conv, rows, conv_out
     * [B, channels] (the packed input of decode). One call per layer, before decode. [instance] [capture-safe] */
    rssm_status (*validate)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    rssm_status (*conv)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
    /* The same for the rows of verify_begin: one row per token. [instance] [capture-safe] */
    rssm_status (*conv_verify)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
} rssm_conv_api;

#ifdef __cplusplus
}
#endif
#endif
