/* The tuned verify of KDA: verify_tile.cuh's, with its formulas, for gates per channel. One block of four warps per (row, VT
 * consecutive state rows of a value head), K = V = 128.
 *
 * P_t, E and e_j are vectors here, so they go into the keys and into q and k before any product: a thread decays its channels.
 * The drafts' scores (k_i . x_t) are summed from products of the gates between them; exp(-G) is never formed. Vectors and keys are
 * floats in shared memory. Their products are tf32, where a float is two terms, its first 19 bits and the rest, of which 2^-22 is
 * lost; only a bfloat16 state meets bfloat16 vectors, in three terms. Two bfloat16 terms everywhere were too few: records
 * d = beta (v - S k) that cancel were off by more than an ulp.
 *
 * The kernel is bound by the instructions that it issues. So the vectors are the left operand and the state the right one:
 * then 16 bytes of a state row are operands as they were loaded.
 *
 * A lane is (r, c) = (lane % 4, lane / 4). Of its warp's WR state rows it loads DV c .. , column c of DV mma tiles; at the end
 * lane v has row v.
 */
#ifndef RSSM_CUDA_VERIFY_KDA_CUH_
#define RSSM_CUDA_VERIFY_KDA_CUH_

#include "verify_tile.cuh"

template <class STATE_, int VT_, int TB_> struct kda_shape {
    typedef STATE_ STATE;
    enum {
        FAMILY = KDA,
        V = 128,
        VT = VT_,
        TB = TB_,            /* tokens of the longest window */
        NVEC = 2 * TB,       /* vectors: q_0 .. then k_0 .. */
        NT = NVEC / 8,       /* groups of eight vectors */
        PAIRED = TB > 4,     /* rows c and c + 8 of the left operand are q_c and k_c, else a vector and its rest */
        NA = TB > 8 ? 2 : 1, /* left operands, but for their terms */
        WR = VT_ / 4,        /* state rows of a warp */
        DV = WR / 8,         /* of a lane: a tile each */
        DW = DV / 2,         /* words of a lane's d per record */
        /* A launch over few rows has an order, window_at(). In float32 that gains nothing; there ask_first_wave() does. */
        ORDERED = STATE::DTYPE != F32 && VT_ == 128 && TB_ == 4,
        AHEAD = STATE::DTYPE == F32 && VT_ == 128 && TB_ == 4,
        BYTES = STATE::BYTES,                  /* of a state element */
        CHUNK = STATE::CHUNK,                  /* state elements in 16 bytes */
        SPLIT = STATE::DTYPE == F32,           /* the state is two tf32 terms */
        STAGE = NVEC + 4,                      /* floats of a state row's sums, padded */
        CHAINS = DV > 2 || TB > 8 ? 1 : 2,     /* of products that wait for each other, per tile */
        XS = RSSM_VERIFY_KDA_XS,               /* floats of a vector, padded */
        YS = RSSM_VERIFY_KDA_YS(STATE::DTYPE), /* bytes of a row of Y */
        Y_ROWS = RSSM_VERIFY_KDA_Y_ROWS(STATE::DTYPE, TB_),
        PAIRS = RSSM_VERIFY_KDA_PAIRS(TB_),
        BATCH = PAIRS < 16 ? PAIRS : 16, /* pairs of drafts whose scores are summed over lanes at once */
        TOKENS = TB / 4,                 /* of a warp */
        FOLDS = SPLIT ? 2 : 1,           /* pieces of the state that fold side by side */
        /* Shared memory, bytes. */
        X_AT = VT * VK * BYTES,       /* [NVEC][XS]: q and k, normalised; then decayed from the window's start */
        Y_AT = X_AT + 4 * NVEC * XS,  /* [Y_ROWS][YS]: the same decayed from the checkpoint, as operands */
        KEYS_AT = Y_AT + Y_ROWS * YS, /* [VK][16] decayed keys, key_at() */
        SHARE_AT = KEYS_AT,           /* a warp's [NVEC][16], over its channels' keys: only a fold needs those longer */
        E_AT = KEYS_AT + 4 * VK * 16, /* [VK] the checkpoint's decay */
        PAIRS_AT = E_AT + 4 * VK,     /* [4][2][PAIRS] */
        TOKEN_AT = PAIRS_AT + 4 * 8 * PAIRS, /* [TB] q.k */
        BETA_AT = TOKEN_AT + 4 * TB,         /* [TB] */
        BAR_AT = BETA_AT + 4 * TB,
        END = BAR_AT + 32
    };
    static_assert(END == RSSM_VERIFY_KDA_SMEM(STATE::DTYPE, VT_, TB_), "RSSM_VERIFY_KDA_SMEM");
    static_assert(BAR_AT % 8 == 0 && KEYS_AT % 16 == 0 && TOKEN_AT % 16 == 0, "alignment");
    static_assert(WR * STAGE * 4 + 8 * PAIRS <= WR * VK * BYTES, "the sums take the place of the state");
};

template <class S> DEVICE float *floats_at(const verify_view &p, int at)
{
    return (float *)(p.shared + at);
}

/* Where records 4 quad .. of a channel lie: swizzled, so that neither threads with neighbouring channels nor lanes (r, c)
 * with quads r meet in a bank. */
