/* The level every machine has. Flags: none. */
#include "cpu/simd_generic.h"

#include "rssm_model.h"

#define LEVEL_NAME "scalar"
#define LEVEL_ID   RSSM_CPU_SCALAR
#include "cpu/level_template.h"

const rssm_cpu_kernels *rssm_cpu_scalar(void)
{
    return &level_table;
}
