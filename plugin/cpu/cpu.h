/* The CPU backend's inside: one row of a step, the scratch of one thread, the instance. */
#ifndef RSSM_CPU_CPU_H_
#define RSSM_CPU_CPU_H_

#include "core/backend.h"
#include "cpu/dtype.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"

/* One row of the batch, resolved. slot -1 = a padding row: its tokens, where there are any, get zeros. */
typedef struct rssm_row {
    int64_t slot;
    int64_t base;  /* physical ring row of the oldest record */
    int64_t count; /* pending records                        */
    int64_t start; /* first token in inputs and outputs      */
    int32_t len;   /* tokens                                 */
    int32_t flush;
    int32_t conv; /* column of the convolution's ring for the first token */
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

/* The row as the tokens of its window find it: a fold leaves an empty ring that begins behind the records. */
static inline rssm_row rssm_row_behind_fold(const rssm_step *step, const rssm_row *row)
{
    rssm_row after = *row;
    if (row->flush) {
        after.base = rssm_ring_row(step, row, row->count);
        after.count = 0;
        after.flush = 0;
    }
    return after;
}

/* d, k, x, B records have one dtype, which is also that of the rounding at L = 1 where no ring is allocated. */
static inline int32_t rssm_ring_dtype(const rssm_step *step)
{
    return step->d_cache.dtype ? step->d_cache.dtype : step->v.dtype;
}

/* Largest dims of a step on this instance: what the scratch is sized for. */
typedef struct rssm_cpu_dims {
    int64_t K, V, L;
    int64_t T;     /* tokens of a window, >= 1 */
    int64_t width; /* of the convolution, 0 = none */
} rssm_cpu_dims;

/* What one thread owns. */
typedef struct rssm_worker {
    const rssm_cpu_kernels *kernels; /* NULL in the reference */
    void *scratch;                   /* see the file of the function at work */
    uint32_t fault;                  /* bits of this call, or-ed into the word at its end */
    int32_t tokens;                  /* T of the dims */
    int64_t cached_row, cached_head; /* (b, h) whose shared key-head work the scratch holds; -1 = none */
} rssm_worker;

/* The instance. One call at a time. */
typedef struct rssm_cpu {
    rssm_backend_options options;
    rssm_allocator mem;
    const rssm_cpu_kernels *kernels; /* NULL: the reference */
    rssm_cpu_dims dims;
    rssm_threads *threads;
    int64_t scratch_bytes; /* of one worker */
    char *scratch;
    rssm_worker *workers; /* [num_workers] */
    int64_t *limits;      /* [num_workers + 1] first unit of each part of a batch */
    int32_t num_workers;
    uint32_t fault;
    rssm_pool pool;
    unsigned char *marks; /* [pool.S] what a slot operation has seen of a slot; all 0 between calls */
} rssm_cpu;

enum { RSSM_MIN_BYTES_PER_PART = 96 << 10 /* below that waking a thread costs more than it saves */ };

/* How many threads are worth it for work that moves this many bytes. */
int32_t rssm_cpu_parts(const rssm_cpu *cpu, int64_t bytes);

/* The worker of a part, its faults and what it holds of an earlier call forgotten. */
rssm_worker *rssm_cpu_worker(rssm_cpu *cpu, int32_t part);

/* batch.c: a step or a window over all threads. */
rssm_status rssm_cpu_step(void *ctx, const rssm_step *step, void *stream, rssm_error *err);
rssm_status rssm_cpu_verify(void *ctx, const rssm_window *window, void *stream, rssm_error *err);

/* One row and one value head of a step: everything that out, state and ring need. row is no padding row. */
typedef void (*rssm_head_fn)(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

int64_t rssm_reference_scratch(rssm_cpu_dims dims); /* bytes */
void rssm_reference_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

/* The same for a window: row->len >= 1 tokens from row->start on, none of which may see a later one. */
void rssm_reference_window(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);

/* The state of a head with the records of row folded in, but not written: begin, then rows v .. v + n - 1 of the head to
 * rows [n, K]. step and row outlive both. */
void rssm_reference_fold_begin(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv);
void rssm_reference_fold_rows(rssm_worker *worker, float *rows, int64_t v, int64_t n);

int64_t rssm_fast_scratch(rssm_cpu_dims dims); /* bytes */
void rssm_fast_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);
void rssm_fast_window(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv);
void rssm_fast_fold_begin(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv);
void rssm_fast_fold_rows(rssm_worker *worker, float *rows, int64_t v, int64_t n);

/* cursor.c. Row b of a pass; what is out of range makes it padding and sets a bit in *fault. */
rssm_row rssm_cpu_row(const rssm_step *step, int64_t b, uint32_t *fault);
rssm_row rssm_cpu_window_row(const rssm_window *window, int64_t b, uint32_t *fault);
rssm_row rssm_cpu_conv_row(const rssm_convolution *conv, int64_t b, uint32_t *fault);

/* The slot's cursor as a row of no tokens that flushes; slot -1 and RSSM_FAULTBIT_CURSOR when it is out of range. */
rssm_row rssm_cpu_slot_row(const rssm_pool *pool, int64_t slot, uint32_t *fault);

void rssm_cpu_begin(const rssm_begin *begin);
void rssm_cpu_verify_begin(const rssm_verify_begin *begin);
void rssm_cpu_commit(const rssm_commit *commit);
void rssm_cpu_reset(const rssm_pool *pool, const rssm_index *slots, int64_t count);
void rssm_cpu_reset_cursor(const rssm_pool *pool, int64_t slot);
void rssm_cpu_empty_ring(const rssm_pool *pool, int64_t slot); /* the cursor behind the records */

/* conv.c */
int64_t rssm_conv_scratch(rssm_cpu_dims dims); /* bytes */
rssm_status rssm_cpu_conv(void *ctx, const rssm_convolution *conv, void *stream, rssm_error *err);

/* slots.c. Marks tell which slots of a call are named twice: set before it, cleared after. */
enum { RSSM_MARK_TARGET = 1, RSSM_MARK_TWICE = 2 };
int64_t rssm_cpu_slot_at(const rssm_pool *pool, const rssm_index *slots, int64_t i); /* of entry i, -1 for padding */
void rssm_cpu_mark_targets(rssm_cpu *cpu, const rssm_index *slots, int64_t n);
void rssm_cpu_clear_marks(rssm_cpu *cpu, const rssm_index *slots, int64_t n);
rssm_status rssm_cpu_copy(void *ctx, const rssm_slot_copy *copy, void *stream, rssm_error *err);
rssm_status rssm_cpu_read_slot(void *ctx, int64_t slot, int32_t cursor[4], void *bytes, void *stream, rssm_error *err);
rssm_status rssm_cpu_write_slot(void *ctx, int64_t slot, const int32_t cursor[4], const void *bytes, void *stream,
                                rssm_error *err);

/* states.c. Its rows lie at the end of the worker's scratch, behind a fold's. */
int64_t rssm_states_scratch(rssm_cpu_dims dims); /* bytes */
rssm_status rssm_cpu_import(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
rssm_status rssm_cpu_export(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
rssm_status rssm_cpu_flush(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);

/* n elements of any type as float32, and back; store returns non-zero when a value did not fit. */
static inline void rssm_cpu_load(const rssm_cpu_kernels *kernels, int32_t dtype, float *dst, const void *src, int64_t n)
{
    if (kernels) {
        kernels->load[rssm_kind(dtype)](dst, src, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dst[i] = rssm_load_f32(dtype, src, i);
}

static inline uint32_t rssm_cpu_store(const rssm_cpu_kernels *kernels, int32_t dtype, void *dst, const float *src,
                                      int64_t n)
{
    if (kernels)
        return kernels->store[rssm_kind(dtype)](dst, src, n);
    uint32_t saturated = 0;
    for (int64_t i = 0; i < n; i++)
        rssm_store_f32(dtype, dst, i, src[i], &saturated);
    return saturated;
}

#endif
