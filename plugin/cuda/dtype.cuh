/* Elements in memory against floats in registers: what every kernel here does at its edges.
 *
 * A load is split in two, load_raw() and widen(), so that a kernel can issue all its loads before the first
 * conversion waits for one. The dtype is a run-time number (uniform over the grid), except for the state, whose type
 * is a template parameter of the tuned kernels.
 *
 * Narrowing rounds to nearest even, keeps NaN, and saturates what would become infinite; the caller ors the flag into
 * the fault word.
 */
#ifndef RSSM_CUDA_DTYPE_CUH_
#define RSSM_CUDA_DTYPE_CUH_

#include "core/step.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* RSSM_DTYPE_* of abi/rssm_base.h; a kernel file stays free of DLPack. 0 (no tensor) reads as float32. */
enum { F32 = 1, BF16 = 2, F16 = 3 };

#define DEVICE static __device__ __forceinline__

#define BF16_MAX 3.3895313892515355e38f /* the largest finite bfloat16 */
#define F16_MAX  65504.0f

DEVICE bool is_half_width(int dtype)
{
    return dtype == BF16 || dtype == F16;
}

/* Address of element i; one shift serves all dtypes. */
DEVICE const unsigned char *element(const void *p, int64_t i, int dtype)
{
    return (const unsigned char *)p + (i << (is_half_width(dtype) ? 1 : 2));
}

/* The bits of element i, zero-extended. No use of the value here: the load stays in flight. */
DEVICE uint32_t load_raw(const void *p, int64_t i, int dtype)
{
    const unsigned char *const at = element(p, i, dtype);
    if (is_half_width(dtype))
        return *(const uint16_t *)at;
    return *(const uint32_t *)at;
}

DEVICE float bf16_bits_to_float(uint32_t h)
{
    return __uint_as_float(h << 16);
}

DEVICE float f16_bits_to_float(uint32_t h)
{
    return __half2float(__ushort_as_half((unsigned short)h));
}

DEVICE float widen(uint32_t raw, int dtype)
{
    if (dtype == BF16)
        return bf16_bits_to_float(raw);
    if (dtype == F16)
        return f16_bits_to_float(raw);
    return __uint_as_float(raw);
}

DEVICE float load_any(const void *p, int64_t i, int dtype)
{
    return widen(load_raw(p, i, dtype), dtype);
}

/* x clamped to the finite range of a 16-bit dtype where it would round to infinity; NaN stays NaN. */
DEVICE float saturate(float x, int dtype, bool *hit)
{
    const float max = dtype == F16 ? F16_MAX : BF16_MAX;
    /* Half an ulp beyond max still rounds down to it (ties go to the even neighbour, which is infinity). */
    const float limit = dtype == F16 ? 65520.0f : __uint_as_float(0x7f7f8000u);
    if (fabsf(x) >= limit) {
        *hit = true;
        return copysignf(max, x);
    }
    return x;
}

DEVICE uint32_t narrow_bits(float x, int dtype)
{
    return dtype == F16 ? __half_as_ushort(__float2half_rn(x)) : __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/* x as it will be read back from a tensor of this dtype. */
DEVICE float round_to(float x, int dtype, bool *hit)
{
    if (!is_half_width(dtype))
        return x;
    return widen(narrow_bits(saturate(x, dtype, hit), dtype), dtype);
}

DEVICE void store_any(void *p, int64_t i, float x, int dtype, bool *hit)
{
    if (is_half_width(dtype))
        ((uint16_t *)p)[i] = (uint16_t)narrow_bits(saturate(x, dtype, hit), dtype);
    else
        ((float *)p)[i] = x;
}

/* State element types. A chunk is 16 bytes: what one lane reads or writes at once. */
struct f32_state {
    enum { DTYPE = F32, BYTES = 4, CHUNK = 4 };
};
struct bf16_state {
    enum { DTYPE = BF16, BYTES = 2, CHUNK = 8 };
};
struct f16_state {
    enum { DTYPE = F16, BYTES = 2, CHUNK = 8 };
};

DEVICE void widen2(uint32_t pair, float *x, bf16_state)
{
    x[0] = __uint_as_float(pair << 16);
    x[1] = __uint_as_float(pair & 0xffff0000u);
}

DEVICE void widen2(uint32_t pair, float *x, f16_state)
{
    const float2 f = __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    x[0] = f.x;
    x[1] = f.y;
}

DEVICE void widen_chunk(uint4 raw, float *x, f32_state)
{
    x[0] = __uint_as_float(raw.x);
    x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z);
    x[3] = __uint_as_float(raw.w);
}

