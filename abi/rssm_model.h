/* replayssm plugin ABI 1.0: the model, the instance and what was understood. */
#ifndef RSSM_MODEL_H_
#define RSSM_MODEL_H_

#include "rssm_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What this binary is. All pointers live as long as the library. */
typedef struct rssm_info {
    uint64_t struct_size;
    const char *name;         /* "replayssm"                                               */
    const char *version;      /* "0.1.0"                                                   */
    const char *git_revision; /* "unknown" outside a checkout                              */
    const char *families;     /* "kda,gdn,mamba2"                                          */
    const char *backends;     /* "cpu" or "cpu,cuda"                                       */
    const char *cuda_archs;   /* "" or "sm_80,sm_90,..."; the build's, no device is asked  */
} rssm_info;

/* Memory of the plugin's own. Every allocation of an instance goes through it, so a host can count, cap and fail them.
 * A zero alloc means the C library; alloc and free come together. alignment is a power of two <= 4096; alloc returns
 * NULL to fail. device_alloc serves pool_create and prepare on a CUDA instance only. [any-thread] if init is. */
typedef struct rssm_allocator {
    uint64_t struct_size;
    void *user;
    void *(*alloc)(void *user, uint64_t bytes, uint64_t alignment);
    void (*free)(void *user, void *ptr, uint64_t bytes);
    void *(*device_alloc)(void *user, int32_t device_id, uint64_t bytes, uint64_t alignment);
    void (*device_free)(void *user, int32_t device_id, void *ptr, uint64_t bytes);
} rssm_allocator;

/* One finished line, no newline. The default is silence. */
enum { RSSM_LOG_DEBUG = 0, RSSM_LOG_INFO = 1, RSSM_LOG_WARN = 2, RSSM_LOG_ERROR = 3 };
typedef void (*rssm_log_fn)(void *user, int32_t level, const char *message);

/* The model without a config.json: for hosts and tests that have the numbers. All of the whole model (before tensor
 * parallelism). Mamba-2 reads H = n_groups, HV = heads, K = state size, V = head dim. */
typedef struct rssm_dims {
    uint64_t struct_size;
    int32_t family;               /* RSSM_FAMILY_*                                                      */
    int32_t num_layers;           /* of the model, linear or not; 1 .. 65536                            */
    const int32_t *linear_layers; /* ascending zero-based layer numbers; NULL = all of num_layers       */
    int64_t num_linear_layers;    /* entries of linear_layers                                           */
    int32_t H, HV, K, V;          /* 1 .. 65536 heads (HV % H == 0), 1 .. 4096 dims                     */
    int32_t conv_kernel;          /* width w of the short convolution, 0 = none; <= 64                  */
    int32_t has_lower_bound;      /* KDA, GDN: g = lower_bound * sigmoid(...)                           */
    double lower_bound;           /* < 0                                                                */
    int32_t no_qk_norm;           /* KDA, GDN: 1 = q and k arrive normalised                            */
    int32_t allow_neg_eigval;     /* KDA, GDN: 1 doubles beta                                           */
    int32_t has_time_step_limit;  /* Mamba-2: 1 = clamp dt, after softplus, to [min, max]               */
    int32_t reserved_;
    double time_step_limit_min;
    double time_step_limit_max; /* may be INFINITY                                                    */
} rssm_dims;

/* Flags of init. */
enum {
    RSSM_INIT_CONV_STATE = 1u << 0,     /* the pool also holds conv[S, channels, w']                        */
    RSSM_INIT_SPREAD_FLUSH = 1u << 1,   /* a slot's first window is shortened by a phase derived from its number,
                                         so that rows admitted together do not flush together             */
    RSSM_INIT_CPU_REFERENCE = 1u << 2,  /* CPU: the plain reference code instead of the fast kernels       */
    RSSM_INIT_NO_SMALL_FLUSH = 1u << 4, /* small_batch = 0: no row flushes before its window ends, so that a 16-bit
                                         state is rounded no more often. Bit 3 is not assigned            */
    RSSM_INIT_NO_EARLY_START = 1u << 5  /* CUDA: a kernel starts when all before it in its stream have ended. Without
                                         this it may be launched early, and waits itself (programmatic dependent
                                         launch, compute capability 9.0 on). For hosts that read the edges of graphs,
                                         or whose own kernels of that kind touch memory before they wait, or never do */
};

