/* prefill_bytes_scores.cuh - of prefill_bytes.cuh: copies of keys and values, and scores that become P in shared
 * memory. */
#pragma once

#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/prefill/prefill_feed.cuh"
#include "backend/cuda/attention/prefill/prefill_rows.cuh"
#include "backend/cuda/attention/prefill/prefill_scores.cuh"
#include "backend/cuda/linear/ending.h"
#include "backend/cuda/value.h"

namespace {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float P_LOG2_UNIT = 6, P_SLACK = 2; // P is multiplied by 64, and passes 1 by 2^P_SLACK at most: 256 in all

enum { BOTH = 1, OWN = 3 }; // named barriers: of both computing warpgroups; OWN + group: of one

// ---- copying ----------------------------------------------------------------------------------------------------

struct piece {
    uint32_t to;
    const char *from;
    int n_bytes;
};

/* A warp's pieces, one a lane. */
__device__ void copy_pieces(const piece &x, uint32_t full) {
    int total = __reduce_add_sync(0xffffffffu, x.n_bytes);
    if (threadIdx.x % 32 == 0)
        barrier_expect(full, total);
    __syncwarp(); // the bytes are expected
    if (x.n_bytes > 0)
        bulk_copy(x.to, x.from, x.n_bytes, full);
}

/* Of the slots from run `r` of the tile on: their block, and the first one's number in it. */
struct run_of_slots {
    int n, slot;
    int64_t block;
};
__device__ run_of_slots slots_of(const source &s, int tile, int r) {
    int key = tile + r * s.run, n = run_length(s, tile, r);
    return {n, key & ((1 << s.shift) - 1), n > 0 ? s.table[key >> s.shift] * s.block_bytes : 0};
}

/* Keys from `tile` on, with their scales and those of the values. */
template <class S> __device__ void copy_step_keys(const memory<S> &m, const source &s, int tile, int step) {
    constexpr int PANELS = S::DIM / S::RAW_WIDTH;
    int lane = threadIdx.x % 32, n_runs = S::KEYS / s.run;
    int kind = lane < n_runs * PANELS ? 0 : (lane - n_runs * PANELS) / n_runs + 1; // bytes, scales of keys, of values
    int r = kind ? (lane - n_runs * PANELS) % n_runs : lane / PANELS, panel = lane % PANELS;
    piece x = {};
    if (kind < 3) {
        run_of_slots of = slots_of(s, tile, r);
        if (kind == 0)
            x = {m.keys(step) + panel * S::RAW_PANEL + r * s.run * S::RAW_WIDTH,
                 s.keys + of.block + (panel >= s.own_panels ? s.to_values : 0) + panel * s.panel_bytes +
                     of.slot * S::RAW_WIDTH,
                 of.n * S::RAW_WIDTH};
        else
            x = {(kind == 1 ? m.key_scales(step) : m.value_scales(step)) + r * s.run * 4,
                 s.scales + of.block + (kind - 1) * s.to_value_scales + of.slot * 4, (of.n * 4 + 15) / 16 * 16};
    }
    copy_pieces(x, m.key_full(step));
}

/* Values of a step, of CHANNELS from panel `first` on. */
template <class S>
__device__ void copy_step_values(const memory<S> &m, const source &s, int tile, int first, int step) {
    constexpr int PANELS = S::CHANNELS / S::RAW_WIDTH;
    int lane = threadIdx.x % 32, r = lane / PANELS, panel = lane % PANELS;
    piece x = {};
    if (r < S::STEP / s.run) {
        run_of_slots of = slots_of(s, tile, r);
        x = {m.values(step) + panel * S::STEP * S::RAW_WIDTH + r * s.run * S::RAW_WIDTH,
             s.keys + of.block + s.to_values + (first + panel) * s.panel_bytes + of.slot * S::RAW_WIDTH,
             of.n * S::RAW_WIDTH};
    }
    copy_pieces(x, m.value_full(step));
}

// ---- scores and P -----------------------------------------------------------------------------------------------

/* Of two rows (m, l), and of 16 rows' channels 64 i + 16 warp + 2 g and + 1: o[i][4 n + k] and [4 n + 2 + k] of row 8 n
 * + 2 t + k. */
template <class S> struct row_sums {
    float o[S::CHANNELS / 64][32], o_m[2],
        o_reference; // what o is relative to: 2^o_m of a row, and a power of two, no less than any scale of values
    float m[2], reference,
        l[2]; // the same of this warpgroup's P, which may be ahead; l: of this thread's keys, times 2^P_LOG2_UNIT
};

/* Keys of a step that the warpgroup makes scores of. */
struct some_keys {
    int first;
    bool inside; // all rows see all of them
    float by[2];
};

template <class S> __device__ some_keys keys_from(const arguments &p, const dpart &part, const place &at, int first) {
    some_keys h;
    h.first = first;
    h.inside = first + S::KEYS <= min(at.first_position + 1, part.end) && first >= first_visible(p.a, at.last_position);
    h.by[0] = p.a.softcap > 0 ? 1.0f : at.by[0];
    h.by[1] = p.a.softcap > 0 ? 1.0f : at.by[1];
    return h;
}

/* From scores without scales to the masked ones; scales of values that nobody sees become 0. */
template <class S>
__device__ void mask_scores(const arguments &p, const dpart &part, const memory<S> &m, const source &src,
                            const place &at, const some_keys &h, int step, float (&s)[S::KEYS / 2]) {
    end_scores<S>(m, step, s);
    if (p.a.softcap > 0)
        cap_scores<S>(at, p.a.softcap, s);
    if (h.inside)
        return;
    hide<S>(p, part, at, h.first, s);
    int key = threadIdx.x % 128;
    if (key < S::KEYS && (h.first + key < src.low || h.first + key >= src.end))
        reinterpret_cast<float *>(m.at(m.value_scales(step)))[key] = 0;
    threads_sync(OWN + threadIdx.x / 128, 128); // the scales are there
}

/* Raises m, to whole powers of two, where a score passes it, and the reference to the scales of the values; true: of
 * any row of the warp. */
template <class S>
__device__ bool raise_own(const memory<S> &m, const some_keys &h, int step, const float (&s)[S::KEYS / 2],
                          row_sums<S> &o) {
    int lane = threadIdx.x % 32;
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < S::KEYS / 2; j++)
        most[j / 2 % 2] = fmaxf(most[j / 2 % 2], s[j]);
    const float *scales = reinterpret_cast<const float *>(m.at(m.value_scales(step)));
    float scale = 0;
#pragma unroll
    for (int i = 0; i < S::KEYS; i += 32)
        scale = fmaxf(scale, scales[lane + i]);
    if (!__any_sync(0xffffffffu, most[0] * h.by[0] > o.m[0] + P_SLACK || most[1] * h.by[1] > o.m[1] + P_SLACK ||
                                     scale > o.reference))
        return false;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float top = fmaxf(most[k], __shfl_xor_sync(0xffffffffu, most[k], 1));
        top = fmaxf(o.m[k], ceilf(fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * h.by[k]));
        o.l[k] *= top == -INFINITY ? 1.0f : exp2_fast(o.m[k] - top);
        o.m[k] = top;
    }
    uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(fminf(fmaxf(scale, 1e-30f), 1e30f)));
    o.reference = fmaxf(o.reference, __uint_as_float((bits + 0x7fffffu) & 0x7f800000u));
    return true;
}

