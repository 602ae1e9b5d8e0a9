/* The thread pool: the same bits for every thread count and split, many opens and closes, a fork, a system that refuses
 * threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "cpu/threads.h"
#include "step_case.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

static void run(void *ctx, const step_case *c)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->step(ctx, &c->step, NULL, &err) == RSSM_OK, "step: %s", err.message);
}

static int same_memory(const step_case *a, const step_case *b)
{
    for (int i = 0; i < MEM_COUNT; i++)
        if (a->mem[i].raw && memcmp(a->mem[i].data, b->mem[i].data, (size_t)a->mem[i].bytes) != 0)
            return 0;
    return a->fault == b->fault;
}

/* Wide enough that a step is split over all threads. */
static void check_bits(const test_options *options, const level_under_test *level)
{
    static const int32_t counts[] = {2, 3, 5, 16};
    void *one = open_level(level, 1);
    for (int32_t family = RSSM_FAMILY_KDA; family <= RSSM_FAMILY_MAMBA2; family++) {
        random_state r = {options->seed * 31 + (uint64_t)family};
        case_wish wish = {.family = family, .K = 128, .V = 97, .L = 5, .H = 3, .group = 3, .B = 7};
        step_case c, first;
        step_case_make(&c, &r, &wish);
        step_case_copy(&first, &c);
        run(one, &first);
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            check_context("%s family %d, %d threads", level->name, family, counts[i]);
            void *many = open_level(level, counts[i]);
            check(rssm_cpu_backend()->threads(many) == counts[i], "threads: %d", rssm_cpu_backend()->threads(many));
            step_case mine;
            step_case_copy(&mine, &c);
            run(many, &mine);
            check(same_memory(&first, &mine), "other bits than with one thread");
            step_case_free(&mine);
            rssm_cpu_backend()->close(many);
        }
        step_case_free(&first);
        step_case_free(&c);
    }
    rssm_cpu_backend()->close(one);
}

static void count_part(void *arg, int32_t part)
{
    __atomic_add_fetch((int32_t *)arg + part, 1, __ATOMIC_RELAXED);
}

/* Every part runs once, whatever the number of parts; thousands of jobs, one after the other. */
static void check_jobs(void)
{
    rssm_allocator mem = rssm_mem_default();
    for (int32_t count = 1; count <= 9; count += 2) {
        check_context("%d threads", count);
        rssm_threads *threads = rssm_threads_open(&mem, count, NULL, NULL);
        int32_t ran[20] = {0}, wrong = 0;
        for (int32_t job = 0; job < 2000; job++)
            rssm_threads_run(threads, count_part, ran, job % 20 + 1);
        for (int32_t part = 0; part < 20; part++)
            wrong += ran[part] != 2000 - 100 * part;
        check(wrong == 0, "%d parts ran too often or too seldom", wrong);
        rssm_threads_close(threads);
    }
    for (int i = 0; i < 300; i++)
        rssm_threads_close(rssm_threads_open(&mem, 3, NULL, NULL));
    check_context("open and close");
    check(1, "still here");
}

static int child_works(void *ctx, const step_case *c, const step_case *expected)
{
    step_case mine;
    step_case_copy(&mine, c);
    run(ctx, &mine);
    int same = same_memory(expected, &mine);
    rssm_cpu_backend()->close(ctx);
    return same ? 0 : 1;
}

/* A child of fork has none of the threads, yet its steps must work, and so must closing. */
static void check_fork(const test_options *options, const level_under_test *level)
{
    random_state r = {options->seed * 37};
    case_wish wish = {.family = RSSM_FAMILY_GDN, .K = 128, .V = 128, .L = 5, .H = 2, .group = 2, .B = 7};
    void *ctx = open_level(level, 3);
    step_case c, expected;
    step_case_make(&c, &r, &wish);
    step_case_copy(&expected, &c);
    check_context("%s fork", level->name);
    run(ctx, &expected);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(child_works(ctx, &c, &expected));
    }
    int status = -1;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's step: status %d", status);
    step_case mine;
    step_case_copy(&mine, &c);
    run(ctx, &mine);
    check(same_memory(&expected, &mine), "the parent's next step");
    step_case_free(&mine);
    step_case_free(&expected);
    step_case_free(&c);
    rssm_cpu_backend()->close(ctx);
}

static void count_warnings(void *user, int32_t level, const char *message)
{
    (void)message;
    *(int32_t *)user += level == RSSM_LOG_WARN;
}

/* In a child whose limit allows no thread at all: work goes on with one, and one warning says so. */
static int works_without_threads(void)
{
    rssm_allocator mem = rssm_mem_default();
    struct rlimit none = {0, 0};
    int32_t warnings = 0, ran[4] = {0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (getuid() == 0 && setuid(65534) != 0))
        return 77;
    rssm_threads *threads = rssm_threads_open(&mem, 4, count_warnings, &warnings);
    if (rssm_threads_count(threads) == 4)
        return 77; /* this system does not limit us */
    rssm_threads_run(threads, count_part, ran, 4);
    rssm_threads_close(threads);
    return warnings == 1 && ran[0] == 1 && ran[1] == 1 && ran[2] == 1 && ran[3] == 1 ? 0 : 1;
}

static void check_refusal(void)
{
    check_context("threads refused");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(works_without_threads());
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        printf("skip: cannot make the system refuse threads here\n");
    else
        check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}

void check_threads(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    int32_t n = available_levels(levels);
    for (int32_t i = 0; i < n; i++)
        check_bits(options, &levels[i]);
    check_jobs();
    if (UNDER_TSAN)
        printf("skip: fork, since ThreadSanitizer kills a child that makes threads\n");
    else
        check_fork(options, &levels[n - 1]);
    check_refusal();
}
