#include "plan.h"

#include <inttypes.h>

variant plan_variant(const host *h, const rssm_init_args *args)
{
    variant v = {.status = RSSM_OK};
    rssm_plugin *plugin = NULL;
    rssm_error error = {.struct_size = sizeof error};
    rssm_description model = {.struct_size = sizeof model};
    rssm_layout layout = {.struct_size = sizeof layout};
    v.status = h->api->init(args, &plugin, &error);
    if (v.status == RSSM_OK)
        v.status = h->api->describe(plugin, &model, &error);
    if (v.status == RSSM_OK)
        v.status = h->api->pool_layout(plugin, &layout, &error);
    if (v.status != RSSM_OK) {
        snprintf(v.reason, sizeof v.reason, "%s", error.message);
    } else {
        v.ring_length = model.ring_length;
        v.step_bytes = model.step_bytes;
        v.layout = layout;
        v.layout.tensors = NULL; /* they end with their instance */
    }
    h->api->teardown(&plugin, NULL);
    return v;
}

int plan_speculation(const host *h, const plan_options *o, speculation *s)
{
    const rssm_layout *pool = &h->layout;
    rssm_init_args args = o->init;
    args.max_draft_tokens = 0;
    args.ring_length = h->model.ring_length;
    const variant plain = plan_variant(h, &args);
    if (plain.status != RSSM_OK)
        return host_refuse(h, "the plan without drafts: %s (%s)", plain.reason, h->api->status_name(plain.status));
    *s = (speculation){
        .drafts = o->draft,
        .tokens = o->draft + 1,
        .plain_bytes = plain.layout.slot_total_bytes,
        .bytes = pool->slot_total_bytes,
        .ring_bytes = pool->slot_ring_bytes - plain.layout.slot_ring_bytes,
        .conv_bytes = pool->slot_conv_bytes - plain.layout.slot_conv_bytes,
        .snapshots = o->draft + 2,
        .budget = o->init.memory_budget_bytes,
    };
    const int64_t state = plain.layout.slot_state_bytes + plain.layout.slot_conv_bytes;
    if (__builtin_mul_overflow(s->snapshots, state, &s->snapshot_bytes))
        return host_refuse(h, "%" PRId64 " state snapshots of %" PRId64 " bytes each do not fit in 63 bits",
                           s->snapshots, state);
    if (s->budget > 0) {
        s->plain_sessions = plain.layout.num_slots;
        s->sessions = pool->num_slots;
        s->snapshot_sessions = s->budget / s->snapshot_bytes;
    }
    return EXIT_OK;
}
