/* A whole plugin in one file: ABI 1.0 for one family (KDA), on the CPU, slowly and readably. Copy it to start an
 * implementation of your own; replayssm-conform judges the copy as it judges any plugin.
 *
 * What it may leave out, and does: other families (init answers RSSM_ERR_UNSUPPORTED), CUDA (likewise), the extensions
 * slots, verify and conv (get_extension answers NULL). What it may not: any entry of the table, a struct size, a check.
 *
 *     1 errors and structs     rssm_base.h         5 the layout         rssm_pool.h
 *     2 the table of tensors   rssm_base.h         6 validation         rssm_step.h
 *     3 the instance                               7 pool and cursors   rssm_pool.h, rssm_step.h
 *     4 the model              rssm_model.h        8 the step           rssm_step.h       9 the table  replayssm.h
 *
 * It has no state but its instances, starts no thread, prints nothing, and exports replayssm_get_api alone. By hand:
 *
 *     cc -std=c11 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -shared -o plugin.so plugin.c cJSON.c -lm
 *        with -I of abi/, DLPack and cJSON, and for cJSON.c -DCJSON_HIDE_SYMBOLS -DENABLE_LOCALES
 *        -Dmalloc=rssm_json_malloc -Dfree=rssm_json_free -Drealloc=rssm_json_realloc
 *     replayssm-conform plugin.so */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "replayssm.h"
#include "rssm_fault.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- 1. Errors and structs -------------------------------------------------------------------------------------- */

/* A call works on an rssm_error of its own; open_error and close_error stand at the boundary. So a caller's NULL or longer
 * struct concerns nobody else, and a success clears what was there. */
static rssm_status open_error(rssm_error *own, const rssm_error *theirs)
{
    *own = (rssm_error){.struct_size = sizeof(*own), .dim = -1};
    return theirs && theirs->struct_size < sizeof(rssm_error) ? RSSM_ERR_STRUCT_SIZE : RSSM_OK;
}

static rssm_status close_error(const rssm_error *own, rssm_error *theirs, rssm_status status)
{
    if (!theirs || theirs->struct_size < sizeof(rssm_error)) /* a short one is refused and left alone */
        return theirs ? RSSM_ERR_STRUCT_SIZE : status;
    uint64_t theirs_size = theirs->struct_size; /* stays the caller's */
    *theirs = *own;
    theirs->struct_size = theirs_size;
    theirs->status = status;
    return status;
}

/* Which tensor, which dimension, and both sides in numbers: hosts act on these, people on the message. */
typedef struct where {
    int32_t role, dim;
    int64_t expected, got;
} where;

static rssm_status __attribute__((format(printf, 4, 5)))
fail_at(rssm_error *err, rssm_status status, where at, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    err->role = at.role;
    err->dim = at.dim;
    err->expected = at.expected;
    err->got = at.got;
    if (vsnprintf(err->message, sizeof(err->message), format, args) < 0)
        err->message[0] = 0;
    va_end(args);
    for (unsigned char *c = (unsigned char *)err->message; *c; c++) /* one line of UTF-8, whatever a path or key held */
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    return status;
}

#define FAIL(err, status, ...) fail_at(err, status, (where){.dim = -1}, __VA_ARGS__)

static rssm_status no_memory(rssm_error *err)
{
    return FAIL(err, RSSM_ERR_OUT_OF_MEMORY, "out of host memory");
}

/* Nobody's struct is as large: a pointer or garbage in struct_size must not be walked. */
enum { MAX_STRUCT_BYTES = 1 << 16 };

/* A struct that the caller hands in, as one of the size that this file knows: min(given, known) is copied, the rest is zero.
 * A later minor of this file raises `known` and leaves `v1`, what the 1.0 headers had, as it is. */
