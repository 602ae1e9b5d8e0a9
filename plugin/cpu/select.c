/* Which table of vector functions this machine gets. */
#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/kernels.h"
#include "rssm_model.h"

static int always(void)
{
    return 1;
}

#if defined(__x86_64__)
/* __builtin_cpu_supports knows no "f16c" with every compiler; that the system saves the registers follows from avx2. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
#define has_avx2   always
#define has_avx512 always
#endif

/* Best first. A level of another architecture has no table. */
static const struct level {
    int32_t level;
    const rssm_cpu_kernels *(*table)(void);
    int (*is_supported)(void);
} levels[] = {
    {RSSM_CPU_AVX512, rssm_cpu_avx512, has_avx512},
    {RSSM_CPU_AVX2, rssm_cpu_avx2, has_avx2},
    {RSSM_CPU_NEON, rssm_cpu_neon, always}, /* part of the architecture where its table exists */
};

/* RSSM_CPU_NEON caps nothing on its own architecture, and RSSM_CPU_AVX2 leaves scalar there. */
static int is_allowed(int32_t level, int32_t cap)
{
    if (cap == RSSM_CPU_BEST || level == cap)
        return 1;
    return level == RSSM_CPU_AVX2 && cap == RSSM_CPU_AVX512;
}

const rssm_cpu_kernels *rssm_cpu_select(int32_t cap)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        const rssm_cpu_kernels *table = levels[i].table();
        if (table && is_allowed(levels[i].level, cap) && levels[i].is_supported())
            return table;
    }
    return rssm_cpu_scalar();
}
