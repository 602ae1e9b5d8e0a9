/* The CUDA backend's host side against a driver made for tests (fake_cuda.h): what it calls and when, that every call
 * may fail, and that nothing stays behind. Needs no GPU; LD_LIBRARY_PATH must lead to the fake's libcuda.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/small_variants.h"
#include "fake_cuda/fake_cuda.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"
#include "unit/harness.h"

static fake_cuda *fake; /* the driver's books */

static const char *const entry_names[] = {
#define X(field, symbol, parameters) #symbol,
    RSSM_CUDA_ENTRIES(X)
#undef X
};

static void start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    fake_cuda_state_fn state = NULL;
    fake_cuda_reset_fn reset = NULL;
    if (library) {
        *(void **)(void *)&state = dlsym(library, "fake_cuda_state");
        *(void **)(void *)&reset = dlsym(library, "fake_cuda_reset");
    }
    ck_assert_msg(state && reset, "LD_LIBRARY_PATH does not lead to the fake libcuda.so.1");
    fake = state();
    reset();
}

/* ---- a run ------------------------------------------------------------------------------------------------------ */

/* An instance on the fake GPU with a call for it. The fake's device memory is host memory. */
typedef struct run {
    h_spec spec;
    rssm_plugin *plugin;
    h_call *call;
    h_tensor slots, list;
    void *stream;
    /* Slot operations and the convolution. */
    h_tensor targets, states, history, conv_in, conv_weight, conv_out;
    h_tensor ends, accepted; /* windows of one token each */
    void *saved;
    uint64_t saved_bytes;
} run;

enum { TAPS = 4 /* the width that h_dims gives */, DRAFTS = 3 };

static void to_device(h_tensor *tensor)
{
    tensor->t.device = (DLDevice){.device_type = kDLCUDA};
}

static h_spec tuned(void)
{
    return (h_spec){.family = RSSM_FAMILY_GDN,
                    .H = 1,
                    .HV = 2,
                    .K = 128,
                    .V = 128,
                    .num_slots = 6,
                    .S = 6,
                    .drafts = DRAFTS,
                    .init_flags = RSSM_INIT_CONV_STATE};
}

static void make_on_device(h_tensor *tensor, DLDataType type, int ndim, const int64_t *shape)
{
    h_tensor_make(tensor, type, ndim, shape, 0);
    to_device(tensor);
}

/* Tensors of slot operations, windows and of the convolution: the second half of the slots are copies' targets. */
static void make_more(run *r)
{
    const h_spec *s = &r->spec;
    const int64_t B = s->B, channels = 2 * (int64_t)s->H * s->K + (int64_t)s->HV * s->V;
    make_on_device(&r->targets, h_int_type(32), 1, (const int64_t[]){B});
    for (int64_t b = 0; b < B; b++)
        h_set(&r->targets.t, b, 0, 0, 0, (double)(B + b));
    make_on_device(&r->ends, h_int_type(64), 1, (const int64_t[]){B + 1});
    make_on_device(&r->accepted, h_int_type(32), 1, (const int64_t[]){B});
    for (int64_t b = 0; b <= B; b++)
        h_set(&r->ends.t, b, 0, 0, 0, (double)b);
    for (int64_t b = 0; b < B; b++)
        h_set(&r->accepted.t, b, 0, 0, 0, 1);
    make_on_device(&r->states, h_float_type(RSSM_DTYPE_FLOAT16), 4, (const int64_t[]){B, s->HV, s->K, s->V});
    make_on_device(&r->history, h_float_type(RSSM_DTYPE_FLOAT32), 3, (const int64_t[]){B, channels, TAPS - 1});
    make_on_device(&r->conv_in, h_float_type(s->io), 2, (const int64_t[]){B, channels});
    make_on_device(&r->conv_weight, h_float_type(s->io), 2, (const int64_t[]){channels, TAPS});
    make_on_device(&r->conv_out, h_float_type(s->io), 2, (const int64_t[]){B, channels});
}

static rssm_status run_init(run *r, h_spec spec, uint32_t flags, int32_t device, rssm_error *err)
{
    *r = (run){.spec = h_defaults(spec)};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.device_type = kDLCUDA;
    args.device_id = device;
    args.flags |= flags;
    args.max_batch = 1 << 20;
    rssm_status status = h_api()->init(&args, &r->plugin, err);
    r->call = h_call_new(&spec, 1);
    for (int role = 0; role < RSSM_T_COUNT; role++)
        to_device(&r->call->tensors[role]);
    const int64_t B[1] = {r->spec.B};
    h_tensor_make(&r->slots, h_int_type(32), 1, B, 0);
    h_tensor_make(&r->list, h_int_type(64), 1, B, 0);
    to_device(&r->slots);
    to_device(&r->list);
    for (int64_t b = 0; b < r->spec.B; b++) {
        h_set(&r->slots.t, b, 0, 0, 0, (double)b);
        h_set(&r->list.t, b, 0, 0, 0, (double)b);
    }
    make_more(r);
    return status;
}

static void run_new(run *r, h_spec spec)
{
    rssm_error err = h_error();
    ck_assert_msg(run_init(r, spec, 0, 0, &err) == RSSM_OK, "init: %s", err.message);
}

static void run_free(run *r)
{
    h_teardown(&r->plugin);
    h_call_free(r->call);
    h_tensor *const all[] = {&r->slots,   &r->list,        &r->targets,  &r->states, &r->history,
                             &r->conv_in, &r->conv_weight, &r->conv_out, &r->ends,   &r->accepted};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        h_tensor_free(all[i]);
    free(r->saved);
}

static rssm_status prepare(run *r, rssm_error *err)
{
    return h_api()->prepare(r->plugin, err);
}

/* The plugin's own pool, which the call then uses. */
static rssm_status pool_create(run *r, rssm_error *err)
{
    rssm_status status = h_api()->pool_create(r->plugin, NULL, err);
    rssm_error other = h_error();
    if (!status)
        ck_assert_int_eq(h_api()->pool_tensors(r->plugin, 0, r->call->roles, RSSM_T_COUNT, &other), RSSM_OK);
    r->call->roles[RSSM_T_CURSOR] = NULL;
    return status;
}

static rssm_status reset(run *r, rssm_error *err)
{
    const rssm_reset_args args = {.struct_size = sizeof args, .slots = &r->list.t, .stream = r->stream};
    return h_api()->reset(r->plugin, &args, err);
}

static rssm_status begin_with(run *r, uint32_t flags, rssm_error *err)
{
    const rssm_step_begin_args args = {.struct_size = sizeof args,
                                       .slots = &r->slots.t,
                                       .rows_out = r->call->roles[RSSM_T_ROWS],
                                       .stream = r->stream,
                                       .flags = flags};
    return h_api()->step_begin(r->plugin, &args, err);
}

