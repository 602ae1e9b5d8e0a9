/* The short convolution: plain passes and windows against its sum in double, windows bit by bit against plain passes of the
 * same tokens; ring columns that hold no history are NaN, everything that may not be written is compared byte by byte. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "step_case.h"

enum { CONV_IN, CONV_WEIGHT, CONV_BIAS, CONV_OUT, CONV_RING, CONV_ROWS, CONV_MEM };

typedef struct conv_case {
    rssm_convolution conv;
    guarded mem[CONV_MEM];
    int32_t slot[MAX_ROWS], at[MAX_ROWS], start[MAX_ROWS], len[MAX_ROWS];
    uint32_t fault;
} conv_case;

typedef struct conv_wish {
    int32_t channels, tokens, max_T;
} conv_wish;

static void choose(conv_case *c, random_state *r, const conv_wish *wish)
{
    rssm_convolution *v = &c->conv;
    int32_t drafts = (int32_t)random_between(r, 0, 2) * 3; /* of the pool; a plain pass works on any */
    v->max_T = wish->max_T ? wish->max_T : random_between(r, 0, 1) ? 1 : drafts + 1;
    drafts = v->max_T > drafts + 1 ? v->max_T - 1 : drafts;
    v->width = (int32_t)random_between(r, 2, TEST_WIDTH);
    v->conv_len = v->width - 1 + (drafts > 0 ? drafts + 1 : 0);
    v->channels = wish->channels ? wish->channels : (int32_t)(random_dim(r) * random_between(r, 1, 3));
    v->tokens = wish->tokens ? wish->tokens : random_between(r, 1, 14);
    int32_t at = 0;
    for (v->B = 0; v->B < (int32_t)v->tokens; v->B++) {
        int32_t len = v->max_T == 1 ? 1 : (int32_t)random_between(r, 0, v->max_T);
        if (at + len > v->tokens)
            break;
        c->start[v->B] = at;
        c->len[v->B] = len;
        at += len;
    }
    v->S = v->B + random_between(r, 1, 3);
    v->pad_slot = random_between(r, 0, 1) ? 0 : -1;
    for (int32_t b = 0; b < v->B; b++) {
        c->slot[b] = random_between(r, 0, 4) ? (int32_t)(v->S - 1 - b) : -1;
        c->at[b] = (int32_t)random_between(r, 0, v->conv_len - 1);
        if (c->slot[b] == v->pad_slot)
            c->slot[b] = -1;
    }
}

static rssm_input input(conv_case *c, random_state *r, int which, int32_t dtype, int64_t rows, int64_t width)
{
    int64_t row = rows == 1 ? width : width + random_between(r, 0, 5), e = element_bytes(dtype);
    c->mem[which] = guarded_new(rows * row * e, e * random_between(r, 0, 7));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            element_set(dtype, c->mem[which].data, i * row + j, random_normal(r));
    return (rssm_input){.data = c->mem[which].data, .row = row, .dtype = dtype};
}

static void write_rows(conv_case *c)
{
    for (int32_t b = 0; b < c->conv.B; b++) {
        const int32_t values[8] = {c->slot[b], 0, 0, 0, c->at[b], c->start[b], c->len[b], 0};
        memcpy(c->mem[CONV_ROWS].data + b * c->conv.rows_row * 4, values, sizeof values);
    }
}

