/* replayssm-plan: what the state pool of a model will be, from its config.json alone. Touches no device.
 *
 * Stands on init, describe and pool_layout; the numbers are the plugin's own, nothing is computed twice here. */
#include "common/dtype.h"
#include "common/host.h"
#include "common/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct plan_options {
    rssm_init_args init;
    int64_t tp, rank, ring, draft;
    int32_t conv, json;
    const char *plugin, *device;
} plan_options;

static int is_mamba(const host *h)
{
    return h->model.family == RSSM_FAMILY_MAMBA2;
}

static const char *dtype_name(int32_t id)
{
    const dtype_info *type = dtype_find(id);
    return type != NULL ? type->name : "?";
}

static double speed_up(const host *h)
{
    return h->model.step_bytes > 0 ? (double)h->model.step_bytes_read_write / (double)h->model.step_bytes : 1.0;
}

/* "1.50 GiB"; by value, so that one printf may hold several. */
typedef struct size_text {
    char text[32];
} size_text;

static size_text human(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        value /= 1024.0;
    size_text out;
    snprintf(out.text, sizeof out.text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

static void json_texts(json *out, const char *key, const char *const *texts, int32_t count)
{
    json_array(out, key);
    for (int32_t i = 0; i < count; i++)
        json_string(out, NULL, texts[i]);
    json_end(out);
}

static void json_heads(json *out, const host *h)
{
    json_object(out, "heads");
    json_int(out, is_mamba(h) ? "nheads" : "HV", h->model.HV);
    json_int(out, is_mamba(h) ? "n_groups" : "H", h->model.H);
    json_int(out, is_mamba(h) ? "head_dim" : "V", h->model.V);
    json_int(out, is_mamba(h) ? "d_state" : "K", h->model.K);
    json_end(out);
}

/* The tensors of one layer; the cursor, one for all layers, is counted apart. */
static void json_tensors(json *out, const host *h)
{
    json_array(out, "tensors");
    for (int32_t i = 0; i < h->layout.num_tensors; i++) {
        const rssm_tensor_info *t = host_tensor(h, i);
        if (!t->per_layer)
            continue;
        json_object(out, NULL);
        json_string(out, "name", t->name);
        json_string(out, "dtype", t->dtype_name);
        json_array(out, "shape");
        for (int32_t dim = 0; dim < t->ndim; dim++)
            json_int(out, NULL, t->shape[dim]);
        json_end(out);
        json_string(out, "symbolic_shape", t->symbolic_shape);
        json_int(out, "bytes_per_slot_per_layer", t->bytes_per_slot);
        json_end(out);
    }
    json_end(out);
}

static void json_pool(json *out, const host *h)
{
    const rssm_layout *pool = &h->layout;
    json_object(out, "bytes_per_slot");
    json_int(out, "state", pool->slot_state_bytes);
    json_int(out, "ring", pool->slot_ring_bytes);
    json_int(out, "conv", pool->slot_conv_bytes);
    json_int(out, "total", pool->slot_total_bytes);
    json_end(out);
    json_int(out, "cursor_bytes_per_slot", pool->slot_cursor_bytes);
    json_int(out, "slots", pool->num_slots);
    json_int(out, "pool_bytes", pool->pool_bytes);
    json_int(out, "slab_bytes", pool->slab_bytes);
    json_int(out, "workspace_bytes", pool->workspace_bytes);
}

/* What a window of T = drafts + 1 tokens costs in memory, over all layers of this rank. A server that writes its state at
 * every token needs T + 1 of them per session to go back to; replay needs room in the ring. */
typedef struct speculation {
    int64_t drafts, tokens;
    int64_t plain_bytes, bytes;     /* of a slot without and with room for drafts, the ring equally long */
    int64_t ring_bytes, conv_bytes; /* the difference: draft rows, convolution columns */
    int64_t snapshots, snapshot_bytes;
    int64_t budget; /* 0: not given; then no sessions */
    int64_t plain_sessions, sessions, snapshot_sessions;
} speculation;

/* The same plan without drafts, for comparison; the ring as long as the plan's. */
static int plan_without_drafts(const host *h, const plan_options *o, rssm_layout *plain)
{
    host other = *h; /* its library and sizes */
    other.plugin = NULL;
    rssm_init_args args = o->init;
    args.max_draft_tokens = 0;
    args.ring_length = h->model.ring_length;
    int code = host_init(&other, &args);
    if (code != EXIT_OK)
        return code;
    *plain = other.layout;
    plain->tensors = NULL; /* they end with their instance */
    return host_check(&other, h->api->teardown(&other.plugin, &other.error), "teardown");
}

static int plan_speculation(const host *h, const plan_options *o, speculation *s)
{
    rssm_layout plain;
    const rssm_layout *pool = &h->layout;
    int code = plan_without_drafts(h, o, &plain);
    if (code != EXIT_OK)
        return code;
    *s = (speculation){
        .drafts = o->draft,
        .tokens = o->draft + 1,
        .plain_bytes = plain.slot_total_bytes,
        .bytes = pool->slot_total_bytes,
        .ring_bytes = pool->slot_ring_bytes - plain.slot_ring_bytes,
        .conv_bytes = pool->slot_conv_bytes - plain.slot_conv_bytes,
        .snapshots = o->draft + 2,
        .snapshot_bytes = (o->draft + 2) * (plain.slot_state_bytes + plain.slot_conv_bytes),
        .budget = o->init.memory_budget_bytes,
    };
    if (s->budget > 0) {
        s->plain_sessions = plain.num_slots;
        s->sessions = pool->num_slots;
        s->snapshot_sessions = s->budget / s->snapshot_bytes;
    }
    return EXIT_OK;
}

static void json_sessions(json *out, const speculation *s, int64_t sessions)
{
    if (s->budget > 0)
        json_int(out, "sessions", sessions);
    else
        json_null(out, "sessions");
    json_end(out);
}

static void json_speculation(json *out, const speculation *s)
{
    json_object(out, "speculation");
    json_int(out, "max_draft_tokens", s->drafts);
    json_int(out, "window_tokens", s->tokens);
    json_object(out, "plain");
    json_int(out, "bytes_per_slot", s->plain_bytes);
    json_sessions(out, s, s->plain_sessions);
    json_object(out, "replay");
    json_int(out, "bytes_per_slot", s->bytes);
    json_int(out, "extra_bytes_per_slot", s->ring_bytes + s->conv_bytes);
    json_int(out, "extra_ring_bytes_per_slot", s->ring_bytes);
    json_int(out, "extra_conv_bytes_per_slot", s->conv_bytes);
    json_sessions(out, s, s->sessions);
    json_object(out, "state_snapshots");
    json_int(out, "snapshots", s->snapshots);
    json_int(out, "bytes_per_slot", s->snapshot_bytes);
    json_sessions(out, s, s->snapshot_sessions);
    json_end(out);
}

static void print_json(const host *h, const speculation *s)
{
    const rssm_description *m = &h->model;
    json out = json_to(stdout);
    json_object(&out, NULL);
    json_string(&out, "family", m->family_name);
    json_string(&out, "model_type", m->model_type);
    json_int(&out, "num_layers", m->num_layers);
    json_array(&out, "linear_layers");
    for (int32_t i = 0; i < m->num_linear_layers; i++)
        json_int(&out, NULL, m->linear_layers[i]);
    json_end(&out);
    json_int(&out, "tp_size", m->tp_size);
    json_int(&out, "tp_rank", m->tp_rank);
    json_int(&out, "ring_length", m->ring_length);
    json_int(&out, "ring_rows", m->ring_rows);
    json_int(&out, "max_draft_tokens", m->max_draft_tokens);
    json_string(&out, "ring_reason", m->ring_reason);
    json_heads(&out, h);
    json_int(&out, "conv_kernel", m->conv_kernel);
    if (m->has_lower_bound)
        json_number(&out, "lower_bound", m->lower_bound);
    else
        json_null(&out, "lower_bound");
    json_string(&out, "state_dtype", dtype_name(m->state_dtype));
    json_string(&out, "io_dtype", dtype_name(m->io_dtype));
    json_string(&out, "ring_dtype", dtype_name(m->ring_dtype));
    json_tensors(&out, h);
    json_pool(&out, h);
    if (s)
        json_speculation(&out, s);
    json_int(&out, "step_bytes", m->step_bytes);
    json_int(&out, "step_bytes_read_write", m->step_bytes_read_write);
    char hash[17]; /* a string: 64 bits do not fit a JSON number everywhere */
    snprintf(hash, sizeof hash, "%016" PRIx64, m->layout_hash);
    json_string(&out, "layout_hash", hash);
    json_texts(&out, "read", m->read, m->num_read);
    json_texts(&out, "assumed", m->assumed, m->num_assumed);
    json_end(&out);
}

/* 0,1,2,4,5 as "0-2, 4-5". */
static void print_ranges(const int32_t *numbers, int32_t count)
{
    for (int32_t i = 0; i < count;) {
        int32_t last = i;
        while (last + 1 < count && numbers[last + 1] == numbers[last] + 1)
            last++;
        printf("%s%" PRId32, i == 0 ? "" : ", ", numbers[i]);
        if (last > i)
            printf("-%" PRId32, numbers[last]);
        i = last + 1;
    }
}

static void print_model(const host *h)
{
    const rssm_description *m = &h->model;
    printf("%s%s%s: %" PRId32 " of %" PRId32 " layers are linear (", m->family_name, m->model_type[0] ? ", " : "",
           m->model_type, m->num_linear_layers, m->num_layers);
    print_ranges(m->linear_layers, m->num_linear_layers);
    printf(")\n");
    if (is_mamba(h))
        printf("  %" PRId32 " heads of %" PRId32 ", %" PRId32 " groups, state size %" PRId32, m->HV, m->V, m->H, m->K);
    else
        printf("  H = %" PRId32 ", HV = %" PRId32 ", K = %" PRId32 ", V = %" PRId32, m->H, m->HV, m->K, m->V);
    printf(" on rank %" PRId32 " of %" PRId32, m->tp_rank, m->tp_size);
    if (m->has_lower_bound)
        printf(", gate bounded at %g", m->lower_bound);
    printf("\n  ring %" PRId32 " (%" PRId32 " rows): %s\n", m->ring_length, m->ring_rows, m->ring_reason);
}

static void print_tensors(const host *h)
{
    printf("\n  %-10s %-9s %-26s %-30s %14s\n", "tensor", "dtype", "shape", "", "bytes per slot");
    for (int32_t i = 0; i < h->layout.num_tensors; i++) {
        const rssm_tensor_info *t = host_tensor(h, i);
        char shape[160];
        size_t used = 0;
        for (int32_t dim = 0; dim < t->ndim && used < sizeof shape; dim++) {
            int n = snprintf(shape + used, sizeof shape - used, "%s%" PRId64, dim == 0 ? "[" : ", ", t->shape[dim]);
            used += n > 0 ? (size_t)n : 0;
        }
        if (used < sizeof shape)
            snprintf(shape + used, sizeof shape - used, "]");
        printf("  %-10s %-9s %-26s %-30s %14" PRId64 "%s\n", t->name, t->dtype_name, shape, t->symbolic_shape,
               t->bytes_per_slot, t->per_layer ? " x layer" : "");
    }
}

static void print_pool(const host *h, const plan_options *o)
{
    const rssm_layout *pool = &h->layout;
    printf("\n  one slot, %" PRId32 " layers: state %s + ring %s + conv %s = %s (%" PRId64 " bytes), cursor %" PRId64
           " bytes\n",
           pool->num_layers, human(pool->slot_state_bytes).text, human(pool->slot_ring_bytes).text,
           human(pool->slot_conv_bytes).text, human(pool->slot_total_bytes).text, pool->slot_total_bytes,
           pool->slot_cursor_bytes);
    if (!o->conv)
        printf("  (the convolution's history is not in the pool: --conv adds it)\n");
    printf("  this rank: %" PRId64 " slot%s%s in %s (%" PRId64 " bytes: slab %" PRId64 ", workspace %" PRId64 ")\n",
           pool->num_slots, pool->num_slots == 1 ? "" : "s", o->init.memory_budget_bytes > 0 ? " fit the budget," : "",
           human(pool->pool_bytes).text, pool->pool_bytes, pool->slab_bytes, pool->workspace_bytes);
    printf("  one row of one layer: %s per step, read-and-write %s: %.2f times fewer bytes (modelled)\n",
           human(h->model.step_bytes).text, human(h->model.step_bytes_read_write).text, speed_up(h));
    printf("  layout %016" PRIx64 " (must be equal on all ranks)\n", h->model.layout_hash);
    printf("\n  assumed:%s\n", h->model.num_assumed == 0 ? " nothing, all of it is in the config" : "");
    for (int32_t i = 0; i < h->model.num_assumed; i++)
        printf("    %s\n", h->model.assumed[i]);
}

static void print_way(const char *way, int64_t bytes, const speculation *s, int64_t sessions)
{
    printf("    %-36s %12s per slot, %5.2f x", way, human(bytes).text, (double)bytes / (double)s->plain_bytes);
    if (s->budget > 0)
        printf(", %8" PRId64 " session%s fit", sessions, sessions == 1 ? "" : "s");
    printf("\n");
}

static void print_speculation(const speculation *s)
{
    char snapshots[64];
    snprintf(snapshots, sizeof snapshots, "%" PRId64 " state snapshots (T + 1), no ring", s->snapshots);
    printf("\n  speculation, windows of T = %" PRId64 " tokens (%" PRId64 " drafts and the bonus token):\n", s->tokens,
           s->drafts);
    print_way("plain decoding, no drafts", s->plain_bytes, s, s->plain_sessions);
    print_way("replay, room for drafts in the ring", s->bytes, s, s->sessions);
    print_way(snapshots, s->snapshot_bytes, s, s->snapshot_sessions);
    printf("    drafts cost %s per slot: %s of ring rows, %s of convolution columns\n",
           human(s->ring_bytes + s->conv_bytes).text, human(s->ring_bytes).text, human(s->conv_bytes).text);
    if (s->budget == 0)
        printf("    (--memory says how many sessions fit)\n");
}

static int plan(host *h, plan_options *o)
{
    o->init.struct_size = sizeof o->init;
    o->init.tp_size = (int32_t)o->tp;
    o->init.tp_rank = (int32_t)o->rank;
    o->init.ring_length = (int32_t)o->ring;
    o->init.max_draft_tokens = (int32_t)o->draft;
    o->init.device_type = strcmp(o->device, "cuda") == 0 ? kDLCUDA : kDLCPU;
    o->init.flags = o->conv ? RSSM_INIT_CONV_STATE : 0;
    int code = host_load(h, o->plugin);
    if (code == EXIT_OK)
        code = host_init(h, &o->init);
    speculation cost;
    if (code == EXIT_OK && o->draft > 0)
        code = plan_speculation(h, o, &cost);
    if (code != EXIT_OK)
        return code;
    if (o->json) {
        print_json(h, o->draft > 0 ? &cost : NULL);
        return EXIT_OK;
    }
    print_model(h);
    print_tensors(h);
    print_pool(h, o);
    if (o->draft > 0)
        print_speculation(&cost);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    plan_options o = {.tp = 1, .device = "cpu"};
    /* Ranges here are what an int32 holds: whether a number makes sense is the plugin's to say. */
    const option_row rows[] = {
        {"tp", OPTION_INT, &o.tp, "N", "tensor-parallel ranks [1]", 1, INT32_MAX},
        {"rank", OPTION_INT, &o.rank, "R", "this rank [0]", INT32_MIN, INT32_MAX},
        {"ring", OPTION_INT, &o.ring, "L", "ring length, 1 to 64 [0 = least modelled cost on the device]", INT32_MIN,
         INT32_MAX},
        {"state", OPTION_DTYPE, &o.init.state_dtype, "DTYPE", "of the state [the config's]", 0, 0},
        {"io", OPTION_DTYPE, &o.init.io_dtype, "DTYPE", "of inputs and outputs [the config's]", 0, 0},
        {"ring-dtype", OPTION_DTYPE, &o.init.ring_dtype, "DTYPE", "of the ring's rows [as --io]", 0, 0},
        {"slots", OPTION_INT, &o.init.num_slots, "N", "requests alive at once [1]", INT64_MIN, INT64_MAX},
        {"memory", OPTION_BYTES, &o.init.memory_budget_bytes, "BYTES", "as many slots as fit (80GiB, 512M, 1000000)", 0,
         0},
        {"draft", OPTION_INT, &o.draft, "D", "draft tokens besides the bonus token, and what they cost [0]", INT32_MIN,
         INT32_MAX},
        {"conv", OPTION_FLAG, &o.conv, NULL, "the pool also holds the convolution's history", 0, 0},
        {"json", OPTION_FLAG, &o.json, NULL, "for programs", 0, 0},
        {"plugin", OPTION_TEXT, &o.plugin, "PATH", "the plugin to load", 0, 0},
        {"device", OPTION_CHOICE, &o.device, "cpu|cuda", "whose pool: it decides the ring length of --ring 0 [cpu]", 0,
         0},
    };
    const option_table table = {"replayssm-plan", "Says what the state pool of a model will be.", "CONFIG", rows,
                                sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, &o.init.config_path);
    if (code >= 0)
        return code;
    host h = {.program = table.program, .json = o.json};
    code = plan(&h, &o);
    host_close(&h);
    return code;
}
