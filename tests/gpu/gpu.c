#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static gpu_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUcontext primaries[GPU_MAX_DEVICES]; /* of devices beside 0, once a thread used them */
static pthread_mutex_t primaries_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int used;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "no test on this GPU: %s: %s\n", what, why);
    exit(2);
}

static void check(CUresult result, const char *what)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    if (!driver.error_name || driver.error_name(result, &name) || !name)
        name = "unknown error";
    die(what, name);
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        die("libcuda.so.1", dlerror());
#define X(field, symbol, parameters)                           \
    *(void **)(void *)&driver.field = dlsym(library, #symbol); \
    if (!driver.field)                                         \
        die(#symbol, "not in the driver");
    GPU_ENTRIES(X)
#undef X
    check(driver.init(0), "cuInit");
    check(driver.device_get(&driver.device, 0), "cuDeviceGet");
    check(driver.primary_retain(&driver.primary, driver.device), "cuDevicePrimaryCtxRetain");
}

const gpu_driver *gpu(void)
{
    pthread_once(&once, load);
    return &driver;
}

void gpu_check(CUresult result, const char *what)
{
    check(result, what);
}

int gpu_count(void)
{
    int count = 0;
    GPU(device_count(&count));
    return count < GPU_MAX_DEVICES ? count : GPU_MAX_DEVICES;
}

void gpu_use(int device)
{
    used = device;
}

int gpu_used(void)
{
    return used;
}

CUcontext gpu_primary(int device)
{
    CUdevice ordinal;
    if (device == 0)
        return gpu()->primary;
    pthread_mutex_lock(&primaries_lock);
    if (!primaries[device]) {
        GPU(device_get(&ordinal, device));
        GPU(primary_retain(&primaries[device], ordinal));
    }
    pthread_mutex_unlock(&primaries_lock);
    return primaries[device];
}

void gpu_enter(void)
{
    GPU(context_push(gpu_primary(used)));
}

void gpu_leave(void)
{
    CUcontext ours;
    GPU(context_pop(&ours));
}

CUdeviceptr gpu_try_alloc(size_t bytes)
{
    CUdeviceptr ptr = 0;
    gpu_enter();
    CUresult result = gpu()->mem_alloc(&ptr, bytes ? bytes : 1);
    gpu_leave();
    return result ? 0 : ptr;
}

CUdeviceptr gpu_alloc(size_t bytes)
{
    CUdeviceptr ptr = gpu_try_alloc(bytes);
    if (!ptr)
        die("cuMemAlloc", "no memory");
    return ptr;
}

void gpu_free(CUdeviceptr ptr)
{
    if (!ptr)
        return;
    gpu_enter();
    GPU(mem_free(ptr));
    gpu_leave();
}

void gpu_wait(void)
{
    gpu_enter();
    GPU(synchronize());
    gpu_leave();
}

void gpu_fill(CUdeviceptr ptr, unsigned char value, size_t bytes)
{
    gpu_enter();
    GPU(synchronize());
    if (bytes)
        GPU(memset8(ptr, value, bytes, NULL));
    GPU(synchronize());
    gpu_leave();
}

void gpu_upload(CUdeviceptr to, const void *from, size_t bytes)
{
    gpu_enter();
    GPU(synchronize());
    if (bytes)
        GPU(to_device(to, from, bytes, NULL));
    GPU(synchronize());
    gpu_leave();
}

void gpu_download(void *to, CUdeviceptr from, size_t bytes)
{
    gpu_enter();
    GPU(synchronize());
    if (bytes)
        GPU(to_host(to, from, bytes, NULL));
    GPU(synchronize());
    gpu_leave();
}

void gpu_send(CUdeviceptr to, const void *from, size_t bytes)
{
    gpu_enter();
    GPU(to_device(to, from, bytes, NULL));
    gpu_leave();
}

void gpu_fetch(void *to, CUdeviceptr from, size_t bytes)
{
    gpu_enter();
    GPU(to_host(to, from, bytes, NULL));
    GPU(stream_sync(NULL));
    gpu_leave();
}

void gpu_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    gpu_enter();
    GPU(synchronize());
    GPU(between(to, from, bytes, NULL));
    GPU(synchronize());
    gpu_leave();
}

size_t gpu_free_bytes(void)
{
    size_t available = 0, total = 0;
    gpu_enter();
    GPU(mem_info(&available, &total));
    gpu_leave();
    return available;
}

CUstream gpu_stream(void)
{
    CUstream stream = NULL;
    gpu_enter();
    GPU(stream_create(&stream, CU_STREAM_NON_BLOCKING));
    gpu_leave();
    return stream;
}
