/* How the CUDA backend behaves in a host: streams, graphs, contexts, threads, forks. */
#define _GNU_SOURCE
#include "test_gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"
#include "rssm_fault.h"

enum { ROWS = 8, SLOTS = 20, LAYERS = 3 };

/* The first flushes every row, the two after it keep their records. */
static const h_spec hosts[] = {
    {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 128, .V = 128, .L = 16},
    {.family = RSSM_FAMILY_GDN,
     .H = 2,
     .HV = 4,
     .K = 128,
     .V = 128,
     .L = 5,
     .state = RSSM_DTYPE_BFLOAT16,
     .init_flags = RSSM_INIT_NO_SMALL_FLUSH},
    {.family = RSSM_FAMILY_MAMBA2,
     .H = 1,
     .HV = 4,
     .K = 128,
     .V = 64,
     .L = 16,
     .state = RSSM_DTYPE_BFLOAT16,
     .init_flags = RSSM_INIT_NO_SMALL_FLUSH},
    {.family = RSSM_FAMILY_KDA, .H = 2, .HV = 4, .K = 31, .V = 45, .L = 3},
    {.family = RSSM_FAMILY_GDN, .H = 2, .HV = 4, .K = 128, .V = 128, .L = 1},
};
enum { NUM_HOSTS = sizeof hosts / sizeof hosts[0] };

static h_spec host_spec(int i)
{
    h_spec spec = hosts[i];
    spec.B = ROWS;
    spec.S = SLOTS;
    spec.layers = LAYERS;
    return spec;
}

/* Slots of a pass: different ones, some padding, now and then all; some flushed by force. */
static void choose_positions(uint64_t *random, int32_t *slots, int32_t *force)
{
    int32_t first = (int32_t)(h_random(random) % SLOTS), stride = 3;
    for (int i = 0; i < ROWS; i++) {
        uint64_t dice = h_random(random);
        slots[i] = dice % 8 == 0 ? (dice % 16 ? -1 : SLOTS + 3) : (first + i * stride) % SLOTS;
        force[i] = dice / 16 % 9 == 0;
    }
}

static void give_positions(rig *r, uint64_t seed)
{
    int32_t slots[ROWS], force[ROWS];
    choose_positions(&seed, slots, force);
    rig_positions(r, slots, force);
}

static void assert_same_outputs(rig *a, rig *b, int64_t step)
{
    for (int32_t layer = 0; layer < a->spec.layers; layer++) {
        unsigned char *x = rig_outputs(a, layer), *y = rig_outputs(b, layer);
        ck_assert_msg(memcmp(x, y, rig_row_bytes(a) * (size_t)a->spec.B) == 0, "step %d, layer %d: outputs differ",
                      (int)step, layer);
        free(x);
        free(y);
    }
}

static void assert_same_pools(const rig *a, const rig *b)
{
    for (int32_t layer = 0; layer < a->spec.layers; layer++)
        for (int32_t tensor = 0; tensor < a->layout.num_tensors; tensor++)
            for (int64_t slot = 0; slot < a->spec.S; slot++) {
                unsigned char *x = rig_read_slot(a, layer, tensor, slot), *y = rig_read_slot(b, layer, tensor, slot);
                ck_assert_msg(memcmp(x, y, rig_slot_bytes(a, tensor)) == 0, "layer %d, tensor %d, slot %d differ",
                              layer, tensor, (int)slot);
                free(x);
                free(y);
            }
}

static rig *rig_with_states(h_spec spec)
{
    rig *r = rig_new(spec);
    rig_random_states(r, 1, 0, spec.S);
    return r;
}

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

static size_t node_count(CUgraph graph)
{
    size_t nodes = 0;
    GPU(graph_nodes(graph, NULL, &nodes));
    return nodes;
}

