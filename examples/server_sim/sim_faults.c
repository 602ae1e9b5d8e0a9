/* Calls that a host with a bug might make. Each must be refused, and no request may notice: their checks go on. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

typedef rssm_status (*bad_call)(sim *s);

static rssm_status layer_out_of_range(sim *s)
{
    rssm_decode_args args = workload_decode_args(&s->load, s->layers - 1, 0);
    args.layer = (int32_t)s->layers;
    args.stream = s->stream;
    return s->host.api->decode(s->host.plugin, &args, &s->host.error);
}

static rssm_status output_of_another_shape(sim *s)
{
    const rssm_description *m = &s->host.model;
    const DLTensor *roles[RSSM_T_COUNT];
    rssm_decode_args args = workload_decode_args(&s->load, 0, 0);
    DLTensor out = s->out[0].dl;
    int64_t shape[3] = {s->out[0].shape[0], m->V, m->HV + 1};
    for (int i = 0; i < RSSM_T_COUNT; i++)
        roles[i] = args.tensors[i];
    out.shape = shape;
    roles[RSSM_T_OUT] = &out;
    args.tensors = roles;
    args.stream = s->stream;
    return s->host.api->decode(s->host.plugin, &args, &s->host.error);
}

static rssm_status step_without_rows(sim *s)
{
    rssm_step_begin_args args = {.struct_size = sizeof args, .slots = &s->load.slots.dl, .stream = s->stream};
    return s->host.api->step_begin(s->host.plugin, &args, &s->host.error);
}

static rssm_status window_too_long(sim *s)
{
    rssm_verify_begin_args args = {.struct_size = sizeof args,
                                   .slots = &s->load.slots.dl,
                                   .cu_seqlens = &s->cu_seqlens.dl,
                                   .rows_out = &s->load.rows.dl,
                                   .max_T = (int32_t)s->window + 1,
                                   .stream = s->stream};
    if (s->verify == NULL)
        return RSSM_ERR_UNSUPPORTED;
    return s->verify->verify_begin(s->host.plugin, &args, &s->host.error);
}

static rssm_status release_twice(sim *s)
{
    uint64_t handle;
    int64_t slot;
    rssm_status status = s->slots->acquire(s->host.plugin, &handle, &slot, &s->host.error);
    if (status == RSSM_OK)
        status = s->slots->release(s->host.plugin, handle, &s->host.error);
    return status != RSSM_OK ? status : s->slots->release(s->host.plugin, handle, &s->host.error);
}

static rssm_status save_of_no_slot(sim *s)
{
    uint64_t bytes = 0, written;
    s->slots->saved_bytes(s->host.plugin, &bytes, &s->host.error);
    void *buffer = calloc(1, bytes + 1);
    rssm_status status = buffer == NULL ? RSSM_ERR_OUT_OF_MEMORY
                                        : s->slots->save(s->host.plugin, s->host.layout.num_slots, buffer, bytes,
                                                         &written, s->stream, &s->host.error);
    free(buffer);
    return status;
}

/* A running slot's own bytes, one bit off. */
static rssm_status load_of_damaged_bytes(sim *s)
{
    uint64_t bytes = 0, written = 0;
    if (s->num_running == 0)
        return RSSM_ERR_STATE;
    const int64_t slot = s->running[0]->slot;
    s->slots->saved_bytes(s->host.plugin, &bytes, &s->host.error);
    unsigned char *buffer = calloc(1, bytes + 1);
    if (buffer == NULL)
        return RSSM_ERR_OUT_OF_MEMORY;
    rssm_status status = s->slots->save(s->host.plugin, slot, buffer, bytes, &written, s->stream, &s->host.error);
    if (status == RSSM_OK && written > 0) {
        buffer[rng_next(&s->random) % written] ^= (unsigned char)(1u << rng_next(&s->random) % 8);
        status = s->slots->load(s->host.plugin, slot, buffer, written, s->stream, &s->host.error);
    }
    free(buffer);
    return status;
}

static rssm_status copy_onto_itself(sim *s)
{
    rssm_copy_args args = {.struct_size = sizeof args,
                           .src = &s->dst.dl,
                           .dst = &s->dst.dl,
                           .flags = RSSM_CHECK_DEEP,
                           .stream = s->stream};
    return s->slots->copy(s->host.plugin, &args, &s->host.error);
}

static rssm_status export_of_too_few_layers(sim *s)
{
    rssm_state_args args = sim_state_args(s, s->ends, RSSM_STATE_VK);
    args.num_layers--;
    return s->slots->export_state(s->host.plugin, &args, &s->host.error);
}

static rssm_status import_in_no_order(sim *s)
{
    rssm_state_args args = sim_state_args(s, s->starts, 7);
    return s->slots->import_state(s->host.plugin, &args, &s->host.error);
}

static rssm_status commit_without_rows(sim *s)
{
    rssm_commit_args args = {.struct_size = sizeof args, .accepted = &s->accepted.dl, .stream = s->stream};
    if (s->verify == NULL)
        return RSSM_ERR_UNSUPPORTED;
    return s->verify->commit(s->host.plugin, &args, &s->host.error);
}

static const struct {
    const char *name;
    bad_call call;
} bad_calls[] = {
    {"a layer out of range", layer_out_of_range},
    {"an output of another shape", output_of_another_shape},
    {"step_begin without rows", step_without_rows},
    {"a window that is too long", window_too_long},
    {"a slot released twice", release_twice},
    {"save of no slot", save_of_no_slot},
    {"load of damaged bytes", load_of_damaged_bytes},
    {"a copy onto itself", copy_onto_itself},
    {"export of too few layers", export_of_too_few_layers},
    {"import in no order", import_in_no_order},
    {"commit without rows", commit_without_rows},
};

int sim_fault(sim *s)
{
    const size_t i = rng_next(&s->random) % (sizeof bad_calls / sizeof bad_calls[0]);
    if (bad_calls[i].call(s) != RSSM_OK) {
        s->t.refused++;
        return EXIT_OK;
    }
    s->t.not_refused++;
    fprintf(stderr, "%s: %s was not refused\n", s->host.program, bad_calls[i].name);
    return EXIT_OK;
}
