/* Extension "replayssm.slots/1": what a server does to slots besides decoding. Every call covers all layers of the
 * instance, and the convolution's history where the pool holds it. Draft: answers RSSM_ERR_UNSUPPORTED in this version.
 * get_extension(RSSM_EXT_SLOTS) gives a rssm_slots_api. */
#ifndef RSSM_SLOTS_H_
#define RSSM_SLOTS_H_

#include "rssm_base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_SLOTS "replayssm.slots/1"

enum { RSSM_STATE_VK = 0, /* [.., V, K], as the pool */ RSSM_STATE_KV = 1 /* [.., K, V] */ };

/* Materialised states, one tensor per layer: states[layer] is [n, HV, V, K] (or [n, HV, K, V]) in any supported dtype,
 * row i belongs to slots[i]. conv may be NULL, or per layer [n, channels, w - 1], oldest column first. */
typedef struct rssm_state_args {
    uint64_t struct_size;
    const DLTensor *slots;
    const DLTensor *const *states; /* [num_linear_layers] */
    const DLTensor *const *conv;   /* [num_linear_layers] or NULL */
    uint32_t num_layers;
    int32_t order; /* RSSM_STATE_VK or RSSM_STATE_KV */
    void *stream;
    uint32_t flags;
    uint32_t reserved_;
} rssm_state_args;

typedef struct rssm_copy_args {
    uint64_t struct_size;
    const DLTensor *src; /* [n] */
    const DLTensor *dst; /* [n], no slot twice, none also in src */
    void *stream;
    uint32_t flags;
    uint32_t reserved_;
} rssm_copy_args;

typedef struct rssm_slots_api {
    uint64_t struct_size;
    /* state <- states, ring empty, cursor 0. [instance] [capture-safe] */
    rssm_status (*import_state)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
    /* states <- checkpoint with the pending records folded in; the slots are unchanged. [instance] [capture-safe] */
    rssm_status (*export_state)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
    /* dst <- src with pending ring and cursor: dst decodes exactly as src would. [instance] [capture-safe] */
    rssm_status (*copy)(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err);
    /* Folds the pending records into the checkpoint in place. slots [n]. [instance] [capture-safe] */
    rssm_status (*flush)(rssm_plugin *plugin, const DLTensor *slots, void *stream, rssm_error *err);
    /* Bytes of one saved slot, header included. [instance] */
    rssm_status (*saved_bytes)(const rssm_plugin *plugin, uint64_t *bytes, rssm_error *err);
    /* One slot to and from host memory. load leaves the slot alone unless the stream is whole, undamaged and of this
     * layout, tensor-parallel rank and dtype (RSSM_ERR_STREAM_DATA). [instance] [may-sync] */
    rssm_status (*save)(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                        void *stream, rssm_error *err);
    rssm_status (*load)(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes, void *stream,
                        rssm_error *err);
    /* A slot allocator for hosts that want one; a handle holds slot and generation. release of a stale handle is an
     * error. [instance] */
    rssm_status (*acquire)(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *err);
    rssm_status (*release)(rssm_plugin *plugin, uint64_t handle, rssm_error *err);
    rssm_status (*check)(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *err);
} rssm_slots_api;

#ifdef __cplusplus
}
#endif
#endif
