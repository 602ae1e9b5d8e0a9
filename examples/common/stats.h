/* Time and order statistics. */
#ifndef EXAMPLES_STATS_H_
#define EXAMPLES_STATS_H_

#include <stdint.h>

typedef struct summary {
    double median, p10, p90;
} summary;

double stats_seconds(void);                            /* of a monotonic clock */
summary stats_summary(double *samples, int64_t count); /* sorts the samples; all 0 of none */

#endif
