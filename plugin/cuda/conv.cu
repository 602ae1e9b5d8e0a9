/* The short convolution in front of the recurrence, y_t = silu(bias + sum over i < w of weight[w-1-i] x_{t-i}), with the inputs
 * x_{t-1}, x_{t-2}, ... in a ring of the slot: conv[slot, channel, column], token t of a row at column conv + t.
 *
 * A thread owns its channels' rings: nothing it writes is read by another. x = channels, y = rows: neighbouring blocks work on
 * neighbouring memory.
 */
#include "cuda/conv.h"
#include "step_math.cuh"

/* The tokens of a row, and what they mean. */
struct conv_row {
    int64_t slot, start; /* first token */
    int len, column;     /* tokens; where the first of them goes in the ring */
    bool live;           /* false: outputs are zeros */
};

DEVICE void conv_fault(const rssm_convolution &a, uint32_t bit)
{
    if (a.fault && threadIdx.x == 0 && blockIdx.x == 0)
        atomicOr(a.fault, bit);
}

/* Row b: its slot, position and window. Tokens out of range are none at all, since a part of them may be another row's. */
DEVICE conv_row judge_row(const rssm_convolution &a, int64_t b)
{
    const int32_t *const row = a.rows + b * a.rows_row;
    const int32_t slot = row[0], column = row[4];
    const bool plain = a.max_T <= 1;
    const int32_t start = plain ? (int32_t)b : row[5], len = plain ? 1 : row[6];
    const bool here = slot >= 0 && slot < a.S && slot != a.pad_slot, sane = column >= 0 && column < a.conv_len;
    const bool live = here && sane;
    if (here && !sane)
        conv_fault(a, RSSM_FAULTBIT_CURSOR);
    conv_row r = {slot, start, len, column, live};
    if (start < 0 || len < 0 || len > max(a.max_T, 1) || start + (int64_t)len > a.tokens) {
        conv_fault(a, RSSM_FAULTBIT_SEQLENS);
        r.len = 0;
    }
    return r;
}

DEVICE float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* The same with the short exponential and division: within 1e-6 of |x|, and what they get wrong is below 1e-36. */
DEVICE float fast_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* ---- any width, any type ---------------------------------------------------------------------------------------- */

/* n bytes into shared memory by all threads of the block, in 16-byte pieces where the address allows. */
DEVICE void stage(unsigned char *to, const unsigned char *from, int bytes)
{
    const int vectors = (uintptr_t)from % 16 == 0 ? bytes / 16 : 0;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (int i = vectors * 8 + threadIdx.x; i < bytes / 2; i += blockDim.x)
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
}

/* One channel's window. ring: its columns, in shared memory; keep: the same in the pool. */
struct channel {
    int64_t ch;
    unsigned char *ring;
    int64_t keep;
};

/* The i-th column before `at`. */
DEVICE int column_before(int at, int i, int columns)
{
    return at >= i ? at - i : at - i + columns;
}

/* weight[i], of x_{t-w+1+i}; the first RSSM_CUDA_CONV_TAPS of them in registers. */
DEVICE float weight_at(const rssm_convolution &a, const channel &c, int i)
{
    return load_any(a.weight.data, c.ch * a.width + i, a.weight.dtype);
}

/* bias, and the taps of the w - 1 inputs before the token at column `at`, the oldest first. */
DEVICE float older_taps(const rssm_convolution &a, const channel &c, const float *w, float bias, int at)
{
    const int older = a.width - 1;
    float y = bias;
#pragma unroll
    for (int i = 0; i < RSSM_CUDA_CONV_TAPS; ++i)
        if (i < older)
            y += w[i] * load_any(c.ring, column_before(at, older - i, a.conv_len), a.conv.dtype);
    for (int i = RSSM_CUDA_CONV_TAPS; i < older; ++i)
        y += weight_at(a, c, i) * load_any(c.ring, column_before(at, older - i, a.conv_len), a.conv.dtype);
    return y;
}

/* Inputs go to the ring as they are, bit for bit. */
DEVICE void store_raw(void *p, int64_t i, uint32_t raw, int dtype)
{
    if (is_half_width(dtype))
        ((uint16_t *)p)[i] = (uint16_t)raw;
    else
        ((uint32_t *)p)[i] = raw;
}

