/* The figures of a step's formulas, each with its known right value, reached through a real decode by every engine:
 * what goes into a ring row, an output or a state is read back and compared. Names B01 ... are faults that other
 * implementations shipped. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode_case.h"

#define KDA    RSSM_FAMILY_KDA
#define GDN    RSSM_FAMILY_GDN
#define MAMBA2 RSSM_FAMILY_MAMBA2
#define F32    RSSM_DTYPE_FLOAT32
#define BF16   RSSM_DTYPE_BFLOAT16
#define FP16   RSSM_DTYPE_FLOAT16

/* All sizes 1 but K and V; float32 everywhere, so that what is read back has not been rounded; no z, as z = 0 would
 * make all of Mamba-2's outputs 0. */
static dc_options plain(int32_t family, int engine)
{
    return (dc_options){.spec = {.family = family, .H = 1, .HV = 1, .K = 4, .V = 6, .B = 1, .S = 2, .io = F32, .L = 4},
                        .engine = engine,
                        .no_z = true};
}

/* State and ring empty, all inputs and weights zero. */
static dc_case *empty_case(const dc_options *options)
{
    dc_case *c = dc_new(options, 1);
    dc_reset(c, NULL, 0);
    dc_poison(c);
    for (int i = 0; i < DC_NUM_INPUTS; i++)
        memset(c->in[i], 0, (size_t)(c->spec.B * dc_inner(c, i)) * sizeof **c->in);
    for (int i = 0; i < DC_NUM_WEIGHTS; i++)
        memset(c->weights[i], 0, (size_t)dc_weight_size(c, i) * sizeof **c->weights);
    return c;
}

static void set_all(double *numbers, int64_t n, double x)
{
    for (int64_t i = 0; i < n; i++)
        numbers[i] = x;
}

/* One step of rows 0, 1, ... on slots 0, 1, ...; flush forced or not. */
static void step(dc_case *c, int32_t flush)
{
    int64_t slots[8];
    int32_t force[8];
    for (int64_t b = 0; b < c->spec.B; b++) {
        slots[b] = b;
        force[b] = flush;
    }
    dc_begin(c, slots, force);
    dc_put_weights(c, 0);
    dc_put_inputs(c, 0);
    dc_decode(c, 0);
}

/* Number i of the record that slot 0's first step left in ring row 0. */
static double record(const dc_case *c, int which, int64_t head, int64_t i)
{
    return rec_load(dc_pool_dtype(c, which), dc_slot(c, 0, which, 0), dc_record_at(c, which, head, 0) + i);
}

static double state_at(const dc_case *c, int64_t i)
{
    return rec_load(c->spec.state, dc_slot(c, 0, DC_POOL_STATE, 0), i);
}

static void near(double got, double want, double relative, const char *what)
{
    dc_check(fabs(got - want) <= relative * fabs(want), "%s: %.9g, not %.9g", what, got, want);
}

#define LOOP_HEAD                 \
    if (!dc_engine_available(_i)) \
        return;

/* ---- KDA and GDN ------------------------------------------------------------------------------------------------ */

/* B01: with an empty state d = beta v; k.q = 1 gives the same in the output. */
static double beta_of(int32_t family, int engine, int32_t io, int32_t gate, double b, bool neg_eigval, double *in_out)
{
    dc_options o = plain(family, engine);
    o.spec.io = io;
    o.spec.gate = gate;
    o.spec.ring = o.spec.out = F32;
    o.no_norm = o.has_scale = true;
    o.scale = 1;
    o.neg_eigval = neg_eigval;
    dc_case *c = empty_case(&o);
    c->in[DC_Q][0] = c->in[DC_K][0] = c->in[DC_V][2] = 1;
    c->in[DC_B][0] = b;
    step(c, 0);
    double d = record(c, DC_POOL_D, 0, 2);
    *in_out = dc_out(c, 0, 0, 2);
    dc_assert(record(c, DC_POOL_D, 0, 1) == 0);
    dc_assert(dc_out(c, 0, 0, 1) == 0);
    dc_free(c);
    return d;
}

