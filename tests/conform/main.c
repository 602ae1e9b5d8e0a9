/* replayssm-conform: judges any plugin that claims the ABI, knowing only its public headers.
 *
 *     replayssm-conform PLUGIN.so [--filter PATTERN] [--list] [--tap | --junit FILE] ...
 *
 * Exit code 0: nothing failed; 1: something did; 2: the command line, or a plugin that does not load. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "report.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

typedef struct options {
    const char *plugin, *device, *config, *junit;
    const char *filters[64], *skips[64];
    int num_filters, num_skips;
    int jobs, batch, timeout;
    bool list, tap, verbose, no_fork;
} options;

static const char usage[] =
    "usage: replayssm-conform PLUGIN.so [options]\n"
    "  --device cpu|cuda      where the plugin shall compute (default cpu)\n"
    "  --config FILE          a config.json of your own: read, and its first linear layer decoded\n"
    "  --filter PATTERN       only cases whose title has the text, or matches the pattern with *, ? (several: any of "
    "them)\n"
    "  --skip PATTERN         none of these, given as to --filter\n"
    "  --list                 say which cases there are\n"
    "  --tap                  report in the Test Anything Protocol\n"
    "  --junit FILE           also write a JUnit XML report\n"
    "  --jobs N               children at once (default: the number of CPUs; with cuda at most 8)\n"
    "  --batch N              cases of one name that share a child, up to the first that does not pass (default 1; "
    "with cuda "
    "100)\n"
    "  --timeout SECONDS      for every case, instead of its own limit\n"
    "  --no-fork              in this process: for a debugger\n"
    "  --verbose              passed cases too\n";

static bool number(const char *text, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return *text && !*end && value > 0 && value < 1000000;
}

static bool add_pattern(const char *patterns[64], int *count)
{
    if (*count == 64)
        return false;
    patterns[(*count)++] = optarg;
    return true;
}

static bool read_options(int argc, char **argv, options *o)
{
    enum { DEVICE = 256, CONFIG, FILTER, SKIP, LIST, TAP, JUNIT, JOBS, BATCH, TIMEOUT, NO_FORK, VERBOSE, HELP };
    static const struct option known[] = {{"device", 1, NULL, DEVICE},   {"config", 1, NULL, CONFIG},
                                          {"filter", 1, NULL, FILTER},   {"skip", 1, NULL, SKIP},
                                          {"list", 0, NULL, LIST},       {"tap", 0, NULL, TAP},
                                          {"junit", 1, NULL, JUNIT},     {"jobs", 1, NULL, JOBS},
                                          {"batch", 1, NULL, BATCH},     {"timeout", 1, NULL, TIMEOUT},
                                          {"no-fork", 0, NULL, NO_FORK}, {"verbose", 0, NULL, VERBOSE},
                                          {"help", 0, NULL, HELP},       {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) >= 0) {
        switch (c) {
        case DEVICE:
            o->device = optarg;
            break;
        case CONFIG:
            o->config = optarg;
            break;
        case FILTER:
            if (!add_pattern(o->filters, &o->num_filters))
                return false;
            break;
        case SKIP:
            if (!add_pattern(o->skips, &o->num_skips))
                return false;
            break;
        case LIST:
            o->list = true;
            break;
        case TAP:
            o->tap = true;
            break;
        case JUNIT:
            o->junit = optarg;
            break;
        case JOBS:
            if (!number(optarg, &o->jobs))
                return false;
            break;
        case BATCH:
            if (!number(optarg, &o->batch))
                return false;
            break;
        case TIMEOUT:
            if (!number(optarg, &o->timeout))
                return false;
            break;
        case NO_FORK:
            o->no_fork = true;
            break;
        case VERBOSE:
            o->verbose = true;
            break;
        case HELP:
            fputs(usage, stdout);
            exit(0);
        default:
            return false;
        }
    }
    o->plugin = optind + 1 == argc ? argv[optind] : NULL;
    return o->plugin || (o->list && optind == argc);
}

/* The cases find the plugin in the environment, as the unit tests do. */
static bool set_environment(const options *o)
{
    char path[PATH_MAX];
    if (!realpath(o->plugin, path)) {
        fprintf(stderr, "%s: no such file\n", o->plugin);
        return false;
    }
    if (o->config && (access(o->config, R_OK) || setenv("RSSM_CONFIG", o->config, 1))) {
        fprintf(stderr, "--config %s: no such file\n", o->config);
        return false;
    }
    if (setenv("RSSM_PLUGIN", path, 1) || unsetenv("RSSM_MIRRORED"))
        return false;
    if (!o->device || strcmp(o->device, "cpu") == 0)
        return true;
    if (strcmp(o->device, "cuda") != 0) {
        fprintf(stderr, "--device %s: cpu or cuda\n", o->device);
        return false;
    }
    conform_device_open();
    return setenv("RSSM_JUDGED_DEVICE", "cuda", 1) == 0;
}

