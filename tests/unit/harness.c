#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Check's own asserts report even a success to the runner, which only works inside a test; the harness is also used by
 * main(), to load the plugin once before all forks. */
#define REQUIRE(condition, ...)           \
    do {                                  \
        if (!(condition)) {               \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr);          \
            ck_abort_msg(__VA_ARGS__);    \
        }                                 \
    } while (0)

/* ---- the plugin ------------------------------------------------------------------------------------------------- */

const rssm_api *(*h_front)(const rssm_api *real);

const rssm_api *h_api(void)
{
    static const rssm_api *api;
    if (api)
        return api;
    const char *path = getenv("RSSM_PLUGIN");
    REQUIRE(path != NULL, "set RSSM_PLUGIN to the path of replayssm.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != NULL, "dlopen: %s", dlerror());
    rssm_get_api_fn get = NULL;
    *(void **)&get = dlsym(library, RSSM_GET_API_SYMBOL);
    REQUIRE(get != NULL, "no " RSSM_GET_API_SYMBOL);
    api = get(RSSM_ABI_MAJOR);
    REQUIRE(api != NULL, "the plugin does not speak ABI %d", RSSM_ABI_MAJOR);
    api = h_front ? h_front(api) : api;
    return api;
}

static int families_asked, families_had;

bool h_has_family(int32_t family)
{
    static const char *const names[] = {"", "kda", "gdn", "mamba2"};
    rssm_info info = {.struct_size = sizeof(info)};
    REQUIRE(h_api()->plugin_info(&info, NULL) == RSSM_OK && info.families, "plugin_info fails");
    bool has = false;
    for (const char *at = info.families; at && family > 0 && family <= RSSM_FAMILY_MAMBA2; at = strchr(at, ',')) {
        at += *at == ',';
        size_t length = strcspn(at, ",");
        has = has || (strlen(names[family]) == length && memcmp(at, names[family], length) == 0);
    }
    families_asked++;
    families_had += has;
    return has;
}

bool h_had_no_family(void)
{
    bool none = families_asked && !families_had;
    families_asked = families_had = 0;
    return none;
}

int32_t h_family(int32_t preferred)
{
    if (h_has_family(preferred))
        return preferred;
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++)
        if (h_has_family(family))
            return family;
    REQUIRE(false, "the plugin has none of the families kda, gdn and mamba2");
    return preferred;
}

void h_need_family(int32_t family)
{
    if (family >= RSSM_FAMILY_KDA && family <= RSSM_FAMILY_MAMBA2 && !h_has_family(family))
        h_skip(family == RSSM_FAMILY_KDA   ? "the plugin has no kda"
               : family == RSSM_FAMILY_GDN ? "the plugin has no gdn"
                                           : "the plugin has no mamba2");
}

const char *h_source_root(void)
{
    const char *root = getenv("RSSM_SOURCE_ROOT");
    REQUIRE(root != NULL, "set RSSM_SOURCE_ROOT to the root of the sources");
    return root;
}

/* ---- the table of roles ----------------------------------------------------------------------------------------- */

#define POSITION_ROLES                                                                       \
    {RSSM_T_ROWS, "rows", "B,8", NULL, "i32", H_INDEX, "rows"},                              \
        {RSSM_T_WRITE_POS, "write_pos", "B", NULL, "i32|i64", H_INDEX, "pos"},               \
        {RSSM_T_FORCE_FLUSH, "force_flush", "B", NULL, "i32|i64", H_INDEX, "pos optional"},  \
    {                                                                                        \
        RSSM_T_STATE_INDICES, "state_indices", "B", NULL, "i32|i64", H_INDEX, "pos optional" \
    }

#define DELTA_INPUTS                                                             \
    {RSSM_T_MIXED_QKV, "mixed_qkv", "B,2HK+HVV", NULL, "io", H_INPUT, "packed"}, \
        {RSSM_T_Q, "q", "B,H,K", "B,HK", "io", H_INPUT, "apart"},                \
        {RSSM_T_K, "k", "B,H,K", "B,HK", "io", H_INPUT, "apart"},                \
    {                                                                            \
        RSSM_T_V, "v", "B,HV,V", "B,HVV", "io", H_INPUT, "apart"                 \
    }

