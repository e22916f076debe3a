/* prefill_feed.cuh - the copying warpgroup of attention_prefill.cu: brings keys and values to shared memory, KEYS of a
 * tile at a time, and widens what has 8 bits and is to be multiplied in 16.
 *
 * Of 16 bits one warp copies both sides, tile after tile. Of 8 bits all four warps widen what the first has copied: of
 * an e4m3 cache the values alone, since scores are made from keys as they are, with their scales; of int8 both. */
#pragma once

#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/prefill_shape.cuh"
#include "backend/cuda/value.h"

namespace {

enum { SIDE_KEYS, SIDE_VALUES };

/* What the copying warpgroup knows of the item. */
struct source {
    const int32_t *table;
    const char *keys, *scales; // of the KV head in block 0
    int64_t block_bytes, to_values, to_value_scales, panel_bytes;
    int own_panels; // of keys; the others are those of the values
    int first, low, end, run, n_runs,
        shift; // first key of tile 0; run: slots that lie together; shift: log2 of a block's slots
};

template <class S> __device__ source source_of(const arguments &p, const dpart &part, int kv) {
    constexpr int ELEMENT = S::BYTES ? 1 : 2;
    bool is_shared_kv = S::DIM == 512 && p.a.rotary_dim > 0;
    int key_row = (is_shared_kv ? SHARED_KV_DIM : S::DIM) * ELEMENT;
    int64_t key_side = (int64_t)p.n_slots * key_row, side = (int64_t)p.n_slots * S::DIM * ELEMENT; // of a head
    const char *cache = static_cast<const char *>(p.cache.at);
    source s;
    s.table = p.plan.block_table[p.cache.group] + (int64_t)part.seq * p.plan.table_width[p.cache.group];
    s.keys = cache + kv * key_side;
    s.scales = cache + p.a.n_kv_heads * (key_side + side) + (int64_t)kv * p.n_slots * 4;
    s.block_bytes = p.cache.block_elements * ELEMENT;
    s.to_values = p.a.n_kv_heads * key_side + kv * (side - key_side);
    s.to_value_scales = is_shared_kv ? 0 : (int64_t)p.a.n_kv_heads * p.n_slots * 4;
    s.own_panels = key_row / (S::BYTES ? S::RAW_WIDTH : 128);
    s.panel_bytes = (int64_t)p.n_slots * (S::BYTES ? S::RAW_WIDTH : 128);
    s.first = part.first;
    s.low = first_visible(p.a, part.position + part.first_column / (p.a.n_heads / p.a.n_kv_heads));
    s.end = part.end;
    s.run = min(64, p.n_slots); // tiles begin at multiples of 64
    s.n_runs = S::KEYS / s.run;
    s.shift = __ffs(p.n_slots) - 1;
    return s;
}

/* How many slots of run r of the tile that begins at key `tile` are read. */
__device__ int run_length(const source &s, int tile, int r) {
    int key = tile + r * s.run;
    return key + s.run <= s.low ? 0 : max(0, min(s.run, s.end - key));
}

/* Where a warp copies a tile's keys or values to. */
struct target {
    uint32_t rows, scales, full; // panels, scales (of 8 bits), and the barrier of both
    int side, n_panels;
};

/* One warp: a lane copies what lies together, a run of slots of a panel, or their scales. */
template <class S> __device__ void copy_side(const source &s, int i, const target &to) {
    constexpr int WIDTH = S::BYTES ? S::RAW_WIDTH : 128;
    int lane = threadIdx.x % 32, n_copies = s.n_runs * to.n_panels, tile = s.first + i * S::KEYS;
    bool scales = S::BYTES && lane >= n_copies;
    int r = scales ? lane - n_copies : lane / to.n_panels, panel = lane % to.n_panels, key = tile + r * s.run;
    int n = r < s.n_runs ? run_length(s, tile, r) : 0, n_bytes = scales ? (n * 4 + 15) / 16 * 16 : n * WIDTH;
    int total = __reduce_add_sync(0xffffffffu, n_bytes);
    if (lane == 0)
        barrier_expect(to.full, total);
    __syncwarp();
    if (n == 0)
        return;
    int64_t block = s.table[key >> s.shift] * s.block_bytes;
    int slot = key & ((1 << s.shift) - 1);
    if (scales)
        bulk_copy(to.scales + r * s.run * 4, s.scales + block + to.side * s.to_value_scales + slot * 4, n_bytes,
                  to.full);
    else
        bulk_copy(to.rows + panel * S::KEYS * WIDTH + r * s.run * WIDTH,
                  s.keys + block + (to.side == SIDE_VALUES || panel >= s.own_panels ? s.to_values : 0) +
                      panel * s.panel_bytes + (int64_t)slot * WIDTH,
                  n_bytes, to.full);
}

// ---- of 16 bits -------------------------------------------------------------------------------------------------

/* Rows of values that are not copied become zeros: 0 times what lies there must be 0. */
template <class S> __device__ void clear_rows(const memory<S> &m, const source &s, int i) {
    int tile = s.first + i * S::KEYS;
    if (tile + S::KEYS <= s.end && tile >= s.low)
        return;
    for (int r = 0; r < s.n_runs; r++) {
        int first = r * s.run + run_length(s, tile, r), n = (r + 1) * s.run - first;
        for (int k = threadIdx.x % 32; k < n * S::N_PANELS * 8; k += 32) {
            int row = first + k / (S::N_PANELS * 8), piece = k % (S::N_PANELS * 8);
            *reinterpret_cast<uint4 *>(m.at(m.values(i)) + piece / 8 * S::PANEL + row * 128 + piece % 8 * 16) = {0, 0,
                                                                                                                 0, 0};
        }
    }
    fence_bulk();
    __syncwarp();
}

/* One warp brings them as they are. */
template <class S> __device__ void copy_all(const memory<S> &m, const source &s, int n_tiles) {
    for (int i = 0; i < n_tiles; i++) {
        barrier_wait(m.key_empty(i), m.turn(i, S::N_KEYS) ^ 1);
        copy_side<S>(s, i, {m.keys(i), 0, m.key_full(i), SIDE_KEYS, S::N_PANELS});
        barrier_wait(m.value_empty(i), m.turn(i, S::N_VALUES) ^ 1);
        clear_rows<S>(m, s, i);
        copy_side<S>(s, i, {m.values(i), 0, m.value_full(i), SIDE_VALUES, S::N_PANELS});
    }
}

// ---- of 8 bits --------------------------------------------------------------------------------------------------

/* A row's scale as factors of pairs of float16. Where that holds the scale no worse than its other numbers, one is
 * enough; else its fraction and its power of two come one after the other, as the power changes no fraction. */
struct row_factor {
    __half2 fraction, power;
    bool whole; // of all rows of the warp: power is 1
};

__device__ row_factor factor_of(float scale) {
    uint32_t bits = __float_as_uint(scale);
    row_factor f;
    f.whole = __all_sync(0xffffffffu, scale == 0.0f || (scale >= 0x1p-14f && scale <= 0x1p15f));
    f.fraction = __float2half2_rn(f.whole ? scale : __uint_as_float((bits & 0x7FFFFF) | 0x3F800000));
    f.power = __float2half2_rn(__uint_as_float(bits & 0xFF800000));
    return f;
}

__device__ uint32_t times(uint32_t pair, __half2 by) {
    __half2 x = __hmul2(*reinterpret_cast<__half2 *>(&pair), by);
    return *reinterpret_cast<uint32_t *>(&x);
}

template <class S, bool WHOLE> __device__ uint4 widen_eight(uint32_t low, uint32_t high, const row_factor &f) {
    uint32_t a, b, c, d;
    if (S::E == ELEMENT_E4M3) {
        e4m3_to_pairs(low, a, b);
        e4m3_to_pairs(high, c, d);
    } else {
        int8_to_pairs(low, a, b);
        int8_to_pairs(high, c, d);
    }
    uint4 y = {times(a, f.fraction), times(b, f.fraction), times(c, f.fraction), times(d, f.fraction)};
    return WHOLE ? y : uint4{times(y.x, f.power), times(y.y, f.power), times(y.z, f.power), times(y.w, f.power)};
}

/* A thread's pieces of 16 bytes of its row: number `first` of every STEP, of which LOADS are under way at a time. */
template <class S, bool WHOLE>
__device__ void widen_pieces(const char *from, char *to, int row, int first, bool is_there, const row_factor &f) {
    constexpr int PIECES = S::RAW_PANELS * S::RAW_WIDTH / 16, WIDTH_PIECES = S::RAW_WIDTH / 16, STEP = 128 / S::KEYS,
                  LOADS = 4;
    int turn = S::RAW_WIDTH == 128 ? row & 7 : (row >> 1) & 3;
#pragma unroll
    for (int c0 = 0; c0 < PIECES; c0 += LOADS * STEP) {
        uint4 bytes[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            int c = c0 + u * STEP;
            bytes[u] = {0, 0, 0, 0}; // 0 times what lies there must be 0
            if (is_there)
                bytes[u] = *reinterpret_cast<const uint4 *>(from + c / WIDTH_PIECES * S::RAW_PANEL +
                                                            ((c % WIDTH_PIECES + first) ^ turn) * 16);
        }
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            int c = 2 * (c0 + u * STEP);
            char *at = to + c / 8 * S::PANEL;
            *reinterpret_cast<uint4 *>(at + ((c % 8 + 2 * first) ^ (row & 7)) * 16) =
                widen_eight<S, WHOLE>(bytes[u].x, bytes[u].y, f);
            *reinterpret_cast<uint4 *>(at + ((c % 8 + 2 * first + 1) ^ (row & 7)) * 16) =
                widen_eight<S, WHOLE>(bytes[u].z, bytes[u].w, f);
        }
    }
    static_assert(PIECES % (LOADS * STEP) == 0 && WIDTH_PIECES % STEP == 0, "no piece is left over");
}

