/* AVX2, FMA and F16C: eight floats. See simd_generic.h for what each function is. */
#ifndef RSSM_CPU_SIMD_AVX2_H_
#define RSSM_CPU_SIMD_AVX2_H_

#include <immintrin.h>
#include <string.h>

#include "cpu/dtype.h"

enum { LANES = 8 };
typedef __m256 vf;
typedef __m256 vsat; /* all bits of a lane set = it saturated */

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf vf_scale2(vf p, vf n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
static inline vf vf_zero_if_less(vf x, float limit, vf a)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}
static inline vf vf_if_negative(vf t, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_LT_OQ));
}
static inline float vf_sum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline vf vf_load_f32(const float *src)
{
    return _mm256_loadu_ps(src);
}
static inline vf vf_load_bf16(const uint16_t *src)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)src));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline vf vf_load_fp16(const uint16_t *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
}

/* Remembers |a| >= overflow and brings a into -max .. max; NaN passes. */
static inline vf vf_saturate(vf a, float overflow, float max, vsat *saturated)
{
    *saturated = _mm256_or_ps(*saturated, _mm256_cmp_ps(vf_abs(a), vf_set1(overflow), _CMP_GE_OQ));
    return vf_min(vf_set1(max), vf_max(vf_set1(-max), a));
}
static inline void vf_store_f32(float *dst, vf a, vsat *saturated)
{
    (void)saturated;
    _mm256_storeu_ps(dst, a);
}
static inline void vf_store_bf16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_BF16_OVERFLOW, RSSM_BF16_MAX, saturated);
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(rounded, quiet, is_nan);
    __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    _mm_storeu_si128((__m128i *)(void *)dst, narrow);
}
static inline void vf_store_fp16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_FP16_OVERFLOW, RSSM_FP16_MAX, saturated);
    _mm_storeu_si128((__m128i *)(void *)dst, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline vsat vsat_none(void)
{
    return _mm256_setzero_ps();
}
static inline uint32_t vsat_any(vsat saturated)
{
    return _mm256_movemask_ps(saturated) != 0;
}

#endif
