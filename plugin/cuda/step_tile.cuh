/* The tuned step: one block per (row, VT consecutive state rows), for fixed K and V.
 *
 * VT rows are a part of one value head's state, or those of several heads that share a key head; a warp has rows of one
 * head or half of its rows from each of two. A step is bound by
 * the bytes of the state, so the order of things is
 *   1. ask for the row's slot; meanwhile ask for the inputs and form every address but the slot's share of it. A block
 *      asks for no bytes while it computes addresses, so what stands between the slot and the next requests is kept short;
 *   2. with the slot: the ring rows, then the state slice (async_copy.cuh). Not the state first: measured, what is asked
 *      for behind it arrives behind it, and all then wait for that;
 *   3. while those travel: gate, norms, and the ring rows' scores against q and k (Mamba-2: against C),
 *          score[j][q] = sum_ch k_j[ch] x_q[ch],
 *      so that a pending record costs two dot products and the state itself is never rebuilt to be read. q and k enter
 *      as given: their norms and scales, and exp(G) where a head has one gate, are numbers that multiply the sums later,
 *      so one barrier is enough. KDA's gates are per channel and go into k_j and x_q first;
 *   4. when the slice is there: S0 . x_q for each of its rows, from shared memory, by fp32 FMAs or, for a bfloat16
 *      state, on tensor cores: the state is the exact left operand, x_q the right one, exact too where it is bfloat16 as
 *      given, else as three bfloat16 terms (1.4e-7, fp32's own order);
 *   5. the output; then either the record goes to the ring, or all records and the token fold into the state on the way
 *      from shared to global memory: with a bfloat16 ring the records as one product on tensor cores, k_j and d_j as many
 *      bfloat16 terms as the state's dtype asks for, and the token's as another; else as a product of rank count + 1 by FMAs.
 *
 * Work is laid out so that sums stay in one warp. Lane = (r, c), r = lane % 4, c = lane / 4: an mma fragment's.
 *   inputs  warp w has channels w*K/NW .. , lane by lane
 *   scores  of the same channels lane (r, c) has CH, for ring rows 4r .. 4r+3
 *   ring d  lane (r, c) has DV state rows of its warp's, from DV c on, for the same ring rows
 *   state   warp w has rows w*WR .. +WR-1; by FMAs lane (tr, tc), tr = lane / 8, tc = lane % 8, has rows tr + 4i of them
 *           and every 8th 16-byte chunk of K
 *   result  after the reductions lane (r, c) has row `local` of its warp; DUP lanes share a row
 * G - G_j is always a sum over later records, never a difference. Ring rows at and beyond count are never loaded.
 * The ring holds up to 16 records here; longer rings take the general kernel.
 */
#ifndef RSSM_CUDA_STEP_TILE_CUH_
#define RSSM_CUDA_STEP_TILE_CUH_

#include "async_copy.cuh"
#include "mma.cuh"
#include "step_math.cuh"
#include "stream_order.cuh"
#include "variants.h"

#define ALL 0xffffffffu

/* Sums N values per lane over the lanes that differ in the bits FIRST, FIRST/2, ... LAST. Where possible a step halves
 * the number of values instead of keeping copies: afterwards a lane holds, from v[0] on, the sums of the values that its
 * own bits select, highest bit first. N a power of two. */
template <int N, int FIRST, int LAST> DEVICE void sum_over_lanes(float *v, int lane)
{
    if constexpr (FIRST >= LAST) {
        if constexpr (N > 1) {
            const bool up = lane & FIRST;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float send = up ? v[i] : v[i + N / 2];
                const float keep = up ? v[i + N / 2] : v[i];
                v[i] = keep + __shfl_xor_sync(ALL, send, FIRST);
            }
        } else {
            v[0] += __shfl_xor_sync(ALL, v[0], FIRST);
        }
        sum_over_lanes<(N > 1 ? N / 2 : 1), FIRST / 2, LAST>(v, lane);
    }
}

/* BYTES bytes at p, or zeros. Written out for the GPU because a compiler makes branches of it, and all waits for these
 * loads to be asked for. */
template <int BYTES> DEVICE void load_if(bool go, uint32_t *raw, const unsigned char *p)
{
#ifdef __CUDA_ARCH__
    const int on = go;
    if constexpr (BYTES == 2)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b32 %0, 0;\n\t"
                     "@p ld.global.u16 %0, [%1];\n\t}"
                     : "=&r"(raw[0])
                     : "l"(p), "r"(on));
    else if constexpr (BYTES == 4)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b32 %0, 0;\n\t"
                     "@p ld.global.b32 %0, [%1];\n\t}"
                     : "=&r"(raw[0])
                     : "l"(p), "r"(on));
    else if constexpr (BYTES == 8)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %3, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                     "@p ld.global.v2.b32 {%0, %1}, [%2];\n\t}"
                     : "=&r"(raw[0]), "=&r"(raw[1])
                     : "l"(p), "r"(on));
    else
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                     "mov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
                     : "=&r"(raw[0]), "=&r"(raw[1]), "=&r"(raw[2]), "=&r"(raw[3])
                     : "l"(p), "r"(on));
#else
    raw[0] = 0;
    for (int i = 0; i < BYTES / 4; ++i)
        raw[i] = go ? ((const uint32_t *)p)[i] : 0;
    if (BYTES == 2 && go)
        raw[0] = *(const uint16_t *)p;
#endif
    if constexpr (BYTES == 32)
        load_if<16>(go, raw + 4, p + 16);
}

/* N consecutive elements as raw bits, half-width ones packed in pairs; zeros unless go. The address fits the vector. */
template <int N> DEVICE void load_packed(bool go, uint32_t *raw, const unsigned char *p, int dtype)
{
    if (is_half_width(dtype))
        load_if<2 * N>(go, raw, p);
    else
        load_if<4 * N>(go, raw, p);
}

template <int N, class ST> DEVICE void widen_halves(const uint32_t *raw, float *x, ST st)
{
    if constexpr (N == 1) {
        float pair[2];
        widen2(raw[0], pair, st);
        x[0] = pair[0];
    } else {
#pragma unroll
        for (int n = 0; n < N / 2; ++n)
            widen2(raw[n], x + 2 * n, st);
    }
}

/* Four ring rows of N elements each: raw bits to floats. */
template <int N> DEVICE void widen_rows(const uint32_t raw[4][N], float x[4][N], int dtype)
{
    if (dtype == BF16) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            widen_halves<N>(raw[i], x[i], bf16_state());
    } else if (dtype == F16) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            widen_halves<N>(raw[i], x[i], f16_state());
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int n = 0; n < N; ++n)
                x[i][n] = __uint_as_float(raw[i][n]);
    }
}

/* N consecutive floats in shared memory. */
template <int N> DEVICE void load_floats(float *x, const float *p)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int n = 0; n < N / 4; ++n) {
            const float4 f = ((const float4 *)p)[n];
            x[4 * n] = f.x;
            x[4 * n + 1] = f.y;
            x[4 * n + 2] = f.z;
            x[4 * n + 3] = f.w;
        }
    } else {
#pragma unroll
        for (int n = 0; n < N / 2; ++n) {
            const float2 f = ((const float2 *)p)[n];
            x[2 * n] = f.x;
            x[2 * n + 1] = f.y;
        }
    }
}

/* Where channel ch of an fp32 vector lies in shared memory. A lane reads the CHUNK floats that meet one chunk of the
 * state; with 8 of them the two float4 halves of a group of 64 channels are kept apart, so that the eight lanes of a
 * quarter warp read 128 consecutive bytes. */
template <int CHUNK> DEVICE int spread(int ch)
{
    if (CHUNK == 4)
        return ch;
    return (ch & ~63) | ((ch & 4) << 3) | ((ch & 56) >> 1) | (ch & 3);
}

