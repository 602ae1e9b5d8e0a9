/* Every host allocation of a whole life fails in turn: init, prepare, pool, begin, windows, commit, convolutions, all slot
 * operations, streams, handles, with RSSM_CHECK_DEEP wherever it exists. After each failure: RSSM_ERR_OUT_OF_MEMORY with a message,
 * the same call works when it is made again, the life ends in the same bytes as one without a failure, nothing is leaked,
 * and another instance, which was there all along, has not changed a byte and exports what it did before. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext_case.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- memory that fails ------------------------------------------------------------------------------------------ */

typedef struct memory {
    int64_t calls, fail_at; /* the call that fails, from 0; -1 = none */
    bool always;            /* and all after it */
    int64_t live, bytes;
} memory;

static void *take(void *user, uint64_t bytes, uint64_t alignment)
{
    memory *m = user;
    int64_t call = m->calls++;
    if (call == m->fail_at || (m->always && m->fail_at >= 0 && call > m->fail_at))
        return NULL;
    size_t size = (size_t)((bytes + alignment - 1) / alignment * alignment);
    void *block = aligned_alloc((size_t)alignment, size);
    ck_assert_ptr_nonnull(block);
    memset(block, 0xFF, size);
    m->live++;
    m->bytes += (int64_t)bytes;
    return block;
}

static void give(void *user, void *block, uint64_t bytes)
{
    memory *m = user;
    m->live--;
    m->bytes -= (int64_t)bytes;
    free(block);
}

/* ---- a life ----------------------------------------------------------------------------------------------------- */

/* The calls are those of `c`, whose own instance stands by; they are made on another one with the failing memory. */
typedef struct life {
    ec_case *c;
    memory *m;
    rssm_allocator allocator;
    rssm_plugin *plugin;
    uint64_t handle, hash;
    unsigned char *stream;
    uint64_t stream_bytes;
} life;

typedef rssm_status (*stage_call)(life *l, rssm_error *err);

static rssm_status do_init(life *l, rssm_error *err)
{
    h_spec spec = l->c->spec;
    spec.allocator = &l->allocator;
    spec.threads = 2;
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.has_pad_slot = 1;
    args.pad_slot = EC_PAD;
    args.max_batch = 4;
    return h_api()->init(&args, &l->plugin, err);
}

static rssm_status do_prepare(life *l, rssm_error *err)
{
    return h_api()->prepare(l->plugin, err);
}

static rssm_status do_pool(life *l, rssm_error *err)
{
    return h_api()->pool_create(l->plugin, NULL, err);
}

static rssm_status do_reset(life *l, rssm_error *err)
{
    const rssm_reset_args all = {.struct_size = sizeof(all)};
    return h_api()->reset(l->plugin, &all, err);
}

static rssm_status do_step_begin(life *l, rssm_error *err)
{
    const rssm_step_begin_args args = {.struct_size = sizeof(args),
                                       .slots = l->c->verify_begin.slots,
                                       .rows_out = l->c->conv_roles[RSSM_T_ROWS],
                                       .flags = RSSM_CHECK_DEEP};
    return h_api()->step_begin(l->plugin, &args, err);
}

static rssm_status do_verify_begin(life *l, rssm_error *err)
{
    rssm_verify_begin_args args = l->c->verify_begin;
    args.rows_out = l->c->commit.rows;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->verify_api->verify_begin(l->plugin, &args, err);
}

typedef rssm_status (*layer_call)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* A call of both layers; one that failed in the second is made again for both, which for conv would be one token twice. */
static rssm_status each_layer(life *l, rssm_decode_args args, const DLTensor *const *roles, int32_t layer,
                              layer_call call, rssm_error *err)
{
    const DLTensor *all[H_NUM_ROLES];
    rssm_error other = h_error();
    memcpy(all, roles, sizeof(all));
    ck_assert_int_eq(h_api()->pool_tensors(l->plugin, layer, all, RSSM_T_COUNT, &other), RSSM_OK);
    args.tensors = all;
    args.layer = layer;
    args.flags = RSSM_CHECK_DEEP;
    return call(l->plugin, &args, err);
}

static rssm_status validate_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    const rssm_verify_api *api = h_api()->get_extension(RSSM_EXT_VERIFY);
    return api->validate(plugin, args, err);
}

static rssm_status validate_conv(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    const rssm_conv_api *api = h_api()->get_extension(RSSM_EXT_CONV);
    return api->validate(plugin, args, err);
}

#define PER_LAYER(name, args_, roles_, call_)                                       \
    static rssm_status name##_0(life *l, rssm_error *err)                           \
    {                                                                               \
        return each_layer(l, l->c->args_, l->c->roles_, 0, call_, err);             \
    }                                                                               \
    static rssm_status name##_1(life *l, rssm_error *err)                           \
    {                                                                               \
        return each_layer(l, l->c->args_, l->c->roles_, EC_LAYERS - 1, call_, err); \
    }
