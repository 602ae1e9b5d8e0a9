/* The CPU backend's own threads: made at open, joined at close, nothing of them is global.
 *
 * No OpenMP: its runtime outlives dlclose and hangs a forked child. A pool notices by its pid that it is in a forked
 * child, where its threads do not exist, and makes new ones. */
#ifndef RSSM_CPU_THREADS_H_
#define RSSM_CPU_THREADS_H_

#include "core/backend.h"

enum { RSSM_CPU_MAX_THREADS = 256 };

typedef struct rssm_threads rssm_threads;

/* The work of one participant: part is 0 .. parts - 1. */
typedef void (*rssm_task)(void *arg, int32_t part);

/* count participants, the calling thread among them. NULL when memory fails; fewer threads than asked for, when the
 * system refuses some, is only logged. */
rssm_threads *rssm_threads_open(const rssm_allocator *mem, int32_t count, rssm_log_fn log, void *log_user);
void rssm_threads_close(rssm_threads *pool);

/* How many participants there really are. */
int32_t rssm_threads_count(const rssm_threads *pool);

/* Runs task(arg, part) for every part in 0 .. parts - 1 and returns when all are done. Equivalent to a serial loop: a
 * participant runs the parts p, p + count, ... One caller at a time. */
void rssm_threads_run(rssm_threads *pool, rssm_task task, void *arg, int32_t parts);

#endif
