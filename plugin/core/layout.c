#include "core/layout.h"

#include <stdio.h>
#include <string.h>

#include "core/cost.h"
#include "core/error.h"
#include "rssm_step.h"

/* ---- tensor parallelism and pipeline range ---------------------------------------------------------------------- */

static rssm_status split_delta_heads(rssm_rank *rank, const rssm_model *m, rssm_error *err)
{
    int32_t tp = rank->tp_size;
    if (m->H % tp)
        return rssm_fail(err, RSSM_ERR_TP, "tp_size = %d does not divide %d key heads (H)", tp, m->H);
    if (m->HV % tp)
        return rssm_fail(err, RSSM_ERR_TP, "tp_size = %d does not divide %d value heads (HV)", tp, m->HV);
    rank->H = m->H / tp;
    rank->group_begin = rank->H * rank->tp_rank;
    return RSSM_OK;
}

/* ng % tp == 0 splits the groups; tp % ng == 0 gives rank r a copy of group r / (tp / ng). */
static rssm_status split_mamba_heads(rssm_rank *rank, const rssm_model *m, rssm_error *err)
{
    int32_t tp = rank->tp_size;
    if (m->HV % tp)
        return rssm_fail(err, RSSM_ERR_TP, "tp_size = %d does not divide %d Mamba-2 heads (nh)", tp, m->HV);
    if (m->H % tp == 0) {
        rank->H = m->H / tp;
        rank->group_begin = rank->H * rank->tp_rank;
    } else if (tp % m->H == 0) {
        rank->H = 1;
        rank->group_begin = rank->tp_rank / (tp / m->H);
    } else {
        return rssm_fail(err, RSSM_ERR_TP,
                         "tp_size = %d neither divides %d Mamba-2 groups (ng) nor is a multiple of them", tp, m->H);
    }
    return RSSM_OK;
}

static rssm_status split_heads(rssm_rank *rank, const rssm_model *m, const rssm_init_args *args, rssm_error *err)
{
    rank->tp_size = args->tp_size ? args->tp_size : 1;
    rank->tp_rank = args->tp_rank;
    if (rank->tp_size < 1 || rank->tp_size > RSSM_MAX_HEADS)
        return rssm_fail(err, RSSM_ERR_TP, "tp_size = %d is not in 1..%d", args->tp_size, RSSM_MAX_HEADS);
    if (rank->tp_rank < 0 || rank->tp_rank >= rank->tp_size)
        return rssm_fail(err, RSSM_ERR_TP, "tp_rank = %d is not in 0..%d (tp_size = %d)", args->tp_rank,
                         rank->tp_size - 1, rank->tp_size);
    rssm_status status =
        m->family == RSSM_FAMILY_MAMBA2 ? split_mamba_heads(rank, m, err) : split_delta_heads(rank, m, err);
    if (status)
        return status;
    rank->HV = m->HV / rank->tp_size;
    rank->head_begin = rank->HV * rank->tp_rank;
    rank->K = m->K;
    rank->V = m->V;
    return RSSM_OK;
}

static rssm_status pick_layers(rssm_rank *rank, const rssm_model *m, const rssm_init_args *args, rssm_error *err)
{
    int32_t begin = args->layer_begin, end = args->layer_end ? args->layer_end : m->num_layers;
    if (begin < 0 || end > m->num_layers || begin >= end)
        return rssm_fail(err, RSSM_ERR_ARGUMENT,
                         "layers [layer_begin, layer_end) = [%d, %d) are not a range of the model's %d layers",
                         args->layer_begin, args->layer_end, m->num_layers);
    int32_t first = 0;
    while (first < m->num_linear && m->linear_layers[first] < begin)
        first++;
    int32_t last = first;
    while (last < m->num_linear && m->linear_layers[last] < end)
        last++;
    if (first == last)
        return rssm_fail(err, RSSM_ERR_ARGUMENT,
                         "no linear layer of the model is in [layer_begin, layer_end) = [%d, %d)", begin, end);
    rank->linear_layers = m->linear_layers + first;
    rank->num_linear = last - first;
    return RSSM_OK;
}