PER_LAYER(do_validate_verify, verify, verify_roles, validate_verify)
PER_LAYER(do_verify, verify, verify_roles, l->c->verify_api->verify)
PER_LAYER(do_validate_conv, conv_verify, window_roles, validate_conv)
PER_LAYER(do_conv_verify, conv_verify, window_roles, l->c->conv_api->conv_verify)
PER_LAYER(do_conv, conv, conv_roles, l->c->conv_api->conv)

static rssm_status do_commit(life *l, rssm_error *err)
{
    rssm_commit_args args = l->c->commit;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->verify_api->commit(l->plugin, &args, err);
}

static rssm_status do_import(life *l, rssm_error *err)
{
    rssm_state_args args = l->c->import;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->slots_api->import_state(l->plugin, &args, err);
}

static rssm_status do_export(life *l, rssm_error *err)
{
    rssm_state_args args = l->c->export;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->slots_api->export_state(l->plugin, &args, err);
}

static rssm_status do_flush(life *l, rssm_error *err)
{
    rssm_flush_args args = l->c->flush;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->slots_api->flush(l->plugin, &args, err);
}

static rssm_status do_copy(life *l, rssm_error *err)
{
    rssm_copy_args args = l->c->copy;
    args.flags = RSSM_CHECK_DEEP;
    return l->c->slots_api->copy(l->plugin, &args, err);
}

static rssm_status do_save(life *l, rssm_error *err)
{
    if (!l->stream) {
        ck_assert_int_eq(l->c->slots_api->saved_bytes(l->plugin, &l->stream_bytes, NULL), RSSM_OK);
        l->stream = calloc(1, (size_t)l->stream_bytes);
    }
    uint64_t written = 0;
    return l->c->slots_api->save(l->plugin, 0, l->stream, l->stream_bytes, &written, NULL, err);
}

static rssm_status do_load(life *l, rssm_error *err)
{
    return l->c->slots_api->load(l->plugin, 4, l->stream, l->stream_bytes, NULL, err);
}

static rssm_status do_acquire(life *l, rssm_error *err)
{
    int64_t slot = -1;
    return l->c->slots_api->acquire(l->plugin, &l->handle, &slot, err);
}

static rssm_status do_check(life *l, rssm_error *err)
{
    int64_t slot = -1;
    return l->c->slots_api->check(l->plugin, l->handle, &slot, err);
}

static rssm_status do_release(life *l, rssm_error *err)
{
    return l->c->slots_api->release(l->plugin, l->handle, err);
}

static const struct {
    const char *name;
    stage_call call;
} stages[] = {
    {"init", do_init},
    {"prepare", do_prepare},
    {"pool_create", do_pool},
    {"reset", do_reset},
    {"import_state", do_import},
    {"verify_begin", do_verify_begin},
    {"verify's validate, layer 0", do_validate_verify_0},
    {"verify's validate, layer 1", do_validate_verify_1},
    {"verify, layer 0", do_verify_0},
    {"verify, layer 1", do_verify_1},
    {"conv's validate, layer 0", do_validate_conv_0},
    {"conv's validate, layer 1", do_validate_conv_1},
    {"conv_verify, layer 0", do_conv_verify_0},
    {"conv_verify, layer 1", do_conv_verify_1},
    {"commit", do_commit},
    {"export_state", do_export},
    {"save", do_save},
    {"load", do_load},
    {"copy", do_copy},
    {"flush", do_flush},
    {"step_begin", do_step_begin},
    {"conv, layer 0", do_conv_0},
    {"conv, layer 1", do_conv_1},
    {"acquire", do_acquire},
    {"check", do_check},
    {"release", do_release},
};

/* FNV-1a of everything that the calls have written for the host. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}

static uint64_t hash_of(const life *l)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (int i = 0; i < l->c->num_tensors; i++)
        hash = hash_bytes(hash, l->c->tensors[i].data, l->c->tensors[i].h.bytes);
    return hash_bytes(hash, l->stream, (size_t)l->stream_bytes);
}

/* Returns the number of stages that failed. A stage is tried once more, unless memory is gone for good. */
static int live(life *l)
{
    int failures = 0;
    for (int i = 0; i < COUNT(stages); i++) {
        rssm_error err = h_error();
        rssm_status status = stages[i].call(l, &err);
        if (status) {
            ck_assert_msg(status == RSSM_ERR_OUT_OF_MEMORY && err.status == status && strlen(err.message) > 4,
                          "allocation %d, %s: %s: %s", (int)l->m->fail_at, stages[i].name, h_api()->status_name(status),
                          err.message);
            ck_assert_msg(l->m->fail_at >= 0 && l->m->calls > l->m->fail_at, "%s failed before memory did",
                          stages[i].name);
            ck_assert_msg(l->plugin || l->m->live == 0, "%s leaks %d blocks", stages[i].name, (int)l->m->live);
            failures++;
            if (l->m->always)
                break;
            err = h_error();
            status = stages[i].call(l, &err);
            ck_assert_msg(status == RSSM_OK, "%s again: %s", stages[i].name, err.message);
        }
    }
    l->hash = l->m->always ? 0 : hash_of(l);
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->teardown(&l->plugin, &err), RSSM_OK);
    ck_assert_msg(l->m->live == 0 && l->m->bytes == 0, "allocation %d failed: %d blocks, %d bytes are leaked",
                  (int)l->m->fail_at, (int)l->m->live, (int)l->m->bytes);
    free(l->stream);
    return failures;
}

