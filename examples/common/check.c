#include "check.h"

#include "parallel.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The pool tensors of a layer that a step touches. */
enum { VIEW_STATE, VIEW_D, VIEW_K, VIEW_G, VIEW_COUNT };

/* What a step must give for one checked head of one row, and what was there before. */
typedef struct unit {
    oracle_result want;
    double *k_rounded, *k_open; /* [K]: in the ring's dtype, and its ulp where the rounding is open */
    uint64_t checkpoint_hash, records_hash;
} unit;

/* Sums over the checked heads of one row. */
typedef struct row_sums {
    double error[FIGURE_COUNT], reference[FIGURE_COUNT], rounding[FIGURE_COUNT], ulps[FIGURE_COUNT];
    int64_t values[FIGURE_COUNT];
    int touched_checkpoint, touched_records, padding_not_zero;
} row_sums;

struct check {
    workload *w;
    oracle o;
    int mode, threads;
    const dtype_info *out_type;
    int64_t stride; /* every stride-th head is checked */
    int64_t heads;  /* so many of a row at most        */
    int64_t ring_length, ring_rows;

    const DLTensor *view[VIEW_COUNT]; /* of the layer at hand; NULL where the ring is absent */
    unsigned char *stage[VIEW_COUNT]; /* [B][slot bytes] on the host; NULL on the CPU        */
    int32_t *cursor;                  /* [slots][2]: base, count, as the rules say           */
    unit *units;                      /* [B][heads]                                          */
    double *values;                   /* what the units' results point into                  */
    double *states;                   /* step: [B][heads][V][K] of rows that flush, made on demand;
                                         trajectory: [layers][B][heads][V][K], all along     */
    row_sums *sums;                   /* [B] */
    oracle_scratch **scratch;         /* [threads] */
    int64_t layer, step;              /* at hand */
    int out_of_memory;

    figure figures[FIGURE_COUNT];
    double *drift; /* [windows]: worst state error of each */
    int64_t windows;
    int64_t faults;
    char first_fault[256];
};

static int is_mamba(const check *c)
{
    return c->o.family == RSSM_FAMILY_MAMBA2;
}

void check_fault(check *c, const char *format, ...)
{
    if (c->faults++ > 0)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(c->first_fault, sizeof c->first_fault, format, args);
    va_end(args);
}

/* ---- which heads ---------------------------------------------------------------------------------------------- */

/* Sampled heads wander from step to step, but not along a trajectory. */
static int64_t head_of(const check *c, int64_t row, int64_t index)
{
    int64_t turn = row + c->layer + (c->mode == CHECK_STEP ? c->step : 0);
    return turn % c->stride + index * c->stride;
}

static int64_t state_elements(const check *c)
{
    return c->o.V * c->o.K;
}

/* The fewest skipped heads with which the whole run costs an affordable number of multiply-adds and bytes. */
static int64_t choose_stride(const check *c, int64_t steps)
{
    const double affordable_work = 4e11, affordable_bytes = 2e9;
    const double layers = c->w->host->model.num_linear_layers;
    const double head = (double)state_elements(c), heads = (double)(c->w->batch * c->o.HV);
    double passes = c->mode == CHECK_STEP ? 4.0 + 0.5 * (double)c->ring_length : 4.0;
    double work = head * heads * layers * (double)steps * passes;
    double bytes = head * heads * 8.0 * (c->mode == CHECK_STEP ? 1.0 : layers);
    double skip = ceil(fmax(work / affordable_work, bytes / affordable_bytes));
    return (int64_t)fmin(fmax(skip, 1.0), (double)c->o.HV);
}

/* ---- making and freeing --------------------------------------------------------------------------------------- */

/* The ring loses nothing: float32, or Mamba-2's x and B in the dtype they arrive in. */
static int ring_is_exact(const check *c)
{
    return c->o.ring->id == RSSM_DTYPE_FLOAT32 || (is_mamba(c) && c->o.ring->id == c->o.io->id);
}

static void set_figure(check *c, int which, const char *name, const char *unit, double bar)
{
    c->figures[which] = (figure){.name = name, .unit = unit, .bar = bar};
}

