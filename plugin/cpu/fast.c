/* The plain ReplaySSM step on a level's vector functions. The same sums as reference.c, in float32:
 *
 *   shared    once per row and key head: q and k (normalised, scaled), k rounded as a record is; where a head has one gate
 *             (GDN, Mamba-2) also the keys' undecayed dot products with q and k, and at a flush the keys as float32
 *   gates     the token's gates, the records' decays as suffix sums, the scores (w_j . q), (w_j . k)
 *   ring      y, u <- sum_j score_j d_j
 *   state     the one pass over the checkpoint, a block of rows at a time: y, u += S0 (decay * q, k); d and out of the
 *             block; a flush folds the block at once, while it is in the first-level cache
 *   append    the record, unless flushed
 *
 * Memory must never wait for arithmetic: while it computes gates and records it asks for the state, while it streams the
 * state for the ring rows, inputs and outputs of the next head.
 */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/dtype.h"

enum {
    BLOCK_BYTES = 8 << 10, /* of state rows between dot products and fold */
    HEAD_AHEAD = 8 << 10,  /* of state asked for before the gates */
    CACHE_LINE = 64,
    ALIGN_FLOATS = 16
};

/* Everything about the head at hand; the arrays lie in the worker's scratch. */
typedef struct head {
    const rssm_cpu_kernels *kernels;
    const rssm_step *step;
    const rssm_row *row;
    int64_t b, hv, h;
    int32_t ring_kind;
    int32_t per_channel;  /* every channel has its gate: KDA */
    int64_t k_row, v_row; /* floats from row to row of keys, fold_d */
    float *q, *k;         /* [K] shared; k unrounded */
    float *raw_q, *raw_k; /* [L] shared: k_j . q, k_j . k */
    float *keys;          /* [L + 1][K] of the fold; the last used row is the token's */
    float *g;             /* [K] the token's gates */
    float *suffix;        /* [K] */
    float *decay;         /* [K] */
    float *decayed_q, *decayed_k;
    float *score_q, *score_k; /* [L] */
    float *weight;            /* [L + 1] exp of the suffix sums where a head has one gate; the last is the state's */
    float *v, *y, *u, *d;     /* [V] input; readouts for q and k; the token's d, or x */
    float *fold_d;            /* [L + 1][V] d of the fold, the token's last */
    float *narrow;            /* [max(K, V)] room for 16-bit values */
    float kq, beta, dt, mamba_rate, mamba_skip;
    uint32_t fault;
    int32_t pad_;
} head;

