/* Public models: what the config reader makes of them, and what the plugin's pool then is on 1, 2, 4 and 8 ranks. Two
 * sources of truth: the expected.json beside each shared model, and, for configs/ (always there), a table below and the
 * sizes written out from the definitions. The pool is asked for through the public ABI alone.
 *
 * RSSM_SOURCE_ROOT: the source tree [.]; RSSM_MODELS: the folder of shared models [$RSSM_SOURCE_ROOT/../shared/models],
 * skipped when it is not there; RSSM_PLUGIN: the plugin [$RSSM_SOURCE_ROOT/build/plugin/replayssm.so]. */
#define _XOPEN_SOURCE 700
#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/config.h"
#include "core/json.h"
#include "replayssm.h"

enum { RING = 16, PATH_BYTES = 1024 };

static const int32_t tp_sizes[] = {1, 2, 4, 8};
enum { NUM_TP = 4 };

/* ---- where things are ---- */

static void source_path(char *path, const char *below)
{
    const char *root = getenv("RSSM_SOURCE_ROOT");
    snprintf(path, PATH_BYTES, "%s/%s", root ? root : ".", below);
}

static void models_path(char *path)
{
    const char *models = getenv("RSSM_MODELS");
    if (models)
        snprintf(path, PATH_BYTES, "%s", models);
    else
        source_path(path, "../shared/models");
}

/* Names in a folder that end in `suffix`, or folders for "", sorted. */
enum { MAX_NAMES = 512 };
typedef struct name_list {
    char folder[PATH_BYTES];
    char *names[MAX_NAMES];
    int count;
} name_list;

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool wanted(const name_list *list, const char *name, const char *suffix)
{
    const size_t n = strlen(name), s = strlen(suffix);
    char path[2 * PATH_BYTES];
    struct stat info;
    if (name[0] == '.' || n < s || strcmp(name + n - s, suffix) != 0)
        return false;
    snprintf(path, sizeof(path), "%s/%s", list->folder, name);
    return stat(path, &info) == 0 && (S_ISDIR(info.st_mode) != 0) == (s == 0);
}

static void list_names(name_list *list, const char *suffix)
{
    DIR *dir = opendir(list->folder);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) && list->count < MAX_NAMES;)
        if (wanted(list, entry->d_name, suffix))
            list->names[list->count++] = strdup(entry->d_name);
    closedir(dir);
    qsort(list->names, (size_t)list->count, sizeof(list->names[0]), compare_names);
}

static name_list models, configs;

/* ---- what a model must be ---- */

typedef struct expected_model {
    int32_t family, num_layers, num_linear;
    int32_t H, HV, K, V, conv;
    double bound, beta_scale, dt_min, dt_max; /* bound 0 = none */
} expected_model;

/* ---- the plugin, through its one symbol ---- */

typedef struct loaded_plugin {
    void *library;
    const rssm_api *api;
} loaded_plugin;

static loaded_plugin load_plugin(void)
{
    loaded_plugin p;
    char path[PATH_BYTES];
    const char *given = getenv("RSSM_PLUGIN");
    if (given)
        snprintf(path, sizeof(path), "%s", given);
    else
        source_path(path, "build/plugin/replayssm.so");
    p.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(p.library != NULL, "%s", dlerror());
    rssm_get_api_fn get;
    *(void **)&get = dlsym(p.library, RSSM_GET_API_SYMBOL);
    p.api = get(RSSM_ABI_MAJOR);
    ck_assert_ptr_nonnull(p.api);
    return p;
}

/* An instance for one rank, with what it says of itself. */
typedef struct rank_fixture {
    loaded_plugin lib;
    rssm_plugin *plugin;
    rssm_description about;
    rssm_layout layout;
    rssm_error err;
    rssm_status status;
} rank_fixture;

