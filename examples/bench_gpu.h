/* The cases of replayssm-bench on a GPU: bench_cuda.c lists them, bench_gpu_case.c measures one, bench_gpu_report.c prints. */
#ifndef EXAMPLES_BENCH_GPU_H_
#define EXAMPLES_BENCH_GPU_H_

#include "bench_run.h"

#include <stdio.h>

enum { BENCH_GPU_ROUNDS = 21 };

typedef struct gpu_shape {
    char name[48]; /* for --filter and tables */
    int32_t family;
    int64_t heads[4]; /* as family_shape's */
    int main;         /* of --quick; its host cost is measured too */
    int halves;       /* also with a float16 state */
} gpu_shape;

/* From this batch on a step is held to its goal; at any batch it may take GOAL_NO_WORSE times the read-and-write step. */
enum { GOAL_BATCH = 32 };
#define GOAL_NO_WORSE 1.03

typedef struct gpu_case {
    const gpu_shape *shape;
    int32_t state;
    int64_t tokens; /* 1 = a plain step, else a window of verify */
    int64_t batch, ring_length;
    int32_t together, host_cost; /* also measure these */
} gpu_case;

/* Nanoseconds of the calling thread. */
typedef struct host_cost {
    summary validate, decode, decode_skip, empty;
    summary over_empty; /* decode - empty, each of one round */
} host_cost;

typedef struct gpu_outcome {
    gpu_case what;
    char name[64];
    char kernel[96], read_write_kernel[96];
    double launches; /* kernels per layer and pass */
    int64_t auto_ring_length, layers, passes, pool_bytes;
    int32_t state, io, ring_dtype;
    summary copy, read; /* bytes per second */
    figure step, read_write;
    summary whole_us; /* per layer, in passes with their step_begin (and commit) */
    summary begin_us; /* of a pass */
    summary end_us;   /* of a pass */
    double goal_us;
    double together, spread; /* worst step / median step of a window; 0 = not measured */
    host_cost host;          /* all 0: not measured */
} gpu_outcome;

typedef struct gpu_bench {
    bench *common;
    gpu g;
    gpu_shape custom[NUM_FAMILIES]; /* of --heads */
    const gpu_shape *shapes;
    int64_t num_shapes;
    gpu_outcome *outcomes;
    int64_t count, most;
    int64_t skipped;
    double deadline; /* of stats_seconds: no case is begun after it */
    FILE *text;      /* the table for people */
} gpu_bench;

/* Whether a window of so many tokens can be measured: it has a goal. */
int bench_gpu_tokens(int64_t tokens);

/* What became of a case that no call failed for. */
typedef enum fate { FATE_DONE, FATE_NO_ROOM, FATE_MISSING } fate;
int bench_gpu_case(gpu_bench *b, gpu_outcome *out, fate *how); /* out->what says which */

/* The table for people, line by line, and the report for programs. */
const char *bench_gpu_type(int32_t dtype); /* RSSM_DTYPE_* as names of cases have it */
const char *bench_gpu_family(const gpu_shape *shape);
void bench_gpu_print_head(const gpu_bench *b);
void bench_gpu_print_case(const gpu_bench *b, const gpu_outcome *c);
void bench_gpu_print_bars(const gpu_bench *b);
json bench_gpu_json_begin(const gpu_bench *b, int rounds); /* the device and the plugin; leaves the object open */
void bench_gpu_json(const gpu_bench *b);

#endif
