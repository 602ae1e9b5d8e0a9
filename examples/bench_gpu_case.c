/* One case of replayssm-bench on a GPU: how near a decode step comes to the limit that the device's memory sets.
 *
 * One interleaved run per case: each round takes a copy and a read of big arrays, then one launch each of graphs of the
 * replay step and of the read-and-write step (an instance with ring length 1); bench_run.h says what is in a graph. The
 * floor of a step is its modelled bytes (bench.h) at the copy bandwidth of the same round, every ratio is formed within
 * its round, and what is printed is the median over the rounds. `step_begin` belongs to a pass over all layers: it is
 * timed apart, and in a graph of whole passes.
 *
 * Then all rows admitted together (worst step of a window / median step, without and with flush spreading), and what the
 * host pays: validate and decode beside the launch of an empty kernel. */
#include "bench_gpu.h"

#include <inttypes.h>
#include <string.h>

enum { SAMPLES = BENCH_GPU_ROUNDS, WINDOWS = 7, HOST_SAMPLES = 21, HOST_CALLS = 16 };

/* The graph of a case touches at least L2_LEAST times the L2 cache; more, up to L2_FILL times and FILL_NODES kernels, so
 * that it runs for a while; and at least a few kernels. */
enum { L2_LEAST = 4, L2_FILL = 40, FILL_NODES = 512, LEAST_NODES = 4 };

/* A plain step, and windows of speculative decoding. The goals: docs/performance.md. */
static const struct {
    int64_t tokens;
    double goal32, goal16; /* times the floor, plus GOAL_US, by the size of the state's elements */
} kinds[] = {{1, 1.04, 1.10}, {2, 1.10, 1.30}, {4, 1.10, 1.30}, {8, 1.25, 1.70}};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };
#define GOAL_US 5.0

static int kind_of(int64_t tokens)
{
    for (int kind = 0; kind < NUM_KINDS; kind++)
        if (kinds[kind].tokens == tokens)
            return kind;
    return -1;
}

int bench_gpu_tokens(int64_t tokens)
{
    return kind_of(tokens) >= 0;
}

