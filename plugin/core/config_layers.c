/* Which layers of the model are linear. A config may say so in several lists; those that it has must agree. */
#include <stdio.h>
#include <string.h>

#include "core/config_read.h"

/* ---- words and letters ---- */

typedef enum layer_kind {
    LAYER_OTHER,  /* attention, MLP, experts, a convolution: no recurrent state of ours */
    LAYER_LINEAR, /* of whatever family the model is                                    */
    LAYER_MAMBA   /* linear, and only in a Mamba-2 model                                */
} layer_kind;

/* Published words, and the letters of hybrid_override_pattern. */
static const struct {
    const char *word;
    layer_kind kind;
} layer_words[] = {
    {"linear_attention", LAYER_LINEAR},
    {"mamba", LAYER_MAMBA},
    {"hybrid", LAYER_MAMBA}, /* Zamba2, Falcon-H1: a block that holds a mixer beside attention */
    {"M", LAYER_MAMBA},
    {"attention", LAYER_OTHER},
    {"full_attention", LAYER_OTHER},
    {"sliding_attention", LAYER_OTHER},
    {"chunked_attention", LAYER_OTHER},
    {"deepseek_sparse_attention", LAYER_OTHER},
    {"qwen_sparse_attention", LAYER_OTHER},
    {"indexed_attention", LAYER_OTHER},
    {"mlp", LAYER_OTHER},
    {"moe", LAYER_OTHER},
    {"conv", LAYER_OTHER},
    {"*", LAYER_OTHER},
    {"-", LAYER_OTHER},
    {"E", LAYER_OTHER},
};

/* 1 linear, 0 not, -1 unknown in a model of this family. */
static int word_is_linear(const char *word, int32_t family)
{
    for (size_t i = 0; i < sizeof(layer_words) / sizeof(layer_words[0]); i++) {
        if (strcmp(word, layer_words[i].word) != 0)
            continue;
        if (layer_words[i].kind == LAYER_MAMBA)
            return family == RSSM_FAMILY_MAMBA2 ? 1 : -1;
        return layer_words[i].kind == LAYER_LINEAR;
    }
    return -1;
}

/* ---- the map that the lists agree on ---- */

typedef struct layer_map {
    rssm_reader *r;
    int32_t n; /* layers; 0 = not known yet */
    rssm_key n_from;
    uint8_t *linear; /* [n]; NULL until a list was read */
    rssm_key linear_from;
} layer_map;

static rssm_status new_flags(layer_map *map, int32_t n, uint8_t **flags)
{
    *flags = rssm_arena_alloc(map->r->arena, (size_t)n);
    return *flags ? RSSM_OK : rssm_out_of_memory(map->r->err);
}

/* Takes a list's length as the number of layers, or compares. */
static rssm_status agree_on_length(layer_map *map, rssm_key key, int64_t length)
{
    const rssm_reader *r = map->r;
    if (length < 1 || length > RSSM_MAX_LAYERS)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s (%s) has %lld entries, not 1 .. %d", r->subject, key.name,
                         r->places[key.in].path, (long long)length, RSSM_MAX_LAYERS);
    if (map->n && map->n != length)
        return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s (%s) has %lld entries but %s says %d layers", r->subject,
                         key.name, r->places[key.in].path, (long long)length, map->n_from.name, map->n);
    if (!map->n) {
        map->n = (int32_t)length;
        map->n_from = key;
    }
    return RSSM_OK;
}

static int32_t count_flags(const uint8_t *flags, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += flags[i];
    return count;
}

/* Takes a list's layers as the map, or compares. flags [n]. */
static rssm_status agree_on_layers(layer_map *map, rssm_key key, uint8_t *flags)
{
    rssm_reader *r = map->r;
    if (!map->linear) {
        map->linear = flags;
        map->linear_from = key;
    }
    for (int32_t i = 0; i < map->n; i++)
        if (map->linear[i] != flags[i])
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: layer %d (from 0) is %s by %s but %s by %s (%s)", r->subject,
                             i, map->linear[i] ? "linear" : "not linear", map->linear_from.name,
                             flags[i] ? "linear" : "not linear", key.name, r->places[key.in].path);
    return rssm_note_read(r, key, "%d of %d layers linear", count_flags(flags, map->n), map->n);
}

/* ---- the kinds of lists ---- */

/* hybrid_override_pattern: one letter a layer; its length is the layer count, whatever num_hidden_layers says. */
static rssm_status read_pattern(layer_map *map, rssm_key key)
{
    rssm_reader *r = map->r;
    const char *pattern;
    uint8_t *flags = NULL;
    rssm_status status = rssm_read_string(r, key, &pattern);
    if (status || !pattern)
        return status;
    status = agree_on_length(map, key, (int64_t)strlen(pattern));
    if (!status)
        status = new_flags(map, map->n, &flags);
    for (int32_t i = 0; !status && i < map->n; i++) {
        char letter[2] = {pattern[i], 0};
        int linear = word_is_linear(letter, r->model->family);
        if (linear < 0)
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s[%d] (%s) is '%s', none of M * - E", r->subject, key.name,
                             i, r->places[key.in].path, (unsigned char)letter[0] < 0x80 ? letter : "a non-ASCII byte");
        flags[i] = (uint8_t)linear;
    }
    return status ? status : agree_on_layers(map, key, flags);
}