template <int CHUNK> DEVICE void load_spread(float *x, const float *p, int group, int c)
{
    if (CHUNK == 4) {
        load_floats<4>(x, p + group * 32 + c * 4);
    } else {
        load_floats<4>(x, p + group * 64 + c * 4);
        load_floats<4>(x + 4, p + group * 64 + 32 + c * 4);
    }
}

/* N channels from ch on: whole groups of four, or half of one. */
template <int CHUNK, int N> DEVICE void fetch_spread(float *x, const float *p, int ch)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int n = 0; n < N; n += 4)
            load_floats<4>(x + n, p + spread<CHUNK>(ch + n));
    } else {
        load_floats<N>(x, p + spread<CHUNK>(ch));
    }
}

template <int CHUNK, int N> DEVICE void store_spread(float *p, int ch, const float *x)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int n = 0; n < N; n += 4)
            *(float4 *)(p + spread<CHUNK>(ch + n)) = make_float4(x[n], x[n + 1], x[n + 2], x[n + 3]);
    } else {
        *(float2 *)(p + spread<CHUNK>(ch)) = make_float2(x[0], x[1]);
    }
}

/* x[0 .. N-1] as TERMS bfloat16 terms that add up to it, term i at p + i * stride. */
template <int N, int TERMS> DEVICE void store_terms(uint16_t *p, int stride, const float *x)
{
    float rest[N];
#pragma unroll
    for (int n = 0; n < N; ++n)
        rest[n] = x[n];
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            const uint32_t pair = narrow2(rest + n, bf16_state());
            float back[2];
            widen2(pair, back, bf16_state());
            *(uint32_t *)(p + i * stride + n) = pair;
            rest[n] -= back[0];
            rest[n + 1] -= back[1];
        }
    }
}

/* One record of the fold: a lane's d's and its CP chunks of the decayed k. */
template <int NRV, int CHUNK, int CP>
DEVICE void fold_operands(float *d, float *k, const float *d_s, const float *w_s, int chunk0, int c)
{
    load_floats<NRV>(d, d_s);
#pragma unroll
    for (int n = 0; n < CP; ++n)
        load_spread<CHUNK>(k + n * CHUNK, w_s, chunk0 + n, c);
}

/* Fold on tensor cores. Where channel ch of a record lies among its group of 32, so that the eight columns of a product
 * times its 4 (2) blocks come out as the chunks of the state that lane t of an mma fragment reads. */
template <int CHUNK> DEVICE int fold_column(int ch)
{
    if (CHUNK == 8)
        return (ch & ~31) | (ch & 6) << 2 | (ch & 24) >> 2 | (ch & 1);
    return (ch & ~15) | (ch & 2) << 2 | (ch & 12) >> 1 | (ch & 1);
}

/* N consecutive channels of one record as TERMS bfloat16 terms, to where fold_column() says. */
template <int CHUNK, int N, int TERMS> DEVICE void store_record(uint16_t *p, int stride, int ch, const float *x)
{
    float rest[N];
#pragma unroll
    for (int n = 0; n < N; ++n)
        rest[n] = x[n];
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            const uint32_t pair = narrow2(rest + n, bf16_state());
            float back[2];
            widen2(pair, back, bf16_state());
            *(uint32_t *)(p + i * stride + fold_column<CHUNK>(ch + n)) = pair;
            rest[n] -= back[0];
            rest[n + 1] -= back[1];
        }
    }
}

/* The left operand of a fold on tensor cores, from a lane's four records of DV state rows. Lane (r, c) holds what it needs:
 * rows c and c + 8 of tile m are the warp's state rows DV c + 2 m and + 1, and records 4 r .. are columns 2 r, + 1, + 8,
 * + 9, the order in which the right operand has them. */
template <int TERMS, int DV> DEVICE void fold_left(uint32_t a[TERMS][(DV + 1) / 2][4], const float d[4][DV])
{
#pragma unroll
    for (int m = 0; m < DV; ++m) {
        float rest[4] = {d[0][m], d[1][m], d[2][m], d[3][m]};
#pragma unroll
        for (int i = 0; i < TERMS; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t pair = narrow2(rest + 2 * n, bf16_state());
                float back[2];
                widen2(pair, back, bf16_state());
                a[i][m / 2][2 * n + m % 2] = pair;
                rest[2 * n] -= back[0];
                rest[2 * n + 1] -= back[1];
            }
    }
}

/* The left operand of a product of depth 8 that adds one record: its d as up to three bfloat16 terms, in as many columns; the
 * right one has the record's key in each of those. What is beyond bfloat16's range stays finite in the first term. */
template <int TERMS> DEVICE uint32_t token_left(float d, int r)
{
    bool hit = false;
    float rest[2] = {saturate(d, BF16, &hit), 0.0f}, back[2];
    uint32_t columns[2] = {narrow2(rest, bf16_state()), 0};
    if (TERMS > 1) {
        widen2(columns[0], back, bf16_state());
        rest[0] = d - back[0];
        const uint32_t next = narrow2(rest, bf16_state());
        columns[0] |= next << 16;
        widen2(next, back, bf16_state());
        rest[0] -= back[0];
        columns[1] = TERMS > 2 ? narrow2(rest, bf16_state()) : 0;
    }
    return r == 0 ? columns[0] : r == 1 ? columns[1] : 0;
}

/* Where record j lies among the 16 of a fold on tensor cores: fold_left()'s order. */
DEVICE int record_place(int j)
{
    return (j >> 2) * 2 + (j & 1) + (j & 2) * 4;
}

/* fold_left() of bfloat16 d's as given: no arithmetic. */
template <int DV> DEVICE void record_operand(uint32_t a[(DV + 1) / 2][4], const uint32_t raw[4][DV])
{
#pragma unroll
    for (int m = 0; m < (DV + 1) / 2; ++m)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const uint32_t x = raw[2 * n][m], y = raw[2 * n + 1][m];
            a[m][2 * n] = (x & 0xffff) | y << 16;
            a[m][2 * n + 1] = x >> 16 | (y & 0xffff0000u); /* zero where a lane has one row */
        }
}

/* The next bfloat16 term of x[0 .. 3], which is taken from them. */
DEVICE void next_term(uint32_t b[2], float *x)
{
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        float back[2];
        b[n] = narrow2(x + 2 * n, bf16_state());
        widen2(b[n], back, bf16_state());
        x[2 * n] -= back[0];
        x[2 * n + 1] -= back[1];
    }
}

/* Term `term` of x[0 .. 3], zero from TERMS on. */
template <int TERMS> DEVICE void pick_term(uint32_t b[2], const float *x, int term)
{
    float rest[4] = {x[0], x[1], x[2], x[3]};
    b[0] = b[1] = 0;
#pragma unroll
    for (int i = 0; i < TERMS; ++i) {
        uint32_t pair[2];
        next_term(pair, rest);
        b[0] = i == term ? pair[0] : b[0];
        b[1] = i == term ? pair[1] : b[1];
    }
}

/* i times a stride; launch.h sees to it that both fit. */
DEVICE int64_t offset(uint32_t i, int64_t stride)
{
    return (int64_t)((uint64_t)i * (uint32_t)stride);
}

/* hv H / HV by floats: exact for HV <= 1024, of which launch.h makes sure. */
DEVICE uint32_t key_head(const rssm_step &s, int hv)
{
    return (uint32_t)(((float)(hv * s.H) + 0.5f) * reciprocal((float)s.HV));
}

/* What the token's inputs come to: the numbers of its head, and those that normalise q and k. */
struct token_numbers {
    float gate, beta; /* gate: g of GDN, dt of Mamba-2 */
    float q_scale, k_scale, qk;
};

