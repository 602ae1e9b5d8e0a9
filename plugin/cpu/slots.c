/* What a server does to whole slots: copies, and saved slots, which are the pool's regions end to end.
 *
 * The bytes of all pairs are one long run, and each part gets an even share of it, wherever that begins and ends. */
#include <string.h>

#include "cpu/cpu.h"
#include "rssm_step.h"

/* ---- which slots a call may touch ---- */

enum { MARK_SOURCE = 4 };

int64_t rssm_cpu_slot_at(const rssm_pool *pool, const rssm_index *slots, int64_t i)
{
    int64_t slot = rssm_index_at(slots, i);
    return rssm_is_padding(slot, pool->S, pool->pad_slot) ? -1 : slot;
}

void rssm_cpu_mark_targets(rssm_cpu *cpu, const rssm_index *slots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = rssm_cpu_slot_at(&cpu->pool, slots, i);
        if (slot >= 0)
            cpu->marks[slot] |= cpu->marks[slot] & RSSM_MARK_TARGET ? RSSM_MARK_TWICE : RSSM_MARK_TARGET;
    }
}

static void mark_sources(rssm_cpu *cpu, const rssm_index *slots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = rssm_cpu_slot_at(&cpu->pool, slots, i);
        if (slot >= 0)
            cpu->marks[slot] |= MARK_SOURCE;
    }
}

void rssm_cpu_clear_marks(rssm_cpu *cpu, const rssm_index *slots, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = rssm_cpu_slot_at(&cpu->pool, slots, i);
        if (slot >= 0)
            cpu->marks[slot] = 0;
    }
}

/* ---- copies ---- */

/* Where a slot's regions are: in the pool, or packed. */
typedef struct place {
    int64_t slot;
    char *packed; /* NULL: in the pool */
} place;

static char *region_at(const place *place, const rssm_region *region, int64_t packed_at)
{
    return place->packed ? place->packed + packed_at : (char *)region->data + place->slot * region->slot_stride;
}

static int64_t slot_bytes(const rssm_pool *pool)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < pool->num_regions; i++)
        bytes += pool->regions[i].slot_bytes;
    return bytes;
}

/* Bytes first .. end - 1 of the slot. */
static void copy_bytes(const rssm_pool *pool, place to, place from, int64_t first, int64_t end)
{
    int64_t at = 0;
    for (int32_t i = 0; i < pool->num_regions && at < end; i++) {
        const rssm_region *region = &pool->regions[i];
        int64_t skip = first > at ? first - at : 0;
        int64_t stop = end - at < region->slot_bytes ? end - at : region->slot_bytes;
        if (skip < stop)
            memcpy(region_at(&to, region, at) + skip, region_at(&from, region, at) + skip, (size_t)(stop - skip));
        at += region->slot_bytes;
    }
}

/* One pair of places, or the pairs of a copy. */
typedef struct copy_job {
    rssm_cpu *cpu;
    const rssm_slot_copy *copy; /* NULL: to, from */
    place to, from;
    int64_t bytes, all_bytes; /* of a slot, of all */
    int32_t parts;
    int32_t pad_;
} copy_job;

/* Whether pair i is copied; what is wrong with it. Marks are set. */
static int pair_is_fine(const copy_job *job, int64_t i, uint32_t *fault)
{
    const rssm_pool *pool = &job->cpu->pool;
    int64_t src = rssm_cpu_slot_at(pool, &job->copy->src, i), dst = rssm_cpu_slot_at(pool, &job->copy->dst, i);
    if (src < 0 && dst < 0)
        return 0;
    if (src < 0 || dst < 0 || job->cpu->marks[dst] != RSSM_MARK_TARGET) {
        *fault |= RSSM_FAULTBIT_SLOTS;
        return 0;
    }
    return rssm_cpu_slot_row(pool, src, fault).slot >= 0;
}

static void copy_part(void *arg, int32_t part)
{
    const copy_job *job = arg;
    const rssm_pool *pool = &job->cpu->pool;
    int64_t first = job->all_bytes / job->parts * part, at = 0;
    int64_t end = part + 1 == job->parts ? job->all_bytes : job->all_bytes / job->parts * (part + 1);
    uint32_t ignored = 0;
    if (!job->copy) {
        copy_bytes(pool, job->to, job->from, first, end);
        return;
    }
    for (int64_t i = 0; i < job->copy->n && at < end; i++) {
        if (!pair_is_fine(job, i, &ignored))
            continue;
        place to = {.slot = rssm_index_at(&job->copy->dst, i)}, from = {.slot = rssm_index_at(&job->copy->src, i)};
        int64_t stop = end - at < job->bytes ? end - at : job->bytes;
        if (first - at < stop)
            copy_bytes(pool, to, from, first > at ? first - at : 0, stop);
        at += job->bytes;
    }
}

static void run_copy(copy_job *job)
{
    job->parts = rssm_cpu_parts(job->cpu, job->all_bytes);
    rssm_threads_run(job->cpu->threads, copy_part, job, job->parts);
}

rssm_status rssm_cpu_copy(void *ctx, const rssm_slot_copy *copy, void *stream, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    const rssm_pool *pool = &cpu->pool;
    uint32_t fault = 0;
    (void)stream;
    (void)err;
    copy_job job = {.cpu = cpu, .copy = copy, .bytes = slot_bytes(pool)};
    rssm_cpu_mark_targets(cpu, &copy->dst, copy->n);
    mark_sources(cpu, &copy->src, copy->n);
    for (int64_t i = 0; i < copy->n; i++)
        if (pair_is_fine(&job, i, &fault))
            job.all_bytes += job.bytes;
    run_copy(&job);
    uint32_t again = 0; /* a target is no source, so its cursor is free to change meanwhile */
    for (int64_t i = 0; i < copy->n; i++)
        if (pair_is_fine(&job, i, &again))
            memcpy(pool->cursor + rssm_index_at(&copy->dst, i) * pool->cursor_slot,
                   pool->cursor + rssm_index_at(&copy->src, i) * pool->cursor_slot,
                   RSSM_CURSOR_WIDTH * sizeof(int32_t));
    rssm_cpu_clear_marks(cpu, &copy->dst, copy->n);
    rssm_cpu_clear_marks(cpu, &copy->src, copy->n);
    rssm_fault_or(copy->fault, fault);
    return RSSM_OK;
}

/* ---- saved slots ---- */

rssm_status rssm_cpu_read_slot(void *ctx, int64_t slot, int32_t cursor[4], void *bytes, void *stream, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    (void)stream;
    (void)err;
    copy_job job = {.cpu = cpu, .to = {.packed = bytes}, .from = {.slot = slot}};
    job.bytes = job.all_bytes = slot_bytes(&cpu->pool);
    run_copy(&job);
    memcpy(cursor, cpu->pool.cursor + slot * cpu->pool.cursor_slot, RSSM_CURSOR_WIDTH * sizeof(int32_t));
    return RSSM_OK;
}

rssm_status rssm_cpu_write_slot(void *ctx, int64_t slot, const int32_t cursor[4], const void *bytes, void *stream,
                                rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    (void)stream;
    (void)err;
    copy_job job = {.cpu = cpu, .to = {.slot = slot}, .from = {.packed = (char *)(uintptr_t)bytes}};
    job.bytes = job.all_bytes = slot_bytes(&cpu->pool);
    run_copy(&job);
    memcpy(cpu->pool.cursor + slot * cpu->pool.cursor_slot, cursor, RSSM_CURSOR_WIDTH * sizeof(int32_t));
    return RSSM_OK;
}
