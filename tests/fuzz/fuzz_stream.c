/* libFuzzer: a saved slot, bent at places that the input chooses, cut or made longer, and then sealed with a right checksum so that
 * load gets to see the fields behind it. load says yes only to what it could have written itself, or names a fault and
 * leaves every byte of the pool alone; what it took, it saves again as the same bytes, and all calls on the slot work. */
#include <string.h>

#include "bend.h"
#include "rssm_slots.h"

/* docs/abi.md: Saved slots. */
enum {
    AT_PAYLOAD_BYTES = 16,
    AT_CHECKSUM = 24,
    AT_FIELDS = 48,
    AT_CURSOR = 132,
    AT_ZEROS = 148,
    HEADER = 192,
    TARGET = 3,
    SLOTS = 5
};

/* CRC-64/XZ, bit by bit, over all but the checksum's own bytes. */
static void seal(unsigned char *stream, size_t bytes)
{
    uint64_t crc = ~(uint64_t)0;
    for (size_t i = 0; i < bytes; i++) {
        if (i >= AT_CHECKSUM && i < AT_CHECKSUM + 8)
            continue;
        crc ^= stream[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xC96C5795D7870F42u : crc >> 1;
    }
    for (int i = 0; i < 8 && bytes >= AT_CHECKSUM + 8; i++)
        stream[AT_CHECKSUM + i] = (unsigned char)(~crc >> 8 * i);
}

typedef struct world {
    h_spec spec;
    rssm_plugin *plugin;
    const rssm_slots_api *slots;
    unsigned char *slab, *before;
    size_t slab_bytes;
    int32_t *cursor; /* of TARGET */
    uint64_t stream_bytes;
} world;

static h_spec read_spec(reader *r)
{
    uint8_t a = byte(r), b = byte(r);
    return h_defaults((h_spec){.family = 1 + a % 3,
                               .L = 1 + b % 5,
                               .drafts = b / 5 % 2 && b % 5 >= 2 ? 1 : 0,
                               .layers = 1 + b / 10 % 2,
                               .io = 1 + a / 3 % 3,
                               .state = 1 + a / 9 % 3,
                               .ring = 1 + a / 27 % 3,
                               .S = SLOTS,
                               .num_slots = SLOTS,
                               .init_flags = b & 128 ? 0 : RSSM_INIT_CONV_STATE});
}

/* An instance with a pool in memory of ours: its bytes are random, the cursors good ones. */
static void open_world(world *w, reader *r)
{
    w->spec = read_spec(r);
    w->plugin = h_init(&w->spec);
    w->slots = h_api()->get_extension(RSSM_EXT_SLOTS);
    rssm_layout layout = {.struct_size = sizeof(layout)};
    require(h_api()->pool_layout(w->plugin, &layout, NULL) == RSSM_OK);
    w->slab_bytes = (size_t)layout.slab_bytes;
    w->slab = aligned_alloc(256, (w->slab_bytes + 255) / 256 * 256);
    w->before = malloc(w->slab_bytes);
    require(w->slab && w->before && h_api()->prepare(w->plugin, NULL) == RSSM_OK);
    const rssm_pool_args pool = {.struct_size = sizeof(pool), .slab = w->slab, .slab_bytes = w->slab_bytes};
    require(h_api()->pool_create(w->plugin, &pool, NULL) == RSSM_OK);
    uint64_t random = 1;
    for (size_t i = 0; i < w->slab_bytes; i++)
        w->slab[i] = (unsigned char)(h_random(&random) & 0x3B); /* finite in every type */
    const DLTensor *roles[RSSM_T_COUNT] = {0};
    require(h_api()->pool_tensors(w->plugin, 0, roles, RSSM_T_COUNT, NULL) == RSSM_OK);
    for (int32_t slot = 0; slot < SLOTS; slot++)
        memset(h_at(roles[RSSM_T_CURSOR], slot, 0, 0, 0), 0, RSSM_CURSOR_WIDTH * sizeof(int32_t));
    w->cursor = h_at(roles[RSSM_T_CURSOR], TARGET, 0, 0, 0);
    int32_t *source = h_at(roles[RSSM_T_CURSOR], 0, 0, 0, 0);
    source[1] = w->spec.L > 1 ? byte(r) % (w->spec.L + 1) : 0;
    source[0] = byte(r) % h_ring_rows(&w->spec);
    require(w->slots->saved_bytes(w->plugin, &w->stream_bytes, NULL) == RSSM_OK);
}

static void close_world(world *w)
{
    h_teardown(&w->plugin);
    free(w->slab);
    free(w->before);
}

static size_t place_of(reader *r, size_t bytes)
{
    uint8_t how = byte(r), at = byte(r);
    size_t place = how & 1   ? AT_FIELDS + at % (HEADER - AT_FIELDS)
                   : how & 2 ? AT_CURSOR + at % (AT_ZEROS - AT_CURSOR)
                   : how & 4 ? at % HEADER
                             : HEADER + ((size_t)at << 8 | byte(r));
    return bytes ? place % bytes : 0;
}

/* Bends the stream in memory of exactly its length; *bytes is what load is told. */
static unsigned char *bend(reader *r, const unsigned char *stream, size_t *bytes)
{
    uint8_t how = byte(r);
    size_t length = *bytes;
    if (how & 1)
        length = how & 2 ? byte(r) : length - 1 - byte(r);
    else if (how & 2)
        length += 1 + byte(r);
    unsigned char *bent = calloc(1, length ? length : 1);
    require(bent != NULL);
    memcpy(bent, stream, length < *bytes ? length : *bytes);
    *bytes = length;
    for (int n = how >> 2 & 7; length && n > 0 && r->at < r->end; n--) {
        size_t at = place_of(r, length);
        bent[at] = byte(r);
    }
    if (how & 64 && length >= HEADER)
        for (int i = 0; i < 8; i++)
            bent[AT_PAYLOAD_BYTES + i] = (unsigned char)((uint64_t)(length - HEADER) >> 8 * i);
    if (!(how & 32))
        seal(bent, length);
    return bent;
}

static void save_is(world *w, int64_t slot, const unsigned char *stream, size_t bytes)
{
    unsigned char *again = malloc((size_t)w->stream_bytes);
    uint64_t written = 0;
    require(again && w->slots->save(w->plugin, slot, again, w->stream_bytes, &written, NULL, NULL) == RSSM_OK);
    require(written == w->stream_bytes && bytes <= written);
    require(memcmp(again, stream, AT_CHECKSUM) == 0);
    require(memcmp(again + AT_CHECKSUM + 8, stream + AT_CHECKSUM + 8, bytes - AT_CHECKSUM - 8) == 0);
    free(again);
}

/* What was taken is a slot like any other: saved again it has the same header (dead rows of the payload come back as zeros), a
 * step begins with it and a flush folds it, NaNs or not. */
static void use_slot(world *w, const unsigned char *stream)
{
    save_is(w, TARGET, stream, HEADER);
    int32_t slot = TARGET;
    int64_t one = 1;
    const DLTensor list = {.data = &slot, .device = {kDLCPU, 0}, .ndim = 1, .dtype = h_int_type(32), .shape = &one};
    h_tensor rows;
    h_tensor_make(&rows, h_int_type(32), 2, (const int64_t[]){1, RSSM_ROW_WIDTH}, 0);
    const rssm_step_begin_args begin = {
        .struct_size = sizeof(begin), .slots = &list, .rows_out = &rows.t, .flags = RSSM_CHECK_DEEP};
    require(h_api()->step_begin(w->plugin, &begin, NULL) == RSSM_OK);
    require(h_tensor_guarded(&rows));
    h_tensor_free(&rows);
    if (w->spec.family == RSSM_FAMILY_MAMBA2) /* it needs the layers' weights */
        return;
    const rssm_flush_args flush = {.struct_size = sizeof(flush), .slots = &list, .flags = RSSM_CHECK_DEEP};
    require(w->slots->flush(w->plugin, &flush, NULL) == RSSM_OK);
    require(w->cursor[1] == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader r = {data, data + size};
    world w = {0};
    open_world(&w, &r);
    unsigned char *saved = malloc((size_t)w.stream_bytes);
    uint64_t written = 0;
    require(saved && w.slots->save(w.plugin, 0, saved, w.stream_bytes, &written, NULL, NULL) == RSSM_OK);
    size_t bytes = (size_t)written;
    unsigned char *bent = bend(&r, saved, &bytes);
    memcpy(w.before, w.slab, w.slab_bytes);
    rssm_error err = h_error();
    rssm_status status = w.slots->load(w.plugin, TARGET, bent, bytes, NULL, &err);
    require(err.status == status && (status == RSSM_OK) == !err.message[0]);
    require(memchr(err.message, 0, sizeof(err.message)) != NULL);
    if (bytes == written && memcmp(bent, saved, bytes) == 0)
        require(status == RSSM_OK);
    if (status == RSSM_OK) {
        require(bytes == w.stream_bytes);
        use_slot(&w, bent);
        save_is(&w, 0, saved, bytes); /* no other slot has changed */
    } else {
        require(status == RSSM_ERR_STREAM_DATA);
        require(memcmp(w.before, w.slab, w.slab_bytes) == 0);
    }
    free(bent);
    free(saved);
    close_world(&w);
    return 0;
}
