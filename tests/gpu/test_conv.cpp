/* The short convolution's kernels, compiled for the host and launched by the code that launches them on a GPU, against the
 * formula in double: every kernel, every dtype, plain passes and windows, rows that are padding or out of range, batches of more
 * rows than the grid (block.h). What may not be read is NaN, and every byte of the pool and of the outputs is accounted for. */
#include "gpu/block.h"

#undef __shared__
#define __shared__ /* rings, below */

#include "cuda/conv.cu"
#include "gpu/numbers.h"

extern "C" {
#include "cuda/conv.h"
#include "cuda/instance.h"
}

alignas(128) unsigned char rings[RSSM_CUDA_CONV_SHARED]; /* conv.cu's shared memory */

template <void (*KERNEL)(const rssm_convolution)> static void call(const void *args)
{
    KERNEL(*static_cast<const rssm_convolution *>(args));
}

struct kernel {
    int number;
    const char *name;
    void (*run)(const void *);
    int launches;
};
static kernel kernels[] = {{RSSM_KERNEL_CONV, "rssm_conv", call<rssm_conv>, 0},
                           {RSSM_KERNEL_CONV4, "rssm_conv4", call<rssm_conv4>, 0},
                           {RSSM_KERNEL_CONV_PAIRS, "rssm_conv_pairs", call<rssm_conv_pairs>, 0}};

static int failed;

static bool starts_at(const void *data, int64_t row, int dtype, int bytes)
{
    return (uintptr_t)data % bytes == 0 && row * (dtype == F32 ? 4 : 2) % bytes == 0;
}

/* Whether a GPU could load and store as the kernel does. */
static bool is_aligned(int kernel, const rssm_convolution &a)
{
    const int io = a.in.dtype, out = kernel == RSSM_KERNEL_CONV4 ? 16 : io == F32 ? 8 : 4;
    if (kernel == RSSM_KERNEL_CONV)
        return true;
    if (kernel == RSSM_KERNEL_CONV4 && !(starts_at(a.weight.data, 0, io, 16) && starts_at(a.bias.data, 0, io, 16)))
        return false;
    return starts_at(a.conv.data, a.conv.slot, io, 16) && starts_at(a.in.data, a.in.row, io, 16) &&
           starts_at(a.out, a.out_row, io, out) && starts_at(NULL, a.channels, io, 16);
}

extern "C" rssm_status rssm_cuda_run(rssm_cuda *, int kernel, const rssm_cuda_launch *how, const void *args, void *,
                                     const char *, rssm_error *)
{
    if (how->threads > MOST_THREADS || how->smem > sizeof rings) {
        printf("a launch of %u threads, %u bytes\n", how->threads, how->smem);
        failed++;
        return RSSM_OK;
    }
    failed += !is_aligned(kernel, *(const rssm_convolution *)args);
    for (struct kernel &k : kernels)
        if (k.number == kernel)
            work = k.run, k.launches++;
    work_args = args;
    blockDim.x = how->threads;
    gridDim = {how->grid[0], how->grid[1], how->grid[2]};
    if (kernel == RSSM_KERNEL_CONV4 && gridDim.y > 4) /* as if a grid ended there: the rest in z */
        gridDim.z = (gridDim.y + 3) / 4, gridDim.y = 4;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
                memset(rings, 0xff, sizeof rings);
                run_block(how->threads);
            }
    return RSSM_OK;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static double get(const void *p, int64_t i, int dtype)
{
    return load_any(p, i, dtype);
}

