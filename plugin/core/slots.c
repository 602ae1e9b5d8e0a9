#include "core/slots.h"

#include <stdio.h>
#include <string.h>

#include "core/decode.h"
#include "core/deep.h"
#include "core/error.h"
#include "core/stream.h"
#include "core/validate.h"

/* A tensor that the host gave for a layer, by the memory that it spans. */
typedef struct layer_span {
    uintptr_t first, end;
    const DLTensor *tensor;
    int32_t role, layer;
} layer_span;

struct rssm_slot_scratch {
    rssm_state_layer *layers; /* [num_layers]     */
    layer_span *spans;        /* [2 * num_layers] */
};

rssm_slot_scratch *rssm_slot_scratch_make(rssm_arena *arena, int32_t num_layers)
{
    rssm_slot_scratch *scratch = rssm_arena_alloc(arena, sizeof(*scratch));
    if (!scratch)
        return NULL;
    scratch->layers = rssm_arena_alloc(arena, (size_t)num_layers * sizeof(*scratch->layers));
    scratch->spans = rssm_arena_alloc(arena, 2 * (size_t)num_layers * sizeof(*scratch->spans));
    return scratch->layers && scratch->spans ? scratch : NULL;
}

/* ---- checks that the operations share --------------------------------------------------------------------------- */

static rssm_status need_pool(const rssm_plugin *p, const char *what, rssm_error *err)
{
    return p->pool.regions ? RSSM_OK : rssm_fail(err, RSSM_ERR_STATE, "%s before pool_create", what);
}

static rssm_status check_apart_from_pool(const rssm_plugin *p, int32_t role, const DLTensor *t, rssm_error *err)
{
    const char *with = rssm_pool_overlap(p, t);
    if (!with)
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_OVERLAP, (rssm_where){.role = role, .dim = -1},
                        "`%s` shares memory with the pool's `%s`", rssm_role_name(role), with);
}

/* slots[n], src or dst; n is bound by the first. */
static rssm_status check_slot_list(const rssm_plugin *p, int32_t role, const DLTensor *t, rssm_dims_of *dims,
                                   rssm_error *err)
{
    if (!t)
        return rssm_missing(role, "", err);
    rssm_status status = rssm_check_list(p, role, RSSM_SYM_N, t, dims, err);
    if (!status && dims->of[RSSM_SYM_N] > INT32_MAX)
        status = rssm_fail_at(err, RSSM_ERR_SHAPE,
                              (rssm_where){.role = role, .dim = 0, .expected = INT32_MAX, .got = dims->of[RSSM_SYM_N]},
                              "`%s` has %lld entries; at most 2^31 - 1", rssm_role_name(role),
                              (long long)dims->of[RSSM_SYM_N]);
    return status ? status : check_apart_from_pool(p, role, t, err);
}

/* Says in which layer. */
static rssm_status in_layer(rssm_status status, int32_t layer, rssm_error *err)
{
    size_t used = status ? strlen(err->message) : 0;
    if (status && used + 24 < sizeof(err->message))
        snprintf(err->message + used, sizeof(err->message) - used, " (layer %d)", layer);
    return status;
}

static rssm_status check_num_layers(const rssm_plugin *p, uint32_t num_layers, const char *why, rssm_error *err)
{
    if (num_layers == (uint32_t)p->rank.num_linear)
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_ARGUMENT,
                        (rssm_where){.dim = -1, .expected = p->rank.num_linear, .got = num_layers},
                        "num_layers = %u; this instance has %d linear layers%s", num_layers, p->rank.num_linear, why);
}

/* ---- decay weights ---------------------------------------------------------------------------------------------- */

/* A_log or A per layer. */
typedef struct decay_weights {
    const DLTensor *const *A_log;
    const DLTensor *const *A;
} decay_weights;

/* Mamba-2 folds pending records with them: exactly one. Nobody else has a use for them. */
static rssm_status check_decay_given(const rssm_plugin *p, const decay_weights *w, bool folds, rssm_error *err)
{
    int32_t role = w->A ? RSSM_T_A_DECAY : RSSM_T_A_LOG;
    bool needed = folds && p->model.family == RSSM_FAMILY_MAMBA2;
    if (!needed && (w->A_log || w->A))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = role, .dim = -1},
                            folds ? "`%s` must be absent: the ring of %s holds log decays" : "`%s` must be absent%s",
                            rssm_role_name(role), folds ? p->rank.family->name : ": an import folds nothing");
    if (needed && w->A_log && w->A)
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = role, .dim = -1},
                            "`A` and `A_log` are the same weight: give one of them");
    if (needed && !w->A_log && !w->A)
        return rssm_missing(RSSM_T_A_LOG, ": Mamba-2's ring holds dt, so folding it needs `A_log`, or `A`", err);
    return RSSM_OK;
}

