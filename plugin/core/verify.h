/* replayssm.verify/1: windows of draft tokens. */
#ifndef RSSM_CORE_VERIFY_H_
#define RSSM_CORE_VERIFY_H_

#include "core/plugin.h"

rssm_status rssm_verify_begin_call(rssm_plugin *plugin, const rssm_verify_begin_args *args, rssm_error *err);
rssm_status rssm_verify_validate(const rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
rssm_status rssm_verify_call(rssm_plugin *plugin, const rssm_decode_args *args, rssm_error *err);
rssm_status rssm_commit_call(rssm_plugin *plugin, const rssm_commit_args *args, rssm_error *err);

#endif
