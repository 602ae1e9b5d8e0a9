/* AArch64 only, where NEON is part of the architecture. Flags: none. */
#if defined(__aarch64__)
#include "cpu/simd_neon.h"

#include "rssm_model.h"

#define LEVEL_NAME "neon"
#define LEVEL_ID   RSSM_CPU_NEON
#include "cpu/level_template.h"

const rssm_cpu_kernels *rssm_cpu_neon(void)
{
    return &level_table;
}
#else
#include <stddef.h>

#include "cpu/kernels.h"

const rssm_cpu_kernels *rssm_cpu_neon(void)
{
    return NULL;
}
#endif