static rssm_status copy_in(void *own, const void *theirs, uint64_t known, uint64_t v1, const char *name,
                           rssm_error *err)
{
    uint64_t given;
    if (!theirs)
        return FAIL(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    memcpy(&given, theirs, sizeof(given));
    if (given < v1 || given > MAX_STRUCT_BYTES)
        return FAIL(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu; at least %llu (was it set?)", name,
                    (unsigned long long)given, (unsigned long long)v1);
    for (uint64_t i = known; i < given; i++) /* a host of a later minor, which uses what this file does not know */
        if (((const char *)theirs)[i])
            return FAIL(err, RSSM_ERR_STRUCT_SIZE, "%s is of a newer minor: its unknown byte %llu is not zero", name,
                        (unsigned long long)i);
    memset(own, 0, known);
    memcpy(own, theirs, given < known ? given : known);
    return RSSM_OK;
}

/* The other way: min(sizes), and zeros for what a later header has. struct_size stays the caller's. */
static rssm_status copy_out(void *theirs, const void *own, uint64_t known, uint64_t v1, const char *name,
                            rssm_error *err)
{
    uint64_t given;
    if (!theirs)
        return FAIL(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    memcpy(&given, theirs, sizeof(given));
    if (given < v1 || given > MAX_STRUCT_BYTES)
        return FAIL(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu; at least %llu (was it set?)", name,
                    (unsigned long long)given, (unsigned long long)v1);
    memset((char *)theirs + 8, 0, given - 8);
    memcpy((char *)theirs + 8, (const char *)own + 8, (given < known ? given : known) - 8);
    return RSSM_OK;
}

/* Flags and reserved fields that have no meaning yet are refused: a later minor may give them one. */
static rssm_status check_bits(uint32_t flags, uint32_t known, uint64_t reserved, rssm_error *err)
{
    if (flags & ~known)
        return FAIL(err, RSSM_ERR_ARGUMENT, "unknown flag 0x%x", flags & ~known);
    if (reserved)
        return FAIL(err, RSSM_ERR_ARGUMENT, "a reserved field is %llu, not 0", (unsigned long long)reserved);
    return RSSM_OK;
}

/* ---- 2. The table of tensors ------------------------------------------------------------------------------------ */

/* Sizes by name. B, S and n are free: the first tensor that has them says what they are. */
typedef enum symbol { END, B, S, N, H, HV, K, V, R, HK, HVV, HVK, QKV, W, CURSOR, ROW, SYMBOLS } symbol;
static const char *const symbol_names[SYMBOLS] = {"",     "B",    "slots",        "n",  "H", "HV", "K", "V", "R", "H*K",
                                                  "HV*V", "HV*K", "2*H*K + HV*V", "w'", "4", "8"};

typedef struct symbol_sizes {
    int64_t of[SYMBOLS]; /* -1: free yet */
} symbol_sizes;

typedef enum place { INPUT, WEIGHT, OUTPUT, STATE, RING, CONV, CURSORS, INDEX } place;

/* When a decode call must have the tensor. */
typedef enum need {
    ALWAYS,
    IF_PACKED, /* q | k | v in one row */
    IF_APART,
    IF_RING,     /* a ring of more than one row: at L = 1 all of the ring is there, or nothing */
    IF_ROWS,     /* rows of step_begin */
    IF_HOST,     /* the host keeps the cursor */
    MAY_HOST,    /* and may give these with it */
    IF_SOFTPLUS, /* without a lower bound; with one it is optional */
    STORAGE      /* of the pool: what pool_tensors set may stay in the array, and is not looked at */
} need;

/* Element types that a tensor takes: those of the instance, float32, any float, or integers. */
enum { T_IO = 1, T_STATE = 2, T_RING = 4, T_F32 = 8, T_FLOAT = 16, T_I32 = 32, T_I64 = 64 };

typedef struct tensor_spec {
    int32_t role;
    uint8_t place, need, types;
    uint8_t shape[5], other_shape[5]; /* symbols up to END */
} tensor_spec;

/* The one source of shapes and types: layout, validation and messages read it. Inputs come first, so that they bind B, and
 * the state before the rings, so that it binds S. The last line is of calls that take a list of slots. */
static const tensor_spec table[] = {
    {RSSM_T_MIXED_QKV, INPUT, IF_PACKED, T_IO, {B, QKV}, {0}},
    {RSSM_T_Q, INPUT, IF_APART, T_IO, {B, H, K}, {B, HK}},
    {RSSM_T_K, INPUT, IF_APART, T_IO, {B, H, K}, {B, HK}},
    {RSSM_T_V, INPUT, IF_APART, T_IO, {B, HV, V}, {B, HVV}},
    {RSSM_T_A, INPUT, ALWAYS, T_IO | T_F32, {B, HV, K}, {B, HVK}},
    {RSSM_T_B, INPUT, ALWAYS, T_IO | T_F32, {B, HV}, {0}},
    {RSSM_T_A_LOG, WEIGHT, IF_SOFTPLUS, T_FLOAT, {HV}, {0}},
    {RSSM_T_DT_BIAS, WEIGHT, ALWAYS, T_FLOAT, {HVK}, {HV, K}},
    {RSSM_T_OUT, OUTPUT, ALWAYS, T_IO | T_F32, {B, HV, V}, {B, HVV}},
    {RSSM_T_STATE, STATE, ALWAYS, T_STATE, {S, HV, V, K}, {0}},
    {RSSM_T_D_CACHE, RING, IF_RING, T_RING, {S, HV, R, V}, {0}},
    {RSSM_T_K_CACHE, RING, IF_RING, T_RING, {S, H, R, K}, {0}},
    {RSSM_T_G_CACHE, RING, IF_RING, T_F32, {S, HV, R, K}, {0}},
    {RSSM_T_CONV, CONV, STORAGE, T_IO, {S, QKV, W}, {0}},
    {RSSM_T_CURSOR, CURSORS, STORAGE, T_I32, {S, CURSOR}, {0}},
    {RSSM_T_ROWS, INDEX, IF_ROWS, T_I32, {B, ROW}, {0}},
    {RSSM_T_WRITE_POS, INDEX, IF_HOST, T_I32 | T_I64, {B}, {0}},
    {RSSM_T_FORCE_FLUSH, INDEX, MAY_HOST, T_I32 | T_I64, {B}, {0}},
    {RSSM_T_STATE_INDICES, INDEX, MAY_HOST, T_I32 | T_I64, {B}, {0}},
};
static const tensor_spec slots_of_step = {RSSM_T_SLOTS, INDEX, ALWAYS, T_I32 | T_I64, {B}, {0}};
static const tensor_spec slots_of_reset = {RSSM_T_SLOTS, INDEX, ALWAYS, T_I32 | T_I64, {N}, {0}};
enum { SPECS = (int)(sizeof(table) / sizeof(table[0])), POOL_TENSORS = 6 };

static const tensor_spec *spec_of(uint32_t role)
{
    for (int i = 0; i < SPECS; i++)
        if ((uint32_t)table[i].role == role)
            return &table[i];
    return NULL;
}

static bool is_pooled(const tensor_spec *spec)
{
    return spec->place == STATE || spec->place == RING || spec->place == CONV || spec->place == CURSORS;
}

static bool is_written(const tensor_spec *spec)
{
    return is_pooled(spec) || spec->place == OUTPUT;
}

/* Of every role of the ABI, also those that this family has no use for: messages name them. */
static const char *role_name(int32_t role)
{
    /* clang-format off */
    static const char *const names[RSSM_T_COUNT] = {
        "none", "mixed_qkv", "q", "k", "v", "mixed_xbc", "x", "B", "C", "a", "b", "dt", "z", "A_log", "A", "dt_bias",
        "D", "out", "state", "d_cache", "k_cache", "g_cache", "x_cache", "dt_cache", "B_cache", "conv", "cursor",
        "rows", "write_pos", "force_flush", "state_indices", "slots", "cu_seqlens", "accepted", "conv_in",
        "conv_weight", "conv_bias", "conv_out", "src_slots", "dst_slots"};
    /* clang-format on */
    return role < 0 || role >= RSSM_T_COUNT ? "unknown" : names[role];
}

static const char *status_name(rssm_status status)
{
    /* clang-format off */
    static const char *const names[] = {
        "RSSM_OK", "RSSM_ERR_ARGUMENT", "RSSM_ERR_STRUCT_SIZE", "RSSM_ERR_UNSUPPORTED", "RSSM_ERR_OUT_OF_MEMORY",
        "RSSM_ERR_OVERFLOW", "RSSM_ERR_IO", "RSSM_ERR_JSON", "RSSM_ERR_CONFIG", "RSSM_ERR_MODEL", "RSSM_ERR_TP",
        "RSSM_ERR_STATE", "RSSM_ERR_ROLE", "RSSM_ERR_MISSING", "RSSM_ERR_SHAPE", "RSSM_ERR_DTYPE", "RSSM_ERR_DEVICE",
        "RSSM_ERR_STRIDE", "RSSM_ERR_ALIGNMENT", "RSSM_ERR_OVERLAP", "RSSM_ERR_VALUE", "RSSM_ERR_STREAM_DATA",
        "RSSM_ERR_CUDA", "RSSM_ERR_DEVICE_LOST", "RSSM_ERR_INTERNAL", "RSSM_ERR_NO_SLOT", "RSSM_ERR_HANDLE"};
    /* clang-format on */
    return status < 0 || status >= COUNT(names) ? "unknown status" : names[status];
}

static const char *const dtype_names[] = {"default", "float32", "bfloat16", "float16"};

static int64_t dtype_bytes(int32_t dtype)
{
    return dtype == RSSM_DTYPE_FLOAT32 ? 4 : 2;
}

/* ---- 3. The instance -------------------------------------------------------------------------------------------- */

/* A pool tensor of one layer as pool_tensors hands it out; the DLTensor points into its own view. */
typedef struct pool_view {
    DLTensor t;
    int64_t shape[RSSM_MAX_DIMS], strides[RSSM_MAX_DIMS];
} pool_view;

enum { MAX_NOTES = 8, NOTE_BYTES = 96 };
typedef struct notes {
    char text[MAX_NOTES][NOTE_BYTES];
    const char *items[MAX_NOTES]; /* [count] */
    int32_t count;
} notes;

static const uint64_t live_magic = 0x4b44412074656d70;

enum { TEXT = 160 }; /* bytes of a shape or type as messages spell it */

struct rssm_plugin {
    uint64_t magic; /* of a live instance: a handle that was torn down, or never was one, is refused */
    rssm_allocator mem;
    rssm_init_args args; /* without its pointers; defaults filled in */

    rssm_description d; /* the model, this rank and all decisions */
    int32_t conv_kernel, model_dtype, num_model_layers;
    int32_t *layers; /* [num_model_layers] linear layers of the whole model, zero-based */
    char model_type[64], layout_text[512], ring_reason[128];
    notes read, assumed;

    symbol_sizes sizes; /* with B, S and n free */
    rssm_layout layout;
    rssm_tensor_info tensors[POOL_TENSORS];
    char symbolic_shapes[POOL_TENSORS][TEXT];

    double *scratch;  /* of one head of one row; its presence says that the instance is prepared */
    pool_view *views; /* [layers of this rank][num_tensors]; its presence says that there is a pool */
    void *slab;       /* the pool's, when this plugin allocated it */
    uint32_t fault;
};

static void *libc_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    (void)user;
    alignment = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    return bytes > SIZE_MAX - alignment ? NULL
                                        : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void libc_free(void *user, void *memory, uint64_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

/* Everything that an instance allocates goes through its allocator, zeroed here, and back with the same size. */
static void *take(const rssm_allocator *mem, int64_t bytes, uint64_t alignment)
{
    void *memory = bytes < 0 ? NULL : mem->alloc(mem->user, (uint64_t)(bytes ? bytes : 1), alignment);
    return memory ? memset(memory, 0, (size_t)bytes) : NULL;
}

static void give(const rssm_allocator *mem, void *memory, int64_t bytes)
{
    if (memory)
        mem->free(mem->user, memory, (uint64_t)(bytes ? bytes : 1));
}

static int64_t scratch_bytes(const rssm_plugin *p)
{
    return (int64_t)sizeof(double) * ((5 + p->d.ring_length) * (int64_t)p->d.K + p->d.V + 2 * p->d.ring_length);
}

static int64_t views_bytes(const rssm_plugin *p)
{
    return (int64_t)sizeof(pool_view) * p->d.num_linear_layers * p->layout.num_tensors;
}

static void free_instance(rssm_plugin *p)
{
    const rssm_allocator mem = p->mem;
    give(&mem, p->slab, p->layout.slab_bytes);
    give(&mem, p->views, views_bytes(p));
    give(&mem, p->scratch, scratch_bytes(p));
    give(&mem, p->layers, (int64_t)sizeof(int32_t) * p->num_model_layers);
    p->magic = 0;
    give(&mem, p, sizeof(*p));
}

static void __attribute__((format(printf, 2, 3))) note(notes *list, const char *format, ...)
{
    va_list args;
    if (list->count == MAX_NOTES)
        return;
    va_start(args, format);
    vsnprintf(list->text[list->count], NOTE_BYTES, format, args);
    va_end(args);
    list->items[list->count] = list->text[list->count];
    list->count++;
}

/* ---- 4. The model ----------------------------------------------------------------------------------------------- */

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_LAYERS = 65536, MAX_HEADS = 65536, MAX_HEAD_DIM = 4096, MAX_CONV = 64 };

static rssm_status take_layers(rssm_plugin *p, int32_t num_layers, rssm_error *err)
{
    p->d.num_layers = p->num_model_layers = num_layers;
    p->layers = take(&p->mem, (int64_t)sizeof(int32_t) * num_layers, 16);
    return p->layers ? RSSM_OK : no_memory(err);
}

static rssm_status check_bound(double bound, rssm_status status, const char *name, rssm_error *err)
{
    if (bound < 0 && bound >= -(double)FLT_MAX)
        return RSSM_OK;
    return FAIL(err, status, "%s is %g, not a negative float32 number", name, bound);
}

static rssm_status check_dims_ranges(const rssm_dims *dims, rssm_error *err)
{
    const struct {
        const char *name;
        int64_t value, min, max;
    } ranges[] = {{"family", dims->family, RSSM_FAMILY_KDA, RSSM_FAMILY_MAMBA2},
                  {"num_layers", dims->num_layers, 1, MAX_LAYERS},
                  {"H", dims->H, 1, MAX_HEADS},
                  {"HV", dims->HV, 1, MAX_HEADS},
                  {"K", dims->K, 1, MAX_HEAD_DIM},
                  {"V", dims->V, 1, MAX_HEAD_DIM},
                  {"conv_kernel", dims->conv_kernel, 0, MAX_CONV},
                  {"has_lower_bound", dims->has_lower_bound, 0, 1},
                  {"no_qk_norm", dims->no_qk_norm, 0, 1},
                  {"allow_neg_eigval", dims->allow_neg_eigval, 0, 1},
                  {"has_time_step_limit", dims->has_time_step_limit, 0, 0},
                  {"reserved_", dims->reserved_, 0, 0}};
    if (dims->family == RSSM_FAMILY_GDN || dims->family == RSSM_FAMILY_MAMBA2)
        return FAIL(err, RSSM_ERR_UNSUPPORTED, "dims.family is %d; this plugin has KDA (1) alone", dims->family);
    for (int i = 0; i < COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return FAIL(err, RSSM_ERR_ARGUMENT, "dims.%s is %lld, not in %lld..%lld", ranges[i].name,
                        (long long)ranges[i].value, (long long)ranges[i].min, (long long)ranges[i].max);
    if (dims->HV % dims->H)
        return FAIL(err, RSSM_ERR_ARGUMENT, "dims.HV = %d is not a multiple of dims.H = %d", dims->HV, dims->H);
    if (!dims->has_lower_bound && dims->lower_bound != 0)
        return FAIL(err, RSSM_ERR_ARGUMENT, "dims.lower_bound is set but has_lower_bound is 0");
    if (dims->time_step_limit_min != 0 || dims->time_step_limit_max != 0)
        return FAIL(err, RSSM_ERR_ARGUMENT, "dims.time_step_limit is for Mamba-2");
    return dims->has_lower_bound ? check_bound(dims->lower_bound, RSSM_ERR_ARGUMENT, "dims.lower_bound", err) : RSSM_OK;
}

static rssm_status read_dims_layers(rssm_plugin *p, const rssm_dims *dims, rssm_error *err)
{
    const int64_t count = dims->linear_layers ? dims->num_linear_layers : dims->num_layers;
    if (count < 1 || count > dims->num_layers ||
        (!dims->linear_layers && dims->num_linear_layers && dims->num_linear_layers != count))
        return FAIL(err, RSSM_ERR_ARGUMENT, "dims.num_linear_layers = %lld does not fit linear_layers and %d layers",
                    (long long)dims->num_linear_layers, dims->num_layers);
    for (int64_t i = 0; i < count; i++) {
        p->layers[i] = dims->linear_layers ? dims->linear_layers[i] : (int32_t)i;
        if (p->layers[i] < 0 || p->layers[i] >= dims->num_layers || (i && p->layers[i] <= p->layers[i - 1]))
            return FAIL(err, RSSM_ERR_ARGUMENT, "dims.linear_layers[%lld] = %d does not ascend within 0..%d",
                        (long long)i, p->layers[i], dims->num_layers - 1);
    }
    p->d.num_linear_layers = (int32_t)count;
    return RSSM_OK;
}

static rssm_status read_dims(rssm_plugin *p, const rssm_dims *dims, rssm_error *err)
{
    rssm_status status = check_dims_ranges(dims, err);
    if (!status)
        status = take_layers(p, dims->num_layers, err);
    if (!status)
        status = read_dims_layers(p, dims, err);
    p->d.model_H = dims->H;
    p->d.model_HV = dims->HV;
    p->d.K = dims->K;
    p->d.V = dims->V;
    p->conv_kernel = dims->conv_kernel;
    p->d.has_lower_bound = dims->has_lower_bound;
    p->d.lower_bound = dims->lower_bound;
    p->d.qk_norm = !dims->no_qk_norm;
    p->d.beta_scale = dims->allow_neg_eigval ? 2 : 1;
    note(&p->assumed, "dtype = bfloat16 (dims say none)");
    return status;
}

/* cJSON, compiled with these in place of malloc and free, takes its memory from the instance's allocator.
 * They get no user pointer, so the thread remembers whose parse it is in. */
static _Thread_local const rssm_allocator *parsing;
static _Thread_local bool parse_ran_out;
enum { JSON_HEADER = 16 };

void *rssm_json_malloc(size_t bytes);
void rssm_json_free(void *memory);
void *rssm_json_realloc(void *memory, size_t bytes);

void *rssm_json_malloc(size_t bytes)
{
    char *block = bytes < SIZE_MAX / 2 ? parsing->alloc(parsing->user, bytes + JSON_HEADER, 16) : NULL;
    if (!block) {
        parse_ran_out = true; /* cJSON would call it a syntax error */
        return NULL;
    }
    memcpy(block, &bytes, sizeof(bytes));
    return block + JSON_HEADER;
}

void rssm_json_free(void *memory)
{
    size_t bytes;
    if (!memory)
        return;
    memcpy(&bytes, (char *)memory - JSON_HEADER, sizeof(bytes));
    parsing->free(parsing->user, (char *)memory - JSON_HEADER, bytes + JSON_HEADER);
}

void *rssm_json_realloc(void *memory, size_t bytes) /* cJSON reallocates when it prints, which nobody asks for */
{
    (void)memory;
    (void)bytes;
    return NULL;
}

/* A key of an object; NULL when it is absent. Twice is an error: two readers would disagree about which one counts. */
static rssm_status find_key(const cJSON *object, const char *key, const cJSON **found, rssm_error *err)
{
    *found = NULL;
    for (const cJSON *item = object->child; item; item = item->next)
        if (strcmp(item->string, key) == 0) {
            if (*found)
                return FAIL(err, RSSM_ERR_JSON, "config: the key %s is there twice", key);
            *found = item;
        }
    return RSSM_OK;
}

/* "128", 128.5, 2^32 and -1 are no head counts. */
static rssm_status whole_number(const cJSON *item, const char *key, int64_t min, int64_t max, int32_t *out,
                                rssm_error *err)
{
    if (!cJSON_IsNumber(item))
        return FAIL(err, RSSM_ERR_CONFIG, "config: %s is not a number", key);
    double x = item->valuedouble;
    if (!(x >= (double)min && x <= (double)max) || x != floor(x))
        return FAIL(err, RSSM_ERR_CONFIG, "config: %s = %g is not a whole number in %lld..%lld", key, x, (long long)min,
                    (long long)max);
    *out = (int32_t)x;
    return RSSM_OK;
}

/* A number that must be there. */
typedef struct spelling {
    const cJSON *object;
    const char *key;
    int64_t min, max;
} spelling;

static rssm_status read_number(rssm_plugin *p, const spelling *s, int32_t *out, rssm_error *err)
{
    const cJSON *item = NULL;
    rssm_status status = find_key(s->object, s->key, &item, err);
    if (!status && !item)
        return FAIL(err, RSSM_ERR_CONFIG, "config: there is no %s", s->key);
    if (!status)
        status = whole_number(item, s->key, s->min, s->max, out, err);
    if (!status)
        note(&p->read, "%s = %d", s->key, *out);
    return status;
}

/* A list of layer numbers from `first` on, ascending, marked in `seen`. */
static rssm_status mark_layers(const cJSON *list, const char *key, int32_t first, int32_t num_layers, char *seen,
                               rssm_error *err)
{
    int32_t before = first - 1;
    if (!cJSON_IsArray(list))
        return FAIL(err, RSSM_ERR_CONFIG, "config: %s is not a list", key);
    for (const cJSON *item = list->child; item; item = item->next) {
        int32_t layer = 0;
        rssm_status status = whole_number(item, key, first, num_layers - 1 + first, &layer, err);
        if (status)
            return status;
        if (layer <= before || seen[layer - first])
            return FAIL(err, RSSM_ERR_CONFIG, "config: layer %d of %s does not ascend, or is in another list too",
                        layer, key);
        seen[layer - first] = 1;
        before = layer;
    }
    return RSSM_OK;
}

/* Words of layer_types; a word that nobody knows may mean anything and is refused. */
static rssm_status read_layer_types(rssm_plugin *p, const cJSON *types, rssm_error *err)
{
    static const char *const full[] = {"full_attention", "attention", "sliding_attention", "deepseek_sparse_attention",
                                       "indexed_attention"};
    int32_t layer = 0;
    for (const cJSON *item = cJSON_IsArray(types) ? types->child : NULL; item; item = item->next, layer++) {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        bool known = strcmp(word, "linear_attention") == 0;
        if (layer >= p->num_model_layers)
            break;
        if (known)
            p->layers[p->d.num_linear_layers++] = layer;
        for (int i = 0; i < COUNT(full); i++)
            known = known || strcmp(word, full[i]) == 0;
        if (!known)
            return FAIL(err, RSSM_ERR_CONFIG, "config: layer_types[%d] is \"%.40s\", which is unknown", layer, word);
    }
    if (layer != p->num_model_layers || (cJSON_IsArray(types) && cJSON_GetArraySize(types) != layer))
        return FAIL(err, RSSM_ERR_CONFIG, "config: layer_types does not have %d entries", p->num_model_layers);
    return RSSM_OK;
}

/* kda_layers, one-based. */
static rssm_status read_kda_layers(rssm_plugin *p, const cJSON *kda, const cJSON *full, rssm_error *err)
{
    char *seen = take(&p->mem, p->num_model_layers, 16);
    if (!seen)
        return no_memory(err);
    rssm_status status = mark_layers(kda, "kda_layers", 1, p->num_model_layers, seen, err);
    for (int32_t i = 0; !status && i < p->num_model_layers; i++)
        if (seen[i])
            p->layers[p->d.num_linear_layers++] = i;
    if (!status && full)
        status = mark_layers(full, "full_attn_layers", 1, p->num_model_layers, seen, err);
    give(&p->mem, seen, p->num_model_layers);
    return status;
}

static rssm_status read_config_layers(rssm_plugin *p, const cJSON *decoder, const cJSON *attention, rssm_error *err)
{
    const cJSON *types, *kda = NULL, *full = NULL;
    rssm_status status = find_key(decoder, "layer_types", &types, err);
    if (!status && attention)
        status = find_key(attention, "kda_layers", &kda, err);
    if (!status && attention)
        status = find_key(attention, "full_attn_layers", &full, err);
    if (status)
        return status;
    if (!types && !kda)
        return FAIL(err, RSSM_ERR_CONFIG, "config: neither layer_types nor kda_layers says which layers are linear");
    status = types ? read_layer_types(p, types, err) : read_kda_layers(p, kda, full, err);
    if (!status && kda && cJSON_GetArraySize(kda) != p->d.num_linear_layers)
        return FAIL(err, RSSM_ERR_CONFIG, "config: layer_types and kda_layers disagree");
    if (!status && p->d.num_linear_layers == 0)
        return FAIL(err, RSSM_ERR_MODEL, "config: the model has no linear layer");
    return status;
}

static rssm_status read_config_bound(rssm_plugin *p, const cJSON *decoder, const cJSON *attention, rssm_error *err)
{
    static const char *const keys[] = {"gate_lower_bound", "lower_bound", "linear_lower_bound"};
    const cJSON *bound = NULL, *safe = NULL;
    rssm_status status = RSSM_OK;
    for (int i = 0; !status && !bound && i < COUNT(keys); i++)
        status = find_key(attention ? attention : decoder, keys[i], &bound, err);
    if (!status)
        status = find_key(attention ? attention : decoder, "safe_gate", &safe, err);
    if (status || ((!bound || cJSON_IsNull(bound)) && !cJSON_IsTrue(safe)))
        return status;
    if (!cJSON_IsNumber(bound))
        return FAIL(err, RSSM_ERR_CONFIG, "config: the lower bound of the gate is not a number");
    p->d.has_lower_bound = 1;
    p->d.lower_bound = bound->valuedouble;
    note(&p->read, "%s = %g", bound->string, bound->valuedouble);
    return check_bound(bound->valuedouble, RSSM_ERR_CONFIG, bound->string, err);
}

static rssm_status read_config_dtype(rssm_plugin *p, const cJSON *root, const cJSON *decoder, rssm_error *err)
{
    const cJSON *const places[] = {decoder, decoder, root, root}, *item = NULL;
    static const char *const keys[] = {"dtype", "torch_dtype", "dtype", "torch_dtype"};
    rssm_status status = RSSM_OK;
    for (int i = 0; !status && !item && i < COUNT(keys); i++)
        status = find_key(places[i], keys[i], &item, err);
    if (status)
        return status;
    if (!item) {
        note(&p->assumed, "dtype = bfloat16 (not in the config)");
        return RSSM_OK;
    }
    for (int32_t dtype = RSSM_DTYPE_FLOAT32; dtype <= RSSM_DTYPE_FLOAT16; dtype++)
        if (cJSON_IsString(item) && strcmp(item->valuestring, dtype_names[dtype]) == 0) {
            p->model_dtype = dtype;
            note(&p->read, "dtype = %s", dtype_names[dtype]);
            return RSSM_OK;
        }
    return FAIL(err, RSSM_ERR_CONFIG, "config: dtype is none of float32, bfloat16 and float16");
}

/* The decoder's keys stand at the top, or in one of these. */
static rssm_status find_decoder(const cJSON *root, const cJSON **decoder, rssm_error *err)
{
    static const char *const keys[] = {"text_config", "llm_config", "language_config"};
    *decoder = root;
    for (int i = 0; i < COUNT(keys); i++) {
        const cJSON *item;
        rssm_status status = find_key(root, keys[i], &item, err);
        if (status)
            return status;
        if (cJSON_IsObject(item))
            *decoder = item;
    }
    return RSSM_OK;
}

/* KDA's published spelling, or the flat one of re-saved files. No class default stands in for a key that is missing. */
static rssm_status read_model(rssm_plugin *p, const cJSON *root, rssm_error *err)
{
    const cJSON *decoder, *attention, *flat, *type;
    rssm_status status = find_decoder(root, &decoder, err);
    if (!status)
        status = find_key(decoder, "linear_attn_config", &attention, err);
    if (!status)
        status = find_key(decoder, "linear_num_heads", &flat, err);
    if (!status)
        status = find_key(root, "model_type", &type, err);
    if (status)
        return status;
    if (!cJSON_IsObject(attention) && !flat)
        return FAIL(err, RSSM_ERR_MODEL, "config: no KDA model: neither linear_attn_config nor linear_num_heads");
    attention = cJSON_IsObject(attention) ? attention : NULL;
    if (cJSON_IsString(type))
        snprintf(p->model_type, sizeof(p->model_type), "%s", type->valuestring);
    int32_t num_layers = 0;
    const cJSON *heads = attention ? attention : decoder;
    const spelling layers = {decoder, "num_hidden_layers", 1, MAX_LAYERS};
    const spelling head_count = {heads, attention ? "num_heads" : "linear_num_heads", 1, MAX_HEADS};
    const spelling head_dim = {heads, attention ? "head_dim" : "linear_head_dim", 1, MAX_HEAD_DIM};
    const spelling conv = {heads, attention ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 0, MAX_CONV};
    status = read_number(p, &layers, &num_layers, err);
    if (!status)
        status = read_number(p, &head_count, &p->d.model_H, err);
    if (!status)
        status = read_number(p, &head_dim, &p->d.K, err);
    if (!status)
        status = read_number(p, &conv, &p->conv_kernel, err);
    p->d.model_HV = p->d.model_H;
    p->d.V = p->d.K;
    if (!status)
        status = take_layers(p, num_layers, err);
    if (!status)
        status = read_config_layers(p, decoder, attention, err);
    if (!status)
        status = read_config_bound(p, decoder, attention, err);
    return status ? status : read_config_dtype(p, root, decoder, err);
}

/* Characters of the shortest form alone, no surrogates, no zero byte. */
static bool is_utf8(const char *text, size_t length)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i++];
        int more = c < 0x80                ? 0
                   : c >= 0xC0 && c < 0xE0 ? 1
                   : c >= 0xE0 && c < 0xF0 ? 2
                   : c >= 0xF0 && c < 0xF8 ? 3
                                           : -1;
        uint32_t point = more > 0 ? c & (0x3Fu >> more) : c;
        if (more < 0 || c == 0)
            return false;
        for (int k = 0; k < more; k++, i++) {
            if (i == length || ((unsigned char)text[i] & 0xC0) != 0x80)
                return false;
            point = point << 6 | ((unsigned char)text[i] & 0x3F);
        }
        if (point < least[more] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
            return false;
    }
    return true;
}

/* The size comes first: nothing of a text that is too large is looked at. */
static rssm_status read_config(rssm_plugin *p, const char *text, uint64_t length, rssm_error *err)
{
    if (length > MAX_CONFIG_BYTES)
        return FAIL(err, RSSM_ERR_JSON, "the config has %llu bytes; at most %d", (unsigned long long)length,
                    MAX_CONFIG_BYTES);
    if (!is_utf8(text, length))
        return FAIL(err, RSSM_ERR_JSON, "the config is not UTF-8, or has a zero byte");
    const char *end = NULL;
    parsing = &p->mem;
    parse_ran_out = false;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, 0);
    size_t at = end ? (size_t)(end - text) : 0;
    while (root && at < length && strchr(" \t\r\n", text[at]))
        at++;
    rssm_status status = RSSM_OK;
    if (!root && parse_ran_out)
        status = no_memory(err);
    else if (!root || at != length)
        status = FAIL(err, RSSM_ERR_JSON, "the config is not JSON from byte %zu on", at);
    else if (!cJSON_IsObject(root))
        status = FAIL(err, RSSM_ERR_JSON, "the config is not an object");
    else
        status = read_model(p, root, err);
    cJSON_Delete(root);
    parsing = NULL;
    p->d.qk_norm = 1;
    p->d.beta_scale = 1;
    return status;
}