static void set_step_bars(check *c)
{
    const int f32_out = c->out_type->id == RSSM_DTYPE_FLOAT32, f32_state = c->o.state->id == RSSM_DTYPE_FLOAT32;
    const int f32_ring = c->o.ring->id == RSSM_DTYPE_FLOAT32;
    set_figure(c, FIGURE_OUT, "output", f32_out ? "relative" : "x rounding", f32_out ? 2e-6 : 1.05);
    set_figure(c, FIGURE_STATE, "flushed state", f32_state ? "relative" : "x rounding", f32_state ? 1e-6 : 1.05);
    /* A float32 sum of K products cannot be within 1 ulp of its type: float32 records have the output's bar. */
    set_figure(c, FIGURE_D, is_mamba(c) ? "x record" : "d record", f32_ring ? "relative" : "ulp",
               f32_ring ? 2e-6 : 1.0);
    set_figure(c, FIGURE_K, is_mamba(c) ? "B record" : "k record", f32_ring ? "relative" : "ulp",
               f32_ring ? 2e-6 : 1.0);
    set_figure(c, FIGURE_G, is_mamba(c) ? "dt record" : "g record", "relative", 1e-6);
}

static void set_trajectory_bars(check *c)
{
    double out = 2e-6, state = 1e-6;
    if (!ring_is_exact(c)) {
        out = c->o.ring->id == RSSM_DTYPE_FLOAT16 ? 8e-4 : 6e-3;
        state = c->o.ring->id == RSSM_DTYPE_FLOAT16 ? 5e-4 : 4e-3;
    }
    if (c->o.state->id != RSSM_DTYPE_FLOAT32)
        out = state = INFINITY;
    set_figure(c, FIGURE_OUT, "output", "relative", out);
    set_figure(c, FIGURE_STATE, "flushed state", "relative", state);
}

static int allocate_units(check *c)
{
    const int64_t per_unit = 3 * c->o.V + 3 * c->o.K + c->o.gates, count = c->w->batch * c->heads;
    c->units = calloc((size_t)count, sizeof *c->units);
    c->values = calloc((size_t)(count * per_unit), sizeof *c->values);
    c->sums = calloc((size_t)c->w->batch, sizeof *c->sums);
    c->scratch = calloc((size_t)c->threads, sizeof *c->scratch);
    if (c->units == NULL || c->values == NULL || c->sums == NULL || c->scratch == NULL)
        return -1;
    for (int64_t i = 0; i < count; i++) {
        double *next = c->values + i * per_unit;
        c->units[i].want = (oracle_result){.out = next,
                                           .d = next + c->o.V,
                                           .d_scale = next + 2 * c->o.V,
                                           .k = next + 3 * c->o.V,
                                           .g = next + 3 * c->o.V + 3 * c->o.K};
        c->units[i].k_rounded = next + 3 * c->o.V + c->o.K;
        c->units[i].k_open = next + 3 * c->o.V + 2 * c->o.K;
    }
    for (int i = 0; i < c->threads; i++) {
        c->scratch[i] = oracle_scratch_create(&c->o, c->ring_rows);
        if (c->scratch[i] == NULL)
            return -1;
    }
    return 0;
}

static int64_t slot_bytes(const DLTensor *t)
{
    return tensor_row_elements(t) * (t->dtype.bits / 8);
}

static void set_views(check *c, int64_t layer)
{
    static const int32_t roles[2][VIEW_COUNT] = {
        {RSSM_T_STATE, RSSM_T_D_CACHE, RSSM_T_K_CACHE, RSSM_T_G_CACHE},
        {RSSM_T_STATE, RSSM_T_X_CACHE, RSSM_T_B_CACHE, RSSM_T_DT_CACHE},
    };
    c->layer = layer;
    for (int v = 0; v < VIEW_COUNT; v++)
        c->view[v] = workload_tensor(c->w, layer, roles[is_mamba(c)][v]);
}

