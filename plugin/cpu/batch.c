/* A step, or a window, over the backend's threads.
 *
 * The unit of work is one row and one value head; the result of a unit depends on nothing but its inputs, so any split gives
 * the same bits. Each part of a batch is a run of neighbouring units of about equal cost, fixed before it starts. */
#include <string.h>

#include "core/error.h"
#include "cpu/cpu.h"

/* A batch of B x HV units and how to do one of them. */
typedef struct batch {
    rssm_cpu *cpu;
    const rssm_step *step;
    const rssm_window *window; /* NULL: a step */
    rssm_head_fn head;
} batch;

static rssm_row row_of(const batch *batch, int64_t b, uint32_t *fault)
{
    return batch->window ? rssm_cpu_window_row(batch->window, b, fault) : rssm_cpu_row(batch->step, b, fault);
}

static void zero_output(const rssm_step *step, int64_t token, int64_t hv)
{
    int64_t element = rssm_cpu_dtype_bytes(step->out_dtype);
    char *out = (char *)step->out + (token * step->out_row + hv * step->V) * element;
    memset(out, 0, (size_t)(step->V * element));
}

/* One row and value head. A window of no tokens has nothing to do; but see without_tokens in cursor.c for its fold. */
static void do_unit(const batch *batch, rssm_worker *worker, const rssm_row *row, int64_t b, int64_t hv)
{
    if (row->slot >= 0 && (row->len > 0 || row->flush))
        batch->head(worker, batch->step, row, b, hv);
    for (int64_t i = 0; row->slot < 0 && i < row->len; i++)
        zero_output(batch->step, row->start + i, hv);
}

/* Units limits[part] .. limits[part + 1] - 1; unit = row * HV + value head. */
static void run_part(void *arg, int32_t part)
{
    const batch *batch = arg;
    const rssm_step *step = batch->step;
    rssm_worker *worker = rssm_cpu_worker(batch->cpu, part);
    int64_t unit = batch->cpu->limits[part], end = batch->cpu->limits[part + 1];
    while (unit < end) {
        int64_t b = unit / step->HV;
        int64_t row_end = (b + 1) * step->HV < end ? (b + 1) * step->HV : end;
        rssm_row row = row_of(batch, b, &worker->fault);
        for (; unit < row_end; unit++)
            do_unit(batch, worker, &row, b, unit - b * step->HV);
    }
    rssm_fault_or(step->fault, worker->fault);
}

/* Bytes that a unit of the row moves, about: what its time goes by. A flush writes as much as it reads and computes the
 * fold meanwhile: measured, three times a plain unit. A window's tokens after the first find the state in the cache and
 * only compute: half of what reading a float32 state takes. */
static int64_t unit_cost(const rssm_step *step, const rssm_row *row)
{
    if (row->slot < 0 || row->len == 0)
        return 1 + row->len * step->V * (int64_t)sizeof(float);
    int64_t state = (int64_t)step->V * step->K * rssm_cpu_dtype_bytes(step->state.dtype);
    int64_t record = (step->V + step->K) * rssm_cpu_dtype_bytes(rssm_ring_dtype(step));
    if (step->family == RSSM_FAMILY_KDA)
        record += step->K * (int64_t)sizeof(float);
    int64_t more_tokens = (row->len - 1) * (2 * (int64_t)step->V * step->K + record * row->count);
    return state * (row->flush ? 3 : 1) + record * row->count + more_tokens;
}

/* Fills limits with parts runs of about equal cost and returns parts. */
static int32_t split(const batch *batch)
{
    rssm_cpu *cpu = batch->cpu;
    int64_t B = batch->step->B, HV = batch->step->HV, total = 0;
    uint32_t ignored = 0;
    for (int64_t b = 0; b < B; b++) {
        rssm_row row = row_of(batch, b, &ignored);
        total += HV * unit_cost(batch->step, &row);
    }
    int32_t parts = rssm_cpu_parts(cpu, total);
    int64_t part = 1, before = 0;
    for (int64_t b = 0; b < B && part < parts; b++) {
        rssm_row row = row_of(batch, b, &ignored);
        int64_t cost = unit_cost(batch->step, &row);
        for (; part < parts && total / parts * part < before + HV * cost; part++)
            cpu->limits[part] = b * HV + (total / parts * part - before) / cost;
        before += HV * cost;
    }
    cpu->limits[0] = 0;
    for (; part <= parts; part++)
        cpu->limits[part] = B * HV;
    return parts;
}

static int fits(const rssm_cpu *cpu, const rssm_step *step)
{
    return step->K <= cpu->dims.K && step->V <= cpu->dims.V && step->L <= cpu->dims.L;
}

rssm_status rssm_cpu_step(void *ctx, const rssm_step *step, void *stream, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    (void)stream;
    if (!fits(cpu, step))
        return rssm_fail(err, RSSM_ERR_INTERNAL, "step of K = %d, V = %d, L = %d on a CPU instance made for %d, %d, %d",
                         step->K, step->V, step->L, (int)cpu->dims.K, (int)cpu->dims.V, (int)cpu->dims.L);
    batch batch = {.cpu = cpu, .step = step, .head = cpu->kernels ? rssm_fast_head : rssm_reference_head};
    rssm_threads_run(cpu->threads, run_part, &batch, split(&batch));
    return RSSM_OK;
}

rssm_status rssm_cpu_verify(void *ctx, const rssm_window *window, void *stream, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    const rssm_step *step = &window->step;
    (void)stream;
    if (!fits(cpu, step) || window->max_T > cpu->dims.T)
        return rssm_fail(err, RSSM_ERR_INTERNAL,
                         "window of %d tokens, K = %d, V = %d, L = %d on a CPU instance made "
                         "for %d, %d, %d, %d",
                         window->max_T, step->K, step->V, step->L, (int)cpu->dims.T, (int)cpu->dims.K, (int)cpu->dims.V,
                         (int)cpu->dims.L);
    batch batch = {
        .cpu = cpu, .step = step, .window = window, .head = cpu->kernels ? rssm_fast_window : rssm_reference_window};
    rssm_threads_run(cpu->threads, run_part, &batch, split(&batch));
    return RSSM_OK;
}
