/* The host of README.md, compiled as it is printed; what it leaves to its reader are arguments. Compiled only: it asks for
 * 8 GiB. (Not pedantic: it casts dlsym's result as everybody does.) */
#include <replayssm.h>

#define PAGE_ARGUMENTS                                                                                            \
    int32_t rank, int32_t num_linear_layers, DLTensor slots, DLTensor rows, DLTensor qkv, DLTensor a, DLTensor b, \
        DLTensor A_log, DLTensor dt_bias, DLTensor out

int page_body(PAGE_ARGUMENTS);

#pragma GCC diagnostic ignored "-Wpedantic"
#include "readme_md.h"
