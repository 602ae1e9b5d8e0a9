/* replayssm-bench --conv: what the short convolution takes on a GPU.
 *
 * A case is one width, type and batch. A graph runs passes of LAYERS layers: each layer has a pool tensor, inputs and
 * outputs of its own, each pass slots and rows of its own, and the slots are at different places in their rings. Before
 * each launch step_begin (verify_begin) makes the rows of every pass and, after it, commit keeps all tokens; neither is in
 * the time. A convolution sees channels, whatever heads they are of, so the heads are small, and the pool's states too. */
#include "bench_ops.h"

#include <inttypes.h>
#include <rssm_conv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, WIDTH = 4, HEAD = 16, MOST_ROWS = 1024, MOST_PASSES = 64 };

/* The goal: times the bytes at the copy's bandwidth, plus GOAL_US. */
#define GOAL_FACTOR 1.3
#define GOAL_US     5.0

static const struct conv_shape {
    int64_t channels, key_heads, value_heads; /* channels = HEAD (2 key_heads + value_heads) */
    int32_t io;
    int64_t drafts, tokens; /* tokens 1: conv, more: conv_verify */
} shapes[] = {
    {6144, 128, 128, RSSM_DTYPE_BFLOAT16, 0, 1},  {8192, 128, 256, RSSM_DTYPE_BFLOAT16, 0, 1},
    {12288, 256, 256, RSSM_DTYPE_BFLOAT16, 0, 1}, {8192, 128, 256, RSSM_DTYPE_FLOAT32, 0, 1},
    {8192, 128, 256, RSSM_DTYPE_BFLOAT16, 3, 1},  {8192, 128, 256, RSSM_DTYPE_BFLOAT16, 3, 4},
    {8192, 128, 256, RSSM_DTYPE_BFLOAT16, 7, 8},  {8192, 128, 256, RSSM_DTYPE_FLOAT32, 3, 4},
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };
static const option_list default_batches = {5, {1, 16, 64, 256, 1024}};

/* One case: an instance with all tensors of a pass and layer. */
typedef struct bed {
    gpu_bench *b;
    gpu *g;
    host host;
    const struct conv_shape *shape;
    const rssm_conv_api *conv;
    const rssm_verify_api *verify; /* NULL: plain steps */
    int64_t batch, passes;
    void *slab;
    tensor slots, ends, accepted;   /* int32 [passes * batch], [batch + 1], [batch] */
    tensor rows;                    /* int32 [passes * batch, 8] */
    tensor weight;                  /* [channels, WIDTH] */
    tensor in[LAYERS], out[LAYERS]; /* [passes * batch * tokens, channels] */
    const DLTensor *roles[LAYERS][RSSM_T_COUNT];
} bed;

/* ---- passes ----------------------------------------------------------------------------------------------------- */

/* The pass's part of a tensor with so many rows for each pass; shape[0] is the caller's place for the number. */
static DLTensor part(const tensor *t, int64_t pass, int64_t rows, int64_t shape[TENSOR_MAX_DIMS])
{
    DLTensor view = t->dl;
    memcpy(shape, t->shape, sizeof t->shape);
    shape[0] = rows;
    view.shape = shape;
    view.byte_offset = (uint64_t)(pass * rows * tensor_row_elements(&t->dl) * (t->dl.dtype.bits / 8));
    return view;
}

static int begin_pass(bed *r, int64_t pass)
{
    host *h = &r->host;
    int64_t shapes_of[2][TENSOR_MAX_DIMS];
    const DLTensor slots = part(&r->slots, pass, r->batch, shapes_of[0]);
    const DLTensor rows = part(&r->rows, pass, r->batch, shapes_of[1]);
    if (r->verify != NULL) {
        const rssm_verify_begin_args window = {.struct_size = sizeof window,
                                               .slots = &slots,
                                               .cu_seqlens = &r->ends.dl,
                                               .rows_out = &rows,
                                               .stream = r->g->stream,
                                               .max_T = (int32_t)r->shape->tokens};
        return host_check(h, r->verify->verify_begin(h->plugin, &window, &h->error), "verify_begin");
    }
    const rssm_step_begin_args step = {
        .struct_size = sizeof step, .slots = &slots, .rows_out = &rows, .stream = r->g->stream};
    return host_check(h, h->api->step_begin(h->plugin, &step, &h->error), "step_begin");
}

