/* replayssm-bench on a GPU: which cases there are, and the ones that the command line asks for. */
#include "bench_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gpu_shape shapes[] = {
    {"kda-32", RSSM_FAMILY_KDA, {32, 32, 128, 128}, 1, 1},
    {"kda-24", RSSM_FAMILY_KDA, {24, 24, 128, 128}, 0, 0},
    {"kda-8", RSSM_FAMILY_KDA, {8, 8, 128, 128}, 0, 0},
    {"gdn-16/32", RSSM_FAMILY_GDN, {16, 32, 128, 128}, 1, 1},
    {"gdn-16/64", RSSM_FAMILY_GDN, {16, 64, 128, 128}, 0, 0},
    {"gdn-4/8", RSSM_FAMILY_GDN, {4, 8, 128, 128}, 0, 0},
    {"mamba2-64x64x128", RSSM_FAMILY_MAMBA2, {8, 64, 128, 64}, 1, 1},
    {"mamba2-128x64x128", RSSM_FAMILY_MAMBA2, {8, 128, 128, 64}, 0, 0},
    {"mamba2-128x80x128", RSSM_FAMILY_MAMBA2, {8, 128, 128, 80}, 0, 0},
    {"mamba2-24x128x256", RSSM_FAMILY_MAMBA2, {1, 24, 256, 128}, 0, 0},
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

static const int32_t states[] = {RSSM_DTYPE_FLOAT32, RSSM_DTYPE_BFLOAT16, RSSM_DTYPE_FLOAT16};
enum { NUM_STATES = sizeof states / sizeof states[0] };

static const option_list default_batches = {11, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}};
static const option_list default_together = {3, {32, 128, 512}};

const char *bench_gpu_type(int32_t dtype)
{
    static const char *const names[] = {"", "fp32", "bf16", "fp16"};
    return names[dtype];
}

const char *bench_gpu_family(const gpu_shape *shape)
{
    static const char *const names[] = {"", "kda", "gdn", "mamba2"};
    return names[shape->family];
}

static void name_case(const gpu_case *c, char *name, size_t size)
{
    char window[16] = "";
    if (c->tokens > 1)
        snprintf(window, sizeof window, "-T%d", (int)c->tokens);
    snprintf(name, size, "%s-%s-b%" PRId64 "%s", c->shape->name, bench_gpu_type(c->state), c->batch, window);
}

/* Whether one of the filter's parts, which commas separate, is in the name. A part that ends in a digit must end there. */
int bench_gpu_matches(const char *filter, const char *name)
{
    if (filter == NULL)
        return 1;
    char part[64];
    for (const char *at = filter; *at != 0; at += strcspn(at, ","), at += *at == ',') {
        const size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof part)
            continue;
        memcpy(part, at, length);
        part[length] = 0;
        for (const char *found = strstr(name, part); found != NULL; found = strstr(found + 1, part))
            if (part[length - 1] < '0' || part[length - 1] > '9' || found[length] < '0' || found[length] > '9')
                return 1;
    }
    return 0;
}

static int has(const option_list *list, int64_t value)
{
    for (int64_t i = 0; i < list->count; i++)
        if (list->values[i] == value)
            return 1;
    return 0;
}

static const option_list *batches(const bench_options *o)
{
    return o->batch.count > 0 ? &o->batch : &default_batches;
}

/* Whether the command line asks for the shape and dtype; batches are as listed. */
static int wanted(const bench_options *o, const gpu_shape *shape, int32_t state)
{
    if (o->family != NULL && strncmp(o->family, shape->name, strlen(o->family)) != 0)
        return 0;
    if (o->quick && !shape->main)
        return 0;
    if (o->state != 0)
        return o->state == state;
    return state != RSSM_DTYPE_FLOAT16 || (shape->halves && !o->quick);
}

/* A shape's figures of one kind and dtype for every batch. */
typedef struct gpu_series {
    const gpu_shape *shape;
    int32_t state;
    int64_t tokens, ring_length;
} gpu_series;

/* NULL: the filter leaves it out. */
static gpu_outcome *next_outcome(gpu_bench *b, const gpu_series *s, int64_t batch)
{
    const bench_options *o = b->common->o;
    const option_list *rows_together = o->together.count > 0 ? &o->together : &default_together;
    gpu_outcome *out = &b->outcomes[b->count];
    const int plain = s->tokens == 1;
    *out = (gpu_outcome){.what = {.shape = s->shape,
                                  .state = s->state,
                                  .tokens = s->tokens,
                                  .batch = batch,
                                  .ring_length = s->ring_length,
                                  .together = plain && !o->steady && has(rows_together, batch),
                                  .host_cost = plain && s->shape->main && s->state == RSSM_DTYPE_FLOAT32}};
    name_case(&out->what, out->name, sizeof out->name);
    return bench_gpu_matches(o->filter, out->name) ? out : NULL;
}

void bench_gpu_leave_out(gpu_bench *b, const char *name, const char *why)
{
    b->skipped++;
    fprintf(b->text, "%-30s left out: %s\n", name, why);
}

static int leave_out(gpu_bench *b, const gpu_outcome *out, const char *why)
{
    bench_gpu_leave_out(b, out->name, why);
    return EXIT_OK;
}

