#include "step_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t pick_dtype(random_state *r, int32_t wished)
{
    return wished ? wished : (int32_t)random_between(r, RSSM_DTYPE_FLOAT32, RSSM_DTYPE_FLOAT16);
}

static void fill_normal(random_state *r, const rssm_input *input, int64_t rows, int64_t width, double mean,
                        double spread)
{
    for (int64_t b = 0; b < rows; b++)
        for (int64_t i = 0; i < width; i++)
            element_set(input->dtype, (void *)(uintptr_t)input->data, b * input->row + i,
                        mean + spread * random_normal(r));
}

/* rows x width elements with a gap between rows, at an address that is aligned to the element alone. */
static rssm_input make_input(step_case *c, random_state *r, int which, int32_t dtype, int64_t rows, int64_t width)
{
    int64_t row = width + random_between(r, 0, 5), element = element_bytes(dtype), first = random_between(r, 0, 7);
    if (c->aligned) {
        row = (row + 7) / 8 * 8;
        first = 0;
    }
    c->mem[which] = guarded_new(rows * row * element, first * element);
    return (rssm_input){.data = c->mem[which].data, .row = rows == 1 ? 0 : row, .dtype = dtype};
}

static rssm_pooled make_pooled(step_case *c, random_state *r, int which, int32_t dtype, int64_t width)
{
    int64_t slot = width + random_between(r, 0, 2) * (16 / element_bytes(dtype));
    c->mem[which] = guarded_new(c->step.S * slot * element_bytes(dtype), 16 * random_between(r, 0, 3));
    return (rssm_pooled){.data = c->mem[which].data, .slot = slot, .dtype = dtype};
}

enum { MOST_WORK = 1000000 }; /* multiply-adds of the oracle, about */

static void choose_sizes(rssm_step *s, random_state *r, const case_wish *wish)
{
    static const int32_t lengths[] = {1, 2, 3, 5, 16, 16, 37, 64};
    s->family = wish->family ? wish->family : (int32_t)random_between(r, RSSM_FAMILY_KDA, RSSM_FAMILY_MAMBA2);
    s->B = wish->B ? wish->B : (int32_t)random_between(r, 1, 4);
    s->H = wish->H ? wish->H : (int32_t)random_between(r, 1, 3);
    s->HV = s->H * (wish->group ? wish->group : (int32_t)random_between(r, 1, 3));
    s->K = wish->K ? wish->K : (int32_t)random_dim(r);
    s->V = wish->V ? wish->V : (int32_t)random_dim(r);
    s->L = wish->L ? wish->L : lengths[random_between(r, 0, 7)];
    while (!wish->B && s->B > 1 && (int64_t)s->B * s->HV * s->K * s->V * s->L > MOST_WORK)
        s->B--;
    while (!wish->L && s->L > 5 && (int64_t)s->B * s->HV * s->K * s->V * s->L > MOST_WORK)
        s->L = s->L / 2;
    while (s->L < wish->drafts || (wish->drafts && s->L < 2))
        s->L = s->L * 2 + 1;
    s->R = s->L + (wish->drafts ? wish->drafts : s->L > 1 ? (int32_t)random_between(r, 0, 1) * 3 : 0);
    s->S = s->B + random_between(r, 0, 2);
    s->pad_slot = random_between(r, 0, 3) ? -1 : 0;
    if (s->pad_slot == 0)
        s->S++;
}

static void choose_flags(rssm_step *s, random_state *r, const case_wish *wish)
{
    s->beta_scale = random_between(r, 0, 1) ? 1.0f : 2.0f;
    s->norm_eps = 1e-6f;
    s->scale = 1 / sqrtf((float)s->K);
    s->lower_bound = -5;
    s->dt_max = INFINITY;
    if (s->family == RSSM_FAMILY_MAMBA2) {
        s->scale = 1;
        s->flags = RSSM_STEP_DT_SOFTPLUS;
        if (wish->plain)
            return;
        if (random_between(r, 0, 3) == 0) {
            s->dt_min = 0.1f;
            s->dt_max = 0.5f;
        }
        if (random_between(r, 0, 3) == 0)
            s->flags |= RSSM_STEP_A_IS_DECAY;
        return;
    }
    if (wish->plain || random_between(r, 0, 4))
        s->flags |= RSSM_STEP_QK_NORM;
    if (random_between(r, 0, 1))
        s->flags |= RSSM_STEP_HAS_BOUND;
}

