/* Slot operations, each over all layers: copies, and materialised states in and out.
 *
 * A slot index out of range is passed over; so is a slot that a list names twice where it is written, or a cursor out of
 * range, and these two mark the fault word. Every block judges for itself, from the lists and cursors that no block of the same
 * launch changes.
 */
#include "cuda/slots.h"
#include "step_math.cuh"
#include "stream_order.cuh"

#define THREADS  RSSM_CUDA_SLOT_THREADS
#define WARPS    (THREADS / 32)
#define ALL      0xffffffffu
#define ROWS     RSSM_CUDA_STATE_ROWS
#define CHANNELS RSSM_CUDA_STATE_CHANNELS
#define LINES    8  /* quads of a tile per thread */
#define RECORDS  16 /* that a fold takes at once: two a warp */

/* ---- judging ---------------------------------------------------------------------------------------------------- */

struct slot_cursor {
    int32_t base, count, conv, shortened;
};

DEVICE bool in_pool(const rssm_cuda_slots &p, int64_t slot)
{
    return slot >= 0 && slot < p.S && slot != p.pad_slot;
}

DEVICE slot_cursor load_cursor(const rssm_cuda_slots &p, int64_t slot)
{
    const int32_t *const at = p.cursor + slot * p.cursor_slot;
    return {at[0], at[1], at[2], at[3]};
}

DEVICE bool cursor_is_good(const rssm_cuda_slots &p, const slot_cursor &c)
{
    return c.base >= 0 && c.base < p.R && c.count >= 0 && c.count <= RSSM_MOST_RECORDS(p.L) && c.conv >= 0 &&
           c.conv < max(p.conv_len, 1) && c.shortened >= 0 && c.shortened < p.L;
}

/* Whether an entry of the list but `own` (-1: any entry) names the slot: the same answer in all threads of the block. */
DEVICE bool is_named(const rssm_index &list, int64_t n, int64_t own, int64_t slot)
{
    int named = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        named |= i != own && load_index(list, i) == slot;
    return __syncthreads_or(named) != 0;
}

/* Said once per launch: by the first thread of the first block of an entry. */
DEVICE void slot_fault(const rssm_cuda_slots &p, uint32_t bit)
{
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.z == 0 && p.fault)
        atomicOr(p.fault, bit);
}

/* ---- copy ------------------------------------------------------------------------------------------------------- */

#define COPY_AHEAD (RSSM_CUDA_COPY_CHUNK / 16 / THREADS) /* 16-byte units of a chunk per thread */

/* The region of a slot that a chunk lies in: the last with first[region] <= chunk. A search by 32 lanes. */
DEVICE int region_of(const int64_t *first, int regions, int64_t chunk)
{
    const int lane = threadIdx.x & 31;
    int low = 0;
    for (int span = regions; span > 1;) {
        const int step = (span + 31) / 32, at = lane * step;
        const bool before = at < span && first[low + at] <= chunk;
        const int skip = (__popc(__ballot_sync(ALL, before)) - 1) * step;
        low += skip;
        span = min(step, span - skip);
    }
    return low;
}

/* A pair of slots, and whether they are slots of the pool. */
struct slot_pair {
    int64_t src, dst;
    bool from, to;
};

DEVICE slot_pair find_pair(const rssm_cuda_copy &a, int64_t i)
{
    const int64_t src = load_index(a.src, i), dst = load_index(a.dst, i);
    return {src, dst, in_pool(a.in, src), in_pool(a.in, dst)};
}

/* Whether pair i is to be copied. */
DEVICE bool judge_pair(const rssm_cuda_copy &a, int64_t i, const slot_pair &p)
{
    if (!p.from && !p.to)
        return false;
    const slot_cursor c = p.from ? load_cursor(a.in, p.src) : slot_cursor();
    int named = p.from != p.to;
    for (int64_t j = threadIdx.x; j < a.n; j += THREADS)
        named |= (j != i && load_index(a.dst, j) == p.dst) || load_index(a.src, j) == p.dst;
    if (__syncthreads_or(named)) {
        slot_fault(a.in, RSSM_FAULTBIT_SLOTS);
        return false;
    }
    if (!cursor_is_good(a.in, c)) {
        slot_fault(a.in, RSSM_FAULTBIT_CURSOR);
        return false;
    }
    return true;
}

/* A chunk of a slot: where it is in slot 0, and its size. */
struct chunk {
    unsigned char *data;
    int64_t slot_stride;
    int bytes;
};

DEVICE chunk find_chunk(const rssm_cuda_copy &a, int64_t number)
{
    const int r = region_of(a.first_chunk, a.num_regions, number);
    const rssm_region region = a.regions[r];
    const int64_t at = (number - a.first_chunk[r]) * RSSM_CUDA_COPY_CHUNK;
    return {(unsigned char *)region.data + at, region.slot_stride,
            (int)min((int64_t)RSSM_CUDA_COPY_CHUNK, region.slot_bytes - at)};
}

/* A chunk on its way: the whole 16-byte units of it, a thread's share, where both ends lie at such. */
struct moved_chunk {
    const unsigned char *from;
    unsigned char *to;
    int units, bytes;
    uint4 x[COPY_AHEAD];
};