static void open_rank(rank_fixture *f, const char *config, int32_t tp_size, int32_t tp_rank)
{
    memset(f, 0, sizeof(*f));
    f->lib = load_plugin();
    f->err.struct_size = sizeof(f->err);
    f->about.struct_size = sizeof(f->about);
    f->layout.struct_size = sizeof(f->layout);
    const rssm_init_args args = {.struct_size = sizeof(args),
                                 .config_path = config,
                                 .tp_size = tp_size,
                                 .tp_rank = tp_rank,
                                 .ring_length = RING,
                                 .io_dtype = RSSM_DTYPE_BFLOAT16,
                                 .state_dtype = RSSM_DTYPE_FLOAT32,
                                 .flags = RSSM_INIT_CONV_STATE};
    f->status = f->lib.api->init(&args, &f->plugin, &f->err);
    if (f->status) {
        ck_assert_ptr_null(f->plugin);
        return;
    }
    ck_assert_int_eq(f->lib.api->describe(f->plugin, &f->about, &f->err), RSSM_OK);
    ck_assert_int_eq(f->lib.api->pool_layout(f->plugin, &f->layout, &f->err), RSSM_OK);
}

static void close_rank(rank_fixture *f)
{
    ck_assert_int_eq(f->lib.api->teardown(&f->plugin, NULL), RSSM_OK);
    dlclose(f->lib.library);
}

/* The pool's tensor of a role, or NULL. */
static const rssm_tensor_info *tensor_of(const rssm_layout *layout, int32_t role)
{
    for (int32_t i = 0; i < layout->num_tensors; i++) {
        const char *at = (const char *)layout->tensors + (uint64_t)i * layout->tensors[0].struct_size;
        const rssm_tensor_info *tensor = (const rssm_tensor_info *)(const void *)at;
        if (tensor->role == role)
            return tensor;
    }
    return NULL;
}

/* Bytes of a role per slot over all linear layers of the rank. */
static int64_t bytes_of(const rssm_layout *layout, int32_t role)
{
    const rssm_tensor_info *tensor = tensor_of(layout, role);
    ck_assert_msg(tensor != NULL, "no tensor of role %d", role);
    return tensor->bytes_per_slot * layout->num_layers;
}

/* ---- the shared models ---- */

typedef struct expected_file {
    rssm_allocator mem;
    rssm_json json;
    char config[2 * PATH_BYTES];
} expected_file;

static char *read_whole(const char *path, uint64_t *length)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    char *text = malloc(1 << 20);
    *length = fread(text, 1, 1 << 20, file);
    fclose(file);
    return text;
}

static void open_expected(expected_file *f, int model)
{
    char path[2 * PATH_BYTES];
    uint64_t length;
    rssm_error err = {.struct_size = sizeof(err)};
    snprintf(f->config, sizeof(f->config), "%s/%s/config.json", models.folder, models.names[model]);
    snprintf(path, sizeof(path), "%s/%s/expected.json", models.folder, models.names[model]);
    char *text = read_whole(path, &length);
    f->mem = rssm_mem_default();
    ck_assert_msg(rssm_json_parse(&f->json, &f->mem, text, length, &err) == RSSM_OK, "%s: %s", path, err.message);
    free(text);
}

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static int64_t integer(const cJSON *object, const char *key)
{
    const cJSON *item = get(object, key);
    ck_assert_msg(cJSON_IsNumber(item), "expected.json has no number %s", key);
    return (int64_t)item->valuedouble;
}

/* A number, `fallback` if it is absent or null, or an infinity. */
static double number(const cJSON *item, double fallback)
{
    if (!item || cJSON_IsNull(item))
        return fallback;
    if (rssm_json_is_infinity(item))
        return rssm_json_is_infinity(item) * (double)INFINITY;
    ck_assert(cJSON_IsNumber(item));
    return item->valuedouble;
}

static int32_t family_of(const cJSON *root)
{
    const char *name = cJSON_GetStringValue(get(root, "family"));
    ck_assert_ptr_nonnull(name);
    return strcmp(name, "kda") == 0 ? RSSM_FAMILY_KDA : strcmp(name, "gdn") == 0 ? RSSM_FAMILY_GDN : RSSM_FAMILY_MAMBA2;
}

