/* The short convolution on the host's side: which kernel, and how it is launched. */
#include "cuda/conv.h"

#include <stdbool.h>

#include "cuda/instance.h"

/* Blocks per multiprocessor beyond which a block of rssm_conv4 does several rows. */
enum { CONV4_BLOCKS = 24, MAX_GRID_Y = 65535 };

/* Whether every row of 16- or 32-bit elements starts at a multiple of `bytes`. */
static bool starts_at(const void *data, int64_t row_elements, int32_t dtype, int64_t bytes)
{
    int64_t size = dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2;
    return (int64_t)((uintptr_t)data % (uintptr_t)bytes) == 0 && row_elements * size % bytes == 0;
}

static uint32_t ring_bytes(const rssm_convolution *c)
{
    return (uint32_t)c->conv_len * (c->conv.dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2);
}

/* What rssm_conv_pairs is made for. */
static bool fits_pairs(const rssm_convolution *c)
{
    int32_t io = c->in.dtype;
    int64_t pair = io == RSSM_CUDA_DTYPE_f32 ? 8 : 4;
    return c->width == 4 && c->channels % 2 == 0 && c->conv.dtype == io && starts_at(c->in.data, c->in.row, io, pair) &&
           starts_at(c->out, c->out_row, io, pair) && starts_at(c->conv.data, c->conv.slot, io, 16) &&
           2 * RSSM_CUDA_CONV_THREADS * ring_bytes(c) <= RSSM_CUDA_CONV_SHARED;
}

/* What rssm_conv4 is made for: besides, one token a row, three columns, and weights of the inputs' 16-bit type. */
static bool fits_conv4(const rssm_convolution *c)
{
    int32_t io = c->in.dtype;
    if (!fits_pairs(c) || c->conv_len != 3 || c->max_T > 1 || c->channels % RSSM_CUDA_CONV4_CHANNELS ||
        io == RSSM_CUDA_DTYPE_f32 || c->weight.dtype != io || (c->bias.data && c->bias.dtype != io))
        return false;
    return starts_at(c->in.data, c->in.row, io, 16) && starts_at(c->out, c->out_row, io, 16) &&
           starts_at(c->weight.data, 0, io, 16) && starts_at(c->bias.data, 0, io, 16);
}

static uint32_t row_blocks(const rssm_cuda *cuda, int64_t B, int64_t across)
{
    int64_t most = rssm_cuda_parts((int64_t)cuda->multiprocessors * CONV4_BLOCKS, across);
    return rssm_cuda_at_most(B < most ? B : rssm_cuda_parts(B, rssm_cuda_parts(B, most)), MAX_GRID_Y);
}

/* Small batches take small blocks: more multiprocessors then ask at once. */
static rssm_cuda_launch launch4(const rssm_cuda *cuda, const rssm_convolution *c)
{
    int64_t work = (int64_t)c->B * c->channels / (RSSM_CUDA_CONV_THREADS * RSSM_CUDA_CONV4_CHANNELS);
    uint32_t threads = work < 2 * (int64_t)cuda->multiprocessors ? 32 : RSSM_CUDA_CONV_THREADS;
    int64_t across = rssm_cuda_parts(c->channels, threads * RSSM_CUDA_CONV4_CHANNELS);
    return (rssm_cuda_launch){.grid = {(uint32_t)across, row_blocks(cuda, c->B, across), 1}, .threads = threads};
}

static rssm_cuda_launch launch_pairs(const rssm_convolution *c)
{
    int64_t across = rssm_cuda_parts(c->channels, 2 * RSSM_CUDA_CONV_THREADS);
    return (rssm_cuda_launch){
        .grid = {(uint32_t)across, rssm_cuda_at_most(c->B, MAX_GRID_Y), 1},
        .threads = RSSM_CUDA_CONV_THREADS,
        .smem = 2 * RSSM_CUDA_CONV_THREADS * ring_bytes(c),
    };
}

static rssm_cuda_launch launch_any(const rssm_convolution *c)
{
    uint32_t threads = RSSM_CUDA_CONV_THREADS;
    while (threads * ring_bytes(c) > RSSM_CUDA_CONV_SHARED)
        threads /= 2;
    int64_t across = rssm_cuda_parts(c->channels, threads);
    return (rssm_cuda_launch){
        .grid = {(uint32_t)across, rssm_cuda_at_most(c->B, MAX_GRID_Y), 1},
        .threads = threads,
        .smem = threads * ring_bytes(c),
    };
}

rssm_status rssm_cuda_conv(void *ctx, const rssm_convolution *conv, void *stream, rssm_error *err)
{
    const rssm_cuda *cuda = ctx;
    const int kernel = fits_conv4(conv)   ? RSSM_KERNEL_CONV4
                       : fits_pairs(conv) ? RSSM_KERNEL_CONV_PAIRS
                                          : RSSM_KERNEL_CONV;
    const rssm_cuda_launch how = kernel == RSSM_KERNEL_CONV4        ? launch4(cuda, conv)
                                 : kernel == RSSM_KERNEL_CONV_PAIRS ? launch_pairs(conv)
                                                                    : launch_any(conv);
    return conv->B ? rssm_cuda_run(ctx, kernel, &how, conv, stream, "launching the convolution", err) : RSSM_OK;
}
