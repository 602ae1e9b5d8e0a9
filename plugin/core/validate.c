#include "core/validate.h"

#include <math.h>
#include <stdio.h>

#include "core/deep.h"
#include "core/error.h"

rssm_status rssm_missing(int32_t role, const char *why, rssm_error *err)
{
    return rssm_fail_at(err, RSSM_ERR_MISSING, (rssm_where){.role = role, .dim = -1}, "`%s` is missing%s",
                        rssm_role_name(role), why);
}

rssm_status rssm_check_flags(uint32_t flags, uint32_t known, rssm_error *err)
{
    if (flags & ~known)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "unknown flag 0x%x", flags & ~known);
    return RSSM_OK;
}

/* What a later minor may give a meaning to. */
rssm_status rssm_check_reserved(uint64_t reserved, rssm_error *err)
{
    return reserved ? rssm_fail(err, RSSM_ERR_ARGUMENT, "a reserved field is %llu, not 0", (unsigned long long)reserved)
                    : RSSM_OK;
}

/* decode takes both flags; together they contradict. */
static rssm_status check_decode_flags(uint32_t flags, rssm_error *err)
{
    const uint32_t both = RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP;
    if ((flags & both) == both)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "RSSM_SKIP_VALIDATE and RSSM_CHECK_DEEP contradict each other");
    return rssm_check_flags(flags, both, err);
}

static const char *call_name(rssm_call call)
{
    return call == RSSM_CALL_DECODE ? "decode" : call == RSSM_CALL_VERIFY ? "verify" : "convolution";
}

static bool is_conv(rssm_call call)
{
    return call == RSSM_CALL_CONV || call == RSSM_CALL_CONV_VERIFY;
}

/* Rows of more tokens than one? */
static bool has_windows(rssm_call call)
{
    return call == RSSM_CALL_VERIFY || call == RSSM_CALL_CONV_VERIFY;
}

static rssm_status check_overrides(const rssm_plugin *p, rssm_call call, const rssm_decode_args *args, rssm_error *err)
{
    if (is_conv(call) && (args->has_scale || args->has_lower_bound))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "a convolution has no scale and no lower_bound to override");
    if ((args->has_scale | args->has_lower_bound) & ~1)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "has_scale = %d and has_lower_bound = %d must be 0 or 1",
                         args->has_scale, args->has_lower_bound);
    if (p->model.family == RSSM_FAMILY_MAMBA2 && (args->has_scale || args->has_lower_bound))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "Mamba-2 has no scale and no lower_bound to override");
    if (args->has_scale && (!isfinite((float)args->scale) || (float)args->scale == 0))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "scale = %g is not a finite float32 other than 0", args->scale);
    if (args->has_lower_bound && !(args->lower_bound < 0 && isfinite((float)args->lower_bound)))
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "lower_bound = %g is not a finite float32 below 0", args->lower_bound);
    return RSSM_OK;
}

/* A call of decode's arguments while it is looked at. */
typedef struct call_view {
    const rssm_plugin *p;
    const rssm_decode_args *args;
    const rssm_call_table *table;
    rssm_call call;
    bool packed, rows, bounded, decay, ring; /* which of the alternatives it uses; ring: any of it is there */
    rssm_dims_of dims;
    int32_t num_given;
    const DLTensor *given[RSSM_MAX_CALL_ROLES]; /* by line of the table; NULL: absent */
    int32_t lines[RSSM_MAX_CALL_ROLES];         /* [num_given] of the tensors that are there, ... */
    rssm_span spans[RSSM_MAX_CALL_ROLES];       /* ... and where they lie */
} call_view;

static rssm_status fail_role(const call_view *v, uint32_t role, rssm_error *err)
{
    rssm_where where = {.role = (int32_t)role, .dim = -1};
    if (role == RSSM_T_NONE || role >= RSSM_T_COUNT)
        return rssm_fail_at(err, RSSM_ERR_ROLE, where, "tensor role %u is unknown to this plugin (it knows 1..%d)",
                            role, RSSM_T_COUNT - 1);
    return rssm_fail_at(err, RSSM_ERR_ROLE, where, "`%s` is not a tensor of a %s %s", rssm_role_name((int32_t)role),
                        v->p->rank.family->name, call_name(v->call));
}

/* Roles that nobody knows, or that this family's call does not take. What pool_tensors gives may always be there. */
static rssm_status check_roles(const call_view *v, rssm_error *err)
{
    for (uint32_t role = 0; role < v->args->num_tensors; role++)
        if (v->args->tensors[role] && (role >= RSSM_T_COUNT || !(v->table->accepted >> role & 1)))
            return fail_role(v, role, err);
    return RSSM_OK;
}