static expected_model expected_of(const cJSON *root)
{
    const int32_t family = family_of(root);
    const bool mamba = family == RSSM_FAMILY_MAMBA2;
    const cJSON *limit = get(root, "time_step_limit");
    expected_model m = {
        .family = family,
        .num_layers = (int32_t)integer(root, "num_layers_total"),
        .num_linear = (int32_t)integer(root, "num_linear_layers"),
        .H = (int32_t)integer(root, mamba ? "ngroups" : "H"),
        .HV = (int32_t)integer(root, mamba ? "nheads" : "HV"),
        .K = (int32_t)integer(root, mamba ? "dstate" : "K"),
        .V = (int32_t)integer(root, mamba ? "dim" : "V"),
        .conv = (int32_t)integer(root, "conv_kernel"),
        .bound = number(get(root, "lower_bound"), 0),
        .beta_scale = number(get(root, "beta_scale"), 1),
        .dt_max = INFINITY,
    };
    if (cJSON_IsArray(limit)) {
        m.dt_min = number(limit->child, 0);
        m.dt_max = number(limit->child->next, 0);
    }
    return m;
}

static void expect_model(const rssm_description *d, const expected_model *m, const char *name)
{
    ck_assert_msg(d->family == m->family, "%s: family %s", name, d->family_name);
    ck_assert_msg(d->num_layers == m->num_layers, "%s: %d layers, not %d", name, d->num_layers, m->num_layers);
    ck_assert_msg(d->num_linear_layers == m->num_linear, "%s: %d linear layers, not %d", name, d->num_linear_layers,
                  m->num_linear);
    ck_assert_msg(d->model_H == m->H && d->model_HV == m->HV, "%s: H, HV = %d, %d, not %d, %d", name, d->model_H,
                  d->model_HV, m->H, m->HV);
    ck_assert_msg(d->K == m->K && d->V == m->V, "%s: K, V = %d, %d, not %d, %d", name, d->K, d->V, m->K, m->V);
    ck_assert_msg(d->conv_kernel == m->conv, "%s: convolution of %d, not %d", name, d->conv_kernel, m->conv);
    ck_assert_msg(d->has_lower_bound == (m->bound != 0) && d->lower_bound == m->bound, "%s: bound %g, not %g", name,
                  d->lower_bound, m->bound);
    ck_assert_msg(d->beta_scale == m->beta_scale, "%s: beta * %g, not %g", name, d->beta_scale, m->beta_scale);
    const int32_t gate = m->family == RSSM_FAMILY_MAMBA2 ? RSSM_GATE_MAMBA2
                         : m->bound != 0                 ? RSSM_GATE_BOUNDED
                                                         : RSSM_GATE_SOFTPLUS;
    ck_assert_int_eq(d->gate_kind, gate);
    if (m->family == RSSM_FAMILY_MAMBA2)
        ck_assert_msg(d->time_step_limit_min == m->dt_min && d->time_step_limit_max == m->dt_max,
                      "%s: dt in [%g, %g], not [%g, %g]", name, d->time_step_limit_min, d->time_step_limit_max,
                      m->dt_min, m->dt_max);
}

/* A model that must be refused says why, in the reader and in the plugin alike. */
static void expect_refusal(const expected_file *x, const char *why)
{
    rssm_arena arena = {.mem = &x->mem};
    rssm_model model;
    rssm_error err = {.struct_size = sizeof(err)};
    const rssm_status status = rssm_config_read_file(&model, &arena, x->config, &err);
    rssm_arena_free(&arena);
    ck_assert_msg(status == RSSM_ERR_CONFIG || status == RSSM_ERR_MODEL, "%s: status %d", x->config, status);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s: \"%s\" lacks \"%s\"", x->config, err.message, why);
    rank_fixture f;
    open_rank(&f, x->config, 1, 0);
    ck_assert_int_eq(f.status, status);
    ck_assert_str_eq(f.err.message, err.message);
    close_rank(&f);
}

