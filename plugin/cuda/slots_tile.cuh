/* Exports, flushes, and imports of 16-bit states, close to what their bytes take: K a multiple of 32, V one of 16, all tensors at
 * 16-byte boundaries, rings of up to 16 records. slots.cu has the kernels for all else.
 *
 * A block of four warps takes a tile of a slot's state: 128 channels of 64 (float32) or 128 (16 bits) rows that share their
 * keys, 32 KB that are asked for at once, straight into registers, in 16-byte pieces. Rows are counted over the value heads
 * of a key head (KDA: of one head), so that narrow heads share a tile. What is pending is added by tensor cores:
 *     x[v][k] e[k] + sum over j of d_j[v] w_j[k],
 * 16 rows and 32 channels at a time, d the left operand, w the right one. d and k are exact in one bfloat16 term where the ring is
 * bfloat16; gates multiply d (one gate a head) or k (KDA), which then needs three terms (1.4e-7); rings of other types take
 * three for both, and the six products that count.
 *
 * Lane = (g, t) = (lane / 4, lane % 4) has rows 2g and 2g + 1 of its warp's 16 and records 4t .. 4t + 3; of each row it has every
 * fourth 16-byte piece. The order of channels among the columns of a product, and of records within it, is such that its sums
 * come out where the pieces are. Records from count on are never loaded and count as zeros.
 */
#include "mma.cuh"

#define TILE_THREADS  RSSM_CUDA_TILE_THREADS
#define TILE_CHANNELS 128
#define PASS_ROWS     RSSM_CUDA_TILE_ROWS /* 16 a warp */
#define KEYS_ROW      (TILE_CHANNELS + 8) /* in shared memory: rows of 8 matrices in different banks */

/* What the ring holds, and so how many terms d and w have. */
struct scalar_bf16 {
    enum { D_TERMS = 3, W_TERMS = 1, EXACT = 1, KDA_GATES = 0 };
};
struct kda_bf16 {
    enum { D_TERMS = 1, W_TERMS = 3, EXACT = 1, KDA_GATES = 1 };
};
struct scalar_any {
    enum { D_TERMS = 3, W_TERMS = 3, EXACT = 0, KDA_GATES = 0 };
};
struct kda_any {
    enum { D_TERMS = 3, W_TERMS = 3, EXACT = 0, KDA_GATES = 1 };
};

struct __align__(16) tile_memory
{
    uint16_t keys[3][16][KEYS_ROW];         /* term, record, channel: record_row() and key_column() say where */
    float decay[TILE_CHANNELS];             /* KDA: of the state                                              */
    float turned[TILE_CHANNELS][PASS_ROWS]; /* for [K, V]: turned_at() says where                             */
};

/* A block's tile: the group of rows that share keys, the first of its rows and channels, and how many channels there are. */
struct block_tile {
    int group, row, k0, channels;
};

/* A warp's rows of a pass: 16 of one value head, from v on. */
struct pass_rows {
    int hv, v;
    bool here;
};

/* PASSES passes of 64 rows make a tile; CHUNK elements a piece, PIECES of a row are a lane's. */
template <class ST> struct tile_form {
    enum { PASSES = 4 / ST::BYTES, PIECES = TILE_CHANNELS / (4 * ST::CHUNK) };
};

/* x / y by floats: exact for x < 2^20, of which slots.c makes sure. */
DEVICE int quotient(int x, int y)
{
    return (int)(((float)x + 0.5f) * reciprocal((float)y));
}

template <class ST> DEVICE block_tile find_tile(const rssm_cuda_states &a)
{
    const int across = (a.K + TILE_CHANNELS - 1) / TILE_CHANNELS, number = blockIdx.x;
    const int line = across == 1 ? number : quotient(number, across), group = quotient(line, a.group_tiles);
    const int k0 = (number - line * across) * TILE_CHANNELS;
    return {group, (line - group * a.group_tiles) * PASS_ROWS * tile_form<ST>::PASSES, k0,
            min(a.K - k0, TILE_CHANNELS)};
}

/* Where row `row` of the group is. */
DEVICE pass_rows find_row(const rssm_cuda_states &a, const block_tile &t, int row)
{
    const bool here = row < a.group_heads * a.V;
    const int head = here ? quotient(row, a.V) : 0;
    return {t.group * a.group_heads + head, here ? row - head * a.V : 0, here};
}

