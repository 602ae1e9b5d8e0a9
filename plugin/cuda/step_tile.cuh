/* The tuned step: one block per (row, value head, slice of VT state rows), for fixed K and V.
 *
 * A step is bound by the bytes of the state, so the order of things is
 *   1. read the row's slot, and at once ask for the state slice (async_copy.cuh) and for the ring rows;
 *   2. while those travel: norms, gate, the ring rows' decays, and the scores
 *          s[q][j] = sum_ch  k_j[ch] exp(G - G_j)[ch] * x_q[ch]       x_0 = q, x_1 = k (Mamba-2: x_0 = C alone)
 *      so that the pending records cost two dot products each and the state itself is never rebuilt to be read;
 *   3. when the slice is there: S0 . (exp(G) x_q) for each of its rows, from shared memory;
 *   4. the output; then either the record goes to the ring, or all records and the token fold into the state, as a
 *      product of rank count + 1 accumulated in fp32 registers on the way from shared to global memory.
 *
 * Work is laid out so that sums stay in one warp. Lane = (r, c), r = lane / 8, c = lane % 8.
 *   state   warp w has rows w*WR .. +WR-1; lane (r, c) has rows r + 4i of them, and every 8th 16-byte chunk of K
 *   scores  warp w has K/NW channels; lane (r, c) has CH of them for ring rows 4r .. 4r+3
 *   result  after the reductions lane (r, c) has row r + 4*(c / DUP) of its warp; DUP lanes share a row
 * G - G_j is always a sum over later records, never a difference. Ring rows at and beyond count are never loaded.
 * The ring holds up to 16 records here; longer rings take the general kernel.
 */
#ifndef RSSM_CUDA_STEP_TILE_CUH_
#define RSSM_CUDA_STEP_TILE_CUH_

#include "async_copy.cuh"
#include "step_math.cuh"
#include "variants.h"

#define ALL 0xffffffffu

/* Sums N values per lane over the lanes that differ in the bits FIRST, FIRST/2, ... LAST. Where possible a step halves
 * the number of values instead of keeping copies: afterwards a lane holds, from v[0] on, the sums of the values that its
 * own bits select, highest bit first. N a power of two. */
template <int N, int FIRST, int LAST>
DEVICE void sum_over_lanes(float *v, int lane)
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

/* N consecutive elements as raw bits, half-width ones packed in pairs. The address fits the vector. */
template <int N>
DEVICE void load_packed(uint32_t *raw, const unsigned char *p, int dtype)
{
    if (is_half_width(dtype)) {
        if constexpr (N == 1) {
            raw[0] = *(const uint16_t *)p;
        } else if constexpr (N == 2) {
            raw[0] = *(const uint32_t *)p;
        } else {
#pragma unroll
            for (int n = 0; n < N / 4; ++n) {
                const uint2 x = ((const uint2 *)p)[n];
                raw[2 * n] = x.x;
                raw[2 * n + 1] = x.y;
            }
        }
    } else {
        if constexpr (N == 1) {
            raw[0] = *(const uint32_t *)p;
        } else if constexpr (N == 2) {
            const uint2 x = *(const uint2 *)p;
            raw[0] = x.x;
            raw[1] = x.y;
        } else {
#pragma unroll
            for (int n = 0; n < N / 4; ++n) {
                const uint4 x = ((const uint4 *)p)[n];
                raw[4 * n] = x.x;
                raw[4 * n + 1] = x.y;
                raw[4 * n + 2] = x.z;
                raw[4 * n + 3] = x.w;
            }
        }
    }
}

template <int N, class ST>
DEVICE void widen_halves(const uint32_t *raw, float *x, ST st)
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
template <int N>
DEVICE void widen_rows(const uint32_t raw[4][N], float x[4][N], int dtype)
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
template <int N>
DEVICE void load_floats(float *x, const float *p)
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
template <int CHUNK>
DEVICE int spread(int ch)
{
    if (CHUNK == 4)
        return ch;
    return (ch & ~63) | ((ch & 4) << 3) | ((ch & 56) >> 1) | (ch & 3);
}

