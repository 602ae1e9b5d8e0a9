/* The tuned verify of GDN and Mamba-2 (verify_kda.cuh is KDA's): one block per (row, VT consecutive state rows), K = 128, inputs, output and ring bfloat16.
 *
 * The window's tokens meet the state as a matrix. With x_t the vectors q_t and k_t (Mamba-2: C_t), S_0 the checkpoint, m
 * records (d_j, k_j) before the window and P_t the product of the window's decays up to t, for a state row v
 *     S x_t [v] = P_t (E S_0 x_t + sum_j d_j[v] e_j (k_j . x_t)) + sum_{i<t} d_i[v] decay(i, t) (k_i . x_t)
 * where E and e_j decay the checkpoint and record j up to the window. So the block needs
 *   1. scores (k_j . x_t) of records and drafts: small products on tensor cores, before the state is there;
 *   2. the records' part, D scores, likewise;
 *   3. S_0 X: the state as the left operand, from shared memory, read once. A bfloat16 state is an exact operand; a float32
 *      one is split into two tf32 terms. X is exact where q and k enter as given (their norms multiply the sums later);
 *   4. if the row folds its records: each 16 x 32 piece of the state is folded on its way from shared memory to the
 *      registers of step 3, stored, and read as it was rounded; then m = 0 for the rest;
 *   5. one lane per state row: the drafts' part, which is a forward substitution d_t <- d_0 .. d_{t-1} in the delta
 *      families (later tokens see d_i and k_i rounded to the ring), and in Mamba-2, whose d are its inputs, one more product.
 * These families have one gate per head, so q and k enter as given: P_t, E, e_j and the norms multiply the sums.
 *
 * A lane is (r, c) = (lane % 4, lane / 4), as in mma fragments; the warp's state row DV c + 2 m + i is row c + 8 i of its
 * m-th tile. Records are columns of that operand in the order record_row() says. What lies beyond `count` in the ring and
 * beyond the row's tokens is never loaded; columns of tokens that a row does not have hold garbage that no one reads.
 */
#ifndef RSSM_CUDA_VERIFY_TILE_CUH_
#define RSSM_CUDA_VERIFY_TILE_CUH_

#include "async_copy.cuh"
#include "step_tile.cuh"
#include "verify.cuh"
#include "verify_mma.cuh"
#include "verify_variants.h"

enum { VK = RSSM_VERIFY_K, VKB = RSSM_VERIFY_KB, VNW = RSSM_VERIFY_THREADS / 32 };

template <int FAMILY_, class STATE_, int V_, int VT_, int TB_> struct verify_shape {
    typedef STATE_ STATE;
    enum {
        FAMILY = FAMILY_,
        V = V_,
        VT = VT_,
        TB = TB_,                                 /* tokens of the longest window */
        NVEC = RSSM_VERIFY_VECTORS(FAMILY_, TB_), /* columns of X: q_0 .. then k_0 .. */
        NT = NVEC / 8,                            /* their mma tiles */
        SM = (NVEC + 15) / 16,                    /* the same as rows */
        ND = TB_ > 8 ? 2 : 1,                     /* mma tiles of drafts */
        WR = VT_ / VNW,                           /* state rows of a warp */
        DV = WR / 8,                              /* of a lane */
        MT = WR / 16,                             /* mma tiles of state rows */
        DW = DV / 2,                              /* words of a lane's d per record */
        HEADS = RSSM_VERIFY_HEADS(V_, VT_),       /* of a block; they share their key head */
        BYTES = STATE::BYTES,                     /* of a state element */
        CHUNK = STATE::CHUNK,                     /* state elements in 16 bytes */
        SPLIT = STATE::DTYPE == F32,              /* the state is two tf32 terms */
        D_TERMS = SPLIT ? 3 : 2,                  /* bfloat16 terms of the d in a fold */
        STAGE = NVEC + 4,                         /* floats of a state row's sums, padded */
        CHAINS = MT * NT <= 2 ? 2 : 1,            /* of products that wait for each other, per tile */
        HEAD_FLOATS = RSSM_VERIFY_HEAD_FLOATS(TB_),
        /* Shared memory, bytes. */
        VEC_AT = VT_ * VK * BYTES,          /* [NVEC][VKB] bf16 */
        KEYS_AT = VEC_AT + 2 * NVEC * VKB,  /* [16][VKB] bf16, fold_column() */
        DRAFTS_AT = KEYS_AT + 2 * 16 * VKB, /* [DRAFTS][VKB] bf16 */
        SUMS_AT = DRAFTS_AT + 2 * RSSM_VERIFY_DRAFTS(TB_) * VKB,
        TOKEN_AT = SUMS_AT + 4 * RSSM_VERIFY_SUMS(FAMILY_, TB_), /* [TB] q's and k's scale, q.k as given */
        HEAD_AT = TOKEN_AT + 16 * TB_,                           /* [HEADS][HEAD_FLOATS] */
        BAR_AT = HEAD_AT + 4 * HEADS * HEAD_FLOATS,
        END = BAR_AT + 32,
        /* Offsets within a head's floats. */
        EACH = 0,            /* [16] e_j; Mamba-2: times dt_j */
        PREFIX = 16,         /* [TB] P_t */
        BETA = PREFIX + TB_, /* [TB] */
        TOTAL = BETA + TB_,  /* E */
        DECAY = TOTAL + 4    /* [TB t][TB i] decay(i, t); Mamba-2: times dt_i */
    };
    static_assert(END == RSSM_VERIFY_TILE_SMEM(FAMILY_, STATE::DTYPE, V_, VT_, TB_), "RSSM_VERIFY_TILE_SMEM");
    static_assert(WR * STAGE * 4 + TB * TB * 4 <= WR * VK * BYTES, "the sums take the place of the state");
    static_assert(WR == 16 || WR == 32, "rows");
};

/* Where a thread stands. */
struct verify_view {
    int t, w, lane, r, c;
    int row0;  /* the warp's first row of [HV * V] */
    int hv, h; /* its head, and the key head */
    int hb;    /* its head among the block's */
    int rv0;   /* row0 within the head */
    int m, T;  /* records that the window reads, 0 after a fold; tokens */
    int count; /* records in the ring */
    int base;
    bool flush, first, leader; /* first: the block that sees to its head's gates; leader: also to the shared keys */
    int64_t slot, token;
    unsigned char *shared;
};

