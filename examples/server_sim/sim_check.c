#include "sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Relative L2 over a request's tokens, and over its state. With a float32 ring (or Mamba-2, whose records are its inputs)
 * the plugin follows the recurrence; a 16-bit ring drifts within bounds. A 16-bit state has no bar of its own: this one
 * tells a wrong request from a right one. */
typedef struct bars {
    double out, state;
} bars;

static bars bars_of(const sim *s)
{
    static const bars exact = {2e-6, 1e-6}, bf16 = {6e-3, 4e-3}, fp16 = {8e-4, 5e-4}, half_state = {0.1, 0.1};
    const rssm_description *m = &s->host.model;
    if (m->state_dtype != RSSM_DTYPE_FLOAT32)
        return half_state;
    if (m->ring_dtype == RSSM_DTYPE_FLOAT32 || (m->family == RSSM_FAMILY_MAMBA2 && m->ring_dtype == m->io_dtype))
        return exact;
    return m->ring_dtype == RSSM_DTYPE_BFLOAT16 ? bf16 : fp16;
}

void sim_start_state(const sim *s, uint64_t seed, float *state, float *conv)
{
    const rssm_description *m = &s->host.model;
    rng r = rng_stream(seed, 0x57A7E, 0);
    for (int64_t i = 0; i < (int64_t)m->HV * m->V * m->K; i++)
        state[i] = 0.3f * rng_normal(&r);
    for (int64_t i = 0; conv != NULL && i < s->channels * (m->conv_kernel - 1); i++)
        conv[i] = rng_normal(&r);
}

/* Squares of errors and of sizes, summed up. */
typedef struct error_sum {
    double error, size;
    int broken; /* a NaN or an infinity */
} error_sum;

static void add_error(error_sum *sum, double got, double want)
{
    sum->broken |= !isfinite(got);
    sum->error += (got - want) * (got - want);
    sum->size += want * want;
}

static double relative(const error_sum *sum)
{
    if (sum->broken)
        return (double)INFINITY;
    return sum->error > 0.0 ? sqrt(sum->error / sum->size) : 0.0;
}

/* ---- the convolution --------------------------------------------------------------------------------------------- */

/* Raw inputs of a request, the w - 1 columns before its first token included: [w - 1 + done][channels]. */
static double *raw_inputs(const sim *s, const request *r)
{
    const int64_t before = s->host.model.conv_kernel - 1, n = s->channels;
    double *raw = calloc((size_t)((before + r->done) * n), sizeof *raw);
    char *row = malloc((size_t)(n * s->load.io->bytes));
    float *start = malloc((size_t)(s->host.model.HV * s->host.model.V * s->host.model.K) * sizeof *start),
          *conv = malloc((size_t)(n * before + 1) * sizeof *conv);
    if (raw != NULL && row != NULL && start != NULL && conv != NULL) {
        if (r->start != 0)
            sim_start_state(s, r->start, start, conv);
        for (int64_t i = 0; r->start != 0 && i < n * before; i++)
            raw[i % before * n + i / before] = dtype_round(s->load.io, (double)conv[i]);
        for (int64_t t = 0; t < r->done; t++) {
            sim_token(s, r->tokens[t], row, NULL, NULL);
            dtype_load(s->load.io, row, n, raw + (before + t) * n);
        }
    } else {
        free(raw);
        raw = NULL;
    }
    free(row);
    free(start);
    free(conv);
    return raw;
}

/* The convolution's outputs that the layer got, as multiples of what their rounding costs. */
static double check_conv(const sim *s, const request *r, const double *raw)
{
    const int64_t w = s->host.model.conv_kernel, n = s->channels;
    const float *weight = s->conv_weight[r->layer].host, *bias = s->conv_bias[r->layer].host;
    double error = 0.0, rounding = 0.0, size = 0.0;
    for (int64_t t = 0; t < r->done; t++)
        for (int64_t c = 0; c < n; c++) {
            double sum = (double)bias[c], got;
            for (int64_t i = 0; i < w; i++)
                sum += (double)weight[c * w + i] * raw[(t + i) * n + c];
            const double want = sum / (1.0 + exp(-sum)), lost = dtype_round(s->load.io, want) - want;
            dtype_load(s->load.io, r->inputs + (t * n + c) * s->load.io->bytes, 1, &got);
            error += (got - want) * (got - want);
            rounding += lost * lost;
            size += want * want;
        }
    if (!isfinite(error))
        return (double)INFINITY;
    return sqrt(error) / (1.05 * sqrt(rounding) + 2e-6 * sqrt(size) + 1e-30);
}

/* ---- the recurrence ---------------------------------------------------------------------------------------------- */

typedef struct replay {
    double *state;  /* [V][K] of the checked head */
    char *gate;     /* [done][gates], io dtype */
    char *beta;     /* [done][HV] */
    char *packed;   /* [done][channels]: thrown away with a convolution, else what the layer got */
    double *memory; /* of result */
    oracle_result result;
} replay;

