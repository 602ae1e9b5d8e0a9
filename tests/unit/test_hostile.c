/* Configs through the ABI alone: the spellings of published models, and texts that nobody should have to survive. A hostile
 * text is an error with a message, within a second and 64 MB, and the plugin reads the next good one as ever.
 *
 * $RSSM_SOURCE_ROOT/configs (or RSSM_CONFIGS of the build) has the published ones; $RSSM_CONFIG is one more file, given by
 * whoever runs the judge. */
#define _GNU_SOURCE
#include "harness.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ---- published spellings ---------------------------------------------------------------------------------------- */

typedef struct published {
    const char *file;
    int32_t family, num_layers, num_linear, H, HV, K, V;
    int32_t first[4]; /* of the linear layers, zero-based */
    double bound;     /* of KDA's gate; 0 = none */
} published;

#define KDA(layers, linear, heads, bound)           RSSM_FAMILY_KDA, layers, linear, heads, heads, 128, 128, {0, 1, 2, 4}, bound
#define GDN(layers, linear, H, HV, K, V)            RSSM_FAMILY_GDN, layers, linear, H, HV, K, V, {0, 1, 2, 4}, 0
#define MAMBA2(layers, linear, H, HV, K, V, second) RSSM_FAMILY_MAMBA2, layers, linear, H, HV, K, V, second, 0
#define EACH       \
    {              \
        0, 1, 2, 3 \
    }
#define NEMOTRON   \
    {              \
        0, 2, 4, 6 \
    }

/* From the models' own files and papers, not from this plugin's reader. */
static const published models[] = {
    {"bamba-9b-v2.json", MAMBA2(32, 29, 1, 128, 128, 64, EACH)},
    {"falcon-h1-1.5b-instruct.json", MAMBA2(24, 24, 1, 48, 256, 64, EACH)},
    {"glm-5.3-flash-flattened.json", KDA(45, 34, 64, -5)},
    {"glm-5.3-flash.json", KDA(45, 34, 64, -5)},
    {"granite-4.0-h-small.json", MAMBA2(40, 36, 1, 128, 128, 64, EACH)},
    {"kimi-k3.json", KDA(93, 69, 96, -5)},
    {"kimi-linear-48b-a3b.json", KDA(27, 20, 32, 0)},
    {"mamba-codestral-7b.json", MAMBA2(64, 64, 8, 128, 128, 64, EACH)},
    {"mamba2-2.7b.json", MAMBA2(64, 64, 1, 80, 128, 64, EACH)},
    {"nemotron-3-super-120b-a12b-resaved.json", MAMBA2(88, 40, 8, 128, 128, 64, NEMOTRON)},
    {"nemotron-3-ultra-550b-a55b.json", MAMBA2(108, 48, 8, 256, 128, 64, NEMOTRON)},
    {"nemotron-h-56b.json", MAMBA2(118, 54, 8, 256, 256, 64, NEMOTRON)},
    {"olmo-hybrid-7b.json", GDN(32, 24, 30, 30, 96, 192)},
    {"qwen3-next-80b-a3b.json", GDN(48, 36, 16, 32, 128, 128)},
    {"qwen3.5-35b-a3b.json", GDN(40, 30, 16, 32, 128, 128)},
    {"zamba2-7b.json", MAMBA2(81, 81, 2, 112, 64, 64, EACH)},
};

/* false: there is no such file here. */
static bool config_path(char *path, const char *file)
{
    const char *root = getenv("RSSM_SOURCE_ROOT");
    path[0] = 0;
    if (root)
        snprintf(path, PATH_MAX, "%s/configs/%s", root, file);
#ifdef RSSM_CONFIGS
    else
        snprintf(path, PATH_MAX, "%s/%s", RSSM_CONFIGS, file);
#endif
    return access(path, R_OK) == 0;
}

static char *read_file(const char *path, size_t *length)
{
    enum { MOST = 1 << 24 };
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    char *text = malloc(MOST);
    ck_assert_ptr_nonnull(text);
    *length = fread(text, 1, MOST, file);
    fclose(file);
    return text;
}