static void conv_case_make(conv_case *c, random_state *r, const conv_wish *wish)
{
    rssm_convolution *v = &c->conv;
    memset(c, 0, sizeof *c);
    choose(c, r, wish);
    int32_t io = (int32_t)random_between(r, 1, 3);
    int64_t e = element_bytes(io);
    v->in = input(c, r, CONV_IN, io, v->tokens, v->channels);
    v->weight = input(c, r, CONV_WEIGHT, (int32_t)random_between(r, 1, 3), 1, (int64_t)v->channels * v->width);
    if (random_between(r, 0, 1))
        v->bias = input(c, r, CONV_BIAS, (int32_t)random_between(r, 1, 3), 1, v->channels);
    v->out_row = v->channels + random_between(r, 0, 3);
    c->mem[CONV_OUT] = guarded_new(v->tokens * v->out_row * e, e * random_between(r, 0, 7));
    v->out = c->mem[CONV_OUT].data;
    v->conv = (rssm_pooled){.slot = (int64_t)v->channels * v->conv_len + random_between(r, 0, 2) * 8, .dtype = io};
    c->mem[CONV_RING] = guarded_new(v->S * v->conv.slot * e, 16 * random_between(r, 0, 3));
    v->conv.data = c->mem[CONV_RING].data;
    for (int32_t b = 0; b < v->B; b++)
        for (int64_t i = 1; c->slot[b] >= 0 && i < v->width; i++)
            for (int64_t channel = 0; channel < v->channels; channel++)
                element_set(io, v->conv.data,
                            c->slot[b] * v->conv.slot + channel * v->conv_len +
                                (c->at[b] + v->conv_len - i) % v->conv_len,
                            random_normal(r));
    v->rows_row = 8 + random_between(r, 0, 2);
    c->mem[CONV_ROWS] = guarded_new((v->B + 1) * v->rows_row * 4, 4 * random_between(r, 0, 3));
    v->rows = (const int32_t *)(const void *)c->mem[CONV_ROWS].data;
    v->fault = &c->fault;
    write_rows(c);
}

static void conv_case_copy(conv_case *to, const conv_case *from)
{
    *to = *from;
    for (int i = 0; i < CONV_MEM; i++)
        if (from->mem[i].raw) {
            to->mem[i] = guarded_new(from->mem[i].bytes, (from->mem[i].data - from->mem[i].raw) % 64);
            memcpy(to->mem[i].data, from->mem[i].data, (size_t)from->mem[i].bytes);
        }
    to->conv.in.data = to->mem[CONV_IN].data;
    to->conv.weight.data = to->mem[CONV_WEIGHT].data;
    to->conv.bias.data = to->mem[CONV_BIAS].data;
    to->conv.out = to->mem[CONV_OUT].data;
    to->conv.conv.data = to->mem[CONV_RING].data;
    to->conv.rows = (const int32_t *)(const void *)to->mem[CONV_ROWS].data;
    to->conv.fault = &to->fault;
}

static void conv_case_free(conv_case *c)
{
    for (int i = 0; i < CONV_MEM; i++)
        guarded_free(&c->mem[i]);
}

static void run(void *ctx, const conv_case *c)
{
    rssm_error err = {.struct_size = sizeof err};
    check(rssm_cpu_backend()->conv(ctx, &c->conv, NULL, &err) == RSSM_OK, "conv: %s", err.message);
}

static void describe(const char *level, const conv_case *c, uint64_t seed)
{
    const rssm_convolution *v = &c->conv;
    check_context("%s conv rows=%d tokens=%d max_T=%d channels=%d width=%d columns=%d io=%s weight=%s case %llu", level,
                  v->B, (int)v->tokens, v->max_T, v->channels, v->width, v->conv_len, element_name(v->in.dtype),
                  element_name(v->weight.dtype), (unsigned long long)seed);
}

/* x_t of a channel, t relative to the row's first token: from the ring before it, from the inputs after. */
static double x_at(const conv_case *before, int32_t b, int64_t channel, int64_t t)
{
    const rssm_convolution *v = &before->conv;
    if (t >= 0)
        return element_get(v->in.dtype, v->in.data, (before->start[b] + t) * v->in.row + channel);
    int64_t column = (before->at[b] + v->conv_len + t) % v->conv_len;
    return element_get(v->conv.dtype, v->conv.data, before->slot[b] * v->conv.slot + channel * v->conv_len + column);
}

static void check_token(const conv_case *before, const conv_case *after, int32_t b, int32_t j, bar *bars)
{
    const rssm_convolution *v = &after->conv;
    int64_t bad = 0;
    for (int64_t channel = 0; channel < v->channels; channel++) {
        double sum = v->bias.data ? element_get(v->bias.dtype, v->bias.data, channel) : 0, scale = fabs(sum);
        for (int64_t i = 0; before->slot[b] >= 0 && i < v->width; i++) {
            double term = element_get(v->weight.dtype, v->weight.data, channel * v->width + i) *
                          x_at(before, b, channel, j - v->width + 1 + i);
            sum += term;
            scale += fabs(term);
        }
        double exact = before->slot[b] >= 0 ? sum / (1 + exp(-sum)) : 0;
        double got = element_get(v->in.dtype, v->out, (after->start[b] + j) * v->out_row + channel);
        bad += !is_near(v->in.dtype, got, exact, before->slot[b] >= 0 ? scale : 0,
                        v->in.dtype == RSSM_DTYPE_FLOAT32 ? 2 : 0.51);
        double rounding = element_round(v->in.dtype, exact) - exact;
        bar *bar = &bars[v->in.dtype];
        bar->error += (got - exact) * (got - exact);
        bar->exact += exact * exact;
        bar->rounding += rounding * rounding;
    }
    check(bad == 0, "row %d token %d: %lld outputs are wrong", b, j, (long long)bad);
}

