/* Rows and cursors: what step_begin writes and how it moves each slot, over many windows; padding, bad cursors,
 * batches in flight, and the host's own cursors. The model of a cursor below is maths.md's, in ten lines. */
#include <stdlib.h>
#include <string.h>

#include "decode_case.h"
#include "rssm_slots.h"

#define KDA    RSSM_FAMILY_KDA
#define GDN    RSSM_FAMILY_GDN
#define MAMBA2 RSSM_FAMILY_MAMBA2
#define F32    RSSM_DTYPE_FLOAT32
#define BF16   RSSM_DTYPE_BFLOAT16

static const int32_t ring_lengths[] = {1, 2, 5, 16, 64};
enum { NUM_RING_LENGTHS = 5 };

#define LOOP_HEAD                 \
    if (!dc_engine_available(_i)) \
        return;

/* ---- the model of a cursor -------------------------------------------------------------------------------------- */

typedef struct cursor {
    int32_t base, count, conv, shortened;
} cursor;

/* The row of one pass, and the move. small: of a batch that flushes every row. */
static void move(cursor *at, int32_t L, int32_t R, int32_t conv_len, int32_t slot, int32_t b, int32_t force, bool small,
                 int32_t *row)
{
    bool ends = at->count >= L - 1 - at->shortened || force != 0;
    int32_t flush = ends || small;
    const int32_t numbers[RSSM_ROW_WIDTH] = {slot, at->base, at->count, flush, at->conv, b, 1, 0};
    memcpy(row, numbers, sizeof numbers);
    if (flush) {
        at->base = (at->base + at->count) % R;
        at->count = 0;
        at->shortened = ends ? 0 : at->shortened;
    } else {
        at->count++;
    }
    if (conv_len > 0)
        at->conv = (at->conv + 1) % conv_len;
}

static void assert_cursors(const dc_case *c, const cursor *want)
{
    for (int64_t slot = 0; slot < c->spec.S; slot++) {
        const int32_t *got = dc_cursor(c, slot);
        dc_check(memcmp(got, &want[slot], sizeof *want) == 0, "slot %d: {%d, %d, %d, %d}, not {%d, %d, %d, %d}",
                 (int)slot, got[0], got[1], got[2], got[3], want[slot].base, want[slot].count, want[slot].conv,
                 want[slot].shortened);
    }
}

static const int32_t *row_of(const dc_case *c, int64_t b)
{
    return h_at(c->calls[0]->roles[RSSM_T_ROWS], b, 0, 0, 0);
}

/* n different slots of S in a random order; each with chance 1/8 a padding index instead. */
static void random_slots(dc_case *c, int64_t *slots, int64_t n)
{
    int64_t all[64];
    for (int64_t i = 0; i < c->spec.S; i++)
        all[i] = i;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i + (int64_t)(h_random(&c->random) % (uint64_t)(c->spec.S - i)), keep = all[i];
        slots[i] = all[i] = all[j];
        all[j] = keep;
        if (h_random(&c->random) % 8 == 0)
            slots[i] = i % 2 ? -1 : c->spec.S;
    }
}

/* ---- rows and cursors ------------------------------------------------------------------------------------------- */

static void check_gaps_of_rows(const dc_case *c)
{
    for (int64_t b = 0; b < c->spec.B; b++)
        for (int64_t i = 0; i < c->spec.row_gap; i++)
            dc_equal(row_of(c, b)[RSSM_ROW_WIDTH + i], -1);
}

