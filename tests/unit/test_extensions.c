/* Bad input of the extensions slots, verify and conv: each tensor of each call with each defect, arguments, struct sizes,
 * and with RSSM_CHECK_DEEP the values. Every defect is refused with its status, the tensor's name and both sides, and no byte
 * of the pool or of a tensor changes. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext_case.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const int32_t families[] = {RSSM_FAMILY_KDA, RSSM_FAMILY_GDN, RSSM_FAMILY_MAMBA2};

/* What a refused call must say. */
typedef struct refusal {
    rssm_status status;
    int32_t role, dim;     /* -2: not looked at */
    const char *texts[3];  /* in the message */
    int64_t expected, got; /* with sides */
    bool sides;
} refusal;

typedef struct outcome {
    rssm_status status;
    rssm_error err;
} outcome;

static outcome run(ec_case *c, ec_call call)
{
    outcome o = {.err = h_error()};
    o.status = ec_run(c, call, &o.err);
    return o;
}

/* ec_remember was before the call. */
static void judge(const ec_case *c, ec_call call, const char *what, const refusal *want, const outcome *o)
{
    const char *said = o->err.message;
    ck_assert_msg(o->status == want->status, "%s, %s: %s instead of %s: %s", ec_name(call), what,
                  h_api()->status_name(o->status), h_api()->status_name(want->status), said);
    ck_assert_msg(o->err.status == o->status, "%s, %s: err.status %d", ec_name(call), what, o->err.status);
    ck_assert_msg(want->role == -2 || o->err.role == want->role, "%s, %s: role %s: %s", ec_name(call), what,
                  h_api()->role_name(o->err.role), said);
    ck_assert_msg(want->dim == -2 || o->err.dim == want->dim, "%s, %s: dim %d: %s", ec_name(call), what, o->err.dim,
                  said);
    for (int i = 0; i < COUNT(want->texts); i++)
        ck_assert_msg(!want->texts[i] || strstr(said, want->texts[i]), "%s, %s: no \"%s\" in: %s", ec_name(call), what,
                      want->texts[i], said);
    ck_assert_msg(!want->sides || (o->err.expected == want->expected && o->err.got == want->got),
                  "%s, %s: expected %lld, got %lld: %s", ec_name(call), what, (long long)o->err.expected,
                  (long long)o->err.got, said);
    ck_assert_msg(!ec_changed(c), "%s, %s: bytes have changed", ec_name(call), what);
}

static void check_refused(ec_case *c, ec_call call, const char *what, const refusal *want)
{
    ec_remember(c);
    outcome o = run(c, call);
    judge(c, call, what, want, &o);
}

static void check_accepted(ec_case *c, ec_call call, const char *what)
{
    outcome o = run(c, call);
    ck_assert_msg(o.status == RSSM_OK, "%s, %s: %s: %s", ec_name(call), what, h_api()->status_name(o.status),
                  o.err.message);
    ck_assert_msg(!o.err.message[0], "%s, %s: a message on success: %s", ec_name(call), what, o.err.message);
}

/* ---- each tensor with each defect ------------------------------------------------------------------------------- */

/* Spoils the tensor; false when it cannot have the defect. */
typedef struct defect {
    const char *name;
    bool (*spoil)(ec_tensor *t, refusal *want);
} defect;

static int64_t inner(const ec_tensor *t)
{
    int64_t elements = 1;
    for (int i = 1; i < t->h.t.ndim; i++)
        elements *= t->h.shape[i];
    return elements;
}

static bool is_written(const ec_tensor *t)
{
    return t->place == H_OUTPUT || (t->place == H_INDEX && t->h.t.ndim == 2);
}

static bool more_dims(ec_tensor *t, refusal *want)
{
    t->h.shape[t->h.t.ndim] = 2;
    t->h.strides[t->h.t.ndim] = 1;
    t->h.t.ndim++;
    int32_t dim = t->role == RSSM_T_DT_BIAS ? -2 : -1; /* KDA's may have two */
    *want = (refusal){.status = RSSM_ERR_SHAPE, .role = t->role, .dim = dim, .texts = {t->name, "must have shape"}};
    return true;
}

static bool no_dims(ec_tensor *t, refusal *want)
{
    *want = (refusal){.status = RSSM_ERR_SHAPE,
                      .role = t->role,
                      .dim = -1,
                      .texts = {t->name, "0 dimensions"},
                      .expected = t->h.t.ndim,
                      .sides = true};
    t->h.t.ndim = 0;
    return true;
}

/* The first dimension that binds a symbol is found wrong at the next tensor. */
static bool longer(ec_tensor *t, refusal *want, int dim)
{
    if (dim >= t->h.t.ndim)
        return false;
    bool binds = dim == 0 && t->binds;
    *want = (refusal){.status = RSSM_ERR_SHAPE,
                      .role = binds ? -2 : t->role,
                      .dim = binds ? -2 : dim,
                      .texts = {binds ? NULL : t->name, "must have shape"},
                      .expected = t->h.shape[dim],
                      .got = t->h.shape[dim] + 1,
                      .sides = !binds};
    t->h.shape[dim]++;
    return true;
}

static bool longer_0(ec_tensor *t, refusal *want)
{
    return longer(t, want, 0);
}
static bool longer_1(ec_tensor *t, refusal *want)
{
    return longer(t, want, 1);
}
static bool longer_2(ec_tensor *t, refusal *want)
{
    return longer(t, want, 2);
}
static bool longer_3(ec_tensor *t, refusal *want)
{
    return longer(t, want, 3);
}

static bool no_shape(ec_tensor *t, refusal *want)
{
    t->h.t.shape = NULL;
    *want = (refusal){.status = RSSM_ERR_ARGUMENT, .role = t->role, .dim = -1, .texts = {t->name, "no shape"}};
    return true;
}

static bool wrong_type(ec_tensor *t, refusal *want, DLDataType type)
{
    t->h.t.dtype = type;
    *want = (refusal){.status = RSSM_ERR_DTYPE, .role = t->role, .dim = -1, .texts = {t->name, "must have dtype"}};
    return true;
}

static bool int8(ec_tensor *t, refusal *want)
{
    return wrong_type(t, want, h_int_type(8));
}
static bool float64(ec_tensor *t, refusal *want)
{
    return wrong_type(t, want, (DLDataType){.code = kDLFloat, .bits = 64, .lanes = 1});
}
static bool lanes(ec_tensor *t, refusal *want)
{
    return wrong_type(t, want, (DLDataType){.code = t->h.t.dtype.code, .bits = t->h.t.dtype.bits, .lanes = 2});
}
static bool other_half(ec_tensor *t, refusal *want)
{
    bool any = t->place == H_WEIGHT || t->role == RSSM_T_STATE || t->role == RSSM_T_CONV || t->place == H_INDEX;
    return !any && wrong_type(t, want, h_float_type(RSSM_DTYPE_FLOAT16)); /* io is bfloat16 */
}

static bool on_gpu(ec_tensor *t, refusal *want)
{
    const bool swapped = h_on_cuda();
    t->h.t.device.device_type = kDLCUDA;
    *want = (refusal){.status = RSSM_ERR_DEVICE,
                      .role = t->role,
                      .dim = -1,
                      .texts = {t->name, swapped ? "on cuda:0" : "on cpu", swapped ? "got cpu" : "got cuda:0"},
                      .expected = swapped ? kDLCUDA : kDLCPU,
                      .got = swapped ? kDLCPU : kDLCUDA,
                      .sides = true};
    return true;
}

static bool inner_stride(ec_tensor *t, refusal *want)
{
    int dim = t->h.t.ndim - 1;
    if ((dim == 0 && t->place == H_INDEX) || t->h.shape[dim] < 2)
        return false;
    t->h.strides[dim] = 2;
    *want = (refusal){.status = RSSM_ERR_STRIDE,
                      .role = t->role,
                      .dim = dim,
                      .texts = {t->name, "compact"},
                      .expected = 1,
                      .got = 2,
                      .sides = true};
    return true;
}

static bool negative_stride(ec_tensor *t, refusal *want)
{
    if (t->h.shape[0] < 2)
        return false;
    t->h.strides[0] = -t->h.strides[0];
    *want = (refusal){.status = RSSM_ERR_STRIDE, .role = t->role, .dim = 0, .texts = {t->name, "negative"}};
    return true;
}

static bool overlapping_rows(ec_tensor *t, refusal *want)
{
    if (!is_written(t) || t->h.shape[0] < 2)
        return false;
    t->h.strides[0] = inner(t) - 1;
    *want = (refusal){.status = RSSM_ERR_STRIDE,
                      .role = t->role,
                      .dim = 0,
                      .texts = {t->name, "overlapping rows"},
                      .expected = inner(t),
                      .got = inner(t) - 1,
                      .sides = true};
    return true;
}

static bool misaligned(ec_tensor *t, refusal *want)
{
    t->h.t.byte_offset = 1;
    *want = (refusal){.status = RSSM_ERR_ALIGNMENT,
                      .role = t->role,
                      .dim = -1,
                      .texts = {t->name, "aligned"},
                      .expected = t->h.t.dtype.bits / 8,
                      .got = 1,
                      .sides = true};
    return true;
}

static bool no_data(ec_tensor *t, refusal *want)
{
    t->h.t.data = NULL;
    *want = (refusal){.status = RSSM_ERR_ARGUMENT, .role = t->role, .dim = -1, .texts = {t->name, "NULL data"}};
    return true;
}

static bool wraps(ec_tensor *t, refusal *want)
{
    t->h.t.byte_offset = UINT64_MAX - 63;
    *want = (refusal){.status = RSSM_ERR_OVERFLOW, .role = t->role, .dim = -1, .texts = {t->name, "address space"}};
    return true;
}

static bool huge_stride(ec_tensor *t, refusal *want)
{
    if (t->place == H_WEIGHT || t->h.shape[0] < 2)
        return false;
    t->h.strides[0] = INT64_MAX / 2;
    *want = (refusal){.status = RSSM_ERR_OVERFLOW, .role = t->role, .dim = -1, .texts = {t->name, "2^63"}};
    return true;
}

static const defect defects[] = {
    {"a dimension more", more_dims},
    {"no dimensions", no_dims},
    {"longer dim 0", longer_0},
    {"longer dim 1", longer_1},
    {"longer dim 2", longer_2},
    {"longer dim 3", longer_3},
    {"no shape", no_shape},
    {"int8", int8},
    {"float64", float64},
    {"two lanes", lanes},
    {"float16", other_half},
    {"on a GPU", on_gpu},
    {"inner stride 2", inner_stride},
    {"negative stride", negative_stride},
    {"overlapping rows", overlapping_rows},
    {"misaligned", misaligned},
    {"NULL data", no_data},
    {"byte_offset that wraps", wraps},
    {"huge stride", huge_stride},
};

