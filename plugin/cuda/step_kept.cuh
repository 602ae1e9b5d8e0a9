/* The step of small batches whose rows keep their records in the ring, for GDN and Mamba-2 with bfloat16 records: as step_small.cuh,
 * a warp for itself, without shared memory or a barrier; the state is read and not written.
 *
 * Where a head has one gate, pending records cost a readout
 *   S x = exp(G) (S0 x) + sum_j d_j exp(G - G_j) (k_j . x),
 * x being q and, but for Mamba-2, k. The scores k_j . x of 16 records are products on tensor cores, exact since all is bfloat16.
 * A lane (r, c), r = lane % 4, c = lane / 4, takes 16 bytes at a time of the keys of records c and c + 8, and hands them over as
 * they are: the words of a left operand are two rows, so the first and the third become one row of the product, the second and
 * the fourth another, which the right operand knows: its even columns have the words of x for the one, the odd columns those
 * for the other. So lane (r, c) ends with both records' scores, for q or, with two readouts and r odd, for k. It multiplies them
 * by decays and by d of some of the warp's state rows, and sums over c.
 *
 * A row that flushes folds its records into the state, a few at a time, which are near by then. Bad ones take step_small's way
 * for other rows.
 */
#ifndef RSSM_CUDA_STEP_KEPT_CUH_
#define RSSM_CUDA_STEP_KEPT_CUH_

#include "mma.cuh"
#include "step_small.cuh"

template <class P_> struct ring_shape {
    typedef P_ P;
    enum {
        LOADS = P::K / 32,                       /* 16 bytes each, of a lane's part of a key */
        ROWS = P::WR < 4 ? 1 : P::WR / 4 * P::NQ /* state rows of a lane (r, c), from r / NQ * ROWS on */
    };
    static_assert(P::FAMILY != KDA && P::DT == BF16 && P::state::BYTES == 2, "scores on tensor cores");
    static_assert(ROWS <= 8, "a sum over eight lanes");
};

/* Where a lane's share of the ring lies, but for the slot's; and its words of q or k, for the right operand. */
template <class T> struct ring_place {
    int r, c;
    const unsigned char *key, *d, *g;
    uint4 x[T::LOADS];
};

template <class T> DEVICE ring_place<T> ring_place_of(const rssm_small &s, const small_place &p)
{
    typedef typename T::P P;
    ring_place<T> at;
    at.r = p.lane & 3;
    at.c = p.lane >> 2;
    const uint32_t row = p.row0 + at.r / P::NQ * T::ROWS % P::WR;
    at.key = (const unsigned char *)s.k_cache + (uint32_t)(p.h * s.R * P::K + at.r * 8) * 2;
    at.d = (const unsigned char *)s.d_cache + (uint32_t)(p.hv * s.R * P::V + row) * 2;
    at.g = (const unsigned char *)s.g_cache + (uint32_t)(p.hv * s.R) * 4;
    const bool key = P::NQ == 2 && (at.c & 2);
    const unsigned char *const x = (const unsigned char *)(key ? s.k : s.q) +
                                   (times(p.row, key ? s.k_row : s.q_row) + (p.h * P::K + at.r * 8)) * 2;
#pragma unroll
    for (int n = 0; n < T::LOADS; ++n)
        at.x[n] = *(const uint4 *)(x + n * 64);
    return at;
}

/* A lane's share of the records, as asked for. */
template <class T> struct ring_records {
    uint32_t key[2][T::LOADS][4]; /* records c and c + 8 */
    uint32_t d[2][(T::ROWS + 1) / 2];
    uint32_t g; /* of record `lane` */
};

