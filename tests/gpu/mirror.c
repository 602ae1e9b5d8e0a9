/* A plugin in front of the plugin, so that tests written for host memory run on a GPU as they are.
 *
 * It exports replayssm_get_api like any plugin and passes everything on to the plugin at $RSSM_MIRRORED. Instances for
 * the scalar CPU level become CUDA instances: each tensor of a call gets a twin in device memory, which is uploaded
 * before the call and downloaded after it, inputs too, so that the test sees every byte that the GPU changed. Twins lie
 * between guard bytes that are checked; gaps between strided rows travel along, as the test filled them. Small twins lie
 * in one arena and travel in one copy: a test that shares its GPU with others waits for few of its turns.
 * All other instances stay on the CPU, but only the reference says so to who asks for its level: loops over all
 * engines then run the reference and the GPU. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "gpu.h"
#include "replayssm.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum { GUARD = 256, GUARD_BYTE = 0xFF, MAX_TENSORS = RSSM_T_COUNT, ARENA_BYTES = 1 << 20 };
static const size_t whole_limit = (size_t)256 << 20; /* larger spans travel row by row, without their gaps */

typedef struct twin {
    struct twin *next;
    uintptr_t host;
    size_t bytes;
    CUdeviceptr block;     /* of its own, or 0: in the arena */
    CUdeviceptr at;        /* of the first byte, same address modulo 256 as in the host's memory */
    unsigned char *staged; /* of the first byte, in the arena's copy */
} twin;

/* Device memory and its copy on the host, both as long. */
typedef struct arena {
    CUdeviceptr device;
    unsigned char *host;
    size_t used;
} arena;

typedef struct mirrored {
    rssm_plugin *real;
    bool cuda, reference;
    twin *twins;
    arena arena;
    DLTensor *pool; /* the host's, with shapes and strides of their own */
    int64_t num_pool;
    int64_t cursor; /* which of them, -1 = none */
} mirrored;

/* Tensors of one call: the host's, and as the GPU gets them. */
typedef struct call {
    mirrored *m;
    int64_t count;
    const DLTensor **host;
    DLTensor *device;
    size_t first, end; /* part of the arena that the call uses */
} call;

static const rssm_api *real_api(void)
{
    static const rssm_api *api;
    if (api)
        return api;
    const char *path = getenv("RSSM_MIRRORED");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    rssm_get_api_fn get = NULL;
    if (library)
        *(void **)(void *)&get = dlsym(library, RSSM_GET_API_SYMBOL);
    api = get ? get(RSSM_ABI_MAJOR) : NULL;
    if (!api)
        fprintf(stderr, "RSSM_MIRRORED must be the path of replayssm.so: %s\n", path ? dlerror() : "not set");
    return api;
}

static mirrored *unwrap(const rssm_plugin *plugin)
{
    return (mirrored *)(uintptr_t)plugin;
}

static rssm_status refuse(rssm_error *err, rssm_status status, const char *what, const char *name)
{
    if (err) {
        err->status = status;
        snprintf(err->message, sizeof err->message, "mirror: %s%s", what, name);
    }
    return status;
}

/* ---- twins ------------------------------------------------------------------------------------------------------ */

static uintptr_t first_byte(const DLTensor *t)
{
    return (uintptr_t)t->data + (uintptr_t)t->byte_offset;
}

/* Bytes from the first element to the end of the last one; 0 for an empty tensor. */
static size_t span_of(const DLTensor *t)
{
    int64_t last = 0, compact = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0)
            return 0;
        last += (t->shape[i] - 1) * (t->strides ? t->strides[i] : compact);
        compact *= t->shape[i];
    }
    return (size_t)(last + 1) * t->dtype.bits / 8;
}

