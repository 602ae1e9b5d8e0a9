/* One process with an instance on each of two GPUs: from two threads, in turns from one, with any context current; a slot
 * saved on one device goes on on the other. All against an instance on device 0 alone, bit for bit: the devices must be of one
 * model. Left out, by name, where there is one device. */
#define _GNU_SOURCE
#include "test_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "rssm_fault.h"
#include "rssm_slots.h"

enum { ROWS = 8, SLOTS = 20, LAYERS = 3, PASSES = 40, DEVICES = 2 };

/* The first two flush every row, the third keeps its records. */
static const h_spec hosts[] = {
    {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 128, .V = 128, .L = 16},
    {.family = RSSM_FAMILY_GDN, .H = 2, .HV = 4, .K = 128, .V = 128, .L = 5},
    {.family = RSSM_FAMILY_MAMBA2,
     .H = 1,
     .HV = 4,
     .K = 128,
     .V = 64,
     .L = 16,
     .state = RSSM_DTYPE_BFLOAT16,
     .init_flags = RSSM_INIT_NO_SMALL_FLUSH},
};
enum { NUM_HOSTS = sizeof hosts / sizeof hosts[0] };

/* An instance with its batch, on a device, with a stream of that device. */
typedef struct place {
    int device;
    rig *rig;
    CUstream stream;
} place;

static place place_new(int host, int device)
{
    h_spec spec = hosts[host];
    spec.B = ROWS;
    spec.S = SLOTS;
    spec.layers = LAYERS;
    gpu_use(device);
    place p = {.device = device, .rig = rig_new(spec), .stream = gpu_stream()};
    rig_random_states(p.rig, 1, 0, SLOTS);
    return p;
}

static void place_free(place *p)
{
    gpu_use(p->device);
    rig_free(p->rig);
    gpu_enter();
    GPU(stream_destroy(p->stream));
    gpu_leave();
}

/* A pass on slots that differ from pass to pass, some flushed by force; enqueued on the place's stream. */
static rssm_status pass(const place *p, int number, rssm_error *err)
{
    int32_t slots[ROWS], force[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = (number + i) % 7 == 0 ? -1 : (number * 3 + i * 3) % SLOTS;
        force[i] = (number + i) % 9 == 0;
    }
    gpu_use(p->device);
    rig_positions(p->rig, slots, force);
    rig_inputs(p->rig, (uint64_t)number);
    return rig_pass(p->rig, p->stream, err);
}

static void must(rssm_status status, const rssm_error *err)
{
    ck_assert_msg(status == RSSM_OK, "%s", err->message);
}

static void run_passes(const place *p, int first, int last)
{
    rssm_error err = h_error();
    for (int number = first; number < last; number++)
        must(pass(p, number, &err), &err);
}

static const rssm_slots_api *slots_api(void)
{
    return rig_api()->get_extension(RSSM_EXT_SLOTS);
}

static uint64_t saved_bytes(const place *p)
{
    uint64_t bytes = 0;
    rssm_error err = h_error();
    must(slots_api()->saved_bytes(p->rig->plugin, &bytes, &err), &err);
    return bytes;
}

static unsigned char *save(const place *p, int64_t slot)
{
    uint64_t bytes = saved_bytes(p), written = 0;
    unsigned char *stream = malloc(bytes);
    rssm_error err = h_error();
    must(slots_api()->save(p->rig->plugin, slot, stream, bytes, &written, p->stream, &err), &err);
    ck_assert_uint_eq(written, bytes);
    return stream;
}

/* The last pass' outputs, and every slot as a stream, which is all of it. */
static void assert_same(const place *a, const place *b, const char *when)
{
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        gpu_use(a->device);
        unsigned char *x = rig_outputs(a->rig, layer);
        gpu_use(b->device);
        unsigned char *y = rig_outputs(b->rig, layer);
        ck_assert_msg(memcmp(x, y, rig_row_bytes(a->rig) * ROWS) == 0, "%s: outputs of layer %d differ", when, layer);
        free(x);
        free(y);
    }
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *x = save(a, slot), *y = save(b, slot);
        ck_assert_msg(memcmp(x, y, saved_bytes(a)) == 0, "%s: slot %d differs", when, (int)slot);
        free(x);
        free(y);
    }
}

/* ---- at once and in turns ---------------------------------------------------------------------------------------- */

START_TEST(in_turns_from_one_thread)
{
    place alone = place_new(_i, 0), both[DEVICES] = {place_new(_i, 0), place_new(_i, 1)};
    rssm_error err = h_error();
    run_passes(&alone, 0, PASSES);
    for (int number = 0; number < PASSES; number++)
        for (int i = 0; i < DEVICES; i++)
            must(pass(&both[(number + i) % DEVICES], number, &err), &err);
    assert_same(&alone, &both[0], "device 0 beside device 1");
    assert_same(&alone, &both[1], "device 1 beside device 0");
    place_free(&alone);
    place_free(&both[0]);
    place_free(&both[1]);
}
END_TEST

/* Checks of a test must not fail in a thread of its own: it leaves its status. */
typedef struct worker {
    place place;
    rssm_status status;
    rssm_error err;
} worker;

static void *work(void *of)
{
    worker *w = of;
    for (int number = 0; number < PASSES && !w->status; number++)
        w->status = pass(&w->place, number, &w->err);
    return NULL;
}

START_TEST(from_two_threads)
{
    place alone = place_new(_i, 0);
    worker workers[DEVICES];
    pthread_t threads[DEVICES];
    run_passes(&alone, 0, PASSES);
    for (int i = 0; i < DEVICES; i++)
        workers[i] = (worker){.place = place_new(_i, i), .err = h_error()};
    for (int i = 0; i < DEVICES; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < DEVICES; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < DEVICES; i++) {
        must(workers[i].status, &workers[i].err);
        assert_same(&alone, &workers[i].place, i ? "device 1, its own thread" : "device 0, its own thread");
        place_free(&workers[i].place);
    }
    place_free(&alone);
}
END_TEST

