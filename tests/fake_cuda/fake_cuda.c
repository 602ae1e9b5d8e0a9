#include "fake_cuda.h"
#include "fake_host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAKE_SMS = 4, H200_SHARED = 227 * 1024, MAGIC = 0x4b43, MAX_NAMES = 512 };

static _Thread_local fake_contexts contexts;

static fake_contexts *contexts_here(void)
{
    return &contexts;
}

#define FRESH \
    .contexts = contexts_here, .missing = -1, .failed = -1, .devices = 1, .memory = INT64_MAX, .shared = H200_SHARED
static fake_cuda state = {FRESH};

static CUresult lost; /* the error that ended the context */
static int owner;     /* who called cuInit: of no use in its forked children */

static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;

int fake_enter(void)
{
    return pthread_mutex_lock(&driver);
}

void fake_leave(const int *entered)
{
    (void)entered;
    pthread_mutex_unlock(&driver);
}

typedef struct block {
    struct block *next;
    size_t bytes;
    char *data;
} block;
static block *blocks;

typedef struct library {
    struct library *next;
    int magic;
} library;
static library *libraries;

/* A kernel is its name. */
static char names[MAX_NAMES][FAKE_NAME];

static char primary_place;
#define PRIMARY ((CUcontext)(void *)&primary_place)

__attribute__((visibility("default"))) fake_cuda *fake_cuda_state(void)
{
    return &state;
}

static void free_blocks(void)
{
    while (blocks) {
        block *b = blocks;
        blocks = b->next;
        free(b->data);
        free(b);
    }
    state.allocations = state.bytes = 0;
}

static void free_libraries(void)
{
    while (libraries) {
        library *l = libraries;
        libraries = l->next;
        free(l);
    }
    state.libraries = 0;
}

__attribute__((visibility("default"))) void fake_cuda_reset(void)
{
    free_blocks();
    free_libraries();
    contexts = (fake_contexts){.depth = 0};
    lost = CUDA_SUCCESS;
    owner = 0;
    state = (fake_cuda){FRESH, .capability = 9, .version = 13000};
}

/* ---- counting and failing --------------------------------------------------------------------------------------- */

static int ends_context(CUresult result)
{
    return result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_LAUNCH_FAILED ||
           result == CUDA_ERROR_ECC_UNCORRECTABLE;
}