static rssm_status read_config_file(rssm_plugin *p, const char *path, rssm_error *err)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return FAIL(err, RSSM_ERR_IO, "config_path \"%s\": %s", path, strerror(errno));
    char *text = take(&p->mem, MAX_CONFIG_BYTES + 1, 16);
    rssm_status status = RSSM_OK;
    size_t length = text ? fread(text, 1, MAX_CONFIG_BYTES + 1, file) : 0;
    if (!text)
        status = no_memory(err);
    else if (ferror(file) || length == 0)
        status = FAIL(err, RSSM_ERR_IO, "config_path \"%s\": %s", path, ferror(file) ? "cannot be read" : "is empty");
    else
        status = read_config(p, text, length, err);
    fclose(file);
    give(&p->mem, text, MAX_CONFIG_BYTES + 1);
    return status;
}

/* ---- 5. The layout ---------------------------------------------------------------------------------------------- */

static rssm_status check_options(const rssm_init_args *a, rssm_error *err)
{
    const struct {
        const char *name;
        int64_t value, min, max;
    } ranges[] = {{"max_batch", a->max_batch, 0, 1 << 20},
                  {"num_threads", a->num_threads, 0, 1024},
                  {"cpu_level", a->cpu_level, RSSM_CPU_BEST, RSSM_CPU_NEON},
                  {"has_pad_slot", a->has_pad_slot, 0, 1},
                  {"pad_slot", a->has_pad_slot ? 0 : a->pad_slot, 0, 0}, /* a number without its flag */
                  {"device_id", a->device_id, 0, INT32_MAX},
                  {"device_type", a->device_type, 0, kDLCUDA},
                  {"io_dtype", a->io_dtype, 0, RSSM_DTYPE_FLOAT16},
                  {"state_dtype", a->state_dtype, 0, RSSM_DTYPE_FLOAT16},
                  {"ring_dtype", a->ring_dtype, 0, RSSM_DTYPE_FLOAT16},
                  {"ring_length", a->ring_length, 0, 64},
                  {"max_draft_tokens", a->max_draft_tokens, 0, a->ring_length ? a->ring_length - 1 : 63},
                  {"num_slots", a->num_slots, 0, INT32_MAX},
                  {"memory_budget_bytes", a->memory_budget_bytes, 0, a->num_slots ? 0 : INT64_MAX}};
    if (!a->config_json != !a->config_json_len)
        return FAIL(err, RSSM_ERR_ARGUMENT, "config_json and config_json_len: both or neither");
    if ((a->config_json != NULL) + (a->config_path != NULL) + (a->dims != NULL) != 1)
        return FAIL(err, RSSM_ERR_ARGUMENT, "give exactly one of config_json, config_path and dims");
    for (int i = 0; i < COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return FAIL(err, RSSM_ERR_ARGUMENT, "%s = %lld is not in %lld..%lld", ranges[i].name,
                        (long long)ranges[i].value, (long long)ranges[i].min, (long long)ranges[i].max);
    if (a->device_type == kDLCUDA)
        return FAIL(err, RSSM_ERR_UNSUPPORTED, "this plugin has no CUDA backend");
    /* The last two are about GPUs: here they hold anyway. */
    const uint32_t known = RSSM_INIT_CONV_STATE | RSSM_INIT_SPREAD_FLUSH | RSSM_INIT_CPU_REFERENCE |
                           RSSM_INIT_NO_SMALL_FLUSH | RSSM_INIT_NO_EARLY_START;
    return check_bits(a->flags, known, 0, err);
}

/* Heads split evenly; this rank's key heads are those that its value heads read. */
static rssm_status split_heads(rssm_plugin *p, rssm_error *err)
{
    rssm_description *d = &p->d;
    d->tp_size = p->args.tp_size ? p->args.tp_size : 1;
    d->tp_rank = p->args.tp_rank;
    if (d->tp_size < 1 || d->tp_rank < 0 || d->tp_rank >= d->tp_size)
        return FAIL(err, RSSM_ERR_TP, "tp_rank = %d is not in 0..tp_size - 1 (tp_size = %d)", d->tp_rank, d->tp_size);
    if (d->model_H % d->tp_size || d->model_HV % d->tp_size)
        return FAIL(err, RSSM_ERR_TP, "tp_size = %d does not divide %d key heads and %d value heads", d->tp_size,
                    d->model_H, d->model_HV);
    d->H = d->model_H / d->tp_size;
    d->HV = d->model_HV / d->tp_size;
    d->group_begin = d->H * d->tp_rank;
    d->head_begin = d->HV * d->tp_rank;
    return RSSM_OK;
}

/* The pipeline stage's part of the linear layers. */
static rssm_status pick_layers(rssm_plugin *p, rssm_error *err)
{
    const int32_t begin = p->args.layer_begin, end = p->args.layer_end ? p->args.layer_end : p->d.num_layers;
    int32_t first = 0, last = p->d.num_linear_layers;
    while (first < last && p->layers[first] < begin)
        first++;
    while (last > first && p->layers[last - 1] >= end)
        last--;
    if (begin < 0 || end > p->d.num_layers || begin >= end || first == last)
        return FAIL(err, RSSM_ERR_ARGUMENT, "[layer_begin, layer_end) = [%d, %d) holds no linear layer of %d layers",
                    begin, end, p->d.num_layers);
    p->d.linear_layers = p->layers + first;
    p->d.num_linear_layers = last - first;
    return RSSM_OK;
}

static rssm_status set_sizes(rssm_plugin *p, rssm_error *err)
{
    const rssm_description *d = &p->d;
    int64_t channels = 2 * (int64_t)d->H * d->K + (int64_t)d->HV * d->V;
    if (channels > INT32_MAX)
        return FAIL(err, RSSM_ERR_OVERFLOW, "the packed row has %lld elements", (long long)channels);
    if (p->args.flags & RSSM_INIT_CONV_STATE && p->conv_kernel < 2)
        return FAIL(err, RSSM_ERR_CONFIG, "RSSM_INIT_CONV_STATE: the model's convolution has width %d", p->conv_kernel);
    p->d.conv_kernel = p->conv_kernel;
    p->d.conv_channels = (int32_t)channels;
    int64_t *of = p->sizes.of;
    of[B] = of[S] = of[N] = -1;
    of[H] = d->H;
    of[HV] = d->HV;
    of[K] = d->K;
    of[V] = d->V;
    of[HK] = (int64_t)d->H * d->K;
    of[HVV] = (int64_t)d->HV * d->V;
    of[HVK] = (int64_t)d->HV * d->K;
    of[QKV] = channels;
    of[W] = p->args.flags & RSSM_INIT_CONV_STATE
                ? p->args.max_draft_tokens ? p->conv_kernel + p->args.max_draft_tokens : p->conv_kernel - 1
                : 0;
    of[CURSOR] = RSSM_CURSOR_WIDTH;
    of[ROW] = RSSM_ROW_WIDTH;
    return RSSM_OK;
}

/* Bytes of a step at L: the state read, written once in L steps; (L - 1) / 2 records read on average, one written. */
static double step_bytes(const rssm_plugin *p, int32_t L)
{
    const rssm_description *d = &p->d;
    double io = (double)dtype_bytes(d->io_dtype), ring = (double)dtype_bytes(d->ring_dtype);
    double state = (double)d->HV * d->V * d->K * (double)dtype_bytes(d->state_dtype);
    double row = ((double)d->HV * d->V + (double)d->H * d->K) * ring + 4.0 * d->HV * d->K;
    double tokens = io * ((double)d->conv_channels + (double)d->HV * d->K + d->HV + (double)d->HV * d->V);
    return L == 1 ? 2 * state + tokens : state * (1 + 1.0 / L) + row * ((L - 1) / 2.0 + 1) + tokens;
}

static void pick_dtypes_and_ring(rssm_plugin *p)
{
    rssm_description *d = &p->d;
    d->io_dtype = p->args.io_dtype ? p->args.io_dtype : p->model_dtype;
    d->state_dtype = p->args.state_dtype ? p->args.state_dtype : RSSM_DTYPE_FLOAT32;
    d->ring_dtype = p->args.ring_dtype ? p->args.ring_dtype : d->io_dtype;
    d->max_draft_tokens = p->args.max_draft_tokens;
    d->ring_length = p->args.ring_length ? p->args.ring_length : d->max_draft_tokens + 1;
    for (int32_t L = d->ring_length + 1; !p->args.ring_length && L <= 64; L++)
        if (step_bytes(p, L) < step_bytes(p, d->ring_length))
            d->ring_length = L;
    d->ring_rows = d->ring_length + (d->max_draft_tokens ? d->max_draft_tokens + 1 : 0);
    p->sizes.of[R] = d->ring_rows;
    d->step_bytes = (int64_t)step_bytes(p, d->ring_length);
    d->step_bytes_read_write = (int64_t)step_bytes(p, 1);
    snprintf(p->ring_reason, sizeof(p->ring_reason),
             p->args.ring_length ? "L = %d as asked" : "L = %d moves the fewest bytes", d->ring_length);
}

static uint64_t fnv1a(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001B3u;
    return hash;
}

/* What ranks must agree on, in a text that no locale changes, and nothing of the head range or the number of slots. */
static void make_hash(rssm_plugin *p)
{
    rssm_description *d = &p->d;
    uint64_t layers = fnv1a(0xCBF29CE484222325u, d->linear_layers, sizeof(int32_t) * (size_t)d->num_linear_layers),
             bound;
    memcpy(&bound, &d->lower_bound, sizeof(bound));
    snprintf(p->layout_text, sizeof(p->layout_text),
             "template/1 kda tp=%d heads=%d/%d of %d/%d dims=%dx%d conv=%d/%lld ring=%d/%d dtypes=%d/%d/%d "
             "layers=%d#%016llx norm=%d bound=%d:%016llx beta=%d",
             d->tp_size, d->H, d->HV, d->model_H, d->model_HV, d->K, d->V, d->conv_kernel, (long long)p->sizes.of[W],
             d->ring_length, d->ring_rows, d->io_dtype, d->state_dtype, d->ring_dtype, d->num_linear_layers,
             (unsigned long long)layers, d->qk_norm, d->has_lower_bound, (unsigned long long)bound, (int)d->beta_scale);
    d->layout_version = 1;
    d->layout_text = p->layout_text;
    d->layout_hash = fnv1a(0xCBF29CE484222325u, p->layout_text, strlen(p->layout_text));
}

/* R is called L where the two are one. */
static const char *symbol_name(const rssm_plugin *p, int s)
{
    return s == R && p->d.ring_rows == p->d.ring_length ? "L" : symbol_names[s];
}

/* "[slots, HV, L, V]", with numbers "[64, 32, 16, 128]"; what is free keeps its name. */
static const char *shape_text(char *text, const rssm_plugin *p, const uint8_t *shape, const symbol_sizes *numbers)
{
    size_t used = (size_t)snprintf(text, TEXT, "[");
    for (int i = 0; shape[i] != END; i++) {
        const char *comma = i ? ", " : "";
        if (numbers && numbers->of[shape[i]] >= 0)
            used += (size_t)snprintf(text + used, TEXT - used, "%s%lld", comma, (long long)numbers->of[shape[i]]);
        else
            used += (size_t)snprintf(text + used, TEXT - used, "%s%s", comma, symbol_name(p, shape[i]));
    }
    snprintf(text + used, TEXT - used, "]");
    return text;
}

/* A tensor's info, but for what the number of slots decides. */
static rssm_status describe_tensor(rssm_plugin *p, const tensor_spec *spec, rssm_error *err)
{
    const int i = p->layout.num_tensors++;
    rssm_tensor_info *info = &p->tensors[i];
    const int32_t dtype = spec->types & T_STATE  ? p->d.state_dtype
                          : spec->types & T_RING ? p->d.ring_dtype
                          : spec->types & T_IO   ? p->d.io_dtype
                                                 : RSSM_DTYPE_FLOAT32;
    const bool integer = spec->types & T_I32;
    shape_text(p->symbolic_shapes[i], p, spec->shape, NULL);
    *info = (rssm_tensor_info){.struct_size = sizeof(*info),
                               .role = spec->role,
                               .name = role_name(spec->role),
                               .dtype_code = integer                        ? kDLInt
                                             : dtype == RSSM_DTYPE_BFLOAT16 ? kDLBfloat
                                                                            : kDLFloat,
                               .dtype_bits = integer ? 32 : (int32_t)(8 * dtype_bytes(dtype)),
                               .dtype_name = integer ? "int32" : dtype_names[dtype],
                               .symbolic_shape = p->symbolic_shapes[i],
                               .bytes_per_slot = integer ? 4 : dtype_bytes(dtype),
                               .alignment = RSSM_POOL_ALIGNMENT,
                               .per_layer = spec->place != CURSORS};
    while (spec->shape[info->ndim] != END)
        info->ndim++;
    int64_t stride = 1;
    for (int k = info->ndim - 1; k >= 0; k--) {
        info->strides[k] = stride;
        info->shape[k] = p->sizes.of[spec->shape[k]];
        if (k > 0 && (__builtin_mul_overflow(stride, info->shape[k], &stride) ||
                      __builtin_mul_overflow(info->bytes_per_slot, info->shape[k], &info->bytes_per_slot)))
            return FAIL(err, RSSM_ERR_OVERFLOW, "one slot of `%s` does not fit in 63 bits of bytes", info->name);
    }
    return RSSM_OK;
}

/* Bytes of one slot over all layers, by kind. */
static rssm_status sum_slot(rssm_plugin *p, rssm_error *err)
{
    rssm_layout *l = &p->layout;
    for (int32_t i = 0; i < l->num_tensors; i++) {
        const int kind = spec_of((uint32_t)p->tensors[i].role)->place;
        int64_t *sum = kind == STATE  ? &l->slot_state_bytes
                       : kind == RING ? &l->slot_ring_bytes
                       : kind == CONV ? &l->slot_conv_bytes
                                      : &l->slot_cursor_bytes;
        int64_t bytes = 0, layers = p->tensors[i].per_layer ? l->num_layers : 1;
        if (__builtin_mul_overflow(p->tensors[i].bytes_per_slot, layers, &bytes) ||
            __builtin_add_overflow(*sum, bytes, sum) ||
            __builtin_add_overflow(l->slot_total_bytes, kind == CURSORS ? 0 : bytes, &l->slot_total_bytes))
            return FAIL(err, RSSM_ERR_OVERFLOW, "one slot of %d layers does not fit in 63 bits of bytes",
                        l->num_layers);
    }
    return RSSM_OK;
}

/* Layer after layer, each tensor on a boundary of 256 bytes, the cursor last. False: beyond 63 bits. */
static bool place_slots(rssm_plugin *p, int64_t slots)
{
    rssm_layout *l = &p->layout;
    int64_t layer = 0, end = 0, bytes = 0;
    for (int32_t i = 0; i < l->num_tensors; i++) { /* the cursor is the table's last */
        rssm_tensor_info *info = &p->tensors[i];
        if (__builtin_mul_overflow(slots, info->bytes_per_slot, &bytes) ||
            __builtin_add_overflow(bytes, (int64_t)RSSM_POOL_ALIGNMENT - 1, &bytes))
            return false;
        bytes -= bytes % RSSM_POOL_ALIGNMENT;
        info->shape[0] = slots;
        info->offset = layer;
        if (!info->per_layer && (__builtin_mul_overflow(layer, (int64_t)l->num_layers, &info->offset) ||
                                 __builtin_add_overflow(info->offset, bytes, &end)))
            return false;
        if (info->per_layer && __builtin_add_overflow(layer, bytes, &layer))
            return false;
    }
    for (int32_t i = 0; i < l->num_tensors; i++)
        p->tensors[i].layer_stride = p->tensors[i].per_layer ? layer : 0;
    l->num_slots = slots;
    l->layer_bytes = layer;
    l->slab_bytes = end;
    return !__builtin_add_overflow(end, l->workspace_bytes, &l->pool_bytes);
}

/* The most slots whose whole pool fits, by halving. */
static rssm_status fit_budget(rssm_plugin *p, rssm_error *err)
{
    const int64_t budget = p->args.memory_budget_bytes;
    if (!place_slots(p, 1) || p->layout.pool_bytes > budget)
        return FAIL(err, RSSM_ERR_ARGUMENT, "memory_budget_bytes = %lld holds no slot: a pool of one needs %lld bytes",
                    (long long)budget, (long long)p->layout.pool_bytes);
    int64_t fits = 1, too_many = (int64_t)INT32_MAX + 1;
    while (too_many - fits > 1) {
        int64_t middle = fits + (too_many - fits) / 2;
        bool fit = place_slots(p, middle) && p->layout.pool_bytes <= budget;
        *(fit ? &fits : &too_many) = middle;
    }
    place_slots(p, fits);
    return RSSM_OK;
}

static rssm_status make_layout(rssm_plugin *p, rssm_error *err)
{
    rssm_status status = RSSM_OK;
    p->layout = (rssm_layout){.struct_size = sizeof(p->layout),
                              .layout_version = p->d.layout_version,
                              .layout_hash = p->d.layout_hash,
                              .tensors = p->tensors,
                              .num_layers = p->d.num_linear_layers,
                              .workspace_bytes = scratch_bytes(p)};
    for (int i = 0; !status && i < SPECS; i++)
        if (is_pooled(&table[i]) && !(table[i].place == CONV && p->sizes.of[W] == 0))
            status = describe_tensor(p, &table[i], err);
    if (!status)
        status = sum_slot(p, err);
    if (status || p->args.memory_budget_bytes)
        return status ? status : fit_budget(p, err);
    if (!place_slots(p, p->args.num_slots ? p->args.num_slots : 1))
        return FAIL(err, RSSM_ERR_OVERFLOW, "a pool of %lld slots does not fit in 63 bits of bytes",
                    (long long)p->args.num_slots);
    return RSSM_OK;
}

static rssm_status fill_instance(rssm_plugin *p, const rssm_init_args *args, rssm_error *err)
{
    p->model_dtype = RSSM_DTYPE_BFLOAT16;
    rssm_status status = args->dims          ? read_dims(p, args->dims, err)
                         : args->config_path ? read_config_file(p, args->config_path, err)
                                             : read_config(p, args->config_json, args->config_json_len, err);
    if (!status)
        status = split_heads(p, err);
    if (!status)
        status = pick_layers(p, err);
    if (!status)
        status = set_sizes(p, err);
    if (status)
        return status;
    pick_dtypes_and_ring(p);
    make_hash(p);
    p->d.struct_size = sizeof(p->d);
    p->d.family = RSSM_FAMILY_KDA;
    p->d.family_name = "kda";
    p->d.model_type = p->model_type;
    p->d.gate_kind = p->d.has_lower_bound ? RSSM_GATE_BOUNDED : RSSM_GATE_SOFTPLUS;
    p->d.scale = 1 / sqrt((double)p->d.K);
    p->d.norm_eps = 1e-6;
    p->d.time_step_limit_max = (double)INFINITY;
    p->d.device_type = kDLCPU;
    p->d.device_id = p->args.device_id;
    p->d.ring_reason = p->ring_reason;
    p->d.read = p->read.items;
    p->d.num_read = p->read.count;
    p->d.assumed = p->assumed.items;
    p->d.num_assumed = p->assumed.count;
    p->d.cpu_level = "reference";
    p->d.num_threads = 1;
    return make_layout(p, err);
}

/* ---- 6. Validation ---------------------------------------------------------------------------------------------- */

static void *data_of(const DLTensor *t)
{
    return t->data ? (char *)t->data + t->byte_offset : NULL;
}

/* Elements from row to row; of a single row any stride is given and means nothing. */
static int64_t row_stride(const DLTensor *t)
{
    int64_t stride = 1;
    for (int i = 1; i < t->ndim; i++)
        stride *= t->shape[i];
    return t->strides && t->shape[0] > 1 ? t->strides[0] : stride;
}

static int shape_length(const uint8_t *shape)
{
    int length = 0;
    while (shape[length] != END)
        length++;
    return length;
}

static rssm_status fail_shape(const rssm_plugin *p, const tensor_spec *spec, const uint8_t *shape, const DLTensor *t,
                              int dim, const symbol_sizes *sizes, rssm_error *err)
{
    char names[TEXT], numbers[TEXT], got[TEXT] = "[";
    size_t used = 1;
    for (int i = 0; t->shape && i < t->ndim && used < TEXT - 32; i++)
        used += (size_t)snprintf(got + used, TEXT - used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(got + used, TEXT - used, "]");
    where at = {spec->role, dim, shape_length(shape), t->ndim};
    if (dim >= 0)
        at = (where){spec->role, dim, sizes->of[shape[dim]], t->shape[dim]};
    return fail_at(err, RSSM_ERR_SHAPE, at, "`%s` must have shape %s = %s; got %s", role_name(spec->role),
                   shape_text(names, p, shape, NULL), shape_text(numbers, p, shape, sizes), got);
}

/* Weights come as [1, 1, HV, 1] and the like: the same sizes when dims of 1 are left out. */
static bool same_without_ones(const DLTensor *t, const uint8_t *shape, const symbol_sizes *sizes)
{
    int k = 0;
    for (int i = 0; i < t->ndim; i++) {
        while (t->shape[i] != 1 && shape[k] != END && sizes->of[shape[k]] == 1)
            k++;
        if (t->shape[i] != 1 && (shape[k] == END || sizes->of[shape[k++]] != t->shape[i]))
            return false;
    }
    while (shape[k] != END && sizes->of[shape[k]] == 1)
        k++;
    return shape[k] == END;
}

/* Binds the free sizes that the tensor has. */
static rssm_status check_shape(const rssm_plugin *p, const tensor_spec *spec, const DLTensor *t, symbol_sizes *sizes,
                               rssm_error *err)
{
    const uint8_t *shape = spec->shape;
    if (t->ndim > 0 && !t->shape)
        return fail_at(err, RSSM_ERR_ARGUMENT, (where){spec->role, -1, 0, 0}, "`%s` has ndim = %d and no shape",
                       role_name(spec->role), t->ndim);
    if (spec->place == WEIGHT && t->ndim > 0 && t->ndim <= RSSM_MAX_DIMS && same_without_ones(t, shape, sizes))
        return RSSM_OK;
    if (spec->other_shape[0] && t->ndim == shape_length(spec->other_shape))
        shape = spec->other_shape;
    if (t->ndim != shape_length(shape))
        return fail_shape(p, spec, shape, t, -1, sizes, err);
    for (int i = 0; i < t->ndim; i++) {
        int64_t want = sizes->of[shape[i]];
        if (want < 0 ? t->shape[i] < 0 : t->shape[i] != want)
            return fail_shape(p, spec, shape, t, i, sizes, err);
    }
    for (int i = 0; i < t->ndim; i++)
        sizes->of[shape[i]] = t->shape[i];
    return RSSM_OK;
}

static const char *type_text(char *text, DLDataType type)
{
    const char *code = type.code == kDLFloat    ? "float"
                       : type.code == kDLBfloat ? "bfloat"
                       : type.code == kDLInt    ? "int"
                       : type.code == kDLUInt   ? "uint"
                                                : NULL;
    size_t used = code ? (size_t)snprintf(text, TEXT, "%s%u", code, type.bits)
                       : (size_t)snprintf(text, TEXT, "DLPack type code %u with %u bits", type.code, type.bits);
    if (type.lanes != 1)
        snprintf(text + used, TEXT - used, " x %u lanes", type.lanes);
    return text;
}

/* The floats that the tensor may have, as bits 1 << RSSM_DTYPE_*. */
static int allowed_floats(const rssm_plugin *p, int types)
{
    return (types & T_IO ? 1 << p->d.io_dtype : 0) | (types & T_STATE ? 1 << p->d.state_dtype : 0) |
           (types & T_RING ? 1 << p->d.ring_dtype : 0) | (types & (T_F32 | T_FLOAT) ? 1 << RSSM_DTYPE_FLOAT32 : 0) |
           (types & T_FLOAT ? 1 << RSSM_DTYPE_BFLOAT16 | 1 << RSSM_DTYPE_FLOAT16 : 0);
}

/* RSSM_DTYPE_*, or 0 for what is none. */
static int32_t float_type_of(DLDataType type)
{
    if (type.code == kDLBfloat)
        return type.bits == 16 ? RSSM_DTYPE_BFLOAT16 : 0;
    if (type.code != kDLFloat)
        return 0;
    return type.bits == 32 ? RSSM_DTYPE_FLOAT32 : type.bits == 16 ? RSSM_DTYPE_FLOAT16 : 0;
}

static rssm_status check_type(const rssm_plugin *p, const tensor_spec *spec, const DLTensor *t, rssm_error *err)
{
    const int floats = allowed_floats(p, spec->types), types = spec->types;
    const int32_t dtype = float_type_of(t->dtype);
    if (t->dtype.lanes == 1 &&
        ((dtype && floats >> dtype & 1) || (t->dtype.code == kDLInt && t->dtype.bits == 32 && types & T_I32) ||
         (t->dtype.code == kDLInt && t->dtype.bits == 64 && types & T_I64)))
        return RSSM_OK;
    char want[TEXT] = "", got[TEXT];
    size_t used = (size_t)snprintf(want, TEXT, "%s", types & T_I64 ? "int32 or int64" : types & T_I32 ? "int32" : "");
    for (int32_t i = RSSM_DTYPE_FLOAT32; i <= RSSM_DTYPE_FLOAT16; i++)
        if (floats >> i & 1)
            used += (size_t)snprintf(want + used, TEXT - used, "%s%s", used ? " or " : "", dtype_names[i]);
    /* in numbers: the bits of the instance's own type, if the tensor has one */
    int32_t own = types & T_STATE  ? p->d.state_dtype
                  : types & T_RING ? p->d.ring_dtype
                  : types & T_IO   ? p->d.io_dtype
                                   : RSSM_DTYPE_FLOAT32;
    return fail_at(err, RSSM_ERR_DTYPE, (where){spec->role, -1, 8 * dtype_bytes(own), t->dtype.bits},
                   "`%s` must have dtype %s; got %s", role_name(spec->role), want, type_text(got, t->dtype));
}

static rssm_status check_device(const tensor_spec *spec, const DLTensor *t, rssm_error *err)
{
    char got[TEXT];
    const int32_t type = (int32_t)t->device.device_type;
    if (type == kDLCPU)
        return RSSM_OK;
    if (type == kDLCUDA)
        snprintf(got, TEXT, "cuda:%d", t->device.device_id);
    else
        snprintf(got, TEXT, "DLPack device type %d", type);
    return fail_at(err, RSSM_ERR_DEVICE, (where){spec->role, -1, kDLCPU, type},
                   "`%s` must be on cpu, the device of this instance; got %s", role_name(spec->role), got);
}

/* Inner dims compact; dim 0 of all but weights any stride >= 0, and of what is written no overlap. */
static rssm_status check_strides(const tensor_spec *spec, const DLTensor *t, rssm_error *err)
{
    int64_t inner = 1;
    for (int i = t->ndim - 1; t->strides && i >= 0; i--) {
        const int64_t stride = t->strides[i];
        const bool outer = i == 0 && spec->place != WEIGHT;
        const bool apart = is_written(spec) || t->ndim > 1; /* a row of `rows` is not to lie over the next either */
        const char *fault = stride < 0                                                 ? "is negative"
                            : !outer && stride != inner                                ? "is not compact"
                            : outer && spec->place != INPUT && apart && stride < inner ? "makes rows or slots overlap"
                                                                                       : NULL;
        if (t->shape[i] > 1 && fault)
            return fail_at(err, RSSM_ERR_STRIDE, (where){spec->role, i, inner, stride},
                           "`%s`: stride %lld of dim %d %s; one holds %lld elements", role_name(spec->role),
                           (long long)stride, i, fault, (long long)inner);
        if (__builtin_mul_overflow(inner, t->shape[i], &inner))
            return fail_at(err, RSSM_ERR_OVERFLOW, (where){spec->role, i, inner, stride},
                           "`%s` has more than 2^63 elements", role_name(spec->role));
    }
    return RSSM_OK;
}

/* Bytes from the first element to behind the last; -1: beyond 63 bits. */
static int64_t extent(const DLTensor *t)
{
    int64_t compact = 1, last = 0, reach, bytes;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0)
            return 0;
        int64_t stride = t->strides ? t->strides[i] : compact;
        if (t->shape[i] > 1 &&
            (__builtin_mul_overflow(t->shape[i] - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last)))
            return -1;
        if (!t->strides && __builtin_mul_overflow(compact, t->shape[i], &compact))
            return -1;
    }
    return last == INT64_MAX || __builtin_mul_overflow(last + 1, (int64_t)t->dtype.bits / 8, &bytes) ? -1 : bytes;
}

