#include "plan.h"

#include <inttypes.h>

static void print_model(const host *h)
{
    const rssm_description *m = &h->model;
    printf("%s%s%s: %" PRId32 " of %" PRId32 " layers are linear (", m->family_name, m->model_type[0] ? ", " : "",
           m->model_type, m->num_linear_layers, m->num_layers);
    print_ranges(stdout, m->linear_layers, m->num_linear_layers);
    printf(")\n");
    printf("  ");
    print_heads(stdout, h);
    printf(" on rank %" PRId32 " of %" PRId32, m->tp_rank, m->tp_size);
    if (m->has_lower_bound)
        printf(", gate bounded at %g", m->lower_bound);
    printf("\n  ring %" PRId32 " (%" PRId32 " rows): %s\n", m->ring_length, m->ring_rows, m->ring_reason);
}

static void print_tensors(const host *h)
{
    printf("\n  %-10s %-9s %-26s %-30s %14s\n", "tensor", "dtype", "shape", "", "bytes per slot");
    for (int32_t i = 0; i < h->layout.num_tensors; i++) {
        const rssm_tensor_info *t = host_tensor(h, i);
        char shape[160];
        size_t used = 0;
        for (int32_t dim = 0; dim < t->ndim && used < sizeof shape; dim++) {
            int n = snprintf(shape + used, sizeof shape - used, "%s%" PRId64, dim == 0 ? "[" : ", ", t->shape[dim]);
            used += n > 0 ? (size_t)n : 0;
        }
        if (used < sizeof shape)
            snprintf(shape + used, sizeof shape - used, "]");
        printf("  %-10s %-9s %-26s %-30s %14" PRId64 "%s\n", t->name, t->dtype_name, shape, t->symbolic_shape,
               t->bytes_per_slot, t->per_layer ? " x layer" : "");
    }
}

static void print_pool(const host *h, const plan_options *o)
{
    const rssm_layout *pool = &h->layout;
    printf("\n  one slot, %" PRId32 " layers: state %s + ring %s + conv %s = %s (%" PRId64 " bytes), cursor %" PRId64
           " bytes\n",
           pool->num_layers, human(pool->slot_state_bytes).text, human(pool->slot_ring_bytes).text,
           human(pool->slot_conv_bytes).text, human(pool->slot_total_bytes).text, pool->slot_total_bytes,
           pool->slot_cursor_bytes);
    if (!o->conv)
        printf("  (the convolution's history is not in the pool: --conv adds it)\n");
    printf("  this rank: %" PRId64 " slot%s%s in %s (%" PRId64 " bytes: slab %" PRId64 ", workspace %" PRId64 ")\n",
           pool->num_slots, pool->num_slots == 1 ? "" : "s", o->init.memory_budget_bytes > 0 ? " fit the budget," : "",
           human(pool->pool_bytes).text, pool->pool_bytes, pool->slab_bytes, pool->workspace_bytes);
    printf("  one row of one layer: %s per step, read-and-write %s: %.2f times fewer bytes (modelled)\n",
           human(h->model.step_bytes).text, human(h->model.step_bytes_read_write).text, speed_up(h));
    printf("  layout %016" PRIx64 " (must be equal on all ranks)\n", h->model.layout_hash);
    printf("\n  assumed:%s\n", h->model.num_assumed == 0 ? " nothing, all of it is in the config" : "");
    for (int32_t i = 0; i < h->model.num_assumed; i++)
        printf("    %s\n", h->model.assumed[i]);
}

static void print_way(const char *way, int64_t bytes, const speculation *s, int64_t sessions)
{
    printf("    %-36s %12s per slot, %5.2f x", way, human(bytes).text, (double)bytes / (double)s->plain_bytes);
    if (s->budget > 0)
        printf(", %8" PRId64 " session%s fit", sessions, sessions == 1 ? "" : "s");
    printf("\n");
}

static void print_speculation(const speculation *s)
{
    char snapshots[64];
    snprintf(snapshots, sizeof snapshots, "%" PRId64 " state snapshots (T + 1), no ring", s->snapshots);
    printf("\n  speculation, windows of T = %" PRId64 " tokens (%" PRId64 " drafts and the bonus token):\n", s->tokens,
           s->drafts);
    print_way("plain decoding, no drafts", s->plain_bytes, s, s->plain_sessions);
    print_way("replay, room for drafts in the ring", s->bytes, s, s->sessions);
    print_way(snapshots, s->snapshot_bytes, s, s->snapshot_sessions);
    printf("    drafts cost %s per slot: %s of ring rows, %s of convolution columns\n",
           human(s->ring_bytes + s->conv_bytes).text, human(s->ring_bytes).text, human(s->conv_bytes).text);
    if (s->budget == 0)
        printf("    (--memory says how many sessions fit)\n");
}

void plan_print_text(const host *h, const plan_options *o, const speculation *s)
{
    print_model(h);
    print_tensors(h);
    print_pool(h, o);
    if (s != NULL)
        print_speculation(s);
}
