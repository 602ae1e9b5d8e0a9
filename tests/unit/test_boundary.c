/* The boundary itself: struct sizes, NULLs, flags, the order of calls, extensions, and what the plugin does to the
 * process that loads it: symbols, libraries, output, threads, forks, allocators, locale, unloading. */
#define _GNU_SOURCE
#include "harness.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ThreadSanitizer does not follow threads into a fork's child. */
#if defined(__SANITIZE_THREAD__)
#define NO_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_FORK 1
#endif
#endif
#ifndef NO_FORK
#define NO_FORK 0
#endif

/* A KDA model with numbers that have decimals. */
static const char kda_config[] =
    "{\"model_type\": \"kimi_linear\", \"dtype\": \"bfloat16\", \"num_hidden_layers\": 3, \"hidden_size\": 64,\n"
    " \"linear_attn_config\": {\"num_heads\": 4, \"head_dim\": 8, \"short_conv_kernel_size\": 4,\n"
    "  \"kda_layers\": [1, 2], \"full_attn_layers\": [3], \"gate_lower_bound\": -5.25}}";

/* ---- a whole life ----------------------------------------------------------------------------------------------- */

/* An instance with pool and one decode call through its views: what every function needs. */
typedef struct life {
    h_spec spec;
    rssm_plugin *plugin;
    h_call *call;
    h_tensor slots, rows;
    int pipe; /* to a parent */
} life;

static h_spec life_spec(int32_t family)
{
    h_spec spec = {.family = family, .H = 2, .HV = 4, .K = 8, .V = 8, .L = 3, .B = 4, .S = 4, .layers = 2};
    spec.num_slots = 4;
    return h_defaults(spec);
}

static void must(rssm_status status, const rssm_error *err, const char *what)
{
    ck_assert_msg(status == RSSM_OK, "%s: %s: %s", what, h_api()->status_name(status), err->message);
}

/* An instance that nothing was asked of yet. In place: the tensors point into themselves. */
static void life_plan(life *l, const h_spec *spec)
{
    *l = (life){.spec = *spec, .plugin = h_init(spec), .call = h_call_new(spec, 5)};
    const int64_t shape[] = {spec->B, RSSM_ROW_WIDTH};
    h_tensor_make(&l->slots, h_int_type(32), 1, shape, 0);
    h_tensor_make(&l->rows, h_int_type(32), 2, shape, 0);
    for (int64_t b = 0; b < spec->B; b++)
        h_set(&l->slots.t, b, 0, 0, 0, (double)b);
    l->call->roles[RSSM_T_ROWS] = &l->rows.t;
}

static void life_begin(life *l, const h_spec *spec)
{
    life_plan(l, spec);
    rssm_error err = h_error();
    must(h_api()->prepare(l->plugin, &err), &err, "prepare");
    must(h_api()->pool_create(l->plugin, NULL, &err), &err, "pool_create");
    must(h_api()->pool_tensors(l->plugin, 0, l->call->roles, RSSM_T_COUNT, &err), &err, "pool_tensors");
    rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &l->slots.t, .rows_out = &l->rows.t};
    must(h_api()->step_begin(l->plugin, &begin, &err), &err, "step_begin");
}

static void life_end(life *l)
{
    h_tensor_free(&l->slots);
    h_tensor_free(&l->rows);
    h_call_free(l->call);
    h_teardown(&l->plugin);
}

/* Hash of the outputs of some steps over all layers, from any state of the pool. Asserts nothing: runs in threads and
 * forked children too. 0 = a call failed. */
static uint64_t run_steps(const rssm_api *api, rssm_plugin *plugin, h_call *call, h_tensor *slots, h_tensor *rows,
                          int steps)
{
    uint64_t hash = 1469598103934665603u;
    rssm_reset_args reset = {.struct_size = sizeof(reset)};
    if (api->reset(plugin, &reset, NULL))
        return 0;
    for (int step = 0; step < steps; step++) {
        rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &slots->t, .rows_out = &rows->t};
        if (api->step_begin(plugin, &begin, NULL))
            return 0;
        for (int32_t layer = 0; layer < call->spec.layers; layer++) {
            call->args.layer = layer;
            if (api->pool_tensors(plugin, layer, call->roles, RSSM_T_COUNT, NULL) ||
                api->decode(plugin, &call->args, NULL))
                return 0;
            const h_tensor *out = &call->tensors[RSSM_T_OUT];
            for (size_t i = 0; i < out->bytes; i++)
                hash = (hash ^ ((const unsigned char *)out->t.data)[i]) * 1099511628211u;
        }
    }
    return hash;
}

static uint64_t run_life(life *l, int steps)
{
    return run_steps(h_api(), l->plugin, l->call, &l->slots, &l->rows, steps);
}

/* ---- struct sizes ----------------------------------------------------------------------------------------------- */

enum { ROOM = 256 };

/* A struct that a caller hands in: how to fill it, and the call that reads it. */
typedef struct in_struct {
    const char *name;
    size_t size; /* of ABI 1.0 */
    void (*fill)(life *l, void *args);
    rssm_status (*call)(life *l, void *args, rssm_error *err);
} in_struct;

static rssm_dims dims_of_life;

static void fill_init(life *l, void *args)
{
    dims_of_life = h_dims(&l->spec);
    rssm_init_args init = h_init_args(&l->spec, &dims_of_life);
    memcpy(args, &init, sizeof(init));
}

static rssm_status init_and_drop(const rssm_init_args *args, rssm_error *err)
{
    rssm_plugin *plugin = (rssm_plugin *)(uintptr_t)1;
    rssm_status status = h_api()->init(args, &plugin, err);
    ck_assert_msg(!status == (plugin != NULL), "init leaves %p with status %d", (void *)plugin, status);
    if (!status)
        h_teardown(&plugin);
    return status;
}

static rssm_status call_init(life *l, void *args, rssm_error *err)
{
    (void)l;
    return init_and_drop(args, err);
}

static void fill_dims(life *l, void *args)
{
    rssm_dims dims = h_dims(&l->spec);
    memcpy(args, &dims, sizeof(dims));
}

static rssm_status call_dims(life *l, void *args, rssm_error *err)
{
    rssm_init_args init = h_init_args(&l->spec, args);
    return init_and_drop(&init, err);
}

static void *plain_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    (void)user;
    alignment = alignment < 16 ? 16 : alignment;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void plain_free(void *user, void *memory, uint64_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

static void fill_allocator(life *l, void *args)
{
    (void)l;
    rssm_allocator allocator = {.struct_size = sizeof(allocator), .alloc = plain_alloc, .free = plain_free};
    memcpy(args, &allocator, sizeof(allocator));
}

static rssm_status call_allocator(life *l, void *args, rssm_error *err)
{
    dims_of_life = h_dims(&l->spec);
    rssm_init_args init = h_init_args(&l->spec, &dims_of_life);
    init.allocator = args;
    return init_and_drop(&init, err);
}

static void fill_pool(life *l, void *args)
{
    (void)l;
    rssm_pool_args pool = {.struct_size = sizeof(pool)};
    memcpy(args, &pool, sizeof(pool));
}

static rssm_status call_pool(life *l, void *args, rssm_error *err)
{
    rssm_plugin *plugin = h_init(&l->spec);
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    rssm_status status = h_api()->pool_create(plugin, args, err);
    h_teardown(&plugin);
    return status;
}

static void fill_reset(life *l, void *args)
{
    (void)l;
    rssm_reset_args reset = {.struct_size = sizeof(reset)};
    memcpy(args, &reset, sizeof(reset));
}

static rssm_status call_reset(life *l, void *args, rssm_error *err)
{
    return h_api()->reset(l->plugin, args, err);
}

static void fill_begin(life *l, void *args)
{
    rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &l->slots.t, .rows_out = &l->rows.t};
    memcpy(args, &begin, sizeof(begin));
}

static rssm_status call_begin(life *l, void *args, rssm_error *err)
{
    return h_api()->step_begin(l->plugin, args, err);
}

static void fill_decode(life *l, void *args)
{
    memcpy(args, &l->call->args, sizeof(l->call->args));
}

static rssm_status call_validate(life *l, void *args, rssm_error *err)
{
    return h_api()->validate(l->plugin, args, err);
}

static rssm_status call_decode(life *l, void *args, rssm_error *err)
{
    return h_api()->decode(l->plugin, args, err);
}

static const in_struct in_structs[] = {
    {"rssm_init_args", sizeof(rssm_init_args), fill_init, call_init},
    {"rssm_dims", sizeof(rssm_dims), fill_dims, call_dims},
    {"rssm_allocator", sizeof(rssm_allocator), fill_allocator, call_allocator},
    {"rssm_pool_args", sizeof(rssm_pool_args), fill_pool, call_pool},
    {"rssm_reset_args", sizeof(rssm_reset_args), fill_reset, call_reset},
    {"rssm_step_begin_args", sizeof(rssm_step_begin_args), fill_begin, call_begin},
    {"rssm_decode_args of validate", sizeof(rssm_decode_args), fill_decode, call_validate},
    {"rssm_decode_args of decode", sizeof(rssm_decode_args), fill_decode, call_decode},
};

