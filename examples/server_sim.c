#include "server_sim/sim.h"

#include "common/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the default config is: in the source tree, if that is the current folder, else where it is installed (SIM_CONFIGS). */
#define SIM_DEFAULT_CONFIG "/qwen3.5-35b-a3b.json"

enum { SAMPLES = 1 << 20, SPARE_SLOTS = 2 /* a pool has batch + batch / SPARE_SLOTS slots */ };

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int open_instance(sim *s)
{
    const sim_options *o = s->o;
    rssm_init_args init = o->init;
    init.struct_size = sizeof init;
    init.config_path = o->config;
    if (o->config == NULL)
        init.config_path = access("configs" SIM_DEFAULT_CONFIG, R_OK) == 0 ? "configs" SIM_DEFAULT_CONFIG
                                                                           : SIM_CONFIGS SIM_DEFAULT_CONFIG;
    init.device_type = (int32_t)s->dev.dl.device_type;
    init.device_id = s->dev.dl.device_id;
    init.tp_size = (int32_t)o->tp;
    init.layer_end = (int32_t)o->layers;
    init.ring_length = (int32_t)o->ring;
    init.max_draft_tokens = (int32_t)o->drafts;
    init.max_batch = (int32_t)(o->batch * (o->drafts + 1));
    init.num_slots = o->slots > 0 ? o->slots : o->batch + o->batch / SPARE_SLOTS;
    init.num_threads = (int32_t)o->threads;
    init.flags = o->no_conv ? 0 : RSSM_INIT_CONV_STATE;
    int code = host_init(&s->host, &init);
    return code == EXIT_OK ? host_ready(&s->host) : code;
}

static int find_extensions(sim *s)
{
    const rssm_api *api = s->host.api;
    s->slots = api->get_extension(RSSM_EXT_SLOTS);
    s->verify = s->o->drafts > 0 ? api->get_extension(RSSM_EXT_VERIFY) : NULL;
    s->conv = s->o->no_conv ? NULL : api->get_extension(RSSM_EXT_CONV);
    if (s->slots == NULL || (s->o->drafts > 0 && s->verify == NULL) || (!s->o->no_conv && s->conv == NULL))
        return host_refuse(&s->host, "the plugin lacks an extension that this needs");
    if (s->host.model.family != RSSM_FAMILY_MAMBA2 && !s->host.model.qk_norm)
        return host_refuse(&s->host, "random tokens without a q/k norm would not stay finite");
    return EXIT_OK;
}

static int create_states(sim *s)
{
    const rssm_description *m = &s->host.model;
    const DLDataType f32 = dtype_find(RSSM_DTYPE_FLOAT32)->dl;
    const int64_t one = 1, state[4] = {1, m->HV, m->V, m->K}, columns[3] = {1, s->channels, m->conv_kernel - 1};
    const size_t layers = (size_t)s->layers;
    s->end = calloc(layers, sizeof *s->end);
    const DLTensor ***arrays[] = {&s->starts, &s->start_convs, &s->ends, &s->decays};
    int failed = s->end == NULL || tensor_create(&s->src, &s->dev, tensor_int32(), 1, &one) != 0 ||
                 tensor_create(&s->dst, &s->dev, tensor_int32(), 1, &one) != 0 ||
                 tensor_create(&s->start, &s->dev, f32, 4, state) != 0 ||
                 (s->conv != NULL && tensor_create(&s->start_conv, &s->dev, f32, 3, columns) != 0);
    for (int i = 0; i < 4 && !failed; i++) {
        *arrays[i] = calloc(layers, sizeof **arrays[i]);
        failed = *arrays[i] == NULL;
    }
    for (int64_t layer = 0; layer < s->layers && !failed; layer++) {
        failed = tensor_create(&s->end[layer], &s->dev, f32, 4, state) != 0;
        s->starts[layer] = &s->start.dl;
        s->start_convs[layer] = &s->start_conv.dl;
        s->ends[layer] = &s->end[layer].dl;
        s->decays[layer] = &s->load.weights[layer * WEIGHT_COUNT + WEIGHT_A_LOG].dl;
    }
    return failed ? host_refuse(&s->host, "no memory for states") : EXIT_OK;
}

