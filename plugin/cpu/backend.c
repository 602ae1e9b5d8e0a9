/* The CPU backend: its instance, and a step spread over its threads.
 *
 * The unit of work is one row and one value head; the result of a unit depends on nothing but its inputs, so any split gives
 * the same bits. Each part of a step is a run of neighbouring units of about equal cost, fixed before it starts. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/error.h"
#include "core/mem.h"
#include "cpu/cpu.h"
#include "cpu/dtype.h"

enum {
    POOL_ALIGNMENT = 256,
    LARGE_PAGE = 2 << 20,
    WORKER_ALIGNMENT = 128,        /* two cache lines: neighbours are fetched in pairs */
    MIN_BYTES_PER_PART = 96 << 10, /* below that waking a thread costs more than it saves */
};

typedef struct cpu_instance {
    rssm_backend_options options;
    rssm_allocator mem;
    rssm_head_fn head;
    const rssm_cpu_kernels *kernels; /* NULL: the reference */
    rssm_cpu_dims dims;
    rssm_threads *threads;
    int64_t scratch_bytes; /* of one worker */
    char *scratch;
    rssm_worker *workers; /* [num_workers] */
    int64_t *limits;      /* [num_workers + 1] first unit of each part of the step */
    int32_t num_workers;
    uint32_t fault;
    rssm_pool pool;
    const rssm_step *step; /* the one that runs */
} cpu_instance;

/* Room for 8192 CPUs: the kernel refuses a set smaller than its own. */
static int32_t affinity_count(void)
{
    cpu_set_t allowed[8];
    memset(allowed, 0, sizeof allowed);
    return sched_getaffinity(0, sizeof allowed, allowed) == 0 ? CPU_COUNT_S(sizeof allowed, allowed) : 1;
}

int32_t rssm_cpu_thread_count(int32_t num_threads)
{
    if (num_threads <= 0)
        num_threads = affinity_count();
    if (num_threads < 1)
        return 1;
    return num_threads < RSSM_CPU_MAX_THREADS ? num_threads : RSSM_CPU_MAX_THREADS;
}

const char *rssm_cpu_level_name(int32_t cpu_level, int32_t cpu_reference)
{
    return cpu_reference ? "reference" : rssm_cpu_select(cpu_level)->name;
}

static rssm_cpu_dims largest_dims(const rssm_backend_options *options)
{
    return (rssm_cpu_dims){.K = options->max_K > 0 ? options->max_K : 4096,
                           .V = options->max_V > 0 ? options->max_V : 4096,
                           .L = options->max_L > 0 ? options->max_L : 64};
}

static int64_t worker_scratch(const rssm_backend_options *options)
{
    rssm_cpu_dims dims = largest_dims(options);
    int64_t bytes = options->cpu_reference ? rssm_reference_scratch(dims) : rssm_fast_scratch(dims);
    return (bytes + WORKER_ALIGNMENT - 1) / WORKER_ALIGNMENT * WORKER_ALIGNMENT;
}

static int64_t cpu_workspace_bytes(const rssm_backend_options *options)
{
    return worker_scratch(options) * rssm_cpu_thread_count(options->num_threads);
}

static void cpu_close(void *ctx)
{
    cpu_instance *cpu = ctx;
    if (!cpu)
        return;
    rssm_allocator mem = cpu->mem;
    size_t workers = (size_t)cpu->num_workers;
    rssm_threads_close(cpu->threads);
    rssm_mem_free(&mem, cpu->limits, (workers + 1) * sizeof *cpu->limits);
    rssm_mem_free(&mem, cpu->workers, workers * sizeof *cpu->workers);
    rssm_mem_free(&mem, cpu->scratch, workers * (size_t)cpu->scratch_bytes);
    rssm_mem_free(&mem, cpu, sizeof *cpu);
}

static void log_open(const cpu_instance *cpu)
{
    if (!cpu->options.log)
        return;
    char message[128];
    int32_t threads = rssm_threads_count(cpu->threads);
    snprintf(message, sizeof message, "cpu: level %s, %d thread%s%s",
             rssm_cpu_level_name(cpu->options.cpu_level, cpu->options.cpu_reference), (int)threads,
             threads == 1 ? "" : "s",
             threads == 1 && cpu->options.num_threads == 0 ? " (the affinity mask allows one core)" : "");
    cpu->options.log(cpu->options.log_user, RSSM_LOG_INFO, message);
}