static rssm_status find_form(call_view *v, rssm_error *err)
{
    const rssm_decode_args *args = v->args;
    bool mamba = v->p->model.family == RSSM_FAMILY_MAMBA2;
    v->packed = rssm_given(args, mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV);
    v->rows = rssm_given(args, RSSM_T_ROWS);
    v->bounded = v->p->model.has_lower_bound || args->has_lower_bound;
    v->decay = rssm_given(args, RSSM_T_A_DECAY);
    v->ring = false;
    for (int32_t i = 0; i < v->table->num_roles; i++) {
        v->given[i] = rssm_given(args, v->table->roles[i].role);
        v->ring |= v->given[i] && v->table->roles[i].need == RSSM_NEED_RING;
    }
    if (v->rows && rssm_given(args, RSSM_T_WRITE_POS))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_WRITE_POS, .dim = -1},
                            "`rows` and `write_pos` both say where each row stands: give one of them");
    if (!v->rows && v->call != RSSM_CALL_DECODE)
        return rssm_missing(RSSM_T_ROWS,
                            has_windows(v->call) ? ": give `rows` from verify_begin" : ": give `rows` from step_begin",
                            err);
    if (!v->rows && !rssm_given(args, RSSM_T_WRITE_POS))
        return rssm_missing(RSSM_T_ROWS, ": give `rows` from step_begin, or `write_pos`", err);
    if (v->decay && rssm_given(args, RSSM_T_A_LOG))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_A_DECAY, .dim = -1},
                            "`A` and `A_log` are the same weight: give one of them");
    return RSSM_OK;
}

/* Is the role to be there (1), absent (-1), or as the caller likes (0)? */
static int wanted(const call_view *v, const rssm_role_spec *spec)
{
    switch ((rssm_need)spec->need) {
    case RSSM_NEED_ALWAYS:
        return 1;
    case RSSM_NEED_PACKED:
        return v->packed ? 1 : -1;
    case RSSM_NEED_APART:
        return v->packed ? -1 : 1;
    case RSSM_NEED_RING:
        return v->p->rank.R > 1 || v->ring ? 1 : 0;
    case RSSM_NEED_ROWS:
        return v->rows ? 1 : -1;
    case RSSM_NEED_HOST_POS:
        return v->rows ? -1 : 1;
    case RSSM_NEED_WITH_POS:
        return v->rows ? -1 : 0;
    case RSSM_NEED_A_LOG:
        return v->p->model.family == RSSM_FAMILY_MAMBA2 ? (v->decay ? -1 : 1) : v->bounded ? 0 : 1;
    case RSSM_NEED_A_DECAY:
        return v->decay ? 1 : -1;
    default:
        return 0;
    }
}

static const char *missing_reason(const call_view *v, const rssm_role_spec *spec)
{
    switch ((rssm_need)spec->need) {
    case RSSM_NEED_APART:
        return ": give the packed input, or all inputs apart";
    case RSSM_NEED_A_LOG:
        return ": without a lower bound the gate needs it";
    case RSSM_NEED_RING:
        return v->p->rank.R > 1 ? ": a ring length above 1 needs it" : ": give the whole ring, or none of it";
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

static rssm_status check_present(const call_view *v, rssm_error *err)
{
    for (int32_t i = 0; i < v->table->num_roles; i++) {
        const rssm_role_spec *spec = &v->table->roles[i];
        int want = wanted(v, spec);
        if (want > 0 && !v->given[i])
            return rssm_missing(spec->role, missing_reason(v, spec), err);
        if (want < 0 && v->given[i])
            return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = spec->role, .dim = -1},
                                "`%s` must be absent: %s", rssm_role_name(spec->role), extra_reason(spec));
    }
    return RSSM_OK;
}

rssm_status rssm_check_batch(const rssm_plugin *p, const rssm_dims_of *dims, rssm_error *err)
{
    if (dims->of[RSSM_SYM_B] > p->args.max_batch)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "a batch of %lld rows is above max_batch = %d",
                         (long long)dims->of[RSSM_SYM_B], p->args.max_batch);
    return RSSM_OK;
}

static rssm_status check_counts(const rssm_plugin *p, rssm_call call, const rssm_dims_of *dims, rssm_error *err)
{
    int64_t S = dims->of[RSSM_SYM_S], T = dims->of[RSSM_SYM_T];
    int64_t most = (int64_t)p->args.max_batch * (p->args.max_draft_tokens + 1);
    rssm_status status = rssm_check_batch(p, dims, err);
    if (status)
        return status;
    if (has_windows(call) && T > most)
        return rssm_fail(err, RSSM_ERR_ARGUMENT,
                         "%lld tokens are above %lld = max_batch %d x %d tokens of a window (max_draft_tokens + 1)",
                         (long long)T, (long long)most, p->args.max_batch, p->args.max_draft_tokens + 1);
    int32_t role = is_conv(call) ? RSSM_T_CONV : RSSM_T_STATE;
    if (S > INT32_MAX)
        return rssm_fail_at(err, RSSM_ERR_SHAPE, (rssm_where){.role = role, .expected = INT32_MAX, .got = S},
                            "`%s` has %lld slots; at most 2^31 - 1", rssm_role_name(role), (long long)S);
    return RSSM_OK;
}

