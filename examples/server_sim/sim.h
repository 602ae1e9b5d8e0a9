/* replayssm-server-sim: what a server with continuous batching does to recurrent state, with tokens that are random
 * numbers: requests arrive, share prefixes by forks, are preempted to bytes and come back, are cancelled, and decode
 * speculatively. Every request that finishes is checked.
 *
 *   ../server_sim.c   options, the loop over passes, the report
 *   sim_requests.c    the life of a request: slots, forks, preemption, the end
 *   sim_pass.c        one forward pass: tensors, plain steps and verify windows, the convolution, CUDA graphs
 *   sim_check.c       a finished request against the double-precision recurrence
 *   sim_faults.c      bad calls that must be refused
 *
 * A token is a seed: the inputs of all layers follow from it (the layers differ by their weights), so that a fork shares its
 * parent's tokens by copying seeds, and the check has all inputs again. */
#ifndef EXAMPLES_SIM_H_
#define EXAMPLES_SIM_H_

#include "../common/oracle.h"
#include "../common/rng.h"
#include "../common/workload.h"

#include <rssm_conv.h>
#include <rssm_fault.h>
#include <rssm_slots.h>
#include <rssm_verify.h>

typedef struct sim_options {
    rssm_init_args init;
    const char *config, *plugin, *device;
    int64_t tp, layers, ring, drafts, batch, slots, requests, seconds, length, seed, threads, acceptance, fault_rate;
    int32_t no_conv, no_graphs;
} sim_options;

enum { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_PREEMPTED, REQUEST_DONE };

typedef struct request {
    int64_t id;
    int state;
    uint64_t handle; /* of its slot, while it runs */
    int64_t slot;
    int64_t prompt, length; /* tokens that are known from the start; all of them */
    int64_t done;           /* tokens accepted */
    uint64_t *tokens;       /* [length] seeds */
    uint64_t start;         /* seed of the state that it was prefilled to, 0: none */
    int64_t layer, head;    /* what is checked of it */
    char *inputs;           /* [length][channels] in the io dtype: what the recurrence of that layer got */
    float *outputs;         /* [length][V] of that head */
    unsigned char *saved;   /* while preempted */
    uint64_t saved_bytes;
    struct request *next; /* of a queue */
} request;

typedef struct queue {
    request *first, *last;
    int64_t count;
} queue;

/* A row of a pass. */
typedef struct pass_row {
    request *of; /* NULL: padding */
    int32_t len, accepted;
    int32_t first; /* its first token in the pass */
} pass_row;

/* Graphs of passes of one kind, by number of rows: 1, 2, 4, ... */
enum { SIM_MAX_GRAPHS = 12 };
typedef struct sim_graphs sim_graphs; /* sim_graph.c; NULL on the CPU */

typedef struct totals {
    int64_t arrived, finished, wrong, cancelled, preempted, resumed, forked, imported;
    int64_t passes, tokens, drafted, accepted, flushes, refused, not_refused, most_slots;
    int64_t replayed; /* passes that were a graph's */
    double slots;     /* sum over passes */
    double seconds;   /* in passes */
    double worst_out, worst_state, worst_conv;
} totals;

typedef struct sim {
    const sim_options *o;
    host host;
    device dev;
    workload load; /* weights, packed inputs, gates, rows: room for batch * window tokens */
    const rssm_slots_api *slots;
    const rssm_verify_api *verify; /* NULL without drafts */
    const rssm_conv_api *conv;     /* NULL without a convolution */
    void *stream;
    sim_graphs *graphs;
    int64_t channels, gates, window; /* window: most tokens of a row in a pass */
    int64_t layers;

    /* Tensors of a pass; `load` has the others: its packed row is what the convolution gets, where there is one. */
    tensor cu_seqlens, accepted;
    tensor *conv_weight, *conv_bias; /* [layers] */
    tensor *conv_out, *out;          /* [layers] */
    const DLTensor **conv_roles;     /* [layers][RSSM_T_COUNT] */

    /* Tensors of slot operations. */
    tensor src, dst;          /* int32 [1] */
    tensor start, start_conv; /* a state to import: the same for all layers */
    tensor *end;              /* [layers] exported states */
    const DLTensor **starts, **start_convs, **ends, **decays;

    rng random;
    queue waiting, preempted;
    request **running; /* [slots] */
    int64_t num_running;
    pass_row *rows;               /* [batch] */
    int64_t num_rows, num_tokens; /* of the pass at hand, padding included */
    double *samples;              /* seconds of each pass */
    int64_t most_samples;
    oracle oracle;
    oracle_scratch *scratch;
    totals t;
} sim;

/* All that return int: EXIT_OK, or EXIT_REFUSED once the reason is printed. */

/* ---- sim_requests.c ---------------------------------------------------------------------------------------------- */
int sim_arrive(sim *s, double rate, int64_t all); /* new requests of this pass, Poisson, up to so many in all */
int sim_admit(sim *s);  /* preempted ones first, then waiting ones; makes room by preempting */
int sim_cancel(sim *s); /* now and then a request goes away */
int sim_flush(sim *s);  /* now and then a slot's records go into its checkpoint */
int sim_finish(sim *s); /* checks and releases what is complete */
void sim_free_requests(sim *s);
int sim_leaks(sim *s, int64_t *leaked); /* slots that nobody has and nobody gets */
rssm_state_args sim_state_args(const sim *s, const DLTensor **states, int32_t order);

/* ---- sim_pass.c -------------------------------------------------------------------------------------------------- */
int sim_pass_create(sim *s);
void sim_pass_free(sim *s);
int sim_pass(sim *s); /* picks rows, runs them, gives each request its tokens */
/* The inputs of a token, as rows of the io dtype. gate and beta may be NULL. */
void sim_token(const sim *s, uint64_t seed, void *packed, void *gate, void *beta);

/* ---- sim_graph.c ------------------------------------------------------------------------------------------------- */
typedef int (*sim_enqueue)(sim *s, int64_t rows, int verify);
int sim_graphs_open(sim *s); /* opens a stream for s->stream, too */
void sim_graphs_close(sim *s);
/* Replays the graph of this kind and number of rows, recording it with `enqueue` the first time. */
int sim_graphs_run(sim *s, sim_enqueue enqueue, int64_t rows, int verify);

/* ---- sim_check.c ------------------------------------------------------------------------------------------------- */
/* `state` [HV, V, K] in float32, [HV, K, V] if transposed. Counts a wrong request, with a line on stderr. */
int sim_check(sim *s, const request *r, const float *state, int transposed);
void sim_start_state(const sim *s, uint64_t seed, float *state, float *conv); /* [HV][V][K], [channels][w - 1] */

/* ---- sim_faults.c ------------------------------------------------------------------------------------------------ */
int sim_fault(sim *s); /* one bad call */

#endif
