#define _GNU_SOURCE 1
#include "ranks.h"

#include "../common/options.h"
#include "../common/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ranks_open(ranks *r, const char *program, int64_t stages, int64_t patience)
{
    *r = (ranks){.stages = (int)stages, .peers = MPI_COMM_NULL, .patience = (double)patience};
    MPI_Comm_rank(MPI_COMM_WORLD, &r->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r->size);
    snprintf(r->program, sizeof r->program, "%s, rank %d", program, r->rank);
    if (r->size % r->stages != 0)
        return;
    r->tp = r->size / r->stages;
    r->stage = r->rank / r->tp;
    r->tp_rank = r->rank % r->tp;
}

void ranks_split(ranks *r)
{
    MPI_Comm_split(MPI_COMM_WORLD, r->stage, r->tp_rank, &r->peers);
}

void ranks_close(ranks *r)
{
    if (r->peers != MPI_COMM_NULL)
        MPI_Comm_free(&r->peers);
}

_Noreturn void ranks_stop(int code)
{
    alarm(10); /* should MPI_Abort hang as well: mpirun sees the signal */
    MPI_Abort(MPI_COMM_WORLD, code);
    abort(); /* MPI_Abort does not return, but is not declared so */
}

void ranks_wait(const ranks *r, MPI_Request *request, const char *what)
{
    const double begun = stats_seconds();
    const double patience = r->patience + 0.5 * r->rank; /* so that one rank stops all, and not several at once */
    for (int tries = 0, done = 0;; tries++) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        if (stats_seconds() - begun > patience) {
            fprintf(stderr, "%s: waited %.0f s for %s: another rank hangs or is gone; stopping all\n", r->program,
                    patience, what);
            ranks_stop(EXIT_REFUSED);
        }
        if (tries > 50) /* there may be more ranks than processors */
            usleep(50);
    }
}

/* ---- the card ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int of_stage; /* 1: alike within a pipeline stage, else everywhere */
} fields[CARD_COUNT] = {
    [CARD_ABI] = {"ABI", 0},       [CARD_PLUGIN] = {"plugin", 0},    [CARD_TP] = {"tp size", 0},
    [CARD_STAGES] = {"stages", 0}, [CARD_RUN] = {"options", 0},      [CARD_MODEL] = {"model", 0},
    [CARD_SLOTS] = {"slots", 0},   [CARD_HASH] = {"layout hash", 1}, [CARD_LAYOUT] = {"layout", 1},
};

/* Ranks [first, end) and one field: the rank whose text most of them have. Of equals the first. */
static int most_common(const card *cards, int first, int end, int field)
{
    int best = first, most = 0;
    for (int i = first; i < end; i++) {
        int same = 0;
        for (int j = first; j < end; j++)
            same += strcmp(cards[i].text[field], cards[j].text[field]) == 0;
        if (same > most) {
            most = same;
            best = i;
        }
    }
    return best;
}

/* Prints the words, separated by spaces, in which a text differs from another one. */
static void print_differences(const char *text, const char *other, int other_rank)
{
    char left[CARD_TEXT], right[CARD_TEXT], *left_rest = left, *right_rest = right;
    memcpy(left, text, sizeof left);
    memcpy(right, other, sizeof right);
    const char *comma = "";
    for (;;) {
        const char *a = strsep(&left_rest, " "), *b = strsep(&right_rest, " ");
        if (a == NULL && b == NULL)
            break;
        if (a != NULL && b != NULL && strcmp(a, b) == 0)
            continue;
        fprintf(stderr, "%s %s (rank %d: %s)", comma, a != NULL ? a : "nothing", other_rank, b != NULL ? b : "nothing");
        comma = ",";
    }
    fprintf(stderr, "\n");
}

/* How many ranks of [first, end) differ in a field; rank 0 prints them. */
static int compare_field(const ranks *r, const card *cards, int first, int end, int field)
{
    const int norm = most_common(cards, first, end, field);
    int different = 0;
    for (int i = first; i < end; i++) {
        if (cards[i].refused || strcmp(cards[i].text[field], cards[norm].text[field]) == 0)
            continue;
        different++;
        if (r->rank != 0)
            continue;
        fprintf(stderr, "%s: rank %d differs in %s:", r->program, i, fields[field].name);
        print_differences(cards[i].text[field], cards[norm].text[field], norm);
    }
    return different;
}

/* Fields of the whole run, or of each stage. */
static int compare_fields(const ranks *r, const card *cards, int of_stage)
{
    const int group = of_stage ? r->tp : r->size;
    int different = 0;
    for (int first = 0; first < r->size; first += group)
        for (int field = 0; field < CARD_COUNT; field++)
            if (fields[field].of_stage == of_stage)
                different += compare_field(r, cards, first, first + group, field);
    return different;
}

static int count_refused(const ranks *r, const card *cards)
{
    int refused = 0;
    for (int i = 0; i < r->size; i++)
        refused += cards[i].refused != 0;
    return refused;
}

int ranks_compare(const ranks *r, const card *mine, card *cards)
{
    MPI_Request request;
    MPI_Iallgather(mine, (int)sizeof *mine, MPI_BYTE, cards, (int)sizeof *mine, MPI_BYTE, MPI_COMM_WORLD, &request);
    ranks_wait(r, &request, "the cards of all ranks");

    const int refused = count_refused(r, cards);
    int different = compare_fields(r, cards, 0);
    if (refused == 0 && different == 0) /* all have the same number of stages */
        different = compare_fields(r, cards, 1);
    if (r->rank == 0 && refused > 0)
        fprintf(stderr, "%s: %d of %d ranks refused; no token was decoded\n", r->program, refused, r->size);
    else if (r->rank == 0 && different > 0)
        fprintf(stderr, "%s: the ranks do not fit together; no token was decoded\n", r->program);
    return refused > 0 || different > 0 ? EXIT_REFUSED : EXIT_OK;
}
