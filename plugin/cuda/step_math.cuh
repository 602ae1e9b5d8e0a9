/* The parts of a step that every kernel shares: which slot a row means, and the scalar formulas of maths.md. */
#ifndef RSSM_CUDA_STEP_MATH_CUH_
#define RSSM_CUDA_STEP_MATH_CUH_

#include "dtype.cuh"

enum { KDA = 1, GDN = 2, MAMBA2 = 3 }; /* RSSM_FAMILY_* */

struct row_info {
    int64_t slot;
    int base, count;
    bool flush;
    bool valid; /* false: a padding row */
    bool bad;   /* padding because the cursor is out of range */
};

DEVICE int64_t load_index(const rssm_index &x, int64_t i)
{
    if (x.bits == 64)
        return ((const int64_t *)x.data)[i * x.stride];
    return ((const int32_t *)x.data)[i * x.stride];
}

/* What load_row() has asked for; decode_row() waits for it. */
struct row_raw {
    uint32_t word[4];           /* of rows[] */
    int64_t slot, count, force; /* of the host-kept arrays */
};

DEVICE row_raw load_row(const rssm_step &s, int64_t row)
{
    row_raw r = {{0, 0, 0, 0}, row, 0, 0};
    if (s.rows) {
        const int32_t *const p = s.rows + row * s.rows_row;
        for (int i = 0; i < 4; ++i)
            r.word[i] = load_bits32(p + i);
    } else {
        if (s.state_indices.data)
            r.slot = load_index(s.state_indices, row);
        if (s.write_pos.data)
            r.count = load_index(s.write_pos, row);
        if (s.force_flush.data)
            r.force = load_index(s.force_flush, row);
    }
    return r;
}

DEVICE row_info decode_row(const rssm_step &s, const row_raw &raw)
{
    row_info r;
    const int64_t count = s.rows ? (int32_t)raw.word[2] : raw.count;
    r.slot = s.rows ? (int32_t)raw.word[0] : raw.slot;
    r.base = s.rows ? (int32_t)raw.word[1] : 0;
    r.flush = s.rows ? raw.word[3] != 0 : count >= s.L - 1 || raw.force != 0;
    const bool here = r.slot >= 0 && r.slot < s.S && r.slot != s.pad_slot;
    /* A row that does not flush stores a record: it needs a ring with room. */
    const bool sane =
        count >= 0 && count <= s.L && r.base >= 0 && r.base < s.R && (r.flush || (s.L > 1 && count < s.L));
    r.valid = here && sane;
    r.bad = here && !sane;
    r.count = s.L == 1 ? 0 : (int)count; /* L = 1: the plain recurrence, no ring */
    return r;
}

DEVICE void raise_fault(const rssm_step &s, bool hit, uint32_t bit)
{
    if (hit && s.fault)
        atomicOr(s.fault, bit);
}

DEVICE float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Log gate of KDA and GDN from x = a + dt_bias; rate = exp(A_log), 1 where A_log is absent. */
DEVICE float log_gate(const rssm_step &s, float x, float rate)
{
    if (s.flags & RSSM_STEP_HAS_BOUND)
        return s.lower_bound * sigmoid(rate * x);
    return -rate * softplus(x);
}

/* Mamba-2's step from x = dt + dt_bias. */
DEVICE float time_step(const rssm_step &s, float x)
{
    if (s.flags & RSSM_STEP_DT_SOFTPLUS)
        x = softplus(x);
    return x != x ? x : fminf(fmaxf(x, s.dt_min), s.dt_max);
}

#endif
