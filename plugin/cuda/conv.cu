/* The short convolution in front of the recurrence, y_t = silu(bias + sum over i < w of weight[w-1-i] x_{t-i}), with the inputs
 * x_{t-1}, x_{t-2}, ... in a ring of the slot: conv[slot, channel, column], token t of a row at column conv + t.
 *
 * Three kernels: rssm_conv for any width and type; rssm_conv_pairs for width 4, where rows come through a pipeline; rssm_conv4 for
 * plain steps of width 4 without drafts, a row in registers. The latter two move whole rings in whole lines. A block owns its
 * channels of a row: nothing it writes is read by another. x = channels, y = rows: neighbours work on neighbouring memory.
 */
#include "conv_stages.cuh"
#include "cuda/conv.h"
#include "step_math.cuh"
#include "stream_order.cuh"

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

/* What rows[b] says, asked for ahead of its use. */
struct row_numbers {
    int32_t slot, column, start, len;
};

DEVICE row_numbers load_numbers(const rssm_convolution &a, int64_t b)
{
    const int32_t *const row = a.rows + b * a.rows_row;
    const bool plain = a.max_T <= 1;
    return {row[0], row[4], plain ? (int32_t)b : row[5], plain ? 1 : row[6]};
}

/* A row's slot, position and window. Tokens out of range are none at all, since a part of them may be another row's. */
DEVICE conv_row judge_numbers(const rssm_convolution &a, const row_numbers &n)
{
    const bool here = n.slot >= 0 && n.slot < a.S && n.slot != a.pad_slot;
    const bool sane = n.column >= 0 && n.column < a.conv_len;
    if (here && !sane)
        conv_fault(a, RSSM_FAULTBIT_CURSOR);
    conv_row r = {n.slot, n.start, n.len, n.column, here && sane};
    if (n.start < 0 || n.len < 0 || n.len > max(a.max_T, 1) || n.start + (int64_t)n.len > a.tokens) {
        conv_fault(a, RSSM_FAULTBIT_SEQLENS);
        r.len = 0;
    }
    return r;
}

