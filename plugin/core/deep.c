#include "core/deep.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"

static int64_t widen(const char *at, int64_t width)
{
    int32_t narrow;
    int64_t wide;
    if (width == 8) {
        memcpy(&wide, at, 8);
        return wide;
    }
    memcpy(&narrow, at, 4);
    return narrow;
}

/* A strided integer array [rows, columns] as int64 in memory of the instance's allocator; NULL when that fails (err is
 * set). Row by row: the gaps between rows are not ours to read. */
static int64_t *read_indices(const rssm_plugin *p, const DLTensor *t, int64_t columns, void *stream, rssm_error *err)
{
    int64_t rows = t->shape[0], stride = rssm_tensor_stride0(t), width = rssm_element_bytes(t);
    size_t bytes = (size_t)(rows * columns) * sizeof(int64_t);
    const char *from = rssm_tensor_data(t);
    int64_t *out = rssm_mem_alloc(&p->mem, bytes, 16);
    if (!out) {
        rssm_out_of_memory(err);
        return NULL;
    }
    int64_t block = stride == columns ? rows : 1; /* rows per copy */
    char *raw = (char *)out + bytes - (size_t)(block * columns * width);
    for (int64_t i = 0; i < rows; i += block) {
        int64_t *to = out + i * columns;
        char *part = block == 1 ? (char *)to : raw;
        if (p->backend->to_host(p->ctx, part, from + i * stride * width, block * columns * width, stream, err)) {
            rssm_mem_free(&p->mem, out, bytes);
            return NULL;
        }
        if (width == 8)
            continue;
        if (block == 1) /* widen in place, from the end */
            for (int64_t j = columns - 1; j >= 0; j--)
                to[j] = widen(part + j * width, width);
        else /* the narrow block ends where the wide one does: from the start */
            for (int64_t j = 0; j < block * columns; j++)
                to[j] = widen(part + j * width, width);
    }
    return out;
}

/* slot << 32 | row, so that sorting finds the first pair of rows of one slot. */
static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Padding rows are passed over by every check of values. */
static bool is_padding(const rssm_plugin *p, int64_t slot, int64_t S)
{
    return slot < 0 || slot >= S || (p->args.has_pad_slot && slot == p->args.pad_slot);
}

static rssm_status check_unique(const rssm_plugin *p, int32_t role, const int64_t *slots, int64_t step, int64_t rows,
                                int64_t S, rssm_error *err)
{
    uint64_t *keys = rssm_mem_alloc(&p->mem, (size_t)rows * sizeof(*keys), 16);
    if (!keys)
        return rssm_out_of_memory(err);
    int64_t used = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t slot = slots[i * step];
        if (!is_padding(p, slot, S))
            keys[used++] = (uint64_t)slot << 32 | (uint64_t)i;
    }
    qsort(keys, (size_t)used, sizeof(*keys), by_value);
    rssm_status status = RSSM_OK;
    for (int64_t i = 1; !status && i < used; i++)
        if (keys[i] >> 32 == keys[i - 1] >> 32)
            status = rssm_fail_at(err, RSSM_ERR_VALUE,
                                  (rssm_where){.role = role,
                                               .dim = 0,
                                               .expected = (int64_t)(uint32_t)keys[i - 1],
                                               .got = (int64_t)(uint32_t)keys[i]},
                                  "`%s` has slot %lld twice, in rows %u and %u", rssm_role_name(role),
                                  (long long)(keys[i] >> 32), (uint32_t)keys[i - 1], (uint32_t)keys[i]);
    rssm_mem_free(&p->mem, keys, (size_t)rows * sizeof(*keys));
    return status;
}

static rssm_status check_cursor(const rssm_plugin *p, int32_t role, int64_t row, int64_t base, int64_t count,
                                rssm_error *err)
{
    rssm_where where = {.role = role, .dim = 0, .expected = p->rank.L, .got = count};
    if (count < 0 || count > p->rank.L)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`%s` row %lld: count %lld is not in 0..%d",
                            rssm_role_name(role), (long long)row, (long long)count, p->rank.L);
    where.expected = p->rank.R - 1;
    where.got = base;
    if (base < 0 || base >= p->rank.R)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`%s` row %lld: base %lld is not in 0..%d",
                            rssm_role_name(role), (long long)row, (long long)base, p->rank.R - 1);
    return RSSM_OK;
}

