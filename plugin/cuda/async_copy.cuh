/* A warp's slice of the state, from global into shared memory, without passing through registers.
 *
 * From sm_90 on one lane asks the bulk copy engine for the whole slice, which completes on an mbarrier; before that
 * every lane copies its 16-byte pieces with cp.async. Either way the warp alone waits for its slice: no other warp is
 * held up. Source, destination and size are multiples of 16 bytes.
 */
#ifndef RSSM_CUDA_ASYNC_COPY_CUH_
#define RSSM_CUDA_ASYNC_COPY_CUH_

#include "dtype.cuh"

DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if __CUDA_ARCH__ >= 900

/* Before slice_load(), and ahead of it: what is to come. */
DEVICE void slice_expect(uint32_t bytes, uint64_t *bar, int lane)
{
    if (lane == 0) {
        const uint32_t b = shared_address(bar);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp(); /* for racecheck: it takes the two accesses for different lanes' */
    if (lane == 0) {
        const uint32_t b = shared_address(bar);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
    }
}

DEVICE void slice_load(void *dst, const void *src, uint32_t bytes, uint64_t *bar, int lane)
{
    if (lane == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(dst)),
                     "l"(src), "r"(bytes), "r"(shared_address(bar))
                     : "memory");
    __syncwarp();
}

DEVICE void slice_wait(uint64_t *bar)
{
    const uint32_t b = shared_address(bar);
    uint32_t done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(b)
                     : "memory");
    } while (!done);
}

#else

DEVICE void slice_expect(uint32_t, uint64_t *, int) {}

DEVICE void slice_load(void *dst, const void *src, uint32_t bytes, uint64_t *, int lane)
{
    for (uint32_t at = (uint32_t)lane * 16; at < bytes; at += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address((char *)dst + at)),
                     "l"((const char *)src + at)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

DEVICE void slice_wait(uint64_t *)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

#endif

#endif
