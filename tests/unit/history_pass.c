/* Forward passes of a history: plain steps and verify windows, and the three that compare passes bit for bit. */
#include "history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 12 };

typedef struct pass_row {
    int64_t slot;  /* as the call gets it */
    bool live;     /* not a padding row   */
    bool misfit;   /* a window longer than max_T: padding, and a fault */
    int32_t force; /* plain */
    int32_t start, len;
    int32_t base, count, conv; /* the slot's before the pass */
    bool ends;                 /* plain: its window ends here, or by force */
    bool flush;
} pass_row;

/* What a window's draft left: the record that a commit adds to the state, and the convolution's input. */
typedef struct draft {
    rec_result record;
    double *input;               /* [channels] */
    double *call[DC_NUM_INPUTS]; /* what verify got, for a plain step that gets the same */
} draft;

typedef struct pass pass;
struct pass {
    bool verify;
    const pass *source; /* of a plain step with one row: its inputs are those of a window's token */
    int32_t source_token;
    int32_t B, tokens, max_T;
    pass_row rows[MAX_ROWS];
    int32_t same_as[HI_MAX_TOKENS];   /* token whose inputs this one repeats, or -1 */
    int32_t equal_out[HI_MAX_TOKENS]; /* token whose output must be the same bits, or -1 */
    draft *drafts;                    /* [layers][tokens] of a verify */
    h_tensor rows_out;                /* of a verify: its commit may come later */
};

static draft *draft_of(const pass *p, int32_t layer, int32_t token)
{
    return &p->drafts[layer * p->tokens + token];
}

static bool is_mamba(const hi_world *w)
{
    return w->c->spec.family == RSSM_FAMILY_MAMBA2;
}

static const DLTensor *packed_of(const hi_world *w, int32_t layer)
{
    return w->c->calls[layer]->roles[is_mamba(w) ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV];
}

/* ---- making a pass ---------------------------------------------------------------------------------------------- */

static void pass_init(pass *p, bool verify)
{
    memset(p, 0, sizeof *p);
    p->verify = verify;
    memset(p->same_as, 0xFF, sizeof p->same_as);
    memset(p->equal_out, 0xFF, sizeof p->equal_out);
}

static void add_row(hi_world *w, pass *p, int64_t slot, int32_t len)
{
    pass_row *row = &p->rows[p->B++];
    *row = (pass_row){.slot = slot, .start = p->tokens, .len = len, .live = hi_is_slot(w, slot)};
    p->tokens += len;
    p->max_T = len > p->max_T ? len : p->max_T;
    if (row->live && !hi_is_alive(w, slot)) { /* its cursor is garbage */
        row->live = false;
        w->faults |= RSSM_FAULT_CURSOR;
    }
}

/* Slots of random rows: each at most once, in random order, some of them dead, padding in between. */
static int32_t pick_rows(hi_world *w, int64_t *slots, int32_t most)
{
    int32_t n = 0;
    int64_t deck[HI_MAX_SLOTS], left = w->c->spec.S;
    const int64_t padding[] = {-1, w->c->spec.S, w->c->spec.S + 5,
                               w->c->options.has_pad_slot ? w->c->options.pad_slot : -9};
    for (int64_t i = 0; i < left; i++)
        deck[i] = i;
    int32_t want = hi_one_in(w, 40) ? 0 : 1 + (int32_t)hi_pick(w, most);
    while (n < want) {
        if (hi_one_in(w, 8)) {
            slots[n++] = padding[hi_pick(w, 4)];
            continue;
        }
        if (left == 0)
            break;
        int64_t at = hi_pick(w, left), slot = deck[at];
        deck[at] = deck[--left];
        if (hi_is_alive(w, slot) || (hi_is_slot(w, slot) && hi_one_in(w, 10)))
            slots[n++] = slot;
    }
    return n;
}

/* ---- tensors of a pass ------------------------------------------------------------------------------------------ */

static void set_rows(const hi_world *w, const pass *p, int32_t layer)
{
    int count;
    const h_role *roles = h_roles(w->c->spec.family, &count);
    h_call *call = w->c->calls[layer];
    for (int i = 0; i < count; i++)
        if (call->tensors[roles[i].role].block && (roles[i].place == H_INPUT || roles[i].place == H_OUTPUT))
            call->tensors[roles[i].role].shape[0] = p->tokens;
    if (w->conv_api)
        w->conv_in[layer].shape[0] = p->tokens;
}

static void set_index(const DLTensor *t, int64_t i, int64_t value)
{
    h_set(t, i, 0, 0, 0, (double)value); /* exact: small numbers */
}

