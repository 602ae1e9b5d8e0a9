/* A table in front of the judged plugin's, for `replayssm-conform --device cuda`: the same calls, on a GPU.
 *
 * It passes everything on, bad input as it is. Instances for the CPU become CUDA instances (but those of the reference code, which
 * the cases compare with); tensors that the cases call the CPU's are called the GPU's and the other way round. Their memory is one
 * that both can use (device.c), so no byte is copied, and what a call has enqueued is waited for before it returns. A pool that
 * the plugin would allocate lies in such memory too. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/harness.h"
#include "device.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum { MAGIC = 0x0CDA, ROLES = RSSM_T_COUNT + 16, LAYERS = 64, ARGS_BYTES = 1024 };

/* A tensor of the instance as the host sees it. */
typedef struct view {
    struct view *next;
    const DLTensor *of;
    DLTensor t;
} view;

typedef struct front {
    uint64_t magic;
    rssm_plugin *real;
    bool cuda;     /* an instance that was asked for the CPU */
    bool prepared; /* there is something to wait for */
    const char *level;
    void *slab;
    view *views;
} front;

/* ---- the plugin ------------------------------------------------------------------------------------------------ */

static const rssm_api *judged;

static const rssm_api *real_api(void)
{
    return judged;
}

/* NULL: not one of ours, but what a case hands in to see it refused. */
static front *front_of(const rssm_plugin *plugin)
{
    front *f = (front *)(uintptr_t)plugin;
    return f && f->magic == MAGIC ? f : NULL;
}

static rssm_plugin *real_of(const rssm_plugin *plugin)
{
    front *f = front_of(plugin);
    return f ? f->real : (rssm_plugin *)(uintptr_t)plugin;
}

static rssm_status done(front *f, rssm_status status)
{
    if (f && f->cuda && f->prepared)
        conform_device_wait();
    return status;
}

/* ---- arguments with the other device ----------------------------------------------------------------------------- */

/* Copies of a call's arguments and tensors. */
typedef struct swapped {
    union {
        uint64_t struct_size;
        unsigned char bytes[ARGS_BYTES];
    } args;
    DLTensor tensors[8 * LAYERS + ROLES];
    const DLTensor *lists[LAYERS * ROLES];
    size_t num_tensors, num_lists;
} swapped;

/* The copy, or NULL: to be passed on as it is, since the plugin is not concerned or has to refuse it. */
static void *take_args(swapped *s, const front *f, const void *args, uint64_t v1)
{
    uint64_t size;
    s->num_tensors = s->num_lists = 0;
    if (!f || !f->cuda || !args)
        return NULL;
    memcpy(&size, args, sizeof(size));
    if (size < v1 || size > ARGS_BYTES)
        return NULL;
    return memcpy(s->args.bytes, args, (size_t)size);
}

static const DLTensor *swap(swapped *s, const DLTensor *t)
{
    if (!t || s->num_tensors == sizeof(s->tensors) / sizeof(s->tensors[0]))
        return t;
    DLTensor *copy = &s->tensors[s->num_tensors++];
    *copy = *t;
    if (t->device.device_type == kDLCPU)
        copy->device.device_type = kDLCUDA;
    else if (t->device.device_type == kDLCUDA)
        copy->device.device_type = kDLCPU;
    return copy;
}

static const DLTensor *const *swap_list(swapped *s, const DLTensor *const *list, uint64_t n)
{
    if (!list || n > sizeof(s->lists) / sizeof(s->lists[0]) - s->num_lists)
        return list;
    const DLTensor **copy = s->lists + s->num_lists;
    s->num_lists += (size_t)n;
    for (uint64_t i = 0; i < n; i++)
        copy[i] = swap(s, list[i]);
    return copy;
}

/* The instance's layers: lists of a call that claims others are refused before they are read. */
static uint32_t layers_of(const front *f)
{
    rssm_layout layout = {.struct_size = sizeof(layout)};
    return real_api()->pool_layout(f->real, &layout, NULL) ? 0 : (uint32_t)layout.num_layers;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static rssm_status on_info(rssm_info *out, rssm_error *err)
{
    return real_api()->plugin_info(out, err);
}

static rssm_status on_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    swapped *s = malloc(sizeof(*s));
    front *f = calloc(1, sizeof(*f)), always = {.cuda = true};
    rssm_init_args *a = take_args(s, &always, args, sizeof(*a));
    if (!out || !a) {
        free(s);
        free(f);
        return real_api()->init(args, out, err);
    }
    f->magic = MAGIC;
    f->cuda = (a->device_type == 0 || a->device_type == kDLCPU) && !(a->flags & RSSM_INIT_CPU_REFERENCE) &&
              (a->cpu_level == RSSM_CPU_BEST || a->cpu_level == RSSM_CPU_SCALAR);
    f->level = f->cuda ? "scalar" : a->flags & RSSM_INIT_CPU_REFERENCE ? "reference" : "";
    if (f->cuda)
        a->device_type = kDLCUDA;
    rssm_status status = real_api()->init(a, &f->real, err);
    *out = status ? f->real : (rssm_plugin *)(void *)f;
    if (status)
        free(f);
    free(s);
    return status;
}

