/* How published configs spell heads, dims and gates, as a table: one entry per spelling. A new model_type needs no entry
 * when its keys are one of these; a known one gets better errors by having one. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/config_read.h"

#define IN_DEC(name)          \
    {                         \
        RSSM_IN_DECODER, name \
    }
#define IN_LIN(name)              \
    {                             \
        RSSM_IN_LINEAR_ATTN, name \
    }
#define IN_SSM(name)          \
    {                         \
        RSSM_IN_SSM_CFG, name \
    }
#define NUM_HIDDEN_LAYERS               \
    {                                   \
        {                               \
            IN_DEC("num_hidden_layers") \
        }                               \
    }

/* Mamba-2's sizes. Width = heads * dim, the inner dimension. */
typedef struct mamba_keys {
    rssm_keys heads, dim, groups, state, conv, expand, width, hidden;
    bool derives_heads;    /* heads may be missing: width / dim                    */
    bool width_is_checked; /* expand * hidden (or the width key) must be heads*dim */
    bool has_defaults;     /* the ssm_cfg form's class defaults                    */
} mamba_keys;

enum { MAX_SIGNS = 4, MAX_TYPES = 14 };

struct rssm_spelling {
    int32_t family;
    rssm_key signs[MAX_SIGNS]; /* any of them shows the spelling ...                  */
    bool needs_all_signs;      /* ... or all of them together, names being too common */
    const char *types[MAX_TYPES];
    rssm_layer_rules layers;
    rssm_status (*read)(rssm_reader *r, const mamba_keys *keys);
    mamba_keys mamba;
};

static rssm_status read_kda(rssm_reader *r, const mamba_keys *unused);
static rssm_status read_gdn(rssm_reader *r, const mamba_keys *unused);
static rssm_status read_mamba2(rssm_reader *r, const mamba_keys *keys);