START_TEST(b01_beta_is_not_rounded)
{
    LOOP_HEAD
    static const int32_t ios[] = {F32, BF16, FP16};
    H_FAMILIES (family, KDA, GDN)
        for (int i = 0; i < 6; i++) {
            double out, d = beta_of(family, _i, ios[i % 3], i < 3 ? ios[i] : F32, .5, false, &out);
            near(d, .62245933, 1e-6, "beta(.5) in d");
            near(out, .62245933, 1e-6, "beta(.5) in out");
            d = beta_of(family, _i, ios[i % 3], i < 3 ? ios[i] : F32, -.5, false, &out);
            near(d, .37754067, 1e-6, "beta(-.5) in d");
            near(out, .37754067, 1e-6, "beta(-.5) in out");
        }
}
END_TEST

START_TEST(beta_extremes)
{
    LOOP_HEAD
    static const struct {
        double b, beta;
    } cases[] = {{0, .5}, {100, 1}, {1e4, 1}, {-20, 2.0611536e-9}, {-1e4, 0}, {-100, 3.7200760e-44}};
    H_FAMILIES (family, KDA, GDN)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            double out, d = beta_of(family, _i, F32, F32, cases[i].b, false, &out);
            dc_check(fabs(d - cases[i].beta) <= 1e-6 * cases[i].beta + 2e-38, "beta(%g) = %g", cases[i].b, d);
            dc_assert(isfinite(out));
        }
}
END_TEST

START_TEST(negative_eigenvalues_double_beta)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN) {
        double out, d = beta_of(family, _i, BF16, BF16, .5, true, &out);
        near(d, 2 * .62245933, 1e-6, "2 beta in d");
        near(out, 2 * .62245933, 1e-6, "2 beta in out");
    }
}
END_TEST

/* B02: eps inside the root, on the sum. */
START_TEST(b02_norm_of_tiny_and_zero_vectors)
{
    LOOP_HEAD
    static const struct {
        double each, normalised;
    } cases[] = {{1e-4, .0662266}, {1, .0883883476}, {1e3, .0883883476}, {1e-8, 1e-5}, {0, 0}};
    H_FAMILIES (family, KDA, GDN)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            dc_options o = plain(family, _i);
            o.spec.K = 128;
            o.has_scale = true;
            o.scale = 1;
            dc_case *c = empty_case(&o);
            set_all(c->in[DC_K], 128, cases[i].each);
            set_all(c->in[DC_Q], 128, cases[i].each);
            set_all(c->in[DC_V], 6, 3);
            set_all(c->in[DC_B], 1, 200);
            step(c, 0);
            double x = cases[i].normalised;
            for (int64_t j = 0; j < 128; j++)
                near(record(c, DC_POOL_K, 0, j), x, 1e-6, "k");
            near(dc_out(c, 0, 0, 5), 3 * 128 * x * x, 2e-6, "v (k.q)");
            dc_free(c);
        }
}
END_TEST

START_TEST(no_norm_leaves_k_and_q)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN) {
        dc_options o = plain(family, _i);
        o.no_norm = true;
        dc_case *c = empty_case(&o);
        c->in[DC_K][1] = 3;
        c->in[DC_Q][1] = 5;
        set_all(c->in[DC_V], 6, 1);
        step(c, 0);
        near(record(c, DC_POOL_K, 0, 1), 3, 1e-7, "k");
        near(dc_out(c, 0, 0, 0), .5 * 3 * 5 / 2, 1e-6, "beta v (k.q) K^-1/2"); /* also the default scale */
        dc_free(c);
    }
}
END_TEST

/* The g that a step leaves in the ring: of head 0, channel 0 (KDA: of all channels, equal). */
static double gate_of(const dc_options *options, double A_log, double a, double bias)
{
    dc_case *c = empty_case(options);
    set_all(c->weights[DC_A_LOG], dc_weight_size(c, DC_A_LOG), A_log);
    set_all(c->weights[DC_DT_BIAS], dc_weight_size(c, DC_DT_BIAS), bias);
    set_all(c->in[DC_A], dc_inner(c, DC_A), a);
    step(c, 0);
    double g = record(c, DC_POOL_G, 0, 0);
    for (int64_t i = 1; i < dc_record_size(c, DC_POOL_G); i++)
        dc_assert(record(c, DC_POOL_G, 0, i) == g);
    dc_assert(isfinite(dc_out(c, 0, 0, 0)));
    dc_free(c);
    return g;
}

