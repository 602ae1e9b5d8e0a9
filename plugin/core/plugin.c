#include "core/plugin.h"

#include <math.h>
#include <string.h>

#include "core/config.h"
#include "core/error.h"
#include "core/slot_alloc.h"
#include "core/slots.h"
#include "core/validate.h"

enum { DEFAULT_MAX_BATCH = 65536, MAX_MAX_BATCH = 1 << 20, MAX_THREADS = 1024 };

/* ---- init ------------------------------------------------------------------------------------------------------- */

static rssm_status check_options(const rssm_init_args *a, rssm_error *err)
{
    const uint32_t known = RSSM_INIT_CONV_STATE | RSSM_INIT_SPREAD_FLUSH | RSSM_INIT_CPU_REFERENCE |
                           RSSM_INIT_NO_SMALL_FLUSH | RSSM_INIT_NO_EARLY_START;
    int sources = (a->config_json != NULL) + (a->config_path != NULL) + (a->dims != NULL);
    if (a->config_json && !a->config_json_len)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "config_json_len = 0: set the length of config_json");
    if (!a->config_json && a->config_json_len)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "config_json is NULL and config_json_len = %llu",
                         (unsigned long long)a->config_json_len);
    if (sources != 1)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "give exactly one of config_json, config_path and dims; got %d",
                         sources);
    if (a->flags & ~known)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "unknown init flag 0x%x", a->flags & ~known);
    if (a->max_batch < 0 || a->max_batch > MAX_MAX_BATCH)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "max_batch = %d is not in 0..%d", a->max_batch, MAX_MAX_BATCH);
    if (a->num_threads < 0 || a->num_threads > MAX_THREADS)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "num_threads = %d is not in 0..%d", a->num_threads, MAX_THREADS);
    if (a->cpu_level < RSSM_CPU_BEST || a->cpu_level > RSSM_CPU_NEON)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "cpu_level = %d is not an RSSM_CPU_* value", a->cpu_level);
    if (!a->has_pad_slot && a->pad_slot)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "pad_slot = %lld without has_pad_slot", (long long)a->pad_slot);
    if (a->has_pad_slot & ~1)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "has_pad_slot = %d must be 0 or 1", a->has_pad_slot);
    if (a->device_id < 0)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "device_id = %d is negative", a->device_id);
    return RSSM_OK;
}

static rssm_status pick_backend(rssm_plugin *p, rssm_error *err)
{
    if (!p->args.device_type)
        p->args.device_type = kDLCPU;
    if (p->args.device_type == kDLCPU)
        p->backend = rssm_cpu_backend();
    else if (p->args.device_type == kDLCUDA)
        p->backend = rssm_cuda_backend();
    else
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "device_type = %d is neither kDLCPU (1) nor kDLCUDA (2)",
                         p->args.device_type);
    if (!p->backend)
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "this build of replayssm has no CUDA backend (CPU only)");
    p->backend_options = (rssm_backend_options){
        .mem = &p->mem,
        .log = p->args.log,
        .log_user = p->args.log_user,
        .device_id = p->args.device_id,
        .num_threads = p->args.num_threads,
        .cpu_level = p->args.cpu_level,
        .cpu_reference = (p->args.flags & RSSM_INIT_CPU_REFERENCE) != 0,
        .early_start = !(p->args.flags & RSSM_INIT_NO_EARLY_START),
        .max_batch = p->args.max_batch,
    };
    return RSSM_OK;
}

static rssm_status read_model(rssm_plugin *p, const rssm_init_args *args, rssm_error *err)
{
    if (args->dims)
        return rssm_model_from_dims(&p->model, &p->arena, args->dims, err);
    if (args->config_path)
        return rssm_config_read_file(&p->model, &p->arena, args->config_path, err);
    return rssm_config_read(&p->model, &p->arena, args->config_json, args->config_json_len, err);
}

/* Has the backend kernels for the longest window? */
static rssm_status check_window(const rssm_plugin *p, rssm_error *err)
{
    int32_t most = p->backend->max_T;
    if (!most || p->args.max_draft_tokens < most)
        return RSSM_OK;
    return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                     "max_draft_tokens = %d: the %s backend has windows of at most %d tokens (max_draft_tokens + 1)",
                     p->args.max_draft_tokens, p->backend->name, most);
}

