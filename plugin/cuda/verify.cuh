/* What the verify kernels share: what a row of verify_begin means to a window pass (maths.md, "Cursor, ring, flush"). */
#ifndef RSSM_CUDA_VERIFY_CUH_
#define RSSM_CUDA_VERIFY_CUH_

#include "step_math.cuh"
#include "stream_order.cuh"

/* One row of a window pass. A row that cannot be worked on has slot -1; its tokens, if any, get zeros. */
struct window_row {
    int64_t slot;
    int base, count; /* committed records, before this pass */
    int start, len;  /* tokens of the packed inputs; len = 0 where the window is out of range */
    bool flush;      /* the records go into the checkpoint first */
    uint32_t fault;  /* RSSM_FAULTBIT_*, for one thread of one block to raise */
};

/* The first seven numbers of a row, asked for ahead of their use. */
struct window_ahead {
    int32_t slot, base, count, flush, start, len;
};

DEVICE window_ahead load_window(const rssm_step &s, int64_t row)
{
    const int32_t *const p = s.rows + row * s.rows_row;
    const window_ahead a = {p[0], p[1], p[2], p[3], p[5], p[6]};
    return a;
}

/* ---- the order of a few rows ----
 *
 * A row that folds takes about twice as long as another. In a call with few rows such rows should not end the launch, and not
 * all write at once: they take turns with the others while both last, a folding one first, each kind in its order. Every
 * warp finds its row by itself, from all rows' flags: nothing is prepared, and whatever the flags are, each row has one place. */
enum { WINDOW_ORDER_MIN = 12, WINDOW_ORDER_MAX = 32 }; /* rows */

/* Whether `row` is the row of `place`; bit b of folds: row b folds. */
DEVICE bool row_is_at(uint32_t folds, int rows, int place, int row)
{
    const int count = __popc(folds), turns = min(count, rows - count);
    const bool taking_turns = place < 2 * turns, fold = taking_turns ? place % 2 == 0 : count > turns;
    const int nth = taking_turns ? place / 2 : place - turns; /* of its kind */
    const uint32_t kind = fold ? folds : ~folds;
    return row < rows && (kind >> row & 1) && __popc(kind & ((1u << row) - 1)) == nth;
}

DEVICE int32_t from_lane(int32_t x, int lane)
{
    return __shfl_sync(0xffffffffu, x, lane);
}

/* The row of a place; mine: row `lane`, of the first WINDOW_ORDER_MAX. */
DEVICE window_ahead window_at(const window_ahead &mine, int rows, int place, int lane)
{
    const uint32_t folds = __ballot_sync(0xffffffffu, lane < rows && mine.flush != 0);
    const int from = __ffs(__ballot_sync(0xffffffffu, row_is_at(folds, rows, place, lane))) - 1;
    const window_ahead a = {from_lane(mine.slot, from),  from_lane(mine.base, from),  from_lane(mine.count, from),
                            from_lane(mine.flush, from), from_lane(mine.start, from), from_lane(mine.len, from)};
    return a;
}

/* verify_begin made the row, or the caller: nothing in it is trusted. Tokens out of range are none at all, since a part of them
 * may be another row's; the fold that verify_begin has already entered into the cursor takes place. */
DEVICE window_row judge_window(const rssm_window &a, const window_ahead &p)
{
    const rssm_step &s = a.step;
    window_row r = {p.slot, p.base, p.count, p.start, p.len, p.flush != 0, 0};
    const bool window = p.len >= 0 && p.len <= a.max_T && p.start >= 0 && (int64_t)p.start + p.len <= a.tokens;
    if (!window) {
        r.fault |= RSSM_FAULTBIT_SEQLENS;
        r.start = r.len = 0;
    }
    const bool here = p.slot >= 0 && p.slot < s.S && p.slot != s.pad_slot;
    const bool records = (uint32_t)p.base < (uint32_t)s.R && p.count >= 0 && p.count <= s.L;
    /* The flush is no choice: it happens iff the tokens have no room beside the records. */
    const bool sane = records && (!window || (r.flush == (p.count + r.len > s.L) && p.count + r.len <= s.R));
    if (here && !sane)
        r.fault |= RSSM_FAULTBIT_CURSOR;
    if (!here || !sane)
        r.slot = -1;
    return r;
}

#endif
