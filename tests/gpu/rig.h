/* A CUDA instance with its pool and one batch in device memory, straight through the ABI: for what host memory cannot
 * show, streams, graphs and sizes. */
#ifndef RSSM_TESTS_RIG_H_
#define RSSM_TESTS_RIG_H_

#include "gpu.h"
#include "unit/harness.h"

enum { RIG_MAX_LAYERS = 4 };

typedef struct rig {
    h_spec spec; /* B, S, dims, dtypes; packed inputs, rows by step_begin */
    rssm_plugin *plugin;
    rssm_layout layout;
    DLTensor tensors[RIG_MAX_LAYERS][RSSM_T_COUNT]; /* of the batch; rows are those of layer 0 */
    int64_t shapes[RIG_MAX_LAYERS][RSSM_T_COUNT][H_MAX_DIMS];
    const DLTensor *roles[RIG_MAX_LAYERS][RSSM_T_COUNT]; /* of a decode call, pool included */
    DLTensor slots, force;
    int64_t batch[1];
    uint64_t random;
} rig;

const rssm_api *rig_api(void); /* of the plugin at $RSSM_MIRRORED: no mirror */

/* Only plans: init, layout and the call's tensors without memory. */
void rig_plan(rig *r, h_spec spec);
/* prepare, a pool of the plugin's own, memory for the batch, random weights. */
void rig_open(rig *r);
rig *rig_new(h_spec spec); /* both */
void rig_free(rig *r);

void rig_inputs(rig *r, uint64_t seed); /* of all layers; outputs become NaN */
/* The same inputs for rows i and i + period. */
void rig_repeated_inputs(rig *r, uint64_t seed, int64_t period);
void rig_positions(rig *r, const int32_t *slots, const int32_t *force); /* force NULL = none */

/* The batch is its first n rows from now on. */
void rig_first_rows(rig *r, int64_t n);

/* A pass: step_begin and every layer, enqueued. The status of the first call that fails. */
rssm_status rig_pass(rig *r, void *stream, rssm_error *err);
rssm_status rig_begin(rig *r, void *stream, rssm_error *err); /* its two halves */
rssm_status rig_layers(rig *r, void *stream, rssm_error *err);
void rig_step(rig *r, void *stream); /* asserts it */
rssm_status rig_reset(rig *r, const int32_t *slots, int64_t n, rssm_error *err);

size_t rig_row_bytes(const rig *r); /* of out */
/* All outputs of a layer, [B][HV * V], each written since rig_inputs; the caller frees them. */
unsigned char *rig_outputs(rig *r, int32_t layer);

/* Pool tensors: tensor i of the layout. */
CUdeviceptr rig_slot(const rig *r, int32_t layer, int32_t tensor, int64_t slot);
size_t rig_slot_bytes(const rig *r, int32_t tensor);
unsigned char *rig_read_slot(const rig *r, int32_t layer, int32_t tensor, int64_t slot);
int32_t rig_state_tensor(const rig *r);
/* A random state in slots first .. first + n - 1 of every layer. */
void rig_random_states(rig *r, uint64_t seed, int64_t first, int64_t n);

/* Numbers in -1 .. 1 of a float type; 16-bit ones are bfloat16. */
void *rig_numbers(uint64_t *random, size_t bytes, int bits);

#endif
