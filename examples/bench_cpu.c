/* replayssm-bench on the CPU: how near a decode step comes to the limit that the machine's memory sets.
 *
 * One interleaved run per case, so that what disturbs one figure disturbs all: a read and a copy of big arrays, the
 * replay step with spread cursors, the read-and-write step (an instance with ring length 1), the plugin's own choice of a
 * ring length. Then all rows admitted together: the worst step of a window against the median one, without and with flush
 * spreading.
 *
 * Beside the modelled bytes (bench.h) stand those counted from the rows of the steps that ran (a flush stores no record).
 * On the CPU the floor of a replay step is its bytes at the read bandwidth, that of a read-and-write step its bytes at
 * the copy bandwidth. Layers share one set of inputs, which stay in the cache as they would, fresh from the previous
 * operator; state and rings are at least 8 times the last-level cache. */
#define _GNU_SOURCE 1
#include "bench.h"
#include "common/bandwidth.h"
#include "common/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 41, QUICK_SAMPLES = 9, WINDOWS = 7, QUICK_WINDOWS = 3, CACHES = 8 };

/* One instance with its pool in one slab of ours and one call per layer. */
typedef struct instance {
    host host;
    workload load;
    void *slab;
    int64_t slab_bytes;
    row_count count;
} instance;

typedef struct outcome {
    const char *family, *cpu_level;
    int64_t batch, layers, ring_length, auto_ring_length;
    int32_t state, io, ring_dtype, threads;
    int64_t heads[4];
    int64_t pool_bytes;
    summary read, copy; /* bytes per second */
    figure replay, read_write, automatic;
    summary automatic_over_replay; /* of the same round */
    double together, spread; /* worst step / median step of a window, all rows admitted together; 0 = not measured */
} outcome;

typedef struct cpu_bench {
    bench *common;
    bandwidth memory;
    int64_t working_set;
    int64_t samples, windows;
} cpu_bench;

/* ---- instances ------------------------------------------------------------------------------------------------ */

typedef struct instance_want {
    const family_shape *shape;
    int64_t batch, layers, ring_length;
    uint32_t flags;
} instance_want;

