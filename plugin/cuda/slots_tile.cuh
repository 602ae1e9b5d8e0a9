/* Exports, flushes and imports as fast as their bytes move: K a multiple of 32, V one of 16, all tensors at 16-byte
 * boundaries, rings of up to 16 records. slots.cu has the kernels for all else.
 *
 * A block of four warps takes a tile of a slot's state: 128 channels of 64 (float32) or 128 (16 bits) rows that share their
 * keys, 32 KB that are asked for at once, straight into registers, in 16-byte pieces. Rows are counted over the value heads
 * of a key head (KDA: of one head), so that narrow heads share a tile. What is pending is added by tensor cores:
 *     x[v][k] e[k] + sum over j of d_j[v] w_j[k],
 * 16 rows and 32 channels at a time, d the left operand, w the right one. d and k are exact in one bfloat16 term where the ring is
 * bfloat16; gates multiply d (one gate a head) or k (KDA), which then needs three terms (1.4e-7); rings of other types take
 * three for both, and the six products that count.
 *
 * Lane = (g, t) = (lane / 4, lane % 4) has two neighbouring rows of its warp's 16 (find_rows() and take_rows() say which) and records
 * 4t .. 4t + 3; of each row it has every fourth 16-byte piece. The order of channels among the columns of a product, and of records within it, is such that its sums
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
struct any_ring {
    enum { D_TERMS = 3, W_TERMS = 3, EXACT = 0, KDA_GATES = 0 };
};

template <class F> DEVICE bool has_kda_gates(int family)
{
    return F::EXACT ? (bool)F::KDA_GATES : family == KDA;
}

struct __align__(16) tile_memory
{
    uint16_t keys[3][16][KEYS_ROW]; /* term, record, channel: record_row() and key_column() say where */
    float decay[TILE_CHANNELS];     /* KDA: of the state                                              */
};

/* Of an import in [K, V]: turned_at() says where a channel of a row is. */
struct __align__(16) turned_memory
{
    float turned[TILE_CHANNELS][PASS_ROWS];
};

/* A block's tile: the group of rows that share keys, the first of its rows and channels, and how many channels there are. */
struct block_tile {
    int group, row, k0, channels;
};

/* A lane's two rows of a pass: v and v + 1 of value head hv. */
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

/* Of imports: a pass is 64 rows, of which a warp has 16. */
DEVICE pass_rows find_rows(const rssm_cuda_states &a, const block_tile &t, int pass)
{
    return find_row(a, t, t.row + pass * PASS_ROWS + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 * 2);
}

/* Of exports: a lane's rows of all passes are neighbours, so that in [K, V] eight lanes fill 64 bytes. */
template <class ST> DEVICE pass_rows take_rows(const rssm_cuda_states &a, const block_tile &t, int pass)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    return find_row(a, t,
                    t.row + (int)threadIdx.x / 32 * 16 * PASSES + ((int)threadIdx.x % 32 / 4 * PASSES + pass) * 2);
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

struct pool_places {
    place state, k, d, g;
};

DEVICE pool_places ask_places(const rssm_pool_layer *p)
{
    return {ask_place(&p->state), ask_place(&p->k_cache), ask_place(&p->d_cache), ask_place(&p->g_cache)};
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

#include "slots_fold.cuh"

/* ---- states ----------------------------------------------------------------------------------------------------- */

/* A lane's pieces of one pass: its two rows. */
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
    return ((int64_t)p.hv * a.V + p.v) * a.K;
}

/* Pieces first .. end - 1 of row i of the lane's two. */
template <class ST>
DEVICE void load_row(const rssm_cuda_states &a, const unsigned char *state, const block_tile &t, const pass_rows &p,
                     int i, bool go, pass_pieces<ST> *x, int first = 0, int end = tile_form<ST>::PIECES)
{
    const unsigned char *const at = state + (lane_row(a, p) + t.k0 + piece_channel<ST>(0)) * ST::BYTES;
#pragma unroll
    for (int q = first; q < end; ++q)
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

/* Eight channels each of the lane's two rows, of the 32 from ch on: times their decay, and the records on top. */
template <class ST, class F, int TERMS>
DEVICE void add_records(const rssm_cuda_states &a, const left_operand<F> &left, const tile_memory *sh, int ch,
                        float y[2][8])
{
    float acc[4][4];
    sum_records<F, TERMS>(left, sh, ch, acc);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const int at = ch + piece_channel<ST>(0) + (ST::CHUNK == 8 ? c : c % 4 + c / 4 * 16);
        const float decay = has_kda_gates<F>(a.family) ? sh->decay[at] : left.decay;
        y[0][c] = y[0][c] * decay + acc[c / 2][c % 2];
        y[1][c] = y[1][c] * decay + acc[c / 2][2 + c % 2];
    }
}