static int commit_pass(bed *r, int64_t pass)
{
    host *h = &r->host;
    int64_t shape[TENSOR_MAX_DIMS];
    const DLTensor rows = part(&r->rows, pass, r->batch, shape);
    const rssm_commit_args args = {
        .struct_size = sizeof args, .rows = &rows, .accepted = &r->accepted.dl, .stream = r->g->stream};
    return host_check(h, r->verify->commit(h->plugin, &args, &h->error), "commit");
}

/* Call i is layer i % LAYERS of pass i / LAYERS. */
static int enqueue_layer(void *context, int64_t i)
{
    bed *r = context;
    host *h = &r->host;
    const int64_t layer = i % LAYERS, pass = i / LAYERS, tokens = r->batch * r->shape->tokens;
    int64_t shapes_of[3][TENSOR_MAX_DIMS];
    const DLTensor rows = part(&r->rows, pass, r->batch, shapes_of[0]);
    const DLTensor in = part(&r->in[layer], pass, tokens, shapes_of[1]);
    const DLTensor out = part(&r->out[layer], pass, tokens, shapes_of[2]);
    const DLTensor *roles[RSSM_T_COUNT];
    memcpy(roles, r->roles[layer], sizeof roles);
    roles[RSSM_T_ROWS] = &rows;
    roles[RSSM_T_CONV_IN] = &in;
    roles[RSSM_T_CONV_OUT] = &out;
    roles[RSSM_T_CONV_WEIGHT] = &r->weight.dl;
    const rssm_decode_args args = {.struct_size = sizeof args,
                                   .tensors = roles,
                                   .num_tensors = RSSM_T_COUNT,
                                   .layer = (int32_t)layer,
                                   .stream = r->g->stream};
    if (r->shape->tokens > 1)
        return host_check(h, r->conv->conv_verify(h->plugin, &args, &h->error), "conv_verify");
    return host_check(h, r->conv->conv(h->plugin, &args, &h->error), "conv");
}

/* ---- the instance ----------------------------------------------------------------------------------------------- */

static int open_instance(bed *r)
{
    const struct conv_shape *s = r->shape;
    const rssm_dims dims = {.struct_size = sizeof dims,
                            .family = RSSM_FAMILY_GDN,
                            .num_layers = LAYERS,
                            .H = (int32_t)s->key_heads,
                            .HV = (int32_t)s->value_heads,
                            .K = HEAD,
                            .V = HEAD,
                            .conv_kernel = WIDTH};
    const rssm_init_args args = {.struct_size = sizeof args,
                                 .dims = &dims,
                                 .device_type = (int32_t)r->g->dev->dl.device_type,
                                 .device_id = r->g->dev->dl.device_id,
                                 .ring_length = (int32_t)s->drafts + 1,
                                 .max_draft_tokens = (int32_t)s->drafts,
                                 .io_dtype = s->io,
                                 .state_dtype = RSSM_DTYPE_BFLOAT16,
                                 .num_slots = r->passes * r->batch,
                                 .flags = RSSM_INIT_CONV_STATE};
    host *h = &r->host;
    int code = host_init(h, &args);
    if (code == EXIT_OK)
        code = host_check(h, h->api->prepare(h->plugin, &h->error), "prepare");
    r->conv = h->api->get_extension(RSSM_EXT_CONV);
    r->verify = s->tokens > 1 ? h->api->get_extension(RSSM_EXT_VERIFY) : NULL;
    if (code == EXIT_OK && (r->conv == NULL || (s->tokens > 1 && r->verify == NULL)))
        code = host_refuse(h, "the plugin has no " RSSM_EXT_CONV " or no " RSSM_EXT_VERIFY);
    return code;
}

static int64_t columns_of(const struct conv_shape *s)
{
    return s->drafts > 0 ? WIDTH + s->drafts : WIDTH - 1;
}