/* ---- inputs ----------------------------------------------------------------------------------------------------- */

static void repeat_inputs(hi_world *w, const pass *p, int32_t layer)
{
    for (int input = 0; p->source && input < DC_NUM_INPUTS; input++)
        memcpy(w->c->in[input], draft_of(p->source, layer, p->source_token)->call[input],
               (size_t)dc_inner(w->c, input) * sizeof **w->c->in);
    for (int input = 0; input < DC_NUM_INPUTS; input++) {
        size_t n = (size_t)dc_inner(w->c, input);
        for (int32_t token = 0; n > 0 && token < p->tokens; token++)
            if (p->same_as[token] >= 0)
                memcpy(w->c->in[input] + (size_t)token * n, w->c->in[input] + (size_t)p->same_as[token] * n,
                       n * sizeof **w->c->in);
    }
}

/* Without the norm of the layer q and k come normalised. */
static void normalise_inputs(hi_world *w)
{
    const h_spec *s = &w->c->spec;
    for (int input = DC_Q; w->c->options.no_norm && input <= DC_K; input++)
        for (int64_t head = 0; head < s->B * s->H; head++) {
            double *x = w->c->in[input] + head * s->K, sum = 1e-6;
            for (int64_t i = 0; i < s->K; i++)
                sum += x[i] * x[i];
            for (int64_t i = 0; i < s->K; i++)
                x[i] /= __builtin_sqrt(sum);
        }
}

static void poison_token(const hi_world *w, int32_t layer, int64_t token)
{
    int count;
    const h_role *roles = h_roles(w->c->spec.family, &count);
    for (int i = 0; i < count; i++) {
        const DLTensor *t = w->c->calls[layer]->roles[roles[i].role];
        if (!t || roles[i].place != H_INPUT)
            continue;
        int64_t n = 1;
        for (int dim = 1; dim < t->ndim; dim++)
            n *= t->shape[dim];
        memset(h_at(t, token, 0, 0, 0), 0xFF, (size_t)(n * t->dtype.bits / 8));
    }
    if (w->conv_api)
        memset(h_at(&w->conv_in[layer].t, token, 0, 0, 0), 0xFF,
               (size_t)(w->channels * w->conv_in[layer].t.dtype.bits / 8));
}

static void poison_padding(const hi_world *w, const pass *p, int32_t layer)
{
    bool live[HI_MAX_TOKENS] = {false};
    for (int32_t b = 0; b < p->B; b++)
        for (int32_t i = 0; p->rows[b].live && i < p->rows[b].len; i++)
            live[p->rows[b].start + i] = true;
    for (int32_t token = 0; token < p->tokens; token++)
        if (!live[token])
            poison_token(w, layer, token);
}

/* Where q, k, v start in the packed row: q | k | v, or x | B | C. */
static int64_t packed_at(const hi_world *w, int input)
{
    int64_t keys = dc_inner(w->c, DC_K), values = dc_inner(w->c, DC_V);
    const int64_t at[2][3] = {{0, keys, 2 * keys}, {values + keys, values, 0}};
    return at[is_mamba(w)][input];
}

/* What the convolution made of its inputs is what the recurrence gets. */
static void take_packed(hi_world *w, const pass *p, int32_t layer)
{
    const DLTensor *packed = packed_of(w, layer);
    for (int input = DC_Q; input <= DC_V; input++) {
        int64_t n = dc_inner(w->c, input);
        for (int32_t token = 0; token < p->tokens; token++)
            for (int64_t i = 0; i < n; i++)
                w->c->in[input][token * n + i] = h_get(packed, token, packed_at(w, input) + i, 0, 0);
    }
}

/* For a later plain step: after dc_put_inputs, which rounds. */
static void keep_inputs(const hi_world *w, const pass *p, int32_t layer)
{
    for (int input = 0; p->verify && input < DC_NUM_INPUTS; input++) {
        size_t n = (size_t)dc_inner(w->c, input);
        for (int32_t token = 0; token < p->tokens; token++)
            memcpy(draft_of(p, layer, token)->call[input], w->c->in[input] + (size_t)token * n, n * sizeof **w->c->in);
    }
}

static void fill_conv_in(hi_world *w, const pass *p, int32_t layer)
{
    const DLTensor *in = &w->conv_in[layer].t;
    for (int64_t c = 0; p->source && c < w->channels; c++)
        h_set(in, 0, c, 0, 0, draft_of(p->source, layer, p->source_token)->input[c]);
    if (p->source)
        return;
    for (int32_t token = 0; token < p->tokens; token++)
        for (int64_t c = 0; c < w->channels; c++)
            h_set(in, token, c, 0, 0,
                  p->same_as[token] >= 0 ? h_get(in, p->same_as[token], c, 0, 0) : h_uniform(&w->c->random, -2, 2));
}

