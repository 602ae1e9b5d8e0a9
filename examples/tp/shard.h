/* One rank's share of a small hybrid model. Each recurrent layer is, with x [B, hidden] alike on every rank:
 *
 *     packed, gate, beta = x / rms(x) W_in    columns of W_in by head: a rank has those of its heads
 *     out = recurrence(packed, gate, beta)    [B, HV, V], the plugin's; heads know nothing of each other
 *     y = out W_out                           rows of W_out by head: a rank's y is its part of a sum over ranks
 *     x <- x + y                              once the engine has summed y
 *
 * Weights are drawn by layer, head and use in the whole model, so every split of it has the same numbers. */
#ifndef EXAMPLES_TP_SHARD_H_
#define EXAMPLES_TP_SHARD_H_

#include "../common/tensor.h"

typedef struct shard_size {
    int64_t batch, hidden;
    uint64_t seed;
} shard_size;

typedef struct shard_layer shard_layer; /* a layer's weights and role array */

typedef struct shard {
    shard_size size;
    host host;
    device dev;
    int64_t columns;           /* of W_in: packed, gate and beta beside each other      */
    tensor packed, gate, beta; /* of one layer at a time                                */
    tensor out;                /* [B, HV, V] in the io type                             */
    tensor slots, rows;
    float *y;       /* [B, hidden] of shard_decode, then of the sum          */
    float *scratch; /* a row of x, of columns, of one head's share of y       */
    shard_layer *layers;
} shard;

/* Loads the plugin and makes an instance with its pool. EXIT_OK, or EXIT_REFUSED once the reason is printed; close it
 * either way. */
int shard_open(shard *s, const char *program, const char *plugin, const rssm_init_args *init, const shard_size *size);
void shard_close(shard *s);

/* The tokens that come in at a step, the same on every rank. */
void shard_embed(const shard_size *size, int64_t step, float *x);
/* Once per step. Requests join one after the other: row b is padding before step b. */
int shard_begin(shard *s, int64_t step);
/* Layer `layer` of this instance from x: s->out and this rank's part of s->y. */
int shard_decode(shard *s, int32_t layer, const float *x);
void shard_add(const shard_size *size, float *x, const float *y);

#endif
