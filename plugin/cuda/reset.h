/* The argument of the reset kernel (pool.cu): fresh slots in every tensor of the pool. */
#ifndef RSSM_CUDA_RESET_H_
#define RSSM_CUDA_RESET_H_

#include "core/backend.h"

typedef struct rssm_cuda_reset {
    const rssm_region *regions; /* [num_regions], in device memory */
    int32_t *cursor;            /* [S, 4] */
    int64_t cursor_slot;        /* elements */
    int64_t S, pad_slot;
    rssm_index slots; /* data NULL: slot i is i */
    int64_t count;
    int32_t num_regions;
    int32_t L;
    int32_t spread_step; /* of rssm_pool */
    int32_t pad_;
} rssm_cuda_reset;

#endif
