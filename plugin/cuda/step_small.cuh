/* The step of small batches: a warp owns WR state rows of one head, in registers from the load to the store.
 *
 * A launch over few rows is a chain of latencies (arguments, rows[], state, the store), and each warp runs its code once, at the
 * pace at which instructions are fetched. So there is no shared memory, no barrier and no other warp to wait for: every warp
 * computes its head's numbers itself, and what a row without records does not need is out of the way. (One exception: four
 * warps and more share out KDA's gates, one for each thread, while the state travels.) The order is
 *   1. ask for the row's slot; meanwhile ask for the inputs and form all addresses but the slot's share;
 *   2. with the slot: ask for the state;
 *   3. while it travels: the token's numbers (norms, gate);
 *   4. S q and S k, the output, and the record goes into the state.
 * Rows with pending records, or that do not flush, start anew in code of their own: records are folded into the registers
 * one after the other before 4, and the token's record may go to the ring.
 *
 * Lane = (part, c): one load takes RPL rows, `part` says which of them, and c has CH channels of it in chunks of 16 bytes.
 * The sums of a lane's NR rows and NQ readouts end in the lanes with c / DUP = row * NQ + readout.
 */
#ifndef RSSM_CUDA_STEP_SMALL_CUH_
#define RSSM_CUDA_STEP_SMALL_CUH_

#include "small_variants.h"
#include "step_math.cuh"
#include "stream_order.cuh"

#define WARP 0xffffffffu

template <int FAMILY_, class ST, int K_, int V_, int WR_, int NW_, int DT_> struct small_shape {
    typedef ST state;
    typedef small_shape<FAMILY_, ST, K_, V_, (WR_ < 4 ? WR_ : 4), 1, DT_>
        other; /* of rows that the kernel is not made for */
    enum {
        FAMILY = FAMILY_,
        K = K_,
        V = V_,
        WR = WR_, /* state rows of a warp */
        NW = NW_, /* warps */
        DT = DT_, /* dtype of inputs, output and ring */
        VT = WR * NW,
        TILES = V / VT,
        CHUNK = ST::CHUNK,
        LPR = K / CHUNK < 32 ? K / CHUNK : 32, /* lanes of a row */
        NC = K / (LPR * CHUNK),                /* chunks of a lane per row */
        RPL = 32 / LPR,                        /* rows of one load */
        NR = WR / RPL,                         /* rows of a lane */
        CH = NC * CHUNK,                       /* channels of a lane */
        NQ = FAMILY == MAMBA2 ? 1 : 2,         /* readouts: S q, and S k */
        N = NR * NQ,                           /* sums */
        DUP = LPR / N,                         /* lanes that end with the same one */
        BYTES = DT == F32 ? 4 : 2,
        WORDS = CH * BYTES / 4,                   /* of a lane's channels of an input */
        SHARED = FAMILY == KDA && NW >= 4,        /* the warps share out the gates, through shared memory */
        GATES = FAMILY == KDA && !SHARED ? 4 : 1, /* that a lane computes */
        DECAYS = FAMILY == KDA ? CH : 1,          /* that it needs */
        /* The next kernel may start when the state has been asked for, not at once: 0.35 us less at one row of KDA with a 16-bit
         * state, up to 0.3 more elsewhere. */
        LATE = FAMILY == KDA && ST::DTYPE != F32
    };
    static_assert(V % VT == 0 && K % (LPR * CHUNK) == 0 && WR % RPL == 0 && N <= LPR, "rows");
    static_assert(FAMILY != KDA || (NC == 1 && CH == 4 * RPL && (!SHARED || NW * 32 >= K)), "gates");
};

/* Whose work a thread does. */
struct small_place {
    uint32_t row; /* of the batch */
    int lane, part, c;
    int h, hv, sibling; /* key head; value head; its number among those of the key head */
    int row0;           /* the warp's first state row within the head */
    int mine;           /* the state row whose sum ends here */
    bool has_q, has_k;  /* one lane of those with the row's S q, and with its S k */
};

