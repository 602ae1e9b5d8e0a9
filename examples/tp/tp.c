/* replayssm-tp: a tensor-parallel, pipelined engine in small, under MPI. Each rank decodes its heads of its layers, the
 * output projection is summed by MPI_Allreduce, stages hand activations on; rank 0 compares all of it with one rank.
 *
 *     mpirun -n 4 replayssm-tp config.json
 *     mpirun -n 8 replayssm-tp config.json --stages 2      two stages of four ranks */
#define _GNU_SOURCE 1
#include "judge.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tp_options {
    rssm_init_args init;
    const char *plugin;
    int64_t stages, layers, steps, batch, hidden, ring, threads, seed, patience;
} tp_options;

typedef struct tp_run {
    const tp_options *o;
    ranks ranks;
    shard_size size;
    int32_t model_layers; /* that are decoded: --layers, or all   */
    shard shard;          /* this rank's heads and layers         */
    judge judge;          /* rank 0                               */
    card mine, *cards;    /* cards[ranks.size]                    */
    float *x;             /* activations, alike within a stage    */
} tp_run;

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* How many layers the model has: a plan touches no device and costs nothing. */
static int count_layers(tp_run *t)
{
    host h = {.program = t->ranks.program};
    rssm_init_args init = t->o->init;
    init.struct_size = sizeof init;
    int code = host_load(&h, t->o->plugin);
    if (code == EXIT_OK)
        code = host_init(&h, &init);
    if (code == EXIT_OK && t->o->layers > h.model.num_layers)
        code = host_refuse(&h, "--layers %" PRId64 ": the model has %" PRId32, t->o->layers, h.model.num_layers);
    if (code == EXIT_OK)
        t->model_layers = t->o->layers > 0 ? (int32_t)t->o->layers : h.model.num_layers;
    host_close(&h);
    return code;
}

/* This rank's args: its heads of its stage's range of layers. */
static rssm_init_args rank_args(const tp_run *t)
{
    const tp_options *o = t->o;
    const int64_t layers = t->model_layers, stage = t->ranks.stage, stages = t->ranks.stages;
    rssm_init_args init = o->init;
    init.struct_size = sizeof init;
    init.tp_size = t->ranks.tp;
    init.tp_rank = t->ranks.tp_rank;
    init.layer_begin = (int32_t)(layers * stage / stages);
    init.layer_end = (int32_t)(layers * (stage + 1) / stages);
    init.ring_length = (int32_t)o->ring;
    init.max_batch = (int32_t)o->batch;
    init.num_slots = o->batch + 1;
    init.num_threads = (int32_t)o->threads;
    return init;
}

static int open_rank(tp_run *t)
{
    int code = count_layers(t);
    if (code == EXIT_OK && t->ranks.tp == 0)
        code = host_refuse(&(host){.program = t->ranks.program}, "%d ranks are not a multiple of %d stages",
                           t->ranks.size, t->ranks.stages);
    if (code != EXIT_OK)
        return code;
    rssm_init_args init = rank_args(t);
    code = shard_open(&t->shard, t->ranks.program, t->o->plugin, &init, &t->size);
    t->x = calloc((size_t)(t->size.batch * t->size.hidden), sizeof *t->x);
    if (code == EXIT_OK && t->x == NULL)
        code = host_refuse(&t->shard.host, "no memory for activations");
    return code;
}

/* One rank, all heads and layers. A ring of the same length: left to itself the plugin may choose another one for other
 * numbers of heads. */
static int open_judge(tp_run *t)
{
    rssm_init_args init = rank_args(t);
    init.tp_size = 1;
    init.tp_rank = 0;
    init.layer_begin = 0;
    init.layer_end = t->model_layers;
    init.ring_length = t->shard.host.model.ring_length;
    return judge_open(&t->judge, &t->ranks, t->cards, t->o->plugin, &init, &t->size);
}

/* ---- the card ---------------------------------------------------------------------------------------------------- */

