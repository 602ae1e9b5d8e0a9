/* The short convolution on the host's side: which kernel, and how it is launched. */
#include "cuda/conv.h"

#include <stdbool.h>

#include "cuda/instance.h"

enum { MAX_GRID_Y = 65535, MIN_THREADS = 32 };

static int64_t size_of(int32_t dtype)
{
    return dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2;
}

/* Whether every row of 16- or 32-bit elements starts at a multiple of `bytes`. */
static bool starts_at(const void *data, int64_t row_elements, int32_t dtype, int64_t bytes)
{
    return (int64_t)((uintptr_t)data % (uintptr_t)bytes) == 0 && row_elements * size_of(dtype) % bytes == 0;
}

static uint32_t ring_bytes(const rssm_convolution *c)
{
    return (uint32_t)(c->conv_len * size_of(c->conv.dtype));
}

/* The shared memory of rssm_conv_pairs with so many threads, two channels each: rings and inputs of some rows. */
static int64_t pairs_bytes(const rssm_convolution *c, int64_t threads)
{
    int64_t tokens = c->max_T > 1 ? c->max_T : 1;
    return RSSM_CUDA_CONV_HEAD + RSSM_CUDA_CONV_STAGES * 2 * threads * (ring_bytes(c) + tokens * size_of(c->in.dtype));
}

/* What rssm_conv_pairs is made for. */
static bool fits_pairs(const rssm_convolution *c)
{
    int32_t io = c->in.dtype;
    return c->width == 4 && c->channels * size_of(io) % 16 == 0 && c->conv.dtype == io &&
           starts_at(c->in.data, c->in.row, io, 16) && starts_at(c->out, c->out_row, io, 2 * size_of(io)) &&
           starts_at(c->conv.data, c->conv.slot, io, 16) && pairs_bytes(c, MIN_THREADS) <= RSSM_CUDA_CONV_SHARED;
}

/* What rssm_conv4 is made for: besides, one token a row, three columns, outputs in 16-byte pieces, weights of the inputs' type. */
static bool fits_conv4(const rssm_convolution *c)
{
    int32_t io = c->in.dtype;
    if (!fits_pairs(c) || c->conv_len != 3 || c->max_T > 1 || c->weight.dtype != io ||
        (c->bias.data && c->bias.dtype != io))
        return false;
    return starts_at(c->out, c->out_row, io, 16) && starts_at(c->weight.data, 0, io, 16) &&
           starts_at(c->bias.data, 0, io, 16);
}

static rssm_cuda_launch launch4(const rssm_convolution *c)
{
    const uint32_t threads = RSSM_CUDA_CONV4_THREADS;
    int64_t channels = threads * 16 / size_of(c->in.dtype); /* of a block */
    return (rssm_cuda_launch){
        .grid = {(uint32_t)rssm_cuda_parts(c->channels, channels), rssm_cuda_at_most(c->B, MAX_GRID_Y),
                 (uint32_t)rssm_cuda_parts(c->B, MAX_GRID_Y)},
        .threads = threads,
        .smem = threads * RSSM_CUDA_CONV4_SHARED,
    };
}

/* As many blocks as run at once, each with its share of the rows. */
static rssm_cuda_launch launch_pairs(const rssm_cuda *cuda, const rssm_convolution *c)
{
    int64_t threads = RSSM_CUDA_CONV_PAIR_THREADS;
    while (pairs_bytes(c, threads) > RSSM_CUDA_CONV_SHARED)
        threads /= 2;
    int64_t smem = pairs_bytes(c, threads), across = rssm_cuda_parts(c->channels, 2 * threads);
    int64_t blocks = rssm_cuda_at_most(RSSM_CUDA_CONV_PAIR_BLOCKS * RSSM_CUDA_CONV_PAIR_THREADS / threads,
                                       cuda->shared_bytes / smem);
    int64_t most = cuda->multiprocessors * blocks / across;
    return (rssm_cuda_launch){
        .grid = {(uint32_t)across, rssm_cuda_at_most(c->B, rssm_cuda_at_most(most > 0 ? most : 1, MAX_GRID_Y)), 1},
        .threads = (uint32_t)threads,
        .smem = (uint32_t)smem,
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
    const rssm_cuda_launch how = kernel == RSSM_KERNEL_CONV4        ? launch4(conv)
                                 : kernel == RSSM_KERNEL_CONV_PAIRS ? launch_pairs(cuda, conv)
                                                                    : launch_any(conv);
    return conv->B ? rssm_cuda_run(ctx, kernel, &how, conv, stream, "launching the convolution", err) : RSSM_OK;
}
