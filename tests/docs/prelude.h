/* What docs/hosts.md leaves to its reader. */
#ifndef RSSM_TESTS_DOCS_PRELUDE_H_
#define RSSM_TESTS_DOCS_PRELUDE_H_

#include <dlpack/dlpack.h>
#include <stdint.h>

enum { MAX_BATCH = 16, MAX_LAYERS = 128 };

struct server;

/* values[n] into a device tensor of one dim, in stream order; it now has n elements. */
static void put(struct server *s, DLTensor *to, const int32_t *values, int64_t n);
/* The host's log. */
static void report(const char *status, const char *message);

#endif
