#include "recurrence.h"

#include <math.h>
#include <string.h>

enum { REC_MAX_K = 4096 };

/* ---- number formats --------------------------------------------------------------------------------------------- */

typedef struct format {
    int digits;   /* significant bits, the hidden one counted */
    int smallest; /* exponent of the smallest subnormal       */
    double max;   /* largest finite number                    */
    int64_t bytes;
} format;

static const format formats[] = {
    [RSSM_DTYPE_FLOAT32] = {24, -149, 0x1.fffffep127, 4},
    [RSSM_DTYPE_BFLOAT16] = {8, -133, 0x1.fep127, 2},
    [RSSM_DTYPE_FLOAT16] = {11, -24, 65504, 2},
};

int64_t rec_dtype_bytes(int32_t dtype)
{
    return formats[dtype].bytes;
}

/* Exponent of one unit in the last place at x. */
static int ulp_exponent(const format *f, double x)
{
    int exponent = 0;
    frexp(x, &exponent); /* |x| in [2^(exponent - 1), 2^exponent) */
    return exponent - f->digits > f->smallest && x != 0 ? exponent - f->digits : f->smallest;
}

double rec_ulp(int32_t dtype, double x)
{
    return ldexp(1, ulp_exponent(&formats[dtype], x));
}

static double saturate(const format *f, double x)
{
    return fabs(x) > f->max ? copysign(f->max, x) : x;
}

double rec_round(int32_t dtype, double x)
{
    const format *f = &formats[dtype];
    if (isnan(x))
        return x;
    if (isinf(x))
        return saturate(f, x);
    int exponent = ulp_exponent(f, x);
    return saturate(f, ldexp(rint(ldexp(x, -exponent)), exponent));
}

double rec_round_other(int32_t dtype, double x)
{
    double nearest = rec_round(dtype, x), ulp = rec_ulp(dtype, x);
    double other = nearest > x ? nearest - ulp : nearest + ulp;
    double middle = (nearest + other) / 2;
    return fabs(x - middle) <= 1e-5 * fabs(x) ? other : nearest;
}

double rec_load(int32_t dtype, const void *data, int64_t index)
{
    const char *at = (const char *)data + index * rec_dtype_bytes(dtype);
    if (dtype == RSSM_DTYPE_FLOAT32) {
        float x;
        memcpy(&x, at, sizeof x);
        return (double)x;
    }
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    if (dtype == RSSM_DTYPE_BFLOAT16) {
        uint32_t wide = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &wide, sizeof x);
        return (double)x;
    }
    double sign = bits & 0x8000 ? -1 : 1;
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

/* x is a float16 number. */
static uint16_t float16_bits(double x)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (fabs(x) < 0x1p-14)
        return (uint16_t)(sign | (unsigned)ldexp(fabs(x), 24));
    int exponent = 0;
    double mantissa = frexp(fabs(x), &exponent); /* [0.5, 1) */
    return (uint16_t)(sign | ((unsigned)(exponent + 14) << 10 | ((unsigned)ldexp(mantissa, 11) & 1023)));
}

void rec_store(int32_t dtype, void *data, int64_t index, double x)
{
    char *at = (char *)data + index * rec_dtype_bytes(dtype);
    double rounded = rec_round(dtype, x);
    if (dtype == RSSM_DTYPE_FLOAT16) {
        uint16_t bits = float16_bits(rounded);
        memcpy(at, &bits, sizeof bits);
        return;
    }
    float single = (float)rounded; /* exact */
    uint32_t wide;
    memcpy(&wide, &single, sizeof wide);
    uint16_t upper = (uint16_t)(wide >> 16);
    if (dtype == RSSM_DTYPE_FLOAT32)
        memcpy(at, &single, sizeof single);
    else
        memcpy(at, &upper, sizeof upper);
}

/* ---- the recurrence --------------------------------------------------------------------------------------------- */

int64_t rec_gates(const rec_model *m)
{
    return m->family == RSSM_FAMILY_KDA ? m->K : 1;
}

