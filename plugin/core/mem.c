#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    (void)user;
    size_t rounded = ((size_t)bytes + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
    return rounded < bytes ? NULL : aligned_alloc((size_t)alignment, rounded);
}

static void default_free(void *user, void *ptr, uint64_t bytes)
{
    (void)user;
    (void)bytes;
    free(ptr);
}

rssm_allocator rssm_mem_default(void)
{
    return (rssm_allocator){.struct_size = sizeof(rssm_allocator), .alloc = default_alloc, .free = default_free};
}

void *rssm_mem_alloc(const rssm_allocator *mem, size_t bytes, size_t alignment)
{
    void *ptr = mem->alloc(mem->user, bytes, alignment);
    if (ptr)
        memset(ptr, 0, bytes);
    return ptr;
}

void rssm_mem_free(const rssm_allocator *mem, void *ptr, size_t bytes)
{
    if (ptr)
        mem->free(mem->user, ptr, bytes);
}

/* A block's memory follows its header; requests larger than a block get one of their own. */
enum { ARENA_BLOCK = 16 << 10, ARENA_ALIGN = 16 };

struct rssm_arena_block {
    rssm_arena_block *next;
    size_t size, used; /* bytes of the whole block, header included */
    size_t pad_;
};

void *rssm_arena_alloc(rssm_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    rssm_arena_block *block = arena->blocks;
    if (!block || block->size - block->used < bytes) {
        size_t size = sizeof(*block) + bytes;
        if (size < ARENA_BLOCK)
            size = ARENA_BLOCK;
        block = rssm_mem_alloc(arena->mem, size, ARENA_ALIGN);
        if (!block)
            return NULL;
        *block = (rssm_arena_block){.next = arena->blocks, .size = size, .used = sizeof(*block)};
        arena->blocks = block;
    }
    void *ptr = (char *)block + block->used;
    block->used += bytes;
    return ptr;
}

char *rssm_arena_printf(rssm_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : rssm_arena_alloc(arena, (size_t)length + 1);
    if (!text)
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}

void rssm_arena_free(rssm_arena *arena)
{
    for (rssm_arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        rssm_mem_free(arena->mem, block, block->size);
    }
    arena->blocks = NULL;
}

int rssm_strings_add(rssm_strings *list, rssm_arena *arena, const char *text)
{
    if (!text)
        return 0;
    if (list->count == list->capacity) {
        int32_t capacity = list->capacity ? 2 * list->capacity : 16;
        const char **items = rssm_arena_alloc(arena, (size_t)capacity * sizeof(*items));
        if (!items)
            return 0;
        for (int32_t i = 0; i < list->count; i++)
            items[i] = list->items[i];
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = text;
    return 1;
}
