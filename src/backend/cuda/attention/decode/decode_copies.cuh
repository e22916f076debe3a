/* decode_copies.cuh - of decode_feed.cuh: where a warp begins, and tiles of keys and values brought one by one, in
 * whole or in part. */
#pragma once

#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/decode_shape.cuh"
#include "backend/cuda/value.h"

namespace {

// ---- what is read before the first copy ---------------------------------------------------------------------------

/* What copies need of a part. */
struct part_keys {
    int seq, position, first, end;
};

/* Behind the last part of the list lies anything. */
__device__ part_keys load_keys(const arguments &p, int i) {
    const dpart *from = p.parts.part + min(i, p.parts.max_parts - 1);
    return {load_late(&from->seq), load_late(&from->position), load_late(&from->first), load_late(&from->end)};
}

/* 32 entries of a sequence's block table from `first` on, one a lane. */
__device__ int load_blocks(const arguments &p, int seq, int first) {
    int i = first + threadIdx.x % 32;
    return i < p.table_width ? load_late(p.table + (int64_t)seq * p.table_width + i) : -1;
}

/* What is to be known before the first copy, all of it on its way at once: lists were last read a layer ago, and come
 * from memory. So blocks are asked for before it is known whose they should be: while no sequence is cut, part i is
 * sequence i from its first block on. */
struct first_part {
    pair_walk pair, next;
    part_keys part, next_part;
    int n_parts, blocks;

    /* first: the pair. Behind the node before, where that made the lists. */
    __device__ void ask(const arguments &p, int first) {
        if (!p.prefetch)
            wait_for_previous();
        pair = next = pair_walk(p, first);
        next.next(p);
        part = load_keys(p, pair.part);
        n_parts = load_late(p.parts.n);
        blocks = load_blocks(p, min(pair.part, p.max_seqs - 1), 0);
        next_part = load_keys(p, next.part);
    }
    __device__ void settle(const arguments &p) {
        int shift = __ffs(p.n_slots) - 1;
        if (pair.part >= n_parts)
            part = {0, 0, 0, 0};
        if (next.part >= n_parts)
            next_part = {0, 0, 0, 0};
        if (part.seq != pair.part || part.first >> shift > 0)
            blocks = load_blocks(p, part.seq, part.first >> shift);
    }
};

// ---- copies -------------------------------------------------------------------------------------------------------

/* Entries of a sequence's block table, 32 at a time, one a lane. */
struct table_reader {
    const int32_t *table;
    int base, entry;

