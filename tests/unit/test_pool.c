/* The state pool: what the layout says, what fits a budget, what each rank holds, and the three ways to bind it. Sizes
 * are worked out here once more, from the table of pool.md as the harness has it. */
#include "harness.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- instances -------------------------------------------------------------------------------------------------- */

static rssm_status try_init(const rssm_init_args *args, rssm_plugin **plugin, rssm_error *err)
{
    if (args->dims)
        h_need_family(args->dims->family);
    *plugin = (rssm_plugin *)(uintptr_t)1;
    *err = h_error();
    rssm_status status = h_api()->init(args, plugin, err);
    ck_assert_msg(!status == (*plugin != NULL), "init: status %d, plugin %p", status, (void *)*plugin);
    return status;
}

static rssm_plugin *init(const rssm_init_args *args)
{
    rssm_plugin *plugin;
    rssm_error err;
    ck_assert_msg(try_init(args, &plugin, &err) == RSSM_OK, "init: %s", err.message);
    return plugin;
}

static rssm_layout layout_of(const rssm_plugin *plugin)
{
    rssm_layout layout = {.struct_size = sizeof(layout)};
    ck_assert_int_eq(h_api()->pool_layout(plugin, &layout, NULL), RSSM_OK);
    return layout;
}

static rssm_description describe(const rssm_plugin *plugin)
{
    rssm_description description = {.struct_size = sizeof(description)};
    ck_assert_int_eq(h_api()->describe(plugin, &description, NULL), RSSM_OK);
    return description;
}

static const rssm_tensor_info *find(const rssm_layout *layout, int32_t role)
{
    for (int32_t i = 0; i < layout->num_tensors; i++)
        if (layout->tensors[i].role == role)
            return &layout->tensors[i];
    return NULL;
}

/* Small random models of all families, dtypes and forms. */
static h_spec random_spec(uint64_t *random)
{
    h_spec spec = {.family = h_family((int32_t)(1 + h_random(random) % 3))};
    spec.H = (int32_t)(1 + h_random(random) % 3);
    spec.HV = spec.H * (int32_t)(1 + h_random(random) % 3);
    spec.K = (int32_t)(1 + h_random(random) % 11);
    spec.V = (int32_t)(1 + h_random(random) % 11);
    spec.L = (int32_t)(1 + h_random(random) % 7);
    spec.drafts = (int32_t)(h_random(random) % (uint64_t)spec.L);
    spec.layers = (int32_t)(1 + h_random(random) % 5);
    spec.io = (int32_t)(1 + h_random(random) % 3);
    spec.state = (int32_t)(1 + h_random(random) % 3);
    spec.ring = (int32_t)(1 + h_random(random) % 3);
    spec.num_slots = (int64_t)(1 + h_random(random) % 40);
    spec.S = spec.num_slots;
    spec.init_flags = h_random(random) % 2 ? RSSM_INIT_CONV_STATE : 0;
    return h_defaults(spec);
}

static rssm_plugin *init_spec(const h_spec *spec)
{
    rssm_dims dims = h_dims(spec);
    rssm_init_args args = h_init_args(spec, &dims);
    return init(&args);
}

/* ---- the layout ------------------------------------------------------------------------------------------------- */

/* What pool.md's table says of one tensor. */
typedef struct pool_tensor {
    int32_t role;
    DLDataType type;
    int ndim;
    int64_t shape[4];
} pool_tensor;

static int parse(const h_spec *spec, const char *text, int64_t *shape)
{
    int ndim = 0;
    for (const char *at = text; at; ndim++) {
        const char *comma = strchr(at, ',');
        shape[ndim] = h_symbol(spec, at, comma ? (size_t)(comma - at) : strlen(at));
        at = comma ? comma + 1 : NULL;
    }
    return ndim;
}

static DLDataType type_of(const h_spec *spec, const h_role *role)
{
    return h_float_type(strcmp(role->dtypes, "state") == 0  ? spec->state
                        : strcmp(role->dtypes, "ring") == 0 ? spec->ring
                                                            : RSSM_DTYPE_FLOAT32);
}

static int expected_tensors(const h_spec *spec, pool_tensor *tensors)
{
    int count, n = 0;
    const h_role *roles = h_roles(spec->family, &count);
    for (int i = 0; i < count; i++)
        if (roles[i].place == H_POOL) {
            tensors[n] = (pool_tensor){.role = roles[i].role, .type = type_of(spec, &roles[i])};
            tensors[n].ndim = parse(spec, roles[i].shape, tensors[n].shape);
            n++;
        }
    if (spec->init_flags & RSSM_INIT_CONV_STATE) /* the harness's models have w = 4 */
        tensors[n++] =
            (pool_tensor){.role = RSSM_T_CONV,
                          .type = h_float_type(spec->io),
                          .ndim = 3,
                          .shape = {spec->S, h_symbol(spec, "2HK+HVV", 7), spec->drafts ? 4 + spec->drafts : 3}};
    tensors[n++] =
        (pool_tensor){.role = RSSM_T_CURSOR, .type = h_int_type(32), .ndim = 2, .shape = {spec->S, RSSM_CURSOR_WIDTH}};
    return n;
}

static int64_t slot_bytes(const pool_tensor *tensor)
{
    int64_t bytes = tensor->type.bits / 8;
    for (int i = 1; i < tensor->ndim; i++)
        bytes *= tensor->shape[i];
    return bytes;
}

static void check_tensor(const rssm_tensor_info *info, const pool_tensor *want)
{
    const char *name = h_api()->role_name(want->role);
    ck_assert_str_eq(info->name, name);
    ck_assert_uint_eq(info->struct_size, sizeof(rssm_tensor_info));
    ck_assert_msg(info->dtype_code == want->type.code && info->dtype_bits == want->type.bits, "%s: code %d, bits %d",
                  name, info->dtype_code, info->dtype_bits);
    ck_assert_int_eq(info->ndim, want->ndim);
    int64_t stride = 1;
    for (int i = want->ndim - 1; i >= 0; i--) {
        ck_assert_msg(info->shape[i] == want->shape[i], "%s: dim %d is %d, not %d", name, i, (int)info->shape[i],
                      (int)want->shape[i]);
        ck_assert_msg(info->strides[i] == stride, "%s: stride %d is %d", name, i, (int)info->strides[i]);
        stride *= want->shape[i];
    }
    ck_assert_int_eq(info->bytes_per_slot, slot_bytes(want));
    ck_assert_int_eq(info->alignment, RSSM_POOL_ALIGNMENT);
    ck_assert_int_eq(info->per_layer, want->role != RSSM_T_CURSOR);
    if (want->role == RSSM_T_CURSOR)
        ck_assert_int_eq(info->layer_stride, 0);
}

/* Bytes [begin, end) of one tensor of one layer in the slab. */
typedef struct span {
    int64_t begin, end;
} span;

static int by_begin(const void *a, const void *b)
{
    int64_t x = ((const span *)a)->begin, y = ((const span *)b)->begin;
    return x < y ? -1 : x > y;
}

static void check_spans(const rssm_layout *layout)
{
    span spans[256];
    int count = 0;
    for (int32_t i = 0; i < layout->num_tensors; i++)
        for (int32_t layer = 0; layer < (layout->tensors[i].per_layer ? layout->num_layers : 1); layer++) {
            const rssm_tensor_info *t = &layout->tensors[i];
            int64_t begin = t->offset + layer * t->layer_stride;
            ck_assert_int_eq(begin % RSSM_POOL_ALIGNMENT, 0);
            spans[count++] = (span){begin, begin + layout->num_slots * t->bytes_per_slot};
        }
    qsort(spans, (size_t)count, sizeof(spans[0]), by_begin);
    ck_assert_int_ge(spans[0].begin, 0);
    for (int i = 1; i < count; i++)
        ck_assert_msg(spans[i - 1].end <= spans[i].begin, "two tensors of the slab overlap");
    ck_assert_msg(spans[count - 1].end <= layout->slab_bytes, "a tensor ends behind the slab");
    ck_assert_msg(spans[count - 1].end > layout->slab_bytes - RSSM_POOL_ALIGNMENT,
                  "the slab is longer than it need be");
}

START_TEST(test_layout)
{
    uint64_t random = 100 + (uint64_t)_i;
    h_spec spec = random_spec(&random);
    rssm_plugin *plugin = init_spec(&spec);
    rssm_layout layout = layout_of(plugin);
    pool_tensor want[RSSM_T_COUNT];
    int count = expected_tensors(&spec, want);
    int64_t state = 0, ring = 0, conv = 0, cursor = 0;
    ck_assert_int_eq(layout.num_tensors, count);
    for (int i = 0; i < count; i++) {
        const rssm_tensor_info *info = find(&layout, want[i].role);
        ck_assert_msg(info != NULL, "no %s", h_api()->role_name(want[i].role));
        check_tensor(info, &want[i]);
        *(want[i].role == RSSM_T_STATE    ? &state
          : want[i].role == RSSM_T_CONV   ? &conv
          : want[i].role == RSSM_T_CURSOR ? &cursor
                                          : &ring) += slot_bytes(&want[i]);
    }
    ck_assert_int_eq(layout.num_slots, spec.num_slots);
    ck_assert_int_eq(layout.num_layers, spec.layers);
    ck_assert_int_eq(layout.slot_state_bytes, state * spec.layers);
    ck_assert_int_eq(layout.slot_ring_bytes, ring * spec.layers);
    ck_assert_int_eq(layout.slot_conv_bytes, conv * spec.layers);
    ck_assert_int_eq(layout.slot_total_bytes, (state + ring + conv) * spec.layers);
    ck_assert_int_eq(layout.slot_cursor_bytes, cursor);
    ck_assert_int_eq(cursor, 16);
    ck_assert_int_eq(layout.pool_bytes, layout.slab_bytes + layout.workspace_bytes);
    ck_assert_int_ge(layout.layer_bytes, (state + ring + conv) * spec.num_slots);
    check_spans(&layout);
    h_teardown(&plugin);
}
END_TEST

