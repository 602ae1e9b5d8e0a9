/* Slot operations on the host's side: copies, states in and out, flushes, saved slots. */
#include "cuda/slots.h"

#include <stdbool.h>

#include "core/error.h"
#include "cuda/instance.h"

/* Blocks per multiprocessor that a copy is cut into, where it has chunks enough: several times what runs at once, so that the
 * last ones end together. */
enum {
    COPY_BLOCKS = 16,
    STATE_BLOCKS = 12,
    MAX_RUN = 16,
    MAX_GRID_X = INT32_MAX,
    MAX_GRID_YZ = 65535,
    MAX_TILE_ROWS = 1 << 20
};

_Static_assert(sizeof(rssm_cuda_states) <= 4096, "more than the arguments of a kernel may be");

/* ---- tables in device memory ------------------------------------------------------------------------------------ */

/* regions[], layers[], first_chunk[]: one allocation, in this order; each has 8-byte elements. */
int64_t rssm_cuda_tables_bytes(int64_t num_regions, int64_t num_layers)
{
    return num_regions * (int64_t)sizeof(rssm_region) + num_layers * (int64_t)sizeof(rssm_pool_layer) +
           (num_regions + 1) * (int64_t)sizeof(int64_t);
}

static const rssm_region *device_regions(const rssm_cuda *cuda)
{
    return (const rssm_region *)cuda->tables;
}

static const rssm_pool_layer *device_layers(const rssm_cuda *cuda)
{
    return (const rssm_pool_layer *)(device_regions(cuda) + cuda->pool.num_regions);
}

static const int64_t *device_chunks(const rssm_cuda *cuda)
{
    return (const int64_t *)(device_layers(cuda) + cuda->pool.num_layers);
}

/* The tables of a pool into a host block of rssm_cuda_tables_bytes(); returns the chunks of a slot. */
int64_t rssm_cuda_make_tables(const rssm_pool *pool, void *block)
{
    rssm_region *regions = block;
    rssm_pool_layer *layers = (rssm_pool_layer *)(regions + pool->num_regions);
    int64_t *first = (int64_t *)(layers + pool->num_layers), chunks = 0;
    for (int32_t i = 0; i < pool->num_regions; i++) {
        regions[i] = pool->regions[i];
        first[i] = chunks;
        chunks += rssm_cuda_parts(pool->regions[i].slot_bytes, RSSM_CUDA_COPY_CHUNK);
    }
    for (int32_t i = 0; i < pool->num_layers; i++)
        layers[i] = pool->layers[i];
    return first[pool->num_regions] = chunks;
}

static rssm_cuda_slots judged_by(const rssm_cuda *cuda, uint32_t *fault)
{
    const rssm_pool *pool = &cuda->pool;
    return (rssm_cuda_slots){
        .S = pool->S,
        .pad_slot = pool->pad_slot,
        .cursor = pool->cursor,
        .cursor_slot = pool->cursor_slot,
        .L = pool->L,
        .R = pool->R,
        .conv_len = pool->conv_len,
        .fault = fault,
    };
}

/* ---- copy ------------------------------------------------------------------------------------------------------- */

rssm_status rssm_cuda_copy_slots(void *ctx, const rssm_slot_copy *copy, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const rssm_cuda_copy args = {
        .in = judged_by(cuda, copy->fault),
        .n = copy->n,
        .src = copy->src,
        .dst = copy->dst,
        .regions = device_regions(cuda),
        .first_chunk = device_chunks(cuda),
        .num_regions = cuda->pool.num_regions,
        .chunks = cuda->chunks,
    };
    if (copy->n == 0)
        return RSSM_OK;
    int64_t shares = rssm_cuda_parts((int64_t)cuda->multiprocessors * COPY_BLOCKS, copy->n);
    const rssm_cuda_launch how = {
        .grid = {rssm_cuda_at_most(shares, cuda->chunks), rssm_cuda_at_most(copy->n, MAX_GRID_YZ), 1},
        .threads = RSSM_CUDA_SLOT_THREADS,
    };
    return rssm_cuda_run(cuda, RSSM_KERNEL_SLOTS_COPY, &how, &args, stream, "launching a copy of slots", err);
}

/* ---- states ----------------------------------------------------------------------------------------------------- */

/* Tiles per block. Those that share their keys (one head's, or of all value heads of a key head where the keys carry no
 * gate) are best done by one block, but only where there are blocks enough. */
