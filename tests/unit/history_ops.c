/* What a server does to slots besides decoding, and the choice of the next operation. */
#include "history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 8 };

/* ---- lists of slots --------------------------------------------------------------------------------------------- */

void hi_make_list(hi_world *w, h_tensor *list, const int64_t *values, int64_t n)
{
    const int64_t shape[1] = {n};
    h_tensor_make(list, h_int_type(hi_one_in(w, 2) ? 32 : 64), 1, shape, hi_one_in(w, 3) ? 3 : 0);
    for (int64_t i = 0; i < n; i++)
        h_set(&list->t, i, 0, 0, 0, (double)values[i]);
}

bool hi_some_alive(hi_world *w, int64_t *slot)
{
    int64_t first = hi_pick(w, w->c->spec.S);
    for (int64_t i = 0; i < w->c->spec.S; i++) {
        *slot = (first + i) % w->c->spec.S;
        if (w->slots[*slot].alive)
            return true;
    }
    return false;
}

static int64_t some_padding(hi_world *w)
{
    const int64_t padding[] = {-1, w->c->spec.S, w->c->spec.S + 1000,
                               w->c->options.has_pad_slot ? w->c->options.pad_slot : -3};
    return padding[hi_pick(w, 4)];
}

static bool contains(const int64_t *list, int64_t n, int64_t value)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

static int64_t times(const int64_t *list, int64_t n, int64_t value)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += list[i] == value;
    return count;
}

/* Slots for an operation, dead ones one time in `dead` (0: never), padding in between, and rarely one twice. */
static int64_t pick_list(hi_world *w, int64_t *list, int64_t dead, bool twice)
{
    int64_t n = 0, want = 1 + hi_pick(w, 4);
    for (int64_t tries = 0; n < want && tries < 20; tries++) {
        int64_t slot = hi_pick(w, w->c->spec.S);
        if (hi_one_in(w, 10))
            list[n++] = some_padding(w);
        else if (hi_is_slot(w, slot) && !contains(list, n, slot) &&
                 (w->slots[slot].alive || (dead > 0 && hi_one_in(w, dead))))
            list[n++] = slot;
    }
    if (twice && n > 0 && hi_one_in(w, 25)) {
        list[n] = list[hi_pick(w, n)];
        n++;
    }
    return n;
}

/* A list of slots that the call writes: one that appears twice is passed over. */
static bool is_written(hi_world *w, const int64_t *list, int64_t n, int64_t i)
{
    if (!hi_is_slot(w, list[i]))
        return false;
    if (times(list, n, list[i]) == 1)
        return true;
    w->faults |= RSSM_FAULT_SLOTS;
    return false;
}

static void log_list(hi_world *w, const char *name, const int64_t *list, int64_t n)
{
    char text[96] = "";
    size_t length = 0;
    for (int64_t i = 0; i < n && length < sizeof text - 16; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, " %d", (int)list[i]);
    hi_log(w, "%s%s", name, text);
}

/* ---- a fresh slot ----------------------------------------------------------------------------------------------- */

static void empty_slot(hi_world *w, int64_t i)
{
    hi_slot *slot = &w->slots[i];
    slot->alive = true;
    slot->base = slot->count = slot->conv = slot->shortened = slot->pending = 0;
    memset(slot->state, 0, (size_t)(w->c->spec.layers * hi_state_size(w)) * sizeof *slot->state);
    memset(slot->past, 0, (size_t)(w->c->spec.layers * (HI_CONV_WIDTH - 1) * w->channels) * sizeof *slot->past);
    w->change[i].all = true;
}

static void op_reset(hi_world *w)
{
    int64_t list[MAX_LIST], n = pick_list(w, list, 1, false);
    bool all = hi_one_in(w, 30);
    h_tensor slots = {0};
    hi_begin(w);
    hi_make_list(w, &slots, list, n);
    const rssm_reset_args args = {.struct_size = sizeof args, .slots = all ? NULL : &slots.t};
    rssm_error err = h_error();
    log_list(w, all ? "reset all, not" : "reset", list, n);
    hi_status(w, -1, "reset", h_api()->reset(w->c->plugin, &args, &err), RSSM_OK, &err);
    for (int64_t i = 0; i < w->c->spec.S; i++) {
        if (hi_is_slot(w, i) && (all || contains(list, n, i)))
            empty_slot(w, i);
        w->change[i].all = w->change[i].all || all;
    }
    hi_end(w);
    if (all && w->c->options.has_pad_slot)
        hi_kill(w, w->c->options.pad_slot);
    h_tensor_free(&slots);
}