static rssm_status check_address(const tensor_spec *spec, const DLTensor *t, rssm_error *err)
{
    const int64_t bytes = extent(t);
    const uintptr_t align = is_pooled(spec) ? 16 : t->dtype.bits / 8u;
    uintptr_t address = (uintptr_t)t->data, end;
    if (bytes == 0)
        return RSSM_OK; /* nothing to read: then no data is needed either */
    if (bytes > 0 && !t->data)
        return fail_at(err, RSSM_ERR_ARGUMENT, (where){spec->role, -1, 0, 0}, "`%s` has a NULL data pointer",
                       role_name(spec->role));
    if (bytes < 0 || __builtin_add_overflow(address, t->byte_offset, &address) ||
        __builtin_add_overflow(address, (uintptr_t)bytes, &end))
        return fail_at(err, RSSM_ERR_OVERFLOW, (where){spec->role, -1, 0, 0},
                       "`%s` with byte_offset %llu reaches beyond 2^63 bytes or the address space",
                       role_name(spec->role), (unsigned long long)t->byte_offset);
    if (address % align)
        return fail_at(err, RSSM_ERR_ALIGNMENT, (where){spec->role, -1, (int64_t)align, (int64_t)(address % align)},
                       "`%s` must be %d-byte aligned; data + byte_offset = %p", role_name(spec->role), (int)align,
                       (void *)address);
    return RSSM_OK;
}