static const DLTensor *decay_of(const decay_weights *w, int32_t layer)
{
    return w->A ? w->A[layer] : w->A_log ? w->A_log[layer] : NULL;
}

static rssm_status check_decay(const rssm_plugin *p, const decay_weights *w, int32_t layer, rssm_error *err)
{
    if (!w->A_log && !w->A)
        return RSSM_OK;
    int32_t role = w->A ? RSSM_T_A_DECAY : RSSM_T_A_LOG;
    const DLTensor *t = decay_of(w, layer);
    rssm_dims_of dims = p->rank.dims;
    if (!t)
        return rssm_missing(role, "", err);
    rssm_status status = rssm_check_tensor(p, rssm_family_role(p->rank.family, role), t, &dims, err);
    return status ? status : check_apart_from_pool(p, role, t, err);
}

/* ---- import and export ------------------------------------------------------------------------------------------ */

/* The pool's line of the table, for a host's tensor with rows instead of slots. */
static rssm_role_spec row_spec(const rssm_plugin *p, int32_t role, bool export)
{
    rssm_role_spec spec = *rssm_family_role(p->rank.family, role);
    spec.shape[0] = RSSM_SYM_N;
    spec.kinds = RSSM_KIND_FLOAT;
    spec.place = export ? RSSM_PLACE_OUTPUT : RSSM_PLACE_INPUT;
    return spec;
}

/* [n, HV, V, K], or [n, HV, K, V] */
static rssm_role_spec state_spec(const rssm_plugin *p, int32_t order, bool export)
{
    rssm_role_spec spec = row_spec(p, RSSM_T_STATE, export);
    if (order == RSSM_STATE_KV) {
        uint8_t V = spec.shape[2];
        spec.shape[2] = spec.shape[3];
        spec.shape[3] = V;
    }
    return spec;
}

/* [n, channels, w - 1] */
static rssm_role_spec conv_spec(const rssm_plugin *p, bool export)
{
    rssm_role_spec spec = row_spec(p, RSSM_T_CONV, export);
    spec.shape[2] = RSSM_SYM_PAST;
    return spec;
}

static rssm_status check_state_head(const rssm_plugin *p, const rssm_state_args *args, bool export, rssm_error *err)
{
    const decay_weights w = {args->A_log, args->A};
    rssm_status status = need_pool(p, export ? "export_state" : "import_state", err);
    if (!status)
        status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = rssm_check_reserved(args->reserved_, err);
    if (!status && args->order != RSSM_STATE_VK && args->order != RSSM_STATE_KV)
        status = rssm_fail(err, RSSM_ERR_ARGUMENT, "order = %d is neither RSSM_STATE_VK (0) nor RSSM_STATE_KV (1)",
                           args->order);
    if (!status && !args->states)
        status = rssm_missing(RSSM_T_STATE, ": states is NULL", err);
    if (!status)
        status = check_num_layers(p, args->num_layers, "", err);
    if (!status && args->conv && p->rank.conv_len == 0)
        status = rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_CONV, .dim = -1},
                              "`conv` must be absent: the pool holds no convolution history");
    return status ? status : check_decay_given(p, &w, export, err);
}

static rssm_status check_row_tensor(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t,
                                    rssm_dims_of *dims, rssm_error *err)
{
    if (!t)
        return rssm_missing(spec->role, "", err);
    rssm_status status = rssm_check_tensor(p, spec, t, dims, err);
    return status ? status : check_apart_from_pool(p, spec->role, t, err);
}

/* Shell's sort: hosts give layers in the order of their addresses, or nearly. */
static void sort_spans(layer_span *spans, int64_t count)
{
    for (int64_t gap = count / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < count; i++) {
            layer_span moving = spans[i];
            int64_t at = i;
            for (; at >= gap && spans[at - gap].first > moving.first; at -= gap)
                spans[at] = spans[at - gap];
            spans[at] = moving;
        }
}

