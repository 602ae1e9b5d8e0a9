/* Host memory of an instance: the caller's allocator or the C library, and an arena for what lives until teardown. */
#ifndef RSSM_CORE_MEM_H_
#define RSSM_CORE_MEM_H_

#include <stdarg.h>
#include <stddef.h>

#include "rssm_model.h"

/* The C library's, or the host's. */
rssm_allocator rssm_mem_default(void);

/* Zeroed memory, NULL when it fails. bytes must be what was allocated. NULL may be freed. */
void *rssm_mem_alloc(const rssm_allocator *mem, size_t bytes, size_t alignment);
void rssm_mem_free(const rssm_allocator *mem, void *ptr, size_t bytes);

typedef struct rssm_arena_block rssm_arena_block;
typedef struct rssm_arena {
    const rssm_allocator *mem;
    rssm_arena_block *blocks;
} rssm_arena;

/* Zeroed, 16-byte aligned, freed as a whole; NULL when memory fails. */
void *rssm_arena_alloc(rssm_arena *arena, size_t bytes);
char *rssm_arena_printf(rssm_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rssm_arena_free(rssm_arena *arena);

/* A growing list of strings in the arena; returns 0 when memory fails. */
typedef struct rssm_strings {
    const char **items;
    int32_t count, capacity;
} rssm_strings;
int rssm_strings_add(rssm_strings *list, rssm_arena *arena, const char *text);

#endif
