/* The boundary's own work, once: struct sizes, NULLs, errors and dead handles. Every function of a table that the host
 * calls starts with rssm_open_call (or rssm_open_error) and ends with rssm_close_error; in between, structs are full-sized
 * copies and err is never NULL. */
#ifndef RSSM_CORE_API_CALL_H_
#define RSSM_CORE_API_CALL_H_

#include "core/plugin.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

/* A local full-sized error, whatever the caller gave; RSSM_OK unless his has no sane size. */
rssm_status rssm_open_error(rssm_error *local, const rssm_error *theirs);

/* Gives the local error to the caller; the message's tail is not copied. One without a sane size is left alone. */
rssm_status rssm_close_error(const rssm_error *local, rssm_error *theirs, rssm_status status);

rssm_status rssm_check_plugin(const rssm_plugin *plugin, rssm_error *err);

/* The start of a call on an instance. */
rssm_status rssm_open_call(rssm_error *local, const rssm_error *theirs, const rssm_plugin *plugin);

/* Copies a caller's struct of any size into a zeroed local of `known` bytes. v1 is its size in ABI 1.0. */
rssm_status rssm_copy_in(void *local, const void *theirs, uint64_t known, uint64_t v1, const char *name,
                         rssm_error *err);

/* Writes min(sizes) into a caller's out-struct, whose struct_size stays his. */
rssm_status rssm_check_out(const void *theirs, uint64_t v1, const char *name, rssm_error *err);
void rssm_copy_out(void *theirs, const void *local, uint64_t known);

/* The extensions' tables: api_fault.c, api_slots.c, api_verify.c, api_conv.c. */
extern const rssm_fault_api rssm_fault_table;
extern const rssm_slots_api rssm_slots_table;
extern const rssm_verify_api rssm_verify_table;
extern const rssm_conv_api rssm_conv_table;

#endif
