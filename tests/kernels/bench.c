/* --bench: each vector function on data in the first-level cache, then whole steps that stream a pool larger than the last
 * cache, beside the read and copy bandwidth of the same threads, all interleaved: other tenants of the machine make one
 * array's bandwidth drift by 2-3 x, so only ratios inside a run mean anything. Figures are medians. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "cpu/kernels.h"
#include "cpu/threads.h"
#include "harness.h"

enum { ROUNDS = 41, SMALL_ROUNDS = 9 };
static const int64_t working_set = (int64_t)288 << 20; /* >= 8 x the last-level cache of most machines */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, by_value);
    return times[n / 2];
}

/* Memory as the backend gives it to a pool, also for the yardstick. */
static void *pages(void *ctx, int64_t bytes)
{
    void *p = NULL;
    rssm_error err = {.struct_size = sizeof err};
    if (rssm_cpu_backend()->alloc(ctx, bytes, &p, &err) != RSSM_OK) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    return p;
}

/* ---- functions ---- */

typedef struct subject {
    const rssm_cpu_kernels *f;
    int32_t kind;
    float *x, *y, *z, *u, *w, *g; /* 16 x 128 floats each */
    void *m;
} subject;

enum { N = 128, ROWS = 16 };

static void time_load(const subject *s)
{
    s->f->load[s->kind](s->x, s->m, N);
}
static void time_store(const subject *s)
{
    s->f->store[s->kind](s->m, s->x, N);
}
static void time_exp(const subject *s)
{
    s->f->exp(s->y, s->g, N);
}
static void time_gate(const subject *s)
{
    s->f->gate(s->y, s->x, s->z, (rssm_gate){1, 0}, N);
}
static void time_convolve(const subject *s)
{
    s->f->convolve(s->y, s->x, s->z, s->w, 4, N, N);
}
static void time_sum_squares(const subject *s)
{
    s->y[0] = (float)s->f->sum_squares(s->x, N);
}
static void time_delta(const subject *s)
{
    s->f->delta(s->y, s->u, s->x, s->z, s->w, 0.5f, 0.5f, N);
}
static void time_dot2(const subject *s)
{
    s->f->dot2[s->kind](s->y, s->u, s->m, ROWS, N, s->x, s->z);
}
static void time_dot1(const subject *s)
{
    s->f->dot1[s->kind](s->y, s->m, ROWS, N, s->x);
}
static void time_record(const subject *s)
{
    float dots[2];
    s->f->record[s->kind](s->w, dots, s->m, s->g, s->u, s->x, s->z, N, s->m);
    memset(s->u, 0, N * sizeof(float));
}
static void time_combine2(const subject *s)
{
    s->f->combine2[s->kind](s->y, s->u, s->m, ROWS, N, s->g, s->g);
}
static void time_fold(const subject *s)
{
    rssm_fold fold = {.decay = s->g, .d = s->z, .k = s->w, .d_row = N, .k_row = N, .terms = ROWS};
    s->f->fold[s->kind](s->m, ROWS, N, &fold);
}

static const struct timed {
    const char *name;
    void (*run)(const subject *s);
    int32_t by_kind;
} timed[] = {{"load", time_load, 1},     {"store", time_store, 1},           {"exp", time_exp, 0},
             {"gate", time_gate, 0},     {"convolve w=4", time_convolve, 0}, {"sum_squares", time_sum_squares, 0},
             {"delta", time_delta, 0},   {"dot2 x16", time_dot2, 1},         {"dot1 x16", time_dot1, 1},
             {"record", time_record, 1}, {"combine2 x16", time_combine2, 1}, {"fold 16x16", time_fold, 1}};

static double time_function(const struct timed *what, subject *s)
{
    double times[SMALL_ROUNDS];
    for (int round = 0; round < SMALL_ROUNDS; round++) {
        memset(s->m, 0, ROWS * N * sizeof(float));
        for (int i = 0; i < ROWS * N; i++)
            s->x[i] = s->y[i] = s->z[i] = s->u[i] = s->w[i] = s->g[i] = 0.01f;
        double start = now();
        for (int i = 0; i < 1000; i++)
            what->run(s);
        times[round] = (now() - start) / 1000;
    }
    return median(times, SMALL_ROUNDS);
}