/* ---- dtypes and the ring ---------------------------------------------------------------------------------------- */

static rssm_status pick_dtype(int32_t *out, int32_t asked, int32_t otherwise, const char *name, rssm_error *err)
{
    if (asked < RSSM_DTYPE_DEFAULT || asked > RSSM_DTYPE_FLOAT16)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s = %d is not an RSSM_DTYPE_* value", name, asked);
    *out = asked ? asked : otherwise;
    return RSSM_OK;
}

static rssm_status pick_dtypes(rssm_rank *rank, const rssm_model *m, const rssm_init_args *args, rssm_error *err)
{
    rssm_status status = pick_dtype(&rank->io_dtype, args->io_dtype, m->io_dtype, "io_dtype", err);
    if (!status)
        status = pick_dtype(&rank->state_dtype, args->state_dtype, m->state_dtype, "state_dtype", err);
    if (!status)
        status = pick_dtype(&rank->ring_dtype, args->ring_dtype, rank->io_dtype, "ring_dtype", err);
    return status;
}

static int32_t kind_bytes(const rssm_rank *rank, uint32_t kinds)
{
    if (kinds & RSSM_KIND_STATE)
        return rssm_dtype_bytes(rank->state_dtype);
    if (kinds & RSSM_KIND_RING)
        return rssm_dtype_bytes(rank->ring_dtype);
    if (kinds & RSSM_KIND_IO)
        return rssm_dtype_bytes(rank->io_dtype);
    return 4; /* float32 and int32 */
}

/* Elements of everything behind the first dimension (rows or slots). */
static bool inner_elements(const rssm_role_spec *spec, const rssm_dims_of *dims, int64_t *elements)
{
    *elements = 1;
    for (int i = 1; spec->shape[i] != RSSM_SYM_END; i++)
        if (__builtin_mul_overflow(*elements, dims->of[spec->shape[i]], elements))
            return false;
    return true;
}

static double inner_bytes(const rssm_rank *rank, const rssm_role_spec *spec)
{
    int64_t elements = 0;
    return inner_elements(spec, &rank->dims, &elements) ? (double)elements * kind_bytes(rank, spec->kinds) : 0;
}

/* With R = 1 in rank->dims the ring tensors' bytes are those of one row. */
static rssm_cost make_cost(rssm_rank *rank)
{
    rssm_cost cost = {0};
    rank->dims.of[RSSM_SYM_R] = 1;
    for (int32_t i = 0; i < rank->family->num_roles; i++) {
        const rssm_role_spec *spec = &rank->family->roles[i];
        bool in_step = spec->calls & RSSM_CALL_DECODE;
        if (spec->place == RSSM_PLACE_STATE) {
            cost.state_bytes += inner_bytes(rank, spec);
            cost.state_element_bytes = kind_bytes(rank, spec->kinds);
        } else if (spec->place == RSSM_PLACE_RING)
            cost.row_bytes += inner_bytes(rank, spec);
        else if (in_step && ((spec->place == RSSM_PLACE_INPUT && spec->need != RSSM_NEED_APART &&
                              spec->need != RSSM_NEED_OPTIONAL) ||
                             spec->place == RSSM_PLACE_OUTPUT))
            cost.io_bytes += inner_bytes(rank, spec);
    }
    return cost;
}

static rssm_status check_ring(const rssm_init_args *args, rssm_error *err)
{
    int32_t drafts = args->max_draft_tokens;
    if (drafts < 0 || drafts >= RSSM_MAX_RING)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "max_draft_tokens = %d is not in 0..%d", drafts, RSSM_MAX_RING - 1);
    if (args->ring_length < 0 || args->ring_length > RSSM_MAX_RING)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "ring_length = %d is not in 1..%d (0 = choose)", args->ring_length,
                         RSSM_MAX_RING);
    if (args->ring_length && drafts + 1 > args->ring_length)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "max_draft_tokens = %d needs ring_length >= %d; got %d", drafts,
                         drafts + 1, args->ring_length);
    return RSSM_OK;
}

