#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t pick(sim *s, int64_t n)
{
    return (int64_t)(rng_next(&s->random) % (uint64_t)n);
}

static int one_in(sim *s, int64_t n)
{
    return pick(s, n) == 0;
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static void push(queue *q, request *r)
{
    r->next = NULL;
    if (q->last != NULL)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
    q->count++;
}

static request *pop(queue *q)
{
    request *r = q->first;
    if (r == NULL)
        return NULL;
    q->first = r->next;
    if (q->first == NULL)
        q->last = NULL;
    q->count--;
    return r;
}

static void free_request(request *r)
{
    if (r == NULL)
        return;
    free(r->tokens);
    free(r->inputs);
    free(r->outputs);
    free(r->saved);
    free(r);
}

void sim_free_requests(sim *s)
{
    queue *queues[] = {&s->waiting, &s->preempted};
    for (int i = 0; i < 2; i++)
        for (request *r = pop(queues[i]); r != NULL; r = pop(queues[i]))
            free_request(r);
    for (int64_t i = 0; i < s->num_running; i++)
        free_request(s->running[i]);
    s->num_running = 0;
}

/* ---- arrival ----------------------------------------------------------------------------------------------------- */

static request *new_request(sim *s)
{
    request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    r->id = s->t.arrived++;
    r->length = s->o->length / 2 + 1 + pick(s, s->o->length);
    r->prompt = pick(s, r->length / 2 + 1);
    r->layer = r->id % s->layers;
    r->head = r->id / s->layers % s->host.model.HV;
    r->tokens = calloc((size_t)r->length, sizeof *r->tokens);
    r->outputs = calloc((size_t)(r->length * s->host.model.V), sizeof *r->outputs);
    r->inputs = calloc((size_t)(r->length * s->channels), (size_t)s->load.io->bytes);
    if (r->tokens == NULL || r->outputs == NULL || r->inputs == NULL) {
        free_request(r);
        return NULL;
    }
    for (int64_t t = 0; t < r->length; t++)
        r->tokens[t] = rng_next(&s->random);
    return r;
}

/* Poisson (Knuth): how many uniform numbers until their product is below e^-rate. */
static int64_t poisson(sim *s, double rate)
{
    int64_t n = 0;
    for (double product = (double)rng_uniform(&s->random); product > exp(-rate) && n < 1000; n++)
        product *= (double)rng_uniform(&s->random);
    return n;
}

/* More than can be served come on average: whoever finds the queue full comes another time, or a long run would only
 * grow. */
enum { MOST_WAITING = 256 };

int sim_arrive(sim *s, double rate, int64_t all)
{
    for (int64_t n = poisson(s, rate); n > 0 && s->t.arrived < all && s->waiting.count < MOST_WAITING; n--) {
        request *r = new_request(s);
        if (r == NULL)
            return host_refuse(&s->host, "no memory for a request");
        push(&s->waiting, r);
    }
    return EXIT_OK;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* One slot number as a device tensor. */
static int put_slot(sim *s, tensor *t, int64_t slot)
{
    s->dev.sync(&s->dev); /* its last use is over */
    *(int32_t *)t->host = (int32_t)slot;
    return tensor_upload(t) == 0 ? EXIT_OK : host_refuse(&s->host, "cannot copy to the device");
}

static void stop_running(sim *s, request *r)
{
    for (int64_t i = 0; i < s->num_running; i++)
        if (s->running[i] == r) {
            s->running[i] = s->running[--s->num_running];
            return;
        }
}

static int release(sim *s, request *r)
{
    host *h = &s->host;
    stop_running(s, r);
    return host_check(h, s->slots->release(h->plugin, r->handle, &h->error), "release");
}

/* ---- admission --------------------------------------------------------------------------------------------------- */

static int reset_slot(sim *s, const request *r)
{
    host *h = &s->host;
    int code = put_slot(s, &s->dst, r->slot);
    rssm_reset_args args = {.struct_size = sizeof args, .slots = &s->dst.dl, .stream = s->stream};
    return code != EXIT_OK ? code : host_check(h, h->api->reset(h->plugin, &args, &h->error), "reset");
}

rssm_state_args sim_state_args(const sim *s, const DLTensor **states, int32_t order)
{
    rssm_state_args args = {.struct_size = sizeof args,
                            .slots = &s->dst.dl,
                            .states = states,
                            .num_layers = (uint32_t)s->layers,
                            .order = order,
                            .stream = s->stream};
    return args;
}

/* A prompt that was prefilled elsewhere: its final state, the same numbers in all layers. */
static int import_start(sim *s, request *r)
{
    host *h = &s->host;
    r->start = rng_next(&s->random) | 1;
    s->t.imported++;
    int code = put_slot(s, &s->dst, r->slot);
    sim_start_state(s, r->start, s->start.host, s->conv != NULL ? s->start_conv.host : NULL);
    if (code == EXIT_OK && (tensor_upload(&s->start) | (s->conv != NULL ? tensor_upload(&s->start_conv) : 0)) != 0)
        code = host_refuse(h, "cannot copy to the device");
    rssm_state_args args = sim_state_args(s, s->starts, RSSM_STATE_VK);
    args.conv = s->conv != NULL ? s->start_convs : NULL;
    return code != EXIT_OK ? code : host_check(h, s->slots->import_state(h->plugin, &args, &h->error), "import");
}

/* A request that shares what a running one has so far, as far as it is long enough. */
static int fork_from(sim *s, request *r, const request *parent)
{
    host *h = &s->host;
    const int64_t n = parent->done;
    r->layer = parent->layer;
    r->head = parent->head;
    r->start = parent->start;
    r->done = n;
    r->prompt = n + pick(s, r->length - n);
    memcpy(r->tokens, parent->tokens, (size_t)n * sizeof *r->tokens);
    memcpy(r->outputs, parent->outputs, (size_t)(n * s->host.model.V) * sizeof *r->outputs);
    memcpy(r->inputs, parent->inputs, (size_t)(n * s->channels * s->load.io->bytes));
    s->t.forked++;
    int code = put_slot(s, &s->src, parent->slot);
    if (code == EXIT_OK)
        code = put_slot(s, &s->dst, r->slot);
    rssm_copy_args args = {.struct_size = sizeof args, .src = &s->src.dl, .dst = &s->dst.dl, .stream = s->stream};
    return code != EXIT_OK ? code : host_check(h, s->slots->copy(h->plugin, &args, &h->error), "fork");
}

static const request *some_parent(sim *s, const request *r)
{
    for (int tries = 0; tries < 4 && s->num_running > 0; tries++) {
        const request *parent = s->running[pick(s, s->num_running)];
        if (parent->done > 0 && parent->done < r->length)
            return parent;
    }
    return NULL;
}

static int start(sim *s, request *r)
{
    const request *parent = one_in(s, 3) ? some_parent(s, r) : NULL;
    int code = parent != NULL ? fork_from(s, r, parent) : one_in(s, 2) ? import_start(s, r) : reset_slot(s, r);
    s->running[s->num_running++] = r;
    r->state = REQUEST_RUNNING;
    return code;
}

static int resume(sim *s, request *r)
{
    host *h = &s->host;
    int code = host_check(h, s->slots->load(h->plugin, r->slot, r->saved, r->saved_bytes, s->stream, &h->error),
                          "load of a slot");
    free(r->saved);
    r->saved = NULL;
    s->t.resumed++;
    s->running[s->num_running++] = r;
    r->state = REQUEST_RUNNING;
    return code;
}

static int preempt(sim *s, request *r)
{
    host *h = &s->host;
    uint64_t bytes = 0;
    int code = host_check(h, s->slots->saved_bytes(h->plugin, &bytes, &h->error), "saved_bytes");
    r->saved = code == EXIT_OK ? malloc(bytes) : NULL;
    if (code == EXIT_OK && r->saved == NULL)
        code = host_refuse(h, "no memory for a preempted request");
    if (code == EXIT_OK)
        code = host_check(h, s->slots->save(h->plugin, r->slot, r->saved, bytes, &r->saved_bytes, s->stream, &h->error),
                          "save");
    if (code != EXIT_OK)
        return code; /* it still runs */
    code = release(s, r);
    s->t.preempted++;
    r->state = REQUEST_PREEMPTED;
    push(&s->preempted, r);
    return code;
}

/* EXIT_OK and *got = 0 when all slots are taken. */
static int acquire(sim *s, request *r, int *got)
{
    host *h = &s->host;
    rssm_status status = s->slots->acquire(h->plugin, &r->handle, &r->slot, &h->error);
    *got = status == RSSM_OK;
    return status == RSSM_ERR_NO_SLOT ? EXIT_OK : host_check(h, status, "acquire");
}

int sim_admit(sim *s)
{
    int code = EXIT_OK, got = 1;
    while (code == EXIT_OK && got && (s->preempted.first != NULL || s->waiting.first != NULL)) {
        queue *q = s->preempted.first != NULL ? &s->preempted : &s->waiting;
        code = acquire(s, q->first, &got);
        if (code != EXIT_OK || !got)
            break;
        request *r = pop(q);
        code = q == &s->preempted ? resume(s, r) : start(s, r);
    }
    if (code == EXIT_OK && !got && s->preempted.count < 4 && one_in(s, 5))
        code = preempt(s, s->running[pick(s, s->num_running)]);
    return code;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

int sim_cancel(sim *s)
{
    if (s->num_running == 0 || !one_in(s, 50))
        return EXIT_OK;
    request *r = s->running[pick(s, s->num_running)];
    int code = release(s, r);
    s->t.cancelled++;
    free_request(r);
    return code;
}

int sim_flush(sim *s)
{
    host *h = &s->host;
    const int mamba2 = h->model.family == RSSM_FAMILY_MAMBA2;
    if (s->num_running == 0 || !one_in(s, 20))
        return EXIT_OK;
    int code = put_slot(s, &s->dst, s->running[pick(s, s->num_running)]->slot);
    rssm_flush_args args = {.struct_size = sizeof args,
                            .slots = &s->dst.dl,
                            .A_log = mamba2 ? s->decays : NULL,
                            .num_layers = mamba2 ? (uint32_t)s->layers : 0,
                            .stream = s->stream};
    return code != EXIT_OK ? code : host_check(h, s->slots->flush(h->plugin, &args, &h->error), "flush");
}

/* The final state, in either order, and all that was computed on the way. */
static int check_finished(sim *s, const request *r)
{
    host *h = &s->host;
    const rssm_description *m = &h->model;
    const int transposed = (int)(r->id & 1);
    int code = put_slot(s, &s->dst, r->slot);
    for (int64_t layer = 0; layer < s->layers; layer++) {
        s->end[layer].shape[2] = transposed ? m->K : m->V;
        s->end[layer].shape[3] = transposed ? m->V : m->K;
    }
    rssm_state_args args = sim_state_args(s, s->ends, transposed ? RSSM_STATE_KV : RSSM_STATE_VK);
    args.A_log = m->family == RSSM_FAMILY_MAMBA2 ? s->decays : NULL;
    if (code == EXIT_OK)
        code = host_check(h, s->slots->export_state(h->plugin, &args, &h->error), "export");
    if (code == EXIT_OK && tensor_download(&s->end[r->layer]) != 0)
        code = host_refuse(h, "cannot copy from the device");
    return code != EXIT_OK ? code : sim_check(s, r, s->end[r->layer].host, transposed);
}

int sim_finish(sim *s)
{
    int code = EXIT_OK;
    for (int64_t i = 0; i < s->num_running && code == EXIT_OK;) {
        request *r = s->running[i];
        if (r->done < r->length) {
            i++;
            continue;
        }
        code = check_finished(s, r);
        if (code == EXIT_OK)
            code = release(s, r);
        s->t.finished++;
        if (code == EXIT_OK)
            free_request(r);
    }
    return code;
}

int sim_leaks(sim *s, int64_t *leaked)
{
    host *h = &s->host;
    const int64_t n = h->layout.num_slots;
    uint64_t *handles = calloc((size_t)n, sizeof *handles);
    if (handles == NULL)
        return host_refuse(h, "out of memory");
    int64_t got = 0, slot;
    int code = EXIT_OK;
    while (got < n && s->slots->acquire(h->plugin, &handles[got], &slot, &h->error) == RSSM_OK)
        got++;
    *leaked = n - got;
    for (int64_t i = 0; i < got && code == EXIT_OK; i++)
        code = host_check(h, s->slots->release(h->plugin, handles[i], &h->error), "release");
    free(handles);
    return code;
}
