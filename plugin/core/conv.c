#include "core/conv.h"

#include "core/decode.h"
#include "core/error.h"
#include "core/validate.h"

static rssm_status need_history(const rssm_plugin *p, bool windows, rssm_error *err)
{
    if (p->rank.conv_len == 0)
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                         "the pool holds no convolution history: set RSSM_INIT_CONV_STATE at init");
    if (windows && p->args.max_draft_tokens == 0)
        return rssm_fail(err, RSSM_ERR_UNSUPPORTED,
                         "this instance has no room for drafts: set max_draft_tokens >= 1 at init");
    return RSSM_OK;
}

/* A plain step's arguments are those of windows of one token each. */
rssm_status rssm_conv_validate(const rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = need_history(p, false, err);
    rssm_call call = p->args.max_draft_tokens > 0 ? RSSM_CALL_CONV_VERIFY : RSSM_CALL_CONV;
    return status ? status : rssm_check_call(p, call, args, err);
}

static rssm_convolution make_convolution(const rssm_plugin *p, bool windows, const rssm_decode_args *args)
{
    const DLTensor *rows = rssm_given(args, RSSM_T_ROWS), *out = rssm_given(args, RSSM_T_CONV_OUT);
    const DLTensor *conv = rssm_given(args, RSSM_T_CONV);
    return (rssm_convolution){
        .B = (int32_t)rows->shape[0],
        .channels = p->rank.conv_channels,
        .width = p->model.conv_kernel,
        .conv_len = p->rank.conv_len,
        .S = conv->shape[0],
        .pad_slot = p->args.has_pad_slot ? p->args.pad_slot : -1,
        .tokens = out->shape[0],
        .in = rssm_input_of(rssm_given(args, RSSM_T_CONV_IN)),
        .weight = rssm_input_of(rssm_given(args, RSSM_T_CONV_WEIGHT)),
        .bias = rssm_input_of(rssm_given(args, RSSM_T_CONV_BIAS)),
        .out = rssm_tensor_data(out),
        .out_row = rssm_tensor_stride0(out),
        .conv = rssm_pooled_of(conv, p->rank.io_dtype),
        .rows = rssm_tensor_data(rows),
        .rows_row = rssm_tensor_stride0(rows),
        .fault = p->backend->fault_word(p->ctx),
        .max_T = windows ? p->args.max_draft_tokens + 1 : 1,
    };
}

rssm_status rssm_conv_call(rssm_plugin *p, bool windows, const rssm_decode_args *args, rssm_error *err)
{
    rssm_status status = need_history(p, windows, err);
    if (!status && !p->ctx)
        status = rssm_fail(err, RSSM_ERR_STATE, "%s before prepare", windows ? "conv_verify" : "conv");
    if (!status)
        status = args->flags & RSSM_SKIP_VALIDATE
                     ? rssm_check_call_head(p, args, err)
                     : rssm_check_call(p, windows ? RSSM_CALL_CONV_VERIFY : RSSM_CALL_CONV, args, err);
    if (status)
        return status;
    if (!p->backend->conv)
        return rssm_no_entry(p, "conv", err);
    rssm_convolution conv = make_convolution(p, windows, args);
    return conv.B ? p->backend->conv(p->ctx, &conv, args->stream, err) : RSSM_OK;
}
