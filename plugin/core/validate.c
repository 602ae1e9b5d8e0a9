#include "core/validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* ---- reading DLTensors ------------------------------------------------------------------------------------------ */

void *rssm_tensor_data(const DLTensor *t)
{
    return t->data ? (char *)t->data + t->byte_offset : NULL;
}

static int64_t compact_stride(const DLTensor *t, int dim)
{
    int64_t stride = 1;
    for (int i = t->ndim - 1; i > dim; i--)
        stride *= t->shape[i];
    return stride;
}

int64_t rssm_tensor_stride0(const DLTensor *t)
{
    return t->strides ? t->strides[0] : compact_stride(t, 0);
}

rssm_index rssm_index_of(const DLTensor *t)
{
    if (!t)
        return (rssm_index){0};
    return (rssm_index){.data = rssm_tensor_data(t), .stride = rssm_tensor_stride0(t), .bits = t->dtype.bits};
}

int32_t rssm_dtype_of(const DLTensor *t)
{
    if (t->dtype.bits == 32)
        return RSSM_DTYPE_FLOAT32;
    return t->dtype.code == kDLBfloat ? RSSM_DTYPE_BFLOAT16 : RSSM_DTYPE_FLOAT16;
}

static int64_t element_bytes(const DLTensor *t)
{
    return t->dtype.bits / 8;
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

enum { TEXT = 160 };

/* "[64, 32, 16, 128]", cut when a tensor has absurdly many dimensions. */
static const char *numbers_text(char *text, const int64_t *numbers, int count)
{
    size_t used = (size_t)snprintf(text, TEXT, "[");
    for (int i = 0; i < count && used < TEXT - 32; i++)
        used += (size_t)snprintf(text + used, TEXT - used, "%s%lld", i ? ", " : "", (long long)numbers[i]);
    snprintf(text + used, TEXT - used, "]");
    return text;
}

static const char *sym_text(const rssm_plugin *p, int sym)
{
    return sym == RSSM_SYM_R && p->rank.R == p->rank.L ? "L" : p->rank.family->sym_name[sym];
}

/* "[slots, HV, L, V] = [64, 32, 16, 128]"; a free symbol keeps its name. */
static const char *shape_text(char *text, const rssm_plugin *p, const uint8_t *shape, const rssm_dims_of *dims)
{
    size_t used = (size_t)snprintf(text, TEXT, "[");
    for (int i = 0; shape[i] != RSSM_SYM_END; i++)
        used += (size_t)snprintf(text + used, TEXT - used, "%s%s", i ? ", " : "", sym_text(p, shape[i]));
    used += (size_t)snprintf(text + used, TEXT - used, "] = [");
    for (int i = 0; shape[i] != RSSM_SYM_END; i++) {
        int64_t value = dims->of[shape[i]];
        if (value < 0)
            used += (size_t)snprintf(text + used, TEXT - used, "%s%s", i ? ", " : "", sym_text(p, shape[i]));
        else
            used += (size_t)snprintf(text + used, TEXT - used, "%s%lld", i ? ", " : "", (long long)value);
    }
    snprintf(text + used, TEXT - used, "]");
    return text;
}

static const char *dtype_text(char *text, DLDataType type)
{
    const char *code = type.code == kDLFloat    ? "float"
                       : type.code == kDLBfloat ? "bfloat"
                       : type.code == kDLInt    ? "int"
                       : type.code == kDLUInt   ? "uint"
                                                : NULL;
    size_t used = code ? (size_t)snprintf(text, TEXT, "%s%u", code, type.bits)
                       : (size_t)snprintf(text, TEXT, "DLPack type code %u with %u bits", type.code, type.bits);
    if (type.lanes != 1)
        snprintf(text + used, TEXT - used, " x %u lanes", type.lanes);
    return text;
}

static const char *device_text(char *text, int32_t type, int32_t id)
{
    const char *name = type == kDLCPU ? "cpu" : type == kDLCUDA ? "cuda" : NULL;
    if (type == kDLCPU)
        snprintf(text, TEXT, "cpu");
    else if (name)
        snprintf(text, TEXT, "%s:%d", name, id);
    else
        snprintf(text, TEXT, "DLPack device type %d, id %d", type, id);
    return text;
}

/* ---- one tensor ------------------------------------------------------------------------------------------------- */

static int shape_length(const uint8_t *shape)
{
    int length = 0;
    while (shape[length] != RSSM_SYM_END)
        length++;
    return length;
}

/* The first dimension that differs, or -1. Free symbols match anything that is not negative. */
static int first_difference(const DLTensor *t, const uint8_t *shape, const rssm_dims_of *dims)
{
    for (int i = 0; i < t->ndim; i++) {
        int64_t want = dims->of[shape[i]];
        if (want < 0 ? t->shape[i] < 0 : t->shape[i] != want)
            return i;
    }
    return -1;
}

/* The likely cause, as hosts meet it: axes of another kernel, an unsharded tensor, another model's heads. */
static const char *likely_cause(char *text, const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t,
                                int dim, const rssm_dims_of *dims)
{
    const rssm_rank *r = &p->rank;
    const uint8_t *shape = spec->shape;
    text[0] = 0;
    if (t->ndim == shape_length(shape) && t->ndim >= 3) { /* the same sizes in another order? */
        for (int a = 1; a < t->ndim; a++)
            for (int b = a + 1; b < t->ndim; b++) {
                bool swapped = dims->of[shape[a]] != dims->of[shape[b]];
                for (int i = 1; i < t->ndim; i++) {
                    int from = i == a ? b : i == b ? a : i;
                    swapped = swapped && t->shape[i] == dims->of[shape[from]];
                }
                if (swapped) {
                    snprintf(text, TEXT, " (axes %s and %s look swapped)", sym_text(p, shape[a]),
                             sym_text(p, shape[b]));
                    return text;
                }
            }
    }
    int sym = shape[dim];
    int64_t got = t->shape[dim];
    int64_t whole = sym == RSSM_SYM_HV       ? p->model.HV
                    : sym == RSSM_SYM_H      ? p->model.H
                    : sym == RSSM_SYM_HxK    ? (int64_t)p->model.H * r->K
                    : sym == RSSM_SYM_HVxV   ? (int64_t)p->model.HV * r->V
                    : sym == RSSM_SYM_HVxK   ? (int64_t)p->model.HV * r->K
                    : sym == RSSM_SYM_PACKED ? 2 * (int64_t)p->model.H * r->K + (int64_t)p->model.HV * r->V
                                             : -1;
    if (r->tp_size > 1 && got == whole)
        snprintf(text, TEXT, " (not sharded: the whole model has %lld, this rank of tp_size %d has %lld)",
                 (long long)got, r->tp_size, (long long)dims->of[sym]);
    else if (sym == RSSM_SYM_HV || sym == RSSM_SYM_H)
        snprintf(text, TEXT, " (built for %lld %s instead of %lld?)", (long long)got,
                 sym == RSSM_SYM_HV ? "value heads" : "key heads", (long long)dims->of[sym]);
    else if (sym == RSSM_SYM_R)
        snprintf(text, TEXT, " (built for another ring length?)");
    else if (sym == RSSM_SYM_S)
        snprintf(text, TEXT, " (`state` has another number of slots)");
    return text;
}

static rssm_status fail_shape(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, int dim,
                              const rssm_dims_of *dims, rssm_error *err)
{
    char want[TEXT], other[TEXT], got[TEXT], cause[TEXT] = "", alt[TEXT + 8] = "";
    shape_text(want, p, spec->shape, dims);
    if (spec->alt_shape[0])
        snprintf(alt, sizeof(alt), " or %s", shape_text(other, p, spec->alt_shape, dims));
    if (dim >= 0)
        likely_cause(cause, p, spec, t, dim, dims);
    rssm_where where = {.role = spec->role, .dim = dim};
    where.expected = dim >= 0 ? dims->of[spec->shape[dim]] : shape_length(spec->shape);
    where.got = dim >= 0 ? t->shape[dim] : t->ndim;
    if (dim >= 0 || t->ndim > 0)
        numbers_text(got, t->shape, t->ndim);
    else
        snprintf(got, sizeof(got), "%d dimensions", t->ndim);
    return rssm_fail_at(err, RSSM_ERR_SHAPE, where, "`%s` must have shape %s%s; got %s%s", rssm_role_name(spec->role),
                        want, alt, got, cause);
}

static rssm_status check_shape(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_dims_of *dims,
                               rssm_error *err)
{
    int length = shape_length(spec->shape), alt_length = shape_length(spec->alt_shape);
    const uint8_t *shape = t->ndim == length                     ? spec->shape
                           : alt_length && t->ndim == alt_length ? spec->alt_shape
                                                                 : NULL;
    if (!shape || !t->shape) {
        if (t->ndim > 0 && !t->shape)
            return rssm_fail_at(err, RSSM_ERR_ARGUMENT, (rssm_where){.role = spec->role, .dim = -1},
                                "`%s` has ndim = %d and no shape", rssm_role_name(spec->role), t->ndim);
        return fail_shape(p, spec, t, -1, dims, err);
    }
    int dim = first_difference(t, shape, dims);
    if (dim >= 0) {
        rssm_role_spec as_given = *spec;
        memcpy(as_given.shape, shape, sizeof(as_given.shape));
        if (shape != spec->shape)
            memcpy(as_given.alt_shape, spec->shape, sizeof(as_given.alt_shape));
        return fail_shape(p, &as_given, t, dim, dims, err);
    }
    for (int i = 0; i < t->ndim; i++)
        dims->of[shape[i]] = t->shape[i];
    return RSSM_OK;
}

static bool is_float(DLDataType type, int32_t dtype)
{
    if (type.lanes != 1)
        return false;
    switch (dtype) {
    case RSSM_DTYPE_FLOAT32:
        return type.code == kDLFloat && type.bits == 32;
    case RSSM_DTYPE_BFLOAT16:
        return type.code == kDLBfloat && type.bits == 16;
    default:
        return type.code == kDLFloat && type.bits == 16;
    }
}

static bool is_int(DLDataType type, int bits)
{
    return type.lanes == 1 && type.code == kDLInt && type.bits == bits;
}

static rssm_status check_dtype(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_error *err)
{
    const rssm_rank *r = &p->rank;
    int kinds = spec->kinds;
    bool good = (kinds & RSSM_KIND_IO && is_float(t->dtype, r->io_dtype)) ||
                (kinds & RSSM_KIND_STATE && is_float(t->dtype, r->state_dtype)) ||
                (kinds & RSSM_KIND_RING && is_float(t->dtype, r->ring_dtype)) ||
                (kinds & (RSSM_KIND_F32 | RSSM_KIND_FLOAT) && is_float(t->dtype, RSSM_DTYPE_FLOAT32)) ||
                (kinds & RSSM_KIND_FLOAT &&
                 (is_float(t->dtype, RSSM_DTYPE_BFLOAT16) || is_float(t->dtype, RSSM_DTYPE_FLOAT16))) ||
                (kinds & RSSM_KIND_I32 && is_int(t->dtype, 32)) || (kinds & RSSM_KIND_I64 && is_int(t->dtype, 64));
    if (good)
        return RSSM_OK;
    char want[TEXT] = "", got[TEXT];
    if (kinds & RSSM_KIND_FLOAT)
        snprintf(want, TEXT, "float32, bfloat16 or float16");
    else if (kinds & RSSM_KIND_I32)
        snprintf(want, TEXT, kinds & RSSM_KIND_I64 ? "int32 or int64" : "int32");
    else if (kinds & RSSM_KIND_STATE)
        snprintf(want, TEXT, "%s (the state dtype of this instance)", rssm_dtype_name(r->state_dtype));
    else if (kinds & RSSM_KIND_RING)
        snprintf(want, TEXT, "%s (the ring dtype of this instance)", rssm_dtype_name(r->ring_dtype));
    else if (kinds & RSSM_KIND_IO)
        snprintf(want, TEXT, "%s (the io dtype of this instance)%s", rssm_dtype_name(r->io_dtype),
                 kinds & RSSM_KIND_F32 && r->io_dtype != RSSM_DTYPE_FLOAT32 ? " or float32" : "");
    else
        snprintf(want, TEXT, "float32");
    return rssm_fail_at(err, RSSM_ERR_DTYPE, (rssm_where){.role = spec->role, .dim = -1, .got = t->dtype.bits},
                        "`%s` must have dtype %s; got %s", rssm_role_name(spec->role), want, dtype_text(got, t->dtype));
}

static rssm_status check_device(const rssm_plugin *p, int32_t role, const DLTensor *t, rssm_error *err)
{
    int32_t type = (int32_t)t->device.device_type, id = t->device.device_id;
    if (type == p->args.device_type && (type == kDLCPU || id == p->args.device_id))
        return RSSM_OK;
    char want[TEXT], got[TEXT];
    rssm_where where = {.role = role, .dim = -1, .expected = p->args.device_type, .got = type};
    if (type == p->args.device_type) {
        where.expected = p->args.device_id;
        where.got = id;
    }
    return rssm_fail_at(err, RSSM_ERR_DEVICE, where, "`%s` must be on %s, the device of this instance; got %s",
                        rssm_role_name(role), device_text(want, p->args.device_type, p->args.device_id),
                        device_text(got, type, id));
}

/* Elements from the first to behind the last, or -1 when it overflows. Sizes are known to be >= 0. */
static int64_t extent(const DLTensor *t)
{
    int64_t last = 0, reach = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
        int64_t stride = t->strides ? t->strides[i] : 0;
        if (t->strides && t->shape[i] > 1) {
            if (__builtin_mul_overflow(t->shape[i] - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last))
                return -1;
        }
    }
    if (!t->strides) {
        last = 1;
        for (int i = 0; i < t->ndim; i++)
            if (__builtin_mul_overflow(last, t->shape[i], &last))
                return -1;
        return last;
    }
    return last == INT64_MAX ? -1 : last + 1;
}