template <int CHUNK>
DEVICE void load_spread(float *x, const float *p, int group, int c)
{
    if (CHUNK == 4) {
        load_floats<4>(x, p + group * 32 + c * 4);
    } else {
        load_floats<4>(x, p + group * 64 + c * 4);
        load_floats<4>(x + 4, p + group * 64 + 32 + c * 4);
    }
}

template <int CHUNK, int N>
DEVICE void store_spread(float *p, int ch, const float *x)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int n = 0; n < N; n += 4)
            *(float4 *)(p + spread<CHUNK>(ch + n)) = make_float4(x[n], x[n + 1], x[n + 2], x[n + 3]);
    } else {
        *(float2 *)(p + spread<CHUNK>(ch)) = make_float2(x[0], x[1]);
    }
}

template <int FAMILY, class ST, int K, int V, int VT, int NT, int RING>
DEVICE void step_tile(const rssm_step &s)
{
    constexpr int NW = NT / 32;
    constexpr int NQ = FAMILY == MAMBA2 ? 1 : 2;      /* readouts */
    constexpr int WR = VT / NW;                       /* state rows of a warp */
    constexpr int NR = WR / 4;                        /* state rows of a lane */
    constexpr int NRP = NR > 4 ? 8 : NR > 2 ? 4 : NR; /* rounded up to a power of two */
    constexpr int NRV = RSSM_CUDA_PAD4(NR);           /* d's of a lane in shared memory */
    constexpr int DUP = 8 / NRP;
    constexpr int CHUNK = ST::CHUNK;
    constexpr int NC = K / (8 * CHUNK); /* chunks of a lane per state row */
    constexpr int CH = K / (8 * NW);    /* channels of a lane, scores */
    constexpr int KT = (K + NT - 1) / NT; /* channels of a thread, inputs */
    constexpr int DV = WR > 16 ? 4 : WR > 8 ? 2 : 1; /* d's of a lane per ring row */
    constexpr int NS = 16 * NQ;         /* scores */
    static_assert(VT % (4 * NW) == 0 && V % VT == 0 && K % (8 * CHUNK) == 0 && CH >= 2, "shape");

    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char *const tile = shared;                                  /* [VT][K] ST */
    float *const w_s = (float *)(shared + VT * K * ST::BYTES);           /* [NREC][K]: k_j exp(G - G_j), spread */
    float *const d_s = w_s + RSSM_CUDA_NREC(RING) * K;                   /* [NW][NREC][4][NRV] */
    float *const q_s = d_s + NW * RSSM_CUDA_NREC(RING) * 4 * NRV;        /* [K] as given */
    float *const k_s = q_s + K;                                          /* [K] as given */
    float *const g_s = k_s + K;                                          /* [K] log gate of the token, KDA */
    float *const e_s = g_s + (FAMILY == KDA ? K : 0);                    /* [K] exp(G), spread, KDA */
    float *const y_s = e_s + (FAMILY == KDA ? K : 0);                    /* [NQ][K]: exp(G) x_q, spread */
    float *const part_s = y_s + NQ * K;                                  /* [NW][NS] scores over a warp's channels */
    float *const red_s = part_s + NW * NS;                               /* [NW][4] */
    uint64_t *const bar_s = (uint64_t *)(red_s + NW * 4);                /* [NW] */

    const int t = threadIdx.x, w = t >> 5, lane = t & 31, r = lane >> 3, c = lane & 7;
    constexpr int SPLIT = V / VT;
    const int hv = blockIdx.x / SPLIT, slice = blockIdx.x % SPLIT;
    const int64_t row = (int64_t)blockIdx.z * 65535 + blockIdx.y;
    if (row >= s.B)
        return;
    const int group = s.HV / s.H, h = hv / group;

    /* 1. Everything that does not wait for the slot is asked for first. */
    const row_info ri = read_row(s, row);
    const int my_i = c / DUP, dup = c % DUP; /* my state row within the warp: r + 4 my_i */
    const bool mine = NR == NRP || my_i < NR;
    const int my_row = w * WR + r + 4 * my_i;           /* in the slice */
    const int64_t my_v = (int64_t)hv * V + slice * VT + my_row; /* in a [HV, V] tensor */
    uint32_t q_raw[KT], k_raw[KT], a_raw[KT], bias_raw[KT];
#pragma unroll
    for (int n = 0; n < KT; ++n) {
        const int ch = t + n * NT;
        if (K % NT == 0 || ch < K) {
            q_raw[n] = load_raw(s.q.data, row * s.q.row + h * K + ch, s.q.dtype);
            k_raw[n] = load_raw(s.k.data, row * s.k.row + h * K + ch, s.k.dtype);
            if (FAMILY == KDA) {
                a_raw[n] = load_raw(s.a.data, row * s.a.row + hv * K + ch, s.a.dtype);
                bias_raw[n] = s.dt_bias.data ? load_raw(s.dt_bias.data, hv * K + ch, s.dt_bias.dtype) : 0;
            }
        }
    }
    if (FAMILY != KDA) {
        a_raw[0] = load_raw(s.a.data, row * s.a.row + hv, s.a.dtype);
        bias_raw[0] = s.dt_bias.data ? load_raw(s.dt_bias.data, hv, s.dt_bias.dtype) : 0;
    }
    const uint32_t v_raw = mine ? load_raw(s.v.data, row * s.v.row + my_v, s.v.dtype) : 0;
    const uint32_t b_raw = FAMILY != MAMBA2 ? load_raw(s.b.data, row * s.b.row + hv, s.b.dtype) : 0;
    const uint32_t alog_raw = s.A_log.data ? load_raw(s.A_log.data, hv, s.A_log.dtype) : 0;
    const uint32_t skip_raw = FAMILY == MAMBA2 && s.D.data ? load_raw(s.D.data, hv, s.D.dtype) : 0;
    const uint32_t z_raw =
        FAMILY == MAMBA2 && s.z.data && mine ? load_raw(s.z.data, row * s.z.row + my_v, s.z.dtype) : 0;

    bool hit = false;
    if (!ri.valid) {
        if (mine && dup == 0)
            store_any(s.out, row * s.out_row + my_v, 0.0f, s.out_dtype, &hit);
        raise_fault(s, ri.bad && t == 0 && blockIdx.x == 0, RSSM_FAULTBIT_CURSOR);
        return;
    }

    /* 2. The state slice and the ring rows. */
    const int64_t state_at = ri.slot * s.state.slot + ((int64_t)hv * V + slice * VT + w * WR) * K;
    unsigned char *const state_g = (unsigned char *)s.state.data + state_at * ST::BYTES;
    slice_load(tile + w * WR * K * ST::BYTES, state_g, WR * K * ST::BYTES, bar_s + w, lane);

    const int count = RING ? ri.count : 0;
    const bool flush = RING ? ri.flush : true;
    const int ch0 = w * (K / NW) + c * CH; /* my channels for the scores */
    const int k_dtype = s.k_cache.dtype, d_dtype = s.d_cache.dtype;
    const bool has_d = DV * c < WR;
    uint32_t rk_raw[4][CH], rg_raw[4][CH], rd_raw[4][DV], rg_scalar = 0;
    if (RING) {
        const int64_t g_at = ri.slot * s.g_cache.slot + (int64_t)hv * s.R * (FAMILY == KDA ? K : 1);
        const unsigned char *const rk =
            element(s.k_cache.data, ri.slot * s.k_cache.slot + (int64_t)h * s.R * K + ch0, k_dtype);
        const unsigned char *const rd = element(
            s.d_cache.data, ri.slot * s.d_cache.slot + (int64_t)hv * s.R * V + slice * VT + w * WR + DV * c, d_dtype);
        const unsigned char *const rg = element(s.g_cache.data, g_at + (FAMILY == KDA ? ch0 : 0), F32);
        const int k_bytes = is_half_width(k_dtype) ? 2 * K : 4 * K, d_bytes = is_half_width(d_dtype) ? 2 * V : 4 * V;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int j = 4 * r + i;
            int p = ri.base + j;
            p = p >= s.R ? p - s.R : p;
#pragma unroll
            for (int n = 0; n < CH; ++n)
                rk_raw[i][n] = rg_raw[i][n] = 0;
#pragma unroll
            for (int n = 0; n < DV; ++n)
                rd_raw[i][n] = 0;
            if (j < count) {
                load_packed<CH>(rk_raw[i], rk + p * k_bytes, k_dtype);
                if (FAMILY == KDA)
                    load_packed<CH>(rg_raw[i], rg + p * (4 * K), F32);
                if (has_d)
                    load_packed<DV>(rd_raw[i], rd + p * d_bytes, d_dtype);
            }
        }
        if (FAMILY != KDA && lane < count) {
            int p = ri.base + lane;
            p = p >= s.R ? p - s.R : p;
            rg_scalar = ((const uint32_t *)rg)[p];
        }
    }

    /* 3. The token itself: norms and gate. */
    const float rate = !s.A_log.data ? 1.0f : expf(widen(alog_raw, s.A_log.dtype));
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f}; /* q.q, k.k, q.k */
    float k_mine[KT], g_mine[KT];
