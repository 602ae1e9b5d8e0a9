/* Runs cases, in child processes with a time limit for each case: what crashes, hangs or exits is a failed case and not the
 * end of the judge. */
#ifndef RSSM_TESTS_CONFORM_RUNNER_H_
#define RSSM_TESTS_CONFORM_RUNNER_H_

#include "registry.h"

typedef enum conform_outcome { CONFORM_PASSED, CONFORM_FAILED, CONFORM_SKIPPED } conform_outcome;

typedef struct conform_result {
    conform_outcome outcome;
    double seconds;
    char why[1024]; /* one line; of a failure or a skip */
} conform_result;

typedef struct conform_run {
    const conform_case *cases;
    const int *chosen; /* [count] indices of cases */
    int count;
    int jobs;                                                      /* children at once */
    int batch;                                                     /* most cases of a child: all of one name */
    int timeout;                                                   /* seconds for every case; 0 = the case's own */
    bool no_fork;                                                  /* to debug: in this process, one after the other */
    void (*done)(void *user, int i, const conform_result *result); /* as they finish, i of chosen */
    void *user;
} conform_run;

/* results[count], in the order of chosen. */
void conform_run_all(const conform_run *run, conform_result *results);

/* Does the plugin have the extension? Asked in a child; -1: the plugin does not load there, and *why says why. */
int conform_has_extension(const char *id, char *why, size_t size);

#endif