/* Checked arguments. */
static rssm_status pick_ring(rssm_rank *rank, rssm_arena *arena, const rssm_init_args *args, rssm_error *err)
{
    int32_t drafts = args->max_draft_tokens;
    rssm_cost cost = make_cost(rank);
    rank->L = args->ring_length ? args->ring_length : rssm_cost_choose_ring(&cost, args->device_type, drafts + 1);
    rank->R = rank->L + (drafts ? drafts + 1 : 0);
    rank->dims.of[RSSM_SYM_R] = rank->R;
    rank->step_bytes = (int64_t)rssm_cost_step_bytes(&cost, rank->L);
    rank->step_bytes_read_write = (int64_t)rssm_cost_step_bytes(&cost, 1);
    rank->ring_reason = args->ring_length
                            ? rssm_arena_printf(arena, "L = %d as asked", rank->L)
                            : rssm_arena_printf(arena,
                                                "L = %d has the least modelled cost in %d..%d: state %.0f B, ring row "
                                                "%.0f B, %.0f B a step against %.0f B at L = 1",
                                                rank->L, drafts + 1, RSSM_MAX_RING, cost.state_bytes, cost.row_bytes,
                                                rssm_cost_step_bytes(&cost, rank->L), rssm_cost_step_bytes(&cost, 1));
    return rank->ring_reason ? RSSM_OK : rssm_out_of_memory(err);
}

/* ---- the layout hash -------------------------------------------------------------------------------------------- */

static uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ byte[i]) * 0x100000001B3u;
    return hash;
}

uint64_t rssm_layers_hash(const rssm_rank *rank)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (int32_t i = 0; i < rank->num_linear; i++) {
        uint32_t layer = (uint32_t)rank->linear_layers[i];
        unsigned char bytes[4] = {(unsigned char)layer, (unsigned char)(layer >> 8), (unsigned char)(layer >> 16),
                                  (unsigned char)(layer >> 24)};
        hash = fnv1a(hash, bytes, sizeof(bytes));
    }
    return hash;
}

/* A number in text that no locale changes. */
static unsigned long long bits(double number)
{
    unsigned long long as_bits;
    memcpy(&as_bits, &number, sizeof(as_bits));
    return as_bits;
}

/* Everything that two ranks of one model must agree on, and nothing of the head range or the number of slots. */
static rssm_status make_hash(rssm_rank *rank, rssm_arena *arena, const rssm_model *m, rssm_error *err)
{
    rank->hash_text = rssm_arena_printf(
        arena,
        "replayssm-layout/%d %s tp=%d heads=%d/%d of %d/%d dims=%dx%d conv=%dx%d ring=%d/%d io=%s state=%s ring=%s "
        "layers=%d#%016llx norm=%d bound=%d:%016llx beta=%016llx dt=%016llx:%016llx",
        RSSM_LAYOUT_VERSION, rank->family->name, rank->tp_size, rank->H, rank->HV, m->H, m->HV, rank->K, rank->V,
        rank->conv_channels, rank->conv_len, rank->L, rank->R, rssm_dtype_name(rank->io_dtype),
        rssm_dtype_name(rank->state_dtype), rssm_dtype_name(rank->ring_dtype), rank->num_linear,
        (unsigned long long)rssm_layers_hash(rank), m->qk_norm, m->has_lower_bound, bits(m->lower_bound),
        bits(m->beta_scale), bits(m->dt_min), bits(m->dt_max));
    if (!rank->hash_text)
        return rssm_out_of_memory(err);
    rank->hash = fnv1a(0xCBF29CE484222325u, rank->hash_text, strlen(rank->hash_text));
    return RSSM_OK;
}

/* ---- one rank --------------------------------------------------------------------------------------------------- */