/* Neighbouring slots are at other places in their rings. */
static int spread_places(bed *r)
{
    const int64_t slots = r->host.layout.num_slots;
    const DLTensor *cursor = r->roles[0][RSSM_T_CURSOR];
    int32_t(*cursors)[RSSM_CURSOR_WIDTH] = calloc((size_t)slots, sizeof *cursors);
    if (cursors == NULL)
        return host_refuse(&r->host, "out of memory");
    for (int64_t slot = 0; slot < slots; slot++)
        cursors[slot][2] = (int32_t)(slot % columns_of(r->shape));
    const int code = gpu_upload(r->g, tensor_data(cursor), cursors, slots * (int64_t)sizeof *cursors);
    free(cursors);
    return code;
}

static int open_pool(bed *r)
{
    host *h = &r->host;
    r->slab = r->g->dev->alloc(r->g->dev, h->layout.slab_bytes);
    if (r->slab == NULL)
        return host_refuse(h, "no device memory for a pool of %lld bytes", (long long)h->layout.slab_bytes);
    int code = host_pool(h, r->slab, r->g->stream);
    for (int32_t layer = 0; layer < LAYERS && code == EXIT_OK; layer++)
        code = host_check(h, h->api->pool_tensors(h->plugin, layer, r->roles[layer], RSSM_T_COUNT, &h->error),
                          "pool_tensors");
    return code == EXIT_OK ? spread_places(r) : code;
}

/* Small numbers that differ: a few made here, doubled there. */
static int fill(bed *r, tensor *t)
{
    enum { PERIOD = 251, MADE = 64 * 1024 };
    const dtype_info *type = dtype_of(&t->dl);
    const int64_t made = t->bytes < MADE ? t->bytes : MADE;
    for (int64_t i = 0; i < made / type->bytes; i++) {
        const float value = ((float)(i % PERIOD) - 125.0f) / 100.0f;
        dtype_store(type, &value, 1, (char *)t->host + i * type->bytes);
    }
    char *data = t->dl.data;
    int code = gpu_upload(r->g, data, t->host, made);
    for (int64_t have = made; have < t->bytes && code == EXIT_OK; have *= 2)
        code = gpu_copy(r->g, data + have, data, have < t->bytes - have ? have : t->bytes - have);
    return code;
}

static int open_tensors(bed *r)
{
    device *dev = r->g->dev;
    const DLDataType io = dtype_find(r->shape->io)->dl, int32 = tensor_int32();
    const int64_t slots = r->passes * r->batch, ends = r->batch + 1, channels = r->shape->channels;
    int failed = tensor_create(&r->slots, dev, int32, 1, &slots);
    failed |= tensor_create(&r->ends, dev, int32, 1, &ends);
    failed |= tensor_create(&r->accepted, dev, int32, 1, &r->batch);
    failed |= tensor_create(&r->rows, dev, int32, 2, (int64_t[]){slots, RSSM_ROW_WIDTH});
    failed |= tensor_create(&r->weight, dev, io, 2, (int64_t[]){channels, WIDTH});
    for (int layer = 0; layer < LAYERS; layer++) {
        failed |= tensor_create(&r->in[layer], dev, io, 2, (int64_t[]){slots * r->shape->tokens, channels});
        failed |= tensor_create(&r->out[layer], dev, io, 2, (int64_t[]){slots * r->shape->tokens, channels});
    }
    if (failed)
        return host_refuse(&r->host, "no memory for inputs");
    for (int64_t i = 0; i < slots; i++)
        ((int32_t *)r->slots.host)[i] = (int32_t)i;
    for (int64_t i = 0; i < r->batch; i++)
        ((int32_t *)r->accepted.host)[i] = (int32_t)r->shape->tokens;
    for (int64_t i = 0; i < ends; i++)
        ((int32_t *)r->ends.host)[i] = (int32_t)(i * r->shape->tokens);
    if (tensor_upload(&r->slots) | tensor_upload(&r->ends) | tensor_upload(&r->accepted))
        return host_refuse(&r->host, "cannot copy to the device");
    int code = fill(r, &r->weight);
    for (int layer = 0; layer < LAYERS && code == EXIT_OK; layer++)
        code = fill(r, &r->in[layer]);
    return code == EXIT_OK ? gpu_sync(r->g) : code;
}

