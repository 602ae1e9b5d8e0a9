/* A window of drafts on a level's vector functions, with one pass over the checkpoint; and the fold of pending records that
 * exports and flushes need.
 *
 * Token i is the plain step (fast.c) of a slot with count + i records: every sum is taken by the same functions in the same
 * order, so outputs and records have the same bits. What it needs before the state (gates, decays, scores of records and
 * earlier drafts' keys) depends on inputs alone and comes first, for all tokens; then each block of the state is read once
 * and meets the decayed q and k of all tokens while it is in the first-level cache, folded before if the window has no room;
 * then, token by token, the records' part, d, out, and the token's d into the ring, where the next token reads it. */
#include <string.h>

#include "cpu/head.h"

/* A window at work: heads[i] is token i, fold the records of the row. */
typedef struct window {
    rssm_worker *worker;
    const rssm_step *step;
    const rssm_row *row;
    rssm_head *heads; /* [len] */
    rssm_head *fold;
    int32_t len;
    int32_t pad_;
} window;

static window make_window(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv)
{
    window w = {.worker = worker, .step = step, .row = row, .heads = worker->scratch, .len = row->len};
    rssm_row visible = rssm_row_behind_fold(step, row);
    int64_t ring_keys = visible.count;
    for (int64_t i = 0; i < w.len; i++) {
        rssm_head_make(&w.heads[i], worker, step, &visible, hv, i);
        w.heads[i].ring_keys = ring_keys;
        visible.count++;
        visible.start++;
    }
    w.fold = &w.heads[w.len];
    rssm_head_make(w.fold, worker, step, row, hv, 0);
    return w;
}

/* What the value heads of a key head share; kept from one to the next. */
static void prepare_key_heads(window *w, int64_t b)
{
    int64_t element = rssm_cpu_dtype_bytes(w->step->k_cache.dtype);
    if (w->worker->cached_row == b && w->worker->cached_head == w->fold->h)
        return;
    for (int64_t i = 0; i < w->len; i++) {
        rssm_head *t = &w->heads[i];
        rssm_head_load_qk(t);
        if (t->kernels->store[t->ring_kind](t->draft_keys + i * w->step->K * element, t->k, w->step->K))
            t->fault |= RSSM_FAULTBIT_RING;
        if (!t->per_channel)
            rssm_head_raw_scores(t);
    }
    if (w->row->flush && !w->fold->per_channel)
        rssm_head_fold_keys(w->fold);
    w->worker->cached_row = b;
    w->worker->cached_head = w->fold->h;
}

/* Later tokens read a draft's gate from the ring. */
static void prepare_tokens(window *w)
{
    for (int64_t i = 0; i < w->len; i++) {
        rssm_head *t = &w->heads[i];
        rssm_head_gates(t);
        rssm_head_store_g(t);
        for (int64_t v = 0; v < w->step->V; v++)
            t->state_y[v] = t->state_u[v] = -0.0f; /* what a sum can be added to without changing a bit of it */
    }
}

static void fold_block(const window *w, int64_t v, int64_t rows)
{
    rssm_head *t = w->fold;
    rssm_fold fold = {.decay = t->decay,
                      .d = t->fold_d + v,
                      .k = t->keys,
                      .d_row = t->v_row,
                      .k_row = t->k_row,
                      .terms = t->row.count};
    if (t->kernels->fold[rssm_kind(w->step->state.dtype)](rssm_head_state(t, v), rows, w->step->K, &fold))
        t->fault |= RSSM_FAULTBIT_STATE;
}

static void do_block(const window *w, int64_t v, int64_t rows)
{
    const rssm_cpu_kernels *f = w->worker->kernels;
    int32_t kind = rssm_kind(w->step->state.dtype);
    const void *state = rssm_head_state(w->fold, v);
    if (w->row->flush)
        fold_block(w, v, rows);
    for (int64_t i = 0; i < w->len; i++) {
        const rssm_head *t = &w->heads[i];
        if (rssm_head_is_mamba2(t))
            f->dot1[kind](t->state_y + v, state, rows, w->step->K, t->decayed_q);
        else
            f->dot2[kind](t->state_y + v, t->state_u + v, state, rows, w->step->K, t->decayed_q, t->decayed_k);
    }
}

static void read_state(const window *w)
{
    int64_t V = w->step->V, rows = rssm_head_block_rows(w->fold);
    int64_t blocks = (V + rows - 1) / rows;
    for (int64_t i = 0; i < blocks; i++) {
        rssm_head_prefetch_window(w->fold, w->heads, i, blocks);
        do_block(w, i * rows, V - i * rows < rows ? V - i * rows : rows);
    }
}

/* y += x: the product with 1 is exact. */
static void add(const rssm_head *t, float *y, const float *x)
{
    const float one = 1;
    t->kernels->combine1[rssm_kind(RSSM_DTYPE_FLOAT32)](y, x, 1, t->step->V, &one);
}

static void finish_token(rssm_head *t)
{
    int64_t V = t->step->V;
    rssm_head_load_v(t);
    rssm_head_read_ring(t);
    add(t, t->y, t->state_y);
    if (rssm_head_is_mamba2(t)) {
        rssm_head_mamba2_output(t);
    } else {
        add(t, t->u, t->state_u);
        t->kernels->delta(t->d, t->y, t->v, t->u, t->y, t->beta, t->kq, V);
    }
    rssm_head_write_output(t);
    rssm_head_store_d(t);
    rssm_head_store_k(t);
}

void rssm_fast_window(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    window w = make_window(worker, step, row, hv);
    rssm_head_prefetch_state(w.fold);
    prepare_key_heads(&w, b);
    prepare_tokens(&w);
    if (row->flush)
        rssm_head_fold_records(w.fold);
    read_state(&w);
    for (int64_t i = 0; i < w.len; i++)
        finish_token(&w.heads[i]);
    for (int64_t i = 0; i <= w.len; i++)
        worker->fault |= w.heads[i].fault;
}

/* The head at work is the first of the scratch. */
void rssm_fast_fold_begin(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv)
{
    rssm_head *t = worker->scratch;
    rssm_head_make(t, worker, step, row, hv, 0);
    rssm_head_prefetch_state(t);
    if (row->count == 0)
        return;
    if (!t->per_channel)
        rssm_head_fold_keys(t);
    rssm_head_fold_records(t);
}

void rssm_fast_fold_rows(rssm_worker *worker, float *rows, int64_t v, int64_t n)
{
    const rssm_head *t = worker->scratch;
    int64_t K = t->step->K;
    t->kernels->load[rssm_kind(t->step->state.dtype)](rows, rssm_head_state(t, v), n * K);
    rssm_fold fold = {.decay = t->decay,
                      .d = t->fold_d + v,
                      .k = t->keys,
                      .d_row = t->v_row,
                      .k_row = t->k_row,
                      .terms = t->row.count};
    if (t->row.count > 0)
        t->kernels->fold[rssm_kind(RSSM_DTYPE_FLOAT32)](rows, n, K, &fold);
}