START_TEST(test_in_struct)
{
    const in_struct *s = &in_structs[_i];
    h_spec spec = life_spec(h_family(RSSM_FAMILY_KDA));
    life l;
    life_begin(&l, &spec);
    const struct {
        const char *name;
        uint64_t size;
        size_t dirty; /* this byte is not zero; 0 = none */
        rssm_status status;
    } tries[] = {
        {"exact", s->size, 0, RSSM_OK},
        {"0", 0, 0, RSSM_ERR_STRUCT_SIZE},
        {"1", 1, 0, RSSM_ERR_STRUCT_SIZE},
        {"the size field alone", 8, 0, RSSM_ERR_STRUCT_SIZE},
        {"one short", s->size - 1, 0, RSSM_ERR_STRUCT_SIZE},
        {"one longer", s->size + 1, 0, RSSM_OK},
        {"longer", s->size + 64, 0, RSSM_OK},
        {"longer, first new byte set", s->size + 64, s->size, RSSM_ERR_STRUCT_SIZE},
        {"longer, last byte set", s->size + 64, s->size + 63, RSSM_ERR_STRUCT_SIZE},
        {"exact, garbage behind", s->size, s->size, RSSM_OK},
        {"absurd", UINT64_MAX, 0, RSSM_ERR_STRUCT_SIZE},
        {"a pointer for a size", (uint64_t)(uintptr_t)s, 0, RSSM_ERR_STRUCT_SIZE},
    };
    for (int i = 0; i < COUNT(tries); i++) {
        union {
            uint64_t align;
            unsigned char bytes[sizeof(rssm_init_args) + ROOM];
        } args = {0}, before;
        s->fill(&l, args.bytes);
        memcpy(args.bytes, &tries[i].size, sizeof(uint64_t));
        if (tries[i].dirty)
            args.bytes[tries[i].dirty] = 1;
        before = args;
        rssm_error err = h_error();
        rssm_status status = s->call(&l, args.bytes, &err);
        ck_assert_msg(status == tries[i].status, "%s, %s: %s: %s", s->name, tries[i].name, h_api()->status_name(status),
                      err.message);
        ck_assert_msg(err.status == status && !err.message[0] == !status, "%s, %s: err says %d \"%s\"", s->name,
                      tries[i].name, err.status, err.message);
        ck_assert_msg(status == RSSM_OK || strstr(err.message, "struct_size") || strstr(err.message, "newer"),
                      "%s, %s: %s", s->name, tries[i].name, err.message);
        ck_assert_msg(memcmp(&before, &args, sizeof(args)) == 0, "%s, %s: the caller's struct changed", s->name,
                      tries[i].name);
        ck_assert_int_eq(s->call(&l, args.bytes, NULL), tries[i].status);
    }
    life_end(&l);
}
END_TEST

/* A struct that the plugin fills. */
typedef struct out_struct {
    const char *name;
    size_t size;
    rssm_status (*call)(life *l, void *out, rssm_error *err);
} out_struct;

static rssm_status call_info(life *l, void *out, rssm_error *err)
{
    (void)l;
    return h_api()->plugin_info(out, err);
}

static rssm_status call_describe(life *l, void *out, rssm_error *err)
{
    return h_api()->describe(l->plugin, out, err);
}

static rssm_status call_layout(life *l, void *out, rssm_error *err)
{
    return h_api()->pool_layout(l->plugin, out, err);
}

static const out_struct out_structs[] = {
    {"rssm_info", sizeof(rssm_info), call_info},
    {"rssm_description", sizeof(rssm_description), call_describe},
    {"rssm_layout", sizeof(rssm_layout), call_layout},
};

START_TEST(test_out_struct)
{
    const out_struct *s = &out_structs[_i];
    h_spec spec = life_spec(h_family(RSSM_FAMILY_MAMBA2));
    life l;
    life_begin(&l, &spec);
    union {
        uint64_t size;
        unsigned char bytes[sizeof(rssm_description) + ROOM];
    } out, reference;
    memset(&reference, 0, sizeof(reference));
    reference.size = s->size;
    ck_assert_int_eq(s->call(&l, reference.bytes, NULL), RSSM_OK);
    const struct {
        uint64_t size;
        rssm_status status;
    } tries[] = {
        {0, RSSM_ERR_STRUCT_SIZE}, {8, RSSM_ERR_STRUCT_SIZE}, {s->size - 1, RSSM_ERR_STRUCT_SIZE}, {s->size, RSSM_OK},
        {s->size + 1, RSSM_OK},    {s->size + 128, RSSM_OK},  {UINT64_MAX, RSSM_ERR_STRUCT_SIZE}};
    for (int i = 0; i < COUNT(tries); i++) {
        memset(&out, 0x5A, sizeof(out));
        out.size = tries[i].size;
        rssm_error err = h_error();
        rssm_status status = s->call(&l, out.bytes, &err);
        ck_assert_msg(status == tries[i].status, "%s of %llu: %s", s->name, (unsigned long long)tries[i].size,
                      err.message);
        ck_assert_msg(out.size == tries[i].size, "%s: struct_size is the caller's", s->name);
        if (status == RSSM_OK)
            ck_assert_msg(memcmp(out.bytes + 8, reference.bytes + 8, s->size - 8) == 0, "%s: other contents", s->name);
        size_t from = status ? 8 : tries[i].size; /* behind what the caller has, nothing is his */
        for (size_t k = from; k < sizeof(out); k++)
            ck_assert_msg(out.bytes[k] == 0x5A, "%s of %llu: byte %u written", s->name,
                          (unsigned long long)tries[i].size, (unsigned)k);
    }
    life_end(&l);
}
END_TEST

/* Every function's err: NULL, of the 1.0 size, longer, too short. The plugin is torn down: each call fails. */
typedef struct err_call {
    const char *name;
    rssm_status (*call)(life *l, rssm_error *err);
    rssm_status status; /* when err is fine */
} err_call;

static rssm_status err_info(life *l, rssm_error *err)
{
    (void)l;
    return h_api()->plugin_info(NULL, err);
}
static rssm_status err_init(life *l, rssm_error *err)
{
    (void)l;
    rssm_plugin *plugin = (rssm_plugin *)(uintptr_t)1;
    rssm_status status = h_api()->init(NULL, &plugin, err);
    ck_assert_msg(plugin == NULL, "*out is NULL on failure (status %s)", h_api()->status_name(status));
    return status;
}
static rssm_status err_describe(life *l, rssm_error *err)
{
    return h_api()->describe(l->plugin, NULL, err);
}
static rssm_status err_layout(life *l, rssm_error *err)
{
    return h_api()->pool_layout(l->plugin, NULL, err);
}
static rssm_status err_prepare(life *l, rssm_error *err)
{
    (void)l;
    return h_api()->prepare(NULL, err);
}
static rssm_status err_pool(life *l, rssm_error *err)
{
    return h_api()->pool_create(l->plugin, NULL, err);
}
static rssm_status err_tensors(life *l, rssm_error *err)
{
    return h_api()->pool_tensors(l->plugin, 0, NULL, RSSM_T_COUNT, err);
}
static rssm_status err_reset(life *l, rssm_error *err)
{
    return h_api()->reset(l->plugin, NULL, err);
}
static rssm_status err_begin(life *l, rssm_error *err)
{
    return h_api()->step_begin(l->plugin, NULL, err);
}
static rssm_status err_validate(life *l, rssm_error *err)
{
    return h_api()->validate(l->plugin, NULL, err);
}
static rssm_status err_decode(life *l, rssm_error *err)
{
    return h_api()->decode(l->plugin, NULL, err);
}
/* The rest of a test that needs it is skipped where the plugin has none. */
static const rssm_fault_api *fault_api(void)
{
    const rssm_fault_api *api = h_api()->get_extension(RSSM_EXT_FAULT);
    if (!api)
        h_skip("the plugin has no " RSSM_EXT_FAULT);
    return api;
}
static rssm_status err_fault_read(life *l, rssm_error *err)
{
    return fault_api()->read(l->plugin, NULL, NULL, err);
}
static rssm_status err_fault_clear(life *l, rssm_error *err)
{
    (void)l;
    return fault_api()->clear(NULL, NULL, err);
}
static rssm_status err_slots_flush(life *l, rssm_error *err)
{
    const rssm_slots_api *api = h_api()->get_extension(RSSM_EXT_SLOTS);
    if (!api)
        h_skip("the plugin has no " RSSM_EXT_SLOTS);
    return api->flush(l->plugin, NULL, err);
}

static const err_call err_calls[] = {
    {"plugin_info", err_info, RSSM_ERR_ARGUMENT},        {"init", err_init, RSSM_ERR_ARGUMENT},
    {"describe", err_describe, RSSM_ERR_ARGUMENT},       {"pool_layout", err_layout, RSSM_ERR_ARGUMENT},
    {"prepare", err_prepare, RSSM_ERR_ARGUMENT},         {"pool_create", err_pool, RSSM_ERR_STATE},
    {"pool_tensors", err_tensors, RSSM_ERR_ARGUMENT},    {"reset", err_reset, RSSM_ERR_ARGUMENT},
    {"step_begin", err_begin, RSSM_ERR_ARGUMENT},        {"validate", err_validate, RSSM_ERR_ARGUMENT},
    {"decode", err_decode, RSSM_ERR_ARGUMENT},           {"fault.read", err_fault_read, RSSM_ERR_ARGUMENT},
    {"fault.clear", err_fault_clear, RSSM_ERR_ARGUMENT}, {"slots.flush", err_slots_flush, RSSM_ERR_ARGUMENT},
};

START_TEST(test_err)
{
    const err_call *c = &err_calls[_i];
    h_spec spec = life_spec(h_family(RSSM_FAMILY_GDN));
    life l;
    life_begin(&l, &spec);
    union {
        rssm_error err;
        unsigned char bytes[sizeof(rssm_error) + ROOM];
    } u, before;
    ck_assert_msg(c->call(&l, NULL) == c->status, "%s without err", c->name);
    const uint64_t sizes[] = {
        0, 8, sizeof(rssm_error) - 1, sizeof(rssm_error), sizeof(rssm_error) + 1, sizeof(rssm_error) + ROOM};
    for (int i = 0; i < COUNT(sizes); i++) {
        memset(&u, 0x5A, sizeof(u));
        u.err.struct_size = sizes[i];
        before = u;
        rssm_status status = c->call(&l, &u.err);
        if (sizes[i] < sizeof(rssm_error)) {
            ck_assert_msg(status == RSSM_ERR_STRUCT_SIZE, "%s, err of %d: %s", c->name, (int)sizes[i],
                          h_api()->status_name(status));
            ck_assert_msg(memcmp(&u, &before, sizeof(u)) == 0, "%s: a short err was written", c->name);
            continue;
        }
        ck_assert_msg(status == c->status && u.err.status == status, "%s: %s", c->name, h_api()->status_name(status));
        ck_assert_msg(u.err.struct_size == sizes[i], "%s: err.struct_size is the caller's", c->name);
        ck_assert_msg(u.err.role == RSSM_T_NONE && u.err.dim == -1 && u.err.cuda_error == 0, "%s", c->name);
        ck_assert_msg(memchr(u.err.message, 0, sizeof(u.err.message)) && strlen(u.err.message) > 4, "%s: no message",
                      c->name);
        for (size_t k = sizeof(rssm_error); k < sizeof(u); k++)
            ck_assert_msg(u.bytes[k] == 0x5A, "%s: written behind err", c->name);
    }
    life_end(&l);
}
END_TEST

