#include "core/api_call.h"

#include <stddef.h>
#include <string.h>

#include "core/error.h"

rssm_status rssm_open_error(rssm_error *local, const rssm_error *theirs)
{
    local->struct_size = sizeof(*local);
    local->status = RSSM_OK;
    local->role = RSSM_T_NONE;
    local->dim = -1;
    local->cuda_error = 0;
    local->expected = local->got = 0;
    local->message[0] = 0;
    return theirs && theirs->struct_size < sizeof(rssm_error) ? RSSM_ERR_STRUCT_SIZE : RSSM_OK;
}

rssm_status rssm_close_error(const rssm_error *local, rssm_error *theirs, rssm_status status)
{
    if (!theirs)
        return status;
    if (theirs->struct_size < sizeof(rssm_error))
        return RSSM_ERR_STRUCT_SIZE;
    size_t used = offsetof(rssm_error, message) + strlen(local->message) + 1;
    memcpy((char *)theirs + sizeof(uint64_t), (const char *)local + sizeof(uint64_t), used - sizeof(uint64_t));
    theirs->status = status;
    return status;
}

rssm_status rssm_copy_in(void *local, const void *theirs, uint64_t known, uint64_t v1, const char *name,
                         rssm_error *err)
{
    if (!theirs)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    if (given < v1)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu is below the 1.0 size %llu (was it set?)",
                         name, (unsigned long long)given, (unsigned long long)v1);
    if (given > RSSM_MAX_STRUCT_BYTES)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu is not a size", name,
                         (unsigned long long)given);
    for (uint64_t i = known; i < given; i++)
        if (((const char *)theirs)[i])
            return rssm_fail(err, RSSM_ERR_STRUCT_SIZE,
                             "%s is of a newer minor version: byte %llu, which this plugin does not know, is not zero",
                             name, (unsigned long long)i);
    memcpy(local, theirs, given < known ? given : known);
    if (given < known)
        memset((char *)local + given, 0, known - given);
    return RSSM_OK;
}

rssm_status rssm_check_out(const void *theirs, uint64_t v1, const char *name, rssm_error *err)
{
    if (!theirs)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s is NULL", name);
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    if (given < v1 || given > RSSM_MAX_STRUCT_BYTES)
        return rssm_fail(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu; at least %llu (was it set?)", name,
                         (unsigned long long)given, (unsigned long long)v1);
    return RSSM_OK;
}

void rssm_copy_out(void *theirs, const void *local, uint64_t known)
{
    uint64_t given;
    memcpy(&given, theirs, sizeof(given));
    uint64_t bytes = given < known ? given : known;
    memcpy((char *)theirs + sizeof(uint64_t), (const char *)local + sizeof(uint64_t), bytes - sizeof(uint64_t));
    if (given > known)
        memset((char *)theirs + known, 0, given - known);
}

rssm_status rssm_check_plugin(const rssm_plugin *plugin, rssm_error *err)
{
    if (!plugin)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "plugin is NULL");
    if (plugin->magic != RSSM_PLUGIN_MAGIC)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "plugin is not a live instance (torn down?)");
    return RSSM_OK;
}

rssm_status rssm_open_call(rssm_error *local, const rssm_error *theirs, const rssm_plugin *plugin)
{
    rssm_status status = rssm_open_error(local, theirs);
    return status ? status : rssm_check_plugin(plugin, local);
}