static rssm_status fail_spans(const layer_span *a, const layer_span *b, rssm_error *err)
{
    return rssm_fail_at(err, RSSM_ERR_OVERLAP, (rssm_where){.role = a->role, .dim = -1, .expected = b->role},
                        "`%s` of layer %d is written and shares memory with `%s` of layer %d", rssm_role_name(a->role),
                        a->layer, rssm_role_name(b->role), b->layer);
}

static int64_t collect_spans(const rssm_plugin *p, const rssm_state_args *args)
{
    layer_span *spans = p->slot_scratch->spans;
    int64_t count = 0;
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
        for (int conv = 0; conv < (args->conv ? 2 : 1); conv++) {
            const DLTensor *t = conv ? args->conv[layer] : args->states[layer];
            uintptr_t first = (uintptr_t)rssm_tensor_data(t);
            spans[count++] = (layer_span){.first = first,
                                          .end = first + (uintptr_t)rssm_tensor_bytes(t),
                                          .tensor = t,
                                          .role = conv ? RSSM_T_CONV : RSSM_T_STATE,
                                          .layer = layer};
        }
    return count;
}

/* What an export writes overlaps with no other tensor of the call. */
static rssm_status check_outputs_apart(const rssm_plugin *p, const rssm_state_args *args, rssm_error *err)
{
    const decay_weights w = {args->A_log, args->A};
    int64_t count = collect_spans(p, args);
    const layer_span *spans = p->slot_scratch->spans;
    sort_spans(p->slot_scratch->spans, count);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = i + 1; j < count && spans[j].first < spans[i].end; j++)
            if (rssm_tensors_overlap(spans[i].tensor, spans[j].tensor))
                return fail_spans(&spans[i], &spans[j], err);
        layer_span read = {.tensor = args->slots, .role = RSSM_T_SLOTS, .layer = spans[i].layer};
        if (rssm_tensors_overlap(spans[i].tensor, read.tensor))
            return fail_spans(&spans[i], &read, err);
        read = (layer_span){.tensor = decay_of(&w, spans[i].layer),
                            .role = w.A ? RSSM_T_A_DECAY : RSSM_T_A_LOG,
                            .layer = spans[i].layer};
        if (read.tensor && rssm_tensors_overlap(spans[i].tensor, read.tensor))
            return fail_spans(&spans[i], &read, err);
    }
    return RSSM_OK;
}

static rssm_status check_state_args(const rssm_plugin *p, const rssm_state_args *args, bool export, rssm_error *err)
{
    const decay_weights w = {args->A_log, args->A};
    rssm_dims_of dims = p->rank.dims;
    rssm_status status = check_state_head(p, args, export, err);
    if (!status)
        status = check_slot_list(p, RSSM_T_SLOTS, args->slots, &dims, err);
    if (status)
        return status;
    const rssm_role_spec state = state_spec(p, args->order, export), conv = conv_spec(p, export);
    for (int32_t layer = 0; !status && layer < p->rank.num_linear; layer++) {
        status = check_row_tensor(p, &state, args->states[layer], &dims, err);
        if (!status && args->conv)
            status = check_row_tensor(p, &conv, args->conv[layer], &dims, err);
        if (!status)
            status = check_decay(p, &w, layer, err);
        status = in_layer(status, layer, err);
    }
    if (!status && export)
        status = check_outputs_apart(p, args, err);
    const rssm_slot_list list = {args->slots, RSSM_T_SLOTS, .unique = !export, .cursors = export};
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_slots_deep(p, &list, args->stream, err);
    return status;
}

static int64_t row_of(const DLTensor *t)
{
    return t ? rssm_tensor_stride0(t) : 0;
}