/* Nothing else of the call has its length. */
static bool is_free(ec_call call, const ec_tensor *t)
{
    bool windows = call != EC_CONV && call != EC_COMMIT && call != EC_VERIFY_BEGIN;
    return call == EC_FLUSH ? t->role == RSSM_T_SLOTS : windows && t->role == RSSM_T_ROWS;
}

static void try_defect(ec_case *c, ec_call call, ec_tensor *t, const defect *d)
{
    char what[120];
    refusal want;
    h_tensor saved = t->h;
    snprintf(what, sizeof(what), "`%s` of layer %d: %s", t->name, t->layer, d->name);
    ec_remember(c);
    bool spoiled = !(d->spoil == longer_0 && is_free(call, t)) && d->spoil(t, &want);
    outcome o = spoiled ? run(c, call) : (outcome){0};
    t->h = saved;
    if (spoiled)
        judge(c, call, what, &want, &o);
}

/* Left out: refused, unless it is optional. */
static void try_missing(ec_case *c, ec_call call, ec_tensor *t)
{
    const DLTensor **where = ec_where(c, call, t), *saved = *where;
    bool packed =
        t->role == RSSM_T_MIXED_QKV || t->role == RSSM_T_MIXED_XBC; /* then the first of its parts is missing */
    const refusal want = {.status = RSSM_ERR_MISSING,
                          .role = packed ? -2 : t->role,
                          .dim = -1,
                          .texts = {packed ? "packed input" : t->name, "missing"}};
    ec_remember(c);
    *where = NULL;
    outcome o = t->optional ? (outcome){0} : run(c, call);
    *where = saved;
    if (!t->optional)
        judge(c, call, "left out", &want, &o);
}

/* Over the pool's memory: what is written destroys slots, and reading it is a mistake of the host's. */
static void try_in_pool(ec_case *c, ec_call call, ec_tensor *t)
{
    static const uint32_t looked_at = 1u << EC_IMPORT | 1u << EC_EXPORT | 1u << EC_FLUSH | 1u << EC_COPY;
    bool written_rows = call == EC_VERIFY_BEGIN && t->role == RSSM_T_ROWS;
    if (!(written_rows || (1u << call & looked_at)))
        return;
    const refusal want = {.status = RSSM_ERR_OVERLAP, .role = t->role, .dim = -1, .texts = {t->name, "shares memory"}};
    void *saved = t->h.t.data;
    ec_remember(c);
    t->h.t.data = c->cursors;
    outcome o = run(c, call);
    t->h.t.data = saved;
    judge(c, call, "over the cursors", &want, &o);
}

START_TEST(test_tensors)
{
    ec_call call = (ec_call)(_i / 2 % EC_CALLS);
    ec_case *c = ec_new(families[_i / 2 / EC_CALLS], _i % 2 ? RSSM_STATE_KV : RSSM_STATE_VK);
    if (!c)
        return;
    int tried = 0;
    for (int i = 0; i < c->num_tensors; i++) {
        ec_tensor *t = &c->tensors[i];
        if (!(t->calls & 1u << call))
            continue;
        for (int d = 0; d < COUNT(defects); d++)
            try_defect(c, call, t, &defects[d]);
        try_missing(c, call, t);
        try_in_pool(c, call, t);
        tried++;
    }
    ck_assert_int_ge(tried, 1);
    check_accepted(c, call, "as it was");
    ec_free(c);
}
END_TEST

/* ---- arguments -------------------------------------------------------------------------------------------------- */

typedef struct bad_argument {
    const char *name;
    ec_call call;
    void (*spoil)(ec_case *c);
    refusal want;
    int family; /* 0 = each */
} bad_argument;

#define ARGUMENT(text)                                                        \
    {                                                                         \
        .status = RSSM_ERR_ARGUMENT, .role = -2, .dim = -2, .texts = { text } \
    }
#define AT(code, tensor, ...)                                                                   \
    {                                                                                           \
        .status = RSSM_ERR_##code, .role = RSSM_T_##tensor, .dim = -2, .texts = { __VA_ARGS__ } \
    }
#define SPOIL(name, ...)         \
    static void name(ec_case *c) \
    {                            \
        __VA_ARGS__;             \
    }

static h_tensor *h_of(ec_case *c, ec_call call, int32_t role, int32_t layer)
{
    ec_tensor *t = ec_find(c, call, role, layer);
    ck_assert_msg(t != NULL, "%s has no %s", ec_name(call), h_api()->role_name(role));
    return &t->h;
}

static void many_tokens(ec_case *c, ec_call call, int64_t tokens)
{
    for (int i = 0; i < c->num_tensors; i++) {
        ec_tensor *t = &c->tensors[i];
        if (t->calls & 1u << call && (t->place == H_INPUT || t->place == H_OUTPUT))
            t->h.shape[0] = tokens;
    }
}

/* Only looked at from outside: the rows beyond have no memory. */
static void many_rows(ec_case *c, ec_call call, int64_t rows)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].calls & 1u << call)
            c->tensors[i].h.shape[0] = rows + (c->tensors[i].role == RSSM_T_CU_SEQLENS);
}

/* A convolution's tensor that says it has 2^31 slots. */
static void many_slots(ec_case *c)
{
    static int64_t shape[3];
    static DLTensor large;
    large = *c->conv_roles[RSSM_T_CONV];
    memcpy(shape, large.shape, sizeof(shape));
    shape[0] = (int64_t)1 << 31;
    large.shape = shape;
    c->conv_roles[RSSM_T_CONV] = &large;
}

SPOIL(begin_batch, many_rows(c, EC_VERIFY_BEGIN, 5))
SPOIL(commit_batch, many_rows(c, EC_COMMIT, 5))
SPOIL(begin_endless, h_of(c, EC_VERIFY_BEGIN, RSSM_T_SLOTS, 0)->shape[0] = INT64_MAX;
      h_of(c, EC_VERIFY_BEGIN, RSSM_T_SLOTS, 0)->strides[0] = 0)
SPOIL(begin_flag, c->verify_begin.flags = 1u << 5)
SPOIL(begin_skip, c->verify_begin.flags = RSSM_SKIP_VALIDATE)
SPOIL(begin_T0, c->verify_begin.max_T = 0)
SPOIL(begin_T4, c->verify_begin.max_T = EC_DRAFTS + 2)
SPOIL(begin_T_negative, c->verify_begin.max_T = -1)
SPOIL(begin_rows_are_slots,
      h_of(c, EC_VERIFY_BEGIN, RSSM_T_ROWS, 0)->t.data = h_of(c, EC_VERIFY_BEGIN, RSSM_T_SLOTS, 0)->t.data)
SPOIL(begin_rows_are_ends,
      h_of(c, EC_VERIFY_BEGIN, RSSM_T_ROWS, 0)->t.data = h_of(c, EC_VERIFY_BEGIN, RSSM_T_CU_SEQLENS, 0)->t.data)
SPOIL(verify_flag, c->verify.flags = 1u << 5)
SPOIL(verify_both, c->verify.flags = RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP)
SPOIL(verify_reserved, c->verify.reserved_ = 1)
SPOIL(verify_layer, c->verify.layer = EC_LAYERS)
SPOIL(verify_layer_negative, c->verify.layer = -1)
SPOIL(verify_other_layer, c->verify.layer = 1)
SPOIL(verify_no_tensors, c->verify.tensors = NULL)
SPOIL(verify_scale, c->verify.has_scale = 2)
SPOIL(verify_unknown_role, c->verify_roles[RSSM_T_COUNT] = c->commit.rows; c->verify.num_tensors = RSSM_T_COUNT + 1)
SPOIL(verify_write_pos, c->verify_roles[RSSM_T_WRITE_POS] = c->commit.accepted)
SPOIL(verify_force_flush, c->verify_roles[RSSM_T_FORCE_FLUSH] = c->commit.accepted)
SPOIL(verify_indices, c->verify_roles[RSSM_T_STATE_INDICES] = c->commit.accepted)
SPOIL(verify_conv_in, c->verify_roles[RSSM_T_CONV_IN] = c->window_roles[RSSM_T_CONV_IN])
SPOIL(verify_tokens, many_tokens(c, EC_VERIFY, 13))
SPOIL(verify_in_place,
      h_of(c, EC_VERIFY, RSSM_T_OUT, 0)->t.data =
          h_of(c, EC_VERIFY, c->spec.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV, 0)->t.data)
SPOIL(commit_flag, c->commit.flags = RSSM_SKIP_VALIDATE)
SPOIL(commit_reserved, c->commit.reserved_ = 7)
SPOIL(conv_flag, c->conv.flags = 1u << 9)
SPOIL(conv_reserved, c->conv.reserved_ = 1)
SPOIL(conv_scale, c->conv.has_scale = 1; c->conv.scale = 1)
SPOIL(conv_bound, c->conv.has_lower_bound = 1; c->conv.lower_bound = -1)
SPOIL(conv_layer, c->conv.layer = EC_LAYERS)
SPOIL(conv_other_layer, c->conv.layer = 1)
SPOIL(conv_no_tensors, c->conv.tensors = NULL)
SPOIL(conv_no_ring, c->conv_roles[RSSM_T_CONV] = NULL)
SPOIL(conv_write_pos, c->conv_roles[RSSM_T_WRITE_POS] = c->commit.accepted)
SPOIL(conv_out_role, c->conv_roles[RSSM_T_OUT] = c->verify_roles[RSSM_T_OUT])
SPOIL(conv_in_place, h_of(c, EC_CONV, RSSM_T_CONV_OUT, 0)->t.data = h_of(c, EC_CONV, RSSM_T_CONV_IN, 0)->t.data)
SPOIL(conv_tokens, many_tokens(c, EC_CONV, EC_TOKENS))
SPOIL(conv_verify_tokens, many_tokens(c, EC_CONV_VERIFY, 13))
SPOIL(import_flag, c->import.flags = RSSM_SKIP_VALIDATE)
SPOIL(import_reserved, c->import.reserved_ = 1)
SPOIL(import_order, c->import.order = 2)
SPOIL(import_order_negative, c->import.order = -1)
SPOIL(import_swapped, c->import.order = RSSM_STATE_KV)
SPOIL(import_layers, c->import.num_layers = 1)
SPOIL(import_more_layers, c->import.num_layers = 3)
SPOIL(import_no_layers, c->import.num_layers = 0)
SPOIL(import_no_states, c->import.states = NULL)
SPOIL(import_A_log, c->import.A_log = c->decays)
SPOIL(import_A, c->import.A = c->decays)
SPOIL(import_second_layer, c->states[1] = NULL)
SPOIL(export_flag, c->export.flags = 1u << 31)
SPOIL(export_reserved, c->export.reserved_ = 1)
SPOIL(export_order, c->export.order = 2)
SPOIL(export_layers, c->export.num_layers = 3)
SPOIL(export_A_log, c->export.A_log = c->decays)
SPOIL(export_A, c->export.A = c->decays)
SPOIL(export_no_decay, c->export.A_log = NULL)
SPOIL(export_same_state, c->outs[1] = c->outs[0])
SPOIL(export_same_conv, c->conv_outs[1] = c->conv_outs[0])
SPOIL(export_over_slots, h_of(c, EC_EXPORT, RSSM_T_STATE, 1)->t.data = h_of(c, EC_EXPORT, RSSM_T_SLOTS, 0)->t.data)
SPOIL(export_conv_over_state, h_of(c, EC_EXPORT, RSSM_T_CONV, 0)->t.data = h_of(c, EC_EXPORT, RSSM_T_STATE, 1)->t.data)
SPOIL(export_over_decay, h_of(c, EC_EXPORT, RSSM_T_STATE, 1)->t.data = h_of(c, EC_EXPORT, RSSM_T_A_LOG, 1)->t.data)
SPOIL(flush_flag, c->flush.flags = RSSM_SKIP_VALIDATE)
SPOIL(flush_layers, c->flush.num_layers = 1)
SPOIL(flush_A_log, c->flush.A_log = c->decays; c->flush.num_layers = EC_LAYERS)
SPOIL(flush_both, c->flush.A = c->decays)
SPOIL(flush_no_decay, c->flush.A_log = NULL)
SPOIL(copy_many, h_of(c, EC_COPY, RSSM_T_SRC_SLOTS, 0)->shape[0] = (int64_t)1 << 31;
      h_of(c, EC_COPY, RSSM_T_SRC_SLOTS, 0)->strides[0] = 0)
