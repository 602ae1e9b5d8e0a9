/* What all unit tests of the boundary share: the plugin through dlopen, and whole decode calls in host memory.
 *
 * It knows the ABI from the public headers alone. The table of roles below is written from the comment in rssm_base.h, by hand and
 * apart from the plugin's own, so that the two check each other.
 *
 * A call's tensors lie each in a block of its own, between guard bytes; bytes that belong to no element (gaps between
 * strided rows and slots) are 0xFF: NaN in every float type, -1 in every integer type.
 */
#ifndef RSSM_TESTS_HARNESS_H_
#define RSSM_TESTS_HARNESS_H_

#include <check.h>
#include <stdbool.h>
#include <stddef.h>

#include "replayssm.h"

enum { H_MAX_DIMS = 4, H_NUM_ROLES = RSSM_T_COUNT + 8 /* room for roles that nobody knows */ };

/* ---- the plugin ------------------------------------------------------------------------------------------------- */

/* dlopen of $RSSM_PLUGIN once per process, then the table. A test without a plugin fails. */
const rssm_api *h_api(void);
/* NULL, or what gives the table to use in its place (the judge's, for another device). To be set before the first h_api. */
extern const rssm_api *(*h_front)(const rssm_api *real);
/* A plugin may have some families only (rssm_info). Where a test takes any: the one that it would like, or else the plugin's
 * first. Where it needs one: h_need_family skips the rest of the test, h_has_family the turn of a loop. */
bool h_has_family(int32_t family);
int32_t h_family(int32_t preferred);
void h_need_family(int32_t family); /* numbers that are no family are let through: a plugin refuses them itself */
bool h_had_no_family(void);         /* h_has_family was asked since this was, and always said no: nothing was tested */
#define H_FAMILIES(family, first, last)                                   \
    for (int32_t family = (first); family <= (int32_t)(last); (family)++) \
        if (h_has_family(family))
/* $RSSM_SOURCE_ROOT */
const char *h_source_root(void);

/* ---- the table of roles ----------------------------------------------------------------------------------------- */

typedef enum h_place { H_INPUT, H_WEIGHT, H_OUTPUT, H_POOL, H_INDEX } h_place;

typedef struct h_role {
    int32_t role;
    const char *name;   /* as in messages: "d_cache" */
    const char *shape;  /* "S,HV,R,V" */
    const char *alt;    /* a second accepted shape, or NULL */
    const char *dtypes; /* "io", "io|f32", "state", "ring", "f32", "float" (any of three), "i32", "i32|i64" */
    h_place place;
    const char *form; /* "" always; "packed" or "apart"; "rows" or "pos"; "ring"; "optional" */
} h_role;

/* Roles of a family's decode call, in the order of rssm_base.h. */
const h_role *h_roles(int32_t family, int *count);
const h_role *h_role_of(int32_t family, int32_t role); /* NULL: not of this family's decode */

/* ---- a call ----------------------------------------------------------------------------------------------------- */

/* Zero means the default in brackets. Heads are this rank's. */
typedef struct h_spec {
    int32_t family;
    int32_t H, HV, K, V;     /* [2, 4, 4, 6]: K != V, H != HV                                           */
    int32_t L;               /* [4] */
    int32_t drafts;          /* max_draft_tokens: R = L, or L + drafts + 1                                  */
    int32_t layers;          /* [1] linear layers */
    int64_t B, S;            /* [3, 5]; H_NONE for 0 */
    int32_t io, state, ring; /* RSSM_DTYPE_* [bfloat16, float32, io]                                        */
    int32_t gate, out;       /* of a, b, dt; of out [io]                                                    */
    int32_t weights;         /* [float32]                                                                   */
    bool apart;              /* q, k, v (x, B, C) instead of the packed input                               */
    bool host_pos;           /* write_pos, force_flush and state_indices instead of rows                    */
    bool bounded;            /* KDA, GDN: lower bound -5                                                    */
    int32_t index_bits;      /* [32] of write_pos, ... */
    int64_t row_gap;         /* extra elements between the rows of inputs, out and index arrays             */
    int64_t slot_gap;        /* extra elements between slots of pool tensors; a multiple of 16 bytes        */
    uint32_t init_flags;     /* RSSM_INIT_* */
    int64_t num_slots;       /* of init; 0 = the pool is not the plugin's */
    int32_t threads;         /* [1] */
    const rssm_allocator *allocator;
    bool filled; /* by h_defaults: a zero is meant */
} h_spec;

enum { H_NONE = -1 };

