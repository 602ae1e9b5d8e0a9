/* Runs the program of docs/hosts.md on a real config and checks what the page says, section by section.
 *
 *     check_hosts PLUGIN.so CONFIG.json LAYERS [cuda|fake]
 *
 * LAYERS: of the model, from the first one. On the CPU what the page calls equal bit for bit is compared so; on a GPU
 * everything within `tolerance`. fake: a driver that moves cursors and computes nothing; only the graphs are checked. */
#include "prelude.h"

#include "hosts_md.h" /* the page */

#include "../../examples/common/rng.h"
#include "../../examples/common/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Relative L2 of outputs and states after another order of sums or another moment of folding. With a 16-bit ring the last bit of
 * such a sum may turn a record's rounding at a tie, which is one ulp of bfloat16 in one of its values. */
enum { RINGS = 2 };
static const struct {
    int32_t dtype;
    double tolerance;
} rings[RINGS] = {{RSSM_DTYPE_FLOAT32, 1e-5}, {RSSM_DTYPE_DEFAULT, 2e-3}};

static double tolerance;
static int passed, failed;
static device dev;
static void *cuda_stream;

static void expect(int holds, const char *what)
{
    holds ? passed++ : failed++;
    if (!holds)
        printf("FAILED: %s\n", what);
}

/* What is not under test here must work. */
static void must(int holds, const server *s, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "%s: %s\n", what, s != NULL ? s->err.message : "failed");
    exit(2);
}

static void *room(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    must(memory != NULL, NULL, "memory");
    return memory;
}

/* ---- what the page leaves to its reader ------------------------------------------------------------------------------ */

static void put(server *s, DLTensor *to, const int32_t *values, int64_t n)
{
    to->shape[0] = n;
    must(dev.to_device(&dev, tensor_data(to), values, n * 4) == 0, s, "put");
}

static void report(const char *status, const char *message)
{
    printf("  (the host's log) %s: %s\n", status, message);
}

/* ---- a server with tensors ------------------------------------------------------------------------------------------- */

typedef struct world {
    server s;
    host host; /* for the workload */
    workload load;
    tensor *out, *packed, *conv_weight, *conv_bias; /* [layers] */
    tensor cu_seqlens, accepted, other_slots;
    void *slab;
    int64_t channels, width; /* of the convolution; output values of one token in all layers */
} world;

/* Runs of elements that a rank holds of the packed row of the whole model. */
typedef struct part {
    int64_t from, count;
} part;

static void parts_of(const rssm_description *m, part parts[3])
{
    const int64_t key = (int64_t)m->H * m->K, all_keys = (int64_t)m->model_H * m->K,
                  first = (int64_t)m->group_begin * m->K;
    const part value = {(int64_t)m->head_begin * m->V, (int64_t)m->HV * m->V};
    if (m->family == RSSM_FAMILY_MAMBA2) { /* x | B | C */
        const int64_t all_values = (int64_t)m->model_HV * m->V;
        parts[0] = value;
        parts[1] = (part){all_values + first, key};
        parts[2] = (part){all_values + all_keys + first, key};
    } else { /* q | k | v */
        parts[0] = (part){first, key};
        parts[1] = (part){all_keys + first, key};
        parts[2] = (part){2 * all_keys + value.from, value.count};
    }
}

static int64_t whole_channels(const rssm_description *m)
{
    return 2 * (int64_t)m->model_H * m->K + (int64_t)m->model_HV * m->V;
}

/* The rank's channels of `whole`, each of `bytes`. */
static void gather(const rssm_description *m, const void *whole, int64_t bytes, void *mine)
{
    part parts[3];
    char *to = mine;
    parts_of(m, parts);
    for (int i = 0; i < 3; i++) {
        memcpy(to, (const char *)whole + parts[i].from * bytes, (size_t)(parts[i].count * bytes));
        to += parts[i].count * bytes;
    }
}

/* One gate a head, or K of them. */
static int64_t gates_per_head(const rssm_description *m)
{
    return m->family == RSSM_FAMILY_KDA ? m->K : 1;
}

/* Weights of the convolution: random, or the rank's of a server of the whole model. */
static void conv_weights(world *w, int32_t i, const world *whole)
{
    const rssm_description *m = &w->s.model;
    const int64_t width = m->conv_kernel;
    float *taps = w->conv_weight[i].host, *biases = w->conv_bias[i].host;
    rng r = rng_stream(7, (uint64_t)i, 1);
    if (whole != NULL) {
        gather(m, whole->conv_weight[i].host, 4 * width, taps);
        gather(m, whole->conv_bias[i].host, 4, biases);
    }
    for (int64_t k = 0; whole == NULL && k < w->channels * width; k++)
        taps[k] = rng_normal(&r) / sqrtf((float)width);
    for (int64_t k = 0; whole == NULL && k < w->channels; k++)
        biases[k] = 0.1f * rng_normal(&r);
    must(tensor_upload(&w->conv_weight[i]) == 0 && tensor_upload(&w->conv_bias[i]) == 0, NULL, "upload");
}

/* The workload has its own weights; a rank takes its heads of the whole model's. */
static void head_weights(world *w, int32_t i, const world *whole)
{
    const rssm_description *m = &w->s.model;
    for (int kind = 0; whole != NULL && kind < WEIGHT_COUNT; kind++) {
        const int64_t each = kind == WEIGHT_DT_BIAS ? gates_per_head(m) : 1;
        tensor *mine = &w->load.weights[i * WEIGHT_COUNT + kind];
        const float *all = whole->load.weights[i * WEIGHT_COUNT + kind].host;
        memcpy(mine->host, all + m->head_begin * each, (size_t)mine->bytes);
        must(tensor_upload(mine) == 0, NULL, "upload");
    }
}