static void check_windows(const dc_options *options, int steps)
{
    dc_case *c = dc_new(options, (uint64_t)options->spec.L);
    int32_t L = c->spec.L, R = (int32_t)c->R, conv_len = options->conv ? (c->spec.drafts ? 4 + c->spec.drafts : 3) : 0;
    cursor want[64] = {0};
    for (int64_t slot = 0; slot < c->spec.S; slot++) {
        want[slot].shortened = dc_cursor(c, slot)[3];
        dc_assert(want[slot].shortened >= 0);
        dc_assert(want[slot].shortened < (options->spread ? L : 1));
    }
    assert_cursors(c, want);
    for (int s = 0; s < steps; s++) {
        int64_t slots[4];
        int32_t force[4];
        random_slots(c, slots, 4);
        for (int b = 0; b < 4; b++)
            force[b] = h_random(&c->random) % (uint64_t)(L + 2) == 0 ? (b % 2 ? -7 : 1) : 0;
        size_t state_bytes = dc_pool(c, 0, DC_POOL_STATE)->bytes;
        unsigned char *states = malloc(state_bytes);
        memcpy(states, dc_pool(c, 0, DC_POOL_STATE)->t.data, state_bytes);
        dc_begin(c, slots, s % 5 ? force : NULL);
        dc_assert(memcmp(states, dc_pool(c, 0, DC_POOL_STATE)->t.data, state_bytes) == 0);
        free(states);
        for (int32_t b = 0; b < 4; b++) {
            int32_t row[RSSM_ROW_WIDTH];
            if (slots[b] < 0 || slots[b] >= c->spec.S) {
                dc_equal(row_of(c, b)[0], -1);
                dc_equal(row_of(c, b)[5], b);
                dc_equal(row_of(c, b)[6], 1);
                continue;
            }
            move(&want[slots[b]], L, R, conv_len, (int32_t)slots[b], b, s % 5 ? force[b] : 0, c->small_batch >= 4, row);
            dc_check(memcmp(row, row_of(c, b), sizeof row) == 0, "L %d, step %d, row %d differs", L, s, b);
        }
        assert_cursors(c, want);
        check_gaps_of_rows(c);
    }
    dc_equal(dc_fault(c), 0);
    dc_free(c);
}

START_TEST(rows_and_cursors_over_windows)
{
    LOOP_HEAD
    for (int i = 0; i < NUM_RING_LENGTHS * 16; i++) {
        dc_options o = {.engine = _i, .conv = i & 1, .spread = i & 2};
        o.spec = (h_spec){.family = KDA + i % 3, .L = ring_lengths[i / 16], .B = 4, .S = 7, .K = 4, .V = 6};
        if (!h_has_family(o.spec.family))
            continue;
        o.spec.drafts = i & 4 ? (o.spec.L < 4 ? o.spec.L - 1 : 3) : 0;
        o.spec.index_bits = i & 8 ? 64 : 32;
        o.spec.row_gap = i & 8 ? 3 : 0;
        o.spec.slot_gap = i & 8 ? 16 : 0;
        check_windows(&o, 12 * o.spec.L + 20);
    }
}
END_TEST

/* A forced flush after every possible number of records, from a base that moves, and the window after it. */
START_TEST(forced_flush_at_any_count)
{
    LOOP_HEAD
    const int64_t slots[1] = {1};
    const int32_t yes[1] = {1};
    dc_worst worst = {0};
    for (int i = 0; i < NUM_RING_LENGTHS * 2; i++) {
        dc_options o = {.engine = _i};
        o.spec =
            (h_spec){.family = KDA + i % 3, .L = ring_lengths[i / 2], .B = 1, .S = 2, .H = 1, .HV = 2, .K = 5, .V = 3};
        if (!h_has_family(o.spec.family))
            continue;
        o.spec.drafts = i & 1 && o.spec.L > 2 ? 2 : 0;
        dc_case *c = dc_new(&o, (uint64_t)i);
        for (int32_t count = 0; count < o.spec.L; count++) {
            for (int32_t s = 0; s < count; s++)
                dc_merge(&worst, dc_step_checked(c, slots, NULL));
            int32_t base = dc_cursor(c, 1)[0];
            dc_equal(dc_cursor(c, 1)[1], count);
            dc_merge(&worst, dc_step_checked(c, slots, yes));
            dc_equal(row_of(c, 0)[3], 1);
            dc_equal(dc_cursor(c, 1)[0], (base + count) % (int32_t)c->R);
            dc_equal(dc_cursor(c, 1)[1], 0);
        }
        for (int32_t s = 0; s < 2 * o.spec.L; s++)
            dc_merge(&worst, dc_step_checked(c, slots, NULL));
        dc_free(c);
    }
    dc_print_worst("forced_flush_at_any_count", _i, worst);
}
END_TEST