static rssm_status on_describe(const rssm_plugin *plugin, rssm_description *out, rssm_error *err)
{
    front *f = front_of(plugin);
    rssm_status status = real_api()->describe(real_of(plugin), out, err);
    if (status || !f || out->struct_size < sizeof(*out))
        return status;
    out->cpu_level = f->level;
    if (f->cuda)
        out->device_type = kDLCPU;
    return status;
}

static rssm_status on_layout(const rssm_plugin *plugin, rssm_layout *out, rssm_error *err)
{
    return real_api()->pool_layout(real_of(plugin), out, err);
}

static rssm_status on_prepare(rssm_plugin *plugin, rssm_error *err)
{
    front *f = front_of(plugin);
    if (f && f->cuda)
        conform_device_use();
    rssm_status status = real_api()->prepare(real_of(plugin), err);
    if (f && !status)
        f->prepared = true;
    return done(f, status);
}

/* A pool that the plugin would allocate: in memory of ours, zeroed as it would be. */
static rssm_status give_slab(front *f, rssm_error *err)
{
    rssm_layout layout = {.struct_size = sizeof(layout)};
    rssm_status status = real_api()->pool_layout(f->real, &layout, err);
    if (status || f->slab || !f->prepared || layout.slab_bytes > INT32_MAX)
        return status ? status : real_api()->pool_create(f->real, NULL, err);
    f->slab = h_block((size_t)layout.slab_bytes);
    memset(f->slab, 0, (size_t)layout.slab_bytes);
    const rssm_pool_args args = {
        .struct_size = sizeof(args), .slab = f->slab, .slab_bytes = (uint64_t)layout.slab_bytes};
    const rssm_reset_args reset = {.struct_size = sizeof(reset)};
    status = real_api()->pool_create(f->real, &args, err);
    return status ? status : real_api()->reset(f->real, &reset, err);
}

static rssm_status on_pool_create(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped *s = malloc(sizeof(*s));
    rssm_pool_args *a = take_args(s, f, args, sizeof(*a));
    rssm_status status;
    if (a)
        a->tensors = swap_list(s, a->tensors, (uint64_t)layers_of(f) * a->num_roles);
    if (f && f->cuda && !args)
        status = give_slab(f, err);
    else
        status = real_api()->pool_create(real_of(plugin), a ? a : args, err);
    free(s);
    return done(f, status);
}

static const DLTensor *view_of(front *f, const DLTensor *t)
{
    view *v = f->views;
    while (v && v->of != t)
        v = v->next;
    if (!v) {
        v = calloc(1, sizeof(*v));
        *v = (view){.next = f->views, .of = t, .t = *t};
        v->t.device = (DLDevice){.device_type = kDLCPU};
        f->views = v;
    }
    return &v->t;
}

static rssm_status on_pool_tensors(const rssm_plugin *plugin, int32_t layer, const DLTensor **tensors,
                                   uint32_t num_tensors, rssm_error *err)
{
    front *f = front_of(plugin);
    const DLTensor *before[ROLES] = {0};
    bool ours = f && f->cuda && tensors && num_tensors <= ROLES;
    if (ours)
        memcpy(before, tensors, num_tensors * sizeof(*tensors));
    rssm_status status = real_api()->pool_tensors(real_of(plugin), layer, tensors, num_tensors, err);
    for (uint32_t i = 0; ours && !status && i < num_tensors; i++)
        if (tensors[i] && tensors[i] != before[i])
            tensors[i] = view_of(f, tensors[i]);
    return status;
}

static rssm_status on_reset(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_reset_args *a = take_args(&s, f, args, sizeof(*a));
    if (a)
        a->slots = swap(&s, a->slots);
    return done(f, real_api()->reset(real_of(plugin), a ? a : args, err));
}

static rssm_status on_step_begin(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_step_begin_args *a = take_args(&s, f, args, sizeof(*a));
    if (a) {
        a->slots = swap(&s, a->slots);
        a->force_flush = swap(&s, a->force_flush);
        a->rows_out = swap(&s, a->rows_out);
    }
    return done(f, real_api()->step_begin(real_of(plugin), a ? a : args, err));
}

