/* libFuzzer: a valid call of slots, verify or conv, bent at places that the input chooses: its struct, its tensors, the numbers
 * in them. The call says yes, or names a fault and changes nothing; whatever it says, no byte changes outside the pool and
 * the call's own tensors, and the sanitizer sees the rest. A tensor that claims more memory than it has is a lie that no
 * plugin can see, so such a call is made only where it must be refused for what it claims (validate). */
#include <string.h>

#include "../unit/ext_case.h"
#include "bend.h"

/* What ext_case.c and Check's assertions in it call: no test is running here. */
void h_skip(const char *why)
{
    (void)why;
    abort();
}

void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...)
{
    (void)file, (void)line, (void)expr, (void)msg;
    abort();
}

void _mark_point(const char *file, int line)
{
    (void)file, (void)line;
}

/* The n-th tensor of the call, round and round. */
static ec_tensor *pick(ec_case *c, ec_call call, uint8_t n)
{
    int count = 0;
    for (int i = 0; i < c->num_tensors; i++)
        count += c->tensors[i].calls >> call & 1;
    for (int i = 0, at = n % (count ? count : 1); i < c->num_tensors; i++)
        if (c->tensors[i].calls >> call & 1 && at-- == 0)
            return &c->tensors[i];
    return NULL;
}

static void bend_tensor(ec_case *c, ec_call call, reader *r)
{
    ec_tensor *tensor = pick(c, call, byte(r));
    if (!tensor)
        return;
    h_tensor *t = &tensor->h;
    const DLTensor **where = ec_where(c, call, tensor);
    int dim = byte(r) % H_MAX_DIMS;
    int way = byte(r) % 12;
    if (way < DESCRIPTOR_WAYS)
        bend_descriptor(t, dim, way, r);
    else if (way == DESCRIPTOR_WAYS) {
        if (where)
            *where = NULL;
    } else /* the numbers inside */
        for (size_t i = byte(r); i < t->bytes && r->at < r->end; i += 1 + byte(r) % 4)
            ((unsigned char *)tensor->data)[i] = byte(r);
}

/* Fields of the argument structs that are no pointers. */
typedef struct field {
    uint32_t calls; /* set of 1 << ec_call */
    size_t offset, bytes;
} field;

#define BIT(call) (1u << (call))
#define FIELD(calls_, type, name)                               \
    {                                                           \
        calls_, offsetof(type, name), sizeof(((type *)0)->name) \
    }
enum {
    DECODES = BIT(EC_VERIFY) | BIT(EC_VALIDATE_VERIFY) | BIT(EC_CONV) | BIT(EC_CONV_VERIFY) | BIT(EC_VALIDATE_CONV),
    STATES = BIT(EC_IMPORT) | BIT(EC_EXPORT)
};
static const field fields[] = {
    FIELD(BIT(EC_VERIFY_BEGIN), rssm_verify_begin_args, max_T),
    FIELD(BIT(EC_VERIFY_BEGIN), rssm_verify_begin_args, flags),
    FIELD(DECODES, rssm_decode_args, num_tensors),
    FIELD(DECODES, rssm_decode_args, layer),
    FIELD(DECODES, rssm_decode_args, flags),
    FIELD(DECODES, rssm_decode_args, has_scale),
    FIELD(DECODES, rssm_decode_args, scale),
    FIELD(DECODES, rssm_decode_args, has_lower_bound),
    FIELD(DECODES, rssm_decode_args, lower_bound),
    FIELD(BIT(EC_COMMIT), rssm_commit_args, flags),
    FIELD(BIT(EC_COMMIT), rssm_commit_args, reserved_),
    FIELD(STATES, rssm_state_args, num_layers),
    FIELD(STATES, rssm_state_args, order),
    FIELD(STATES, rssm_state_args, flags),
    FIELD(STATES, rssm_state_args, reserved_),
    FIELD(BIT(EC_FLUSH), rssm_flush_args, num_layers),
    FIELD(BIT(EC_FLUSH), rssm_flush_args, flags),
    FIELD(BIT(EC_COPY), rssm_copy_args, flags),
    FIELD(BIT(EC_COPY), rssm_copy_args, reserved_),
};