static rssm_status begin(run *r, rssm_error *err)
{
    return begin_with(r, 0, err);
}

static rssm_status begin_deep(run *r, rssm_error *err)
{
    return begin_with(r, RSSM_CHECK_DEEP, err);
}

static rssm_status decode(run *r, rssm_error *err)
{
    r->call->args.stream = r->stream;
    return h_api()->decode(r->plugin, &r->call->args, err);
}

static const rssm_fault_api *fault_api(void)
{
    return h_api()->get_extension(RSSM_EXT_FAULT);
}

static rssm_status fault_read(run *r, rssm_error *err)
{
    uint32_t word = 1;
    rssm_status status = fault_api()->read(r->plugin, r->stream, &word, err);
    ck_assert_msg(status || word == 0, "a fault word of %u out of nothing", word);
    return status;
}

static rssm_status fault_clear(run *r, rssm_error *err)
{
    return fault_api()->clear(r->plugin, r->stream, err);
}

static const rssm_slots_api *slots_api(void)
{
    return h_api()->get_extension(RSSM_EXT_SLOTS);
}

static rssm_status copy_slots(run *r, rssm_error *err)
{
    const rssm_copy_args args = {
        .struct_size = sizeof args, .src = &r->list.t, .dst = &r->targets.t, .stream = r->stream};
    return slots_api()->copy(r->plugin, &args, err);
}

typedef rssm_status (*state_call)(rssm_plugin *, const rssm_state_args *, rssm_error *);

static rssm_status move_states(run *r, state_call call, bool folds, rssm_error *err)
{
    const DLTensor *states[] = {&r->states.t}, *history[] = {&r->history.t};
    const DLTensor *decay[] = {r->call->roles[RSSM_T_A_LOG]};
    const rssm_state_args args = {.struct_size = sizeof args,
                                  .slots = &r->list.t,
                                  .states = states,
                                  .conv = history,
                                  .A_log = folds && r->spec.family == RSSM_FAMILY_MAMBA2 ? decay : NULL,
                                  .num_layers = 1,
                                  .order = RSSM_STATE_KV,
                                  .stream = r->stream};
    return call(r->plugin, &args, err);
}

static rssm_status import_states(run *r, rssm_error *err)
{
    return move_states(r, slots_api()->import_state, false, err);
}

static rssm_status export_states(run *r, rssm_error *err)
{
    return move_states(r, slots_api()->export_state, true, err);
}

static rssm_status flush_slots(run *r, rssm_error *err)
{
    const DLTensor *decay[] = {r->call->roles[RSSM_T_A_LOG]};
    const bool needs = r->spec.family == RSSM_FAMILY_MAMBA2;
    const rssm_flush_args args = {.struct_size = sizeof args,
                                  .slots = &r->list.t,
                                  .A_log = needs ? decay : NULL,
                                  .num_layers = needs,
                                  .stream = r->stream};
    return slots_api()->flush(r->plugin, &args, err);
}

static rssm_status save(run *r, rssm_error *err)
{
    uint64_t bytes = 0;
    rssm_error other = h_error();
    ck_assert_int_eq(slots_api()->saved_bytes(r->plugin, &bytes, &other), RSSM_OK);
    free(r->saved);
    r->saved = malloc(bytes);
    return slots_api()->save(r->plugin, 1, r->saved, bytes, &r->saved_bytes, r->stream, err);
}

static rssm_status load(run *r, rssm_error *err)
{
    return slots_api()->load(r->plugin, 4, r->saved, r->saved_bytes, r->stream, err);
}

static const rssm_verify_api *verify_api(void)
{
    return h_api()->get_extension(RSSM_EXT_VERIFY);
}

static rssm_status verify_begin(run *r, rssm_error *err)
{
    const rssm_verify_begin_args args = {.struct_size = sizeof args,
                                         .slots = &r->slots.t,
                                         .cu_seqlens = &r->ends.t,
                                         .rows_out = r->call->roles[RSSM_T_ROWS],
                                         .stream = r->stream,
                                         .max_T = DRAFTS + 1};
    return verify_api()->verify_begin(r->plugin, &args, err);
}

static rssm_status verify(run *r, rssm_error *err)
{
    r->call->args.stream = r->stream;
    return verify_api()->verify(r->plugin, &r->call->args, err);
}

static rssm_status commit(run *r, rssm_error *err)
{
    const rssm_commit_args args = {.struct_size = sizeof args,
                                   .rows = r->call->roles[RSSM_T_ROWS],
                                   .accepted = &r->accepted.t,
                                   .stream = r->stream};
    return verify_api()->commit(r->plugin, &args, err);
}

typedef rssm_status (*conv_call)(rssm_plugin *, const rssm_decode_args *, rssm_error *);

static rssm_status convolve_by(run *r, conv_call call, rssm_error *err)
{
    const DLTensor *roles[RSSM_T_COUNT] = {[RSSM_T_ROWS] = r->call->roles[RSSM_T_ROWS],
                                           [RSSM_T_CONV] = r->call->roles[RSSM_T_CONV],
                                           [RSSM_T_CONV_IN] = &r->conv_in.t,
                                           [RSSM_T_CONV_WEIGHT] = &r->conv_weight.t,
                                           [RSSM_T_CONV_OUT] = &r->conv_out.t};
    const rssm_decode_args args = {
        .struct_size = sizeof args, .tensors = roles, .num_tensors = RSSM_T_COUNT, .stream = r->stream};
    return call(r->plugin, &args, err);
}

static const rssm_conv_api *conv_api(void)
{
    return h_api()->get_extension(RSSM_EXT_CONV);
}

static rssm_status convolve(run *r, rssm_error *err)
{
    return convolve_by(r, conv_api()->conv, err);
}

static rssm_status convolve_windows(run *r, rssm_error *err)
{
    return convolve_by(r, conv_api()->conv_verify, err);
}

typedef rssm_status (*action)(run *r, rssm_error *err);

static const action scenario[] = {prepare,      pool_create,      reset,       begin,  decode,   fault_clear,
                                  fault_read,   decode,           begin_deep,  decode, convolve, import_states,
                                  copy_slots,   export_states,    flush_slots, save,   load,     decode,
                                  verify_begin, convolve_windows, verify,      commit};
enum { NUM_ACTIONS = sizeof scenario / sizeof scenario[0] };

static void must(run *r, action act, const char *name)
{
    rssm_error err = h_error();
    rssm_status status = act(r, &err);
    ck_assert_msg(status == RSSM_OK, "%s: %s", name, err.message);
}
#define MUST(r, act) must(r, act, #act)

static void assert_nothing_held(const char *when)
{
    ck_assert_msg(fake->allocations == 0 && fake->libraries == 0 && fake->retained == 0,
                  "%s: %lld allocations, %lld libraries, %lld contexts are left", when, (long long)fake->allocations,
                  (long long)fake->libraries, (long long)fake->retained);
    ck_assert_msg(fake->misuse == 0, "%s: %s", when, fake->misused);
}

