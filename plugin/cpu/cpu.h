/* The CPU backend's inside: one row of a step, the scratch of one thread, the instance. */
#ifndef RSSM_CPU_CPU_H_
#define RSSM_CPU_CPU_H_

#include "core/backend.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"

/* One row of the batch, resolved. slot -1 = a padding row. */
typedef struct rssm_row {
    int64_t slot;
    int64_t base;  /* physical ring row of the oldest record */
    int64_t count; /* pending records                        */
    int32_t flush;
    int32_t pad_;
} rssm_row;

static inline int64_t rssm_index_at(const rssm_index *index, int64_t i)
{
    if (index->bits == 64)
        return ((const int64_t *)index->data)[i * index->stride];
    return ((const int32_t *)index->data)[i * index->stride];
}

static inline int rssm_is_padding(int64_t slot, int64_t S, int64_t pad_slot)
{
    return slot < 0 || slot >= S || (pad_slot >= 0 && slot == pad_slot);
}

/* Row b of the step; a cursor out of range makes it padding and sets RSSM_FAULTBIT_CURSOR in *fault. */
rssm_row rssm_cpu_row(const rssm_step *step, int64_t b, uint32_t *fault);

static inline void rssm_fault_or(uint32_t *word, uint32_t bits)
{
    if (word && bits)
        __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
}

/* Physical row of record j: base + j < 2R always. */
static inline int64_t rssm_ring_row(const rssm_step *step, const rssm_row *row, int64_t j)
{
    int64_t r = row->base + j;
    return r >= step->R ? r - step->R : r;
}

/* d, k, x, B records have one dtype, which is also that of the rounding at L = 1 where no ring is allocated. */
static inline int32_t rssm_ring_dtype(const rssm_step *step)
{
    return step->d_cache.dtype ? step->d_cache.dtype : step->v.dtype;
}

/* Largest dims of a step on this instance: what the scratch is sized for. */
typedef struct rssm_cpu_dims {
    int64_t K, V, L;
} rssm_cpu_dims;

/* What one thread owns. */
typedef struct rssm_worker {
    const rssm_cpu_kernels *kernels; /* NULL in the reference */
    void *scratch;                   /* see the file of the head function */
    uint32_t fault;                  /* bits of this step, or-ed into the word at its end */
    int32_t pad_;
    int64_t cached_row, cached_head; /* (b, h) whose shared key-head work the scratch holds; -1 = none */
} rssm_worker;

/* One row and one value head of a step: everything that out, state and ring need. row is no padding row. */
typedef void (*rssm_head_fn)(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

int64_t rssm_reference_scratch(rssm_cpu_dims dims); /* bytes */
void rssm_reference_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

int64_t rssm_fast_scratch(rssm_cpu_dims dims); /* bytes */
void rssm_fast_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

/* cursor.c */
void rssm_cpu_begin(const rssm_begin *begin);
void rssm_cpu_reset(const rssm_pool *pool, const rssm_index *slots, int64_t count);

#endif