/* ---- one layer -------------------------------------------------------------------------------------------------- */

static const DLTensor *rows_of(const hi_world *w, const pass *p)
{
    return p->verify ? &p->rows_out.t : w->c->calls[0]->roles[RSSM_T_ROWS];
}

static rssm_status call_layer(hi_world *w, const pass *p, int32_t layer, rssm_error *err)
{
    h_call *call = w->c->calls[layer];
    const DLTensor *roles[RSSM_T_COUNT];
    rssm_decode_args args = call->args;
    memcpy(roles, call->roles, sizeof roles);
    roles[RSSM_T_ROWS] = rows_of(w, p);
    args.tensors = roles;
    if (hi_one_in(w, 3)) /* tensors of pool_tensors that decode has no use for may stay */
        roles[RSSM_T_CURSOR] = &w->c->cursor.t;
    args.flags |= hi_deep(w);
    return p->verify ? w->verify_api->verify(w->c->plugin, &args, err) : h_api()->decode(w->c->plugin, &args, err);
}

static void call_conv(hi_world *w, const pass *p, int32_t layer)
{
    const DLTensor *roles[RSSM_T_COUNT] = {NULL};
    roles[RSSM_T_CONV_IN] = &w->conv_in[layer].t;
    roles[RSSM_T_CONV_WEIGHT] = &w->conv_weight[layer].t;
    roles[RSSM_T_CONV_BIAS] = w->conv_bias[layer].block ? &w->conv_bias[layer].t : NULL;
    roles[RSSM_T_CONV] = &w->c->conv[layer].t;
    roles[RSSM_T_ROWS] = rows_of(w, p);
    roles[RSSM_T_CONV_OUT] = packed_of(w, layer);
    const rssm_decode_args args = {
        .struct_size = sizeof args, .tensors = roles, .num_tensors = RSSM_T_COUNT, .layer = layer, .flags = hi_deep(w)};
    rssm_error err = h_error();
    rssm_status status = (p->verify ? w->conv_api->conv_verify : w->conv_api->conv)(w->c->plugin, &args, &err);
    hi_status(w, -1, p->verify ? "conv_verify" : "conv", status, RSSM_OK, &err);
}

/* Random inputs, the convolution in front when the world has one, and the layer's call. */
static void run_layer(hi_world *w, const pass *p, int32_t layer)
{
    set_rows(w, p, layer);
    w->c->spec.B = p->tokens;
    dc_randomise(w->c);
    normalise_inputs(w);
    repeat_inputs(w, p, layer);
    dc_put_inputs(w->c, layer);
    keep_inputs(w, p, layer);
    if (w->conv_api) {
        h_tensor *packed = &w->c->calls[layer]->tensors[is_mamba(w) ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV];
        memset(packed->t.data, 0xFF, packed->bytes);
        fill_conv_in(w, p, layer);
        poison_padding(w, p, layer);
        call_conv(w, p, layer);
        for (int32_t b = 0; b < p->B; b++)
            if (p->rows[b].live)
                hi_check_conv(w, layer, p->rows[b].slot, p->rows[b].start, p->rows[b].len,
                              hi_past(w, &w->slots[p->rows[b].slot], layer));
        take_packed(w, p, layer);
    } else {
        poison_padding(w, p, layer);
    }
    rssm_error err = h_error();
    hi_status(w, -1, p->verify ? "verify" : "decode", call_layer(w, p, layer, &err), RSSM_OK, &err);
}

static void keep_conv_input(const hi_world *w, int32_t layer, int32_t token, double *to)
{
    for (int64_t c = 0; w->conv_api && c < w->channels; c++)
        to[c] = h_get(&w->conv_in[layer].t, token, c, 0, 0);
}

static void check_window(hi_world *w, const pass *p, int32_t layer, const pass_row *row)
{
    hi_slot *slot = &w->slots[row->slot];
    size_t n = (size_t)hi_state_size(w);
    if (row->flush)
        hi_check_checkpoint(w, layer, row->slot, NULL);
    double *state = malloc(n * sizeof *state);
    dc_assert(state);
    memcpy(state, hi_state(w, slot, layer), n * sizeof *state);
    for (int32_t i = 0; i < row->len; i++) {
        draft *d = draft_of(p, layer, row->start + i);
        hi_check_token(w, layer, row->start + i, row->slot, (row->base + row->count + i) % w->c->R, state, &d->record);
        keep_conv_input(w, layer, row->start + i, d->input);
    }
    free(state);
}

