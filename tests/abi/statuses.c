/* Every status that a host can provoke on any machine, each by the shortest way to it, as a table in Markdown: what
 * docs/abi.md shows. With a file as argument: fails unless the file holds every line as printed here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/harness.h"
#include "rssm_slots.h"

/* An instance with a pool and a call on it. */
typedef struct scene {
    h_spec spec;
    rssm_plugin *plugin;
    h_call *call;
    rssm_error err;
} scene;

static rssm_status init_text(scene *s, const char *text, rssm_init_args args)
{
    args.struct_size = sizeof(args);
    args.config_json = text;
    args.config_json_len = strlen(text);
    rssm_plugin *plugin = NULL;
    rssm_status status = h_api()->init(&args, &plugin, &s->err);
    h_api()->teardown(&plugin, NULL);
    return status;
}

#define GDN_CONFIG                                                                                \
    "{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 4, \"linear_num_key_heads\": 2, "    \
    "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 16, " \
    "\"linear_conv_kernel_dim\": 4"

static rssm_status argument(scene *s)
{
    s->call->args.layer = 7;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status struct_size(scene *s)
{
    rssm_init_args args = {0};
    rssm_plugin *plugin = NULL;
    return h_api()->init(&args, &plugin, &s->err);
}

static void *no_memory(void *user, uint64_t bytes, uint64_t alignment)
{
    (void)user;
    (void)bytes;
    (void)alignment;
    return NULL;
}

static void no_free(void *user, void *ptr, uint64_t bytes)
{
    (void)user;
    (void)ptr;
    (void)bytes;
}

static rssm_status out_of_memory(scene *s)
{
    const rssm_allocator none = {.struct_size = sizeof(none), .alloc = no_memory, .free = no_free};
    return init_text(s, GDN_CONFIG "}", (rssm_init_args){.allocator = &none});
}

static rssm_status overflow(scene *s)
{
    const rssm_dims dims = {.struct_size = sizeof(dims),
                            .family = RSSM_FAMILY_GDN,
                            .num_layers = 65536,
                            .H = 65536,
                            .HV = 65536,
                            .K = 4096,
                            .V = 4096};
    rssm_init_args args = {.struct_size = sizeof(args), .dims = &dims, .num_slots = 1 << 20};
    rssm_plugin *plugin = NULL;
    return h_api()->init(&args, &plugin, &s->err);
}

static rssm_status io(scene *s)
{
    rssm_init_args args = {.struct_size = sizeof(args), .config_path = "/nowhere/config.json"};
    rssm_plugin *plugin = NULL;
    return h_api()->init(&args, &plugin, &s->err);
}

static rssm_status json(scene *s)
{
    return init_text(s, "{\"model_type\": \"qwen3_next\",, }", (rssm_init_args){0});
}

static rssm_status config(scene *s)
{
    return init_text(s, "{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 4}", (rssm_init_args){0});
}

static rssm_status model(scene *s)
{
    return init_text(s, "{\"model_type\": \"mamba\", \"num_hidden_layers\": 4}", (rssm_init_args){0});
}

static rssm_status tp(scene *s)
{
    return init_text(s, GDN_CONFIG "}", (rssm_init_args){.tp_size = 3});
}

static rssm_status state(scene *s)
{
    rssm_plugin *plugin = h_init(&s->spec);
    rssm_reset_args args = {.struct_size = sizeof(args)};
    rssm_status status = h_api()->reset(plugin, &args, &s->err);
    h_teardown(&plugin);
    return status;
}

static rssm_status role(scene *s)
{
    s->call->roles[RSSM_T_Z] = s->call->roles[RSSM_T_OUT];
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status missing(scene *s)
{
    s->call->roles[RSSM_T_A_LOG] = NULL;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status shape(scene *s)
{
    h_tensor *t = &s->call->tensors[RSSM_T_D_CACHE];
    int64_t heads = t->shape[1];
    t->shape[1] = t->shape[2];
    t->shape[2] = heads;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status dtype(scene *s)
{
    s->call->tensors[RSSM_T_STATE].t.dtype = h_float_type(RSSM_DTYPE_FLOAT16);
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status device(scene *s)
{
    s->call->tensors[RSSM_T_OUT].t.device.device_type = kDLCUDA;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status stride(scene *s)
{
    h_tensor *t = &s->call->tensors[RSSM_T_STATE];
    int64_t compact = 1;
    for (int i = 3; i >= 0; i--) {
        t->strides[i] = i ? compact : compact - 8;
        compact *= t->shape[i];
    }
    t->t.strides = t->strides;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status alignment(scene *s)
{
    s->call->tensors[RSSM_T_STATE].t.byte_offset = 4;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status overlap(scene *s)
{
    s->call->tensors[RSSM_T_OUT].t.data = s->call->tensors[RSSM_T_STATE].t.data;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static rssm_status value(scene *s)
{
    h_set(s->call->roles[RSSM_T_ROWS], 1, 0, 0, 0, 0);
    s->call->args.flags = RSSM_CHECK_DEEP;
    return h_api()->validate(s->plugin, &s->call->args, &s->err);
}

static const rssm_slots_api *slots_api(void)
{
    return h_api()->get_extension(RSSM_EXT_SLOTS);
}

/* An instance that has its own pool. */
static rssm_plugin *pooled(scene *s)
{
    h_spec spec = s->spec;
    spec.num_slots = 2;
    rssm_plugin *plugin = h_init(&spec);
    h_api()->prepare(plugin, NULL);
    h_api()->pool_create(plugin, NULL, NULL);
    return plugin;
}

static rssm_status stream_data(scene *s)
{
    rssm_plugin *plugin = pooled(s);
    uint64_t bytes = 0, written = 0;
    slots_api()->saved_bytes(plugin, &bytes, NULL);
    unsigned char *buffer = malloc(bytes);
    slots_api()->save(plugin, 0, buffer, bytes, &written, NULL, NULL);
    buffer[bytes / 2] ^= 1;
    rssm_status status = slots_api()->load(plugin, 1, buffer, bytes, NULL, &s->err);
    free(buffer);
    h_teardown(&plugin);
    return status;
}

static rssm_status no_slot(scene *s)
{
    rssm_plugin *plugin = pooled(s);
    uint64_t handle;
    int64_t slot;
    rssm_status status = RSSM_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = slots_api()->acquire(plugin, &handle, &slot, &s->err);
    h_teardown(&plugin);
    return status;
}

static rssm_status handle(scene *s)
{
    rssm_plugin *plugin = pooled(s);
    uint64_t given;
    int64_t slot;
    slots_api()->acquire(plugin, &given, &slot, NULL);
    slots_api()->release(plugin, given, NULL);
    rssm_status status = slots_api()->release(plugin, given, &s->err);
    h_teardown(&plugin);
    return status;
}

static const struct {
    rssm_status status;
    rssm_status (*provoke)(scene *s);
    const char *how;
} ways[] = {
    {RSSM_ERR_ARGUMENT, argument, "validate of layer 7 on an instance with one"},
    {RSSM_ERR_STRUCT_SIZE, struct_size, "init with args whose struct_size is 0"},
    {RSSM_ERR_OUT_OF_MEMORY, out_of_memory, "init with an allocator that has nothing"},
    {RSSM_ERR_OVERFLOW, overflow, "init for a pool beyond 2^63 bytes"},
    {RSSM_ERR_IO, io, "init from a file that is not there"},
    {RSSM_ERR_JSON, json, "init from a text with two commas"},
    {RSSM_ERR_CONFIG, config, "init from a config without its heads"},
    {RSSM_ERR_MODEL, model, "init from a Mamba-1 config"},
    {RSSM_ERR_TP, tp, "init for a third of two key heads"},
    {RSSM_ERR_STATE, state, "reset before pool_create"},
    {RSSM_ERR_ROLE, role, "validate of a GDN call with Mamba-2's z"},
    {RSSM_ERR_MISSING, missing, "validate without A_log"},
    {RSSM_ERR_SHAPE, shape, "validate with a ring made for another kernel"},
    {RSSM_ERR_DTYPE, dtype, "validate with a float16 state"},
    {RSSM_ERR_DEVICE, device, "validate with an output on a GPU, on a CPU instance"},
    {RSSM_ERR_STRIDE, stride, "validate with slots that overlap"},
    {RSSM_ERR_ALIGNMENT, alignment, "validate with a state 4 bytes off"},
    {RSSM_ERR_OVERLAP, overlap, "validate with an output inside the state"},
    {RSSM_ERR_VALUE, value, "validate with RSSM_CHECK_DEEP and a slot twice"},
    {RSSM_ERR_STREAM_DATA, stream_data, "load of a saved slot with one bit turned"},
    {RSSM_ERR_NO_SLOT, no_slot, "a third acquire on a pool of two slots"},
    {RSSM_ERR_HANDLE, handle, "a second release of a handle"},
};

/* Addresses and checksums differ from run to run: eight and more hexadecimal digits become "...". */
static void mask(char *to, const char *from)
{
    while (*from) {
        size_t digits = strspn(from, "0123456789abcdef");
        size_t kept = digits >= 8 ? 3 : digits ? digits : 1;
        memcpy(to, digits >= 8 ? "..." : from, kept);
        to += kept;
        from += digits ? digits : 1;
    }
    *to = 0;
}

/* A line of the table for way i; false: another status came. */
static bool make_line(size_t i, char *line, size_t size)
{
    scene s = {.spec = {.family = RSSM_FAMILY_GDN, .L = 8}, .err = h_error()};
    s.spec = h_defaults(s.spec);
    s.plugin = h_init(&s.spec);
    h_api()->prepare(s.plugin, NULL);
    s.call = h_call_new(&s.spec, 1);
    rssm_status status = ways[i].provoke(&s);
    char message[sizeof(s.err.message)];
    mask(message, s.err.message);
    snprintf(line, size, "| `%s` | %s | %s |", h_api()->status_name(ways[i].status), ways[i].how, message);
    h_call_free(s.call);
    h_teardown(&s.plugin);
    if (status != ways[i].status)
        fprintf(stderr, "%s: got %s instead\n", line, h_api()->status_name(status));
    return status == ways[i].status;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = calloc(1, 1 << 20);
    if (text && fread(text, 1, (1 << 20) - 1, f) == 0)
        text[0] = 0;
    fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    char *document = argc > 1 ? read_file(argv[1]) : NULL;
    bool good = argc <= 1 || document;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char line[2048];
        good = make_line(i, line, sizeof(line)) && good;
        if (!document) {
            puts(line);
        } else if (!strstr(document, line)) {
            fprintf(stderr, "%s lacks: %s\n", argv[1], line);
            good = false;
        }
    }
    free(document);
    return good ? 0 : 1;
}
