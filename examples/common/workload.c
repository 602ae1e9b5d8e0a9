#include "workload.h"

#include "rng.h"

#include <math.h>
#include <stdlib.h>

/* Streams of random numbers: inputs use the step's number, weights one that no step has. */
#define WEIGHT_STREAM UINT64_MAX

static int is_mamba(const workload *w)
{
    return w->host->model.family == RSSM_FAMILY_MAMBA2;
}

static int64_t channels(const rssm_description *m)
{
    return 2 * (int64_t)m->H * m->K + (int64_t)m->HV * m->V;
}

/* KDA gates each key channel, the others each head. */
static int64_t gates(const rssm_description *m)
{
    return m->family == RSSM_FAMILY_KDA ? (int64_t)m->HV * m->K : m->HV;
}

static int create_step_tensors(workload *w, const dtype_info *out_type)
{
    const rssm_description *m = &w->host->model;
    const int64_t B = w->batch;
    int failed = tensor_create(&w->packed, w->dev, w->io->dl, 2, (int64_t[]){B, channels(m)});
    if (m->family == RSSM_FAMILY_KDA)
        failed |= tensor_create(&w->gate, w->dev, w->io->dl, 3, (int64_t[]){B, m->HV, m->K});
    else
        failed |= tensor_create(&w->gate, w->dev, w->io->dl, 2, (int64_t[]){B, m->HV});
    failed |= tensor_create(&w->beta, w->dev, w->io->dl, 2, (int64_t[]){B, m->HV});
    failed |= tensor_create(&w->out, w->dev, out_type->dl, 3, (int64_t[]){B, m->HV, m->V});
    failed |= tensor_create(&w->slots, w->dev, tensor_int32(), 1, &B);
    failed |= tensor_create(&w->force, w->dev, tensor_int32(), 1, &B);
    failed |= tensor_create(&w->rows, w->dev, tensor_int32(), 2, (int64_t[]){B, RSSM_ROW_WIDTH});
    return failed;
}

/* The bias whose softplus is a step between 0.001 and 0.1, evenly in the logarithm (Mamba's initialisation). */
static float step_bias(rng *r)
{
    float step = expf(rng_uniform(r) * (logf(0.1f) - logf(0.001f)) + logf(0.001f));
    return step + logf(-expm1f(-step));
}

/* A bounded gate, lb * sigmoid(exp(A_log) (a + bias)), must not sit at either end: exp(A_log) near 1, bias below 0. */
static void fill_weights(workload *w, int64_t layer, tensor *weights)
{
    rng r = rng_stream(w->seed, (uint64_t)layer, WEIGHT_STREAM);
    int bounded = w->host->model.gate_kind == RSSM_GATE_BOUNDED;
    float *values = weights[WEIGHT_A_LOG].host;
    for (int64_t i = 0; i < weights[WEIGHT_A_LOG].bytes / 4; i++)
        values[i] = logf(1.0f + rng_uniform(&r) * (bounded ? 1.0f : 15.0f));
    values = weights[WEIGHT_DT_BIAS].host;
    for (int64_t i = 0; i < weights[WEIGHT_DT_BIAS].bytes / 4; i++)
        values[i] = bounded ? -4.0f + 2.0f * rng_uniform(&r) : step_bias(&r);
    values = weights[WEIGHT_D].host;
    for (int64_t i = 0; i < weights[WEIGHT_D].bytes / 4; i++)
        values[i] = 1.0f + 0.1f * rng_normal(&r);
}

static int create_weights(workload *w)
{
    const rssm_description *m = &w->host->model;
    const DLDataType f32 = dtype_find(RSSM_DTYPE_FLOAT32)->dl;
    int failed = 0;
    for (int64_t layer = 0; layer < m->num_linear_layers && !failed; layer++) {
        tensor *weights = w->weights + layer * WEIGHT_COUNT;
        failed |= tensor_create(&weights[WEIGHT_A_LOG], w->dev, f32, 1, (int64_t[]){m->HV});
        failed |= tensor_create(&weights[WEIGHT_DT_BIAS], w->dev, f32, 1, (int64_t[]){gates(m)});
        failed |= tensor_create(&weights[WEIGHT_D], w->dev, f32, 1, (int64_t[]){m->HV});
        if (failed)
            break;
        fill_weights(w, layer, weights);
        for (int i = 0; i < WEIGHT_COUNT; i++)
            failed |= tensor_upload(&weights[i]);
    }
    return failed;
}

static int bind_layer(workload *w, int32_t layer)
{
    host *h = w->host;
    const tensor *weights = w->weights + (int64_t)layer * WEIGHT_COUNT;
    const DLTensor **t = w->tensors + (int64_t)layer * RSSM_T_COUNT;
    t[is_mamba(w) ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV] = &w->packed.dl;
    t[is_mamba(w) ? RSSM_T_DT : RSSM_T_A] = &w->gate.dl;
    t[RSSM_T_B] = is_mamba(w) ? NULL : &w->beta.dl;
    t[RSSM_T_A_LOG] = &weights[WEIGHT_A_LOG].dl;
    t[RSSM_T_DT_BIAS] = &weights[WEIGHT_DT_BIAS].dl;
    t[RSSM_T_D] = is_mamba(w) ? &weights[WEIGHT_D].dl : NULL;
    t[RSSM_T_OUT] = &w->out.dl;
    t[RSSM_T_ROWS] = &w->rows.dl;
    return host_check(h, h->api->pool_tensors(h->plugin, layer, t, RSSM_T_COUNT, &h->error), "pool_tensors");
}