static int allocate_pool_side(check *c)
{
    set_views(c, 0);
    const int64_t slots = c->view[VIEW_STATE]->shape[0], layers = c->w->host->model.num_linear_layers;
    c->cursor = calloc((size_t)slots * 2, sizeof *c->cursor);
    c->drift = calloc((size_t)c->windows, sizeof *c->drift);
    if (c->cursor == NULL || c->drift == NULL)
        return -1;
    for (int v = 0; v < VIEW_COUNT && !device_is_host(c->w->dev); v++) {
        if (c->view[v] == NULL)
            continue;
        c->stage[v] = malloc((size_t)(c->w->batch * slot_bytes(c->view[v])));
        if (c->stage[v] == NULL)
            return -1;
    }
    if (c->mode == CHECK_STEP)
        return 0;
    c->states = calloc((size_t)(layers * c->w->batch * c->heads * state_elements(c)), sizeof *c->states);
    return c->states != NULL ? 0 : -1;
}

int check_create(check **out, workload *w, int mode, int64_t steps)
{
    check *c = calloc(1, sizeof *c);
    *out = c;
    if (c == NULL)
        return host_refuse(w->host, "no memory for the check");
    c->w = w;
    c->mode = mode;
    c->threads = parallel_cpus();
    c->out_type = dtype_of(&w->out.dl);
    c->ring_length = w->host->model.ring_length;
    c->ring_rows = w->host->model.ring_rows;
    c->windows = steps / c->ring_length + 1;
    oracle_init(&c->o, &w->host->model);
    c->stride = choose_stride(c, steps);
    c->heads = (c->o.HV + c->stride - 1) / c->stride;
    if (mode == CHECK_STEP)
        set_step_bars(c);
    else
        set_trajectory_bars(c);
    if (allocate_units(c) != 0 || allocate_pool_side(c) != 0)
        return host_refuse(w->host, "no memory for the check");
    return EXIT_OK;
}

void check_free(check **out)
{
    check *c = *out;
    if (c == NULL)
        return;
    for (int i = 0; c->scratch != NULL && i < c->threads; i++)
        oracle_scratch_free(c->scratch[i]);
    for (int v = 0; v < VIEW_COUNT; v++)
        free(c->stage[v]);
    free(c->scratch);
    free(c->sums);
    free(c->units);
    free(c->values);
    free(c->states);
    free(c->cursor);
    free(c->drift);
    free(c);
    *out = NULL;
}

/* ---- the pool's bytes ----------------------------------------------------------------------------------------- */

static const int32_t *row_of(const check *c, int64_t b)
{
    return (const int32_t *)c->w->rows.host + b * RSSM_ROW_WIDTH;
}

/* The bytes of a row's slot on the host; on a GPU those fetched last. */
static const unsigned char *slot_data(const check *c, int v, int64_t b, int64_t slot)
{
    const DLTensor *t = c->view[v];
    if (c->stage[v] != NULL)
        return c->stage[v] + b * slot_bytes(t);
    return (const unsigned char *)tensor_data(t) + slot * tensor_row_stride(t) * (t->dtype.bits / 8);
}

static int fetch_slot(check *c, int v, int64_t b, int64_t slot)
{
    const DLTensor *t = c->view[v];
    if (t == NULL || c->stage[v] == NULL || slot < 0)
        return 0;
    const char *src = (const char *)tensor_data(t) + slot * tensor_row_stride(t) * (t->dtype.bits / 8);
    return c->w->dev->to_host(c->w->dev, c->stage[v] + b * slot_bytes(t), src, slot_bytes(t));
}

static int fetch(check *c)
{
    for (int64_t b = 0; b < c->w->batch; b++)
        for (int v = 0; v < VIEW_COUNT; v++)
            if (fetch_slot(c, v, b, row_of(c, b)[0]) != 0)
                return -1;
    return 0;
}

