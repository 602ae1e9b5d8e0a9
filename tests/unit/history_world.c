#include "history.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONV = DC_POOL_COUNT, TENSORS = DC_POOL_COUNT + 1 /* of a layer */ };

/* ---- saying what happened --------------------------------------------------------------------------------------- */

uint32_t hi_deep(hi_world *w)
{
    return w->faults == 0 && hi_one_in(w, 5) ? RSSM_CHECK_DEEP : 0;
}

void hi_log(hi_world *w, const char *format, ...)
{
    char *line = w->log[w->logged++ % HI_LOG];
    int length = snprintf(line, sizeof w->log[0], "%*s%lld: ", 2 * w->depth, "", (long long)w->op);
    va_list args;
    va_start(args, format);
    vsnprintf(line + length, sizeof w->log[0] - (size_t)length, format, args);
    va_end(args);
}

static const char *dtype_name(int32_t dtype)
{
    static const char *const names[] = {"?", "fp32", "bf16", "fp16"};
    return names[dtype];
}

static void print_world(const hi_world *w)
{
    static const char *const families[] = {"?", "kda", "gdn", "mamba2"};
    const h_spec *s = &w->c->spec;
    fprintf(stderr,
            "seed %llu: %s %s, H %d HV %d K %d V %d, L %d R %d drafts %d, layers %d, S %d, io %s state %s ring %s, "
            "%s%s%s%s\n",
            (unsigned long long)w->seed, families[s->family], dc_engine_name(w->c->options.engine), (int)s->H,
            (int)s->HV, (int)s->K, (int)s->V, (int)s->L, (int)w->c->R, (int)s->drafts, (int)s->layers, (int)s->S,
            dtype_name(s->io), dtype_name(s->state), dtype_name(s->ring), w->trajectory ? "trajectory" : "step-local",
            w->conv_api ? ", conv" : "", w->c->options.spread ? ", spread" : "",
            w->c->options.has_pad_slot ? ", pad slot" : "");
    for (int64_t i = w->logged > HI_LOG ? w->logged - HI_LOG : 0; i < w->logged; i++)
        fprintf(stderr, "  %s\n", w->log[i % HI_LOG]);
}

void hi_fail(const hi_world *w, int64_t slot, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_world(w);
    fprintf(stderr, "  operation %lld, slot %lld: %s\n", (long long)w->op, (long long)slot, text);
    if (getenv("RSSM_HISTORY_BARE")) /* not within Check: test_history --shrink */
        _Exit(1);
    ck_abort_msg("seed %llu, operation %lld, slot %lld: %s", (unsigned long long)w->seed, (long long)w->op,
                 (long long)slot, text);
    abort();
}

void hi_status(const hi_world *w, int64_t slot, const char *call, rssm_status got, rssm_status want,
               const rssm_error *err)
{
    hi_check(w, slot, got == want, "%s gives %s, not %s: %s", call, h_api()->status_name(got),
             h_api()->status_name(want), got ? err->message : "");
}

/* ---- choices ---------------------------------------------------------------------------------------------------- */

int64_t hi_pick(hi_world *w, int64_t n)
{
    return n > 0 ? (int64_t)(h_random(&w->random) % (uint64_t)n) : 0;
}

bool hi_one_in(hi_world *w, int64_t n)
{
    return hi_pick(w, n) == 0;
}

/* ---- slots ------------------------------------------------------------------------------------------------------ */

int64_t hi_state_size(const hi_world *w)
{
    return rec_state_size(&w->c->model);
}

double *hi_state(const hi_world *w, const hi_slot *slot, int32_t layer)
{
    return slot->state + layer * hi_state_size(w);
}

double *hi_past(const hi_world *w, const hi_slot *slot, int32_t layer)
{
    return slot->past + layer * (HI_CONV_WIDTH - 1) * w->channels;
}