static void set_dims(rssm_rank *rank, const rssm_model *m)
{
    int64_t *of = rank->dims.of;
    of[RSSM_SYM_B] = of[RSSM_SYM_S] = of[RSSM_SYM_N] = of[RSSM_SYM_T] = of[RSSM_SYM_B1] = -1;
    of[RSSM_SYM_H] = rank->H;
    of[RSSM_SYM_HV] = rank->HV;
    of[RSSM_SYM_K] = rank->K;
    of[RSSM_SYM_V] = rank->V;
    of[RSSM_SYM_HxK] = (int64_t)rank->H * rank->K;
    of[RSSM_SYM_HVxV] = (int64_t)rank->HV * rank->V;
    of[RSSM_SYM_HVxK] = (int64_t)rank->HV * rank->K;
    of[RSSM_SYM_PACKED] = 2 * of[RSSM_SYM_HxK] + of[RSSM_SYM_HVxV];
    of[RSSM_SYM_CONV] = rank->conv_len;
    of[RSSM_SYM_W] = m->conv_kernel;
    of[RSSM_SYM_PAST] = m->conv_kernel > 0 ? m->conv_kernel - 1 : 0;
    of[RSSM_SYM_CURSOR] = RSSM_CURSOR_WIDTH;
    of[RSSM_SYM_ROW] = RSSM_ROW_WIDTH;
}

static rssm_status pick_conv(rssm_rank *rank, const rssm_model *m, const rssm_init_args *args, rssm_error *err)
{
    int64_t channels = 2 * (int64_t)rank->H * rank->K + (int64_t)rank->HV * rank->V;
    if (channels > INT32_MAX)
        return rssm_fail(err, RSSM_ERR_OVERFLOW, "the packed row has %lld elements; at most 2^31 - 1",
                         (long long)channels);
    rank->conv_channels = (int32_t)channels;
    if (!(args->flags & RSSM_INIT_CONV_STATE))
        return RSSM_OK;
    if (m->conv_kernel < 2)
        return rssm_fail(err, RSSM_ERR_CONFIG,
                         "RSSM_INIT_CONV_STATE needs a short convolution of width >= 2; the model's is %d",
                         m->conv_kernel);
    rank->conv_len = m->conv_kernel - 1;
    if (args->max_draft_tokens > 0)
        rank->conv_len = m->conv_kernel + args->max_draft_tokens;
    return RSSM_OK;
}

rssm_status rssm_rank_resolve(rssm_rank *rank, rssm_arena *arena, const rssm_model *model, const rssm_init_args *args,
                              rssm_error *err)
{
    memset(rank, 0, sizeof(*rank));
    rank->family = rssm_family(model->family);
    rssm_status status = split_heads(rank, model, args, err);
    if (!status)
        status = pick_layers(rank, model, args, err);
    if (!status)
        status = pick_dtypes(rank, model, args, err);
    if (!status)
        status = check_ring(args, err);
    if (!status)
        status = pick_conv(rank, model, args, err);
    if (status)
        return status;
    set_dims(rank, model);
    status = pick_ring(rank, arena, args, err);
    return status ? status : make_hash(rank, arena, model, err);
}

/* ---- the layout ------------------------------------------------------------------------------------------------- */

static const char *symbolic_shape(rssm_arena *arena, const rssm_rank *rank, const uint8_t *shape)
{
    char text[128] = "[";
    size_t used = 1;
    for (int i = 0; shape[i] != RSSM_SYM_END; i++) {
        const char *name = shape[i] == RSSM_SYM_R && rank->R == rank->L ? "L" : rank->family->sym_name[shape[i]];
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "", name);
    }
    return rssm_arena_printf(arena, "%s]", text);
}

static bool in_pool(const rssm_rank *rank, const rssm_role_spec *spec)
{
    switch (spec->place) {
    case RSSM_PLACE_STATE:
    case RSSM_PLACE_RING:
    case RSSM_PLACE_CURSOR:
        return true;
    case RSSM_PLACE_CONV:
        return rank->conv_len > 0;
    default:
        return false;
    }
}