/* Of any bytes (FNV-1a over 8-byte words, four lanes so that it keeps up with the memory). */
static uint64_t hash_bytes(uint64_t seed, const void *data, int64_t bytes)
{
    const unsigned char *p = data;
    uint64_t lane[4] = {seed + 1, seed + 2, seed + 3, seed + 4};
    int64_t words = bytes / 8;
    for (int64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, p + 8 * i, 8);
        lane[i & 3] = (lane[i & 3] ^ word) * 0x100000001b3u;
    }
    for (int64_t i = 8 * words; i < bytes; i++)
        lane[0] = (lane[0] ^ p[i]) * 0x100000001b3u;
    return lane[0] ^ lane[1] << 16 ^ lane[2] << 32 ^ lane[3] << 48 ^ lane[3] >> 16;
}

static const unsigned char *checkpoint_of(const check *c, int64_t b, int64_t head)
{
    return slot_data(c, VIEW_STATE, b, row_of(c, b)[0]) + head * state_elements(c) * c->o.state->bytes;
}

/* One head's records of a row's slot; empty where the ring is absent. */
static oracle_ring ring_of(const check *c, int64_t b, int64_t head)
{
    const int32_t *row = row_of(c, b);
    oracle_ring ring = {.rows = c->ring_rows, .base = row[1], .count = row[2]};
    if (c->view[VIEW_D] == NULL || c->view[VIEW_K] == NULL || c->view[VIEW_G] == NULL) {
        ring.count = 0;
        return ring;
    }
    const int64_t R = c->ring_rows, key_head = head / (c->o.HV / c->o.H);
    ring.d = slot_data(c, VIEW_D, b, row[0]) + head * R * c->o.V * c->o.ring->bytes;
    ring.k = slot_data(c, VIEW_K, b, row[0]) + key_head * R * c->o.K * c->o.ring->bytes;
    ring.g = slot_data(c, VIEW_G, b, row[0]) + head * R * c->o.gates * 4;
    return ring;
}

static uint64_t hash_records(const check *c, const oracle_ring *ring)
{
    uint64_t hash = 0;
    for (int64_t j = 0; j < ring->count; j++) {
        const int64_t at = (ring->base + j) % ring->rows;
        const int64_t d = c->o.V * c->o.ring->bytes, k = c->o.K * c->o.ring->bytes, g = c->o.gates * 4;
        hash = hash_bytes(hash, (const char *)ring->d + at * d, d);
        hash = hash_bytes(hash, (const char *)ring->k + at * k, k);
        hash = hash_bytes(hash, (const char *)ring->g + at * g, g);
    }
    return hash;
}

int check_admitted(check *c, int64_t row, int64_t slot)
{
    c->cursor[2 * slot] = c->cursor[2 * slot + 1] = 0;
    for (int64_t layer = 0; layer < c->w->host->model.num_linear_layers; layer++) {
        set_views(c, layer);
        if (fetch_slot(c, VIEW_STATE, row, slot) != 0)
            return -1;
        const unsigned char *state = slot_data(c, VIEW_STATE, row, slot);
        for (int64_t i = 0; i < slot_bytes(c->view[VIEW_STATE]); i++) {
            if (state[i] == 0)
                continue;
            check_fault(c, "slot %" PRId64 " of layer %" PRId64 " is not zero after reset", slot, layer);
            break;
        }
    }
    return 0;
}

void check_rows(check *c, int64_t step)
{
    const int32_t *slots = c->w->slots.host, *force = c->w->force.host;
    const int all_flush = c->w->batch <= c->w->host->model.small_batch;
    for (int64_t b = 0; b < c->w->batch; b++) {
        const int32_t *row = row_of(c, b), slot = slots[b];
        if (slot < 0) {
            if (row[0] != -1)
                check_fault(c, "step %" PRId64 ": padding row %" PRId64 " got slot %d", step, b, row[0]);
            continue;
        }
        int32_t *base = &c->cursor[2 * slot], *count = base + 1;
        int flush = *count >= c->ring_length - 1 || force[b] != 0 || all_flush;
        if (row[0] != slot || row[1] != *base || row[2] != *count || row[3] != flush || row[5] != b || row[6] != 1)
            check_fault(c, "step %" PRId64 ": rows[%" PRId64 "] = {%d %d %d %d . %d %d}, expected {%d %d %d %d . %d 1}",
                        step, b, row[0], row[1], row[2], row[3], row[5], row[6], slot, *base, *count, flush, (int)b);
        *base = flush ? (int32_t)((*base + *count) % c->ring_rows) : *base;
        *count = flush ? 0 : *count + 1;
    }
}

