/* What a .cu file needs of its machine, for a C++ compiler and no GPU. There is one thread and it is alone: only kernels
 * whose threads do not meet may be called. To be included before the .cu file. */
#ifndef RSSM_TESTS_GPU_ON_HOST_H_
#define RSSM_TESTS_GPU_ON_HOST_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __shared__
#undef __global__
#undef __device__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __shared__
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n)
#define __expf expf

using std::max;
using std::min;

struct on_host_place {
    unsigned x, y, z;
};
static on_host_place threadIdx, blockIdx, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};

static inline float __uint_as_float(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void atomicOr(unsigned *word, unsigned bits)
{
    *word |= bits;
}

/* Never called here. */
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline void __syncthreads() {}
static inline void __syncwarp() {}
static inline int __syncthreads_count(int)
{
    return 0;
}
static inline unsigned __ballot_sync(unsigned, int)
{
    return 0;
}
static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}
static inline int __ffs(unsigned bits)
{
    return __builtin_ffs((int)bits);
}
static inline int __shfl_sync(unsigned, int x, int)
{
    return x;
}

#endif