static void check_plain(hi_world *w, int32_t layer, const pass_row *row)
{
    hi_slot *slot = &w->slots[row->slot];
    rec_result kept = dc_result_new(w->c);
    hi_check_token(w, layer, row->start, row->slot, row->flush ? -1 : (row->base + row->count) % w->c->R,
                   hi_state(w, slot, layer), &kept);
    if (w->conv_api) {
        double *input = malloc((size_t)w->channels * sizeof *input);
        dc_assert(input);
        keep_conv_input(w, layer, row->start, input);
        hi_push_past(w, hi_past(w, slot, layer), input);
        free(input);
    }
    dc_result_free(&kept);
}

/* Padding rows' outputs are zero, and those of tokens that no row has as they were. */
static void check_padding(const hi_world *w, const pass *p, const DLTensor *out, const char *name)
{
    int32_t owned = 0;
    for (int32_t b = 0; b < p->B; b++) {
        const pass_row *row = &p->rows[b];
        owned = row->start + row->len;
        for (int32_t i = 0; !row->live && !row->misfit && i < row->len; i++)
            hi_check(w, row->slot, hi_row_is(out, row->start + i, 0), "%s: token %d of padding row %d is not zero",
                     name, (int)(row->start + i), (int)b);
    }
    for (int32_t token = owned; token < p->tokens; token++)
        hi_check(w, -1, hi_row_is(out, token, 0xFF), "%s: token %d, which no row has, was written", name, (int)token);
}

static void check_equal_outputs(const hi_world *w, const pass *p, int32_t layer)
{
    const DLTensor *out = w->c->calls[layer]->roles[RSSM_T_OUT];
    size_t bytes = (size_t)(dc_inner(w->c, DC_V) * out->dtype.bits / 8);
    for (int32_t token = 0; token < p->tokens; token++)
        if (p->equal_out[token] >= 0)
            hi_check(w, -1, memcmp(h_at(out, token, 0, 0, 0), h_at(out, p->equal_out[token], 0, 0, 0), bytes) == 0,
                     "layer %d: outputs of tokens %d and %d are not the same bits", (int)layer, (int)token,
                     (int)p->equal_out[token]);
}

static void check_layer(hi_world *w, const pass *p, int32_t layer)
{
    for (int32_t b = 0; b < p->B; b++) {
        if (p->rows[b].live && p->verify)
            check_window(w, p, layer, &p->rows[b]);
        else if (p->rows[b].live)
            check_plain(w, layer, &p->rows[b]);
    }
    check_padding(w, p, w->c->calls[layer]->roles[RSSM_T_OUT], "output");
    if (w->conv_api)
        check_padding(w, p, packed_of(w, layer), "convolution");
    check_equal_outputs(w, p, layer);
}

/* ---- rows and cursors ------------------------------------------------------------------------------------------- */

/* What the pass is to find and do, row by row. */
static void expect_rows(hi_world *w, pass *p)
{
    const h_spec *s = &w->c->spec;
    for (int32_t b = 0; b < p->B; b++) {
        pass_row *row = &p->rows[b];
        if (!row->live)
            continue;
        const hi_slot *slot = &w->slots[row->slot];
        row->base = slot->base;
        row->count = slot->count;
        row->conv = slot->conv;
        row->ends = row->count >= s->L - 1 - slot->shortened || row->force != 0;
        row->flush = p->verify ? row->count + row->len > s->L : row->ends || p->B <= w->c->small_batch;
    }
}

static void check_rows(const hi_world *w, const pass *p)
{
    const DLTensor *t = rows_of(w, p);
    for (int32_t b = 0; b < p->B; b++) {
        const pass_row *row = &p->rows[b];
        const int32_t *got = h_at(t, b, 0, 0, 0);
        int32_t first = row->live ? (int32_t)row->slot : -1, start = p->verify ? row->start : b;
        bool right = got[0] == first && (row->misfit || (got[5] == start && got[6] == row->len));
        if (row->live)
            right = right && got[1] == row->base && got[2] == row->count && (got[3] != 0) == row->flush &&
                    got[4] == row->conv;
        hi_check(w, row->slot, right, "row %d is {%d, %d, %d, %d, %d, %d, %d}, not {%d, %d, %d, %d, %d, %d, %d}",
                 (int)b, got[0], got[1], got[2], got[3], got[4], got[5], got[6], (int)first, (int)row->base,
                 (int)row->count, (int)row->flush, (int)row->conv, (int)start, (int)row->len);
    }
}