/* A row may hold count = L (after a commit): it flushes with the whole ring, from any base. */
START_TEST(a_full_ring_flushes)
{
    LOOP_HEAD
    const int64_t slots[1] = {0};
    for (int i = 0; i < 3 * 3; i++) {
        dc_options o = {.engine = _i};
        o.spec = (h_spec){.family = KDA + i % 3, .L = 5, .B = 1, .S = 1, .K = 4, .V = 6, .drafts = i / 3};
        if (!h_has_family(o.spec.family))
            continue;
        for (int32_t base = 0; base < 5; base++) {
            dc_case *c = dc_new(&o, (uint64_t)base);
            for (int32_t which = DC_POOL_D; which < DC_POOL_COUNT; which++)
                for (int64_t j = 0; j < dc_pool_inner(c, which); j++)
                    rec_store(dc_pool_dtype(c, which), dc_slot(c, 0, which, 0), j,
                              h_uniform(&c->random, which == DC_POOL_G && i % 3 != 2 ? -1 : .01, which != DC_POOL_G));
            dc_cursor(c, 0)[0] = base;
            dc_cursor(c, 0)[1] = 5;
            dc_step_checked(c, slots, NULL);
            dc_equal(row_of(c, 0)[2], 5);
            dc_equal(row_of(c, 0)[3], 1);
            dc_equal(dc_cursor(c, 0)[0], (base + 5) % (int32_t)c->R);
            dc_equal(dc_cursor(c, 0)[1], 0);
            dc_free(c);
        }
    }
}
END_TEST

/* Slots admitted together do not flush together: in the first window and in those after it. */
START_TEST(spread_flush)
{
    LOOP_HEAD
    for (int i = 1; i < NUM_RING_LENGTHS; i++) {
        int32_t L = ring_lengths[i];
        dc_options o = {.engine = _i, .spread = true};
        o.spec = (h_spec){.family = h_family(GDN), .L = L, .B = 2 * L, .S = 2 * L, .H = 1, .HV = 1, .K = 1, .V = 1};
        dc_case *c = dc_new(&o, 1);
        int64_t *slots = calloc((size_t)o.spec.B, sizeof *slots);
        int *first = calloc((size_t)o.spec.B, sizeof *first), *last = calloc((size_t)o.spec.B, sizeof *last);
        for (int64_t b = 0; b < o.spec.B; b++)
            slots[b] = b;
        for (int s = 1; s <= 4 * L; s++) {
            dc_begin(c, slots, NULL);
            int flushes = 0;
            for (int64_t b = 0; b < o.spec.B; b++) {
                if (!row_of(c, b)[3])
                    continue;
                flushes++;
                if (!first[b])
                    first[b] = s;
                else
                    dc_equal(s - last[b], L); /* only the first window is shorter */
                last[b] = s;
            }
            dc_check(flushes == 2, "L = %d: %d of %d slots flush in step %d", L, flushes, 2 * L, s);
        }
        dc_reset(c, NULL, 0); /* as new */
        dc_begin(c, slots, NULL);
        for (int64_t b = 0; b < o.spec.B; b++)
            dc_equal(row_of(c, b)[3], first[b] == 1);
        free(first);
        free(last);
        free(slots);
        dc_free(c);
    }
}
END_TEST

START_TEST(an_empty_batch_does_nothing)
{
    LOOP_HEAD
    for (int host_pos = 0; host_pos < 2; host_pos++) {
        dc_options o = {.engine = _i, .spec = {.family = h_family(KDA), .B = H_NONE, .host_pos = host_pos}};
        dc_case *c = dc_new(&o, 1);
        for (int s = 0; s < 9; s++) {
            dc_begin(c, NULL, NULL);
            dc_decode_checked(c, 0);
        }
        for (int64_t slot = 0; slot < c->spec.S; slot++)
            dc_equal(dc_cursor(c, slot)[1], 0);
        dc_equal(dc_fault(c), 0);
        dc_free(c);
    }
}
END_TEST

/* ---- padding ---------------------------------------------------------------------------------------------------- */

/* Indices of no slot; those beyond 32 bits would be slot 0, 1 or 2 if they were cut. */
static const int64_t no_slots[] = {-1,        5,          6,          INT32_MAX,       INT32_MIN,    INT64_MAX,
                                   INT64_MIN, 4294967296, 4294967298, -4294967295 - 1, 1099511627777};