/* clang-format off */
static const rssm_spelling spellings[] = {
    { /* Kimi Linear, Kimi K3, GLM-5.3; flattened by re-saving */
        .family = RSSM_FAMILY_KDA,
        .signs = {IN_DEC("linear_attn_config"), IN_DEC("linear_num_heads"), IN_DEC("linear_head_dim")},
        .types = {"kimi_linear", "kimi_k3", "glm5_next", "glm5_next_text"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .kda_lists = true, .lists = {{IN_LIN("kda_layers"), IN_DEC("layer_types")}}},
        .read = read_kda,
    },
    { /* Qwen3-Next, Qwen3.5 and later, Olmo Hybrid */
        .family = RSSM_FAMILY_GDN,
        .signs = {IN_DEC("linear_num_key_heads"), IN_DEC("linear_num_value_heads"), IN_DEC("linear_key_head_dim"),
                  IN_DEC("linear_value_head_dim")},
        .types = {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "olmo_hybrid",
                  "olmo3_5_hybrid"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .interval = true, .lists = {{IN_DEC("layer_types")}}},
        .read = read_gdn,
    },
    { /* Nemotron-H: heads * dim is the width, expand * hidden_size is not */
        .family = RSSM_FAMILY_MAMBA2,
        .signs = {IN_DEC("mamba_num_heads"), IN_DEC("mamba_head_dim"), IN_DEC("ssm_state_size")},
        .types = {"nemotron_h"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .lists = {{IN_DEC("hybrid_override_pattern"), IN_DEC("layers_block_type")}}},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_DEC("mamba_num_heads")}}, .dim = {{IN_DEC("mamba_head_dim")}},
                  .groups = {{IN_DEC("n_groups")}}, .state = {{IN_DEC("ssm_state_size")}},
                  .conv = {{IN_DEC("conv_kernel")}}},
    },
    { /* Bamba, Granite 4 hybrid, Falcon-H1 */
        .family = RSSM_FAMILY_MAMBA2,
        .signs = {IN_DEC("mamba_n_heads"), IN_DEC("mamba_d_head"), IN_DEC("mamba_n_groups"), IN_DEC("mamba_d_ssm")},
        .types = {"bamba", "granitemoehybrid", "granitemoehybrid_text"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .attention_lists = true, .all_if = IN_DEC("mamba_d_ssm"),
                   .lists = {{IN_DEC("layer_types"), IN_DEC("layers_block_type"), IN_DEC("attn_layer_indices")}}},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_DEC("mamba_n_heads")}}, .dim = {{IN_DEC("mamba_d_head")}},
                  .groups = {{IN_DEC("mamba_n_groups")}}, .state = {{IN_DEC("mamba_d_state")}},
                  .conv = {{IN_DEC("mamba_d_conv")}}, .expand = {{IN_DEC("mamba_expand")}},
                  .width = {{IN_DEC("mamba_d_ssm")}}, .hidden = {{IN_DEC("hidden_size")}},
                  .width_is_checked = true},
    },
    { /* Falcon-H1 by name: the same keys, and every layer has a mixer */
        .family = RSSM_FAMILY_MAMBA2,
        .types = {"falcon_h1"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .all = true},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_DEC("mamba_n_heads")}}, .dim = {{IN_DEC("mamba_d_head")}},
                  .groups = {{IN_DEC("mamba_n_groups")}}, .state = {{IN_DEC("mamba_d_state")}},
                  .conv = {{IN_DEC("mamba_d_conv")}}, .expand = {{IN_DEC("mamba_expand")}},
                  .width = {{IN_DEC("mamba_d_ssm")}}, .hidden = {{IN_DEC("hidden_size")}},
                  .width_is_checked = true},
    },
    { /* Zamba2, and the older spelling of Zyphra's own fork */
        .family = RSSM_FAMILY_MAMBA2,
        .signs = {IN_DEC("n_mamba_heads"), IN_DEC("mamba_headdim"), IN_DEC("mamba_ngroups")},
        .types = {"zamba2"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .lists = {{IN_DEC("layers_block_type"), IN_DEC("layer_types")}}},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_DEC("n_mamba_heads")}}, .dim = {{IN_DEC("mamba_headdim")}},
                  .groups = {{IN_DEC("mamba_ngroups")}}, .state = {{IN_DEC("mamba_d_state"), IN_DEC("state_size")}},
                  .conv = {{IN_DEC("mamba_d_conv"), IN_DEC("conv_dimension")}},
                  .expand = {{IN_DEC("mamba_expand"), IN_DEC("expansion_factor")}},
                  .hidden = {{IN_DEC("hidden_size")}}, .derives_heads = true, .width_is_checked = true},
    },
    { /* The original state-spaces form */
        .family = RSSM_FAMILY_MAMBA2,
        .signs = {IN_DEC("ssm_cfg")},
        .layers = {.count = {{IN_DEC("n_layer")}}, .attention_lists = true, .all = true},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_SSM("nheads")}}, .dim = {{IN_SSM("headdim")}}, .groups = {{IN_SSM("ngroups")}},
                  .state = {{IN_SSM("d_state")}}, .conv = {{IN_SSM("d_conv")}}, .expand = {{IN_SSM("expand")}},
                  .width = {{IN_SSM("d_ssm")}}, .hidden = {{IN_DEC("d_model")}}, .derives_heads = true,
                  .width_is_checked = true, .has_defaults = true},
    },
    { /* Mamba-2 of transformers: its names are common, so only together */
        .family = RSSM_FAMILY_MAMBA2,
        .signs = {IN_DEC("num_heads"), IN_DEC("state_size")},
        .needs_all_signs = true,
        .types = {"mamba2"},
        .layers = {.count = NUM_HIDDEN_LAYERS, .all = true},
        .read = read_mamba2,
        .mamba = {.heads = {{IN_DEC("num_heads")}}, .dim = {{IN_DEC("head_dim")}}, .groups = {{IN_DEC("n_groups")}},
                  .state = {{IN_DEC("state_size")}}, .conv = {{IN_DEC("conv_kernel")}}, .expand = {{IN_DEC("expand")}},
                  .hidden = {{IN_DEC("hidden_size")}}, .width_is_checked = true},
    },
};
/* clang-format on */