template <int FAMILY, int WARPS>
DEVICE token_numbers sum_token(const rssm_step &s, const float *red_s, const float *head_s)
{
    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        const float4 f = ((const float4 *)red_s)[i];
        qq += f.x;
        kk += f.y;
        qk += f.z;
    }
    const float4 head = *(const float4 *)head_s;
    const bool norm = FAMILY != MAMBA2 && (s.flags & RSSM_STEP_QK_NORM);
    token_numbers n;
    n.gate = head.x;
    n.beta = head.y;
    n.q_scale = FAMILY == MAMBA2 ? 1.0f : norm ? s.scale * inverse_root(qq + s.norm_eps) : s.scale;
    n.k_scale = norm ? inverse_root(kk + s.norm_eps) : 1.0f;
    n.qk = qk;
    return n;
}

template <int FAMILY> DEVICE float decay_rate_of(const float *head_s)
{
    return FAMILY == MAMBA2 ? head_s[2] : 1.0f;
}

template <int ROWS, int COLUMNS> DEVICE void rank_one(float x[ROWS][COLUMNS], const float *d, const float *k)
{
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int m = 0; m < COLUMNS; ++m)
            x[i][m] += d[i] * k[m];
}

/* Which row of the call the i-th blocks of a step work on. step_begin may leave that in rows[i][7]: rows that flush come
 * early, so that no long block ends the launch. A large batch has no use for it: there the flushes hide behind other
 * blocks. The order holds for the whole rows array only: a slice of one, or two put together, has another B or other row
 * numbers, and is taken as it stands. */
DEVICE int row_at(const rssm_step &s, int i, int number, int order)
{
    const int first = order & 0xffff;
    return order >> 16 == s.B && number == i && first > 0 && first <= s.B ? first - 1 : i;
}

/* The first half of rows[row] for the i-th blocks, and which row that is; launch.h sees to the alignment. */
DEVICE int load_place(const rssm_step &s, int i, row_ahead *a)
{
    *a = {0, 0, 0, 0};
    if (!s.rows)
        return i;
    int row = i;
    if (s.B >= RSSM_CUDA_ORDER_MIN && s.B <= RSSM_CUDA_ORDER_MAX && s.B * s.HV * s.V <= RSSM_CUDA_ORDER_WORK) {
        const int4 x = ((const int4 *)(s.rows + offset(i, s.rows_row)))[1];
        row = row_at(s, i, x.y, x.w);
    }
    const int4 x = *(const int4 *)(s.rows + offset(row, s.rows_row));
    *a = {x.x, x.y, x.z, x.w};
    return row;
}

/* A kernel's arguments come through the constant cache; the first use of each line is a miss, one after the other on the way to
 * the slot. So every warp asks for two lines at once here (measured: 0.1 to 0.35 us at one row). keep() is where they are
 * waited for: later than everything that was asked for meanwhile. */
DEVICE uint32_t touch_arguments(const rssm_step &s)
{
    uint32_t first = 0, second = 0;
#ifdef __CUDA_ARCH__
    static_assert(sizeof(rssm_step) >= 256 + 3 * 64 + 4, "four warps of two lines");
    const uint64_t at = (uint64_t)__cvta_generic_to_grid_constant(&s) + (threadIdx.x >> 5) % 4 * 64;
    asm volatile("ld.param.u32 %0, [%1];" : "=r"(first) : "l"(at));
    asm volatile("ld.param.u32 %0, [%1+256];" : "=r"(second) : "l"(at));
#endif
    return first ^ second;
}

DEVICE void keep(uint32_t x)
{
#ifdef __CUDA_ARCH__
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.u32 p, %0, 0xdeadbeef;\n\t@p membar.cta;\n\t}" : : "r"(x));
#endif
}

/* DT: the dtype of all inputs, the output and the ring where it is known at compile time (weights stay run-time); 0: all
 * at run time. */
