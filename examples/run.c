/* replayssm-run: decodes tokens over all linear layers of a model, with random weights and inputs, and with --check
 * holds every output, record and state against a double-precision recurrence.
 *
 * Requests join one per step, as in a server: until then their rows are padding. With --check the last step flushes
 * every row, so that each run ends with states to compare. */
#define _GNU_SOURCE 1
#include "common/check.h"
#include "common/rng.h"
#include "common/stats.h"

#include <inttypes.h>
#include <rssm_fault.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run_options {
    rssm_init_args init;
    const char *plugin, *device, *oracle;
    int64_t tp, rank, ring, batch, steps, slots, seed, threads;
    int32_t check, json;
} run_options;

typedef struct run {
    const run_options *o;
    host host;
    device dev;
    workload load;
    check *check; /* NULL without --check */
    int32_t *slot_of_row;
    double begun, last_progress; /* seconds */
    double begin_seconds, decode_seconds;
    int64_t tokens, flushes;
    uint32_t faults;
} run;

/* ---- making --------------------------------------------------------------------------------------------------- */

static int open_instance(run *r)
{
    const run_options *o = r->o;
    rssm_init_args init = o->init;
    init.struct_size = sizeof init;
    init.device_type = (int32_t)r->dev.dl.device_type;
    init.device_id = r->dev.dl.device_id;
    init.tp_size = (int32_t)o->tp;
    init.tp_rank = (int32_t)o->rank;
    init.ring_length = (int32_t)o->ring;
    init.max_batch = (int32_t)o->batch;
    init.num_slots = o->slots > 0 ? o->slots : o->batch;
    init.num_threads = (int32_t)o->threads;
    if (init.num_slots < o->batch)
        return host_refuse(&r->host, "%" PRId64 " requests need as many slots, --slots gives %" PRId64, o->batch,
                           init.num_slots);
    int code = host_init(&r->host, &init);
    return code == EXIT_OK ? host_ready(&r->host) : code;
}

/* Requests get slots in random order. */
static int deal_slots(run *r)
{
    const int64_t slots = r->host.layout.num_slots;
    int32_t *deck = malloc((size_t)slots * sizeof *deck);
    if (deck == NULL)
        return host_refuse(&r->host, "no memory for %" PRId64 " slots", slots);
    rng random = rng_stream((uint64_t)r->o->seed, 0, 0x51075);
    for (int64_t i = 0; i < slots; i++) {
        int64_t j = (int64_t)(rng_next(&random) % (uint64_t)(i + 1));
        deck[i] = deck[j];
        deck[j] = (int32_t)i;
    }
    r->slot_of_row = deck;
    return EXIT_OK;
}

static int set_up(run *r)
{
    const run_options *o = r->o;
    const int trajectory = strcmp(o->oracle, "trajectory") == 0;
    int code = host_load(&r->host, o->plugin);
    if (code == EXIT_OK)
        code = device_open(&r->dev, o->device, &r->host);
    if (code == EXIT_OK)
        code = open_instance(r);
    if (code == EXIT_OK)
        code = deal_slots(r);
    if (code != EXIT_OK)
        return code;
    /* A trajectory is judged before the output is rounded. */
    const int32_t out_type = trajectory ? RSSM_DTYPE_FLOAT32 : r->host.model.io_dtype;
    code = workload_create(&r->load, &r->host, &r->dev, o->batch, dtype_find(out_type), (uint64_t)o->seed);
    if (code == EXIT_OK && o->check)
        code = check_create(&r->check, &r->load, trajectory ? CHECK_TRAJECTORY : CHECK_STEP, o->steps);
    return code;
}

static void tear_down(run *r)
{
    check_free(&r->check);
    if (r->load.host != NULL)
        workload_free(&r->load);
    free(r->slot_of_row);
    if (r->host.plugin != NULL)
        r->host.api->teardown(&r->host.plugin, &r->host.error);
    device_close(&r->dev); /* after the plugin, whose memory lies in the device's context */
    host_close(&r->host);
}

