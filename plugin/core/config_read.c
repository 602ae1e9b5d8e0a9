#include "core/config_read.h"

#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const cJSON *rssm_find(const rssm_reader *r, rssm_key key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->places[key.in].object, key.name);
    return cJSON_IsNull(item) ? NULL : item;
}

bool rssm_has(const rssm_reader *r, rssm_key key)
{
    return rssm_find(r, key) != NULL;
}

const char *rssm_number_text(char text[RSSM_NUMBER_TEXT], double value)
{
    snprintf(text, RSSM_NUMBER_TEXT, "%.15g", value);
    const char *point = localeconv()->decimal_point;
    char *at = point[0] ? strstr(text, point) : NULL;
    if (at && strcmp(point, ".") != 0) {
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    return text;
}

bool rssm_exact_int(const cJSON *item, int64_t min, int64_t max, int64_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= (double)min && item->valuedouble <= (double)max) ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

/* ---- errors ---- */

/* A short description of any value: `128.5`, `the string "128"`, `an object`. */
static const char *value_text(const cJSON *item, char *text, size_t size)
{
    char number[RSSM_NUMBER_TEXT];
    if (cJSON_IsNull(item))
        return "null";
    if (cJSON_IsBool(item))
        return cJSON_IsTrue(item) ? "the boolean true" : "the boolean false";
    if (cJSON_IsObject(item))
        return "an object";
    if (cJSON_IsArray(item))
        return "an array";
    if (rssm_json_is_infinity(item))
        return rssm_json_is_infinity(item) > 0 ? "Infinity" : "-Infinity";
    if (cJSON_IsString(item))
        snprintf(text, size, "the string \"%.40s\"", item->valuestring);
    else if (isinf(item->valuedouble))
        snprintf(text, size, "a number beyond the range of a double");
    else
        snprintf(text, size, "%s", rssm_number_text(number, item->valuedouble));
    return text;
}

rssm_status rssm_fail_value(const rssm_reader *r, rssm_key key, int64_t element, const cJSON *item, const char *need)
{
    char text[80], index[32] = "";
    if (element >= 0)
        snprintf(index, sizeof(index), "[%lld]", (long long)element);
    return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s%s (%s) is %s, %s", r->subject, key.name, index,
                     r->places[key.in].path, value_text(item, text, sizeof(text)), need);
}

rssm_status rssm_fail_missing(const rssm_reader *r, const rssm_keys *keys)
{
    char looked[256] = "";
    size_t used = 0;
    for (const rssm_key *key = keys->of; key->in && used < sizeof(looked); key++) {
        if (key > keys->of && !r->places[key->in].object)
            continue; /* an object this config does not have is worth a word only as the usual place */
        int n = snprintf(looked + used, sizeof(looked) - used, "%s%s%s", used ? ", or " : "no ",
                         r->places[key->in].prefix, key->name);
        used += n > 0 ? (size_t)n : 0;
    }
    return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s unknown: there is %s (looked in %s)", r->subject,
                     keys->of[0].name, looked, r->places[RSSM_IN_DECODER].path);
}

static rssm_status fail_contradiction(const rssm_reader *r, rssm_key a, const cJSON *item_a, rssm_key b,
                                      const cJSON *item_b)
{
    char text_a[80], text_b[80];
    return rssm_fail(r->err, RSSM_ERR_CONFIG, "%s: %s%s is %s but %s%s is %s", r->subject, r->places[a.in].prefix,
                     a.name, value_text(item_a, text_a, sizeof(text_a)), r->places[b.in].prefix, b.name,
                     value_text(item_b, text_b, sizeof(text_b)));
}

/* ---- notes ---- */

static char *format_note(rssm_reader *r, const char *format, va_list args)
{
    char text[160];
    if (vsnprintf(text, sizeof(text), format, args) < 0)
        text[0] = 0;
    return rssm_arena_printf(r->arena, "%s", text);
}

rssm_status rssm_note_assumed(rssm_reader *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *note = format_note(r, format, args);
    va_end(args);
    return rssm_strings_add(&r->model->assumed, r->arena, note) ? RSSM_OK : rssm_out_of_memory(r->err);
}

