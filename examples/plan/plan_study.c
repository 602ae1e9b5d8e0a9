#include "plan_study.h"

#include <inttypes.h>

enum { DEFAULT_GIB = 80, PAGE_DRAFTS = 15, EXAMPLE_DRAFTS = 3 };

const variant *study_length(const study *s, int32_t length)
{
    return &s->lengths[length - 1];
}

double study_step_us(const study *s, const host *h, int64_t step_bytes, int64_t batch)
{
    return 1e6 * (double)step_bytes * (double)h->layout.num_layers * (double)batch / s->bandwidth;
}

/* Keeps `set` ascending and free of twins; a full set stays as it is. */
static void insert(int32_t *set, int *count, int capacity, int32_t value)
{
    int at = 0;
    while (at < *count && set[at] < value)
        at++;
    if (*count == capacity || (at < *count && set[at] == value))
        return;
    for (int i = (*count)++; i > at; i--)
        set[i] = set[i - 1];
    set[at] = value;
}

/* The plan's arguments with L and the number of slots fixed at what it came to. */
static rssm_init_args fixed_args(const host *h, const plan_options *o)
{
    rssm_init_args args = o->init;
    args.ring_length = h->model.ring_length;
    args.memory_budget_bytes = 0;
    args.num_slots = h->layout.num_slots;
    return args;
}

static void study_ranks(study *s, const host *h, const plan_options *o)
{
    int32_t sizes[STUDY_RANKS] = {0};
    insert(sizes, &s->num_ranks, STUDY_RANKS, o->init.tp_size);
    for (int32_t tp = 1; tp <= 64; tp *= 2)
        insert(sizes, &s->num_ranks, STUDY_RANKS, tp);
    for (int i = 0; i < s->num_ranks; i++) {
        rssm_init_args args = fixed_args(h, o);
        args.tp_size = sizes[i];
        args.tp_rank = sizes[i] == o->init.tp_size ? o->init.tp_rank : 0;
        s->ranks[i] = (study_rank){.tp = sizes[i], .plan = plan_variant(h, &args)};
    }
}

static int study_lengths(study *s, const host *h, const plan_options *o)
{
    static const int32_t shown[] = {1, 2, 4, 8, 16, 32, 64};
    s->min_length = o->init.max_draft_tokens + 1;
    if (s->min_length < 1 || h->model.ring_length < s->min_length || h->model.ring_length > STUDY_LENGTHS)
        return host_refuse(h, "the plugin's ring length %" PRId32 " is not in %" PRId32 "..%d", h->model.ring_length,
                           s->min_length, STUDY_LENGTHS);
    s->fewest_bytes = STUDY_LENGTHS;
    for (int32_t L = STUDY_LENGTHS; L >= s->min_length; L--) {
        rssm_init_args args = fixed_args(h, o);
        args.ring_length = L;
        args.num_slots = 1;
        variant *v = &s->lengths[L - 1];
        *v = plan_variant(h, &args);
        if (v->status != RSSM_OK)
            return host_refuse(h, "the plan at L = %" PRId32 ": %s", L, v->reason);
        if (v->step_bytes <= study_length(s, s->fewest_bytes)->step_bytes)
            s->fewest_bytes = L;
    }
    insert(s->rows, &s->num_rows, STUDY_ROWS, h->model.ring_length);
    insert(s->rows, &s->num_rows, STUDY_ROWS, s->fewest_bytes);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        if (shown[i] >= s->min_length)
            insert(s->rows, &s->num_rows, STUDY_ROWS, shown[i]);
    return EXIT_OK;
}

/* Sessions that fit `budget`, 0 if not even one does. */
static int fit(const host *h, const plan_options *o, const variant *one_slot, int64_t budget, int64_t *sessions)
{
    *sessions = 0;
    if (budget < one_slot->layout.pool_bytes)
        return EXIT_OK;
    rssm_init_args args = fixed_args(h, o);
    args.ring_length = one_slot->ring_length;
    args.num_slots = 0;
    args.memory_budget_bytes = budget;
    const variant v = plan_variant(h, &args);
    if (v.status != RSSM_OK)
        return host_refuse(h, "the plan in %" PRId64 " bytes: %s", budget, v.reason);
    *sessions = v.layout.num_slots;
    return EXIT_OK;
}

static int study_sessions(study *s, const host *h, const plan_options *o)
{
    static const int32_t shown[] = {1, 16, 64};
    s->memory = o->init.memory_budget_bytes;
    if (s->memory == 0)
        s->memory = (int64_t)DEFAULT_GIB << 30;
    if (s->memory < h->layout.pool_bytes)
        s->memory = h->layout.pool_bytes;
    insert(s->lines, &s->num_lines, STUDY_LINES, h->model.ring_length);
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++)
        if (shown[i] >= s->min_length)
            insert(s->lines, &s->num_lines, STUDY_LINES, shown[i]);
    int code = EXIT_OK;
    for (int b = 0; b < STUDY_BUDGETS; b++) {
        const int64_t part = s->memory / STUDY_BUDGETS * (b + 1);
        s->budgets[b] = b + 1 == STUDY_BUDGETS ? s->memory : part;
        for (int i = 0; i < s->num_lines && code == EXIT_OK; i++)
            code = fit(h, o, study_length(s, s->lines[i]), s->budgets[b], &s->sessions[i][b]);
    }
    return code;
}

static int study_speculation(study *s, const host *h, const plan_options *o)
{
    const int32_t drafts = o->init.max_draft_tokens;
    s->num_drafts = drafts > PAGE_DRAFTS ? drafts : PAGE_DRAFTS;
    s->example_drafts = drafts > 0 ? drafts : EXAMPLE_DRAFTS;
    for (int D = 0; D <= s->num_drafts; D++) {
        rssm_init_args args = fixed_args(h, o);
        args.num_slots = 1;
        args.max_draft_tokens = D;
        if (args.ring_length < D + 1)
            args.ring_length = D + 1;
        study_drafts *d = &s->drafts[D];
        d->plan = plan_variant(h, &args);
        if (d->plan.status != RSSM_OK)
            return host_refuse(h, "the plan with %d drafts: %s", D, d->plan.reason);
        const rssm_layout *plain = &s->drafts[0].plan.layout;
        d->snapshots = D + 2;
        if (__builtin_mul_overflow(d->snapshots, plain->slot_state_bytes + plain->slot_conv_bytes, &d->snapshot_bytes))
            return host_refuse(h, "%" PRId64 " state snapshots do not fit in 63 bits of bytes", d->snapshots);
    }
    return EXIT_OK;
}

int study_make(study *s, const host *h, const plan_options *o)
{
    *s = (study){.bandwidth = (double)(o->bandwidth > 0 ? o->bandwidth : PLAN_BANDWIDTH)};
    for (int i = 0; i < STUDY_BATCHES; i++)
        s->batches[i] = (int64_t)1 << i;
    study_ranks(s, h, o);
    int code = study_lengths(s, h, o);
    if (code == EXIT_OK)
        code = study_sessions(s, h, o);
    if (code == EXIT_OK)
        code = study_speculation(s, h, o);
    return code;
}