static void create_layer(world *w, int32_t i, const world *whole)
{
    const rssm_description *m = &w->s.model;
    const DLDataType f32 = {kDLFloat, 32, 1};
    layer *l = &w->s.layers[i];
    tensor *weights = &w->load.weights[i * WEIGHT_COUNT];
    int bad = tensor_create(&w->out[i], &dev, f32, 3, (int64_t[]){MAX_BATCH, m->HV, m->V}) |
              tensor_create(&w->packed[i], &dev, w->load.io->dl, 2, (int64_t[]){MAX_BATCH, w->channels}) |
              tensor_create(&w->conv_weight[i], &dev, f32, 2, (int64_t[]){w->channels, m->conv_kernel}) |
              tensor_create(&w->conv_bias[i], &dev, f32, 1, &w->channels);
    must(bad == 0, NULL, "tensors");
    conv_weights(w, i, whole);
    head_weights(w, i, whole);
    l->conv_in = w->load.packed.dl, l->packed = w->packed[i].dl;
    l->gate = w->load.gate.dl, l->beta = w->load.beta.dl, l->out = w->out[i].dl;
    l->conv_weight = w->conv_weight[i].dl, l->conv_bias = w->conv_bias[i].dl;
    l->A_log = weights[WEIGHT_A_LOG].dl, l->dt_bias = weights[WEIGHT_DT_BIAS].dl, l->D = weights[WEIGHT_D].dl;
    must(bind_layer(&w->s, i) == RSSM_OK, &w->s, "bind_layer");
}

static void create_tensors(world *w, const world *whole)
{
    const rssm_description *m = &w->s.model;
    const size_t layers = (size_t)m->num_linear_layers;
    const int64_t batch = MAX_BATCH, more = batch + 1;
    w->host = (host){.program = "check_hosts", .api = w->s.api, .plugin = w->s.ssm, .model = *m};
    w->host.error.struct_size = sizeof w->host.error;
    must(workload_create(&w->load, &w->host, &dev, batch, dtype_find(RSSM_DTYPE_FLOAT32), 1) == EXIT_OK, NULL,
         "workload");
    must(tensor_create(&w->cu_seqlens, &dev, tensor_int32(), 1, &more) == 0, NULL, "tensors");
    must(tensor_create(&w->accepted, &dev, tensor_int32(), 1, &batch) == 0, NULL, "tensors");
    must(tensor_create(&w->other_slots, &dev, tensor_int32(), 1, &batch) == 0, NULL, "tensors");
    w->channels = m->conv_channels;
    w->width = (int64_t)layers * m->HV * m->V;
    w->s.slots = w->load.slots.dl, w->s.rows = w->load.rows.dl;
    w->s.cu_seqlens = w->cu_seqlens.dl, w->s.accepted = w->accepted.dl;
    w->s.layers = room(layers * sizeof *w->s.layers);
    w->out = room(layers * sizeof *w->out), w->packed = room(layers * sizeof *w->packed);
    w->conv_weight = room(layers * sizeof *w->conv_weight), w->conv_bias = room(layers * sizeof *w->conv_bias);
    for (int32_t i = 0; i < m->num_linear_layers; i++)
        create_layer(w, i, whole);
}

/* own_memory: the pool lies in the host's. whole: whose weights the rank shares. */
static void open_world(world *w, const rssm_api *api, const rssm_init_args *init, int own_memory, const world *whole)
{
    server *s = &w->s;
    *w = (world){.s = {.stream = cuda_stream}};
    must(open_instance(s, api, init) == RSSM_OK, s, "open_instance");
    if (own_memory) {
        w->slab = dev.alloc(&dev, s->pool.slab_bytes + RSSM_POOL_ALIGNMENT);
        must(w->slab != NULL, NULL, "memory");
        uintptr_t start = ((uintptr_t)w->slab + RSSM_POOL_ALIGNMENT - 1) & ~((uintptr_t)RSSM_POOL_ALIGNMENT - 1);
        unsigned char *garbage = room((size_t)s->pool.slab_bytes); /* NaN in every float type */
        memset(garbage, 0xFF, (size_t)s->pool.slab_bytes);
        must(dev.to_device(&dev, (void *)start, garbage, s->pool.slab_bytes) == 0, NULL, "upload");
        free(garbage);
        must(pool_in(s, (void *)start, (uint64_t)s->pool.slab_bytes) == RSSM_OK, s, "pool_in");
    } else {
        must(api->pool_create(s->ssm, NULL, &s->err) == RSSM_OK, s, "pool_create");
    }
    create_tensors(w, whole);
}