static int32_t tiles_per_block(const rssm_cuda *cuda, int64_t n, int64_t tiles_of_head)
{
    const rssm_pool *pool = &cuda->pool;
    int64_t run = tiles_of_head * (pool->family == RSSM_FAMILY_KDA ? 1 : pool->HV / pool->H);
    int64_t all = n * pool->num_layers * pool->HV * tiles_of_head,
            enough = (int64_t)cuda->multiprocessors * STATE_BLOCKS;
    while (run > 1 && all / run < enough)
        run = run % 2 ? 1 : run / 2;
    return (int32_t)(run < MAX_RUN ? run : MAX_RUN);
}

/* An operation on states: its kernel for any shape, that of slots_tile.cuh, and what a failure is called. */
typedef struct operation {
    int any, tile;
    int32_t in_place;
    bool is_import;
    const char *what;
} operation;

static const operation import_states = {RSSM_KERNEL_SLOTS_IMPORT, RSSM_KERNEL_SLOTS_GIVE, 0, true,
                                        "launching an import"},
                       export_states = {RSSM_KERNEL_SLOTS_EXPORT, RSSM_KERNEL_SLOTS_TAKE, 0, false,
                                        "launching an export"},
                       flush_states = {RSSM_KERNEL_SLOTS_FLUSH, RSSM_KERNEL_SLOTS_TAKE, 1, false, "launching a flush"};

static int64_t size_of(int32_t dtype)
{
    return dtype == RSSM_CUDA_DTYPE_f32 ? 4 : 2;
}

/* Whether each of the rows `row` elements apart starts at a multiple of 16 bytes. */
static bool starts_at_16(const void *data, int64_t row, int32_t dtype)
{
    return (uintptr_t)data % 16 == 0 && row * size_of(dtype) % 16 == 0;
}

static bool pooled_fits(const rssm_pooled *t, const rssm_pooled *first)
{
    return t->dtype == first->dtype && starts_at_16(t->data, t->slot, t->dtype);
}

static bool layer_fits(const rssm_pool *pool, const operation *op, const rssm_pool_layer *layer,
                       const rssm_state_layer *host, const rssm_state_layer *first_host)
{
    const rssm_pool_layer *first = &pool->layers[0];
    if (!pooled_fits(&layer->state, &first->state))
        return false;
    if (!op->in_place && !starts_at_16(host->state, host->state_row, host->state_dtype))
        return false;
    if (op->is_import)
        return host->state_dtype == first_host->state_dtype;
    return !layer->k_cache.data ||
           (pooled_fits(&layer->k_cache, &first->k_cache) && pooled_fits(&layer->d_cache, &first->k_cache) &&
            (pool->family != RSSM_FAMILY_KDA || pooled_fits(&layer->g_cache, &first->g_cache)));
}

