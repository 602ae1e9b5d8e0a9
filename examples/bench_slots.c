/* replayssm-bench --slots: what forks, exports, imports and flushes of slots take on a GPU.
 *
 * A case is one operation on n slots of all layers, n such that about SIZES bytes move. A graph has CALLS of it, each on
 * slots and tensors of its own, so that the L2 cache holds none of them. Every round takes a large copy, a graph of as
 * many copies of as many bytes over memory of their own, and the graph of the operation. Pending records are real ones: the
 * slots decode a few tokens once, and before each launch the cursors say how many of them count. */
#include "bench_ops.h"

#include <inttypes.h>
#include <rssm_fault.h>
#include <rssm_slots.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, CALLS = 8, RING = 16, RECORDS = RING - 1, CHUNK = 16, HISTORY = 3 };
enum { TOKENS = RING + RECORDS }; /* decoded by every slot: a flush, then a full ring */

/* Plain copies are of whole units: on an H200 the driver's reach two thirds of their speed at places that are no multiples
 * of 4 KiB. */
enum { COPY_UNIT = 64 * 1024 };

static const double sizes[] = {36e6, 140e6, 290e6}; /* bytes that one call moves */
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* The least part of the large copy's bandwidth, from so many bytes on. */
#define BAR       0.70
#define BAR_BYTES 32e6

static const gpu_shape shapes[] = {
    {"gdn-16/32", RSSM_FAMILY_GDN, {16, 32, 128, 128}, 1, 0},
    {"kda-32", RSSM_FAMILY_KDA, {32, 32, 128, 128}, 0, 0},
    {"mamba2-64x64x128", RSSM_FAMILY_MAMBA2, {8, 64, 128, 64}, 0, 0},
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };
static const int32_t states[] = {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16};
enum { NUM_STATES = sizeof states / sizeof states[0] };

/* Pending records of slot s. */
typedef enum pending { NONE, SPREAD, FULL } pending;
static const char *const pending_names[] = {"0", "0..15", "15"};

