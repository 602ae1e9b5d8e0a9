/* The plain ReplaySSM step on a level's vector functions. The same sums as reference.c, in float32:
 *
 *   shared    once per row and key head: q and k (normalised, scaled), k rounded as a record is; where a head has one gate
 *             (GDN, Mamba-2) also the keys' undecayed dot products with q and k, and at a flush the keys as float32
 *   gates     the token's gates, the records' decays as suffix sums, the scores (w_j . q), (w_j . k)
 *   ring      y, u <- sum_j score_j d_j
 *   state     the one pass over the checkpoint, a block of rows at a time: y, u += S0 (decay * q, k); d and out of the
 *             block; a flush folds the block at once, while it is in the first-level cache
 *   append    the record, unless flushed. All but the state are in head.h.
 */
#include "cpu/head.h"

int64_t rssm_fast_scratch(rssm_cpu_dims dims)
{
    return rssm_head_scratch(dims);
}

/* What the value heads of a key head share; kept from one to the next. */
static void prepare_key_head(rssm_head *t, rssm_worker *worker, int64_t b)
{
    if (worker->cached_row == b && worker->cached_head == t->h)
        return;
    rssm_head_load_qk(t);
    if (t->row.flush)
        rssm_head_round(t, t->keys + t->row.count * t->k_row, t->k, t->step->K);
    if (!t->per_channel && t->row.count > 0) {
        rssm_head_raw_scores(t);
        if (t->row.flush)
            rssm_head_fold_keys(t);
    }
    worker->cached_row = b;
    worker->cached_head = t->h;
}

/* State rows v .. v + rows - 1: the records and the token. */
static void fold_block(rssm_head *t, int64_t v, int64_t rows)
{
    float *token_d = t->fold_d + t->row.count * t->v_row + v;
    rssm_head_round(t, token_d, t->d + v, rows);
    if (rssm_head_is_mamba2(t))
        t->kernels->scale(token_d, token_d, t->dt, rows);
    rssm_fold fold = {.decay = t->decay,
                      .d = t->fold_d + v,
                      .k = t->keys,
                      .d_row = t->v_row,
                      .k_row = t->k_row,
                      .terms = t->row.count + 1};
    if (t->kernels->fold[rssm_kind(t->step->state.dtype)](rssm_head_state(t, v), rows, t->step->K, &fold))
        t->fault |= RSSM_FAULTBIT_STATE;
}

/* State rows v .. v + rows - 1: readouts, d and out (in y), and the fold. */
static void do_block(rssm_head *t, int64_t v, int64_t rows)
{
    const rssm_cpu_kernels *f = t->kernels;
    int32_t kind = rssm_kind(t->step->state.dtype);
    int64_t K = t->step->K;
    void *state = rssm_head_state(t, v);
    if (rssm_head_is_mamba2(t)) {
        f->dot1[kind](t->y + v, state, rows, K, t->decayed_q);
    } else {
        f->dot2[kind](t->y + v, t->u + v, state, rows, K, t->decayed_q, t->decayed_k);
        f->delta(t->d + v, t->y + v, t->v + v, t->u + v, t->y + v, t->beta, t->kq, rows);
    }
    if (t->row.flush)
        fold_block(t, v, rows);
}

static void read_state(rssm_head *t)
{
    int64_t V = t->step->V, rows = rssm_head_block_rows(t);
    int64_t blocks = (V + rows - 1) / rows;
    for (int64_t i = 0; i < blocks; i++) {
        rssm_head_prefetch_next(t, i, blocks);
        do_block(t, i * rows, V - i * rows < rows ? V - i * rows : rows);
    }
}

void rssm_fast_head(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    rssm_head t;
    rssm_head_make(&t, worker, step, row, hv, 0);
    rssm_head_prefetch_state(&t);
    prepare_key_head(&t, worker, b);
    rssm_head_load_v(&t);
    rssm_head_gates(&t);
    if (row->flush)
        rssm_head_fold_d(&t);
    rssm_head_read_ring(&t);
    read_state(&t);
    if (rssm_head_is_mamba2(&t))
        rssm_head_mamba2_output(&t);
    rssm_head_write_output(&t);
    if (!row->flush) {
        rssm_head_store_d(&t);
        rssm_head_store_g(&t);
        rssm_head_store_k(&t);
    }
    worker->fault |= t.fault;
}