/* ---- import, export, flush -------------------------------------------------------------------------------------- */

/* Materialised states of all layers, and the convolution's pasts. */
typedef struct states {
    h_tensor slots;
    h_tensor *states, *conv; /* [layers]; conv NULL: none */
    const DLTensor *states_of[8], *conv_of[8], *decay_of[8];
    rssm_state_args args;
    bool transposed;
} states;

static int32_t some_dtype(hi_world *w)
{
    return (int32_t)(RSSM_DTYPE_FLOAT32 + hi_pick(w, 3));
}

static void states_make(hi_world *w, states *s, const int64_t *list, int64_t n)
{
    const h_spec *spec = &w->c->spec;
    s->transposed = hi_one_in(w, 2);
    const int64_t shape[4] = {n, spec->HV, s->transposed ? spec->K : spec->V, s->transposed ? spec->V : spec->K};
    const int64_t conv_shape[3] = {n, w->channels, HI_CONV_WIDTH - 1};
    bool with_conv = w->conv_api && hi_pick(w, 4) > 0;
    int32_t dtype = some_dtype(w), conv_dtype = some_dtype(w);
    int64_t gap = hi_pick(w, 3) * 5;
    hi_make_list(w, &s->slots, list, n);
    s->states = calloc((size_t)spec->layers, sizeof *s->states);
    s->conv = with_conv ? calloc((size_t)spec->layers, sizeof *s->conv) : NULL;
    dc_assert(s->states && (!with_conv || s->conv) && spec->layers <= 8);
    for (int32_t layer = 0; layer < spec->layers; layer++) {
        h_tensor_make(&s->states[layer], h_float_type(dtype), 4, shape, gap);
        s->states_of[layer] = &s->states[layer].t;
        if (!with_conv)
            continue;
        h_tensor_make(&s->conv[layer], h_float_type(conv_dtype), 3, conv_shape, gap);
        s->conv_of[layer] = &s->conv[layer].t;
    }
    s->args = (rssm_state_args){.struct_size = sizeof s->args,
                                .slots = &s->slots.t,
                                .states = s->states_of,
                                .conv = with_conv ? s->conv_of : NULL,
                                .num_layers = (uint32_t)spec->layers,
                                .order = s->transposed ? RSSM_STATE_KV : RSSM_STATE_VK};
}

static void states_free(const hi_world *w, states *s)
{
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
        dc_assert(h_tensor_guarded(&s->states[layer]) && (!s->conv || h_tensor_guarded(&s->conv[layer])));
        h_tensor_free(&s->states[layer]);
        if (s->conv)
            h_tensor_free(&s->conv[layer]);
    }
    h_tensor_free(&s->slots);
    free(s->states);
    free(s->conv);
}

/* Element x of a slot's state ([HV V K], the model's order) in row i. */
static double state_get(const hi_world *w, const states *s, int32_t layer, int64_t i, int64_t x)
{
    const h_spec *spec = &w->c->spec;
    int64_t k = x % spec->K, v = x / spec->K % spec->V, hv = x / spec->K / spec->V;
    return h_get(&s->states[layer].t, i, hv, s->transposed ? k : v, s->transposed ? v : k);
}

/* Mamba-2's layers give their decay weights: the ring holds dt alone. */
static void add_decay(const hi_world *w, const DLTensor **decay, const DLTensor *const **A_log,
                      const DLTensor *const **A)
{
    if (w->c->spec.family != RSSM_FAMILY_MAMBA2)
        return;
    bool is_A = w->c->options.decay;
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
        decay[layer] = w->c->calls[layer]->roles[is_A ? RSSM_T_A_DECAY : RSSM_T_A_LOG];
    *(is_A ? A : A_log) = decay;
}