/* ---- before the call: what must come out ---------------------------------------------------------------------- */

static oracle_inputs inputs_of(const check *c)
{
    const tensor *weights = c->w->weights + c->layer * WEIGHT_COUNT;
    oracle_inputs in = {.packed = c->w->packed.host,
                        .gate = c->w->gate.host,
                        .beta = c->w->beta.host,
                        .A_log = weights[WEIGHT_A_LOG].host,
                        .dt_bias = weights[WEIGHT_DT_BIAS].host,
                        .D = weights[WEIGHT_D].host};
    return in;
}

static void expect_unit(void *context, int64_t index, int worker)
{
    check *c = context;
    const int64_t b = index / c->heads, head = head_of(c, b, index % c->heads);
    if (head >= c->o.HV || row_of(c, b)[0] < 0)
        return;
    unit *u = &c->units[index];
    const oracle_inputs in = inputs_of(c);
    const oracle_ring ring = ring_of(c, b, head);
    u->checkpoint_hash = hash_bytes(0, checkpoint_of(c, b, head), state_elements(c) * c->o.state->bytes);
    u->records_hash = hash_records(c, &ring);
    if (c->mode == CHECK_STEP)
        oracle_step(&c->o, c->scratch[worker], &in, b, head, checkpoint_of(c, b, head), &ring, &u->want);
    else
        oracle_advance(&c->o, c->scratch[worker], &in, b, head, u->want.state, &u->want);
}

/* Where each unit's state goes: only rows that flush have one to compare, a trajectory carries all of them along. */
static int place_states(check *c)
{
    const int64_t per_row = c->heads * state_elements(c), B = c->w->batch;
    int64_t flushes = 0;
    for (int64_t b = 0; b < B; b++)
        flushes += row_of(c, b)[0] >= 0 && row_of(c, b)[3] != 0;
    if (c->mode == CHECK_STEP && flushes > 0) {
        c->states = malloc((size_t)(flushes * per_row) * sizeof *c->states);
        if (c->states == NULL)
            return -1;
    }
    double *next = c->mode == CHECK_STEP ? c->states : c->states + c->layer * B * per_row;
    for (int64_t b = 0; b < B; b++) {
        int has_state = c->mode == CHECK_TRAJECTORY || (row_of(c, b)[0] >= 0 && row_of(c, b)[3] != 0);
        for (int64_t i = 0; i < c->heads; i++)
            c->units[b * c->heads + i].want.state = has_state ? next + i * state_elements(c) : NULL;
        next += has_state ? per_row : 0;
    }
    return 0;
}

/* Outputs start as NaN, so that one that is not written shows. */
static int poison_output(check *c)
{
    memset(c->w->out.host, 0xff, (size_t)c->w->out.bytes);
    return tensor_upload(&c->w->out);
}

int check_before(check *c, int64_t layer, int64_t step)
{
    set_views(c, layer);
    c->step = step;
    if (fetch(c) != 0 || place_states(c) != 0 || poison_output(c) != 0)
        return -1;
    parallel_for(c->threads, c->w->batch * c->heads, expect_unit, c);
    return 0;
}

/* ---- after the call ------------------------------------------------------------------------------------------- */

/* The worse of two; a NaN is the worst and stays. */
static double worse(double a, double b)
{
    return isnan(a) || b <= a ? a : b;
}

/* got[n] against want[n]: relative and, for 16-bit types, in units of the rounding. */
static void add_rounded(row_sums *s, int which, const dtype_info *type, const void *got, const double *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double value, exact = want[i];
        dtype_load(type, (const char *)got + i * type->bytes, 1, &value);
        double rounding = type->id == RSSM_DTYPE_FLOAT32 ? 0.0 : dtype_round(type, exact) - exact;
        s->error[which] += (value - exact) * (value - exact);
        s->reference[which] += exact * exact;
        s->rounding[which] += rounding * rounding;
    }
    s->values[which] += n;
}

