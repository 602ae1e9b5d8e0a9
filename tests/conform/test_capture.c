/* Calls that are said to be capture-safe, in a CUDA graph: captured once and launched again and again, they do what the same calls do
 * one by one. What changes from pass to pass lies in memory. For `--device cuda` alone. */
#include <string.h>

#include "../unit/ext_case.h"
#include "device.h"

enum { L = 3, ROWS = 3, SLOTS = 4, LAYERS = 2, DRAFTS = 1, TOKENS = ROWS * (DRAFTS + 1), PASSES = 2 * L + 1 };

static const int32_t families[] = {RSSM_FAMILY_KDA, RSSM_FAMILY_GDN, RSSM_FAMILY_MAMBA2};

/* An instance with all that a pass takes. Two of the same seed have the same inputs. */
typedef struct rig {
    h_spec spec;
    rssm_plugin *plugin;
    h_call *call; /* B: its tokens */
    h_tensor slots, force, rows, ends, accepted;
    const rssm_verify_api *verify_api; /* NULL: plain passes */
    uint64_t random;
} rig;

static void must(rssm_status status, const rssm_error *err, const char *what)
{
    ck_assert_msg(status == RSSM_OK, "%s: %s: %s", what, h_api()->status_name(status), err->message);
}

static void make_list(h_tensor *list, int64_t n, int64_t width)
{
    const int64_t shape[] = {n, width};
    h_tensor_make(list, h_int_type(32), width > 1 ? 2 : 1, shape, 0);
    h_fill(&list->t, 0);
}

static void rig_make(rig *r, int32_t family, bool windows)
{
    rssm_error err = h_error();
    memset(r, 0, sizeof(*r));
    r->spec = h_defaults((h_spec){.family = family,
                                  .L = L,
                                  .drafts = windows ? DRAFTS : 0,
                                  .B = windows ? TOKENS : ROWS,
                                  .S = SLOTS,
                                  .layers = LAYERS,
                                  .num_slots = SLOTS});
    r->random = 3;
    r->verify_api = windows ? h_api()->get_extension(RSSM_EXT_VERIFY) : NULL;
    r->plugin = h_init(&r->spec);
    r->call = h_call_new(&r->spec, 5);
    must(h_api()->prepare(r->plugin, &err), &err, "prepare");
    must(h_api()->pool_create(r->plugin, NULL, &err), &err, "pool_create");
    make_list(&r->slots, ROWS, 1);
    make_list(&r->force, ROWS, 1);
    make_list(&r->rows, ROWS, RSSM_ROW_WIDTH);
    make_list(&r->ends, ROWS + 1, 1);
    make_list(&r->accepted, ROWS, 1);
    r->call->roles[RSSM_T_ROWS] = &r->rows.t;
}

static void rig_free(rig *r)
{
    h_tensor *const lists[] = {&r->slots, &r->force, &r->rows, &r->ends, &r->accepted};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        h_tensor_free(lists[i]);
    h_call_free(r->call);
    h_teardown(&r->plugin);
}

/* Other tokens, other slots, other windows: all of it in the same places. */
static void next_pass(rig *r, int pass)
{
    int count;
    const h_role *roles = h_roles(r->spec.family, &count);
    for (int i = 0; i < count; i++)
        if (roles[i].place == H_INPUT && r->call->roles[roles[i].role])
            h_fill_random(r->call->roles[roles[i].role], -1, 1, &r->random);
    for (int64_t b = 0; b < ROWS; b++) {
        int64_t len = (pass + b) % (DRAFTS + 2);
        h_set(&r->slots.t, b, 0, 0, 0, (double)((pass / L + b) % SLOTS));
        h_set(&r->force.t, b, 0, 0, 0, pass % 4 == 1 && b == 1);
        h_set(&r->ends.t, b + 1, 0, 0, 0, h_get(&r->ends.t, b, 0, 0, 0) + (double)len);
        h_set(&r->accepted.t, b, 0, 0, 0, (double)(len > 0 ? len - pass % 2 : 0));
    }
    memset(r->call->tensors[RSSM_T_OUT].t.data, 0xFF, r->call->tensors[RSSM_T_OUT].bytes);
}

