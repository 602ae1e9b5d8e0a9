/* Device memory and copies on a GPU, and the way to the rest of the driver. */
#include "cuda_host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct driver {
    void *library;
    cu_device ordinal;
    cu_context context;
    cu_result (*init)(unsigned flags);
    cu_result (*device_get)(cu_device *out, int ordinal);
    cu_result (*context_retain)(cu_context *out, cu_device ordinal);
    cu_result (*context_release)(cu_device ordinal);
    cu_result (*context_set)(cu_context context);
    cu_result (*synchronize)(void);
    cu_result (*alloc)(cu_pointer *out, size_t bytes);
    cu_result (*release)(cu_pointer ptr);
    cu_result (*set_zero)(cu_pointer ptr, unsigned char value, size_t bytes);
    cu_result (*to_device)(cu_pointer dst, const void *src, size_t bytes);
    cu_result (*to_host)(void *dst, cu_pointer src, size_t bytes);
    cu_result (*error_name)(cu_result error, const char **name);
} driver;

static const cuda_entry entries[] = {
    {"cuInit", offsetof(driver, init), 0},
    {"cuDeviceGet", offsetof(driver, device_get), 0},
    {"cuDevicePrimaryCtxRetain", offsetof(driver, context_retain), 0},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(driver, context_release), 0},
    {"cuCtxSetCurrent", offsetof(driver, context_set), 0},
    {"cuCtxSynchronize", offsetof(driver, synchronize), 0},
    {"cuMemAlloc_v2", offsetof(driver, alloc), 0},
    {"cuMemFree_v2", offsetof(driver, release), 0},
    {"cuMemsetD8_v2", offsetof(driver, set_zero), 0},
    {"cuMemcpyHtoD_v2", offsetof(driver, to_device), 0},
    {"cuMemcpyDtoH_v2", offsetof(driver, to_host), 0},
    {"cuGetErrorName", offsetof(driver, error_name), 0},
};

static cu_pointer address(const void *ptr)
{
    return (cu_pointer)(uintptr_t)ptr;
}

static void *gpu_alloc(device *dev, int64_t bytes)
{
    driver *d = dev->state;
    cu_pointer ptr = 0;
    size_t size = bytes > 0 ? (size_t)bytes : 1;
    if (d->alloc(&ptr, size) != 0)
        return NULL;
    if (d->set_zero(ptr, 0, size) != 0 || d->synchronize() != 0) {
        d->release(ptr);
        return NULL;
    }
    return (void *)(uintptr_t)ptr;
}

static void gpu_free(device *dev, void *ptr)
{
    driver *d = dev->state;
    if (ptr != NULL)
        d->release(address(ptr));
}

static int gpu_sync(device *dev)
{
    driver *d = dev->state;
    return d->synchronize();
}

/* Copies wait for all streams first: a host's own need not be ordered with the legacy one, and what they still read or
 * write would change under them. */
static int gpu_to_device(device *dev, void *dst, const void *src, int64_t bytes)
{
    driver *d = dev->state;
    cu_result error = d->synchronize();
    if (error == 0)
        error = d->to_device(address(dst), src, (size_t)bytes);
    return error != 0 ? error : d->synchronize(); /* a small copy returns before it is done */
}

static int gpu_to_host(device *dev, void *dst, const void *src, int64_t bytes)
{
    driver *d = dev->state;
    cu_result error = d->synchronize();
    return error != 0 ? error : d->to_host(dst, address(src), (size_t)bytes);
}

static void gpu_close(device *dev)
{
    driver *d = dev->state;
    if (d->context != NULL) {
        d->context_set(NULL);
        d->context_release(d->ordinal);
    }
    if (d->library != NULL)
        dlclose(d->library);
    free(d);
}

static const char *load(void *library, const cuda_entry *list, size_t count, void *table)
{
    for (size_t i = 0; i < count; i++) {
        void *symbol = dlsym(library, list[i].name);
        if (symbol == NULL && !list[i].optional)
            return list[i].name;
        memcpy((char *)table + list[i].place, &symbol, sizeof symbol);
    }
    return NULL;
}

const char *cuda_entries(const device *dev, const cuda_entry *list, size_t count, void *table)
{
    const driver *d = dev->state;
    return load(d->library, list, count, table);
}

cu_device cuda_ordinal(const device *dev)
{
    return ((const driver *)dev->state)->ordinal;
}

int cuda_check(const device *dev, const host *h, cu_result result, const char *what)
{
    const driver *d = dev->state;
    const char *name = NULL;
    if (result == 0)
        return EXIT_OK;
    d->error_name(result, &name);
    return host_refuse(h, "%s: %s", what, name != NULL ? name : "an unknown CUDA error");
}

static int refuse(device *dev, const host *h, cu_result error, const char *what)
{
    driver *d = dev->state;
    const char *name = NULL;
    if (error != 0 && d->error_name != NULL)
        d->error_name(error, &name);
    return host_refuse(h, "no CUDA device: %s%s%s", what, name != NULL ? ": " : "", name != NULL ? name : "");
}

int cuda_device_open(device *dev, const host *h)
{
    driver *d = calloc(1, sizeof *d);
    if (d == NULL)
        return host_refuse(h, "out of memory");
    *dev = (device){.dl = {kDLCUDA, 0},
                    .state = d,
                    .alloc = gpu_alloc,
                    .release = gpu_free,
                    .to_device = gpu_to_device,
                    .to_host = gpu_to_host,
                    .sync = gpu_sync,
                    .close = gpu_close};

    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL)
        return refuse(dev, h, 0, "this machine has no NVIDIA driver (libcuda.so.1)");
    const char *missing = load(d->library, entries, sizeof entries / sizeof entries[0], d);
    if (missing != NULL)
        return refuse(dev, h, 0, missing);
    cu_result error = d->init(0);
    if (error == 0)
        error = d->device_get(&d->ordinal, dev->dl.device_id);
    if (error == 0)
        error = d->context_retain(&d->context, d->ordinal);
    if (error == 0)
        error = d->context_set(d->context);
    return error == 0 ? EXIT_OK : refuse(dev, h, error, "the driver refuses");
}
