/* The plain step: step_begin and decode. */
#ifndef RSSM_CORE_DECODE_H_
#define RSSM_CORE_DECODE_H_

#include "core/plugin.h"

rssm_status rssm_step_begin_call(rssm_plugin *plugin, const rssm_step_begin_args *args, rssm_error *err);
rssm_status rssm_decode_call(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);

/* args are valid: tensors by role -> what a backend takes. All but B. */
void rssm_make_step(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_step *step);

/* NULL gives an absent one. */
rssm_input rssm_input_of(const DLTensor *tensor);
/* Absent (a ring at L = 1), it still says the dtype that records are rounded to. */
rssm_pooled rssm_pooled_of(const DLTensor *tensor, int32_t dtype);

#endif
