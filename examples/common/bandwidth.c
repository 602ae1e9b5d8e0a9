#define _GNU_SOURCE 1
#include "bandwidth.h"

#include "parallel.h"
#include "stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* One thread's share goes in lines of the cache. */
enum { LINE = 64, TRIES = 5 };

typedef uint64_t lanes __attribute__((vector_size(32)));
typedef uint64_t (*read_loop)(const unsigned char *from, int64_t bytes);
typedef void (*copy_loop)(unsigned char *to, const unsigned char *from, int64_t bytes);

/* The loops that compete to be the yardstick: a figure is no better than the best of them. */
typedef struct contender {
    const char *name;
    int needs_avx2;
    read_loop read; /* one of the two */
    copy_loop copy;
} contender;

typedef struct loop_job {
    const bandwidth *b;
    const contender *loop;
    uint64_t sums[PARALLEL_MAX_THREADS]; /* so that no compiler drops the reads */
} loop_job;

void *big_alloc(int64_t bytes)
{
    void *ptr = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED)
        return NULL;
    madvise(ptr, (size_t)bytes, MADV_HUGEPAGE);
    memset(ptr, 0, (size_t)bytes); /* the pages exist before the clock runs */
    return ptr;
}

void big_free(void *ptr, int64_t bytes)
{
    if (ptr != NULL)
        munmap(ptr, (size_t)bytes);
}

/* One attribute of a CPU's cache as the kernel tells it; 0 = no such file. */
static int cache_attribute(int cpu, int index, const char *name, const char *format, int64_t *value)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/%s", cpu, index, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int found = fscanf(file, format, value) == 1;
    fclose(file);
    return found;
}

/* A machine may have several: each counts once, at the first CPU that shares it. (What sysconf says is the socket's,
 * also where a virtual machine has a small part of it.) */
int64_t last_level_cache_bytes(void)
{
    int64_t total = 0;
    for (int cpu = 0; cpu < PARALLEL_MAX_THREADS; cpu++) {
        int64_t first = cpu, kib = 0, size, sharing;
        for (int index = 0; cache_attribute(cpu, index, "size", "%" SCNd64 "K", &size); index++) {
            if (size <= kib || !cache_attribute(cpu, index, "shared_cpu_list", "%" SCNd64, &sharing))
                continue;
            kib = size;
            first = sharing;
        }
        total += first == cpu ? 1024 * kib : 0;
    }
    return total > 0 ? total : 32 << 20; /* the system does not say */
}

/* ---- the loops ------------------------------------------------------------------------------------------------ */

/* `every` bytes one line is asked for, `ahead` bytes before its turn; every = 0: left to the machine. */
static inline __attribute__((always_inline)) uint64_t read_lines(const unsigned char *from, int64_t bytes,
                                                                 int64_t every, int64_t ahead)
{
    lanes sums[4] = {{0}, {0}, {0}, {0}};
    for (int64_t at = 0; at + 4 * LINE <= bytes; at += 4 * LINE) {
        for (int64_t line = 0; every > 0 && line < 4 * LINE; line += every)
            __builtin_prefetch(from + at + ahead + line, 0, 2);
        for (int i = 0; i < 8; i++)
            sums[i % 4] += *(const lanes *)(const void *)(from + at + 32 * i);
    }
    lanes sum = sums[0] + sums[1] + sums[2] + sums[3];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

#define READ_LOOP(name, target, every, ahead)                             \
    target static uint64_t name(const unsigned char *from, int64_t bytes) \
    {                                                                     \
        return read_lines(from, bytes, every, ahead);                     \
    }
READ_LOOP(read_plain, , 0, 0)
READ_LOOP(read_near, , LINE, 4096)
READ_LOOP(read_far, , 4 * LINE, 16384)

static void copy_library(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    memcpy(to, from, (size_t)bytes);
}

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))
READ_LOOP(read_plain_avx2, AVX2, 0, 0)
READ_LOOP(read_near_avx2, AVX2, LINE, 4096)
READ_LOOP(read_far_avx2, AVX2, 4 * LINE, 16384)

/* Past the cache: the target is not read first. */
static inline __attribute__((always_inline)) void stream_lines(unsigned char *to, const unsigned char *from,
                                                               int64_t bytes, int64_t every, int64_t ahead)
{
    for (int64_t at = 0; at + 4 * LINE <= bytes; at += 4 * LINE) {
        for (int64_t line = 0; every > 0 && line < 4 * LINE; line += every)
            __builtin_prefetch(from + at + ahead + line, 0, 2);
        for (int i = 0; i < 4 * LINE; i += 16)
            _mm_stream_si128((__m128i *)(void *)(to + at + i),
                             _mm_load_si128((const __m128i *)(const void *)(from + at + i)));
    }
    _mm_sfence();
}