SPOIL(copy_flag, c->copy.flags = RSSM_SKIP_VALIDATE)
SPOIL(copy_reserved, c->copy.reserved_ = 1)

static const bad_argument bad_arguments[] = {
    {"5 rows", EC_VERIFY_BEGIN, begin_batch, ARGUMENT("5 rows is above max_batch = 4"), 0},
    {"2^63 - 1 rows", EC_VERIFY_BEGIN, begin_endless, ARGUMENT("9223372036854775807 rows is above max_batch = 4"), 0},
    {"5 rows", EC_COMMIT, commit_batch, ARGUMENT("5 rows is above max_batch = 4"), 0},
    {"2^31 slots", EC_CONV, many_slots, AT(SHAPE, CONV, "2147483648 slots; at most 2^31 - 1"), 0},
    {"unknown flag", EC_VERIFY_BEGIN, begin_flag, ARGUMENT("0x20"), 0},
    {"skip", EC_VERIFY_BEGIN, begin_skip, ARGUMENT("0x1"), 0},
    {"max_T = 0", EC_VERIFY_BEGIN, begin_T0, ARGUMENT("max_T = 0 is not in 1..3"), 0},
    {"max_T = 4", EC_VERIFY_BEGIN, begin_T4, ARGUMENT("max_T = 4 is not in 1..3"), 0},
    {"max_T = -1", EC_VERIFY_BEGIN, begin_T_negative, ARGUMENT("max_T = -1 is not in 1..3"), 0},
    {"rows over slots", EC_VERIFY_BEGIN, begin_rows_are_slots, AT(OVERLAP, ROWS, "`slots`"), 0},
    {"rows over cu_seqlens", EC_VERIFY_BEGIN, begin_rows_are_ends, AT(OVERLAP, ROWS, "`cu_seqlens`"), 0},
    {"unknown flag", EC_VERIFY, verify_flag, ARGUMENT("0x20"), 0},
    {"both flags", EC_VERIFY, verify_both, ARGUMENT("contradict"), 0},
    {"reserved", EC_VERIFY, verify_reserved, ARGUMENT("reserved field is 1"), 0},
    {"layer 2", EC_VERIFY, verify_layer, ARGUMENT("layer = 2 is not in 0..1"), 0},
    {"layer -1", EC_VERIFY, verify_layer_negative, ARGUMENT("layer = -1"), 0},
    {"other layer", EC_VERIFY, verify_other_layer, ARGUMENT("tensor of layer 0; this call is for layer 1"), 0},
    {"no tensors", EC_VERIFY, verify_no_tensors, ARGUMENT("tensors is NULL"), 0},
    {"has_scale = 2", EC_VERIFY, verify_scale, ARGUMENT("has_scale = 2"), 0},
    {"unknown role", EC_VERIFY, verify_unknown_role, {.status = RSSM_ERR_ROLE, .role = RSSM_T_COUNT, .dim = -1}, 0},
    {"write_pos", EC_VERIFY, verify_write_pos, AT(ROLE, WRITE_POS, "`write_pos`", "verify"), 0},
    {"force_flush", EC_VERIFY, verify_force_flush, AT(ROLE, FORCE_FLUSH, "`force_flush`", "verify"), 0},
    {"state_indices", EC_VERIFY, verify_indices, AT(ROLE, STATE_INDICES, "`state_indices`", "verify"), 0},
    {"conv_in", EC_VERIFY, verify_conv_in, AT(ROLE, CONV_IN, "`conv_in`", "verify"), 0},
    {"13 tokens", EC_VERIFY, verify_tokens, ARGUMENT("13 tokens are above 12"), 0},
    {"in place", EC_VERIFY, verify_in_place, AT(OVERLAP, OUT, "`out`", "mixed_"), 0},
    {"skip", EC_COMMIT, commit_flag, ARGUMENT("0x1"), 0},
    {"reserved", EC_COMMIT, commit_reserved, ARGUMENT("reserved field is 7"), 0},
    {"unknown flag", EC_CONV, conv_flag, ARGUMENT("0x200"), 0},
    {"reserved", EC_CONV, conv_reserved, ARGUMENT("reserved"), 0},
    {"scale", EC_CONV, conv_scale, ARGUMENT("no scale"), 0},
    {"lower_bound", EC_CONV, conv_bound, ARGUMENT("no lower_bound"), 0},
    {"layer 2", EC_CONV, conv_layer, ARGUMENT("layer = 2"), 0},
    {"other layer", EC_CONV, conv_other_layer, ARGUMENT("tensor of layer 0; this call is for layer 1"), 0},
    {"no tensors", EC_CONV, conv_no_tensors, ARGUMENT("tensors is NULL"), 0},
    {"no conv", EC_CONV, conv_no_ring, AT(MISSING, CONV, "`conv`"), 0},
    {"write_pos", EC_CONV, conv_write_pos, AT(ROLE, WRITE_POS, "`write_pos`", "convolution"), 0},
    {"out", EC_CONV, conv_out_role, AT(ROLE, OUT, "`out`", "convolution"), 0},
    {"in place", EC_CONV, conv_in_place, AT(OVERLAP, CONV_OUT, "`conv_out`", "`conv_in`"), 0},
    {"tokens instead of rows", EC_CONV, conv_tokens, AT(SHAPE, ROWS, "[5, 8]; got [3, 8]"), 0},
    {"13 tokens", EC_CONV_VERIFY, conv_verify_tokens, ARGUMENT("13 tokens are above 12"), 0},
    {"skip", EC_IMPORT, import_flag, ARGUMENT("0x1"), 0},
    {"reserved", EC_IMPORT, import_reserved, ARGUMENT("reserved"), 0},
    {"order 2", EC_IMPORT, import_order, ARGUMENT("order = 2"), 0},
    {"order -1", EC_IMPORT, import_order_negative, ARGUMENT("order = -1"), 0},
    {"the other order", EC_IMPORT, import_swapped, AT(SHAPE, STATE, "`state`", "look swapped", "(layer 0)"), 0},
    {"a layer less", EC_IMPORT, import_layers, ARGUMENT("num_layers = 1; this instance has 2"), 0},
    {"a layer more", EC_IMPORT, import_more_layers, ARGUMENT("num_layers = 3; this instance has 2"), 0},
    {"no layers", EC_IMPORT, import_no_layers, ARGUMENT("num_layers = 0; this instance has 2"), 0},
    {"no states", EC_IMPORT, import_no_states, AT(MISSING, STATE, "states is NULL"), 0},
    {"A_log", EC_IMPORT, import_A_log, AT(ROLE, A_LOG, "`A_log`", "import"), 0},
    {"A", EC_IMPORT, import_A, AT(ROLE, A_DECAY, "`A`", "import"), 0},
    {"no state of layer 1", EC_IMPORT, import_second_layer, AT(MISSING, STATE, "(layer 1)"), 0},
    {"unknown flag", EC_EXPORT, export_flag, ARGUMENT("0x80000000"), 0},
    {"reserved", EC_EXPORT, export_reserved, ARGUMENT("reserved"), 0},
    {"order 2", EC_EXPORT, export_order, ARGUMENT("order = 2"), 0},
    {"a layer more", EC_EXPORT, export_layers, ARGUMENT("num_layers = 3; this instance has 2"), 0},
    {"A_log for KDA", EC_EXPORT, export_A_log, AT(ROLE, A_LOG, "`A_log`", "kda"), RSSM_FAMILY_KDA},
    {"A for GDN", EC_EXPORT, export_A, AT(ROLE, A_DECAY, "`A`", "gdn"), RSSM_FAMILY_GDN},
    {"A and A_log", EC_EXPORT, export_A, AT(ROLE, A_DECAY, "same weight"), RSSM_FAMILY_MAMBA2},
    {"no A_log", EC_EXPORT, export_no_decay, AT(MISSING, A_LOG, "`A_log`"), RSSM_FAMILY_MAMBA2},
    {"one state twice", EC_EXPORT, export_same_state, AT(OVERLAP, STATE, "layer 0", "layer 1"), 0},
    {"one conv twice", EC_EXPORT, export_same_conv, AT(OVERLAP, CONV, "layer 0", "layer 1"), 0},
    {"state over slots", EC_EXPORT, export_over_slots, AT(OVERLAP, STATE, "`slots`"), 0},
    {"conv over state",
     EC_EXPORT,
     export_conv_over_state,
     {.status = RSSM_ERR_OVERLAP, .role = -2, .dim = -2, .texts = {"`conv`", "`state`"}},
     0},
    {"state over A_log", EC_EXPORT, export_over_decay, AT(OVERLAP, STATE, "`A_log`"), RSSM_FAMILY_MAMBA2},
    {"skip", EC_FLUSH, flush_flag, ARGUMENT("0x1"), 0},
    {"num_layers = 1", EC_FLUSH, flush_layers, ARGUMENT("num_layers = 1"), 0},
    {"A_log for KDA", EC_FLUSH, flush_A_log, AT(ROLE, A_LOG, "`A_log`", "kda"), RSSM_FAMILY_KDA},
    {"A_log for GDN", EC_FLUSH, flush_A_log, AT(ROLE, A_LOG, "`A_log`", "gdn"), RSSM_FAMILY_GDN},
    {"A and A_log", EC_FLUSH, flush_both, AT(ROLE, A_DECAY, "same weight"), RSSM_FAMILY_MAMBA2},
    {"no A_log", EC_FLUSH, flush_no_decay, AT(MISSING, A_LOG, "`A_log`"), RSSM_FAMILY_MAMBA2},
    {"2^31 entries", EC_COPY, copy_many, AT(SHAPE, SRC_SLOTS, "2147483648 entries; at most 2^31 - 1"), 0},
    {"skip", EC_COPY, copy_flag, ARGUMENT("0x1"), 0},
    {"reserved", EC_COPY, copy_reserved, ARGUMENT("reserved"), 0},
};