static int create_rest(sim *s)
{
    const rssm_description *m = &s->host.model;
    oracle_init(&s->oracle, m);
    s->scratch = oracle_scratch_create(&s->oracle, 1);
    s->running = calloc((size_t)s->host.layout.num_slots, sizeof(request *));
    s->most_samples = SAMPLES;
    s->samples = calloc(SAMPLES, sizeof *s->samples);
    s->random = rng_stream((uint64_t)s->o->seed, 0x5E4E4, 0);
    if (s->scratch == NULL || s->running == NULL || s->samples == NULL)
        return host_refuse(&s->host, "out of memory");
    return create_states(s);
}

static int set_up(sim *s)
{
    int code = host_load(&s->host, s->o->plugin);
    if (code == EXIT_OK)
        code = device_open(&s->dev, s->o->device, &s->host);
    if (code == EXIT_OK)
        code = open_instance(s);
    if (code == EXIT_OK)
        code = find_extensions(s);
    if (code != EXIT_OK)
        return code;
    const rssm_description *m = &s->host.model;
    s->layers = m->num_linear_layers;
    s->channels = 2 * (int64_t)m->H * m->K + (int64_t)m->HV * m->V;
    s->gates = m->family == RSSM_FAMILY_KDA ? (int64_t)m->HV * m->K : m->HV;
    s->window = s->o->drafts + 1;
    if (!device_is_host(&s->dev))
        code = sim_graphs_open(s);
    if (code == EXIT_OK)
        code = sim_pass_create(s);
    return code == EXIT_OK ? create_rest(s) : code;
}

static void tear_down(sim *s)
{
    if (s->load.host != NULL) /* nothing was enqueued before */
        s->dev.sync(&s->dev);
    sim_graphs_close(s);
    sim_free_requests(s);
    for (int64_t layer = 0; s->end != NULL && layer < s->layers; layer++)
        tensor_free(&s->end[layer]);
    tensor *tensors[] = {&s->src, &s->dst, &s->start, &s->start_conv};
    for (int i = 0; i < 4; i++)
        tensor_free(tensors[i]);
    void *memory[] = {s->end,     (void *)s->starts, (void *)s->start_convs, (void *)s->ends, (void *)s->decays,
                      s->running, s->samples};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
    oracle_scratch_free(s->scratch);
    sim_pass_free(s);
    if (s->host.plugin != NULL)
        s->host.api->teardown(&s->host.plugin, &s->host.error);
    device_close(&s->dev);
    host_close(&s->host);
}

/* ---- serving ----------------------------------------------------------------------------------------------------- */

/* Requests per pass that fill the batch: a request needs about length / tokens-per-pass passes; and a third more, so that
 * slots run out now and then. */
static double arrival_rate(const sim *s)
{
    const double per_pass = s->window > 1 ? 0.5 * (double)(s->window + 1) : 1.0;
    return 1.33 * (double)s->o->batch * per_pass / (double)s->o->length;
}

/* How many requests there are to be. With --seconds no more come once that time is over; who is there is still served. */
static int64_t all_requests(const sim *s, double start)
{
    if (s->o->seconds == 0)
        return s->o->requests;
    return stats_seconds() - start < (double)s->o->seconds ? INT64_MAX : s->t.arrived;
}

static int serve(sim *s)
{
    const double rate = arrival_rate(s), start = stats_seconds();
    int code = EXIT_OK;
    for (int64_t all; code == EXIT_OK && s->t.finished + s->t.cancelled < (all = all_requests(s, start));) {
        code = sim_arrive(s, rate, all);
        if (code == EXIT_OK)
            code = sim_admit(s);
        if (code == EXIT_OK && s->o->fault_rate > 0 && (int64_t)(rng_next(&s->random) % 1000) < s->o->fault_rate)
            code = sim_fault(s);
        if (code == EXIT_OK)
            code = sim_pass(s);
        if (code == EXIT_OK)
            code = sim_finish(s);
        if (code == EXIT_OK)
            code = sim_cancel(s);
        if (code == EXIT_OK)
            code = sim_flush(s);
    }
    return code;
}