/* ---- decoding ------------------------------------------------------------------------------------------------- */

/* The step in which a row's request joins: one after the other over a window, none later than halfway. */
static int64_t joins_at(const run *r, int64_t row)
{
    int64_t window = r->host.model.ring_length, half = (r->o->steps + 1) / 2;
    return row % (window < half ? window : half);
}

/* A request that joins gets a fresh slot. */
static int admit(run *r, int64_t row)
{
    host *h = &r->host;
    tensor slots;
    int code = EXIT_OK;
    if (tensor_create(&slots, &r->dev, tensor_int32(), 1, (int64_t[]){1}) == 0) {
        memcpy(slots.host, &r->slot_of_row[row], sizeof(int32_t));
        rssm_reset_args args = {.struct_size = sizeof args, .slots = &slots.dl};
        if (tensor_upload(&slots) != 0)
            code = host_refuse(h, "cannot copy to the device");
        else
            code = host_check(h, h->api->reset(h->plugin, &args, &h->error), "reset");
    } else {
        code = host_refuse(h, "no memory on the device");
    }
    if (code == EXIT_OK && r->check != NULL && check_admitted(r->check, row, r->slot_of_row[row]) != 0)
        code = host_refuse(h, "cannot read the pool");
    r->dev.sync(&r->dev); /* the slot list must outlive its use */
    tensor_free(&slots);
    return code;
}

static int begin_step(run *r, int64_t step)
{
    int32_t *slots = r->load.slots.host, *force = r->load.force.host;
    for (int64_t b = 0; b < r->o->batch; b++) {
        slots[b] = step >= joins_at(r, b) ? r->slot_of_row[b] : -1;
        force[b] = r->check != NULL && step == r->o->steps - 1;
        r->tokens += slots[b] >= 0;
        if (step == joins_at(r, b) && admit(r, b) != EXIT_OK)
            return EXIT_REFUSED;
    }
    double start = stats_seconds();
    int code = workload_step_begin(&r->load);
    if (code != EXIT_OK)
        return code;
    if (tensor_download(&r->load.rows) != 0)
        return host_refuse(&r->host, "cannot read the rows of step_begin");
    r->begin_seconds += stats_seconds() - start;
    for (int64_t b = 0; b < r->o->batch; b++) {
        const int32_t *row = (const int32_t *)r->load.rows.host + b * RSSM_ROW_WIDTH;
        r->flushes += row[0] >= 0 && row[3] != 0;
    }
    if (r->check != NULL)
        check_rows(r->check, step);
    return EXIT_OK;
}

static int decode_layer(run *r, int64_t layer, int64_t step)
{
    host *h = &r->host;
    if (workload_inputs(&r->load, layer, step) != 0)
        return host_refuse(h, "cannot copy inputs to the device");
    if (r->check != NULL && check_before(r->check, layer, step) != 0)
        return host_refuse(h, "the check has no memory, or cannot read the pool");

    rssm_decode_args args = workload_decode_args(&r->load, layer, 0);
    double start = stats_seconds();
    int code = host_check(h, h->api->decode(h->plugin, &args, &h->error), "decode");
    if (code == EXIT_OK && r->dev.sync(&r->dev) != 0)
        code = host_refuse(h, "the device failed in layer %" PRId64 " of step %" PRId64, layer, step);
    r->decode_seconds += stats_seconds() - start;

    if (code == EXIT_OK && r->check != NULL && check_after(r->check, layer, step) != 0)
        code = host_refuse(h, "the check cannot read the pool");
    return code;
}

static void show_progress(run *r, int64_t done)
{
    double now = stats_seconds();
    if (!isatty(STDERR_FILENO) || now - r->begun < 2.0 || now - r->last_progress < 0.2)
        return;
    r->last_progress = now;
    fprintf(stderr, "\r%s: step %" PRId64 " of %" PRId64 ", %.0f s left ", r->host.program, done, r->o->steps,
            (now - r->begun) / (double)done * (double)(r->o->steps - done));
}