/* Small batches fold every token, whatever the state's dtype: no step is slower than one that reads and writes the state. */
static int32_t small_batch_of(const rssm_plugin *p)
{
    if ((p->args.flags & RSSM_INIT_NO_SMALL_FLUSH) || p->rank.L == 1 || !p->backend->small_batch)
        return 0;
    return p->backend->small_batch(&p->backend_options);
}

static rssm_status build(rssm_plugin *p, const rssm_init_args *args, rssm_error *err)
{
    rssm_status status = pick_backend(p, err);
    if (!status)
        status = read_model(p, args, err);
    if (!status)
        status = rssm_rank_resolve(&p->rank, &p->arena, &p->model, &p->args, err);
    if (!status)
        status = check_window(p, err);
    if (status)
        return status;
    for (int i = 0; i < RSSM_NUM_CALLS; i++)
        rssm_call_table_make(&p->calls[i], p->rank.family, (rssm_call)(1 << i));
    p->backend_options.max_K = p->rank.K;
    p->backend_options.max_V = p->rank.V;
    p->backend_options.max_L = p->rank.L;
    p->backend_options.max_HV = p->rank.HV;
    p->backend_options.family = p->model.family;
    p->backend_options.state_dtype = p->rank.state_dtype;
    p->backend_options.io_dtype = p->rank.io_dtype;
    p->backend_options.ring_dtype = p->rank.ring_dtype;
    p->backend_options.max_regions = p->rank.num_linear * (RSSM_MAX_POOL_TENSORS - 1);
    p->backend_options.num_layers = p->rank.num_linear;
    p->backend_options.max_T = p->args.max_draft_tokens > 0 ? p->args.max_draft_tokens + 1 : 0;
    p->backend_options.conv_width = p->rank.conv_len > 0 ? p->model.conv_kernel : 0;
    p->backend_options.small_batch = small_batch_of(p);
    return rssm_layout_make(&p->layout, p->tensors, &p->arena, &p->rank, &p->args,
                            p->backend->workspace_bytes(&p->backend_options), err);
}

rssm_status rssm_plugin_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    rssm_status status = check_options(args, err);
    if (status)
        return status;
    rssm_allocator mem = args->allocator ? *args->allocator : rssm_mem_default();
    if (!mem.alloc != !mem.free)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "the allocator's alloc and free come together");
    if (!mem.device_alloc != !mem.device_free)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "the allocator's device_alloc and device_free come together");
    if (!mem.alloc) {
        mem.alloc = rssm_mem_default().alloc;
        mem.free = rssm_mem_default().free;
    }
    rssm_plugin *p = rssm_mem_alloc(&mem, sizeof(*p), 16);
    if (!p)
        return rssm_out_of_memory(err);
    p->magic = RSSM_PLUGIN_MAGIC;
    p->mem = mem;
    p->arena.mem = &p->mem;
    p->args = *args;
    p->args.config_json = p->args.config_path = NULL;
    p->args.dims = NULL;
    p->args.allocator = NULL;
    if (!p->args.max_batch)
        p->args.max_batch = DEFAULT_MAX_BATCH;
    status = build(p, args, err);
    if (status)
        rssm_plugin_free(p);
    else
        *out = p;
    return status;
}

void rssm_plugin_free(rssm_plugin *p)
{
    if (p->ctx && p->slab)
        p->backend->free(p->ctx, p->slab, p->layout.slab_bytes);
    if (p->ctx)
        p->backend->close(p->ctx);
    rssm_slot_alloc_free(p);
    rssm_arena_free(&p->arena);
    p->magic = 0;
    rssm_allocator mem = p->mem;
    rssm_mem_free(&mem, p, sizeof(*p));
}

double rssm_default_scale(const rssm_plugin *p)
{
    return p->model.family == RSSM_FAMILY_MAMBA2 ? 1 : 1 / sqrt((double)p->rank.K);
}

/* ---- describe --------------------------------------------------------------------------------------------------- */