static void bench_functions(void)
{
    static const char *const kinds[] = {"f32", "bf16", "fp16"};
    level_under_test levels[MAX_LEVELS];
    int32_t count = available_levels(levels);
    char *memory = aligned_alloc(64, 8 * ROWS * N * 4);
    if (!memory)
        exit(2);
    subject s = {0};
    float **arrays[] = {&s.x, &s.y, &s.z, &s.u, &s.w, &s.g};
    for (int i = 0; i < 6; i++)
        *arrays[i] = (float *)(void *)(memory + i * ROWS * N * 4);
    s.m = memory + 6 * ROWS * N * 4;
    printf("ns per call, n = %d, in cache\n%-18s", N, "");
    for (int32_t i = 1; i < count; i++)
        printf("%10s", levels[i].name);
    printf("\n");
    for (size_t w = 0; w < sizeof timed / sizeof timed[0]; w++)
        for (s.kind = 0; s.kind < (timed[w].by_kind ? 3 : 1); s.kind++) {
            printf("%-13s%-5s", timed[w].name, timed[w].by_kind ? kinds[s.kind] : "");
            for (int32_t i = 1; i < count; i++) {
                s.f = rssm_cpu_select(levels[i].cpu_level);
                printf("%10.1f", 1e9 * time_function(&timed[w], &s));
            }
            printf("\n");
        }
    free(memory);
}

/* ---- steps ---- */

typedef struct shape {
    const char *name;
    int32_t family, H, HV, K, V;
} shape;

static const shape shapes[] = {{"kda 32x128x128", RSSM_FAMILY_KDA, 32, 32, 128, 128},
                               {"gdn 16/32x128x128", RSSM_FAMILY_GDN, 16, 32, 128, 128},
                               {"mamba2 8/64x64x128", RSSM_FAMILY_MAMBA2, 8, 64, 128, 64}};

/* A pool of one layer and a batch over all its slots. */
typedef struct stream {
    rssm_step step;
    double bytes; /* moved by one step */
    int32_t *rows;
    char *memory;
    int64_t memory_bytes;
    uint32_t fault;
} stream;

static void random_floats(random_state *r, int32_t dtype, void *data, int64_t n, double spread)
{
    uint64_t pattern[64];
    float values[128];
    for (int i = 0; i < 128; i++)
        values[i] = (float)(spread * random_normal(r));
    for (int i = 0; i < 128; i++)
        element_set(dtype, pattern, i, (double)values[i]);
    int64_t chunk = 128 * element_bytes(dtype), total = n * element_bytes(dtype);
    for (int64_t at = 0; at < total; at += chunk)
        memcpy((char *)data + at, pattern, (size_t)(total - at < chunk ? total - at : chunk));
}

static rssm_input stream_input(char **memory, random_state *r, int32_t dtype, int64_t B, int64_t width, double spread)
{
    rssm_input input = {.data = *memory, .row = width, .dtype = dtype};
    random_floats(r, dtype, *memory, B * width, spread);
    *memory += (B * width * element_bytes(dtype) + 63) / 64 * 64;
    return input;
}

static rssm_pooled stream_pooled(char **memory, random_state *r, int32_t dtype, int64_t S, int64_t width, double spread)
{
    rssm_pooled pooled = {.data = *memory, .slot = width, .dtype = dtype};
    random_floats(r, dtype, *memory, S * width, spread);
    *memory += (S * width * element_bytes(dtype) + 4095) / 4096 * 4096;
    return pooled;
}