bool hi_is_slot(const hi_world *w, int64_t slot)
{
    const dc_options *o = &w->c->options;
    return slot >= 0 && slot < w->c->spec.S && !(o->has_pad_slot && slot == o->pad_slot);
}

bool hi_is_alive(const hi_world *w, int64_t slot)
{
    return hi_is_slot(w, slot) && w->slots[slot].alive;
}

static void slot_alloc(const hi_world *w, hi_slot *slot)
{
    size_t layers = (size_t)w->c->spec.layers;
    slot->state = calloc(layers * (size_t)hi_state_size(w) + 1, sizeof(double));
    slot->past = calloc(layers * (HI_CONV_WIDTH - 1) * (size_t)w->channels + 1, sizeof(double));
    dc_assert(slot->state && slot->past);
}

void hi_slot_copy(const hi_world *w, hi_slot *to, const hi_slot *from)
{
    size_t layers = (size_t)w->c->spec.layers;
    double *state = to->state, *past = to->past;
    if (!state) {
        slot_alloc(w, to);
        state = to->state;
        past = to->past;
    }
    *to = *from;
    to->state = memcpy(state, from->state, layers * (size_t)hi_state_size(w) * sizeof(double));
    to->past = memcpy(past, from->past, layers * (HI_CONV_WIDTH - 1) * (size_t)w->channels * sizeof(double));
}

void hi_slot_free(hi_slot *slot)
{
    free(slot->state);
    free(slot->past);
    memset(slot, 0, sizeof *slot);
}

/* ---- the pool's bytes ------------------------------------------------------------------------------------------- */

static h_tensor *tensor_of(const hi_world *w, int32_t layer, int which)
{
    return which == CONV ? &w->c->conv[layer] : dc_pool(w->c, layer, which);
}

static bool has_tensor(const hi_world *w, int which)
{
    return which != CONV || w->conv_api;
}

static unsigned char **before_of(const hi_world *w, int32_t layer, int which)
{
    return &w->before[layer * TENSORS + which];
}

/* Bytes of one slot of a tensor, and where they start in it. */
static size_t slot_bytes(const hi_world *w, int which)
{
    if (which == CONV)
        return (size_t)(w->channels * w->columns * rec_dtype_bytes(w->c->spec.io));
    return (size_t)(dc_pool_inner(w->c, which) * rec_dtype_bytes(dc_pool_dtype(w->c, which)));
}

static size_t slot_offset(const hi_world *w, int32_t layer, int which, int64_t slot)
{
    const h_tensor *t = tensor_of(w, layer, which);
    return (size_t)((unsigned char *)h_at(&t->t, slot, 0, 0, 0) - (unsigned char *)t->t.data);
}

static int64_t record_heads(const hi_world *w, int which)
{
    return which == DC_POOL_K ? w->c->spec.H : w->c->spec.HV;
}

/* Puts back into `after` what the operation was allowed to change. */
static void forgive_ring(const hi_world *w, const hi_change *change, int which, unsigned char *after,
                         const unsigned char *before)
{
    int64_t width = rec_dtype_bytes(dc_pool_dtype(w->c, which));
    size_t bytes = (size_t)(dc_record_size(w->c, which) * width);
    for (int64_t head = 0; head < record_heads(w, which); head++)
        for (int32_t i = 0; i < change->ring_count; i++) {
            int64_t at = dc_record_at(w->c, which, head, (change->ring_first + i) % w->c->R) * width;
            memcpy(after + at, before + at, bytes);
        }
}

static void forgive_conv(const hi_world *w, const hi_change *change, unsigned char *after, const unsigned char *before)
{
    int64_t width = rec_dtype_bytes(w->c->spec.io);
    for (int64_t channel = 0; channel < w->channels; channel++)
        for (int32_t i = 0; i < change->conv_count; i++) {
            int64_t at = (channel * w->columns + (change->conv_first + i) % w->columns) * width;
            memcpy(after + at, before + at, (size_t)width);
        }
}

