/* Slot operations on a pool of two layers with a convolution: copies, saved slots, imports, exports, flushes. What they do
 * is worked out here anew, element by element; every other byte of the pool must stay as it was. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "step_case.h"

enum { LAYERS = 2, WIDTH = 4, CHANNELS = 23, REGIONS = 5, MAX_SLOTS = 40, CURSOR_ROW = 5, MAX_ENTRIES = 12 };

typedef struct pool_case {
    step_case layer[LAYERS]; /* rows: the slots in use, the same in both */
    guarded conv[LAYERS];
    int32_t cursor[MAX_SLOTS * CURSOR_ROW];
    rssm_region regions[LAYERS * REGIONS];
    rssm_pool_layer layers[LAYERS];
    rssm_pool pool;
    uint32_t fault;
} pool_case;

/* Points the pool at the case's own memory. */
static void connect(pool_case *p)
{
    for (int i = 0; i < LAYERS; i++) {
        const rssm_step *s = &p->layer[i].step;
        rssm_pooled conv = p->layers[i].conv;
        conv.data = p->conv[i].data;
        p->layers[i] = (rssm_pool_layer){
            .state = s->state, .d_cache = s->d_cache, .k_cache = s->k_cache, .g_cache = s->g_cache, .conv = conv};
        const rssm_pooled *tensors[REGIONS] = {&s->state, &s->d_cache, &s->k_cache, &s->g_cache, &conv};
        int64_t gates = s->family == RSSM_FAMILY_KDA ? s->K : 1;
        const int64_t width[REGIONS] = {(int64_t)s->HV * s->V * s->K, (int64_t)s->HV * s->R * s->V,
                                        (int64_t)s->H * s->R * s->K, s->HV * s->R * gates,
                                        (int64_t)CHANNELS * p->pool.conv_len};
        for (int j = 0; j < REGIONS; j++) {
            int64_t e = element_bytes(tensors[j]->dtype);
            p->regions[i * REGIONS + j] = (rssm_region){tensors[j]->data, tensors[j]->slot * e, width[j] * e};
        }
    }
    p->pool.regions = p->regions;
    p->pool.layers = p->layers;
    p->pool.cursor = p->cursor;
}

static void make_conv(pool_case *p, random_state *r, int i)
{
    int32_t io = p->layer[0].step.q.dtype;
    int64_t slot = CHANNELS * p->pool.conv_len + 8 * random_between(r, 0, 2), S = p->pool.S;
    p->layers[i].conv = (rssm_pooled){.slot = slot, .dtype = io};
    p->conv[i] = guarded_new(S * slot * element_bytes(io), 16 * random_between(r, 0, 3));
    for (int64_t j = 0; j < S * slot; j++)
        element_set(io, p->conv[i].data, j, random_normal(r));
}

/* The second layer: the same records, the opposite state. */
static void make_second_layer(pool_case *p)
{
    step_case_copy(&p->layer[1], &p->layer[0]);
    rssm_step *s = &p->layer[1].step;
    int64_t n = (int64_t)s->HV * s->V * s->K;
    for (int32_t b = 0; b < s->B; b++)
        for (int64_t i = 0; i < n; i++) {
            int64_t at = p->layer[1].rows[b].slot * s->state.slot + i;
            element_set(s->state.dtype, s->state.data, at, -element_get(s->state.dtype, s->state.data, at));
        }
}

