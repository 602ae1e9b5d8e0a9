#include "core/slot_alloc.h"

#include "core/error.h"

/* One slot: how often it was given out, and the free slot after it. */
typedef struct slot_entry {
    uint64_t generation;
    int32_t next_free; /* -1 = the last one */
    int32_t taken;
} slot_entry;

/* Free slots are a stack, so that memory just used is used again; slots that were never taken follow in order. */
struct rssm_slot_alloc {
    int64_t S, pad_slot;
    int64_t fresh; /* slots from here on were never taken */
    int64_t taken, retired;
    int32_t first_free; /* -1 = none */
    int32_t bits;       /* of a slot number in a handle */
    slot_entry entries[];
};

static size_t bytes_for(int64_t S)
{
    return sizeof(rssm_slot_alloc) + (size_t)S * sizeof(slot_entry);
}

/* Made at the first use: a host that numbers slots itself pays nothing. */
static rssm_slot_alloc *make_alloc(const rssm_plugin *p)
{
    rssm_slot_alloc *a = rssm_mem_alloc(&p->mem, bytes_for(p->pool.S), 16);
    if (!a)
        return NULL;
    a->S = p->pool.S;
    a->pad_slot = p->pool.pad_slot;
    a->first_free = -1;
    while ((a->S - 1) >> a->bits)
        a->bits++;
    return a;
}

void rssm_slot_alloc_free(rssm_plugin *p)
{
    if (p->slot_alloc)
        rssm_mem_free(&p->mem, p->slot_alloc, bytes_for(p->slot_alloc->S));
    p->slot_alloc = NULL;
}

static uint64_t last_generation(const rssm_slot_alloc *a)
{
    return UINT64_MAX >> a->bits;
}

/* Slots that can be given out at all. */
static int64_t capacity(const rssm_slot_alloc *a)
{
    return a->S - (a->pad_slot >= 0 && a->pad_slot < a->S);
}

/* A free slot, or -1. */
static int64_t take(rssm_slot_alloc *a)
{
    int64_t slot = a->first_free;
    if (slot >= 0) {
        a->first_free = a->entries[slot].next_free;
        return slot;
    }
    if (a->fresh == a->pad_slot)
        a->fresh++;
    return a->fresh < a->S ? a->fresh++ : -1;
}

rssm_status rssm_slot_acquire(rssm_plugin *p, uint64_t *handle, int64_t *slot, rssm_error *err)
{
    if (!handle || !slot)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "%s is NULL", handle ? "slot" : "handle");
    if (!p->pool.regions)
        return rssm_fail(err, RSSM_ERR_STATE, "acquire before pool_create");
    if (!p->slot_alloc)
        p->slot_alloc = make_alloc(p);
    rssm_slot_alloc *a = p->slot_alloc;
    if (!a)
        return rssm_out_of_memory(err);
    int64_t got = take(a);
    if (got < 0)
        return rssm_fail_at(err, RSSM_ERR_NO_SLOT,
                            (rssm_where){.dim = -1, .expected = capacity(a), .got = a->taken + 1},
                            "all slots are taken: %lld of %lld (%lld in the pool, %lld for padding, %lld retired)",
                            (long long)a->taken, (long long)(capacity(a) - a->retired), (long long)a->S,
                            (long long)(a->S - capacity(a)), (long long)a->retired);
    slot_entry *entry = &a->entries[got];
    entry->generation++;
    entry->taken = 1;
    a->taken++;
    *handle = entry->generation << a->bits | (uint64_t)got;
    *slot = got;
    return RSSM_OK;
}

/* The entry of a live handle, or NULL with err set. */
static slot_entry *find(const rssm_plugin *p, uint64_t handle, int64_t *slot, rssm_error *err)
{
    rssm_slot_alloc *a = p->slot_alloc;
    if (!a) {
        rssm_fail(err, RSSM_ERR_HANDLE, "handle %#llx was never given out: nothing was acquired yet",
                  (unsigned long long)handle);
        return NULL;
    }
    uint64_t number = handle & (((uint64_t)1 << a->bits) - 1), generation = handle >> a->bits;
    slot_entry *entry = number < (uint64_t)a->S ? &a->entries[number] : NULL;
    if (!entry || generation == 0 || generation > entry->generation) {
        rssm_fail(err, RSSM_ERR_HANDLE,
                  "handle %#llx was never given out: it says use %llu of slot %llu, which had %llu (%lld slots)",
                  (unsigned long long)handle, (unsigned long long)generation, (unsigned long long)number,
                  entry ? (unsigned long long)entry->generation : 0, (long long)a->S);
        return NULL;
    }
    if (generation < entry->generation || !entry->taken) {
        rssm_fail(err, RSSM_ERR_HANDLE,
                  "handle %#llx was released before: it was use %llu of slot %llu, which had %llu and is %s now",
                  (unsigned long long)handle, (unsigned long long)generation, (unsigned long long)number,
                  (unsigned long long)entry->generation, entry->taken ? "another request's" : "free");
        return NULL;
    }
    *slot = (int64_t)number;
    return entry;
}

rssm_status rssm_slot_release(rssm_plugin *p, uint64_t handle, rssm_error *err)
{
    int64_t slot = 0;
    slot_entry *entry = find(p, handle, &slot, err);
    if (!entry)
        return err->status;
    rssm_slot_alloc *a = p->slot_alloc;
    entry->taken = 0;
    a->taken--;
    if (entry->generation == last_generation(a)) {
        a->retired++;
        return RSSM_OK;
    }
    entry->next_free = a->first_free;
    a->first_free = (int32_t)slot;
    return RSSM_OK;
}

rssm_status rssm_slot_of_handle(const rssm_plugin *p, uint64_t handle, int64_t *slot, rssm_error *err)
{
    int64_t number = 0;
    if (!slot)
        return rssm_fail(err, RSSM_ERR_ARGUMENT, "slot is NULL");
    if (!find(p, handle, &number, err))
        return err->status;
    *slot = number;
    return RSSM_OK;
}
