#define _GNU_SOURCE 1
#include "stats.h"

#include <stdlib.h>
#include <time.h>

double stats_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear between the two nearest ranks. */
static double quantile(const double *sorted, int64_t count, double q)
{
    double rank = q * (double)(count - 1);
    int64_t below = (int64_t)rank, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (rank - (double)below) * (sorted[above] - sorted[below]);
}

summary stats_summary(double *samples, int64_t count)
{
    if (count <= 0)
        return (summary){0.0, 0.0, 0.0};
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    return (summary){quantile(samples, count, 0.5), quantile(samples, count, 0.1), quantile(samples, count, 0.9)};
}