static bool matches(const char *const *patterns, int count, const char *title)
{
    bool any = false;
    for (int i = 0; !any && i < count; i++)
        any = strstr(title, patterns[i]) || fnmatch(patterns[i], title, 0) == 0;
    return any;
}

static bool wanted(const options *o, const char *title)
{
    return (o->num_filters == 0 || matches(o->filters, o->num_filters, title)) &&
           !matches(o->skips, o->num_skips, title);
}

static bool on_cuda(const options *o)
{
    return o->device && strcmp(o->device, "cuda") == 0;
}

/* Each child that computes on a GPU has a context of its own there, which takes longer than most cases: some share one. */
enum { CUDA_JOBS = 8, CUDA_BATCH = 100 };

static int default_jobs(const options *o)
{
    const int cpus = (int)sysconf(_SC_NPROCESSORS_ONLN), most = on_cuda(o) ? CUDA_JOBS : cpus;
    return cpus < most ? cpus : most;
}

static int choose(const options *o, const conform_case *cases, int count, int *chosen)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        char title[256];
        conform_title(&cases[i], title, sizeof(title));
        if (wanted(o, title))
            chosen[n++] = i;
        if (o->list && wanted(o, title))
            puts(title);
    }
    return n;
}

static const char *const extensions[] = {RSSM_EXT_FAULT, RSSM_EXT_SLOTS, RSSM_EXT_VERIFY, RSSM_EXT_CONV};
enum { NUM_EXTENSIONS = (int)(sizeof(extensions) / sizeof(extensions[0])) };

static bool is_missing(const conform_case *c, const int *has)
{
    for (int i = 0; c->extension && i < NUM_EXTENSIONS; i++)
        if (strcmp(c->extension, extensions[i]) == 0)
            return !has[i];
    return false;
}

/* Cases of an extension that the plugin does not have are skipped by name, without a child. */
static int skip_missing(const conform_case *cases, const int *has, int *chosen, int count, conform_report *report)
{
    int kept = 0;
    for (int i = 0; i < count; i++) {
        const conform_case *c = &cases[chosen[i]];
        if (!is_missing(c, has)) {
            chosen[kept++] = chosen[i];
            continue;
        }
        conform_result result = {.outcome = CONFORM_SKIPPED};
        snprintf(result.why, sizeof(result.why), "the plugin has no %s", c->extension);
        conform_report_case(report, c, &result);
    }
    return kept;
}

static void on_done(void *user, int i, const conform_result *result)
{
    conform_report *report = user;
    conform_report_case(report, &report->cases[report->chosen[i]], result);
}

static int judge(const options *o, const conform_case *cases, int *chosen, int count)
{
    int has[NUM_EXTENSIONS];
    char why[512];
    for (int i = 0; i < NUM_EXTENSIONS; i++) {
        has[i] = conform_has_extension(extensions[i], why, sizeof(why));
        if (has[i] < 0) {
            fprintf(stderr, "%s: %s\n", o->plugin, why);
            return 2;
        }
    }
    conform_report report;
    if (!conform_report_open(&report, o->plugin, o->tap, o->junit, o->verbose))
        return 2;
    conform_report_plan(&report, count);
    count = skip_missing(cases, has, chosen, count, &report);
    conform_result *results = calloc((size_t)count + 1, sizeof(*results));
    if (!results)
        return 2;
    report.cases = cases;
    report.chosen = chosen;
    const conform_run run = {.cases = cases,
                             .chosen = chosen,
                             .count = count,
                             .jobs = o->jobs ? o->jobs : default_jobs(o),
                             .batch = o->batch     ? o->batch
                                      : on_cuda(o) ? CUDA_BATCH
                                                   : 1,
                             .timeout = o->timeout,
                             .no_fork = o->no_fork,
                             .done = on_done,
                             .user = &report};
    conform_run_all(&run, results);
    free(results);
    return conform_report_close(&report) ? 0 : 1;
}

int main(int argc, char **argv)
{
    options o = {0};
    if (!read_options(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    int count;
    const conform_case *cases = conform_cases(&count);
    int *chosen = malloc(((size_t)count + 1) * sizeof(*chosen));
    if (!chosen)
        return 2;
    int n = choose(&o, cases, count, chosen);
    int rc = 0;
    if (!o.list && n == 0) {
        fprintf(stderr, "no case matches\n");
        rc = 2;
    } else if (!o.list) {
        rc = set_environment(&o) ? judge(&o, cases, chosen, n) : 2;
    }
    free(chosen);
    return rc;
}