/* ---- calls and when --------------------------------------------------------------------------------------------- */

START_TEST(nothing_is_called_before_prepare)
{
    run r;
    run_new(&r, tuned());
    rssm_error err = h_error();
    rssm_description description = {.struct_size = sizeof description};
    rssm_layout layout = {.struct_size = sizeof layout};
    ck_assert_int_eq(h_api()->describe(r.plugin, &description, &err), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_layout(r.plugin, &layout, &err), RSSM_OK);
    ck_assert_msg(h_api()->validate(r.plugin, &r.call->args, &err) == RSSM_OK, "validate: %s", err.message);
    ck_assert_int_eq(description.device_type, kDLCUDA);
    ck_assert_int_eq(pool_create(&r, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(reset(&r, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(begin(&r, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(decode(&r, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(fault_api()->clear(r.plugin, NULL, &err), RSSM_ERR_STATE);
    run_free(&r);
    ck_assert_int_eq(fake->calls, 0);
    ck_assert_int_eq(fake->lookups, 0);
}
END_TEST

START_TEST(what_an_instance_holds)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    ck_assert_int_eq(fake->retained, 1);
    ck_assert_int_gt(fake->libraries, 0);
    ck_assert_int_eq(fake->contexts()->depth, 0);
    int64_t calls = fake->calls, bytes = fake->bytes;
    MUST(&r, prepare); /* does nothing */
    ck_assert_int_eq(fake->calls, calls);
    rssm_layout layout = {.struct_size = sizeof layout};
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->pool_layout(r.plugin, &layout, &err), RSSM_OK);
    MUST(&r, pool_create);
    ck_assert_int_ge(fake->bytes, layout.slab_bytes);
    ck_assert_int_le(fake->bytes, layout.pool_bytes); /* the planner's promise */
    ck_assert_int_gt(fake->bytes, bytes);
    run_free(&r);
    assert_nothing_held("after teardown");
}
END_TEST

START_TEST(the_plugin_allocated_pool_is_zero)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    MUST(&r, pool_create);
    const DLTensor *state = r.call->roles[RSSM_T_STATE];
    ck_assert_int_eq(state->device.device_type, kDLCUDA);
    for (int64_t i = 0; i < 6 * 2 * 128 * 128; i++)
        ck_assert_msg(((const float *)state->data)[i] == 0, "state element %lld is not 0", (long long)i);
    run_free(&r);
}
END_TEST

/* What a call for the device enqueues. */
typedef struct enqueued {
    action act;
    int launches;
    const char *kernel; /* the first; prefix of its name */
} enqueued;

static const enqueued device_calls[] = {
    {reset, 1, "rssm_reset"},
    {begin, 1, "rssm_step_begin"},
    {decode, 1, "rssm_step_gdn"},
    {convolve, 1, "rssm_conv"},
    {copy_slots, 1, "rssm_slots_copy"},
    {import_states, 1, "rssm_slots_give"},
    {export_states, 1, "rssm_slots_take"},
    {flush_slots, 2, "rssm_slots_take"}, /* the cursors move last */
    {verify_begin, 1, "rssm_verify_begin"},
    {convolve_windows, 1, "rssm_conv"},
    {verify, 1, "rssm_verify_gdn"},
    {commit, 1, "rssm_verify_commit"},
};
enum { NUM_DEVICE_CALLS = sizeof device_calls / sizeof device_calls[0] };

/* Three calls of the driver for each launch: push, launch, pop; no memory, no waiting. */
START_TEST(a_step_only_enqueues)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    MUST(&r, pool_create);
    for (int i = 0; i < NUM_DEVICE_CALLS; i++) {
        const enqueued *call = &device_calls[i];
        int64_t calls = fake->calls, launches = fake->launches;
        must(&r, call->act, call->kernel);
        ck_assert_int_eq(fake->calls, calls + 3 * call->launches);
        ck_assert_int_eq(fake->launches, launches + call->launches);
        const char *kernel = fake->launch[launches % FAKE_LAUNCHES].kernel;
        ck_assert_msg(strncmp(kernel, call->kernel, strlen(call->kernel)) == 0, "%s ran, not %s", kernel, call->kernel);
    }
    ck_assert_int_eq(fake->misuse, 0);
    run_free(&r);
}
END_TEST

/* A saved slot is the pool's bytes, and comes back. */
START_TEST(a_saved_slot_comes_back)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    MUST(&r, pool_create);
    const DLTensor *state = r.call->roles[RSSM_T_STATE];
    uint64_t random = 1;
    h_fill_random(state, -1, 1, &random);
    MUST(&r, save);
    MUST(&r, load);
    for (int64_t i = 0; i < 2 * 128 * 128; i++)
        ck_assert(h_get(state, 4, i / 16384, i / 128 % 128, i % 128) ==
                  h_get(state, 1, i / 16384, i / 128 % 128, i % 128));
    run_free(&r);
}
END_TEST

/* A ring whose slots do not start at multiples of 16 bytes is not for the tiles of slot operations, at L = 1 neither. */
START_TEST(odd_rings_are_not_for_tiles)
{
    const int gap = _i; /* elements between slots */
    h_spec spec = tuned();
    spec.L = 1;
    spec.drafts = 0;
    spec.init_flags = 0;
    run r;
    run_new(&r, spec);
    h_tensor keys, cursor;
    make_on_device(&cursor, h_int_type(32), 2, (const int64_t[]){6, RSSM_CURSOR_WIDTH});
    h_tensor_make(&keys, r.call->roles[RSSM_T_K_CACHE]->dtype, 4, (const int64_t[]){6, 1, 1, 128}, gap);
    to_device(&keys);
    const DLTensor *pool[RSSM_T_COUNT] = {[RSSM_T_STATE] = r.call->roles[RSSM_T_STATE],
                                          [RSSM_T_D_CACHE] = r.call->roles[RSSM_T_D_CACHE],
                                          [RSSM_T_K_CACHE] = &keys.t,
                                          [RSSM_T_G_CACHE] = r.call->roles[RSSM_T_G_CACHE],
                                          [RSSM_T_CURSOR] = &cursor.t};
    const rssm_pool_args args = {.struct_size = sizeof args, .tensors = pool, .num_roles = RSSM_T_COUNT};
    rssm_error err = h_error();
    MUST(&r, prepare);
    ck_assert_msg(h_api()->pool_create(r.plugin, &args, &err) == RSSM_OK, "%s", err.message);
    const int64_t launches = fake->launches;
    MUST(&r, flush_slots);
    ck_assert_str_eq(fake->launch[launches % FAKE_LAUNCHES].kernel,
                     gap ? "rssm_slots_flush" : "rssm_slots_take_f32_scalar_bf16");
    run_free(&r);
    h_tensor_free(&keys);
    h_tensor_free(&cursor);
}
END_TEST

/* Which instances have small batches, and when their kernel runs. */
typedef struct small_case {
    int32_t state, io, ring, L;
    uint32_t flags;
    bool host_pos, flushes; /* flushes: there are small batches */
    int beyond;             /* rows beyond small_batch */
    bool small, kept;       /* the kernel for small batches runs; that for those that keep their records */
} small_case;

#define NO_SMALL RSSM_INIT_NO_SMALL_FLUSH

static const small_case small_cases[] = {
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .small = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .beyond = 1},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 16, NO_SMALL, .small = false},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .host_pos = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT32, 0, 16, 0, .flushes = true, .small = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_FLOAT32, 16, 0, .small = false}, /* no such kernel */
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16, 0, 16, 0, .small = false},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 17, 0, .small = false},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .small = true},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .beyond = 1},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .flushes = true, .host_pos = true},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_FLOAT32, 16, 0, .small = false},
    {RSSM_DTYPE_FLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, 0, .small = false},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, NO_SMALL, .kept = true},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, NO_SMALL, .beyond = 9},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 16, NO_SMALL, .host_pos = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 1, 0, .small = true},
    {RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_BFLOAT16, 0, 1, 0, .small = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 1, 0, .host_pos = true, .small = true},
    {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, 0, 1, 0, .beyond = 600},
};
enum { SMALL_CASES = sizeof small_cases / sizeof small_cases[0] };