template <class S> DEVICE uint16_t *vec_of(const verify_view &p)
{
    return (uint16_t *)(p.shared + S::VEC_AT);
}
template <class S> DEVICE uint16_t *keys_of(const verify_view &p)
{
    return (uint16_t *)(p.shared + S::KEYS_AT);
}
template <class S> DEVICE uint16_t *drafts_of(const verify_view &p)
{
    return (uint16_t *)(p.shared + S::DRAFTS_AT);
}
template <class S> DEVICE float *sums_of(const verify_view &p)
{
    return (float *)(p.shared + S::SUMS_AT);
}
template <class S> DEVICE float4 *token_of(const verify_view &p)
{
    return (float4 *)(p.shared + S::TOKEN_AT);
}
template <class S> DEVICE float *head_of(const verify_view &p, int hb)
{
    return (float *)(p.shared + S::HEAD_AT) + hb * S::HEAD_FLOATS;
}
template <class S> DEVICE unsigned char *slice_of(const verify_view &p)
{
    return p.shared + p.w * S::WR * VK * S::BYTES;
}
/* The drafts' scores, one copy per warp: [pair (i, t), i < t][q, k], pair = t (t - 1) / 2 + i. */
template <class S> DEVICE float *score_of(const verify_view &p)
{
    return sums_of<S>(p) + p.w * S::TB * S::TB;
}

/* The row of the operand that has records as rows at which record j lies: a lane's four records 4r .. 4r + 3 are its own. */
DEVICE int record_row(int j)
{
    return 2 * (j >> 2) + (j & 1) + 8 * (j >> 1 & 1);
}

DEVICE int ring_at(const rssm_step &s, const verify_view &p, int j)
{
    const int at = p.base + j;
    return at >= s.R ? at - s.R : at;
}

/* What a block can know of its addresses before its row has come: it asks for no bytes while it computes them, so what
 * stands between the row and the first request is kept short. Strides are in elements. */
template <class S> struct verify_bases {
    const unsigned char *state; /* of slot 0, the warp's rows */
    const uint16_t *d, *k;      /* of slot 0, ring row 0: the lane's state rows; the key head */
    const float *g;             /* likewise */
    const uint16_t *q_in, *k_in, *a_in, *b_in, *v_in, *z_in, *x_in; /* of token 0 */
    uint32_t rate, bias, skip;                                      /* A_log, dt_bias, D, asked for */
};

template <class S> DEVICE const uint16_t *input_of(const rssm_input &x, int at)
{
    return (const uint16_t *)x.data + at;
}

template <class S> DEVICE verify_bases<S> bases_of(const rssm_step &s, const verify_view &p)
{
    verify_bases<S> b;
    /* Warps 0 and 1 see to gates: with two heads, lanes 16 .. 31 to the second one's. The others have no head beyond theirs. */
    const int head = p.lane >> 4, hv = p.hv + (p.w < 2 && head < S::HEADS ? head : 0);
    b.state = (const unsigned char *)s.state.data + (int64_t)p.row0 * VK * S::BYTES;
    b.d = (const uint16_t *)s.d_cache.data + (int64_t)p.hv * s.R * S::V + p.rv0 + S::DV * p.c;
    b.k = (const uint16_t *)s.k_cache.data + (int64_t)p.h * s.R * VK + p.t % 16 * 8;
    b.g = (const float *)s.g_cache.data + (int64_t)hv * s.R;
    b.q_in = input_of<S>(s.q, p.h * VK + 4 * p.lane);
    b.k_in = input_of<S>(s.k, p.h * VK + 4 * p.lane);
    b.a_in = input_of<S>(s.a, hv);
    b.b_in = input_of<S>(s.b, p.hv);
    b.v_in = input_of<S>(s.v, p.row0 + p.lane % S::WR);
    b.z_in = input_of<S>(s.z, p.row0 + p.lane % S::WR);
    b.x_in = input_of<S>(s.v, p.row0 + S::DV * p.c);
    b.bias = s.dt_bias.data ? load_raw(s.dt_bias.data, hv, s.dt_bias.dtype) : 0;
    b.rate = s.A_log.data ? load_raw(s.A_log.data, hv, s.A_log.dtype) : 0;
    b.skip = S::FAMILY == MAMBA2 && s.D.data ? load_raw(s.D.data, p.hv, s.D.dtype) : 0;
    return b;
}

/* What a lane asks for before the state. */
template <class S> struct verify_loads {
    enum {
        TOKENS = (S::TB + VNW - 1) / VNW,             /* a warp's tokens */
        SHARE = S::FAMILY == MAMBA2 ? 32 / S::WR : 1, /* lanes that share a state row's tokens */
        MINE = (S::TB + SHARE - 1) / SHARE,
        NX = S::FAMILY == MAMBA2 ? (S::TB > 8 ? 4 : 2) : 1
    };
    uint32_t d[4][S::DW]; /* records 4r + i, state rows DV c .. */
    uint32_t key[2][4], gate;
    uint32_t q[TOKENS][2], k[TOKENS][2]; /* channels 4 lane .. of tokens w, w + 4, .. */
    uint32_t a, b;                       /* of the lane's token */
    uint32_t v[MINE], z[MINE];           /* of the lane's state row */
    uint32_t x[NX][S::DW];               /* Mamba-2: v as records */
};

/* Keeps a pointer as it stands: or the compiler forms it anew, 64 bits wide, for every element. */
template <class T> DEVICE void pin(T *&p)
{
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(p));
#endif
}

template <int BYTES, class T> DEVICE void ask(bool go, uint32_t *raw, const T *p)
{
    load_if<BYTES>(go, raw, (const unsigned char *)p);
}

/* Records: keys, d, gates; what lies beyond count is zero. */
template <class S>
DEVICE void load_records(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, verify_loads<S> &l)
{
    const uint16_t *d = b.d + p.slot * s.d_cache.slot, *k = b.k + p.slot * s.k_cache.slot;
    const float *g = b.g + p.slot * s.g_cache.slot;
    pin(d);
    pin(k);
    pin(g);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int j = i * 8 + p.t / 16;
        ask<16>(j < p.count, l.key[i], k + ring_at(s, p, j) * VK);
    }
    /* Warp 1: lane j has record j's gate; with two heads, lanes 16 .. 31 the second head's. */
    const int j = p.lane & 15;
    ask<4>(p.w == 1 && (p.lane >> 4) < S::HEADS && j < p.count, &l.gate, g + ring_at(s, p, j));
    int at = ring_at(s, p, 4 * p.r) * S::V;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        ask<2 * S::DV>(4 * p.r + i < p.count, l.d[i], d + at);
        at = at + S::V == s.R * S::V ? 0 : at + S::V;
    }
}

