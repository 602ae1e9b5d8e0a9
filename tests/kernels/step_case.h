/* One random step: sizes, dtypes, layouts, and all its memory between guard bytes and NaN. */
#ifndef RSSM_TESTS_KERNELS_STEP_CASE_H_
#define RSSM_TESTS_KERNELS_STEP_CASE_H_

#include "harness.h"

enum { MAX_ROWS = 32 };

/* What a row of the case is, as the test decided it. slot -1: padding. */
typedef struct case_row {
    int64_t slot;
    int32_t base, count, flush;
} case_row;

/* The memory of a case by name; the array form lets a test copy and compare all of it. */
enum {
    MEM_PACKED, /* q, k, v when packed; else q */
    MEM_K,
    MEM_V,
    MEM_A,
    MEM_B,
    MEM_Z,
    MEM_A_LOG,
    MEM_DT_BIAS,
    MEM_D,
    MEM_OUT,
    MEM_STATE,
    MEM_D_CACHE,
    MEM_K_CACHE,
    MEM_G_CACHE,
    MEM_ROWS,
    MEM_SLOTS,
    MEM_WRITE_POS,
    MEM_FORCE,
    MEM_COUNT
};

typedef struct step_case {
    rssm_step step;
    case_row rows[MAX_ROWS];
    guarded mem[MEM_COUNT];
    uint32_t fault;
    int32_t aligned;
    double record_ulps; /* of a k in the ring; 0 = 1 */
} step_case;

/* What a test fixes; 0 = random. */
typedef struct case_wish {
    int32_t family, io, state, ring, L, K, V, H, group, B;
    int32_t all_flush; /* 1: every row flushes; 2: none */
    int32_t no_padding, out_is_io;
    int32_t drafts;   /* > 0: R = L + drafts, L >= drafts, rows[B, 8] */
    int32_t plain;    /* 1: normalised q and k, A_log, dt_bias; no D, z, limits, A */
    int32_t aligned;  /* 1: rows of inputs start at multiples of 16 bytes, and gates have the inputs' dtype */
    double magnitude; /* of v and the records; 0 = 1 */
} case_wish;

void step_case_make(step_case *c, random_state *r, const case_wish *wish);
void step_case_free(step_case *c);

/* The same case in its own memory. */
void step_case_copy(step_case *to, const step_case *from);

/* What the step must do, in double, by the plain recurrence: checkpoint, then record by record, then the token. Shares
 * no formula with replay. */
typedef struct oracle {
    double *out, *out_scale;     /* [B, HV, V]; scale: the sum of the magnitudes that were added */
    double *d, *d_scale;         /* [B, HV, V] the token's d, unrounded */
    double *k;                   /* [B, H, K] */
    double *g;                   /* [B, HV, K] or [B, HV] what the ring must get: g, or dt */
    double *state, *state_scale; /* [B, HV, V, K] after the fold (flush rows) */
    unsigned char *state_unsure; /* [B, HV, V, K] a 16-bit record value lies on a rounding tie */
} oracle;

void oracle_make(oracle *o, const step_case *c);
void oracle_fold(oracle *o, const step_case *c); /* only state and state_scale: the records alone, no token */
void oracle_free(oracle *o);

/* Errors of one level over many steps: squares summed for the relative L2 bars, per dtype. */
typedef struct bar {
    double error, exact, rounding; /* sums of squares */
    int64_t n;
} bar;

typedef struct level_bars {
    bar out[4], state[4]; /* by dtype */
} level_bars;

void bars_check(const level_under_test *level, const level_bars *bars); /* output 2e-6, state 1e-6, 16 bits 1.05 */

/* Outputs of all rows, the state of row b, the record that it appended, against the oracle. */
void check_case_out(const step_case *c, const oracle *o, level_bars *bars);
void check_case_state(const step_case *c, const oracle *o, int64_t b, level_bars *bars);
void check_case_record(const step_case *c, const oracle *o, int64_t b);
/* All bytes that the step must not write, guard bytes too. */
void check_case_untouched(const step_case *original, const step_case *after);
/* A value of a 16-bit or float32 tensor: within `ulps` of its dtype and a little of the magnitudes that were added. */
int is_near(int32_t dtype, double got, double exact, double scale, double ulps);

#endif