/* To a row of the destination, from the lane's first channel on. APART: elements from the first four to the others. *top keeps what
 * keep_larger() does: what has become infinite is mended in the end. */
template <int APART> DEVICE void store_eight(unsigned char *at, const float *x, uint32_t *, f32_state)
{
    __stcs((float4 *)at, make_float4(x[0], x[1], x[2], x[3]));
    __stcs((float4 *)(at + APART * 4), make_float4(x[4], x[5], x[6], x[7]));
}

template <int APART, class DT> DEVICE void store_eight(unsigned char *at, const float *x, uint32_t *top, DT dt)
{
    const uint4 raw = narrow_quickly(x, top, dt);
    if (APART == 4) {
        __stcs((uint4 *)at, raw);
    } else {
        __stcs((uint2 *)at, make_uint2(raw.x, raw.y));
        __stcs((uint2 *)(at + APART * 2), make_uint2(raw.z, raw.w));
    }
}

/* Where (k, v) lies in the turned tile: in quad v / 4 ^ turn of line k, so that no banks conflict. */
template <int CHUNK> DEVICE int turned_at(int k, int v)
{
    return (v / 4 ^ k / CHUNK % 4 * 2) * 4 + v % 4;
}

/* The lane's neighbouring rows of a channel to [.., K, V]: for one channel eight lanes fill whole sectors. */
DEVICE void store_rows_of(unsigned char *at, const float (&x)[2], uint32_t *, f32_state)
{
    __stcs((float2 *)at, make_float2(x[0], x[1]));
}

DEVICE void store_rows_of(unsigned char *at, const float (&x)[4], uint32_t *, f32_state)
{
    __stcs((float4 *)at, make_float4(x[0], x[1], x[2], x[3]));
}

template <class DT> DEVICE uint32_t narrow_two(const float *x, uint32_t *top, DT dt)
{
    const uint32_t pair = narrow2(x, dt);
    keep_larger(top, pair, dt);
    return pair;
}

template <class DT> DEVICE void store_rows_of(unsigned char *at, const float (&x)[2], uint32_t *top, DT dt)
{
    __stcs((uint32_t *)at, narrow_two(x, top, dt));
}

template <class DT> DEVICE void store_rows_of(unsigned char *at, const float (&x)[4], uint32_t *top, DT dt)
{
    __stcs((uint2 *)at, make_uint2(narrow_two(x, top, dt), narrow_two(x + 2, top, dt)));
}

/* Where a lane's first channel of a pass goes; a row of it is K elements. */
template <class DT, class ST>
DEVICE unsigned char *lane_start(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p)
{
    return to.data + (lane_row(a, p) + t.k0 + piece_channel<ST>(0)) * DT::BYTES;
}

/* The same in [HV, K, V]; a channel is V elements. */
template <class DT, class ST>
DEVICE unsigned char *lane_column(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p)
{
    const int64_t k = (int64_t)p.hv * a.K + t.k0 + piece_channel<ST>(0);
    return to.data + (k * a.V + p.v) * DT::BYTES;
}

/* Eight channels each of a pass's two rows, of the 32 from n * 32 on, with the records if there are any. Two terms of a
 * number (2e-6) are enough for what is rounded to 16 bits, where the other factor is exact. */
template <class ST, class F, class DT, bool FOLD>
DEVICE void form_eight(const rssm_cuda_states &a, const pass_pieces<ST> &x, const left_operand<F> &left,
                       const tile_memory *sh, int n, float y[2][8])
{
    constexpr int PER = tile_form<ST>::PIECES / 4;
    widen_eight(x.row[0] + n * PER, y[0], ST());
    widen_eight(x.row[1] + n * PER, y[1], ST());
    if (FOLD)
        add_records<ST, F, DT::BYTES == 2 && F::EXACT ? 2 : 3>(a, left, sh, n * 32, y);
}

