/* replayssm.slots/1: slot operations over all layers. The allocator is in slot_alloc.h, the bytes of a saved slot in
 * stream.h. */
#ifndef RSSM_CORE_SLOTS_H_
#define RSSM_CORE_SLOTS_H_

#include "core/plugin.h"

/* What the operations need per layer, allocated with the pool so that they allocate nothing; NULL when memory fails. */
rssm_slot_scratch *rssm_slot_scratch_make(rssm_arena *arena, int32_t num_layers);

rssm_status rssm_import_call(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
rssm_status rssm_export_call(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
rssm_status rssm_copy_call(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err);
rssm_status rssm_flush_call(rssm_plugin *plugin, const rssm_flush_args *args, rssm_error *err);

/* One slot to and from host memory. */
rssm_status rssm_save_call(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                           void *stream, rssm_error *err);
rssm_status rssm_load_call(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes, void *stream,
                           rssm_error *err);

#endif
