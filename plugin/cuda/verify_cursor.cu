/* The cursors of a window pass: verify_begin before it, commit after it. One thread per row. */
#include "step_math.cuh"
#include "stream_order.cuh"

struct cursor {
    int32_t base, count, conv, shortened;
};

DEVICE cursor load_cursor(const int32_t *p)
{
    const cursor c = {p[0], p[1], p[2], p[3]};
    return c;
}

/* args: rssm_verify_begin or rssm_commit. */
template <typename args> DEVICE bool cursor_is_sane(const args &a, const cursor &c)
{
    return c.base >= 0 && c.base < a.R && c.count >= 0 && c.count <= a.L && c.conv >= 0 &&
           c.conv < (a.conv_len > 0 ? a.conv_len : 1) && c.shortened >= 0 && c.shortened < a.L;
}

/* row[0 .. 7] = {slot, base, count, flush, conv, start, len, 0}; slot -1 for a padding row, whose tokens stay its own
 * unless they are out of range. The fold moves the cursor at once: it happens whatever is accepted. */
DEVICE uint32_t begin_window(const rssm_verify_begin &a, int64_t b, int32_t *row)
{
    row[0] = -1;
    for (int i = 1; i < RSSM_STEP_ROW_WIDTH; ++i)
        row[i] = 0;
    const int64_t start = load_index(a.cu_seqlens, b), end = load_index(a.cu_seqlens, b + 1);
    if (start < 0 || end < start || end > INT32_MAX || end - start > a.max_T)
        return RSSM_FAULTBIT_SEQLENS;
    const int64_t len = end - start;
    row[5] = (int32_t)start;
    row[6] = (int32_t)len;
    const int64_t slot = load_index(a.slots, b);
    if (slot < 0 || slot >= a.S || slot == a.pad_slot)
        return 0;
    int32_t *const p = a.cursor + slot * a.cursor_slot;
    const cursor c = load_cursor(p);
    if (!cursor_is_sane(a, c))
        return RSSM_FAULTBIT_CURSOR;
    const bool flush = c.count + len > a.L;
    row[0] = (int32_t)slot;
    row[1] = c.base;
    row[2] = c.count;
    row[3] = flush;
    row[4] = c.conv;
    if (flush) {
        p[0] = (c.base + c.count) % a.R;
        p[1] = 0;
        p[3] = 0;
    }
    return 0;
}

/* Grid ceil(B / 256) x 256 threads. */
extern "C" __global__ void __launch_bounds__(256) rssm_verify_begin_rows(const __grid_constant__ rssm_verify_begin a)
{
    wait_for_predecessors();
    const int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= a.B)
        return;
    int32_t row[RSSM_STEP_ROW_WIDTH];
    const uint32_t fault = begin_window(a, b, row);
    if (fault && a.fault)
        atomicOr(a.fault, fault);
    for (int i = 0; i < RSSM_STEP_ROW_WIDTH; ++i)
        a.rows[b * a.rows_row + i] = row[i];
}

/* Moves the cursor of row b's slot past the accepted tokens; false: too many of them, no row of verify_begin (a plain step
 * flushes one token earlier), or the cursor is not where verify_begin left it. */
DEVICE bool commit_row(const rssm_commit &a, int64_t b)
{
    const int32_t *const row = a.rows + b * a.rows_row;
    const int32_t slot = row[0];
    if (slot < 0 || slot >= a.S || slot == a.pad_slot)
        return true;
    int32_t *const p = a.cursor + slot * a.cursor_slot;
    const cursor c = load_cursor(p), begun = {row[1], row[2], row[4], 0};
    const bool folds = begun.count + (int64_t)row[6] > a.L;
    if (!cursor_is_sane(a, begun) || folds != (row[3] != 0))
        return false;
    const int64_t after_fold = ((int64_t)begun.base + begun.count) % a.R;
    const int64_t base = folds ? after_fold : begun.base, count = folds ? 0 : begun.count;
    const int64_t accepted = load_index(a.accepted, b);
    if (c.base != base || c.count != count || c.conv != begun.conv)
        return false;
    if (accepted < 0 || accepted > row[6] || count + accepted > a.L)
        return false;
    p[1] = (int32_t)(count + accepted);
    if (a.conv_len > 0)
        p[2] = (int32_t)((c.conv + accepted) % a.conv_len);
    return true;
}

extern "C" __global__ void __launch_bounds__(256) rssm_verify_commit(const __grid_constant__ rssm_commit a)
{
    wait_for_predecessors();
    const int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b < a.B && !commit_row(a, b) && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_ACCEPTED);
}
