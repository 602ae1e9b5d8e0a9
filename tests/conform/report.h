/* What the judge says: lines for a person, TAP, JUnit XML; always a last line `N passed, N failed, N skipped`. */
#ifndef RSSM_TESTS_CONFORM_REPORT_H_
#define RSSM_TESTS_CONFORM_REPORT_H_

#include <stdio.h>

#include "runner.h"

typedef struct conform_report {
    const conform_case *cases; /* of the run */
    const int *chosen;
    bool tap, verbose;
    int seen, passed, failed, skipped;
    char *body; /* of the JUnit file, written when all is known */
    size_t body_bytes;
    FILE *body_file;
    const char *junit, *plugin;
} conform_report;

bool conform_report_open(conform_report *report, const char *plugin, bool tap, const char *junit, bool verbose);
void conform_report_plan(conform_report *report, int count);
void conform_report_case(conform_report *report, const conform_case *c, const conform_result *result);
bool conform_report_close(conform_report *report); /* nothing failed, and the file is written */

#endif