/* The tokens of the window. */
template <class S>
DEVICE void load_tokens(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, verify_loads<S> &l)
{
    typedef verify_loads<S> N;
    const uint16_t *q = b.q_in + (p.token + p.w) * s.q.row, *k = b.k_in + (p.token + p.w) * s.k.row;
#pragma unroll
    for (int i = 0; i < N::TOKENS; ++i) {
        const bool go = p.w + VNW * i < p.T;
        ask<8>(go, l.q[i], q);
        ask<8>(go, l.k[i], k);
        q += VNW * s.q.row;
        k += VNW * s.k.row;
    }
    /* Warp 0: lane t has token t; with two heads, lanes 16 .. 31 the second head's. */
    const int t = p.lane & 15;
    const bool go = p.w == 0 && t < p.T && (p.lane >> 4) < S::HEADS;
    ask<2>(go, &l.a, b.a_in + (p.token + t) * s.a.row);
    if (S::FAMILY == GDN)
        ask<2>(go, &l.b, b.b_in + (p.token + t) * s.b.row);
    const int first = S::FAMILY == MAMBA2 ? p.lane / S::WR : 0;
    const uint16_t *v = b.v_in + (p.token + first) * s.v.row, *z = b.z_in + (p.token + first) * s.z.row;
#pragma unroll
    for (int i = 0; i < N::MINE; ++i) {
        const bool go = first + i * N::SHARE < p.T && p.lane < S::WR * N::SHARE;
        ask<2>(go, l.v + i, v);
        v += N::SHARE * s.v.row;
        if (S::FAMILY == MAMBA2) {
            ask<2>(go && s.z.data, l.z + i, z);
            z += N::SHARE * s.z.row;
        }
    }
    if (S::FAMILY == MAMBA2) {
        const uint16_t *x = b.x_in + (p.token + N::NX * p.r) * s.v.row;
#pragma unroll
        for (int i = 0; i < N::NX; ++i) {
            ask<2 * S::DV>(N::NX * p.r + i < p.T, l.x[i], x);
            x += s.v.row;
        }
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* exp(x) for x <= 0: 2.4e-7, and 6e-8 |x| from the product, where the result is as small. */
DEVICE float decay_of(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
#else
    return exp2f(x * 1.4426950408889634f);
#endif
}

/* max(x, 0) + log1p(exp(-|x|)), which is log1p(exp(x)), and x itself above 20; 1.2e-7. */
DEVICE float quick_softplus(float x)
{
    const float u = expf(-fabsf(x));
    float y = -0.0031760570127516985f;
    y = y * u + 0.019542526453733444f;
    y = y * u - 0.056373611092567444f;
    y = y * u + 0.10543623566627502f;
    y = y * u - 0.1526966691017151f;
    y = y * u + 0.1966327428817749f;
    y = y * u - 0.24951615929603577f;
    y = y * u + 0.33329710364341736f;
    y = y * u - 0.49999892711639404f;
    y = y * u + 1.0f;
    return fmaxf(x, 0.0f) + y * u;
}

/* log_gate() of step_math.cuh. */
DEVICE float quick_gate(const rssm_step &s, float x, float rate)
{
    if (s.flags & RSSM_STEP_HAS_BOUND)
        return s.lower_bound * sigmoid(rate * x);
    return -rate * quick_softplus(x);
}

/* The bits of x in bfloat16. The conversion of a pair: that of one number is many times slower. */
DEVICE uint32_t bf16_of(float x)
{
    const float pair[2] = {x, 0.0f};
    return narrow2(pair, bf16_state());
}

/* The same; saturates. */
DEVICE uint32_t bf16_bits(float x, bool *hit)
{
    uint32_t bits = bf16_of(x);
    if ((bits & 0x7fff) == 0x7f80) {
        *hit = true;
        bits -= 1;
    }
    return bits;
}

/* ---- the window's scalars --------------------------------------------------------------------------------------- */

/* Sums over the lanes of a group of 16: what comes after a lane's own value, or before and with it. */
DEVICE float sum_after(float x, int lane)
{
    float sum = x;
#pragma unroll
    for (int o = 1; o < 16; o *= 2) {
        const float far = __shfl_sync(ALL, sum, lane + o);
        sum += (lane & 15) + o < 16 ? far : 0.0f;
    }
    const float next = __shfl_sync(ALL, sum, lane + 1);
    return (lane & 15) < 15 ? next : 0.0f;
}

DEVICE float sum_upto(float x, int lane)
{
    float sum = x;
#pragma unroll
    for (int o = 1; o < 16; o *= 2) {
        const float far = __shfl_sync(ALL, sum, lane - o);
        sum += (lane & 15) >= o ? far : 0.0f;
    }
    return sum;
}

template <class S> DEVICE float decay_rate_of(const rssm_step &s, const verify_bases<S> &b)
{
    const float a = widen(b.rate, s.A_log.dtype);
    return S::FAMILY != MAMBA2 ? 1.0f : s.flags & RSSM_STEP_A_IS_DECAY ? a : -expf(a);
}

template <class S> DEVICE float gate_rate_of(const rssm_step &s, const verify_bases<S> &b)
{
    return s.A_log.data ? expf(widen(b.rate, s.A_log.dtype)) : 1.0f;
}

/* Warp 0: the window's gates, their prefix products and the decays between tokens. */
template <class S>
DEVICE void window_scalars(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, const verify_loads<S> &l)
{
    const int t = p.lane & 15, head = p.lane >> 4;
    const bool here = head < S::HEADS && t < S::TB;
    float *const mine = head_of<S>(p, here ? head : 0);
    const float x = widen(l.a, BF16) + widen(b.bias, s.dt_bias.dtype);
    const bool plain = S::FAMILY == MAMBA2 && !(s.flags & RSSM_STEP_DT_SOFTPLUS);
    float gate = S::FAMILY == GDN ? quick_gate(s, x, gate_rate_of<S>(s, b)) : plain ? x : quick_softplus(x);
    if (S::FAMILY == MAMBA2)
        gate = gate != gate ? gate : fminf(fmaxf(gate, s.dt_min), s.dt_max);
    gate = t < p.T ? gate : 0.0f;
    const float decay_rate = decay_rate_of<S>(s, b);
    const float prefix = decay_of(decay_rate * sum_upto(gate, p.lane));
    if (here) {
        mine[S::PREFIX + t] = prefix;
        mine[S::BETA + t] = S::FAMILY == GDN ? sigmoid(widen(l.b, BF16)) * s.beta_scale : 0.0f;
        mine[S::DECAY + t * S::TB + t] = S::FAMILY == MAMBA2 ? gate : 1.0f;
    }
    float between = gate; /* gates after token t - o, up to t */
#pragma unroll
    for (int o = 1; o < S::TB; ++o) {
        const float own = __shfl_sync(ALL, gate, p.lane - o);
        if (here && t >= o)
            mine[S::DECAY + t * S::TB + t - o] = decay_of(decay_rate * between) * (S::FAMILY == MAMBA2 ? own : 1.0f);
        between += own;
    }
    if (p.first && here && t < p.T)
        ((float *)b.g)[p.slot * s.g_cache.slot + ring_at(s, p, p.count + t)] = gate;
}

/* Warp 1: how far each record and the checkpoint decay up to the window. */
template <class S>
DEVICE void record_scalars(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, const verify_loads<S> &l)
{
    const int j = p.lane & 15, head = p.lane >> 4;
    const float gate = __uint_as_float(l.gate); /* 0 beyond count */
    const float after = sum_after(gate, p.lane);
    const float decay_rate = decay_rate_of<S>(s, b);
    const float each = decay_of(decay_rate * after) * (S::FAMILY == MAMBA2 ? gate : 1.0f);
    if (head < S::HEADS) {
        float *const mine = head_of<S>(p, head);
        mine[S::EACH + j] = j < p.count ? each : 0.0f;
        if (j == 0)
            mine[S::TOTAL] = decay_of(decay_rate * (after + gate));
    }
}

/* ---- vectors and keys ------------------------------------------------------------------------------------------- */

/* The norms of a warp's tokens, from a lane's four channels of each: of token i lane 0 holds in k_scale[i], like all lanes,
 * what multiplies k; q's factor, k's and q.k as given go to shared memory. */
template <class S>
DEVICE void norm_tokens(const rssm_step &s, const verify_view &p, const verify_loads<S> &l, float *k_scale)
{
    constexpr int N = 4 * verify_loads<S>::TOKENS, LANES = 32 / N; /* lanes LANES n .. end up with sum n */
    const bool norm = s.flags & RSSM_STEP_QK_NORM;
    float sums[N];
#pragma unroll
    for (int i = 0; i < verify_loads<S>::TOKENS; ++i) {
        float q[4], k[4], *const sum = sums + 4 * i;
        widen_halves<4>(l.q[i], q, bf16_state());
        widen_halves<4>(l.k[i], k, bf16_state());
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            sum[0] += q[n] * q[n];
            sum[1] += k[n] * k[n];
            sum[2] += q[n] * k[n];
        }
    }
    sum_over_lanes<N, 16, 1>(sums, p.lane);
    const int n = p.lane / LANES, which = n & 3, t = p.w + VNW * (n >> 2);
    float factor = norm && which < 2 ? inverse_root(sums[0] + s.norm_eps) : which < 2 ? 1.0f : sums[0];
    factor *= which == 0 ? s.scale : 1.0f;
    if (p.lane % LANES == 0)
        ((float *)(token_of<S>(p) + t))[which] = factor;
#pragma unroll
    for (int i = 0; i < verify_loads<S>::TOKENS; ++i)
        k_scale[i] = __shfl_sync(ALL, factor, (4 * i + 1) * LANES);
}

/* A warp's tokens: q and k as given to shared memory, their norms, and the drafts' keys, rounded. */
template <class S> DEVICE void store_tokens(const rssm_step &s, const verify_view &p, const verify_loads<S> &l)
{
    uint16_t *ring = (uint16_t *)s.k_cache.data + p.slot * s.k_cache.slot + (int64_t)p.h * s.R * VK + 4 * p.lane;
    pin(ring);
    float k_scale[verify_loads<S>::TOKENS];
    if (S::FAMILY != MAMBA2)
        norm_tokens<S>(s, p, l, k_scale);
#pragma unroll
    for (int i = 0; i < verify_loads<S>::TOKENS; ++i) {
        const int t = p.w + VNW * i;
        if (t >= p.T)
            break;
        uint16_t *const q_row = vec_of<S>(p) + t * VKB + 4 * p.lane;
        *(uint2 *)q_row = make_uint2(l.q[i][0], l.q[i][1]);
        uint2 key = make_uint2(l.k[i][0], l.k[i][1]);
        if (S::FAMILY != MAMBA2) {
            *(uint2 *)(q_row + S::TB * VKB) = key;
            float k[4];
            widen_halves<4>(l.k[i], k, bf16_state());
#pragma unroll
            for (int n = 0; n < 4; ++n)
                k[n] *= k_scale[i]; /* a normalised key, or one as it was given: never beyond bfloat16 */
            key = make_uint2(narrow2(k, bf16_state()), narrow2(k + 2, bf16_state()));
        }
        const int row = S::FAMILY == MAMBA2 && S::TB > 8 ? record_row(t) : t;
        *(uint2 *)(drafts_of<S>(p) + row * VKB + 4 * p.lane) = key;
        if (p.leader)
            *(uint2 *)(ring + ring_at(s, p, p.count + t) * VK) = key;
    }
}

/* The records' keys as they are; zeros beyond count. */
template <class S> DEVICE void store_keys(const verify_view &p, const verify_loads<S> &l)
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint16_t *const row = keys_of<S>(p) + record_row(i * 8 + p.t / 16) * VKB;
#pragma unroll
        for (int n = 0; n < 4; ++n)
            *(uint32_t *)(row + fold_column<S::CHUNK>(p.t % 16 * 8 + 2 * n)) = l.key[i][n];
    }
}