/* The model's cursors move, and the bytes that may change are named. */
static void move_plain(hi_world *w, const pass_row *row)
{
    hi_slot *slot = &w->slots[row->slot];
    hi_change *change = &w->change[row->slot];
    if (row->flush) {
        slot->base = (int32_t)((row->base + row->count) % w->c->R);
        slot->count = 0;
        slot->shortened = row->ends ? 0 : slot->shortened;
        change->state = true;
        w->figures->flushes++;
    } else {
        slot->count++;
        change->ring_first = row->base + row->count;
        change->ring_count = 1;
    }
    if (w->conv_api) {
        slot->conv = (int32_t)((row->conv + 1) % w->columns);
        change->conv_first = row->conv;
        change->conv_count = 1;
    }
}

static void move_window(hi_world *w, const pass_row *row)
{
    hi_slot *slot = &w->slots[row->slot];
    hi_change *change = &w->change[row->slot];
    if (row->flush) {
        slot->base = (int32_t)((row->base + row->count) % w->c->R);
        slot->count = 0;
        change->state = true;
        w->figures->folds++;
    }
    slot->pending = row->len;
    change->ring_first = row->base + row->count;
    change->ring_count = row->len;
    change->conv_first = row->conv;
    change->conv_count = w->conv_api ? row->len : 0;
}

/* ---- a plain step ----------------------------------------------------------------------------------------------- */

static void begin_step(hi_world *w, const pass *p)
{
    dc_case *c = w->c;
    bool forced = false;
    c->slots.shape[0] = c->force.shape[0] = p->B;
    c->calls[0]->tensors[RSSM_T_ROWS].shape[0] = p->B;
    for (int32_t b = 0; b < p->B; b++) {
        set_index(&c->slots.t, b, p->rows[b].slot);
        set_index(&c->force.t, b, p->rows[b].force);
        forced = forced || p->rows[b].force;
    }
    const rssm_step_begin_args args = {.struct_size = sizeof args,
                                       .slots = &c->slots.t,
                                       .force_flush = forced || hi_one_in(w, 2) ? &c->force.t : NULL,
                                       .rows_out = c->calls[0]->roles[RSSM_T_ROWS],
                                       .flags = hi_deep(w)};
    rssm_error err = h_error();
    hi_status(w, -1, "step_begin", h_api()->step_begin(c->plugin, &args, &err), RSSM_OK, &err);
}

/* Of a pass that is made up; rows and repeated inputs are set. */
static void step(hi_world *w, pass *p)
{
    expect_rows(w, p);
    begin_step(w, p);
    check_rows(w, p);
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
        run_layer(w, p, layer);
        check_layer(w, p, layer);
    }
    for (int32_t b = 0; b < p->B; b++)
        if (p->rows[b].live)
            move_plain(w, &p->rows[b]);
}

static void log_pass(hi_world *w, const pass *p, const char *name)
{
    char text[128] = "";
    size_t length = 0;
    for (int32_t b = 0; b < p->B && length < sizeof text - 24; b++)
        length +=
            (size_t)snprintf(text + length, sizeof text - length, p->verify ? " %d:%d" : " %d%.*s",
                             (int)p->rows[b].slot, (int)(p->verify ? p->rows[b].len : p->rows[b].force != 0), "f");
    hi_log(w, "%s%s", name, text);
}

void hi_op_step(hi_world *w)
{
    pass p;
    int64_t slots[MAX_ROWS];
    hi_begin(w);
    pass_init(&p, false);
    int32_t n = pick_rows(w, slots, 6);
    bool forcing = hi_one_in(w, 3);
    for (int32_t b = 0; b < n; b++) {
        add_row(w, &p, slots[b], 1);
        p.rows[b].force = forcing && hi_one_in(w, 3) ? 1 + (int32_t)hi_pick(w, 3) : 0;
    }
    log_pass(w, &p, "step");
    step(w, &p);
    hi_end(w);
}

/* ---- verify ----------------------------------------------------------------------------------------------------- */

static void make_drafts(hi_world *w, pass *p)
{
    size_t n = (size_t)(w->c->spec.layers * p->tokens);
    p->drafts = calloc(n + 1, sizeof *p->drafts);
    dc_assert(p->drafts);
    for (size_t i = 0; i < n; i++) {
        p->drafts[i].record = dc_result_new(w->c);
        p->drafts[i].input = calloc((size_t)w->channels, sizeof(double));
        for (int input = 0; input < DC_NUM_INPUTS; input++)
            p->drafts[i].call[input] = calloc((size_t)dc_inner(w->c, input) + 1, sizeof(double));
    }
    const int64_t shape[2] = {p->B, RSSM_ROW_WIDTH};
    h_tensor_make(&p->rows_out, h_int_type(32), 2, shape, hi_one_in(w, 2) ? 8 : 0);
}

