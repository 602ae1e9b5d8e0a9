/* The CUDA backend: an instance on one device, in that device's primary context.
 *
 * Every call pushes the context and pops it again, so the host's current context and device stay what they were. Calls
 * on a stream only enqueue. All kernels that the instance can need are loaded at open, so that nothing is loaded during a
 * capture. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "cuda/instance.h"
#include "cuda/reset.h"

enum { FAULT_BYTES = 256 };

/* The fatbins, embedded by embed.S. */
extern const char rssm_fatbin_pool[], rssm_fatbin_step_general[], rssm_fatbin_step_kda[], rssm_fatbin_step_gdn[],
    rssm_fatbin_step_mamba2[], rssm_fatbin_step_small[], rssm_fatbin_slots[], rssm_fatbin_conv[],
    rssm_fatbin_verify_cursor[], rssm_fatbin_verify_general[], rssm_fatbin_verify_kda[], rssm_fatbin_verify_gdn[],
    rssm_fatbin_verify_mamba2[];

/* ---- entering and leaving --------------------------------------------------------------------------------------- */

rssm_status rssm_cuda_failed(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err)
{
    rssm_status status = rssm_cuda_fail(&cuda->driver, result, what, err);
    if (status == RSSM_ERR_DEVICE_LOST)
        cuda->lost = (int)result;
    return status;
}

rssm_status rssm_cuda_enter(rssm_cuda *cuda, rssm_error *err)
{
    if (cuda->lost)
        return rssm_cuda_fail(&cuda->driver, (CUresult)cuda->lost, "the device is lost since an earlier call", err);
    CUresult result = cuda->driver.push(cuda->context);
    return result ? rssm_cuda_failed(cuda, result, "cuCtxPushCurrent", err) : RSSM_OK;
}