/* ---- scores ----------------------------------------------------------------------------------------------------- */

/* A lane's eight of the channels 32 n .. 32 n + 31 of one row, in the order in which it reads the state's. */
template <class S> DEVICE void load_row(uint32_t *x, const uint16_t *row, int n, int r)
{
    if (S::CHUNK == 8) {
        const uint4 f = *(const uint4 *)(row + n * 32 + r * 8);
        x[0] = f.x;
        x[1] = f.y;
        x[2] = f.z;
        x[3] = f.w;
    } else {
        const uint2 lo = *(const uint2 *)(row + n * 32 + r * 4), hi = *(const uint2 *)(row + n * 32 + 16 + r * 4);
        x[0] = lo.x;
        x[1] = lo.y;
        x[2] = hi.x;
        x[3] = hi.y;
    }
}

/* X as left operand: a[sm] = rows 16 sm + c and + 8. */
template <class S> DEVICE void load_left(uint32_t a[S::SM][8], const uint16_t *vec, int n, const verify_view &p)
{
#pragma unroll
    for (int i = 0; i < S::SM; ++i) {
        load_row<S>(a[i], vec + (16 * i + p.c) * VKB, n, p.r);
        if (S::NVEC > 8)
            load_row<S>(a[i] + 4, vec + (16 * i + 8 + p.c) * VKB, n, p.r);
        else
            a[i][4] = a[i][5] = a[i][6] = a[i][7] = 0;
    }
}

