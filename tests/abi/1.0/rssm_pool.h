/* replayssm plugin ABI 1.0: the state pool. One function computes these numbers for the planner, the allocator, the
 * validator and the tests; hosts never write a shape themselves. */
#ifndef RSSM_POOL_H_
#define RSSM_POOL_H_

#include "rssm_base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RSSM_MAX_DIMS = 6, RSSM_POOL_ALIGNMENT = 256 };

/* One tensor of the pool. In the slab, layer i (ordinal) of it starts at offset + i * layer_stride bytes. */
typedef struct rssm_tensor_info {
    uint64_t struct_size;
    int32_t role;       /* RSSM_T_STATE, ...                                                    */
    int32_t dtype_code; /* DLDataTypeCode                                                       */
    int32_t dtype_bits;
    int32_t ndim;
    const char *name;           /* "d_cache"                                                            */
    const char *dtype_name;     /* "bfloat16"                                                           */
    const char *symbolic_shape; /* "[slots, HV, L, V]"                                                  */
    int64_t shape[RSSM_MAX_DIMS];
    int64_t strides[RSSM_MAX_DIMS]; /* elements                                                         */
    int64_t bytes_per_slot;         /* of one layer (cursor: of all layers)                                 */
    int64_t offset;                 /* bytes from the start of the slab                                     */
    int64_t layer_stride;           /* bytes from layer to layer; 0 for the cursor: one for all layers      */
    int32_t alignment;              /* bytes                                                                */
    int32_t per_layer;              /* 1; 0 for the cursor                                                  */
} rssm_tensor_info;

/* The whole pool of this rank. */
typedef struct rssm_layout {
    uint64_t struct_size;
    int32_t layout_version;
    int32_t num_tensors;
    const rssm_tensor_info *tensors; /* [num_tensors], of the instance; walk by tensors[0].struct_size  */
    int64_t num_slots;
    int32_t num_layers; /* linear layers of this rank */
    int32_t reserved_;
    /* Bytes of one slot over all layers; total = state + ring + conv. */
    int64_t slot_state_bytes, slot_ring_bytes, slot_conv_bytes, slot_total_bytes, slot_cursor_bytes;
    int64_t layer_bytes;     /* of one layer, all slots                                                */
    int64_t slab_bytes;      /* what pool_create needs in one piece                                    */
    int64_t workspace_bytes; /* what prepare allocates besides                                         */
    int64_t pool_bytes;      /* slab + workspace                                                       */
    uint64_t layout_hash;
} rssm_layout;

/* Where the pool lives. Exactly one way:
 *   slab    the host's memory, slab_bytes long, on the instance's device, 256-byte aligned;
 *   tensors the host's own tensors: [num_layers][num_roles], indexed tensors[layer * num_roles + role]; any slot
 *           stride; the cursor is that of layer 0. Validated against the table;
 *   neither the plugin allocates (callbacks or its own) and zeroes everything.
 * Host memory is bound as it is: reset() every slot before its first use, or its cursor is garbage and the slot decodes as
 * padding (zeros, and the fault word of rssm_fault.h). The memory must live until teardown; the DLTensors, shapes and
 * strides that describe it are copied. */
typedef struct rssm_pool_args {
    uint64_t struct_size;
    void *slab;
    uint64_t slab_bytes;
    const DLTensor *const *tensors;
    uint32_t num_roles;
    uint32_t flags; /* 0 */
    void *stream;
} rssm_pool_args;

/* The life of a slot. reset it for a new request; then, for a prompt that was prefilled elsewhere, write its final state
 * into state[slot] of every layer (`state` of pool_tensors, [HV, V, K] or [nh, P, N]) before the first step, or leave it 0.
 * After a step that flushed the slot, state[slot] is the whole state, the step's token included; between flushes it is the
 * checkpoint and the ring holds the rest. rssm_slots.h imports, exports, copies and flushes slots, in all layers at once.
 *
 * reset: state = 0, ring empty, cursor = 0 for slots[n] (int32 or int64 tensor on the instance's device), in all layers;
 * slots NULL = every slot. Indices out of range are skipped. */
typedef struct rssm_reset_args {
    uint64_t struct_size;
    const DLTensor *slots;
    void *stream;
    uint32_t flags; /* 0 */
    uint32_t reserved_;
} rssm_reset_args;

#ifdef __cplusplus
}
#endif
#endif
