#include "core/decode.h"

#include <string.h>

#include "core/error.h"
#include "core/validate.h"

rssm_status rssm_step_begin_call(rssm_plugin *p, const rssm_step_begin_args *args, rssm_error *err)
{
    rssm_status status = rssm_check_step_begin(p, args, err);
    if (status || args->slots->shape[0] == 0)
        return status;
    rssm_begin begin = {
        .B = (int32_t)args->slots->shape[0],
        .L = p->rank.L,
        .R = p->rank.R,
        .conv_len = p->rank.conv_len,
        .S = p->pool.S,
        .pad_slot = p->pool.pad_slot,
        .slots = rssm_index_of(args->slots),
        .force_flush = rssm_index_of(args->force_flush),
        .cursor = p->pool.cursor,
        .cursor_slot = p->pool.cursor_slot,
        .rows = rssm_tensor_data(args->rows_out),
        .rows_row = rssm_tensor_stride0(args->rows_out),
        .fault = p->backend->fault_word(p->ctx),
        .flush_all = args->slots->shape[0] <= p->backend_options.small_batch,
    };
    return p->backend->step_begin(p->ctx, &begin, args->stream, err);
}

rssm_input rssm_input_of(const DLTensor *t)
{
    if (!t)
        return (rssm_input){0};
    return (rssm_input){
        .data = rssm_tensor_data(t), .row = t->ndim ? rssm_tensor_stride0(t) : 0, .dtype = rssm_dtype_of(t)};
}

rssm_pooled rssm_pooled_of(const DLTensor *t, int32_t dtype)
{
    if (!t)
        return (rssm_pooled){.dtype = dtype};
    return (rssm_pooled){.data = rssm_tensor_data(t), .slot = rssm_tensor_stride0(t), .dtype = dtype};
}

/* The part of a packed row that starts `elements` in. */
static rssm_input part_of(rssm_input packed, int64_t elements)
{
    int32_t width = rssm_dtype_bytes(packed.dtype);
    return (rssm_input){.data = packed.data ? (const char *)packed.data + elements * width : NULL,
                        .row = packed.row,
                        .dtype = packed.dtype};
}

/* Rows are q | k | v, or x | B | C with q = C, k = B, v = x. */
static void set_inputs(const rssm_plugin *p, const rssm_decode_args *args, rssm_step *step)
{
    bool mamba = p->model.family == RSSM_FAMILY_MAMBA2;
    int64_t keys = p->rank.dims.of[RSSM_SYM_HxK], values = p->rank.dims.of[RSSM_SYM_HVxV];
    const DLTensor *packed = rssm_given(args, mamba ? RSSM_T_MIXED_XBC : RSSM_T_MIXED_QKV);
    if (packed) {
        rssm_input row = rssm_input_of(packed);
        step->q = part_of(row, mamba ? values + keys : 0);
        step->k = part_of(row, mamba ? values : keys);
        step->v = part_of(row, mamba ? 0 : 2 * keys);
    } else {
        step->q = rssm_input_of(rssm_given(args, mamba ? RSSM_T_CM : RSSM_T_Q));
        step->k = rssm_input_of(rssm_given(args, mamba ? RSSM_T_BM : RSSM_T_K));
        step->v = rssm_input_of(rssm_given(args, mamba ? RSSM_T_X : RSSM_T_V));
    }
    step->a = rssm_input_of(rssm_given(args, mamba ? RSSM_T_DT : RSSM_T_A));
    step->b = rssm_input_of(rssm_given(args, RSSM_T_B));
    step->z = rssm_input_of(rssm_given(args, RSSM_T_Z));
    const DLTensor *decay = rssm_given(args, RSSM_T_A_DECAY);
    step->A_log = rssm_input_of(decay ? decay : rssm_given(args, RSSM_T_A_LOG));
    step->dt_bias = rssm_input_of(rssm_given(args, RSSM_T_DT_BIAS));
    step->D = rssm_input_of(rssm_given(args, RSSM_T_D));
    step->flags |= decay ? RSSM_STEP_A_IS_DECAY : 0;
}

