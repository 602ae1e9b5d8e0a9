#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8 }; /* loops over K run in blocks of so many */

/* One token of one head, and the records before it. Arrays over K are `padded` long. */
struct oracle_scratch {
    double *q, *k, *k_rounded, *decay, *g, *v, *row;
    double *record_decay, *record_k; /* [rows][padded] */
    double *record_d;                /* [rows][V]: what k is multiplied with (Mamba-2: dt x) */
    int64_t records;
    double beta, dt, skip;
    double memory[];
};

void oracle_init(oracle *o, const rssm_description *m)
{
    *o = (oracle){.family = m->family,
                  .gate_kind = m->gate_kind,
                  .qk_norm = m->qk_norm,
                  .H = m->H,
                  .HV = m->HV,
                  .K = m->K,
                  .V = m->V,
                  .gates = m->family == RSSM_FAMILY_KDA ? m->K : 1,
                  .padded = (m->K + LANES - 1) / LANES * LANES,
                  .lower_bound = m->lower_bound,
                  .scale = m->scale,
                  .norm_eps = m->norm_eps,
                  .beta_scale = m->beta_scale,
                  .dt_min = m->time_step_limit_min,
                  .dt_max = m->time_step_limit_max,
                  .io = dtype_find(m->io_dtype),
                  .state = dtype_find(m->state_dtype),
                  .ring = dtype_find(m->ring_dtype)};
}

oracle_scratch *oracle_scratch_create(const oracle *o, int64_t rows)
{
    const size_t K = (size_t)o->padded, V = (size_t)o->V, R = (size_t)rows;
    const size_t doubles = 6 * K + V + 2 * R * K + R * V;
    oracle_scratch *s = calloc(1, sizeof *s + doubles * sizeof(double));
    if (s == NULL)
        return NULL;
    double *next = s->memory;
    double **rows_of_K[] = {&s->q, &s->k, &s->k_rounded, &s->decay, &s->g, &s->row};
    for (size_t i = 0; i < sizeof rows_of_K / sizeof rows_of_K[0]; i++, next += K)
        *rows_of_K[i] = next;
    s->v = next;
    s->record_d = s->v + V;
    s->record_decay = s->record_d + R * V;
    s->record_k = s->record_decay + R * K;
    return s;
}

void oracle_scratch_free(oracle_scratch *s)
{
    free(s);
}

static double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* x / sqrt(sum x^2 + eps), then times scale. */
static void normalise(double *x, int64_t n, double eps, double scale)
{
    double sum = eps;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(sum) * scale;
}

/* The log gate of channel i of a head, from a = gate input and its bias. */
static double log_gate(const oracle *o, const oracle_inputs *in, int64_t head, double x)
{
    double rate = exp((double)in->A_log[head]);
    return o->gate_kind == RSSM_GATE_BOUNDED ? o->lower_bound * sigmoid(rate * x) : -rate * softplus(x);
}

static double element(const oracle *o, const void *base, int64_t i)
{
    double x;
    dtype_load(o->io, (const char *)base + i * o->io->bytes, 1, &x);
    return x;
}

static void load_packed(const oracle *o, const void *packed, int64_t row, int64_t offset, int64_t n, double *dst)
{
    const int64_t channels = 2 * o->H * o->K + o->HV * o->V;
    dtype_load(o->io, (const char *)packed + (row * channels + offset) * o->io->bytes, n, dst);
}

/* KDA and GDN: rows are q | k | v. */
static void delta_token(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head)
{
    const int64_t key_head = head / (o->HV / o->H), HK = o->H * o->K;
    load_packed(o, in->packed, row, key_head * o->K, o->K, s->q);
    load_packed(o, in->packed, row, HK + key_head * o->K, o->K, s->k);
    load_packed(o, in->packed, row, 2 * HK + head * o->V, o->V, s->v);
    if (o->qk_norm) {
        normalise(s->q, o->K, o->norm_eps, 1.0);
        normalise(s->k, o->K, o->norm_eps, 1.0);
    }
    for (int64_t i = 0; i < o->K; i++)
        s->q[i] *= o->scale;
    s->beta = o->beta_scale * sigmoid(element(o, in->beta, row * o->HV + head));
    for (int64_t i = 0; i < o->gates; i++) {
        int64_t channel = head * o->gates + i;
        double a = element(o, in->gate, row * o->HV * o->gates + channel) + (double)in->dt_bias[channel];
        s->g[i] = log_gate(o, in, head, a);
    }
    for (int64_t i = 0; i < o->K; i++)
        s->decay[i] = exp(s->g[o->gates == 1 ? 0 : i]);
}

/* Mamba-2: rows are x | B | C. */
static void mamba_token(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head)
{
    const int64_t group = head / (o->HV / o->H), x_end = o->HV * o->V;
    load_packed(o, in->packed, row, head * o->V, o->V, s->v);
    load_packed(o, in->packed, row, x_end + group * o->K, o->K, s->k);
    load_packed(o, in->packed, row, x_end + (o->H + group) * o->K, o->K, s->q);
    double dt = softplus(element(o, in->gate, row * o->HV + head) + (double)in->dt_bias[head]);
    s->dt = fmin(fmax(dt, o->dt_min), o->dt_max);
    s->g[0] = s->dt; /* the record holds dt; the log gate is A dt */
    s->skip = in->D != NULL ? (double)in->D[head] : 0.0;
    for (int64_t i = 0; i < o->K; i++)
        s->decay[i] = exp(-exp((double)in->A_log[head]) * s->dt);
}