static const struct {
    int32_t family, drafts, role;
    const char *shape;
} symbolic_shapes[] = {
    {RSSM_FAMILY_KDA, 0, RSSM_T_STATE, "[slots, HV, V, K]"},
    {RSSM_FAMILY_KDA, 0, RSSM_T_D_CACHE, "[slots, HV, L, V]"},
    {RSSM_FAMILY_KDA, 0, RSSM_T_K_CACHE, "[slots, H, L, K]"},
    {RSSM_FAMILY_KDA, 0, RSSM_T_G_CACHE, "[slots, HV, L, K]"},
    {RSSM_FAMILY_KDA, 0, RSSM_T_CONV, "[slots, 2*H*K + HV*V, w']"},
    {RSSM_FAMILY_KDA, 0, RSSM_T_CURSOR, "[slots, 4]"},
    {RSSM_FAMILY_KDA, 2, RSSM_T_D_CACHE, "[slots, HV, R, V]"},
    {RSSM_FAMILY_GDN, 0, RSSM_T_G_CACHE, "[slots, HV, L]"},
    {RSSM_FAMILY_GDN, 1, RSSM_T_G_CACHE, "[slots, HV, R]"},
    {RSSM_FAMILY_MAMBA2, 0, RSSM_T_STATE, "[slots, nh, P, N]"},
    {RSSM_FAMILY_MAMBA2, 0, RSSM_T_X_CACHE, "[slots, nh, L, P]"},
    {RSSM_FAMILY_MAMBA2, 0, RSSM_T_B_CACHE, "[slots, ng, L, N]"},
    {RSSM_FAMILY_MAMBA2, 0, RSSM_T_DT_CACHE, "[slots, nh, L]"},
    {RSSM_FAMILY_MAMBA2, 2, RSSM_T_B_CACHE, "[slots, ng, R, N]"},
    {RSSM_FAMILY_MAMBA2, 0, RSSM_T_CONV, "[slots, nh*P + 2*ng*N, w']"},
};

START_TEST(test_symbolic_shape)
{
    h_spec spec = {.family = symbolic_shapes[_i].family, .drafts = symbolic_shapes[_i].drafts};
    spec.init_flags = RSSM_INIT_CONV_STATE;
    rssm_plugin *plugin = init_spec(&spec);
    rssm_layout layout = layout_of(plugin);
    const rssm_tensor_info *info = find(&layout, symbolic_shapes[_i].role);
    ck_assert_ptr_nonnull(info);
    ck_assert_str_eq(info->symbolic_shape, symbolic_shapes[_i].shape);
    h_teardown(&plugin);
}
END_TEST

/* R = L + D + 1 with drafts, w' = w - 1 columns or w + D, for every w. */
START_TEST(test_ring_rows_and_conv)
{
    int32_t drafts = _i % 4, width = 2 + _i / 4;
    h_spec spec = {.L = 5, .drafts = drafts, .init_flags = RSSM_INIT_CONV_STATE};
    rssm_dims dims = h_dims(&spec);
    dims.conv_kernel = width;
    rssm_init_args args = h_init_args(&spec, &dims);
    rssm_plugin *plugin = init(&args);
    rssm_layout layout = layout_of(plugin);
    rssm_description description = describe(plugin);
    int32_t rows = drafts ? 5 + drafts + 1 : 5;
    ck_assert_int_eq(description.ring_length, 5);
    ck_assert_int_eq(description.ring_rows, rows);
    ck_assert_int_eq(description.max_draft_tokens, drafts);
    ck_assert_int_eq(find(&layout, RSSM_T_K_CACHE)->shape[2], rows);
    ck_assert_int_eq(find(&layout, RSSM_T_CONV)->shape[2], drafts ? width + drafts : width - 1);
    ck_assert_int_eq(find(&layout, RSSM_T_CONV)->shape[1], description.conv_channels);
    h_teardown(&plugin);
}
END_TEST

/* ---- budgets ---------------------------------------------------------------------------------------------------- */

static int64_t pool_bytes_of(rssm_init_args args, int64_t slots)
{
    args.num_slots = slots;
    args.memory_budget_bytes = 0;
    rssm_plugin *plugin = init(&args);
    int64_t bytes = layout_of(plugin).pool_bytes;
    h_teardown(&plugin);
    return bytes;
}

/* The slots of a budget are those whose whole pool fits, and one more does not. */
START_TEST(test_budget)
{
    uint64_t random = 5000 + (uint64_t)_i;
    h_spec spec = random_spec(&random);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    int64_t smallest = pool_bytes_of(args, 1);
    for (int i = 0; i < 20; i++) {
        double factor = exp(h_uniform(&random, 0, 12));
        args.num_slots = 0;
        args.memory_budget_bytes = (int64_t)((double)smallest * factor);
        if (i == 0)
            args.memory_budget_bytes = smallest;
        if (i == 1)
            args.memory_budget_bytes = pool_bytes_of(args, 17);
        if (i == 2)
            args.memory_budget_bytes = pool_bytes_of(args, 17) - 1;
        rssm_plugin *plugin = init(&args);
        rssm_layout layout = layout_of(plugin);
        int64_t slots = layout.num_slots, budget = args.memory_budget_bytes;
        ck_assert_int_ge(slots, 1);
        ck_assert_int_le(layout.pool_bytes, budget);
        ck_assert_int_eq(layout.pool_bytes, pool_bytes_of(args, slots));
        ck_assert_msg(pool_bytes_of(args, slots + 1) > budget, "%lld slots fit into %lld bytes, not only %lld",
                      (long long)slots + 1, (long long)budget, (long long)slots);
        ck_assert_int_eq(find(&layout, RSSM_T_STATE)->shape[0], slots);
        check_spans(&layout);
        h_teardown(&plugin);
    }
    rssm_plugin *plugin;
    rssm_error err;
    args.memory_budget_bytes = smallest - 1;
    ck_assert_int_eq(try_init(&args, &plugin, &err), RSSM_ERR_ARGUMENT);
    char number[32];
    snprintf(number, sizeof(number), "%lld", (long long)smallest);
    ck_assert_msg(strstr(err.message, number) && strstr(err.message, "memory_budget_bytes"), "%s", err.message);
}
END_TEST

START_TEST(test_slot_options)
{
    h_spec spec = {.family = RSSM_FAMILY_KDA};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    const struct {
        int64_t slots, budget;
    } bad[] = {{-1, 0}, {INT64_MIN, 0}, {(int64_t)INT32_MAX + 1, 0}, {INT64_MAX, 0}, {0, -1}, {1, 1 << 30}, {0, 1}};
    for (int i = 0; i < COUNT(bad); i++) {
        rssm_plugin *plugin;
        rssm_error err;
        args.num_slots = bad[i].slots;
        args.memory_budget_bytes = bad[i].budget;
        ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_ARGUMENT, "%d: %s", i, err.message);
    }
    args.num_slots = args.memory_budget_bytes = 0; /* the layout of one slot */
    rssm_plugin *plugin = init(&args);
    ck_assert_int_eq(layout_of(plugin).num_slots, 1);
    h_teardown(&plugin);
    args.num_slots = INT32_MAX;
    plugin = init(&args);
    ck_assert_int_eq(layout_of(plugin).num_slots, INT32_MAX);
    ck_assert_int_gt(layout_of(plugin).slab_bytes, INT32_MAX);
    h_teardown(&plugin);
    args.num_slots = 0;
    args.memory_budget_bytes = INT64_MAX; /* as many as a slot index can name */
    plugin = init(&args);
    ck_assert_int_eq(layout_of(plugin).num_slots, INT32_MAX);
    h_teardown(&plugin);
}
END_TEST

/* ---- dims ------------------------------------------------------------------------------------------------------- */

/* Products beyond 63 bits are refused; those just within are exact. */
START_TEST(test_overflow)
{
    h_spec spec = {.family = 1 + _i, .H = 65536, .HV = 65536, .K = 4096, .V = 4096, .L = 64, .layers = 65536};
    spec.io = spec.ring = RSSM_DTYPE_FLOAT32;
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    rssm_plugin *plugin = init(&args); /* one slot fits */
    rssm_layout layout = layout_of(plugin);
    ck_assert_int_eq(layout.slot_state_bytes, (int64_t)1 << 58); /* 2^16 x 2^16 x 2^12 x 2^12 x 2^2 */
    int64_t fits = (INT64_MAX - layout.workspace_bytes) / (layout.slot_total_bytes + layout.slot_cursor_bytes);
    h_teardown(&plugin);
    const int64_t slots[] = {fits + 1, 1 << 20, INT32_MAX};
    for (int i = 0; i < COUNT(slots); i++) {
        rssm_error err;
        args.num_slots = slots[i];
        ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_OVERFLOW, "%lld slots: %s", (long long)slots[i],
                      err.message);
        ck_assert_msg(strstr(err.message, "63 bits") != NULL, "%s", err.message);
    }
    args.num_slots = fits - 1;
    plugin = init(&args);
    h_teardown(&plugin);
    args.num_slots = 0;
    args.memory_budget_bytes = INT64_MAX; /* the search stays within 63 bits */
    plugin = init(&args);
    ck_assert_int_ge(layout_of(plugin).num_slots, fits - 1);
    ck_assert_int_le(layout_of(plugin).num_slots, fits);
    h_teardown(&plugin);
}
END_TEST

