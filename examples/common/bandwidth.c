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

/* One thread's share goes in lines of the cache; what is read ahead hides the memory's latency from one core. */
enum { LINE = 64, AHEAD = 4096 };

typedef uint64_t lanes __attribute__((vector_size(32)));

/* So that no compiler drops the reads. */
typedef struct read_job {
    const bandwidth *b;
    uint64_t sums[PARALLEL_MAX_THREADS];
} read_job;

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

int bandwidth_create(bandwidth *b, int64_t bytes, int threads)
{
    const int64_t share = (int64_t)LINE * threads;
    *b = (bandwidth){.bytes = (bytes + share - 1) / share * share, .threads = threads};
    b->from = big_alloc(b->bytes);
    b->to = big_alloc(b->bytes);
    return b->from != NULL && b->to != NULL ? 0 : -1;
}

void bandwidth_free(bandwidth *b)
{
    big_free(b->from, b->bytes);
    big_free(b->to, b->bytes);
    *b = (bandwidth){.bytes = 0};
}

static void read_share(void *context, int64_t i, int worker)
{
    read_job *job = context;
    const int64_t share = job->b->bytes / job->b->threads;
    const unsigned char *p = job->b->from + i * share;
    lanes low = {0}, high = {0};
    for (int64_t at = 0; at < share; at += LINE) {
        __builtin_prefetch(p + at + AHEAD);
        low += *(const lanes *)(const void *)(p + at);
        high += *(const lanes *)(const void *)(p + at + 32);
    }
    low += high;
    job->sums[worker] += low[0] + low[1] + low[2] + low[3];
}

static void copy_share(void *context, int64_t i, int worker)
{
    const bandwidth *b = context;
    const int64_t share = b->bytes / b->threads;
    const unsigned char *from = b->from + i * share;
    unsigned char *to = b->to + i * share;
    (void)worker;
#ifdef __SSE2__
    for (int64_t at = 0; at < share; at += LINE) { /* past the cache: the target is not read first */
        __builtin_prefetch(from + at + AHEAD);
        for (int k = 0; k < LINE; k += 16)
            _mm_stream_si128((__m128i *)(void *)(to + at + k),
                             _mm_load_si128((const __m128i *)(const void *)(from + at + k)));
    }
    _mm_sfence();
#else
    memcpy(to, from, (size_t)share);
#endif
}

double bandwidth_read(bandwidth *b)
{
    read_job job = {.b = b};
    double start = stats_seconds();
    parallel_for(b->threads, b->threads, read_share, &job);
    double seconds = stats_seconds() - start;
    for (int i = 0; i < b->threads; i++)
        b->to[0] = (unsigned char)(b->to[0] + job.sums[i]);
    return (double)b->bytes / seconds;
}

double bandwidth_copy(bandwidth *b)
{
    double start = stats_seconds();
    parallel_for(b->threads, b->threads, copy_share, b);
    return 2.0 * (double)b->bytes / (stats_seconds() - start);
}