/* A short err refuses the call as a whole, also one that would have succeeded. */
START_TEST(test_short_err_refuses)
{
    h_spec spec = life_spec(h_family(RSSM_FAMILY_GDN));
    life l;
    life_begin(&l, &spec);
    rssm_error err = {.struct_size = 16};
    rssm_plugin *before = l.plugin;
    ck_assert_int_eq(h_api()->teardown(&l.plugin, &err), RSSM_ERR_STRUCT_SIZE);
    ck_assert_ptr_eq(l.plugin, before);
    int32_t rows[32];
    memcpy(rows, l.rows.t.data, sizeof(rows));
    rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &l.slots.t, .rows_out = &l.rows.t};
    ck_assert_int_eq(h_api()->step_begin(l.plugin, &begin, &err), RSSM_ERR_STRUCT_SIZE);
    ck_assert(memcmp(rows, l.rows.t.data, sizeof(rows)) == 0);
    life_end(&l);
}
END_TEST

static bool whole_utf8(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int more = *c < 0x80 ? 0 : *c >= 0xF0 ? 3 : *c >= 0xE0 ? 2 : *c >= 0xC0 ? 1 : -1;
        if (more < 0)
            return false;
        for (c++; more > 0; more--, c++)
            if ((*c & 0xC0) != 0x80)
                return false;
    }
    return true;
}

