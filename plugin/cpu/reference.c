/* The plain ReplaySSM step, to be read beside maths.md. Everything is double inside; only what maths.md rounds is rounded.
 *
 * One call computes one row b and one value head hv, h = hv / (HV / H) its key head. With m = count records (d_j, k_j, g_j)
 * in the ring, the token's own gate g and S0 the checkpoint:
 *
 *     s_j   = g + sum of g_i over j < i < m       a suffix sum, never a difference of prefix sums
 *     w_j   = k_j * exp(s_j)                      record j's key as the token sees it
 *     decay = exp(s_-1)                           all records and the token
 *     S x   = S0 (decay * x) + sum_j d_j (w_j . x)      for x = q, k: S here is the state before the token, decayed
 *     KDA, GDN:  d = beta (v - S k),  out = S q + d (k . q)
 *     Mamba-2:   out = S C + dt (B . C) x + D x, then the output gate; a record's d is x and its key dt B
 *
 * A flush writes S0 * decay + sum_j d_j w_j^T + d k^T with d and k rounded to the ring's dtype; otherwise those roundings
 * and g go to the ring.
 */
#include "cpu/reference.h"

#include <math.h>

static int64_t doubles_of(rssm_cpu_dims dims)
{
    return 5 * dims.K + (dims.L + 1) * dims.K + dims.V + 2 * dims.L;
}

int64_t rssm_reference_scratch(rssm_cpu_dims dims)
{
    return (dims.T + 1) * ((int64_t)sizeof(rssm_reference) + (int64_t)sizeof(double) * doubles_of(dims));
}

rssm_reference *rssm_reference_make(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv,
                                    int64_t i)
{
    rssm_cpu_dims dims = {.K = step->K, .V = step->V, .L = step->L};
    rssm_reference *t = (rssm_reference *)worker->scratch + i;
    double *arrays = (double *)(void *)((rssm_reference *)worker->scratch + worker->tokens + 1);
    *t = (rssm_reference){.step = step, .row = *row, .token = row->start, .hv = hv, .fault = &worker->fault};
    t->h = hv / (step->HV / step->H);
    t->ring_keys = row->count;
    t->gates = step->family == RSSM_FAMILY_KDA ? step->K : 1;
    t->q = arrays + i * doubles_of(dims);
    t->k = t->q + step->K;
    t->g = t->k + step->K;
    t->suffix = t->g + step->K;
    t->decay = t->suffix + step->K;
    t->w = t->decay + step->K;
    t->d = t->w + (step->L + 1) * (int64_t)step->K;
    t->score_q = t->d + step->V;
    t->score_k = t->score_q + step->L;
    return t;
}

/* Channel i's gate among t->gates. */
static int64_t gate_of(const rssm_reference *t, int64_t i)
{
    return t->gates == 1 ? 0 : i;
}