DEVICE conv_row judge_row(const rssm_convolution &a, int64_t b)
{
    return judge_numbers(a, load_numbers(a, b));
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
    extern __shared__ __align__(128) unsigned char rings[];
    wait_for_predecessors();
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

/* A block owns 2 * blockDim.x channels and goes through rows blockIdx.y, blockIdx.y + gridDim.y, ... Rings and inputs pass through
 * stages of shared memory: while one row is computed the next ones are on their way. A ring comes and goes whole: neighbouring
 * channels share their sectors, so that memory moves all columns anyhow. */

/* What lies before the stages in shared memory. */
struct pairs_head {
    uint64_t full[STAGES]; /* mbarriers: the stage has come */
    conv_row rows[STAGES]; /* whose it is                   */
};
static_assert(sizeof(pairs_head) <= RSSM_CUDA_CONV_HEAD, "the head has no room");

/* A block's share of the channels, and its shared memory. */
struct pairs_block {
    int64_t first;                      /* channel */
    int channels;                       /* at most 2 * blockDim.x */
    int ring_bytes, token_bytes;        /* of those channels */
    int inputs, token_room, stage_room; /* in a stage: where its inputs begin, from one to the next, all */
    pairs_head *head;
    unsigned char *stages;
};

template <class ST> DEVICE pairs_block make_block(const rssm_convolution &a, unsigned char *shared)
{
    pairs_block p;
    const int most = 2 * blockDim.x;
    p.first = (int64_t)blockIdx.x * most;
    p.channels = (int)min((int64_t)most, a.channels - p.first);
    p.ring_bytes = p.channels * a.conv_len * ST::BYTES;
    p.token_bytes = p.channels * ST::BYTES;
    p.inputs = most * a.conv_len * ST::BYTES;
    p.token_room = most * ST::BYTES;
    p.stage_room = p.inputs + max(a.max_T, 1) * p.token_room;
    p.head = (pairs_head *)shared;
    p.stages = shared + RSSM_CUDA_CONV_HEAD;
    return p;
}

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

template <class ST> DEVICE void zero_pairs(const rssm_convolution &a, const conv_row &r, int64_t ch)
{
    for (int j = 0; j < r.len; ++j)
        *(typename pair_of<ST>::bits *)element(a.out, (r.start + j) * a.out_row + ch, ST::DTYPE) = {};
}

/* Row `numbers` on its way to stage s. */
template <class ST>
DEVICE void ask_for_row(const rssm_convolution &a, const pairs_block &p, const row_numbers &numbers, int s)
{
    const conv_row r = judge_numbers(a, numbers);
    const bool works = r.live && r.len > 0;
    if (threadIdx.x == 0)
        p.head->rows[s] = r;
    stage_expect(&p.head->full[s], works ? p.ring_bytes + r.len * p.token_bytes : 0);
    if (!works)
        return;
    unsigned char *to = p.stages + s * p.stage_room;
    stage_load(&p.head->full[s], to, element(a.conv.data, r.slot * a.conv.slot + p.first * a.conv_len, ST::DTYPE),
               p.ring_bytes);
    const unsigned char *from = element(a.in.data, r.start * a.in.row + p.first, ST::DTYPE);
    to += p.inputs;
    for (int j = 0; j < r.len; ++j) {
        stage_load(&p.head->full[s], to, from, p.token_bytes);
        to += p.token_room;
        from += a.in.row * ST::BYTES;
    }
}

/* The rows that a block has yet to ask for: the next one's number, and what it says. */
struct rows_ahead {
    int64_t b;
    row_numbers numbers;
};

/* The next row, if there is one; the one after it is looked up meanwhile. */
template <class ST> DEVICE void ask_for_next(const rssm_convolution &a, const pairs_block &p, rows_ahead *next, int s)
{
    if (ONE_COPIES && threadIdx.x != 0)
        return;
    if (next->b < a.B) {
        const row_numbers numbers = next->numbers;
        next->b += gridDim.y;
        if (next->b < a.B)
            next->numbers = load_numbers(a, next->b);
        ask_for_row<ST>(a, p, numbers, s);
    }
    stage_asked();
}

/* The window of the thread's two channels. */
template <class ST>
DEVICE void convolve_pair(const rssm_convolution &a, const pairs_block &p, const conv_row &r, const pair_weights &w,
                          unsigned char *stage, bool *hit, ST st)
{
    typedef typename pair_of<ST>::bits bits;
    unsigned char *const low = stage + 2 * threadIdx.x * a.conv_len * ST::BYTES;
    unsigned char *const high = low + a.conv_len * ST::BYTES;
    const unsigned char *in = stage + p.inputs + 2 * threadIdx.x * ST::BYTES;
    unsigned char *out = (unsigned char *)element(a.out, r.start * a.out_row + p.first + 2 * threadIdx.x, ST::DTYPE);
    float2 x[4]; /* x[i]: the input 3 - i tokens back */
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int column = column_before(r.column, 3 - i, a.conv_len);
        x[i] = make_float2(widen(ring_bits<ST>(low, column), ST::DTYPE), widen(ring_bits<ST>(high, column), ST::DTYPE));
    }
    int at = r.column;
    for (int j = 0; j < r.len; ++j) {
        const bits raw = *(const bits *)in;
        x[3] = widen_pair(raw, st);
        float2 y = w.bias;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            y = multiply_add(w.w[i], x[i], y);
        y = make_float2(fast_silu(y.x), fast_silu(y.y));
        *(bits *)out = narrow_pair(y, hit, st);
        put_pair(low, high, at, raw);
        at = at + 1 == a.conv_len ? 0 : at + 1;
        in += p.token_room;
        out += a.out_row * ST::BYTES;
        x[0] = x[1];
        x[1] = x[2];
        x[2] = x[3];
    }
}

/* The rings of stage s back to the pool. */
template <class ST> DEVICE void give_back(const rssm_convolution &a, const pairs_block &p, const conv_row &r, int s)
{
    if (ONE_COPIES && threadIdx.x != 0)
        return;
    if (r.live && r.len > 0)
        stage_store((unsigned char *)element(a.conv.data, r.slot * a.conv.slot + p.first * a.conv_len, ST::DTYPE),
                    p.stages + s * p.stage_room, p.ring_bytes);
    stage_stored();
    stage_left<1>(); /* the stage before this one is free again */
}

template <class ST> DEVICE void conv_pairs(const rssm_convolution &a, unsigned char *shared, ST st)
{
    const pairs_block p = make_block<ST>(a, shared);
    const int64_t ch = p.first + 2 * threadIdx.x;
    const bool here = ch < a.channels;
    rows_ahead next = {blockIdx.y, load_numbers(a, blockIdx.y)};
    stages_begin(p.head->full);
    for (int s = 0; s < STAGES - 1; ++s)
        ask_for_next<ST>(a, p, &next, s);
    pair_weights w = {};
    if (here)
        w = weights_are_whole(a) ? load_whole_weights(a, ch, st) : load_weights(a, ch);
    bool hit = false;
    int s = 0, phase = 0;
    for (int64_t b = blockIdx.y; b < a.B; b += gridDim.y) {
        stage_wait(&p.head->full[s], phase);
        const conv_row r = p.head->rows[s];
        if (here && r.live)
            convolve_pair(a, p, r, w, p.stages + s * p.stage_room, &hit, st);
        else if (here)
            zero_pairs<ST>(a, r, ch);
        stage_written();
        __syncthreads();
        give_back<ST>(a, p, r, s);
        ask_for_next<ST>(a, p, &next, s == 0 ? STAGES - 1 : s - 1);
        s = s + 1 == STAGES ? 0 : s + 1;
        phase ^= s == 0;
    }
    stage_left<0>();
    if (hit && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_OUTPUT);
}

