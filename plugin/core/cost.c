#include "core/cost.h"

#include <dlpack/dlpack.h>

#include "core/model.h"

double rssm_cost_step_bytes(const rssm_cost *cost, int32_t L)
{
    if (L <= 1)
        return 2 * cost->state_bytes + cost->io_bytes;
    return cost->state_bytes * (1 + 1.0 / L) + cost->row_bytes * ((L - 1) / 2.0 + 1) + cost->io_bytes;
}

/* What a CPU needs for the state's parts of a step, in units of reading the state's bytes. Measured (docs/performance.md,
 * "Cost model": where each comes from): a write costs less than half a read, since the line is there already, but a flush
 * also computes, in part while memory waits; and a step on 16-bit elements computes more than it moves, most of all when it
 * rounds them. */
typedef struct cpu_factors {
    double read_write; /* the whole step at L = 1              */
    double replay;     /* a step at L >= 2 without its flush's write; the fold's products, one per element and step */
    double flush;      /* what a flush adds, once in L steps   */
} cpu_factors;
static const cpu_factors wide_state = {.read_write = 1.45, .replay = 1.10, .flush = 0.35};
static const cpu_factors narrow_state = {.read_write = 3.2, .replay = 1.8, .flush = 0.9};

/* A record's bytes cost this much more than the state's: short runs of memory, and for KDA an exponential per channel. */
static const double cpu_record = 2.2;

static double cpu_step_time(const rssm_cost *cost, int32_t L)
{
    const cpu_factors *f = cost->state_element_bytes < 4 ? &narrow_state : &wide_state;
    if (L <= 1)
        return f->read_write * cost->state_bytes + cost->io_bytes;
    return (f->replay + f->flush / L) * cost->state_bytes + cpu_record * cost->row_bytes * (L - 1) / 2.0 +
           cost->io_bytes;
}

double rssm_cost_step_time(const rssm_cost *cost, int32_t device_type, int32_t L)
{
    return device_type == kDLCPU ? cpu_step_time(cost, L) : rssm_cost_step_bytes(cost, L);
}

int32_t rssm_cost_choose_ring(const rssm_cost *cost, int32_t device_type, int32_t min_L)
{
    int32_t best = min_L < 1 ? 1 : min_L;
    for (int32_t L = best + 1; L <= RSSM_MAX_RING; L++)
        if (rssm_cost_step_time(cost, device_type, L) < rssm_cost_step_time(cost, device_type, best))
            best = L;
    return best;
}
