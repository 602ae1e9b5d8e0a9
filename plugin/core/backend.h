/* What a backend (cpu/, cuda/) gives to core/: one table of function pointers. Core validates, a backend computes. */
#ifndef RSSM_CORE_BACKEND_H_
#define RSSM_CORE_BACKEND_H_

#include "core/step.h"
#include "rssm_model.h"

/* One tensor of the pool in one layer, for calls over all layers. */
typedef struct rssm_region {
    void *data;
    int64_t slot_stride; /* bytes from slot to slot */
    int64_t slot_bytes;  /* bytes of one slot       */
} rssm_region;

/* One layer's tensors; data NULL where the pool has none (ring at L = 1, conv). */
typedef struct rssm_pool_layer {
    rssm_pooled state, d_cache, k_cache, g_cache; /* as in rssm_step */
    rssm_pooled conv;                             /* [S, conv_channels, conv_len] */
} rssm_pool_layer;

/* The whole pool, bound once. Arrays live as long as the instance. */
typedef struct rssm_pool {
    const rssm_region *regions;    /* state, rings, conv of every layer; not the cursor */
    const rssm_pool_layer *layers; /* [num_layers] the same, by meaning */
    int32_t num_regions;
    int32_t num_layers;
    int32_t family, H, HV, K, V;
    int32_t L, R;
    int32_t conv_channels, conv_len, conv_width; /* 0 without conv; w' columns; w */
    int64_t S;
    int64_t pad_slot;
    int32_t *cursor;     /* [S, 4] */
    int64_t cursor_slot; /* elements */
    int32_t spread_step; /* reset sets cursor[3] = slot % L * spread_step % L; 0 = no spreading */
    int32_t pad_;
} rssm_pool;

typedef struct rssm_backend_options {
    const rssm_allocator *mem;
    rssm_log_fn log; /* may be NULL */
    void *log_user;
    int32_t device_id;
    int32_t num_threads; /* 0 = affinity mask */
    int32_t cpu_level;   /* RSSM_CPU_* */
    int32_t cpu_reference;
    int32_t max_batch;
    int32_t max_K, max_V, max_L, max_HV; /* largest step: scratch is sized for it; 0 = 4096, 4096, 64 */
    int32_t family, state_dtype;         /* of every step: which kernels to load */
    int32_t io_dtype, ring_dtype;        /* likewise, as the instance says: a step may come with others */
    int32_t max_regions;                 /* of the pool that bind will get */
    int32_t num_layers;                  /* likewise */
    int32_t max_T;                       /* tokens of a verify window; 0 = no verify */
    int32_t conv_width;                  /* w; 0 = no convolution in the pool */
    int32_t early_start;                 /* CUDA: kernels may be launched before those before them have ended */
    int32_t small_batch;                 /* step_begin flushes all rows of a batch of at most so many */
} rssm_backend_options;

/* ctx is what open returned. All functions report through err and leave everything as it was on failure. */
typedef struct rssm_backend {
    const char *name;
    int32_t device_type; /* DLDeviceType */
    int32_t max_T;       /* tokens of the longest window that it has kernels for; 0 = any */
    int64_t (*workspace_bytes)(
        const rssm_backend_options *options); /* what open allocates besides small host structs */
    rssm_status (*open)(const rssm_backend_options *options, void **ctx, rssm_error *err);
    /* Rows of the largest batch in which a step that reads and writes the state beats one that appends to the ring;
     * NULL: none. */
    int32_t (*small_batch)(const rssm_backend_options *options);
    void (*close)(void *ctx);
    const char *(*level)(const void *ctx); /* "avx2", ...; "" on CUDA */
    int32_t (*threads)(const void *ctx);
    rssm_status (*alloc)(void *ctx, int64_t bytes, void **ptr, rssm_error *err); /* 256-byte aligned, zeroed */
    void (*free)(void *ctx, void *ptr, int64_t bytes);
    rssm_status (*bind)(void *ctx, const rssm_pool *pool, rssm_error *err);
    rssm_status (*reset)(void *ctx, const rssm_index *slots, int64_t count, void *stream,
                         rssm_error *err); /* slots->data NULL = all */
    rssm_status (*step_begin)(void *ctx, const rssm_begin *begin, void *stream, rssm_error *err);
    rssm_status (*step)(void *ctx, const rssm_step *step, void *stream, rssm_error *err);
    /* replayssm.verify, conv, slots; saved slots are plain bytes in the order of regions. */
    rssm_status (*verify_begin)(void *ctx, const rssm_verify_begin *begin, void *stream, rssm_error *err);
    rssm_status (*verify)(void *ctx, const rssm_window *window, void *stream, rssm_error *err);
    rssm_status (*commit)(void *ctx, const rssm_commit *commit, void *stream, rssm_error *err);
    rssm_status (*conv)(void *ctx, const rssm_convolution *conv, void *stream, rssm_error *err);
    rssm_status (*copy)(void *ctx, const rssm_slot_copy *copy, void *stream, rssm_error *err);
    rssm_status (*import_state)(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
    rssm_status (*export_state)(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
    rssm_status (*flush)(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
    rssm_status (*read_slot)(void *ctx, int64_t slot, int32_t cursor[4], void *bytes, void *stream, rssm_error *err);
    rssm_status (*write_slot)(void *ctx, int64_t slot, const int32_t cursor[4], const void *bytes, void *stream,
                              rssm_error *err);
    uint32_t *(*fault_word)(void *ctx); /* where step and begin or their faults in */
    rssm_status (*fault_read)(void *ctx, void *stream, uint32_t *word, rssm_error *err);
    rssm_status (*fault_clear)(void *ctx, void *stream, rssm_error *err);
    /* Deep checks: strided small arrays to host memory, after the work on stream. width elements of `bits` per row. */
    rssm_status (*to_host)(void *ctx, void *dst, const void *src, int64_t bytes, void *stream, rssm_error *err);
} rssm_backend;

const rssm_backend *rssm_cpu_backend(void);
const rssm_backend *rssm_cuda_backend(void); /* NULL in a build without CUDA */

/* The level rssm_cpu_backend would use with these options, without opening it: for describe. */
const char *rssm_cpu_level_name(int32_t cpu_level, int32_t cpu_reference);
int32_t rssm_cpu_thread_count(int32_t num_threads);

#endif