static void load_token(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head)
{
    s->records = 0;
    if (o->family == RSSM_FAMILY_MAMBA2)
        mamba_token(o, s, in, row, head);
    else
        delta_token(o, s, in, row, head);
    for (int64_t i = 0; i < o->K; i++)
        s->k_rounded[i] = dtype_round(o->ring, s->k[i]);
}

static void load_records(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t head,
                         const oracle_ring *ring)
{
    const dtype_info *f32 = dtype_find(RSSM_DTYPE_FLOAT32);
    s->records = ring->count;
    for (int64_t j = 0; j < ring->count; j++) {
        const int64_t at = (ring->base + j) % ring->rows;
        double *decay = s->record_decay + j * o->padded, *d = s->record_d + j * o->V;
        dtype_load(o->ring, (const char *)ring->d + at * o->V * o->ring->bytes, o->V, d);
        dtype_load(o->ring, (const char *)ring->k + at * o->K * o->ring->bytes, o->K, s->record_k + j * o->padded);
        dtype_load(f32, (const char *)ring->g + at * o->gates * f32->bytes, o->gates, decay);
        if (o->family == RSSM_FAMILY_MAMBA2) {
            double dt = decay[0];
            decay[0] = -exp((double)in->A_log[head]) * dt;
            for (int64_t v = 0; v < o->V; v++)
                d[v] *= dt;
        }
        if (o->gates == 1)
            for (int64_t i = 1; i < o->K; i++)
                decay[i] = decay[0];
        for (int64_t i = 0; i < o->K; i++)
            decay[i] = exp(decay[i]);
    }
}

/* s <- s decay + d k */
static void update_row(double *restrict s, const double *restrict decay, double d, const double *restrict k, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t j = i; j < i + LANES; j++)
            s[j] = s[j] * decay[j] + d * k[j];
}

static void scale_row(double *restrict s, const double *restrict decay, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t j = i; j < i + LANES; j++)
            s[j] *= decay[j];
}

static double total(const double *lanes)
{
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static double dot(const double *restrict a, const double *restrict b, int64_t n)
{
    double sum[LANES] = {0.0};
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t j = 0; j < LANES; j++)
            sum[j] += a[i + j] * b[i + j];
    return total(sum);
}

static double dot_of_sizes(const double *restrict a, const double *restrict b, int64_t n)
{
    double sum[LANES] = {0.0};
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t j = 0; j < LANES; j++)
            sum[j] += fabs(a[i + j] * b[i + j]);
    return total(sum);
}

/* The token on row v of the state, whose decay is already applied. Returns what k is to be multiplied with in the
 * state's update, from the record as it is kept: rounded if `rounded`. */
static double token_on_row(const oracle *o, const oracle_scratch *s, const double *row, int64_t v, double kq,
                           int rounded, oracle_result *out)
{
    if (o->family == RSSM_FAMILY_MAMBA2) {
        double x = s->v[v];
        out->d[v] = x;
        out->d_scale[v] = 0.0;
        out->out[v] = dot(row, s->q, o->padded) + s->dt * x * kq + s->skip * x;
        return s->dt * (rounded ? dtype_round(o->ring, x) : x);
    }
    double d = s->beta * (s->v[v] - dot(row, s->k, o->padded));
    out->d[v] = d;
    out->d_scale[v] = s->beta * (fabs(s->v[v]) + dot_of_sizes(row, s->k, o->padded));
    out->out[v] = dot(row, s->q, o->padded) + d * kq;
    return rounded ? dtype_round(o->ring, d) : d;
}

static void copy_records(const oracle *o, const oracle_scratch *s, oracle_result *out)
{
    memcpy(out->k, s->k, (size_t)o->K * sizeof(double));
    memcpy(out->g, s->g, (size_t)o->gates * sizeof(double));
}

void oracle_step(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head,
                 const void *checkpoint, const oracle_ring *ring, oracle_result *out)
{
    load_token(o, s, in, row, head);
    load_records(o, s, in, head, ring);
    copy_records(o, s, out);
    const double kq = dot(s->k, s->q, o->padded);
    for (int64_t v = 0; v < o->V; v++) {
        dtype_load(o->state, (const char *)checkpoint + v * o->K * o->state->bytes, o->K, s->row);
        for (int64_t j = 0; j < s->records; j++)
            update_row(s->row, s->record_decay + j * o->padded, s->record_d[j * o->V + v], s->record_k + j * o->padded,
                       o->padded);
        scale_row(s->row, s->decay, o->padded);
        double d = token_on_row(o, s, s->row, v, kq, 1, out);
        if (out->state != NULL)
            for (int64_t i = 0; i < o->K; i++)
                out->state[v * o->K + i] = s->row[i] + d * s->k_rounded[i];
    }
}

void oracle_advance(const oracle *o, oracle_scratch *s, const oracle_inputs *in, int64_t row, int64_t head,
                    double *state, oracle_result *out)
{
    load_token(o, s, in, row, head);
    copy_records(o, s, out);
    const double kq = dot(s->k, s->q, o->padded);
    for (int64_t v = 0; v < o->V; v++) {
        memcpy(s->row, state + v * o->K, (size_t)o->K * sizeof(double));
        scale_row(s->row, s->decay, o->padded);
        double d = token_on_row(o, s, s->row, v, kq, 0, out);
        for (int64_t i = 0; i < o->K; i++)
            state[v * o->K + i] = s->row[i] + d * s->k[i];
    }
}
