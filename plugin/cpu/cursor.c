/* Cursors on the CPU: resolving a row of a pass, step_begin, verify_begin, commit, reset (maths.md, "Cursor, ring,
 * flush"). */
#include <string.h>

#include "cpu/cpu.h"
#include "rssm_step.h"

static rssm_row padding_of(rssm_row row, uint32_t fault, uint32_t *faults)
{
    *faults |= fault;
    row.slot = -1;
    return row;
}

/* slot, base, count, flush as the caller gave them: from rows[B, 8], or from the host's own arrays. */
static rssm_row given_row(const rssm_step *step, int64_t b)
{
    if (step->rows) {
        const int32_t *r = step->rows + b * step->rows_row;
        return (rssm_row){.slot = r[0], .base = r[1], .count = r[2], .start = b, .len = 1, .flush = r[3] != 0};
    }
    rssm_row row = {
        .start = b, .len = 1, .slot = step->state_indices.data ? rssm_index_at(&step->state_indices, b) : b};
    if (rssm_is_padding(row.slot, step->S, step->pad_slot))
        return row;
    row.count = rssm_index_at(&step->write_pos, b);
    row.flush = row.count >= step->L - 1 || (step->force_flush.data && rssm_index_at(&step->force_flush, b) != 0);
    return row;
}

/* A row that stores its record needs a free ring row. */
static int cursor_is_valid(const rssm_step *step, const rssm_row *row)
{
    const int32_t most = RSSM_MOST_RECORDS(step->L) - (row->flush ? 0 : 1);
    return row->count >= 0 && row->count <= most && row->base >= 0 && row->base < step->R;
}

rssm_row rssm_cpu_row(const rssm_step *step, int64_t b, uint32_t *fault)
{
    rssm_row row = given_row(step, b);
    if (rssm_is_padding(row.slot, step->S, step->pad_slot))
        return padding_of(row, 0, fault);
    return cursor_is_valid(step, &row) ? row : padding_of(row, RSSM_FAULTBIT_CURSOR, fault);
}

/* What a row of rows[B, 8] says about its tokens, and what its call has. */
typedef struct span {
    int64_t start, len, tokens;
    int32_t max_T;
    int32_t pad_;
} span;

/* Tokens out of range are none at all, since a part of them may be another row's; 0 then. */
static int take_tokens(span of, rssm_row *row, uint32_t *fault)
{
    row->start = row->len = 0;
    if (of.start < 0 || of.len < 0 || of.len > of.max_T || of.start + of.len > of.tokens) {
        *fault |= RSSM_FAULTBIT_SEQLENS;
        return 0;
    }
    row->start = of.start;
    row->len = (int32_t)of.len;
    return 1;
}

static int records_are_valid(const rssm_step *step, const rssm_row *row)
{
    return row->base >= 0 && row->base < step->R && row->count >= 0 && row->count <= step->L && step->d_cache.data;
}

/* A window's flush is no choice: it happens iff the tokens have no room beside the records. */
static int window_is_valid(const rssm_step *step, const rssm_row *row)
{
    return row->flush == (row->count + row->len > step->L) && row->count + row->len <= step->R;
}

/* A window out of range was another one when verify_begin saw it: its fold is in the cursor, so it takes place. */
rssm_row rssm_cpu_window_row(const rssm_window *window, int64_t b, uint32_t *fault)
{
    const rssm_step *step = &window->step;
    const int32_t *r = step->rows + b * step->rows_row;
    const span tokens = {.start = r[5], .len = r[6], .tokens = window->tokens, .max_T = window->max_T};
    rssm_row row = {.slot = r[0], .base = r[1], .count = r[2], .flush = r[3] != 0, .conv = r[4]};
    int in_range = take_tokens(tokens, &row, fault);
    if (rssm_is_padding(row.slot, step->S, step->pad_slot))
        return padding_of(row, 0, fault);
    if (!records_are_valid(step, &row) || (in_range && !window_is_valid(step, &row)))
        return padding_of(row, RSSM_FAULTBIT_CURSOR, fault);
    return row;
}

/* A plain pass (max_T = 1) has token b in row b. */
rssm_row rssm_cpu_conv_row(const rssm_convolution *conv, int64_t b, uint32_t *fault)
{
    const int32_t *r = conv->rows + b * conv->rows_row;
    span tokens = {.start = b, .len = 1, .tokens = conv->tokens, .max_T = conv->max_T};
    rssm_row row = {.slot = r[0], .conv = r[4]};
    if (conv->max_T > 1) {
        tokens.start = r[5];
        tokens.len = r[6];
    }
    take_tokens(tokens, &row, fault);
    if (rssm_is_padding(row.slot, conv->S, conv->pad_slot))
        return padding_of(row, 0, fault);
    if (row.conv < 0 || row.conv >= conv->conv_len)
        return padding_of(row, RSSM_FAULTBIT_CURSOR, fault);
    return row;
}

