#include "core/tensor.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* ---- reading DLTensors ------------------------------------------------------------------------------------------ */

void *rssm_tensor_data(const DLTensor *t)
{
    /* as numbers: the offset of a tensor of no elements may be anything */
    return t->data ? (void *)((uintptr_t)t->data + t->byte_offset) : NULL;
}

static int64_t compact_stride(const DLTensor *t, int dim)
{
    int64_t stride = 1;
    for (int i = t->ndim - 1; i > dim; i--)
        stride *= t->shape[i];
    return stride;
}

/* Of a single row any stride is given; it means nothing. */
int64_t rssm_tensor_stride0(const DLTensor *t)
{
    return t->strides && t->shape[0] > 1 ? t->strides[0] : compact_stride(t, 0);
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

int64_t rssm_element_bytes(const DLTensor *t)
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
        snprintf(text, TEXT, spec->role == RSSM_T_STATE ? " (the pool has %lld slots)" : " (`state` has %lld slots)",
                 (long long)dims->of[RSSM_SYM_S]);
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

/* Checkpoints ship weights as [1, 1, HV, 1] and the like: the same sizes once dims of 1 are left out. */
static bool same_without_ones(const DLTensor *t, const uint8_t *shape, const rssm_dims_of *dims)
{
    int want = 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 1)
            continue;
        while (shape[want] != RSSM_SYM_END && dims->of[shape[want]] == 1)
            want++;
        if (shape[want] == RSSM_SYM_END || dims->of[shape[want++]] != t->shape[i])
            return false;
    }
    while (shape[want] != RSSM_SYM_END && dims->of[shape[want]] == 1)
        want++;
    return shape[want] == RSSM_SYM_END;
}