typedef rssm_status (*step_fn)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
typedef rssm_status (*validate_fn)(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

static const rssm_decode_args *swap_step(swapped *s, const front *f, const rssm_decode_args *args)
{
    rssm_decode_args *a = take_args(s, f, args, sizeof(*a));
    if (a && a->num_tensors <= ROLES)
        a->tensors = swap_list(s, a->tensors, a->num_tensors);
    return a ? a : args;
}

static rssm_status step(rssm_plugin *plugin, const rssm_decode_args *args, step_fn run, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    return done(f, run(real_of(plugin), swap_step(&s, f, args), err));
}

static rssm_status validate(const rssm_plugin *plugin, const rssm_decode_args *args, validate_fn run, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    return done(f, run(real_of(plugin), swap_step(&s, f, args), err));
}

static rssm_status on_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return validate(plugin, args, real_api()->validate, err);
}

static rssm_status on_decode(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step(plugin, args, real_api()->decode, err);
}

static rssm_status on_teardown(rssm_plugin **plugin, rssm_error *err)
{
    front *f = plugin ? front_of(*plugin) : NULL;
    if (!f)
        return real_api()->teardown(plugin, err);
    rssm_status status = real_api()->teardown(&f->real, err);
    if (f->real)
        return status;
    while (f->views) {
        view *v = f->views;
        f->views = v->next;
        free(v);
    }
    h_block_free(f->slab);
    f->magic = 0;
    free(f);
    *plugin = NULL;
    return status;
}

/* ---- extensions -------------------------------------------------------------------------------------------------- */

static const rssm_fault_api *real_fault(void)
{
    return real_api()->get_extension(RSSM_EXT_FAULT);
}

static rssm_status on_fault_read(rssm_plugin *plugin, void *stream, uint32_t *word, rssm_error *err)
{
    return real_fault()->read(real_of(plugin), stream, word, err);
}

static rssm_status on_fault_clear(rssm_plugin *plugin, void *stream, rssm_error *err)
{
    return done(front_of(plugin), real_fault()->clear(real_of(plugin), stream, err));
}

static const rssm_slots_api *real_slots(void)
{
    return real_api()->get_extension(RSSM_EXT_SLOTS);
}

typedef rssm_status (*state_fn)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);

static rssm_status state_call(rssm_plugin *plugin, const rssm_state_args *args, state_fn run, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_state_args *a = take_args(&s, f, args, sizeof(*a));
    if (a && a->num_layers <= LAYERS && a->num_layers <= layers_of(f)) {
        a->slots = swap(&s, a->slots);
        a->states = swap_list(&s, a->states, a->num_layers);
        a->conv = swap_list(&s, a->conv, a->num_layers);
        a->A_log = swap_list(&s, a->A_log, a->num_layers);
        a->A = swap_list(&s, a->A, a->num_layers);
    }
    return done(f, run(real_of(plugin), a ? a : args, err));
}

static rssm_status on_import(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err)
{
    return state_call(plugin, args, real_slots()->import_state, err);
}

static rssm_status on_export(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err)
{
    return state_call(plugin, args, real_slots()->export_state, err);
}

static rssm_status on_copy(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_copy_args *a = take_args(&s, f, args, sizeof(*a));
    if (a) {
        a->src = swap(&s, a->src);
        a->dst = swap(&s, a->dst);
    }
    return done(f, real_slots()->copy(real_of(plugin), a ? a : args, err));
}

static rssm_status on_flush(rssm_plugin *plugin, const rssm_flush_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_flush_args *a = take_args(&s, f, args, sizeof(*a));
    if (a && a->num_layers <= LAYERS && a->num_layers <= layers_of(f)) {
        a->slots = swap(&s, a->slots);
        a->A_log = swap_list(&s, a->A_log, a->num_layers);
        a->A = swap_list(&s, a->A, a->num_layers);
    }
    return done(f, real_slots()->flush(real_of(plugin), a ? a : args, err));
}

static rssm_status on_saved_bytes(const rssm_plugin *plugin, uint64_t *bytes, rssm_error *err)
{
    return real_slots()->saved_bytes(real_of(plugin), bytes, err);
}

static rssm_status on_save(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                           void *stream, rssm_error *err)
{
    return real_slots()->save(real_of(plugin), slot, buffer, buffer_bytes, written, stream, err);
}

static rssm_status on_load(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes, void *stream,
                           rssm_error *err)
{
    return done(front_of(plugin), real_slots()->load(real_of(plugin), slot, buffer, buffer_bytes, stream, err));
}

