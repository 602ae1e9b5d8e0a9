/* A small server for tests: an instance whose pool is bound to the test's own memory, and steps whose every byte is
 * checked against the recurrence of recurrence.h. Built on harness.h; knows the public ABI alone.
 *
 * A test writes a step's inputs as doubles into in[] (or lets dc_randomise do it); dc_put_inputs gives them to the
 * tensors in whatever form the case has (packed or apart, strided, misaligned, flat), so that two cases with equal
 * numbers and different forms can be compared bit for bit. */
#ifndef RSSM_TESTS_DECODE_CASE_H_
#define RSSM_TESTS_DECODE_CASE_H_

#include "harness.h"
#include "recurrence.h"
#include "rssm_fault.h"

/* ---- asserting: Check's own macros write to a file at every call, passing or not; these only when they fail ----- */

#define dc_check(condition, ...)       \
    do {                               \
        if (!(condition))              \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

#define dc_assert(condition) dc_check(condition, "%s is false", #condition)

/* Integers. */
#define dc_equal(a, b)                                                                          \
    do {                                                                                        \
        int64_t a_ = (int64_t)(a), b_ = (int64_t)(b);                                           \
        dc_check(a_ == b_, "%s == %lld, not %s == %lld", #a, (long long)a_, #b, (long long)b_); \
    } while (0)

/* ---- engines: the code that computes ---------------------------------------------------------------------------- */

#ifdef RSSM_CONFORM
enum { DC_NUM_ENGINES = 1 }; /* the plugin's choice */
#else
enum { DC_NUM_ENGINES = 5 }; /* reference, scalar, avx2, avx512, neon: the count of a loop test */
#endif

const char *dc_engine_name(int engine);
bool dc_engine_available(int engine); /* on this machine and in this build */

/* ---- a case ----------------------------------------------------------------------------------------------------- */

enum { DC_Q, DC_K, DC_V, DC_A, DC_B, DC_Z, DC_NUM_INPUTS };             /* Mamba-2: C, B, x, dt, -, z */
enum { DC_A_LOG, DC_DT_BIAS, DC_D, DC_DECAY, DC_NUM_WEIGHTS };          /* DC_DECAY: A instead of A_log */
enum { DC_POOL_STATE, DC_POOL_D, DC_POOL_K, DC_POOL_G, DC_POOL_COUNT }; /* Mamba-2: state, x, B, dt */

/* spec: its zeroes are h_defaults' brackets. init_flags, num_slots and allocator of it are set here. */
typedef struct dc_options {
    h_spec spec;
    int engine;
    bool no_norm, neg_eigval;
    bool has_dt_limit;
    double dt_min, dt_max;
    double lower_bound;                    /* with spec.bounded [-5] */
    bool no_A_log, no_dt_bias, no_D, no_z; /* leave the tensor out */
    bool decay;                            /* Mamba-2: A instead of A_log */
    bool flat;                             /* the second accepted shape of each tensor that has one */
    bool misaligned;                       /* inputs, weights and out one element off; needs spec.row_gap > 0 */
    bool no_ring;                          /* L = 1: no ring tensors in the call */
    bool has_pad_slot;
    int64_t pad_slot; /* only with has_pad_slot */
    bool spread;
    bool conv;                      /* RSSM_INIT_CONV_STATE, width 4 */
    const char *json;               /* the model from a config.json of the same sizes as spec */
    int32_t layer_begin, layer_end; /* of it [0, all] */
    bool has_scale;                 /* overrides of a call */
    double scale;
    bool has_bound;
    double bound;
    double record_bar; /* [1] times the bar of records: for sizes and numbers at which v - S k may cancel far */
} dc_options;

typedef struct dc_case {
    dc_options options;
    h_spec spec; /* without zeroes */
    int64_t R;
    rec_model model;
    rssm_plugin *plugin;
    int32_t small_batch; /* as describe says it */
    h_call **calls;      /* [layers] tensors of each layer; rows, write_pos, ... of all are those of layer 0 */
    h_tensor cursor;
    h_tensor *conv;            /* [layers] */
    h_tensor slots, force;     /* [B] of step_begin */
    double *in[DC_NUM_INPUTS]; /* [B][inner], as the tensors hold them after dc_put_inputs */
    double *weights[DC_NUM_WEIGHTS];
    int64_t *host_count; /* [S] the host's own cursor, for spec.host_pos */
    uint64_t random;
} dc_case;

/* Instance prepared, pool bound and reset, states random, weights random. Rings hold NaN. */
dc_case *dc_new(const dc_options *options, uint64_t seed);
void dc_free(dc_case *c); /* also checks all guard bytes */

int64_t dc_inner(const dc_case *c, int input); /* elements of one row of in[input]; 0 = the family has none */
int64_t dc_weight_size(const dc_case *c, int weight);

/* Random inputs for all rows: doubles; q, k, v about 1, gates so that several windows matter. */
void dc_randomise(dc_case *c);
void dc_put_inputs(dc_case *c, int32_t layer);
void dc_put_weights(dc_case *c, int32_t layer); /* dc_new has done it; again after changing weights[] */
void dc_randomise_states(dc_case *c);

/* A tensor of the pool, and its bytes; inner elements of one slot are compact. */
h_tensor *dc_pool(const dc_case *c, int32_t layer, int which);
int32_t dc_pool_dtype(const dc_case *c, int which);
int64_t dc_pool_inner(const dc_case *c, int which); /* elements of one slot */
void *dc_slot(const dc_case *c, int32_t layer, int which, int64_t slot);
int32_t *dc_cursor(const dc_case *c, int64_t slot);
/* Element index in a slot of the first number of ring row r of head hv (K tensor: key head). */
int64_t dc_record_at(const dc_case *c, int which, int64_t head, int64_t r);
int64_t dc_record_size(const dc_case *c, int which);

/* ---- steps ------------------------------------------------------------------------------------------------------ */

typedef struct dc_row {
    int64_t slot, base, count; /* slot -1: padding */
    int flush;
} dc_row;

/* What a step found at worst, each divided by its bar of maths.md. */
typedef struct dc_worst {
    double out, state, record, gate;
} dc_worst;
void dc_merge(dc_worst *into, dc_worst other);
/* Prints "name: out .. state .." to stderr when $RSSM_TEST_FIGURES is set. */
void dc_print_worst(const char *name, int engine, dc_worst worst);

/* One row per slots[b]; force may be NULL. Rows by step_begin, or by the host's own cursor (spec.host_pos). */
void dc_begin(dc_case *c, const int64_t *slots, const int32_t *force);
dc_row dc_row_at(const dc_case *c, int64_t b); /* as the call's tensors say it; bad cursors are padding */
void dc_decode(dc_case *c, int32_t layer);     /* asserts RSSM_OK */
rssm_status dc_try_decode(dc_case *c, int32_t layer, rssm_error *err);

/* dc_decode, and everything that maths.md says of it: outputs, records, states within bar S, each other byte of the
 * pool as it was, guards and gaps too, padding rows' outputs zero. */
dc_worst dc_decode_checked(dc_case *c, int32_t layer);

/* dc_begin, random inputs, dc_decode_checked for each layer. */
dc_worst dc_step_checked(dc_case *c, const int64_t *slots, const int32_t *force);

/* All ring rows that no slot's cursor counts become NaN. */
void dc_poison(dc_case *c);

double dc_out(const dc_case *c, int32_t layer, int64_t b, int64_t i); /* i of HV * V */
uint32_t dc_fault(dc_case *c);                                        /* reads and clears */
void dc_reset(dc_case *c, const int64_t *slots, int64_t n);           /* NULL = all */

/* Token b of in[] for the recurrence, and the weights of it. */
rec_token dc_token(const dc_case *c, int64_t b);
rec_weights dc_rec_weights(const dc_case *c);
rec_result dc_result_new(const dc_case *c);
void dc_result_free(rec_result *r);
/* Checkpoint and the pending records of a slot -> [HV][V][K]. */
void dc_materialise(const dc_case *c, int32_t layer, dc_row row, double *state);

/* Outputs and the pool's slots (not the gaps) of two cases are the same bits. */
void dc_assert_same(const dc_case *a, const dc_case *b);
void dc_copy_inputs(dc_case *to, const dc_case *from); /* in[] */
void dc_copy_start(dc_case *to, const dc_case *from);  /* weights and pool, cursor too */

#endif