static h_spec small_spec(const small_case *c)
{
    return (h_spec){.family = RSSM_FAMILY_GDN,
                    .H = 1,
                    .HV = 2,
                    .K = 128,
                    .V = 128,
                    .B = 1,
                    .S = 1,
                    .L = c->L,
                    .state = c->state,
                    .io = c->io,
                    .gate = c->io,
                    .ring = c->ring,
                    .host_pos = c->host_pos,
                    .init_flags = c->flags};
}

START_TEST(small_batches)
{
    const small_case *c = &small_cases[_i];
    h_spec spec = small_spec(c);
    run r;
    run_new(&r, spec);
    rssm_description d = {.struct_size = sizeof d};
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->describe(r.plugin, &d, &err), RSSM_OK);
    ck_assert_msg((d.small_batch > 0) == (c->flushes && RSSM_CUDA_SMALL_ON), "small_batch = %d", d.small_batch);
    run_free(&r);
    spec.B = c->beyond ? d.small_batch + c->beyond : 1;
    spec.S = spec.num_slots = spec.B;
    run_new(&r, spec);
    MUST(&r, prepare);
    MUST(&r, pool_create);
    MUST(&r, decode);
    const char *kernel = fake->launch[(fake->launches - 1) % FAKE_LAUNCHES].kernel;
    const char *wanted = !RSSM_CUDA_SMALL_ON ? "ring" : c->small ? "_small_" : c->kept ? "_kept_" : "_";
    bool is_small = strstr(kernel, "_small_") || strstr(kernel, "_kept_");
    ck_assert_msg(strstr(kernel, wanted) && is_small == (RSSM_CUDA_SMALL_ON && (c->small || c->kept)), "%d rows, %s",
                  (int)spec.B, kernel);
    ck_assert_int_eq(fake->misuse, 0);
    run_free(&r);
}
END_TEST

/* Bit 3 is no flag. */
START_TEST(an_unassigned_flag)
{
    run r;
    rssm_error err = h_error();
    ck_assert_int_eq(run_init(&r, tuned(), 1u << 3, 0, &err), RSSM_ERR_ARGUMENT);
    ck_assert_ptr_null(r.plugin);
    run_free(&r);
}
END_TEST

/* Dims that no tuned kernel is for. */
START_TEST(the_general_kernel_serves_the_rest)
{
    run r;
    h_spec spec = {.family = RSSM_FAMILY_KDA, .K = 7, .V = 5, .num_slots = 5};
    run_new(&r, spec);
    MUST(&r, prepare);
    MUST(&r, pool_create);
    MUST(&r, decode);
    ck_assert_str_eq(fake->launch[(fake->launches - 1) % FAKE_LAUNCHES].kernel, "rssm_step_general");
    run_free(&r);
}
END_TEST

/* A device whose blocks may have less shared memory than the largest kernel wants: a smaller one, or the general one. */
START_TEST(little_shared_memory)
{
    static const int shared[] = {99 * 1024, 48 * 1024};
    for (int i = 0; i < 2; i++) {
        run r;
        h_spec spec = {.family = RSSM_FAMILY_MAMBA2,
                       .H = 1,
                       .HV = 8,
                       .K = 256,
                       .V = 128,
                       .L = 16,
                       .B = 300,
                       .S = 300,
                       .num_slots = 300};
        fake->shared = shared[i];
        run_new(&r, spec);
        MUST(&r, prepare);
        MUST(&r, pool_create);
        MUST(&r, decode);
        ck_assert_int_eq(fake->misuse, 0);
        run_free(&r);
        assert_nothing_held("after teardown");
    }
}
END_TEST

/* Every launch may start early where the device and its driver know that and this build's kernels wait, no other does. */
START_TEST(launches_that_start_early)
{
    static const struct {
        int capability, version;
        uint32_t flags;
        int early;
    } cases[] = {{9, 13000, 0, 1},
                 {12, 12030, 0, 1},
                 {8, 13000, 0, 0},
                 {9, 12020, 0, 0},
                 {9, 13000, RSSM_INIT_NO_EARLY_START, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run r;
        h_spec spec = tuned();
        spec.init_flags |= cases[i].flags;
        fake->capability = cases[i].capability;
        fake->version = cases[i].version;
        run_new(&r, spec);
        MUST(&r, prepare);
        MUST(&r, pool_create);
        for (int k = 0; k < NUM_DEVICE_CALLS; k++) {
            int64_t first = fake->launches;
            must(&r, device_calls[k].act, device_calls[k].kernel);
            for (int64_t n = first; n < fake->launches; n++)
                ck_assert_int_eq(fake->launch[n % FAKE_LAUNCHES].early, cases[i].early && RSSM_CUDA_PTX >= 90);
        }
        ck_assert_int_eq(fake->misuse, 0);
        run_free(&r);
        assert_nothing_held("after teardown");
    }
}
END_TEST

START_TEST(streams_are_passed_on)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    MUST(&r, pool_create);
    for (uintptr_t stream = 0; stream < 3; stream++) {
        r.stream = (void *)(stream * 0x1000);
        for (int i = 0; i < NUM_DEVICE_CALLS; i++) {
            must(&r, device_calls[i].act, device_calls[i].kernel);
            ck_assert_ptr_eq(fake->launch[(fake->launches - 1) % FAKE_LAUNCHES].stream, r.stream);
        }
        MUST(&r, fault_read);
        ck_assert_ptr_eq(fake->stream_of[FAKE_to_host], r.stream);
        ck_assert_ptr_eq(fake->stream_of[FAKE_stream_sync], r.stream);
        MUST(&r, save);
        ck_assert_ptr_eq(fake->stream_of[FAKE_to_host], r.stream);
        ck_assert_ptr_eq(fake->stream_of[FAKE_stream_sync], r.stream);
        MUST(&r, load);
        ck_assert_ptr_eq(fake->stream_of[FAKE_to_device], r.stream);
        ck_assert_ptr_eq(fake->stream_of[FAKE_stream_sync], r.stream);
        int64_t waits = fake->calls_of[FAKE_stream_sync];
        MUST(&r, fault_clear);
        ck_assert_ptr_eq(fake->stream_of[FAKE_memset8], r.stream);
        ck_assert_int_eq(fake->calls_of[FAKE_stream_sync], waits);
        MUST(&r, begin_deep);
        ck_assert_ptr_eq(fake->stream_of[FAKE_to_host], r.stream);
        ck_assert_ptr_eq(fake->stream_of[FAKE_stream_sync], r.stream);
    }
    run_free(&r);
}
END_TEST