/* Cursors spread evenly over the window: the average step. */
static void stream_rows(stream *s)
{
    rssm_step *step = &s->step;
    int64_t gates = step->family == RSSM_FAMILY_KDA ? step->K : 1;
    double state = (double)step->HV * step->V * step->K * (double)element_bytes(step->state.dtype);
    double record = (double)(step->HV * step->V + step->H * step->K) * (double)element_bytes(step->d_cache.dtype) +
                    4.0 * (double)(step->HV * gates);
    double io = (double)(2 * step->H * step->K + 2 * step->HV * step->V) * (double)element_bytes(step->q.dtype);
    s->bytes = 0;
    for (int32_t b = 0; b < step->B; b++) {
        int32_t count = b % step->L, flush = count >= step->L - 1;
        const int32_t row[8] = {b, (b * 7) % step->R, count, flush, 0, b, 1, 0};
        memcpy(s->rows + 8 * b, row, sizeof row);
        s->bytes += state * (flush ? 2 : 1) + record * (count + !flush) + io + (double)(step->HV * gates * 2);
    }
}

static void stream_make(stream *s, void *ctx, const shape *shape, int32_t state, int32_t io, int32_t L)
{
    random_state r = {7};
    int64_t H = shape->H, HV = shape->HV, K = shape->K, V = shape->V;
    int64_t gates = shape->family == RSSM_FAMILY_KDA ? HV * K : HV;
    *s = (stream){.step = {.family = shape->family,
                           .H = shape->H,
                           .HV = shape->HV,
                           .K = shape->K,
                           .V = shape->V,
                           .L = L,
                           .R = L,
                           .pad_slot = -1,
                           .scale = 0.088f,
                           .beta_scale = 1,
                           .dt_max = INFINITY,
                           .norm_eps = 1e-6f,
                           .rows_row = 8,
                           .out_dtype = io}};
    rssm_step *step = &s->step;
    step->flags = shape->family == RSSM_FAMILY_MAMBA2 ? RSSM_STEP_DT_SOFTPLUS : RSSM_STEP_QK_NORM;
    step->B = (int32_t)(working_set / (HV * V * K * element_bytes(state)));
    step->B = step->B < 16 ? 16 : step->B / 16 * 16;
    step->S = step->B;
    int64_t slot = HV * V * K * 4 + L * (HV * V + H * K) * 4 + L * gates * 4;
    s->memory_bytes = step->B * (slot + (2 * H * K + 3 * HV * V + 2 * gates + 8) * 4) + (1 << 20);
    s->memory = pages(ctx, s->memory_bytes);
    char *memory = s->memory;
    step->state = stream_pooled(&memory, &r, state, step->S, HV * V * K, 0.1);
    if (L > 1) {
        step->d_cache = stream_pooled(&memory, &r, io, step->S, HV * L * V, 0.1);
        step->k_cache = stream_pooled(&memory, &r, io, step->S, H * L * K, 0.1);
        step->g_cache = stream_pooled(&memory, &r, RSSM_DTYPE_FLOAT32, step->S, gates * L, 0);
    }
    step->d_cache.dtype = step->k_cache.dtype = io;
    step->q = stream_input(&memory, &r, io, step->B, H * K, 1);
    step->k = stream_input(&memory, &r, io, step->B, H * K, 1);
    step->v = stream_input(&memory, &r, io, step->B, HV * V, 1);
    step->a = stream_input(&memory, &r, io, step->B, gates, 1);
    step->b = stream_input(&memory, &r, io, step->B, HV, 1);
    step->A_log = stream_input(&memory, &r, RSSM_DTYPE_FLOAT32, 1, HV, 1);
    step->dt_bias = stream_input(&memory, &r, RSSM_DTYPE_FLOAT32, 1, gates, 1);
    step->out = (void *)(uintptr_t)stream_input(&memory, &r, io, step->B, HV * V, 0).data;
    step->out_row = HV * V;
    s->rows = calloc((size_t)step->B * 8, sizeof *s->rows);
    step->rows = s->rows;
    step->fault = &s->fault;
    stream_rows(s);
}

static void stream_free(stream *s, void *ctx)
{
    rssm_cpu_backend()->free(ctx, s->memory, s->memory_bytes);
    free(s->rows);
}

/* The yardstick: all threads read, or copy, their share of two large arrays. */
typedef struct yardstick {
    rssm_threads *threads;
    char *from, *to;
    int64_t bytes;
    int32_t parts, is_copy;
    uint64_t sum;
} yardstick;