static void pool_case_make(pool_case *p, random_state *r, const case_wish *wish)
{
    memset(p, 0, sizeof *p);
    case_wish with = *wish;
    with.drafts = (int32_t)random_between(r, 2, 5);
    with.no_padding = 1;
    step_case_make(&p->layer[0], r, &with);
    const rssm_step *s = &p->layer[0].step;
    p->pool = (rssm_pool){.num_regions = LAYERS * REGIONS,
                          .num_layers = LAYERS,
                          .family = s->family,
                          .H = s->H,
                          .HV = s->HV,
                          .K = s->K,
                          .V = s->V,
                          .L = s->L,
                          .R = s->R,
                          .conv_channels = CHANNELS,
                          .conv_len = WIDTH - 1 + with.drafts,
                          .conv_width = WIDTH,
                          .S = s->S,
                          .pad_slot = s->pad_slot,
                          .cursor_slot = CURSOR_ROW,
                          .spread_step = random_between(r, 0, 1) ? 1 : 0};
    make_second_layer(p);
    for (int i = 0; i < LAYERS; i++)
        make_conv(p, r, i);
    for (int32_t b = 0; b < s->B; b++) {
        const case_row *row = &p->layer[0].rows[b];
        const int32_t cursor[4] = {row->base, row->count, (int32_t)random_between(r, 0, p->pool.conv_len - 1),
                                   (int32_t)random_between(r, 0, s->L - 1)};
        memcpy(p->cursor + row->slot * CURSOR_ROW, cursor, sizeof cursor);
    }
    connect(p);
}

static void pool_case_copy(pool_case *to, const pool_case *from)
{
    *to = *from;
    for (int i = 0; i < LAYERS; i++) {
        step_case_copy(&to->layer[i], &from->layer[i]);
        to->conv[i] = guarded_new(from->conv[i].bytes, (from->conv[i].data - from->conv[i].raw) % 64);
        memcpy(to->conv[i].data, from->conv[i].data, (size_t)from->conv[i].bytes);
    }
    connect(to);
}

static void pool_case_free(pool_case *p)
{
    for (int i = 0; i < LAYERS; i++) {
        step_case_free(&p->layer[i]);
        guarded_free(&p->conv[i]);
    }
}

static void check_same(const pool_case *expected, const pool_case *got, const char *what)
{
    int differ = 0, intact = 1;
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < MEM_COUNT; j++)
            if (got->layer[i].mem[j].raw) {
                differ += memcmp(expected->layer[i].mem[j].data, got->layer[i].mem[j].data,
                                 (size_t)got->layer[i].mem[j].bytes) != 0;
                intact &= guarded_intact(&got->layer[i].mem[j]);
            }
        differ += memcmp(expected->conv[i].data, got->conv[i].data, (size_t)got->conv[i].bytes) != 0;
        intact &= guarded_intact(&got->conv[i]);
    }
    check(differ == 0, "%s: %d arrays differ from what they should be", what, differ);
    check(intact, "%s: guard bytes", what);
    check(memcmp(expected->cursor, got->cursor, sizeof got->cursor) == 0, "%s: cursors", what);
    check(expected->fault == got->fault, "%s: fault word %u, not %u", what, (unsigned)got->fault,
          (unsigned)expected->fault);
}

static void bind(void *ctx, const pool_case *p)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->bind(ctx, &p->pool, &err) == RSSM_OK, "bind: %s", err.message);
}

/* ---- slot lists ---- */

typedef struct slot_list {
    int64_t n;
    int64_t slot[MAX_ENTRIES]; /* -1: padding */
    int64_t raw[2 * MAX_ENTRIES];
    rssm_index index;
} slot_list;