static rssm_status check_strides(const rssm_role_spec *spec, const DLTensor *t, rssm_error *err)
{
    const char *name = rssm_role_name(spec->role);
    int64_t inner = 1;
    for (int i = t->ndim - 1; t->strides && i >= 0; i--) {
        int64_t stride = t->strides[i];
        bool single = t->shape[i] <= 1; /* any stride is as good as another */
        bool outer = i == 0 && spec->place != RSSM_PLACE_WEIGHT;
        bool index = spec->place == RSSM_PLACE_INDEX && t->ndim == 1;
        rssm_where where = {.role = spec->role, .dim = i, .expected = inner, .got = stride};
        if (stride < 0 && !single)
            return rssm_fail_at(err, RSSM_ERR_STRIDE, where, "`%s` has a negative stride %lld in dim %d", name,
                                (long long)stride, i);
        if (!outer && !single && stride != inner)
            return rssm_fail_at(err, RSSM_ERR_STRIDE, where, "`%s` must be compact in dim %d: stride %lld; got %lld",
                                name, i, (long long)inner, (long long)stride);
        bool written = spec->place != RSSM_PLACE_INPUT && spec->place != RSSM_PLACE_WEIGHT && !index;
        if (outer && written && !single && stride < inner)
            return rssm_fail_at(err, RSSM_ERR_STRIDE, where,
                                "`%s` has overlapping %s: stride %lld of dim 0 is below the %lld elements of one", name,
                                spec->place == RSSM_PLACE_OUTPUT || spec->place == RSSM_PLACE_INDEX ? "rows" : "slots",
                                (long long)stride, (long long)inner);
        if (__builtin_mul_overflow(inner, t->shape[i], &inner))
            return rssm_fail_at(err, RSSM_ERR_OVERFLOW, where, "`%s` has more than 2^63 elements", name);
    }
    return RSSM_OK;
}