static void forgive(const hi_world *w, const hi_change *change, int which, unsigned char *after,
                    const unsigned char *before)
{
    if (change->all || (which == DC_POOL_STATE && change->state))
        memcpy(after, before, slot_bytes(w, which));
    else if (which == CONV)
        forgive_conv(w, change, after, before);
    else if (which != DC_POOL_STATE)
        forgive_ring(w, change, which, after, before);
}

static int64_t slot_at(const hi_world *w, int32_t layer, int which, size_t at)
{
    int64_t slot = w->c->spec.S - 1;
    while (slot > 0 && slot_offset(w, layer, which, slot) > at)
        slot--;
    return slot;
}

static void check_tensor(const hi_world *w, int32_t layer, int which)
{
    static const char *const names[TENSORS] = {"state", "d_cache", "k_cache", "g_cache", "conv"};
    const h_tensor *t = tensor_of(w, layer, which);
    const unsigned char *before = *before_of(w, layer, which);
    unsigned char *after = malloc(t->bytes + 1);
    dc_assert(after);
    memcpy(after, t->t.data, t->bytes);
    for (int64_t slot = 0; slot < w->c->spec.S; slot++) {
        size_t offset = slot_offset(w, layer, which, slot);
        forgive(w, &w->change[slot], which, after + offset, before + offset);
    }
    for (size_t at = 0; memcmp(after, before, t->bytes) != 0; at++)
        hi_check(w, slot_at(w, layer, which, at), after[at] == before[at],
                 "%s of layer %d: byte %zu of the slot changed, which must not", names[which], (int)layer,
                 at - slot_offset(w, layer, which, slot_at(w, layer, which, at)));
    free(after);
}

/* The pool's cursors against the model's; those of dead slots stay as they are. `short` is the plugin's own affair where a
 * slot starts anew, and 0 from its first flush on. */
static void check_cursors(hi_world *w)
{
    const unsigned char *before = w->before[w->c->spec.layers * TENSORS];
    for (int64_t i = 0; i < w->c->spec.S; i++) {
        hi_slot *slot = &w->slots[i];
        const int32_t *got = dc_cursor(w->c, i);
        if (!slot->alive && w->change[i].all)
            continue;
        if (!slot->alive) {
            size_t offset = (size_t)((const unsigned char *)got - (const unsigned char *)w->c->cursor.t.data);
            hi_check(w, i, memcmp(got, before + offset, 4 * sizeof *got) == 0, "cursor of a dead slot changed");
            continue;
        }
        bool anew = w->change[i].all, right = got[3] == slot->shortened;
        if (anew)
            right = got[3] == 0 || (w->c->options.spread && got[3] > 0 && got[3] < w->c->spec.L);
        else if (w->change[i].state)
            right = right || got[3] == 0;
        hi_check(w, i, got[0] == slot->base && got[1] == slot->count && got[2] == slot->conv && right,
                 "cursor {%d, %d, %d, %d}, not {%d, %d, %d, %d}", got[0], got[1], got[2], got[3], slot->base,
                 slot->count, slot->conv, slot->shortened);
        slot->shortened = got[3];
    }
}

static void poison_rows(const hi_world *w, int32_t layer, int64_t slot)
{
    const hi_slot *is = &w->slots[slot];
    for (int which = DC_POOL_D; which < DC_POOL_COUNT; which++) {
        int64_t width = rec_dtype_bytes(dc_pool_dtype(w->c, which));
        size_t bytes = (size_t)(dc_record_size(w->c, which) * width);
        for (int64_t j = is->count + is->pending; j < w->c->R; j++)
            for (int64_t head = 0; head < record_heads(w, which); head++)
                memset((char *)dc_slot(w->c, layer, which, slot) +
                           dc_record_at(w->c, which, head, (is->base + j) % w->c->R) * width,
                       0xFF, bytes);
    }
}