DEVICE pass_rows find_rows(const rssm_cuda_states &a, const block_tile &t, int pass)
{
    return find_row(a, t, t.row + pass * PASS_ROWS + (int)threadIdx.x / 32 * 16);
}

/* ---- loads ------------------------------------------------------------------------------------------------------ */

/* Loads that are asked for where they stand and waited for where they are used; zeros unless `go`. Written out for the GPU, because a
 * compiler moves what can be judged early before them, and all then waits for that. */
DEVICE uint32_t ask_word(const void *p, bool go)
{
#ifdef __CUDA_ARCH__
    uint32_t x;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b32 %0, 0;\n\t@p ld.global.b32 %0, [%1];\n\t}"
                 : "=&r"(x)
                 : "l"(p), "r"((int)go));
    return x;
#else
    return go ? *(const uint32_t *)p : 0;
#endif
}

DEVICE uint64_t ask_long(const void *p)
{
#ifdef __CUDA_ARCH__
    uint64_t x;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(x) : "l"(p));
    return x;
#else
    return *(const uint64_t *)p;
#endif
}

/* 16 bytes that nobody reads again soon. */
DEVICE uint4 ask_piece(const unsigned char *p, bool go)
{
#ifdef __CUDA_ARCH__
    uint4 x;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\t"
                 "mov.b32 %3, 0;\n\t@p ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
                 : "=&r"(x.x), "=&r"(x.y), "=&r"(x.z), "=&r"(x.w)
                 : "l"(p), "r"((int)go));
    return x;
#else
    return go ? __ldcs((const uint4 *)p) : make_uint4(0, 0, 0, 0);
#endif
}

/* Entry i of a list: its low word, and the high one where it has one. */
struct asked_index {
    uint32_t low, high;
    bool is_long;
};

DEVICE asked_index ask_index(const rssm_index &list, int64_t i)
{
    const bool is_long = list.bits == 64;
    const unsigned char *const at = (const unsigned char *)list.data + (i * list.stride << (is_long ? 3 : 2));
    return {ask_word(at, true), ask_word(at + 4, is_long), is_long};
}

DEVICE int64_t index_of(const asked_index &x)
{
    return x.is_long ? (int64_t)((uint64_t)x.high << 32 | x.low) : (int64_t)(int32_t)x.low;
}

/* A tensor of the pool, asked for before the slot is known. */
struct place {
    uint64_t data, slot; /* slot: elements from one to the next */
};

DEVICE place ask_place(const rssm_pooled *p)
{
    return {ask_long(&p->data), ask_long(&p->slot)};
}

DEVICE unsigned char *slot_of(const place &p, int64_t slot, int bytes)
{
    return (unsigned char *)(p.data + (uint64_t)slot * p.slot * (uint64_t)bytes);
}

