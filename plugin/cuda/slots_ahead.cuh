/* What exports ask for while the kernel before still ends (stream_order.cuh): hints, by the slots and cursors as they are then.
 *
 * What it gave is in docs/cuda.md, Slot operations.
 */
#ifndef RSSM_CUDA_SLOTS_AHEAD_CUH_
#define RSSM_CUDA_SLOTS_AHEAD_CUH_

#include "stream_order.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE int64_t peek_index(const rssm_index &list, int64_t i)
{
    return list.bits == 64 ? peek_before_wait((const int64_t *)list.data + i * list.stride)
                           : peek_before_wait((const int32_t *)list.data + i * list.stride);
}

/* The pending rows, of `bytes` each, of one head's ring. */
DEVICE void ask_records(const slot_ring &r, const unsigned char *ring, int bytes)
{
    const int before_end = min(r.count, r.R - r.base);
    ask_into_l2(ring + (int64_t)r.base * bytes, before_end * bytes);
    if (r.count > before_end)
        ask_into_l2(ring, (r.count - before_end) * bytes);
}

/* The records of a tile: d of the heads that begin in it; keys, and gates for each of their channels, with the group's first tile. */
template <class F>
DEVICE void ask_tile_records(const rssm_cuda_states &a, const slot_ring &r, const block_tile &t, int rows)
{
    const int size = is_half_width(r.dtype) ? 2 : 4, keys_of = has_kda_gates<F>(r.family) ? a.HV / a.H : 1;
    for (int head = quotient(t.row + a.V - 1, a.V); head * a.V < t.row + rows; ++head) {
        const int64_t ring = (int64_t)(t.group * a.group_heads + head) * r.R;
        ask_records(r, r.d + ring * (r.V * size), r.V * size);
        if (!has_kda_gates<F>(r.family))
            ask_line_into_l2(r.g + ring * 4);
    }
    if (t.row > 0 || t.k0 > 0)
        return;
    ask_records(r, r.k + (int64_t)quotient(t.group, keys_of) * r.R * (r.K * size), r.K * size);
    if (has_kda_gates<F>(r.family))
        ask_records(r, r.g + (int64_t)t.group * r.R * (r.K * 4), r.K * 4);
}
#endif

/* Of the block's own tile, where it is among the first three of a multiprocessor; the last ones to come would keep the others waiting.
 * Where no record is pending, the block has then only read what leads to the slot, so that this lies in the cache: the state too would
 * be slower, as would be the state of more than the first block. */
template <class ST, class F> DEVICE void ask_for_tile(const rssm_cuda_states &a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t multiprocessors;
    asm("mov.u32 %0, %%nsmid;" : "=r"(multiprocessors));
    const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x != 0 || a.in_place || block >= 3 * multiprocessors)
        return;
    const int64_t slot = peek_index(a.slots, blockIdx.y);
    const pool_places places = ask_places(a.pool + blockIdx.z); /* as it has been since bind */
    if (!in_pool(a.in, slot))
        return;
    const int32_t *const cursor = a.in.cursor + slot * a.in.cursor_slot;
    const int base = peek_before_wait(cursor), count = peek_before_wait(cursor + 1);
    if (base < 0 || base >= a.in.R || count <= 0 || count > RSSM_MOST_RECORDS(a.in.L))
        return;
    const block_tile t = find_tile<ST>(a);
    const int rows = min(PASS_ROWS * tile_form<ST>::PASSES, a.group_heads * a.V - t.row);
    const int64_t row = (int64_t)t.group * a.group_heads * a.V + t.row;
    if (block < multiprocessors && t.channels == a.K)
        ask_into_l2(slot_of(places.state, slot, ST::BYTES) + row * a.K * ST::BYTES, rows * a.K * ST::BYTES);
    ask_tile_records<F>(a, ring_of<F>(a, places, slot, base, count), t, rows);
    if (a.family == MAMBA2) { /* decay_rate() */
        const rssm_input &decay = a.layer[blockIdx.z].decay;
        ask_line_into_l2((const unsigned char *)decay.data +
                         (t.group * a.group_heads + quotient(t.row, a.V)) * (is_half_width(decay.dtype) ? 2 : 4));
    }
#else
    (void)a;
#endif
}

#endif