/* More rows, slots and heads than one grid dimension has room for. */
START_TEST(grids_of_large_batches)
{
    run r;
    h_spec spec = {.family = RSSM_FAMILY_GDN, .H = 1, .HV = 1, .K = 2, .V = 3, .L = 2, .B = 140000, .S = 140000};
    spec.num_slots = spec.S;
    run_new(&r, spec);
    MUST(&r, prepare);
    MUST(&r, pool_create);
    MUST(&r, begin);
    ck_assert_int_ge((int64_t)fake->launch[(fake->launches - 1) % FAKE_LAUNCHES].grid[0] * 256, spec.B);
    MUST(&r, decode);
    const fake_launch *step = &fake->launch[(fake->launches - 1) % FAKE_LAUNCHES];
    ck_assert_int_ge((int64_t)step->grid[1] * step->grid[2], spec.B);
    const rssm_reset_args all = {.struct_size = sizeof all};
    rssm_error err = h_error();
    ck_assert_msg(h_api()->reset(r.plugin, &all, &err) == RSSM_OK, "reset: %s", err.message);
    ck_assert_msg(fake->misuse == 0, "%s", fake->misused);
    run_free(&r);
}
END_TEST

START_TEST(empty_calls_launch_nothing)
{
    run r;
    h_spec spec = tuned();
    spec.B = H_NONE;
    run_new(&r, spec);
    MUST(&r, prepare);
    MUST(&r, pool_create);
    int64_t launches = fake->launches;
    MUST(&r, reset);
    MUST(&r, begin);
    MUST(&r, decode);
    ck_assert_int_eq(fake->launches, launches);
    run_free(&r);
}
END_TEST

/* ---- contexts, instances, forks --------------------------------------------------------------------------------- */

static CUresult push_host_context(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CUresult (*push)(CUcontext) = NULL;
    *(void **)(void *)&push = dlsym(library, "cuCtxPushCurrent_v2");
    return push(FAKE_HOST_CONTEXT);
}

START_TEST(the_current_context_stays_the_hosts)
{
    run r;
    ck_assert_int_eq(push_host_context(), CUDA_SUCCESS);
    run_new(&r, tuned());
    for (int i = 0; i < NUM_ACTIONS; i++) {
        MUST(&r, scenario[i]);
        ck_assert_ptr_eq(fake->contexts()->current, FAKE_HOST_CONTEXT);
        ck_assert_int_eq(fake->contexts()->depth, 1);
    }
    run_free(&r);
    ck_assert_ptr_eq(fake->contexts()->current, FAKE_HOST_CONTEXT);
    ck_assert_int_eq(fake->contexts()->depth, 1);
    assert_nothing_held("after teardown");
}
END_TEST

START_TEST(two_instances)
{
    run first, second;
    run_new(&first, tuned());
    h_spec other = {
        .family = RSSM_FAMILY_MAMBA2, .num_slots = 6, .S = 6, .drafts = DRAFTS, .init_flags = RSSM_INIT_CONV_STATE};
    run_new(&second, other);
    for (int i = 0; i < NUM_ACTIONS; i++) {
        MUST(&first, scenario[i]);
        MUST(&second, scenario[i]);
    }
    ck_assert_int_eq(fake->retained, 2);
    run_free(&first);
    ck_assert_int_eq(fake->retained, 1);
    MUST(&second, begin);
    MUST(&second, decode);
    run_free(&second);
    assert_nothing_held("after both");
}
END_TEST

START_TEST(plan_then_fork)
{
    run r;
    run_new(&r, tuned());
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(r.plugin, &r.call->args, &err), RSSM_OK);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    for (int i = 0; i < NUM_ACTIONS; i++) /* in both */
        MUST(&r, scenario[i]);
    run_free(&r);
    assert_nothing_held("after the fork");
    if (child == 0)
        _exit(0);
    int how = -1;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "the child failed");
}
END_TEST

static int not_refused(rssm_status status, const rssm_error *err)
{
    return status != RSSM_ERR_CUDA || err->cuda_error != CUDA_ERROR_NOT_INITIALIZED;
}

/* In a forked child: calls on the device that were not refused. */
static int calls_without_a_driver(run *r)
{
    int wrong = 0;
    rssm_error err;
    run late;
    for (int i = 2; i < NUM_ACTIONS; i++) { /* the pool is there */
        if (scenario[i] == load)            /* there is nothing to load: save was refused */
            continue;
        err = h_error();
        wrong += not_refused(scenario[i](r, &err), &err);
    }
    run_new(&late, tuned());
    err = h_error();
    wrong += not_refused(prepare(&late, &err), &err);
    run_free(&late);
    run_free(r);
    return wrong;
}

/* A driver does not survive a fork: the child's calls say so, and the parent knows nothing of it. */
START_TEST(fork_after_prepare)
{
    run r;
    run_new(&r, tuned());
    for (int i = 0; i < NUM_ACTIONS; i++)
        MUST(&r, scenario[i]);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(calls_without_a_driver(&r));
    int how = -1;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "%d of the child's calls were not refused", how >> 8);
    for (int i = 2; i < NUM_ACTIONS; i++)
        MUST(&r, scenario[i]);
    run_free(&r);
    assert_nothing_held("after the fork");
}
END_TEST

/* ---- drivers that are missing something ------------------------------------------------------------------------- */

