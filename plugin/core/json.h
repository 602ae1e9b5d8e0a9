/* Untrusted JSON text -> a cJSON tree in memory of the instance's allocator. Our own scan goes first and decides what is
 * acceptable; cJSON only builds the tree of a text that is known to be small and strictly valid. */
#ifndef RSSM_CORE_JSON_H_
#define RSSM_CORE_JSON_H_

#include <stdbool.h>

#include <cJSON.h>

#include "core/error.h"
#include "core/mem.h"

typedef struct rssm_json_block rssm_json_block;

/* A parsed text. root and everything below it lives until rssm_json_close; the text itself may go. */
typedef struct rssm_json {
    const rssm_allocator *mem;
    rssm_json_block *blocks;
    bool out_of_memory;
    const cJSON *root;
} rssm_json;

/* Accepts RFC 8259 and the bare tokens Infinity and -Infinity (rssm_json_is_infinity finds them). Refuses, with line and
 * column or the key's path: syntax errors, NaN, control characters, \u0000, bytes that are not UTF-8, trailing bytes,
 * duplicate keys, and more than RSSM_CONFIG_MAX_BYTES / _DEPTH / _VALUES (before anything is allocated).
 * ERR_JSON, ERR_OUT_OF_MEMORY. On failure *json is closed. */
rssm_status rssm_json_parse(rssm_json *json, const rssm_allocator *mem, const char *text, uint64_t length,
                            rssm_error *err);

/* Frees the tree. A zeroed or closed one is fine. */
void rssm_json_close(rssm_json *json);

/* +1 for a bare Infinity, -1 for -Infinity, else 0. */
int rssm_json_is_infinity(const cJSON *item);

/* What cJSON is compiled to call instead of malloc and free. They serve the parse that runs on this thread. */
void *rssm_json_malloc(size_t bytes);
void rssm_json_free(void *ptr);
void *rssm_json_realloc(void *ptr, size_t bytes);

#endif
