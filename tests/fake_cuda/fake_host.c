/* The part of the driver that hosts use, for the fake libcuda: copies, streams, graphs, events, modules. Linked into a
 * libcuda.so.1 of its own, in which step_begin, verify_begin and commit run too (the CPU backend's code on the same
 * arguments), so that cursors move as on a GPU; steps do not run. A graph is a list that cuGraphLaunch walks; an event is the time of day.
 * A copy without a stream while one of the host's own streams has work is refused: on a GPU it would not wait for it.
 * cuda.h maps some names to later versions: what is defined here are the versioned symbols that our hosts ask for. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/step.h"
#include "cpu/cpu.h"
#include "fake_cuda.h"
#include "fake_host.h"

#undef cuEventElapsedTime /* hosts ask for the first version */
CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end);

#define ENTRY __attribute__((visibility("default")))

typedef enum node_kind { NODE_KERNEL = 0, NODE_COPY = 1, NODE_EVENT = 7 } node_kind; /* CUgraphNodeType's numbers */

struct CUevent_st {
    double milliseconds;
};

/* Kernels that run: their names begin so. */
typedef struct cursor_kernel {
    const char *name;
    size_t bytes; /* of the argument */
    void (*run)(const void *argument);
} cursor_kernel;

static void step_begin(const void *argument)
{
    rssm_cpu_begin(argument);
}

static void verify_begin(const void *argument)
{
    rssm_cpu_verify_begin(argument);
}

static void commit(const void *argument)
{
    rssm_cpu_commit(argument);
}

static const cursor_kernel cursor_kernels[] = {
    {"rssm_step_begin", sizeof(rssm_begin), step_begin},
    {"rssm_verify_begin", sizeof(rssm_verify_begin), verify_begin},
    {"rssm_verify_commit", sizeof(rssm_commit), commit},
};
enum { CURSOR_KERNELS = sizeof cursor_kernels / sizeof cursor_kernels[0] };

struct CUgraphNode_st {
    node_kind kind;
    const char *name;            /* of a kernel */
    const cursor_kernel *kernel; /* NULL: one that does not run */
    union {
        rssm_begin begin;
        rssm_verify_begin verify_begin;
        rssm_commit commit;
    } argument;
    void *to;
    const void *from;
    size_t bytes;
    CUevent event;
};

struct CUgraph_st {
    CUgraphNode *nodes;
    size_t count, room;
};

static _Thread_local CUgraph recording; /* NULL: work runs at once */

/* Streams that the legacy one does not wait for. */
enum { STREAMS = 8 };
static char own_streams[STREAMS];               /* 1: taken; its place is the stream */
static _Thread_local int busy_streams[STREAMS]; /* work of this thread since its last wait */

static void set_busy(void *stream, int busy)
{
    for (int i = 0; i < STREAMS; i++)
        if (stream == &own_streams[i])
            busy_streams[i] = busy;
}

static CUresult no_race(void)
{
    for (int i = 0; i < STREAMS; i++)
        if (busy_streams[i])
            return CUDA_ERROR_ILLEGAL_STATE;
    return CUDA_SUCCESS;
}

static const cursor_kernel *find_kernel(const char *name)
{
    for (int i = 0; i < CURSOR_KERNELS; i++)
        if (strncmp(name, cursor_kernels[i].name, strlen(cursor_kernels[i].name)) == 0)
            return &cursor_kernels[i];
    return NULL;
}

static void run(const struct CUgraphNode_st *node)
{
    struct timespec now;
    if (node->kind == NODE_KERNEL && node->kernel)
        node->kernel->run(&node->argument);
    if (node->kind == NODE_COPY)
        memcpy(node->to, node->from, node->bytes);
    if (node->kind == NODE_EVENT) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        node->event->milliseconds = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
    }
}

static CUresult enqueue(const struct CUgraphNode_st *node)
{
    CUgraph g = recording;
    if (!g) {
        run(node);
        return CUDA_SUCCESS;
    }
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->nodes = realloc(g->nodes, g->room * sizeof(CUgraphNode));
    }
    g->nodes[g->count] = malloc(sizeof *node);
    *g->nodes[g->count++] = *node;
    return CUDA_SUCCESS;
}