DEVICE int key_at(int ch, int quad)
{
    return ch * 16 + ((quad ^ ch >> 1) & 3) * 4;
}

/* What the upper 19 bits of x leave: the second tf32 term. */
DEVICE float rest_of(float x)
{
    return x - __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}

/* sigmoid() without a division; 2e-7. */
DEVICE float quick_sigmoid(float x)
{
    const float u = expf(-fabsf(x)), y = reciprocal(1.0f + u);
    return x < 0.0f ? u * y : y;
}

/* Records are read two channels at a time: the first of them, of the warp's; lanes 0 .. 15 read records 0 .. 7, lanes 16 .. 31
 * records 8 .. 15. */
DEVICE int pair_of(const verify_view &p)
{
    return p.w * 32 + (p.lane & 15) * 2;
}

/* ---- loads ------------------------------------------------------------------------------------------------------ */

/* verify_bases, but for gates per channel: what can be known of the addresses before the row has come. */
struct kda_bases {
    const unsigned char *state; /* of slot 0, the warp's rows */
    const uint16_t *d, *k;      /* of slot 0, ring row 0: the lane's state rows; channels pair_of() */
    const float *g;             /* likewise */
    const uint16_t *q_in, *k_in, *a_in, *b_in, *v_in; /* of token 0 */
    uint32_t rate, bias;                              /* A_log, dt_bias of channel p.t, asked for */
};

template <class S> DEVICE kda_bases kda_bases_of(const rssm_step &s, const verify_view &p)
{
    kda_bases b;
    const int ch = p.t;
    b.state = (const unsigned char *)s.state.data + (int64_t)p.row0 * VK * S::BYTES;
    b.d = (const uint16_t *)s.d_cache.data + (int64_t)p.hv * s.R * S::V + p.rv0 + S::DV * p.c;
    b.k = (const uint16_t *)s.k_cache.data + (int64_t)p.h * s.R * VK + pair_of(p);
    b.g = (const float *)s.g_cache.data + (int64_t)p.hv * s.R * VK + pair_of(p);
    b.q_in = (const uint16_t *)s.q.data + p.h * VK + 4 * p.lane;
    b.k_in = (const uint16_t *)s.k.data + p.h * VK + 4 * p.lane;
    b.a_in = (const uint16_t *)s.a.data + p.hv * VK + ch;
    b.b_in = (const uint16_t *)s.b.data + p.hv;
    b.v_in = (const uint16_t *)s.v.data + p.row0 + p.lane % S::WR;
    b.bias = s.dt_bias.data ? load_raw(s.dt_bias.data, p.hv * VK + ch, s.dt_bias.dtype) : 0;
    b.rate = s.A_log.data ? load_raw(s.A_log.data, p.hv, s.A_log.dtype) : 0;
    return b;
}

template <class S> struct kda_loads {
    uint32_t d[4][S::DW];                      /* records 4r + i, state rows DV c .. */
    uint32_t key[8], gate[8][2];               /* of records 8 (lane / 16) .., channels pair_of() and + 1 */
    uint32_t q[S::TOKENS][2], k[S::TOKENS][2]; /* channels 4 lane .. of tokens w, w + 4, .. */
    uint32_t a[S::TB], b;
    uint32_t v[S::TB]; /* of the lane's state row */
};

/* Keys and gates of the records; zero beyond count, but not set from the fourth on where no lane has that many. */
template <class S>
DEVICE void load_keys_and_gates(const rssm_step &s, const verify_view &p, const kda_bases &b, kda_loads<S> &l)
{
    const uint16_t *k = b.k + p.slot * s.k_cache.slot;
    const float *g = b.g + p.slot * s.g_cache.slot;
    pin(k);
    pin(g);
    const int first = p.lane >> 4 << 3;
    int at = ring_at(s, p, first) * VK;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        if (j == 4 && p.count <= 4)
            break;
        ask<4>(first + j < p.count, l.key + j, k + at);
        ask<8>(first + j < p.count, l.gate[j], g + at);
        at = at + VK == s.R * VK ? 0 : at + VK;
    }
}

/* q and k of the warp's tokens. */
template <class S>
DEVICE void load_queries(const rssm_step &s, const verify_view &p, const kda_bases &b, kda_loads<S> &l)
{
    const int w = p.w;
    const uint16_t *q = b.q_in + (p.token + w) * s.q.row, *k = b.k_in + (p.token + w) * s.k.row;
#pragma unroll
    for (int i = 0; i < S::TOKENS; ++i) {
        ask<8>(w + 4 * i < p.T, l.q[i], q);
        ask<8>(w + 4 * i < p.T, l.k[i], k);
        q += 4 * s.q.row;
        k += 4 * s.k.row;
    }
    ask<2>(w == 0 && p.lane < p.T, &l.b, b.b_in + (p.token + p.lane) * s.b.row);
}

