/* AVX-512 F, BW, VL, DQ: sixteen floats. See simd_generic.h for what each function is. */
#ifndef RSSM_CPU_SIMD_AVX512_H_
#define RSSM_CPU_SIMD_AVX512_H_

#include <immintrin.h>
#include <string.h>

#include "cpu/dtype.h"

enum { LANES = 16 };
typedef __m512 vf;
typedef uint32_t vsat; /* a bit per lane */

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}
static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_scale2(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}
static inline vf vf_zero_if_less(vf x, float limit, vf a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}
static inline vf vf_if_negative(vf t, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
static inline float vf_sum(vf a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static inline vf vf_load_f32(const float *src)
{
    return _mm512_loadu_ps(src);
}
static inline vf vf_load_bf16(const uint16_t *src)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)src));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vf vf_load_fp16(const uint16_t *src)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src));
}

/* Remembers |a| >= overflow and brings a into -max .. max; NaN passes. */
static inline vf vf_saturate(vf a, float overflow, float max, vsat *saturated)
{
    *saturated |= _mm512_cmp_ps_mask(vf_abs(a), vf_set1(overflow), _CMP_GE_OQ);
    return vf_min(vf_set1(max), vf_max(vf_set1(-max), a));
}
static inline void vf_store_f32(float *dst, vf a, vsat *saturated)
{
    (void)saturated;
    _mm512_storeu_ps(dst, a);
}
static inline void vf_store_bf16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_BF16_OVERFLOW, RSSM_BF16_MAX, saturated);
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm512_cvtepi32_epi16(r));
}
static inline void vf_store_fp16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_FP16_OVERFLOW, RSSM_FP16_MAX, saturated);
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline vsat vsat_none(void)
{
    return 0;
}
static inline uint32_t vsat_any(vsat saturated)
{
    return saturated != 0;
}

#endif