static rssm_status check_tensor(const rssm_plugin *p, const tensor_spec *spec, const DLTensor *t, symbol_sizes *sizes,
                                rssm_error *err)
{
    rssm_status status = check_shape(p, spec, t, sizes, err);
    if (!status)
        status = check_type(p, spec, t, err);
    if (!status)
        status = check_device(spec, t, err);
    if (!status)
        status = check_strides(spec, t, err);
    return status ? status : check_address(spec, t, err);
}

/* Does [first, end) touch a row of t? */
static bool touches(const DLTensor *t, uintptr_t first, uintptr_t end)
{
    const uintptr_t start = (uintptr_t)data_of(t), bytes = (uintptr_t)extent(t);
    const uintptr_t stride = (uintptr_t)row_stride(t) * (t->dtype.bits / 8u);
    uintptr_t row = t->dtype.bits / 8u;
    for (int i = 1; i < t->ndim; i++)
        row *= (uintptr_t)t->shape[i];
    if (first >= start + bytes || start >= end)
        return false;
    if (first < start || stride == 0)
        return true;
    const uintptr_t into = (first - start) % stride; /* how far `first` is into its row's stride */
    return into < row || (end - first > stride - into && start + bytes - first > stride - into);
}

/* Pools are paged: one tensor lies in the gaps of another. So row by row of the one with fewer of them. */
static bool overlap(const DLTensor *a, const DLTensor *b)
{
    const DLTensor *few = a->shape[0] < b->shape[0] ? a : b, *other = few == a ? b : a;
    if (extent(a) == 0 || extent(b) == 0)
        return false;
    const uintptr_t start = (uintptr_t)data_of(few), end = start + (uintptr_t)extent(few);
    uintptr_t row = few->dtype.bits / 8u, stride = (uintptr_t)row_stride(few) * row;
    for (int i = 1; i < few->ndim; i++)
        row *= (uintptr_t)few->shape[i];
    if (!touches(other, start, end)) /* as a whole */
        return false;
    for (int64_t i = 0; i < few->shape[0]; i++)
        if (touches(other, start + (uintptr_t)i * stride, start + (uintptr_t)i * stride + row))
            return true;
    return false;
}

static const DLTensor *given(const rssm_decode_args *args, int32_t role)
{
    return (uint32_t)role < args->num_tensors ? args->tensors[role] : NULL;
}

static bool is_bounded(const rssm_plugin *p, const rssm_decode_args *args)
{
    return p->d.has_lower_bound || args->has_lower_bound;
}

static bool gives_ring(const rssm_decode_args *args)
{
    return given(args, RSSM_T_D_CACHE) || given(args, RSSM_T_K_CACHE) || given(args, RSSM_T_G_CACHE);
}

/* 1: must be there, -1: must not, 0: as the caller likes. */
static int wanted(const rssm_plugin *p, const rssm_decode_args *args, const tensor_spec *spec)
{
    const bool packed = given(args, RSSM_T_MIXED_QKV), rows = given(args, RSSM_T_ROWS);
    switch ((need)spec->need) {
    case ALWAYS:
        return 1;
    case IF_PACKED:
        return packed ? 1 : -1;
    case IF_APART:
        return packed ? -1 : 1;
    case IF_RING:
        return p->d.ring_rows > 1 || gives_ring(args);
    case IF_ROWS: /* neither form of the position: `rows` is the one to name */
        return rows || !given(args, RSSM_T_WRITE_POS) ? 1 : -1;
    case IF_HOST:
        return rows ? -1 : 1;
    case MAY_HOST:
        return rows ? -1 : 0;
    case IF_SOFTPLUS:
        return !is_bounded(p, args);
    default:
        return 0;
    }
}

