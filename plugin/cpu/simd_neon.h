/* NEON of AArch64: four floats. See simd_generic.h for what each function is. */
#ifndef RSSM_CPU_SIMD_NEON_H_
#define RSSM_CPU_SIMD_NEON_H_

#include <arm_neon.h>
#include <string.h>

#include "cpu/dtype.h"

enum { LANES = 4 };
typedef float32x4_t vf;
typedef uint32x4_t vsat; /* all bits of a lane set = it saturated */

static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vminq_f32(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
static inline vf vf_abs(vf a)
{
    return vabsq_f32(a);
}
static inline vf vf_round(vf a)
{
    return vrndnq_f32(a);
}
static inline vf vf_scale2(vf p, vf n)
{
    return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
static inline vf vf_zero_if_less(vf x, float limit, vf a)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a), vcltq_f32(x, vdupq_n_f32(limit))));
}
static inline vf vf_if_negative(vf t, vf a, vf b)
{
    return vbslq_f32(vcltq_f32(t, vdupq_n_f32(0)), a, b);
}
static inline float vf_sum(vf a)
{
    return vaddvq_f32(a);
}

static inline vf vf_load_f32(const float *src)
{
    return vld1q_f32(src);
}
static inline vf vf_load_bf16(const uint16_t *src)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(src), 16));
}
static inline vf vf_load_fp16(const uint16_t *src)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src)));
}

/* Remembers |a| >= overflow and brings a into -max .. max; NaN passes. */
static inline vf vf_saturate(vf a, float overflow, float max, vsat *saturated)
{
    *saturated = vorrq_u32(*saturated, vcgeq_f32(vabsq_f32(a), vdupq_n_f32(overflow)));
    return vf_min(vf_set1(max), vf_max(vf_set1(-max), a));
}
static inline void vf_store_f32(float *dst, vf a, vsat *saturated)
{
    (void)saturated;
    vst1q_f32(dst, a);
}
static inline void vf_store_bf16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_BF16_OVERFLOW, RSSM_BF16_MAX, saturated);
    uint32x4_t u = vreinterpretq_u32_f32(a);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    uint32x4_t quiet = vorrq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(0x40));
    vst1_u16(dst, vmovn_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet)));
}
static inline void vf_store_fp16(uint16_t *dst, vf a, vsat *saturated)
{
    a = vf_saturate(a, RSSM_FP16_OVERFLOW, RSSM_FP16_MAX, saturated);
    vst1_u16(dst, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
static inline vsat vsat_none(void)
{
    return vdupq_n_u32(0);
}
static inline uint32_t vsat_any(vsat saturated)
{
    return vmaxvq_u32(saturated) != 0;
}

#endif