/* Written, and nothing else: the outputs of all rows, the columns of the tokens, which are the inputs as they are. */
static void check_written(const conv_case *before, const conv_case *after)
{
    conv_case expected;
    conv_case_copy(&expected, before);
    const rssm_convolution *v = &expected.conv;
    int64_t e = element_bytes(v->in.dtype);
    for (int32_t b = 0; b < v->B; b++)
        for (int64_t j = 0; j < expected.len[b]; j++) {
            int64_t token = expected.start[b] + j;
            memcpy((char *)v->out + token * v->out_row * e, (char *)after->conv.out + token * v->out_row * e,
                   (size_t)(v->channels * e));
            for (int64_t channel = 0; expected.slot[b] >= 0 && channel < v->channels; channel++)
                memcpy((char *)v->conv.data + (expected.slot[b] * v->conv.slot + channel * v->conv_len +
                                               (expected.at[b] + j) % v->conv_len) *
                                                  e,
                       (const char *)v->in.data + (token * v->in.row + channel) * e, (size_t)e);
        }
    for (int i = 0; i < CONV_MEM; i++)
        if (after->mem[i].raw) {
            check(memcmp(expected.mem[i].data, after->mem[i].data, (size_t)after->mem[i].bytes) == 0,
                  "array %d: bytes changed that may not, or columns are wrong", i);
            check(guarded_intact(&after->mem[i]), "guard bytes of array %d", i);
        }
    conv_case_free(&expected);
}

/* The window's tokens one after the other in plain passes. */
static void check_bits(void *ctx, const conv_case *before, const conv_case *after)
{
    conv_case plain;
    conv_case_copy(&plain, before);
    rssm_convolution one = plain.conv;
    int32_t row[8] = {0};
    one.B = one.max_T = 1;
    one.tokens = 1;
    one.rows = row;
    int64_t e = element_bytes(one.in.dtype);
    for (int32_t b = 0; b < plain.conv.B; b++)
        for (int32_t j = 0; j < plain.len[b]; j++) {
            int64_t token = plain.start[b] + j;
            row[0] = plain.slot[b];
            row[4] = (plain.at[b] + j) % one.conv_len;
            one.in.data = (const char *)plain.conv.in.data + token * one.in.row * e;
            one.out = (char *)plain.conv.out + token * one.out_row * e;
            rssm_error err = {.struct_size = sizeof err};
            rssm_cpu_backend()->conv(ctx, &one, NULL, &err);
        }
    for (int i = 0; i < CONV_MEM; i++)
        check(!after->mem[i].raw || memcmp(plain.mem[i].data, after->mem[i].data, (size_t)after->mem[i].bytes) == 0,
              "array %d: other bytes than plain passes leave", i);
    conv_case_free(&plain);
}

static void check_one(const level_under_test *level, void *ctx, uint64_t seed, bar *bars)
{
    random_state r = {seed};
    conv_wish anything = {0};
    conv_case before, after;
    conv_case_make(&before, &r, &anything);
    conv_case_copy(&after, &before);
    describe(level->name, &before, seed);
    run(ctx, &after);
    check(after.fault == 0, "fault word %u", (unsigned)after.fault);
    for (int32_t b = 0; b < before.conv.B; b++)
        for (int32_t j = 0; j < before.len[b]; j++)
            check_token(&before, &after, b, j, bars);
    check_written(&before, &after);
    check_bits(ctx, &before, &after);
    conv_case_free(&after);
    conv_case_free(&before);
}