/* BLOCK: the shape that the grid is for; of the warp's state rows the first `skip` are not in P. */
template <class P, class BLOCK> DEVICE small_place small_place_of(const rssm_small &s, int skip)
{
    small_place p;
    p.row = blockIdx.z;
    p.lane = threadIdx.x & 31;
    p.part = p.lane / P::LPR;
    p.c = p.lane % P::LPR;
    p.h = blockIdx.y;
    p.sibling = blockIdx.x / BLOCK::TILES;
    p.hv = p.h * s.group + p.sibling;
    p.row0 = blockIdx.x % BLOCK::TILES * BLOCK::VT + (threadIdx.x >> 5) * BLOCK::WR + skip;
    p.mine = p.row0 + p.c / P::DUP / P::NQ * P::RPL + p.part;
    p.has_q = p.c % (P::DUP * P::NQ) == 0;
    p.has_k = p.c % (P::DUP * P::NQ) == P::DUP * (P::NQ - 1);
    return p;
}

/* i times a stride. */
DEVICE uint64_t times(uint32_t i, uint32_t stride)
{
    return (uint64_t)i * stride;
}

/* A lane's first channel of its n-th chunk. */
template <class P> DEVICE uint32_t small_channel(int c, int n)
{
    return n * (P::LPR * P::CHUNK) + c * P::CHUNK;
}

/* ---- loads ------------------------------------------------------------------------------------------------------ */

/* BYTES (8 or a multiple of 16) at p. */
template <int BYTES> DEVICE void load_words(uint32_t *raw, const unsigned char *p)
{
    if constexpr (BYTES == 8) {
        const uint2 x = *(const uint2 *)p;
        raw[0] = x.x;
        raw[1] = x.y;
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) {
            const uint4 x = ((const uint4 *)p)[i];
            raw[4 * i] = x.x;
            raw[4 * i + 1] = x.y;
            raw[4 * i + 2] = x.z;
            raw[4 * i + 3] = x.w;
        }
    }
}

/* A lane's channels of a vector [K] that begins at element `first` of p, of which elements have BYTES bytes. */
template <class P, int BYTES> DEVICE void load_channels(uint32_t *raw, const void *p, int64_t first, int c)
{
#pragma unroll
    for (int n = 0; n < P::NC; ++n)
        load_words<P::CHUNK * BYTES>(raw + n * (P::CHUNK * BYTES / 4),
                                     (const unsigned char *)p + (first + small_channel<P>(c, n)) * BYTES);
}

template <int N, int DT> DEVICE void widen_words(const uint32_t *raw, float *x)
{
#pragma unroll
    for (int n = 0; n < N; ++n) {
        if (DT == F32)
            x[n] = __uint_as_float(raw[n]);
        else
            x[n] = widen(n % 2 ? raw[n / 2] >> 16 : raw[n / 2] & 0xffff, DT);
    }
}

/* N (1 or 4) elements of a weight of any dtype: two places of which its dtype says the right one, so that neither load waits
 * for the other. */
template <int N> struct weight_bits {
    uint32_t wide[N], half[(N + 1) / 2];
};

/* Elements i .. i + N - 1; zeros where there is no such weight. Without a branch: all waits for these loads to be asked for. */
template <int N> DEVICE void load_weight(weight_bits<N> *raw, const void *weight, uint32_t i, int dtype)
{
    const unsigned char *const p = (const unsigned char *)weight + ((uint64_t)i << (dtype == F32 ? 2 : 1));
#ifdef __CUDA_ARCH__
    if constexpr (N == 1)
        asm volatile("{\n\t.reg .pred f, h;\n\tsetp.eq.s32 f, %3, 1;\n\tsetp.gt.s32 h, %3, 1;\n\tmov.b32 %0, 0;\n\t"
                     "mov.b32 %1, 0;\n\t@f ld.global.b32 %0, [%2];\n\t@h ld.global.u16 %1, [%2];\n\t}"
                     : "=&r"(raw->wide[0]), "=&r"(raw->half[0])
                     : "l"(p), "r"(dtype));
    else
        asm volatile("{\n\t.reg .pred f, h;\n\tsetp.eq.s32 f, %7, 1;\n\tsetp.gt.s32 h, %7, 1;\n\tmov.b32 %0, 0;\n\t"
                     "mov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\tmov.b32 %4, 0;\n\tmov.b32 %5, 0;\n\t"
                     "@f ld.global.v4.b32 {%0, %1, %2, %3}, [%6];\n\t@h ld.global.v2.b32 {%4, %5}, [%6];\n\t}"
                     : "=&r"(raw->wide[0]), "=&r"(raw->wide[1]), "=&r"(raw->wide[2]), "=&r"(raw->wide[3]),
                       "=&r"(raw->half[0]), "=&r"(raw->half[1])
                     : "l"(p), "r"(dtype));
#else
    memset(raw, 0, sizeof *raw);
    if (dtype)
        memcpy(dtype == F32 ? raw->wide : raw->half, p, (dtype == F32 ? 4 : 2) * N);
#endif
}