static size_t row_bytes(const DLTensor *t)
{
    size_t bytes = t->dtype.bits / 8;
    for (int i = 1; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

/* Under memcheck twins have no guards, so that it sees the first byte too many that is read. */
static size_t guard(void)
{
    return getenv("RSSM_MIRROR_EXACT") ? 0 : GUARD;
}

/* Room in the arena for a twin with its guards; false when it gets memory of its own. */
static bool place_in_arena(arena *a, twin *t, size_t shift, size_t size)
{
    size = (size + 255) / 256 * 256;
    if (guard() == 0 || size > ARENA_BYTES)
        return false;
    if (!a->device) {
        a->host = malloc(ARENA_BYTES);
        a->device = a->host ? gpu_try_alloc(ARENA_BYTES) : 0;
        if (a->host)
            memset(a->host, GUARD_BYTE, ARENA_BYTES);
    }
    if (!a->device || a->used + size > ARENA_BYTES)
        return false;
    t->at = a->device + a->used + guard() + shift;
    t->staged = a->host + a->used + guard() + shift;
    a->used += size;
    return true;
}

static bool place_alone(twin *t, size_t shift, size_t size)
{
    t->block = gpu_try_alloc(size);
    if (!t->block)
        return false;
    gpu_fill(t->block, GUARD_BYTE, size);
    t->at = t->block + guard() + shift;
    return true;
}

static twin *twin_of(mirrored *m, uintptr_t host, size_t bytes)
{
    for (twin *t = m->twins; t; t = t->next)
        if (t->host <= host && host + bytes <= t->host + t->bytes)
            return t;
    twin *t = calloc(1, sizeof *t);
    size_t shift = host % 256, size = guard() + shift + bytes + guard();
    if (!t || !(place_in_arena(&m->arena, t, shift, size) || place_alone(t, shift, size))) {
        free(t);
        return NULL;
    }
    t->host = host;
    t->bytes = bytes;
    t->next = m->twins;
    m->twins = t;
    return t;
}

static void free_twins(mirrored *m)
{
    while (m->twins) {
        twin *t = m->twins;
        m->twins = t->next;
        gpu_free(t->block);
        free(t);
    }
    gpu_free(m->arena.device);
    free(m->arena.host);
}

/* A tensor in the arena is only staged here: call_send sends them all. */
static void upload(const twin *of, const DLTensor *t)
{
    if (of->staged) {
        memcpy(of->staged + (first_byte(t) - of->host), (const void *)first_byte(t), span_of(t));
        return;
    }
    CUdeviceptr to = of->at + (first_byte(t) - of->host);
    const char *from = (const char *)first_byte(t);
    size_t span = span_of(t), stride = t->strides ? (size_t)t->strides[0] * t->dtype.bits / 8 : row_bytes(t);
    if (span <= whole_limit)
        gpu_upload(to, from, span);
    for (int64_t i = 0; span > whole_limit && i < t->shape[0]; i++)
        gpu_upload(to + (size_t)i * stride, from + (size_t)i * stride, row_bytes(t));
}

static bool is_guard(const unsigned char *bytes)
{
    for (size_t i = 0; i < guard(); i++)
        if (bytes[i] != GUARD_BYTE)
            return false;
    return true;
}

static void download_rows(const twin *of, const DLTensor *t)
{
    char *to = (char *)first_byte(t);
    size_t stride = t->strides ? (size_t)t->strides[0] * t->dtype.bits / 8 : row_bytes(t);
    for (int64_t i = 0; i < t->shape[0]; i++)
        gpu_download(to + (size_t)i * stride, of->at + (size_t)i * stride, row_bytes(t));
}

/* Copies a tensor out of bytes that a twin with its guards has; false: the GPU wrote beyond the twin. */
static bool copy_out(const twin *of, const DLTensor *t, const unsigned char *bytes)
{
    memcpy((char *)first_byte(t), bytes + guard() + (first_byte(t) - of->host), span_of(t));
    return is_guard(bytes) && is_guard(bytes + guard() + of->bytes);
}

static bool download(const twin *of, const DLTensor *t)
{
    if (of->staged)
        return copy_out(of, t, of->staged - guard());
    if (of->bytes > whole_limit) {
        download_rows(of, t);
        return true;
    }
    unsigned char *copy = malloc(of->bytes + 2 * GUARD);
    if (!copy)
        return false;
    gpu_download(copy, of->at - guard(), of->bytes + 2 * guard());
    bool whole = copy_out(of, t, copy);
    free(copy);
    return whole;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

static bool call_begin(call *c, mirrored *m, int64_t most)
{
    *c = (call){.m = m, .first = ARENA_BYTES, .host = calloc((size_t)most + 1, sizeof *c->host)};
    c->device = calloc((size_t)most + 1, sizeof *c->device);
    return c->host && c->device;
}

/* The tensor as the GPU gets it, uploaded; t itself where there is nothing to mirror, NULL without memory. */
static const DLTensor *call_take(call *c, const DLTensor *t)
{
    if (!t)
        return NULL;
    DLTensor *device = &c->device[c->count];
    *device = *t;
    device->device = (DLDevice){.device_type = kDLCUDA};
    c->host[c->count++] = t;
    if (!t->data || span_of(t) == 0)
        return device;
    twin *of = twin_of(c->m, first_byte(t), span_of(t));
    if (!of)
        return NULL;
    upload(of, t);
    if (of->staged) {
        size_t first = (size_t)(of->staged - c->m->arena.host) - guard(), end = first + of->bytes + 2 * guard();
        c->first = first < c->first ? first : c->first;
        c->end = end > c->end ? end : c->end;
    }
    device->data = (void *)(of->at + (first_byte(t) - of->host) - t->byte_offset);
    return device;
}

/* After the last call_take. */
static void call_send(call *c)
{
    if (c->first < c->end)
        gpu_send(c->m->arena.device + c->first, c->m->arena.host + c->first, c->end - c->first);
}

static rssm_status call_end(call *c, rssm_status status, rssm_error *err)
{
    if (c->first < c->end)
        gpu_fetch(c->m->arena.host + c->first, c->m->arena.device + c->first, c->end - c->first);
    for (int64_t i = 0; i < c->count; i++) {
        const DLTensor *t = c->host[i];
        size_t span = t->data ? span_of(t) : 0;
        if (span && !download(twin_of(c->m, first_byte(t), span), t) && !status)
            status = refuse(err, RSSM_ERR_INTERNAL, "the GPU wrote outside a tensor", "");
    }
    free(c->host);
    free(c->device);
    return status;
}

static rssm_status no_memory(rssm_error *err)
{
    return refuse(err, RSSM_ERR_OUT_OF_MEMORY, "no memory", "");
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static rssm_status mirror_info(rssm_info *out, rssm_error *err)
{
    return real_api()->plugin_info(out, err);
}

static rssm_status mirror_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *err)
{
    mirrored *m = calloc(1, sizeof *m);
    if (!m)
        return no_memory(err);
    rssm_init_args copy = *args;
    m->reference = (args->flags & RSSM_INIT_CPU_REFERENCE) != 0;
    m->cuda = !m->reference && args->cpu_level == RSSM_CPU_SCALAR;
    m->cursor = -1;
    if (m->cuda)
        copy.device_type = kDLCUDA;
    rssm_status status = real_api()->init(&copy, &m->real, err);
    *out = (rssm_plugin *)(void *)m;
    if (status) {
        free(m);
        *out = NULL;
    }
    return status;
}

static rssm_status mirror_describe(const rssm_plugin *plugin, rssm_description *out, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    rssm_status status = real_api()->describe(m->real, out, err);
    if (!status && !m->reference)
        out->cpu_level = m->cuda ? "scalar" : "";
    return status;
}

static rssm_status mirror_layout(const rssm_plugin *plugin, rssm_layout *out, rssm_error *err)
{
    return real_api()->pool_layout(unwrap(plugin)->real, out, err);
}

static rssm_status mirror_prepare(rssm_plugin *plugin, rssm_error *err)
{
    return real_api()->prepare(unwrap(plugin)->real, err);
}

static bool keep_pool_tensor(mirrored *m, const DLTensor *t, bool cursor)
{
    DLTensor *kept = &m->pool[m->num_pool];
    int64_t *sizes = calloc((size_t)t->ndim * 2, sizeof *sizes);
    if (!sizes)
        return false;
    *kept = *t;
    kept->shape = memcpy(sizes, t->shape, (size_t)t->ndim * sizeof *sizes);
    kept->strides = t->strides ? memcpy(sizes + t->ndim, t->strides, (size_t)t->ndim * sizeof *sizes) : NULL;
    if (cursor)
        m->cursor = m->num_pool;
    m->num_pool++;
    return true;
}

static rssm_status bind_tensors(mirrored *m, const rssm_pool_args *args, int64_t layers, rssm_error *err)
{
    int64_t most = layers * args->num_roles;
    const DLTensor **tensors = calloc((size_t)most + 1, sizeof *tensors);
    call c;
    m->pool = calloc((size_t)most + 1, sizeof *m->pool);
    if (!tensors || !m->pool || !call_begin(&c, m, most))
        return no_memory(err);
    for (int64_t i = 0; i < most; i++) {
        const DLTensor *t = args->tensors[i];
        bool cursor = i % args->num_roles == RSSM_T_CURSOR;
        tensors[i] = call_take(&c, t);
        if (t && (!tensors[i] || ((!cursor || i < args->num_roles) && !keep_pool_tensor(m, t, cursor))))
            return no_memory(err);
    }
    rssm_pool_args copy = *args;
    copy.tensors = tensors;
    call_send(&c);
    rssm_status status = call_end(&c, real_api()->pool_create(m->real, &copy, err), err);
    free(tensors);
    return status;
}

static rssm_status mirror_pool_create(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    if (!m->cuda)
        return real_api()->pool_create(m->real, args, err);
    if (!args || !args->tensors)
        return refuse(err, RSSM_ERR_UNSUPPORTED, "pool_create without tensors", "");
    rssm_layout layout = {.struct_size = sizeof layout};
    rssm_status status = real_api()->pool_layout(m->real, &layout, err);
    return status ? status : bind_tensors(m, args, layout.num_layers, err);
}

static rssm_status mirror_pool_tensors(const rssm_plugin *plugin, int32_t layer, const DLTensor **tensors,
                                       uint32_t num_tensors, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    if (m->cuda)
        return refuse(err, RSSM_ERR_UNSUPPORTED, "pool_tensors", "");
    return real_api()->pool_tensors(m->real, layer, tensors, num_tensors, err);
}

static rssm_status mirror_reset(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_api()->reset(m->real, args, err);
    if (!call_begin(&c, m, m->num_pool + 1))
        return no_memory(err);
    rssm_reset_args copy = *args;
    copy.slots = call_take(&c, args->slots);
    for (int64_t i = 0; i < m->num_pool; i++)
        call_take(&c, &m->pool[i]);
    call_send(&c);
    return call_end(&c, real_api()->reset(m->real, &copy, err), err);
}

static rssm_status mirror_step_begin(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_api()->step_begin(m->real, args, err);
    if (!call_begin(&c, m, 4))
        return no_memory(err);
    rssm_step_begin_args copy = *args;
    copy.slots = call_take(&c, args->slots);
    copy.force_flush = call_take(&c, args->force_flush);
    copy.rows_out = call_take(&c, args->rows_out);
    if (m->cursor >= 0)
        call_take(&c, &m->pool[m->cursor]);
    call_send(&c);
    return call_end(&c, real_api()->step_begin(m->real, &copy, err), err);
}

typedef rssm_status (*step_fn)(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

static rssm_status step(mirrored *m, const rssm_decode_args *args, step_fn run, rssm_error *err)
{
    const DLTensor *tensors[MAX_TENSORS] = {NULL};
    call c;
    if (args->num_tensors > MAX_TENSORS || !call_begin(&c, m, MAX_TENSORS))
        return no_memory(err);
    for (uint32_t role = 0; role < args->num_tensors; role++) {
        tensors[role] = call_take(&c, args->tensors[role]);
        if (args->tensors[role] && !tensors[role])
            return no_memory(err);
    }
    rssm_decode_args copy = *args;
    copy.tensors = tensors;
    call_send(&c);
    return call_end(&c, run(m->real, &copy, err), err);
}

static rssm_status validate_real(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return real_api()->validate(plugin, args, err);
}

static rssm_status mirror_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    return m->cuda ? step(m, args, validate_real, err) : validate_real(m->real, args, err);
}

static rssm_status mirror_decode(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    return m->cuda ? step(m, args, real_api()->decode, err) : real_api()->decode(m->real, args, err);
}

static rssm_status mirror_teardown(rssm_plugin **plugin, rssm_error *err)
{
    mirrored *m = plugin ? unwrap(*plugin) : NULL;
    if (!m)
        return real_api()->teardown(NULL, err);
    rssm_status status = real_api()->teardown(&m->real, err);
    free_twins(m);
    for (int64_t i = 0; i < m->num_pool; i++)
        free(m->pool[i].shape);
    free(m->pool);
    free(m);
    *plugin = NULL;
    return status;
}

static const rssm_fault_api *real_fault(void)
{
    return real_api()->get_extension(RSSM_EXT_FAULT);
}

static rssm_status mirror_fault_read(rssm_plugin *plugin, void *stream, uint32_t *word, rssm_error *err)
{
    return real_fault()->read(unwrap(plugin)->real, stream, word, err);
}

static rssm_status mirror_fault_clear(rssm_plugin *plugin, void *stream, rssm_error *err)
{
    return real_fault()->clear(unwrap(plugin)->real, stream, err);
}

static const rssm_fault_api fault_api = {
    .struct_size = sizeof fault_api, .read = mirror_fault_read, .clear = mirror_fault_clear};

/* ---- slots ------------------------------------------------------------------------------------------------------ */

static const rssm_slots_api *real_slots(void)
{
    return real_api()->get_extension(RSSM_EXT_SLOTS);
}

/* A call that reads or writes the whole pool; `more` tensors besides. */
static bool pool_call_begin(call *c, mirrored *m, int64_t more)
{
    if (!call_begin(c, m, m->num_pool + more))
        return false;
    for (int64_t i = 0; i < m->num_pool; i++)
        if (!call_take(c, &m->pool[i]))
            return false;
    return true;
}

/* Tensors of each layer. NULL stays NULL; false: no memory. */
static bool take_layers(call *c, const DLTensor *const *from, uint32_t layers, const DLTensor **to)
{
    for (uint32_t i = 0; from && i < layers; i++) {
        to[i] = call_take(c, from[i]);
        if (from[i] && !to[i])
            return false;
    }
    return true;
}

enum { MAX_LAYERS = 256 };

typedef rssm_status (*state_fn)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);

static rssm_status state_call(rssm_plugin *plugin, const rssm_state_args *args, state_fn run, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    const DLTensor *states[MAX_LAYERS], *conv[MAX_LAYERS], *A_log[MAX_LAYERS], *A[MAX_LAYERS];
    uint32_t layers = args->num_layers;
    call c;
    if (!m->cuda)
        return run(m->real, args, err);
    if (layers > MAX_LAYERS || !pool_call_begin(&c, m, 4 * (int64_t)layers + 1))
        return no_memory(err);
    if (!take_layers(&c, args->states, layers, states) || !take_layers(&c, args->conv, layers, conv) ||
        !take_layers(&c, args->A_log, layers, A_log) || !take_layers(&c, args->A, layers, A))
        return no_memory(err);
    rssm_state_args copy = *args;
    copy.slots = call_take(&c, args->slots);
    copy.states = args->states ? states : NULL;
    copy.conv = args->conv ? conv : NULL;
    copy.A_log = args->A_log ? A_log : NULL;
    copy.A = args->A ? A : NULL;
    call_send(&c);
    return call_end(&c, run(m->real, &copy, err), err);
}

static rssm_status mirror_import(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err)
{
    return state_call(plugin, args, real_slots()->import_state, err);
}

static rssm_status mirror_export(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err)
{
    return state_call(plugin, args, real_slots()->export_state, err);
}

static rssm_status mirror_copy(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_slots()->copy(m->real, args, err);
    if (!pool_call_begin(&c, m, 2))
        return no_memory(err);
    rssm_copy_args copy = *args;
    copy.src = call_take(&c, args->src);
    copy.dst = call_take(&c, args->dst);
    call_send(&c);
    return call_end(&c, real_slots()->copy(m->real, &copy, err), err);
}

static rssm_status mirror_flush(rssm_plugin *plugin, const rssm_flush_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    const DLTensor *A_log[MAX_LAYERS], *A[MAX_LAYERS];
    uint32_t layers = args->num_layers;
    call c;
    if (!m->cuda)
        return real_slots()->flush(m->real, args, err);
    if (layers > MAX_LAYERS || !pool_call_begin(&c, m, 2 * (int64_t)layers + 1) ||
        !take_layers(&c, args->A_log, layers, A_log) || !take_layers(&c, args->A, layers, A))
        return no_memory(err);
    rssm_flush_args copy = *args;
    copy.slots = call_take(&c, args->slots);
    copy.A_log = args->A_log ? A_log : NULL;
    copy.A = args->A ? A : NULL;
    call_send(&c);
    return call_end(&c, real_slots()->flush(m->real, &copy, err), err);
}

static rssm_status mirror_saved_bytes(const rssm_plugin *plugin, uint64_t *bytes, rssm_error *err)
{
    return real_slots()->saved_bytes(unwrap(plugin)->real, bytes, err);
}

static rssm_status mirror_save(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes,
                               uint64_t *written, void *stream, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_slots()->save(m->real, slot, buffer, buffer_bytes, written, stream, err);
    if (!pool_call_begin(&c, m, 0))
        return no_memory(err);
    call_send(&c);
    return call_end(&c, real_slots()->save(m->real, slot, buffer, buffer_bytes, written, stream, err), err);
}

static rssm_status mirror_load(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes,
                               void *stream, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_slots()->load(m->real, slot, buffer, buffer_bytes, stream, err);
    if (!pool_call_begin(&c, m, 0))
        return no_memory(err);
    call_send(&c);
    return call_end(&c, real_slots()->load(m->real, slot, buffer, buffer_bytes, stream, err), err);
}

static rssm_status mirror_acquire(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *err)
{
    return real_slots()->acquire(unwrap(plugin)->real, handle, slot, err);
}

static rssm_status mirror_release(rssm_plugin *plugin, uint64_t handle, rssm_error *err)
{
    return real_slots()->release(unwrap(plugin)->real, handle, err);
}

static rssm_status mirror_check(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *err)
{
    return real_slots()->check(unwrap(plugin)->real, handle, slot, err);
}

static const rssm_slots_api slots_api = {.struct_size = sizeof slots_api,
                                         .import_state = mirror_import,
                                         .export_state = mirror_export,
                                         .copy = mirror_copy,
                                         .flush = mirror_flush,
                                         .saved_bytes = mirror_saved_bytes,
                                         .save = mirror_save,
                                         .load = mirror_load,
                                         .acquire = mirror_acquire,
                                         .release = mirror_release,
                                         .check = mirror_check};

/* ---- verify and conv -------------------------------------------------------------------------------------------- */

static const rssm_verify_api *real_verify(void)
{
    return real_api()->get_extension(RSSM_EXT_VERIFY);
}

static rssm_status mirror_verify_begin(rssm_plugin *plugin, const rssm_verify_begin_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_verify()->verify_begin(m->real, args, err);
    if (!call_begin(&c, m, 4))
        return no_memory(err);
    rssm_verify_begin_args copy = *args;
    copy.slots = call_take(&c, args->slots);
    copy.cu_seqlens = call_take(&c, args->cu_seqlens);
    copy.rows_out = call_take(&c, args->rows_out);
    if (m->cursor >= 0)
        call_take(&c, &m->pool[m->cursor]);
    call_send(&c);
    return call_end(&c, real_verify()->verify_begin(m->real, &copy, err), err);
}

static rssm_status mirror_commit(rssm_plugin *plugin, const rssm_commit_args *args, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    call c;
    if (!m->cuda)
        return real_verify()->commit(m->real, args, err);
    if (!call_begin(&c, m, 3))
        return no_memory(err);
    rssm_commit_args copy = *args;
    copy.rows = call_take(&c, args->rows);
    copy.accepted = call_take(&c, args->accepted);
    if (m->cursor >= 0)
        call_take(&c, &m->pool[m->cursor]);
    call_send(&c);
    return call_end(&c, real_verify()->commit(m->real, &copy, err), err);
}

/* decode's kind of call; those that only validate take a const plugin. */
static rssm_status step_call(rssm_plugin *plugin, const rssm_decode_args *args, step_fn run, rssm_error *err)
{
    mirrored *m = unwrap(plugin);
    return m->cuda ? step(m, args, run, err) : run(m->real, args, err);
}

static rssm_status validate_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return real_verify()->validate(plugin, args, err);
}

static rssm_status mirror_verify_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step_call((rssm_plugin *)(uintptr_t)plugin, args, validate_verify, err);
}