/* How far float32 may move a value before it is rounded: 1e-5 of it, or what its terms allow where they cancel. */
static double looseness(double value, double terms)
{
    return 1e-5 * fabs(value) + 5e-7 * terms;
}

/* A ring row: relative for float32, else in ulps of the exact value beyond what float32 leaves open. */
static void add_record(const check *c, row_sums *s, int which, const void *got, const double *want, const double *terms,
                       int64_t n)
{
    const dtype_info *type = c->o.ring;
    add_rounded(s, which, type, got, want, n);
    for (int64_t i = 0; i < n && type->id != RSSM_DTYPE_FLOAT32; i++) {
        double value;
        dtype_load(type, (const char *)got + i * type->bytes, 1, &value);
        double beyond = fabs(value - want[i]) - looseness(want[i], terms != NULL ? terms[i] : 0.0);
        double ulps = beyond > 0.0 ? beyond / dtype_ulp(type, want[i]) : (value == value ? 0.0 : NAN);
        s->ulps[which] = worse(s->ulps[which], ulps);
    }
}

/* The ulp of a value that is so near a rounding tie that it may go either way, else 0. */
static double open_ulp(const dtype_info *type, double value, double terms)
{
    if (type->id == RSSM_DTYPE_FLOAT32)
        return 0.0;
    double ulp = dtype_ulp(type, value), steps = fabs(value) / ulp;
    double from_tie = fabs(steps - floor(steps) - 0.5) * ulp;
    return from_tie <= looseness(value, terms) ? ulp : 0.0;
}

/* How far an element of a flushed state may be off because its d or its k may be rounded either way. */
typedef struct slack {
    double d, k;           /* the factors as rounded, signs dropped */
    double open_d, open_k; /* their ulps where open, else 0         */
} slack;

static double allowed(const slack *s)
{
    return s->open_d * (s->k + s->open_k) + s->open_k * s->d;
}

/* Mamba-2's x and B arrive exact and leave nothing open. */
static void add_state(const check *c, row_sums *s, const unit *u, const void *got)
{
    const oracle *o = &c->o;
    const int open = c->mode == CHECK_STEP && !is_mamba(c), f32 = o->state->id == RSSM_DTYPE_FLOAT32;
    for (int64_t v = 0; v < o->V; v++) {
        slack at = {.d = fabs(dtype_round(o->ring, u->want.d[v]))};
        at.open_d = open ? open_ulp(o->ring, u->want.d[v], u->want.d_scale[v]) : 0.0;
        for (int64_t k = 0; k < o->K; k++) {
            double value, exact = u->want.state[v * o->K + k];
            dtype_load(o->state, (const char *)got + (v * o->K + k) * o->state->bytes, 1, &value);
            at.k = fabs(u->k_rounded[k]);
            at.open_k = open ? u->k_open[k] : 0.0;
            double error = fabs(value - exact), limit = allowed(&at);
            error = error <= limit ? 0.0 : error - limit; /* NaN stays NaN */
            double rounding = f32 ? 0.0 : dtype_round(o->state, exact) - exact;
            s->error[FIGURE_STATE] += error * error;
            s->reference[FIGURE_STATE] += exact * exact;
            s->rounding[FIGURE_STATE] += rounding * rounding;
        }
    }
    s->values[FIGURE_STATE] += state_elements(c);
}

/* What add_state needs of every k, once per head. */
static void open_columns(const check *c, unit *u)
{
    for (int64_t k = 0; k < c->o.K; k++) {
        u->k_rounded[k] = dtype_round(c->o.ring, u->want.k[k]);
        u->k_open[k] = open_ulp(c->o.ring, u->want.k[k], 0.0);
    }
}

