/* `replayssm-conform --device cuda`: instances on a GPU, and memory for the cases that it can use too, at the same address. */
#ifndef RSSM_TESTS_CONFORM_DEVICE_H_
#define RSSM_TESTS_CONFORM_DEVICE_H_

#include "replayssm.h"

/* From now on h_api gives the table of on_cuda.c, and h_block such memory. Touches no driver. */
void conform_device_open(void);
const rssm_api *conform_on_cuda(const rssm_api *real);

/* For on_cuda.c. use: an instance is about to compute; from then on memory is the device's too. wait: until all that was enqueued is
 * done; during a capture it does nothing. Both leave the current context as it was. */
void conform_device_use(void);
void conform_device_wait(void);

/* A stream, and what is enqueued on it between begin and end as a graph, which launch also waits for. A failure of the driver
 * ends the case. */
typedef struct conform_graph {
    void *graph, *exec;
} conform_graph;

void *conform_stream(void);
void conform_capture_begin(void *stream);
conform_graph conform_capture_end(void *stream);
void conform_graph_launch(const conform_graph *g, void *stream);
void conform_graph_free(const conform_graph *g);
void conform_stream_free(void *stream);

#endif
