#include "core/stream.h"

#include <stdio.h>
#include <string.h>

#include "core/deep.h"
#include "core/error.h"

/* Tensors are written as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian host needs its elements swapped");

enum {
    VERSION = 1,
    AT_VERSION = 8,
    AT_HEADER_BYTES = 12,
    AT_PAYLOAD_BYTES = 16,
    AT_CHECKSUM = 24,
    AT_LAYOUT_HASH = 32,
    AT_LAYERS_HASH = 40,
    AT_FIELDS = 48,
    NUM_FIELDS = 21,
    AT_CURSOR = AT_FIELDS + 4 * NUM_FIELDS,
    AT_ZEROS = AT_CURSOR + 16,
    HEADER_BYTES = 192
};

static const char magic[8] = {'R', 'S', 'S', 'M', 'S', 'L', 'O', 'T'};

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static void put(unsigned char *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* Eight bytes at a time ("slicing by 8"): table[k][b] is what byte b adds when k more bytes follow it. The tables are made
 * per call: 2048 steps beside megabytes, and nothing to share or to initialise. */
typedef struct crc_tables {
    uint64_t of[8][256];
} crc_tables;

static void make_tables(crc_tables *t)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint64_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xC96C5795D7870F42u : crc >> 1;
        t->of[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++)
            t->of[k][b] = t->of[k - 1][b] >> 8 ^ t->of[0][t->of[k - 1][b] & 0xFF];
}

uint64_t rssm_crc64(uint64_t crc, const void *data, size_t bytes)
{
    crc_tables t;
    const unsigned char *at = data;
    make_tables(&t);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        crc ^= get(at, 8);
        crc = t.of[7][crc & 0xFF] ^ t.of[6][crc >> 8 & 0xFF] ^ t.of[5][crc >> 16 & 0xFF] ^ t.of[4][crc >> 24 & 0xFF] ^
              t.of[3][crc >> 32 & 0xFF] ^ t.of[2][crc >> 40 & 0xFF] ^ t.of[1][crc >> 48 & 0xFF] ^ t.of[0][crc >> 56];
    }
    for (; bytes > 0; bytes--, at++)
        crc = crc >> 8 ^ t.of[0][(crc ^ *at) & 0xFF];
    return ~crc;
}

static uint64_t checksum(const unsigned char *stream, uint64_t bytes)
{
    uint64_t crc = rssm_crc64(0, stream, AT_CHECKSUM);
    return rssm_crc64(crc, stream + AT_CHECKSUM + 8, (size_t)bytes - AT_CHECKSUM - 8);
}

/* ---- header ----------------------------------------------------------------------------------------------------- */

/* One int32 of the header, and its name in messages. */
typedef struct stream_field {
    const char *name;
    int32_t value;
    int32_t is_dtype;
} stream_field;

/* What this instance writes and expects; in the order of the header, which is also the order of comparison. */
static void fields_of(const rssm_plugin *p, stream_field fields[NUM_FIELDS])
{
    const rssm_rank *r = &p->rank;
    const stream_field list[NUM_FIELDS] = {
        {.name = "family", .value = p->model.family},
        {.name = "model key heads", .value = p->model.H},
        {.name = "model value heads", .value = p->model.HV},
        {.name = "H", .value = r->H},
        {.name = "HV", .value = r->HV},
        {.name = "K", .value = r->K},
        {.name = "V", .value = r->V},
        {.name = "ring length L", .value = r->L},
        {.name = "ring rows R", .value = r->R},
        {.name = "state dtype", .value = r->state_dtype, .is_dtype = 1},
        {.name = "ring dtype", .value = r->ring_dtype, .is_dtype = 1},
        {.name = "io dtype", .value = r->io_dtype, .is_dtype = 1},
        {.name = "tp_size", .value = r->tp_size},
        {.name = "tp_rank", .value = r->tp_rank},
        {.name = "first value head", .value = r->head_begin},
        {.name = "first key head", .value = r->group_begin},
        {.name = "linear layers", .value = r->num_linear},
        {.name = "convolution channels", .value = r->conv_len > 0 ? r->conv_channels : 0},
        {.name = "convolution width", .value = r->conv_len > 0 ? p->model.conv_kernel : 0},
        {.name = "convolution columns", .value = r->conv_len},
        {.name = "layout version", .value = RSSM_LAYOUT_VERSION},
    };
    memcpy(fields, list, sizeof(list));
}

