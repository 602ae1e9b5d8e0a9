/* The CPU backend's vector functions: one table per feature level, all filled from cpu/level_template.h.
 *
 * Everything is float32 inside; index 0, 1, 2 of an array below is float32, bfloat16, float16 (rssm_kind). No function
 * reads or writes an element beyond n (rows * n), and none needs more than element alignment. dst may equal src.
 */
#ifndef RSSM_CPU_KERNELS_H_
#define RSSM_CPU_KERNELS_H_

#include <stdint.h>

enum { RSSM_KIND_COUNT = 3, RECORD_AHEAD = 8 };

static inline int32_t rssm_kind(int32_t dtype)
{
    return dtype - 1; /* RSSM_DTYPE_FLOAT32, BFLOAT16, FLOAT16 */
}

/* One log gate per channel of a head (KDA). */
typedef struct rssm_gate {
    float rate;  /* exp(A_log) */
    float bound; /* lower bound, < 0; 0 = none: g = -rate * softplus(x), else g = bound * sigmoid(rate * x) */
} rssm_gate;

/* A fold of `terms` records into state rows: S[v] <- S[v] * decay + sum_j d[j][v] * k[j]. */
typedef struct rssm_fold {
    const float *decay; /* [n] */
    const float *d;     /* [terms][d_row], already at the first row's column */
    const float *k;     /* [terms][k_row] */
    int64_t d_row, k_row;
    int64_t terms;
} rssm_fold;

typedef struct rssm_cpu_kernels {
    const char *name;
    int32_t level;  /* RSSM_CPU_* */
    int32_t vector; /* float32 lanes */

    /* Conversions; store returns non-zero when a value did not fit (cpu/dtype.h). */
    void (*load[RSSM_KIND_COUNT])(float *dst, const void *src, int64_t n);
    uint32_t (*store[RSSM_KIND_COUNT])(void *dst, const float *src, int64_t n);

    double (*sum_squares)(const float *a, int64_t n);
    float (*dot)(const float *a, const float *b, int64_t n);
    void (*scale)(float *dst, const float *a, float factor, int64_t n);
    void (*multiply)(float *dst, const float *a, const float *b, int64_t n);
    void (*exp)(float *dst, const float *a, int64_t n);

    /* g[i] of a + bias. */
    void (*gate)(float *g, const float *a, const float *bias, rssm_gate gate, int64_t n);
    /* x[i] *= z[i] * sigmoid(z[i]) */
    void (*silu_multiply)(float *x, const float *z, int64_t n);
    /* y[i] = silu(bias[i] + sum over k < width of weight[k * stride + i] x[k * stride + i]), k ascending */
    void (*convolve)(float *y, const float *x, const float *weight, const float *bias, int64_t width, int64_t stride,
                     int64_t n);
    /* d = beta (v - u); out = y + d kq */
    void (*delta)(float *d, float *out, const float *v, const float *u, const float *y, float beta, float kq,
                  int64_t n);

    /* y[r] += rows[r] . x, u[r] += rows[r] . z for matrix rows of n elements, one after the other: the state, or a ring's
     * keys. */
    void (*dot2[RSSM_KIND_COUNT])(float *y, float *u, const void *matrix, int64_t rows, int64_t n, const float *x,
                                  const float *z);
    void (*dot1[RSSM_KIND_COUNT])(float *y, const void *matrix, int64_t rows, int64_t n, const float *x);

    /* A KDA record: w = k * exp(suffix), dots = {w . x, w . z}, then suffix += g. Meanwhile it asks for the
     * RECORD_AHEAD * n bytes at `ahead`, since it computes more than it reads. */
    void (*record[RSSM_KIND_COUNT])(float *w, float dots[2], const void *k, const float *g, float *suffix,
                                    const float *x, const float *z, int64_t n, const void *ahead);

    /* y += sum_j c[j] d[j], u += sum_j e[j] d[j] over ring rows d[j] of n elements, one after the other. */
    void (*combine2[RSSM_KIND_COUNT])(float *y, float *u, const void *d, int64_t rows, int64_t n, const float *c,
                                      const float *e);
    void (*combine1[RSSM_KIND_COUNT])(float *y, const void *d, int64_t rows, int64_t n, const float *c);

    /* Folds into `rows` state rows of n elements; non-zero when a value did not fit. */
    uint32_t (*fold[RSSM_KIND_COUNT])(void *state, int64_t rows, int64_t n, const rssm_fold *fold);
} rssm_cpu_kernels;

/* NULL on another architecture. */
const rssm_cpu_kernels *rssm_cpu_scalar(void);
const rssm_cpu_kernels *rssm_cpu_avx2(void);
const rssm_cpu_kernels *rssm_cpu_avx512(void);
const rssm_cpu_kernels *rssm_cpu_neon(void);

/* The best level that this machine has and the cap (RSSM_CPU_*) allows; scalar when the cap names a level of another
 * architecture. */
const rssm_cpu_kernels *rssm_cpu_select(int32_t cap);

#endif