/* Kept where it stands: a compiler would ask after the pair is judged. */
DEVICE uint4 ask_unit(const uint4 *p)
{
#ifdef __CUDA_ARCH__
    uint4 x;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
#else
    return *p;
#endif
}

DEVICE void ask_chunk(const chunk &c, const slot_pair &p, moved_chunk *m)
{
    m->from = c.data + p.src * c.slot_stride;
    m->to = c.data + p.dst * c.slot_stride;
    m->units = (((uint32_t)(uintptr_t)m->to | (uint32_t)(uintptr_t)m->from) & 15) == 0 ? c.bytes / 16 : 0;
    m->bytes = c.bytes;
    const uint4 *const source = (const uint4 *)m->from + threadIdx.x;
    const int left = p.from ? m->units - (int)threadIdx.x : 0;
#pragma unroll
    for (int i = 0; i < COPY_AHEAD; ++i)
        if (i * THREADS < left)
            m->x[i] = ask_unit(source + i * THREADS);
}

/* bytes, a multiple of sizeof(T), by the threads of a block: what does not lie in 16-byte units. */
template <class T> DEVICE void copy_units(unsigned char *to, const unsigned char *from, int bytes)
{
    for (int i = threadIdx.x * (int)sizeof(T); i < bytes; i += THREADS * (int)sizeof(T))
        *(T *)(to + i) = *(const T *)(from + i);
}

/* Elements have two bytes or four. */
DEVICE void put_chunk(const moved_chunk &m)
{
    uint4 *const target = (uint4 *)m.to + threadIdx.x;
    const int left = m.units - (int)threadIdx.x, done = m.units * 16;
#pragma unroll
    for (int i = 0; i < COPY_AHEAD; ++i)
        if (i * THREADS < left)
            target[i * THREADS] = m.x[i];
    if (done == m.bytes)
        return;
    if (((uint32_t)(uintptr_t)m.to | (uint32_t)(uintptr_t)m.from | (uint32_t)m.bytes) % 4 == 0)
        copy_units<uint32_t>(m.to + done, m.from + done, m.bytes - done);
    else
        copy_units<uint16_t>(m.to + done, m.from + done, m.bytes - done);
}

/* dst <- src, every region and the cursor: x = share of a slot's chunks, y = which pair. A block's first chunk is asked for
 * before its pair is judged, so that neither waits for the other. */
extern "C" __global__ void __launch_bounds__(THREADS, 4) rssm_slots_copy(const __grid_constant__ rssm_cuda_copy a)
{
    wait_for_predecessors();
    let_successors_start();
    const chunk first = find_chunk(a, blockIdx.x);
    for (int64_t i = blockIdx.y; i < a.n; i += gridDim.y) {
        const slot_pair p = find_pair(a, i);
        moved_chunk m;
        ask_chunk(first, p, &m);
        if (!judge_pair(a, i, p))
            continue;
        for (int64_t next = blockIdx.x;;) {
            put_chunk(m);
            next += gridDim.x;
            if (next >= a.chunks)
                break;
            ask_chunk(find_chunk(a, next), p, &m);
        }
        if (blockIdx.x == 0 && threadIdx.x < 4)
            a.in.cursor[p.dst * a.in.cursor_slot + threadIdx.x] = a.in.cursor[p.src * a.in.cursor_slot + threadIdx.x];
    }
}

/* ---- states: quads ---------------------------------------------------------------------------------------------- */

/* Four neighbouring elements: taken as one where they are aligned to that, in the types of dtype.cuh; else one by one. */
struct loose {
    enum { DTYPE = 0 };
};

/* As loaded, the value not looked at: 16-bit elements in pairs in x and y, or four floats. valid: how many are there. */
DEVICE uint4 quad_bits(const unsigned char *at, int, int valid, f32_state)
{
    return valid > 0 ? *(const uint4 *)at : make_uint4(0, 0, 0, 0);
}

template <class ST> DEVICE uint4 quad_bits(const unsigned char *at, int, int valid, ST)
{
    const uint2 pairs = valid > 0 ? *(const uint2 *)at : make_uint2(0, 0);
    return make_uint4(pairs.x, pairs.y, 0, 0);
}

DEVICE uint4 quad_bits(const unsigned char *at, int dtype, int valid, loose)
{
    return make_uint4(__float_as_uint(valid > 0 ? load_any(at, 0, dtype) : 0.0f),
                      __float_as_uint(valid > 1 ? load_any(at, 1, dtype) : 0.0f),
                      __float_as_uint(valid > 2 ? load_any(at, 2, dtype) : 0.0f),
                      __float_as_uint(valid > 3 ? load_any(at, 3, dtype) : 0.0f));
}

DEVICE float4 quad_floats(uint4 raw, f32_state)
{
    return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z), __uint_as_float(raw.w));
}

DEVICE float4 quad_floats(uint4 raw, loose)
{
    return quad_floats(raw, f32_state());
}

template <class ST> DEVICE float4 quad_floats(uint4 raw, ST st)
{
    float x[4];
    widen2(raw.x, x, st);
    widen2(raw.y, x + 2, st);
    return make_float4(x[0], x[1], x[2], x[3]);
}

DEVICE void store_quad(unsigned char *at, float4 x, int, int valid, bool *, f32_state)
{
    if (valid > 0)
        *(float4 *)at = x;
}

