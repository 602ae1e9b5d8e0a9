/* Element types on the CPU: reading one value as float32, rounding one value (nearest even) to 16 bits and back.
 *
 * A finite value that would round to infinity, and infinity itself, becomes the largest finite number of the type and is
 * reported; NaN stays NaN. The vector levels do the same (cpu/simd_*.h).
 */
#ifndef RSSM_CPU_DTYPE_H_
#define RSSM_CPU_DTYPE_H_

#include <stdint.h>
#include <string.h>

#include "rssm_model.h"

/* |x| at or above this rounds to infinity: largest finite number plus half a unit in the last place. */
#define RSSM_BF16_OVERFLOW 3.3961775292304957e38f
#define RSSM_FP16_OVERFLOW 65520.0f
#define RSSM_BF16_MAX      3.3895313892515355e38f
#define RSSM_FP16_MAX      65504.0f

static inline uint32_t rssm_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float rssm_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float rssm_bf16_to_f32(uint16_t h)
{
    return rssm_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t rssm_f32_to_bf16(float x, uint32_t *saturated)
{
    uint32_t u = rssm_f32_bits(x);
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u); /* NaN, made quiet */
    if (magnitude >= 0x7f7f8000u) {
        *saturated = 1;
        return (uint16_t)(((u >> 16) & 0x8000u) | 0x7f7fu);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float rssm_fp16_to_f32(uint16_t h)
{
    uint32_t sign = ((uint32_t)h & 0x8000u) << 16;
    uint32_t magnitude = (uint32_t)h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity, NaN */
        return rssm_f32_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u)
        return rssm_f32_from_bits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    float tiny = (float)magnitude * 0x1p-24f; /* subnormal: exact */
    return rssm_f32_from_bits(sign | rssm_f32_bits(tiny));
}

static inline uint16_t rssm_f32_to_fp16(float x, uint32_t *saturated)
{
    uint32_t u = rssm_f32_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) { /* 65520 */
        *saturated = 1;
        return (uint16_t)(sign | 0x7bffu);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24; adding 0.5 rounds to it, to nearest even */
        float shifted = rssm_f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (rssm_f32_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

static inline int64_t rssm_cpu_dtype_bytes(int32_t dtype)
{
    return dtype == RSSM_DTYPE_FLOAT32 ? 4 : 2;
}

/* Element `index` of an array of `dtype`. */
static inline float rssm_load_f32(int32_t dtype, const void *data, int64_t index)
{
    if (dtype == RSSM_DTYPE_FLOAT32)
        return ((const float *)data)[index];
    uint16_t h = ((const uint16_t *)data)[index];
    return dtype == RSSM_DTYPE_BFLOAT16 ? rssm_bf16_to_f32(h) : rssm_fp16_to_f32(h);
}

/* *saturated becomes 1 when x does not fit, and is left alone otherwise. */
static inline void rssm_store_f32(int32_t dtype, void *data, int64_t index, float x, uint32_t *saturated)
{
    if (dtype == RSSM_DTYPE_FLOAT32)
        ((float *)data)[index] = x;
    else
        ((uint16_t *)data)[index] =
            dtype == RSSM_DTYPE_BFLOAT16 ? rssm_f32_to_bf16(x, saturated) : rssm_f32_to_fp16(x, saturated);
}

/* x rounded once to dtype, as float32. */
static inline float rssm_round_f32(int32_t dtype, float x, uint32_t *saturated)
{
    if (dtype == RSSM_DTYPE_FLOAT32)
        return x;
    if (dtype == RSSM_DTYPE_BFLOAT16)
        return rssm_bf16_to_f32(rssm_f32_to_bf16(x, saturated));
    return rssm_fp16_to_f32(rssm_f32_to_fp16(x, saturated));
}

#endif
