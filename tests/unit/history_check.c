#include "history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_mamba(const hi_world *w)
{
    return w->c->spec.family == RSSM_FAMILY_MAMBA2;
}

static void worst(double *figure, double ratio)
{
    *figure = fmax(*figure, ratio);
}

int32_t hi_dtype(const DLTensor *t)
{
    if (t->dtype.bits == 32)
        return RSSM_DTYPE_FLOAT32;
    return t->dtype.code == kDLBfloat ? RSSM_DTYPE_BFLOAT16 : RSSM_DTYPE_FLOAT16;
}

double hi_ratio(int32_t dtype, const double *got, const double *want, const double *slack, int64_t n, double bar)
{
    double error = 0, rounding = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(got[i]))
            return (double)INFINITY;
        double off = fmax(fabs(got[i] - want[i]) - (slack ? slack[i] : 0), 0),
               lost = rec_round(dtype, want[i]) - want[i];
        error += off * off;
        rounding += lost * lost;
        size += want[i] * want[i];
    }
    if (error == 0)
        return 0;
    if (dtype == RSSM_DTYPE_FLOAT32)
        return sqrt(error / size) / bar;
    /* the exact number is rounded after float32 arithmetic, also where it would be representable */
    return sqrt(error) / (1.05 * sqrt(rounding) + bar * sqrt(size));
}

/* ---- states ----------------------------------------------------------------------------------------------------- */

void hi_check_checkpoint(hi_world *w, int32_t layer, int64_t slot, const double *slack)
{
    int32_t dtype = w->c->spec.state;
    double *want = hi_state(w, &w->slots[slot], layer), *got = w->scratch;
    const void *data = dc_slot(w->c, layer, DC_POOL_STATE, slot);
    for (int64_t i = 0; i < hi_state_size(w); i++)
        got[i] = rec_load(dtype, data, i);
    double ratio = hi_ratio(dtype, got, want, slack, hi_state_size(w), 1e-6);
    worst(&w->figures->state, ratio);
    hi_check(w, slot, ratio <= 1, "layer %d: the checkpoint is off by %.3g times its bar", (int)layer, ratio);
    if (!w->trajectory)
        memcpy(want, got, (size_t)hi_state_size(w) * sizeof *want);
}

/* ---- a token ---------------------------------------------------------------------------------------------------- */

/* state exp(g) of the token in w->result; to be freed. */
static double *decayed_state(const hi_world *w, const double *state)
{
    rec_weights weights = dc_rec_weights(w->c);
    size_t n = (size_t)hi_state_size(w);
    double *decayed = malloc(n * sizeof *decayed), *zero = calloc((size_t)dc_inner(w->c, DC_V), sizeof *zero);
    dc_assert(decayed && zero);
    memcpy(decayed, state, n * sizeof *decayed);
    rec_apply(&w->c->model, &weights, zero, w->result.k, w->result.g, decayed);
    free(zero);
    return decayed;
}

/* What the output's terms amount to, in the mean over its elements: S q, d (k q) and D x, whose sums may cancel, as k q does
 * where a fresh slot has no other term. `state` is as the token found it. */
static double size_of_terms(const hi_world *w, int64_t token, const double *state)
{
    const rec_model *m = &w->c->model;
    rec_token input = dc_token(w->c, token);
    rec_weights weights = dc_rec_weights(w->c);
    double *decayed = decayed_state(w, state), sum = 0;
    for (int64_t x = 0; x < dc_inner(w->c, DC_V); x++) {
        const double *s = decayed + x * m->K, *k = w->result.k + x / m->V / (m->HV / m->H) * m->K,
                     *q = input.q + x / m->V / (m->HV / m->H) * m->K;
        double ss = 0, kk = 0, qq = m->qk_norm ? 1e-6 : 0;
        for (int64_t i = 0; i < m->K; i++) {
            ss += s[i] * s[i];
            kk += k[i] * k[i];
            qq += q[i] * q[i];
        }
        double dt = is_mamba(w) ? w->result.g[x / m->V] : 1, z = input.z ? input.z[x] : 1;
        double reads = m->scale * (m->qk_norm ? 1 : sqrt(qq)) * (sqrt(ss) + dt * fabs(w->result.d[x]) * sqrt(kk));
        double skip = is_mamba(w) && weights.D ? fabs(weights.D[x / m->V] * w->result.d[x]) : 0;
        double gate = input.z ? fabs(z / (1 + exp(-z))) : 1;
        sum += (reads + skip) * (reads + skip) * gate * gate;
    }
    free(decayed);
    return sqrt(sum);
}

