#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../unit/harness.h"

enum { PAGE = 4096, PORTABLE_AND_MAPPED = 3 };

/* What is registered with the driver lies in pages of its own. */
typedef struct block {
    struct block *next;
    void *memory;
    size_t bytes;
} block;

/* By hand: the judge needs no CUDA to be built. */
typedef struct driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*retain)(void **context, int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*pin)(void *memory, size_t bytes, unsigned flags);
    int (*unpin)(void *memory);
    int (*wait)(void);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_destroy)(void *graph);
    int (*exec_destroy)(void *exec);
    int (*graph_launch)(void *exec, void *stream);
    void *context;
    pid_t owner;    /* its process: a forked child has no use of it */
    bool capturing; /* no time to wait */
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static driver cuda; /* context NULL: nothing computes yet */

/* A driver that fails is the machine's fault, not the plugin's: the case ends. */
static void need(bool fine, const char *what)
{
    if (!fine) {
        printf("%s failed: the judge needs a CUDA device\n", what);
        fflush(stdout);
        _Exit(2);
    }
}

/* In a forked child of a process that computes, only the plugin meets the driver. */
static bool at_work(void)
{
    return cuda.context && cuda.owner == getpid();
}

static void enter(void)
{
    need(cuda.push(cuda.context) == 0, "cuCtxPushCurrent");
}

static void leave(void)
{
    void *mine;
    need(cuda.pop(&mine) == 0, "cuCtxPopCurrent");
}

/* A fork would give the parent new pages at its next write, and the device would keep the old ones: the child gets none. */
static void pin(const block *b)
{
    madvise(b->memory, b->bytes, MADV_DONTFORK);
    need(cuda.pin(b->memory, b->bytes, PORTABLE_AND_MAPPED) == 0, "cuMemHostRegister");
}

static void unpin(const block *b)
{
    cuda.unpin(b->memory);
    madvise(b->memory, b->bytes, MADV_DOFORK);
}

static void open_driver(void)
{
    const struct {
        const char *name;
        void **entry;
    } entries[] = {
        {"cuInit", (void **)&cuda.init},
        {"cuDeviceGet", (void **)&cuda.device_get},
        {"cuDevicePrimaryCtxRetain", (void **)&cuda.retain},
        {"cuCtxPushCurrent_v2", (void **)&cuda.push},
        {"cuCtxPopCurrent_v2", (void **)&cuda.pop},
        {"cuMemHostRegister_v2", (void **)&cuda.pin},
        {"cuMemHostUnregister", (void **)&cuda.unpin},
        {"cuCtxSynchronize", (void **)&cuda.wait},
        {"cuStreamCreate", (void **)&cuda.stream_create},
        {"cuStreamDestroy_v2", (void **)&cuda.stream_destroy},
        {"cuStreamSynchronize", (void **)&cuda.stream_wait},
        {"cuStreamBeginCapture_v2", (void **)&cuda.capture_begin},
        {"cuStreamEndCapture", (void **)&cuda.capture_end},
        {"cuGraphInstantiateWithFlags", (void **)&cuda.instantiate},
        {"cuGraphDestroy", (void **)&cuda.graph_destroy},
        {"cuGraphExecDestroy", (void **)&cuda.exec_destroy},
        {"cuGraphLaunch", (void **)&cuda.graph_launch},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int device = 0;
    need(library != NULL, "dlopen of libcuda.so.1");
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        *entries[i].entry = dlsym(library, entries[i].name);
        need(*entries[i].entry != NULL, entries[i].name);
    }
    need(cuda.init(0) == 0 && cuda.device_get(&device, 0) == 0, "cuInit");
    need(cuda.retain(&cuda.context, device) == 0, "cuDevicePrimaryCtxRetain");
    cuda.owner = getpid();
}

void conform_device_use(void)
{
    pthread_mutex_lock(&lock);
    if (!cuda.context) {
        open_driver();
        enter();
        for (const block *b = blocks; b; b = b->next)
            pin(b);
        leave();
    }
    pthread_mutex_unlock(&lock);
}

void conform_device_wait(void)
{
    if (cuda.capturing || !at_work())
        return;
    enter();
    cuda.wait(); /* what went wrong in a kernel is in the outputs, and in the plugin's next call */
    leave();
}

static void *take_block(size_t bytes)
{
    block *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->bytes = (bytes + PAGE) / PAGE * PAGE;
    b->memory = aligned_alloc(PAGE, b->bytes);
    pthread_mutex_lock(&lock);
    b->next = blocks;
    blocks = b;
    if (at_work()) {
        enter();
        pin(b);
        leave();
    }
    pthread_mutex_unlock(&lock);
    return b->memory;
}

static void give_block(void *memory)
{
    if (cuda.context && !at_work())
        return; /* pages that a forked child does not have */
    pthread_mutex_lock(&lock);
    for (block **at = &blocks; *at && memory; at = &(*at)->next) {
        block *b = *at;
        if (b->memory != memory)
            continue;
        if (at_work()) {
            enter();
            unpin(b);
            leave();
        }
        *at = b->next;
        free(b->memory);
        free(b);
        break;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

enum { NON_BLOCKING = 1, THREAD_LOCAL = 1 };

void *conform_stream(void)
{
    void *stream = NULL;
    conform_device_use();
    enter();
    need(cuda.stream_create(&stream, NON_BLOCKING) == 0, "cuStreamCreate");
    leave();
    return stream;
}

void conform_stream_free(void *stream)
{
    enter();
    need(cuda.stream_destroy(stream) == 0, "cuStreamDestroy");
    leave();
}

void conform_capture_begin(void *stream)
{
    enter();
    need(cuda.capture_begin(stream, THREAD_LOCAL) == 0, "cuStreamBeginCapture");
    leave();
    cuda.capturing = true;
}

conform_graph conform_capture_end(void *stream)
{
    conform_graph g = {0};
    cuda.capturing = false;
    enter();
    ck_assert_msg(cuda.capture_end(stream, &g.graph) == 0 && g.graph, "a call broke the capture of its stream");
    need(cuda.instantiate(&g.exec, g.graph, 0) == 0, "cuGraphInstantiate");
    leave();
    return g;
}

void conform_graph_launch(const conform_graph *g, void *stream)
{
    enter();
    ck_assert_msg(cuda.graph_launch(g->exec, stream) == 0 && cuda.stream_wait(stream) == 0, "a graph of calls fails");
    leave();
}

void conform_graph_free(const conform_graph *g)
{
    enter();
    need(cuda.exec_destroy(g->exec) == 0 && cuda.graph_destroy(g->graph) == 0, "cuGraphDestroy");
    leave();
}

void conform_device_open(void)
{
    h_block = take_block;
    h_block_free = give_block;
    h_front = conform_on_cuda;
}