static rssm_status check_address(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_error *err)
{
    const char *name = rssm_role_name(spec->role);
    rssm_where where = {.role = spec->role, .dim = -1};
    int64_t elements = extent(t), bytes = 0;
    uintptr_t end = 0, address = (uintptr_t)t->data;
    if (elements < 0 || __builtin_mul_overflow(elements, element_bytes(t), &bytes))
        return rssm_fail_at(err, RSSM_ERR_OVERFLOW, where, "`%s` reaches beyond 2^63 bytes", name);
    if (elements == 0)
        return RSSM_OK;
    if (!t->data)
        return rssm_fail_at(err, RSSM_ERR_ARGUMENT, where, "`%s` has a NULL data pointer", name);
    if (__builtin_add_overflow(address, t->byte_offset, &address) ||
        __builtin_add_overflow(address, (uintptr_t)bytes, &end))
        return rssm_fail_at(err, RSSM_ERR_OVERFLOW, where,
                            "`%s` with byte_offset %llu reaches beyond the address space", name,
                            (unsigned long long)t->byte_offset);
    bool pool = spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING || spec->place == RSSM_PLACE_CONV ||
                spec->place == RSSM_PLACE_CURSOR;
    uintptr_t align = pool ? 16 : (uintptr_t)element_bytes(t);
    where.expected = (int64_t)align;
    where.got = (int64_t)(address % align);
    if (address % align)
        return rssm_fail_at(err, RSSM_ERR_ALIGNMENT, where,
                            "`%s` must be %d-byte aligned (%s); data + byte_offset = %p", name, (int)align,
                            pool ? "a pool tensor" : "its element size", (void *)address);
    (void)p;
    return RSSM_OK;
}

