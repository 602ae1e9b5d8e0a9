/* The steps of small batches: all families, in the sizes and dtypes of small_variants.h. */
#include "step_kept.cuh"
#include "step_small.cuh"

#define KERNEL(family, state, K, V, WR, NW, kind, io, blocks, ring, rw)                                         \
    extern "C" __global__ void __launch_bounds__(NW * 32, blocks)                                               \
        RSSM_CUDA_SMALL_NAME(family, state, K, V, WR, NW, kind, io)(const __grid_constant__ rssm_small s)       \
    {                                                                                                           \
        step_##kind<small_shape<RSSM_CUDA_FAMILY_##family, state##_state, K, V, WR, NW, RSSM_CUDA_IO_##io>>(s); \
    }

RSSM_CUDA_SMALL_LIST(KERNEL)