static void close_world(world *w)
{
    must(dev.sync(&dev) == 0, NULL, "sync");
    const int32_t layers = w->s.model.num_linear_layers;
    workload_free(&w->load);
    expect(close_instance(&w->s) == RSSM_OK && w->s.ssm == NULL, "teardown");
    expect(close_instance(&w->s) == RSSM_OK, "teardown twice");
    tensor *lists[] = {w->out, w->packed, w->conv_weight, w->conv_bias};
    for (size_t list = 0; list < 4; list++) {
        for (int32_t i = 0; i < layers; i++)
            tensor_free(&lists[list][i]);
        free(lists[list]);
    }
    tensor_free(&w->cu_seqlens), tensor_free(&w->accepted), tensor_free(&w->other_slots);
    free(w->s.layers);
    if (w->slab != NULL)
        dev.release(&dev, w->slab);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------- */

static void normal_row(rng *r, const dtype_info *type, int64_t n, float *scratch, void *to)
{
    for (int64_t i = 0; i < n; i++)
        scratch[i] = rng_normal(r);
    dtype_store(type, scratch, n, to);
}

/* What the projections make of tokens[n]: rows of conv_in, gate and beta; a rank gets its part. */
static void feed(world *w, const uint64_t *tokens, int64_t n)
{
    const rssm_description *m = &w->s.model;
    const int64_t bytes = w->load.io->bytes, all = whole_channels(m), each = gates_per_head(m);
    const int64_t gates = m->model_HV * each, most = all > gates ? all : gates;
    float *scratch = room((size_t)most * sizeof *scratch);
    char *row = room((size_t)(most * bytes));
    for (int64_t i = 0; i < n; i++) {
        rng r = rng_stream(tokens[i], 3, 0);
        normal_row(&r, w->load.io, all, scratch, row);
        gather(m, row, bytes, (char *)w->load.packed.host + i * w->channels * bytes);
        normal_row(&r, w->load.io, gates, scratch, row);
        memcpy((char *)w->load.gate.host + i * m->HV * each * bytes, row + m->head_begin * each * bytes,
               (size_t)(m->HV * each * bytes));
        normal_row(&r, w->load.io, m->model_HV, scratch, row);
        memcpy((char *)w->load.beta.host + i * m->HV * bytes, row + m->head_begin * bytes, (size_t)(m->HV * bytes));
    }
    free(scratch), free(row);
    must(tensor_upload(&w->load.packed) == 0 && tensor_upload(&w->load.gate) == 0 && tensor_upload(&w->load.beta) == 0,
         NULL, "upload");
}

/* The outputs of the pass's token `at`, all layers: to[width]. */
static void fetch(world *w, int64_t at, float *to)
{
    const int64_t one = (int64_t)w->s.model.HV * w->s.model.V;
    for (int32_t i = 0; i < w->s.model.num_linear_layers; i++) {
        must(tensor_download(&w->out[i]) == 0, NULL, "download");
        memcpy(to + i * one, (const float *)w->out[i].host + at * one, (size_t)one * sizeof *to);
    }
}

/* n values of which the first ones are not all 0. */
static int close_to(const float *got, const float *want, int64_t n)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        error += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return size > 0 && error <= tolerance * tolerance * size;
}

static int same(const float *got, const float *want, int64_t n)
{
    return close_to(got, want, n) && (!device_is_host(&dev) || memcmp(got, want, (size_t)n * sizeof *got) == 0);
}

/* Tokens of a conversation. */
static void talk(uint64_t seed, uint64_t *tokens, int64_t n)
{
    rng r = {seed};
    for (int64_t i = 0; i < n; i++)
        tokens[i] = rng_next(&r);
}

static request admitted(world *w)
{
    request r;
    must(admit(&w->s, &r) == RSSM_OK, &w->s, "admit");
    return r;
}

static void retired(world *w, const request *r)
{
    must(retire(&w->s, r) == RSSM_OK, &w->s, "retire");
}

/* tokens[n] of one request alone in batches of `rows`; out [n][width], or NULL. */
static void go_on_in(world *w, request *r, int32_t rows, const uint64_t *tokens, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        feed(w, tokens + i, 1);
        must(decode_batch(&w->s, (request *const[]){r}, 1, rows) == RSSM_OK, &w->s, "decode_batch");
        if (out != NULL)
            fetch(w, 0, out + i * w->width);
    }
}

static void go_on(world *w, request *r, const uint64_t *tokens, int64_t n, float *out)
{
    go_on_in(w, r, 1, tokens, n, out);
}

/* Outputs of tokens[n] in a slot of its own: what everything else is compared with. */
static float *plain(world *w, const uint64_t *tokens, int64_t n)
{
    float *out = room((size_t)(n * w->width) * sizeof *out);
    request r = admitted(w);
    go_on(w, &r, tokens, n, out);
    retired(w, &r);
    return out;
}

/* The slots of n requests, on the device; until the next call. */
static const DLTensor *slots_of(world *w, const request *r, int64_t n)
{
    int32_t slots[MAX_BATCH];
    for (int64_t i = 0; i < n; i++)
        slots[i] = (int32_t)r[i].slot;
    put(&w->s, &w->other_slots.dl, slots, n);
    return &w->other_slots.dl;
}

/* ---- sections of the page --------------------------------------------------------------------------------------------- */

enum { TOKENS = 21, PROMPT = 10, TALKS = 3 }; /* longer than two rings; than one, with records pending */

/* The page gives each role what examples/common gives it, whose calls replayssm-run checks against fp64. */
static void check_roles(const world *w)
{
    int equal = 1;
    for (int32_t i = 0; i < w->s.model.num_linear_layers; i++) {
        const DLTensor **want = w->load.tensors + i * RSSM_T_COUNT, **got = w->s.layers[i].roles;
        for (int role = 0; role < RSSM_T_COUNT; role++) {
            equal &= (want[role] == NULL) == (got[role] == NULL);
            if (want[role] == NULL || got[role] == NULL || role == RSSM_T_OUT || role == RSSM_T_MIXED_QKV ||
                role == RSSM_T_MIXED_XBC)
                continue; /* (a layer's own here, one for all layers there) */
            equal &= tensor_data(want[role]) == tensor_data(got[role]);
        }
    }
    expect(equal, "bind_layer gives every role its tensor");
}

