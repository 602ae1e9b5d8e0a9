/* The vector functions of one feature level (cpu/kernels.h), from the few operations of the simd_*.h included before.
 * level_*.c defines LEVEL_NAME and LEVEL_ID, includes both and has a table called `level_table`. */

#include "cpu/kernels.h"

/* Prefetching, as measured on a stream of state rows. One line in four, far ahead, into the second-level cache: it carries
 * the machine's own prefetcher over page borders, and the rest is faster left to that. Every line, or into the first
 * level, is up to a third slower: it takes the fill buffers that the loads themselves need. */
enum { PREFETCH = 16 << 10, PREFETCH_STEP = 256 }; /* bytes */
#define PREFETCH_LINE(address) __builtin_prefetch(address, 0, 2)

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)

static inline void put(float *dst, vf a)
{
    vsat none = vsat_none();
    vf_store_f32(dst, a, &none);
}

static inline void put_part(float *dst, vf a, int64_t n)
{
    float whole[LANES];
    put(whole, a);
    memcpy(dst, whole, (size_t)n * sizeof(float));
}

/* e^x to about 1 ulp for x <= 88 (beyond: as for 88); 0 below the normal numbers; NaN stays. x = n ln 2 + r with
 * |r| <= ln 2 / 2 and n * ln2_high exact; e^r by its series, whose first omitted term is 5e-9. */
static inline vf exp_of(vf x)
{
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f, least = -87.33f;
    x = vf_min(vf_set1(88.0f), x);
    vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-ln2_high), x);
    r = vf_fma(n, vf_set1(-ln2_low), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(vf_mul(p, r), r, r);
    return vf_zero_if_less(x, least, vf_scale2(vf_add(p, vf_set1(1.0f)), n));
}

/* log(1 + y) for y in 0 .. 1: 2 artanh(y / (2 + y)), whose series in z <= 1/9 has no cancellation. */
static inline vf log1p_of(vf y)
{
    vf s = vf_div(y, vf_add(y, vf_set1(2.0f)));
    vf z = vf_mul(s, s);
    vf p = vf_set1(1.0f / 15);
    p = vf_fma(p, z, vf_set1(1.0f / 13));
    p = vf_fma(p, z, vf_set1(1.0f / 11));
    p = vf_fma(p, z, vf_set1(1.0f / 9));
    p = vf_fma(p, z, vf_set1(1.0f / 7));
    p = vf_fma(p, z, vf_set1(1.0f / 5));
    p = vf_fma(p, z, vf_set1(1.0f / 3));
    vf twice = vf_add(s, s);
    return vf_fma(vf_mul(twice, z), p, twice);
}

static inline vf exp_of_minus_abs(vf x)
{
    return exp_of(vf_mul(vf_abs(x), vf_set1(-1.0f)));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|): no overflow, no loss at either end. */
static inline vf softplus_of(vf x)
{
    return vf_add(vf_max(vf_set1(0), x), log1p_of(exp_of_minus_abs(x)));
}

static inline vf sigmoid_of(vf x)
{
    vf e = exp_of_minus_abs(x);
    return vf_div(vf_if_negative(x, e, vf_set1(1.0f)), vf_add(vf_set1(1.0f), e));
}

#define KIND    f32
#define ELEMENT float
#include "cpu/level_kind.h"
#undef KIND
#undef ELEMENT
#define KIND    bf16
#define ELEMENT uint16_t
#include "cpu/level_kind.h"
#undef KIND
#define KIND fp16
#include "cpu/level_kind.h"
#undef KIND
#undef ELEMENT

static double sum_squares(const float *a, int64_t n)
{
    double part[8] = {0}; /* plain C: the compiler's vectors are good enough for twice K numbers a head */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int64_t j = 0; j < 8; j++)
            part[j] += (double)a[i + j] * (double)a[i + j];
    for (; i < n; i++)
        part[0] += (double)a[i] * (double)a[i];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    dot1_row_f32(&sum, a, n, b);
    return sum;
}

static void scale(float *dst, const float *a, float factor, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(dst + i, vf_mul(vf_load_f32(a + i), vf_set1(factor)));
    if (i < n)
        put_part(dst + i, vf_mul(load_part_f32(a + i, n - i), vf_set1(factor)), n - i);
}

