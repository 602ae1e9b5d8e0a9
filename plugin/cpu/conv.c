/* The short causal convolution in front of the recurrence, for plain passes and windows alike (maths.md; rssm_conv.h).
 *
 * The unit of work is one row and one block of channels. The ring and the weights have a channel's columns side by side;
 * here they are turned, so that a block's channels are: x[t][channel] starts with the w - 1 inputs before the window, from
 * the oldest on, then come its tokens, and y_t takes x[t] .. x[t + w - 1]. Only then are the tokens' columns written. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "cpu/cpu.h"

enum { BLOCK = 256, CACHE_LINE = 64 }; /* channels; bytes */

/* One block of channels; the arrays lie in the worker's scratch. */
typedef struct block {
    const rssm_convolution *conv;
    rssm_worker *worker;
    int64_t channel; /* first */
    int64_t n;       /* channels, at most BLOCK */
    float *weight;   /* [w][BLOCK] */
    float *bias;     /* [BLOCK] */
    float *x;        /* [w - 1 + T][BLOCK] */
    float *y;        /* [BLOCK] */
    char *column;    /* [BLOCK] of the ring's type */
} block;

int64_t rssm_conv_scratch(rssm_cpu_dims dims)
{
    return dims.width > 0 ? (2 * dims.width - 1 + dims.T + 3) * BLOCK * (int64_t)sizeof(float) : 0;
}

static block make_block(rssm_worker *worker, const rssm_convolution *conv)
{
    block t = {.conv = conv, .worker = worker, .weight = worker->scratch};
    t.bias = t.weight + conv->width * BLOCK;
    t.y = t.bias + BLOCK;
    t.column = (char *)(t.y + BLOCK);
    t.x = t.y + 2 * BLOCK;
    return t;
}

/* dst[i][channel] = src[channel][i], w columns. The turned copy is made from x, which is free and large enough. */
static void take_weights(block *t, int64_t channel)
{
    const rssm_convolution *conv = t->conv;
    const rssm_input *weight = &conv->weight, *bias = &conv->bias;
    t->channel = channel;
    t->n = conv->channels - channel < BLOCK ? conv->channels - channel : BLOCK;
    int64_t width = conv->width, first = channel * width;
    const char *from = (const char *)weight->data + first * rssm_cpu_dtype_bytes(weight->dtype);
    rssm_cpu_load(t->worker->kernels, weight->dtype, t->x, from, t->n * width);
    for (int64_t i = 0; i < width; i++)
        for (int64_t c = 0; c < t->n; c++)
            t->weight[i * BLOCK + c] = t->x[c * width + i];
    memset(t->bias, 0, BLOCK * sizeof(float));
    if (bias->data)
        rssm_cpu_load(t->worker->kernels, bias->dtype, t->bias,
                      (const char *)bias->data + channel * rssm_cpu_dtype_bytes(bias->dtype), t->n);
}

/* Column 0 of the block's first channel in the slot's ring. */
static char *ring_of(const block *t, int64_t slot)
{
    const rssm_pooled *ring = &t->conv->conv;
    return (char *)ring->data +
           (slot * ring->slot + t->channel * t->conv->conv_len) * rssm_cpu_dtype_bytes(ring->dtype);
}

/* n elements: dst[i * dst_step] = src[i * src_step]. */
static void copy_strided(int32_t dtype, void *dst, int64_t dst_step, const void *src, int64_t src_step, int64_t n)
{
    if (dtype == RSSM_DTYPE_FLOAT32) {
        uint32_t *to = dst;
        const uint32_t *from = src;
        for (int64_t i = 0; i < n; i++)
            to[i * dst_step] = from[i * src_step];
        return;
    }
    uint16_t *to = dst;
    const uint16_t *from = src;
    for (int64_t i = 0; i < n; i++)
        to[i * dst_step] = from[i * src_step];
}

/* x[0 .. w - 2]: what came before the window, from the oldest on. */
static void read_history(const block *t, const rssm_row *row)
{
    const rssm_convolution *conv = t->conv;
    const char *ring = ring_of(t, row->slot);
    int64_t element = rssm_cpu_dtype_bytes(conv->conv.dtype), before = conv->width - 1;
    for (int64_t i = 0; i < before; i++) {
        int64_t column = (row->conv + conv->conv_len + i - before) % conv->conv_len;
        copy_strided(conv->conv.dtype, t->column, 1, ring + column * element, conv->conv_len, t->n);
        rssm_cpu_load(t->worker->kernels, conv->conv.dtype, t->x + i * BLOCK, t->column, t->n);
    }
}

/* The block's channels of a token, in inputs or outputs. */
static const char *input_of(const block *t, int64_t token)
{
    const rssm_input *in = &t->conv->in;
    return (const char *)in->data + (token * in->row + t->channel) * rssm_cpu_dtype_bytes(in->dtype);
}

static char *output_of(const block *t, int64_t token)
{
    const rssm_convolution *conv = t->conv;
    return (char *)conv->out + (token * conv->out_row + t->channel) * rssm_cpu_dtype_bytes(conv->in.dtype);
}