static int allocate_workers(cpu_instance *cpu)
{
    size_t workers = (size_t)cpu->num_workers;
    cpu->threads = rssm_threads_open(&cpu->mem, cpu->num_workers, cpu->options.log, cpu->options.log_user);
    cpu->limits = rssm_mem_alloc(&cpu->mem, (workers + 1) * sizeof *cpu->limits, _Alignof(int64_t));
    cpu->workers = rssm_mem_alloc(&cpu->mem, workers * sizeof *cpu->workers, WORKER_ALIGNMENT);
    cpu->scratch = rssm_mem_alloc(&cpu->mem, workers * (size_t)cpu->scratch_bytes, WORKER_ALIGNMENT);
    if (!cpu->threads || !cpu->limits || !cpu->workers || !cpu->scratch)
        return 0;
    for (size_t i = 0; i < workers; i++) {
        cpu->workers[i].kernels = cpu->kernels;
        cpu->workers[i].scratch = cpu->scratch + i * (size_t)cpu->scratch_bytes;
    }
    return 1;
}

static rssm_status cpu_open(const rssm_backend_options *options, void **ctx, rssm_error *err)
{
    rssm_allocator mem = *options->mem;
    cpu_instance *cpu = rssm_mem_alloc(&mem, sizeof *cpu, _Alignof(cpu_instance));
    if (!cpu)
        return rssm_out_of_memory(err);
    *cpu = (cpu_instance){.options = *options, .mem = mem};
    cpu->dims = largest_dims(options);
    cpu->num_workers = rssm_cpu_thread_count(options->num_threads);
    cpu->scratch_bytes = worker_scratch(options);
    cpu->kernels = options->cpu_reference ? NULL : rssm_cpu_select(options->cpu_level);
    cpu->head = options->cpu_reference ? rssm_reference_head : rssm_fast_head;
    if (!allocate_workers(cpu)) {
        cpu_close(cpu);
        return rssm_out_of_memory(err);
    }
    log_open(cpu);
    *ctx = cpu;
    return RSSM_OK;
}

static const char *cpu_level(const void *ctx)
{
    const cpu_instance *cpu = ctx;
    return cpu->kernels ? cpu->kernels->name : "reference";
}

static int32_t cpu_threads(const void *ctx)
{
    return rssm_threads_count(((const cpu_instance *)ctx)->threads);
}

/* Asks for large pages where whole ones fit, before the memory is touched: a pool is far beyond what the TLB covers with
 * small ones, and a step reads it nearly twice as fast. A hint: it may fail. */