START_TEST(test_shared_model)
{
    expected_file x;
    open_expected(&x, _i);
    const char *refuse = cJSON_GetStringValue(get(x.json.root, "refuse"));
    if (refuse) {
        expect_refusal(&x, refuse);
        rssm_json_close(&x.json);
        return;
    }
    const expected_model m = expected_of(x.json.root);
    rank_fixture f;
    open_rank(&f, x.config, 1, 0);
    ck_assert_msg(f.status == RSSM_OK, "%s: %s", x.config, f.err.message);
    expect_model(&f.about, &m, models.names[_i]);
    int32_t i = 0;
    for (const cJSON *layer = get(x.json.root, "linear_layers")->child; layer; layer = layer->next, i++)
        ck_assert_int_eq(f.about.linear_layers[i], (int32_t)layer->valuedouble);
    ck_assert_int_eq(i, m.num_linear);
    close_rank(&f);
    rssm_json_close(&x.json);
}
END_TEST

/* The sizes that expected.json gives for one rank. */
static void expect_sizes(const rank_fixture *f, const cJSON *per_tp, bool mamba)
{
    static const struct {
        const char *key;
        int32_t role;
        bool mamba;
    } roles[] = {{"ring_d", RSSM_T_D_CACHE, false},  {"ring_k", RSSM_T_K_CACHE, false},
                 {"ring_g", RSSM_T_G_CACHE, false},  {"ring_x", RSSM_T_X_CACHE, true},
                 {"ring_dt", RSSM_T_DT_CACHE, true}, {"ring_B", RSSM_T_B_CACHE, true}};
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (roles[i].mamba == mamba)
            ck_assert_int_eq(bytes_of(&f->layout, roles[i].role), integer(per_tp, roles[i].key));
    ck_assert_int_eq(f->about.H, integer(per_tp, mamba ? "ngroups" : "H"));
    ck_assert_int_eq(f->about.HV, integer(per_tp, mamba ? "nheads" : "HV"));
    ck_assert_int_eq(f->about.conv_channels, integer(per_tp, "conv_dim"));
    ck_assert_int_eq(tensor_of(&f->layout, RSSM_T_CONV)->shape[2], integer(per_tp, "conv_len"));
    ck_assert_int_eq(f->layout.slot_state_bytes, integer(per_tp, "state_fp32_bytes"));
    ck_assert_int_eq(f->layout.slot_ring_bytes, integer(per_tp, "ring_bytes"));
    ck_assert_int_eq(f->layout.slot_conv_bytes, integer(per_tp, "conv_bf16_bytes"));
    ck_assert_int_eq(f->layout.slot_total_bytes, integer(per_tp, "total_bytes"));
}

/* Legal, or refused with RSSM_ERR_TP: on the first and the last rank, whose layouts must be one. */
START_TEST(test_shared_sizes)
{
    expected_file x;
    open_expected(&x, _i / NUM_TP);
    const int32_t tp = tp_sizes[_i % NUM_TP];
    char key[16];
    snprintf(key, sizeof(key), "%d", tp);
    const cJSON *per_tp = get(get(x.json.root, "per_tp"), key);
    uint64_t hash = 0;
    for (int32_t rank = 0; per_tp && rank<tp; rank += tp> 1 ? tp - 1 : 1) {
        const char *legal = cJSON_GetStringValue(get(per_tp, "legal"));
        rank_fixture f;
        open_rank(&f, x.config, tp, rank);
        if (strncmp(legal, "illegal", 7) == 0) {
            ck_assert_msg(f.status == RSSM_ERR_TP, "%s tp %d (%s): %d", x.config, tp, legal, f.status);
        } else {
            ck_assert_msg(f.status == RSSM_OK, "%s tp %d: %s", x.config, tp, f.err.message);
            expect_sizes(&f, per_tp, family_of(x.json.root) == RSSM_FAMILY_MAMBA2);
            ck_assert(rank == 0 || f.layout.layout_hash == hash);
            hash = f.layout.layout_hash;
        }
        close_rank(&f);
    }
    rssm_json_close(&x.json);
}
END_TEST

/* ---- configs/ ---- */

#define KDA_OF(layers, linear, heads, bound)                                                      \
    {                                                                                             \
        RSSM_FAMILY_KDA, layers, linear, heads, heads, 128, 128, 4, bound, 1, 0, (double)INFINITY \
    }