DEVICE slot_cursor ask_cursor(const rssm_cuda_slots &p, int64_t slot, bool go)
{
    const int32_t *const at = p.cursor + slot * p.cursor_slot;
    return {(int32_t)ask_word(at, go), (int32_t)ask_word(at + 1, go), (int32_t)ask_word(at + 2, go),
            (int32_t)ask_word(at + 3, go)};
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

/* The pending records of a slot. */
struct slot_ring {
    const unsigned char *k, *d, *g;
    int family, R, V, K, base, count;
    int dtype; /* of k and d */
};

/* Element `first` of record j's row in [heads, R, width]. */
DEVICE const unsigned char *record_at(const slot_ring &r, const unsigned char *tensor, int head, int width, int size,
                                      int j, int first)
{
    const int row = r.base + j >= r.R ? r.base + j - r.R : r.base + j;
    return tensor + (int64_t)(head * r.R + row) * (width * size) + first * size;
}

/* Where a piece of a row has channel ch in the products' columns: of a group of 32 channels (16-bit states: a lane's
 * eight) or 16 (float32: four). */
template <int CHUNK> DEVICE int key_column(int ch)
{
    if (CHUNK == 8)
        return (ch & ~31) | (ch & 6) << 2 | (ch & 24) >> 2 | (ch & 1);
    return (ch & ~15) | (ch & 2) << 2 | (ch & 12) >> 1 | (ch & 1);
}

/* Record j's row of the right operand: lane t's four are its rows 2t, 2t + 1, 2t + 8, 2t + 9. */
DEVICE int record_row(int j)
{
    return (j >> 2) * 2 + (j & 1) + (j & 2) * 4;
}

/* Two neighbouring elements, as they lie in memory. */
struct raw_pair {
    uint32_t low, high; /* high: of float32 only */
};

DEVICE raw_pair load_pair(const unsigned char *at, int dtype, bool there)
{
    raw_pair p = {0, 0};
    if (there && is_half_width(dtype)) {
        p.low = *(const uint32_t *)at;
    } else if (there) {
        const uint2 both = *(const uint2 *)at;
        p.low = both.x;
        p.high = both.y;
    }
    return p;
}

DEVICE float2 widen_raw(raw_pair p, int dtype)
{
    if (!is_half_width(dtype))
        return make_float2(__uint_as_float(p.low), __uint_as_float(p.high));
    float x[2];
    if (dtype == BF16)
        widen2(p.low, x, bf16_state());
    else
        widen2(p.low, x, f16_state());
    return make_float2(x[0], x[1]);
}

/* The next bfloat16 term of two numbers, which is taken from them. */
DEVICE uint32_t next_term(float *x)
{
    const uint32_t pair = narrow2(x, bf16_state());
    float back[2];
    widen2(pair, back, bf16_state());
    x[0] -= back[0];
    x[1] -= back[1];
    return pair;
}

/* The left operand of a pass, and what multiplies its state where that is one number. */
template <class F> struct left_operand {
    uint32_t term[F::D_TERMS][4];
    float decay;
};

/* A slot's records as asked for: d of the lane's rows and records, their gates where they are numbers. */
struct raw_records {
    raw_pair d[4];
    float gate[4];
};

template <class F> DEVICE void load_records(const slot_ring &r, const pass_rows &p, raw_records *raw)
{
    const int lane = threadIdx.x & 31, g = lane / 4, t = lane % 4, dtype = F::EXACT ? BF16 : r.dtype;
    const int size = is_half_width(dtype) ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = 4 * t + i;
        const bool there = p.here && j < r.count;
        raw->d[i] = load_pair(record_at(r, r.d, p.hv, r.V, size, j, p.v + 2 * g), dtype, there);
        raw->gate[i] = 0.0f;
        if (!F::KDA_GATES && there)
            raw->gate[i] = *(const float *)record_at(r, r.g, p.hv, 1, 4, j, 0);
    }
}

/* Factors of the lane's four records: exp(rate times the sum of the gates after each), never a difference; Mamba-2: times its own
 * gate, dt. And of the state: exp(rate times the sum of all). */
DEVICE float record_factors(const slot_ring &r, const float *gate, float rate, float *factor)
{
    const int t = threadIdx.x & 3;
    const float own = (gate[0] + gate[1]) + (gate[2] + gate[3]);
    const float next = __shfl_xor_sync(ALL, own, 1);
    const float far = __shfl_xor_sync(ALL, own + next, 2);
    float after = (t & 1 ? 0.0f : next) + (t & 2 ? 0.0f : far);
#pragma unroll
    for (int i = 3; i >= 0; --i) {
        factor[i] = (r.family == MAMBA2 ? gate[i] : 1.0f) * exp2_approx(after * (rate * LOG2E));
        after += gate[i];
    }
    return exp2_approx((own + next + far) * (rate * LOG2E));
}

/* Row r of the pair a lane has, of records 0, 1 (or 2, 3): two bfloat16 as they are. */
DEVICE uint32_t pick_halves(uint32_t first, uint32_t second, int row)
{
    return row ? first >> 16 | (second & 0xffff0000u) : (first & 0xffffu) | second << 16;
}

template <class F> DEVICE void form_left(const slot_ring &r, const raw_records &raw, float rate, left_operand<F> *left)
{
    if (F::KDA_GATES && F::EXACT) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
            left->term[0][n] = pick_halves(raw.d[n / 2 * 2].low, raw.d[n / 2 * 2 + 1].low, n % 2);
        left->decay = 1.0f;
        return;
    }
    float2 d[4];
    float factor[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    left->decay = F::KDA_GATES ? 1.0f : record_factors(r, raw.gate, rate, factor);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        d[i] = widen_raw(raw.d[i], F::EXACT ? BF16 : r.dtype);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const int i = n / 2 * 2;
        float x[2] = {(n % 2 ? d[i].y : d[i].x) * factor[i], (n % 2 ? d[i + 1].y : d[i + 1].x) * factor[i + 1]};
#pragma unroll
        for (int term = 0; term < F::D_TERMS; ++term)
            left->term[term][n] = next_term(x);
    }
}