static int32_t level_of(const char *name)
{
    static const char *const names[] = {
        [RSSM_CPU_SCALAR] = "scalar", [RSSM_CPU_AVX2] = "avx2", [RSSM_CPU_AVX512] = "avx512", [RSSM_CPU_NEON] = "neon"};
    for (int32_t i = RSSM_CPU_SCALAR; name != NULL && i <= RSSM_CPU_NEON; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return RSSM_CPU_BEST;
}

/* init and describe alone: no pool, no threads. */
static int instance_init(const cpu_bench *b, const instance_want *want, instance *it)
{
    const bench_options *o = b->common->o;
    const int64_t *heads = o->heads.count == 4 ? o->heads.values : want->shape->heads;
    *it = (instance){.host = b->common->base};
    rssm_dims dims = {.struct_size = sizeof dims,
                      .family = want->shape->family,
                      .num_layers = (int32_t)want->layers,
                      .H = (int32_t)heads[0],
                      .HV = (int32_t)heads[1],
                      .K = (int32_t)heads[2],
                      .V = (int32_t)heads[3]};
    rssm_init_args init = {.struct_size = sizeof init,
                           .dims = &dims,
                           .device_type = (int32_t)b->common->dev.dl.device_type,
                           .device_id = b->common->dev.dl.device_id,
                           .ring_length = (int32_t)want->ring_length,
                           .io_dtype = o->io,
                           .state_dtype = o->state,
                           .ring_dtype = o->ring_dtype,
                           .max_batch = (int32_t)want->batch,
                           .num_slots = want->batch,
                           .num_threads = (int32_t)o->threads,
                           .cpu_level = level_of(o->level),
                           .flags = want->flags};
    return host_init(&it->host, &init);
}

static void instance_close(instance *it)
{
    if (it->load.host != NULL)
        workload_free(&it->load);
    if (it->host.plugin != NULL)
        it->host.api->teardown(&it->host.plugin, &it->host.error);
    big_free(it->slab, it->slab_bytes);
    *it = (instance){.slab = NULL};
}

static int instance_open(cpu_bench *b, const instance_want *want, instance *it)
{
    int code = instance_init(b, want, it);
    host *h = &it->host;
    if (code == EXIT_OK)
        code = host_check(h, h->api->prepare(h->plugin, &h->error), "prepare");
    if (code != EXIT_OK)
        return code;
    it->slab_bytes = h->layout.slab_bytes;
    it->slab = big_alloc(it->slab_bytes);
    if (it->slab == NULL)
        return host_refuse(h, "no memory for a pool of %" PRId64 " bytes", it->slab_bytes);
    code = host_pool(h, it->slab, NULL);
    if (code == EXIT_OK)
        code = workload_create(&it->load, h, &b->common->dev, want->batch, dtype_find(h->model.io_dtype), 1);
    if (code == EXIT_OK && workload_inputs(&it->load, 0, 0) != 0)
        code = host_refuse(h, "cannot copy to the device");
    int32_t *slots = it->load.slots.host;
    for (int64_t row = 0; code == EXIT_OK && row < want->batch; row++)
        slots[row] = (int32_t)row;
    return code;
}

/* ---- passes --------------------------------------------------------------------------------------------------- */

/* One forward pass over all layers. -1 on failure, already printed. */
static double pass_seconds(instance *it)
{
    host *h = &it->host;
    const int64_t layers = h->model.num_linear_layers;
    const uint32_t flags =
        it->count.steps == 0 ? 0 : RSSM_SKIP_VALIDATE; /* the first pass validates these very calls */
    double start = stats_seconds();
    if (workload_step_begin(&it->load) != EXIT_OK)
        return -1.0;
    for (int64_t layer = 0; layer < layers; layer++) {
        rssm_decode_args args = workload_decode_args(&it->load, layer, flags);
        if (host_check(h, h->api->decode(h->plugin, &args, &h->error), "decode") != EXIT_OK)
            return -1.0;
    }
    double seconds = stats_seconds() - start;
    bench_count_rows(&it->load, it->load.rows.host, it->load.batch, 0, &it->count);
    return seconds;
}

static int run_passes(instance *it, int64_t passes, double *seconds)
{
    for (int64_t i = 0; i < passes; i++) {
        double pass = pass_seconds(it);
        if (pass < 0.0)
            return EXIT_REFUSED;
        *seconds += pass;
    }
    return EXIT_OK;
}

/* Every row flushes once, each at its own step of a window: from then on the cursors stay spread evenly. */
static int spread_cursors(instance *it, int64_t ring_length)
{
    int32_t *force = it->load.force.host;
    const int64_t B = it->load.batch;
    double ignored = 0.0;
    for (int64_t step = 0; step < ring_length; step++) {
        for (int64_t row = 0; row < B; row++)
            force[row] = (B < ring_length ? row * ring_length / B : row % ring_length) == step;
        if (run_passes(it, 1, &ignored) != EXIT_OK)
            return EXIT_REFUSED;
    }
    memset(force, 0, (size_t)B * sizeof *force);
    it->count = (row_count){.steps = 1}; /* these do not count, but the calls are validated */
    return EXIT_OK;
}

/* ---- one case ------------------------------------------------------------------------------------------------- */

/* A pass where rows divide evenly over the window, else a whole window: a sample holds its share of flushes. */
static int64_t passes_per_sample(int64_t batch, int64_t ring_length)
{
    return batch % ring_length == 0 ? 1 : ring_length;
}

/* One kind of step in the interleaved run: its samples, beside the bandwidth found next to each. */
typedef struct series {
    instance *it;
    int64_t passes, bytes; /* of a sample; of a layer */
    double us[SAMPLES], floor_us[SAMPLES], ratio[SAMPLES];
} series;

static int series_begin(series *s, instance *it)
{
    const int64_t L = it->host.model.ring_length, batch = it->load.batch;
    s->it = it;
    s->passes = passes_per_sample(batch, L);
    s->bytes = bench_layer_bytes(&it->load, batch);
    return spread_cursors(it, L);
}

/* A replay step mostly reads: its floor is that of reading. */
static int sample(series *s, double read, double copy, int64_t i)
{
    double seconds = 0.0;
    if (run_passes(s->it, s->passes, &seconds) != EXIT_OK)
        return EXIT_REFUSED;
    s->us[i] = 1e6 * seconds / (double)(s->passes * s->it->host.model.num_linear_layers);
    s->floor_us[i] = 1e6 * (double)s->bytes / (s->it->host.model.ring_length == 1 ? copy : read);
    s->ratio[i] = s->us[i] / s->floor_us[i];
    return EXIT_OK;
}

static void conclude(series *s, int64_t samples, figure *f)
{
    const instance *it = s->it;
    f->bytes = s->bytes;
    f->steps = it->count.steps - 1;
    f->flushes = it->count.flushes;
    f->counted_bytes = (double)it->count.bytes / (double)f->steps;
    f->us = stats_summary(s->us, samples);
    f->floor_us = stats_summary(s->floor_us, samples);
    f->ratio = stats_summary(s->ratio, samples);
}

enum { REPLAY, READ_WRITE, AUTOMATIC, KINDS };

/* The times as they were drawn: summaries sort them. automatic is one of the three. */
static void conclude_all(series all[KINDS], const series *automatic, int64_t samples, outcome *out)
{
    const double *plain = all[READ_WRITE].us;
    out->replay.over_read_write = bench_paired(all[REPLAY].us, plain, samples);
    out->read_write.over_read_write = bench_paired(plain, plain, samples);
    out->automatic.over_read_write = bench_paired(automatic->us, plain, samples);
    out->automatic_over_replay = bench_paired(automatic->us, all[REPLAY].us, samples);
    conclude(&all[REPLAY], samples, &out->replay);
    conclude(&all[READ_WRITE], samples, &out->read_write);
    if (automatic == &all[AUTOMATIC])
        conclude(&all[AUTOMATIC], samples, &out->automatic);
    else
        out->automatic = automatic == &all[REPLAY] ? out->replay : out->read_write;
}

/* The interleaved part: everything once per round. its[AUTOMATIC] is NULL where it is one of the other two. */
static int measure(cpu_bench *b, instance *its[KINDS], outcome *out)
{
    double read[SAMPLES], copy[SAMPLES];
    series *all = calloc(KINDS, sizeof *all);
    int code = all == NULL ? host_refuse(&b->common->base, "no memory") : EXIT_OK;
    for (int k = 0; k < KINDS && code == EXIT_OK; k++)
        code = its[k] != NULL ? series_begin(&all[k], its[k]) : EXIT_OK;
    for (int64_t i = -1; i < b->samples && code == EXIT_OK; i++) {
        const int64_t at = i < 0 ? 0 : i; /* a round to warm up */
        read[at] = bandwidth_read(&b->memory);
        copy[at] = bandwidth_copy(&b->memory);
        for (int k = 0; i >= 0 && k < KINDS && code == EXIT_OK; k++)
            code = its[k] != NULL ? sample(&all[k], read[at], copy[at], at) : EXIT_OK;
    }
    if (code == EXIT_OK) {
        const int automatic = its[AUTOMATIC] != NULL ? AUTOMATIC : out->auto_ring_length == 1 ? READ_WRITE : REPLAY;
        conclude_all(all, &all[automatic], b->samples, out);
        out->read = stats_summary(read, b->samples);
        out->copy = stats_summary(copy, b->samples);
    }
    free(all);
    return code;
}

/* All rows start together. Worst over median of a window's steps, each the median over some windows; the first window
 * after a reset does not count (a spread instance sets its phases in it). */
static int worst_over_median(cpu_bench *b, instance *it, double *ratio)
{
    const int64_t L = it->host.model.ring_length;
    double steps[64], windows[64][WINDOWS], ignored = 0.0;
    int code = host_reset(&it->host, NULL);
    if (code == EXIT_OK)
        code = run_passes(it, 2 * L, &ignored);
    for (int64_t window = 0; window < b->windows; window++)
        for (int64_t step = 0; step < L && code == EXIT_OK; step++) {
            windows[step][window] = 0.0;
            code = run_passes(it, 1, &windows[step][window]);
        }
    if (code != EXIT_OK)
        return code;
    double worst = 0.0;
    for (int64_t step = 0; step < L; step++) {
        steps[step] = stats_summary(windows[step], b->windows).median;
        worst = steps[step] > worst ? steps[step] : worst;
    }
    *ratio = worst / stats_summary(steps, L).median;
    return EXIT_OK;
}

/* Layers enough that the pool is CACHES times the last-level cache, and what the plugin would choose by itself. */
static int size_case(cpu_bench *b, const family_shape *shape, int64_t batch, int64_t ring, outcome *out)
{
    instance probe;
    instance_want want = {shape, batch, 1, ring, 0};
    int code = instance_init(b, &want, &probe);
    if (code == EXIT_OK) {
        const int64_t layer = batch * probe.host.layout.slot_state_bytes;
        out->layers = (b->working_set + layer - 1) / layer;
        out->ring_length = probe.host.model.ring_length;
        if (out->layers > 65536)
            out->layers = 65536;
    }
    instance_close(&probe);
    want.ring_length = 0;
    if (code == EXIT_OK && (code = instance_init(b, &want, &probe)) == EXIT_OK)
        out->auto_ring_length = probe.host.model.ring_length;
    instance_close(&probe);
    return code;
}

static void describe_case(const instance *it, const family_shape *shape, int64_t batch, outcome *out)
{
    const rssm_description *m = &it->host.model;
    out->family = shape->name;
    out->batch = batch;
    out->state = m->state_dtype;
    out->io = m->io_dtype;
    out->ring_dtype = m->ring_dtype;
    out->threads = m->num_threads;
    out->pool_bytes = it->host.layout.pool_bytes;
    out->heads[0] = m->H;
    out->heads[1] = m->HV;
    out->heads[2] = m->K;
    out->heads[3] = m->V;
}

static const char *lasting_level(const char *name) /* of the instance, but outlives it */
{
    static const char *const levels[] = {"scalar", "avx2", "avx512", "neon", "reference"};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(name, levels[i]) == 0)
            return levels[i];
    return "?";
}