static void set_dtype(rssm_tensor_info *info, const rssm_rank *rank, const rssm_role_spec *spec)
{
    int32_t dtype = spec->kinds & RSSM_KIND_STATE  ? rank->state_dtype
                    : spec->kinds & RSSM_KIND_RING ? rank->ring_dtype
                    : spec->kinds & RSSM_KIND_IO   ? rank->io_dtype
                                                   : RSSM_DTYPE_FLOAT32;
    bool integer = spec->kinds & RSSM_KIND_I32;
    info->dtype_code = integer ? kDLInt : dtype == RSSM_DTYPE_BFLOAT16 ? kDLBfloat : kDLFloat;
    info->dtype_bits = integer ? 32 : 8 * rssm_dtype_bytes(dtype);
    info->dtype_name = integer ? "int32" : rssm_dtype_name(dtype);
}

/* Everything of a tensor that does not depend on the number of slots. */
static rssm_status describe_tensor(rssm_tensor_info *info, rssm_arena *arena, const rssm_rank *rank,
                                   const rssm_role_spec *spec, rssm_error *err)
{
    memset(info, 0, sizeof(*info));
    info->struct_size = sizeof(*info);
    info->role = spec->role;
    info->name = rssm_role_name(spec->role);
    set_dtype(info, rank, spec);
    info->symbolic_shape = symbolic_shape(arena, rank, spec->shape);
    if (!info->symbolic_shape)
        return rssm_out_of_memory(err);
    int64_t elements = 0;
    if (!inner_elements(spec, &rank->dims, &elements) ||
        __builtin_mul_overflow(elements, info->dtype_bits / 8, &info->bytes_per_slot))
        return rssm_fail_at(err, RSSM_ERR_OVERFLOW, (rssm_where){.role = spec->role, .dim = -1},
                            "one slot of `%s` %s does not fit in 63 bits of bytes", info->name, info->symbolic_shape);
    while (spec->shape[info->ndim] != RSSM_SYM_END) {
        info->shape[info->ndim] = rank->dims.of[spec->shape[info->ndim]];
        info->ndim++;
    }
    int64_t stride = 1;
    for (int i = info->ndim - 1; i >= 0; i--) {
        info->strides[i] = stride;
        if (i > 0)
            stride *= info->shape[i];
    }
    info->alignment = RSSM_POOL_ALIGNMENT;
    info->per_layer = spec->place != RSSM_PLACE_CURSOR;
    return RSSM_OK;
}

/* Sums of one slot over all layers. */
static rssm_status sum_slot(rssm_layout *layout, const rssm_rank *rank, const rssm_tensor_info *tensors,
                            rssm_error *err)
{
    for (int32_t i = 0; i < layout->num_tensors; i++) {
        int64_t bytes = 0;
        if (__builtin_mul_overflow(tensors[i].bytes_per_slot, (int64_t)(tensors[i].per_layer ? rank->num_linear : 1),
                                   &bytes) ||
            __builtin_add_overflow(layout->slot_total_bytes, tensors[i].per_layer ? bytes : 0,
                                   &layout->slot_total_bytes))
            return rssm_fail(err, RSSM_ERR_OVERFLOW, "one slot of %d layers does not fit in 63 bits of bytes",
                             rank->num_linear);
        switch (rssm_family_role(rank->family, tensors[i].role)->place) {
        case RSSM_PLACE_STATE:
            layout->slot_state_bytes += bytes;
            break;
        case RSSM_PLACE_RING:
            layout->slot_ring_bytes += bytes;
            break;
        case RSSM_PLACE_CONV:
            layout->slot_conv_bytes += bytes;
            break;
        default:
            layout->slot_cursor_bytes += bytes;
        }
    }
    return RSSM_OK;
}

static bool aligned_mul(int64_t a, int64_t b, int64_t *out)
{
    if (__builtin_mul_overflow(a, b, out) || __builtin_add_overflow(*out, (int64_t)RSSM_POOL_ALIGNMENT - 1, out))
        return false;
    *out &= ~((int64_t)RSSM_POOL_ALIGNMENT - 1);
    return true;
}