static int decode_all(run *r)
{
    r->begun = stats_seconds();
    int code = EXIT_OK;
    for (int64_t step = 0; step < r->o->steps && code == EXIT_OK; step++) {
        code = begin_step(r, step);
        for (int64_t layer = 0; layer < r->host.model.num_linear_layers && code == EXIT_OK; layer++)
            code = decode_layer(r, layer, step);
        show_progress(r, step + 1);
    }
    if (r->last_progress > 0.0)
        fprintf(stderr, "\r%79s\r", "");
    return code;
}

static int read_faults(run *r)
{
    host *h = &r->host;
    const rssm_fault_api *fault = h->api->get_extension(RSSM_EXT_FAULT);
    if (fault == NULL)
        return EXIT_OK;
    int code = host_check(h, fault->read(h->plugin, NULL, &r->faults, &h->error), "fault word");
    if (code == EXIT_OK && r->faults != 0 && r->check != NULL)
        check_fault(r->check, "the fault word is 0x%x", r->faults);
    return code;
}

/* ---- reporting ------------------------------------------------------------------------------------------------ */

typedef struct totals {
    double tokens_per_second, us_per_layer_step, bytes, bytes_per_second;
} totals;

static totals total_up(const run *r)
{
    const double layers = r->host.model.num_linear_layers, seconds = r->begin_seconds + r->decode_seconds;
    const double bytes = (double)r->tokens * layers * (double)r->host.model.step_bytes;
    totals t = {.tokens_per_second = (double)r->tokens / seconds,
                .us_per_layer_step = 1e6 * r->decode_seconds / (layers * (double)r->o->steps),
                .bytes = bytes,
                .bytes_per_second = bytes / seconds};
    return t;
}

static void print_report(const run *r)
{
    const rssm_description *m = &r->host.model;
    const totals t = total_up(r);
    printf("%s%s%s, rank %" PRId32 " of %" PRId32 ": %" PRId32 " linear layers, H = %" PRId32 ", HV = %" PRId32
           ", K = %" PRId32 ", V = %" PRId32 "\n",
           m->family_name, m->model_type[0] ? ", " : "", m->model_type, m->tp_rank, m->tp_size, m->num_linear_layers,
           m->H, m->HV, m->K, m->V);
    printf("ring %" PRId32 ", io %s, state %s, ring %s; pool of %" PRId64 " slots, %.1f MB; %s %s, %" PRId32
           " threads\n",
           m->ring_length, dtype_find(m->io_dtype)->name, dtype_find(m->state_dtype)->name,
           dtype_find(m->ring_dtype)->name, r->host.layout.num_slots, 1e-6 * (double)r->host.layout.pool_bytes,
           device_is_host(&r->dev) ? "cpu" : "cuda", m->cpu_level, m->num_threads);
    printf("%" PRId64 " tokens in %" PRId64 " steps of %" PRId64 " rows: %.1f tokens/s, %.2f us per layer-step\n",
           r->tokens, r->o->steps, r->o->batch, t.tokens_per_second, t.us_per_layer_step);
    printf("%" PRId64 " flushes per layer, %.3f GB moved (modelled), %.2f GB/s\n", r->flushes, 1e-9 * t.bytes,
           1e-9 * t.bytes_per_second);
    if (r->faults != 0)
        printf("fault word 0x%" PRIx32 "\n", r->faults);
    if (r->check != NULL)
        check_print(r->check);
}

