#include "core/validate.h"

#include <math.h>
#include <stdio.h>

#include "core/deep.h"
#include "core/error.h"

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

/* decode takes both flags; together they contradict. */
static rssm_status check_decode_flags(uint32_t flags, rssm_error *err)
{
    const uint32_t both = RSSM_SKIP_VALIDATE | RSSM_CHECK_DEEP;
    if ((flags & both) == both)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "RSSM_SKIP_VALIDATE and RSSM_CHECK_DEEP contradict each other");
    return check_flags(flags, both, err);
}

static rssm_status check_overrides(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
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
    form->packed = rssm_given(args, packed);
    form->rows = rssm_given(args, RSSM_T_ROWS);
    form->bounded = p->model.has_lower_bound || args->has_lower_bound;
    form->decay = rssm_given(args, RSSM_T_A_DECAY);
    if (form->rows && rssm_given(args, RSSM_T_WRITE_POS))
        return rssm_fail_at(err, RSSM_ERR_ROLE, (rssm_where){.role = RSSM_T_WRITE_POS, .dim = -1},
                            "`rows` and `write_pos` both say where each row stands: give one of them");
    if (!form->rows && !rssm_given(args, RSSM_T_WRITE_POS))
        return missing(RSSM_T_ROWS, ": give `rows` from step_begin, or `write_pos`", err);
    if (form->decay && rssm_given(args, RSSM_T_A_LOG))
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
        if (want > 0 && !rssm_given(args, spec->role))
            return missing(spec->role, missing_reason(spec), err);
        if (want < 0 && rssm_given(args, spec->role))
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
        const DLTensor *t = rssm_given(args, spec->role);
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
    return spec->place == RSSM_PLACE_OUTPUT || spec->place == RSSM_PLACE_STATE || spec->place == RSSM_PLACE_RING;
}

static rssm_status check_overlaps(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    const rssm_family_spec *f = p->rank.family;
    for (int32_t i = 0; i < f->num_roles; i++) {
        const DLTensor *t = is_written(&f->roles[i]) ? rssm_given(args, f->roles[i].role) : NULL;
        for (int32_t j = 0; t && j < f->num_roles; j++) {
            const DLTensor *u = rssm_given(args, f->roles[j].role);
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

rssm_status rssm_check_decode_head(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = check_decode_flags(args->flags, err);
    if (status)
        return status;
    if (args->layer < 0 || args->layer >= p->rank.num_linear)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "layer = %d is not in 0..%d (linear layers of this instance)",
                         args->layer, p->rank.num_linear - 1);
    if (!args->tensors)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "tensors is NULL");
    return RSSM_OK;
}

rssm_status rssm_check_decode(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = rssm_check_decode_head(p, args, err);
    if (status)
        return status;
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
        status = check_rows_have_slots(args, &dims, err);
    if (!status)
        status = check_layer_of_pool(p, args, err);
    if (!status)
        status = check_overlaps(p, args, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_decode_deep(p, args, &dims, err);
    return status;
}

/* ---- step_begin ------------------------------------------------------------------------------------------------- */

/* rows_out is written: it may share memory with none of the others, and with no tensor of the pool. */
static rssm_status check_rows_out_overlap(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    const char *with = NULL;
    if (rssm_tensors_overlap(args->rows_out, args->slots))
        with = "slots";
    else if (args->force_flush && rssm_tensors_overlap(args->rows_out, args->force_flush))
        with = "force_flush";
    int64_t views = (int64_t)p->rank.num_linear * p->layout.num_tensors;
    uintptr_t rows = (uintptr_t)rssm_tensor_data(args->rows_out);
    bool near = rows < p->pool_end && rows + (uintptr_t)rssm_tensor_bytes(args->rows_out) > p->pool_first;
    for (int64_t i = 0; near && !with && i < views; i++)
        if (p->views[i].tensor.data && rssm_tensors_overlap(args->rows_out, &p->views[i].tensor))
            with = p->tensors[i % p->layout.num_tensors].name;
    if (!with)
        return RSSM_OK;
    return rssm_fail_at(err, RSSM_ERR_OVERLAP, (rssm_where){.role = RSSM_T_ROWS, .dim = -1},
                        "`rows` is written and shares memory with `%s`", with);
}

rssm_status rssm_check_step_begin(const rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    rssm_status status = check_flags(args->flags, RSSM_CHECK_DEEP, err);
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
    status = check_rows_out_overlap(p, args, err);
    if (status)
        return status;
    return args->flags & RSSM_CHECK_DEEP ? rssm_check_step_begin_deep(p, args, err) : RSSM_OK;
}
