/* Random histories of slots: whatever a server does to them, in any order, against the plain recurrence.
 *
 * A world is an instance with its pool in the test's memory (decode_case.h) and, beside it, what each slot must hold: for
 * each layer the state that the recurrence reaches from the tokens that the slot accepted, and the convolution's last
 * inputs. Operations go to both; after each of them every byte of the pool is accounted for, the fault word too.
 *
 * The expected state is kept in double precision, in one of two ways:
 *   step-local  (bar S) it takes each record as the ring holds it, once that proved right, and each checkpoint once that
 *               proved right: 16-bit roundings do not accumulate, so that tight bars hold at any length;
 *   trajectory  (bar T) nothing is taken from the pool: for float32 states with float32 rings, or with Mamba-2's lossless ones.
 *
 * Everything that must not be read is NaN: ring rows that the cursor does not count, convolution columns beyond the history,
 * gaps, inputs of padding rows, whole slots that nobody has. Each operation draws from a stream of its own, so that a history
 * stays meaningful when operations are left out of it (test_history --shrink). */
#ifndef RSSM_TESTS_HISTORY_H_
#define RSSM_TESTS_HISTORY_H_

#include "decode_case.h"
#include "rssm_conv.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum { HI_MAX_TOKENS = 40, HI_MAX_SLOTS = 9, HI_MAX_WINDOW = 16, HI_VAULT = 4, HI_LOG = 16, HI_CONV_WIDTH = 4 };

typedef struct hi_slot {
    bool alive; /* false: garbage until a reset, import, copy or load */
    int32_t base, count, conv, shortened;
    int32_t pending; /* drafts that may still be committed: not poison */
    double *state;   /* [layers][HV V K] */
    double *past;    /* [layers][w - 1][channels] raw inputs of the convolution, oldest first */
} hi_slot;

/* What an operation may do to a slot's bytes; the cursor is compared with the model. */
typedef struct hi_change {
    bool all, state;
    int32_t ring_first, ring_count; /* ring rows, mod R   */
    int32_t conv_first, conv_count; /* columns, mod w'    */
} hi_change;

/* A saved slot, and what it must hold. */
typedef struct hi_saved {
    unsigned char *bytes; /* NULL: empty */
    uint64_t length;
    hi_slot slot;
} hi_saved;

typedef struct hi_figures {
    int64_t ops, tokens, drafts, accepted, flushes, folds, refusals;
    double out, state, record, gate, conv; /* worst, as a multiple of its bar */
} hi_figures;

typedef struct hi_world {
    dc_case *c;
    const rssm_slots_api *slots_api;
    const rssm_verify_api *verify_api; /* NULL without drafts */
    const rssm_conv_api *conv_api;     /* NULL without a convolution */
    bool trajectory, exact;            /* exact: bit-equal where maths.md says so of the CPU */
    int64_t channels, columns;         /* of the convolution; w' */
    h_tensor *conv_in;                 /* [layers] */
    h_tensor *conv_weight, *conv_bias; /* [layers]; bias.block NULL: none */
    hi_slot slots[HI_MAX_SLOTS];
    hi_saved vault[HI_VAULT];
    hi_change change[HI_MAX_SLOTS]; /* of the operation at hand */
    unsigned char **before;         /* [layers][5], then the cursor: bytes when it began */
    uint32_t faults;                /* bits that it must set */
    uint64_t random;                /* its stream of choices; numbers come from c->random */
    rec_result result;
    double *scratch; /* [HV V K] */
    uint64_t seed;
    int64_t op;
    int depth; /* of operations within operations */
    char log[HI_LOG][200];
    int64_t logged;
    hi_figures *figures;
} hi_world;

/* ---- life: history_world.c -------------------------------------------------------------------------------------- */

hi_world *hi_new(const dc_options *options, bool trajectory, bool exact, uint64_t seed, hi_figures *figures);
void hi_free(hi_world *w);