static rssm_plugin *init_from(const rssm_init_args *args, const char *what)
{
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    rssm_status status = h_api()->init(args, &plugin, &err);
    ck_assert_msg(status == RSSM_OK, "%s: %s: %s", what, h_api()->status_name(status), err.message);
    return plugin;
}

static rssm_description description_of(const rssm_plugin *plugin)
{
    rssm_description d = {.struct_size = sizeof(d)};
    ck_assert_int_eq(h_api()->describe(plugin, &d, NULL), RSSM_OK);
    return d;
}

/* What must hold of any model's description and layout. */
static void check_consistent(const rssm_plugin *plugin, const char *what)
{
    const rssm_description d = description_of(plugin);
    rssm_layout layout = {.struct_size = sizeof(layout)};
    ck_assert_int_eq(h_api()->pool_layout(plugin, &layout, NULL), RSSM_OK);
    ck_assert_msg(h_has_family(d.family), "%s: family %d is not in plugin_info", what, d.family);
    ck_assert_msg(d.num_linear_layers >= 1 && d.num_linear_layers <= d.num_layers, "%s: %d of %d layers", what,
                  d.num_linear_layers, d.num_layers);
    for (int32_t i = 0; i < d.num_linear_layers; i++)
        ck_assert_msg(d.linear_layers[i] >= (i ? d.linear_layers[i - 1] + 1 : 0) && d.linear_layers[i] < d.num_layers,
                      "%s: linear layer %d is %d", what, i, d.linear_layers[i]);
    ck_assert_msg(d.H >= 1 && d.HV % d.H == 0 && d.K >= 1 && d.V >= 1, "%s: heads %d, %d of %d, %d", what, d.H, d.HV,
                  d.K, d.V);
    ck_assert_int_eq(layout.num_layers, d.num_linear_layers);
    int64_t state = (int64_t)d.HV * d.K * d.V * (d.state_dtype == RSSM_DTYPE_FLOAT32 ? 4 : 2) * d.num_linear_layers;
    ck_assert_msg(layout.slot_state_bytes == state, "%s: a slot's state has %lld bytes, not %lld", what,
                  (long long)layout.slot_state_bytes, (long long)state);
    ck_assert_int_eq(layout.slot_total_bytes,
                     layout.slot_state_bytes + layout.slot_ring_bytes + layout.slot_conv_bytes);
    for (int32_t i = 0; i < d.num_read + d.num_assumed; i++) {
        const char *line = i < d.num_read ? d.read[i] : d.assumed[i - d.num_read];
        ck_assert_msg(line && strlen(line) > 3, "%s: what was read or assumed has an empty line", what);
    }
}

/* The text and the path of one file are one model. */
static rssm_description check_both_ways(const char *path, rssm_plugin **plugin)
{
    size_t length;
    char *text = read_file(path, &length);
    rssm_init_args args = {.struct_size = sizeof(args), .config_json = text, .config_json_len = length};
    rssm_plugin *by_text = init_from(&args, path);
    free(text);
    args = (rssm_init_args){.struct_size = sizeof(args), .config_path = path};
    *plugin = init_from(&args, path);
    ck_assert_msg(description_of(by_text).layout_hash == description_of(*plugin).layout_hash,
                  "%s: its text is another model than its path", path);
    check_consistent(by_text, path);
    check_consistent(*plugin, path);
    h_teardown(&by_text);
    return description_of(*plugin);
}