static rssm_status mirror_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step_call(plugin, args, real_verify()->verify, err);
}

static const rssm_verify_api verify_api = {.struct_size = sizeof verify_api,
                                           .verify_begin = mirror_verify_begin,
                                           .validate = mirror_verify_validate,
                                           .verify = mirror_verify,
                                           .commit = mirror_commit};

static const rssm_conv_api *real_conv(void)
{
    return real_api()->get_extension(RSSM_EXT_CONV);
}

static rssm_status validate_conv(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return real_conv()->validate(plugin, args, err);
}

static rssm_status mirror_conv_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step_call((rssm_plugin *)(uintptr_t)plugin, args, validate_conv, err);
}

static rssm_status mirror_conv(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step_call(plugin, args, real_conv()->conv, err);
}

static rssm_status mirror_conv_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err)
{
    return step_call(plugin, args, real_conv()->conv_verify, err);
}

static const rssm_conv_api conv_api = {.struct_size = sizeof conv_api,
                                       .validate = mirror_conv_validate,
                                       .conv = mirror_conv,
                                       .conv_verify = mirror_conv_verify};

static const struct {
    const char *id;
    const void *table;
} extensions[] = {{RSSM_EXT_FAULT, &fault_api},
                  {RSSM_EXT_SLOTS, &slots_api},
                  {RSSM_EXT_VERIFY, &verify_api},
                  {RSSM_EXT_CONV, &conv_api}};