template <int N> DEVICE void widen_weight(const weight_bits<N> &raw, float *x, int dtype)
{
#pragma unroll
    for (int n = 0; n < N; ++n)
        x[n] = dtype == F32 ? __uint_as_float(raw.wide[n])
                            : widen(n % 2 ? raw.half[n / 2] >> 16 : raw.half[n / 2] & 0xffff, dtype);
}

/* What a token brings, as asked for. */
template <class P> struct small_inputs {
    uint32_t q[P::WORDS], k[P::WORDS], a[4];
    uint32_t b, v; /* b: Mamba-2's z */
    weight_bits<P::GATES> bias;
    weight_bits<1> alog, skip;
};

template <class P> DEVICE small_inputs<P> ask_inputs(const rssm_small &s, const small_place &p)
{
    small_inputs<P> in;
    load_channels<P, P::BYTES>(in.q, s.q, times(p.row, s.q_row) + p.h * P::K, p.c);
    load_channels<P, P::BYTES>(in.k, s.k, times(p.row, s.k_row) + p.h * P::K, p.c);
    const uint32_t channel = P::SHARED ? threadIdx.x % P::K : small_channel<P>(p.c, 0) + p.part * 4;
    const uint32_t gate = P::FAMILY == KDA ? p.hv * P::K + channel : p.hv;
    if (P::FAMILY == KDA && !P::SHARED)
        load_words<4 * P::BYTES>(in.a, (const unsigned char *)s.a + (times(p.row, s.a_row) + gate) * P::BYTES);
    else
        in.a[0] = load_raw(s.a, times(p.row, s.a_row) + gate, P::DT);
    load_weight(&in.bias, s.dt_bias, gate, s.dt_bias_dtype);
    load_weight(&in.alog, s.A_log, p.hv, s.A_log_dtype);
    in.b = 0;
    if (P::FAMILY != MAMBA2)
        in.b = load_raw(s.b, times(p.row, s.b_row) + p.hv, P::DT);
    else if (s.b)
        in.b = load_raw(s.b, times(p.row, s.b_row) + (p.hv * P::V + p.mine), P::DT);
    if (P::FAMILY == MAMBA2)
        load_weight(&in.skip, s.D, p.hv, s.D_dtype);
    in.v = load_raw(s.v, times(p.row, s.v_row) + (p.hv * P::V + p.mine), P::DT);
    return in;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* The row of a host that keeps its own cursors: slot, base, count, flush; numbers that do not fit become bad ones. */
DEVICE int4 small_host_row(const rssm_small &s, int row)
{
    const int64_t slot = s.state_indices.data ? load_index(s.state_indices, row) : row;
    const int64_t count = s.write_pos.data ? load_index(s.write_pos, row) : 0;
    const bool flush = count >= s.L - 1 || (s.force_flush.data && load_index(s.force_flush, row) != 0);
    return make_int4(slot >= 0 && slot < s.S ? (int)slot : -1, 0, count >= 0 && count <= s.L ? (int)count : -1, flush);
}

DEVICE bool small_slot_is_good(const rssm_small &s, const int4 &at)
{
    return (uint32_t)at.x < (uint32_t)s.S && at.x != s.pad_slot;
}

DEVICE bool small_cursor_is_sane(const rssm_small &s, const int4 &at)
{
    const int most = s.most - (at.w ? 0 : 1); /* a row that does not flush needs room */
    return at.z >= 0 && at.z <= most && (uint32_t)at.y < (uint32_t)s.R;
}

/* judge_row() of step_math.cuh. */
DEVICE bool small_row_is_good(const rssm_small &s, const int4 &at)
{
    if (!small_slot_is_good(s, at))
        return false;
    const bool sane = small_cursor_is_sane(s, at);
    if (!sane && s.fault && threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        atomicOr(s.fault, (uint32_t)RSSM_FAULTBIT_CURSOR);
    return sane;
}

/* What the kernel is made for: a row that flushes and has no records. */
DEVICE bool small_row_is_plain(const rssm_small &s, const int4 &at)
{
    return at.w != 0 && at.z == 0 && small_slot_is_good(s, at) && (uint32_t)at.y < (uint32_t)s.R;
}

/* ---- the token -------------------------------------------------------------------------------------------------- */

/* Sums N values per lane over the lanes that differ in the bits FIRST ... LAST. Where possible a step halves the number of
 * values instead of keeping copies: a lane ends with the sum that its highest bits select. */
template <int N, int FIRST, int LAST = 1> DEVICE void small_sum(float *v, int lane)
{
    if constexpr (FIRST >= LAST) {
        if constexpr (N > 1) {
            const bool up = lane & FIRST;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float send = up ? v[i] : v[i + N / 2];
                const float keep = up ? v[i + N / 2] : v[i];
                v[i] = keep + __shfl_xor_sync(WARP, send, FIRST);
            }
        } else {
            v[0] += __shfl_xor_sync(WARP, v[0], FIRST);
        }
        small_sum<(N > 1 ? N / 2 : 1), FIRST / 2, LAST>(v, lane);
    }
}

/* max(x, 0) + log1p(exp(-|x|)), which is log1p(exp(x)), and x itself above 20; 1.2e-7. */
DEVICE float small_softplus(float x)
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
    return fmaxf(x, 0.0f) + y * u; /* NaN where u is */
}

