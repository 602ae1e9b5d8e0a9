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

/* The first four numbers of rows[row], asked for ahead of their use; nothing where the step has no rows array. */
struct row_ahead {
    int32_t slot, base, count, flush;
};

DEVICE row_ahead load_row(const rssm_step &s, int64_t row)
{
    row_ahead a = {0, 0, 0, 0};
    if (s.rows) {
        const int32_t *const p = s.rows + row * s.rows_row;
        a.slot = p[0];
        a.base = p[1];
        a.count = p[2];
        a.flush = p[3];
    }
    return a;
}

DEVICE row_info judge_row(const rssm_step &s, int64_t row, const row_ahead &a)
{
    row_info r;
    r.slot = a.slot;
    r.base = a.base;
    r.count = a.count;
    r.flush = a.flush != 0;
    if (!s.rows) {
        r.slot = s.state_indices.data ? load_index(s.state_indices, row) : row;
        r.base = 0;
        const int64_t count = s.write_pos.data ? load_index(s.write_pos, row) : 0;
        r.flush = count >= s.L - 1 || (s.force_flush.data && load_index(s.force_flush, row) != 0);
        r.count = count >= 0 && count <= s.L ? (int)count : -1;
    }
    const bool here = r.slot >= 0 && r.slot < s.S && r.slot != s.pad_slot;
    /* A row that does not flush stores a record: it needs a ring with room. */
    const int most = RSSM_MOST_RECORDS(s.L) - (r.flush ? 0 : 1);
    const bool sane = r.count >= 0 && r.count <= most && (uint32_t)r.base < (uint32_t)s.R;
    r.valid = here && sane;
    r.bad = here && !sane;
    return r;
}

DEVICE row_info read_row(const rssm_step &s, int64_t row)
{
    return judge_row(s, row, load_row(s, row));
}

DEVICE void raise_fault(const rssm_step &s, bool hit, uint32_t bit)
{
    if (hit && s.fault)
        atomicOr(s.fault, bit);
}

/* 1 / sqrt(x), rounded almost as if exact: one Newton step on the 22 bits of the approximation. */
DEVICE float inverse_root(float x)
{
    const float y = rsqrtf(x);
    const float better = y + 0.5f * y * (1.0f - x * y * y);
    return x > 1e-30f && x < 1e30f ? better : 1.0f / sqrtf(x);
}

#define LOG2E 1.4426950408889634f

/* 2^x to 2^-22 of its value; what is below 2^-126 becomes zero. */
DEVICE float exp2_approx(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* 1 / x to 2^-23, for x in 2^-126 .. 2^126. */
DEVICE float reciprocal(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
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
