/* Vectors in plain C: the compiler's own vector type, four floats, whatever the machine has for it. Also the list of what
 * a simd_*.h gives to level_template.h:
 *
 *     LANES  vf  vsat                         floats in a vector; the vector; what remembers overflowing stores
 *     vf_set1 add sub mul div fma(a,b,c)=a*b+c
 *     vf_min vf_max                           NaN when the second operand is NaN
 *     vf_abs  vf_round (to integer)
 *     vf_scale2(p, n)                         p 2^n for an integral n in -126 .. 127, anything elsewhere
 *     vf_zero_if_less(x, limit, a)            per lane x < limit ? 0 : a
 *     vf_if_negative(t, a, b)                 per lane t < 0 ? a : b
 *     vf_sum                                  of all lanes, as a tree
 *     vf_load_f32/bf16/fp16, vf_store_f32/bf16/fp16     LANES elements, element alignment; stores as in dtype.h
 *     vsat_any                                did a store saturate
 */
#ifndef RSSM_CPU_SIMD_GENERIC_H_
#define RSSM_CPU_SIMD_GENERIC_H_

#include <string.h>

#include "cpu/dtype.h"

enum { LANES = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef uint32_t vsat;

static inline vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf vf_add(vf a, vf b)
{
    return a + b;
}
static inline vf vf_sub(vf a, vf b)
{
    return a - b;
}
static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}
static inline vf vf_div(vf a, vf b)
{
    return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
static inline vf vi_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
static inline vf vf_min(vf a, vf b)
{
    return vi_select(a < b, a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vi_select(a > b, a, b);
}
static inline vf vf_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}
/* For |a| < 2^22, else anything: adding 1.5 * 2^23 leaves no fraction bits. */
static inline vf vf_round(vf a)
{
    vf magic = vf_set1(0x1.8p23f);
    return (a + magic) - magic;
}
/* n's integer stands in the low bits of n + 1.5 * 2^23: no conversion, which would be undefined for large n. */
static inline vf vf_scale2(vf p, vf n)
{
    return p * (vf)(((vu)(n + vf_set1(0x1.8p23f)) + 127u) << 23);
}
static inline vf vf_zero_if_less(vf x, float limit, vf a)
{
    return (vf)((vi)a & ~(x < vf_set1(limit)));
}
static inline vf vf_if_negative(vf t, vf a, vf b)
{
    return vi_select(t < vf_set1(0), a, b);
}
static inline float vf_sum(vf a)
{
    return (a[0] + a[2]) + (a[1] + a[3]);
}

static inline vf vf_load_f32(const float *src)
{
    vf a;
    memcpy(&a, src, sizeof a);
    return a;
}
static inline vu vu_load_16(const uint16_t *src)
{
    return (vu){src[0], src[1], src[2], src[3]};
}
static inline vf vf_load_bf16(const uint16_t *src)
{
    return (vf)(vu_load_16(src) << 16);
}
/* The exponent is moved from bias 15 to 127 by a multiplication, which also makes subnormals normal; infinity and NaN
 * get the largest exponent. */
static inline vf vf_load_fp16(const uint16_t *src)
{
    vu h = vu_load_16(src), magnitude = (h & 0x7fffu) << 13;
    vu special = (vu)(magnitude >= (0x7c00u << 13)) & 0x7f800000u;
    vf a = (vf)magnitude * vf_set1(0x1p112f);
    return (vf)((vu)a | special | (h & 0x8000u) << 16);
}
static inline void vf_store_f32(float *dst, vf a, vsat *saturated)
{
    (void)saturated;
    memcpy(dst, &a, sizeof a);
}
static inline void vf_store_bf16(uint16_t *dst, vf a, vsat *saturated)
{
    vu u = (vu)a, magnitude = u & 0x7fffffffu;
    vu is_nan = (vu)(magnitude > 0x7f800000u), is_over = (vu)(magnitude >= 0x7f7f8000u) & ~is_nan;
    vu r = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    r = (is_nan & (u >> 16 | 0x40u)) | (is_over & ((u >> 16 & 0x8000u) | 0x7f7fu)) | (~(is_nan | is_over) & r);
    for (int i = 0; i < LANES; i++) {
        dst[i] = (uint16_t)r[i];
        *saturated |= is_over[i] & 1u;
    }
}
static inline void vf_store_fp16(uint16_t *dst, vf a, vsat *saturated)
{
    for (int i = 0; i < LANES; i++)
        dst[i] = rssm_f32_to_fp16(a[i], saturated);
}
static inline vsat vsat_none(void)
{
    return 0;
}
static inline uint32_t vsat_any(vsat saturated)
{
    return saturated;
}

#endif