/* Requests come and go, change rows, and have neighbours and padding. */
static void check_batching(world *w)
{
    enum { ROWS = 5 };
    uint64_t tokens[TALKS][TOKENS];
    float *want[TALKS], *got = room((size_t)w->width * sizeof *got);
    request r[TALKS];
    int equal = 1, zero = 1;
    for (int i = 0; i < TALKS; i++) {
        talk((uint64_t)i, tokens[i], TOKENS);
        want[i] = plain(w, tokens[i], TOKENS);
    }
    for (int t = 0; t < TOKENS + TALKS - 1; t++) { /* request i comes at pass i */
        request *batch[TALKS];
        int who[TALKS], n = 0;
        uint64_t now[ROWS] = {99, 99, 99, 99, 99};
        if (t < TALKS)
            r[t] = admitted(w);
        for (int k = 0; k < TALKS; k++) {
            const int i = (k + t) % TALKS;
            if (t < i || t - i >= TOKENS)
                continue;
            now[n] = tokens[i][t - i], who[n] = i, batch[n++] = &r[i];
        }
        feed(w, now, ROWS);
        must(decode_batch(&w->s, batch, n, ROWS) == RSSM_OK, &w->s, "decode_batch");
        for (int b = 0; b < ROWS; b++) {
            fetch(w, b, got);
            if (b < n)
                equal &= same(got, want[who[b]] + (t - who[b]) * w->width, w->width);
            for (int64_t k = 0; b >= n && k < w->width; k++)
                zero &= got[k] == 0.0f;
        }
    }
    expect(equal, "a request gives the same whatever its row and neighbours");
    expect(zero, "padding rows are zero");
    for (int i = 0; i < TALKS; i++) {
        retired(w, &r[i]);
        expect(retire(&w->s, &r[i]) == RSSM_ERR_HANDLE, "a released handle is refused");
        free(want[i]);
    }
    free(got);
}

static void check_full_pool(world *w)
{
    request r[MAX_BATCH];
    int n = 0;
    while (n < MAX_BATCH && admit(&w->s, &r[n]) == RSSM_OK)
        n++;
    expect(n == w->s.pool.num_slots && w->s.err.status == RSSM_ERR_NO_SLOT, "a full pool says NO_SLOT");
    for (int i = 0; i < n; i++)
        retired(w, &r[i]);
}

static void check_deep(world *w)
{
    request r = admitted(w);
    const uint64_t token = 5;
    set_rows(&w->s, 2, 2);
    feed(w, &token, 1);
    put(&w->s, &w->s.slots, (int32_t[]){(int32_t)r.slot, -1}, 2);
    expect(pass(&w->s, RSSM_CHECK_DEEP) == RSSM_OK, "a pass with deep checks");
    put(&w->s, &w->s.slots, (int32_t[]){(int32_t)r.slot, (int32_t)r.slot}, 2);
    expect(pass(&w->s, RSSM_CHECK_DEEP) == RSSM_ERR_VALUE, "deep checks find a slot twice");
    retired(w, &r);
}

/* Materialised states of some slots, all layers. */
typedef struct exported {
    tensor states[MAX_LAYERS], conv[MAX_LAYERS];
    const DLTensor *state_list[MAX_LAYERS], *conv_list[MAX_LAYERS];
    int32_t layers;
} exported;

static exported *new_exported(const world *w, int64_t slots, int32_t order)
{
    const rssm_description *m = &w->s.model;
    const DLDataType f32 = {kDLFloat, 32, 1};
    exported *e = room(sizeof *e);
    e->layers = m->num_linear_layers;
    const int64_t rows = order == RSSM_STATE_VK ? m->V : m->K, columns = order == RSSM_STATE_VK ? m->K : m->V;
    for (int32_t i = 0; i < e->layers; i++) {
        int bad = tensor_create(&e->states[i], &dev, f32, 4, (int64_t[]){slots, m->HV, rows, columns}) |
                  tensor_create(&e->conv[i], &dev, f32, 3, (int64_t[]){slots, w->channels, m->conv_kernel - 1});
        must(bad == 0, NULL, "tensors");
        e->state_list[i] = &e->states[i].dl, e->conv_list[i] = &e->conv[i].dl;
    }
    return e;
}

static exported *export_all(world *w, const request *r, int64_t n, int32_t order)
{
    exported *e = new_exported(w, n, order);
    must(export_slots(&w->s, slots_of(w, r, n), e->state_list, e->conv_list, order) == RSSM_OK, &w->s, "export_slots");
    for (int32_t i = 0; i < e->layers; i++)
        must(tensor_download(&e->states[i]) == 0 && tensor_download(&e->conv[i]) == 0, NULL, "download");
    return e;
}

static void free_exported(exported *e)
{
    for (int32_t i = 0; i < e->layers; i++)
        tensor_free(&e->states[i]), tensor_free(&e->conv[i]);
    free(e);
}