rssm_status rssm_check_tensor(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_dims_of *dims,
                              rssm_error *err)
{
    rssm_dims_of bound = *dims;
    rssm_status status = check_shape(p, spec, t, &bound, err);
    if (!status)
        status = check_dtype(p, spec, t, err);
    if (!status)
        status = check_device(p, spec->role, t, err);
    if (!status)
        status = check_strides(spec, t, err);
    if (!status)
        status = check_address(p, spec, t, err);
    if (!status)
        *dims = bound;
    return status;
}

rssm_status rssm_check_list(const rssm_plugin *p, int32_t role, rssm_sym length, const DLTensor *t, rssm_dims_of *dims,
                            rssm_error *err)
{
    const rssm_role_spec spec = {
        .role = role, .place = RSSM_PLACE_INDEX, .kinds = RSSM_KIND_I32 | RSSM_KIND_I64, .shape = {(uint8_t)length}};
    return rssm_check_tensor(p, &spec, t, dims, err);
}

/* ---- overlap ---------------------------------------------------------------------------------------------------- */

/* A tensor as `count` pieces of `bytes`, `stride` apart. */
typedef struct pieces {
    uintptr_t first, end;
    uint64_t bytes, stride;
} pieces;

static pieces pieces_of(const DLTensor *t)
{
    pieces p = {.first = (uintptr_t)rssm_tensor_data(t)};
    int64_t elements = extent(t);
    p.end = p.first + (uintptr_t)(elements * element_bytes(t));
    p.stride = t->ndim ? (uint64_t)(rssm_tensor_stride0(t) * element_bytes(t)) : 0;
    int64_t inner = 1;
    for (int i = 1; i < t->ndim; i++)
        inner *= t->shape[i];
    p.bytes = (uint64_t)(inner * element_bytes(t));
    return p;
}

