/* Which verify kernel runs a window pass, and how it is launched: plain C for the host, no CUDA header needed. */
#ifndef RSSM_CUDA_VERIFY_LAUNCH_H_
#define RSSM_CUDA_VERIFY_LAUNCH_H_

#include "launch.h"
#include "verify_variants.h"

enum { RSSM_VERIFY_VARIANTS = 0 };

static inline rssm_cuda_launch rssm_verify_choose(const rssm_window *window, int sms, int64_t shared)
{
    const rssm_step *s = &window->step;
    (void)sms;
    (void)shared;
    rssm_cuda_launch l = {-1, {0, 0, 0}, RSSM_VERIFY_GENERAL_THREADS, 0};
    l.grid[0] = (uint32_t)(s->HV * ((s->V + RSSM_VERIFY_GENERAL_ROWS - 1) / RSSM_VERIFY_GENERAL_ROWS));
    l.grid[1] = (uint32_t)(s->B < 65535 ? s->B : 65535);
    l.grid[2] = (uint32_t)(((int64_t)s->B + 65534) / 65535);
    return l;
}

#endif