/* The keys of a tile, by a thread: two channels of eight records, from channel ch and record j0 on. A warp has 32 channels. */
struct raw_keys {
    raw_pair k[8];
    float2 gate[8]; /* KDA */
};

DEVICE int keys_channel()
{
    return threadIdx.x / 32 * 32 + threadIdx.x % 16 * 2;
}

DEVICE int keys_record()
{
    return threadIdx.x % 32 / 16 * 8;
}

template <class F> DEVICE void load_keys(const slot_ring &r, const block_tile &t, int h, raw_keys *raw)
{
    const int ch = keys_channel(), dtype = F::EXACT ? BF16 : r.dtype, size = is_half_width(dtype) ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int j = keys_record() + i;
        const bool there = ch < t.channels && j < r.count;
        raw->k[i] = load_pair(record_at(r, r.k, h, r.K, size, j, t.k0 + ch), dtype, there);
        if (F::KDA_GATES) {
            const raw_pair gate = load_pair(record_at(r, r.g, t.group, r.K, 4, j, t.k0 + ch), F32, there);
            raw->gate[i] = widen_raw(gate, F32);
        }
    }
}

template <class ST, class F> DEVICE void store_keys(const slot_ring &r, const raw_keys &raw, tile_memory *sh)
{
    const int ch = keys_channel(), j0 = keys_record(), column = key_column<ST::CHUNK>(ch);
    float2 after = make_float2(0.0f, 0.0f);
    if (F::KDA_GATES) {
        float2 own = after;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            own = make_float2(own.x + raw.gate[i].x, own.y + raw.gate[i].y);
        const float2 other = make_float2(__shfl_xor_sync(ALL, own.x, 16), __shfl_xor_sync(ALL, own.y, 16));
        if (j0 == 0) {
            after = other;
            sh->decay[ch] = exp2_approx((own.x + other.x) * LOG2E);
            sh->decay[ch + 1] = exp2_approx((own.y + other.y) * LOG2E);
        }
    }
#pragma unroll
    for (int i = 7; i >= 0; --i) {
        uint16_t *const to = &sh->keys[0][record_row(j0 + i)][column];
        if (F::EXACT && !F::KDA_GATES) {
            *(uint32_t *)to = raw.k[i].low;
            continue;
        }
        const float2 k = widen_raw(raw.k[i], F::EXACT ? BF16 : r.dtype);
        float x[2] = {k.x, k.y};
        if (F::KDA_GATES) {
            x[0] *= exp2_approx(after.x * LOG2E);
            x[1] *= exp2_approx(after.y * LOG2E);
            after = make_float2(after.x + raw.gate[i].x, after.y + raw.gate[i].y);
        }
#pragma unroll
        for (int term = 0; term < F::W_TERMS; ++term)
            *(uint32_t *)(to + term * 16 * KEYS_ROW) = next_term(x);
    }
}

