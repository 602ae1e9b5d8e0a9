/* MPI ranks as pipeline stages of tensor-parallel ranks, the card that they compare before the first token, and waiting
 * that ends. World rank = stage * tp + tp_rank. */
#ifndef EXAMPLES_TP_RANKS_H_
#define EXAMPLES_TP_RANKS_H_

#include <mpi.h>
#include <stdint.h>

typedef struct ranks {
    char program[64]; /* "replayssm-tp, rank 3": starts each line on stderr */
    int rank, size;
    int tp, stages; /* tp 0: size is not a multiple of stages */
    int tp_rank, stage;
    MPI_Comm peers;  /* the ranks of this stage                                        */
    double patience; /* seconds that a message or a sum may take before all ranks stop */
} ranks;

void ranks_open(ranks *r, const char *program, int64_t stages, int64_t patience);
void ranks_split(ranks *r); /* makes `peers` */
void ranks_close(ranks *r);

/* What must be alike, as text. */
enum {
    CARD_ABI,
    CARD_PLUGIN,
    CARD_TP,
    CARD_STAGES,
    CARD_RUN,
    CARD_MODEL,
    CARD_SLOTS,
    CARD_HASH,
    CARD_LAYOUT,
    CARD_COUNT
};
enum { CARD_TEXT = 480 };

typedef struct card {
    int32_t refused; /* this rank could not open its instance, and has said why */
    int32_t layers;  /* of its stage */
    int32_t head_begin, heads;
    char text[CARD_COUNT][CARD_TEXT];
} card;

/* Every rank gets all cards and the same answer: EXIT_OK, or EXIT_REFUSED once rank 0 has printed which rank differs in
 * what. cards[size] is the caller's. */
int ranks_compare(const ranks *r, const card *mine, card *cards);

/* Ends when the request is done; ends the program on every rank when it takes longer than `patience`. */
void ranks_wait(const ranks *r, MPI_Request *request, const char *what);
/* Prints nothing; stops every rank. */
_Noreturn void ranks_stop(int code);

#endif