static void convolve_plainly(float *y, const float *x, const float *weight, const float *bias, int64_t width, int64_t n)
{
    for (int64_t c = 0; c < n; c++) {
        double sum = (double)bias[c];
        for (int64_t i = 0; i < width; i++)
            sum += (double)weight[i * BLOCK + c] * (double)x[i * BLOCK + c];
        y[c] = (float)(sum / (1 + exp(-sum)));
    }
}

static void do_token(const block *t, const rssm_row *row, int64_t j)
{
    const rssm_convolution *conv = t->conv;
    const rssm_cpu_kernels *kernels = t->worker->kernels;
    const float *x = t->x + j * BLOCK;
    rssm_cpu_load(kernels, conv->in.dtype, t->x + (conv->width - 1 + j) * BLOCK, input_of(t, row->start + j), t->n);
    if (kernels)
        kernels->convolve(t->y, x, t->weight, t->bias, conv->width, BLOCK, t->n);
    else
        convolve_plainly(t->y, x, t->weight, t->bias, conv->width, t->n);
    if (rssm_cpu_store(kernels, conv->in.dtype, output_of(t, row->start + j), t->y, t->n))
        t->worker->fault |= RSSM_FAULTBIT_OUTPUT;
}

/* The tokens' raw inputs become columns conv, conv + 1, .. of the ring. */
static void append_inputs(const block *t, const rssm_row *row)
{
    const rssm_convolution *conv = t->conv;
    int64_t element = rssm_cpu_dtype_bytes(conv->conv.dtype);
    for (int64_t j = 0; j < row->len; j++) {
        int64_t column = (row->conv + j) % conv->conv_len;
        copy_strided(conv->conv.dtype, ring_of(t, row->slot) + column * element, conv->conv_len,
                     input_of(t, row->start + j), 1, t->n);
    }
}

static void do_row(const block *t, const rssm_row *row)
{
    int64_t bytes = t->n * rssm_cpu_dtype_bytes(t->conv->in.dtype);
    if (row->slot < 0) {
        for (int64_t j = 0; j < row->len; j++)
            memset(output_of(t, row->start + j), 0, (size_t)bytes);
        return;
    }
    if (row->len > 0)
        read_history(t, row);
    for (int64_t j = 0; j < row->len; j++)
        do_token(t, row, j);
    append_inputs(t, row);
}

static void prefetch_bytes(const char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += CACHE_LINE)
        __builtin_prefetch(at + i, 1, 2);
}

/* Row after row of one block is a stride that the machine does not foresee: measured, twice as fast with this. */
static void prefetch_row(const block *t, const rssm_row *row)
{
    int64_t bytes = t->n * rssm_cpu_dtype_bytes(t->conv->in.dtype);
    if (row->slot >= 0)
        prefetch_bytes(ring_of(t, row->slot), bytes * t->conv->conv_len);
    for (int64_t j = 0; j < row->len; j++) {
        prefetch_bytes(input_of(t, row->start + j), bytes);
        prefetch_bytes(output_of(t, row->start + j), bytes);
    }
}

/* All units, in the order of blocks, then rows: a block's weights are turned once for all rows. */
typedef struct job {
    rssm_cpu *cpu;
    const rssm_convolution *conv;
    int64_t units;
    int32_t parts;
    int32_t pad_;
} job;

static void run_part(void *arg, int32_t part)
{
    const job *job = arg;
    const rssm_convolution *conv = job->conv;
    rssm_worker *worker = rssm_cpu_worker(job->cpu, part);
    block t = make_block(worker, conv);
    int64_t unit = job->units * part / job->parts, end = job->units * (part + 1) / job->parts, taken = -1;
    for (; unit < end; unit++) {
        int64_t channel = unit / conv->B * BLOCK, b = unit % conv->B;
        if (channel != taken)
            take_weights(&t, channel);
        taken = channel;
        rssm_row row = rssm_cpu_conv_row(conv, b, &worker->fault);
        if (b + 1 < conv->B) {
            rssm_row next = rssm_cpu_conv_row(conv, b + 1, &worker->fault);
            prefetch_row(&t, &next);
        }
        do_row(&t, &row);
    }
    rssm_fault_or(conv->fault, worker->fault);
}

rssm_status rssm_cpu_conv(void *ctx, const rssm_convolution *conv, void *stream, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    (void)stream;
    if (conv->width > cpu->dims.width || conv->max_T > cpu->dims.T || conv->in.dtype != conv->conv.dtype ||
        conv->conv_len < conv->width - 1 + (conv->max_T > 1 ? conv->max_T : 0))
        return rssm_fail(err, RSSM_ERR_INTERNAL,
                         "convolution of width %d, %d tokens, %d columns on a CPU instance made for %d, %d",
                         conv->width, conv->max_T, conv->conv_len, (int)cpu->dims.width, (int)cpu->dims.T);
    job job = {.cpu = cpu, .conv = conv, .units = (int64_t)(conv->channels + BLOCK - 1) / BLOCK * conv->B};
    int64_t bytes = (conv->tokens * 2 + (int64_t)conv->B * conv->conv_len + conv->width) * conv->channels *
                    rssm_cpu_dtype_bytes(conv->in.dtype);
    job.parts = rssm_cpu_parts(cpu, bytes);
    rssm_threads_run(cpu->threads, run_part, &job, job.parts);
    return RSSM_OK;
}