static void check_prompts(world *w)
{
    uint64_t tokens[TOKENS];
    talk(40, tokens, TOKENS);
    float *want = plain(w, tokens, TOKENS), *after = room((size_t)((TOKENS - PROMPT) * w->width) * sizeof *after);
    for (int32_t order = RSSM_STATE_VK; order <= RSSM_STATE_KV; order++) {
        request there = admitted(w), here = admitted(w);
        go_on(w, &there, tokens, PROMPT, NULL);
        exported *e = export_all(w, &there, 1, order);
        go_on(w, &here, tokens, 3, NULL); /* an import replaces what was there */
        must(import_prompts(&w->s, slots_of(w, &here, 1), e->state_list, e->conv_list, order) == RSSM_OK, &w->s,
             "import_prompts");
        go_on(w, &here, tokens + PROMPT, TOKENS - PROMPT, after);
        expect(close_to(after, want + PROMPT * w->width, (TOKENS - PROMPT) * w->width), "an imported prompt goes on");
        go_on(w, &there, tokens + PROMPT, TOKENS - PROMPT, after);
        expect(same(after, want + PROMPT * w->width, (TOKENS - PROMPT) * w->width), "an exported slot is as it was");
        free_exported(e);
        retired(w, &there), retired(w, &here);
    }
    free(want), free(after);
}

/* The table of what becomes of the ring: a flush makes the pool's own state the whole one. */
static void check_flush(world *w)
{
    enum { FIRST = 12 };
    const server *s = &w->s;
    const DLTensor *A_log[MAX_LAYERS];
    uint64_t tokens[TOKENS];
    talk(45, tokens, TOKENS);
    float *want = plain(w, tokens, TOKENS), *got = room((size_t)w->width * sizeof *got);
    request r = admitted(w);
    go_on(w, &r, tokens, FIRST, NULL);
    exported *e = export_all(w, &r, 1, RSSM_STATE_VK);
    for (int32_t i = 0; i < e->layers; i++)
        A_log[i] = &s->layers[i].A_log;
    rssm_flush_args args = {.struct_size = sizeof args, .stream = s->stream};
    args.slots = slots_of(w, &r, 1);
    if (s->model.family == RSSM_FAMILY_MAMBA2)
        args.A_log = A_log, args.num_layers = (uint32_t)e->layers;
    must(s->slot->flush(s->ssm, &args, &w->s.err) == RSSM_OK, s, "flush");
    for (int32_t i = 0; i < e->layers; i++) {
        const DLTensor *pool = s->layers[i].roles[RSSM_T_STATE];
        float *state = room((size_t)e->states[i].bytes);
        const char *at = (const char *)tensor_data(pool) + r.slot * tensor_row_stride(pool) * 4;
        must(dev.to_host(&dev, state, at, e->states[i].bytes) == 0, NULL, "download");
        expect(close_to(state, e->states[i].host, e->states[i].bytes / 4),
               "after a flush the pool has the whole state");
        free(state);
    }
    go_on(w, &r, tokens + FIRST, 1, got);
    expect(close_to(got, want + FIRST * w->width, w->width), "a flushed slot goes on");
    retired(w, &r);
    free_exported(e), free(want), free(got);
}

static void check_forks(world *w)
{
    enum { PREFIX = 11, FORKS = 3 };
    uint64_t tokens[TOKENS];
    float *got = room((size_t)w->width * sizeof *got);
    request r[FORKS] = {admitted(w), admitted(w), admitted(w)};
    request *const all[] = {&r[0], &r[1], &r[2]};
    talk(50, tokens, TOKENS);
    float *want = plain(w, tokens, TOKENS);
    go_on(w, &r[0], tokens, PREFIX, NULL);
    put(&w->s, &w->s.slots, (int32_t[]){(int32_t)r[0].slot, (int32_t)r[0].slot}, 2);
    must(fork_slots(&w->s, &w->s.slots, slots_of(w, &r[1], 2)) == RSSM_OK, &w->s, "fork_slots");
    int equal = 1, apart = 0;
    for (int t = PREFIX; t < TOKENS; t++) { /* the last fork says something else */
        feed(w, (uint64_t[]){tokens[t], tokens[t], tokens[t] + 1}, FORKS);
        must(decode_batch(&w->s, all, FORKS, FORKS) == RSSM_OK, &w->s, "decode_batch");
        for (int b = 0; b < FORKS; b++) {
            fetch(w, b, got);
            const int as_plain = same(got, want + t * w->width, w->width);
            b < 2 ? (equal &= as_plain) : (apart |= !as_plain);
        }
    }
    expect(equal, "a fork goes on as its source, the source as if there were none");
    expect(apart, "forks are apart");
    for (int b = 0; b < FORKS; b++)
        retired(w, &r[b]);
    free(want), free(got);
}

/* `to`: where the slot comes back, the same server or another one. */
static void check_swap(world *w, world *to, const char *what)
{
    enum { FIRST = 13 };
    uint64_t tokens[TOKENS], length;
    talk(60, tokens, TOKENS);
    float *want = plain(w, tokens, TOKENS), *after = room((size_t)((TOKENS - FIRST) * w->width) * sizeof *after);
    must(w->s.slot->saved_bytes(w->s.ssm, &length, &w->s.err) == RSSM_OK, &w->s, "saved_bytes");
    unsigned char *bytes = room(length);
    request r = admitted(w), other;
    go_on(w, &r, tokens, FIRST, NULL);
    must(swap_out(&w->s, &r, bytes, length) == RSSM_OK, &w->s, "swap_out");
    expect(retire(&w->s, &r) == RSSM_ERR_HANDLE, "a swapped out request has given its slot back");
    other = admitted(w); /* a new tenant of it */
    go_on(w, &other, tokens, 5, NULL);
    bytes[length / 2] ^= 1;
    expect(swap_in(&to->s, &r, bytes, length) == RSSM_ERR_STREAM_DATA, "damaged bytes are refused");
    bytes[length / 2] ^= 1;
    must(swap_in(&to->s, &r, bytes, length) == RSSM_OK, &to->s, "swap_in");
    expect(w != to || r.slot != other.slot, "it came back in another slot");
    go_on(to, &r, tokens + FIRST, TOKENS - FIRST, after);
    expect(same(after, want + FIRST * w->width, (TOKENS - FIRST) * w->width), what);
    retired(to, &r), retired(w, &other);
    free(want), free(after), free(bytes);
}

