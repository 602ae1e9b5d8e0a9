/* The entry points of the driver that docs/hosts.md calls by name, passed on to libcuda.so.1 when they are called: the
 * check links without a driver and runs on the CPU without one. */
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

/* Finds `name` (as the library has it) into a pointer to a function. */
static int find(const char *name, void *entry)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* kept: as long as the process */
    void *symbol = library ? dlsym(library, name) : NULL;
    memcpy(entry, &symbol, sizeof symbol);
    return symbol != NULL;
}

#define PASS_ON(name, symbol, parameters, arguments)                                          \
    CUresult CUDAAPI name parameters                                                          \
    {                                                                                         \
        CUresult(CUDAAPI *entry) parameters;                                                  \
        return find(symbol, &entry) ? entry arguments : CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; \
    }

PASS_ON(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags), (stream, flags))
PASS_ON(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream), (stream))
PASS_ON(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
PASS_ON(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph *graph), (stream, graph))
PASS_ON(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",
        (CUgraphExec * exec, CUgraph graph, unsigned long long flags), (exec, graph, flags))
PASS_ON(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream), (exec, stream))
PASS_ON(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec), (exec))
PASS_ON(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph), (graph))
