/* A CUDA driver for tests: libcuda.so.1 on host memory, without a GPU. Kernels do not run, they are recorded. It counts
 * every call, keeps the books of memory, libraries and contexts, and fails the call that a test names.
 *
 * One instance per process: the test and the plugin dlopen the same file. Threads take turns; each has its own current contexts. */
#ifndef RSSM_TESTS_FAKE_CUDA_H_
#define RSSM_TESTS_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#include "cuda/driver.h"

/* FAKE_init, FAKE_launch, ...: the fields of the plugin's table, in its order. */
enum {
#define X(field, symbol, parameters) FAKE_##field,
    RSSM_CUDA_ENTRIES(X)
#undef X
        FAKE_ENTRIES
};

enum { FAKE_LAUNCHES = 64, FAKE_NAME = 96 };

typedef struct fake_launch {
    char kernel[FAKE_NAME];
    unsigned grid[3], block[3], shared;
    int early; /* 1: it may start before those before it have ended */
    void *stream;
} fake_launch;

enum { FAKE_DEPTH = 16 };

/* The current contexts of a thread. */
typedef struct fake_contexts {
    CUcontext below[FAKE_DEPTH]; /* `depth` of them */
    int64_t depth;
    CUcontext current; /* NULL = none */
} fake_contexts;

typedef struct fake_cuda {
    fake_contexts *(*contexts)(void); /* of the thread that asks */
    /* Knobs. */
    int64_t fail_at; /* this call, counted from 1 over all entries, does not happen and returns fail_with; 0 = none */
    CUresult fail_with; /* an error that ends a context stays: every later call that needs one returns it too        */
    CUresult
        faulted;    /* a kernel has faulted or the device is gone: what calls in a context return from now on        */
    int missing;    /* FAKE_*: dlsym does not find this entry; -1 = all are there                                 */
    int devices;    /* 0: cuInit says CUDA_ERROR_NO_DEVICE                                                        */
    int64_t memory; /* bytes that all allocations together may take                                               */
    int shared;     /* bytes of shared memory that a block may have                                               */
    int capability; /* compute capability, major                                                                  */
    int version;    /* of the driver, as cuDriverGetVersion says it                                               */
    /* Counters. */
    int64_t calls, calls_of[FAKE_ENTRIES];
    int64_t lookups; /* dlsym of an entry */
    int failed;      /* FAKE_* of the call that was failed, -1 = none yet */
    int64_t misuse;  /* calls that the real driver would not take: bad handles, no current context, empty grids */
    char misused[FAKE_NAME];
    /* What is held now. */
    int64_t allocations, bytes, libraries, retained;
    int64_t launches;
    fake_launch launch[FAKE_LAUNCHES]; /* the latest, number n at n % FAKE_LAUNCHES */
    void *stream_of[FAKE_ENTRIES];     /* last stream given to a copy, a memset or a wait */
} fake_cuda;

/* The state of the driver, by dlsym(libcuda, "fake_cuda_state"). */
fake_cuda *fake_cuda_state(void);
/* Nothing held, nothing counted, nothing fails; one device. */
void fake_cuda_reset(void);

typedef fake_cuda *(*fake_cuda_state_fn)(void);
typedef void (*fake_cuda_reset_fn)(void);

/* A context of the host's own, to be made current. */
#define FAKE_HOST_CONTEXT ((CUcontext)(uintptr_t)0xC0FFEE)

#endif
