/* See threads.h. One mutex, two conditions, a generation number that tells the workers of a new job. */
#define _GNU_SOURCE
#include "cpu/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "core/mem.h"

enum { SPIN = 50, STACK_BYTES = 256 << 10 };

typedef struct participant {
    rssm_threads *pool;
    int32_t number; /* 1 ..; the caller is 0 */
    int32_t pad_;
    pthread_t thread;
} participant;

struct rssm_threads {
    const rssm_allocator *mem;
    rssm_log_fn log;
    void *log_user;
    participant *workers;
    int32_t wanted; /* participants asked for */
    int32_t count;  /* participants there are */
    int32_t parts;  /* of the job */
    int32_t quit;
    rssm_task task;
    void *arg;
    pid_t pid; /* of the process that made the threads */
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    uint64_t generation; /* of the job; written under the mutex, also read while spinning */
    int32_t running;     /* workers that have not finished the job */
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void say(const rssm_threads *pool, int32_t level, const char *message)
{
    if (pool->log)
        pool->log(pool->log_user, level, message);
}

static void run_parts(const rssm_threads *pool, int32_t number)
{
    for (int32_t part = number; part < pool->parts; part += pool->count)
        pool->task(pool->arg, part);
}

/* Waits for a job other than `seen`; 0 = the pool closes. */
static uint64_t next_generation(rssm_threads *pool, uint64_t seen)
{
    for (int i = 0; i < SPIN && __atomic_load_n(&pool->generation, __ATOMIC_ACQUIRE) == seen; i++)
        pause_briefly();
    pthread_mutex_lock(&pool->mutex);
    while (pool->generation == seen && !pool->quit)
        pthread_cond_wait(&pool->work, &pool->mutex);
    uint64_t generation = pool->quit ? 0 : pool->generation;
    pthread_mutex_unlock(&pool->mutex);
    return generation;
}

static void finish_part(rssm_threads *pool)
{
    if (__atomic_sub_fetch(&pool->running, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *arg)
{
    participant *self = arg;
    uint64_t seen = 1;
    while ((seen = next_generation(self->pool, seen)) != 0) {
        run_parts(self->pool, self->number);
        finish_part(self->pool);
    }
    return NULL;
}

/* Signals are the host's business: its handlers must not run on our threads. */
static int create_thread(participant *worker)
{
    pthread_attr_t attr;
    sigset_t all, before;
    if (pthread_attr_init(&attr) != 0)
        return 0;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&worker->thread, &attr, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return !failed;
}

static void start(rssm_threads *pool)
{
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->pid = getpid();
    pool->generation = 1;
    pool->running = 0;
    int32_t count = 1;
    while (count < pool->wanted) {
        participant *worker = &pool->workers[count - 1];
        worker->pool = pool;
        worker->number = count;
        if (!create_thread(worker))
            break;
        count++;
    }
    pool->count = count; /* published to the workers by the mutex of their first job */
    if (count < pool->wanted) {
        char message[96];
        snprintf(message, sizeof message, "cpu: the system refused a thread: %d of %d run", (int)count,
                 (int)pool->wanted);
        say(pool, RSSM_LOG_WARN, message);
    }
}

rssm_threads *rssm_threads_open(const rssm_allocator *mem, int32_t count, rssm_log_fn log, void *log_user)
{
    rssm_threads *pool = rssm_mem_alloc(mem, sizeof *pool, _Alignof(rssm_threads));
    if (!pool)
        return NULL;
    *pool = (rssm_threads){.mem = mem, .log = log, .log_user = log_user, .wanted = count};
    pool->workers = rssm_mem_alloc(mem, (size_t)count * sizeof *pool->workers, _Alignof(participant));
    if (!pool->workers) {
        rssm_mem_free(mem, pool, sizeof *pool);
        return NULL;
    }
    start(pool);
    return pool;
}

static void stop(rssm_threads *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->quit = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 1; i < pool->count; i++)
        pthread_join(pool->workers[i - 1].thread, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
}

void rssm_threads_close(rssm_threads *pool)
{
    if (!pool)
        return;
    if (pool->pid == getpid()) /* in a forked child there is nothing to join, and the mutex may be held for ever */
        stop(pool);
    const rssm_allocator *mem = pool->mem;
    rssm_mem_free(mem, pool->workers, (size_t)pool->wanted * sizeof *pool->workers);
    rssm_mem_free(mem, pool, sizeof *pool);
}

int32_t rssm_threads_count(const rssm_threads *pool)
{
    return pool->count;
}

static void wait_for_workers(rssm_threads *pool)
{
    for (int i = 0; i < SPIN && __atomic_load_n(&pool->running, __ATOMIC_ACQUIRE) != 0; i++)
        pause_briefly();
    pthread_mutex_lock(&pool->mutex);
    while (__atomic_load_n(&pool->running, __ATOMIC_ACQUIRE) != 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void rssm_threads_run(rssm_threads *pool, rssm_task task, void *arg, int32_t parts)
{
    if (pool->count > 1 && pool->pid != getpid()) {
        say(pool, RSSM_LOG_INFO, "cpu: forked: making new threads in the child");
        start(pool);
    }
    if (pool->count == 1 || parts == 1) {
        for (int32_t part = 0; part < parts; part++)
            task(arg, part);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->task = task;
    pool->arg = arg;
    pool->parts = parts;
    __atomic_store_n(&pool->running, pool->count - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->generation, pool->generation + 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    run_parts(pool, 0);
    wait_for_workers(pool);
}
