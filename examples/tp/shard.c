#include "shard.h"

#include "../common/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shard_layer {
    float *in;                /* W_in [hidden][columns]  */
    float *out;               /* W_out [HV * V][hidden]  */
    tensor A_log, dt_bias, D; /* [HV], [HV * K] for KDA, else [HV]; [HV] */
    const DLTensor *roles[RSSM_T_COUNT];
};

/* ---- how an input row is cut by head ----------------------------------------------------------------------------- */

enum { BY_KEY_HEAD, BY_VALUE_HEAD };
enum { WIDE_K, WIDE_V, WIDE_1 };
enum { TO_PACKED, TO_GATE, TO_BETA };

/* A run of columns of W_in. Each is cut by head on its own: a slice of the whole packed row would mix them up. */
typedef struct piece {
    int to, by, width;
} piece;

enum { MAX_PIECES = 5 };

static const struct {
    int count;
    piece pieces[MAX_PIECES];
} families[] = {
    [RSSM_FAMILY_KDA] = {5, /* q, k, v, a, b */
                         {{TO_PACKED, BY_KEY_HEAD, WIDE_K},
                          {TO_PACKED, BY_KEY_HEAD, WIDE_K},
                          {TO_PACKED, BY_VALUE_HEAD, WIDE_V},
                          {TO_GATE, BY_VALUE_HEAD, WIDE_K},
                          {TO_BETA, BY_VALUE_HEAD, WIDE_1}}},
    [RSSM_FAMILY_GDN] = {5, /* q, k, v, a, b */
                         {{TO_PACKED, BY_KEY_HEAD, WIDE_K},
                          {TO_PACKED, BY_KEY_HEAD, WIDE_K},
                          {TO_PACKED, BY_VALUE_HEAD, WIDE_V},
                          {TO_GATE, BY_VALUE_HEAD, WIDE_1},
                          {TO_BETA, BY_VALUE_HEAD, WIDE_1}}},
    [RSSM_FAMILY_MAMBA2] = {4, /* x, B, C, dt */
                            {{TO_PACKED, BY_VALUE_HEAD, WIDE_V},
                             {TO_PACKED, BY_KEY_HEAD, WIDE_K},
                             {TO_PACKED, BY_KEY_HEAD, WIDE_K},
                             {TO_GATE, BY_VALUE_HEAD, WIDE_1}}},
};

static int64_t piece_width(const rssm_description *m, const piece *p)
{
    return p->width == WIDE_K ? m->K : p->width == WIDE_V ? m->V : 1;
}

static int64_t piece_heads(const rssm_description *m, const piece *p)
{
    return p->by == BY_KEY_HEAD ? m->H : m->HV;
}

/* In the whole model. */
static int64_t piece_first_head(const rssm_description *m, const piece *p)
{
    return p->by == BY_KEY_HEAD ? m->group_begin : m->head_begin;
}