static void check_thread_bits(const level_under_test *level, uint64_t seed)
{
    random_state r = {seed};
    conv_wish wish = {.channels = 3001, .tokens = 20, .max_T = 4};
    conv_case before, first;
    conv_case_make(&before, &r, &wish);
    for (int32_t threads = 1; threads <= 5; threads++) {
        void *ctx = open_level(level, threads);
        conv_case mine;
        conv_case_copy(&mine, &before);
        describe(level->name, &before, (uint64_t)threads);
        run(ctx, &mine);
        if (threads == 1)
            conv_case_copy(&first, &mine);
        for (int i = 0; i < CONV_MEM; i++)
            check(!mine.mem[i].raw || memcmp(first.mem[i].data, mine.mem[i].data, (size_t)mine.mem[i].bytes) == 0,
                  "%d threads: other bits", threads);
        conv_case_free(&mine);
        rssm_cpu_backend()->close(ctx);
    }
    conv_case_free(&first);
    conv_case_free(&before);
}

/* conv, start, len of row 0 of a window (max_T 4, 9 tokens of which row 1 has token 4), and the tokens that get zeros: of those
 * out of range none. */
static const struct bad_row {
    int32_t conv, start, len;
    uint32_t fault;
    int32_t zeros_from, zeros;
} bad_rows[] = {{-1, 0, 2, RSSM_FAULTBIT_CURSOR, 0, 2},
                {100, 0, 2, RSSM_FAULTBIT_CURSOR, 0, 2},
                {0, 0, 5, RSSM_FAULTBIT_SEQLENS, 0, 0},
                {0, 0, -1, RSSM_FAULTBIT_SEQLENS, 0, 0},
                {0, 7, 4, RSSM_FAULTBIT_SEQLENS, 0, 0},
                {0, INT32_MAX, 4, RSSM_FAULTBIT_SEQLENS, 0, 0},
                {0, -2, 3, RSSM_FAULTBIT_SEQLENS, 0, 0},
                {INT32_MIN, INT32_MIN, 1, RSSM_FAULTBIT_SEQLENS | RSSM_FAULTBIT_CURSOR, 0, 0}};

static void check_bad_row(const level_under_test *level, void *ctx, const struct bad_row *bad, random_state *r)
{
    conv_wish wish = {.channels = 41, .tokens = 9, .max_T = 4};
    conv_case before, after;
    do {
        conv_case_make(&before, r, &wish);
        if (before.conv.B < 2 || before.slot[0] < 0)
            conv_case_free(&before);
    } while (before.conv.B < 2 || before.slot[0] < 0);
    before.conv.B = 2;
    before.start[0] = bad->start, before.len[0] = bad->len, before.at[0] = bad->conv;
    before.start[1] = 4, before.len[1] = 1;
    write_rows(&before);
    conv_case_copy(&after, &before);
    describe(level->name, &before, (uint64_t)(bad - bad_rows));
    run(ctx, &after);
    check(after.fault == bad->fault, "fault word %u, not %u", (unsigned)after.fault, (unsigned)bad->fault);
    before.slot[0] = -1;
    before.start[0] = bad->zeros_from, before.len[0] = bad->zeros;
    check_written(&before, &after);
    bar none[4];
    memset(none, 0, sizeof none);
    after.start[0] = bad->zeros_from;
    for (int32_t j = 0; j < bad->zeros; j++)
        check_token(&before, &after, 0, j, none);
    conv_case_free(&after);
    conv_case_free(&before);
}

void check_conv(const test_options *options)
{
    level_under_test levels[MAX_LEVELS];
    int32_t n = available_levels(levels);
    uint64_t seed = options->seed * 1000000 + 9000;
    for (int32_t i = 0; i < n; i++) {
        void *ctx = open_level(&levels[i], 1);
        level_bars bars;
        random_state r = {seed};
        memset(&bars, 0, sizeof bars);
        for (uint64_t j = 0; j < (options->is_long ? 4000 : 200); j++)
            check_one(&levels[i], ctx, seed + j, bars.out);
        for (size_t j = 0; j < sizeof bad_rows / sizeof bad_rows[0]; j++)
            check_bad_row(&levels[i], ctx, &bad_rows[j], &r);
        check_context("%s convolutions", levels[i].name);
        for (int32_t dtype = 1; dtype <= 3; dtype++)
            bars.out[dtype].n = 1 << 20;
        bars_check(&levels[i], &bars);
        rssm_cpu_backend()->close(ctx);
        check_thread_bits(&levels[i], seed);
    }
}