static uint64_t one_life(ec_case *c, memory *m, int *failures)
{
    life l = {
        .c = c, .m = m, .allocator = {.struct_size = sizeof(rssm_allocator), .user = m, .alloc = take, .free = give}};
    *failures = live(&l);
    return l.hash;
}

/* What the instance that stands by gives out. */
static uint64_t others_export(ec_case *c)
{
    rssm_error err = h_error();
    rssm_status status = ec_run(c, EC_EXPORT, &err);
    ck_assert_msg(status == RSSM_OK, "the other instance: %s", err.message);
    uint64_t hash = 0xCBF29CE484222325u;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].calls & 1u << EC_EXPORT && c->tensors[i].place == H_OUTPUT)
            hash = hash_bytes(hash, c->tensors[i].data, c->tensors[i].h.bytes);
    return hash;
}

START_TEST(test_every_allocation)
{
    bool always = _i >= 3;
    ec_case *c = ec_new(1 + _i % 3, RSSM_STATE_VK);
    if (!c)
        return;
    memory m = {.fail_at = -1};
    int failures;
    const uint64_t hash = one_life(c, &m, &failures), other = others_export(c);
    const int64_t calls = m.calls;
    ck_assert_int_eq(failures, 0);
    ck_assert_msg(calls > 20 && calls < 1000, "%d allocations in a life", (int)calls);
    unsigned char *slab = malloc((size_t)c->slab_bytes);
    memcpy(slab, c->slab, (size_t)c->slab_bytes);
    for (int64_t at = 0; at < calls; at++) {
        m = (memory){.fail_at = at, .always = always};
        uint64_t again = one_life(c, &m, &failures);
        ck_assert_msg(failures == 1, "allocation %d failed, %d stages noticed", (int)at, failures);
        ck_assert_msg(always || again == hash, "allocation %d failed: the life ends otherwise", (int)at);
        ck_assert_msg(memcmp(slab, c->slab, (size_t)c->slab_bytes) == 0, "allocation %d: another pool changed",
                      (int)at);
        ck_assert_msg(others_export(c) == other, "allocation %d: the other instance exports something else", (int)at);
    }
    if (getenv("RSSM_TEST_FIGURES"))
        printf("family %d: %d allocations failed in turn\n", c->spec.family, (int)calls);
    free(slab);
    ec_free(c);
}
END_TEST

/* Callbacks for device memory come as a pair, on any device. */
static void *device_take(void *user, int32_t device, uint64_t bytes, uint64_t alignment)
{
    (void)user, (void)device, (void)bytes, (void)alignment;
    return NULL;
}

static void device_give(void *user, int32_t device, void *ptr, uint64_t bytes)
{
    (void)user, (void)device, (void)ptr, (void)bytes;
}

START_TEST(test_device_pair)
{
    rssm_allocator allocator = {.struct_size = sizeof(allocator)};
    allocator.device_alloc = _i ? device_take : NULL;
    allocator.device_free = _i ? NULL : device_give;
    h_spec spec = h_defaults((h_spec){.allocator = &allocator});
    rssm_dims dims = h_dims(&spec);
    const rssm_init_args args = h_init_args(&spec, &dims);
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->init(&args, &plugin, &err), RSSM_ERR_ARGUMENT);
    ck_assert_msg(plugin == NULL && strstr(err.message, "device_alloc"), "%s", err.message);
}
END_TEST

void inject_tests(h_suite *suite);

void inject_tests(h_suite *suite)
{
    h_add(suite, &(h_tests){.name = "every allocation of a life fails in turn",
                            .test = test_every_allocation,
                            .count = 6,
                            .timeout = 180,
                            .extension = RSSM_EXT_SLOTS,
                            .ours = true});
    h_add(suite, &(h_tests){.name = "device callbacks without their pair", .test = test_device_pair, .count = 2});
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("inject", inject_tests, true);
}
#endif