static void close_bed(bed *r)
{
    device *dev = r->g->dev;
    dev->sync(dev);
    if (r->host.plugin != NULL)
        r->host.api->teardown(&r->host.plugin, &r->host.error);
    tensor *const tensors[] = {&r->slots, &r->ends, &r->accepted, &r->rows, &r->weight};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(tensors[i]);
    for (int layer = 0; layer < LAYERS; layer++) {
        tensor_free(&r->in[layer]);
        tensor_free(&r->out[layer]);
    }
    dev->release(dev, r->slab);
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

/* One layer of one pass: inputs, outputs, weights, and of the ring what must move: all columns are read and one is
 * written; with drafts neighbouring channels share sectors, and the whole ring moves twice. */
static double layer_bytes(const bed *r)
{
    const int64_t element = dtype_find(r->shape->io)->bytes, columns = columns_of(r->shape);
    const int64_t ring = r->shape->drafts > 0 ? 2 * columns : columns + 1;
    return (double)(element * r->shape->channels * (r->batch * (2 * r->shape->tokens + ring) + WIDTH));
}

static int one_round(bed *r, timed *graph, double *us, double *copy)
{
    int code = gpu_copy_bandwidth(r->g, copy);
    for (int64_t pass = 0; pass < r->passes && code == EXIT_OK; pass++)
        code = begin_pass(r, pass);
    if (code == EXIT_OK)
        code = timed_sample(graph, us);
    for (int64_t pass = 0; pass < r->passes && code == EXIT_OK && r->verify != NULL; pass++)
        code = commit_pass(r, pass);
    return code;
}

static int measure(bed *r, timed *graph, conv_outcome *out)
{
    double us[OPS_ROUNDS], copy[OPS_ROUNDS], over[OPS_ROUNDS], goal[OPS_ROUNDS];
    int code = one_round(r, graph, &us[0], &copy[0]); /* to warm up */
    for (int i = 0; i < OPS_ROUNDS && code == EXIT_OK; i++) {
        code = one_round(r, graph, &us[i], &copy[i]);
        goal[i] = GOAL_FACTOR * 1e6 * out->bytes / copy[i] + GOAL_US;
        over[i] = us[i] / goal[i];
    }
    if (code != EXIT_OK)
        return code;
    out->us = stats_summary(us, OPS_ROUNDS);
    out->copy = stats_summary(copy, OPS_ROUNDS);
    out->over_goal = stats_summary(over, OPS_ROUNDS);
    out->goal_us = stats_summary(goal, OPS_ROUNDS).median;
    return EXIT_OK;
}

static int run_bed(bed *r, conv_outcome *out)
{
    timed graph = {.g = NULL};
    gpu_kernels kernels = {.count = 0};
    int code = open_instance(r);
    if (code == EXIT_OK)
        code = open_pool(r);
    if (code == EXIT_OK)
        code = open_tensors(r);
    if (code == EXIT_OK)
        code = timed_record(&graph, r->g, enqueue_layer, r, LAYERS * r->passes);
    if (code == EXIT_OK)
        code = gpu_graph_kernels(r->g, &graph.graph, &kernels);
    if (code == EXIT_OK && kernels.count != LAYERS * r->passes)
        code = host_refuse(&r->host, "%" PRId64 " kernels for %d layers", kernels.count, (int)(LAYERS * r->passes));
    memcpy(out->kernel, kernels.first, sizeof out->kernel);
    if (code == EXIT_OK)
        code = measure(r, &graph, out);
    timed_free(&graph);
    return code;
}

static void print_case(const gpu_bench *b, const conv_outcome *c)
{
    char verdict[16] = "ok";
    if (c->over_goal.median > 1.0)
        snprintf(verdict, sizeof verdict, "+%.1f%%", 100.0 * (c->over_goal.median - 1.0));
    fprintf(b->text, "%-28s %3" PRId64 " x %d %11.0f %8.2f (%.2f-%.2f) %8.2f %-6s %6.0f %s\n", c->name, c->passes,
            LAYERS, c->bytes, c->us.median, c->us.p10, c->us.p90, c->goal_us, verdict, 1e-9 * c->copy.median,
            c->kernel);
    fflush(b->text);
}

/* Passes that have MOST_ROWS rows together, within limits. */
static int64_t passes_for(int64_t batch)
{
    const int64_t passes = MOST_ROWS / batch;
    return passes < 1 ? 1 : passes > MOST_PASSES ? MOST_PASSES : passes;
}

static int run_case(gpu_bench *b, const struct conv_shape *s, int64_t batch, conv_report *report)
{
    conv_outcome *out = &report->cases[report->count];
    bed r = {.b = b, .g = &b->g, .host = b->common->base, .shape = s, .batch = batch, .passes = passes_for(batch)};
    *out = (conv_outcome){.io = s->io,
                          .channels = s->channels,
                          .columns = columns_of(s),
                          .tokens = s->tokens,
                          .batch = batch,
                          .passes = r.passes,
                          .bytes = layer_bytes(&r)};
    snprintf(out->name, sizeof out->name, "conv-%s-%" PRId64 "-c%" PRId64 "-T%" PRId64 "-b%" PRId64,
             bench_gpu_type(s->io), s->channels, out->columns, s->tokens, batch);
    if (!bench_gpu_matches(b->common->o->filter, out->name))
        return EXIT_OK;
    if (stats_seconds() > b->deadline) {
        bench_gpu_leave_out(b, out->name, "no time is left (--seconds)");
        return EXIT_OK;
    }
    const int code = run_bed(&r, out);
    close_bed(&r);
    if (code != EXIT_OK)
        return code;
    print_case(b, out);
    report->count++;
    return EXIT_OK;
}

/* ---- all cases -------------------------------------------------------------------------------------------------- */

int bench_conv(gpu_bench *b, conv_report *out)
{
    const option_list *batches = b->common->o->batch.count > 0 ? &b->common->o->batch : &default_batches;
    *out = (conv_report){.cases = calloc((size_t)(NUM_SHAPES * batches->count), sizeof *out->cases)};
    if (out->cases == NULL)
        return host_refuse(&b->common->base, "out of memory");
    fprintf(b->text, "rows' slots ascend, one beside the other; neighbours are at different places in their rings\n");
    fprintf(b->text, "%-28s %7s %11s %8s %13s %8s %-6s %6s %s\n", "convolution", "passes", "bytes", "us", "(p10-p90)",
            "goal", "", "copy", "kernel");
    int code = EXIT_OK;
    for (int i = 0; i < NUM_SHAPES && code == EXIT_OK; i++)
        for (int64_t j = 0; j < batches->count && code == EXIT_OK; j++)
            code = run_case(b, &shapes[i], batches->values[j], out);
    return code;
}

static void json_case(json *out, const conv_outcome *c)
{
    json_object(out, NULL);
    json_string(out, "name", c->name);
    json_string(out, "io", dtype_find(c->io)->name);
    json_int(out, "width", WIDTH);
    json_int(out, "channels", c->channels);
    json_int(out, "columns", c->columns);
    json_int(out, "tokens", c->tokens);
    json_int(out, "batch", c->batch);
    json_int(out, "layers", LAYERS);
    json_int(out, "passes", c->passes);
    json_number(out, "bytes", c->bytes);
    bench_json_summary(out, "us", &c->us);
    json_number(out, "goal_us", c->goal_us);
    bench_json_summary(out, "over_goal", &c->over_goal);
    bench_json_summary(out, "copy_bytes_per_second", &c->copy);
    json_string(out, "kernel", c->kernel);
    json_end(out);
}

void bench_conv_json(json *out, const conv_report *report)
{
    json_array(out, "conv");
    for (int64_t i = 0; i < report->count; i++)
        json_case(out, &report->cases[i]);
    json_end(out);
}