bool rssm_tensors_overlap(const DLTensor *a, const DLTensor *b)
{
    pieces p = pieces_of(a), q = pieces_of(b);
    if (p.end <= q.first || q.end <= p.first || p.first == p.end || q.first == q.end)
        return false;
    if (p.stride != q.stride || p.stride == 0)
        return true;
    /* Pages of equal stride: where does q start in p's page? */
    uint64_t stride = p.stride;
    uint64_t at = q.first >= p.first ? (q.first - p.first) % stride : (stride - (p.first - q.first) % stride) % stride;
    return at < p.bytes || at + q.bytes > stride;
}

/* ---- a decode call ---------------------------------------------------------------------------------------------- */

static const DLTensor *given(const rssm_decode_args *args, int32_t role)
{
    return role > 0 && (uint32_t)role < args->num_tensors ? args->tensors[role] : NULL;
}

static rssm_status missing(int32_t role, const char *why, rssm_error *err)
{
    return rssm_fail_at(err, RSSM_ERR_MISSING, (rssm_where){.role = role, .dim = -1}, "`%s` is missing%s",
                        rssm_role_name(role), why);
}

static rssm_status check_flags(uint32_t flags, uint32_t known, rssm_error *err)
{
    if (flags & ~known)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "unknown flag 0x%x", flags & ~known);
    return RSSM_OK;
}

static rssm_status check_overrides(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    if ((args->has_scale | args->has_lower_bound) & ~1)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "has_scale = %d and has_lower_bound = %d must be 0 or 1",
                         args->has_scale, args->has_lower_bound);
    if (p->model.family == RSSM_FAMILY_MAMBA2 && (args->has_scale || args->has_lower_bound))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "Mamba-2 has no scale and no lower_bound to override");
    if (args->has_scale && !isfinite((float)args->scale))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "scale = %g is not a finite float32", args->scale);
    if (args->has_lower_bound && !(args->lower_bound < 0 && isfinite((float)args->lower_bound)))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "lower_bound = %g is not a finite float32 below 0", args->lower_bound);
    return RSSM_OK;
}

/* Roles that nobody knows, or that this family's decode does not take. */
static rssm_status check_roles(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    for (uint32_t role = 0; role < args->num_tensors; role++) {
        if (!args->tensors[role])
            continue;
        rssm_where where = {.role = (int32_t)role, .dim = -1};
        if (role == RSSM_T_NONE || role >= RSSM_T_COUNT)
            return rssm_fail_at(err, RSSM_ERR_ROLE, where, "tensor role %u is unknown to this plugin (it knows 1..%d)",
                                role, RSSM_T_COUNT - 1);
        const rssm_role_spec *spec = rssm_family_role(p->rank.family, (int32_t)role);
        bool storage = role == RSSM_T_CURSOR || role == RSSM_T_CONV; /* pool_tensors gives them beside the others */
        if (!storage && (!spec || spec->need == RSSM_NEED_NEVER))
            return rssm_fail_at(err, RSSM_ERR_ROLE, where, "`%s` is not a tensor of a %s decode",
                                rssm_role_name((int32_t)role), p->rank.family->name);
    }
    return RSSM_OK;
}

/* Which of the alternatives this call uses. */
typedef struct call_form {
    bool packed, rows, bounded, decay;
} call_form;

static rssm_status find_form(const rssm_plugin *p, const rssm_decode_args *args, call_form *form, rssm_error *err)
{
    bool mamba = p->model.family == RSSM_FAMILY_MAMBA2;
    int32_t packed = mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV;
    form->packed = given(args, packed);
    form->rows = given(args, RSSM_T_ROWS);
    form->bounded = p->model.has_lower_bound || args->has_lower_bound;
    form->decay = given(args, RSSM_T_A_DECAY);
    if (form->rows && given(args, RSSM_T_WRITE_POS))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_WRITE_POS, .dim = -1},
                            "`rows` and `write_pos` both say where each row stands: give one of them");
    if (!form->rows && !given(args, RSSM_T_WRITE_POS))
        return missing(RSSM_T_ROWS, ": give `rows` from step_begin, or `write_pos`", err);
    if (form->decay && given(args, RSSM_T_A_LOG))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_A_DECAY, .dim = -1},
                            "`A` and `A_log` are the same weight: give one of them");
    return RSSM_OK;
}

/* Is the role to be there (1), absent (-1), or as the caller likes (0)? */
static int wanted(const rssm_plugin *p, const call_form *form, const rssm_role_spec *spec)
{
    switch ((rssm_need)spec->need) {
    case RSSM_NEED_ALWAYS:
        return 1;
    case RSSM_NEED_PACKED:
        return form->packed ? 1 : -1;
    case RSSM_NEED_APART:
        return form->packed ? -1 : 1;
    case RSSM_NEED_RING:
        return p->rank.R > 1 ? 1 : 0;
    case RSSM_NEED_ROWS:
        return form->rows ? 1 : -1;
    case RSSM_NEED_HOST_POS:
        return form->rows ? -1 : 1;
    case RSSM_NEED_WITH_POS:
        return form->rows ? -1 : 0;
    case RSSM_NEED_A_LOG:
        return p->model.family == RSSM_FAMILY_MAMBA2 ? (form->decay ? -1 : 1) : form->bounded ? 0 : 1;
    case RSSM_NEED_A_DECAY:
        return form->decay ? 1 : -1;
    default:
        return 0;
    }
}