/* One field of rssm_dims out of its range, or against another. */
typedef struct bad_dims {
    const char *name; /* in the message */
    size_t offset;
    int64_t value;
} bad_dims;

#define DIM(field, value)                         \
    {                                             \
#field, offsetof(rssm_dims, field), value \
    }

static const bad_dims bad_dims_cases[] = {
    DIM(family, 0),
    DIM(family, 4),
    DIM(family, -1),
    DIM(num_layers, 0),
    DIM(num_layers, -1),
    DIM(num_layers, 65537),
    DIM(H, 0),
    DIM(H, -2),
    DIM(H, 3),
    DIM(H, 65537),
    DIM(HV, 0),
    DIM(HV, 5),
    DIM(HV, 65538),
    DIM(K, 0),
    DIM(K, 4097),
    DIM(K, INT32_MIN),
    DIM(V, 0),
    DIM(V, 4097),
    DIM(conv_kernel, -1),
    DIM(conv_kernel, 65),
    DIM(no_qk_norm, 2),
    DIM(allow_neg_eigval, -1),
    DIM(has_lower_bound, 1),
    DIM(has_lower_bound, 7),
};

START_TEST(test_bad_dims)
{
    const bad_dims *c = &bad_dims_cases[_i];
    h_spec spec = {.family = RSSM_FAMILY_KDA};
    rssm_dims dims = h_dims(&spec);
    int32_t value = (int32_t)c->value;
    memcpy((char *)&dims + c->offset, &value, sizeof(value));
    rssm_init_args args = h_init_args(&spec, &dims);
    rssm_plugin *plugin;
    rssm_error err;
    ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_ARGUMENT, "%s = %d: %s", c->name, value, err.message);
    ck_assert_msg(strstr(err.message, c->name) || strstr(err.message, "lower_bound"), "%s = %d: %s", c->name, value,
                  err.message);
}
END_TEST

START_TEST(test_bad_gates)
{
    h_spec spec = {.family = RSSM_FAMILY_KDA};
    rssm_plugin *plugin;
    rssm_error err;
    const double bounds[] = {0, 5, (double)NAN, -(double)INFINITY, -1e300};
    for (int i = 0; i < COUNT(bounds); i++) {
        rssm_dims dims = h_dims(&spec);
        dims.has_lower_bound = 1;
        dims.lower_bound = bounds[i];
        rssm_init_args args = h_init_args(&spec, &dims);
        ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_ARGUMENT, "bound %g: %s", bounds[i], err.message);
    }
    spec.family = RSSM_FAMILY_MAMBA2;
    const double limits[][2] = {
        {-1, 1}, {1, 0.5}, {(double)NAN, 1}, {0, (double)NAN}, {(double)INFINITY, (double)INFINITY}};
    for (int i = 0; i < COUNT(limits); i++) {
        rssm_dims dims = h_dims(&spec);
        dims.has_time_step_limit = 1;
        dims.time_step_limit_min = limits[i][0];
        dims.time_step_limit_max = limits[i][1];
        rssm_init_args args = h_init_args(&spec, &dims);
        ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_ARGUMENT, "limit %d: %s", i, err.message);
    }
    rssm_dims dims = h_dims(&spec);
    dims.has_time_step_limit = 1;
    dims.time_step_limit_min = 0.25;
    dims.time_step_limit_max = (double)INFINITY;
    rssm_init_args args = h_init_args(&spec, &dims);
    plugin = init(&args);
    ck_assert(describe(plugin).time_step_limit_min == 0.25 && isinf(describe(plugin).time_step_limit_max));
    h_teardown(&plugin);
}
END_TEST

/* ---- tensor parallelism ----------------------------------------------------------------------------------------- */

typedef struct tp_case {
    const char *name;
    int32_t family, H, HV, tp, rank;
    bool legal;
    int32_t local_H, local_HV, head_begin, group_begin;
} tp_case;

static const tp_case tp_cases[] = {
    {"KDA over 4", RSSM_FAMILY_KDA, 32, 32, 4, 3, true, 8, 8, 24, 24},
    {"GDN 16/32 over 8", RSSM_FAMILY_GDN, 16, 32, 8, 5, true, 2, 4, 20, 10},
    {"GDN 16/32 over 16", RSSM_FAMILY_GDN, 16, 32, 16, 15, true, 1, 2, 30, 15},
    {"GDN 16/32 over 32: key heads", RSSM_FAMILY_GDN, 16, 32, 32, 0, false, 0, 0, 0, 0},
    {"KDA 32 over 3", RSSM_FAMILY_KDA, 32, 32, 3, 0, false, 0, 0, 0, 0},
    {"ng = 8 over 32, rank 9", RSSM_FAMILY_MAMBA2, 8, 128, 32, 9, true, 1, 4, 36, 2},
    {"ng = 8 over 32, rank 31", RSSM_FAMILY_MAMBA2, 8, 128, 32, 31, true, 1, 4, 124, 7},
    {"ng = 8 over 4", RSSM_FAMILY_MAMBA2, 8, 128, 4, 1, true, 2, 32, 32, 2},
    {"ng = 3 over 5", RSSM_FAMILY_MAMBA2, 3, 15, 5, 0, false, 0, 0, 0, 0},
    {"ng = 6 over 4", RSSM_FAMILY_MAMBA2, 6, 24, 4, 0, false, 0, 0, 0, 0},
    {"ng = 1 over 2", RSSM_FAMILY_MAMBA2, 1, 8, 2, 1, true, 1, 4, 4, 0},
    {"nh = 8 over 3", RSSM_FAMILY_MAMBA2, 1, 8, 3, 0, false, 0, 0, 0, 0},
    {"rank 4 of 4", RSSM_FAMILY_KDA, 32, 32, 4, 4, false, 0, 0, 0, 0},
    {"rank -1", RSSM_FAMILY_KDA, 32, 32, 4, -1, false, 0, 0, 0, 0},
    {"tp_size -4", RSSM_FAMILY_KDA, 32, 32, -4, 0, false, 0, 0, 0, 0},
    {"rank 1 of 1", RSSM_FAMILY_KDA, 32, 32, 0, 1, false, 0, 0, 0, 0},
    {"tp_size beyond heads", RSSM_FAMILY_MAMBA2, 1, 8, 65537, 0, false, 0, 0, 0, 0},
};

static rssm_init_args tp_args(const h_spec *spec, const rssm_dims *dims, int32_t tp, int32_t rank)
{
    rssm_init_args args = h_init_args(spec, dims);
    args.tp_size = tp;
    args.tp_rank = rank;
    args.flags = RSSM_INIT_CONV_STATE;
    return args;
}

START_TEST(test_tp)
{
    const tp_case *c = &tp_cases[_i];
    h_spec spec = {.family = c->family, .H = c->H, .HV = c->HV, .K = 6, .V = 10};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = tp_args(&spec, &dims, c->tp, c->rank);
    rssm_plugin *plugin;
    rssm_error err;
    rssm_status status = try_init(&args, &plugin, &err);
    if (!c->legal) {
        char number[16];
        snprintf(number, sizeof(number), "%d", c->tp ? c->tp : c->rank);
        ck_assert_msg(status == RSSM_ERR_TP && strstr(err.message, number), "%s: %s", c->name, err.message);
        return;
    }
    ck_assert_msg(status == RSSM_OK, "%s: %s", c->name, err.message);
    rssm_description d = describe(plugin);
    ck_assert_msg(d.H == c->local_H && d.HV == c->local_HV && d.head_begin == c->head_begin &&
                      d.group_begin == c->group_begin,
                  "%s: H %d HV %d head %d group %d", c->name, d.H, d.HV, d.head_begin, d.group_begin);
    ck_assert(d.model_H == c->H && d.model_HV == c->HV && d.tp_rank == c->rank && d.tp_size == c->tp);
    rssm_layout layout = layout_of(plugin);
    int64_t channels = 2 * (int64_t)c->local_H * 6 + (int64_t)c->local_HV * 10;
    ck_assert_int_eq(d.conv_channels, channels);
    ck_assert_int_eq(find(&layout, RSSM_T_CONV)->shape[1], channels);
    ck_assert_int_eq(find(&layout, RSSM_T_STATE)->shape[1], c->local_HV);
    bool mamba = c->family == RSSM_FAMILY_MAMBA2;
    ck_assert_int_eq(find(&layout, mamba ? RSSM_T_B_CACHE : RSSM_T_K_CACHE)->shape[1], c->local_H);
    ck_assert_int_eq(find(&layout, mamba ? RSSM_T_X_CACHE : RSSM_T_D_CACHE)->shape[1], c->local_HV);
    h_teardown(&plugin);
}
END_TEST

