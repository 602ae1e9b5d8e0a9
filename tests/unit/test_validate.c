/* Every tensor role of every family against every way of being wrong, and against the forms that must be accepted. What
 * is wrong is derived from the harness's own table (the comment of rssm_base.h), not from the plugin's. */
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* All sizes differ, so that no two axes can be mistaken for one another. */
static const h_spec base_spec = {.H = 2, .HV = 4, .K = 5, .V = 7, .L = 3, .B = 6, .S = 9};

static const char *family_name(int32_t family)
{
    return family == RSSM_FAMILY_KDA ? "kda" : family == RSSM_FAMILY_GDN ? "gdn" : "mamba2";
}

/* ---- what an error must say ------------------------------------------------------------------------------------- */

enum { TEXTS = 3, TEXT_BYTES = 128 };

typedef struct expectation {
    rssm_status status;
    int32_t role, dim;
    int64_t expected, got;
    bool numbers;  /* expected and got are to be these; a free dimension may be reported from either side */
    bool free_dim; /* the tensor that binds a free dimension is wrong: any tensor with it may be named */
    char texts[TEXTS][TEXT_BYTES]; /* parts of the message */
} expectation;

static void __attribute__((format(printf, 3, 4))) say(expectation *want, int text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(want->texts[text], TEXT_BYTES, format, args);
    va_end(args);
}

static expectation expect(rssm_status status, const h_role *role, int32_t dim)
{
    expectation want = {.status = status, .role = role->role, .dim = dim};
    say(&want, 0, "`%s`", role->name);
    return want;
}

static void check_free_dim(const expectation *want, const rssm_error *err, const char *name)
{
    bool either = (err->expected == want->expected && err->got == want->got) ||
                  (err->expected == want->got && err->got == want->expected);
    ck_assert_msg(either && err->dim == 0 && err->role != RSSM_T_NONE, "%s: %s (role %d, dim %d)", name, err->message,
                  err->role, err->dim);
}

static void check_error(const expectation *want, rssm_status status, const rssm_error *err, const char *name)
{
    ck_assert_msg(status == want->status, "%s: status %s, not %s: %s", name, h_api()->status_name(status),
                  h_api()->status_name(want->status), err->message);
    ck_assert_msg(err->status == status, "%s: err.status = %d", name, err->status);
    ck_assert_msg(err->cuda_error == 0, "%s: cuda_error = %d", name, err->cuda_error);
    ck_assert_msg(memchr(err->message, 0, sizeof(err->message)) && err->message[0] && !strchr(err->message, '\n'),
                  "%s: message is not one line", name);
    if (want->free_dim) {
        check_free_dim(want, err, name);
        return;
    }
    ck_assert_msg(err->role == want->role, "%s: err.role = %d (%s), not %d: %s", name, err->role,
                  h_api()->role_name(err->role), want->role, err->message);
    ck_assert_msg(err->dim == want->dim, "%s: err.dim = %d, not %d: %s", name, err->dim, want->dim, err->message);
    ck_assert_msg(!want->numbers || (err->expected == want->expected && err->got == want->got),
                  "%s: expected %lld, got %lld; not %lld, %lld: %s", name, (long long)err->expected,
                  (long long)err->got, (long long)want->expected, (long long)want->got, err->message);
    for (int i = 0; i < TEXTS; i++)
        ck_assert_msg(strstr(err->message, want->texts[i]) != NULL, "%s: no \"%s\" in: %s", name, want->texts[i],
                      err->message);
}

/* ---- shapes as messages spell them ------------------------------------------------------------------------------ */

static const char *word_of(const h_spec *spec, const char *symbol, size_t length)
{
    static const char *const words[][3] = {{"B", "B", "B"},
                                           {"S", "slots", "slots"},
                                           {"H", "H", "ng"},
                                           {"HV", "HV", "nh"},
                                           {"K", "K", "N"},
                                           {"V", "V", "P"},
                                           {"8", "8", "8"},
                                           {"HK", "H*K", "ng*N"},
                                           {"HVV", "HV*V", "nh*P"},
                                           {"HVK", "HV*K", "nh*N"},
                                           {"2HK+HVV", "2*H*K + HV*V", "nh*P + 2*ng*N"}};
    if (length == 1 && *symbol == 'R')
        return spec->drafts ? "R" : "L";
    for (int i = 0; i < COUNT(words); i++)
        if (strlen(words[i][0]) == length && memcmp(words[i][0], symbol, length) == 0)
            return words[i][spec->family == RSSM_FAMILY_MAMBA2 ? 2 : 1];
    return "?";
}

/* "[slots, HV, L, V]", or with numbers "[9, 4, 3, 7]"; a free first dimension keeps its word. */
static void spell_shape(char *text, const h_spec *spec, const char *shape, bool numbers, bool free_first)
{
    size_t used = (size_t)snprintf(text, TEXT_BYTES, "[");
    for (const char *at = shape; at;) {
        const char *comma = strchr(at, ','), *word;
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        char number[32];
        snprintf(number, sizeof(number), "%lld", (long long)h_symbol(spec, at, length));
        word = numbers && !(free_first && at == shape) ? number : word_of(spec, at, length);
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%s", at == shape ? "" : ", ", word);
        at = comma ? comma + 1 : NULL;
    }
    snprintf(text + used, TEXT_BYTES - used, "]");
}

static void spell_numbers(char *text, const int64_t *numbers, int count)
{
    size_t used = (size_t)snprintf(text, TEXT_BYTES, "[");
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%lld", i ? ", " : "", (long long)numbers[i]);
    snprintf(text + used, TEXT_BYTES - used, "]");
}

/* The tensors that fix the number of rows and of slots for the rest of the call. */
static bool binds(const h_role *role)
{
    return strcmp(role->form, "packed") == 0 || role->role == RSSM_T_Q || role->role == RSSM_T_X ||
           role->role == RSSM_T_STATE;
}

static int shape_of(const h_spec *spec, const char *text, int64_t *shape)
{
    int ndim = 0;
    for (const char *at = text; at; ndim++) {
        const char *comma = strchr(at, ',');
        shape[ndim] = h_symbol(spec, at, comma ? (size_t)(comma - at) : strlen(at));
        at = comma ? comma + 1 : NULL;
    }
    return ndim;
}

static void expect_numbers(expectation *want, int64_t expected, int64_t got)
{
    want->numbers = true;
    want->expected = expected;
    want->got = got;
}

/* What a changed shape must be answered with; false when it is in fact right. */
static bool expect_shape(const h_call *call, const h_role *role, expectation *want)
{
    const h_tensor *tensor = &call->tensors[role->role];
    int64_t right[H_MAX_DIMS];
    int ndim = shape_of(&call->spec, role->shape, right);
    const char *shape = role->shape;
    if (tensor->t.ndim != ndim && role->alt && shape_of(&call->spec, role->alt, right) == tensor->t.ndim)
        shape = role->alt;
    *want = expect(RSSM_ERR_SHAPE, role, -1);
    spell_shape(want->texts[1], &call->spec, shape, false, false);
    if (shape == role->shape && tensor->t.ndim != ndim) {
        expect_numbers(want, ndim, tensor->t.ndim);
        return true;
    }
    char numbers[TEXT_BYTES];
    spell_shape(numbers, &call->spec, shape, true, binds(role));
    size_t used = strlen(want->texts[1]);
    snprintf(want->texts[1] + used, TEXT_BYTES - used, " = %s", numbers);
    snprintf(want->texts[2], TEXT_BYTES, "; got ");
    spell_numbers(want->texts[2] + 6, tensor->shape, tensor->t.ndim);
    for (int dim = binds(role) ? 1 : 0; dim < tensor->t.ndim; dim++)
        if (tensor->shape[dim] != right[dim]) {
            want->dim = dim;
            expect_numbers(want, right[dim], tensor->shape[dim]);
            return true;
        }
    want->free_dim = true;
    expect_numbers(want, right[0], tensor->shape[0]);
    return tensor->shape[0] != right[0];
}

/* ---- defects ---------------------------------------------------------------------------------------------------- */

typedef struct defect {
    const char *name;
    int variants;
    /* Spoils the role's tensor and says what must come back; false where the variant makes no sense. */
    bool (*make)(h_call *call, const h_role *role, int variant, expectation *want);
} defect;

static bool in_parts(const char *list, const char *word)
{
    const char *at = strstr(list, word);
    return at != NULL;
}

static bool make_missing(h_call *call, const h_role *role, int variant, expectation *want)
{
    (void)variant;
    if (in_parts(role->form, "optional"))
        return false;
    call->roles[role->role] = NULL;
    *want = expect(RSSM_ERR_MISSING, role, -1);
    if (strcmp(role->form, "packed") == 0) /* then the inputs are taken to come apart */
        want->role = call->spec.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_X : RSSM_T_Q;
    if (strcmp(role->form, "packed") == 0)
        say(want, 0, "`%s`", call->spec.family == RSSM_FAMILY_MAMBA2 ? "x" : "q");
    if (strcmp(role->form, "pos") == 0) /* either of the two is missing */
        want->role = RSSM_T_ROWS;
    say(want, 1, "missing");
    return true;
}

static bool make_dim(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    int dim = variant / 2;
    if (dim >= tensor->t.ndim)
        return false;
    tensor->shape[dim] += variant % 2 ? 1 : -1;
    return expect_shape(call, role, want);
}

/* A size as it comes from another model, or none at all. */
static bool make_strange_dim(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    int dim = variant / 2;
    if (dim >= tensor->t.ndim || (dim == 0 && binds(role)))
        return false;
    tensor->shape[dim] = variant % 2 ? 2 * tensor->shape[dim] : 0;
    return expect_shape(call, role, want);
}

static bool make_negative_dim(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    if (variant >= tensor->t.ndim)
        return false;
    tensor->shape[variant] = -tensor->shape[variant];
    *want = expect(RSSM_ERR_SHAPE, role, variant);
    say(want, 1, "%lld", (long long)tensor->shape[variant]);
    return true;
}

static bool make_flat_dim(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    if (!role->alt)
        return false;
    tensor->t.ndim = shape_of(&call->spec, role->alt, tensor->shape);
    int dim = tensor->t.ndim - 1;
    tensor->shape[dim] += variant ? 1 : -1;
    return expect_shape(call, role, want);
}

