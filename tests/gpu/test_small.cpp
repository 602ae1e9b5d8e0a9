/* The kernels for small batches, compiled for the host, against the oracle of the CPU kernels' tests: every one of them with
 * rows that it is made for and others, padding rows, rings that wrap, L = 1, and a host's own cursors. The lanes of a warp run in
 * turns from shuffle to shuffle, which is all that these kernels need; no warp meets another. */
#include "gpu/on_host.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

#undef __noinline__
#define __noinline__

enum { LANES = 32, STACK = 1 << 17, SEEDS = 2 };

/* ---- a warp ----------------------------------------------------------------------------------------------------- */

static ucontext_t scheduler, lanes[LANES];
static char stacks[LANES][STACK];
static bool done[LANES];
static unsigned lane_now, first_thread, meetings[LANES];
static float handed[2][LANES]; /* a lane may be one meeting ahead of another */
static void (*work)(const void *);
static const void *work_args;

static float __shfl_sync(unsigned, float value, int from)
{
    const unsigned turn = meetings[lane_now]++ & 1;
    handed[turn][lane_now] = value;
    swapcontext(&lanes[lane_now], &scheduler);
    return handed[turn][from & (LANES - 1)];
}

static float __shfl_xor_sync(unsigned all, float value, int bits)
{
    return __shfl_sync(all, value, (int)lane_now ^ bits);
}

static void lane_main()
{
    work(work_args);
    done[lane_now] = true;
    swapcontext(&lanes[lane_now], &scheduler);
}

static void run_warp(unsigned thread)
{
    first_thread = thread;
    for (unsigned i = 0; i < LANES; i++) {
        done[i] = false;
        meetings[i] = 0;
        getcontext(&lanes[i]);
        lanes[i].uc_stack.ss_sp = stacks[i];
        lanes[i].uc_stack.ss_size = STACK;
        makecontext(&lanes[i], lane_main, 0);
    }
    for (unsigned left = LANES; left > 0;)
        for (unsigned i = 0; i < LANES; i++) {
            if (done[i])
                continue;
            lane_now = i;
            threadIdx.x = first_thread + i;
            swapcontext(&scheduler, &lanes[i]);
            left -= done[i];
        }
}

static inline uint4 __ldcs(const uint4 *p)
{
    return *p;
}

static inline void __stcs(uint4 *p, uint4 x)
{
    *p = x;
}

#include "cuda/step_small.cu"

extern "C" {
#include "cuda/small_launch.h"
#include "kernels/step_case.h"
}

/* ---- the kernels ------------------------------------------------------------------------------------------------ */

#define CALL(family, state, K, V, WR, NW, io, blocks, ring, rw)                                        \
    [](const void *args) {                                                                             \
        RSSM_CUDA_SMALL_NAME(family, state, K, V, WR, NW, io)(*static_cast<const rssm_small *>(args)); \
    },
static void (*const kernels[])(const void *) = {RSSM_CUDA_SMALL_LIST(CALL)};

