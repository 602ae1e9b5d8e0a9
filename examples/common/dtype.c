#include "dtype.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const dtype_info types[] = {
    {RSSM_DTYPE_FLOAT32, "float32", 4, {kDLFloat, 32, 1}, 23, -126, FLT_MAX},
    {RSSM_DTYPE_BFLOAT16, "bfloat16", 2, {kDLBfloat, 16, 1}, 7, -126, 0x1.fep127},
    {RSSM_DTYPE_FLOAT16, "float16", 2, {kDLFloat, 16, 1}, 10, -14, 65504.0},
};
enum { NUM_TYPES = sizeof types / sizeof types[0] };

static const struct {
    const char *name;
    int32_t id;
} spellings[] = {
    {"float32", RSSM_DTYPE_FLOAT32}, {"fp32", RSSM_DTYPE_FLOAT32},      {"f32", RSSM_DTYPE_FLOAT32},
    {"float", RSSM_DTYPE_FLOAT32},   {"bfloat16", RSSM_DTYPE_BFLOAT16}, {"bf16", RSSM_DTYPE_BFLOAT16},
    {"float16", RSSM_DTYPE_FLOAT16}, {"fp16", RSSM_DTYPE_FLOAT16},      {"f16", RSSM_DTYPE_FLOAT16},
    {"half", RSSM_DTYPE_FLOAT16},
};

const dtype_info *dtype_find(int32_t id)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if (types[i].id == id)
            return &types[i];
    return NULL;
}

const dtype_info *dtype_parse(const char *name)
{
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
        if (strcmp(spellings[i].name, name) == 0)
            return dtype_find(spellings[i].id);
    return NULL;
}

const dtype_info *dtype_of(const DLTensor *tensor)
{
    for (int i = 0; i < NUM_TYPES; i++) {
        DLDataType have = tensor->dtype, want = types[i].dl;
        if (have.code == want.code && have.bits == want.bits && have.lanes == 1)
            return &types[i];
    }
    return NULL;
}

static float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = (uint32_t)(h & 0x7fffu) << 13;
    if (magnitude >= 0x7c00u << 13) /* infinity or NaN */
        return float_of_bits(sign | 0x7f800000u | magnitude);
    /* Read as a float its exponent is 112 too small; the product also makes subnormals right. */
    return float_of_bits(sign | bits_of_float(float_of_bits(magnitude) * 0x1p112f));
}

static uint16_t half_of_float(float f)
{
    uint32_t bits = bits_of_float(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) /* 65536 and above */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* subnormal: added to 0.5 the spacing is that of a subnormal half */
        return (uint16_t)(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

static uint16_t bfloat_of_float(float f)
{
    uint32_t bits = bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void dtype_load(const dtype_info *type, const void *src, int64_t n, double *dst)
{
    const unsigned char *bytes = src; /* inputs need not be aligned to more than a byte for us */
    if (type->id == RSSM_DTYPE_FLOAT32) {
        for (int64_t i = 0; i < n; i++) {
            float f;
            memcpy(&f, bytes + 4 * i, sizeof f);
            dst[i] = (double)f;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, sizeof h);
        dst[i] = (double)(type->id == RSSM_DTYPE_BFLOAT16 ? float_of_bits((uint32_t)h << 16) : float_of_half(h));
    }
}

void dtype_store(const dtype_info *type, const float *src, int64_t n, void *dst)
{
    if (type->id == RSSM_DTYPE_FLOAT32) {
        memcpy(dst, src, (size_t)n * sizeof *src);
        return;
    }
    uint16_t *half = dst;
    for (int64_t i = 0; i < n; i++)
        half[i] = type->id == RSSM_DTYPE_BFLOAT16 ? bfloat_of_float(src[i]) : half_of_float(src[i]);
}

double dtype_ulp(const dtype_info *type, double x)
{
    int exponent = type->min_exponent + 1;
    if (x != 0.0 && isfinite(x))
        frexp(x, &exponent); /* |x| = m 2^exponent, m in [1/2, 1): the leading bit weighs 2^(exponent - 1) */
    exponent -= 1;
    if (exponent < type->min_exponent)
        exponent = type->min_exponent;
    return ldexp(1.0, exponent - type->mantissa);
}

double dtype_round(const dtype_info *type, double x)
{
    double ulp = dtype_ulp(type, x);
    double rounded = nearbyint(x / ulp) * ulp; /* exact but for the rounding: ulp is a power of two */
    return fabs(rounded) > type->max ? copysign(type->max, x) : rounded;
}
