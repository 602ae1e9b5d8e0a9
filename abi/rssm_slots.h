/* Extension "replayssm.slots/1": what a server does to slots besides decoding: prefix snapshots, forks, hand-off, preemption.
 * Every call covers all layers of the instance, and the convolution's history where the pool holds it (RSSM_INIT_CONV_STATE).
 * All calls need the pool; device work is enqueued on the stream, in the order of the calls.
 *
 * Slot lists are int32|int64 [n] tensors on the instance's device. An index < 0, >= S or the pad slot is passed over, as a
 * padding row is. A slot that appears twice among the slots that a call writes, or that copy also reads, is passed over as well and
 * sets RSSM_FAULT_SLOTS (rssm_fault.h), as does a pair of copy of which one side alone is out of range; a cursor out of
 * range sets RSSM_FAULT_CURSOR. No other slot changes a byte. With RSSM_CHECK_DEEP [may-sync] all of these are errors
 * (RSSM_ERR_VALUE) instead, and nothing is done.
 *
 * import_state, export_state and flush are several launches on a GPU: when one of them fails (RSSM_ERR_CUDA), the slots named, or
 * the tensors given, are undefined until reset or the next import.
 *
 * get_extension(RSSM_EXT_SLOTS) gives a rssm_slots_api. */
#ifndef RSSM_SLOTS_H_
#define RSSM_SLOTS_H_

#include "rssm_step.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_EXT_SLOTS "replayssm.slots/1"

enum { RSSM_STATE_VK = 0, /* [.., V, K] ([.., P, N]), as the pool */ RSSM_STATE_KV = 1 /* [.., K, V] ([.., N, P]) */ };

/* Materialised states, one tensor per layer, host arrays of num_layers = num_linear_layers pointers, read before the call
 * returns: states[layer] is [n, HV, V, K] (or [n, HV, K, V]) in any of the three float types, compact inner dims, any row
 * stride, element alignment; row i belongs to slots[i].
 * conv: NULL, or per layer [n, channels, w - 1] in any float type, oldest column first. An import without it sets the
 * history to 0.
 * A_log or A: the layers' decay weights as decode takes them, for Mamba-2 exports only: its ring holds dt, not log decays,
 * so folding pending records needs them. Exactly one of the two there; both NULL for KDA and GDN and for imports. */
typedef struct rssm_state_args {
    uint64_t struct_size;
    const DLTensor *slots;
    const DLTensor *const *states;
    const DLTensor *const *conv;
    const DLTensor *const *A_log;
    const DLTensor *const *A;
    uint32_t num_layers;
    int32_t order;  /* RSSM_STATE_VK or RSSM_STATE_KV, always said */
    uint32_t flags; /* RSSM_CHECK_DEEP */
    uint32_t reserved_;
    void *stream;
} rssm_state_args;

/* slots[n]; A_log or A as above (Mamba-2: one of them, num_layers pointers; else NULL and num_layers 0). */
typedef struct rssm_flush_args {
    uint64_t struct_size;
    const DLTensor *slots;
    const DLTensor *const *A_log;
    const DLTensor *const *A;
    uint32_t num_layers;
    uint32_t flags; /* RSSM_CHECK_DEEP */
    void *stream;
} rssm_flush_args;

typedef struct rssm_copy_args {
    uint64_t struct_size;
    const DLTensor *src; /* [n]; a slot may be the source of several copies */
    const DLTensor *dst; /* [n], no slot twice, none also in src */
    uint32_t flags;      /* RSSM_CHECK_DEEP */
    uint32_t reserved_;
    void *stream;
} rssm_copy_args;

typedef struct rssm_slots_api {
    uint64_t struct_size;
    /* state <- states (rounded to the pool's type), ring empty, cursor 0 as after a reset. [instance] [capture-safe] */
    rssm_status (*import_state)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
    /* states <- checkpoint with the pending records folded in; the slots stay as they are. [instance] [capture-safe] */
    rssm_status (*export_state)(rssm_plugin *plugin, const rssm_state_args *args, rssm_error *err);
    /* dst <- src with pending ring and cursor: dst decodes exactly as src would. [instance] [capture-safe] */
    rssm_status (*copy)(rssm_plugin *plugin, const rssm_copy_args *args, rssm_error *err);
    /* Folds the pending records into the checkpoint in place; base += count, count = 0. [instance] [capture-safe] */
    rssm_status (*flush)(rssm_plugin *plugin, const rssm_flush_args *args, rssm_error *err);

    /* Bytes of one saved slot, header included: the same for every slot of the instance. [any-thread] */
    rssm_status (*saved_bytes)(const rssm_plugin *plugin, uint64_t *bytes, rssm_error *err);
    /* One slot to host memory, as a self-describing little-endian byte stream (docs/abi.md) that holds what is alive of it:
     * checkpoint, pending records, convolution history, cursor; the rest is zeros, so that equal slots give equal bytes and
     * nothing of an earlier tenant leaves. buffer_bytes >= saved_bytes; *written gets the length. Streams written on one
     * backend load on the other. ERR_VALUE: slot out of range or with a bad cursor. [instance] [may-sync] */
    rssm_status (*save)(rssm_plugin *plugin, int64_t slot, void *buffer, uint64_t buffer_bytes, uint64_t *written,
                        void *stream, rssm_error *err);
    /* Leaves the slot alone unless the stream is whole, undamaged and of this model, layout, ring, layers, dtypes and
     * tensor-parallel rank (RSSM_ERR_STREAM_DATA, with both sides). [instance] [may-sync] */
    rssm_status (*load)(rssm_plugin *plugin, int64_t slot, const void *buffer, uint64_t buffer_bytes, void *stream,
                        rssm_error *err);

    /* A slot allocator for hosts that want one; it touches no memory of the pool. acquire gives a free slot (never the pad
     * slot) and a handle of slot and generation: RSSM_ERR_NO_SLOT when all are taken. The slot holds what its last tenant
     * left: reset it, import or copy to it. release and check refuse a handle that was released before or was never given
     * out (RSSM_ERR_HANDLE). No handle is 0 and none comes back: the generation has 33 bits or more, and a slot that has
     * used them up is not given out again. A host that numbers slots itself leaves all of this alone. [instance] */
    rssm_status (*acquire)(rssm_plugin *plugin, uint64_t *handle, int64_t *slot, rssm_error *err);
    rssm_status (*release)(rssm_plugin *plugin, uint64_t handle, rssm_error *err);
    rssm_status (*check)(const rssm_plugin *plugin, uint64_t handle, int64_t *slot, rssm_error *err);
} rssm_slots_api;

#ifdef __cplusplus
}
#endif
#endif