static int64_t round_up(int64_t n)
{
    return (n + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

int64_t rssm_fast_scratch(rssm_cpu_dims dims)
{
    int64_t K = round_up(dims.K), V = round_up(dims.V), L = round_up(dims.L + 1);
    int64_t floats = 7 * K + (dims.L + 1) * (K + V) + 4 * V + (K > V ? K : V) + 5 * L;
    return floats * (int64_t)sizeof(float);
}

static float *take(float **scratch, int64_t floats)
{
    float *taken = *scratch;
    *scratch += round_up(floats);
    return taken;
}

static head make_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    head t = {.kernels = worker->kernels, .step = step, .row = row, .b = b, .hv = hv};
    float *scratch = worker->scratch;
    int64_t K = step->K, V = step->V, L = step->L + 1;
    t.h = hv / (step->HV / step->H);
    t.ring_kind = rssm_kind(rssm_ring_dtype(step));
    t.per_channel = step->family == RSSM_FAMILY_KDA;
    t.k_row = round_up(K);
    t.v_row = round_up(V);
    t.q = take(&scratch, K);
    t.k = take(&scratch, K);
    t.g = take(&scratch, K);
    t.suffix = take(&scratch, K);
    t.decay = take(&scratch, K);
    t.decayed_q = take(&scratch, K);
    t.decayed_k = take(&scratch, K);
    t.keys = take(&scratch, L * t.k_row);
    t.raw_q = take(&scratch, L);
    t.raw_k = take(&scratch, L);
    t.score_q = take(&scratch, L);
    t.score_k = take(&scratch, L);
    t.weight = take(&scratch, L);
    t.v = take(&scratch, V);
    t.y = take(&scratch, V);
    t.u = take(&scratch, V);
    t.d = take(&scratch, V);
    t.fold_d = take(&scratch, L * t.v_row);
    t.narrow = take(&scratch, K > V ? K : V);
    return t;
}

/* A run of ring rows that lie one after the other: the records of a head are one or two. */
typedef struct span {
    int64_t first; /* record */
    int64_t r;     /* its ring row */
    int64_t count;
} span;

static int find_spans(const rssm_step *step, const rssm_row *row, span spans[2])
{
    int64_t before_wrap = step->R - row->base;
    int64_t count = row->count < before_wrap ? row->count : before_wrap;
    spans[0] = (span){0, row->base, count};
    spans[1] = (span){count, 0, row->count - count};
    return spans[1].count > 0 ? 2 : spans[0].count > 0 ? 1 : 0;
}

/* Address of ring row r of one head in a pool tensor [S, heads, R, width]. */
static char *ring_at(const rssm_step *step, const rssm_pooled *ring, int64_t slot, int64_t of_head, int64_t width,
                     int64_t r)
{
    int64_t index = slot * ring->slot + (of_head * step->R + r) * width;
    return (char *)ring->data + index * rssm_cpu_dtype_bytes(ring->dtype);
}

/* State row v of the head. */
static char *state_at(const head *t, int64_t v)
{
    const rssm_step *step = t->step;
    int64_t index = t->row->slot * step->state.slot + (t->hv * step->V + v) * step->K;
    return (char *)step->state.data + index * rssm_cpu_dtype_bytes(step->state.dtype);
}

static const float *gates_at(const head *t, int64_t record)
{
    int64_t r = rssm_ring_row(t->step, t->row, record);
    int64_t width = t->per_channel ? t->step->K : 1;
    return (const float *)(void *)ring_at(t->step, &t->step->g_cache, t->row->slot, t->hv, width, r);
}

static void load_input(const head *t, float *dst, const rssm_input *input, int64_t index, int64_t n)
{
    const char *src = (const char *)input->data + (t->b * input->row + index) * rssm_cpu_dtype_bytes(input->dtype);
    t->kernels->load[rssm_kind(input->dtype)](dst, src, n);
}

static float input_at(const rssm_input *input, int64_t b, int64_t index)
{
    return rssm_load_f32(input->dtype, input->data, b * input->row + index);
}

/* dst = src rounded once to the ring's dtype. */
static void round_to_ring(head *t, float *dst, const float *src, int64_t n)
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
static void load_key_vector(const head *t, float *x, const rssm_input *input, double factor)
{
    load_input(t, x, input, t->h * t->step->K, t->step->K);
    if (t->step->flags & RSSM_STEP_QK_NORM)
        factor /= sqrt(t->kernels->sum_squares(x, t->step->K) + (double)t->step->norm_eps);
    if (factor != 1)
        t->kernels->scale(x, x, (float)factor, t->step->K);
}

/* One gate per head: decay only scales the records' dot products, so these are the key head's. */
static void share_raw_scores(head *t)
{
    const rssm_step *step = t->step;
    span spans[2];
    int n = find_spans(step, t->row, spans);
    memset(t->raw_q, 0, (size_t)t->row->count * sizeof(float));
    memset(t->raw_k, 0, (size_t)t->row->count * sizeof(float));
    for (int i = 0; i < n; i++) {
        const char *rows = ring_at(step, &step->k_cache, t->row->slot, t->h, step->K, spans[i].r);
        float *raw_q = t->raw_q + spans[i].first, *raw_k = t->raw_k + spans[i].first;
        if (step->family == RSSM_FAMILY_MAMBA2)
            t->kernels->dot1[t->ring_kind](raw_q, rows, spans[i].count, step->K, t->q);
        else
            t->kernels->dot2[t->ring_kind](raw_q, raw_k, rows, spans[i].count, step->K, t->q, t->k);
    }
}

static void share_fold_keys(head *t)
{
    const rssm_step *step = t->step;
    for (int64_t j = 0; j < t->row->count; j++) {
        int64_t r = rssm_ring_row(step, t->row, j);
        const char *key = ring_at(step, &step->k_cache, t->row->slot, t->h, step->K, r);
        t->kernels->load[t->ring_kind](t->keys + j * t->k_row, key, step->K);
    }
}

/* What the value heads of a key head share; kept from one to the next. */
static void prepare_key_head(head *t, rssm_worker *worker)
{
    const rssm_step *step = t->step;
    if (worker->cached_row == t->b && worker->cached_head == t->h)
        return;
    load_key_vector(t, t->q, &step->q, step->family == RSSM_FAMILY_MAMBA2 ? 1 : (double)step->scale);
    load_key_vector(t, t->k, &step->k, 1);
    if (t->row->flush)
        round_to_ring(t, t->keys + t->row->count * t->k_row, t->k, step->K);
    if (!t->per_channel && t->row->count > 0) {
        share_raw_scores(t);
        if (t->row->flush)
            share_fold_keys(t);
    }
    worker->cached_row = t->b;
    worker->cached_head = t->h;
}

/* One or two a head, so in double: in float32 the sum a + dt_bias alone costs x's last bits, 1e-6 of g at x = -20. */
static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static double gate_rate(const head *t)
{
    return t->step->A_log.data ? exp((double)input_at(&t->step->A_log, 0, t->hv)) : 1;
}

/* a + dt_bias, or dt + dt_bias, of a head with one gate. */
static double biased_gate_input(const head *t)
{
    const rssm_step *step = t->step;
    double bias = step->dt_bias.data ? (double)input_at(&step->dt_bias, 0, t->hv) : 0;
    return (double)input_at(&step->a, t->b, t->hv) + bias;
}

/* KDA: K gates of the token, then the records from the newest to the oldest. */
static void channel_gates(head *t)
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
    memcpy(t->suffix, t->g, (size_t)K * sizeof(float));
    const char *ahead = state_at(t, 0) + HEAD_AHEAD;
    for (int64_t j = t->row->count - 1; j >= 0; j--, ahead += K * RECORD_AHEAD) {
        int64_t r = rssm_ring_row(step, t->row, j);
        const char *key = ring_at(step, &step->k_cache, t->row->slot, t->h, K, r);
        float dots[2];
        float *decayed_key = t->keys + (t->row->flush ? j * t->k_row : 0); /* only a fold needs them afterwards */
        f->record[t->ring_kind](decayed_key, dots, key, gates_at(t, j), t->suffix, t->q, t->k, K, ahead);
        t->score_q[j] = dots[0];
        t->score_k[j] = dots[1];
    }
    f->exp(t->decay, t->suffix, K);
    f->multiply(t->decayed_q, t->decay, t->q, K);
    f->multiply(t->decayed_k, t->decay, t->k, K);
}

