/* The recurrence in double precision, for tests: what maths.md says, token by token, with no ring, no replay and no
 * code of the plugin. For Mamba-2 read q = C, k = B, v = x, a = dt, H = groups, HV = heads, K = state size, V = head
 * dim. */
#ifndef RSSM_TESTS_RECURRENCE_H_
#define RSSM_TESTS_RECURRENCE_H_

#include <stdint.h>

#include "rssm_base.h"

/* ---- number formats: RSSM_DTYPE_* ------------------------------------------------------------------------------- */

int64_t rec_dtype_bytes(int32_t dtype);
/* x rounded once, to nearest even, straight from double; beyond the type's range it is the largest finite number. */
double rec_round(int32_t dtype, double x);
/* One unit in the last place of the numbers around x. */
double rec_ulp(int32_t dtype, double x);
/* The other neighbour of x when x lies within 1e-5 (relative) of the middle between two numbers; else rec_round(x). */
double rec_round_other(int32_t dtype, double x);
double rec_load(int32_t dtype, const void *data, int64_t index);
void rec_store(int32_t dtype, void *data, int64_t index, double x); /* rounds as rec_round; NaN stays NaN */

/* ---- the model -------------------------------------------------------------------------------------------------- */

typedef struct rec_model {
    int32_t family; /* RSSM_FAMILY_* */
    int64_t H, HV, K, V;
    int qk_norm;
    int has_bound;
    double lower_bound;
    double beta_scale;     /* 1 or 2 */
    double scale;          /* of q, after the norm */
    double dt_min, dt_max; /* Mamba-2 */
} rec_model;

/* NULL = absent. */
typedef struct rec_weights {
    const double *A_log;   /* [HV] */
    const double *A;       /* [HV] Mamba-2: instead of A_log */
    const double *dt_bias; /* KDA [HV][K], else [HV] */
    const double *D;       /* [HV] Mamba-2 */
} rec_weights;

/* One token of one request. */
typedef struct rec_token {
    const double *q, *k; /* [H][K] */
    const double *v;     /* [HV][V] */
    const double *a;     /* KDA [HV][K], else [HV] */
    const double *b;     /* [HV] KDA, GDN */
    const double *z;     /* [HV][V] Mamba-2, or NULL */
} rec_token;

/* What a token leaves: its output, and its record. */
typedef struct rec_result {
    double *out; /* [HV][V] */
    double *d;   /* [HV][V]; Mamba-2: x */
    double *k;   /* [H][K] normalised; Mamba-2: B */
    double *g;   /* [HV][rec_gates] the log gate; Mamba-2: dt */
} rec_result;

int64_t rec_gates(const rec_model *m); /* K for KDA, else 1 */
int64_t rec_state_size(const rec_model *m);

/* Output and record of a token that finds `state` [HV][V][K], which stays as it is. */
void rec_compute(const rec_model *m, const rec_weights *w, const rec_token *t, const double *state, rec_result *r);

/* state <- state exp(g) + d k^T of one record. */
void rec_apply(const rec_model *m, const rec_weights *w, const double *d, const double *k, const double *g,
               double *state);

/* d and k rounded to the ring's dtype and g (dt) to float32: the record as whatever outlives the token sees it. */
void rec_round_record(const rec_model *m, int32_t ring_dtype, rec_result *r);

/* ---- comparing -------------------------------------------------------------------------------------------------- */

/* |got - want| / |want| over n numbers (L2); 0 / 0 is 0, and a NaN or infinity in got gives infinity. */
double rec_error(const double *got, const double *want, int64_t n);

#endif