static const struct kind {
    slots_operation operation;
    int32_t order;
    pending records;
    const char *name;
} kinds[] = {
    {SLOTS_FORK, RSSM_STATE_VK, FULL, "fork"},
    {SLOTS_EXPORT, RSSM_STATE_VK, NONE, "export-VK-0"},
    {SLOTS_EXPORT, RSSM_STATE_VK, SPREAD, "export-VK-spread"},
    {SLOTS_EXPORT, RSSM_STATE_VK, FULL, "export-VK-15"},
    {SLOTS_EXPORT, RSSM_STATE_KV, NONE, "export-KV-0"},
    {SLOTS_EXPORT, RSSM_STATE_KV, SPREAD, "export-KV-spread"},
    {SLOTS_EXPORT, RSSM_STATE_KV, FULL, "export-KV-15"},
    {SLOTS_IMPORT, RSSM_STATE_VK, NONE, "import-VK"},
    {SLOTS_IMPORT, RSSM_STATE_KV, NONE, "import-KV"},
    {SLOTS_FLUSH, RSSM_STATE_VK, FULL, "flush-15"},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

/* An instance, and tensors for the states and histories of CALLS calls. */
typedef struct bed {
    gpu_bench *b;
    gpu *g;
    host host;
    const gpu_shape *shape;
    const rssm_slots_api *slots_api;
    const rssm_fault_api *fault_api;
    workload load; /* CHUNK rows */
    int64_t most;  /* slots of the largest call */
    unsigned char *slab, *states, *history, *scratch;
    tensor list; /* int32: 0, 1, 2 ... */
    int32_t (*cursors)[RSSM_CURSOR_WIDTH];
} bed;

/* What is recorded now. */
typedef struct work {
    bed *r;
    const struct kind *kind;
    int64_t n;
    int64_t copy_half; /* bytes that a plain copy reads, and writes */
} work;

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static int64_t state_bytes(const bed *r) /* of a slot and layer */
{
    return bench_state_bytes(&r->host);
}

static int64_t history_bytes(const bed *r) /* of a slot and layer */
{
    return (int64_t)r->host.model.conv_channels * HISTORY * dtype_find(r->host.model.io_dtype)->bytes;
}

static int32_t pending_of(pending records, int64_t slot)
{
    return records == NONE ? 0 : records == FULL ? RECORDS : (int32_t)(slot % RING);
}

/* Read and written by one call, in the mean of the calls. */
static double moved_bytes(const bed *r, const struct kind *kind, int64_t n)
{
    const double state = 2.0 * (double)state_bytes(r), history = 2.0 * (double)history_bytes(r);
    double records = 0.0;
    for (int64_t slot = 0; slot < CALLS * n; slot++)
        records += (double)(pending_of(kind->records, slot) * bench_ring_row_bytes(&r->host)) / CALLS;
    switch (kind->operation) {
    case SLOTS_FORK:
        return 2.0 * (double)(n * r->host.layout.slot_total_bytes);
    case SLOTS_FLUSH:
        return LAYERS * ((double)n * state + records);
    default:
        return LAYERS * ((double)n * (state + history) + records);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Slots first .. first + n - 1. */
static DLTensor slot_list(const work *w, int64_t first)
{
    DLTensor list = w->r->list.dl;
    list.shape = (int64_t *)&w->n;
    list.byte_offset = (uint64_t)first * sizeof(int32_t);
    return list;
}

static int fork_slots(work *w, int64_t i)
{
    host *h = &w->r->host;
    const DLTensor src = slot_list(w, 2 * i * w->n), dst = slot_list(w, (2 * i + 1) * w->n);
    const rssm_copy_args args = {.struct_size = sizeof args, .src = &src, .dst = &dst, .stream = w->r->g->stream};
    return host_check(h, w->r->slots_api->copy(h->plugin, &args, &h->error), "copy");
}

/* A_log of every layer, which Mamba-2 needs to fold records; NULL for the others. */
static const DLTensor *const *decays(const bed *r, const DLTensor *out[LAYERS])
{
    for (int64_t layer = 0; layer < LAYERS; layer++)
        out[layer] = workload_tensor(&r->load, layer, RSSM_T_A_LOG);
    return r->host.model.family == RSSM_FAMILY_MAMBA2 ? out : NULL;
}

static int flush_slots(work *w, int64_t i)
{
    host *h = &w->r->host;
    const DLTensor *A_log[LAYERS];
    const DLTensor list = slot_list(w, i * w->n);
    rssm_flush_args args = {
        .struct_size = sizeof args, .slots = &list, .A_log = decays(w->r, A_log), .stream = w->r->g->stream};
    args.num_layers = args.A_log != NULL ? LAYERS : 0;
    return host_check(h, w->r->slots_api->flush(h->plugin, &args, &h->error), "flush");
}

/* Export and import: call i has the i-th part of the states and histories. */
static int move_states(work *w, int64_t i)
{
    bed *r = w->r;
    host *h = &r->host;
    const rssm_description *m = &h->model;
    const int turned = w->kind->order == RSSM_STATE_KV, out = w->kind->operation == SLOTS_EXPORT;
    int64_t shape[] = {w->n, m->HV, turned ? m->K : m->V, turned ? m->V : m->K};
    int64_t conv_shape[] = {w->n, m->conv_channels, HISTORY};
    DLTensor state[LAYERS], conv[LAYERS];
    const DLTensor *state_at[LAYERS], *conv_at[LAYERS], *A_log[LAYERS];
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        const int64_t place = (i * LAYERS + layer) * w->n;
        state[layer] = (DLTensor){.device = r->g->dev->dl, .ndim = 4, .shape = shape};
        state[layer].data = r->states + place * state_bytes(r);
        state[layer].dtype = dtype_find(m->state_dtype)->dl;
        conv[layer] = (DLTensor){.device = r->g->dev->dl, .ndim = 3, .shape = conv_shape};
        conv[layer].data = r->history + place * history_bytes(r);
        conv[layer].dtype = dtype_find(m->io_dtype)->dl;
        state_at[layer] = &state[layer];
        conv_at[layer] = &conv[layer];
    }
    const DLTensor list = slot_list(w, i * w->n);
    const rssm_state_args args = {.struct_size = sizeof args,
                                  .slots = &list,
                                  .states = state_at,
                                  .conv = conv_at,
                                  .A_log = out ? decays(r, A_log) : NULL,
                                  .num_layers = LAYERS,
                                  .order = w->kind->order,
                                  .stream = r->g->stream};
    if (out)
        return host_check(h, r->slots_api->export_state(h->plugin, &args, &h->error), "export_state");
    return host_check(h, r->slots_api->import_state(h->plugin, &args, &h->error), "import_state");
}

static int enqueue_operation(void *context, int64_t i)
{
    static int (*const calls[])(work * w, int64_t i) = {[SLOTS_FORK] = fork_slots,
                                                        [SLOTS_EXPORT] = move_states,
                                                        [SLOTS_IMPORT] = move_states,
                                                        [SLOTS_FLUSH] = flush_slots};
    work *w = context;
    return calls[w->kind->operation](w, i);
}

static int enqueue_copy(void *context, int64_t i)
{
    const work *w = context;
    return gpu_copy(w->r->g, w->r->scratch + i * w->copy_half, w->r->slab + i * w->copy_half, w->copy_half);
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

/* Base, count, place in the convolution's ring. */
static int set_cursors(bed *r, pending records)
{
    const DLTensor *cursor = workload_tensor(&r->load, 0, RSSM_T_CURSOR);
    for (int64_t slot = 0; slot < r->host.layout.num_slots; slot++) {
        memset(r->cursors[slot], 0, sizeof r->cursors[slot]);
        r->cursors[slot][1] = pending_of(records, slot);
        r->cursors[slot][2] = (int32_t)(slot % HISTORY);
    }
    return gpu_upload(r->g, tensor_data(cursor), r->cursors, r->host.layout.num_slots * (int64_t)sizeof *r->cursors);
}

/* No slot was passed over. */
static int check_faults(bed *r)
{
    host *h = &r->host;
    uint32_t word = 0;
    int code = host_check(h, r->fault_api->read(h->plugin, r->g->stream, &word, &h->error), "reading the fault word");
    if (code == EXIT_OK && (word & (RSSM_FAULT_SLOTS | RSSM_FAULT_CURSOR)) != 0)
        return host_refuse(h, "a slot operation set the fault word to %u", (unsigned)word);
    return code;
}

/* Large copies, copies of as many bytes, the operation. */
static int one_round(work *w, timed *op, timed *same, double *copy, double *same_us, double *us)
{
    bed *r = w->r;
    int code = set_cursors(r, w->kind->records);
    if (code == EXIT_OK)
        code = gpu_copy_bandwidth(r->g, copy);
    if (code == EXIT_OK)
        code = timed_sample(same, same_us);
    return code == EXIT_OK ? timed_sample(op, us) : code;
}

static int measure(work *w, timed *op, timed *same, slots_outcome *out)
{
    double us[OPS_ROUNDS], copy[OPS_ROUNDS], of_copy[OPS_ROUNDS], of_same[OPS_ROUNDS], same_us;
    int code = one_round(w, op, same, &copy[0], &same_us, &us[0]); /* to warm up */
    if (code != EXIT_OK)
        return code;
    for (int i = 0; i < OPS_ROUNDS; i++) {
        code = one_round(w, op, same, &copy[i], &same_us, &us[i]);
        if (code != EXIT_OK)
            return code;
        const double per_second = 1e6 * out->bytes / us[i];
        of_copy[i] = per_second / copy[i];
        of_same[i] = per_second * same_us / (2e6 * (double)w->copy_half);
    }
    out->us = stats_summary(us, OPS_ROUNDS);
    out->copy = stats_summary(copy, OPS_ROUNDS);
    out->of_copy = stats_summary(of_copy, OPS_ROUNDS);
    out->of_same = stats_summary(of_same, OPS_ROUNDS);
    return check_faults(w->r);
}

static int below_bar(const slots_outcome *c)
{
    return c->bytes >= BAR_BYTES && c->of_copy.median < BAR;
}

static void print_case(const gpu_bench *b, const slots_outcome *c)
{
    fprintf(b->text, "%-46s %4" PRId64 " %8.1f %9.2f (%.2f-%.2f) %6.0f %7.3f %7.3f %6.0f %s\n", c->name, c->slots,
            1e-6 * c->bytes, c->us.median, c->us.p10, c->us.p90, 1e-3 * c->bytes / c->us.median, c->of_copy.median,
            c->of_same.median, 1e-9 * c->copy.median, below_bar(c) ? "BELOW" : "");
    fflush(b->text);
}

static int run_case(bed *r, const struct kind *kind, int64_t n, slots_report *report)
{
    slots_outcome *out = &report->cases[report->count];
    *out = (slots_outcome){.shape = r->shape,
                           .state = r->host.model.state_dtype,
                           .order = kind->order,
                           .operation = kind->operation,
                           .records = pending_names[kind->records],
                           .slots = n,
                           .bytes = moved_bytes(r, kind, n)};
    snprintf(out->name, sizeof out->name, "%s-%s-%s-n%" PRId64, r->shape->name, bench_gpu_type(out->state), kind->name,
             n);
    if (!bench_gpu_matches(r->b->common->o->filter, out->name))
        return EXIT_OK;
    if (stats_seconds() > r->b->deadline) {
        bench_gpu_leave_out(r->b, out->name, "no time is left (--seconds)");
        return EXIT_OK;
    }
    work w = {.r = r, .kind = kind, .n = n, .copy_half = (int64_t)out->bytes / 2 & -COPY_UNIT};
    timed op = {.g = NULL}, same = {.g = NULL};
    int code = timed_record(&op, r->g, enqueue_operation, &w, CALLS);
    if (code == EXIT_OK)
        code = timed_record(&same, r->g, enqueue_copy, &w, CALLS);
    if (code == EXIT_OK)
        code = measure(&w, &op, &same, out);
    timed_free(&same);
    timed_free(&op);
    if (code != EXIT_OK)
        return code;
    print_case(r->b, out);
    report->count++;
    return EXIT_OK;
}

/* ---- the instance ----------------------------------------------------------------------------------------------- */

static int init(bed *r, int32_t state, int64_t slots)
{
    rssm_dims dims = {.struct_size = sizeof dims,
                      .family = r->shape->family,
                      .num_layers = LAYERS,
                      .H = (int32_t)r->shape->heads[0],
                      .HV = (int32_t)r->shape->heads[1],
                      .K = (int32_t)r->shape->heads[2],
                      .V = (int32_t)r->shape->heads[3],
                      .conv_kernel = HISTORY + 1};
    rssm_init_args args = {.struct_size = sizeof args,
                           .dims = &dims,
                           .device_type = (int32_t)r->g->dev->dl.device_type,
                           .device_id = r->g->dev->dl.device_id,
                           .ring_length = RING,
                           .io_dtype = RSSM_DTYPE_BFLOAT16,
                           .state_dtype = state,
                           .num_slots = slots,
                           .flags = RSSM_INIT_CONV_STATE | RSSM_INIT_NO_SMALL_FLUSH};
    return host_init(&r->host, &args);
}

/* Slots of a call that moves so many bytes. */
static int64_t slots_for(const bed *r, double bytes)
{
    const double slot = 2.0 * LAYERS * (double)(state_bytes(r) + history_bytes(r));
    return bytes < slot ? 1 : (int64_t)(bytes / slot + 0.5);
}

/* Device memory for calls of n slots: the pool, states and histories, and a copy's target. */
static int64_t needed(const bed *r, int64_t n)
{
    return CALLS * n * (4 * r->host.layout.slot_total_bytes);
}

/* The sizes that fit; sets r->most. */
static int count_sizes(bed *r)
{
    const int wanted = r->b->common->o->quick ? 1 : SIZES;
    int count = 0;
    while (count < wanted && 1.1 * (double)needed(r, slots_for(r, sizes[count])) < (double)gpu_free_bytes(r->g))
        r->most = slots_for(r, sizes[count++]);
    return count;
}

static int allocate(bed *r)
{
    device *dev = r->g->dev;
    const int64_t S = r->host.layout.num_slots, parts = CALLS * LAYERS * r->most;
    r->slab = dev->alloc(dev, r->host.layout.slab_bytes);
    r->states = dev->alloc(dev, parts * state_bytes(r));
    r->history = dev->alloc(dev, parts * history_bytes(r));
    r->scratch = dev->alloc(dev, CALLS * r->most * r->host.layout.slot_total_bytes);
    r->cursors = calloc((size_t)S, sizeof *r->cursors);
    const int failed = tensor_create(&r->list, dev, tensor_int32(), 1, &S);
    if (r->slab == NULL || r->states == NULL || r->history == NULL || r->scratch == NULL || r->cursors == NULL ||
        failed)
        return host_refuse(&r->host, "no memory for slots");
    for (int64_t i = 0; i < S; i++)
        ((int32_t *)r->list.host)[i] = (int32_t)i;
    return tensor_upload(&r->list) != 0 ? host_refuse(&r->host, "cannot copy to the device") : EXIT_OK;
}

/* Every slot gets a state and a ring of records; all on the legacy stream. */
static int decode_tokens(bed *r)
{
    host *h = &r->host;
    int code = workload_inputs(&r->load, 0, 0) != 0 ? host_refuse(h, "cannot copy to the device") : EXIT_OK;
    for (int64_t i = 0; i < r->host.layout.num_slots / CHUNK * TOKENS && code == EXIT_OK; i++) {
        for (int64_t row = 0; row < CHUNK; row++)
            ((int32_t *)r->load.slots.host)[row] = (int32_t)(i / TOKENS * CHUNK + row);
        code = workload_step_begin(&r->load);
        for (int64_t layer = 0; layer < LAYERS && code == EXIT_OK; layer++) {
            const rssm_decode_args args = workload_decode_args(&r->load, layer, 0);
            code = host_check(h, h->api->decode(h->plugin, &args, &h->error), "decode");
        }
    }
    if (code == EXIT_OK && r->g->dev->sync(r->g->dev) != 0)
        code = host_refuse(h, "the device fails");
    return code;
}

static int fill_slots(bed *r)
{
    host *h = &r->host;
    int code = host_pool(h, r->slab, NULL);
    if (code == EXIT_OK)
        code = workload_create(&r->load, h, r->g->dev, CHUNK, dtype_find(h->model.io_dtype), 1);
    return code == EXIT_OK ? decode_tokens(r) : code;
}

static int open_bed(bed *r, int32_t state)
{
    int code = init(r, state, 1);
    if (code != EXIT_OK)
        return code;
    const int count = count_sizes(r);
    r->host.api->teardown(&r->host.plugin, &r->host.error);
    if (count == 0)
        return EXIT_OK;
    code = init(r, state, 2 * CALLS * r->most);
    host *h = &r->host;
    if (code == EXIT_OK)
        code = host_check(h, h->api->prepare(h->plugin, &h->error), "prepare");
    r->slots_api = h->api->get_extension(RSSM_EXT_SLOTS);
    r->fault_api = h->api->get_extension(RSSM_EXT_FAULT);
    if (code == EXIT_OK && (r->slots_api == NULL || r->fault_api == NULL))
        code = host_refuse(h, "the plugin has no " RSSM_EXT_SLOTS " or no " RSSM_EXT_FAULT);
    if (code == EXIT_OK)
        code = allocate(r);
    return code == EXIT_OK ? fill_slots(r) : code;
}

static void close_bed(bed *r)
{
    device *dev = r->g->dev;
    dev->sync(dev);
    if (r->load.host != NULL)
        workload_free(&r->load);
    if (r->host.plugin != NULL)
        r->host.api->teardown(&r->host.plugin, &r->host.error);
    tensor_free(&r->list);
    unsigned char *const memory[] = {r->slab, r->states, r->history, r->scratch};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        dev->release(dev, memory[i]);
    free(r->cursors);
}

/* ---- all cases -------------------------------------------------------------------------------------------------- */

static int run_bed(gpu_bench *b, const gpu_shape *shape, int32_t state, slots_report *out)
{
    bed r = {.b = b, .g = &b->g, .host = b->common->base, .shape = shape};
    int code = open_bed(&r, state);
    if (code == EXIT_OK && r.most == 0)
        bench_gpu_leave_out(b, shape->name, "the device has too little memory");
    for (int size = 0; size < SIZES && code == EXIT_OK; size++)
        for (int kind = 0; kind < NUM_KINDS && code == EXIT_OK; kind++)
            if (slots_for(&r, sizes[size]) <= r.most)
                code = run_case(&r, &kinds[kind], slots_for(&r, sizes[size]), out);
    close_bed(&r);
    return code;
}

static int wanted(const bench_options *o, const gpu_shape *shape, int32_t state)
{
    if (o->family != NULL && strncmp(o->family, shape->name, strlen(o->family)) != 0)
        return 0;
    return (o->state == 0 || o->state == state) && (!o->quick || shape->main);
}

static void print_bar(const gpu_bench *b, const slots_report *report)
{
    int64_t judged = 0, below = 0;
    for (int64_t i = 0; i < report->count; i++) {
        judged += report->cases[i].bytes >= BAR_BYTES;
        below += below_bar(&report->cases[i]);
    }
    fprintf(b->text, "%" PRId64 " of %" PRId64 " slot operations of %.0f MB or more below %.2f of the large copy\n",
            below, judged, 1e-6 * BAR_BYTES, BAR);
}

int bench_slots(gpu_bench *b, slots_report *out)
{
    *out = (slots_report){.cases = calloc(NUM_SHAPES * NUM_STATES * SIZES * NUM_KINDS, sizeof *out->cases)};
    if (out->cases == NULL)
        return host_refuse(&b->common->base, "out of memory");
    fprintf(b->text,
            "%d calls a graph, %d layers, slots in order; parts of the bandwidth of a large copy, of copies of as many "
            "bytes\n",
            CALLS, LAYERS);
    fprintf(b->text, "%-46s %4s %8s %9s %13s %6s %7s %7s %6s\n", "slots", "n", "MB", "us", "(p10-p90)", "GB/s",
            "of copy", "of same", "copy");
    int code = EXIT_OK;
    for (int i = 0; i < NUM_SHAPES && code == EXIT_OK; i++)
        for (int s = 0; s < NUM_STATES && code == EXIT_OK; s++)
            if (wanted(b->common->o, &shapes[i], states[s]))
                code = run_bed(b, &shapes[i], states[s], out);
    if (code == EXIT_OK)
        print_bar(b, out);
    return code;
}

static void json_case(json *out, const slots_outcome *c)
{
    static const char *const operations[] = {"fork", "export", "import", "flush"};
    json_object(out, NULL);
    json_string(out, "name", c->name);
    json_string(out, "shape", c->shape->name);
    json_string(out, "family", bench_gpu_family(c->shape));
    json_string(out, "state", dtype_find(c->state)->name);
    bench_json_heads(out, c->shape->heads);
    json_string(out, "operation", operations[c->operation]);
    json_string(out, "order", c->order == RSSM_STATE_KV ? "KV" : "VK");
    json_string(out, "records", c->records);
    json_int(out, "layers", LAYERS);
    json_int(out, "slots", c->slots);
    json_int(out, "calls", CALLS);
    json_number(out, "bytes", c->bytes);
    bench_json_summary(out, "us", &c->us);
    bench_json_summary(out, "of_copy", &c->of_copy);
    bench_json_summary(out, "of_same_copy", &c->of_same);
    bench_json_summary(out, "copy_bytes_per_second", &c->copy);
    json_end(out);
}

void bench_slots_json(json *out, const slots_report *report)
{
    json_array(out, "slots");
    for (int64_t i = 0; i < report->count; i++)
        json_case(out, &report->cases[i]);
    json_end(out);
}
