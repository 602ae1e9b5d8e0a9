/* Rows and cursors as the CUDA kernels read and move them, compiled for the host, beside the CPU backend on the same bytes: good
 * ones, bad ones, forged ones. The two must agree in every row, cursor and fault bit. (What a thread does alone; the ordered
 * step_begin and the work of a pass need a GPU: tests/gpu.sh.) */
#include "gpu/on_host.h"

#include <cstdio>
#include <cstdlib>

#include "cuda/conv.cu"
#include "cuda/pool.cu"
#include "cuda/verify.cuh"
#include "cuda/verify_cursor.cu"

#include "gpu/numbers.h"

extern "C" {
#include "cpu/cpu.h"
}

enum { ROUNDS = 20000, SLOTS = 5, ROWS = 4, ROW_STRIDE = 9, CURSOR_STRIDE = 5, TOKENS = 9 };

unsigned char rings[1]; /* conv.cu's shared memory: not touched here */

static int passed, failed;

/* low .. high, and now and then one beside them or far away. */
static int32_t near(int32_t low, int32_t high)
{
    const int32_t far[] = {low - 1, high + 1, -1, INT32_MIN, INT32_MAX, high + 2};
    if (draw() % 24 == 0)
        return far[draw() % 6];
    return low + (int32_t)(draw() % (uint64_t)(high - low + 1));
}

/* Both sides start from the same bytes. */
struct side {
    int32_t rows[ROWS * ROW_STRIDE];
    int32_t cursor[SLOTS * CURSOR_STRIDE];
    uint32_t fault;
};

struct world {
    int32_t L, R, Tm, conv_len;
    int32_t slots[ROWS], force[ROWS], accepted[ROWS];
    int64_t ends[ROWS + 1];
    side cpu, gpu;
};

static void check(const char *what, const world &w, int round)
{
    if (memcmp(&w.cpu, &w.gpu, sizeof w.cpu) == 0) {
        passed++;
        return;
    }
    if (failed++ > 5)
        return;
    printf("%s differs in round %d: fault %x on the CPU, %x on CUDA\n", what, round, w.cpu.fault, w.gpu.fault);
    for (int b = 0; b < ROWS; b++)
        for (int i = 0; i < RSSM_STEP_ROW_WIDTH; i++)
            printf("%d/%d%s", w.cpu.rows[b * ROW_STRIDE + i], w.gpu.rows[b * ROW_STRIDE + i], i == 7 ? "\n" : " ");
}

/* A row that verify_begin or step_begin could have written for the slot's cursor, bent in one place half of the time. */
static void forge_row(const world &w, const int32_t *cursor, int32_t slot, int32_t *row)
{
    const int32_t len = near(0, w.Tm), count = cursor[1];
    const int32_t made[RSSM_STEP_ROW_WIDTH] = {slot,      cursor[0],           count, (int64_t)count + len > w.L,
                                               cursor[2], near(0, TOKENS - 1), len,   0};
    memcpy(row, made, sizeof made);
    if (draw() % 2) {
        const int32_t bent[7] = {near(0, SLOTS - 1),  near(0, w.R - 1), near(0, w.L),     near(0, 1),
                                 near(0, w.conv_len), near(0, TOKENS),  near(0, w.Tm + 1)};
        const int at = (int)(draw() % 7);
        row[at] = bent[at];
    }
}

/* Where a window's pass leaves the cursor: behind the fold. */
static void fold(const world &w, const int32_t *row, int32_t *cursor)
{
    if (row[3] != 1 || row[2] < 0 || row[2] > w.L || row[1] < 0 || row[1] >= w.R)
        return;
    cursor[0] = (row[1] + row[2]) % w.R;
    cursor[1] = cursor[3] = 0;
}

