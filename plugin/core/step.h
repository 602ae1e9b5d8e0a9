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

/* Records that may be pending. At L = 1 every token is folded: a count other than 0 is of a damaged cursor, or of another's. */
#define RSSM_MOST_RECORDS(L) ((L) > 1 ? (L) : 0)

/* Bits of the sticky fault word. */
enum {
    RSSM_FAULTBIT_CURSOR = 1 << 0,   /* cursor out of range: the row was treated as padding          */
    RSSM_FAULTBIT_ACCEPTED = 1 << 1, /* accepted count out of range                                  */
    RSSM_FAULTBIT_OUTPUT = 1 << 2,   /* a 16-bit output saturated                                    */
    RSSM_FAULTBIT_STATE = 1 << 3,    /* a 16-bit state element saturated                             */
    RSSM_FAULTBIT_RING = 1 << 4,     /* a 16-bit ring element saturated                              */
    RSSM_FAULTBIT_SLOTS = 1 << 5,    /* a slot operation named a slot twice, or half a pair          */
    RSSM_FAULTBIT_SEQLENS = 1 << 6   /* a verify window out of range                                 */
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
    int32_t flush_all; /* 1: every row flushes; one whose window does not end by it keeps its `short` */
    int32_t pad_;
} rssm_begin;

/* verify: step_begin for windows of tokens. Row b gets tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1, at most max_T; it
 * flushes iff count + len > L, and the cursor then moves to base + count, 0 at once. commit moves it on. */
typedef struct rssm_verify_begin {
    int32_t B;
    int32_t L, R;
    int32_t conv_len;
    int32_t max_T;
    int32_t pad_;
    int64_t S;
    int64_t pad_slot;
    rssm_index slots;
    rssm_index cu_seqlens; /* [B + 1] */
    int32_t *cursor;
    int64_t cursor_slot;
    int32_t *rows; /* slot, base, count, flush, conv, start, len, order */
    int64_t rows_row;
    uint32_t *fault;
} rssm_verify_begin;

/* One layer of a window pass. step as in a plain step, but that rows are always there, row b has the tokens
 * rows[b][5] .. + rows[b][6] - 1 of the inputs and of out, which have `tokens` rows, and a row with rows[b][3] folds its
 * `count` committed records (no draft) into the checkpoint. Draft i's record goes to ring row base + count + i. */
typedef struct rssm_window {
    rssm_step step;
    int64_t tokens;
    int32_t max_T; /* Tm of the instance: no window is longer */
    int32_t pad_;
} rssm_window;

/* commit: cursor count += accepted[b], conv += accepted[b]. */
typedef struct rssm_commit {
    int32_t B;
    int32_t L, R;
    int32_t conv_len;
    int64_t S;
    int64_t pad_slot;
    const int32_t *rows; /* of verify_begin */
    int64_t rows_row;
    rssm_index accepted;
    int32_t *cursor;
    int64_t cursor_slot;
    uint32_t *fault;
} rssm_commit;

/* One layer of the short convolution; a plain pass has rows of one token each. x_{t-i} of a row's first token t lies in
 * column conv - i (mod conv_len) of the slot's ring, token j goes to column conv + j. */
typedef struct rssm_convolution {
    int32_t B; /* rows */
    int32_t channels, width, conv_len;
    int64_t S;
    int64_t pad_slot;
    int64_t tokens;    /* rows of in and out */
    rssm_input in;     /* [tokens, channels] */
    rssm_input weight; /* [channels, width] */
    rssm_input bias;   /* [channels], optional */
    void *out;         /* [tokens, channels], dtype of in */
    int64_t out_row;
    rssm_pooled conv; /* [S, channels, conv_len] */
    const int32_t *rows;
    int64_t rows_row;
    uint32_t *fault;
    int32_t max_T; /* 1: plain */
    int32_t pad_;
} rssm_convolution;

/* Slot operations over all layers (the layers' pool tensors are rssm_pool's). */
typedef struct rssm_slot_copy {
    int64_t n;
    rssm_index src, dst;
    uint32_t *fault;
} rssm_slot_copy;

/* One layer of an import, export or flush. */
typedef struct rssm_state_layer {
    void *state; /* [n, HV, V, K] or [n, HV, K, V]; NULL in a flush */
    int64_t state_row;
    void *conv; /* [n, channels, w - 1], oldest first; NULL: none (an import zeroes the history) */
    int64_t conv_row;
    int32_t state_dtype, conv_dtype;
    rssm_input decay; /* Mamba-2, export and flush: A_log[HV], or A */
} rssm_state_layer;

typedef struct rssm_state_io {
    int64_t n;
    rssm_index slots;
    const rssm_state_layer *layers; /* host array [num_layers of the pool] */
    int32_t transposed;             /* 1: [K, V] */
    int32_t decay_is_A;             /* decay holds A = -exp(A_log) */
    uint32_t *fault;
} rssm_state_io;

#endif
