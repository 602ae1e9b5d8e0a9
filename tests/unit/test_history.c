/* The property that rules all: any order of operations on slots equals the plain recurrence of the tokens that each slot
 * accepted. Each test is one random world and one random history of it (history.h says what is checked).
 *
 *     test_history                                all cases under Check
 *     test_history --case N [--skip a,b,...]      one case, without these operations
 *     test_history --shrink N                     fewest operations of case N that still fail, by trial; then runs them
 *
 * $RSSM_HISTORY = cases:operations of each [600:60], or first-last:operations; $RSSM_HISTORY_ENGINE = 0 .. 4 takes one engine for all (1: with the
 * mirror of tests/gpu it is the GPU). $RSSM_TEST_FIGURES = 1 prints what was done and the worst errors. */
#define _POSIX_C_SOURCE 200809L
#include "history.h"
#include "rssm_fault.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CASES = 600, OPERATIONS = 60, MAX_OPERATIONS = 100000 };

/* ---- random worlds ---------------------------------------------------------------------------------------------- */

typedef struct sizes {
    int32_t H, HV, K, V;
} sizes;

/* Small primes mostly; the last ones have kernels of their own on a GPU. */
static const sizes all_sizes[] = {{1, 1, 4, 6},   {1, 3, 7, 5},   {2, 4, 8, 3},     {2, 2, 16, 8},
                                  {3, 6, 5, 11},  {1, 2, 13, 17}, {2, 4, 16, 16},   {1, 4, 32, 24},
                                  {2, 2, 64, 20}, {1, 2, 33, 4},  {1, 2, 128, 128}, {1, 2, 128, 64}};

static int64_t pick(uint64_t *random, int64_t n)
{
    return (int64_t)(h_random(random) % (uint64_t)n);
}

static int32_t pick_dtype(uint64_t *random)
{
    return (int32_t)(RSSM_DTYPE_FLOAT32 + pick(random, 3));
}

static int pick_engine(uint64_t *random)
{
    const char *forced = getenv("RSSM_HISTORY_ENGINE");
    static signed char available[DC_NUM_ENGINES]; /* 0: not asked yet */
    int engine = forced ? atoi(forced) : (int)pick(random, DC_NUM_ENGINES);
    if (forced)
        return engine;
    if (!available[engine])
        available[engine] = dc_engine_available(engine) ? 1 : -1;
    return available[engine] > 0 ? engine : 0;
}

static void pick_dtypes(h_spec *s, uint64_t *random, bool trajectory)
{
    s->io = pick_dtype(random);
    s->ring = pick(random, 2) ? s->io : pick_dtype(random);
    s->state = pick(random, 3) ? RSSM_DTYPE_FLOAT32 : pick_dtype(random);
    s->gate = pick(random, 2) ? s->io : RSSM_DTYPE_FLOAT32;
    s->out = pick(random, 2) ? s->io : RSSM_DTYPE_FLOAT32;
    s->weights = pick_dtype(random);
    if (!trajectory)
        return;
    s->state = s->out = RSSM_DTYPE_FLOAT32;
    s->ring = s->family == RSSM_FAMILY_MAMBA2 ? s->io : RSSM_DTYPE_FLOAT32;
}

static void pick_ring(h_spec *s, uint64_t *random)
{
    s->L = 1 + (int32_t)pick(random, 16);
    if (pick(random, 4) == 0)
        s->L = 16 + (int32_t)pick(random, 49);
    if (s->L >= 2 && pick(random, 4) > 0) {
        int32_t most = s->L - 1 < 15 ? s->L - 1 : 15;
        s->drafts = 1 + (int32_t)pick(random, most);
    }
}

/* What a decode call may look like. */
static void pick_forms(dc_options *o, uint64_t *random)
{
    o->flat = pick(random, 4) == 0;
    o->spec.row_gap = pick(random, 2) ? 1 + pick(random, 9) : 0;
    o->misaligned = !o->flat && o->spec.row_gap > 0 && pick(random, 2);
    o->spec.slot_gap = pick(random, 2) * 8 * (1 + pick(random, 3));
    o->spec.apart = !o->conv && pick(random, 3) == 0;
    o->no_z = pick(random, 2);
    o->no_D = pick(random, 3) == 0;
    o->decay = o->spec.family == RSSM_FAMILY_MAMBA2 && pick(random, 3) == 0;
    o->no_ring = o->spec.L == 1 && pick(random, 2);
    o->spec.index_bits = pick(random, 2) ? 32 : 64;
}

static bool with_gpu(void)
{
    return getenv("RSSM_MIRRORED") != NULL || h_on_cuda();
}