/* Gates and v of the window, d of the records. */
template <class S>
DEVICE void load_window_and_d(const rssm_step &s, const verify_view &p, const kda_bases &b, kda_loads<S> &l)
{
    const uint16_t *a = b.a_in + p.token * s.a.row, *v = b.v_in + p.token * s.v.row;
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        ask<2>(t < p.T, l.a + t, a);
        a += s.a.row;
    }
    const uint16_t *d = b.d + p.slot * s.d_cache.slot;
    pin(d);
    int at = ring_at(s, p, 4 * p.r) * S::V;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        ask<2 * S::DV>(4 * p.r + i < p.count, l.d[i], d + at);
        at = at + S::V == s.R * S::V ? 0 : at + S::V;
    }
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        ask<2>(t < p.T && p.lane < S::WR, l.v + t, v);
        v += s.v.row;
    }
}

/* ---- keys and vectors ------------------------------------------------------------------------------------------- */

/* The records' keys decayed up to the window, zeros beyond count, and the checkpoint's decay. */
template <class S> DEVICE void decay_keys(const verify_view &p, const kda_loads<S> &l)
{
    const int ch = pair_of(p), late = p.lane >> 4; /* whether mine are records 8 .. 15 */
    float own[2] = {0.0f, 0.0f}, suffix[2];
#pragma unroll
    for (int j = 7; j >= 0; --j)
        if (j < 4 || p.count > 4)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                own[i] += __uint_as_float(l.gate[j][i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float other = __shfl_xor_sync(ALL, own[i], 16);
        suffix[i] = late ? 0.0f : other;
    }
#pragma unroll
    for (int quad = 1; quad >= 0; --quad) {
        float k[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
        if (quad == 0 || p.count > 4) { /* of the whole block */
#pragma unroll
            for (int j = 4 * quad + 3; j >= 4 * quad; --j) {
                float key[2];
                widen2(l.key[j], key, bf16_state());
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    k[i][j % 4] = key[i] * decay_of(suffix[i]);
                    suffix[i] += __uint_as_float(l.gate[j][i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
            *(float4 *)(floats_at<S>(p, S::KEYS_AT) + key_at(ch + i, 2 * late + quad)) =
                make_float4(k[i][0], k[i][1], k[i][2], k[i][3]);
    }
    if (!late)
        *(float2 *)(floats_at<S>(p, S::E_AT) + ch) = make_float2(decay_of(suffix[0]), decay_of(suffix[1]));
}

/* The warp's tokens, normalised, and their keys as the ring has them. */
template <class S> DEVICE void normalise_tokens(const rssm_step &s, const verify_view &p, const kda_loads<S> &l)
{
    constexpr int N = 4 * S::TOKENS, LANES = 32 / N; /* lanes LANES n .. end up with sum n */
    const bool norm = s.flags & RSSM_STEP_QK_NORM;
    uint16_t *ring = (uint16_t *)s.k_cache.data + p.slot * s.k_cache.slot + (int64_t)p.h * s.R * VK + 4 * p.lane;
    pin(ring);
    float sums[N], q[S::TOKENS][4], k[S::TOKENS][4];
#pragma unroll
    for (int i = 0; i < S::TOKENS; ++i) {
        float *const sum = sums + 4 * i;
        widen_halves<4>(l.q[i], q[i], bf16_state());
        widen_halves<4>(l.k[i], k[i], bf16_state());
        sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            sum[0] += q[i][n] * q[i][n];
            sum[1] += k[i][n] * k[i][n];
            sum[2] += q[i][n] * k[i][n];
        }
    }
    sum_over_lanes<N, 16, 1>(sums, p.lane);
    const int which = p.lane / LANES & 3;
    float factor = norm && which < 2 ? inverse_root(sums[0] + s.norm_eps) : which < 2 ? 1.0f : sums[0];
    factor *= which == 0 ? s.scale : 1.0f;
#pragma unroll
    for (int i = 0; i < S::TOKENS; ++i) {
        const int t = p.w + 4 * i;
        const float q_scale = __shfl_sync(ALL, factor, 4 * i * LANES);
        const float k_scale = __shfl_sync(ALL, factor, (4 * i + 1) * LANES);
        const float qk = __shfl_sync(ALL, factor, (4 * i + 2) * LANES);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            q[i][n] *= q_scale;
            k[i][n] *= k_scale; /* a normalised key, or one as it was given: never beyond bfloat16 */
        }
        float *const row = floats_at<S>(p, S::X_AT) + t * S::XS + 4 * p.lane;
        *(float4 *)row = make_float4(q[i][0], q[i][1], q[i][2], q[i][3]);
        *(float4 *)(row + S::TB * S::XS) = make_float4(k[i][0], k[i][1], k[i][2], k[i][3]);
        if (p.lane == 0)
            floats_at<S>(p, S::TOKEN_AT)[t] = qk * q_scale * k_scale;
        if (p.leader && t < p.T)
            *(uint2 *)(ring + ring_at(s, p, p.count + t) * VK) =
                make_uint2(narrow2(k[i], bf16_state()), narrow2(k[i] + 2, bf16_state()));
    }
    if (p.w == 0 && p.lane < S::TB)
        floats_at<S>(p, S::BETA_AT)[p.lane] = quick_sigmoid(widen(l.b, BF16)) * s.beta_scale;
}

/* The window's decays of the thread's channel; its gates go to the ring. */
template <class S>
DEVICE void window_decays(const rssm_step &s, const verify_view &p, const kda_bases &b, const kda_loads<S> &l,
                          float *alpha)
{
    const float rate = s.A_log.data ? expf(widen(b.rate, s.A_log.dtype)) : 1.0f;
    const float bias = widen(b.bias, s.dt_bias.dtype);
    float *ring = (float *)b.g + p.slot * s.g_cache.slot + (p.t - pair_of(p));
    pin(ring);
    int at = ring_at(s, p, p.count) * VK;
    float gates[S::TB];
    if (s.flags & RSSM_STEP_HAS_BOUND)
#pragma unroll
        for (int t = 0; t < S::TB; ++t)
            gates[t] = s.lower_bound * quick_sigmoid(rate * (widen(l.a[t], BF16) + bias));
    else
#pragma unroll
        for (int t = 0; t < S::TB; ++t)
            gates[t] = -rate * quick_softplus(widen(l.a[t], BF16) + bias);
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        if (t < p.T)
            ring[at] = gates[t];
        at = at + VK == s.R * VK ? 0 : at + VK;
        alpha[t] = decay_of(gates[t]);
    }
}

/* A batch of the drafts' scores, summed over the warp's channels. Value n of first is pair n's with q, in lanes 16 .. with k,
 * and of second with the other of the two; so the first step of the sum needs no choice. */
template <class S> DEVICE void store_pairs(const verify_view &p, float *first, const float *second, int batch)
{
    constexpr int LANES = 16 / S::BATCH;
#pragma unroll
    for (int n = 0; n < S::BATCH; ++n)
        first[n] += __shfl_xor_sync(ALL, second[n], 16);
    sum_over_lanes<S::BATCH, 8, 1>(first, p.lane);
    if (p.lane % LANES == 0)
        floats_at<S>(p, S::PAIRS_AT)[(p.w * 2 + (p.lane >> 4)) * S::PAIRS + batch * S::BATCH + (p.lane & 15) / LANES] =
            first[0];
}

/* Vectors that meet the state are left operands. They lie as lanes read them: two words (a float, or two bfloat16 channels)
 * of operand rows c and c + 8, then two of the next channels. Rows c and c + 8 are, from eight tokens on, q_c and k_c, and
 * each term has its rows of Y; with four tokens they are a vector's first and second term, and a third has rows of its own, with zeros
 * beside it. */
template <class S> DEVICE void store_state_vector(const verify_view &p, int half, int t, float y)
{
    unsigned char *const at = p.shared + S::Y_AT + p.t * 8;
    if (S::SPLIT && !S::PAIRED)
        *(float2 *)(at + (half * S::TB + t) * S::YS) = make_float2(y, rest_of(y));
    if (S::SPLIT && S::PAIRED) {
        float *const to = (float *)(at + t * S::YS + half * 4);
        to[0] = y;
        to[S::TB * S::YS / 4] = rest_of(y);
    }
}

/* The same for a bfloat16 state, two tokens at once. */
template <class S> DEVICE void store_state_terms(const verify_view &p, int half, int t, float y0, float y1)
{
    const int ch = p.t;
    unsigned char *const at = p.shared + S::Y_AT + (ch >> 1) * 8 + (ch & 1) * 2;
    uint32_t terms[3];
    split_pair(terms, y0, y1);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int row = S::PAIRED ? i * S::TB + t : (i >> 1) * S::NVEC + half * S::TB + t;
        unsigned char *const to = at + row * S::YS + (S::PAIRED ? half : i & 1) * 4;
        *(uint16_t *)to = (uint16_t)terms[i];
        *(uint16_t *)(to + S::YS) = (uint16_t)(terms[i] >> 16);
        if (!S::PAIRED && i == 2) /* there is no fourth */
            *(uint16_t *)(to + 4) = *(uint16_t *)(to + S::YS + 4) = 0;
    }
}

/* q and k of all tokens, decayed from the window's start and, by e more, from the checkpoint. The drafts' scores. */
template <class S> DEVICE void decay_tokens(const verify_view &p, const float *alpha, float e)
{
    float *const x = floats_at<S>(p, S::X_AT) + p.t;
    const bool up = p.lane & 16;
    float first[S::BATCH], second[S::BATCH], w[S::TB], y[2][S::TB], decay = 1.0f;
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        const float q = x[t * S::XS], k = x[(S::TB + t) * S::XS], one = up ? k : q, two = up ? q : k;
#pragma unroll
        for (int i = 0; i < t; ++i) {
            const int n = t * (t - 1) / 2 + i;
            w[i] *= alpha[t];
            first[n % S::BATCH] = w[i] * one;
            second[n % S::BATCH] = w[i] * two;
            if (n % S::BATCH == S::BATCH - 1)
                store_pairs<S>(p, first, second, n / S::BATCH);
        }
        w[t] = bf16_bits_to_float(bf16_of(k));
        decay *= alpha[t];
        y[0][t] = q * decay;
        y[1][t] = k * decay;
        if (p.m > 0) {
            x[t * S::XS] = y[0][t];
            x[(S::TB + t) * S::XS] = y[1][t];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int t = 0; t < S::TB; t += 2) {
            if (!S::SPLIT)
                store_state_terms<S>(p, half, t, y[half][t] * e, y[half][t + 1] * e);
            store_state_vector<S>(p, half, t, y[half][t] * e);
            store_state_vector<S>(p, half, t + 1, y[half][t + 1] * e);
        }
    constexpr int LAST = S::TB * (S::TB - 1) / 2; /* the last batch is not full */
#pragma unroll
    for (int n = LAST % S::BATCH; n < S::BATCH; ++n)
        first[n] = second[n] = 0.0f;
    store_pairs<S>(p, first, second, LAST / S::BATCH);
}

/* ---- the records ------------------------------------------------------------------------------------------------ */

/* d += a b where a and b are two tf32 terms each. */
DEVICE void mma_floats(float *d, const float *a, float b0, float b1)
{
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        hi[i] = __float_as_uint(a[i]);
        lo[i] = __float_as_uint(rest_of(a[i]));
    }
    mma_tf32(d, lo[0], lo[1], lo[2], lo[3], __float_as_uint(b0), __float_as_uint(b1));
    mma_tf32(d, hi[0], hi[1], hi[2], hi[3], __float_as_uint(rest_of(b0)), __float_as_uint(rest_of(b1)));
    mma_tf32(d, hi[0], hi[1], hi[2], hi[3], __float_as_uint(b0), __float_as_uint(b1));
}

/* The warp's share of the records' scores, its 32 channels. Rows of the product are records (c: 2 c, c + 8: 2 c + 1),
 * columns vectors. */
template <class S> DEVICE void share_record_scores(const verify_view &p)
{
    const float *const keys = floats_at<S>(p, S::KEYS_AT);
    float acc[S::NT][4];
    clear<S::NT * 4>(acc[0]);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const int ch = p.w * 32 + step * 16 + 4 * p.r;
        float a[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) { /* channels ch + 2 n and + 1 lie alike */
            const float *const at = keys + key_at(ch + 2 * n, p.c >> 1) + (p.c & 1) * 2;
            const float2 even = *(const float2 *)at, odd = *(const float2 *)(at + 16);
            a[n][0] = even.x;
            a[n][1] = even.y;
            a[n][2] = odd.x;
            a[n][3] = odd.y;
        }
#pragma unroll
        for (int i = 0; i < S::NT; ++i) {
            float x[4];
            load_floats<4>(x, floats_at<S>(p, S::X_AT) + (8 * i + p.c) * S::XS + ch);
            mma_floats(acc[i], a[0], x[0], x[1]);
            mma_floats(acc[i], a[1], x[2], x[3]);
        }
    }
    __syncwarp();
    float *const mine = floats_at<S>(p, S::SHARE_AT) + p.w * 32 * 16 + 2 * p.c;
#pragma unroll
    for (int i = 0; i < S::NT; ++i) {
        const int row = 8 * i + 2 * p.r;
        *(float2 *)(mine + row * 16) = make_float2(acc[i][0], acc[i][2]);
        *(float2 *)(mine + (row + 1) * 16) = make_float2(acc[i][1], acc[i][3]);
    }
}

