/* Saved slots and the slot allocator, through the ABI: streams come back as they went, are what abi.md says byte by byte,
 * and anything else in their place is refused with nothing changed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext_case.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const int32_t families[] = {RSSM_FAMILY_KDA, RSSM_FAMILY_GDN, RSSM_FAMILY_MAMBA2};

static void must(rssm_status status, const rssm_error *err, const char *what)
{
    ck_assert_msg(status == RSSM_OK, "%s: %s: %s", what, h_api()->status_name(status), err->message);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

/* Offsets of the header, from the documentation and apart from the plugin's own. */
enum {
    AT_VERSION = 8,
    AT_HEADER = 12,
    AT_PAYLOAD = 16,
    AT_CHECKSUM = 24,
    AT_FIELDS = 48,
    AT_CURSOR = 132,
    HEADER = 192
};

typedef struct saved {
    unsigned char *bytes; /* of its own block, so that a sanitizer sees the first byte behind it */
    uint64_t length;
} saved;

static saved save(ec_case *c, int64_t slot)
{
    rssm_error err = h_error();
    saved s = {0};
    uint64_t written = 0;
    must(c->slots_api->saved_bytes(c->plugin, &s.length, &err), &err, "saved_bytes");
    s.bytes = malloc(s.length);
    ck_assert_ptr_nonnull(s.bytes);
    must(c->slots_api->save(c->plugin, slot, s.bytes, s.length, &written, NULL, &err), &err, "save");
    ck_assert_uint_eq(written, s.length);
    return s;
}

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

/* CRC-64/XZ bit by bit. */
static uint64_t crc_bits(uint64_t crc, const unsigned char *at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xC96C5795D7870F42u : crc >> 1;
    }
    return crc;
}

static void seal(saved *s)
{
    uint64_t crc = crc_bits(~(uint64_t)0, s->bytes, AT_CHECKSUM);
    put(s->bytes + AT_CHECKSUM, ~crc_bits(crc, s->bytes + AT_CHECKSUM + 8, s->length - AT_CHECKSUM - 8), 8);
}

static void check_refused(ec_case *c, int64_t slot, const unsigned char *bytes, uint64_t length, rssm_status want,
                          const char *text, const char *what)
{
    rssm_error err = h_error();
    rssm_status status = c->slots_api->load(c->plugin, slot, bytes, length, NULL, &err);
    ck_assert_msg(status == want && err.status == want, "%s: %s: %s", what, h_api()->status_name(status), err.message);
    ck_assert_msg(!text || strstr(err.message, text), "%s: no \"%s\" in: %s", what, text, err.message);
}

/* The bytes of one slot in the slab, gaps left out, in the order of the payload; the cursor apart. */
static uint64_t slot_bytes(const ec_case *c, int64_t slot, unsigned char *out)
{
    rssm_layout layout = {.struct_size = sizeof(layout)};
    ck_assert_int_eq(h_api()->pool_layout(c->plugin, &layout, NULL), RSSM_OK);
    uint64_t used = 0;
    for (int32_t layer = 0; layer < layout.num_layers; layer++)
        for (int32_t i = 0; i < layout.num_tensors; i++) {
            const rssm_tensor_info *t = &layout.tensors[i];
            if (!t->per_layer)
                continue;
            memcpy(out + used, c->slab + t->offset + layer * t->layer_stride + slot * t->bytes_per_slot,
                   (size_t)t->bytes_per_slot);
            used += (uint64_t)t->bytes_per_slot;
        }
    return used;
}

/* Saved, loaded into another slot, saved again: equal bytes; the source is as it was, every other slot too. */
START_TEST(test_round_trip)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    rssm_error err = h_error();
    ec_remember(c);
    saved first = save(c, 1), fresh = save(c, 2);
    ck_assert_msg(!ec_changed(c), "a save changes something");
    unsigned char *before = malloc(first.length), *after = malloc(first.length);
    slot_bytes(c, 3, before);
    must(c->slots_api->load(c->plugin, 4, first.bytes, first.length, NULL, &err), &err, "load");
    ck_assert_int_eq(memcmp(c->cursors + 4 * 4, c->cursors + 1 * 4, 16), 0);
    slot_bytes(c, 3, after);
    ck_assert(memcmp(before, after, first.length - HEADER) == 0);
    saved again = save(c, 4);
    ck_assert_int_eq(memcmp(first.bytes, again.bytes, first.length), 0);
    uint64_t bytes = slot_bytes(c, 4, after);
    ck_assert_uint_eq(bytes + HEADER, first.length);
    ck_assert_int_eq(memcmp(first.bytes + HEADER, after, bytes), 0); /* dead rows of the target are zeros now */
    ck_assert_int_ne(memcmp(first.bytes, fresh.bytes, first.length), 0);
    must(c->slots_api->load(c->plugin, 4, fresh.bytes, fresh.length, NULL, &err), &err, "load over it");
    saved third = save(c, 4);
    ck_assert_int_eq(memcmp(fresh.bytes, third.bytes, first.length), 0);
    free(before);
    free(after);
    free(first.bytes);
    free(fresh.bytes);
    free(again.bytes);
    free(third.bytes);
    ec_free(c);
}
END_TEST

