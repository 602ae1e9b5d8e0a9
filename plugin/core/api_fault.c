/* Table of replayssm.fault/1. */
#include "core/api_call.h"
#include "core/error.h"

static rssm_status fault_read(rssm_plugin *plugin, void *stream, uint32_t *word, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status && !word)
        status = rssm_fail(&err, RSSM_ERR_ARGUMENT, "word is NULL");
    if (!status && !plugin->ctx)
        status = rssm_fail(&err, RSSM_ERR_STATE, "fault read before prepare");
    return rssm_close_error(&err, theirs,
                            status ? status : plugin->backend->fault_read(plugin->ctx, stream, word, &err));
}

static rssm_status fault_clear(rssm_plugin *plugin, void *stream, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status && !plugin->ctx)
        status = rssm_fail(&err, RSSM_ERR_STATE, "fault clear before prepare");
    return rssm_close_error(&err, theirs, status ? status : plugin->backend->fault_clear(plugin->ctx, stream, &err));
}

const rssm_fault_api rssm_fault_table = {
    .struct_size = sizeof(rssm_fault_table), .read = fault_read, .clear = fault_clear};