static void set_pool_tensors(const rssm_plugin *p, const rssm_decode_args *args, rssm_step *step)
{
    bool mamba = p->model.family == RSSM_FAMILY_MAMBA2;
    step->state = rssm_pooled_of(rssm_given(args, RSSM_T_STATE), p->rank.state_dtype);
    step->d_cache = rssm_pooled_of(rssm_given(args, mamba ? RSSM_T_X_CACHE : RSSM_T_D_CACHE), p->rank.ring_dtype);
    step->k_cache = rssm_pooled_of(rssm_given(args, mamba ? RSSM_T_B_CACHE : RSSM_T_K_CACHE), p->rank.ring_dtype);
    step->g_cache = rssm_pooled_of(rssm_given(args, mamba ? RSSM_T_DT_CACHE : RSSM_T_G_CACHE), RSSM_DTYPE_FLOAT32);
    step->S = rssm_given(args, RSSM_T_STATE)->shape[0];
    const DLTensor *rows = rssm_given(args, RSSM_T_ROWS);
    if (rows) {
        step->rows = rssm_tensor_data(rows);
        step->rows_row = rssm_tensor_stride0(rows);
    } else {
        step->state_indices = rssm_index_of(rssm_given(args, RSSM_T_STATE_INDICES));
        step->write_pos = rssm_index_of(rssm_given(args, RSSM_T_WRITE_POS));
        step->force_flush = rssm_index_of(rssm_given(args, RSSM_T_FORCE_FLUSH));
    }
}

void rssm_make_step(const rssm_plugin *p, const rssm_decode_args *args, rssm_step *step)
{
    const rssm_model *m = &p->model;
    const DLTensor *out = rssm_given(args, RSSM_T_OUT);
    bool mamba = m->family == RSSM_FAMILY_MAMBA2;
    memset(step, 0, sizeof(*step));
    step->family = m->family;
    step->H = p->rank.H;
    step->HV = p->rank.HV;
    step->K = p->rank.K;
    step->V = p->rank.V;
    step->L = p->rank.L;
    step->R = p->rank.R;
    step->pad_slot = p->args.has_pad_slot ? p->args.pad_slot : -1;
    step->flags = (m->has_lower_bound || args->has_lower_bound ? RSSM_STEP_HAS_BOUND : 0) |
                  (m->qk_norm && !mamba ? RSSM_STEP_QK_NORM : 0) | (mamba ? RSSM_STEP_DT_SOFTPLUS : 0);
    set_inputs(p, args, step);
    set_pool_tensors(p, args, step);
    step->out = rssm_tensor_data(out);
    step->out_row = rssm_tensor_stride0(out);
    step->out_dtype = rssm_dtype_of(out);
    step->fault = p->backend->fault_word(p->ctx);
    step->scale = (float)(args->has_scale ? args->scale : rssm_default_scale(p));
    step->lower_bound = (float)(args->has_lower_bound ? args->lower_bound : m->lower_bound);
    step->beta_scale = (float)m->beta_scale;
    step->dt_min = (float)m->dt_min;
    step->dt_max = (float)m->dt_max;
    step->norm_eps = (float)RSSM_NORM_EPS;
}

rssm_status rssm_decode_call(rssm_plugin *p, const rssm_decode_args *args, rssm_error *err)
{
    if (!p->ctx)
        return rssm_fail(err, RSSM_ERR_STATE, "decode before prepare");
    rssm_status status = args->flags & RSSM_SKIP_VALIDATE ? rssm_check_call_head(p, args, err)
                                                          : rssm_check_call(p, RSSM_CALL_DECODE, args, err);
    if (status)
        return status;
    rssm_step step;
    rssm_make_step(p, args, &step);
    step.B = (int32_t)rssm_given(args, RSSM_T_OUT)->shape[0];
    return step.B ? p->backend->step(p->ctx, &step, args->stream, err) : RSSM_OK;
}