DEVICE void convolve(const rssm_convolution &a, const conv_row &r, const channel &c)
{
    float w[RSSM_CUDA_CONV_TAPS];
#pragma unroll
    for (int i = 0; i < RSSM_CUDA_CONV_TAPS; ++i)
        w[i] = i < a.width - 1 ? weight_at(a, c, i) : 0.0f;
    const float newest = weight_at(a, c, a.width - 1);
    const float bias = a.bias.data ? load_any(a.bias.data, c.ch, a.bias.dtype) : 0.0f;
    bool hit = false;
    int at = r.column;
    for (int j = 0; j < r.len; ++j) {
        const uint32_t raw = load_raw(a.in.data, (r.start + j) * a.in.row + c.ch, a.in.dtype);
        const float y = older_taps(a, c, w, bias, at) + newest * widen(raw, a.in.dtype);
        store_any(a.out, (r.start + j) * a.out_row + c.ch, silu(y), a.in.dtype, &hit);
        store_raw(c.ring, at, raw, a.conv.dtype);
        store_raw(a.conv.data, c.keep + at, raw, a.conv.dtype);
        at = at + 1 == a.conv_len ? 0 : at + 1;
    }
    if (hit && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_OUTPUT);
}

DEVICE void zero_row(const rssm_convolution &a, const conv_row &r, int64_t ch)
{
    for (int j = 0; j < r.len; ++j)
        store_raw(a.out, (r.start + j) * a.out_row + ch, 0, a.in.dtype);
}

/* Channels first .. of a live row. */
DEVICE void convolve_block(const rssm_convolution &a, const conv_row &r, int64_t first, unsigned char *rings)
{
    const int channels = (int)min((int64_t)blockDim.x, a.channels - first), size = is_half_width(a.conv.dtype) ? 2 : 4;
    const int64_t at = r.slot * a.conv.slot + first * a.conv_len, mine = (int64_t)threadIdx.x * a.conv_len;
    stage(rings, element(a.conv.data, at, a.conv.dtype), channels * a.conv_len * size);
    __syncthreads();
    if ((int)threadIdx.x < channels)
        convolve(a, r, {first + threadIdx.x, rings + mine * size, at + mine});
    __syncthreads();
}

/* One thread per channel; the rings of the block's channels pass through shared memory. Plain steps and windows. */
extern "C" __global__ void __launch_bounds__(RSSM_CUDA_CONV_THREADS)
    rssm_conv(const __grid_constant__ rssm_convolution a)
{
    extern __shared__ __align__(16) unsigned char rings[];
    const int64_t first = (int64_t)blockIdx.x * blockDim.x;
    for (int64_t b = blockIdx.y; b < a.B; b += gridDim.y) {
        const conv_row r = judge_row(a, b);
        if (r.live && r.len > 0)
            convolve_block(a, r, first, rings);
        else if (!r.live && first + threadIdx.x < a.channels)
            zero_row(a, r, first + threadIdx.x);
    }
}

/* ---- width 4, two channels a thread ------------------------------------------------------------------------------- */

#define PAIR_THREADS RSSM_CUDA_CONV_THREADS
#define AHEAD        4 /* tokens whose inputs are asked for at once */

/* Two neighbouring elements as they lie in memory. */
template <class ST> struct pair_of {
    typedef uint32_t bits;
};
template <> struct pair_of<f32_state> {
    typedef uint2 bits;
};

DEVICE float2 widen_pair(uint2 raw, f32_state)
{
    return make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y));
}

template <class ST> DEVICE float2 widen_pair(uint32_t raw, ST st)
{
    float x[2];
    widen2(raw, x, st);
    return make_float2(x[0], x[1]);
}

DEVICE uint2 narrow_pair(float2 y, bool *, f32_state)
{
    return make_uint2(__float_as_uint(y.x), __float_as_uint(y.y));
}

template <class ST> DEVICE uint32_t narrow_pair(float2 y, bool *hit, ST st)
{
    const float x[2] = {saturate(y.x, ST::DTYPE, hit), saturate(y.y, ST::DTYPE, hit)};
    return narrow2(x, st);
}

