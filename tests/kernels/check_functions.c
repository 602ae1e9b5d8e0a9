/* Every function of every level's table against plain double loops: all tails, unaligned addresses, guard bytes, special
 * values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"
#include "harness.h"

typedef struct subject {
    const rssm_cpu_kernels *f;
    random_state *r;
    int64_t n, rows;
} subject;

static const char *const kinds[] = {"f32", "bf16", "fp16"};

/* n floats at any address that fits a float, normal or as `make` says. */
static guarded floats(const subject *s, int64_t n, double (*make)(random_state *))
{
    guarded g = guarded_new(4 * n, 4 * random_between(s->r, 0, 15));
    for (int64_t i = 0; make && i < n; i++)
        element_set(RSSM_DTYPE_FLOAT32, g.data, i, make(s->r));
    return g;
}

static guarded elements(const subject *s, int64_t n, int32_t dtype, double (*make)(random_state *))
{
    guarded g = guarded_new(element_bytes(dtype) * n, element_bytes(dtype) * random_between(s->r, 0, 15));
    for (int64_t i = 0; make && i < n; i++)
        element_set(dtype, g.data, i, make(s->r));
    return g;
}

static float *at(const guarded *g)
{
    return (float *)(void *)g->data;
}

static double get(const guarded *g, int64_t i)
{
    return element_get(RSSM_DTYPE_FLOAT32, g->data, i);
}

/* got within `ulps` float32 ulps of exact, and `sum` of magnitudes. */
static int close_to(double got, double exact, double ulps, double sum)
{
    return fabs(got - exact) <= ulps * element_ulp(RSSM_DTYPE_FLOAT32, exact) + 8 * 0x1p-24 * sum;
}

static void finish(const char *name, int64_t bad, guarded *g, int count)
{
    int intact = 1;
    for (int i = 0; i < count; i++) {
        intact &= guarded_intact(&g[i]);
        guarded_free(&g[i]);
    }
    check(bad == 0, "%s: %lld values are wrong", name, (long long)bad);
    check(intact, "%s: wrote outside its array", name);
}

/* Every 16-bit pattern; then float32 values at, beside and far from ties, the overflow limits, NaN. */
static void check_load(const subject *s, int32_t kind)
{
    int32_t dtype = kind + 1;
    guarded g[2] = {guarded_new(65536 * element_bytes(dtype), element_bytes(dtype)), floats(s, 65536, NULL)};
    for (int32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        if (dtype == RSSM_DTYPE_FLOAT32)
            element_set(dtype, g[0].data, i, random_normal(s->r));
        else
            memcpy(g[0].data + 2 * i, &h, 2);
    }
    int64_t bad = 0;
    s->f->load[kind](at(&g[1]), g[0].data, 65536);
    for (int64_t i = 0; i < 65536; i++) {
        double exact = element_get(dtype, g[0].data, i), got = get(&g[1], i);
        bad += isnan(exact) ? !isnan(got) : got != exact || signbit(got) != signbit(exact);
    }
    finish("load", bad, g, 2);
}

static double any_float(random_state *r)
{
    uint32_t u = (uint32_t)random_next(r);
    if (random_between(r, 0, 2)) /* a tie of bf16 or fp16, or a neighbour of one */
        u = (u & (random_between(r, 0, 1) ? 0xffff8000u : 0xfffff000u)) + (uint32_t)random_between(r, 0, 2) - 1;
    if (random_between(r, 0, 1)) /* exponents where fp16 lives */
        u = (u & 0x807fffffu) | (uint32_t)random_between(r, 127 - 27, 127 + 17) << 23;
    float x;
    memcpy(&x, &u, 4);
    return (double)x;
}

static int is_overflow(int32_t dtype, double x)
{
    double limit = dtype == RSSM_DTYPE_FLOAT16 ? 65520 : 0x1.ffp127;
    return dtype != RSSM_DTYPE_FLOAT32 && fabs(x) >= limit;
}