static void advise_large_pages(void *memory, int64_t bytes)
{
    uintptr_t first = ((uintptr_t)memory + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / LARGE_PAGE * LARGE_PAGE;
    if (end > first)
        madvise((char *)memory + (first - (uintptr_t)memory), end - first, MADV_HUGEPAGE);
}

static rssm_status cpu_alloc(void *ctx, int64_t bytes, void **ptr, rssm_error *err)
{
    cpu_instance *cpu = ctx;
    void *memory = cpu->mem.alloc(cpu->mem.user, (uint64_t)bytes, POOL_ALIGNMENT);
    if (!memory)
        return rssm_out_of_memory(err);
    advise_large_pages(memory, bytes);
    memset(memory, 0, (size_t)bytes);
    *ptr = memory;
    return RSSM_OK;
}

static void cpu_free(void *ctx, void *ptr, int64_t bytes)
{
    rssm_mem_free(&((cpu_instance *)ctx)->mem, ptr, (size_t)bytes);
}

static rssm_status cpu_bind(void *ctx, const rssm_pool *pool, rssm_error *err)
{
    (void)err;
    ((cpu_instance *)ctx)->pool = *pool;
    return RSSM_OK;
}

static rssm_status cpu_reset(void *ctx, const rssm_index *slots, int64_t count, void *stream, rssm_error *err)
{
    (void)stream;
    (void)err;
    rssm_cpu_reset(&((cpu_instance *)ctx)->pool, slots, count);
    return RSSM_OK;
}

static rssm_status cpu_step_begin(void *ctx, const rssm_begin *begin, void *stream, rssm_error *err)
{
    (void)ctx;
    (void)stream;
    (void)err;
    rssm_cpu_begin(begin);
    return RSSM_OK;
}

static void zero_output(const rssm_step *step, int64_t b, int64_t hv)
{
    int64_t element = rssm_cpu_dtype_bytes(step->out_dtype);
    char *out = (char *)step->out + (b * step->out_row + hv * step->V) * element;
    memset(out, 0, (size_t)(step->V * element));
}

/* Units limits[part] .. limits[part + 1] - 1; unit = row * HV + value head. */
static void run_part(void *arg, int32_t part)
{
    cpu_instance *cpu = arg;
    const rssm_step *step = cpu->step;
    rssm_worker *worker = &cpu->workers[part];
    worker->fault = 0;
    worker->cached_row = worker->cached_head = -1;
    int64_t unit = cpu->limits[part], end = cpu->limits[part + 1];
    while (unit < end) {
        int64_t b = unit / step->HV;
        int64_t row_end = (b + 1) * step->HV < end ? (b + 1) * step->HV : end;
        rssm_row row = rssm_cpu_row(step, b, &worker->fault);
        for (; unit < row_end; unit++) {
            if (row.slot < 0)
                zero_output(step, b, unit - b * step->HV);
            else
                cpu->head(worker, step, &row, b, unit - b * step->HV);
        }
    }
    rssm_fault_or(step->fault, worker->fault);
}

/* Bytes that a unit of the row moves, about: what its time goes by. A flush writes as much as it reads and computes the
 * fold meanwhile: measured, three times a plain unit. */
static int64_t unit_cost(const rssm_step *step, const rssm_row *row)
{
    if (row->slot < 0)
        return step->V * (int64_t)sizeof(float);
    int64_t state = (int64_t)step->V * step->K * rssm_cpu_dtype_bytes(step->state.dtype);
    int64_t record = (step->V + step->K) * rssm_cpu_dtype_bytes(rssm_ring_dtype(step));
    if (step->family == RSSM_FAMILY_KDA)
        record += step->K * (int64_t)sizeof(float);
    return state * (row->flush ? 3 : 1) + record * row->count;
}

/* Fills limits with parts runs of about equal cost and returns parts. */
static int32_t split(cpu_instance *cpu, const rssm_step *step)
{
    uint32_t ignored = 0;
    int64_t total = 0;
    for (int64_t b = 0; b < step->B; b++) {
        rssm_row row = rssm_cpu_row(step, b, &ignored);
        total += step->HV * unit_cost(step, &row);
    }
    int64_t parts = total / MIN_BYTES_PER_PART;
    parts = parts < 1 ? 1 : parts < cpu->num_workers ? parts : cpu->num_workers;
    int64_t part = 1, before = 0;
    for (int64_t b = 0; b < step->B && part < parts; b++) {
        rssm_row row = rssm_cpu_row(step, b, &ignored);
        int64_t cost = unit_cost(step, &row);
        for (; part < parts && total / parts * part < before + step->HV * cost; part++)
            cpu->limits[part] = b * step->HV + (total / parts * part - before) / cost;
        before += step->HV * cost;
    }
    cpu->limits[0] = 0;
    for (; part <= parts; part++)
        cpu->limits[part] = (int64_t)step->B * step->HV;
    return (int32_t)parts;
}

static rssm_status cpu_step(void *ctx, const rssm_step *step, void *stream, rssm_error *err)
{
    cpu_instance *cpu = ctx;
    (void)stream;
    if (step->K > cpu->dims.K || step->V > cpu->dims.V || step->L > cpu->dims.L)
        return rssm_fail(err, RSSM_ERR_INTERNAL, "step of K = %d, V = %d, L = %d on a CPU instance made for %d, %d, %d",
                         step->K, step->V, step->L, (int)cpu->dims.K, (int)cpu->dims.V, (int)cpu->dims.L);
    int32_t parts = split(cpu, step);
    cpu->step = step;
    rssm_threads_run(cpu->threads, run_part, cpu, parts);
    cpu->step = NULL;
    return RSSM_OK;
}

static uint32_t *cpu_fault_word(void *ctx)
{
    return &((cpu_instance *)ctx)->fault;
}

static rssm_status cpu_fault_read(void *ctx, void *stream, uint32_t *word, rssm_error *err)
{
    (void)stream;
    (void)err;
    *word = __atomic_load_n(&((cpu_instance *)ctx)->fault, __ATOMIC_RELAXED);
    return RSSM_OK;
}

static rssm_status cpu_fault_clear(void *ctx, void *stream, rssm_error *err)
{
    (void)stream;
    (void)err;
    __atomic_store_n(&((cpu_instance *)ctx)->fault, 0, __ATOMIC_RELAXED);
    return RSSM_OK;
}

static rssm_status cpu_to_host(void *ctx, void *dst, const void *src, int64_t bytes, void *stream, rssm_error *err)
{
    (void)ctx;
    (void)stream;
    (void)err;
    memcpy(dst, src, (size_t)bytes);
    return RSSM_OK;
}

static const rssm_backend backend = {
    .name = "cpu",
    .device_type = kDLCPU,
    .workspace_bytes = cpu_workspace_bytes,
    .open = cpu_open,
    .close = cpu_close,
    .level = cpu_level,
    .threads = cpu_threads,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .bind = cpu_bind,
    .reset = cpu_reset,
    .step_begin = cpu_step_begin,
    .step = cpu_step,
    .fault_word = cpu_fault_word,
    .fault_read = cpu_fault_read,
    .fault_clear = cpu_fault_clear,
    .to_host = cpu_to_host,
};

const rssm_backend *rssm_cpu_backend(void)
{
    return &backend;
}
