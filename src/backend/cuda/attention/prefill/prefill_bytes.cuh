/* prefill_bytes.cuh - of attention_prefill_halves.cu: prompts over a cache of e4m3, where keys and values are
 * multiplied as they lie there.
 *
 *     S [rows, keys] = q K^T,  P = 2^(S - m),  O^T [channels, rows] += V^T P^T
 *
 * All products are of e4m3: queries and P are the sum of two e4m3 (prefill_rows.cuh), V^T comes to registers turned, 64
 * channels at a time, and P goes to shared memory, whose bytes are the only right operand that wgmma knows:
 *
 *     weights   [2 terms][64 rows][128 keys]   of 16 keys, bytes 4t .. 4t + 3 of a row are keys 2t, 2t + 1, 2t + 8, 2t
 *               + 9
 *
 * The largest score m is kept per row, in whole powers of two, and raised when a score passes it by P_SLACK; a value's
 * scale is P's, relative to a power of two that is raised likewise. As the tensor cores keep some 14 bits of a sum,
 * sums of a step are added to O in float32.
 *
 * S (a shape) has STEP 128 keys a step, KEYS of them whose scores a warpgroup makes, CHANNELS that it sums. */
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

// ---- sums -------------------------------------------------------------------------------------------------------

/* Factors of rows are powers of two, so that bfloat16 has them exactly. */
template <class S> __device__ void shrink_sums(const memory<S> &m, int step, row_sums<S> &o) {
    const uint32_t *shrink = reinterpret_cast<const uint32_t *>(m.shrink(step)) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        uint32_t two = shrink[4 * n];
        float by[2] = {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
#pragma unroll
        for (int i = 0; i < S::CHANNELS / 64; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o.o[i][4 * n + k] *= by[k % 2];
    }
}

/* The left operand of 64 channels of a step's values. Row g is channel 2g, row g + 8 channel 2g + 1; of 16 keys, column
 * 4t .. 4t + 3 are keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <class S> __device__ void load_values(const memory<S> &m, int step, int i, uint32_t (&v)[4][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    constexpr int WIDTH = S::RAW_WIDTH;
    uint32_t from =
        m.values(step) + i / 2 * S::STEP * WIDTH + lane * WIDTH + kv_swizzled(WIDTH, lane, i % 2 * 64 + warp * 16);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t words[4];
        load_matrices_turned(words, from + k * 32 * WIDTH);
        v[k][0] = __byte_perm(words[0], words[1], 0x6420);
        v[k][1] = __byte_perm(words[0], words[1], 0x7531);
        v[k][2] = __byte_perm(words[2], words[3], 0x6420);
        v[k][3] = __byte_perm(words[2], words[3], 0x7531);
    }
}

/* Zeroes values of keys that nobody sees, which may be anything: 0 times it must be 0. */
template <class S> __device__ void clear_values(const memory<S> &m, const source &src, int tile, int step) {
    int key = tile + threadIdx.x % 128;
    if (key < src.low || key >= src.end)
        for (int at = 0; at < S::CHANNELS; at += 16)
            *reinterpret_cast<uint4 *>(m.at(m.values(step)) + at / S::RAW_WIDTH * S::STEP * S::RAW_WIDTH +
                                       threadIdx.x % 128 * S::RAW_WIDTH + at % S::RAW_WIDTH) = {0, 0, 0, 0};
    threads_sync(OWN + threadIdx.x / 128, 128); // they are zero
}

/* o += V^T P^T of a step, whose values and P are there. */
template <class S> __device__ void add_values(const memory<S> &m, const source &src, int step, row_sums<S> &o) {
    int tile = src.first + step * S::STEP;
    uint64_t weights = operand_rows(m.weights(step));
    uint32_t v[2][4][4];
    if (tile < src.low || tile + S::STEP > src.end)
        clear_values(m, src, tile, step);
    load_values(m, step, 0, v[0]);
#pragma unroll
    for (int i = 0; i < S::CHANNELS / 64; i++) {
        float sum[32];
        registers_settle(sum);
        products_begin();
#pragma unroll
        for (int k = 0; k < 8; k++) // the smaller term first
            e4m3_product<64>::multiply(sum, v[i % 2][k % 4], weights + (k < 4 ? S::TERM >> 4 : 0) + 2 * (k % 4), k > 0);
        products_commit();
        if (i + 1 < S::CHANNELS / 64)
            load_values(m, step, i + 1, v[(i + 1) % 2]);
        products_wait<0>();
        registers_settle(sum);
#pragma unroll
        for (int j = 0; j < 32; j++)
            o.o[i][j] += sum[j];
    }
}

/* What a row's sums are multiplied by, and where they go: for all threads. */
struct ending {
    int64_t to; // -1: no row
    float by;
    int row; // of the step
};

__device__ ending ending_of(const arguments &p, const dpart &part, int kv, int r, float by) { // r: row of the tile
    row_place at = place_of_row(p, part, kv, part.first_column + r);
    return {part.first_column + r < part.columns ? at.token * p.out.stride + (int64_t)at.head * p.a.head_dim : -1, by,
            (int)at.token};
}

/* What the thread adds to its two rows' sums of P: of all lanes, and the sink. */
template <class S>
__device__ float row_total(const arguments &p, int kv, const place &at, const row_sums<S> &o, int k, bool sink) {
    int per_kv = p.a.n_heads / p.a.n_kv_heads;
    float l = o.l[k] + __shfl_xor_sync(0xffffffffu, o.l[k], 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    return p.sinks.at && sink
               ? l + exp2_fast(load(p.sinks, kv * per_kv + at.row[k] % per_kv) * LOG2_E - o.m[k] + P_LOG2_UNIT)
               : l;
}

/* In float32, a pair of channels at a time, and the largest size of a row's. */
template <class S>
__device__ void store_floats(const arguments &p, const ending *endings, int first_channel, const row_sums<S> &o) {
    int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            ending e = endings[8 * n + 2 * t + k];
            float *to = static_cast<float *>(p.out.at) + e.to + 16 * warp + 2 * g;
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < S::CHANNELS / 64; i++) {
                float x = o.o[i][4 * n + k] * e.by, y = o.o[i][4 * n + 2 + k] * e.by;
                most = max(most, max(__float_as_uint(x) & 0x7FFFFFFF, __float_as_uint(y) & 0x7FFFFFFF));
                if (e.to >= 0)
                    *reinterpret_cast<float2 *>(to + moved<S>(p, first_channel + 64 * i)) = {x, y};
            }
            if (p.out.absmax) {
                for (int step = 4; step < 32; step *= 2)
                    most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
                if (g == 0 && e.to >= 0)
                    atomicMax(p.out.absmax + e.row, most);
            }
        }
}