/* What most models have, and kernels are tuned for: K = 128, bfloat16, a short ring. */
static void make_usual(dc_options *o, uint64_t *random)
{
    h_spec *s = &o->spec;
    s->K = 128;
    s->V = s->family == RSSM_FAMILY_MAMBA2 ? 64 : 128;
    s->H = 1;
    s->HV = 1 + (int32_t)pick(random, 3);
    s->layers = 1;
    o->no_ring = false;
    s->L = 2 + (int32_t)pick(random, 15);
    s->drafts = 1 + (int32_t)pick(random, s->L - 1);
    s->io = s->ring = s->gate = s->out = RSSM_DTYPE_BFLOAT16;
    s->weights = RSSM_DTYPE_FLOAT32;
    s->state = pick(random, 2) ? RSSM_DTYPE_FLOAT32 : RSSM_DTYPE_BFLOAT16;
    s->S = s->S < 6 ? s->S : 6;
    if (o->has_pad_slot)
        o->pad_slot = pick(random, s->S);
}

static dc_options pick_options(uint64_t *random, bool *trajectory)
{
    dc_options o = {0};
    h_spec *s = &o.spec;
    const sizes *is = &all_sizes[pick(random, (int64_t)(sizeof all_sizes / sizeof all_sizes[0]))];
    *trajectory = pick(random, 4) == 0;
    s->family = (int32_t)(RSSM_FAMILY_KDA + pick(random, 3));
    s->H = is->H;
    s->HV = is->HV;
    s->K = is->K;
    s->V = is->V;
    s->layers = is->K * is->V > 1000 ? 1 : 1 + (int32_t)pick(random, 3);
    s->S = 3 + pick(random, HI_MAX_SLOTS - 2);
    s->B = HI_MAX_TOKENS;
    s->threads = 1 + (int32_t)pick(random, 2);
    s->bounded = s->family != RSSM_FAMILY_MAMBA2 && pick(random, 3) == 0;
    pick_ring(s, random);
    pick_dtypes(s, random, *trajectory);
    o.conv = pick(random, 2);
    o.engine = pick_engine(random);
    o.no_norm = s->family != RSSM_FAMILY_MAMBA2 && !o.conv && pick(random, 5) == 0;
    o.neg_eigval = s->family != RSSM_FAMILY_MAMBA2 && pick(random, 4) == 0;
    o.has_dt_limit = s->family == RSSM_FAMILY_MAMBA2 && pick(random, 3) == 0;
    o.dt_min = o.has_dt_limit ? .01 : 0;
    o.dt_max = o.has_dt_limit ? .5 : 0;
    o.spread = s->L > 1 && pick(random, 4) == 0;
    o.has_pad_slot = pick(random, 3) == 0;
    o.pad_slot = o.has_pad_slot ? pick(random, s->S) : 0;
    pick_forms(&o, random);
    if (pick(random, with_gpu() ? 2 : 12) == 0) {
        make_usual(&o, random);
        *trajectory = false;
    }
    static const uint32_t flags[] = {0, 0, RSSM_INIT_NO_EARLY_START, RSSM_INIT_NO_SMALL_FLUSH};
    if (getenv("RSSM_MIRRORED")) /* a plugin need not know these flags */
        s->init_flags = flags[pick(random, 4)];
    return o;
}

/* ---- histories -------------------------------------------------------------------------------------------------- */

typedef struct settings {
    int64_t first, last; /* cases first .. last - 1 */
    int64_t operations;
} settings;

static settings read_settings(void)
{
    settings s = {0, CASES, OPERATIONS};
    const char *text = getenv("RSSM_HISTORY");
    char *end = NULL;
    if (text) {
        s.last = strtoll(text, &end, 10);
        if (*end == '-') {
            s.first = s.last;
            s.last = strtoll(end + 1, &end, 10);
        }
        s.operations = *end == ':' ? strtoll(end + 1, NULL, 10) : OPERATIONS;
    }
    if (s.operations > MAX_OPERATIONS)
        s.operations = MAX_OPERATIONS;
    return s;
}

/* The judge has one engine; in front of others the mirror gives the GPU to one. */
static bool on_gpu(const dc_options *o)
{
    return h_on_cuda() || (with_gpu() && strcmp(dc_engine_name(o->engine), "scalar") == 0);
}

/* Worlds have what they like of a family and of the extensions. */
static bool may_run(const dc_options *o)
{
    static const char *const needed[] = {RSSM_EXT_FAULT, RSSM_EXT_SLOTS, RSSM_EXT_VERIFY, RSSM_EXT_CONV};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!h_api()->get_extension(needed[i])) {
            h_skip("needs the extensions fault, slots, verify and conv");
            return false;
        }
    return h_has_family(o->spec.family);
}

/* skip[op]: leave this operation out; NULL: none. */
static void run_case(int64_t number, const bool *skip, hi_figures *figures)
{
    uint64_t seed = (uint64_t)number + 1, random = seed * 0x9E3779B97F4A7C15u;
    bool trajectory;
    dc_options options = pick_options(&random, &trajectory);
    if (!may_run(&options))
        return;
    hi_world *w = hi_new(&options, trajectory, !on_gpu(&options), seed, figures);
    for (int64_t op = 0; op < read_settings().operations; op++)
        if (!skip || !skip[op])
            hi_operation(w, op);
    hi_free(w);
}