static const char *missing_reason(const rssm_role_spec *spec)
{
    switch ((rssm_need)spec->need) {
    case RSSM_NEED_APART:
        return ": give the packed input, or all inputs apart";
    case RSSM_NEED_A_LOG:
        return ": without a lower bound the gate needs it";
    case RSSM_NEED_RING:
        return ": a ring length above 1 needs it";
    default:
        return "";
    }
}

static const char *extra_reason(const rssm_role_spec *spec)
{
    switch ((rssm_need)spec->need) {
    case RSSM_NEED_APART:
        return "the packed input is given too";
    case RSSM_NEED_WITH_POS:
        return "`rows` already says it";
    default:
        return "it has no use in this call";
    }
}

static rssm_status check_present(const rssm_plugin *p, const rssm_decode_args *args, const call_form *form,
                                 rssm_error *err)
{
    for (int32_t i = 0; i < p->rank.family->num_roles; i++) {
        const rssm_role_spec *spec = &p->rank.family->roles[i];
        int want = wanted(p, form, spec);
        if (want > 0 && !given(args, spec->role))
            return missing(spec->role, missing_reason(spec), err);
        if (want < 0 && given(args, spec->role))
            return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = spec->role, .dim = -1},
                                "`%s` must be absent: %s", rssm_role_name(spec->role), extra_reason(spec));
    }
    return RSSM_OK;
}

/* `state` binds the slots before the rings are looked at; inputs come first in the table and bind B. */
static rssm_status check_tensors(const rssm_plugin *p, const rssm_decode_args *args, rssm_dims_of *dims,
                                 rssm_error *err)
{
    for (int32_t i = 0; i < p->rank.family->num_roles; i++) {
        const rssm_role_spec *spec = &p->rank.family->roles[i];
        const DLTensor *t = given(args, spec->role);
        if (!t || spec->need == RSSM_NEED_NEVER)
            continue;
        rssm_status status = rssm_check_tensor(p, spec, t, dims, err);
        if (status)
            return status;
    }
    int64_t B = dims->of[RSSM_SYM_B], S = dims->of[RSSM_SYM_S];
    if (B > p->args.max_batch)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "a batch of %lld rows is above max_batch = %d", (long long)B,
                         p->args.max_batch);
    if (S > INT32_MAX)
        return rssm_fail_at(err, RSSM_ERR_SHAPE, (rssm_where){.role = RSSM_T_STATE, .expected = INT32_MAX, .got = S},
                            "`state` has %lld slots; at most 2^31 - 1", (long long)S);
    return RSSM_OK;
}

static bool is_written(const rssm_role_spec *spec)
{
    return spec->place == RSSM_PLACE_OUTPUT || spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING;
}

static rssm_status check_overlaps(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    const rssm_family_spec *f = p->rank.family;
    for (int32_t i = 0; i < f->num_roles; i++) {
        const DLTensor *t = is_written(&f->roles[i]) ? given(args, f->roles[i].role) : NULL;
        for (int32_t j = 0; t && j < f->num_roles; j++) {
            const DLTensor *u = given(args, f->roles[j].role);
            bool both = is_written(&f->roles[j]); /* then look at the pair once */
            if (!u || j == i || (both && j < i) || f->roles[j].need == RSSM_NEED_NEVER)
                continue;
            if (rssm_tensors_overlap(t, u))
                return rssm_fail_at(err, RSSM_ERR_OVERLAP,
                                    (rssm_where){.role = f->roles[i].role, .dim = -1, .expected = f->roles[j].role},
                                    "`%s` is written and shares memory with `%s`", rssm_role_name(f->roles[i].role),
                                    rssm_role_name(f->roles[j].role));
        }
    }
    return RSSM_OK;
}

/* ---- values (RSSM_CHECK_DEEP) ----------------------------------------------------------------------------------- */

static int64_t widen(const char *at, int64_t width)
{
    int32_t narrow;
    int64_t wide;
    if (width == 8) {
        memcpy(&wide, at, 8);
        return wide;
    }
    memcpy(&narrow, at, 4);
    return narrow;
}

/* A strided integer array [rows, columns] as int64 in memory of the instance's allocator; NULL when that fails (err is
 * set). Row by row: the gaps between rows are not ours to read. */
