/* What the parts of replayssm-bench share: options, cases, figures, their JSON. bench.c is the command line, bench_cpu.c
 * and bench_cuda.c measure. */
#ifndef EXAMPLES_BENCH_H_
#define EXAMPLES_BENCH_H_

#include "common/json.h"
#include "common/stats.h"
#include "common/workload.h"

typedef struct bench_options {
    const char *plugin, *device, *family, *level, *filter;
    option_list batch, heads, ring, tokens, together;
    int64_t threads, seconds;
    int32_t state, io, ring_dtype; /* RSSM_DTYPE_*; 0 = not given */
    int32_t json, quick, steady, keep_records, slots, conv;
} bench_options;

typedef struct bench {
    const bench_options *o;
    host base; /* the library, without an instance */
    device dev;
} bench;

/* A kind of step: its time per layer, and how that stands to its floor. */
typedef struct figure {
    int64_t bytes;        /* of one layer, all rows: modelled */
    double counted_bytes; /* the same, as the steps did it    */
    summary us, floor_us, ratio;
    summary over_read_write; /* time over that of the read-and-write step of the same round */
    int64_t steps, flushes;
} figure;

/* ---- bytes ---- */

/* One row of one layer: a record of the ring, the state, inputs and output together. */
int64_t bench_ring_row_bytes(const host *h);
int64_t bench_state_bytes(const host *h);
int64_t bench_io_bytes(const workload *w);
/* Fewest bytes of one layer and step of the batch, averaged over a window:
 *     replay      state (1 + 1/L) + (L - 1)/2 ring rows + 1 ring row + inputs + output
 *     read-write  2 state + inputs + output                                             (L = 1) */
int64_t bench_layer_bytes(const workload *w, int64_t batch);

/* Flushes and bytes of what a rows tensor describes: its records are read, then the state is written or a record; a window
 * stores its tokens' records whether it flushes or not. */
typedef struct row_count {
    int64_t steps, flushes, bytes;
} row_count;
void bench_count_rows(const workload *w, const int32_t *rows, int64_t batch, int windows, row_count *count);

/* ---- figures ---- */

/* Round by round, so that what disturbs a round disturbs both. At most BENCH_MAX_SAMPLES. */
enum { BENCH_MAX_SAMPLES = 64 };
summary bench_paired(const double *us, const double *other_us, int64_t samples);
void bench_json_summary(json *out, const char *key, const summary *s);
/* percent_key names what 100 / ratio is a share of. Leaves the object open: json_end is the caller's. */
void bench_json_figure(json *out, const char *key, const figure *f, const char *percent_key);
void bench_json_heads(json *out, const int64_t heads[4]);

/* Shapes of published models, one GPU each, when --heads says nothing. H, HV, K, V; Mamba-2: groups, heads, state size,
 * head dim. */
typedef struct family_shape {
    const char *name;
    int32_t family;
    int64_t heads[4];
} family_shape;
enum { NUM_FAMILIES = 3 };
extern const family_shape bench_families[NUM_FAMILIES];

/* ---- devices: EXIT_OK, or another exit code once the reason is printed ---- */

int bench_cpu(bench *b);
int bench_cuda(bench *b);

#endif