static int read_faults(sim *s, uint32_t *word)
{
    host *h = &s->host;
    const rssm_fault_api *fault = h->api->get_extension(RSSM_EXT_FAULT);
    return fault == NULL ? EXIT_OK : host_check(h, fault->read(h->plugin, s->stream, word, &h->error), "fault word");
}

/* ---- reporting --------------------------------------------------------------------------------------------------- */

static void print_model(const sim *s)
{
    const rssm_description *m = &s->host.model;
    printf("%s%s%s, rank 0 of %" PRId32 ": %" PRId32 " linear layers, H = %" PRId32 ", HV = %" PRId32 ", K = %" PRId32
           ", V = %" PRId32 "%s\n",
           m->family_name, m->model_type[0] ? ", " : "", m->model_type, m->tp_size, m->num_linear_layers, m->H, m->HV,
           m->K, m->V, s->conv != NULL ? ", convolution" : "");
    printf("ring %" PRId32 " of %" PRId32 " rows, %" PRId32 " drafts, io %s, state %s, ring %s; %" PRId64
           " slots, %.1f MB; %s %s\n",
           m->ring_length, m->ring_rows, m->max_draft_tokens, dtype_find(m->io_dtype)->name,
           dtype_find(m->state_dtype)->name, dtype_find(m->ring_dtype)->name, s->host.layout.num_slots,
           1e-6 * (double)s->host.layout.pool_bytes, device_is_host(&s->dev) ? "cpu" : "cuda", m->cpu_level);
}

static void print_report(sim *s, int64_t leaked, uint32_t faults)
{
    const totals *t = &s->t;
    const int64_t n = t->passes < s->most_samples ? t->passes : s->most_samples;
    const summary steps = stats_summary(s->samples, n); /* sorts them */
    const double p99 = n > 0 ? s->samples[(int64_t)(0.99 * (double)(n - 1))] : 0.0;
    print_model(s);
    printf("%" PRId64 " requests: %" PRId64 " finished, %" PRId64 " cancelled; %" PRId64 " forked, %" PRId64
           " imported, %" PRId64 " preempted, %" PRId64 " resumed\n",
           t->arrived, t->finished, t->cancelled, t->forked, t->imported, t->preempted, t->resumed);
    printf("%" PRId64 " tokens in %" PRId64 " passes, %.1f tokens/s; a pass takes %.3f ms (p50), %.3f ms (p99)%s\n",
           t->tokens, t->passes, t->seconds > 0.0 ? (double)t->tokens / t->seconds : 0.0, 1e3 * steps.median, 1e3 * p99,
           t->replayed > 0 ? ", by graphs" : "");
    printf("slots in use: %.1f on average, %" PRId64 " at most; %" PRId64 " flushes per layer",
           t->passes > 0 ? t->slots / (double)t->passes : 0.0, t->most_slots, t->flushes);
    if (t->drafted > 0)
        printf("; %.1f %% of %" PRId64 " drafts accepted", 100.0 * (double)t->accepted / (double)t->drafted,
               t->drafted);
    printf("\nworst of a request: output %.2g, state %.2g, convolution %.2f x rounding\n", t->worst_out, t->worst_state,
           t->worst_conv);
    if (t->refused + t->not_refused > 0)
        printf("%" PRId64 " bad calls refused, %" PRId64 " not\n", t->refused, t->not_refused);
    if (faults != 0)
        printf("fault word 0x%" PRIx32 "\n", faults);
    printf("%" PRId64 " wrong requests, %" PRId64 " leaked slots\n", t->wrong, leaked);
}