DEVICE float small_sigmoid(float x)
{
    return reciprocal(1.0f + expf(-x));
}

DEVICE float small_gate(const rssm_small &s, float x, float rate)
{
    return s.flags & RSSM_STEP_HAS_BOUND ? s.lower_bound * small_sigmoid(rate * x) : -rate * small_softplus(x);
}

/* inverse_root() of step_math.cuh, without its branch: x is a sum of squares and 1e-6. */
DEVICE float quick_root(float x)
{
    const float y = rsqrtf(x);
    const float better = y + 0.5f * y * (1.0f - x * y * y);
    return x < 1e30f ? better : y;
}

template <class P> struct small_token {
    float q[P::CH], k[P::CH];
    float gate[P::GATES];   /* log gates; Mamba-2: dt */
    float decay[P::DECAYS]; /* exp of the log decay, of my channels where each has its own */
    float decay_rate;       /* log decay = this times a gate in the ring */
    float beta, qk;         /* qk: of q and k as given */
    float q_scale, k_scale;
};

/* KDA: a lane's four gates, and from its neighbours those of its other channels. */
template <class P>
DEVICE void channel_gates(small_token<P> *t, const rssm_small &s, const float *x, float rate, int part)
{
    float mine[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        t->gate[n] = small_gate(s, x[n], rate);
        mine[n] = exp2_approx(t->gate[n] * LOG2E);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float other = P::RPL == 2 ? __shfl_xor_sync(WARP, mine[n], P::LPR) : 0.0f;
        t->decay[n] = part ? other : mine[n];
        if (P::RPL == 2)
            t->decay[n + 4 * (P::RPL - 1)] = part ? mine[n] : other;
    }
}

/* The same where a thread has one gate: the decays of my channels, from all. */
template <class P> DEVICE void share_gates(small_token<P> *t, const rssm_small &s, float x, float rate, int c)
{
    __shared__ __align__(16) float decays[P::K];
    t->gate[0] = small_gate(s, x, rate);
    if (threadIdx.x < P::K)
        decays[threadIdx.x] = exp2_approx(t->gate[0] * LOG2E);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < P::CH; n += 4) {
        const float4 e = *(const float4 *)(decays + small_channel<P>(c, 0) + n);
        t->decay[n % P::DECAYS] = e.x;
        t->decay[(n + 1) % P::DECAYS] = e.y;
        t->decay[(n + 2) % P::DECAYS] = e.z;
        t->decay[(n + 3) % P::DECAYS] = e.w;
    }
}