/* The records' part of a pass's 16 rows and 32 channels from ch on: the smallest products first. */
template <class F> DEVICE void sum_records(const left_operand<F> &left, const tile_memory *sh, int ch, float acc[4][4])
{
    const int lane = threadIdx.x & 31;
    uint32_t w[F::W_TERMS][8];
#pragma unroll
    for (int term = 0; term < F::W_TERMS; ++term) {
        const uint16_t *const row = &sh->keys[term][lane & 15][ch + (lane >> 4) * 8];
        load_transposed(w[term], row);
        load_transposed(w[term] + 4, row + 16);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
    for (int order = 2; order >= 0; --order)
#pragma unroll
        for (int i = 0; i < F::D_TERMS; ++i)
            if (order - i >= 0 && order - i < F::W_TERMS) {
                const uint32_t *const d = left.term[i], *const b =
                                                            w[order - i >= 0 && order - i < F::W_TERMS ? order - i : 0];
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    mma_bf16(acc[n], d[0], d[1], d[2], d[3], b[2 * n], b[2 * n + 1]);
            }
}

/* ---- states ----------------------------------------------------------------------------------------------------- */

/* A lane's pieces of one pass: rows 2g and 2g + 1. */
template <class ST> struct pass_pieces {
    uint4 row[2][tile_form<ST>::PIECES];
};

/* Channel of a lane's piece q within the tile. */
template <class ST> DEVICE int piece_channel(int q)
{
    return (4 * q + (int)(threadIdx.x & 3)) * ST::CHUNK;
}

/* Where the lane's first row of a pass begins in [HV, V, K], in elements. */
DEVICE int64_t lane_row(const rssm_cuda_states &a, const pass_rows &p)
{
    return ((int64_t)p.hv * a.V + p.v + (threadIdx.x & 31) / 4 * 2) * a.K;
}

template <class ST>
DEVICE void load_pass(const rssm_cuda_states &a, const unsigned char *state, const block_tile &t, const pass_rows &p,
                      bool go, pass_pieces<ST> *x)
{
    const unsigned char *const at = state + (lane_row(a, p) + t.k0 + piece_channel<ST>(0)) * ST::BYTES;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int q = 0; q < tile_form<ST>::PIECES; ++q)
            x->row[i][q] = ask_piece(at + i * a.K * ST::BYTES + q * 64, go && p.here && q * 4 * ST::CHUNK < t.channels);
}

/* Eight elements of a row as the lane has them among 32 channels: eight in a row, or four and four. */
DEVICE void widen_eight(const uint4 *piece, float *x, f32_state st)
{
    widen_chunk(piece[0], x, st);
    widen_chunk(piece[1], x + 4, st);
}

template <class ST> DEVICE void widen_eight(const uint4 *piece, float *x, ST st)
{
    widen_chunk(piece[0], x, st);
}

/* To a row of the destination, from the lane's first channel on. apart: elements from the first four to the others. */
DEVICE void store_eight(unsigned char *at, int dtype, int apart, float *x, bool *hit)
{
    if (!is_half_width(dtype)) {
        __stcs((float4 *)at, make_float4(x[0], x[1], x[2], x[3]));
        __stcs((float4 *)(at + apart * 4), make_float4(x[4], x[5], x[6], x[7]));
        return;
    }
    const uint4 raw = dtype == BF16 ? narrow_chunk(x, hit, bf16_state()) : narrow_chunk(x, hit, f16_state());
    if (apart == 4) {
        __stcs((uint4 *)at, raw);
    } else {
        __stcs((uint2 *)at, make_uint2(raw.x, raw.y));
        __stcs((uint2 *)(at + apart * 2), make_uint2(raw.z, raw.w));
    }
}

/* Rows 2g, 2g + 1 of the pass, eight channels each, to the turned tile: (k, v) in quad v / 4 ^ turn of line k, without a bank
 * conflict either way. */
template <int CHUNK> DEVICE int turned_at(int k, int v)
{
    return (v / 4 ^ k / CHUNK % 4 * 2) * 4 + v % 4;
}

template <class ST> DEVICE void turn_eight(tile_memory *sh, int ch, const float *x, const float *y)
{
    const int v = threadIdx.x / 32 * 16 + (threadIdx.x & 31) / 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        const int k = ch + (ST::CHUNK == 8 ? n : n % 4 + n / 4 * 16);
        *(float2 *)&sh->turned[k][turned_at<ST::CHUNK>(k, v)] = make_float2(x[n], y[n]);
    }
}

/* The turned tile to [HV, K, V]: a thread has four rows v of every eighth channel. */
template <class ST>
DEVICE void store_turned(const rssm_cuda_states &a, const matrix &to, const block_tile &t, int pass,
                         const tile_memory *sh, bool *hit)
{
    const int quad = threadIdx.x % 16, k0 = threadIdx.x / 16;
    const pass_rows r = find_row(a, t, t.row + pass * PASS_ROWS + quad * 4);
    if (!r.here)
        return;
    const int64_t at = ((int64_t)r.hv * a.K + t.k0 + k0) * a.V + r.v;
    unsigned char *p = (unsigned char *)element(to.data, at, to.dtype);
    const int64_t step = (int64_t)(TILE_THREADS / 16) * a.V * (is_half_width(to.dtype) ? 2 : 4);
#pragma unroll 4
    for (int k = k0; k < t.channels; k += TILE_THREADS / 16, p += step) {
        const float4 x = *(const float4 *)&sh->turned[k][turned_at<ST::CHUNK>(k, quad * 4)];
        if (to.dtype == F32)
            __stcs((float4 *)p, x);
        else if (to.dtype == BF16)
            store_quad(p, x, BF16, 1, hit, bf16_state());
        else
            store_quad(p, x, F16, 1, hit, f16_state());
    }
}