DEVICE void mma_rows(float *acc, const uint32_t *a, const uint32_t *b)
{
    mma_bf16(acc, a[0], a[4], a[1], a[5], b[0], b[1]);
    mma_bf16(acc, a[2], a[6], a[3], a[7], b[2], b[3]);
}

/* The two right operands (16 records, in the order of record_row()) of 32 channels. */
DEVICE void load_keys(uint32_t b[2][4], const uint16_t *keys, int n, int lane)
{
#pragma unroll
    for (int i = 0; i < 2; ++i)
        load_matrices(b[i], keys + (8 * i + (lane & 7)) * VKB + n * 32 + (lane >> 3) * 8);
}

template <int N> DEVICE void clear(float *x)
{
#pragma unroll
    for (int n = 0; n < N; ++n)
        x[n] = 0.0f;
}

/* x_t . k_j of the records and of the drafts, undecayed. */
template <class S>
DEVICE void plain_scores(const verify_view &p, float record[S::SM][2][4], float draft[S::SM][S::ND][4])
{
    clear<S::SM * 8>(record[0][0]);
    clear<S::SM * S::ND * 4>(draft[0][0]);
#pragma unroll
    for (int n = 0; n < VK / 32; ++n) {
        uint32_t a[S::SM][8], b[2][4];
        load_left<S>(a, vec_of<S>(p), n, p);
        if (p.m > 0) {
            load_keys(b, keys_of<S>(p), n, p.lane);
#pragma unroll
            for (int i = 0; i < S::SM; ++i) {
                mma_rows(record[i][0], a[i], b[0]);
                mma_rows(record[i][1], a[i], b[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < S::ND; ++i) {
            load_row<S>(b[0], drafts_of<S>(p) + (8 * i + p.c) * VKB, n, p.r);
#pragma unroll
            for (int j = 0; j < S::SM; ++j)
                mma_rows(draft[j][i], a[j], b[0]);
        }
    }
}

/* ---- what does not need the state ------------------------------------------------------------------------------- */

/* x0, x1 as three bfloat16 terms, packed in pairs. */
DEVICE void split_pair(uint32_t *terms, float x0, float x1)
{
    float rest[2] = {x0, x1}, back[2];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        terms[i] = narrow2(rest, bf16_state());
        widen2(terms[i], back, bf16_state());
        rest[0] -= back[0];
        rest[1] -= back[1];
    }
}

/* Left operand of tile m from a lane's rows of N (2 or 4) records: bits, nothing is rounded. */
template <int N, int DW> DEVICE void pack_left(uint32_t a[4], const uint32_t (*d)[DW], int m)
{
    a[0] = __byte_perm(d[0][m], d[1][m], 0x5410);
    a[1] = __byte_perm(d[0][m], d[1][m], 0x7632);
    a[2] = N == 4 ? __byte_perm(d[N - 2][m], d[N - 1][m], 0x5410) : 0;
    a[3] = N == 4 ? __byte_perm(d[N - 2][m], d[N - 1][m], 0x7632) : 0;
}

/* sums += d (scores)^T: scores of tile n come as fragments of the transposed product. */
template <class S, int N>
DEVICE void add_scored(float sums[S::MT][S::NT][4], const uint32_t (*d)[S::DW], int n, const float *lo, const float *hi)
{
    uint32_t b0[3], b1[3] = {0, 0, 0};
    split_pair(b0, lo[0], lo[1]);
    if (N == 4)
        split_pair(b1, hi[0], hi[1]);
#pragma unroll
    for (int m = 0; m < S::MT; ++m) {
        uint32_t a[4];
        pack_left<N, S::DW>(a, d, m);
#pragma unroll
        for (int i = 2; i >= 0; --i)
            mma_bf16(sums[m][n], a[0], a[1], a[2], a[3], b0[i], b1[i]);
    }
}

/* The records' part of the readouts, decayed up to the window. */
template <class S>
DEVICE void add_records(const verify_view &p, const verify_loads<S> &l, float record[S::SM][2][4],
                        float sums[S::MT][S::NT][4])
{
    const float4 e = *(const float4 *)(head_of<S>(p, p.hb) + S::EACH + 4 * p.r);
#pragma unroll
    for (int i = 0; i < S::SM; ++i)
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            record[i][0][n] *= e.x;
            record[i][0][n + 1] *= e.y;
            record[i][1][n] *= e.z;
            record[i][1][n + 1] *= e.w;
        }
#pragma unroll
    for (int n = 0; n < S::NT; ++n)
        add_scored<S, 4>(sums, l.d, n, record[n / 2][0] + n % 2 * 2, record[n / 2][1] + n % 2 * 2);
}

/* Mamba-2: the drafts' part; sums come decayed up to the window and leave decayed up to each token. */
template <class S>
DEVICE void add_drafts(const verify_view &p, const verify_loads<S> &l, float draft[S::SM][S::ND][4],
                       float sums[S::MT][S::NT][4])
{
    const float *const head = head_of<S>(p, p.hb);
#pragma unroll
    for (int n = 0; n < S::NT; ++n) {
        const float2 decay = *(const float2 *)(head + S::PREFIX + 8 * n + 2 * p.r);
        const int t = S::TB < 8 && p.c >= S::TB ? 0 : 8 * n + p.c; /* a column beyond the bucket: any numbers */
        float score[S::ND][2];
#pragma unroll
        for (int i = 0; i < S::ND; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int from = S::ND == 1 ? 2 * p.r + j : 4 * p.r + 2 * i + j;
                score[i][j] = from <= t ? draft[n / 2][i][n % 2 * 2 + j] * head[S::DECAY + t * S::TB + from] : 0.0f;
            }
#pragma unroll
        for (int m = 0; m < S::MT; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                sums[m][n][j] *= j % 2 ? decay.y : decay.x;
        add_scored<S, verify_loads<S>::NX>(sums, l.x, n, score[0], score[S::ND - 1]);
    }
}

/* GDN: the drafts' scores, with all that multiplies them, for the lanes that own state rows. */
template <class S> DEVICE void store_scores(const verify_view &p, const float draft[S::SM][S::ND][4])
{
    const float *const decay = head_of<S>(p, p.hb) + S::DECAY;
    float *const score = score_of<S>(p);
#pragma unroll
    for (int n = 0; n < S::NVEC / 8; ++n) {
        const int x = 8 * n + p.c, t = x % S::TB, q = x / S::TB;
        const float4 scale = token_of<S>(p)[t];
#pragma unroll
        for (int i = 0; i < S::ND; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int from = 8 * i + 2 * p.r + j;
                if (from < t)
                    score[t * (t - 1) + 2 * from + q] =
                        draft[n / 2][i][n % 2 * 2 + j] * decay[t * S::TB + from] * (q ? scale.y : scale.x);
            }
    }
}

/* ---- the state -------------------------------------------------------------------------------------------------- */

/* The left operand of a fold: the records' d, decayed, as bfloat16 terms. */
template <class S>
DEVICE void fold_operand(const verify_view &p, const verify_loads<S> &l, uint32_t a[S::D_TERMS][S::MT][4])
{
    const float4 each = *(const float4 *)(head_of<S>(p, p.hb) + S::EACH + 4 * p.r);
    const float e[4] = {each.x, each.y, each.z, each.w};
    float d[4][S::DV];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        widen_halves<S::DV>(l.d[i], d[i], bf16_state());
#pragma unroll
        for (int n = 0; n < S::DV; ++n)
            d[i][n] *= e[i];
    }
    fold_left<S::D_TERMS, S::DV>(a, d);
}

/* The fold's products for 32 channels of tile m: acc[n] are the columns of group n. */
template <class S>
DEVICE void fold_product(float acc[4][4], const uint32_t a[S::D_TERMS][S::MT][4], const uint32_t b[8], int m)
{
    clear<16>(acc[0]);
#pragma unroll
    for (int i = S::D_TERMS - 1; i >= 0; --i) /* small terms first */
#pragma unroll
        for (int n = 0; n < 4; ++n)
            mma_bf16(acc[n], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3], b[2 * n], b[2 * n + 1]);
}

