#include "decode_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- engines ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name; /* what describe calls it */
    uint32_t init_flag;
    int32_t cpu_level;
} engines[DC_NUM_ENGINES] = {
#ifdef RSSM_CONFORM
    {"plugin", 0, RSSM_CPU_BEST},
#else
    {"reference", RSSM_INIT_CPU_REFERENCE, RSSM_CPU_BEST},
    {"scalar", 0, RSSM_CPU_SCALAR},
    {"avx2", 0, RSSM_CPU_AVX2},
    {"avx512", 0, RSSM_CPU_AVX512},
    {"neon", 0, RSSM_CPU_NEON},
#endif
};

const char *dc_engine_name(int engine)
{
    return engines[engine].name;
}

#ifdef RSSM_CONFORM
bool dc_engine_available(int engine)
{
    (void)engine;
    return true;
}
#else
bool dc_engine_available(int engine)
{
    const rssm_dims dims = {
        .struct_size = sizeof dims, .family = RSSM_FAMILY_GDN, .num_layers = 1, .H = 1, .HV = 1, .K = 1, .V = 1};
    const rssm_init_args args = {.struct_size = sizeof args,
                                 .dims = &dims,
                                 .num_threads = 1,
                                 .flags = engines[engine].init_flag,
                                 .cpu_level = engines[engine].cpu_level};
    rssm_plugin *plugin = NULL;
    rssm_description description = {.struct_size = sizeof description};
    rssm_error err = h_error();
    dc_equal(h_api()->init(&args, &plugin, &err), RSSM_OK);
    dc_equal(h_api()->describe(plugin, &description, &err), RSSM_OK);
    bool available = strcmp(description.cpu_level, engines[engine].name) == 0;
    h_teardown(&plugin);
    dc_check(available || engine > 1, "the %s code is always there", engines[engine].name);
    return available;
}
#endif

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

static bool is_mamba(const dc_case *c)
{
    return c->spec.family == RSSM_FAMILY_MAMBA2;
}

int64_t dc_inner(const dc_case *c, int input)
{
    const h_spec *s = &c->spec;
    switch (input) {
    case DC_Q:
    case DC_K:
        return (int64_t)s->H * s->K;
    case DC_V:
        return (int64_t)s->HV * s->V;
    case DC_A:
        return s->HV * rec_gates(&c->model);
    case DC_B:
        return is_mamba(c) ? 0 : s->HV;
    default:
        return is_mamba(c) && !c->options.no_z ? (int64_t)s->HV * s->V : 0;
    }
}

int64_t dc_weight_size(const dc_case *c, int weight)
{
    const dc_options *o = &c->options;
    const bool present[DC_NUM_WEIGHTS] = {[DC_A_LOG] = !o->no_A_log && !o->decay,
                                          [DC_DT_BIAS] = !o->no_dt_bias,
                                          [DC_D] = is_mamba(c) && !o->no_D,
                                          [DC_DECAY] = o->decay};
    if (!present[weight])
        return 0;
    return weight == DC_DT_BIAS ? c->spec.HV * rec_gates(&c->model) : c->spec.HV;
}

/* Role of an input that is not in the packed row. */
static int32_t input_role(const dc_case *c, int input)
{
    static const int32_t roles[2][DC_NUM_INPUTS] = {
        {RSSM_T_Q, RSSM_T_K, RSSM_T_V, RSSM_T_A, RSSM_T_B, RSSM_T_NONE},
        {RSSM_T_CM, RSSM_T_BM, RSSM_T_X, RSSM_T_DT, RSSM_T_NONE, RSSM_T_Z},
    };
    return roles[is_mamba(c)][input];
}

static int32_t weight_role(int weight)
{
    static const int32_t roles[DC_NUM_WEIGHTS] = {RSSM_T_A_LOG, RSSM_T_DT_BIAS, RSSM_T_D, RSSM_T_A_DECAY};
    return roles[weight];
}

static int32_t pool_role(const dc_case *c, int which)
{
    static const int32_t roles[2][DC_POOL_COUNT] = {
        {RSSM_T_STATE, RSSM_T_D_CACHE, RSSM_T_K_CACHE, RSSM_T_G_CACHE},
        {RSSM_T_STATE, RSSM_T_X_CACHE, RSSM_T_B_CACHE, RSSM_T_DT_CACHE},
    };
    return roles[is_mamba(c)][which];
}

/* ---- a new case ------------------------------------------------------------------------------------------------- */

static rec_model model_of(const dc_options *o, const h_spec *s)
{
    bool mamba = s->family == RSSM_FAMILY_MAMBA2;
    rec_model m = {.family = s->family,
                   .H = s->H,
                   .HV = s->HV,
                   .K = s->K,
                   .V = s->V,
                   .qk_norm = !mamba && !o->no_norm,
                   .has_bound = s->bounded || o->has_bound,
                   .lower_bound = o->has_bound ? o->bound : o->lower_bound,
                   .beta_scale = o->neg_eigval ? 2 : 1,
                   .scale = o->has_scale ? o->scale
                            : mamba      ? 1
                                         : 1 / sqrt((double)s->K),
                   .dt_min = o->has_dt_limit ? o->dt_min : 0,
                   .dt_max = o->has_dt_limit ? o->dt_max : (double)INFINITY};
    return m;
}

