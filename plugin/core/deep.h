/* RSSM_CHECK_DEEP: the values of index arrays, which are data on the device and otherwise not looked at. May synchronise
 * and allocate; for bringing up a host, and for tests. */
#ifndef RSSM_CORE_DEEP_H_
#define RSSM_CORE_DEEP_H_

#include "core/plugin.h"

/* A decode call whose tensors are valid: duplicate slots, cursors out of range, rows that step_begin did not write.
 * dims has the call's B and S. */
rssm_status rssm_check_decode_deep(const rssm_plugin *plugin, const rssm_decode_args *args, const rssm_dims_of *dims,
                                   rssm_error *err);

/* step_begin: duplicate slots, bad cursors in the pool. */
rssm_status rssm_check_step_begin_deep(const rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

#endif