typedef uint64_t wide __attribute__((vector_size(32)));

static uint64_t read_all(const char *from, int64_t bytes)
{
    wide s0 = {0}, s1 = s0, s2 = s0, s3 = s0;
    for (int64_t i = 0; i < bytes; i += 128) {
        const wide *w = (const wide *)(const void *)(from + i);
        s0 ^= w[0];
        s1 ^= w[1];
        s2 ^= w[2];
        s3 ^= w[3];
    }
    s0 ^= s1 ^ s2 ^ s3;
    return s0[0] ^ s0[1] ^ s0[2] ^ s0[3];
}

static void yardstick_part(void *arg, int32_t part)
{
    yardstick *y = arg;
    int64_t share = y->bytes / y->parts / 4096 * 4096;
    if (y->is_copy)
        memcpy(y->to + part * share, y->from + part * share, (size_t)share);
    else
        __atomic_fetch_xor(&y->sum, read_all(y->from + part * share, share), __ATOMIC_RELAXED);
}

static double yardstick_time(yardstick *y, int32_t is_copy)
{
    y->is_copy = is_copy;
    double start = now();
    rssm_threads_run(y->threads, yardstick_part, y, y->parts);
    return now() - start;
}

static double step_time(void *ctx, const stream *s)
{
    rssm_error err = {.struct_size = sizeof err};
    double start = now();
    rssm_cpu_backend()->step(ctx, &s->step, NULL, &err);
    return now() - start;
}

/* One shape and dtype: replay at L = 16 and read-and-write, beside the yardsticks, turn by turn. */
static void bench_shape(const shape *shape, int32_t state, void *ctx, yardstick *y, int rounds, int is_json,
                        int is_first)
{
    enum { L = 16 };
    stream replay, plain;
    double times[4][ROUNDS];
    stream_make(&replay, ctx, shape, state, state == RSSM_DTYPE_FLOAT32 ? RSSM_DTYPE_BFLOAT16 : state, L);
    stream_make(&plain, ctx, shape, state, state == RSSM_DTYPE_FLOAT32 ? RSSM_DTYPE_BFLOAT16 : state, 1);
    for (int round = -1; round < rounds; round++) {
        int at = round < 0 ? 0 : round;
        times[0][at] = yardstick_time(y, 0);
        times[1][at] = step_time(ctx, &replay);
        times[2][at] = yardstick_time(y, 1);
        times[3][at] = step_time(ctx, &plain);
    }
    double read = (double)y->bytes / median(times[0], rounds), copy = 2 * (double)y->bytes / median(times[2], rounds);
    double replay_s = median(times[1], rounds), plain_s = median(times[3], rounds);
    double replay_rate = replay.bytes / replay_s, plain_rate = plain.bytes / plain_s;
    double replay_us = 1e6 * replay_s / replay.step.B, plain_us = 1e6 * plain_s / plain.step.B;
    if (is_json)
        printf("%s\n  {\"shape\": \"%s\", \"state\": \"%s\", \"read_gbs\": %.3f, \"copy_gbs\": %.3f, \"replay_gbs\": "
               "%.3f, "
               "\"read_write_gbs\": %.3f, \"replay_us_per_row\": %.3f, \"read_write_us_per_row\": %.3f}",
               is_first ? "" : ",", shape->name, element_name(state), read / 1e9, copy / 1e9, replay_rate / 1e9,
               plain_rate / 1e9, replay_us, plain_us);
    else
        printf("%-20s %-9s %7.2f %7.2f | %7.2f %5.0f%% %9.2f | %7.2f %5.0f%% %5.0f%% %9.2f\n", shape->name,
               element_name(state), read / 1e9, copy / 1e9, replay_rate / 1e9, 100 * replay_rate / read, replay_us,
               plain_rate / 1e9, 100 * plain_rate / read, 100 * plain_rate / copy, plain_us);
    fflush(stdout);
    stream_free(&replay, ctx);
    stream_free(&plain, ctx);
}

