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

DEVICE row_info read_row(const rssm_step &s, int64_t row)
{
    row_info r;
    int64_t count;
    if (s.rows) {
        const int32_t *const p = s.rows + row * s.rows_row;
        r.slot = p[0];
        r.base = p[1];
        count = p[2];
        r.flush = p[3] != 0;
    } else {
        r.slot = s.state_indices.data ? load_index(s.state_indices, row) : row;
        r.base = 0;
        count = s.write_pos.data ? load_index(s.write_pos, row) : 0;
        r.flush = count >= s.L - 1 || (s.force_flush.data && load_index(s.force_flush, row) != 0);
    }
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
