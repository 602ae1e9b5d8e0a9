/* Slot operations and the short convolution on a GPU: each call is made on a CUDA instance and on a CPU instance whose slots
 * were loaded from the first one's saved streams, and both must come out alike. Then graphs, and bandwidth. */
#include "test_gpu.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rig.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

enum { ROWS = 6, SLOTS = 14, LAYERS = 3, TAPS = 4 };

static const h_spec hosts[] = {
    {.family = RSSM_FAMILY_KDA, .H = 4, .HV = 4, .K = 128, .V = 128, .L = 16},
    {.family = RSSM_FAMILY_GDN, .H = 2, .HV = 4, .K = 128, .V = 128, .L = 5, .state = RSSM_DTYPE_BFLOAT16, .drafts = 3},
    {.family = RSSM_FAMILY_MAMBA2, .H = 1, .HV = 4, .K = 128, .V = 64, .L = 16, .drafts = 7},
    {.family = RSSM_FAMILY_KDA, .H = 2, .HV = 4, .K = 31, .V = 45, .L = 20, .io = RSSM_DTYPE_FLOAT32, .drafts = 1},
    {.family = RSSM_FAMILY_GDN, .H = 2, .HV = 4, .K = 128, .V = 72, .L = 1},
};
enum { NUM_HOSTS = sizeof hosts / sizeof hosts[0] };

static h_spec host_spec(int i)
{
    h_spec spec = hosts[i];
    spec.B = ROWS;
    spec.S = SLOTS;
    spec.num_slots = SLOTS;
    spec.layers = LAYERS;
    spec.init_flags = RSSM_INIT_CONV_STATE | RSSM_INIT_NO_SMALL_FLUSH; /* the CPU beside it has no small batches */
    return spec;
}

static const rssm_slots_api *slots_api(void)
{
    return rig_api()->get_extension(RSSM_EXT_SLOTS);
}

static void must(rssm_status status, const rssm_error *err, const char *what)
{
    ck_assert_msg(status == RSSM_OK, "%s: %s", what, err->message);
}

/* ---- two instances ---------------------------------------------------------------------------------------------- */

typedef struct side {
    rssm_plugin *plugin;
    bool gpu;
} side;

/* A CUDA instance and its shadow on the CPU. */
typedef struct pair {
    rig *r;
    side sides[2]; /* CUDA, CPU */
} pair;

static rssm_plugin *cpu_instance(h_spec spec)
{
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    rssm_dims dims = h_dims(&spec);
    rssm_init_args args = h_init_args(&spec, &dims);
    must(rig_api()->init(&args, &plugin, &err), &err, "init");
    must(rig_api()->prepare(plugin, &err), &err, "prepare");
    must(rig_api()->pool_create(plugin, NULL, &err), &err, "pool_create");
    return plugin;
}

static uint64_t saved_bytes(const side *s)
{
    uint64_t bytes = 0;
    rssm_error err = h_error();
    must(slots_api()->saved_bytes(s->plugin, &bytes, &err), &err, "saved_bytes");
    return bytes;
}

static unsigned char *save(const side *s, int64_t slot)
{
    uint64_t bytes = saved_bytes(s), written = 0;
    unsigned char *stream = malloc(bytes);
    rssm_error err = h_error();
    must(slots_api()->save(s->plugin, slot, stream, bytes, &written, NULL, &err), &err, "save");
    ck_assert_uint_eq(written, bytes);
    return stream;
}

static void load(const side *s, int64_t slot, const unsigned char *stream)
{
    rssm_error err = h_error();
    must(slots_api()->load(s->plugin, slot, stream, saved_bytes(s), NULL, &err), &err, "load");
}

/* Some passes with random slots and forced flushes. */
static void run_passes(rig *r, int passes, uint64_t seed)
{
    for (int pass = 0; pass < passes; pass++) {
        int32_t slots[ROWS], force[ROWS], first = (int32_t)(h_random(&seed) % SLOTS);
        for (int i = 0; i < ROWS; i++) {
            slots[i] = h_random(&seed) % 8 ? (first + i * 3) % SLOTS : -1;
            force[i] = h_random(&seed) % 9 == 0;
        }
        rig_positions(r, slots, force);
        rig_inputs(r, seed);
        rig_step(r, NULL);
    }
}

/* The CPU's slots become the GPU's. */
static void load_shadow(const pair *p)
{
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *stream = save(&p->sides[0], slot);
        load(&p->sides[1], slot, stream);
        free(stream);
    }
}

/* Everything of every slot, the convolution's history too, as random numbers; then decoded on. */
static pair pair_new(h_spec spec, uint64_t seed)
{
    pair p = {.r = rig_new(spec)};
    p.sides[0] = (side){p.r->plugin, true};
    p.sides[1] = (side){cpu_instance(spec), false};
    rig_random_states(p.r, seed, 0, SLOTS);
    run_passes(p.r, 25, seed);
    load_shadow(&p);
    return p;
}

static void pair_free(pair *p)
{
    rssm_error err = h_error();
    rig_free(p->r);
    must(rig_api()->teardown(&p->sides[1].plugin, &err), &err, "teardown");
}

