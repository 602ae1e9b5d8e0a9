#include "sim.h"

#include "../common/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static int32_t packed_role(const sim *s)
{
    return s->host.model.family == RSSM_FAMILY_MAMBA2 ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV;
}

/* Small random taps and biases. */
static int fill_conv_weights(sim *s, int64_t layer)
{
    rng r = rng_stream((uint64_t)s->o->seed, (uint64_t)layer, 0xC0417);
    tensor *weight = &s->conv_weight[layer], *bias = &s->conv_bias[layer];
    float *taps = weight->host, *biases = bias->host;
    for (int64_t i = 0; i < weight->bytes / 4; i++)
        taps[i] = rng_normal(&r) / sqrtf((float)s->host.model.conv_kernel);
    for (int64_t i = 0; i < bias->bytes / 4; i++)
        biases[i] = 0.1f * rng_normal(&r);
    return tensor_upload(weight) | tensor_upload(bias);
}

/* The convolution's output takes the packed input's place. */
static int create_conv(sim *s, int64_t layer, int64_t tokens)
{
    const DLDataType f32 = dtype_find(RSSM_DTYPE_FLOAT32)->dl;
    const DLTensor **decode = s->load.tensors + layer * RSSM_T_COUNT, **roles = s->conv_roles + layer * RSSM_T_COUNT;
    int failed =
        tensor_create(&s->conv_out[layer], &s->dev, s->load.io->dl, 2, (int64_t[]){tokens, s->channels}) |
        tensor_create(&s->conv_weight[layer], &s->dev, f32, 2, (int64_t[]){s->channels, s->host.model.conv_kernel}) |
        tensor_create(&s->conv_bias[layer], &s->dev, f32, 1, &s->channels);
    if (failed || fill_conv_weights(s, layer) != 0)
        return -1;
    roles[RSSM_T_CONV_IN] = &s->load.packed.dl;
    roles[RSSM_T_CONV_WEIGHT] = &s->conv_weight[layer].dl;
    roles[RSSM_T_CONV_BIAS] = &s->conv_bias[layer].dl;
    roles[RSSM_T_CONV] = decode[RSSM_T_CONV];
    roles[RSSM_T_ROWS] = &s->load.rows.dl;
    roles[RSSM_T_CONV_OUT] = &s->conv_out[layer].dl;
    decode[packed_role(s)] = &s->conv_out[layer].dl;
    return 0;
}

static int create_layer(sim *s, int64_t layer, int64_t tokens)
{
    const rssm_description *m = &s->host.model;
    if (tensor_create(&s->out[layer], &s->dev, dtype_find(RSSM_DTYPE_FLOAT32)->dl, 3,
                      (int64_t[]){tokens, m->HV, m->V}) != 0)
        return -1;
    s->load.tensors[layer * RSSM_T_COUNT + RSSM_T_OUT] = &s->out[layer].dl;
    return s->conv != NULL ? create_conv(s, layer, tokens) : 0;
}

int sim_pass_create(sim *s)
{
    const int64_t tokens = s->o->batch * s->window, batch = s->o->batch, more = batch + 1;
    const size_t layers = (size_t)s->layers;
    int code =
        workload_create(&s->load, &s->host, &s->dev, tokens, dtype_find(RSSM_DTYPE_FLOAT32), (uint64_t)s->o->seed);
    if (code != EXIT_OK)
        return code;
    s->out = calloc(layers, sizeof *s->out);
    s->conv_out = calloc(layers, sizeof *s->conv_out);
    s->conv_weight = calloc(layers, sizeof *s->conv_weight);
    s->conv_bias = calloc(layers, sizeof *s->conv_bias);
    s->conv_roles = calloc(layers * RSSM_T_COUNT, sizeof *s->conv_roles);
    s->rows = calloc((size_t)batch, sizeof *s->rows);
    int failed = s->out == NULL || s->conv_out == NULL || s->conv_weight == NULL || s->conv_bias == NULL ||
                 s->conv_roles == NULL || s->rows == NULL ||
                 tensor_create(&s->cu_seqlens, &s->dev, tensor_int32(), 1, &more) != 0 ||
                 tensor_create(&s->accepted, &s->dev, tensor_int32(), 1, &batch) != 0;
    for (int64_t layer = 0; layer < s->layers && !failed; layer++)
        failed = create_layer(s, layer, tokens);
    return failed ? host_refuse(&s->host, "no memory for the tensors of a pass") : EXIT_OK;
}