START_TEST(test_argument)
{
    const bad_argument *b = &bad_arguments[_i / 3];
    int32_t family = families[_i % 3];
    if (b->family && b->family != family)
        return;
    ec_case *c = ec_new(family, RSSM_STATE_VK);
    if (!c)
        return;
    check_accepted(c, b->call, "as it was");
    b->spoil(c);
    check_refused(c, b->call, b->name, &b->want);
    ec_free(c);
}
END_TEST

/* Forms that are fine: layers may share a state that is imported, conv may be left out, lists may be empty. */
START_TEST(test_accepted)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    check_accepted(c, EC_EXPORT, "A_log");
    c->import.conv = c->export.conv = NULL;
    check_accepted(c, EC_IMPORT, "without conv");
    check_accepted(c, EC_EXPORT, "without conv");
    h_of(c, EC_IMPORT, RSSM_T_STATE, 0)->strides[0] = 0;
    check_accepted(c, EC_IMPORT, "one state for all rows");
    if (families[_i] == RSSM_FAMILY_MAMBA2) {
        for (int32_t layer = 0; layer < EC_LAYERS; layer++)
            h_fill(c->decays[layer], -0.5);
        c->export.A_log = c->flush.A_log = NULL;
        c->export.A = c->flush.A = c->decays;
        check_accepted(c, EC_EXPORT, "A");
        check_accepted(c, EC_FLUSH, "A");
    }
    c->verify.flags = c->conv.flags = c->conv_verify.flags = RSSM_SKIP_VALIDATE;
    check_accepted(c, EC_CONV, "not validated again");
    check_accepted(c, EC_CONV_VERIFY, "not validated again");
    check_accepted(c, EC_VERIFY, "not validated again");
    h_of(c, EC_COPY, RSSM_T_SRC_SLOTS, 0)->shape[0] = h_of(c, EC_COPY, RSSM_T_DST_SLOTS, 0)->shape[0] = 0;
    ec_remember(c);
    check_accepted(c, EC_COPY, "nothing");
    ck_assert(!ec_changed(c));
    ec_free(c);
}
END_TEST

/* ---- decode's own call with the new roles ----------------------------------------------------------------------- */

static const int32_t conv_roles[] = {RSSM_T_CONV_IN,   RSSM_T_CONV_WEIGHT, RSSM_T_CONV_BIAS,
                                     RSSM_T_CONV_OUT,  RSSM_T_CU_SEQLENS,  RSSM_T_ACCEPTED,
                                     RSSM_T_SRC_SLOTS, RSSM_T_DST_SLOTS,   RSSM_T_SLOTS};

START_TEST(test_decode_refuses)
{
    h_spec spec = h_defaults((h_spec){.family = families[_i], .drafts = 2, .init_flags = RSSM_INIT_CONV_STATE});
    rssm_plugin *plugin = h_init(&spec);
    h_call *call = h_call_new(&spec, 5);
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_OK);
    for (int i = 0; i < COUNT(conv_roles); i++) {
        call->roles[conv_roles[i]] = call->roles[RSSM_T_OUT];
        ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_ROLE);
        ck_assert_int_eq(err.role, conv_roles[i]);
        ck_assert_msg(strstr(err.message, "decode") != NULL, "%s", err.message);
        call->roles[conv_roles[i]] = NULL;
    }
    ck_assert_int_eq(h_api()->prepare(plugin, &err), RSSM_OK);
    ck_assert_int_eq(h_api()->decode(plugin, &call->args, &err), RSSM_OK); /* R = L + Tm */
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- too early, or not asked for at init ------------------------------------------------------------------------ */

typedef struct lacking {
    const char *name;
    int32_t drafts;
    uint32_t flags;
    int prepared, pool;
    rssm_status status[EC_CALLS];
} lacking;

enum { OK_ = RSSM_OK, ST = RSSM_ERR_STATE, UN = RSSM_ERR_UNSUPPORTED };

/* begin, verify, validate, commit, conv, conv_verify, validate, import, export, flush, copy */
static const lacking lackings[] = {
    {"no prepare", EC_DRAFTS, RSSM_INIT_CONV_STATE, 0, 0, {ST, ST, OK_, ST, ST, ST, OK_, ST, ST, ST, ST}},
    {"no pool", EC_DRAFTS, RSSM_INIT_CONV_STATE, 1, 0, {ST, OK_, OK_, ST, OK_, OK_, OK_, ST, ST, ST, ST}},
    {"no drafts", 0, RSSM_INIT_CONV_STATE, 1, 1, {UN, UN, UN, UN, -1, UN, -1, -1, -1, OK_, OK_}},
    {"no conv", EC_DRAFTS, 0, 1, 1, {OK_, OK_, OK_, -1, UN, UN, UN, RSSM_ERR_ROLE, RSSM_ERR_ROLE, OK_, OK_}},
};

/* Another instance gets the calls of the case; -1: its tensors have other shapes, so nothing is said about it. */
START_TEST(test_lacking)
{
    const lacking *l = &lackings[_i % COUNT(lackings)];
    ec_case *c = ec_new(families[_i / COUNT(lackings)], RSSM_STATE_VK);
    if (!c)
        return;
    h_spec spec = c->spec;
    spec.drafts = l->drafts;
    spec.init_flags = l->flags;
    rssm_plugin *whole = c->plugin, *other = h_init(&spec);
    if (l->prepared)
        ck_assert_int_eq(h_api()->prepare(other, NULL), RSSM_OK);
    if (l->pool)
        ck_assert_int_eq(h_api()->pool_create(other, NULL, NULL), RSSM_OK);
    for (int call = 0; call < EC_CALLS; call++) {
        c->plugin = other;
        outcome o = run(c, (ec_call)call);
        c->plugin = whole;
        ck_assert_msg(l->status[call] == -1 || o.status == l->status[call], "%s, %s: %s: %s", l->name,
                      ec_name((ec_call)call), h_api()->status_name(o.status), o.err.message);
    }
    c->verify.flags = c->conv_verify.flags = RSSM_CHECK_DEEP; /* reads the device */
    for (ec_call call = EC_VERIFY; !l->prepared && call <= EC_VALIDATE_CONV; call++) {
        if (call != EC_VALIDATE_VERIFY && call != EC_VALIDATE_CONV)
            continue;
        c->plugin = other;
        outcome o = run(c, call);
        c->plugin = whole;
        ck_assert_msg(o.status == RSSM_ERR_STATE, "deep %s before prepare: %s", ec_name(call), o.err.message);
    }
    h_teardown(&other);
    ec_free(c);
}
END_TEST

/* ---- struct sizes, NULLs, err ----------------------------------------------------------------------------------- */

static rssm_status run_with(ec_case *c, ec_call call, rssm_plugin *plugin, const void *args, rssm_error *err)
{
    switch (call) {
    case EC_VERIFY_BEGIN:
        return c->verify_api->verify_begin(plugin, args, err);
    case EC_VERIFY:
        return c->verify_api->verify(plugin, args, err);
    case EC_VALIDATE_VERIFY:
        return c->verify_api->validate(plugin, args, err);
    case EC_COMMIT:
        return c->verify_api->commit(plugin, args, err);
    case EC_CONV:
        return c->conv_api->conv(plugin, args, err);
    case EC_CONV_VERIFY:
        return c->conv_api->conv_verify(plugin, args, err);
    case EC_VALIDATE_CONV:
        return c->conv_api->validate(plugin, args, err);
    case EC_IMPORT:
        return c->slots_api->import_state(plugin, args, err);
    case EC_EXPORT:
        return c->slots_api->export_state(plugin, args, err);
    case EC_FLUSH:
        return c->slots_api->flush(plugin, args, err);
    default:
        return c->slots_api->copy(plugin, args, err);
    }
}

START_TEST(test_struct_sizes)
{
    ec_call call = (ec_call)_i;
    ec_case *c = ec_new(RSSM_FAMILY_GDN, RSSM_STATE_VK);
    if (!c)
        return;
    uint64_t size;
    const void *args = ec_args(c, call, &size);
    const struct {
        uint64_t size, dirty; /* this byte is not zero; 0 = none */
        rssm_status status;
    } tries[] = {
        {0, 0, RSSM_ERR_STRUCT_SIZE},
        {8, 0, RSSM_ERR_STRUCT_SIZE},
        {size - 1, 0, RSSM_ERR_STRUCT_SIZE},
        {UINT64_MAX, 0, RSSM_ERR_STRUCT_SIZE},
        {size + 64, size, RSSM_ERR_STRUCT_SIZE},
        {size + 64, size + 63, RSSM_ERR_STRUCT_SIZE},
        {size, size, RSSM_OK},
        {size + 1, 0, RSSM_OK},
        {size + 64, 0, RSSM_OK},
    };
    for (int i = 0; i < COUNT(tries); i++) {
        union {
            uint64_t size;
            unsigned char bytes[512];
        } given = {0};
        memcpy(given.bytes, args, size);
        given.size = tries[i].size;
        if (tries[i].dirty)
            given.bytes[tries[i].dirty] = 1;
        ec_remember(c);
        rssm_error err = h_error();
        rssm_status status = run_with(c, call, c->plugin, given.bytes, &err);
        ck_assert_msg(status == tries[i].status, "%s, struct of %llu (%llu): %s: %s", ec_name(call),
                      (unsigned long long)tries[i].size, (unsigned long long)tries[i].dirty,
                      h_api()->status_name(status), err.message);
        ck_assert_msg(!status || !ec_changed(c), "%s: bytes have changed", ec_name(call));
        if (!status && call == EC_COMMIT)
            break; /* a second commit is another matter */
    }
    ec_free(c);
}
END_TEST

