#define _POSIX_C_SOURCE 200809L
#include "core/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/config_read.h"

/* ---- models that are not ours ---- */

#define MAMBA_1   "Mamba-1 (per-channel A, no heads); only Mamba-2 is supported"
#define RWKV      "RWKV is not KDA/GDN/Mamba-2"
#define LIGHTNING "lightning attention is not KDA/GDN/Mamba-2"
#define RG_LRU    "RG-LRU is not KDA/GDN/Mamba-2"
#define FLA_OWN   "the config spelling of flash-linear-attention's own models is not read; give explicit dims"

/* By model_type; a name that ends in '*' is a prefix. */
static const struct {
    const char *type, *reason;
} refused_types[] = {
    {"mamba", MAMBA_1},
    {"falcon_mamba", MAMBA_1},
    {"jamba", MAMBA_1},
    {"zamba", MAMBA_1},
    {"rwkv*", RWKV},
    {"minimax_text_01", LIGHTNING},
    {"minimax_m1", LIGHTNING},
    {"minimax_vl_01", LIGHTNING},
    {"minimax", LIGHTNING},
    {"bailing_moe_linear", LIGHTNING},
    {"recurrent_gemma", RG_LRU},
    {"kda", FLA_OWN},
    {"gated_deltanet", FLA_OWN},
};

/* By a key that an unknown model_type has while it has none of ours. */
static const struct {
    rssm_key key;
    const char *reason;
} refused_keys[] = {
    {{RSSM_IN_DECODER, "attn_type_list"}, LIGHTNING}, {{RSSM_IN_DECODER, "mamba_dt_rank"}, MAMBA_1},
    {{RSSM_IN_DECODER, "time_step_rank"}, MAMBA_1},   {{RSSM_IN_DECODER, "state_size"}, MAMBA_1},
    {{RSSM_IN_DECODER, "mamba_d_state"}, MAMBA_1},
};

static bool type_matches(const char *type, const char *name)
{
    size_t n = strlen(name);
    if (n && name[n - 1] == '*')
        return strncmp(type, name, n - 1) == 0;
    return strcmp(type, name) == 0;
}

static rssm_status refuse_by_type(const rssm_reader *r)
{
    for (size_t i = 0; i < sizeof(refused_types) / sizeof(refused_types[0]); i++)
        if (type_matches(r->type, refused_types[i].type))
            return rssm_fail(r->err, RSSM_ERR_MODEL, "%s: %s", r->subject, refused_types[i].reason);
    return RSSM_OK;
}

static bool has_linear_words(const rssm_reader *r)
{
    static const rssm_key lists[] = {{RSSM_IN_DECODER, "layer_types"}, {RSSM_IN_DECODER, "layers_block_type"}};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        const cJSON *list = rssm_find(r, lists[i]);
        for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item; item = item->next)
            if (cJSON_IsString(item) &&
                (strcmp(item->valuestring, "linear_attention") == 0 || strcmp(item->valuestring, "mamba") == 0))
                return true;
    }
    return false;
}

/* No spelling fits: say what the model is instead, as well as its keys tell. */
static rssm_status refuse_by_keys(const rssm_reader *r)
{
    const char *where = r->places[RSSM_IN_DECODER].path;
    for (size_t i = 0; i < sizeof(refused_keys) / sizeof(refused_keys[0]); i++)
        if (rssm_has(r, refused_keys[i].key))
            return rssm_fail(r->err, RSSM_ERR_MODEL, "%s: %s (by %s in %s)", r->subject, refused_keys[i].reason,
                             refused_keys[i].key.name, where);
    if (has_linear_words(r))
        return rssm_fail(r->err, RSSM_ERR_CONFIG,
                         "%s: heads unknown: there are linear layers but no linear_attn_config, linear_num_key_heads, "
                         "mamba_num_heads, mamba_n_heads or n_mamba_heads (looked in %s)",
                         r->subject, where);
    return rssm_fail(r->err, RSSM_ERR_MODEL,
                     "%s: no KDA/GDN/Mamba-2 layer in this model (no linear_attn_config, linear_num_key_heads, "
                     "mamba_num_heads, mamba_n_heads, n_mamba_heads or ssm_cfg in %s)",
                     r->subject, where);
}