static rssm_status check_shape(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_dims_of *dims,
                               rssm_error *err)
{
    int length = shape_length(spec->shape), alt_length = shape_length(spec->alt_shape);
    if (spec->place == RSSM_PLACE_WEIGHT && t->ndim > 0 && t->ndim <= RSSM_MAX_DIMS && t->shape &&
        same_without_ones(t, spec->shape, dims))
        return RSSM_OK;
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

/* Bits of the first type that the role takes. */
static int64_t kind_bits(const rssm_rank *r, int kinds)
{
    int32_t dtype = kinds & RSSM_KIND_STATE  ? r->state_dtype
                    : kinds & RSSM_KIND_RING ? r->ring_dtype
                    : kinds & RSSM_KIND_IO   ? r->io_dtype
                                             : RSSM_DTYPE_FLOAT32;
    return 8 * rssm_dtype_bytes(dtype);
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
    return rssm_fail_at(
        err, RSSM_ERR_DTYPE,
        (rssm_where){.role = spec->role, .dim = -1, .expected = kind_bits(r, kinds), .got = t->dtype.bits},
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

int64_t rssm_tensor_bytes(const DLTensor *t)
{
    int64_t elements = extent(t), bytes = 0;
    return elements < 0 || __builtin_mul_overflow(elements, rssm_element_bytes(t), &bytes) ? -1 : bytes;
}

typedef enum stride_fault { STRIDE_FINE, STRIDE_NEGATIVE, STRIDE_INNER, STRIDE_OVERLAP } stride_fault;

static rssm_status fail_stride(const rssm_role_spec *spec, stride_fault fault, int dim, int64_t want, int64_t stride,
                               rssm_error *err)
{
    const char *name = rssm_role_name(spec->role);
    rssm_where where = {.role = spec->role, .dim = dim, .expected = want, .got = stride};
    if (fault == STRIDE_NEGATIVE)
        return rssm_fail_at(err, RSSM_ERR_STRIDE, where, "`%s` has a negative stride %lld in dim %d", name,
                            (long long)stride, dim);
    if (fault == STRIDE_INNER)
        return rssm_fail_at(err, RSSM_ERR_STRIDE, where, "`%s` must be compact in dim %d: stride %lld; got %lld", name,
                            dim, (long long)want, (long long)stride);
    bool rows = spec->place == RSSM_PLACE_OUTPUT || spec->place == RSSM_PLACE_INDEX;
    return rssm_fail_at(err, RSSM_ERR_STRIDE, where,
                        "`%s` has overlapping %s: stride %lld of dim 0 is below the %lld elements of one", name,
                        rows ? "rows" : "slots", (long long)stride, (long long)want);
}

/* A dimension of more than one element; `inner` elements lie within one index of it. */
static stride_fault judge_stride(const rssm_role_spec *spec, const DLTensor *t, int dim, int64_t inner)
{
    int64_t stride = t->strides[dim];
    bool index = spec->place == RSSM_PLACE_INDEX && t->ndim == 1;
    bool written = spec->place != RSSM_PLACE_INPUT && spec->place != RSSM_PLACE_WEIGHT && !index;
    if (stride < 0)
        return STRIDE_NEGATIVE;
    if (dim == 0 && spec->place != RSSM_PLACE_WEIGHT)
        return written && stride < inner ? STRIDE_OVERLAP : STRIDE_FINE;
    return stride != inner ? STRIDE_INNER : STRIDE_FINE;
}

static rssm_status check_strides(const rssm_role_spec *spec, const DLTensor *t, rssm_error *err)
{
    int64_t inner = 1;
    for (int i = t->ndim - 1; t->strides && i >= 0; i--) {
        stride_fault fault = t->shape[i] > 1 ? judge_stride(spec, t, i, inner) : STRIDE_FINE;
        if (fault)
            return fail_stride(spec, fault, i, inner, t->strides[i], err);
        if (__builtin_mul_overflow(inner, t->shape[i], &inner))
            return rssm_fail_at(err, RSSM_ERR_OVERFLOW,
                                (rssm_where){.role = spec->role, .dim = i, .expected = inner, .got = t->strides[i]},
                                "`%s` has more than 2^63 elements", rssm_role_name(spec->role));
    }
    return RSSM_OK;
}

static bool is_pooled(const rssm_role_spec *spec)
{
    return spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING || spec->place == RSSM_PLACE_CONV ||
           spec->place == RSSM_PLACE_CURSOR;
}

static rssm_status fail_alignment(const rssm_role_spec *spec, uintptr_t align, uintptr_t address, rssm_error *err)
{
    return rssm_fail_at(
        err, RSSM_ERR_ALIGNMENT,
        (rssm_where){.role = spec->role, .dim = -1, .expected = (int64_t)align, .got = (int64_t)(address % align)},
        "`%s` must be %d-byte aligned (%s); data + byte_offset = %p", rssm_role_name(spec->role), (int)align,
        is_pooled(spec) ? "a pool tensor" : "its element size", (void *)address);
}

static rssm_status check_address(const rssm_role_spec *spec, const DLTensor *t, rssm_span *span, rssm_error *err)
{
    const rssm_where where = {.role = spec->role, .dim = -1};
    int64_t bytes = rssm_tensor_bytes(t);
    uintptr_t end = 0, address = (uintptr_t)t->data;
    *span = (rssm_span){0, 0};
    if (bytes < 0)
        return rssm_fail_at(err, RSSM_ERR_OVERFLOW, where, "`%s` reaches beyond 2^63 bytes",
                            rssm_role_name(spec->role));
    if (bytes == 0)
        return RSSM_OK;
    if (!t->data)
        return rssm_fail_at(err, RSSM_ERR_ARGUMENT, where, "`%s` has a NULL data pointer", rssm_role_name(spec->role));
    if (__builtin_add_overflow(address, t->byte_offset, &address) ||
        __builtin_add_overflow(address, (uintptr_t)bytes, &end))
        return rssm_fail_at(err, RSSM_ERR_OVERFLOW, where,
                            "`%s` with byte_offset %llu reaches beyond the address space", rssm_role_name(spec->role),
                            (unsigned long long)t->byte_offset);
    uintptr_t align = is_pooled(spec) ? 16 : (uintptr_t)rssm_element_bytes(t);
    if (address & (align - 1))
        return fail_alignment(spec, align, address, err);
    *span = (rssm_span){address, end};
    return RSSM_OK;
}

rssm_status rssm_check_tensor_at(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t,
                                 rssm_dims_of *dims, rssm_span *span, rssm_error *err)
{
    rssm_status status = check_shape(p, spec, t, dims, err);
    if (!status)
        status = check_dtype(p, spec, t, err);
    if (!status)
        status = check_device(p, spec->role, t, err);
    if (!status)
        status = check_strides(spec, t, err);
    return status ? status : check_address(spec, t, span, err);
}

rssm_status rssm_check_tensor(const rssm_plugin *p, const rssm_role_spec *spec, const DLTensor *t, rssm_dims_of *dims,
                              rssm_error *err)
{
    rssm_span span;
    return rssm_check_tensor_at(p, spec, t, dims, &span, err);
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
    p.end = p.first + (uintptr_t)rssm_tensor_bytes(t);
    p.stride = t->ndim ? (uint64_t)(rssm_tensor_stride0(t) * rssm_element_bytes(t)) : 0;
    int64_t inner = 1;
    for (int i = 1; i < t->ndim; i++)
        inner *= t->shape[i];
    p.bytes = (uint64_t)(inner * rssm_element_bytes(t));
    return p;
}

/* Does a piece of q reach into [first, end)? */
static bool reaches(const pieces *q, uintptr_t first, uintptr_t end)
{
    if (q->end <= first || end <= q->first)
        return false;
    if (q->stride == 0 || first < q->first)
        return true;                                 /* [q->first, ..) begins inside, or every piece is the first */
    uintptr_t into = (first - q->first) % q->stride; /* how far `first` is into its piece's page */
    return into < q->bytes || (end - first > q->stride - into && q->end - first > q->stride - into);
}

bool rssm_tensors_overlap(const DLTensor *a, const DLTensor *b)
{
    pieces p = pieces_of(a), q = pieces_of(b);
    if (p.end <= q.first || q.end <= p.first || p.first == p.end || q.first == q.end)
        return false;
    if (p.stride == 0 || q.stride == 0)
        return true;
    if (p.stride == q.stride) { /* pages of equal stride: where does q start in p's page? */
        uintptr_t stride = p.stride;
        uintptr_t at =
            q.first >= p.first ? (q.first - p.first) % stride : (stride - (p.first - q.first) % stride) % stride;
        return at < p.bytes || at + q.bytes > stride;
    }
    const pieces *few = p.end - p.first < q.end - q.first ? &p : &q, *other = few == &p ? &q : &p;
    for (uintptr_t first = few->first; first < few->end; first += few->stride)
        if (reaches(other, first, first + few->bytes))
            return true;
    return false;
}