void rssm_plugin_describe(const rssm_plugin *p, rssm_description *out)
{
    const rssm_model *m = &p->model;
    const rssm_rank *r = &p->rank;
    bool mamba = m->family == RSSM_FAMILY_MAMBA2, cpu = p->args.device_type == kDLCPU;
    *out = (rssm_description){
        .struct_size = sizeof(*out),
        .family = m->family,
        .gate_kind = mamba                ? RSSM_GATE_MAMBA2
                     : m->has_lower_bound ? RSSM_GATE_BOUNDED
                                          : RSSM_GATE_SOFTPLUS,
        .family_name = r->family->name,
        .model_type = m->model_type,
        .num_layers = m->num_layers,
        .num_linear_layers = r->num_linear,
        .linear_layers = r->linear_layers,
        .model_H = m->H,
        .model_HV = m->HV,
        .H = r->H,
        .HV = r->HV,
        .K = r->K,
        .V = r->V,
        .head_begin = r->head_begin,
        .group_begin = r->group_begin,
        .tp_size = r->tp_size,
        .tp_rank = r->tp_rank,
        .conv_kernel = m->conv_kernel,
        .conv_channels = r->conv_channels,
        .has_lower_bound = m->has_lower_bound,
        .qk_norm = m->qk_norm && !mamba,
        .lower_bound = m->lower_bound,
        .scale = rssm_default_scale(p),
        .norm_eps = RSSM_NORM_EPS,
        .beta_scale = m->beta_scale,
        .time_step_limit_min = m->dt_min,
        .time_step_limit_max = m->dt_max,
        .ring_length = r->L,
        .ring_rows = r->R,
        .max_draft_tokens = p->args.max_draft_tokens,
        .io_dtype = r->io_dtype,
        .state_dtype = r->state_dtype,
        .ring_dtype = r->ring_dtype,
        .device_type = p->args.device_type,
        .device_id = p->args.device_id,
        .layout_version = RSSM_LAYOUT_VERSION,
        .small_batch = p->backend_options.small_batch,
        .layout_hash = r->hash,
        .layout_text = r->hash_text,
        .ring_reason = r->ring_reason,
        .read = m->read.items,
        .assumed = m->assumed.items,
        .num_read = m->read.count,
        .num_assumed = m->assumed.count,
        .step_bytes = r->step_bytes,
        .step_bytes_read_write = r->step_bytes_read_write,
        .cpu_level = cpu ? rssm_cpu_level_name(p->args.cpu_level, p->backend_options.cpu_reference) : "",
        .num_threads = cpu ? rssm_cpu_thread_count(p->args.num_threads) : 0,
    };
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

rssm_status rssm_plugin_prepare(rssm_plugin *p, rssm_error *err)
{
    return p->ctx ? RSSM_OK : p->backend->open(&p->backend_options, &p->ctx, err);
}

static rssm_pool_view *view_of(const rssm_plugin *p, rssm_pool_view *views, int32_t layer, int32_t tensor)
{
    return &views[(int64_t)layer * p->layout.num_tensors + tensor];
}

/* The table's tensor at an address, compact. */
static void set_view(const rssm_plugin *p, rssm_pool_view *view, const rssm_tensor_info *info, void *data)
{
    memcpy(view->shape, info->shape, sizeof(view->shape));
    memcpy(view->strides, info->strides, sizeof(view->strides));
    view->tensor = (DLTensor){
        .data = data,
        .device = {.device_type = (DLDeviceType)p->args.device_type, .device_id = p->args.device_id},
        .ndim = info->ndim,
        .dtype = {.code = (uint8_t)info->dtype_code, .bits = (uint8_t)info->dtype_bits, .lanes = 1},
        .shape = view->shape,
        .strides = view->strides,
    };
}

static void views_of_slab(const rssm_plugin *p, rssm_pool_view *views, char *slab)
{
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
        for (int32_t i = 0; i < p->layout.num_tensors; i++)
            set_view(p, view_of(p, views, layer, i), &p->tensors[i],
                     slab + p->tensors[i].offset + layer * p->tensors[i].layer_stride);
}

static bool is_pool_role(const rssm_plugin *p, uint32_t role)
{
    for (int32_t i = 0; i < p->layout.num_tensors; i++)
        if ((uint32_t)p->tensors[i].role == role)
            return true;
    return false;
}

static rssm_status check_pool_roles(const rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
        for (uint32_t role = 0; role < args->num_roles; role++)
            if (args->tensors[(int64_t)layer * args->num_roles + role] && !is_pool_role(p, role))
                return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = (int32_t)role, .dim = -1},
                                    "`%s` (role %u) of layer %d is not a tensor of this pool",
                                    rssm_role_name((int32_t)role), role, layer);
    return RSSM_OK;
}