static void print_json(const run *r)
{
    const rssm_description *m = &r->host.model;
    const totals t = total_up(r);
    json out = json_to(stdout);
    json_object(&out, NULL);
    json_string(&out, "family", m->family_name);
    json_string(&out, "model_type", m->model_type);
    json_string(&out, "device", device_is_host(&r->dev) ? "cpu" : "cuda");
    json_string(&out, "cpu_level", m->cpu_level);
    json_int(&out, "threads", m->num_threads);
    json_int(&out, "tp_size", m->tp_size);
    json_int(&out, "tp_rank", m->tp_rank);
    json_int(&out, "linear_layers", m->num_linear_layers);
    json_int(&out, "ring_length", m->ring_length);
    json_string(&out, "io_dtype", dtype_find(m->io_dtype)->name);
    json_string(&out, "state_dtype", dtype_find(m->state_dtype)->name);
    json_string(&out, "ring_dtype", dtype_find(m->ring_dtype)->name);
    json_int(&out, "slots", r->host.layout.num_slots);
    json_int(&out, "pool_bytes", r->host.layout.pool_bytes);
    json_int(&out, "batch", r->o->batch);
    json_int(&out, "steps", r->o->steps);
    json_int(&out, "seed", r->o->seed);
    json_int(&out, "tokens", r->tokens);
    json_number(&out, "tokens_per_second", t.tokens_per_second);
    json_number(&out, "us_per_layer_step", t.us_per_layer_step);
    json_int(&out, "flushes", r->flushes);
    json_number(&out, "bytes_moved", t.bytes);
    json_int(&out, "fault_word", r->faults);
    if (r->check != NULL)
        check_json(r->check, &out);
    json_end(&out);
}

static int decode_and_report(run *r)
{
    int code = set_up(r);
    if (code == EXIT_OK)
        code = decode_all(r);
    if (code == EXIT_OK)
        code = read_faults(r);
    if (code != EXIT_OK)
        return code;
    if (r->o->json)
        print_json(r);
    else
        print_report(r);
    return r->check == NULL || check_passed(r->check) ? EXIT_OK : EXIT_MISSED;
}

int main(int argc, char **argv)
{
    run_options o = {.device = "cpu", .oracle = "step", .tp = 1, .batch = 4, .steps = 40, .seed = 1};
    const option_row rows[] = {
        {"plugin", OPTION_TEXT, &o.plugin, "PATH", "the plugin to load", 0, 0},
        {"device", OPTION_CHOICE, &o.device, "cpu|cuda", "where to decode [cpu]", 0, 0},
        {"tp", OPTION_INT, &o.tp, "N", "tensor-parallel ranks [1]", 1, INT32_MAX},
        {"rank", OPTION_INT, &o.rank, "R", "this rank [0]", INT32_MIN, INT32_MAX},
        {"batch", OPTION_INT, &o.batch, "B", "requests at once [4]", 1, 1048576},
        {"steps", OPTION_INT, &o.steps, "N", "forward passes [40]", 1, 1000000000},
        {"ring", OPTION_INT, &o.ring, "L", "ring length, 1 to 64 [0 = fewest modelled bytes]", INT32_MIN, INT32_MAX},
        {"slots", OPTION_INT, &o.slots, "N", "slots of the pool [as --batch]", 1, INT32_MAX},
        {"io", OPTION_DTYPE, &o.init.io_dtype, "DTYPE", "of inputs and outputs [the config's]", 0, 0},
        {"state", OPTION_DTYPE, &o.init.state_dtype, "DTYPE", "of the state [the config's]", 0, 0},
        {"ring-dtype", OPTION_DTYPE, &o.init.ring_dtype, "DTYPE", "of the ring's rows [as --io]", 0, 0},
        {"threads", OPTION_INT, &o.threads, "N", "CPU threads [0 = all]", 0, 4096},
        {"check", OPTION_FLAG, &o.check, NULL, "compare with a double-precision recurrence", 0, 0},
        {"oracle", OPTION_CHOICE, &o.oracle, "step|trajectory", "each step anew, or from the first token [step]", 0, 0},
        {"seed", OPTION_INT, &o.seed, "S", "of weights and inputs [1]", 0, INT64_MAX},
        {"json", OPTION_FLAG, &o.json, NULL, "for programs", 0, 0},
    };
    const option_table table = {"replayssm-run", "Decodes tokens over all linear layers of a model, and checks them.",
                                "CONFIG", rows, sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, &o.init.config_path);
    if (code >= 0)
        return code;
    run r = {.o = &o, .host = {.program = table.program, .json = o.json}};
    code = decode_and_report(&r);
    tear_down(&r);
    return code;
}
