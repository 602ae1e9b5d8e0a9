/* Table of replayssm.conv/1. */
#include "core/api_call.h"
#include "core/conv.h"

static rssm_status open_args(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_decode_args *copy,
                             rssm_error *err, const rssm_error *theirs)
{
    rssm_status status = rssm_open_call(err, theirs, plugin);
    return status ? status : rssm_copy_in(copy, args, sizeof(*copy), sizeof(rssm_decode_args), "conv args", err);
}

static rssm_status conv_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = open_args(plugin, args, &copy, &err, theirs);
    return rssm_close_error(&err, theirs, status ? status : rssm_conv_validate(plugin, &copy, &err));
}

static rssm_status conv(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = open_args(plugin, args, &copy, &err, theirs);
    return rssm_close_error(&err, theirs, status ? status : rssm_conv_call(plugin, false, &copy, &err));
}

static rssm_status conv_verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = open_args(plugin, args, &copy, &err, theirs);
    return rssm_close_error(&err, theirs, status ? status : rssm_conv_call(plugin, true, &copy, &err));
}

const rssm_conv_api rssm_conv_table = {
    .struct_size = sizeof(rssm_conv_table), .validate = conv_validate, .conv = conv, .conv_verify = conv_verify};