static int64_t *read_indices(const rssm_plugin *p, const DLTensor *t, int64_t columns, void *stream, rssm_error *err)
{
    int64_t rows = t->shape[0], stride = rssm_tensor_stride0(t), width = element_bytes(t);
    size_t bytes = (size_t)(rows * columns) * sizeof(int64_t);
    const char *from = rssm_tensor_data(t);
    int64_t *out = rssm_mem_alloc(&p->mem, bytes, 16);
    if (!out) {
        rssm_out_of_memory(err);
        return NULL;
    }
    int64_t block = stride == columns ? rows : 1; /* rows per copy */
    char *raw = (char *)out + bytes - (size_t)(block * columns * width);
    for (int64_t i = 0; i < rows; i += block) {
        int64_t *to = out + i * columns;
        char *part = block == 1 ? (char *)to : raw;
        if (p->backend->to_host(p->ctx, part, from + i * stride * width, block * columns * width, stream, err)) {
            rssm_mem_free(&p->mem, out, bytes);
            return NULL;
        }
        if (width == 8)
            continue;
        if (block == 1) /* widen in place, from the end */
            for (int64_t j = columns - 1; j >= 0; j--)
                to[j] = widen(part + j * width, width);
        else /* the narrow block ends where the wide one does: from the start */
            for (int64_t j = 0; j < block * columns; j++)
                to[j] = widen(part + j * width, width);
    }
    return out;
}

/* slot << 32 | row, so that sorting finds the first pair of rows of one slot. */
static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Padding rows are passed over by every check of values. */
static bool is_padding(const rssm_plugin *p, int64_t slot, int64_t S)
{
    return slot < 0 || slot >= S || (p->args.has_pad_slot && slot == p->args.pad_slot);
}

static rssm_status check_unique(const rssm_plugin *p, int32_t role, const int64_t *slots, int64_t step, int64_t rows,
                                int64_t S, rssm_error *err)
{
    uint64_t *keys = rssm_mem_alloc(&p->mem, (size_t)rows * sizeof(*keys), 16);
    if (!keys)
        return rssm_out_of_memory(err);
    int64_t used = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t slot = slots[i * step];
        if (!is_padding(p, slot, S))
            keys[used++] = (uint64_t)slot << 32 | (uint64_t)i;
    }
    qsort(keys, (size_t)used, sizeof(*keys), by_value);
    rssm_status status = RSSM_OK;
    for (int64_t i = 1; !status && i < used; i++)
        if (keys[i] >> 32 == keys[i - 1] >> 32)
            status = rssm_fail_at(err, RSSM_ERR_VALUE,
                                  (rssm_where){.role = role,
                                               .dim = 0,
                                               .expected = (int64_t)(uint32_t)keys[i - 1],
                                               .got = (int64_t)(uint32_t)keys[i]},
                                  "`%s` has slot %lld twice, in rows %u and %u", rssm_role_name(role),
                                  (long long)(keys[i] >> 32), (uint32_t)keys[i - 1], (uint32_t)keys[i]);
    rssm_mem_free(&p->mem, keys, (size_t)rows * sizeof(*keys));
    return status;
}

static rssm_status check_cursor(const rssm_plugin *p, int32_t role, int64_t row, int64_t base, int64_t count,
                                rssm_error *err)
{
    rssm_where where = {.role = role, .dim = 0, .expected = p->rank.L, .got = count};
    if (count < 0 || count > p->rank.L)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`%s` row %lld: count %lld is not in 0..%d",
                            rssm_role_name(role), (long long)row, (long long)count, p->rank.L);
    where.expected = p->rank.R - 1;
    where.got = base;
    if (base < 0 || base >= p->rank.R)
        return rssm_fail_at(err, RSSM_ERR_VALUE, where, "`%s` row %lld: base %lld is not in 0..%d",
                            rssm_role_name(role), (long long)row, (long long)base, p->rank.R - 1);
    return RSSM_OK;
}

static rssm_status need_prepare(const rssm_plugin *p, const char *what, rssm_error *err)
{
    return p->ctx ? RSSM_OK : rssm_fail(err, RSSM_ERR_STATE, "%s before prepare", what);
}

static rssm_status check_rows_deep(const rssm_plugin *p, const DLTensor *rows, int64_t S, void *stream, rssm_error *err)
{
    int64_t B = rows->shape[0];
    int64_t *values = read_indices(p, rows, RSSM_ROW_WIDTH, stream, err);
    if (!values)
        return err->status;
    rssm_status status = check_unique(p, RSSM_T_ROWS, values, RSSM_ROW_WIDTH, B, S, err);
    for (int64_t i = 0; !status && i < B; i++) {
        const int64_t *row = values + i * RSSM_ROW_WIDTH;
        if (!is_padding(p, row[0], S))
            status = check_cursor(p, RSSM_T_ROWS, i, row[1], row[2], err);
    }
    rssm_mem_free(&p->mem, values, (size_t)(B * RSSM_ROW_WIDTH) * sizeof(*values));
    return status;
}

