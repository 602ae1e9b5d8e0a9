/* The instance behind rssm_plugin, and what api.c needs of it. Every function takes full-sized structs and a full-sized
 * err: api.c has already dealt with sizes and NULLs. */
#ifndef RSSM_CORE_PLUGIN_H_
#define RSSM_CORE_PLUGIN_H_

#include "core/backend.h"
#include "core/layout.h"
#include "core/model.h"
#include "replayssm.h"
#include "rssm_conv.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum { RSSM_POOL_MAX_DIMS = 4, RSSM_MAX_STRUCT_BYTES = 1 << 16 };

#define RSSM_PLUGIN_MAGIC 0x72736D706C756731u /* a live instance */
#define RSSM_NORM_EPS     1e-6                /* inside the root of the q/k norm, on the sum */

/* A DLTensor of the pool with its shape. */
typedef struct rssm_pool_view {
    DLTensor tensor;
    int64_t shape[RSSM_POOL_MAX_DIMS], strides[RSSM_POOL_MAX_DIMS];
} rssm_pool_view;

typedef struct rssm_slot_scratch rssm_slot_scratch; /* slots.c      */
typedef struct rssm_slot_alloc rssm_slot_alloc;     /* slot_alloc.c */

struct rssm_plugin {
    uint64_t magic; /* while the instance lives */
    rssm_allocator mem;
    rssm_arena arena;
    rssm_init_args args; /* pointers to the caller's memory are cleared */
    rssm_model model;
    rssm_rank rank;
    rssm_layout layout;
    rssm_tensor_info tensors[RSSM_MAX_POOL_TENSORS];

    rssm_call_table calls[RSSM_NUM_CALLS]; /* of 1 << i as rssm_call */

    const rssm_backend *backend;
    rssm_backend_options backend_options;
    void *ctx; /* of the backend; NULL before prepare */

    rssm_pool pool;                 /* regions NULL before pool_create */
    rssm_pool_view *views;          /* [num_layers][layout.num_tensors] */
    uintptr_t pool_first, pool_end; /* addresses that the views span */
    void *slab;                     /* what pool_create allocated, or NULL */

    rssm_slot_scratch *slot_scratch; /* of slots.c, with the pool */
    rssm_slot_alloc *slot_alloc;     /* of the slot allocator; NULL before its first use */
};

rssm_status rssm_plugin_init(const rssm_init_args *args, rssm_plugin **out, rssm_error *err);
void rssm_plugin_free(rssm_plugin *plugin);
double rssm_default_scale(const rssm_plugin *plugin); /* of q */
void rssm_plugin_describe(const rssm_plugin *plugin, rssm_description *out);
rssm_status rssm_plugin_prepare(rssm_plugin *plugin, rssm_error *err);
rssm_status rssm_plugin_pool_create(rssm_plugin *plugin, const rssm_pool_args *args, rssm_error *err);
rssm_status rssm_plugin_reset(rssm_plugin *plugin, const rssm_reset_args *args, rssm_error *err);

/* An entry that this backend does not have: RSSM_ERR_UNSUPPORTED. */
rssm_status rssm_no_entry(const rssm_plugin *plugin, const char *name, rssm_error *err);

#endif
