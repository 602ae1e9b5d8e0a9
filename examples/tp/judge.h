/* Rank 0's judge: one instance of the whole model, tp 1, that decodes every layer from the very activations that the
 * ranks had. Then every head's output must be the same bits, and the sum over ranks may differ from the sum in one rank by
 * float32 rounding alone. */
#ifndef EXAMPLES_TP_JUDGE_H_
#define EXAMPLES_TP_JUDGE_H_

#include "ranks.h"
#include "shard.h"

/* Relative L2 of a row of y: two orders of adding the same float32 products. */
#define JUDGE_BAR 2e-6

typedef struct judge {
    shard whole;
    const ranks *ranks;
    const card *cards; /* of all ranks */
    float *x;          /* the run's activations, followed layer by layer */
    float *y;          /* what arrives from a stage              */
    unsigned char *heads;
    int64_t compared, different; /* outputs of a head for a row */
    int64_t first_step, first_layer, first_head;
    double worst;    /* NaN if something was NaN */
    uint64_t digest; /* of the activations after the last layer of every step */
} judge;

int judge_open(judge *j, const ranks *r, const card *cards, const char *plugin, const rssm_init_args *init,
               const shard_size *size);
void judge_close(judge *j);

int judge_begin(judge *j, int64_t step);
/* After a rank of `stage` has sent its part of a layer (judge_tell): layer counts over all stages. */
int judge_layer(judge *j, int stage, int32_t layer, int64_t step);
void judge_end(judge *j);
int judge_passed(const judge *j);
void judge_print(const judge *j);

/* On every rank, after the sum: its heads, and of each stage's first rank y, to rank 0. */
typedef struct judge_message {
    MPI_Request heads, y;
} judge_message;
void judge_tell(const ranks *r, const shard *s, judge_message *message);
void judge_told(const ranks *r, judge_message *message); /* before s->out and s->y change again */

#endif