/* A pass's pieces, with the records where there are any, to where they shall be. */
template <class ST, class F>
DEVICE void finish_pass(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p,
                        const pass_pieces<ST> &x, bool fold, const left_operand<F> &left, tile_memory *sh, bool turn,
                        bool *hit)
{
    constexpr int APART = ST::CHUNK == 8 ? 4 : 16, PER = tile_form<ST>::PIECES / 4;
    unsigned char *const at = (unsigned char *)element(to.data, lane_row(a, p) + t.k0 + piece_channel<ST>(0), to.dtype);
    const int size = is_half_width(to.dtype) ? 2 : 4;
#pragma unroll
    for (int n = 0; n < TILE_CHANNELS / 32; ++n) {
        if (n * 32 >= t.channels)
            break;
        float y[2][8], acc[4][4];
        if (fold)
            sum_records(left, sh, n * 32, acc);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            widen_eight(x.row[i] + n * PER, y[i], ST());
            if (fold) {
#pragma unroll
                for (int c = 0; c < 8; ++c) {
                    const int ch = n * 32 + piece_channel<ST>(0) + (ST::CHUNK == 8 ? c : c % 4 + c / 4 * 16);
                    y[i][c] = y[i][c] * (F::KDA_GATES ? sh->decay[ch] : left.decay) + acc[c / 2][2 * i + c % 2];
                }
            }
        }
        if (turn) {
            turn_eight<ST>(sh, n * 32 + piece_channel<ST>(0), y[0], y[1]);
        } else if (p.here) {
            store_eight(at + n * 32 * size, to.dtype, APART, y[0], hit);
            store_eight(at + (n * 32 + a.K) * size, to.dtype, APART, y[1], hit);
        }
    }
}

/* ---- tiles: out of the pool ------------------------------------------------------------------------------------- */

/* The records of a tile: into shared memory, and as the left operands of its passes. */
template <class ST, class F>
DEVICE void take_records(const rssm_cuda_states &a, const slot_ring &r, const block_tile &t, const pass_rows *rows,
                         left_operand<F> *left, tile_memory *sh)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    raw_records records[PASSES];
    raw_keys keys;
    float rate[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        load_records<F>(r, rows[pass], &records[pass]);
    load_keys<F>(r, t, F::KDA_GATES ? quotient(t.group, a.HV / a.H) : t.group, &keys);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        rate[pass] = F::KDA_GATES ? 1.0f : decay_rate(a, a.layer[blockIdx.z], rows[pass].hv);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        form_left<F>(r, records[pass], rate[pass], &left[pass]);
    store_keys<ST, F>(r, keys, sh);
}

/* Whether the block shall write entry i; marks faults. */
DEVICE bool judge_taken(const rssm_cuda_states &a, int64_t i, int64_t slot, const slot_cursor &c)
{
    if (a.in_place && is_named(a.slots, a.n, i, slot)) {
        slot_fault(a.in, RSSM_FAULTBIT_SLOTS);
        return false;
    }
    if (!cursor_is_good(a.in, c)) {
        slot_fault(a.in, RSSM_FAULTBIT_CURSOR);
        return false;
    }
    return !a.in_place || c.count > 0;
}

/* The block's tile of an entry. A block asks for no bytes while it computes addresses: so the slot is asked for first, and what the
 * slot leads to before the slot is judged. */
