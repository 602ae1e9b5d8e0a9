#include "core/cost.h"

#include "core/model.h"

double rssm_cost_step_bytes(const rssm_cost *cost, int32_t L)
{
    if (L <= 1)
        return 2 * cost->state_bytes + cost->io_bytes;
    return cost->state_bytes * (1 + 1.0 / L) + cost->row_bytes * ((L - 1) / 2.0 + 1) + cost->io_bytes;
}

int32_t rssm_cost_choose_ring(const rssm_cost *cost, int32_t device_type, int32_t min_L)
{
    (void)device_type;
    int32_t best = min_L < 1 ? 1 : min_L;
    for (int32_t L = best + 1; L <= RSSM_MAX_RING; L++)
        if (rssm_cost_step_bytes(cost, L) < rssm_cost_step_bytes(cost, best))
            best = L;
    return best;
}