static int stored_right(int32_t dtype, double x, double got)
{
    if (isnan(x))
        return isnan(got);
    if (is_overflow(dtype, x))
        return got == copysign(dtype == RSSM_DTYPE_FLOAT16 ? 65504 : 0x1.fep127, x);
    return got == element_round(dtype, x) && signbit(got) == signbit(x);
}

static void check_store(const subject *s, int32_t kind)
{
    static const double special[] = {0,
                                     -0.0,
                                     (double)INFINITY,
                                     -(double)INFINITY,
                                     (double)NAN,
                                     65504,
                                     65519,
                                     65519.99609375,
                                     65520,
                                     -65520,
                                     0x1.fep127,
                                     0x1.ff0p127,
                                     -0x1.ff0p127,
                                     0x1.fefffep127,
                                     0x1p-24,
                                     0x1p-25,
                                     0x1.000002p-25,
                                     0x1p-149};
    int32_t dtype = kind + 1;
    guarded g[2] = {floats(s, s->n, NULL), elements(s, s->n, dtype, NULL)};
    int64_t bad = 0;
    uint32_t overflow = 0;
    for (int64_t i = 0; i < s->n; i++) {
        double x = random_between(s->r, 0, 7) ? any_float(s->r)
                                              : special[random_between(s->r, 0, (int64_t)(sizeof special / 8) - 1)];
        float f = (float)x;
        if (s->n % 2 && is_overflow(dtype, x)) /* half of the lengths: nothing overflows, so the answer must be 0 */
            f = 1;
        memcpy(g[0].data + 4 * i, &f, 4);
        overflow |= (uint32_t)is_overflow(dtype, (double)f);
    }
    uint32_t said = s->f->store[kind](g[1].data, at(&g[0]), s->n);
    for (int64_t i = 0; i < s->n; i++)
        bad += !stored_right(dtype, get(&g[0], i), element_get(dtype, g[1].data, i));
    check((said != 0) == overflow, "store %s: said %u, overflow %u", kinds[kind], (unsigned)said, (unsigned)overflow);
    finish("store", bad, g, 2);
}

static double exponent_argument(random_state *r)
{
    static const double special[] = {0, -0.0, -87.2, -103.9, -104.1, -200, -1e30, 88, -(double)INFINITY, 1e-30, -1e-8};
    if (random_between(r, 0, 15) == 0)
        return special[random_between(r, 0, 10)];
    return random_between(r, 0, 1) ? -20 * random_unit(r) : -104 + 192 * random_unit(r);
}

static void check_exp(const subject *s)
{
    guarded g[2] = {floats(s, s->n, exponent_argument), floats(s, s->n, NULL)};
    int64_t bad = 0;
    double most = 0;
    s->f->exp(at(&g[1]), at(&g[0]), s->n);
    for (int64_t i = 0; i < s->n; i++) {
        double exact = exp(get(&g[0], i)), got = get(&g[1], i);
        if (exact < 0x1p-125) { /* subnormal numbers may be 0 */
            bad += !(got >= 0 && got < 0x1p-124);
            continue;
        }
        double ulps = fabs(got - exact) / element_ulp(RSSM_DTYPE_FLOAT32, exact);
        most = ulps > most ? ulps : most;
        bad += !(ulps <= 2);
    }
    worst("exp, ulps", most, 2);
    finish("exp", bad, g, 2);
    float nan = NAN, got = 0;
    s->f->exp(&got, &nan, 1);
    check(isnan(got), "exp of NaN");
}

static double gate_argument(random_state *r)
{
    return random_between(r, 0, 3) ? 3 * random_normal(r) : 100 * random_normal(r);
}