/* One chunk of a state row, folded: acc[..][first], [first + 1] are its pairs. */
template <class S> DEVICE uint4 fold_chunk(uint4 raw, const float (*acc)[4], int first, float e_all, bool *hit)
{
    float x[S::CHUNK];
    widen_chunk(raw, x, typename S::STATE());
#pragma unroll
    for (int n = 0; n < S::CHUNK; ++n)
        x[n] = x[n] * e_all + acc[n / 2][first + n % 2];
    return narrow_chunk(x, hit, typename S::STATE());
}

/* acc[0] (or in turn acc[0], acc[1]) += a 16 x 16 (bfloat16: 16 x 32) piece of the state times X. lo, hi: a chunk of
 * rows c and c + 8. */
template <class S>
DEVICE void state_product(float acc[S::CHAINS][S::NT][4], uint4 lo, uint4 hi, const uint32_t b[S::NT][4], int half)
{
    constexpr int LAST = S::CHAINS - 1;
    if (!S::SPLIT) {
#pragma unroll
        for (int n = 0; n < S::NT; ++n) {
            mma_bf16(acc[0][n], lo.x, hi.x, lo.y, hi.y, b[n][0], b[n][1]);
            mma_bf16(acc[LAST][n], lo.z, hi.z, lo.w, hi.w, b[n][2], b[n][3]);
        }
        return;
    }
    const uint32_t x[2][4] = {{lo.x, hi.x, lo.y, hi.y}, {lo.z, hi.z, lo.w, hi.w}};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        float(*const to)[4] = acc[k ? LAST : 0];
        uint32_t rest[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            rest[i] = __float_as_uint(__uint_as_float(x[k][i]) - __uint_as_float(x[k][i] & 0xffffe000u));
#pragma unroll
        for (int n = 0; n < S::NT; ++n) {
            const uint32_t pair = b[n][2 * half + k], b0 = pair << 16, b1 = pair & 0xffff0000u;
            mma_tf32(to[n], rest[0], rest[1], rest[2], rest[3], b0, b1);
            mma_tf32(to[n], x[k][0], x[k][1], x[k][2], x[k][3], b0, b1);
        }
    }
}

template <class S> DEVICE void load_right(uint32_t b[S::NT][4], const verify_view &p, int n)
{
#pragma unroll
    for (int i = 0; i < S::NT; ++i)
        load_row<S>(b[i], vec_of<S>(p) + (8 * i + p.c) * VKB, n, p.r);
}

/* S_0 X for the warp's rows. */
template <class S> DEVICE void read_state(const verify_view &p, float acc[S::MT][S::CHAINS][S::NT][4])
{
    const unsigned char *const slice = slice_of<S>(p);
    slice_wait((uint64_t *)(p.shared + S::BAR_AT) + p.w);
#pragma unroll
    for (int n = 0; n < VK / 32; ++n) {
        uint32_t b[S::NT][4];
        load_right<S>(b, p, n);
#pragma unroll
        for (int m = 0; m < S::MT; ++m)
#pragma unroll
            for (int half = 0; half < 8 / S::CHUNK; ++half) {
                const int v = S::DV * p.c + 2 * m, ch = n * 32 + half * 16 + p.r * S::CHUNK;
                const unsigned char *const at = slice + (v * VK + ch) * S::BYTES;
                state_product<S>(acc[m], *(const uint4 *)at, *(const uint4 *)(at + VK * S::BYTES), b, half);
            }
    }
}