static void take_import(hi_world *w, const states *s, int64_t i, int64_t slot)
{
    empty_slot(w, slot);
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
        for (int64_t x = 0; x < hi_state_size(w); x++)
            hi_state(w, &w->slots[slot], layer)[x] = rec_round(w->c->spec.state, state_get(w, s, layer, i, x));
        double *past = hi_past(w, &w->slots[slot], layer);
        for (int64_t column = 0; s->conv && column < HI_CONV_WIDTH - 1; column++)
            for (int64_t c = 0; c < w->channels; c++)
                past[column * w->channels + c] = rec_round(w->c->spec.io, h_get(&s->conv[layer].t, i, c, column, 0));
    }
}

static void op_import(hi_world *w)
{
    int64_t list[MAX_LIST], n = pick_list(w, list, 1, true);
    states s = {0};
    if (n == 0)
        return;
    hi_begin(w);
    log_list(w, "import", list, n);
    states_make(w, &s, list, n);
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
        h_fill_random(&s.states[layer].t, -1, 1, &w->c->random);
        if (s.conv)
            h_fill_random(&s.conv[layer].t, -2, 2, &w->c->random);
    }
    rssm_error err = h_error();
    hi_status(w, -1, "import_state", w->slots_api->import_state(w->c->plugin, &s.args, &err), RSSM_OK, &err);
    for (int64_t i = 0; i < n; i++)
        if (is_written(w, list, n, i))
            take_import(w, &s, i, list[i]);
    hi_end(w);
    states_free(w, &s);
}

static void check_export_state(hi_world *w, const states *s, int32_t layer, int64_t i, int64_t slot)
{
    for (int64_t x = 0; x < hi_state_size(w); x++)
        w->scratch[x] = state_get(w, s, layer, i, x);
    double ratio = hi_ratio(hi_dtype(&s->states[layer].t), w->scratch, hi_state(w, &w->slots[slot], layer), NULL,
                            hi_state_size(w), 1e-6);
    w->figures->state = ratio > w->figures->state ? ratio : w->figures->state;
    hi_check(w, slot, ratio <= 1, "layer %d: the exported state is off by %.3g times its bar", (int)layer, ratio);
}

static void check_export_conv(hi_world *w, const states *s, int32_t layer, int64_t i, int64_t slot)
{
    const DLTensor *t = &s->conv[layer].t;
    const double *past = hi_past(w, &w->slots[slot], layer);
    for (int64_t column = 0; column < HI_CONV_WIDTH - 1; column++)
        for (int64_t c = 0; c < w->channels; c++) {
            double want = rec_round(hi_dtype(t), past[column * w->channels + c]), got = h_get(t, i, c, column, 0);
            hi_check(w, slot, got == want, "layer %d: exported input %d of channel %d is %g, not %g", (int)layer,
                     (int)column, (int)c, got, want);
        }
}

static void op_export(hi_world *w)
{
    int64_t list[MAX_LIST], n = pick_list(w, list, 8, true);
    states s = {0};
    if (n == 0)
        return;
    hi_begin(w);
    log_list(w, "export", list, n);
    states_make(w, &s, list, n);
    add_decay(w, s.decay_of, &s.args.A_log, &s.args.A);
    rssm_error err = h_error();
    hi_status(w, -1, "export_state", w->slots_api->export_state(w->c->plugin, &s.args, &err), RSSM_OK, &err);
    for (int64_t i = 0; i < n; i++) {
        bool alive = hi_is_alive(w, list[i]);
        if (hi_is_slot(w, list[i]) && !alive)
            w->faults |= RSSM_FAULT_CURSOR;
        for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
            if (alive)
                check_export_state(w, &s, layer, i, list[i]);
            if (alive && s.conv)
                check_export_conv(w, &s, layer, i, list[i]);
            hi_check(w, list[i],
                     alive ||
                         (hi_row_is(&s.states[layer].t, i, 0xFF) && (!s.conv || hi_row_is(&s.conv[layer].t, i, 0xFF))),
                     "layer %d: row %d of an export was written", (int)layer, (int)i);
        }
    }
    hi_end(w);
    states_free(w, &s);
}