/* In the instance's scratch: valid until its next call. */
static rssm_state_io make_state_io(const rssm_plugin *p, const rssm_state_args *args)
{
    const decay_weights w = {args->A_log, args->A};
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++) {
        const DLTensor *state = args->states ? args->states[layer] : NULL;
        const DLTensor *conv = args->conv ? args->conv[layer] : NULL;
        p->slot_scratch->layers[layer] = (rssm_state_layer){
            .state = state ? rssm_tensor_data(state) : NULL,
            .state_row = row_of(state),
            .conv = conv ? rssm_tensor_data(conv) : NULL,
            .conv_row = row_of(conv),
            .state_dtype = state ? rssm_dtype_of(state) : 0,
            .conv_dtype = conv ? rssm_dtype_of(conv) : 0,
            .decay = rssm_input_of(decay_of(&w, layer)),
        };
    }
    return (rssm_state_io){
        .n = args->slots->shape[0], /* checked. NOLINT(clang-analyzer-core.NullDereference) */
        .slots = rssm_index_of(args->slots),
        .layers = p->slot_scratch->layers,
        .transposed = args->order == RSSM_STATE_KV,
        .decay_is_A = args->A != NULL,
        .fault = p->backend->fault_word(p->ctx),
    };
}

rssm_status rssm_import_call(rssm_plugin *p, const rssm_state_args *args, rssm_error *err)
{
    rssm_status status = check_state_args(p, args, false, err);
    if (status)
        return status;
    if (!p->backend->import_state)
        return rssm_no_entry(p, "import_state", err);
    rssm_state_io io = make_state_io(p, args);
    return io.n ? p->backend->import_state(p->ctx, &io, args->stream, err) : RSSM_OK;
}

rssm_status rssm_export_call(rssm_plugin *p, const rssm_state_args *args, rssm_error *err)
{
    rssm_status status = check_state_args(p, args, true, err);
    if (status)
        return status;
    if (!p->backend->export_state)
        return rssm_no_entry(p, "export_state", err);
    rssm_state_io io = make_state_io(p, args);
    return io.n ? p->backend->export_state(p->ctx, &io, args->stream, err) : RSSM_OK;
}

/* ---- flush ------------------------------------------------------------------------------------------------------ */

static rssm_status check_flush(const rssm_plugin *p, const rssm_flush_args *args, rssm_error *err)
{
    const decay_weights w = {args->A_log, args->A};
    rssm_dims_of dims = p->rank.dims;
    rssm_status status = need_pool(p, "flush", err);
    if (!status)
        status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = check_decay_given(p, &w, true, err);
    if (!status && p->model.family == RSSM_FAMILY_MAMBA2)
        status = check_num_layers(p, args->num_layers, "", err);
    else if (!status && args->num_layers)
        status = rssm_fail(err, RSSM_ERR_ARGUMENT, "num_layers = %u without `A_log` or `A`; set 0", args->num_layers);
    if (!status)
        status = check_slot_list(p, RSSM_T_SLOTS, args->slots, &dims, err);
    for (int32_t layer = 0; !status && layer < p->rank.num_linear; layer++)
        status = in_layer(check_decay(p, &w, layer, err), layer, err);
    const rssm_slot_list list = {args->slots, RSSM_T_SLOTS, .unique = true, .cursors = true};
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_slots_deep(p, &list, args->stream, err);
    return status;
}

rssm_status rssm_flush_call(rssm_plugin *p, const rssm_flush_args *args, rssm_error *err)
{
    rssm_status status = check_flush(p, args, err);
    if (status)
        return status;
    if (!p->backend->flush)
        return rssm_no_entry(p, "flush", err);
    const rssm_state_args as_state = {.slots = args->slots, .A_log = args->A_log, .A = args->A};
    rssm_state_io io = make_state_io(p, &as_state);
    return io.n ? p->backend->flush(p->ctx, &io, args->stream, err) : RSSM_OK;
}

/* ---- copy ------------------------------------------------------------------------------------------------------- */

