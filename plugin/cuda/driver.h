/* The CUDA driver as a table of entry points, taken from libcuda.so.1 by dlopen when an instance is prepared. Nothing of
 * CUDA is linked, so the plugin loads on machines without a driver. */
#ifndef RSSM_CUDA_DRIVER_H_
#define RSSM_CUDA_DRIVER_H_

#include <cuda.h>

#include "rssm_base.h"

/* X(field, symbol, parameters): the versioned symbols that the headers of CUDA 12 and 13 mean. */
#define RSSM_CUDA_ENTRIES(X)                                                                                \
    X(init, cuInit, (unsigned))                                                                             \
    X(driver_version, cuDriverGetVersion, (int *))                                                          \
    X(error_string, cuGetErrorString, (CUresult, const char **))                                            \
    X(device_count, cuDeviceGetCount, (int *))                                                              \
    X(device_get, cuDeviceGet, (CUdevice *, int))                                                           \
    X(device_attribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                        \
    X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                    \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                            \
    X(push, cuCtxPushCurrent_v2, (CUcontext))                                                               \
    X(pop, cuCtxPopCurrent_v2, (CUcontext *))                                                               \
    X(library_load, cuLibraryLoadData,                                                                      \
      (CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned)) \
    X(library_unload, cuLibraryUnload, (CUlibrary))                                                         \
    X(library_kernel, cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                            \
    X(kernel_function, cuKernelGetFunction, (CUfunction *, CUkernel))                                       \
    X(function_set, cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))                            \
    X(launch, cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                     \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                    \
    X(mem_free, cuMemFree_v2, (CUdeviceptr))                                                                \
    X(memset8, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                             \
    X(to_host, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                               \
    X(to_device, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                       \
    X(stream_sync, cuStreamSynchronize, (CUstream))

typedef struct rssm_cuda_driver {
    void *library;
#define X(field, symbol, parameters) CUresult(*field) parameters;
    RSSM_CUDA_ENTRIES(X)
#undef X
} rssm_cuda_driver;

/* ERR_UNSUPPORTED when there is no driver, or one too old for an entry point. */
rssm_status rssm_cuda_driver_load(rssm_cuda_driver *driver, rssm_error *err);
void rssm_cuda_driver_close(rssm_cuda_driver *driver);

/* Turns a failed CUresult into a status with its code and text. */
rssm_status rssm_cuda_fail(const rssm_cuda_driver *driver, CUresult result, const char *what, rssm_error *err);

#endif
