/* Sizes that only a large GPU holds: pools beyond 2^31 elements and beyond 16 GB, batches beyond one grid dimension. A
 * large instance and a small one decode the same rows; what differs are slots and addresses, so that the bits agree. */
#include "test_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

#define F32  RSSM_DTYPE_FLOAT32
#define BF16 RSSM_DTYPE_BFLOAT16

/* ---- far slots -------------------------------------------------------------------------------------------------- */

enum { FAR_ROWS = 8 };

static const h_spec far_pools[] = {
    /* 21 GB of states, over 2^32 elements */
    {.family = RSSM_FAMILY_KDA, .H = 32, .HV = 32, .K = 128, .V = 128, .L = 4, .S = 10000},
    /* the general kernel: 21 GB */
    {.family = RSSM_FAMILY_KDA, .H = 32, .HV = 32, .K = 96, .V = 192, .L = 4, .S = 9000},
    /* rings beyond 2^31 elements, in the general kernel (L > 16) and in the tuned one */
    {.family = RSSM_FAMILY_GDN, .H = 32, .HV = 32, .K = 128, .V = 128, .L = 64, .S = 20000, .state = BF16},
    {.family = RSSM_FAMILY_KDA,
     .H = 32,
     .HV = 32,
     .K = 128,
     .V = 128,
     .L = 16,
     .S = 33000,
     .state = BF16,
     .init_flags = RSSM_INIT_NO_SMALL_FLUSH},
    {.family = RSSM_FAMILY_MAMBA2, .H = 8, .HV = 64, .K = 128, .V = 64, .L = 16, .S = 10000},
};
enum { NUM_FAR_POOLS = sizeof far_pools / sizeof far_pools[0] };

/* The ends, the middle, and around 2^31 elements and bytes of the state. */
static void choose_far(const rig *big, int32_t *slots)
{
    int64_t S = big->spec.S, elements = (int64_t)big->spec.HV * big->spec.K * big->spec.V;
    int64_t edge = ((int64_t)1 << 31) / elements;
    const int64_t wanted[FAR_ROWS] = {S - 1,    0,     S / 2,    edge - 1,
                                      edge + 1, S - 3, edge / 2, 2 * edge < S ? 2 * edge : 5};
    for (int i = 0; i < FAR_ROWS; i++)
        slots[i] = (int32_t)(wanted[i] % S);
}

