#include "bench_run.h"

#include <stdlib.h>
#include <string.h>

enum { DISTINCT_ROWS = 64 }; /* of the inputs: the others repeat them */

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int64_t run_passes(int64_t batch, int64_t ring_length, int64_t tokens)
{
    const int64_t period = ring_length / tokens; /* passes from flush to flush */
    return period / greatest_divisor(batch, period);
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static const DLTensor *slots_of(const run *r, int64_t pass)
{
    return &r->views[pass];
}

static const DLTensor *force_of(const run *r, int64_t pass)
{
    return &r->views[r->want.passes + pass];
}

static const DLTensor *accepted_of(const run *r, int64_t pass)
{
    return &r->views[2 * r->want.passes + pass];
}

static const DLTensor *rows_of(const run *r, int64_t set)
{
    return &r->views[3 * r->want.passes + set];
}

/* The i-th [batch, ...] part of t. */
static DLTensor part(run *r, const tensor *t, int64_t i)
{
    DLTensor view = t->dl;
    const int64_t bytes = r->want.batch * tensor_row_elements(&t->dl) * (int64_t)sizeof(int32_t);
    view.shape = r->shapes[view.ndim - 1];
    view.byte_offset = (uint64_t)(i * bytes);
    return view;
}

static int create_index_tensors(run *r)
{
    const run_want *want = &r->want;
    const int64_t slots = want->passes * want->batch, seqlens = want->batch + 1;
    device *dev = r->g->dev;
    int failed = tensor_create(&r->slots, dev, tensor_int32(), 1, &slots);
    failed |= tensor_create(&r->force, dev, tensor_int32(), 1, &slots);
    failed |= tensor_create(&r->accepted, dev, tensor_int32(), 1, &slots);
    failed |= tensor_create(&r->cu_seqlens, dev, tensor_int32(), 1, &seqlens);
    failed |= tensor_create(&r->rows, dev, tensor_int32(), 2, (int64_t[]){r->sets * want->batch, RSSM_ROW_WIDTH});
    r->views = calloc((size_t)(3 * want->passes + r->sets), sizeof *r->views);
    return failed != 0 || r->views == NULL;
}

static void fill_index_tensors(run *r)
{
    const run_want *want = &r->want;
    int32_t *slots = r->slots.host, *seqlens = r->cu_seqlens.host, *accepted = r->accepted.host;
    for (int64_t i = 0; i < want->passes * want->batch; i++) {
        slots[i] = (int32_t)i;
        accepted[i] = (int32_t)want->tokens;
    }
    for (int64_t i = 0; i <= want->batch; i++)
        seqlens[i] = (int32_t)(i * want->tokens);
    r->shapes[0][0] = r->shapes[1][0] = want->batch;
    r->shapes[1][1] = RSSM_ROW_WIDTH;
    for (int64_t pass = 0; pass < want->passes; pass++) {
        r->views[pass] = part(r, &r->slots, pass);
        r->views[want->passes + pass] = part(r, &r->force, pass);
        r->views[2 * want->passes + pass] = part(r, &r->accepted, pass);
    }
    for (int64_t set = 0; set < r->sets; set++)
        r->views[3 * want->passes + set] = part(r, &r->rows, set);
}

static int upload(run *r, tensor *t)
{
    return gpu_upload(r->g, t->dl.data, t->host, t->bytes);
}

/* Rows beyond the first few repeat them. */
static int fill_inputs(run *r)
{
    workload *w = &r->load;
    tensor *inputs[] = {&w->packed, &w->gate, &w->beta};
    const int64_t rows = w->batch;
    w->batch = rows < DISTINCT_ROWS ? rows : DISTINCT_ROWS;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        inputs[i]->bytes = inputs[i]->bytes / rows * w->batch;
    int failed = workload_inputs(w, 0, 0);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        const int64_t row = inputs[i]->bytes / w->batch;
        char *data = inputs[i]->host;
        inputs[i]->bytes = row * rows;
        for (int64_t b = w->batch; b < rows; b++)
            memcpy(data + b * row, data + b % w->batch * row, (size_t)row);
        failed |= tensor_upload(inputs[i]);
    }
    w->batch = rows;
    return failed ? host_refuse(&r->host, "cannot copy to the device") : EXIT_OK;
}

/* ---- passes ----------------------------------------------------------------------------------------------------- */