START_TEST(test_nulls)
{
    ec_call call = (ec_call)_i;
    ec_case *c = ec_new(RSSM_FAMILY_KDA, RSSM_STATE_VK);
    if (!c)
        return;
    uint64_t size, torn_down[64] = {0};
    const void *args = ec_args(c, call, &size);
    rssm_plugin *const plugins[] = {c->plugin, NULL, NULL, (rssm_plugin *)(void *)torn_down};
    const void *const given[] = {NULL, args, NULL, args};
    for (int i = 0; i < COUNT(plugins); i++) {
        rssm_error err = h_error();
        ec_remember(c);
        ck_assert_int_eq(run_with(c, call, plugins[i], given[i], &err), RSSM_ERR_ARGUMENT);
        ck_assert_int_eq(err.status, RSSM_ERR_ARGUMENT);
        ck_assert_msg(strlen(err.message) > 4, "%s: no message", ec_name(call));
        ck_assert_int_eq(run_with(c, call, plugins[i], given[i], NULL), RSSM_ERR_ARGUMENT);
        ck_assert(!ec_changed(c));
    }
    /* err: shorter than 1.0 refuses the call as a whole and is left alone; a longer one is not written beyond */
    union {
        rssm_error err;
        unsigned char bytes[sizeof(rssm_error) + 64];
    } u, before;
    memset(&u, 0x5A, sizeof(u));
    u.err.struct_size = sizeof(rssm_error) - 1;
    before = u;
    ck_assert_int_eq(run_with(c, call, c->plugin, args, &u.err), RSSM_ERR_STRUCT_SIZE);
    ck_assert(memcmp(&u, &before, sizeof(u)) == 0 && !ec_changed(c));
    u.err.struct_size = sizeof(u);
    ck_assert_int_eq(run_with(c, call, c->plugin, NULL, &u.err), RSSM_ERR_ARGUMENT);
    ck_assert_uint_eq(u.err.struct_size, sizeof(u));
    for (size_t k = sizeof(rssm_error); k < sizeof(u); k++)
        ck_assert(u.bytes[k] == 0x5A);
    ec_free(c);
}
END_TEST

/* ---- deep ------------------------------------------------------------------------------------------------------- */

/* Values that RSSM_CHECK_DEEP refuses, or accepts (status 0). */
typedef struct deep_case {
    const char *name;
    ec_call call;
    void (*spoil)(ec_case *c);
    refusal want;
} deep_case;

static void set_list(ec_case *c, ec_call call, int32_t role, const int64_t *values)
{
    h_tensor *t = h_of(c, call, role, 0);
    for (int64_t i = 0; i < t->shape[0]; i++)
        h_set(&t->t, i, 0, 0, 0, (double)values[i]);
}

static void set_row(ec_case *c, ec_call call, int64_t row, int64_t column, int32_t value)
{
    h_set(&h_of(c, call, RSSM_T_ROWS, 0)->t, row, column, 0, 0, value);
}