#pragma unroll
    for (int n = 0; n < KT; ++n) {
        const int ch = t + n * NT;
        k_mine[n] = 0.0f;
        g_mine[n] = 0.0f;
        if (K % NT == 0 || ch < K) {
            const float q = widen(q_raw[n], s.q.dtype);
            k_mine[n] = widen(k_raw[n], s.k.dtype);
            q_s[ch] = q;
            k_s[ch] = k_mine[n];
            sums[0] += q * q;
            sums[1] += k_mine[n] * k_mine[n];
            sums[2] += q * k_mine[n];
            if (FAMILY == KDA) {
                g_mine[n] = log_gate(s, widen(a_raw[n], s.a.dtype) + widen(bias_raw[n], s.dt_bias.dtype), rate);
                g_s[ch] = g_mine[n];
            }
        }
    }
    /* The token's scalar gate: g of GDN, dt of Mamba-2. */
    float gate = 0.0f, decay_rate = 1.0f;
    if (FAMILY == GDN)
        gate = log_gate(s, widen(a_raw[0], s.a.dtype) + widen(bias_raw[0], s.dt_bias.dtype), rate);
    if (FAMILY == MAMBA2) {
        gate = time_step(s, widen(a_raw[0], s.a.dtype) + widen(bias_raw[0], s.dt_bias.dtype));
        decay_rate = s.flags & RSSM_STEP_A_IS_DECAY ? widen(alog_raw, s.A_log.dtype) : -rate;
    }
    sum_over_lanes<4, 16, 1>(sums, lane); /* lanes 8i .. 8i+7 have sum i */
    if (c == 0)
        red_s[w * 4 + r] = sums[0];
    __syncthreads();

    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
    for (int i = 0; i < NW; ++i) {
        const float4 f = ((const float4 *)red_s)[i];
        qq += f.x;
        kk += f.y;
        qk += f.z;
    }
    const bool norm = FAMILY != MAMBA2 && (s.flags & RSSM_STEP_QK_NORM);
    const float q_scale = FAMILY == MAMBA2 ? 1.0f : norm ? s.scale / sqrtf(qq + s.norm_eps) : s.scale;
    const float k_scale = norm ? 1.0f / sqrtf(kk + s.norm_eps) : 1.0f;

    /* 4. Decays and scores of the pending records. */
    float qh[CH], kh[CH], gc[CH], wj[4][CH], total[CH], scalar_total = gate;
    load_floats<CH>(qh, q_s + ch0);
    load_floats<CH>(kh, k_s + ch0);
    if (FAMILY == KDA)
        load_floats<CH>(gc, g_s + ch0);
