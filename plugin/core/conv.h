/* replayssm.conv/1: the short convolution in front of the recurrence. */
#ifndef RSSM_CORE_CONV_H_
#define RSSM_CORE_CONV_H_

#include "core/plugin.h"

/* What conv or conv_verify would take. */
rssm_status rssm_conv_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
/* windows: rows of verify_begin, one row of inputs per token. */
rssm_status rssm_conv_call(rssm_plugin *plugin, bool windows, const rssm_decode_args *args, rssm_error *err);

#endif
