#include "rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define need(condition, ...)              \
    do {                                  \
        if (!(condition)) {               \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr);          \
            ck_abort_msg(__VA_ARGS__);    \
        }                                 \
    } while (0)

const rssm_api *rig_api(void)
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
    need(api, "RSSM_MIRRORED must be the path of replayssm.so");
    return api;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static bool in_rig(const h_role *role)
{
    return role->place != H_POOL && strcmp(role->form, "apart") != 0 && strncmp(role->form, "pos", 3) != 0;
}

static int32_t dtype_of(const h_spec *s, const h_role *role)
{
    if (role->place == H_OUTPUT)
        return s->out;
    if (role->place == H_WEIGHT)
        return RSSM_DTYPE_FLOAT32;
    return strcmp(role->dtypes, "io|f32") == 0 ? s->gate : s->io;
}

static DLTensor device_tensor(DLDataType type, int ndim, int64_t *shape)
{
    return (DLTensor){.device = {kDLCUDA, gpu_used()}, .ndim = ndim, .dtype = type, .shape = shape};
}

static void plan_role(rig *r, int32_t layer, const h_role *role)
{
    int64_t *shape = r->shapes[layer][role->role];
    int ndim = 0;
    for (const char *at = role->shape; at; ndim++) {
        const char *comma = strchr(at, ',');
        shape[ndim] = h_symbol(&r->spec, at, comma ? (size_t)(comma - at) : strlen(at));
        at = comma ? comma + 1 : NULL;
    }
    DLDataType type = role->place == H_INDEX ? h_int_type(32) : h_float_type(dtype_of(&r->spec, role));
    r->tensors[layer][role->role] = device_tensor(type, ndim, shape);
    r->roles[layer][role->role] = &r->tensors[role->place == H_INDEX ? 0 : layer][role->role];
}