static const void *mirror_extension(const char *id)
{
    for (size_t i = 0; id && i < sizeof extensions / sizeof extensions[0]; i++)
        if (strcmp(id, extensions[i].id) == 0)
            return extensions[i].table;
    return NULL;
}

static const char *mirror_status_name(rssm_status status)
{
    return real_api()->status_name(status);
}

static const char *mirror_role_name(int32_t role)
{
    return real_api()->role_name(role);
}

static const rssm_api api = {.struct_size = sizeof api,
                             .abi_major = RSSM_ABI_MAJOR,
                             .abi_minor = RSSM_ABI_MINOR,
                             .plugin_info = mirror_info,
                             .init = mirror_init,
                             .describe = mirror_describe,
                             .pool_layout = mirror_layout,
                             .prepare = mirror_prepare,
                             .pool_create = mirror_pool_create,
                             .pool_tensors = mirror_pool_tensors,
                             .reset = mirror_reset,
                             .step_begin = mirror_step_begin,
                             .validate = mirror_validate,
                             .decode = mirror_decode,
                             .get_extension = mirror_extension,
                             .teardown = mirror_teardown,
                             .status_name = mirror_status_name,
                             .role_name = mirror_role_name};

__attribute__((visibility("default"))) const rssm_api *replayssm_get_api(uint32_t abi_major);

const rssm_api *replayssm_get_api(uint32_t abi_major)
{
    return abi_major == RSSM_ABI_MAJOR && real_api() ? &api : NULL;
}
