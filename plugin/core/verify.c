#include "core/verify.h"

#include "core/decode.h"
#include "core/deep.h"
#include "core/error.h"
#include "core/validate.h"

static rssm_status need_drafts(const rssm_plugin *p, rssm_error *err)
{
    if (p->args.max_draft_tokens > 0)
        return RSSM_OK;
    return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                     "this instance has no room for drafts: set max_draft_tokens >= 1 at init");
}

static rssm_status need_pool(const rssm_plugin *p, const char *what, rssm_error *err)
{
    return p->pool.regions ? RSSM_OK : rssm_fail(err, RSSM_ERR_STATE, "%s before pool_create", what);
}

/* ---- verify_begin ----------------------------------------------------------------------------------------------- */

static rssm_status check_begin_tensors(const rssm_plugin *p, const rssm_verify_begin_args *args, rssm_error *err)
{
    rssm_dims_of dims = p->rank.dims;
    rssm_status status = RSSM_OK;
    if (!args->slots)
        status = rssm_missing(RSSM_T_SLOTS, "", err);
    else if (!args->cu_seqlens)
        status = rssm_missing(RSSM_T_CU_SEQLENS, "", err);
    else if (!args->rows_out)
        status = rssm_missing(RSSM_T_ROWS, ": rows_out is NULL", err);
    if (!status)
        status = rssm_check_list(p, RSSM_T_SLOTS, RSSM_SYM_B, args->slots, &dims, err);
    if (!status)
        status = rssm_check_batch(p, &dims, err); /* before B + 1 */
    dims.of[RSSM_SYM_B1] = status ? -1 : dims.of[RSSM_SYM_B] + 1;
    if (!status)
        status = rssm_check_list(p, RSSM_T_CU_SEQLENS, RSSM_SYM_B1, args->cu_seqlens, &dims, err);
    if (!status)
        status = rssm_check_rows(p, args->rows_out, &dims, err);
    const rssm_named_list lists[] = {{"slots", args->slots}, {"cu_seqlens", args->cu_seqlens}};
    return status ? status : rssm_check_rows_out(p, args->rows_out, lists, 2, err);
}

static rssm_status check_begin(const rssm_plugin *p, const rssm_verify_begin_args *args, rssm_error *err)
{
    rssm_status status = need_drafts(p, err);
    if (!status)
        status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = need_pool(p, "verify_begin", err);
    if (!status && (args->max_T < 1 || args->max_T > p->args.max_draft_tokens + 1))
        status = rssm_fail(err, RSSM_ERR_ARGUMENT, "max_T = %d is not in 1..%d (max_draft_tokens + 1)", args->max_T,
                           p->args.max_draft_tokens + 1);
    if (!status)
        status = check_begin_tensors(p, args, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_verify_begin_deep(p, args, err);
    return status;
}

rssm_status rssm_verify_begin_call(rssm_plugin *p, const rssm_verify_begin_args *args, rssm_error *err)
{
    rssm_status status = check_begin(p, args, err);
    if (status)
        return status;
    if (!p->backend->verify_begin)
        return rssm_no_entry(p, "verify_begin", err);
    rssm_verify_begin begin = {
        .B = (int32_t)args->slots->shape[0],
        .L = p->rank.L,
        .R = p->rank.R,
        .conv_len = p->rank.conv_len,
        .max_T = args->max_T,
        .S = p->pool.S,
        .pad_slot = p->pool.pad_slot,
        .slots = rssm_index_of(args->slots),
        .cu_seqlens = rssm_index_of(args->cu_seqlens),
        .cursor = p->pool.cursor,
        .cursor_slot = p->pool.cursor_slot,
        .rows = rssm_tensor_data(args->rows_out),
        .rows_row = rssm_tensor_stride0(args->rows_out),
        .fault = p->backend->fault_word(p->ctx),
    };
    return begin.B ? p->backend->verify_begin(p->ctx, &begin, args->stream, err) : RSSM_OK;
}

/* ---- verify ----------------------------------------------------------------------------------------------------- */

rssm_status rssm_verify_validate(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = need_drafts(p, err);
    return status ? status : rssm_check_call(p, RSSM_CALL_VERIFY, args, err);
}

rssm_status rssm_verify_call(rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = need_drafts(p, err);
    if (!status && !p->ctx)
        status = rssm_fail(err, RSSM_ERR_STATE, "verify before prepare");
    if (!status)
        status = args->flags & RSSM_SKIP_VALIDATE ? rssm_check_call_head(p, args, err)
                                                  : rssm_check_call(p, RSSM_CALL_VERIFY, args, err);
    if (status)
        return status;
    if (!p->backend->verify)
        return rssm_no_entry(p, "verify", err);
    rssm_window window = {.max_T = p->args.max_draft_tokens + 1};
    rssm_make_step(p, args, &window.step);
    window.step.B = (int32_t)rssm_given(args, RSSM_T_ROWS)->shape[0];
    window.tokens = rssm_given(args, RSSM_T_OUT)->shape[0];
    return window.step.B ? p->backend->verify(p->ctx, &window, args->stream, err) : RSSM_OK;
}

/* ---- commit ----------------------------------------------------------------------------------------------------- */

static rssm_status check_commit(const rssm_plugin *p, const rssm_commit_args *args, rssm_error *err)
{
    rssm_dims_of dims = p->rank.dims;
    rssm_status status = need_drafts(p, err);
    if (!status)
        status = rssm_check_flags(args->flags, RSSM_CHECK_DEEP, err);
    if (!status)
        status = rssm_check_reserved(args->reserved_, err);
    if (!status)
        status = need_pool(p, "commit", err);
    if (!status && !args->rows)
        status = rssm_missing(RSSM_T_ROWS, ": give `rows` from verify_begin", err);
    if (!status && !args->accepted)
        status = rssm_missing(RSSM_T_ACCEPTED, "", err);
    if (!status)
        status = rssm_check_rows(p, args->rows, &dims, err);
    if (!status)
        status = rssm_check_list(p, RSSM_T_ACCEPTED, RSSM_SYM_B, args->accepted, &dims, err);
    if (!status)
        status = rssm_check_batch(p, &dims, err);
    if (!status && args->flags & RSSM_CHECK_DEEP)
        status = rssm_check_commit_deep(p, args, err);
    return status;
}

rssm_status rssm_commit_call(rssm_plugin *p, const rssm_commit_args *args, rssm_error *err)
{
    rssm_status status = check_commit(p, args, err);
    if (status)
        return status;
    if (!p->backend->commit)
        return rssm_no_entry(p, "commit", err);
    rssm_commit commit = {
        .B = (int32_t)args->rows->shape[0],
        .L = p->rank.L,
        .R = p->rank.R,
        .conv_len = p->rank.conv_len,
        .S = p->pool.S,
        .pad_slot = p->pool.pad_slot,
        .rows = rssm_tensor_data(args->rows),
        .rows_row = rssm_tensor_stride0(args->rows),
        .accepted = rssm_index_of(args->accepted),
        .cursor = p->pool.cursor,
        .cursor_slot = p->pool.cursor_slot,
        .fault = p->backend->fault_word(p->ctx),
    };
    return commit.B ? p->backend->commit(p->ctx, &commit, args->stream, err) : RSSM_OK;
}