template <class ST> DEVICE void store_quad(unsigned char *at, float4 q, int, int valid, bool *hit, ST st)
{
    float x[4] = {q.x, q.y, q.z, q.w};
    const float top = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))); /* passes over NaN */
    if (top > (ST::DTYPE == F16 ? F16_MAX : BF16_MAX)) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
            x[c] = saturate(x[c], ST::DTYPE, hit);
    }
    if (valid > 0)
        *(uint2 *)at = make_uint2(narrow2(x, st), narrow2(x + 2, st));
}

DEVICE void store_quad(unsigned char *at, float4 x, int dtype, int valid, bool *hit, loose)
{
    if (valid > 0)
        store_any(at, 0, x.x, dtype, hit);
    if (valid > 1)
        store_any(at, 1, x.y, dtype, hit);
    if (valid > 2)
        store_any(at, 2, x.z, dtype, hit);
    if (valid > 3)
        store_any(at, 3, x.w, dtype, hit);
}

/* The type of access for lines of `width` elements from `start` on: the dtype, or 0 for loose. */
DEVICE int access_of(const void *start, int dtype, int width)
{
    const bool whole = width % 4 == 0 && (uintptr_t)start % (is_half_width(dtype) ? 8 : 16) == 0;
    return whole ? dtype : 0;
}

/* ---- states: tiles ---------------------------------------------------------------------------------------------- */

/* Rows v0 .. v0 + 63 and channels k0 .. k0 + 127 of a head's state. */
struct tile {
    int h, hv, v0, k0;
};

/* A slot's states somewhere: [HV, V, K], or transposed [HV, K, V]. */
struct matrix {
    unsigned char *data;
    int dtype;
    bool transposed;
    int access;
};

DEVICE matrix matrix_of(void *data, int64_t at, int dtype, bool transposed, int V, int K)
{
    unsigned char *const start = (unsigned char *)element(data, at, dtype);
    return {start, dtype, transposed, access_of(start, dtype, transposed ? V : K)};
}

/* A tile in memory, as one thread sees it: LINES quads, a line `step` bytes after the other. A line of a [V, K] state is read
 * by a warp, one of a [K, V] state by half a warp. */
struct lines {
    unsigned char *at; /* the first quad */
    int64_t step;
    int dtype;
    int count; /* of its lines that are in the state */
    int valid; /* elements of a quad that are */
};

DEVICE lines lines_of(const matrix &m, const tile &t, int V, int K)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int line = m.transposed ? t.k0 + w * 2 * LINES + lane / 16 : t.v0 + w * LINES;
    const int column = m.transposed ? t.v0 + lane % 16 * 4 : t.k0 + lane * 4;
    const int lines_end = m.transposed ? K : V, columns = m.transposed ? V : K, apart = m.transposed ? 2 : 1;
    const int size = is_half_width(m.dtype) ? 2 : 4;
    const int64_t at = (int64_t)t.hv * V * K + (int64_t)line * columns + column;
    return {m.data + at * size, (int64_t)apart * columns * size, m.dtype,
            m.transposed ? (lines_end - line + 1) / 2 : lines_end - line, columns - column};
}

/* All asked for before one is used. */
template <class ST> DEVICE void load_lines(const lines &l, uint4 *raw, ST st)
{
#pragma unroll
    for (int q = 0; q < LINES; ++q)
        raw[q] = quad_bits(l.at + q * l.step, l.dtype, q < l.count ? l.valid : 0, st);
}

template <class ST> DEVICE void widen_lines(const uint4 *raw, float4 *x, ST st)
{
#pragma unroll
    for (int q = 0; q < LINES; ++q)
        x[q] = quad_floats(raw[q], st);
}

template <class ST> DEVICE void store_typed(const lines &l, const float4 *x, bool *hit, ST st)
{
#pragma unroll
    for (int q = 0; q < LINES; ++q)
        store_quad(l.at + q * l.step, x[q], l.dtype, q < l.count ? l.valid : 0, hit, st);
}

DEVICE void store_lines(const lines &l, int access, const float4 *x, bool *hit)
{
    if (access == F32)
        store_typed(l, x, hit, f32_state());
    else if (access == BF16)
        store_typed(l, x, hit, bf16_state());
    else if (access == F16)
        store_typed(l, x, hit, f16_state());
    else
        store_typed(l, x, hit, loose());
}

/* A fold's records, RECORDS at a time; or a tile on its way from one order to the other. */
union tile_shared {
    struct {
        float4 w[RECORDS][CHANNELS / 4]; /* k_j; KDA: k_j exp(sum of the gates after j in this lot)              */
        float4 d[RECORDS][ROWS / 4];     /* d_j; GDN: d_j exp(.. after j), Mamba-2: dt_j x_j exp(.. after j)     */
        float4 g[WARPS][CHANNELS / 4];   /* KDA: sums of the gates of two records                                */
        float4 e[CHANNELS / 4];          /* KDA: exp(sum of this lot's gates)                                    */
    };
    float4 turned[CHANNELS][ROWS / 4]; /* (k, v) in quad [k][v / 4 ^ k / 4 % 8]: no bank conflict either way */
};