/* Raw bytes of some panels of a tile to 16 bits. Neighbouring threads take neighbouring rows, whose swizzled pieces lie
 * in different banks on both sides. */
template <class S>
__device__ void widen(const memory<S> &m, const source &s, int i, uint32_t raw, uint32_t scales, uint32_t to) {
    int row = threadIdx.x % S::KEYS, first = threadIdx.x % 128 / S::KEYS, key = s.first + i * S::KEYS + row;
    bool is_there = key >= s.low && key < s.end;
    row_factor f = factor_of(is_there ? reinterpret_cast<const float *>(m.at(scales))[row] : 0.0f);
    if (f.whole)
        widen_pieces<S, true>(m.at(raw) + row * S::RAW_WIDTH, m.at(to) + row * 128, row, first, is_there, f);
    else
        widen_pieces<S, false>(m.at(raw) + row * S::RAW_WIDTH, m.at(to) + row * 128, row, first, is_there, f);
    fence_bulk();
}

/* Of e4m3. Keys go as far ahead of the values as their ring allows. */
template <class S> __device__ void copy_raw_values(const memory<S> &m, const source &s, int i) {
    copy_side<S>(s, i, {m.raw(i), m.raw_scales(i), m.raw_full(i), SIDE_VALUES, S::RAW_PANELS});
}
template <class S> __device__ void copy_keys(const memory<S> &m, const source &s, int i) {
    barrier_wait(m.key_empty(i), m.turn(i, S::N_KEYS) ^ 1);
    copy_side<S>(s, i, {m.keys(i), m.key_scales(i), m.key_full(i), SIDE_KEYS, S::RAW_PANELS});
}

