/* One row, value head and token of the plain reference: what reference.c (a step), reference_verify.c (a window) and the
 * folds of slot operations share. The formulas are in reference.c. */
#ifndef RSSM_CPU_REFERENCE_H_
#define RSSM_CPU_REFERENCE_H_

#include "cpu/cpu.h"

/* T + 1 of these begin the worker's scratch, their arrays follow. */
typedef struct rssm_reference {
    const rssm_step *step;
    rssm_row row; /* count: the records that the token sees, the window's earlier drafts among them */
    const struct rssm_reference *drafts; /* [T] whose keys are records ring_keys, ring_keys + 1, ..: a sibling head may
                                            not have written them to the ring yet                                     */
    int64_t ring_keys;                   /* records whose key is in the ring */
    int64_t token;                       /* row of inputs and outputs */
    int64_t hv, h;
    int64_t gates;   /* K when every channel has its gate (KDA), else 1 */
    double *q, *k;   /* [K] normalised and scaled; C, B */
    double *g;       /* [gates] the token's log gate, a float32 value */
    double *suffix;  /* [gates] */
    double *decay;   /* [gates] */
    double *w;       /* [L + 1][K] keys of the fold: the records, then the token */
    double *d;       /* [V] the token's d, or x, unrounded */
    double *score_q; /* [L] w_j . q */
    double *score_k; /* [L] */
    double kq;       /* k . q */
    double beta, dt; /* KDA, GDN; Mamba-2 */
    uint32_t *fault;
} rssm_reference;

/* At place i, for value head hv of row; nothing is read yet. */
rssm_reference *rssm_reference_make(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv,
                                    int64_t i);
void rssm_reference_inputs(rssm_reference *t);             /* q, k, kq, g, beta, dt of t->token                      */
void rssm_reference_no_token(rssm_reference *t);           /* instead: the records alone, as after the newest of them */
void rssm_reference_records(rssm_reference *t);            /* w, scores, decay                                       */
void rssm_reference_readout(rssm_reference *t, int64_t v); /* out[v] and d[v] from state row v and the records */
double rssm_reference_folded(const rssm_reference *t, int64_t v, int64_t i); /* S[v][i] * decay + the records   */
int64_t rssm_reference_state_row(const rssm_reference *t, int64_t v);        /* element of the state tensor     */

/* The token's record, in ring row base + count. The key only by the first value head of a key head. */
void rssm_reference_store_d(rssm_reference *t, int64_t v);
void rssm_reference_store_g(rssm_reference *t);
void rssm_reference_store_k(rssm_reference *t);

#endif