/* B03: a scale, not a clamp; B04: the bound is honoured, from the model and from the call; B05: A_log absent. */
START_TEST(b03_b04_b05_safe_gate)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN) {
        dc_options o = plain(family, _i);
        o.spec.bounded = true;
        near(gate_of(&o, 1, .3, .4), -4.351039, 1e-6, "lb = -5");
        near(gate_of(&o, 1, 40, 0), -5, 1e-6, "lb = -5 far up");
        near(gate_of(&o, 0, -20, 0), -5 * 2.0611536e-9, 4e-6, "lb = -5 far down");
        o.no_A_log = true;
        near(gate_of(&o, 0, .3, .4), -3.340939, 1e-6, "lb = -5, no A_log");
        o.lower_bound = -2;
        near(gate_of(&o, 0, .3, .4), -3.340939 * 2 / 5, 1e-6, "lb = -2, no A_log");
        o.no_A_log = false;
        o.has_bound = true;
        o.bound = -1.5;
        near(gate_of(&o, 1, .3, .4), -4.351039 * 1.5 / 5, 1e-6, "override of the model's bound");
        o.spec.bounded = false;
        near(gate_of(&o, 1, .3, .4), -4.351039 * 1.5 / 5, 1e-6, "a bound where the model has none");
    }
}
END_TEST

START_TEST(b05_no_A_log_without_a_bound_is_an_error)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = plain(family, _i);
        dc_case *c = empty_case(&o);
        const int64_t slots[1] = {0};
        dc_begin(c, slots, NULL);
        dc_put_inputs(c, 0);
        c->calls[0]->roles[RSSM_T_A_LOG] = NULL;
        h_snapshot before = h_snapshot_take(c->calls[0]);
        rssm_error err = h_error();
        dc_equal(dc_try_decode(c, 0, &err), RSSM_ERR_MISSING);
        dc_equal(err.role, RSSM_T_A_LOG);
        dc_equal(h_snapshot_differs(&before, c->calls[0]), RSSM_T_NONE);
        h_snapshot_free(&before);
        dc_free(c);
    }
}
END_TEST

static const struct {
    double x, softplus;
} softplus_figures[] = {{89, 89},
                        {1000, 1000},
                        {20.5, 20.5},
                        {19.5, 19.500000003398},
                        {1, 1.3132616875182},
                        {0, .69314718055995},
                        {-5, .0067153484891179},
                        {-16.6, 6.1760611449e-8},
                        {-40, 4.2483542552916e-18}};

/* B06, and below -16.6 where log(1 + exp x) is 0. */
START_TEST(b06_softplus)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN)
        for (size_t i = 0; i < sizeof softplus_figures / sizeof softplus_figures[0]; i++) {
            dc_options o = plain(family, _i);
            double x = (double)(float)softplus_figures[i].x, slope = x < -10 ? softplus_figures[i].softplus : 0;
            double want = softplus_figures[i].softplus + slope * (x - softplus_figures[i].x);
            near(gate_of(&o, 0, x, 0), -want, 2e-6, "softplus");
            near(gate_of(&o, 1, 0, x), -2.718281828 * want, 2e-6, "e softplus");
        }
    dc_options o = plain(KDA, _i);
    dc_assert(fabs(gate_of(&o, 0, -200, 0)) < 1e-37);
    dc_assert(fabs(gate_of(&o, 0, -3e38, 0)) < 1e-37);
}
END_TEST

/* B14: 1.3 in bf16 is 1.296875; exp of that widened is 3.65784..., rounded to bf16 it would be 3.65625. */
START_TEST(b14_A_log_is_widened_before_exp)
{
    LOOP_HEAD
    static const struct {
        int32_t dtype;
        double rate;
    } cases[] = {{F32, 3.6692966676}, {BF16, 3.657847}, {FP16, 3.6685801}};
    H_FAMILIES (family, KDA, MAMBA2)
        for (int i = 0; i < 3; i++) {
            dc_options o = plain(family, _i);
            o.spec.weights = cases[i].dtype;
            double rate = exp(rec_round(cases[i].dtype, 1.3));
            near(rate, cases[i].rate, 1e-5, "the test's own figure");
            if (family != MAMBA2) {
                near(gate_of(&o, 1.3, 0, 0), -rate * .69314718055995, 1e-6, "g");
                continue;
            }
            dc_case *c = empty_case(&o); /* what remains of a state of ones after dt = log 2 */
            for (int64_t j = 0; j < dc_pool_inner(c, DC_POOL_STATE); j++)
                rec_store(F32, dc_slot(c, 0, DC_POOL_STATE, 0), j, 1);
            c->weights[DC_A_LOG][0] = 1.3;
            step(c, 1);
            near(state_at(c, 3), exp(-rate * .69314718055995), 1e-6, "state");
            dc_free(c);
        }
}
END_TEST