void fake_host_launch(const char *name, void *stream, void **parameters)
{
    set_busy(stream, !recording);
    struct CUgraphNode_st node = {.kind = NODE_KERNEL, .name = name, .kernel = find_kernel(name)};
    if (node.kernel)
        memcpy(&node.argument, parameters[0], node.kernel->bytes);
    enqueue(&node);
}

/* A host's own kernels; the plugin launches by cuLaunchKernelEx. */
ENTRY CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    fake_host_launch((const char *)(void *)f, stream, parameters);
    return CUDA_SUCCESS;
}

void fake_host_waited(void *stream)
{
    set_busy(stream, 0);
}

int fake_host_captures(void)
{
    return recording != NULL;
}

/* ---- device and memory ------------------------------------------------------------------------------------------ */

ENTRY CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    strncpy(name, "fake GPU", (size_t)length);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = fake_cuda_state()->contexts()->current;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuCtxSetCurrent(CUcontext context)
{
    fake_cuda_state()->contexts()->current = context;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuCtxSynchronize(void)
{
    if (recording)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (int i = 0; i < STREAMS; i++)
        busy_streams[i] = 0;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGetErrorName(CUresult error, const char **name)
{
    (void)error;
    *name = "a fake error";
    return CUDA_SUCCESS;
}

ENTRY CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 31;
    return CUDA_SUCCESS;
}

/* All memory is the host's. */
ENTRY CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return memory && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY CUresult cuMemHostUnregister(void *memory)
{
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes)
{
    memset((void *)(uintptr_t)to, value, bytes);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    CUresult result = no_race();
    if (!result)
        memcpy((void *)(uintptr_t)to, from, bytes);
    return result;
}

ENTRY CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    CUresult result = no_race();
    if (!result)
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    return result;
}

ENTRY CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    struct CUgraphNode_st node = {
        .kind = NODE_COPY, .to = (void *)(uintptr_t)to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
    return enqueue(&node);
}

/* ---- streams and modules ---------------------------------------------------------------------------------------- */

ENTRY CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ALONE;
    static int place;
    *stream = (CUstream)(void *)&place;
    for (int i = 0; i < STREAMS && flags; i++)
        if (!own_streams[i]) {
            own_streams[i] = 1;
            *stream = (CUstream)(void *)&own_streams[i];
            break;
        }
    return CUDA_SUCCESS;
}

ENTRY CUresult cuStreamDestroy_v2(CUstream stream)
{
    ALONE;
    set_busy(stream, 0);
    for (int i = 0; i < STREAMS; i++)
        if ((void *)stream == &own_streams[i])
            own_streams[i] = 0;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)(void *)(uintptr_t)image;
    return memcmp(image, ".version", 8) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

ENTRY CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!strstr((const char *)(void *)module, name))
        return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)(void *)(uintptr_t)name;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuFuncGetName(const char **name, CUfunction function)
{
    *name = (const char *)(void *)function;
    return CUDA_SUCCESS;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

ENTRY CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    (void)stream, (void)mode;
    if (recording)
        return CUDA_ERROR_ILLEGAL_STATE;
    recording = calloc(1, sizeof *recording);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    *graph = recording;
    recording = NULL;
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

ENTRY CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = (CUgraphExec)(void *)graph;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUgraph g = (CUgraph)(void *)exec;
    set_busy(stream, 1);
    for (size_t i = 0; i < g->count; i++)
        run(g->nodes[i]);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    (void)exec;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphDestroy(CUgraph graph)
{
    for (size_t i = 0; i < graph->count; i++)
        free(graph->nodes[i]);
    free(graph->nodes);
    free(graph);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    for (size_t i = 0; nodes && i < graph->count; i++)
        nodes[i] = graph->nodes[i];
    *count = graph->count;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    *type = (CUgraphNodeType)node->kind;
    return CUDA_SUCCESS;
}

ENTRY CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
    *out = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)(void *)(uintptr_t)node->name};
    return CUDA_SUCCESS;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

ENTRY CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuEventDestroy_v2(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

ENTRY CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)stream, (void)flags;
    struct CUgraphNode_st node = {.kind = NODE_EVENT, .event = event};
    return enqueue(&node);
}

ENTRY CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    *milliseconds = (float)(end->milliseconds - begin->milliseconds);
    return CUDA_SUCCESS;
}