START_TEST(test_published)
{
    const published *m = &models[_i];
    char path[PATH_MAX];
    h_need_family(m->family);
    if (!config_path(path, m->file)) {
        h_skip("no configs/ here: set RSSM_SOURCE_ROOT to the folder that has it");
        return;
    }
    rssm_plugin *plugin;
    const rssm_description d = check_both_ways(path, &plugin);
    ck_assert_msg(d.family == m->family && d.num_layers == m->num_layers && d.num_linear_layers == m->num_linear,
                  "%s: family %d, %d of %d layers", m->file, d.family, d.num_linear_layers, d.num_layers);
    ck_assert_msg(d.H == m->H && d.HV == m->HV && d.K == m->K && d.V == m->V, "%s: H %d, HV %d, K %d, V %d", m->file,
                  d.H, d.HV, d.K, d.V);
    for (int i = 0; i < COUNT(m->first); i++)
        ck_assert_msg(d.linear_layers[i] == m->first[i], "%s: linear layer %d is %d, not %d", m->file, i,
                      d.linear_layers[i], m->first[i]);
    ck_assert_msg(d.has_lower_bound == (m->bound != 0) && d.lower_bound == m->bound, "%s: bound %g, not %g", m->file,
                  d.lower_bound, m->bound);
    h_teardown(&plugin);
}
END_TEST

/* A family that the plugin does not have is refused, not misread as another. */
START_TEST(test_other_families)
{
    int refused = 0;
    for (int i = 0; i < COUNT(models); i++) {
        char path[PATH_MAX];
        if (h_has_family(models[i].family) || !config_path(path, models[i].file))
            continue;
        rssm_init_args args = {.struct_size = sizeof(args), .config_path = path};
        rssm_plugin *plugin = NULL;
        rssm_error err = h_error();
        rssm_status status = h_api()->init(&args, &plugin, &err);
        ck_assert_msg(status == RSSM_ERR_MODEL || status == RSSM_ERR_UNSUPPORTED || status == RSSM_ERR_JSON,
                      "%s: %s: %s", path, h_api()->status_name(status), err.message);
        ck_assert_msg(plugin == NULL && strlen(err.message) > 4, "%s: \"%s\"", path, err.message);
        refused++;
    }
    if (refused == 0)
        h_skip("the plugin has every family, or there is no configs/ here");
}
END_TEST

/* --config: whoever runs the judge has a model of his own. */
START_TEST(test_given_file)
{
    const char *path = getenv("RSSM_CONFIG");
    if (!path) {
        h_skip("no --config FILE");
        return;
    }
    rssm_plugin *plugin;
    check_both_ways(path, &plugin);
    h_teardown(&plugin);
}
END_TEST

/* ---- hostile texts ---------------------------------------------------------------------------------------------- */

/* A good config of the family in two parts: between them stands the number of heads. */
typedef struct base_text {
    const char *before, *after;
} base_text;

static base_text base_of(int32_t family)
{
    static const base_text texts[] = {
        [RSSM_FAMILY_KDA] = {"{\"model_type\": \"kimi_linear\", \"num_hidden_layers\": 3, \"linear_attn_config\": "
                             "{\"head_dim\": 8, \"short_conv_kernel_size\": 4, \"kda_layers\": [1, 2], "
                             "\"full_attn_layers\": [3], \"num_heads\": ",
                             "}}"},
        [RSSM_FAMILY_GDN] =
            {"{\"model_type\": \"qwen3_next\", \"num_hidden_layers\": 4, \"linear_key_head_dim\": 8, "
             "\"linear_value_head_dim\": 8, \"linear_conv_kernel_dim\": 4, \"linear_num_key_heads\": 2, "
             "\"linear_num_value_heads\": ",
             "}"},
        [RSSM_FAMILY_MAMBA2] = {"{\"model_type\": \"mamba2\", \"num_hidden_layers\": 2, \"head_dim\": 8, \"n_groups\": "
                                "1, \"state_size\": 8, \"conv_kernel\": 4, \"num_heads\": ",
                                "}"},
    };
    return texts[family];
}

/* A text of the test's, which grows. */
typedef struct text {
    char *bytes;
    size_t length, room;
} text;

static void put(text *t, const void *bytes, size_t length)
{
    if (t->length + length > t->room) {
        t->room = 2 * (t->length + length);
        t->bytes = realloc(t->bytes, t->room);
        ck_assert_ptr_nonnull(t->bytes);
    }
    memcpy(t->bytes + t->length, bytes, length);
    t->length += length;
}

static void say(text *t, const char *words)
{
    put(t, words, strlen(words));
}