static const h_role kda[] = {
    DELTA_INPUTS,
    {RSSM_T_A, "a", "B,HV,K", "B,HVK", "io|f32", H_INPUT, ""},
    {RSSM_T_B, "b", "B,HV", NULL, "io|f32", H_INPUT, ""},
    {RSSM_T_A_LOG, "A_log", "HV", NULL, "float", H_WEIGHT, "bound"},
    {RSSM_T_DT_BIAS, "dt_bias", "HVK", "HV,K", "float", H_WEIGHT, ""},
    {RSSM_T_OUT, "out", "B,HV,V", "B,HVV", "io|f32", H_OUTPUT, ""},
    {RSSM_T_STATE, "state", "S,HV,V,K", NULL, "state", H_POOL, ""},
    {RSSM_T_D_CACHE, "d_cache", "S,HV,R,V", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_K_CACHE, "k_cache", "S,H,R,K", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_G_CACHE, "g_cache", "S,HV,R,K", NULL, "f32", H_POOL, "ring"},
    POSITION_ROLES,
};

static const h_role gdn[] = {
    DELTA_INPUTS,
    {RSSM_T_A, "a", "B,HV", NULL, "io|f32", H_INPUT, ""},
    {RSSM_T_B, "b", "B,HV", NULL, "io|f32", H_INPUT, ""},
    {RSSM_T_A_LOG, "A_log", "HV", NULL, "float", H_WEIGHT, "bound"},
    {RSSM_T_DT_BIAS, "dt_bias", "HV", NULL, "float", H_WEIGHT, ""},
    {RSSM_T_OUT, "out", "B,HV,V", "B,HVV", "io|f32", H_OUTPUT, ""},
    {RSSM_T_STATE, "state", "S,HV,V,K", NULL, "state", H_POOL, ""},
    {RSSM_T_D_CACHE, "d_cache", "S,HV,R,V", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_K_CACHE, "k_cache", "S,H,R,K", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_G_CACHE, "g_cache", "S,HV,R", NULL, "f32", H_POOL, "ring"},
    POSITION_ROLES,
};

static const h_role mamba2[] = {
    {RSSM_T_MIXED_XBC, "mixed_xbc", "B,2HK+HVV", NULL, "io", H_INPUT, "packed"},
    {RSSM_T_X, "x", "B,HV,V", "B,HVV", "io", H_INPUT, "apart"},
    {RSSM_T_BM, "B", "B,H,K", "B,HK", "io", H_INPUT, "apart"},
    {RSSM_T_CM, "C", "B,H,K", "B,HK", "io", H_INPUT, "apart"},
    {RSSM_T_DT, "dt", "B,HV", NULL, "io|f32", H_INPUT, ""},
    {RSSM_T_Z, "z", "B,HV,V", "B,HVV", "io", H_INPUT, "optional"},
    {RSSM_T_A_LOG, "A_log", "HV", NULL, "float", H_WEIGHT, ""},
    {RSSM_T_DT_BIAS, "dt_bias", "HV", NULL, "float", H_WEIGHT, "optional"},
    {RSSM_T_D, "D", "HV", NULL, "float", H_WEIGHT, "optional"},
    {RSSM_T_OUT, "out", "B,HV,V", "B,HVV", "io|f32", H_OUTPUT, ""},
    {RSSM_T_STATE, "state", "S,HV,V,K", NULL, "state", H_POOL, ""},
    {RSSM_T_X_CACHE, "x_cache", "S,HV,R,V", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_B_CACHE, "B_cache", "S,H,R,K", NULL, "ring", H_POOL, "ring"},
    {RSSM_T_DT_CACHE, "dt_cache", "S,HV,R", NULL, "f32", H_POOL, "ring"},
    POSITION_ROLES,
};

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

const h_role *h_roles(int32_t family, int *count)
{
    switch (family) {
    case RSSM_FAMILY_KDA:
        *count = COUNT(kda);
        return kda;
    case RSSM_FAMILY_GDN:
        *count = COUNT(gdn);
        return gdn;
    default:
        *count = COUNT(mamba2);
        return mamba2;
    }
}

const h_role *h_role_of(int32_t family, int32_t role)
{
    int count;
    const h_role *roles = h_roles(family, &count);
    for (int i = 0; i < count; i++)
        if (roles[i].role == role)
            return &roles[i];
    return NULL;
}