enum { NUM_NO_SLOTS = sizeof no_slots / sizeof no_slots[0], NUM_NARROW_NO_SLOTS = 5 };

START_TEST(padding_indices_give_padding_rows)
{
    LOOP_HEAD
    for (int i = 0; i < 12; i++) {
        bool wide = i & 1;
        int n = wide ? NUM_NO_SLOTS : NUM_NARROW_NO_SLOTS;
        dc_options o = {.engine = _i, .has_pad_slot = i & 2, .pad_slot = 3};
        o.spec = (h_spec){.family = KDA + i % 3,
                          .B = n + 2,
                          .S = 5,
                          .L = 3,
                          .index_bits = wide ? 64 : 32,
                          .row_gap = i & 4 ? 2 : 0,
                          .host_pos = i >= 6};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *c = dc_new(&o, (uint64_t)i);
        int64_t slots[NUM_NO_SLOTS + 2];
        memcpy(slots + 1, no_slots, (size_t)n * sizeof *slots);
        slots[0] = 3; /* the pad slot of half of the cases, an ordinary slot of the others */
        slots[n + 1] = 0;
        for (int s = 0; s < 7; s++) {
            dc_step_checked(c, slots, NULL); /* zero outputs, no other byte of the pool touched */
            for (int64_t b = 0; b < n + 2 && !o.spec.host_pos; b++)
                dc_equal(row_of(c, b)[0], b == n + 1 ? 0 : b == 0 && !o.has_pad_slot ? 3 : -1);
            for (int32_t slot = 0; slot < 5 && !o.spec.host_pos; slot++)
                dc_equal(dc_cursor(c, slot)[1], slot == 0 || (slot == 3 && !o.has_pad_slot) ? (s + 1) % 3 : 0);
        }
        dc_equal(dc_fault(c), 0); /* padding is no fault */
        dc_free(c);
    }
}
END_TEST

/* The warm-up run: nothing but padding. */
START_TEST(a_batch_of_padding_touches_nothing)
{
    LOOP_HEAD
    const int64_t slots[3] = {-1, 5, -1};
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = {.engine = _i, .spec = {.family = family, .row_gap = 1}};
        dc_case *c = dc_new(&o, 1);
        for (int s = 0; s < 5; s++)
            dc_step_checked(c, slots, NULL);
        dc_free(c);
    }
}
END_TEST

/* ---- bad cursors ------------------------------------------------------------------------------------------------ */

START_TEST(bad_cursors_are_padding_and_a_fault)
{
    LOOP_HEAD
    const int64_t slots[3] = {1, 2, 3};
    for (int i = 0; i < 6; i++) {
        dc_options o = {.engine = _i, .conv = true};
        o.spec = (h_spec){.family = KDA + i % 3, .L = 4, .drafts = i < 3 ? 0 : 2};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *c = dc_new(&o, 1);
        int32_t R = (int32_t)c->R, conv_len = i < 3 ? 3 : 6;
        const struct {
            int field;
            int32_t value;
        } bad[] = {{0, -1}, {0, R},         {0, INT32_MAX}, {0, INT32_MIN}, {1, -1},       {1, 5},
                   {1, 64}, {1, INT32_MAX}, {1, INT32_MIN}, {2, -1},        {2, conv_len}, {2, INT32_MAX}};
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            int32_t good[4], *at = dc_cursor(c, 2);
            memcpy(good, at, sizeof good);
            at[bad[k].field] = bad[k].value;
            int32_t broken[4];
            memcpy(broken, at, sizeof broken);
            dc_begin(c, slots, NULL);
            dc_equal(row_of(c, 0)[0], 1);
            dc_check(row_of(c, 1)[0] == -1, "field %d = %d is accepted", bad[k].field, bad[k].value);
            dc_equal(row_of(c, 2)[0], 3);
            dc_assert(memcmp(at, broken, sizeof broken) == 0);
            dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
            memcpy(at, good, sizeof good);
            dc_put_inputs(c, 0);
            dc_poison(c);
            dc_decode(c, 0);
            for (int64_t x = 0; x < dc_inner(c, DC_V); x++)
                dc_assert(dc_out(c, 0, 1, x) == 0);
            dc_equal(dc_fault(c), 0);
        }
        dc_reset(c, slots, 3); /* a reset heals */
        dc_poison(c);
        dc_step_checked(c, slots, NULL);
        dc_equal(dc_fault(c), 0);
        dc_free(c);
    }
}
END_TEST