/* Norms and scales of q and k; q . k. */
template <class P> DEVICE void token_scales(small_token<P> *t, const rssm_small &s, const small_place &p)
{
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < P::CH; ++n) {
        sums[0] += t->q[n] * t->k[n];
        sums[1] += t->q[n] * t->q[n];
        sums[2] += t->k[n] * t->k[n];
    }
    t->q_scale = P::FAMILY == MAMBA2 ? 1.0f : s.scale;
    t->k_scale = 1.0f;
    if (P::FAMILY == MAMBA2) {
        small_sum<1, P::LPR / 2>(sums, p.lane);
        t->qk = sums[0];
        return;
    }
    small_sum<4, P::LPR / 2>(sums, p.lane); /* sum i in lanes c = i LPR / 4 .. */
    const int first = p.part * P::LPR;
    t->qk = __shfl_sync(WARP, sums[0], first);
    if (s.flags & RSSM_STEP_QK_NORM) {
        const float root = quick_root(sums[0] + s.norm_eps);
        t->q_scale *= __shfl_sync(WARP, root, first + P::LPR / 4);
        t->k_scale = __shfl_sync(WARP, root, first + P::LPR / 2);
    }
}

template <class P> DEVICE small_token<P> token_of(const rssm_small &s, const small_place &p, const small_inputs<P> &in)
{
    small_token<P> t;
    float x[P::GATES], bias[P::GATES], alog;
    widen_words<P::CH, P::DT>(in.q, t.q);
    widen_words<P::CH, P::DT>(in.k, t.k);
    widen_weight(in.alog, &alog, s.A_log_dtype);
    widen_weight(in.bias, bias, s.dt_bias_dtype);
    if (P::FAMILY == KDA && !P::SHARED)
        widen_words<P::GATES, P::DT>(in.a, x);
    else
        x[0] = widen(in.a[0], P::DT);
#pragma unroll
    for (int n = 0; n < P::GATES; ++n)
        x[n] += bias[n];
    const float rate = expf(alog); /* 1 where there is none */
    t.decay_rate = 1.0f;
    t.beta = P::FAMILY == MAMBA2 ? 0.0f : small_sigmoid(widen(in.b, P::DT)) * s.beta_scale;
    if constexpr (P::SHARED) {
        share_gates<P>(&t, s, x[0], rate, p.c);
    } else if constexpr (P::FAMILY == KDA) {
        channel_gates<P>(&t, s, x, rate, p.part);
    } else if (P::FAMILY == GDN) {
        t.gate[0] = small_gate(s, x[0], rate);
        t.decay[0] = exp2_approx(t.gate[0] * LOG2E);
    } else {
        const float dt = s.flags & RSSM_STEP_DT_SOFTPLUS ? small_softplus(x[0]) : x[0];
        t.gate[0] = dt != dt ? dt : fminf(fmaxf(dt, s.dt_min), s.dt_max);
        t.decay_rate = s.flags & RSSM_STEP_A_IS_DECAY ? alog : -rate;
        t.decay[0] = exp2_approx(t.decay_rate * t.gate[0] * LOG2E);
    }
    token_scales<P>(&t, s, p);
    return t;
}

/* ---- the ring --------------------------------------------------------------------------------------------------- */

/* Where a record of the row's slot lies: d of the head, k of its key head, the gates; `at` is its ring row. */
template <class P> struct small_record {
    unsigned char *d, *k;
    float *g;
};

template <class P> DEVICE small_record<P> record_at(const rssm_small &s, const small_place &p, uint32_t slot, int at)
{
    const int64_t head = (int64_t)p.hv * s.R + at, key = (int64_t)p.h * s.R + at;
    return {(unsigned char *)s.d_cache + (times(slot, s.d_slot) + head * P::V) * P::BYTES,
            (unsigned char *)s.k_cache + (times(slot, s.k_slot) + key * P::K) * P::BYTES,
            s.g_cache + (times(slot, s.g_slot) + head * (P::FAMILY == KDA ? P::K : 1))};
}

