/* Random weights and inputs for a model, and the role arrays that a decode call takes: what a server would have at
 * hand. Distributions follow published initialisations, so that gates, steps and states have realistic sizes. */
#ifndef EXAMPLES_WORKLOAD_H_
#define EXAMPLES_WORKLOAD_H_

#include "tensor.h"

enum { WEIGHT_A_LOG, WEIGHT_DT_BIAS, WEIGHT_D, WEIGHT_COUNT };

typedef struct workload {
    host *host;
    device *dev;
    int64_t batch;
    uint64_t seed;
    const dtype_info *io;

    tensor packed;            /* [B, 2HK + HVV] or [B, nhP + 2ngN]: one layer's inputs at a time */
    tensor gate;              /* a [B, HV, K] or [B, HV], or dt [B, nh]                          */
    tensor beta;              /* b [B, HV]; unused by Mamba-2                                    */
    tensor out;               /* [B, HV, V]                                                      */
    tensor slots;             /* int32 [B]                                                       */
    tensor force;             /* int32 [B]                                                       */
    tensor rows;              /* int32 [B, RSSM_ROW_WIDTH]                                       */
    tensor *weights;          /* [layers][WEIGHT_COUNT]                               */
    const DLTensor **tensors; /* [layers][RSSM_T_COUNT], indexed by role              */
    float *scratch;           /* one row of inputs                                    */
} workload;

/* The instance must have its pool. EXIT_OK, or EXIT_REFUSED once the reason is printed; free it either way. */
int workload_create(workload *w, host *h, device *dev, int64_t batch, const dtype_info *out_type, uint64_t seed);
void workload_free(workload *w);

/* New inputs for a layer of a step, on the device. 0 on success. */
int workload_inputs(workload *w, int64_t layer, int64_t step);

/* One pass's cursor move: slots and force (host bytes) are uploaded, rows written. */
int workload_step_begin(workload *w);
/* The call for one layer; valid as long as the workload. */
rssm_decode_args workload_decode_args(const workload *w, int64_t layer, uint32_t flags);
const DLTensor *workload_tensor(const workload *w, int64_t layer, int32_t role);

#endif