/* Entries from the slots in use (or any), now and then padding or one named before. */
static void make_list(slot_list *list, const pool_case *p, random_state *r, int only_used, int with_twice)
{
    const rssm_step *s = &p->layer[0].step;
    int64_t order[MAX_SLOTS], usable = 0;
    for (int64_t slot = 0; slot < s->S; slot++)
        if (slot != s->pad_slot)
            order[usable++] = slot;
    if (only_used)
        for (usable = 0; usable < s->B; usable++)
            order[usable] = p->layer[0].rows[usable].slot;
    for (int64_t i = usable - 1; i > 0; i--) {
        int64_t j = random_between(r, 0, i), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
    const int64_t padding[] = {-1, s->S, INT32_MAX, INT32_MIN, s->pad_slot};
    list->n = random_between(r, 1, usable < MAX_ENTRIES ? usable : MAX_ENTRIES);
    list->index =
        (rssm_index){.data = list->raw, .stride = random_between(r, 1, 2), .bits = random_between(r, 0, 1) ? 32 : 64};
    for (int64_t i = 0; i < list->n; i++) {
        int64_t value = order[i];
        if (with_twice && i > 0 && random_between(r, 0, 5) == 0)
            value = list->slot[random_between(r, 0, i - 1)];
        list->slot[i] = value;
        if (value < 0 || random_between(r, 0, 6) == 0) {
            list->slot[i] = -1;
            value = padding[random_between(r, 0, 4)];
        }
        int32_t narrow = (int32_t)value;
        if (list->index.bits == 64)
            list->raw[i * list->index.stride] = value;
        else
            memcpy((char *)list->raw + 4 * i * list->index.stride, &narrow, 4);
    }
}

static int64_t times_in(const slot_list *list, int64_t slot)
{
    int64_t times = 0;
    for (int64_t i = 0; i < list->n; i++)
        times += list->slot[i] == slot;
    return times;
}

/* ---- copy, save, load ---- */

static char *region_of(const pool_case *p, int i, int64_t slot)
{
    return (char *)p->regions[i].data + slot * p->regions[i].slot_stride;
}

static void copy_slot(pool_case *to, int64_t dst, const pool_case *from, int64_t src)
{
    for (int i = 0; i < LAYERS * REGIONS; i++)
        memcpy(region_of(to, i, dst), region_of(from, i, src), (size_t)from->regions[i].slot_bytes);
    memcpy(to->cursor + dst * CURSOR_ROW, from->cursor + src * CURSOR_ROW, 16);
}

static void check_copy(void *ctx, const pool_case *before, random_state *r)
{
    pool_case expected, got;
    slot_list src, dst;
    pool_case_copy(&expected, before);
    pool_case_copy(&got, before);
    make_list(&src, before, r, 1, 1);
    make_list(&dst, before, r, 0, 1);
    src.n = dst.n = src.n < dst.n ? src.n : dst.n;
    if (random_between(r, 0, 3) == 0 && src.slot[0] >= 0)
        expected.cursor[src.slot[0] * CURSOR_ROW + 1] = got.cursor[src.slot[0] * CURSOR_ROW + 1] = before->pool.L + 1;
    pool_case source;
    pool_case_copy(&source, &expected);
    for (int64_t i = 0; i < src.n; i++) {
        int64_t from = src.slot[i], to = dst.slot[i];
        if (from < 0 && to < 0)
            continue;
        if (from < 0 || to < 0 || times_in(&dst, to) > 1 || times_in(&src, to) > 0)
            expected.fault |= RSSM_FAULTBIT_SLOTS;
        else if (source.cursor[from * CURSOR_ROW + 1] > before->pool.L)
            expected.fault |= RSSM_FAULTBIT_CURSOR;
        else
            copy_slot(&expected, to, &source, from);
    }
    rssm_slot_copy copy = {.n = src.n, .src = src.index, .dst = dst.index, .fault = &got.fault};
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, &got);
    check(rssm_cpu_backend()->copy(ctx, &copy, NULL, &err) == RSSM_OK, "copy: %s", err.message);
    check_same(&expected, &got, "copy");
    pool_case_free(&source);
    pool_case_free(&expected);
    pool_case_free(&got);
}

