/* The step as the plain recurrence, in double: S starts as the checkpoint, takes the records one by one, then the token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "step_case.h"

static void *zeroed(int64_t n, size_t size)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), size);
    if (!p)
        abort();
    return p;
}

/* One head at work. */
typedef struct oracle_head {
    const step_case *c;
    const rssm_step *s;
    const case_row *row;
    int64_t b, hv, h;
    double *S, *size;      /* [V, K] the state; the magnitudes added into it */
    double *q, *k, *g;     /* [K] of the token, g for every channel */
    double *alpha, *key;   /* [K] of the record at hand */
    double beta, rate, dt; /* rate: A of Mamba-2 */
} oracle_head;

static double input(const rssm_input *x, int64_t b, int64_t i)
{
    return element_get(x->dtype, x->data, b * x->row + i);
}

static double log1p_exp(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static void token_vector(const oracle_head *o, const rssm_input *from, double factor, double *x)
{
    double squares = 0;
    for (int64_t i = 0; i < o->s->K; i++) {
        x[i] = input(from, o->b, o->h * o->s->K + i);
        squares += x[i] * x[i];
    }
    double norm = o->s->flags & RSSM_STEP_QK_NORM ? sqrt(squares + 1e-6) : 1;
    for (int64_t i = 0; i < o->s->K; i++)
        x[i] = x[i] / norm * factor;
}

static void token_gates(oracle_head *o)
{
    const rssm_step *s = o->s;
    double A = s->A_log.data ? input(&s->A_log, 0, o->hv) : 0;
    int per_channel = s->family == RSSM_FAMILY_KDA;
    for (int64_t i = 0; i < s->K; i++) {
        int64_t at = per_channel ? o->hv * s->K + i : o->hv;
        double x = input(&s->a, o->b, at) + (s->dt_bias.data ? input(&s->dt_bias, 0, at) : 0);
        if (s->family == RSSM_FAMILY_MAMBA2) {
            o->rate = s->flags & RSSM_STEP_A_IS_DECAY ? A : -exp(A);
            o->dt = fmin(fmax(log1p_exp(x), (double)s->dt_min), (double)s->dt_max);
            o->g[i] = o->rate * o->dt;
        } else if (s->flags & RSSM_STEP_HAS_BOUND) {
            o->g[i] = -5 / (1 + exp(-exp(A) * x));
        } else {
            o->g[i] = -exp(A) * log1p_exp(x);
        }
    }
    if (s->family != RSSM_FAMILY_MAMBA2)
        o->beta = (double)s->beta_scale / (1 + exp(-input(&s->b, o->b, o->hv)));
}

/* S[v] <- S[v] alpha + d key. */
static void advance_row(oracle_head *o, int64_t v, double d)
{
    for (int64_t i = 0; i < o->s->K; i++) {
        double *S = o->S + v * o->s->K + i, *size = o->size + v * o->s->K + i;
        double term = d * o->key[i];
        *S = *S * o->alpha[i] + term;
        *size = *size * o->alpha[i] + fabs(term);
    }
}

static void take_record(oracle_head *o, int64_t j)
{
    const rssm_step *s = o->s;
    int64_t r = (o->row->base + j) % s->R, slot = o->row->slot;
    int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
    int is_mamba2 = s->family == RSSM_FAMILY_MAMBA2;
    for (int64_t i = 0; i < s->K; i++) {
        double k =
            element_get(s->k_cache.dtype, s->k_cache.data, slot * s->k_cache.slot + (o->h * s->R + r) * s->K + i);
        double g = element_get(RSSM_DTYPE_FLOAT32, s->g_cache.data,
                               slot * s->g_cache.slot + (o->hv * s->R + r) * gates + (gates > 1 ? i : 0));
        o->alpha[i] = exp(is_mamba2 ? o->rate * g : g);
        o->key[i] = is_mamba2 ? g * k : k;
    }
    for (int64_t v = 0; v < s->V; v++)
        advance_row(
            o, v,
            element_get(s->d_cache.dtype, s->d_cache.data, slot * s->d_cache.slot + (o->hv * s->R + r) * s->V + v));
}

static void read_state(oracle_head *o)
{
    const rssm_step *s = o->s;
    for (int64_t i = 0; i < (int64_t)s->V * s->K; i++) {
        int64_t at = o->row->slot * s->state.slot + o->hv * s->V * s->K + i;
        o->S[i] = element_get(s->state.dtype, s->state.data, at);
        o->size[i] = fabs(o->S[i]);
    }
}

/* Readouts of row v, its d and its output. */
static void token_output(const oracle_head *o, oracle *result, int64_t v)
{
    const rssm_step *s = o->s;
    double sq = 0, sk = 0, kq = 0, q_size = 0, k_size = 0, kq_size = 0;
    for (int64_t i = 0; i < s->K; i++) {
        const double *S = o->S + v * s->K + i, *size = o->size + v * s->K + i;
        sq += *S * o->q[i];
        sk += *S * o->k[i];
        kq += o->k[i] * o->q[i];
        q_size += *size * fabs(o->q[i]);
        k_size += *size * fabs(o->k[i]);
        kq_size += fabs(o->k[i] * o->q[i]);
    }
    int64_t at = (o->b * s->HV + o->hv) * s->V + v;
    double x = input(&s->v, o->b, o->hv * s->V + v);
    if (s->family != RSSM_FAMILY_MAMBA2) {
        result->d[at] = o->beta * (x - sk);
        result->d_scale[at] = o->beta * (fabs(x) + k_size);
        result->out[at] = sq + result->d[at] * kq;
        result->out_scale[at] = q_size + result->d_scale[at] * kq_size;
        return;
    }
    double D = s->D.data ? input(&s->D, 0, o->hv) : 0;
    double z = s->z.data ? input(&s->z, o->b, o->hv * s->V + v) : 0;
    double silu = s->z.data ? z / (1 + exp(-z)) : 1;
    result->d[at] = x;
    result->d_scale[at] = 0;
    result->out[at] = (sq + o->dt * kq * x + D * x) * silu;
    result->out_scale[at] = (q_size + fabs(o->dt * kq_size * x) + fabs(D * x)) * fabs(silu);
}

static int is_tie(int32_t dtype, double x, double scale)
{
    return dtype != RSSM_DTYPE_FLOAT32 && distance_to_tie(dtype, x) <= 1e-5 * fabs(x) + 4e-6 * scale;
}

static void fold_token(oracle_head *o, oracle *result)
{
    const rssm_step *s = o->s;
    int32_t ring = s->d_cache.dtype;
    double factor = s->family == RSSM_FAMILY_MAMBA2 ? o->dt : 1;
    for (int64_t v = 0; v < s->V; v++) {
        int64_t at = (o->b * s->HV + o->hv) * s->V + v;
        double d = element_round(ring, result->d[at]);
        int tie = is_tie(ring, result->d[at], result->d_scale[at]);
        for (int64_t i = 0; i < s->K; i++) {
            o->S[v * s->K + i] += factor * d * element_round(ring, o->k[i]);
            o->size[v * s->K + i] += fabs(factor * o->k[i]) * (fabs(d) + result->d_scale[at]);
            result->state[at * s->K + i] = o->S[v * s->K + i];
            result->state_scale[at * s->K + i] = o->size[v * s->K + i];
            result->state_unsure[at * s->K + i] = (unsigned char)(tie || is_tie(ring, o->k[i], 0));
        }
    }
}

static void do_head(oracle_head *o, oracle *result)
{
    const rssm_step *s = o->s;
    token_vector(o, &s->q, s->family == RSSM_FAMILY_MAMBA2 ? 1 : (double)s->scale, o->q);
    token_vector(o, &s->k, 1, o->k);
    token_gates(o);
    read_state(o);
    for (int64_t j = 0; j < o->row->count; j++)
        take_record(o, j);
    for (int64_t i = 0; i < s->K; i++) {
        o->alpha[i] = exp(o->g[i]);
        o->key[i] = 0;
    }
    for (int64_t v = 0; v < s->V; v++) {
        advance_row(o, v, 0);
        token_output(o, result, v);
    }
    if (o->row->flush)
        fold_token(o, result);
    int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
    for (int64_t i = 0; i < gates; i++)
        result->g[(o->b * s->HV + o->hv) * gates + i] = s->family == RSSM_FAMILY_MAMBA2 ? o->dt : o->g[i];
    memcpy(result->k + (o->b * s->H + o->h) * s->K, o->k, (size_t)s->K * sizeof(double));
}

static void fold_head(oracle_head *o, oracle *result)
{
    const rssm_step *s = o->s;
    int64_t n = (int64_t)s->V * s->K, at = (o->b * s->HV + o->hv) * n;
    double A = s->A_log.data ? input(&s->A_log, 0, o->hv) : 0;
    o->rate = s->flags & RSSM_STEP_A_IS_DECAY ? A : -exp(A);
    read_state(o);
    for (int64_t j = 0; j < o->row->count; j++)
        take_record(o, j);
    memcpy(result->state + at, o->S, (size_t)n * sizeof(double));
    memcpy(result->state_scale + at, o->size, (size_t)n * sizeof(double));
}

static void for_heads(oracle *result, const step_case *c, void (*head)(oracle_head *o, oracle *result))
{
    const rssm_step *s = &c->step;
    int64_t heads = (int64_t)s->B * s->HV, n = heads * s->V, K = s->K;
    *result = (oracle){.out = zeroed(n, sizeof(double)),
                       .out_scale = zeroed(n, sizeof(double)),
                       .d = zeroed(n, sizeof(double)),
                       .d_scale = zeroed(n, sizeof(double)),
                       .k = zeroed(heads * K, sizeof(double)),
                       .g = zeroed(heads * K, sizeof(double)),
                       .state = zeroed(n * K, sizeof(double)),
                       .state_scale = zeroed(n * K, sizeof(double)),
                       .state_unsure = zeroed(n * K, 1)};
    oracle_head o = {.c = c, .s = s};
    o.S = zeroed(s->V * K, sizeof(double));
    o.size = zeroed(s->V * K, sizeof(double));
    o.q = zeroed(5 * K, sizeof(double));
    o.k = o.q + K;
    o.g = o.k + K;
    o.alpha = o.g + K;
    o.key = o.alpha + K;
    for (o.b = 0; o.b < s->B; o.b++) {
        o.row = &c->rows[o.b];
        for (o.hv = 0; o.row->slot >= 0 && o.hv < s->HV; o.hv++) {
            o.h = o.hv / (s->HV / s->H);
            head(&o, result);
        }
    }
    free(o.S);
    free(o.size);
    free(o.q);
}

void oracle_make(oracle *o, const step_case *c)
{
    for_heads(o, c, do_head);
}

void oracle_fold(oracle *o, const step_case *c)
{
    for_heads(o, c, fold_head);
}

void oracle_free(oracle *o)
{
    free(o->out);
    free(o->out_scale);
    free(o->d);
    free(o->d_scale);
    free(o->k);
    free(o->g);
    free(o->state);
    free(o->state_scale);
    free(o->state_unsure);
}