static bool make_permuted(h_call *call, const h_role *role, int variant, expectation *want)
{
    static const int pairs[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    h_tensor *tensor = &call->tensors[role->role];
    int a = pairs[variant][0], b = pairs[variant][1];
    if (b >= tensor->t.ndim)
        return false;
    int64_t size = tensor->shape[a];
    tensor->shape[a] = tensor->shape[b];
    tensor->shape[b] = size;
    return expect_shape(call, role, want);
}

static bool make_rank(h_call *call, const h_role *role, int variant, expectation *want)
{
    static const int changes[] = {-1, 1, 2};
    h_tensor *tensor = &call->tensors[role->role];
    for (int i = tensor->t.ndim; i < tensor->t.ndim + 2; i++)
        tensor->shape[i] = 1;
    tensor->t.ndim += changes[variant];
    if (role->place == H_WEIGHT && changes[variant] > 0) /* weights may carry dims of 1 ... */
        tensor->shape[tensor->t.ndim - 1] = 2;           /* ... but not of 2 */
    return expect_shape(call, role, want);
}

static bool make_odd_rank(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    int64_t right[H_MAX_DIMS];
    tensor->t.ndim = variant ? -1 : 0;
    tensor->t.shape = NULL;
    *want = expect(RSSM_ERR_SHAPE, role, -1);
    expect_numbers(want, shape_of(&call->spec, role->shape, right), tensor->t.ndim);
    return true;
}

static bool make_no_shape(h_call *call, const h_role *role, int variant, expectation *want)
{
    (void)variant;
    call->tensors[role->role].t.shape = NULL;
    *want = expect(RSSM_ERR_ARGUMENT, role, -1);
    say(want, 1, "no shape");
    return true;
}

/* Element types that turn up in practice, and some that never should. */
static const struct {
    DLDataType type;
    const char *name; /* what the message calls it */
} types[] = {
    {{kDLFloat, 32, 1}, "float32"},
    {{kDLFloat, 16, 1}, "float16"},
    {{kDLBfloat, 16, 1}, "bfloat16"},
    {{kDLFloat, 64, 1}, "float64"},
    {{kDLInt, 32, 1}, "int32"},
    {{kDLInt, 64, 1}, "int64"},
    {{kDLInt, 16, 1}, "int16"},
    {{kDLInt, 8, 1}, "int8"},
    {{kDLUInt, 32, 1}, "uint32"},
    {{kDLUInt, 64, 1}, "uint64"},
    {{kDLUInt, 8, 1}, "uint8"},
    {{kDLUInt, 16, 1}, "uint16"},
    {{kDLFloat, 32, 2}, "float32 x 2"},
    {{kDLBfloat, 16, 4}, "bfloat16 x 4"},
    {{kDLInt, 32, 2}, "int32 x 2"},
    {{kDLFloat, 32, 0}, "float32 x 0"},
    {{kDLFloat, 8, 1}, "float8"},
    {{kDLBfloat, 32, 1}, "bfloat32"},
    {{kDLFloat, 0, 1}, "float0"},
    {{kDLComplex, 64, 1}, "code 5"},
    {{kDLOpaqueHandle, 32, 1}, "code 3"},
    {{255, 16, 1}, "code 255"},
    {{6, 8, 1}, "code 6"},
    {{kDLInt, 32, 65535}, "int32 x 65535"},
    {{kDLFloat, 16, 2}, "float16 x 2"},
};

static bool same_type(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

static bool type_is_right(const h_call *call, const h_role *role, DLDataType type)
{
    const h_spec *spec = &call->spec;
    bool any_float = in_parts(role->dtypes, "float");
    return (in_parts(role->dtypes, "io") && same_type(type, h_float_type(spec->io))) ||
           (in_parts(role->dtypes, "state") && same_type(type, h_float_type(spec->state))) ||
           (in_parts(role->dtypes, "ring") && same_type(type, h_float_type(spec->ring))) ||
           ((any_float || in_parts(role->dtypes, "f32")) && same_type(type, h_float_type(RSSM_DTYPE_FLOAT32))) ||
           (any_float && (same_type(type, h_float_type(RSSM_DTYPE_BFLOAT16)) ||
                          same_type(type, h_float_type(RSSM_DTYPE_FLOAT16)))) ||
           (in_parts(role->dtypes, "i32") && same_type(type, h_int_type(32))) ||
           (in_parts(role->dtypes, "i64") && same_type(type, h_int_type(64)));
}

static const char *right_type_name(const h_call *call, const h_role *role)
{
    static const char *const names[] = {"", "float32", "bfloat16", "float16"};
    if (in_parts(role->dtypes, "i32"))
        return "int32";
    if (in_parts(role->dtypes, "f32") || in_parts(role->dtypes, "float"))
        return "float32";
    return names[in_parts(role->dtypes, "state")  ? call->spec.state
                 : in_parts(role->dtypes, "ring") ? call->spec.ring
                                                  : call->spec.io];
}

/* Of the first type that the role takes; a free choice of three begins with float32, one of two integers with int32. */
static int right_bits(const h_call *call, const h_role *role)
{
    if (in_parts(role->dtypes, "io"))
        return h_float_type(call->spec.io).bits;
    if (in_parts(role->dtypes, "state"))
        return h_float_type(call->spec.state).bits;
    return in_parts(role->dtypes, "ring") ? h_float_type(call->spec.ring).bits : 32;
}

static bool make_type(h_call *call, const h_role *role, int variant, expectation *want)
{
    if (type_is_right(call, role, types[variant].type))
        return false;
    call->tensors[role->role].t.dtype = types[variant].type;
    *want = expect(RSSM_ERR_DTYPE, role, -1);
    expect_numbers(want, right_bits(call, role), types[variant].type.bits);
    say(want, 1, "%s", right_type_name(call, role));
    say(want, 2, "got %s%s", strncmp(types[variant].name, "code", 4) == 0 ? "DLPack type " : "", types[variant].name);
    return true;
}

static bool make_device(h_call *call, const h_role *role, int variant, expectation *want)
{
    static const struct {
        int type, id;
        const char *name;
    } devices[] = {{kDLCUDA, 0, "cuda:0"}, {kDLCUDA, 3, "cuda:3"}, {kDLCUDAHost, 0, "type 3"},
                   {0, 0, "type 0"},       {-1, 0, "type -1"},     {1 << 20, 0, "type 1048576"}};
    call->tensors[role->role].t.device =
        (DLDevice){.device_type = (DLDeviceType)devices[variant].type, .device_id = devices[variant].id};
    bool swapped = h_on_cuda(), is_cuda = devices[variant].type == kDLCUDA;
    *want = expect(RSSM_ERR_DEVICE, role, -1);
    expect_numbers(want, swapped ? kDLCUDA : kDLCPU, swapped && is_cuda ? kDLCPU : devices[variant].type);
    say(want, 1, swapped ? "cuda:0" : "cpu");
    say(want, 2, "%s", swapped && is_cuda ? "cpu" : devices[variant].name);
    return true;
}

/* Elements of everything behind a dimension. */
static int64_t inner_elements(const h_tensor *tensor, int dim)
{
    int64_t elements = 1;
    for (int i = dim + 1; i < tensor->t.ndim; i++)
        elements *= tensor->shape[i];
    return elements;
}

static void use_strides(h_tensor *tensor)
{
    for (int i = 0; i < tensor->t.ndim; i++)
        tensor->strides[i] = inner_elements(tensor, i);
    tensor->t.strides = tensor->strides;
}

static bool expect_stride(const h_call *call, const h_role *role, int dim, expectation *want)
{
    const h_tensor *tensor = &call->tensors[role->role];
    *want = expect(RSSM_ERR_STRIDE, role, dim);
    expect_numbers(want, inner_elements(tensor, dim), tensor->strides[dim]);
    say(want, 1, "%lld", (long long)tensor->strides[dim]);
    return true;
}

/* An inner dim that is not compact: a gap, an overlap, a broadcast. Weights have inner dims alone. */
static bool make_inner_stride(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    int dim = variant / 3;
    if (dim >= tensor->t.ndim || (dim == 0 && role->place != H_WEIGHT))
        return false;
    use_strides(tensor);
    int64_t compact = tensor->strides[dim];
    tensor->strides[dim] = variant % 3 == 0 ? compact + 1 : variant % 3 == 1 ? compact * 2 : 0;
    return expect_stride(call, role, dim, want);
}

static bool make_negative_stride(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    if (variant >= tensor->t.ndim)
        return false;
    use_strides(tensor);
    tensor->strides[variant] = -tensor->strides[variant];
    return expect_stride(call, role, variant, want);
}

/* Slots or rows that are written and lie over one another. */
static bool make_overlapping(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    if (role->place != H_POOL && role->place != H_OUTPUT)
        return false;
    use_strides(tensor);
    tensor->strides[0] = variant == 0 ? tensor->strides[0] - 1 : variant == 1 ? 1 : 0;
    return expect_stride(call, role, 0, want);
}

static bool make_misaligned(h_call *call, const h_role *role, int variant, expectation *want)
{
    static const int offsets[] = {1, 2, 4, 8};
    h_tensor *tensor = &call->tensors[role->role];
    int element = tensor->t.dtype.bits / 8, needed = role->place == H_POOL ? 16 : element;
    int offset = offsets[variant / 2];
    if (offset % needed == 0)
        return false;
    if (variant % 2)
        tensor->t.byte_offset = (uint64_t)offset;
    else
        tensor->t.data = (char *)tensor->t.data + offset;
    *want = expect(RSSM_ERR_ALIGNMENT, role, -1);
    expect_numbers(want, needed, offset);
    say(want, 1, "%d-byte aligned", needed);
    return true;
}

static bool make_null_data(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    tensor->t.data = NULL;
    tensor->t.byte_offset = variant ? 256 : 0;
    *want = expect(RSSM_ERR_ARGUMENT, role, -1);
    say(want, 1, "NULL data");
    return true;
}

static bool make_far_offset(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    tensor->t.byte_offset = variant ? UINT64_MAX - (uint64_t)(uintptr_t)tensor->t.data - 15 : UINT64_MAX - 15;
    *want = expect(RSSM_ERR_OVERFLOW, role, -1);
    say(want, 1, "byte_offset");
    return true;
}

/* An outer stride whose product with the rows, or with the element, leaves 63 bits. */
static bool make_far_stride(h_call *call, const h_role *role, int variant, expectation *want)
{
    static const int64_t strides[] = {INT64_MAX, INT64_MAX / 4, INT64_MAX / 6 + 1};
    h_tensor *tensor = &call->tensors[role->role];
    if (role->place == H_WEIGHT)
        return false;
    use_strides(tensor);
    tensor->strides[0] = strides[variant];
    *want = expect(RSSM_ERR_OVERFLOW, role, -1);
    return true;
}

/* So many slots or rows that the tensor does not fit. */
static bool make_huge(h_call *call, const h_role *role, int variant, expectation *want)
{
    h_tensor *tensor = &call->tensors[role->role];
    if (!binds(role))
        return false;
    tensor->shape[0] = variant ? INT64_MAX : INT64_MAX / inner_elements(tensor, 0);
    if (variant == 2)
        use_strides(tensor);
    *want = expect(RSSM_ERR_OVERFLOW, role, variant == 2 ? 0 : -1); /* with strides, the dim that does not fit */
    return true;
}

static const defect defects[] = {
    {"missing", 1, make_missing},
    {"dim", 2 * H_MAX_DIMS, make_dim},
    {"strange dim", 2 * H_MAX_DIMS, make_strange_dim},
    {"negative dim", H_MAX_DIMS, make_negative_dim},
    {"flat dim", 2, make_flat_dim},
    {"permuted", 6, make_permuted},
    {"rank", 3, make_rank},
    {"rank 0 or -1", 2, make_odd_rank},
    {"no shape", 1, make_no_shape},
    {"type", COUNT(types), make_type},
    {"device", 6, make_device},
    {"inner stride", 3 * H_MAX_DIMS, make_inner_stride},
    {"negative stride", H_MAX_DIMS, make_negative_stride},
    {"overlapping slots or rows", 3, make_overlapping},
    {"misaligned", 8, make_misaligned},
    {"NULL data", 2, make_null_data},
    {"far byte_offset", 2, make_far_offset},
    {"far stride", 3, make_far_stride},
    {"huge", 3, make_huge},
};

/* ---- each family x role x defect x variant ---------------------------------------------------------------------- */

typedef struct test_case {
    int32_t family;
    const h_role *role;
    const defect *defect;
    int variant;
} test_case;

enum { MAX_CASES = 16384 };
static test_case cases[MAX_CASES];
static int num_cases;

static h_spec spec_for(int32_t family, const h_role *role)
{
    h_spec spec = base_spec;
    spec.family = family;
    spec.apart = role && strcmp(role->form, "apart") == 0;
    spec.host_pos = role && strncmp(role->form, "pos", 3) == 0;
    return spec;
}

static void list_cases(void)
{
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++) {
        int count;
        const h_role *roles = h_roles(family, &count);
        for (int r = 0; r < count; r++)
            for (int d = 0; d < COUNT(defects); d++)
                for (int v = 0; v < defects[d].variants; v++) {
                    h_spec spec = spec_for(family, &roles[r]);
                    h_call *call = h_call_new(&spec, 1);
                    expectation want;
                    if (defects[d].make(call, &roles[r], v, &want) && num_cases < MAX_CASES)
                        cases[num_cases++] = (test_case){family, &roles[r], &defects[d], v};
                    h_call_free(call);
                }
    }
}

static rssm_plugin *prepared(const h_spec *spec)
{
    rssm_plugin *plugin = h_init(spec);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->prepare(plugin, &err) == RSSM_OK, "prepare: %s", err.message);
    return plugin;
}