/* Columns that go to one of the three tensors. */
static int64_t columns_to(const rssm_description *m, int to)
{
    int64_t columns = 0;
    for (int i = 0; i < families[m->family].count; i++) {
        const piece *p = &families[m->family].pieces[i];
        if (p->to == to)
            columns += piece_heads(m, p) * piece_width(m, p);
    }
    return columns;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* What is drawn for a head; pieces have the numbers below. */
enum { DRAW_OUT = MAX_PIECES, DRAW_A_LOG, DRAW_DT_BIAS, DRAW_D };

static rng draw(const shard *s, int32_t layer, int what, int64_t head)
{
    const uint64_t model_layer = (uint64_t)s->host.model.linear_layers[layer];
    return rng_stream(s->size.seed, model_layer << 8 | (uint64_t)what, (uint64_t)head);
}

static void fill_in(const shard *s, int32_t layer, float *in)
{
    const rssm_description *m = &s->host.model;
    const float scale = 1.0f / sqrtf((float)s->size.hidden);
    int64_t column = 0;
    for (int what = 0; what < families[m->family].count; what++) {
        const piece *p = &families[m->family].pieces[what];
        const int64_t width = piece_width(m, p);
        for (int64_t head = 0; head < piece_heads(m, p); head++, column += width) {
            rng r = draw(s, layer, what, piece_first_head(m, p) + head);
            for (int64_t i = 0; i < s->size.hidden; i++)
                for (int64_t j = 0; j < width; j++)
                    in[i * s->columns + column + j] = scale * rng_normal(&r);
        }
    }
}

static void fill_out(const shard *s, int32_t layer, float *out)
{
    const rssm_description *m = &s->host.model;
    const int64_t block = m->V * s->size.hidden;
    const float scale = 1.0f / sqrtf((float)m->model_HV * (float)m->V);
    for (int64_t head = 0; head < m->HV; head++) {
        rng r = draw(s, layer, DRAW_OUT, m->head_begin + head);
        for (int64_t i = 0; i < block; i++)
            out[head * block + i] = scale * rng_normal(&r);
    }
}

static float random_A_log(rng *r)
{
    return logf(1.0f + 15.0f * rng_uniform(r));
}

/* The bias whose softplus is a step between 0.001 and 0.1, evenly in the logarithm (Mamba's initialisation). */
static float random_dt_bias(rng *r)
{
    float step = expf(logf(0.001f) + rng_uniform(r) * (logf(0.1f) - logf(0.001f)));
    return step + logf(-expm1f(-step));
}

static float random_D(rng *r)
{
    return 1.0f + 0.1f * rng_normal(r);
}

/* A float32 weight with `width` numbers for each head. */
static int make_weight(shard *s, int32_t layer, tensor *t, int what, int64_t width, float (*number)(rng *))
{
    const rssm_description *m = &s->host.model;
    if (tensor_create(t, &s->dev, dtype_find(RSSM_DTYPE_FLOAT32)->dl, 1, (int64_t[]){m->HV * width}) != 0)
        return -1;
    float *values = t->host;
    for (int64_t head = 0; head < m->HV; head++) {
        rng r = draw(s, layer, what, m->head_begin + head);
        for (int64_t i = 0; i < width; i++)
            values[head * width + i] = number(&r);
    }
    return 0;
}

static int make_weights(shard *s, int32_t layer)
{
    const rssm_description *m = &s->host.model;
    shard_layer *l = &s->layers[layer];
    l->in = calloc((size_t)(s->size.hidden * s->columns), sizeof *l->in);
    l->out = calloc((size_t)(m->HV * m->V * s->size.hidden), sizeof *l->out);
    if (l->in == NULL || l->out == NULL)
        return -1;
    fill_in(s, layer, l->in);
    fill_out(s, layer, l->out);
    int failed = make_weight(s, layer, &l->A_log, DRAW_A_LOG, 1, random_A_log);
    failed |= make_weight(s, layer, &l->dt_bias, DRAW_DT_BIAS, columns_to(m, TO_GATE) / m->HV, random_dt_bias);
    failed |= make_weight(s, layer, &l->D, DRAW_D, 1, random_D);
    return failed;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int make_step_tensors(shard *s)
{
    const rssm_description *m = &s->host.model;
    const int64_t B = s->size.batch;
    const DLDataType io = dtype_find(m->io_dtype)->dl;
    int failed = tensor_create(&s->packed, &s->dev, io, 2, (int64_t[]){B, columns_to(m, TO_PACKED)});
    if (m->family == RSSM_FAMILY_KDA)
        failed |= tensor_create(&s->gate, &s->dev, io, 3, (int64_t[]){B, m->HV, m->K});
    else
        failed |= tensor_create(&s->gate, &s->dev, io, 2, (int64_t[]){B, m->HV});
    failed |= tensor_create(&s->beta, &s->dev, io, 2, (int64_t[]){B, columns_to(m, TO_BETA)});
    failed |= tensor_create(&s->out, &s->dev, io, 3, (int64_t[]){B, m->HV, m->V});
    failed |= tensor_create(&s->slots, &s->dev, tensor_int32(), 1, &B);
    failed |= tensor_create(&s->rows, &s->dev, tensor_int32(), 2, (int64_t[]){B, RSSM_ROW_WIDTH});
    s->y = calloc((size_t)(B * s->size.hidden), sizeof *s->y);
    s->scratch = calloc((size_t)(2 * s->size.hidden + s->columns + m->V), sizeof *s->scratch);
    return failed || s->y == NULL || s->scratch == NULL ? -1 : 0;
}

static int bind_layer(shard *s, int32_t layer)
{
    host *h = &s->host;
    shard_layer *l = &s->layers[layer];
    const int mamba = h->model.family == RSSM_FAMILY_MAMBA2;
    l->roles[mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV] = &s->packed.dl;
    l->roles[mamba ? RSSM_T_DT : RSSM_T_A] = &s->gate.dl;
    l->roles[RSSM_T_B] = mamba ? NULL : &s->beta.dl;
    l->roles[RSSM_T_D] = mamba ? &l->D.dl : NULL;
    l->roles[RSSM_T_A_LOG] = &l->A_log.dl;
    l->roles[RSSM_T_DT_BIAS] = &l->dt_bias.dl;
    l->roles[RSSM_T_OUT] = &s->out.dl;
    l->roles[RSSM_T_ROWS] = &s->rows.dl;
    return host_check(h, h->api->pool_tensors(h->plugin, layer, l->roles, RSSM_T_COUNT, &h->error), "pool_tensors");
}

int shard_open(shard *s, const char *program, const char *plugin, const rssm_init_args *init, const shard_size *size)
{
    *s = (shard){.size = *size, .host = {.program = program}};
    int code = host_load(&s->host, plugin);
    if (code == EXIT_OK)
        code = device_open(&s->dev, "cpu", &s->host);
    if (code == EXIT_OK)
        code = host_init(&s->host, init);
    if (code == EXIT_OK)
        code = host_ready(&s->host);
    if (code != EXIT_OK)
        return code;
    const rssm_description *m = &s->host.model;
    s->columns = columns_to(m, TO_PACKED) + columns_to(m, TO_GATE) + columns_to(m, TO_BETA);
    s->layers = calloc((size_t)m->num_linear_layers, sizeof *s->layers);
    if (s->layers == NULL || make_step_tensors(s) != 0)
        return host_refuse(&s->host, "no memory for the inputs");
    for (int32_t layer = 0; layer < m->num_linear_layers && code == EXIT_OK; layer++)
        code = make_weights(s, layer) == 0 ? bind_layer(s, layer) : host_refuse(&s->host, "no memory for the weights");
    return code;
}

void shard_close(shard *s)
{
    tensor *step[] = {&s->packed, &s->gate, &s->beta, &s->out, &s->slots, &s->rows};
    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++)
        tensor_free(step[i]);
    for (int32_t i = 0; s->layers != NULL && i < s->host.model.num_linear_layers; i++) {
        shard_layer *l = &s->layers[i];
        tensor_free(&l->A_log);
        tensor_free(&l->dt_bias);
        tensor_free(&l->D);
        free(l->in);
        free(l->out);
    }
    free(s->layers);
    free(s->y);
    free(s->scratch);
    host_close(&s->host);
    device_close(&s->dev);
    *s = (shard){.layers = NULL};
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

void shard_embed(const shard_size *size, int64_t step, float *x)
{
    rng r = rng_stream(size->seed, UINT64_MAX, (uint64_t)step);
    for (int64_t i = 0; i < size->batch * size->hidden; i++)
        x[i] = rng_normal(&r);
}

int shard_begin(shard *s, int64_t step)
{
    host *h = &s->host;
    int32_t *slots = s->slots.host;
    for (int64_t b = 0; b < s->size.batch; b++)
        slots[b] = step < b ? -1 : (int32_t)(s->size.batch - b); /* slot 0 stays free */
    rssm_step_begin_args args = {.struct_size = sizeof args, .slots = &s->slots.dl, .rows_out = &s->rows.dl};
    return host_check(h, h->api->step_begin(h->plugin, &args, &h->error), "step_begin");
}

/* y[m] += x[n] W[n][m]. Each column's sum has the same order whatever m is. */
static void multiply_add(const float *x, int64_t n, const float *W, int64_t m, float *y)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            y[j] += x[i] * W[i * m + j];
}

static void normalise(const float *x, int64_t n, float *u)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const float scale = 1.0f / sqrtf(sum / (float)n + 1e-6f);
    for (int64_t i = 0; i < n; i++)
        u[i] = scale * x[i];
}

