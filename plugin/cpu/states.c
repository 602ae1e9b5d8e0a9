/* States of whole slots in and out of the pool, and flushes in place: all layers of all slots of a call.
 *
 * The unit of work is one layer and one value head of one slot, or the convolution's history of one layer. State rows pass
 * in blocks through float32 rows in the scratch: folded with the pending records when they come from the pool, turned when
 * the other side is [K, V]. Cursors move after all units. */
#include <string.h>

#include "core/error.h"
#include "cpu/cpu.h"

enum { BLOCK_ROWS = 32 };

/* Behind the scratch of a fold: rows [BLOCK_ROWS][K], and as many floats again to turn them. */
int64_t rssm_states_scratch(rssm_cpu_dims dims)
{
    return 2 * BLOCK_ROWS * dims.K * (int64_t)sizeof(float);
}

typedef struct job job;

/* A unit: entry i of the call, whose slot is row.slot. */
typedef struct unit {
    const job *job;
    rssm_worker *worker;
    const rssm_state_layer *layer;
    rssm_step step; /* what a fold needs of the layer's pool tensors */
    rssm_pooled conv;
    rssm_row row;
    int64_t i, hv;
    float *rows, *turned;
} unit;

struct job {
    rssm_cpu *cpu;
    const rssm_state_io *io;
    void (*head)(unit *u);
    void (*history)(unit *u); /* NULL: none */
    int32_t writes_slots;     /* a slot may be named once */
    int32_t reads_records;    /* the cursor must be right */
    int64_t layer_units;      /* of one entry */
    int32_t parts;
    int32_t pad_;
};

/* ---- blocks of state rows ---- */

/* Element 0 of the head's state on the other side. */
static char *other_side(const unit *u)
{
    int64_t n = (int64_t)u->step.V * u->step.K;
    int64_t index = u->i * u->layer->state_row + u->hv * n;
    return (char *)u->layer->state + index * rssm_cpu_dtype_bytes(u->layer->state_dtype);
}

/* The head's state row v in the pool. */
static char *pool_side(const unit *u, int64_t v)
{
    const rssm_pooled *state = &u->step.state;
    int64_t index = u->row.slot * state->slot + (u->hv * u->step.V + v) * u->step.K;
    return (char *)state->data + index * rssm_cpu_dtype_bytes(state->dtype);
}

static void store(const unit *u, int32_t dtype, void *dst, const float *src, int64_t n)
{
    if (rssm_cpu_store(u->worker->kernels, dtype, dst, src, n))
        u->worker->fault |= RSSM_FAULTBIT_STATE;
}

/* dst [columns][rows] <- src [rows][columns], rows from element to element of dst_row and src_row. Squares of 4 are turned in
 * registers. */
static void turn(float *dst, int64_t dst_row, const float *src, int64_t src_row, int64_t rows, int64_t columns)
{
    typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        int64_t c = 0;
        for (; c + 4 <= columns; c += 4) {
            const float *s = src + r * src_row + c;
            float *d = dst + c * dst_row + r;
            quad a = *(const quad *)s, b = *(const quad *)(s + src_row);
            quad e = *(const quad *)(s + 2 * src_row), f = *(const quad *)(s + 3 * src_row);
            quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ef = __builtin_shufflevector(e, f, 0, 4, 1, 5);
            quad gh = __builtin_shufflevector(a, b, 2, 6, 3, 7), ij = __builtin_shufflevector(e, f, 2, 6, 3, 7);
            *(quad *)d = __builtin_shufflevector(ab, ef, 0, 1, 4, 5);
            *(quad *)(d + dst_row) = __builtin_shufflevector(ab, ef, 2, 3, 6, 7);
            *(quad *)(d + 2 * dst_row) = __builtin_shufflevector(gh, ij, 0, 1, 4, 5);
            *(quad *)(d + 3 * dst_row) = __builtin_shufflevector(gh, ij, 2, 3, 6, 7);
        }
        for (; c < columns; c++)
            for (int64_t i = r; i < r + 4; i++)
                dst[c * dst_row + i] = src[i * src_row + c];
    }
    for (; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            dst[c * dst_row + r] = src[r * src_row + c];
}

/* rows <- rows v .. v + n - 1 of the other side. */
static void take_rows(const unit *u, int64_t v, int64_t n)
{
    int32_t dtype = u->layer->state_dtype;
    int64_t K = u->step.K, V = u->step.V, element = rssm_cpu_dtype_bytes(dtype);
    const char *from = other_side(u);
    if (!u->job->io->transposed) {
        rssm_cpu_load(u->worker->kernels, dtype, u->rows, from + v * K * element, n * K);
        return;
    }
    for (int64_t i = 0; i < K; i++)
        rssm_cpu_load(u->worker->kernels, dtype, u->turned + i * BLOCK_ROWS, from + (i * V + v) * element, n);
    turn(u->rows, K, u->turned, BLOCK_ROWS, K, n);
}

