#define _GNU_SOURCE 1
#include "options.h"

#include "dtype.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32, HELP_COLUMN = 26 };

static int print_help(const option_table *table)
{
    printf("Usage: %s%s%s [option]...\n%s\n\n", table->program, table->operand != NULL ? " " : "",
           table->operand != NULL ? table->operand : "", table->summary);
    for (size_t i = 0; i < table->num_rows; i++) {
        const option_row *row = &table->rows[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", row->name, row->argument != NULL ? " " : "",
                 row->argument != NULL ? row->argument : "");
        printf("  %-*s %s\n", HELP_COLUMN, left, row->help);
    }
    printf("  %-*s %s\n\n", HELP_COLUMN, "--help", "this text");
    printf("DTYPE is float32, bfloat16 or float16 (also fp32, bf16, fp16).\n"
           "The plugin is --plugin, else $REPLAYSSM_PLUGIN, else the one installed or built with this program.\n"
           "Exit status: 0 done, 1 a bar was missed, 2 refused (one line on stderr says why), 64 bad usage.\n");
    return EXIT_OK;
}

static int parse_int(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0)
        return -1;
    *value = (int64_t)parsed;
    return 0;
}

/* Bytes with an optional unit: K, M, G are decimal, KiB, MiB, GiB binary; a fraction is fine. */
static int parse_bytes(const char *text, int64_t *value)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"K", 1e3},
                 {"KB", 1e3},
                 {"M", 1e6},
                 {"MB", 1e6},
                 {"G", 1e9},
                 {"GB", 1e9},
                 {"T", 1e12},
                 {"TB", 1e12},
                 {"KiB", 1024.0},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}};
    if (parse_int(text, value) == 0) /* plain bytes stay exact */
        return *value > 0 ? 0 : -1;
    char *end;
    double number = strtod(text, &end);
    if (end == text || !isfinite(number))
        return -1;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        double bytes = number * units[i].bytes;
        if (!(bytes >= 1.0 && bytes < 0x1p63))
            return -1;
        *value = (int64_t)bytes;
        return 0;
    }
    return -1;
}

/* Bytes per second: as bytes, "/s" may follow. */
static int parse_rate(const char *text, int64_t *value)
{
    char bytes[64];
    size_t length = strlen(text);
    if (length > 2 && strcmp(text + length - 2, "/s") == 0)
        length -= 2;
    if (length >= sizeof bytes)
        return -1;
    memcpy(bytes, text, length);
    bytes[length] = 0;
    return parse_bytes(bytes, value);
}

static int in_range(const option_row *row, int64_t value)
{
    return value >= row->min && value <= row->max;
}

/* 0 if the text is one of the words of "one|two|three". */
static int parse_choice(const char *words, const char *text, const char **choice)
{
    const size_t length = strlen(text);
    for (const char *word = words; *word != 0; word += strcspn(word, "|"), word += *word == '|') {
        if (strcspn(word, "|") != length || strncmp(word, text, length) != 0)
            continue;
        *choice = text;
        return 0;
    }
    return -1;
}

static int parse_list(const option_row *row, const char *text, option_list *list)
{
    char copy[512];
    if (strlen(text) >= sizeof copy)
        return -1;
    memcpy(copy, text, strlen(text) + 1);
    list->count = 0;
    char *rest = copy;
    for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ",")) {
        int64_t value;
        if (list->count == OPTION_LIST_MAX || parse_int(item, &value) != 0 || !in_range(row, value))
            return -1;
        list->values[list->count++] = value;
    }
    return 0;
}

/* 0 if the text is a good value for the row, and stored. */
static int store(const option_row *row, const char *text)
{
    int64_t number;
    const dtype_info *type;
    switch (row->kind) {
    case OPTION_FLAG:
        *(int32_t *)row->place = 1;
        return 0;
    case OPTION_TEXT:
        *(const char **)row->place = text;
        return 0;
    case OPTION_CHOICE:
        return parse_choice(row->argument, text, row->place);
    case OPTION_INT:
        if (parse_int(text, &number) != 0 || !in_range(row, number))
            return -1;
        *(int64_t *)row->place = number;
        return 0;
    case OPTION_BYTES:
        return parse_bytes(text, row->place);
    case OPTION_RATE:
        return parse_rate(text, row->place);
    case OPTION_DTYPE:
        type = dtype_parse(text);
        if (type != NULL)
            *(int32_t *)row->place = type->id;
        return type != NULL ? 0 : -1;
    default:
        return parse_list(row, text, row->place);
    }
}

static int bad_value(const option_table *table, const option_row *row, const char *text)
{
    fprintf(stderr, "%s: bad value '%s' for --%s: need ", table->program, text, row->name);
    if (row->kind == OPTION_INT || row->kind == OPTION_LIST)
        fprintf(stderr, "%s from %" PRId64 " to %" PRId64 "\n", row->kind == OPTION_INT ? "a number" : "numbers",
                row->min, row->max);
    else if (row->kind == OPTION_BYTES)
        fprintf(stderr, "bytes, such as 1000000, 512MiB or 80G\n");
    else if (row->kind == OPTION_RATE)
        fprintf(stderr, "bytes per second, such as 4.8TB/s or 200GB/s\n");
    else
        fprintf(stderr, "%s\n", row->kind == OPTION_CHOICE ? row->argument : "float32, bfloat16 or float16");
    return EXIT_BAD_USAGE;
}

static int bad_usage(const option_table *table, const char *what, const char *detail)
{
    fprintf(stderr, "%s: %s%s; see %s --help\n", table->program, what, detail, table->program);
    return EXIT_BAD_USAGE;
}

int options_parse(const option_table *table, int argc, char **argv, const char **operand)
{
    struct option longs[MAX_ROWS + 2];
    memset(longs, 0, sizeof longs);
    for (size_t i = 0; i < table->num_rows && i < MAX_ROWS; i++) {
        longs[i].name = table->rows[i].name;
        longs[i].has_arg = table->rows[i].kind == OPTION_FLAG ? no_argument : required_argument;
    }
    longs[table->num_rows].name = "help";

    opterr = 0; /* we say it ourselves, in one line */
    for (;;) {
        int index = -1;
        int code = getopt_long(argc, argv, ":h", longs, &index);
        if (code == -1)
            break;
        if (code == 'h' || (code == 0 && index == (int)table->num_rows))
            return print_help(table);
        if (code == ':')
            return bad_usage(table, "a value must follow ", argv[optind - 1]);
        if (code != 0)
            return bad_usage(table, "unknown option ", argv[optind - 1]);
        if (store(&table->rows[index], optarg) != 0)
            return bad_value(table, &table->rows[index], optarg);
    }
    if (table->operand != NULL) {
        if (optind == argc)
            return bad_usage(table, "missing operand ", table->operand);
        *operand = argv[optind++];
    }
    return optind < argc ? bad_usage(table, "unexpected operand ", argv[optind]) : -1;
}
