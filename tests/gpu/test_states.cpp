/* Exports, imports and flushes of states, compiled for the host and launched by the code that launches them on a GPU, against
 * the recurrence in double: the kernels for any shape and those of slots_tile.cuh, every family, every dtype of pool, ring and
 * host, both orders, rings that wrap, slots that are none, states that 16 bits cannot hold. What may not be read is NaN. */
#include "gpu/block.h"

#include "cuda/slots.cu"
#include "gpu/numbers.h"

extern "C" {
#include "cuda/instance.h"
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

static int failed, tile_launches, any_launches;
static const rssm_backend_options *options_now;

template <void (*KERNEL)(const rssm_cuda_states)> static void call(const void *args)
{
    KERNEL(*static_cast<const rssm_cuda_states *>(args));
}

#define TAKE(state, form) {RSSM_CUDA_STRING(RSSM_SLOTS_TAKE_NAME(state, form)), call<RSSM_SLOTS_TAKE_NAME(state, form)>},
static const struct {
    const char *name;
    void (*run)(const void *);
} takes[] = {RSSM_SLOTS_TAKE_LIST(TAKE)};

static void (*kernel_of(int number))(const void *)
{
    if (number == RSSM_KERNEL_SLOTS_EXPORT)
        return call<rssm_slots_export>;
    if (number == RSSM_KERNEL_SLOTS_IMPORT)
        return call<rssm_slots_import>;
    if (number == RSSM_KERNEL_SLOTS_FLUSH)
        return call<rssm_slots_flush>;
    if (number == RSSM_KERNEL_SLOTS_GIVE)
        return call<rssm_slots_give>;
    for (const auto &take : takes)
        if (number == RSSM_KERNEL_SLOTS_TAKE && strcmp(take.name, rssm_cuda_take_kernel(options_now)) == 0)
            return take.run;
    return [](const void *args) { rssm_slots_flushed(*static_cast<const rssm_cuda_flushed *>(args)); };
}

extern "C" rssm_status rssm_cuda_run(rssm_cuda *, int kernel, const rssm_cuda_launch *how, const void *args, void *,
                                     const char *, rssm_error *)
{
    const bool tile = kernel == RSSM_KERNEL_SLOTS_TAKE || kernel == RSSM_KERNEL_SLOTS_GIVE;
    (tile ? tile_launches : any_launches)++;
    work = kernel_of(kernel);
    work_args = args;
    blockDim.x = how->threads;
    gridDim = {how->grid[0], how->grid[1], how->grid[2]};
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                run_block(how->threads);
    return RSSM_OK;
}

/* Of the driver's calls in slots.c: not reached here. */
extern "C" rssm_status rssm_cuda_enter(rssm_cuda *, rssm_error *)
{
    abort();
}
extern "C" rssm_status rssm_cuda_leave(rssm_cuda *, CUresult, const char *, rssm_error *)
{
    abort();
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* Evenly in 0 .. 1. */
static double part_of_one()
{
    return (double)(draw() >> 11) * 0x1p-53;
}

static double largest(int dtype)
{
    return dtype == F16 ? 65504.0 : dtype == BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

/* From where on a number rounds to infinity. */
static double limit(int dtype)
{
    return dtype == F16 ? 65520.0 : dtype == BF16 ? 0x1.ffp127 : INFINITY;
}

/* Bytes, 0xff (NaN) where nothing was put, from a boundary of 256 bytes on. */
struct array {
    std::vector<unsigned char> room;
    int dtype;

    void make(int64_t elements, int type)
    {
        dtype = type;
        room.assign((size_t)(elements * bytes_of(type)) + 256, 0xff);
    }
    unsigned char *data()
    {
        return room.data() + (256 - (uintptr_t)room.data() % 256) % 256;
    }
    double get(int64_t i)
    {
        return load_any(data(), i, dtype);
    }
    void put(int64_t i, double x)
    {
        bool hit = false;
        store_any(data(), i, (float)x, dtype, &hit);
    }
};

/* ---- a pool ----------------------------------------------------------------------------------------------------- */

enum { LAYERS = 2, WIDTH = 4 };

struct layer_arrays {
    array state, k, d, g, conv, decay;
};

struct test_pool {
    rssm_pool pool;
    rssm_pool_layer layers[LAYERS];
    layer_arrays of[LAYERS];
    std::vector<int32_t> cursor;
    std::vector<unsigned char> tables;
    rssm_cuda cuda;
    uint32_t fault;
    double size;            /* of state elements                               */
    bool overflows, unsure; /* whether a result was beyond its type, or nearly */
};

/* The ring's row of record j. */
static int64_t ring_row(const rssm_pool &p, int64_t slot, int j)
{
    return (p.cursor[slot * p.cursor_slot] + j) % p.R;
}

static void pooled(rssm_pooled *t, array *a, int64_t elements, int dtype, const rssm_pool &p)
{
    t->slot = elements + (draw() % 2 ? 16 : 0);
    t->dtype = dtype;
    a->make(t->slot * p.S, dtype);
    t->data = a->data();
}

/* Pending records only; the rest of the rings stays NaN. */
static void fill_slot(test_pool *c, layer_arrays *a, const rssm_pool_layer &l, int64_t slot)
{
    const rssm_pool &p = c->pool;
    for (int64_t i = 0; i < (int64_t)p.HV * p.V * p.K; i++)
        a->state.put(slot * l.state.slot + i, c->size * (2 * part_of_one() - 1));
    const int count = p.cursor[slot * p.cursor_slot + 1], gates = p.family == RSSM_FAMILY_KDA ? p.K : 1;
    for (int j = 0; j < count; j++) {
        const int64_t row = ring_row(p, slot, j);
        for (int64_t h = 0; h < p.H; h++)
            for (int64_t k = 0; k < p.K; k++)
                a->k.put(slot * l.k_cache.slot + (h * p.R + row) * p.K + k, 2 * part_of_one() - 1);
        for (int64_t hv = 0; hv < p.HV; hv++) {
            for (int64_t v = 0; v < p.V; v++)
                a->d.put(slot * l.d_cache.slot + (hv * p.R + row) * p.V + v, 2 * part_of_one() - 1);
            for (int64_t i = 0; i < gates; i++) /* Mamba-2: a step dt; else a logarithm of a decay */
                a->g.put(slot * l.g_cache.slot + (hv * p.R + row) * gates + i,
                         (p.family == RSSM_FAMILY_MAMBA2 ? 0.3 : -0.3) * part_of_one());
        }
    }
    for (int64_t i = 0; i < (int64_t)p.conv_channels * p.conv_len; i++)
        a->conv.put(slot * l.conv.slot + i, 2 * part_of_one() - 1);
}

static void make_pool(test_pool *c, int state, int ring)
{
    rssm_pool &p = c->pool = {};
    const bool odd = draw() % 4 == 0; /* a shape that only the kernels for any shape take */
    p.family = between(RSSM_FAMILY_KDA, RSSM_FAMILY_MAMBA2);
    p.H = between(1, 2), p.HV = p.H * between(1, 2);
    p.K = odd ? between(3, 140) : 32 * between(1, 5), p.V = odd ? between(3, 140) : 16 * between(1, 7);
    p.L = between(1, 16), p.R = p.L + between(0, 4);
    p.S = 4, p.pad_slot = draw() % 2 ? 3 : -1;
    p.conv_channels = draw() % 2 ? 2 * p.H * p.K + p.HV * p.V : 0, p.conv_width = p.conv_channels ? WIDTH : 0;
    p.conv_len = p.conv_channels ? WIDTH - 1 + between(0, 3) : 0;
    c->cursor.resize((size_t)p.S * 4);
    p.cursor = c->cursor.data(), p.cursor_slot = 4;
    for (int64_t slot = 0; slot < p.S; slot++) {
        const int most = RSSM_MOST_RECORDS(p.L), count = draw() % 4 ? between(0, most) : draw() % 2 ? 0 : most;
        const int32_t numbers[4] = {between(0, p.R - 1), count, p.conv_len ? between(0, p.conv_len - 1) : 0, 0};
        memcpy(p.cursor + slot * 4, numbers, sizeof numbers);
    }
    for (int i = 0; i < LAYERS; i++) {
        rssm_pool_layer &l = c->layers[i] = {};
        layer_arrays &a = c->of[i];
        pooled(&l.state, &a.state, (int64_t)p.HV * p.V * p.K, state, p);
        pooled(&l.k_cache, &a.k, (int64_t)p.H * p.R * p.K, ring, p);
        pooled(&l.d_cache, &a.d, (int64_t)p.HV * p.R * p.V, ring, p);
        pooled(&l.g_cache, &a.g, (int64_t)p.HV * p.R * (p.family == RSSM_FAMILY_KDA ? p.K : 1), F32, p);
        if (p.conv_channels)
            pooled(&l.conv, &a.conv, (int64_t)p.conv_channels * p.conv_len, BF16, p);
        a.decay.make(p.HV, draw() % 2 ? F32 : BF16);
        for (int64_t hv = 0; hv < p.HV; hv++)
            a.decay.put(hv, part_of_one() - 0.5);
        for (int64_t slot = 0; slot < p.S; slot++)
            fill_slot(c, &a, l, slot);
    }
    p.layers = c->layers, p.num_layers = LAYERS;
    c->tables.resize((size_t)rssm_cuda_tables_bytes(0, LAYERS));
    rssm_cuda_make_tables(&p, c->tables.data());
    c->cuda = {};
    c->cuda.pool = p, c->cuda.multiprocessors = 4;
    c->cuda.tables = (CUdeviceptr)c->tables.data();
    c->cuda.options.state_dtype = state, c->cuda.options.ring_dtype = ring, c->cuda.options.family = p.family;
    options_now = &c->cuda.options;
    c->fault = 0, c->overflows = c->unsure = false;
}

/* Element (hv, v, k) with all records, and the sum of its terms' sizes. */
static double exact_state(test_pool *c, int layer, int64_t slot, int64_t hv, int64_t v, int64_t k, double *sizes)
{
    const rssm_pool &p = c->pool;
    const rssm_pool_layer &l = c->layers[layer];
    layer_arrays &a = c->of[layer];
    double x = a.state.get(slot * l.state.slot + (hv * p.V + v) * p.K + k);
    *sizes = fabs(x);
    for (int j = 0; j < p.cursor[slot * 4 + 1]; j++) {
        const int64_t row = hv * p.R + ring_row(p, slot, j);
        const int64_t key = hv / (p.HV / p.H) * p.R + ring_row(p, slot, j);
        const double gate = a.g.get(slot * l.g_cache.slot + (p.family == RSSM_FAMILY_KDA ? row * p.K + k : row));
        const double decay = p.family == RSSM_FAMILY_MAMBA2 ? exp(-exp(a.decay.get(hv)) * gate) : exp(gate);
        const double term = (p.family == RSSM_FAMILY_MAMBA2 ? gate : 1) * a.d.get(slot * l.d_cache.slot + row * p.V + v) *
                            a.k.get(slot * l.k_cache.slot + key * p.K + k);
        x = x * decay + term;
        *sizes = *sizes * decay + fabs(term);
    }
    return x;
}

/* Half an ulp, and what sums in float32 (or, to 16 bits, in two terms of a number) may lose. */
static bool is_near(double got, double exact, double sizes, int dtype)
{
    if (fabs(exact) > largest(dtype))
        exact = copysign(largest(dtype), exact);
    const double half_ulp = dtype == BF16 ? 0x1p-8 : dtype == F16 ? 0x1p-11 : 0x1p-24;
    return fabs(got - exact) <=
           half_ulp * fabs(exact) * 1.001 + (dtype == F16 ? 0x1p-25 : 0) + sizes * (dtype == F32 ? 1e-6 : 8e-6);
}

static void note_size(test_pool *c, double exact, int dtype)
{
    c->overflows |= fabs(exact) >= limit(dtype);
    c->unsure |= fabs(fabs(exact) / limit(dtype) - 1) < 1e-4;
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

enum { ENTRIES = 5 };
static const int64_t entries[ENTRIES] = {2, -1, 0, 4, 1}; /* slot 3 is never named */

/* The host's side of a call. */
struct host_side {
    int dtype, order;
    array state[LAYERS], conv[LAYERS], slots;
    rssm_state_layer layers[LAYERS];
    rssm_state_io io;
};

/* favoured: a type that half of all cases have. */
static void make_host(test_pool *c, host_side *h, int favoured)
{
    const rssm_pool &p = c->pool;
    const int64_t row = (int64_t)p.HV * p.V * p.K + (draw() % 2 ? 8 : 0);
    h->dtype = draw() % 2 ? favoured : between(F32, F16), h->order = between(0, 1);
    h->slots.make(ENTRIES * 2, F32);
    h->io = {};
    h->io.n = ENTRIES, h->io.slots = {h->slots.data(), 1, draw() % 2 ? 64 : 32, 0};
    for (int i = 0; i < ENTRIES; i++)
        if (h->io.slots.bits == 64)
            ((int64_t *)h->slots.data())[i] = entries[i];
        else
            ((int32_t *)h->slots.data())[i] = (int32_t)entries[i];
    for (int i = 0; i < LAYERS; i++) {
        rssm_state_layer &l = h->layers[i] = {};
        h->state[i].make(ENTRIES * row, h->dtype);
        l.state = h->state[i].data(), l.state_row = row, l.state_dtype = h->dtype;
        if (p.conv_channels) {
            h->conv[i].make((int64_t)ENTRIES * p.conv_channels * (WIDTH - 1), BF16);
            l.conv = h->conv[i].data(), l.conv_row = (int64_t)p.conv_channels * (WIDTH - 1), l.conv_dtype = BF16;
        }
        l.decay = {c->of[i].decay.data(), 0, c->of[i].decay.dtype, 0};
    }
    h->io.layers = h->layers, h->io.transposed = h->order, h->io.fault = &c->fault;
}

static int64_t host_at(const test_pool &c, const host_side &h, int entry, int64_t hv, int64_t v, int64_t k)
{
    const rssm_pool &p = c.pool;
    return entry * h.layers[0].state_row + (h.order ? (hv * p.K + k) * p.V + v : (hv * p.V + v) * p.K + k);
}

/* All elements of the entries that are slots. */
template <class F> static void each_element(const test_pool &c, F f)
{
    const rssm_pool &p = c.pool;
    for (int i = 0; i < LAYERS; i++)
        for (int e = 0; e < ENTRIES; e++)
            for (int64_t hv = 0; hv < p.HV && entries[e] >= 0 && entries[e] < p.S; hv++)
                for (int64_t v = 0; v < p.V; v++)
                    for (int64_t k = 0; k < p.K; k++)
                        f(i, e, entries[e], hv, v, k);
}

static int wrong_histories(test_pool *c, host_side *h)
{
    const rssm_pool &p = c->pool;
    int wrong = 0;
    for (int i = 0; i < LAYERS; i++)
        for (int e = 0; e < ENTRIES; e++)
            for (int64_t ch = 0; ch < p.conv_channels && entries[e] >= 0 && entries[e] < p.S; ch++)
                for (int n = 0; n < WIDTH - 1; n++) {
                    const int column = (p.cursor[entries[e] * 4 + 2] + p.conv_len - (WIDTH - 1) + n) % p.conv_len;
                    wrong += h->conv[i].get(e * h->layers[i].conv_row + ch * (WIDTH - 1) + n) !=
                             c->of[i].conv.get(entries[e] * c->layers[i].conv.slot + ch * p.conv_len + column);
                }
    return wrong;
}

static void judge(const char *what, int round, const test_pool &c, const host_side &h, int wrong)
{
    const uint32_t expected = c.unsure ? c.fault & RSSM_FAULTBIT_STATE : c.overflows ? RSSM_FAULTBIT_STATE : 0;
    if (wrong == 0 && c.fault == expected)
        return;
    const rssm_pool &p = c.pool;
    printf("round %d, %s: family %d, H %d, HV %d, K %d, V %d, L %d, state %d, ring %d, host %d, order %d: %d wrong, faults "
           "%u of %u\n",
           round, what, p.family, p.H, p.HV, p.K, p.V, p.L, c.layers[0].state.dtype, c.layers[0].k_cache.dtype, h.dtype,
           h.order, wrong, (unsigned)c.fault, (unsigned)expected);
    failed++;
}

static void export_case(test_pool *c, int round)
{
    host_side h;
    make_host(c, &h, c->size > 1 ? F16 : BF16);
    std::vector<unsigned char> before[LAYERS] = {c->of[0].state.room, c->of[1].state.room};
    rssm_cuda_export(&c->cuda, &h.io, NULL, NULL);
    int wrong = (before[0] != c->of[0].state.room) + (before[1] != c->of[1].state.room);
    each_element(*c, [&](int i, int e, int64_t slot, int64_t hv, int64_t v, int64_t k) {
        double sizes;
        const double exact = exact_state(c, i, slot, hv, v, k, &sizes);
        note_size(c, exact, h.dtype);
        wrong += !is_near(h.state[i].get(host_at(*c, h, e, hv, v, k)), exact, sizes, h.dtype);
    });
    for (int i = 0; i < LAYERS; i++)
        wrong += !std::isnan(h.state[i].get(host_at(*c, h, 1, 0, 0, 0))); /* no slot: not written */
    judge("export", round, *c, h, wrong + wrong_histories(c, &h));
}

static void flush_case(test_pool *c, int round)
{
    host_side h;
    make_host(c, &h, F32);
    std::vector<double> exact, sizes;
    const int dtype = c->layers[0].state.dtype;
    each_element(*c, [&](int i, int, int64_t slot, int64_t hv, int64_t v, int64_t k) {
        double size;
        exact.push_back(exact_state(c, i, slot, hv, v, k, &size));
        sizes.push_back(size);
    });
    for (rssm_state_layer &l : h.layers)
        l.state = NULL;
    rssm_cuda_flush(&c->cuda, &h.io, NULL, NULL);
    int wrong = 0;
    size_t n = 0;
    each_element(*c, [&](int i, int, int64_t slot, int64_t hv, int64_t v, int64_t k) {
        const double got = c->of[i].state.get(slot * c->layers[i].state.slot + (hv * c->pool.V + v) * c->pool.K + k);
        note_size(c, exact[n], dtype);
        wrong += !is_near(got, exact[n], sizes[n], dtype);
        n++;
    });
    for (int e = 0; e < ENTRIES; e++)
        wrong += entries[e] >= 0 && entries[e] < c->pool.S && c->cursor[(size_t)entries[e] * 4 + 1] != 0;
    judge("flush", round, *c, h, wrong);
}

static void import_case(test_pool *c, int round)
{
    host_side h;
    make_host(c, &h, F32);
    const int dtype = c->layers[0].state.dtype;
    const double size = draw() % 2 ? 1 : 0.999 * fmin(largest(h.dtype), dtype == F16 ? 2e5 : 0x1.fffffep127);
    for (int i = 0; i < LAYERS; i++) {
        for (int64_t n = 0; n < ENTRIES * h.layers[i].state_row; n++)
            h.state[i].put(n, size * (2 * part_of_one() - 1));
        for (int64_t n = 0; n < ENTRIES * h.layers[i].conv_row; n++)
            h.conv[i].put(n, part_of_one());
    }
    rssm_cuda_import(&c->cuda, &h.io, NULL, NULL);
    int wrong = 0;
    each_element(*c, [&](int i, int e, int64_t slot, int64_t hv, int64_t v, int64_t k) {
        const double exact = h.state[i].get(host_at(*c, h, e, hv, v, k));
        const double got = c->of[i].state.get(slot * c->layers[i].state.slot + (hv * c->pool.V + v) * c->pool.K + k);
        c->overflows |= fabs(exact) >= limit(dtype);
        wrong += !is_near(got, exact, 0, dtype);
    });
    judge("import", round, *c, h, wrong);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 160;
    for (int round = 0; round < rounds; round++) {
        static test_pool c;
        seed = (uint64_t)round * 7919;
        const int state = between(F32, F16), ring = draw() % 2 ? BF16 : between(F32, F16);
        c.size = draw() % 2 ? 1 : state == F32 ? 2e5 : 0.99 * largest(state);
        make_pool(&c, state, ring);
        const int what = (int)(draw() % 4);
        what == 0 ? import_case(&c, round) : what == 1 ? flush_case(&c, round) : export_case(&c, round);
    }
    printf("%d launches of tile kernels, %d of others\n", tile_launches, any_launches);
    failed += tile_launches < rounds / 4 || any_launches < rounds / 10;
    printf("%d rounds, %d failed\n", rounds, failed);
    return failed != 0;
}