template <class S> __device__ void widen_values(const memory<S> &m, const source &s, int n_tiles) {
    constexpr int AHEAD = S::N_KEYS - S::N_VALUES;
    bool copies = threadIdx.x % 128 < 32;
    for (int i = 0; copies && i < min(S::N_KEYS, n_tiles); i++)
        copy_keys<S>(m, s, i);
    for (int i = 0; copies && i < min(S::N_RAW, n_tiles); i++)
        copy_raw_values<S>(m, s, i);
    for (int i = 0; i < n_tiles; i++) {
        int next = i + AHEAD;
        barrier_wait(m.value_empty(i), m.turn(i, S::N_VALUES) ^ 1);
        // Whoever has left the values of a tile had left its keys before.
        if (copies && next >= S::N_KEYS && next < n_tiles)
            copy_keys<S>(m, s, next);
        barrier_wait(m.raw_full(i), m.turn(i, m.ring(S::N_RAW)));
        widen<S>(m, s, i, m.raw(i), m.raw_scales(i), m.values(i));
        barrier_arrive(m.value_full(i));
        threads_sync(2, 128); // nobody reads these bytes any more
        if (copies && i + S::N_RAW < n_tiles)
            copy_raw_values<S>(m, s, i + S::N_RAW);
    }
}

/* Of int8: keys and values by turns, number i of which is side i % 2 of tile i / 2. */
template <class S> __device__ void copy_raw_side(const memory<S> &m, const source &s, int i) {
    copy_side<S>(s, i / 2, {m.raw(i), m.raw_scales(i), m.raw_full(i), i % 2, S::RAW_PANELS});
}

template <class S> __device__ void widen_both(const memory<S> &m, const source &s, int n_tiles) {
    bool copies = threadIdx.x % 128 < 32;
    for (int i = 0; copies && i < min(S::N_RAW, 2 * n_tiles); i++)
        copy_raw_side<S>(m, s, i);
    for (int i = 0; i < 2 * n_tiles; i++) {
        int tile = i / 2;
        bool keys = i % 2 == SIDE_KEYS;
        barrier_wait(keys ? m.key_empty(tile) : m.value_empty(tile), m.turn(tile, keys ? S::N_KEYS : S::N_VALUES) ^ 1);
        barrier_wait(m.raw_full(i), m.turn(i, m.ring(S::N_RAW)));
        widen<S>(m, s, tile, m.raw(i), m.raw_scales(i), keys ? m.keys(tile) : m.values(tile));
        barrier_arrive(keys ? m.key_full(tile) : m.value_full(tile));
        threads_sync(2, 128); // nobody reads these bytes any more
        if (copies && i + S::N_RAW < 2 * n_tiles)
            copy_raw_side<S>(m, s, i + S::N_RAW);
    }
}

} // namespace
