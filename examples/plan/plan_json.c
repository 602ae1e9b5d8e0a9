#include "plan.h"

#include "../common/json.h"

#include <inttypes.h>

static void json_texts(json *out, const char *key, const char *const *texts, int32_t count)
{
    json_array(out, key);
    for (int32_t i = 0; i < count; i++)
        json_string(out, NULL, texts[i]);
    json_end(out);
}

static void json_heads(json *out, const host *h)
{
    json_object(out, "heads");
    json_int(out, is_mamba(h) ? "nheads" : "HV", h->model.HV);
    json_int(out, is_mamba(h) ? "n_groups" : "H", h->model.H);
    json_int(out, is_mamba(h) ? "head_dim" : "V", h->model.V);
    json_int(out, is_mamba(h) ? "d_state" : "K", h->model.K);
    json_end(out);
}

/* The tensors of one layer; the cursor, one for all layers, is counted apart. */
static void json_tensors(json *out, const host *h)
{
    json_array(out, "tensors");
    for (int32_t i = 0; i < h->layout.num_tensors; i++) {
        const rssm_tensor_info *t = host_tensor(h, i);
        if (!t->per_layer)
            continue;
        json_object(out, NULL);
        json_string(out, "name", t->name);
        json_string(out, "dtype", t->dtype_name);
        json_array(out, "shape");
        for (int32_t dim = 0; dim < t->ndim; dim++)
            json_int(out, NULL, t->shape[dim]);
        json_end(out);
        json_string(out, "symbolic_shape", t->symbolic_shape);
        json_int(out, "bytes_per_slot_per_layer", t->bytes_per_slot);
        json_end(out);
    }
    json_end(out);
}

static void json_pool(json *out, const host *h)
{
    const rssm_layout *pool = &h->layout;
    json_object(out, "bytes_per_slot");
    json_int(out, "state", pool->slot_state_bytes);
    json_int(out, "ring", pool->slot_ring_bytes);
    json_int(out, "conv", pool->slot_conv_bytes);
    json_int(out, "total", pool->slot_total_bytes);
    json_end(out);
    json_int(out, "cursor_bytes_per_slot", pool->slot_cursor_bytes);
    json_int(out, "slots", pool->num_slots);
    json_int(out, "pool_bytes", pool->pool_bytes);
    json_int(out, "slab_bytes", pool->slab_bytes);
    json_int(out, "workspace_bytes", pool->workspace_bytes);
}

static void json_sessions(json *out, const speculation *s, int64_t sessions)
{
    if (s->budget > 0)
        json_int(out, "sessions", sessions);
    else
        json_null(out, "sessions");
    json_end(out);
}

static void json_speculation(json *out, const speculation *s)
{
    json_object(out, "speculation");
    json_int(out, "max_draft_tokens", s->drafts);
    json_int(out, "window_tokens", s->tokens);
    json_object(out, "plain");
    json_int(out, "bytes_per_slot", s->plain_bytes);
    json_sessions(out, s, s->plain_sessions);
    json_object(out, "replay");
    json_int(out, "bytes_per_slot", s->bytes);
    json_int(out, "extra_bytes_per_slot", s->ring_bytes + s->conv_bytes);
    json_int(out, "extra_ring_bytes_per_slot", s->ring_bytes);
    json_int(out, "extra_conv_bytes_per_slot", s->conv_bytes);
    json_sessions(out, s, s->sessions);
    json_object(out, "state_snapshots");
    json_int(out, "snapshots", s->snapshots);
    json_int(out, "bytes_per_slot", s->snapshot_bytes);
    json_sessions(out, s, s->snapshot_sessions);
    json_end(out);
}

void plan_print_json(const host *h, const speculation *s)
{
    const rssm_description *m = &h->model;
    json out = json_to(stdout);
    json_object(&out, NULL);
    json_string(&out, "family", m->family_name);
    json_string(&out, "model_type", m->model_type);
    json_int(&out, "num_layers", m->num_layers);
    json_array(&out, "linear_layers");
    for (int32_t i = 0; i < m->num_linear_layers; i++)
        json_int(&out, NULL, m->linear_layers[i]);
    json_end(&out);
    json_int(&out, "tp_size", m->tp_size);
    json_int(&out, "tp_rank", m->tp_rank);
    json_int(&out, "ring_length", m->ring_length);
    json_int(&out, "ring_rows", m->ring_rows);
    json_int(&out, "max_draft_tokens", m->max_draft_tokens);
    json_string(&out, "ring_reason", m->ring_reason);
    json_heads(&out, h);
    json_int(&out, "conv_kernel", m->conv_kernel);
    if (m->has_lower_bound)
        json_number(&out, "lower_bound", m->lower_bound);
    else
        json_null(&out, "lower_bound");
    json_string(&out, "state_dtype", dtype_name(m->state_dtype));
    json_string(&out, "io_dtype", dtype_name(m->io_dtype));
    json_string(&out, "ring_dtype", dtype_name(m->ring_dtype));
    json_tensors(&out, h);
    json_pool(&out, h);
    if (s)
        json_speculation(&out, s);
    json_int(&out, "step_bytes", m->step_bytes);
    json_int(&out, "step_bytes_read_write", m->step_bytes_read_write);
    char hash[17]; /* a string: 64 bits do not fit a JSON number everywhere */
    snprintf(hash, sizeof hash, "%016" PRIx64, m->layout_hash);
    json_string(&out, "layout_hash", hash);
    json_texts(&out, "read", m->read, m->num_read);
    json_texts(&out, "assumed", m->assumed, m->num_assumed);
    json_end(&out);
}