/* Row i of the whole model's outputs that a rank should have. */
static int rank_agrees(const world *rank, const float *got, const float *whole)
{
    const rssm_description *m = &rank->s.model;
    const int64_t mine = (int64_t)m->HV * m->V, all = (int64_t)m->model_HV * m->V;
    int agrees = 1;
    for (int32_t i = 0; i < m->num_linear_layers; i++)
        agrees &= close_to(got + i * mine, whole + i * all + (int64_t)m->head_begin * m->V, mine);
    return agrees;
}

enum { RANKS = 2, PROMPTS = 2 };

/* What of the whole model's import is this rank's: views of its heads, and its channels. */
static void import_part(world *rank, const exported *e, const request *r)
{
    const rssm_description *m = &rank->s.model;
    exported *mine = new_exported(rank, PROMPTS, RSSM_STATE_VK);
    DLTensor views[MAX_LAYERS];
    const DLTensor *list[MAX_LAYERS];
    int64_t shape[MAX_LAYERS][4], strides[MAX_LAYERS][4];
    const int64_t bytes = 4 * (m->conv_kernel - 1);
    for (int32_t i = 0; i < m->num_linear_layers; i++) {
        views[i] = heads_of_rank(&rank->s, e->state_list[i], shape[i], strides[i]);
        list[i] = &views[i];
        for (int64_t b = 0; b < PROMPTS; b++)
            gather(m, (const char *)e->conv[i].host + b * whole_channels(m) * bytes, bytes,
                   (char *)mine->conv[i].host + b * rank->channels * bytes);
        must(tensor_upload(&mine->conv[i]) == 0, NULL, "upload");
    }
    must(import_prompts(&rank->s, slots_of(rank, r, PROMPTS), list, mine->conv_list, RSSM_STATE_VK) == RSSM_OK,
         &rank->s, "import_prompts");
    must(dev.sync(&dev) == 0, NULL, "sync");
    free_exported(mine);
}

/* Prompts that the whole model read go on in a rank. */
static void take_over(world *rank, const exported *e, uint64_t tokens[PROMPTS][TOKENS], float *const *want,
                      int64_t width)
{
    float *got = room((size_t)rank->width * sizeof *got);
    request r[PROMPTS] = {admitted(rank), admitted(rank)};
    int agrees = 1;
    import_part(rank, e, r);
    for (int b = 0; b < PROMPTS; b++) {
        for (int t = PROMPT; t < TOKENS; t++) {
            go_on(rank, &r[b], &tokens[b][t], 1, got);
            agrees &= rank_agrees(rank, got, want[b] + t * width);
        }
        retired(rank, &r[b]);
    }
    expect(agrees, "a rank goes on with its heads of the whole model's state");
    free(got);
}

static void check_ranks(world *w, const rssm_init_args *init)
{
    uint64_t tokens[PROMPTS][TOKENS];
    rank_facts facts[RANKS + 1];
    float *want[PROMPTS];
    request r[PROMPTS] = {admitted(w), admitted(w)};
    for (int b = 0; b < PROMPTS; b++) {
        talk(70 + (uint64_t)b, tokens[b], TOKENS);
        want[b] = plain(w, tokens[b], TOKENS);
        go_on(w, &r[b], tokens[b], PROMPT, NULL);
    }
    exported *e = export_all(w, r, PROMPTS, RSSM_STATE_VK);
    for (int i = 0; i < RANKS; i++) {
        world *rank = room(sizeof *rank);
        rssm_init_args one = *init;
        one.tp_size = RANKS, one.tp_rank = i, one.num_slots = init->num_slots - i;
        open_world(rank, w->s.api, &one, 0, w);
        facts[i] = (rank_facts){rank->s.model.layout_hash, rank->s.pool.num_slots};
        take_over(rank, e, tokens, want, w->width);
        close_world(rank);
        free(rank);
    }
    facts[RANKS] = (rank_facts){w->s.model.layout_hash, w->s.pool.num_slots};
    expect(agreed_slots(facts, RANKS) == init->num_slots - 1, "ranks agree on the least number of slots");
    expect(agreed_slots(facts, RANKS + 1) == 0, "an instance of another size is noticed");
    for (int b = 0; b < PROMPTS; b++)
        retired(w, &r[b]), free(want[b]);
    free_exported(e);
}

/* ---- speculation ------------------------------------------------------------------------------------------------------ */

enum { WINDOWS = 2, LONGEST = 4 };

/* A window for each request from its token `done` on: `len` tokens of which `keep` are right. */
typedef struct window {
    int32_t len, keep;
} window;