/* Two pairs as an e4m3 each; they become what it left. */
__device__ uint32_t take_e4m3(__half2 &x, __half2 &y) {
    uint32_t term = e4m3_of_pairs(reinterpret_cast<uint32_t &>(x), reinterpret_cast<uint32_t &>(y)), a, b;
    e4m3_to_pairs(term, a, b);
    x = __hsub2(x, reinterpret_cast<__half2 &>(a));
    y = __hsub2(y, reinterpret_cast<__half2 &>(b));
    return term;
}

/* Where this thread places its first four weights of row g; those of 16 keys further on are at ^ 16. */
template <class S> __device__ uint32_t weights_of(const memory<S> &m, int step, const place &at) {
    int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return m.weights(step) + (16 * warp + g) * 128 + ((4 * at.sharer ^ g) * 16) + 4 * t;
}

/* P of the warpgroup's keys, times the values' scales, as terms in the right operand. */
template <class S>
__device__ void place_weights(const memory<S> &m, const some_keys &h, int step, const place &at,
                              const float (&s)[S::KEYS / 2], row_sums<S> &o) {
    int t = threadIdx.x % 4;
    uint32_t to = weights_of(m, step, at);
    const float2 *scales = reinterpret_cast<const float2 *>(m.at(m.value_scales(step))) + t;
    float per_reference = 1.0f / o.reference, base[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        base[k] = o.m[k] == -INFINITY ? 0.0f : o.m[k] - P_LOG2_UNIT;
#pragma unroll
    for (int q = 0; q < S::KEYS / 16; q++) {
        float2 v = scales[8 * q], w = scales[8 * q + 4];
        v = {v.x * per_reference, v.y * per_reference};
        w = {w.x * per_reference, w.y * per_reference};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float e[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                e[i] = exp2_fast(fmaf(s[8 * q + i / 2 * 4 + 2 * k + i % 2], h.by[k], -base[k]));
            o.l[k] += (e[0] + e[1]) + (e[2] + e[3]);
            __half2 x = __floats2half2_rn(e[0] * v.x, e[1] * v.y), y = __floats2half2_rn(e[2] * w.x, e[3] * w.y);
#pragma unroll
            for (int term = 0; term < 2; term++)
                store_shared((to ^ q * 16) + term * S::TERM + k * 8 * 128, take_e4m3(x, y));
        }
    }
    fence_bulk();
}

} // namespace