static void replay_free(replay *p)
{
    free(p->state);
    free(p->gate);
    free(p->beta);
    free(p->packed);
    free(p->memory);
}

static int replay_create(const sim *s, const request *r, replay *p)
{
    const rssm_description *m = &s->host.model;
    const size_t V = (size_t)m->V, K = (size_t)m->K, n = (size_t)r->done * (size_t)s->load.io->bytes;
    *p = (replay){.state = calloc(V * K, sizeof *p->state),
                  .gate = malloc(n * (size_t)s->gates + 1),
                  .beta = malloc(n * (size_t)m->HV + 1),
                  .packed = malloc(n * (size_t)s->channels + 1),
                  .memory = calloc(3 * V + 3 * K + 16, sizeof *p->memory)};
    if (p->state == NULL || p->gate == NULL || p->beta == NULL || p->packed == NULL || p->memory == NULL)
        return -1;
    p->result = (oracle_result){.out = p->memory,
                                .d = p->memory + V,
                                .d_scale = p->memory + 2 * V,
                                .k = p->memory + 3 * V,
                                .g = p->memory + 3 * V + K + 8};
    return 0;
}

static int load_start(const sim *s, const request *r, double *state)
{
    const rssm_description *m = &s->host.model;
    const int64_t head = (int64_t)m->V * m->K;
    float *start = malloc((size_t)(m->HV * head) * sizeof *start);
    if (start == NULL)
        return -1;
    sim_start_state(s, r->start, start, NULL);
    for (int64_t i = 0; i < head; i++)
        state[i] = dtype_round(dtype_find(m->state_dtype), (double)start[r->head * head + i]);
    free(start);
    return 0;
}

static void replay_tokens(const sim *s, const request *r, replay *p, error_sum *out)
{
    const rssm_description *m = &s->host.model;
    const int64_t bytes = s->load.io->bytes;
    const tensor *weights = s->load.weights + r->layer * WEIGHT_COUNT;
    const oracle_inputs in = {.packed = s->conv != NULL ? r->inputs : p->packed,
                              .gate = p->gate,
                              .beta = p->beta,
                              .A_log = weights[WEIGHT_A_LOG].host,
                              .dt_bias = weights[WEIGHT_DT_BIAS].host,
                              .D = m->family == RSSM_FAMILY_MAMBA2 ? weights[WEIGHT_D].host : NULL};
    for (int64_t t = 0; t < r->done; t++) {
        sim_token(s, r->tokens[t], p->packed + t * s->channels * bytes, p->gate + t * s->gates * bytes,
                  p->beta + t * m->HV * bytes);
        oracle_advance(&s->oracle, s->scratch, &in, t, r->head, p->state, &p->result);
        for (int64_t v = 0; v < m->V; v++)
            add_error(out, (double)r->outputs[t * m->V + v], p->result.out[v]);
    }
}

static void compare_state(const sim *s, const request *r, const replay *p, const float *state, int transposed,
                          error_sum *sum)
{
    const rssm_description *m = &s->host.model;
    const float *head = state + r->head * m->V * m->K;
    for (int64_t v = 0; v < m->V; v++)
        for (int64_t k = 0; k < m->K; k++)
            add_error(sum, (double)head[transposed ? k * m->V + v : v * m->K + k], p->state[v * m->K + k]);
}

static void judge(sim *s, const request *r, double out, double state, double conv)
{
    const bars bar = bars_of(s);
    totals *t = &s->t;
    t->worst_out = fmax(t->worst_out, out);
    t->worst_state = fmax(t->worst_state, state);
    t->worst_conv = fmax(t->worst_conv, conv);
    if (out <= bar.out && state <= bar.state && conv <= 1.0)
        return;
    t->wrong++;
    if (t->wrong <= 5)
        fprintf(stderr,
                "%s: request %" PRId64 " is wrong: %" PRId64 " tokens, slot %" PRId64 ", layer %" PRId64
                ", head %" PRId64 ": output %.3g, state %.3g, convolution %.3g x rounding\n",
                s->host.program, r->id, r->done, r->slot, r->layer, r->head, out, state, conv);
}

int sim_check(sim *s, const request *r, const float *state, int transposed)
{
    replay p;
    error_sum out = {0.0, 0.0, 0}, end = {0.0, 0.0, 0};
    double conv = 0.0;
    int failed = replay_create(s, r, &p);
    if (!failed && r->start != 0)
        failed = load_start(s, r, p.state);
    if (!failed && s->conv != NULL) {
        double *raw = raw_inputs(s, r);
        failed = raw == NULL;
        if (!failed)
            conv = check_conv(s, r, raw);
        free(raw);
    }
    if (!failed) {
        replay_tokens(s, r, &p, &out);
        compare_state(s, r, &p, state, transposed, &end);
        judge(s, r, relative(&out), relative(&end), conv);
    }
    replay_free(&p);
    return failed ? host_refuse(&s->host, "no memory for the check") : EXIT_OK;
}