static int begin_pass(run *r, int64_t pass, int64_t set, const DLTensor *force)
{
    host *h = &r->host;
    if (r->verify != NULL) {
        rssm_verify_begin_args window = {.struct_size = sizeof window,
                                         .slots = slots_of(r, pass),
                                         .cu_seqlens = &r->cu_seqlens.dl,
                                         .rows_out = rows_of(r, set),
                                         .stream = r->g->stream,
                                         .max_T = (int32_t)r->want.tokens};
        return host_check(h, r->verify->verify_begin(h->plugin, &window, &h->error), "verify_begin");
    }
    rssm_step_begin_args args = {.struct_size = sizeof args,
                                 .slots = slots_of(r, pass),
                                 .force_flush = force,
                                 .rows_out = rows_of(r, set),
                                 .stream = r->g->stream};
    return host_check(h, h->api->step_begin(h->plugin, &args, &h->error), "step_begin");
}

static rssm_decode_args call_of(run *r, int64_t layer, int64_t set, uint32_t flags)
{
    r->load.tensors[layer * RSSM_T_COUNT + RSSM_T_ROWS] = rows_of(r, set);
    rssm_decode_args args = workload_decode_args(&r->load, layer, flags);
    args.stream = r->g->stream;
    return args;
}

static int layers_pass(run *r, int64_t set)
{
    host *h = &r->host;
    rssm_status (*step)(rssm_plugin *, const rssm_decode_args *, rssm_error *) =
        r->verify != NULL ? r->verify->verify : h->api->decode;
    for (int64_t layer = 0; layer < r->want.layers; layer++) {
        rssm_decode_args args = call_of(r, layer, set, 0);
        if (host_check(h, step(h->plugin, &args, &h->error), r->verify != NULL ? "verify" : "decode") != EXIT_OK)
            return EXIT_REFUSED;
    }
    return EXIT_OK;
}

static int end_pass(run *r, int64_t pass, int64_t set)
{
    host *h = &r->host;
    if (r->verify == NULL)
        return EXIT_OK;
    rssm_commit_args args = {
        .struct_size = sizeof args, .rows = rows_of(r, set), .accepted = accepted_of(r, pass), .stream = r->g->stream};
    return host_check(h, r->verify->commit(h->plugin, &args, &h->error), "commit");
}

static int whole_pass(run *r, int64_t pass, const DLTensor *force)
{
    int code = begin_pass(r, pass, pass, force);
    if (code == EXIT_OK)
        code = layers_pass(r, pass);
    return code == EXIT_OK ? end_pass(r, pass, pass) : code;
}

static int all_passes(run *r, int forced)
{
    int code = EXIT_OK;
    for (int64_t pass = 0; pass < r->want.passes && code == EXIT_OK; pass++)
        code = whole_pass(r, pass, forced ? force_of(r, pass) : NULL);
    return code;
}

/* ---- cursors ---------------------------------------------------------------------------------------------------- */

/* Plain steps: every row flushes once, each at its own step of a window. Windows: each row accepts its first few. From
 * then on the cursors stay spread evenly. */