static void pass_free(hi_world *w, pass *p)
{
    for (int32_t i = 0; p->drafts && i < w->c->spec.layers * p->tokens; i++) {
        dc_result_free(&p->drafts[i].record);
        free(p->drafts[i].input);
        for (int input = 0; input < DC_NUM_INPUTS; input++)
            free(p->drafts[i].call[input]);
    }
    free(p->drafts);
    dc_assert(!p->rows_out.block || h_tensor_guarded(&p->rows_out));
    h_tensor_free(&p->rows_out);
}

static void begin_verify(hi_world *w, pass *p)
{
    int64_t slots[MAX_ROWS], starts[MAX_ROWS + 1] = {0};
    h_tensor slot_list, cu_seqlens;
    for (int32_t b = 0; b < p->B; b++) {
        slots[b] = p->rows[b].slot;
        starts[b + 1] = p->rows[b].start + p->rows[b].len;
    }
    hi_make_list(w, &slot_list, slots, p->B);
    hi_make_list(w, &cu_seqlens, starts, p->B + 1);
    const rssm_verify_begin_args args = {.struct_size = sizeof args,
                                         .slots = &slot_list.t,
                                         .cu_seqlens = &cu_seqlens.t,
                                         .rows_out = &p->rows_out.t,
                                         .max_T = p->max_T > 0 ? p->max_T : 1,
                                         .flags = hi_deep(w)};
    rssm_error err = h_error();
    hi_status(w, -1, "verify_begin", w->verify_api->verify_begin(w->c->plugin, &args, &err), RSSM_OK, &err);
    h_tensor_free(&slot_list);
    h_tensor_free(&cu_seqlens);
}

/* verify_begin and all layers. */
static void verify(hi_world *w, pass *p)
{
    expect_rows(w, p);
    make_drafts(w, p);
    begin_verify(w, p);
    check_rows(w, p);
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++) {
        run_layer(w, p, layer);
        check_layer(w, p, layer);
    }
    for (int32_t b = 0; b < p->B; b++)
        if (p->rows[b].live) {
            move_window(w, &p->rows[b]);
            w->figures->drafts += p->rows[b].len;
        }
}

static void accept(hi_world *w, const pass *p, const pass_row *row, int32_t n)
{
    hi_slot *slot = &w->slots[row->slot];
    rec_weights weights = dc_rec_weights(w->c);
    for (int32_t layer = 0; layer < w->c->spec.layers; layer++)
        for (int32_t i = 0; i < n; i++) {
            const draft *d = draft_of(p, layer, row->start + i);
            rec_apply(&w->c->model, &weights, d->record.d, d->record.k, d->record.g, hi_state(w, slot, layer));
            if (w->conv_api)
                hi_push_past(w, hi_past(w, slot, layer), d->input);
        }
    slot->count += n;
    slot->conv = w->conv_api ? (int32_t)((slot->conv + n) % w->columns) : 0;
    w->figures->accepted += n;
}

/* accepted[b] of each row; a number out of range is a fault and leaves the slot alone, and so does any number where the
 * window was committed before. */
static void commit(hi_world *w, const pass *p, const int64_t *accepted, bool again)
{
    h_tensor list;
    hi_make_list(w, &list, accepted, p->B);
    const rssm_commit_args args = {.struct_size = sizeof args, .rows = &p->rows_out.t, .accepted = &list.t};
    rssm_error err = h_error();
    hi_status(w, -1, "commit", w->verify_api->commit(w->c->plugin, &args, &err), RSSM_OK, &err);
    for (int32_t b = 0; b < p->B; b++) {
        const pass_row *row = &p->rows[b];
        if (!row->live)
            continue;
        bool moved = again && w->slots[row->slot].pending < 0;
        w->slots[row->slot].pending = 0;
        if (accepted[b] < 0 || accepted[b] > row->len || moved)
            w->faults |= RSSM_FAULT_ACCEPTED;
        else
            accept(w, p, row, (int32_t)accepted[b]);
    }
    h_tensor_free(&list);
}

static void choose_accepted(hi_world *w, const pass *p, int64_t *accepted)
{
    int64_t how = hi_pick(w, 4);
    for (int32_t b = 0; b < p->B; b++) {
        int64_t len = p->rows[b].len;
        accepted[b] = how == 0 ? 0 : how == 1 ? len : hi_pick(w, len + 1);
        if (!p->rows[b].live)
            accepted[b] = hi_pick(w, 2) ? 0 : 77; /* padding: anything */
        else if (hi_one_in(w, 40))
            accepted[b] = hi_one_in(w, 2) ? -1 : len + 1;
    }
}