/* A pass's pieces to rows of type DT. The products of a warp need all of its lanes: so those without rows only store nothing. */
template <class ST, class F, class DT, bool FOLD>
DEVICE void finish_pass(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p,
                        const pass_pieces<ST> &x, const left_operand<F> &left, const tile_memory *sh, uint32_t *top)
{
    constexpr int APART = ST::CHUNK == 8 ? 4 : 16, PER = tile_form<ST>::PIECES / 4;
    constexpr bool SAME = (int)ST::DTYPE == (int)DT::DTYPE;
    unsigned char *const first = lane_start<DT, ST>(a, to, t, p), *const second = first + a.K * DT::BYTES;
#pragma unroll
    for (int n = 0; n < TILE_CHANNELS / 32; ++n) {
        if (n * 32 >= t.channels)
            break;
        if constexpr (SAME && !FOLD) { /* bits as they are */
            if (!p.here)
                break;
#pragma unroll
            for (int q = n * PER; q < (n + 1) * PER; ++q) {
                __stcs((uint4 *)(first + q * 64), x.row[0][q]);
                __stcs((uint4 *)(second + q * 64), x.row[1][q]);
            }
        } else {
            float y[2][8];
            form_eight<ST, F, DT, FOLD>(a, x, left, sh, n, y);
            if (p.here) {
                store_eight<APART>(first + n * 32 * DT::BYTES, y[0], top, DT());
                store_eight<APART>(second + n * 32 * DT::BYTES, y[1], top, DT());
            }
        }
    }
}

/* The same for all passes, to columns: [K, V]. */
template <class ST, class F, class DT, bool FOLD>
DEVICE void finish_turned(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows *rows,
                          const pass_pieces<ST> *x, const left_operand<F> *left, const tile_memory *sh, uint32_t *top)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const int64_t line = (int64_t)a.V * DT::BYTES; /* from one channel to the next */
    unsigned char *const first = lane_column<DT, ST>(a, to, t, rows[0]);
#pragma unroll
    for (int n = 0; n < TILE_CHANNELS / 32; ++n) {
        if (n * 32 >= t.channels)
            break;
        float y[PASSES][2][8];
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            form_eight<ST, F, DT, FOLD>(a, x[pass], left[pass], sh, n, y[pass]);
        if (!rows[0].here)
            continue;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            float column[2 * PASSES];
#pragma unroll
            for (int i = 0; i < 2 * PASSES; ++i)
                column[i] = y[i / 2][i % 2][c];
            store_rows_of(first + (n * 32 + (ST::CHUNK == 8 ? c : c % 4 + c / 4 * 16)) * line, column, top, DT());
        }
    }
}

template <class ST, class F, class DT, bool TURN, bool FOLD>
DEVICE void finish_all(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows *rows,
                       const pass_pieces<ST> *x, const left_operand<F> *left, const tile_memory *sh, uint32_t *top)
{
    if constexpr (TURN) {
        finish_turned<ST, F, DT, FOLD>(a, to, t, rows, x, left, sh, top);
    } else {
#pragma unroll
        for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
            finish_pass<ST, F, DT, FOLD>(a, to, t, rows[pass], x[pass], left[pass], sh, top);
    }
}

template <class ST, class F, class DT, bool TURN>
DEVICE void finish_passes(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows *rows,
                          const pass_pieces<ST> *x, bool fold, const left_operand<F> *left, const tile_memory *sh,
                          uint32_t *top)
{
    if (fold)
        finish_all<ST, F, DT, TURN, true>(a, to, t, rows, x, left, sh, top);
    else
        finish_all<ST, F, DT, TURN, false>(a, to, t, rows, x, left, sh, top);
}

/* ---- tiles: out of the pool ------------------------------------------------------------------------------------- */

/* The records of a tile, as asked for. */
template <class ST> struct tile_records {
    raw_records rows[tile_form<ST>::PASSES];
    raw_gates gates; /* of the lane's head: its rows of all passes are neighbours */
    raw_keys keys;
};