#define LIST(name, call, role, ...)                                       \
    static void name(ec_case *c)                                          \
    {                                                                     \
        set_list(c, call, RSSM_T_##role, (const int64_t[]){__VA_ARGS__}); \
    }

LIST(begin_twice, EC_VERIFY_BEGIN, SLOTS, 0, 2, 0)
LIST(begin_padding, EC_VERIFY_BEGIN, SLOTS, -1, EC_SLOTS, EC_PAD)
LIST(begin_padding_twice, EC_VERIFY_BEGIN, SLOTS, EC_PAD, EC_PAD, 1)
LIST(begin_from_1, EC_VERIFY_BEGIN, CU_SEQLENS, 1, 2, 2, 5)
LIST(begin_from_minus_1, EC_VERIFY_BEGIN, CU_SEQLENS, -1, 2, 2, 5)
LIST(begin_decreasing, EC_VERIFY_BEGIN, CU_SEQLENS, 0, 2, 1, 3)
LIST(begin_long, EC_VERIFY_BEGIN, CU_SEQLENS, 0, 2, 2, 6)
LIST(begin_empty, EC_VERIFY_BEGIN, CU_SEQLENS, 0, 0, 0, 0)
SPOIL(begin_max_T, c->verify_begin.max_T = 1)
SPOIL(begin_base, c->cursors[0] = 7)
SPOIL(begin_base_negative, c->cursors[4] = -1)
SPOIL(begin_count, c->cursors[1] = 5)
SPOIL(begin_conv, c->cursors[2] = 6)
SPOIL(begin_short, c->cursors[3] = 4)
SPOIL(row_slot, set_row(c, EC_VERIFY, 0, 0, EC_SLOTS))
SPOIL(row_slot_twice, set_row(c, EC_VERIFY, 0, 0, 2))
SPOIL(row_base, set_row(c, EC_VERIFY, 0, 1, 7))
SPOIL(row_count, set_row(c, EC_VERIFY, 0, 2, 5); set_row(c, EC_VERIFY, 0, 3, 1))
SPOIL(row_flush, set_row(c, EC_VERIFY, 1, 3, 2))
SPOIL(row_flush_unasked, set_row(c, EC_VERIFY, 2, 3, 1))
SPOIL(row_start, set_row(c, EC_VERIFY, 2, 5, 3))
SPOIL(row_start_negative, set_row(c, EC_VERIFY, 0, 5, -1))
SPOIL(row_start_inside, set_row(c, EC_VERIFY, 2, 5, 1))
SPOIL(row_long, set_row(c, EC_VERIFY, 2, 6, 4))
SPOIL(row_len_negative, set_row(c, EC_VERIFY, 2, 6, -1))
SPOIL(row_start_base, row_start(c); set_row(c, EC_VERIFY, 2, 1, 7))
SPOIL(row_start_conv, row_start(c); set_row(c, EC_CONV_VERIFY, 2, 4, 6))
SPOIL(row_start_padding, row_start(c); set_row(c, EC_VERIFY, 2, 0, -1))
SPOIL(row_long_padding, row_long(c); set_row(c, EC_VERIFY, 2, 0, -1))
SPOIL(row_conv, set_row(c, EC_CONV_VERIFY, 0, 4, 6))
SPOIL(row_padding, set_row(c, EC_VERIFY, 0, 0, -1))
SPOIL(step_rows_conv, set_row(c, EC_CONV, 0, 4, -1))
SPOIL(step_rows_of_verify, c->conv_roles[RSSM_T_ROWS] = c->commit.rows)
SPOIL(step_rows_flushing, set_row(c, EC_CONV, 0, 3, 1); c->verify_roles[RSSM_T_ROWS] = c->conv_roles[RSSM_T_ROWS])
LIST(accepted_negative, EC_COMMIT, ACCEPTED, -1, 0, 3)
LIST(accepted_more, EC_COMMIT, ACCEPTED, 3, 0, 3)
LIST(accepted_of_none, EC_COMMIT, ACCEPTED, 2, 1, 3)
LIST(accepted_all, EC_COMMIT, ACCEPTED, 2, 0, 3)
SPOIL(commit_moved, c->cursors[1]++)
SPOIL(commit_moved_conv, c->cursors[2] = (c->cursors[2] + 1) % 6)
LIST(import_twice, EC_IMPORT, SLOTS, 2, 1, 2)
LIST(import_padding, EC_IMPORT, SLOTS, 2, -1, EC_PAD)
LIST(export_twice, EC_EXPORT, SLOTS, 2, 1, 2)
LIST(flush_twice, EC_FLUSH, SLOTS, 2, 1, 2)
LIST(copy_dst_twice, EC_COPY, DST_SLOTS, 3, 3)
LIST(copy_dst_is_src, EC_COPY, DST_SLOTS, 3, 0)
LIST(copy_src_twice, EC_COPY, SRC_SLOTS, 1, 1)
LIST(copy_half_src, EC_COPY, SRC_SLOTS, 1, EC_SLOTS)
LIST(copy_half_dst, EC_COPY, DST_SLOTS, EC_PAD, 3)
SPOIL(copy_padding, set_list(c, EC_COPY, RSSM_T_SRC_SLOTS, (const int64_t[]){-1, EC_PAD});
      set_list(c, EC_COPY, RSSM_T_DST_SLOTS, (const int64_t[]){EC_SLOTS, -1}))

#define VALUE(tensor, ...)                                                                     \
    {                                                                                          \
        .status = RSSM_ERR_VALUE, .role = RSSM_T_##tensor, .dim = -2, .texts = { __VA_ARGS__ } \
    }
#define FINE              \
    {                     \
        .status = RSSM_OK \
    }

static const deep_case deep_cases[] = {
    {"a slot twice", EC_VERIFY_BEGIN, begin_twice, VALUE(SLOTS, "slot 0 twice", "rows 0 and 2")},
    {"padding rows", EC_VERIFY_BEGIN, begin_padding, FINE},
    {"the pad slot twice", EC_VERIFY_BEGIN, begin_padding_twice, FINE},
    {"from 1", EC_VERIFY_BEGIN, begin_from_1, VALUE(CU_SEQLENS, "start at 0; got 1")},
    {"from -1", EC_VERIFY_BEGIN, begin_from_minus_1, VALUE(CU_SEQLENS, "start at 0; got -1")},
    {"decreasing", EC_VERIFY_BEGIN, begin_decreasing, VALUE(CU_SEQLENS, "decreases at entry 2", "1 after 2")},
    {"a window of 4", EC_VERIFY_BEGIN, begin_long, VALUE(CU_SEQLENS, "row 2", "4 tokens", "max_T = 3")},
    {"empty windows", EC_VERIFY_BEGIN, begin_empty, FINE},
    {"windows above max_T", EC_VERIFY_BEGIN, begin_max_T, VALUE(CU_SEQLENS, "row 0", "2 tokens", "max_T = 1")},
    {"base 7", EC_VERIFY_BEGIN, begin_base, VALUE(CURSOR, "slot 0", "base 7 is not in 0..6")},
    {"base -1", EC_VERIFY_BEGIN, begin_base_negative, VALUE(CURSOR, "slot 1", "base -1 is not in 0..6")},
    {"count 5", EC_VERIFY_BEGIN, begin_count, VALUE(CURSOR, "slot 0", "count 5 is not in 0..4")},
    {"conv 6", EC_VERIFY_BEGIN, begin_conv, VALUE(CURSOR, "slot 0", "conv 6 is not in 0..5")},
    {"short 4", EC_VERIFY_BEGIN, begin_short, VALUE(CURSOR, "slot 0", "short 4 is not in 0..3")},
    {"slot 6", EC_VERIFY, row_slot, VALUE(ROWS, "row 0 (slot 6)")},
    {"a slot twice", EC_VERIFY, row_slot_twice, VALUE(ROWS, "slot 2 twice")},
    {"base 7", EC_VERIFY, row_base, VALUE(ROWS, "base 7 is not in 0..6")},
    {"count 5", EC_VERIFY, row_count, VALUE(ROWS, "count 5 is not in 0..4")},
    {"flush 2", EC_VERIFY, row_flush, VALUE(ROWS, "row 1", "neither 0 nor 1")},
    {"flush unasked", EC_VERIFY, row_flush_unasked, VALUE(ROWS, "row 2", "verify_begin decides")},
    {"tokens beyond", EC_VERIFY, row_start, VALUE(ROWS, "row 2 has tokens 3..5", "2..4")},
    {"token -1", EC_VERIFY, row_start_negative, VALUE(ROWS, "row 0 has tokens -1..0")},
    {"tokens of another row", EC_VERIFY, row_start_inside, VALUE(ROWS, "row 2 has tokens 1..3", "2..4")},
    {"a window of 4", EC_VERIFY, row_long, VALUE(ROWS, "row 2", "max_draft_tokens + 1")},
    {"a window of -1", EC_VERIFY, row_len_negative, VALUE(ROWS, "row 2", "below 0")},
    {"a padding row", EC_VERIFY, row_padding, FINE},
    {"a window of 4", EC_VALIDATE_VERIFY, row_long, VALUE(ROWS, "row 2", "max_draft_tokens + 1")},
    {"rows of a step that flushes", EC_VERIFY, step_rows_flushing, VALUE(ROWS, "row 0", "verify_begin")},
    {"conv 6", EC_CONV_VERIFY, row_conv, VALUE(ROWS, "row 0", "convolution position")},
    {"conv 6", EC_VALIDATE_CONV, row_conv, VALUE(ROWS, "row 0", "convolution position")},
    {"conv -1", EC_CONV, step_rows_conv, VALUE(ROWS, "row 0", "convolution position")},
    {"rows of verify_begin", EC_CONV, step_rows_of_verify, VALUE(ROWS, "row 0", "step_begin", "one token")},
    {"accepted -1", EC_COMMIT, accepted_negative, VALUE(ACCEPTED, "row 0: -1 is not in 0..2")},
    {"accepted > T", EC_COMMIT, accepted_more, VALUE(ACCEPTED, "row 0: 3 is not in 0..2")},
    {"accepted of an empty window", EC_COMMIT, accepted_of_none, VALUE(ACCEPTED, "row 1: 1 is not in 0..0")},
    {"accepted == T", EC_COMMIT, accepted_all, FINE},
    {"moved", EC_COMMIT, commit_moved, VALUE(CURSOR, "slot 0 has moved", "committed before")},
    {"moved conv", EC_COMMIT, commit_moved_conv, VALUE(CURSOR, "slot 0 has moved")},
    {"a slot twice", EC_IMPORT, import_twice, VALUE(SLOTS, "slot 2 twice", "rows 0 and 2")},
    {"padding", EC_IMPORT, import_padding, FINE},
    {"a bad cursor", EC_IMPORT, begin_count, FINE},
    {"a slot twice", EC_EXPORT, export_twice, FINE},
    {"a bad cursor", EC_EXPORT, begin_count, VALUE(CURSOR, "slot 0", "count 5")},
    {"a slot twice", EC_FLUSH, flush_twice, VALUE(SLOTS, "slot 2 twice")},
    {"a bad cursor", EC_FLUSH, begin_conv, VALUE(CURSOR, "slot 0", "conv 6")},
    {"dst twice", EC_COPY, copy_dst_twice, VALUE(DST_SLOTS, "slot 3 twice", "rows 0 and 1")},
    {"dst in src", EC_COPY, copy_dst_is_src, VALUE(DST_SLOTS, "slot 0", "`src_slots` too")},
    {"src twice", EC_COPY, copy_src_twice, FINE},
    {"src out of range", EC_COPY, copy_half_src, VALUE(SRC_SLOTS, "slot 6", "out of range")},
    {"dst is the pad slot", EC_COPY, copy_half_dst, VALUE(DST_SLOTS, "slot 5", "out of range")},
    {"padding pairs", EC_COPY, copy_padding, FINE},
    {"a bad cursor of src", EC_COPY, begin_base, VALUE(CURSOR, "slot 0", "base 7")},
};

static void ask_deep(ec_case *c)
{
    c->verify_begin.flags = c->verify.flags = c->commit.flags = c->conv.flags = c->conv_verify.flags = RSSM_CHECK_DEEP;
    c->import.flags = c->export.flags = c->flush.flags = c->copy.flags = RSSM_CHECK_DEEP;
}

START_TEST(test_deep)
{
    const deep_case *d = &deep_cases[_i / 3];
    ec_case *c = ec_new(families[_i % 3], RSSM_STATE_VK);
    if (!c)
        return;
    d->spoil(c);
    ask_deep(c);
    if (d->want.status)
        check_refused(c, d->call, d->name, &d->want);
    else
        check_accepted(c, d->call, d->name);
    ec_free(c);
}
END_TEST

/* Nothing to find: every call, deep, in the order of a pass. */
START_TEST(test_deep_accepts)
{
    static const ec_call order[] = {EC_VALIDATE_CONV, EC_CONV,         EC_CONV_VERIFY, EC_VALIDATE_VERIFY, EC_VERIFY,
                                    EC_COMMIT,        EC_VERIFY_BEGIN, EC_EXPORT,      EC_FLUSH,           EC_IMPORT};
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    ask_deep(c);
    for (int i = 0; i < COUNT(order); i++)
        check_accepted(c, order[i], "deep");
    set_list(c, EC_COPY, RSSM_T_SRC_SLOTS, (const int64_t[]){0, 0});
    set_list(c, EC_COPY, RSSM_T_DST_SLOTS, (const int64_t[]){3, 4});
    check_accepted(c, EC_COPY, "deep, one source of two copies");
    ec_free(c);
}
END_TEST

/* ---- the same values without RSSM_CHECK_DEEP -------------------------------------------------------------------- */

/* Data, not errors: the call succeeds, the fault word says what was passed over, and these slots keep every byte (as all do
 * that the call does not name). */
typedef struct fault_case {
    const char *name;
    ec_call call;
    void (*spoil)(ec_case *c);
    uint32_t fault;
    uint32_t kept;   /* set of slots among those that the call names */
    uint32_t silent; /* set of tokens that get no output: those of a window out of range */
} fault_case;

enum { ALL = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3, ROW_0 = 1 << 0 | 1 << 1, ROW_2 = 1 << 2 | 1 << 3 | 1 << 4 };

static const fault_case fault_cases[] = {
    {"padding rows", EC_VERIFY_BEGIN, begin_padding, 0, ALL, 0},
    {"from 1", EC_VERIFY_BEGIN, begin_from_1, 0, 0, 0},
    {"from -1", EC_VERIFY_BEGIN, begin_from_minus_1, RSSM_FAULT_SEQLENS, 1 << 0, 0},
    {"decreasing", EC_VERIFY_BEGIN, begin_decreasing, RSSM_FAULT_SEQLENS, 1 << 1, 0},
    {"a window of 4", EC_VERIFY_BEGIN, begin_long, RSSM_FAULT_SEQLENS, 1 << 2, 0},
    {"windows above max_T", EC_VERIFY_BEGIN, begin_max_T, RSSM_FAULT_SEQLENS, 1 << 0 | 1 << 2, 0},
    {"base 7", EC_VERIFY_BEGIN, begin_base, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"base -1", EC_VERIFY_BEGIN, begin_base_negative, RSSM_FAULT_CURSOR, 1 << 1, 0},
    {"count 5", EC_VERIFY_BEGIN, begin_count, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"conv 6", EC_VERIFY_BEGIN, begin_conv, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"short 4", EC_VERIFY_BEGIN, begin_short, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"slot 6", EC_VERIFY, row_slot, 0, 1 << 0, 0},
    {"base 7", EC_VERIFY, row_base, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"count 5", EC_VERIFY, row_count, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"flush unasked", EC_VERIFY, row_flush_unasked, RSSM_FAULT_CURSOR, 1 << 2, 0},
    {"tokens beyond", EC_VERIFY, row_start, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"tokens beyond and base 7", EC_VERIFY, row_start_base, RSSM_FAULT_SEQLENS | RSSM_FAULT_CURSOR, 1 << 2, ROW_2},
    {"tokens beyond of padding", EC_VERIFY, row_start_padding, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"token -1", EC_VERIFY, row_start_negative, RSSM_FAULT_SEQLENS, 0, ROW_0}, /* slot 0 has a fold */
    {"a window of 4", EC_VERIFY, row_long, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"a window of 4 of padding", EC_VERIFY, row_long_padding, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"a window of -1", EC_VERIFY, row_len_negative, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"a padding row", EC_VERIFY, row_padding, 0, 1 << 0, 0},
    {"conv 6", EC_CONV_VERIFY, row_conv, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"tokens beyond", EC_CONV_VERIFY, row_start, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"tokens beyond and conv 6", EC_CONV_VERIFY, row_start_conv, RSSM_FAULT_SEQLENS | RSSM_FAULT_CURSOR, 1 << 2, ROW_2},
    {"tokens beyond of padding", EC_CONV_VERIFY, row_start_padding, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"token -1", EC_CONV_VERIFY, row_start_negative, RSSM_FAULT_SEQLENS, 1 << 0, ROW_0},
    {"a window of 4", EC_CONV_VERIFY, row_long, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"a window of 4 of padding", EC_CONV_VERIFY, row_long_padding, RSSM_FAULT_SEQLENS, 1 << 2, ROW_2},
    {"conv -1", EC_CONV, step_rows_conv, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"accepted -1", EC_COMMIT, accepted_negative, RSSM_FAULT_ACCEPTED, 1 << 0, 0},
    {"accepted > T", EC_COMMIT, accepted_more, RSSM_FAULT_ACCEPTED, 1 << 0, 0},
    {"accepted of an empty window", EC_COMMIT, accepted_of_none, RSSM_FAULT_ACCEPTED, 1 << 1, 0},
    {"moved", EC_COMMIT, commit_moved, RSSM_FAULT_ACCEPTED, 1 << 0, 0},
    {"moved conv", EC_COMMIT, commit_moved_conv, RSSM_FAULT_ACCEPTED, 1 << 0, 0},
    {"a slot twice", EC_IMPORT, import_twice, RSSM_FAULT_SLOTS, 1 << 2, 0},
    {"padding", EC_IMPORT, import_padding, 0, 0, 0},
    {"a bad cursor", EC_IMPORT, begin_count, 0, 0, 0},
    {"a slot twice", EC_EXPORT, export_twice, 0, ALL, 0},
    {"a bad cursor", EC_EXPORT, begin_count, RSSM_FAULT_CURSOR, ALL, 0},
    {"a slot twice", EC_FLUSH, flush_twice, RSSM_FAULT_SLOTS, 1 << 2, 0},
    {"a bad cursor", EC_FLUSH, begin_conv, RSSM_FAULT_CURSOR, 1 << 0, 0},
    {"dst twice", EC_COPY, copy_dst_twice, RSSM_FAULT_SLOTS, ALL, 0},
    {"dst in src", EC_COPY, copy_dst_is_src, RSSM_FAULT_SLOTS, 1 << 0 | 1 << 1, 0},
    {"src twice", EC_COPY, copy_src_twice, 0, 1 << 1, 0},
    {"src out of range", EC_COPY, copy_half_src, RSSM_FAULT_SLOTS, 1 << 1 | 1 << 2, 0},
    {"dst is the pad slot", EC_COPY, copy_half_dst, RSSM_FAULT_SLOTS, 1 << 0 | 1 << 1, 0},
    {"padding pairs", EC_COPY, copy_padding, 0, ALL, 0},
    {"a bad cursor of src", EC_COPY, begin_base, RSSM_FAULT_CURSOR, 1 << 0 | 1 << 3, 0},
};

/* Does a slot differ from what ec_remember kept? */
static bool slot_changed(const ec_case *c, int64_t slot)
{
    rssm_layout layout = {.struct_size = sizeof(layout)};
    bool changed = false;
    ck_assert_int_eq(h_api()->pool_layout(c->plugin, &layout, NULL), RSSM_OK);
    for (int32_t layer = 0; layer < layout.num_layers; layer++)
        for (int32_t i = 0; i < layout.num_tensors; i++) {
            const rssm_tensor_info *t = &layout.tensors[i];
            int64_t at = t->offset + layer * t->layer_stride + slot * t->bytes_per_slot;
            changed = changed || memcmp(c->before + at, c->slab + at, (size_t)t->bytes_per_slot) != 0;
        }
    return changed;
}

/* Is there an output of the token? (They were NaN.) */
static bool has_output(ec_case *c, ec_call call, int64_t token)
{
    const DLTensor *out = &h_of(c, call, call == EC_CONV_VERIFY ? RSSM_T_CONV_OUT : RSSM_T_OUT, 0)->t;
    int64_t elements = 1;
    for (int i = 1; i < out->ndim; i++)
        elements *= out->shape[i];
    const unsigned char *bytes = h_at(out, token, 0, 0, 0);
    for (int64_t i = 0; i < elements * out->dtype.bits / 8; i++)
        if (bytes[i] != 0xFF)
            return true;
    return false;
}

START_TEST(test_faults)
{
    const fault_case *f = &fault_cases[_i / 3];
    ec_case *c = ec_new(families[_i % 3], RSSM_STATE_VK);
    if (!c)
        return;
    uint32_t word = 77;
    f->spoil(c);
    ec_remember(c);
    check_accepted(c, f->call, f->name);
    rssm_error err = h_error();
    ck_assert_int_eq(c->fault_api->read(c->plugin, NULL, &word, &err), RSSM_OK);
    ck_assert_msg(word == f->fault, "%s, %s: fault word 0x%x, not 0x%x", ec_name(f->call), f->name, word, f->fault);
    for (int64_t slot = 0; slot < EC_SLOTS; slot++) {
        bool named = slot < 3 || (f->call == EC_COPY && slot == 3);
        if (!named || f->kept >> slot & 1)
            ck_assert_msg(!slot_changed(c, slot), "%s, %s: slot %d has changed", ec_name(f->call), f->name, (int)slot);
    }
    for (int64_t token = 0; f->silent && token < EC_TOKENS; token++)
        ck_assert_msg(has_output(c, f->call, token) != (f->silent >> token & 1), "%s, %s: token %d %s",
                      ec_name(f->call), f->name, (int)token, f->silent >> token & 1 ? "has an output" : "has none");
    ec_free(c);
}
END_TEST

/* A window without room folds the records of its slot, and verify_begin has moved the cursor: verify folds them even where
 * it is given too few tokens for the window. Layer 0's checkpoint is then what a flush makes of it. */
START_TEST(test_fold_without_tokens)
{
    static const int32_t full[RSSM_CURSOR_WIDTH] = {5, 4, 3, 0};
    ec_case *cases[2] = {0};
    const DLTensor *states[2];
    for (int i = 0; i < 2; i++) {
        ec_case *c = cases[i] = ec_new(families[_i], RSSM_STATE_VK);
        if (!c)
            return;
        memcpy(c->cursors, full, sizeof(full));
        ck_assert_int_eq(run(c, EC_VERIFY_BEGIN).status, RSSM_OK);
        c->verify_roles[RSSM_T_ROWS] = c->verify_begin.rows_out;
        c->decays[0] = c->verify_roles[RSSM_T_A_LOG];
        states[i] = c->verify_roles[RSSM_T_STATE];
    }
    ck_assert_int_eq((int)h_get(cases[0]->verify_begin.rows_out, 0, 3, 0, 0), 1);
    h_set(cases[0]->verify_begin.rows_out, 0, 5, 0, 0, EC_TOKENS);
    ck_assert_int_eq(run(cases[0], EC_VERIFY).status, RSSM_OK);
    memcpy(cases[1]->cursors, full, sizeof(full));
    ck_assert_int_eq(run(cases[1], EC_FLUSH).status, RSSM_OK);
    const h_spec *s = &cases[0]->spec;
    for (int64_t i = 0; i < s->HV * s->V * s->K; i++) {
        int64_t hv = i / s->K / s->V, v = i / s->K % s->V;
        double got = h_get(states[0], 0, hv, v, i % s->K), want = h_get(states[1], 0, hv, v, i % s->K);
        ck_assert_msg(fabs(got - want) <= 1e-5, "element %d is %g, not %g", (int)i, got, want);
    }
    ec_free(cases[0]);
    ec_free(cases[1]);
}
END_TEST

/* ---- values beyond 16 bits --------------------------------------------------------------------------------------- */

enum { F32 = RSSM_DTYPE_FLOAT32, BF16 = RSSM_DTYPE_BFLOAT16, F16 = RSSM_DTYPE_FLOAT16 };

/* Something that float16 cannot hold reaches a place of float16: it is there as the largest number, and the fault word says what it
 * was. The dtypes of a case leave no other place where that could happen. */
typedef struct large_case {
    const char *name;
    ec_call call;
    int32_t io, state, ring;
    void (*spoil)(ec_case *c);
    uint32_t fault;
    int32_t role, layer; /* of the call: where the largest numbers must be. RSSM_T_NONE: in the pool's */
    int32_t pool_role;   /* KDA's and GDN's name */
} large_case;

static void fill(ec_case *c, ec_call call, int32_t role, int32_t layer, double value)
{
    h_fill(&h_of(c, call, role, layer)->t, value);
}

/* The pool's tensors of a layer. */
static void pool_roles(const ec_case *c, int32_t layer, const DLTensor **roles)
{
    memset(roles, 0, RSSM_T_COUNT * sizeof(*roles));
    ck_assert_int_eq(h_api()->pool_tensors(c->plugin, layer, roles, RSSM_T_COUNT, NULL), RSSM_OK);
}

/* Records whose products are far beyond float16; no gate makes them small. */
static void large_records(ec_case *c)
{
    const bool mamba = c->spec.family == RSSM_FAMILY_MAMBA2;
    for (int32_t layer = 0; layer < EC_LAYERS; layer++) {
        const DLTensor *roles[RSSM_T_COUNT];
        pool_roles(c, layer, roles);
        h_fill(roles[mamba ? RSSM_T_X_CACHE : RSSM_T_D_CACHE], 1e4);
        h_fill(roles[mamba ? RSSM_T_B_CACHE : RSSM_T_K_CACHE], 1e4);
        h_fill(roles[mamba ? RSSM_T_DT_CACHE : RSSM_T_G_CACHE], mamba ? 0.01 : -0.01);
    }
}

/* x of Mamba-2 goes to the ring as it is; v becomes d, which is as large where beta is not small. */
static void large_values(ec_case *c)
{
    fill(c, EC_VERIFY, c->spec.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV, 0, 1e6);
}

/* Keys with a norm are small, but not Mamba-2's B, which lies behind x in the packed row. */
static void large_keys(ec_case *c)
{
    const h_spec *s = &c->spec;
    if (s->family != RSSM_FAMILY_MAMBA2) {
        large_values(c);
        return;
    }
    const DLTensor *row = &h_of(c, EC_VERIFY, RSSM_T_MIXED_XBC, 0)->t;
    for (int64_t token = 0; token < EC_TOKENS; token++)
        for (int64_t i = 0; i < (int64_t)s->H * s->K; i++)
            h_set(row, token, (int64_t)s->HV * s->V + i, 0, 0, 1e6);
}

static void large_scale(ec_case *c)
{
    if (c->spec.family == RSSM_FAMILY_MAMBA2) {
        fill(c, EC_VERIFY, RSSM_T_D, 0, 1e9);
        return;
    }
    c->verify.has_scale = 1;
    c->verify.scale = 1e9;
}

SPOIL(large_states, fill(c, EC_IMPORT, RSSM_T_STATE, 0, 1e6))
SPOIL(large_history, fill(c, EC_IMPORT, RSSM_T_CONV, 1, -1e6))
SPOIL(large_ring_of_conv, const DLTensor *roles[RSSM_T_COUNT]; pool_roles(c, 0, roles);
      h_fill(roles[RSSM_T_CONV], -1e6))
SPOIL(large_bias_of_step, fill(c, EC_CONV, RSSM_T_CONV_WEIGHT, 0, 1e9); fill(c, EC_CONV, RSSM_T_CONV_IN, 0, 1))
SPOIL(large_bias_of_window, fill(c, EC_CONV_VERIFY, RSSM_T_CONV_WEIGHT, 0, 1e9);
      fill(c, EC_CONV_VERIFY, RSSM_T_CONV_IN, 0, 1))

static const large_case large_cases[] = {
    {"a window's fold", EC_VERIFY, F32, F16, F32, large_records, RSSM_FAULT_STATE, RSSM_T_NONE, 0, RSSM_T_STATE},
    {"a window's records", EC_VERIFY, F32, F32, F16, large_values, RSSM_FAULT_RING, RSSM_T_NONE, 0, RSSM_T_D_CACHE},
    {"a window's keys", EC_VERIFY, F32, F32, F16, large_keys, RSSM_FAULT_RING, RSSM_T_NONE, 0, RSSM_T_K_CACHE},
    {"a window's output", EC_VERIFY, F16, F32, F32, large_scale, RSSM_FAULT_OUTPUT, RSSM_T_OUT, 0, 0},
    {"a flush", EC_FLUSH, F32, F16, F32, large_records, RSSM_FAULT_STATE, RSSM_T_NONE, 0, RSSM_T_STATE},
    {"an export", EC_EXPORT, F32, F32, F32, large_records, RSSM_FAULT_STATE, RSSM_T_STATE, 1, 0},
    {"an export's history", EC_EXPORT, F32, F32, F32, large_ring_of_conv, RSSM_FAULT_RING, RSSM_T_CONV, 0, 0},
    {"an import", EC_IMPORT, F32, F16, F32, large_states, RSSM_FAULT_STATE, RSSM_T_NONE, 0, RSSM_T_STATE},
    {"an import's history", EC_IMPORT, F16, F32, F32, large_history, RSSM_FAULT_RING, RSSM_T_NONE, 1, RSSM_T_CONV},
    {"a convolution", EC_CONV, F16, F32, F32, large_bias_of_step, RSSM_FAULT_OUTPUT, RSSM_T_CONV_OUT, 0, 0},
    {"a window's convolution", EC_CONV_VERIFY, F16, F32, F32, large_bias_of_window, RSSM_FAULT_OUTPUT, RSSM_T_CONV_OUT,
     0, 0},
};

/* How many elements are the largest of float16, either sign; all must be numbers, where they were written. */
static int64_t count_largest(const DLTensor *t)
{
    int64_t largest = 0, columns = t->ndim > 3 ? t->shape[3] : 1, rows = t->ndim > 2 ? t->shape[2] : 1;
    for (int64_t i = 0; i < t->shape[0] * t->shape[1] * rows * columns; i++) {
        double x = h_get(t, i / columns / rows / t->shape[1], i / columns / rows % t->shape[1], i / columns % rows,
                         i % columns);
        ck_assert_msg(!isinf(x), "element %d is infinite", (int)i);
        largest += fabs(x) == 65504;
    }
    return largest;
}

START_TEST(test_large_values)
{
    const large_case *l = &large_cases[_i / 6];
    const h_spec wish = {.family = families[_i / 2 % 3],
                         .io = l->io,
                         .state = l->state,
                         .ring = l->ring,
                         .init_flags = _i % 2 ? RSSM_INIT_CPU_REFERENCE : 0};
    ec_case *c = ec_new_of(wish, RSSM_STATE_VK);
    if (!c)
        return;
    uint32_t word = 0;
    const DLTensor *roles[RSSM_T_COUNT];
    l->spoil(c);
    pool_roles(c, l->layer, roles);
    const bool mamba = wish.family == RSSM_FAMILY_MAMBA2, keys = l->pool_role == RSSM_T_K_CACHE;
    const DLTensor *where = l->role != RSSM_T_NONE ? &h_of(c, l->call, l->role, l->layer)->t : roles[l->pool_role];
    if (l->pool_role == RSSM_T_D_CACHE || keys) /* where the large ones are */
        where = roles[!mamba ? RSSM_T_D_CACHE : keys ? RSSM_T_B_CACHE : RSSM_T_X_CACHE];
    check_accepted(c, l->call, l->name);
    ck_assert_int_eq(c->fault_api->read(c->plugin, NULL, &word, NULL), RSSM_OK);
    ck_assert_msg(word == l->fault, "%s: fault word 0x%x, not 0x%x", l->name, word, l->fault);
    ck_assert_msg(count_largest(where) > 0, "%s: no element is 65504", l->name);
    ec_free(c);
}
END_TEST

/* float16 as it is read: infinities and NaN come through, and so does the smallest number. */
START_TEST(test_float16_read)
{
    static const struct {
        uint16_t bits;
        float value;
    } known[] = {{0x7C00, INFINITY}, {0xFC00, -INFINITY}, {0x7E00, NAN},      {0x7C01, NAN},
                 {0x7BFF, 65504},    {0xFBFF, -65504},    {0x0001, 0x1p-24f}, {0x83FF, -0x3FFp-24f},
                 {0x0400, 0x1p-14f}, {0x3C00, 1},         {0x8000, -0.0f},    {0x3555, 0x1.554p-2f}};
    const h_spec wish = {.family = families[_i / 2], .io = F32, .init_flags = _i % 2 ? RSSM_INIT_CPU_REFERENCE : 0};
    ec_case *c = ec_new_of(wish, RSSM_STATE_VK);
    if (!c)
        return;
    const DLTensor *roles[RSSM_T_COUNT];
    const h_tensor *from = h_of(c, EC_IMPORT, RSSM_T_CONV, 1); /* bfloat16 or float16 */
    const int32_t layer = from->t.dtype.code == kDLFloat && from->t.dtype.bits == 16 ? 1 : 0;
    from = h_of(c, EC_IMPORT, RSSM_T_CONV, layer);
    ck_assert_int_eq(from->t.dtype.code, kDLFloat);
    ck_assert_int_eq(from->t.dtype.bits, 16);
    for (int i = 0; i < COUNT(known); i++)
        *(uint16_t *)h_at(&from->t, 0, i, EC_WIDTH - 2, 0) = known[i].bits; /* the newest input of channel i */
    check_accepted(c, EC_IMPORT, "float16");
    pool_roles(c, layer, roles);
    for (int i = 0; i < COUNT(known); i++) {
        const float got = (float)h_get(roles[RSSM_T_CONV], 0, i, roles[RSSM_T_CONV]->shape[2] - 1, 0);
        const bool same = memcmp(&got, &known[i].value, sizeof(got)) == 0 || (isnan(got) && isnan(known[i].value));
        ck_assert_msg(same, "float16 0x%x is read as %g", known[i].bits, (double)got);
    }
    uint32_t word = 1;
    ck_assert_int_eq(c->fault_api->read(c->plugin, NULL, &word, NULL), RSSM_OK);
    ck_assert_uint_eq(word, 0);
    ec_free(c);
}
END_TEST

/* ---- commit ------------------------------------------------------------------------------------------------------ */

/* A pool without convolution: base and count are all that a cursor says. */
typedef struct small_pool {
    rssm_plugin *plugin;
    const rssm_verify_api *verify_api;
    const rssm_fault_api *fault_api;
    int32_t *cursor; /* of slot 0 */
    h_tensor slots, force, rows, accepted;
} small_pool;

enum { SMALL_L = 4 };

static bool small_pool_make(small_pool *s, int32_t family)
{
    const int64_t shape[] = {1, RSSM_ROW_WIDTH};
    const h_spec spec =
        h_defaults((h_spec){.family = family, .L = SMALL_L, .drafts = EC_DRAFTS, .B = 1, .S = 2, .num_slots = 2});
    const DLTensor *roles[RSSM_T_COUNT] = {0};
    *s = (small_pool){.verify_api = h_api()->get_extension(RSSM_EXT_VERIFY),
                      .fault_api = h_api()->get_extension(RSSM_EXT_FAULT)};
    if (!s->verify_api || !s->fault_api) {
        h_skip("needs the extensions verify and fault");
        return false;
    }
    s->plugin = h_init(&spec);
    ck_assert_int_eq(h_api()->prepare(s->plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_create(s->plugin, NULL, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_tensors(s->plugin, 0, roles, RSSM_T_COUNT, NULL), RSSM_OK);
    s->cursor = h_at(roles[RSSM_T_CURSOR], 0, 0, 0, 0);
    h_tensor *const lists[] = {&s->slots, &s->force, &s->accepted};
    for (int i = 0; i < COUNT(lists); i++) {
        h_tensor_make(lists[i], h_int_type(32), 1, shape, 0);
        h_set(&lists[i]->t, 0, 0, 0, 0, i);
    }
    h_set(&s->slots.t, 0, 0, 0, 0, 0);
    h_tensor_make(&s->rows, h_int_type(32), 2, shape, 0);
    return true;
}

static void small_pool_free(small_pool *s)
{
    h_tensor_free(&s->slots);
    h_tensor_free(&s->force);
    h_tensor_free(&s->rows);
    h_tensor_free(&s->accepted);
    h_teardown(&s->plugin);
}

static void small_step(small_pool *s, bool force)
{
    h_set(&s->force.t, 0, 0, 0, 0, force);
    const rssm_step_begin_args args = {
        .struct_size = sizeof(args), .slots = &s->slots.t, .force_flush = &s->force.t, .rows_out = &s->rows.t};
    ck_assert_int_eq(h_api()->step_begin(s->plugin, &args, NULL), RSSM_OK);
}

/* commit with the rows of a plain step, which keep a token that the step has kept already: refused, whether the step has moved
 * the cursor by one or, with a flush, to where a window's fold would have left it. */
START_TEST(test_commit_of_a_step)
{
    small_pool s;
    int32_t steps = _i % SMALL_L; /* before the one whose rows are committed; the last flushes by itself */
    bool force = _i / SMALL_L % 2;
    if (!small_pool_make(&s, families[_i / SMALL_L / 2]))
        return;
    for (int32_t i = 0; i < steps; i++)
        small_step(&s, false);
    small_step(&s, force);
    int32_t before[RSSM_CURSOR_WIDTH];
    memcpy(before, s.cursor, sizeof(before));
    ck_assert_int_eq((int)h_get(&s.rows.t, 0, 3, 0, 0), force || steps == SMALL_L - 1);
    h_set(&s.accepted.t, 0, 0, 0, 0, 1);
    rssm_commit_args args = {.struct_size = sizeof(args), .rows = &s.rows.t, .accepted = &s.accepted.t};
    rssm_error err = h_error();
    uint32_t word = 0;
    ck_assert_int_eq(s.verify_api->commit(s.plugin, &args, &err), RSSM_OK);
    ck_assert_int_eq(s.fault_api->read(s.plugin, NULL, &word, &err), RSSM_OK);
    ck_assert_msg(word == RSSM_FAULT_ACCEPTED, "after %d steps: fault word 0x%x", steps, word);
    ck_assert_msg(memcmp(before, s.cursor, sizeof(before)) == 0, "after %d steps: the cursor has moved", steps);
    args.flags = RSSM_CHECK_DEEP;
    ck_assert_int_eq(s.verify_api->commit(s.plugin, &args, &err), RSSM_ERR_VALUE);
    small_pool_free(&s);
}
END_TEST

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static void add(h_suite *suite, const char *name, const TTest *test, int count, const char *extension)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 180, .extension = extension});
}