/* Alive are the w - 1 columns behind the next one, and those of pending drafts. */
static void poison_columns(const hi_world *w, int32_t layer, int64_t slot)
{
    const hi_slot *is = &w->slots[slot];
    int64_t width = rec_dtype_bytes(w->c->spec.io);
    unsigned char *data = h_at(&w->c->conv[layer].t, slot, 0, 0, 0);
    for (int64_t j = is->pending; j < w->columns - (HI_CONV_WIDTH - 1); j++)
        for (int64_t channel = 0; channel < w->channels; channel++)
            memset(data + (channel * w->columns + (is->conv + j) % w->columns) * width, 0xFF, (size_t)width);
}

static void poison(hi_world *w)
{
    for (int64_t slot = 0; slot < w->c->spec.S; slot++)
        for (int32_t layer = 0; w->slots[slot].alive && layer < w->c->spec.layers; layer++) {
            poison_rows(w, layer, slot);
            if (w->conv_api)
                poison_columns(w, layer, slot);
        }
}

void hi_kill(hi_world *w, int64_t slot)
{
    static const int32_t garbage[4] = {-7, 99, -1, 77};
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
        for (int which = 0; which < TENSORS; which++)
            if (has_tensor(w, which))
                memset(h_at(&tensor_of(w, layer, which)->t, slot, 0, 0, 0), 0xFF, slot_bytes(w, which));
    memcpy(dc_cursor(w->c, slot), garbage, sizeof garbage);
    w->slots[slot].alive = false;
}

/* ---- operations ------------------------------------------------------------------------------------------------- */

void hi_begin(hi_world *w)
{
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
        for (int which = 0; which < TENSORS; which++)
            if (has_tensor(w, which))
                memcpy(*before_of(w, layer, which), tensor_of(w, layer, which)->t.data,
                       tensor_of(w, layer, which)->bytes);
    memcpy(w->before[w->c->spec.layers * TENSORS], w->c->cursor.t.data, w->c->cursor.bytes);
    memset(w->change, 0, sizeof w->change);
    w->faults = 0;
}