static rssm_status check_head(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    const uint32_t both = RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP;
    if ((args->flags & both) == both)
        return FAIL(err, RSSM_ERR_ARGUMENT, "RSSM_SKIP_VALIDATE and RSSM_CHECK_DEEP contradict each other");
    if (check_bits(args->flags, both, (uint32_t)args->reserved_, err))
        return RSSM_ERR_ARGUMENT;
    if (args->layer < 0 || args->layer >= p->d.num_linear_layers)
        return FAIL(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d", args->layer, p->d.num_linear_layers - 1);
    if (!args->tensors)
        return FAIL(err, RSSM_ERR_ARGUMENT, "tensors is NULL");
    return RSSM_OK;
}

static rssm_status check_overrides(const rssm_decode_args *args, rssm_error *err)
{
    if ((args->has_scale | args->has_lower_bound) & ~1)
        return FAIL(err, RSSM_ERR_ARGUMENT, "has_scale = %d and has_lower_bound = %d must be 0 or 1", args->has_scale,
                    args->has_lower_bound);
    if (args->has_scale && (!isfinite((float)args->scale) || (float)args->scale == 0))
        return FAIL(err, RSSM_ERR_ARGUMENT, "scale = %g is not a finite float32 other than 0", args->scale);
    return args->has_lower_bound ? check_bound(args->lower_bound, RSSM_ERR_ARGUMENT, "lower_bound", err) : RSSM_OK;
}

/* Roles that nobody knows, or that are of other families or calls, and what must be there or must not. */
static rssm_status check_roles(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    for (uint32_t role = 0; role < args->num_tensors; role++)
        if (args->tensors[role] && !spec_of(role))
            return fail_at(err, RSSM_ERR_ROLE, (where){(int32_t)role, -1, 0, 0},
                           "role %u, `%s`, is not a tensor of a kda decode", role, role_name((int32_t)role));
    for (int i = 0; i < SPECS; i++) {
        const char *name = role_name(table[i].role);
        const int want = wanted(p, args, &table[i]);
        const where at = {table[i].role, -1, 0, 0};
        if (want > 0 && !given(args, table[i].role))
            return fail_at(err, RSSM_ERR_MISSING, at, "`%s` is missing%s", name,
                           table[i].need == IF_SOFTPLUS ? ": without a lower bound the gate needs it"
                           : table[i].need == IF_ROWS   ? ": give `rows` of step_begin, or `write_pos`"
                                                        : "");
        if (want < 0 && given(args, table[i].role))
            return fail_at(err, RSSM_ERR_ROLE, at, "`%s` must be absent: another tensor of the call says the same",
                           name);
    }
    return RSSM_OK;
}

static rssm_status check_batch(const rssm_plugin *p, int64_t rows, rssm_error *err)
{
    if (rows > p->args.max_batch)
        return FAIL(err, RSSM_ERR_ARGUMENT, "a batch of %lld rows is above max_batch = %d", (long long)rows,
                    p->args.max_batch);
    return RSSM_OK;
}

static rssm_status check_tensors(const rssm_plugin *p, const rssm_decode_args *args, symbol_sizes *sizes,
                                 rssm_error *err)
{
    rssm_status status = RSSM_OK;
    for (int i = 0; !status && i < SPECS; i++)
        if (table[i].need != STORAGE && given(args, table[i].role))
            status = check_tensor(p, &table[i], given(args, table[i].role), sizes, err);
    if (!status)
        status = check_batch(p, sizes->of[B], err);
    if (!status && sizes->of[S] > INT32_MAX)
        status = fail_at(err, RSSM_ERR_SHAPE, (where){RSSM_T_STATE, 0, INT32_MAX, sizes->of[S]},
                         "`state` has %lld slots; at most 2^31 - 1", (long long)sizes->of[S]);
    if (!status && sizes->of[B] > sizes->of[S] && !given(args, RSSM_T_ROWS) && !given(args, RSSM_T_STATE_INDICES))
        status = fail_at(err, RSSM_ERR_MISSING, (where){RSSM_T_STATE_INDICES, -1, sizes->of[S], sizes->of[B]},
                         "`state_indices` is missing: row b would use slot b, and there are fewer slots than rows");
    return status;
}

static rssm_status check_overlaps(const rssm_decode_args *args, rssm_error *err)
{
    for (int i = 0; i < SPECS; i++)
        for (int k = 0; k < SPECS; k++) {
            const DLTensor *a = given(args, table[i].role), *b = given(args, table[k].role);
            if (i == k || !a || !b || table[i].need == STORAGE || table[k].need == STORAGE || !is_written(&table[i]))
                continue;
            if (overlap(a, b))
                return fail_at(err, RSSM_ERR_OVERLAP, (where){table[i].role, -1, table[k].role, 0},
                               "`%s` is written and shares memory with `%s`", role_name(table[i].role),
                               role_name(table[k].role));
        }
    return RSSM_OK;
}

static pool_view *view_of(const rssm_plugin *p, int32_t layer, int32_t tensor)
{
    return &p->views[(int64_t)layer * p->layout.num_tensors + tensor];
}

/* With a pool the addresses tell whether a tensor is another layer's. */
static rssm_status check_layer(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    for (int32_t i = 0; p->views && i < p->layout.num_tensors; i++) {
        const DLTensor *t = given(args, p->tensors[i].role);
        const void *data = t && p->tensors[i].per_layer ? data_of(t) : NULL;
        if (!data || p->tensors[i].role == RSSM_T_CONV || data == view_of(p, args->layer, i)->t.data)
            continue;
        for (int32_t layer = 0; layer < p->d.num_linear_layers; layer++)
            if (data == view_of(p, layer, i)->t.data)
                return fail_at(err, RSSM_ERR_ARGUMENT, (where){p->tensors[i].role, -1, args->layer, layer},
                               "`%s` is the pool's tensor of layer %d; this call is for layer %d", p->tensors[i].name,
                               layer, args->layer);
    }
    return RSSM_OK;
}

/* Entry i of an int32 or int64 array with any stride. */
static int64_t index_at(const DLTensor *t, int64_t i)
{
    i *= row_stride(t);
    return t->dtype.bits == 64 ? ((const int64_t *)data_of(t))[i] : ((const int32_t *)data_of(t))[i];
}

static const int32_t *row_at(const DLTensor *rows, int64_t b)
{
    return (const int32_t *)data_of(rows) + b * row_stride(rows);
}

/* Below 0, beyond the slots, or the pad slot: such a row is padding, and nothing of it is anybody's business. */
static bool is_padding(const rssm_plugin *p, int64_t slot, int64_t slots)
{
    return slot < 0 || slot >= slots || (p->args.has_pad_slot && slot == p->args.pad_slot);
}

/* Slot of entry b of a list of slots, or of rows. */
static int64_t slot_in(const DLTensor *t, int64_t b)
{
    return t->ndim == 2 ? row_at(t, b)[0] : index_at(t, b);
}

/* Slow and simple: each pair. */
static rssm_status check_unique(const rssm_plugin *p, int32_t role, const DLTensor *t, int64_t slots, rssm_error *err)
{
    for (int64_t b = 0; b < t->shape[0]; b++)
        for (int64_t a = 0; a < b; a++)
            if (slot_in(t, a) == slot_in(t, b) && !is_padding(p, slot_in(t, b), slots))
                return fail_at(err, RSSM_ERR_VALUE, (where){role, 0, a, b},
                               "`%s` has slot %lld twice, in rows %lld and %lld", role_name(role),
                               (long long)slot_in(t, b), (long long)a, (long long)b);
    return RSSM_OK;
}

/* Records that may be pending: none at L = 1, where every token is folded. */
static int32_t most_records(const rssm_plugin *p)
{
    return p->d.ring_length > 1 ? p->d.ring_length : 0;
}

static rssm_status check_cursor(const rssm_plugin *p, int32_t role, int64_t row, int64_t base, int64_t count,
                                rssm_error *err)
{
    const struct {
        const char *name;
        int64_t value, most;
    } parts[] = {{"count", count, most_records(p)}, {"base", base, p->d.ring_rows - 1}};
    for (int i = 0; i < COUNT(parts); i++)
        if (parts[i].value < 0 || parts[i].value > parts[i].most)
            return fail_at(err, RSSM_ERR_VALUE, (where){role, 0, parts[i].most, parts[i].value},
                           "`%s` row %lld: %s %lld is not in 0..%lld", role_name(role), (long long)row, parts[i].name,
                           (long long)parts[i].value, (long long)parts[i].most);
    return RSSM_OK;
}

static rssm_status check_rows_deep(const rssm_plugin *p, const DLTensor *rows, int64_t slots, rssm_error *err)
{
    rssm_status status = check_unique(p, RSSM_T_ROWS, rows, slots, err);
    for (int64_t b = 0; !status && b < rows->shape[0]; b++) {
        const int32_t *r = row_at(rows, b);
        const bool must_flush = !is_padding(p, r[0], slots) && r[2] >= p->d.ring_length - 1 && r[2] <= most_records(p);
        if (r[0] < -1 || r[0] >= slots || r[3] & ~1 || (must_flush && !r[3]) || r[5] != b || r[6] != 1)
            status = fail_at(err, RSSM_ERR_VALUE, (where){RSSM_T_ROWS, 0, slots, r[0]},
                             "`rows` row %lld (slot %d) was not written by step_begin for %lld slots", (long long)b,
                             r[0], (long long)slots);
        else if (!is_padding(p, r[0], slots))
            status = check_cursor(p, RSSM_T_ROWS, b, r[1], r[2], err);
    }
    return status;
}

/* RSSM_CHECK_DEEP: also what the index arrays hold. */
static rssm_status check_deep(const rssm_plugin *p, const rssm_decode_args *args, const symbol_sizes *sizes,
                              rssm_error *err)
{
    const DLTensor *indices = given(args, RSSM_T_STATE_INDICES), *rows = given(args, RSSM_T_ROWS);
    if (!p->scratch)
        return FAIL(err, RSSM_ERR_STATE, "RSSM_CHECK_DEEP before prepare");
    if (rows)
        return check_rows_deep(p, rows, sizes->of[S], err);
    rssm_status status = indices ? check_unique(p, RSSM_T_STATE_INDICES, indices, sizes->of[S], err) : RSSM_OK;
    for (int64_t b = 0; !status && b < sizes->of[B]; b++)
        if (!is_padding(p, indices ? index_at(indices, b) : b, sizes->of[S]))
            status = check_cursor(p, RSSM_T_WRITE_POS, b, 0, index_at(given(args, RSSM_T_WRITE_POS), b), err);
    return status;
}

/* Everything that decode needs to hold, before a byte is written. */
static rssm_status check_decode(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    symbol_sizes sizes = p->sizes;
    rssm_status status = check_head(p, args, err);
    if (!status)
        status = check_overrides(args, err);
    if (!status)
        status = check_roles(p, args, err);
    if (!status)
        status = check_tensors(p, args, &sizes, err);
    if (!status)
        status = check_layer(p, args, err);
    if (!status)
        status = check_overlaps(args, err);
    return status || !(args->flags & RSSM_CHECK_DEEP) ? status : check_deep(p, args, &sizes, err);
}

/* ---- 7. Pool and cursors ---------------------------------------------------------------------------------------- */

static rssm_status check_pool_args(const rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    if (!p->scratch || p->views)
        return FAIL(err, RSSM_ERR_STATE, p->views ? "the instance has its pool already" : "pool_create before prepare");
    if (!p->args.num_slots && !p->args.memory_budget_bytes)
        return FAIL(err, RSSM_ERR_ARGUMENT, "pool_create needs num_slots or memory_budget_bytes at init");
    if (check_bits(args->flags, 0, 0, err))
        return RSSM_ERR_ARGUMENT;
    if (args->slab && args->tensors)
        return FAIL(err, RSSM_ERR_ARGUMENT, "slab and tensors: give one of them");
    if (!args->slab && args->slab_bytes) /* the host's allocation failed, and it did not look */
        return FAIL(err, RSSM_ERR_ARGUMENT, "slab is NULL and slab_bytes is not 0");
    if (!args->tensors != !args->num_roles || (args->tensors && args->num_roles <= RSSM_T_CURSOR))
        return FAIL(err, RSSM_ERR_ARGUMENT, "num_roles = %u: tensors needs room for roles up to RSSM_T_CURSOR = %d",
                    args->num_roles, RSSM_T_CURSOR);
    if (args->slab && args->slab_bytes < (uint64_t)p->layout.slab_bytes)
        return FAIL(err, RSSM_ERR_ARGUMENT, "the slab has %llu bytes; the layout needs %lld",
                    (unsigned long long)args->slab_bytes, (long long)p->layout.slab_bytes);
    if ((uintptr_t)args->slab % RSSM_POOL_ALIGNMENT)
        return FAIL(err, RSSM_ERR_ALIGNMENT, "the slab must be %d-byte aligned; got %p", RSSM_POOL_ALIGNMENT,
                    args->slab);
    return RSSM_OK;
}

/* The layout's tensor at an address, compact. */
static void set_view(pool_view *view, const rssm_tensor_info *info, void *data)
{
    memcpy(view->shape, info->shape, sizeof(view->shape));
    memcpy(view->strides, info->strides, sizeof(view->strides));
    view->t = (DLTensor){.data = data,
                         .device = {.device_type = kDLCPU},
                         .ndim = info->ndim,
                         .dtype = {(uint8_t)info->dtype_code, (uint8_t)info->dtype_bits, 1},
                         .shape = view->shape,
                         .strides = view->strides};
}

/* At L = 1 the ring may be left out, of all layers: its views have no data. */
static bool needs_ring(const rssm_plugin *p, const rssm_pool_args *args)
{
    bool needed = p->d.ring_rows > 1;
    for (int64_t layer = 0; layer < p->d.num_linear_layers; layer++)
        for (uint32_t role = 0; role < args->num_roles; role++)
            needed |= args->tensors[layer * args->num_roles + role] && spec_of(role) && spec_of(role)->place == RING;
    return needed;
}

/* One of the host's own tensors. */
static rssm_status take_tensor(rssm_plugin *p, const rssm_pool_args *args, int32_t layer, int32_t i, rssm_error *err)
{
    const rssm_tensor_info *info = &p->tensors[i];
    const tensor_spec *spec = spec_of((uint32_t)info->role);
    const DLTensor *t = args->tensors[(info->per_layer ? (int64_t)layer : 0) * args->num_roles + info->role];
    symbol_sizes sizes = p->sizes;
    sizes.of[S] = p->layout.num_slots;
    set_view(view_of(p, layer, i), info, t ? data_of(t) : NULL);
    if (!t && spec->place == RING && !needs_ring(p, args))
        return RSSM_OK;
    if (!t)
        return fail_at(err, RSSM_ERR_MISSING, (where){info->role, -1, 0, 0}, "pool tensor `%s` of layer %d is missing",
                       info->name, layer);
    rssm_status status = check_tensor(p, spec, t, &sizes, err);
    if (!status)
        view_of(p, layer, i)->strides[0] = row_stride(t);
    return status;
}

static rssm_status take_tensors(rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    rssm_status status = RSSM_OK;
    for (int32_t layer = 0; layer < p->d.num_linear_layers; layer++)
        for (uint32_t role = 0; role < args->num_roles; role++) {
            const tensor_spec *spec = spec_of(role);
            if (args->tensors[(int64_t)layer * args->num_roles + role] &&
                (!spec || !is_pooled(spec) || (spec->place == CONV && p->sizes.of[W] == 0)))
                return fail_at(err, RSSM_ERR_ROLE, (where){(int32_t)role, -1, 0, 0},
                               "role %u, `%s`, of layer %d is not a tensor of this pool", role,
                               role_name((int32_t)role), layer);
        }
    for (int32_t layer = 0; layer < p->d.num_linear_layers; layer++)
        for (int32_t i = 0; !status && i < p->layout.num_tensors; i++)
            status = take_tensor(p, args, layer, i, err);
    return status;
}

/* Each pair of tensors; the cursor of all layers is one. */
static rssm_status check_pool_overlaps(const rssm_plugin *p, rssm_error *err)
{
    const int32_t n = p->layout.num_tensors, count = n * p->d.num_linear_layers;
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = a + 1; b < count; b++) {
            const rssm_tensor_info *first = &p->tensors[a % n], *second = &p->tensors[b % n];
            if ((!first->per_layer && a >= n) || (!second->per_layer && b >= n) || !p->views[a].t.data ||
                !p->views[b].t.data || !overlap(&p->views[a].t, &p->views[b].t))
                continue;
            return fail_at(err, RSSM_ERR_OVERLAP, (where){first->role, -1, second->role, 0},
                           "pool tensor `%s` of layer %d shares memory with `%s` of layer %d", first->name, a / n,
                           second->name, b / n);
        }
    return RSSM_OK;
}

static int32_t *cursor_at(const rssm_plugin *p, int64_t slot)
{
    const DLTensor *t = &view_of(p, 0, p->layout.num_tensors - 1)->t;
    return (int32_t *)t->data + slot * t->strides[0];
}

/* All of a slot in all layers to zero; with flush spreading its first window is shortened by a phase of its own. */
static void reset_slot(const rssm_plugin *p, int64_t slot)
{
    for (int32_t i = 0; i < p->d.num_linear_layers * p->layout.num_tensors; i++) {
        const DLTensor *t = &p->views[i].t;
        if (t->data)
            memset((char *)t->data + slot * t->strides[0] * (t->dtype.bits / 8), 0,
                   (size_t)p->tensors[i % p->layout.num_tensors].bytes_per_slot);
    }
    if (p->args.flags & RSSM_INIT_SPREAD_FLUSH)
        cursor_at(p, slot)[3] = (int32_t)(slot % p->d.ring_length);
}

static rssm_status bind_pool(rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    if (args->tensors) {
        rssm_status status = take_tensors(p, args, err);
        return status ? status : check_pool_overlaps(p, err);
    }
    char *slab = args->slab;
    if (!slab)
        slab = p->slab = take(&p->mem, p->layout.slab_bytes, RSSM_POOL_ALIGNMENT);
    if (!slab)
        return no_memory(err);
    for (int32_t layer = 0; layer < p->d.num_linear_layers; layer++)
        for (int32_t i = 0; i < p->layout.num_tensors; i++)
            set_view(view_of(p, layer, i), &p->tensors[i],
                     slab + p->tensors[i].offset + layer * p->tensors[i].layer_stride);
    for (int64_t slot = 0; p->slab && slot < p->layout.num_slots; slot++) /* the host's memory is bound as it is */
        reset_slot(p, slot);
    return RSSM_OK;
}

static rssm_status create_pool(rssm_plugin *p, const rssm_pool_args *args, rssm_error *err)
{
    rssm_status status = check_pool_args(p, args, err);
    if (status)
        return status;
    p->views = take(&p->mem, views_bytes(p), 16);
    status = p->views ? bind_pool(p, args, err) : no_memory(err);
    if (status) { /* as if nothing had been */
        give(&p->mem, p->views, views_bytes(p));
        p->views = NULL;
    }
    return status;
}

