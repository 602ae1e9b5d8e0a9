/* Table of replayssm.slots/1. */
#include "core/api_call.h"
#include "core/error.h"
#include "core/slot_alloc.h"
#include "core/slots.h"
#include "core/stream.h"

static rssm_status slots_import_state(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_state_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_state_args), "import_state args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_import_call(plugin, &copy, &err));
}

static rssm_status slots_export_state(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_state_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_state_args), "export_state args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_export_call(plugin, &copy, &err));
}

static rssm_status slots_copy(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_copy_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_copy_args), "copy args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_copy_call(plugin, &copy, &err));
}

static rssm_status slots_flush(rssm_plugin *plugin, const rssm_flush_args *args, rssm_error *theirs)
{
    rssm_error err;
    rssm_flush_args copy;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_copy_in(&copy, args, sizeof(copy), sizeof(rssm_flush_args), "flush args", &err);
    return rssm_close_error(&err, theirs, status ? status : rssm_flush_call(plugin, &copy, &err));
}

static rssm_status slots_saved_bytes(const rssm_plugin *plugin, uint64_t *bytes, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status && !bytes)
        status = rssm_fail(&err, RSSM_ERR_ARGUMENT, "bytes is NULL");
    if (!status) /* bytes is there. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
        *bytes = rssm_stream_bytes(plugin);
    return rssm_close_error(&err, theirs, status);
}

static rssm_status slots_save(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                              void *stream, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_save_call(plugin, slot, buffer, buffer_bytes, written, stream, &err);
    return rssm_close_error(&err, theirs, status);
}

static rssm_status slots_load(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes,
                              void *stream, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    if (!status)
        status = rssm_load_call(plugin, slot, buffer, buffer_bytes, stream, &err);
    return rssm_close_error(&err, theirs, status);
}

static rssm_status slots_acquire(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    return rssm_close_error(&err, theirs, status ? status : rssm_slot_acquire(plugin, handle, slot, &err));
}

static rssm_status slots_release(rssm_plugin *plugin, uint64_t handle, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    return rssm_close_error(&err, theirs, status ? status : rssm_slot_release(plugin, handle, &err));
}

static rssm_status slots_check(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *theirs)
{
    rssm_error err;
    rssm_status status = rssm_open_call(&err, theirs, plugin);
    return rssm_close_error(&err, theirs, status ? status : rssm_slot_of_handle(plugin, handle, slot, &err));
}

const rssm_slots_api rssm_slots_table = {.struct_size = sizeof(rssm_slots_table),
                                         .import_state = slots_import_state,
                                         .export_state = slots_export_state,
                                         .copy = slots_copy,
                                         .flush = slots_flush,
                                         .saved_bytes = slots_saved_bytes,
                                         .save = slots_save,
                                         .load = slots_load,
                                         .acquire = slots_acquire,
                                         .release = slots_release,
                                         .check = slots_check};
