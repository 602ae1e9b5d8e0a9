#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

int64_t checks_passed, checks_failed;
static char context[512];

uint64_t random_next(random_state *r)
{
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_between(random_state *r, int64_t low, int64_t high)
{
    return low + (int64_t)(random_next(r) % (uint64_t)(high - low + 1));
}

double random_unit(random_state *r)
{
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

double random_normal(random_state *r)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_unit(r);
    return sum;
}

int64_t random_dim(random_state *r)
{
    static const int64_t edges[] = {1,  2,  3,  5,  7,  8,  9,   13,  15,  16,  17,  23,  31,  32,  33, 47,
                                    61, 63, 64, 65, 96, 97, 127, 128, 129, 191, 192, 193, 251, 256, 257};
    if (random_between(r, 0, 3) == 0)
        return random_between(r, 1, 257);
    return edges[random_between(r, 0, (int64_t)(sizeof edges / sizeof edges[0]) - 1)];
}

enum { GUARD = 128 };
static const unsigned char guard_byte = 0xa5;

guarded guarded_new(int64_t bytes, int64_t misalign)
{
    guarded g = {.bytes = bytes};
    int64_t total = (bytes + misalign + 2 * GUARD + 63) / 64 * 64;
    g.raw = aligned_alloc(64, (size_t)total);
    if (!g.raw) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    memset(g.raw, guard_byte, (size_t)total);
    g.data = g.raw + GUARD + misalign;
    memset(g.data, 0xff, (size_t)bytes);
    return g;
}

int guarded_intact(const guarded *g)
{
    for (const char *p = g->raw; p < g->data; p++)
        if ((unsigned char)*p != guard_byte)
            return 0;
    for (int64_t i = 0; i < GUARD; i++)
        if ((unsigned char)g->data[g->bytes + i] != guard_byte)
            return 0;
    return 1;
}

void guarded_free(guarded *g)
{
    free(g->raw);
    *g = (guarded){0};
}

/* Significant bits, lowest exponent of a normal number, largest number. */
static const struct format {
    int bits, min_exponent;
    double max;
    const char *name;
} formats[] = {[RSSM_DTYPE_FLOAT32] = {24, -126, 0x1.fffffep127, "float32"},
               [RSSM_DTYPE_BFLOAT16] = {8, -126, 0x1.fep127, "bfloat16"},
               [RSSM_DTYPE_FLOAT16] = {11, -14, 65504, "float16"}};

int64_t element_bytes(int32_t dtype)
{
    return dtype == RSSM_DTYPE_FLOAT32 ? 4 : 2;
}

const char *element_name(int32_t dtype)
{
    return formats[dtype].name;
}

double element_ulp(int32_t dtype, double x)
{
    int exponent = formats[dtype].min_exponent;
    if (x != 0 && isfinite(x) && ilogb(x) > exponent)
        exponent = ilogb(x);
    return ldexp(1, exponent - formats[dtype].bits + 1);
}

double element_round(int32_t dtype, double x)
{
    if (!isfinite(x))
        return x;
    double ulp = element_ulp(dtype, x);
    double rounded = nearbyint(x / ulp) * ulp;
    return fabs(rounded) > formats[dtype].max ? copysign(formats[dtype].max, x) : rounded;
}

double distance_to_tie(int32_t dtype, double x)
{
    double ulp = element_ulp(dtype, x);
    double part = fabs(x) / ulp - floor(fabs(x) / ulp);
    return fabs(part - 0.5) * ulp;
}

double element_get(int32_t dtype, const void *data, int64_t index)
{
    if (dtype == RSSM_DTYPE_FLOAT32) {
        float x;
        memcpy(&x, (const char *)data + 4 * index, 4);
        return (double)x;
    }
    uint16_t h;
    memcpy(&h, (const char *)data + 2 * index, 2);
    int mantissa_bits = formats[dtype].bits - 1;
    int exponent = (h & 0x7fff) >> mantissa_bits, mantissa = h & ((1 << mantissa_bits) - 1);
    int largest = (1 << (15 - mantissa_bits)) - 1;
    double sign = h & 0x8000 ? -1 : 1;
    if (exponent == largest)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, formats[dtype].min_exponent - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - 1 + formats[dtype].min_exponent - mantissa_bits);
}

void element_set(int32_t dtype, void *data, int64_t index, double x)
{
    x = element_round(dtype, x);
    float f = (float)x; /* exact: every value of the three types is a float32 */
    uint32_t u;
    memcpy(&u, &f, 4);
    if (dtype == RSSM_DTYPE_FLOAT32) {
        memcpy((char *)data + 4 * index, &f, 4);
        return;
    }
    uint16_t h = (uint16_t)(u >> 16);
    if (dtype == RSSM_DTYPE_FLOAT16) {
        double magnitude = fabs(x);
        int exponent = magnitude >= 0x1p-14 ? ilogb(magnitude) : -15;
        double unit = ldexp(1, exponent > -15 ? exponent - 10 : -24);
        int mantissa = (int)(magnitude / unit) & 0x3ff;
        h = (uint16_t)((signbit(x) ? 0x8000 : 0) | (exponent > -15 ? (exponent + 15) << 10 : 0) | mantissa);
    }
    memcpy((char *)data + 2 * index, &h, 2);
}

void check_context(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
}

int check(int ok, const char *format, ...)
{
    if (ok) {
        checks_passed++;
        return 1;
    }
    checks_failed++;
    if (checks_failed > 40)
        return 0;
    va_list args;
    va_start(args, format);
    printf("FAIL [%s] ", context);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return 0;
}

enum { MAX_FIGURES = 64 };
static struct figure {
    const char *name;
    double value, limit;
} figures[MAX_FIGURES];

void worst(const char *name, double value, double limit)
{
    for (int i = 0; i < MAX_FIGURES; i++) {
        if (figures[i].name && strcmp(figures[i].name, name) != 0)
            continue;
        if (!figures[i].name || value > figures[i].value)
            figures[i] = (struct figure){name, value, limit};
        return;
    }
}

void worst_print(void)
{
    for (int i = 0; i < MAX_FIGURES && figures[i].name; i++)
        printf("worst %-44s %.3g (limit %.3g)\n", figures[i].name, figures[i].value, figures[i].limit);
}

int32_t available_levels(level_under_test levels[MAX_LEVELS])
{
    static const level_under_test all[] = {{"reference", RSSM_CPU_BEST, 1},
                                           {"scalar", RSSM_CPU_SCALAR, 0},
                                           {"avx2", RSSM_CPU_AVX2, 0},
                                           {"avx512", RSSM_CPU_AVX512, 0},
                                           {"neon", RSSM_CPU_NEON, 0}};
    int32_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(rssm_cpu_level_name(all[i].cpu_level, all[i].is_reference), all[i].name) == 0)
            levels[n++] = all[i];
    return n;
}

void *open_level(const level_under_test *level, int32_t threads)
{
    static rssm_allocator mem;
    mem = rssm_mem_default();
    rssm_backend_options options = {.mem = &mem,
                                    .num_threads = threads,
                                    .cpu_level = level->cpu_level,
                                    .cpu_reference = level->is_reference,
                                    .max_K = 512,
                                    .max_V = 512,
                                    .max_L = 64,
                                    .max_T = TEST_T,
                                    .conv_width = TEST_WIDTH};
    rssm_error err = {.struct_size = sizeof err};
    void *ctx = NULL;
    if (rssm_cpu_backend()->open(&options, &ctx, &err) != RSSM_OK) {
        fprintf(stderr, "open %s: %s\n", level->name, err.message);
        exit(2);
    }
    return ctx;
}