/* About -2 .. 2. */
static void put_random(void *p, int64_t i, int dtype)
{
    bool hit = false;
    store_any(p, i, (float)((double)(draw() >> 40) / (1 << 22) - 2), dtype, &hit);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

/* Arrays are bytes, 0xff (NaN) where nothing was put; each begins `shift` elements behind a boundary of 256 bytes. */
struct array {
    std::vector<unsigned char> room;
    size_t at;

    void make(int64_t elements, int dtype, int shift)
    {
        room.assign((size_t)(elements * bytes_of(dtype)) + 512, 0xff);
        at = 256 - (uintptr_t)room.data() % 256 + (size_t)(shift * bytes_of(dtype));
    }
    unsigned char *data()
    {
        return room.data() + at;
    }
};

/* What a case is made of; the rest is drawn. */
struct wish {
    int io, channels, width, drafts, max_T, B;
    int shift; /* elements by which some of the arrays are off their boundaries */
    bool other_weights;
};

struct test_case {
    rssm_convolution a;
    array in, weight, bias, out, pool, rows;
    std::vector<double> exact; /* [tokens, channels]; NaN: not written */
    uint32_t fault, expected_fault;
};

enum row_kind { LIVE, PADDING, BAD_CURSOR, BAD_WINDOW };

/* Column i of a channel's ring. */
static int64_t column_at(const rssm_convolution &a, int64_t slot, int64_t channel, int i)
{
    return slot * a.conv.slot + channel * a.conv_len + (i % a.conv_len + a.conv_len) % a.conv_len;
}

static int some_shift(const wish &w)
{
    return draw() % 3 == 0 ? w.shift : 0;
}

static void make_weights(test_case *c, const wish &w)
{
    rssm_convolution &a = c->a;
    const int dtype = w.other_weights ? between(F32, F16) : w.io, bias = w.other_weights ? between(F32, F16) : w.io;
    c->weight.make(w.channels * w.width, dtype, some_shift(w)), c->bias.make(w.channels, bias, some_shift(w));
    for (int64_t i = 0; i < w.channels * w.width; i++)
        put_random(c->weight.data(), i, dtype);
    for (int64_t i = 0; i < w.channels; i++)
        put_random(c->bias.data(), i, bias);
    a.weight = {c->weight.data(), 0, dtype, 0};
    if (draw() % 2)
        a.bias = {c->bias.data(), 0, bias, 0};
}

static void make_shapes(test_case *c, const wish &w)
{
    rssm_convolution &a = c->a = {};
    a.B = w.B, a.channels = w.channels, a.width = w.width, a.max_T = w.max_T;
    a.conv_len = w.width - 1 + (w.drafts ? w.drafts + 1 : 0);
    a.S = w.B + 2, a.pad_slot = draw() % 2 ? 0 : -1, a.tokens = w.B * w.max_T;
    make_weights(c, w);
    const int64_t row = draw() % 2 ? w.channels : (w.channels + 15) / 8 * 8;
    a.in.row = row + some_shift(w), a.out_row = row + some_shift(w), a.in.dtype = w.io;
    c->in.make(a.tokens * a.in.row, w.io, some_shift(w)), c->out.make(a.tokens * a.out_row, w.io, some_shift(w));
    a.in.data = c->in.data(), a.out = c->out.data();
    a.conv.slot = ((int64_t)w.channels * a.conv_len + 7) / 8 * 8 + 8 * (draw() % 2) + some_shift(w);
    c->pool.make(a.S * a.conv.slot, w.io, some_shift(w));
    a.conv.data = c->pool.data(), a.conv.dtype = w.io;
    a.rows_row = 9;
    c->rows.make(w.B * a.rows_row, F32, 0);
    a.rows = (const int32_t *)c->rows.data(), a.fault = &c->fault;
}

/* y of token j of a live row. */
static double exact_output(const test_case &c, const int32_t *row, int j, int64_t channel)
{
    const rssm_convolution &a = c.a;
    double y = a.bias.data ? get(a.bias.data, channel, a.bias.dtype) : 0;
    for (int i = 0; i < a.width; i++) {
        const double x = i <= j ? get(a.in.data, (row[5] + j - i) * a.in.row + channel, a.in.dtype)
                                : get(a.conv.data, column_at(a, row[0], channel, row[4] + j - i), a.conv.dtype);
        y += x * get(a.weight.data, channel * a.width + a.width - 1 - i, a.weight.dtype);
    }
    return y / (1 + exp(-y));
}

/* Row b: its numbers, inputs and history, and what must come of them. */
static void make_row(test_case *c, int b, int start, int len)
{
    const rssm_convolution &a = c->a;
    int32_t *const row = (int32_t *)c->rows.data() + b * a.rows_row;
    row_kind kind = (row_kind)(draw() % 8 < 5 ? LIVE : between(PADDING, a.max_T > 1 ? BAD_WINDOW : BAD_CURSOR));
    const int32_t numbers[8] = {b + 1, 0, 0, 0, between(0, a.conv_len - 1), start, len, 0};
    memcpy(row, numbers, sizeof numbers);
    if (kind == PADDING)
        row[0] = a.pad_slot == 0 && draw() % 2 ? 0 : draw() % 2 ? -1 : (int32_t)a.S;
    if (kind == BAD_CURSOR)
        row[4] = draw() % 2 ? -1 : a.conv_len, c->expected_fault |= RSSM_FAULTBIT_CURSOR;
    if (kind == BAD_WINDOW) {
        row[draw() % 2 ? 6 : 5] = draw() % 2 ? -1 : INT32_MAX;
        c->expected_fault |= RSSM_FAULTBIT_SEQLENS;
        return;
    }
    for (int64_t ch = 0; kind == LIVE && ch < a.channels; ch++) {
        for (int i = 1; i < a.width; i++)
            put_random(a.conv.data, column_at(a, row[0], ch, row[4] - i), a.conv.dtype);
        for (int j = 0; j < len; j++)
            put_random(c->in.data(), (start + j) * a.in.row + ch, a.in.dtype);
    }
    for (int j = 0; j < len; j++)
        for (int64_t ch = 0; ch < a.channels; ch++)
            c->exact[(size_t)((start + j) * a.channels + ch)] = kind == LIVE ? exact_output(*c, row, j, ch) : 0;
}

static void make_case(test_case *c, const wish &w)
{
    make_shapes(c, w);
    c->fault = c->expected_fault = 0;
    c->exact.assign((size_t)(c->a.tokens * c->a.channels), NAN);
    for (int b = 0, start = 0; b < w.B; b++) {
        const int len = w.max_T > 1 ? between(0, w.max_T) : 1;
        make_row(c, b, start, len);
        start += len;
    }
}

/* The pool as it must be: tokens in their columns, bit for bit. */
static void put_tokens(test_case *c, unsigned char *pool)
{
    const rssm_convolution &a = c->a;
    const int e = bytes_of(a.conv.dtype);
    for (int b = 0; b < a.B; b++) {
        const int32_t *const row = a.rows + b * a.rows_row;
        const bool live = row[0] > 0 && row[0] < a.S && row[4] >= 0 && row[4] < a.conv_len && row[5] >= 0 &&
                          row[6] >= 0 && row[6] <= a.max_T && (int64_t)row[5] + row[6] <= a.tokens;
        for (int j = 0; live && j < row[6]; j++)
            for (int64_t ch = 0; ch < a.channels; ch++)
                memcpy(pool + column_at(a, row[0], ch, row[4] + j) * e,
                       c->in.data() + ((row[5] + j) * a.in.row + ch) * e, (size_t)e);
    }
}

/* Half an ulp of a 16-bit dtype and the float32 sum's error. */
static bool is_near(double got, double exact, int dtype)
{
    const double ulp = dtype == BF16 ? 0x1p-8 : dtype == F16 ? 0x1p-11 : 0;
    return fabs(got - exact) <= ulp * fabs(exact) * 1.001 + (dtype == F16 ? 0x1p-25 : 0) + 8e-6;
}

static int wrong_outputs(test_case *c)
{
    const rssm_convolution &a = c->a;
    int wrong = 0;
    for (int64_t t = 0; t < a.tokens; t++)
        for (int64_t i = 0; i < a.out_row && t * a.out_row + i < a.tokens * a.out_row; i++) {
            const double exact = i < a.channels ? c->exact[(size_t)(t * a.channels + i)] : NAN;
            const double got = get(a.out, t * a.out_row + i, a.in.dtype);
            wrong += std::isnan(exact) ? !std::isnan(got) : exact == 0 ? got != 0 : !is_near(got, exact, a.in.dtype);
        }
    return wrong;
}

static void one_case(const wish &w, int round)
{
    test_case c;
    make_case(&c, w);
    std::vector<unsigned char> pool = c.pool.room;
    put_tokens(&c, pool.data() + c.pool.at);
    rssm_cuda cuda = {};
    cuda.multiprocessors = draw() % 2 ? 1 : 132, cuda.shared_bytes = 99 << 10;
    if (rssm_cuda_conv(&cuda, &c.a, NULL, NULL) != RSSM_OK)
        failed++;
    const int wrong = wrong_outputs(&c);
    if (c.fault == c.expected_fault && pool == c.pool.room && !wrong)
        return;
    failed++;
    printf("round %d, io %d, %d channels, width %d, %d drafts, max_T %d, B %d, shift %d: %d outputs wrong, pool %s, "
           "faults %u, expected %u\n",
           round, w.io, w.channels, w.width, w.drafts, w.max_T, w.B, w.shift, wrong,
           pool == c.pool.room ? "right" : "wrong", (unsigned)c.fault, (unsigned)c.expected_fault);
}

static wish draw_wish()
{
    static const int drafts[] = {0, 0, 1, 3, 7};
    wish w = {};
    w.io = between(F32, F16);
    w.drafts = drafts[draw() % 5];
    w.max_T = w.drafts && draw() % 2 ? w.drafts + 1 : 1;
    w.width = draw() % 8 ? 4 : between(2, 9);
    w.channels = draw() % 3 ? 8 * between(1, 70) : between(1, 300);
    w.B = draw() % 4 ? between(1, 6) : between(7, 40);
    w.shift = draw() % 3 ? 0 : between(1, 4);
    w.other_weights = draw() % 3 == 0;
    return w;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 400;
    for (int round = 0; round < rounds; round++) {
        seed = (uint64_t)round * 7919;
        one_case(draw_wish(), round);
    }
    for (const kernel &k : kernels) {
        printf("%s: %d launches\n", k.name, k.launches);
        failed += k.launches < rounds / 20;
    }
    printf("%d rounds, %d failed\n", rounds, failed);
    return failed != 0;
}