/* The original form: "layer" says which Mamba, and without it the class means the first. */
static rssm_status refuse_mamba1_ssm_cfg(const rssm_reader *r)
{
    const rssm_key key = {RSSM_IN_SSM_CFG, "layer"};
    const char *layer = NULL;
    if (!r->places[RSSM_IN_SSM_CFG].object)
        return RSSM_OK;
    rssm_status status = rssm_read_string(r, key, &layer);
    if (status)
        return status;
    if (layer && strcmp(layer, "Mamba2") == 0)
        return RSSM_OK;
    if (layer && strcmp(layer, "Mamba1") != 0)
        return rssm_fail_value(r, key, -1, rssm_find(r, key), "neither Mamba1 nor Mamba2");
    return rssm_fail(r->err, RSSM_ERR_MODEL, "%s: %s (ssm_cfg.layer is %s)", r->subject, MAMBA_1,
                     layer ? "Mamba1" : "absent, which means Mamba1");
}

/* ---- where the decoder's keys are ---- */

enum { MAX_OBJECT_KEYS = 4096 }; /* of an object that is searched: keeps a hostile config's cost linear */

static const char *const nested_names[] = {"text_config", "llm_config", "language_config"};
enum { NUM_NESTED = sizeof(nested_names) / sizeof(nested_names[0]) };

static rssm_status set_place(rssm_reader *r, rssm_place_id id, const cJSON *object, const char *path)
{
    int64_t count = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        count++;
    if (count > MAX_OBJECT_KEYS)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "config: %lld keys in %s, more than %d", (long long)count,
                         path ? path : "the top level", MAX_OBJECT_KEYS);
    r->places[id].object = object;
    r->places[id].path = path ? path : "top level";
    r->places[id].prefix = path ? rssm_arena_printf(r->arena, "%s.", path) : "";
    return r->places[id].prefix ? RSSM_OK : rssm_out_of_memory(r->err);
}

/* An object below the decoder, where it has one. */
static rssm_status set_inner_place(rssm_reader *r, rssm_place_id id, const char *name)
{
    const rssm_key key = {RSSM_IN_DECODER, name};
    const cJSON *object = rssm_find(r, key);
    const char *path = rssm_arena_printf(r->arena, "%s%s", r->places[RSSM_IN_DECODER].prefix, name);
    const char *prefix = path ? rssm_arena_printf(r->arena, "%s.", path) : NULL;
    if (!prefix)
        return rssm_out_of_memory(r->err);
    r->places[id].path = path;
    r->places[id].prefix = prefix;
    if (!object)
        return RSSM_OK;
    if (!cJSON_IsObject(object))
        return rssm_fail_value(r, key, -1, object, "not an object");
    return set_place(r, id, object, path);
}

/* The decoder is the nested object that has a key of ours, else a lone nested object when the top level has none, else
 * the top level. */
static rssm_status find_decoder(rssm_reader *r)
{
    const bool top_has = rssm_has_any_sign(r);
    const char *with_sign = NULL, *without = NULL;
    int32_t count = 0;
    for (int i = 0; i < NUM_NESTED; i++) {
        const cJSON *object = rssm_find(r, (rssm_key){RSSM_IN_TOP, nested_names[i]});
        if (!object)
            continue;
        if (!cJSON_IsObject(object))
            return rssm_fail_value(r, (rssm_key){RSSM_IN_TOP, nested_names[i]}, -1, object, "not an object");
        rssm_status status = set_place(r, RSSM_IN_DECODER, object, nested_names[i]);
        if (status)
            return status;
        without = nested_names[i];
        count++;
        if (!rssm_has_any_sign(r))
            continue;
        if (with_sign)
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "config: both %s and %s describe linear layers", with_sign,
                             nested_names[i]);
        with_sign = nested_names[i];
    }
    const char *name = with_sign ? with_sign : (count == 1 && !top_has) ? without : NULL;
    const cJSON *top = r->places[RSSM_IN_TOP].object;
    return set_place(r, RSSM_IN_DECODER, name ? rssm_find(r, (rssm_key){RSSM_IN_TOP, name}) : top, name);
}

/* Numbers, strings, booleans and arrays of them; objects count as equal, they are compared key by key elsewhere. */
static bool same_json(const cJSON *a, const cJSON *b)
{
    if (cJSON_IsArray(a) && cJSON_IsArray(b)) {
        const cJSON *x = a->child, *y = b->child;
        for (; x && y; x = x->next, y = y->next)
            if (!cJSON_IsArray(x) && !same_json(x, y))
                return false;
        return !x && !y;
    }
    if (cJSON_IsNumber(a) && cJSON_IsNumber(b))
        return a->valuedouble == b->valuedouble;
    if (cJSON_IsString(a) && cJSON_IsString(b))
        return strcmp(a->valuestring, b->valuestring) == 0;
    return (a->type & 0xFF) == (b->type & 0xFF);
}