enum { NUM_SPELLINGS = sizeof(spellings) / sizeof(spellings[0]) };

/* ---- finding the spelling ---- */

static const rssm_spelling *spelling_of_type(const char *type)
{
    for (int i = 0; i < NUM_SPELLINGS; i++)
        for (int t = 0; t < MAX_TYPES && spellings[i].types[t]; t++)
            if (strcmp(type, spellings[i].types[t]) == 0)
                return &spellings[i];
    return NULL;
}

/* The key of the decoder's object that shows the spelling, or NULL. */
static const char *sign_of(const rssm_reader *r, const rssm_spelling *s)
{
    const char *sign = NULL;
    for (int i = 0; i < MAX_SIGNS && s->signs[i].in; i++) {
        bool has = rssm_has(r, s->signs[i]);
        if (has && !sign)
            sign = s->signs[i].name;
        if (!has && s->needs_all_signs)
            return NULL;
    }
    return sign;
}

bool rssm_has_any_sign(const rssm_reader *r)
{
    for (int i = 0; i < NUM_SPELLINGS; i++)
        if (sign_of(r, &spellings[i]))
            return true;
    return false;
}

/* A known model_type decides, else the keys. Keys of two families, or of two spellings of an unknown model_type, are an
 * error; the common names of transformers' Mamba-2 give way to any other. */
rssm_status rssm_find_spelling(const rssm_reader *r, const rssm_spelling **out)
{
    const rssm_spelling *chosen = spelling_of_type(r->type);
    const char *reason = chosen ? "model_type" : NULL;
    for (int i = 0; i < NUM_SPELLINGS; i++) {
        const rssm_spelling *s = &spellings[i];
        const char *sign = sign_of(r, s);
        if (!sign || s == chosen || (chosen && s->needs_all_signs))
            continue;
        if (chosen && (chosen->family != s->family || strcmp(reason, "model_type") != 0))
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s and %s (%s) belong to different kinds of layers",
                             r->subject, reason, sign, r->places[RSSM_IN_DECODER].path);
        if (!chosen) {
            chosen = s;
            reason = sign;
        }
    }
    *out = chosen;
    return RSSM_OK;
}

rssm_status rssm_read_spelling(rssm_reader *r, const rssm_spelling *s)
{
    r->model->family = s->family;
    rssm_status status = rssm_read_layers(r, &s->layers);
    return status ? status : s->read(r, &s->mamba);
}

/* ---- KDA and GDN ---- */

static rssm_status check_groups(const rssm_reader *r, const char *heads, const char *groups)
{
    const rssm_model *m = r->model;
    if (m->HV % m->H == 0)
        return RSSM_OK;
    return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s = %d is not a multiple of %s = %d", r->subject, heads, m->HV,
                     groups, m->H);
}

/* The gate's lower bound. safe_gate promises one: true without a number, or false with one, cannot be meant. */
static rssm_status read_bound(rssm_reader *r)
{
    static const rssm_keys bound = {{IN_LIN("gate_lower_bound"), IN_LIN("lower_bound"), IN_LIN("linear_lower_bound"),
                                     IN_DEC("gate_lower_bound"), IN_DEC("lower_bound"), IN_DEC("linear_lower_bound"),
                                     IN_DEC("kda_lower_bound")}};
    static const rssm_keys safe = {{IN_LIN("safe_gate"), IN_DEC("safe_gate")}};
    rssm_model *m = r->model;
    bool is_safe = false, has_safe;
    rssm_status status = rssm_read_real(r, &bound, &m->lower_bound, &m->has_lower_bound);
    if (!status)
        status = rssm_read_bool(r, &safe, &is_safe, &has_safe);
    if (status)
        return status;
    char text[RSSM_NUMBER_TEXT];
    if (m->has_lower_bound && !(m->lower_bound < 0 && m->lower_bound >= -FLT_MAX))
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: the gate's lower bound is %s, not a negative float32 number",
                         r->subject, rssm_number_text(text, m->lower_bound));
    if (has_safe && is_safe && !m->has_lower_bound)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: safe_gate is true but lower_bound unknown: there is no %s",
                         r->subject, "gate_lower_bound, lower_bound or linear_lower_bound");
    if (has_safe && !is_safe && m->has_lower_bound)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: safe_gate is false but there is a lower bound %s", r->subject,
                         rssm_number_text(text, m->lower_bound));
    return RSSM_OK;
}