static int spread_cursors(run *r)
{
    const int64_t rows = r->want.passes * r->want.batch, period = r->host.model.ring_length / r->want.tokens;
    int32_t *force = r->force.host, *accepted = r->accepted.host;
    int code = EXIT_OK;
    for (int64_t step = 0; step < period && code == EXIT_OK; step++) {
        for (int64_t i = 0; i < rows; i++) {
            const int64_t phase = i % period;
            force[i] = phase == step;
            accepted[i] = step < phase ? (int32_t)r->want.tokens : 0;
        }
        code = upload(r, &r->force);
        if (code == EXIT_OK)
            code = upload(r, &r->accepted);
        if (code == EXIT_OK)
            code = all_passes(r, 1);
        if (code == EXIT_OK)
            code = gpu_sync(r->g);
    }
    for (int64_t i = 0; i < rows; i++)
        accepted[i] = (int32_t)r->want.tokens;
    return code == EXIT_OK ? upload(r, &r->accepted) : code;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

typedef int (*run_part)(run *r);

/* The graph of what `enqueue` enqueues, between two marks. */
static int record(run *r, run_part enqueue, int mark, gpu_graph *out)
{
    int code = gpu_record_begin(r->g);
    if (code == EXIT_OK)
        code = gpu_mark(r->g, r->marks[mark]);
    if (code == EXIT_OK)
        code = enqueue(r);
    if (code == EXIT_OK)
        code = gpu_mark(r->g, r->marks[mark + 1]);
    return code == EXIT_OK ? gpu_record_end(r->g, out) : code;
}

static int enqueue_begin(run *r)
{
    int code = EXIT_OK;
    for (int64_t set = 0; set < r->sets && code == EXIT_OK; set++)
        code = begin_pass(r, r->want.windows ? 0 : set, set, NULL);
    return code;
}

static int enqueue_steps(run *r)
{
    int code = EXIT_OK;
    for (int64_t set = 0; set < r->sets && code == EXIT_OK; set++) {
        if (r->want.windows)
            code = gpu_mark(r->g, r->step_marks[set]);
        if (code == EXIT_OK)
            code = layers_pass(r, set);
    }
    if (code == EXIT_OK && r->want.windows)
        code = gpu_mark(r->g, r->step_marks[r->sets]);
    return code;
}

static int enqueue_end(run *r)
{
    int code = EXIT_OK;
    for (int64_t pass = 0; pass < r->want.passes && code == EXIT_OK; pass++)
        code = end_pass(r, pass, pass);
    return code;
}

static int enqueue_whole(run *r)
{
    return all_passes(r, 0);
}

static int record_all(run *r)
{
    int code = gpu_marks_create(r->g, r->marks, RUN_MARKS);
    if (code == EXIT_OK && r->want.windows)
        code = gpu_marks_create(r->g, r->step_marks, r->sets + 1);
    if (code == EXIT_OK)
        code = record(r, enqueue_begin, MARK_BEGIN, &r->begin);
    if (code == EXIT_OK)
        code = record(r, enqueue_steps, MARK_STEPS, &r->steps);
    if (code == EXIT_OK && r->verify != NULL)
        code = record(r, enqueue_end, MARK_END, &r->end);
    if (code == EXIT_OK && !r->want.windows)
        code = record(r, enqueue_whole, MARK_WHOLE, &r->whole);
    return code;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int open_instance(run *r)
{
    const run_want *want = &r->want;
    rssm_dims dims = {.struct_size = sizeof dims,
                      .family = want->family,
                      .num_layers = (int32_t)want->layers,
                      .H = (int32_t)want->heads[0],
                      .HV = (int32_t)want->heads[1],
                      .K = (int32_t)want->heads[2],
                      .V = (int32_t)want->heads[3]};
    rssm_init_args init = {.struct_size = sizeof init,
                           .dims = &dims,
                           .device_type = (int32_t)r->g->dev->dl.device_type,
                           .device_id = r->g->dev->dl.device_id,
                           .ring_length = (int32_t)want->ring_length,
                           .max_draft_tokens = (int32_t)want->tokens - 1,
                           .io_dtype = want->io,
                           .state_dtype = want->state,
                           .ring_dtype = want->ring_dtype,
                           .max_batch = (int32_t)want->batch,
                           .num_slots = want->passes * want->batch,
                           .flags = want->flags};
    return host_init(&r->host, &init);
}

static int open_pool(run *r)
{
    host *h = &r->host;
    r->slab = r->g->dev->alloc(r->g->dev, h->layout.slab_bytes);
    if (r->slab == NULL)
        return host_refuse(h, "no device memory for a pool of %lld bytes", (long long)h->layout.slab_bytes);
    return host_pool(h, r->slab, r->g->stream);
}

static int open_tensors(run *r)
{
    const run_want *want = &r->want;
    r->sets = want->windows ? r->host.model.ring_length : want->passes;
    const dtype_info *io = dtype_find(r->host.model.io_dtype);
    int code = workload_create(&r->load, &r->host, r->g->dev, want->batch * want->tokens, io, 1);
    if (code == EXIT_OK && create_index_tensors(r))
        code = host_refuse(&r->host, "no memory for cursors");
    if (code != EXIT_OK)
        return code;
    fill_index_tensors(r);
    code = upload(r, &r->slots);
    if (code == EXIT_OK)
        code = upload(r, &r->cu_seqlens);
    if (code == EXIT_OK)
        code = upload(r, &r->accepted);
    return code == EXIT_OK ? fill_inputs(r) : code;
}

/* verify/1, if this build does it for this instance: asked with an empty batch. */
static int find_verify(run *r, int *missing)
{
    const rssm_verify_api *verify = r->host.api->get_extension(RSSM_EXT_VERIFY);
    int64_t none = 0, one = 1;
    DLTensor empty = r->slots.dl, ends = r->cu_seqlens.dl, rows = r->rows.dl;
    int64_t shape[2] = {0, RSSM_ROW_WIDTH};
    empty.shape = &none;
    ends.shape = &one;
    rows.shape = shape;
    rssm_verify_begin_args args = {.struct_size = sizeof args,
                                   .slots = &empty,
                                   .cu_seqlens = &ends,
                                   .rows_out = &rows,
                                   .stream = r->g->stream,
                                   .max_T = (int32_t)r->want.tokens};
    host *h = &r->host;
    rssm_status status = verify == NULL ? RSSM_ERR_UNSUPPORTED : verify->verify_begin(h->plugin, &args, &h->error);
    *missing = status == RSSM_ERR_UNSUPPORTED;
    if (status != RSSM_OK)
        return *missing ? EXIT_REFUSED : host_check(h, status, "verify_begin");
    r->verify = verify;
    return EXIT_OK;
}

int run_open(run *r, gpu *g, const host *base, const run_want *want, int *missing)
{
    *r = (run){.g = g, .want = *want, .host = *base};
    *missing = 0;
    int code = open_instance(r);
    if (code == EXIT_OK)
        code = host_check(&r->host, r->host.api->prepare(r->host.plugin, &r->host.error), "prepare");
    if (code == EXIT_OK)
        code = open_pool(r);
    if (code == EXIT_OK)
        code = open_tensors(r);
    if (code == EXIT_OK && g->dev->sync(g->dev) != 0) /* our stream does not wait for the zeroing of new memory */
        code = host_refuse(&r->host, "cannot write to the device");
    if (code == EXIT_OK && want->tokens > 1)
        code = find_verify(r, missing);
    if (code == EXIT_OK && !want->windows)
        code = spread_cursors(r);
    return code == EXIT_OK ? record_all(r) : code;
}

void run_close(run *r)
{
    if (r->g == NULL)
        return;
    r->g->dev->sync(r->g->dev);
    gpu_graph *graphs[] = {&r->begin, &r->steps, &r->end, &r->whole};
    for (size_t i = 0; i < sizeof graphs / sizeof graphs[0]; i++)
        gpu_graph_free(r->g, graphs[i]);
    gpu_marks_free(r->g, r->marks, RUN_MARKS);
    gpu_marks_free(r->g, r->step_marks, RUN_MAX_RING + 1);
    if (r->load.host != NULL)
        workload_free(&r->load);
    if (r->host.plugin != NULL)
        r->host.api->teardown(&r->host.plugin, &r->host.error);
    tensor *tensors[] = {&r->slots, &r->force, &r->rows, &r->cu_seqlens, &r->accepted};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(tensors[i]);
    r->g->dev->release(r->g->dev, r->slab);
    free(r->views);
    *r = (run){.g = NULL};
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

static int between(run *r, int mark, double *seconds)
{
    return gpu_between(r->g, r->marks[mark], r->marks[mark + 1], seconds);
}

/* What the passes that are done had to do. */
static int count_passes(run *r)
{
    int code = gpu_download(r->g, r->rows.host, r->rows.dl.data, r->rows.bytes);
    for (int64_t set = 0; set < r->sets && code == EXIT_OK; set++) {
        const int32_t *rows = (const int32_t *)r->rows.host + set * r->want.batch * RSSM_ROW_WIDTH;
        bench_count_rows(&r->load, rows, r->want.batch, r->verify != NULL, &r->count);
    }
    return code;
}

int run_sample(run *r, run_times *out)
{
    int code = gpu_graph_launch(r->g, &r->begin);
    if (code == EXIT_OK)
        code = gpu_graph_launch(r->g, &r->steps);
    if (code == EXIT_OK && r->verify != NULL)
        code = gpu_graph_launch(r->g, &r->end);
    if (code == EXIT_OK)
        code = count_passes(r);
    if (code == EXIT_OK)
        code = between(r, MARK_BEGIN, &out->begin);
    if (code == EXIT_OK)
        code = between(r, MARK_STEPS, &out->steps);
    out->end = 0.0;
    return code == EXIT_OK && r->verify != NULL ? between(r, MARK_END, &out->end) : code;
}

int run_whole(run *r, double *seconds)
{
    int code = gpu_graph_launch(r->g, &r->whole);
    if (code == EXIT_OK)
        code = count_passes(r);
    return code == EXIT_OK ? between(r, MARK_WHOLE, seconds) : code;
}

int run_window(run *r, double *seconds)
{
    run_times ignored;
    int code = run_sample(r, &ignored);
    for (int64_t step = 0; step < r->sets && code == EXIT_OK; step++)
        code = gpu_between(r->g, r->step_marks[step], r->step_marks[step + 1], &seconds[step]);
    return code;
}

int64_t run_layer_bytes(const run *r)
{
    const int64_t T = r->want.tokens, L = r->host.model.ring_length;
    if (r->verify == NULL)
        return bench_layer_bytes(&r->load, r->want.batch);
    const int64_t state = bench_state_bytes(&r->host), row = bench_ring_row_bytes(&r->host);
    return r->want.batch * (state + state * T / L + (L + T) * row / 2 + T * row + T * bench_io_bytes(&r->load));
}

rssm_decode_args run_first_call(run *r, uint32_t flags)
{
    return call_of(r, 0, 0, flags);
}