/* The same; on the way the state folds. */
template <class S>
DEVICE void fold_state(const rssm_step &s, const verify_view &p, const verify_bases<S> &base, const verify_loads<S> &l,
                       float acc[S::MT][S::CHAINS][S::NT][4])
{
    unsigned char *const slice = slice_of<S>(p);
    unsigned char *out = (unsigned char *)base.state + p.slot * s.state.slot * S::BYTES;
    const float e_all = head_of<S>(p, p.hb)[S::TOTAL];
    const int keys_at = (p.lane & 15) * VKB + (p.lane >> 4) * 8; /* for load_transposed() */
    uint32_t a[S::D_TERMS][S::MT][4];
    bool hit = false;
    fold_operand<S>(p, l, a);
    slice_wait((uint64_t *)(p.shared + S::BAR_AT) + p.w);
#pragma unroll 1
    for (int n = 0; n < VK / 32; ++n) {
        uint32_t b[S::NT][4], keys[8];
        load_right<S>(b, p, n);
        load_transposed(keys, keys_of<S>(p) + keys_at + n * 32);
        load_transposed(keys + 4, keys_of<S>(p) + keys_at + n * 32 + 16);
#pragma unroll
        for (int m = 0; m < S::MT; ++m) {
            const int v = S::DV * p.c + 2 * m;
            float fold[4][4];
            fold_product<S>(fold, a, keys, m);
#pragma unroll
            for (int half = 0; half < 8 / S::CHUNK; ++half) {
                const int ch = n * 32 + half * 16 + p.r * S::CHUNK, at = (v * VK + ch) * S::BYTES;
                uint4 lo = *(const uint4 *)(slice + at), hi = *(const uint4 *)(slice + at + VK * S::BYTES);
                lo = fold_chunk<S>(lo, fold + 2 * half, 0, e_all, &hit);
                hi = fold_chunk<S>(hi, fold + 2 * half, 2, e_all, &hit);
                __stcs((uint4 *)(out + at), lo);
                __stcs((uint4 *)(out + at + VK * S::BYTES), hi);
                state_product<S>(acc[m], lo, hi, b, half);
            }
        }
    }
    raise_fault(s, hit, RSSM_FAULTBIT_STATE);
}

/* ---- the end: a lane per state row ------------------------------------------------------------------------------ */

/* The sums of the warp's rows, from fragments to one row per lane, where the state was. */
template <class S> DEVICE void stage_sums(const verify_view &p, const float sums[S::MT][S::NT][4])
{
    float *const stage = (float *)slice_of<S>(p);
#pragma unroll
    for (int m = 0; m < S::MT; ++m)
#pragma unroll
        for (int n = 0; n < S::NT; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                *(float2 *)(stage + (S::DV * p.c + 2 * m + i) * S::STAGE + 8 * n + 2 * p.r) =
                    make_float2(sums[m][n][2 * i], sums[m][n][2 * i + 1]);
}

template <class S> DEVICE void finish_gdn(const rssm_step &s, const verify_view &p, const verify_loads<S> &l)
{
    const float *const sums = (const float *)slice_of<S>(p) + p.lane * S::STAGE;
    const float *const score = score_of<S>(p), *const head = head_of<S>(p, p.hb);
    uint16_t *ring = (uint16_t *)s.d_cache.data + p.slot * s.d_cache.slot + (int64_t)p.hv * s.R * S::V + p.rv0 + p.lane;
    pin(ring);
    uint16_t *to = (uint16_t *)s.out + p.token * s.out_row + p.row0 + p.lane;
    int at = ring_at(s, p, p.count) * S::V;
    float d[S::TB];
    bool out_hit = false, ring_hit = false;
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        if (t >= p.T)
            break;
        const float4 scale = token_of<S>(p)[t];
        const float decay = head[S::PREFIX + t];
        float q = sums[t] * (decay * scale.x), k = sums[S::TB + t] * (decay * scale.y);
#pragma unroll
        for (int i = 0; i < t; ++i) {
            const float2 x = *(const float2 *)(score + t * (t - 1) + 2 * i);
            q += x.x * d[i];
            k += x.y * d[i];
        }
        const float now = head[S::BETA + t] * (bf16_bits_to_float(l.v[t]) - k);
        const float out = q + now * (scale.z * scale.x * scale.y);
        const uint32_t bits = bf16_bits(now, &ring_hit);
        d[t] = bf16_bits_to_float(bits);
        *to = (uint16_t)bf16_bits(out, &out_hit);
        ring[at] = (uint16_t)bits;
        to += s.out_row;
        at = at + S::V == s.R * S::V ? 0 : at + S::V;
    }
    raise_fault(s, out_hit, RSSM_FAULTBIT_OUTPUT);
    raise_fault(s, ring_hit, RSSM_FAULTBIT_RING);
}