/* ---- specs ------------------------------------------------------------------------------------------------------ */

#define DEFAULT(field, value) \
    if (!spec.field)          \
    spec.field = (value)

h_spec h_defaults(h_spec spec)
{
    if (spec.filled)
        return spec;
    spec.filled = true;
    DEFAULT(family, RSSM_FAMILY_KDA);
    DEFAULT(H, 2);
    DEFAULT(HV, 4);
    DEFAULT(K, 4);
    DEFAULT(V, 6);
    DEFAULT(L, 4);
    DEFAULT(layers, 1);
    DEFAULT(B, 3);
    DEFAULT(S, 5);
    DEFAULT(io, RSSM_DTYPE_BFLOAT16);
    DEFAULT(state, RSSM_DTYPE_FLOAT32);
    DEFAULT(ring, spec.io);
    DEFAULT(gate, spec.io);
    DEFAULT(out, spec.io);
    DEFAULT(weights, RSSM_DTYPE_FLOAT32);
    DEFAULT(index_bits, 32);
    DEFAULT(threads, 1);
    if (spec.B < 0)
        spec.B = 0;
    if (spec.S < 0)
        spec.S = 0;
    return spec;
}

int32_t h_ring_rows(const h_spec *spec)
{
    return spec->L + (spec->drafts ? spec->drafts + 1 : 0);
}

rssm_dims h_dims(const h_spec *given)
{
    h_spec spec = h_defaults(*given);
    return (rssm_dims){.struct_size = sizeof(rssm_dims),
                       .family = spec.family,
                       .num_layers = spec.layers,
                       .H = spec.H,
                       .HV = spec.HV,
                       .K = spec.K,
                       .V = spec.V,
                       .conv_kernel = 4,
                       .has_lower_bound = spec.bounded,
                       .lower_bound = spec.bounded ? -5 : 0};
}

rssm_init_args h_init_args(const h_spec *given, const rssm_dims *dims)
{
    h_spec spec = h_defaults(*given);
    return (rssm_init_args){.struct_size = sizeof(rssm_init_args),
                            .dims = dims,
                            .ring_length = spec.L,
                            .max_draft_tokens = spec.drafts,
                            .io_dtype = spec.io,
                            .state_dtype = spec.state,
                            .ring_dtype = spec.ring,
                            .num_slots = spec.num_slots,
                            .num_threads = spec.threads,
                            .flags = spec.init_flags,
                            .allocator = spec.allocator};
}

rssm_plugin *h_init(const h_spec *spec)
{
    h_need_family(h_defaults(*spec).family);
    rssm_dims dims = h_dims(spec);
    rssm_init_args args = h_init_args(spec, &dims);
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    rssm_status status = h_api()->init(&args, &plugin, &err);
    REQUIRE(status == RSSM_OK, "init: %s", err.message);
    REQUIRE(plugin != NULL, "init: no plugin");
    return plugin;
}

void h_teardown(rssm_plugin **plugin)
{
    rssm_error err = h_error();
    REQUIRE(h_api()->teardown(plugin, &err) == RSSM_OK, "teardown: %s", err.message);
    REQUIRE(*plugin == NULL, "teardown leaves the handle");
}

