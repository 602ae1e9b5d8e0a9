/* Window passes on the host's side: verify_begin, verify, commit. */
#include "core/error.h"
#include "cuda/instance.h"
#include "cuda/verify_launch.h"

static rssm_cuda_launch one_thread_per_row(int32_t B)
{
    return (rssm_cuda_launch){.grid = {((uint32_t)B + 255) / 256, 1, 1}, .threads = 256};
}

rssm_status rssm_cuda_verify_begin(void *ctx, const rssm_verify_begin *begin, void *stream, rssm_error *err)
{
    const rssm_cuda_launch how = one_thread_per_row(begin->B);
    return rssm_cuda_run(ctx, RSSM_KERNEL_VERIFY_BEGIN, &how, begin, stream, "launching verify_begin", err);
}

rssm_status rssm_cuda_commit(void *ctx, const rssm_commit *commit, void *stream, rssm_error *err)
{
    const rssm_cuda_launch how = one_thread_per_row(commit->B);
    return rssm_cuda_run(ctx, RSSM_KERNEL_VERIFY_COMMIT, &how, commit, stream, "launching commit", err);
}

rssm_status rssm_cuda_verify(void *ctx, const rssm_window *window, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const rssm_cuda_launch how = rssm_verify_choose(window, cuda->multiprocessors, cuda->shared_bytes);
    int kernel = how.variant < 0 ? RSSM_KERNEL_VERIFY_GENERAL : RSSM_KERNEL_VERIFY_TUNED + how.variant;
    if (!cuda->functions[kernel])
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                         "the kernel of this pass needs %u bytes of shared memory; the device has %d per block",
                         how.smem, cuda->shared_bytes);
    return rssm_cuda_run(cuda, kernel, &how, window, stream, "launching verify", err);
}