int64_t rec_state_size(const rec_model *m)
{
    return m->HV * m->V * m->K;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

/* x[K] of one head -> y, normalised as maths.md says. */
static void normalise(const rec_model *m, const double *x, double *y)
{
    double sum = 0, factor = 1;
    for (int64_t i = 0; i < m->K; i++)
        sum += x[i] * x[i];
    if (m->qk_norm)
        factor = 1 / sqrt(sum + 1e-6);
    for (int64_t i = 0; i < m->K; i++)
        y[i] = x[i] * factor;
}

static double decay_rate(const rec_weights *w, int64_t hv)
{
    if (w->A)
        return -w->A[hv];
    return w->A_log ? exp(w->A_log[hv]) : 1;
}

/* The number that the ring keeps: the log gate, or Mamba-2's dt. */
static double ring_gate(const rec_model *m, const rec_weights *w, const rec_token *t, int64_t hv, int64_t channel)
{
    int64_t at = hv * rec_gates(m) + channel;
    double x = t->a[at] + (w->dt_bias ? w->dt_bias[at] : 0);
    if (m->family == RSSM_FAMILY_MAMBA2)
        return fmin(fmax(softplus(x), m->dt_min), m->dt_max);
    if (m->has_bound)
        return m->lower_bound * sigmoid(decay_rate(w, hv) * x);
    return -decay_rate(w, hv) * softplus(x);
}

/* exp(g) of the K channels of a head, from the numbers that the ring keeps. */
static void head_decays(const rec_model *m, const rec_weights *w, const double *g, int64_t hv, double *decays)
{
    int64_t gates = rec_gates(m);
    double rate = m->family == RSSM_FAMILY_MAMBA2 ? -decay_rate(w, hv) : 1;
    for (int64_t i = 0; i < m->K; i++)
        decays[i] = gates == 1 && i > 0 ? decays[0] : exp(rate * g[hv * gates + i]);
}

/* One value of one head: S[v] is row, decays and q are the head's. */
static void compute_value(const rec_model *m, const rec_weights *w, const rec_token *t, const double *row,
                          const double *decays, const double *q, rec_result *r, int64_t hv, int64_t v)
{
    const double *k = r->k + hv / (m->HV / m->H) * m->K;
    double sk = 0, sq = 0, kq = 0, x = t->v[hv * m->V + v];
    for (int64_t i = 0; i < m->K; i++) {
        double s = row[i] * decays[i];
        sk += s * k[i];
        sq += s * q[i];
        kq += k[i] * q[i];
    }
    double y;
    if (m->family == RSSM_FAMILY_MAMBA2) {
        r->d[hv * m->V + v] = x;
        y = sq + r->g[hv] * x * kq + (w->D ? w->D[hv] * x : 0);
        if (t->z)
            y *= t->z[hv * m->V + v] * sigmoid(t->z[hv * m->V + v]);
    } else {
        double d = m->beta_scale * sigmoid(t->b[hv]) * (x - sk);
        r->d[hv * m->V + v] = d;
        y = sq + d * kq;
    }
    r->out[hv * m->V + v] = y;
}

void rec_compute(const rec_model *m, const rec_weights *w, const rec_token *t, const double *state, rec_result *r)
{
    double q[REC_MAX_K], decays[REC_MAX_K];
    for (int64_t h = 0; h < m->H; h++)
        normalise(m, t->k + h * m->K, r->k + h * m->K);
    for (int64_t hv = 0; hv < m->HV; hv++) {
        normalise(m, t->q + hv / (m->HV / m->H) * m->K, q);
        for (int64_t c = 0; c < rec_gates(m); c++)
            r->g[hv * rec_gates(m) + c] = ring_gate(m, w, t, hv, c);
        head_decays(m, w, r->g, hv, decays);
        for (int64_t i = 0; i < m->K; i++)
            q[i] *= m->scale;
        for (int64_t v = 0; v < m->V; v++)
            compute_value(m, w, t, state + (hv * m->V + v) * m->K, decays, q, r, hv, v);
    }
}

void rec_apply(const rec_model *m, const rec_weights *w, const double *d, const double *k, const double *g,
               double *state)
{
    double decays[REC_MAX_K];
    for (int64_t hv = 0; hv < m->HV; hv++) {
        const double *key = k + hv / (m->HV / m->H) * m->K;
        double dt = m->family == RSSM_FAMILY_MAMBA2 ? g[hv] : 1;
        head_decays(m, w, g, hv, decays);
        for (int64_t v = 0; v < m->V; v++) {
            double *s = state + (hv * m->V + v) * m->K;
            for (int64_t i = 0; i < m->K; i++)
                s[i] = s[i] * decays[i] + dt * d[hv * m->V + v] * key[i];
        }
    }
}

void rec_round_record(const rec_model *m, int32_t ring_dtype, rec_result *r)
{
    for (int64_t i = 0; i < m->HV * m->V; i++)
        r->d[i] = rec_round(ring_dtype, r->d[i]);
    for (int64_t i = 0; i < m->H * m->K; i++)
        r->k[i] = rec_round(ring_dtype, r->k[i]);
    for (int64_t i = 0; i < m->HV * rec_gates(m); i++)
        r->g[i] = rec_round(RSSM_DTYPE_FLOAT32, r->g[i]);
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

double rec_error(const double *got, const double *want, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(got[i]))
            return (double)INFINITY;
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}