/* Streams hold the whole slot, so equal streams are equal slots. */
static void assert_same_slots(const pair *p, const char *after)
{
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *a = save(&p->sides[0], slot), *b = save(&p->sides[1], slot);
        ck_assert_msg(memcmp(a, b, saved_bytes(&p->sides[0])) == 0, "after %s, slot %d differs from the CPU's", after,
                      (int)slot);
        free(a);
        free(b);
    }
}

static uint32_t take_faults(const side *s)
{
    const rssm_fault_api *fault = rig_api()->get_extension(RSSM_EXT_FAULT);
    uint32_t word = 0;
    rssm_error err = h_error();
    must(fault->read(s->plugin, NULL, &word, &err), &err, "fault read");
    must(fault->clear(s->plugin, NULL, &err), &err, "fault clear");
    return word;
}

static void assert_same_faults(const pair *p, uint32_t expected, const char *after)
{
    uint32_t gpu = take_faults(&p->sides[0]), cpu = take_faults(&p->sides[1]);
    ck_assert_msg(gpu == cpu && gpu == expected, "after %s: faults %u, %u on the CPU, expected %u", after, gpu, cpu,
                  expected);
}

/* ---- arrays on either side -------------------------------------------------------------------------------------- */

/* A compact tensor with memory of its own, 0xFF at first. */
typedef struct array {
    DLTensor t;
    int64_t shape[4];
    size_t bytes;
    bool gpu;
} array;

static void array_put(array *a, const void *from)
{
    if (a->gpu)
        gpu_upload((CUdeviceptr)(uintptr_t)a->t.data, from, a->bytes);
    else
        memcpy(a->t.data, from, a->bytes);
}

static unsigned char *array_get(const array *a)
{
    unsigned char *bytes = malloc(a->bytes);
    if (a->gpu)
        gpu_download(bytes, (CUdeviceptr)(uintptr_t)a->t.data, a->bytes);
    else
        memcpy(bytes, a->t.data, a->bytes);
    return bytes;
}

static array *array_new(const side *s, DLDataType type, int ndim, const int64_t *shape)
{
    array *a = calloc(1, sizeof *a);
    a->gpu = s->gpu;
    a->bytes = type.bits / 8;
    for (int i = 0; i < ndim; i++) {
        a->shape[i] = shape[i];
        a->bytes *= (size_t)shape[i];
    }
    a->t = (DLTensor){.device = {.device_type = s->gpu ? kDLCUDA : kDLCPU},
                      .ndim = ndim,
                      .dtype = type,
                      .shape = a->shape,
                      .data = s->gpu ? (void *)(uintptr_t)gpu_alloc(a->bytes) : malloc(a->bytes)};
    void *ones = malloc(a->bytes);
    memset(ones, 0xFF, a->bytes);
    array_put(a, ones);
    free(ones);
    return a;
}

static void array_free(array *a)
{
    if (a->gpu)
        gpu_free((CUdeviceptr)(uintptr_t)a->t.data);
    else
        free(a->t.data);
    free(a);
}

static array *list_new(const side *s, const int32_t *slots, int64_t n)
{
    array *a = array_new(s, h_int_type(32), 1, &n);
    array_put(a, slots);
    return a;
}

static DLDataType float_type(int32_t dtype)
{
    return h_float_type(dtype);
}

/* Random numbers of any float type, -size to size, the same on both sides. */
static void array_random(array *a, double size, uint64_t seed)
{
    h_tensor numbers;
    h_tensor_make(&numbers, a->t.dtype, a->t.ndim, a->shape, 0);
    h_fill_random(&numbers.t, -size, size, &seed);
    array_put(a, numbers.t.data);
    h_tensor_free(&numbers);
}

static double element(const array *a, const unsigned char *bytes, size_t i)
{
    const DLTensor t = {
        .data = (void *)(uintptr_t)bytes, .ndim = 1, .dtype = a->t.dtype, .shape = (int64_t[]){1 << 30}};
    return h_get(&t, (int64_t)i, 0, 0, 0);
}