h_spec h_defaults(h_spec spec);          /* fills the brackets                            */
int32_t h_ring_rows(const h_spec *spec); /* R                                             */
rssm_dims h_dims(const h_spec *spec);    /* the model of the spec, tp 1                   */
rssm_init_args h_init_args(const h_spec *spec, const rssm_dims *dims);
rssm_plugin *h_init(const h_spec *spec); /* asserts RSSM_OK                               */
void h_teardown(rssm_plugin **plugin);   /* asserts RSSM_OK and a nulled handle           */
int64_t h_symbol(const h_spec *spec, const char *symbol, size_t length); /* "HV" -> 4, "H*K" -> 8 */

/* One tensor with its own memory. t.data points at the first element; a test may change t, shape and strides at will. Not
 * to be copied: t points into the struct. */
typedef struct h_tensor {
    DLTensor t;
    int64_t shape[H_MAX_DIMS + 2], strides[H_MAX_DIMS + 2];
    unsigned char *block; /* guard | elements | guard */
    size_t bytes;         /* of the elements, gaps included */
} h_tensor;

/* gap: extra elements per index of dim 0. Strides are written out when there is a gap, else NULL. */
void h_tensor_make(h_tensor *tensor, DLDataType type, int ndim, const int64_t *shape, int64_t gap);
void h_tensor_free(h_tensor *tensor);
bool h_tensor_guarded(const h_tensor *tensor); /* guard bytes untouched */

DLDataType h_float_type(int32_t dtype); /* RSSM_DTYPE_* */
DLDataType h_int_type(int bits);

typedef struct h_call {
    h_spec spec;
    rssm_decode_args args;              /* tensors = roles, num_tensors = RSSM_T_COUNT, layer 0 */
    const DLTensor *roles[H_NUM_ROLES]; /* what the call passes; clear an entry to leave a tensor out */
    h_tensor tensors[RSSM_T_COUNT];     /* by role; block NULL where the spec has none */
} h_call;

/* All tensors of the form that the spec asks for, optional ones and rings included; inputs random, rings 0, states
 * random, rows {b, 0, 0, 0, 0, b, 1, 0} or write_pos 0 and state_indices b. */
h_call *h_call_new(const h_spec *spec, uint64_t seed);
void h_call_free(h_call *call);
bool h_call_guarded(const h_call *call);

/* All bytes of all tensors; compare says which role differs, or RSSM_T_NONE. */
typedef struct h_snapshot {
    unsigned char *bytes;
} h_snapshot;
h_snapshot h_snapshot_take(const h_call *call);
int32_t h_snapshot_differs(const h_snapshot *snapshot, const h_call *call);
void h_snapshot_free(h_snapshot *snapshot);

/* Memory of tensors and pools, 256-byte aligned, NULL when there is none. (The judge puts its own functions here where the plugin
 * computes on another device.) */
extern void *(*h_block)(size_t bytes);
extern void (*h_block_free)(void *memory);

/* $RSSM_JUDGED_DEVICE is cuda: what a test calls the CPU is a GPU, and the other way round (tests/conform/on_cuda.c). */
bool h_on_cuda(void);

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* Any supported dtype, byte_offset and strides honoured; unused indices 0. */
void *h_at(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
double h_get(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void h_set(const DLTensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3,
           double value); /* rounds to nearest even */
void h_fill(const DLTensor *t, double value);
void h_fill_random(const DLTensor *t, double low, double high, uint64_t *state);
double h_round(int32_t dtype, double value); /* through the dtype and back */

uint64_t h_random(uint64_t *state);
double h_uniform(uint64_t *state, double low, double high);

/* ---- asserting --------------------------------------------------------------------------------------------------- */

rssm_error h_error(void); /* struct_size set, garbage elsewhere: a call must overwrite it */

/* ---- listing ----------------------------------------------------------------------------------------------------- */

/* A test program lists its tests with a function; main runs them all under Check (harness_check.c). The judge of
 * tests/conform compiles the same files with RSSM_CONFORM, without their main, and runs the same tests one by one. */
typedef struct h_suite h_suite;

enum { H_TIMEOUT = 60 };

/* test(_i) for _i in 0 .. count - 1. */
typedef struct h_tests {
    const char *name;
    const TTest *test;
    int count;
    int timeout;           /* seconds for one of them [H_TIMEOUT] */
    const char *extension; /* id that they need, or NULL */
    bool ours;             /* of this plugin alone: nothing that the ABI promises */
    bool lengthy;          /* the same lines many times; for Check: tagged `lengthy` */
} h_tests;

void h_add(h_suite *suite, const h_tests *tests);

/* What main returns. load: the plugin is loaded once, before all forks. */
int h_main(const char *name, void (*list)(h_suite *suite), bool load);
int h_run(Suite *suite); /* a ready suite */

/* The rest of this test has no meaning for this plugin or machine: return after it. */
void h_skip(const char *why);

#endif
