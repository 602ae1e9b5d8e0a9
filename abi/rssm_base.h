/* replayssm plugin ABI 1.0: status codes, errors, dtypes, tensor roles.
 *
 * Conventions that hold for every header of this ABI
 *   - Every struct starts with `uint64_t struct_size`, set by whoever allocates it to sizeof(the struct) in the
 *     headers that he compiles with. The callee reads min(given, known) and treats the rest as zero; a longer struct is accepted when its
 *     unknown tail is zero; a shorter one is accepted down to the 1.0 size. Zero-filled fields mean "the default";
 *     reserved fields of arguments must be 0.
 *   - Tensors are DLPack DLTensors, passed by pointer and borrowed until the call returns. On a CUDA instance the memory
 *     that they point to is used in stream order: keep it until the stream has passed the call.
 *   - Sizes are bytes and strides are elements unless a name says otherwise.
 *   - Thread tags:  [any-thread]   may be called from any threads at once;
 *                   [instance]     one caller at a time per instance, different instances at once are fine;
 *                   [capture-safe] on a CUDA instance only enqueues on the given stream: may be captured in a graph;
 *                   [may-sync]     may wait for the device or allocate: not during capture.
 *   - On an error nothing that the caller passed, and nothing in the plugin, has changed.
 */
#ifndef RSSM_BASE_H_
#define RSSM_BASE_H_

#include <dlpack/dlpack.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_ABI_MAJOR 1
#define RSSM_ABI_MINOR 0

/* What a call returns. 0 is success; values are never reused. status_name() of the table gives the name. */
typedef int32_t rssm_status;
enum {
    RSSM_OK = 0,
    RSSM_ERR_ARGUMENT = 1,      /* a NULL, an unknown flag, a number out of its documented range             */
    RSSM_ERR_STRUCT_SIZE = 2,   /* struct_size below the 1.0 size, or a longer struct with a non-zero tail   */
    RSSM_ERR_UNSUPPORTED = 3,   /* valid, but this build or device cannot do it                              */
    RSSM_ERR_OUT_OF_MEMORY = 4, /* an allocation (host or device, own or callback) failed                    */
    RSSM_ERR_OVERFLOW = 5,      /* a size does not fit in 63 bits                                            */
    RSSM_ERR_IO = 6,            /* config_path cannot be read                                                */
    RSSM_ERR_JSON = 7,          /* the config is not acceptable JSON: syntax, depth, size, duplicate key     */
    RSSM_ERR_CONFIG = 8,        /* a key is missing, of a wrong type, out of range, or contradicts another   */
    RSSM_ERR_MODEL = 9,         /* not a model of these families: Mamba-1, RWKV, no linear layer, ...        */
    RSSM_ERR_TP = 10,           /* the heads do not divide over tp_size, or tp_rank is out of range          */
    RSSM_ERR_STATE = 11,        /* called in the wrong order: decode before prepare, pool_tensors before ... */
    RSSM_ERR_ROLE = 12,         /* a tensor role that is unknown or not used by this family or call          */
    RSSM_ERR_MISSING = 13,      /* a tensor that the call needs is NULL                                      */
    RSSM_ERR_SHAPE = 14,        /* number of dimensions or a dimension                                       */
    RSSM_ERR_DTYPE = 15,        /* element type, bits or lanes                                               */
    RSSM_ERR_DEVICE = 16,       /* device type or id                                                         */
    RSSM_ERR_STRIDE = 17,       /* inner dims not compact, overlapping slots, negative stride                */
    RSSM_ERR_ALIGNMENT = 18,    /* address not aligned as the role needs                                     */
    RSSM_ERR_OVERLAP = 19,      /* a tensor that is written shares memory with another one                   */
    RSSM_ERR_VALUE = 20,        /* RSSM_CHECK_DEEP found a bad value: duplicate slot, cursor out of range    */
    RSSM_ERR_STREAM_DATA = 21,  /* a saved slot stream is damaged, truncated or from another layout          */
    RSSM_ERR_CUDA = 22,         /* a CUDA call failed; rssm_error.cuda_error has its code                    */
    RSSM_ERR_DEVICE_LOST = 23,  /* the CUDA context is dead: only teardown works on this instance            */
    RSSM_ERR_INTERNAL = 24,     /* a fault of ours: please report                                            */
    RSSM_ERR_NO_SLOT = 25,      /* every slot is taken                                                       */
    RSSM_ERR_HANDLE = 26        /* a slot handle that was released or never given out                        */
};