static rssm_status give_tensors(const rssm_plugin *p, int32_t layer, const DLTensor **tensors, uint32_t num_tensors,
                                rssm_error *err)
{
    if (!p->views)
        return FAIL(err, RSSM_ERR_STATE, "pool_tensors before pool_create");
    if (layer < 0 || layer >= p->d.num_linear_layers)
        return FAIL(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d", layer, p->d.num_linear_layers - 1);
    if (!tensors || num_tensors <= RSSM_T_CURSOR)
        return FAIL(err, RSSM_ERR_ARGUMENT, "tensors needs room for roles up to RSSM_T_CURSOR = %d", RSSM_T_CURSOR);
    for (int32_t i = 0; i < p->layout.num_tensors; i++) {
        const DLTensor *t = &view_of(p, layer, i)->t;
        tensors[p->tensors[i].role] = t->data ? t : NULL;
    }
    return RSSM_OK;
}

static rssm_status reset_slots(rssm_plugin *p, const rssm_reset_args *args, rssm_error *err)
{
    symbol_sizes sizes = p->sizes;
    if (!p->views)
        return FAIL(err, RSSM_ERR_STATE, "reset before pool_create");
    rssm_status status = check_bits(args->flags, 0, args->reserved_, err);
    if (!status && args->slots)
        status = check_tensor(p, &slots_of_reset, args->slots, &sizes, err);
    const int64_t count = args->slots ? sizes.of[N] : p->layout.num_slots;
    for (int64_t i = 0; !status && i < count; i++) {
        int64_t slot = args->slots ? index_at(args->slots, i) : i;
        if (slot >= 0 && slot < p->layout.num_slots)
            reset_slot(p, slot);
    }
    return status;
}

/* A host that bound memory and never reset it, or wrote over it, has garbage in the cursor. */
static const char *wrong_part(const rssm_plugin *p, const int32_t *cursor, int *part)
{
    static const char *const names[] = {"base", "count", "conv", "short"};
    const int64_t most[] = {p->d.ring_rows - 1, most_records(p), p->sizes.of[W] ? p->sizes.of[W] - 1 : 0,
                            p->d.ring_length - 1};
    for (*part = 0; *part < 4; ++*part)
        if (cursor[*part] < 0 || cursor[*part] > most[*part])
            return names[*part];
    return NULL;
}

static rssm_status check_begin_deep(const rssm_plugin *p, const DLTensor *slots, rssm_error *err)
{
    rssm_status status = check_unique(p, RSSM_T_SLOTS, slots, p->layout.num_slots, err);
    for (int64_t b = 0; !status && b < slots->shape[0]; b++) {
        int part;
        const int64_t slot = index_at(slots, b);
        const char *name = is_padding(p, slot, p->layout.num_slots) ? NULL : wrong_part(p, cursor_at(p, slot), &part);
        if (name)
            status = fail_at(err, RSSM_ERR_VALUE, (where){RSSM_T_CURSOR, 1, 0, cursor_at(p, slot)[part]},
                             "`cursor` of slot %lld: %s %d is out of range", (long long)slot, name,
                             cursor_at(p, slot)[part]);
    }
    return status;
}

/* rows_out is written: it may lie over neither list nor over the pool. */
static rssm_status check_rows_out(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    const char *with = overlap(args->rows_out, args->slots)                              ? "slots"
                       : args->force_flush && overlap(args->rows_out, args->force_flush) ? "force_flush"
                                                                                         : NULL;
    for (int32_t i = 0; !with && i < p->d.num_linear_layers * p->layout.num_tensors; i++)
        if (p->views[i].t.data && overlap(args->rows_out, &p->views[i].t))
            with = p->tensors[i % p->layout.num_tensors].name;
    if (!with)
        return RSSM_OK;
    return fail_at(err, RSSM_ERR_OVERLAP, (where){RSSM_T_ROWS, -1, 0, 0},
                   "`rows` is written and shares memory with `%s`", with);
}

static rssm_status check_begin(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    symbol_sizes sizes = p->sizes;
    rssm_status status = check_bits(args->flags, RSSM_CHECK_DEEP, args->reserved_, err);
    if (!status && !p->views)
        status = FAIL(err, RSSM_ERR_STATE, "step_begin before pool_create");
    if (!status && (!args->slots || !args->rows_out))
        status = fail_at(err, RSSM_ERR_MISSING, (where){args->slots ? RSSM_T_ROWS : RSSM_T_SLOTS, -1, 0, 0},
                         args->slots ? "`rows` is missing: rows_out is NULL" : "`slots` is missing");
    if (!status)
        status = check_tensor(p, &slots_of_step, args->slots, &sizes, err);
    if (!status && args->force_flush)
        status = check_tensor(p, spec_of(RSSM_T_FORCE_FLUSH), args->force_flush, &sizes, err);
    if (!status)
        status = check_tensor(p, spec_of(RSSM_T_ROWS), args->rows_out, &sizes, err);
    if (!status)
        status = check_batch(p, sizes.of[B], err);
    if (!status)
        status = check_rows_out(p, args, err);
    return status || !(args->flags & RSSM_CHECK_DEEP) ? status : check_begin_deep(p, args->slots, err);
}

/* Row b of a pass, and its slot's cursor after it. */
static void begin_row(rssm_plugin *p, const rssm_step_begin_args *args, int64_t b)
{
    const int64_t slot = index_at(args->slots, b), R_ = p->d.ring_rows, columns = p->sizes.of[W];
    int32_t *out = (int32_t *)data_of(args->rows_out) + b * row_stride(args->rows_out);
    int32_t row[RSSM_ROW_WIDTH] = {-1, 0, 0, 0, 0, (int32_t)b, 1, 0};
    int part;
    if (!is_padding(p, slot, p->layout.num_slots)) {
        int32_t *cursor = cursor_at(p, slot);
        if (wrong_part(p, cursor, &part)) {
            p->fault |= RSSM_FAULT_CURSOR;
        } else {
            const bool forced = args->force_flush && index_at(args->force_flush, b) != 0;
            const bool flush = forced || cursor[1] >= p->d.ring_length - 1 - cursor[3];
            row[0] = (int32_t)slot;
            row[1] = cursor[0];
            row[2] = cursor[1];
            row[3] = flush;
            row[4] = cursor[2];
            cursor[0] = flush ? (int32_t)((cursor[0] + cursor[1]) % R_) : cursor[0];
            cursor[1] = flush ? 0 : cursor[1] + 1;
            cursor[2] = columns ? (int32_t)((cursor[2] + 1) % columns) : 0;
            cursor[3] = flush ? 0 : cursor[3];
        }
    }
    memcpy(out, row, sizeof(row));
}

static rssm_status begin_step(rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    rssm_status status = check_begin(p, args, err);
    for (int64_t b = 0; !status && b < args->slots->shape[0]; b++)
        begin_row(p, args, b);
    return status;
}

/* ---- 8. The step ------------------------------------------------------------------------------------------------ */

static float bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Element i of a tensor's bytes, widened. */
static double load(int32_t dtype, const void *data, int64_t i)
{
    if (dtype == RSSM_DTYPE_FLOAT32)
        return (double)((const float *)data)[i];
    const uint16_t h = ((const uint16_t *)data)[i];
    if (dtype == RSSM_DTYPE_BFLOAT16)
        return (double)bits_to_float((uint32_t)h << 16);
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    double size = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(fraction + 1024, exponent - 25);
    return h & 0x8000 ? -size : size;
}

/* A 16-bit type: bits of its mantissa, the exponent's bias, its largest number. */
typedef struct half_type {
    int mantissa, bias;
    double largest;
} half_type;

/* x rounded once, to nearest even, as a number of the type. What is beyond it becomes its largest number, and `fault` is set
 * (maths.md: saturates). NaN stays NaN. */
static double round_to(int32_t dtype, double x, uint32_t fault, uint32_t *faults)
{
    if (dtype == RSSM_DTYPE_FLOAT32)
        return (double)(float)x;
    const half_type h = dtype == RSSM_DTYPE_BFLOAT16 ? (half_type){7, 127, 0x1.fep127} : (half_type){10, 15, 65504};
    x = (double)(float)x; /* all arithmetic ends in float32 before it leaves */
    if (isnan(x) || x == 0)
        return x;
    int exponent = isinf(x) ? 0 : ilogb(x);
    exponent = exponent < 1 - h.bias ? 1 - h.bias : exponent; /* subnormal */
    double rounded = isinf(x) ? x : ldexp(nearbyint(ldexp(x, h.mantissa - exponent)), exponent - h.mantissa);
    if (fabs(rounded) <= h.largest)
        return rounded;
    *faults |= fault;
    return copysign(h.largest, x);
}

static void store(int32_t dtype, void *data, int64_t i, double x, uint32_t fault, uint32_t *faults)
{
    const double rounded = round_to(dtype, x, fault, faults);
    const float f = (float)rounded;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if (dtype == RSSM_DTYPE_FLOAT32) {
        ((float *)data)[i] = f;
    } else if (dtype == RSSM_DTYPE_BFLOAT16) {
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16 | (isnan(f) ? 0x40 : 0));
    } else {
        const int exponent = f != 0 && isfinite(f) ? ilogb((double)f) : -15;
        const double size = fabs(rounded);
        const double half = isnan(f)         ? 0x7E00
                            : exponent < -14 ? ldexp(size, 24)
                                             : ldexp(size, 10 - exponent) + 1024 * (exponent + 14);
        ((uint16_t *)data)[i] = (uint16_t)((unsigned)half | (signbit(f) ? 0x8000u : 0));
    }
}

/* A tensor of the call: elements by row and position in the row, or by slot and position in the slot. */
typedef struct operand {
    void *data; /* NULL: absent */
    int64_t stride;
    int32_t dtype;
} operand;

static operand operand_of(const rssm_decode_args *args, int32_t role)
{
    const DLTensor *t = given(args, role);
    return t ? (operand){data_of(t), row_stride(t), float_type_of(t->dtype)} : (operand){0};
}

/* The part of a packed row from an element on. */
static operand part_of(operand packed, int64_t from)
{
    packed.data = packed.data ? (char *)packed.data + from * dtype_bytes(packed.dtype) : NULL;
    return packed;
}

/* One decode call. */
typedef struct step {
    rssm_plugin *p;
    const rssm_decode_args *args;
    operand q, k, v, a, b, A_log, dt_bias, out, state, d_cache, k_cache, g_cache;
    int64_t slots;
    double scale, lower_bound;
    bool bounded;
} step;

static step step_of(rssm_plugin *p, const rssm_decode_args *args)
{
    step s = {.p = p, .args = args, .slots = given(args, RSSM_T_STATE)->shape[0], .bounded = is_bounded(p, args)};
    const operand packed = operand_of(args, RSSM_T_MIXED_QKV);
    s.q = packed.data ? packed : operand_of(args, RSSM_T_Q);
    s.k = packed.data ? part_of(packed, p->sizes.of[HK]) : operand_of(args, RSSM_T_K);
    s.v = packed.data ? part_of(packed, 2 * p->sizes.of[HK]) : operand_of(args, RSSM_T_V);
    s.a = operand_of(args, RSSM_T_A);
    s.b = operand_of(args, RSSM_T_B);
    s.A_log = operand_of(args, RSSM_T_A_LOG);
    s.dt_bias = operand_of(args, RSSM_T_DT_BIAS);
    s.out = operand_of(args, RSSM_T_OUT);
    s.state = operand_of(args, RSSM_T_STATE);
    s.d_cache = operand_of(args, RSSM_T_D_CACHE);
    s.k_cache = operand_of(args, RSSM_T_K_CACHE);
    s.g_cache = operand_of(args, RSSM_T_G_CACHE);
    s.scale = args->has_scale ? args->scale : p->d.scale;
    s.lower_bound = args->has_lower_bound ? args->lower_bound : p->d.lower_bound;
    return s;
}

/* Where a row stands. */
typedef struct cursor {
    int64_t slot, base, count; /* slot -1: padding */
    bool flush;
} cursor;

/* Of row b: from rows, or from the host's own arrays. Values are data: what is out of range makes the row padding, and a
 * cursor out of range also marks the fault word. */
static cursor cursor_of(const step *s, int64_t b)
{
    const rssm_plugin *p = s->p;
    const DLTensor *rows = given(s->args, RSSM_T_ROWS), *indices = given(s->args, RSSM_T_STATE_INDICES);
    const DLTensor *force = given(s->args, RSSM_T_FORCE_FLUSH);
    cursor c = {0};
    c.slot = rows ? row_at(rows, b)[0] : indices ? index_at(indices, b) : b;
    if (is_padding(p, c.slot, s->slots))
        return (cursor){.slot = -1};
    c.base = rows ? row_at(rows, b)[1] : 0;
    c.count = rows ? row_at(rows, b)[2] : index_at(given(s->args, RSSM_T_WRITE_POS), b);
    c.flush = rows ? row_at(rows, b)[3] != 0 : c.count >= p->d.ring_length - 1 || (force && index_at(force, b) != 0);
    const int64_t most = most_records(p) - !c.flush; /* a row that does not flush needs room for its own */
    if (c.count >= 0 && c.count <= most && c.base >= 0 && c.base < p->d.ring_rows)
        return c;
    s->p->fault |= RSSM_FAULT_CURSOR;
    return (cursor){.slot = -1};
}

/* One value head of one row; the arrays are the instance's scratch. */
typedef struct head {
    const step *s;
    cursor at;
    int64_t b, hv, h;
    double *q, *k, *g;   /* [K] */
    double *sum, *decay; /* [K] sums of gates from a record on, and their exponentials */
    double *w;           /* [count][K] keys of the records as this token sees them */
    double *qw, *kw;     /* [count] their products with q and k */
    double *d;           /* [V] */
    double kq, beta;
} head;

static head head_of(const step *s, cursor at, int64_t b, int64_t hv)
{
    const rssm_description *d = &s->p->d;
    double *scratch = s->p->scratch;
    head t = {.s = s, .at = at, .b = b, .hv = hv};
    t.h = hv / (d->HV / d->H); /* grouped: neighbours share a key head */
    t.q = scratch;
    t.k = t.q + d->K;
    t.g = t.k + d->K;
    t.sum = t.g + d->K;
    t.decay = t.sum + d->K;
    t.w = t.decay + d->K;
    t.qw = t.w + (int64_t)d->ring_length * d->K;
    t.kw = t.qw + d->ring_length;
    t.d = t.kw + d->ring_length;
    return t;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x)); /* log(1 + exp(x)) is 0 below -16.6 */
}

/* q or k of the head: x / sqrt(sum x^2 + 1e-6) where the model normalises, times scale. */
static void read_vector(const head *t, const operand *from, double scale, double *x)
{
    const int64_t n = t->s->p->d.K;
    double squares = 0;
    for (int64_t i = 0; i < n; i++) {
        x[i] = load(from->dtype, from->data, t->b * from->stride + t->h * n + i);
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < n; i++)
        x[i] *= t->s->p->d.qk_norm ? scale / sqrt(squares + t->s->p->d.norm_eps) : scale;
}

