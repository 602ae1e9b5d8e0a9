#define _GNU_SOURCE 1
#include "gpu.h"

#include "rng.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of cuda.h. */
enum {
    STREAM_NON_BLOCKING = 1,
    CAPTURE_THREAD_LOCAL = 1,
    RECORD_EXTERNAL = 1, /* an event of a graph that the host may look at */
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_L2_BYTES = 38,
    NODE_IS_KERNEL = 0
};
typedef struct kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    cu_function function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel;
    cu_context context;
} kernel_node;

struct gpu_calls {
    cu_result (*device_name)(char *name, int length, cu_device device);
    cu_result (*attribute)(int *value, int attribute, cu_device device);
    cu_result (*version)(int *version);
    cu_result (*mem_info)(size_t *available, size_t *total);
    cu_result (*stream_create)(cu_stream *out, unsigned flags);
    cu_result (*stream_destroy)(cu_stream stream);
    cu_result (*stream_sync)(cu_stream stream);
    cu_result (*between)(cu_pointer dst, cu_pointer src, size_t bytes, cu_stream stream);
    cu_result (*to_device)(cu_pointer dst, const void *src, size_t bytes, cu_stream stream);
    cu_result (*to_host)(void *dst, cu_pointer src, size_t bytes, cu_stream stream);
    cu_result (*capture_begin)(cu_stream stream, int mode);
    cu_result (*capture_end)(cu_stream stream, cu_graph *out);
    cu_result (*instantiate)(cu_graph_exec *out, cu_graph graph, unsigned long long flags);
    cu_result (*graph_launch)(cu_graph_exec exec, cu_stream stream);
    cu_result (*exec_destroy)(cu_graph_exec exec);
    cu_result (*graph_destroy)(cu_graph graph);
    cu_result (*graph_nodes)(cu_graph graph, cu_node *nodes, size_t *count);
    cu_result (*node_type)(cu_node node, int *type);
    cu_result (*node_kernel)(cu_node node, kernel_node *out);
    cu_result (*function_name)(const char **name, cu_function function);
    cu_result (*event_create)(cu_event *out, unsigned flags);
    cu_result (*event_destroy)(cu_event event);
    cu_result (*event_record)(cu_event event, cu_stream stream, unsigned flags);
    cu_result (*event_between)(float *milliseconds, cu_event begin, cu_event end);
    cu_result (*module_load)(cu_module *out, const void *image);
    cu_result (*module_unload)(cu_module module);
    cu_result (*module_function)(cu_function *out, cu_module module, const char *name);
    cu_result (*launch)(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream, void **parameters,
                        void **extra);
};

static const cuda_entry entries[] = {
    {"cuDeviceGetName", offsetof(gpu_calls, device_name), 0},
    {"cuDeviceGetAttribute", offsetof(gpu_calls, attribute), 0},
    {"cuDriverGetVersion", offsetof(gpu_calls, version), 0},
    {"cuMemGetInfo_v2", offsetof(gpu_calls, mem_info), 0},
    {"cuStreamCreate", offsetof(gpu_calls, stream_create), 0},
    {"cuStreamDestroy_v2", offsetof(gpu_calls, stream_destroy), 0},
    {"cuStreamSynchronize", offsetof(gpu_calls, stream_sync), 0},
    {"cuMemcpyDtoDAsync_v2", offsetof(gpu_calls, between), 0},
    {"cuMemcpyHtoDAsync_v2", offsetof(gpu_calls, to_device), 0},
    {"cuMemcpyDtoHAsync_v2", offsetof(gpu_calls, to_host), 0},
    {"cuStreamBeginCapture_v2", offsetof(gpu_calls, capture_begin), 0},
    {"cuStreamEndCapture", offsetof(gpu_calls, capture_end), 0},
    {"cuGraphInstantiateWithFlags", offsetof(gpu_calls, instantiate), 0},
    {"cuGraphLaunch", offsetof(gpu_calls, graph_launch), 0},
    {"cuGraphExecDestroy", offsetof(gpu_calls, exec_destroy), 0},
    {"cuGraphDestroy", offsetof(gpu_calls, graph_destroy), 0},
    {"cuGraphGetNodes", offsetof(gpu_calls, graph_nodes), 0},
    {"cuGraphNodeGetType", offsetof(gpu_calls, node_type), 0},
    {"cuGraphKernelNodeGetParams_v2", offsetof(gpu_calls, node_kernel), 1},
    {"cuFuncGetName", offsetof(gpu_calls, function_name), 1},
    {"cuEventCreate", offsetof(gpu_calls, event_create), 0},
    {"cuEventDestroy_v2", offsetof(gpu_calls, event_destroy), 0},
    {"cuEventRecordWithFlags", offsetof(gpu_calls, event_record), 0},
    {"cuEventElapsedTime", offsetof(gpu_calls, event_between), 0},
    {"cuModuleLoadData", offsetof(gpu_calls, module_load), 0},
    {"cuModuleUnload", offsetof(gpu_calls, module_unload), 0},
    {"cuModuleGetFunction", offsetof(gpu_calls, module_function), 0},
    {"cuLaunchKernel", offsetof(gpu_calls, launch), 0},
};