template <int FAMILY, class ST, int K, int V, int VT, int NT, int RING, int DT>
DEVICE void step_tile(const rssm_step &s)
{
    constexpr int NW = NT / 32;
    constexpr int NQ = FAMILY == MAMBA2 ? 1 : 2; /* readouts */
    constexpr int WR = VT / NW;                  /* state rows of a warp */
    constexpr int NR = WR / 4;                   /* state rows of a lane */
    constexpr int NRV = RSSM_CUDA_PAD4(NR);      /* d's of a lane in shared memory */
    constexpr int CHUNK = ST::CHUNK;
    constexpr int NC = K / (8 * CHUNK);              /* chunks of a lane per state row */
    constexpr int SW = K % NW ? 4 : NW;              /* warps that have channels: a fifth one only has state rows */
    constexpr int WK = K / SW;                       /* channels of a warp */
    constexpr int CH = WK / 8;                       /* channels of a lane, scores */
    constexpr int KT = (WK + 31) / 32;               /* channels of a lane, inputs */
    constexpr int DV = WR > 16 ? 4 : WR > 8 ? 2 : 1; /* d's of a lane per ring row */
    constexpr int NS = 16 * NQ;                      /* scores */
    constexpr int NREC = RSSM_CUDA_NREC(RING);
    /* A warp may have the end of one head and the beginning of the next, half of its rows each: lanes of c < 4 are the first
     * one's, the others the second one's, in all that a head has of its own. */
    constexpr bool TWO_HEADS = VT > V && V % WR != 0;
    /* The readout of a bfloat16 state on tensor cores; with one vector to meet, FMAs are as fast and take fewer registers. */
    constexpr bool MMA = ST::DTYPE == BF16 && !TWO_HEADS;
    constexpr int TERMS = RSSM_CUDA_X_TERMS(FAMILY, DT); /* bfloat16 terms of x */
    /* Scores on tensor cores, from k_j, q and k as given; the records' part of the readouts, from d_j as given. */
    constexpr bool SCORE_MMA = RSSM_CUDA_SCORE_IS_MMA(FAMILY, RING, DT), RECORD_MMA = RING && DT == BF16;
    constexpr bool X_RAW = DT == BF16 && FAMILY != KDA && (MMA || RING), X_FLOAT = !(X_RAW && MMA);
    constexpr int YB = K + 32;            /* row of x terms, padded against bank conflicts */
    constexpr int HEAD = V < VT ? V : VT; /* rows of one head in the block */
    /* Fold on tensor cores: k_j (KDA: decayed) and d_j (decayed but for KDA) as bfloat16 terms, those as given being exact;
     * the token's record is added apart. */
    constexpr bool FOLD_MMA = RSSM_CUDA_FOLD_IS_MMA(VT, NT, RING, DT);
    constexpr int K_TERMS = RSSM_CUDA_K_TERMS(FAMILY, ST::DTYPE), D_TERMS = FAMILY == KDA      ? 1
                                                                            : ST::DTYPE == F32 ? 3
                                                                                               : 2;
    constexpr bool FOLD_LATE = FOLD_MMA && !MMA;          /* the x_q are read until the readout is done */
    constexpr bool FOLD_FLOAT = FOLD_MMA && K_TERMS == 3; /* k_j lie as floats [K][16], terms are formed in the fold */
    constexpr int KB = K + 8;                             /* padded row of a record */
    static_assert(VT % (4 * NW) == 0 && (V % VT == 0 || VT % V == 0), "rows");
    static_assert(!TWO_HEADS || (WR == 32 && V % 16 == 0 && NQ == 1 && FOLD_MMA), "two heads in a warp");
    static_assert(K % (8 * CHUNK) == 0 && CH >= 2 && WR <= (MMA ? 32 : 64), "channels");

    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char *const tile = shared;                        /* [VT][K] ST */
    float *const w_s = (float *)(shared + VT * K * ST::BYTES); /* [NREC][K]: k_j, for KDA decayed; spread */
    float *const d_s = w_s + NREC * K;                         /* [NW][NREC][4][NRV]: d_j, decayed but for KDA */
    uint16_t *const kb_s = (uint16_t *)w_s;                    /* FOLD_MMA: [K_TERMS][16][KB] k_j; fold_column() */
    float *const x_s =
        w_s + RSSM_CUDA_FOLD(FAMILY, ST::DTYPE, K, VT, NT, RING, DT) / 4; /* [2][K]: q and k as given; spread */
    float *const y_s = x_s;       /* KDA without MMA: [2][K] exp(G) x_q in their place; spread */
    float *const kt_s = x_s;      /* FOLD_MMA, when those are done with: [K] the token's k, */
    float *const dt_s = kt_s + K; /* [NW][WR] and its d */
    float *const e_s = x_s + RSSM_CUDA_TOKEN(FAMILY, K, VT, NT, RING, DT) / 4; /* KDA: [K] exp(G); spread */
    uint16_t *const yb_s = (uint16_t *)(e_s + (FAMILY == KDA ? K : 0));        /* [NQ * TERMS][YB] bfloat16 x_q */
    float *const part_s =
        (float *)(yb_s + RSSM_CUDA_HALVES(FAMILY, ST::DTYPE, K, RING, DT)); /* [NW][NQ][16] scores over a
                                                                                                 warp's channels */
    float *const g_s = part_s;             /* KDA, before them: [NW][NS] log gates of the token's channels, base 2 */
    float *const red_s = part_s + NW * NS; /* [NW][4]: q.q, k.k, q.k */
    float *const head_s = red_s + NW * 4;  /* [NW][4]: gate, beta, decay rate of each head */
    uint64_t *const bar_s = (uint64_t *)(head_s + NW * 4); /* [NW] */
    const float *const dot_s = x_s;                        /* without MMA: the x_q that meet the state */
    static_assert(FAMILY != KDA || WK <= NS, "g_s");
    static_assert(!SCORE_MMA || WK % 16 == 0, "scores on tensor cores");

    /* 1. The slot is what most waits for: it is asked for first, and everything that needs no slot happens meanwhile. */
    const int place_i = (int)(blockIdx.z * gridDim.y + blockIdx.y);
    const uint32_t touched = touch_arguments(s);
    wait_for_predecessors();
    let_successors_start_beside_tiles();
    row_ahead ahead;
    const int row = load_place(s, min(place_i, s.B - 1), &ahead);
    if (place_i >= s.B)
        return;
    const int q_dtype = DT ? DT : s.q.dtype, k_in_dtype = DT ? DT : s.k.dtype, v_dtype = DT ? DT : s.v.dtype;
    const int a_dtype = DT ? DT : s.a.dtype, b_dtype = DT ? DT : s.b.dtype, z_dtype = DT ? DT : s.z.dtype;
    const int out_dtype = DT ? DT : s.out_dtype;
    /* Without a ring the tensors may be absent; what outlives the token is then rounded as their dtype says, if any. */
    const int k_dtype = DT && RING ? DT : s.k_cache.dtype, d_dtype = DT && RING ? DT : s.d_cache.dtype;

    const int t = threadIdx.x, w = t >> 5, lane = t & 31;
    const int r = lane & 3, c = lane >> 2;             /* records and mma fragments */
    const int tr = lane >> 3, tc = lane & 7;           /* the slice, by FMAs */
    const uint32_t row0 = blockIdx.x * VT + w * WR;    /* the warp's first row of [HV * V] */
    const uint32_t half = TWO_HEADS ? c >> 2 << 4 : 0; /* my head is that of this row of the warp */
    const int hv = (row0 + half) / V, hb = (uint32_t)(w * WR + half) / HEAD;
    constexpr int NRP = NR > 4 ? 8 : NR > 2 ? 4 : NR;
    constexpr int DUP = MMA ? (WR > 16 ? 1 : WR > 8 ? 2 : 4) : 8 / NRP;
    /* My state row within the warp, and which of its DUP lanes I am. Where rows come in powers of two that is lane / DUP. */
    const int dup = lane % DUP, local = MMA || NR == NRP ? lane / DUP : tr * NR + tc / DUP;
    const bool mine = MMA || NR == NRP ? local < WR : tc / DUP < NR;
    const uint32_t my_v = row0 + local; /* in a [HV, V] tensor */
    const uint32_t h = key_head(s, row0 / V);
    const bool scorer = SW == NW || w < SW;
    const int lch = w * WK + lane;                                /* my first input channel, then every 32nd */
    const int ch0 = w * WK + (SCORE_MMA ? r * (WK / 4) : c * CH); /* my channels for the scores */
    const bool has_d = DV * c < WR;
    const int rv0 = row0 - hv * V;                   /* within the head; -16 where that begins in the warp */
    const bool leader = (w * WR + half) % HEAD == 0; /* the warp where a head begins sees to its scalars, */
    const bool chief = leader && lane % (TWO_HEADS ? 16 : 32) == 0; /* one lane of it stores them */
    unsigned char *const my_slice = tile + w * WR * K * ST::BYTES;
    const uint32_t R = s.R;
    unsigned char *state_g = (unsigned char *)s.state.data + (uint64_t)((uint32_t)row0 * K) * ST::BYTES;

    const unsigned char *ring_k = element(s.k_cache.data, (uint32_t)(h * R * K + ch0), k_dtype);
    const unsigned char *ring_d = element(s.d_cache.data, (uint32_t)(hv * R * V + rv0 + DV * c), d_dtype);
    const unsigned char *ring_g =
        element(s.g_cache.data, FAMILY == KDA ? (uint32_t)(hv * R * K + ch0) : (uint32_t)(hv * R), F32);
    slice_expect(WR * K * ST::BYTES, bar_s + w, lane);
    uint32_t q_raw[KT], k_raw[KT], a_raw[KT];
#pragma unroll
    for (int n = 0; n < KT; ++n) {
        if (scorer && (WK % 32 == 0 || lane < WK)) {
            const uint32_t ch = lch + n * 32;
            q_raw[n] = load_raw(s.q.data, offset(row, s.q.row) + (h * K + ch), q_dtype);
            k_raw[n] = load_raw(s.k.data, offset(row, s.k.row) + (h * K + ch), k_in_dtype);
            if (FAMILY == KDA)
                a_raw[n] = load_raw(s.a.data, offset(row, s.a.row) + (hv * K + ch), a_dtype);
        }
    }
    uint32_t b_raw = 0;
    if (leader && FAMILY != KDA)
        a_raw[0] = load_raw(s.a.data, offset(row, s.a.row) + (uint32_t)hv, a_dtype);
    if (leader && FAMILY != MAMBA2)
        b_raw = load_raw(s.b.data, offset(row, s.b.row) + (uint32_t)hv, b_dtype);
    uint32_t bias_raw[KT], alog_raw = 0;
    if (FAMILY == KDA) {
#pragma unroll
        for (int n = 0; n < KT; ++n)
            bias_raw[n] = (WK % 32 == 0 || lane < WK) && s.dt_bias.data
                              ? load_raw(s.dt_bias.data, hv * K + lch + n * 32, s.dt_bias.dtype)
                              : 0;
    } else {
        bias_raw[0] = leader && s.dt_bias.data ? load_raw(s.dt_bias.data, hv, s.dt_bias.dtype) : 0;
    }
    constexpr bool RATES = FAMILY == KDA || (FAMILY == MAMBA2 && RING); /* all warps need the head's rate */
    if (leader || RATES)
        alog_raw = s.A_log.data ? load_raw(s.A_log.data, hv, s.A_log.dtype) : 0;
    const uint32_t skip_raw = FAMILY == MAMBA2 && s.D.data ? load_raw(s.D.data, hv, s.D.dtype) : 0;
    const uint32_t v_raw = mine ? load_raw(s.v.data, offset(row, s.v.row) + my_v, v_dtype) : 0;
    const uint32_t z_raw =
        FAMILY == MAMBA2 && s.z.data && mine ? load_raw(s.z.data, offset(row, s.z.row) + my_v, z_dtype) : 0;

    /* 2. The slot is here: the ring rows, then the state slice. Not the slice first: measured, what is asked for behind
         * it arrives behind it, and all then wait for that. */
    keep(touched);
    asm volatile("" : "+l"(ring_k), "+l"(ring_d), "+l"(ring_g), "+l"(state_g));
    asm volatile("" : "+r"(ahead.slot), "+r"(ahead.base), "+r"(ahead.count), "+r"(ahead.flush) : : "memory");
    const row_info ri = judge_row(s, row, ahead);
    bool hit = false;
    if (!ri.valid) {
        if (mine && dup == 0)
            store_any(s.out, offset(row, s.out_row) + my_v, 0.0f, out_dtype, &hit);
        raise_fault(s, ri.bad && t == 0 && blockIdx.x == 0, RSSM_FAULTBIT_CURSOR);
        return;
    }

    const uint32_t slot = (uint32_t)ri.slot; /* so many do not fit into any memory */
    const int count = RING ? ri.count : 0;
    const bool flush = RING ? ri.flush : true;
    const bool replay = RING && count > 0;
    /* Keys: for scores on tensor cores ring rows c and c + 8, else 4 r .. 4 r + 3 as gates and d's. */
    constexpr int KROWS = SCORE_MMA ? 2 : 4, KWORDS = SCORE_MMA ? WK / 8 : CH, GWORDS = FAMILY == KDA ? CH : 1;
    uint32_t rk_raw[KROWS][KWORDS], rg_raw[4][GWORDS], rd_raw[4][DV];
    if (replay) {
        const unsigned char *const rk = element(ring_k, offset(slot, s.k_cache.slot), k_dtype);
        const unsigned char *const rd = element(ring_d, offset(slot, s.d_cache.slot), d_dtype);
        const unsigned char *const rg = element(ring_g, offset(slot, s.g_cache.slot), F32);
        const uint32_t k_bytes = is_half_width(k_dtype) ? 2 * K : 4 * K,
                       d_bytes = is_half_width(d_dtype) ? 2 * V : 4 * V;
        if (SCORE_MMA) {
#pragma unroll
            for (int i = 0; i < KROWS; ++i) {
                const uint32_t p = ri.base + c + 8 * i;
                load_if<WK / 2>(scorer && c + 8 * i < count, rk_raw[i], rk + (p >= R ? p - R : p) * k_bytes);
            }
        }
        uint32_t p = ri.base + 4 * r;
        p = p >= R ? p - R : p;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool here = 4 * r + i < count;
            if (!SCORE_MMA)
                load_packed<CH>(here && scorer, rk_raw[i % KROWS], rk + p * k_bytes, k_dtype);
            if (FAMILY == KDA)
                load_packed<GWORDS>(here, rg_raw[i], rg + p * (4 * K), F32);
            else
                load_if<4>(here, rg_raw[i], rg + p * 4);
            load_packed<DV>(here && has_d, rd_raw[i], rd + p * d_bytes, d_dtype);
            p = p + 1 == R ? 0 : p + 1;
        }
    }
    slice_load(my_slice, state_g + offset(slot, s.state.slot) * ST::BYTES, WR * K * ST::BYTES, bar_s + w, lane);

    /* Where the output and the record go: with few registers taken that is formed now, while all wait. */
    unsigned char *out_g = (unsigned char *)element(s.out, offset(row, s.out_row) + my_v, out_dtype);
    uint32_t p_new = ri.base + count;
    p_new = p_new >= R ? p_new - R : p_new;
    unsigned char *append_d = (unsigned char *)element(
        s.d_cache.data, offset(slot, s.d_cache.slot) + (uint32_t)((hv * R + p_new) * V + rv0 + local), d_dtype);
    if (RING && WR <= 16)
        asm volatile("" : "+l"(out_g), "+l"(append_d));
    float k_mine[KT], g_mine[KT];
    token_numbers num;
    /* What the first block of a head writes of the record: what is the head's alone and, for the first of its siblings,
     * the key. */
    const auto append_key = [&]() {
        const int hv0 = blockIdx.x * VT / V; /* the block's first head */
        if (blockIdx.x * VT % V != 0)
            return;
        const bool first = hv0 * (uint32_t)s.H == h * (uint32_t)s.HV;
        float *const g =
            (float *)s.g_cache.data + offset(slot, s.g_cache.slot) + (hv * R + p_new) * (FAMILY == KDA ? K : 1);
#pragma unroll
        for (int n = 0; n < KT; ++n) {
            if (scorer && (WK % 32 == 0 || lane < WK)) {
                if (first)
                    store_any(s.k_cache.data,
                              offset(slot, s.k_cache.slot) + (uint32_t)((h * R + p_new) * K + lch + n * 32),
                              k_mine[n] * num.k_scale, k_dtype, &hit);
                if (FAMILY == KDA)
                    g[lch + n * 32] = g_mine[n];
            }
        }
        if (FAMILY != KDA && chief)
            *g = num.gate;
        raise_fault(s, hit, RSSM_FAULTBIT_RING);
        hit = false;
    };

    /* 3. The token itself. */
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* q.q, k.k, q.k */
    const float rate = leader || RATES ? (s.A_log.data ? expf(widen(alog_raw, s.A_log.dtype)) : 1.0f) : 0.0f;