/* Every rank has the same layout and hash; the head ranges tile the model; a value head's key head is on its rank. */
START_TEST(test_ranks_agree)
{
    const tp_case *c = &tp_cases[_i];
    if (!c->legal)
        return;
    h_spec spec = {.family = c->family, .H = c->H, .HV = c->HV, .K = 6, .V = 10};
    rssm_dims dims = h_dims(&spec);
    uint64_t hash = 0;
    int64_t slab = 0;
    for (int32_t rank = 0; rank < c->tp; rank++) {
        rssm_init_args args = tp_args(&spec, &dims, c->tp, rank);
        rssm_plugin *plugin = init(&args);
        rssm_description d = describe(plugin);
        rssm_layout layout = layout_of(plugin);
        hash = rank ? hash : d.layout_hash;
        slab = rank ? slab : layout.slab_bytes;
        ck_assert_uint_eq(d.layout_hash, hash);
        ck_assert_uint_eq(layout.layout_hash, hash);
        ck_assert_int_eq(layout.slab_bytes, slab);
        ck_assert_int_eq(d.head_begin, rank * (c->HV / c->tp));
        int32_t ratio = c->HV / c->H;
        for (int32_t hv = 0; hv < d.HV; hv++) {
            int32_t key = (d.head_begin + hv) / ratio;         /* of the model */
            int32_t local = d.group_begin + hv / (d.HV / d.H); /* as the kernels find it */
            ck_assert_msg(key == local, "rank %d: value head %d reads key head %d, not %d", rank, d.head_begin + hv,
                          local, key);
        }
        h_teardown(&plugin);
    }
}
END_TEST

/* ---- the layout hash -------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const rssm_init_args *args)
{
    rssm_plugin *plugin = init(args);
    uint64_t hash = layout_of(plugin).layout_hash;
    h_teardown(&plugin);
    return hash;
}

/* Whatever two ranks must agree on moves the hash; what each may choose does not. */
START_TEST(test_hash)
{
    h_spec spec = {.family = RSSM_FAMILY_GDN, .H = 4, .HV = 8, .K = 8, .V = 12, .L = 6, .layers = 6};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args base = h_init_args(&spec, &dims);
    uint64_t hashes[32] = {hash_of(&base)};
    int count = 1;
#define DIFFERENT(change)                 \
    do {                                  \
        rssm_dims changed = dims;         \
        rssm_init_args args = base;       \
        args.dims = &changed;             \
        change;                           \
        hashes[count++] = hash_of(&args); \
    } while (0)
    const int32_t some_layers[] = {0, 2, 3, 4, 5}, other_layers[] = {1, 2, 3, 4, 5};
    DIFFERENT(args.ring_length = 7);
    DIFFERENT(args.max_draft_tokens = 1);
    DIFFERENT(args.max_draft_tokens = 2);
    DIFFERENT(args.io_dtype = RSSM_DTYPE_FLOAT16);
    DIFFERENT(args.state_dtype = RSSM_DTYPE_BFLOAT16);
    DIFFERENT(args.ring_dtype = RSSM_DTYPE_FLOAT32);
    DIFFERENT(args.flags = RSSM_INIT_CONV_STATE);
    DIFFERENT(args.tp_size = 2);
    DIFFERENT(args.tp_size = 4);
    DIFFERENT(args.layer_begin = 1);
    DIFFERENT(args.layer_end = 5);
    DIFFERENT(changed.family = RSSM_FAMILY_KDA);
    DIFFERENT(changed.H = 8);
    DIFFERENT(changed.HV = 16);
    DIFFERENT(changed.K = 12);
    DIFFERENT(changed.V = 8);
    DIFFERENT(changed.num_layers = 7);
    DIFFERENT(changed.no_qk_norm = 1);
    DIFFERENT(changed.allow_neg_eigval = 1);
    DIFFERENT((changed.has_lower_bound = 1, changed.lower_bound = -5));
    DIFFERENT((changed.has_lower_bound = 1, changed.lower_bound = -4));
    DIFFERENT((changed.linear_layers = some_layers, changed.num_linear_layers = 5));
    DIFFERENT((changed.linear_layers = other_layers, changed.num_linear_layers = 5, args.layer_begin = 2));
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            ck_assert_msg(hashes[i] != hashes[j], "changes %d and %d have one hash", j, i);
    rssm_init_args same = base;
    same.num_slots = 77;
    same.num_threads = 2;
    same.max_batch = 3;
    same.has_pad_slot = 1;
    same.pad_slot = 5;
    ck_assert_uint_eq(hash_of(&same), hashes[0]);
}
END_TEST

/* ---- pipeline stages -------------------------------------------------------------------------------------------- */

START_TEST(test_pipeline)
{
    static const int32_t linear[] = {0, 1, 2, 4, 5, 6, 8, 9};
    static const struct {
        int32_t begin, end, first, count; /* count 0: refused */
    } stages[] = {{0, 0, 0, 8},  {0, 10, 0, 8}, {0, 5, 0, 4},  {5, 10, 4, 4},        {5, 0, 4, 4},        {3, 5, 3, 1},
                  {9, 10, 7, 1}, {3, 4, 0, 0},  {7, 8, 0, 0},  {5, 5, 0, 0},         {6, 5, 0, 0},        {-1, 5, 0, 0},
                  {0, 11, 0, 0}, {10, 0, 0, 0}, {0, -3, 0, 0}, {0, INT32_MAX, 0, 0}, {INT32_MIN, 0, 0, 0}};
    h_spec spec = {.family = RSSM_FAMILY_KDA, .layers = 10};
    rssm_dims dims = h_dims(&spec);
    dims.linear_layers = linear;
    dims.num_linear_layers = COUNT(linear);
    for (int i = 0; i < COUNT(stages); i++) {
        rssm_init_args args = h_init_args(&spec, &dims);
        args.layer_begin = stages[i].begin;
        args.layer_end = stages[i].end;
        rssm_plugin *plugin;
        rssm_error err;
        rssm_status status = try_init(&args, &plugin, &err);
        if (!stages[i].count) {
            ck_assert_msg(status == RSSM_ERR_ARGUMENT && strstr(err.message, "layer_begin"), "stage %d: %s", i,
                          err.message);
            continue;
        }
        ck_assert_msg(status == RSSM_OK, "stage %d: %s", i, err.message);
        rssm_description d = describe(plugin);
        ck_assert_int_eq(d.num_layers, 10);
        ck_assert_int_eq(d.num_linear_layers, stages[i].count);
        ck_assert_int_eq(layout_of(plugin).num_layers, stages[i].count);
        for (int32_t k = 0; k < stages[i].count; k++)
            ck_assert_int_eq(d.linear_layers[k], linear[stages[i].first + k]);
        h_teardown(&plugin);
    }
}
END_TEST

/* ---- the choice of L -------------------------------------------------------------------------------------------- */

/* Bytes of one row and layer over one window, counted step by step, without inputs and outputs. */
static double window_bytes(double state, double row, int32_t L)
{
    double bytes = 0;
    for (int32_t count = 0; count < L; count++) {
        bytes += state + count * row;          /* read */
        bytes += count == L - 1 ? state : row; /* flushed, or appended */
    }
    return bytes / L;
}

static int64_t io_bytes(const h_spec *spec)
{
    int64_t io = spec->io == RSSM_DTYPE_FLOAT32 ? 4 : 2;
    int64_t gate = spec->family == RSSM_FAMILY_KDA ? (int64_t)spec->HV * spec->K : spec->HV;
    int64_t beta = spec->family == RSSM_FAMILY_MAMBA2 ? 0 : spec->HV;
    return io * (h_symbol(spec, "2HK+HVV", 7) + gate + beta + (int64_t)spec->HV * spec->V);
}

/* What a CPU's step takes by the documented model (docs/performance.md, "Cost model"), in bytes read meanwhile. */
static double cpu_time(const h_spec *spec, double state, double row, int32_t L)
{
    int narrow = spec->state == RSSM_DTYPE_BFLOAT16 || spec->state == RSSM_DTYPE_FLOAT16;
    if (L == 1)
        return state * (narrow ? 3.2 : 1.45);
    return state * (narrow ? 1.8 + 0.9 / L : 1.1 + 0.35 / L) + 2.2 * row * (L - 1) / 2;
}

/* 0: this build has no such device. */
static int describe_on(rssm_init_args *args, int32_t device_type, int32_t L, rssm_description *d, rssm_layout *layout)
{
    rssm_plugin *plugin;
    rssm_error err;
    args->device_type = device_type;
    args->ring_length = L;
    rssm_status status = try_init(args, &plugin, &err);
    if (status == RSSM_ERR_UNSUPPORTED && device_type == kDLCUDA)
        return 0;
    ck_assert_msg(status == RSSM_OK, "%s", err.message);
    *d = describe(plugin); /* its strings go with the instance */
    ck_assert_msg(strlen(d->ring_reason) > 10, "no reason: %s", d->ring_reason);
    *layout = layout_of(plugin);
    h_teardown(&plugin);
    return 1;
}