START_TEST(no_device)
{
    run r;
    rssm_error err = h_error();
    for (int devices = 0; devices < 3; devices++) {
        fake->devices = devices;
        ck_assert_int_eq(run_init(&r, tuned(), 0, 3, &err), RSSM_OK);
        ck_assert_int_eq(prepare(&r, &err), RSSM_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, "no CUDA device 3"), "%s", err.message);
        run_free(&r);
        assert_nothing_held("without a device");
    }
}
END_TEST

START_TEST(an_old_driver)
{
    run r;
    run_new(&r, tuned());
    fake->missing = _i;
    rssm_error err = h_error();
    ck_assert_int_eq(prepare(&r, &err), RSSM_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.message, entry_names[_i]), "%s is not in: %s", entry_names[_i], err.message);
    ck_assert_int_eq(fake->calls, 0);
    fake->missing = -1;
    for (int i = 0; i < NUM_ACTIONS; i++)
        MUST(&r, scenario[i]);
    run_free(&r);
    assert_nothing_held("after all");
}
END_TEST

/* Of this program run anew, where libcuda.so.1 is no library at all. */
START_TEST(plans_without_a_driver)
{
    run r;
    run_new(&r, tuned());
    rssm_error err = h_error();
    rssm_layout layout = {.struct_size = sizeof layout};
    ck_assert_int_eq(h_api()->pool_layout(r.plugin, &layout, &err), RSSM_OK);
    ck_assert_int_eq(h_api()->validate(r.plugin, &r.call->args, &err), RSSM_OK);
    for (int i = 0; i < 2; i++) {
        err = h_error();
        ck_assert_int_eq(prepare(&r, &err), RSSM_ERR_UNSUPPORTED);
        ck_assert_msg(strstr(err.message, "libcuda.so.1"), "%s", err.message);
        ck_assert_int_eq(err.cuda_error, 0);
    }
    ck_assert_int_eq(decode(&r, &err), RSSM_ERR_STATE);
    run_free(&r);
}
END_TEST

static int main_without_driver(void)
{
    Suite *s = suite_create("no driver");
    TCase *t = tcase_create("no driver");
    tcase_add_test(t, plans_without_a_driver);
    suite_add_tcase(s, t);
    return h_run(s);
}

START_TEST(no_driver)
{
    char folder[] = "/tmp/no-libcuda-XXXXXX", file[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/libcuda.so.1", folder);
    FILE *empty = fopen(file, "w");
    ck_assert_ptr_nonnull(empty);
    fclose(empty);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        execl("/proc/self/exe", "test_fake", "--no-driver", (char *)NULL);
        _exit(127);
    }
    int how = -1;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    unlink(file);
    rmdir(folder);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "without a driver: %d", how);
}
END_TEST

/* ---- every call fails in turn ----------------------------------------------------------------------------------- */

static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NO_DEVICE,
                                  CUDA_ERROR_UNKNOWN, CUDA_ERROR_NO_BINARY_FOR_GPU};
enum { NUM_ERRORS = sizeof errors / sizeof errors[0] };