/* Places the tensors of `slots` slots: layer after layer, the cursor last. False on overflow. */
static bool place(rssm_layout *layout, rssm_tensor_info *tensors, int32_t num_layers, int64_t slots)
{
    int64_t layer = 0, cursor = 0, all = 0, bytes = 0;
    for (int32_t i = 0; i < layout->num_tensors; i++) {
        if (!aligned_mul(slots, tensors[i].bytes_per_slot, &bytes))
            return false;
        tensors[i].shape[0] = slots;
        tensors[i].offset = layer;
        if (!tensors[i].per_layer)
            cursor = bytes;
        else if (__builtin_add_overflow(layer, bytes, &layer))
            return false;
    }
    if (__builtin_mul_overflow(layer, (int64_t)num_layers, &all) ||
        __builtin_add_overflow(all, cursor, &layout->slab_bytes) ||
        __builtin_add_overflow(layout->slab_bytes, layout->workspace_bytes, &layout->pool_bytes))
        return false;
    for (int32_t i = 0; i < layout->num_tensors; i++) {
        tensors[i].layer_stride = tensors[i].per_layer ? layer : 0;
        if (!tensors[i].per_layer)
            tensors[i].offset = all;
    }
    layout->num_slots = slots;
    layout->layer_bytes = layer;
    return true;
}

/* The largest number of slots whose whole pool fits the budget. */
static rssm_status fit_budget(rssm_layout *layout, rssm_tensor_info *tensors, int32_t num_layers, int64_t budget,
                              rssm_error *err)
{
    if (!place(layout, tensors, num_layers, 1) || layout->pool_bytes > budget)
        return rssm_fail(err, RSSM_ERR_ARGUMENT,
                         "memory_budget_bytes = %lld holds no slot: a pool of one needs %lld bytes", (long long)budget,
                         (long long)layout->pool_bytes);
    int64_t fits = 1, too_many = budget / layout->slot_total_bytes + 1;
    if (too_many > INT32_MAX)
        too_many = (int64_t)INT32_MAX + 1;
    while (too_many - fits > 1) {
        int64_t middle = fits + (too_many - fits) / 2;
        if (place(layout, tensors, num_layers, middle) && layout->pool_bytes <= budget)
            fits = middle;
        else
            too_many = middle;
    }
    place(layout, tensors, num_layers, fits);
    return RSSM_OK;
}

rssm_status rssm_layout_make(rssm_layout *layout, rssm_tensor_info *tensors, rssm_arena *arena, const rssm_rank *rank,
                             const rssm_init_args *args, int64_t workspace_bytes, rssm_error *err)
{
    memset(layout, 0, sizeof(*layout));
    layout->struct_size = sizeof(*layout);
    layout->layout_version = RSSM_LAYOUT_VERSION;
    layout->layout_hash = rank->hash;
    layout->tensors = tensors;
    layout->num_layers = rank->num_linear;
    layout->workspace_bytes = workspace_bytes;
    rssm_status status = RSSM_OK;
    for (int32_t i = 0; !status && i < rank->family->num_roles; i++)
        if (in_pool(rank, &rank->family->roles[i]))
            status = describe_tensor(&tensors[layout->num_tensors++], arena, rank, &rank->family->roles[i], err);
    if (!status)
        status = sum_slot(layout, rank, tensors, err);
    if (status)
        return status;
    if (args->num_slots && args->memory_budget_bytes)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "num_slots = %lld and memory_budget_bytes = %lld: give one of them",
                         (long long)args->num_slots, (long long)args->memory_budget_bytes);
    if (args->num_slots < 0 || args->num_slots > INT32_MAX || args->memory_budget_bytes < 0)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "num_slots = %lld or memory_budget_bytes = %lld is out of range",
                         (long long)args->num_slots, (long long)args->memory_budget_bytes);
    if (args->memory_budget_bytes)
        return fit_budget(layout, tensors, rank->num_linear, args->memory_budget_bytes, err);
    if (!place(layout, tensors, rank->num_linear, args->num_slots ? args->num_slots : 1))
        return rssm_fail(err, RSSM_ERR_OVERFLOW, "a pool of %lld slots does not fit in 63 bits of bytes",
                         (long long)args->num_slots);
    return RSSM_OK;
}