template <class ST> DEVICE void widen_chunk(uint4 raw, float *x, ST st)
{
    widen2(raw.x, x, st);
    widen2(raw.y, x + 2, st);
    widen2(raw.z, x + 4, st);
    widen2(raw.w, x + 6, st);
}

DEVICE uint32_t narrow2(const float *x, bf16_state)
{
    const __nv_bfloat162 p = __floats2bfloat162_rn(x[0], x[1]);
    return *reinterpret_cast<const uint32_t *>(&p);
}

DEVICE uint32_t narrow2(const float *x, f16_state)
{
    const __half2 p = __floats2half2_rn(x[0], x[1]);
    return *reinterpret_cast<const uint32_t *>(&p);
}

DEVICE uint4 narrow_chunk(float *x, bool *, f32_state)
{
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}

template <class ST> DEVICE uint4 narrow_chunk(float *x, bool *hit, ST st)
{
    float top = 0.0f; /* fmaxf passes over NaN */
#pragma unroll
    for (int i = 0; i < 8; ++i)
        top = fmaxf(top, fabsf(x[i]));
    if (top > (ST::DTYPE == F16 ? F16_MAX : BF16_MAX)) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] = saturate(x[i], ST::DTYPE, hit);
    }
    return make_uint4(narrow2(x, st), narrow2(x + 2, st), narrow2(x + 4, st), narrow2(x + 6, st));
}

/* narrow_chunk() without a branch: *top keeps the larger of the magnitudes in each half, so that had_infinite() says in the end
 * whether something must be repaired: stored again as without_infinite(). */
DEVICE uint4 narrow_quickly(const float *x, uint32_t *, f32_state)
{
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
}

template <class ST> DEVICE void keep_larger(uint32_t *top, uint32_t pair, ST)
{
#ifdef __CUDA_ARCH__
    if (ST::DTYPE == F16)
        asm("{\n\t.reg .b32 x;\n\tabs.f16x2 x, %1;\n\tmax.f16x2 %0, %0, x;\n\t}" : "+r"(*top) : "r"(pair));
    else
        asm("{\n\t.reg .b32 x;\n\tabs.bf16x2 x, %1;\n\tmax.bf16x2 %0, %0, x;\n\t}" : "+r"(*top) : "r"(pair));
#else
    const uint32_t infinite = ST::DTYPE == F16 ? 0x7c00 : 0x7f80; /* as the GPU does, past NaN */
    for (int i = 0; i < 32; i += 16) {
        const uint32_t x = pair >> i & 0x7fff;
        if (x <= infinite && x > (*top >> i & 0xffff))
            *top = (*top & ~(0xffffu << i)) | x << i;
    }
#endif
}

template <class ST> DEVICE uint4 narrow_quickly(const float *x, uint32_t *top, ST st)
{
    const uint4 y = make_uint4(narrow2(x, st), narrow2(x + 2, st), narrow2(x + 4, st), narrow2(x + 6, st));
    keep_larger(top, y.x, st);
    keep_larger(top, y.y, st);
    keep_larger(top, y.z, st);
    keep_larger(top, y.w, st);
    return y;
}

/* Whether an exponent of the pair is that of infinity. */
template <class ST> DEVICE bool had_infinite(uint32_t top, ST)
{
    return ST::DTYPE != F32 && ((top + (ST::DTYPE == F16 ? 0x04000400u : 0x00800080u)) & 0x80008000u) != 0;
}

/* Infinite halves of a pair become the largest finite number: one less, as bits. */
template <class ST> DEVICE uint32_t finite_pair(uint32_t pair, ST)
{
    const uint32_t infinite = ST::DTYPE == F16 ? 0x7c00 : 0x7f80;
    return pair - ((pair & 0x7fff) == infinite ? 1u : 0u) - ((pair >> 16 & 0x7fff) == infinite ? 0x10000u : 0u);
}

template <class ST> DEVICE uint4 without_infinite(uint4 x, ST st)
{
    return make_uint4(finite_pair(x.x, st), finite_pair(x.y, st), finite_pair(x.z, st), finite_pair(x.w, st));
}

#endif