/* `state` binds the slots before the rings are looked at; inputs come first in the table and bind B, or the tokens. */
static rssm_status check_tensors(call_view *v, rssm_error *err)
{
    for (int32_t i = 0; i < v->table->num_roles; i++) {
        if (!v->given[i])
            continue;
        rssm_span *span = &v->spans[v->num_given];
        rssm_status status = rssm_check_tensor_at(v->p, &v->table->roles[i], v->given[i], &v->dims, span, err);
        if (status)
            return status;
        v->lines[v->num_given++] = i;
    }
    return check_counts(v->p, v->call, &v->dims, err);
}

/* Without state_indices row b uses slot b. */
static rssm_status check_rows_have_slots(const rssm_decode_args *args, const rssm_dims_of *dims, rssm_error *err)
{
    int64_t B = dims->of[RSSM_SYM_B], S = dims->of[RSSM_SYM_S];
    if (B <= S || rssm_given(args, RSSM_T_ROWS) || rssm_given(args, RSSM_T_STATE_INDICES))
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_MISSING,
                        (rssm_where){.role = RSSM_T_STATE_INDICES, .dim = -1, .expected = S, .got = B},
                        "`state_indices` is missing: without it row b uses slot b, and %lld rows do not fit %lld slots",
                        (long long)B, (long long)S);
}

/* The right layer's tensors? Only the pool's own addresses can tell. */
static rssm_status check_layer_of_pool(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    for (int32_t i = 0; p->views && i < p->layout.num_tensors; i++) {
        int32_t role = p->tensors[i].role;
        const DLTensor *t = p->tensors[i].per_layer ? rssm_given(args, role) : NULL;
        void *data = t ? rssm_tensor_data(t) : NULL;
        if (!data || data == p->views[(int64_t)args->layer * p->layout.num_tensors + i].tensor.data)
            continue;
        for (int32_t layer = 0; layer < p->rank.num_linear; layer++)
            if (data == p->views[(int64_t)layer * p->layout.num_tensors + i].tensor.data)
                return rssm_fail_at(err, RSSM_ERR_ARGUMENT,
                                    (rssm_where){.role = role, .dim = -1, .expected = args->layer, .got = layer},
                                    "`%s` is the pool's tensor of layer %d; this call is for layer %d",
                                    rssm_role_name(role), layer, args->layer);
    }
    return RSSM_OK;
}

static bool is_written(const rssm_role_spec *spec)
{
    return spec->place == RSSM_PLACE_OUTPUT || spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING ||
           spec->place == RSSM_PLACE_CONV;
}

static rssm_status check_overlap(const call_view *v, int32_t written, int32_t other, rssm_error *err)
{
    const rssm_role_spec *roles = v->table->roles;
    if (!rssm_tensors_overlap(v->given[written], v->given[other]))
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_OVERLAP,
                        (rssm_where){.role = roles[written].role, .dim = -1, .expected = roles[other].role},
                        "`%s` is written and shares memory with `%s`", rssm_role_name(roles[written].role),
                        rssm_role_name(roles[other].role));
}

/* The i-th given tensor is written: exactly, where its span meets another's. */
static rssm_status check_meetings(const call_view *v, int32_t i, rssm_error *err)
{
    rssm_span mine = v->spans[i];
    for (int32_t j = 0; j < v->num_given; j++) {
        bool meet = mine.first < v->spans[j].end && v->spans[j].first < mine.end;
        bool seen = j < i && is_written(&v->table->roles[v->lines[j]]); /* the pair was looked at */
        rssm_status status = meet && j != i && !seen ? check_overlap(v, v->lines[i], v->lines[j], err) : RSSM_OK;
        if (status)
            return status;
    }
    return RSSM_OK;
}

/* Almost always a written tensor's span meets none but itself: that is seen without a branch. */
static rssm_status check_overlaps(const call_view *v, rssm_error *err)
{
    rssm_status status = RSSM_OK;
    for (int32_t i = 0; !status && i < v->num_given; i++) {
        if (!is_written(&v->table->roles[v->lines[i]]))
            continue;
        rssm_span mine = v->spans[i];
        int32_t meetings = 0;
        for (int32_t j = 0; j < v->num_given; j++)
            meetings += (mine.first < v->spans[j].end) & (v->spans[j].first < mine.end);
        if (meetings > 1)
            status = check_meetings(v, i, err);
    }
    return status;
}