/* The other way round. */
static void give_rows(const unit *u, int64_t v, int64_t n)
{
    int32_t dtype = u->layer->state_dtype;
    int64_t K = u->step.K, V = u->step.V, element = rssm_cpu_dtype_bytes(dtype);
    char *to = other_side(u);
    if (!u->job->io->transposed) {
        store(u, dtype, to + v * K * element, u->rows, n * K);
        return;
    }
    turn(u->turned, BLOCK_ROWS, u->rows, K, n, K);
    for (int64_t i = 0; i < K; i++)
        store(u, dtype, to + (i * V + v) * element, u->turned + i * BLOCK_ROWS, n);
}

static int sides_are_alike(const unit *u)
{
    return u->layer->state_dtype == u->step.state.dtype && !u->job->io->transposed;
}

static size_t head_bytes(const unit *u)
{
    return (size_t)((int64_t)u->step.V * u->step.K * rssm_cpu_dtype_bytes(u->step.state.dtype));
}

static int64_t rows_at(const unit *u, int64_t v)
{
    return u->step.V - v < BLOCK_ROWS ? u->step.V - v : BLOCK_ROWS;
}

static void import_head(unit *u)
{
    if (sides_are_alike(u)) {
        memcpy(pool_side(u, 0), other_side(u), head_bytes(u));
        return;
    }
    for (int64_t v = 0; v < u->step.V; v += BLOCK_ROWS) {
        take_rows(u, v, rows_at(u, v));
        store(u, u->step.state.dtype, pool_side(u, v), u->rows, rows_at(u, v) * u->step.K);
    }
}

static void fold_begin(unit *u)
{
    (u->worker->kernels ? rssm_fast_fold_begin : rssm_reference_fold_begin)(u->worker, &u->step, &u->row, u->hv);
}

static void fold_rows(unit *u, int64_t v)
{
    (u->worker->kernels ? rssm_fast_fold_rows : rssm_reference_fold_rows)(u->worker, u->rows, v, rows_at(u, v));
}

static void export_head(unit *u)
{
    if (u->row.count == 0 && sides_are_alike(u)) {
        memcpy(other_side(u), pool_side(u, 0), head_bytes(u));
        return;
    }
    fold_begin(u);
    for (int64_t v = 0; v < u->step.V; v += BLOCK_ROWS) {
        fold_rows(u, v);
        give_rows(u, v, rows_at(u, v));
    }
}

static void flush_head(unit *u)
{
    if (u->row.count == 0)
        return;
    fold_begin(u);
    for (int64_t v = 0; v < u->step.V; v += BLOCK_ROWS) {
        fold_rows(u, v);
        store(u, u->step.state.dtype, pool_side(u, v), u->rows, rows_at(u, v) * u->step.K);
    }
}

/* ---- the convolution's history ---- */

/* Column 0 of the entry's first channel, in the pool and on the other side. */
static char *ring_side(const unit *u)
{
    return (char *)u->conv.data + u->row.slot * u->conv.slot * rssm_cpu_dtype_bytes(u->conv.dtype);
}

static char *history_side(const unit *u)
{
    return (char *)u->layer->conv + u->i * u->layer->conv_row * rssm_cpu_dtype_bytes(u->layer->conv_dtype);
}

/* The next input goes to column 0, so the newest of the history is the last column. */
static void import_history(unit *u)
{
    const rssm_pool *pool = &u->job->cpu->pool;
    int64_t columns = pool->conv_len, width = pool->conv_width - 1, element = rssm_cpu_dtype_bytes(u->conv.dtype);
    uint32_t saturated = 0;
    memset(ring_side(u), 0, (size_t)(pool->conv_channels * columns * element));
    for (int64_t c = 0; u->layer->conv && c < pool->conv_channels; c++)
        for (int64_t i = 0; i < width; i++) {
            float x = rssm_load_f32(u->layer->conv_dtype, history_side(u), c * width + i);
            rssm_store_f32(u->conv.dtype, ring_side(u), c * columns + columns - width + i, x, &saturated);
        }
    if (saturated)
        u->worker->fault |= RSSM_FAULTBIT_RING;
}

static void export_history(unit *u)
{
    const rssm_pool *pool = &u->job->cpu->pool;
    int64_t columns = pool->conv_len, width = pool->conv_width - 1;
    uint32_t saturated = 0;
    for (int64_t c = 0; u->layer->conv && c < pool->conv_channels; c++)
        for (int64_t i = 0; i < width; i++) {
            int64_t column = (u->row.conv + columns - width + i) % columns;
            float x = rssm_load_f32(u->conv.dtype, ring_side(u), c * columns + column);
            rssm_store_f32(u->layer->conv_dtype, history_side(u), c * width + i, x, &saturated);
        }
    if (saturated)
        u->worker->fault |= RSSM_FAULTBIT_RING;
}

/* ---- a call ---- */