/* Mamba-2's A, dt and D of the head. */
static void mamba2_scalars(head *t)
{
    const rssm_step *step = t->step;
    float a = input_at(&step->A_log, 0, t->hv);
    double x = biased_gate_input(t);
    float dt = (float)(step->flags & RSSM_STEP_DT_SOFTPLUS ? softplus(x) : x);
    dt = dt < step->dt_min ? step->dt_min : dt;
    t->dt = dt > step->dt_max ? step->dt_max : dt;
    t->mamba_rate = step->flags & RSSM_STEP_A_IS_DECAY ? a : -expf(a);
    t->mamba_skip = step->D.data ? input_at(&step->D, 0, t->hv) : 0;
}

static float head_gate(const head *t)
{
    const rssm_step *step = t->step;
    double x = biased_gate_input(t), rate = gate_rate(t);
    if (step->flags & RSSM_STEP_HAS_BOUND)
        return (float)((double)step->lower_bound / (1 + exp(-rate * x)));
    return (float)(-rate * softplus(x));
}

/* GDN, Mamba-2: one gate; the records' weights exp(suffix) in one go, weight[count] is the state's. */
static void scalar_gates(head *t)
{
    const rssm_step *step = t->step;
    int64_t m = t->row->count;
    int is_mamba2 = step->family == RSSM_FAMILY_MAMBA2;
    t->g[0] = is_mamba2 ? t->dt : head_gate(t);
    float rate = is_mamba2 ? t->mamba_rate : 1, sum = t->g[0];
    for (int64_t j = m - 1; j >= 0; j--) {
        t->weight[j] = rate * sum;
        sum += gates_at(t, j)[0];
    }
    t->weight[m] = rate * sum;
    t->kernels->exp(t->weight, t->weight, m + 1);
    for (int64_t j = 0; j < m; j++) {
        if (is_mamba2)
            t->weight[j] *= gates_at(t, j)[0]; /* the record's key is dt_j B_j */
        t->score_q[j] = t->weight[j] * t->raw_q[j];
        t->score_k[j] = t->weight[j] * t->raw_k[j];
    }
    t->kernels->scale(t->decayed_q, t->q, t->weight[m], step->K);
    t->kernels->scale(t->decayed_k, t->k, t->weight[m], step->K);
    if (t->row->flush)
        for (int64_t i = 0; i < step->K; i++)
            t->decay[i] = t->weight[m];
}

