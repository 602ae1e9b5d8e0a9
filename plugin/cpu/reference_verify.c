/* A window of drafts in the plain reference, to be read beside maths.md, and the fold of pending records that it shares
 * with exports and flushes.
 *
 * d of a token needs only its own state row of the checkpoint, so one pass over the rows does all tokens: token t is the
 * plain step (reference.c) of a slot that has count + t records, where records count, .., count + t - 1 are the window's
 * own, as they go to the ring. A window without room first folds the committed records into each row; the tokens then find
 * an empty ring that begins behind them. */
#include "cpu/reference.h"

/* All that the token needs besides the state: its gate, since later tokens read it from the ring, is there already. */
static void make_token(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv, int64_t i)
{
    rssm_row visible = *row;
    visible.count += i;
    visible.start += i;
    rssm_reference *t = rssm_reference_make(worker, step, &visible, hv, i);
    t->drafts = worker->scratch;
    t->ring_keys = row->count;
    rssm_reference_inputs(t);
    rssm_reference_store_g(t);
    rssm_reference_records(t);
}

static rssm_reference *fold_begin(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv,
                                  int64_t place)
{
    rssm_reference *t = rssm_reference_make(worker, step, row, hv, place);
    rssm_reference_no_token(t);
    rssm_reference_records(t);
    return t;
}

static void fold_state_row(rssm_reference *t, int64_t v)
{
    const rssm_pooled *state = &t->step->state;
    uint32_t saturated = 0;
    for (int64_t i = 0; i < t->step->K; i++) {
        float s = (float)rssm_reference_folded(t, v, i);
        rssm_store_f32(state->dtype, state->data, rssm_reference_state_row(t, v) + i, s, &saturated);
    }
    if (saturated)
        *t->fault |= RSSM_FAULTBIT_STATE;
}

void rssm_reference_window(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t b, int64_t hv)
{
    (void)b;
    rssm_reference *tokens = worker->scratch;
    rssm_row after = rssm_row_behind_fold(step, row);
    for (int64_t i = 0; i < row->len; i++)
        make_token(worker, step, &after, hv, i);
    rssm_reference *fold = row->flush ? fold_begin(worker, step, row, hv, row->len) : NULL;
    for (int64_t v = 0; v < step->V; v++) {
        if (fold)
            fold_state_row(fold, v);
        for (int64_t i = 0; i < row->len; i++) {
            rssm_reference_readout(&tokens[i], v);
            rssm_reference_store_d(&tokens[i], v);
        }
    }
    for (int64_t i = 0; i < row->len; i++)
        rssm_reference_store_k(&tokens[i]);
}

void rssm_reference_fold_begin(rssm_worker *worker, const rssm_step *step, const rssm_row *row, int64_t hv)
{
    fold_begin(worker, step, row, hv, 0);
}

void rssm_reference_fold_rows(rssm_worker *worker, float *rows, int64_t v, int64_t n)
{
    const rssm_reference *t = worker->scratch;
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < t->step->K; i++)
            rows[r * t->step->K + i] = (float)rssm_reference_folded(t, v + r, i);
}
