/* What the fuzzers share: bytes of the input, one after the other, and the ways to bend a tensor. The order in which bytes are taken
 * is what seeds are made of. */
#ifndef TESTS_FUZZ_BEND_H
#define TESTS_FUZZ_BEND_H

#include <stdlib.h>

#include "../unit/harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void require(int condition)
{
    if (!condition)
        abort();
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static inline uint8_t byte(reader *r)
{
    return r->at < r->end ? *r->at++ : 0; /* zeros behind the end */
}

static inline int64_t odd_number(reader *r)
{
    static const int64_t numbers[] = {
        0, 1, -1, 2, 3, 4, 5, 6, 7, 8, 16, 64, INT32_MAX, (int64_t)INT32_MAX + 1, INT64_MAX, INT64_MIN};
    uint8_t b = byte(r);
    return b & 16 ? (int64_t)(int8_t)byte(r) : numbers[b & 15];
}

/* Bends the descriptor in one of 9 ways; any other is the caller's, and nothing is done. */
enum { DESCRIPTOR_WAYS = 9 };
static inline void bend_descriptor(h_tensor *t, int dim, int way, reader *r)
{
    switch (way) {
    case 0:
        t->shape[dim] = odd_number(r);
        break;
    case 1:
        t->strides[dim] = odd_number(r);
        t->t.strides = t->strides;
        break;
    case 2:
        t->t.ndim = byte(r) % 6;
        break;
    case 3:
        t->t.dtype.bits = byte(r);
        break;
    case 4:
        t->t.dtype.code = byte(r) % 8;
        break;
    case 5:
        t->t.dtype.lanes = byte(r);
        break;
    case 6:
        t->t.device.device_type = (DLDeviceType)(byte(r) % 4);
        break;
    case 7:
        t->t.byte_offset = (uint64_t)odd_number(r);
        break;
    case 8:
        t->t.data = NULL;
        break;
    default:
        break;
    }
}

#endif
