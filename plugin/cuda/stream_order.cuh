/* Programmatic dependent launch: a kernel is started while those before it in its stream still end, so that its launch is
 * not waited for (cuda.c asks for it, on sm_90 and later; elsewhere nothing here does anything).
 *
 * Every kernel of this plugin therefore waits before it touches memory that another kernel may write, in every thread, whatever
 * way it then takes: only a kernel that has waited can be relied on by the next one. Its arguments it may read before;
 * and, for hints alone, what is said at peek_before_wait() and ask_into_l2() (tests/gpu/kernels_wait.py knows which kernels do). */
#ifndef RSSM_CUDA_STREAM_ORDER_CUH_
#define RSSM_CUDA_STREAM_ORDER_CUH_

#include "dtype.cuh"

/* Until all kernels before this one have ended and what they wrote is visible. */
DEVICE void wait_for_predecessors()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* A word as it is now, while another kernel may be writing it: for a hint, to be used as if a stranger had sent it. No cache of this
 * multiprocessor keeps it. */
DEVICE int32_t peek_before_wait(const int32_t *p)
{
    int32_t x;
    asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

DEVICE int64_t peek_before_wait(const int64_t *p)
{
    int64_t x;
    asm volatile("ld.volatile.global.s64 %0, [%1];" : "=l"(x) : "l"(p));
    return x;
}

/* A fetch that nothing waits for and that changes nothing: the L2 cache is the one place where all see the same bytes. Memory that
 * the launch may read; 16-byte units. */
DEVICE void ask_into_l2(const void *p, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes));
}

/* The same for what lies around one byte. */
DEVICE void ask_line_into_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}
#endif

/* The next kernel may start once all blocks of this one have come here, or ended; its blocks then wait beside these. To be called
 * after the wait only, so that no more than two kernels of a stream are there at once. */
DEVICE void let_successors_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

/* For blocks that fill their multiprocessor. Where all of a grid is resident but little room is left, the next grid's blocks
 * come to lie unevenly: its last multiprocessor ends late (measured on an H200: up to 33 % slower). Of a grid of several waves
 * only the last one is there when they come, and a grid of one block per multiprocessor leaves room everywhere. */
DEVICE void let_successors_start_beside_tiles()
{
#ifdef __CUDA_ARCH__
    uint32_t multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
    const uint32_t blocks = gridDim.x * gridDim.y * gridDim.z;
    if (blocks <= multiprocessors || blocks >= 7 * multiprocessors)
        let_successors_start();
#endif
}

#endif