/* Equal up to how sums round: in relative L2, 1e-6 in float32; in 16 bits a few values may round the other way. */
static void assert_close(const array *a, const array *b, const char *what)
{
    unsigned char *x = array_get(a), *y = array_get(b);
    double error = 0, norm = 0;
    for (size_t i = 0; i < a->bytes / (a->t.dtype.bits / 8); i++) {
        double u = element(a, x, i), v = element(b, y, i);
        ck_assert_msg(isnan(u) == isnan(v), "%s: element %d is %g, %g on the CPU", what, (int)i, u, v);
        error += isnan(u) ? 0 : (u - v) * (u - v);
        norm += isnan(u) ? 0 : v * v;
    }
    double bar = a->t.dtype.bits == 32 ? 2e-6 : 4e-4;
    ck_assert_msg(error <= bar * bar * norm, "%s: relative L2 %g above %g", what, sqrt(error / norm), bar);
    free(x);
    free(y);
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* Tensors of import and export of one side. */
typedef struct states {
    array *slots, *state[LAYERS], *conv[LAYERS], *decay[LAYERS];
    const DLTensor *state_t[LAYERS], *conv_t[LAYERS], *decay_t[LAYERS];
} states;

/* Mamba-2 folds with A_log: that of the rig, on either side. */
static void take_decay(const pair *p, const side *s, states *x)
{
    for (int layer = 0; layer < LAYERS && p->r->spec.family == RSSM_FAMILY_MAMBA2; layer++) {
        const DLTensor *A_log = p->r->roles[layer][RSSM_T_A_LOG];
        int64_t HV = p->r->spec.HV;
        void *numbers = malloc((size_t)HV * 4);
        gpu_download(numbers, (CUdeviceptr)(uintptr_t)A_log->data, (size_t)HV * 4);
        x->decay[layer] = array_new(s, float_type(RSSM_DTYPE_FLOAT32), 1, &HV);
        array_put(x->decay[layer], numbers);
        x->decay_t[layer] = &x->decay[layer]->t;
        free(numbers);
    }
}

static int64_t channels_of(const h_spec *s)
{
    return 2 * (int64_t)s->H * s->K + (int64_t)s->HV * s->V;
}

static states states_new(const pair *p, const side *s, const int32_t *slots, int64_t n, int32_t dtype, int32_t order)
{
    const h_spec *spec = &p->r->spec;
    const bool kv = order == RSSM_STATE_KV;
    states x = {.slots = list_new(s, slots, n)};
    for (int layer = 0; layer < LAYERS; layer++) {
        x.state[layer] = array_new(s, float_type(dtype), 4,
                                   (const int64_t[]){n, spec->HV, kv ? spec->K : spec->V, kv ? spec->V : spec->K});
        x.conv[layer] = array_new(s, float_type(dtype), 3, (const int64_t[]){n, channels_of(spec), TAPS - 1});
        x.state_t[layer] = &x.state[layer]->t;
        x.conv_t[layer] = &x.conv[layer]->t;
    }
    take_decay(p, s, &x);
    return x;
}

static void states_free(states *x)
{
    array_free(x->slots);
    for (int layer = 0; layer < LAYERS; layer++) {
        array_free(x->state[layer]);
        array_free(x->conv[layer]);
        if (x->decay[layer])
            array_free(x->decay[layer]);
    }
}

typedef rssm_status (*state_call)(rssm_plugin *, const rssm_state_args *, rssm_error *);

static rssm_status move_states(const side *s, state_call call, const states *x, int32_t order, bool folds, void *stream,
                               rssm_error *err)
{
    const rssm_state_args args = {.struct_size = sizeof args,
                                  .slots = &x->slots->t,
                                  .states = x->state_t,
                                  .conv = x->conv_t,
                                  .A_log = folds && x->decay[0] ? x->decay_t : NULL,
                                  .num_layers = LAYERS,
                                  .order = order,
                                  .stream = stream};
    return call(s->plugin, &args, err);
}

static rssm_status flush(const side *s, const states *x, void *stream, rssm_error *err)
{
    const rssm_flush_args args = {.struct_size = sizeof args,
                                  .slots = &x->slots->t,
                                  .A_log = x->decay[0] ? x->decay_t : NULL,
                                  .num_layers = x->decay[0] ? LAYERS : 0,
                                  .stream = stream};
    return slots_api()->flush(s->plugin, &args, err);
}

static rssm_status copy(const side *s, const array *src, const array *dst, void *stream, rssm_error *err)
{
    const rssm_copy_args args = {.struct_size = sizeof args, .src = &src->t, .dst = &dst->t, .stream = stream};
    return slots_api()->copy(s->plugin, &args, err);
}

static void copy_both(const pair *p, const int32_t *from, const int32_t *to, int64_t n)
{
    rssm_error err = h_error();
    for (int i = 0; i < 2; i++) {
        array *src = list_new(&p->sides[i], from, n), *dst = list_new(&p->sides[i], to, n);
        must(copy(&p->sides[i], src, dst, NULL, &err), &err, "copy");
        gpu_wait();
        array_free(src);
        array_free(dst);
    }
}

/* ---- both backends alike ---------------------------------------------------------------------------------------- */

START_TEST(streams_cross_over)
{
    pair p = pair_new(host_spec(_i), 1);
    assert_same_slots(&p, "loading on the CPU");
    for (int64_t slot = 0; slot < SLOTS; slot++) { /* and back, to other places */
        unsigned char *stream = save(&p.sides[1], slot);
        load(&p.sides[0], (slot + 5) % SLOTS, stream);
        unsigned char *again = save(&p.sides[0], (slot + 5) % SLOTS);
        ck_assert_msg(memcmp(stream, again, saved_bytes(&p.sides[0])) == 0, "slot %d came back changed", (int)slot);
        free(stream);
        free(again);
    }
    assert_same_faults(&p, 0, "saving and loading");
    pair_free(&p);
}
END_TEST

START_TEST(copies)
{
    pair p = pair_new(host_spec(_i), 2);
    copy_both(&p, (const int32_t[]){0, 1, 1, 4, -1, SLOTS}, (const int32_t[]){7, 8, 9, 10, -1, SLOTS + 3}, 6);
    assert_same_slots(&p, "a copy");
    assert_same_faults(&p, 0, "a copy");
    copy_both(&p, (const int32_t[]){0, 1, 2, 3, 4}, (const int32_t[]){8, 9, 8, 4, 11}, 5); /* 8 twice, 4 is read */
    copy_both(&p, (const int32_t[]){0, -1, 5}, (const int32_t[]){-1, 12, 13}, 3);          /* half pairs */
    assert_same_slots(&p, "copies of which some are passed over");
    assert_same_faults(&p, RSSM_FAULT_SLOTS, "copies of which some are passed over");
    pair_free(&p);
}
END_TEST

/* What is copied decodes on as its source does. */
START_TEST(a_fork_decodes_as_its_source)
{
    pair p = pair_new(host_spec(_i), 3);
    const int32_t from[ROWS] = {0, 1, 2, 3, 4, 5}, to[ROWS] = {8, 9, 10, 11, 12, 13};
    for (int round = 0; round < 3; round++) {
        copy_both(&p, from, to, ROWS);
        for (int pass = 0; pass < 7; pass++) {
            unsigned char *outputs[2];
            for (int side = 0; side < 2; side++) {
                rig_positions(p.r, side ? to : from, NULL);
                rig_inputs(p.r, (uint64_t)(round * 100 + pass));
                rig_step(p.r, NULL);
                outputs[side] = rig_outputs(p.r, LAYERS - 1);
            }
            ck_assert_msg(memcmp(outputs[0], outputs[1], rig_row_bytes(p.r) * ROWS) == 0, "round %d, pass %d", round,
                          pass);
            free(outputs[0]);
            free(outputs[1]);
        }
    }
    pair_free(&p);
}
END_TEST

static const int32_t dtypes[] = {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_FLOAT16};

START_TEST(exports)
{
    pair p = pair_new(host_spec(_i), 4);
    const int32_t slots[] = {3, 0, -1, 3, 13, SLOTS, 7};
    rssm_error err = h_error();
    for (int c = 0; c < 6; c++) {
        states x[2];
        for (int i = 0; i < 2; i++) {
            x[i] = states_new(&p, &p.sides[i], slots, 7, dtypes[c % 3], c / 3);
            must(move_states(&p.sides[i], slots_api()->export_state, &x[i], c / 3, true, NULL, &err), &err, "export");
        }
        gpu_wait();
        for (int layer = 0; layer < LAYERS; layer++) {
            assert_close(x[0].state[layer], x[1].state[layer], "export");
            unsigned char *a = array_get(x[0].conv[layer]), *b = array_get(x[1].conv[layer]);
            ck_assert_msg(memcmp(a, b, x[0].conv[layer]->bytes) == 0, "exported histories differ");
            free(a);
            free(b);
        }
        states_free(&x[0]);
        states_free(&x[1]);
    }
    assert_same_slots(&p, "exports");
    assert_same_faults(&p, 0, "exports");
    pair_free(&p);
}
END_TEST

START_TEST(imports)
{
    pair p = pair_new(host_spec(_i), 5);
    const int32_t slots[] = {3, 0, -1, 5, 13, SLOTS, 5, 8};
    rssm_error err = h_error();
    for (int c = 0; c < 6; c++) {
        for (int i = 0; i < 2; i++) {
            states x = states_new(&p, &p.sides[i], slots, 8, dtypes[c % 3], c / 3);
            for (int layer = 0; layer < LAYERS; layer++) {
                array_random(x.state[layer], 1, (uint64_t)(c * 10 + layer));
                array_random(x.conv[layer], 1, (uint64_t)(c * 10 + layer + 5));
            }
            must(move_states(&p.sides[i], slots_api()->import_state, &x, c / 3, false, NULL, &err), &err, "import");
            gpu_wait();
            states_free(&x);
        }
        assert_same_slots(&p, "an import");
        assert_same_faults(&p, RSSM_FAULT_SLOTS, "an import that names a slot twice");
    }
    pair_free(&p);
}
END_TEST

/* float32 states up to +-size into four slots of both sides. */
static const int32_t large_slots[] = {3, 0, 5, 13};

static void import_large(const pair *p, int32_t order, double size)
{
    rssm_error err = h_error();
    for (int i = 0; i < 2; i++) {
        states x = states_new(p, &p->sides[i], large_slots, 4, RSSM_DTYPE_FLOAT32, order);
        for (int layer = 0; layer < LAYERS; layer++) {
            array_random(x.state[layer], size, (uint64_t)layer);
            array_random(x.conv[layer], 1, (uint64_t)layer);
        }
        must(move_states(&p->sides[i], slots_api()->import_state, &x, order, false, NULL, &err), &err, "import");
        gpu_wait();
        states_free(&x);
    }
}

/* An element that float16 cannot hold. */
static bool beyond_float16(const array *a)
{
    unsigned char *x = array_get(a);
    bool beyond = false;
    for (size_t i = 0; i < a->bytes / (a->t.dtype.bits / 8) && !beyond; i++)
        beyond = fabs(element(a, x, i)) > 65520;
    free(x);
    return beyond;
}

/* What 16 bits cannot hold becomes their largest number and sets the fault word: on the way in, and with records on the way out. */
START_TEST(what_overflows)
{
    pair p = pair_new(host_spec(_i), 8);
    const bool wide = p.r->spec.state == RSSM_DTYPE_FLOAT32;
    rssm_error err = h_error();
    for (int32_t order = 0; order < 2; order++) {
        import_large(&p, order, (double)FLT_MAX);
        assert_same_slots(&p, "an import of what is beyond bfloat16");
        assert_same_faults(&p, wide ? 0 : RSSM_FAULT_STATE, "an import of what is beyond bfloat16");
    }
    import_large(&p, RSSM_STATE_VK, 1e30); /* so large that the passes' decay leaves what float16 cannot hold */
    run_passes(p.r, 6, 8);
    take_faults(&p.sides[0]);
    load_shadow(&p);
    bool beyond = false;
    for (int c = 0; c < 6; c++) {
        states x[2];
        for (int i = 0; i < 2; i++) {
            x[i] = states_new(&p, &p.sides[i], large_slots, 4, dtypes[c % 3], c / 3);
            must(move_states(&p.sides[i], slots_api()->export_state, &x[i], c / 3, true, NULL, &err), &err, "export");
        }
        gpu_wait();
        for (int layer = 0; layer < LAYERS; layer++) {
            assert_close(x[0].state[layer], x[1].state[layer], "export of what is beyond float16");
            beyond |= c == 0 && beyond_float16(x[1].state[layer]); /* dtypes[0] is float32 */
        }
        ck_assert_msg(beyond, "nothing was left that float16 cannot hold");
        assert_same_faults(&p, dtypes[c % 3] == RSSM_DTYPE_FLOAT16 ? RSSM_FAULT_STATE : 0, "export of large states");
        states_free(&x[0]);
        states_free(&x[1]);
    }
    pair_free(&p);
}
END_TEST

/* A flushed slot's state is what an export gave before, and its cursor that of the CPU's. */
START_TEST(flushes)
{
    pair p = pair_new(host_spec(_i), 6);
    const int32_t slots[] = {3, 0, -1, 7, 12, 5, 5}, all[] = {3, 0, 7, 12, 5, 1};
    rssm_error err = h_error();
    states before = states_new(&p, &p.sides[0], all, 6, RSSM_DTYPE_FLOAT32, RSSM_STATE_VK), after[2];
    must(move_states(&p.sides[0], slots_api()->export_state, &before, RSSM_STATE_VK, true, NULL, &err), &err, "export");
    for (int i = 0; i < 2; i++) {
        states x = states_new(&p, &p.sides[i], slots, 7, RSSM_DTYPE_FLOAT32, RSSM_STATE_VK);
        must(flush(&p.sides[i], &x, NULL, &err), &err, "flush");
        gpu_wait();
        after[i] = states_new(&p, &p.sides[i], all, 6, RSSM_DTYPE_FLOAT32, RSSM_STATE_VK);
        must(move_states(&p.sides[i], slots_api()->export_state, &after[i], RSSM_STATE_VK, true, NULL, &err), &err,
             "export");
        gpu_wait();
        states_free(&x);
    }
    const bool wide = p.r->spec.state == RSSM_DTYPE_FLOAT32;
    for (int layer = 0; layer < LAYERS && wide; layer++) {
        assert_close(after[0].state[layer], before.state[layer], "flush against export");
        assert_close(after[0].state[layer], after[1].state[layer], "flush");
    }
    for (int64_t slot = 0; slot < SLOTS; slot++) { /* the cursor stands in the header: compare all but the states */
        const DLTensor *mine[RSSM_T_COUNT] = {NULL}, *theirs[RSSM_T_COUNT] = {NULL};
        int32_t a[4], b[4];
        must(rig_api()->pool_tensors(p.sides[0].plugin, 0, mine, RSSM_T_COUNT, &err), &err, "pool_tensors");
        must(rig_api()->pool_tensors(p.sides[1].plugin, 0, theirs, RSSM_T_COUNT, &err), &err, "pool_tensors");
        gpu_download(a, (CUdeviceptr)(uintptr_t)mine[RSSM_T_CURSOR]->data + (CUdeviceptr)(slot * 16), sizeof a);
        memcpy(b, (const char *)theirs[RSSM_T_CURSOR]->data + slot * 16, sizeof b);
        ck_assert_msg(memcmp(a, b, sizeof a) == 0, "slot %d: cursor %d %d %d %d, on the CPU %d %d %d %d", (int)slot,
                      a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]);
    }
    assert_same_faults(&p, RSSM_FAULT_SLOTS, "a flush that names a slot twice");
    states_free(&before);
    states_free(&after[0]);
    states_free(&after[1]);
    pair_free(&p);
}
END_TEST