rssm_status rssm_cuda_leave(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err)
{
    CUcontext ours;
    CUresult popped = cuda->driver.pop(&ours);
    if (result)
        return rssm_cuda_failed(cuda, result, what, err);
    return popped ? rssm_cuda_failed(cuda, popped, "cuCtxPopCurrent", err) : RSSM_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* In the pushed context. */
static CUresult take(rssm_cuda *cuda, int64_t bytes, CUdeviceptr *ptr)
{
    *ptr = 0;
    if (!cuda->mem.device_alloc)
        return cuda->driver.mem_alloc(ptr, (size_t)bytes);
    *ptr = (CUdeviceptr)cuda->mem.device_alloc(cuda->mem.user, cuda->options.device_id, (uint64_t)bytes, 256);
    return *ptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void give(rssm_cuda *cuda, CUdeviceptr ptr, int64_t bytes)
{
    if (!ptr)
        return;
    if (cuda->mem.device_alloc)
        cuda->mem.device_free(cuda->mem.user, cuda->options.device_id, (void *)ptr, (uint64_t)bytes);
    else
        cuda->driver.mem_free(ptr);
}

static int64_t cuda_workspace_bytes(const rssm_backend_options *options)
{
    return FAULT_BYTES + rssm_cuda_tables_bytes(options->max_regions, options->num_layers);
}

static void cuda_free(void *ctx, void *ptr, int64_t bytes)
{
    rssm_cuda *cuda = ctx;
    if (!ptr || cuda->driver.push(cuda->context))
        return; /* the context is gone, and its memory with it */
    give(cuda, (CUdeviceptr)ptr, bytes);
    CUcontext ours;
    cuda->driver.pop(&ours);
}

static rssm_status cuda_alloc(void *ctx, int64_t bytes, void **ptr, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    rssm_status status = rssm_cuda_enter(cuda, err);
    if (status)
        return status;
    CUdeviceptr memory = 0;
    CUresult result = take(cuda, bytes, &memory);
    if (!result)
        result = cuda->driver.memset8(memory, 0, (size_t)bytes, NULL);
    if (!result)
        result = cuda->driver.stream_sync(NULL);
    status = rssm_cuda_leave(cuda, result, "allocating device memory", err);
    if (status)
        cuda_free(cuda, (void *)memory, bytes);
    else
        *ptr = (void *)memory;
    return status;
}

/* ---- open and close --------------------------------------------------------------------------------------------- */

/* The first driver that captures programmatic dependent launches into graphs; the least capability that knows them. A
 * device of that gets kernels made for it, or for the PTX of this build: they must be such that wait. */
enum { EARLY_DRIVER = 12030, EARLY_CAPABILITY = 9, EARLY_PTX = 90 };

static rssm_status find_device(rssm_cuda *cuda, rssm_error *err)
{
    rssm_cuda_driver *d = &cuda->driver;
    int count = 0, id = cuda->options.device_id, version = 0;
    CUresult result = d->init(0);
    if (!result)
        result = d->device_count(&count);
    if (result == CUDA_ERROR_NO_DEVICE || (!result && id >= count))
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "there is no CUDA device %d: the driver sees %d", id, count);
    if (!result)
        result = d->device_get(&cuda->device, id);
    if (!result)
        result = d->device_attribute(&cuda->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda->device);
    if (!result)
        result = d->device_attribute(&cuda->shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                     cuda->device);
    if (!result)
        result = d->device_attribute(&cuda->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, cuda->device);
    if (!result)
        result = d->device_attribute(&cuda->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, cuda->device);
    if (!result)
        result = d->driver_version(&version);
    cuda->starts_early = cuda->options.early_start && RSSM_CUDA_PTX >= EARLY_PTX && cuda->major >= EARLY_CAPABILITY &&
                         version >= EARLY_DRIVER;
    if (!result)
        result = d->primary_retain(&cuda->context, cuda->device);
    return result ? rssm_cuda_fail(d, result, "opening the CUDA device", err) : RSSM_OK;
}

/* Loads a kernel for good: a module loads lazily, and that must not happen during a capture. */
static CUresult load_kernel(rssm_cuda *cuda, int kernel, int library, const char *name, int32_t smem)
{
    CUkernel handle = NULL;
    CUfunction function = NULL;
    CUresult result = cuda->driver.library_kernel(&handle, cuda->libraries[library], name);
    if (!result)
        result = cuda->driver.kernel_function(&function, handle);
    if (!result && smem > 0)
        result = cuda->driver.function_set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem);
    if (!result && smem > 0)
        result = cuda->driver.function_set(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
    if (!result)
        cuda->functions[kernel] = function;
    return result;
}

/* The tuned variants that a step of this instance can choose. */
static CUresult load_variants(rssm_cuda *cuda)
{
    const rssm_backend_options *o = &cuda->options;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; !result && i < RSSM_CUDA_VARIANTS; i++) {
        const rssm_cuda_variant *v = &rssm_cuda_variants[i];
        if (v->family == o->family && v->state_dtype == o->state_dtype && v->K == o->max_K && v->V == o->max_V &&
            v->smem <= cuda->shared_bytes)
            result = load_kernel(cuda, i, RSSM_LIBRARY_FAMILY, v->name, v->smem);
    }
    return result;
}

/* Whether a kernel for small batches is made for steps of this instance. */
static bool is_small_of(const rssm_cuda_small *v, const rssm_backend_options *o)
{
    return v->family == o->family && v->state_dtype == o->state_dtype && v->K == o->max_K && v->V == o->max_V;
}

static bool has_smalls(const rssm_backend_options *o)
{
    for (int i = 0; i < RSSM_CUDA_SMALLS; i++)
        if (is_small_of(&rssm_cuda_smalls[i], o))
            return true;
    return false;
}

static CUresult load_smalls(rssm_cuda *cuda)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; !result && i < RSSM_CUDA_SMALLS; i++)
        if (is_small_of(&rssm_cuda_smalls[i], &cuda->options))
            result = load_kernel(cuda, RSSM_KERNEL_SMALL + i, RSSM_LIBRARY_SMALL, rssm_cuda_smalls[i].name, 0);
    return result;
}

static int32_t cuda_small_batch(const rssm_backend_options *o)
{
    int32_t most = 0; /* 1024 state rows */
    for (int i = 0; i < RSSM_CUDA_SMALLS && RSSM_CUDA_SMALL_ON; i++) {
        const rssm_cuda_small *v = &rssm_cuda_smalls[i];
        if (is_small_of(v, o) && v->io == o->io_dtype && v->io == o->ring_dtype && o->max_L <= RSSM_CUDA_MAX_RING &&
            v->ring > most)
            most = v->ring;
    }
    return (int32_t)(1024 * (int64_t)most / ((int64_t)o->max_HV * o->max_V));
}

