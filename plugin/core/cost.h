/* How many bytes a step moves, how long it takes, and which ring length is best. One row of one layer on one rank. */
#ifndef RSSM_CORE_COST_H_
#define RSSM_CORE_COST_H_

#include <stdint.h>

typedef struct rssm_cost {
    double state_bytes;         /* of one slot                     */
    double state_element_bytes; /* 4 or 2                          */
    double row_bytes;           /* one ring row of all ring tensors */
    double io_bytes;            /* inputs and outputs of one token */
} rssm_cost;

/* Mean bytes of a step over a window of L, cursors spread: state (1 + 1/L) + (L - 1)/2 rows read + one written + io.
 * L = 1 is the read-and-write step and has no ring. */
double rssm_cost_step_bytes(const rssm_cost *cost, int32_t L);

/* Mean time of a step on the device type (DLDeviceType), as the bytes that could be read meanwhile. A GPU's step takes as
 * long as its bytes; a CPU's is weighed by measured factors (cost.c, docs/performance.md). */
double rssm_cost_step_time(const rssm_cost *cost, int32_t device_type, int32_t L);

/* The L in min_L .. 64 with the least modelled time. */
int32_t rssm_cost_choose_ring(const rssm_cost *cost, int32_t device_type, int32_t min_L);

#endif