static rssm_status read_delta_gates(rssm_reader *r)
{
    static const rssm_keys negative = {{IN_DEC("linear_allow_neg_eigval"), IN_DEC("allow_neg_eigval"),
                                        IN_LIN("allow_neg_eigval"), IN_LIN("linear_allow_neg_eigval")}};
    bool doubles = false, found;
    rssm_status status = rssm_read_bool(r, &negative, &doubles, &found);
    r->model->beta_scale = doubles ? 2 : 1;
    r->model->qk_norm = true;
    return status ? status : read_bound(r);
}

static rssm_status read_kda(rssm_reader *r, const mamba_keys *unused)
{
    static const rssm_keys heads = {{IN_LIN("num_heads"), IN_DEC("linear_num_heads")}};
    static const rssm_keys dim = {{IN_LIN("head_dim"), IN_DEC("linear_head_dim")}};
    static const rssm_keys conv = {{IN_LIN("short_conv_kernel_size"), IN_DEC("linear_conv_kernel_dim")}};
    static const rssm_keys value_heads = {{IN_LIN("num_v_heads"), IN_LIN("num_value_heads")}};
    static const rssm_keys value_dim = {{IN_LIN("v_head_dim"), IN_LIN("value_head_dim")}};
    rssm_model *m = r->model;
    bool found;
    (void)unused;
    rssm_status status = rssm_read_int(r, &heads, 1, RSSM_MAX_HEADS, &m->H, NULL);
    if (!status)
        status = rssm_read_int(r, &dim, 1, RSSM_MAX_HEAD_DIM, &m->K, NULL);
    if (!status)
        status = rssm_read_int(r, &conv, 1, RSSM_MAX_CONV_KERNEL, &m->conv_kernel, NULL);
    m->HV = m->H;
    m->V = m->K;
    if (!status)
        status = rssm_read_int(r, &value_heads, 1, RSSM_MAX_HEADS, &m->HV, &found);
    if (!status)
        status = rssm_read_int(r, &value_dim, 1, RSSM_MAX_HEAD_DIM, &m->V, &found);
    if (!status)
        status = check_groups(r, "the number of value heads", "num_heads");
    return status ? status : read_delta_gates(r);
}

static rssm_status read_gdn(rssm_reader *r, const mamba_keys *unused)
{
    static const rssm_keys key_heads = {{IN_DEC("linear_num_key_heads")}};
    static const rssm_keys value_heads = {{IN_DEC("linear_num_value_heads")}};
    static const rssm_keys key_dim = {{IN_DEC("linear_key_head_dim")}};
    static const rssm_keys value_dim = {{IN_DEC("linear_value_head_dim")}};
    static const rssm_keys conv = {{IN_DEC("linear_conv_kernel_dim")}};
    rssm_model *m = r->model;
    (void)unused;
    rssm_status status = rssm_read_int(r, &key_heads, 1, RSSM_MAX_HEADS, &m->H, NULL);
    if (!status)
        status = rssm_read_int(r, &value_heads, 1, RSSM_MAX_HEADS, &m->HV, NULL);
    if (!status)
        status = rssm_read_int(r, &key_dim, 1, RSSM_MAX_HEAD_DIM, &m->K, NULL);
    if (!status)
        status = rssm_read_int(r, &value_dim, 1, RSSM_MAX_HEAD_DIM, &m->V, NULL);
    if (!status)
        status = rssm_read_int(r, &conv, 1, RSSM_MAX_CONV_KERNEL, &m->conv_kernel, NULL);
    if (!status)
        status = check_groups(r, value_heads.of[0].name, key_heads.of[0].name);
    return status ? status : read_delta_gates(r);
}