/* With drafts L is at least 2. */
static world make_world(int32_t least)
{
    world w;
    memset(&w, 0, sizeof w);
    w.L = least + (int32_t)(draw() % 6);
    w.Tm = w.L > 1 ? 2 + (int32_t)(draw() % (uint64_t)(w.L - 1)) : 1;
    w.R = w.L > 1 ? w.L + w.Tm : 1;
    w.conv_len = draw() % 3 ? 3 + w.Tm - 1 : 0;
    for (int i = 0; i < SLOTS; i++) {
        const int32_t cursor[4] = {near(0, w.R - 1), near(0, w.L), w.conv_len ? near(0, w.conv_len - 1) : near(0, 0),
                                   near(0, w.L - 1)};
        memcpy(w.cpu.cursor + i * CURSOR_STRIDE, cursor, sizeof cursor);
    }
    w.ends[0] = near(0, 2);
    for (int b = 0; b < ROWS; b++) {
        w.slots[b] = draw() % 6 ? b : near(0, SLOTS - 1); /* (both sides take the rows in order) */
        w.force[b] = draw() % 4 == 0;
        w.ends[b + 1] = (int64_t)((uint64_t)w.ends[b] + (uint64_t)near(0, w.Tm));
        if (draw() % 50 == 0)
            w.ends[b + 1] = draw() % 2 ? INT64_MIN : INT64_MAX;
        forge_row(w, w.cpu.cursor + b * CURSOR_STRIDE, b, w.cpu.rows + b * ROW_STRIDE);
        w.accepted[b] = near(0, w.Tm);
    }
    w.gpu = w.cpu;
    return w;
}

static rssm_index list(const int32_t *data)
{
    return {data, 1, 32, 0};
}

/* One thread per row. */
template <typename args> static void launch(void (*kernel)(args), const args &a)
{
    for (blockIdx.x = 0; blockIdx.x < (unsigned)ROWS; blockIdx.x++)
        kernel(a);
    blockIdx.x = 0;
}

static void one_step_begin(int round)
{
    world w = make_world(1);
    rssm_begin a = {};
    a.B = ROWS, a.L = w.L, a.R = w.R, a.conv_len = w.conv_len, a.S = SLOTS, a.pad_slot = draw() % 2 ? 2 : -1;
    a.slots = list(w.slots), a.force_flush = list(w.force), a.flush_all = draw() % 3 == 0;
    a.cursor_slot = CURSOR_STRIDE, a.rows_row = ROW_STRIDE;
    a.cursor = w.cpu.cursor, a.rows = w.cpu.rows, a.fault = &w.cpu.fault;
    rssm_cpu_begin(&a);
    a.cursor = w.gpu.cursor, a.rows = w.gpu.rows, a.fault = &w.gpu.fault;
    launch<rssm_begin>(rssm_step_begin, a);
    check("step_begin", w, round);
}

static void one_verify_begin(int round)
{
    world w = make_world(2);
    rssm_verify_begin a = {};
    a.B = ROWS, a.L = w.L, a.R = w.R, a.conv_len = w.conv_len, a.S = SLOTS, a.pad_slot = draw() % 2 ? 2 : -1;
    a.max_T = 1 + (int32_t)(draw() % (uint64_t)w.Tm);
    a.slots = list(w.slots), a.cu_seqlens = {w.ends, 1, 64, 0};
    a.cursor_slot = CURSOR_STRIDE, a.rows_row = ROW_STRIDE;
    a.cursor = w.cpu.cursor, a.rows = w.cpu.rows, a.fault = &w.cpu.fault;
    rssm_cpu_verify_begin(&a);
    a.cursor = w.gpu.cursor, a.rows = w.gpu.rows, a.fault = &w.gpu.fault;
    launch<rssm_verify_begin>(rssm_verify_begin_rows, a);
    check("verify_begin", w, round);
}