/* The state as `count` records leave it, in registers: S <- S exp(g_j) + d_j k_j^T, oldest first, in pairs. */
template <class P>
DEVICE void replay_records(float x[P::NR][P::CH], const rssm_small &s, const small_place &p, uint32_t slot, int base,
                           int count, float decay_rate)
{
#pragma unroll 1
    for (int first = 0; first < count; first += 2) {
        uint32_t kj[2][P::WORDS], dj[2][P::NR], gj[2][P::DECAYS];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int i = base + min(first + j, count - 1); /* beyond the last: that one again, and not used */
            const small_record<P> from = record_at<P>(s, p, slot, i >= s.R ? i - s.R : i);
            load_channels<P, P::BYTES>(kj[j], from.k, 0, p.c);
#pragma unroll
            for (int n = 0; n < P::NR; ++n)
                dj[j][n] = load_raw(from.d, p.row0 + n * P::RPL + p.part, P::DT);
            if (P::FAMILY == KDA)
                load_channels<P, 4>(gj[j], from.g, 0, p.c);
            else
                gj[j][0] = __float_as_uint(from.g[0]);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const bool here = first + j < count;
            float k[P::CH], e[P::DECAYS];
            widen_words<P::CH, P::DT>(kj[j], k);
#pragma unroll
            for (int n = 0; n < P::DECAYS; ++n)
                e[n] = here ? exp2_approx(__uint_as_float(gj[j][n]) * (decay_rate * LOG2E)) : 1.0f;
#pragma unroll
            for (int i = 0; i < P::NR; ++i) {
                const float own = P::FAMILY == MAMBA2 ? __uint_as_float(gj[j][0]) : 1.0f;
                const float d = here ? widen(dj[j][i], P::DT) * own : 0.0f;
#pragma unroll
                for (int n = 0; n < P::CH; ++n)
                    x[i][n] = x[i][n] * e[P::FAMILY == KDA ? n : 0] + d * (here ? k[n] : 0.0f);
            }
        }
    }
}

/* The token's record goes to the ring: d by the lanes that have it, what is the head's or the key head's by its first warp.
 * Returns fault bits, as those below. */
template <class P>
DEVICE uint32_t append_record(const rssm_small &s, const small_place &p, const small_token<P> &t, uint32_t slot, int at,
                              float d)
{
    bool hit = false;
    const small_record<P> to = record_at<P>(s, p, slot, at >= s.R ? at - s.R : at);
    if (p.has_k)
        store_any(to.d, p.mine, d, P::DT, &hit);
    if (p.row0 == 0) {
        if (P::FAMILY == KDA) {
#pragma unroll
            for (int n = 0; n < P::GATES; ++n)
                to.g[small_channel<P>(p.c, 0) + p.part * 4 + n] = t.gate[n];
        } else if (p.lane == 0) {
            to.g[0] = t.gate[0];
        }
        if (p.sibling == 0 && p.part == 0) {
#pragma unroll
            for (int n = 0; n < P::CH; ++n)
                store_any(to.k, small_channel<P>(p.c, n / P::CHUNK) + n % P::CHUNK, t.k[n] * t.k_scale, P::DT, &hit);
        }
    }
    return hit ? RSSM_FAULTBIT_RING : 0;
}

/* ---- the state -------------------------------------------------------------------------------------------------- */

template <class P> DEVICE unsigned char *state_chunk(unsigned char *state, int i, int n)
{
    return state + (i * P::RPL * P::K + n * (P::LPR * P::CHUNK)) * P::state::BYTES;
}

/* The sum that ends in my lane: S q or S k of row p.mine, decayed; q and k as given. */
template <class P> DEVICE float readout(const float x[P::NR][P::CH], const small_token<P> &t, int lane)
{
    float acc[P::N];
#pragma unroll
    for (int i = 0; i < P::N; ++i)
        acc[i] = 0.0f;
#pragma unroll
    for (int n = 0; n < P::CH; ++n) {
        const float e = P::FAMILY == KDA ? t.decay[n % P::DECAYS] : 1.0f;
        const float y[2] = {e * t.q[n], e * t.k[n]};
#pragma unroll
        for (int i = 0; i < P::NR; ++i)
#pragma unroll
            for (int q = 0; q < P::NQ; ++q)
                acc[i * P::NQ + q] += x[i][n] * y[q];
    }
    small_sum<P::N, P::LPR / 2>(acc, lane);
    return P::FAMILY == KDA ? acc[0] : acc[0] * t.decay[0];
}

