#include "core/deep.h"

#include <stdio.h>
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
    const int32_t most = RSSM_MOST_RECORDS(p->rank.L);
    rssm_where where = {.role = role, .dim = 0, .expected = most, .got = count};
    if (count < 0 || count > most)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`%s` row %lld: count %lld is not in 0..%d",
                            rssm_role_name(role), (long long)row, (long long)count, most);
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

/* What a row of rows[B, 8] says. */
typedef struct row_values {
    int64_t slot, base, count, flush, conv, start, len;
} row_values;

static row_values row_at(const int64_t *values, int64_t i)
{
    const int64_t *r = values + i * RSSM_ROW_WIDTH;
    /* No values, no rows: the callers have a status then. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    return (row_values){r[0], r[1], r[2], r[3], r[4], r[5], r[6]};
}

/* What makes a row one that the call's begin has written; NULL when nothing speaks against it. */
static const char *wrong_row(const rssm_plugin *p, rssm_call call, const row_values *r, int64_t i, int64_t S)
{
    bool plain = call == RSSM_CALL_DECODE || call == RSSM_CALL_CONV;
    bool conv = call == RSSM_CALL_CONV || call == RSSM_CALL_CONV_VERIFY;
    if (r->slot < -1 || r->slot >= S)
        return "its slot is out of range";
    if (r->flush & ~1)
        return "flush is neither 0 nor 1";
    if (conv && (r->conv < 0 || r->conv >= p->rank.conv_len))
        return "its convolution position is out of range";
    if (plain && (r->start != i || r->len != 1))
        return "start and len are not those of one token";
    bool ends =
        r->count >= p->rank.L - 1 && r->count <= RSSM_MOST_RECORDS(p->rank.L); /* beyond: check_cursor says so */
    if (plain)
        return ends && !r->flush && !is_padding(p, r->slot, S) ? "flush is not what step_begin decides" : NULL;
    if (r->len < 0 || r->len > p->args.max_draft_tokens + 1)
        return "its window is longer than max_draft_tokens + 1, or below 0";
    bool folds = r->count + r->len > p->rank.L;
    if (call == RSSM_CALL_VERIFY && r->slot >= 0 && r->flush != (folds ? 1 : 0))
        return "flush is not what verify_begin decides";
    return NULL;
}

static rssm_status fail_row(rssm_call call, const row_values *r, int64_t i, int64_t S, const char *why, rssm_error *err)
{
    bool plain = call == RSSM_CALL_DECODE || call == RSSM_CALL_CONV;
    return rssm_fail_at(err, RSSM_ERR_VALUE, (rssm_where){.role = RSSM_T_ROWS, .dim = 0, .expected = S, .got = r->slot},
                        "`rows` row %lld (slot %lld) was not written by %s for %lld slots: %s", (long long)i,
                        (long long)r->slot, plain ? "step_begin" : "verify_begin", (long long)S, why);
}

/* Tokens of the rows: within the call's, none in two rows. */
static rssm_status check_spans(const int64_t *values, int64_t B, int64_t tokens, rssm_error *err)
{
    int64_t end = 0;
    for (int64_t i = 0; i < B; i++) {
        row_values r = row_at(values, i);
        rssm_where where = {.role = RSSM_T_ROWS, .dim = 0, .expected = tokens, .got = r.start + r.len};
        if (r.len == 0)
            continue;
        if (r.start < end || r.start + r.len > tokens)
            return rssm_fail_at(err, RSSM_ERR_VALUE, where,
                                "`rows` row %lld has tokens %lld..%lld; they must lie in %lld..%lld (after the row "
                                "before, within the inputs)",
                                (long long)i, (long long)r.start, (long long)(r.start + r.len - 1), (long long)end,
                                (long long)(tokens - 1));
        end = r.start + r.len;
    }
    return RSSM_OK;
}

/* dims: B, S, and with windows T. */
static rssm_status check_rows_deep(const rssm_plugin *p, rssm_call call, const DLTensor *rows, const rssm_dims_of *dims,
                                   void *stream, rssm_error *err)
{
    int64_t B = rows->shape[0], S = dims->of[RSSM_SYM_S];
    int64_t *values = read_indices(p, rows, RSSM_ROW_WIDTH, stream, err);
    if (!values)
        return err->status;
    rssm_status status = check_unique(p, RSSM_T_ROWS, values, RSSM_ROW_WIDTH, B, S, err);
    for (int64_t i = 0; !status && i < B; i++) {
        row_values row = row_at(values, i);
        const char *why = wrong_row(p, call, &row, i, S);
        if (why)
            status = fail_row(call, &row, i, S, why, err);
        else if (!is_padding(p, row.slot, S))
            status = check_cursor(p, RSSM_T_ROWS, i, row.base, row.count, err);
    }
    if (!status && dims->of[RSSM_SYM_T] >= 0)
        status = check_spans(values, B, dims->of[RSSM_SYM_T], err);
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

rssm_status rssm_check_call_deep(const rssm_plugin *p, rssm_call call, const rssm_decode_args *args,
                                 const rssm_dims_of *dims, rssm_error *err)
{
    rssm_status status = need_prepare(p, "RSSM_CHECK_DEEP", err);
    if (status || dims->of[RSSM_SYM_B] == 0)
        return status;
    int64_t S = dims->of[RSSM_SYM_S];
    const DLTensor *rows = rssm_given(args, RSSM_T_ROWS);
    if (rows)
        return check_rows_deep(p, call, rows, dims, args->stream, err);
    return check_positions_deep(p, rssm_given(args, RSSM_T_WRITE_POS), rssm_given(args, RSSM_T_STATE_INDICES), S,
                                args->stream, err);
}

/* ---- cursors of the pool ---------------------------------------------------------------------------------------- */

rssm_status rssm_check_cursor_values(const rssm_plugin *p, rssm_status failure, const int32_t cursor[4],
                                     const char *where, rssm_error *err)
{
    const struct {
        const char *name;
        int32_t most;
    } parts[] = {{"base", p->rank.R - 1},
                 {"count", RSSM_MOST_RECORDS(p->rank.L)},
                 {"conv", p->rank.conv_len > 0 ? p->rank.conv_len - 1 : 0},
                 {"short", p->rank.L - 1}};
    for (int i = 0; i < 4; i++)
        if (cursor[i] < 0 || cursor[i] > parts[i].most)
            return rssm_fail_at(
                err, failure,
                (rssm_where){.role = RSSM_T_CURSOR, .dim = 1, .expected = parts[i].most, .got = cursor[i]},
                "`cursor` of %s: %s %d is not in 0..%d", where, parts[i].name, cursor[i], parts[i].most);
    return RSSM_OK;
}

static rssm_status read_cursor(const rssm_plugin *p, int64_t slot, int32_t cursor[4], void *stream, rssm_error *err)
{
    return p->backend->to_host(p->ctx, cursor, p->pool.cursor + slot * p->pool.cursor_slot,
                               RSSM_CURSOR_WIDTH * sizeof(*cursor), stream, err);
}

/* Entries of a list that the pool has: no slot twice (when unique), cursors in range. */
static rssm_status check_slot_values(const rssm_plugin *p, const rssm_slot_list *list, const int64_t *slots, int64_t n,
                                     void *stream, rssm_error *err)
{
    rssm_status status = list->unique ? check_unique(p, list->role, slots, 1, n, p->pool.S, err) : RSSM_OK;
    for (int64_t i = 0; list->cursors && !status && i < n; i++) {
        int32_t cursor[4];
        char where[40];
        if (is_padding(p, slots[i], p->pool.S))
            continue;
        status = read_cursor(p, slots[i], cursor, stream, err);
        snprintf(where, sizeof(where), "slot %lld", (long long)slots[i]);
        if (!status)
            status = rssm_check_cursor_values(p, RSSM_ERR_VALUE, cursor, where, err);
    }
    return status;
}

rssm_status rssm_check_slots_deep(const rssm_plugin *p, const rssm_slot_list *list, void *stream, rssm_error *err)
{
    int64_t n = list->tensor->shape[0];
    if (n == 0)
        return RSSM_OK;
    int64_t *slots = read_indices(p, list->tensor, 1, stream, err);
    if (!slots)
        return err->status;
    rssm_status status = check_slot_values(p, list, slots, n, stream, err);
    rssm_mem_free(&p->mem, slots, (size_t)n * sizeof(*slots));
    return status;
}

rssm_status rssm_check_step_begin_deep(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    const rssm_slot_list list = {args->slots, RSSM_T_SLOTS, .unique = true, .cursors = true};
    return rssm_check_slots_deep(p, &list, args->stream, err);
}

/* ---- copy ------------------------------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* A pair with one side in the pool is half a copy: -1 when there is none. */
static int64_t find_half_pair(const rssm_plugin *p, const int64_t *src, const int64_t *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (is_padding(p, src[i], p->pool.S) != is_padding(p, dst[i], p->pool.S))
            return i;
    return -1;
}

/* The first entry of dst that src has too; sorts src. -1 when there is none. */
static int64_t find_in_both(const rssm_plugin *p, int64_t *src, const int64_t *dst, int64_t n)
{
    qsort(src, (size_t)n, sizeof(*src), by_number);
    for (int64_t i = 0; i < n; i++)
        if (!is_padding(p, dst[i], p->pool.S) && bsearch(&dst[i], src, (size_t)n, sizeof(*src), by_number))
            return i;
    return -1;
}

static rssm_status check_pairs(const rssm_plugin *p, int64_t *src, const int64_t *dst, int64_t n, rssm_error *err)
{
    int64_t i = find_half_pair(p, src, dst, n);
    if (i >= 0)
        return rssm_fail_at(err, RSSM_ERR_VALUE,
                            (rssm_where){.role = is_padding(p, src[i], p->pool.S) ? RSSM_T_SRC_SLOTS : RSSM_T_DST_SLOTS,
                                         .dim = 0,
                                         .expected = p->pool.S,
                                         .got = is_padding(p, src[i], p->pool.S) ? src[i] : dst[i]},
                            "pair %lld copies slot %lld to slot %lld: one of them alone is out of range (%lld slots)",
                            (long long)i, (long long)src[i], (long long)dst[i], (long long)p->pool.S);
    i = find_in_both(p, src, dst, n);
    if (i >= 0)
        return rssm_fail_at(err, RSSM_ERR_VALUE, (rssm_where){.role = RSSM_T_DST_SLOTS, .dim = 0, .got = dst[i]},
                            "slot %lld (row %lld of `dst_slots`) is in `src_slots` too", (long long)dst[i],
                            (long long)i);
    return RSSM_OK;
}

rssm_status rssm_check_copy_deep(const rssm_plugin *p, const rssm_copy_args *args, rssm_error *err)
{
    const rssm_slot_list from = {args->src, RSSM_T_SRC_SLOTS, .cursors = true};
    const rssm_slot_list to = {args->dst, RSSM_T_DST_SLOTS, .unique = true};
    int64_t n = args->src->shape[0];
    rssm_status status = rssm_check_slots_deep(p, &to, args->stream, err);
    if (!status)
        status = rssm_check_slots_deep(p, &from, args->stream, err);
    if (status || n == 0)
        return status;
    int64_t *src = read_indices(p, args->src, 1, args->stream, err);
    int64_t *dst = src ? read_indices(p, args->dst, 1, args->stream, err) : NULL;
    status = dst ? check_pairs(p, src, dst, n, err) : err->status;
    rssm_mem_free(&p->mem, src, (size_t)n * sizeof(*src));
    rssm_mem_free(&p->mem, dst, (size_t)n * sizeof(*dst));
    return status;
}

/* ---- verify ----------------------------------------------------------------------------------------------------- */

/* cu_seqlens[B + 1]: from 0, not decreasing, no window above max_T. */
static rssm_status check_windows(const int64_t *ends, int64_t B, int32_t max_T, rssm_error *err)
{
    rssm_where where = {.role = RSSM_T_CU_SEQLENS, .dim = 0, .got = ends[0]};
    if (ends[0] != 0)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`cu_seqlens` must start at 0; got %lld", (long long)ends[0]);
    for (int64_t b = 0; b < B; b++) {
        where.expected = ends[b];
        where.got = ends[b + 1];
        if (ends[b + 1] < ends[b])
            return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`cu_seqlens` decreases at entry %lld: %lld after %lld",
                                (long long)b + 1, (long long)ends[b + 1], (long long)ends[b]);
        where.expected = max_T;
        where.got = ends[b + 1] - ends[b];
        if (ends[b + 1] - ends[b] > max_T)
            return rssm_fail_at(err, RSSM_ERR_VALUE, where,
                                "`cu_seqlens` gives row %lld a window of %lld tokens; "
                                "max_T = %d",
                                (long long)b, (long long)where.got, max_T);
    }
    return RSSM_OK;
}

rssm_status rssm_check_verify_begin_deep(const rssm_plugin *p, const rssm_verify_begin_args *args, rssm_error *err)
{
    const rssm_slot_list list = {args->slots, RSSM_T_SLOTS, .unique = true, .cursors = true};
    int64_t B = args->slots->shape[0];
    rssm_status status = rssm_check_slots_deep(p, &list, args->stream, err);
    if (status)
        return status;
    int64_t *ends = read_indices(p, args->cu_seqlens, 1, args->stream, err);
    if (!ends)
        return err->status;
    status = check_windows(ends, B, args->max_T, err);
    rssm_mem_free(&p->mem, ends, (size_t)(B + 1) * sizeof(*ends));
    return status;
}

/* One row of a commit: its count, and is the cursor where verify_begin left it? */
static rssm_status check_commit_row(const rssm_plugin *p, const row_values *row, int64_t i, int64_t accepted,
                                    void *stream, rssm_error *err)
{
    if (accepted < 0 || accepted > row->len)
        return rssm_fail_at(err, RSSM_ERR_VALUE,
                            (rssm_where){.role = RSSM_T_ACCEPTED, .dim = 0, .expected = row->len, .got = accepted},
                            "`accepted` row %lld: %lld is not in 0..%lld, the tokens of the window", (long long)i,
                            (long long)accepted, (long long)row->len);
    int32_t cursor[4];
    rssm_status status = read_cursor(p, row->slot, cursor, stream, err);
    if (status)
        return status;
    int64_t base = row->flush ? (row->base + row->count) % p->rank.R : row->base, count = row->flush ? 0 : row->count;
    if (cursor[0] == base && cursor[1] == count && cursor[2] == row->conv)
        return RSSM_OK;
    return rssm_fail_at(
        err, RSSM_ERR_VALUE, (rssm_where){.role = RSSM_T_CURSOR, .dim = 0, .expected = count, .got = cursor[1]},
        "slot %lld has moved since verify_begin (committed before?): base, count, conv were %lld, "
        "%lld, %lld and are %d, %d, %d",
        (long long)row->slot, (long long)base, (long long)count, (long long)row->conv, cursor[0], cursor[1], cursor[2]);
}

rssm_status rssm_check_commit_deep(const rssm_plugin *p, const rssm_commit_args *args, rssm_error *err)
{
    int64_t B = args->rows->shape[0];
    rssm_dims_of dims = p->rank.dims;
    dims.of[RSSM_SYM_S] = p->pool.S;
    if (B == 0)
        return RSSM_OK;
    rssm_status status = check_rows_deep(p, RSSM_CALL_VERIFY, args->rows, &dims, args->stream, err);
    if (status)
        return status;
    int64_t *rows = read_indices(p, args->rows, RSSM_ROW_WIDTH, args->stream, err);
    int64_t *accepted = rows ? read_indices(p, args->accepted, 1, args->stream, err) : NULL;
    status = accepted ? RSSM_OK : err->status;
    for (int64_t i = 0; !status && i < B; i++) {
        row_values row = row_at(rows, i);
        if (!is_padding(p, row.slot, p->pool.S))
            /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): status says whether it is there */
            status = check_commit_row(p, &row, i, accepted[i], args->stream, err);
    }
    rssm_mem_free(&p->mem, accepted, (size_t)B * sizeof(*accepted));
    rssm_mem_free(&p->mem, rows, (size_t)(B * RSSM_ROW_WIDTH) * sizeof(*rows));
    return status;
}