/* The thread's quads along V become its quads along K, and back. */
DEVICE void turn_to_rows(tile_shared *sh, float4 *x)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < LINES; ++q) {
        const int k = w * 2 * LINES + q * 2 + lane / 16;
        sh->turned[k][lane % 16 ^ (k / 4 % 8)] = x[q];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < LINES / 4; ++half) {
        float4 y[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
            y[c] = sh->turned[lane * 4 + c][(w * LINES / 4 + half) ^ (lane % 8)];
        x[half * 4] = make_float4(y[0].x, y[1].x, y[2].x, y[3].x);
        x[half * 4 + 1] = make_float4(y[0].y, y[1].y, y[2].y, y[3].y);
        x[half * 4 + 2] = make_float4(y[0].z, y[1].z, y[2].z, y[3].z);
        x[half * 4 + 3] = make_float4(y[0].w, y[1].w, y[2].w, y[3].w);
    }
}

DEVICE void turn_to_columns(tile_shared *sh, float4 *x)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31;
    __syncthreads(); /* the records have been read */
#pragma unroll
    for (int half = 0; half < LINES / 4; ++half) {
        float4 *const y = x + half * 4;
        const int quad = (w * LINES / 4 + half) ^ (lane % 8);
        sh->turned[lane * 4][quad] = make_float4(y[0].x, y[1].x, y[2].x, y[3].x);
        sh->turned[lane * 4 + 1][quad] = make_float4(y[0].y, y[1].y, y[2].y, y[3].y);
        sh->turned[lane * 4 + 2][quad] = make_float4(y[0].z, y[1].z, y[2].z, y[3].z);
        sh->turned[lane * 4 + 3][quad] = make_float4(y[0].w, y[1].w, y[2].w, y[3].w);
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < LINES; ++q) {
        const int k = w * 2 * LINES + q * 2 + lane / 16;
        x[q] = sh->turned[k][lane % 16 ^ (k / 4 % 8)];
    }
}

/* ---- states: pending records ------------------------------------------------------------------------------------ */

/* The pending records of one slot in one layer. */
struct ring {
    const rssm_pool_layer *pool;
    int64_t slot;
    int family, R, V, K, base, count;
    int access; /* of k, d and the gates: the ring's dtype, or 0 for loose */
};

DEVICE const unsigned char *ring_start(const ring &r, const rssm_pooled &p)
{
    return element(p.data, r.slot * p.slot, p.dtype);
}

/* Alignment of every tensor, for quads. */
DEVICE int ring_access(const ring &r)
{
    const rssm_pooled &k = r.pool->k_cache, &d = r.pool->d_cache, &g = r.pool->g_cache;
    const bool gates = r.family != KDA || access_of(ring_start(r, g), F32, r.K);
    return gates && access_of(ring_start(r, d), d.dtype, r.V) ? access_of(ring_start(r, k), k.dtype, r.K) : 0;
}

/* Element `first` of record j's row in a tensor [S, heads, R, width]. */
DEVICE const unsigned char *row_of(const ring &r, const rssm_pooled &p, int head, int width, int j, int first)
{
    const int row = r.base + j >= r.R ? r.base + j - r.R : r.base + j;
    return element(p.data, r.slot * p.slot + ((int64_t)head * r.R + row) * width + first, p.dtype);
}

DEVICE float4 scaled(float4 x, float s)
{
    return make_float4(x.x * s, x.y * s, x.z * s, x.w * s);
}

DEVICE float4 sum_of(float4 x, float4 y)
{
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

DEVICE float4 exp_of(float4 x)
{
    return make_float4(expf(x.x), expf(x.y), expf(x.z), expf(x.w));
}

DEVICE float4 product_of(float4 x, float4 y)
{
    return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}

/* Gates are float32 beside records of any type. */
template <class ST> struct gate_access {
    typedef f32_state type;
};
template <> struct gate_access<loose> {
    typedef loose type;
};

/* What a scalar gate makes of this warp's records 2w and 2w + 1 of a lot: the factors of their d, for the lane's half, and
 * of the state. Lane i has record i's gate; rate: A of Mamba-2, else 1. */
struct scalar_decay {
    float own, state;
};

DEVICE scalar_decay scalar_gates(const ring &r, const tile &t, int j0, int n, float rate)
{
    const int lane = threadIdx.x & 31, mine = threadIdx.x / 16;
    const float gate = lane < n ? *(const float *)row_of(r, r.pool->g_cache, t.hv, 1, j0 + lane, 0) : 0.0f;
    float sum = gate; /* of record `lane` and those after it */
#pragma unroll
    for (int o = 1; o < RECORDS; o *= 2) {
        const float other = __shfl_down_sync(ALL, sum, o);
        sum += lane + o < RECORDS ? other : 0.0f;
    }
    const float after = __shfl_down_sync(ALL, sum, 1); /* of those after it: a sum, not a difference */
    const float factor = (r.family == MAMBA2 ? gate : 1.0f) * expf(rate * (lane < RECORDS - 1 ? after : 0.0f));
    return {__shfl_sync(ALL, factor, mine), expf(rate * __shfl_sync(ALL, sum, 0))};
}

/* KDA: k0 and k1, this warp's two keys, decay by the gates after them, channel by channel. */
template <class ST>
DEVICE void decay_keys(const ring &r, const tile &t, int j, float4 k0, float4 k1, tile_shared *sh, ST)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31, ch = t.k0 + lane * 4;
    const rssm_pooled &g = r.pool->g_cache;
    typedef typename gate_access<ST>::type GT;
    const uint4 raw0 = quad_bits(row_of(r, g, t.hv, r.K, j, ch), F32, j < r.count ? r.K - ch : 0, GT());
    const uint4 raw1 = quad_bits(row_of(r, g, t.hv, r.K, j + 1, ch), F32, j + 1 < r.count ? r.K - ch : 0, GT());
    const float4 first = quad_floats(raw0, GT()), second = quad_floats(raw1, GT());
    sh->g[w][lane] = sum_of(first, second);
    __syncthreads();
    float4 after = make_float4(0, 0, 0, 0);
    for (int i = WARPS - 1; i > w; --i)
        after = sum_of(after, sh->g[i][lane]);
    sh->w[2 * w + 1][lane] = product_of(k1, exp_of(after));
    after = sum_of(after, second);
    sh->w[2 * w][lane] = product_of(k0, exp_of(after));
    if (w == 0)
        sh->e[lane] = exp_of(sum_of(after, first));
}