static rssm_status check_positions_deep(const rssm_plugin *p, const DLTensor *write_pos, const DLTensor *slots,
                                        int64_t S, void *stream, rssm_error *err)
{
    int64_t B = write_pos->shape[0];
    int64_t *counts = read_indices(p, write_pos, 1, stream, err);
    if (!counts)
        return err->status;
    int64_t *indices = slots ? read_indices(p, slots, 1, stream, err) : NULL;
    rssm_status status = slots && !indices ? err->status : RSSM_OK;
    if (!status && indices)
        status = check_unique(p, RSSM_T_STATE_INDICES, indices, 1, B, S, err);
    for (int64_t i = 0; !status && i < B; i++)
        if (!is_padding(p, indices ? indices[i] : i, S))
            status = check_cursor(p, RSSM_T_WRITE_POS, i, 0, counts[i], err);
    rssm_mem_free(&p->mem, indices, (size_t)B * sizeof(*indices));
    rssm_mem_free(&p->mem, counts, (size_t)B * sizeof(*counts));
    return status;
}

static rssm_status check_decode_deep(const rssm_plugin *p, const rssm_decode_args *args, const rssm_dims_of *dims,
                                     rssm_error *err)
{
    rssm_status status = need_prepare(p, "RSSM_CHECK_DEEP", err);
    if (status || dims->of[RSSM_SYM_B] == 0)
        return status;
    int64_t S = dims->of[RSSM_SYM_S];
    const DLTensor *rows = given(args, RSSM_T_ROWS);
    if (rows)
        return check_rows_deep(p, rows, S, args->stream, err);
    return check_positions_deep(p, given(args, RSSM_T_WRITE_POS), given(args, RSSM_T_STATE_INDICES), S, args->stream,
                                err);
}

rssm_status rssm_check_decode(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = check_flags(args->flags, RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP, err);
    if (status)
        return status;
    if (args->layer < 0 || args->layer >= p->rank.num_linear)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d (linear layers of this instance)",
                         args->layer, p->rank.num_linear - 1);
    if (!args->tensors)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "tensors is NULL");
    call_form form;
    rssm_dims_of dims = p->rank.dims;
    status = check_overrides(p, args, err);
    if (!status)
        status = check_roles(p, args, err);
    if (!status)
        status = find_form(p, args, &form, err);
    if (!status)
        status = check_present(p, args, &form, err);
    if (!status)
        status = check_tensors(p, args, &dims, err);
    if (!status)
        status = check_overlaps(p, args, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = check_decode_deep(p, args, &dims, err);
    return status;
}

/* ---- step_begin ------------------------------------------------------------------------------------------------- */

static rssm_status check_step_begin_deep(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    int64_t B = args->slots->shape[0], S = p->pool.S;
    if (B == 0)
        return RSSM_OK;
    int64_t *slots = read_indices(p, args->slots, 1, args->stream, err);
    if (!slots)
        return err->status;
    rssm_status status = check_unique(p, RSSM_T_SLOTS, slots, 1, B, S, err);
    for (int64_t i = 0; !status && i < B; i++) {
        int32_t cursor[4];
        if (is_padding(p, slots[i], S))
            continue;
        status = p->backend->to_host(p->ctx, cursor, p->pool.cursor + slots[i] * p->pool.cursor_slot, sizeof(cursor),
                                     args->stream, err);
        if (!status)
            status = check_cursor(p, RSSM_T_CURSOR, slots[i], cursor[0], cursor[1], err);
    }
    rssm_mem_free(&p->mem, slots, (size_t)B * sizeof(*slots));
    return status;
}

rssm_status rssm_check_step_begin(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    rssm_status status = check_flags(args->flags, RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP, err);
    if (!status && !p->pool.regions)
        status = rssm_fail(err, RSSM_ERR_STATE, "step_begin before pool_create");
    if (!status && !args->slots)
        status = missing(RSSM_T_SLOTS, "", err);
    if (!status && !args->rows_out)
        status = missing(RSSM_T_ROWS, ": rows_out is NULL", err);
    rssm_dims_of dims = p->rank.dims;
    if (!status)
        status = rssm_check_list(p, RSSM_T_SLOTS, RSSM_SYM_B, args->slots, &dims, err);
    if (!status && args->force_flush)
        status = rssm_check_list(p, RSSM_T_FORCE_FLUSH, RSSM_SYM_B, args->force_flush, &dims, err);
    if (!status)
        status = rssm_check_tensor(p, rssm_family_role(p->rank.family, RSSM_T_ROWS), args->rows_out, &dims, err);
    if (status)
        return status;
    if (dims.of[RSSM_SYM_B] > p->args.max_batch)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "a batch of %lld rows is above max_batch = %d",
                         (long long)dims.of[RSSM_SYM_B], p->args.max_batch);
    rssm_where where = {.role = RSSM_T_ROWS, .dim = -1};
    if (rssm_tensors_overlap(args->rows_out, args->slots))
        return rssm_fail_at(err, RSSM_ERR_OVERLAP, where, "`rows` is written and shares memory with `slots`");
    if (args->force_flush && rssm_tensors_overlap(args->rows_out, args->force_flush))
        return rssm_fail_at(err, RSSM_ERR_OVERLAP, where, "`rows` is written and shares memory with `force_flush`");
    return args->flags & RSSM_CHECK_DEEP ? check_step_begin_deep(p, args, err) : RSSM_OK;
}
