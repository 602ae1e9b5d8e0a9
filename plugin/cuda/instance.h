/* The CUDA backend's inside: one instance, and what its files (cuda.c, ...) share. */
#ifndef RSSM_CUDA_INSTANCE_H_
#define RSSM_CUDA_INSTANCE_H_

#include <stdbool.h>

#include "core/backend.h"
#include "cuda/driver.h"
#include "cuda/launch.h"
#include "cuda/small_launch.h"
#include "cuda/verify_launch.h"

/* What an instance may launch: the tuned variants of launch.h by their index there, then these. */
enum {
    RSSM_KERNEL_GENERAL = RSSM_CUDA_VARIANTS,
    RSSM_KERNEL_BEGIN,
    RSSM_KERNEL_BEGIN_ORDERED,
    RSSM_KERNEL_RESET,
    RSSM_KERNEL_SLOTS_COPY,
    RSSM_KERNEL_SLOTS_IMPORT,
    RSSM_KERNEL_SLOTS_EXPORT,
    RSSM_KERNEL_SLOTS_FLUSH,
    RSSM_KERNEL_SLOTS_FLUSHED,
    RSSM_KERNEL_SLOTS_TAKE,
    RSSM_KERNEL_SLOTS_GIVE,
    RSSM_KERNEL_CONV,
    RSSM_KERNEL_CONV4,
    RSSM_KERNEL_CONV_PAIRS,
    RSSM_KERNEL_VERIFY_BEGIN,
    RSSM_KERNEL_VERIFY_COMMIT,
    RSSM_KERNEL_VERIFY_GENERAL,
    RSSM_KERNEL_VERIFY_TUNED,                                            /* the variants of verify_launch.h */
    RSSM_KERNEL_SMALL = RSSM_KERNEL_VERIFY_TUNED + RSSM_VERIFY_VARIANTS, /* the kernels of small_launch.h */
    RSSM_NUM_KERNELS = RSSM_KERNEL_SMALL + RSSM_CUDA_SMALLS
};

/* The fatbins that an instance loads. */
enum {
    RSSM_LIBRARY_POOL,
    RSSM_LIBRARY_SLOTS,
    RSSM_LIBRARY_CONV,
    RSSM_LIBRARY_GENERAL,
    RSSM_LIBRARY_FAMILY,
    RSSM_LIBRARY_SMALL,
    RSSM_LIBRARY_VERIFY_CURSOR,
    RSSM_LIBRARY_VERIFY_GENERAL,
    RSSM_LIBRARY_VERIFY_FAMILY,
    RSSM_NUM_LIBRARIES
};

typedef struct rssm_cuda {
    rssm_backend_options options;
    rssm_allocator mem;
    rssm_cuda_driver driver;
    CUdevice device;
    CUcontext context;
    CUlibrary libraries[RSSM_NUM_LIBRARIES];
    CUfunction functions[RSSM_NUM_KERNELS]; /* NULL: not for this instance or not on this device */
    CUdeviceptr fault;                      /* one uint32 */
    CUdeviceptr tables;                     /* from bind: rssm_region[num_regions], then those of slots.c */
    int64_t tables_bytes;
    int64_t chunks;                                  /* of a slot, for copies */
    rssm_pool pool;                                  /* its arrays are the host's */
    int multiprocessors, shared_bytes, major, minor; /* of the device */
    bool starts_early;                               /* kernels, see stream_order.cuh */
    int lost;                                        /* the CUresult that ended the context */
} rssm_cuda;

/* A failed driver call as an error; remembers a context that is dead. */
rssm_status rssm_cuda_failed(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err);

/* Every call of the driver stands between these two, so that the host's current context stays what it was. leave passes the
 * result of what was done between on. */
rssm_status rssm_cuda_enter(rssm_cuda *cuda, rssm_error *err);
rssm_status rssm_cuda_leave(rssm_cuda *cuda, CUresult result, const char *what, rssm_error *err);

/* Launches a kernel whose one argument is the struct at args, by value; enters and leaves. */
rssm_status rssm_cuda_run(rssm_cuda *cuda, int kernel, const rssm_cuda_launch *how, const void *args, void *stream,
                          const char *what, rssm_error *err);

/* slots.c: the tables in device memory; slot operations. */
int64_t rssm_cuda_tables_bytes(int64_t num_regions, int64_t num_layers);
int64_t rssm_cuda_make_tables(const rssm_pool *pool, void *block);
const char *rssm_cuda_take_kernel(const rssm_backend_options *options);
rssm_status rssm_cuda_copy_slots(void *ctx, const rssm_slot_copy *copy, void *stream, rssm_error *err);
rssm_status rssm_cuda_import(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
rssm_status rssm_cuda_export(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
rssm_status rssm_cuda_flush(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err);
rssm_status rssm_cuda_read_slot(void *ctx, int64_t slot, int32_t cursor[4], void *bytes, void *stream, rssm_error *err);
rssm_status rssm_cuda_write_slot(void *ctx, int64_t slot, const int32_t cursor[4], const void *bytes, void *stream,
                                 rssm_error *err);

/* conv.c */
rssm_status rssm_cuda_conv(void *ctx, const rssm_convolution *conv, void *stream, rssm_error *err);

/* verify.c */
rssm_status rssm_cuda_verify_begin(void *ctx, const rssm_verify_begin *begin, void *stream, rssm_error *err);
rssm_status rssm_cuda_verify(void *ctx, const rssm_window *window, void *stream, rssm_error *err);
rssm_status rssm_cuda_commit(void *ctx, const rssm_commit *commit, void *stream, rssm_error *err);

/* Of a grid: the size of a dimension that goes on beyond it, and how many parts a whole has. */
static inline uint32_t rssm_cuda_at_most(int64_t count, int64_t most)
{
    return (uint32_t)(count < most ? count : most);
}

static inline int64_t rssm_cuda_parts(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

#endif