/* Returns how many rows moved their cursor. */
static int one_commit(int round)
{
    world w = make_world(2);
    for (int b = 0; b < ROWS; b++)
        if (draw() % 8)
            fold(w, w.cpu.rows + b * ROW_STRIDE, w.cpu.cursor + b * CURSOR_STRIDE);
    w.gpu = w.cpu;
    const side before = w.cpu;
    rssm_commit a = {};
    a.B = ROWS, a.L = w.L, a.R = w.R, a.conv_len = w.conv_len, a.S = SLOTS, a.pad_slot = draw() % 2 ? 2 : -1;
    a.accepted = list(w.accepted);
    a.cursor_slot = CURSOR_STRIDE, a.rows_row = ROW_STRIDE;
    a.rows = w.cpu.rows, a.cursor = w.cpu.cursor, a.fault = &w.cpu.fault;
    rssm_cpu_commit(&a);
    a.rows = w.gpu.rows, a.cursor = w.gpu.cursor, a.fault = &w.gpu.fault;
    launch<rssm_commit>(rssm_verify_commit, a);
    check("commit", w, round);
    int moved = 0;
    for (int i = 0; i < SLOTS; i++)
        moved += before.cursor[i * CURSOR_STRIDE + 1] != w.cpu.cursor[i * CURSOR_STRIDE + 1];
    return moved;
}

/* A row as a pass takes it, put where check looks. */
static void put(side &s, int64_t b, int64_t slot, int64_t start, int64_t len, int64_t more)
{
    const int64_t values[] = {slot < 0 ? -1 : slot, len > 0 ? start : 0, len, more};
    for (int i = 0; i < 4; i++)
        s.rows[b * ROW_STRIDE + i] = (int32_t)values[i];
}

/* Returns how many rows are no padding. */
static int one_window(int round)
{
    world w = make_world(2);
    char ring = 0;
    rssm_window a = {};
    a.step.B = ROWS, a.step.L = w.L, a.step.R = w.R, a.step.S = SLOTS, a.step.pad_slot = draw() % 2 ? 2 : -1;
    a.step.d_cache.data = &ring, a.step.rows_row = ROW_STRIDE;
    a.tokens = TOKENS, a.max_T = w.Tm;
    int live = 0;
    for (int64_t b = 0; b < ROWS; b++) {
        a.step.rows = w.cpu.rows;
        const rssm_row c = rssm_cpu_window_row(&a, b, &w.cpu.fault);
        a.step.rows = w.gpu.rows;
        const window_row g = judge_window(a, load_window(a.step, b));
        w.gpu.fault |= g.fault;
        put(w.cpu, b, c.slot, c.start, c.len, c.slot < 0 ? 0 : c.base << 16 | c.count << 1 | c.flush);
        put(w.gpu, b, g.slot, g.start, g.len, g.slot < 0 ? 0 : g.base << 16 | g.count << 1 | (int)g.flush);
        live += c.slot >= 0 && c.len > 0;
    }
    check("a window's row", w, round);
    return live;
}

static int one_convolution(int round)
{
    world w = make_world(2);
    rssm_convolution a = {};
    a.max_T = draw() % 3 ? w.Tm : 1;
    a.B = ROWS, a.S = SLOTS, a.pad_slot = draw() % 2 ? 2 : -1, a.conv_len = w.conv_len ? w.conv_len : 3;
    a.tokens = a.max_T > 1 ? TOKENS : ROWS, a.rows_row = ROW_STRIDE;
    int live = 0;
    for (int64_t b = 0; b < ROWS; b++) {
        a.rows = w.cpu.rows;
        const rssm_row c = rssm_cpu_conv_row(&a, b, &w.cpu.fault);
        a.rows = w.gpu.rows, a.fault = &w.gpu.fault;
        const conv_row g = judge_row(a, b);
        put(w.cpu, b, c.slot, c.start, c.len, c.slot < 0 ? 0 : c.conv);
        put(w.gpu, b, g.live ? g.slot : -1, g.start, g.len, g.live ? g.column : 0);
        live += c.slot >= 0 && c.len > 0;
    }
    check("a convolution's row", w, round);
    return live;
}