static void check_save_load(void *ctx, const pool_case *before, random_state *r)
{
    pool_case expected, got;
    pool_case_copy(&expected, before);
    pool_case_copy(&got, before);
    int64_t src = random_between(r, 0, before->pool.S - 1), dst = random_between(r, 0, before->pool.S - 1), bytes = 0;
    for (int i = 0; i < LAYERS * REGIONS; i++)
        bytes += before->regions[i].slot_bytes;
    guarded saved = guarded_new(bytes, 0);
    int32_t cursor[4];
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, &got);
    check(rssm_cpu_backend()->read_slot(ctx, src, cursor, saved.data, NULL, &err) == RSSM_OK, "read: %s", err.message);
    check_same(&expected, &got, "read_slot");
    int64_t at = 0, wrong = 0;
    for (int i = 0; i < LAYERS * REGIONS; at += before->regions[i++].slot_bytes)
        wrong += memcmp(saved.data + at, region_of(before, i, src), (size_t)before->regions[i].slot_bytes) != 0;
    check(wrong == 0 && guarded_intact(&saved), "read_slot: %lld regions are wrong", (long long)wrong);
    check(memcmp(cursor, before->cursor + src * CURSOR_ROW, 16) == 0, "read_slot: cursor");
    copy_slot(&expected, dst, before, src);
    check(rssm_cpu_backend()->write_slot(ctx, dst, cursor, saved.data, NULL, &err) == RSSM_OK, "write: %s",
          err.message);
    check_same(&expected, &got, "write_slot");
    guarded_free(&saved);
    pool_case_free(&expected);
    pool_case_free(&got);
}

/* ---- states ---- */

typedef struct states {
    guarded state[LAYERS], conv[LAYERS];
    rssm_state_layer layers[LAYERS];
    rssm_state_io io;
    slot_list list;
} states;

static void fill(guarded *g, random_state *r, int32_t dtype)
{
    for (int64_t i = 0; i < g->bytes / element_bytes(dtype); i++)
        element_set(dtype, g->data, i, random_normal(r));
}

static void make_states(states *x, pool_case *p, random_state *r, int is_import)
{
    const rssm_step *s = &p->layer[0].step;
    memset(x, 0, sizeof *x);
    make_list(&x->list, p, r, !is_import, 1);
    int32_t dtype = (int32_t)random_between(r, 1, 3), conv_dtype = (int32_t)random_between(r, 1, 3);
    int has_conv = random_between(r, 0, 2) > 0;
    int64_t row = (int64_t)s->HV * s->V * s->K + random_between(r, 0, 3);
    int64_t conv_row = CHANNELS * (WIDTH - 1) + random_between(r, 0, 3);
    for (int i = 0; i < LAYERS; i++) {
        x->state[i] = guarded_new(x->list.n * row * element_bytes(dtype), element_bytes(dtype));
        x->conv[i] = guarded_new(x->list.n * conv_row * element_bytes(conv_dtype), element_bytes(conv_dtype));
        if (is_import) {
            fill(&x->state[i], r, dtype);
            fill(&x->conv[i], r, conv_dtype);
        }
        x->layers[i] = (rssm_state_layer){.state = x->state[i].data,
                                          .state_row = row,
                                          .conv = has_conv ? x->conv[i].data : NULL,
                                          .conv_row = conv_row,
                                          .state_dtype = dtype,
                                          .conv_dtype = conv_dtype};
        if (!is_import && s->family == RSSM_FAMILY_MAMBA2)
            x->layers[i].decay = s->A_log;
    }
    x->io = (rssm_state_io){.n = x->list.n,
                            .slots = x->list.index,
                            .layers = x->layers,
                            .transposed = (int32_t)random_between(r, 0, 1),
                            .decay_is_A = (s->flags & RSSM_STEP_A_IS_DECAY) != 0,
                            .fault = &p->fault};
}

static void free_states(states *x)
{
    for (int i = 0; i < LAYERS; i++) {
        check(guarded_intact(&x->state[i]) && guarded_intact(&x->conv[i]), "guard bytes of states");
        guarded_free(&x->state[i]);
        guarded_free(&x->conv[i]);
    }
}

/* Element of states[i] that is state element n = (hv V + v) K + k. */
static int64_t other_index(const states *x, const rssm_step *s, int64_t i, int64_t n)
{
    int64_t k = n % s->K, v = n / s->K % s->V, hv = n / s->K / s->V;
    int64_t at = x->io.transposed ? (hv * s->K + k) * s->V + v : n;
    return i * x->layers[0].state_row + at;
}

/* The history's column i (0 = oldest) of a channel, in the ring whose next input goes to column `conv`. */
static int64_t ring_index(const pool_case *p, int64_t channel, int64_t conv, int64_t i)
{
    return channel * p->pool.conv_len + (conv + p->pool.conv_len - (WIDTH - 1) + i) % p->pool.conv_len;
}