static void layers(rig *r, void *stream, rssm_error *err)
{
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        must(h_api()->pool_tensors(r->plugin, layer, r->call->roles, RSSM_T_COUNT, err), err, "pool_tensors");
        r->call->args.layer = layer;
        r->call->args.stream = stream;
        if (r->verify_api)
            must(r->verify_api->verify(r->plugin, &r->call->args, err), err, "verify");
        else
            must(h_api()->decode(r->plugin, &r->call->args, err), err, "decode");
    }
}

static void enqueue(rig *r, void *stream)
{
    rssm_error err = h_error();
    const rssm_step_begin_args step = {.struct_size = sizeof(step),
                                       .slots = &r->slots.t,
                                       .force_flush = &r->force.t,
                                       .rows_out = &r->rows.t,
                                       .stream = stream};
    const rssm_verify_begin_args window = {.struct_size = sizeof(window),
                                           .slots = &r->slots.t,
                                           .cu_seqlens = &r->ends.t,
                                           .rows_out = &r->rows.t,
                                           .stream = stream,
                                           .max_T = DRAFTS + 1};
    const rssm_commit_args commit = {
        .struct_size = sizeof(commit), .rows = &r->rows.t, .accepted = &r->accepted.t, .stream = stream};
    if (r->verify_api)
        must(r->verify_api->verify_begin(r->plugin, &window, &err), &err, "verify_begin");
    else
        must(h_api()->step_begin(r->plugin, &step, &err), &err, "step_begin");
    layers(r, stream, &err);
    if (r->verify_api)
        must(r->verify_api->commit(r->plugin, &commit, &err), &err, "commit");
}

static void check_same(const rig *a, const rig *b, int pass)
{
    const DLTensor *x[RSSM_T_COUNT] = {0}, *y[RSSM_T_COUNT] = {0};
    const h_tensor *out = &a->call->tensors[RSSM_T_OUT], *same = &b->call->tensors[RSSM_T_OUT];
    ck_assert_msg(memcmp(out->t.data, same->t.data, out->bytes) == 0, "pass %d: other outputs in a graph", pass);
    ck_assert_msg(memcmp(a->rows.t.data, b->rows.t.data, a->rows.bytes) == 0, "pass %d: other rows in a graph", pass);
    ck_assert_int_eq(h_api()->pool_tensors(a->plugin, 0, x, RSSM_T_COUNT, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_tensors(b->plugin, 0, y, RSSM_T_COUNT, NULL), RSSM_OK);
    for (int64_t slot = 0; slot < SLOTS; slot++)
        ck_assert_msg(memcmp(h_at(x[RSSM_T_CURSOR], slot, 0, 0, 0), h_at(y[RSSM_T_CURSOR], slot, 0, 0, 0), 16) == 0,
                      "pass %d: slot %d has another cursor in a graph", pass, (int)slot);
}

static void compare(int32_t family, bool windows)
{
    rig plain, captured;
    if (!h_on_cuda()) {
        h_skip("for --device cuda");
        return;
    }
    rig_make(&plain, family, windows);
    rig_make(&captured, family, windows);
    void *stream = conform_stream();
    conform_capture_begin(stream);
    enqueue(&captured, stream);
    const conform_graph graph = conform_capture_end(stream);
    for (int pass = 0; pass < PASSES; pass++) {
        next_pass(&plain, pass);
        next_pass(&captured, pass);
        enqueue(&plain, NULL);
        conform_graph_launch(&graph, stream);
        check_same(&plain, &captured, pass);
    }
    conform_graph_free(&graph);
    conform_stream_free(stream);
    rig_free(&plain);
    rig_free(&captured);
}

START_TEST(test_steps)
{
    compare(families[_i], false);
}
END_TEST

START_TEST(test_windows)
{
    compare(families[_i], true);
}
END_TEST

void capture_tests(h_suite *suite);

void capture_tests(h_suite *suite)
{
    h_add(suite, &(h_tests){.name = "plain passes in a graph", .test = test_steps, .count = 3});
    h_add(suite,
          &(h_tests){.name = "windows in a graph", .test = test_windows, .count = 3, .extension = RSSM_EXT_VERIFY});
}
