/* What the machine's memory gives: a read and a copy of arrays that no cache holds. */
#ifndef EXAMPLES_BANDWIDTH_H_
#define EXAMPLES_BANDWIDTH_H_

#include <stdint.h>

typedef struct bandwidth {
    int64_t bytes; /* of each array */
    int threads;
    int read, copy; /* the loops that proved fastest here */
    unsigned char *from, *to;
} bandwidth;

int bandwidth_create(bandwidth *b, int64_t bytes, int threads); /* 0, or -1: no memory */
void bandwidth_free(bandwidth *b);

/* Bytes per second of one pass of the best loop; a copy counts what it reads and what it writes. */
double bandwidth_read(bandwidth *b);
double bandwidth_copy(bandwidth *b);
const char *bandwidth_read_loop(const bandwidth *b); /* which loop that is */
const char *bandwidth_copy_loop(const bandwidth *b);

/* Big zeroed memory on huge pages where the system has them; aligned to a page. NULL: no memory. */
void *big_alloc(int64_t bytes);
void big_free(void *ptr, int64_t bytes);

int64_t last_level_cache_bytes(void);

#endif