/* ring_length = 0: a GPU's choice moves the fewest bytes of all L, a CPU's takes the least modelled time. */
static void check_ring_choice(const h_spec *spec, rssm_init_args *args, int32_t device_type)
{
    rssm_description chosen, d;
    rssm_layout layout, ignored;
    if (!describe_on(args, device_type, 0, &chosen, &layout))
        return;
    double state = (double)layout.slot_state_bytes, row = (double)layout.slot_ring_bytes / chosen.ring_rows;
    ck_assert_int_ge(chosen.ring_length, spec->drafts + 1);
    if (chosen.ring_length == 1) { /* no ring to ask for its row's bytes */
        describe_on(args, device_type, 2, &d, &layout);
        row = (double)layout.slot_ring_bytes / d.ring_rows;
    }
    for (int32_t L = spec->drafts + 1; L <= 64; L++) {
        describe_on(args, device_type, L, &d, &ignored);
        double counted = window_bytes(state, row, L) + (double)io_bytes(spec);
        double charged_flush = L > 1 ? row / L : 0; /* the model may charge the record that a flush does not store */
        ck_assert_msg((double)d.step_bytes >= counted - 1 && (double)d.step_bytes <= counted + charged_flush + 1,
                      "L = %d: modelled %lld, counted %.1f", L, (long long)d.step_bytes, counted);
        ck_assert_int_eq(d.step_bytes_read_write, (int64_t)(2 * state) + io_bytes(spec));
        if (device_type == kDLCPU)
            ck_assert_msg(cpu_time(spec, state, row, chosen.ring_length) <= cpu_time(spec, state, row, L) * (1 + 1e-9),
                          "L = %d is faster than the chosen %d", L, chosen.ring_length);
        else
            ck_assert_msg(d.step_bytes >= chosen.step_bytes, "L = %d moves %lld bytes, the chosen %d moves %lld", L,
                          (long long)d.step_bytes, chosen.ring_length, (long long)chosen.step_bytes);
    }
}

START_TEST(test_ring_choice)
{
    uint64_t random = 9000 + (uint64_t)_i;
    h_spec spec = random_spec(&random);
    spec.K = 8 << h_random(&random) % 5;
    spec.V = 8 << h_random(&random) % 5;
    spec.layers = 1;
    spec.drafts = (int32_t)(h_random(&random) % 3);
    spec.num_slots = spec.S = 1;
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    check_ring_choice(&spec, &args, kDLCPU);
    check_ring_choice(&spec, &args, kDLCUDA);
}
END_TEST

/* A CPU may well choose not to have a ring: a small state beside a large record. */
START_TEST(test_ring_choice_of_one)
{
    h_spec spec = {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 8, .V = 4, .io = RSSM_DTYPE_FLOAT32};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.ring_length = 0;
    rssm_plugin *plugin = init(&args);
    ck_assert_int_eq(describe(plugin).ring_length, 1);
    h_teardown(&plugin);
}
END_TEST

/* KDA with a bf16 state wants a shorter ring than Mamba-2 with a float32 state. */
START_TEST(test_ring_choice_by_family)
{
    h_spec kda = {.family = RSSM_FAMILY_KDA, .H = 32, .HV = 32, .K = 128, .V = 128, .state = RSSM_DTYPE_BFLOAT16};
    h_spec mamba = {.family = RSSM_FAMILY_MAMBA2, .H = 8, .HV = 128, .K = 128, .V = 64, .state = RSSM_DTYPE_FLOAT32};
    int32_t lengths[2];
    const h_spec *specs[] = {&kda, &mamba};
    for (int i = 0; i < 2; i++) {
        rssm_dims dims = h_dims(specs[i]);
        rssm_init_args args = h_init_args(specs[i], &dims);
        args.ring_length = 0;
        rssm_plugin *plugin = init(&args);
        lengths[i] = describe(plugin).ring_length;
        h_teardown(&plugin);
    }
    ck_assert_int_gt(lengths[0], 1);
    ck_assert_int_lt(lengths[0], lengths[1]);
}
END_TEST

START_TEST(test_bad_ring)
{
    static const struct {
        int32_t L, drafts;
        const char *text;
    } bad[] = {{-1, 0, "ring_length"},
               {65, 0, "ring_length"},
               {4, 4, "max_draft_tokens"},
               {4, -1, "max_draft_tokens"},
               {0, 64, "max_draft_tokens"},
               {1, 1, "max_draft_tokens"},
               {0, INT32_MAX, "max_draft_tokens"}};
    for (int i = 0; i < COUNT(bad); i++) {
        h_spec spec = {.family = RSSM_FAMILY_KDA};
        rssm_dims dims = h_dims(&spec);
        rssm_init_args args = h_init_args(&spec, &dims);
        args.ring_length = bad[i].L;
        args.max_draft_tokens = bad[i].drafts;
        args.flags = RSSM_INIT_CONV_STATE;
        rssm_plugin *plugin;
        rssm_error err;
        ck_assert_msg(try_init(&args, &plugin, &err) == RSSM_ERR_ARGUMENT && strstr(err.message, bad[i].text), "%d: %s",
                      i, err.message);
    }
}
END_TEST

/* ---- pool_create ------------------------------------------------------------------------------------------------ */

enum { SLOTS = 7, LAYERS = 3 };

static h_spec pool_spec(int32_t family)
{
    h_spec spec = {.family = family, .H = 2, .HV = 4, .K = 5, .V = 7, .L = 3, .B = 4, .S = SLOTS};
    spec.layers = LAYERS;
    spec.num_slots = SLOTS;
    spec.init_flags = RSSM_INIT_CONV_STATE;
    return h_defaults(spec);
}

static rssm_plugin *prepared(const h_spec *spec)
{
    rssm_plugin *plugin = h_init(spec);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->prepare(plugin, &err) == RSSM_OK, "prepare: %s", err.message);
    return plugin;
}

static void create(rssm_plugin *plugin, const rssm_pool_args *args)
{
    rssm_error err = h_error();
    ck_assert_msg(h_api()->pool_create(plugin, args, &err) == RSSM_OK, "pool_create: %s", err.message);
}

static void refuse(rssm_plugin *plugin, const rssm_pool_args *args, rssm_status status, int32_t role, const char *text)
{
    rssm_error err = h_error();
    rssm_status got = h_api()->pool_create(plugin, args, &err);
    ck_assert_msg(got == status, "%s, not %s: %s", h_api()->status_name(got), h_api()->status_name(status),
                  err.message);
    ck_assert_msg(err.role == role, "role %d (%s), not %d: %s", err.role, h_api()->role_name(err.role), role,
                  err.message);
    ck_assert_msg(strstr(err.message, text) != NULL, "no \"%s\": %s", text, err.message);
}

static bool all_are(const unsigned char *bytes, int64_t count, unsigned char value)
{
    for (int64_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* A host's own pool: one tensor per layer and role, gaps of 0xFF between the slots. */
typedef struct host_pool {
    h_tensor tensors[LAYERS][RSSM_T_COUNT];
    const DLTensor *roles[LAYERS * RSSM_T_COUNT];
    rssm_pool_args args;
} host_pool;

static host_pool *host_pool_new(const h_spec *spec, int64_t gap)
{
    host_pool *pool = calloc(1, sizeof(*pool));
    ck_assert_ptr_nonnull(pool);
    pool_tensor want[RSSM_T_COUNT];
    int count = expected_tensors(spec, want);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < count; i++) {
            if (want[i].role == RSSM_T_CURSOR && layer > 0)
                continue;
            h_tensor *tensor = &pool->tensors[layer][want[i].role];
            h_tensor_make(tensor, want[i].type, want[i].ndim, want[i].shape, gap);
            pool->roles[layer * RSSM_T_COUNT + want[i].role] = &tensor->t;
        }
    pool->args =
        (rssm_pool_args){.struct_size = sizeof(rssm_pool_args), .tensors = pool->roles, .num_roles = RSSM_T_COUNT};
    return pool;
}

static void host_pool_free(host_pool *pool)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int role = 0; role < RSSM_T_COUNT; role++)
            if (pool->tensors[layer][role].block) {
                ck_assert(h_tensor_guarded(&pool->tensors[layer][role]));
                h_tensor_free(&pool->tensors[layer][role]);
            }
    free(pool);
}

/* Gap elements still 0xFF? */
static bool gaps_untouched(const h_tensor *tensor)
{
    if (!tensor->t.strides)
        return true;
    size_t element = tensor->t.dtype.bits / 8u, inner = element;
    for (int i = 1; i < tensor->t.ndim; i++)
        inner *= (size_t)tensor->shape[i];
    size_t stride = (size_t)tensor->strides[0] * element;
    for (int64_t s = 0; s < tensor->shape[0]; s++)
        for (size_t i = inner; i < stride; i++)
            if (((const unsigned char *)tensor->t.data)[(size_t)s * stride + i] != 0xFF)
                return false;
    return true;
}

/* Decodes steps of a few requests over all layers through the pool's views, with changing slots and a flush; the outputs
 * are appended to `out`. */
static void run_steps(rssm_plugin *plugin, const h_spec *spec, int steps, unsigned char *out, size_t out_bytes)
{
    h_call *call = h_call_new(spec, 77);
    const int64_t shape[] = {spec->B};
    h_tensor slots;
    h_tensor_make(&slots, h_int_type(32), 1, shape, 0);
    uint64_t random = 78;
    size_t used = 0;
    for (int step = 0; step < steps; step++) {
        for (int64_t b = 0; b < spec->B; b++)
            h_set(&slots.t, b, 0, 0, 0, (double)((b * 2 + step) % SLOTS));
        rssm_step_begin_args begin = {
            .struct_size = sizeof(begin), .slots = &slots.t, .rows_out = &call->tensors[RSSM_T_ROWS].t};
        rssm_error err = h_error();
        ck_assert_msg(h_api()->step_begin(plugin, &begin, &err) == RSSM_OK, "step_begin: %s", err.message);
        for (int32_t layer = 0; layer < spec->layers; layer++) {
            int32_t packed = spec->family == RSSM_FAMILY_MAMBA2 ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV;
            h_fill_random(&call->tensors[packed].t, -1, 1, &random);
            ck_assert_int_eq(h_api()->pool_tensors(plugin, layer, call->roles, RSSM_T_COUNT, NULL), RSSM_OK);
            call->args.layer = layer;
            ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_OK, "validate: %s", err.message);
            ck_assert_msg(h_api()->decode(plugin, &call->args, &err) == RSSM_OK, "decode: %s", err.message);
            const h_tensor *result = &call->tensors[RSSM_T_OUT];
            ck_assert(used + result->bytes <= out_bytes);
            memcpy(out + used, result->t.data, result->bytes);
            used += result->bytes;
        }
    }
    ck_assert(h_call_guarded(call));
    h_tensor_free(&slots);
    h_call_free(call);
}