static void decode_well(rssm_plugin *plugin, h_call *call, const char *name)
{
    rssm_error err = h_error();
    rssm_status status = h_api()->validate(plugin, &call->args, &err);
    ck_assert_msg(status == RSSM_OK, "%s: validate: %s", name, err.message);
    ck_assert_msg(err.status == RSSM_OK && !err.message[0], "%s: a success leaves \"%s\"", name, err.message);
    err = h_error();
    status = h_api()->decode(plugin, &call->args, &err);
    ck_assert_msg(status == RSSM_OK, "%s: decode: %s", name, err.message);
    ck_assert_msg(err.status == RSSM_OK && !err.message[0], "%s: a success leaves \"%s\"", name, err.message);
    ck_assert_msg(h_call_guarded(call), "%s: guard bytes written", name);
}

/* validate and decode refuse alike, no byte of any tensor changes, and the instance decodes afterwards as before. */
static void refuse(rssm_plugin *plugin, h_call *call, const expectation *want, const char *name)
{
    h_snapshot before = h_snapshot_take(call);
    rssm_error err = h_error();
    rssm_status status = h_api()->validate(plugin, &call->args, &err);
    check_error(want, status, &err, name);
    rssm_error again = h_error();
    status = h_api()->decode(plugin, &call->args, &again);
    check_error(want, status, &again, name);
    ck_assert_msg(strcmp(err.message, again.message) == 0, "%s: decode says: %s", name, again.message);
    int32_t role = h_snapshot_differs(&before, call);
    ck_assert_msg(role == RSSM_T_NONE, "%s: refused, but bytes of %s changed", name, h_api()->role_name(role));
    ck_assert_msg(h_api()->decode(plugin, &call->args, NULL) == want->status, "%s: without err", name);
    h_snapshot_free(&before);
}

START_TEST(test_defect)
{
    const test_case *c = &cases[_i];
    char name[128];
    snprintf(name, sizeof(name), "%s `%s`, %s #%d", family_name(c->family), c->role->name, c->defect->name, c->variant);
    h_spec spec = spec_for(c->family, c->role);
    rssm_plugin *plugin = prepared(&spec);
    h_call *first = h_call_new(&spec, 7), *bad = h_call_new(&spec, 7), *last = h_call_new(&spec, 7);
    decode_well(plugin, first, name);
    expectation want;
    ck_assert(c->defect->make(bad, c->role, c->variant, &want));
    refuse(plugin, bad, &want, name);
    decode_well(plugin, last, name);
    h_snapshot decoded = h_snapshot_take(first);
    ck_assert_msg(h_snapshot_differs(&decoded, last) == RSSM_T_NONE, "%s: the refused call left its mark", name);
    h_snapshot_free(&decoded);
    h_call_free(first);
    h_call_free(bad);
    h_call_free(last);
    h_teardown(&plugin);
}
END_TEST

/* ---- roles that a call does not take ---------------------------------------------------------------------------- */

/* Every index of the array that is no tensor of this call is refused, whatever it points to. */
START_TEST(test_foreign_roles)
{
    int32_t family = 1 + _i / H_NUM_ROLES, role = _i % H_NUM_ROLES;
    h_spec spec = spec_for(family, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 1);
    const h_role *own = role < RSSM_T_COUNT ? h_role_of(family, role) : NULL;
    bool storage = role == RSSM_T_CONV || role == RSSM_T_CURSOR; /* pool_tensors puts them there */
    char name[64];
    snprintf(name, sizeof(name), "%s, role %d (%s)", family_name(family), role, h_api()->role_name(role));
    call->args.num_tensors = H_NUM_ROLES;
    if (storage || (own && call->roles[role])) {
        call->roles[role] = storage ? &call->tensors[RSSM_T_STATE].t : call->roles[role];
        decode_well(plugin, call, name);
    } else {
        call->roles[role] = &call->tensors[RSSM_T_OUT].t;
        expectation want = {.status = RSSM_ERR_ROLE, .role = role, .dim = -1};
        if (role > RSSM_T_NONE && role < RSSM_T_COUNT)
            say(&want, 0, "`%s`", h_api()->role_name(role));
        else
            say(&want, 0, "%d", role);
        if (family == RSSM_FAMILY_MAMBA2 && role == RSSM_T_A_DECAY)
            say(&want, 1, "`A_log`"); /* both forms of one weight */
        refuse(plugin, call, &want, name);
    }
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* The array ends before a role: as if that role were NULL. */
START_TEST(test_short_array)
{
    int32_t family = 1 + _i / RSSM_T_COUNT;
    uint32_t length = (uint32_t)(_i % RSSM_T_COUNT);
    h_spec spec = spec_for(family, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 1);
    call->args.num_tensors = length;
    if (length > RSSM_T_ROWS) {
        decode_well(plugin, call, "the array reaches what it needs");
    } else {
        rssm_error err = h_error();
        ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_MISSING);
        ck_assert_msg(err.role >= (int32_t)length || err.role == RSSM_T_Q || err.role == RSSM_T_X, "%u entries: %s",
                      length, err.message);
        ck_assert_int_eq(h_api()->decode(plugin, &call->args, NULL), RSSM_ERR_MISSING);
    }
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- overlaps --------------------------------------------------------------------------------------------------- */

#define FOR_ROLES(call, role)                                     \
    int count_;                                                   \
    const h_role *role = h_roles((call)->spec.family, &count_);   \
    for (const h_role *end_ = role + count_; role < end_; role++) \
        if ((call)->tensors[role->role].block)

static bool is_written(const h_role *role)
{
    return role->place == H_OUTPUT || role->place == H_POOL;
}

/* The pairs of tensors of one call of which at least one is written. */
typedef struct pair {
    int32_t family;
    const h_role *written, *other;
    bool apart, host_pos;
} pair;

enum { MAX_PAIRS = 1024 };
static pair pairs[MAX_PAIRS];
static int num_pairs;

static bool form_has(const h_role *role, bool apart, bool host_pos)
{
    return !(strcmp(role->form, "packed") == 0 && apart) && !(strcmp(role->form, "apart") == 0 && !apart) &&
           !(strcmp(role->form, "rows") == 0 && host_pos) && !(strncmp(role->form, "pos", 3) == 0 && !host_pos);
}

static void list_pairs(void)
{
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++) {
        int count;
        const h_role *roles = h_roles(family, &count);
        for (int form = 0; form < 2; form++)
            for (int a = 0; a < count; a++)
                for (int b = 0; b < count && num_pairs < MAX_PAIRS; b++)
                    if (a != b && is_written(&roles[a]) && form_has(&roles[a], form, form) &&
                        form_has(&roles[b], form, form))
                        pairs[num_pairs++] = (pair){family, &roles[a], &roles[b], form, form};
    }
}

/* Addresses that nobody reads: validate looks at the tensors' descriptions alone. */
static void place_on_paper(h_call *call)
{
    for (int role = 0; role < RSSM_T_COUNT; role++)
        if (call->tensors[role].block)
            call->tensors[role].t.data = (void *)((uintptr_t)(role + 1) << 36);
}

static const char *const places[] = {"the same address", "its last bytes", "just behind it", "just before it"};

static void move_to(h_call *call, const pair *p, int place)
{
    h_tensor *written = &call->tensors[p->written->role], *other = &call->tensors[p->other->role];
    size_t bytes = written->bytes, before = (other->bytes + 15) / 16 * 16;
    char *start = written->t.data;
    char *const at[] = {start, start + (bytes - 1) / 16 * 16, start + (bytes + 15) / 16 * 16, start - before};
    other->t.data = at[place];
}

START_TEST(test_overlap)
{
    const pair *p = &pairs[_i / COUNT(places)];
    int place = _i % COUNT(places);
    h_spec spec = spec_for(p->family, NULL);
    spec.apart = p->apart;
    spec.host_pos = p->host_pos;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 3);
    place_on_paper(call); /* so that the moved tensor meets no third one */
    move_to(call, p, place);
    char name[128];
    snprintf(name, sizeof(name), "%s: `%s` at %s of `%s`", family_name(p->family), p->other->name, places[place],
             p->written->name);
    rssm_error err = h_error();
    rssm_status status = h_api()->validate(plugin, &call->args, &err);
    if (place >= 2) {
        ck_assert_msg(status == RSSM_OK, "%s: %s", name, err.message);
    } else {
        expectation want = {.status = RSSM_ERR_OVERLAP, .role = err.role, .dim = -1};
        say(&want, 0, "`%s`", p->written->name);
        say(&want, 1, "`%s`", p->other->name);
        ck_assert_msg(err.role == p->written->role || err.role == p->other->role, "%s: role %d", name, err.role);
        refuse(plugin, call, &want, name);
    }
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Read-only tensors may share memory: k = q, weights of one buffer. */
START_TEST(test_inputs_share)
{
    h_spec spec = spec_for(1 + _i, NULL);
    spec.apart = true;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 3);
    bool mamba = spec.family == RSSM_FAMILY_MAMBA2;
    call->tensors[mamba ? RSSM_T_CM : RSSM_T_K].t.data = call->tensors[mamba ? RSSM_T_BM : RSSM_T_Q].t.data;
    decode_well(plugin, call, "inputs of one buffer");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* One page per slot that holds state and rings side by side, as paged pools do. */
typedef struct paged {
    unsigned char *memory;
    size_t page;
} paged;

static paged make_pages(h_call *call, size_t shift, size_t spare)
{
    int count;
    const h_role *roles = h_roles(call->spec.family, &count);
    paged pages = {0};
    size_t offset[RSSM_T_COUNT] = {0};
    for (int i = 0; i < count; i++)
        if (roles[i].place == H_POOL) {
            offset[roles[i].role] = pages.page;
            pages.page += (call->tensors[roles[i].role].bytes / (size_t)call->spec.S + 15) / 16 * 16;
        }
    pages.page += spare;
    pages.memory = h_block((pages.page * (size_t)call->spec.S + 511) / 256 * 256);
    ck_assert_ptr_nonnull(pages.memory);
    for (int i = 0; i < count; i++)
        if (roles[i].place == H_POOL) {
            h_tensor *tensor = &call->tensors[roles[i].role];
            DLTensor old = tensor->t;
            use_strides(tensor);
            tensor->strides[0] = (int64_t)(pages.page / (tensor->t.dtype.bits / 8u));
            tensor->t.data = pages.memory + offset[roles[i].role];
            old.strides = NULL;
            size_t slot = tensor->bytes / (size_t)call->spec.S;
            for (int64_t s = 0; s < call->spec.S; s++)
                memcpy(h_at(&tensor->t, s, 0, 0, 0), h_at(&old, s, 0, 0, 0), slot);
            if (roles[i].role != RSSM_T_STATE) /* shift > 0: into the neighbour */
                tensor->t.data = (unsigned char *)tensor->t.data - shift;
        }
    return pages;
}