uint64_t rssm_stream_bytes(const rssm_plugin *p)
{
    return HEADER_BYTES + (uint64_t)p->layout.slot_total_bytes;
}

void *rssm_stream_payload(void *buffer)
{
    return (unsigned char *)buffer + HEADER_BYTES;
}

static void write_header(const rssm_plugin *p, const int32_t cursor[4], unsigned char *stream)
{
    stream_field fields[NUM_FIELDS];
    fields_of(p, fields);
    memset(stream, 0, HEADER_BYTES);
    memcpy(stream, magic, sizeof(magic));
    put(stream + AT_VERSION, VERSION, 4);
    put(stream + AT_HEADER_BYTES, HEADER_BYTES, 4);
    put(stream + AT_PAYLOAD_BYTES, (uint64_t)p->layout.slot_total_bytes, 8);
    put(stream + AT_LAYOUT_HASH, p->rank.hash, 8);
    put(stream + AT_LAYERS_HASH, rssm_layers_hash(&p->rank), 8);
    for (int i = 0; i < NUM_FIELDS; i++)
        put(stream + AT_FIELDS + 4 * i, (uint32_t)fields[i].value, 4);
    for (int i = 0; i < RSSM_CURSOR_WIDTH; i++)
        put(stream + AT_CURSOR + 4 * i, (uint32_t)cursor[i], 4);
}

/* ---- payload ---------------------------------------------------------------------------------------------------- */

/* One tensor of one layer: its bytes in the payload, and whether the pool has it (a ring may be left out at L = 1, where it
 * never holds anything). */
typedef struct payload_part {
    const rssm_tensor_info *info;
    int64_t bytes;
    bool bound;
} payload_part;

static int64_t num_parts(const rssm_plugin *p)
{
    return (int64_t)p->rank.num_linear * p->layout.num_tensors;
}

/* In the order of regions; the cursor has no bytes. */
static payload_part part_at(const rssm_plugin *p, int64_t i)
{
    const rssm_tensor_info *info = &p->tensors[i % p->layout.num_tensors];
    return (payload_part){
        .info = info, .bytes = info->per_layer ? info->bytes_per_slot : 0, .bound = p->views[i].tensor.data != NULL};
}

static int64_t bound_bytes(const rssm_plugin *p)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < num_parts(p); i++)
        bytes += part_at(p, i).bound ? part_at(p, i).bytes : 0;
    return bytes;
}

/* The pool's tensors, packed at the start, go to their places; zeros where the pool has none. From the end. */
static void spread_parts(const rssm_plugin *p, unsigned char *payload)
{
    int64_t from = bound_bytes(p), to = p->layout.slot_total_bytes;
    for (int64_t i = num_parts(p) - 1; from < to && i >= 0; i--) {
        payload_part part = part_at(p, i);
        to -= part.bytes;
        from -= part.bound ? part.bytes : 0;
        if (part.bound)
            memmove(payload + to, payload + from, (size_t)part.bytes);
        else
            memset(payload + to, 0, (size_t)part.bytes);
    }
}

const void *rssm_stream_of_pool(const rssm_plugin *p, const void *buffer, void **copy)
{
    const unsigned char *payload = (const unsigned char *)buffer + HEADER_BYTES;
    if (bound_bytes(p) == p->layout.slot_total_bytes)
        return payload;
    unsigned char *packed = *copy = rssm_mem_alloc(&p->mem, (size_t)p->layout.slot_total_bytes, 16);
    for (int64_t i = 0, to = 0; packed && i < num_parts(p); i++) {
        payload_part part = part_at(p, i);
        if (part.bound) {
            memcpy(packed + to, payload, (size_t)part.bytes);
            to += part.bytes;
        }
        payload += part.bytes;
    }
    return packed;
}

