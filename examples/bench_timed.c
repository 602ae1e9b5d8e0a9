/* Graphs of some calls of one kind, timed on the device. */
#include "bench_ops.h"

int timed_record(timed *t, gpu *g, timed_call enqueue, void *context, int64_t calls)
{
    *t = (timed){.g = g, .calls = calls};
    int code = gpu_marks_create(g, t->marks, 2);
    if (code == EXIT_OK)
        code = gpu_record_begin(g);
    if (code == EXIT_OK)
        code = gpu_mark(g, t->marks[0]);
    for (int64_t i = 0; i < calls && code == EXIT_OK; i++)
        code = enqueue(context, i);
    if (code == EXIT_OK)
        code = gpu_mark(g, t->marks[1]);
    return code == EXIT_OK ? gpu_record_end(g, &t->graph) : code;
}

int timed_sample(timed *t, double *us)
{
    double seconds = 0.0;
    int code = gpu_graph_launch(t->g, &t->graph);
    if (code == EXIT_OK)
        code = gpu_sync(t->g);
    if (code == EXIT_OK)
        code = gpu_between(t->g, t->marks[0], t->marks[1], &seconds);
    *us = 1e6 * seconds / (double)t->calls;
    return code;
}

void timed_free(timed *t)
{
    if (t->g == NULL)
        return;
    gpu_graph_free(t->g, &t->graph);
    gpu_marks_free(t->g, t->marks, 2);
    *t = (timed){.g = NULL};
}