/* B08: natural exponential. beta = 0 (or x = 0) makes the step a pure decay by exp(-1). */
START_TEST(b08_decay_is_a_natural_exponential)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = plain(family, _i);
        dc_case *c = empty_case(&o);
        for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
            rec_store(F32, dc_slot(c, 0, DC_POOL_STATE, 0), i, (double)(i + 1));
        set_all(c->in[DC_A], dc_inner(c, DC_A), .541324854612918); /* softplus = 1 */
        set_all(c->in[DC_K], 4, 1);
        set_all(c->in[DC_B], dc_inner(c, DC_B), -1e4);
        step(c, 1);
        for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
            near(state_at(c, i), .367879441 * (double)(i + 1), 1e-6, "state");
        dc_free(c);
    }
}
END_TEST

/* B29: d k^T lands in [v][k]. */
START_TEST(b29_state_is_value_by_key)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, MAMBA2) {
        dc_options o = plain(family, _i);
        o.no_norm = family != MAMBA2;
        dc_case *c = empty_case(&o);
        c->in[DC_K][1] = 1;
        c->in[DC_V][4] = 1;
        set_all(c->in[DC_B], dc_inner(c, DC_B), 200);
        if (family == MAMBA2)
            c->in[DC_A][0] = .541324854612918; /* dt = 1 */
        step(c, 1);
        for (int64_t i = 0; i < 24; i++)
            dc_assert(fabs(state_at(c, i) - (i == 4 * 4 + 1)) <= 1e-6);
        dc_free(c);
    }
}
END_TEST

/* B11, B12: value head hv reads key head hv / (HV / H). With k = (h + 1) e0, q = e0 and beta = 1 (dt = 1) the output
 * is h + 1. */
static void check_groups(int32_t family, int engine, int32_t H, int32_t HV)
{
    dc_options o = plain(family, engine);
    o.spec.H = H;
    o.spec.HV = HV;
    if (family != MAMBA2) {
        o.no_norm = o.has_scale = true;
        o.scale = 1;
    }
    dc_case *c = empty_case(&o);
    for (int32_t h = 0; h < H; h++) {
        c->in[DC_K][h * 4] = h + 1;
        c->in[DC_Q][h * 4] = 1;
        c->in[DC_Q][h * 4 + 1] = h + 1;
    }
    set_all(c->in[DC_V], dc_inner(c, DC_V), 1);
    set_all(c->in[DC_B], dc_inner(c, DC_B), 200);
    if (family == MAMBA2)
        set_all(c->in[DC_A], dc_inner(c, DC_A), .541324854612918);
    step(c, 0);
    for (int32_t hv = 0; hv < HV; hv++)
        near(dc_out(c, 0, 0, hv * 6 + 5), hv / (HV / H) + 1, 1e-6, "out of a value head");
    for (int32_t h = 0; h < H; h++)
        near(record(c, DC_POOL_K, h, 0), h + 1, 1e-6, "k record of a key head");
    set_all(c->in[DC_V], dc_inner(c, DC_V), 0); /* the second step reads the ring: k = e1, q = (1, h + 1) */
    set_all(c->in[DC_K], dc_inner(c, DC_K), 0);
    set_all(c->weights[DC_A_LOG], HV, -40);
    step(c, 0);
    for (int32_t hv = 0; hv < HV; hv++)
        near(dc_out(c, 0, 0, hv * 6 + 5), hv / (HV / H) + 1, 2e-6, "out of a value head through the ring");
    dc_free(c);
}

START_TEST(b11_b12_heads_are_grouped)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, MAMBA2) {
        check_groups(family, _i, 2, 4);
        check_groups(family, _i, 16, 32);
        check_groups(family, _i, 3, 15);
        check_groups(family, _i, 1, 7);
    }
}
END_TEST

/* Default K^-1/2, or the call's. */
START_TEST(scale_override)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN)
        for (int given = 0; given < 2; given++) {
            dc_options o = plain(family, _i);
            o.has_scale = given;
            o.scale = -3.25;
            dc_case *c = empty_case(&o);
            c->in[DC_K][0] = c->in[DC_Q][0] = 10;
            set_all(c->in[DC_V], 6, 2);
            step(c, 0);
            near(dc_out(c, 0, 0, 1), given ? -3.25 : .5, 1e-6, "out");
            dc_free(c);
        }
}
END_TEST