enum { STEPS = 9, OUT_BYTES = STEPS * LAYERS * 4 * 4 * 7 * 2 };

/* The three ways give the same tokens, bit by bit. */
START_TEST(test_three_ways)
{
    h_spec spec = pool_spec(1 + _i);
    static unsigned char out[4][OUT_BYTES];
    memset(out, 0, sizeof(out));

    rssm_plugin *plugin = prepared(&spec); /* the plugin allocates: zeroed */
    create(plugin, NULL);
    run_steps(plugin, &spec, STEPS, out[0], OUT_BYTES);
    h_teardown(&plugin);

    plugin = prepared(&spec); /* one slab, bound as it is */
    rssm_layout layout = layout_of(plugin);
    unsigned char *slab = h_block((size_t)layout.slab_bytes + 256);
    ck_assert_ptr_nonnull(slab);
    memset(slab, 0x5A, (size_t)layout.slab_bytes + 256);
    rssm_pool_args args = {.struct_size = sizeof(args), .slab = slab, .slab_bytes = (uint64_t)layout.slab_bytes};
    create(plugin, &args);
    ck_assert_msg(all_are(slab, layout.slab_bytes + 256, 0x5A), "binding wrote to the slab");
    rssm_reset_args all = {.struct_size = sizeof(all)};
    ck_assert_int_eq(h_api()->reset(plugin, &all, NULL), RSSM_OK);
    run_steps(plugin, &spec, STEPS, out[1], OUT_BYTES);
    h_teardown(&plugin);
    ck_assert_msg(all_are(slab + layout.slab_bytes, 256, 0x5A), "written behind the slab");
    h_block_free(slab);

    const int64_t gaps[] = {0, 3}; /* the host's own tensors, compact and paged */
    for (int way = 2; way < 4; way++) {
        plugin = prepared(&spec);
        host_pool *pool = host_pool_new(&spec, gaps[way - 2]);
        create(plugin, &pool->args);
        ck_assert_int_eq(h_api()->reset(plugin, &all, NULL), RSSM_OK);
        run_steps(plugin, &spec, STEPS, out[way], OUT_BYTES);
        h_teardown(&plugin);
        for (int layer = 0; layer < LAYERS; layer++)
            for (int role = 0; role < RSSM_T_COUNT; role++)
                ck_assert_msg(gaps_untouched(&pool->tensors[layer][role]), "layer %d: written between slots of %s",
                              layer, h_api()->role_name(role));
        host_pool_free(pool);
    }
    for (int way = 1; way < 4; way++)
        ck_assert_msg(memcmp(out[0], out[way], OUT_BYTES) == 0, "way %d decodes other tokens", way);
    ck_assert(!all_are(out[0], OUT_BYTES, 0));
}
END_TEST

/* Counts what goes through the callbacks. */
typedef struct counter {
    int64_t live, live_bytes, largest;
} counter;

static void *count_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    counter *c = user;
    ck_assert_msg(alignment && !(alignment & (alignment - 1)) && alignment <= 4096, "alignment %d", (int)alignment);
    c->live++;
    c->live_bytes += (int64_t)bytes;
    c->largest = (int64_t)bytes > c->largest ? (int64_t)bytes : c->largest;
    alignment = alignment < 16 ? 16 : alignment;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    memset(memory, 0xFF, bytes); /* the plugin zeroes */
    return memory;
}

static void count_free(void *user, void *memory, uint64_t bytes)
{
    counter *c = user;
    c->live--;
    c->live_bytes -= (int64_t)bytes;
    free(memory);
}

START_TEST(test_allocated)
{
    if (h_on_cuda()) {
        h_skip("the judge gives the pool's memory itself there, so that it can read it");
        return;
    }
    counter count = {0};
    rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &count, .alloc = count_alloc, .free = count_free};
    h_spec spec = pool_spec(1 + _i);
    spec.num_slots = spec.S = 3000;
    spec.allocator = &allocator;
    rssm_plugin *plugin = prepared(&spec);
    rssm_layout layout = layout_of(plugin);
    int64_t before = count.live_bytes;
    create(plugin, NULL);
    ck_assert_int_eq(count.largest, layout.slab_bytes);
    ck_assert_int_ge(count.live_bytes - before, layout.slab_bytes);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        const DLTensor *tensors[RSSM_T_COUNT] = {0};
        ck_assert_int_eq(h_api()->pool_tensors(plugin, layer, tensors, RSSM_T_COUNT, NULL), RSSM_OK);
        for (int32_t i = 0; i < layout.num_tensors; i++) {
            const DLTensor *t = tensors[layout.tensors[i].role];
            const unsigned char *bytes = h_at(t, 0, 0, 0, 0);
            ck_assert_uint_eq((uintptr_t)bytes % RSSM_POOL_ALIGNMENT, 0);
            ck_assert_msg(all_are(bytes, layout.num_slots * layout.tensors[i].bytes_per_slot, 0),
                          "fresh `%s` is not zero", layout.tensors[i].name);
        }
    }
    h_teardown(&plugin);
    ck_assert_int_eq(count.live, 0);
    ck_assert_int_eq(count.live_bytes, 0);
}
END_TEST

START_TEST(test_pool_order)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = h_init(&spec);
    refuse(plugin, NULL, RSSM_ERR_STATE, RSSM_T_NONE, "before prepare");
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK); /* does nothing */
    create(plugin, NULL);
    const DLTensor *first[RSSM_T_COUNT] = {0}, *again[RSSM_T_COUNT] = {0};
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 1, first, RSSM_T_COUNT, NULL), RSSM_OK);
    refuse(plugin, NULL, RSSM_ERR_STATE, RSSM_T_NONE, "pool");
    host_pool *pool = host_pool_new(&spec, 0);
    refuse(plugin, &pool->args, RSSM_ERR_STATE, RSSM_T_NONE, "pool");
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 1, again, RSSM_T_COUNT, NULL), RSSM_OK);
    ck_assert(memcmp(first, again, sizeof(first)) == 0); /* the first pool is still bound */
    host_pool_free(pool);
    h_teardown(&plugin);

    spec.num_slots = 0; /* nobody said how large */
    plugin = prepared(&spec);
    refuse(plugin, NULL, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "num_slots");
    h_teardown(&plugin);
}
END_TEST

START_TEST(test_bad_slab)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    uint64_t bytes = (uint64_t)layout_of(plugin).slab_bytes;
    char *slab = h_block(bytes + 256);
    ck_assert_ptr_nonnull(slab);
    rssm_pool_args args = {.struct_size = sizeof(args), .slab = slab, .slab_bytes = bytes - 1};
    char number[32];
    snprintf(number, sizeof(number), "%llu", (unsigned long long)bytes);
    refuse(plugin, &args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, number);
    args.slab_bytes = 0;
    refuse(plugin, &args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, number);
    args.slab_bytes = bytes;
    for (int shift = 1; shift < 256; shift *= 2) {
        args.slab = slab + shift;
        refuse(plugin, &args, RSSM_ERR_ALIGNMENT, RSSM_T_NONE, "256");
    }
    args.slab = NULL; /* the host's malloc failed, and it did not look */
    refuse(plugin, &args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "slab");
    args.slab = slab;
    args.flags = 1;
    refuse(plugin, &args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "flag");
    args.flags = 0;
    host_pool *pool = host_pool_new(&spec, 0);
    args.tensors = pool->roles;
    args.num_roles = RSSM_T_COUNT;
    refuse(plugin, &args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "slab and tensors");
    args.tensors = NULL;
    args.num_roles = 0;
    create(plugin, &args); /* after all these it still works */
    host_pool_free(pool);
    h_block_free(slab);
    h_teardown(&plugin);
}
END_TEST

/* Each pool tensor missing or wrong, in the first and the last layer. */
START_TEST(test_bad_pool_tensors)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    host_pool *pool = host_pool_new(&spec, 0);
    for (int32_t role = 1; role < RSSM_T_COUNT; role++)
        for (int layer = 0; layer < LAYERS; layer += LAYERS - 1) {
            h_tensor *tensor = &pool->tensors[layer][role];
            if (!tensor->block)
                continue;
            const DLTensor **slot = &pool->roles[layer * RSSM_T_COUNT + role];
            char name[32];
            snprintf(name, sizeof(name), "`%s`", h_api()->role_name(role));
            *slot = NULL;
            refuse(plugin, &pool->args, RSSM_ERR_MISSING, role, name);
            *slot = &tensor->t;
            tensor->shape[0]++;
            refuse(plugin, &pool->args, RSSM_ERR_SHAPE, role, name);
            tensor->shape[0]--;
            tensor->shape[1]++;
            refuse(plugin, &pool->args, RSSM_ERR_SHAPE, role, name);
            tensor->shape[1]--;
            tensor->t.ndim--;
            refuse(plugin, &pool->args, RSSM_ERR_SHAPE, role, name);
            tensor->t.ndim++;
            tensor->t.dtype.bits = 64;
            refuse(plugin, &pool->args, RSSM_ERR_DTYPE, role, name);
            tensor->t.dtype.bits = tensor->t.dtype.code == kDLInt || role == RSSM_T_STATE || role == RSSM_T_G_CACHE ||
                                           role == RSSM_T_DT_CACHE
                                       ? 32
                                       : 16;
            tensor->t.device.device_type = kDLCUDA;
            refuse(plugin, &pool->args, RSSM_ERR_DEVICE, role, name);
            tensor->t.device.device_type = kDLCPU;
            tensor->t.byte_offset = 8;
            refuse(plugin, &pool->args, RSSM_ERR_ALIGNMENT, role, name);
            tensor->t.byte_offset = 0;
            void *data = tensor->t.data;
            tensor->t.data = NULL;
            refuse(plugin, &pool->args, RSSM_ERR_ARGUMENT, role, name);
            tensor->t.data = data;
        }
    create(plugin, &pool->args);
    h_teardown(&plugin);
    host_pool_free(pool);
}
END_TEST