static size_t bytes_of(const DLTensor *t)
{
    size_t bytes = t->dtype.bits / 8;
    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

static CUdeviceptr address(const DLTensor *t)
{
    return (CUdeviceptr)(uintptr_t)t->data;
}

void *rig_numbers(uint64_t *random, size_t bytes, int bits)
{
    unsigned char *numbers = malloc(bytes + 4);
    need(numbers, "no memory");
    for (size_t i = 0; i < bytes / ((size_t)bits / 8); i++) {
        float number = (float)h_uniform(random, -1, 1);
        if (bits == 32)
            memcpy(numbers + i * 4, &number, 4);
        else
            memcpy(numbers + i * 2, (const char *)&number + 2, 2); /* the upper half of a float is a bfloat16 */
    }
    return numbers;
}

static void upload_random(const DLTensor *t, uint64_t *random)
{
    void *numbers = rig_numbers(random, bytes_of(t), t->dtype.bits);
    gpu_upload(address(t), numbers, bytes_of(t));
    free(numbers);
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

void rig_plan(rig *r, h_spec spec)
{
    memset(r, 0, sizeof *r);
    r->spec = h_defaults(spec);
    r->random = 1;
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.device_type = kDLCUDA;
    args.device_id = gpu_used();
    args.num_slots = r->spec.S;
    args.max_batch = 1 << 20;
    rssm_error err = h_error();
    rssm_status status = rig_api()->init(&args, &r->plugin, &err);
    need(status == RSSM_OK, "init: %s", err.message);
    r->layout.struct_size = sizeof r->layout;
    status = rig_api()->pool_layout(r->plugin, &r->layout, &err);
    need(status == RSSM_OK, "pool_layout: %s", err.message);
    int count;
    const h_role *roles = h_roles(r->spec.family, &count);
    for (int32_t layer = 0; layer < r->spec.layers; layer++)
        for (int i = 0; i < count; i++)
            if (in_rig(&roles[i]))
                plan_role(r, layer, &roles[i]);
    r->batch[0] = r->spec.B;
    r->slots = r->force = device_tensor(h_int_type(32), 1, r->batch);
}

static void allocate(DLTensor *t)
{
    t->data = (void *)gpu_alloc(bytes_of(t));
    gpu_fill(address(t), 0xFF, bytes_of(t));
}

void rig_open(rig *r)
{
    rssm_error err = h_error();
    rssm_status status = rig_api()->prepare(r->plugin, &err);
    need(status == RSSM_OK, "prepare: %s", err.message);
    status = rig_api()->pool_create(r->plugin, NULL, &err);
    need(status == RSSM_OK, "pool_create: %s", err.message);
    int count;
    const h_role *roles = h_roles(r->spec.family, &count);
    for (int32_t layer = 0; layer < r->spec.layers; layer++) {
        for (int i = 0; i < count; i++) {
            DLTensor *t = &r->tensors[layer][roles[i].role];
            if (!t->shape || (roles[i].place == H_INDEX && layer))
                continue;
            allocate(t);
            if (roles[i].place == H_WEIGHT)
                upload_random(t, &r->random);
        }
        status = rig_api()->pool_tensors(r->plugin, layer, r->roles[layer], RSSM_T_COUNT, &err);
        need(status == RSSM_OK, "pool_tensors: %s", err.message);
        r->roles[layer][RSSM_T_CURSOR] = NULL;
    }
    allocate(&r->slots);
    allocate(&r->force);
}

rig *rig_new(h_spec spec)
{
    rig *r = malloc(sizeof *r);
    need(r, "no memory");
    rig_plan(r, spec);
    rig_open(r);
    return r;
}

void rig_free(rig *r)
{
    gpu_wait();
    rssm_error err = h_error();
    rssm_status status = rig_api()->teardown(&r->plugin, &err);
    need(status == RSSM_OK, "teardown: %s", err.message);
    for (int32_t layer = 0; layer < r->spec.layers; layer++)
        for (int role = 0; role < RSSM_T_COUNT; role++)
            gpu_free(address(&r->tensors[layer][role]));
    gpu_free(address(&r->slots));
    gpu_free(address(&r->force));
    free(r);
}

/* ---- a pass ----------------------------------------------------------------------------------------------------- */

static void repeat_rows(const DLTensor *t, int64_t period, uint64_t *random)
{
    size_t row = bytes_of(t) / (size_t)t->shape[0], all = (size_t)t->shape[0];
    unsigned char *one = rig_numbers(random, row * (size_t)period, t->dtype.bits), *many = malloc(row * all);
    need(many, "no memory");
    for (size_t i = 0; i < all; i++)
        memcpy(many + i * row, one + i % (size_t)period * row, row);
    gpu_upload(address(t), many, row * all);
    free(one);
    free(many);
}

void rig_repeated_inputs(rig *r, uint64_t seed, int64_t period)
{
    int count;
    const h_role *roles = h_roles(r->spec.family, &count);
    for (int32_t layer = 0; layer < r->spec.layers; layer++)
        for (int i = 0; i < count; i++) {
            const DLTensor *t = &r->tensors[layer][roles[i].role];
            if (t->data && roles[i].place == H_INPUT)
                repeat_rows(t, period, &seed);
            if (t->data && roles[i].place == H_OUTPUT)
                gpu_fill(address(t), 0xFF, bytes_of(t));
        }
}

void rig_inputs(rig *r, uint64_t seed)
{
    rig_repeated_inputs(r, seed, r->spec.B);
}

void rig_positions(rig *r, const int32_t *slots, const int32_t *force)
{
    gpu_upload(address(&r->slots), slots, bytes_of(&r->slots));
    if (force)
        gpu_upload(address(&r->force), force, bytes_of(&r->force));
    else
        gpu_fill(address(&r->force), 0, bytes_of(&r->force));
}

void rig_first_rows(rig *r, int64_t n)
{
    int count;
    const h_role *roles = h_roles(r->spec.family, &count);
    for (int32_t layer = 0; layer < r->spec.layers; layer++)
        for (int i = 0; i < count; i++)
            if (r->tensors[layer][roles[i].role].shape && roles[i].place != H_WEIGHT)
                r->shapes[layer][roles[i].role][0] = n;
}

rssm_status rig_begin(rig *r, void *stream, rssm_error *err)
{
    const rssm_step_begin_args args = {.struct_size = sizeof args,
                                       .slots = &r->slots,
                                       .force_flush = &r->force,
                                       .rows_out = r->roles[0][RSSM_T_ROWS],
                                       .stream = stream};
    return rig_api()->step_begin(r->plugin, &args, err);
}

rssm_status rig_layers(rig *r, void *stream, rssm_error *err)
{
    rssm_status status = RSSM_OK;
    for (int32_t layer = 0; !status && layer < r->spec.layers; layer++) {
        const rssm_decode_args args = {.struct_size = sizeof args,
                                       .tensors = r->roles[layer],
                                       .num_tensors = RSSM_T_COUNT,
                                       .layer = layer,
                                       .stream = stream};
        status = rig_api()->decode(r->plugin, &args, err);
    }
    return status;
}

rssm_status rig_pass(rig *r, void *stream, rssm_error *err)
{
    rssm_status status = rig_begin(r, stream, err);
    return status ? status : rig_layers(r, stream, err);
}

void rig_step(rig *r, void *stream)
{
    rssm_error err = h_error();
    rssm_status status = rig_pass(r, stream, &err);
    need(status == RSSM_OK, "a pass: %s", err.message);
}

rssm_status rig_reset(rig *r, const int32_t *slots, int64_t n, rssm_error *err)
{
    int64_t shape[1] = {n};
    DLTensor list = device_tensor(h_int_type(32), 1, shape);
    allocate(&list);
    gpu_upload(address(&list), slots, bytes_of(&list));
    const rssm_reset_args args = {.struct_size = sizeof args, .slots = &list};
    rssm_status status = rig_api()->reset(r->plugin, &args, err);
    gpu_wait();
    gpu_free(address(&list));
    return status;
}

size_t rig_row_bytes(const rig *r)
{
    return bytes_of(&r->tensors[0][RSSM_T_OUT]) / (size_t)r->shapes[0][RSSM_T_OUT][0];
}

unsigned char *rig_outputs(rig *r, int32_t layer)
{
    const DLTensor *out = &r->tensors[layer][RSSM_T_OUT];
    unsigned char *bytes = malloc(bytes_of(out));
    need(bytes, "no memory");
    gpu_download(bytes, address(out), bytes_of(out));
    size_t width = out->dtype.bits / 8;
    for (size_t i = 0; i < bytes_of(out); i += width)
        need(memcmp(bytes + i, "\xFF\xFF\xFF\xFF", width) != 0, "layer %d: output %d was not written", layer,
             (int)(i / width));
    return bytes;
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

static const rssm_tensor_info *info_of(const rig *r, int32_t tensor)
{
    const char *at = (const char *)r->layout.tensors;
    return (const rssm_tensor_info *)(const void *)(at + (uint64_t)tensor * r->layout.tensors[0].struct_size);
}

CUdeviceptr rig_slot(const rig *r, int32_t layer, int32_t tensor, int64_t slot)
{
    const rssm_tensor_info *info = info_of(r, tensor);
    const DLTensor *all[RSSM_T_COUNT] = {NULL};
    rssm_error err = h_error();
    need(rig_api()->pool_tensors(r->plugin, layer, all, RSSM_T_COUNT, &err) == RSSM_OK, "%s", err.message);
    const DLTensor *t = all[info->role];
    return address(t) + (CUdeviceptr)t->byte_offset + (CUdeviceptr)(slot * t->strides[0] * t->dtype.bits / 8);
}

size_t rig_slot_bytes(const rig *r, int32_t tensor)
{
    return (size_t)info_of(r, tensor)->bytes_per_slot;
}

unsigned char *rig_read_slot(const rig *r, int32_t layer, int32_t tensor, int64_t slot)
{
    unsigned char *bytes = malloc(rig_slot_bytes(r, tensor));
    need(bytes, "no memory");
    gpu_download(bytes, rig_slot(r, layer, tensor, slot), rig_slot_bytes(r, tensor));
    return bytes;
}

int32_t rig_state_tensor(const rig *r)
{
    int32_t tensor = 0;
    while (info_of(r, tensor)->role != RSSM_T_STATE)
        tensor++;
    return tensor;
}

void rig_random_states(rig *r, uint64_t seed, int64_t first, int64_t n)
{
    int32_t tensor = rig_state_tensor(r);
    size_t bytes = rig_slot_bytes(r, tensor);
    for (int32_t layer = 0; layer < r->spec.layers; layer++)
        for (int64_t slot = first; slot < first + n; slot++) {
            void *numbers = rig_numbers(&seed, bytes, info_of(r, tensor)->dtype_bits);
            gpu_upload(rig_slot(r, layer, tensor, slot), numbers, bytes);
            free(numbers);
        }
}