static void run(int kernel, const rssm_step *step)
{
    const rssm_cuda_launch how = rssm_small_launch(kernel, step);
    const rssm_small args = rssm_small_argument(step);
    work = kernels[kernel];
    work_args = &args;
    for (blockIdx.z = 0; blockIdx.z < how.grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < how.grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < how.grid[0]; blockIdx.x++)
                for (unsigned thread = 0; thread < how.threads; thread += LANES)
                    run_warp(thread);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static case_wish wish_of(int kernel, uint64_t seed, int L)
{
    const rssm_cuda_small *const v = &rssm_cuda_smalls[kernel];
    case_wish wish = {};
    wish.family = v->family;
    wish.io = wish.ring = v->io;
    wish.state = v->state_dtype;
    wish.K = v->K;
    wish.V = v->V;
    wish.L = L;
    wish.B = 2;
    wish.H = 1 + (int32_t)(seed % 2);
    wish.group = 2 - (int32_t)(seed % 2);
    wish.out_is_io = wish.aligned = 1;
    return wish;
}

static void check_one(const step_case *c, int kernel, level_bars *bars)
{
    oracle o;
    step_case mine;
    step_case_copy(&mine, c);
    oracle_make(&o, c);
    run(kernel, &mine.step);
    check(mine.fault == 0, "fault word %u", (unsigned)mine.fault);
    check_case_out(&mine, &o, bars);
    for (int32_t b = 0; b < c->step.B; b++) {
        if (c->rows[b].slot >= 0 && c->rows[b].flush)
            check_case_state(&mine, &o, b, bars);
        else if (c->rows[b].slot >= 0)
            check_case_record(&mine, &o, b);
    }
    check_case_untouched(c, &mine);
    step_case_free(&mine);
    oracle_free(&o);
}

/* Rows out of range: zeros, a fault, nothing else touched. */
static void check_bad_rows(const step_case *c, int kernel)
{
    static const int32_t bad[][3] = {{-1, 0, 1}, {99, 0, 1}, {0, -1, 1}, {0, 17, 1}, {0, 99, 0}};
    for (const int32_t *numbers : bad) {
        step_case mine;
        step_case_copy(&mine, c);
        for (int32_t b = 0; b < c->step.B; b++) {
            int32_t *const row = (int32_t *)mine.mem[MEM_ROWS].data + b * mine.step.rows_row;
            row[0] = mine.step.pad_slot == 0;
            memcpy(row + 1, numbers, 3 * sizeof *row);
            mine.rows[b].slot = -1;
        }
        step_case broken;
        step_case_copy(&broken, &mine);
        run(kernel, &mine.step);
        check(mine.fault == RSSM_FAULTBIT_CURSOR, "bad row {%d, %d, %d}: fault word %u", numbers[0], numbers[1],
              numbers[2], (unsigned)mine.fault);
        bool zero = true;
        for (int64_t b = 0; b < c->step.B; b++)
            for (int64_t i = 0; i < (int64_t)c->step.HV * c->step.V; i++)
                zero = zero && element_get(mine.step.out_dtype, mine.step.out, b * mine.step.out_row + i) == 0;
        check(zero, "bad row {%d, %d, %d}: outputs", numbers[0], numbers[1], numbers[2]);
        check_case_untouched(&broken, &mine);
        step_case_free(&broken);
        step_case_free(&mine);
    }
}

/* At L = 1 a row's count and what a ring holds count for nothing, though it may be there, of any dtype and anywhere. */
static void check_ring_at_one(const step_case *c, int kernel)
{
    alignas(16) int32_t rows[MAX_ROWS][8] = {};
    std::vector<float> nans((size_t)c->step.HV * (size_t)std::max(c->step.K, c->step.V), NAN);
    step_case plain, pending;
    step_case_copy(&plain, c);
    step_case_copy(&pending, c);
    pending.step.d_cache.data = pending.step.k_cache.data = pending.step.g_cache.data = nans.data();
    plain.step.rows = pending.step.rows = rows[0];
    plain.step.rows_row = pending.step.rows_row = 8;
    for (int32_t b = 0; b < c->step.B; b++) {
        rows[b][0] = (int32_t)c->rows[b].slot;
        rows[b][3] = 1;
    }
    run(kernel, &plain.step);
    pending.step.pad_slot = (INT64_C(1) << 32) + c->rows[0].slot; /* no slot of this pool, whatever its low half */
    for (int32_t b = 0; b < c->step.B; b++)
        rows[b][2] = 1;
    run(kernel, &pending.step);
    check(pending.fault == 0, "L = 1, a ring, count 1: fault word %u", (unsigned)pending.fault);
    for (int i : {(int)MEM_OUT, (int)MEM_STATE})
        check(memcmp(plain.mem[i].data, pending.mem[i].data, (size_t)plain.mem[i].bytes) == 0,
              "L = 1, a ring, count 1: array %d differs", i);
    step_case_free(&plain);
    step_case_free(&pending);
}

static void check_kernel(int kernel, level_bars *bars)
{
    static const int lengths[] = {16, 5, 1};
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (int length : lengths) {
            random_state r = {1000 * (uint64_t)kernel + 10 * seed + (uint64_t)length};
            const case_wish wish = wish_of(kernel, seed, length);
            step_case c;
            step_case_make(&c, &r, &wish);
            c.record_ulps = 2; /* float32 norms: tests/gpu has the same bar for all CUDA kernels */
            check_context("%s, L = %d, %s, seed %d", rssm_cuda_smalls[kernel].name, length,
                          c.step.rows ? "rows" : "write_pos", (int)seed);
            if (check(rssm_small_fits(&rssm_cuda_smalls[kernel], &c.step), "the kernel does not fit"))
                check_one(&c, kernel, bars);
            if (seed == 0 && length == 1) {
                check_ring_at_one(&c, kernel);
                const int64_t S = c.step.S;
                c.step.S = 0; /* of a bad slot the kernel reads another's state: there must be one */
                check(!rssm_small_fits(&rssm_cuda_smalls[kernel], &c.step), "the kernel fits a pool without slots");
                c.step.S = S;
            }
            if (seed == 0 && c.step.rows)
                check_bad_rows(&c, kernel);
            step_case_free(&c);
        }
}

int main(int argc, char **argv)
{
    const int part = argc > 2 ? atoi(argv[1]) : 0, parts = argc > 2 ? atoi(argv[2]) : 1;
    const level_under_test level = {"kernels for small batches", 0, 0};
    level_bars bars = {};
    for (int i = part; i < RSSM_CUDA_SMALLS; i += parts)
        check_kernel(i, &bars);
    bars_check(&level, &bars);
    worst_print();
    printf("%lld passed, %lld failed\n", (long long)checks_passed, (long long)checks_failed);
    return checks_failed != 0;
}
