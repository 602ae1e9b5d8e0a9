/* The records of a tile of slots_tile.cuh: asked for, and as the operands of its products. */
#ifndef RSSM_CUDA_SLOTS_FOLD_CUH_
#define RSSM_CUDA_SLOTS_FOLD_CUH_

/* The pending records of a slot. */
struct slot_ring {
    const unsigned char *k, *d, *g;
    int family, R, V, K, base, count;
    int dtype; /* of k and d */
};

template <class F>
DEVICE slot_ring ring_of(const rssm_cuda_states &a, const pool_places &p, int64_t slot, int base, int count)
{
    const int dtype = F::EXACT ? BF16 : a.record_dtype, size = is_half_width(dtype) ? 2 : 4;
    const unsigned char *const k = slot_of(p.k, slot, size), *const d = slot_of(p.d, slot, size);
    return {k, d, slot_of(p.g, slot, 4), a.family, a.in.R, a.V, a.K, base, count, dtype};
}

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

DEVICE raw_pair ask_pair(const unsigned char *at, int dtype, bool there)
{
    return {ask_word(at, there), ask_word(at + 4, there && !is_half_width(dtype))};
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

/* A slot's records as asked for: d of a pass's rows, and the gates where they are numbers, of a lane's four. */
struct raw_records {
    raw_pair d[4];
};

struct raw_gates {
    float gate[4];
};

template <class F> DEVICE void load_records(const slot_ring &r, const pass_rows &p, raw_records *raw)
{
    const int t = threadIdx.x & 3, dtype = F::EXACT ? BF16 : r.dtype, size = is_half_width(dtype) ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = 4 * t + i;
        raw->d[i] = ask_pair(record_at(r, r.d, p.hv, r.V, size, j, p.v), dtype, p.here && j < r.count);
    }
}

template <class F> DEVICE void load_gates(const slot_ring &r, const pass_rows &p, raw_gates *raw)
{
    if (has_kda_gates<F>(r.family))
        return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int j = 4 * (threadIdx.x & 3) + i;
        raw->gate[i] = __uint_as_float(ask_word(record_at(r, r.g, p.hv, 1, 4, j, 0), p.here && j < r.count));
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

/* factor, decay: what record_factors() has of the rows' head. */
template <class F>
DEVICE void form_left(const slot_ring &r, const raw_records &raw, const float *factor, float decay,
                      left_operand<F> *left)
{
    if (F::KDA_GATES && F::EXACT) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
            left->term[0][n] = pick_halves(raw.d[n / 2 * 2].low, raw.d[n / 2 * 2 + 1].low, n % 2);
        left->decay = 1.0f;
        return;
    }
    float2 d[4];
    left->decay = decay;
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
        raw->k[i] = ask_pair(record_at(r, r.k, h, r.K, size, j, t.k0 + ch), dtype, there);
        if (has_kda_gates<F>(r.family)) {
            const raw_pair gate = ask_pair(record_at(r, r.g, t.group, r.K, 4, j, t.k0 + ch), F32, there);
            raw->gate[i] = widen_raw(gate, F32);
        }
    }
}

template <class ST, class F> DEVICE void store_keys(const slot_ring &r, const raw_keys &raw, tile_memory *sh)
{
    const int ch = keys_channel(), j0 = keys_record(), column = key_column<ST::CHUNK>(ch);
    float2 after = make_float2(0.0f, 0.0f);
    if (has_kda_gates<F>(r.family)) {
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
        if (has_kda_gates<F>(r.family)) {
            x[0] *= exp2_approx(after.x * LOG2E);
            x[1] *= exp2_approx(after.y * LOG2E);
            after = make_float2(after.x + raw.gate[i].x, after.y + raw.gate[i].y);
        }
#pragma unroll
        for (int term = 0; term < F::W_TERMS; ++term)
            *(uint32_t *)(to + term * 16 * KEYS_ROW) = next_term(x);
    }
}

/* The records' part of a pass's 16 rows and 32 channels from ch on: the smallest products first. TERMS: of a number, at most. */
template <class F, int TERMS>
DEVICE void sum_records(const left_operand<F> &left, const tile_memory *sh, int ch, float acc[4][4])
{
    constexpr int D_TERMS = F::D_TERMS < TERMS ? F::D_TERMS : TERMS, W_TERMS = F::W_TERMS < TERMS ? F::W_TERMS : TERMS;
    const int lane = threadIdx.x & 31;
    uint32_t w[W_TERMS][8];
#pragma unroll
    for (int term = 0; term < W_TERMS; ++term) {
        const uint16_t *const row = &sh->keys[term][lane & 15][ch + (lane >> 4) * 8];
        load_transposed(w[term], row);
        load_transposed(w[term] + 4, row + 16);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
    for (int order = TERMS - 1; order >= 0; --order)
#pragma unroll
        for (int i = 0; i < D_TERMS; ++i)
            if (order - i >= 0 && order - i < W_TERMS) {
                const uint32_t *const d = left.term[i], *const b =
                                                            w[order - i >= 0 && order - i < W_TERMS ? order - i : 0];
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    mma_bf16(acc[n], d[0], d[1], d[2], d[3], b[2 * n], b[2 * n + 1]);
            }
}

#endif