/* At a flush the records' d as float32, times their weight where the keys are undecayed. */
static void load_fold_d(head *t)
{
    const rssm_step *step = t->step;
    for (int64_t j = 0; j < t->row->count; j++) {
        float *d = t->fold_d + j * t->v_row;
        int64_t r = rssm_ring_row(step, t->row, j);
        const char *record = ring_at(step, &step->d_cache, t->row->slot, t->hv, step->V, r);
        t->kernels->load[t->ring_kind](d, record, step->V);
        if (!t->per_channel)
            t->kernels->scale(d, d, t->weight[j], step->V);
    }
}

/* y and u start as the records' part. */
static void read_ring(head *t)
{
    const rssm_step *step = t->step;
    span spans[2];
    int n = find_spans(step, t->row, spans);
    memset(t->y, 0, (size_t)step->V * sizeof(float));
    memset(t->u, 0, (size_t)step->V * sizeof(float));
    for (int i = 0; i < n; i++) {
        const char *rows = ring_at(step, &step->d_cache, t->row->slot, t->hv, step->V, spans[i].r);
        const float *score_q = t->score_q + spans[i].first, *score_k = t->score_k + spans[i].first;
        if (step->family == RSSM_FAMILY_MAMBA2)
            t->kernels->combine1[t->ring_kind](t->y, rows, spans[i].count, step->V, score_q);
        else
            t->kernels->combine2[t->ring_kind](t->y, t->u, rows, spans[i].count, step->V, score_q, score_k);
    }
}

/* Mamba-2's d is x, known beforehand. out = S C + (dt (B . C) + D) x, then the output gate. */
static void mamba2_output(head *t)
{
    const rssm_step *step = t->step;
    float factor = t->dt * t->kq + t->mamba_skip;
    t->kernels->combine1[rssm_kind(RSSM_DTYPE_FLOAT32)](t->y, t->d, 1, step->V, &factor);
    if (step->z.data) {
        load_input(t, t->u, &step->z, t->hv * step->V, step->V);
        t->kernels->silu_multiply(t->y, t->u, step->V);
    }
}

/* State rows v .. v + rows - 1: readouts, d and out (in y), and the fold. */
static void do_block(head *t, int64_t v, int64_t rows)
{
    const rssm_step *step = t->step;
    const rssm_cpu_kernels *f = t->kernels;
    int32_t kind = rssm_kind(step->state.dtype);
    void *state = state_at(t, v);
    if (step->family == RSSM_FAMILY_MAMBA2) {
        f->dot1[kind](t->y + v, state, rows, step->K, t->decayed_q);
    } else {
        f->dot2[kind](t->y + v, t->u + v, state, rows, step->K, t->decayed_q, t->decayed_k);
        f->delta(t->d + v, t->y + v, t->v + v, t->u + v, t->y + v, t->beta, t->kq, rows);
    }
    if (!t->row->flush)
        return;
    float *token_d = t->fold_d + t->row->count * t->v_row + v;
    round_to_ring(t, token_d, t->d + v, rows);
    if (step->family == RSSM_FAMILY_MAMBA2)
        f->scale(token_d, token_d, t->dt, rows);
    rssm_fold fold = {.decay = t->decay,
                      .d = t->fold_d + v,
                      .k = t->keys,
                      .d_row = t->v_row,
                      .k_row = t->k_row,
                      .terms = t->row->count + 1};
    if (f->fold[kind](state, rows, step->K, &fold))
        t->fault |= RSSM_FAULTBIT_STATE;
}

static void prefetch_bytes(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch(at + i, 0, 2);
}

/* The beginning of the head's state: it arrives while the gates are computed. */
static void prefetch_head(const head *t)
{
    int64_t bytes = (int64_t)t->step->V * t->step->K * rssm_cpu_dtype_bytes(t->step->state.dtype);
    prefetch_bytes(state_at(t, 0), bytes < HEAD_AHEAD ? bytes : HEAD_AHEAD);
}

static void prefetch_input(const head *t, const rssm_input *input, int64_t index, int64_t n)
{
    int64_t element = rssm_cpu_dtype_bytes(input->dtype);
    prefetch_bytes((const char *)input->data + (t->b * input->row + index) * element, n * element);
}