template <class ST, class F>
DEVICE void load_tile_records(const rssm_cuda_states &a, const slot_ring &r, const block_tile &t, const pass_rows *rows,
                              tile_records<ST> *raw)
{
#pragma unroll
    for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
        load_records<F>(r, rows[pass], &raw->rows[pass]);
    load_gates<F>(r, rows[0], &raw->gates);
    load_keys<F>(r, t, has_kda_gates<F>(r.family) ? quotient(t.group, a.HV / a.H) : t.group, &raw->keys);
}

/* Into shared memory, and as the left operands of the passes. */
template <class ST, class F>
DEVICE void take_records(const rssm_cuda_states &a, const slot_ring &r, const pass_rows *rows,
                         const tile_records<ST> &raw, left_operand<F> *left, tile_memory *sh)
{
    float factor[4] = {1.0f, 1.0f, 1.0f, 1.0f}, decay = 1.0f;
    if (!has_kda_gates<F>(r.family))
        decay = record_factors(r, raw.gates.gate, decay_rate(a, a.layer[blockIdx.z], rows[0].hv), factor);
#pragma unroll
    for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
        form_left<F>(r, raw.rows[pass], factor, decay, &left[pass]);
    store_keys<ST, F>(r, raw.keys, sh);
    __syncthreads();
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

/* Arguments come through a cold cache: this has them read here, not where they are used. */
DEVICE void hold(const matrix &m)
{
#ifdef __CUDA_ARCH__
    asm volatile("" ::"l"(m.data), "r"(m.dtype));
#else
    (void)m;
#endif
}

/* A thread's share of a history, 16 bits each, asked for while the block waits for its state. */
struct asked_history {
    uint32_t raw[RSSM_CUDA_EARLY_CHANNELS][RSSM_CUDA_EARLY_COLUMNS];
};

DEVICE uint32_t ask_half(const void *p, bool go)
{
#ifdef __CUDA_ARCH__
    uint32_t x;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .u16 h;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b16 h, 0;\n\t@p ld.global.b16 h, [%1];\n\t"
        "cvt.u32.u16 %0, h;\n\t}"
        : "=r"(x)
        : "l"(p), "r"((int)go));
    return x;
#else
    return go ? *(const uint16_t *)p : 0;
#endif
}

/* The last w - 1 columns of the ring, the oldest first. */
DEVICE void ask_history(const rssm_cuda_states &a, const place &conv, int64_t slot, int turn, asked_history *h)
{
    const part mine = part_of(a, blockIdx.x);
    const int older = a.conv_width - 1, length = a.in.conv_len, ch = mine.first + (int)threadIdx.x;
    const unsigned char *const at = slot_of(conv, slot, 2) + (int64_t)ch * length * 2;
#pragma unroll
    for (int c = 0; c < RSSM_CUDA_EARLY_COLUMNS; ++c) {
        const int column = turn + length - older + c, wrapped = column >= length ? column - length : column;
#pragma unroll
        for (int n = 0; n < RSSM_CUDA_EARLY_CHANNELS; ++n)
            h->raw[n][c] =
                ask_half(at + (n * TILE_THREADS * length + wrapped) * 2, c < older && ch + n * TILE_THREADS < mine.end);
    }
}

DEVICE void put_history(const rssm_cuda_states &a, int64_t i, const asked_history &h)
{
    const part mine = part_of(a, blockIdx.x);
    const rssm_state_layer &host = a.layer[blockIdx.z];
    const int older = a.conv_width - 1, ch = mine.first + (int)threadIdx.x;
    uint16_t *const to = (uint16_t *)host.conv + i * host.conv_row + (int64_t)ch * older;
    if (!host.conv)
        return;
#pragma unroll
    for (int n = 0; n < RSSM_CUDA_EARLY_CHANNELS; ++n)
#pragma unroll
        for (int c = 0; c < RSSM_CUDA_EARLY_COLUMNS; ++c)
            if (c < older && ch + n * TILE_THREADS < mine.end)
                to[n * TILE_THREADS * older + c] = (uint16_t)h.raw[n][c];
}