static void bend_args(ec_case *c, ec_call call, reader *r)
{
    uint64_t bytes;
    unsigned char *args = ec_args(c, call, &bytes);
    const field *f = &fields[byte(r) % (sizeof(fields) / sizeof(fields[0]))];
    int64_t number = odd_number(r);
    if (f->calls & BIT(call)) {
        memcpy(args + f->offset, &number, f->bytes);
        return;
    }
    uint64_t struct_size = (uint64_t)number; /* no more than we have: what lies behind is no struct */
    if (struct_size > bytes)
        struct_size = byte(r) % (bytes + 1);
    memcpy(args, &struct_size, sizeof(struct_size));
}

/* Counts that say how long the caller's own arrays are cannot be checked by anyone. */
static void keep_counts(ec_case *c, ec_call call)
{
    uint64_t bytes;
    void *args = ec_args(c, call, &bytes);
    rssm_decode_args *decode = args;
    if ((DECODES & BIT(call)) && decode->num_tensors > RSSM_T_COUNT)
        decode->num_tensors = RSSM_T_COUNT;
}

static bool skips_validation(ec_case *c, ec_call call)
{
    uint64_t bytes;
    const rssm_decode_args *decode = ec_args(c, call, &bytes);
    return (DECODES & BIT(call)) && (decode->flags & RSSM_SKIP_VALIDATE);
}

static ec_call only_validating(ec_call call)
{
    return call == EC_VERIFY ? EC_VALIDATE_VERIFY : call == EC_CONV_VERIFY ? EC_VALIDATE_CONV : EC_CALLS;
}

/* Is what the tensor claims inside its block? */
static bool is_backed(const h_tensor *owner)
{
    const DLTensor *t = &owner->t;
    if (t->ndim < 0 || t->ndim > H_MAX_DIMS || !t->data)
        return t->ndim >= 0;
    int64_t last = 0;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] < 0 || t->shape[i] > 4096)
            return false;
        if (t->shape[i] == 0)
            return true;
        if (t->shape[i] > 1 && (t->strides[i] < 0 || t->strides[i] > 1 << 20))
            return false;
        last += (t->shape[i] - 1) * (t->shape[i] > 1 ? t->strides[i] : 0);
    }
    if (t->byte_offset > 1 << 20)
        return false;
    return t->byte_offset + (uint64_t)(last + 1) * t->dtype.bits / 8 <= owner->bytes;
}

static bool all_backed(const ec_case *c, ec_call call)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].calls & BIT(call) && !is_backed(&c->tensors[i].h))
            return false;
    return true;
}

/* Guard bytes of every tensor. */
static bool guarded(const ec_case *c)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (!h_tensor_guarded(&c->tensors[i].h))
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader r = {data, data + size};
    uint8_t first = byte(&r);
    ec_call call = (ec_call)(byte(&r) % EC_CALLS);
    ec_case *c = ec_new(1 + first % 3, first & 128 ? RSSM_STATE_KV : RSSM_STATE_VK);
    for (int n = 0; n < 8 && r.at < r.end; n++)
        if (byte(&r) % 4)
            bend_tensor(c, call, &r);
        else
            bend_args(c, call, &r);
    keep_counts(c, call);
    ec_remember(c);
    rssm_error err = h_error();
    if (!all_backed(c, call))
        call = only_validating(call);
    if (call != EC_CALLS && !skips_validation(c, call)) {
        rssm_status status = ec_run(c, call, &err);
        require(err.status == status && (status == RSSM_OK) == !err.message[0]);
        require(status == RSSM_OK || !ec_changed(c));
        require(call != EC_VALIDATE_CONV && call != EC_VALIDATE_VERIFY ? true : !ec_changed(c));
        require(guarded(c));
    }
    ec_free(c);
    return 0;
}