/* Rows of the ring that hold no record: [heads, R, inner]. */
static void zero_ring(const rssm_tensor_info *info, const int32_t cursor[4], unsigned char *data)
{
    int64_t heads = info->shape[1], R = info->shape[2], row = info->bytes_per_slot / (heads * R);
    for (int64_t head = 0; head < heads; head++)
        for (int64_t i = cursor[1]; i < R; i++)
            memset(data + (head * R + (cursor[0] + i) % R) * row, 0, (size_t)row);
}

/* Columns behind the next one and before the last w - 1: [channels, columns]. */
static void zero_conv(const rssm_tensor_info *info, int32_t width, const int32_t cursor[4], unsigned char *data)
{
    int64_t channels = info->shape[1], columns = info->shape[2], element = info->dtype_bits / 8;
    for (int64_t channel = 0; channel < channels; channel++)
        for (int64_t i = 0; i < columns - (width - 1); i++)
            memset(data + (channel * columns + (cursor[2] + i) % columns) * element, 0, (size_t)element);
}

/* Zeros for what is not alive, so that equal slots give equal bytes and nothing of an earlier tenant leaves. */
static void zero_dead(const rssm_plugin *p, const int32_t cursor[4], unsigned char *payload)
{
    for (int64_t i = 0; i < num_parts(p); i++) {
        payload_part part = part_at(p, i);
        int place = rssm_family_role(p->rank.family, part.info->role)->place;
        if (place == RSSM_PLACE_RING)
            zero_ring(part.info, cursor, payload);
        else if (place == RSSM_PLACE_CONV)
            zero_conv(part.info, p->model.conv_kernel, cursor, payload);
        payload += part.bytes;
    }
}

void rssm_stream_seal(const rssm_plugin *p, const int32_t cursor[4], void *buffer)
{
    unsigned char *stream = buffer;
    spread_parts(p, stream + HEADER_BYTES);
    zero_dead(p, cursor, stream + HEADER_BYTES);
    write_header(p, cursor, stream);
    put(stream + AT_CHECKSUM, checksum(stream, rssm_stream_bytes(p)), 8);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Is it one of ours, and all there? Every number is hostile until the checksum was right. */
static rssm_status check_frame(const unsigned char *stream, uint64_t bytes, rssm_error *err)
{
    rssm_where where = {.dim = -1, .expected = HEADER_BYTES, .got = (int64_t)bytes};
    if (bytes < HEADER_BYTES)
        return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where, "the stream has %llu bytes; its header alone has %d",
                            (unsigned long long)bytes, HEADER_BYTES);
    if (memcmp(stream, magic, sizeof(magic)) != 0)
        return rssm_fail(err, RSSM_ERR_STREAM_DATA, "not a saved slot: the stream does not start with %.8s", magic);
    uint64_t version = get(stream + AT_VERSION, 4), header = get(stream + AT_HEADER_BYTES, 4);
    where = (rssm_where){.dim = -1, .expected = VERSION, .got = (int64_t)version};
    if (version != VERSION)
        return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where,
                            "the stream has format version %llu; this plugin reads %d", (unsigned long long)version,
                            VERSION);
    where = (rssm_where){.dim = -1, .expected = HEADER_BYTES, .got = (int64_t)header};
    if (header != HEADER_BYTES)
        return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where, "the stream's header says %llu bytes; version %d has %d",
                            (unsigned long long)header, VERSION, HEADER_BYTES);
    uint64_t payload = get(stream + AT_PAYLOAD_BYTES, 8);
    where = (rssm_where){.dim = -1, .expected = (int64_t)payload, .got = (int64_t)(bytes - HEADER_BYTES)};
    if (payload != bytes - HEADER_BYTES)
        return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where,
                            "the stream is %s: its header says %llu bytes of payload; there are %llu",
                            bytes - HEADER_BYTES < payload ? "cut" : "too long", (unsigned long long)payload,
                            (unsigned long long)(bytes - HEADER_BYTES));
    uint64_t said = get(stream + AT_CHECKSUM, 8), is = checksum(stream, bytes);
    if (said != is)
        return rssm_fail(err, RSSM_ERR_STREAM_DATA,
                         "the stream is damaged: its checksum says %016llx; its bytes have "
                         "%016llx",
                         (unsigned long long)said, (unsigned long long)is);
    return RSSM_OK;
}