static void import_expected(pool_case *e, const states *x, int64_t i)
{
    int64_t slot = x->list.slot[i];
    for (int l = 0; l < LAYERS; l++) {
        const rssm_step *s = &e->layer[l].step;
        const rssm_state_layer *from = &x->layers[l];
        const rssm_pooled *conv = &e->layers[l].conv;
        for (int64_t n = 0; n < (int64_t)s->HV * s->V * s->K; n++)
            element_set(s->state.dtype, s->state.data, slot * s->state.slot + n,
                        element_get(from->state_dtype, from->state, other_index(x, s, i, n)));
        for (int64_t n = 0; n < CHANNELS * e->pool.conv_len; n++)
            element_set(conv->dtype, conv->data, slot * conv->slot + n, 0);
        for (int64_t n = 0; from->conv && n < CHANNELS * (WIDTH - 1); n++)
            element_set(conv->dtype, conv->data, slot * conv->slot + ring_index(e, n / (WIDTH - 1), 0, n % (WIDTH - 1)),
                        element_get(from->conv_dtype, from->conv, i * from->conv_row + n));
    }
    const int32_t cursor[4] = {0, 0, 0, (int32_t)(slot % e->pool.L * e->pool.spread_step % e->pool.L)};
    memcpy(e->cursor + slot * CURSOR_ROW, cursor, sizeof cursor);
}

static void check_import(void *ctx, const pool_case *before, random_state *r)
{
    pool_case expected, got;
    states x;
    pool_case_copy(&expected, before);
    pool_case_copy(&got, before);
    make_states(&x, &got, r, 1);
    for (int64_t i = 0; i < x.list.n; i++) {
        if (x.list.slot[i] < 0)
            continue;
        if (times_in(&x.list, x.list.slot[i]) > 1)
            expected.fault |= RSSM_FAULTBIT_SLOTS;
        else
            import_expected(&expected, &x, i);
    }
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, &got);
    check(rssm_cpu_backend()->import_state(ctx, &x.io, NULL, &err) == RSSM_OK, "import: %s", err.message);
    check_same(&expected, &got, "import");
    free_states(&x);
    pool_case_free(&expected);
    pool_case_free(&got);
}

static int64_t row_of_slot(const pool_case *p, int64_t slot)
{
    for (int32_t b = 0; b < p->layer[0].step.B; b++)
        if (p->layer[0].rows[b].slot == slot)
            return b;
    return -1;
}

/* Entry i of one layer against the recurrence of the records. */
static void check_exported(const pool_case *p, const states *x, int64_t i, int l, const oracle *o, level_bars *bars)
{
    const rssm_step *s = &p->layer[l].step;
    const rssm_state_layer *to = &x->layers[l];
    int64_t n = (int64_t)s->HV * s->V * s->K, b = row_of_slot(p, x->list.slot[i]), bad = 0;
    for (int64_t j = 0; j < n; j++) {
        double got = element_get(to->state_dtype, to->state, other_index(x, s, i, j)), exact = o->state[b * n + j];
        double rounding = element_round(to->state_dtype, exact) - exact;
        bad += !is_near(to->state_dtype, got, exact, o->state_scale[b * n + j],
                        to->state_dtype == RSSM_DTYPE_FLOAT32 ? 1 : .51);
        bar *bar = &bars->state[to->state_dtype];
        bar->error += (got - exact) * (got - exact);
        bar->exact += exact * exact;
        bar->rounding += rounding * rounding;
        bar->n++;
    }
    check(bad == 0, "export: entry %lld: %lld elements are wrong", (long long)i, (long long)bad);
    const rssm_pooled *conv = &p->layers[l].conv;
    int64_t at = p->cursor[x->list.slot[i] * CURSOR_ROW + 2];
    for (int64_t j = 0; to->conv && j < CHANNELS * (WIDTH - 1); j++) {
        int64_t from = x->list.slot[i] * conv->slot + ring_index(p, j / (WIDTH - 1), at, j % (WIDTH - 1));
        double exact = element_round(to->conv_dtype, element_get(conv->dtype, conv->data, from));
        bad += element_get(to->conv_dtype, to->conv, i * to->conv_row + j) != exact;
    }
    check(bad == 0, "export: entry %lld: %lld columns are wrong", (long long)i, (long long)bad);
}