#pragma unroll
    for (int n = 0; n < KT; ++n) {
        k_mine[n] = 0.0f;
        g_mine[n] = 0.0f;
        if (scorer && (WK % 32 == 0 || lane < WK)) {
            const int at = spread<CHUNK>(lch + n * 32);
            const float q = widen(q_raw[n], q_dtype);
            k_mine[n] = widen(k_raw[n], k_in_dtype);
            if (X_FLOAT) {
                x_s[at] = q;
                if (RSSM_CUDA_X_ROWS(FAMILY, RING, DT) == 2)
                    x_s[K + at] = k_mine[n];
            }
            if (X_RAW) {
                yb_s[lch + n * 32] = (uint16_t)q_raw[n];
                if (NQ == 2)
                    yb_s[YB + lch + n * 32] = (uint16_t)k_raw[n];
            }
            sums[0] += q * q;
            sums[1] += k_mine[n] * k_mine[n];
            sums[2] += q * k_mine[n];
            if (FAMILY == KDA) {
                g_mine[n] = log_gate(s, widen(a_raw[n], a_dtype) + widen(bias_raw[n], s.dt_bias.dtype), rate);
                g_s[w * NS + lane + n * 32] = g_mine[n] * LOG2E;
            }
        }
    }
    float decay_rate = 1.0f; /* log decay = this times the gate in the ring */
    if (FAMILY == MAMBA2 && (leader || RATES))
        decay_rate = s.flags & RSSM_STEP_A_IS_DECAY ? widen(alog_raw, s.A_log.dtype) : -rate;
    if (leader) {
        float gate = 0.0f, beta = 0.0f;
        if (FAMILY != KDA) {
            const float x = widen(a_raw[0], a_dtype) + widen(bias_raw[0], s.dt_bias.dtype);
            gate = FAMILY == GDN ? log_gate(s, x, rate) : time_step(s, x);
        }
        if (FAMILY != MAMBA2)
            beta = sigmoid(widen(b_raw, b_dtype)) * s.beta_scale;
        if (chief)
            *(float4 *)(head_s + hb * 4) = make_float4(gate, beta, decay_rate, 0.0f);
    }
    sum_over_lanes<4, 16, 1>(sums, lane); /* lanes 8i .. 8i+7 have sum i */
    if (scorer && tc == 0)
        red_s[w * 4 + tr] = sums[0];
    __syncwarp();

    /* 4. The scores, over my warp's channels. */
    /* Decays after a record, up to the token's own, where a head has one gate (Mamba-2: times the record's dt). */
    float dec[4] = {1.0f, 1.0f, 1.0f, 1.0f}, e_prev = 1.0f;
    if constexpr (SCORE_MMA) {
        if (replay) {
            if (scorer) {
                float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                uint32_t x[WK / 8];
#pragma unroll
                for (int n = 0; n < WK / 8; ++n)
                    x[n] = c < NQ ? ((const uint32_t *)(yb_s + c * YB + ch0))[n] : 0;
#pragma unroll
                for (int n = 0; n < WK / 8; n += 2)
                    mma_bf16(acc, rk_raw[0][n], rk_raw[1][n], rk_raw[0][n + 1], rk_raw[1][n + 1], x[n], x[n + 1]);
                if (r == 0) {
#pragma unroll
                    for (int q = 0; q < NQ; ++q) {
                        part_s[w * NS + q * 16 + c] = acc[q];
                        part_s[w * NS + q * 16 + c + 8] = acc[2 + q];
                    }
                }
                if (flush) { /* zeros beyond count */
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int j = c + 8 * i;
                        if (FOLD_MMA) {
#pragma unroll
                            for (int n = 0; n < WK / 8; ++n)
                                *(uint32_t *)(kb_s + record_place(j) * KB + fold_column<CHUNK>(ch0 + 2 * n)) =
                                    rk_raw[i][n];
                        } else if (j < count) {
                            float k[WK / 4];
                            widen_halves<WK / 4>(rk_raw[i], k, bf16_state());
                            store_spread<CHUNK, WK / 4>(w_s + j * K, ch0, k);
                        }
                    }
                }
            }
        }
    } else {
        float qh[CH], kh[CH], wj[4][CH];
        if (scorer) {
            fetch_spread<CHUNK, CH>(qh, x_s, ch0);
            fetch_spread<CHUNK, CH>(kh, x_s + K, ch0);
        }
        if (replay)
            widen_rows<CH>(rk_raw, wj, k_dtype);
        if (FAMILY == KDA) {
            float gc[CH], total[CH]; /* base 2 */
            load_floats<CH>(gc, g_s + w * NS + c * CH);
            __syncwarp(); /* part_s takes its place */
#pragma unroll
            for (int n = 0; n < CH; ++n)
                total[n] = gc[n];
            if (replay) {
#pragma unroll
                for (int n = 0; n < CH; ++n) {
                    float g[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        g[i] = __uint_as_float(rg_raw[i][n % GWORDS]);
                    const float own = ((g[0] + g[1]) + (g[2] + g[3])) * LOG2E;
                    const float next = __shfl_xor_sync(ALL, own, 1);
                    const float pair = own + next;
                    const float far = __shfl_xor_sync(ALL, pair, 2);
                    total[n] = gc[n] + (pair + far);
                    float suffix = gc[n] + ((r & 1 ? 0.0f : next) + (r & 2 ? 0.0f : far)); /* after my four rows */
#pragma unroll
                    for (int i = 3; i >= 0; --i) {
                        wj[i][n] *= exp2_approx(suffix);
                        suffix += g[i] * LOG2E;
                    }
                }
            }
            if (r < 2) { /* one readout each */
                float y[CH];
#pragma unroll
                for (int n = 0; n < CH; ++n) {
                    total[n] = exp2_approx(total[n]);
                    y[n] = total[n] * (r ? kh[n] : qh[n]);
                }
                if (r == 0)
                    store_spread<CHUNK, CH>(e_s, ch0, total);
                if (MMA)
                    store_terms<CH, TERMS>(yb_s + r * YB + ch0, NQ * YB, y);
                else
                    store_spread<CHUNK, CH>(y_s + r * K, ch0, y);
            }
        } else if (MMA && !X_RAW && r == 0 && scorer) {
            store_terms<CH, TERMS>(yb_s + ch0, NQ * YB, qh);
            if (NQ == 2)
                store_terms<CH, TERMS>(yb_s + YB + ch0, NQ * YB, kh);
        }
        if (replay && scorer) {
            float score[4 * NQ];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x0 = 0.0f, x1 = 0.0f;
#pragma unroll
                for (int n = 0; n < CH; ++n) {
                    x0 += wj[i][n] * qh[n];
                    x1 += wj[i][n] * kh[n];
                }
                score[i * NQ] = x0;
                if (NQ == 2)
                    score[i * NQ + 1] = x1;
            }
            sum_over_lanes<4 * NQ, 16, 4>(score, lane);
            if (NQ == 2)
                part_s[w * NS + (c & 1) * 16 + 4 * r + (c >> 1)] = score[0];
            else if ((c & 1) == 0)
                part_s[w * NS + 4 * r + (c >> 1)] = score[0];
            if (flush && FOLD_FLOAT) {
#pragma unroll
                for (int n = 0; n < CH; ++n)
                    *(float4 *)(w_s + (ch0 + n) * 16 + 4 * r) = make_float4(wj[0][n], wj[1][n], wj[2][n], wj[3][n]);
            } else if (flush) { /* zeros beyond count */
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int j = 4 * r + i;
                    if (FOLD_MMA)
                        store_record<CHUNK, CH, K_TERMS>(kb_s + record_place(j) * KB, 16 * KB, ch0, wj[i]);
                    else if (j < count)
                        store_spread<CHUNK, CH>(w_s + j * K, ch0, wj[i]);
                }
            }
        }
    }
    if (FAMILY != KDA && replay) {
        float g[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            g[i] = __uint_as_float(rg_raw[i][0]);
        const float own = (g[0] + g[1]) + (g[2] + g[3]);
        const float next = __shfl_xor_sync(ALL, own, 1);
        const float pair = own + next;
        const float far = __shfl_xor_sync(ALL, pair, 2);
        e_prev = exp2_approx((pair + far) * (decay_rate * LOG2E));
        float suffix = (r & 1 ? 0.0f : next) + (r & 2 ? 0.0f : far);
#pragma unroll
        for (int i = 3; i >= 0; --i) {
            dec[i] = (FAMILY == MAMBA2 ? g[i] : 1.0f) * exp2_approx(suffix * (decay_rate * LOG2E));
            suffix += g[i];
        }
    }
    __syncthreads();

    /* 5. The numbers that multiply the sums. */
    num = sum_token<FAMILY, SW>(s, red_s, head_s + hb * 4);
    constexpr bool APPEND_NOW = WR <= 16 || !MMA || V <= WR; /* else later: that spills fewer registers */
    if (APPEND_NOW && !flush)
        append_key();
    const float e_token = FAMILY == KDA ? 1.0f : exp2_approx(decay_rate_of<FAMILY>(head_s + hb * 4) * num.gate * LOG2E);

    /* The records' part of the readouts, for the lanes that own the rows. */
    constexpr int MT = WR > 16 ? 2 : 1, HALVES = WR > 8 ? 2 : 1, TILES = (DV + 1) / 2; /* tiles of 16 state rows */
    constexpr int NX = MT * HALVES * NQ;
    float rec[MT][4], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < MT; ++m)
        rec[m][0] = rec[m][1] = rec[m][2] = rec[m][3] = 0.0f;
    if (RECORD_MMA && replay) {
        uint32_t b[2], a[TILES][4];
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < SW; ++i) {
            float y[4];
            load_floats<4>(y, part_s + i * NS + (NQ == 2 ? c & 1 : 0) * 16 + 4 * r);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                x[n] += y[n];
        }