/* Slots by number. */
bool hi_is_slot(const hi_world *w, int64_t slot); /* in range, not the pad slot */
bool hi_is_alive(const hi_world *w, int64_t slot);
void hi_slot_copy(const hi_world *w, hi_slot *to, const hi_slot *from);
void hi_slot_free(hi_slot *slot);
double *hi_state(const hi_world *w, const hi_slot *slot, int32_t layer);
double *hi_past(const hi_world *w, const hi_slot *slot, int32_t layer);
int64_t hi_state_size(const hi_world *w);

/* An operation: begin takes a picture of the pool, end holds it against `change`, the model's cursors and the faults,
 * then poisons what is dead. */
void hi_begin(hi_world *w);
void hi_end(hi_world *w);
/* All of a slot becomes garbage, its cursor too. */
void hi_kill(hi_world *w, int64_t slot);

/* Choices: uniform in 0 .. n - 1, one time in n. */
int64_t hi_pick(hi_world *w, int64_t n);
bool hi_one_in(hi_world *w, int64_t n);

/* Flags of a call that nothing is wrong with: now and then it looks at its values first, and must find nothing. */
uint32_t hi_deep(hi_world *w);

void hi_log(hi_world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints seed, slot and the last operations, then fails the test. */
void hi_fail(const hi_world *w, int64_t slot, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));
#define hi_check(w, slot, condition, ...)      \
    do {                                       \
        if (!(condition))                      \
            hi_fail((w), (slot), __VA_ARGS__); \
    } while (0)
/* A call that must give `want`. */
void hi_status(const hi_world *w, int64_t slot, const char *call, rssm_status got, rssm_status want,
               const rssm_error *err);

/* ---- judging: history_check.c ----------------------------------------------------------------------------------- */

/* Numbers of any dtype against the exact ones: the error as a multiple of `bar` (float32) or of 1.05 times what rounding
 * costs (16 bit). `slack`, or NULL, is forgiven element by element. */
double hi_ratio(int32_t dtype, const double *got, const double *want, const double *slack, int64_t n, double bar);
int32_t hi_dtype(const DLTensor *t); /* RSSM_DTYPE_* */

/* Checkpoint of a slot against the expected state, which then is taken from it unless the world keeps trajectories. */
void hi_check_checkpoint(hi_world *w, int32_t layer, int64_t slot, const double *slack);

/* One token of a slot: output row `token`, and its record in ring row `at`, from `state`, which moves on. kept gets the
 * record that the state took. at < 0: the step has folded the token into the checkpoint. */
void hi_check_token(hi_world *w, int32_t layer, int64_t token, int64_t slot, int64_t at, double *state,
                    rec_result *kept);
/* All bytes of a row are `value`: zeros of a padding row, or what lay there before. */
bool hi_row_is(const DLTensor *t, int64_t row, unsigned char value);

/* The convolution of a row's tokens first .. first + n - 1 against past, which stays. */
void hi_check_conv(hi_world *w, int32_t layer, int64_t slot, int64_t first, int64_t n, const double *past);
/* past moves on by the raw inputs of a token ([channels]). */
void hi_push_past(const hi_world *w, double *past, const double *inputs);

/* ---- operations: history_ops.c, history_pass.c ------------------------------------------------------------------ */

/* All slots that are alive move to another world of the same model, as bytes: prefill and decode on different machines. */
void hi_hand_over(hi_world *from, hi_world *to);

/* The next operation of a history: number `op` of `seed`. */
void hi_operation(hi_world *w, int64_t op);

void hi_op_step(hi_world *w);
void hi_op_verify(hi_world *w);
void hi_op_twins(hi_world *w);  /* a copy decodes as its source */
void hi_op_echo(hi_world *w);   /* outputs do not depend on later tokens */
void hi_op_versus(hi_world *w); /* verify + commit(n) against n plain steps */

bool hi_some_alive(hi_world *w, int64_t *slot); /* any that is alive; false: none */
/* slots.copy of one slot, with all its checks. */
void hi_copy_one(hi_world *w, int64_t from, int64_t to);
unsigned char *hi_save(hi_world *w, int64_t slot, uint64_t *length); /* to be freed */
void hi_make_list(hi_world *w, h_tensor *list, const int64_t *values, int64_t n);

#endif