static void op_flush(hi_world *w)
{
    int64_t list[MAX_LIST], n = pick_list(w, list, 10, true);
    h_tensor slots;
    const DLTensor *decay[8];
    if (n == 0)
        return;
    hi_begin(w);
    log_list(w, "flush", list, n);
    hi_make_list(w, &slots, list, n);
    rssm_flush_args args = {.struct_size = sizeof args, .slots = &slots.t};
    add_decay(w, decay, &args.A_log, &args.A);
    args.num_layers = args.A || args.A_log ? (uint32_t)w->c->spec.layers : 0;
    rssm_error err = h_error();
    hi_status(w, -1, "flush", w->slots_api->flush(w->c->plugin, &args, &err), RSSM_OK, &err);
    for (int64_t i = 0; i < n; i++) {
        hi_slot *slot = &w->slots[hi_is_slot(w, list[i]) ? list[i] : 0];
        if (!is_written(w, list, n, i))
            continue;
        if (!slot->alive) {
            w->faults |= RSSM_FAULT_CURSOR;
            continue;
        }
        w->change[list[i]].state = true;
        for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
            hi_check_checkpoint(w, layer, list[i], NULL);
        slot->base = (int32_t)((slot->base + slot->count) % w->c->R);
        slot->count = 0;
    }
    hi_end(w);
    h_tensor_free(&slots);
}

/* ---- copy ------------------------------------------------------------------------------------------------------- */

static void call_copy(hi_world *w, const int64_t *from, const int64_t *to, int64_t n)
{
    h_tensor src, dst;
    hi_make_list(w, &src, from, n);
    hi_make_list(w, &dst, to, n);
    const rssm_copy_args args = {.struct_size = sizeof args, .src = &src.t, .dst = &dst.t};
    rssm_error err = h_error();
    hi_status(w, -1, "copy", w->slots_api->copy(w->c->plugin, &args, &err), RSSM_OK, &err);
    h_tensor_free(&src);
    h_tensor_free(&dst);
}

/* Whether pair i is copied; what is wrong with it otherwise is a fault. */
static bool is_copied(hi_world *w, const int64_t *from, const int64_t *to, int64_t n, int64_t i)
{
    bool reads = hi_is_slot(w, from[i]), writes = hi_is_slot(w, to[i]);
    if (!reads && !writes)
        return false;
    if (reads != writes || times(to, n, to[i]) > 1 || contains(from, n, to[i])) {
        w->faults |= RSSM_FAULT_SLOTS;
        return false;
    }
    if (!w->slots[from[i]].alive)
        w->faults |= RSSM_FAULT_CURSOR;
    return w->slots[from[i]].alive;
}

/* What was copied is the same bits. A copy's cursor may differ from its source's in nothing. */
static void check_copies(hi_world *w, const int64_t *from, const int64_t *to, const bool *copied, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!copied[i])
            continue;
        uint64_t length = 0;
        unsigned char *source = hi_save(w, from[i], &length), *copy = hi_save(w, to[i], &length);
        hi_check(w, to[i], memcmp(source, copy, length) == 0, "the copy of slot %d differs", (int)from[i]);
        hi_check(w, to[i], memcmp(dc_cursor(w->c, from[i]), dc_cursor(w->c, to[i]), 4 * sizeof(int32_t)) == 0,
                 "the cursor of the copy of slot %d differs", (int)from[i]);
        free(source);
        free(copy);
    }
}

static void copy_pairs(hi_world *w, const int64_t *from, const int64_t *to, int64_t n)
{
    bool copied[MAX_LIST];
    hi_begin(w);
    log_list(w, "copy from", from, n);
    log_list(w, "     to  ", to, n);
    call_copy(w, from, to, n);
    for (int64_t i = 0; i < n; i++) {
        copied[i] = is_copied(w, from, to, n, i);
        if (!copied[i])
            continue;
        hi_slot_copy(w, &w->slots[to[i]], &w->slots[from[i]]);
        w->change[to[i]].all = true;
    }
    check_copies(w, from, to, copied, n);
    hi_end(w);
}

