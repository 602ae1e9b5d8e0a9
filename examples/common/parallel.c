#define _GNU_SOURCE 1
#include "parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef struct job {
    parallel_body body;
    void *context;
    int64_t n;
    _Atomic int64_t next;
} job;

typedef struct worker {
    job *job;
    int index;
} worker;

int parallel_cpus(void)
{
    cpu_set_t mask;
    int cpus = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    return cpus < PARALLEL_MAX_THREADS ? cpus : PARALLEL_MAX_THREADS;
}

static void *work(void *argument)
{
    worker *w = argument;
    for (int64_t i = atomic_fetch_add(&w->job->next, 1); i < w->job->n; i = atomic_fetch_add(&w->job->next, 1))
        w->job->body(w->job->context, i, w->index);
    return NULL;
}

void parallel_for(int threads, int64_t n, parallel_body body, void *context)
{
    job j = {.body = body, .context = context, .n = n};
    worker workers[PARALLEL_MAX_THREADS];
    pthread_t ids[PARALLEL_MAX_THREADS];
    if (threads > PARALLEL_MAX_THREADS)
        threads = PARALLEL_MAX_THREADS;
    int started = 1; /* worker 0 is the caller: what cannot be started he does himself */
    for (; started < threads && started < n; started++) {
        workers[started] = (worker){&j, started};
        if (pthread_create(&ids[started], NULL, work, &workers[started]) != 0)
            break;
    }
    workers[0] = (worker){&j, 0};
    work(&workers[0]);
    for (int i = 1; i < started; i++)
        pthread_join(ids[i], NULL);
}
