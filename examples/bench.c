/* replayssm-bench: how near a decode step comes to the limit that the memory of its device sets. */
#define _GNU_SOURCE 1
#include "bench.h"
#include "common/parallel.h"

#include <stdio.h>
#include <string.h>

/* Where it can run, and the batches that are measured when --batch says nothing (none: the device's own list). */
static const struct {
    const char *device;
    int (*run)(bench *b);
    option_list batch;
} backends[] = {{"cpu", bench_cpu, {3, {1, 8, 32}}}, {"cuda", bench_cuda, {0, {0}}}};

static int run(bench *b, bench_options *o)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i].device, o->device) == 0) {
            if (o->batch.count == 0)
                o->batch = backends[i].batch;
            return backends[i].run(b);
        }
    return EXIT_BAD_USAGE;
}

int main(int argc, char **argv)
{
    bench_options o = {
        .device = "cpu", .ring = {1, {16}}, .tokens = {1, {1}}, .seconds = 500, .io = RSSM_DTYPE_BFLOAT16};
    const option_row rows[] = {
        {"device", OPTION_CHOICE, &o.device, "cpu|cuda", "what to measure [cpu]", 0, 0},
        {"family", OPTION_CHOICE, &o.family, "kda|gdn|mamba2", "only this one [all]", 0, 0},
        {"state", OPTION_DTYPE, &o.state, "DTYPE", "of the state [float32; CUDA: several]", 0, 0},
        {"io", OPTION_DTYPE, &o.io, "DTYPE", "of inputs and outputs [bfloat16]", 0, 0},
        {"ring-dtype", OPTION_DTYPE, &o.ring_dtype, "DTYPE", "of the ring's rows [as --io]", 0, 0},
        {"batch", OPTION_LIST, &o.batch, "B,B,...", "rows of a step [CPU: 1,8,32; CUDA: 1 to 1024]", 1, 65536},
        {"ring", OPTION_LIST, &o.ring, "L,L,...", "ring length [16]", 2, 64},
        {"tokens", OPTION_LIST, &o.tokens, "T,T,...", "CUDA: windows of verify, 2, 4 or 8; 1 = plain steps [1]", 1, 8},
        {"heads", OPTION_LIST, &o.heads, "H,HV,K,V", "Mamba-2: groups,heads,state,dim [models']", 1, 65536},
        {"filter", OPTION_TEXT, &o.filter, "TEXT,...", "CUDA: cases whose name has one of these [all]", 0, 0},
        {"together", OPTION_LIST, &o.together, "B,B,...", "CUDA: batches with all rows together [32,128,512]", 1,
         65536},
        {"seconds", OPTION_INT, &o.seconds, "N", "CUDA: begin no case after so long [500]", 1, 100000},
        {"threads", OPTION_INT, &o.threads, "N", "CPU threads [0 = all]", 0, PARALLEL_MAX_THREADS},
        {"level", OPTION_CHOICE, &o.level, "scalar|avx2|avx512|neon", "at most this CPU level [the best]", 0, 0},
        {"steady", OPTION_FLAG, &o.steady, NULL, "spread cursors only, not all rows together", 0, 0},
        {"keep-records", OPTION_FLAG, &o.keep_records, NULL, "CUDA: small batches keep their records too", 0, 0},
        {"slots", OPTION_FLAG, &o.slots, NULL, "CUDA: forks, exports, imports and flushes, not steps", 0, 0},
        {"conv", OPTION_FLAG, &o.conv, NULL, "CUDA: the short convolution, not steps", 0, 0},
        {"quick", OPTION_FLAG, &o.quick, NULL, "CPU: 9 samples, not 41; CUDA: three shapes", 0, 0},
        {"json", OPTION_FLAG, &o.json, NULL, "for programs; CUDA: the table goes to stderr", 0, 0},
        {"plugin", OPTION_TEXT, &o.plugin, "PATH", "the plugin to load", 0, 0},
    };
    const option_table table = {"replayssm-bench", "Measures decode steps against the memory of their device.", NULL,
                                rows, sizeof rows / sizeof rows[0]};
    int code = options_parse(&table, argc, argv, NULL);
    if (code >= 0)
        return code;
    if (o.heads.count != 0 && o.heads.count != 4) {
        fprintf(stderr, "%s: --heads needs four numbers\n", table.program);
        return EXIT_BAD_USAGE;
    }
    if ((o.slots || o.conv) && strcmp(o.device, "cuda") != 0) {
        fprintf(stderr, "%s: --slots and --conv need --device cuda\n", table.program);
        return EXIT_BAD_USAGE;
    }
    bench b = {.o = &o, .base = {.program = table.program, .json = o.json}};
    code = host_load(&b.base, o.plugin);
    if (code == EXIT_OK)
        code = run(&b, &o);
    device_close(&b.dev);
    host_close(&b.base);
    return code;
}