START_TEST(test_paged_pool)
{
    h_spec spec = spec_for(1 + _i, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *apart = h_call_new(&spec, 3), *call = h_call_new(&spec, 3), *bad = h_call_new(&spec, 3);
    paged pages = make_pages(call, 0, 0), overlapping = make_pages(bad, 16, 0);
    decode_well(plugin, apart, "tensors apart");
    decode_well(plugin, call, "paged pool");
    int count;
    const h_role *roles = h_roles(spec.family, &count);
    for (int i = 0; i < count; i++)
        for (int64_t s = 0; is_written(&roles[i]) && s < call->tensors[roles[i].role].shape[0]; s++)
            ck_assert_msg(memcmp(h_at(&call->tensors[roles[i].role].t, s, 0, 0, 0),
                                 h_at(&apart->tensors[roles[i].role].t, s, 0, 0, 0),
                                 call->tensors[roles[i].role].bytes / (size_t)call->tensors[roles[i].role].shape[0]) ==
                              0,
                          "`%s` row %d differs in a paged pool", roles[i].name, (int)s);
    ck_assert_int_eq(h_api()->validate(plugin, &bad->args, NULL), RSSM_ERR_OVERLAP);
    h_block_free(pages.memory);
    h_block_free(overlapping.memory);
    h_call_free(apart);
    h_call_free(call);
    h_call_free(bad);
    h_teardown(&plugin);
}
END_TEST

/* The last tensor of a page may not reach into the next page, nor may pages of other strides interleave by chance. */
START_TEST(test_page_wraps)
{
    h_spec spec = spec_for(RSSM_FAMILY_GDN, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 3);
    paged pages = make_pages(call, 0, 64);
    h_tensor *g = &call->tensors[RSSM_T_G_CACHE]; /* 48 bytes of a slot */
    char *start = g->t.data;
    g->t.data = start + 64; /* to the end of the page */
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_OK);
    g->t.data = start + 96; /* 32 bytes into the next slot's state */
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_OVERLAP);
    ck_assert_msg(strstr(err.message, "`state`") && strstr(err.message, "`g_cache`"), "%s", err.message);
    g->t.data = start;
    g->strides[0] += 4; /* a page more by and by: slot 8 of it lies over other slots' states */
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_ERR_OVERLAP);
    h_block_free(pages.memory);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* What lies in the gaps of a strided tensor shares nothing with it, whatever stride a single row or slot claims. */
START_TEST(test_in_the_gap)
{
    static const int64_t strides[] = {0, 1, -77, INT64_MIN, INT64_MAX, 4096, -2072 /* - one row and gap */};
    h_spec spec = spec_for(h_family(RSSM_FAMILY_GDN), NULL);
    spec.S = 1;
    spec.B = 2;
    spec.row_gap = 4096;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 3);
    h_tensor *state = &call->tensors[RSSM_T_STATE], *packed = &call->tensors[RSSM_T_MIXED_QKV];
    use_strides(state);
    state->strides[0] = strides[_i];
    char *gap = (char *)packed->t.data + 512; /* a row has 96 bytes, the gap 8192 */
    state->t.data = gap;
    rssm_error err = h_error();
    ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_OK, "in the gap: %s", err.message);
    state->t.data = gap - 432; /* over the last 16 bytes of row 0 */
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_ERR_OVERLAP);
    state->t.data = (char *)packed->t.data + 8288 - 256; /* from the gap into row 1 */
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_ERR_OVERLAP);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- the cases that this project starts from -------------------------------------------------------------------- */

typedef struct named_case {
    const char *name;
    int32_t tp, role, dim;
    int64_t shape[4];
    int64_t expected, got;
    const char *message; /* its beginning */
    const char *cause;
} named_case;

/* Kimi Linear's 32 heads of 128 and a GQA-like 16 key heads, L = 16, 64 slots. */
static const named_case named_cases[] = {
    {"d_cache laid out [slots, L, HV, V]",
     1,
     RSSM_T_D_CACHE,
     1,
     {64, 16, 32, 128},
     32,
     16,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 32, 16, 128]; got [64, 16, 32, 128]",
     "HV and L look swapped"},
    {"k_cache laid out [slots, L, H, K]",
     1,
     RSSM_T_K_CACHE,
     1,
     {64, 16, 8, 128},
     8,
     16,
     "`k_cache` must have shape [slots, H, L, K] = [64, 8, 16, 128]; got [64, 16, 8, 128]",
     "H and L look swapped"},
    {"g_cache laid out [slots, L, HV, K]",
     1,
     RSSM_T_G_CACHE,
     1,
     {64, 16, 32, 128},
     32,
     16,
     "`g_cache` must have shape [slots, HV, L, K] = [64, 32, 16, 128]; got [64, 16, 32, 128]",
     "HV and L look swapped"},
    {"d_cache of another num_v_heads",
     1,
     RSSM_T_D_CACHE,
     1,
     {64, 48, 16, 128},
     32,
     48,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 32, 16, 128]; got [64, 48, 16, 128]",
     "48 value heads"},
    {"g_cache of another num_v_heads",
     1,
     RSSM_T_G_CACHE,
     1,
     {64, 24, 16, 128},
     32,
     24,
     "`g_cache` must have shape [slots, HV, L, K] = [64, 32, 16, 128]; got [64, 24, 16, 128]",
     "24 value heads"},
    {"k_cache of another num_k_heads",
     1,
     RSSM_T_K_CACHE,
     1,
     {64, 32, 16, 128},
     8,
     32,
     "`k_cache` must have shape [slots, H, L, K] = [64, 8, 16, 128]; got [64, 32, 16, 128]",
     "32 key heads"},
    {"d_cache with value_dim * 2",
     1,
     RSSM_T_D_CACHE,
     3,
     {64, 32, 16, 256},
     128,
     256,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 32, 16, 128]; got [64, 32, 16, 256]",
     ""},
    {"unsharded d_cache",
     2,
     RSSM_T_D_CACHE,
     1,
     {64, 32, 16, 128},
     16,
     32,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 16, 16, 128]; got [64, 32, 16, 128]",
     "not sharded"},
    {"unsharded k_cache",
     2,
     RSSM_T_K_CACHE,
     1,
     {64, 8, 16, 128},
     4,
     8,
     "`k_cache` must have shape [slots, H, L, K] = [64, 4, 16, 128]; got [64, 8, 16, 128]",
     "not sharded"},
    {"unsharded g_cache",
     2,
     RSSM_T_G_CACHE,
     1,
     {64, 32, 16, 128},
     16,
     32,
     "`g_cache` must have shape [slots, HV, L, K] = [64, 16, 16, 128]; got [64, 32, 16, 128]",
     "not sharded"},
    {"unsharded state",
     2,
     RSSM_T_STATE,
     1,
     {64, 32, 128, 128},
     16,
     32,
     "`state` must have shape [slots, HV, V, K] = [slots, 16, 128, 128]; got [64, 32, 128, 128]",
     "not sharded"},
    {"ring length 0",
     1,
     RSSM_T_D_CACHE,
     2,
     {64, 32, 0, 128},
     16,
     0,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 32, 16, 128]; got [64, 32, 0, 128]",
     "ring length"},
    {"d_cache of other slots than the state",
     1,
     RSSM_T_D_CACHE,
     0,
     {63, 32, 16, 128},
     64,
     63,
     "`d_cache` must have shape [slots, HV, L, V] = [64, 32, 16, 128]; got [63, 32, 16, 128]",
     "`state` has 64 slots"},
};

/* The call of rank 0 of tp ranks, with 64 slots; its memory holds one. */
static h_call *paper_call(int32_t tp)
{
    h_spec spec = {.H = 8 / tp, .HV = 32 / tp, .K = 128, .V = 128, .L = 16, .B = 4, .S = 1};
    h_call *call = h_call_new(&spec, 1);
    const int32_t pool[] = {RSSM_T_STATE, RSSM_T_D_CACHE, RSSM_T_K_CACHE, RSSM_T_G_CACHE};
    for (int i = 0; i < COUNT(pool); i++)
        call->tensors[pool[i]].shape[0] = 64;
    call->spec.S = 64;
    place_on_paper(call);
    return call;
}

static rssm_plugin *paper_plugin(int32_t tp)
{
    h_need_family(RSSM_FAMILY_KDA);
    h_spec spec = {.H = 8, .HV = 32, .K = 128, .V = 128, .L = 16};
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.tp_size = tp;
    rssm_plugin *plugin = NULL;
    ck_assert_int_eq(h_api()->init(&args, &plugin, NULL), RSSM_OK);
    return plugin;
}

START_TEST(test_named_case)
{
    const named_case *c = &named_cases[_i];
    rssm_plugin *plugin = paper_plugin(c->tp);
    h_call *call = paper_call(c->tp);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_OK, "the right call: %s", err.message);
    memcpy(call->tensors[c->role].shape, c->shape, sizeof(c->shape));
    err = h_error();
    ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_ERR_SHAPE, "%s: %s", c->name, err.message);
    ck_assert_msg(strncmp(err.message, c->message, strlen(c->message)) == 0, "%s: %s", c->name, err.message);
    const char *rest = err.message + strlen(c->message);
    ck_assert_msg(!*rest || strncmp(rest, " (", 2) == 0, "%s: %s", c->name, err.message);
#ifndef RSSM_CONFORM /* a guess at the cause is this plugin's courtesy: the ABI asks for both sides */
    ck_assert_msg(strstr(rest, c->cause) != NULL, "%s: no cause \"%s\": %s", c->name, c->cause, err.message);
#endif
    ck_assert_int_eq(err.role, c->role);
    ck_assert_int_eq(err.dim, c->dim);
    ck_assert_int_eq(err.expected, c->expected);
    ck_assert_int_eq(err.got, c->got);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

START_TEST(test_g_cache_not_float32)
{
    rssm_plugin *plugin = paper_plugin(1);
    h_call *call = paper_call(1);
    call->tensors[RSSM_T_G_CACHE].t.dtype = h_float_type(RSSM_DTYPE_BFLOAT16);
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_DTYPE);
    ck_assert_str_eq(err.message, "`g_cache` must have dtype float32; got bfloat16");
    ck_assert_int_eq(err.role, RSSM_T_G_CACHE);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

START_TEST(test_tensors_on_different_devices)
{
    rssm_plugin *plugin = paper_plugin(1);
    h_call *call = paper_call(1);
    call->tensors[RSSM_T_STATE].t.device = (DLDevice){.device_type = kDLCUDA, .device_id = 1};
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_DEVICE);
    ck_assert_int_eq(err.role, RSSM_T_STATE);
    ck_assert_ptr_nonnull(strstr(err.message, h_on_cuda() ? "`state` must be on cuda:0" : "`state` must be on cpu"));
    ck_assert_ptr_nonnull(strstr(err.message, h_on_cuda() ? "got cpu" : "got cuda:1"));
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* An instance of the second GPU, where this binary has CUDA: validate asks no driver, and tells the GPUs apart. */
START_TEST(test_other_gpu)
{
    h_spec spec = spec_for(h_family(RSSM_FAMILY_KDA), NULL);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.device_type = kDLCUDA;
    args.device_id = 1;
    rssm_plugin *plugin = NULL;
    if (h_api()->init(&args, &plugin, NULL) == RSSM_ERR_UNSUPPORTED)
        return;
    h_call *call = h_call_new(&spec, 1);
    FOR_ROLES(call, role)
    call->tensors[role->role].t.device = (DLDevice){.device_type = kDLCUDA, .device_id = 1};
    rssm_error err = h_error();
    ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_OK, "%s", err.message);
    call->tensors[RSSM_T_K_CACHE].t.device.device_id = 0;
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_DEVICE);
    ck_assert(err.role == RSSM_T_K_CACHE && err.expected == 1 && err.got == 0);
    ck_assert_msg(strstr(err.message, "`k_cache` must be on cuda:1") && strstr(err.message, "cuda:0"), "%s",
                  err.message);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Ring lengths that init refuses. */
START_TEST(test_ring_length)
{
    static const int32_t lengths[] = {-1, 65, INT32_MIN, INT32_MAX};
    h_spec spec = base_spec;
    spec.family = h_family(RSSM_FAMILY_KDA);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.ring_length = lengths[_i];
    rssm_plugin *plugin = (rssm_plugin *)&args;
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->init(&args, &plugin, &err), RSSM_ERR_ARGUMENT);
    ck_assert_ptr_null(plugin);
    char number[16];
    snprintf(number, sizeof(number), "%d", lengths[_i]);
    ck_assert_msg(strstr(err.message, "ring_length") && strstr(err.message, number), "%s", err.message);
}
END_TEST