/* Records j0 .. of the lot into shared memory; new_keys: w is not there yet. Returns the state's factor where it is a number.
 * Warp w has records 2w and 2w + 1: four channels of both per lane, and four rows of one. */
template <class ST>
DEVICE float fetch_typed(const ring &r, const tile &t, int j0, bool new_keys, float rate, tile_shared *sh, ST st)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31, n = min(RECORDS, r.count - j0), j = j0 + 2 * w;
    const int mine = j + lane / 16, v = t.v0 + lane % 16 * 4, ch = t.k0 + lane * 4;
    const rssm_pooled &k = r.pool->k_cache, &d = r.pool->d_cache;
    const uint4 raw = quad_bits(row_of(r, d, t.hv, r.V, mine, v), d.dtype, mine < r.count ? r.V - v : 0, st);
    uint4 key0 = make_uint4(0, 0, 0, 0), key1 = key0;
    if (new_keys) {
        key0 = quad_bits(row_of(r, k, t.h, r.K, j, ch), k.dtype, j < r.count ? r.K - ch : 0, st);
        key1 = quad_bits(row_of(r, k, t.h, r.K, j + 1, ch), k.dtype, j + 1 < r.count ? r.K - ch : 0, st);
    }
    if (r.family == KDA) {
        if (new_keys)
            decay_keys(r, t, j, quad_floats(key0, st), quad_floats(key1, st), sh, st);
        sh->d[2 * w + lane / 16][lane % 16] = quad_floats(raw, st);
        return 1.0f;
    }
    const scalar_decay decay = scalar_gates(r, t, j0, n, rate);
    sh->d[2 * w + lane / 16][lane % 16] = scaled(quad_floats(raw, st), decay.own);
    if (new_keys) {
        sh->w[2 * w][lane] = quad_floats(key0, st);
        sh->w[2 * w + 1][lane] = quad_floats(key1, st);
    }
    return decay.state;
}

DEVICE float fetch_records(const ring &r, const tile &t, int j0, bool new_keys, float rate, tile_shared *sh)
{
    if (r.access == F32)
        return fetch_typed(r, t, j0, new_keys, rate, sh, f32_state());
    if (r.access == BF16)
        return fetch_typed(r, t, j0, new_keys, rate, sh, bf16_state());
    if (r.access == F16)
        return fetch_typed(r, t, j0, new_keys, rate, sh, f16_state());
    return fetch_typed(r, t, j0, new_keys, rate, sh, loose());
}

DEVICE float4 fma_of(float s, float4 x, float4 y)
{
    return make_float4(s * x.x + y.x, s * x.y + y.y, s * x.z + y.z, s * x.w + y.w);
}

/* x <- x e + sum of d_j w_j over a lot of n records. */
DEVICE void add_records(const tile_shared *sh, int n, float4 e, float4 *x)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x & 31;
#pragma unroll
    for (int q = 0; q < LINES; ++q)
        x[q] = product_of(x[q], e);
#pragma unroll 2
    for (int i = 0; i < n; ++i) {
        const float4 k = sh->w[i][lane];
#pragma unroll
        for (int q = 0; q < LINES; q += 4) {
            const float4 d = sh->d[i][(w * LINES + q) / 4];
            x[q] = fma_of(d.x, k, x[q]);
            x[q + 1] = fma_of(d.y, k, x[q + 1]);
            x[q + 2] = fma_of(d.z, k, x[q + 2]);
            x[q + 3] = fma_of(d.w, k, x[q + 3]);
        }
    }
}

DEVICE float decay_rate(const rssm_cuda_states &a, const rssm_state_layer &layer, int hv)
{
    if (a.family != MAMBA2)
        return 1.0f;
    const float x = load_any(layer.decay.data, hv, layer.decay.dtype);
    return a.decay_is_A ? x : -expf(x);
}