/* From one engine to another and back, where either may be the GPU. */
static void run_handover(int64_t number, hi_figures *figures)
{
    uint64_t seed = (uint64_t)number + 1, random = seed * 0xD1342543DE82EF95u;
    bool trajectory;
    dc_options options = pick_options(&random, &trajectory), other = options;
    if (!may_run(&options))
        return;
    other.engine = with_gpu() ? 0 : pick_engine(&random);
    hi_world *a = hi_new(&options, trajectory, !on_gpu(&options), seed, figures);
    hi_world *b = hi_new(&other, trajectory, !on_gpu(&other), seed, figures);
    int64_t part = read_settings().operations / 4;
    for (int64_t op = 0; op < part; op++)
        hi_operation(a, op);
    hi_hand_over(a, b);
    for (int64_t op = part; op < 2 * part; op++)
        hi_operation(b, op);
    hi_hand_over(b, a);
    for (int64_t op = 2 * part; op < 3 * part; op++)
        hi_operation(a, op);
    hi_free(a);
    hi_free(b);
}

START_TEST(test_handover)
{
    hi_figures figures = {0};
    run_handover(read_settings().first + _i, &figures);
}
END_TEST

START_TEST(test_case)
{
    hi_figures figures = {0};
    int64_t number = read_settings().first + _i;
    run_case(number, NULL, &figures);
    if (getenv("RSSM_TEST_FIGURES"))
        fprintf(stderr,
                "case %lld: %lld operations, %lld tokens, %lld drafts, %lld accepted, %lld flushes, %lld folds, %lld "
                "refused; "
                "worst: out %.3f state %.3f record %.3f gate %.3f conv %.3f (1 = the bar)\n",
                (long long)number, (long long)figures.ops, (long long)figures.tokens, (long long)figures.drafts,
                (long long)figures.accepted, (long long)figures.flushes, (long long)figures.folds,
                (long long)figures.refusals, figures.out, figures.state, figures.record, figures.gate, figures.conv);
}
END_TEST

void history_tests(h_suite *suite);

void history_tests(h_suite *suite)
{
    h_add(suite, &(h_tests){.name = "histories",
                            .test = test_case,
                            .count = (int)(read_settings().last - read_settings().first),
                            .timeout = 300,
                            .extension = RSSM_EXT_SLOTS});
    h_add(suite, &(h_tests){.name = "hand-over",
                            .test = test_handover,
                            .count = (int)(read_settings().last - read_settings().first + 7) / 8,
                            .timeout = 300,
                            .extension = RSSM_EXT_SLOTS});
}

#ifndef RSSM_CONFORM

/* ---- shrinking -------------------------------------------------------------------------------------------------- */

/* In a child, which may crash or hang. */
static bool fails(int64_t number, const bool *skip, bool aloud)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        hi_figures figures = {0};
        int quiet = open("/dev/null", O_WRONLY);
        if (!aloud && quiet >= 0)
            dup2(quiet, STDERR_FILENO);
        alarm(300);
        run_case(number, skip, &figures);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

/* Leaves out ever smaller parts of the history, as long as the rest still fails. */
static int shrink(int64_t number)
{
    static bool skip[MAX_OPERATIONS];
    int64_t n = read_settings().operations, left = n;
    if (!fails(number, skip, false)) {
        printf("case %lld passes\n", (long long)number);
        return 0;
    }
    for (int64_t part = n / 2; part > 0; part /= 2)
        for (int64_t first = 0; first < n; first += part) {
            bool before[MAX_OPERATIONS];
            memcpy(before, skip, sizeof before);
            for (int64_t op = first; op < first + part && op < n; op++)
                skip[op] = true;
            if (!fails(number, skip, false))
                memcpy(skip, before, sizeof before);
        }
    for (int64_t op = 0; op < n; op++)
        left -= skip[op];
    printf("case %lld still fails with %lld of its %lld operations:\n", (long long)number, (long long)left,
           (long long)n);
    fails(number, skip, true);
    return 1;
}

static int run_alone(int64_t number, char *list)
{
    static bool skip[MAX_OPERATIONS];
    char *rest = NULL;
    for (char *item = list ? strtok_r(list, ",", &rest) : NULL; item; item = strtok_r(NULL, ",", &rest)) {
        long long op = strtoll(item, NULL, 10);
        if (op >= 0 && op < MAX_OPERATIONS)
            skip[op] = true;
    }
    return fails(number, skip, true);
}

int main(int argc, char **argv)
{
    if (argc >= 3)
        setenv("RSSM_HISTORY_BARE", "1", 1);
    if (argc == 3 && strcmp(argv[1], "--shrink") == 0)
        return shrink(strtoll(argv[2], NULL, 10));
    if ((argc == 3 || (argc == 5 && strcmp(argv[3], "--skip") == 0)) && strcmp(argv[1], "--case") == 0)
        return run_alone(strtoll(argv[2], NULL, 10), argc == 5 ? argv[4] : NULL);
    if (argc != 1) {
        fprintf(stderr, "usage: test_history [--case N [--skip a,b,...] | --shrink N]\n");
        return 64;
    }
    return h_main("history", history_tests, true);
}
#endif