static void check_gate(const subject *s)
{
    rssm_gate how = {.rate = (float)exp(random_normal(s->r)), .bound = random_between(s->r, 0, 1) ? -5.0f : 0};
    guarded g[3] = {floats(s, s->n, gate_argument), floats(s, s->n, random_normal), floats(s, s->n, NULL)};
    int64_t bad = 0;
    double most = 0;
    s->f->gate(at(&g[2]), at(&g[0]), at(&g[1]), how, s->n);
    for (int64_t i = 0; i < s->n; i++) {
        double x = (double)((float)get(&g[0], i) + (float)get(&g[1], i)); /* the sum itself is float32 */
        double softplus = x > 20 ? x : log1p(exp(x)), t = (double)how.rate * x;
        double exact = how.bound < 0 ? (double)how.bound / (1 + exp(-t)) : -(double)how.rate * softplus;
        double got = get(&g[2], i), error = fabs(got - exact) / (fabs(exact) + 1e-37);
        /* rate * x is rounded before the sigmoid: at -t = 80 that costs 80 half ulps */
        double limit = how.bound < 0 ? 4e-7 + (t < 0 ? -t * 0x1p-23 : 0) : 5e-7;
        if (fabs(exact) < 1e-36)
            continue;
        most = how.bound < 0 ? most : fmax(most, error);
        bad += !(error <= limit);
    }
    worst("softplus gate, relative", most, 5e-7);
    finish("gate", bad, g, 3);
}

static void check_silu(const subject *s)
{
    guarded g[3] = {floats(s, s->n, random_normal), floats(s, s->n, gate_argument), floats(s, s->n, NULL)};
    memcpy(g[2].data, g[0].data, (size_t)(4 * s->n));
    int64_t bad = 0;
    s->f->silu_multiply(at(&g[2]), at(&g[1]), s->n);
    for (int64_t i = 0; i < s->n; i++) {
        double z = get(&g[1], i), exact = get(&g[0], i) * z / (1 + exp(-z));
        bad += !(fabs(get(&g[2], i) - exact) <= 1e-6 * fabs(exact) + 1e-35); /* sigmoid of z < -87.3 is 0 */
    }
    finish("silu_multiply", bad, g, 3);
}

static void check_convolve(const subject *s)
{
    int64_t width = random_between(s->r, 1, 6), stride = s->n + random_between(s->r, 0, 3);
    guarded g[4] = {floats(s, (width - 1) * stride + s->n, random_normal),
                    floats(s, (width - 1) * stride + s->n, random_normal), floats(s, s->n, random_normal),
                    floats(s, s->n, NULL)};
    int64_t bad = 0;
    s->f->convolve(at(&g[3]), at(&g[0]), at(&g[1]), at(&g[2]), width, stride, s->n);
    for (int64_t i = 0; i < s->n; i++) {
        double sum = get(&g[2], i), size = fabs(sum);
        for (int64_t k = 0; k < width; k++) {
            sum += get(&g[0], k * stride + i) * get(&g[1], k * stride + i);
            size += fabs(get(&g[0], k * stride + i) * get(&g[1], k * stride + i));
        }
        bad += !close_to(get(&g[3], i), sum / (1 + exp(-sum)), 4, size);
    }
    finish("convolve", bad, g, 4);
}

/* sum_squares, dot, scale, multiply, delta. */
static void check_elementwise(const subject *s)
{
    guarded g[5] = {floats(s, s->n, random_normal), floats(s, s->n, random_normal), floats(s, s->n, random_normal),
                    floats(s, s->n, NULL), floats(s, s->n, NULL)};
    double dot = 0, squares = 0, size = 0;
    for (int64_t i = 0; i < s->n; i++) {
        dot += get(&g[0], i) * get(&g[1], i);
        size += fabs(get(&g[0], i) * get(&g[1], i));
        squares += get(&g[0], i) * get(&g[0], i);
    }
    check(close_to((double)s->f->dot(at(&g[0]), at(&g[1]), s->n), dot, 1, size), "dot");
    check(fabs(s->f->sum_squares(at(&g[0]), s->n) - squares) <= 1e-14 * squares, "sum_squares");
    int64_t bad = 0;
    s->f->scale(at(&g[3]), at(&g[0]), 0.7f, s->n);
    for (int64_t i = 0; i < s->n; i++)
        bad += get(&g[3], i) != (double)((float)get(&g[0], i) * 0.7f);
    s->f->multiply(at(&g[3]), at(&g[0]), at(&g[1]), s->n);
    for (int64_t i = 0; i < s->n; i++)
        bad += get(&g[3], i) != (double)((float)get(&g[0], i) * (float)get(&g[1], i));
    s->f->delta(at(&g[3]), at(&g[4]), at(&g[0]), at(&g[1]), at(&g[2]), 0.3f, -1.5f, s->n);
    for (int64_t i = 0; i < s->n; i++) {
        double d = (double)0.3f * (get(&g[0], i) - get(&g[1], i));
        double sizes = fabs(get(&g[0], i)) + fabs(get(&g[1], i)) + fabs(get(&g[2], i));
        bad += !close_to(get(&g[3], i), d, 1, sizes) || !close_to(get(&g[4], i), get(&g[2], i) - 1.5 * d, 1, sizes);
    }
    finish("scale, multiply, delta", bad, g, 5);
}