static bool ends_instance(CUresult error)
{
    return error == CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* What the failed driver call must become. */
static rssm_status status_of(CUresult error)
{
    int entry = fake->failed;
    if (error == CUDA_ERROR_NO_DEVICE && (entry == FAKE_init || entry == FAKE_device_count))
        return RSSM_ERR_UNSUPPORTED;
    if (error == CUDA_ERROR_NO_BINARY_FOR_GPU && (entry == FAKE_library_load || entry == FAKE_library_kernel ||
                                                  entry == FAKE_kernel_function || entry == FAKE_function_set))
        return RSSM_ERR_UNSUPPORTED;
    return ends_instance(error)                ? RSSM_ERR_DEVICE_LOST
           : error == CUDA_ERROR_OUT_OF_MEMORY ? RSSM_ERR_OUT_OF_MEMORY
                                               : RSSM_ERR_CUDA;
}

static void check_error(const rssm_error *err, rssm_status status, CUresult error, const char *where)
{
    rssm_status want = status_of(error);
    bool coded = want == RSSM_ERR_CUDA || want == RSSM_ERR_DEVICE_LOST;
    ck_assert_msg(status == want && err->status == want, "%s: status %d, not %d: %s", where, status, want,
                  err->message);
    ck_assert_msg(err->cuda_error == (coded ? (int32_t)error : 0), "%s: cuda_error %d: %s", where, err->cuda_error,
                  err->message);
    ck_assert_msg(err->message[0] && strlen(err->message) < sizeof err->message - 1, "%s: no message", where);
}

/* Runs the rest of the scenario: on a dead instance every call says so, on a living one all works. */
static void go_on(run *r, int from, CUresult error, const char *where)
{
    bool dead = ends_instance(error) && from > 0; /* a failed prepare leaves nothing to be dead */
    for (int i = from; i < NUM_ACTIONS; i++) {
        rssm_error err = h_error();
        if (i > from && scenario[from] == pool_create && dead && i > 1)
            return; /* without a pool there is nothing to call */
        if (scenario[i] == load && !r->saved_bytes)
            continue; /* the instance died before it could save */
        rssm_status status = scenario[i](r, &err);
        ck_assert_msg(status == (dead ? RSSM_ERR_DEVICE_LOST : RSSM_OK), "%s, then action %d: status %d: %s", where, i,
                      status, err.message);
        ck_assert_msg(!dead || err.cuda_error == (int32_t)error, "%s, then action %d: cuda_error %d", where, i,
                      err.cuda_error);
    }
}

/* What the named call would have given back is left; all else is not. */
static void check_books(const char *where)
{
    int entry = fake->failed;
    int64_t left = fake->allocations * (entry != FAKE_mem_free) + fake->libraries * (entry != FAKE_library_unload) +
                   fake->retained * (entry != FAKE_primary_release);
    ck_assert_msg(left == 0, "%s: %lld allocations, %lld libraries, %lld contexts are left", where,
                  (long long)fake->allocations, (long long)fake->libraries, (long long)fake->retained);
    ck_assert_msg(fake->allocations + fake->libraries + fake->retained <= 1, "%s: more than one thing is left", where);
    ck_assert_msg(fake->misuse == 0, "%s: %s", where, fake->misused);
    ck_assert_msg(fake->contexts()->depth == (entry == FAKE_pop), "%s: %lld contexts are still pushed", where,
                  (long long)fake->contexts()->depth);
}

/* The n-th call of the driver fails; false when there are fewer. */
static bool fail_nth(int64_t n, CUresult error)
{
    char where[128];
    run r;
    start();
    fake->fail_at = n;
    fake->fail_with = error;
    run_new(&r, tuned());
    int failed = -1;
    for (int i = 0; i < NUM_ACTIONS && failed < 0; i++) {
        rssm_error err = h_error();
        rssm_status status = scenario[i](&r, &err);
        snprintf(where, sizeof where, "call %lld (%s in action %d) gives %d", (long long)n,
                 fake->failed < 0 ? "?" : entry_names[fake->failed], i, (int)error);
        ck_assert_msg(status == RSSM_OK || fake->failed >= 0, "%s: nothing failed, yet: %s", where, err.message);
        ck_assert_msg(status != RSSM_OK || fake->failed < 0, "%s: the failure was not noticed", where);
        if (status)
            failed = i;
        if (status)
            check_error(&err, status, error, where);
    }
    if (failed >= 0)
        go_on(&r, failed, error, where);
    bool push_at_the_end = false;
    if (failed < 0) {
        run_free(&r);
        snprintf(where, sizeof where, "call %lld (%s in teardown) gives %d", (long long)n,
                 fake->failed < 0 ? "none" : entry_names[fake->failed], (int)error);
        push_at_the_end = fake->failed == FAKE_push; /* no way in: the context takes all along when it goes */
    } else {
        run_free(&r);
    }
    if (!push_at_the_end)
        check_books(where);
    return fake->failed >= 0;
}

static void say_figure(const char *what, CUresult error, int64_t n)
{
    if (getenv("RSSM_TEST_FIGURES"))
        fprintf(stderr, "%s: %lld calls of the driver failed in turn with %d\n", what, (long long)n, (int)error);
}

START_TEST(every_call_may_fail)
{
    int64_t n = 1;
    while (fail_nth(n, errors[_i]))
        n++;
    ck_assert_int_gt(n, 50); /* the whole scenario was walked */
    say_figure("every call", errors[_i], n - 1);
    ck_assert_int_eq(fake->calls, n - 1);
}
END_TEST

/* ---- beside another instance ------------------------------------------------------------------------------------ */

/* What the other instance goes on with. */
static const action beside[] = {begin,         decode,     verify_begin,  convolve_windows, verify, commit,
                                import_states, copy_slots, export_states, flush_slots,      save,   fault_read};
enum { NUM_BESIDE = sizeof beside / sizeof beside[0] };

static const CUresult errors_beside[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY};
enum { NUM_ERRORS_BESIDE = sizeof errors_beside / sizeof errors_beside[0] };

/* The other works on, unless the context that both are in has died: then it says so. */
static void check_other(run *other, CUresult error, const char *where)
{
    bool lost = ends_instance(error) && fake->failed >= 0;
    for (int i = 0; i < NUM_BESIDE; i++) {
        rssm_error err = h_error();
        rssm_status status = beside[i](other, &err);
        ck_assert_msg(status == (lost ? RSSM_ERR_DEVICE_LOST : RSSM_OK), "%s, the other's action %d: status %d: %s",
                      where, i, status, err.message);
        ck_assert_msg(!lost || err.cuda_error == (int32_t)error, "%s, the other's action %d: cuda_error %d", where, i,
                      err.cuda_error);
    }
}

static h_spec another(void)
{
    return (h_spec){
        .family = RSSM_FAMILY_MAMBA2, .num_slots = 6, .S = 6, .drafts = DRAFTS, .init_flags = RSSM_INIT_CONV_STATE};
}

/* The n-th call of an instance's life fails, while another one is there; afterwards a third one works. */
static bool fail_nth_beside(int64_t n, CUresult error)
{
    char where[128];
    run r, other, third;
    start();
    run_new(&other, another());
    for (int i = 0; i < NUM_ACTIONS; i++)
        MUST(&other, scenario[i]);
    run_new(&r, tuned());
    fake->fail_at = fake->calls + n;
    fake->fail_with = error;
    rssm_error err = h_error();
    for (int i = 0; i < NUM_ACTIONS && fake->failed < 0; i++)
        scenario[i](&r, &err);
    run_free(&r);
    bool failed = fake->failed >= 0;
    int entry = fake->failed;
    snprintf(where, sizeof where, "call %lld (%s) gives %d", (long long)n, failed ? entry_names[entry] : "none",
             (int)error);
    if (!failed)
        return false;
    check_other(&other, error, where);
    run_free(&other);
    bool given_back = entry != FAKE_push && entry != FAKE_pop && entry != FAKE_primary_release;
    if (given_back)
        check_books(where);
    if (given_back || !ends_instance(error)) { /* a dead context that is still held stays dead */
        run_new(&third, tuned());
        for (int i = 0; i < NUM_ACTIONS; i++)
            MUST(&third, scenario[i]);
        run_free(&third);
    }
    return true;
}

START_TEST(failures_stay_with_their_instance)
{
    int64_t n = 1;
    while (fail_nth_beside(n, errors_beside[_i]))
        n++;
    ck_assert_int_gt(n, 50);
    say_figure("beside another instance", errors_beside[_i], n - 1);
}
END_TEST

/* What a driver reports after a kernel of this process, or the device itself, has died. */
static const CUresult deaths[] = {CUDA_ERROR_ILLEGAL_ADDRESS,     CUDA_ERROR_LAUNCH_FAILED,
                                  CUDA_ERROR_ECC_UNCORRECTABLE,   CUDA_ERROR_NVLINK_UNCORRECTABLE,
                                  CUDA_ERROR_LAUNCH_TIMEOUT,      CUDA_ERROR_ASSERT,
                                  CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
                                  CUDA_ERROR_INVALID_PC,          CUDA_ERROR_HARDWARE_STACK_ERROR};
enum { NUM_DEATHS = sizeof deaths / sizeof deaths[0] };

/* A kernel faults some time after its launch, or the device goes: whichever call comes next says so, as do all later ones;
 * teardown gives everything back, and a new instance works. */
START_TEST(a_stream_in_error)
{
    for (int at = 2; at < NUM_ACTIONS; at++) {
        char where[64];
        run r;
        start();
        run_new(&r, tuned());
        for (int i = 0; i < at; i++)
            MUST(&r, scenario[i]);
        fake->faulted = deaths[_i];
        for (int i = at; i < NUM_ACTIONS; i++) {
            if (scenario[i] == load && !r.saved_bytes)
                continue; /* nothing was saved */
            rssm_error err = h_error();
            rssm_status status = scenario[i](&r, &err);
            snprintf(where, sizeof where, "error %d before action %d, action %d", (int)deaths[_i], at, i);
            ck_assert_msg(status == RSSM_ERR_DEVICE_LOST && err.status == status, "%s: status %d: %s", where, status,
                          err.message);
            ck_assert_msg(err.cuda_error == (int32_t)deaths[_i], "%s: cuda_error %d", where, err.cuda_error);
        }
        run_free(&r);
        assert_nothing_held("after the device was lost");
        ck_assert_int_eq(fake->contexts()->depth, 0);
        fake->faulted = CUDA_SUCCESS;
        run_new(&r, tuned());
        for (int i = 0; i < NUM_ACTIONS; i++)
            MUST(&r, scenario[i]);
        run_free(&r);
        assert_nothing_held("after the next one");
    }
}
END_TEST

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct counter {
    int64_t held, bytes, taken, fail_at, host_held, host_taken;
} counter;

static void *host_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    counter *c = user;
    void *ptr = aligned_alloc(alignment < 16 ? 16 : alignment, (bytes + 4095) / 4096 * 4096);
    c->host_held++;
    c->host_taken++;
    return ptr;
}

