/* The tensors of a call against the family table: which must be there, which may, each one's check (tensor.h), overlaps. */
#ifndef RSSM_CORE_VALIDATE_H_
#define RSSM_CORE_VALIDATE_H_

#include "core/tensor.h"

/* Flags, layer and the array itself: also of a call that skips the rest. */
rssm_status rssm_check_decode_head(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* A whole decode call; RSSM_CHECK_DEEP also reads the index arrays. */
rssm_status rssm_check_decode(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* step_begin's slots, force_flush and rows_out. */
rssm_status rssm_check_step_begin(const rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);

#endif