/* The record as what outlives the token has it: rounded. k is a unit vector, or exact as it is: it needs no saturation. */
template <class P> DEVICE uint32_t round_record(const rssm_small &s, const small_place &p, small_token<P> *t, float *d)
{
    bool hit = false;
    if constexpr (P::FAMILY == MAMBA2) { /* x and B are inputs */
        *d *= t->gate[0];
    } else {
#pragma unroll
        for (int n = 0; n < P::CH; ++n)
            t->k[n] *= t->k_scale;
        if (P::DT == BF16 && s.rounds) {
#pragma unroll
            for (int n = 0; n < P::CH; n += 2)
                widen2(narrow2(t->k + n, bf16_state()), t->k + n, bf16_state());
            float pair[2] = {saturate(*d, P::DT, &hit), 0.0f}; /* the conversion of one number is slow */
            widen2(narrow2(pair, bf16_state()), pair, bf16_state());
            *d = pair[0];
        }
    }
    return hit && p.has_k ? RSSM_FAULTBIT_RING : 0;
}

/* S <- S exp(g) + d k^T, d being that of row p.mine. What became infinite is repaired afterwards: it is rare, and what a lane
 * stored itself it can read. */
template <class P>
DEVICE uint32_t fold_token(float x[P::NR][P::CH], const small_place &p, const small_token<P> &t, float d,
                           unsigned char *state)
{
    typedef typename P::state ST;
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < P::NR; ++i) {
        const float di = __shfl_sync(WARP, d, p.part * P::LPR + (i * P::NQ + P::NQ - 1) * P::DUP);
#pragma unroll
        for (int n = 0; n < P::CH; ++n)
            x[i][n] = x[i][n] * t.decay[P::FAMILY == KDA ? n : 0] + di * t.k[n];
#pragma unroll
        for (int n = 0; n < P::NC; ++n)
            __stcs((uint4 *)state_chunk<P>(state, i, n), narrow_quickly(x[i] + n * P::CHUNK, &top, ST()));
    }
    if (!had_infinite(top, ST()))
        return 0;
#pragma unroll 1
    for (int i = 0; i < P::NR; ++i)
#pragma unroll 1
        for (int n = 0; n < P::NC; ++n) {
            uint4 *const at = (uint4 *)state_chunk<P>(state, i, n);
            *at = without_infinite(*at, ST());
        }
    return RSSM_FAULTBIT_STATE;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

/* All lines of arguments that come before the state, asked for at once: each is a miss of the constant cache. (Measured: 0.1 to
 * 0.4 us for KDA, up to 0.2 for GDN, a loss for Mamba-2.) */
DEVICE uint32_t touch_small(const rssm_small &s)
{
    uint32_t x = 0, y = 0, z = 0;
#ifdef __CUDA_ARCH__
    const uint64_t at = (uint64_t)__cvta_generic_to_grid_constant(&s);
    asm volatile("ld.param.u32 %0, [%1];" : "=r"(x) : "l"(at));
    asm volatile("ld.param.u32 %0, [%1+64];" : "=r"(y) : "l"(at));
    asm volatile("ld.param.u32 %0, [%1+128];" : "=r"(z) : "l"(at));
#endif
    return x ^ y ^ z;
}

/* Keeps the compiler from moving loads that come before it behind what comes after it. x: never 0xdeadbeef. */
DEVICE void pin_loads(uint32_t x)
{
#ifdef __CUDA_ARCH__
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.u32 p, %0, 0xdeadbeef;\n\t@p membar.cta;\n\t}" : : "r"(x) : "memory");
#endif
}

/* The output; d of the lanes that have the row's S k. */
template <class P>
DEVICE float output_of(const rssm_small &s, const small_inputs<P> &in, const small_token<P> &t, float sum, float *d)
{
    const float v = widen(in.v, P::DT);
    if (P::FAMILY != MAMBA2) {
        *d = t.beta * (v - sum * t.k_scale);
        return (sum + __shfl_xor_sync(WARP, *d, P::DUP) * (t.qk * t.k_scale)) * t.q_scale;
    }
    float skip;
    widen_weight(in.skip, &skip, s.D_dtype);
    *d = v;
    const float out = sum + t.gate[0] * t.qk * v + skip * v;
    const float z = widen(in.b, P::DT);
    return s.b ? out * (z * small_sigmoid(z)) : out;
}