/* ---- the convolution -------------------------------------------------------------------------------------------- */

/* One pass of it on one side: plain, or a window of verify, of which `accepted` tokens are kept. */
typedef struct conv_pass {
    const int32_t *slots, *ends, *accepted; /* [ROWS], [ROWS + 1] or NULL, [ROWS] */
    int32_t tokens, max_T;
    uint64_t seed;
} conv_pass;

static rssm_status begin_rows(const side *s, const conv_pass *pass, array *slots, array *ends, array *rows,
                              void *stream, rssm_error *err)
{
    if (!pass->ends) {
        const rssm_step_begin_args args = {
            .struct_size = sizeof args, .slots = &slots->t, .rows_out = &rows->t, .stream = stream};
        return rig_api()->step_begin(s->plugin, &args, err);
    }
    const rssm_verify_api *verify = rig_api()->get_extension(RSSM_EXT_VERIFY);
    const rssm_verify_begin_args args = {.struct_size = sizeof args,
                                         .slots = &slots->t,
                                         .cu_seqlens = &ends->t,
                                         .rows_out = &rows->t,
                                         .stream = stream,
                                         .max_T = pass->max_T};
    return verify->verify_begin(s->plugin, &args, err);
}

/* Returns the outputs. */
static array *convolve(const pair *p, const side *s, const conv_pass *pass)
{
    const rssm_conv_api *conv = rig_api()->get_extension(RSSM_EXT_CONV);
    const rssm_verify_api *verify = rig_api()->get_extension(RSSM_EXT_VERIFY);
    const h_spec *spec = &p->r->spec;
    const int64_t channels = channels_of(spec), B = ROWS, B1 = ROWS + 1;
    rssm_error err = h_error();
    array *slots = list_new(s, pass->slots, B), *ends = pass->ends ? list_new(s, pass->ends, B1) : NULL;
    array *rows = array_new(s, h_int_type(32), 2, (const int64_t[]){B, RSSM_ROW_WIDTH});
    array *in = array_new(s, float_type(spec->io), 2, (const int64_t[]){pass->tokens, channels});
    array *out = array_new(s, float_type(spec->io), 2, (const int64_t[]){pass->tokens, channels});
    array *weight = array_new(s, float_type(spec->io), 2, (const int64_t[]){channels, TAPS});
    array *bias = array_new(s, float_type(RSSM_DTYPE_FLOAT32), 1, &channels);
    array_random(in, 1, pass->seed);
    array_random(weight, 1, 77);
    array_random(bias, 1, 78);
    must(begin_rows(s, pass, slots, ends, rows, NULL, &err), &err, "begin");
    const DLTensor *roles[RSSM_T_COUNT] = {NULL};
    for (int layer = 0; layer < LAYERS; layer++) {
        must(rig_api()->pool_tensors(s->plugin, layer, roles, RSSM_T_COUNT, &err), &err, "pool_tensors");
        roles[RSSM_T_ROWS] = &rows->t;
        roles[RSSM_T_CONV_IN] = &in->t;
        roles[RSSM_T_CONV_WEIGHT] = &weight->t;
        roles[RSSM_T_CONV_BIAS] = &bias->t;
        roles[RSSM_T_CONV_OUT] = &out->t;
        const rssm_decode_args args = {
            .struct_size = sizeof args, .tensors = roles, .num_tensors = RSSM_T_COUNT, .layer = layer};
        must((pass->ends ? conv->conv_verify : conv->conv)(s->plugin, &args, &err), &err, "conv");
    }
    gpu_wait();
    if (pass->ends) {
        array *accepted = list_new(s, pass->accepted, B);
        const rssm_commit_args args = {.struct_size = sizeof args, .rows = &rows->t, .accepted = &accepted->t};
        must(verify->commit(s->plugin, &args, &err), &err, "commit");
        gpu_wait();
        array_free(accepted);
    }
    array *const all[] = {slots, rows, in, weight, bias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(all[i]);
    if (ends)
        array_free(ends);
    return out;
}

static void convolve_both(const pair *p, const conv_pass *pass, const char *what)
{
    array *gpu = convolve(p, &p->sides[0], pass), *cpu = convolve(p, &p->sides[1], pass);
    assert_close(gpu, cpu, what);
    array_free(gpu);
    array_free(cpu);
}

/* The recurrence is left out here, so records are garbage on either side: slots are reset, and only histories compared. */
static void assert_same_histories(const pair *p)
{
    rssm_error err = h_error();
    for (int layer = 0; layer < LAYERS; layer++) {
        const DLTensor *mine[RSSM_T_COUNT] = {NULL}, *theirs[RSSM_T_COUNT] = {NULL};
        must(rig_api()->pool_tensors(p->sides[0].plugin, layer, mine, RSSM_T_COUNT, &err), &err, "pool_tensors");
        must(rig_api()->pool_tensors(p->sides[1].plugin, layer, theirs, RSSM_T_COUNT, &err), &err, "pool_tensors");
        const DLTensor *t = mine[RSSM_T_CONV];
        size_t bytes = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->dtype.bits / 8);
        unsigned char *a = malloc(bytes);
        gpu_download(a, (CUdeviceptr)(uintptr_t)t->data, bytes);
        ck_assert_msg(memcmp(a, theirs[RSSM_T_CONV]->data, bytes) == 0, "layer %d: histories differ", layer);
        free(a);
    }
}