/* ---- what became infinite --------------------------------------------------------------------------------------- */

/* Pairs that the thread has stored itself, so that it can read them: what is infinite becomes the largest finite number. */
DEVICE void mend(unsigned char *at, int pairs, int dtype)
{
    for (int i = 0; i < pairs; ++i) {
        uint32_t *const pair = (uint32_t *)at + i;
        *pair = dtype == F16 ? finite_pair(*pair, f16_state()) : finite_pair(*pair, bf16_state());
    }
}

/* What finish_pass() stored as 16 bits. */
template <class ST>
DEVICE void mend_pass(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p)
{
    const int64_t first = lane_row(a, p) + t.k0 + piece_channel<ST>(0);
    for (int n = 0; p.here && n * 32 < t.channels; ++n)
        for (int row = 0; row < 2; ++row) {
            unsigned char *const at = to.data + (first + row * a.K + n * 32) * 2;
            mend(at, ST::CHUNK / 2, to.dtype);
            if (ST::CHUNK == 4)
                mend(at + 16 * 2, 2, to.dtype);
        }
}

/* What finish_turned() stored as 16 bits. */
template <class ST>
DEVICE void mend_turned(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows &p)
{
    unsigned char *const first = lane_column<bf16_state, ST>(a, to, t, p);
    for (int n = 0; p.here && n * 32 < t.channels; ++n)
        for (int c = 0; c < 8; ++c)
            mend(first + (int64_t)(n * 32 + (ST::CHUNK == 8 ? c : c % 4 + c / 4 * 16)) * a.V * 2, tile_form<ST>::PASSES,
                 to.dtype);
}

/* A function of its own, that finds its rows again, so that what comes to this once in a blue moon costs the others no registers. */
template <class ST>
static __device__ __noinline__ void mend_taken(const rssm_cuda_states &a, unsigned char *data, int dtype, bool turned)
{
    const matrix to = {data, dtype, false, 0};
    const block_tile t = find_tile<ST>(a);
    state_fault(a.in, true, RSSM_FAULTBIT_STATE);
    if (turned)
        mend_turned<ST>(a, to, t, take_rows<ST>(a, t, 0));
    else
        for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
            mend_pass<ST>(a, to, t, take_rows<ST>(a, t, pass));
}

/* The same of imports, of which ST is the host's type; the lane has its channels as in a state of type LANES. */
template <class ST, class LANES>
static __device__ __noinline__ void mend_given(const rssm_cuda_states &a, unsigned char *data, int dtype)
{
    const matrix to = {data, dtype, false, 0};
    const block_tile t = find_tile<ST>(a);
    state_fault(a.in, true, RSSM_FAULTBIT_STATE);
    for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
        mend_pass<LANES>(a, to, t, find_rows(a, t, pass));
}

template <class ST, class F, class DT>
DEVICE void put_typed(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows *rows,
                      const pass_pieces<ST> *x, bool fold, const left_operand<F> *left, const tile_memory *sh)
{
    const bool turn = !a.in_place && a.transposed;
    uint32_t top = 0;
    if (turn)
        finish_passes<ST, F, DT, true>(a, to, t, rows, x, fold, left, sh, &top);
    else
        finish_passes<ST, F, DT, false>(a, to, t, rows, x, fold, left, sh, &top);
    if (had_infinite(top, DT()))
        mend_taken<ST>(a, to.data, DT::DTYPE, turn);
}

/* The tile with its records to where the call wants it. */
template <class ST, class F>
DEVICE void put_tile(const rssm_cuda_states &a, const matrix &to, const block_tile &t, const pass_rows *rows,
                     const pass_pieces<ST> *x, bool fold, const left_operand<F> *left, tile_memory *sh)
{
    if (to.dtype == F32)
        put_typed<ST, F, f32_state>(a, to, t, rows, x, fold, left, sh);
    else if (to.dtype == BF16)
        put_typed<ST, F, bf16_state>(a, to, t, rows, x, fold, left, sh);
    else
        put_typed<ST, F, f16_state>(a, to, t, rows, x, fold, left, sh);
}

/* The first half of the lane's pieces, or the other: of float32 half of the channels of both rows, so that the first can leave before
 * the last have come, but for KDA, whose keys take longer; otherwise one of the two rows. (Each measured against the other.) */