/* Tensors of one pool may not share memory, be it within a layer or between two. */
START_TEST(test_pool_overlaps)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    host_pool *pool = host_pool_new(&spec, 0);
    h_tensor *state = &pool->tensors[0][RSSM_T_STATE];
    for (int layer = 0; layer < LAYERS; layer++)
        for (int role = 1; role < RSSM_T_COUNT; role++) {
            h_tensor *tensor = &pool->tensors[layer][role];
            if (!tensor->block || tensor == state)
                continue;
            void *data = tensor->t.data;
            tensor->t.data = (char *)state->t.data + (state->bytes - 1) / 16 * 16;
            rssm_error err = h_error();
            ck_assert_msg(h_api()->pool_create(plugin, &pool->args, &err) == RSSM_ERR_OVERLAP, "layer %d %s: %s", layer,
                          h_api()->role_name(role), err.message);
            ck_assert_msg(strstr(err.message, "`state`") && strstr(err.message, h_api()->role_name(role)), "%s",
                          err.message);
            tensor->t.data = data;
        }
    create(plugin, &pool->args);
    h_teardown(&plugin);
    host_pool_free(pool);
}
END_TEST

/* The array of a pool is a role array as any other: what it does not know, it refuses. */
START_TEST(test_pool_foreign_roles)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    host_pool *pool = host_pool_new(&spec, 0);
    const int32_t foreign[] = {RSSM_T_NONE, RSSM_T_OUT, RSSM_T_ROWS, RSSM_T_SLOTS,
                               spec.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_D_CACHE : RSSM_T_X_CACHE};
    for (int i = 0; i < COUNT(foreign); i++) {
        pool->roles[RSSM_T_COUNT + foreign[i]] = &pool->tensors[0][RSSM_T_STATE].t;
        rssm_error err = h_error();
        ck_assert_msg(h_api()->pool_create(plugin, &pool->args, &err) == RSSM_ERR_ROLE, "role %d in layer 1: %s",
                      foreign[i], err.message);
        ck_assert_int_eq(err.role, foreign[i]);
        pool->roles[RSSM_T_COUNT + foreign[i]] = NULL;
    }
    pool->args.num_roles = RSSM_T_CURSOR; /* ends before the cursor */
    refuse(plugin, &pool->args, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "num_roles");
    h_teardown(&plugin);
    host_pool_free(pool);
}
END_TEST

/* At L = 1 the ring may be absent from a host's pool too. */
START_TEST(test_pool_without_ring)
{
    h_spec spec = pool_spec(1 + _i);
    spec.L = 1;
    rssm_plugin *plugin = prepared(&spec);
    host_pool *pool = host_pool_new(&spec, 0);
    int count;
    const h_role *roles = h_roles(spec.family, &count);
    for (int i = 0; i < count; i++)
        for (int layer = 0; layer < LAYERS && strcmp(roles[i].form, "ring") == 0; layer++)
            pool->roles[layer * RSSM_T_COUNT + roles[i].role] = NULL;
    host_pool *whole = host_pool_new(&spec, 0); /* in part, of one layer: refused */
    for (int i = 0; i < count; i++)
        for (int layer = 0; layer < LAYERS && strcmp(roles[i].form, "ring") == 0; layer++) {
            rssm_error err = h_error();
            int at = layer * RSSM_T_COUNT + roles[i].role;
            pool->roles[at] = whole->roles[at];
            ck_assert_int_eq(h_api()->pool_create(plugin, &pool->args, &err), RSSM_ERR_MISSING);
            pool->roles[at] = NULL;
        }
    create(plugin, &pool->args);
    rssm_reset_args all = {.struct_size = sizeof(all)};
    ck_assert_int_eq(h_api()->reset(plugin, &all, NULL), RSSM_OK);
    unsigned char out[LAYERS * 2 * 4 * 4 * 7 * 2];
    run_steps(plugin, &spec, 2, out, sizeof(out));
    h_teardown(&plugin);
    host_pool_free(pool);
    host_pool_free(whole);
}
END_TEST

/* ---- pool_tensors ----------------------------------------------------------------------------------------------- */

START_TEST(test_pool_tensors)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    const DLTensor marker, *tensors[H_NUM_ROLES];
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 0, tensors, RSSM_T_COUNT, &err), RSSM_ERR_STATE);
    create(plugin, NULL);
    for (int i = 0; i < H_NUM_ROLES; i++)
        tensors[i] = &marker;
    ck_assert_int_eq(h_api()->pool_tensors(plugin, -1, tensors, RSSM_T_COUNT, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(h_api()->pool_tensors(plugin, LAYERS, tensors, RSSM_T_COUNT, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 0, NULL, RSSM_T_COUNT, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 0, tensors, RSSM_T_CURSOR, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 0, tensors, 0, &err), RSSM_ERR_ARGUMENT);
    for (int i = 0; i < H_NUM_ROLES; i++)
        ck_assert_msg(tensors[i] == &marker, "a refused call set role %d", i);
    rssm_layout layout = layout_of(plugin);
    int64_t bytes = 0;
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        ck_assert_int_eq(h_api()->pool_tensors(plugin, layer, tensors, RSSM_T_CURSOR + 1, &err), RSSM_OK);
        for (int32_t role = 0; role < H_NUM_ROLES; role++) {
            const rssm_tensor_info *info = find(&layout, role);
            ck_assert_msg((tensors[role] == &marker) == !info, "layer %d, role %d", layer, role);
            if (!info)
                continue;
            const DLTensor *t = tensors[role];
            ck_assert(t->ndim == info->ndim && t->dtype.code == info->dtype_code && t->dtype.bits == info->dtype_bits &&
                      t->dtype.lanes == 1);
            ck_assert(t->device.device_type == kDLCPU && t->device.device_id == 0);
            ck_assert(memcmp(t->shape, info->shape, (size_t)info->ndim * sizeof(int64_t)) == 0);
            int64_t size = t->dtype.bits / 8;
            for (int i = 0; i < t->ndim; i++)
                size *= t->shape[i];
            bytes += info->per_layer ? size : 0;
        }
    }
    ck_assert_int_eq(bytes, layout.slot_total_bytes * layout.num_slots); /* what is bound is what was promised */
    h_teardown(&plugin);
}
END_TEST

/* Each per-layer tensor of another layer, among the right ones: refused, whoever's memory the pool is. */
START_TEST(test_other_layer)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    create(plugin, NULL);
    h_call *call = h_call_new(&spec, 3);
    const DLTensor *other[RSSM_T_COUNT] = {0};
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 2, other, RSSM_T_COUNT, NULL), RSSM_OK);
    call->args.layer = 1;
    int count;
    const h_role *roles = h_roles(spec.family, &count);
    for (int i = 0; i < count; i++) {
        if (roles[i].place != H_POOL)
            continue;
        ck_assert_int_eq(h_api()->pool_tensors(plugin, 1, call->roles, RSSM_T_COUNT, NULL), RSSM_OK);
        ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_OK);
        call->roles[roles[i].role] = other[roles[i].role];
        rssm_error err = h_error();
        ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_ARGUMENT);
        ck_assert_msg(err.role == roles[i].role && err.expected == 1 && err.got == 2, "%s", err.message);
        ck_assert_msg(strstr(err.message, "layer 2") && strstr(err.message, "layer 1"), "%s", err.message);
    }
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- reset ------------------------------------------------------------------------------------------------------ */

static bool slot_is(const h_tensor *tensor, int64_t slot, unsigned char byte)
{
    size_t bytes = tensor->t.dtype.bits / 8u;
    for (int i = 1; i < tensor->t.ndim; i++)
        bytes *= (size_t)tensor->shape[i];
    const unsigned char *at = h_at(&tensor->t, slot, 0, 0, 0);
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte)
            return false;
    return true;
}

static void check_slots(const host_pool *pool, const bool *fresh)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int role = 1; role < RSSM_T_COUNT; role++) {
            const h_tensor *tensor = &pool->tensors[layer][role];
            for (int64_t s = 0; tensor->block && s < SLOTS; s++)
                ck_assert_msg(slot_is(tensor, s, fresh[s] ? 0 : 0xFF), "layer %d, %s, slot %d is %s", layer,
                              h_api()->role_name(role), (int)s, fresh[s] ? "not reset" : "changed");
            ck_assert_msg(!tensor->block || gaps_untouched(tensor), "written between slots of %s",
                          h_api()->role_name(role));
        }
}

