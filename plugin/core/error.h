/* Filling rssm_error. Inside the plugin `err` is never NULL and always full-sized; api.c copies it to the caller's. */
#ifndef RSSM_CORE_ERROR_H_
#define RSSM_CORE_ERROR_H_

#include "rssm_base.h"

/* Sets status and message, returns status. The message is cut at 511 bytes, never in the middle of a UTF-8 sequence,
 * and control characters from outside (a config's strings) become '?'. */
rssm_status rssm_fail(rssm_error *err, rssm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with the tensor, the dimension (-1 = none) and both numbers. */
typedef struct rssm_where {
    int32_t role, dim;
    int64_t expected, got;
} rssm_where;
rssm_status rssm_fail_at(rssm_error *err, rssm_status status, rssm_where where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

rssm_status rssm_out_of_memory(rssm_error *err);

const char *rssm_status_name(rssm_status status);

#endif