/* In 16 bits, which first come to `room`, [panel][row][128 bytes], PITCH bytes from a panel to the next: from there a
 * warp stores a row at a time, and knows the largest size in it. */
template <class S, bool BF16, int PITCH>
__device__ void store_pairs(const arguments &p, const ending *endings, int first_channel, char *room,
                            const row_sums<S> &o) {
    constexpr int LANES = S::CHANNELS / 8, ROWS = 32 / LANES; // of a row; rows at a time
    int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int r = 8 * n + 2 * t + k;
            float by = endings[r].by;
#pragma unroll
            for (int i = 0; i < S::CHANNELS / 64; i++)
                *reinterpret_cast<uint32_t *>(room + i * PITCH + r * 128 + ((2 * warp + g / 4) ^ (2 * t)) * 16 +
                                              g % 4 * 4) =
                    to_pair<BF16>(o.o[i][4 * n + k] * by, o.o[i][4 * n + 2 + k] * by);
        }
    threads_sync(OWN + threadIdx.x / 128, 128); // the rows are there
#pragma unroll 2
    for (int i = 0; i < 16 / ROWS; i++) {
        int r = warp * 16 + i * ROWS + lane / LANES, c = lane % LANES;
        ending e = endings[r];
        uint4 x = *reinterpret_cast<const uint4 *>(room + c / 8 * PITCH + r * 128 + ((c % 8) ^ (r / 2 % 4 * 2)) * 16);
        store_eight<LANES, BF16>(p, e.to >= 0, e.to + moved<S>(p, first_channel + 8 * c), e.row, x);
    }
}

/* Rows of 64, whose endings are there; room: of the queries, which nobody needs any more. */
template <class S>
__device__ void store_rows(const arguments &p, const ending *endings, int first_channel, char *room,
                           const row_sums<S> &o) {
    if (p.out.element == ELEMENT_F32)
        store_floats(p, endings, first_channel, o);
    else if (p.out.element == ELEMENT_F16)
        store_pairs<S, false, S::QUERY_PANEL>(p, endings, first_channel, room, o);
    else
        store_pairs<S, true, S::QUERY_PANEL>(p, endings, first_channel, room, o);
}

} // namespace