/* x becomes the state after all records: lot by lot, the oldest first. *keys: which keys shared memory holds. */
DEVICE void fold_tile(const ring &r, const tile &t, float rate, int *keys, tile_shared *sh, float4 *x)
{
    const int lane = threadIdx.x & 31, heads_keys = r.family == KDA ? t.hv : t.h;
    for (int j0 = 0; j0 < r.count; j0 += RECORDS) {
        const int wanted = (heads_keys * 32 + t.k0 / CHANNELS) * 4 + j0 / RECORDS;
        __syncthreads(); /* what was there has been read */
        const float state = fetch_records(r, t, j0, *keys != wanted, rate, sh);
        *keys = wanted;
        __syncthreads();
        const float4 e = r.family == KDA ? sh->e[lane] : make_float4(state, state, state, state);
        add_records(sh, min(RECORDS, r.count - j0), e, x);
    }
}

/* ---- states: the operations ------------------------------------------------------------------------------------- */

/* Tile `number` of a state: the rows of a head's channels follow each other, then come its other channels, then the next head. */
DEVICE tile tile_of(const rssm_cuda_states &a, int number)
{
    const int across = (a.K + CHANNELS - 1) / CHANNELS, down = (a.V + ROWS - 1) / ROWS;
    const int hv = number / (across * down);
    return {hv / (a.HV / a.H), hv, number % down * ROWS, number / down % across * CHANNELS};
}

DEVICE void next_tile(const rssm_cuda_states &a, tile *t)
{
    t->v0 += ROWS;
    if (t->v0 < a.V)
        return;
    t->v0 = 0;
    t->k0 += CHANNELS;
    if (t->k0 < a.K)
        return;
    t->k0 = 0;
    t->hv++;
    t->h = t->hv / (a.HV / a.H);
}

DEVICE matrix pool_matrix(const rssm_cuda_states &a, int64_t slot)
{
    const rssm_pooled state = a.pool[blockIdx.z].state;
    return matrix_of(state.data, slot * state.slot, state.dtype, false, a.V, a.K);
}

DEVICE matrix host_matrix(const rssm_cuda_states &a, int64_t i)
{
    const rssm_state_layer &host = a.layer[blockIdx.z];
    return matrix_of(host.state, i * host.state_row, host.state_dtype, a.transposed != 0, a.V, a.K);
}

DEVICE void state_fault(const rssm_cuda_slots &p, bool hit, uint32_t bit)
{
    if (hit && p.fault)
        atomicOr(p.fault, bit);
}

/* The block's tiles of the pool, with the pending records, to where entry i shall have them: the host's tensor, or in place. */
template <bool IN_PLACE, class ST>
DEVICE void take_tiles(const rssm_cuda_states &a, const matrix &from, int64_t i, int64_t slot, tile_shared *sh, ST st)
{
    const slot_cursor c = load_cursor(a.in, slot);
    const matrix to = IN_PLACE ? from : host_matrix(a, i);
    ring r = {&a.pool[blockIdx.z], slot, a.family, a.in.R, a.V, a.K, c.base, c.count, 0};
    const int first = blockIdx.x * a.run, end = min(first + a.run, a.state_tiles);
    tile t = tile_of(a, first);
    bool hit = false;
    int keys = -1;
    for (int number = first; number < end; ++number) {
        uint4 raw[LINES];
        float4 x[LINES];
        load_lines(lines_of(from, t, a.V, a.K), raw, st);
        if (number == first && !cursor_is_good(a.in, c)) {
            slot_fault(a.in, RSSM_FAULTBIT_CURSOR);
            return;
        }
        if (IN_PLACE && c.count == 0)
            return;
        if (number == first && c.count > 0)
            r.access = ring_access(r);
        const float rate = c.count > 0 ? decay_rate(a, a.layer[blockIdx.z], t.hv) : 1.0f;
        widen_lines(raw, x, st);
        fold_tile(r, t, rate, &keys, sh, x);
        if (!IN_PLACE && a.transposed) {
            turn_to_columns(sh, x);
            keys = -1;
        }
        store_lines(lines_of(to, t, a.V, a.K), to.access, x, &hit);
        next_tile(a, &t);
    }
    state_fault(a.in, hit, RSSM_FAULTBIT_STATE);
}

template <bool IN_PLACE> DEVICE void take_states(const rssm_cuda_states &a, int64_t i, int64_t slot, tile_shared *sh)
{
    const matrix from = pool_matrix(a, slot);
    if (from.access == F32)
        take_tiles<IN_PLACE>(a, from, i, slot, sh, f32_state());
    else if (from.access == BF16)
        take_tiles<IN_PLACE>(a, from, i, slot, sh, bf16_state());
    else if (from.access == F16)
        take_tiles<IN_PLACE>(a, from, i, slot, sh, f16_state());
    else
        take_tiles<IN_PLACE>(a, from, i, slot, sh, loose());
}

/* Entry i's tiles into the pool. */
template <class ST>
DEVICE void give_tiles(const rssm_cuda_states &a, const matrix &from, int64_t slot, tile_shared *sh, ST st)
{
    const matrix to = pool_matrix(a, slot);
    const int first = blockIdx.x * a.run, end = min(first + a.run, a.state_tiles);
    tile t = tile_of(a, first);
    bool hit = false;
    for (int number = first; number < end; ++number) {
        uint4 raw[LINES];
        float4 x[LINES];
        load_lines(lines_of(from, t, a.V, a.K), raw, st);
        widen_lines(raw, x, st);
        if (a.transposed) {
            __syncthreads(); /* the tile before has been read */
            turn_to_rows(sh, x);
        }
        store_lines(lines_of(to, t, a.V, a.K), to.access, x, &hit);
        next_tile(a, &t);
    }
    state_fault(a.in, hit, RSSM_FAULTBIT_STATE);
}

