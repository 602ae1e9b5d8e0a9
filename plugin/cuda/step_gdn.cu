/* The tuned gated-DeltaNet step: one log gate per value head, in the sizes and state dtypes of variants.h. */
#include "step_tile.cuh"

#define KERNEL(family, state, K, V, VT, NT, kind, io, blocks, fill)                                                  \
    extern "C" __global__ void __launch_bounds__(NT, blocks)                                                         \
        RSSM_CUDA_NAME(family, state, K, V, VT, NT, kind, io)(const __grid_constant__ rssm_step s)                   \
    {                                                                                                                \
        step_tile<RSSM_CUDA_FAMILY_##family, state##_state, K, V, VT, NT, RSSM_CUDA_RING_##kind, RSSM_CUDA_IO_##io>( \
            s);                                                                                                      \
    }

RSSM_CUDA_LIST_GDN(KERNEL)