/* layer_types, layers_block_type: one word a layer. */
static rssm_status read_words(layer_map *map, rssm_key key)
{
    rssm_reader *r = map->r;
    const cJSON *list = rssm_find(r, key);
    uint8_t *flags = NULL;
    if (!list)
        return RSSM_OK;
    if (!cJSON_IsArray(list))
        return rssm_fail_value(r, key, -1, list, "not an array of layer words");
    int64_t length = 0;
    for (const cJSON *item = list->child; item; item = item->next)
        length++;
    rssm_status status = agree_on_length(map, key, length);
    if (!status)
        status = new_flags(map, map->n, &flags);
    if (status)
        return status;
    int32_t i = 0;
    for (const cJSON *item = list->child; item; item = item->next, i++) {
        int linear = cJSON_IsString(item) ? word_is_linear(item->valuestring, r->model->family) : -1;
        if (linear < 0)
            return rssm_fail_value(r, key, i, item, "not a layer word that is known in a model of this family");
        flags[i] = (uint8_t)linear;
    }
    return agree_on_layers(map, key, flags);
}

/* Sets flags[x - base] to `value` for each x of the list; x must be in base .. n - 1 + base and come once. */
static rssm_status set_listed(layer_map *map, rssm_key key, int32_t base, uint8_t value, uint8_t *flags)
{
    rssm_reader *r = map->r;
    const cJSON *list = rssm_find(r, key);
    if (!cJSON_IsArray(list))
        return rssm_fail_value(r, key, -1, list, "not an array of layer numbers");
    uint8_t *seen = NULL;
    rssm_status status = new_flags(map, map->n, &seen);
    if (status)
        return status;
    int64_t i = 0;
    for (const cJSON *item = list->child; item; item = item->next, i++) {
        int64_t x;
        char need[80];
        snprintf(need, sizeof(need), "not a layer number in %d .. %d (the list counts from %d)", base,
                 map->n - 1 + base, base);
        if (!rssm_exact_int(item, base, map->n - 1 + base, &x))
            return rssm_fail_value(r, key, i, item, need);
        if (seen[x - base]++)
            return rssm_fail_value(r, key, i, item, "listed twice");
        flags[x - base] = value;
    }
    return RSSM_OK;
}

/* attn_layer_indices, attn_layer_idx: zero-based numbers of the attention layers; the others are linear. */
static rssm_status read_attention_list(layer_map *map, rssm_key key)
{
    uint8_t *flags = NULL;
    if (!rssm_has(map->r, key))
        return RSSM_OK;
    rssm_status status = new_flags(map, map->n, &flags);
    if (status)
        return status;
    memset(flags, 1, (size_t)map->n);
    status = set_listed(map, key, 0, 0, flags);
    return status ? status : agree_on_layers(map, key, flags);
}

/* ---- KDA's two lists ---- */

/* Whether the list, counted from 0, is exactly the map. Wrong entries are simply no match here. */
static bool matches_from_zero(const layer_map *map, rssm_key key)
{
    const cJSON *list = rssm_find(map->r, key);
    int64_t x, count = 0;
    if (!cJSON_IsArray(list))
        return false;
    for (const cJSON *item = list->child; item; item = item->next, count++)
        if (!rssm_exact_int(item, 0, map->n - 1, &x) || !map->linear[x])
            return false;
    return count == count_flags(map->linear, map->n);
}

/* Where the lists of a known kind of model count from, by how its model_type starts. */
static const struct {
    const char *prefix;
    int32_t base;
} known_bases[] = {{"kimi", 1}, {"glm", 0}};

/* Of an unknown model: from 1, unless layer_types beside the list shows that it is from 0. */
static int32_t base_of_lists(const layer_map *map, rssm_key kda)
{
    for (size_t i = 0; i < sizeof(known_bases) / sizeof(known_bases[0]); i++)
        if (strncmp(map->r->type, known_bases[i].prefix, strlen(known_bases[i].prefix)) == 0)
            return known_bases[i].base;
    return map->linear && matches_from_zero(map, kda) ? 0 : 1;
}

static rssm_status refuse_overlap(layer_map *map, rssm_key kda, rssm_key full, int32_t base, const uint8_t *is_kda)
{
    rssm_reader *r = map->r;
    uint8_t *is_full = NULL;
    rssm_status status = new_flags(map, map->n, &is_full);
    if (!status)
        status = set_listed(map, full, base, 1, is_full);
    if (status)
        return status;
    int32_t covered = 0;
    for (int32_t i = 0; i < map->n; i++) {
        if (is_kda[i] && is_full[i])
            return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: layer number %d (counted from %d) is in both %s and %s (%s)",
                             r->subject, i + base, base, kda.name, full.name, r->places[full.in].path);
        covered += is_kda[i] || is_full[i];
    }
    if (covered < map->n)
        return rssm_note_assumed(r, "%d layers in neither %s nor %s = not linear", map->n - covered, kda.name,
                                 full.name);
    return RSSM_OK;
}

