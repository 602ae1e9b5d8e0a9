/* Where tensors live: host memory, or a GPU through the driver API. */
#ifndef EXAMPLES_DEVICE_H_
#define EXAMPLES_DEVICE_H_

#include "host.h"

typedef struct device {
    DLDevice dl;
    void *state;                                       /* of the implementation */
    void *(*alloc)(struct device *dev, int64_t bytes); /* NULL on failure */
    void (*release)(struct device *dev, void *ptr);
    /* Both wait for what was enqueued before, and are done on return. 0 on success. */
    int (*to_device)(struct device *dev, void *dst, const void *src, int64_t bytes);
    int (*to_host)(struct device *dev, void *dst, const void *src, int64_t bytes);
    int (*sync)(struct device *dev); /* waits for all work enqueued so far */
    void (*close)(struct device *dev);
} device;

/* "cuda", else the CPU. EXIT_OK, or EXIT_REFUSED once the reason is printed. */
int device_open(device *dev, const char *name, const host *h);
void device_close(device *dev); /* also of a zeroed one */

int device_is_host(const device *dev);

/* cuda_host.c */
int cuda_device_open(device *dev, const host *h);

#endif