static void repeat(text *t, const char *words, int64_t times)
{
    for (int64_t i = 0; i < times; i++)
        say(t, words);
}

/* The good config with another number of heads. */
static void put_base(text *t, const char *heads)
{
    const base_text base = base_of(h_family(RSSM_FAMILY_KDA));
    say(t, base.before);
    say(t, heads);
    say(t, base.after);
}

/* The good config with one more member in front. */
static void put_with(text *t, const char *member, size_t length)
{
    const base_text base = base_of(h_family(RSSM_FAMILY_KDA));
    say(t, "{");
    put(t, member, length);
    say(t, ", ");
    say(t, base.before + 1);
    say(t, "4");
    say(t, base.after);
}

enum { MB = 1 << 20, LARGE = 50 * MB, DEEP = 100000, MANY = 1000000 };

static void make_50_mb_of_space(text *t)
{
    put_base(t, "4");
    repeat(t, "          ", LARGE / 10);
}

static void make_50_mb_string(text *t)
{
    say(t, "{\"x\": \"");
    repeat(t, "xxxxxxxxxx", LARGE / 10);
    say(t, "\", ");
    say(t, base_of(h_family(RSSM_FAMILY_KDA)).before + 1);
    say(t, "4");
    say(t, base_of(h_family(RSSM_FAMILY_KDA)).after);
}

static void make_50_mb_number(text *t)
{
    text digits = {0};
    repeat(&digits, "1111111111", LARGE / 10);
    put(&digits, "", 1);
    put_base(t, digits.bytes);
    free(digits.bytes);
}

static void make_50_mb_of_nothing(text *t)
{
    text zeros = {.bytes = calloc(LARGE, 1), .length = LARGE, .room = LARGE};
    put(t, zeros.bytes, zeros.length);
    free(zeros.bytes);
}

static void make_deep(text *t, const char *open, const char *close)
{
    text member = {0};
    say(&member, "\"x\": ");
    repeat(&member, open, DEEP);
    say(&member, "1");
    repeat(&member, close, DEEP);
    put_with(t, member.bytes, member.length);
    free(member.bytes);
}

static void make_deep_arrays(text *t)
{
    make_deep(t, "[", "]");
}

static void make_deep_objects(text *t)
{
    make_deep(t, "{\"x\":", "}");
}

static void make_deep_and_open(text *t)
{
    make_deep(t, "[", "");
}

static void make_many_keys(text *t)
{
    say(t, "{");
    for (int i = 0; i < MANY; i++) {
        char member[32];
        snprintf(member, sizeof(member), "\"k%d\": %d, ", i, i);
        say(t, member);
    }
    say(t, base_of(h_family(RSSM_FAMILY_KDA)).before + 1);
    say(t, "4");
    say(t, base_of(h_family(RSSM_FAMILY_KDA)).after);
}

static void make_many_elements(text *t)
{
    text member = {0};
    say(&member, "\"x\": [");
    repeat(&member, "1, ", MANY);
    say(&member, "1]");
    put_with(t, member.bytes, member.length);
    free(member.bytes);
}

/* Texts that need code; the short ones are below. */
static const struct {
    const char *name;
    void (*make)(text *t);
} large_texts[] = {
    {"50 MB of spaces", make_50_mb_of_space},
    {"a string of 50 MB", make_50_mb_string},
    {"a number of 50 MB", make_50_mb_number},
    {"50 MB of zero bytes", make_50_mb_of_nothing},
    {"100000 arrays in one another", make_deep_arrays},
    {"100000 objects in one another", make_deep_objects},
    {"100000 arrays that stay open", make_deep_and_open},
    {"10^6 keys", make_many_keys},
    {"10^6 elements", make_many_elements},
};

/* As the number of heads. */
static const char *const bad_numbers[] = {
    "1e308",
    "-1e308",
    "1e999",
    "-1e999",
    "-0",
    "-0.0",
    "0",
    "-1",
    "NaN",
    "-NaN",
    "nan",
    "Infinity",
    "inf",
    "128.5",
    "4.000001",
    "2147483648",
    "4294967300",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551620",
    "1e19",
    "4e-324",
    "\"4\"",
    "true",
    "null",
    "[]",
    "[4]",
    "{}",
    "0x4",
    "4f",
    "+4",
    "--4",
    "4 4",
    "'4'",
    "",
};