/* Rows of padding entries and of bad cursors: nothing is written. */
static void check_row_untouched(const states *x, int64_t i)
{
    int64_t changed = 0;
    for (int l = 0; l < LAYERS; l++) {
        int64_t bytes = x->layers[l].state_row * element_bytes(x->layers[l].state_dtype);
        for (int64_t j = 0; j < bytes; j++)
            changed += (unsigned char)x->state[l].data[i * bytes + j] != 0xff;
        bytes = x->layers[l].conv_row * element_bytes(x->layers[l].conv_dtype);
        for (int64_t j = 0; j < bytes; j++)
            changed += (unsigned char)x->conv[l].data[i * bytes + j] != 0xff;
    }
    check(changed == 0, "export: entry %lld: %lld bytes were written for a slot passed over", (long long)i,
          (long long)changed);
}

static void check_export(void *ctx, const pool_case *before, random_state *r, level_bars *bars)
{
    pool_case expected, got;
    states x;
    oracle o[LAYERS];
    pool_case_copy(&expected, before);
    pool_case_copy(&got, before);
    make_states(&x, &got, r, 0);
    int64_t bad = random_between(r, 0, 3) == 0 ? x.list.slot[0] : -1;
    if (bad >= 0) {
        expected.cursor[bad * CURSOR_ROW] = got.cursor[bad * CURSOR_ROW] = -1;
        expected.fault = RSSM_FAULTBIT_CURSOR;
    }
    for (int l = 0; l < LAYERS; l++)
        oracle_fold(&o[l], &before->layer[l]);
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, &got);
    check(rssm_cpu_backend()->export_state(ctx, &x.io, NULL, &err) == RSSM_OK, "export: %s", err.message);
    check_same(&expected, &got, "export");
    for (int64_t i = 0; i < x.list.n; i++) {
        if (x.list.slot[i] < 0 || x.list.slot[i] == bad)
            check_row_untouched(&x, i);
        for (int l = 0; l < LAYERS && x.list.slot[i] >= 0 && x.list.slot[i] != bad; l++)
            check_exported(before, &x, i, l, &o[l], bars);
    }
    for (int l = 0; l < LAYERS; l++)
        oracle_free(&o[l]);
    free_states(&x);
    pool_case_free(&expected);
    pool_case_free(&got);
}

/* A flush leaves what an export of the same type gives, bit by bit. */
static void flush_expected(void *ctx, pool_case *e, int64_t slot)
{
    int64_t one = slot;
    int32_t *cursor = e->cursor + slot * CURSOR_ROW;
    rssm_state_layer layers[LAYERS];
    void *state[LAYERS];
    const rssm_step *s = &e->layer[0].step;
    int64_t n = (int64_t)s->HV * s->V * s->K, element = element_bytes(s->state.dtype);
    for (int l = 0; l < LAYERS; l++) {
        state[l] = malloc((size_t)(n * element));
        layers[l] = (rssm_state_layer){.state = state[l], .state_row = n, .state_dtype = s->state.dtype};
        if (s->family == RSSM_FAMILY_MAMBA2)
            layers[l].decay = s->A_log;
    }
    rssm_state_io io = {.n = 1,
                        .slots = {.data = &one, .stride = 1, .bits = 64},
                        .layers = layers,
                        .decay_is_A = (s->flags & RSSM_STEP_A_IS_DECAY) != 0};
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, e);
    rssm_cpu_backend()->export_state(ctx, &io, NULL, &err);
    for (int l = 0; l < LAYERS; l++) {
        memcpy((char *)e->layer[l].step.state.data + slot * s->state.slot * element, state[l], (size_t)(n * element));
        free(state[l]);
    }
    cursor[0] = (cursor[0] + cursor[1]) % e->pool.R;
    cursor[1] = cursor[3] = 0;
}