/* Width 4; the pool's slots, the inputs' rows and the channels of an element's size in 16-byte pieces, outputs at pairs. */
extern "C" __global__ void __launch_bounds__(RSSM_CUDA_CONV_PAIR_THREADS, RSSM_CUDA_CONV_PAIR_BLOCKS)
    rssm_conv_pairs(const __grid_constant__ rssm_convolution a)
{
    extern __shared__ __align__(128) unsigned char rings[];
    wait_for_predecessors();
    let_successors_start();
    if (a.in.dtype == F32)
        conv_pairs(a, rings, f32_state());
    else if (a.in.dtype == BF16)
        conv_pairs(a, rings, bf16_state());
    else
        conv_pairs(a, rings, f16_state());
}

/* ---- width 4, three columns, plain steps -------------------------------------------------------------------------- */

/* A lane has 16 bytes of inputs, which are ST::CHUNK channels, and so 48 bytes of rings and 64 of weights. A warp's rings come
 * and go as whole lines, every 32nd 16-byte piece by one lane, and are turned in shared memory to those of its own channels. */
enum { COLUMNS = 3, TAPS = 4 };

/* A warp's channels of a row: the first, and how many lanes have any. */
struct warp_channels {
    int64_t first;
    int lanes, lane;
    uint4 *turn; /* the warp's COLUMNS * 32 pieces of shared memory */
};

/* What a lane holds. */
struct chunk {
    __align__(16) uint32_t x[4], ring[4 * COLUMNS];
};

struct chunk_weights {
    __align__(16) uint32_t w[4 * TAPS], bias[4];
};

/* Element i of packed words. */
template <class ST> DEVICE uint32_t word_bits(const uint32_t *words, int i, ST)
{
    if (ST::BYTES == 4)
        return words[i];
    return i & 1 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu;
}

template <class ST> DEVICE float word_value(const uint32_t *words, int i, ST st)
{
    if (ST::DTYPE == BF16)
        return __uint_as_float(i & 1 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    return widen(word_bits(words, i, st), ST::DTYPE);
}

template <class ST> DEVICE void put_word(uint32_t *words, int i, uint32_t bits, ST)
{
    if (ST::BYTES == 4)
        words[i] = bits;
    else
        words[i / 2] = i & 1 ? (words[i / 2] & 0xffffu) | bits << 16 : (words[i / 2] & 0xffff0000u) | bits;
}

/* N 16-byte pieces. */
template <int N> DEVICE void copy16(void *to, const void *from)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

template <class ST> DEVICE uint4 *rings_of(const rssm_convolution &a, const conv_row &r, const warp_channels &c, ST)
{
    return (uint4 *)element(a.conv.data, r.slot * a.conv.slot + c.first * COLUMNS, ST::DTYPE);
}

DEVICE void load_rings(const uint4 *from, const warp_channels &c, uint32_t *ring)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (i * 32 + c.lane < COLUMNS * c.lanes)
            ((uint4 *)ring)[i] = from[i * 32 + c.lane];
}

DEVICE void store_rings(uint4 *to, const warp_channels &c, const uint32_t *ring)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (i * 32 + c.lane < COLUMNS * c.lanes)
            to[i * 32 + c.lane] = ((const uint4 *)ring)[i];
}