/* Exported states of a slot and of its copy by way of a stream, in another instance. */
START_TEST(test_across_instances)
{
    ec_case *a = ec_new(families[_i], RSSM_STATE_VK), *b = ec_new(families[_i], RSSM_STATE_VK);
    if (!a || !b)
        return;
    rssm_error err = h_error();
    memset(b->slab, 0xFF, (size_t)b->slab_bytes); /* NaN, cursors -1 */
    for (int64_t slot = 0; slot < 3; slot++) {
        saved s = save(a, slot);
        must(b->slots_api->load(b->plugin, slot, s.bytes, s.length, NULL, &err), &err, "load");
        free(s.bytes);
    }
    for (int layer = 0; layer < EC_LAYERS && a->decays[0]; layer++) {
        const DLTensor *from = a->decays[layer], *to = b->decays[layer];
        memcpy(h_at(to, 0, 0, 0, 0), h_at(from, 0, 0, 0, 0), (size_t)from->shape[0] * from->dtype.bits / 8);
    }
    ck_assert_int_eq(ec_run(a, EC_EXPORT, &err), RSSM_OK);
    ck_assert_int_eq(ec_run(b, EC_EXPORT, &err), RSSM_OK);
    for (int layer = 0; layer < EC_LAYERS; layer++)
        for (int conv = 0; conv < 2; conv++) {
            const ec_tensor *x = ec_find(a, EC_EXPORT, conv ? RSSM_T_CONV : RSSM_T_STATE, layer);
            const ec_tensor *y = ec_find(b, EC_EXPORT, conv ? RSSM_T_CONV : RSSM_T_STATE, layer);
            ck_assert_msg(memcmp(x->h.t.data, y->h.t.data, x->h.bytes) == 0, "layer %d: other %s", layer, x->name);
        }
    uint32_t word = 77;
    must(b->fault_api->read(b->plugin, NULL, &word, &err), &err, "fault");
    ck_assert_uint_eq(word, 0);
    ec_free(a);
    ec_free(b);
}
END_TEST

/* What is not alive is zeros: a former tenant's numbers do not leave, and equal slots have equal bytes. */
START_TEST(test_dead_bytes)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    saved before = save(c, 1);
    int32_t base = c->cursors[4], count = c->cursors[5], conv = c->cursors[6], R = h_ring_rows(&c->spec);
    int64_t dead = 0;
    for (int32_t layer = 0; layer < EC_LAYERS; layer++) {
        const DLTensor *roles[RSSM_T_COUNT] = {0};
        ck_assert_int_eq(h_api()->pool_tensors(c->plugin, layer, roles, RSSM_T_COUNT, NULL), RSSM_OK);
        for (int32_t role = RSSM_T_D_CACHE; role <= RSSM_T_B_CACHE; role++)
            for (int64_t h = 0; roles[role] && h < roles[role]->shape[1]; h++)
                for (int64_t j = count; j < R; j++)
                    for (int64_t k = 0; k < (roles[role]->ndim == 4 ? roles[role]->shape[3] : 1); k++, dead++)
                        h_set(roles[role], 1, h, (base + j) % R, k, 1e30);
        for (int64_t ch = 0; ch < roles[RSSM_T_CONV]->shape[1]; ch++)
            for (int64_t j = 0; j < EC_DRAFTS + 1; j++, dead++)
                h_set(roles[RSSM_T_CONV], 1, ch, (conv + j) % 6, 0, 1e30);
    }
    ck_assert_int_gt(dead, 100);
    saved after = save(c, 1);
    ck_assert_int_eq(memcmp(before.bytes, after.bytes, before.length), 0);
    unsigned char *raw = malloc(after.length);
    ck_assert(slot_bytes(c, 1, raw) == after.length - HEADER &&
              memcmp(raw, after.bytes + HEADER, after.length - HEADER) != 0);
    free(raw);
    free(before.bytes);
    free(after.bytes);
    ec_free(c);
}
END_TEST

