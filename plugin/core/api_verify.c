/* Table of replayssm.verify/1. */
#include "core/api_call.h"
#include "core/verify.h"

static rssm_status verify_begin(rssm_plugin *plugin, const rssm_verify_begin_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_verify_begin_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_verify_begin_args), "verify_begin args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_verify_begin_call(plugin, &copy, &err));
}

static rssm_status verify_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "verify args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_verify_validate(plugin, &copy, &err));
}

static rssm_status verify(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_decode_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_decode_args), "verify args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_verify_call(plugin, &copy, &err));
}

static rssm_status commit(rssm_plugin *plugin, const rssm_commit_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_commit_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_commit_args), "commit args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_commit_call(plugin, &copy, &err));
}

const rssm_verify_api rssm_verify_table = {.struct_size = sizeof(rssm_verify_table),
                                           .verify_begin = verify_begin,
                                           .validate = verify_validate,
                                           .verify = verify,
                                           .commit = commit};
