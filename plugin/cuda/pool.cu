/* Kernels that keep the pool: the cursors of a forward pass, and fresh slots. */
#include "cuda/reset.h"
#include "step_math.cuh"
#include "stream_order.cuh"

/* Reads and moves the cursor of row b's slot: row[0 .. 6] = {slot, base, count, flush, conv, b, 1}; a padding row has
 * slot -1. */
DEVICE void begin_row(const rssm_begin &a, int64_t b, int32_t *row)
{
    row[0] = -1;
    row[1] = row[2] = row[3] = row[4] = 0;
    row[5] = (int32_t)b;
    row[6] = 1;
    const int64_t slot = a.slots.data ? load_index(a.slots, b) : b;
    if (slot < 0 || slot >= a.S || slot == a.pad_slot)
        return;
    int32_t *const cursor = a.cursor + slot * a.cursor_slot;
    const int32_t base = cursor[0], count = cursor[1], conv = cursor[2], shortened = cursor[3];
    const bool sane = base >= 0 && base < a.R && count >= 0 && count <= RSSM_MOST_RECORDS(a.L) && conv >= 0 &&
                      conv < (a.conv_len > 0 ? a.conv_len : 1) && shortened >= 0 && shortened < a.L;
    if (!sane) {
        if (a.fault)
            atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_CURSOR);
        return;
    }
    const bool ends = count >= a.L - 1 - shortened || (a.force_flush.data && load_index(a.force_flush, b) != 0);
    const bool flush = ends || a.flush_all;
    row[0] = (int32_t)slot;
    row[1] = base;
    row[2] = count;
    row[3] = flush;
    row[4] = conv;
    cursor[0] = flush ? (base + count) % a.R : base;
    cursor[1] = flush ? 0 : count + 1;
    cursor[2] = a.conv_len > 0 ? (conv + 1) % a.conv_len : conv;
    cursor[3] = ends ? 0 : shortened;
}

/* Grid ceil(B / 256) x 256 threads. rows[b] = {slot, base, count, flush, conv, b, 1, 0}. */
extern "C" __global__ void __launch_bounds__(256) rssm_step_begin(const __grid_constant__ rssm_begin a)
{
    wait_for_predecessors();
    const int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= a.B)
        return;
    int32_t row[RSSM_STEP_ROW_WIDTH];
    begin_row(a, b, row);
    row[7] = 0;
    for (int i = 0; i < RSSM_STEP_ROW_WIDTH; ++i)
        a.rows[b * a.rows_row + i] = row[i];
}

/* One block of 1024 threads: the same, but rows[i][7] = B << 16 | 1 + the row that the i-th blocks of a step shall take. Flushing
 * rows take longest: they are spread evenly, since reads and writes then overlap, but kept from the last rows, whose
 * blocks end a launch. */
#define ORDER_THREADS 1024
#define ORDER_TAIL    40 /* rows without a flush at the end */
extern "C" __global__ void __launch_bounds__(ORDER_THREADS)
    rssm_step_begin_ordered(const __grid_constant__ rssm_begin a)
{
    __shared__ int32_t warp_flushes[ORDER_THREADS / 32];
    wait_for_predecessors();
    const int t = threadIdx.x, w = t >> 5, lane = t & 31;
    int64_t flushes = 0;
    for (int64_t b0 = 0; b0 < a.B; b0 += ORDER_THREADS) {
        const int64_t b = b0 + t;
        int32_t row[RSSM_STEP_ROW_WIDTH] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (b < a.B) {
            begin_row(a, b, row);
            for (int i = 0; i < 7; ++i)
                a.rows[b * a.rows_row + i] = row[i];
        }
        flushes += __syncthreads_count(row[3] != 0);
    }
    /* The f-th flushing row takes place f * period, the others the places between, in their order. */
    const int64_t period = flushes > 0 ? max((int64_t)1, (a.B - ORDER_TAIL) / flushes) : 1, others = period - 1;
    int64_t seen = 0; /* flushing rows in earlier chunks */
    for (int64_t b0 = 0; b0 < a.B; b0 += ORDER_THREADS) {
        const int64_t b = b0 + t;
        const bool flush = b < a.B && a.rows[b * a.rows_row + 3] != 0;
        const uint32_t mask = __ballot_sync(0xffffffffu, flush);
        if (lane == 0)
            warp_flushes[w] = __popc(mask);
        __syncthreads();
        int64_t f = seen + __popc(mask & ((1u << lane) - 1)); /* flushing rows before b */
        for (int i = 0; i < ORDER_THREADS / 32; ++i) {
            f += i < w ? warp_flushes[i] : 0;
            seen += warp_flushes[i];
        }
        const int64_t n = b - f; /* other rows before b */
        const int64_t at = flush                  ? f * period
                           : n < flushes * others ? n / others * period + 1 + n % others
                                                  : n + flushes;
        if (b < a.B)
            a.rows[at * a.rows_row + 7] = a.B << 16 | (int32_t)(b + 1);
        __syncthreads();
    }
}

/* p[bytes] <- 0 by threads t of `threads`: byte by byte up to a 16-byte boundary, then vectors, then the rest. */
DEVICE void zero_bytes(unsigned char *p, int64_t bytes, int64_t t, int64_t threads)
{
    const int64_t head = min((int64_t)(-(uintptr_t)p & 15), bytes), body = (bytes - head) / 16;
    for (int64_t i = t; i < head; i += threads)
        p[i] = 0;
    for (int64_t i = t; i < body; i += threads)
        ((uint4 *)(p + head))[i] = make_uint4(0, 0, 0, 0);
    for (int64_t i = head + body * 16 + t; i < bytes; i += threads)
        p[i] = 0;
}

/* Fresh slots: x = share of a slot's bytes, y = which slot, z = which tensor of the pool; y and z go on beyond the grid.
 * Slots out of range, and the pad slot in a list, are passed over. */
extern "C" __global__ void __launch_bounds__(256) rssm_reset(const __grid_constant__ rssm_cuda_reset a)
{
    wait_for_predecessors();
    const int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.y; i < a.count; i += gridDim.y) {
        const int64_t slot = a.slots.data ? load_index(a.slots, i) : i;
        if (slot < 0 || slot >= a.S || (a.slots.data && slot == a.pad_slot))
            continue;
        for (int64_t z = blockIdx.z; z < a.num_regions; z += gridDim.z) {
            const rssm_region region = a.regions[z];
            zero_bytes((unsigned char *)region.data + slot * region.slot_stride, region.slot_bytes, t, threads);
        }
        if (t == 0 && blockIdx.z == 0) {
            int32_t *const cursor = a.cursor + slot * a.cursor_slot;
            cursor[0] = cursor[1] = cursor[2] = 0;
            cursor[3] = (int32_t)(slot % a.L * a.spread_step % a.L);
        }
    }
}