/* The header as documented, and the checksum by another algorithm. */
START_TEST(test_header)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    rssm_description d = {.struct_size = sizeof(d)};
    rssm_layout layout = {.struct_size = sizeof(layout)};
    ck_assert_int_eq(h_api()->describe(c->plugin, &d, NULL), RSSM_OK);
    ck_assert_int_eq(h_api()->pool_layout(c->plugin, &layout, NULL), RSSM_OK);
    ck_assert_int_eq(memcmp(s.bytes, "RSSMSLOT", 8), 0);
    ck_assert_uint_eq(number(s.bytes + AT_VERSION, 4), 1);
    ck_assert_uint_eq(number(s.bytes + AT_HEADER, 4), HEADER);
    ck_assert_uint_eq(number(s.bytes + AT_PAYLOAD, 8), (uint64_t)layout.slot_total_bytes);
    ck_assert_uint_eq(number(s.bytes + 32, 8), d.layout_hash);
    const int32_t fields[] = {d.family,
                              d.model_H,
                              d.model_HV,
                              d.H,
                              d.HV,
                              d.K,
                              d.V,
                              d.ring_length,
                              d.ring_rows,
                              d.state_dtype,
                              d.ring_dtype,
                              d.io_dtype,
                              d.tp_size,
                              d.tp_rank,
                              d.head_begin,
                              d.group_begin,
                              EC_LAYERS,
                              d.conv_channels,
                              EC_WIDTH,
                              EC_WIDTH + EC_DRAFTS,
                              d.layout_version};
    for (int i = 0; i < COUNT(fields); i++)
        ck_assert_msg((int32_t)number(s.bytes + AT_FIELDS + 4 * i, 4) == fields[i], "field %d is %d, not %d", i,
                      (int32_t)number(s.bytes + AT_FIELDS + 4 * i, 4), fields[i]);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq((int32_t)number(s.bytes + AT_CURSOR + 4 * i, 4), c->cursors[4 + i]);
    for (int i = AT_CURSOR + 16; i < HEADER; i++)
        ck_assert_int_eq(s.bytes[i], 0);
    uint64_t said = number(s.bytes + AT_CHECKSUM, 8);
    seal(&s);
    ck_assert_uint_eq(number(s.bytes + AT_CHECKSUM, 8), said);
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* Cut at every byte, and with a byte too many. Each cut has a block of its own. */
START_TEST(test_truncated)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    ec_remember(c);
    for (uint64_t length = 0; length < s.length; length++) {
        unsigned char *cut = malloc(length ? length : 1);
        memcpy(cut, s.bytes, length);
        check_refused(c, 4, cut, length, RSSM_ERR_STREAM_DATA, "the stream", "cut");
        free(cut);
    }
    unsigned char *longer = calloc(1, s.length + 1);
    memcpy(longer, s.bytes, s.length);
    check_refused(c, 4, longer, s.length + 1, RSSM_ERR_STREAM_DATA, "too long", "a byte more");
    saved forged = {longer, s.length + 1}; /* that says so itself, and is sealed */
    put(longer + AT_PAYLOAD, forged.length - HEADER, 8);
    seal(&forged);
    check_refused(c, 4, longer, forged.length, RSSM_ERR_STREAM_DATA, "bytes of payload", "a byte more, sealed");
    ck_assert(!ec_changed(c));
    free(longer);
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* Each bit flipped, and pairs of neighbours. */
START_TEST(test_flipped)
{
    ec_case *c = ec_new(families[_i / 4], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    ec_remember(c);
    for (uint64_t bit = (uint64_t)(_i % 4); bit < 8 * s.length; bit += 4) {
        s.bytes[bit / 8] = (unsigned char)(s.bytes[bit / 8] ^ 1u << bit % 8);
        check_refused(c, 4, s.bytes, s.length, RSSM_ERR_STREAM_DATA, NULL, "one bit flipped");
        s.bytes[bit / 8] = (unsigned char)(s.bytes[bit / 8] ^ 1u << bit % 8);
    }
    ck_assert(!ec_changed(c));
    check_refused(c, 4, s.bytes, s.length, RSSM_OK, NULL, "as it was");
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* Headers with a right checksum and wrong contents. */
typedef struct forged {
    const char *name;
    int at, bytes;
    int64_t value;
    const char *text;
} forged;

static const forged forgeries[] = {
    {"magic", 0, 1, 'X', "not a saved slot"},
    {"version 2", AT_VERSION, 4, 2, "format version 2; this plugin reads 1"},
    {"version 0", AT_VERSION, 4, 0, "format version 0"},
    {"header of 128", AT_HEADER, 4, 128, "header says 128 bytes"},
    {"endless header", AT_HEADER, 4, 0xFFFFFFFF, "header says 4294967295 bytes"},
    {"payload - 1", AT_PAYLOAD, 8, -1, NULL},
    {"other layers", 40, 8, 12345, "other model layers"},
    {"other hash", 32, 8, 12345, "layout hash"},
    {"family", AT_FIELDS, 4, 9, "family = 9; this instance has"},
    {"tp_size", AT_FIELDS + 4 * 12, 4, 2, "tp_size = 2; this instance has 1"},
    {"state dtype", AT_FIELDS + 4 * 9, 4, RSSM_DTYPE_FLOAT16, "state dtype float16; this instance has float32"},
    {"no dtype", AT_FIELDS + 4 * 10, 4, 77, "ring dtype"},
    {"base = R", AT_CURSOR, 4, 7, "base 7 is not in 0..6"},
    {"base -1", AT_CURSOR, 4, -1, "base -1 is not in 0..6"},
    {"count = L + 1", AT_CURSOR + 4, 4, 5, "count 5 is not in 0..4"},
    {"count -1", AT_CURSOR + 4, 4, -1, "count -1"},
    {"count huge", AT_CURSOR + 4, 4, INT32_MAX, "count 2147483647"},
    {"conv = w'", AT_CURSOR + 8, 4, 6, "conv 6 is not in 0..5"},
    {"conv -1", AT_CURSOR + 8, 4, -1, "conv -1"},
    {"short = L", AT_CURSOR + 12, 4, 4, "short 4 is not in 0..3"},
    {"short -1", AT_CURSOR + 12, 4, -1, "short -1"},
    {"zeros", 150, 1, 1, "byte 150"},
    {"last zero", HEADER - 1, 1, 1, "byte 191"},
};

START_TEST(test_forged)
{
    const forged *f = &forgeries[_i / 3];
    ec_case *c = ec_new(families[_i % 3], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    put(s.bytes + f->at, (uint64_t)f->value, f->bytes);
    seal(&s);
    ec_remember(c);
    check_refused(c, 4, s.bytes, s.length, RSSM_ERR_STREAM_DATA, f->text, f->name);
    ck_assert(!ec_changed(c));
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* Garbage of every length never passes, and is never read beyond. */
START_TEST(test_garbage)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    uint64_t random = 5, length = 0;
    ck_assert_int_eq(c->slots_api->saved_bytes(c->plugin, &length, NULL), RSSM_OK);
    ec_remember(c);
    for (int i = 0; i < 2000; i++) {
        uint64_t bytes = i % 2 ? length : h_random(&random) % (2 * length);
        unsigned char *noise = malloc(bytes + !bytes);
        for (uint64_t k = 0; k < bytes; k++)
            noise[k] = (unsigned char)h_random(&random);
        if (i % 4 == 1 && bytes >= 16) { /* past the first checks */
            memcpy(noise, "RSSMSLOT", 8);
            put(noise + AT_VERSION, 1, 4);
            put(noise + AT_HEADER, HEADER, 4);
            put(noise + AT_PAYLOAD, bytes - HEADER, 8);
        }
        check_refused(c, 4, noise, bytes, RSSM_ERR_STREAM_DATA, NULL, "garbage");
        free(noise);
    }
    ck_assert(!ec_changed(c));
    ec_free(c);
}
END_TEST

/* ---- streams of another instance -------------------------------------------------------------------------------- */

/* How the other instance differs; its own tp is set apart. */
typedef struct stranger {
    const char *name;
    h_spec change; /* non-zero fields replace */
    int32_t tp_size, tp_rank, layer_begin;
    const char *text; /* with both sides */
} stranger;

static const stranger strangers[] = {
    {"H", {.H = 4}, 1, 0, 0, "model key heads = 4; this instance has 2"},
    {"HV", {.HV = 8}, 1, 0, 0, "model value heads = 8; this instance has 4"},
    {"K", {.K = 8}, 1, 0, 0, "K = 8; this instance has 4"},
    {"V", {.V = 4}, 1, 0, 0, "V = 4; this instance has 6"},
    {"L", {.L = 5}, 1, 0, 0, "ring length L = 5; this instance has 4"},
    {"drafts", {.drafts = 1}, 1, 0, 0, "ring rows R = 6; this instance has 7"},
    {"state dtype", {.state = RSSM_DTYPE_BFLOAT16}, 1, 0, 0, "state dtype bfloat16; this instance has float32"},
    {"ring dtype", {.ring = RSSM_DTYPE_FLOAT32}, 1, 0, 0, "ring dtype float32; this instance has bfloat16"},
    {"io dtype",
     {.io = RSSM_DTYPE_FLOAT16, .ring = RSSM_DTYPE_BFLOAT16},
     1,
     0,
     0,
     "io dtype float16; this instance has bfloat16"},
    {"layers", {.layers = 3}, 1, 0, 0, "linear layers = 3; this instance has 2"},
    {"other layers", {.layers = 3}, 1, 0, 1, "other model layers"},
    {"tp", {.HV = 4}, 2, 0, 0, "H = 1; this instance has 2"},
    {"a bound", {.bounded = true}, 1, 0, 0, "layout hash"},
};

static h_spec strange_spec(const ec_case *c, const stranger *x)
{
    h_spec s = c->spec;
    const h_spec *d = &x->change;
#define TAKE(field) s.field = d->field ? d->field : s.field
    TAKE(H);
    TAKE(HV);
    TAKE(K);
    TAKE(V);
    TAKE(L);
    TAKE(drafts);
    TAKE(layers);
    TAKE(io);
    TAKE(state);
    TAKE(ring);
    TAKE(bounded);
#undef TAKE
    return s;
}

static rssm_plugin *make_other(const h_spec *spec, int32_t tp_size, int32_t tp_rank, int32_t layer_begin)
{
    rssm_dims dims = h_dims(spec);
    rssm_init_args init = h_init_args(spec, &dims);
    init.tp_size = tp_size;
    init.tp_rank = tp_rank;
    init.layer_begin = layer_begin;
    rssm_plugin *plugin = NULL;
    rssm_error err = h_error();
    must(h_api()->init(&init, &plugin, &err), &err, "init");
    must(h_api()->prepare(plugin, &err), &err, "prepare");
    must(h_api()->pool_create(plugin, NULL, &err), &err, "pool_create");
    return plugin;
}

static saved save_of(const ec_case *c, rssm_plugin *plugin)
{
    ec_case view = {.plugin = plugin, .slots_api = c->slots_api};
    return save(&view, 0);
}

START_TEST(test_stranger)
{
    const stranger *x = &strangers[_i / 3];
    int32_t family = families[_i % 3];
    if (family == RSSM_FAMILY_MAMBA2 && x->change.bounded)
        return;
    ec_case *c = ec_new(family, RSSM_STATE_VK);
    if (!c)
        return;
    h_spec spec = strange_spec(c, x);
    rssm_plugin *other = make_other(&spec, x->tp_size, x->tp_rank, x->layer_begin);
    saved s = save_of(c, other);
    ec_remember(c);
    check_refused(c, 4, s.bytes, s.length, RSSM_ERR_STREAM_DATA, x->text, x->name);
    ck_assert(!ec_changed(c));
    free(s.bytes);
    h_teardown(&other);
    ec_free(c);
}
END_TEST

/* Streams of other families; of another rank of the same model; without the convolution. */
START_TEST(test_other_ranks)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    h_spec spec = c->spec;
    spec.family = families[(_i + 1) % 3];
    rssm_plugin *other = make_other(&spec, 1, 0, 0);
    saved s = save_of(c, other);
    ec_remember(c);
    check_refused(c, 4, s.bytes, s.length, RSSM_ERR_STREAM_DATA, "family", "family");
    free(s.bytes);
    h_teardown(&other);
    spec = c->spec;
    spec.init_flags = 0;
    other = make_other(&spec, 1, 0, 0);
    s = save_of(c, other);
    check_refused(c, 4, s.bytes, s.length, RSSM_ERR_STREAM_DATA, "convolution channels = 0", "no conv");
    free(s.bytes);
    h_teardown(&other);
    rssm_plugin *ranks[2] = {make_other(&c->spec, 2, 0, 0), make_other(&c->spec, 2, 1, 0)};
    s = save_of(c, ranks[1]);
    rssm_error err = h_error();
    ck_assert_int_eq(c->slots_api->load(ranks[0], 0, s.bytes, s.length, NULL, &err), RSSM_ERR_STREAM_DATA);
    ck_assert_msg(strstr(err.message, "tp_rank = 1; this instance has 0") != NULL, "%s", err.message);
    ck_assert_int_eq(c->slots_api->load(ranks[1], 3, s.bytes, s.length, NULL, &err), RSSM_OK);
    free(s.bytes);
    h_teardown(&ranks[0]);
    h_teardown(&ranks[1]);
    ck_assert(!ec_changed(c));
    ec_free(c);
}
END_TEST

/* At L = 1 a ring may be left out of a pool. */
enum { LEAN_SLOTS = 3, LEAN_LAYERS = 2 };

typedef struct lean_pool {
    h_spec spec;
    rssm_plugin *plugin;
    h_tensor states[LEAN_LAYERS], cursor;
    const DLTensor *tensors[LEAN_LAYERS][RSSM_T_COUNT];
} lean_pool;

/* In place. */
static void lean_make(lean_pool *p, int32_t family, const rssm_allocator *allocator)
{
    uint64_t random = 3;
    rssm_error err = h_error();
    memset(p, 0, sizeof(*p));
    p->spec = h_defaults((h_spec){.family = family,
                                  .L = 1,
                                  .S = LEAN_SLOTS,
                                  .num_slots = LEAN_SLOTS,
                                  .layers = LEAN_LAYERS,
                                  .allocator = allocator});
    const int64_t shape[] = {LEAN_SLOTS, p->spec.HV, p->spec.V, p->spec.K}, cursors[] = {LEAN_SLOTS, 4};
    p->plugin = h_init(&p->spec);
    h_tensor_make(&p->cursor, h_int_type(32), 2, cursors, 0);
    h_fill(&p->cursor.t, 0);
    p->tensors[0][RSSM_T_CURSOR] = &p->cursor.t;
    for (int layer = 0; layer < LEAN_LAYERS; layer++) {
        h_tensor_make(&p->states[layer], h_float_type(p->spec.state), 4, shape, 0);
        h_fill_random(&p->states[layer].t, -1, 1, &random);
        p->tensors[layer][RSSM_T_STATE] = &p->states[layer].t;
    }
    must(h_api()->prepare(p->plugin, &err), &err, "prepare");
    const rssm_pool_args pool = {.struct_size = sizeof(pool), .tensors = &p->tensors[0][0], .num_roles = RSSM_T_COUNT};
    must(h_api()->pool_create(p->plugin, &pool, &err), &err, "pool_create");
}

static void lean_free(lean_pool *p)
{
    for (int layer = 0; layer < LEAN_LAYERS; layer++) {
        ck_assert(h_tensor_guarded(&p->states[layer]));
        h_tensor_free(&p->states[layer]);
    }
    h_tensor_free(&p->cursor);
    h_teardown(&p->plugin);
}

/* Do two slots have the same state in every layer? */
static bool lean_same(const lean_pool *p, int64_t x, int64_t y)
{
    bool same = true;
    for (int layer = 0; layer < LEAN_LAYERS; layer++)
        same = same && memcmp(h_at(&p->states[layer].t, x, 0, 0, 0), h_at(&p->states[layer].t, y, 0, 0, 0),
                              p->states[layer].bytes / LEAN_SLOTS) == 0;
    return same;
}

/* Its streams are the same and load into either. */
START_TEST(test_ring_left_out)
{
    lean_pool lean;
    lean_make(&lean, families[_i], NULL);
    rssm_plugin *whole = make_other(&lean.spec, 1, 0, 0);
    const rssm_slots_api *api = h_api()->get_extension(RSSM_EXT_SLOTS);
    rssm_error err = h_error();
    uint64_t length = 0, written = 0, lean_length = 0;
    must(api->saved_bytes(whole, &length, &err), &err, "saved_bytes");
    must(api->saved_bytes(lean.plugin, &lean_length, &err), &err, "saved_bytes");
    ck_assert_uint_eq(length, lean_length);
    unsigned char *a = malloc(length), *b = malloc(length);
    must(api->save(lean.plugin, 1, a, length, &written, NULL, &err), &err, "save without a ring");
    must(api->load(whole, 2, a, length, NULL, &err), &err, "load into a pool with a ring");
    must(api->save(whole, 2, b, length, &written, NULL, &err), &err, "save with a ring");
    ck_assert_int_eq(memcmp(a, b, length), 0);
    must(api->load(lean.plugin, 0, b, length, NULL, &err), &err, "load into a pool without one");
    must(api->save(lean.plugin, 0, b, length, &written, NULL, &err), &err, "save");
    ck_assert_int_eq(memcmp(a, b, length), 0);
    ck_assert(lean_same(&lean, 0, 1));
    free(a);
    free(b);
    h_teardown(&whole);
    lean_free(&lean);
}
END_TEST

/* ---- arguments of save and load --------------------------------------------------------------------------------- */

/* Nothing is pending at L = 1, with a ring or without: a stream that says so is refused by both. */
START_TEST(test_forged_record)
{
    lean_pool lean;
    lean_make(&lean, families[_i], NULL);
    rssm_plugin *whole = make_other(&lean.spec, 1, 0, 0);
    ec_case view = {.plugin = whole, .slots_api = h_api()->get_extension(RSSM_EXT_SLOTS)};
    saved s = save(&view, 0);
    put(s.bytes + AT_CURSOR + 4, 1, 4);
    seal(&s);
    check_refused(&view, 1, s.bytes, s.length, RSSM_ERR_STREAM_DATA, "count 1 is not in 0..0", "with a ring");
    view.plugin = lean.plugin;
    check_refused(&view, 1, s.bytes, s.length, RSSM_ERR_STREAM_DATA, "count 1 is not in 0..0", "without a ring");
    free(s.bytes);
    h_teardown(&whole);
    lean_free(&lean);
}
END_TEST

START_TEST(test_save_arguments)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    const rssm_slots_api *api = c->slots_api;
    rssm_error err = h_error();
    uint64_t written = 77;
    unsigned char *before = malloc(s.length);
    memcpy(before, s.bytes, s.length);
    static const struct {
        int64_t slot;
        const char *text;
    } bad[] = {{-1, "slot -1 is not in 0..5"},
               {EC_SLOTS, "slot 6 is not in 0..5"},
               {INT64_MAX, "is not in 0..5"},
               {INT64_MIN, "is not in 0..5"},
               {EC_PAD, "slot 5 is the pad slot"}};
    ec_remember(c);
    for (int i = 0; i < COUNT(bad); i++) {
        ck_assert_int_eq(api->save(c->plugin, bad[i].slot, s.bytes, s.length, &written, NULL, &err), RSSM_ERR_VALUE);
        ck_assert_msg(strstr(err.message, bad[i].text) != NULL, "%s", err.message);
        check_refused(c, bad[i].slot, s.bytes, s.length, RSSM_ERR_VALUE, bad[i].text, "load");
    }
    ck_assert_int_eq(api->save(c->plugin, 1, s.bytes, s.length - 1, &written, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert(err.got == (int64_t)s.length - 1 && err.expected == (int64_t)s.length);
    ck_assert_int_eq(api->save(c->plugin, 1, s.bytes, UINT64_MAX, &written, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->save(c->plugin, 1, NULL, s.length, &written, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->save(c->plugin, 1, s.bytes, s.length, NULL, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->save(NULL, 1, s.bytes, s.length, &written, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->load(c->plugin, 1, NULL, s.length, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->load(NULL, 1, s.bytes, s.length, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->saved_bytes(c->plugin, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->saved_bytes(NULL, &written, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(api->save(c->plugin, 1, c->slab, c->slab_bytes, &written, NULL, &err), RSSM_ERR_OVERLAP);
    ck_assert_int_eq(api->load(c->plugin, 1, c->slab, c->slab_bytes, NULL, &err), RSSM_ERR_OVERLAP);
    for (int part = 0; part < 4; part++) { /* a bad cursor is no slot to save */
        int32_t good = c->cursors[4 + part];
        c->cursors[4 + part] = part == 0 ? 7 : part == 1 ? 5 : part == 2 ? 6 : 4;
        ck_assert_int_eq(api->save(c->plugin, 1, s.bytes, s.length, &written, NULL, &err), RSSM_ERR_VALUE);
        ck_assert_msg(err.role == RSSM_T_CURSOR && strstr(err.message, "slot 1"), "%s", err.message);
        c->cursors[4 + part] = good;
    }
    ck_assert_uint_eq(written, 77);
    ck_assert(memcmp(before, s.bytes, s.length) == 0 && !ec_changed(c));
    rssm_plugin *early = h_init(&c->spec);
    ck_assert_int_eq(api->saved_bytes(early, &written, &err), RSSM_OK);
    ck_assert_uint_eq(written, s.length);
    ck_assert_int_eq(api->save(early, 1, s.bytes, s.length, &written, NULL, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(api->load(early, 1, s.bytes, s.length, NULL, &err), RSSM_ERR_STATE);
    h_teardown(&early);
    free(before);
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* A longer buffer keeps what lies behind the stream. */
START_TEST(test_longer_buffer)
{
    ec_case *c = ec_new(families[_i], RSSM_STATE_VK);
    if (!c)
        return;
    saved s = save(c, 1);
    rssm_error err = h_error();
    uint64_t written = 0;
    unsigned char *buffer = malloc(s.length + 99);
    memset(buffer, 0x5A, s.length + 99);
    must(c->slots_api->save(c->plugin, 1, buffer + 1, s.length + 98, &written, NULL, &err), &err, "save");
    ck_assert(written == s.length && memcmp(buffer + 1, s.bytes, s.length) == 0 && buffer[0] == 0x5A);
    for (uint64_t i = s.length + 1; i < s.length + 99; i++)
        ck_assert_int_eq(buffer[i], 0x5A);
    check_refused(c, 4, buffer + 1, written, RSSM_OK, NULL, "an odd address");
    free(buffer);
    free(s.bytes);
    ec_free(c);
}
END_TEST

/* ---- the allocator ---------------------------------------------------------------------------------------------- */

typedef struct rig {
    rssm_plugin *plugin;
    const rssm_slots_api *api;
    int64_t slots, pad; /* pad -1: none */
} rig;

static rig rig_new(int64_t slots, int64_t pad)
{
    h_spec spec = h_defaults((h_spec){.family = RSSM_FAMILY_GDN, .num_slots = slots, .S = slots});
    rssm_dims dims = h_dims(&spec);
    rssm_init_args init = h_init_args(&spec, &dims);
    init.has_pad_slot = pad >= 0;
    init.pad_slot = pad >= 0 ? pad : 0;
    rig r = {.api = h_api()->get_extension(RSSM_EXT_SLOTS), .slots = slots, .pad = pad};
    rssm_error err = h_error();
    must(h_api()->init(&init, &r.plugin, &err), &err, "init");
    must(h_api()->prepare(r.plugin, &err), &err, "prepare");
    must(h_api()->pool_create(r.plugin, NULL, &err), &err, "pool_create");
    return r;
}

static const struct {
    int64_t slots, pad;
} pools[] = {{1, -1}, {2, -1}, {2, 0}, {3, 1}, {4, 3}, {5, 4}, {8, 100}, {17, 16}, {64, 0}, {1, 0}};

/* N requests fit N slots, N + 1 is refused; each slot once, never the pad slot. */
START_TEST(test_capacity)
{
    rig r = rig_new(pools[_i].slots, pools[_i].pad);
    int64_t room = r.slots - (r.pad >= 0 && r.pad < r.slots);
    bool seen[64] = {false};
    uint64_t handles[64];
    rssm_error err = h_error();
    for (int round = 0; round < 3; round++) {
        memset(seen, 0, sizeof(seen));
        for (int64_t i = 0; i < room; i++) {
            int64_t slot = -7, same = -7;
            must(r.api->acquire(r.plugin, &handles[i], &slot, &err), &err, "acquire");
            ck_assert(slot >= 0 && slot < r.slots && slot != r.pad && !seen[slot] && handles[i] != 0);
            seen[slot] = true;
            must(r.api->check(r.plugin, handles[i], &same, &err), &err, "check");
            ck_assert_int_eq(slot, same);
        }
        uint64_t handle = 77;
        int64_t slot = 77;
        char text[64];
        ck_assert_int_eq(r.api->acquire(r.plugin, &handle, &slot, &err), RSSM_ERR_NO_SLOT);
        snprintf(text, sizeof(text), "%lld of %lld (%lld in the pool", (long long)room, (long long)room,
                 (long long)r.slots);
        ck_assert_msg(strstr(err.message, text) != NULL, "no \"%s\" in: %s", text, err.message);
        ck_assert(handle == 77 && slot == 77 && err.expected == room && err.got == room + 1);
        for (int64_t i = 0; i < room; i++) /* in another order each time */
            must(r.api->release(r.plugin, handles[(i + 3 * round) % room], &err), &err, "release");
    }
    h_teardown(&r.plugin);
}
END_TEST

/* Against the plainest allocator: a table of live handles. */
START_TEST(test_allocator_model)
{
    enum { OPS = 60000, SLOTS = 13 };
    rig r = rig_new(SLOTS, _i ? 5 : -1);
    int64_t room = SLOTS - (_i ? 1 : 0), live = 0;
    uint64_t handle_of[SLOTS] = {0}, random = 11 + (uint64_t)_i;
    static uint64_t all[OPS], dead[OPS];
    int64_t num_all = 0, num_dead = 0;
    for (int op = 0; op < OPS; op++) {
        rssm_error err = h_error();
        uint64_t handle = 1, dice = h_random(&random) % 100;
        int64_t slot = -1;
        if (dice < 45) {
            rssm_status status = r.api->acquire(r.plugin, &handle, &slot, &err);
            ck_assert_int_eq(status, live < room ? RSSM_OK : RSSM_ERR_NO_SLOT);
            if (!status) {
                ck_assert(slot >= 0 && slot < SLOTS && !handle_of[slot] && !(_i && slot == 5));
                handle_of[slot] = all[num_all++] = handle;
                live++;
            }
        } else if (dice < 80) {
            slot = (int64_t)(h_random(&random) % SLOTS);
            if (!handle_of[slot])
                continue;
            must(r.api->release(r.plugin, handle_of[slot], &err), &err, "release");
            dead[num_dead++] = handle_of[slot];
            handle_of[slot] = 0;
            live--;
        } else if (dice < 90 && num_dead) { /* double free, use after free */
            handle = dead[h_random(&random) % (uint64_t)num_dead];
            rssm_status status =
                dice < 85 ? r.api->release(r.plugin, handle, &err) : r.api->check(r.plugin, handle, &slot, &err);
            ck_assert_int_eq(status, RSSM_ERR_HANDLE);
            ck_assert_msg(strstr(err.message, "was released before") && slot == -1, "%s", err.message);
        } else {
            slot = (int64_t)(h_random(&random) % SLOTS);
            int64_t got = -1;
            if (handle_of[slot]) {
                must(r.api->check(r.plugin, handle_of[slot], &got, &err), &err, "check");
                ck_assert_int_eq(got, slot);
            }
        }
    }
    ck_assert_int_gt(num_all, 1000);
    h_teardown(&r.plugin);
}
END_TEST

/* Handles that were never given out: zero, guesses, the next generation, other slots. */
START_TEST(test_foreign_handles)
{
    rig r = rig_new(6, 5);
    rssm_error err = h_error();
    uint64_t handle = 0, random = 9;
    int64_t slot = 77;
    ck_assert_int_eq(r.api->release(r.plugin, 1, &err), RSSM_ERR_HANDLE);
    ck_assert_msg(strstr(err.message, "never given out") != NULL, "%s", err.message);
    ck_assert_int_eq(r.api->check(r.plugin, 0, &slot, &err), RSSM_ERR_HANDLE);
    must(r.api->acquire(r.plugin, &handle, &slot, &err), &err, "acquire");
    for (int bit = 0; bit < 64; bit++) { /* one live handle: every other number is wrong */
        int64_t got = 77;
        ck_assert_int_eq(r.api->check(r.plugin, handle ^ (uint64_t)1 << bit, &got, &err), RSSM_ERR_HANDLE);
        ck_assert_int_eq(r.api->release(r.plugin, handle ^ (uint64_t)1 << bit, &err), RSSM_ERR_HANDLE);
        ck_assert_int_eq(got, 77);
    }
    for (int i = 0; i < 10000; i++) {
        uint64_t guess = h_random(&random) >> (i % 64);
        if (guess != handle)
            ck_assert_int_eq(r.api->release(r.plugin, guess, &err), RSSM_ERR_HANDLE);
    }
    must(r.api->release(r.plugin, handle, &err), &err, "release");
    h_teardown(&r.plugin);
}
END_TEST

START_TEST(test_allocator_arguments)
{
    rig r = rig_new(2, -1);
    rssm_error err = h_error();
    uint64_t handle = 77;
    int64_t slot = 77;
    ck_assert_int_eq(r.api->acquire(r.plugin, NULL, &slot, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(r.api->acquire(r.plugin, &handle, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(r.api->acquire(NULL, &handle, &slot, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(r.api->release(NULL, 1, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(r.api->check(NULL, 1, &slot, &err), RSSM_ERR_ARGUMENT);
    ck_assert_int_eq(r.api->check(r.plugin, 1, NULL, &err), RSSM_ERR_ARGUMENT);
    ck_assert(handle == 77 && slot == 77);
    rssm_error narrow = {.struct_size = 16};
    ck_assert_int_eq(r.api->acquire(r.plugin, &handle, &slot, &narrow), RSSM_ERR_STRUCT_SIZE);
    ck_assert(handle == 77 && slot == 77);
    must(r.api->acquire(r.plugin, &handle, &slot, &err), &err, "acquire"); /* the refused ones took none */
    must(r.api->acquire(r.plugin, &handle, &slot, &err), &err, "acquire");
    h_spec spec = h_defaults((h_spec){.family = RSSM_FAMILY_GDN, .num_slots = 2});
    rssm_plugin *early = h_init(&spec);
    ck_assert_int_eq(r.api->acquire(early, &handle, &slot, &err), RSSM_ERR_STATE);
    ck_assert_int_eq(r.api->release(early, handle, &err), RSSM_ERR_HANDLE);
    h_teardown(&early);
    h_teardown(&r.plugin);
}
END_TEST

/* ---- memory that fails ------------------------------------------------------------------------------------------ */

/* Allocates until `left` is used up; -1: always. Counts what is alive. */
typedef struct meager {
    int64_t left, alive;
} meager;

static void *meager_alloc(void *user, uint64_t bytes, uint64_t alignment)
{
    meager *m = user;
    if (m->left == 0)
        return NULL;
    m->left -= m->left > 0;
    alignment = alignment < 16 ? 16 : alignment;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    m->alive += memory != NULL;
    return memory;
}

static void meager_free(void *user, void *memory, uint64_t bytes)
{
    meager *m = user;
    (void)bytes;
    m->alive -= memory != NULL;
    free(memory);
}

/* A call that needs memory of its own says so when there is none, and works once there is. */
START_TEST(test_out_of_memory)
{
    meager m = {.left = -1};
    const rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &m, .alloc = meager_alloc, .free = meager_free};
    h_spec spec = h_defaults((h_spec){.family = families[_i], .S = 3, .num_slots = 3, .layers = 2, .drafts = 1});
    spec.allocator = &allocator;
    rssm_plugin *plugin = make_other(&spec, 1, 0, 0);
    const rssm_slots_api *api = h_api()->get_extension(RSSM_EXT_SLOTS);
    const int64_t one = 1;
    h_tensor src, dst;
    h_tensor_make(&src, h_int_type(32), 1, &one, 0);
    h_tensor_make(&dst, h_int_type(32), 1, &one, 0);
    h_fill(&src.t, 0);
    h_fill(&dst.t, 2);
    const rssm_copy_args copy = {.struct_size = sizeof(copy), .src = &src.t, .dst = &dst.t, .flags = RSSM_CHECK_DEEP};
    rssm_error err = h_error();
    uint64_t handle = 77;
    int64_t slot = 77, before = m.alive;
    for (int64_t room = 0; room < 20; room++) {
        m.left = room;
        rssm_status status = api->copy(plugin, &copy, &err);
        ck_assert_int_eq(status, room < 5 ? RSSM_ERR_OUT_OF_MEMORY : RSSM_OK); /* 2 lists, their keys, and both again */
        ck_assert_int_eq(m.alive, before);
    }
    m.left = 0;
    ck_assert_int_eq(api->acquire(plugin, &handle, &slot, &err), RSSM_ERR_OUT_OF_MEMORY);
    ck_assert(handle == 77 && slot == 77);
    m.left = -1;
    must(api->acquire(plugin, &handle, &slot, &err), &err, "acquire");
    m.left = 0;
    must(api->release(plugin, handle, &err), &err, "release");
    m.left = -1;
    h_tensor_free(&src);
    h_tensor_free(&dst);
    h_teardown(&plugin);
    ck_assert_int_eq(m.alive, 0);
}
END_TEST

/* A load into a pool without rings brings the stream into the pool's form first. */
START_TEST(test_lean_load_without_memory)
{
    meager m = {.left = -1};
    const rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &m, .alloc = meager_alloc, .free = meager_free};
    lean_pool lean;
    lean_make(&lean, families[_i], &allocator);
    const rssm_slots_api *api = h_api()->get_extension(RSSM_EXT_SLOTS);
    rssm_error err = h_error();
    uint64_t length = 0, written = 0;
    must(api->saved_bytes(lean.plugin, &length, &err), &err, "saved_bytes");
    unsigned char *saved = malloc(length), *other = malloc(length), *again = malloc(length);
    must(api->save(lean.plugin, 1, saved, length, &written, NULL, &err), &err, "save");
    must(api->save(lean.plugin, 0, other, length, &written, NULL, &err), &err, "save");
    const int64_t before = m.alive;
    m.left = 0;
    ck_assert_int_eq(api->load(lean.plugin, 0, saved, length, NULL, &err), RSSM_ERR_OUT_OF_MEMORY);
    ck_assert_int_eq(err.status, RSSM_ERR_OUT_OF_MEMORY);
    m.left = -1;
    must(api->save(lean.plugin, 0, again, length, &written, NULL, &err), &err, "save");
    ck_assert_msg(memcmp(other, again, length) == 0, "the slot has changed");
    must(api->load(lean.plugin, 0, saved, length, NULL, &err), &err, "load");
    ck_assert(lean_same(&lean, 0, 1));
    ck_assert_int_eq(m.alive, before);
    free(saved);
    free(other);
    free(again);
    lean_free(&lean);
    ck_assert_int_eq(m.alive, 0);
}
END_TEST

/* RSSM_CHECK_DEEP of positions that the host keeps: a list of counts, one of slots and their keys, or the counts alone. */
START_TEST(test_positions_without_memory)
{
    meager m = {.left = -1};
    const rssm_allocator allocator = {
        .struct_size = sizeof(allocator), .user = &m, .alloc = meager_alloc, .free = meager_free};
    const bool indices = _i / 3;
    h_spec spec = h_defaults((h_spec){.family = families[_i % 3], .host_pos = true, .allocator = &allocator});
    rssm_plugin *plugin = h_init(&spec);
    h_call *call = h_call_new(&spec, 5);
    rssm_error err = h_error();
    must(h_api()->prepare(plugin, &err), &err, "prepare");
    call->args.flags = RSSM_CHECK_DEEP;
    if (!indices)
        call->roles[RSSM_T_STATE_INDICES] = NULL;
    const int64_t before = m.alive;
    h_snapshot snapshot = h_snapshot_take(call);
    for (int64_t room = 0; room < 8; room++) {
        m.left = room;
        err = h_error();
        rssm_status status = h_api()->validate(plugin, &call->args, &err);
        ck_assert_msg(status == (room < (indices ? 3 : 1) ? RSSM_ERR_OUT_OF_MEMORY : RSSM_OK), "%d allocations: %s: %s",
                      (int)room, h_api()->status_name(status), err.message);
        ck_assert_int_eq(m.alive, before);
        ck_assert_int_eq(h_snapshot_differs(&snapshot, call), RSSM_T_NONE);
    }
    m.left = -1;
    must(h_api()->decode(plugin, &call->args, &err), &err, "decode");
    h_snapshot_free(&snapshot);
    h_call_free(call);
    h_teardown(&plugin);
    ck_assert_int_eq(m.alive, 0);
}
END_TEST

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static void add(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite, &(h_tests){.name = name, .test = test, .count = count, .timeout = 180, .extension = RSSM_EXT_SLOTS});
}

/* The bytes are this plugin's; another may have streams of its own. */
static void add_ours(h_suite *suite, const char *name, const TTest *test, int count)
{
    h_add(suite,
          &(h_tests){
              .name = name, .test = test, .count = count, .timeout = 180, .extension = RSSM_EXT_SLOTS, .ours = true});
}

void slots_tests(h_suite *suite);

void slots_tests(h_suite *suite)
{
    add_ours(suite, "round trip", test_round_trip, 3);
    add(suite, "across instances", test_across_instances, 3);
    add(suite, "dead bytes", test_dead_bytes, 3);
    add_ours(suite, "header", test_header, 3);
    add(suite, "truncated", test_truncated, 3);
    add(suite, "one bit flipped", test_flipped, 12);
    add_ours(suite, "forged", test_forged, 3 * COUNT(forgeries));
    add(suite, "garbage", test_garbage, 3);
    add_ours(suite, "another instance's", test_stranger, 3 * COUNT(strangers));
    add_ours(suite, "another family's or rank's", test_other_ranks, 3);
    add(suite, "ring left out", test_ring_left_out, 3);
    add_ours(suite, "a record without a ring", test_forged_record, 3);
    add(suite, "arguments of save and load", test_save_arguments, 3);
    add(suite, "longer buffer", test_longer_buffer, 3);
    add(suite, "capacity", test_capacity, COUNT(pools));
    add(suite, "allocator model", test_allocator_model, 2);
    add(suite, "foreign handles", test_foreign_handles, 1);
    add(suite, "arguments of the allocator", test_allocator_arguments, 1);
    add_ours(suite, "out of memory", test_out_of_memory, 3);
    add_ours(suite, "a load without memory", test_lean_load_without_memory, 3);
    add_ours(suite, "positions without memory", test_positions_without_memory, 6);
}

#ifndef RSSM_CONFORM
int main(void)
{
    return h_main("slots", slots_tests, true);
}
#endif