/* One token forgets nearly everything, the next ones little: sums of gates from the newest on keep the small ones
 * exact, a difference of sums from the oldest on would lose them beside the large one. */
START_TEST(gates_of_very_different_sizes)
{
    LOOP_HEAD
    const int64_t slots[3] = {2, 0, 1};
    dc_worst worst = {0};
    for (int i = 0; i < 12; i++) {
        dc_options o = {.engine = _i};
        o.spec = (h_spec){.family = KDA + i % 3, .io = F32, .L = 16, .K = 16, .V = 8, .S = 3, .drafts = i < 6 ? 0 : 3};
        if (!h_has_family(o.spec.family))
            continue;
        dc_case *c = dc_new(&o, (uint64_t)i);
        for (int s = 0; s < 24; s++) {
            dc_poison(c);
            dc_begin(c, slots, NULL);
            dc_randomise(c);
            for (int64_t x = 0; x < c->spec.B * dc_inner(c, DC_A); x++)
                c->in[DC_A][x] = s % 5 == i % 5 ? h_uniform(&c->random, 300, 2000) : h_uniform(&c->random, -3, -1);
            /* Without a state the output is d (k.q): no k.q near 0, whose relative error says nothing about gates. */
            for (int64_t x = 0; x < c->spec.B * dc_inner(c, DC_Q); x++)
                c->in[DC_Q][x] = c->in[DC_K][x] + .3 * c->in[DC_Q][x];
            dc_put_inputs(c, 0);
            dc_merge(&worst, dc_decode_checked(c, 0));
        }
        dc_free(c);
    }
    dc_print_worst("gates_of_very_different_sizes", _i, worst);
}
END_TEST

/* g beyond float32: the state before the token is gone, and nothing becomes NaN. */
START_TEST(a_gate_that_forgets_everything)
{
    LOOP_HEAD
    H_FAMILIES (family, KDA, GDN) {
        dc_options o = plain(family, _i);
        o.no_norm = o.has_scale = true;
        o.scale = 1;
        dc_case *c = dc_new(&o, 1);
        set_all(c->weights[DC_A_LOG], 1, 20);
        set_all(c->weights[DC_DT_BIAS], dc_weight_size(c, DC_DT_BIAS), 0);
        set_all(c->in[DC_Q], 4, .5);
        set_all(c->in[DC_K], 4, 1);
        set_all(c->in[DC_V], 6, 3);
        set_all(c->in[DC_B], 1, 0);
        for (int s = 0; s < 9; s++) {
            set_all(c->in[DC_A], dc_inner(c, DC_A), s % 2 ? 3e38 : 1e6);
            step(c, 0);
            for (int64_t i = 0; i < 6; i++)
                near(dc_out(c, 0, 0, i), .5 * 3 * 2, 1e-6, "beta v (k.q)");
        }
        step(c, 1);
        for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
            near(state_at(c, i), .5 * 3, 1e-6, "beta v k");
        dc_free(c);
    }
}
END_TEST

/* ---- Mamba-2 ---------------------------------------------------------------------------------------------------- */

/* The dt in the ring, and the decay that goes with it. */
static double dt_of(const dc_options *options, double dt, double bias)
{
    dc_case *c = empty_case(options);
    c->in[DC_A][0] = dt;
    if (dc_weight_size(c, DC_DT_BIAS))
        c->weights[DC_DT_BIAS][0] = bias;
    c->in[DC_V][0] = c->in[DC_K][0] = c->in[DC_Q][0] = 1;
    step(c, 0);
    double in_ring = record(c, DC_POOL_G, 0, 0);
    near(dc_out(c, 0, 0, 0), in_ring, 1e-6, "y = dt x (B.C)");
    dc_free(c);
    return in_ring;
}

START_TEST(b13_dt_is_clamped_to_the_limit_only)
{
    LOOP_HEAD
    double tiny = log(expm1(1e-4)); /* softplus of it is 1e-4 */
    dc_options o = plain(MAMBA2, _i);
    near(dt_of(&o, tiny, 0), 1e-4, 2e-6, "no limit");
    o.has_dt_limit = true;
    o.dt_max = (double)INFINITY;
    near(dt_of(&o, tiny, 0), 1e-4, 2e-6, "limit [0, infinity]");
    o.dt_min = .01;
    o.dt_max = .1;
    near(dt_of(&o, tiny, 0), .01, 1e-7, "below the limit");
    near(dt_of(&o, 0, 0), .1, 1e-7, "above the limit");
    near(dt_of(&o, log(expm1(.05)), 0), .05, 1e-6, "inside the limit");
    near(dt_of(&o, -100, 0), .01, 1e-7, "softplus 0");
    near(dt_of(&o, 1e30, 0), .1, 1e-7, "far above");
}
END_TEST

