#define _GNU_SOURCE
#include "report.h"

#include <stdlib.h>
#include <string.h>

bool conform_report_open(conform_report *report, const char *plugin, bool tap, const char *junit, bool verbose)
{
    *report = (conform_report){.tap = tap, .verbose = verbose, .junit = junit, .plugin = plugin};
    if (junit)
        report->body_file = open_memstream(&report->body, &report->body_bytes);
    return !junit || report->body_file;
}

void conform_report_plan(conform_report *report, int count)
{
    if (report->tap)
        printf("TAP version 13\n1..%d\n", count);
}

/* Text inside an attribute; control characters have no place in XML 1.0. */
static void put_escaped(FILE *f, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
        }
    }
}

static void put_junit(FILE *f, const conform_case *c, const char *title, const conform_result *result)
{
    fprintf(f, "  <testcase classname=\"");
    put_escaped(f, c->group);
    fprintf(f, "\" name=\"");
    put_escaped(f, title);
    fprintf(f, "\" time=\"%.3f\"", result->seconds);
    if (result->outcome == CONFORM_PASSED) {
        fprintf(f, "/>\n");
        return;
    }
    fprintf(f, "><%s message=\"", result->outcome == CONFORM_FAILED ? "failure" : "skipped");
    put_escaped(f, result->why);
    fprintf(f, "\"/></testcase>\n");
}

static void put_tap(const conform_report *report, const char *title, const conform_result *result)
{
    printf("%s %d - %s", result->outcome == CONFORM_FAILED ? "not ok" : "ok", report->seen, title);
    if (result->outcome == CONFORM_SKIPPED)
        printf(" # SKIP %s", result->why);
    printf("\n");
    if (result->outcome == CONFORM_FAILED)
        printf("# %s\n", result->why);
}

static void put_line(const conform_report *report, const char *title, const conform_result *result)
{
    if (result->outcome == CONFORM_FAILED)
        printf("FAILED  %s: %s\n", title, result->why);
    else if (report->verbose)
        printf("%s %s%s%s\n", result->outcome == CONFORM_PASSED ? "passed " : "skipped", title,
               result->why[0] ? ": " : "", result->why);
}

void conform_report_case(conform_report *report, const conform_case *c, const conform_result *result)
{
    char title[256];
    conform_title(c, title, sizeof(title));
    report->seen++;
    report->passed += result->outcome == CONFORM_PASSED;
    report->failed += result->outcome == CONFORM_FAILED;
    report->skipped += result->outcome == CONFORM_SKIPPED;
    if (report->tap)
        put_tap(report, title, result);
    else
        put_line(report, title, result);
    if (report->body_file)
        put_junit(report->body_file, c, title, result);
    fflush(stdout);
}

static bool write_junit(conform_report *report)
{
    fclose(report->body_file);
    FILE *f = fopen(report->junit, "w");
    bool written = f;
    if (f) {
        fprintf(f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"replayssm-conform ");
        put_escaped(f, report->plugin);
        fprintf(f, "\" tests=\"%d\" failures=\"%d\" skipped=\"%d\">\n", report->seen, report->failed, report->skipped);
        written = fwrite(report->body, 1, report->body_bytes, f) == report->body_bytes;
        fprintf(f, "</testsuite>\n");
        written = fclose(f) == 0 && written;
    }
    free(report->body);
    if (!written)
        fprintf(stderr, "%s cannot be written\n", report->junit);
    return written;
}

bool conform_report_close(conform_report *report)
{
    bool written = !report->body_file || write_junit(report);
    printf("%s%d passed, %d failed, %d skipped\n", report->tap ? "# " : "", report->passed, report->failed,
           report->skipped);
    return written && report->failed == 0;
}