/* Replay, read-and-write and the automatic choice side by side. */
static int steady_part(cpu_bench *b, const instance_want *want, instance *replay, outcome *out)
{
    instance read_write = {.slab = NULL}, automatic = {.slab = NULL};
    instance_want other = *want;
    instance *its[KINDS] = {replay, &read_write, NULL};
    other.ring_length = 1;
    int code = instance_open(b, &other, &read_write);
    if (code == EXIT_OK && out->auto_ring_length != 1 && out->auto_ring_length != want->ring_length) {
        other.ring_length = 0;
        its[AUTOMATIC] = &automatic;
        code = instance_open(b, &other, &automatic);
    }
    if (code == EXIT_OK)
        code = measure(b, its, out);
    instance_close(&automatic);
    instance_close(&read_write);
    return code;
}

static int together_part(cpu_bench *b, const instance_want *want, outcome *out)
{
    instance it = {.slab = NULL};
    instance_want spread = *want;
    spread.flags = RSSM_INIT_SPREAD_FLUSH;
    int code = instance_open(b, &spread, &it);
    if (code == EXIT_OK)
        code = worst_over_median(b, &it, &out->spread);
    instance_close(&it);
    return code;
}

static int run_case(cpu_bench *b, const family_shape *shape, int64_t batch, int64_t ring, outcome *out)
{
    *out = (outcome){.batch = batch};
    int code = size_case(b, shape, batch, ring, out);
    if (code != EXIT_OK)
        return code;
    instance_want want = {shape, batch, out->layers, out->ring_length, 0};
    instance it = {.slab = NULL};
    code = instance_open(b, &want, &it);
    if (code == EXIT_OK) {
        describe_case(&it, shape, batch, out);
        out->cpu_level = lasting_level(it.host.model.cpu_level);
        code = steady_part(b, &want, &it, out);
    }
    if (code == EXIT_OK && !b->common->o->steady)
        code = worst_over_median(b, &it, &out->together);
    instance_close(&it);
    if (code == EXIT_OK && !b->common->o->steady)
        code = together_part(b, &want, out);
    return code;
}