/* Scores of the vector in this row against records 4 r .. . */
template <class S> DEVICE void gather_scores_of(const verify_view &p, int row, float score[4])
{
    score[0] = score[1] = score[2] = score[3] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float part[4];
        load_floats<4>(part, floats_at<S>(p, S::SHARE_AT) + (i * 32 + row) * 16 + 4 * p.r);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            score[j] += part[j];
    }
}

/* acc += the records' part of the readouts, decayed up to the window: scores, as three bfloat16 terms, times d as given. */
template <class S>
DEVICE void add_record_scores(const verify_view &p, const kda_loads<S> &l, float acc[S::CHAINS][S::DV][S::NA][4])
{
#pragma unroll
    for (int n = 0; n < S::NA; ++n) {
        float score[4];
        uint32_t a[2][3], b[2][3] = {{0, 0, 0}, {0, 0, 0}};
        gather_scores_of<S>(p, 8 * n + p.c, score);
        split_pair(a[0], score[0], score[1]);
        split_pair(a[1], score[2], score[3]);
        if (S::PAIRED) {
            gather_scores_of<S>(p, S::TB + 8 * n + p.c, score);
            split_pair(b[0], score[0], score[1]);
            split_pair(b[1], score[2], score[3]);
        }
#pragma unroll
        for (int i = 0; i < S::DV; ++i) {
            const uint32_t half = i % 2 ? 0x7632 : 0x5410; /* records 4 r .. of state row DV c + i */
            const uint32_t d0 = __byte_perm(l.d[0][i / 2], l.d[1][i / 2], half);
            const uint32_t d1 = __byte_perm(l.d[2][i / 2], l.d[3][i / 2], half);
            if (S::PAIRED) {
#pragma unroll
                for (int term = 2; term >= 0; --term)
                    mma_bf16(acc[0][i][n], a[0][term], b[0][term], a[1][term], b[1][term], d0, d1);
            } else { /* rows c + 8: the second term */
                mma_bf16(acc[0][i][n], a[0][2], 0, a[1][2], 0, d0, d1);
                mma_bf16(acc[0][i][n], a[0][0], a[0][1], a[1][0], a[1][1], d0, d1);
            }
        }
    }
}