DEVICE void give_states(const rssm_cuda_states &a, int64_t i, int64_t slot, tile_shared *sh)
{
    const matrix from = host_matrix(a, i);
    if (from.access == F32)
        give_tiles(a, from, slot, sh, f32_state());
    else if (from.access == BF16)
        give_tiles(a, from, slot, sh, bf16_state());
    else if (from.access == F16)
        give_tiles(a, from, slot, sh, f16_state());
    else
        give_tiles(a, from, slot, sh, loose());
}

/* ---- states: the convolution's history --------------------------------------------------------------------------- */

#define HISTORY_CHANNELS 2 /* of a thread, at once */
#define HISTORY_COLUMNS  4

/* The channels first .. end - 1 of a history. */
struct part {
    int first, end;
};

/* Lines of `columns` elements, one a channel, that of channel 0 at `start`; column i is element (i + turn) % columns. */
struct history {
    void *data;
    int64_t start;
    int dtype, columns, turn;
};

DEVICE int64_t column_at(const history &h, int ch, int i)
{
    const int column = i + h.turn >= h.columns ? i + h.turn - h.columns : i + h.turn;
    return h.start + (int64_t)ch * h.columns + column;
}

/* Columns c0 .. of channels ch, ch + blockDim.x, ...; zeros where there are none. T: as wide as from's elements. */
template <class T>
DEVICE void load_columns(const history &from, int ch, int end, int c0, uint32_t raw[HISTORY_CHANNELS][HISTORY_COLUMNS])
{
#pragma unroll
    for (int n = 0; n < HISTORY_CHANNELS; ++n)
#pragma unroll
        for (int c = 0; c < HISTORY_COLUMNS; ++c) {
            const int channel = ch + n * (int)blockDim.x, column = c0 + c;
            raw[n][c] = 0;
            if (channel < end && column >= 0 && column < from.columns)
                raw[n][c] = ((const T *)from.data)[column_at(from, channel, column)];
        }
}

DEVICE void store_columns(const history &to, int ch, int end, int c0, int dtype,
                          const uint32_t raw[HISTORY_CHANNELS][HISTORY_COLUMNS], bool *hit)
{
#pragma unroll
    for (int n = 0; n < HISTORY_CHANNELS; ++n)
#pragma unroll
        for (int c = 0; c < HISTORY_COLUMNS; ++c) {
            const int channel = ch + n * (int)blockDim.x, column = c0 + c;
            if (channel < end && column < to.columns)
                store_any(to.data, column_at(to, channel, column), widen(raw[n][c], dtype), to.dtype, hit);
        }
}

/* Elements of 16 bits that keep their type, a thread's channels `apart` apart: bits as they are, by few instructions. */
DEVICE void move_halves(const history &from, const history &to, int ch, int end, int c0, int ahead)
{
    const int apart = (int)blockDim.x;
    uint16_t raw[HISTORY_COLUMNS][HISTORY_CHANNELS] = {};
#pragma unroll
    for (int c = 0; c < HISTORY_COLUMNS; ++c) {
        const int column = c0 + c - ahead;
        const bool there = from.data && column >= 0 && column < from.columns;
        const uint16_t *const p = (const uint16_t *)from.data + (there ? column_at(from, ch, column) : 0);
#pragma unroll
        for (int n = 0; n < HISTORY_CHANNELS; ++n)
            if (there && ch + n * apart < end)
                raw[c][n] = p[n * apart * from.columns];
    }
#pragma unroll
    for (int c = 0; c < HISTORY_COLUMNS; ++c) {
        uint16_t *const p = (uint16_t *)to.data + (c0 + c < to.columns ? column_at(to, ch, c0 + c) : 0);
#pragma unroll
        for (int n = 0; n < HISTORY_CHANNELS; ++n)
            if (c0 + c < to.columns && ch + n * apart < end)
                p[n * apart * to.columns] = raw[c][n];
    }
}

DEVICE void move_any(const history &from, const history &to, int ch, int end, int c0, int ahead, bool *hit)
{
    uint32_t raw[HISTORY_CHANNELS][HISTORY_COLUMNS] = {};
    if (from.data && is_half_width(from.dtype))
        load_columns<uint16_t>(from, ch, end, c0 - ahead, raw);
    else if (from.data)
        load_columns<uint32_t>(from, ch, end, c0 - ahead, raw);
    store_columns(to, ch, end, c0, from.dtype, raw, hit);
}

/* From's last columns to to's last ones, zeros to those before them, by the threads of a block. */
DEVICE void move_history(const rssm_cuda_states &a, const history &from, const history &to, const part &p)
{
    const int ahead = to.columns - from.columns;
    const bool halves = is_half_width(to.dtype) && (!from.data || from.dtype == to.dtype);
    bool hit = false;
    for (int ch = p.first + (int)threadIdx.x; ch < p.end; ch += HISTORY_CHANNELS * (int)blockDim.x)
        for (int c0 = 0; c0 < to.columns; c0 += HISTORY_COLUMNS) {
            if (halves)
                move_halves(from, to, ch, p.end, c0, ahead);
            else
                move_any(from, to, ch, p.end, c0, ahead, &hit);
        }
    state_fault(a.in, hit, RSSM_FAULTBIT_RING);
}