/* ---- reporting ------------------------------------------------------------------------------------------------ */

static void print_head(const cpu_bench *b)
{
    printf("working set %" PRId64 " MiB (%d x last-level cache), %" PRId64 " samples; us per layer: median (p10-p90)\n",
           b->working_set >> 20, CACHES, b->samples);
    printf("read: %s; copy: %s\n", bandwidth_read_loop(&b->memory), bandwidth_copy_loop(&b->memory));
    printf("%-7s %-8s %-8s %-7s %5s %3s %6s | %-25s %8s %6s %6s %10s %8s | %-25s %6s %6s %10s | %7s | %4s %-25s | %8s "
           "%6s | "
           "%s\n",
           "family", "state", "io", "kernel", "batch", "L", "layers", "replay", "floor", "ratio", "% read", "bytes",
           "flushes", "read-write", "ratio", "% copy", "bytes", "speedup", "auto", "automatic choice", "together",
           "spread", "GB/s read, copy");
}

static void print_us(const summary *us)
{
    char text[64];
    snprintf(text, sizeof text, "%.1f (%.1f-%.1f)", us->median, us->p10, us->p90);
    printf("%-25s ", text);
}

static void print_case(const outcome *c)
{
    printf("%-7s %-8s %-8s %-7s %5" PRId64 " %3" PRId64 " %6" PRId64 " | ", c->family, dtype_find(c->state)->name,
           dtype_find(c->io)->name, c->cpu_level, c->batch, c->ring_length, c->layers);
    print_us(&c->replay.us);
    printf("%8.1f %6.2f %6.1f %10" PRId64 " %8" PRId64 " | ", c->replay.floor_us.median, c->replay.ratio.median,
           100.0 / c->replay.ratio.median, c->replay.bytes, c->replay.flushes);
    print_us(&c->read_write.us);
    printf("%6.2f %6.1f %10" PRId64 " | %7.2f | %4" PRId64 " ", c->read_write.ratio.median,
           100.0 / c->read_write.ratio.median, c->read_write.bytes, 1.0 / c->replay.over_read_write.median,
           c->auto_ring_length);
    print_us(&c->automatic.us);
    printf("| %8.2f %6.2f | %.1f, %.1f\n", c->together, c->spread, 1e-9 * c->read.median, 1e-9 * c->copy.median);
    fflush(stdout);
}

