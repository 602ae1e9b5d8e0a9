/* A build without CUDA: init with a CUDA device is refused. */
#include <stddef.h>

#include "core/backend.h"

const rssm_backend *rssm_cuda_backend(void)
{
    return NULL;
}
