/* One instance with drafts, a convolution and a pool in the test's memory, and beside it a valid call of every function of
 * the extensions slots, verify and conv: tests spoil one thing and see that it is refused and that nothing has changed.
 *
 * Slots 0 and 1 have decoded tokens, slot 2 is fresh, 3 is the target of copies, EC_PAD is the pad slot. rows_of_step and
 * rows_of_verify are of passes over slots 0 .. 2 that have begun. */
#ifndef RSSM_TESTS_EXT_CASE_H_
#define RSSM_TESTS_EXT_CASE_H_

#include "harness.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum {
    EC_LAYERS = 2,
    EC_SLOTS = 6,
    EC_PAD = 5,
    EC_ROWS = 3,   /* B of every call   */
    EC_DRAFTS = 2, /* Tm = 3           */
    EC_TOKENS = 5, /* windows 2, 0, 3  */
    EC_WIDTH = 4,  /* w, as h_dims     */
    EC_MAX_TENSORS = 80
};

/* The functions. EC_VALIDATE_* touch nothing by contract. */
typedef enum ec_call {
    EC_VERIFY_BEGIN,
    EC_VERIFY,
    EC_VALIDATE_VERIFY,
    EC_COMMIT,
    EC_CONV,
    EC_CONV_VERIFY,
    EC_VALIDATE_CONV,
    EC_IMPORT,
    EC_EXPORT,
    EC_FLUSH,
    EC_COPY,
    EC_CALLS
} ec_call;

/* A tensor of some of the calls. */
typedef struct ec_tensor {
    h_tensor h;
    void *data;             /* its elements, wherever a test lets it point */
    const char *name;       /* as in messages */
    const DLTensor **where; /* see ec_where */
    int32_t role, layer;
    h_place place;
    uint32_t calls; /* set of 1 << ec_call */
    bool optional, binds;
} ec_tensor;

typedef struct ec_case {
    h_spec spec;
    rssm_plugin *plugin;
    const rssm_slots_api *slots_api;
    const rssm_verify_api *verify_api;
    const rssm_conv_api *conv_api;
    const rssm_fault_api *fault_api;
    unsigned char *slab;
    uint64_t slab_bytes;
    int32_t *cursors; /* [EC_SLOTS][4] in the slab */
    ec_tensor tensors[EC_MAX_TENSORS];
    int num_tensors;
    const DLTensor *verify_roles[H_NUM_ROLES], *conv_roles[H_NUM_ROLES], *window_roles[H_NUM_ROLES];
    const DLTensor *states[EC_LAYERS], *convs[EC_LAYERS], *outs[EC_LAYERS], *conv_outs[EC_LAYERS], *decays[EC_LAYERS];
    rssm_verify_begin_args verify_begin;
    rssm_decode_args verify, conv, conv_verify;
    rssm_commit_args commit;
    rssm_state_args import, export;
    rssm_flush_args flush;
    rssm_copy_args copy;
    unsigned char *before; /* of ec_remember */
} ec_case;

const char *ec_name(ec_call call);
/* order: of import and export. NULL, after h_skip: the plugin lacks an extension. */
ec_case *ec_new(int32_t family, int32_t order);
ec_case *ec_new_of(h_spec wish, int32_t order); /* family, io, state, ring and init_flags of the wish */
void ec_free(ec_case *c);
rssm_status ec_run(ec_case *c, ec_call call, rssm_error *err);
void *ec_args(ec_case *c, ec_call call, uint64_t *bytes);
ec_tensor *ec_find(ec_case *c, ec_call call, int32_t role, int32_t layer); /* NULL: not of the call */

/* The pointer by which the call reads it. */
const DLTensor **ec_where(ec_case *c, ec_call call, const ec_tensor *tensor);

/* All bytes: slab, tensors. changed says whether one differs. */
void ec_remember(ec_case *c);
bool ec_changed(const ec_case *c);

#endif
