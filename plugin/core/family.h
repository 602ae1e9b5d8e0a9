/* The family table: each tensor role of each family once, as data. Pool layout, validation, messages, docs and tests
 * all read it. Adding a tensor is one line in family.c. */
#ifndef RSSM_CORE_FAMILY_H_
#define RSSM_CORE_FAMILY_H_

#include "rssm_base.h"

/* A factor of a shape. */
typedef enum rssm_sym {
    RSSM_SYM_END = 0,
    RSSM_SYM_B,   /* rows of the call                     */
    RSSM_SYM_S,   /* slots                                */
    RSSM_SYM_R,   /* ring rows                            */
    RSSM_SYM_H,   /* key heads; ng                        */
    RSSM_SYM_HV,  /* value heads; nh                      */
    RSSM_SYM_K,   /* key dim; N                           */
    RSSM_SYM_V,   /* value dim; P                         */
    RSSM_SYM_HxK, /* flattened inner dims                 */
    RSSM_SYM_HVxV,
    RSSM_SYM_HVxK,
    RSSM_SYM_PACKED, /* 2HK + HV*V; nh*P + 2*ng*N: the packed row, also the convolution's channels */
    RSSM_SYM_CONV,   /* columns w' of the convolution history */
    RSSM_SYM_CURSOR, /* 4 */
    RSSM_SYM_ROW,    /* 8 */
    RSSM_SYM_N,      /* free: entries of a slot list */
    RSSM_SYM_T,      /* rows of inputs and outputs: B, or the tokens of all windows */
    RSSM_SYM_B1,     /* B + 1 */
    RSSM_SYM_W,      /* width w of the convolution */
    RSSM_SYM_PAST,   /* w - 1: inputs that its next output needs */
    RSSM_SYM_COUNT
} rssm_sym;

/* The values of the symbols for one instance and call; -1 = free, bound by the first tensor that has it. */
typedef struct rssm_dims_of {
    int64_t of[RSSM_SYM_COUNT];
} rssm_dims_of;

/* Which element types a role takes. */
enum {
    RSSM_KIND_IO = 1 << 0,    /* the instance's io dtype    */
    RSSM_KIND_STATE = 1 << 1, /* the instance's state dtype */
    RSSM_KIND_RING = 1 << 2,  /* the instance's ring dtype  */
    RSSM_KIND_F32 = 1 << 3,
    RSSM_KIND_FLOAT = 1 << 4, /* any of the three           */
    RSSM_KIND_I32 = 1 << 5,
    RSSM_KIND_I64 = 1 << 6
};

/* What a role is in a call; decides stride and alignment rules and who writes it. */
typedef enum rssm_place {
    RSSM_PLACE_INPUT,  /* [T, ...] read: compact inner dims, any row stride, element alignment */
    RSSM_PLACE_WEIGHT, /* read: compact                                                        */
    RSSM_PLACE_OUTPUT, /* [T, ...] written: as INPUT, rows may not overlap                     */
    RSSM_PLACE_STATE,  /* pool [S, ...]: compact inner dims, any slot stride, 16-byte alignment*/
    RSSM_PLACE_RING,   /* pool, as STATE                                                       */
    RSSM_PLACE_CONV,   /* pool, as STATE                                                       */
    RSSM_PLACE_CURSOR, /* pool, int32, one for all layers                                      */
    RSSM_PLACE_INDEX   /* small integer array, any stride                                      */
} rssm_place;

/* The calls that take tensors by role, as a set. */
typedef enum rssm_call {
    RSSM_CALL_DECODE = 1 << 0,
    RSSM_CALL_VERIFY = 1 << 1,
    RSSM_CALL_CONV = 1 << 2,       /* the convolution of a plain step */
    RSSM_CALL_CONV_VERIFY = 1 << 3 /* of windows                      */
} rssm_call;

enum { RSSM_NUM_CALLS = 4 };

/* Whether a call that takes it must have it. */
typedef enum rssm_need {
    RSSM_NEED_ALWAYS,
    RSSM_NEED_OPTIONAL,
    RSSM_NEED_PACKED,   /* the packed input, or ...                */
    RSSM_NEED_APART,    /* ... all of these                        */
    RSSM_NEED_RING,     /* unless L = 1; then all of the ring, or none */
    RSSM_NEED_ROWS,     /* rows, or ...                            */
    RSSM_NEED_HOST_POS, /* ... write_pos                           */
    RSSM_NEED_WITH_POS, /* optional, and only beside write_pos     */
    RSSM_NEED_A_LOG,    /* KDA, GDN: optional with a lower bound; Mamba-2: or A */
    RSSM_NEED_A_DECAY
} rssm_need;

enum { RSSM_SPEC_MAX_DIMS = 4, RSSM_MAX_CALL_ROLES = 32 };

typedef struct rssm_role_spec {
    int32_t role;
    uint8_t place; /* rssm_place */
    uint8_t calls; /* set of rssm_call that take it; elsewhere it is refused, or (pool) not used */
    uint8_t need;  /* rssm_need, in these calls */
    uint8_t kinds; /* RSSM_KIND_* */
    uint8_t shape[RSSM_SPEC_MAX_DIMS + 1];     /* rssm_sym, RSSM_SYM_END-terminated     */
    uint8_t alt_shape[RSSM_SPEC_MAX_DIMS + 1]; /* a second accepted shape, or all zero  */
} rssm_role_spec;

typedef struct rssm_family_spec {
    int32_t family;
    const char *name; /* "kda" */
    const char *sym_name[RSSM_SYM_COUNT];
    const rssm_role_spec *roles;
    int32_t num_roles;
} rssm_family_spec;

/* The lines of the table that one call takes, in its order. Where rows have one token each, T is called B. */
typedef struct rssm_call_table {
    rssm_role_spec roles[RSSM_MAX_CALL_ROLES];
    int32_t num_roles;
    int32_t pad_;
    uint64_t accepted; /* bit of each role that may be given: these, and what pool_tensors gives */
} rssm_call_table;

void rssm_call_table_make(rssm_call_table *table, const rssm_family_spec *family, rssm_call call);

const rssm_family_spec *rssm_family(int32_t family);                                  /* NULL if unknown */
const rssm_role_spec *rssm_family_role(const rssm_family_spec *family, int32_t role); /* NULL if it has none */
const char *rssm_role_name(int32_t role);                                             /* "d_cache"; "unknown" */

/* Bytes of one element of RSSM_DTYPE_*, and its name. */
int32_t rssm_dtype_bytes(int32_t dtype);
const char *rssm_dtype_name(int32_t dtype);

#endif
