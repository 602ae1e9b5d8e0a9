/* The recurrence in double precision, written from its definition: one token, one head at a time, the state updated at
 * every token. It shares no code and no rearrangement with the plugin: pending records are replayed one by one, never
 * summed up front.
 *
 * Mamba-2 in the same words: V = head dim P, K = state size N, H = groups; v = x, k = B, q = C. */
#ifndef EXAMPLES_ORACLE_H_
#define EXAMPLES_ORACLE_H_

#include "dtype.h"

#include <rssm_model.h>

typedef struct oracle {
    int32_t family, gate_kind, qk_norm;
    int64_t H, HV, K, V;
    int64_t gates;  /* log gates of one head: K (KDA) or 1 */
    int64_t padded; /* K up to a multiple of 8: rows of doubles are that long, zero behind K */
    double lower_bound, scale, norm_eps, beta_scale, dt_min, dt_max;
    const dtype_info *io, *state, *ring;
} oracle;

/* One layer's inputs, on the host. packed, gate and beta are rows of the batch in the io dtype, weights float32. */
typedef struct oracle_inputs {
    const void *packed, *gate, *beta;
    const float *A_log, *dt_bias, *D; /* D NULL: none */
} oracle_inputs;

/* The pending records of one head of one slot: rows (base + j) % rows of d [rows][V], k [rows][K], g [rows][gates]. */
typedef struct oracle_ring {
    const void *d, *k, *g;
    int64_t rows, base, count;
} oracle_ring;

/* What a step must give for one head. */
typedef struct oracle_result {
    double *out;     /* [V] */
    double *d;       /* [V] the record, not rounded: d, or x for Mamba-2                                    */
    double *d_scale; /* [V] size of the terms whose difference d is: what float32 resolves them by          */
    double *k;       /* [K] k after the norm, or B */
    double *g;       /* [gates], or dt after softplus and clamp */
    double *state;   /* [V][K] the state after the step, or NULL */
} oracle_result;

/* Buffers of one thread. */
typedef struct oracle_scratch oracle_scratch;

void oracle_init(oracle *o, const rssm_description *model);
oracle_scratch *oracle_scratch_create(const oracle *o, int64_t ring_rows); /* NULL: out of memory */
void oracle_scratch_free(oracle_scratch *s);

/* From checkpoint [V][K] and records as found in the pool. out->state takes d and k rounded to the ring's dtype, as
 * all that outlives a token. */
void oracle_step(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head,
                 const void *checkpoint, const oracle_ring *ring, oracle_result *out);

/* From the recurrence's own state [V][K], which moves on; nothing is rounded. */
void oracle_advance(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head,
                    double *state, oracle_result *out);

#endif