/* Counts the call; what it must return at once, or success. */
static CUresult counted(int entry)
{
    state.calls++;
    state.calls_of[entry]++;
    if (owner && owner != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (state.calls != state.fail_at)
        return CUDA_SUCCESS;
    state.failed = entry;
    if (ends_context(state.fail_with) && state.retained > 0)
        lost = state.fail_with;
    return state.fail_with;
}

static CUresult misused(CUresult result, const char *how)
{
    state.misuse++;
    snprintf(state.misused, sizeof state.misused, "%s", how);
    return result;
}

/* The same for calls that need a current context, and are lost with it. */
static CUresult in_context(int entry)
{
    CUresult result = counted(entry);
    if (result)
        return result;
    if (!contexts.current)
        return misused(CUDA_ERROR_INVALID_CONTEXT, "no current context");
    if (state.faulted && !lost)
        lost = state.faulted;
    return lost;
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

/* dlsym asks a resolver for the address: one that gives NULL makes the symbol a missing one. */
#define RESOLVER(field, symbol, parameters)                                  \
    static CUresult on_##field parameters;                                   \
    __attribute__((used)) static CUresult(*resolve_##field(void)) parameters \
    {                                                                        \
        state.lookups++;                                                     \
        return state.missing == FAKE_##field ? NULL : on_##field;            \
    }
#define PUBLIC(field, symbol, parameters) \
    __attribute__((visibility("default"), ifunc("resolve_" #field))) CUresult symbol parameters;
RSSM_CUDA_ENTRIES(RESOLVER)
RSSM_CUDA_ENTRIES(PUBLIC)

static CUresult on_init(unsigned flags)
{
    ALONE;
    CUresult result = counted(FAKE_init);
    if (result)
        return result;
    owner = getpid();
    return flags ? CUDA_ERROR_INVALID_VALUE : state.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static CUresult on_driver_version(int *version)
{
    ALONE;
    *version = state.version;
    return counted(FAKE_driver_version);
}

static CUresult on_error_string(CUresult error, const char **text)
{
    static _Thread_local char message[64];
    snprintf(message, sizeof message, "fake error %d", (int)error);
    *text = message;
    return CUDA_SUCCESS; /* not counted: it is of no use to fail it again */
}

static CUresult on_device_count(int *count)
{
    ALONE;
    CUresult result = counted(FAKE_device_count);
    if (!result)
        *count = state.devices;
    return result;
}

static CUresult on_device_get(CUdevice *device, int ordinal)
{
    ALONE;
    CUresult result = counted(FAKE_device_get);
    if (result)
        return result;
    if (ordinal < 0 || ordinal >= state.devices)
        return misused(CUDA_ERROR_INVALID_DEVICE, "no such device");
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult on_device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ALONE;
    CUresult result = counted(FAKE_device_attribute);
    if (result)
        return result;
    (void)device;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = FAKE_SMS;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = state.shared;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = state.capability;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult on_primary_retain(CUcontext *context, CUdevice device)
{
    ALONE;
    CUresult result = counted(FAKE_primary_retain);
    if (result)
        return result;
    (void)device;
    *context = PRIMARY;
    state.retained++;
    return CUDA_SUCCESS;
}

static CUresult on_primary_release(CUdevice device)
{
    ALONE;
    CUresult result = counted(FAKE_primary_release);
    if (result)
        return result;
    (void)device;
    if (state.retained == 0)
        return misused(CUDA_ERROR_INVALID_CONTEXT, "a context released once too often");
    if (--state.retained == 0)
        lost = CUDA_SUCCESS; /* the next retain makes a new context */
    return CUDA_SUCCESS;
}

static CUresult on_push(CUcontext context)
{
    ALONE;
    CUresult result = counted(FAKE_push);
    if (result)
        return result;
    if (context == PRIMARY && state.retained == 0)
        return misused(CUDA_ERROR_INVALID_CONTEXT, "push of a context that is gone");
    if (contexts.depth == FAKE_DEPTH)
        return misused(CUDA_ERROR_INVALID_CONTEXT, "too many pushes");
    contexts.below[contexts.depth++] = contexts.current;
    contexts.current = context;
    return CUDA_SUCCESS;
}

static CUresult on_pop(CUcontext *context)
{
    ALONE;
    CUresult result = counted(FAKE_pop);
    if (result)
        return result;
    if (contexts.depth == 0)
        return misused(CUDA_ERROR_INVALID_CONTEXT, "pop without a push");
    *context = contexts.current;
    contexts.current = contexts.below[--contexts.depth];
    return CUDA_SUCCESS;
}

static CUresult on_library_load(CUlibrary *out, const void *code, CUjit_option *options, void **values, unsigned n,
                                CUlibraryOption *more, void **more_values, unsigned m)
{
    ALONE;
    CUresult result = in_context(FAKE_library_load);
    if (result)
        return result;
    (void)options, (void)values, (void)more, (void)more_values;
    uint32_t magic;
    memcpy(&magic, code, sizeof magic);
    if (magic != 0xBA55ED50 || n || m) /* of a fatbin */
        return misused(CUDA_ERROR_INVALID_IMAGE, "not a fatbin");
    library *l = calloc(1, sizeof *l);
    l->magic = MAGIC;
    l->next = libraries;
    libraries = l;
    state.libraries++;
    *out = (CUlibrary)(void *)l;
    return CUDA_SUCCESS;
}

static CUresult on_library_unload(CUlibrary handle)
{
    ALONE;
    CUresult result = in_context(FAKE_library_unload);
    for (library **at = &libraries; *at; at = &(*at)->next)
        if (*at == (library *)(void *)handle) {
            library *l = *at;
            *at = l->next;
            free(l);
            state.libraries--;
            return result;
        }
    return misused(CUDA_ERROR_INVALID_HANDLE, "unload of a library that is not loaded");
}

static CUresult on_library_kernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    ALONE;
    CUresult result = in_context(FAKE_library_kernel);
    if (result)
        return result;
    if (((library *)(void *)handle)->magic != MAGIC)
        return misused(CUDA_ERROR_INVALID_HANDLE, "no library");
    for (int i = 0; i < MAX_NAMES; i++) {
        if (!names[i][0])
            snprintf(names[i], sizeof names[i], "%s", name);
        if (strcmp(names[i], name) == 0) {
            *kernel = (CUkernel)(void *)names[i];
            return CUDA_SUCCESS;
        }
    }
    return misused(CUDA_ERROR_NOT_FOUND, "too many kernels for this fake");
}

static CUresult on_kernel_function(CUfunction *function, CUkernel kernel)
{
    ALONE;
    CUresult result = in_context(FAKE_kernel_function);
    if (!result)
        *function = (CUfunction)(void *)kernel;
    return result;
}

static CUresult on_function_set(CUfunction function, CUfunction_attribute attribute, int value)
{
    ALONE;
    CUresult result = in_context(FAKE_function_set);
    if (result)
        return result;
    if (!function || (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > state.shared))
        return misused(CUDA_ERROR_INVALID_VALUE, "a function's attribute");
    return CUDA_SUCCESS;
}

/* 1: a launch that may start early; -1: attributes that this driver or device does not know. */
static int starts_early(const CUlaunchConfig *c)
{
    if (c->numAttrs == 0)
        return 0;
    const CUlaunchAttribute *a = c->attrs;
    int known = c->numAttrs == 1 && a && a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                a->value.programmaticStreamSerializationAllowed == 1;
    return known && state.capability >= 9 && state.version >= 12030 ? 1 : -1;
}

static CUresult on_launch(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra)
{
    ALONE;
    CUresult result = in_context(FAKE_launch);
    if (result)
        return result;
    (void)extra;
    const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ},
                   block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i] || (i > 0 && grid[i] > 65535))
            return misused(CUDA_ERROR_INVALID_VALUE, "a grid of no blocks, or too many");
    if (!f || (!fake_host_launch && (!parameters || !parameters[0])) || c->sharedMemBytes > (unsigned)state.shared)
        return misused(CUDA_ERROR_INVALID_VALUE, "a launch without a kernel, without parameters, or too large");
    if (starts_early(c) < 0)
        return misused(CUDA_ERROR_INVALID_VALUE, "a launch attribute");
    fake_launch *record = &state.launch[state.launches++ % FAKE_LAUNCHES];
    *record = (fake_launch){.shared = c->sharedMemBytes, .early = starts_early(c), .stream = (void *)c->hStream};
    memcpy(record->grid, grid, sizeof record->grid);
    memcpy(record->block, block, sizeof record->block);
    snprintf(record->kernel, sizeof record->kernel, "%s", (const char *)(void *)f);
    if (fake_host_launch)
        fake_host_launch((const char *)(void *)f, (void *)c->hStream, parameters);
    return CUDA_SUCCESS;
}

static CUresult on_mem_alloc(CUdeviceptr *ptr, size_t bytes)
{
    ALONE;
    CUresult result = in_context(FAKE_mem_alloc);
    if (result)
        return result;
    if (bytes == 0)
        return misused(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
    if ((int64_t)bytes > state.memory - state.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block *b = calloc(1, sizeof *b);
    b->data = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(b->data, 0xFF, bytes);
    b->bytes = bytes;
    b->next = blocks;
    blocks = b;
    state.allocations++;
    state.bytes += (int64_t)bytes;
    *ptr = (CUdeviceptr)(uintptr_t)b->data;
    return CUDA_SUCCESS;
}

static CUresult on_mem_free(CUdeviceptr ptr)
{
    ALONE;
    CUresult result = in_context(FAKE_mem_free);
    for (block **at = &blocks; *at; at = &(*at)->next)
        if ((*at)->data == (char *)(uintptr_t)ptr) {
            block *b = *at;
            *at = b->next;
            state.allocations--;
            state.bytes -= (int64_t)b->bytes;
            free(b->data);
            free(b);
            return result;
        }
    return misused(CUDA_ERROR_INVALID_VALUE, "free of memory that is not allocated");
}

static CUresult on_memset8(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    ALONE;
    CUresult result = in_context(FAKE_memset8);
    state.stream_of[FAKE_memset8] = (void *)stream;
    if (!result)
        memset((void *)(uintptr_t)to, value, bytes);
    return result;
}

static CUresult on_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ALONE;
    CUresult result = in_context(FAKE_to_host);
    state.stream_of[FAKE_to_host] = (void *)stream;
    if (!result)
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    return result;
}

static CUresult on_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ALONE;
    CUresult result = in_context(FAKE_to_device);
    state.stream_of[FAKE_to_device] = (void *)stream;
    if (!result)
        memcpy((void *)(uintptr_t)to, from, bytes);
    return result;
}

static CUresult on_stream_sync(CUstream stream)
{
    ALONE;
    CUresult result = in_context(FAKE_stream_sync);
    state.stream_of[FAKE_stream_sync] = (void *)stream;
    if (!result && fake_host_captures && fake_host_captures())
        return misused(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a wait during a capture");
    if (!result && fake_host_waited)
        fake_host_waited((void *)stream);
    return result;
}