static double goal_of(const gpu_case *c, double floor_us)
{
    const int kind = kind_of(c->tokens);
    const double factor = c->state == RSSM_DTYPE_FLOAT32 ? kinds[kind].goal32 : kinds[kind].goal16;
    return factor * floor_us + GOAL_US;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------ */

static run_want want_of(const gpu_bench *b, const gpu_case *c)
{
    const bench_options *o = b->common->o;
    run_want want = {.family = c->shape->family,
                     .state = c->state,
                     .io = o->io,
                     .ring_dtype = o->ring_dtype,
                     .batch = c->batch,
                     .ring_length = c->ring_length,
                     .tokens = c->tokens,
                     .layers = 1,
                     .passes = 1,
                     .flags = o->keep_records ? RSSM_INIT_NO_SMALL_FLUSH : 0};
    memcpy(want.heads, c->shape->heads, sizeof want.heads);
    return want;
}

/* The bytes of the pool for one row and layer, and what the plugin would choose as ring length: init alone. */
static int probe(gpu_bench *b, const run_want *want, int64_t *row_bytes, int64_t *auto_ring_length)
{
    host h = b->common->base;
    rssm_dims dims = {.struct_size = sizeof dims,
                      .family = want->family,
                      .num_layers = 1,
                      .H = (int32_t)want->heads[0],
                      .HV = (int32_t)want->heads[1],
                      .K = (int32_t)want->heads[2],
                      .V = (int32_t)want->heads[3]};
    rssm_init_args init = {.struct_size = sizeof init,
                           .dims = &dims,
                           .device_type = kDLCUDA,
                           .io_dtype = want->io,
                           .state_dtype = want->state,
                           .ring_dtype = want->ring_dtype,
                           .num_slots = 1};
    int code = host_init(&h, &init);
    *auto_ring_length = h.model.ring_length;
    if (h.plugin != NULL)
        h.api->teardown(&h.plugin, &h.error);
    init.ring_length = (int32_t)want->ring_length;
    init.max_draft_tokens = (int32_t)want->tokens - 1;
    if (code == EXIT_OK)
        code = host_init(&h, &init);
    *row_bytes = h.layout.slot_total_bytes;
    if (h.plugin != NULL)
        h.api->teardown(&h.plugin, &h.error);
    return code;
}

static int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Kernels of a graph for nodes of so many bytes. */
static int64_t nodes_for(const gpu_bench *b, int64_t node_bytes)
{
    const int64_t least = (L2_LEAST * b->g.l2_bytes + node_bytes - 1) / node_bytes;
    const int64_t fill = (L2_FILL * b->g.l2_bytes + node_bytes - 1) / node_bytes;
    return at_least(at_least(least, fill < FILL_NODES ? fill : FILL_NODES), LEAST_NODES);
}

/* Passes and layers of a case. *fits = 0: the device has not enough memory for it and its read-and-write step. */
static int size_case(gpu_bench *b, run_want *want, gpu_outcome *out, int *fits)
{
    int64_t row_bytes = 1;
    int code = probe(b, want, &row_bytes, &out->auto_ring_length);
    if (code != EXIT_OK)
        return code;
    want->passes = run_passes(want->batch, want->ring_length, want->tokens);
    const int64_t node_bytes = want->batch * row_bytes, nodes = nodes_for(b, node_bytes);
    want->layers = (nodes + want->passes - 1) / want->passes;
    *fits = 2.2 * (double)(want->layers * want->passes * node_bytes) < (double)gpu_free_bytes(&b->g);
    return EXIT_OK;
}

/* ---- one case --------------------------------------------------------------------------------------------------- */

/* The rounds of one case. */
typedef struct rounds {
    double copy[SAMPLES], read[SAMPLES];
    double us[SAMPLES], plain_us[SAMPLES], whole_us[SAMPLES], begin_us[SAMPLES], end_us[SAMPLES];
} rounds;

static double per_layer_us(const run *r, double seconds)
{
    return 1e6 * seconds / (double)(r->want.passes * r->want.layers);
}

static double per_pass_us(const run *r, double seconds)
{
    return 1e6 * seconds / (double)r->want.passes;
}

static int one_round(gpu_bench *b, run *step, run *plain, rounds *all, int64_t i)
{
    run_times times = {.begin = 0.0}, plain_times = {.begin = 0.0};
    double whole = 0.0;
    int code = gpu_copy_bandwidth(&b->g, &all->copy[i]);
    if (code == EXIT_OK)
        code = gpu_read_bandwidth(&b->g, &all->read[i]);
    if (code == EXIT_OK)
        code = run_sample(step, &times);
    if (code == EXIT_OK)
        code = run_sample(plain, &plain_times);
    if (code == EXIT_OK)
        code = run_whole(step, &whole);
    all->us[i] = per_layer_us(step, times.steps);
    all->plain_us[i] = per_layer_us(plain, plain_times.steps);
    all->whole_us[i] = per_layer_us(step, whole);
    all->begin_us[i] = per_pass_us(step, times.begin);
    all->end_us[i] = per_pass_us(step, times.end);
    return code;
}

/* Sorts a copy: the samples stay in the order of the rounds. */
static summary summarise(const double *samples)
{
    double copy[SAMPLES];
    memcpy(copy, samples, sizeof copy);
    return stats_summary(copy, SAMPLES);
}

static void conclude(const run *r, const rounds *all, const double *us, figure *f)
{
    double floor_us[SAMPLES], ratio[SAMPLES];
    f->bytes = run_layer_bytes(r);
    for (int i = 0; i < SAMPLES; i++) {
        floor_us[i] = 1e6 * (double)f->bytes / all->copy[i];
        ratio[i] = us[i] / floor_us[i];
    }
    f->us = summarise(us);
    f->floor_us = summarise(floor_us);
    f->ratio = summarise(ratio);
    f->over_read_write = bench_paired(us, all->plain_us, SAMPLES);
    f->steps = r->count.steps;
    f->flushes = r->count.flushes;
    f->counted_bytes = (double)r->count.bytes / (double)r->count.steps;
}

/* The share of flushes that spread cursors must have; a small batch flushes every row. */
static int check_flushes(const run *r)
{
    const int all = r->want.tokens == 1 && r->want.batch <= r->host.model.small_batch;
    const int64_t rows = r->count.steps * r->want.batch, period = all ? 1 : r->host.model.ring_length / r->want.tokens;
    if (r->count.flushes * period == rows)
        return EXIT_OK;
    return host_refuse(&r->host,
                       "%" PRId64 " flushes in %" PRId64 " rows of steps with L = %d: the cursors are not spread",
                       r->count.flushes, rows, (int)r->host.model.ring_length);
}

static int measure(gpu_bench *b, run *step, run *plain, gpu_outcome *out)
{
    rounds all;
    int code = one_round(b, step, plain, &all, 0); /* to warm up */
    step->count = plain->count = (row_count){.steps = 0};
    for (int64_t i = 0; i < SAMPLES && code == EXIT_OK; i++)
        code = one_round(b, step, plain, &all, i);
    if (code == EXIT_OK)
        code = check_flushes(step);
    if (code == EXIT_OK)
        code = check_flushes(plain);
    if (code != EXIT_OK)
        return code;
    conclude(step, &all, all.us, &out->step);
    conclude(plain, &all, all.plain_us, &out->read_write);
    out->copy = summarise(all.copy);
    out->read = summarise(all.read);
    out->whole_us = summarise(all.whole_us);
    out->begin_us = summarise(all.begin_us);
    out->end_us = summarise(all.end_us);
    out->goal_us = goal_of(&out->what, out->step.floor_us.median);
    return EXIT_OK;
}

static int describe(gpu_bench *b, const run *step, const run *plain, gpu_outcome *out)
{
    gpu_kernels kernels, plain_kernels;
    int code = gpu_graph_kernels(&b->g, &step->steps, &kernels);
    if (code == EXIT_OK)
        code = gpu_graph_kernels(&b->g, &plain->steps, &plain_kernels);
    if (code != EXIT_OK)
        return code;
    const rssm_description *m = &step->host.model;
    memcpy(out->kernel, kernels.first, sizeof out->kernel);
    memcpy(out->read_write_kernel, plain_kernels.first, sizeof out->read_write_kernel);
    out->launches = (double)kernels.count / (double)(step->want.layers * step->want.passes);
    out->state = m->state_dtype;
    out->io = m->io_dtype;
    out->ring_dtype = m->ring_dtype;
    out->layers = step->want.layers;
    out->passes = step->want.passes;
    out->pool_bytes = step->host.layout.pool_bytes;
    return EXIT_OK;
}

/* ---- host cost -------------------------------------------------------------------------------------------------- */

typedef enum host_call { CALL_VALIDATE, CALL_DECODE, CALL_DECODE_SKIP, CALL_EMPTY, HOST_CALLS_KINDS } host_call;

static int call_once(gpu_bench *b, run *r, host_call kind, const rssm_decode_args *args)
{
    host *h = &r->host;
    switch (kind) {
    case CALL_VALIDATE:
        return h->api->validate(h->plugin, args, &h->error);
    case CALL_EMPTY:
        return gpu_launch_empty(&b->g);
    default:
        return h->api->decode(h->plugin, args, &h->error);
    }
}

/* A few calls on an idle stream. */
static int time_calls(gpu_bench *b, run *r, host_call kind, double *ns)
{
    const rssm_decode_args args = run_first_call(r, kind == CALL_DECODE_SKIP ? RSSM_SKIP_VALIDATE : 0);
    int failed = 0, code = gpu_sync(&b->g);
    const double start = stats_seconds();
    for (int call = 0; call < HOST_CALLS; call++)
        failed |= call_once(b, r, kind, &args);
    *ns = 1e9 * (stats_seconds() - start) / HOST_CALLS;
    if (code == EXIT_OK && failed)
        code = host_refuse(&r->host, "a call failed while its time was taken");
    return code;
}

/* The kinds in turn, over and over: a processor's pace changes from one moment to the next. */
static int measure_host(gpu_bench *b, run *r, host_cost *out)
{
    double ns[HOST_CALLS_KINDS][HOST_SAMPLES], over_empty[HOST_SAMPLES];
    int code = EXIT_OK;
    for (int i = -1; i < HOST_SAMPLES && code == EXIT_OK; i++) {
        const int at = i < 0 ? 0 : i;
        for (int kind = 0; kind < HOST_CALLS_KINDS && code == EXIT_OK; kind++)
            code = time_calls(b, r, (host_call)kind, &ns[kind][at]);
        over_empty[at] = ns[CALL_DECODE][at] - ns[CALL_EMPTY][at];
    }
    if (code != EXIT_OK)
        return code;
    out->validate = stats_summary(ns[CALL_VALIDATE], HOST_SAMPLES);
    out->decode = stats_summary(ns[CALL_DECODE], HOST_SAMPLES);
    out->decode_skip = stats_summary(ns[CALL_DECODE_SKIP], HOST_SAMPLES);
    out->empty = stats_summary(ns[CALL_EMPTY], HOST_SAMPLES);
    out->over_empty = stats_summary(over_empty, HOST_SAMPLES);
    return gpu_sync(&b->g);
}

/* ---- all rows together ------------------------------------------------------------------------------------------ */

/* Worst over median of a window's steps, each the median over some windows; the first window after a reset does not
 * count (a spread instance sets its phases in it). */
static int worst_over_median(run *r, double *ratio)
{
    const int64_t L = r->host.model.ring_length;
    double steps[RUN_MAX_RING], windows[RUN_MAX_RING][WINDOWS], window[RUN_MAX_RING] = {0.0};
    int code = run_window(r, window);
    if (code == EXIT_OK)
        code = run_window(r, window);
    for (int64_t i = 0; i < WINDOWS && code == EXIT_OK; i++) {
        code = run_window(r, window);
        for (int64_t step = 0; step < L; step++)
            windows[step][i] = window[step];
    }
    if (code != EXIT_OK)
        return code;
    double worst = 0.0;
    for (int64_t step = 0; step < L; step++) {
        steps[step] = stats_summary(windows[step], WINDOWS).median;
        worst = steps[step] > worst ? steps[step] : worst;
    }
    *ratio = worst / stats_summary(steps, L).median;
    return EXIT_OK;
}

static int together(gpu_bench *b, const run_want *like, uint32_t flags, double *ratio)
{
    run r;
    run_want want = *like;
    int missing;
    want.layers *= want.passes;
    want.passes = 1;
    want.windows = 1;
    want.flags |= flags;
    int code = run_open(&r, &b->g, &b->common->base, &want, &missing);
    if (code == EXIT_OK)
        code = worst_over_median(&r, ratio);
    run_close(&r);
    return code;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Side by side with the read-and-write step of the same rows. */
static int run_both(gpu_bench *b, const run_want *want, gpu_outcome *out, int *missing)
{
    run step = {.g = NULL}, plain = {.g = NULL};
    run_want other = *want;
    int never;
    other.ring_length = other.tokens = 1;
    int code = run_open(&step, &b->g, &b->common->base, want, missing);
    if (code == EXIT_OK)
        code = run_open(&plain, &b->g, &b->common->base, &other, &never);
    if (code == EXIT_OK)
        code = describe(b, &step, &plain, out);
    if (code == EXIT_OK)
        code = measure(b, &step, &plain, out);
    if (code == EXIT_OK && out->what.host_cost)
        code = measure_host(b, &step, &out->host);
    run_close(&plain);
    run_close(&step);
    return code;
}

/* The first case with few rows after one with many comes out up to 0.3 us a kernel slower than the same case right after
 * it: both steps, and step_begin with them. So such a case runs once for nothing. */
enum { WARM_BATCH = 4 };

static int run_warm(gpu_bench *b, const run_want *want, gpu_outcome *out, int *missing)
{
    int code = EXIT_OK;
    *missing = 0;
    if (want->batch <= WARM_BATCH)
        code = run_both(b, want, out, missing);
    return code == EXIT_OK ? run_both(b, want, out, missing) : code;
}

int bench_gpu_case(gpu_bench *b, gpu_outcome *out, fate *how)
{
    run_want want = want_of(b, &out->what);
    int fits = 0, missing = 0;
    int code = size_case(b, &want, out, &fits);
    *how = fits ? FATE_DONE : FATE_NO_ROOM;
    if (code != EXIT_OK || !fits)
        return code;
    code = run_warm(b, &want, out, &missing);
    if (missing) {
        *how = FATE_MISSING;
        return EXIT_OK;
    }
    if (code == EXIT_OK && out->what.together)
        code = together(b, &want, 0, &out->together);
    if (code == EXIT_OK && out->what.together)
        code = together(b, &want, RSSM_INIT_SPREAD_FLUSH, &out->spread);
    return code;
}
