/* One instance on a GPU as the benchmark drives it: graphs of passes over slots of their own.
 *
 * A graph runs `passes` passes of `batch` rows over `layers` layers. Every pass has its own slots, so no two kernels of a
 * graph touch the same state or ring, and all of it together is a multiple of the L2 cache: nothing is left there from one
 * launch of the graph to the next. Inputs and outputs are one set for all. The rows of all passes are spread over the
 * window, so every launch of the graph has the same, exact share of flushes; the host counts them.
 *
 *     begin   step_begin (verify_begin) of every pass, each into rows of its own
 *     steps   the layers of every pass, nothing else: what is called the time of a step
 *     end     commit of every pass; empty for a plain step
 *     whole   the same passes as a server would enqueue them: step_begin, layers, commit in turn */
#ifndef EXAMPLES_BENCH_RUN_H_
#define EXAMPLES_BENCH_RUN_H_

#include "bench.h"
#include "common/gpu.h"

#include <rssm_verify.h>

enum { RUN_MAX_RING = 64 };

/* What to measure. */
typedef struct run_want {
    int32_t family, state, io, ring_dtype;
    int64_t heads[4];
    int64_t batch, ring_length;
    int64_t tokens;  /* of a row and pass: 1 = a plain step, more = a window of verify */
    int64_t layers;  /* 0 is not allowed */
    int64_t passes;  /* slots are passes * batch */
    int32_t windows; /* 1: graphs of a whole window of steps of one pass's slots, with a mark before each step */
    uint32_t flags;  /* of init */
} run_want;

enum { MARK_BEGIN, MARK_STEPS = 2, MARK_END = 4, MARK_WHOLE = 6, RUN_MARKS = 8 };

typedef struct run {
    gpu *g;
    run_want want;
    host host;
    workload load; /* a row for each token */
    void *slab;
    const rssm_verify_api *verify; /* NULL: plain steps */
    int64_t sets;                  /* of rows: one for each pass, or for each step of a window */
    tensor slots;                  /* int32 [passes * batch]       */
    tensor force;                  /* int32 [passes * batch]       */
    tensor rows;                   /* int32 [sets * batch, 8]      */
    tensor cu_seqlens;             /* int32 [batch + 1]            */
    tensor accepted;               /* int32 [passes * batch]       */
    DLTensor *views;               /* slots, force, accepted of each pass; rows of each set */
    int64_t shapes[2][2];          /* [batch] and [batch, 8]       */
    row_count count;
    gpu_graph begin, steps, end, whole;
    cu_event marks[RUN_MARKS];
    cu_event step_marks[RUN_MAX_RING + 1];
} run;

/* Passes that a graph needs for an exact share of flushes. */
int64_t run_passes(int64_t batch, int64_t ring_length, int64_t tokens);

/* Everything up to spread cursors and recorded graphs. On RSSM_ERR_UNSUPPORTED of an extension *missing is set to 1 and
 * nothing is printed. All return EXIT_OK or the exit code once the reason is printed; close it either way. */
int run_open(run *r, gpu *g, const host *base, const run_want *want, int *missing);
void run_close(run *r);

/* Seconds of one launch of the graphs. */
typedef struct run_times {
    double begin, steps, end;
} run_times;
int run_sample(run *r, run_times *out); /* begin, steps, end */
int run_whole(run *r, double *seconds);
int run_window(run *r, double *seconds); /* of want.windows: [ring_length] */

/* Modelled bytes of one layer and pass. */
int64_t run_layer_bytes(const run *r);
/* The call of layer 0 of the first pass. */
rssm_decode_args run_first_call(run *r, uint32_t flags);

#endif