/* A kernel and its name; whose library it is in. */
typedef struct named {
    int kernel, library;
    const char *name;
} named;

/* What every instance has, what those with a convolution in their pool have, and those with windows. */
static const named pool_kernels[] = {
    {RSSM_KERNEL_GENERAL, RSSM_LIBRARY_GENERAL, "rssm_step_general"},
    {RSSM_KERNEL_BEGIN, RSSM_LIBRARY_POOL, "rssm_step_begin"},
    {RSSM_KERNEL_BEGIN_ORDERED, RSSM_LIBRARY_POOL, "rssm_step_begin_ordered"},
    {RSSM_KERNEL_RESET, RSSM_LIBRARY_POOL, "rssm_reset"},
    {RSSM_KERNEL_SLOTS_COPY, RSSM_LIBRARY_SLOTS, "rssm_slots_copy"},
    {RSSM_KERNEL_SLOTS_IMPORT, RSSM_LIBRARY_SLOTS, "rssm_slots_import"},
    {RSSM_KERNEL_SLOTS_EXPORT, RSSM_LIBRARY_SLOTS, "rssm_slots_export"},
    {RSSM_KERNEL_SLOTS_FLUSH, RSSM_LIBRARY_SLOTS, "rssm_slots_flush"},
    {RSSM_KERNEL_SLOTS_FLUSHED, RSSM_LIBRARY_SLOTS, "rssm_slots_flushed"},
    {RSSM_KERNEL_SLOTS_GIVE, RSSM_LIBRARY_SLOTS, "rssm_slots_give"},
};
static const named conv_kernels[] = {
    {RSSM_KERNEL_CONV, RSSM_LIBRARY_CONV, "rssm_conv"},
    {RSSM_KERNEL_CONV4, RSSM_LIBRARY_CONV, "rssm_conv4"},
    {RSSM_KERNEL_CONV_PAIRS, RSSM_LIBRARY_CONV, "rssm_conv_pairs"},
};
static const named verify_kernels[] = {
    {RSSM_KERNEL_VERIFY_BEGIN, RSSM_LIBRARY_VERIFY_CURSOR, "rssm_verify_begin_rows"},
    {RSSM_KERNEL_VERIFY_COMMIT, RSSM_LIBRARY_VERIFY_CURSOR, "rssm_verify_commit"},
    {RSSM_KERNEL_VERIFY_GENERAL, RSSM_LIBRARY_VERIFY_GENERAL, "rssm_verify_general"},
};
enum {
    NUM_POOL_KERNELS = sizeof pool_kernels / sizeof pool_kernels[0],
    NUM_CONV_KERNELS = sizeof conv_kernels / sizeof conv_kernels[0],
    NUM_VERIFY_KERNELS = sizeof verify_kernels / sizeof verify_kernels[0]
};

static CUresult load_named(rssm_cuda *cuda, const named *kernels, int count)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; !result && i < count; i++)
        result = load_kernel(cuda, kernels[i].kernel, kernels[i].library, kernels[i].name, 0);
    return result;
}

/* The tuned window kernels that a pass of this instance can choose. */
static CUresult load_verify_variants(rssm_cuda *cuda)
{
    const rssm_backend_options *o = &cuda->options;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; !result && i < RSSM_VERIFY_VARIANTS; i++) {
        const rssm_verify_variant *v = &rssm_verify_variants[i];
        if (v->family == o->family && v->state_dtype == o->state_dtype && v->V == o->max_V &&
            o->max_K == RSSM_VERIFY_K && v->tokens >= o->max_T && v->smem <= cuda->shared_bytes)
            result = load_kernel(cuda, RSSM_KERNEL_VERIFY_TUNED + i, RSSM_LIBRARY_VERIFY_FAMILY, v->name, v->smem);
    }
    return result;
}