/* ---- the state -------------------------------------------------------------------------------------------------- */

/* acc += the vectors times a piece of 16 (bfloat16: 32) channels of the lane's state rows; ch: its first channel. */
template <class S>
DEVICE void piece_product(const verify_view &p, float acc[S::CHAINS][S::DV][S::NA][4], const uint4 state[S::DV], int ch)
{
    constexpr int TERMS = S::PAIRED ? (S::SPLIT ? 2 : 3) : S::SPLIT ? 1 : 2; /* left operands for a group of vectors */
    constexpr int NEXT = S::PAIRED ? S::TB : S::NVEC;                        /* rows of Y */
    const unsigned char *const y = p.shared + S::Y_AT + p.c * S::YS + ch * (S::SPLIT ? 8 : 4);
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int n = 0; n < S::NA; ++n)
#pragma unroll
            for (int term = TERMS - 1; term >= 0; --term) {
                const uint4 a = *(const uint4 *)(y + (term * NEXT + 8 * n) * S::YS + k * 16);
#pragma unroll
                for (int i = 0; i < S::DV; ++i) {
                    const uint32_t b0 = k ? state[i].z : state[i].x, b1 = k ? state[i].w : state[i].y;
                    float *const to = acc[term % S::CHAINS][i][n];
                    if (!S::SPLIT) {
                        mma_bf16(to, a.x, a.y, a.z, a.w, b0, b1);
                        continue;
                    }
                    if (term == 0)
                        mma_tf32(acc[S::CHAINS - 1][i][n], a.x, a.y, a.z, a.w,
                                 __float_as_uint(rest_of(__uint_as_float(b0))),
                                 __float_as_uint(rest_of(__uint_as_float(b1))));
                    mma_tf32(to, a.x, a.y, a.z, a.w, b0, b1);
                }
            }
}