void extensions_tests(h_suite *suite);

void extensions_tests(h_suite *suite)
{
    add(suite, "each tensor x each defect", test_tensors, 2 * 3 * EC_CALLS, RSSM_EXT_SLOTS);
    add(suite, "arguments", test_argument, 3 * COUNT(bad_arguments), RSSM_EXT_SLOTS);
    add(suite, "accepted forms", test_accepted, 3, RSSM_EXT_SLOTS);
    add(suite, "decode refuses their roles", test_decode_refuses, 3, NULL);
    add(suite, "too early or not asked for", test_lacking, 3 * COUNT(lackings), RSSM_EXT_SLOTS);
    add(suite, "struct sizes", test_struct_sizes, EC_CALLS, RSSM_EXT_SLOTS);
    add(suite, "NULLs and err", test_nulls, EC_CALLS, RSSM_EXT_SLOTS);
    add(suite, "deep", test_deep, 3 * COUNT(deep_cases), RSSM_EXT_SLOTS);
    add(suite, "deep accepts", test_deep_accepts, 3, RSSM_EXT_SLOTS);
    add(suite, "not deep: faults", test_faults, 3 * COUNT(fault_cases), RSSM_EXT_SLOTS);
    add(suite, "a fold without tokens", test_fold_without_tokens, 3, RSSM_EXT_SLOTS);
    add(suite, "values beyond 16 bits", test_large_values, 6 * COUNT(large_cases), RSSM_EXT_SLOTS);
    add(suite, "float16 that is read", test_float16_read, 6, RSSM_EXT_SLOTS);
    add(suite, "commit of a plain step", test_commit_of_a_step, 3 * 2 * SMALL_L, RSSM_EXT_VERIFY);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("extensions", extensions_tests, true);
}
#endif