static void json_case(json *out, const outcome *c)
{
    json_object(out, NULL);
    json_string(out, "family", c->family);
    json_string(out, "state", dtype_find(c->state)->name);
    json_string(out, "io", dtype_find(c->io)->name);
    json_string(out, "ring", dtype_find(c->ring_dtype)->name);
    bench_json_heads(out, c->heads);
    json_int(out, "batch", c->batch);
    json_int(out, "ring_length", c->ring_length);
    json_int(out, "auto_ring_length", c->auto_ring_length);
    json_int(out, "layers", c->layers);
    json_int(out, "pool_bytes", c->pool_bytes);
    json_string(out, "kernel", c->cpu_level);
    json_int(out, "threads", c->threads);
    bench_json_summary(out, "read_bytes_per_second", &c->read);
    bench_json_summary(out, "copy_bytes_per_second", &c->copy);
    bench_json_figure(out, "replay", &c->replay, "percent_of_read");
    json_end(out);
    bench_json_figure(out, "read_write", &c->read_write, "percent_of_copy");
    json_end(out);
    bench_json_figure(out, "automatic", &c->automatic,
                      c->auto_ring_length == 1 ? "percent_of_copy" : "percent_of_read");
    json_end(out);
    bench_json_summary(out, "automatic_over_replay", &c->automatic_over_replay);
    json_number(out, "speedup", 1.0 / c->replay.over_read_write.median);
    if (c->together > 0.0) {
        json_number(out, "worst_over_median_together", c->together);
        json_number(out, "worst_over_median_spread", c->spread);
    }
    json_end(out);
}