int64_t h_symbol(const h_spec *spec, const char *symbol, size_t length)
{
    const struct {
        const char *name;
        int64_t value;
    } symbols[] = {{"B", spec->B},
                   {"S", spec->S},
                   {"R", h_ring_rows(spec)},
                   {"H", spec->H},
                   {"HV", spec->HV},
                   {"K", spec->K},
                   {"V", spec->V},
                   {"8", 8},
                   {"HK", (int64_t)spec->H * spec->K},
                   {"HVV", (int64_t)spec->HV * spec->V},
                   {"HVK", (int64_t)spec->HV * spec->K},
                   {"2HK+HVV", 2 * (int64_t)spec->H * spec->K + (int64_t)spec->HV * spec->V}};
    for (int i = 0; i < COUNT(symbols); i++)
        if (strlen(symbols[i].name) == length && memcmp(symbols[i].name, symbol, length) == 0)
            return symbols[i].value;
    REQUIRE(false, "no symbol %s", symbol);
    return -1;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

enum { GUARD = 256, GUARD_BYTE = 0xA5 };

DLDataType h_float_type(int32_t dtype)
{
    return (DLDataType){.code = dtype == RSSM_DTYPE_BFLOAT16 ? kDLBfloat : kDLFloat,
                        .bits = dtype == RSSM_DTYPE_FLOAT32 ? 32 : 16,
                        .lanes = 1};
}

DLDataType h_int_type(int bits)
{
    return (DLDataType){.code = kDLInt, .bits = (uint8_t)bits, .lanes = 1};
}

static void *plain_block(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

void *(*h_block)(size_t bytes) = plain_block;
void (*h_block_free)(void *memory) = free;

bool h_on_cuda(void)
{
    const char *device = getenv("RSSM_JUDGED_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

void h_tensor_make(h_tensor *tensor, DLDataType type, int ndim, const int64_t *shape, int64_t gap)
{
    int64_t stride = 1, elements = 1;
    memset(tensor, 0, sizeof(*tensor));
    for (int i = ndim - 1; i >= 0; i--) {
        tensor->shape[i] = shape[i];
        tensor->strides[i] = stride + (i == 0 ? gap : 0);
        elements = i == 0 ? shape[0] * tensor->strides[0] : elements;
        stride *= shape[i];
    }
    tensor->bytes = (size_t)elements * type.bits / 8;
    size_t whole = (GUARD + tensor->bytes + GUARD + 255) / 256 * 256;
    tensor->block = h_block(whole);
    REQUIRE(tensor->block != NULL, "no memory");
    memset(tensor->block, GUARD_BYTE, whole);
    memset(tensor->block + GUARD, 0xFF, tensor->bytes);
    tensor->t = (DLTensor){.data = tensor->block + GUARD,
                           .device = {.device_type = kDLCPU},
                           .ndim = ndim,
                           .dtype = type,
                           .shape = tensor->shape,
                           .strides = gap ? tensor->strides : NULL};
}

void h_tensor_free(h_tensor *tensor)
{
    h_block_free(tensor->block);
    memset(tensor, 0, sizeof(*tensor));
}

bool h_tensor_guarded(const h_tensor *tensor)
{
    for (size_t i = 0; i < GUARD; i++)
        if (tensor->block[i] != GUARD_BYTE || tensor->block[GUARD + tensor->bytes + i] != GUARD_BYTE)
            return false;
    return true;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static bool in_form(const h_spec *spec, const h_role *role)
{
    if (strcmp(role->form, "packed") == 0)
        return !spec->apart;
    if (strcmp(role->form, "apart") == 0)
        return spec->apart;
    if (strcmp(role->form, "rows") == 0)
        return !spec->host_pos;
    if (strncmp(role->form, "pos", 3) == 0)
        return spec->host_pos;
    return true;
}

static DLDataType type_of(const h_spec *spec, const h_role *role)
{
    if (strcmp(role->dtypes, "i32") == 0)
        return h_int_type(32);
    if (strcmp(role->dtypes, "i32|i64") == 0)
        return h_int_type(spec->index_bits);
    if (strcmp(role->dtypes, "state") == 0)
        return h_float_type(spec->state);
    if (strcmp(role->dtypes, "ring") == 0)
        return h_float_type(spec->ring);
    if (strcmp(role->dtypes, "float") == 0)
        return h_float_type(spec->weights);
    if (strcmp(role->dtypes, "f32") == 0)
        return h_float_type(RSSM_DTYPE_FLOAT32);
    if (strcmp(role->dtypes, "io|f32") == 0)
        return h_float_type(role->place == H_OUTPUT ? spec->out : spec->gate);
    return h_float_type(spec->io);
}

static int parse_shape(const h_spec *spec, const char *text, int64_t *shape)
{
    int ndim = 0;
    for (const char *at = text; at; ndim++) {
        const char *comma = strchr(at, ',');
        shape[ndim] = h_symbol(spec, at, comma ? (size_t)(comma - at) : strlen(at));
        at = comma ? comma + 1 : NULL;
    }
    return ndim;
}

static void make_role(h_call *call, const h_role *role)
{
    int64_t shape[H_MAX_DIMS];
    int ndim = parse_shape(&call->spec, role->shape, shape);
    int64_t gap = role->place == H_POOL ? call->spec.slot_gap : role->place == H_WEIGHT ? 0 : call->spec.row_gap;
    h_tensor *tensor = &call->tensors[role->role];
    h_tensor_make(tensor, type_of(&call->spec, role), ndim, shape, gap);
    call->roles[role->role] = &tensor->t;
}

/* Rings are zero, as after a reset. Everything else is random, of a size that keeps all arithmetic tame. */
static void fill_role(h_call *call, const h_role *role, uint64_t *random)
{
    const DLTensor *t = &call->tensors[role->role].t;
    switch (role->place) {
    case H_WEIGHT:
        h_fill_random(t, role->role == RSSM_T_A_LOG ? 0 : -1, 1, random);
        break;
    case H_INPUT:
        h_fill_random(t, -1, 1, random);
        break;
    case H_POOL:
        if (role->role == RSSM_T_STATE)
            h_fill_random(t, -1, 1, random);
        else
            h_fill(t, 0);
        break;
    case H_INDEX:
        h_fill(t, 0);
        break;
    case H_OUTPUT: /* stays NaN */
        break;
    }
}

static void set_positions(h_call *call)
{
    const DLTensor *rows = call->roles[RSSM_T_ROWS], *indices = call->roles[RSSM_T_STATE_INDICES];
    for (int64_t b = 0; b < call->spec.B; b++) {
        if (indices)
            h_set(indices, b, 0, 0, 0, (double)b);
        if (!rows)
            continue;
        h_set(rows, b, 0, 0, 0, (double)b);
        h_set(rows, b, 5, 0, 0, (double)b);
        h_set(rows, b, 6, 0, 0, 1);
        h_set(rows, b, 3, 0, 0, call->spec.L == 1);
    }
}

h_call *h_call_new(const h_spec *spec, uint64_t seed)
{
    h_call *call = calloc(1, sizeof(*call));
    REQUIRE(call != NULL, "no memory");
    call->spec = h_defaults(*spec);
    call->args =
        (rssm_decode_args){.struct_size = sizeof(call->args), .tensors = call->roles, .num_tensors = RSSM_T_COUNT};
    int count;
    const h_role *roles = h_roles(call->spec.family, &count);
    for (int i = 0; i < count; i++)
        if (in_form(&call->spec, &roles[i])) {
            make_role(call, &roles[i]);
            fill_role(call, &roles[i], &seed);
        }
    set_positions(call);
    return call;
}

void h_call_free(h_call *call)
{
    for (int role = 0; role < RSSM_T_COUNT; role++)
        h_tensor_free(&call->tensors[role]);
    free(call);
}

bool h_call_guarded(const h_call *call)
{
    for (int role = 0; role < RSSM_T_COUNT; role++)
        if (call->tensors[role].block && !h_tensor_guarded(&call->tensors[role]))
            return false;
    return true;
}

static size_t block_bytes(const h_tensor *tensor)
{
    return tensor->block ? GUARD + tensor->bytes + GUARD : 0;
}

h_snapshot h_snapshot_take(const h_call *call)
{
    size_t bytes = 0;
    for (int role = 0; role < RSSM_T_COUNT; role++)
        bytes += block_bytes(&call->tensors[role]);
    h_snapshot snapshot = {.bytes = malloc(bytes + 1)};
    REQUIRE(snapshot.bytes != NULL, "no memory");
    unsigned char *to = snapshot.bytes;
    for (int role = 0; role < RSSM_T_COUNT; role++) {
        size_t size = block_bytes(&call->tensors[role]);
        if (size)
            memcpy(to, call->tensors[role].block, size);
        to += size;
    }
    return snapshot;
}

int32_t h_snapshot_differs(const h_snapshot *snapshot, const h_call *call)
{
    const unsigned char *from = snapshot->bytes;
    for (int role = 0; role < RSSM_T_COUNT; role++) {
        size_t size = block_bytes(&call->tensors[role]);
        if (size && memcmp(from, call->tensors[role].block, size) != 0)
            return role;
        from += size;
    }
    return RSSM_T_NONE;
}

void h_snapshot_free(h_snapshot *snapshot)
{
    free(snapshot->bytes);
    snapshot->bytes = NULL;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* A 16-bit float type: bits of the mantissa and the exponent's bias. */
typedef struct half_type {
    int mantissa, bias;
} half_type;

static half_type half_of(DLDataType type)
{
    return type.code == kDLBfloat ? (half_type){7, 127} : (half_type){10, 15};
}

static uint16_t encode_half(half_type type, double value)
{
    unsigned sign = signbit(value) ? 0x8000 : 0, infinity = 0x7FFFu >> type.mantissa << type.mantissa;
    if (isnan(value))
        return (uint16_t)(sign | infinity | 1u << (type.mantissa - 1));
    double size = fabs(value);
    if (isinf(size))
        return (uint16_t)(sign | infinity);
    int exponent = size > 0 ? ilogb(size) : 1 - type.bias;
    if (exponent < 1 - type.bias)
        exponent = 1 - type.bias; /* subnormal */
    double units = nearbyint(ldexp(size, type.mantissa - exponent));
    double bits = ldexp(exponent + type.bias - 1, type.mantissa) + units; /* the hidden bit adds one to the exponent */
    return (uint16_t)(sign | (bits >= infinity ? infinity : (unsigned)bits));
}

static double decode_half(half_type type, uint16_t bits)
{
    int exponent = (bits & 0x7FFF) >> type.mantissa, fraction = bits & ((1 << type.mantissa) - 1);
    double size;
    if (exponent == 0x7FFF >> type.mantissa)
        size = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        size = ldexp(fraction, 1 - type.bias - type.mantissa);
    else
        size = ldexp(fraction + (1 << type.mantissa), exponent - type.bias - type.mantissa);
    return bits & 0x8000 ? -size : size;
}

static double load(DLDataType type, const void *at)
{
    union {
        float f;
        uint16_t h;
        int32_t i;
        int64_t l;
    } u;
    memcpy(&u, at, type.bits / 8);
    if (type.code == kDLInt)
        return type.bits == 64 ? (double)u.l : (double)u.i;
    return type.bits == 32 ? (double)u.f : decode_half(half_of(type), u.h);
}

static void store(DLDataType type, void *at, double value)
{
    union {
        float f;
        uint16_t h;
        int32_t i;
        int64_t l;
    } u;
    if (type.code == kDLInt && type.bits == 64)
        u.l = (int64_t)value;
    else if (type.code == kDLInt)
        u.i = (int32_t)value;
    else if (type.bits == 32)
        u.f = (float)value;
    else
        u.h = encode_half(half_of(type), value);
    memcpy(at, &u, type.bits / 8);
}

void *h_at(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    const int64_t index[H_MAX_DIMS] = {i0, i1, i2, i3};
    int64_t offset = 0, compact = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        offset += index[i] * (t->strides ? t->strides[i] : compact);
        compact *= t->shape[i];
    }
    return (char *)t->data + t->byte_offset + offset * (t->dtype.bits / 8);
}

double h_get(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return load(t->dtype, h_at(t, i0, i1, i2, i3));
}

void h_set(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double value)
{
    store(t->dtype, h_at(t, i0, i1, i2, i3), value);
}

static int64_t extent_of(const DLTensor *t, int dim)
{
    return dim < t->ndim ? t->shape[dim] : 1;
}

#define FOR_EACH_ELEMENT(t)                                  \
    for (int64_t i0 = 0; i0 < extent_of(t, 0); i0++)         \
        for (int64_t i1 = 0; i1 < extent_of(t, 1); i1++)     \
            for (int64_t i2 = 0; i2 < extent_of(t, 2); i2++) \
                for (int64_t i3 = 0; i3 < extent_of(t, 3); i3++)

void h_fill(const DLTensor *t, double value)
{
    FOR_EACH_ELEMENT(t)
    h_set(t, i0, i1, i2, i3, value);
}

void h_fill_random(const DLTensor *t, double low, double high, uint64_t *state)
{
    FOR_EACH_ELEMENT(t)
    h_set(t, i0, i1, i2, i3, h_uniform(state, low, high));
}

double h_round(int32_t dtype, double value)
{
    uint64_t memory = 0;
    store(h_float_type(dtype), &memory, value);
    return load(h_float_type(dtype), &memory);
}

/* splitmix64 */
uint64_t h_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double h_uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(h_random(state) >> 11) * 0x1p-53;
}

/* ---- asserting --------------------------------------------------------------------------------------------------- */

rssm_error h_error(void)
{
    rssm_error err;
    memset(&err, 0x5A, sizeof(err));
    err.struct_size = sizeof(err);
    return err;
}