START_TEST(convolutions)
{
    pair p = pair_new(host_spec(_i), 7);
    const int32_t drafts = p.r->spec.drafts;
    uint64_t random = 5;
    rssm_error err = h_error();
    for (int i = 0; i < 2; i++)
        must(rig_api()->reset(p.sides[i].plugin, &(rssm_reset_args){.struct_size = sizeof(rssm_reset_args)}, &err),
             &err, "reset");
    for (int round = 0; round < 40; round++) {
        int32_t slots[ROWS], ends[ROWS + 1] = {0}, accepted[ROWS];
        for (int i = 0; i < ROWS; i++) {
            int32_t length = (int32_t)(h_random(&random) % (uint64_t)(drafts + 2));
            slots[i] = h_random(&random) % 6 ? (round + i * 3) % SLOTS : -1;
            ends[i + 1] = ends[i] + length;
            accepted[i] = (int32_t)(h_random(&random) % (uint64_t)(length + 1));
        }
        const bool window = drafts > 0 && round % 3 != 0;
        const conv_pass pass = {.slots = slots,
                                .ends = window ? ends : NULL,
                                .accepted = accepted,
                                .tokens = window ? ends[ROWS] : ROWS,
                                .max_T = drafts + 1,
                                .seed = (uint64_t)round};
        if (pass.tokens > 0)
            convolve_both(&p, &pass, window ? "a window's convolution" : "a convolution");
    }
    assert_same_histories(&p);
    assert_same_faults(&p, 0, "convolutions");
    pair_free(&p);
}
END_TEST

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

