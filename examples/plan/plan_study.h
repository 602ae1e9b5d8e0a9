/* What the page shows: the plan beside the same plan with one thing changed. Everything is asked of the plugin. */
#ifndef EXAMPLES_PLAN_STUDY_H_
#define EXAMPLES_PLAN_STUDY_H_

#include "plan.h"

enum {
    STUDY_RANKS = 8,    /* tp = 1, 2, 4 ... 64, and the plan's own */
    STUDY_LENGTHS = 64, /* every L, lengths[L - 1]                 */
    STUDY_ROWS = 16,    /* lengths worth a bar and a row           */
    STUDY_LINES = 4,    /* lengths worth a line                    */
    STUDY_BUDGETS = 8,  /* eighths of `memory`                     */
    STUDY_BATCHES = 10, /* 1, 2, 4 ... 512                         */
    STUDY_DRAFTS = 64   /* drafts[D], D = 0 is plain decoding      */
};

typedef struct study_rank {
    int32_t tp;
    variant plan; /* with as many slots as this plan */
} study_rank;

typedef struct study_drafts {
    variant plan;           /* ring as long as this plan's, or as D drafts need */
    int64_t snapshots;      /* T + 1 of them */
    int64_t snapshot_bytes; /* of a session that keeps them instead of a ring */
} study_drafts;

typedef struct study {
    study_rank ranks[STUDY_RANKS];
    int num_ranks;

    int32_t min_length; /* drafts + 1: shorter rings are refused */
    variant lengths[STUDY_LENGTHS];
    int32_t fewest_bytes; /* the L whose step moves the fewest bytes */
    int32_t rows[STUDY_ROWS];
    int num_rows;

    int64_t memory; /* --memory, else 80 GiB or what the pool needs */
    int64_t budgets[STUDY_BUDGETS];
    int32_t lines[STUDY_LINES];
    int num_lines;
    int64_t sessions[STUDY_LINES][STUDY_BUDGETS];

    double bandwidth; /* bytes per second */
    int64_t batches[STUDY_BATCHES];

    study_drafts drafts[STUDY_DRAFTS]; /* 1 .. num_drafts, and [0] */
    int num_drafts, example_drafts;    /* those that the title speaks of */
} study;

/* EXIT_OK, or EXIT_REFUSED once the reason is printed. */
int study_make(study *s, const host *h, const plan_options *o);

const variant *study_length(const study *s, int32_t length);
/* Microseconds of one step of `batch` rows through all linear layers of this rank: bytes over bandwidth. */
double study_step_us(const study *s, const host *h, int64_t step_bytes, int64_t batch);

#endif