#pragma unroll
    for (int n = 0; n < CH; ++n) {
        qh[n] *= q_scale;
        kh[n] *= k_scale;
    }
    if (RING) {
        widen_rows<CH>(rk_raw, wj, k_dtype);
        if (FAMILY == KDA) {
#pragma unroll
            for (int n = 0; n < CH; ++n) {
                float g[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    g[i] = __uint_as_float(rg_raw[i][n]);
                const float own = (g[0] + g[1]) + (g[2] + g[3]);
                const float next = __shfl_xor_sync(ALL, own, 8);
                const float pair = own + next;
                const float far = __shfl_xor_sync(ALL, pair, 16);
                total[n] = gc[n] + (pair + far);
                float suffix = gc[n] + ((r & 1 ? 0.0f : next) + (r & 2 ? 0.0f : far)); /* after my four rows */
#pragma unroll
                for (int i = 3; i >= 0; --i) {
                    wj[i][n] *= expf(suffix);
                    suffix += g[i];
                }
            }
        } else {
            /* Lane j has record j's gate (0 beyond count): sums over later lanes. */
            const float g = __uint_as_float(rg_scalar);
            float sum = g;
#pragma unroll
            for (int o = 1; o < 16; o *= 2) {
                const float later = __shfl_down_sync(ALL, sum, o);
                sum += lane < 16 ? later : 0.0f;
            }
            float after = __shfl_down_sync(ALL, sum, 1) + gate;
            float decay = FAMILY == MAMBA2 ? g * expf(decay_rate * after) : expf(after);
            scalar_total += __shfl_sync(ALL, sum, 0);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float x = __shfl_sync(ALL, decay, 4 * r + i);
#pragma unroll
                for (int n = 0; n < CH; ++n)
                    wj[i][n] *= x;
            }
        }
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
        sum_over_lanes<4 * NQ, 4, 1>(score, lane);
        if (NQ == 2)
            part_s[w * NS + r * 8 + c] = score[0];
        else if ((c & 1) == 0)
            part_s[w * NS + r * 4 + (c >> 1)] = score[0];
    } else if (FAMILY == KDA) {
#pragma unroll
        for (int n = 0; n < CH; ++n)
            total[n] = gc[n];
    }
    /* exp(G) with the token's own gate: per channel, or one number. */
    const float e_all = FAMILY == KDA ? 1.0f : expf(decay_rate * scalar_total);
    if (r == 0) {
        float e[CH], y0[CH], y1[CH];
#pragma unroll
        for (int n = 0; n < CH; ++n) {
            e[n] = FAMILY == KDA ? expf(total[n]) : e_all;
            y0[n] = e[n] * qh[n];
            y1[n] = e[n] * kh[n];
        }
        store_spread<CHUNK, CH>(y_s, ch0, y0);
        if (NQ == 2)
            store_spread<CHUNK, CH>(y_s + K, ch0, y1);
        if (FAMILY == KDA)
            store_spread<CHUNK, CH>(e_s, ch0, e);
    }
    if (flush) {
        if (RING) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (4 * r + i < count)
                    store_spread<CHUNK, CH>(w_s + (4 * r + i) * K, ch0, wj[i]);
            if (has_d) {
                float dj[4][DV];
                widen_rows<DV>(rd_raw, dj, d_dtype);
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int n = 0; n < DV; ++n) {
                        const int v = DV * c + n, j = 4 * r + i; /* v = row of the warp */
                        if (j < count)
                            d_s[((w * RSSM_CUDA_NREC(RING) + j) * 4 + (v & 3)) * NRV + (v >> 2)] = dj[i][n];
                    }
            }
        }
        if (r == 0) { /* the token is the last record */
            float x[CH];
#pragma unroll
            for (int n = 0; n < CH; ++n)
                x[n] = round_to(kh[n], k_dtype, &hit) * (FAMILY == MAMBA2 ? gate : 1.0f);
            store_spread<CHUNK, CH>(w_s + count * K, ch0, x);
        }
        raise_fault(s, hit, RSSM_FAULTBIT_RING);
        hit = false;
    }
    __syncthreads();

    /* The records' part of the readouts: lane (r, c) sums its ring rows for DV state rows, then the sums over r are
     * handed to the lanes that own the rows. */
    float sum[2] = {0.0f, 0.0f};
    if (RING) {
        float score[4 * NQ], dj[4][DV], part[DV * NQ];
#pragma unroll
        for (int i = 0; i < 4 * NQ; ++i)
            score[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < NW; ++i) {
            float x[4 * NQ];
            load_floats<4 * NQ>(x, part_s + i * NS + r * 4 * NQ);
#pragma unroll
            for (int n = 0; n < 4 * NQ; ++n)
                score[n] += x[n];
        }
        widen_rows<DV>(rd_raw, dj, d_dtype); /* beyond count both factors are zero */
#pragma unroll
        for (int n = 0; n < DV; ++n)
#pragma unroll
            for (int q = 0; q < NQ; ++q) {
                float x = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x += score[i * NQ + q] * dj[i][n];
                part[n * NQ + q] = x;
            }
        sum_over_lanes<DV * NQ, 16, 8>(part, lane);
        constexpr int N = DV * NQ; /* values that went into the sum: of value n, lanes with bits n * 4 / N of r */
        const int mine_v = r + 4 * my_i, holder_c = mine_v / DV, n = mine_v % DV * NQ;
        if (N == 8) { /* lane (r, c) has both sums of row 4c + r: it owns that row */
            sum[0] = part[0];
            sum[1] = part[NQ - 1];
        } else {
            sum[0] = __shfl_sync(ALL, part[0], (n * 4 / N) * 8 + holder_c);
            if (NQ == 2)
                sum[1] = __shfl_sync(ALL, part[0], ((n + 1) * 4 / N) * 8 + holder_c);
        }
    }

    /* 5. The state's part. */
    float acc[NRP * NQ];