/* Keys that mean one thing wherever they stand: a copy at the top level may not contradict the decoder's object. */
static rssm_status refuse_contradicting_top(const rssm_reader *r)
{
    static const char *const names[] = {
        "num_hidden_layers",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "full_attention_interval",
        "linear_num_heads",
        "linear_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "gate_lower_bound",
        "linear_lower_bound",
        "linear_allow_neg_eigval",
        "mamba_num_heads",
        "mamba_head_dim",
        "ssm_state_size",
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_d_ssm",
        "n_mamba_heads",
        "mamba_headdim",
        "mamba_ngroups",
        "mamba_ssm_dtype",
        "mamba_ssm_cache_dtype",
        "attn_layer_indices",
    };
    if (r->places[RSSM_IN_DECODER].object == r->places[RSSM_IN_TOP].object)
        return RSSM_OK;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const cJSON *inner = rssm_find(r, (rssm_key){RSSM_IN_DECODER, names[i]});
        const cJSON *outer = rssm_find(r, (rssm_key){RSSM_IN_TOP, names[i]});
        if (inner && outer && !same_json(inner, outer))
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "config: %s has different values in the top level and in %s",
                             names[i], r->places[RSSM_IN_DECODER].path);
    }
    return RSSM_OK;
}

/* The decoder's model_type, else the top level's; the model keeps the top level's where it has one. */
static rssm_status read_type(rssm_reader *r)
{
    const char *inner, *outer;
    rssm_status status = rssm_read_string(r, (rssm_key){RSSM_IN_DECODER, "model_type"}, &inner);
    if (!status)
        status = rssm_read_string(r, (rssm_key){RSSM_IN_TOP, "model_type"}, &outer);
    if (status)
        return status;
    r->type = inner ? inner : outer ? outer : "";
    r->subject = r->type[0] ? rssm_arena_printf(r->arena, "%.60s", r->type) : "config";
    r->model->model_type = rssm_arena_printf(r->arena, "%s", outer ? outer : r->type);
    return r->subject && r->model->model_type ? RSSM_OK : rssm_out_of_memory(r->err);
}

static rssm_status find_places(rssm_reader *r, const cJSON *root)
{
    if (!cJSON_IsObject(root))
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "config: the JSON value is not an object");
    rssm_status status = set_place(r, RSSM_IN_TOP, root, NULL);
    r->places[RSSM_IN_DECODER] = r->places[RSSM_IN_TOP];
    if (!status)
        status = find_decoder(r);
    if (!status)
        status = read_type(r);
    if (!status)
        status = refuse_contradicting_top(r);
    if (!status)
        status = set_inner_place(r, RSSM_IN_LINEAR_ATTN, "linear_attn_config");
    return status ? status : set_inner_place(r, RSSM_IN_SSM_CFG, "ssm_cfg");
}

/* ---- dtypes ---- */

static const struct {
    const char *name;
    int32_t dtype;
} dtype_names[] = {
    {"float32", RSSM_DTYPE_FLOAT32},
    {"bfloat16", RSSM_DTYPE_BFLOAT16},
    {"float16", RSSM_DTYPE_FLOAT16},
};

/* Reads a dtype's name, with or without "torch."; absent, null and "auto" leave *out. */
static rssm_status read_dtype(rssm_reader *r, rssm_key key, int32_t *out)
{
    const char *text;
    rssm_status status = rssm_read_string(r, key, &text);
    if (status || !text || strcmp(text, "auto") == 0)
        return status;
    const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < sizeof(dtype_names) / sizeof(dtype_names[0]); i++) {
        if (strcmp(name, dtype_names[i].name) != 0)
            continue;
        if (*out && *out != dtype_names[i].dtype)
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s (%s) is %s, and its other spelling is not", r->subject,
                             key.name, r->places[key.in].path, text);
        *out = dtype_names[i].dtype;
        return rssm_note_read(r, key, "%s", dtype_names[i].name);
    }
    return rssm_fail_value(r, key, -1, rssm_find(r, key), "not float32, bfloat16 or float16");
}