/* A plain step, from rows or from the host's own arrays. */
static int one_step(int round)
{
    world w = make_world(1);
    char ring = 0;
    rssm_step a = {};
    a.B = ROWS, a.L = w.L, a.R = w.R;
    a.S = SLOTS, a.pad_slot = draw() % 2 ? 2 : -1, a.rows_row = ROW_STRIDE;
    a.d_cache.data = a.L > 1 || draw() % 2 ? &ring : NULL; /* at L = 1 it may be there, and holds nothing */
    const bool from_rows = draw() % 2;
    if (!from_rows) {
        a.write_pos = list(w.accepted), a.state_indices = list(w.slots);
        if (draw() % 2)
            a.force_flush = list(w.force);
    }
    int live = 0;
    for (int64_t b = 0; b < ROWS; b++) {
        a.rows = from_rows ? w.cpu.rows : NULL;
        const rssm_row c = rssm_cpu_row(&a, b, &w.cpu.fault);
        a.rows = from_rows ? w.gpu.rows : NULL;
        const row_info g = read_row(a, b);
        w.gpu.fault |= g.bad ? RSSM_FAULTBIT_CURSOR : 0;
        if (from_rows) {
            put(w.cpu, b, c.slot, b, 1, c.slot < 0 ? 0 : c.base << 16 | c.count << 1 | c.flush);
            put(w.gpu, b, g.valid ? g.slot : -1, b, 1, g.valid ? g.base << 16 | g.count << 1 | (int)g.flush : 0);
        } else if ((c.slot >= 0) != g.valid || (g.valid && (c.count != g.count || (c.flush != 0) != g.flush))) {
            w.gpu.rows[0]++; /* differs */
        }
        live += c.slot >= 0;
    }
    check("a step's row", w, round);
    return live;
}

/* The order that a window pass gives to few rows: each row has one place, and no folding row one that a plain row could have
 * had before it. */
static void check_order(uint32_t folds, int rows)
{
    uint32_t seen = 0;
    int at[WINDOW_ORDER_MAX], folding = 0, failures = 0;
    for (int place = 0; place < rows; place++) {
        int found = 0;
        for (int row = 0; row < WINDOW_ORDER_MAX; row++)
            if (row_is_at(folds, rows, place, row)) {
                found++;
                at[place] = row;
            }
        if (found != 1 || at[place] >= rows || (seen >> at[place] & 1)) {
            failures++;
            break;
        }
        seen |= 1u << at[place];
        folding += folds >> at[place] & 1;
    }
    const int count = __builtin_popcount(folds);
    for (int place = 0; place < rows && failures == 0; place++) {
        const bool turns = place < 2 * min(count, rows - count);
        failures += turns ? (folds >> at[place] & 1) != (uint32_t)(place % 2 == 0)
                          : (folds >> at[place] & 1) != (count > rows - count);
        for (int before = 0; before < place; before++) /* each kind in its order */
            failures += (folds >> at[before] & 1) == (folds >> at[place] & 1) && at[before] > at[place];
    }
    failures += folding != count;
    passed += failures == 0;
    if (failures > 0 && failed++ < 5)
        printf("order of %d rows, folds %x: wrong\n", rows, folds);
}

static void one_order()
{
    const int rows = WINDOW_ORDER_MIN + (int)(draw() % (WINDOW_ORDER_MAX - WINDOW_ORDER_MIN + 1));
    const uint32_t all = 0xffffffffu >> (32 - rows), some = (uint32_t)draw(), few = some & (uint32_t)draw();
    const uint32_t folds[] = {some, few, ~few, 0, 0xffffffffu};
    check_order(folds[draw() % 5] & all, rows);
}

int main(int argc, char **argv)
{
    int64_t moved = 0, windows = 0, convolutions = 0, steps = 0;
    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    for (int round = 0; round < ROUNDS; round++) {
        one_step_begin(round);
        one_verify_begin(round);
        one_order();
        moved += one_commit(round);
        windows += one_window(round);
        convolutions += one_convolution(round);
        steps += one_step(round);
    }
    /* Not all of them bad. */
    const bool enough = moved > ROUNDS / 2 && windows > ROUNDS && convolutions > ROUNDS && steps > ROUNDS;
    failed += !enough;
    printf("%lld commits that moved, %lld windows, %lld convolutions, %lld steps with a slot\n", (long long)moved,
           (long long)windows, (long long)convolutions, (long long)steps);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