/* From pieces as they come to the lane's own, or back; no bank conflicts, as COLUMNS is odd. */
DEVICE void turn_rings(const warp_channels &c, uint32_t *ring, bool back)
{
    uint4 *const mine = (uint4 *)ring;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        c.turn[back ? COLUMNS * c.lane + i : i * 32 + c.lane] = mine[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        mine[i] = c.turn[back ? i * 32 + c.lane : COLUMNS * c.lane + i];
    __syncwarp();
}

/* Column AT holds x_{t-3}, those after it x_{t-2} and x_{t-1}; it takes x. */
template <int AT, class ST> DEVICE void convolve_chunk(chunk *e, const chunk_weights &p, float *y, ST st)
{
#pragma unroll
    for (int c = 0; c < ST::CHUNK; ++c) {
        float sum = word_value(p.bias, c, st);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            sum += word_value(p.w, TAPS * c + i, st) * word_value(e->ring, COLUMNS * c + (AT + i) % COLUMNS, st);
        sum += word_value(p.w, TAPS * c + COLUMNS, st) * word_value(e->x, c, st);
        y[c] = fast_silu(sum);
        put_word(e->ring, COLUMNS * c + AT, word_bits(e->x, c, st), st);
    }
}

template <class ST> DEVICE void convolve_chunk(int at, chunk *e, const chunk_weights &p, float *y, ST st)
{
    if (at == 0)
        convolve_chunk<0>(e, p, y, st);
    else if (at == 1)
        convolve_chunk<1>(e, p, y, st);
    else
        convolve_chunk<2>(e, p, y, st);
}

template <class ST> DEVICE void load_chunk_weights(const rssm_convolution &a, int64_t ch, chunk_weights *p, ST)
{
    copy16<TAPS>(p->w, element(a.weight.data, ch * TAPS, ST::DTYPE));
    if (a.bias.data)
        copy16<1>(p->bias, element(a.bias.data, ch, ST::DTYPE));
}

/* Row b, all of it asked for at once. */
template <class ST> DEVICE void conv4(const rssm_convolution &a, int64_t b, const warp_channels &c, ST st)
{
    const int64_t ch = c.first + c.lane * ST::CHUNK;
    const bool here = c.lane < c.lanes;
    chunk e;
    if (here)
        copy16<1>(e.x, element(a.in.data, b * a.in.row + ch, ST::DTYPE));
    const conv_row r = judge_row(a, b);
    if (r.live)
        load_rings(rings_of(a, r, c, st), c, e.ring);
    chunk_weights p = {};
    if (here)
        load_chunk_weights(a, ch, &p, st);
    uint4 *const out = (uint4 *)element(a.out, b * a.out_row + ch, ST::DTYPE);
    if (!r.live) {
        if (here)
            *out = make_uint4(0, 0, 0, 0);
        return;
    }
    float y[ST::CHUNK];
    bool hit = false;
    turn_rings(c, e.ring, false);
    convolve_chunk(r.column, &e, p, y, st);
    turn_rings(c, e.ring, true);
    store_rings(rings_of(a, r, c, st), c, e.ring);
    const uint4 raw = narrow_chunk(y, &hit, st);
    if (here)
        *out = raw;
    if (here && hit && a.fault)
        atomicOr(a.fault, (uint32_t)RSSM_FAULTBIT_OUTPUT);
}

template <class ST> DEVICE void conv4_warp(const rssm_convolution &a, int64_t b, unsigned char *shared, ST st)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first = ((int64_t)blockIdx.x * blockDim.x + warp * 32) * ST::CHUNK;
    if (first < a.channels)
        conv4(a, b,
              {first, (int)min((int64_t)32, (a.channels - first) / ST::CHUNK), lane,
               (uint4 *)shared + warp * COLUMNS * 32},
              st);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* Hints for what this block reads of row b: its slot, which all else waits for, and in the blocks that start first also its rings. */
DEVICE void ask_ahead(const rssm_convolution &a, int64_t b)
{
    const int32_t *const row = a.rows + b * a.rows_row;
    ask_line_into_l2(row);
    if (blockIdx.y * gridDim.x + blockIdx.x >= RSSM_CUDA_CONV4_AHEAD)
        return;
    const int32_t slot = peek_before_wait(row);
    const int size = a.in.dtype == F32 ? 4 : 2, across = blockDim.x * 16 / size; /* channels of a block */
    const int64_t first = (int64_t)blockIdx.x * across;
    const int channels = (int)min((int64_t)across, a.channels - first);
    if (slot >= 0 && slot < a.S)
        ask_into_l2(element(a.conv.data, slot * a.conv.slot + first * COLUMNS, a.in.dtype), channels * COLUMNS * size);
}
#endif

/* Everything in 16-byte pieces; weight and bias of the inputs' type. z, y = rows. */
extern "C" __global__ void __launch_bounds__(RSSM_CUDA_CONV4_THREADS, 16)
    rssm_conv4(const __grid_constant__ rssm_convolution a)
{
    extern __shared__ __align__(128) unsigned char rings[];
    const int64_t b = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0 && b < a.B)
        ask_ahead(a, b);
#endif
    wait_for_predecessors();
    let_successors_start();
    if (b >= a.B)
        return;
    if (a.in.dtype == F32)
        conv4_warp(a, b, rings, f32_state());
    else if (a.in.dtype == BF16)
        conv4_warp(a, b, rings, bf16_state());
    else
        conv4_warp(a, b, rings, f16_state());
}