static void compare_records(const check *c, row_sums *s, const unit *u, int64_t b, int64_t head)
{
    const oracle *o = &c->o;
    const oracle_ring ring = ring_of(c, b, head);
    s->touched_records |= hash_records(c, &ring) != u->records_hash;
    if (ring.d == NULL || c->mode == CHECK_TRAJECTORY)
        return;
    const int64_t at = (ring.base + ring.count) % ring.rows;
    add_record(c, s, FIGURE_D, (const char *)ring.d + at * o->V * o->ring->bytes, u->want.d, u->want.d_scale, o->V);
    add_record(c, s, FIGURE_K, (const char *)ring.k + at * o->K * o->ring->bytes, u->want.k, NULL, o->K);
    add_rounded(s, FIGURE_G, dtype_find(RSSM_DTYPE_FLOAT32), (const char *)ring.g + at * o->gates * 4, u->want.g,
                o->gates);
}

static void compare_unit(const check *c, row_sums *s, unit *u, int64_t b, int64_t head)
{
    const int64_t at = (b * c->o.HV + head) * c->o.V * c->out_type->bytes;
    add_rounded(s, FIGURE_OUT, c->out_type, (const char *)c->w->out.host + at, u->want.out, c->o.V);
    const unsigned char *checkpoint = checkpoint_of(c, b, head);
    if (row_of(c, b)[3] != 0) {
        open_columns(c, u);
        add_state(c, s, u, checkpoint);
        return;
    }
    compare_records(c, s, u, b, head);
    s->touched_checkpoint |= hash_bytes(0, checkpoint, state_elements(c) * c->o.state->bytes) != u->checkpoint_hash;
}

/* All bits zero, but for the sign. */
static int output_is_zero(const check *c, int64_t b)
{
    const int64_t n = c->o.HV * c->o.V;
    for (int64_t i = 0; i < n; i++) {
        double value;
        dtype_load(c->out_type, (const char *)c->w->out.host + (b * n + i) * c->out_type->bytes, 1, &value);
        if (value != 0.0)
            return 0;
    }
    return 1;
}

static void compare_row(void *context, int64_t b, int worker)
{
    check *c = context;
    row_sums *s = &c->sums[b];
    (void)worker;
    *s = (row_sums){.values = {0}};
    if (row_of(c, b)[0] < 0) {
        s->padding_not_zero = !output_is_zero(c, b);
        return;
    }
    for (int64_t i = 0; i < c->heads; i++) {
        int64_t head = head_of(c, b, i);
        if (head < c->o.HV)
            compare_unit(c, s, &c->units[b * c->heads + i], b, head);
    }
}

static double figure_value(const figure *f, const row_sums *s, int which)
{
    if (strcmp(f->unit, "ulp") == 0)
        return s->ulps[which];
    double scale = strcmp(f->unit, "relative") == 0 ? s->reference[which] : s->rounding[which];
    return s->error[which] == 0.0 ? 0.0 : sqrt(s->error[which] / scale);
}

static void fold_row(check *c, int64_t b)
{
    const row_sums *s = &c->sums[b];
    for (int i = 0; i < FIGURE_COUNT; i++) {
        figure *f = &c->figures[i];
        if (f->name == NULL || s->values[i] == 0)
            continue;
        double value = figure_value(f, s, i);
        if (f->judged == 0 || !(isnan(f->worst) || value <= f->worst)) {
            *f = (figure){f->name, f->unit, value, f->bar, f->judged, c->step, c->layer, b};
        }
        f->judged += s->values[i];
        double *drift = &c->drift[c->step / c->ring_length];
        if (i == FIGURE_STATE)
            *drift = worse(*drift, value);
    }
    if (s->touched_checkpoint)
        check_fault(c, "step %" PRId64 ", layer %" PRId64 ", row %" PRId64 ": the checkpoint changed without a flush",
                    c->step, c->layer, b);
    if (s->touched_records)
        check_fault(c, "step %" PRId64 ", layer %" PRId64 ", row %" PRId64 ": a pending record changed", c->step,
                    c->layer, b);
    if (s->padding_not_zero)
        check_fault(c, "step %" PRId64 ", layer %" PRId64 ": padding row %" PRId64 " is not zero", c->step, c->layer,
                    b);
}

