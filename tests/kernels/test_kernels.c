/* The CPU kernels, checked: every vector function and every whole step of every level of this machine against plain
 * double arithmetic and the reference, on random, prime-sized and poisoned inputs between guard bytes; then, with --bench,
 * timed.
 *
 *     test_kernels [--long] [--seed N] [--bench [--json]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static int parse(int argc, char **argv, test_options *options)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--long") == 0)
            options->is_long = 1;
        else if (strcmp(argv[i], "--bench") == 0)
            options->is_bench = 1;
        else if (strcmp(argv[i], "--json") == 0)
            options->is_json = 1;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            options->seed = strtoull(argv[++i], NULL, 0);
        else
            return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    test_options options = {.seed = 1};
    if (!parse(argc, argv, &options)) {
        fprintf(stderr, "usage: test_kernels [--long] [--seed N] [--bench [--json]]\n");
        return 2;
    }
    if (options.is_bench) {
        run_bench(&options);
        return 0;
    }
    static const struct part {
        const char *name;
        void (*run)(const test_options *);
    } parts[] = {{"functions", check_functions}, {"steps", check_steps},     {"threads", check_threads},
                 {"cursors", check_cursors},     {"windows", check_windows}, {"conv", check_conv},
                 {"slots", check_slots}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int64_t passed = checks_passed, failed = checks_failed;
        parts[i].run(&options);
        printf("%-10s %lld passed, %lld failed\n", parts[i].name, (long long)(checks_passed - passed),
               (long long)(checks_failed - failed));
        fflush(stdout);
    }
    worst_print();
    printf("%lld passed, %lld failed\n", (long long)checks_passed, (long long)checks_failed);
    return checks_failed != 0;
}