/* A fork, an export, a flush and an import, of slots that are read when the graph runs. */
typedef struct job {
    pair p;
    array *src, *dst;
    states exported, flushed, imported;
} job;

static job job_new(h_spec spec)
{
    job j = {.p = pair_new(spec, 8)};
    const side *s = &j.p.sides[0];
    const int32_t none[ROWS] = {-1, -1, -1, -1, -1, -1};
    j.src = list_new(s, none, ROWS);
    j.dst = list_new(s, none, ROWS);
    j.exported = states_new(&j.p, s, none, ROWS, RSSM_DTYPE_FLOAT32, RSSM_STATE_KV);
    j.flushed = states_new(&j.p, s, none, ROWS, RSSM_DTYPE_FLOAT32, RSSM_STATE_KV);
    j.imported = states_new(&j.p, s, none, ROWS, RSSM_DTYPE_BFLOAT16, RSSM_STATE_VK);
    for (int layer = 0; layer < LAYERS; layer++) {
        array_random(j.imported.state[layer], 1, (uint64_t)layer);
        array_random(j.imported.conv[layer], 1, (uint64_t)layer + 9);
    }
    return j;
}

static void job_free(job *j)
{
    array_free(j->src);
    array_free(j->dst);
    states_free(&j->exported);
    states_free(&j->flushed);
    states_free(&j->imported);
    pair_free(&j->p);
}