static void log_accepted(hi_world *w, const pass *p, const char *name, const int64_t *accepted)
{
    char text[128] = "";
    size_t length = 0;
    for (int32_t b = 0; b < p->B && length < sizeof text - 24; b++)
        length +=
            (size_t)snprintf(text + length, sizeof text - length, " %d:%d", (int)p->rows[b].slot, (int)accepted[b]);
    hi_log(w, "%s%s", name, text);
}

/* The commit of a window, and sometimes once more: a slot that moved must not move again. */
static void commit_window(hi_world *w, const pass *p)
{
    int64_t accepted[MAX_ROWS];
    choose_accepted(w, p, accepted);
    hi_begin(w);
    log_accepted(w, p, "commit", accepted);
    commit(w, p, accepted, false);
    hi_end(w);
    if (!hi_one_in(w, 6))
        return;
    hi_begin(w);
    hi_log(w, "commit again");
    for (int32_t b = 0; b < p->B; b++)
        if (p->rows[b].live && accepted[b] > 0 && accepted[b] <= p->rows[b].len)
            w->slots[p->rows[b].slot].pending = -1; /* it moved */
    commit(w, p, accepted, true);
    hi_end(w);
}

/* Nothing that the slot keeps has changed: with nothing accepted, and no fold. */
static void commit_nothing(hi_world *w, const pass *p, unsigned char *const *saved)
{
    const int64_t nothing[MAX_ROWS] = {0};
    hi_begin(w);
    hi_log(w, "commit nothing");
    commit(w, p, nothing, false);
    hi_end(w);
    for (int32_t b = 0; b < p->B; b++) {
        uint64_t length = 0;
        if (!saved[b] || p->rows[b].flush)
            continue;
        unsigned char *now = hi_save(w, p->rows[b].slot, &length);
        hi_check(w, p->rows[b].slot, memcmp(now, saved[b], length) == 0, "commit(0) changed the slot");
        free(now);
    }
}

/* Other slots go on between a window and its commit. */
static void meanwhile(hi_world *w, const pass *p)
{
    pass other;
    int64_t slots[MAX_ROWS];
    hi_begin(w);
    pass_init(&other, false);
    int32_t n = pick_rows(w, slots, 3);
    for (int32_t i = 0; i < n; i++) {
        bool busy = false;
        for (int32_t b = 0; b < p->B; b++)
            busy = busy || p->rows[b].slot == slots[i];
        if (!busy || !hi_is_slot(w, slots[i]))
            add_row(w, &other, slots[i], 1);
    }
    log_pass(w, &other, "meanwhile step");
    step(w, &other);
    hi_end(w);
}

/* max_T becomes less than the longest windows: those rows are padding, and a fault. */
static void shorten(hi_world *w, pass *p)
{
    for (int32_t b = 0; b < p->B; b++)
        if (p->max_T < 2 || (p->rows[b].len == p->max_T && !p->rows[b].live))
            return;
    p->max_T--;
    for (int32_t b = 0; b < p->B; b++)
        if (p->rows[b].len > p->max_T) {
            p->rows[b].live = false;
            p->rows[b].misfit = true;
            w->faults |= RSSM_FAULT_SEQLENS;
        }
}

static void make_windows(hi_world *w, pass *p)
{
    int64_t slots[MAX_ROWS];
    int32_t n = pick_rows(w, slots, 5), Tm = w->c->spec.drafts + 1, room = HI_MAX_TOKENS - 2;
    bool uniform = hi_one_in(w, 3);
    int32_t T = (int32_t)hi_pick(w, Tm + 1);
    for (int32_t b = 0; b < n; b++) {
        int32_t len = uniform ? T : (int32_t)hi_pick(w, Tm + 1);
        add_row(w, p, slots[b], len < room - p->tokens ? len : room - p->tokens);
    }
    if (hi_one_in(w, 20))
        shorten(w, p);
    else if (hi_one_in(w, 4))
        p->max_T += (int32_t)hi_pick(w, Tm - p->max_T + 1);
}

