/* The arguments of the slot operations' kernels (slots.cu). */
#ifndef RSSM_CUDA_SLOTS_H_
#define RSSM_CUDA_SLOTS_H_

#include "core/backend.h"

enum {
    RSSM_CUDA_COPY_CHUNK = 16384,   /* bytes that a block of copy moves at once       */
    RSSM_CUDA_STATE_LAYERS = 48,    /* layers per launch: arguments are at most 4 KB  */
    RSSM_CUDA_STATE_ROWS = 64,      /* a block's tile of a state [V, K]: 64 x 128     */
    RSSM_CUDA_STATE_CHANNELS = 128, /*                                                */
    RSSM_CUDA_HISTORY = 1024,       /* channels of a block's part of a conv history   */
    RSSM_CUDA_SLOT_THREADS = 256,
    RSSM_CUDA_TILE_THREADS = 128, /* of slots_tile.cuh                                                     */
    RSSM_CUDA_TILE_ROWS = 64,     /* that its blocks take at once; twice as many where elements are halves */
    RSSM_CUDA_EARLY_CHANNELS = 3, /* of a history, per thread: loaded beside the state                     */
    RSSM_CUDA_EARLY_COLUMNS = 3,
    RSSM_CUDA_TILE_RECORDS = 16 /* its longest ring                                                      */
};

/* What a ring holds: bfloat16 records with one gate a head or KDA's, or others. */
enum { RSSM_CUDA_FORM_scalar_bf16, RSSM_CUDA_FORM_kda_bf16, RSSM_CUDA_FORM_any_ring };

/* The kernels of slots_tile.cuh for exports and flushes, of which an instance has one. X(state's type, form of the ring): were
 * they one, the registers of the largest would spill in all. */
#define RSSM_SLOTS_TAKE_LIST(X) \
    X(f32, scalar_bf16)         \
    X(bf16, scalar_bf16)        \
    X(f16, scalar_bf16)         \
    X(f32, kda_bf16)            \
    X(bf16, kda_bf16)           \
    X(f16, kda_bf16)            \
    X(f32, any_ring)            \
    X(bf16, any_ring)           \
    X(f16, any_ring)
#define RSSM_SLOTS_TAKE_NAME(state, form) rssm_slots_take_##state##_##form

/* What every slot operation needs to judge a slot. */
typedef struct rssm_cuda_slots {
    int64_t S, pad_slot;
    int32_t *cursor; /* [S, 4] */
    int64_t cursor_slot;
    int32_t L, R;
    int32_t conv_len;
    uint32_t *fault;
} rssm_cuda_slots;

typedef struct rssm_cuda_copy {
    rssm_cuda_slots in;
    int64_t n;
    rssm_index src, dst;
    const rssm_region *regions; /* [num_regions], in device memory                                     */
    const int64_t *first_chunk; /* [num_regions + 1], in device memory: chunks of a slot before region i */
    int32_t num_regions, pad_;
    int64_t chunks; /* of a slot, at least as many as gridDim.x */
} rssm_cuda_copy;

/* Import, export or the fold of a flush, for some of the layers. Flush: layer[].state is NULL. */
typedef struct rssm_cuda_states {
    rssm_cuda_slots in;
    int64_t n;
    rssm_index slots;
    const rssm_pool_layer *pool; /* [num_layers], in device memory */
    int32_t num_layers, first;   /* first: layer 0 of the pool is among them */
    int32_t family, H, HV, K, V;
    int32_t transposed, decay_is_A, spread_step;
    int32_t conv_channels, conv_width, history; /* history: channels of a block's part, 0 = none */
    int32_t state_tiles, run;                   /* tiles of a slot's state; of a block */
    int32_t state_blocks; /* blockIdx.x below it: `run` tiles each; from it on: parts of the history */
    /* For slots_tile.cuh: */
    int32_t state_dtype, record_dtype; /* types of the pool                                       */
    int32_t group_heads, group_tiles;  /* value heads that share keys; tiles down their rows      */
    int32_t in_place;                  /* a flush                                                 */
    int32_t early_history;             /* RSSM_CUDA_EARLY_*: histories fit, bits stay as they are */
    rssm_state_layer layer[RSSM_CUDA_STATE_LAYERS];
} rssm_cuda_states;

/* The end of a flush: cursors move. */
typedef struct rssm_cuda_flushed {
    rssm_cuda_slots in;
    int64_t n;
    rssm_index slots;
} rssm_cuda_flushed;

#endif