/* A whole pass as a graph: nothing but one kernel for the cursors and one for each layer. The context is current. */
static CUgraph pass_graph(rig *r, CUstream stream)
{
    CUgraph graph = NULL;
    rssm_error err = h_error();
    GPU(capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    rssm_status status = rig_pass(r, stream, &err);
    GPU(capture_end(stream, &graph));
    ck_assert_msg(status == RSSM_OK, "during capture: %s", err.message);
    ck_assert_int_eq((int64_t)node_count(graph), 1 + r->spec.layers);
    return graph;
}

static CUgraphExec capture_pass(rig *r, CUstream stream)
{
    CUgraphExec exec = NULL;
    gpu_enter();
    CUgraph graph = pass_graph(r, stream);
    GPU(graph_instantiate(&exec, graph, 0));
    GPU(graph_destroy(graph));
    gpu_leave();
    return exec;
}

static void launch(CUgraphExec exec, CUstream stream)
{
    gpu_enter();
    GPU(graph_launch(exec, stream));
    GPU(stream_sync(stream));
    gpu_leave();
}

START_TEST(a_graph_replayed_is_the_pass)
{
    int replays = share.small ? 20 : 1000;
    rig *graph = rig_with_states(host_spec(_i)), *eager = rig_with_states(host_spec(_i));
    CUstream stream = gpu_stream();
    CUgraphExec exec = capture_pass(graph, stream);
    assert_same_pools(graph, eager); /* the capture ran nothing */
    for (int step = 0; step < replays; step++) {
        uint64_t seed = (uint64_t)step * 77 + 5;
        give_positions(graph, seed);
        give_positions(eager, seed);
        rig_inputs(graph, seed);
        rig_inputs(eager, seed);
        launch(exec, stream);
        rig_step(eager, NULL);
        assert_same_outputs(graph, eager, step);
    }
    assert_same_pools(graph, eager);
    gpu_enter();
    GPU(graph_exec_destroy(exec));
    GPU(stream_destroy(stream));
    gpu_leave();
    rig_free(graph);
    rig_free(eager);
}
END_TEST

/* Hosts capture each pass anew and update the graph that they have: here with the same pass of other memory. */
START_TEST(a_graph_updated)
{
    rig *first = rig_with_states(host_spec(_i)), *second = rig_with_states(host_spec(_i)),
        *eager = rig_with_states(host_spec(_i));
    CUstream stream = gpu_stream();
    CUgraphExec exec = capture_pass(first, stream);
    CUgraphExecUpdateResultInfo info = {0};
    gpu_enter();
    CUgraph graph = pass_graph(second, stream);
    GPU(graph_update(exec, graph, &info));
    GPU(graph_destroy(graph));
    gpu_leave();
    for (int step = 0; step < 3; step++) {
        rig *both[] = {second, eager};
        for (int i = 0; i < 2; i++) {
            give_positions(both[i], (uint64_t)step);
            rig_inputs(both[i], (uint64_t)step);
        }
        launch(exec, stream);
        rig_step(eager, NULL);
        assert_same_outputs(second, eager, step);
    }
    assert_same_pools(second, eager);
    gpu_enter();
    GPU(graph_exec_destroy(exec));
    GPU(stream_destroy(stream));
    gpu_leave();
    rig_free(first);
    rig_free(second);
    rig_free(eager);
}
END_TEST

enum { BRANCHES = 2, FOREIGN_BYTES = 64 << 20 };

/* A pass of each rig on a branch of its own, with foreign work before, between and after ours: a long memset, then ours; ours,
 * then a copy of what it wrote. Branches start and join by events. */
static void branches(rig **r, CUstream *stream, CUevent *event, CUdeviceptr scratch, CUdeviceptr *copy, int passes)
{
    rssm_error err = h_error();
    for (int pass = 0; pass < passes; pass++) {
        GPU(memset8(scratch, 1, FOREIGN_BYTES, stream[0]));
        GPU(event_record(event[0], stream[0]));
        GPU(stream_wait(stream[1], event[0], 0));
        for (int i = 0; i < BRANCHES; i++) {
            const DLTensor *out = r[i]->roles[LAYERS - 1][RSSM_T_OUT];
            ck_assert_msg(rig_pass(r[i], stream[i], &err) == RSSM_OK, "%s", err.message);
            GPU(between(copy[i], (CUdeviceptr)(uintptr_t)out->data, rig_row_bytes(r[i]) * ROWS, stream[i]));
        }
        GPU(event_record(event[1], stream[1]));
        GPU(stream_wait(stream[0], event[1], 0));
    }
}

static void assert_copied(rig *r, CUdeviceptr copy, rig *eager)
{
    size_t bytes = rig_row_bytes(r) * ROWS;
    unsigned char *seen = malloc(bytes), *want = rig_outputs(eager, LAYERS - 1);
    gpu_download(seen, copy, bytes);
    ck_assert_msg(memcmp(seen, want, bytes) == 0, "the copy behind the last layer is not its output");
    free(seen);
    free(want);
}

/* Kernels that may start early, among what does not: eager, then captured. */
START_TEST(foreign_work_between)
{
    enum { PASSES = 5 };
    rig *r[BRANCHES], *eager[BRANCHES];
    CUstream stream[BRANCHES] = {gpu_stream(), gpu_stream()};
    CUevent event[2];
    CUdeviceptr scratch = gpu_alloc(FOREIGN_BYTES), copy[BRANCHES];
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    for (int i = 0; i < BRANCHES; i++) {
        h_spec spec = host_spec(_i);
        r[i] = rig_with_states(spec);
        spec.init_flags |= RSSM_INIT_NO_EARLY_START;
        eager[i] = rig_with_states(spec);
        copy[i] = gpu_alloc(rig_row_bytes(r[i]) * ROWS);
        give_positions(r[i], (uint64_t)i);
        give_positions(eager[i], (uint64_t)i);
        rig_inputs(r[i], (uint64_t)i);
        rig_inputs(eager[i], (uint64_t)i);
    }
    gpu_wait();
    gpu_enter();
    GPU(event_create(&event[0], CU_EVENT_DISABLE_TIMING));
    GPU(event_create(&event[1], CU_EVENT_DISABLE_TIMING));
    branches(r, stream, event, scratch, copy, PASSES);
    GPU(stream_sync(stream[0]));
    GPU(capture_begin(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    branches(r, stream, event, scratch, copy, PASSES);
    GPU(capture_end(stream[0], &graph));
    GPU(graph_instantiate(&exec, graph, 0));
    GPU(graph_destroy(graph));
    gpu_leave();
    launch(exec, stream[0]);
    for (int i = 0; i < BRANCHES; i++) {
        for (int pass = 0; pass < 2 * PASSES; pass++)
            rig_step(eager[i], NULL);
        assert_copied(r[i], copy[i], eager[i]);
        assert_same_outputs(r[i], eager[i], 2 * PASSES);
        assert_same_pools(r[i], eager[i]);
        rig_free(r[i]);
        rig_free(eager[i]);
        gpu_free(copy[i]);
    }
    gpu_free(scratch);
    gpu_enter();
    GPU(graph_exec_destroy(exec));
    for (int i = 0; i < BRANCHES; i++) {
        GPU(stream_destroy(stream[i]));
        GPU(event_destroy(event[i]));
    }
    gpu_leave();
}
END_TEST

static rssm_status clear_and_reset(rig *r, const DLTensor *slots, void *stream, rssm_error *err)
{
    const rssm_fault_api *fault = rig_api()->get_extension(RSSM_EXT_FAULT);
    const rssm_reset_args args = {.struct_size = sizeof args, .slots = slots, .stream = stream};
    rssm_status status = fault->clear(r->plugin, stream, err);
    return status ? status : rig_api()->reset(r->plugin, &args, err);
}

static bool state_is_zero(const rig *r, int64_t slot)
{
    unsigned char *state = rig_read_slot(r, LAYERS - 1, rig_state_tensor(r), slot);
    bool zero = state[0] == 0 && memcmp(state, state + 1, rig_slot_bytes(r, rig_state_tensor(r)) - 1) == 0;
    free(state);
    return zero;
}

/* reset and clear are captured as well; which slots is read at replay. */
START_TEST(a_captured_reset)
{
    rig *r = rig_with_states(host_spec(_i)), *other = rig_with_states(host_spec(_i));
    CUstream stream = gpu_stream();
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    rssm_error err = h_error();
    int32_t slots[ROWS] = {0, 11, 19, -1, 500, 7, 8, 9};
    gpu_enter();
    GPU(capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    rssm_status status = clear_and_reset(r, &r->slots, stream, &err);
    GPU(capture_end(stream, &graph));
    ck_assert_msg(status == RSSM_OK, "%s", err.message);
    GPU(graph_instantiate(&exec, graph, 0));
    GPU(graph_destroy(graph));
    gpu_leave();
    for (int i = 0; i < 3; i++) {
        slots[0] = i;
        rig_positions(r, slots, NULL);
        rig_inputs(r, 1);
        rig_inputs(other, 1);
        rig_positions(other, slots, NULL);
        rig_step(r, NULL);
        rig_step(other, NULL);
        gpu_wait(); /* the graph's stream does not wait for the legacy one */
        launch(exec, stream);
        ck_assert_int_eq(rig_reset(other, slots, ROWS, &err), RSSM_OK);
        assert_same_pools(r, other);
        ck_assert(state_is_zero(r, i) && !state_is_zero(r, 4)); /* 4 is in no list */
    }
    gpu_enter();
    GPU(graph_exec_destroy(exec));
    GPU(stream_destroy(stream));
    gpu_leave();
    rig_free(r);
    rig_free(other);
}
END_TEST

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static atomic_int gate_open;

static void wait_at_gate(void *unused)
{
    (void)unused;
    for (int i = 0; i < 200000 && !atomic_load(&gate_open); i++)
        usleep(50);
}

/* Reads on a stream of its own, while another one is held up. */
static void peek(CUstream stream, void *to, const DLTensor *t, size_t bytes)
{
    gpu_enter();
    GPU(to_host(to, (CUdeviceptr)(uintptr_t)t->data, bytes, stream));
    GPU(stream_sync(stream));
    gpu_leave();
}

/* All work goes to the host's stream, and no call waits for it: while the stream is held up every call returns, and
 * nothing has happened. */
START_TEST(work_stays_on_the_hosts_stream)
{
    rig *held = rig_with_states(host_spec(_i)), *free_one = rig_with_states(host_spec(_i));
    CUstream stream = gpu_stream(), other = gpu_stream();
    const DLTensor *out = held->roles[LAYERS - 1][RSSM_T_OUT];
    size_t bytes = rig_row_bytes(held) * ROWS;
    unsigned char *seen = malloc(bytes);
    rssm_error err = h_error();
    give_positions(held, 4);
    give_positions(free_one, 4);
    rig_inputs(held, 4);
    rig_inputs(free_one, 4);
    atomic_store(&gate_open, 0);
    gpu_enter();
    GPU(host_function(stream, wait_at_gate, NULL));
    gpu_leave();
    rssm_status status = rig_pass(held, stream, &err);
    CUresult busy = gpu()->stream_query(stream);
    usleep(50000);
    peek(other, seen, out, bytes);
    atomic_store(&gate_open, 1);
    ck_assert_msg(status == RSSM_OK, "%s", err.message);
    ck_assert_msg(busy == CUDA_ERROR_NOT_READY || busy == CUDA_ERROR_INVALID_CONTEXT, "the stream was done: %d", busy);
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(seen[i] == 0xFF, "an output was written while the stream was held up");
    rig_step(free_one, NULL);
    assert_same_outputs(held, free_one, 0);
    assert_same_pools(held, free_one);
    free(seen);
    gpu_enter();
    GPU(stream_destroy(stream));
    GPU(stream_destroy(other));
    gpu_leave();
    rig_free(held);
    rig_free(free_one);
}
END_TEST

/* step_begin may leave in rows an order of work for the device. It is that of the whole batch: a call for the first half
 * of its rows does all of these. */
START_TEST(half_of_a_batch)
{
    h_spec spec = host_spec(_i);
    spec.B = 2 * ROWS;
    spec.L = 4;
    rig *whole = rig_with_states(spec), *half = rig_with_states(spec);
    int32_t slots[2 * ROWS], force[2 * ROWS];
    rssm_error err = h_error();
    for (int i = 0; i < 2 * ROWS; i++) {
        slots[i] = i;
        force[i] = i % 3 == 0;
    }
    rig_positions(whole, slots, force);
    rig_positions(half, slots, force);
    rig_inputs(whole, 1);
    rig_inputs(half, 1);
    rig_step(whole, NULL);
    ck_assert_int_eq(rig_begin(half, NULL, &err), RSSM_OK);
    rig_first_rows(half, ROWS);
    ck_assert_msg(rig_layers(half, NULL, &err) == RSSM_OK, "%s", err.message);
    unsigned char *a = rig_outputs(whole, 0), *b = rig_outputs(half, 0);
    ck_assert_msg(memcmp(a, b, rig_row_bytes(whole) * ROWS) == 0, "outputs of the first half differ");
    free(a);
    free(b);
    rig_free(whole);
    rig_free(half);
}
END_TEST

/* ---- contexts --------------------------------------------------------------------------------------------------- */

static CUcontext expected_context;

static void assert_context(const char *after)
{
    CUcontext now = NULL;
    GPU(context_current(&now));
    ck_assert_msg(now == expected_context, "%s changed the current context", after);
}

/* Every call of the table, with the context `expected_context` current. */
static void all_calls(h_spec spec)
{
    rssm_error err = h_error();
    const rssm_fault_api *fault = rig_api()->get_extension(RSSM_EXT_FAULT);
    uint32_t word = 1;
    rig *r = malloc(sizeof *r);
    rig_plan(r, spec);
    assert_context("init");
    ck_assert_int_eq(rig_api()->prepare(r->plugin, &err), RSSM_OK);
    assert_context("prepare");
    rig_open(r);
    assert_context("pool_create");
    give_positions(r, 1);
    rig_inputs(r, 1);
    for (int i = 0; i < 3; i++) {
        rig_step(r, NULL);
        assert_context("a pass");
    }
    ck_assert_int_eq(rig_api()->reset(r->plugin, &(rssm_reset_args){.struct_size = sizeof(rssm_reset_args)}, &err),
                     RSSM_OK);
    assert_context("reset");
    ck_assert_msg(fault->read(r->plugin, NULL, &word, &err) == RSSM_OK && word == 0, "fault %u %s", word, err.message);
    assert_context("fault read");
    ck_assert_int_eq(fault->clear(r->plugin, NULL, &err), RSSM_OK);
    assert_context("fault clear");
    rig_free(r);
    assert_context("teardown");
}

START_TEST(the_hosts_context_stays_current)
{
    CUcontext own = NULL, popped = NULL;
    gpu();
    expected_context = NULL;
    GPU(context_current(&expected_context)); /* none */
    ck_assert_ptr_null(expected_context);
    all_calls(host_spec(0));
    GPU(context_push(gpu()->primary)); /* the one that the plugin uses */
    expected_context = gpu()->primary;
    all_calls(host_spec(1));
    GPU(context_create(&own, 0, gpu()->device)); /* another one; it is current now */
    expected_context = own;
    all_calls(host_spec(2));
    GPU(context_pop(&popped));
    ck_assert_ptr_eq(popped, own);
    GPU(context_destroy(own));
    expected_context = gpu()->primary;
    assert_context("all");
    GPU(context_pop(&popped));
    expected_context = NULL;
    assert_context("all");
}
END_TEST

/* ---- a host with the CUDA runtime ------------------------------------------------------------------------------- */

typedef struct runtime {
    int (*set_device)(int);
    int (*get_device)(int *);
    int (*stream_create)(void **);
    int (*stream_sync)(void *);
    int (*stream_destroy)(void *);
    int (*copy)(void *, const void *, size_t, int);
    int (*last_error)(void);
} runtime;

static bool load_runtime(runtime *rt)
{
    static const char *const files[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12"};
    void *library = NULL;
    for (int i = 0; i < 3 && !library; i++)
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)(void *)&rt->set_device = dlsym(library, "cudaSetDevice");
    *(void **)(void *)&rt->get_device = dlsym(library, "cudaGetDevice");
    *(void **)(void *)&rt->stream_create = dlsym(library, "cudaStreamCreate");
    *(void **)(void *)&rt->stream_sync = dlsym(library, "cudaStreamSynchronize");
    *(void **)(void *)&rt->stream_destroy = dlsym(library, "cudaStreamDestroy");
    *(void **)(void *)&rt->copy = dlsym(library, "cudaMemcpy");
    *(void **)(void *)&rt->last_error = dlsym(library, "cudaGetLastError");
    return rt->set_device && rt->get_device && rt->stream_create && rt->stream_sync && rt->stream_destroy && rt->copy &&
           rt->last_error;
}

START_TEST(beside_a_cuda_runtime)
{
    runtime rt;
    void *stream = NULL;
    int device = -1;
    if (!load_runtime(&rt)) {
        fprintf(stderr, "no libcudart.so here: the test beside a CUDA runtime is left out\n");
        return;
    }
    ck_assert_int_eq(rt.set_device(0), 0);
    ck_assert_int_eq(rt.stream_create(&stream), 0);
    rig *r = rig_with_states(host_spec(0)), *other = rig_with_states(host_spec(0));
    size_t bytes = rig_row_bytes(r) * ROWS;
    for (int step = 0; step < 20; step++) {
        give_positions(r, (uint64_t)step);
        give_positions(other, (uint64_t)step);
        rig_inputs(r, (uint64_t)step);
        rig_inputs(other, (uint64_t)step);
        rig_step(r, stream);
        ck_assert_int_eq(rt.stream_sync(stream), 0);
        rig_step(other, NULL);
        assert_same_outputs(r, other, step);
    }
    unsigned char *a = malloc(bytes), *b = rig_outputs(r, 0);
    ck_assert_int_eq(rt.copy(a, r->roles[0][RSSM_T_OUT]->data, bytes, 2 /* device to host */), 0);
    ck_assert(memcmp(a, b, bytes) == 0);
    free(a);
    free(b);
    rig_free(r);
    rig_free(other);
    ck_assert_int_eq(rt.get_device(&device), 0);
    ck_assert_int_eq(device, 0);
    ck_assert_int_eq(rt.stream_destroy(stream), 0);
    ck_assert_int_eq(rt.last_error(), 0);
    CUcontext popped; /* that the runtime made current */
    expected_context = gpu()->primary;
    assert_context("the instance");
    GPU(context_pop(&popped));
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------------------------- */

typedef struct worker {
    int host;
    rig *rig;
    CUstream stream;
    int passes, failed;
} worker;

static void *work(void *of)
{
    worker *w = of;
    for (int step = 0; step < w->passes && !w->failed; step++) {
        rssm_error err = h_error();
        give_positions(w->rig, (uint64_t)step);
        rig_inputs(w->rig, (uint64_t)step);
        w->failed = rig_pass(w->rig, w->stream, &err) != RSSM_OK;
    }
    return NULL;
}

static void make_worker(worker *w, int host)
{
    *w = (worker){.host = host, .rig = rig_with_states(host_spec(host)), .stream = gpu_stream(), .passes = 60};
}

static void free_worker(worker *w)
{
    rig_free(w->rig);
    gpu_enter();
    GPU(stream_destroy(w->stream));
    gpu_leave();
}

START_TEST(two_instances_at_once)
{
    worker alone[2], together[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        make_worker(&alone[i], i);
        work(&alone[i]);
        make_worker(&together[i], i);
    }
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &together[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert(!alone[i].failed && !together[i].failed);
        assert_same_outputs(alone[i].rig, together[i].rig, alone[i].passes);
        assert_same_pools(alone[i].rig, together[i].rig);
        free_worker(&alone[i]);
        free_worker(&together[i]);
    }
}
END_TEST

/* ---- plan, then fork -------------------------------------------------------------------------------------------- */

START_TEST(plan_then_fork)
{
    rig *r = malloc(sizeof *r);
    int how = -1;
    rig_plan(r, host_spec(0));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    rig_open(r);
    rig_random_states(r, 1, 0, SLOTS);
    give_positions(r, 1);
    rig_inputs(r, 1);
    rig_step(r, NULL);
    rig *fresh = rig_with_states(host_spec(0));
    give_positions(fresh, 1);
    rig_inputs(fresh, 1);
    rig_step(fresh, NULL);
    assert_same_outputs(r, fresh, 0);
    rig_free(r);
    rig_free(fresh);
    if (child == 0)
        _exit(0);
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "the child failed");
}
END_TEST

int main_plan_then_fork(void)
{
    Suite *s = suite_create("plan, then fork");
    TCase *t = tcase_create("fork");
    setenv("CK_FORK", "no", 1);
    tcase_add_test(t, plan_then_fork);
    suite_add_tcase(s, t);
    return h_run(s);
}

/* This program anew: here CUDA is at work already, and does not survive a fork. */
START_TEST(planning_leaves_the_gpu_alone)
{
    int how = system("/proc/$PPID/exe --plan-then-fork");
    ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == 0, "%d", how);
}
END_TEST

/* ---- the suite -------------------------------------------------------------------------------------------------- */

void add_streams(Suite *s)
{
    TCase *t = tcase_create("streams");
    gpu_add_loop(t, a_graph_replayed_is_the_pass, share.small ? 3 : NUM_HOSTS);
    gpu_add_loop(t, a_captured_reset, share.small ? 1 : NUM_HOSTS);
    gpu_add_loop(t, a_graph_updated, share.small ? 1 : NUM_HOSTS);
    gpu_add_loop(t, foreign_work_between, share.small ? 1 : NUM_HOSTS);
    if (!share.small) {
        gpu_add_loop(t, work_stays_on_the_hosts_stream, NUM_HOSTS);
        gpu_add_loop(t, half_of_a_batch, NUM_HOSTS);
    }
    if (!share.part)
        tcase_add_test(t, the_hosts_context_stays_current);
    if (!share.part && !share.small) {
        tcase_add_test(t, two_instances_at_once);
        tcase_add_test(t, planning_leaves_the_gpu_alone);
        tcase_add_test(t, beside_a_cuda_runtime); /* last: it leaves a runtime in the process */
    }
    suite_add_tcase(s, t);
}
