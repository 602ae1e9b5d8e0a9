/* The bytes of a saved slot. Everything little-endian, one after another without gaps:
 *
 *   offset bytes
 *        0     8  magic "RSSMSLOT"
 *        8     4  version of this format: 1
 *       12     4  bytes of the header: 192
 *       16     8  bytes of the payload
 *       24     8  checksum: CRC-64/XZ of every other byte of the stream, header and payload
 *       32     8  layout hash (describe)
 *       40     8  hash of the model layer numbers
 *       48   4*n  int32 each: family, model's H and HV, H, HV, K, V, L, R, state, ring and io dtype, tp_size, tp_rank,
 *                 first value head, first key head, layers, convolution channels, width and columns, layout version
 *      132    16  cursor: base, count, conv, short
 *      148    44  zeros
 *      192        payload: for each layer its pool tensors in the order of pool_layout, one slot of each
 *
 * Ring rows outside the count and convolution columns outside the last w - 1 are zeros. A CRC finds every single flipped
 * bit, and lengths are part of the header, so a cut is found before it. */
#ifndef RSSM_CORE_STREAM_H_
#define RSSM_CORE_STREAM_H_

#include "core/plugin.h"

/* Of every saved slot of the instance. */
uint64_t rssm_stream_bytes(const rssm_plugin *plugin);

/* Where the payload goes in a buffer. */
void *rssm_stream_payload(void *buffer);

/* The buffer's payload is as read_slot gave it: makes it a stream. */
void rssm_stream_seal(const rssm_plugin *plugin, const int32_t cursor[4], void *buffer);

/* Is this a whole and undamaged stream of this instance? RSSM_ERR_STREAM_DATA, with both sides. */
rssm_status rssm_stream_check(const rssm_plugin *plugin, const void *buffer, uint64_t bytes, int32_t cursor[4],
                              rssm_error *err);

/* The payload as write_slot takes it. *copy is NULL, or memory of slot_total_bytes that the caller frees; NULL when
 * memory fails. */
const void *rssm_stream_of_pool(const rssm_plugin *plugin, const void *buffer, void **copy);

/* CRC-64/XZ; start with 0. Of "123456789": 995dc9bbdf1939fa. */
uint64_t rssm_crc64(uint64_t crc, const void *data, size_t bytes);

#endif