/* ---- arguments of the call -------------------------------------------------------------------------------------- */

typedef struct bad_args {
    const char *name;
    void (*spoil)(rssm_decode_args *args);
    rssm_status status;
    const char *text;
} bad_args;

static void spoil_tensors(rssm_decode_args *a)
{
    a->tensors = NULL;
}
static void spoil_layer_low(rssm_decode_args *a)
{
    a->layer = -1;
}
static void spoil_layer_high(rssm_decode_args *a)
{
    a->layer = 1;
}
static void spoil_flags(rssm_decode_args *a)
{
    a->flags = 1u << 2;
}
static void spoil_high_flag(rssm_decode_args *a)
{
    a->flags = 1u << 31;
}
static void spoil_has_scale(rssm_decode_args *a)
{
    a->has_scale = 2;
}
static void spoil_has_bound(rssm_decode_args *a)
{
    a->has_lower_bound = -1;
}
static void spoil_scale_nan(rssm_decode_args *a)
{
    a->has_scale = 1;
    a->scale = (double)NAN;
}
static void spoil_scale_inf(rssm_decode_args *a)
{
    a->has_scale = 1;
    a->scale = (double)INFINITY;
}
static void spoil_scale_zero(rssm_decode_args *a)
{
    a->has_scale = 1;
}
static void spoil_skip_and_deep(rssm_decode_args *a)
{
    a->flags = RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP;
}
static void spoil_scale_wide(rssm_decode_args *a)
{
    a->has_scale = 1;
    a->scale = 1e39; /* beyond float32 */
}
static void spoil_bound_zero(rssm_decode_args *a)
{
    a->has_lower_bound = 1;
}
static void spoil_bound_positive(rssm_decode_args *a)
{
    a->has_lower_bound = 1;
    a->lower_bound = 5;
}
static void spoil_bound_nan(rssm_decode_args *a)
{
    a->has_lower_bound = 1;
    a->lower_bound = (double)NAN;
}
static void spoil_bound_inf(rssm_decode_args *a)
{
    a->has_lower_bound = 1;
    a->lower_bound = -(double)INFINITY;
}

static const bad_args bad_args_cases[] = {
    {"tensors NULL", spoil_tensors, RSSM_ERR_ARGUMENT, "tensors"},
    {"layer -1", spoil_layer_low, RSSM_ERR_ARGUMENT, "layer = -1"},
    {"layer beyond", spoil_layer_high, RSSM_ERR_ARGUMENT, "layer = 1"},
    {"flag", spoil_flags, RSSM_ERR_ARGUMENT, "flag 0x4"},
    {"high flag", spoil_high_flag, RSSM_ERR_ARGUMENT, "flag 0x80000000"},
    {"has_scale 2", spoil_has_scale, RSSM_ERR_ARGUMENT, "has_scale"},
    {"has_lower_bound -1", spoil_has_bound, RSSM_ERR_ARGUMENT, "has_lower_bound"},
    {"scale NaN", spoil_scale_nan, RSSM_ERR_ARGUMENT, "scale"},
    {"scale inf", spoil_scale_inf, RSSM_ERR_ARGUMENT, "scale"},
    {"scale 0", spoil_scale_zero, RSSM_ERR_ARGUMENT, "scale"},
    {"SKIP and DEEP", spoil_skip_and_deep, RSSM_ERR_ARGUMENT, "RSSM_SKIP_VALIDATE"},
    {"scale 1e39", spoil_scale_wide, RSSM_ERR_ARGUMENT, "scale"},
    {"bound 0", spoil_bound_zero, RSSM_ERR_ARGUMENT, "lower_bound"},
    {"bound 5", spoil_bound_positive, RSSM_ERR_ARGUMENT, "lower_bound"},
    {"bound NaN", spoil_bound_nan, RSSM_ERR_ARGUMENT, "lower_bound"},
    {"bound -inf", spoil_bound_inf, RSSM_ERR_ARGUMENT, "lower_bound"},
};

START_TEST(test_bad_args)
{
    const bad_args *c = &bad_args_cases[_i % COUNT(bad_args_cases)];
    h_spec spec = spec_for(1 + _i / COUNT(bad_args_cases), NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 5);
    c->spoil(&call->args);
    expectation want = {.status = c->status, .role = RSSM_T_NONE, .dim = -1};
    say(&want, 0, "%s", c->text);
    if (spec.family == RSSM_FAMILY_MAMBA2 && (call->args.has_scale == 1 || call->args.has_lower_bound == 1))
        say(&want, 0, "Mamba-2");
    refuse(plugin, call, &want, c->name);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

START_TEST(test_batch_above_max)
{
    h_spec spec = spec_for(1 + _i, NULL);
    h_need_family(spec.family);
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    args.max_batch = 5;
    rssm_plugin *plugin = NULL;
    ck_assert_int_eq(h_api()->init(&args, &plugin, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    h_call *six = h_call_new(&spec, 1);
    spec.B = 5;
    h_call *five = h_call_new(&spec, 1);
    expectation want = {.status = RSSM_ERR_ARGUMENT, .role = RSSM_T_NONE, .dim = -1};
    say(&want, 0, "max_batch = 5");
    refuse(plugin, six, &want, "6 rows");
    decode_well(plugin, five, "5 rows");
    h_call_free(six);
    h_call_free(five);
    h_teardown(&plugin);
}
END_TEST

/* Forms that contradict themselves. */
typedef struct mixed_form {
    const char *name;
    int32_t family;
    bool apart, host_pos;
    int32_t extra;    /* a role of the other form */
    int32_t blame[2]; /* either may be named */
} mixed_form;

static const mixed_form mixed_forms[] = {
    {"packed and q", RSSM_FAMILY_KDA, false, false, RSSM_T_Q, {RSSM_T_Q, RSSM_T_MIXED_QKV}},
    {"packed and k", RSSM_FAMILY_GDN, false, false, RSSM_T_K, {RSSM_T_K, RSSM_T_MIXED_QKV}},
    {"packed and v", RSSM_FAMILY_KDA, false, false, RSSM_T_V, {RSSM_T_V, RSSM_T_MIXED_QKV}},
    {"packed and x", RSSM_FAMILY_MAMBA2, false, false, RSSM_T_X, {RSSM_T_X, RSSM_T_MIXED_XBC}},
    {"packed and B", RSSM_FAMILY_MAMBA2, false, false, RSSM_T_BM, {RSSM_T_BM, RSSM_T_MIXED_XBC}},
    {"packed and C", RSSM_FAMILY_MAMBA2, false, false, RSSM_T_CM, {RSSM_T_CM, RSSM_T_MIXED_XBC}},
    {"rows and write_pos", RSSM_FAMILY_KDA, false, false, RSSM_T_WRITE_POS, {RSSM_T_WRITE_POS, RSSM_T_ROWS}},
    {"rows and force_flush", RSSM_FAMILY_GDN, false, false, RSSM_T_FORCE_FLUSH, {RSSM_T_FORCE_FLUSH, RSSM_T_ROWS}},
    {"rows and indices", RSSM_FAMILY_MAMBA2, false, false, RSSM_T_STATE_INDICES, {RSSM_T_STATE_INDICES, RSSM_T_ROWS}},
};

START_TEST(test_mixed_form)
{
    const mixed_form *c = &mixed_forms[_i];
    h_spec spec = spec_for(c->family, NULL), other = spec;
    other.apart = other.host_pos = true;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 1), *donor = h_call_new(&other, 1);
    call->roles[c->extra] = &donor->tensors[c->extra].t;
    rssm_error err = h_error();
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, &err), RSSM_ERR_ROLE);
    ck_assert_msg(err.role == c->blame[0] || err.role == c->blame[1], "%s: %s", c->name, err.message);
    expectation want = {.status = RSSM_ERR_ROLE, .role = err.role, .dim = -1};
    say(&want, 0, "`%s`", h_api()->role_name(c->extra));
    refuse(plugin, call, &want, c->name);
    h_call_free(call);
    h_call_free(donor);
    h_teardown(&plugin);
}
END_TEST

/* ---- forms that are accepted ------------------------------------------------------------------------------------ */

/* A change of form that must not change a number. */
typedef struct accepted_form {
    const char *name;
    void (*change)(h_call *call);
} accepted_form;

static void change_nothing(h_call *call)
{
    (void)call;
}

static void change_flat(h_call *call)
{
    FOR_ROLES(call, role)
    if (role->alt) {
        h_tensor *tensor = &call->tensors[role->role];
        tensor->t.ndim = shape_of(&call->spec, role->alt, tensor->shape);
        for (int i = 1; i < tensor->t.ndim; i++)
            tensor->strides[i] = inner_elements(tensor, i);
    }
}

static void change_strides(h_call *call)
{
    FOR_ROLES(call, role)
    use_strides(&call->tensors[role->role]);
}

static void change_flat_strides(h_call *call)
{
    change_flat(call);
    change_strides(call);
}

static void change_offset(h_call *call)
{
    FOR_ROLES(call, role)
    {
        DLTensor *t = &call->tensors[role->role].t;
        t->data = (char *)t->data - 48;
        t->byte_offset = 48;
    }
}

/* Strides of dimensions of one entry mean nothing. */
static void change_single_strides(h_call *call)
{
    change_strides(call);
    FOR_ROLES(call, role)
    for (int i = 0; i < call->tensors[role->role].t.ndim; i++)
        if (call->tensors[role->role].shape[i] == 1)
            call->tensors[role->role].strides[i] = -77;
}

/* [1, 1, HV, 1], as checkpoints have them. */
static void change_ones(h_call *call)
{
    FOR_ROLES(call, role)
    if (role->place == H_WEIGHT) {
        h_tensor *tensor = &call->tensors[role->role];
        const int64_t shape[] = {1, 1, tensor->shape[0], 1};
        memcpy(tensor->shape, shape, sizeof(shape));
        tensor->t.ndim = 4;
    }
}

static void change_longer_array(h_call *call)
{
    call->args.num_tensors = H_NUM_ROLES;
}

static void change_skip_validate(h_call *call)
{
    call->args.flags = RSSM_SKIP_VALIDATE;
}

static void change_deep(h_call *call)
{
    call->args.flags = RSSM_CHECK_DEEP;
}

static void change_scale(h_call *call)
{
    if (call->spec.family == RSSM_FAMILY_MAMBA2)
        return;
    call->args.has_scale = 1;
    call->args.scale = 1 / sqrt((double)call->spec.K);
}

static void change_no_flush(h_call *call)
{
    call->roles[RSSM_T_FORCE_FLUSH] = NULL;
}

static void change_no_indices(h_call *call) /* they are 0, 1, 2, ... */
{
    call->roles[RSSM_T_STATE_INDICES] = NULL;
}

static const accepted_form accepted_forms[] = {
    {"as it is", change_nothing},
    {"flat inner dims", change_flat},
    {"explicit strides", change_strides},
    {"flat inner dims with strides", change_flat_strides},
    {"byte_offset", change_offset},
    {"any stride where there is one entry", change_single_strides},
    {"weights with dims of 1", change_ones},
    {"longer role array", change_longer_array},
    {"RSSM_SKIP_VALIDATE", change_skip_validate},
    {"RSSM_CHECK_DEEP", change_deep},
    {"the default scale given", change_scale},
    {"no force_flush", change_no_flush},
    {"no state_indices", change_no_indices},
};

/* Forms of the whole spec, likewise. */
static const struct {
    const char *name;
    bool apart, host_pos;
    int64_t row_gap, slot_gap;
    int32_t index_bits;
} accepted_specs[] = {
    {"packed, rows", false, false, 0, 0, 32},        {"apart, rows", true, false, 0, 0, 32},
    {"packed, write_pos", false, true, 0, 0, 32},    {"apart, int64 write_pos", true, true, 0, 0, 64},
    {"gaps between rows", false, false, 3, 0, 32},   {"gaps between rows, apart", true, false, 5, 0, 32},
    {"gaps between slots", false, false, 0, 16, 32}, {"slots not a multiple of 16 bytes", true, false, 0, 1, 32},
    {"strided int32 arrays", false, true, 1, 0, 32}, {"strided int64 arrays, all gaps", true, true, 3, 7, 64},
};