template <class ST, class F>
DEVICE void load_half(const rssm_cuda_states &a, const unsigned char *state, const block_tile &t, const pass_rows *rows,
                      int half, bool go, pass_pieces<ST> *x)
{
    constexpr bool ACROSS = ST::BYTES == 4 && !F::KDA_GATES;
    constexpr int PIECES = tile_form<ST>::PIECES, HALF = PIECES / 2;
#pragma unroll
    for (int pass = 0; pass < tile_form<ST>::PASSES; ++pass)
        if (ACROSS) {
            load_row<ST>(a, state, t, rows[pass], 0, go, &x[pass], half * HALF, (half + 1) * HALF);
            load_row<ST>(a, state, t, rows[pass], 1, go, &x[pass], half * HALF, (half + 1) * HALF);
        } else {
            load_row<ST>(a, state, t, rows[pass], half, go, &x[pass]);
        }
}

/* The block's tile of an entry. A block asks for no bytes while it computes addresses: so the slot is asked for first, and what the
 * slot leads to before the slot is judged: half of the state, the records, which shall not wait behind all of it, the rest. */
template <class ST, class F> DEVICE void take_tile(const rssm_cuda_states &a, tile_memory *sh)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const int64_t i = blockIdx.y;
    const asked_index index = ask_index(a.slots, i);
    const matrix to_host = host_matrix(a, i);
    hold(to_host);
    const pool_places places = ask_places(a.pool + blockIdx.z);
    const place conv = ask_place(&a.pool[blockIdx.z].conv);
    const block_tile t = find_tile<ST>(a);
    pass_rows rows[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        rows[pass] = take_rows<ST>(a, t, pass);
    const int64_t slot = index_of(index);
    const bool here = in_pool(a.in, slot);
    const slot_cursor c = ask_cursor(a.in, slot, here);
    unsigned char *const start = slot_of(places.state, slot, ST::BYTES);
    pass_pieces<ST> x[PASSES];
    load_half<ST, F>(a, start, t, rows, 0, here, x);
    const slot_ring r = ring_of<F>(a, places, slot, c.base, here && cursor_is_good(a.in, c) ? c.count : 0);
    tile_records<ST> records;
    load_tile_records<ST, F>(a, r, t, rows, &records);
    load_half<ST, F>(a, start, t, rows, 1, here, x);
    if (!here || !judge_taken(a, i, slot, c))
        return;
    asked_history history;
    if (a.early_history)
        ask_history(a, conv, slot, c.conv, &history);
    left_operand<F> left[PASSES] = {};
    if (r.count > 0)
        take_records<ST, F>(a, r, rows, records, left, sh);
    put_tile<ST, F>(a, a.in_place ? matrix{start, ST::DTYPE, false, 0} : to_host, t, rows, x, r.count > 0, left, sh);
    if (a.early_history)
        put_history(a, i, history);
    else if (a.history > 0 && !a.in_place)
        take_history(a, i, slot, c, part_of(a, blockIdx.x));
}

#include "slots_ahead.cuh"

/* x = tile of a state, with a part of the history, y = which entry, z = layer. Exports, and folds of flushes. */
#define RSSM_SLOTS_TAKE(state, form)                                                  \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)                     \
        RSSM_SLOTS_TAKE_NAME(state, form)(const __grid_constant__ rssm_cuda_states a) \
    {                                                                                 \
        __shared__ tile_memory sh;                                                    \
        ask_for_tile<state##_state, form>(a);                                         \
        wait_for_predecessors();                                                      \
        let_successors_start();                                                       \
        take_tile<state##_state, form>(a, &sh);                                       \
    }
RSSM_SLOTS_TAKE_LIST(RSSM_SLOTS_TAKE)

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

template <class ST, class DT> DEVICE void turn_pieces(const turned_pieces<ST> &x, turned_memory *sh)
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
                       const turned_memory *sh, uint32_t *top)
{
    constexpr int APART = DT::CHUNK == 8 ? 4 : 16;
    const int v = threadIdx.x / 32 * 16 + (threadIdx.x & 31) / 4 * 2;
    unsigned char *const first = lane_start<DT, DT>(a, to, t, p), *const second = first + a.K * DT::BYTES;
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
        store_eight<APART>(first + n * 32 * DT::BYTES, y[0], top, DT());
        store_eight<APART>(second + n * 32 * DT::BYTES, y[1], top, DT());
    }
}