static double read_input(const rssm_input *input, int64_t b, int64_t index)
{
    return (double)rssm_load_f32(input->dtype, input->data, b * input->row + index);
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Rounded once to float32, then to the ring's dtype. */
static double round_to_ring(const rssm_reference *t, double x)
{
    uint32_t saturated = 0;
    double rounded = (double)rssm_round_f32(rssm_ring_dtype(t->step), (float)x, &saturated);
    if (saturated)
        *t->fault |= RSSM_FAULTBIT_RING;
    return rounded;
}

/* x / sqrt(sum x^2 + eps) when the model normalises, and scaled. */
static void read_key_vector(const rssm_reference *t, const rssm_input *input, double scale, double *x)
{
    double sum = 0;
    for (int64_t i = 0; i < t->step->K; i++) {
        x[i] = read_input(input, t->token, t->h * t->step->K + i);
        sum += x[i] * x[i];
    }
    if (t->step->flags & RSSM_STEP_QK_NORM)
        scale /= sqrt(sum + (double)t->step->norm_eps);
    for (int64_t i = 0; i < t->step->K; i++)
        x[i] *= scale;
}

static double delta_rule_gate(const rssm_step *step, double x, int64_t hv)
{
    double rate = step->A_log.data ? exp(read_input(&step->A_log, 0, hv)) : 1;
    if (step->flags & RSSM_STEP_HAS_BOUND)
        return (double)step->lower_bound * sigmoid(rate * x);
    return -rate * softplus(x);
}

/* A = -exp(A_log), negative. */
static double mamba2_rate(const rssm_step *step, int64_t hv)
{
    double a = read_input(&step->A_log, 0, hv);
    return step->flags & RSSM_STEP_A_IS_DECAY ? a : -exp(a);
}

static double mamba2_dt(const rssm_step *step, int64_t b, int64_t hv)
{
    double dt = read_input(&step->a, b, hv);
    if (step->dt_bias.data)
        dt += read_input(&step->dt_bias, 0, hv);
    if (step->flags & RSSM_STEP_DT_SOFTPLUS)
        dt = softplus(dt);
    dt = dt < (double)step->dt_min ? (double)step->dt_min : dt;
    dt = dt > (double)step->dt_max ? (double)step->dt_max : dt;
    return (double)(float)dt; /* the ring holds it in float32, so the step uses that */
}

/* The token's gates, beta, dt. A gate is rounded to float32 here, as the ring will hold it. */
static void read_gates(rssm_reference *t)
{
    const rssm_step *step = t->step;
    if (step->family == RSSM_FAMILY_MAMBA2) {
        t->dt = mamba2_dt(step, t->token, t->hv);
        t->g[0] = mamba2_rate(step, t->hv) * t->dt;
        return;
    }
    for (int64_t i = 0; i < t->gates; i++) {
        int64_t channel = t->hv * t->gates + i;
        double x = read_input(&step->a, t->token, channel);
        if (step->dt_bias.data)
            x += read_input(&step->dt_bias, 0, channel);
        t->g[i] = (double)(float)delta_rule_gate(step, x, t->hv);
    }
    t->beta = (double)step->beta_scale * sigmoid(read_input(&step->b, t->token, t->hv));
}

/* Element 0 of record j's row in a pool tensor [S, heads, R, width]. */
static int64_t record_at(const rssm_reference *t, const rssm_pooled *tensor, int64_t heads_index, int64_t width,
                         int64_t j)
{
    int64_t r = rssm_ring_row(t->step, &t->row, j);
    return t->row.slot * tensor->slot + (heads_index * t->step->R + r) * width;
}

static double read_d(const rssm_reference *t, int64_t j, int64_t v)
{
    const rssm_pooled *ring = &t->step->d_cache;
    return (double)rssm_load_f32(ring->dtype, ring->data, record_at(t, ring, t->hv, t->step->V, j) + v);
}

/* Key of record j, channel i. */
static double read_key(const rssm_reference *t, int64_t j, int64_t i)
{
    const rssm_pooled *ring = &t->step->k_cache;
    if (j >= t->ring_keys)
        return round_to_ring(t, t->drafts[j - t->ring_keys].k[i]);
    return (double)rssm_load_f32(ring->dtype, ring->data, record_at(t, ring, t->h, t->step->K, j) + i);
}

/* w, scores, decay: from the newest record to the oldest, so that the gates after each are a running sum. */
void rssm_reference_records(rssm_reference *t)
{
    const rssm_step *step = t->step;
    double rate = step->family == RSSM_FAMILY_MAMBA2 ? mamba2_rate(step, t->hv) : 1;
    for (int64_t i = 0; i < t->gates; i++)
        t->suffix[i] = t->g[i];
    for (int64_t j = t->row.count - 1; j >= 0; j--) {
        const float *g = (const float *)step->g_cache.data + record_at(t, &step->g_cache, t->hv, t->gates, j);
        double *w = t->w + j * step->K;
        t->score_q[j] = t->score_k[j] = 0;
        for (int64_t i = 0; i < t->gates; i++)
            t->decay[i] = exp(t->suffix[i]);
        for (int64_t i = 0; i < step->K; i++) {
            w[i] = read_key(t, j, i) * t->decay[gate_of(t, i)];
            if (step->family == RSSM_FAMILY_MAMBA2)
                w[i] *= (double)g[0]; /* dt_j */
            t->score_q[j] += w[i] * t->q[i];
            t->score_k[j] += w[i] * t->k[i];
        }
        for (int64_t i = 0; i < t->gates; i++)
            t->suffix[i] += rate * (double)g[i];
    }
    for (int64_t i = 0; i < t->gates; i++)
        t->decay[i] = exp(t->suffix[i]);
}

/* The token's own key in the fold: k, or dt B, with k rounded as a record is. */
static void make_token_key(rssm_reference *t)
{
    double *w = t->w + t->row.count * t->step->K;
    double factor = t->step->family == RSSM_FAMILY_MAMBA2 ? t->dt : 1;
    for (int64_t i = 0; i < t->step->K; i++)
        w[i] = factor * round_to_ring(t, t->k[i]);
}

static double mamba2_output(const rssm_reference *t, double y, double x, int64_t v)
{
    const rssm_step *step = t->step;
    if (step->D.data)
        y += read_input(&step->D, 0, t->hv) * x;
    if (step->z.data) {
        double z = read_input(&step->z, t->token, t->hv * step->V + v);
        y *= z * sigmoid(z);
    }
    return y;
}

static void write_output(rssm_reference *t, int64_t v, double y)
{
    const rssm_step *step = t->step;
    uint32_t saturated = 0;
    rssm_store_f32(step->out_dtype, step->out, t->token * step->out_row + t->hv * step->V + v, (float)y, &saturated);
    if (saturated)
        *t->fault |= RSSM_FAULTBIT_OUTPUT;
}

int64_t rssm_reference_state_row(const rssm_reference *t, int64_t v)
{
    return t->row.slot * t->step->state.slot + (t->hv * t->step->V + v) * t->step->K;
}

double rssm_reference_folded(const rssm_reference *t, int64_t v, int64_t i)
{
    const rssm_pooled *state = &t->step->state;
    int64_t at = rssm_reference_state_row(t, v) + i;
    double s = (double)rssm_load_f32(state->dtype, state->data, at) * t->decay[gate_of(t, i)];
    for (int64_t j = 0; j < t->row.count; j++)
        s += read_d(t, j, v) * t->w[j * t->step->K + i];
    return s;
}

/* S[v] <- S[v] * decay + sum over records and token of d[v] w. */
static void fold_state_row(rssm_reference *t, int64_t v)
{
    const rssm_step *step = t->step;
    int64_t state = rssm_reference_state_row(t, v);
    double d = round_to_ring(t, t->d[v]);
    uint32_t saturated = 0;
    for (int64_t i = 0; i < step->K; i++) {
        double s = rssm_reference_folded(t, v, i) + d * t->w[t->row.count * step->K + i];
        rssm_store_f32(step->state.dtype, step->state.data, state + i, (float)s, &saturated);
    }
    if (saturated)
        *t->fault |= RSSM_FAULTBIT_STATE;
}

void rssm_reference_readout(rssm_reference *t, int64_t v)
{
    const rssm_step *step = t->step;
    int64_t state = rssm_reference_state_row(t, v);
    double sq = 0, sk = 0;
    for (int64_t i = 0; i < step->K; i++) {
        double s = (double)rssm_load_f32(step->state.dtype, step->state.data, state + i) * t->decay[gate_of(t, i)];
        sq += s * t->q[i];
        sk += s * t->k[i];
    }
    for (int64_t j = 0; j < t->row.count; j++) {
        sq += read_d(t, j, v) * t->score_q[j];
        sk += read_d(t, j, v) * t->score_k[j];
    }
    double x = read_input(&step->v, t->token, t->hv * step->V + v);
    if (step->family == RSSM_FAMILY_MAMBA2) {
        t->d[v] = x;
        write_output(t, v, mamba2_output(t, sq + t->dt * t->kq * x, x, v));
    } else {
        t->d[v] = t->beta * (x - sk);
        write_output(t, v, sq + t->d[v] * t->kq);
    }
}

static void store_ring_value(rssm_reference *t, const rssm_pooled *ring, int64_t index, double x)
{
    uint32_t saturated = 0;
    rssm_store_f32(ring->dtype, ring->data, index, (float)x, &saturated);
    if (saturated)
        *t->fault |= RSSM_FAULTBIT_RING;
}

void rssm_reference_store_d(rssm_reference *t, int64_t v)
{
    const rssm_pooled *ring = &t->step->d_cache;
    store_ring_value(t, ring, record_at(t, ring, t->hv, t->step->V, t->row.count) + v, t->d[v]);
}

void rssm_reference_store_g(rssm_reference *t)
{
    const rssm_pooled *ring = &t->step->g_cache;
    float *g = (float *)ring->data + record_at(t, ring, t->hv, t->gates, t->row.count);
    for (int64_t i = 0; i < t->gates; i++)
        g[i] = (float)(t->step->family == RSSM_FAMILY_MAMBA2 ? t->dt : t->g[i]);
}

void rssm_reference_store_k(rssm_reference *t)
{
    const rssm_pooled *ring = &t->step->k_cache;
    if (t->hv % (t->step->HV / t->step->H) != 0)
        return;
    int64_t k = record_at(t, ring, t->h, t->step->K, t->row.count);
    for (int64_t i = 0; i < t->step->K; i++)
        store_ring_value(t, ring, k + i, t->k[i]);
}

void rssm_reference_inputs(rssm_reference *t)
{
    const rssm_step *step = t->step;
    read_key_vector(t, &step->q, step->family == RSSM_FAMILY_MAMBA2 ? 1 : (double)step->scale, t->q);
    read_key_vector(t, &step->k, 1, t->k);
    t->kq = 0;
    for (int64_t i = 0; i < step->K; i++)
        t->kq += t->k[i] * t->q[i];
    read_gates(t);
}

void rssm_reference_no_token(rssm_reference *t)
{
    for (int64_t i = 0; i < t->step->K; i++)
        t->q[i] = t->k[i] = t->g[i] = 0;
}

void rssm_reference_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    (void)b;
    rssm_reference *t = rssm_reference_make(worker, step, row, hv, 0);
    rssm_reference_inputs(t);
    rssm_reference_records(t);
    if (row->flush)
        make_token_key(t);
    for (int64_t v = 0; v < step->V; v++) {
        rssm_reference_readout(t, v);
        if (row->flush)
            fold_state_row(t, v);
        else
            rssm_reference_store_d(t, v);
    }
    if (row->flush)
        return;
    rssm_reference_store_g(t);
    rssm_reference_store_k(t);
}