template <class ST, class F> DEVICE void take_tile(const rssm_cuda_states &a, tile_memory *sh)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const int64_t i = blockIdx.y;
    const asked_index index = ask_index(a.slots, i);
    const rssm_pool_layer *const pool = a.pool + blockIdx.z;
    const place state = ask_place(&pool->state), k = ask_place(&pool->k_cache), d = ask_place(&pool->d_cache),
                g = ask_place(&pool->g_cache);
    const block_tile t = find_tile<ST>(a);
    pass_rows rows[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        rows[pass] = find_rows(a, t, pass);
    const int64_t slot = index_of(index);
    const bool here = in_pool(a.in, slot);
    const slot_cursor c = ask_cursor(a.in, slot, here);
    unsigned char *const start = slot_of(state, slot, ST::BYTES);
    pass_pieces<ST> x[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        load_pass<ST>(a, start, t, rows[pass], here, &x[pass]);
    if (!here)
        return;
    if (!judge_taken(a, i, slot, c))
        return;
    left_operand<F> left[PASSES] = {};
    if (c.count > 0) {
        const int dtype = F::EXACT ? BF16 : a.record_dtype, size = is_half_width(dtype) ? 2 : 4;
        const slot_ring r = {slot_of(k, slot, size),
                             slot_of(d, slot, size),
                             slot_of(g, slot, 4),
                             a.family,
                             a.in.R,
                             a.V,
                             a.K,
                             c.base,
                             c.count,
                             dtype};
        take_records<ST, F>(a, r, t, rows, left, sh);
        __syncthreads();
    }
    const matrix to = a.in_place ? matrix{start, ST::DTYPE, false, 0} : host_matrix(a, i);
    const bool turn = !a.in_place && a.transposed;
    bool hit = false;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        finish_pass<ST, F>(a, to, t, rows[pass], x[pass], c.count > 0, left[pass], sh, turn, &hit);
        if (turn) {
            __syncthreads();
            store_turned<ST>(a, to, t, pass, sh, &hit);
            __syncthreads();
        }
    }
    state_fault(a.in, hit, RSSM_FAULTBIT_STATE);
}

template <class ST> DEVICE void take_form(const rssm_cuda_states &a, tile_memory *sh)
{
    if (a.form == RSSM_CUDA_FORM_SCALAR_BF16)
        take_tile<ST, scalar_bf16>(a, sh);
    else if (a.form == RSSM_CUDA_FORM_KDA_BF16)
        take_tile<ST, kda_bf16>(a, sh);
    else if (a.form == RSSM_CUDA_FORM_SCALAR)
        take_tile<ST, scalar_any>(a, sh);
    else
        take_tile<ST, kda_any>(a, sh);
}

DEVICE void take_part(const rssm_cuda_states &a)
{
    const int64_t slot = load_index(a.slots, blockIdx.y);
    if (in_pool(a.in, slot))
        take_history(a, blockIdx.y, slot);
}

/* x = tile of a state or, from state_blocks on, part of a history, y = which entry, z = layer. Exports, and folds of flushes. */
extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)
    rssm_slots_take(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ tile_memory sh;
    if ((int)blockIdx.x >= a.state_blocks)
        take_part(a);
    else if (a.state_dtype == F32)
        take_form<f32_state>(a, &sh);
    else if (a.state_dtype == BF16)
        take_form<bf16_state>(a, &sh);
    else
        take_form<f16_state>(a, &sh);
}

/* ---- tiles: into the pool --------------------------------------------------------------------------------------- */

/* A lane's pieces of a pass in [HV, K, V]: CHUNK rows v of a channel each, those of a channel side by side. */
template <class ST> struct turned_pieces {
    enum { ACROSS = PASS_ROWS / ST::CHUNK, DOWN = TILE_THREADS / ACROSS, COUNT = TILE_CHANNELS / DOWN };
    uint4 piece[COUNT];
};

template <class ST>
DEVICE void load_turned(const rssm_cuda_states &a, const unsigned char *state, const block_tile &t, int pass,
                        turned_pieces<ST> *x)
{
    typedef turned_pieces<ST> form;
    const int k0 = threadIdx.x / form::ACROSS;
    const pass_rows r = find_row(a, t, t.row + pass * PASS_ROWS + (int)threadIdx.x % form::ACROSS * ST::CHUNK);
    const int64_t at = ((int64_t)r.hv * a.K + t.k0 + k0) * a.V + r.v;
    const unsigned char *const p = state + at * ST::BYTES;
    const int64_t step = (int64_t)form::DOWN * a.V * ST::BYTES;
#pragma unroll
    for (int q = 0; q < form::COUNT; ++q)
        x->piece[q] = ask_piece(p + q * step, r.here && k0 + q * form::DOWN < t.channels);
}

