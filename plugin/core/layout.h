/* model + options -> what one rank's pool is. The one function that computes sizes. */
#ifndef RSSM_CORE_LAYOUT_H_
#define RSSM_CORE_LAYOUT_H_

#include "core/family.h"
#include "core/model.h"
#include "rssm_pool.h"

enum { RSSM_LAYOUT_VERSION = 1, RSSM_MAX_POOL_TENSORS = 6 };

/* This rank's share, after tensor parallelism and the pipeline range, and every choice made. */
typedef struct rssm_rank {
    const rssm_family_spec *family;
    int32_t H, HV, K, V, L, R;
    int32_t tp_size, tp_rank, head_begin, group_begin;
    int32_t conv_channels, conv_len; /* w' columns of the pool's history; 0 without RSSM_INIT_CONV_STATE */
    int32_t io_dtype, state_dtype, ring_dtype;
    int32_t num_linear;
    const int32_t *linear_layers;
    rssm_dims_of dims; /* symbol values; B, S, N free */
    const char *ring_reason;
    const char *hash_text;
    uint64_t hash;
    int64_t step_bytes, step_bytes_read_write;
} rssm_rank;

rssm_status rssm_rank_resolve(rssm_rank *rank, rssm_arena *arena, const rssm_model *model, const rssm_init_args *args,
                              rssm_error *err);

uint64_t rssm_layers_hash(const rssm_rank *rank); /* of the model layer numbers */

/* Fills *layout and its tensor array for the slots or the budget of args. workspace_bytes comes from the backend. */
rssm_status rssm_layout_make(rssm_layout *layout, rssm_tensor_info *tensors, rssm_arena *arena, const rssm_rank *rank,
                             const rssm_init_args *args, int64_t workspace_bytes, rssm_error *err);

#endif