/* Entry i's slot and cursor; slot -1 = passed over. Marks are set. */
static rssm_row entry(const job *job, int64_t i, uint32_t *fault)
{
    const rssm_cpu *cpu = job->cpu;
    rssm_row nothing = {.slot = -1};
    int64_t slot = rssm_cpu_slot_at(&cpu->pool, &job->io->slots, i);
    if (slot < 0)
        return nothing;
    if (job->writes_slots && (cpu->marks[slot] & RSSM_MARK_TWICE)) {
        *fault |= RSSM_FAULTBIT_SLOTS;
        return nothing;
    }
    if (job->reads_records)
        return rssm_cpu_slot_row(&cpu->pool, slot, fault);
    return (rssm_row){.slot = slot};
}

static rssm_step layer_step(const rssm_pool *pool, const rssm_state_io *io, int64_t layer)
{
    const rssm_pool_layer *tensors = &pool->layers[layer];
    return (rssm_step){.family = pool->family,
                       .flags = io->decay_is_A ? RSSM_STEP_A_IS_DECAY : 0,
                       .H = pool->H,
                       .HV = pool->HV,
                       .K = pool->K,
                       .V = pool->V,
                       .L = pool->L,
                       .R = pool->R,
                       .S = pool->S,
                       .A_log = io->layers[layer].decay,
                       .state = tensors->state,
                       .d_cache = tensors->d_cache,
                       .k_cache = tensors->k_cache,
                       .g_cache = tensors->g_cache};
}

static void take_layer(unit *u, int64_t layer)
{
    const rssm_pool *pool = &u->job->cpu->pool;
    u->layer = &u->job->io->layers[layer];
    u->step = layer_step(pool, u->job->io, layer);
    u->conv = pool->layers[layer].conv;
}

static unit make_unit(const job *job, rssm_worker *worker)
{
    rssm_cpu *cpu = job->cpu;
    unit u = {.job = job, .worker = worker};
    u.rows = (float *)(void *)((char *)worker->scratch + cpu->scratch_bytes - rssm_states_scratch(cpu->dims));
    u.turned = u.rows + BLOCK_ROWS * cpu->dims.K;
    return u;
}

static void run_part(void *arg, int32_t part)
{
    const job *job = arg;
    const rssm_pool *pool = &job->cpu->pool;
    rssm_worker *worker = rssm_cpu_worker(job->cpu, part);
    int64_t per_entry = job->layer_units * pool->num_layers, units = job->io->n * per_entry;
    unit u = make_unit(job, worker);
    for (int64_t at = units * part / job->parts; at < units * (part + 1) / job->parts; at++) {
        u.i = at / per_entry;
        u.hv = at % job->layer_units;
        u.row = entry(job, u.i, &worker->fault);
        if (u.row.slot < 0)
            continue;
        take_layer(&u, at % per_entry / job->layer_units);
        if (u.hv < pool->HV)
            job->head(&u);
        else
            job->history(&u);
    }
    rssm_fault_or(job->io->fault, worker->fault);
}

/* All units; then `cursor`, if any, for each slot that was not passed over. */
static rssm_status run(job *job, void (*move_cursor)(const rssm_pool *pool, int64_t slot), rssm_error *err)
{
    rssm_cpu *cpu = job->cpu;
    const rssm_pool *pool = &cpu->pool;
    if (pool->K > cpu->dims.K || pool->V > cpu->dims.V || pool->L > cpu->dims.L)
        return rssm_fail(err, RSSM_ERR_INTERNAL, "pool of K = %d, V = %d, L = %d on a CPU instance made for %d, %d, %d",
                         pool->K, pool->V, pool->L, (int)cpu->dims.K, (int)cpu->dims.V, (int)cpu->dims.L);
    uint32_t seen = 0;
    int64_t head = (int64_t)pool->V * pool->K * rssm_cpu_dtype_bytes(pool->layers[0].state.dtype);
    job->layer_units = pool->HV + (job->history && pool->conv_len > 0);
    job->parts = rssm_cpu_parts(cpu, 2 * head * pool->HV * pool->num_layers * job->io->n);
    if (job->writes_slots)
        rssm_cpu_mark_targets(cpu, &job->io->slots, job->io->n);
    rssm_threads_run(cpu->threads, run_part, job, job->parts);
    for (int64_t i = 0; move_cursor && i < job->io->n; i++) {
        rssm_row row = entry(job, i, &seen);
        if (row.slot >= 0)
            move_cursor(pool, row.slot);
    }
    if (job->writes_slots)
        rssm_cpu_clear_marks(cpu, &job->io->slots, job->io->n);
    return RSSM_OK;
}

rssm_status rssm_cpu_import(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    job job = {.cpu = ctx, .io = io, .head = import_head, .history = import_history, .writes_slots = 1};
    (void)stream;
    return run(&job, rssm_cpu_reset_cursor, err);
}

rssm_status rssm_cpu_export(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    job job = {.cpu = ctx, .io = io, .head = export_head, .history = export_history, .reads_records = 1};
    (void)stream;
    return run(&job, NULL, err);
}

rssm_status rssm_cpu_flush(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    job job = {.cpu = ctx, .io = io, .head = flush_head, .writes_slots = 1, .reads_records = 1};
    (void)stream;
    return run(&job, rssm_cpu_empty_ring, err);
}