static void write_card(tp_run *t)
{
    card *c = &t->mine;
    const tp_options *o = t->o;
    const host *h = &t->shard.host;
    const rssm_description *m = &h->model;
    rssm_info info = {.struct_size = sizeof info};
    h->api->plugin_info(&info, NULL);
    c->layers = m->num_linear_layers;
    c->head_begin = m->head_begin;
    c->heads = m->HV;
    snprintf(c->text[CARD_ABI], CARD_TEXT, "%" PRIu32 ".%" PRIu32, h->api->abi_major, h->api->abi_minor);
    snprintf(c->text[CARD_PLUGIN], CARD_TEXT, "%s %s %s", info.name, info.version, info.git_revision);
    snprintf(c->text[CARD_TP], CARD_TEXT, "%d", t->ranks.tp);
    snprintf(c->text[CARD_STAGES], CARD_TEXT, "%d", t->ranks.stages);
    snprintf(c->text[CARD_RUN], CARD_TEXT,
             "layers=%" PRId64 " steps=%" PRId64 " batch=%" PRId64 " hidden=%" PRId64 " seed=%" PRId64, o->layers,
             o->steps, o->batch, o->hidden, o->seed);
    snprintf(c->text[CARD_MODEL], CARD_TEXT,
             "%s %.100s layers=%" PRId32 " heads=%" PRId32 "/%" PRId32 " dims=%" PRId32 "x%" PRId32 " ring=%" PRId32
             " io=%s",
             m->family_name, m->model_type, m->num_layers, m->model_H, m->model_HV, m->K, m->V, m->ring_length,
             dtype_find(m->io_dtype)->name);
    snprintf(c->text[CARD_SLOTS], CARD_TEXT, "%" PRId64, h->layout.num_slots);
    snprintf(c->text[CARD_HASH], CARD_TEXT, "%016" PRIx64, m->layout_hash);
    snprintf(c->text[CARD_LAYOUT], CARD_TEXT, "%s", m->layout_text);
}

/* Everyone opens, then everyone hears of everyone: a rank that cannot go on leaves none waiting. */
static int set_up(tp_run *t)
{
    t->cards = calloc((size_t)t->ranks.size, sizeof *t->cards);
    if (t->cards == NULL)
        ranks_stop(EXIT_REFUSED);
    int code = open_rank(t);
    if (code == EXIT_OK)
        write_card(t);
    if (code == EXIT_OK && t->ranks.rank == 0)
        code = open_judge(t);
    t->mine.refused = code != EXIT_OK;
    code = ranks_compare(&t->ranks, &t->mine, t->cards);
    if (code == EXIT_OK)
        ranks_split(&t->ranks);
    return code;
}