static rssm_status load_kernels(rssm_cuda *cuda, rssm_error *err)
{
    const int32_t f = cuda->options.family;
    const char *step = f == RSSM_FAMILY_KDA   ? rssm_fatbin_step_kda
                       : f == RSSM_FAMILY_GDN ? rssm_fatbin_step_gdn
                                              : rssm_fatbin_step_mamba2;
    const char *verify = f == RSSM_FAMILY_KDA   ? rssm_fatbin_verify_kda
                         : f == RSSM_FAMILY_GDN ? rssm_fatbin_verify_gdn
                                                : rssm_fatbin_verify_mamba2;
    const bool windows = cuda->options.max_T > 0, convolves = cuda->options.conv_width > 0;
    const char *const images[RSSM_NUM_LIBRARIES] = {
        [RSSM_LIBRARY_POOL] = rssm_fatbin_pool,
        [RSSM_LIBRARY_SLOTS] = rssm_fatbin_slots,
        [RSSM_LIBRARY_CONV] = convolves ? rssm_fatbin_conv : NULL,
        [RSSM_LIBRARY_GENERAL] = rssm_fatbin_step_general,
        [RSSM_LIBRARY_FAMILY] = step,
        [RSSM_LIBRARY_SMALL] = has_smalls(&cuda->options) ? rssm_fatbin_step_small : NULL,
        [RSSM_LIBRARY_VERIFY_CURSOR] = windows ? rssm_fatbin_verify_cursor : NULL,
        [RSSM_LIBRARY_VERIFY_GENERAL] = windows ? rssm_fatbin_verify_general : NULL,
        [RSSM_LIBRARY_VERIFY_FAMILY] = windows ? verify : NULL,
    };
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; !result && i < RSSM_NUM_LIBRARIES; i++)
        if (images[i])
            result = cuda->driver.library_load(&cuda->libraries[i], images[i], NULL, NULL, 0, NULL, NULL, 0);
    if (!result)
        result = load_named(cuda, pool_kernels, NUM_POOL_KERNELS);
    if (!result)
        result =
            load_kernel(cuda, RSSM_KERNEL_SLOTS_TAKE, RSSM_LIBRARY_SLOTS, rssm_cuda_take_kernel(&cuda->options), 0);
    if (!result && convolves)
        result = load_named(cuda, conv_kernels, NUM_CONV_KERNELS);
    if (!result)
        result = load_variants(cuda);
    if (!result)
        result = load_smalls(cuda);
    if (!result && windows)
        result = load_named(cuda, verify_kernels, NUM_VERIFY_KERNELS);
    if (!result && windows)
        result = load_verify_variants(cuda);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED, "no kernel in this build for compute capability %d.%d", cuda->major,
                         cuda->minor);
    return result ? rssm_cuda_failed(cuda, result, "loading the CUDA kernels", err) : RSSM_OK;
}

static rssm_status open_in_context(rssm_cuda *cuda, rssm_error *err)
{
    rssm_status status = load_kernels(cuda, err);
    if (status)
        return status;
    CUresult result = take(cuda, FAULT_BYTES, &cuda->fault);
    if (!result)
        result = cuda->driver.memset8(cuda->fault, 0, FAULT_BYTES, NULL);
    if (!result)
        result = cuda->driver.stream_sync(NULL);
    return result ? rssm_cuda_failed(cuda, result, "allocating the workspace", err) : RSSM_OK;
}

static void cuda_close(void *ctx)
{
    rssm_cuda *cuda = ctx;
    if (cuda->context && !cuda->driver.push(cuda->context)) {
        give(cuda, cuda->fault, FAULT_BYTES);
        give(cuda, cuda->tables, cuda->tables_bytes);
        for (int i = 0; i < RSSM_NUM_LIBRARIES; i++)
            if (cuda->libraries[i])
                cuda->driver.library_unload(cuda->libraries[i]);
        CUcontext ours;
        cuda->driver.pop(&ours);
    }
    if (cuda->context)
        cuda->driver.primary_release(cuda->device);
    rssm_cuda_driver_close(&cuda->driver);
    rssm_allocator mem = cuda->mem;
    rssm_mem_free(&mem, cuda, sizeof(*cuda));
}