/* us per row of windows of T tokens beside a plain step of the same rows: an eighth of the slots, 8 tokens' inputs each. */
static void bench_windows(const shape *shape, int32_t state, void *ctx, int rounds)
{
    enum { L = 16, MOST = 8, COUNT = 4 };
    static const int32_t lengths[] = {0, 1, 2, 4, 8}; /* 0: the plain step */
    stream s;
    stream_make(&s, ctx, shape, state, state == RSSM_DTYPE_FLOAT32 ? RSSM_DTYPE_BFLOAT16 : state, L);
    rssm_window window = {.tokens = s.step.B, .max_T = MOST};
    s.step.B /= MOST;
    printf("%-20s %-9s", shape->name, element_name(state));
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        double times[ROUNDS];
        for (int32_t b = 0; b < s.step.B; b++) {
            const int32_t row[8] = {b * MOST, (b * 7) % L, COUNT, 0, 0, b * MOST, lengths[i], 0};
            memcpy(s.rows + 8 * b, row, sizeof row);
        }
        window.step = s.step;
        for (int round = 0; round < rounds; round++) {
            rssm_error err = {.struct_size = sizeof err};
            double start = now();
            if (lengths[i] == 0)
                rssm_cpu_backend()->step(ctx, &s.step, NULL, &err);
            else
                rssm_cpu_backend()->verify(ctx, &window, NULL, &err);
            times[round] = now() - start;
        }
        printf(" %9.2f", 1e6 * median(times, rounds) / s.step.B);
    }
    printf("\n");
    stream_free(&s, ctx);
}

static void bench_all_windows(void *ctx, int rounds)
{
    printf("%-30s %9s %9s %9s %9s %9s  us/row\n", "windows", "plain", "T = 1", "2", "4", "8");
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
        for (int32_t state = RSSM_DTYPE_FLOAT32; state <= RSSM_DTYPE_BFLOAT16; state++)
            bench_windows(&shapes[n], state, ctx, rounds);
}

void run_bench(const test_options *options)
{
    rssm_allocator mem = rssm_mem_default();
    level_under_test levels[MAX_LEVELS];
    int32_t count = available_levels(levels), parts = rssm_cpu_thread_count(0);
    yardstick y = {.threads = rssm_threads_open(&mem, parts, NULL, NULL), .bytes = working_set, .parts = parts};
    void *owner = open_level(&levels[0], 1);
    y.from = pages(owner, y.bytes);
    y.to = pages(owner, y.bytes);
    memset(y.from, 1, (size_t)y.bytes);
    memset(y.to, 1, (size_t)y.bytes);
    if (!options->is_json)
        bench_functions();
    for (int32_t i = 1; i < count; i++) {
        void *ctx = open_level(&levels[i], 0);
        if (options->is_json)
            printf("%s{\"level\": \"%s\", \"threads\": %d, \"steps\": [", i == 1 ? "[" : ",\n", levels[i].name, parts);
        else
            printf(
                "\n%s, %d threads: GB/s\n%-30s %7s %7s | replay L = 16, of read, us/row | read-and-write, of read, of "
                "copy, us/row\n",
                levels[i].name, parts, "", "read", "copy");
        for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
            for (int32_t state = RSSM_DTYPE_FLOAT32; state <= RSSM_DTYPE_BFLOAT16; state++)
                bench_shape(&shapes[n], state, ctx, &y, i == count - 1 ? ROUNDS : SMALL_ROUNDS, options->is_json,
                            n == 0 && state == RSSM_DTYPE_FLOAT32);
        if (options->is_json)
            printf("]}");
        else
            bench_all_windows(ctx, SMALL_ROUNDS);
        rssm_cpu_backend()->close(ctx);
    }
    if (options->is_json)
        printf("]\n");
    rssm_threads_close(y.threads);
    rssm_cpu_backend()->free(owner, y.from, y.bytes);
    rssm_cpu_backend()->free(owner, y.to, y.bytes);
    rssm_cpu_backend()->close(owner);
}