static void init_plugin(dc_case *c)
{
    const dc_options *o = &c->options;
    h_need_family(c->spec.family);
    rssm_dims dims = h_dims(&c->spec);
    dims.no_qk_norm = o->no_norm;
    dims.allow_neg_eigval = o->neg_eigval;
    dims.has_time_step_limit = o->has_dt_limit;
    dims.time_step_limit_min = o->dt_min;
    dims.time_step_limit_max = o->dt_max;
    dims.lower_bound = c->spec.bounded ? o->lower_bound : 0;
    rssm_init_args args = h_init_args(&c->spec, &dims);
    args.flags |=
        engines[o->engine].init_flag | (o->spread ? RSSM_INIT_SPREAD_FLUSH : 0) | (o->conv ? RSSM_INIT_CONV_STATE : 0);
    args.cpu_level = engines[o->engine].cpu_level;
    args.has_pad_slot = o->has_pad_slot;
    args.pad_slot = o->has_pad_slot ? o->pad_slot : 0;
    if (o->json) {
        args.dims = NULL;
        args.config_json = o->json;
        args.config_json_len = strlen(o->json);
        args.layer_begin = o->layer_begin;
        args.layer_end = o->layer_end;
    }
    rssm_error err = h_error();
    rssm_status status = h_api()->init(&args, &c->plugin, &err);
    dc_check(status == RSSM_OK, "init: %s", err.message);
    rssm_description d = {.struct_size = sizeof d};
    dc_equal(h_api()->describe(c->plugin, &d, &err), RSSM_OK);
    c->small_batch = d.small_batch;
    status = h_api()->prepare(c->plugin, &err);
    dc_check(status == RSSM_OK, "prepare: %s", err.message);
}

static void replace(h_call *call, int32_t role, DLDataType type, int ndim, const int64_t *shape, int64_t gap)
{
    h_tensor_free(&call->tensors[role]);
    h_tensor_make(&call->tensors[role], type, ndim, shape, gap);
    call->roles[role] = &call->tensors[role].t;
}

static void shift(DLTensor *t)
{
    t->byte_offset = t->dtype.bits / 8;
}

/* The forms that h_spec does not know: A for A_log, shapes with inner dims flat, addresses one element off. */
static void reshape_call(const dc_case *c, h_call *call)
{
    const dc_options *o = &c->options;
    const int64_t heads[1] = {c->spec.HV};
    if (o->decay)
        replace(call, RSSM_T_A_DECAY, h_float_type(c->spec.weights), 1, heads, 0);
    int count;
    const h_role *roles = h_roles(c->spec.family, &count);
    for (int i = 0; i < count; i++) {
        h_tensor *tensor = &call->tensors[roles[i].role];
        if (!tensor->block)
            continue;
        bool weight = roles[i].place == H_WEIGHT, row = roles[i].place == H_INPUT || roles[i].place == H_OUTPUT;
        if (o->misaligned && weight) {
            const int64_t longer[1] = {tensor->shape[0] + 1};
            replace(call, roles[i].role, tensor->t.dtype, 1, longer, 0);
            tensor->shape[0]--;
        }
        if (o->misaligned && row)
            memset(tensor->t.data, 0xFF, tensor->bytes);
        if (o->misaligned && (row || weight))
            shift(&tensor->t);
        if (o->flat && roles[i].alt && row) {
            tensor->shape[1] *= tensor->shape[2];
            tensor->strides[1] = 1;
            tensor->t.ndim = 2;
        }
        if (o->flat && roles[i].role == RSSM_T_A_LOG) { /* as published weights have it: [1, 1, HV, 1] */
            const int64_t shape[4] = {1, 1, c->spec.HV, 1};
            memcpy(tensor->shape, shape, sizeof shape);
            tensor->t.ndim = 4;
        }
        if (o->flat && roles[i].alt && weight) {
            tensor->shape[0] = c->spec.HV;
            tensor->shape[1] = c->spec.K;
            tensor->t.ndim = 2;
        }
    }
}

static void drop_absent(const dc_case *c, h_call *call)
{
    for (int weight = 0; weight < DC_NUM_WEIGHTS; weight++)
        if (dc_weight_size(c, weight) == 0)
            call->roles[weight_role(weight)] = NULL;
    if (is_mamba(c) && dc_inner(c, DC_Z) == 0)
        call->roles[RSSM_T_Z] = NULL;
    for (int which = DC_POOL_D; which < DC_POOL_COUNT && c->options.no_ring; which++)
        call->roles[pool_role(c, which)] = NULL;
}

/* One set of position arrays for all layers: that of layer 0. */
static void share_positions(const dc_case *c)
{
    static const int32_t shared[] = {RSSM_T_ROWS, RSSM_T_WRITE_POS, RSSM_T_FORCE_FLUSH, RSSM_T_STATE_INDICES};
    for (int32_t layer = 1; layer < c->spec.layers; layer++)
        for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
            c->calls[layer]->roles[shared[i]] = c->calls[0]->roles[shared[i]];
}

static void make_tensors(dc_case *c)
{
    const dc_options *o = &c->options;
    c->calls = calloc((size_t)c->spec.layers, sizeof *c->calls);
    c->conv = calloc((size_t)c->spec.layers, sizeof *c->conv);
    dc_assert(c->calls && c->conv);
    for (int32_t layer = 0; layer < c->spec.layers; layer++) {
        /* c->spec has lost the H_NONE */
        h_call *call = c->calls[layer] = h_call_new(&c->options.spec, h_random(&c->random));
        call->args.layer = layer;
        call->args.has_scale = o->has_scale;
        call->args.scale = o->scale;
        call->args.has_lower_bound = o->has_bound;
        call->args.lower_bound = o->bound;
        reshape_call(c, call);
        drop_absent(c, call);
        if (o->conv) {
            int64_t channels = 2 * (int64_t)c->spec.H * c->spec.K + (int64_t)c->spec.HV * c->spec.V;
            const int64_t shape[3] = {c->spec.S, channels, c->spec.drafts ? 4 + c->spec.drafts : 3};
            h_tensor_make(&c->conv[layer], h_float_type(c->spec.io), 3, shape, c->spec.slot_gap);
        }
    }
    share_positions(c);
    const int64_t B[1] = {c->spec.B}, cursors[2] = {c->spec.S, 4};
    h_tensor_make(&c->slots, h_int_type(c->spec.index_bits), 1, B, c->spec.row_gap);
    h_tensor_make(&c->force, h_int_type(c->spec.index_bits), 1, B, c->spec.row_gap);
    h_tensor_make(&c->cursor, h_int_type(32), 2, cursors, c->spec.slot_gap ? 4 : 0);
}

