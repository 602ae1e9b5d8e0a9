#define _GNU_SOURCE 1
#include "device.h"

#include <stdlib.h>
#include <string.h>

static void *host_alloc(device *dev, int64_t bytes)
{
    (void)dev;
    void *ptr = NULL;
    if (posix_memalign(&ptr, RSSM_POOL_ALIGNMENT, bytes > 0 ? (size_t)bytes : 1) != 0)
        return NULL;
    memset(ptr, 0, (size_t)bytes);
    return ptr;
}

static void host_free(device *dev, void *ptr)
{
    (void)dev;
    free(ptr);
}

static int host_copy(device *dev, void *dst, const void *src, int64_t bytes)
{
    (void)dev;
    if (dst != src)
        memcpy(dst, src, (size_t)bytes);
    return 0;
}

static int host_sync(device *dev)
{
    (void)dev;
    return 0;
}

static void host_done(device *dev)
{
    (void)dev;
}

int device_open(device *dev, const char *name, const host *h)
{
    if (strcmp(name, "cuda") == 0)
        return cuda_device_open(dev, h);
    *dev = (device){.dl = {kDLCPU, 0},
                    .alloc = host_alloc,
                    .release = host_free,
                    .to_device = host_copy,
                    .to_host = host_copy,
                    .sync = host_sync,
                    .close = host_done};
    return EXIT_OK;
}

void device_close(device *dev)
{
    if (dev->close != NULL)
        dev->close(dev);
    *dev = (device){.state = NULL};
}

int device_is_host(const device *dev)
{
    return dev->dl.device_type == kDLCPU;
}