static bool is_ring(const rssm_plugin *p, int32_t role)
{
    return rssm_family_role(p->rank.family, role)->place == RSSM_PLACE_RING;
}

/* At L = 1 the ring may be left out: of all layers. */
static bool needs_ring(const rssm_plugin *p, const rssm_pool_args *args)
{
    bool needed = p->rank.R > 1;
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
        for (uint32_t role = 0; role < args->num_roles; role++)
            needed |= args->tensors[(int64_t)layer * args->num_roles + role] && is_ring(p, (int32_t)role);
    return needed;
}

/* The host's own tensors, each checked against the table, all of num_slots. A ring left out at L = 1 has no data. */
static rssm_status views_of_tensors(const rssm_plugin *p, rssm_pool_view *views, const rssm_pool_args *args,
                                    rssm_error *err)
{
    rssm_status status = check_pool_roles(p, args, err);
    bool ring_needed = !status && needs_ring(p, args);
    rssm_dims_of dims = p->rank.dims;
    dims.of[RSSM_SYM_S] = p->layout.num_slots;
    for (int32_t layer = 0; !status && layer < p->rank.num_linear; layer++) {
        for (int32_t i = 0; !status && i < p->layout.num_tensors; i++) {
            const rssm_tensor_info *info = &p->tensors[i];
            int64_t at = (info->per_layer ? (int64_t)layer : 0) * args->num_roles + info->role;
            const DLTensor *t = (uint32_t)info->role < args->num_roles ? args->tensors[at] : NULL;
            rssm_pool_view *view = view_of(p, views, layer, i);
            set_view(p, view, info, t ? rssm_tensor_data(t) : NULL);
            if (t) {
                status = rssm_check_tensor(p, rssm_family_role(p->rank.family, info->role), t, &dims, err);
                if (!status)
                    view->strides[0] = rssm_tensor_stride0(t);
            } else if (ring_needed || !is_ring(p, info->role)) {
                status = rssm_fail_at(
                    err, RSSM_ERR_MISSING, (rssm_where){.role = info->role, .dim = -1},
                    info->per_layer
                        ? "pool tensor `%s` of layer %d is missing"
                        : "`%s` is missing: set it at tensors[RSSM_T_CURSOR] of layer %d; it serves all layers",
                    info->name, layer);
            }
        }
    }
    return status;
}

/* No two tensors of the pool may share memory (the cursor's views are one tensor). Sorted by address this would be
 * n log n; pools have a few hundred tensors and this runs once. */
static rssm_status check_pool_overlaps(const rssm_plugin *p, rssm_pool_view *views, rssm_error *err)
{
    int64_t count = (int64_t)p->rank.num_linear * p->layout.num_tensors;
    for (int64_t a = 0; a < count; a++) {
        const rssm_tensor_info *first = &p->tensors[a % p->layout.num_tensors];
        if (!first->per_layer && a >= p->layout.num_tensors)
            continue;
        for (int64_t b = a + 1; b < count; b++) {
            const rssm_tensor_info *second = &p->tensors[b % p->layout.num_tensors];
            if (!second->per_layer && b >= p->layout.num_tensors)
                continue;
            if (views[a].tensor.data && views[b].tensor.data &&
                rssm_tensors_overlap(&views[a].tensor, &views[b].tensor))
                return rssm_fail_at(err, RSSM_ERR_OVERLAP,
                                    (rssm_where){.role = first->role, .dim = -1, .expected = second->role},
                                    "pool tensor `%s` of layer %d shares memory with `%s` of layer %d", first->name,
                                    (int)(a / p->layout.num_tensors), second->name, (int)(b / p->layout.num_tensors));
        }
    }
    return RSSM_OK;
}

static int32_t greatest_divisor(int32_t a, int32_t b)
{
    return b ? greatest_divisor(b, a % b) : a;
}

