/* CUDA for the programs here, by dlopen of the driver (libcuda.so.1): no toolkit is needed to build or run them. The few
 * declarations are the public ones of cuda.h. */
#ifndef EXAMPLES_CUDA_HOST_H_
#define EXAMPLES_CUDA_HOST_H_

#include "device.h"

#include <stddef.h>

typedef int cu_result; /* CUresult: 0 is success */
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;
typedef struct cu_graph *cu_graph;
typedef struct cu_node *cu_node;
typedef struct cu_graph_exec *cu_graph_exec;
typedef unsigned long long cu_pointer; /* CUdeviceptr */

/* An entry point of the driver and where its address goes in the caller's table. */
typedef struct cuda_entry {
    const char *name;
    size_t place;
    int optional; /* 1: NULL where the driver is too old to have it */
} cuda_entry;

/* Fills `table` from the driver of an open CUDA device. NULL, or the name of an entry that is missing. */
const char *cuda_entries(const device *dev, const cuda_entry *entries, size_t count, void *table);
/* The device's ordinal in the driver. */
cu_device cuda_ordinal(const device *dev);
/* EXIT_OK, or prints "what: the error's name" and returns EXIT_REFUSED. */
int cuda_check(const device *dev, const host *h, cu_result result, const char *what);

#endif
