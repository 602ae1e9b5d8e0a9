/* Command lines as tables: one row per option gives its parser, its place and its line of --help. */
#ifndef EXAMPLES_OPTIONS_H_
#define EXAMPLES_OPTIONS_H_

#include <stddef.h>
#include <stdint.h>

/* Exit codes of every program here. */
enum {
    EXIT_OK = 0,
    EXIT_MISSED = 1,  /* a bar was missed                                                      */
    EXIT_REFUSED = 2, /* the plugin, the config or the machine said no: one line on stderr     */
    EXIT_BAD_USAGE = 64
};

enum {
    OPTION_FLAG,   /* int32_t *, set to 1                                                       */
    OPTION_TEXT,   /* const char **                                                             */
    OPTION_CHOICE, /* const char **: one of `argument`'s words, which | separates              */
    OPTION_INT,    /* int64_t *, within min and max                                             */
    OPTION_BYTES,  /* int64_t *: 1000, 64K, 1.5GiB ...                                          */
    OPTION_RATE,   /* int64_t *: bytes per second: 200GB/s, 4.8TB ...                           */
    OPTION_DTYPE,  /* int32_t *, RSSM_DTYPE_*                                                   */
    OPTION_LIST    /* option_list *: integers with commas, each within min and max              */
};

enum { OPTION_LIST_MAX = 32 };
typedef struct option_list {
    int64_t count, values[OPTION_LIST_MAX];
} option_list;

typedef struct option_row {
    const char *name; /* without the dashes */
    int kind;
    void *place;
    const char *argument; /* its name in --help, NULL for a flag */
    const char *help;
    int64_t min, max;
} option_row;

typedef struct option_table {
    const char *program;
    const char *summary; /* what the program does            */
    const char *operand; /* "CONFIG", or NULL for none       */
    const option_row *rows;
    size_t num_rows;
} option_table;

/* Parses all; sets *operand when the table has one. Returns -1 to go on, else the code to exit with (after --help,
 * or after a line on stderr that says what was wrong). */
int options_parse(const option_table *table, int argc, char **argv, const char **operand);

#endif