static rssm_status job_run(const job *j, void *stream, rssm_error *err)
{
    const side *s = &j->p.sides[0];
    rssm_status status = copy(s, j->src, j->dst, stream, err);
    if (!status)
        status = move_states(s, slots_api()->export_state, &j->exported, RSSM_STATE_KV, true, stream, err);
    if (!status)
        status = flush(s, &j->flushed, stream, err);
    return status ? status : move_states(s, slots_api()->import_state, &j->imported, RSSM_STATE_VK, false, stream, err);
}

static void job_slots(job *j, int round)
{
    int32_t list[5][ROWS];
    for (int i = 0; i < ROWS; i++) {
        list[0][i] = (round + i) % 6;
        list[1][i] = i % 5 == round % 5 ? list[0][i] : 6 + i; /* one of them is passed over */
        list[2][i] = (round * 5 + i * 2) % SLOTS;
        list[3][i] = i == 4 ? -1 : (round + i * 4) % SLOTS;
        list[4][i] = 13 - (round + i) % 3 * 2;
    }
    array_put(j->src, list[0]);
    array_put(j->dst, list[1]);
    array_put(j->exported.slots, list[2]);
    array_put(j->flushed.slots, list[3]);
    array_put(j->imported.slots, list[4]);
}

static void assert_same_jobs(const job *a, const job *b, const char *when)
{
    for (int64_t slot = 0; slot < SLOTS; slot++) {
        unsigned char *x = save(&a->p.sides[0], slot), *y = save(&b->p.sides[0], slot);
        ck_assert_msg(memcmp(x, y, saved_bytes(&a->p.sides[0])) == 0, "%s: slot %d differs", when, (int)slot);
        free(x);
        free(y);
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        unsigned char *x = array_get(a->exported.state[layer]), *y = array_get(b->exported.state[layer]);
        ck_assert_msg(memcmp(x, y, a->exported.state[layer]->bytes) == 0, "%s: exports of layer %d differ", when,
                      layer);
        free(x);
        free(y);
    }
}