static void tear_down(tp_run *t)
{
    judge_close(&t->judge);
    shard_close(&t->shard);
    ranks_close(&t->ranks);
    free(t->cards);
    free(t->x);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

enum { TAG_ACTIVATIONS = 3 };

/* Activations from the stage before (-1) or to the one behind (+1), rank by rank. */
static void hand_over(tp_run *t, int direction)
{
    const ranks *r = &t->ranks;
    const int count = (int)(t->size.batch * t->size.hidden), other = r->rank + direction * r->tp;
    MPI_Request request;
    if (other < 0 || other >= r->size)
        return;
    if (direction < 0)
        MPI_Irecv(t->x, count, MPI_FLOAT, other, TAG_ACTIVATIONS, MPI_COMM_WORLD, &request);
    else
        MPI_Isend(t->x, count, MPI_FLOAT, other, TAG_ACTIVATIONS, MPI_COMM_WORLD, &request);
    ranks_wait(r, &request, direction < 0 ? "the stage before" : "the stage behind");
}

static int decode_layer(tp_run *t, int32_t layer, int64_t step)
{
    const ranks *r = &t->ranks;
    shard *s = &t->shard;
    MPI_Request request;
    judge_message message;
    int code = shard_decode(s, layer, t->x);
    if (code != EXIT_OK)
        return code;
    MPI_Iallreduce(MPI_IN_PLACE, s->y, (int)(t->size.batch * t->size.hidden), MPI_FLOAT, MPI_SUM, r->peers, &request);
    ranks_wait(r, &request, "the sum over ranks");
    shard_add(&t->size, t->x, s->y);
    judge_tell(r, s, &message);
    if (r->rank == 0)
        code = judge_layer(&t->judge, 0, layer, step);
    judge_told(r, &message);
    return code;
}

/* Rank 0 has done its own stage: now what the others say. */
static int judge_later_stages(tp_run *t, int64_t step)
{
    int32_t layer = t->cards[0].layers;
    int code = EXIT_OK;
    for (int stage = 1; stage < t->ranks.stages; stage++)
        for (int32_t i = 0; i < t->cards[stage * t->ranks.tp].layers && code == EXIT_OK; i++)
            code = judge_layer(&t->judge, stage, layer++, step);
    judge_end(&t->judge);
    return code;
}

static int decode_step(tp_run *t, int64_t step)
{
    int code = t->ranks.rank == 0 ? judge_begin(&t->judge, step) : EXIT_OK;
    if (code == EXIT_OK)
        code = shard_begin(&t->shard, step);
    shard_embed(&t->size, step, t->x); /* of use in the first stage */
    hand_over(t, -1);
    for (int32_t layer = 0; layer < t->shard.host.model.num_linear_layers && code == EXIT_OK; layer++)
        code = decode_layer(t, layer, step);
    hand_over(t, +1);
    if (code == EXIT_OK && t->ranks.rank == 0)
        code = judge_later_stages(t, step);
    return code;
}

static void print_report(const tp_run *t)
{
    const rssm_description *whole = &t->judge.whole.host.model, *m = &t->shard.host.model;
    printf("%s, %s: tp %d, %d stage%s, %" PRId32 " of %" PRId32 " heads on a rank, %" PRId32 " of %" PRId32
           " groups; %" PRId32 " linear layers, ring %" PRId32 ", %s; %" PRId64 " steps of %" PRId64 " rows\n",
           whole->family_name, whole->model_type, t->ranks.tp, t->ranks.stages, t->ranks.stages == 1 ? "" : "s", m->HV,
           whole->HV, m->H, whole->H, whole->num_linear_layers, whole->ring_length, dtype_find(whole->io_dtype)->name,
           t->o->steps, t->o->batch);
    judge_print(&t->judge);
}

static int decode_all(tp_run *t)
{
    for (int64_t step = 0; step < t->o->steps; step++)
        if (decode_step(t, step) != EXIT_OK)
            ranks_stop(EXIT_REFUSED); /* the others wait for this rank's sums */
    int passed = t->ranks.rank == 0 && judge_passed(&t->judge);
    MPI_Request request;
    MPI_Ibcast(&passed, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
    ranks_wait(&t->ranks, &request, "the verdict");
    if (t->ranks.rank == 0)
        print_report(t);
    return passed ? EXIT_OK : EXIT_MISSED;
}

static int run(const tp_options *o)
{
    tp_run t = {.o = o, .size = {.batch = o->batch, .hidden = o->hidden, .seed = (uint64_t)o->seed}};
    ranks_open(&t.ranks, "replayssm-tp", o->stages, o->patience);
    int code = set_up(&t);
    if (code == EXIT_OK)
        code = decode_all(&t);
    tear_down(&t);
    return code;
}

int main(int argc, char **argv)
{
    tp_options o = {.stages = 1, .steps = 20, .batch = 4, .hidden = 64, .threads = 1, .seed = 1, .patience = 60};
    const option_row rows[] = {
        {"plugin", OPTION_TEXT, &o.plugin, "FILE", "the plugin to load", 0, 0},
        {"stages", OPTION_INT, &o.stages, "N", "pipeline stages; tp is ranks / stages [1]", 1, 64},
        {"layers", OPTION_INT, &o.layers, "N", "the model's first N layers, linear or not [all]", 0, 65536},
        {"steps", OPTION_INT, &o.steps, "N", "tokens of each request [20]", 1, INT32_MAX},
        {"batch", OPTION_INT, &o.batch, "N", "requests [4]", 1, 4096},
        {"hidden", OPTION_INT, &o.hidden, "N", "width of the activations [64]", 1, 16384},
        {"ring", OPTION_INT, &o.ring, "L", "ring length [the plugin's choice]", 0, 64},
        {"io", OPTION_DTYPE, &o.init.io_dtype, "DTYPE", "of inputs and outputs [the config's]", 0, 0},
        {"state", OPTION_DTYPE, &o.init.state_dtype, "DTYPE", "of the state [the config's]", 0, 0},
        {"threads", OPTION_INT, &o.threads, "N", "CPU threads of a rank [1]", 1, 256},
        {"seed", OPTION_INT, &o.seed, "S", "of weights and inputs [1]", 0, INT64_MAX},
        {"patience", OPTION_INT, &o.patience, "SECONDS", "to wait for another rank [60]", 1, 86400},
    };
    const option_table table = {"replayssm-tp", "Decodes a model on tensor-parallel MPI ranks; compares with one rank.",
                                "CONFIG", rows, sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, &o.init.config_path), provided;
    if (code >= 0)
        return code;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided); /* the plugin's threads do not call MPI */
    code = run(&o);
    MPI_Finalize();
    return code;
}