static void check_flush(void *ctx, const pool_case *before, random_state *r)
{
    pool_case expected, got;
    states x;
    pool_case_copy(&expected, before);
    pool_case_copy(&got, before);
    make_states(&x, &got, r, 0);
    for (int l = 0; l < LAYERS; l++)
        x.layers[l].state = x.layers[l].conv = NULL;
    int64_t bad = random_between(r, 0, 3) == 0 && times_in(&x.list, x.list.slot[0]) == 1 ? x.list.slot[0] : -1;
    if (bad >= 0)
        expected.cursor[bad * CURSOR_ROW + 1] = got.cursor[bad * CURSOR_ROW + 1] = before->pool.L + 1;
    for (int64_t i = 0; i < x.list.n; i++) {
        if (x.list.slot[i] < 0)
            continue;
        if (times_in(&x.list, x.list.slot[i]) > 1)
            expected.fault |= RSSM_FAULTBIT_SLOTS;
        else if (x.list.slot[i] == bad)
            expected.fault |= RSSM_FAULTBIT_CURSOR;
        else
            flush_expected(ctx, &expected, x.list.slot[i]);
    }
    rssm_error err = {.struct_size = sizeof err};
    bind(ctx, &got);
    check(rssm_cpu_backend()->flush(ctx, &x.io, NULL, &err) == RSSM_OK, "flush: %s", err.message);
    check_same(&expected, &got, "flush");
    free_states(&x);
    pool_case_free(&expected);
    pool_case_free(&got);
}

/* ---- all ---- */

static void one_case(const level_under_test *level, void *const ctx[2], uint64_t seed, int is_large, level_bars *bars)
{
    static const char *const families[] = {"none", "kda", "gdn", "mamba2"};
    random_state r = {seed};
    case_wish wish = {.family = 1 + (int32_t)(seed % 3), .H = 2, .B = (int32_t)random_between(&r, 2, 6)};
    if (is_large) {
        wish.K = wish.V = 64;
        wish.group = 2;
    } else {
        wish.K = (int32_t)random_between(&r, 1, 70);
        wish.V = (int32_t)random_between(&r, 1, 70);
    }
    pool_case p;
    pool_case_make(&p, &r, &wish);
    const rssm_step *s = &p.layer[0].step;
    check_context("%s %s slots S=%d HV=%d K=%d V=%d L=%d R=%d io=%s state=%s ring=%s case %llu", level->name,
                  families[s->family], (int)s->S, s->HV, s->K, s->V, s->L, s->R, element_name(s->q.dtype),
                  element_name(s->state.dtype), element_name(s->d_cache.dtype), (unsigned long long)seed);
    for (int threads = 0; threads < 2; threads++) {
        random_state again = r;
        check_copy(ctx[threads], &p, &again);
        check_save_load(ctx[threads], &p, &again);
        check_import(ctx[threads], &p, &again);
        check_export(ctx[threads], &p, &again, bars);
        check_flush(ctx[threads], &p, &again);
    }
    pool_case_free(&p);
}

void check_slots(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    int32_t n = available_levels(levels);
    uint64_t seed = options->seed * 1000000 + 13000;
    for (int32_t i = 0; i < n; i++) {
        void *ctx[2] = {open_level(&levels[i], 1), open_level(&levels[i], 2 + i)};
        level_bars bars;
        memset(&bars, 0, sizeof bars);
        for (uint64_t j = 0; j < (options->is_long ? 1000 : 60); j++)
            one_case(&levels[i], ctx, seed + j, j % 10 == 0, &bars);
        check_context("%s exports", levels[i].name);
        bars_check(&levels[i], &bars);
        rssm_cpu_backend()->close(ctx[0]);
        rssm_cpu_backend()->close(ctx[1]);
    }
}