int workload_create(workload *w, host *h, device *dev, int64_t batch, const dtype_info *out_type, uint64_t seed)
{
    const rssm_description *m = &h->model;
    const size_t layers = (size_t)m->num_linear_layers;
    *w = (workload){.host = h, .dev = dev, .batch = batch, .seed = seed, .io = dtype_find(m->io_dtype)};
    w->weights = calloc(layers * WEIGHT_COUNT, sizeof *w->weights);
    w->tensors = calloc(layers * RSSM_T_COUNT, sizeof *w->tensors);
    w->scratch = calloc((size_t)channels(m) + (size_t)gates(m), sizeof *w->scratch);
    if (w->weights == NULL || w->tensors == NULL || w->scratch == NULL || create_step_tensors(w, out_type) != 0 ||
        create_weights(w) != 0)
        return host_refuse(h, "no memory for the inputs and weights");
    for (int32_t layer = 0; layer < m->num_linear_layers; layer++)
        if (bind_layer(w, layer) != EXIT_OK)
            return EXIT_REFUSED;
    return EXIT_OK;
}

void workload_free(workload *w)
{
    tensor *step[] = {&w->packed, &w->gate, &w->beta, &w->out, &w->slots, &w->force, &w->rows};
    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++)
        tensor_free(step[i]);
    for (int64_t i = 0; w->weights != NULL && i < (int64_t)w->host->model.num_linear_layers * WEIGHT_COUNT; i++)
        tensor_free(&w->weights[i]);
    free(w->weights);
    free(w->tensors);
    free(w->scratch);
    *w = (workload){.host = NULL};
}

/* For a model without q/k norm the heads of q and k arrive with length 1. */
static void normalise_heads(float *row, int64_t heads, int64_t dim)
{
    for (int64_t h = 0; h < heads; h++, row += dim) {
        float sum = 0.0f;
        for (int64_t i = 0; i < dim; i++)
            sum += row[i] * row[i];
        for (int64_t i = 0; i < dim; i++)
            row[i] /= sqrtf(sum + 1e-6f);
    }
}

/* What the short convolution leaves behind: SiLU of something normal. */
static void fill_packed(workload *w, rng *r)
{
    const rssm_description *m = &w->host->model;
    const int64_t n = channels(m);
    for (int64_t b = 0; b < w->batch; b++) {
        for (int64_t i = 0; i < n; i++) {
            float x = rng_normal(r);
            w->scratch[i] = x / (1.0f + expf(-x));
        }
        if (!is_mamba(w) && !m->qk_norm)
            normalise_heads(w->scratch, 2 * (int64_t)m->H, m->K);
        dtype_store(w->io, w->scratch, n, (char *)w->packed.host + b * n * w->io->bytes);
    }
}

static void fill_normal(workload *w, rng *r, tensor *t)
{
    const int64_t n = t->bytes / w->batch / w->io->bytes;
    for (int64_t b = 0; b < w->batch; b++) {
        for (int64_t i = 0; i < n; i++)
            w->scratch[i] = rng_normal(r);
        dtype_store(w->io, w->scratch, n, (char *)t->host + b * n * w->io->bytes);
    }
}

int workload_inputs(workload *w, int64_t layer, int64_t step)
{
    rng r = rng_stream(w->seed, (uint64_t)layer, (uint64_t)step);
    fill_packed(w, &r);
    fill_normal(w, &r, &w->gate);
    fill_normal(w, &r, &w->beta);
    return tensor_upload(&w->packed) | tensor_upload(&w->gate) | tensor_upload(&w->beta);
}

int workload_step_begin(workload *w)
{
    host *h = w->host;
    if (tensor_upload(&w->slots) != 0 || tensor_upload(&w->force) != 0)
        return host_refuse(h, "cannot copy to the device");
    rssm_step_begin_args args = {
        .struct_size = sizeof args, .slots = &w->slots.dl, .force_flush = &w->force.dl, .rows_out = &w->rows.dl};
    return host_check(h, h->api->step_begin(h->plugin, &args, &h->error), "step_begin");
}

rssm_decode_args workload_decode_args(const workload *w, int64_t layer, uint32_t flags)
{
    rssm_decode_args args = {.struct_size = sizeof args,
                             .tensors = w->tensors + layer * RSSM_T_COUNT,
                             .num_tensors = RSSM_T_COUNT,
                             .layer = (int32_t)layer,
                             .flags = flags};
    return args;
}

const DLTensor *workload_tensor(const workload *w, int64_t layer, int32_t role)
{
    return w->tensors[layer * RSSM_T_COUNT + role];
}