static void check_dots(const subject *s, int32_t kind)
{
    int32_t dtype = kind + 1;
    guarded g[6] = {elements(s, s->rows * s->n, dtype, random_normal),
                    floats(s, s->n, random_normal),
                    floats(s, s->n, random_normal),
                    floats(s, s->rows, NULL),
                    floats(s, s->rows, NULL),
                    floats(s, s->rows, NULL)};
    int64_t bad = 0;
    for (int64_t r = 0; r < s->rows; r++)
        at(&g[3])[r] = at(&g[4])[r] = at(&g[5])[r] = (float)r;
    s->f->dot2[kind](at(&g[3]), at(&g[4]), g[0].data, s->rows, s->n, at(&g[1]), at(&g[2]));
    s->f->dot1[kind](at(&g[5]), g[0].data, s->rows, s->n, at(&g[1]));
    for (int64_t r = 0; r < s->rows; r++) {
        double x = (double)r, z = x, size = x;
        for (int64_t i = 0; i < s->n; i++) {
            double m = element_get(dtype, g[0].data, r * s->n + i);
            x += m * get(&g[1], i);
            z += m * get(&g[2], i);
            size += fabs(m) * (fabs(get(&g[1], i)) + fabs(get(&g[2], i)));
        }
        bad += !close_to(get(&g[3], r), x, 1, size) || !close_to(get(&g[4], r), z, 1, size) ||
               !close_to(get(&g[5], r), x, 1, size);
    }
    finish("dot2, dot1", bad, g, 6);
}

static double small_gate(random_state *r)
{
    return -2 * random_unit(r);
}

static void check_record(const subject *s, int32_t kind)
{
    int32_t dtype = kind + 1;
    guarded g[6] = {
        elements(s, s->n, dtype, random_normal), floats(s, s->n, small_gate),    floats(s, s->n, small_gate),
        floats(s, s->n, random_normal),          floats(s, s->n, random_normal), floats(s, s->n, NULL)};
    double *suffix = malloc((size_t)s->n * sizeof(double)), x = 0, z = 0, size = 0;
    for (int64_t i = 0; suffix && i < s->n; i++)
        suffix[i] = get(&g[2], i);
    float dots[2];
    int64_t bad = 0;
    s->f->record[kind](at(&g[5]), dots, g[0].data, at(&g[1]), at(&g[2]), at(&g[3]), at(&g[4]), s->n, g[0].data);
    for (int64_t i = 0; suffix && i < s->n; i++) {
        double w = element_get(dtype, g[0].data, i) * exp(suffix[i]);
        x += w * get(&g[3], i);
        z += w * get(&g[4], i);
        size += fabs(w) * (fabs(get(&g[3], i)) + fabs(get(&g[4], i)));
        bad += !close_to(get(&g[5], i), w, 3, 0);
        bad += get(&g[2], i) != (double)((float)suffix[i] + (float)get(&g[1], i));
    }
    bad += !close_to((double)dots[0], x, 1, size) || !close_to((double)dots[1], z, 1, size);
    free(suffix);
    finish("record", bad, g, 6);
}