/* Row b of the three inputs. */
static void project_in(shard *s, const shard_layer *l, int64_t b, const float *x)
{
    const dtype_info *io = dtype_find(s->host.model.io_dtype);
    tensor *inputs[] = {&s->packed, &s->gate, &s->beta};
    float *u = s->scratch, *columns = u + s->size.hidden;
    normalise(x + b * s->size.hidden, s->size.hidden, u);
    memset(columns, 0, (size_t)s->columns * sizeof *columns);
    multiply_add(u, s->size.hidden, l->in, s->columns, columns);
    for (int i = 0; i < 3; i++) {
        const int64_t n = columns_to(&s->host.model, i);
        dtype_store(io, columns, n, (char *)inputs[i]->host + b * n * io->bytes);
        columns += n;
    }
}

static float element(const dtype_info *type, const void *at, int64_t i)
{
    double value;
    dtype_load(type, (const char *)at + i * type->bytes, 1, &value);
    return (float)value;
}

/* Row b of y, head by head: short sums lose less. */
static void project_out(shard *s, const shard_layer *l, int64_t b)
{
    const rssm_description *m = &s->host.model;
    const dtype_info *io = dtype_find(m->io_dtype);
    const int64_t hidden = s->size.hidden;
    float *values = s->scratch, *share = values + m->V, *y = s->y + b * hidden;
    memset(y, 0, (size_t)hidden * sizeof *y);
    for (int64_t head = 0; head < m->HV; head++) {
        for (int64_t i = 0; i < m->V; i++)
            values[i] = element(io, s->out.host, (b * m->HV + head) * m->V + i);
        memset(share, 0, (size_t)hidden * sizeof *share);
        multiply_add(values, m->V, l->out + head * m->V * hidden, hidden, share);
        for (int64_t i = 0; i < hidden; i++)
            y[i] += share[i];
    }
}

int shard_decode(shard *s, int32_t layer, const float *x)
{
    host *h = &s->host;
    const shard_layer *l = &s->layers[layer];
    for (int64_t b = 0; b < s->size.batch; b++)
        project_in(s, l, b, x);
    rssm_decode_args args = {
        .struct_size = sizeof args, .tensors = l->roles, .num_tensors = RSSM_T_COUNT, .layer = layer};
    int code = host_check(h, h->api->decode(h->plugin, &args, &h->error), "decode");
    for (int64_t b = 0; b < s->size.batch && code == EXIT_OK; b++)
        project_out(s, l, b);
    return code;
}

void shard_add(const shard_size *size, float *x, const float *y)
{
    for (int64_t i = 0; i < size->batch * size->hidden; i++)
        x[i] += y[i];
}