#pragma unroll
    for (int i = 0; i < NRP * NQ; ++i)
        acc[i] = 0.0f;
    const unsigned char *const my_tile = tile + ((w * WR + r) * K + c * CHUNK) * ST::BYTES;
    {
        float y[NQ][NC * CHUNK];
#pragma unroll
        for (int q = 0; q < NQ; ++q)
#pragma unroll
            for (int n = 0; n < NC; ++n)
                load_spread<CHUNK>(y[q] + n * CHUNK, y_s + q * K, n, c);
        slice_wait(bar_s + w);
#pragma unroll
        for (int i = 0; i < NR; ++i) {
#pragma unroll
            for (int n = 0; n < NC; ++n) {
                float x[CHUNK];
                widen_chunk(*(const uint4 *)(my_tile + (i * 4 * K + n * 8 * CHUNK) * ST::BYTES), x, ST());
#pragma unroll
                for (int m = 0; m < CHUNK; ++m)
#pragma unroll
                    for (int q = 0; q < NQ; ++q)
                        acc[i * NQ + q] += x[m] * y[q][n * CHUNK + m];
            }
        }
    }
    sum_over_lanes<NRP * NQ, 4, 1>(acc, lane);
    if (NQ == 1) {
        sum[0] += acc[0];
    } else if (DUP == 1) {
        sum[0] += acc[0];
        sum[1] += acc[1];
    } else { /* the lanes of a row have split between the two readouts */
        const float other = __shfl_xor_sync(ALL, acc[0], DUP / 2);
        const bool second = dup & (DUP / 2);
        sum[0] += second ? other : acc[0];
        sum[1] += second ? acc[0] : other;
    }

    /* 6. The output. */
    const float v = widen(v_raw, s.v.dtype);
    float d, out;
    if (FAMILY == MAMBA2) {
        d = v;
        out = sum[0] + gate * qk * v + widen(skip_raw, s.D.dtype) * v;
        if (s.z.data) {
            const float z = widen(z_raw, s.z.dtype);
            out *= z * sigmoid(z);
        }
    } else {
        const float beta = sigmoid(widen(b_raw, s.b.dtype)) * s.beta_scale;
        d = beta * (v - sum[1]);
        out = sum[0] + d * (qk * q_scale * k_scale);
    }
    if (mine && dup == 0)
        store_any(s.out, row * s.out_row + my_v, out, s.out_dtype, &hit);
    raise_fault(s, hit, RSSM_FAULTBIT_OUTPUT);
    hit = false;

    /* 7a. The record goes to the ring, to a row that nobody reads in this launch. */
    if (RING && !flush) {
        int p = ri.base + count;
        p = p >= s.R ? p - s.R : p;
        if (mine && dup == 0)
            store_any(s.d_cache.data, ri.slot * s.d_cache.slot + ((int64_t)hv * s.R + p) * V + slice * VT + my_row, d,
                      d_dtype, &hit);
        if (slice == 0) {
            const int64_t g_at = ri.slot * s.g_cache.slot + ((int64_t)hv * s.R + p) * (FAMILY == KDA ? K : 1);
#pragma unroll
            for (int n = 0; n < KT; ++n) {
                const int ch = t + n * NT;
                if (K % NT == 0 || ch < K) {
                    if (hv == h * group) /* one sibling writes the shared row */
                        store_any(s.k_cache.data, ri.slot * s.k_cache.slot + ((int64_t)h * s.R + p) * K + ch,
                                  k_mine[n] * k_scale, k_dtype, &hit);
                    if (FAMILY == KDA)
                        ((float *)s.g_cache.data)[g_at + ch] = g_mine[n];
                }
            }
            if (FAMILY != KDA && t == 0)
                ((float *)s.g_cache.data)[g_at] = gate;
        }
        raise_fault(s, hit, RSSM_FAULTBIT_RING);
        return;
    }

    /* 7b. Fold: S = S0 exp(G) + sum_j d_j (k_j exp(G - G_j))^T, the token's record last. */
    if (mine && dup == 0)
        d_s[((w * RSSM_CUDA_NREC(RING) + count) * 4 + r) * NRV + my_i] = round_to(d, d_dtype, &hit);
    raise_fault(s, hit, RSSM_FAULTBIT_RING);
    hit = false;
    __syncwarp();
    const float *const my_d = d_s + (w * RSSM_CUDA_NREC(RING) * 4 + r) * NRV;
    unsigned char *const my_state = state_g + (r * K + c * CHUNK) * ST::BYTES;
    constexpr int NP = NC * CHUNK * NR <= 64 || CHUNK == 8 ? 1 : 8 / CHUNK; /* chunks in registers at once */
    constexpr int CP = NC * CHUNK * NR <= 64 ? NC : NP;