/* kda_layers and full_attn_layers in one object. */
static rssm_status read_kda_lists(layer_map *map, rssm_place_id in)
{
    rssm_reader *r = map->r;
    const rssm_key kda = {in, "kda_layers"}, full = {in, "full_attn_layers"};
    uint8_t *flags = NULL;
    if (!rssm_has(r, kda))
        return RSSM_OK;
    const int32_t base = base_of_lists(map, kda);
    rssm_status status = new_flags(map, map->n, &flags);
    if (!status)
        status = set_listed(map, kda, base, 1, flags);
    if (!status && rssm_has(r, full))
        status = refuse_overlap(map, kda, full, base, flags);
    if (!status)
        status = agree_on_layers(map, kda, flags);
    return status ? status : rssm_note_read(r, kda, "counted from %d", base);
}

/* ---- without a list ---- */

static rssm_status every_nth_is_full(layer_map *map)
{
    rssm_reader *r = map->r;
    const rssm_key key = {RSSM_IN_DECODER, "full_attention_interval"};
    const rssm_keys keys = {{key}};
    int32_t interval = 4;
    bool found;
    rssm_status status = rssm_read_int(r, &keys, 1, RSSM_MAX_LAYERS, &interval, &found);
    if (!status && !found && !map->linear)
        status = rssm_note_assumed(r, "full_attention_interval = 4 (not in the config)");
    if (status || map->linear)
        return status;
    status = new_flags(map, map->n, &map->linear);
    for (int32_t i = 0; !status && i < map->n; i++)
        map->linear[i] = (i + 1) % interval != 0;
    map->linear_from = key;
    return status;
}

static rssm_status all_are_linear(layer_map *map, const rssm_layer_rules *rules)
{
    rssm_status status = new_flags(map, map->n, &map->linear);
    if (status)
        return status;
    memset(map->linear, 1, (size_t)map->n);
    map->linear_from = rules->count.of[0];
    return rules->all ? RSSM_OK
                      : rssm_note_assumed(map->r, "all layers linear (no %s in the config)", rules->lists.of[0].name);
}

/* ---- all together ---- */

static rssm_status read_lists(layer_map *map, const rssm_layer_rules *rules)
{
    static const rssm_key words[] = {{RSSM_IN_DECODER, "layers_block_type"}, {RSSM_IN_DECODER, "layer_types"}};
    static const rssm_key attention[] = {{RSSM_IN_DECODER, "attn_layer_indices"}, {RSSM_IN_DECODER, "attn_layer_idx"}};
    rssm_reader *r = map->r;
    rssm_status status = read_pattern(map, (rssm_key){RSSM_IN_DECODER, "hybrid_override_pattern"});
    if (!status && !map->n) {
        bool has_words = rssm_has(r, words[0]) || rssm_has(r, words[1]), found;
        map->n_from = rules->count.of[0];
        status = rssm_read_int(r, &rules->count, 1, RSSM_MAX_LAYERS, &map->n, has_words ? &found : NULL);
    }
    for (int i = 0; !status && i < 2; i++)
        status = read_words(map, words[i]);
    for (int i = 0; !status && rules->attention_lists && i < 2; i++)
        status = read_attention_list(map, attention[i]);
    if (!status && rules->kda_lists)
        status = read_kda_lists(map, RSSM_IN_LINEAR_ATTN);
    if (!status && rules->kda_lists)
        status = read_kda_lists(map, RSSM_IN_DECODER);
    return status;
}

static rssm_status keep_map(layer_map *map)
{
    rssm_reader *r = map->r;
    const int32_t count = count_flags(map->linear, map->n);
    if (!count)
        return rssm_fail(r->err, RSSM_ERR_MODEL, "%s: no KDA/GDN/Mamba-2 layer in this model (none of %d by %s)",
                         r->subject, map->n, map->linear_from.name);
    int32_t *layers = rssm_arena_alloc(r->arena, (size_t)count * sizeof(*layers));
    if (!layers)
        return rssm_out_of_memory(r->err);
    for (int32_t i = 0, at = 0; i < map->n; i++)
        if (map->linear[i]) /* all lists are read: there. NOLINT(clang-analyzer-core.NullDereference) */
            layers[at++] = i;
    r->model->num_layers = map->n;
    r->model->num_linear = count;
    r->model->linear_layers = layers;
    return RSSM_OK;
}

rssm_status rssm_read_layers(rssm_reader *r, const rssm_layer_rules *rules)
{
    layer_map map = {.r = r};
    rssm_status status = read_lists(&map, rules);
    if (!status && rules->interval)
        status = every_nth_is_full(&map);
    if (!status && !map.linear && (rules->all || (rules->all_if.in && rssm_has(r, rules->all_if))))
        status = all_are_linear(&map, rules);
    if (!status && !map.linear)
        status = rssm_fail_missing(r, &rules->lists);
    return status ? status : keep_map(&map);
}
