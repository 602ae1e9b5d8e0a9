/* Judges decode calls against the oracle, layer by layer, by the accuracy bars of the project (docs: maths):
 *
 *   step        (bar S) every step anew from the checkpoint and ring bytes found before it;
 *   trajectory  (bar T) from a request's first token; with a lossy ring (bar D) drift is bounded instead.
 *
 * Errors are relative L2 over all checked heads of one request in one layer of one step; 16-bit outputs and states are
 * measured in units of the error that rounding the exact value makes, 16-bit records in ulps.
 * Where float32 leaves a rounding open (a value within 1e-5 of a tie, or a d that nearly cancels, by 5e-7 of its terms)
 * the one ulp is allowed, in the record and in the state's row or column that it goes to. Float32 records have the bar
 * 2e-6 relative: an ulp is less than a float32 sum of K products can promise.
 * Besides the figures it finds: a padding row that is not zero, a checkpoint or a pending record that changes without a
 * flush, a slot that is not empty after reset, rows of step_begin that are not what the cursor says. */
#ifndef EXAMPLES_CHECK_H_
#define EXAMPLES_CHECK_H_

#include "json.h"
#include "oracle.h"
#include "workload.h"

enum { CHECK_STEP, CHECK_TRAJECTORY };
enum { FIGURE_OUT, FIGURE_STATE, FIGURE_D, FIGURE_K, FIGURE_G, FIGURE_COUNT };

/* Worst of one kind of value. */
typedef struct figure {
    const char *name;
    const char *unit; /* "relative", "x rounding", "ulp" */
    double worst;     /* NaN if a value was NaN          */
    double bar;       /* INFINITY: stated, not judged    */
    int64_t judged;   /* values of `worst`'s kind seen   */
    int64_t step, layer, row;
} figure;

typedef struct check check;

/* EXIT_OK, or EXIT_REFUSED once the reason is printed. Beyond an affordable amount of work it checks every n-th head,
 * the same ones on every run. */
int check_create(check **out, workload *w, int mode, int64_t steps);
void check_free(check **c);

/* Rows that a request takes over in this step: their slots must be empty. */
int check_admitted(check *c, int64_t row, int64_t slot);
/* The rows of step_begin (downloaded) against the cursor kept here; then that cursor moves. */
void check_rows(check *c, int64_t step);
/* Around each decode; in `before` the inputs are those of the call. 0, or -1 when memory or a copy failed. */
int check_before(check *c, int64_t layer, int64_t step);
int check_after(check *c, int64_t layer, int64_t step);

/* 1 if nothing was missed. */
int check_passed(const check *c);
void check_print(const check *c);
void check_json(const check *c, json *out);
/* Notes a fault of another kind: it fails the check. The first one's text is kept. */
void check_fault(check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