/* Exactly one of config_json, config_path and dims. Zero elsewhere = the default in brackets. */
typedef struct rssm_init_args {
    uint64_t struct_size;
    const char *config_json; /* text of a config.json, need not be zero-terminated; copied             */
    uint64_t config_json_len;
    const char *config_path; /* of a config.json                                                       */
    const rssm_dims *dims;

    int32_t device_type; /* DLDeviceType: kDLCPU [default] or kDLCUDA                                    */
    int32_t device_id;
    int32_t tp_size; /* [1]; value heads are split evenly, key heads too; Mamba-2 groups are copied where tp_size is a
                        multiple of their number; anything else is ERR_TP */
    int32_t tp_rank; /* 0 .. tp_size - 1                                                             */
    int32_t layer_begin;         /* this pipeline stage's model layers [layer_begin, layer_end)                  */
    int32_t layer_end;           /* [0 = all]                                                                    */
    int32_t ring_length;         /* L, 1 .. 64; [0 = the length with the fewest modelled bytes per token]        */
    int32_t max_draft_tokens;    /* D drafts besides the bonus token; D + 1 <= L, on CUDA <= 16; [0 = no verify] */
    int32_t io_dtype;            /* RSSM_DTYPE_*: inputs and outputs [config's dtype, else bfloat16]              */
    int32_t state_dtype;         /* [KDA float32; GDN, Mamba-2: the config's cache dtype, else float32]           */
    int32_t ring_dtype;          /* d, k, x, B rows [io dtype]; gates and dt are always float32                   */
    int32_t max_batch;           /* rows of one call, at most 1048576 [0 = 65536]             */
    int64_t num_slots;           /* requests alive at once; or:                                                  */
    int64_t memory_budget_bytes; /* as many slots as fit, tensors + cursors + alignment + workspace      */
                                 /* [both 0: pool_layout reports one slot, pool_create is an error, and
                                    the tensors of a call say how many slots they have]                  */
    int32_t has_pad_slot;
    int32_t num_threads; /* CPU backend [0 = the affinity mask's count]; no result depends on it, the workspace does */
    int64_t pad_slot;    /* with has_pad_slot: this slot index marks a padding row                        */
    uint32_t flags;      /* RSSM_INIT_*                                                                   */
    int32_t cpu_level;   /* RSSM_CPU_*: cap the CPU features used (tests) [0 = best available]            */
    const rssm_allocator *allocator; /* copied [C library]                                               */
    rssm_log_fn log;                 /* [silence]                                                        */
    void *log_user;
} rssm_init_args;

/* Values of cpu_level. */
enum { RSSM_CPU_BEST = 0, RSSM_CPU_SCALAR = 1, RSSM_CPU_AVX2 = 2, RSSM_CPU_AVX512 = 3, RSSM_CPU_NEON = 4 };

/* The log gate of KDA and GDN, and Mamba-2's step. */
enum {
    RSSM_GATE_SOFTPLUS = 1, /* g = -exp(A_log) * softplus(a + dt_bias)                    */
    RSSM_GATE_BOUNDED = 2,  /* g = lower_bound * sigmoid(exp(A_log) * (a + dt_bias))      */
    RSSM_GATE_MAMBA2 = 3    /* g = -exp(A_log) * dt, dt = clamp(softplus(dt + dt_bias))   */
};

/* What the instance is. Pointers live until teardown. Heads are this rank's unless a name says model_; Mamba-2 reads
 * H = n_groups, HV = heads, K = state size N, V = head dim P. */
typedef struct rssm_description {
    uint64_t struct_size;
    int32_t family;
    int32_t gate_kind;            /* RSSM_GATE_*                                                          */
    const char *family_name;      /* "kda", "gdn", "mamba2"                                               */
    const char *model_type;       /* the config's, "" if none                                             */
    int32_t num_layers;           /* of the model                                                         */
    int32_t num_linear_layers;    /* of this instance: what `layer` of a call counts, from 0              */
    const int32_t *linear_layers; /* [num_linear_layers] zero-based model layer numbers                 */
    int32_t model_H, model_HV;
    int32_t H, HV, K, V;
    int32_t head_begin;  /* this rank holds value heads head_begin .. head_begin + HV - 1        */
    int32_t group_begin; /* and key heads (groups) group_begin .. group_begin + H - 1            */
    int32_t tp_size, tp_rank;
    int32_t conv_kernel;   /* w; 0 = none                                                          */
    int32_t conv_channels; /* of this rank: 2HK + HV*V, or nh*P + 2*ng*N                           */
    int32_t has_lower_bound;
    int32_t qk_norm;
    double lower_bound;
    double scale;      /* of q: K^-1/2 (KDA, GDN); 1 (Mamba-2)                                 */
    double norm_eps;   /* 1e-6 inside the root of the q/k norm                                 */
    double beta_scale; /* 1 or 2                                                               */
    double time_step_limit_min, time_step_limit_max; /* 0 and infinity without a limit */
    int32_t ring_length, ring_rows; /* L, R                                                             */
    int32_t max_draft_tokens;
    int32_t io_dtype, state_dtype, ring_dtype;
    int32_t device_type, device_id;
    int32_t layout_version;
    int32_t small_batch;  /* a step_begin of at most so many rows flushes every row: there a step that reads and writes
                             the state is the faster one; each token then rounds a 16-bit state. 0 = none (the CPU,
                             L = 1, sizes without such a kernel, RSSM_INIT_NO_SMALL_FLUSH)  */
    uint64_t layout_hash; /* equal on all tensor-parallel ranks of a pipeline stage: they compare it before a token. It
                             does not cover num_slots: with a byte budget take the least over the ranks  */
    const char *layout_text;    /* what was hashed, for a person                                        */
    const char *ring_reason;    /* why this L                                                           */
    const char *const *read;    /* [num_read] "linear_num_key_heads = 16 (text_config)", ...            */
    const char *const *assumed; /* [num_assumed] "dtype = bfloat16 (not in the config)", ...            */
    int32_t num_read, num_assumed;
    int64_t step_bytes;            /* modelled bytes of one row of one layer of one step at this L       */
    int64_t step_bytes_read_write; /* the same at L = 1: the standard step                              */
    const char *cpu_level;         /* "scalar", "avx2", "avx512", "reference"; "" on CUDA                */
    int32_t num_threads;
    int32_t reserved_;
} rssm_description;

#ifdef __cplusplus
}
#endif
#endif
