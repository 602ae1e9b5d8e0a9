/* replayssm-bench --slots and --conv: the calls of a server besides its steps, on a GPU. bench_timed.c times graphs,
 * bench_slots.c and bench_conv.c have the cases. */
#ifndef EXAMPLES_BENCH_OPS_H_
#define EXAMPLES_BENCH_OPS_H_

#include "bench_gpu.h"

enum { OPS_ROUNDS = 15 };

/* A graph of some calls of one kind, between two marks. */
typedef struct timed {
    gpu *g;
    gpu_graph graph;
    cu_event marks[2];
    int64_t calls;
} timed;
typedef int (*timed_call)(void *context, int64_t i); /* enqueues call i on the gpu's stream: EXIT_OK or printed */

int timed_record(timed *t, gpu *g, timed_call enqueue, void *context, int64_t calls);
int timed_sample(timed *t, double *us); /* launches it and waits; microseconds per call */
void timed_free(timed *t);              /* also of a zeroed one */

/* Whether one of --filter's parts, which commas separate, is in the name. */
int bench_gpu_matches(const char *filter, const char *name);
/* Prints that a case was left out, and counts it. */
void bench_gpu_leave_out(gpu_bench *b, const char *name, const char *why);

/* ---- slot operations -------------------------------------------------------------------------------------------- */

typedef enum slots_operation { SLOTS_FORK, SLOTS_EXPORT, SLOTS_IMPORT, SLOTS_FLUSH } slots_operation;

typedef struct slots_outcome {
    char name[64];
    const gpu_shape *shape;
    int32_t state, order; /* order: RSSM_STATE_VK or RSSM_STATE_KV */
    slots_operation operation;
    const char *records; /* pending in each slot: "0", "0..15", "15" */
    int64_t slots;       /* of one call; pairs of a fork */
    double bytes;        /* read and written by one call */
    summary us;          /* of one call */
    summary of_copy;     /* bytes per second over those of a large copy of the same round */
    summary of_same;     /* over those of copies of as many bytes */
    summary copy;        /* bytes per second */
} slots_outcome;

typedef struct slots_report {
    slots_outcome *cases;
    int64_t count;
} slots_report;

int bench_slots(gpu_bench *b, slots_report *out); /* free(out->cases) whatever it returns */
void bench_slots_json(json *out, const slots_report *report);

/* ---- the short convolution -------------------------------------------------------------------------------------- */

typedef struct conv_outcome {
    char name[64];
    int32_t io;
    int64_t channels, columns, tokens, batch, passes;
    double bytes;      /* of one layer */
    summary us;        /* of one layer */
    summary over_goal; /* time over the goal of the same round */
    summary copy;      /* bytes per second */
    double goal_us;
    char kernel[96];
} conv_outcome;

typedef struct conv_report {
    conv_outcome *cases;
    int64_t count;
} conv_report;

int bench_conv(gpu_bench *b, conv_report *out); /* free(out->cases) whatever it returns */
void bench_conv_json(json *out, const conv_report *report);

#endif
