/* Numbers for tests of kernels compiled for the host: from `seed`, the same on every machine. After the .cu file. */
#ifndef RSSM_TESTS_GPU_NUMBERS_H_
#define RSSM_TESTS_GPU_NUMBERS_H_

#include <cstdint>

static uint64_t seed;

static uint64_t draw()
{
    uint64_t z = seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static int between(int low, int high)
{
    return low + (int)(draw() % (uint64_t)(high - low + 1));
}

static int bytes_of(int dtype)
{
    return dtype == F32 ? 4 : 2;
}

#endif
