#include "ext_case.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BIT(call) (1u << (call))

enum { verify_calls = 1 << EC_VERIFY | 1 << EC_VALIDATE_VERIFY };

const char *ec_name(ec_call call)
{
    static const char *const names[EC_CALLS] = {
        [EC_VERIFY_BEGIN] = "verify_begin",
        [EC_VERIFY] = "verify",
        [EC_VALIDATE_VERIFY] = "verify's validate",
        [EC_COMMIT] = "commit",
        [EC_CONV] = "conv",
        [EC_CONV_VERIFY] = "conv_verify",
        [EC_VALIDATE_CONV] = "conv's validate",
        [EC_IMPORT] = "import_state",
        [EC_EXPORT] = "export_state",
        [EC_FLUSH] = "flush",
        [EC_COPY] = "copy",
    };
    return names[call];
}

static void must(rssm_status status, const rssm_error *err, const char *what)
{
    ck_assert_msg(status == RSSM_OK, "%s: %s: %s", what, h_api()->status_name(status), err->message);
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

typedef struct new_tensor {
    const char *name;
    int32_t role, layer;
    h_place place;
    uint32_t calls;
    const DLTensor **where;
    DLDataType type;
    int64_t shape[4];
    int ndim;
    bool optional, binds;
} new_tensor;

static ec_tensor *add(ec_case *c, const new_tensor *t, uint64_t *random)
{
    ck_assert(c->num_tensors < EC_MAX_TENSORS);
    ec_tensor *made = &c->tensors[c->num_tensors++];
    *made = (ec_tensor){.name = t->name,
                        .where = t->where,
                        .role = t->role,
                        .layer = t->layer,
                        .place = t->place,
                        .calls = t->calls,
                        .optional = t->optional,
                        .binds = t->binds};
    h_tensor_make(&made->h, t->type, t->ndim, t->shape, 0);
    /* written out, for tests that change them */
    for (int i = t->ndim - 1, stride = 1; i >= 0; stride *= (int)t->shape[i], i--)
        made->h.strides[i] = stride;
    made->h.t.strides = made->h.strides;
    made->data = made->h.t.data;
    if (t->place == H_INPUT)
        h_fill_random(&made->h.t, -1, 1, random);
    else if (t->place == H_WEIGHT)
        h_fill_random(&made->h.t, 0.1, 1, random);
    if (t->where)
        *t->where = &made->h.t;
    return made;
}

static void add_list(ec_case *c, const char *name, int32_t role, uint32_t calls, const DLTensor **where,
                     const int64_t *values, int64_t n, bool binds)
{
    const new_tensor t = {.name = name,
                          .role = role,
                          .place = H_INDEX,
                          .calls = calls,
                          .where = where,
                          .type = h_int_type(n % 2 ? 32 : 64),
                          .shape = {n},
                          .ndim = 1,
                          .binds = binds};
    uint64_t random = 1;
    ec_tensor *made = add(c, &t, &random);
    for (int64_t i = 0; i < n; i++)
        h_set(&made->h.t, i, 0, 0, 0, (double)values[i]);
}

static ec_tensor *add_rows(ec_case *c, uint32_t calls, const DLTensor **where)
{
    const new_tensor t = {.name = "rows",
                          .role = RSSM_T_ROWS,
                          .place = H_INDEX,
                          .calls = calls,
                          .where = where,
                          .type = h_int_type(32),
                          .shape = {EC_ROWS, RSSM_ROW_WIDTH},
                          .ndim = 2};
    uint64_t random = 1;
    return add(c, &t, &random);
}

/* The decode's tensors with a row per token; rows of verify_begin; the pool's of layer 0. */
static void add_verify(ec_case *c, uint64_t *random)
{
    int count;
    const h_role *roles = h_roles(c->spec.family, &count);
    h_spec tokens = c->spec;
    tokens.B = EC_TOKENS;
    for (int i = 0; i < count; i++) {
        const h_role *role = &roles[i];
        bool delta = c->spec.family != RSSM_FAMILY_MAMBA2;
        if (role->place == H_POOL || role->place == H_INDEX || strcmp(role->form, "apart") == 0)
            continue;
        new_tensor t = {.name = role->name,
                        .role = role->role,
                        .place = role->place,
                        .calls = verify_calls,
                        .where = &c->verify_roles[role->role],
                        .type = h_float_type(role->place == H_WEIGHT ? RSSM_DTYPE_FLOAT32 : c->spec.io),
                        .optional = strcmp(role->form, "optional") == 0 ||
                                    (delta && strcmp(role->form, "bound") == 0 && c->spec.bounded),
                        .binds = strcmp(role->form, "packed") == 0};
        for (const char *at = role->shape; at; t.ndim++) {
            const char *comma = strchr(at, ',');
            t.shape[t.ndim] = h_symbol(&tokens, at, comma ? (size_t)(comma - at) : strlen(at));
            at = comma ? comma + 1 : NULL;
        }
        add(c, &t, random);
    }
}

static void add_conv(ec_case *c, uint64_t *random)
{
    int64_t channels = h_symbol(&c->spec, "2HK+HVV", 7);
    const DLDataType io = h_float_type(c->spec.io);
    for (int windows = 0; windows < 2; windows++) {
        const DLTensor **roles = windows ? c->window_roles : c->conv_roles;
        uint32_t calls = windows ? BIT(EC_CONV_VERIFY) | BIT(EC_VALIDATE_CONV) : BIT(EC_CONV);
        int64_t rows = windows ? EC_TOKENS : EC_ROWS;
        const new_tensor list[] = {
            {"conv_in",
             RSSM_T_CONV_IN,
             0,
             H_INPUT,
             calls,
             &roles[RSSM_T_CONV_IN],
             io,
             {rows, channels},
             .ndim = 2,
             .binds = true},
            {"conv_weight",
             RSSM_T_CONV_WEIGHT,
             0,
             H_WEIGHT,
             calls,
             &roles[RSSM_T_CONV_WEIGHT],
             h_float_type(RSSM_DTYPE_FLOAT32),
             {channels, EC_WIDTH},
             .ndim = 2},
            {"conv_bias",
             RSSM_T_CONV_BIAS,
             0,
             H_WEIGHT,
             calls,
             &roles[RSSM_T_CONV_BIAS],
             h_float_type(RSSM_DTYPE_FLOAT16),
             {channels},
             .ndim = 1,
             .optional = true},
            {"conv_out", RSSM_T_CONV_OUT, 0, H_OUTPUT, calls, &roles[RSSM_T_CONV_OUT], io, {rows, channels}, .ndim = 2},
        };
        for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
            add(c, &list[i], random);
    }
}

static void add_states(ec_case *c, int32_t order, uint64_t *random)
{
    int64_t channels = h_symbol(&c->spec, "2HK+HVV", 7);
    int64_t a = order == RSSM_STATE_VK ? c->spec.V : c->spec.K, b = order == RSSM_STATE_VK ? c->spec.K : c->spec.V;
    const int32_t dtypes[] = {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, RSSM_DTYPE_BFLOAT16};
    for (int32_t layer = 0; layer < EC_LAYERS; layer++) {
        DLDataType type = h_float_type(dtypes[layer % 3]), conv_type = h_float_type(dtypes[(layer + 1) % 3]);
        const new_tensor list[] = {
            {"state",
             RSSM_T_STATE,
             layer,
             H_INPUT,
             BIT(EC_IMPORT),
             &c->states[layer],
             type,
             {EC_ROWS, c->spec.HV, a, b},
             .ndim = 4},
            {"conv",
             RSSM_T_CONV,
             layer,
             H_INPUT,
             BIT(EC_IMPORT),
             &c->convs[layer],
             conv_type,
             {EC_ROWS, channels, EC_WIDTH - 1},
             .ndim = 3},
            {"state",
             RSSM_T_STATE,
             layer,
             H_OUTPUT,
             BIT(EC_EXPORT),
             &c->outs[layer],
             type,
             {EC_ROWS, c->spec.HV, a, b},
             .ndim = 4},
            {"conv",
             RSSM_T_CONV,
             layer,
             H_OUTPUT,
             BIT(EC_EXPORT),
             &c->conv_outs[layer],
             conv_type,
             {EC_ROWS, channels, EC_WIDTH - 1},
             .ndim = 3},
            {"A_log",
             RSSM_T_A_LOG,
             layer,
             H_WEIGHT,
             BIT(EC_EXPORT) | BIT(EC_FLUSH),
             &c->decays[layer],
             type,
             {c->spec.HV},
             .ndim = 1},
        };
        for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
            if (list[i].role != RSSM_T_A_LOG || c->spec.family == RSSM_FAMILY_MAMBA2)
                add(c, &list[i], random);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static void make_args(ec_case *c, int32_t order)
{
    static const int64_t slots[EC_ROWS] = {0, 1, 2}, ends[EC_ROWS + 1] = {0, 2, 2, EC_TOKENS},
                         accepted[EC_ROWS] = {1, 0, 3};
    static const int64_t src[2] = {0, 1}, dst[2] = {3, 2};
    bool mamba = c->spec.family == RSSM_FAMILY_MAMBA2;
    const DLTensor *const *decays = mamba ? c->decays : NULL;
    c->verify_begin = (rssm_verify_begin_args){.struct_size = sizeof(c->verify_begin), .max_T = EC_DRAFTS + 1};
    c->commit = (rssm_commit_args){.struct_size = sizeof(c->commit)};
    c->import = (rssm_state_args){.struct_size = sizeof(c->import),
                                  .states = c->states,
                                  .conv = c->convs,
                                  .num_layers = EC_LAYERS,
                                  .order = order};
    c->export = (rssm_state_args){.struct_size = sizeof(c->export),
                                  .states = c->outs,
                                  .conv = c->conv_outs,
                                  .A_log = decays,
                                  .num_layers = EC_LAYERS,
                                  .order = order};
    c->flush = (rssm_flush_args){.struct_size = sizeof(c->flush), .A_log = decays, .num_layers = mamba ? EC_LAYERS : 0};
    c->copy = (rssm_copy_args){.struct_size = sizeof(c->copy)};
    add_list(c, "slots", RSSM_T_SLOTS, BIT(EC_VERIFY_BEGIN), &c->verify_begin.slots, slots, EC_ROWS, true);
    add_list(c, "cu_seqlens", RSSM_T_CU_SEQLENS, BIT(EC_VERIFY_BEGIN), &c->verify_begin.cu_seqlens, ends, EC_ROWS + 1,
             false);
    add_list(c, "accepted", RSSM_T_ACCEPTED, BIT(EC_COMMIT), &c->commit.accepted, accepted, EC_ROWS, false);
    add_list(c, "slots", RSSM_T_SLOTS, BIT(EC_IMPORT), &c->import.slots, slots, EC_ROWS, true);
    add_list(c, "slots", RSSM_T_SLOTS, BIT(EC_EXPORT), &c->export.slots, slots, EC_ROWS, true);
    add_list(c, "slots", RSSM_T_SLOTS, BIT(EC_FLUSH), &c->flush.slots, slots, EC_ROWS, true);
    add_list(c, "src_slots", RSSM_T_SRC_SLOTS, BIT(EC_COPY), &c->copy.src, src, 2, true);
    add_list(c, "dst_slots", RSSM_T_DST_SLOTS, BIT(EC_COPY), &c->copy.dst, dst, 2, true);
    const rssm_decode_args roles = {.struct_size = sizeof(roles), .num_tensors = RSSM_T_COUNT};
    c->verify = c->conv = c->conv_verify = roles;
    c->verify.tensors = c->verify_roles;
    c->conv.tensors = c->conv_roles;
    c->conv_verify.tensors = c->window_roles;
}

static void pool_tensors(ec_case *c, const DLTensor **roles)
{
    rssm_error err = h_error();
    must(h_api()->pool_tensors(c->plugin, 0, roles, RSSM_T_COUNT, &err), &err, "pool_tensors");
}

/* Two plain steps of slots 0 and 1, their rings and checkpoints random; then a step and a window have begun. */
static void begin_passes(ec_case *c)
{
    static const int64_t slots[EC_ROWS] = {0, 1, 2};
    const DLTensor *list = NULL;
    rssm_error err = h_error();
    add_list(c, "slots", RSSM_T_SLOTS, 0, NULL, slots, EC_ROWS, true);
    list = &c->tensors[c->num_tensors - 1].h.t;
    const DLTensor *step_rows = &add_rows(c, BIT(EC_CONV), &c->conv_roles[RSSM_T_ROWS])->h.t;
    add_rows(c, BIT(EC_VERIFY_BEGIN), &c->verify_begin.rows_out);
    uint32_t readers = verify_calls | BIT(EC_COMMIT) | BIT(EC_CONV_VERIFY) | BIT(EC_VALIDATE_CONV);
    ec_tensor *verify_tensor = add_rows(c, readers, NULL);
    verify_tensor->binds = true; /* B of a commit */
    const DLTensor *verify_rows = &verify_tensor->h.t;
    const rssm_step_begin_args step = {.struct_size = sizeof(step), .slots = list, .rows_out = step_rows};
    must(h_api()->step_begin(c->plugin, &step, &err), &err, "step_begin");
    rssm_verify_begin_args window = c->verify_begin;
    window.rows_out = verify_rows;
    must(c->verify_api->verify_begin(c->plugin, &window, &err), &err, "verify_begin");
    c->verify_roles[RSSM_T_ROWS] = c->window_roles[RSSM_T_ROWS] = c->commit.rows = verify_rows;
}

/* A slab of the test's own: state and rings random (finite), cursors 0 but for slots 0 and 1. */
static void make_pool(ec_case *c, uint64_t *random)
{
    rssm_error err = h_error();
    rssm_layout layout = {.struct_size = sizeof(layout)};
    must(h_api()->pool_layout(c->plugin, &layout, &err), &err, "pool_layout");
    c->slab_bytes = (uint64_t)layout.slab_bytes;
    c->slab = h_block((size_t)c->slab_bytes);
    ck_assert_ptr_nonnull(c->slab);
    memset(c->slab, 0, (size_t)c->slab_bytes);
    must(h_api()->prepare(c->plugin, &err), &err, "prepare");
    const rssm_pool_args pool = {.struct_size = sizeof(pool), .slab = c->slab, .slab_bytes = c->slab_bytes};
    must(h_api()->pool_create(c->plugin, &pool, &err), &err, "pool_create");
    const rssm_reset_args reset = {.struct_size = sizeof(reset)};
    must(h_api()->reset(c->plugin, &reset, &err), &err, "reset");
    const DLTensor *roles[RSSM_T_COUNT] = {0};
    for (int32_t layer = 0; layer < EC_LAYERS; layer++) {
        must(h_api()->pool_tensors(c->plugin, layer, roles, RSSM_T_COUNT, &err), &err, "pool_tensors");
        for (int32_t role = 1; role < RSSM_T_COUNT; role++)
            if (roles[role] && role != RSSM_T_CURSOR)
                h_fill_random(roles[role], -0.5, 0, random);
    }
    c->cursors = h_at(roles[RSSM_T_CURSOR], 0, 0, 0, 0);
    const int32_t used[2][4] = {{1, 2, 3, 0}, {6, 1, 5, 0}};
    memcpy(c->cursors, used, sizeof(used));
    for (int i = 0; i < RSSM_CURSOR_WIDTH; i++) /* nobody's to read */
        c->cursors[EC_PAD * RSSM_CURSOR_WIDTH + i] = 99;
}

ec_case *ec_new(int32_t family, int32_t order)
{
    return ec_new_of((h_spec){.family = family}, order);
}

ec_case *ec_new_of(h_spec wish, int32_t order)
{
    ec_case *c = calloc(1, sizeof(*c));
    ck_assert_ptr_nonnull(c);
    c->spec = h_defaults((h_spec){.family = wish.family,
                                  .io = wish.io,
                                  .state = wish.state,
                                  .ring = wish.ring,
                                  .L = 4,
                                  .drafts = EC_DRAFTS,
                                  .layers = EC_LAYERS,
                                  .B = EC_ROWS,
                                  .S = EC_SLOTS,
                                  .num_slots = EC_SLOTS,
                                  .init_flags = wish.init_flags | RSSM_INIT_CONV_STATE});
    c->slots_api = h_api()->get_extension(RSSM_EXT_SLOTS);
    c->verify_api = h_api()->get_extension(RSSM_EXT_VERIFY);
    c->conv_api = h_api()->get_extension(RSSM_EXT_CONV);
    c->fault_api = h_api()->get_extension(RSSM_EXT_FAULT);
    if (!c->slots_api || !c->verify_api || !c->conv_api || !c->fault_api) {
        h_skip("needs the extensions slots, verify, conv and fault");
        free(c);
        return NULL;
    }
    rssm_dims dims = h_dims(&c->spec);
    rssm_init_args init = h_init_args(&c->spec, &dims);
    init.has_pad_slot = 1;
    init.pad_slot = EC_PAD;
    init.max_batch = 4;
    rssm_error err = h_error();
    must(h_api()->init(&init, &c->plugin, &err), &err, "init");
    uint64_t random = 77;
    make_pool(c, &random);
    make_args(c, order);
    begin_passes(c);
    add_verify(c, &random);
    add_conv(c, &random);
    add_states(c, order, &random);
    pool_tensors(c, c->verify_roles);
    pool_tensors(c, c->conv_roles);
    pool_tensors(c, c->window_roles);
    return c;
}

void ec_free(ec_case *c)
{
    for (int i = 0; i < c->num_tensors; i++)
        h_tensor_free(&c->tensors[i].h);
    h_teardown(&c->plugin);
    h_block_free(c->slab);
    free(c->before);
    free(c);
}

rssm_status ec_run(ec_case *c, ec_call call, rssm_error *err)
{
    switch (call) {
    case EC_VERIFY_BEGIN:
        return c->verify_api->verify_begin(c->plugin, &c->verify_begin, err);
    case EC_VERIFY:
        return c->verify_api->verify(c->plugin, &c->verify, err);
    case EC_VALIDATE_VERIFY:
        return c->verify_api->validate(c->plugin, &c->verify, err);
    case EC_COMMIT:
        return c->verify_api->commit(c->plugin, &c->commit, err);
    case EC_CONV:
        return c->conv_api->conv(c->plugin, &c->conv, err);
    case EC_CONV_VERIFY:
        return c->conv_api->conv_verify(c->plugin, &c->conv_verify, err);
    case EC_VALIDATE_CONV:
        return c->conv_api->validate(c->plugin, &c->conv_verify, err);
    case EC_IMPORT:
        return c->slots_api->import_state(c->plugin, &c->import, err);
    case EC_EXPORT:
        return c->slots_api->export_state(c->plugin, &c->export, err);
    case EC_FLUSH:
        return c->slots_api->flush(c->plugin, &c->flush, err);
    default:
        return c->slots_api->copy(c->plugin, &c->copy, err);
    }
}

void *ec_args(ec_case *c, ec_call call, uint64_t *bytes)
{
    const struct {
        void *args;
        uint64_t bytes;
    } of[EC_CALLS] = {
        [EC_VERIFY_BEGIN] = {&c->verify_begin, sizeof(c->verify_begin)},
        [EC_VERIFY] = {&c->verify, sizeof(c->verify)},
        [EC_VALIDATE_VERIFY] = {&c->verify, sizeof(c->verify)},
        [EC_COMMIT] = {&c->commit, sizeof(c->commit)},
        [EC_CONV] = {&c->conv, sizeof(c->conv)},
        [EC_CONV_VERIFY] = {&c->conv_verify, sizeof(c->conv_verify)},
        [EC_VALIDATE_CONV] = {&c->conv_verify, sizeof(c->conv_verify)},
        [EC_IMPORT] = {&c->import, sizeof(c->import)},
        [EC_EXPORT] = {&c->export, sizeof(c->export)},
        [EC_FLUSH] = {&c->flush, sizeof(c->flush)},
        [EC_COPY] = {&c->copy, sizeof(c->copy)},
    };
    *bytes = of[call].bytes;
    return of[call].args;
}

const DLTensor **ec_where(ec_case *c, ec_call call, const ec_tensor *tensor)
{
    const DLTensor **roles = call == EC_VERIFY || call == EC_VALIDATE_VERIFY      ? c->verify_roles
                             : call == EC_CONV                                    ? c->conv_roles
                             : call == EC_CONV_VERIFY || call == EC_VALIDATE_CONV ? c->window_roles
                                                                                  : NULL;
    if (roles)
        return &roles[tensor->role];
    return call == EC_COMMIT && tensor->role == RSSM_T_ROWS ? &c->commit.rows : tensor->where;
}

ec_tensor *ec_find(ec_case *c, ec_call call, int32_t role, int32_t layer)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].calls & BIT(call) && c->tensors[i].role == role && c->tensors[i].layer == layer)
            return &c->tensors[i];
    return NULL;
}

/* ---- nothing has changed ---------------------------------------------------------------------------------------- */

void ec_remember(ec_case *c)
{
    size_t bytes = (size_t)c->slab_bytes, at = bytes;
    for (int i = 0; i < c->num_tensors; i++)
        bytes += c->tensors[i].h.bytes;
    free(c->before);
    c->before = malloc(bytes);
    ck_assert_ptr_nonnull(c->before);
    memcpy(c->before, c->slab, (size_t)c->slab_bytes);
    for (int i = 0; i < c->num_tensors; at += c->tensors[i++].h.bytes)
        memcpy(c->before + at, c->tensors[i].data, c->tensors[i].h.bytes);
}

bool ec_changed(const ec_case *c)
{
    size_t at = (size_t)c->slab_bytes;
    bool changed = memcmp(c->before, c->slab, at) != 0;
    for (int i = 0; i < c->num_tensors; at += c->tensors[i++].h.bytes)
        changed = changed || !h_tensor_guarded(&c->tensors[i].h) ||
                  memcmp(c->before + at, c->tensors[i].data, c->tensors[i].h.bytes) != 0;
    return changed;
}