static void run_windows(world *w, request *r, uint64_t tokens[WINDOWS][TOKENS], const int64_t *done, const window *v)
{
    uint64_t now[WINDOWS * LONGEST];
    int32_t starts[WINDOWS + 1] = {0}, slots[WINDOWS], keep[WINDOWS];
    for (int b = 0; b < WINDOWS; b++) {
        for (int32_t i = 0; i < v[b].len; i++) /* a draft beyond `keep` is a token that the model would not say */
            now[starts[b] + i] = i < v[b].keep ? tokens[b][done[b] + i] : tokens[b][done[b] + i] ^ 0xbad;
        starts[b + 1] = starts[b] + v[b].len;
        slots[b] = (int32_t)r[b].slot, keep[b] = v[b].keep;
    }
    set_rows(&w->s, WINDOWS, starts[WINDOWS]);
    feed(w, now, starts[WINDOWS]);
    put(&w->s, &w->s.slots, slots, WINDOWS);
    put(&w->s, &w->s.cu_seqlens, starts, WINDOWS + 1);
    put(&w->s, &w->s.accepted, keep, WINDOWS);
    must(verify_pass(&w->s, LONGEST) == RSSM_OK, &w->s, "verify_pass");
    must(commit(&w->s) == RSSM_OK, &w->s, "commit");
}

/* The state of a slot is that of a plain run of its tokens; the convolution's history exactly. */
static void check_end(world *w, const request *windows, const uint64_t *tokens, int64_t n)
{
    request r = admitted(w);
    go_on(w, &r, tokens, n, NULL);
    exported *want = export_all(w, &r, 1, RSSM_STATE_VK), *got = export_all(w, windows, 1, RSSM_STATE_VK);
    for (int32_t i = 0; i < want->layers; i++) {
        expect(close_to(got->states[i].host, want->states[i].host, want->states[i].bytes / 4),
               "the state after windows");
        expect(memcmp(got->conv[i].host, want->conv[i].host, (size_t)want->conv[i].bytes) == 0,
               "the convolution's history after rejected drafts");
    }
    retired(w, &r);
    free_exported(want), free_exported(got);
}

static void check_speculation(world *w)
{
    static const window plan[][WINDOWS] = {{{4, 2}, {3, 3}}, {{1, 1}, {4, 0}}, {{4, 3}, {2, 1}}, {{0, 0}, {4, 4}},
                                           {{4, 4}, {3, 1}}, {{3, 2}, {4, 3}}, {{2, 2}, {4, 1}}};
    uint64_t tokens[WINDOWS][TOKENS];
    int64_t done[WINDOWS] = {0};
    float *want[WINDOWS], *got = room((size_t)w->width * sizeof *got);
    request r[WINDOWS] = {admitted(w), admitted(w)};
    int exact = 1, close = 1;
    for (int b = 0; b < WINDOWS; b++) {
        talk(80 + (uint64_t)b, tokens[b], TOKENS);
        want[b] = plain(w, tokens[b], TOKENS);
    }
    for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
        run_windows(w, r, tokens, done, plan[i]);
        int64_t at = 0;
        for (int b = 0; b < WINDOWS; b++) {
            for (int32_t t = 0; t < plan[i][b].keep; t++) {
                fetch(w, at + t, got);
                close &= close_to(got, want[b] + (done[b] + t) * w->width, w->width);
                exact &= i > 0 || same(got, want[b] + (done[b] + t) * w->width, w->width);
            }
            at += plan[i][b].len, done[b] += plan[i][b].keep;
        }
    }
    expect(exact, "a window before any fold gives what plain steps give");
    expect(close, "windows give what plain steps give");
    for (int b = 0; b < WINDOWS; b++) {
        check_end(w, &r[b], tokens[b], done[b]);
        go_on(w, &r[b], tokens[b] + done[b], 1, got); /* plain passes and windows may follow each other */
        expect(close_to(got, want[b] + done[b] * w->width, w->width), "a plain step after windows");
        retired(w, &r[b]);
        free(want[b]);
    }
    free(got);
}

/* ---- errors ------------------------------------------------------------------------------------------------------------ */