/* BYTES (16, 8, 4 or 2) at p; without `go` they may be anything. Not in a branch: all waits for these loads to be asked for. */
template <int BYTES> DEVICE void ask_if(bool go, uint32_t *raw, const unsigned char *p)
{
#ifdef __CUDA_ARCH__
    const int on = go;
    if constexpr (BYTES == 16)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\t@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
                     : "=r"(raw[0]), "=r"(raw[1]), "=r"(raw[2]), "=r"(raw[3])
                     : "l"(p), "r"(on));
    else if constexpr (BYTES == 8)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %3, 0;\n\t@p ld.global.v2.b32 {%0, %1}, [%2];\n\t}"
                     : "=r"(raw[0]), "=r"(raw[1])
                     : "l"(p), "r"(on));
    else if constexpr (BYTES == 4)
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\t@p ld.global.b32 %0, [%1];\n\t}"
                     : "=r"(raw[0])
                     : "l"(p), "r"(on));
    else
        asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\t@p ld.global.u16 %0, [%1];\n\t}"
                     : "=r"(raw[0])
                     : "l"(p), "r"(on));
#else
    memset(raw, 0, BYTES < 4 ? 4 : BYTES);
    if (go)
        memcpy(raw, p, BYTES);
#endif
}

/* Where the index-th record of the row lies in its ring; beyond the last, where that does. */
DEVICE uint32_t ring_row_of(uint32_t index, uint32_t base, int count, uint32_t R)
{
    const uint32_t i = base + min(index, (uint32_t)(count - 1));
    return i >= R ? i - R : i;
}

template <class T>
DEVICE void ask_records(ring_records<T> *rec, const rssm_small &s, const ring_place<T> &at, uint32_t slot,
                        uint32_t base, int count, uint32_t lane)
{
    typedef typename T::P P;
    const unsigned char *key = at.key + times(slot, 2 * s.k_slot);
    const unsigned char *d = at.d + times(slot, 2 * s.d_slot);
    const unsigned char *g = at.g + times(slot, s.g_slot) * 4;
    asm volatile("" : "+l"(key), "+l"(d), "+l"(g));
    const uint32_t i[2] = {ring_row_of(at.c, base, count, s.R), ring_row_of(at.c + 8, base, count, s.R)};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int m = 0; m < T::LOADS; ++m)
            ask_if<16>(count > 0, rec->key[n][m], key + times(i[n], P::K * 2) + m * 64);
    ask_if<4>(count > 0, &rec->g, g + times(ring_row_of(lane, base, count, s.R), 4));
#pragma unroll
    for (int n = 0; n < 2; ++n)
        ask_if<2 * T::ROWS>(count > 0, rec->d[n], d + times(i[n], P::V * 2));
}

/* x of lane + n. */
DEVICE float from_below(float x, int n)
{
    return __shfl_down_sync(WARP, x, n);
}

/* exp(G - G_j), Mamba-2: times dt_j, of record j = lane, zero beyond count; *all becomes exp(G). g is the lane's gate. */
template <class P> DEVICE float record_weights(float g, float decay_rate, int lane, int count, float *all)
{
    g = lane < count ? g : 0.0f;
    float sum = g; /* of this record and those after it; of the upper lanes: zero */
#pragma unroll
    for (int n = 1; n < 16; n *= 2)
        sum += from_below(sum, n);
    const float rate = decay_rate * LOG2E, later = from_below(sum, 1);
    *all = exp2_approx(__shfl_sync(WARP, sum, 0) * rate);
    const float own = P::FAMILY == MAMBA2 ? g : lane < count ? 1.0f : 0.0f;
    return exp2_approx(later * rate) * own;
}

/* The records' part of the readout that ends in my lane, but for the token's decay. */
template <class T>
DEVICE float records_readout(const ring_records<T> &rec, const ring_place<T> &at, const small_place &p, float weight,
                             int count)
{
    typedef typename T::P P;
    float acc[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}}, sums[T::ROWS];
#pragma unroll
    for (int n = 0; n < T::LOADS; ++n) {
        const uint32_t b0 = at.c & 1 ? at.x[n].y : at.x[n].x, b1 = at.c & 1 ? at.x[n].w : at.x[n].z;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t *const a = rec.key[i][n];
            mma_bf16(acc[i], a[0], a[1], a[2], a[3], b0, b1);
        }
    }