void hi_copy_one(hi_world *w, int64_t from, int64_t to)
{
    copy_pairs(w, &from, &to, 1);
}

static void op_copy(hi_world *w)
{
    int64_t from[MAX_LIST], to[MAX_LIST], n = 0, want = 1 + hi_pick(w, 3);
    for (int64_t tries = 0; n < want && tries < 30; tries++) {
        int64_t source = hi_pick(w, w->c->spec.S), target = hi_pick(w, w->c->spec.S);
        bool odd = hi_one_in(w, 40); /* a target twice, a target that is read, half a pair */
        if (hi_one_in(w, 12)) {
            source = some_padding(w);
            target = hi_one_in(w, 4) ? target : some_padding(w);
        }
        if (hi_is_slot(w, source) && !w->slots[source].alive && !hi_one_in(w, 10))
            continue;
        if (!odd && hi_is_slot(w, target) &&
            (contains(to, n, target) || contains(from, n, target) || target == source || contains(to, n, source)))
            continue;
        from[n] = source;
        to[n++] = target;
    }
    copy_pairs(w, from, to, n);
}

/* ---- save and load ---------------------------------------------------------------------------------------------- */

unsigned char *hi_save(hi_world *w, int64_t slot, uint64_t *length)
{
    uint64_t bytes = 0;
    rssm_error err = h_error();
    hi_status(w, slot, "saved_bytes", w->slots_api->saved_bytes(w->c->plugin, &bytes, &err), RSSM_OK, &err);
    unsigned char *buffer = malloc(bytes + 16);
    dc_assert(buffer);
    memset(buffer, 0xA5, bytes + 16);
    hi_status(w, slot, "save", w->slots_api->save(w->c->plugin, slot, buffer, bytes, length, NULL, &err), RSSM_OK,
              &err);
    hi_check(w, slot, *length > 0 && *length <= bytes, "save wrote %d of %d bytes", (int)*length, (int)bytes);
    for (int i = 0; i < 16; i++)
        hi_check(w, slot, buffer[bytes + (uint64_t)i] == 0xA5, "save wrote beyond its buffer");
    return buffer;
}

static void op_save(hi_world *w)
{
    int64_t slot;
    hi_saved *saved = &w->vault[hi_pick(w, HI_VAULT)];
    if (!hi_some_alive(w, &slot))
        return;
    hi_begin(w);
    hi_log(w, "save %d to %d", (int)slot, (int)(saved - w->vault));
    free(saved->bytes);
    saved->bytes = hi_save(w, slot, &saved->length);
    hi_slot_copy(w, &saved->slot, &w->slots[slot]);
    hi_end(w);
}

/* A stream with one bit flipped, or cut short, leaves the slot alone. */
static void load_damaged(hi_world *w, int64_t slot, const hi_saved *saved)
{
    uint64_t length = saved->length;
    unsigned char *bytes = malloc(length);
    dc_assert(bytes);
    memcpy(bytes, saved->bytes, length);
    if (hi_one_in(w, 2))
        length = (uint64_t)hi_pick(w, (int64_t)length);
    else
        bytes[hi_pick(w, (int64_t)length)] ^= (unsigned char)(1 << hi_pick(w, 8));
    hi_begin(w);
    hi_log(w, "load damaged into %d", (int)slot);
    rssm_error err = h_error();
    hi_status(w, slot, "load of a damaged stream", w->slots_api->load(w->c->plugin, slot, bytes, length, NULL, &err),
              RSSM_ERR_STREAM_DATA, &err);
    hi_end(w);
    w->figures->refusals++;
    free(bytes);
}