#define BYTES(text) text, sizeof(text) - 1

/* As a member in front of the others: bytes that are no UTF-8, or no JSON. */
static const struct {
    const char *name, *bytes;
    size_t length;
} bad_members[] = {
    {"a NUL in a string", BYTES("\"x\": \"a\0b\"")},
    {"a NUL in a key", BYTES("\"x\0\": 1")},
    {"a NUL between", BYTES("\"x\": 1\0")},
    {"overlong slash", BYTES("\"x\": \"\xC0\xAF\"")},
    {"overlong NUL", BYTES("\"x\": \"\xC0\x80\"")},
    {"overlong of 3", BYTES("\"x\": \"\xE0\x80\xAF\"")},
    {"overlong of 4", BYTES("\"x\": \"\xF0\x80\x80\xAF\"")},
    {"overlong in a key", BYTES("\"\xC1\xBF\": 1")},
    {"a surrogate", BYTES("\"x\": \"\xED\xA0\x80\"")},
    {"beyond U+10FFFF", BYTES("\"x\": \"\xF4\x90\x80\x80\"")},
    {"a lone continuation", BYTES("\"x\": \"\x80\"")},
    {"half a character", BYTES("\"x\": \"\xE2\x82\"")},
    {"byte 0xFF", BYTES("\"x\": \"\xFF\"")},
    {"an escape that is none", BYTES("\"x\": \"\\q\"")},
    {"half an escape", BYTES("\"x\": \"\\u12\"")},
    {"a lone surrogate escape", BYTES("\"x\": \"\\uDC00\"")},
    {"a string without end", BYTES("\"x\": \"")},
    {"a comment", BYTES("/* x */ \"x\": 1")},
    {"a key without quotes", BYTES("x: 1")},
    {"no colon", BYTES("\"x\" 1")},
    {"two commas", BYTES("\"x\": 1,")},
    {"a key that counts, twice", BYTES("\"num_hidden_layers\": 2")},
};

/* Whole texts. */
static const struct {
    const char *name, *bytes;
    size_t length;
} bad_texts[] = {
    {"a space", BYTES(" ")},           {"a byte-order mark", BYTES("\xEF\xBB\xBF")},
    {"a brace", BYTES("{")},           {"a bracket", BYTES("[")},
    {"an array", BYTES("[]")},         {"an empty object", BYTES("{}")},
    {"a number", BYTES("4")},          {"null", BYTES("null")},
    {"a string", BYTES("\"config\"")}, {"a NUL", BYTES("\0")},
    {"two objects", BYTES("{} {}")},   {"\\xFF\\xFE", BYTES("\xFF\xFE{\0}\0")},
    {"a quote", BYTES("\"")},          {"a backslash", BYTES("\"\\")},
    {"a minus", BYTES("-")},
};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* a busy machine is not the plugin's fault */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The most that this process ever had in memory. */
static int64_t peak_bytes(void)
{
    char line[256];
    long long kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmHWM: %lld", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return (int64_t)kilobytes * 1024;
}

static void check_refusal(const rssm_init_args *args, const char *name)
{
    const rssm_status allowed[] = {RSSM_ERR_JSON, RSSM_ERR_CONFIG,   RSSM_ERR_MODEL,
                                   RSSM_ERR_IO,   RSSM_ERR_OVERFLOW, RSSM_ERR_OUT_OF_MEMORY};
    rssm_plugin *plugin = (rssm_plugin *)(uintptr_t)1;
    rssm_error err = h_error();
    const int64_t bytes = peak_bytes();
    const double begun = cpu_seconds();
    rssm_status status = h_api()->init(args, &plugin, &err);
    const double took = cpu_seconds() - begun;
    const int64_t grew = peak_bytes() - bytes;
    bool known = false;
    for (int i = 0; i < COUNT(allowed); i++)
        known = known || status == allowed[i];
    ck_assert_msg(known, "%s: %s: %s", name, h_api()->status_name(status), err.message);
    ck_assert_msg(plugin == NULL && err.status == status && strlen(err.message) > 4, "%s: \"%s\"", name, err.message);
    for (const char *c = err.message; *c; c++)
        ck_assert_msg((unsigned char)*c >= ' ', "%s: a control character in the message", name);
    ck_assert_msg(took < (SANITIZED ? 20 : 1), "%s: took %.2f s", name, took);
    ck_assert_msg(SANITIZED || grew < 64 * MB, "%s: took %lld MB", name, (long long)(grew / MB));
}