/* One element of a channel's ring in shared memory. */
template <class ST> DEVICE uint32_t ring_bits(const unsigned char *ring, int i)
{
    return ST::BYTES == 2 ? ((const uint16_t *)ring)[i] : ((const uint32_t *)ring)[i];
}

DEVICE void put_pair(unsigned char *low, unsigned char *high, int i, uint32_t pair)
{
    ((uint16_t *)low)[i] = (uint16_t)pair;
    ((uint16_t *)high)[i] = (uint16_t)(pair >> 16);
}

DEVICE void put_pair(unsigned char *low, unsigned char *high, int i, uint2 pair)
{
    ((uint32_t *)low)[i] = pair.x;
    ((uint32_t *)high)[i] = pair.y;
}

/* Weights and bias of two channels, x the first. */
struct pair_weights {
    float2 w[4], bias;
};

/* One by one: for weights of another type, or not aligned. */
DEVICE pair_weights load_weights(const rssm_convolution &a, int64_t ch)
{
    pair_weights p;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        p.w[i] = make_float2(load_any(a.weight.data, ch * 4 + i, a.weight.dtype),
                             load_any(a.weight.data, ch * 4 + 4 + i, a.weight.dtype));
    p.bias = make_float2(0.0f, 0.0f);
    if (a.bias.data)
        p.bias = make_float2(load_any(a.bias.data, ch, a.bias.dtype), load_any(a.bias.data, ch + 1, a.bias.dtype));
    return p;
}

DEVICE bool weights_are_whole(const rssm_convolution &a)
{
    return a.weight.dtype == a.in.dtype && (uintptr_t)a.weight.data % 16 == 0 &&
           (!a.bias.data || (a.bias.dtype == a.in.dtype && (uintptr_t)a.bias.data % 8 == 0));
}

/* In 16-byte pieces. */
template <class ST> DEVICE pair_weights load_whole_weights(const rssm_convolution &a, int64_t ch, ST st)
{
    typedef typename pair_of<ST>::bits bits;
    const uint4 *const from = (const uint4 *)element(a.weight.data, ch * 4, ST::DTYPE);
    float x[8];
    widen_chunk(from[0], x, st);
    if (ST::CHUNK == 4)
        widen_chunk(from[1], x + 4, st);
    pair_weights p = {{{x[0], x[4]}, {x[1], x[5]}, {x[2], x[6]}, {x[3], x[7]}}, {0.0f, 0.0f}};
    if (a.bias.data)
        p.bias = widen_pair(*(const bits *)element(a.bias.data, ch, ST::DTYPE), st);
    return p;
}

DEVICE float2 multiply_add(float2 w, float2 x, float2 y)
{
    return make_float2(w.x * x.x + y.x, w.y * x.y + y.y);
}

/* Tokens j0 .. j0 + 3 of a row as they lie in memory, those that there are. */
template <class B> DEVICE void load_tokens(const rssm_convolution &a, const conv_row &r, int64_t ch, int j0, B *raw)
{
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
        if (j0 + j < r.len)
            raw[j] = *(const B *)element(a.in.data, (r.start + j0 + j) * a.in.row + ch, a.in.dtype);
}

/* The window of two channels whose rings lie in shared memory, at low and high; raw: its first tokens. */
template <class ST>
DEVICE void convolve_pair(const rssm_convolution &a, const conv_row &r, const pair_weights &p, int64_t ch,
                          unsigned char *low, unsigned char *high, typename pair_of<ST>::bits *raw, bool *hit, ST st)
{
    typedef typename pair_of<ST>::bits bits;
    float2 x[4]; /* x[i]: the input 3 - i tokens back */
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int column = column_before(r.column, 3 - i, a.conv_len);
        x[i] = make_float2(widen(ring_bits<ST>(low, column), ST::DTYPE), widen(ring_bits<ST>(high, column), ST::DTYPE));
    }
    int at = r.column;
    for (int j0 = 0; j0 < r.len; j0 += AHEAD) {
        bits next[AHEAD] = {};
        load_tokens(a, r, ch, j0 + AHEAD, next);
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (j0 + j >= r.len)
                break;
            x[3] = widen_pair(raw[j], st);
            float2 y = p.bias;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                y = multiply_add(p.w[i], x[i], y);
            y = make_float2(fast_silu(y.x), fast_silu(y.y));
            *(bits *)element(a.out, (r.start + j0 + j) * a.out_row + ch, ST::DTYPE) = narrow_pair(y, hit, st);
            put_pair(low, high, at, raw[j]);
            at = at + 1 == a.conv_len ? 0 : at + 1;
            x[0] = x[1];
            x[1] = x[2];
            x[2] = x[3];
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            raw[j] = next[j];
    }
}

