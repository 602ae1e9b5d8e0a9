/* Rows on their way through stages of shared memory (conv.cu): some are asked for before the one at hand is computed, and what was
 * computed goes back from where it lies.
 *
 * From sm_90 on one thread asks the bulk copy engine for a whole stage, which completes on the stage's mbarrier, and gives it
 * back by the same engine. Before that, and on a host, every thread copies its 16-byte pieces, with cp.async on the way in.
 * Addresses and sizes are multiples of 16 bytes. A round of a stage: expect, load ..., asked; wait; written, __syncthreads();
 * store, stored, left.
 */
#ifndef RSSM_CUDA_CONV_STAGES_CUH_
#define RSSM_CUDA_CONV_STAGES_CUH_

#include "cuda/conv.h"
#include "dtype.cuh"

#define STAGES RSSM_CUDA_CONV_STAGES
#if __CUDA_ARCH__ >= 900
#define ONE_COPIES 1 /* thread 0 copies for all */
#else
#define ONE_COPIES 0
#endif

#if ONE_COPIES

DEVICE uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEVICE void stages_begin(uint64_t *full)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + i)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

/* What is to come; each round of a stage is told once. */
DEVICE void stage_expect(uint64_t *full, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
                 : "memory");
}

DEVICE void stage_load(uint64_t *full, unsigned char *to, const unsigned char *from, int bytes)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full))
                 : "memory");
}

DEVICE void stage_asked() {}

DEVICE void stage_wait(uint64_t *full, int phase)
{
    const uint32_t bar = shared_address(full);
    uint32_t done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(bar), "r"(phase)
                     : "memory");
    } while (!done);
}

/* What the threads wrote to a stage is there for the copy engine after this and a barrier. */
DEVICE void stage_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void stage_store(unsigned char *to, const unsigned char *from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

DEVICE void stage_stored()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until all stores but the last `N` have left their stages. */
template <int N> DEVICE void stage_left()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

#else

DEVICE void stages_begin(uint64_t *) {}
DEVICE void stage_expect(uint64_t *, int) {}

DEVICE void stage_load(uint64_t *, unsigned char *to, const unsigned char *from, int bytes)
{
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
#ifdef __CUDA_ARCH__
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to + i)),
                     "l"(from + i)
                     : "memory");
#else
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
#endif
}

/* After each row that was asked for, and where there is none left: STAGES - 1 of them are under way. */
DEVICE void stage_asked()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

DEVICE void stage_wait(uint64_t *, int)
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
#endif
    __syncthreads();
}

DEVICE void stage_written() {}

DEVICE void stage_store(unsigned char *to, const unsigned char *from, int bytes)
{
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
}

DEVICE void stage_stored() {}

template <int N> DEVICE void stage_left() {}

#endif

#endif