/* What the other instance does leaves a device's pool alone, byte for byte. */
START_TEST(a_peers_memory_is_left_alone)
{
    place idle = place_new(_i, 0), busy = place_new(_i, 1);
    unsigned char *before[SLOTS];
    run_passes(&idle, 0, 9);
    for (int64_t slot = 0; slot < SLOTS; slot++)
        before[slot] = save(&idle, slot);
    run_passes(&busy, 0, PASSES);
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *after = save(&idle, slot);
        ck_assert_msg(memcmp(before[slot], after, saved_bytes(&idle)) == 0, "slot %d changed", (int)slot);
        free(before[slot]);
        free(after);
    }
    place_free(&idle);
    place_free(&busy);
}
END_TEST

/* A tensor of the other device is refused by name, on either. */
START_TEST(tensors_of_the_other_device)
{
    for (int i = 0; i < DEVICES; i++) {
        place p = place_new(_i, i);
        rssm_error err = h_error();
        DLTensor out = *p.rig->roles[0][RSSM_T_OUT];
        const rssm_decode_args args = {
            .struct_size = sizeof args, .tensors = p.rig->roles[0], .num_tensors = RSSM_T_COUNT, .stream = p.stream};
        must(rig_api()->validate(p.rig->plugin, &args, &err), &err);
        out.device.device_id = 1 - i;
        p.rig->roles[0][RSSM_T_OUT] = &out;
        ck_assert_int_eq(rig_api()->decode(p.rig->plugin, &args, &err), RSSM_ERR_DEVICE);
        ck_assert_msg(err.role == RSSM_T_OUT && err.expected == i && err.got == 1 - i, "%s", err.message);
        place_free(&p);
    }
}
END_TEST

/* ---- the current context ----------------------------------------------------------------------------------------- */

static void assert_context(CUcontext expected, const char *after)
{
    CUcontext now = NULL;
    GPU(context_current(&now));
    ck_assert_msg(now == expected, "%s changed the current context", after);
}

/* A whole life on a device while `current` is current. */
static void live(int host, int device, CUcontext current)
{
    const rssm_fault_api *fault = rig_api()->get_extension(RSSM_EXT_FAULT);
    const rssm_reset_args all = {.struct_size = sizeof all};
    rssm_error err = h_error();
    uint32_t word = 1;
    uint64_t written;
    place p = place_new(host, device);
    assert_context(current, "init, prepare or pool_create");
    must(pass(&p, 1, &err), &err);
    assert_context(current, "a pass");
    unsigned char *stream = save(&p, 1);
    assert_context(current, "save");
    must(slots_api()->load(p.rig->plugin, 2, stream, saved_bytes(&p), p.stream, &err), &err);
    assert_context(current, "load");
    ck_assert_int_eq(slots_api()->save(p.rig->plugin, SLOTS, stream, saved_bytes(&p), &written, p.stream, &err),
                     RSSM_ERR_VALUE);
    assert_context(current, "a refused save");
    must(rig_api()->reset(p.rig->plugin, &all, &err), &err);
    assert_context(current, "reset");
    must(fault->read(p.rig->plugin, p.stream, &word, &err), &err);
    ck_assert_uint_eq(word, 0);
    must(fault->clear(p.rig->plugin, p.stream, &err), &err);
    assert_context(current, "the fault word");
    place_free(&p);
    assert_context(current, "teardown");
    free(stream);
}

START_TEST(the_current_device_stays)
{
    CUcontext popped;
    for (int device = 0; device < DEVICES; device++) {
        live(_i, device, NULL);
        for (int current = 0; current < DEVICES; current++) {
            GPU(context_push(gpu_primary(current)));
            live(_i, device, gpu_primary(current));
            GPU(context_pop(&popped));
        }
    }
}
END_TEST

/* ---- from device to device --------------------------------------------------------------------------------------- */

START_TEST(a_slot_moves_to_the_other_device)
{
    place from = place_new(_i, 0), to = place_new(_i, 1);
    rssm_error err = h_error();
    run_passes(&from, 0, 11); /* rings half full */
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *stream = save(&from, slot);
        must(slots_api()->load(to.rig->plugin, slot, stream, saved_bytes(&from), to.stream, &err), &err);
        free(stream);
    }
    for (int number = 11; number < PASSES; number++) {
        must(pass(&from, number, &err), &err);
        must(pass(&to, number, &err), &err);
        if (number % 7 == 0)
            assert_same(&from, &to, "after a move");
    }
    assert_same(&from, &to, "long after a move");
    place_free(&from);
    place_free(&to);
}
END_TEST

void add_two_devices(Suite *s)
{
    TCase *t = tcase_create("two_devices");
    if (gpu_count() < DEVICES) {
        fprintf(stderr, "skipped: two_devices (one CUDA device here)\n");
        return;
    }
    tcase_add_loop_test(t, in_turns_from_one_thread, 0, NUM_HOSTS);
    tcase_add_loop_test(t, from_two_threads, 0, NUM_HOSTS);
    tcase_add_loop_test(t, a_peers_memory_is_left_alone, 0, NUM_HOSTS);
    tcase_add_loop_test(t, tensors_of_the_other_device, 0, NUM_HOSTS);
    tcase_add_loop_test(t, the_current_device_stays, 0, NUM_HOSTS);
    tcase_add_loop_test(t, a_slot_moves_to_the_other_device, 0, NUM_HOSTS);
    suite_add_tcase(s, t);
}