/* A kernel that does nothing; and two that walk over words of 16 bytes, 8 to a thread and round: one reads them and keeps
 * nothing (it stores only where the or of all it saw is one certain number), one copies them. WALK_WORDS divides the words. */
enum { WALK_THREADS = 256, WALK_WORDS = 8 * WALK_THREADS };
/* clang-format off */
#define EIGHT(DO)                                                \
    DO("0", "0") DO("1", "4096") DO("2", "8192") DO("3", "12288") \
    DO("4", "16384") DO("5", "20480") DO("6", "24576") DO("7", "28672")
#define LOAD(n, offset)  "ld.global.cs.v4.u32 {%x" n ", %y" n ", %z" n ", %w" n "}, [%at+" offset "];\n"
#define STORE(n, offset) "st.global.cs.v4.u32 [%at+" offset "], {%x" n ", %y" n ", %z" n ", %w" n "};\n"
#define KEEP(n, offset)                                                        \
    "or.b32 %x" n ", %x" n ", %y" n ";\nor.b32 %z" n ", %z" n ", %w" n ";\n"    \
    "or.b32 %x" n ", %x" n ", %z" n ";\nor.b32 %sum, %sum, %x" n ";\n"
#define WALK(name, body, after)                                                \
    ".visible .entry " name "(.param .u64 from, .param .u64 words, .param .u64 to)\n{\n"     \
    ".reg .pred %more, %stores;\n"                                             \
    ".reg .b32 %block, %blocks, %thread, %sum, %x<8>, %y<8>, %z<8>, %w<8>;\n"  \
    ".reg .b64 %from, %to, %word, %words, %step, %offset, %at;\n"              \
    "ld.param.u64 %from, [from];\n"                                            \
    "ld.param.u64 %words, [words];\n"                                          \
    "ld.param.u64 %to, [to];\n"                                                \
    "mov.u32 %block, %ctaid.x;\n"                                              \
    "mov.u32 %blocks, %nctaid.x;\n"                                            \
    "mov.u32 %thread, %tid.x;\n"                                               \
    "mov.u32 %sum, 0;\n"                                                       \
    "mul.wide.u32 %word, %block, 2048;\n"                                      \
    "cvt.u64.u32 %at, %thread;\n"                                              \
    "add.u64 %word, %word, %at;\n"                                             \
    "mul.wide.u32 %step, %blocks, 2048;\n"                                     \
    "ROUND:\n"                                                                 \
    "setp.lt.u64 %more, %word, %words;\n"                                      \
    "@!%more bra DONE;\n"                                                      \
    "shl.b64 %offset, %word, 4;\n"                                             \
    "add.u64 %at, %offset, %from;\n"                                           \
    body                                                                       \
    "add.u64 %word, %word, %step;\n"                                           \
    "bra ROUND;\n"                                                             \
    "DONE:\n"                                                                  \
    after                                                                      \
    "ret;\n}\n"