/* time_step_min and time_step_max of a config are for initialisation: only time_step_limit clamps. */
START_TEST(b13_config_time_step_min_does_not_clamp)
{
    LOOP_HEAD
    static const char json[] =
        "{\"model_type\": \"mamba2\", \"num_hidden_layers\": 1, \"hidden_size\": 3, \"expand\": 2, "
        "\"num_heads\": 1, \"head_dim\": 6, \"n_groups\": 1, \"state_size\": 4, \"conv_kernel\": 4, "
        "\"time_step_min\": 0.001, \"time_step_max\": 0.1, \"time_step_limit\": [0.0, Infinity]}";
    static const char limited[] =
        "{\"model_type\": \"mamba2\", \"num_hidden_layers\": 1, \"hidden_size\": 3, \"expand\": 2, "
        "\"num_heads\": 1, \"head_dim\": 6, \"n_groups\": 1, \"state_size\": 4, \"conv_kernel\": 4, "
        "\"time_step_min\": 0.001, \"time_step_max\": 0.1, \"time_step_limit\": [0.01, 0.1]}";
    dc_options o = plain(MAMBA2, _i);
    o.json = json;
    near(dt_of(&o, log(expm1(1e-4)), 0), 1e-4, 2e-6, "limit [0, Infinity]");
    near(dt_of(&o, 3, 0), 3.0485873515737, 1e-6, "limit [0, Infinity]");
    o.json = limited;
    near(dt_of(&o, log(expm1(1e-4)), 0), .01, 1e-7, "limit [.01, .1]");
    near(dt_of(&o, 3, 0), .1, 1e-7, "limit [.01, .1]");
}
END_TEST

START_TEST(mamba2_dt_softplus_and_bias)
{
    LOOP_HEAD
    dc_options o = plain(MAMBA2, _i);
    for (size_t i = 0; i < sizeof softplus_figures / sizeof softplus_figures[0]; i++) {
        double x = (double)(float)softplus_figures[i].x, slope = x < -10 ? softplus_figures[i].softplus : 0;
        double want = softplus_figures[i].softplus + slope * (x - softplus_figures[i].x);
        near(dt_of(&o, x, 0), want, 2e-6, "softplus(dt)");
        near(dt_of(&o, 0, x), want, 2e-6, "softplus(bias)");
    }
    near(dt_of(&o, .25, .75), 1.3132616875182, 1e-6, "dt + bias");
    o.no_dt_bias = true;
    near(dt_of(&o, 1, 55), 1.3132616875182, 1e-6, "no bias");
}
END_TEST

/* y = S C + D x, then y z sigmoid(z). One head of x = 2, dt = 1, B.C = 3. */
START_TEST(mamba2_D_and_z)
{
    LOOP_HEAD
    for (int variant = 0; variant < 4; variant++) {
        dc_options o = plain(MAMBA2, _i);
        o.no_D = variant & 1;
        o.no_z = variant & 2;
        dc_case *c = empty_case(&o);
        c->in[DC_A][0] = .541324854612918;
        c->in[DC_K][2] = 3;
        c->in[DC_Q][2] = 1;
        set_all(c->in[DC_V], 6, 2);
        if (!o.no_D)
            c->weights[DC_D][0] = -.5;
        if (!o.no_z)
            for (int i = 0; i < 6; i++)
                c->in[DC_Z][i] = i - 3; /* -3 .. 2 */
        step(c, 0);
        for (int i = 0; i < 6; i++) {
            double y = o.no_D ? 6 : 5, z = i - 3;
            near(dc_out(c, 0, 0, i), o.no_z ? y : y * z / (1 + exp(-z)), 1e-6, "y");
        }
        dc_free(c);
    }
}
END_TEST