static void check_errors(world *w)
{
    uint64_t tokens[TOKENS];
    uint32_t word = 1;
    request r = admitted(w);
    talk(90, tokens, TOKENS);
    float *want = plain(w, tokens, 3), *got = room((size_t)w->width * sizeof *got);
    expect(take_faults(&w->s, &word) == RSSM_OK && word == 0, "no faults so far");
    go_on(w, &r, tokens, 1, NULL);

    w->s.layers[0].out.shape[1]++; /* a wrong tensor: a call that fails changes nothing */
    rssm_decode_args args = {.struct_size = sizeof args, .num_tensors = RSSM_T_COUNT, .tensors = w->s.layers[0].roles};
    args.stream = w->s.stream;
    expect(w->s.api->decode(w->s.ssm, &args, &w->s.err) == RSSM_ERR_SHAPE, "a wrong shape is refused");
    expect(w->s.err.role == RSSM_T_OUT && w->s.err.dim == 1 && can_go_on(&w->s), "and named; the instance goes on");
    w->s.layers[0].out.shape[1]--;
    go_on(w, &r, tokens + 1, 1, got);
    expect(same(got, want + w->width, w->width), "the next pass is right");

    set_rows(&w->s, 1, 1);
    put(&w->s, &w->s.cu_seqlens, (int32_t[]){0, 1}, 2);
    put(&w->s, &w->s.accepted, (int32_t[]){99}, 1);
    must(verify_pass(&w->s, LONGEST) == RSSM_OK && commit(&w->s) == RSSM_OK, &w->s, "a window");
    expect(take_faults(&w->s, &word) == RSSM_OK && word == RSSM_FAULT_ACCEPTED, "a bad accepted count is a fault");
    expect(take_faults(&w->s, &word) == RSSM_OK && word == 0, "taken faults are gone");
    go_on(w, &r, tokens + 2, 1, got);
    expect(close_to(got, want + 2 * w->width, w->width), "and the slot is as it was");
    retired(w, &r);
    free(want), free(got);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------------ */

static void cursor_of(world *w, int64_t slot, int32_t *cursor)
{
    const DLTensor *pool = w->s.layers[0].roles[RSSM_T_CURSOR];
    must(dev.to_host(&dev, cursor, (char *)tensor_data(pool) + slot * 4 * RSSM_CURSOR_WIDTH, 4 * RSSM_CURSOR_WIDTH) ==
             0,
         NULL, "download");
}

/* Two requests in a graph for four rows go on as the same tokens did eagerly. (A driver that computes nothing resets nothing
 * either: then all slots are new ones.) */
static void check_graphs(world *w, int computes)
{
    enum { ROWS = 4, N = 2 };
    uint64_t tokens[N][TOKENS];
    int32_t eager[RSSM_CURSOR_WIDTH], before[RSSM_CURSOR_WIDTH], replayed[RSSM_CURSOR_WIDTH];
    float *want[N], *got = room((size_t)w->width * sizeof *got);
    pass_graph g = {0};
    int equal = 1;
    for (int b = 0; b < N; b++) {
        talk(100 + (uint64_t)b, tokens[b], TOKENS);
        want[b] = computes ? plain(w, tokens[b], TOKENS) : NULL;
    }
    must(capture(&w->s, ROWS, &g) == RSSM_OK, &w->s, "capture");
    request r[N] = {admitted(w), admitted(w)}, alone = admitted(w);
    for (int t = 0; t < TOKENS; t++) {
        request *batch[] = {&r[t % 2], &r[1 - t % 2]}; /* rows change */
        feed(w, (uint64_t[]){tokens[t % 2][t], tokens[1 - t % 2][t]}, N);
        cursor_of(w, r[0].slot, before);
        must(replay(&w->s, &g, batch, N, ROWS) == RSSM_OK, &w->s, "replay");
        must(dev.sync(&dev) == 0, NULL, "sync");
        for (int b = 0; b < N && computes; b++) {
            fetch(w, b, got);
            equal &= close_to(got, want[(t + b) % 2] + t * w->width, w->width);
        }
    }
    if (computes)
        expect(equal, "a graph gives what eager passes give");
    go_on_in(w, &alone, ROWS, tokens[0], TOKENS, NULL); /* as many rows: small batches may flush at other times */
    cursor_of(w, alone.slot, eager);
    cursor_of(w, r[0].slot, replayed);
    expect(memcmp(eager, replayed, sizeof eager) == 0 && memcmp(before, replayed, sizeof before) != 0,
           "a graph moves the cursors");
    retired(w, &r[0]), retired(w, &r[1]), retired(w, &alone);
    expect(cuGraphExecDestroy(g.exec) == CUDA_SUCCESS && cuGraphDestroy(g.graph) == CUDA_SUCCESS, "graphs end");
    for (int b = 0; b < N; b++)
        free(want[b]);
    free(got);
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

static void check_page(world *w, const rssm_init_args *init)
{
    world *other = room(sizeof *other);
    check_roles(w);
    check_batching(w);
    check_full_pool(w);
    check_deep(w);
    check_prompts(w);
    check_flush(w);
    check_forks(w);
    check_swap(w, w, "a preempted slot resumes");
    open_world(other, w->s.api, init, 1, w);
    expect(w->s.model.layout_hash == other->s.model.layout_hash, "the same layout");
    check_swap(w, other, "another server goes on");
    close_world(other);
    free(other);
    check_ranks(w, init);
    check_speculation(w);
    check_errors(w);
}

/* The life of a server. */
static void run(const rssm_api *api, const rssm_init_args *init, int fake)
{
    world *w = room(sizeof *w);
    open_world(w, api, init, 0, NULL);
    if (!fake)
        check_page(w, init);
    if (!device_is_host(&dev))
        check_graphs(w, !fake);
    close_world(w);
    free(w);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "usage: check_hosts PLUGIN.so CONFIG.json LAYERS [cuda|fake]\n"), 64;
    const char *where = argc > 4 ? argv[4] : "cpu";
    const int fake = strcmp(where, "fake") == 0;
    void *library;
    const host say = {.program = "check_hosts"};
    const rssm_api *api = load_plugin(argv[1], &library);
    must(api != NULL, NULL, "load_plugin");
    must(device_open(&dev, fake ? "cuda" : where, &say) == EXIT_OK, NULL, "device");
    if (!device_is_host(&dev))
        must(cuStreamCreate((CUstream *)&cuda_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS, NULL, "a stream");

    for (int i = 0; i < RINGS; i++) {
        rssm_init_args init = options(argv[2]);
        init.device_type = (int32_t)dev.dl.device_type;
        init.layer_end = atoi(argv[3]);
        init.ring_dtype = rings[i].dtype;
        tolerance = rings[i].tolerance;
        run(api, &init, fake);
    }
    if (cuda_stream != NULL)
        cuStreamDestroy(cuda_stream);
    device_close(&dev);
    dlclose(library);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