static rssm_status cuda_open(const rssm_backend_options *options, void **ctx, rssm_error *err)
{
    rssm_cuda *cuda = rssm_mem_alloc(options->mem, sizeof(*cuda), 16);
    if (!cuda)
        return rssm_out_of_memory(err);
    cuda->options = *options;
    cuda->mem = *options->mem;
    rssm_status status = rssm_cuda_driver_load(&cuda->driver, err);
    if (!status)
        status = find_device(cuda, err);
    if (!status)
        status = rssm_cuda_enter(cuda, err);
    if (!status) {
        status = open_in_context(cuda, err);
        CUcontext ours;
        CUresult popped = cuda->driver.pop(&ours);
        if (popped && !status)
            status = rssm_cuda_failed(cuda, popped, "cuCtxPopCurrent", err);
    }
    if (status)
        cuda_close(cuda);
    else
        *ctx = cuda;
    return status;
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

static rssm_status cuda_bind(void *ctx, const rssm_pool *pool, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    int64_t bytes = rssm_cuda_tables_bytes(pool->num_regions, pool->num_layers);
    void *block = rssm_mem_alloc(&cuda->mem, (size_t)bytes, 16);
    if (!block)
        return rssm_out_of_memory(err);
    int64_t chunks = rssm_cuda_make_tables(pool, block);
    rssm_status status = rssm_cuda_enter(cuda, err);
    CUdeviceptr tables = 0;
    if (!status) {
        CUresult result = take(cuda, bytes, &tables);
        if (!result)
            result = cuda->driver.to_device(tables, block, (size_t)bytes, NULL);
        if (!result)
            result = cuda->driver.stream_sync(NULL);
        status = rssm_cuda_leave(cuda, result, "binding the pool", err);
    }
    rssm_mem_free(&cuda->mem, block, (size_t)bytes);
    if (status) {
        cuda_free(cuda, (void *)tables, bytes);
        return status;
    }
    cuda->tables = tables;
    cuda->tables_bytes = bytes;
    cuda->chunks = chunks;
    cuda->pool = *pool;
    return RSSM_OK;
}

rssm_status rssm_cuda_run(rssm_cuda *cuda, int kernel, const rssm_cuda_launch *how, const void *args, void *stream,
                          const char *what, rssm_error *err)
{
    rssm_status status = rssm_cuda_enter(cuda, err);
    if (status)
        return status;
    void *parameters[] = {(void *)(uintptr_t)args};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {
        .gridDimX = how->grid[0],
        .gridDimY = how->grid[1],
        .gridDimZ = how->grid[2],
        .blockDimX = how->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = how->smem,
        .hStream = (CUstream)stream,
        .attrs = &early,
        .numAttrs = cuda->starts_early ? 1 : 0,
    };
    CUresult result = cuda->driver.launch(&config, cuda->functions[kernel], parameters, NULL);
    return rssm_cuda_leave(cuda, result, what, err);
}

enum { RESET_BLOCKS = 4, MAX_GRID_YZ = 65535 };

static rssm_status cuda_reset(void *ctx, const rssm_index *slots, int64_t count, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const rssm_pool *pool = &cuda->pool;
    const rssm_cuda_reset args = {
        .regions = (const rssm_region *)cuda->tables,
        .cursor = pool->cursor,
        .cursor_slot = pool->cursor_slot,
        .S = pool->S,
        .pad_slot = pool->pad_slot,
        .slots = *slots,
        .count = slots->data ? count : pool->S,
        .num_regions = pool->num_regions,
        .L = pool->L,
        .spread_step = pool->spread_step,
    };
    const rssm_cuda_launch how = {
        .grid = {RESET_BLOCKS, rssm_cuda_at_most(args.count, MAX_GRID_YZ),
                 rssm_cuda_at_most(args.num_regions, MAX_GRID_YZ)},
        .threads = 256,
    };
    return rssm_cuda_run(cuda, RSSM_KERNEL_RESET, &how, &args, stream, "launching reset", err);
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

/* Batches whose last blocks would otherwise be the flushing rows are given an order (step_tile.cuh). */
static rssm_status cuda_step_begin(void *ctx, const rssm_begin *begin, void *stream, rssm_error *err)
{
    bool ordered = begin->B >= RSSM_CUDA_ORDER_MIN && begin->B <= RSSM_CUDA_ORDER_MAX;
    uint32_t threads = ordered ? 1024 : 256;
    const rssm_cuda_launch how = {.grid = {ordered ? 1 : ((uint32_t)begin->B + 255) / 256, 1, 1}, .threads = threads};
    return rssm_cuda_run(ctx, ordered ? RSSM_KERNEL_BEGIN_ORDERED : RSSM_KERNEL_BEGIN, &how, begin, stream,
                         "launching step_begin", err);
}

static rssm_status cuda_step(void *ctx, const rssm_step *step, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const int small = rssm_small_choose(step, cuda->options.small_batch);
    if (small >= 0) {
        const rssm_small args = rssm_small_argument(step);
        const rssm_cuda_launch how = rssm_small_launch(small, step);
        return rssm_cuda_run(cuda, RSSM_KERNEL_SMALL + small, &how, &args, stream, "launching the step", err);
    }
    const rssm_cuda_launch how = rssm_cuda_choose(step, cuda->multiprocessors, cuda->shared_bytes);
    int kernel = how.variant < 0 ? RSSM_KERNEL_GENERAL : how.variant;
    if (!cuda->functions[kernel])
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                         "the kernel of this step needs %u bytes of shared memory; the device has %d per block",
                         how.smem, cuda->shared_bytes);
    return rssm_cuda_run(cuda, kernel, &how, step, stream, "launching the step", err);
}

/* ---- faults and deep checks ------------------------------------------------------------------------------------- */

static uint32_t *cuda_fault_word(void *ctx)
{
    return (uint32_t *)((rssm_cuda *)ctx)->fault;
}

static rssm_status cuda_to_host(void *ctx, void *dst, const void *src, int64_t bytes, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    rssm_status status = rssm_cuda_enter(cuda, err);
    if (status)
        return status;
    CUresult result = cuda->driver.to_host(dst, (CUdeviceptr)src, (size_t)bytes, (CUstream)stream);
    if (!result)
        result = cuda->driver.stream_sync((CUstream)stream);
    return rssm_cuda_leave(cuda, result, "reading device memory", err);
}

static rssm_status cuda_fault_read(void *ctx, void *stream, uint32_t *word, rssm_error *err)
{
    return cuda_to_host(ctx, word, cuda_fault_word(ctx), sizeof(*word), stream, err);
}

static rssm_status cuda_fault_clear(void *ctx, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    rssm_status status = rssm_cuda_enter(cuda, err);
    return status ? status
                  : rssm_cuda_leave(cuda, cuda->driver.memset8(cuda->fault, 0, sizeof(uint32_t), (CUstream)stream),
                                    "clearing the fault word", err);
}

static const char *cuda_level(const void *ctx)
{
    (void)ctx;
    return "";
}

static int32_t cuda_threads(const void *ctx)
{
    (void)ctx;
    return 0;
}

static const rssm_backend cuda_backend = {
    .name = "cuda",
    .device_type = kDLCUDA,
    .max_T = RSSM_VERIFY_MAX_T,
    .workspace_bytes = cuda_workspace_bytes,
    .small_batch = cuda_small_batch,
    .open = cuda_open,
    .close = cuda_close,
    .level = cuda_level,
    .threads = cuda_threads,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .bind = cuda_bind,
    .reset = cuda_reset,
    .step_begin = cuda_step_begin,
    .step = cuda_step,
    .verify_begin = rssm_cuda_verify_begin,
    .verify = rssm_cuda_verify,
    .commit = rssm_cuda_commit,
    .conv = rssm_cuda_conv,
    .copy = rssm_cuda_copy_slots,
    .import_state = rssm_cuda_import,
    .export_state = rssm_cuda_export,
    .flush = rssm_cuda_flush,
    .read_slot = rssm_cuda_read_slot,
    .write_slot = rssm_cuda_write_slot,
    .fault_word = cuda_fault_word,
    .fault_read = cuda_fault_read,
    .fault_clear = cuda_fault_clear,
    .to_host = cuda_to_host,
};

const rssm_backend *rssm_cuda_backend(void)
{
    return &cuda_backend;
}