/* ---- Mamba-2 ---- */

enum { MAX_WIDTH = 1 << 28 }; /* heads * dim at their limits */

/* The inner width that the config states besides heads and dim; 0 = none. */
static rssm_status read_width(rssm_reader *r, const mamba_keys *keys, int64_t *width)
{
    int32_t stated = 0, hidden = 0;
    double expand = 0;
    bool has_stated, has_expand, has_hidden;
    rssm_status status = rssm_read_int(r, &keys->width, 1, MAX_WIDTH, &stated, &has_stated);
    *width = stated;
    if (status || has_stated)
        return status;
    status = rssm_read_real(r, &keys->expand, &expand, &has_expand);
    if (!status && !has_expand && keys->has_defaults) {
        expand = 2;
        has_expand = true;
        status = rssm_note_assumed(r, "expand = 2 (not in ssm_cfg)");
    }
    if (status || !has_expand)
        return status;
    status = rssm_read_int(r, &keys->hidden, 1, MAX_WIDTH, &hidden, keys->has_defaults ? NULL : &has_hidden);
    if (status || !hidden)
        return status;
    const double product = expand * hidden;
    if (!(product >= 1 && product <= MAX_WIDTH) || product != floor(product)) {
        char text[RSSM_NUMBER_TEXT];
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s * %s = %s, not an integer in 1 .. %d", r->subject,
                         keys->expand.of[0].name, keys->hidden.of[0].name, rssm_number_text(text, product), MAX_WIDTH);
    }
    *width = (int64_t)product;
    return RSSM_OK;
}

/* An integer whose class default the ssm_cfg form relies on. */
static rssm_status read_or_assume(rssm_reader *r, const mamba_keys *all, const rssm_keys *keys, int32_t max,
                                  int32_t fallback, int32_t *out)
{
    bool found;
    rssm_status status = rssm_read_int(r, keys, 1, max, out, all->has_defaults ? &found : NULL);
    if (status || !all->has_defaults || found)
        return status;
    *out = fallback;
    return rssm_note_assumed(r, "%s = %d (not in ssm_cfg)", keys->of[0].name, fallback);
}

/* width / divisor, where a config leaves out one of heads and dim. */
static rssm_status divide_width(const rssm_reader *r, const mamba_keys *keys, int64_t width, const rssm_keys *missing,
                                const rssm_keys *by, int32_t divisor, int32_t max, int32_t *out)
{
    if (!width)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s cannot be derived: %s and %s unknown (looked in %s)",
                         r->subject, missing->of[0].name, keys->expand.of[0].name, keys->hidden.of[0].name,
                         r->places[RSSM_IN_DECODER].path);
    if (width % divisor != 0 || width / divisor > max)
        return rssm_fail(r->err, RSSM_ERR_CONFIG,
                         "%s: %s cannot be derived: the inner width %lld divided by %s = %d %s", r->subject,
                         missing->of[0].name, (long long)width, by->of[0].name, divisor,
                         width % divisor ? "leaves a rest" : "is too large");
    *out = (int32_t)(width / divisor);
    return RSSM_OK;
}