template <class S> DEVICE void read_pieces(const verify_view &p, float acc[S::CHAINS][S::DV][S::NA][4])
{
    const unsigned char *const slice = slice_of<S>(p) + S::DV * p.c * VK * S::BYTES;
    slice_wait((uint64_t *)(p.shared + S::BAR_AT) + p.w);
#pragma unroll
    for (int n = 0; n < VK / (4 * S::CHUNK); ++n) {
        const int ch = n * 4 * S::CHUNK + p.r * S::CHUNK;
        const unsigned char *const at = slice + ch * S::BYTES;
        uint4 state[S::DV];
#pragma unroll
        for (int i = 0; i < S::DV; ++i)
            state[i] = *(const uint4 *)(at + i * VK * S::BYTES);
        piece_product<S>(p, acc, state, ch);
    }
}

/* The same; on the way the state folds: decayed, plus D K^T, d exact in tf32, the keys as two terms. Rows c and c + 8 of product
 * m are state rows 4 c + 2 m and + 1; its column c in the i-th turn is the channel that makes columns 2 r, 2 r + 1 a pair of the
 * lane's chunk. */
template <class S>
DEVICE void fold_pieces(const rssm_step &s, const verify_view &p, const kda_bases &base, const kda_loads<S> &l,
                        float acc[S::CHAINS][S::DV][S::NA][4])
{
    unsigned char *const slice = slice_of<S>(p) + S::DV * p.c * VK * S::BYTES;
    unsigned char *out = (unsigned char *)base.state + (p.slot * s.state.slot + S::DV * p.c * VK) * S::BYTES;
    const float *const keys = floats_at<S>(p, S::KEYS_AT), *const decay = floats_at<S>(p, S::E_AT);
    uint32_t a[S::DW][2][4];
#pragma unroll
    for (int m = 0; m < S::DW; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a[m][i >> 1][i % 2 * 2] = l.d[i][m] << 16;
            a[m][i >> 1][i % 2 * 2 + 1] = l.d[i][m] & 0xffff0000u;
        }
    bool hit = false;
    slice_wait((uint64_t *)(p.shared + S::BAR_AT) + p.w);
#pragma unroll S::FOLDS
    for (int ch0 = 0; ch0 < VK; ch0 += 4 * S::CHUNK) {
        const int ch = ch0 + p.r * S::CHUNK, at = ch * S::BYTES;
        float e[S::CHUNK], k[S::CHUNK / 2][4];
        uint4 state[S::DV];
        load_floats<S::CHUNK>(e, decay + ch);
#pragma unroll
        for (int i = 0; i < S::CHUNK / 2; ++i)
            load_floats<4>(k[i], keys + key_at(ch0 + (p.c >> 1) * S::CHUNK + 2 * i + (p.c & 1), p.r));
#pragma unroll
        for (int m = 0; m < S::DW; ++m) {
            float lo[S::CHUNK], hi[S::CHUNK];
            widen_chunk(*(const uint4 *)(slice + at + 2 * m * VK * S::BYTES), lo, typename S::STATE());
            widen_chunk(*(const uint4 *)(slice + at + (2 * m + 1) * VK * S::BYTES), hi, typename S::STATE());
#pragma unroll
            for (int i = 0; i < S::CHUNK / 2; ++i) {
                float fold[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    mma_tf32(fold, a[m][n][0], a[m][n][1], a[m][n][2], a[m][n][3],
                             __float_as_uint(rest_of(k[i][2 * n])), __float_as_uint(rest_of(k[i][2 * n + 1])));
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    mma_tf32(fold, a[m][n][0], a[m][n][1], a[m][n][2], a[m][n][3], __float_as_uint(k[i][2 * n]),
                             __float_as_uint(k[i][2 * n + 1]));
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    lo[2 * i + n] = lo[2 * i + n] * e[2 * i + n] + fold[n];
                    hi[2 * i + n] = hi[2 * i + n] * e[2 * i + n] + fold[2 + n];
                }
            }
            state[2 * m] = narrow_chunk(lo, &hit, typename S::STATE());
            state[2 * m + 1] = narrow_chunk(hi, &hit, typename S::STATE());
            __stcs((uint4 *)(out + at + 2 * m * VK * S::BYTES), state[2 * m]);
            __stcs((uint4 *)(out + at + (2 * m + 1) * VK * S::BYTES), state[2 * m + 1]);
        }
        piece_product<S>(p, acc, state, ch);
    }
    raise_fault(s, hit, RSSM_FAULTBIT_STATE);
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

/* The readouts of the warp's rows, from fragments to rows, where the state was. */
template <class S> DEVICE void stage_readouts(const verify_view &p, const float acc[S::CHAINS][S::DV][S::NA][4])
{
    float *const stage = (float *)slice_of<S>(p) + p.c;
#pragma unroll
    for (int i = 0; i < S::DV; ++i)
#pragma unroll
        for (int n = 0; n < S::NA; ++n) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                x[j] = S::CHAINS > 1 ? acc[0][i][n][j] + acc[S::CHAINS - 1][i][n][j] : acc[0][i][n][j];
            float *const row = stage + (2 * S::DV * p.r + i) * S::STAGE + 8 * n; /* of column 2 r */
            row[0] = S::PAIRED ? x[0] : x[0] + x[2];
            row[S::DV * S::STAGE] = S::PAIRED ? x[1] : x[1] + x[3];
            if (S::PAIRED) {
                row[S::TB] = x[2];
                row[S::TB + S::DV * S::STAGE] = x[3];
            }
        }
}