static void host_free(void *user, void *ptr, uint64_t bytes)
{
    (void)bytes;
    ((counter *)user)->host_held--;
    free(ptr);
}

static void *device_alloc(void *user, int32_t device, uint64_t bytes, uint64_t alignment)
{
    counter *c = user;
    ck_assert_int_eq(device, 0);
    ck_assert_msg(alignment == 256 && bytes > 0, "%llu bytes aligned to %llu", (unsigned long long)bytes,
                  (unsigned long long)alignment);
    if (++c->taken == c->fail_at)
        return NULL;
    c->held++;
    c->bytes += (int64_t)bytes;
    void *ptr = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(ptr, 0xFF, bytes);
    return ptr;
}

static void device_free(void *user, int32_t device, void *ptr, uint64_t bytes)
{
    counter *c = user;
    ck_assert_int_eq(device, 0);
    c->held--;
    c->bytes -= (int64_t)bytes;
    free(ptr);
}

static rssm_allocator allocator_of(counter *c)
{
    return (rssm_allocator){.struct_size = sizeof(rssm_allocator),
                            .user = c,
                            .alloc = host_alloc,
                            .free = host_free,
                            .device_alloc = device_alloc,
                            .device_free = device_free};
}

START_TEST(device_memory_through_callbacks)
{
    counter c = {0};
    rssm_allocator allocator = allocator_of(&c);
    h_spec spec = tuned();
    spec.allocator = &allocator;
    run r;
    run_new(&r, spec);
    ck_assert_int_eq(c.taken, 0);
    for (int i = 0; i < NUM_ACTIONS; i++)
        MUST(&r, scenario[i]);
    ck_assert_int_gt(c.held, 1);
    ck_assert_int_eq(fake->calls_of[FAKE_mem_alloc], 0);
    run_free(&r);
    ck_assert_int_eq(c.held, 0);
    ck_assert_int_eq(c.bytes, 0);
    ck_assert_int_eq(c.host_held, 0);
    ck_assert_int_eq(fake->calls_of[FAKE_mem_free], 0);
    assert_nothing_held("after teardown");
}
END_TEST

START_TEST(a_step_takes_no_memory)
{
    counter c = {0};
    rssm_allocator allocator = allocator_of(&c);
    h_spec spec = tuned();
    spec.allocator = &allocator;
    run r;
    run_new(&r, spec);
    MUST(&r, prepare);
    MUST(&r, pool_create);
    counter before = c;
    for (int i = 0; i < 100; i++) {
        MUST(&r, reset);
        MUST(&r, begin);
        MUST(&r, decode);
        MUST(&r, convolve);
        MUST(&r, import_states);
        MUST(&r, copy_slots);
        MUST(&r, export_states);
        MUST(&r, flush_slots);
        MUST(&r, verify_begin);
        MUST(&r, convolve_windows);
        MUST(&r, verify);
        MUST(&r, commit);
        MUST(&r, fault_read);
        MUST(&r, fault_clear);
    }
    ck_assert_int_eq(c.taken, before.taken);
    ck_assert_int_eq(c.host_taken, before.host_taken);
    run_free(&r);
}
END_TEST

/* Each device allocation fails in turn; the next try works. */
START_TEST(callbacks_that_fail)
{
    for (int64_t n = 1; n < 10; n++) {
        counter c = {.fail_at = n};
        rssm_allocator allocator = allocator_of(&c);
        h_spec spec = tuned();
        spec.allocator = &allocator;
        run r;
        start();
        run_new(&r, spec);
        int refused = 0;
        for (int i = 0; i < NUM_ACTIONS; i++) {
            rssm_error err = h_error();
            rssm_status status = scenario[i](&r, &err);
            if (status) {
                ck_assert_msg(status == RSSM_ERR_OUT_OF_MEMORY && !refused, "%d: %s", status, err.message);
                refused = 1;
                MUST(&r, scenario[i]);
            }
        }
        ck_assert_int_eq(refused, c.taken >= n);
        run_free(&r);
        ck_assert_int_eq(c.held, 0);
        ck_assert_int_eq(c.host_held, 0);
        assert_nothing_held("after teardown");
    }
}
END_TEST

/* The pool does not fit; with a smaller one it would. */
START_TEST(too_little_device_memory)
{
    run r;
    run_new(&r, tuned());
    MUST(&r, prepare);
    fake->memory = fake->bytes + 1000;
    rssm_error err = h_error();
    ck_assert_int_eq(pool_create(&r, &err), RSSM_ERR_OUT_OF_MEMORY);
    fake->memory = INT64_MAX;
    MUST(&r, pool_create);
    run_free(&r);
    assert_nothing_held("after teardown");
}
END_TEST

/* ---- the suite -------------------------------------------------------------------------------------------------- */

static Suite *suite(void)
{
    static const TTest *const *const tests[] = {&nothing_is_called_before_prepare,
                                                &what_an_instance_holds,
                                                &the_plugin_allocated_pool_is_zero,
                                                &a_step_only_enqueues,
                                                &a_saved_slot_comes_back,
                                                &an_unassigned_flag,
                                                &the_general_kernel_serves_the_rest,
                                                &little_shared_memory,
                                                &launches_that_start_early,
                                                &streams_are_passed_on,
                                                &grids_of_large_batches,
                                                &empty_calls_launch_nothing,
                                                &the_current_context_stays_the_hosts,
                                                &two_instances,
                                                &plan_then_fork,
                                                &fork_after_prepare,
                                                &no_device,
                                                &no_driver,
                                                &device_memory_through_callbacks,
                                                &a_step_takes_no_memory,
                                                &callbacks_that_fail,
                                                &too_little_device_memory};
    Suite *s = suite_create("cuda without a GPU");
    TCase *t = tcase_create("fake driver");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, start, NULL);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(t, *tests[i]);
    tcase_add_loop_test(t, small_batches, 0, SMALL_CASES);
    tcase_add_loop_test(t, odd_rings_are_not_for_tiles, 0, 2);
    tcase_add_loop_test(t, an_old_driver, 0, FAKE_ENTRIES);
    tcase_add_loop_test(t, every_call_may_fail, 0, NUM_ERRORS);
    tcase_add_loop_test(t, failures_stay_with_their_instance, 0, NUM_ERRORS_BESIDE);
    tcase_add_loop_test(t, a_stream_in_error, 0, NUM_DEATHS);
    suite_add_tcase(s, t);
    return s;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--no-driver") == 0)
        return main_without_driver();
    return h_run(suite());
}