static void op_load(hi_world *w)
{
    const hi_saved *saved = &w->vault[hi_pick(w, HI_VAULT)];
    int64_t slot = hi_pick(w, w->c->spec.S);
    uint64_t length = 0;
    if (!saved->bytes || !hi_is_slot(w, slot))
        return;
    if (hi_one_in(w, 3))
        load_damaged(w, slot, saved);
    hi_begin(w);
    hi_log(w, "load %d from %d", (int)slot, (int)(saved - w->vault));
    rssm_error err = h_error();
    hi_status(w, slot, "load", w->slots_api->load(w->c->plugin, slot, saved->bytes, saved->length, NULL, &err), RSSM_OK,
              &err);
    hi_slot_copy(w, &w->slots[slot], &saved->slot);
    w->slots[slot].pending = 0;
    w->change[slot].all = true;
    unsigned char *again = hi_save(w, slot, &length);
    hi_check(w, slot, length == saved->length && memcmp(again, saved->bytes, length) == 0,
             "the loaded slot does not save as it was loaded");
    free(again);
    hi_end(w);
}

void hi_hand_over(hi_world *from, hi_world *to)
{
    for (int64_t i = 0; i < from->c->spec.S; i++) {
        uint64_t length = 0, again = 0;
        if (!from->slots[i].alive)
            continue;
        unsigned char *bytes = hi_save(from, i, &length);
        hi_begin(to);
        hi_log(to, "handed over: %d", (int)i);
        rssm_error err = h_error();
        hi_status(to, i, "load", to->slots_api->load(to->c->plugin, i, bytes, length, NULL, &err), RSSM_OK, &err);
        hi_slot_copy(to, &to->slots[i], &from->slots[i]);
        to->change[i].all = true;
        unsigned char *saved = hi_save(to, i, &again);
        hi_check(to, i, again == length && memcmp(saved, bytes, length) == 0, "the slot does not save as it came");
        hi_end(to);
        free(saved);
        free(bytes);
    }
}

/* Calls that are refused and change nothing. */
static void op_refused(hi_world *w)
{
    int64_t outside = hi_one_in(w, 2) ? -1 : w->c->spec.S, dead = w->c->spec.S;
    uint64_t bytes = 0, length = 0;
    rssm_error err = h_error();
    hi_begin(w);
    hi_log(w, "refused calls");
    hi_status(w, -1, "saved_bytes", w->slots_api->saved_bytes(w->c->plugin, &bytes, &err), RSSM_OK, &err);
    unsigned char *buffer = calloc(1, bytes);
    hi_status(w, outside, "save", w->slots_api->save(w->c->plugin, outside, buffer, bytes, &length, NULL, &err),
              RSSM_ERR_VALUE, &err);
    for (int64_t i = 0; i < w->c->spec.S; i++)
        if (hi_is_slot(w, i) && !w->slots[i].alive)
            dead = i;
    if (dead < w->c->spec.S)
        hi_status(w, dead, "save of a bad cursor",
                  w->slots_api->save(w->c->plugin, dead, buffer, bytes, &length, NULL, &err), RSSM_ERR_VALUE, &err);
    free(buffer);
    hi_end(w);
    w->figures->refusals += 1 + (dead < w->c->spec.S);
}

/* A tenant leaves: whatever is in the slot must never show again. */
static void op_kill(hi_world *w)
{
    int64_t slot;
    if (!hi_some_alive(w, &slot))
        return;
    hi_log(w, "kill %d", (int)slot);
    hi_kill(w, slot);
}

/* ---- the next operation ----------------------------------------------------------------------------------------- */

static const struct {
    int weight;
    void (*run)(hi_world *w);
} operations[] = {
    {30, hi_op_step}, {26, hi_op_verify}, {7, op_copy},      {6, op_export},  {5, op_import},
    {5, op_flush},    {4, op_save},       {6, op_load},      {3, op_reset},   {3, op_kill},
    {2, hi_op_twins}, {3, hi_op_echo},    {4, hi_op_versus}, {1, op_refused},
};

void hi_operation(hi_world *w, int64_t op)
{
    int total = 0;
    uint64_t stream = w->seed ^ (uint64_t)(op + 1) * 0xD1342543DE82EF95u;
    w->op = op;
    w->random = h_random(&stream);
    w->c->random = h_random(&stream);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        total += operations[i].weight;
    int at = (int)hi_pick(w, total);
    size_t i = 0;
    while (at >= operations[i].weight)
        at -= operations[i++].weight;
    if (!w->verify_api && operations[i].run == hi_op_verify)
        i = 0; /* a step instead */
    operations[i].run(w);
}