/* The plugin is as it was: the good text still reads. */
static void check_good_text(void)
{
    text good = {0};
    put_base(&good, "4");
    rssm_init_args args = {.struct_size = sizeof(args), .config_json = good.bytes, .config_json_len = good.length};
    rssm_plugin *plugin = init_from(&args, "a good text afterwards");
    ck_assert_int_eq(description_of(plugin).HV, 4);
    check_consistent(plugin, "a good text afterwards");
    h_teardown(&plugin);
    free(good.bytes);
}

static void check_text(text *t, const char *name)
{
    rssm_init_args args = {.struct_size = sizeof(args), .config_json = t->bytes, .config_json_len = t->length};
    t->bytes = realloc(t->bytes, t->length); /* of exactly its length: a sanitizer sees one byte more */
    args.config_json = t->bytes;
    check_refusal(&args, name);
    check_good_text();
    free(t->bytes);
}

START_TEST(test_large)
{
    text t = {0};
    large_texts[_i].make(&t);
    check_text(&t, large_texts[_i].name);
}
END_TEST

START_TEST(test_bad_number)
{
    text t = {0};
    put_base(&t, bad_numbers[_i]);
    check_text(&t, bad_numbers[_i]);
}
END_TEST

START_TEST(test_bad_member)
{
    text t = {0};
    put_with(&t, bad_members[_i].bytes, bad_members[_i].length);
    check_text(&t, bad_members[_i].name);
}
END_TEST

START_TEST(test_bad_text)
{
    text t = {0};
    put(&t, bad_texts[_i].bytes, bad_texts[_i].length);
    check_text(&t, bad_texts[_i].name);
}
END_TEST

/* Every beginning of a good text. */
START_TEST(test_cut)
{
    text good = {0};
    put_base(&good, "4");
    for (size_t length = 1; length < good.length; length++) {
        text t = {0};
        put(&t, good.bytes, length);
        check_text(&t, "a text that was cut");
    }
    free(good.bytes);
}
END_TEST

/* Files that have no end, and one that is too long. */
START_TEST(test_bad_file)
{
    rssm_init_args args = {.struct_size = sizeof(args), .config_path = "/dev/zero"};
    if (access(args.config_path, R_OK) == 0)
        check_refusal(&args, args.config_path);
    char path[] = "/tmp/replayssm-config-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, LARGE), 0); /* zeros that take no room */
    args.config_path = path;
    check_refusal(&args, "a file of 50 MB");
    close(fd);
    unlink(path);
    check_good_text();
}
END_TEST

/* ---- suite ------------------------------------------------------------------------------------------------------ */

void config_tests(h_suite *suite);

static void add(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 60});
}

void config_tests(h_suite *suite)
{
    add(suite, "published spellings", test_published, COUNT(models));
    add(suite, "families that the plugin lacks", test_other_families, 1);
    add(suite, "the given file", test_given_file, 1);
    add(suite, "large texts", test_large, COUNT(large_texts));
    add(suite, "bad numbers", test_bad_number, COUNT(bad_numbers));
    add(suite, "bad members", test_bad_member, COUNT(bad_members));
    add(suite, "bad texts", test_bad_text, COUNT(bad_texts));
    add(suite, "cut texts", test_cut, 1);
    add(suite, "bad files", test_bad_file, 1);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("hostile", config_tests, true);
}
#endif