/* The row's step; false: not done, the row is not plain. PLAIN: only such rows. */
template <class P, class BLOCK, bool PLAIN> DEVICE bool small_row(const rssm_small &s, int skip)
{
    typedef typename P::state ST;
    const uint32_t touched = PLAIN && P::FAMILY != MAMBA2 ? touch_small(s) : 0;
    wait_for_predecessors();
    if (PLAIN && !P::LATE)
        let_successors_start();
    int4 at; /* slot, base, count, flush */
    if (PLAIN || s.rows)
        at = *(const int4 *)(s.rows + times(blockIdx.z, s.rows_row));
    else
        at = small_host_row(s, blockIdx.z);
    pin_loads(threadIdx.x);
    const small_place p = small_place_of<P, BLOCK>(s, skip);
    unsigned char *state =
        s.state + (uint64_t)((uint32_t)(p.hv * P::V + p.row0 + p.part) * P::K + small_channel<P>(p.c, 0)) * ST::BYTES;
    const small_inputs<P> in = ask_inputs<P>(s, p);
    pin_loads(touched ^ p.lane);
    asm volatile("" : "+l"(state));
    asm volatile("" : "+r"(at.x), "+r"(at.y), "+r"(at.z), "+r"(at.w) : : "memory");

    const uint32_t slot = min((uint32_t)at.x, (uint32_t)s.S - 1); /* of a bad one too there is something to read */
    state += times(slot, s.state_slot) * ST::BYTES;
    uint4 raw[P::NR][P::NC];
#pragma unroll
    for (int i = 0; i < P::NR; ++i)
#pragma unroll
        for (int n = 0; n < P::NC; ++n)
            raw[i][n] = __ldcs((const uint4 *)state_chunk<P>(state, i, n));
    if (PLAIN)
        pin_loads(p.c);
    if (PLAIN && P::LATE)
        let_successors_start();
    bool hit = false;
    const int64_t out = times(p.row, s.out_row) + (p.hv * P::V + p.mine);
    if (PLAIN && !small_row_is_plain(s, at))
        return false;
    if (!PLAIN && !small_row_is_good(s, at)) {
        if (p.has_q)
            store_any(s.out, out, 0.0f, P::DT, &hit);
        return true;
    }
    small_token<P> t = token_of<P>(s, p, in);
    float x[P::NR][P::CH], d;
#pragma unroll
    for (int i = 0; i < P::NR; ++i)
#pragma unroll
        for (int n = 0; n < P::NC; ++n)
            widen_chunk(raw[i][n], x[i] + n * P::CHUNK, ST());
    if (!PLAIN)
        replay_records<P>(x, s, p, slot, at.y, at.z, t.decay_rate);

    const float o = output_of<P>(s, in, t, readout<P>(x, t, p.lane), &d);
    if (p.has_q)
        store_any(s.out, out, o, P::DT, &hit);
    uint32_t faults = hit ? RSSM_FAULTBIT_OUTPUT : 0;
    if (!PLAIN && !at.w) {
        faults |= append_record<P>(s, p, t, slot, at.y + at.z, d);
    } else {
        faults |= round_record<P>(s, p, &t, &d);
        faults |= fold_token<P>(x, p, t, d, state);
    }
    if (faults && s.fault)
        atomicOr(s.fault, faults);
    return true;
}

/* Out of the way of those that the kernel is made for. (By value: an argument of the kernel has no address that a function
 * could read.) */
template <class P> __device__ __noinline__ void small_other_row(rssm_small s, int skip)
{
    small_row<typename P::other, P, false>(s, skip);
}

/* Grid (value heads of a key head * TILES, H, B) x NW warps. */
template <class P> DEVICE void step_small(const rssm_small &s)
{
    if (s.rows && small_row<P, P, true>(s, 0))
        return;
#pragma unroll 1
    for (int i = 0; i < P::WR; i += P::other::WR)
        small_other_row<P>(s, i);
}

#endif