/* ---- all cases ------------------------------------------------------------------------------------------------ */

enum { MAX_CASES = NUM_FAMILIES * OPTION_LIST_MAX * OPTION_LIST_MAX };

static void json_all(const cpu_bench *b, const outcome *cases, int count)
{
    rssm_info info = {.struct_size = sizeof info};
    json out = json_to(stdout);
    b->common->base.api->plugin_info(&info, NULL);
    json_object(&out, NULL);
    json_string(&out, "version", info.version);
    json_string(&out, "git_revision", info.git_revision);
    json_string(&out, "device", b->common->o->device);
    json_int(&out, "last_level_cache_bytes", last_level_cache_bytes());
    json_int(&out, "working_set_bytes", b->working_set);
    json_int(&out, "samples", b->samples);
    json_string(&out, "read_loop", bandwidth_read_loop(&b->memory));
    json_string(&out, "copy_loop", bandwidth_copy_loop(&b->memory));
    json_array(&out, "cases");
    for (int i = 0; i < count; i++)
        json_case(&out, &cases[i]);
    json_end(&out);
    json_end(&out);
}

static int run_family(cpu_bench *b, const family_shape *shape, outcome *cases, int *count)
{
    const option_list *batch = &b->common->o->batch, *ring = &b->common->o->ring;
    for (int64_t i = 0; i < batch->count * ring->count; i++) {
        outcome *out = &cases[*count];
        int code = run_case(b, shape, batch->values[i / ring->count], ring->values[i % ring->count], out);
        if (code != EXIT_OK)
            return code;
        if (!b->common->o->json)
            print_case(out);
        ++*count;
    }
    return EXIT_OK;
}

static int run_cases(cpu_bench *b, outcome *cases)
{
    int count = 0, code = EXIT_OK;
    if (!b->common->o->json)
        print_head(b);
    for (int f = 0; f < NUM_FAMILIES && code == EXIT_OK; f++)
        if (b->common->o->family == NULL || strcmp(b->common->o->family, bench_families[f].name) == 0)
            code = run_family(b, &bench_families[f], cases, &count);
    if (code == EXIT_OK && b->common->o->json)
        json_all(b, cases, count);
    return code;
}

static int measure_all(cpu_bench *b)
{
    int64_t threads = b->common->o->threads > 0 ? b->common->o->threads : parallel_cpus();
    outcome *cases = calloc(MAX_CASES, sizeof *cases);
    int code;
    if (cases == NULL || bandwidth_create(&b->memory, b->working_set, (int)threads) != 0)
        code = host_refuse(&b->common->base, "no memory for arrays of %" PRId64 " bytes", b->working_set);
    else
        code = run_cases(b, cases);
    bandwidth_free(&b->memory);
    free(cases);
    return code;
}

int bench_cpu(bench *common)
{
    const int32_t quick = common->o->quick;
    cpu_bench b = {.common = common,
                   .working_set = CACHES * last_level_cache_bytes(),
                   .samples = quick ? QUICK_SAMPLES : SAMPLES,
                   .windows = quick ? QUICK_WINDOWS : WINDOWS};
    int code = device_open(&common->dev, common->o->device, &common->base);
    return code == EXIT_OK ? measure_all(&b) : code;
}