static rssm_status need_prepare(const rssm_plugin *p, const char *what, rssm_error *err)
{
    return p->ctx ? RSSM_OK : rssm_fail(err, RSSM_ERR_STATE, "%s before prepare", what);
}

static rssm_status check_rows_deep(const rssm_plugin *p, const DLTensor *rows, int64_t S, void *stream, rssm_error *err)
{
    int64_t B = rows->shape[0];
    int64_t *values = read_indices(p, rows, RSSM_ROW_WIDTH, stream, err);
    if (!values)
        return err->status;
    rssm_status status = check_unique(p, RSSM_T_ROWS, values, RSSM_ROW_WIDTH, B, S, err);
    for (int64_t i = 0; !status && i < B; i++) {
        const int64_t *row = values + i * RSSM_ROW_WIDTH;
        if (row[0] < -1 || row[0] >= S || (row[3] & ~1) || row[5] != i || row[6] != 1)
            status = rssm_fail_at(err, RSSM_ERR_VALUE,
                                  (rssm_where){.role = RSSM_T_ROWS, .dim = 0, .expected = S, .got = row[0]},
                                  "`rows` row %lld (slot %lld) was not written by step_begin for %lld slots",
                                  (long long)i, (long long)row[0], (long long)S);
        if (!status && !is_padding(p, row[0], S))
            status = check_cursor(p, RSSM_T_ROWS, i, row[1], row[2], err);
    }
    rssm_mem_free(&p->mem, values, (size_t)(B * RSSM_ROW_WIDTH) * sizeof(*values));
    return status;
}

static rssm_status check_positions_deep(const rssm_plugin *p, const DLTensor *write_pos, const DLTensor *slots,
                                        int64_t S, void *stream, rssm_error *err)
{
    int64_t B = write_pos->shape[0];
    int64_t *counts = read_indices(p, write_pos, 1, stream, err);
    if (!counts)
        return err->status;
    int64_t *indices = slots ? read_indices(p, slots, 1, stream, err) : NULL;
    rssm_status status = slots && !indices ? err->status : RSSM_OK;
    if (!status && indices)
        status = check_unique(p, RSSM_T_STATE_INDICES, indices, 1, B, S, err);
    for (int64_t i = 0; !status && i < B; i++)
        if (!is_padding(p, indices ? indices[i] : i, S))
            status = check_cursor(p, RSSM_T_WRITE_POS, i, 0, counts[i], err);
    rssm_mem_free(&p->mem, indices, (size_t)B * sizeof(*indices));
    rssm_mem_free(&p->mem, counts, (size_t)B * sizeof(*counts));
    return status;
}

rssm_status rssm_check_decode_deep(const rssm_plugin *p, const rssm_decode_args *args, const rssm_dims_of *dims,
                                   rssm_error *err)
{
    rssm_status status = need_prepare(p, "RSSM_CHECK_DEEP", err);
    if (status || dims->of[RSSM_SYM_B] == 0)
        return status;
    int64_t S = dims->of[RSSM_SYM_S];
    const DLTensor *rows = rssm_given(args, RSSM_T_ROWS);
    if (rows)
        return check_rows_deep(p, rows, S, args->stream, err);
    return check_positions_deep(p, rssm_given(args, RSSM_T_WRITE_POS), rssm_given(args, RSSM_T_STATE_INDICES), S,
                                args->stream, err);
}

rssm_status rssm_check_step_begin_deep(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    int64_t B = args->slots->shape[0], S = p->pool.S;
    if (B == 0)
        return RSSM_OK;
    int64_t *slots = read_indices(p, args->slots, 1, args->stream, err);
    if (!slots)
        return err->status;
    rssm_status status = check_unique(p, RSSM_T_SLOTS, slots, 1, B, S, err);
    for (int64_t i = 0; !status && i < B; i++) {
        int32_t cursor[4];
        if (is_padding(p, slots[i], S))
            continue;
        status = p->backend->to_host(p->ctx, cursor, p->pool.cursor + slots[i] * p->pool.cursor_slot, sizeof(cursor),
                                     args->stream, err);
        if (!status)
            status = check_cursor(p, RSSM_T_CURSOR, slots[i], cursor[0], cursor[1], err);
    }
    rssm_mem_free(&p->mem, slots, (size_t)B * sizeof(*slots));
    return status;
}
