/* One row, value head and token on a level's vector functions: all but the pass over the state, which fast.c (a step) and
 * fast_verify.c (a window) do each in its way. fast.c says what the parts are, reference.c has the formulas.
 *
 * Functions, not declarations: a step calls each once, and is 2 % faster when the compiler sees them all. */
#ifndef RSSM_CPU_HEAD_H_
#define RSSM_CPU_HEAD_H_

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"

/* Everything about the head at hand. Arrays lie in the worker's scratch: those of the token are apart for each of a
 * window's T tokens, the others are shared by them all. */
typedef struct rssm_head {
    const rssm_cpu_kernels *kernels;
    const rssm_step *step;
    rssm_row row; /* count: the records that the token sees, the window's earlier drafts among them */
    int64_t hv, h;
    int64_t ring_keys;    /* records whose key is in the ring: a sibling head may not have written the drafts' yet */
    int64_t k_row, v_row; /* floats from row to row of keys, fold_d */
    int32_t ring_kind;
    int32_t per_channel; /* every channel has its gate: KDA */

    /* of the token */
    float *q, *k;         /* [K] shared by the value heads of a key head; k unrounded */
    float *raw_q, *raw_k; /* [L] likewise: k_j . q, k_j . k */
    float *decayed_q, *decayed_k;
    float *score_q, *score_k; /* [L] */
    float *state_y, *state_u; /* [V] the window's dot products with the state */

    char *draft_keys;     /* [T][K] of the ring's type: the window's keys, rounded as records are */
    float *keys;          /* [L + 1][K] of the fold; the last used row is the token's */
    float *g;             /* [K] the token's gates */
    float *suffix;        /* [K] */
    float *decay;         /* [K] */
    float *weight;        /* [L + 1] exp of the suffix sums where a head has one gate; the last is the state's */
    float *v, *y, *u, *d; /* [V] input; readouts for q and k; the token's d, or x */
    float *fold_d;        /* [L + 1][V] d of the fold, the token's last */
    float *narrow;        /* [max(K, V)] room for 16-bit values */
    float kq, beta, dt, mamba_rate, mamba_skip;
    uint32_t fault;
} rssm_head;

enum {
    BLOCK_BYTES = 8 << 10,
    HEAD_AHEAD = 8 << 10, /* bytes of state asked for before the gates */
    CACHE_LINE = 64,
    ALIGN_FLOATS = 16
};

static inline int rssm_head_is_mamba2(const rssm_head *t)
{
    return t->step->family == RSSM_FAMILY_MAMBA2;
}

/* State row v of the head. */
static inline char *rssm_head_state(const rssm_head *t, int64_t v)
{
    const rssm_step *step = t->step;
    int64_t index = t->row.slot * step->state.slot + (t->hv * step->V + v) * step->K;
    return (char *)step->state.data + index * rssm_cpu_dtype_bytes(step->state.dtype);
}