static void bind_pool(dc_case *c)
{
    int32_t layers = c->spec.layers;
    const DLTensor **tensors = calloc((size_t)layers * RSSM_T_COUNT, sizeof *tensors);
    dc_assert(tensors);
    for (int32_t layer = 0; layer < layers; layer++) {
        const DLTensor **of = tensors + layer * RSSM_T_COUNT;
        for (int which = 0; which < DC_POOL_COUNT; which++)
            of[pool_role(c, which)] = &dc_pool(c, layer, which)->t;
        of[RSSM_T_CURSOR] = &c->cursor.t;
        if (c->options.conv)
            of[RSSM_T_CONV] = &c->conv[layer].t;
    }
    const rssm_pool_args args = {.struct_size = sizeof args, .tensors = tensors, .num_roles = RSSM_T_COUNT};
    rssm_error err = h_error();
    rssm_status status = h_api()->pool_create(c->plugin, &args, &err);
    dc_check(status == RSSM_OK, "pool_create: %s", err.message);
    free(tensors);
}

static void make_numbers(dc_case *c)
{
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        c->in[i] = calloc((size_t)(c->spec.B * dc_inner(c, i) + 1), sizeof **c->in);
    for (int i = 0; i < DC_NUM_WEIGHTS; i++) {
        static const double low[] = {-2, -3, -1, -3}, high[] = {1, 0, 1, -.1};
        c->weights[i] = calloc((size_t)(dc_weight_size(c, i) + 1), sizeof **c->weights);
        for (int64_t j = 0; j < dc_weight_size(c, i); j++)
            c->weights[i][j] = h_uniform(&c->random, low[i], high[i]);
    }
    c->host_count = calloc((size_t)c->spec.S, sizeof *c->host_count);
}

dc_case *dc_new(const dc_options *options, uint64_t seed)
{
    dc_case *c = calloc(1, sizeof *c);
    dc_assert(c);
    c->options = *options;
    c->spec = h_defaults(options->spec);
    c->spec.num_slots = c->spec.S;
    if (c->spec.bounded && c->options.lower_bound == 0)
        c->options.lower_bound = -5;
    c->R = h_ring_rows(&c->spec);
    c->model = model_of(&c->options, &c->spec);
    c->random = seed;
    init_plugin(c);
    make_tensors(c);
    bind_pool(c);
    dc_reset(c, NULL, 0);
    make_numbers(c);
    for (int32_t layer = 0; layer < c->spec.layers; layer++)
        dc_put_weights(c, layer);
    dc_randomise(c);
    dc_randomise_states(c);
    dc_poison(c);
    return c;
}

void dc_free(dc_case *c)
{
    h_teardown(&c->plugin);
    for (int32_t layer = 0; layer < c->spec.layers; layer++) {
        dc_assert(h_call_guarded(c->calls[layer]));
        h_call_free(c->calls[layer]);
        if (c->options.conv) {
            dc_assert(h_tensor_guarded(&c->conv[layer]));
            h_tensor_free(&c->conv[layer]);
        }
    }
    dc_assert(h_tensor_guarded(&c->cursor) && h_tensor_guarded(&c->slots) && h_tensor_guarded(&c->force));
    h_tensor_free(&c->cursor);
    h_tensor_free(&c->slots);
    h_tensor_free(&c->force);
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        free(c->in[i]);
    for (int i = 0; i < DC_NUM_WEIGHTS; i++)
        free(c->weights[i]);
    free(c->host_count);
    free(c->conv);
    free(c->calls);
    free(c);
}

/* ---- inputs and weights ----------------------------------------------------------------------------------------- */

static int32_t float_dtype(const DLTensor *t)
{
    if (t->dtype.bits == 32)
        return RSSM_DTYPE_FLOAT32;
    return t->dtype.code == kDLBfloat ? RSSM_DTYPE_BFLOAT16 : RSSM_DTYPE_FLOAT16;
}

void dc_randomise(dc_case *c)
{
    static const double low[] = {-1.5, -1.5, -2, -1, -3, -2}, high[] = {1.5, 1.5, 2, 1, 3, 2};
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        for (int64_t j = 0; j < c->spec.B * dc_inner(c, i); j++)
            c->in[i][j] = h_uniform(&c->random, low[i], high[i]);
}

void dc_randomise_states(dc_case *c)
{
    for (int32_t layer = 0; layer < c->spec.layers; layer++)
        for (int64_t slot = 0; slot < c->spec.S; slot++)
            for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
                rec_store(c->spec.state, dc_slot(c, layer, DC_POOL_STATE, slot), i, h_uniform(&c->random, -1, 1));
}

/* Writes n numbers as elements at.. of row b, and takes back what the dtype made of them. */
static void put_row(const DLTensor *t, int64_t b, int64_t at, double *numbers, int64_t n)
{
    int32_t dtype = float_dtype(t);
    void *row = h_at(t, b, 0, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        rec_store(dtype, row, at + i, numbers[i]);
        numbers[i] = rec_load(dtype, row, at + i);
    }
}

/* Where an input starts in the packed row: q | k | v, or x | B | C. */
static int64_t packed_at(const dc_case *c, int input)
{
    int64_t keys = dc_inner(c, DC_K), values = dc_inner(c, DC_V);
    switch (input) {
    case DC_Q:
        return is_mamba(c) ? values + keys : 0;
    case DC_K:
        return is_mamba(c) ? values : keys;
    default:
        return is_mamba(c) ? 0 : 2 * keys;
    }
}

