/* CUDA graphs of passes, one for each kind and number of rows, recorded when first needed. */
#include "sim.h"

#include "../common/cuda_host.h"

#include <stdlib.h>

enum { STREAM_NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 }; /* of cuda.h */

typedef struct graph_calls {
    cu_result (*stream_create)(cu_stream *out, unsigned flags);
    cu_result (*stream_destroy)(cu_stream stream);
    cu_result (*capture_begin)(cu_stream stream, int mode);
    cu_result (*capture_end)(cu_stream stream, cu_graph *out);
    cu_result (*instantiate)(cu_graph_exec *out, cu_graph graph, unsigned long long flags);
    cu_result (*launch)(cu_graph_exec exec, cu_stream stream);
    cu_result (*exec_destroy)(cu_graph_exec exec);
    cu_result (*graph_destroy)(cu_graph graph);
} graph_calls;

static const cuda_entry entries[] = {
    {"cuStreamCreate", offsetof(graph_calls, stream_create), 0},
    {"cuStreamDestroy_v2", offsetof(graph_calls, stream_destroy), 0},
    {"cuStreamBeginCapture_v2", offsetof(graph_calls, capture_begin), 0},
    {"cuStreamEndCapture", offsetof(graph_calls, capture_end), 0},
    {"cuGraphInstantiateWithFlags", offsetof(graph_calls, instantiate), 0},
    {"cuGraphLaunch", offsetof(graph_calls, launch), 0},
    {"cuGraphExecDestroy", offsetof(graph_calls, exec_destroy), 0},
    {"cuGraphDestroy", offsetof(graph_calls, graph_destroy), 0},
};

struct sim_graphs {
    graph_calls calls;
    cu_stream stream;
    struct {
        int64_t rows; /* 0: none */
        cu_graph graph;
        cu_graph_exec exec;
    } of[2][SIM_MAX_GRAPHS]; /* [verify] */
};

int sim_graphs_open(sim *s)
{
    sim_graphs *g = calloc(1, sizeof *g);
    if (g == NULL)
        return host_refuse(&s->host, "out of memory");
    s->graphs = g;
    const char *missing = cuda_entries(&s->dev, entries, sizeof entries / sizeof entries[0], &g->calls);
    if (missing != NULL)
        return host_refuse(&s->host, "the driver has no %s", missing);
    int code = cuda_check(&s->dev, &s->host, g->calls.stream_create(&g->stream, STREAM_NON_BLOCKING), "a stream");
    s->stream = g->stream;
    return code;
}

void sim_graphs_close(sim *s)
{
    sim_graphs *g = s->graphs;
    if (g == NULL)
        return;
    for (int verify = 0; verify < 2; verify++)
        for (int i = 0; i < SIM_MAX_GRAPHS; i++) {
            if (g->of[verify][i].exec != NULL)
                g->calls.exec_destroy(g->of[verify][i].exec);
            if (g->of[verify][i].graph != NULL)
                g->calls.graph_destroy(g->of[verify][i].graph);
        }
    if (g->stream != NULL)
        g->calls.stream_destroy(g->stream);
    free(g);
    s->graphs = NULL;
}

static int record(sim *s, sim_enqueue enqueue, int64_t rows, int verify, int i)
{
    sim_graphs *g = s->graphs;
    int code =
        cuda_check(&s->dev, &s->host, g->calls.capture_begin(g->stream, CAPTURE_THREAD_LOCAL), "recording a graph");
    if (code != EXIT_OK)
        return code;
    code = enqueue(s, rows, verify);
    cu_result ended = g->calls.capture_end(g->stream, &g->of[verify][i].graph);
    if (code == EXIT_OK)
        code = cuda_check(&s->dev, &s->host, ended, "recording a graph");
    if (code == EXIT_OK)
        code = cuda_check(&s->dev, &s->host, g->calls.instantiate(&g->of[verify][i].exec, g->of[verify][i].graph, 0),
                          "a graph");
    g->of[verify][i].rows = rows;
    return code;
}

int sim_graphs_run(sim *s, sim_enqueue enqueue, int64_t rows, int verify)
{
    sim_graphs *g = s->graphs;
    int i = 0, code = EXIT_OK;
    while (i < SIM_MAX_GRAPHS && g->of[verify][i].rows != rows && g->of[verify][i].rows != 0)
        i++;
    if (i == SIM_MAX_GRAPHS)
        return enqueue(s, rows, verify);
    if (g->of[verify][i].rows == 0)
        code = record(s, enqueue, rows, verify, i);
    else
        s->t.replayed++;
    if (code == EXIT_OK)
        code = cuda_check(&s->dev, &s->host, g->calls.launch(g->of[verify][i].exec, g->stream), "launching a graph");
    return code;
}