/* Rows are device data: what a host scribbled over them must not reach memory. */
START_TEST(bad_rows_are_padding_and_a_fault)
{
    LOOP_HEAD
    static const struct {
        int32_t base, count, flush;
    } bad[] = {{-1, 0, 0}, {4, 0, 0}, {INT32_MAX, 1, 0}, {INT32_MIN, 1, 0}, {0, -1, 0},       {0, 5, 1},
               {0, 5, 0},  {0, 4, 0}, {1, 64, 1},        {1, INT32_MAX, 1}, {3, INT32_MIN, 0}};
    const int64_t slots[3] = {1, 2, 3};
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = {.engine = _i, .spec = {.family = family, .L = 4}};
        dc_case *c = dc_new(&o, 1);
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            dc_reset(c, NULL, 0);
            dc_poison(c);
            dc_begin(c, slots, NULL);
            int32_t *row = h_at(c->calls[0]->roles[RSSM_T_ROWS], 1, 0, 0, 0);
            row[1] = bad[k].base;
            row[2] = bad[k].count;
            row[3] = bad[k].flush;
            dc_put_inputs(c, 0);
            dc_decode_checked(c, 0);
            dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
        }
        dc_free(c);
    }
}
END_TEST

START_TEST(bad_write_pos_is_padding_and_a_fault)
{
    LOOP_HEAD
    static const int64_t bad[] = {-1, 5, 64, INT32_MAX, INT32_MIN, 4294967296, 4294967297, INT64_MAX, INT64_MIN};
    const int64_t slots[3] = {1, 2, 3};
    for (int i = 0; i < 6; i++) {
        dc_options o = {.engine = _i};
        o.spec = (h_spec){.family = KDA + i % 3, .L = 4, .host_pos = true, .index_bits = i < 3 ? 64 : 32};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *c = dc_new(&o, 1);
        for (size_t k = 0; k < (i < 3 ? sizeof bad / sizeof bad[0] : 5); k++) {
            memset(c->host_count, 0, (size_t)c->spec.S * sizeof *c->host_count);
            dc_poison(c);
            dc_begin(c, slots, NULL);
            void *at = h_at(c->calls[0]->roles[RSSM_T_WRITE_POS], 1, 0, 0, 0);
            int32_t narrow = (int32_t)bad[k];
            if (i < 3)
                memcpy(at, &bad[k], sizeof bad[k]);
            else
                memcpy(at, &narrow, sizeof narrow);
            dc_put_inputs(c, 0);
            dc_decode_checked(c, 0);
            dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
        }
        dc_free(c);
    }
}
END_TEST

/* At L = 1 every token is folded: no record is ever pending, whether the pool has a ring or not, and a count of 1 is a bad
 * cursor. */
static void check_bad_begin(dc_case *c, const int64_t *slots)
{
    const int32_t bad[4] = {0, 1, 0, 0};
    rssm_error err = h_error();
    memcpy(dc_cursor(c, 2), bad, sizeof bad);
    dc_begin(c, slots, NULL);
    dc_equal(row_of(c, 0)[0], 1);
    dc_equal(row_of(c, 1)[0], -1);
    dc_equal(row_of(c, 2)[0], 3);
    dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
    const rssm_step_begin_args deep = {.struct_size = sizeof deep,
                                       .slots = &c->slots.t,
                                       .rows_out = c->calls[0]->roles[RSSM_T_ROWS],
                                       .flags = RSSM_CHECK_DEEP};
    dc_equal(h_api()->step_begin(c->plugin, &deep, &err), RSSM_ERR_VALUE);
    dc_assert(memcmp(dc_cursor(c, 2), bad, sizeof bad) == 0);
}