/* The drafts' scores from the warps' shares, one copy per warp, [q, k][PAIRS]: pair (i, t), i < t, at t (t - 1) / 2 + i. */
template <class S> DEVICE void gather_pairs(const verify_view &p)
{
    const float *const pairs = floats_at<S>(p, S::PAIRS_AT);
    float *const score = (float *)slice_of<S>(p) + S::WR * S::STAGE;
#pragma unroll
    for (int i = 0; i < 2 * S::PAIRS; i += 32) {
        const int n = i + p.lane;
        if (2 * S::PAIRS < 32 && n >= 2 * S::PAIRS)
            break;
        const float *const part = pairs + n;
        score[n] = (part[0] + part[2 * S::PAIRS]) + (part[4 * S::PAIRS] + part[6 * S::PAIRS]);
    }
}

/* Forward substitution, a state row per lane. */
template <class S> DEVICE void finish_rows(const rssm_step &s, const verify_view &p, const kda_loads<S> &l)
{
    const float *const stage = (const float *)slice_of<S>(p), *const sums = stage + p.lane * S::STAGE;
    const float *const scores = stage + S::WR * S::STAGE;
    const float *const betas = floats_at<S>(p, S::BETA_AT), *const qks = floats_at<S>(p, S::TOKEN_AT);
    uint16_t *ring = (uint16_t *)s.d_cache.data + p.slot * s.d_cache.slot + (int64_t)p.hv * s.R * S::V + p.rv0 + p.lane;
    uint16_t *out = (uint16_t *)s.out + p.token * s.out_row + p.row0 + p.lane;
    pin(ring);
    int at = ring_at(s, p, p.count) * S::V;
    float d[S::TB], q_sum[4], k_sum[4], beta[4], qk[4], q_score[4], k_score[4];
    bool out_hit = false, ring_hit = false;
#pragma unroll
    for (int t = 0; t < S::TB; ++t) {
        if (t >= p.T)
            break;
        if (t % 4 == 0) {
            load_floats<4>(q_sum, sums + t);
            load_floats<4>(k_sum, sums + S::TB + t);
            load_floats<4>(beta, betas + t);
            load_floats<4>(qk, qks + t);
        }
        float q = q_sum[t % 4], k = k_sum[t % 4];
#pragma unroll
        for (int i = 0; i < t; ++i) {
            const int n = t * (t - 1) / 2 + i;
            if (n % 4 == 0) {
                load_floats<4>(q_score, scores + n);
                load_floats<4>(k_score, scores + S::PAIRS + n);
            }
            q += q_score[n % 4] * d[i];
            k += k_score[n % 4] * d[i];
        }
        const float now = beta[t % 4] * (bf16_bits_to_float(l.v[t]) - k);
        const uint32_t bits = bf16_bits(now, &ring_hit);
        d[t] = bf16_bits_to_float(bits);
        ring[at] = (uint16_t)bits;
        *out = (uint16_t)bf16_bits(q + now * qk[t % 4], &out_hit);
        out += s.out_row;
        at = at + S::V == s.R * S::V ? 0 : at + S::V;
    }
    raise_fault(s, out_hit, RSSM_FAULTBIT_OUTPUT);
    raise_fault(s, ring_hit, RSSM_FAULTBIT_RING);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

/* Everything up to the block's last barrier. */
template <class S>
DEVICE void kda_prepare(const rssm_step &s, const verify_view &p, const kda_bases &b, const kda_loads<S> &l)
{
    float alpha[S::TB];
    if (p.count > 0 || p.flush)
        decay_keys<S>(p, l);
    normalise_tokens<S>(s, p, l);
    window_decays<S>(s, p, b, l, alpha);
    __syncthreads();
    decay_tokens<S>(p, alpha, p.m > 0 ? floats_at<S>(p, S::E_AT)[p.t] : 1.0f);
    if (p.m > 0) {
        __syncwarp();
        share_record_scores<S>(p);
    }
    __syncthreads();
}

DEVICE void kda_pin(kda_bases &b, window_ahead &a)
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

/* What the first blocks of a multiprocessor will read is asked into the L2 cache while the kernel before still ends: the rings of
 * the first two blocks, the state of the first. By the slot as the row has it then. It may be stale, or anything: so it is a hint,
 * asked for within the pool only, and read again after the wait. (B = 32, H200: 32.8 -> 31.7 us; docs/cuda.md, Windows of drafts.) */
template <class S> DEVICE void ask_first_wave(const rssm_step &s, int64_t number)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int64_t block = number * gridDim.x + blockIdx.x;
    uint32_t multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
    if (threadIdx.x % 32 != 0 || block >= 2 * multiprocessors || number >= s.B)
        return;
    const int32_t slot = peek_before_wait(s.rows + number * s.rows_row);
    if (slot < 0 || slot >= s.S)
        return;
    const int w = threadIdx.x / 32, row0 = blockIdx.x * S::VT + w * S::WR, hv = row0 / S::V, h = hv * s.H / s.HV;
    const int64_t at = (int64_t)slot * s.state.slot + (int64_t)row0 * VK;
    if (block < multiprocessors)
        ask_into_l2((const unsigned char *)s.state.data + at * S::BYTES, S::WR * VK * S::BYTES);
    if (w == 0)
        ask_into_l2((const uint16_t *)s.k_cache.data + slot * s.k_cache.slot + (int64_t)h * s.R * VK, s.R * VK * 2);
    if (w == 1)
        ask_into_l2((const float *)s.g_cache.data + slot * s.g_cache.slot + (int64_t)hv * s.R * VK, s.R * VK * 4);
    if (w == 2)
        ask_into_l2((const uint16_t *)s.d_cache.data + slot * s.d_cache.slot + (int64_t)hv * s.R * S::V,
                    s.R * S::V * 2);
#endif
}

