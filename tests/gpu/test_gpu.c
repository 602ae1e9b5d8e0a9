/* The CUDA backend on a GPU, through the public ABI. Needs libc and libm, the driver, replayssm.so and mirror.so.
 *
 *     test_gpu [--small] [--part i/n] [--cases first:last] [--only random|kernels|large|slots|streams|two|verify]
 *
 * $RSSM_MIRRORED is the plugin under test and $RSSM_PLUGIN the mirror in front of it; by default those of the build
 * folder that this program lies in. --part gives a share of each loop of tests; what runs once is in part 0. */
#define _GNU_SOURCE
#include "test_gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unit/harness.h"

enum { CASES = 2400, SMALL_CASES = 40 };

gpu_share share = {.part = 0, .parts = 1, .first = 0, .last = CASES};

/* The file at `relative` from this program's folder, unless the variable is set. */
static void set_default(const char *variable, const char *relative)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 256);
    if (length <= 0 || getenv(variable))
        return;
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, relative);
    setenv(variable, path, 1);
}

static int usage(void)
{
    fprintf(stderr, "usage: test_gpu [--small] [--part i/n] [--cases first:last] [--only "
                    "random|kernels|large|slots|streams|two|verify]\n");
    return 64;
}

static int parse(int argc, char **argv, const char **only)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--small") == 0) {
            share.small = 1;
            share.last = SMALL_CASES;
        } else if (strcmp(argv[i], "--part") == 0 &&
                   sscanf(value, "%" SCNd64 "/%" SCNd64, &share.part, &share.parts) == 2) {
            i++;
        } else if (strcmp(argv[i], "--cases") == 0 &&
                   sscanf(value, "%" SCNd64 ":%" SCNd64, &share.first, &share.last) == 2) {
            i++;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            *only = argv[++i];
        } else {
            return -1;
        }
    }
    return share.parts < 1 || share.part < 0 || share.part >= share.parts ? -1 : 0;
}

int main(int argc, char **argv)
{
    const char *only = "";
    set_default("RSSM_PLUGIN", "mirror.so");
    set_default("RSSM_MIRRORED", "../plugin/replayssm.so");
    if (argc == 2 && strcmp(argv[1], "--plan-then-fork") == 0)
        return main_plan_then_fork();
    if (parse(argc, argv, &only))
        return usage();
    setenv("CK_FORK", "no", 1); /* a CUDA context does not survive a fork */
    Suite *s = suite_create("gpu");
    if (!*only || strcmp(only, "random") == 0)
        add_random_cases(s);
    if (!*only || strcmp(only, "kernels") == 0)
        add_kernels(s);
    if (!*only || strcmp(only, "slots") == 0)
        add_slots(s);
    if (!*only || strcmp(only, "verify") == 0)
        add_verify(s);
    if (!*only || strcmp(only, "streams") == 0)
        add_streams(s);
    if ((!*only && !share.part && !share.small) || strcmp(only, "two") == 0)
        add_two_devices(s);
    if ((!*only && !share.part && !share.small) || strcmp(only, "large") == 0)
        add_large(s);
    return h_run(s);
}
