/* A compact DLTensor that owns its memory on a device, with the same bytes on the host. */
#ifndef EXAMPLES_TENSOR_H_
#define EXAMPLES_TENSOR_H_

#include "device.h"
#include "dtype.h"

enum { TENSOR_MAX_DIMS = 4 };

typedef struct tensor {
    DLTensor dl; /* what the plugin gets; dl.shape points into this struct, so it must not be moved */
    int64_t shape[TENSOR_MAX_DIMS];
    void *host; /* dl.data itself on the CPU */
    int64_t bytes;
    device *dev;
} tensor;

/* 0, or -1 when memory ran out. `tensor` may be freed either way. */
int tensor_create(tensor *t, device *dev, DLDataType type, int32_t ndim, const int64_t *shape);
int tensor_upload(tensor *t);
int tensor_download(tensor *t);
void tensor_free(tensor *t); /* also of a zeroed one */

DLDataType tensor_int32(void);
/* First byte of a DLTensor, byte_offset counted. */
void *tensor_data(const DLTensor *t);
/* Elements from index i to i + 1 of the first dim; NULL strides mean compact. */
int64_t tensor_row_stride(const DLTensor *t);
int64_t tensor_row_elements(const DLTensor *t);

#endif