/* What went wrong, filled by every call that fails; on success status and message are cleared. Caller-owned, may be
 * NULL; set struct_size first (below the 1.0 size the call returns RSSM_ERR_STRUCT_SIZE and leaves it alone).
 * Nothing to free. */
typedef struct rssm_error {
    uint64_t struct_size;
    rssm_status status;
    int32_t role;       /* RSSM_T_*, or RSSM_T_NONE                                                       */
    int32_t dim;        /* the dimension at fault, from 0; -1 when it is the rank or not a dimension      */
    int32_t cuda_error; /* CUresult when status is RSSM_ERR_CUDA or RSSM_ERR_DEVICE_LOST, else 0          */
    /* Both sides, for errors of a tensor: sizes (SHAPE), bits (DTYPE), device types or ids (DEVICE), elements (STRIDE),
     * bytes (ALIGNMENT); OVERLAP: expected is the role of the other tensor; VALUE: a bound and the value, or for a slot
     * that appears twice both rows. Other errors have their numbers in the message alone. */
    int64_t expected;
    int64_t got;
    char message[512]; /* UTF-8, zero-terminated, one line                                                */
} rssm_error;

/* The recurrent layer. */
enum { RSSM_FAMILY_NONE = 0, RSSM_FAMILY_KDA = 1, RSSM_FAMILY_GDN = 2, RSSM_FAMILY_MAMBA2 = 3 };

/* Element types of state, io and ring. 0 = the default of the config (see rssm_init_args). */
enum { RSSM_DTYPE_DEFAULT = 0, RSSM_DTYPE_FLOAT32 = 1, RSSM_DTYPE_BFLOAT16 = 2, RSSM_DTYPE_FLOAT16 = 3 };

/* Tensor roles, append-only. A call takes an array of DLTensor pointers indexed by role, with its length: a known role
 * that is NULL is absent, a non-NULL role that the plugin does not know is refused.
 *
 * Symbols: B rows of the call, S slots, L ring length, R ring rows (L, or L + max_draft + 1 with drafts);
 * KDA and GDN: H key heads, HV value heads, K and V head dims; Mamba-2: nh heads, P head dim, ng groups, N state.
 *
 * Who takes what    KDA                   GDN                   Mamba-2
 *   packed input    mixed_qkv[B,2HK+HVV]  mixed_qkv[B,2HK+HVV]  mixed_xbc[B,nhP+2ngN], a row is x | B | C
 *   or apart        q,k[B,H,K] v[B,HV,V]  q,k[B,H,K] v[B,HV,V]  x[B,nh,P] B,C[B,ng,N]
 *   gate input      a[B,HV,K]             a[B,HV]               dt[B,nh]
 *   beta input      b[B,HV]               b[B,HV]               -
 *   output gate     -                     -                     z[B,nh,P] (optional)
 *   weights         A_log[HV]*            A_log[HV]*            A_log[nh], or A[nh]
 *                   dt_bias[HV*K]         dt_bias[HV]           dt_bias[nh] (optional), D[nh] (optional)
 *   output          out[B,HV,V]           out[B,HV,V]           out[B,nh,P]
 *   state           state[S,HV,V,K]       state[S,HV,V,K]       state[S,nh,P,N]
 *   ring            d_cache[S,HV,R,V]     d_cache[S,HV,R,V]     x_cache[S,nh,R,P]
 *                   k_cache[S,H,R,K]      k_cache[S,H,R,K]      B_cache[S,ng,R,N]
 *                   g_cache[S,HV,R,K]     g_cache[S,HV,R]       dt_cache[S,nh,R]
 * (* optional with a lower bound.) Inputs and out may also come with their two inner dims flattened, weights with extra dims of 1
 * (A_log [1, 1, HV, 1]), KDA's dt_bias as [HV, K]. Missing dt_bias and D count as 0. Inputs, outputs and weights need
 * element alignment, compact inner dims and any row stride >= 0 (rows of out may not overlap); pool tensors a 16-byte
 * aligned base, compact inner dims and any slot stride; index arrays (int32 or int64) any stride >= 0. NULL strides mean
 * compact; B = 0 is an empty call. At L = 1 the ring may be absent, all of it. */