/* Slots in random order, cursors anywhere in the ring. Host-kept cursors start at row 0. */
static void choose_rows(step_case *c, random_state *r, const case_wish *wish, int host_kept)
{
    rssm_step *s = &c->step;
    int64_t order[MAX_ROWS + 4];
    int64_t usable = 0;
    for (int64_t slot = s->pad_slot == 0 ? 1 : 0; slot < s->S; slot++)
        order[usable++] = slot;
    for (int64_t i = usable - 1; i > 0; i--) {
        int64_t j = random_between(r, 0, i), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
    for (int32_t b = 0; b < s->B; b++) {
        case_row *row = &c->rows[b];
        int32_t most = s->L == 1 ? 0 : wish->all_flush == 2 ? s->L - 2 : host_kept ? s->L - 1 : s->L;
        row->slot = order[b];
        row->base = host_kept ? 0 : (int32_t)random_between(r, 0, s->R - 1);
        row->count = (int32_t)random_between(r, 0, most);
        row->flush =
            wish->all_flush == 1 || row->count >= s->L - 1 || (!wish->all_flush && random_between(r, 0, 2) == 0);
        if (!wish->no_padding && random_between(r, 0, 4) == 0)
            row->slot = -1;
    }
}

static int64_t padding_slot(const rssm_step *s, random_state *r)
{
    const int64_t choices[] = {-1, -7, s->S, s->S + 100, s->pad_slot};
    return choices[random_between(r, 0, 4)];
}

static rssm_index make_index(step_case *c, random_state *r, int which)
{
    int64_t stride = random_between(r, 1, 3);
    int32_t bits = random_between(r, 0, 1) ? 32 : 64;
    c->mem[which] = guarded_new(c->step.B * stride * bits / 8, bits / 8 * random_between(r, 0, 3));
    return (rssm_index){.data = c->mem[which].data, .stride = stride, .bits = bits};
}

static void index_set(const rssm_index *index, int64_t b, int64_t value)
{
    char *at = (char *)(uintptr_t)index->data + b * index->stride * index->bits / 8;
    int32_t narrow = (int32_t)value;
    memcpy(at, index->bits == 64 ? (const void *)&value : (const void *)&narrow, (size_t)index->bits / 8);
}

static void make_rows(step_case *c, random_state *r, int host_kept)
{
    rssm_step *s = &c->step;
    if (!host_kept) {
        s->rows_row = 8 + random_between(r, 0, 2) * (c->aligned ? 4 : 1);
        c->mem[MEM_ROWS] = guarded_new(s->B * s->rows_row * 4, 4 * random_between(r, 0, 3) * (c->aligned ? 4 : 1));
        s->rows = (const int32_t *)(const void *)c->mem[MEM_ROWS].data;
        for (int64_t b = 0; b < s->B; b++) {
            const case_row *row = &c->rows[b];
            int32_t slot = row->slot >= 0 ? (int32_t)row->slot : (int32_t)padding_slot(s, r);
            const int32_t values[8] = {slot, row->base, row->count, row->flush, 0, (int32_t)b, 1, 0};
            memcpy(c->mem[MEM_ROWS].data + b * s->rows_row * 4, values, sizeof values);
        }
        return;
    }
    s->state_indices = make_index(c, r, MEM_SLOTS);
    s->write_pos = make_index(c, r, MEM_WRITE_POS);
    s->force_flush = make_index(c, r, MEM_FORCE);
    for (int64_t b = 0; b < s->B; b++) {
        const case_row *row = &c->rows[b];
        index_set(&s->state_indices, b, row->slot >= 0 ? row->slot : padding_slot(s, r));
        index_set(&s->write_pos, b, row->count);
        index_set(&s->force_flush, b, row->flush && row->count < s->L - 1 ? random_between(r, 1, 9) : 0);
    }
}

static void make_inputs(step_case *c, random_state *r, const case_wish *wish, double magnitude)
{
    rssm_step *s = &c->step;
    int32_t io = pick_dtype(r, wish->io);
    int64_t qk = (int64_t)s->H * s->K, v = (int64_t)s->HV * s->V;
    if (random_between(r, 0, 1)) {
        s->q = make_input(c, r, MEM_PACKED, io, s->B, 2 * qk + v);
        s->k = s->v = s->q;
        s->k.data = c->mem[MEM_PACKED].data + qk * element_bytes(io);
        s->v.data = c->mem[MEM_PACKED].data + 2 * qk * element_bytes(io);
    } else {
        s->q = make_input(c, r, MEM_PACKED, io, s->B, qk);
        s->k = make_input(c, r, MEM_K, io, s->B, qk);
        s->v = make_input(c, r, MEM_V, io, s->B, v);
    }
    int normalised = s->family == RSSM_FAMILY_MAMBA2 || !(s->flags & RSSM_STEP_QK_NORM);
    double spread = normalised ? 1 / sqrt((double)s->K) : 1;
    fill_normal(r, &s->q, s->B, qk, 0, spread);
    fill_normal(r, &s->k, s->B, qk, 0, spread);
    fill_normal(r, &s->v, s->B, v, 0, magnitude);
    int64_t gates = s->family == RSSM_FAMILY_KDA ? (int64_t)s->HV * s->K : s->HV;
    s->a = make_input(c, r, MEM_A, random_between(r, 0, 1) || c->aligned ? io : RSSM_DTYPE_FLOAT32, s->B, gates);
    fill_normal(r, &s->a, s->B, gates, -1, random_between(r, 0, 3) ? 2 : 12);
    if (s->family != RSSM_FAMILY_MAMBA2) {
        s->b = make_input(c, r, MEM_B, random_between(r, 0, 1) || c->aligned ? io : RSSM_DTYPE_FLOAT32, s->B, s->HV);
        fill_normal(r, &s->b, s->B, s->HV, 0, 2);
    } else if (!wish->plain && random_between(r, 0, 1)) {
        s->z = make_input(c, r, MEM_Z, io, s->B, v);
        fill_normal(r, &s->z, s->B, v, 0, 3);
    }
    s->out_dtype = wish->out_is_io || random_between(r, 0, 2) ? io : RSSM_DTYPE_FLOAT32;
    rssm_input out = make_input(c, r, MEM_OUT, s->out_dtype, s->B, v);
    s->out = c->mem[MEM_OUT].data;
    s->out_row = out.row;
}

static void make_weights(step_case *c, random_state *r, const case_wish *wish)
{
    rssm_step *s = &c->step;
    int64_t gates = s->family == RSSM_FAMILY_KDA ? (int64_t)s->HV * s->K : s->HV;
    int is_bounded = s->family != RSSM_FAMILY_MAMBA2 && (s->flags & RSSM_STEP_HAS_BOUND);
    if (wish->plain || !is_bounded || random_between(r, 0, 2)) {
        s->A_log = make_input(c, r, MEM_A_LOG, pick_dtype(r, 0), 1, s->HV);
        fill_normal(r, &s->A_log, 1, s->HV, s->flags & RSSM_STEP_A_IS_DECAY ? -4 : 0, 0.6);
    }
    if (wish->plain || s->family != RSSM_FAMILY_MAMBA2 || random_between(r, 0, 2)) {
        s->dt_bias = make_input(c, r, MEM_DT_BIAS, pick_dtype(r, 0), 1, gates);
        fill_normal(r, &s->dt_bias, 1, gates, 0, 1);
    }
    if (!wish->plain && s->family == RSSM_FAMILY_MAMBA2 && random_between(r, 0, 2)) {
        s->D = make_input(c, r, MEM_D, pick_dtype(r, 0), 1, s->HV);
        fill_normal(r, &s->D, 1, s->HV, 0, 1);
    }
}

/* One record of one slot: what the ring may hold, everything else stays NaN. */
static void fill_record(step_case *c, random_state *r, const case_row *row, int64_t j, double magnitude)
{
    const rssm_step *s = &c->step;
    int64_t at = (row->base + j) % s->R;
    int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
    for (int64_t hv = 0; hv < s->HV; hv++) {
        for (int64_t v = 0; v < s->V; v++)
            element_set(s->d_cache.dtype, s->d_cache.data, row->slot * s->d_cache.slot + (hv * s->R + at) * s->V + v,
                        magnitude * random_normal(r));
        double strength = random_between(r, 0, 9) ? 0.3 : 30;
        for (int64_t i = 0; i < gates; i++) {
            double g = strength * random_unit(r);
            element_set(RSSM_DTYPE_FLOAT32, s->g_cache.data, row->slot * s->g_cache.slot + (hv * s->R + at) * gates + i,
                        s->family == RSSM_FAMILY_MAMBA2 ? g / 10 : -g);
        }
    }
    for (int64_t i = 0; i < (int64_t)s->H * s->K; i++)
        element_set(s->k_cache.dtype, s->k_cache.data,
                    row->slot * s->k_cache.slot + (i / s->K * s->R + at) * s->K + i % s->K,
                    random_normal(r) / sqrt((double)s->K));
}

static void make_pool(step_case *c, random_state *r, const case_wish *wish, double magnitude)
{
    rssm_step *s = &c->step;
    int32_t ring = pick_dtype(r, wish->ring);
    int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
    s->state = make_pooled(c, r, MEM_STATE, pick_dtype(r, wish->state), (int64_t)s->HV * s->V * s->K);
    s->d_cache.dtype = s->k_cache.dtype = ring;
    s->g_cache.dtype = RSSM_DTYPE_FLOAT32;
    if (s->L > 1) {
        s->d_cache = make_pooled(c, r, MEM_D_CACHE, ring, (int64_t)s->HV * s->R * s->V);
        s->k_cache = make_pooled(c, r, MEM_K_CACHE, ring, (int64_t)s->H * s->R * s->K);
        s->g_cache = make_pooled(c, r, MEM_G_CACHE, RSSM_DTYPE_FLOAT32, (int64_t)s->HV * s->R * gates);
    }
    for (int32_t b = 0; b < s->B; b++) {
        if (c->rows[b].slot < 0)
            continue;
        int64_t n = (int64_t)s->HV * s->V * s->K;
        double spread = magnitude / sqrt((double)s->K);
        for (int64_t i = 0; i < n; i++)
            element_set(s->state.dtype, s->state.data, c->rows[b].slot * s->state.slot + i, spread * random_normal(r));
        for (int64_t j = 0; j < c->rows[b].count; j++)
            fill_record(c, r, &c->rows[b], j, magnitude);
    }
}

void step_case_make(step_case *c, random_state *r, const case_wish *wish)
{
    double magnitude = wish->magnitude > 0 ? wish->magnitude : 1;
    int host_kept = random_between(r, 0, 3) == 0 && !wish->drafts;
    memset(c, 0, sizeof *c);
    c->aligned = wish->aligned;
    choose_sizes(&c->step, r, wish);
    choose_flags(&c->step, r, wish);
    choose_rows(c, r, wish, host_kept);
    make_inputs(c, r, wish, magnitude);
    make_weights(c, r, wish);
    make_pool(c, r, wish, magnitude);
    make_rows(c, r, host_kept);
    c->step.fault = &c->fault;
}

void step_case_free(step_case *c)
{
    for (int i = 0; i < MEM_COUNT; i++)
        guarded_free(&c->mem[i]);
}

/* An address inside from's memory, in to's. */
static void *moved(const step_case *to, const step_case *from, const void *address)
{
    const char *at = address;
    for (int i = 0; i < MEM_COUNT; i++)
        if (from->mem[i].raw && at >= from->mem[i].data && at <= from->mem[i].data + from->mem[i].bytes)
            return to->mem[i].data + (at - from->mem[i].data);
    return NULL;
}

void step_case_copy(step_case *to, const step_case *from)
{
    *to = *from;
    for (int i = 0; i < MEM_COUNT; i++) {
        if (!from->mem[i].raw)
            continue;
        to->mem[i] = guarded_new(from->mem[i].bytes, (from->mem[i].data - from->mem[i].raw) % 64);
        memcpy(to->mem[i].data, from->mem[i].data, (size_t)from->mem[i].bytes);
    }
    rssm_step *s = &to->step;
    rssm_input *inputs[] = {&s->q, &s->k, &s->v, &s->a, &s->b, &s->z, &s->A_log, &s->dt_bias, &s->D};
    rssm_pooled *pooled[] = {&s->state, &s->d_cache, &s->k_cache, &s->g_cache};
    rssm_index *indices[] = {&s->state_indices, &s->write_pos, &s->force_flush};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        inputs[i]->data = moved(to, from, inputs[i]->data);
    for (size_t i = 0; i < sizeof pooled / sizeof pooled[0]; i++)
        pooled[i]->data = moved(to, from, pooled[i]->data);
    for (size_t i = 0; i < sizeof indices / sizeof indices[0]; i++)
        indices[i]->data = moved(to, from, indices[i]->data);
    s->rows = moved(to, from, s->rows);
    s->out = to->mem[MEM_OUT].data;
    s->fault = &to->fault;
}