static void copy_stream(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    stream_lines(to, from, bytes, 0, 0);
}
static void copy_stream_near(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    stream_lines(to, from, bytes, LINE, 4096);
}
static void copy_stream_far(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    stream_lines(to, from, bytes, 4 * LINE, 16384);
}
#endif

static const contender contenders[] = {
    {"plain", 0, read_plain, NULL},
    {"each line 4 KiB ahead", 0, read_near, NULL},
    {"one line in four 16 KiB ahead", 0, read_far, NULL},
    {"memcpy", 0, NULL, copy_library},
#ifdef __x86_64__
    {"plain, AVX2", 1, read_plain_avx2, NULL},
    {"each line 4 KiB ahead, AVX2", 1, read_near_avx2, NULL},
    {"one line in four 16 KiB ahead, AVX2", 1, read_far_avx2, NULL},
    {"past the cache", 0, NULL, copy_stream},
    {"past the cache, each line 4 KiB ahead", 0, NULL, copy_stream_near},
    {"past the cache, one line in four 16 KiB ahead", 0, NULL, copy_stream_far},
#endif
};
enum { NUM_CONTENDERS = sizeof contenders / sizeof contenders[0] };

static int runs_here(const contender *loop)
{
#ifdef __x86_64__
    return !loop->needs_avx2 || __builtin_cpu_supports("avx2");
#else
    return !loop->needs_avx2;
#endif
}

static void run_share(void *context, int64_t i, int worker)
{
    loop_job *job = context;
    const bandwidth *b = job->b;
    const int64_t share = b->bytes / b->threads;
    if (job->loop->read != NULL)
        job->sums[worker] += job->loop->read(b->from + i * share, share);
    else
        job->loop->copy(b->to + i * share, b->from + i * share, share);
}

/* Bytes per second of one pass. */
static double run_loop(bandwidth *b, const contender *loop)
{
    loop_job job = {.b = b, .loop = loop};
    double start = stats_seconds();
    parallel_for(b->threads, b->threads, run_share, &job);
    double seconds = stats_seconds() - start;
    for (int i = 0; i < b->threads; i++)
        b->from[0] = (unsigned char)(b->from[0] + job.sums[i]);
    return (loop->read != NULL ? 1.0 : 2.0) * (double)b->bytes / seconds;
}

/* The fastest read and copy loops, by their best of some interleaved tries. */
static void choose_loops(bandwidth *b)
{
    double best[NUM_CONTENDERS] = {0}, best_read = 0, best_copy = 0;
    for (int try = 0; try < TRIES; try++)
        for (int i = 0; i < NUM_CONTENDERS; i++) {
            double rate = runs_here(&contenders[i]) ? run_loop(b, &contenders[i]) : 0;
            best[i] = rate > best[i] ? rate : best[i];
        }
    for (int i = 0; i < NUM_CONTENDERS; i++) {
        const contender *loop = &contenders[i];
        double *record = loop->read != NULL ? &best_read : &best_copy;
        if (best[i] <= *record)
            continue;
        *record = best[i];
        *(loop->read != NULL ? &b->read : &b->copy) = i;
    }
}

int bandwidth_create(bandwidth *b, int64_t bytes, int threads)
{
    const int64_t share = (int64_t)4 * LINE * threads;
    *b = (bandwidth){.bytes = (bytes + share - 1) / share * share, .threads = threads};
    b->from = big_alloc(b->bytes);
    b->to = big_alloc(b->bytes);
    if (b->from == NULL || b->to == NULL)
        return -1;
    choose_loops(b);
    return 0;
}

void bandwidth_free(bandwidth *b)
{
    big_free(b->from, b->bytes);
    big_free(b->to, b->bytes);
    *b = (bandwidth){.bytes = 0};
}

double bandwidth_read(bandwidth *b)
{
    return run_loop(b, &contenders[b->read]);
}

double bandwidth_copy(bandwidth *b)
{
    return run_loop(b, &contenders[b->copy]);
}

const char *bandwidth_read_loop(const bandwidth *b)
{
    return contenders[b->read].name;
}

const char *bandwidth_copy_loop(const bandwidth *b)
{
    return contenders[b->copy].name;
}