void dc_put_inputs(dc_case *c, int32_t layer)
{
    h_call *call = c->calls[layer];
    const DLTensor *packed = call->roles[is_mamba(c) ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV];
    for (int i = 0; i < DC_NUM_INPUTS; i++) {
        int64_t n = dc_inner(c, i);
        for (int64_t b = 0; n > 0 && b < c->spec.B; b++) {
            bool in_packed = packed && i <= DC_V;
            const DLTensor *t = in_packed ? packed : call->roles[input_role(c, i)];
            put_row(t, b, in_packed ? packed_at(c, i) : 0, c->in[i] + b * n, n);
        }
    }
    h_tensor *out = &call->tensors[RSSM_T_OUT]; /* NaN, and the gaps back */
    memset(out->t.data, 0xFF, out->bytes);
}

void dc_put_weights(dc_case *c, int32_t layer)
{
    for (int i = 0; i < DC_NUM_WEIGHTS; i++)
        if (dc_weight_size(c, i) > 0)
            put_row(c->calls[layer]->roles[weight_role(i)], 0, 0, c->weights[i], dc_weight_size(c, i));
}

rec_token dc_token(const dc_case *c, int64_t b)
{
    const double *at[DC_NUM_INPUTS];
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        at[i] = dc_inner(c, i) ? c->in[i] + b * dc_inner(c, i) : NULL;
    return (rec_token){.q = at[DC_Q], .k = at[DC_K], .v = at[DC_V], .a = at[DC_A], .b = at[DC_B], .z = at[DC_Z]};
}

rec_weights dc_rec_weights(const dc_case *c)
{
    const double *at[DC_NUM_WEIGHTS];
    for (int i = 0; i < DC_NUM_WEIGHTS; i++)
        at[i] = dc_weight_size(c, i) ? c->weights[i] : NULL;
    return (rec_weights){.A_log = at[DC_A_LOG], .A = at[DC_DECAY], .dt_bias = at[DC_DT_BIAS], .D = at[DC_D]};
}

rec_result dc_result_new(const dc_case *c)
{
    return (rec_result){.out = calloc((size_t)dc_inner(c, DC_V), sizeof(double)),
                        .d = calloc((size_t)dc_inner(c, DC_V), sizeof(double)),
                        .k = calloc((size_t)dc_inner(c, DC_K), sizeof(double)),
                        .g = calloc((size_t)dc_inner(c, DC_A), sizeof(double))};
}

void dc_result_free(rec_result *r)
{
    free(r->out);
    free(r->d);
    free(r->k);
    free(r->g);
}

/* ---- the pool --------------------------------------------------------------------------------------------------- */

h_tensor *dc_pool(const dc_case *c, int32_t layer, int which)
{
    return &c->calls[layer]->tensors[pool_role(c, which)];
}

int32_t dc_pool_dtype(const dc_case *c, int which)
{
    return which == DC_POOL_STATE ? c->spec.state : which == DC_POOL_G ? RSSM_DTYPE_FLOAT32 : c->spec.ring;
}

int64_t dc_record_size(const dc_case *c, int which)
{
    return which == DC_POOL_D ? c->spec.V : which == DC_POOL_K ? c->spec.K : rec_gates(&c->model);
}

static int64_t record_heads(const dc_case *c, int which)
{
    return which == DC_POOL_K ? c->spec.H : c->spec.HV;
}

int64_t dc_record_at(const dc_case *c, int which, int64_t head, int64_t r)
{
    return (head * c->R + r) * dc_record_size(c, which);
}

int64_t dc_pool_inner(const dc_case *c, int which)
{
    if (which == DC_POOL_STATE)
        return rec_state_size(&c->model);
    return record_heads(c, which) * c->R * dc_record_size(c, which);
}

void *dc_slot(const dc_case *c, int32_t layer, int which, int64_t slot)
{
    return h_at(&dc_pool(c, layer, which)->t, slot, 0, 0, 0);
}

int32_t *dc_cursor(const dc_case *c, int64_t slot)
{
    return h_at(&c->cursor.t, slot, 0, 0, 0);
}

static void poison_row(const dc_case *c, int32_t layer, int64_t slot, int64_t r)
{
    for (int which = DC_POOL_D; which < DC_POOL_COUNT; which++) {
        int64_t width = rec_dtype_bytes(dc_pool_dtype(c, which)), size = dc_record_size(c, which);
        for (int64_t head = 0; head < record_heads(c, which); head++)
            memset((char *)dc_slot(c, layer, which, slot) + dc_record_at(c, which, head, r) * width, 0xFF,
                   (size_t)(size * width));
    }
}

void dc_poison(dc_case *c)
{
    for (int64_t slot = 0; slot < c->spec.S; slot++) {
        int64_t base = c->spec.host_pos ? 0 : dc_cursor(c, slot)[0];
        int64_t count = c->spec.host_pos ? c->host_count[slot] : dc_cursor(c, slot)[1];
        for (int64_t r = 0; r < c->R; r++)
            for (int32_t layer = 0; (r - base + c->R) % c->R >= count && layer < c->spec.layers; layer++)
                poison_row(c, layer, slot, r);
    }
}

void dc_reset(dc_case *c, const int64_t *slots, int64_t n)
{
    h_tensor list = {0};
    const int64_t shape[1] = {n};
    h_tensor_make(&list, h_int_type(64), 1, shape, 0);
    for (int64_t i = 0; slots && i < n; i++)
        memcpy(h_at(&list.t, i, 0, 0, 0), &slots[i], sizeof slots[i]);
    const rssm_reset_args args = {.struct_size = sizeof args, .slots = slots ? &list.t : NULL};
    rssm_error err = h_error();
    dc_check(h_api()->reset(c->plugin, &args, &err) == RSSM_OK, "reset: %s", err.message);
    h_tensor_free(&list);
}