#pragma unroll
    for (int m = 0; m < T::ROWS; ++m)
        sums[m] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float w = __shfl_sync(WARP, weight, at.c + 8 * i), score = (acc[i][0] + acc[i][3]) * w;
#pragma unroll
        for (int m = 0; m < T::ROWS; ++m) {
            const float d = widen(m % 2 ? rec.d[i][m / 2] >> 16 : rec.d[i][m / 2] & 0xffff, BF16);
            sums[m] += at.c + 8 * i < count ? score * d : 0.0f; /* beyond, both may be anything */
        }
    }
    small_sum<T::ROWS, 16, 4>(sums, p.lane); /* sum m in lanes c = m 8 / ROWS .. */
    const int row = p.c / P::DUP / P::NQ * P::RPL + p.part, q = p.c / P::DUP % P::NQ;
    return __shfl_sync(WARP, sums[0], row / T::ROWS * P::NQ + q + row % T::ROWS * (8 / T::ROWS) * 4);
}

/* append_record() of vectors: the key is a unit vector, or exact as it is, and needs no saturation. */
template <class P>
DEVICE uint32_t append_vectors(const rssm_small &s, const small_place &p, const small_inputs<P> &in,
                               const small_token<P> &t, uint32_t slot, int at, float d)
{
    bool hit = false;
    const small_record<P> to = record_at<P>(s, p, slot, at >= s.R ? at - s.R : at);
    if (p.has_k)
        store_any(to.d, p.mine, d, P::DT, &hit);
    if (p.row0 == 0) {
        if (p.lane == 0)
            to.g[0] = t.gate[0];
        if (p.sibling == 0 && p.part == 0) {
#pragma unroll
            for (int n = 0; n < P::NC; ++n) {
                uint32_t pair[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int ch = n * 8 + 2 * i;
                    const float k[2] = {t.k[ch] * t.k_scale, t.k[ch + 1] * t.k_scale};
                    pair[i] = P::FAMILY == MAMBA2 ? in.k[n * 4 + i] : narrow2(k, bf16_state());
                }
                *(uint4 *)(to.k + small_channel<P>(p.c, n) * 2) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
            }
        }
    }
    return hit ? RSSM_FAULTBIT_RING : 0;
}

/* S <- S exp(G) + sum_j weight_j d_j k_j^T: what has been read before, by other lanes. */
template <class P>
DEVICE void add_records(float x[P::NR][P::CH], const rssm_small &s, const small_place &p, uint32_t slot, uint32_t base,
                        int count, float weight, float decay)
{
    enum { AT_ONCE = 4 };
    const small_record<P> ring = record_at<P>(s, p, slot, 0);
    const unsigned char *const key = ring.k + small_channel<P>(p.c, 0) * 2, *const d = ring.d + (p.row0 + p.part) * 2;
#pragma unroll
    for (int i = 0; i < P::NR; ++i)
#pragma unroll
        for (int n = 0; n < P::CH; ++n)
            x[i][n] *= decay;
#pragma unroll 1
    for (int first = 0; first < count; first += AT_ONCE) {
        uint32_t kj[AT_ONCE][P::WORDS], dj[AT_ONCE][P::NR];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const uint32_t at = ring_row_of(first + j, base, count, s.R);
#pragma unroll
            for (int n = 0; n < P::NC; ++n)
                load_words<16>(kj[j] + 4 * n, key + times(at, P::K * 2) + n * (P::LPR * 16));
#pragma unroll
            for (int i = 0; i < P::NR; ++i)
                dj[j][i] = *(const uint16_t *)(d + times(at, P::V * 2) + i * (P::RPL * 2));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            const float w = __shfl_sync(WARP, weight, first + j); /* beyond the last record: zero */
            float k[P::CH];
            widen_words<P::CH, BF16>(kj[j], k);
#pragma unroll
            for (int i = 0; i < P::NR; ++i) {
                const float di = widen(dj[j][i], BF16) * w;
#pragma unroll
                for (int n = 0; n < P::CH; ++n)
                    x[i][n] += di * k[n];
            }
        }
    }
}

