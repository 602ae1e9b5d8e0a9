/* Cursors on the CPU: resolving a row of a step, step_begin, reset (maths.md, "Cursor, ring, flush"). */
#include <string.h>

#include "cpu/cpu.h"
#include "rssm_step.h"

static const rssm_row padding = {.slot = -1};

/* slot, base, count, flush as the caller gave them: from rows[B, 8], or from the host's own arrays. */
static rssm_row given_row(const rssm_step *step, int64_t b)
{
    if (step->rows) {
        const int32_t *r = step->rows + b * step->rows_row;
        return (rssm_row){.slot = r[0], .base = r[1], .count = r[2], .flush = r[3] != 0};
    }
    rssm_row row = {.slot = step->state_indices.data ? rssm_index_at(&step->state_indices, b) : b};
    if (rssm_is_padding(row.slot, step->S, step->pad_slot))
        return row;
    row.count = rssm_index_at(&step->write_pos, b);
    row.flush = row.count >= step->L - 1 || (step->force_flush.data && rssm_index_at(&step->force_flush, b) != 0);
    return row;
}

/* A row that stores its record needs a free ring row. */
static int cursor_is_valid(const rssm_step *step, const rssm_row *row)
{
    if (row->count < 0 || row->count > step->L || row->base < 0 || row->base >= step->R)
        return 0;
    if (!step->d_cache.data)
        return row->count == 0 && row->flush;
    return row->flush || row->count < step->L;
}

rssm_row rssm_cpu_row(const rssm_step *step, int64_t b, uint32_t *fault)
{
    rssm_row row = given_row(step, b);
    if (rssm_is_padding(row.slot, step->S, step->pad_slot))
        return padding;
    if (!cursor_is_valid(step, &row)) {
        *fault |= RSSM_FAULTBIT_CURSOR;
        return padding;
    }
    return row;
}

static int slot_cursor_is_valid(const rssm_begin *begin, const int32_t *cursor)
{
    int32_t columns = begin->conv_len > 0 ? begin->conv_len : 1;
    return cursor[0] >= 0 && cursor[0] < begin->R && cursor[1] >= 0 && cursor[1] <= begin->L && cursor[2] >= 0 &&
           cursor[2] < columns && cursor[3] >= 0 && cursor[3] < begin->L;
}

/* Writes row b and moves the cursor of its slot. */
static void begin_row(const rssm_begin *begin, int32_t b, uint32_t *fault)
{
    int32_t *out = begin->rows + b * begin->rows_row;
    int64_t slot = rssm_index_at(&begin->slots, b);
    int32_t *cursor = NULL;
    if (!rssm_is_padding(slot, begin->S, begin->pad_slot)) {
        cursor = begin->cursor + slot * begin->cursor_slot;
        if (!slot_cursor_is_valid(begin, cursor)) {
            *fault |= RSSM_FAULTBIT_CURSOR;
            cursor = NULL;
        }
    }
    if (!cursor) {
        const int32_t pad[RSSM_ROW_WIDTH] = {-1, 0, 0, 0, 0, b, 1, 0};
        memcpy(out, pad, sizeof pad);
        return;
    }
    int32_t base = cursor[0], count = cursor[1], conv = cursor[2], shortened = cursor[3];
    int32_t flush =
        count >= begin->L - 1 - shortened || (begin->force_flush.data && rssm_index_at(&begin->force_flush, b) != 0);
    const int32_t row[RSSM_ROW_WIDTH] = {(int32_t)slot, base, count, flush, conv, b, 1, 0};
    memcpy(out, row, sizeof row);
    if (flush) {
        cursor[0] = (base + count) % begin->R;
        cursor[1] = 0;
        cursor[3] = 0;
    } else {
        cursor[1] = count + 1;
    }
    if (begin->conv_len > 0)
        cursor[2] = (conv + 1) % begin->conv_len;
}

void rssm_cpu_begin(const rssm_begin *begin)
{
    uint32_t fault = 0;
    for (int32_t b = 0; b < begin->B; b++)
        begin_row(begin, b, &fault);
    rssm_fault_or(begin->fault, fault);
}

static void reset_slot(const rssm_pool *pool, int64_t slot)
{
    for (int32_t i = 0; i < pool->num_regions; i++) {
        const rssm_region *region = &pool->regions[i];
        memset((char *)region->data + slot * region->slot_stride, 0, (size_t)region->slot_bytes);
    }
    if (!pool->cursor)
        return;
    int32_t *cursor = pool->cursor + slot * pool->cursor_slot;
    cursor[0] = cursor[1] = cursor[2] = 0;
    cursor[3] = (int32_t)(slot % pool->L * pool->spread_step % pool->L);
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
