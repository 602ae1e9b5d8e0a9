/* What a config says about its recurrent layers: whole model, before tensor parallelism. Written by config.c or from
 * rssm_dims, read by layout.c. */
#ifndef RSSM_CORE_MODEL_H_
#define RSSM_CORE_MODEL_H_

#include <stdbool.h>

#include "core/mem.h"
#include "rssm_model.h"

enum {
    RSSM_MAX_LAYERS = 65536,
    RSSM_MAX_HEADS = 65536,
    RSSM_MAX_HEAD_DIM = 4096,
    RSSM_MAX_CONV_KERNEL = 64,
    RSSM_MAX_RING = 64
};

typedef struct rssm_model {
    int32_t family;         /* RSSM_FAMILY_* */
    const char *model_type; /* "" if none    */
    int32_t num_layers;     /* all layers of the model */
    int32_t num_linear;
    const int32_t *linear_layers; /* [num_linear] ascending, zero-based */
    int32_t H, HV, K, V;          /* Mamba-2: n_groups, heads, d_state, head_dim */
    int32_t conv_kernel;          /* 0 = none */
    bool has_lower_bound;
    bool qk_norm;
    double lower_bound;
    double beta_scale; /* 1 or 2 */
    double dt_min, dt_max;
    int32_t io_dtype;    /* RSSM_DTYPE_*; bfloat16 assumed when the config has none */
    int32_t state_dtype; /* by the rules of pool.md */
    rssm_strings read, assumed;
} rssm_model;

/* From an explicit struct (already copied to full size). ERR_ARGUMENT, ERR_OUT_OF_MEMORY. */
rssm_status rssm_model_from_dims(rssm_model *model, rssm_arena *arena, const rssm_dims *dims, rssm_error *err);

#endif