/* The listed slots of all layers are zero, all others keep every byte. The old tenant left NaN. */
START_TEST(test_reset)
{
    h_spec spec = pool_spec(1 + _i / 4);
    rssm_plugin *plugin = prepared(&spec);
    host_pool *pool = host_pool_new(&spec, 5);
    create(plugin, &pool->args);
    bool fresh[SLOTS] = {false};
    const int64_t shape[] = {8};
    const double indices[] = {2, -1, SLOTS, 5, 1e6, -1e6, 2, SLOTS - 1};
    h_tensor slots;
    h_tensor_make(&slots, h_int_type(_i & 1 ? 64 : 32), 1, shape, _i & 2 ? 2 : 0);
    for (int i = 0; i < 8; i++)
        h_set(&slots.t, i, 0, 0, 0, indices[i]);
    rssm_reset_args args = {.struct_size = sizeof(args), .slots = &slots.t};
    slots.shape[0] = 0;
    ck_assert_int_eq(h_api()->reset(plugin, &args, NULL), RSSM_OK); /* an empty list is no list */
    check_slots(pool, fresh);
    slots.shape[0] = 8;
    ck_assert_int_eq(h_api()->reset(plugin, &args, NULL), RSSM_OK);
    fresh[2] = fresh[5] = fresh[SLOTS - 1] = true;
    check_slots(pool, fresh);
    args.slots = NULL;
    ck_assert_int_eq(h_api()->reset(plugin, &args, NULL), RSSM_OK);
    for (int s = 0; s < SLOTS; s++)
        fresh[s] = true;
    check_slots(pool, fresh);
    h_tensor_free(&slots);
    h_teardown(&plugin);
    host_pool_free(pool);
}
END_TEST

START_TEST(test_bad_reset)
{
    h_spec spec = pool_spec(1 + _i);
    rssm_plugin *plugin = prepared(&spec);
    rssm_reset_args args = {.struct_size = sizeof(args)};
    ck_assert_int_eq(h_api()->reset(plugin, &args, NULL), RSSM_ERR_STATE);
    host_pool *pool = host_pool_new(&spec, 0);
    create(plugin, &pool->args);
    const int64_t shape[] = {2, 1};
    h_tensor slots;
    h_tensor_make(&slots, h_int_type(32), 1, shape, 0);
    h_fill(&slots.t, 1);
    args.slots = &slots.t;
    rssm_error err = h_error();
    args.flags = 1;
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_ARGUMENT);
    args.flags = 0;
    slots.t.dtype = h_float_type(RSSM_DTYPE_FLOAT32);
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_DTYPE);
    ck_assert_int_eq(err.role, RSSM_T_SLOTS);
    slots.t.dtype = h_int_type(32);
    slots.t.ndim = 2;
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_SHAPE);
    ck_assert_msg(strstr(err.message, "`slots` must have shape [n]") != NULL, "%s", err.message);
    slots.t.ndim = 1;
    slots.t.device.device_type = kDLCUDA;
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_DEVICE);
    slots.t.device.device_type = kDLCPU;
    slots.t.byte_offset = 1;
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_ALIGNMENT);
    slots.t.byte_offset = 0;
    slots.shape[0] = -1;
    ck_assert_int_eq(h_api()->reset(plugin, &args, &err), RSSM_ERR_SHAPE);
    const bool untouched[SLOTS] = {false};
    check_slots(pool, untouched);
    h_tensor_free(&slots);
    h_teardown(&plugin);
    host_pool_free(pool);
}
END_TEST

/* Spread phases stay below L, and a reset brings them back. */
START_TEST(test_spread)
{
    h_spec spec = pool_spec(h_family(RSSM_FAMILY_GDN));
    spec.L = 5;
    spec.init_flags = RSSM_INIT_SPREAD_FLUSH;
    rssm_plugin *plugin = prepared(&spec);
    create(plugin, NULL);
    const DLTensor *tensors[RSSM_T_COUNT] = {0};
    ck_assert_int_eq(h_api()->pool_tensors(plugin, 0, tensors, RSSM_T_COUNT, NULL), RSSM_OK);
    int seen[5] = {0}, phases[SLOTS];
    for (int s = 0; s < SLOTS; s++) {
        phases[s] = (int)h_get(tensors[RSSM_T_CURSOR], s, 3, 0, 0);
        ck_assert(phases[s] >= 0 && phases[s] < 5);
        seen[phases[s]]++;
        h_set(tensors[RSSM_T_CURSOR], s, 3, 0, 0, 0);
    }
    for (int phase = 0; phase < 5; phase++)
        ck_assert_msg(seen[phase] == 1 || seen[phase] == 2, "phase %d is used %d times", phase, seen[phase]);
    rssm_reset_args all = {.struct_size = sizeof(all)};
    ck_assert_int_eq(h_api()->reset(plugin, &all, NULL), RSSM_OK);
    for (int s = 0; s < SLOTS; s++)
        ck_assert_int_eq((int)h_get(tensors[RSSM_T_CURSOR], s, 3, 0, 0), phases[s]);
    h_teardown(&plugin);
}
END_TEST

/* ---- admission -------------------------------------------------------------------------------------------------- */

/* N requests fit N slots: slot 0 and slot N - 1 are slots as any other, slot N is a padding row. */
START_TEST(test_all_slots_work)
{
    h_spec spec = pool_spec(1 + _i);
    spec.B = SLOTS + 1;
    rssm_plugin *plugin = prepared(&spec);
    create(plugin, NULL);
    h_call *call = h_call_new(&spec, 31);
    const int64_t shape[] = {SLOTS + 1};
    h_tensor slots;
    h_tensor_make(&slots, h_int_type(64), 1, shape, 0);
    for (int64_t b = 0; b <= SLOTS; b++)
        h_set(&slots.t, b, 0, 0, 0, (double)b);
    rssm_step_begin_args begin = {.struct_size = sizeof(begin),
                                  .slots = &slots.t,
                                  .rows_out = &call->tensors[RSSM_T_ROWS].t,
                                  .flags = RSSM_CHECK_DEEP};
    for (int step = 0; step < spec.L; step++) {
        h_fill(&call->tensors[RSSM_T_OUT].t, (double)NAN);
        ck_assert_int_eq(h_api()->step_begin(plugin, &begin, NULL), RSSM_OK);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            ck_assert_int_eq(h_api()->pool_tensors(plugin, layer, call->roles, RSSM_T_COUNT, NULL), RSSM_OK);
            call->args.layer = layer;
            ck_assert_int_eq(h_api()->decode(plugin, &call->args, NULL), RSSM_OK);
            for (int64_t b = 0; b <= SLOTS; b++) {
                double out = fabs(h_get(&call->tensors[RSSM_T_OUT].t, b, 0, 0, 0));
                ck_assert_msg(b < SLOTS ? out > 0 : out == 0, "step %d, row %d: %g", step, (int)b, out);
            }
        }
    }
    for (int64_t s = 0; s < SLOTS; s++) /* L steps: flushed once */
        ck_assert_msg(h_get(call->roles[RSSM_T_STATE], s, 0, 0, 0) != 0, "slot %d has no state", (int)s);
    h_tensor_free(&slots);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- suite ------------------------------------------------------------------------------------------------------ */

void pool_tests(h_suite *suite);

static void add(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 60});
}

/* What the ABI leaves to the plugin: not for the judge. */
static void add_ours(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 60, .ours = true});
}

void pool_tests(h_suite *suite)
{
    add(suite, "layout", test_layout, 300);
    add(suite, "symbolic shapes", test_symbolic_shape, COUNT(symbolic_shapes));
    add(suite, "ring rows and conv", test_ring_rows_and_conv, 4 * 5);
    add(suite, "budget", test_budget, 60);
    add(suite, "slots and budget", test_slot_options, 1);
    add(suite, "overflow", test_overflow, 3);
    add(suite, "bad dims", test_bad_dims, COUNT(bad_dims_cases));
    add(suite, "bad gates", test_bad_gates, 1);
    add(suite, "tensor parallel", test_tp, COUNT(tp_cases));
    add(suite, "ranks agree", test_ranks_agree, COUNT(tp_cases));
    add_ours(suite, "hash", test_hash, 1);
    add(suite, "pipeline", test_pipeline, 1);
    add_ours(suite, "ring choice", test_ring_choice, 40);
    add_ours(suite, "ring choice of one", test_ring_choice_of_one, 1);
    add_ours(suite, "ring choice by family", test_ring_choice_by_family, 1);
    add(suite, "bad ring", test_bad_ring, 1);
    add(suite, "three ways", test_three_ways, 3);
    add(suite, "allocated", test_allocated, 3);
    add(suite, "order", test_pool_order, 3);
    add(suite, "bad slab", test_bad_slab, 3);
    add(suite, "bad pool tensors", test_bad_pool_tensors, 3);
    add(suite, "pool overlaps", test_pool_overlaps, 3);
    add(suite, "pool, foreign roles", test_pool_foreign_roles, 3);
    add(suite, "pool without ring at L = 1", test_pool_without_ring, 3);
    add(suite, "pool_tensors", test_pool_tensors, 3);
    add(suite, "another layer's tensors", test_other_layer, 3);
    add(suite, "reset", test_reset, 12);
    add(suite, "bad reset", test_bad_reset, 3);
    add(suite, "spread", test_spread, 1);
    add(suite, "all slots work", test_all_slots_work, 3);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("pool", pool_tests, true);
}
#endif