enum {
    RSSM_T_NONE = 0,
    RSSM_T_MIXED_QKV = 1, /* io dtype                                                              */
    RSSM_T_Q = 2,
    RSSM_T_K = 3,
    RSSM_T_V = 4,
    RSSM_T_MIXED_XBC = 5,
    RSSM_T_X = 6,
    RSSM_T_BM = 7, /* Mamba-2's input matrix B                                                     */
    RSSM_T_CM = 8, /* Mamba-2's output matrix C                                                    */
    RSSM_T_A = 9,  /* "a", the gate's input; io dtype or float32                                   */
    RSSM_T_B = 10, /* "b", beta before its sigmoid; io dtype or float32                             */
    RSSM_T_DT = 11,
    RSSM_T_Z = 12,
    RSSM_T_A_LOG = 13,   /* weights: float32, bfloat16 or float16, each on its own                    */
    RSSM_T_A_DECAY = 14, /* Mamba-2's A = -exp(A_log), negative, instead of A_log                   */
    RSSM_T_DT_BIAS = 15,
    RSSM_T_D = 16,
    RSSM_T_OUT = 17,   /* io dtype, or float32                                                      */
    RSSM_T_STATE = 18, /* the checkpoint                                                            */
    RSSM_T_D_CACHE = 19,
    RSSM_T_K_CACHE = 20,
    RSSM_T_G_CACHE = 21, /* float32                                                                 */
    RSSM_T_X_CACHE = 22,
    RSSM_T_DT_CACHE = 23, /* float32                                                                */
    RSSM_T_B_CACHE = 24,
    RSSM_T_CONV = 25,          /* [S, channels, w']: history of the short convolution               */
    RSSM_T_CURSOR = 26,        /* int32 [S, 4]: base, count, conv, short (see rssm_step.h)          */
    RSSM_T_ROWS = 27,          /* int32 [B, RSSM_ROW_WIDTH]                                         */
    RSSM_T_WRITE_POS = 28,     /* int32|int64 [B]: host-kept cursor, base 0                         */
    RSSM_T_FORCE_FLUSH = 29,   /* int32|int64 [B]: non-zero = flush now                             */
    RSSM_T_STATE_INDICES = 30, /* int32|int64 [B]: slot of each row; absent = row b uses slot b     */
    RSSM_T_SLOTS = 31,         /* int32|int64 [n]                                                   */
    RSSM_T_CU_SEQLENS = 32,    /* int32|int64 [B + 1]                                               */
    RSSM_T_ACCEPTED = 33,      /* int32|int64 [B]                                                   */
    RSSM_T_CONV_IN = 34,
    RSSM_T_CONV_WEIGHT = 35,
    RSSM_T_CONV_BIAS = 36,
    RSSM_T_CONV_OUT = 37,
    RSSM_T_SRC_SLOTS = 38,
    RSSM_T_DST_SLOTS = 39,
    RSSM_T_COUNT = 40 /* of this header; grows with minor versions */
};

/* One plugin instance: one model on one device (one tensor-parallel rank). */
typedef struct rssm_plugin rssm_plugin;

#ifdef __cplusplus
}
#endif
#endif