/* A step near L / golden ratio and without a common divisor with L: slot * step mod L gives n neighbouring slots every
 * phase floor(n / L) or ceil(n / L) times, and fewer than L of them lie about evenly apart. */
static int32_t spread_step(int32_t L)
{
    int32_t step = (int32_t)((int64_t)L * 618034 / 1000000);
    while (step > 1 && greatest_divisor(step, L) != 1)
        step--;
    return step > 0 ? step : 1;
}

/* Where a role of the pool stands in a layer's struct. */
static rssm_pooled *layer_member(rssm_pool_layer *layer, int32_t role)
{
    switch (role) {
    case RSSM_T_STATE:
        return &layer->state;
    case RSSM_T_D_CACHE:
    case RSSM_T_X_CACHE:
        return &layer->d_cache;
    case RSSM_T_K_CACHE:
    case RSSM_T_B_CACHE:
        return &layer->k_cache;
    case RSSM_T_G_CACHE:
    case RSSM_T_DT_CACHE:
        return &layer->g_cache;
    default:
        return &layer->conv;
    }
}

/* What calls over all layers need: every tensor but the cursor, as a region and by its meaning. */
static void make_regions(const rssm_plugin *p, rssm_pool_view *views, rssm_region *regions, rssm_pool_layer *layers,
                         rssm_pool *pool)
{
    *pool = (rssm_pool){.regions = regions,
                        .layers = layers,
                        .num_layers = p->rank.num_linear,
                        .family = p->model.family,
                        .H = p->rank.H,
                        .HV = p->rank.HV,
                        .K = p->rank.K,
                        .V = p->rank.V,
                        .L = p->rank.L,
                        .R = p->rank.R,
                        .conv_channels = p->rank.conv_channels,
                        .conv_len = p->rank.conv_len,
                        .conv_width = p->rank.conv_len > 0 ? p->model.conv_kernel : 0,
                        .S = p->layout.num_slots,
                        .pad_slot = p->args.has_pad_slot ? p->args.pad_slot : -1,
                        .spread_step = p->args.flags & RSSM_INIT_SPREAD_FLUSH ? spread_step(p->rank.L) : 0};
    for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
        for (int32_t i = 0; i < p->layout.num_tensors; i++) {
            const rssm_tensor_info *info = &p->tensors[i];
            const DLTensor *t = &view_of(p, views, layer, i)->tensor;
            if (info->per_layer)
                *layer_member(&layers[layer], info->role) =
                    (rssm_pooled){.data = t->data, .slot = t->strides[0], .dtype = rssm_dtype_of(t)};
            if (!t->data)
                continue;
            if (info->per_layer) {
                regions[pool->num_regions++] = (rssm_region){.data = t->data,
                                                             .slot_stride = t->strides[0] * info->dtype_bits / 8,
                                                             .slot_bytes = info->bytes_per_slot};
            } else if (layer == 0) {
                pool->cursor = t->data;
                pool->cursor_slot = t->strides[0];
            }
        }
}

static void find_span(rssm_plugin *p)
{
    p->pool_first = UINTPTR_MAX;
    p->pool_end = 0;
    int64_t count = (int64_t)p->rank.num_linear * p->layout.num_tensors;
    for (int64_t i = 0; i < count; i++) {
        const DLTensor *t = &p->views[i].tensor;
        uintptr_t first = (uintptr_t)t->data, end = first + (uintptr_t)rssm_tensor_bytes(t);
        if (t->data && first < p->pool_first)
            p->pool_first = first;
        if (t->data && end > p->pool_end)
            p->pool_end = end;
    }
}