static rssm_status check_copy(const rssm_plugin *p, const rssm_copy_args *args, rssm_error *err)
{
    rssm_dims_of dims = p->rank.dims;
    rssm_status status = need_pool(p, "copy", err);
    if (!status)
        status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = rssm_check_reserved(args->reserved_, err);
    if (!status)
        status = check_slot_list(p, RSSM_T_SRC_SLOTS, args->src, &dims, err);
    if (!status)
        status = check_slot_list(p, RSSM_T_DST_SLOTS, args->dst, &dims, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_copy_deep(p, args, err);
    return status;
}

rssm_status rssm_copy_call(rssm_plugin *p, const rssm_copy_args *args, rssm_error *err)
{
    rssm_status status = check_copy(p, args, err);
    if (status)
        return status;
    if (!p->backend->copy)
        return rssm_no_entry(p, "copy", err);
    const rssm_slot_copy copy = {.n = args->src->shape[0],
                                 .src = rssm_index_of(args->src),
                                 .dst = rssm_index_of(args->dst),
                                 .fault = p->backend->fault_word(p->ctx)};
    return copy.n ? p->backend->copy(p->ctx, &copy, args->stream, err) : RSSM_OK;
}

/* ---- save and load ---------------------------------------------------------------------------------------------- */

/* A slot of the pool, by number, and a buffer in host memory that is not the pool's. */
static rssm_status check_saved(const rssm_plugin *p, const char *what, int64_t slot, const void *buffer, uint64_t bytes,
                               rssm_error *err)
{
    rssm_status status = need_pool(p, what, err);
    if (status)
        return status;
    rssm_where where = {.role = RSSM_T_SLOTS, .dim = -1, .expected = p->pool.S, .got = slot};
    if (slot < 0 || slot >= p->pool.S)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "slot %lld is not in 0..%lld", (long long)slot,
                            (long long)p->pool.S - 1);
    if (slot == p->pool.pad_slot)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "slot %lld is the pad slot", (long long)slot);
    if (!buffer)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "buffer is NULL");
    if (bytes > INT64_MAX)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "buffer_bytes = %llu is not a size", (unsigned long long)bytes);
    int64_t length = (int64_t)bytes;
    const DLTensor as_tensor = {.data = (void *)(uintptr_t)buffer,
                                .ndim = 1,
                                .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
                                .shape = &length};
    const char *with = rssm_pool_overlap(p, &as_tensor);
    return with ? rssm_fail(err, RSSM_ERR_OVERLAP, "the buffer shares memory with the pool's `%s`", with) : RSSM_OK;
}

rssm_status rssm_save_call(rssm_plugin *p, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                           void *stream, rssm_error *err)
{
    rssm_status status = check_saved(p, "save", slot, buffer, buffer_bytes, err);
    if (status)
        return status;
    if (!written)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "written is NULL");
    uint64_t bytes = rssm_stream_bytes(p);
    if (buffer_bytes < bytes)
        return rssm_fail_at(err, RSSM_ERR_ARGUMENT,
                            (rssm_where){.dim = -1, .expected = (int64_t)bytes, .got = (int64_t)buffer_bytes},
                            "buffer_bytes = %llu; a saved slot has %llu (saved_bytes)",
                            (unsigned long long)buffer_bytes, (unsigned long long)bytes);
    if (!p->backend->read_slot)
        return rssm_no_entry(p, "save", err);
    int32_t cursor[RSSM_CURSOR_WIDTH];
    char where[40];
    snprintf(where, sizeof(where), "slot %lld", (long long)slot);
    status =
        p->backend->to_host(p->ctx, cursor, p->pool.cursor + slot * p->pool.cursor_slot, sizeof(cursor), stream, err);
    if (!status)
        status = rssm_check_cursor_values(p, RSSM_ERR_VALUE, cursor, where, err);
    if (!status)
        status = p->backend->read_slot(p->ctx, slot, cursor, rssm_stream_payload(buffer), stream, err);
    if (!status) /* the cursor that came with the bytes is the one that counts */
        status = rssm_check_cursor_values(p, RSSM_ERR_VALUE, cursor, where, err);
    if (status)
        return status;
    rssm_stream_seal(p, cursor, buffer);
    *written = bytes;
    return RSSM_OK;
}

rssm_status rssm_load_call(rssm_plugin *p, int64_t slot, const void *buffer, uint64_t buffer_bytes, void *stream,
                           rssm_error *err)
{
    int32_t cursor[RSSM_CURSOR_WIDTH];
    rssm_status status = check_saved(p, "load", slot, buffer, buffer_bytes, err);
    if (!status)
        status = rssm_stream_check(p, buffer, buffer_bytes, cursor, err);
    if (status)
        return status;
    if (!p->backend->write_slot)
        return rssm_no_entry(p, "load", err);
    void *compact = NULL; /* where the pool has fewer tensors than the stream */
    const void *payload = rssm_stream_of_pool(p, buffer, &compact);
    if (!payload)
        return rssm_out_of_memory(err);
    status = p->backend->write_slot(p->ctx, slot, cursor, payload, stream, err);
    rssm_mem_free(&p->mem, compact, (size_t)p->layout.slot_total_bytes);
    return status;
}