DEVICE history host_history(const rssm_cuda_states &a, int64_t i)
{
    const rssm_state_layer &host = a.layer[blockIdx.z];
    return {host.conv, i * host.conv_row, host.conv_dtype, a.conv_width - 1, 0};
}

DEVICE history pool_history(const rssm_cuda_states &a, int64_t slot, int turn)
{
    const rssm_pooled conv = a.pool[blockIdx.z].conv;
    return {conv.data, slot * conv.slot, conv.dtype, a.in.conv_len, turn};
}

/* The last w - 1 inputs of each channel, the oldest first, to the host's row i. */
DEVICE void take_history(const rssm_cuda_states &a, int64_t i, int64_t slot, const slot_cursor &c, const part &p)
{
    const history to = host_history(a, i);
    if (to.data)
        move_history(a, pool_history(a, slot, c.conv), to, p);
}

/* The host's row i to where a cursor of 0 has it: the last columns. */
DEVICE void give_history(const rssm_cuda_states &a, int64_t i, int64_t slot, const part &p)
{
    move_history(a, host_history(a, i), pool_history(a, slot, 0), p);
}

/* Those of part `number`. */
DEVICE part part_of(const rssm_cuda_states &a, int number)
{
    const int64_t first = (int64_t)number * a.history;
    return {(int)first, (int)min((int64_t)a.conv_channels, first + a.history)};
}

/* An imported slot's cursor, by one thread of all. */
DEVICE void give_cursor(const rssm_cuda_states &a, int64_t slot)
{
    if (!a.first || blockIdx.x || blockIdx.z || threadIdx.x)
        return;
    int32_t *const cursor = a.in.cursor + slot * a.in.cursor_slot;
    cursor[0] = cursor[1] = cursor[2] = 0;
    cursor[3] = (int32_t)(slot % a.in.L * a.spread_step % a.in.L);
}

/* Entry i's slot where this launch shall work on it, -1 where it is passed over. */
DEVICE int64_t judge_entry(const rssm_cuda_states &a, int64_t i, bool is_written)
{
    const int64_t slot = load_index(a.slots, i);
    if (!in_pool(a.in, slot))
        return -1;
    if (is_written && is_named(a.slots, a.n, i, slot)) {
        slot_fault(a.in, RSSM_FAULTBIT_SLOTS);
        return -1;
    }
    return slot;
}

#include "slots_tile.cuh"

/* ---- states: any shape ------------------------------------------------------------------------------------------- */

/* x = tile of a state or, from state_blocks on, part of a history, y = which entry, z = layer. */
extern "C" __global__ void __launch_bounds__(THREADS, 3) rssm_slots_export(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ __align__(16) tile_shared sh;
    wait_for_predecessors();
    for (int64_t i = blockIdx.y; i < a.n; i += gridDim.y) {
        const int64_t slot = judge_entry(a, i, false);
        if (slot < 0)
            continue;
        if ((int)blockIdx.x < a.state_blocks)
            take_states<false>(a, i, slot, &sh);
        else if (cursor_is_good(a.in, load_cursor(a.in, slot))) /* else the state's tiles mark the fault */
            take_history(a, i, slot, load_cursor(a.in, slot), part_of(a, blockIdx.x - a.state_blocks));
        __syncthreads(); /* sh has been read */
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) rssm_slots_import(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ __align__(16) tile_shared sh;
    wait_for_predecessors();
    for (int64_t i = blockIdx.y; i < a.n; i += gridDim.y) {
        const int64_t slot = judge_entry(a, i, true);
        if (slot < 0)
            continue;
        if ((int)blockIdx.x < a.state_blocks)
            give_states(a, i, slot, &sh);
        else
            give_history(a, i, slot, part_of(a, blockIdx.x - a.state_blocks));
        give_cursor(a, slot);
        __syncthreads();
    }
}

/* The fold of a flush; rssm_slots_flushed ends it. */
extern "C" __global__ void __launch_bounds__(THREADS, 3) rssm_slots_flush(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ __align__(16) tile_shared sh;
    wait_for_predecessors();
    for (int64_t i = blockIdx.y; i < a.n; i += gridDim.y) {
        const int64_t slot = judge_entry(a, i, true);
        if (slot >= 0)
            take_states<true>(a, i, slot, &sh);
        __syncthreads();
    }
}

/* After the last layers of a flush: base += count, count = 0. x = which entry. */
extern "C" __global__ void __launch_bounds__(THREADS) rssm_slots_flushed(const __grid_constant__ rssm_cuda_flushed a)
{
    wait_for_predecessors();
    for (int64_t i = blockIdx.x; i < a.n; i += gridDim.x) {
        const int64_t slot = load_index(a.slots, i);
        if (!in_pool(a.in, slot) || is_named(a.slots, a.n, i, slot))
            continue;
        const slot_cursor c = load_cursor(a.in, slot);
        if (threadIdx.x == 0 && cursor_is_good(a.in, c)) {
            int32_t *const cursor = a.in.cursor + slot * a.in.cursor_slot;
            cursor[0] = (c.base + c.count) % a.in.R;
            cursor[1] = cursor[3] = 0;
        }
    }
}