/* What bounds a slot's cursor. */
typedef struct bounds {
    int32_t L, R, conv_len;
} bounds;

static int slot_cursor_is_valid(bounds of, const int32_t *cursor)
{
    int32_t columns = of.conv_len > 0 ? of.conv_len : 1;
    return cursor[0] >= 0 && cursor[0] < of.R && cursor[1] >= 0 && cursor[1] <= RSSM_MOST_RECORDS(of.L) &&
           cursor[2] >= 0 && cursor[2] < columns && cursor[3] >= 0 && cursor[3] < of.L;
}

/* The cursor of a slot that a pass may use; NULL for padding, and for a cursor out of range. */
static int32_t *usable_cursor(const rssm_begin *begin, int64_t slot, uint32_t *fault)
{
    if (rssm_is_padding(slot, begin->S, begin->pad_slot))
        return NULL;
    int32_t *cursor = begin->cursor + slot * begin->cursor_slot;
    if (slot_cursor_is_valid((bounds){begin->L, begin->R, begin->conv_len}, cursor))
        return cursor;
    *fault |= RSSM_FAULTBIT_CURSOR;
    return NULL;
}

/* The records move into the checkpoint: nothing is pending, and no window of the slot is shortened any more. */
static void empty_ring(int32_t *cursor, int32_t R)
{
    cursor[0] = (int32_t)(((int64_t)cursor[0] + cursor[1]) % R);
    cursor[1] = 0;
    cursor[3] = 0;
}

/* Writes row b and moves the cursor of its slot. */
static void begin_row(const rssm_begin *begin, int32_t b, uint32_t *fault)
{
    int32_t *out = begin->rows + b * begin->rows_row;
    int64_t slot = rssm_index_at(&begin->slots, b);
    int32_t *cursor = usable_cursor(begin, slot, fault);
    if (!cursor) {
        const int32_t pad[RSSM_ROW_WIDTH] = {-1, 0, 0, 0, 0, b, 1, 0};
        memcpy(out, pad, sizeof pad);
        return;
    }
    int32_t ends = cursor[1] >= begin->L - 1 - cursor[3] || /* the slot's window */
                   (begin->force_flush.data && rssm_index_at(&begin->force_flush, b) != 0);
    int32_t flush = ends || begin->flush_all;
    const int32_t row[RSSM_ROW_WIDTH] = {(int32_t)slot, cursor[0], cursor[1], flush, cursor[2], b, 1, 0};
    memcpy(out, row, sizeof row);
    const int32_t shortened = cursor[3];
    if (flush)
        empty_ring(cursor, begin->R);
    else
        cursor[1]++;
    if (!ends)
        cursor[3] = shortened;
    if (begin->conv_len > 0)
        cursor[2] = (cursor[2] + 1) % begin->conv_len;
}

void rssm_cpu_begin(const rssm_begin *begin)
{
    uint32_t fault = 0;
    for (int32_t b = 0; b < begin->B; b++)
        begin_row(begin, b, &fault);
    rssm_fault_or(begin->fault, fault);
}

/* The window's first token and length; 0 when no row may have it. */
static int window_of(const rssm_verify_begin *begin, int32_t b, int32_t *start, int32_t *len)
{
    int64_t first = rssm_index_at(&begin->cu_seqlens, b), end = rssm_index_at(&begin->cu_seqlens, b + 1);
    *start = *len = 0;
    if (first < 0 || end < first || end > INT32_MAX || end - first > begin->max_T)
        return 0;
    *start = (int32_t)first;
    *len = (int32_t)(end - first);
    return 1;
}

/* Writes row b; the cursor moves only when the records have to make room. */
static void verify_begin_row(const rssm_verify_begin *begin, int32_t b, uint32_t *fault)
{
    const rssm_begin slots = {.L = begin->L,
                              .R = begin->R,
                              .conv_len = begin->conv_len,
                              .S = begin->S,
                              .pad_slot = begin->pad_slot,
                              .cursor = begin->cursor,
                              .cursor_slot = begin->cursor_slot};
    int64_t slot = rssm_index_at(&begin->slots, b);
    int32_t start, len, *cursor = NULL;
    if (window_of(begin, b, &start, &len))
        cursor = usable_cursor(&slots, slot, fault);
    else
        *fault |= RSSM_FAULTBIT_SEQLENS;
    int32_t row[RSSM_ROW_WIDTH] = {-1, 0, 0, 0, 0, start, len, 0};
    if (cursor) {
        row[0] = (int32_t)slot;
        row[1] = cursor[0];
        row[2] = cursor[1];
        row[3] = cursor[1] + len > begin->L;
        row[4] = cursor[2];
    }
    memcpy(begin->rows + b * begin->rows_row, row, sizeof row);
    if (cursor && row[3])
        empty_ring(cursor, begin->R);
}