/* Operations on slot 2, whose cursor is bad, pass it over. */
static void check_bad_slot(dc_case *c)
{
    const rssm_slots_api *api = h_api()->get_extension(RSSM_EXT_SLOTS);
    if (!api)
        return;
    const int64_t shape[1] = {1};
    h_tensor from, to;
    rssm_error err = h_error();
    h_tensor_make(&from, h_int_type(32), 1, shape, 0);
    h_tensor_make(&to, h_int_type(32), 1, shape, 0);
    h_set(&from.t, 0, 0, 0, 0, 2);
    h_set(&to.t, 0, 0, 0, 0, 4);
    const rssm_copy_args copy = {.struct_size = sizeof copy, .src = &from.t, .dst = &to.t};
    const DLTensor *decay[1] = {c->calls[0]->roles[RSSM_T_A_LOG]};
    const rssm_flush_args flush = {.struct_size = sizeof flush,
                                   .slots = &from.t,
                                   .num_layers = c->spec.family == MAMBA2,
                                   .A_log = c->spec.family == MAMBA2 ? decay : NULL};
    size_t bytes = dc_pool(c, 0, DC_POOL_STATE)->bytes;
    void *states = malloc(bytes);
    memcpy(states, dc_pool(c, 0, DC_POOL_STATE)->t.data, bytes);
    dc_check(api->copy(c->plugin, &copy, &err) == RSSM_OK, "copy: %s", err.message);
    dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
    dc_check(api->flush(c->plugin, &flush, &err) == RSSM_OK, "flush: %s", err.message);
    dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
    uint64_t length = 0, written = 0;
    dc_equal(api->saved_bytes(c->plugin, &length, NULL), RSSM_OK);
    void *stream = malloc(length);
    dc_equal(api->save(c->plugin, 2, stream, length, &written, NULL, &err), RSSM_ERR_VALUE);
    dc_check(strstr(err.message, "count 1 is not in 0..0"), "%s", err.message);
    free(stream);
    dc_assert(memcmp(states, dc_pool(c, 0, DC_POOL_STATE)->t.data, bytes) == 0);
    dc_equal(dc_cursor(c, 2)[1], 1);
    dc_equal(dc_cursor(c, 4)[1], 0);
    free(states);
    h_tensor_free(&from);
    h_tensor_free(&to);
}

START_TEST(nothing_is_pending_at_L_1)
{
    LOOP_HEAD
    const int64_t slots[3] = {1, 2, 3};
    static const int32_t count_and_flush[][2] = {{1, 1}, {1, 0}, {0, 0}};
    for (int i = 0; i < 12; i++) {
        dc_options o = {.engine = _i, .no_ring = i / 3 & 1};
        o.spec = (h_spec){.family = KDA + i % 3, .L = 1, .S = 5, .host_pos = i >= 6};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *c = dc_new(&o, 1);
        dc_poison(c);
        if (!o.spec.host_pos) {
            check_bad_begin(c, slots);
            check_bad_slot(c);
            dc_reset(c, slots, 3);
            dc_poison(c);
        }
        for (int k = 0; k < (o.spec.host_pos ? 1 : 3); k++) {
            dc_begin(c, slots, NULL);
            if (o.spec.host_pos) {
                h_set(c->calls[0]->roles[RSSM_T_WRITE_POS], 1, 0, 0, 0, 1);
            } else {
                int32_t *row = h_at(c->calls[0]->roles[RSSM_T_ROWS], 1, 0, 0, 0);
                row[2] = count_and_flush[k][0];
                row[3] = count_and_flush[k][1];
            }
            dc_put_inputs(c, 0);
            dc_decode_checked(c, 0); /* row 1 is padding: zeros, and no byte of slot 2 changes */
            dc_equal(dc_fault(c), RSSM_FAULT_CURSOR);
        }
        dc_free(c);
    }
}
END_TEST

/* ---- several batches in flight ---------------------------------------------------------------------------------- */

static void save_outputs(const dc_case *c, double *to)
{
    for (int64_t b = 0; b < c->spec.B; b++)
        for (int64_t i = 0; i < dc_inner(c, DC_V); i++)
            to[b * dc_inner(c, DC_V) + i] = dc_out(c, 0, b, i);
}

static void run(dc_case *c, const int32_t *rows, double *const *inputs, double *out)
{
    memcpy(c->calls[0]->tensors[RSSM_T_ROWS].t.data, rows, c->calls[0]->tensors[RSSM_T_ROWS].bytes);
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        memcpy(c->in[i], inputs[i], (size_t)(c->spec.B * dc_inner(c, i)) * sizeof **inputs);
    dc_put_inputs(c, 0);
    dc_decode(c, 0);
    save_outputs(c, out);
}

