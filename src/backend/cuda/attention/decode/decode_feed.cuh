/* decode_feed.cuh - of attention_decode.cu and attention_decode_bytes.cu: the two warps that do not compute. One brings
 * keys and values, the other describes the next pair and brings its queries. */
#pragma once

#include "backend/cuda/attention/decode/decode_copies.cuh"

namespace {

/* What a lane copies of every tile where a block has all slots of it: a panel of keys or values, or their scales. Few
 * instructions a tile: addresses are made ready before.
 *
 * No more than ON_THE_WAY tiles wait for their bytes: blocks that begin first would else have asked for all of their
 * pair before the last have asked for a tile, and memory serves them in that order (15.5 for 14.6 us at 128 x 272 of
 * Qwen2.5-7B in a step). */
template <class S, class M> struct lane_copies {
    static constexpr int COPIES = S::N_PANELS + (S::BYTES ? 1 : 0); // of a side
    static constexpr bool BOTH = S::N_STAGES >= 4;                  // sides at once
    static constexpr int ON_THE_WAY = S::N_STAGES >= 3 ? 2 : 1;     // a stage that is waited for is not in use again
    const M &m;
    const char *from; // in block 0, of KV head 0
    int64_t block_bytes, head_bytes;
    int side, copy, slot_bytes;
    uint32_t to;       // in stage 0
    ring_place at;     // of this side; with the parity that `empty` has when it may be written
    ring_place behind; // values of the tile that is to be there before the next is asked for
    int n_asked;

    __device__ lane_copies(const arguments &p, const M &memory) : m(memory) {
        int lane = threadIdx.x % 32;
        side = min(lane / COPIES, 1), copy = lane - side * COPIES;
        bool scales = copy == S::N_PANELS;
        int64_t per_side = (int64_t)p.a.n_kv_heads * p.n_slots;
        from = static_cast<const char *>(p.cache.at) +
               (scales ? 2 * per_side * S::ROW + side * per_side * 4
                       : side * per_side * S::ROW + (int64_t)copy * p.n_slots * S::PANEL);
        block_bytes = p.cache.block_elements * (S::BYTES ? 1 : 2);
        slot_bytes = scales ? 4 : S::PANEL;
        head_bytes = (int64_t)p.n_slots * (scales ? 4 : S::ROW);
        to = m.ring + (scales ? S::SIDE : copy * TILE * S::PANEL);
        at = {side, 1}, behind = {1, 0};
        n_asked = 0;
    }
    /* n slots of a block, from `slot` on. */
    __device__ void take(int id, int kv, int slot, int n) {
        if (n_asked++ >= ON_THE_WAY) {
            barrier_wait(m.full + behind.stage * 8, behind.parity);
            behind.next(S::N_STAGES);
            behind.next(S::N_STAGES);
        }
        int scale_bytes = (n * 4 + 15) & ~15, n_bytes = copy == S::N_PANELS ? scale_bytes : n * S::PANEL;
        const char *here = from + id * block_bytes + kv * head_bytes + slot * slot_bytes;
#pragma unroll
        for (int k = 0; k < (BOTH ? 1 : 2); k++) {
            if (copy < COPIES && (BOTH || side == k)) {
                uint32_t full = m.full + at.stage * 8;
                barrier_wait(m.empty + at.stage * 8, at.parity);
                // Bytes may come before they are told of: the phase does not end without this arrival.
                if (copy == 0)
                    barrier_expect(full, n * S::ROW + (S::BYTES ? scale_bytes : 0));
                if (n > 0)
                    bulk_copy(to + at.stage * S::STAGE, here, n_bytes, full);
            }
            __syncwarp();
        }
        at.stage += 2;
        if (at.stage >= S::N_STAGES) {
            at.stage -= S::N_STAGES;
            at.parity ^= 1;
        }
    }
};

/* As copy_all, where a block has all slots of a tile. What is to be known of the next pair is read while this one is
 * copied. */
template <class S, class M> __device__ void copy_whole_tiles(const arguments &p, const M &m, first_part &begin) {
    int rank = S::SHARE > 1 ? cluster_rank() : 0, shift = __ffs(p.n_slots) - 1;
    bool waited = !p.prefetch;
    lane_copies<S, M> copies(p, m);
    begin.settle(p);
    pair_walk pair = begin.pair, next = begin.next;
    part_keys part = begin.part, next_part = begin.next_part;
    int n_parts = begin.n_parts, blocks = begin.blocks;
    while (pair.part < n_parts) {
        pair_walk later = next;
        later.next(p);
        part_keys later_part = {0, 0, 0, 0};
        int first_block = part.first >> shift, next_blocks = 0;
        int end = S::PREPARES ? min(part.end, part.position) : part.end; // the block makes the new token's own
        bool is_read = false;
        auto read_ahead = [&] {
            next_blocks = load_blocks(p, next_part.seq, next_part.first >> shift);
            if (later.part < n_parts)
                later_part = load_keys(p, later.part);
            is_read = true;
        };
        for (int tile = part.first + rank * TILE; tile < part.end; tile += S::SHARE * TILE) {
            // Keys of this step's own tokens are there when the node before has ended; all others are of earlier steps.
            if (!S::PREPARES && !waited && tile + TILE > part.position) {
                wait_for_previous();
                waited = true;
            }
            int i = (tile >> shift) - first_block;
            if (i >= 32) {
                first_block += i;
                i = 0;
                blocks = __shfl_sync(0xffffffffu, load_blocks(p, part.seq, first_block),
                                     threadIdx.x % 32); // waits here, not for each tile
            }
            int id = __shfl_sync(0xffffffffu, blocks, i);
            copies.take(id, pair.kv, tile & (p.n_slots - 1), id < 0 ? 0 : max(0, min(TILE, end - tile)));
            if (!is_read)
                read_ahead();
        }
        if (!is_read)
            read_ahead();
        pair = next, part = next_part, blocks = next_blocks;
        next = later, next_part = later_part;
    }
    if (!waited)
        wait_for_previous();
}

// ---- what comes next --------------------------------------------------------------------------------------------

template <class S> __device__ void describe(const arguments &p, const dpart &part, int kv, task<S> &t) {
    int lane = threadIdx.x % 32, per_kv = p.a.n_heads / p.a.n_kv_heads,
        n = min(S::COLUMNS, part.columns - part.first_column);
    int column = part.first_column + min(lane, n - 1), head = kv * per_kv + column % per_kv,
        position = part.position + column / per_kv;
    if (lane < S::COLUMNS) {
        t.out[lane] = (part.row + column / per_kv) * p.out.stride + (int64_t)head * S::DIM;
        t.first[lane] = first_visible(p.a, position);
        t.last[lane] = min(position, part.end - 1);
        t.sink[lane] = p.sinks.at ? load(p.sinks, head) * 1.4426950408889634f : -INFINITY;
    }
    int first = __shfl_sync(0xffffffffu, position, 0), last = __shfl_sync(0xffffffffu, position, n - 1);
    if (lane == 0) {
        t.part = part;
        t.n_columns = n;
        t.low = first_visible(p.a, first);
        t.inside_from = first_visible(p.a, last);
        t.inside_to = min(first + 1, part.end);
    }
    __syncwarp();
}

/* A warp: the next pair is described and its queries come while the pair before is computed. */
template <class S, class M> __device__ void tell_all(const arguments &p, const M &m) {
    int lane = threadIdx.x % 32, per_kv = p.a.n_heads / p.a.n_kv_heads, element = p.q.element == ELEMENT_F32 ? 4 : 2;
    bool waited = !p.prefetch;
    if (waited)
        wait_for_previous();
    pair_walk pair(p, blockIdx.x / S::SHARE);
    dpart next = load_part(p, min(pair.part, p.parts.max_parts - 1)); // before it is known whether there is one
    int n_parts = __ldcg(p.parts.n);
    for (int i = 0; pair.part < n_parts; i++) {
        dpart part = next;
        int kv = pair.kv;
        pair.next(p);
        next = load_part(p, min(pair.part, p.parts.max_parts - 1));
        int column = part.first_column + lane, n_columns = min(S::COLUMNS, part.columns - part.first_column);
        barrier_wait(m.task_empty + i % 2 * 8, (i / 2 & 1) ^ 1);
        describe<S>(p, part, kv, m.tasks[i % 2]);
        if (!waited) // the list is of an earlier node, queries are of the last
            wait_for_previous();
        waited = true;
        barrier_wait(m.queries_empty, (i & 1) ^ 1);
        barrier_expect_warp(m.queries_full, n_columns * S::DIM * element, lane); // the task is told with it
        __syncwarp();
        if (lane < n_columns) {
            int64_t from =
                (part.row + column / per_kv) * p.q.stride + (int64_t)(kv * per_kv + column % per_kv) * S::DIM;
            bulk_copy(shared_address(m.queries) + lane * (S::DIM * element + 32),
                      static_cast<const char *>(p.q.at) + from * element, S::DIM * element, m.queries_full);
        }
    }
    if (!waited)
        wait_for_previous();
}

} // namespace