static rssm_status fail_field(const stream_field *ours, int32_t theirs, rssm_error *err)
{
    rssm_where where = {.dim = -1, .expected = ours->value, .got = theirs};
    if (ours->is_dtype)
        return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where, "the stream has %s %s; this instance has %s", ours->name,
                            rssm_dtype_name(theirs), rssm_dtype_name(ours->value));
    return rssm_fail_at(err, RSSM_ERR_STREAM_DATA, where, "the stream has %s = %d; this instance has %d", ours->name,
                        theirs, ours->value);
}

static rssm_status check_hash(const unsigned char *at, uint64_t ours, const char *what, rssm_error *err)
{
    uint64_t theirs = get(at, 8);
    if (theirs == ours)
        return RSSM_OK;
    return rssm_fail(err, RSSM_ERR_STREAM_DATA, "the stream has %s %016llx; this instance has %016llx", what,
                     (unsigned long long)theirs, (unsigned long long)ours);
}

/* A sound stream: is it of this instance? The layout hash is last: it covers the gate's constants too. */
static rssm_status check_origin(const rssm_plugin *p, const unsigned char *stream, rssm_error *err)
{
    stream_field fields[NUM_FIELDS];
    fields_of(p, fields);
    for (int i = 0; i < NUM_FIELDS; i++) {
        int32_t theirs = (int32_t)(uint32_t)get(stream + AT_FIELDS + 4 * i, 4);
        if (theirs != fields[i].value)
            return fail_field(&fields[i], theirs, err);
    }
    rssm_status status = check_hash(stream + AT_LAYERS_HASH, rssm_layers_hash(&p->rank),
                                    "other model layers: their numbers hash to", err);
    if (!status)
        status = check_hash(stream + AT_LAYOUT_HASH, p->rank.hash, "layout hash (another gate or norm?)", err);
    for (int i = AT_ZEROS; !status && i < HEADER_BYTES; i++)
        if (stream[i])
            status = rssm_fail(err, RSSM_ERR_STREAM_DATA, "byte %d of the stream's header is %u, not 0", i, stream[i]);
    uint64_t payload = get(stream + AT_PAYLOAD_BYTES, 8), expected = (uint64_t)p->layout.slot_total_bytes;
    if (!status && payload != expected)
        status = rssm_fail(err, RSSM_ERR_STREAM_DATA, "the stream has %llu bytes of payload; a slot here has %llu",
                           (unsigned long long)payload, (unsigned long long)expected);
    return status;
}

rssm_status rssm_stream_check(const rssm_plugin *p, const void *buffer, uint64_t bytes, int32_t cursor[4],
                              rssm_error *err)
{
    const unsigned char *stream = buffer;
    rssm_status status = check_frame(stream, bytes, err);
    if (!status)
        status = check_origin(p, stream, err);
    for (int i = 0; !status && i < RSSM_CURSOR_WIDTH; i++)
        cursor[i] = (int32_t)(uint32_t)get(stream + AT_CURSOR + 4 * i, 4);
    return status ? status : rssm_check_cursor_values(p, RSSM_ERR_STREAM_DATA, cursor, "the stream", err);
}
