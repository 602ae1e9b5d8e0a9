/* The slot allocator of replayssm.slots/1: numbers alone, no memory of the pool. Every call is O(1).
 *
 * A handle is generation << bits | slot, with as many low bits as the largest slot number needs (at most 31). The
 * generation counts how often the slot was given out, from 1, so no handle is 0 and a stale one never matches again. It has
 * 33 bits or more (54 with 1024 slots); a slot that has used them all is retired and never given out again, rather than
 * let an old handle come back to life. */
#ifndef RSSM_CORE_SLOT_ALLOC_H_
#define RSSM_CORE_SLOT_ALLOC_H_

#include "core/plugin.h"

rssm_status rssm_slot_acquire(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *err);
rssm_status rssm_slot_release(rssm_plugin *plugin, uint64_t handle, rssm_error *err);
rssm_status rssm_slot_of_handle(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *err);
void rssm_slot_alloc_free(rssm_plugin *plugin);

#endif