static void multiply(float *dst, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(dst + i, vf_mul(vf_load_f32(a + i), vf_load_f32(b + i)));
    if (i < n)
        put_part(dst + i, vf_mul(load_part_f32(a + i, n - i), load_part_f32(b + i, n - i)), n - i);
}

static void exp_all(float *dst, const float *a, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(dst + i, exp_of(vf_load_f32(a + i)));
    if (i < n)
        put_part(dst + i, exp_of(load_part_f32(a + i, n - i)), n - i);
}

static inline vf gate_of(vf x, rssm_gate how)
{
    if (how.bound < 0)
        return vf_mul(vf_set1(how.bound), sigmoid_of(vf_mul(vf_set1(how.rate), x)));
    return vf_mul(vf_set1(-how.rate), softplus_of(x));
}

static void gate(float *g, const float *a, const float *bias, rssm_gate how, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(g + i, gate_of(vf_add(vf_load_f32(a + i), vf_load_f32(bias + i)), how));
    if (i < n) {
        vf x = vf_add(load_part_f32(a + i, n - i), load_part_f32(bias + i, n - i));
        put_part(g + i, gate_of(x, how), n - i);
    }
}

static inline vf silu_of(vf z)
{
    return vf_mul(z, sigmoid_of(z));
}

static void silu_multiply(float *x, const float *z, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        put(x + i, vf_mul(vf_load_f32(x + i), silu_of(vf_load_f32(z + i))));
    if (i < n)
        put_part(x + i, vf_mul(load_part_f32(x + i, n - i), silu_of(load_part_f32(z + i, n - i))), n - i);
}

static void convolve(float *y, const float *x, const float *weight, const float *bias, int64_t width, int64_t stride,
                     int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf sum = vf_load_f32(bias + i);
        for (int64_t k = 0; k < width; k++)
            sum = vf_fma(vf_load_f32(weight + k * stride + i), vf_load_f32(x + k * stride + i), sum);
        put(y + i, silu_of(sum));
    }
    if (i < n) {
        vf sum = load_part_f32(bias + i, n - i);
        for (int64_t k = 0; k < width; k++)
            sum = vf_fma(load_part_f32(weight + k * stride + i, n - i), load_part_f32(x + k * stride + i, n - i), sum);
        put_part(y + i, silu_of(sum), n - i);
    }
}

/* Lane by lane: d of v - u. */
static inline vf delta_of(vf v, vf u, float beta)
{
    return vf_mul(vf_set1(beta), vf_sub(v, u));
}

static void delta(float *d, float *out, const float *v, const float *u, const float *y, float beta, float kq, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf di = delta_of(vf_load_f32(v + i), vf_load_f32(u + i), beta);
        put(out + i, vf_fma(di, vf_set1(kq), vf_load_f32(y + i)));
        put(d + i, di);
    }
    if (i < n) {
        vf di = delta_of(load_part_f32(v + i, n - i), load_part_f32(u + i, n - i), beta);
        put_part(out + i, vf_fma(di, vf_set1(kq), load_part_f32(y + i, n - i)), n - i);
        put_part(d + i, di, n - i);
    }
}

static const rssm_cpu_kernels level_table = {
    .name = LEVEL_NAME,
    .level = LEVEL_ID,
    .vector = LANES,
    .load = {load_f32, load_bf16, load_fp16},
    .store = {store_f32, store_bf16, store_fp16},
    .sum_squares = sum_squares,
    .dot = dot,
    .scale = scale,
    .multiply = multiply,
    .exp = exp_all,
    .gate = gate,
    .silu_multiply = silu_multiply,
    .convolve = convolve,
    .delta = delta,
    .dot2 = {dot2_f32, dot2_bf16, dot2_fp16},
    .dot1 = {dot1_f32, dot1_bf16, dot1_fp16},
    .record = {record_f32, record_bf16, record_fp16},
    .combine2 = {combine2_f32, combine2_bf16, combine2_fp16},
    .combine1 = {combine1_f32, combine1_bf16, combine1_fp16},
    .fold = {fold_f32, fold_bf16, fold_fp16},
};
