/* libFuzzer: a valid decode call, bent at places that the input chooses. validate says yes or names a fault and changes
 * nothing; decode never says yes where validate said no, and touches nothing but the call's own tensors: guards and gaps stay as
 * they were, and the sanitizer sees the rest. A tensor that claims more memory than it has is a lie that no plugin can see, so such a call is
 * only validated, and not in depth: that reads the indices. */
#include <string.h>

#include "bend.h"

static h_spec read_spec(reader *r)
{
    uint8_t a = byte(r), b = byte(r), c = byte(r);
    return (h_spec){.family = 1 + a % 3,
                    .L = 1 + b % 5,
                    .drafts = b / 5 % 2 && b % 5 >= 2 ? 1 : 0,
                    .io = 1 + a / 3 % 3,
                    .state = 1 + a / 9 % 3,
                    .ring = 1 + a / 27 % 3,
                    .apart = c & 1,
                    .host_pos = c & 2,
                    .bounded = c & 4 && a % 3 != 2,
                    .index_bits = c & 8 ? 64 : 32,
                    .row_gap = c & 16 ? 3 : 0,
                    .slot_gap = c & 32 ? 16 : 0};
}

/* One tensor of the call, bent at one place. */
static void bend_tensor(h_call *call, reader *r)
{
    int32_t role = byte(r) % RSSM_T_COUNT;
    h_tensor *t = &call->tensors[role];
    int dim = byte(r) % H_MAX_DIMS;
    int way = byte(r) % 12;
    switch (way) {
    case 9:
        call->roles[role] = NULL;
        break;
    case 10: /* another role's tensor */
        call->roles[role] = &call->tensors[byte(r) % RSSM_T_COUNT].t;
        break;
    case 11: /* the numbers inside */
        for (size_t i = 0; t->block && t->t.data && i < t->bytes; i++)
            ((unsigned char *)t->t.data)[i] = byte(r);
        break;
    default:
        bend_descriptor(t, dim, way, r);
    }
}

static void bend_args(h_call *call, reader *r)
{
    rssm_decode_args *a = &call->args;
    switch (byte(r) % 8) {
    case 0:
        a->layer = (int32_t)odd_number(r);
        break;
    case 1:
        a->flags = byte(r);
        break;
    case 2:
        a->num_tensors = byte(r) % H_NUM_ROLES;
        break;
    case 3:
        a->has_scale = byte(r) % 3;
        a->scale = (double)odd_number(r);
        break;
    case 4:
        a->has_lower_bound = byte(r) % 3;
        a->lower_bound = (double)(int8_t)byte(r) / 8;
        break;
    case 5:
        a->struct_size = (uint64_t)odd_number(r);
        break;
    case 6:
        call->roles[byte(r) % H_NUM_ROLES] = &call->tensors[RSSM_T_STATE].t;
        break;
    default:
        a->tensors = NULL;
    }
}

/* Is what the tensor claims inside its block, whichever block that is? */
static bool is_backed(const h_call *call, const DLTensor *t)
{
    if (t->ndim < 0 || t->ndim > H_MAX_DIMS || !t->data)
        return t->ndim >= 0;
    int64_t last = 0, inner = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] < 0 || t->shape[i] > 4096)
            return false;
        if (t->shape[i] == 0)
            return true;
        int64_t stride = t->strides ? t->strides[i] : inner;
        if (t->shape[i] > 1 && (stride < 0 || stride > 1 << 20))
            return false;
        last += (t->shape[i] - 1) * (t->shape[i] > 1 ? stride : 0);
        inner *= t->shape[i];
    }
    if (t->byte_offset > 1 << 20)
        return false;
    const char *first = (const char *)t->data + t->byte_offset;
    for (int32_t role = 0; role < RSSM_T_COUNT; role++) {
        const h_tensor *owner = &call->tensors[role];
        if (owner->block && t->data == owner->t.data)
            return first + (last + 1) * t->dtype.bits / 8 <= (const char *)owner->t.data + owner->bytes;
    }
    return false;
}

static bool all_backed(const h_call *call)
{
    for (int32_t role = 0; role < RSSM_T_COUNT; role++)
        if (call->roles[role] && !is_backed(call, call->roles[role]))
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader r = {data, data + size};
    h_spec spec = read_spec(&r);
    rssm_plugin *plugin = h_init(&spec);
    require(h_api()->prepare(plugin, NULL) == RSSM_OK);
    h_call *call = h_call_new(&spec, 1);
    while (r.at < r.end)
        if (byte(&r) % 8)
            bend_tensor(call, &r);
        else
            bend_args(call, &r);
    bool backed = all_backed(call);
    if (!backed)
        call->args.flags &= ~RSSM_CHECK_DEEP;
    h_snapshot before = h_snapshot_take(call);
    rssm_error err = h_error();
    rssm_status status = h_api()->validate(plugin, &call->args, &err);
    require(err.status == status && (status == RSSM_OK) == !err.message[0]);
    require(h_snapshot_differs(&before, call) == RSSM_T_NONE);
    bool trusted = call->args.flags & RSSM_SKIP_VALIDATE; /* then a wrong call is undefined */
    if (!trusted && backed) {
        rssm_status decoded = h_api()->decode(plugin, &call->args, &err);
        require(decoded == status || status == RSSM_OK);
        require(decoded == RSSM_OK || h_snapshot_differs(&before, call) == RSSM_T_NONE);
        require(h_call_guarded(call));
    }
    h_snapshot_free(&before);
    h_call_free(call);
    h_teardown(&plugin);
    return 0;
}