/* Rows of two batches made before either decodes, decoded in the other order: the same as one after the other. */
START_TEST(batches_in_flight)
{
    LOOP_HEAD
    enum { B = 2, BATCHES = 3 };
    const int64_t slots[BATCHES][B] = {{4, 1}, {0, 3}, {5, 2}};
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = {.engine = _i, .spec = {.family = family, .B = B, .S = 6, .L = 3}};
        dc_case *flight = dc_new(&o, 7), *serial = dc_new(&o, 7);
        dc_copy_start(serial, flight);
        int64_t outputs = B * dc_inner(flight, DC_V);
        double *out[2][BATCHES], *in[BATCHES][DC_NUM_INPUTS];
        for (int k = 0; k < BATCHES; k++)
            for (int i = 0; i < DC_NUM_INPUTS; i++)
                in[k][i] = calloc((size_t)(B * dc_inner(flight, i) + 1), sizeof(double));
        for (int k = 0; k < 2 * BATCHES; k++)
            out[k / BATCHES][k % BATCHES] = calloc((size_t)outputs, sizeof(double));
        for (int s = 0; s < 8; s++) {
            int32_t rows[BATCHES][B * RSSM_ROW_WIDTH];
            for (int k = 0; k < BATCHES; k++) {
                dc_randomise(flight);
                for (int i = 0; i < DC_NUM_INPUTS; i++)
                    memcpy(in[k][i], flight->in[i], (size_t)(B * dc_inner(flight, i)) * sizeof(double));
                dc_begin(flight, slots[k], NULL);
                memcpy(rows[k], row_of(flight, 0), sizeof rows[k]);
            }
            for (int k = BATCHES - 1; k >= 0; k--)
                run(flight, rows[k], in[k], out[0][k]);
            for (int k = 0; k < BATCHES; k++) {
                dc_begin(serial, slots[k], NULL);
                int32_t own[B * RSSM_ROW_WIDTH];
                memcpy(own, row_of(serial, 0), sizeof own);
                dc_assert(memcmp(own, rows[k], sizeof own) == 0);
                run(serial, own, in[k], out[1][k]);
                dc_assert(memcmp(out[0][k], out[1][k], (size_t)outputs * sizeof(double)) == 0);
            }
        }
        for (int which = 0; which < DC_POOL_COUNT; which++)
            dc_assert(memcmp(dc_pool(flight, 0, which)->t.data, dc_pool(serial, 0, which)->t.data,
                             dc_pool(flight, 0, which)->bytes) == 0);
        for (int k = 0; k < BATCHES; k++)
            for (int i = 0; i < DC_NUM_INPUTS; i++)
                free(in[k][i]);
        for (int k = 0; k < 2 * BATCHES; k++)
            free(out[k / BATCHES][k % BATCHES]);
        dc_free(flight);
        dc_free(serial);
    }
}
END_TEST

/* ---- host-kept cursors ------------------------------------------------------------------------------------------ */

/* Record j of each row of both cases is the same, though at different ring rows. */
static void assert_same_records(const dc_case *rows, const dc_case *host, int64_t slot)
{
    int64_t base = dc_cursor(rows, slot)[0], count = dc_cursor(rows, slot)[1];
    dc_equal(count, host->host_count[slot]);
    for (int which = DC_POOL_D; which < DC_POOL_COUNT; which++) {
        int64_t width = rec_dtype_bytes(dc_pool_dtype(rows, which)), size = dc_record_size(rows, which);
        int64_t heads = which == DC_POOL_K ? rows->spec.H : rows->spec.HV;
        for (int64_t j = 0; j < count * heads; j++) {
            int64_t a = dc_record_at(rows, which, j % heads, (base + j / heads) % rows->R) * width;
            int64_t b = dc_record_at(host, which, j % heads, j / heads) * width;
            dc_assert(memcmp((char *)dc_slot(rows, 0, which, slot) + a, (char *)dc_slot(host, 0, which, slot) + b,
                             (size_t)(size * width)) == 0);
        }
    }
}

