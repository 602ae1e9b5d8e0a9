/* A file that appears whole or not at all. */
#ifndef EXAMPLES_PLAN_FILE_H_
#define EXAMPLES_PLAN_FILE_H_

#include <stdio.h>

/* Written under a name beside `path`, which it takes at the end. What is there but no regular file (a link, a pipe, a terminal) is
 * written directly. */
typedef struct plan_file {
    FILE *out;
    const char *path;
    char part[4096]; /* "" when written directly */
} plan_file;

/* 0, or -1 with errno set. */
int plan_file_open(plan_file *file, const char *path);
int plan_file_close(plan_file *file);

#endif