template <class S>
DEVICE void finish_mamba2(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, const verify_loads<S> &l)
{
    const int row = p.lane % S::WR, first = p.lane / S::WR;
    const float *const sums = (const float *)slice_of<S>(p) + row * S::STAGE;
    uint16_t *ring = (uint16_t *)s.d_cache.data + p.slot * s.d_cache.slot + (int64_t)p.hv * s.R * S::V + p.rv0 + row;
    pin(ring);
    uint16_t *to = (uint16_t *)s.out + (p.token + first) * s.out_row + p.row0 + row;
    const float skip = widen(b.skip, s.D.dtype);
    bool hit = false;
#pragma unroll
    for (int i = 0; i < verify_loads<S>::MINE; ++i) {
        const int t = first + i * verify_loads<S>::SHARE;
        if (t >= p.T)
            break;
        float out = sums[t] + skip * bf16_bits_to_float(l.v[i]);
        if (s.z.data) {
            const float z = bf16_bits_to_float(l.z[i]);
            out *= z * sigmoid(z);
        }
        *to = (uint16_t)bf16_bits(out, &hit);
        ring[ring_at(s, p, p.count + t) * S::V] = (uint16_t)l.v[i];
        to += verify_loads<S>::SHARE * s.out_row;
    }
    raise_fault(s, hit, RSSM_FAULTBIT_OUTPUT);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

/* What does not depend on the row. */
template <class S> DEVICE verify_view view_of(const rssm_step &s, unsigned char *shared)
{
    verify_view p;
    p.shared = shared;
    p.t = threadIdx.x;
    p.w = p.t >> 5;
    p.lane = p.t & 31;
    p.r = p.lane & 3;
    p.c = p.lane >> 2;
    p.row0 = blockIdx.x * S::VT + p.w * S::WR;
    p.hv = p.row0 / S::V;
    p.h = (int)((uint32_t)p.hv * (uint32_t)s.H / (uint32_t)s.HV);
    p.hb = p.w * S::WR / S::V;
    p.rv0 = p.row0 % S::V;
    p.first = blockIdx.x * S::VT % S::V == 0;
    p.leader = p.first && (int)(blockIdx.x * S::VT / S::V) * s.H == p.h * s.HV;
    return p;
}

template <class S> DEVICE void set_row(verify_view &p, const window_row &row)
{
    p.count = row.count;
    p.m = row.flush ? 0 : row.count;
    p.T = row.len;
    p.base = row.base;
    p.flush = row.flush;
    p.slot = row.slot;
    p.token = row.start;
}

/* Zeros for the tokens of a padding row. */
template <class S> DEVICE void zero_tokens(const rssm_step &s, const window_row &row)
{
    uint16_t *out = (uint16_t *)s.out + row.start * s.out_row + blockIdx.x * S::VT;
    for (int t = 0; t < row.len; ++t, out += s.out_row)
        for (int i = threadIdx.x; i < S::VT; i += RSSM_VERIFY_THREADS)
            out[i] = 0;
}

/* Everything up to the block's last barrier. */
template <class S>
DEVICE void prepare(const rssm_step &s, const verify_view &p, const verify_bases<S> &b, const verify_loads<S> &l)
{
    store_tokens<S>(s, p, l);
    if (p.count > 0 || p.flush)
        store_keys<S>(p, l);
    if (p.w == 0)
        window_scalars<S>(s, p, b, l);
    if (p.w == 1)
        record_scalars<S>(s, p, b, l);
    __syncthreads();
}

/* All of the readouts that does not come from the state; the drafts' scores on the side. */
template <class S> DEVICE void ring_part(const verify_view &p, const verify_loads<S> &l, float sums[S::MT][S::NT][4])
{
    clear<S::MT * S::NT * 4>(sums[0][0]);
    float record[S::SM][2][4], draft[S::SM][S::ND][4];
    plain_scores<S>(p, record, draft);
    if (p.m > 0)
        add_records<S>(p, l, record, sums);
    if (S::FAMILY == GDN)
        store_scores<S>(p, draft);
    if (S::FAMILY == MAMBA2)
        add_drafts<S>(p, l, draft, sums);
}

/* The state's part joins the rest: decayed up to the window, in Mamba-2 also up to each token. */
template <class S>
DEVICE void add_state(const verify_view &p, float sums[S::MT][S::NT][4], const float acc[S::MT][S::CHAINS][S::NT][4])
{
    const float *const head = head_of<S>(p, p.hb);
    const float total = p.flush ? 1.0f : head[S::TOTAL];
#pragma unroll
    for (int n = 0; n < S::NT; ++n) {
        float2 e = make_float2(total, total);
        if (S::FAMILY == MAMBA2) {
            const float2 prefix = *(const float2 *)(head + S::PREFIX + 8 * n + 2 * p.r);
            e = make_float2(total * prefix.x, total * prefix.y);
        }
#pragma unroll
        for (int m = 0; m < S::MT; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[m][n][i] +=
                    (acc[m][0][n][i] + (S::CHAINS > 1 ? acc[m][S::CHAINS - 1][n][i] : 0.0f)) * (i % 2 ? e.y : e.x);
    }
}

/* Keeps the compiler from waiting for the row before the addresses are formed. */
template <class S> DEVICE void pin_all(verify_bases<S> &b, window_ahead &a)
{
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(b.state), "+l"(b.d), "+l"(b.k), "+l"(b.g), "+l"(b.q_in), "+l"(b.k_in), "+l"(b.a_in));
    asm volatile("" : "+l"(b.b_in), "+l"(b.v_in));
    asm volatile(""
                 : "+r"(a.slot), "+r"(a.base), "+r"(a.count), "+r"(a.flush), "+r"(a.start), "+r"(a.len)
                 :
                 : "memory");
#endif
}

template <class S> DEVICE void verify_tile(const rssm_window &a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const rssm_step &s = a.step;
    const int64_t number = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    wait_for_predecessors();
    let_successors_start_beside_tiles();
    if (number >= s.B)
        return;
    window_ahead ahead = load_window(s, number);
    verify_view p = view_of<S>(s, shared);
    verify_bases<S> b = bases_of<S>(s, p);
    uint64_t *const bar = (uint64_t *)(shared + S::BAR_AT) + p.w;
    slice_expect(S::WR * VK * S::BYTES, bar, p.lane);
    pin_all(b, ahead);

    const window_row row = judge_window(a, ahead);
    raise_fault(s, row.fault && threadIdx.x == 0 && blockIdx.x == 0, row.fault);
    if (row.slot < 0) {
        zero_tokens<S>(s, row);
        return;
    }
    if (row.len == 0 && !row.flush)
        return;
    set_row<S>(p, row);
    verify_loads<S> l;
    load_records<S>(s, p, b, l);
    load_tokens<S>(s, p, b, l);
    slice_load(slice_of<S>(p), b.state + p.slot * s.state.slot * S::BYTES, S::WR * VK * S::BYTES, bar, p.lane);
    prepare<S>(s, p, b, l);

    float sums[S::MT][S::NT][4], acc[S::MT][S::CHAINS][S::NT][4];
    ring_part<S>(p, l, sums);
    clear<S::MT * S::CHAINS * S::NT * 4>(acc[0][0][0]);
    if (p.flush)
        fold_state<S>(s, p, b, l, acc);
    else
        read_state<S>(p, acc);
    add_state<S>(p, sums, acc);
    __syncwarp();
    stage_sums<S>(p, sums);
    __syncwarp();
    if (S::FAMILY == MAMBA2)
        finish_mamba2<S>(s, p, b, l);
    else if (p.lane < S::WR)
        finish_gdn<S>(s, p, l);
}

#endif