static void copy_elements(const DLTensor *to, const DLTensor *from)
{
    for (int64_t i0 = 0; i0 < from->shape[0]; i0++)
        for (int64_t i1 = 0; i1 < (from->ndim > 1 ? from->shape[1] : 1); i1++)
            for (int64_t i2 = 0; i2 < (from->ndim > 2 ? from->shape[2] : 1); i2++)
                for (int64_t i3 = 0; i3 < (from->ndim > 3 ? from->shape[3] : 1); i3++)
                    h_set(to, i0, i1, i2, i3, h_get(from, i0, i1, i2, i3));
}

/* Column `at` of the packed row on, as [B, heads, dim]. */
static void copy_part(const DLTensor *to, const DLTensor *packed, int64_t at)
{
    for (int64_t b = 0; b < to->shape[0]; b++)
        for (int64_t h = 0; h < to->shape[1]; h++)
            for (int64_t i = 0; i < to->shape[2]; i++)
                h_set(to, b, h, i, 0, h_get(packed, b, at + h * to->shape[2] + i, 0, 0));
}

/* The same numbers in another form. `from` is packed. */
static void copy_numbers(h_call *to, const h_call *from)
{
    FOR_ROLES(to, role)
    if (from->tensors[role->role].block && role->place != H_INDEX)
        copy_elements(&to->tensors[role->role].t, &from->tensors[role->role].t);
    if (!to->spec.apart)
        return;
    bool mamba = to->spec.family == RSSM_FAMILY_MAMBA2;
    const DLTensor *packed = &from->tensors[mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV].t;
    int64_t keys = (int64_t)to->spec.H * to->spec.K, values = (int64_t)to->spec.HV * to->spec.V;
    copy_part(&to->tensors[mamba ? RSSM_T_X : RSSM_T_Q].t, packed, 0);
    copy_part(&to->tensors[mamba ? RSSM_T_BM : RSSM_T_K].t, packed, mamba ? values : keys);
    copy_part(&to->tensors[mamba ? RSSM_T_CM : RSSM_T_V].t, packed, mamba ? values + keys : 2 * keys);
}

static bool same_element(const DLTensor *a, const DLTensor *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return memcmp(h_at(a, i0, i1, i2, i3), h_at(b, i0, i1, i2, i3), a->dtype.bits / 8) == 0;
}

/* Compares bits in the shape of `a`. */
static bool same_elements(const DLTensor *a, const DLTensor *b)
{
    for (int64_t i0 = 0; i0 < a->shape[0]; i0++)
        for (int64_t i1 = 0; i1 < (a->ndim > 1 ? a->shape[1] : 1); i1++)
            for (int64_t i2 = 0; i2 < (a->ndim > 2 ? a->shape[2] : 1); i2++)
                for (int64_t i3 = 0; i3 < (a->ndim > 3 ? a->shape[3] : 1); i3++)
                    if (!same_element(a, b, i0, i1, i2, i3))
                        return false;
    return true;
}

static void same_results(const h_call *plain, h_call *call, const char *name)
{
    FOR_ROLES(call, role)
    if (is_written(role)) {
        h_tensor *tensor = &call->tensors[role->role];
        tensor->t.ndim = shape_of(&call->spec, role->shape, tensor->shape); /* unflatten: dim 0 has its stride still */
        for (int i = 1; i < tensor->t.ndim; i++)
            tensor->strides[i] = inner_elements(tensor, i);
        ck_assert_msg(same_elements(&plain->tensors[role->role].t, &tensor->t), "%s: `%s` has other bits", name,
                      role->name);
    }
}