/* Five kernels: copy, export, fold and cursors of the flush, import. */
START_TEST(a_graph_of_slot_operations)
{
    job graph = job_new(host_spec(_i)), eager = job_new(host_spec(_i));
    CUstream stream = gpu_stream();
    CUgraph captured = NULL;
    CUgraphExec exec = NULL;
    size_t nodes = 0;
    rssm_error err = h_error();
    gpu_enter();
    GPU(capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    rssm_status status = job_run(&graph, stream, &err);
    GPU(capture_end(stream, &captured));
    must(status, &err, "during capture");
    GPU(graph_nodes(captured, NULL, &nodes));
    ck_assert_uint_eq(nodes, 5);
    GPU(graph_instantiate(&exec, captured, 0));
    GPU(graph_destroy(captured));
    gpu_leave();
    assert_same_jobs(&graph, &eager, "after the capture, which runs nothing");
    for (int round = 0; round < (share.small ? 3 : 30); round++) {
        run_passes(graph.p.r, 3, (uint64_t)round);
        run_passes(eager.p.r, 3, (uint64_t)round);
        job_slots(&graph, round);
        job_slots(&eager, round);
        gpu_enter();
        GPU(graph_launch(exec, stream));
        GPU(stream_sync(stream));
        gpu_leave();
        must(job_run(&eager, NULL, &err), &err, "eagerly");
        gpu_wait();
        assert_same_jobs(&graph, &eager, "after a replay");
    }
    gpu_enter();
    GPU(graph_exec_destroy(exec));
    GPU(stream_destroy(stream));
    gpu_leave();
    job_free(&graph);
    job_free(&eager);
}
END_TEST

/* ---- bandwidth -------------------------------------------------------------------------------------------------- */

enum { MANY = 16, REPEATS = 20 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What a large copy by the driver reads and writes in a second. */
static double copy_bandwidth(void)
{
    size_t bytes = (size_t)1 << 30;
    CUdeviceptr a = gpu_alloc(bytes), b = gpu_alloc(bytes);
    gpu_copy(b, a, bytes);
    gpu_enter();
    double begin = now();
    for (int i = 0; i < REPEATS; i++)
        GPU(between(b, a, bytes, NULL));
    GPU(synchronize());
    double seconds = (now() - begin) / REPEATS;
    gpu_leave();
    gpu_free(a);
    gpu_free(b);
    return 2 * (double)bytes / seconds;
}

/* bar: the part of the bandwidth below which something has gone wrong. */
static void report(const char *what, double bytes, double seconds, double bandwidth, double bar)
{
    double part = bytes / seconds / bandwidth;
    fprintf(stderr, "%s of %d slots: %.0f MB in %.1f us, %.2f of a large copy's bandwidth\n", what, MANY, bytes * 1e-6,
            seconds * 1e6, part);
    ck_assert_msg(part >= bar, "%s of %d slots: %.2f of a large copy's bandwidth, less than %.2f", what, MANY, part,
                  bar);
}

/* Forks and exports, with rings half full, once they move 128 MB and more; launches follow each other, as layers of work do. */
START_TEST(bytes_per_second)
{
    h_spec spec = {.family = RSSM_FAMILY_GDN, .H = 16, .HV = 32, .K = 128, .V = 128, .L = 16, .B = MANY};
    spec.S = spec.num_slots = 2 * MANY;
    spec.layers = LAYERS;
    spec.init_flags = RSSM_INIT_CONV_STATE;
    spec.state = _i ? RSSM_DTYPE_BFLOAT16 : RSSM_DTYPE_FLOAT32;
    rig *r = rig_new(spec);
    const pair p = {.r = r, .sides = {{r->plugin, true}}};
    const double bandwidth = copy_bandwidth();
    int32_t from[MANY], to[MANY];
    rssm_error err = h_error();
    for (int i = 0; i < MANY; i++) {
        from[i] = i;
        to[i] = MANY + i;
    }
    rig_positions(r, from, NULL);
    rig_inputs(r, 1);
    for (int pass = 0; pass < 8; pass++)
        rig_step(r, NULL);
    array *src = list_new(&p.sides[0], from, MANY), *dst = list_new(&p.sides[0], to, MANY);
    states x = states_new(&p, &p.sides[0], from, MANY, spec.state, RSSM_STATE_VK);
    double seconds[2];
    for (int what = 0; what < 2; what++) {
        double begin = 0;
        for (int i = -2; i < REPEATS; i++) {
            if (i == 0) {
                gpu_wait();
                begin = now();
            }
            must(what ? move_states(&p.sides[0], slots_api()->export_state, &x, RSSM_STATE_VK, true, NULL, &err)
                      : copy(&p.sides[0], src, dst, NULL, &err),
                 &err, "launch");
        }
        gpu_wait();
        seconds[what] = (now() - begin) / REPEATS;
    }
    double element = _i ? 2 : 4, state = 32 * 128 * 128 * element, history = (double)channels_of(&r->spec) * 3 * 2;
    double records = 8 * (32 * 128 * 2 + 16 * 128 * 2 + 32 * 4);
    report(_i ? "fork, 16-bit state," : "fork", 2.0 * MANY * (double)r->layout.slot_total_bytes, seconds[0], bandwidth,
           0.7);
    report(_i ? "export, 16-bit state," : "export", MANY * LAYERS * (2 * state + records + history * (_i ? 2 : 3)),
           seconds[1], bandwidth, 0.7);
    states_free(&x);
    array_free(src);
    array_free(dst);
    rig_free(r);
}
END_TEST

void add_slots(Suite *s)
{
    TCase *t = tcase_create("slots");
    tcase_set_timeout(t, 600);
    gpu_add_loop(t, streams_cross_over, NUM_HOSTS);
    gpu_add_loop(t, copies, NUM_HOSTS);
    gpu_add_loop(t, a_fork_decodes_as_its_source, NUM_HOSTS);
    gpu_add_loop(t, exports, NUM_HOSTS);
    gpu_add_loop(t, imports, NUM_HOSTS);
    gpu_add_loop(t, what_overflows, NUM_HOSTS);
    gpu_add_loop(t, flushes, NUM_HOSTS);
    gpu_add_loop(t, convolutions, NUM_HOSTS);
    gpu_add_loop(t, a_graph_of_slot_operations, NUM_HOSTS);
    if (!share.small && !share.part)
        tcase_add_loop_test(t, bytes_per_second, 0, 2);
    suite_add_tcase(s, t);
}