template <class P> DEVICE void widen_state(float x[P::NR][P::CH], const uint4 raw[P::NR][P::NC])
{
#pragma unroll
    for (int i = 0; i < P::NR; ++i)
#pragma unroll
        for (int n = 0; n < P::NC; ++n)
            widen_chunk(raw[i][n], x[i] + n * P::CHUNK, typename P::state());
}

/* The row's step; false: not done, the row is another. */
template <class P> DEVICE bool small_ring_row(const rssm_small &s)
{
    typedef typename P::state ST;
    typedef ring_shape<P> T;
    const uint32_t touched = touch_small(s);
    wait_for_predecessors();
    let_successors_start();
    int4 at = *(const int4 *)(s.rows + times(blockIdx.z, s.rows_row)); /* slot, base, count, flush */
    pin_loads(threadIdx.x);
    const small_place p = small_place_of<P, P>(s, 0);
    unsigned char *state =
        s.state + (uint64_t)((uint32_t)(p.hv * P::V + p.row0 + p.part) * P::K + small_channel<P>(p.c, 0)) * ST::BYTES;
    ring_place<T> ring = ring_place_of<T>(s, p);
    const small_inputs<P> in = ask_inputs<P>(s, p);
    asm volatile("" : "+l"(state), "+l"(ring.key), "+l"(ring.d), "+l"(ring.g));
    pin_loads(touched ^ p.lane);
    asm volatile("" : "+r"(at.x), "+r"(at.y), "+r"(at.z), "+r"(at.w) : : "memory");

    const bool good = small_slot_is_good(s, at) && small_cursor_is_sane(s, at);
    const int count = good ? at.z : 0;
    const uint32_t slot = min((uint32_t)at.x, (uint32_t)s.S - 1); /* of a bad one too there is something to read */
    ring_records<T> records;
    ask_records<T>(&records, s, ring, slot, at.y, count, p.lane);
    state += times(slot, s.state_slot) * ST::BYTES;
    uint4 raw[P::NR][P::NC];
#pragma unroll
    for (int i = 0; i < P::NR; ++i)
#pragma unroll
        for (int n = 0; n < P::NC; ++n)
            raw[i][n] = __ldcs((const uint4 *)state_chunk<P>(state, i, n));
    pin_loads(p.c);
    if (!good)
        return false;
    small_token<P> t = token_of<P>(s, p, in);
    float x[P::NR][P::CH], decay, d;
    const float weight = record_weights<P>(__uint_as_float(records.g), t.decay_rate, p.lane, count, &decay);
    const float pending = records_readout<T>(records, ring, p, weight, count);
    widen_state<P>(x, raw);
    bool hit = false;
    const float sum = readout<P>(x, t, p.lane) * decay + pending * t.decay[0];
    const float o = output_of<P>(s, in, t, sum, &d);
    if (p.has_q)
        store_any(s.out, times(p.row, s.out_row) + (p.hv * P::V + p.mine), o, P::DT, &hit);
    uint32_t faults = hit ? RSSM_FAULTBIT_OUTPUT : 0;
    if (!at.w) {
        faults |= append_vectors<P>(s, p, in, t, slot, at.y + at.z, d);
    } else {
        widen_state<P>(x, raw);
        add_records<P>(x, s, p, slot, at.y, count, weight, decay);
        faults |= round_record<P>(s, p, &t, &d);
        faults |= fold_token<P>(x, p, t, d, state);
    }
    if (faults && s.fault)
        atomicOr(s.fault, faults);
    return true;
}

/* Grid (value heads of a key head * TILES, H, B) x NW warps. */
template <class P> DEVICE void step_kept(const rssm_small &s)
{
    if (s.rows && small_ring_row<P>(s))
        return;
#pragma unroll 1
    for (int i = 0; i < P::WR; i += P::other::WR)
        small_other_row<P>(s, i);
}

#endif