/* bytes from shared memory back, in the pieces in which stage() took them. */
DEVICE void unstage(unsigned char *to, const unsigned char *from, int bytes)
{
    const int vectors = bytes / 16;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (int i = vectors * 8 + threadIdx.x; i < bytes / 2; i += blockDim.x)
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
}

template <class ST> DEVICE void zero_pairs(const rssm_convolution &a, const conv_row &r, int64_t ch)
{
    for (int j = 0; j < r.len; ++j)
        *(typename pair_of<ST>::bits *)element(a.out, (r.start + j) * a.out_row + ch, ST::DTYPE) = {};
}

/* Rows b, b + gridDim.y, ... of a block's channels. Whole rings go through shared memory and back: neighbouring channels
 * share their sectors, so that memory moves all columns anyhow. */
template <class ST> DEVICE void conv_pairs(const rssm_convolution &a, unsigned char *rings, ST st)
{
    const int64_t first = (int64_t)blockIdx.x * 2 * PAIR_THREADS, ch = first + 2 * threadIdx.x;
    const int bytes = (int)min((int64_t)2 * PAIR_THREADS, a.channels - first) * a.conv_len * ST::BYTES;
    unsigned char *const low = rings + 2 * threadIdx.x * a.conv_len * ST::BYTES;
    unsigned char *const high = low + a.conv_len * ST::BYTES;
    const bool here = ch < a.channels;
    bool hit = false;
    pair_weights p = {};
    if (here)
        p = weights_are_whole(a) ? load_whole_weights(a, ch, st) : load_weights(a, ch);
    for (int64_t b = blockIdx.y; b < a.B; b += gridDim.y) {
        const conv_row r = judge_row(a, b);
        if (!r.live && here)
            zero_pairs<ST>(a, r, ch);
        if (!r.live || r.len == 0)
            continue;
        typename pair_of<ST>::bits raw[AHEAD] = {};
        if (here)
            load_tokens(a, r, ch, 0, raw);
        unsigned char *const ring =
            (unsigned char *)element(a.conv.data, r.slot * a.conv.slot + first * a.conv_len, ST::DTYPE);
        stage(rings, ring, bytes);
        __syncthreads();
        if (here)
            convolve_pair(a, r, p, ch, low, high, raw, &hit, st);
        __syncthreads();
        unstage(ring, rings, bytes);
        __syncthreads();
    }
    if (hit && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_OUTPUT);
}

/* Width 4; conv slots at 16-byte boundaries, inputs and outputs at pairs. Plain steps and windows. */
extern "C" __global__ void __launch_bounds__(PAIR_THREADS, 10)
    rssm_conv_pairs(const __grid_constant__ rssm_convolution a)
{
    extern __shared__ __align__(16) unsigned char rings[];
    if (a.in.dtype == F32)
        conv_pairs(a, rings, f32_state());
    else if (a.in.dtype == BF16)
        conv_pairs(a, rings, bf16_state());
    else
        conv_pairs(a, rings, f16_state());
}

/* ---- width 4, three columns, 16-bit elements, plain steps -------------------------------------------------------- */

#define CHANNELS RSSM_CUDA_CONV4_CHANNELS

/* 16-bit element i of packed words. */
DEVICE uint32_t half_of(const uint32_t *words, int i)
{
    return i & 1 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu;
}

