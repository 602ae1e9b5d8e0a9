/* The CUDA driver for tests: entry points by dlopen, the device's primary context held for the life of the process. A
 * failure here ends the program: it is the machine's, not the plugin's. */
#ifndef RSSM_TESTS_GPU_H_
#define RSSM_TESTS_GPU_H_

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

/* X(field, symbol, parameters) */
#define GPU_ENTRIES(X)                                                                           \
    X(init, cuInit, (unsigned))                                                                  \
    X(device_count, cuDeviceGetCount, (int *))                                                   \
    X(device_get, cuDeviceGet, (CUdevice *, int))                                                \
    X(device_attribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))             \
    X(error_name, cuGetErrorName, (CUresult, const char **))                                     \
    X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                         \
    X(context_create, cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice))                         \
    X(context_destroy, cuCtxDestroy_v2, (CUcontext))                                             \
    X(context_push, cuCtxPushCurrent_v2, (CUcontext))                                            \
    X(context_pop, cuCtxPopCurrent_v2, (CUcontext *))                                            \
    X(context_current, cuCtxGetCurrent, (CUcontext *))                                           \
    X(synchronize, cuCtxSynchronize, (void))                                                     \
    X(mem_info, cuMemGetInfo_v2, (size_t *, size_t *))                                           \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                         \
    X(mem_free, cuMemFree_v2, (CUdeviceptr))                                                     \
    X(memset8, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                  \
    X(to_device, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))            \
    X(to_host, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                    \
    X(between, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))               \
    X(stream_create, cuStreamCreate, (CUstream *, unsigned))                                     \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream))                                            \
    X(stream_sync, cuStreamSynchronize, (CUstream))                                              \
    X(stream_query, cuStreamQuery, (CUstream))                                                   \
    X(host_function, cuLaunchHostFunc, (CUstream, CUhostFn, void *))                             \
    X(capture_begin, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                   \
    X(capture_end, cuStreamEndCapture, (CUstream, CUgraph *))                                    \
    X(graph_instantiate, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, cuuint64_t))      \
    X(graph_launch, cuGraphLaunch, (CUgraphExec, CUstream))                                      \
    X(graph_update, cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)) \
    X(event_create, cuEventCreate, (CUevent *, unsigned))                                        \
    X(event_destroy, cuEventDestroy_v2, (CUevent))                                               \
    X(event_record, cuEventRecord, (CUevent, CUstream))                                          \
    X(stream_wait, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                             \
    X(graph_nodes, cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                          \
    X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec))                                     \
    X(graph_destroy, cuGraphDestroy, (CUgraph))

typedef struct gpu_driver {
#define X(field, symbol, parameters) CUresult(*field) parameters;
    GPU_ENTRIES(X)
#undef X
    CUdevice device;
    CUcontext primary;
} gpu_driver;

/* Loaded, initialised and with a primary context at the first call; makes no context current. */
const gpu_driver *gpu(void);

/* Ends the program with the error's name when result is not CUDA_SUCCESS. */
void gpu_check(CUresult result, const char *what);
#define GPU(call) gpu_check(gpu()->call, #call)

/* The device that this thread's gpu_* and rig_* work on: 0 until it says otherwise. `primary` above is device 0's. */
enum { GPU_MAX_DEVICES = 8 };
int gpu_count(void);
void gpu_use(int device);
int gpu_used(void);
CUcontext gpu_primary(int device);

/* All of these work in that device's primary context and leave the current one as it was. Copies are done on return, and come
 * after all earlier work of the device. */
CUdeviceptr gpu_alloc(size_t bytes); /* not initialised */
CUdeviceptr gpu_try_alloc(size_t bytes);
void gpu_free(CUdeviceptr ptr);
void gpu_fill(CUdeviceptr ptr, unsigned char value, size_t bytes);
void gpu_upload(CUdeviceptr to, const void *from, size_t bytes);
void gpu_download(void *to, CUdeviceptr from, size_t bytes);
void gpu_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
/* The same in the order of the legacy default stream alone: fetch is done on return. */
void gpu_send(CUdeviceptr to, const void *from, size_t bytes);
void gpu_fetch(void *to, CUdeviceptr from, size_t bytes);
void gpu_wait(void);
size_t gpu_free_bytes(void);
CUstream gpu_stream(void); /* one that does not wait for the legacy default stream */
void gpu_enter(void);      /* makes the primary context current until gpu_leave */
void gpu_leave(void);

#endif
