/* The kernels for small batches, compiled for the host, against the oracle of the CPU kernels' tests: every one of them with
 * rows that it is made for and others, padding rows, rings that wrap, L = 1, and a host's own cursors (block.h). */
#include "gpu/block.h"

#include "cuda/step_small.cu"

enum { SEEDS = 2 };

extern "C" {
#include "cuda/small_launch.h"
#include "kernels/step_case.h"
}

/* ---- the kernels ------------------------------------------------------------------------------------------------ */

#define CALL(family, state, K, V, WR, NW, kind, io, blocks, ring, rw)                                        \
    [](const void *args) {                                                                                   \
        RSSM_CUDA_SMALL_NAME(family, state, K, V, WR, NW, kind, io)(*static_cast<const rssm_small *>(args)); \
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
                run_block(how.threads);
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
    wish.all_flush = v->kept ? (int32_t)(seed % 3) : 0; /* some, all, none */
    wish.drafts = v->kept && seed % 2 ? 2 : 0;          /* more ring rows than records */
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
    static const int32_t bad[][3] = {{-1, 0, 1}, {99, 0, 1}, {0, -1, 1}, {0, 17, 1}, {0, 99, 0}, {0, 16, 0}};
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

/* At L = 1 no record is ever pending, and what a ring holds counts for nothing: it may be there, of any dtype and anywhere. */
static void check_ring_at_one(const step_case *c, int kernel)
{
    alignas(16) int32_t rows[MAX_ROWS][8] = {};
    step_case counted;
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
    run(kernel, &pending.step);
    check(pending.fault == 0, "L = 1, a ring: fault word %u", (unsigned)pending.fault);
    for (int i : {(int)MEM_OUT, (int)MEM_STATE})
        check(memcmp(plain.mem[i].data, pending.mem[i].data, (size_t)plain.mem[i].bytes) == 0,
              "L = 1, a ring: array %d differs", i);
    step_case_copy(&counted, &pending);
    for (int32_t b = 0; b < c->step.B; b++) {
        rows[b][0] = 0;
        rows[b][2] = 1;
    }
    run(kernel, &pending.step);
    check(pending.fault == RSSM_FAULTBIT_CURSOR, "L = 1, count 1: fault word %u", (unsigned)pending.fault);
    const auto &state = counted.mem[MEM_STATE];
    check(memcmp(state.data, pending.mem[MEM_STATE].data, (size_t)state.bytes) == 0,
          "L = 1, count 1: a state is touched");
    step_case_free(&counted);
    step_case_free(&plain);
    step_case_free(&pending);
}

/* A 16-bit state that becomes infinite stays finite and raises a fault: S <- S + dt x B^T, with S as large as can be. */
static void check_saturation(int kernel)
{
    const rssm_cuda_small *const v = &rssm_cuda_smalls[kernel];
    if (v->family != RSSM_FAMILY_MAMBA2 || v->state_dtype != RSSM_DTYPE_BFLOAT16)
        return;
    random_state r = {(uint64_t)kernel};
    case_wish wish = wish_of(kernel, 0, 1 + 15 * (v->kept > 0));
    wish.all_flush = wish.no_padding = wish.plain = 1;
    step_case c;
    step_case_make(&c, &r, &wish);
    rssm_step *const s = &c.step;
    const int64_t elements = (int64_t)s->HV * s->V * s->K;
    s->A_log.data = NULL; /* a decay of 1 */
    s->flags |= RSSM_STEP_A_IS_DECAY;
    s->dt_min = s->dt_max = 1;
    for (int64_t b = 0; b < s->B; b++) {
        for (int64_t i = 0; i < elements; i++)
            element_set(v->state_dtype, s->state.data, c.rows[b].slot * s->state.slot + i, BF16_MAX);
        for (int64_t i = 0; i < (int64_t)s->HV * s->V; i++)
            element_set(v->io, (void *)s->v.data, b * s->v.row + i, 0x1p126);
        for (int64_t i = 0; i < (int64_t)s->H * s->K; i++)
            element_set(v->io, (void *)s->k.data, b * s->k.row + i, i % 2);
    }
    check_context("%s, saturation", v->name);
    run(kernel, s);
    int64_t full = 0, infinite = 0;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t i = 0; i < elements; i++) {
            const double x = element_get(v->state_dtype, s->state.data, c.rows[b].slot * s->state.slot + i);
            full += x == BF16_MAX;
            infinite += !(std::fabs(x) <= BF16_MAX);
        }
    check(full > 0 && infinite == 0, "%lld full, %lld infinite", (long long)full, (long long)infinite);
    check(c.fault & RSSM_FAULTBIT_STATE, "fault word %u", (unsigned)c.fault);
    step_case_free(&c);
}

static void check_kernel(int kernel, level_bars *bars)
{
    check_saturation(kernel);
    const bool kept = rssm_cuda_smalls[kernel].kept > 0; /* not for L = 1, nor for a host's own cursors */
    const int lengths[] = {16, 5, kept ? 2 : 1};
    for (uint64_t seed = 0; seed < (kept ? 3 * SEEDS : SEEDS); seed++)
        for (int length : lengths) {
            random_state r = {1000 * (uint64_t)kernel + 10 * seed + (uint64_t)length};
            const case_wish wish = wish_of(kernel, seed, length);
            step_case c;
            step_case_make(&c, &r, &wish);
            c.record_ulps = 2; /* float32 norms: tests/gpu has the same bar for all CUDA kernels */
            check_context("%s, L = %d, %s, seed %d", rssm_cuda_smalls[kernel].name, length,
                          c.step.rows ? "rows" : "write_pos", (int)seed);
            if (check(rssm_small_fits(&rssm_cuda_smalls[kernel], &c.step) == (!kept || c.step.rows),
                      "whether the kernel fits"))
                check_one(&c, kernel, bars);
            if (seed == 0 && length == 1) {
                check_ring_at_one(&c, kernel);
                const int64_t S = c.step.S;
                c.step.S = 0; /* of a bad slot the kernel reads another's state: there must be one */
                check(!rssm_small_fits(&rssm_cuda_smalls[kernel], &c.step), "the kernel fits a pool without slots");
                c.step.S = S;
            }
            if ((seed == 0 || kept) && c.step.rows)
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