static bool is_zero(const unsigned char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static bool chosen(const int32_t *slots, int64_t slot)
{
    for (int i = 0; i < FAR_ROWS; i++)
        if (slots[i] == slot)
            return true;
    return false;
}

/* Slots beside the used ones are as they were made. */
static void check_neighbour(const rig *big, const int32_t *slots, int64_t slot)
{
    if (slot < 0 || slot >= big->spec.S || chosen(slots, slot))
        return;
    for (int32_t tensor = 0; tensor < big->layout.num_tensors; tensor++) {
        unsigned char *bytes = rig_read_slot(big, 0, tensor, slot);
        ck_assert_msg(is_zero(bytes, rig_slot_bytes(big, tensor)),
                      "slot %d, beside a used one, was written (tensor %d)", (int)slot, tensor);
        free(bytes);
    }
}

static void compare_slots(const rig *big, const rig *little, const int32_t *slots, int step)
{
    for (int i = 0; i < FAR_ROWS; i++)
        for (int32_t tensor = 0; tensor < big->layout.num_tensors; tensor++) {
            unsigned char *a = rig_read_slot(big, 0, tensor, slots[i]), *b = rig_read_slot(little, 0, tensor, i);
            ck_assert_msg(memcmp(a, b, rig_slot_bytes(big, tensor)) == 0,
                          "step %d: slot %d, tensor %d is not what slot %d of a small pool is", step, slots[i], tensor,
                          i);
            free(a);
            free(b);
        }
}

static void compare_outputs(rig *big, rig *little, int step)
{
    unsigned char *a = rig_outputs(big, 0), *b = rig_outputs(little, 0);
    ck_assert_msg(memcmp(a, b, rig_row_bytes(big) * (size_t)big->spec.B) == 0, "step %d: outputs differ", step);
    ck_assert_msg(!is_zero(a, rig_row_bytes(big)), "step %d: outputs are zero", step);
    free(a);
    free(b);
}

static void step_far(rig *big, rig *little, const int32_t *slots, int step)
{
    int32_t near[FAR_ROWS], force[FAR_ROWS];
    for (int i = 0; i < FAR_ROWS; i++) {
        near[i] = i;
        force[i] = (step + i) % 5 == 4;
    }
    rig_positions(big, slots, force);
    rig_positions(little, near, force);
    rig_inputs(big, (uint64_t)step);
    rig_inputs(little, (uint64_t)step);
    rig_step(big, NULL);
    rig_step(little, NULL);
    compare_outputs(big, little, step);
}

START_TEST(far_slots)
{
    h_spec spec = far_pools[_i];
    int32_t slots[FAR_ROWS];
    rssm_error err = h_error();
    spec.B = FAR_ROWS;
    rig *big = rig_new(spec);
    spec.S = FAR_ROWS;
    rig *little = rig_new(spec);
    choose_far(big, slots);
    for (int i = 0; i < FAR_ROWS; i++) {
        rig_random_states(big, (uint64_t)i, slots[i], 1);
        rig_random_states(little, (uint64_t)i, i, 1);
    }
    for (int step = 0; step < 6; step++)
        step_far(big, little, slots, step);
    compare_slots(big, little, slots, 6);
    for (int i = 0; i < FAR_ROWS; i++) {
        check_neighbour(big, slots, slots[i] - 1);
        check_neighbour(big, slots, slots[i] + 1);
    }
    const int32_t all[FAR_ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
    ck_assert_int_eq(rig_reset(big, slots, 4, &err), RSSM_OK);
    ck_assert_int_eq(rig_reset(little, all, 4, &err), RSSM_OK);
    compare_slots(big, little, slots, 7);
    unsigned char *state = rig_read_slot(big, 0, rig_state_tensor(big), slots[0]);
    ck_assert(is_zero(state, rig_slot_bytes(big, rig_state_tensor(big))));
    free(state);
    rig_free(big);
    rig_free(little);
}
END_TEST

/* ---- many rows -------------------------------------------------------------------------------------------------- */

/* Rows i and i + PERIOD have the same inputs and states, so the same outputs. */
enum { PERIOD = 64 };

static const h_spec wide_batches[] = {
    /* B HV = 131072 */
    {.family = RSSM_FAMILY_GDN, .H = 16, .HV = 32, .K = 128, .V = 128, .L = 4, .B = 4096, .io = F32},
    {.family = RSSM_FAMILY_KDA, .H = 32, .HV = 32, .K = 128, .V = 128, .L = 4, .B = 4096, .io = F32, .state = BF16},
    {.family = RSSM_FAMILY_MAMBA2, .H = 8, .HV = 64, .K = 128, .V = 64, .L = 4, .B = 4096, .io = F32},
    {.family = RSSM_FAMILY_KDA, .H = 16, .HV = 32, .K = 80, .V = 96, .L = 3, .B = 4096, .io = F32},
    /* B > 65535, in the general kernel and in a tuned one */
    {.family = RSSM_FAMILY_GDN, .H = 1, .HV = 2, .K = 16, .V = 24, .L = 3, .B = 140000, .io = F32},
    {.family = RSSM_FAMILY_GDN, .H = 1, .HV = 1, .K = 128, .V = 128, .L = 3, .B = 70000, .io = F32, .state = BF16},
};
enum { NUM_WIDE_BATCHES = sizeof wide_batches / sizeof wide_batches[0] };

/* Slots first .. S - 1 of the state become copies of the first PERIOD. */
static void repeat_states(rig *r)
{
    int64_t done = PERIOD;
    int32_t state = rig_state_tensor(r);
    size_t bytes = (size_t)(rig_slot(r, 0, state, 1) - rig_slot(r, 0, state, 0));
    while (done < r->spec.S) {
        int64_t n = done < r->spec.S - done ? done : r->spec.S - done;
        gpu_copy(rig_slot(r, 0, state, done), rig_slot(r, 0, state, 0), bytes * (size_t)n);
        done += n;
    }
}

static void positions(rig *r, int step)
{
    int32_t *slots = malloc((size_t)r->spec.B * sizeof *slots), *force = malloc((size_t)r->spec.B * sizeof *force);
    for (int64_t b = 0; b < r->spec.B; b++) {
        slots[b] = (int32_t)b;
        force[b] = (step + b % PERIOD) % 7 == 0;
    }
    rig_positions(r, slots, force);
    free(slots);
    free(force);
}

static double distance(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < bytes / 4; i++) {
        float x, y;
        memcpy(&x, a + 4 * i, 4);
        memcpy(&y, b + 4 * i, 4);
        error += ((double)x - (double)y) * ((double)x - (double)y);
        size += (double)y * (double)y;
    }
    return sqrt(error / size);
}

static void step_wide(rig *wide, rig *narrow, int step)
{
    positions(wide, step);
    positions(narrow, step);
    rig_repeated_inputs(wide, (uint64_t)step, PERIOD);
    rig_repeated_inputs(narrow, (uint64_t)step, PERIOD);
    rig_step(wide, NULL);
    rig_step(narrow, NULL);
    unsigned char *a = rig_outputs(wide, 0), *b = rig_outputs(narrow, 0);
    size_t row = rig_row_bytes(wide);
    for (int64_t i = 0; i < wide->spec.B; i++)
        ck_assert_msg(memcmp(a + (size_t)i * row, a + (size_t)(i % PERIOD) * row, row) == 0,
                      "step %d: row %d is not as its like, row %d", step, (int)i, (int)(i % PERIOD));
    double error = distance(a, b, row * PERIOD); /* another kernel may run: not the same bits */
    ck_assert_msg(error < (wide->spec.state == F32 ? 4e-6 : 4e-3), "step %d: outputs are %g off", step, error);
    free(a);
    free(b);
}

static void check_some_slots(const rig *wide)
{
    for (int64_t slot = wide->spec.S - 1; slot >= PERIOD; slot -= wide->spec.S / 37)
        for (int32_t tensor = 0; tensor < wide->layout.num_tensors; tensor++) {
            unsigned char *a = rig_read_slot(wide, 0, tensor, slot);
            unsigned char *b = rig_read_slot(wide, 0, tensor, slot % PERIOD);
            ck_assert_msg(memcmp(a, b, rig_slot_bytes(wide, tensor)) == 0, "slot %d, tensor %d", (int)slot, tensor);
            free(a);
            free(b);
        }
}

START_TEST(wide_batch)
{
    h_spec spec = wide_batches[_i];
    spec.S = spec.B;
    rig *wide = rig_new(spec);
    spec.B = spec.S = PERIOD;
    rig *narrow = rig_new(spec);
    rig_random_states(wide, 1, 0, PERIOD);
    rig_random_states(narrow, 1, 0, PERIOD);
    repeat_states(wide);
    for (int step = 0; step < 4; step++)
        step_wide(wide, narrow, step);
    check_some_slots(wide);
    rig_free(wide);
    rig_free(narrow);
}
END_TEST

void add_large(Suite *s)
{
    TCase *t = tcase_create("large");
    tcase_add_loop_test(t, far_slots, 0, NUM_FAR_POOLS);
    tcase_add_loop_test(t, wide_batch, 0, NUM_WIDE_BATCHES);
    suite_add_tcase(s, t);
}