static const char kernels[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry rssm_bench_empty() { ret; }\n"
    WALK("rssm_bench_read", EIGHT(LOAD) EIGHT(KEEP),
         "setp.eq.u32 %stores, %sum, 0x9e3779b9;\n@%stores st.global.u32 [%to], %sum;\n")
    WALK("rssm_bench_copy", EIGHT(LOAD) "add.u64 %at, %offset, %to;\n" EIGHT(STORE), "");
/* clang-format on */

/* Ways to read and to copy the two arrays; the fastest is taken. */
typedef struct gpu_loop {
    const char *name;
    int blocks; /* of a walking kernel, per multiprocessor; 0: the driver's copy; EVERY: one round to a block */
} gpu_loop;
enum { EVERY = -1 };
static const gpu_loop read_loops[] = {{"kernel, 2 blocks per multiprocessor", 2},
                                      {"kernel, 4 blocks per multiprocessor", 4},
                                      {"kernel, 8 blocks per multiprocessor", 8},
                                      {"kernel, a block for every 32 KiB", EVERY}};
static const gpu_loop copy_loops[] = {{"cuMemcpyDtoDAsync", 0},
                                      {"kernel, 2 blocks per multiprocessor", 2},
                                      {"kernel, 4 blocks per multiprocessor", 4},
                                      {"kernel, 8 blocks per multiprocessor", 8},
                                      {"kernel, a block for every 32 KiB", EVERY}};
enum { READ_LOOPS = sizeof read_loops / sizeof read_loops[0], COPY_LOOPS = sizeof copy_loops / sizeof copy_loops[0] };

/* A measurement is TIMED walks after one that keeps the device busy while they are enqueued. */
enum { TIMED = 2, CHOICE_ROUNDS = 21 };
#define MOST_BYTES  ((int64_t)1 << 30)
#define LEAST_BYTES ((int64_t)1 << 20)

static cu_pointer address(const void *ptr)
{
    return (cu_pointer)(uintptr_t)ptr;
}

static int check(gpu *g, cu_result result, const char *what)
{
    return cuda_check(g->dev, g->h, result, what);
}

/* ---- bandwidth -------------------------------------------------------------------------------------------------- */

static cu_result walk(gpu *g, const gpu_loop *loop, int copies)
{
    cu_pointer from = address(g->from), to = address(g->to);
    unsigned long long words = (unsigned long long)g->bytes / 16;
    void *parameters[] = {&from, &words, &to};
    const int64_t rounds = g->bytes / 16 / WALK_WORDS, most = (int64_t)g->multiprocessors * loop->blocks;
    if (loop->blocks == 0)
        return g->calls->between(to, from, (size_t)g->bytes, g->stream);
    return g->calls->launch(copies ? g->copier : g->reader,
                            (unsigned)(loop->blocks == EVERY || rounds < most ? rounds : most), 1, 1, WALK_THREADS, 1,
                            1, 0, g->stream, parameters, NULL);
}

static int time_loop(gpu *g, const gpu_loop *loop, int copies, double *bytes_per_second)
{
    double seconds = 0.0;
    cu_result result = walk(g, loop, copies);
    if (result == 0)
        result = g->calls->event_record(g->marks[0], g->stream, 0);
    for (int i = 0; i < TIMED && result == 0; i++)
        result = walk(g, loop, copies);
    if (result == 0)
        result = g->calls->event_record(g->marks[1], g->stream, 0);
    int code = check(g, result, "a bandwidth");
    if (code == EXIT_OK)
        code = gpu_sync(g);
    if (code == EXIT_OK)
        code = gpu_between(g, g->marks[0], g->marks[1], &seconds);
    if (code == EXIT_OK && seconds <= 0.0)
        code = host_refuse(g->h, "the GPU's clock stands still");
    *bytes_per_second = (double)((copies ? 2 : 1) * TIMED * g->bytes) / seconds;
    return code;
}

/* The loop that is fastest in the median of some rounds, all loops in turn; warms the device up, too. */
static int choose(gpu *g, const gpu_loop *loops, int count, int copies, int *best)
{
    double speed[COPY_LOOPS][CHOICE_ROUNDS], most = 0.0;
    int code = EXIT_OK;
    for (int i = 0; i < CHOICE_ROUNDS; i++)
        for (int loop = 0; loop < count && code == EXIT_OK; loop++)
            code = time_loop(g, &loops[loop], copies, &speed[loop][i]);
    if (code != EXIT_OK)
        return code;
    for (int loop = 0; loop < count; loop++) {
        const double median = stats_summary(speed[loop], CHOICE_ROUNDS).median;
        *best = median > most ? loop : *best;
        most = median > most ? median : most;
    }
    return EXIT_OK;
}

static int choose_loops(gpu *g)
{
    int code = choose(g, copy_loops, COPY_LOOPS, 1, &g->copy_loop);
    return code == EXIT_OK ? choose(g, read_loops, READ_LOOPS, 0, &g->read_loop) : code;
}

int gpu_copy_bandwidth(gpu *g, double *bytes_per_second)
{
    return time_loop(g, &copy_loops[g->copy_loop], 1, bytes_per_second);
}

int gpu_read_bandwidth(gpu *g, double *bytes_per_second)
{
    return time_loop(g, &read_loops[g->read_loop], 0, bytes_per_second);
}

const char *gpu_copy_loop(const gpu *g)
{
    return copy_loops[g->copy_loop].name;
}

const char *gpu_read_loop(const gpu *g)
{
    return read_loops[g->read_loop].name;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int look_at_device(gpu *g)
{
    const cu_device ordinal = cuda_ordinal(g->dev);
    int sms = 0, l2 = 0, version = 0;
    cu_result result = g->calls->device_name(g->name, (int)sizeof g->name, ordinal);
    if (result == 0)
        result = g->calls->attribute(&sms, ATTRIBUTE_MULTIPROCESSORS, ordinal);
    if (result == 0)
        result = g->calls->attribute(&l2, ATTRIBUTE_L2_BYTES, ordinal);
    if (result == 0)
        result = g->calls->version(&version);
    g->multiprocessors = sms;
    g->l2_bytes = l2;
    g->driver_version = version;
    return check(g, result, "looking at the device");
}

static int load_kernels(gpu *g)
{
    cu_result result = g->calls->module_load(&g->module, kernels);
    if (result == 0)
        result = g->calls->module_function(&g->empty, g->module, "rssm_bench_empty");
    if (result == 0)
        result = g->calls->module_function(&g->reader, g->module, "rssm_bench_read");
    if (result == 0)
        result = g->calls->module_function(&g->copier, g->module, "rssm_bench_copy");
    return check(g, result, "loading the benchmark's own kernels");
}

/* Memory does not see zeros in service: random words, doubled until the array is full. */
static int fill_random(gpu *g)
{
    uint64_t *words = malloc(LEAST_BYTES);
    if (words == NULL)
        return host_refuse(g->h, "out of memory");
    rng r = rng_stream(1, 0, 0);
    for (int64_t i = 0; i < LEAST_BYTES / 8; i++)
        words[i] = rng_next(&r);
    int code = gpu_upload(g, g->from, words, LEAST_BYTES);
    for (int64_t have = LEAST_BYTES; have < g->bytes && code == EXIT_OK; have *= 2) {
        const int64_t more = have < g->bytes - have ? have : g->bytes - have;
        cu_result result = g->calls->between(address(g->from + have), address(g->from), (size_t)more, g->stream);
        code = check(g, result, "a copy");
    }
    free(words);
    return code == EXIT_OK ? gpu_sync(g) : code;
}

/* 64 times the L2 cache, within limits. */
static int open_bandwidth(gpu *g)
{
    g->bytes = 64 * g->l2_bytes;
    g->bytes = g->bytes > MOST_BYTES ? MOST_BYTES : g->bytes < LEAST_BYTES ? LEAST_BYTES : g->bytes & -LEAST_BYTES;
    g->from = g->dev->alloc(g->dev, g->bytes);
    g->to = g->dev->alloc(g->dev, g->bytes);
    if (g->from == NULL || g->to == NULL)
        return host_refuse(g->h, "no device memory for two arrays of %lld bytes", (long long)g->bytes);
    int code = fill_random(g);
    if (code == EXIT_OK)
        code = gpu_marks_create(g, g->marks, 2);
    return code == EXIT_OK ? choose_loops(g) : code;
}

int gpu_open(gpu *g, device *dev, const host *h)
{
    *g = (gpu){.dev = dev, .h = h, .calls = calloc(1, sizeof *g->calls)};
    if (g->calls == NULL)
        return host_refuse(h, "out of memory");
    const char *missing = cuda_entries(dev, entries, sizeof entries / sizeof entries[0], g->calls);
    if (missing != NULL) {
        free(g->calls);
        g->calls = NULL;
        return host_refuse(h, "the CUDA driver is too old: it has no %s", missing);
    }
    int code = check(g, g->calls->stream_create(&g->stream, STREAM_NON_BLOCKING), "a stream");
    if (code == EXIT_OK)
        code = look_at_device(g);
    if (code == EXIT_OK)
        code = load_kernels(g);
    return code == EXIT_OK ? open_bandwidth(g) : code;
}

void gpu_close(gpu *g)
{
    if (g->calls == NULL)
        return;
    gpu_marks_free(g, g->marks, 2);
    g->dev->release(g->dev, g->from);
    g->dev->release(g->dev, g->to);
    if (g->module != NULL)
        g->calls->module_unload(g->module);
    if (g->stream != NULL)
        g->calls->stream_destroy(g->stream);
    free(g->calls);
    *g = (gpu){.calls = NULL};
}

/* ---- the stream ------------------------------------------------------------------------------------------------- */

int gpu_sync(gpu *g)
{
    return check(g, g->calls->stream_sync(g->stream), "the GPU");
}

int64_t gpu_free_bytes(gpu *g)
{
    size_t available = 0, total = 0;
    return g->calls->mem_info(&available, &total) == 0 ? (int64_t)available : 0;
}

int gpu_upload(gpu *g, void *dst, const void *src, int64_t bytes)
{
    int code = check(g, g->calls->to_device(address(dst), src, (size_t)bytes, g->stream), "a copy to the device");
    return code == EXIT_OK ? gpu_sync(g) : code;
}

int gpu_copy(gpu *g, void *dst, const void *src, int64_t bytes)
{
    return check(g, g->calls->between(address(dst), address(src), (size_t)bytes, g->stream), "a copy");
}

int gpu_download(gpu *g, void *dst, const void *src, int64_t bytes)
{
    int code = check(g, g->calls->to_host(dst, address(src), (size_t)bytes, g->stream), "a copy to the host");
    return code == EXIT_OK ? gpu_sync(g) : code;
}

cu_result gpu_launch_empty(gpu *g)
{
    return g->calls->launch(g->empty, 1, 1, 1, 32, 1, 1, 0, g->stream, NULL, NULL);
}

/* ---- graphs and marks ------------------------------------------------------------------------------------------- */

int gpu_record_begin(gpu *g)
{
    return check(g, g->calls->capture_begin(g->stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
}

int gpu_record_end(gpu *g, gpu_graph *out)
{
    int code = check(g, g->calls->capture_end(g->stream, &out->graph), "cuStreamEndCapture");
    if (code == EXIT_OK)
        code = check(g, g->calls->instantiate(&out->exec, out->graph, 0), "cuGraphInstantiate");
    return code;
}

int gpu_graph_launch(gpu *g, const gpu_graph *graph)
{
    return check(g, g->calls->graph_launch(graph->exec, g->stream), "cuGraphLaunch");
}

void gpu_graph_free(gpu *g, gpu_graph *graph)
{
    if (graph->exec != NULL)
        g->calls->exec_destroy(graph->exec);
    if (graph->graph != NULL)
        g->calls->graph_destroy(graph->graph);
    *graph = (gpu_graph){.graph = NULL};
}

static cu_result look_at_node(gpu *g, cu_node node, gpu_kernels *out)
{
    int type = -1;
    cu_result result = g->calls->node_type(node, &type);
    if (result != 0 || type != NODE_IS_KERNEL || out->count++ > 0)
        return result;
    kernel_node kernel = {.function = NULL};
    const char *name = NULL;
    if (g->calls->node_kernel == NULL || g->calls->function_name == NULL)
        return 0;
    if (g->calls->node_kernel(node, &kernel) == 0 && kernel.function != NULL &&
        g->calls->function_name(&name, kernel.function) == 0 && name != NULL)
        snprintf(out->first, sizeof out->first, "%s", name);
    return 0;
}

int gpu_graph_kernels(gpu *g, const gpu_graph *graph, gpu_kernels *out)
{
    size_t count = 0;
    *out = (gpu_kernels){.count = 0};
    cu_result result = g->calls->graph_nodes(graph->graph, NULL, &count);
    cu_node *nodes = calloc(count > 0 ? count : 1, sizeof(cu_node));
    if (nodes == NULL)
        return host_refuse(g->h, "out of memory");
    if (result == 0)
        result = g->calls->graph_nodes(graph->graph, nodes, &count);
    for (size_t i = 0; i < count && result == 0; i++)
        result = look_at_node(g, nodes[i], out);
    free(nodes);
    return check(g, result, "looking at a graph");
}

int gpu_marks_create(gpu *g, cu_event *marks, int64_t count)
{
    int code = EXIT_OK;
    for (int64_t i = 0; i < count && code == EXIT_OK; i++)
        code = check(g, g->calls->event_create(&marks[i], 0), "cuEventCreate");
    return code;
}

void gpu_marks_free(gpu *g, cu_event *marks, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (marks[i] != NULL)
            g->calls->event_destroy(marks[i]);
        marks[i] = NULL;
    }
}

int gpu_mark(gpu *g, cu_event mark)
{
    return check(g, g->calls->event_record(mark, g->stream, RECORD_EXTERNAL), "cuEventRecord");
}

int gpu_between(gpu *g, cu_event begin, cu_event end, double *seconds)
{
    float milliseconds = 0.0f;
    int code = check(g, g->calls->event_between(&milliseconds, begin, end), "cuEventElapsedTime");
    *seconds = 1e-3 * (double)milliseconds;
    return code;
}