void rssm_cpu_verify_begin(const rssm_verify_begin *begin)
{
    uint32_t fault = 0;
    for (int32_t b = 0; b < begin->B; b++)
        verify_begin_row(begin, b, &fault);
    rssm_fault_or(begin->fault, fault);
}

/* Whether verify_begin may have written this row, the cursor is where it left it, and there is room for n tokens of the row. */
static int may_commit(const rssm_commit *commit, const int32_t *row, const int32_t *cursor, int64_t n)
{
    int32_t left[RSSM_CURSOR_WIDTH] = {row[1], row[2], row[4], 0};
    if (!slot_cursor_is_valid((bounds){commit->L, commit->R, commit->conv_len}, left))
        return 0;
    int folds = left[1] + (int64_t)row[6] > commit->L;
    if (folds != (row[3] != 0))
        return 0; /* of a plain step, which flushes one token earlier */
    if (folds)
        empty_ring(left, commit->R);
    return n >= 0 && n <= row[6] && left[1] + n <= commit->L && cursor[0] == left[0] && cursor[1] == left[1] &&
           cursor[2] == left[2];
}

static void commit_row(const rssm_commit *commit, int32_t b, uint32_t *fault)
{
    const int32_t *row = commit->rows + b * commit->rows_row;
    if (rssm_is_padding(row[0], commit->S, commit->pad_slot))
        return;
    int32_t *cursor = commit->cursor + row[0] * commit->cursor_slot;
    int64_t n = rssm_index_at(&commit->accepted, b);
    if (!may_commit(commit, row, cursor, n)) {
        *fault |= RSSM_FAULTBIT_ACCEPTED;
        return;
    }
    cursor[1] += (int32_t)n;
    if (commit->conv_len > 0)
        cursor[2] = (int32_t)((cursor[2] + n) % commit->conv_len);
}

void rssm_cpu_commit(const rssm_commit *commit)
{
    uint32_t fault = 0;
    for (int32_t b = 0; b < commit->B; b++)
        commit_row(commit, b, &fault);
    rssm_fault_or(commit->fault, fault);
}

rssm_row rssm_cpu_slot_row(const rssm_pool *pool, int64_t slot, uint32_t *fault)
{
    const int32_t *cursor = pool->cursor + slot * pool->cursor_slot;
    rssm_row row = {.slot = slot, .base = cursor[0], .count = cursor[1], .flush = 1, .conv = cursor[2]};
    if (!slot_cursor_is_valid((bounds){pool->L, pool->R, pool->conv_len}, cursor))
        return padding_of(row, RSSM_FAULTBIT_CURSOR, fault);
    return row;
}

void rssm_cpu_reset_cursor(const rssm_pool *pool, int64_t slot)
{
    int32_t *cursor = pool->cursor + slot * pool->cursor_slot;
    cursor[0] = cursor[1] = cursor[2] = 0;
    cursor[3] = (int32_t)(slot % pool->L * pool->spread_step % pool->L);
}

void rssm_cpu_empty_ring(const rssm_pool *pool, int64_t slot)
{
    empty_ring(pool->cursor + slot * pool->cursor_slot, pool->R);
}

static void reset_slot(const rssm_pool *pool, int64_t slot)
{
    for (int32_t i = 0; i < pool->num_regions; i++) {
        const rssm_region *region = &pool->regions[i];
        memset((char *)region->data + slot * region->slot_stride, 0, (size_t)region->slot_bytes);
    }
    if (pool->cursor)
        rssm_cpu_reset_cursor(pool, slot);
}

void rssm_cpu_reset(const rssm_pool *pool, const rssm_index *slots, int64_t count)
{
    if (!slots || !slots->data) {
        for (int64_t slot = 0; slot < pool->S; slot++)
            reset_slot(pool, slot);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = rssm_index_at(slots, i);
        if (!rssm_is_padding(slot, pool->S, pool->pad_slot))
            reset_slot(pool, slot);
    }
}
