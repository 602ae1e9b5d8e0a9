/* What every part of test_kernels uses: seeded random numbers, guarded memory, element types of the test's own, checks. */
#ifndef RSSM_TESTS_KERNELS_HARNESS_H_
#define RSSM_TESTS_KERNELS_HARNESS_H_

#include <stdint.h>

#include "core/backend.h"

typedef struct random_state {
    uint64_t s;
} random_state;

uint64_t random_next(random_state *r);
int64_t random_between(random_state *r, int64_t low, int64_t high); /* both included */
double random_unit(random_state *r);                                /* 0 .. 1 */
double random_normal(random_state *r);                              /* about N(0, 1), within 6 */
int64_t random_dim(random_state *r);                                /* 1 .. 257, primes and vector edges preferred */

/* Memory between guard bytes, filled with 0xff: NaN in every float type. `misalign` bytes past 64-byte alignment. */
typedef struct guarded {
    char *raw;
    char *data;
    int64_t bytes;
} guarded;

guarded guarded_new(int64_t bytes, int64_t misalign);
int guarded_intact(const guarded *g);
void guarded_free(guarded *g);

/* Conversions that share nothing with the plugin. */
double element_get(int32_t dtype, const void *data, int64_t index);
void element_set(int32_t dtype, void *data, int64_t index, double x); /* nearest even */
double element_round(int32_t dtype, double x);
double element_ulp(int32_t dtype, double x); /* distance of neighbours at |x| */
int64_t element_bytes(int32_t dtype);
const char *element_name(int32_t dtype);
double distance_to_tie(int32_t dtype, double x); /* from the nearest midpoint of two neighbours */

/* One check; a failure prints the formatted text with the case's seed. Returns ok. */
int check(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
void check_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern int64_t checks_passed, checks_failed;

/* The largest figure seen under a name: printed at the end against its limit. */
void worst(const char *name, double value, double limit);
void worst_print(void);

/* An open backend of one level. */
typedef struct level_under_test {
    const char *name;
    int32_t cpu_level, is_reference;
} level_under_test;

enum { MAX_LEVELS = 5 };
int32_t available_levels(level_under_test levels[MAX_LEVELS]); /* the reference first */
enum { TEST_T = 16, TEST_WIDTH = 6 };                          /* windows and convolutions of an open level */
void *open_level(const level_under_test *level, int32_t threads);

typedef struct test_options {
    uint64_t seed;
    int32_t is_long, is_bench, is_json;
} test_options;

void check_functions(const test_options *options);
void check_steps(const test_options *options);
void check_threads(const test_options *options);
void check_cursors(const test_options *options);
void check_windows(const test_options *options);
void check_conv(const test_options *options);
void check_slots(const test_options *options);
void run_bench(const test_options *options);

#endif
