/* The tuned verify kernels of this family, in the sizes and state dtypes of verify_variants.h. */
#include "verify_kda.cuh"

#define KERNEL(family, state, V, VT, TB, blocks, fill)                                    \
    extern "C" __global__ void __launch_bounds__(RSSM_VERIFY_THREADS, blocks)             \
        RSSM_VERIFY_NAME(family, state, V, VT, TB)(const __grid_constant__ rssm_window a) \
    {                                                                                     \
        verify_kda<kda_shape<state##_state, VT, TB>>(a);                                  \
    }

RSSM_VERIFY_LIST_KDA(KERNEL)
