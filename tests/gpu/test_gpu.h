/* What the GPU tests share. Each add_* puts its tests into the suite. */
#ifndef RSSM_TESTS_TEST_GPU_H_
#define RSSM_TESTS_TEST_GPU_H_

#include <check.h>
#include <stdint.h>

/* Which part of all tests this process runs, and whether under a sanitizer: fewer, smaller. */
typedef struct gpu_share {
    int64_t part, parts;
    int small;
    int64_t first, last; /* random cases */
} gpu_share;

extern gpu_share share;

/* How many of `count` numbered tests this process runs: numbers share.part + i * share.parts. */
static inline int gpu_share_of(int64_t count)
{
    return (int)((count - share.part + share.parts - 1) / share.parts);
}

/* Its stretch of the loop 0 .. count - 1. */
static inline void gpu_add_loop(TCase *t, const TTest *test, int64_t count)
{
    const int64_t from = count * share.part / share.parts, to = count * (share.part + 1) / share.parts;
    if (from < to)
        tcase_add_loop_test(t, test, (int)from, (int)to);
}

void add_random_cases(Suite *s); /* random_cases.c: against double precision and against the CPU backend */
void add_kernels(Suite *s);      /* kernels.c: every tuned kernel of the table, at the batch that chooses it */
void add_large(Suite *s);        /* large.c: addresses beyond 31 bits and 16 GB, grids beyond 65535 */
void add_slots(Suite *s);        /* slots.c: slot operations and the convolution against the CPU backend */
void add_verify(Suite *s);       /* verify.c: windows of drafts against plain steps, every tuned kernel */
void add_streams(Suite *s);      /* streams.c: streams, graphs, contexts, threads, forks */
void add_two_devices(Suite *s);  /* two_devices.c: two GPUs in one process; skips where there is one */

/* Planning in a process that forks afterwards must not have touched the GPU: its own program run. */
int main_plan_then_fork(void);

#endif