static int run_case(gpu_bench *b, gpu_outcome *out)
{
    static const char *const why[] = {
        [FATE_NO_ROOM] = "the device has too little memory", [FATE_MISSING] = "not in this build"};
    fate how;
    if (stats_seconds() > b->deadline)
        return leave_out(b, out, "no time is left (--seconds)");
    int code = bench_gpu_case(b, out, &how);
    if (code != EXIT_OK)
        return code;
    if (how != FATE_DONE)
        return leave_out(b, out, why[how]);
    bench_gpu_print_case(b, out);
    b->count++;
    return EXIT_OK;
}

static int run_series(gpu_bench *b, const gpu_series *s)
{
    const option_list *list = batches(b->common->o);
    int code = EXIT_OK;
    for (int64_t i = 0; i < list->count && code == EXIT_OK; i++) {
        gpu_outcome *out = next_outcome(b, s, list->values[i]);
        code = out != NULL ? run_case(b, out) : EXIT_OK;
    }
    return code;
}

static int run_shape(gpu_bench *b, const gpu_shape *shape, int32_t state)
{
    const bench_options *o = b->common->o;
    int code = EXIT_OK;
    for (int64_t i = 0; i < o->tokens.count * o->ring.count && code == EXIT_OK; i++) {
        const gpu_series s = {shape, state, o->tokens.values[i / o->ring.count], o->ring.values[i % o->ring.count]};
        if (s.ring_length % s.tokens == 0)
            code = run_series(b, &s);
    }
    return code;
}

static int run_cases(gpu_bench *b)
{
    const bench_options *o = b->common->o;
    int code = EXIT_OK;
    b->most = b->num_shapes * NUM_STATES * o->tokens.count * o->ring.count * batches(o)->count;
    b->outcomes = calloc((size_t)b->most, sizeof *b->outcomes);
    if (b->outcomes == NULL)
        return host_refuse(&b->common->base, "out of memory");
    bench_gpu_print_head(b);
    for (int64_t i = 0; i < b->num_shapes && code == EXIT_OK; i++)
        for (int s = 0; s < NUM_STATES && code == EXIT_OK; s++)
            if (wanted(o, &b->shapes[i], states[s]))
                code = run_shape(b, &b->shapes[i], states[s]);
    if (code == EXIT_OK && b->count == 0)
        code = host_refuse(&b->common->base, "no case was run: see --filter, --family, --batch and --seconds");
    if (code == EXIT_OK)
        bench_gpu_print_bars(b);
    if (code == EXIT_OK && o->json)
        bench_gpu_json(b);
    return code;
}

/* --slots and --conv: these instead of steps. */
static int run_operations(gpu_bench *b)
{
    const bench_options *o = b->common->o;
    slots_report slots = {.count = 0};
    conv_report conv = {.count = 0};
    int code = o->slots ? bench_slots(b, &slots) : EXIT_OK;
    if (code == EXIT_OK && o->conv)
        code = bench_conv(b, &conv);
    if (code == EXIT_OK && slots.count + conv.count == 0)
        code = host_refuse(&b->common->base, "no case was run: see --filter, --family, --state and --seconds");
    if (code == EXIT_OK && o->json) {
        json out = bench_gpu_json_begin(b, OPS_ROUNDS);
        if (o->slots)
            bench_slots_json(&out, &slots);
        if (o->conv)
            bench_conv_json(&out, &conv);
        json_end(&out);
    }
    free(slots.cases);
    free(conv.cases);
    return code;
}

/* The shapes of --heads, one for each family, or the table's. */
static void choose_shapes(gpu_bench *b)
{
    const option_list *heads = &b->common->o->heads;
    b->shapes = shapes;
    b->num_shapes = NUM_SHAPES;
    if (heads->count != 4)
        return;
    for (int i = 0; i < NUM_FAMILIES; i++) {
        gpu_shape *shape = &b->custom[i];
        *shape = (gpu_shape){.family = bench_families[i].family, .main = 1, .halves = 1};
        memcpy(shape->heads, heads->values, sizeof shape->heads);
        snprintf(shape->name, sizeof shape->name, "%s-%d/%d-%dx%d", bench_families[i].name, (int)heads->values[0],
                 (int)heads->values[1], (int)heads->values[3], (int)heads->values[2]);
    }
    b->shapes = b->custom;
    b->num_shapes = NUM_FAMILIES;
}

int bench_cuda(bench *common)
{
    const bench_options *o = common->o;
    for (int64_t i = 0; i < o->tokens.count; i++)
        if (!bench_gpu_tokens(o->tokens.values[i])) {
            fprintf(stderr, "%s: bad value for --tokens: need 1, 2, 4 or 8\n", common->base.program);
            return EXIT_BAD_USAGE;
        }
    gpu_bench b = {
        .common = common, .text = o->json ? stderr : stdout, .deadline = stats_seconds() + (double)o->seconds};
    choose_shapes(&b);
    int code = device_open(&common->dev, o->device, &common->base);
    if (code == EXIT_OK)
        code = gpu_open(&b.g, &common->dev, &common->base);
    if (code == EXIT_OK)
        code = o->slots || o->conv ? run_operations(&b) : run_cases(&b);
    gpu_close(&b.g);
    free(b.outcomes);
    return code;
}
