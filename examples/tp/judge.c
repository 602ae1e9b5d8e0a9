#include "judge.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_HEADS = 1, TAG_Y = 2 };

int judge_open(judge *j, const ranks *r, const card *cards, const char *plugin, const rssm_init_args *init,
               const shard_size *size)
{
    *j = (judge){.ranks = r, .cards = cards, .digest = 0xCBF29CE484222325u};
    int code = shard_open(&j->whole, r->program, plugin, init, size);
    if (code != EXIT_OK)
        return code;
    const size_t n = (size_t)(size->batch * size->hidden);
    j->x = calloc(n, sizeof *j->x);
    j->y = calloc(n, sizeof *j->y);
    j->heads = calloc(1, (size_t)j->whole.out.bytes);
    if (j->x == NULL || j->y == NULL || j->heads == NULL)
        return host_refuse(&j->whole.host, "no memory to compare with one rank");
    return EXIT_OK;
}

void judge_close(judge *j)
{
    shard_close(&j->whole);
    free(j->x);
    free(j->y);
    free(j->heads);
    *j = (judge){.ranks = NULL};
}

/* ---- what the ranks say ------------------------------------------------------------------------------------------ */

void judge_tell(const ranks *r, const shard *s, judge_message *message)
{
    message->y = MPI_REQUEST_NULL;
    MPI_Isend(s->out.host, (int)s->out.bytes, MPI_BYTE, 0, TAG_HEADS, MPI_COMM_WORLD, &message->heads);
    if (r->tp_rank == 0)
        MPI_Isend(s->y, (int)(s->size.batch * s->size.hidden), MPI_FLOAT, 0, TAG_Y, MPI_COMM_WORLD, &message->y);
}

void judge_told(const ranks *r, judge_message *message)
{
    ranks_wait(r, &message->heads, "rank 0 to take the heads");
    ranks_wait(r, &message->y, "rank 0 to take the sum");
}

static void receive(const judge *j, void *to, int count, MPI_Datatype type, int rank, int tag)
{
    MPI_Request request;
    MPI_Irecv(to, count, type, rank, tag, MPI_COMM_WORLD, &request);
    ranks_wait(j->ranks, &request, "a rank's heads");
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* The heads of one rank, [B][heads][V], against the whole model's. */
static void compare_heads(judge *j, int rank, int32_t layer, int64_t step)
{
    const card *c = &j->cards[rank];
    const int64_t HV = j->whole.host.model.HV, bytes = j->whole.out.bytes / (j->whole.size.batch * HV);
    receive(j, j->heads, (int)(j->whole.size.batch * c->heads * bytes), MPI_BYTE, rank, TAG_HEADS);
    for (int64_t b = 0; b < j->whole.size.batch; b++)
        for (int64_t i = 0; i < c->heads; i++) {
            const int64_t head = c->head_begin + i;
            const char *ours = (const char *)j->whole.out.host + (b * HV + head) * bytes;
            j->compared++;
            if (memcmp(ours, j->heads + (b * c->heads + i) * bytes, (size_t)bytes) == 0)
                continue;
            if (j->different++ == 0) {
                j->first_step = step;
                j->first_layer = layer;
                j->first_head = head;
            }
        }
}

static void compare_sums(judge *j)
{
    const int64_t n = j->whole.size.hidden;
    for (int64_t b = 0; b < j->whole.size.batch; b++) {
        double error = 0.0, norm = 0.0;
        for (int64_t i = b * n; i < (b + 1) * n; i++) {
            error += ((double)j->y[i] - j->whole.y[i]) * ((double)j->y[i] - j->whole.y[i]);
            norm += (double)j->whole.y[i] * j->whole.y[i];
        }
        const double relative = error == 0.0 ? 0.0 : sqrt(error / norm); /* a padding row is 0 */
        if (!(relative <= j->worst))                                     /* also NaN, which stays */
            j->worst = isnan(j->worst) ? j->worst : relative;
    }
}

int judge_begin(judge *j, int64_t step)
{
    shard_embed(&j->whole.size, step, j->x);
    return shard_begin(&j->whole, step);
}

int judge_layer(judge *j, int stage, int32_t layer, int64_t step)
{
    const ranks *r = j->ranks;
    int code = shard_decode(&j->whole, layer, j->x);
    if (code != EXIT_OK)
        return code;
    for (int rank = stage * r->tp; rank < (stage + 1) * r->tp; rank++)
        compare_heads(j, rank, layer, step);
    receive(j, j->y, (int)(j->whole.size.batch * j->whole.size.hidden), MPI_FLOAT, stage * r->tp, TAG_Y);
    compare_sums(j);
    shard_add(&j->whole.size, j->x, j->y);
    return EXIT_OK;
}

void judge_end(judge *j)
{
    const unsigned char *byte = (const unsigned char *)j->x;
    for (size_t i = 0; i < (size_t)(j->whole.size.batch * j->whole.size.hidden) * sizeof *j->x; i++)
        j->digest = (j->digest ^ byte[i]) * 0x100000001B3u;
}

int judge_passed(const judge *j)
{
    return j->compared > 0 && j->different == 0 && j->worst <= JUDGE_BAR;
}

void judge_print(const judge *j)
{
    printf("heads: %" PRId64 " outputs compared with one rank's, %" PRId64 " differ in a bit\n", j->compared,
           j->different);
    if (j->different > 0)
        printf("the first: step %" PRId64 ", layer %" PRId64 ", head %" PRId64 "\n", j->first_step, j->first_layer,
               j->first_head);
    printf("sums: worst relative L2 of a row %.2g, bar %.2g\n", j->worst, JUDGE_BAR);
    printf("activations: digest %016" PRIx64 "\n", j->digest);
    printf("%s\n", judge_passed(j) ? "equal to one rank" : "NOT equal to one rank");
}