static void assert_same_step(const dc_case *rows, const dc_case *host)
{
    size_t state = (size_t)(dc_pool_inner(rows, DC_POOL_STATE) * rec_dtype_bytes(rows->spec.state));
    for (int64_t b = 0; b < rows->spec.B; b++)
        for (int64_t i = 0; i < dc_inner(rows, DC_V); i++)
            dc_assert(dc_out(rows, 0, b, i) == dc_out(host, 0, b, i));
    for (int64_t slot = 0; slot < rows->spec.S; slot++) {
        dc_assert(memcmp(dc_slot(rows, 0, DC_POOL_STATE, slot), dc_slot(host, 0, DC_POOL_STATE, slot), state) == 0);
        assert_same_records(rows, host, slot);
    }
}

START_TEST(write_pos_equals_rows_bit_for_bit)
{
    LOOP_HEAD
    for (int i = 0; i < NUM_RING_LENGTHS * 12; i++) {
        dc_options o = {.engine = _i};
        o.spec = (h_spec){.family = KDA + i % 3, .L = ring_lengths[i / 12], .B = 4, .S = 6, .K = 5, .V = 7};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *rows = dc_new(&o, (uint64_t)i);
        o.spec.host_pos = true;
        o.spec.index_bits = i & 1 ? 64 : 32;
        o.spec.row_gap = i & 2 ? 3 : 0;
        dc_case *host = dc_new(&o, (uint64_t)i);
        dc_copy_start(host, rows);
        for (int s = 0; s < 3 * o.spec.L + 3; s++) {
            int64_t slots[4];
            int32_t force[4];
            random_slots(rows, slots, 4);
            for (int b = 0; b < 4; b++)
                force[b] = h_random(&rows->random) % (uint64_t)(o.spec.L + 2) == 0;
            dc_poison(rows);
            dc_poison(host);
            dc_begin(rows, slots, force);
            dc_begin(host, slots, force);
            dc_randomise(rows);
            dc_copy_inputs(host, rows);
            dc_put_inputs(rows, 0);
            dc_put_inputs(host, 0);
            dc_decode(rows, 0);
            dc_decode(host, 0);
            assert_same_step(rows, host);
        }
        dc_free(rows);
        dc_free(host);
    }
}
END_TEST

/* force_flush and state_indices may be absent: none, and row b is slot b. */
START_TEST(write_pos_alone)
{
    LOOP_HEAD
    const int64_t slots[3] = {0, 1, 2};
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = {.engine = _i, .spec = {.family = family, .host_pos = true, .L = 3}};
        dc_case *c = dc_new(&o, 1);
        c->calls[0]->roles[RSSM_T_FORCE_FLUSH] = c->calls[0]->roles[RSSM_T_STATE_INDICES] = NULL;
        for (int s = 0; s < 8; s++) {
            dc_poison(c);
            for (int64_t b = 0; b < 3; b++)
                h_set(c->calls[0]->roles[RSSM_T_WRITE_POS], b, 0, 0, 0, (double)c->host_count[slots[b]]);
            dc_randomise(c);
            dc_put_inputs(c, 0);
            dc_decode_checked(c, 0);
            for (int64_t b = 0; b < 3; b++)
                c->host_count[b] = c->host_count[b] == 2 ? 0 : c->host_count[b] + 1;
        }
        dc_free(c);
    }
}
END_TEST

void cursor_tests(h_suite *suite);

void cursor_tests(h_suite *suite)
{
    static const TTest *const *const tests[] = {&rows_and_cursors_over_windows,
                                                &forced_flush_at_any_count,
                                                &a_full_ring_flushes,
                                                &spread_flush,
                                                &an_empty_batch_does_nothing,
                                                &padding_indices_give_padding_rows,
                                                &a_batch_of_padding_touches_nothing,
                                                &bad_cursors_are_padding_and_a_fault,
                                                &bad_rows_are_padding_and_a_fault,
                                                &bad_write_pos_is_padding_and_a_fault,
                                                &nothing_is_pending_at_L_1,
                                                &batches_in_flight,
                                                &write_pos_equals_rows_bit_for_bit,
                                                &write_pos_alone};
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        h_add(suite, &(h_tests){.name = (*tests[i])->name, .test = *tests[i], .count = DC_NUM_ENGINES, .timeout = 120});
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("cursor", cursor_tests, true);
}
#endif