#pragma unroll
        for (int n = 0; n < 4; ++n)
            x[n] *= dec[n];
        pick_term<3>(b, x, TWO_HEADS ? c & 3 : c / NQ);
        record_operand<DV>(a, rd_raw);
#pragma unroll
        for (int m = 0; m < MT; ++m)
            mma_bf16(rec[m], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        if (TWO_HEADS && r >> 1 != c >> 2) { /* columns 0 .. 3 are of the first head's scores, 4 .. 7 of the second's */
#pragma unroll
            for (int m = 0; m < MT; ++m)
                rec[m][0] = rec[m][1] = rec[m][2] = rec[m][3] = 0.0f;
        }
    } else if (replay) {
        float score[NQ][4], part[DV * NQ], dj[4][DV];
        widen_rows<DV>(rd_raw, dj, d_dtype); /* zero beyond count */
#pragma unroll
        for (int q = 0; q < NQ; ++q) {
            score[q][0] = score[q][1] = score[q][2] = score[q][3] = 0.0f;
#pragma unroll
            for (int i = 0; i < SW; ++i) {
                float y[4];
                load_floats<4>(y, part_s + i * NS + q * 16 + 4 * r);
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    score[q][n] += y[n];
            }
        }
#pragma unroll
        for (int n = 0; n < DV; ++n)
#pragma unroll
            for (int q = 0; q < NQ; ++q) {
                float x = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x += score[q][i] * dec[i] * dj[i][n];
                part[n * NQ + q] = x;
            }
        constexpr int N = DV * NQ; /* value n of N ends in lanes with r = n * 4 / N, at part[n % PER] */
        constexpr int PER = N > 4 ? N / 4 : 1;
        sum_over_lanes<N, 2, 1>(part, lane);
        const int n = local % DV * NQ, holder = local / DV;
        sum[0] = __shfl_sync(ALL, part[0], holder * 4 + n * 4 / N);
        if (NQ == 2)
            sum[1] = __shfl_sync(ALL, part[PER - 1], holder * 4 + (n + 1) * 4 / N);
    }
    const auto store_token_key = [&]() { /* the last record's */
#pragma unroll
                                         for (int n = 0; n < KT; ++n)
                                             if (scorer && (WK % 32 == 0 || lane < WK)) {
                                                 const float k = round_to(k_mine[n] * num.k_scale, k_dtype, &hit);
                                                 if (FOLD_MMA) /* a bfloat16, twice */
                                                     kt_s[fold_column<CHUNK>(lch + n * 32)] =
                                                         __uint_as_float(__float_as_uint(k) | __float_as_uint(k) >> 16);
                                                 else
                                                     w_s[count * K + spread<CHUNK>(lch + n * 32)] = k;
                                             }
    };
    if (flush && !FOLD_LATE) { /* block-uniform */
        store_token_key();
        __syncthreads();
    }

    /* 6. The state's part. */
    const unsigned char *const my_tile = my_slice + (tr * NR * K + tc * CHUNK) * ST::BYTES;
    float dot[2];
    if constexpr (MMA) {
        float acc[MT][4], odd[MT][4]; /* two chains */
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                acc[m][i] = odd[m][i] = 0.0f;
        uint4 b[K / 32];
#pragma unroll
        for (int n = 0; n < K / 32; ++n)
            b[n] = c < NQ * TERMS ? *(const uint4 *)(yb_s + c * YB + n * 32 + r * 8) : make_uint4(0, 0, 0, 0);
        slice_wait(bar_s + w);
#pragma unroll
        for (int n = 0; n < K / 32; ++n)
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                /* The order of channels inside a product is free: each lane takes 16 bytes of a row. */
                const unsigned char *const at = my_slice + ((DV * c + 2 * m) * K + n * 32 + r * 8) * 2;
                const uint4 lo = *(const uint4 *)at;
                const uint4 hi = HALVES == 2 ? *(const uint4 *)(at + K * 2) : make_uint4(0, 0, 0, 0);
                mma_bf16(acc[m], lo.x, hi.x, lo.y, hi.y, b[n].x, b[n].y);
                mma_bf16(odd[m], lo.z, hi.z, lo.w, hi.w, b[n].z, b[n].w);
            }
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                acc[m][i] = (acc[m][i] + odd[m][i]) * e_prev + rec[m][i];
        /* Column = term * NQ + q; lane (r, c) has columns 2 r, 2 r + 1 of its rows c and c + 8. */
        float x[NX];
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int i = 0; i < HALVES; ++i) {
                if (NQ == 2) {
                    x[(m * HALVES + i) * NQ] = acc[m][2 * i];
                    x[(m * HALVES + i) * NQ + NQ - 1] = acc[m][2 * i + 1];
                } else {
                    x[m * HALVES + i] = acc[m][2 * i] + acc[m][2 * i + 1];
                }
            }
        sum_over_lanes<NX, 2, 1>(x, lane);
        dot[0] = x[0];
        dot[1] = DUP == 1 ? x[NQ - 1] : 0.0f;
    } else {
        float x_rec[NX];
        if (RECORD_MMA) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int i = 0; i < HALVES; ++i) {
                    if (NQ == 2) {
                        x_rec[(m * HALVES + i) * NQ] = rec[m][2 * i];
                        x_rec[(m * HALVES + i) * NQ + NQ - 1] = rec[m][2 * i + 1];
                    } else {
                        x_rec[m * HALVES + i] = rec[m][2 * i] + rec[m][2 * i + 1];
                    }
                }
            if (replay) {
                sum_over_lanes<NX, 2, 1>(x_rec, lane);
                if (NR != NRP) /* row = lane there */
                    x_rec[0] = __shfl_sync(ALL, x_rec[0], local & 31);
            }
        }
        float acc[NRP * NQ], y[NQ][NC * CHUNK];