static double length(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void check_output(hi_world *w, int32_t layer, int64_t token, int64_t slot, const double *state)
{
    const DLTensor *out = w->c->calls[layer]->roles[RSSM_T_OUT];
    int64_t n = dc_inner(w->c, DC_V);
    for (int64_t i = 0; i < n; i++)
        w->scratch[i] = dc_out(w->c, layer, token, i);
    double ratio = hi_ratio(hi_dtype(out), w->scratch, w->result.out, NULL, n, 2e-6);
    if (ratio > 1) /* a bar is relative: where the terms cancel it counts from their size, a tenth of it from there */
        ratio = hi_ratio(hi_dtype(out), w->scratch, w->result.out, NULL, n,
                         2e-6 + 2e-7 * size_of_terms(w, token, state) / length(w->result.out, n));
    worst(&w->figures->out, ratio);
    hi_check(w, slot, ratio <= 1, "layer %d, token %d: the output is off by %.3g times its bar", (int)layer, (int)token,
             ratio);
}

/* What float32 may lose of d = beta (v - S k), whose terms may cancel: in sums over K it counts from their sizes. k and g have
 * no such terms. `state` is as the token found it; w->result is the token's. */
static double lost_by_cancelling(const hi_world *w, int64_t token, const double *state)
{
    const rec_model *m = &w->c->model;
    const double *v = w->c->in[DC_V] + token * dc_inner(w->c, DC_V);
    double largest = 0, *decayed = NULL;
    if (is_mamba(w))
        return 0;
    decayed = decayed_state(w, state);
    for (int64_t x = 0; x < dc_inner(w->c, DC_V); x++) {
        double terms = fabs(v[x]);
        for (int64_t i = 0; i < m->K; i++)
            terms += fabs(decayed[x * m->K + i] * w->result.k[x / m->V / (m->HV / m->H) * m->K + i]);
        largest = fmax(largest, terms);
    }
    free(decayed);
    return 5e-7 * m->beta_scale * largest;
}

/* One kind of a record, [heads][size] in ring row `at`, against want: 16-bit numbers to half a unit in the last place and
 * to either side of a tie, float32 ones in the mean. Leaves the ring's numbers in got. */
static double record_ratio(const hi_world *w, int32_t layer, int64_t slot, int64_t at, int which, const double *want,
                           double lost, double *got)
{
    int32_t dtype = dc_pool_dtype(w->c, which);
    int64_t size = dc_record_size(w->c, which), heads = which == DC_POOL_K ? w->c->spec.H : w->c->spec.HV;
    double largest = 0, square = 0, error = 0;
    for (int64_t i = 0; i < heads * size; i++) {
        got[i] = rec_load(dtype, dc_slot(w->c, layer, which, slot), dc_record_at(w->c, which, i / size, at) + i % size);
        double off = fabs(got[i] - want[i]), bar = rec_ulp(dtype, want[i]) / 2 + 1e-5 * fabs(want[i]) + lost;
        largest = isfinite(off) ? fmax(largest, off / bar) : (double)INFINITY;
        square += want[i] * want[i];
        error += off * off;
    }
    if (dtype != RSSM_DTYPE_FLOAT32 || !isfinite(largest))
        return largest;
    return sqrt(error) / (1e-6 * sqrt(square) + lost * sqrt((double)(heads * size)) + 1e-37);
}

/* The ring's record against w->result; the state takes the ring's numbers, or in a trajectory its own. */
static void check_record(hi_world *w, int32_t layer, int64_t token, int64_t slot, int64_t at, const double *state,
                         rec_result *kept)
{
    double gate = record_ratio(w, layer, slot, at, DC_POOL_G, w->result.g, 0, kept->g);
    double k = record_ratio(w, layer, slot, at, DC_POOL_K, w->result.k, 0, kept->k);
    double d = record_ratio(w, layer, slot, at, DC_POOL_D, w->result.d, 0, kept->d);
    if (d > 1)
        d = record_ratio(w, layer, slot, at, DC_POOL_D, w->result.d, lost_by_cancelling(w, token, state), kept->d);
    worst(&w->figures->record, fmax(d, k));
    worst(&w->figures->gate, gate);
    hi_check(w, slot, d <= 1 && k <= 1 && gate <= 1,
             "layer %d, token %d: the record in ring row %d is off by d %.3g, k %.3g, gate %.3g times its bar",
             (int)layer, (int)token, (int)at, d, k, gate);
    if (!w->trajectory)
        return;
    rec_round_record(&w->c->model, w->c->spec.ring, &w->result);
    memcpy(kept->d, w->result.d, (size_t)dc_inner(w->c, DC_V) * sizeof *kept->d);
    memcpy(kept->k, w->result.k, (size_t)dc_inner(w->c, DC_K) * sizeof *kept->k);
    memcpy(kept->g, w->result.g, (size_t)dc_inner(w->c, DC_A) * sizeof *kept->g);
}

/* 1 unit in the last place where x is near enough to a rounding tie to go either way. */
static double tie(int32_t dtype, double x, double lost)
{
    double nearest = rec_round(dtype, x), ulp = rec_ulp(dtype, x);
    double from_tie = ulp / 2 - fabs(x - nearest);
    return dtype != RSSM_DTYPE_FLOAT32 && from_tie <= 1e-5 * fabs(x) + lost ? ulp : 0;
}

/* Element by element, what the state may be off because d or k of the folded token were near a tie. To be freed. */
static double *slack_of_ties(const hi_world *w, int64_t token, const double *state)
{
    const rec_model *m = &w->c->model;
    int32_t ring = w->c->spec.ring;
    double *slack = calloc((size_t)hi_state_size(w), sizeof *slack), lost = lost_by_cancelling(w, token, state);
    dc_assert(slack);
    for (int64_t hv = 0; hv < m->HV; hv++)
        for (int64_t v = 0; v < m->V; v++)
            for (int64_t i = 0; i < m->K; i++) {
                double d = w->result.d[hv * m->V + v], k = w->result.k[hv / (m->HV / m->H) * m->K + i];
                double dt = is_mamba(w) ? w->result.g[hv] : 1, ulp_d = tie(ring, d, lost), ulp_k = tie(ring, k, 0);
                slack[(hv * m->V + v) * m->K + i] =
                    dt * (ulp_d * (fabs(rec_round(ring, k)) + ulp_k) + ulp_k * fabs(rec_round(ring, d)));
            }
    return slack;
}

void hi_check_token(hi_world *w, int32_t layer, int64_t token, int64_t slot, int64_t at, double *state,
                    rec_result *kept)
{
    rec_token input = dc_token(w->c, token);
    rec_weights weights = dc_rec_weights(w->c);
    rec_compute(&w->c->model, &weights, &input, state, &w->result);
    check_output(w, layer, token, slot, state);
    w->figures->tokens++;
    if (at >= 0) {
        check_record(w, layer, token, slot, at, state, kept);
        rec_apply(&w->c->model, &weights, kept->d, kept->k, kept->g, state);
        return;
    }
    double *slack = slack_of_ties(w, token, state);
    rec_round_record(&w->c->model, w->c->spec.ring, &w->result);
    rec_apply(&w->c->model, &weights, w->result.d, w->result.k, w->result.g, state);
    hi_check_checkpoint(w, layer, slot, slack);
    free(slack);
}

bool hi_row_is(const DLTensor *t, int64_t row, unsigned char value)
{
    const unsigned char *bytes = h_at(t, row, 0, 0, 0);
    int64_t n = t->dtype.bits / 8;
    for (int dim = 1; dim < t->ndim; dim++)
        n *= t->shape[dim];
    for (int64_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* ---- the convolution -------------------------------------------------------------------------------------------- */

void hi_push_past(const hi_world *w, double *past, const double *inputs)
{
    size_t column = (size_t)w->channels * sizeof *past;
    memmove(past, past + w->channels, (HI_CONV_WIDTH - 2) * column);
    memcpy(past + (HI_CONV_WIDTH - 2) * w->channels, inputs, column);
}

static void conv_token(const hi_world *w, int32_t layer, const double *past, const double *now, double *y)
{
    const DLTensor *weight = &w->conv_weight[layer].t;
    for (int64_t c = 0; c < w->channels; c++) {
        double sum = w->conv_bias[layer].block ? h_get(&w->conv_bias[layer].t, c, 0, 0, 0) : 0;
        for (int64_t i = 0; i < HI_CONV_WIDTH; i++)
            sum += h_get(weight, c, weight->ndim == 2 ? i : 0, weight->ndim == 2 ? 0 : i, 0) *
                   (i < HI_CONV_WIDTH - 1 ? past[i * w->channels + c] : now[c]);
        y[c] = sum / (1 + exp(-sum));
    }
}

void hi_check_conv(hi_world *w, int32_t layer, int64_t slot, int64_t first, int64_t n, const double *past)
{
    const DLTensor *out = w->c->calls[layer]->roles[is_mamba(w) ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV];
    size_t width = (size_t)w->channels;
    double *row = malloc(width * (HI_CONV_WIDTH + 2) * sizeof *row), *now = row + (HI_CONV_WIDTH - 1) * width,
           *want = now + width, *got = want + width;
    dc_assert(row);
    memcpy(row, past, (HI_CONV_WIDTH - 1) * width * sizeof *row);
    for (int64_t token = first; token < first + n; token++) {
        for (int64_t c = 0; c < w->channels; c++) {
            now[c] = h_get(&w->conv_in[layer].t, token, c, 0, 0);
            got[c] = h_get(out, token, c, 0, 0);
        }
        conv_token(w, layer, row, now, want);
        double ratio = hi_ratio(w->c->spec.io, got, want, NULL, w->channels, 2e-6);
        worst(&w->figures->conv, ratio);
        hi_check(w, slot, ratio <= 1, "layer %d, token %d: the convolution is off by %.3g times its bar", (int)layer,
                 (int)token, ratio);
        hi_push_past(w, row, now);
    }
    free(row);
}