static void free_tensors(tensor *list, int64_t n)
{
    for (int64_t i = 0; list != NULL && i < n; i++)
        tensor_free(&list[i]);
    free(list);
}

void sim_pass_free(sim *s)
{
    free_tensors(s->out, s->layers);
    free_tensors(s->conv_out, s->layers);
    free_tensors(s->conv_weight, s->layers);
    free_tensors(s->conv_bias, s->layers);
    tensor_free(&s->cu_seqlens);
    tensor_free(&s->accepted);
    free(s->conv_roles);
    free(s->rows);
    if (s->load.host != NULL)
        workload_free(&s->load);
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static void store_normal(const sim *s, rng *r, int64_t n, int silu, void *to)
{
    float *scratch = s->load.scratch;
    for (int64_t i = 0; i < n; i++) {
        const float x = rng_normal(r);
        scratch[i] = silu ? x / (1.0f + expf(-x)) : x;
    }
    dtype_store(s->load.io, scratch, n, to);
}

void sim_token(const sim *s, uint64_t seed, void *packed, void *gate, void *beta)
{
    rng r = rng_stream(seed, 1, 0);
    store_normal(s, &r, s->channels, s->conv == NULL, packed);
    if (gate != NULL)
        store_normal(s, &r, s->gates, 0, gate);
    if (beta != NULL)
        store_normal(s, &r, s->host.model.HV, 0, beta);
}

/* A draft that the model would not have sampled. */
static uint64_t wrong_token(sim *s, uint64_t right)
{
    return right ^ (rng_next(&s->random) | 1);
}

static void put_token(sim *s, uint64_t seed, int64_t at)
{
    const int64_t bytes = s->load.io->bytes;
    sim_token(s, seed, (char *)s->load.packed.host + at * s->channels * bytes,
              (char *)s->load.gate.host + at * s->gates * bytes,
              (char *)s->load.beta.host + at * s->host.model.HV * bytes);
}

/* ---- choosing rows ----------------------------------------------------------------------------------------------- */

/* Of a window how many drafts the model agrees with; the first token is the model's own. */
static int32_t sample_accepted(sim *s, int32_t len)
{
    int32_t n = 1;
    if (rng_next(&s->random) % 64 == 0)
        return 0; /* the host drops the window */
    while (n < len && (int64_t)(rng_next(&s->random) % 100) < s->o->acceptance)
        n++;
    return n;
}

static void choose_row(sim *s, pass_row *row, int verify)
{
    const request *r = row->of;
    const int64_t left = r->length - r->done, prompt = r->prompt - r->done;
    row->len = row->accepted = 1;
    if (!verify)
        return;
    if (prompt > 0) { /* tokens of a prompt are known */
        row->len = (int32_t)(prompt < s->window ? prompt : s->window);
        row->accepted = row->len;
        return;
    }
    row->len = (int32_t)(1 + (int64_t)(rng_next(&s->random) % (uint64_t)s->window));
    if (row->len > left)
        row->len = (int32_t)left;
    row->accepted = sample_accepted(s, row->len);
}

/* Up to `batch` running requests, beginning anywhere; graphs come in sizes of powers of 2. */
static void choose_rows(sim *s, int verify)
{
    const int64_t running = s->num_running < s->o->batch ? s->num_running : s->o->batch;
    const int64_t first = s->num_running > 0 ? (int64_t)(rng_next(&s->random) % (uint64_t)s->num_running) : 0;
    int64_t rows = running, at = 0;
    if (s->graphs != NULL)
        for (rows = 1; rows < running;)
            rows *= 2;
    if (rows > s->o->batch)
        rows = s->o->batch;
    for (int64_t b = 0; b < rows; b++) {
        s->rows[b] = (pass_row){.of = b < running ? s->running[(first + b) % s->num_running] : NULL,
                                .len = verify ? 0 : 1,
                                .first = (int32_t)at};
        if (s->rows[b].of != NULL)
            choose_row(s, &s->rows[b], verify);
        at += s->rows[b].len;
    }
    s->num_rows = rows;
    s->num_tokens = s->graphs != NULL && verify ? rows * s->window : at;
}

/* Slots, lengths and inputs of the rows, to the device. */
static int upload_rows(sim *s)
{
    int32_t *slots = s->load.slots.host, *force = s->load.force.host, *starts = s->cu_seqlens.host,
            *accepted = s->accepted.host;
    starts[0] = 0;
    for (int64_t b = 0; b < s->num_rows; b++) {
        const pass_row *row = &s->rows[b];
        slots[b] = row->of != NULL ? (int32_t)row->of->slot : -1;
        force[b] = rng_next(&s->random) % 16 == 0;
        starts[b + 1] = row->first + row->len;
        accepted[b] = row->accepted;
        for (int32_t i = 0; row->of != NULL && i < row->len; i++) {
            const uint64_t right = row->of->tokens[row->of->done + i];
            put_token(s, i < row->accepted || row->accepted == 0 ? right : wrong_token(s, right), row->first + i);
        }
    }
    tensor *all[] = {&s->load.slots,  &s->load.force, &s->cu_seqlens, &s->accepted,
                     &s->load.packed, &s->load.gate,  &s->load.beta};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (tensor_upload(all[i]) != 0)
            return host_refuse(&s->host, "cannot copy to the device");
    return EXIT_OK;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static void set_shapes(sim *s, int64_t rows, int64_t tokens)
{
    s->load.slots.shape[0] = s->load.force.shape[0] = s->load.rows.shape[0] = s->accepted.shape[0] = rows;
    s->cu_seqlens.shape[0] = rows + 1;
    s->load.packed.shape[0] = s->load.gate.shape[0] = s->load.beta.shape[0] = tokens;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        s->out[layer].shape[0] = tokens;
        s->conv_out[layer].shape[0] = tokens;
    }
}

static int begin(sim *s, int verify)
{
    host *h = &s->host;
    if (!verify) {
        rssm_step_begin_args args = {.struct_size = sizeof args,
                                     .slots = &s->load.slots.dl,
                                     .force_flush = &s->load.force.dl,
                                     .rows_out = &s->load.rows.dl,
                                     .stream = s->stream};
        return host_check(h, h->api->step_begin(h->plugin, &args, &h->error), "step_begin");
    }
    rssm_verify_begin_args args = {.struct_size = sizeof args,
                                   .slots = &s->load.slots.dl,
                                   .cu_seqlens = &s->cu_seqlens.dl,
                                   .rows_out = &s->load.rows.dl,
                                   .max_T = (int32_t)s->window,
                                   .stream = s->stream};
    return host_check(h, s->verify->verify_begin(h->plugin, &args, &h->error), "verify_begin");
}

static int layer_calls(sim *s, int64_t layer, int verify)
{
    host *h = &s->host;
    rssm_decode_args args = {.struct_size = sizeof args,
                             .tensors = s->conv_roles + layer * RSSM_T_COUNT,
                             .num_tensors = RSSM_T_COUNT,
                             .layer = (int32_t)layer,
                             .stream = s->stream};
    int code = EXIT_OK;
    if (s->conv != NULL)
        code =
            host_check(h, (verify ? s->conv->conv_verify : s->conv->conv)(h->plugin, &args, &h->error), "convolution");
    args.tensors = s->load.tensors + layer * RSSM_T_COUNT;
    if (code == EXIT_OK)
        code = host_check(h, (verify ? s->verify->verify : h->api->decode)(h->plugin, &args, &h->error),
                          verify ? "verify" : "decode");
    return code;
}

/* A whole pass but for the commit. */
static int enqueue(sim *s, int64_t rows, int verify)
{
    set_shapes(s, rows, s->num_tokens);
    int code = begin(s, verify);
    for (int64_t layer = 0; layer < s->layers && code == EXIT_OK; layer++)
        code = layer_calls(s, layer, verify);
    return code;
}

static int commit(sim *s)
{
    host *h = &s->host;
    set_shapes(s, s->num_rows, s->num_tokens);
    rssm_commit_args args = {
        .struct_size = sizeof args, .rows = &s->load.rows.dl, .accepted = &s->accepted.dl, .stream = s->stream};
    return host_check(h, s->verify->commit(h->plugin, &args, &h->error), "commit");
}

static int run(sim *s, int verify)
{
    const double start = stats_seconds();
    int code = s->graphs != NULL && !s->o->no_graphs ? sim_graphs_run(s, enqueue, s->num_rows, verify)
                                                     : enqueue(s, s->num_rows, verify);
    if (code == EXIT_OK && verify)
        code = commit(s);
    if (code == EXIT_OK && s->dev.sync(&s->dev) != 0)
        code = host_refuse(&s->host, "the device failed in pass %lld", (long long)s->t.passes);
    const double seconds = stats_seconds() - start;
    s->samples[s->t.passes % s->most_samples] = seconds;
    s->t.seconds += seconds;
    return code;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* What the check needs of a row's accepted tokens. The tensors of its layer are on the host. */
static void keep_results(const sim *s, const pass_row *row)
{
    const rssm_description *m = &s->host.model;
    request *r = row->of;
    const float *out = s->out[r->layer].host;
    const int64_t bytes = s->channels * s->load.io->bytes;
    for (int32_t i = 0; i < row->accepted; i++) {
        const int64_t token = row->first + i, at = r->done + i;
        memcpy(r->outputs + at * m->V, out + (token * m->HV + r->head) * m->V, (size_t)m->V * sizeof *out);
        if (s->conv != NULL)
            memcpy(r->inputs + at * bytes, (const char *)s->conv_out[r->layer].host + token * bytes, (size_t)bytes);
    }
}

static int download(sim *s)
{
    int failed = tensor_download(&s->load.rows);
    for (int64_t layer = 0; layer < s->layers; layer++) {
        int wanted = 0;
        for (int64_t b = 0; b < s->num_rows; b++)
            wanted |= s->rows[b].of != NULL && s->rows[b].of->layer == layer;
        if (wanted)
            failed |= tensor_download(&s->out[layer]) | (s->conv != NULL ? tensor_download(&s->conv_out[layer]) : 0);
    }
    return failed ? host_refuse(&s->host, "cannot copy from the device") : EXIT_OK;
}

static void count_pass(sim *s)
{
    const int32_t *rows = s->load.rows.host;
    for (int64_t b = 0; b < s->num_rows; b++) {
        s->t.flushes += s->rows[b].of != NULL && rows[b * RSSM_ROW_WIDTH + 3] != 0;
        s->t.tokens += s->rows[b].accepted * (s->rows[b].of != NULL);
    }
    s->t.passes++;
    s->t.slots += (double)s->num_running;
    if (s->num_running > s->t.most_slots)
        s->t.most_slots = s->num_running;
}

int sim_pass(sim *s)
{
    const int verify = s->verify != NULL && rng_next(&s->random) % 4 != 0;
    choose_rows(s, verify);
    if (s->num_rows == 0)
        return EXIT_OK;
    int code = upload_rows(s);
    if (code == EXIT_OK)
        code = run(s, verify);
    if (code == EXIT_OK)
        code = download(s);
    if (code != EXIT_OK)
        return code;
    count_pass(s);
    for (int64_t b = 0; b < s->num_rows; b++) {
        request *r = s->rows[b].of;
        if (r == NULL)
            continue;
        if (verify && r->done >= r->prompt) {
            s->t.drafted += s->rows[b].len - 1;
            s->t.accepted += s->rows[b].accepted > 1 ? s->rows[b].accepted - 1 : 0;
        }
        keep_results(s, &s->rows[b]);
        r->done += s->rows[b].accepted;
    }
    return EXIT_OK;
}