uint32_t dc_fault(dc_case *c)
{
    const rssm_fault_api *fault = h_api()->get_extension(RSSM_EXT_FAULT);
    dc_assert(fault);
    uint32_t word = 0xFFFFFFFF, again = 0xFFFFFFFF;
    rssm_error err = h_error();
    dc_equal(fault->read(c->plugin, NULL, &word, &err), RSSM_OK);
    dc_equal(fault->read(c->plugin, NULL, &again, &err), RSSM_OK);
    dc_equal(word, again); /* sticky */
    dc_equal(fault->clear(c->plugin, NULL, &err), RSSM_OK);
    dc_equal(fault->read(c->plugin, NULL, &again, &err), RSSM_OK);
    dc_equal(again, 0);
    return word;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

static void set_index(const DLTensor *t, int64_t i, int64_t value)
{
    int32_t narrow = (int32_t)value;
    if (t->dtype.bits == 64)
        memcpy(h_at(t, i, 0, 0, 0), &value, sizeof value);
    else
        memcpy(h_at(t, i, 0, 0, 0), &narrow, sizeof narrow);
}

static int64_t get_index(const DLTensor *t, int64_t i)
{
    int64_t value;
    int32_t narrow;
    memcpy(&narrow, h_at(t, i, 0, 0, 0), sizeof narrow);
    if (t->dtype.bits == 32)
        return narrow;
    memcpy(&value, h_at(t, i, 0, 0, 0), sizeof value);
    return value;
}

static bool is_padding(const dc_case *c, int64_t slot)
{
    return slot < 0 || slot >= c->spec.S || (c->options.has_pad_slot && slot == c->options.pad_slot);
}

/* The host's own cursors: this pass's arrays, then the move. */
static void begin_on_host(dc_case *c, const int64_t *slots, const int32_t *force)
{
    const DLTensor *const *roles = c->calls[0]->roles;
    for (int64_t b = 0; b < c->spec.B; b++) {
        int64_t count = is_padding(c, slots[b]) ? 0 : c->host_count[slots[b]];
        int flush = count >= c->spec.L - 1 || (force && force[b]);
        set_index(roles[RSSM_T_WRITE_POS], b, count);
        set_index(roles[RSSM_T_FORCE_FLUSH], b, force ? force[b] : 0);
        set_index(roles[RSSM_T_STATE_INDICES], b, slots[b]);
        if (!is_padding(c, slots[b]))
            c->host_count[slots[b]] = flush ? 0 : count + 1;
    }
}

void dc_begin(dc_case *c, const int64_t *slots, const int32_t *force)
{
    if (c->spec.host_pos) {
        begin_on_host(c, slots, force);
        return;
    }
    for (int64_t b = 0; b < c->spec.B; b++) {
        set_index(&c->slots.t, b, slots[b]);
        set_index(&c->force.t, b, force ? force[b] : 0);
    }
    const rssm_step_begin_args args = {.struct_size = sizeof args,
                                       .slots = &c->slots.t,
                                       .force_flush = force ? &c->force.t : NULL,
                                       .rows_out = c->calls[0]->roles[RSSM_T_ROWS]};
    rssm_error err = h_error();
    rssm_status status = h_api()->step_begin(c->plugin, &args, &err);
    dc_check(status == RSSM_OK, "step_begin: %s", err.message);
}

static dc_row checked_row(const dc_case *c, dc_row row)
{
    const dc_row padding = {.slot = -1};
    const int64_t records = c->spec.L > 1 ? c->spec.L : 0; /* that may be pending */
    if (is_padding(c, row.slot) || row.count < 0 || row.count > records || row.base < 0 || row.base >= c->R ||
        (!row.flush && row.count >= records))
        return padding;
    return row;
}

dc_row dc_row_at(const dc_case *c, int64_t b)
{
    const DLTensor *const *roles = c->calls[0]->roles;
    dc_row row = {0};
    if (!c->spec.host_pos) {
        const int32_t *numbers = h_at(roles[RSSM_T_ROWS], b, 0, 0, 0);
        row = (dc_row){.slot = numbers[0], .base = numbers[1], .count = numbers[2], .flush = numbers[3] != 0};
        return checked_row(c, row);
    }
    row.slot = roles[RSSM_T_STATE_INDICES] ? get_index(roles[RSSM_T_STATE_INDICES], b) : b;
    row.count = get_index(roles[RSSM_T_WRITE_POS], b);
    row.flush =
        row.count >= c->spec.L - 1 || (roles[RSSM_T_FORCE_FLUSH] && get_index(roles[RSSM_T_FORCE_FLUSH], b) != 0);
    return checked_row(c, row);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

rssm_status dc_try_decode(dc_case *c, int32_t layer, rssm_error *err)
{
    return h_api()->decode(c->plugin, &c->calls[layer]->args, err);
}

void dc_decode(dc_case *c, int32_t layer)
{
    rssm_error err = h_error();
    dc_check(dc_try_decode(c, layer, &err) == RSSM_OK, "decode: %s", err.message);
}

double dc_out(const dc_case *c, int32_t layer, int64_t b, int64_t i)
{
    const DLTensor *out = c->calls[layer]->roles[RSSM_T_OUT];
    return rec_load(float_dtype(out), h_at(out, b, 0, 0, 0), i);
}

static void load(int32_t dtype, const void *from, int64_t at, double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = rec_load(dtype, from, at + i);
}

/* Record j of the row as [heads][size]. */
static void load_record(const dc_case *c, int32_t layer, dc_row row, int64_t j, int which, double *to)
{
    int64_t size = dc_record_size(c, which);
    for (int64_t head = 0; head < record_heads(c, which); head++)
        load(dc_pool_dtype(c, which), dc_slot(c, layer, which, row.slot),
             dc_record_at(c, which, head, (row.base + j) % c->R), to + head * size, size);
}

void dc_materialise(const dc_case *c, int32_t layer, dc_row row, double *state)
{
    rec_result r = dc_result_new(c);
    rec_weights w = dc_rec_weights(c);
    load(c->spec.state, dc_slot(c, layer, DC_POOL_STATE, row.slot), 0, state, dc_pool_inner(c, DC_POOL_STATE));
    for (int64_t j = 0; j < row.count; j++) {
        load_record(c, layer, row, j, DC_POOL_D, r.d);
        load_record(c, layer, row, j, DC_POOL_K, r.k);
        load_record(c, layer, row, j, DC_POOL_G, r.g);
        rec_apply(&c->model, &w, r.d, r.k, r.g, state);
    }
    dc_result_free(&r);
}

/* ---- checking a step against the recurrence --------------------------------------------------------------------- */

void dc_merge(dc_worst *into, dc_worst other)
{
    into->out = fmax(into->out, other.out);
    into->state = fmax(into->state, other.state);
    into->record = fmax(into->record, other.record);
    into->gate = fmax(into->gate, other.gate);
}

void dc_print_worst(const char *name, int engine, dc_worst worst)
{
    if (getenv("RSSM_TEST_FIGURES"))
        fprintf(stderr, "%-40s %-9s out %.3f state %.3f record %.3f gate %.3f (1 = the bar)\n", name,
                dc_engine_name(engine), worst.out, worst.state, worst.record, worst.gate);
}

/* What the step should do to one row, from the bytes before it. */
typedef struct expected {
    dc_row row;
    rec_result r;  /* unrounded */
    double *state; /* decayed and not yet with the token: what a flush adds it to */
} expected;

/* |error| as a multiple of its bar: float32 `bar`, 16-bit 1.05 of what rounding the exact numbers costs. */
static double against_bar(int32_t dtype, const double *got, const double *want, int64_t n, double bar)
{
    double error = rec_error(got, want, n), rounding = 0, size = 0;
    if (dtype == RSSM_DTYPE_FLOAT32 || error == 0)
        return error / bar;
    for (int64_t i = 0; i < n; i++) {
        double difference = rec_round(dtype, want[i]) - want[i];
        rounding += difference * difference;
        size += want[i] * want[i];
    }
    /* an exactly representable result still is computed in float32 */
    return error / (1.05 * sqrt(rounding / size) + 1e-7);
}

static double check_output(const dc_case *c, int32_t layer, int64_t b, const expected *e)
{
    const DLTensor *out = c->calls[layer]->roles[RSSM_T_OUT];
    int64_t n = dc_inner(c, DC_V);
    double *got = malloc((size_t)n * sizeof *got);
    for (int64_t i = 0; i < n; i++)
        got[i] = dc_out(c, layer, b, i);
    double ratio = against_bar(float_dtype(out), got, e->r.out, n, 2e-6);
    free(got);
    return ratio;
}

/* Element by element for 16-bit rings: half a unit in the last place, with 1e-5 for either side of a tie, and what
 * float32 loses where v - S k cancels. For float32 rings relative L2. */
static double check_record_tensor(const dc_case *c, int32_t layer, const expected *e, int which, const double *want)
{
    int32_t dtype = dc_pool_dtype(c, which);
    int64_t n = record_heads(c, which) * dc_record_size(c, which);
    double *got = malloc((size_t)n * sizeof *got), worst = 0, scale = 0;
    load_record(c, layer, e->row, e->row.count, which, got);
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (int64_t i = 0; dtype != RSSM_DTYPE_FLOAT32 && i < n; i++) {
        double slack = 1e-5 * fabs(want[i]) + (which == DC_POOL_D ? 2e-7 * scale : 0);
        double error = fabs(got[i] - want[i]) / (rec_ulp(dtype, want[i]) / 2 + slack);
        worst = isfinite(error) ? fmax(worst, error) : (double)INFINITY;
    }
    if (dtype == RSSM_DTYPE_FLOAT32)
        worst = rec_error(got, want, n) / 1e-6;
    free(got);
    return worst;
}

/* Record values of a flush are seen only through the state. Those near a rounding tie may have gone either way: take
 * the way that fits the state better, key channel by key channel, then value by value. */
static double misfit(const dc_case *c, const expected *e, const double *got, int64_t hv, int64_t v, int64_t i)
{
    int64_t at = (hv * c->spec.V + v) * c->spec.K + i;
    double dt = is_mamba(c) ? e->r.g[hv] : 1;
    double key = e->r.k[hv / (c->spec.HV / c->spec.H) * c->spec.K + i];
    double error = e->state[at] + dt * e->r.d[hv * c->spec.V + v] * key - got[at];
    return error * error;
}

static double misfit_of_key(const dc_case *c, const expected *e, const double *got, int64_t h, int64_t i)
{
    int64_t group = c->spec.HV / c->spec.H;
    double sum = 0;
    for (int64_t hv = h * group; hv < (h + 1) * group; hv++)
        for (int64_t v = 0; v < c->spec.V; v++)
            sum += misfit(c, e, got, hv, v, i);
    return sum;
}

static double misfit_of_value(const dc_case *c, const expected *e, const double *got, int64_t hv, int64_t v)
{
    double sum = 0;
    for (int64_t i = 0; i < c->spec.K; i++)
        sum += misfit(c, e, got, hv, v, i);
    return sum;
}

static void settle_ties(const dc_case *c, expected *e, const double *exact_d, const double *exact_k, const double *got)
{
    for (int64_t x = 0; x < c->spec.H * c->spec.K; x++) {
        double nearest = e->r.k[x], other = rec_round_other(c->spec.ring, exact_k[x]);
        double with_nearest = misfit_of_key(c, e, got, x / c->spec.K, x % c->spec.K);
        e->r.k[x] = other;
        if (other == nearest || misfit_of_key(c, e, got, x / c->spec.K, x % c->spec.K) >= with_nearest)
            e->r.k[x] = nearest;
    }
    for (int64_t x = 0; x < c->spec.HV * c->spec.V; x++) {
        double nearest = e->r.d[x], other = rec_round_other(c->spec.ring, exact_d[x]);
        double with_nearest = misfit_of_value(c, e, got, x / c->spec.V, x % c->spec.V);
        e->r.d[x] = other;
        if (other == nearest || misfit_of_value(c, e, got, x / c->spec.V, x % c->spec.V) >= with_nearest)
            e->r.d[x] = nearest;
    }
}

static double check_flushed_state(const dc_case *c, int32_t layer, expected *e)
{
    int64_t n = dc_pool_inner(c, DC_POOL_STATE), values = dc_inner(c, DC_V), keys = dc_inner(c, DC_K);
    rec_weights w = dc_rec_weights(c);
    double *got = malloc((size_t)n * sizeof *got), *exact_d = malloc((size_t)values * sizeof *exact_d),
           *exact_k = malloc((size_t)keys * sizeof *exact_k), *zero = calloc((size_t)values, sizeof *zero);
    load(c->spec.state, dc_slot(c, layer, DC_POOL_STATE, e->row.slot), 0, got, n);
    memcpy(exact_d, e->r.d, (size_t)values * sizeof *exact_d);
    memcpy(exact_k, e->r.k, (size_t)keys * sizeof *exact_k);
    rec_apply(&c->model, &w, zero, e->r.k, e->r.g, e->state); /* decay alone */
    rec_round_record(&c->model, c->spec.ring, &e->r);
    if (c->spec.ring != RSSM_DTYPE_FLOAT32)
        settle_ties(c, e, exact_d, exact_k, got);
    for (int64_t hv = 0; hv < c->spec.HV; hv++) {
        const double *key = e->r.k + hv / (c->spec.HV / c->spec.H) * c->spec.K;
        for (int64_t x = 0; x < (int64_t)c->spec.V * c->spec.K; x++)
            e->state[hv * c->spec.V * c->spec.K + x] +=
                (is_mamba(c) ? e->r.g[hv] : 1) * e->r.d[hv * c->spec.V + x / c->spec.K] * key[x % c->spec.K];
    }
    double ratio = against_bar(c->spec.state, got, e->state, n, 1e-6);
    free(got);
    free(exact_d);
    free(exact_k);
    free(zero);
    return ratio;
}

static dc_worst check_row(const dc_case *c, int32_t layer, int64_t b, expected *e)
{
    dc_worst worst = {0};
    if (e->row.slot < 0) {
        const DLTensor *out = c->calls[layer]->roles[RSSM_T_OUT];
        const char *bytes = h_at(out, b, 0, 0, 0);
        for (int64_t i = 0; i < dc_inner(c, DC_V) * out->dtype.bits / 8; i++)
            dc_check(bytes[i] == 0, "row %d is padding and its output not zero", (int)b);
        return worst;
    }
    worst.out = check_output(c, layer, b, e);
    if (e->row.flush) {
        worst.state = check_flushed_state(c, layer, e);
        return worst;
    }
    worst.record =
        fmax(check_record_tensor(c, layer, e, DC_POOL_D, e->r.d), check_record_tensor(c, layer, e, DC_POOL_K, e->r.k));
    worst.gate = check_record_tensor(c, layer, e, DC_POOL_G, e->r.g);
    return worst;
}

/* Puts back what a row may have written, as it was in `before`, so that all the rest can be compared at once. */
static void forget_row(const dc_case *c, int32_t layer, dc_row row, int which, unsigned char *after,
                       const unsigned char *before)
{
    const unsigned char *slot = dc_slot(c, layer, which, row.slot);
    int64_t offset = slot - (const unsigned char *)dc_pool(c, layer, which)->t.data;
    int64_t width = rec_dtype_bytes(dc_pool_dtype(c, which));
    if (which == DC_POOL_STATE) {
        if (row.flush)
            memcpy(after + offset, before + offset, (size_t)(dc_pool_inner(c, which) * width));
        return;
    }
    for (int64_t head = 0; !row.flush && head < record_heads(c, which); head++) {
        int64_t at = offset + dc_record_at(c, which, head, (row.base + row.count) % c->R) * width;
        memcpy(after + at, before + at, (size_t)(dc_record_size(c, which) * width));
    }
}

static void check_rest(const dc_case *c, int32_t layer, const expected *rows, unsigned char *const *before)
{
    for (int which = 0; which < DC_POOL_COUNT; which++) {
        h_tensor *tensor = dc_pool(c, layer, which);
        unsigned char *after = malloc(tensor->bytes + 1);
        memcpy(after, tensor->t.data, tensor->bytes);
        for (int64_t b = 0; b < c->spec.B; b++)
            if (rows[b].row.slot >= 0)
                forget_row(c, layer, rows[b].row, which, after, before[which]);
        dc_check(memcmp(after, before[which], tensor->bytes) == 0,
                 "bytes of pool tensor %d changed that the step must leave alone", which);
        dc_assert(h_tensor_guarded(tensor));
        free(after);
    }
}

/* The gaps between the rows of out stay NaN. */
static void check_out_gaps(const dc_case *c, int32_t layer)
{
    const h_tensor *out = &c->calls[layer]->tensors[RSSM_T_OUT];
    int64_t width = out->t.dtype.bits / 8, row = dc_inner(c, DC_V) * width;
    int64_t stride = row + c->spec.row_gap * width, shifted = (int64_t)out->t.byte_offset;
    const unsigned char *bytes = out->t.data;
    for (int64_t i = 0; i < (int64_t)out->bytes; i++) {
        int64_t at = i - shifted;
        dc_check((at >= 0 && at % stride < row) || bytes[i] == 0xFF, "a gap of out was written");
    }
    dc_assert(h_tensor_guarded(out));
}

static void expect_row(const dc_case *c, int32_t layer, int64_t b, expected *e)
{
    e->row = dc_row_at(c, b);
    e->r = dc_result_new(c);
    e->state = calloc((size_t)dc_pool_inner(c, DC_POOL_STATE), sizeof *e->state);
    if (e->row.slot < 0)
        return;
    rec_token token = dc_token(c, b);
    rec_weights w = dc_rec_weights(c);
    dc_materialise(c, layer, e->row, e->state);
    rec_compute(&c->model, &w, &token, e->state, &e->r);
}

dc_worst dc_decode_checked(dc_case *c, int32_t layer)
{
    expected *rows = calloc((size_t)c->spec.B + 1, sizeof *rows);
    unsigned char *before[DC_POOL_COUNT];
    dc_worst worst = {0};
    for (int which = 0; which < DC_POOL_COUNT; which++) {
        h_tensor *tensor = dc_pool(c, layer, which);
        before[which] = malloc(tensor->bytes + 1);
        memcpy(before[which], tensor->t.data, tensor->bytes);
    }
    for (int64_t b = 0; b < c->spec.B; b++)
        expect_row(c, layer, b, &rows[b]);
    unsigned char *cursors = malloc(c->cursor.bytes + 1);
    memcpy(cursors, c->cursor.t.data, c->cursor.bytes);
    dc_decode(c, layer);
    dc_check(memcmp(cursors, c->cursor.t.data, c->cursor.bytes) == 0, "decode moved a cursor");
    free(cursors);
    check_rest(c, layer, rows, before);
    check_out_gaps(c, layer);
    for (int64_t b = 0; b < c->spec.B; b++) {
        dc_worst row = check_row(c, layer, b, &rows[b]);
        double record_bar = c->options.record_bar > 0 ? c->options.record_bar : 1;
        dc_check(row.out <= 1 && row.state <= 1 && row.record <= record_bar && row.gate <= 1,
                 "%s %s, count %d, flush %d: out %g state %g record %g gate %g times the bar",
                 dc_engine_name(c->options.engine),
                 c->spec.family == RSSM_FAMILY_KDA   ? "kda"
                 : c->spec.family == RSSM_FAMILY_GDN ? "gdn"
                                                     : "mamba2",
                 (int)rows[b].row.count, rows[b].row.flush, row.out, row.state, row.record, row.gate);
        dc_merge(&worst, row);
        dc_result_free(&rows[b].r);
        free(rows[b].state);
    }
    for (int which = 0; which < DC_POOL_COUNT; which++)
        free(before[which]);
    free(rows);
    return worst;
}

dc_worst dc_step_checked(dc_case *c, const int64_t *slots, const int32_t *force)
{
    dc_worst worst = {0};
    dc_poison(c);
    dc_begin(c, slots, force);
    for (int32_t layer = 0; layer < c->spec.layers; layer++) {
        dc_randomise(c);
        dc_put_inputs(c, layer);
        dc_merge(&worst, dc_decode_checked(c, layer));
    }
    return worst;
}

/* ---- two cases -------------------------------------------------------------------------------------------------- */

void dc_copy_inputs(dc_case *to, const dc_case *from)
{
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        memcpy(to->in[i], from->in[i], (size_t)(from->spec.B * dc_inner(from, i)) * sizeof **to->in);
}

static void copy_slots(dc_case *to, const dc_case *from, int32_t layer, int which)
{
    int64_t bytes = dc_pool_inner(from, which) * rec_dtype_bytes(dc_pool_dtype(from, which));
    for (int64_t slot = 0; slot < from->spec.S; slot++)
        memcpy(dc_slot(to, layer, which, slot), dc_slot(from, layer, which, slot), (size_t)bytes);
}

void dc_copy_start(dc_case *to, const dc_case *from)
{
    for (int i = 0; i < DC_NUM_WEIGHTS; i++)
        memcpy(to->weights[i], from->weights[i], (size_t)dc_weight_size(from, i) * sizeof **to->weights);
    for (int32_t layer = 0; layer < from->spec.layers; layer++) {
        dc_put_weights(to, layer);
        for (int which = 0; which < DC_POOL_COUNT; which++)
            copy_slots(to, from, layer, which);
    }
    for (int64_t slot = 0; slot < from->spec.S; slot++)
        memcpy(dc_cursor(to, slot), dc_cursor(from, slot), 4 * sizeof(int32_t));
}

static void assert_same_outputs(const dc_case *a, const dc_case *b, int32_t layer)
{
    const DLTensor *x = a->calls[layer]->roles[RSSM_T_OUT], *y = b->calls[layer]->roles[RSSM_T_OUT];
    for (int64_t row = 0; row < a->spec.B; row++)
        dc_check(
            memcmp(h_at(x, row, 0, 0, 0), h_at(y, row, 0, 0, 0), (size_t)(dc_inner(a, DC_V) * x->dtype.bits / 8)) == 0,
            "outputs of row %d differ", (int)row);
}

void dc_assert_same(const dc_case *a, const dc_case *b)
{
    for (int32_t layer = 0; layer < a->spec.layers; layer++) {
        assert_same_outputs(a, b, layer);
        for (int which = 0; which < DC_POOL_COUNT; which++) {
            int64_t bytes = dc_pool_inner(a, which) * rec_dtype_bytes(dc_pool_dtype(a, which));
            for (int64_t slot = 0; slot < a->spec.S; slot++)
                dc_check(memcmp(dc_slot(a, layer, which, slot), dc_slot(b, layer, which, slot), (size_t)bytes) == 0,
                         "pool tensor %d, slot %d differ", which, (int)slot);
        }
    }
}
