/* decode_feed.cuh - of attention_decode.cu and attention_decode_bytes.cu: the two warps that do not compute. One brings keys and values,
 * the other describes the next pair and brings its queries.
 *
 * Where GROUPS warpgroups share a pair they take its tiles in turn, each from a ring of its own: in one ring a warpgroup could come round
 * to a stage that another's copy, begun earlier and ended later, has not filled yet, and take the phase before for its own. */
#pragma once

#include "backend/cuda/decode_shape.cuh"

namespace {

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

/* Brings one side of a tile: lane l copies the slots of one block that one panel has of them, or their scales. */
template <class S, class M>
__device__ void copy_side(const arguments &p, const M &m, ring_place &at, bool values, int kv, int tile, int low, int end, int run,
                          int n_runs, int block) {
    int lane = threadIdx.x % 32, panel = lane % S::N_PANELS, r = lane / S::N_PANELS, n_copies = n_runs * S::N_PANELS;
    bool scales = S::BYTES && lane >= n_copies && lane < n_copies + n_runs;
    int from_run = scales ? lane - n_copies : r;
    int id = __shfl_sync(0xffffffffu, block, from_run & 31); // lane i knows the block of run i
    int key = tile + from_run * run, n = min(run, end - key), slot = key & (p.n_slots - 1);
    bool wanted = (lane < n_copies || scales) && n > 0 && id >= 0 && key + run > low;
    int n_bytes = !wanted ? 0 : scales ? (n * 4 + 15) / 16 * 16 : n * S::PANEL;
    int total = __reduce_add_sync(0xffffffffu, n_bytes);
    barrier_wait(m.empty + at.stage * 8, at.parity ^ 1);
    uint32_t full = m.full + at.stage * 8, to = m.ring + at.stage * S::STAGE;
    if (lane == 0)
        barrier_expect(full, total);
    __syncwarp();
    if (wanted) {
        int64_t per_side = (int64_t)p.a.n_kv_heads * p.n_slots;
        const char *from = static_cast<const char *>(p.cache.at) + id * p.cache.block_elements * (S::BYTES ? 1 : 2);
        if (scales)
            from += 2 * per_side * S::ROW + ((values ? per_side : 0) + (int64_t)kv * p.n_slots + slot) * 4;
        else
            from += (values ? per_side * S::ROW : 0) + ((int64_t)(kv * S::N_PANELS + panel) * p.n_slots + slot) * S::PANEL;
        to += scales ? S::ROW * TILE + from_run * run * 4 : panel * TILE * S::PANEL + from_run * run * S::PANEL;
        bulk_copy(to, from, n_bytes, full);
    }
    at.next(S::RING);
}

template <class S, class M> __device__ void copy_all(const arguments &p, const M &m) {
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, run = min(TILE, p.n_slots), n_runs = TILE / run, shift = __ffs(p.n_slots) - 1;
    int width = p.plan.table_width[p.cache.group];
    bool waited = !p.prefetch;
    ring_place mine = {lane * S::RING, 0, lane * S::RING}; // of the ring of warpgroup `lane`
    if (waited)
        wait_for_previous();
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x; item < n; item += gridDim.x) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, low = first_visible(p.a, part.position + part.first_column / (p.a.n_heads / n_kv));
        table_reader table = {p.plan.block_table[p.cache.group] + (int64_t)part.seq * width, -1, 0};
        for (int tile = part.first; tile < part.end; tile += TILE) {
            // Keys of this step's own tokens are there when the node before has ended; all others are of earlier steps.
            if (!waited && min(tile + TILE, part.end) > part.position) {
                wait_for_previous();
                waited = true;
            }
            table.need((tile + TILE - 1) >> shift, tile >> shift, width);
            int block = table.get((tile + min(lane, n_runs - 1) * run) >> shift);
            int of = (tile - part.first) / TILE % S::GROUPS; // whose tile it is
            ring_place at = {__shfl_sync(0xffffffffu, mine.stage, of), __shfl_sync(0xffffffffu, mine.parity, of), of * S::RING};
            copy_side<S>(p, m, at, false, kv, tile, low, part.end, run, n_runs, block);
            copy_side<S>(p, m, at, true, kv, tile, low, part.end, run, n_runs, block);
            if (lane == of)
                mine = at;
        }
    }
    if (!waited)
        wait_for_previous();
}

// ---- what comes next --------------------------------------------------------------------------------------------

template <class S> __device__ void describe(const arguments &p, const dpart &part, int kv, task<S> &t) {
    int lane = threadIdx.x % 32, per_kv = p.a.n_heads / p.a.n_kv_heads, n = min(S::COLUMNS, part.columns - part.first_column);
    int column = part.first_column + min(lane, n - 1), head = kv * per_kv + column % per_kv, position = part.position + column / per_kv;
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
    int lane = threadIdx.x % 32, n_kv = p.a.n_kv_heads, per_kv = p.a.n_heads / n_kv, element = p.q.element == ELEMENT_F32 ? 4 : 2;
    bool waited = !p.prefetch;
    if (waited)
        wait_for_previous();
    int n = __ldcg(p.parts.n) * n_kv;
    for (int item = blockIdx.x, i = 0; item < n; item += gridDim.x, i++) {
        dpart part = load_part(p, item / n_kv);
        int kv = item % n_kv, column = part.first_column + lane, n_columns = min(S::COLUMNS, part.columns - part.first_column);
        barrier_wait(m.task_empty + i % 2 * 8, (i / 2 & 1) ^ 1);
        describe<S>(p, part, kv, m.tasks[i % 2]);
        if (!waited) // the list is of an earlier node, queries are of the last
            wait_for_previous();
        waited = true;
        barrier_wait(m.queries_empty, (i & 1) ^ 1);
        if (lane == 0)
            barrier_expect(m.queries_full, n_columns * S::DIM * element);
        __syncwarp();
        if (lane < n_columns) {
            int64_t from = (part.row + column / per_kv) * p.q.stride + (int64_t)(kv * per_kv + column % per_kv) * S::DIM;
            bulk_copy(shared_address(m.queries) + lane * (S::DIM * element + 32), static_cast<const char *>(p.q.at) + from * element,
                      S::DIM * element, m.queries_full);
        }
    }
    if (!waited)
        wait_for_previous();
}

} // namespace