/* A weight of value head hv, n elements a head. */
static void prefetch_weight(const rssm_input *weight, int64_t hv, int64_t n)
{
    int64_t bytes = n * rssm_cpu_dtype_bytes(weight->dtype);
    if (weight->data)
        prefetch_bytes((const char *)weight->data + hv * bytes, bytes);
}

/* The inputs, weights and output of value head hv. */
static void prefetch_io(const head *t, int64_t hv)
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
    prefetch_bytes((const char *)step->out + (t->b * step->out_row + hv * step->V) * element, step->V * element);
}

/* Every `of`-th record of value head hv, from the part-th on, and the row that the token's own record will get: the caller
 * spreads a ring over its blocks. */
static void prefetch_ring(const head *t, int64_t hv, int64_t part, int64_t of)
{
    const rssm_step *step = t->step;
    int64_t h = hv / (step->HV / step->H);
    int64_t element = rssm_cpu_dtype_bytes(rssm_ring_dtype(step));
    int64_t records = t->row->count + !t->row->flush;
    for (int64_t j = part; j < records; j += of) {
        int64_t r = rssm_ring_row(step, t->row, j);
        prefetch_bytes(ring_at(step, &step->d_cache, t->row->slot, hv, step->V, r), step->V * element);
        if (h != t->h)
            prefetch_bytes(ring_at(step, &step->k_cache, t->row->slot, h, step->K, r), step->K * element);
        if (t->per_channel)
            prefetch_bytes(ring_at(step, &step->g_cache, t->row->slot, hv, step->K, r),
                           step->K * (int64_t)sizeof(float));
    }
}

static void read_state(head *t)
{
    const rssm_step *step = t->step;
    int64_t rows = BLOCK_BYTES / (step->K * rssm_cpu_dtype_bytes(step->state.dtype));
    rows = rows < 4 ? 4 : rows / 2 * 2; /* even: the fold takes two at a time */
    int64_t blocks = (step->V + rows - 1) / rows;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t v = i * rows;
        if (t->hv + 1 < step->HV)
            prefetch_ring(t, t->hv + 1, i, blocks);
        if (t->hv + 1 < step->HV && i == 0)
            prefetch_io(t, t->hv + 1);
        do_block(t, v, step->V - v < rows ? step->V - v : rows);
    }
}

static void write_output(head *t)
{
    const rssm_step *step = t->step;
    int64_t index = t->b * step->out_row + t->hv * step->V;
    char *out = (char *)step->out + index * rssm_cpu_dtype_bytes(step->out_dtype);
    if (t->kernels->store[rssm_kind(step->out_dtype)](out, t->y, step->V))
        t->fault |= RSSM_FAULTBIT_OUTPUT;
}

/* The record goes to ring row base + count. Value heads share their key head's row: the first of them writes it. */
static void append_record(head *t)
{
    const rssm_step *step = t->step;
    const rssm_cpu_kernels *f = t->kernels;
    int64_t r = rssm_ring_row(step, t->row, t->row->count), slot = t->row->slot;
    uint32_t saturated = f->store[t->ring_kind](ring_at(step, &step->d_cache, slot, t->hv, step->V, r), t->d, step->V);
    int64_t gates = t->per_channel ? step->K : 1;
    memcpy(ring_at(step, &step->g_cache, slot, t->hv, gates, r), t->g, (size_t)gates * sizeof(float));
    if (t->hv % (step->HV / step->H) == 0)
        saturated |= f->store[t->ring_kind](ring_at(step, &step->k_cache, slot, t->h, step->K, r), t->k, step->K);
    if (saturated)
        t->fault |= RSSM_FAULTBIT_RING;
}

void rssm_fast_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    head t = make_head(worker, step, row, b, hv);
    int is_mamba2 = step->family == RSSM_FAMILY_MAMBA2;
    prefetch_head(&t);
    prepare_key_head(&t, worker);
    load_input(&t, is_mamba2 ? t.d : t.v, &step->v, hv * step->V, step->V);
    if (is_mamba2)
        mamba2_scalars(&t);
    else
        t.beta = step->beta_scale * sigmoid(input_at(&step->b, b, hv));
    if (t.per_channel)
        channel_gates(&t);
    else
        scalar_gates(&t);
    t.kq = t.kernels->dot(t.k, t.q, step->K);
    if (row->flush)
        load_fold_d(&t);
    read_ring(&t);
    read_state(&t);
    if (is_mamba2)
        mamba2_output(&t);
    write_output(&t);
    if (!row->flush)
        append_record(&t);
    worker->fault |= t.fault;
}