static void read_token(head *t)
{
    const step *s = t->s;
    const int64_t n = s->p->d.K;
    read_vector(t, &s->q, s->scale, t->q);
    read_vector(t, &s->k, 1, t->k);
    const double rate = s->A_log.data ? exp(load(s->A_log.dtype, s->A_log.data, t->hv)) : 1;
    t->kq = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = load(s->a.dtype, s->a.data, t->b * s->a.stride + t->hv * n + i) +
                         load(s->dt_bias.dtype, s->dt_bias.data, t->hv * n + i);
        t->g[i] = (double)(float)(s->bounded ? s->lower_bound * sigmoid(rate * x) : -rate * softplus(x));
        t->kq += t->k[i] * t->q[i];
    }
    /* never rounded to the inputs' type */
    t->beta = s->p->d.beta_scale * sigmoid(load(s->b.dtype, s->b.data, t->b * s->b.stride + t->hv));
}

/* Element 0 of record j in a ring tensor [slots, heads, R, width]. */
static int64_t record(const head *t, const operand *ring, int64_t head_index, int64_t width, int64_t j)
{
    const int64_t row = (t->at.base + j) % t->s->p->d.ring_rows;
    return t->at.slot * ring->stride + (head_index * t->s->p->d.ring_rows + row) * width;
}

/* From the newest record to the oldest, so that the gates after each are a running sum (G - G_j as a suffix sum). */
static void read_records(head *t)
{
    const step *s = t->s;
    const int64_t n = s->p->d.K;
    memcpy(t->sum, t->g, (size_t)n * sizeof(double));
    for (int64_t j = t->at.count - 1; j >= 0; j--) {
        const int64_t k = record(t, &s->k_cache, t->h, n, j), g = record(t, &s->g_cache, t->hv, n, j);
        t->qw[j] = t->kw[j] = 0;
        for (int64_t i = 0; i < n; i++) {
            const double w = load(s->k_cache.dtype, s->k_cache.data, k + i) * exp(t->sum[i]);
            t->w[j * n + i] = w;
            t->qw[j] += w * t->q[i];
            t->kw[j] += w * t->k[i];
            t->sum[i] += load(RSSM_DTYPE_FLOAT32, s->g_cache.data, g + i);
        }
    }
    for (int64_t i = 0; i < n; i++)
        t->decay[i] = exp(t->sum[i]);
}

static double read_d(const head *t, int64_t j, int64_t v)
{
    const operand *ring = &t->s->d_cache;
    return load(ring->dtype, ring->data, record(t, ring, t->hv, t->s->p->d.V, j) + v);
}

static int64_t state_row(const head *t, int64_t v)
{
    return t->at.slot * t->s->state.stride + (t->hv * t->s->p->d.V + v) * t->s->p->d.K;
}

/* S k and S q of the decayed state before the token, from checkpoint and records; then d, and the output with d unrounded. */
static void read_out(head *t, int64_t v)
{
    const step *s = t->s;
    double sq = 0, sk = 0;
    for (int64_t i = 0; i < s->p->d.K; i++) {
        const double x = load(s->state.dtype, s->state.data, state_row(t, v) + i) * t->decay[i];
        sq += x * t->q[i];
        sk += x * t->k[i];
    }
    for (int64_t j = 0; j < t->at.count; j++) {
        sq += read_d(t, j, v) * t->qw[j];
        sk += read_d(t, j, v) * t->kw[j];
    }
    const int64_t at = t->hv * s->p->d.V + v;
    t->d[v] = t->beta * (load(s->v.dtype, s->v.data, t->b * s->v.stride + at) - sk);
    store(s->out.dtype, s->out.data, t->b * s->out.stride + at, sq + t->d[v] * t->kq, RSSM_FAULT_OUTPUT, &s->p->fault);
}

/* A flush: S[v] <- S[v] decay + sum of d_j w_j + d k^T, with the token's d and k rounded as a record's. */
static void fold(const head *t, int64_t v)
{
    const step *s = t->s;
    const int32_t ring = s->p->d.ring_dtype;
    const double d = round_to(ring, t->d[v], RSSM_FAULT_RING, &s->p->fault);
    for (int64_t i = 0; i < s->p->d.K; i++) {
        double x = load(s->state.dtype, s->state.data, state_row(t, v) + i) * t->decay[i];
        for (int64_t j = 0; j < t->at.count; j++)
            x += read_d(t, j, v) * t->w[j * s->p->d.K + i];
        x += d * round_to(ring, t->k[i], RSSM_FAULT_RING, &s->p->fault);
        store(s->state.dtype, s->state.data, state_row(t, v) + i, x, RSSM_FAULT_STATE, &s->p->fault);
    }
}

/* The token's record goes behind the last one. The first value head of a group writes the key that they share. */
static void append(const head *t)
{
    const step *s = t->s;
    const rssm_description *m = &s->p->d;
    const int64_t count = t->at.count, d = record(t, &s->d_cache, t->hv, m->V, count);
    const int64_t k = record(t, &s->k_cache, t->h, m->K, count), g = record(t, &s->g_cache, t->hv, m->K, count);
    for (int64_t v = 0; v < m->V; v++)
        store(m->ring_dtype, s->d_cache.data, d + v, t->d[v], RSSM_FAULT_RING, &s->p->fault);
    for (int64_t i = 0; i < m->K; i++) {
        if (t->hv % (m->HV / m->H) == 0)
            store(m->ring_dtype, s->k_cache.data, k + i, t->k[i], RSSM_FAULT_RING, &s->p->fault);
        store(RSSM_DTYPE_FLOAT32, s->g_cache.data, g + i, t->g[i], 0, &s->p->fault);
    }
}

static void decode_head(const step *s, cursor at, int64_t b, int64_t hv)
{
    head t = head_of(s, at, b, hv);
    read_token(&t);
    read_records(&t);
    for (int64_t v = 0; v < s->p->d.V; v++)
        read_out(&t, v);
    for (int64_t v = 0; at.flush && v < s->p->d.V; v++)
        fold(&t, v);
    if (!at.flush)
        append(&t);
}

/* A padding row: zeros out, and nothing else is touched. */
static void pad_row(const step *s, int64_t b)
{
    for (int64_t i = 0; i < s->p->sizes.of[HVV]; i++)
        store(s->out.dtype, s->out.data, b * s->out.stride + i, 0, 0, &s->p->fault);
}

static rssm_status decode_step(rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    if (!p->scratch)
        return FAIL(err, RSSM_ERR_STATE, "decode before prepare");
    rssm_status status = args->flags & RSSM_SKIP_VALIDATE ? check_head(p, args, err) : check_decode(p, args, err);
    if (status)
        return status;
    const step s = step_of(p, args);
    for (int64_t b = 0; b < given(args, RSSM_T_OUT)->shape[0]; b++) {
        const cursor at = cursor_of(&s, b);
        if (at.slot < 0)
            pad_row(&s, b);
        for (int64_t hv = 0; at.slot >= 0 && hv < p->d.HV; hv++)
            decode_head(&s, at, b, hv);
    }
    return RSSM_OK;
}

/* ---- 9. The table ----------------------------------------------------------------------------------------------- */

/* What every call on an instance begins with. */
static rssm_status open_call(rssm_error *own, const rssm_error *theirs, const rssm_plugin *p)
{
    rssm_status status = open_error(own, theirs);
    if (!status && !p)
        status = FAIL(own, RSSM_ERR_ARGUMENT, "plugin is NULL");
    if (!status && p->magic != live_magic)
        status = FAIL(own, RSSM_ERR_ARGUMENT, "plugin is not a live instance (torn down?)");
    return status;
}

static rssm_status api_plugin_info(rssm_info *out, rssm_error *theirs)
{
    const rssm_info info = {.struct_size = sizeof(info),
                            .name = "replayssm-template",
                            .version = "1.0",
                            .git_revision = "unknown",
                            .families = "kda",
                            .backends = "cpu",
                            .cuda_archs = ""};
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
    if (!status)
        status = copy_out(out, &info, sizeof(info), sizeof(rssm_info), "info", &err);
    return close_error(&err, theirs, status);
}

static rssm_status make_instance(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    rssm_allocator mem = {.alloc = libc_alloc, .free = libc_free};
    rssm_status status = check_options(args, err);
    if (status)
        return status;
    if (args->allocator && (!args->allocator->alloc != !args->allocator->free ||
                            !args->allocator->device_alloc != !args->allocator->device_free))
        return FAIL(err, RSSM_ERR_ARGUMENT, "the allocator's alloc and free come together");
    if (args->allocator && args->allocator->alloc)
        mem = *args->allocator;
    rssm_plugin *p = take(&mem, sizeof(*p), 16);
    if (!p)
        return no_memory(err);
    p->magic = live_magic;
    p->mem = mem;
    p->args = *args;
    p->args.max_batch = args->max_batch ? args->max_batch : 65536;
    status = fill_instance(p, args, err);
    p->args.config_json = p->args.config_path = NULL; /* the caller's: gone when init returns */
    p->args.dims = NULL;
    p->args.allocator = NULL;
    if (status)
        free_instance(p);
    else
        *out = p;
    return status;
}

static rssm_status api_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *theirs)
{
    rssm_error err;
    rssm_init_args own;
    rssm_dims dims;
    rssm_allocator allocator;
    if (out)
        *out = NULL;
    rssm_status status = open_error(&err, theirs);
    if (!status && !out)
        status = FAIL(&err, RSSM_ERR_ARGUMENT, "the address of the plugin's pointer is NULL");
    if (!status)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_init_args), "init args", &err);
    if (!status && own.dims) {
        status = copy_in(&dims, own.dims, sizeof(dims), sizeof(rssm_dims), "dims", &err);
        own.dims = &dims;
    }
    if (!status && own.allocator) {
        status = copy_in(&allocator, own.allocator, sizeof(allocator), sizeof(rssm_allocator), "allocator", &err);
        own.allocator = &allocator;
    }
    return close_error(&err, theirs, status ? status : make_instance(&own, out, &err));
}

static rssm_status api_describe(const rssm_plugin *p, rssm_description *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_out(out, &p->d, sizeof(p->d), sizeof(rssm_description), "description", &err);
    return close_error(&err, theirs, status);
}

static rssm_status api_pool_layout(const rssm_plugin *p, rssm_layout *out, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_out(out, &p->layout, sizeof(p->layout), sizeof(rssm_layout), "layout", &err);
    return close_error(&err, theirs, status);
}

static rssm_status api_prepare(rssm_plugin *p, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    if (!status && !p->scratch) {
        p->scratch = take(&p->mem, scratch_bytes(p), 16);
        status = p->scratch ? RSSM_OK : no_memory(&err);
    }
    return close_error(&err, theirs, status);
}

static rssm_status api_pool_create(rssm_plugin *p, const rssm_pool_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_pool_args own = {.struct_size = sizeof(own)};
    rssm_status status = open_call(&err, theirs, p);
    if (!status && args)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_pool_args), "pool args", &err);
    return close_error(&err, theirs, status ? status : create_pool(p, &own, &err));
}

static rssm_status api_pool_tensors(const rssm_plugin *p, int32_t layer, const DLTensor **tensors, uint32_t num_tensors,
                                    rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    return close_error(&err, theirs, status ? status : give_tensors(p, layer, tensors, num_tensors, &err));
}

static rssm_status api_reset(rssm_plugin *p, const rssm_reset_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_reset_args own;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_reset_args), "reset args", &err);
    return close_error(&err, theirs, status ? status : reset_slots(p, &own, &err));
}

static rssm_status api_step_begin(rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_step_begin_args own;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_step_begin_args), "step_begin args", &err);
    return close_error(&err, theirs, status ? status : begin_step(p, &own, &err));
}

static rssm_status api_validate(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args own;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_decode_args), "decode args", &err);
    return close_error(&err, theirs, status ? status : check_decode(p, &own, &err));
}

static rssm_status api_decode(rssm_plugin *p, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args own;
    rssm_status status = open_call(&err, theirs, p);
    if (!status)
        status = copy_in(&own, args, sizeof(own), sizeof(rssm_decode_args), "decode args", &err);
    return close_error(&err, theirs, status ? status : decode_step(p, &own, &err));
}

static rssm_status api_fault_read(rssm_plugin *p, void *stream, uint32_t *word, rssm_error *theirs)
{
    (void)stream;
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    if (!status && !word)
        status = FAIL(&err, RSSM_ERR_ARGUMENT, "word is NULL");
    if (!status && !p->scratch)
        status = FAIL(&err, RSSM_ERR_STATE, "fault.read before prepare");
    if (!status)
        *word = p->fault;
    return close_error(&err, theirs, status);
}

static rssm_status api_fault_clear(rssm_plugin *p, void *stream, rssm_error *theirs)
{
    (void)stream;
    rssm_error err;
    rssm_status status = open_call(&err, theirs, p);
    if (!status && !p->scratch)
        status = FAIL(&err, RSSM_ERR_STATE, "fault.clear before prepare");
    if (!status)
        p->fault = 0;
    return close_error(&err, theirs, status);
}

static const void *api_get_extension(const char *id)
{
    static const rssm_fault_api fault = {sizeof(fault), api_fault_read, api_fault_clear};
    return id && strcmp(id, RSSM_EXT_FAULT) == 0 ? &fault : NULL;
}

/* NULL and a NULL handle are fine; the handle is nulled, so a second call is too. */
static rssm_status api_teardown(rssm_plugin **plugin, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = open_error(&err, theirs);
    if (!status && plugin && *plugin) {
        status = open_call(&err, theirs, *plugin);
        if (!status) {
            free_instance(*plugin);
            *plugin = NULL;
        }
    }
    return close_error(&err, theirs, status);
}

/* Compiled with hidden visibility, this is all that the library shows (tests/symbols.txt). */
__attribute__((visibility("default"))) const rssm_api *replayssm_get_api(uint32_t abi_major);

const rssm_api *replayssm_get_api(uint32_t abi_major)
{
    static const rssm_api api = {
        .struct_size = sizeof(api),
        .abi_major = RSSM_ABI_MAJOR,
        .abi_minor = RSSM_ABI_MINOR,
        .plugin_info = api_plugin_info,
        .init = api_init,
        .describe = api_describe,
        .pool_layout = api_pool_layout,
        .prepare = api_prepare,
        .pool_create = api_pool_create,
        .pool_tensors = api_pool_tensors,
        .reset = api_reset,
        .step_begin = api_step_begin,
        .validate = api_validate,
        .decode = api_decode,
        .get_extension = api_get_extension,
        .teardown = api_teardown,
        .status_name = status_name,
        .role_name = role_name,
    };
    return abi_major == RSSM_ABI_MAJOR ? &api : NULL;
}
