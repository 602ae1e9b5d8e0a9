/* One layer, one step, as a backend sees it: plain numbers and addresses, already validated.
 *
 * The struct is free of pointers to host structs, so a CUDA kernel takes it by value. The three families share one
 * vocabulary (maths.md): for Mamba-2 read q = C, k = B, v = x, d = x, a = dt, H = groups, HV = heads, K = d_state N,
 * V = head_dim P; state is [S, HV, V, K] with K contiguous in all of them.
 */
#ifndef RSSM_CORE_STEP_H_
#define RSSM_CORE_STEP_H_

#include <stdint.h>

#define RSSM_STEP_ROW_WIDTH 8 /* int32 per row of rows[B, 8]; RSSM_ROW_WIDTH of the ABI */

enum {
    RSSM_STEP_HAS_BOUND = 1 << 0,  /* KDA/GDN: gate is lower_bound * sigmoid(...)                 */
    RSSM_STEP_QK_NORM = 1 << 1,    /* q and k are L2-normalised here                              */
    RSSM_STEP_A_IS_DECAY = 1 << 2, /* Mamba-2: A_log holds A = -exp(A_log) itself                 */
    RSSM_STEP_DT_SOFTPLUS = 1 << 3 /* Mamba-2: dt goes through softplus (always, for known models)*/
};

/* Bits of the sticky fault word. */
enum {
    RSSM_FAULTBIT_CURSOR = 1 << 0,   /* cursor out of range: the row was treated as padding          */
    RSSM_FAULTBIT_ACCEPTED = 1 << 1, /* accepted count out of range                                  */
    RSSM_FAULTBIT_OUTPUT = 1 << 2,   /* a 16-bit output saturated                                    */
    RSSM_FAULTBIT_STATE = 1 << 3,    /* a 16-bit state element saturated                             */
    RSSM_FAULTBIT_RING = 1 << 4      /* a 16-bit ring element saturated                              */
};

/* An int32 or int64 array with a stride, e.g. write_pos[B]. data NULL = absent. */
typedef struct rssm_index {
    const void *data;
    int64_t stride; /* elements */
    int32_t bits;   /* 32 or 64 */
    int32_t pad_;
} rssm_index;

/* A read-only tensor [rows, ...] with compact inner dims, or a weight. data NULL = absent. */
typedef struct rssm_input {
    const void *data;
    int64_t row;   /* elements from one row to the next (0 for weights) */
    int32_t dtype; /* RSSM_DTYPE_* */
    int32_t pad_;
} rssm_input;

/* A tensor of the pool [S, ...] with compact inner dims. data NULL = absent (rings when L = 1). */
typedef struct rssm_pooled {
    void *data;
    int64_t slot;  /* elements from one slot to the next */
    int32_t dtype; /* RSSM_DTYPE_* */
    int32_t pad_;
} rssm_pooled;

typedef struct rssm_step {
    int32_t family; /* RSSM_FAMILY_* */
    uint32_t flags; /* RSSM_STEP_*   */
    int32_t B;      /* rows          */
    int32_t H, HV, K, V;
    int32_t L, R;     /* ring length; physical ring rows */
    int64_t S;        /* slots */
    int64_t pad_slot; /* -1 = none configured */

    rssm_input q, k, v; /* [B,H,K] [B,H,K] [B,HV,V]; packed input: three views of one row        */
    rssm_input a;       /* KDA [B,HV,K]; GDN, Mamba-2 (dt) [B,HV]                                 */
    rssm_input b;       /* KDA, GDN [B,HV]                                                        */
    rssm_input z;       /* Mamba-2 [B,HV,V], optional                                             */
    rssm_input A_log;   /* [HV]; optional for KDA, GDN with a bound                               */
    rssm_input dt_bias; /* KDA [HV,K], else [HV]; optional for Mamba-2                            */
    rssm_input D;       /* Mamba-2 [HV], optional                                                 */
    void *out;          /* [B,HV,V] */
    int64_t out_row;
    int32_t out_dtype;
    int32_t pad_;

    rssm_pooled state;   /* [S,HV,V,K]                          */
    rssm_pooled d_cache; /* [S,HV,R,V]   Mamba-2: x             */
    rssm_pooled k_cache; /* [S,H,R,K]    Mamba-2: B             */
    rssm_pooled g_cache; /* KDA [S,HV,R,K], else [S,HV,R]; fp32 */

    const int32_t *rows; /* [B,8] slot, base, count, flush, ...; NULL = the four arrays below */
    int64_t rows_row;
    rssm_index state_indices; /* absent: slot = row            */
    rssm_index write_pos;     /* count; base = 0               */
    rssm_index force_flush;   /* absent: none                  */

    uint32_t *fault; /* one sticky word, or-ed atomically; may be NULL */
    float scale;     /* of q after the norm                       */
    float lower_bound;
    float beta_scale; /* 1, or 2 with negative eigenvalues         */
    float dt_min, dt_max;
    float norm_eps; /* inside the root, on the sum: 1e-6           */
} rssm_step;

/* step_begin: reads and moves the cursors of slots[B], writes rows[B,8]. */
typedef struct rssm_begin {
    int32_t B;
    int32_t L, R;
    int32_t conv_len; /* columns w' of the pool's convolution ring, 0 = none */
    int64_t S;
    int64_t pad_slot;
    rssm_index slots;
    rssm_index force_flush; /* absent: none */
    int32_t *cursor;        /* [S,4] base, count, conv, short */
    int64_t cursor_slot;    /* elements */
    int32_t *rows;
    int64_t rows_row;
    uint32_t *fault;
} rssm_begin;

#endif