/* Text from outside that does not fit is cut between characters and stays one line. */
START_TEST(test_long_message)
{
    static const char *const units[] = {"a", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x8D\x8C", "\n", "\x1B[31m", "%s%n"};
    const char *unit = units[_i % COUNT(units)];
    int shift = _i / COUNT(units);
    char path[4096] = "";
    for (int i = 0; i < shift; i++)
        strcat(path, "x");
    while (strlen(path) + strlen(unit) < 3000)
        strcat(path, unit);
    rssm_init_args args = {.struct_size = sizeof(args), .config_path = path};
    rssm_plugin *plugin = NULL;
    union {
        rssm_error err;
        unsigned char bytes[sizeof(rssm_error) + 64];
    } u;
    memset(&u, 0x5A, sizeof(u));
    u.err.struct_size = sizeof(u.err);
    ck_assert_int_eq(h_api()->init(&args, &plugin, &u.err), RSSM_ERR_IO);
    ck_assert_ptr_nonnull(memchr(u.err.message, 0, sizeof(u.err.message)));
    ck_assert_msg(strlen(u.err.message) > 100, "%s", u.err.message);
    ck_assert_msg(whole_utf8(u.err.message), "cut within a character: %s", u.err.message);
    for (const char *c = u.err.message; *c; c++)
        ck_assert_msg((unsigned char)*c >= 0x20, "a control character in the message");
    for (size_t k = sizeof(rssm_error); k < sizeof(u); k++)
        ck_assert_msg(u.bytes[k] == 0x5A, "written behind err");
}
END_TEST

/* ---- NULL for every pointer ------------------------------------------------------------------------------------- */

#define REFUSED(call, wanted, text)                                                                     \
    do {                                                                                                \
        rssm_error err = h_error();                                                                     \
        rssm_error *e = &err;                                                                           \
        rssm_status status = (call);                                                                    \
        ck_assert_msg(status == (wanted), #call ": %s: %s", h_api()->status_name(status), err.message); \
        ck_assert_msg(strstr(err.message, text) != NULL, #call ": %s", err.message);                    \
        e = NULL;                                                                                       \
        ck_assert_msg((call) == (wanted), #call ", err NULL");                                          \
    } while (0)

START_TEST(test_null_plugin)
{
    const rssm_api *api = h_api();
    const DLTensor *tensors[RSSM_T_COUNT] = {0};
    rssm_description description = {.struct_size = sizeof(description)};
    rssm_layout layout = {.struct_size = sizeof(layout)};
    rssm_reset_args reset = {.struct_size = sizeof(reset)};
    rssm_step_begin_args begin = {.struct_size = sizeof(begin)};
    rssm_decode_args decode = {.struct_size = sizeof(decode)};
    uint32_t word = 0;
    REFUSED(api->describe(NULL, &description, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->pool_layout(NULL, &layout, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->prepare(NULL, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->pool_create(NULL, NULL, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->pool_tensors(NULL, 0, tensors, RSSM_T_COUNT, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->reset(NULL, &reset, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->step_begin(NULL, &begin, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->validate(NULL, &decode, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(api->decode(NULL, &decode, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(fault_api()->read(NULL, NULL, &word, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    REFUSED(fault_api()->clear(NULL, NULL, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    ck_assert_int_eq(description.family, 0);
    ck_assert_int_eq(layout.num_tensors, 0);
}
END_TEST

START_TEST(test_null_arguments)
{
    const rssm_api *api = h_api();
    h_spec spec = life_spec(h_family(RSSM_FAMILY_KDA));
    life l;
    life_begin(&l, &spec);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args init = h_init_args(&spec, &dims);
    rssm_plugin *other = NULL;
    REFUSED(api->plugin_info(NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->init(NULL, &other, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->init(&init, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->describe(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->pool_layout(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->pool_tensors(l.plugin, 0, NULL, RSSM_T_COUNT, e), RSSM_ERR_ARGUMENT, "tensors");
    REFUSED(api->reset(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->step_begin(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->validate(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(api->decode(l.plugin, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    REFUSED(fault_api()->read(l.plugin, NULL, NULL, e), RSSM_ERR_ARGUMENT, "NULL");
    rssm_step_begin_args begin = {.struct_size = sizeof(begin)};
    REFUSED(api->step_begin(l.plugin, &begin, e), RSSM_ERR_MISSING, "`slots`");
    rssm_decode_args decode = {.struct_size = sizeof(decode), .num_tensors = RSSM_T_COUNT};
    REFUSED(api->decode(l.plugin, &decode, e), RSSM_ERR_ARGUMENT, "tensors");
    ck_assert_ptr_null(other);
    life_end(&l);
}
END_TEST

/* ---- options of init -------------------------------------------------------------------------------------------- */

static rssm_init_args plain_args(void)
{
    h_spec spec = life_spec(h_family(RSSM_FAMILY_KDA));
    dims_of_life = h_dims(&spec);
    return h_init_args(&spec, &dims_of_life);
}

typedef struct bad_option {
    const char *text; /* in the message */
    size_t offset;
    int32_t value;
    rssm_status status;
} bad_option;

#define OPTION(field, value, status)                           \
    {                                                          \
#field, offsetof(rssm_init_args, field), value, status \
    }

static const bad_option bad_options[] = {
    OPTION(device_type, 3, RSSM_ERR_ARGUMENT),  OPTION(device_type, -1, RSSM_ERR_ARGUMENT),
    OPTION(device_type, 10, RSSM_ERR_ARGUMENT), OPTION(device_id, -1, RSSM_ERR_ARGUMENT),
    OPTION(io_dtype, 4, RSSM_ERR_ARGUMENT),     OPTION(io_dtype, -1, RSSM_ERR_ARGUMENT),
    OPTION(state_dtype, 4, RSSM_ERR_ARGUMENT),  OPTION(state_dtype, INT32_MIN, RSSM_ERR_ARGUMENT),
    OPTION(ring_dtype, 99, RSSM_ERR_ARGUMENT),  OPTION(ring_dtype, -1, RSSM_ERR_ARGUMENT),
    OPTION(max_batch, -1, RSSM_ERR_ARGUMENT),   OPTION(max_batch, 1048577, RSSM_ERR_ARGUMENT),
    OPTION(num_threads, -1, RSSM_ERR_ARGUMENT), OPTION(num_threads, 1 << 30, RSSM_ERR_ARGUMENT),
    OPTION(has_pad_slot, 2, RSSM_ERR_ARGUMENT), OPTION(has_pad_slot, -1, RSSM_ERR_ARGUMENT),
    OPTION(cpu_level, 5, RSSM_ERR_ARGUMENT),    OPTION(cpu_level, -1, RSSM_ERR_ARGUMENT),
    OPTION(flags, 64, RSSM_ERR_ARGUMENT),       OPTION(flags, 8, RSSM_ERR_ARGUMENT),
    OPTION(flags, 1 << 30, RSSM_ERR_ARGUMENT),  OPTION(flags, INT32_MIN, RSSM_ERR_ARGUMENT),
    OPTION(tp_size, -1, RSSM_ERR_TP),           OPTION(tp_rank, 1, RSSM_ERR_TP),
    OPTION(ring_length, 65, RSSM_ERR_ARGUMENT), OPTION(max_draft_tokens, 3, RSSM_ERR_ARGUMENT),
};

START_TEST(test_bad_option)
{
    const bad_option *c = &bad_options[_i];
    rssm_init_args args = plain_args();
    memcpy((char *)&args + c->offset, &c->value, sizeof(c->value));
    rssm_error err = h_error();
    rssm_status status = init_and_drop(&args, &err);
    ck_assert_msg(status == c->status, "%s = %d: %s: %s", c->text, c->value, h_api()->status_name(status), err.message);
    ck_assert_msg(strstr(err.message, strcmp(c->text, "flags") == 0 ? "flag" : c->text) != NULL, "%s = %d: %s", c->text,
                  c->value, err.message);
}
END_TEST

START_TEST(test_model_sources)
{
    h_need_family(RSSM_FAMILY_KDA);
    rssm_init_args args = {.struct_size = sizeof(args)};
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "exactly one");
    args.config_json = kda_config;
    args.config_json_len = sizeof(kda_config) - 1;
    REFUSED(init_and_drop(&args, e), RSSM_OK, "");
    args.config_path = "/";
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "exactly one");
    args.config_json = NULL;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "config_json");
    args.config_json_len = 0;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_IO, "/");
    args.config_path = "/nowhere/config.json";
    REFUSED(init_and_drop(&args, e), RSSM_ERR_IO, "/nowhere/config.json");
    args.config_path = "";
    REFUSED(init_and_drop(&args, e), RSSM_ERR_IO, "");
    args.config_path = "/dev/null";
    REFUSED(init_and_drop(&args, e), RSSM_ERR_IO, "/dev/null");
    rssm_init_args with_dims = plain_args();
    with_dims.config_json = kda_config;
    with_dims.config_json_len = sizeof(kda_config) - 1;
    REFUSED(init_and_drop(&with_dims, e), RSSM_ERR_ARGUMENT, "exactly one");
    args.config_path = NULL;
    args.config_json = kda_config;
    args.config_json_len = 0;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "config_json_len");
    args.config_json_len = 40; /* need not be terminated: cut in the middle */
    REFUSED(init_and_drop(&args, e), RSSM_ERR_JSON, "");
    args.config_json_len = sizeof(kda_config); /* with its zero byte: trailing */
    REFUSED(init_and_drop(&args, e), RSSM_ERR_JSON, "");
    args.config_json_len = (uint64_t)1 << 62;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_JSON, "");
}
END_TEST

/* The text need not be zero-terminated, nor outlive init. */
START_TEST(test_json_is_copied)
{
    h_need_family(RSSM_FAMILY_KDA);
    size_t length = sizeof(kda_config) - 1;
    char *text = malloc(length); /* of exactly its length: a sanitizer sees one byte more */
    memcpy(text, kda_config, length);
    rssm_init_args args = {.struct_size = sizeof(args), .config_json = text, .config_json_len = length};
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    must(h_api()->init(&args, &plugin, &err), &err, "init");
    memset(text, 0xAA, length);
    free(text);
    rssm_description d = {.struct_size = sizeof(d)};
    must(h_api()->describe(plugin, &d, &err), &err, "describe");
    ck_assert_str_eq(d.model_type, "kimi_linear");
    ck_assert(d.lower_bound == -5.25);
    for (int32_t i = 0; i < d.num_read; i++)
        ck_assert(strlen(d.read[i]) > 3);
    h_teardown(&plugin);
}
END_TEST

/* A number without its flag is a host that believes in something that we would not do. */
START_TEST(test_pad_slot_without_flag)
{
    rssm_init_args args = plain_args();
    args.pad_slot = 3;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "pad_slot");
    args.has_pad_slot = 1;
    REFUSED(init_and_drop(&args, e), RSSM_OK, "");
}
END_TEST

START_TEST(test_allocator_pairs)
{
    rssm_init_args args = plain_args();
    rssm_allocator allocator = {.struct_size = sizeof(allocator), .alloc = plain_alloc};
    args.allocator = &allocator;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "alloc and free");
    allocator.alloc = NULL;
    allocator.free = plain_free;
    REFUSED(init_and_drop(&args, e), RSSM_ERR_ARGUMENT, "alloc and free");
    allocator.free = NULL; /* both absent: the C library */
    REFUSED(init_and_drop(&args, e), RSSM_OK, "");
}
END_TEST

/* A CUDA instance where this binary has no CUDA is UNSUPPORTED; where it has, init touches no device. */
START_TEST(test_cuda_device)
{
    rssm_info info = {.struct_size = sizeof(info)};
    ck_assert_int_eq(h_api()->plugin_info(&info, NULL), RSSM_OK);
    bool cuda = strstr(info.backends, "cuda") != NULL;
    rssm_init_args args = plain_args();
    args.device_type = kDLCUDA;
    rssm_error err = h_error();
    ck_assert_msg(init_and_drop(&args, &err) == (cuda ? RSSM_OK : RSSM_ERR_UNSUPPORTED), "%s", err.message);
    ck_assert(cuda || strstr(err.message, "CUDA"));
}
END_TEST

/* Our CUDA kernels' windows end at 16 tokens: one more is refused by init. */
START_TEST(test_longest_cuda_window)
{
    rssm_info info = {.struct_size = sizeof(info)};
    ck_assert_int_eq(h_api()->plugin_info(&info, NULL), RSSM_OK);
    bool cuda = strstr(info.backends, "cuda") != NULL;
    rssm_init_args args = plain_args();
    rssm_error err = h_error();
    args.device_type = kDLCUDA;
    args.ring_length = 40;
    args.max_draft_tokens = 15;
    ck_assert_msg(init_and_drop(&args, &err) == (cuda ? RSSM_OK : RSSM_ERR_UNSUPPORTED), "%s", err.message);
    args.max_draft_tokens = 16;
    ck_assert_int_eq(init_and_drop(&args, &err), RSSM_ERR_UNSUPPORTED);
    ck_assert(!cuda || strstr(err.message, "max_draft_tokens = 16"));
}
END_TEST

/* ---- order ------------------------------------------------------------------------------------------------------ */

START_TEST(test_order)
{
    const rssm_api *api = h_api();
    h_spec spec = life_spec(1 + _i);
    rssm_plugin *plugin = h_init(&spec);
    h_call *call = h_call_new(&spec, 5);
    const DLTensor *tensors[RSSM_T_COUNT] = {0};
    const int64_t shape[] = {4, 8};
    h_tensor slots, rows;
    h_tensor_make(&slots, h_int_type(32), 1, shape, 0);
    h_tensor_make(&rows, h_int_type(32), 2, shape, 0);
    h_fill(&slots.t, 0);
    rssm_reset_args reset = {.struct_size = sizeof(reset)};
    rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &slots.t, .rows_out = &rows.t};
    uint32_t word;
    REFUSED(api->validate(plugin, &call->args, e), RSSM_OK, "");
    h_snapshot before = h_snapshot_take(call);
    REFUSED(api->decode(plugin, &call->args, e), RSSM_ERR_STATE, "prepare");
    call->args.flags = RSSM_SKIP_VALIDATE;
    REFUSED(api->decode(plugin, &call->args, e), RSSM_ERR_STATE, "prepare");
    ck_assert_int_eq(h_snapshot_differs(&before, call), RSSM_T_NONE);
    h_snapshot_free(&before);
    REFUSED(api->pool_create(plugin, NULL, e), RSSM_ERR_STATE, "prepare");
    REFUSED(api->pool_tensors(plugin, 0, tensors, RSSM_T_COUNT, e), RSSM_ERR_STATE, "pool_create");
    REFUSED(api->reset(plugin, &reset, e), RSSM_ERR_STATE, "pool_create");
    REFUSED(api->step_begin(plugin, &begin, e), RSSM_ERR_STATE, "pool_create");
    REFUSED(fault_api()->read(plugin, NULL, &word, e), RSSM_ERR_STATE, "prepare");
    REFUSED(fault_api()->clear(plugin, NULL, e), RSSM_ERR_STATE, "prepare");
    REFUSED(api->prepare(plugin, e), RSSM_OK, "");
    REFUSED(api->reset(plugin, &reset, e), RSSM_ERR_STATE, "pool_create");
    REFUSED(api->step_begin(plugin, &begin, e), RSSM_ERR_STATE, "pool_create");
    call->args.flags = 0;
    REFUSED(api->decode(plugin, &call->args, e), RSSM_OK, ""); /* with tensors of the host's own: no pool needed */
    h_tensor_free(&slots);
    h_tensor_free(&rows);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Torn down at every stage, twice, and then used. */
START_TEST(test_teardown)
{
    const rssm_api *api = h_api();
    REFUSED(api->teardown(NULL, e), RSSM_OK, "");
    rssm_plugin *plugin = NULL;
    REFUSED(api->teardown(&plugin, e), RSSM_OK, "");
    h_spec spec = life_spec(h_family(RSSM_FAMILY_KDA));
    plugin = h_init(&spec);
    if (_i > 0)
        ck_assert_int_eq(api->prepare(plugin, NULL), RSSM_OK);
    if (_i > 1)
        ck_assert_int_eq(api->pool_create(plugin, NULL, NULL), RSSM_OK);
    h_teardown(&plugin);
    REFUSED(api->teardown(&plugin, e), RSSM_OK, "");
    REFUSED(api->prepare(plugin, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    rssm_decode_args args = {.struct_size = sizeof(args)};
    REFUSED(api->decode(plugin, &args, e), RSSM_ERR_ARGUMENT, "plugin is NULL");
    uint64_t zeros[512] = {0}; /* what is no instance */
    plugin = (rssm_plugin *)zeros;
    REFUSED(api->prepare(plugin, e), RSSM_ERR_ARGUMENT, "instance");
    REFUSED(api->teardown(&plugin, e), RSSM_ERR_ARGUMENT, "instance");
    ck_assert_ptr_eq(plugin, (rssm_plugin *)zeros);
}
END_TEST

/* ---- the table and its extensions ------------------------------------------------------------------------------- */

static rssm_get_api_fn get_api_of(void *library)
{
    rssm_get_api_fn get = NULL;
    *(void **)&get = dlsym(library, RSSM_GET_API_SYMBOL);
    return get;
}

START_TEST(test_get_api)
{
    h_api();
    void *library = dlopen(getenv("RSSM_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    rssm_get_api_fn get = get_api_of(library);
    ck_assert_ptr_null(get(0));
    ck_assert_ptr_null(get(2));
    ck_assert_ptr_null(get(UINT32_MAX));
    const rssm_api *api = get(1);
    ck_assert(api == h_api() || h_on_cuda()); /* then the judge has a table of its own in front */
    ck_assert_uint_eq(api->struct_size, sizeof(rssm_api));
    ck_assert_uint_eq(api->abi_major, RSSM_ABI_MAJOR);
    ck_assert_uint_eq(api->abi_minor, RSSM_ABI_MINOR);
    dlclose(library);
}
END_TEST

/* No NULL entries in any table. */
static void check_table(const void *table, size_t size, size_t first, const char *name)
{
    ck_assert_msg(table != NULL, "no %s", name);
    uint64_t given;
    memcpy(&given, table, sizeof(given));
    ck_assert_msg(given >= size, "%s: struct_size %d", name, (int)given);
    for (size_t at = first; at < size; at += sizeof(void *)) {
        void *entry;
        memcpy(&entry, (const char *)table + at, sizeof(entry));
        ck_assert_msg(entry != NULL, "%s: NULL at byte %d", name, (int)at);
    }
}

START_TEST(test_tables)
{
    const rssm_api *api = h_api();
    check_table(api, sizeof(*api), offsetof(rssm_api, plugin_info), "v1");
    static const struct {
        const char *id;
        size_t size;
    } known[] = {{RSSM_EXT_FAULT, sizeof(rssm_fault_api)},
                 {RSSM_EXT_SLOTS, sizeof(rssm_slots_api)},
                 {RSSM_EXT_VERIFY, sizeof(rssm_verify_api)},
                 {RSSM_EXT_CONV, sizeof(rssm_conv_api)}};
    for (int i = 0; i < COUNT(known); i++) {
        const void *table = api->get_extension(known[i].id);
        ck_assert_msg(table == api->get_extension(known[i].id), "%s: another table each time", known[i].id);
#ifdef RSSM_CONFORM /* extensions are optional */
        if (!table)
            continue;
#endif
        check_table(table, known[i].size, 8, known[i].id);
    }
    static const char *const unknown[] = {"",
                                          "replayssm",
                                          "replayssm.fault",
                                          "replayssm.fault/",
                                          "replayssm.fault/2",
                                          "replayssm.fault/1 ",
                                          "replayssm.fault/10",
                                          "REPLAYSSM.FAULT/1",
                                          "replayssm.nothing/1"};
    for (int i = 0; i < COUNT(unknown); i++)
        ck_assert_msg(api->get_extension(unknown[i]) == NULL, "\"%s\" is known", unknown[i]);
    ck_assert_ptr_null(api->get_extension(NULL));
}
END_TEST

/* The fault word: set by a bad cursor, sticky, cleared on demand, of one instance. */
START_TEST(test_fault_word)
{
    h_spec spec = life_spec(1 + _i);
    spec.host_pos = true;
    rssm_plugin *plugin = h_init(&spec), *other = h_init(&spec);
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->prepare(other, NULL), RSSM_OK);
    h_call *call = h_call_new(&spec, 5);
    uint32_t word = 77;
    rssm_error err = h_error();
    must(h_api()->decode(plugin, &call->args, &err), &err, "decode");
    must(fault_api()->read(plugin, NULL, &word, &err), &err, "read");
    ck_assert_uint_eq(word, 0);
    h_set(&call->tensors[RSSM_T_WRITE_POS].t, 1, 0, 0, 0, 1000);
    must(h_api()->decode(plugin, &call->args, &err), &err, "a bad cursor is data, no error");
    h_set(&call->tensors[RSSM_T_WRITE_POS].t, 1, 0, 0, 0, 0);
    must(h_api()->decode(plugin, &call->args, &err), &err, "decode");
    for (int i = 0; i < 2; i++) {
        must(fault_api()->read(plugin, NULL, &word, &err), &err, "read");
        ck_assert_uint_eq(word, RSSM_FAULT_CURSOR);
    }
    must(fault_api()->read(other, NULL, &word, &err), &err, "read");
    ck_assert_uint_eq(word, 0);
    must(fault_api()->clear(plugin, NULL, &err), &err, "clear");
    must(fault_api()->read(plugin, NULL, &word, &err), &err, "read");
    ck_assert_uint_eq(word, 0);
    h_call_free(call);
    h_teardown(&plugin);
    h_teardown(&other);
}
END_TEST

START_TEST(test_names)
{
    const rssm_api *api = h_api();
    for (int32_t status = RSSM_OK; status <= RSSM_ERR_HANDLE; status++) {
        const char *name = api->status_name(status);
        ck_assert_msg(strncmp(name, "RSSM_", 5) == 0, "status %d is \"%s\"", status, name);
        for (int32_t other = 0; other < status; other++)
            ck_assert_str_ne(name, api->status_name(other));
    }
    for (int32_t role = 1; role < RSSM_T_COUNT; role++) {
        ck_assert_msg(strlen(api->role_name(role)) > 0, "role %d", role);
        for (int32_t other = 0; other < role; other++)
            ck_assert_str_ne(api->role_name(role), api->role_name(other));
    }
    const int32_t strange[] = {-1, RSSM_T_COUNT, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(strange); i++) {
        ck_assert_ptr_nonnull(api->role_name(strange[i]));
        ck_assert_ptr_nonnull(api->status_name(strange[i]));
    }
    ck_assert_str_eq(api->role_name(RSSM_T_D_CACHE), "d_cache");
    ck_assert_str_eq(api->status_name(RSSM_ERR_SHAPE), "RSSM_ERR_SHAPE");
}
END_TEST

START_TEST(test_info)
{
    rssm_info info = {.struct_size = sizeof(info)};
    ck_assert_int_eq(h_api()->plugin_info(&info, NULL), RSSM_OK);
    ck_assert_str_eq(info.name, "replayssm");
    ck_assert_str_eq(info.families, "kda,gdn,mamba2");
    ck_assert_msg(info.version[0] >= '0' && info.version[0] <= '9', "version \"%s\"", info.version);
    ck_assert_msg(strcmp(info.backends, "cpu") == 0 || strcmp(info.backends, "cpu,cuda") == 0, "%s", info.backends);
    ck_assert(strlen(info.git_revision) > 0);
    ck_assert((strcmp(info.backends, "cpu") == 0) == (info.cuda_archs[0] == 0));
}
END_TEST

/* What plugin_info names works, and a family that it does not name is refused. */
START_TEST(test_families)
{
    const int32_t family = 1 + _i;
    h_spec spec = life_spec(family);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    rssm_error err = h_error();
    const bool has = h_has_family(family);
    rssm_status status = init_and_drop(&args, &err);
    ck_assert_msg(has ? status == RSSM_OK : status == RSSM_ERR_UNSUPPORTED || status == RSSM_ERR_MODEL,
                  "family %d, which plugin_info %s: %s: %s", family, has ? "has" : "does not have",
                  h_api()->status_name(status), err.message);
    ck_assert_msg(has || strlen(err.message) > 4, "no message");
    h_family(RSSM_FAMILY_KDA); /* whatever the answer was, something was asked */
}
END_TEST

/* ---- loading and unloading -------------------------------------------------------------------------------------- */

static int64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long long pages = 0, resident = 0;
    if (!file || fscanf(file, "%lld %lld", &pages, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static int count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static int thread_count(void)
{
    char line[256];
    int threads = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "Threads: %d", &threads) == 1)
            break;
    if (file)
        fclose(file);
    return threads;
}

/* The kernel counts a thread that was joined a moment longer. */
static void assert_threads(int want)
{
    for (int tries = 0; thread_count() != want && tries < 1000; tries++)
        usleep(1000);
    ck_assert_int_eq(thread_count(), want);
}

/* Loads the plugin, lives a whole life from a config.json text, unloads it. A fresh library each time: h_api is not
 * used. Returns the hash of the tokens. */
static uint64_t load_and_live(const h_spec *spec, h_call *call, h_tensor *slots, h_tensor *rows)
{
    void *library = dlopen(getenv("RSSM_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    const rssm_api *api = get_api_of(library)(RSSM_ABI_MAJOR);
    rssm_init_args args = {.struct_size = sizeof(args),
                           .config_json = kda_config,
                           .config_json_len = sizeof(kda_config) - 1,
                           .ring_length = spec->L,
                           .num_slots = spec->num_slots,
                           .num_threads = 2};
    rssm_plugin *plugin = NULL;
    uint64_t hash = 0;
    if (!api->init(&args, &plugin, NULL) && !api->prepare(plugin, NULL) && !api->pool_create(plugin, NULL, NULL))
        hash = run_steps(api, plugin, call, slots, rows, 2);
    if (api->teardown(&plugin, NULL) || dlclose(library))
        return 0;
    return hash;
}

/* Asked in a child: the library must not be there yet. */
static bool a_child_has_kda(void)
{
    int status = 0;
    if (NO_FORK)
        return true;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(h_has_family(RSSM_FAMILY_KDA));
    return waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

START_TEST(test_load_1000_times)
{
    if (!a_child_has_kda()) {
        h_skip("the plugin has no kda");
        return;
    }
    h_spec spec = {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 8, .V = 8, .layers = 2, .num_slots = 4, .S = 4};
    spec = h_defaults(spec);
    h_call *call = h_call_new(&spec, 5);
    const int64_t shape[] = {spec.B, RSSM_ROW_WIDTH};
    h_tensor slots, rows;
    h_tensor_make(&slots, h_int_type(32), 1, shape, 0);
    h_tensor_make(&rows, h_int_type(32), 2, shape, 0);
    for (int64_t b = 0; b < spec.B; b++)
        h_set(&slots.t, b, 0, 0, 0, (double)b);
    call->roles[RSSM_T_ROWS] = &rows.t;
    uint64_t hash = load_and_live(&spec, call, &slots, &rows);
    ck_assert_msg(hash != 0, "the first life failed");
    void *left = dlopen(getenv("RSSM_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
    ck_assert_msg(SANITIZED || left == NULL, "the library is still there after dlclose");
    int64_t resident = 0;
    int maps = 0, threads = 0;
    time_t start = time(NULL);
    for (int i = 0; i < 1000; i++) {
        if (i == 50) { /* the C library has its caches by now */
            resident = resident_bytes();
            maps = count_lines("/proc/self/maps");
            threads = thread_count(); /* 1, and a sanitizer's own */
        }
        uint64_t again = load_and_live(&spec, call, &slots, &rows);
        ck_assert_msg(again == hash, "life %d: %s", i, again ? "other tokens" : "failed");
    }
    ck_assert_msg(time(NULL) - start < (SANITIZED ? 120 : 20), "took %d s", (int)(time(NULL) - start));
    ck_assert_msg(SANITIZED || resident_bytes() - resident < 1 << 20, "grew by %d kB",
                  (int)((resident_bytes() - resident) / 1024));
    ck_assert_msg(SANITIZED || count_lines("/proc/self/maps") <= maps + 2, "mappings grew from %d to %d", maps,
                  count_lines("/proc/self/maps"));
    assert_threads(threads);
    h_tensor_free(&slots);
    h_tensor_free(&rows);
    h_call_free(call);
}
END_TEST

/* ---- fork ------------------------------------------------------------------------------------------------------- */

/* Waits until all other threads of this process sleep. AddressSanitizer's allocator, unlike the C library's, does not open its locks
 * in a fork's child: a thread that just starts may hold one. */
static void wait_for_sleep(void)
{
    for (int tries = 0, asleep = 0; tries < 5000 && asleep < 2; tries++, usleep(1000)) {
        int awake = 0;
        DIR *tasks = opendir("/proc/self/task");
        ck_assert_ptr_nonnull(tasks);
        for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
            char path[300], state = 'S';
            snprintf(path, sizeof(path), "/proc/self/task/%s/stat", task->d_name);
            bool other =
                task->d_name[0] != '.' && atoi(task->d_name) != (int)getpid(); /* its first thread calls this */
            FILE *stat = other ? fopen(path, "r") : NULL;
            if (stat && fscanf(stat, "%*d %*[^)]) %c", &state) == 1)
                awake += state != 'S';
            if (stat)
                fclose(stat);
        }
        closedir(tasks);
        asleep = awake ? 0 : asleep + 1;
    }
}

/* Runs in a child; it exits 0 when the function returns the expected hash. Kills itself after 30 s. */
static void in_child(uint64_t (*function)(life *l), life *l, uint64_t expected, const char *what)
{
    fflush(NULL);
    if (SANITIZED)
        wait_for_sleep();
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        uint64_t hash = function(l);
        _exit(hash == expected ? 0 : hash == 0 ? 2 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "%s: the child died of signal %d", what, WTERMSIG(status));
    ck_assert_msg(WEXITSTATUS(status) == 0, "%s: the child %s", what,
                  WEXITSTATUS(status) == 1 ? "decodes other tokens" : "got an error");
}

static h_spec fork_spec(void)
{
    h_spec spec = {.family = RSSM_FAMILY_KDA, .H = 8, .HV = 8, .K = 64, .V = 64, .B = 8, .S = 8, .layers = 2};
    spec.num_slots = 8;
    spec.threads = 3; /* enough work that they are used */
    return h_defaults(spec);
}

static uint64_t child_decodes(life *l)
{
    uint64_t hash = run_life(l, 6);
    return h_api()->teardown(&l->plugin, NULL) || l->plugin ? 0 : hash;
}

static uint64_t child_prepares(life *l)
{
    if (h_api()->prepare(l->plugin, NULL) || h_api()->pool_create(l->plugin, NULL, NULL))
        return 0;
    return child_decodes(l);
}

static uint64_t child_drops(life *l)
{
    return h_api()->teardown(&l->plugin, NULL) || l->plugin ? 0 : 1;
}

/* Device calls of an instance whose GPU the parent has touched: refused with a reason, and teardown works. */
static bool refuses(rssm_status status, const rssm_error *err, const char *what)
{
    bool precise = (status == RSSM_ERR_CUDA || status == RSSM_ERR_DEVICE_LOST) && err->message[0];
    if (!precise)
        dprintf(STDOUT_FILENO, "%s in a forked child: %s: %.200s. ", what, h_api()->status_name(status),
                status ? err->message : "");
    return precise;
}

#define REFUSES(call, what) (err = h_error(), refuses(call, &err, what))

static uint64_t child_without_a_gpu(life *l)
{
    rssm_error err;
    rssm_step_begin_args begin = {.struct_size = sizeof(begin), .slots = &l->slots.t, .rows_out = &l->rows.t};
    rssm_description d = {.struct_size = sizeof(d)};
    bool fine = h_api()->describe(l->plugin, &d, NULL) == RSSM_OK;
    fine = REFUSES(h_api()->step_begin(l->plugin, &begin, &err), "step_begin") && fine;
    fine = REFUSES(h_api()->decode(l->plugin, &l->call->args, &err), "decode") && fine;
    return child_drops(l) && fine;
}

static uint64_t child_without_a_pool(life *l)
{
    rssm_error err;
    bool fine = REFUSES(h_api()->pool_create(l->plugin, NULL, &err), "pool_create");
    return child_drops(l) && fine;
}

static uint64_t child_prepares_too_late(life *l)
{
    rssm_error err;
    bool fine = REFUSES(h_api()->prepare(l->plugin, &err), "prepare");
    return child_drops(l) && fine;
}

/* Threads are made anew in a child; a GPU that the parent has touched is out of its reach. */
static const struct {
    const char *what;
    bool init, prepare; /* another instance, as far as this, is the child's */
    uint64_t (*cpu)(life *l), (*gpu)(life *l);
} forks[] = {
    {"fork of an instance that has worked", false, false, child_decodes, child_without_a_gpu},
    {"fork, and the child tears down at once", false, false, child_drops, child_drops},
    {"fork after init, beside an instance that has worked", true, false, child_prepares, child_prepares_too_late},
    {"fork after prepare", true, true, child_prepares, child_without_a_pool},
};

START_TEST(test_fork)
{
    if (NO_FORK)
        return;
    int threads = thread_count();
    h_spec spec = fork_spec();
    life l;
    life_begin(&l, &spec);
    uint64_t hash = run_life(&l, 6);
    ck_assert_uint_ne(hash, 0);
    rssm_plugin *second = h_init(&spec);
    if (forks[_i].prepare)
        ck_assert_int_eq(h_api()->prepare(second, NULL), RSSM_OK);
    life childs = l;
    childs.plugin = forks[_i].init ? second : l.plugin;
    uint64_t (*child)(life * l) = h_on_cuda() ? forks[_i].gpu : forks[_i].cpu;
    const bool decodes = child == child_decodes || child == child_prepares;
    in_child(child, &childs, decodes ? hash : 1, forks[_i].what);
    ck_assert_msg(run_life(&l, 6) == hash, "the parent decodes other tokens after the fork");
    h_teardown(&second);
    life_end(&l);
    if (!h_on_cuda()) /* its driver has threads of its own */
        assert_threads(threads);
}
END_TEST

static uint64_t child_writes_its_hash(life *l)
{
    uint64_t hash = child_prepares(l);
    return write(l->pipe, &hash, sizeof(hash)) == sizeof(hash);
}

/* Plan, then fork: the same bits in both, on any device. */
START_TEST(test_fork_of_a_plan)
{
    if (NO_FORK)
        return;
    h_spec spec = fork_spec();
    int ends[2];
    uint64_t childs = 0;
    ck_assert_int_eq(pipe(ends), 0);
    life l;
    life_plan(&l, &spec);
    l.pipe = ends[1];
    in_child(child_writes_its_hash, &l, 1, "fork after init");
    ck_assert_int_eq(read(ends[0], &childs, sizeof(childs)), sizeof(childs));
    close(ends[0]);
    close(ends[1]);
    rssm_error err = h_error();
    must(h_api()->prepare(l.plugin, &err), &err, "prepare");
    must(h_api()->pool_create(l.plugin, NULL, &err), &err, "pool_create");
    uint64_t hash = run_life(&l, 6);
    ck_assert_msg(hash && hash == childs, "parent and child decode other tokens");
    life_end(&l);
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------------------------- */

typedef struct worker {
    life l;
    uint64_t hash;
    pthread_t thread;
} worker;

static void *worker_main(void *arg)
{
    worker *w = arg;
    w->hash = run_life(&w->l, 40);
    return NULL;
}

/* Two instances in two threads at once decode what each decodes alone. */
START_TEST(test_two_instances)
{
    worker workers[2] = {0};
    uint64_t alone[2];
    for (int i = 0; i < 2; i++) {
        h_spec spec = i ? life_spec(h_family(RSSM_FAMILY_MAMBA2)) : fork_spec();
        life_begin(&workers[i].l, &spec);
        alone[i] = run_life(&workers[i].l, 40);
        ck_assert_uint_ne(alone[i], 0);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(workers[i].thread, NULL);
        ck_assert_msg(workers[i].hash == alone[i], "instance %d decodes other tokens beside another", i);
        life_end(&workers[i].l);
    }
}
END_TEST

typedef struct init_worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    int failed, number;
} init_worker;

/* Good and bad configs by turns: each thread must get its own model, bound and message. */
static void *init_main(void *arg)
{
    init_worker *w = arg;
    pthread_barrier_wait(w->barrier);
    for (int i = 0; i < 200; i++) {
        char text[sizeof(kda_config) + 16];
        snprintf(text, sizeof(text), "%s", kda_config);
        char *bound = strstr(text, "-5.25");
        bound[1] = (char)('1' + w->number);
        bool bad = i % 3 == 2;
        if (bad)
            text[strlen(text) - 1] = ' ';
        rssm_init_args args = {
            .struct_size = sizeof(args), .config_json = text, .config_json_len = strlen(text), .ring_length = 4};
        rssm_plugin *plugin = NULL;
        rssm_error err = {.struct_size = sizeof(err)};
        rssm_status status = h_api()->init(&args, &plugin, &err);
        rssm_description d = {.struct_size = sizeof(d)};
        if (bad)
            w->failed += status != RSSM_ERR_JSON || plugin != NULL;
        else
            w->failed += status || h_api()->describe(plugin, &d, NULL) || d.lower_bound != -(w->number + 1.25) ||
                         d.num_linear_layers != 2;
        w->failed += h_api()->teardown(&plugin, NULL) != RSSM_OK;
    }
    return NULL;
}

START_TEST(test_init_from_threads)
{
    enum { THREADS = 6 };
    init_worker workers[THREADS];
    pthread_barrier_t barrier;
    h_need_family(RSSM_FAMILY_KDA);
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (init_worker){.barrier = &barrier, .number = i};
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, init_main, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        ck_assert_msg(workers[i].failed == 0, "thread %d: %d wrong results", i, workers[i].failed);
    }
    pthread_barrier_destroy(&barrier);
}
END_TEST

/* ---- failing allocators ----------------------------------------------------------------------------------------- */

/* Blocks from a region of its own, so that nothing here goes through malloc; remembers each block's size. */
typedef struct failing {
    int64_t calls, fail_at; /* the call that fails; for good when `always` */
    bool always;
    int64_t live;
    bool wrong; /* freed what was not allocated, or with another size */
    size_t used;
    struct {
        void *memory;
        uint64_t bytes;
    } blocks[512];
    int num_blocks;
} failing;

enum { REGION = 8 << 20 };
static _Alignas(4096) unsigned char region[REGION];

static void *failing_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    failing *f = user;
    int64_t call = f->calls++;
    if (call == f->fail_at || (f->always && call > f->fail_at && f->fail_at >= 0))
        return NULL;
    size_t start = (f->used + alignment - 1) / alignment * alignment;
    if (start + bytes > REGION || f->num_blocks == COUNT(f->blocks))
        return NULL;
    f->used = start + bytes;
    f->live++;
    f->blocks[f->num_blocks].memory = region + start;
    f->blocks[f->num_blocks++].bytes = bytes;
    memset(region + start, 0xFF, bytes);
    return region + start;
}

static void failing_free(void *user, void *memory, uint64_t bytes)
{
    failing *f = user;
    for (int i = 0; i < f->num_blocks; i++)
        if (f->blocks[i].memory == memory) {
            f->wrong = f->wrong || f->blocks[i].bytes != bytes;
            memset(memory, 0xEE, bytes); /* whoever still reads it gets nonsense */
            f->blocks[i].memory = NULL;
            f->live--;
            return;
        }
    f->wrong = true;
}

static void life_stage(failing *f, rssm_status status, const rssm_error *err, const char *stage)
{
    ck_assert_msg(status == RSSM_OK || status == RSSM_ERR_OUT_OF_MEMORY, "%s: %s: %s", stage,
                  h_api()->status_name(status), err->message);
    ck_assert_msg(status == RSSM_OK || strlen(err->message) > 4, "%s: no message", stage);
    ck_assert_msg(status == RSSM_OK || f->calls > f->fail_at, "%s: failed before the allocator did", stage);
}

/* One life, in which a failed stage is tried once more. Returns the number of stages that failed. */
static int fragile_life(failing *f, bool from_json, uint64_t *hash)
{
    const rssm_api *api = h_api();
    rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = f, .alloc = failing_alloc, .free = failing_free};
    h_spec spec = {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 8, .V = 8, .layers = 2, .num_slots = 4, .S = 4};
    spec = h_defaults(spec);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, from_json ? NULL : &dims);
    args.config_json = from_json ? kda_config : NULL;
    args.config_json_len = from_json ? sizeof(kda_config) - 1 : 0;
    args.allocator = &allocator;
    args.io_dtype = RSSM_DTYPE_BFLOAT16;
    args.max_batch = 64;
    h_call *call = h_call_new(&spec, 5);
    const int64_t shape[] = {spec.B, RSSM_ROW_WIDTH};
    h_tensor slots, rows;
    h_tensor_make(&slots, h_int_type(32), 1, shape, 0);
    h_tensor_make(&rows, h_int_type(32), 2, shape, 0);
    for (int64_t b = 0; b < spec.B; b++)
        h_set(&slots.t, b, 0, 0, 0, (double)b);
    call->roles[RSSM_T_ROWS] = &rows.t;
    rssm_plugin *plugin = NULL;
    int failures = 0;
    *hash = 0;
#define STAGE(call_)                                                                             \
    do {                                                                                         \
        rssm_error err = h_error();                                                              \
        int64_t live = f->live;                                                                  \
        rssm_status status = (call_);                                                            \
        life_stage(f, status, &err, #call_);                                                     \
        if (status) {                                                                            \
            failures++;                                                                          \
            ck_assert_msg(plugin || f->live == 0, #call_ " leaks %d blocks", (int)f->live);      \
            (void)live;                                                                          \
            status = f->always ? status : (call_);                                               \
            ck_assert_msg(f->always || status == RSSM_OK, "again, " #call_ ": %s", err.message); \
        }                                                                                        \
        if (status)                                                                              \
            goto done;                                                                           \
    } while (0)
    STAGE(api->init(&args, &plugin, &err));
    STAGE(api->prepare(plugin, &err));
    STAGE(api->pool_create(plugin, NULL, &err));
    rssm_step_begin_args begin = {
        .struct_size = sizeof(begin), .slots = &slots.t, .rows_out = &rows.t, .flags = RSSM_CHECK_DEEP};
    STAGE(api->step_begin(plugin, &begin, &err));
    ck_assert_int_eq(api->pool_tensors(plugin, 0, call->roles, RSSM_T_COUNT, NULL), RSSM_OK);
    call->args.flags = RSSM_CHECK_DEEP;
    STAGE(api->validate(plugin, &call->args, &err));
    STAGE(api->decode(plugin, &call->args, &err));
    call->args.flags = 0;
    int64_t before = f->calls;
    *hash = run_steps(api, plugin, call, &slots, &rows, 4);
    ck_assert_msg(f->calls == before, "a step without deep checks allocates");
done:
    ck_assert_int_eq(api->teardown(&plugin, NULL), RSSM_OK);
    ck_assert_msg(f->live == 0, "%d blocks leaked", (int)f->live);
    ck_assert_msg(!f->wrong, "freed a block that is none, twice, or with another size");
    ck_assert(h_call_guarded(call));
    h_tensor_free(&slots);
    h_tensor_free(&rows);
    h_call_free(call);
    return failures;
}

START_TEST(test_failing_allocator)
{
    bool from_json = _i & 1, always = _i & 2;
    static failing f;
    f = (failing){.fail_at = -1};
    uint64_t hash, other;
    ck_assert_int_eq(fragile_life(&f, from_json, &hash), 0);
    ck_assert_uint_ne(hash, 0);
    int64_t calls = f.calls;
    ck_assert_msg(calls >= 8 && calls < 400, "%d allocations in a life", (int)calls);
    for (int64_t at = 0; at < calls; at++) {
        f = (failing){.fail_at = at, .always = always};
        int failures = fragile_life(&f, from_json, &other);
        ck_assert_msg(failures == 1, "allocation %d failed, %d stages noticed", (int)at, failures);
        ck_assert_msg(always || other == hash, "allocation %d failed: other tokens afterwards", (int)at);
    }
}
END_TEST

/* init alone, with models whose layer lists fill the plugin's blocks to a different byte each: in its turn every small
 * allocation is the one that needs a new block, and fails. */
START_TEST(test_failing_init)
{
    static failing f;
    rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &f, .alloc = failing_alloc, .free = failing_free};
    h_spec spec = h_defaults((h_spec){.family = 1 + _i});
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.allocator = &allocator;
    args.ring_length = 0;
    args.flags = RSSM_INIT_CONV_STATE;
    for (dims.num_layers = 3300; dims.num_layers < 4100; dims.num_layers += 3) {
        rssm_plugin *plugin = NULL;
        rssm_error err = h_error();
        f = (failing){.fail_at = -1};
        must(h_api()->init(&args, &plugin, &err), &err, "init");
        int64_t calls = f.calls;
        h_teardown(&plugin);
        for (int64_t at = 0; at < calls; at++) {
            f = (failing){.fail_at = at};
            rssm_status status = h_api()->init(&args, &plugin, &err);
            ck_assert_msg(status == RSSM_ERR_OUT_OF_MEMORY && plugin == NULL, "%d layers, allocation %d: %s",
                          dims.num_layers, (int)at, h_api()->status_name(status));
            ck_assert_msg(f.live == 0 && !f.wrong, "%d layers, allocation %d: leaks", dims.num_layers, (int)at);
        }
    }
}
END_TEST

/* All of an instance's memory goes through the callbacks: the C library's heap is as it was. */
START_TEST(test_nothing_but_the_allocator)
{
#if SANITIZED || !defined(__GLIBC__)
    return;
#else
    static failing f;
    f = (failing){.fail_at = -1};
    rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &f, .alloc = failing_alloc, .free = failing_free};
    rssm_init_args args = {.struct_size = sizeof(args),
                           .config_json = kda_config,
                           .config_json_len = sizeof(kda_config) - 1,
                           .num_slots = 4,
                           .num_threads = 1,
                           .max_batch = 64,
                           .allocator = &allocator};
    const rssm_api *api = h_api();
    for (int round = 0; round < 2; round++) {
        f = (failing){.fail_at = -1};
        rssm_plugin *plugin = NULL;
        struct mallinfo2 before = mallinfo2();
        rssm_status status = api->init(&args, &plugin, NULL);
        status = status ? status : api->prepare(plugin, NULL);
        status = status ? status : api->pool_create(plugin, NULL, NULL);
        struct mallinfo2 after = mallinfo2();
        ck_assert_int_eq(status, RSSM_OK);
        ck_assert_int_eq(api->teardown(&plugin, NULL), RSSM_OK);
        ck_assert_msg(round == 0 || (after.uordblks == before.uordblks && after.hblkhd == before.hblkhd),
                      "%d bytes past the allocator", (int)(after.uordblks - before.uordblks));
    }
#endif
}
END_TEST

/* ---- the process ------------------------------------------------------------------------------------------------ */

/* The library under test; what RSSM_PLUGIN names may stand before it (tests/gpu/mirror.c). */
static const char *judged_library(void)
{
    const char *mirrored = getenv("RSSM_MIRRORED");
    return mirrored ? mirrored : getenv("RSSM_PLUGIN");
}

/* Reads what a command prints; false when the tool is not there. */
static bool output_of(const char *tool, const char *arguments, char *text, size_t size)
{
    char command[4096 + 256];
    snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", tool);
    if (system(command) != 0)
        return false;
    snprintf(command, sizeof(command), "LC_ALL=C %s %s '%s'", tool, arguments, judged_library());
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return false;
    size_t used = fread(text, 1, size - 1, pipe);
    text[used] = 0;
    return pclose(pipe) == 0;
}

START_TEST(test_one_symbol)
{
    char text[65536];
    if (!output_of("nm", "-D --defined-only", text, sizeof(text))) {
        h_skip("needs nm");
        return;
    }
    int symbols = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strstr(line, " A ")) /* the version's own name */
            continue;
        ck_assert_msg(strstr(line, " T replayssm_get_api") != NULL, "exported: %s", line);
        symbols++;
    }
    ck_assert_int_eq(symbols, 1);
}
END_TEST

START_TEST(test_needed_libraries)
{
    char text[65536];
    if (SANITIZED || !output_of("readelf", "-d", text, sizeof(text))) {
        h_skip("needs readelf, and no sanitizer");
        return;
    }
    static const char *const libc[] = {"[libc.so.6]",
                                       "[libm.so.6]",
                                       "[libpthread.so.0]",
                                       "[libdl.so.2]",
                                       "[ld-linux-x86-64.so.2]",
                                       "[ld-linux-aarch64.so.1]"};
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        bool known = !strstr(line, "(NEEDED)");
        for (int i = 0; i < COUNT(libc); i++)
            known = known || strstr(line, libc[i]);
        ck_assert_msg(known, "%s", line);
        ck_assert_msg(!strstr(line, "TEXTREL") && !strstr(line, "RPATH") && !strstr(line, "RUNPATH"), "%s", line);
#ifndef RSSM_CONFORM /* the compiler's own: frame_dummy, and libgcc's cpuid for __builtin_cpu_supports */
        ck_assert_msg(!strstr(line, "(INIT_ARRAYSZ)") || strstr(line, " 8 (bytes)") || strstr(line, " 16 (bytes)"),
                      "constructors: %s", line);
#endif
    }
}
END_TEST

/* What the plugin logs. */
typedef struct log_lines {
    int lines;
    bool bad;
} log_lines;

static void log_line(void *user, int32_t level, const char *message)
{
    log_lines *log = user;
    log->lines++;
    log->bad =
        log->bad || level < RSSM_LOG_DEBUG || level > RSSM_LOG_ERROR || !message || !*message || strchr(message, '\n');
}

/* A life with errors of all kinds in it. */
static uint64_t noisy_life(life *unused)
{
    (void)unused;
    const rssm_api *api = h_api();
    rssm_init_args bad = {.struct_size = sizeof(bad), .config_json = "{\"model_type\":", .config_json_len = 14};
    rssm_plugin *plugin = NULL;
    api->init(&bad, &plugin, NULL);
    bad = (rssm_init_args){.struct_size = sizeof(bad), .config_path = "/nowhere"};
    api->init(&bad, &plugin, NULL);
    h_spec spec = fork_spec();
    life l;
    life_begin(&l, &spec);
    l.call->roles[RSSM_T_STATE] = NULL;
    api->decode(l.plugin, &l.call->args, NULL);
    api->pool_create(l.plugin, NULL, NULL);
    run_life(&l, 3);
    life_end(&l);
    return 1;
}

/* The default is silence: nothing on stdout or stderr, whatever goes wrong. */
START_TEST(test_silence)
{
    FILE *capture = tmpfile();
    ck_assert_ptr_nonnull(capture);
    h_api();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(capture), 1);
        dup2(fileno(capture), 2);
        noisy_life(NULL);
        _exit(0);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
    char text[256] = "";
    rewind(capture);
    size_t printed = fread(text, 1, sizeof(text) - 1, capture);
    fclose(capture);
    ck_assert_msg(printed == 0, "printed: %s", text);
}
END_TEST

START_TEST(test_log)
{
    log_lines log = {0};
    rssm_init_args args = plain_args();
    args.log = log_line;
    args.log_user = &log;
    rssm_plugin *plugin = NULL;
    ck_assert_int_eq(h_api()->init(&args, &plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_create(plugin, NULL, NULL), RSSM_OK);
    h_teardown(&plugin);
    ck_assert_msg(!log.bad, "a bad line among %d", log.lines);
}
END_TEST

/* A locale with a decimal comma, of the system or made for this test. */
static bool use_comma_locale(char *directory)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    for (int i = 0; i < COUNT(names); i++)
        if (setlocale(LC_ALL, names[i]))
            return true;
    strcpy(directory, "/tmp/replayssm-locale-XXXXXX");
    if (!mkdtemp(directory))
        return false;
    char command[256];
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", directory);
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", directory, 1);
    return setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

START_TEST(test_decimal_comma)
{
    char directory[64] = "";
    h_need_family(RSSM_FAMILY_KDA);
    if (use_comma_locale(directory)) {
        ck_assert_str_eq(localeconv()->decimal_point, ",");
        rssm_init_args args = {
            .struct_size = sizeof(args), .config_json = kda_config, .config_json_len = sizeof(kda_config) - 1};
        rssm_plugin *plugin = NULL;
        rssm_error err = h_error();
        must(h_api()->init(&args, &plugin, &err), &err, "init");
        rssm_description d = {.struct_size = sizeof(d)};
        must(h_api()->describe(plugin, &d, &err), &err, "describe");
        ck_assert_msg(d.lower_bound == -5.25, "read %g", d.lower_bound);
        uint64_t hash = d.layout_hash;
        char text[1024];
        snprintf(text, sizeof(text), "%s", d.layout_text);
        h_teardown(&plugin);
        setlocale(LC_ALL, "C");
        must(h_api()->init(&args, &plugin, &err), &err, "init");
        must(h_api()->describe(plugin, &d, &err), &err, "describe");
        ck_assert_msg(d.layout_hash == hash, "ranks of different locales disagree: \"%s\" against \"%s\"", text,
                      d.layout_text);
        h_teardown(&plugin);
    }
    if (directory[0]) {
        char command[128];
        snprintf(command, sizeof(command), "rm -rf '%s'", directory);
        ck_assert_int_eq(system(command), 0);
    }
}
END_TEST

/* ---- the current context of CUDA --------------------------------------------------------------------------------- */

/* What of the driver's interface tells which context, and so which device, is current; by hand: the judge needs no CUDA. */
typedef struct driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*current)(void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
} driver;

/* false: no driver, or no device, on this machine. */
static bool open_driver(driver *d)
{
    const char *const names[] = {
        "cuInit",          "cuDeviceGet",         "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"};
    void **const entries[] = {(void **)&d->init,    (void **)&d->device_get, (void **)&d->retain, (void **)&d->release,
                              (void **)&d->current, (void **)&d->push,       (void **)&d->pop};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    for (int i = 0; i < COUNT(names); i++)
        if (!(*entries[i] = dlsym(library, names[i])))
            return false;
    int device;
    return d->init(0) == 0 && d->device_get(&device, 0) == 0;
}

static void check_current(const driver *d, const void *expected, const char *after)
{
    void *now = NULL;
    ck_assert_int_eq(d->current(&now), 0);
    ck_assert_msg(now == expected, "%s: another CUDA context is current than before", after);
}

/* Every call of a life, beside a context that stays current (NULL: none is). */
static void life_beside(const driver *d, const void *context)
{
    const h_spec spec = life_spec(h_family(RSSM_FAMILY_GDN));
    const rssm_reset_args reset = {.struct_size = sizeof(reset)};
    life l;
    rssm_plugin *first = h_init(&spec);
    check_current(d, context, "init");
    ck_assert_int_eq(h_api()->prepare(first, NULL), RSSM_OK);
    check_current(d, context, "prepare");
    ck_assert_int_eq(h_api()->pool_create(first, NULL, NULL), RSSM_OK);
    check_current(d, context, "pool_create");
    ck_assert_int_eq(h_api()->reset(first, &reset, NULL), RSSM_OK);
    check_current(d, context, "reset");
    h_teardown(&first);
    check_current(d, context, "teardown");
    life_begin(&l, &spec);
    check_current(d, context, "step_begin");
    ck_assert_int_eq(h_api()->validate(l.plugin, &l.call->args, NULL), RSSM_OK);
    check_current(d, context, "validate");
    ck_assert_int_eq(h_api()->decode(l.plugin, &l.call->args, NULL), RSSM_OK);
    check_current(d, context, "decode");
    l.call->args.layer = 99;
    ck_assert_int_ne(h_api()->decode(l.plugin, &l.call->args, NULL), RSSM_OK);
    check_current(d, context, "a refused decode");
    life_end(&l);
    check_current(d, context, "the second teardown");
}

/* Whatever the plugin does with CUDA, and on whichever device it computes: the host's current context is the host's. */
START_TEST(test_current_context)
{
    driver d;
    void *mine = NULL, *popped = NULL;
    if (!open_driver(&d)) {
        h_skip("no libcuda.so.1 with a device here");
        return;
    }
    life_beside(&d, NULL);
    ck_assert_int_eq(d.retain(&mine, 0), 0);
    ck_assert_int_eq(d.push(mine), 0);
    life_beside(&d, mine);
    ck_assert_int_eq(d.pop(&popped), 0);
    ck_assert_ptr_eq(popped, mine);
    check_current(&d, NULL, "all of them: one more was pushed");
    ck_assert_int_eq(d.release(0), 0);
}
END_TEST

/* ---- suite ------------------------------------------------------------------------------------------------------ */

void boundary_tests(h_suite *suite);

static void add(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 180});
}

/* What the ABI leaves to the plugin: not for the judge. */
static void add_ours(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 180, .ours = true});
}

/* The plugin is not loaded before the forks: the tests that load and unload it need a process without it. */
void boundary_tests(h_suite *suite)
{
    add(suite, "in structs", test_in_struct, COUNT(in_structs));
    add(suite, "out structs", test_out_struct, COUNT(out_structs));
    add(suite, "err", test_err, COUNT(err_calls));
    add(suite, "short err", test_short_err_refuses, 1);
    add_ours(suite, "long messages", test_long_message, 7 * 4);
    add(suite, "NULL plugin", test_null_plugin, 1);
    add(suite, "NULL arguments", test_null_arguments, 1);
    add(suite, "options", test_bad_option, COUNT(bad_options));
    add(suite, "model sources", test_model_sources, 1);
    add(suite, "config text is copied", test_json_is_copied, 1);
    add(suite, "pad slot without its flag", test_pad_slot_without_flag, 1);
    add(suite, "allocator pairs", test_allocator_pairs, 1);
    add(suite, "CUDA device", test_cuda_device, 1);
    add_ours(suite, "longest CUDA window", test_longest_cuda_window, 1);
    add_ours(suite, "order", test_order, 3);
    add(suite, "teardown", test_teardown, 3);
    add(suite, "get_api", test_get_api, 1);
    add(suite, "tables", test_tables, 1);
    add(suite, "families", test_families, 3);
    add(suite, "fault word", test_fault_word, 3);
    add(suite, "names", test_names, 1);
    add_ours(suite, "info", test_info, 1);
    add(suite, "load 1000 times", test_load_1000_times, 1);
    add(suite, "fork", test_fork, COUNT(forks));
    add(suite, "fork of a plan", test_fork_of_a_plan, 1);
    add(suite, "two instances", test_two_instances, 1);
    add(suite, "init from threads", test_init_from_threads, 1);
    add_ours(suite, "failing allocator", test_failing_allocator, 4);
    add_ours(suite, "failing init", test_failing_init, 3);
    add_ours(suite, "nothing but the allocator", test_nothing_but_the_allocator, 1);
    add(suite, "one symbol", test_one_symbol, 1);
    add(suite, "needed libraries", test_needed_libraries, 1);
    add(suite, "silence", test_silence, 1);
    add_ours(suite, "log", test_log, 1);
    add(suite, "decimal comma", test_decimal_comma, 1);
    add(suite, "current context", test_current_context, 1);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("boundary", boundary_tests, false);
}
#endif