#pragma unroll
        for (int i = 0; i < NRP * NQ; ++i)
            acc[i] = 0.0f;
#pragma unroll
        for (int q = 0; q < NQ; ++q)
#pragma unroll
            for (int n = 0; n < NC; ++n)
                load_spread<CHUNK>(y[q] + n * CHUNK, dot_s + q * K, n, tc);
        slice_wait(bar_s + w);
#pragma unroll
        for (int i = 0; i < NR; ++i) {
#pragma unroll
            for (int n = 0; n < NC; ++n) {
                float x[CHUNK];
                widen_chunk(*(const uint4 *)(my_tile + (i * K + n * 8 * CHUNK) * ST::BYTES), x, ST());
#pragma unroll
                for (int m = 0; m < CHUNK; ++m)
#pragma unroll
                    for (int q = 0; q < NQ; ++q)
                        acc[i * NQ + q] += x[m] * y[q][n * CHUNK + m];
            }
        }
        sum_over_lanes<NRP * NQ, 4, 1>(acc, lane);
        dot[0] = acc[0] * e_prev + (RECORD_MMA ? x_rec[0] : 0.0f);
        dot[1] = DUP == 1 ? acc[NQ - 1] * e_prev + (RECORD_MMA ? x_rec[NX > 1 ? NQ - 1 : 0] : 0.0f) : 0.0f;
    }
    if (NQ == 2 && DUP > 1) { /* the lanes of a row have split between the two readouts */
        const float other = __shfl_xor_sync(ALL, dot[0], DUP / 2);
        const bool second = dup & (DUP / 2);
        dot[1] = second ? dot[0] : other;
        dot[0] = second ? other : dot[0];
    }
    sum[0] = (sum[0] + dot[0]) * e_token;
    if (NQ == 2)
        sum[1] = (sum[1] + dot[1]) * e_token;

    /* 7. The output. */
    const float v = widen(v_raw, v_dtype);
    float d, out;
    if (FAMILY == MAMBA2) {
        d = v;
        out = sum[0] + num.gate * num.qk * v + widen(skip_raw, s.D.dtype) * v;
        if (s.z.data) {
            const float z = widen(z_raw, z_dtype);
            out *= z * sigmoid(z);
        }
    } else {
        d = num.beta * (v - sum[1] * num.k_scale);
        out = (sum[0] + d * (num.qk * num.k_scale)) * num.q_scale;
    }
    if (mine && dup == 0)
        store_any(out_g, 0, out, out_dtype, &hit);
    raise_fault(s, hit, RSSM_FAULTBIT_OUTPUT);
    hit = false;

    /* 8a. The record's d goes to the ring, to a row that nobody reads in this launch. */
    if (RING && !flush) {
        if (!APPEND_NOW)
            append_key();
        if (mine && dup == 0)
            store_any(append_d, 0, d, d_dtype, &hit);
        raise_fault(s, hit, RSSM_FAULTBIT_RING);
        return;
    }

    /* 8b. Fold: S = S0 exp(G) + sum_j d_j (k_j exp(G - G_j))^T, the token's record last. */
    if (FOLD_LATE) {
        __syncthreads();
        store_token_key();
    }
    if (mine && dup == 0)
        *(FOLD_MMA ? dt_s + w * WR + local : d_s + ((w * NREC + count) * 4 + local / NR) * NRV + local % NR) =
            round_to(d, d_dtype, &hit) * (FAMILY == MAMBA2 ? num.gate : 1.0f);
    raise_fault(s, hit, RSSM_FAULTBIT_RING);
    hit = false;
    const float e_all = e_prev * e_token; /* exp(G) where it is one number */
    float dj[4][DV];
    if (replay) {
        widen_rows<DV>(rd_raw, dj, d_dtype);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int n = 0; n < DV; ++n) {
                const int v = DV * c + n, j = 4 * r + i;
                dj[i][n] *= FAMILY == KDA ? 1.0f : dec[i] * e_token;
                if (!FOLD_MMA && has_d && j < count)
                    d_s[((w * NREC + j) * 4 + v / NR) * NRV + v % NR] = dj[i][n];
            }
    }
    if (FOLD_LATE)
        __syncthreads();
    else
        __syncwarp();
    unsigned char *const slice_g = state_g + offset(slot, s.state.slot) * ST::BYTES;
    if constexpr (FOLD_MMA) {
        const int lrow = (lane & 15) * KB + (lane >> 4) * 8; /* for load_transposed() */
        uint32_t a[D_TERMS][TILES][4];
        if (replay)
            fold_left<D_TERMS, DV>(a, dj);
        constexpr int TOKEN_TERMS = FAMILY == MAMBA2 ? D_TERMS : 1; /* its d is a bfloat16, times dt for Mamba-2 */
        uint32_t top = 0, at[TILES][2]; /* the token's d, left operand of a product of depth 8 */
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                at[m][i] = token_left<TOKEN_TERMS>(dt_s[w * WR + DV * c + 2 * m + i], r);
#pragma unroll 1
        for (int ch = 0; ch < K; ch += 32) {
            uint32_t b[K_TERMS][8], bt[4];
#pragma unroll
            for (int n = 0; n < 4; ++n)
                bt[n] = __float_as_uint(kt_s[ch + n * 8 + c]);
            if (replay && FOLD_FLOAT) {
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    float x[4];
                    load_floats<4>(x, w_s + (ch + (n >> 1) * 16 + (c >> 1) * 4 + (n & 1) * 2 + (c & 1)) * 16 + 4 * r);
#pragma unroll
                    for (int i = 0; i < K_TERMS; ++i)
                        next_term(b[i] + 2 * n, x);
                }
            } else if (replay) {
#pragma unroll
                for (int i = 0; i < K_TERMS; ++i) {
                    load_transposed(b[i], kb_s + i * 16 * KB + lrow + ch);
                    load_transposed(b[i] + 4, kb_s + i * 16 * KB + lrow + ch + 16);
                }
            }
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                float acc[4][4];
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
                    mma_bf16_short(acc[n], at[m][0], at[m][1], bt[n]);
                }
                if (replay) {
#pragma unroll
                    for (int i = K_TERMS * D_TERMS - 1; i >= 0; --i) { /* small terms first */
                        const uint32_t *const am = a[D_TERMS > 1 ? i : 0][m];
#pragma unroll
                        for (int n = 0; n < 4; ++n)
                            mma_bf16(acc[n], am[0], am[1], am[2], am[3], b[K_TERMS > 1 ? i : 0][2 * n],
                                     b[K_TERMS > 1 ? i : 0][2 * n + 1]);
                    }
                }