void hi_op_verify(hi_world *w)
{
    pass p;
    unsigned char *saved[MAX_ROWS] = {NULL};
    uint64_t length;
    hi_begin(w);
    pass_init(&p, true);
    make_windows(w, &p);
    if (p.B == 0)
        add_row(w, &p, -1, (int32_t)hi_pick(w, 2));
    p.tokens += (int32_t)hi_pick(w, 3); /* that no row has */
    bool nothing = hi_one_in(w, 4);
    for (int32_t b = 0; nothing && b < p.B; b++)
        saved[b] = p.rows[b].live ? hi_save(w, p.rows[b].slot, &length) : NULL;
    log_pass(w, &p, "verify");
    verify(w, &p);
    hi_end(w);
    if (hi_one_in(w, 3))
        meanwhile(w, &p);
    if (nothing)
        commit_nothing(w, &p, saved);
    else if (!hi_one_in(w, 8))
        commit_window(w, &p);
    else
        hi_log(w, "not committed");
    for (int32_t b = 0; b < p.B; b++) {
        if (hi_is_slot(w, p.rows[b].slot))
            w->slots[p.rows[b].slot].pending = 0;
        free(saved[b]);
    }
    pass_free(w, &p);
}

/* ---- bit for bit ------------------------------------------------------------------------------------------------ */

/* A slot and another one that becomes its copy. */
static bool make_twins(hi_world *w, int64_t *from, int64_t *to)
{
    if (!hi_some_alive(w, from))
        return false;
    do {
        *to = hi_pick(w, w->c->spec.S);
    } while (*to == *from || !hi_is_slot(w, *to));
    hi_copy_one(w, *from, *to);
    return true;
}

static void check_same_slots(hi_world *w, int64_t a, int64_t b)
{
    uint64_t length = 0;
    unsigned char *x = hi_save(w, a, &length), *y = hi_save(w, b, &length);
    hi_check(w, b, memcmp(x, y, length) == 0, "slots %d and %d should hold the same bits", (int)a, (int)b);
    free(x);
    free(y);
}

void hi_op_twins(hi_world *w)
{
    int64_t from, to;
    if (!make_twins(w, &from, &to))
        return;
    int64_t steps = 1 + hi_pick(w, 2 * w->c->spec.L);
    for (int64_t i = 0; i < steps; i++) {
        pass p;
        hi_begin(w);
        pass_init(&p, false);
        if (hi_one_in(w, 2))
            add_row(w, &p, -1, 1);
        add_row(w, &p, from, 1);
        add_row(w, &p, to, 1);
        p.rows[p.B - 1].force = p.rows[p.B - 2].force = hi_one_in(w, 9);
        p.same_as[p.B - 1] = p.B - 2;
        p.equal_out[p.B - 1] = w->exact ? p.B - 2 : -1;
        log_pass(w, &p, "twins");
        step(w, &p);
        hi_end(w);
    }
    if (w->exact)
        check_same_slots(w, from, to);
}

void hi_op_echo(hi_world *w)
{
    int64_t from, to;
    if (!w->verify_api || !make_twins(w, &from, &to))
        return;
    pass p;
    int32_t T = 1 + (int32_t)hi_pick(w, w->c->spec.drafts + 1), same = 1 + (int32_t)hi_pick(w, T);
    hi_begin(w);
    pass_init(&p, true);
    add_row(w, &p, from, T);
    add_row(w, &p, to, T);
    for (int32_t i = 0; i < same; i++)
        p.same_as[T + i] = p.equal_out[T + i] = i;
    log_pass(w, &p, "echo");
    verify(w, &p);
    hi_end(w);
    commit_window(w, &p);
    pass_free(w, &p);
}

/* verify + commit(n) of one slot against n plain steps of its twin, with the same inputs in each layer. Where neither flushes
 * the two slots must hold the same bits. */
void hi_op_versus(hi_world *w)
{
    int64_t from, to;
    if (!w->verify_api || !make_twins(w, &from, &to))
        return;
    pass p;
    int32_t T = 1 + (int32_t)hi_pick(w, w->c->spec.drafts + 1), n = (int32_t)hi_pick(w, T + 1);
    const hi_slot *slot = &w->slots[from];
    bool quiet =
        slot->count + T <= w->c->spec.L && slot->count + n <= w->c->spec.L - 1 - slot->shortened && !w->c->small_batch;
    const int64_t accepted[1] = {n};
    hi_begin(w);
    pass_init(&p, true);
    add_row(w, &p, from, T);
    log_pass(w, &p, "versus verify");
    verify(w, &p);
    hi_end(w);
    hi_begin(w);
    log_accepted(w, &p, "versus commit", accepted);
    commit(w, &p, accepted, false);
    hi_end(w);
    for (int32_t i = 0; i < n; i++) {
        pass one;
        hi_begin(w);
        pass_init(&one, false);
        one.source = &p;
        one.source_token = i;
        add_row(w, &one, to, 1);
        log_pass(w, &one, "versus step");
        step(w, &one);
        hi_end(w);
    }
    if (w->exact && quiet)
        check_same_slots(w, from, to);
    pass_free(w, &p);
}