static rssm_status check_pool_args(const rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    if (!p->ctx)
        return rssm_fail(err, RSSM_ERR_STATE, "pool_create before prepare");
    if (p->pool.regions)
        return rssm_fail(err, RSSM_ERR_STATE, "the instance has its pool already");
    if (!p->args.num_slots && !p->args.memory_budget_bytes)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "pool_create needs num_slots or memory_budget_bytes at init");
    if (args->flags)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "unknown flag 0x%x", args->flags);
    if (args->slab && args->tensors)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "slab and tensors: give one of them");
    if (!args->slab && args->slab_bytes)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "slab is NULL and slab_bytes = %llu",
                         (unsigned long long)args->slab_bytes);
    if (!args->tensors != !args->num_roles)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "tensors = %p has num_roles = %u: both or neither",
                         (const void *)args->tensors, args->num_roles);
    if (args->tensors && args->num_roles <= RSSM_T_CURSOR)
        return rssm_fail_at(
            err, RSSM_ERR_ARGUMENT, (rssm_where){.dim = -1, .expected = RSSM_T_CURSOR + 1, .got = args->num_roles},
            "num_roles = %u: tensors needs room for roles up to RSSM_T_CURSOR = %d", args->num_roles, RSSM_T_CURSOR);
    if (args->slab && args->slab_bytes < (uint64_t)p->layout.slab_bytes)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "the slab has %llu bytes; the layout needs %lld",
                         (unsigned long long)args->slab_bytes, (long long)p->layout.slab_bytes);
    if ((uintptr_t)args->slab % RSSM_POOL_ALIGNMENT)
        return rssm_fail(err, RSSM_ERR_ALIGNMENT, "the slab must be %d-byte aligned; got %p", RSSM_POOL_ALIGNMENT,
                         args->slab);
    return RSSM_OK;
}

rssm_status rssm_plugin_pool_create(rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    rssm_status status = check_pool_args(p, args, err);
    if (status)
        return status;
    size_t count = (size_t)p->rank.num_linear * (size_t)p->layout.num_tensors;
    /* Arena memory of a failed call stays with the instance until teardown. */
    rssm_pool_view *views = rssm_arena_alloc(&p->arena, count * sizeof(*views));
    rssm_region *regions = rssm_arena_alloc(&p->arena, count * sizeof(*regions));
    rssm_pool_layer *layers = rssm_arena_alloc(&p->arena, (size_t)p->rank.num_linear * sizeof(*layers));
    rssm_slot_scratch *scratch = rssm_slot_scratch_make(&p->arena, p->rank.num_linear);
    if (!views || !regions || !layers || !scratch)
        return rssm_out_of_memory(err);
    void *slab = NULL;
    if (args->tensors) {
        status = views_of_tensors(p, views, args, err);
        if (!status)
            status = check_pool_overlaps(p, views, err);
    } else {
        if (!args->slab)
            status = p->backend->alloc(p->ctx, p->layout.slab_bytes, &slab, err);
        if (!status)
            views_of_slab(p, views, slab ? slab : args->slab);
    }
    if (status)
        return status;
    rssm_pool pool;
    make_regions(p, views, regions, layers, &pool);
    status = p->backend->bind(p->ctx, &pool, err);
    if (!status && slab && pool.spread_step) /* fresh memory is a reset pool, but for the phases */
        status = p->backend->reset(p->ctx, &(rssm_index){0}, 0, args->stream, err);
    if (status) {
        if (slab)
            p->backend->free(p->ctx, slab, p->layout.slab_bytes);
        return status;
    }
    p->pool = pool;
    p->views = views;
    p->slab = slab;
    p->slot_scratch = scratch;
    find_span(p);
    return RSSM_OK;
}

rssm_status rssm_no_entry(const rssm_plugin *p, const char *name, rssm_error *err)
{
    return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "%s is not in the %s backend of this build", name, p->backend->name);
}

rssm_status rssm_plugin_reset(rssm_plugin *p, const rssm_reset_args *args, rssm_error *err)
{
    if (!p->pool.regions)
        return rssm_fail(err, RSSM_ERR_STATE, "reset before pool_create");
    if (args->flags)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "unknown flag 0x%x", args->flags);
    rssm_status reserved = rssm_check_reserved(args->reserved_, err);
    if (reserved)
        return reserved;
    rssm_index slots = {0};
    int64_t count = 0;
    if (args->slots) {
        rssm_dims_of dims = p->rank.dims;
        rssm_status status = rssm_check_list(p, RSSM_T_SLOTS, RSSM_SYM_N, args->slots, &dims, err);
        if (status)
            return status;
        slots = rssm_index_of(args->slots);
        count = dims.of[RSSM_SYM_N];
        if (count == 0)
            return RSSM_OK;
    }
    return p->backend->reset(p->ctx, &slots, count, args->stream, err);
}