/* A in place of A_log = log(-A). */
START_TEST(mamba2_A_in_place_of_A_log)
{
    LOOP_HEAD
    dc_options o = plain(MAMBA2, _i);
    o.decay = true;
    dc_case *c = empty_case(&o);
    for (int64_t i = 0; i < dc_pool_inner(c, DC_POOL_STATE); i++)
        rec_store(F32, dc_slot(c, 0, DC_POOL_STATE, 0), i, 1);
    c->in[DC_A][0] = .541324854612918;
    c->weights[DC_DECAY][0] = -.7;
    step(c, 1);
    near(state_at(c, 7), exp(-.7), 1e-6, "state");
    dc_free(c);
}
END_TEST

/* ---- dtypes of gates and weights: all of them against the recurrence -------------------------------------------- */

START_TEST(weights_and_gates_in_every_dtype)
{
    LOOP_HEAD
    static const int32_t dtypes[] = {F32, BF16, FP16};
    const int64_t slots[3] = {1, 0, 4};
    dc_worst worst = {0};
    for (int i = 0; i < 3 * 3 * 3 * 2; i++) {
        dc_options o = {.engine = _i};
        o.spec = (h_spec){.family = KDA + i % 3,
                          .L = 3,
                          .weights = dtypes[i / 3 % 3],
                          .io = dtypes[i / 9 % 3],
                          .gate = i >= 27 ? F32 : 0,
                          .out = i >= 27 ? F32 : 0,
                          .apart = i >= 27};
        if (!h_has_family(o.spec.family))
            continue;
        o.flat = i % 2;
        o.no_dt_bias = o.spec.family == MAMBA2 && i % 4 == 0;
        o.no_D = i % 5 == 0;
        o.no_z = i % 7 == 0;
        o.decay = o.spec.family == MAMBA2 && i % 3 == 2 && i >= 27;
        dc_case *c = dc_new(&o, (uint64_t)i);
        for (int s = 0; s < 4; s++)
            dc_merge(&worst, dc_step_checked(c, slots, NULL));
        dc_free(c);
    }
    dc_print_worst("weights_and_gates_in_every_dtype", _i, worst);
}
END_TEST

/* Bounded gates, doubled beta, unnormalised q and k, a scale: against the recurrence. */
START_TEST(model_options_against_the_recurrence)
{
    LOOP_HEAD
    const int64_t slots[3] = {2, 3, 1};
    dc_worst worst = {0};
    for (int i = 0; i < 32; i++) {
        dc_options o = {.engine = _i, .neg_eigval = i & 1, .no_norm = i & 2, .has_scale = i & 4, .scale = .3};
        o.spec = (h_spec){.family = i & 16 ? GDN : KDA, .L = 3, .io = i % 3 + 1, .K = 5, .V = 7, .bounded = i & 8};
        if (!h_has_family(o.spec.family))
            continue;
        o.lower_bound = -.75;
        o.no_A_log = (i & 10) == 10;
        dc_case *c = dc_new(&o, (uint64_t)i);
        for (int s = 0; s < 4; s++)
            dc_merge(&worst, dc_step_checked(c, slots, NULL));
        dc_free(c);
    }
    dc_print_worst("model_options_against_the_recurrence", _i, worst);
}
END_TEST

void formulas_tests(h_suite *suite);

void formulas_tests(h_suite *suite)
{
    static const TTest *const *const tests[] = {&b01_beta_is_not_rounded,
                                                &beta_extremes,
                                                &negative_eigenvalues_double_beta,
                                                &b02_norm_of_tiny_and_zero_vectors,
                                                &no_norm_leaves_k_and_q,
                                                &b03_b04_b05_safe_gate,
                                                &b05_no_A_log_without_a_bound_is_an_error,
                                                &b06_softplus,
                                                &b08_decay_is_a_natural_exponential,
                                                &b14_A_log_is_widened_before_exp,
                                                &b29_state_is_value_by_key,
                                                &b11_b12_heads_are_grouped,
                                                &scale_override,
                                                &gates_of_very_different_sizes,
                                                &a_gate_that_forgets_everything,
                                                &b13_dt_is_clamped_to_the_limit_only,
                                                &b13_config_time_step_min_does_not_clamp,
                                                &mamba2_dt_softplus_and_bias,
                                                &mamba2_D_and_z,
                                                &mamba2_A_in_place_of_A_log,
                                                &weights_and_gates_in_every_dtype,
                                                &model_options_against_the_recurrence};
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        h_add(suite, &(h_tests){.name = (*tests[i])->name, .test = *tests[i], .count = DC_NUM_ENGINES, .timeout = 60});
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("formulas", formulas_tests, true);
}
#endif