START_TEST(test_accepted)
{
    int per_family = COUNT(accepted_forms) * COUNT(accepted_specs);
    int which = _i % per_family / COUNT(accepted_forms);
    const accepted_form *form = &accepted_forms[_i % COUNT(accepted_forms)];
    h_spec spec = spec_for(1 + _i / per_family, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *plain = h_call_new(&spec, 11);
    spec.apart = accepted_specs[which].apart;
    spec.host_pos = accepted_specs[which].host_pos;
    spec.row_gap = accepted_specs[which].row_gap;
    spec.slot_gap = accepted_specs[which].slot_gap;
    spec.index_bits = accepted_specs[which].index_bits;
    h_call *call = h_call_new(&spec, 12);
    copy_numbers(call, plain);
    char name[128];
    snprintf(name, sizeof(name), "%s, %s, %s", family_name(spec.family), accepted_specs[which].name, form->name);
    bool gaps = spec.row_gap || spec.slot_gap; /* forms that would rewrite the strides stay away from them */
    if (!(gaps && (form->change == change_strides || form->change == change_flat_strides ||
                   form->change == change_single_strides)))
        form->change(call);
    decode_well(plugin, plain, "plain");
    decode_well(plugin, call, name);
    same_results(plain, call, name);
    h_call_free(plain);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Every allowed dtype of every kind, apart from one another: accepted, and decoded without touching guard bytes. */
START_TEST(test_accepted_dtypes)
{
    int32_t family = 1 + _i / 81;
    int32_t io = 1 + _i / 27 % 3, state = 1 + _i / 9 % 3, ring = 1 + _i / 3 % 3, weights = 1 + _i % 3;
    for (int form = 0; form < 4; form++) {
        h_spec spec = spec_for(family, NULL);
        spec.io = io;
        spec.state = state;
        spec.ring = ring;
        spec.weights = weights;
        spec.gate = form & 1 ? RSSM_DTYPE_FLOAT32 : io;
        spec.out = form & 2 ? RSSM_DTYPE_FLOAT32 : io;
        rssm_plugin *plugin = prepared(&spec);
        h_call *call = h_call_new(&spec, 13);
        decode_well(plugin, call, "dtypes");
        for (int64_t b = 0; b < call->spec.B; b++)
            ck_assert(isfinite(h_get(&call->tensors[RSSM_T_OUT].t, b, 0, 0, 0)));
        h_call_free(call);
        h_teardown(&plugin);
    }
}
END_TEST

/* Two calls at L = 1, with the ring and without it. */
static void refuses_parts_of_a_ring(rssm_plugin *plugin, h_call *with, h_call *without)
{
    FOR_ROLES(with, role)
    {
        if (strcmp(role->form, "ring") != 0)
            continue;
        rssm_error err = h_error();
        const DLTensor *ring = with->roles[role->role];
        with->roles[role->role] = NULL; /* all but one, */
        ck_assert_int_eq(h_api()->decode(plugin, &with->args, &err), RSSM_ERR_MISSING);
        ck_assert_int_eq(err.role, role->role);
        with->roles[role->role] = ring;
        without->roles[role->role] = ring; /* and one alone */
        ck_assert_int_eq(h_api()->decode(plugin, &without->args, &err), RSSM_ERR_MISSING);
        ck_assert_int_ne(err.role, role->role);
        without->roles[role->role] = NULL;
    }
}

/* L = 1: the ring may be there or not, with the same result; a part of it is refused. */
START_TEST(test_rings_absent)
{
    h_spec spec = spec_for(1 + _i, NULL);
    spec.L = 1;
    rssm_plugin *plugin = prepared(&spec);
    h_call *with = h_call_new(&spec, 17), *without = h_call_new(&spec, 17);
    FOR_ROLES(without, role)
    if (strcmp(role->form, "ring") == 0)
        without->roles[role->role] = NULL;
    refuses_parts_of_a_ring(plugin, with, without);
    decode_well(plugin, with, "L = 1 with rings");
    decode_well(plugin, without, "L = 1 without rings");
    ck_assert(same_elements(&with->tensors[RSSM_T_OUT].t, &without->tensors[RSSM_T_OUT].t));
    ck_assert(same_elements(&with->tensors[RSSM_T_STATE].t, &without->tensors[RSSM_T_STATE].t));
    h_call_free(with);
    h_call_free(without);
    h_teardown(&plugin);
}
END_TEST

/* No rows, no slots: nothing to read, so no data is needed. */
START_TEST(test_empty)
{
    h_spec spec = spec_for(1 + _i / 4, NULL);
    spec.host_pos = _i & 1;
    if (_i & 2)
        spec.S = H_NONE;
    else
        spec.B = H_NONE;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 17);
    FOR_ROLES(call, role)
    if (call->tensors[role->role].bytes == 0)
        call->tensors[role->role].t.data = NULL;
    decode_well(plugin, call, "empty");
    if (_i & 2) /* every row is a padding row, and step_begin would have said so */
        for (int64_t b = 0; b < call->spec.B && !spec.host_pos; b++)
            h_set(&call->tensors[RSSM_T_ROWS].t, b, 0, 0, 0, -1);
    if (_i & 2)
        for (int64_t b = 0; b < call->spec.B; b++)
            ck_assert(h_get(&call->tensors[RSSM_T_OUT].t, b, 3, 6, 0) == 0);
    call->args.flags = RSSM_CHECK_DEEP;
    decode_well(plugin, call, "empty, deep");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* A_log may be absent where a bound is: the model's, or the call's. */
START_TEST(test_a_log_absent)
{
    h_spec spec = spec_for(1 + _i % 2, NULL);
    bool override = _i / 2;
    spec.bounded = !override;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 17);
    call->roles[RSSM_T_A_LOG] = NULL;
    if (override) {
        expectation want = {.status = RSSM_ERR_MISSING, .role = RSSM_T_A_LOG, .dim = -1};
        say(&want, 0, "`A_log`");
        say(&want, 1, "lower bound");
        refuse(plugin, call, &want, "no bound, no A_log");
        call->args.has_lower_bound = 1;
        call->args.lower_bound = -5;
    }
    decode_well(plugin, call, "a bound, no A_log");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Mamba-2's A = -exp(A_log), and its optional tensors. */
START_TEST(test_mamba_weights)
{
    h_spec spec = spec_for(RSSM_FAMILY_MAMBA2, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *log_form = h_call_new(&spec, 19), *decay_form = h_call_new(&spec, 19);
    DLTensor *a = &decay_form->tensors[RSSM_T_A_LOG].t;
    decay_form->roles[RSSM_T_A_LOG] = NULL;
    decay_form->roles[RSSM_T_A_DECAY] = a;
    for (int64_t h = 0; h < spec.HV; h++)
        h_set(a, h, 0, 0, 0, -exp(h_get(a, h, 0, 0, 0)));
    decode_well(plugin, log_form, "A_log");
    decode_well(plugin, decay_form, "A");
    for (int64_t b = 0; b < log_form->spec.B; b++)
        for (int64_t p = 0; p < spec.V; p++) {
            double x = h_get(&log_form->tensors[RSSM_T_OUT].t, b, 1, p, 0);
            double y = h_get(&decay_form->tensors[RSSM_T_OUT].t, b, 1, p, 0);
            ck_assert_msg(fabs(x - y) <= fabs(x) / 128, "A_log gives %g, A gives %g", x, y);
        }
    decay_form->roles[RSSM_T_A_DECAY] = NULL;
    ck_assert_int_eq(h_api()->validate(plugin, &decay_form->args, NULL), RSSM_ERR_MISSING);
    decay_form->roles[RSSM_T_A_LOG] = a;
    decay_form->roles[RSSM_T_D] = decay_form->roles[RSSM_T_Z] = decay_form->roles[RSSM_T_DT_BIAS] = NULL;
    decode_well(plugin, decay_form, "no D, z, dt_bias");
    a->shape[0]++;
    decay_form->roles[RSSM_T_A_LOG] = NULL;
    decay_form->roles[RSSM_T_A_DECAY] = a;
    expectation want = {.status = RSSM_ERR_SHAPE, .role = RSSM_T_A_DECAY, .dim = 0};
    expect_numbers(&want, spec.HV, spec.HV + 1);
    say(&want, 0, "`A` must have shape [nh] = [4]; got [5]");
    refuse(plugin, decay_form, &want, "A of another length");
    h_call_free(log_form);
    h_call_free(decay_form);
    h_teardown(&plugin);
}
END_TEST

/* Broadcast rows are an ordinary row stride of 0 for what is read. */
START_TEST(test_broadcast_rows)
{
    h_spec spec = spec_for(1 + _i, NULL);
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 23);
    FOR_ROLES(call, role)
    if (role->place == H_INPUT) {
        use_strides(&call->tensors[role->role]);
        call->tensors[role->role].strides[0] = 0;
    }
    h_fill(&call->tensors[RSSM_T_STATE].t, 0);
    decode_well(plugin, call, "row stride 0");
    for (int64_t b = 1; b < call->spec.B; b++)
        ck_assert(memcmp(h_at(&call->tensors[RSSM_T_OUT].t, b, 0, 0, 0), h_at(&call->tensors[RSSM_T_OUT].t, 0, 0, 0, 0),
                         (size_t)spec.HV * (size_t)spec.V * 2) == 0);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Verify's ring has R = L + D + 1 rows, and says so. */
START_TEST(test_draft_ring)
{
    h_spec spec = spec_for(1 + _i, NULL);
    spec.L = 4;
    spec.drafts = 2;
    rssm_plugin *plugin = prepared(&spec);
    h_call *call = h_call_new(&spec, 23);
    int32_t ring = spec.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_X_CACHE : RSSM_T_D_CACHE;
    decode_well(plugin, call, "R = 7");
    call->tensors[ring].shape[2] = 4;
    expectation want;
    ck_assert(expect_shape(call, h_role_of(spec.family, ring), &want));
    ck_assert_int_eq(want.expected, 7);
    refuse(plugin, call, &want, "a ring without draft rows");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- RSSM_CHECK_DEEP -------------------------------------------------------------------------------------------- */

typedef struct deep_case {
    const char *name;
    bool host_pos;
    int column;        /* of rows; host form: 0 = state_indices, 1 = write_pos */
    int64_t values[6]; /* of the rows */
    rssm_status status;
    int32_t role;
    const char *text;
} deep_case;

/* S = 9, L = R = 3, B = 6, the pad slot is 8. The columns that a case does not name hold row b: slot b, cursor 0. */
static const deep_case deep_cases[] = {
    {"slots apart", false, 0, {5, 4, 3, 2, 1, 0}, RSSM_OK, 0, ""},
    {"slot twice", false, 0, {0, 1, 2, 3, 4, 1}, RSSM_ERR_VALUE, RSSM_T_ROWS, "slot 1 twice, in rows 1 and 5"},
    {"slot 0 twice", false, 0, {1, 0, 2, 0, 4, 5}, RSSM_ERR_VALUE, RSSM_T_ROWS, "slot 0 twice, in rows 1 and 3"},
    {"-1 twice", false, 0, {-1, 1, 2, -1, 4, 5}, RSSM_OK, 0, ""},
    {"pad slot twice", false, 0, {8, 1, 2, 8, 4, 5}, RSSM_OK, 0, ""},
    {"slot S", false, 0, {0, 1, 2, 9, 4, 5}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 3 (slot 9)"},
    {"slot -2", false, 0, {-2, 1, 2, 3, 4, 5}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 0 (slot -2)"},
    {"base -1", false, 1, {0, 0, -1, 0, 0, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 2: base -1"},
    {"base R", false, 1, {0, 3, 0, 0, 0, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 1: base 3"},
    {"base R - 1", false, 1, {0, 2, 1, 0, 0, 0}, RSSM_OK, 0, ""},
    {"count -1", false, 2, {0, 0, 0, -1, 0, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 3: count -1"},
    {"count above L", false, 2, {0, 0, 0, 0, 0, 4}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 5: count 4"},
    {"count L - 2", false, 2, {0, 1, 1, 0, 1, 0}, RSSM_OK, 0, ""},
    {"count L - 1, no flush", false, 2, {0, 1, 1, 0, 2, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 4"},
    {"count L, no flush", false, 2, {3, 0, 0, 0, 0, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 0"},
    {"flush 2", false, 3, {0, 1, 2, 0, 0, 0}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 2"},
    {"start of another row", false, 5, {0, 1, 2, 3, 5, 4}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 4"},
    {"two tokens", false, 6, {1, 1, 1, 1, 1, 2}, RSSM_ERR_VALUE, RSSM_T_ROWS, "row 5"},
    {"indices apart", true, 0, {5, 4, 3, 2, 1, 0}, RSSM_OK, 0, ""},
    {"index twice", true, 0, {3, 4, 3, 2, 1, 0}, RSSM_ERR_VALUE, RSSM_T_STATE_INDICES, "slot 3 twice, in rows 0 and 2"},
    {"index -1 twice", true, 0, {-1, 4, -1, 2, 1, 0}, RSSM_OK, 0, ""},
    {"index beyond twice", true, 0, {9, 4, 9, 2, 1, 100}, RSSM_OK, 0, ""},
    {"index of the pad slot twice", true, 0, {8, 4, 8, 2, 1, 0}, RSSM_OK, 0, ""},
    {"write_pos -1", true, 1, {0, 0, 0, 0, -1, 0}, RSSM_ERR_VALUE, RSSM_T_WRITE_POS, "row 4: count -1"},
    {"write_pos above L", true, 1, {4, 0, 0, 0, 0, 0}, RSSM_ERR_VALUE, RSSM_T_WRITE_POS, "row 0: count 4"},
    {"write_pos L - 1", true, 1, {2, 2, 1, 0, 2, 2}, RSSM_OK, 0, ""},
};

static rssm_plugin *deep_plugin(const h_spec *spec, bool prepare)
{
    h_need_family(spec->family);
    rssm_dims dims = h_dims(spec);
    rssm_init_args args = h_init_args(spec, &dims);
    args.has_pad_slot = 1;
    args.pad_slot = 8;
    rssm_plugin *plugin = NULL;
    ck_assert_int_eq(h_api()->init(&args, &plugin, NULL), RSSM_OK);
    if (prepare)
        ck_assert_int_eq(h_api()->prepare(plugin, NULL), RSSM_OK);
    return plugin;
}

static void set_deep(h_call *call, const deep_case *c)
{
    for (int64_t b = 0; b < 6; b++)
        if (!c->host_pos)
            h_set(&call->tensors[RSSM_T_ROWS].t, b, c->column, 0, 0, (double)c->values[b]);
        else
            h_set(&call->tensors[c->column ? RSSM_T_WRITE_POS : RSSM_T_STATE_INDICES].t, b, 0, 0, 0,
                  (double)c->values[b]);
}

/* Each case with int32 and int64 arrays, compact and strided. Without the flag, values are data: accepted. */
START_TEST(test_deep)
{
    const deep_case *c = &deep_cases[_i / 4];
    h_spec spec = spec_for(h_family(RSSM_FAMILY_GDN), NULL);
    spec.host_pos = c->host_pos;
    spec.index_bits = _i & 1 ? 64 : 32;
    spec.row_gap = _i & 2 ? 3 : 0;
    rssm_plugin *plugin = deep_plugin(&spec, true);
    h_call *call = h_call_new(&spec, 29);
    set_deep(call, c);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->validate(plugin, &call->args, &err) == RSSM_OK, "%s: %s", c->name, err.message);
    call->args.flags = RSSM_CHECK_DEEP;
    if (c->status) {
        expectation want = {.status = c->status, .role = c->role, .dim = 0};
        say(&want, 0, "`%s`", h_api()->role_name(c->role));
        say(&want, 1, "%s", c->text);
        refuse(plugin, call, &want, c->name);
    } else {
        decode_well(plugin, call, c->name);
    }
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* Without state_indices row b is slot b: the pad slot's row, whatever its write_pos, is padding, and more rows than slots
 * cannot be meant. */
START_TEST(test_no_indices)
{
    h_spec spec = spec_for(h_family(RSSM_FAMILY_KDA), NULL);
    spec.host_pos = true;
    spec.B = 9;
    rssm_plugin *plugin = deep_plugin(&spec, true);
    h_call *call = h_call_new(&spec, 29);
    call->roles[RSSM_T_STATE_INDICES] = NULL;
    call->args.flags = RSSM_CHECK_DEEP;
    h_set(&call->tensors[RSSM_T_WRITE_POS].t, 8, 0, 0, 0, 1000);
    decode_well(plugin, call, "row 8 is the pad slot's");
    ck_assert(h_get(&call->tensors[RSSM_T_OUT].t, 8, 0, 0, 0) == 0);
    h_call_free(call);
    spec.B = 10;
    call = h_call_new(&spec, 29);
    call->roles[RSSM_T_STATE_INDICES] = NULL;
    expectation want = {.status = RSSM_ERR_MISSING, .role = RSSM_T_STATE_INDICES, .dim = -1};
    expect_numbers(&want, 9, 10);
    say(&want, 0, "`state_indices`");
    refuse(plugin, call, &want, "10 rows of 9 slots");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* A padding row's cursor is nobody's business, in whichever way the row is padding. */
START_TEST(test_deep_padding_cursor)
{
    static const int64_t padding[] = {-1, 8 /* the pad slot */, 9 /* no slot: in the host's indices */};
    h_spec spec = spec_for(h_family(RSSM_FAMILY_KDA), NULL);
    spec.host_pos = !(_i & 1);
    rssm_plugin *plugin = deep_plugin(&spec, true);
    h_call *call = h_call_new(&spec, 29);
    if (spec.host_pos) {
        h_set(&call->tensors[RSSM_T_STATE_INDICES].t, 2, 0, 0, 0, (double)padding[_i / 2]);
        h_set(&call->tensors[RSSM_T_WRITE_POS].t, 2, 0, 0, 0, 1000);
    } else {
        h_set(&call->tensors[RSSM_T_ROWS].t, 2, 0, 0, 0, (double)padding[_i / 2]);
        h_set(&call->tensors[RSSM_T_ROWS].t, 2, 1, 0, 0, -5);
        h_set(&call->tensors[RSSM_T_ROWS].t, 2, 2, 0, 0, 1000);
    }
    call->args.flags = RSSM_CHECK_DEEP;
    decode_well(plugin, call, "padding row with a wild cursor");
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* int64 values that would be fine when cut to 32 bits. */
START_TEST(test_deep_wide_values)
{
    h_spec spec = spec_for(h_family(RSSM_FAMILY_KDA), NULL);
    spec.host_pos = true;
    spec.index_bits = 64;
    rssm_plugin *plugin = deep_plugin(&spec, true);
    h_call *call = h_call_new(&spec, 29);
    call->args.flags = RSSM_CHECK_DEEP;
    h_set(&call->tensors[RSSM_T_STATE_INDICES].t, 0, 0, 0, 0, 4294967297.0); /* 2^32 + 1: padding, not slot 1 */
    decode_well(plugin, call, "slot 2^32 + 1");
    ck_assert(h_get(&call->tensors[RSSM_T_OUT].t, 0, 0, 0, 0) == 0);
    h_set(&call->tensors[RSSM_T_WRITE_POS].t, 1, 0, 0, 0, 4294967296.0);
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_ERR_VALUE);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

START_TEST(test_deep_needs_prepare)
{
    h_spec spec = spec_for(h_family(RSSM_FAMILY_KDA), NULL);
    rssm_plugin *plugin = deep_plugin(&spec, false);
    h_call *call = h_call_new(&spec, 29);
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_OK);
    call->args.flags = RSSM_CHECK_DEEP;
    ck_assert_int_eq(h_api()->validate(plugin, &call->args, NULL), RSSM_ERR_STATE);
    h_call_free(call);
    h_teardown(&plugin);
}
END_TEST

/* ---- step_begin ------------------------------------------------------------------------------------------------- */

/* slots, force_flush and rows_out of one call, and the pool's cursor. */
typedef struct begin_call {
    rssm_plugin *plugin;
    h_tensor slots, flush, rows;
    rssm_step_begin_args args;
    const DLTensor *cursor;
} begin_call;

enum { BEGIN_ROWS = 4, BEGIN_SLOTS = 9 };

static void begin_open(begin_call *c, int bits)
{
    h_spec spec = spec_for(h_family(RSSM_FAMILY_GDN), NULL);
    spec.num_slots = BEGIN_SLOTS;
    memset(c, 0, sizeof(*c));
    c->plugin = deep_plugin(&spec, true);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->pool_create(c->plugin, NULL, &err) == RSSM_OK, "%s", err.message);
    const DLTensor *tensors[RSSM_T_COUNT] = {0};
    ck_assert_int_eq(h_api()->pool_tensors(c->plugin, 0, tensors, RSSM_T_COUNT, NULL), RSSM_OK);
    c->cursor = tensors[RSSM_T_CURSOR];
    const int64_t shape[] = {BEGIN_ROWS, 8};
    h_tensor_make(&c->slots, h_int_type(bits), 1, shape, 0);
    h_tensor_make(&c->flush, h_int_type(bits), 1, shape, 0);
    h_tensor_make(&c->rows, h_int_type(32), 2, shape, 0);
    h_fill(&c->flush.t, 0);
    for (int64_t b = 0; b < BEGIN_ROWS; b++)
        h_set(&c->slots.t, b, 0, 0, 0, (double)(2 * b));
    c->args = (rssm_step_begin_args){
        .struct_size = sizeof(c->args), .slots = &c->slots.t, .force_flush = &c->flush.t, .rows_out = &c->rows.t};
}

static void begin_close(begin_call *c)
{
    ck_assert(h_tensor_guarded(&c->slots) && h_tensor_guarded(&c->flush) && h_tensor_guarded(&c->rows));
    h_tensor_free(&c->slots);
    h_tensor_free(&c->flush);
    h_tensor_free(&c->rows);
    h_teardown(&c->plugin);
}

/* Refused: neither the rows nor any cursor has moved. */
static void begin_refused(begin_call *c, rssm_status status, int32_t role, const char *text)
{
    int32_t cursors[BEGIN_SLOTS * 4];
    memcpy(cursors, h_at(c->cursor, 0, 0, 0, 0), sizeof(cursors));
    rssm_error err = h_error();
    rssm_status got = h_api()->step_begin(c->plugin, &c->args, &err);
    ck_assert_msg(got == status, "%s, not %s: %s", h_api()->status_name(got), h_api()->status_name(status),
                  err.message);
    ck_assert_msg(err.role == role, "role %d: %s", err.role, err.message);
    ck_assert_msg(strstr(err.message, text) != NULL, "no \"%s\": %s", text, err.message);
    for (size_t i = 0; i < c->rows.bytes; i++)
        ck_assert_msg(c->rows.block[256 + i] == 0xFF, "rows_out written");
    ck_assert_msg(memcmp(cursors, h_at(c->cursor, 0, 0, 0, 0), sizeof(cursors)) == 0, "a cursor moved");
}

START_TEST(test_begin_defects)
{
    begin_call c;
    begin_open(&c, _i ? 64 : 32);
    h_tensor *const all[] = {&c.slots, &c.flush, &c.rows};
    static const int32_t roles[] = {RSSM_T_SLOTS, RSSM_T_FORCE_FLUSH, RSSM_T_ROWS};
    static const char *const names[] = {"`slots`", "`force_flush`", "`rows`"};
    for (int i = 0; i < 3; i++) {
        DLTensor right = all[i]->t;
        DLTensor *t = &all[i]->t;
        t->dtype = h_float_type(RSSM_DTYPE_FLOAT32);
        begin_refused(&c, RSSM_ERR_DTYPE, roles[i], names[i]);
        t->dtype = (DLDataType){kDLUInt, 32, 1};
        begin_refused(&c, RSSM_ERR_DTYPE, roles[i], names[i]);
        *t = right;
        t->ndim = 3 - t->ndim;
        begin_refused(&c, RSSM_ERR_SHAPE, roles[i], names[i]);
        *t = right;
        t->device.device_type = kDLCUDA;
        begin_refused(&c, RSSM_ERR_DEVICE, roles[i], names[i]);
        *t = right;
        t->data = NULL;
        begin_refused(&c, RSSM_ERR_ARGUMENT, roles[i], names[i]);
        *t = right;
        t->byte_offset = 2;
        begin_refused(&c, RSSM_ERR_ALIGNMENT, roles[i], names[i]);
        *t = right;
        all[i]->strides[0] = -all[i]->strides[0];
        t->strides = all[i]->strides;
        begin_refused(&c, RSSM_ERR_STRIDE, roles[i], names[i]);
        all[i]->strides[0] = -all[i]->strides[0];
        *t = right;
    }
    ck_assert_int_eq(h_api()->step_begin(c.plugin, &c.args, NULL), RSSM_OK);
    begin_close(&c);
}
END_TEST

START_TEST(test_begin_arguments)
{
    begin_call c;
    begin_open(&c, 32);
    rssm_step_begin_args right = c.args;
    c.args.slots = NULL;
    begin_refused(&c, RSSM_ERR_MISSING, RSSM_T_SLOTS, "`slots`");
    c.args = right;
    c.args.rows_out = NULL;
    begin_refused(&c, RSSM_ERR_MISSING, RSSM_T_ROWS, "`rows`");
    c.args = right;
    c.args.flags = 4;
    begin_refused(&c, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "flag 0x4");
    c.args.flags = RSSM_SKIP_VALIDATE; /* of decode */
    begin_refused(&c, RSSM_ERR_ARGUMENT, RSSM_T_NONE, "flag 0x1");
    c.args = right;
    c.flush.shape[0] = BEGIN_ROWS - 1;
    begin_refused(&c, RSSM_ERR_SHAPE, RSSM_T_FORCE_FLUSH, "`force_flush` must have shape [B] = [4]; got [3]");
    c.flush.shape[0] = BEGIN_ROWS;
    c.rows.shape[0] = BEGIN_ROWS - 1;
    begin_refused(&c, RSSM_ERR_SHAPE, RSSM_T_ROWS, "`rows` must have shape [B, 8] = [4, 8]; got [3, 8]");
    c.rows.shape[0] = BEGIN_ROWS;
    c.rows.shape[1] = 7;
    begin_refused(&c, RSSM_ERR_SHAPE, RSSM_T_ROWS, "got [4, 7]");
    c.rows.shape[1] = 8;
    c.slots.t.data = c.rows.t.data;
    begin_refused(&c, RSSM_ERR_OVERLAP, RSSM_T_ROWS, "`slots`");
    c.slots.t.data = c.slots.block + 256;
    c.flush.t.data = (char *)c.rows.t.data + 112;
    begin_refused(&c, RSSM_ERR_OVERLAP, RSSM_T_ROWS, "`force_flush`");
    c.flush.t.data = c.flush.block + 256;
    DLTensor cursor = *c.cursor; /* rows_out over the pool's cursor */
    c.rows.t.data = cursor.data;
    rssm_error err = h_error();
    ck_assert_msg(h_api()->step_begin(c.plugin, &c.args, &err) == RSSM_ERR_OVERLAP, "rows_out over the cursor: %s",
                  err.message);
    c.rows.t.data = c.rows.block + 256;
    ck_assert_int_eq(h_api()->step_begin(c.plugin, &c.args, NULL), RSSM_OK);
    begin_close(&c);
}
END_TEST

START_TEST(test_begin_deep)
{
    begin_call c;
    begin_open(&c, _i ? 64 : 32);
    c.args.flags = RSSM_CHECK_DEEP;
    h_set(&c.slots.t, 3, 0, 0, 0, 2);
    begin_refused(&c, RSSM_ERR_VALUE, RSSM_T_SLOTS, "slot 2 twice, in rows 1 and 3");
    h_set(&c.slots.t, 3, 0, 0, 0, 6);
    h_set(c.cursor, 4, 1, 0, 0, 4); /* slot 4: count above L */
    begin_refused(&c, RSSM_ERR_VALUE, RSSM_T_CURSOR, "count 4");
    h_set(c.cursor, 4, 1, 0, 0, 0);
    h_set(c.cursor, 4, 0, 0, 0, -1);
    begin_refused(&c, RSSM_ERR_VALUE, RSSM_T_CURSOR, "base -1");
    h_set(c.cursor, 4, 0, 0, 0, 0);
    h_set(c.cursor, 8, 1, 0, 0, 99); /* the pad slot's cursor is nobody's */
    h_set(&c.slots.t, 0, 0, 0, 0, 8);
    h_set(&c.slots.t, 1, 0, 0, 0, -1);
    rssm_error err = h_error();
    ck_assert_msg(h_api()->step_begin(c.plugin, &c.args, &err) == RSSM_OK, "%s", err.message);
    begin_close(&c);
}
END_TEST

/* ---- suite ------------------------------------------------------------------------------------------------------ */

void validate_tests(h_suite *suite);

static void add(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 60});
}

void validate_tests(h_suite *suite)
{
    list_cases();
    list_pairs();
    if (num_cases >= MAX_CASES || num_pairs >= MAX_PAIRS) {
        fprintf(stderr, "raise MAX_CASES or MAX_PAIRS\n");
        abort();
    }
    add(suite, "each role x each defect", test_defect, num_cases);
    add(suite, "roles of other calls", test_foreign_roles, 3 * H_NUM_ROLES);
    add(suite, "short role arrays", test_short_array, 3 * RSSM_T_COUNT);
    add(suite, "overlaps", test_overlap, num_pairs * COUNT(places));
    add(suite, "inputs may share", test_inputs_share, 3);
    add(suite, "paged pools", test_paged_pool, 3);
    add(suite, "pages that wrap", test_page_wraps, 1);
    add(suite, "in the gap", test_in_the_gap, 7);
    add(suite, "named cases", test_named_case, COUNT(named_cases));
    add(suite, "g_cache not float32", test_g_cache_not_float32, 1);
    add(suite, "different devices", test_tensors_on_different_devices, 1);
    add(suite, "other GPU", test_other_gpu, 1);
    add(suite, "ring length", test_ring_length, 4);
    add(suite, "bad arguments", test_bad_args, 3 * COUNT(bad_args_cases));
    add(suite, "max_batch", test_batch_above_max, 3);
    add(suite, "mixed forms", test_mixed_form, COUNT(mixed_forms));
    add(suite, "accepted forms", test_accepted, 3 * COUNT(accepted_forms) * COUNT(accepted_specs));
    add(suite, "accepted dtypes", test_accepted_dtypes, 3 * 81);
    add(suite, "rings absent at L = 1", test_rings_absent, 3);
    add(suite, "no rows, no slots", test_empty, 12);
    add(suite, "A_log absent", test_a_log_absent, 4);
    add(suite, "Mamba-2's weights", test_mamba_weights, 1);
    add(suite, "row stride 0", test_broadcast_rows, 3);
    add(suite, "ring with draft rows", test_draft_ring, 3);
    add(suite, "deep", test_deep, 4 * COUNT(deep_cases));
    add(suite, "deep, padding rows", test_deep_padding_cursor, 5);
    add(suite, "no state_indices", test_no_indices, 1);
    add(suite, "deep, int64 values", test_deep_wide_values, 1);
    add(suite, "deep before prepare", test_deep_needs_prepare, 1);
    add(suite, "step_begin, each defect", test_begin_defects, 2);
    add(suite, "step_begin, arguments", test_begin_arguments, 1);
    add(suite, "step_begin, deep", test_begin_deep, 2);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("validate", validate_tests, true);
}
#endif