rssm_status rssm_check_call_head(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = check_decode_flags(args->flags, err);
    if (!status)
        status = rssm_check_reserved((uint32_t)args->reserved_, err);
    if (status)
        return status;
    if (args->layer < 0 || args->layer >= p->rank.num_linear)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d (linear layers of this instance)",
                         args->layer, p->rank.num_linear - 1);
    if (!args->tensors)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "tensors is NULL");
    return RSSM_OK;
}

rssm_status rssm_check_call(const rssm_plugin *p, rssm_call call, const rssm_decode_args *args, rssm_error *err)
{
    call_view v; /* its arrays are filled as far as they are read */
    v.p = p;
    v.args = args;
    v.table = &p->calls[__builtin_ctz(call)];
    v.call = call;
    v.dims = p->rank.dims;
    v.num_given = 0;
    rssm_status status = rssm_check_call_head(p, args, err);
    if (!status)
        status = check_overrides(p, call, args, err);
    if (!status)
        status = check_roles(&v, err);
    if (!status)
        status = find_form(&v, err);
    if (!status)
        status = check_present(&v, err);
    if (!status)
        status = check_tensors(&v, err);
    if (!status && call == RSSM_CALL_DECODE)
        status = check_rows_have_slots(args, &v.dims, err);
    if (!status)
        status = check_layer_of_pool(p, args, err);
    if (!status)
        status = check_overlaps(&v, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_call_deep(p, call, args, &v.dims, err);
    return status;
}

/* ---- step_begin, and what other calls share with it ------------------------------------------------------------- */

const char *rssm_pool_overlap(const rssm_plugin *p, const DLTensor *t)
{
    int64_t views = (int64_t)p->rank.num_linear * p->layout.num_tensors;
    uintptr_t first = (uintptr_t)rssm_tensor_data(t);
    bool near = first < p->pool_end && first + (uintptr_t)rssm_tensor_bytes(t) > p->pool_first;
    for (int64_t i = 0; near && i < views; i++)
        if (p->views[i].tensor.data && rssm_tensors_overlap(t, &p->views[i].tensor))
            return p->tensors[i % p->layout.num_tensors].name;
    return NULL;
}

rssm_status rssm_check_rows(const rssm_plugin *p, const DLTensor *rows, rssm_dims_of *dims, rssm_error *err)
{
    return rssm_check_tensor(p, rssm_family_role(p->rank.family, RSSM_T_ROWS), rows, dims, err);
}

rssm_status rssm_check_rows_out(const rssm_plugin *p, const DLTensor *rows_out, const rssm_named_list *lists,
                                int32_t count, rssm_error *err)
{
    const char *with = rssm_pool_overlap(p, rows_out);
    for (int32_t i = 0; i < count; i++)
        if (lists[i].tensor && rssm_tensors_overlap(rows_out, lists[i].tensor))
            with = lists[i].name;
    if (!with)
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_OVERLAP, (rssm_where){.role = RSSM_T_ROWS, .dim = -1},
                        "`rows` is written and shares memory with `%s`", with);
}

rssm_status rssm_check_step_begin(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    rssm_status status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = rssm_check_reserved((uint32_t)args->reserved_, err);
    if (!status && !p->pool.regions)
        status = rssm_fail(err, RSSM_ERR_STATE, "step_begin before pool_create");
    if (!status && !args->slots)
        status = rssm_missing(RSSM_T_SLOTS, "", err);
    if (!status && !args->rows_out)
        status = rssm_missing(RSSM_T_ROWS, ": rows_out is NULL", err);
    rssm_dims_of dims = p->rank.dims;
    if (!status)
        status = rssm_check_list(p, RSSM_T_SLOTS, RSSM_SYM_B, args->slots, &dims, err);
    if (!status && args->force_flush)
        status = rssm_check_list(p, RSSM_T_FORCE_FLUSH, RSSM_SYM_B, args->force_flush, &dims, err);
    if (!status)
        status = rssm_check_rows(p, args->rows_out, &dims, err);
    if (!status)
        status = rssm_check_batch(p, &dims, err);
    if (status)
        return status;
    const rssm_named_list lists[] = {{"slots", args->slots}, {"force_flush", args->force_flush}};
    status = rssm_check_rows_out(p, args->rows_out, lists, 2, err);
    if (status)
        return status;
    return args->flags & RSSM_CHECK_DEEP ? rssm_check_step_begin_deep(p, args, err) : RSSM_OK;
}