/* The kernel for exports and flushes of this instance's pool. */
const char *rssm_cuda_take_kernel(const rssm_backend_options *o)
{
#define TAKE(state, form) \
    {RSSM_CUDA_DTYPE_##state, RSSM_CUDA_FORM_##form, RSSM_CUDA_STRING(RSSM_SLOTS_TAKE_NAME(state, form))},
    static const struct {
        int32_t state_dtype, form;
        const char *name;
    } kernels[] = {RSSM_SLOTS_TAKE_LIST(TAKE)};
#undef TAKE
    const int32_t form = o->ring_dtype != RSSM_CUDA_DTYPE_bf16 ? RSSM_CUDA_FORM_any_ring
                         : o->family == RSSM_FAMILY_KDA        ? RSSM_CUDA_FORM_kda_bf16
                                                               : RSSM_CUDA_FORM_scalar_bf16;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (kernels[i].state_dtype == o->state_dtype && kernels[i].form == form)
            return kernels[i].name;
    return NULL; /* a type of state that is in no family: the driver refuses it */
}

/* What slots_tile.cuh is made for. Imports of float32 states in [V, K] are faster without it: nothing to fold or turn. */
static bool fits_tile(const rssm_cuda *cuda, const operation *op, const rssm_state_io *io)
{
    const rssm_pool *pool = &cuda->pool;
    if (pool->K % 32 || pool->V % 16 || (!op->is_import && pool->L > RSSM_CUDA_TILE_RECORDS) ||
        (int64_t)pool->HV * pool->V * rssm_cuda_parts(pool->K, RSSM_CUDA_STATE_CHANNELS) > MAX_TILE_ROWS ||
        io->n > MAX_GRID_YZ || pool->layers[0].state.dtype != cuda->options.state_dtype ||
        (pool->layers[0].k_cache.data && pool->layers[0].k_cache.dtype != cuda->options.ring_dtype))
        return false;
    if (op->is_import && io->layers[0].state_dtype == RSSM_CUDA_DTYPE_f32 && !io->transposed)
        return false;
    for (int32_t i = 0; i < pool->num_layers; i++)
        if (!layer_fits(pool, op, &pool->layers[i], &io->layers[i], &io->layers[0]))
            return false;
    return true;
}

/* How a state is cut, and into how many blocks: kernels for any shape take tiles of 64 rows of a head, several a block, and have other
 * blocks for the history; those of slots_tile.cuh take one tile of rows that share their keys, and a part of the history. */
static int64_t cut_any(const rssm_cuda *cuda, int64_t channels, rssm_cuda_states *args)
{
    const rssm_pool *pool = &cuda->pool;
    const int64_t tiles =
        rssm_cuda_parts(pool->K, RSSM_CUDA_STATE_CHANNELS) * rssm_cuda_parts(pool->V, RSSM_CUDA_STATE_ROWS);
    args->state_tiles = (int32_t)(tiles * pool->HV);
    args->run = tiles_per_block(cuda, args->n, tiles);
    args->state_blocks = (args->state_tiles + args->run - 1) / args->run;
    args->history = RSSM_CUDA_HISTORY;
    return args->state_blocks + rssm_cuda_parts(channels, RSSM_CUDA_HISTORY);
}

/* Whether blocks of a tile kernel can have all of their part of the history at once, 16-bit elements that stay as they are. */
static int32_t has_early_history(const rssm_cuda *cuda, const operation *op, const rssm_state_io *io, int32_t channels)
{
    const rssm_pool *pool = &cuda->pool;
    if (op->is_import || channels == 0 || channels > RSSM_CUDA_EARLY_CHANNELS * RSSM_CUDA_TILE_THREADS ||
        pool->conv_width - 1 > RSSM_CUDA_EARLY_COLUMNS || pool->conv_len < pool->conv_width - 1)
        return 0;
    for (int32_t i = 0; i < pool->num_layers; i++) {
        const rssm_pooled *conv = &pool->layers[i].conv;
        if (!conv->data || size_of(conv->dtype) != 2 || (io->layers[i].conv && io->layers[i].conv_dtype != conv->dtype))
            return 0;
    }
    return 1;
}

static int64_t cut_tiles(const rssm_cuda *cuda, const operation *op, const rssm_state_io *io, int64_t channels,
                         rssm_cuda_states *args)
{
    const rssm_pool *pool = &cuda->pool;
    const int64_t heads = pool->family == RSSM_FAMILY_KDA ? 1 : pool->HV / pool->H;
    const int32_t dtype = op->is_import ? io->layers[0].state_dtype : pool->layers[0].state.dtype;
    const int64_t rows = RSSM_CUDA_TILE_ROWS * (dtype == RSSM_CUDA_DTYPE_f32 ? 1 : 2);
    args->group_heads = (int32_t)heads;
    args->group_tiles = (int32_t)rssm_cuda_parts(heads * pool->V, rows);
    args->state_tiles =
        (int32_t)(pool->HV / heads * args->group_tiles * rssm_cuda_parts(pool->K, RSSM_CUDA_STATE_CHANNELS));
    args->run = 1;
    args->history = (int32_t)rssm_cuda_parts(channels, args->state_tiles);
    args->early_history = has_early_history(cuda, op, io, args->history);
    return args->state_blocks = args->state_tiles;
}

static rssm_cuda_states states_args(const rssm_cuda *cuda, const operation *op, const rssm_state_io *io)
{
    const rssm_pool *pool = &cuda->pool;
    return (rssm_cuda_states){
        .in = judged_by(cuda, io->fault),
        .n = io->n,
        .slots = io->slots,
        .family = pool->family,
        .H = pool->H,
        .HV = pool->HV,
        .K = pool->K,
        .V = pool->V,
        .transposed = io->transposed,
        .decay_is_A = io->decay_is_A,
        .spread_step = pool->spread_step,
        .conv_channels = pool->conv_channels,
        .conv_width = pool->conv_width,
        .state_dtype = pool->layers[0].state.dtype,
        .record_dtype = pool->layers[0].k_cache.dtype,
        .in_place = op->in_place,
    };
}

/* All layers, some per launch. channels: of a row's convolution history that is in the kernel's work. */
static rssm_status run_states(rssm_cuda *cuda, const operation *op, const rssm_state_io *io, int64_t channels,
                              void *stream, rssm_error *err)
{
    const rssm_pool *pool = &cuda->pool;
    const bool tiles = fits_tile(cuda, op, io);
    rssm_cuda_states args = states_args(cuda, op, io);
    const int64_t blocks = tiles ? cut_tiles(cuda, op, io, channels, &args) : cut_any(cuda, channels, &args);
    rssm_status status = RSSM_OK;
    for (int32_t first = 0; !status && first < pool->num_layers; first += RSSM_CUDA_STATE_LAYERS) {
        args.num_layers = (int32_t)rssm_cuda_at_most(pool->num_layers - first, RSSM_CUDA_STATE_LAYERS);
        args.first = first == 0;
        args.pool = device_layers(cuda) + first;
        for (int32_t i = 0; i < args.num_layers; i++)
            args.layer[i] = io->layers[first + i];
        const rssm_cuda_launch how = {
            .grid = {rssm_cuda_at_most(blocks, MAX_GRID_X), rssm_cuda_at_most(io->n, MAX_GRID_YZ),
                     (uint32_t)args.num_layers},
            .threads = tiles ? RSSM_CUDA_TILE_THREADS : RSSM_CUDA_SLOT_THREADS,
        };
        status = rssm_cuda_run(cuda, tiles ? op->tile : op->any, &how, &args, stream, op->what, err);
    }
    return status;
}

rssm_status rssm_cuda_import(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    int64_t channels = cuda->pool.conv_len > 0 ? cuda->pool.conv_channels : 0;
    return io->n ? run_states(cuda, &import_states, io, channels, stream, err) : RSSM_OK;
}

rssm_status rssm_cuda_export(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    int64_t channels = 0;
    for (int32_t i = 0; i < cuda->pool.num_layers && cuda->pool.conv_len > 0; i++)
        if (io->layers[i].conv)
            channels = cuda->pool.conv_channels;
    return io->n ? run_states(cuda, &export_states, io, channels, stream, err) : RSSM_OK;
}

rssm_status rssm_cuda_flush(void *ctx, const rssm_state_io *io, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    if (io->n == 0)
        return RSSM_OK;
    rssm_status status = run_states(cuda, &flush_states, io, 0, stream, err);
    if (status)
        return status;
    const rssm_cuda_flushed args = {.in = judged_by(cuda, io->fault), .n = io->n, .slots = io->slots};
    const rssm_cuda_launch how = {.grid = {rssm_cuda_at_most(io->n, MAX_GRID_X), 1, 1},
                                  .threads = RSSM_CUDA_SLOT_THREADS};
    return rssm_cuda_run(cuda, RSSM_KERNEL_SLOTS_FLUSHED, &how, &args, stream, "launching a flush's end", err);
}

/* ---- saved slots ------------------------------------------------------------------------------------------------ */

/* All regions of a slot, end to end in host memory, and its cursor. */
rssm_status rssm_cuda_read_slot(void *ctx, int64_t slot, int32_t cursor[4], void *bytes, void *stream, rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const rssm_pool *pool = &cuda->pool;
    char *to = bytes;
    rssm_status status = rssm_cuda_enter(cuda, err);
    if (status)
        return status;
    CUresult result = cuda->driver.to_host(cursor, (CUdeviceptr)(pool->cursor + slot * pool->cursor_slot),
                                           4 * sizeof(int32_t), (CUstream)stream);
    for (int32_t i = 0; !result && i < pool->num_regions; i++) {
        const rssm_region *region = &pool->regions[i];
        result = cuda->driver.to_host(to, (CUdeviceptr)region->data + (CUdeviceptr)(slot * region->slot_stride),
                                      (size_t)region->slot_bytes, (CUstream)stream);
        to += region->slot_bytes;
    }
    CUresult done =
        cuda->driver.stream_sync((CUstream)stream); /* also after an error: copies to host memory are under way */
    return rssm_cuda_leave(cuda, result ? result : done, "reading a slot", err);
}

rssm_status rssm_cuda_write_slot(void *ctx, int64_t slot, const int32_t cursor[4], const void *bytes, void *stream,
                                 rssm_error *err)
{
    rssm_cuda *cuda = ctx;
    const rssm_pool *pool = &cuda->pool;
    const char *from = bytes;
    rssm_status status = rssm_cuda_enter(cuda, err);
    if (status)
        return status;
    CUresult result = CUDA_SUCCESS;
    for (int32_t i = 0; !result && i < pool->num_regions; i++) {
        const rssm_region *region = &pool->regions[i];
        result = cuda->driver.to_device((CUdeviceptr)region->data + (CUdeviceptr)(slot * region->slot_stride), from,
                                        (size_t)region->slot_bytes, (CUstream)stream);
        from += region->slot_bytes;
    }
    if (!result)
        result = cuda->driver.to_device((CUdeviceptr)(pool->cursor + slot * pool->cursor_slot), cursor,
                                        4 * sizeof(int32_t), (CUstream)stream);
    CUresult done = cuda->driver.stream_sync((CUstream)stream);
    return rssm_cuda_leave(cuda, result ? result : done, "writing a slot", err);
}
