/* Extension "replayssm.fault/1": the sticky fault word of an instance. Device code cannot return an error, so it marks
 * one and treats the row as padding (or saturates the value). get_extension(RSSM_EXT_FAULT) gives a rssm_fault_api. */
#ifndef RSSM_FAULT_H_
#define RSSM_FAULT_H_

#include "rssm_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_FAULT "replayssm.fault/1"

enum {
    RSSM_FAULT_CURSOR = 1u << 0,   /* base, count, conv or flush out of range: treated as padding         */
    RSSM_FAULT_ACCEPTED = 1u << 1, /* commit: accepted out of range, or no open window: slot unchanged    */
    RSSM_FAULT_OUTPUT = 1u << 2,   /* a 16-bit output was beyond its type and saturated                   */
    RSSM_FAULT_STATE = 1u << 3,    /* a 16-bit state element likewise                                     */
    RSSM_FAULT_RING = 1u << 4,     /* a 16-bit ring element likewise                                      */
    RSSM_FAULT_SLOTS = 1u << 5,    /* a slot operation named a slot twice, or half a pair: passed over    */
    RSSM_FAULT_SEQLENS = 1u << 6   /* a verify window is too long, negative or beyond the tokens: it has none */
};

typedef struct rssm_fault_api {
    uint64_t struct_size;
    /* The word since the last clear, after the work enqueued on stream. [instance] [may-sync] */
    rssm_status (*read)(rssm_plugin *plugin, void *stream, uint32_t *word, rssm_error *err);
    /* Sets it to 0, in stream order. [instance] [capture-safe] */
    rssm_status (*clear)(rssm_plugin *plugin, void *stream, rssm_error *err);
} rssm_fault_api;

#ifdef __cplusplus
}
#endif
#endif
