/* The CPU backend: its instance and its table. The work is in batch.c (steps, windows), conv.c, cursor.c, slots.c
 * and states.c. */
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
    WORKER_ALIGNMENT = 128 /* two cache lines: neighbours are fetched in pairs */
};

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
                           .L = options->max_L > 0 ? options->max_L : 64,
                           .T = options->max_T > 0 ? options->max_T : 1,
                           .width = options->conv_width};
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t worker_scratch(const rssm_backend_options *options)
{
    rssm_cpu_dims dims = largest_dims(options);
    int64_t bytes = options->cpu_reference ? rssm_reference_scratch(dims) : rssm_fast_scratch(dims);
    bytes = larger(bytes + rssm_states_scratch(dims), rssm_conv_scratch(dims));
    return (bytes + WORKER_ALIGNMENT - 1) / WORKER_ALIGNMENT * WORKER_ALIGNMENT;
}

static int64_t cpu_workspace_bytes(const rssm_backend_options *options)
{
    return worker_scratch(options) * rssm_cpu_thread_count(options->num_threads);
}

static void cpu_close(void *ctx)
{
    rssm_cpu *cpu = ctx;
    if (!cpu)
        return;
    rssm_allocator mem = cpu->mem;
    size_t workers = (size_t)cpu->num_workers;
    rssm_threads_close(cpu->threads);
    rssm_mem_free(&mem, cpu->marks, (size_t)cpu->pool.S);
    rssm_mem_free(&mem, cpu->limits, (workers + 1) * sizeof *cpu->limits);
    rssm_mem_free(&mem, cpu->workers, workers * sizeof *cpu->workers);
    rssm_mem_free(&mem, cpu->scratch, workers * (size_t)cpu->scratch_bytes);
    rssm_mem_free(&mem, cpu, sizeof *cpu);
}

static void log_open(const rssm_cpu *cpu)
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

static int allocate_workers(rssm_cpu *cpu)
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
        cpu->workers[i].tokens = (int32_t)cpu->dims.T;
        cpu->workers[i].scratch = cpu->scratch + i * (size_t)cpu->scratch_bytes;
    }
    return 1;
}

static rssm_status cpu_open(const rssm_backend_options *options, void **ctx, rssm_error *err)
{
    rssm_allocator mem = *options->mem;
    rssm_cpu *cpu = rssm_mem_alloc(&mem, sizeof *cpu, _Alignof(rssm_cpu));
    if (!cpu)
        return rssm_out_of_memory(err);
    *cpu = (rssm_cpu){.options = *options, .mem = mem};
    cpu->dims = largest_dims(options);
    cpu->num_workers = rssm_cpu_thread_count(options->num_threads);
    cpu->scratch_bytes = worker_scratch(options);
    cpu->kernels = options->cpu_reference ? NULL : rssm_cpu_select(options->cpu_level);
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
    const rssm_cpu *cpu = ctx;
    return cpu->kernels ? cpu->kernels->name : "reference";
}

static int32_t cpu_threads(const void *ctx)
{
    return rssm_threads_count(((const rssm_cpu *)ctx)->threads);
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
    rssm_cpu *cpu = ctx;
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
    rssm_mem_free(&((rssm_cpu *)ctx)->mem, ptr, (size_t)bytes);
}

static rssm_status cpu_bind(void *ctx, const rssm_pool *pool, rssm_error *err)
{
    rssm_cpu *cpu = ctx;
    unsigned char *marks = rssm_mem_alloc(&cpu->mem, (size_t)pool->S, 1);
    if (!marks)
        return rssm_out_of_memory(err);
    rssm_mem_free(&cpu->mem, cpu->marks, (size_t)cpu->pool.S);
    cpu->marks = marks;
    cpu->pool = *pool;
    return RSSM_OK;
}

static rssm_status cpu_reset(void *ctx, const rssm_index *slots, int64_t count, void *stream, rssm_error *err)
{
    (void)stream;
    (void)err;
    rssm_cpu_reset(&((rssm_cpu *)ctx)->pool, slots, count);
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

static rssm_status cpu_verify_begin(void *ctx, const rssm_verify_begin *begin, void *stream, rssm_error *err)
{
    (void)ctx;
    (void)stream;
    (void)err;
    rssm_cpu_verify_begin(begin);
    return RSSM_OK;
}

static rssm_status cpu_commit(void *ctx, const rssm_commit *commit, void *stream, rssm_error *err)
{
    (void)ctx;
    (void)stream;
    (void)err;
    rssm_cpu_commit(commit);
    return RSSM_OK;
}

int32_t rssm_cpu_parts(const rssm_cpu *cpu, int64_t bytes)
{
    int64_t parts = bytes / RSSM_MIN_BYTES_PER_PART;
    return parts < 1 ? 1 : parts < cpu->num_workers ? (int32_t)parts : cpu->num_workers;
}

rssm_worker *rssm_cpu_worker(rssm_cpu *cpu, int32_t part)
{
    rssm_worker *worker = &cpu->workers[part];
    worker->fault = 0;
    worker->cached_row = worker->cached_head = -1;
    return worker;
}

static uint32_t *cpu_fault_word(void *ctx)
{
    return &((rssm_cpu *)ctx)->fault;
}

static rssm_status cpu_fault_read(void *ctx, void *stream, uint32_t *word, rssm_error *err)
{
    (void)stream;
    (void)err;
    *word = __atomic_load_n(&((rssm_cpu *)ctx)->fault, __ATOMIC_RELAXED);
    return RSSM_OK;
}

static rssm_status cpu_fault_clear(void *ctx, void *stream, rssm_error *err)
{
    (void)stream;
    (void)err;
    __atomic_store_n(&((rssm_cpu *)ctx)->fault, 0, __ATOMIC_RELAXED);
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
    .step = rssm_cpu_step,
    .verify_begin = cpu_verify_begin,
    .verify = rssm_cpu_verify,
    .commit = cpu_commit,
    .conv = rssm_cpu_conv,
    .copy = rssm_cpu_copy,
    .import_state = rssm_cpu_import,
    .export_state = rssm_cpu_export,
    .flush = rssm_cpu_flush,
    .read_slot = rssm_cpu_read_slot,
    .write_slot = rssm_cpu_write_slot,
    .fault_word = cpu_fault_word,
    .fault_read = cpu_fault_read,
    .fault_clear = cpu_fault_clear,
    .to_host = cpu_to_host,
};

const rssm_backend *rssm_cpu_backend(void)
{
    return &backend;
}
