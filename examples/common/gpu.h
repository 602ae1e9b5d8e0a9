/* Timing on a GPU: graphs of work whose time is taken on the device, the bandwidth of its memory, an empty kernel.
 *
 * A graph holds its own marks (events that are recorded by the device between its nodes), so a time is that of the work
 * between two marks: what it takes the host to launch the graph is not in it. */
#ifndef EXAMPLES_GPU_H_
#define EXAMPLES_GPU_H_

#include "cuda_host.h"

typedef struct gpu_calls gpu_calls; /* entry points */

typedef struct gpu_graph {
    cu_graph graph;
    cu_graph_exec exec;
} gpu_graph;

typedef struct gpu {
    device *dev;
    const host *h;
    gpu_calls *calls;
    cu_stream stream; /* where all work goes; it does not wait for the legacy default stream */
    cu_module module;
    cu_function empty, reader, copier;
    cu_event marks[2];
    int copy_loop, read_loop; /* the fastest here */
    unsigned char *from, *to;
    int64_t bytes; /* of each of the two */
    char name[96];
    int32_t driver_version; /* 13000 = 13.0 */
    int32_t multiprocessors;
    int64_t l2_bytes;
} gpu;

/* All that return int: EXIT_OK, or EXIT_REFUSED once the reason is printed. */
int gpu_open(gpu *g, device *dev, const host *h);
void gpu_close(gpu *g); /* also of a zeroed one */
int gpu_sync(gpu *g);   /* waits for the stream */
int64_t gpu_free_bytes(gpu *g);
int gpu_upload(gpu *g, void *dst, const void *src, int64_t bytes);   /* in stream order, done on return */
int gpu_download(gpu *g, void *dst, const void *src, int64_t bytes); /* the same */
int gpu_copy(gpu *g, void *dst, const void *src, int64_t bytes); /* within the device, by the driver: enqueued only */

/* What is enqueued on the stream between the two becomes a graph. */
int gpu_record_begin(gpu *g);
int gpu_record_end(gpu *g, gpu_graph *out);
int gpu_graph_launch(gpu *g, const gpu_graph *graph);
void gpu_graph_free(gpu *g, gpu_graph *graph); /* also of a zeroed one */

/* Kernels of a graph: how many, and the name of the first; the name is "" where the driver is too old to tell. */
typedef struct gpu_kernels {
    int64_t count;
    char first[96];
} gpu_kernels;
int gpu_graph_kernels(gpu *g, const gpu_graph *graph, gpu_kernels *out);

int gpu_marks_create(gpu *g, cu_event *marks, int64_t count);
void gpu_marks_free(gpu *g, cu_event *marks, int64_t count);
int gpu_mark(gpu *g, cu_event mark); /* while recording */
/* Both marks have passed. */
int gpu_between(gpu *g, cu_event begin, cu_event end, double *seconds);

/* Bytes per second: a copy within the device's memory (bytes read + bytes written), a read. */
int gpu_copy_bandwidth(gpu *g, double *bytes_per_second);
int gpu_read_bandwidth(gpu *g, double *bytes_per_second);
const char *gpu_copy_loop(const gpu *g); /* how it is done: what proved fastest here */
const char *gpu_read_loop(const gpu *g);
/* Launches the empty kernel; returns what the driver says. */
cu_result gpu_launch_empty(gpu *g);

#endif
