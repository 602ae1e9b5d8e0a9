/* The tensors of a call against the family table: which must be there, which may, each one's check (tensor.h), overlaps. */
#ifndef RSSM_CORE_VALIDATE_H_
#define RSSM_CORE_VALIDATE_H_

#include "core/tensor.h"

/* Flags, layer and the array itself: also of a call that skips the rest. */
rssm_status rssm_check_call_head(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* A whole call of decode's arguments; RSSM_CHECK_DEEP also reads the index arrays. */
rssm_status rssm_check_call(const rssm_plugin *plugin, rssm_call call, const rssm_decode_args *args, rssm_error *err);

/* step_begin's slots, force_flush and rows_out. */
rssm_status rssm_check_step_begin(const rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

/* Parts of other calls' checks. */
rssm_status rssm_missing(int32_t role, const char *why, rssm_error *err);
rssm_status rssm_check_flags(uint32_t flags, uint32_t known, rssm_error *err);
rssm_status rssm_check_reserved(uint64_t reserved, rssm_error *err);
rssm_status rssm_check_batch(const rssm_plugin *plugin, const rssm_dims_of *dims, rssm_error *err); /* B */

/* rows[B, 8], written or read. */
rssm_status rssm_check_rows(const rssm_plugin *plugin, const DLTensor *rows, rssm_dims_of *dims, rssm_error *err);

/* Written rows may share memory with none of the lists (NULL: absent), and with no tensor of the pool. */
typedef struct rssm_named_list {
    const char *name;
    const DLTensor *tensor;
} rssm_named_list;
rssm_status rssm_check_rows_out(const rssm_plugin *plugin, const DLTensor *rows_out, const rssm_named_list *lists,
                                int32_t count, rssm_error *err);

/* The name of a pool tensor that shares memory with it, or NULL. The pool is bound. */
const char *rssm_pool_overlap(const rssm_plugin *plugin, const DLTensor *tensor);

#endif