template <class ST> DEVICE float half_to_float(const uint32_t *words, int i, ST)
{
    if (ST::DTYPE == F16)
        return f16_bits_to_float(half_of(words, i));
    return __uint_as_float(i & 1 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

/* Eight channels of a row: their new inputs, their three columns each as they lie in memory. */
struct eight {
    __align__(16) uint32_t x[4], ring[12];
    conv_row r;
};

struct eight_weights {
    __align__(16) uint32_t w[16], bias[4];
};

/* n 16-byte pieces. */
template <int N> DEVICE void copy16(void *to, const void *from)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

DEVICE uint16_t *ring_of(const rssm_convolution &a, const conv_row &r, int64_t ch)
{
    return (uint16_t *)a.conv.data + r.slot * a.conv.slot + ch * 3;
}

DEVICE void load_eight(const rssm_convolution &a, int64_t b, int64_t ch, eight *e)
{
    copy16<1>(e->x, (const uint16_t *)a.in.data + b * a.in.row + ch);
    e->r = judge_row(a, b);
    if (e->r.live)
        copy16<3>(e->ring, ring_of(a, e->r, ch));
}

/* Column `at` holds x_{t-3}, those after it x_{t-2} and x_{t-1}; it takes x. */
template <class ST> DEVICE void convolve8(eight *e, const eight_weights &p, float *y, ST st)
{
    const int at = e->r.column;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const float h0 = half_to_float(e->ring, 3 * c, st), h1 = half_to_float(e->ring, 3 * c + 1, st);
        const float h2 = half_to_float(e->ring, 3 * c + 2, st);
        float sum = half_to_float(p.bias, c, st);
        sum += half_to_float(p.w, 4 * c, st) * (at == 0 ? h0 : at == 1 ? h1 : h2);
        sum += half_to_float(p.w, 4 * c + 1, st) * (at == 0 ? h1 : at == 1 ? h2 : h0);
        sum += half_to_float(p.w, 4 * c + 2, st) * (at == 0 ? h2 : at == 1 ? h0 : h1);
        sum += half_to_float(p.w, 4 * c + 3, st) * half_to_float(e->x, c, st);
        y[c] = fast_silu(sum);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            uint32_t *const word = &e->ring[(3 * c + i) / 2];
            const bool high = (3 * c + i) & 1;
            const uint32_t x0 = half_of(e->x, c),
                           put = high ? (*word & 0xffffu) | x0 << 16 : (*word & 0xffff0000u) | x0;
            *word = at == i ? put : *word;
        }
    }
}

template <class ST>
DEVICE void finish_eight(const rssm_convolution &a, int64_t b, int64_t ch, const eight_weights &p, eight *e, ST st)
{
    uint16_t *const out = (uint16_t *)a.out + b * a.out_row + ch;
    if (!e->r.live) {
        *(uint4 *)out = make_uint4(0, 0, 0, 0);
        return;
    }
    float y[CHANNELS];
    bool hit = false;
    convolve8(e, p, y, st);
    copy16<3>(ring_of(a, e->r, ch), e->ring);
    *(uint4 *)out = narrow_chunk(y, &hit, st);
    if (hit && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_OUTPUT);
}

/* Rows b, b + gridDim.y, ... of eight channels: the next row is asked for before this one is computed. */
template <class ST> DEVICE void conv4(const rssm_convolution &a, int64_t ch, ST st)
{
    eight_weights p = {};
    copy16<4>(p.w, (const uint16_t *)a.weight.data + ch * 4);
    if (a.bias.data)
        copy16<1>(p.bias, (const uint16_t *)a.bias.data + ch);
    eight now, next;
    int64_t b = blockIdx.y;
    load_eight(a, b, ch, &now);
    for (; b + gridDim.y < a.B; b += gridDim.y) {
        load_eight(a, b + gridDim.y, ch, &next);
        finish_eight(a, b, ch, p, &now, st);
        now = next;
    }
    finish_eight(a, b, ch, p, &now, st);
}

/* One thread for eight channels, all in 16-byte pieces; weight and bias of the inputs' type. */
extern "C" __global__ void __launch_bounds__(RSSM_CUDA_CONV_THREADS, 6)
    rssm_conv4(const __grid_constant__ rssm_convolution a)
{
    const int64_t ch = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * CHANNELS;
    if (ch >= a.channels)
        return;
    if (a.in.dtype == BF16)
        conv4(a, ch, bf16_state());
    else
        conv4(a, ch, f16_state());
}