int check_after(check *c, int64_t layer, int64_t step)
{
    set_views(c, layer);
    c->step = step;
    if (tensor_download(&c->w->out) != 0 || fetch(c) != 0)
        return -1;
    parallel_for(c->threads, c->w->batch, compare_row, c);
    for (int64_t b = 0; b < c->w->batch; b++)
        fold_row(c, b);
    if (c->mode == CHECK_STEP) {
        free(c->states);
        c->states = NULL;
    }
    return 0;
}

/* ---- the verdict ---------------------------------------------------------------------------------------------- */

static int figure_passed(const figure *f)
{
    return f->name == NULL || f->judged == 0 || f->worst <= f->bar || (isinf(f->bar) && f->worst == f->worst);
}

/* Bar D: over 64 windows or more the last 8 are no worse than 1.3 times the first 8. */
static int drift_is_judged(const check *c)
{
    return c->mode == CHECK_TRAJECTORY && !ring_is_exact(c) && c->o.state->id == RSSM_DTYPE_FLOAT32 && c->windows > 64;
}

static double drift_ratio(const check *c)
{
    double first = 0.0, last = 0.0;
    for (int64_t i = 0; i < 8; i++) {
        first = fmax(first, c->drift[i]);
        last = fmax(last, c->drift[c->windows - 2 - i]); /* the very last window has no step of its own */
    }
    return last / first;
}

int check_passed(const check *c)
{
    int passed = c->faults == 0 && (!drift_is_judged(c) || drift_ratio(c) <= 1.3);
    for (int i = 0; i < FIGURE_COUNT; i++)
        passed &= figure_passed(&c->figures[i]);
    return passed;
}

void check_print(const check *c)
{
    printf("check against fp64 (%s): ", c->mode == CHECK_STEP ? "step, bar S" : "trajectory, bars T and D");
    if (c->stride == 1)
        printf("every head of every row, layer and step\n");
    else
        printf("1 head in %" PRId64 " of every row, layer and step (all would take too long)\n", c->stride);
    for (int i = 0; i < FIGURE_COUNT; i++) {
        const figure *f = &c->figures[i];
        if (f->name == NULL)
            continue;
        printf("  %-14s", f->name);
        if (f->judged == 0) {
            printf("none in this run\n");
            continue;
        }
        printf("worst %.3g", f->worst);
        if (isinf(f->bar))
            printf(" %s (no bar)", f->unit);
        else
            printf(", bar %g %s: %s", f->bar, f->unit, figure_passed(f) ? "ok" : "MISSED");
        printf(" (step %" PRId64 ", layer %" PRId64 ", row %" PRId64 "; %" PRId64 " values)\n", f->step, f->layer,
               f->row, f->judged);
    }
    if (drift_is_judged(c))
        printf("  state drift   last 8 windows / first 8: %.3f, bar 1.3: %s\n", drift_ratio(c),
               drift_ratio(c) <= 1.3 ? "ok" : "MISSED");
    if (c->faults > 0)
        printf("  FAULTS: %" PRId64 ", the first: %s\n", c->faults, c->first_fault);
}

void check_json(const check *c, json *out)
{
    json_object(out, "check");
    json_string(out, "oracle", c->mode == CHECK_STEP ? "step" : "trajectory");
    json_int(out, "one_head_in", c->stride);
    json_string(out, "result", check_passed(c) ? "passed" : "missed");
    json_array(out, "figures");
    for (int i = 0; i < FIGURE_COUNT; i++) {
        const figure *f = &c->figures[i];
        if (f->name == NULL || f->judged == 0)
            continue;
        json_object(out, NULL);
        json_string(out, "name", f->name);
        json_string(out, "unit", f->unit);
        json_number(out, "worst", f->worst);
        json_number(out, "bar", f->bar);
        json_string(out, "result", figure_passed(f) ? "ok" : "missed");
        json_int(out, "values", f->judged);
        json_int(out, "step", f->step);
        json_int(out, "layer", f->layer);
        json_int(out, "row", f->row);
        json_end(out);
    }
    json_end(out);
    if (drift_is_judged(c))
        json_number(out, "drift_ratio", drift_ratio(c));
    json_int(out, "faults", c->faults);
    json_string(out, "first_fault", c->faults > 0 ? c->first_fault : NULL);
    json_end(out);
}