rssm_status rssm_note_read(rssm_reader *r, rssm_key key, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *value = format_note(r, format, args);
    va_end(args);
    char *note = value ? rssm_arena_printf(r->arena, "%s = %s (%s)", key.name, value, r->places[key.in].path) : NULL;
    return rssm_strings_add(&r->model->read, r->arena, note) ? RSSM_OK : rssm_out_of_memory(r->err);
}

/* ---- typed reads ---- */

typedef struct rssm_value {
    int64_t integer;
    double real;
    bool truth;
} rssm_value;

/* What a value must be; read() tells whether it is. */
typedef struct rssm_want {
    int64_t min, max;
    bool (*read)(const cJSON *item, int64_t min, int64_t max, rssm_value *out);
    const char *need;
} rssm_want;

static bool want_int(const cJSON *item, int64_t min, int64_t max, rssm_value *out)
{
    return rssm_exact_int(item, min, max, &out->integer);
}

static bool want_real(const cJSON *item, int64_t min, int64_t max, rssm_value *out)
{
    (void)min;
    (void)max;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return false;
    out->real = item->valuedouble;
    return true;
}

static bool want_bool(const cJSON *item, int64_t min, int64_t max, rssm_value *out)
{
    (void)min;
    (void)max;
    out->truth = cJSON_IsTrue(item);
    return cJSON_IsBool(item);
}

static bool same_value(const rssm_value *a, const rssm_value *b)
{
    return a->integer == b->integer && a->real == b->real && a->truth == b->truth;
}

static rssm_status note_value(rssm_reader *r, rssm_key key, const cJSON *item)
{
    char number[RSSM_NUMBER_TEXT];
    if (cJSON_IsBool(item))
        return rssm_note_read(r, key, "%s", cJSON_IsTrue(item) ? "true" : "false");
    return rssm_note_read(r, key, "%s", rssm_number_text(number, item->valuedouble));
}

/* Reads every key that is present; all must be good and equal. */
static rssm_status read_all(rssm_reader *r, const rssm_keys *keys, const rssm_want *want, rssm_value *out, bool *found)
{
    const rssm_key *first = NULL;
    for (const rssm_key *key = keys->of; key->in; key++) {
        const cJSON *item = rssm_find(r, *key);
        if (!item)
            continue;
        rssm_value value = {0};
        if (!want->read(item, want->min, want->max, &value))
            return rssm_fail_value(r, *key, -1, item, want->need);
        if (first && !same_value(&value, out))
            return fail_contradiction(r, *first, rssm_find(r, *first), *key, item);
        rssm_status status = note_value(r, *key, item);
        if (status)
            return status;
        first = first ? first : key;
        *out = value;
    }
    if (found)
        *found = first != NULL;
    return first || found ? RSSM_OK : rssm_fail_missing(r, keys);
}

rssm_status rssm_read_int(rssm_reader *r, const rssm_keys *keys, int64_t min, int64_t max, int32_t *out, bool *found)
{
    char need[64];
    snprintf(need, sizeof(need), "not an integer in %lld .. %lld", (long long)min, (long long)max);
    rssm_want want = {.min = min, .max = max, .read = want_int, .need = need};
    rssm_value value = {.integer = *out};
    rssm_status status = read_all(r, keys, &want, &value, found);
    if (!status)
        *out = (int32_t)value.integer;
    return status;
}

rssm_status rssm_read_real(rssm_reader *r, const rssm_keys *keys, double *out, bool *found)
{
    rssm_want want = {.read = want_real, .need = "not a finite number"};
    rssm_value value = {.real = *out};
    rssm_status status = read_all(r, keys, &want, &value, found);
    if (!status)
        *out = value.real;
    return status;
}

rssm_status rssm_read_bool(rssm_reader *r, const rssm_keys *keys, bool *out, bool *found)
{
    rssm_want want = {.read = want_bool, .need = "not true or false"};
    rssm_value value = {.truth = *out};
    rssm_status status = read_all(r, keys, &want, &value, found);
    if (!status)
        *out = value.truth;
    return status;
}

rssm_status rssm_read_string(const rssm_reader *r, rssm_key key, const char **out)
{
    const cJSON *item = rssm_find(r, key);
    *out = NULL;
    if (!item)
        return RSSM_OK;
    if (!cJSON_IsString(item) || rssm_json_is_infinity(item))
        return rssm_fail_value(r, key, -1, item, "not a string");
    *out = item->valuestring;
    return RSSM_OK;
}
