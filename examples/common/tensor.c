#include "tensor.h"

#include <stdlib.h>

int tensor_create(tensor *t, device *dev, DLDataType type, int32_t ndim, const int64_t *shape)
{
    *t = (tensor){.dev = dev, .bytes = type.bits / 8};
    for (int32_t i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        t->bytes *= shape[i];
    }
    t->dl = (DLTensor){.device = dev->dl, .ndim = ndim, .dtype = type, .shape = t->shape};
    t->dl.data = dev->alloc(dev, t->bytes);
    t->host = device_is_host(dev) ? t->dl.data : calloc(1, t->bytes > 0 ? (size_t)t->bytes : 1);
    return t->dl.data != NULL && t->host != NULL ? 0 : -1;
}

int tensor_upload(tensor *t)
{
    return t->dev->to_device(t->dev, t->dl.data, t->host, t->bytes);
}

int tensor_download(tensor *t)
{
    return t->dev->to_host(t->dev, t->host, t->dl.data, t->bytes);
}

void tensor_free(tensor *t)
{
    if (t->dev == NULL)
        return;
    if (!device_is_host(t->dev))
        free(t->host);
    t->dev->release(t->dev, t->dl.data);
    *t = (tensor){.host = NULL};
}

DLDataType tensor_int32(void)
{
    DLDataType type = {kDLInt, 32, 1};
    return type;
}

void *tensor_data(const DLTensor *t)
{
    return (char *)t->data + t->byte_offset;
}

int64_t tensor_row_elements(const DLTensor *t)
{
    int64_t n = 1;
    for (int32_t i = 1; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

int64_t tensor_row_stride(const DLTensor *t)
{
    return t->strides != NULL ? t->strides[0] : tensor_row_elements(t);
}