template <class S> DEVICE void verify_kda(const rssm_window &a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const rssm_step &s = a.step;
    const int64_t number = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    const uint32_t touched = touch_arguments(s);
    if (S::AHEAD)
        ask_first_wave<S>(s, number);
    wait_for_predecessors();
    let_successors_start_beside_tiles();
    if (number >= s.B)
        return;
    const bool ordered = S::ORDERED && s.B >= WINDOW_ORDER_MIN && s.B <= WINDOW_ORDER_MAX;
    window_ahead ahead = load_window(s, ordered ? min((int)(threadIdx.x & 31), s.B - 1) : number);
    verify_view p = view_of<S>(s, shared);
    kda_bases b = kda_bases_of<S>(s, p);
    uint64_t *const bar = (uint64_t *)(shared + S::BAR_AT) + p.w;
    slice_expect(S::WR * VK * S::BYTES, bar, p.lane);
    keep(touched);
    kda_pin(b, ahead);
    if (ordered)
        ahead = window_at(ahead, s.B, (int)number, p.lane);

    const window_row row = judge_window(a, ahead);
    raise_fault(s, row.fault && threadIdx.x == 0 && blockIdx.x == 0, row.fault);
    if (row.slot < 0) {
        zero_tokens<S>(s, row);
        return;
    }
    if (row.len == 0 && !row.flush)
        return;
    set_row<S>(p, row);
    kda_loads<S> l;
    load_keys_and_gates<S>(s, p, b, l);
    load_queries<S>(s, p, b, l);
    load_window_and_d<S>(s, p, b, l);
    slice_load(slice_of<S>(p), b.state + p.slot * s.state.slot * S::BYTES, S::WR * VK * S::BYTES, bar, p.lane);
    kda_prepare<S>(s, p, b, l);

    float acc[S::CHAINS][S::DV][S::NA][4];
    clear<S::CHAINS * S::DV * S::NA * 4>(acc[0][0][0]);
    if (p.m > 0)
        add_record_scores<S>(p, l, acc);
    if (p.flush)
        fold_pieces<S>(s, p, b, l, acc);
    else
        read_pieces<S>(p, acc);
    __syncwarp();
    stage_readouts<S>(p, acc);
    gather_pairs<S>(p);
    __syncwarp();
    if (p.lane < S::WR)
        finish_rows<S>(s, p, l);
}

#endif