void hi_end(hi_world *w)
{
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
        for (int which = 0; which < TENSORS; which++)
            if (has_tensor(w, which))
                check_tensor(w, layer, which);
    check_cursors(w);
    uint32_t faults = dc_fault(w->c);
    hi_check(w, -1, faults == w->faults, "fault word 0x%x, not 0x%x", faults, w->faults);
    poison(w);
    w->figures->ops++;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void make_conv(hi_world *w)
{
    const h_spec *s = &w->c->spec;
    size_t layers = (size_t)s->layers;
    w->conv_in = calloc(layers, sizeof *w->conv_in);
    w->conv_weight = calloc(layers, sizeof *w->conv_weight);
    w->conv_bias = calloc(layers, sizeof *w->conv_bias);
    dc_assert(w->conv_in && w->conv_weight && w->conv_bias);
    if (!w->conv_api)
        return;
    const int64_t in[2] = {s->B, w->channels}, flat[2] = {w->channels, HI_CONV_WIDTH},
                  deep[3] = {w->channels, 1, HI_CONV_WIDTH};
    bool bias = hi_pick(w, 3) > 0, flattened = hi_one_in(w, 2);
    for (int32_t layer = 0; layer < s->layers; layer++) {
        h_tensor_make(&w->conv_in[layer], h_float_type(s->io), 2, in, s->row_gap);
        h_tensor_make(&w->conv_weight[layer], h_float_type(s->weights), flattened ? 2 : 3, flattened ? flat : deep, 0);
        h_fill_random(&w->conv_weight[layer].t, -.6, .6, &w->random);
        if (!bias)
            continue;
        h_tensor_make(&w->conv_bias[layer], h_float_type(s->weights), 1, in + 1, 0);
        h_fill_random(&w->conv_bias[layer].t, -.2, .2, &w->random);
    }
}

static void make_pictures(hi_world *w)
{
    int32_t layers = w->c->spec.layers;
    w->before = calloc((size_t)layers * TENSORS + 1, sizeof *w->before);
    dc_assert(w->before);
    for (int32_t layer = 0; layer < layers; layer++)
        for (int which = 0; which < TENSORS; which++) {
            *before_of(w, layer, which) = has_tensor(w, which) ? malloc(tensor_of(w, layer, which)->bytes + 1) : NULL;
            dc_assert(!has_tensor(w, which) || *before_of(w, layer, which));
        }
    w->before[layers * TENSORS] = malloc(w->c->cursor.bytes + 1);
    dc_assert(w->before[layers * TENSORS]);
}

/* dc_new has made the states random: slots start as requests that were prefilled elsewhere. */
static void make_slots(hi_world *w)
{
    for (int64_t i = 0; i < w->c->spec.S; i++) {
        hi_slot *slot = &w->slots[i];
        slot_alloc(w, slot);
        slot->alive = hi_is_slot(w, i);
        slot->shortened = dc_cursor(w->c, i)[3];
        for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
            for (int64_t x = 0; x < hi_state_size(w); x++)
                hi_state(w, slot, layer)[x] = rec_load(w->c->spec.state, dc_slot(w->c, layer, DC_POOL_STATE, i), x);
        if (!slot->alive || hi_one_in(w, 3))
            hi_kill(w, i);
    }
}

hi_world *hi_new(const dc_options *options, bool trajectory, bool exact, uint64_t seed, hi_figures *figures)
{
    hi_world *w = calloc(1, sizeof *w);
    dc_assert(w);
    w->c = dc_new(options, seed);
    w->slots_api = h_api()->get_extension(RSSM_EXT_SLOTS);
    w->verify_api = options->spec.drafts > 0 ? h_api()->get_extension(RSSM_EXT_VERIFY) : NULL;
    w->conv_api = options->conv ? h_api()->get_extension(RSSM_EXT_CONV) : NULL;
    dc_assert(w->slots_api && (w->verify_api || !options->spec.drafts) && (w->conv_api || !options->conv));
    dc_assert(w->c->spec.S <= HI_MAX_SLOTS);
    w->trajectory = trajectory;
    w->exact = exact;
    w->seed = w->random = seed;
    w->figures = figures;
    w->channels = 2 * dc_inner(w->c, DC_K) + dc_inner(w->c, DC_V);
    w->columns = w->conv_api ? w->c->conv[0].shape[2] : 1;
    w->result = dc_result_new(w->c);
    w->scratch = calloc((size_t)hi_state_size(w), sizeof *w->scratch);
    make_conv(w);
    make_pictures(w);
    make_slots(w);
    poison(w);
    return w;
}

void hi_free(hi_world *w)
{
    int32_t layers = w->c->spec.layers;
    for (int32_t i = 0; i <= layers * TENSORS; i++)
        free(w->before[i]);
    for (int32_t layer = 0; layer < layers && w->conv_api; layer++) {
        dc_assert(h_tensor_guarded(&w->conv_in[layer]) && h_tensor_guarded(&w->conv_weight[layer]));
        h_tensor_free(&w->conv_in[layer]);
        h_tensor_free(&w->conv_weight[layer]);
        h_tensor_free(&w->conv_bias[layer]);
    }
    for (int i = 0; i < HI_MAX_SLOTS; i++)
        hi_slot_free(&w->slots[i]);
    for (int i = 0; i < HI_VAULT; i++) {
        free(w->vault[i].bytes);
        hi_slot_free(&w->vault[i].slot);
    }
    dc_result_free(&w->result);
    free(w->scratch);
    free(w->conv_in);
    free(w->conv_weight);
    free(w->conv_bias);
    free(w->before);
    dc_free(w->c);
    free(w);
}