#pragma unroll 1
    for (int n0 = 0; n0 < NC; n0 += CP) {
        float x[NR][CP * CHUNK];
#pragma unroll
        for (int n = 0; n < CP; ++n) {
            float e[CHUNK];
            if (FAMILY == KDA)
                load_spread<CHUNK>(e, e_s, n0 + n, c);
#pragma unroll
            for (int i = 0; i < NR; ++i) {
                widen_chunk(*(const uint4 *)(my_tile + (i * 4 * K + (n0 + n) * 8 * CHUNK) * ST::BYTES),
                            x[i] + n * CHUNK, ST());
#pragma unroll
                for (int m = 0; m < CHUNK; ++m)
                    x[i][n * CHUNK + m] *= FAMILY == KDA ? e[m] : e_all;
            }
        }
#pragma unroll 1
        for (int j = 0; j <= count; ++j) {
            float dj[NRV], kj[CP * CHUNK];
            load_floats<NRV>(dj, my_d + j * 4 * NRV);
#pragma unroll
            for (int n = 0; n < CP; ++n)
                load_spread<CHUNK>(kj + n * CHUNK, w_s + j * K, n0 + n, c);
#pragma unroll
            for (int i = 0; i < NR; ++i)
#pragma unroll
                for (int m = 0; m < CP * CHUNK; ++m)
                    x[i][m] += dj[i] * kj[m];
        }
#pragma unroll
        for (int i = 0; i < NR; ++i)
#pragma unroll
            for (int n = 0; n < CP; ++n)
                __stcs((uint4 *)(my_state + (i * 4 * K + (n0 + n) * 8 * CHUNK) * ST::BYTES),
                       narrow_chunk(x[i] + n * CHUNK, &hit, ST()));
    }
    raise_fault(s, hit, RSSM_FAULTBIT_STATE);
}

#endif