/* The slot of an import's entry, where its states of type DT go; -1: passed over. */
template <class DT> DEVICE int64_t find_target(const rssm_cuda_states &a, const place &state, matrix *to)
{
    const int64_t slot = judge_entry(a, blockIdx.y, true);
    if (slot >= 0)
        *to = {slot_of(state, slot, DT::BYTES), DT::DTYPE, false, 0};
    return slot;
}

/* What an import does beside its states. */
DEVICE void give_rest(const rssm_cuda_states &a, int64_t slot)
{
    if (a.history > 0)
        give_history(a, blockIdx.y, slot, part_of(a, blockIdx.x));
    give_cursor(a, slot);
}

/* ST: type of the host's states, which are asked for before the slot is known. DT: of the pool's. */
template <class ST, class DT> DEVICE void give_rows(const rssm_cuda_states &a)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const block_tile t = find_tile<ST>(a);
    const unsigned char *const from = host_matrix(a, blockIdx.y).data;
    const place state = ask_place(&a.pool[blockIdx.z].state);
    pass_rows rows[PASSES];
    pass_pieces<ST> x[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        rows[pass] = find_rows(a, t, pass);
        load_row<ST>(a, from, t, rows[pass], 0, true, &x[pass]);
        load_row<ST>(a, from, t, rows[pass], 1, true, &x[pass]);
    }
    matrix to;
    const int64_t slot = find_target<DT>(a, state, &to);
    if (slot < 0)
        return;
    const left_operand<kda_bf16> none[PASSES] = {};
    uint32_t top = 0;
    finish_passes<ST, kda_bf16, DT, false>(a, to, t, rows, x, false, none, NULL, &top);
    if (had_infinite(top, DT()))
        mend_given<ST, ST>(a, to.data, DT::DTYPE);
    give_rest(a, slot);
}

template <class ST, class DT> DEVICE void give_columns(const rssm_cuda_states &a, turned_memory *sh)
{
    constexpr int PASSES = tile_form<ST>::PASSES;
    const block_tile t = find_tile<ST>(a);
    const unsigned char *const from = host_matrix(a, blockIdx.y).data;
    const place state = ask_place(&a.pool[blockIdx.z].state);
    turned_pieces<ST> x[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)
        load_turned<ST>(a, from, t, pass, &x[pass]);
    matrix to;
    const int64_t slot = find_target<DT>(a, state, &to);
    if (slot < 0)
        return;
    uint32_t top = 0;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        turn_pieces<ST, DT>(x[pass], sh);
        __syncthreads();
        store_rows<DT>(a, to, t, find_rows(a, t, pass), sh, &top);
        __syncthreads();
    }
    if (had_infinite(top, DT()))
        mend_given<ST, DT>(a, to.data, DT::DTYPE);
    give_rest(a, slot);
}

template <class ST, class DT> DEVICE void give_tile(const rssm_cuda_states &a, turned_memory *sh)
{
    if (a.transposed)
        give_columns<ST, DT>(a, sh);
    else
        give_rows<ST, DT>(a);
}

template <class ST> DEVICE void give_form(const rssm_cuda_states &a, turned_memory *sh)
{
    if (a.state_dtype == F32)
        give_tile<ST, f32_state>(a, sh);
    else if (a.state_dtype == BF16)
        give_tile<ST, bf16_state>(a, sh);
    else
        give_tile<ST, f16_state>(a, sh);
}

/* Imports; x, y, z as above. */
extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)
    rssm_slots_give(const __grid_constant__ rssm_cuda_states a)
{
    __shared__ turned_memory sh;
    wait_for_predecessors();
    let_successors_start();
    const int dtype = a.layer[blockIdx.z].state_dtype;
    if (dtype == F32)
        give_form<f32_state>(a, &sh);
    else if (dtype == BF16)
        give_form<bf16_state>(a, &sh);
    else
        give_form<f16_state>(a, &sh);
}
