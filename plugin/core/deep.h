/* RSSM_CHECK_DEEP: the values of index arrays, which are data on the device and otherwise not looked at. May synchronise
 * and allocate; for bringing up a host, and for tests. */
#ifndef RSSM_CORE_DEEP_H_
#define RSSM_CORE_DEEP_H_

#include "core/plugin.h"

/* A call of decode's arguments whose tensors are valid: duplicate slots, cursors out of range, rows that step_begin or
 * verify_begin did not write. dims has the call's B, T and S. */
rssm_status rssm_check_call_deep(const rssm_plugin *plugin, rssm_call call, const rssm_decode_args *args,
                                 const rssm_dims_of *dims, rssm_error *err);

/* step_begin: duplicate slots, bad cursors in the pool. */
rssm_status rssm_check_step_begin_deep(const rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

/* The same, and cu_seqlens. */
rssm_status rssm_check_verify_begin_deep(const rssm_plugin *plugin, const rssm_verify_begin_args *args,
                                         rssm_error *err);

/* Rows of verify_begin, accepted counts, and cursors that are still where verify_begin left them. */
rssm_status rssm_check_commit_deep(const rssm_plugin *plugin, const rssm_commit_args *args, rssm_error *err);

/* Slots that an operation writes (unique) or reads with their cursors. */
typedef struct rssm_slot_list {
    const DLTensor *tensor;
    int32_t role;
    bool unique, cursors;
} rssm_slot_list;
rssm_status rssm_check_slots_deep(const rssm_plugin *plugin, const rssm_slot_list *list, void *stream, rssm_error *err);

/* No slot twice in dst or in both lists, no pair of which one side alone is out of range. */
rssm_status rssm_check_copy_deep(const rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err);

/* A cursor of the pool, by its values. where: "slot 5", "the stream". */
rssm_status rssm_check_cursor_values(const rssm_plugin *p, rssm_status failure, const int32_t cursor[4],
                                     const char *where, rssm_error *err);

#endif