static rssm_status on_acquire(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *err)
{
    return real_slots()->acquire(real_of(plugin), handle, slot, err);
}

static rssm_status on_release(rssm_plugin *plugin, uint64_t handle, rssm_error *err)
{
    return real_slots()->release(real_of(plugin), handle, err);
}

static rssm_status on_check(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *err)
{
    return real_slots()->check(real_of(plugin), handle, slot, err);
}

static const rssm_verify_api *real_verify(void)
{
    return real_api()->get_extension(RSSM_EXT_VERIFY);
}

static rssm_status on_verify_begin(rssm_plugin *plugin, const rssm_verify_begin_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_verify_begin_args *a = take_args(&s, f, args, sizeof(*a));
    if (a) {
        a->slots = swap(&s, a->slots);
        a->cu_seqlens = swap(&s, a->cu_seqlens);
        a->rows_out = swap(&s, a->rows_out);
    }
    return done(f, real_verify()->verify_begin(real_of(plugin), a ? a : args, err));
}

static rssm_status on_validate_verify(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return validate(plugin, args, real_verify()->validate, err);
}

static rssm_status on_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step(plugin, args, real_verify()->verify, err);
}

static rssm_status on_commit(rssm_plugin *plugin, const rssm_commit_args *args, rssm_error *err)
{
    front *f = front_of(plugin);
    swapped s;
    rssm_commit_args *a = take_args(&s, f, args, sizeof(*a));
    if (a) {
        a->rows = swap(&s, a->rows);
        a->accepted = swap(&s, a->accepted);
    }
    return done(f, real_verify()->commit(real_of(plugin), a ? a : args, err));
}

static const rssm_conv_api *real_conv(void)
{
    return real_api()->get_extension(RSSM_EXT_CONV);
}

static rssm_status on_validate_conv(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return validate(plugin, args, real_conv()->validate, err);
}

static rssm_status on_conv(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step(plugin, args, real_conv()->conv, err);
}

static rssm_status on_conv_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step(plugin, args, real_conv()->conv_verify, err);
}

static const rssm_fault_api fault_api = {
    .struct_size = sizeof(fault_api), .read = on_fault_read, .clear = on_fault_clear};
static const rssm_slots_api slots_api = {.struct_size = sizeof(slots_api),
                                         .import_state = on_import,
                                         .export_state = on_export,
                                         .copy = on_copy,
                                         .flush = on_flush,
                                         .saved_bytes = on_saved_bytes,
                                         .save = on_save,
                                         .load = on_load,
                                         .acquire = on_acquire,
                                         .release = on_release,
                                         .check = on_check};
static const rssm_verify_api verify_api = {.struct_size = sizeof(verify_api),
                                           .verify_begin = on_verify_begin,
                                           .validate = on_validate_verify,
                                           .verify = on_verify,
                                           .commit = on_commit};
static const rssm_conv_api conv_api = {
    .struct_size = sizeof(conv_api), .validate = on_validate_conv, .conv = on_conv, .conv_verify = on_conv_verify};

static const void *on_extension(const char *id)
{
    static const struct {
        const char *id;
        const void *table;
    } ours[] = {{RSSM_EXT_FAULT, &fault_api},
                {RSSM_EXT_SLOTS, &slots_api},
                {RSSM_EXT_VERIFY, &verify_api},
                {RSSM_EXT_CONV, &conv_api}};
    const void *real = real_api()->get_extension(id);
    for (size_t i = 0; real && id && i < sizeof(ours) / sizeof(ours[0]); i++)
        if (strcmp(id, ours[i].id) == 0)
            return ours[i].table;
    return real;
}

static const char *on_status_name(rssm_status status)
{
    return real_api()->status_name(status);
}

static const char *on_role_name(int32_t role)
{
    return real_api()->role_name(role);
}

static rssm_api api = {.struct_size = sizeof(api),
                       .abi_major = RSSM_ABI_MAJOR,
                       .abi_minor = RSSM_ABI_MINOR,
                       .plugin_info = on_info,
                       .init = on_init,
                       .describe = on_describe,
                       .pool_layout = on_layout,
                       .prepare = on_prepare,
                       .pool_create = on_pool_create,
                       .pool_tensors = on_pool_tensors,
                       .reset = on_reset,
                       .step_begin = on_step_begin,
                       .validate = on_validate,
                       .decode = on_decode,
                       .get_extension = on_extension,
                       .teardown = on_teardown,
                       .status_name = on_status_name,
                       .role_name = on_role_name};

const rssm_api *conform_on_cuda(const rssm_api *real)
{
    judged = real;
    api.abi_minor = real->abi_minor;
    return &api;
}