template <class ST, class DT> DEVICE void turn_pieces(const turned_pieces<ST> &x, tile_memory *sh)
{
    typedef turned_pieces<ST> form;
    const int v = (int)threadIdx.x % form::ACROSS * ST::CHUNK, k0 = threadIdx.x / form::ACROSS;
#pragma unroll
    for (int q = 0; q < form::COUNT; ++q) {
        const int k = k0 + q * form::DOWN;
        float y[ST::CHUNK];
        widen_chunk(x.piece[q], y, ST());
#pragma unroll
        for (int n = 0; n < ST::CHUNK; n += 4)
            *(float4 *)&sh->turned[k][turned_at<DT::CHUNK>(k, v + n)] = make_float4(y[n], y[n + 1], y[n + 2], y[n + 3]);
    }
}

template <class DT>
DEVICE void store_rows(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p,
                       const tile_memory *sh, bool *hit)
{
    constexpr int APART = DT::CHUNK == 8 ? 4 : 16;
    const int v = threadIdx.x / 32 * 16 + (threadIdx.x & 31) / 4 * 2, size = is_half_width(to.dtype) ? 2 : 4;
    unsigned char *const at = (unsigned char *)element(to.data, lane_row(a, p) + t.k0 + piece_channel<DT>(0), to.dtype);
    if (!p.here)
        return;
#pragma unroll
    for (int n = 0; n < TILE_CHANNELS / 32; ++n) {
        if (n * 32 >= t.channels)
            break;
        float y[2][8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const int k = n * 32 + piece_channel<DT>(0) + (DT::CHUNK == 8 ? c : c % 4 + c / 4 * 16);
            const float2 pair = *(const float2 *)&sh->turned[k][turned_at<DT::CHUNK>(k, v)];
            y[0][c] = pair.x;
            y[1][c] = pair.y;
        }
        store_eight(at + n * 32 * size, to.dtype, APART, y[0], hit);
        store_eight(at + (n * 32 + a.K) * size, to.dtype, APART, y[1], hit);
    }
}

/* ST: type of the host's states, which are asked for before the slot is known. DT: float32, or any 16-bit type of the pool's. */
template <class ST, class DT, bool TURN> DEVICE void give_tile(const rssm_cuda_states &a, tile_memory *sh)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const int64_t i = blockIdx.y;
    const block_tile t = find_tile<ST>(a);
    const unsigned char *const from = host_matrix(a, i).data;
    const place state = ask_place(&a.pool[blockIdx.z].state);
    pass_rows rows[PASSES];
    pass_pieces<ST> x[PASSES];
    turned_pieces<ST> turned[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        rows[pass] = find_rows(a, t, pass);
        if (TURN)
            load_turned<ST>(a, from, t, pass, &turned[pass]);
        else
            load_pass<ST>(a, from, t, rows[pass], true, &x[pass]);
    }
    const int64_t slot = judge_entry(a, i, true);
    if (slot < 0)
        return;
    const matrix to = {slot_of(state, slot, is_half_width(a.state_dtype) ? 2 : 4), a.state_dtype, false, 0};
    const left_operand<kda_bf16> none = {};
    bool hit = false;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        if (!TURN) {
            finish_pass<ST, kda_bf16>(a, to, t, rows[pass], x[pass], false, none, sh, false, &hit);
            continue;
        }
        turn_pieces<ST, DT>(turned[pass], sh);
        __syncthreads();
        store_rows<DT>(a, to, t, rows[pass], sh, &hit);
        __syncthreads();
    }
    give_cursor(a, slot);
    state_fault(a.in, hit, RSSM_FAULTBIT_STATE);
}

template <class ST> DEVICE void give_form(const rssm_cuda_states &a, tile_memory *sh)
{
    if (!a.transposed)
        give_tile<ST, f32_state, false>(a, sh);
    else if (a.state_dtype == F32)
        give_tile<ST, f32_state, true>(a, sh);
    else
        give_tile<ST, bf16_state, true>(a, sh);
}

DEVICE void give_part(const rssm_cuda_states &a)
{
    const int64_t slot = judge_entry(a, blockIdx.y, true);
    if (slot >= 0)
        give_history(a, blockIdx.y, slot);
}

/* Imports of 16-bit states; x, y, z as in rssm_slots_take. */
extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)
    rssm_slots_give(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ tile_memory sh;
    if ((int)blockIdx.x >= a.state_blocks)
        give_part(a);
    else if (a.layer[blockIdx.z].state_dtype == BF16)
        give_form<bf16_state>(a, &sh);
    else
        give_form<f16_state>(a, &sh);
}
