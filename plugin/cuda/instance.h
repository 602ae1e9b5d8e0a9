/* The CUDA backend's inside: one instance, and what its files (cuda.c, ...) share. */
#ifndef RSSM_CUDA_INSTANCE_H_
#define RSSM_CUDA_INSTANCE_H_

#include "core/backend.h"
#include "cuda/driver.h"
#include "cuda/launch.h"

/* What an instance may launch: the tuned variants of launch.h by their index there, then these. */
enum {
    RSSM_KERNEL_GENERAL = RSSM_CUDA_VARIANTS,
    RSSM_KERNEL_BEGIN,
    RSSM_KERNEL_BEGIN_ORDERED,
    RSSM_KERNEL_RESET,
    RSSM_NUM_KERNELS
};

/* The fatbins that an instance loads. */
enum { RSSM_LIBRARY_POOL, RSSM_LIBRARY_GENERAL, RSSM_LIBRARY_FAMILY, RSSM_NUM_LIBRARIES };

typedef struct rssm_cuda {
    rssm_backend_options options;
    rssm_allocator mem;
    rssm_cuda_driver driver;
    CUdevice device;
    CUcontext context;
    CUlibrary libraries[RSSM_NUM_LIBRARIES];
    CUfunction functions[RSSM_NUM_KERNELS]; /* NULL: not for this instance or not on this device */
    CUdeviceptr fault;                      /* one uint32 */
    CUdeviceptr regions;                    /* rssm_region[num_regions], from bind */
    int64_t regions_bytes;
    rssm_pool pool;                                  /* its arrays are the host's */
    int multiprocessors, shared_bytes, major, minor; /* of the device */
    int lost;                                        /* the CUresult that ended the context */
} rssm_cuda;

/* A failed driver call as an error; remembers a context that is dead. */
rssm_status rssm_cuda_failed(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err);

/* Every call of the driver stands between these two, so that the host's current context stays what it was. leave passes the
 * result of what was done between on. */
rssm_status rssm_cuda_enter(rssm_cuda *cuda, rssm_error *err);
rssm_status rssm_cuda_leave(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err);

/* Launches a kernel whose one argument is the struct at args, by value; enters and leaves. */
rssm_status rssm_cuda_run(rssm_cuda *cuda, int kernel, const rssm_cuda_launch *how, const void *args, void *stream,
                          const char *what, rssm_error *err);

#endif
