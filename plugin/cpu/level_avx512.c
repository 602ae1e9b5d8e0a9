/* Flags on x86-64: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c.
 * Nothing of this file runs on a machine without them (cpu/select.c asks), so nothing in it may be shared with other
 * files: all helpers are static. */
#if defined(__x86_64__)
#include "cpu/simd_avx512.h"

#include "rssm_model.h"

#define LEVEL_NAME "avx512"
#define LEVEL_ID   RSSM_CPU_AVX512
#include "cpu/level_template.h"

const rssm_cpu_kernels *rssm_cpu_avx512(void)
{
    return &level_table;
}
#else
#include <stddef.h>

#include "cpu/kernels.h"

const rssm_cpu_kernels *rssm_cpu_avx512(void)
{
    return NULL;
}
#endif