static void check_combine(const subject *s, int32_t kind)
{
    int32_t dtype = kind + 1;
    guarded g[6] = {elements(s, s->rows * s->n, dtype, random_normal),
                    floats(s, s->rows, random_normal),
                    floats(s, s->rows, random_normal),
                    floats(s, s->n, NULL),
                    floats(s, s->n, NULL),
                    floats(s, s->n, NULL)};
    int64_t bad = 0;
    for (int64_t i = 0; i < s->n; i++)
        at(&g[3])[i] = at(&g[4])[i] = at(&g[5])[i] = (float)i / 100;
    s->f->combine2[kind](at(&g[3]), at(&g[4]), g[0].data, s->rows, s->n, at(&g[1]), at(&g[2]));
    s->f->combine1[kind](at(&g[5]), g[0].data, s->rows, s->n, at(&g[1]));
    for (int64_t i = 0; i < s->n; i++) {
        double y = (double)((float)i / 100), u = y, size = y;
        for (int64_t j = 0; j < s->rows; j++) {
            double d = element_get(dtype, g[0].data, j * s->n + i);
            y += d * get(&g[1], j);
            u += d * get(&g[2], j);
            size += fabs(d) * (fabs(get(&g[1], j)) + fabs(get(&g[2], j)));
        }
        bad += !close_to(get(&g[3], i), y, 1, size) || !close_to(get(&g[4], i), u, 1, size) ||
               !close_to(get(&g[5], i), y, 1, size);
    }
    finish("combine2, combine1", bad, g, 6);
}

static void check_fold(const subject *s, int32_t kind)
{
    int32_t dtype = kind + 1;
    int64_t terms = random_between(s->r, 1, 9), d_row = s->rows + 3, k_row = s->n + 5;
    guarded g[4] = {elements(s, s->rows * s->n, dtype, random_normal), floats(s, s->n, random_unit),
                    floats(s, terms * d_row, random_normal), floats(s, terms * k_row, random_normal)};
    guarded before = guarded_new(g[0].bytes, 0);
    memcpy(before.data, g[0].data, (size_t)g[0].bytes);
    rssm_fold fold = {
        .decay = at(&g[1]), .d = at(&g[2]), .k = at(&g[3]), .d_row = d_row, .k_row = k_row, .terms = terms};
    int64_t bad = 0;
    check(s->f->fold[kind](g[0].data, s->rows, s->n, &fold) == 0, "fold: overflow reported");
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t i = 0; i < s->n; i++) {
            double exact = element_get(dtype, before.data, r * s->n + i) * get(&g[1], i), size = fabs(exact);
            for (int64_t j = 0; j < terms; j++) {
                double term = get(&g[2], j * d_row + r) * get(&g[3], j * k_row + i);
                exact += term;
                size += fabs(term);
            }
            double got = element_get(dtype, g[0].data, r * s->n + i);
            bad += !(fabs(got - exact) <= 0.51 * element_ulp(dtype, exact) + 8 * 0x1p-24 * size);
        }
    guarded_free(&before);
    finish("fold", bad, g, 4);
}

static void check_level(const rssm_cpu_kernels *f, random_state *r, int64_t n)
{
    subject s = {.f = f, .r = r, .n = n, .rows = random_between(r, 1, 9)};
    check_context("%s n=%lld rows=%lld", f->name, (long long)n, (long long)s.rows);
    check_exp(&s);
    check_gate(&s);
    check_silu(&s);
    check_convolve(&s);
    check_elementwise(&s);
    for (int32_t kind = 0; kind < RSSM_KIND_COUNT; kind++) {
        check_store(&s, kind);
        check_dots(&s, kind);
        check_record(&s, kind);
        check_combine(&s, kind);
        check_fold(&s, kind);
    }
}

void check_functions(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    int32_t count = available_levels(levels);
    random_state r = {options->seed};
    for (int32_t i = 1; i < count; i++) { /* 0 is the reference, which has no table */
        const rssm_cpu_kernels *f = rssm_cpu_select(levels[i].cpu_level);
        subject s = {.f = f, .r = &r};
        for (int32_t kind = 0; kind < RSSM_KIND_COUNT; kind++) {
            check_context("%s", f->name);
            check_load(&s, kind);
        }
        int32_t rounds = options->is_long ? 20 : 1;
        for (int64_t n = 1; n <= 257 * rounds; n++)
            check_level(f, &r, (n - 1) % 257 + 1);
    }
}