static int serve_and_report(sim *s)
{
    int64_t leaked = 0;
    uint32_t faults = 0;
    int code = set_up(s);
    if (code == EXIT_OK)
        code = serve(s);
    if (code == EXIT_OK)
        code = sim_leaks(s, &leaked);
    if (code == EXIT_OK)
        code = read_faults(s, &faults);
    if (code != EXIT_OK)
        return code;
    print_report(s, leaked, faults);
    return s->t.wrong > 0 || leaked > 0 || s->t.not_refused > 0 || faults != 0 ? EXIT_MISSED : EXIT_OK;
}

int main(int argc, char **argv)
{
    sim_options o = {.device = "cpu",
                     .tp = 16,
                     .layers = 8,
                     .drafts = 3,
                     .batch = 16,
                     .requests = 200,
                     .length = 40,
                     .seed = 1,
                     .acceptance = 70};
    const option_row rows[] = {
        {"config", OPTION_TEXT, &o.config, "CONFIG", "the model's config.json [qwen3.5-35b-a3b of configs/]", 0, 0},
        {"plugin", OPTION_TEXT, &o.plugin, "PATH", "the plugin to load", 0, 0},
        {"device", OPTION_CHOICE, &o.device, "cpu|cuda", "where to decode [cpu]", 0, 0},
        {"tp", OPTION_INT, &o.tp, "N", "tensor-parallel ranks, of which this is one [16]", 1, INT32_MAX},
        {"layers", OPTION_INT, &o.layers, "N", "of the model, linear or not [8; 0 = all]", 0, INT32_MAX},
        {"requests", OPTION_INT, &o.requests, "N", "to serve [200]", 1, 1000000000},
        {"seconds", OPTION_INT, &o.seconds, "S", "requests come for so long, instead", 0, 1000000},
        {"length", OPTION_INT, &o.length, "N", "tokens of a request on average [40]", 2, 1000000},
        {"batch", OPTION_INT, &o.batch, "B", "rows of a pass [16]", 1, 65536},
        {"slots", OPTION_INT, &o.slots, "N", "of the pool [batch and a half]", 1, INT32_MAX},
        {"drafts", OPTION_INT, &o.drafts, "D", "most draft tokens of a window [3; 0 = no speculation]", 0, 63},
        {"acceptance", OPTION_INT, &o.acceptance, "P", "percent of drafts that are right [70]", 0, 100},
        {"ring", OPTION_INT, &o.ring, "L", "ring length, 1 to 64 [0 = fewest modelled bytes]", 0, 64},
        {"io", OPTION_DTYPE, &o.init.io_dtype, "DTYPE", "of inputs [the config's]", 0, 0},
        {"state", OPTION_DTYPE, &o.init.state_dtype, "DTYPE", "of the state [the config's]", 0, 0},
        {"ring-dtype", OPTION_DTYPE, &o.init.ring_dtype, "DTYPE", "of the ring's rows [as --io]", 0, 0},
        {"threads", OPTION_INT, &o.threads, "N", "CPU threads [0 = all]", 0, 4096},
        {"no-conv", OPTION_FLAG, &o.no_conv, NULL, "leave the short convolution to the host", 0, 0},
        {"no-graphs", OPTION_FLAG, &o.no_graphs, NULL, "CUDA: launch each pass anew", 0, 0},
        {"fault-rate", OPTION_INT, &o.fault_rate, "N", "bad calls per 1000 passes [0]", 0, 1000},
        {"seed", OPTION_INT, &o.seed, "S", "of everything [1]", 0, INT64_MAX},
    };
    const option_table table = {"replayssm-server-sim",
                                "Serves random requests with continuous batching, and checks each of them.", NULL, rows,
                                sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, NULL);
    if (code >= 0)
        return code;
    sim s = {.o = &o, .host = {.program = table.program}};
    code = serve_and_report(&s);
    tear_down(&s);
    return code;
}