/* dtype and torch_dtype of the decoder's object, else of the top level. */
static rssm_status read_io_dtype(rssm_reader *r)
{
    static const rssm_place_id places[] = {RSSM_IN_DECODER, RSSM_IN_TOP};
    int32_t *out = &r->model->io_dtype;
    for (int i = 0; i < 2 && !*out; i++) {
        rssm_status status = read_dtype(r, (rssm_key){places[i], "dtype"}, out);
        if (!status)
            status = read_dtype(r, (rssm_key){places[i], "torch_dtype"}, out);
        if (status)
            return status;
    }
    if (*out)
        return RSSM_OK;
    *out = RSSM_DTYPE_BFLOAT16;
    return rssm_note_assumed(r, "dtype = bfloat16 (not in the config)");
}

static rssm_status read_state_dtype(rssm_reader *r)
{
    static const char *const key_of_family[] = {
        [RSSM_FAMILY_GDN] = "mamba_ssm_dtype",
        [RSSM_FAMILY_MAMBA2] = "mamba_ssm_cache_dtype",
    };
    int32_t *out = &r->model->state_dtype;
    if (r->model->family != RSSM_FAMILY_KDA) {
        rssm_status status = read_dtype(r, (rssm_key){RSSM_IN_DECODER, key_of_family[r->model->family]}, out);
        if (status)
            return status;
    }
    if (!*out)
        *out = RSSM_DTYPE_FLOAT32;
    return RSSM_OK;
}

/* ---- entry points ---- */

static rssm_status read_model(rssm_reader *r, const cJSON *root)
{
    const rssm_spelling *spelling = NULL;
    rssm_status status = find_places(r, root);
    if (!status)
        status = refuse_by_type(r);
    if (!status)
        status = refuse_mamba1_ssm_cfg(r);
    if (!status)
        status = rssm_find_spelling(r, &spelling);
    if (!status)
        status = spelling ? rssm_read_spelling(r, spelling) : refuse_by_keys(r);
    if (!status)
        status = read_io_dtype(r);
    return status ? status : read_state_dtype(r);
}

rssm_status rssm_config_read(rssm_model *model, rssm_arena *arena, const char *text, uint64_t length, rssm_error *err)
{
    rssm_json json;
    *model = (rssm_model){0};
    rssm_status status = rssm_json_parse(&json, arena->mem, text, length, err);
    if (status)
        return status;
    rssm_reader reader = {.model = model, .arena = arena, .err = err, .subject = "config", .type = ""};
    status = read_model(&reader, json.root);
    rssm_json_close(&json);
    return status;
}

static rssm_status fail_io(rssm_error *err, const char *path, const char *what)
{
    return rssm_fail(err, RSSM_ERR_IO, "config_path \"%.300s\": %s", path, what);
}

static const char *errno_text(int error)
{
    switch (error) {
    case ENOENT:
        return "no such file";
    case ENOTDIR:
        return "a part of the path is not a directory";
    case EACCES:
        return "permission denied";
    case ENAMETOOLONG:
        return "the path is too long";
    default:
        return "cannot be read";
    }
}

/* Reads exactly size bytes. */
static rssm_status read_bytes(int file, char *text, size_t size, const char *path, rssm_error *err)
{
    for (size_t have = 0; have < size;) {
        ssize_t got = read(file, text + have, size - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_io(err, path, got < 0 ? errno_text(errno) : "it shrank while it was read");
        have += (size_t)got;
    }
    return RSSM_OK;
}

static rssm_status read_open_file(rssm_model *model, rssm_arena *arena, int file, const char *path, rssm_error *err)
{
    struct stat info;
    if (fstat(file, &info) != 0)
        return fail_io(err, path, errno_text(errno));
    if (!S_ISREG(info.st_mode))
        return fail_io(err, path, S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file");
    if (info.st_size > RSSM_CONFIG_MAX_BYTES)
        return fail_io(err, path, "larger than the limit of 8388608 bytes");
    const size_t size = (size_t)info.st_size;
    char *text = rssm_mem_alloc(arena->mem, size + 1, 16);
    if (!text)
        return rssm_out_of_memory(err);
    rssm_status status = read_bytes(file, text, size, path, err);
    if (!status)
        status = rssm_config_read(model, arena, text, size, err);
    rssm_mem_free(arena->mem, text, size + 1);
    return status;
}

rssm_status rssm_config_read_file(rssm_model *model, rssm_arena *arena, const char *path, rssm_error *err)
{
    /* O_NONBLOCK: a FIFO is refused below and must not hang the open. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return fail_io(err, path, errno_text(errno));
    rssm_status status = read_open_file(model, arena, file, path, err);
    close(file);
    return status;
}