    __device__ void need(int last, int first, int width) {
        if (base >= 0 && last < base + 32)
            return;
        base = first;
        int i = base + threadIdx.x % 32;
        entry = i < width ? __ldcg(table + i) : -1;
    }
    __device__ int get(int i) const { return __shfl_sync(0xffffffffu, entry, (i - base) & 31); }
};

/* Brings a tile: a lane copies the slots of one block that one panel of one side has of them, or their scales. Both
 * sides at once, by half of the lanes each, where those suffice: what a copy costs this warp is what tells how soon the
 * last tile of a short sequence is there. */
template <class S, class M>
__device__ void copy_tile(const arguments &p, const M &m, ring_place &at, int kv, int tile, int low, int end, int run,
                          int n_runs, int block) {
    int lane = threadIdx.x % 32, n_copies = n_runs * S::N_PANELS;
    bool both = S::N_STAGES >= 4 && n_copies + (S::BYTES ? n_runs : 0) <= 16;
    int l = both ? lane % 16 : lane, panel = l % S::N_PANELS, r = l / S::N_PANELS;
    bool scales = S::BYTES && l >= n_copies && l < n_copies + n_runs;
    int from_run = scales ? l - n_copies : r;
    int id = __shfl_sync(0xffffffffu, block, from_run & 31); // lane i knows the block of run i
    int key = tile + from_run * run, n = min(run, end - key), slot = key & (p.n_slots - 1);
    bool wanted = (l < n_copies || scales) && n > 0 && id >= 0 && key + run > low;
    int n_bytes = !wanted ? 0 : scales ? (n * 4 + 15) / 16 * 16 : n * S::PANEL;
    int total = __reduce_add_sync(0xffffffffu, n_bytes) / (both ? 2 : 1); // of a side
    int64_t per_side = (int64_t)p.a.n_kv_heads * p.n_slots;
    const char *from = static_cast<const char *>(p.cache.at) + id * p.cache.block_elements * (S::BYTES ? 1 : 2);
    if (scales)
        from += 2 * per_side * S::ROW + ((int64_t)kv * p.n_slots + slot) * 4;
    else
        from += ((int64_t)(kv * S::N_PANELS + panel) * p.n_slots + slot) * S::PANEL;
    int to = scales ? S::ROW * TILE + from_run * run * 4 : panel * TILE * S::PANEL + from_run * run * S::PANEL;
    ring_place keys = at, values = at;
    values.next(S::N_STAGES);
    at = values;
    at.next(S::N_STAGES);
    for (int side = both ? lane / 16 : 0; side < 2; side += both ? 2 : 1) {
        ring_place mine = side ? values : keys;
        uint32_t full = m.full + mine.stage * 8;
        if (WARP_ARRIVALS > 1 &&
            both) { // racecheck follows a warp's wait for one barrier, not for two by half a warp each
            barrier_wait(m.empty + keys.stage * 8, keys.parity ^ 1);
            barrier_wait(m.empty + values.stage * 8, values.parity ^ 1);
        }
        barrier_wait(m.empty + mine.stage * 8, mine.parity ^ 1);
        if (l == 0)
            barrier_expect(full, total);
        __syncwarp();
        if (wanted)
            bulk_copy(m.ring + mine.stage * S::STAGE + to, from + (side ? per_side * (scales ? 4 : S::ROW) : 0),
                      n_bytes, full);
    }
}

/* Likewise a tile of shared keys, keys and values together: the panels of its values, then those that its keys have
 * beside them. */
template <class S, class M>
__device__ void copy_short_tile(const arguments &p, const M &m, ring_place &at, int kv, int tile, int low, int end,
                                int run, int n_runs, int block) {
    constexpr int KEY_PANELS = S::KEY_ROW / S::PANEL, PANELS = S::N_PANELS + KEY_PANELS; // panel PANELS: the scales
    constexpr int ROUNDS = (4 * (PANELS + (S::BYTES ? 1 : 0)) + 31) / 32;                // with blocks of 16
    int lane = threadIdx.x % 32, total = 0, n_bytes[ROUNDS];
    int64_t slots = (int64_t)p.a.n_kv_heads * p.n_slots, from[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int l = lane + 32 * i, panel = l / n_runs, r = l % n_runs;
        int id = __shfl_sync(0xffffffffu, block, r); // lane i knows the block of run i
        int key = tile + r * run, n = min(run, end - key), slot = key & (p.n_slots - 1);
        bool wanted = panel < PANELS + (S::BYTES ? 1 : 0) && n > 0 && id >= 0 && key + run > low;
        n_bytes[i] = !wanted ? 0 : panel == PANELS ? (n * 4 + 15) / 16 * 16 : n * S::PANEL;
        from[i] = id * p.cache.block_elements * (S::BYTES ? 1 : 2);
        if (panel < S::N_PANELS)
            from[i] += slots * S::KEY_ROW + ((int64_t)(kv * S::N_PANELS + panel) * p.n_slots + slot) * S::PANEL;
        else if (panel < PANELS)
            from[i] += ((int64_t)(kv * KEY_PANELS + panel - S::N_PANELS) * p.n_slots + slot) * S::PANEL;
        else
            from[i] += slots * (S::KEY_ROW + S::ROW) + ((int64_t)kv * p.n_slots + slot) * 4;
        total += n_bytes[i];
    }
    total = __reduce_add_sync(0xffffffffu, total);
    uint32_t full = m.full + at.stage * 8, stage = m.ring + at.stage * S::STAGE;
    barrier_wait(m.empty + at.stage * 8, at.parity ^ 1);
    if (lane == 0)
        barrier_expect(full, total);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int l = lane + 32 * i, panel = l / n_runs, r = l % n_runs;
        if (n_bytes[i] > 0)
            bulk_copy(stage + panel * TILE * S::PANEL + r * run * (panel == PANELS ? 4 : S::PANEL),
                      static_cast<const char *>(p.cache.at) + from[i], n_bytes[i], full);
    }
    at.next(S::N_STAGES);
}
template <class S, class M> __device__ void copy_whole_tiles(const arguments &p, const M &m, first_part &begin);

/* begin: asked for. */
template <class S, class M> __device__ void copy_all(const arguments &p, const M &m, first_part &begin) {
    if constexpr (!S::SHARED_KV &&
                  (S::DIM <= 128 ||
                   S::E == ELEMENT_E4M3)) // of 16 bits and more channels it loses 4 to 8 % of short contexts
        if (p.n_slots >= TILE) {
            copy_whole_tiles<S>(p, m, begin);
            return;
        }
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, run = min(TILE, p.n_slots), n_runs = TILE / run,
        shift = __ffs(p.n_slots) - 1;
    bool waited = !p.prefetch;
    ring_place at = {0, 0};
    int n = begin.n_parts * n_kv;
    int rank = S::SHARE > 1 ? cluster_rank() : 0; // SHARE blocks take the tiles of a pair in turn
    for (int item = blockIdx.x / S::SHARE; item < n; item += gridDim.x / S::SHARE) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, low = first_visible(p.a, part.position + part.first_column / (p.a.n_heads / n_kv));
        int end = S::PREPARES ? min(part.end, part.position) : part.end; // the block makes the new token's own
        table_reader table = {p.table + (int64_t)part.seq * p.table_width, -1, 0};
        for (int tile = part.first + rank * TILE; tile < part.end; tile += S::SHARE * TILE) {
            // Keys of this step's own tokens are there when the node before has ended; all others are of earlier steps.
            if (!waited && min(tile + TILE, end) > part.position) {
                wait_for_previous();
                waited = true;
            }
            table.need((tile + TILE - 1) >> shift, tile >> shift, p.table_width);
            int block = table.get((tile + min(lane, n_runs - 1) * run) >> shift);
            if constexpr (S::SHARED_KV)
                copy_short_tile<S>(p, m, at, kv, tile, low, end, run, n_runs, block);
            else
                copy_tile<S>(p, m, at, kv, tile, low, end, run, n_runs, block);
        }
    }
    if (!waited)
        wait_for_previous();
}

} // namespace