/* heads = model->HV and dim = model->V, from any two of heads, dim and width. */
static rssm_status read_heads_and_dim(rssm_reader *r, const mamba_keys *keys)
{
    rssm_model *m = r->model;
    int64_t width = 0;
    bool has_heads;
    rssm_status status = read_width(r, keys, &width);
    if (!status)
        status = rssm_read_int(r, &keys->heads, 1, RSSM_MAX_HEADS, &m->HV, &has_heads);
    if (!status && !has_heads && !(keys->derives_heads && width))
        status = rssm_fail_missing(r, &keys->heads);
    if (status)
        return status;
    const cJSON *dim = rssm_find(r, keys->dim.of[0]);
    if (has_heads && cJSON_IsString(dim) && strcmp(dim->valuestring, "auto") == 0)
        return divide_width(r, keys, width, &keys->dim, &keys->heads, m->HV, RSSM_MAX_HEAD_DIM, &m->V);
    status = read_or_assume(r, keys, &keys->dim, RSSM_MAX_HEAD_DIM, 64, &m->V);
    if (!status && !has_heads)
        return divide_width(r, keys, width, &keys->heads, &keys->dim, m->V, RSSM_MAX_HEADS, &m->HV);
    if (!status && width && keys->width_is_checked && width != (int64_t)m->HV * m->V)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s * %s = %d * %d, but the inner width is %lld (%s)", r->subject,
                         keys->heads.of[0].name, keys->dim.of[0].name, m->HV, m->V, (long long)width,
                         rssm_has(r, keys->width.of[0]) ? keys->width.of[0].name : keys->expand.of[0].name);
    return status;
}

/* A number or an infinity in one of its published forms. */
static bool real_or_infinity(const cJSON *item, double *out)
{
    if (cJSON_IsObject(item)) { /* {"__float__": "Infinity"} */
        const cJSON *inner = item->child;
        if (!inner || inner->next || strcmp(inner->string, "__float__") != 0 || !cJSON_IsString(inner))
            return false;
        *out = strcmp(inner->valuestring, "-Infinity") == 0 ? -INFINITY : INFINITY;
        return *out < 0 || strcmp(inner->valuestring, "Infinity") == 0;
    }
    if (rssm_json_is_infinity(item)) {
        *out = rssm_json_is_infinity(item) > 0 ? INFINITY : -INFINITY;
        return true;
    }
    *out = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return isfinite(*out);
}

static rssm_status read_limit(rssm_reader *r, rssm_key key)
{
    const cJSON *list = rssm_find(r, key);
    double limits[2] = {0, 0};
    char low[RSSM_NUMBER_TEXT], high[RSSM_NUMBER_TEXT];
    if (!list)
        return RSSM_OK;
    if (cJSON_GetArraySize(list) != 2 || !cJSON_IsArray(list))
        return rssm_fail_value(r, key, -1, list, "not an array of two numbers");
    int i = 0;
    for (const cJSON *item = list->child; item; item = item->next, i++)
        if (!real_or_infinity(item, &limits[i]))
            return rssm_fail_value(r, key, i, item, "not a number or Infinity");
    if (!(limits[0] >= 0 && isfinite(limits[0]) && limits[0] <= limits[1]))
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s (%s) is [%s, %s], not 0 <= min <= max", r->subject, key.name,
                         r->places[key.in].path, rssm_number_text(low, limits[0]), rssm_number_text(high, limits[1]));
    r->model->dt_min = limits[0];
    r->model->dt_max = limits[1];
    return rssm_note_read(r, key, "[%s, %s]", rssm_number_text(low, limits[0]), rssm_number_text(high, limits[1]));
}

static rssm_status read_mamba2(rssm_reader *r, const mamba_keys *keys)
{
    rssm_model *m = r->model;
    m->beta_scale = 1;
    m->dt_max = INFINITY;
    rssm_status status = read_heads_and_dim(r, keys);
    if (!status)
        status = read_or_assume(r, keys, &keys->groups, RSSM_MAX_HEADS, 1, &m->H);
    if (!status)
        status = read_or_assume(r, keys, &keys->state, RSSM_MAX_HEAD_DIM, 128, &m->K);
    if (!status)
        status = read_or_assume(r, keys, &keys->conv, RSSM_MAX_CONV_KERNEL, 4, &m->conv_kernel);
    if (!status)
        status = check_groups(r, keys->heads.of[0].name, keys->groups.of[0].name);
    if (!status)
        status = read_limit(r, (rssm_key)IN_DEC("time_step_limit"));
    return status ? status : read_limit(r, (rssm_key)IN_SSM("dt_limit"));
}
