/* Every verify kernel, as data: C11 for the host, and the list from which the .cu files are instantiated. */
#ifndef RSSM_CUDA_VERIFY_VARIANTS_H_
#define RSSM_CUDA_VERIFY_VARIANTS_H_

#include "core/step.h"

#define RSSM_VERIFY_MAX_T           16 /* tokens of a window */
#define RSSM_VERIFY_GENERAL_ROWS    32 /* state rows per block of the general kernel */
#define RSSM_VERIFY_GENERAL_THREADS 128

#endif
