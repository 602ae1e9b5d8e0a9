/* A block of threads, for kernels whose threads meet: they run in turns, from shuffle to shuffle, or to a barrier. To be included
 * before the .cu file. */
#ifndef RSSM_TESTS_GPU_BLOCK_H_
#define RSSM_TESTS_GPU_BLOCK_H_

#include "gpu/on_host.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#undef __noinline__
#define __noinline__
#undef __shared__
#define __shared__ static /* blocks run one after the other */

enum { LANES = 32, MOST_THREADS = 256, STACK = 1 << 17 };

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static ucontext_t scheduler, threads[MOST_THREADS];
static char stacks[MOST_THREADS][STACK];
static bool done[MOST_THREADS];
static unsigned now, block_threads, meetings[MOST_THREADS];
static uint64_t handed[2][MOST_THREADS]; /* a lane may be one meeting ahead of another */
static unsigned arrived;                 /* at barriers, all threads together */
static void (*work)(const void *);
static const void *work_args;

static void give_way()
{
    swapcontext(&threads[now], &scheduler);
}

/* The thread of my warp that is this lane. */
static unsigned fellow(int lane)
{
    return now / LANES * LANES + (lane & (LANES - 1));
}

#define __shfl_sync shuffle
template <class T> static T shuffle(unsigned, T value, int from)
{
    static_assert(sizeof value <= sizeof handed[0][0], "room");
    const unsigned turn = meetings[now]++ & 1;
    memcpy(&handed[turn][now], &value, sizeof value);
    give_way();
    memcpy(&value, &handed[turn][fellow(from)], sizeof value);
    return value;
}

template <class T> static T __shfl_xor_sync(unsigned all, T value, int bits)
{
    return __shfl_sync(all, value, (int)(now % LANES) ^ bits);
}

#define __syncthreads barrier
static void barrier()
{
    const unsigned all = (arrived++ / block_threads + 1) * block_threads;
    while (arrived < all)
        give_way();
}

#define __syncwarp meet
static void meet()
{
    meetings[now]++;
    give_way();
}

static int votes[MOST_THREADS];

static int __syncthreads_or(int mine)
{
    votes[now] = mine;
    barrier();
    int any = 0;
    for (unsigned i = 0; i < block_threads; i++)
        any |= votes[i];
    barrier();
    return any;
}

/* Beyond the last lane: one's own. */
template <class T> static T __shfl_down_sync(unsigned all, T value, unsigned n)
{
    return __shfl_sync(all, value, (int)(now % LANES + (now % LANES + n < LANES ? n : 0)));
}

/* mma.cuh's product of 16 x 16 and 16 x 8 bfloat16. */
#define RSSM_CUDA_MMA_CUH_
static uint32_t operands[2][MOST_THREADS][6]; /* a0 .. a3, b0, b1 */

static float half_of(uint32_t pair, int high)
{
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

static void mma_bf16(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    const unsigned turn = meetings[now]++ & 1, g = now % LANES / 4, t = now % 4;
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(operands[turn][now], mine, sizeof mine);
    give_way();
    for (unsigned i = 0; i < 4; i++)
        for (unsigned depth = 0; depth < 16; depth++) {
            const uint32_t *const a = operands[turn][fellow(g * 4 + depth % 8 / 2)];
            const uint32_t *const b = operands[turn][fellow((2 * t + i % 2) * 4 + depth % 8 / 2)];
            d[i] += half_of(a[i / 2 + depth / 8 * 2], depth % 2) * half_of(b[4 + depth / 8], depth % 2);
        }
}

/* mma.cuh's ldmatrix: lane 8 m + i says where row i of matrix m is. */
static void load_transposed(uint32_t *b, const uint16_t *row)
{
    const unsigned g = now % LANES / 4, t = now % 4;
    for (unsigned m = 0; m < 4; m++) {
        const uint16_t *const first = __shfl_sync(0, row, (int)(8 * m + 2 * t));
        const uint16_t *const second = __shfl_sync(0, row, (int)(8 * m + 2 * t + 1));
        b[m] = first[g] | (uint32_t)second[g] << 16;
    }
}

static void thread_main()
{
    work(work_args);
    done[now] = true;
    give_way();
}

static void run_block(unsigned count)
{
    block_threads = count;
    arrived = 0;
    for (unsigned i = 0; i < count; i++) {
        done[i] = false;
        meetings[i] = 0;
        getcontext(&threads[i]);
        threads[i].uc_stack.ss_sp = stacks[i];
        threads[i].uc_stack.ss_size = STACK;
        makecontext(&threads[i], thread_main, 0);
    }
    for (unsigned left = count; left > 0;)
        for (now = 0; now < count; now++) {
            if (done[now])
                continue;
            threadIdx.x = now;
            swapcontext(&scheduler, &threads[now]);
            left -= done[now];
        }
}

template <class T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <class T> static inline void __stcs(T *p, T x)
{
    *p = x;
}

#endif