#pragma unroll
                for (int n = 0; n < 8 / CHUNK; ++n) { /* chunks of a row among these channels */
                    const int mine_ch = ch + n * 16 + r * CHUNK;
                    float e[CHUNK];
                    if (FAMILY == KDA)
                        fetch_spread<CHUNK, CHUNK>(e, e_s, mine_ch);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int v = DV * c + 2 * m + i;
                        float x[CHUNK];
                        widen_chunk(*(const uint4 *)(my_slice + (v * K + mine_ch) * ST::BYTES), x, ST());
#pragma unroll
                        for (int p = 0; p < CHUNK; ++p)
                            x[p] = x[p] * (FAMILY == KDA ? e[p] : e_all) + acc[n * 2 + p / 2][2 * i + p % 2];
                        __stcs((uint4 *)(slice_g + (v * K + mine_ch) * ST::BYTES), narrow_quickly(x, &top, ST()));
                    }
                }
            }
        }
        if (had_infinite(top, ST())) { /* rare; what I stored myself I can read */
            hit = true;
#pragma unroll 1
            for (int at_ch = r * CHUNK; at_ch < K; at_ch += 4 * CHUNK)
#pragma unroll 1
                for (int v = DV * c; v < DV * c + DV; ++v) {
                    uint4 *const x = (uint4 *)(slice_g + (v * K + at_ch) * ST::BYTES);
                    *x = without_infinite(*x, ST());
                }
        }
    } else {
        const float *const my_d = d_s + (w * NREC * 4 + tr) * NRV;
        unsigned char *const my_state = slice_g + (tr * NR * K + tc * CHUNK) * ST::BYTES;
        /* Chunks in registers at once: up to 64 accumulators. */
        constexpr int CP = NC * CHUNK * NR <= 64 ? NC : CHUNK == 8 ? 1 : NR <= 8 ? 2 : 1;
#pragma unroll 1
        for (int n0 = 0; n0 < NC; n0 += CP) {
            float x[NR][CP * CHUNK];
#pragma unroll
            for (int n = 0; n < CP; ++n) {
                float e[CHUNK];
                if (FAMILY == KDA)
                    load_spread<CHUNK>(e, e_s, n0 + n, tc);
#pragma unroll
                for (int i = 0; i < NR; ++i) {
                    widen_chunk(*(const uint4 *)(my_tile + (i * K + (n0 + n) * 8 * CHUNK) * ST::BYTES),
                                x[i] + n * CHUNK, ST());
#pragma unroll
                    for (int m = 0; m < CHUNK; ++m)
                        x[i][n * CHUNK + m] *= FAMILY == KDA ? e[m] : e_all;
                }
            }
#pragma unroll 1
            for (int j = 0; j <= count; ++j) {
                float dj[NRV], kj[CP * CHUNK];
                fold_operands<NRV, CHUNK, CP>(dj, kj, my_d + j * 4 * NRV, w_s + j * K, n0, tc);
                rank_one<NR, CP * CHUNK>(x, dj, kj);
            }
#pragma unroll
            for (int i = 0; i < NR; ++i)
#pragma unroll
                for (int n = 0; n < CP; ++n)
                    __stcs((uint4 *)(my_state + (i * K + (n0 + n) * 8 * CHUNK) * ST::BYTES),
                           narrow_chunk(x[i] + n * CHUNK, &hit, ST()));
        }
    }
    raise_fault(s, hit, RSSM_FAULTBIT_STATE);
}

#endif