#define GDN_OF(layers, linear, h, hv, k, v, beta)                                     \
    {                                                                                 \
        RSSM_FAMILY_GDN, layers, linear, h, hv, k, v, 4, 0, beta, 0, (double)INFINITY \
    }
#define MAMBA_OF(layers, linear, ng, nh, n, p, dt_max)                       \
    {                                                                        \
        RSSM_FAMILY_MAMBA2, layers, linear, ng, nh, n, p, 4, 0, 1, 0, dt_max \
    }

static const struct {
    const char *file;
    int32_t first[6]; /* linear layers, from the start */
    expected_model model;
} config_table[] = {
    {"bamba-9b-v2.json", {0, 1, 2, 3, 4, 5}, MAMBA_OF(32, 29, 1, 128, 128, 64, (double)INFINITY)},
    {"falcon-h1-1.5b-instruct.json", {0, 1, 2, 3, 4, 5}, MAMBA_OF(24, 24, 1, 48, 256, 64, (double)INFINITY)},
    {"glm-5.3-flash-flattened.json", {0, 1, 2, 4, 5, 6}, KDA_OF(45, 34, 64, -5)},
    {"glm-5.3-flash.json", {0, 1, 2, 4, 5, 6}, KDA_OF(45, 34, 64, -5)},
    {"granite-4.0-h-small.json", {0, 1, 2, 3, 4, 6}, MAMBA_OF(40, 36, 1, 128, 128, 64, (double)INFINITY)},
    {"kimi-k3.json", {0, 1, 2, 4, 5, 6}, KDA_OF(93, 69, 96, -5)},
    {"kimi-linear-48b-a3b.json", {0, 1, 2, 4, 5, 6}, KDA_OF(27, 20, 32, 0)},
    {"mamba-codestral-7b.json", {0, 1, 2, 3, 4, 5}, MAMBA_OF(64, 64, 8, 128, 128, 64, (double)INFINITY)},
    {"mamba2-2.7b.json", {0, 1, 2, 3, 4, 5}, MAMBA_OF(64, 64, 1, 80, 128, 64, (double)INFINITY)},
    {"nemotron-3-nano-30b-a3b.json", {0, 2, 4, 7, 9, 11}, MAMBA_OF(52, 23, 8, 64, 128, 64, (double)INFINITY)},
    {"nemotron-3-super-120b-a12b-resaved.json",
     {0, 2, 4, 6, 9, 11},
     MAMBA_OF(88, 40, 8, 128, 128, 64, (double)INFINITY)},
    {"nemotron-3-ultra-550b-a55b.json", {0, 2, 4, 6, 9, 11}, MAMBA_OF(108, 48, 8, 256, 128, 64, 1e308)},
    {"nemotron-h-56b.json", {0, 2, 4, 6, 9, 11}, MAMBA_OF(118, 54, 8, 256, 256, 64, (double)INFINITY)},
    {"olmo-hybrid-7b.json", {0, 1, 2, 4, 5, 6}, GDN_OF(32, 24, 30, 30, 96, 192, 2)},
    {"qwen3-next-80b-a3b.json", {0, 1, 2, 4, 5, 6}, GDN_OF(48, 36, 16, 32, 128, 128, 1)},
    {"qwen3.5-35b-a3b.json", {0, 1, 2, 4, 5, 6}, GDN_OF(40, 30, 16, 32, 128, 128, 1)},
    {"zamba2-7b.json", {0, 1, 2, 3, 4, 5}, MAMBA_OF(81, 81, 2, 112, 64, 64, (double)INFINITY)},
};
enum { NUM_CONFIGS = sizeof(config_table) / sizeof(config_table[0]) };

/* The folder and the table are the same list. */
START_TEST(test_every_config_is_listed)
{
    ck_assert_int_eq(configs.count, NUM_CONFIGS);
    for (int i = 0; i < configs.count; i++)
        ck_assert_str_eq(configs.names[i], config_table[i].file);
}
END_TEST