static inline int64_t round_up(int64_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

/* Floats of the token's own arrays. */
static inline int64_t token_floats(int64_t K, int64_t V, int64_t L)
{
    return 4 * round_up(K) + 2 * round_up(V) + 4 * round_up(L + 1);
}

/* The heads of a window come first: fast_verify.c. */
static inline int64_t heads_floats(int64_t tokens)
{
    return round_up((tokens + 1) * (int64_t)(sizeof(rssm_head) / sizeof(float)));
}

static inline int64_t rssm_head_scratch(rssm_cpu_dims dims)
{
    int64_t K = round_up(dims.K), V = round_up(dims.V), L = round_up(dims.L + 1);
    int64_t shared = 3 * K + (dims.L + 1) * (K + V) + 4 * V + (K > V ? K : V) + L + round_up(dims.T * dims.K);
    int64_t floats = heads_floats(dims.T) + dims.T * token_floats(dims.K, dims.V, dims.L) + shared;
    return floats * (int64_t)sizeof(float);
}

static inline float *take(float **scratch, int64_t floats)
{
    float *taken = *scratch;
    *scratch += round_up(floats);
    return taken;
}

static inline void take_token_arrays(rssm_head *t, float *scratch)
{
    int64_t K = t->step->K, V = t->step->V, L = t->step->L + 1;
    t->q = take(&scratch, K);
    t->k = take(&scratch, K);
    t->decayed_q = take(&scratch, K);
    t->decayed_k = take(&scratch, K);
    t->raw_q = take(&scratch, L);
    t->raw_k = take(&scratch, L);
    t->score_q = take(&scratch, L);
    t->score_k = take(&scratch, L);
    t->state_y = take(&scratch, V);
    t->state_u = take(&scratch, V);
}

static inline void take_shared_arrays(rssm_head *t, float *scratch, int64_t tokens)
{
    int64_t K = t->step->K, V = t->step->V, L = t->step->L + 1;
    t->g = take(&scratch, K);
    t->suffix = take(&scratch, K);
    t->decay = take(&scratch, K);
    t->keys = take(&scratch, L * t->k_row);
    t->weight = take(&scratch, L);
    t->v = take(&scratch, V);
    t->y = take(&scratch, V);
    t->u = take(&scratch, V);
    t->d = take(&scratch, V);
    t->fold_d = take(&scratch, L * t->v_row);
    t->narrow = take(&scratch, K > V ? K : V);
    t->draft_keys = (char *)take(&scratch, tokens * K);
}

/* For token i of a window (a step's only one is 0) that row->start is, with row->count records before it. */
static inline void rssm_head_make(rssm_head *t, rssm_worker *worker, const rssm_step *step, const rssm_row *row,
                                  int64_t hv, int64_t i)
{
    float *arrays = (float *)worker->scratch + heads_floats(worker->tokens);
    int64_t floats = token_floats(step->K, step->V, step->L);
    *t = (rssm_head){.kernels = worker->kernels, .step = step, .row = *row, .hv = hv};
    t->h = hv / (step->HV / step->H);
    t->ring_keys = row->count;
    t->ring_kind = rssm_kind(rssm_ring_dtype(step));
    t->per_channel = step->family == RSSM_FAMILY_KDA;
    t->k_row = round_up(step->K);
    t->v_row = round_up(step->V);
    take_token_arrays(t, arrays + i * floats);
    take_shared_arrays(t, arrays + worker->tokens * floats, worker->tokens);
}

/* A run of ring rows that lie one after the other: the records of a head are one or two. */
typedef struct span {
    int64_t first; /* record */
    int64_t r;     /* its ring row */
    int64_t count;
} span;

static inline int find_spans(const rssm_head *t, int64_t records, span spans[2])
{
    int64_t before_wrap = t->step->R - t->row.base;
    int64_t count = records < before_wrap ? records : before_wrap;
    spans[0] = (span){0, t->row.base, count};
    spans[1] = (span){count, 0, records - count};
    return spans[1].count > 0 ? 2 : spans[0].count > 0 ? 1 : 0;
}

/* Address of ring row r of one head in a pool tensor [S, heads, R, width]; NULL where L = 1 and the host has left the ring out. */
static inline char *ring_at(const rssm_step *step, const rssm_pooled *ring, int64_t slot, int64_t of_head,
                            int64_t width, int64_t r)
{
    int64_t index = slot * ring->slot + (of_head * step->R + r) * width;
    return ring->data ? (char *)ring->data + index * rssm_cpu_dtype_bytes(ring->dtype) : NULL;
}

/* Key of record j: in the ring, or a draft's. */
static inline const char *key_at(const rssm_head *t, int64_t j)
{
    const rssm_step *step = t->step;
    if (j < t->ring_keys)
        return ring_at(step, &step->k_cache, t->row.slot, t->h, step->K, rssm_ring_row(step, &t->row, j));
    return t->draft_keys + (j - t->ring_keys) * step->K * rssm_cpu_dtype_bytes(step->k_cache.dtype);
}

static inline const float *gates_at(const rssm_head *t, int64_t record)
{
    int64_t r = rssm_ring_row(t->step, &t->row, record);
    int64_t width = t->per_channel ? t->step->K : 1;
    return (const float *)(void *)ring_at(t->step, &t->step->g_cache, t->row.slot, t->hv, width, r);
}

static inline void load_input(const rssm_head *t, float *dst, const rssm_input *input, int64_t index, int64_t n)
{
    const char *src =
        (const char *)input->data + (t->row.start * input->row + index) * rssm_cpu_dtype_bytes(input->dtype);
    t->kernels->load[rssm_kind(input->dtype)](dst, src, n);
}

static inline float input_at(const rssm_input *input, int64_t b, int64_t index)
{
    return rssm_load_f32(input->dtype, input->data, b * input->row + index);
}

/* dst = src rounded once to the ring's dtype. */
static inline void rssm_head_round(rssm_head *t, float *dst, const float *src, int64_t n)
{
    if (t->ring_kind == rssm_kind(RSSM_DTYPE_FLOAT32)) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    if (t->kernels->store[t->ring_kind](t->narrow, src, n))
        t->fault |= RSSM_FAULTBIT_RING;
    t->kernels->load[t->ring_kind](dst, t->narrow, n);
}

/* x / sqrt(sum x^2 + eps) when the model normalises, times `factor`. The norm is taken in double, so that a float32 ring
 * gets k within 1 ulp, and no square overflows. */
static inline void load_key_vector(const rssm_head *t, float *x, const rssm_input *input, double factor)
{
    load_input(t, x, input, t->h * t->step->K, t->step->K);
    if (t->step->flags & RSSM_STEP_QK_NORM)
        factor /= sqrt(t->kernels->sum_squares(x, t->step->K) + (double)t->step->norm_eps);
    if (factor != 1)
        t->kernels->scale(x, x, (float)factor, t->step->K);
}

/* q and k: what the value heads of a key head share, and with one gate a head the raw scores too. */
static inline void rssm_head_load_qk(rssm_head *t)
{
    double scale = rssm_head_is_mamba2(t) ? 1 : (double)t->step->scale;
    load_key_vector(t, t->q, &t->step->q, scale);
    load_key_vector(t, t->k, &t->step->k, 1);
}

/* raw scores of `records` records from `first` on, whose keys lie one after the other. */
static inline void score_keys(rssm_head *t, int64_t first, int64_t records, const char *keys)
{
    int64_t K = t->step->K;
    if (rssm_head_is_mamba2(t))
        t->kernels->dot1[t->ring_kind](t->raw_q + first, keys, records, K, t->q);
    else
        t->kernels->dot2[t->ring_kind](t->raw_q + first, t->raw_k + first, keys, records, K, t->q, t->k);
}

/* One gate per head: decay only scales the records' dot products, so these are the key head's. */
static inline void rssm_head_raw_scores(rssm_head *t)
{
    span spans[2];
    int n = find_spans(t, t->ring_keys, spans);
    memset(t->raw_q, 0, (size_t)t->row.count * sizeof(float));
    memset(t->raw_k, 0, (size_t)t->row.count * sizeof(float));
    for (int i = 0; i < n; i++)
        score_keys(t, spans[i].first, spans[i].count, key_at(t, spans[i].first));
    if (t->ring_keys < t->row.count)
        score_keys(t, t->ring_keys, t->row.count - t->ring_keys, t->draft_keys);
}

/* keys = the records', as float32. */
static inline void rssm_head_fold_keys(rssm_head *t)
{
    for (int64_t j = 0; j < t->row.count; j++)
        t->kernels->load[t->ring_kind](t->keys + j * t->k_row, key_at(t, j), t->step->K);
}

/* One or two a head, so in double: in float32 the sum a + dt_bias alone costs x's last bits, 1e-6 of g at x = -20. */
static inline double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static inline float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static inline double gate_rate(const rssm_head *t)
{
    return t->step->A_log.data ? exp((double)input_at(&t->step->A_log, 0, t->hv)) : 1;
}

/* a + dt_bias, or dt + dt_bias, of a head with one gate. */
static inline double biased_gate_input(const rssm_head *t)
{
    const rssm_step *step = t->step;
    double bias = step->dt_bias.data ? (double)input_at(&step->dt_bias, 0, t->hv) : 0;
    return (double)input_at(&step->a, t->row.start, t->hv) + bias;
}

/* KDA: the token's K gates. */
static inline void load_channel_gates(rssm_head *t)
{
    const rssm_step *step = t->step;
    const rssm_cpu_kernels *f = t->kernels;
    int64_t K = step->K;
    rssm_gate how = {.rate = (float)gate_rate(t), .bound = step->flags & RSSM_STEP_HAS_BOUND ? step->lower_bound : 0};
    load_input(t, t->g, &step->a, t->hv * K, K);
    memset(t->suffix, 0, (size_t)K * sizeof(float));
    if (step->dt_bias.data) {
        int64_t bytes = t->hv * K * rssm_cpu_dtype_bytes(step->dt_bias.dtype);
        f->load[rssm_kind(step->dt_bias.dtype)](t->suffix, (const char *)step->dt_bias.data + bytes, K);
    }
    f->gate(t->g, t->g, t->suffix, how, K);
}

/* KDA: the records from the newest to the oldest, then the state, whose decay is the sum of all gates. */
static inline void channel_gates(rssm_head *t)
{
    const rssm_cpu_kernels *f = t->kernels;
    int64_t K = t->step->K;
    load_channel_gates(t);
    memcpy(t->suffix, t->g, (size_t)K * sizeof(float));
    const char *ahead = rssm_head_state(t, 0) + HEAD_AHEAD;
    for (int64_t j = t->row.count - 1; j >= 0; j--, ahead += K * RECORD_AHEAD) {
        float dots[2];
        float *decayed_key = t->keys + (t->row.flush ? j * t->k_row : 0); /* only a fold needs them afterwards */
        f->record[t->ring_kind](decayed_key, dots, key_at(t, j), gates_at(t, j), t->suffix, t->q, t->k, K, ahead);
        t->score_q[j] = dots[0];
        t->score_k[j] = dots[1];
    }
    f->exp(t->decay, t->suffix, K);
    f->multiply(t->decayed_q, t->decay, t->q, K);
    f->multiply(t->decayed_k, t->decay, t->k, K);
}

static inline float mamba2_rate(const rssm_head *t)
{
    float a = input_at(&t->step->A_log, 0, t->hv);
    return t->step->flags & RSSM_STEP_A_IS_DECAY ? a : -expf(a);
}

/* Mamba-2's A, dt and D of the head. */
static inline void mamba2_scalars(rssm_head *t)
{
    const rssm_step *step = t->step;
    double x = biased_gate_input(t);
    float dt = (float)(step->flags & RSSM_STEP_DT_SOFTPLUS ? softplus(x) : x);
    dt = dt < step->dt_min ? step->dt_min : dt;
    t->dt = dt > step->dt_max ? step->dt_max : dt;
    t->mamba_rate = mamba2_rate(t);
    t->mamba_skip = step->D.data ? input_at(&step->D, 0, t->hv) : 0;
}

static inline float head_gate(const rssm_head *t)
{
    const rssm_step *step = t->step;
    double x = biased_gate_input(t), rate = gate_rate(t);
    if (step->flags & RSSM_STEP_HAS_BOUND)
        return (float)((double)step->lower_bound / (1 + exp(-rate * x)));
    return (float)(-rate * softplus(x));
}

/* One gate a head: the records' weights exp(suffix) in one go, weight[count] is the state's. The suffix sums start with
 * the token's own gate, or 0. */
static inline void weigh_records(rssm_head *t, float sum)
{
    int64_t m = t->row.count;
    int is_mamba2 = rssm_head_is_mamba2(t);
    float rate = is_mamba2 ? t->mamba_rate : 1;
    for (int64_t j = m - 1; j >= 0; j--) {
        t->weight[j] = rate * sum;
        sum += gates_at(t, j)[0];
    }
    t->weight[m] = rate * sum;
    t->kernels->exp(t->weight, t->weight, m + 1);
    for (int64_t j = 0; is_mamba2 && j < m; j++)
        t->weight[j] *= gates_at(t, j)[0]; /* the record's key is dt_j B_j */
}

static inline void spread_decay(rssm_head *t)
{
    for (int64_t i = 0; i < t->step->K; i++)
        t->decay[i] = t->weight[t->row.count];
}

/* GDN, Mamba-2. */
static inline void scalar_gates(rssm_head *t)
{
    int64_t m = t->row.count, K = t->step->K;
    t->g[0] = rssm_head_is_mamba2(t) ? t->dt : head_gate(t);
    weigh_records(t, t->g[0]);
    for (int64_t j = 0; j < m; j++) {
        t->score_q[j] = t->weight[j] * t->raw_q[j];
        t->score_k[j] = t->weight[j] * t->raw_k[j];
    }
    t->kernels->scale(t->decayed_q, t->q, t->weight[m], K);
    t->kernels->scale(t->decayed_k, t->k, t->weight[m], K);
    if (t->row.flush)
        spread_decay(t);
}

/* g, beta, dt, kq; from the records' gates and raw scores (KDA: keys) the scores, decayed q and k, and at a flush decay and
 * KDA's keys. */
static inline void rssm_head_gates(rssm_head *t)
{
    if (rssm_head_is_mamba2(t))
        mamba2_scalars(t);
    else
        t->beta = t->step->beta_scale * sigmoid(input_at(&t->step->b, t->row.start, t->hv));
    if (t->per_channel)
        channel_gates(t);
    else
        scalar_gates(t);
    t->kq = t->kernels->dot(t->k, t->q, t->step->K);
}

/* fold_d of the records, times their weight where the keys are undecayed. */
static inline void rssm_head_fold_d(rssm_head *t)
{
    const rssm_step *step = t->step;
    for (int64_t j = 0; j < t->row.count; j++) {
        float *d = t->fold_d + j * t->v_row;
        int64_t r = rssm_ring_row(step, &t->row, j);
        const char *record = ring_at(step, &step->d_cache, t->row.slot, t->hv, step->V, r);
        t->kernels->load[t->ring_kind](d, record, step->V);
        if (!t->per_channel)
            t->kernels->scale(d, d, t->weight[j], step->V);
    }
}

/* KDA's record gives the decayed key; its dot products are for nobody here. */
static inline void decay_fold_keys(rssm_head *t)
{
    const rssm_cpu_kernels *f = t->kernels;
    int64_t K = t->step->K;
    memset(t->suffix, 0, (size_t)K * sizeof(float));
    const char *ahead = rssm_head_state(t, 0) + HEAD_AHEAD;
    for (int64_t j = t->row.count - 1; j >= 0; j--, ahead += K * RECORD_AHEAD) {
        float dots[2];
        f->record[t->ring_kind](t->keys + j * t->k_row, dots, key_at(t, j), gates_at(t, j), t->suffix, t->g, t->g, K,
                                ahead);
    }
    f->exp(t->decay, t->suffix, K);
}

/* decay, keys (KDA) and fold_d of the records alone, as they are after the newest of them. */
static inline void rssm_head_fold_records(rssm_head *t)
{
    if (t->per_channel) {
        memset(t->g, 0, (size_t)t->step->K * sizeof(float));
        decay_fold_keys(t);
    } else {
        if (rssm_head_is_mamba2(t))
            t->mamba_rate = mamba2_rate(t);
        weigh_records(t, 0);
        spread_decay(t);
    }
    rssm_head_fold_d(t);
}

/* v, or Mamba-2's d. */
static inline void rssm_head_load_v(rssm_head *t)
{
    load_input(t, rssm_head_is_mamba2(t) ? t->d : t->v, &t->step->v, t->hv * t->step->V, t->step->V);
}

/* y and u start as the records' part. */
static inline void rssm_head_read_ring(rssm_head *t)
{
    const rssm_step *step = t->step;
    span spans[2];
    int n = find_spans(t, t->row.count, spans);
    memset(t->y, 0, (size_t)step->V * sizeof(float));
    memset(t->u, 0, (size_t)step->V * sizeof(float));
    for (int i = 0; i < n; i++) {
        const char *rows = ring_at(step, &step->d_cache, t->row.slot, t->hv, step->V, spans[i].r);
        const float *score_q = t->score_q + spans[i].first, *score_k = t->score_k + spans[i].first;
        if (step->family == RSSM_FAMILY_MAMBA2)
            t->kernels->combine1[t->ring_kind](t->y, rows, spans[i].count, step->V, score_q);
        else
            t->kernels->combine2[t->ring_kind](t->y, t->u, rows, spans[i].count, step->V, score_q, score_k);
    }
}

/* Mamba-2's d is x, known beforehand. out = S C + (dt (B . C) + D) x, then the output gate. */
static inline void rssm_head_mamba2_output(rssm_head *t)
{
    const rssm_step *step = t->step;
    float factor = t->dt * t->kq + t->mamba_skip;
    t->kernels->combine1[rssm_kind(RSSM_DTYPE_FLOAT32)](t->y, t->d, 1, step->V, &factor);
    if (step->z.data) {
        load_input(t, t->u, &step->z, t->hv * step->V, step->V);
        t->kernels->silu_multiply(t->y, t->u, step->V);
    }
}

static inline void prefetch_bytes(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch(at + i, 0, 2);
}

/* Memory must never wait for arithmetic: the beginning of the head's state arrives while the gates are computed. */
static inline void rssm_head_prefetch_state(const rssm_head *t)
{
    int64_t bytes = (int64_t)t->step->V * t->step->K * rssm_cpu_dtype_bytes(t->step->state.dtype);
    prefetch_bytes(rssm_head_state(t, 0), bytes < HEAD_AHEAD ? bytes : HEAD_AHEAD);
}

static inline void prefetch_input(const rssm_head *t, const rssm_input *input, int64_t index, int64_t n)
{
    int64_t element = rssm_cpu_dtype_bytes(input->dtype);
    prefetch_bytes((const char *)input->data + (t->row.start * input->row + index) * element, n * element);
}

/* A weight of value head hv, n elements a head. */
static inline void prefetch_weight(const rssm_input *weight, int64_t hv, int64_t n)
{
    int64_t bytes = n * rssm_cpu_dtype_bytes(weight->dtype);
    if (weight->data)
        prefetch_bytes((const char *)weight->data + hv * bytes, bytes);
}

/* The inputs, weights and output of value head hv. */
static inline void prefetch_io(const rssm_head *t, int64_t hv)
{
    const rssm_step *step = t->step;
    int64_t h = hv / (step->HV / step->H);
    if (h != t->h) {
        prefetch_input(t, &step->q, h * step->K, step->K);
        prefetch_input(t, &step->k, h * step->K, step->K);
    }
    prefetch_input(t, &step->v, hv * step->V, step->V);
    if (t->per_channel)
        prefetch_input(t, &step->a, hv * step->K, step->K);
    prefetch_weight(&step->dt_bias, hv, t->per_channel ? step->K : 1);
    prefetch_weight(&step->A_log, hv, 1);
    int64_t element = rssm_cpu_dtype_bytes(step->out_dtype);
    prefetch_bytes((const char *)step->out + (t->row.start * step->out_row + hv * step->V) * element,
                   step->V * element);
}

/* Every `of`-th of the ring rows of value head hv that are read or written, from the part-th on: the caller spreads a ring
 * over its blocks. */
static inline void prefetch_ring(const rssm_head *t, int64_t hv, int64_t records, int64_t part, int64_t of)
{
    const rssm_step *step = t->step;
    int64_t h = hv / (step->HV / step->H);
    int64_t element = rssm_cpu_dtype_bytes(rssm_ring_dtype(step));
    for (int64_t j = part; j < records; j += of) {
        int64_t r = rssm_ring_row(step, &t->row, j);
        prefetch_bytes(ring_at(step, &step->d_cache, t->row.slot, hv, step->V, r), step->V * element);
        if (h != t->h)
            prefetch_bytes(ring_at(step, &step->k_cache, t->row.slot, h, step->K, r), step->K * element);
        if (t->per_channel)
            prefetch_bytes(ring_at(step, &step->g_cache, t->row.slot, hv, step->K, r),
                           step->K * (int64_t)sizeof(float));
    }
}

/* The ring, inputs and output of the next head, while the state streams: part i of `of` with each block. */
static inline void rssm_head_prefetch_next(const rssm_head *t, int64_t i, int64_t of)
{
    if (t->hv + 1 == t->step->HV)
        return;
    prefetch_ring(t, t->hv + 1, t->row.count + !t->row.flush, i, of);
    if (i == 0)
        prefetch_io(t, t->hv + 1);
}

/* The same for a window: t is its row with all records, tokens[len] are its tokens. */
static inline void rssm_head_prefetch_window(const rssm_head *t, const rssm_head *tokens, int64_t i, int64_t of)
{
    if (t->hv + 1 == t->step->HV)
        return;
    prefetch_ring(t, t->hv + 1, t->row.count + t->row.len, i, of);
    for (int64_t j = i; j < t->row.len; j += of)
        prefetch_io(&tokens[j], t->hv + 1);
}

/* Rows of a block of the state, between dot products and fold: what the first-level cache holds beside their operands.
 * Even: the fold takes two at a time. */
static inline int64_t rssm_head_block_rows(const rssm_head *t)
{
    int64_t rows = BLOCK_BYTES / (t->step->K * rssm_cpu_dtype_bytes(t->step->state.dtype));
    return rows < 4 ? 4 : rows / 2 * 2;
}

static inline void rssm_head_write_output(rssm_head *t)
{
    const rssm_step *step = t->step;
    int64_t index = t->row.start * step->out_row + t->hv * step->V;
    char *out = (char *)step->out + index * rssm_cpu_dtype_bytes(step->out_dtype);
    if (t->kernels->store[rssm_kind(step->out_dtype)](out, t->y, step->V))
        t->fault |= RSSM_FAULTBIT_OUTPUT;
}

static inline char *record_at(const rssm_head *t, const rssm_pooled *ring, int64_t of_head, int64_t width)
{
    return ring_at(t->step, ring, t->row.slot, of_head, width, rssm_ring_row(t->step, &t->row, t->row.count));
}

static inline void store_record(rssm_head *t, char *to, const float *from, int64_t n)
{
    if (t->kernels->store[t->ring_kind](to, from, n))
        t->fault |= RSSM_FAULTBIT_RING;
}

/* The token's record, in ring row base + count. */
static inline void rssm_head_store_d(rssm_head *t)
{
    store_record(t, record_at(t, &t->step->d_cache, t->hv, t->step->V), t->d, t->step->V);
}

static inline void rssm_head_store_g(rssm_head *t)
{
    int64_t gates = t->per_channel ? t->step->K : 1;
    memcpy(record_at(t, &t->step->g_cache, t->hv, gates), t->g, (size_t)gates * sizeof(float));
}

/* Value heads share their key head's row. */
static inline void rssm_head_store_k(rssm_head *t)
{
    if (t->hv % (t->step->HV / t->step->H) == 0)
        store_record(t, record_at(t, &t->step->k_cache, t->h, t->step->K), t->k, t->step->K);
}

#endif
