/* for (i = 0; i < n; i++) body(context, i), over threads that live for the call. `worker` is 0 .. threads - 1. */
#ifndef EXAMPLES_PARALLEL_H_
#define EXAMPLES_PARALLEL_H_

#include <stdint.h>

enum { PARALLEL_MAX_THREADS = 256 };

typedef void (*parallel_body)(void *context, int64_t i, int worker);

int parallel_cpus(void); /* of the affinity mask, at most PARALLEL_MAX_THREADS */
void parallel_for(int threads, int64_t n, parallel_body body, void *context);

#endif