START_TEST(test_config)
{
    char path[2 * PATH_BYTES];
    rank_fixture f;
    snprintf(path, sizeof(path), "%s/%s", configs.folder, config_table[_i].file);
    open_rank(&f, path, 1, 0);
    ck_assert_msg(f.status == RSSM_OK, "%s: %s", path, f.err.message);
    expect_model(&f.about, &config_table[_i].model, config_table[_i].file);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(f.about.linear_layers[i], config_table[_i].first[i]);
    ck_assert_int_ge(f.about.num_read, 3);
    close_rank(&f);
}
END_TEST

/* Bytes of one slot and layer, from the table of the pool's tensors. */
typedef struct slot_bytes {
    int64_t state, ring, conv;
} slot_bytes;

static slot_bytes size_of(const expected_model *m, int64_t H, int64_t HV)
{
    const int64_t f32 = 4, bf16 = 2, K = m->K, V = m->V;
    const int64_t value_row = HV * V * bf16, key_row = H * K * bf16;
    const int64_t gate_row = (m->family == RSSM_FAMILY_KDA ? HV * K : HV) * f32;
    return (slot_bytes){.state = HV * V * K * f32,
                        .ring = RING * (value_row + key_row + gate_row),
                        .conv = (2 * H * K + HV * V) * (m->conv - 1) * bf16};
}

/* This rank's key heads or groups; 0 if they cannot be split. */
static int32_t groups_on_rank(const expected_model *m, int32_t tp)
{
    if (m->HV % tp != 0)
        return 0;
    if (m->H % tp == 0)
        return m->H / tp;
    return m->family == RSSM_FAMILY_MAMBA2 && tp % m->H == 0 ? 1 : 0;
}

START_TEST(test_config_sizes)
{
    const expected_model *m = &config_table[_i / NUM_TP].model;
    const int32_t tp = tp_sizes[_i % NUM_TP], H = groups_on_rank(m, tp);
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", configs.folder, config_table[_i / NUM_TP].file);
    for (int32_t rank = 0; rank < tp; rank++) {
        rank_fixture f;
        open_rank(&f, path, tp, rank);
        if (!H) {
            ck_assert_int_eq(f.status, RSSM_ERR_TP);
        } else {
            ck_assert_msg(f.status == RSSM_OK, "%s tp %d: %s", path, tp, f.err.message);
            const slot_bytes one = size_of(m, H, m->HV / tp);
            ck_assert_int_eq(f.about.head_begin, rank * (m->HV / tp));
            ck_assert_int_eq(f.about.group_begin, (int64_t)rank * m->H / tp);
            ck_assert_int_eq(f.layout.slot_state_bytes, one.state * m->num_linear);
            ck_assert_int_eq(f.layout.slot_ring_bytes, one.ring * m->num_linear);
            ck_assert_int_eq(f.layout.slot_conv_bytes, one.conv * m->num_linear);
            ck_assert_int_eq(f.layout.slot_total_bytes, (one.state + one.ring + one.conv) * m->num_linear);
        }
        close_rank(&f);
    }
}
END_TEST

static Suite *models_suite(void)
{
    Suite *suite = suite_create("models");
    TCase *ours = tcase_create("configs");
    tcase_set_timeout(ours, 30);
    tcase_add_test(ours, test_every_config_is_listed);
    tcase_add_loop_test(ours, test_config, 0, NUM_CONFIGS);
    tcase_add_loop_test(ours, test_config_sizes, 0, NUM_CONFIGS * NUM_TP);
    suite_add_tcase(suite, ours);
    if (!models.count) {
        printf("no shared models in %s: skipped\n", models.folder);
        return suite;
    }
    TCase *shared = tcase_create("shared models");
    tcase_set_timeout(shared, 30);
    tcase_add_loop_test(shared, test_shared_model, 0, models.count);
    tcase_add_loop_test(shared, test_shared_sizes, 0, models.count * NUM_TP);
    suite_add_tcase(suite, shared);
    return suite;
}

int main(void)
{
    models_path(models.folder);
    list_names(&models, "");
    source_path(configs.folder, "configs");
    list_names(&configs, ".json");
    SRunner *runner = srunner_create(models_suite());
    srunner_run_all(runner, CK_NORMAL);
    const int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures != 0;
}
