/* decode_tile.cuh - of attention_decode.cu: what a computing warp does with a tile, 16 of its keys and their values. */
#pragma once

#include "backend/cuda/attention/decode/decode_shape.cuh"
#include "backend/cuda/value.h"

namespace {

/* Where a computing thread stands. */
struct place {
    int lane, group, quarter, key_warp, channel_warp; // group: lane / 4, quarter: lane % 4
};

template <class S> struct sums {
    float o[S::M_TILES][S::N_TILES][4];       // channels by columns
    float m[S::N_TILES][2], l[S::N_TILES][2]; // of columns 2 quarter and 2 quarter + 1; l of this lane's keys alone
    float reference, per_reference;           // of the values' scales; 1 / reference

    __device__ void clear() {
        for (int i = 0; i < S::M_TILES; i++)
            for (int n = 0; n < S::N_TILES; n++)
                for (int k = 0; k < 4; k++)
                    o[i][n][k] = 0;
        for (int n = 0; n < S::N_TILES; n++)
            for (int k = 0; k < 2; k++) {
                m[n][k] = -INFINITY;
                l[n][k] = 0;
            }
        reference = per_reference = 0;
    }
};

/* The right operand of step k: channels of the query of column 8n + group. Which channels a lane holds is free as long
 * as the keys' side agrees: of bytes, a lane's word has four in a row. Columns that nobody has are zero. */
template <class S> __device__ uint2 take_query_f32(const memory<S> &m, int n_columns, int k, int n, int lane) {
    int column = 8 * n + lane / 4, t = lane % 4;
    const float *from = reinterpret_cast<const float *>(m.queries + column * (S::DIM * 4 + 32)) + S::moved(16 * k);
    float2 x = *reinterpret_cast<const float2 *>(from + (S::BYTES ? 4 * t : 2 * t));
    float2 y = *reinterpret_cast<const float2 *>(from + (S::BYTES ? 4 * t + 2 : 2 * t + 8));
    return column < n_columns ? uint2{to_pair<S::BF16>(x.x, x.y), to_pair<S::BF16>(y.x, y.y)} : uint2{0, 0};
}

template <bool BF16> __device__ uint32_t convert_pair(uint32_t pair, element e) {
    if (e == (BF16 ? ELEMENT_BF16 : ELEMENT_F16))
        return pair;
    float2 x = e == ELEMENT_F16 ? __half22float2(*reinterpret_cast<__half2 *>(&pair))
                                : __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&pair));
    return to_pair<BF16>(x.x, x.y);
}

template <class S>
__device__ uint2 take_query_16(const memory<S> &m, element e, int n_columns, int k, int n, int lane) {
    int column = 8 * n + lane / 4, t = lane % 4;
    const uint32_t *from =
        reinterpret_cast<const uint32_t *>(m.queries + column * (S::DIM * 2 + 32)) + S::moved(16 * k) / 2;
    uint32_t x = from[S::BYTES ? 2 * t : t], y = from[S::BYTES ? 2 * t + 1 : t + 4];
    return column < n_columns ? uint2{convert_pair<S::BF16>(x, e), convert_pair<S::BF16>(y, e)} : uint2{0, 0};
}

template <class S> struct queries {
    uint2 own[S::QUERY_IN_SHARED ? 1 : S::K_STEPS][S::N_TILES];

    __device__ void take(const arguments &p, const memory<S> &m, int n_columns, const place &at) {
        element e = p.q.element;
        if constexpr (S::QUERY_IN_SHARED) {
            for (int i = threadIdx.x; i < S::K_STEPS * S::N_TILES * 32; i += S::COMPUTE) {
                int k = i / 32 / S::N_TILES, n = i / 32 % S::N_TILES;
                m.query[i] = e == ELEMENT_F32 ? take_query_f32<S>(m, n_columns, k, n, i % 32)
                                              : take_query_16<S>(m, e, n_columns, k, n, i % 32);
            }
            threads_sync(1, S::COMPUTE); // the queries are there
        } else if (e == ELEMENT_F32) {
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    own[k][n] = take_query_f32<S>(m, n_columns, k, n, at.lane);
        } else {
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++)
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    own[k][n] = take_query_16<S>(m, e, n_columns, k, n, at.lane);
        }
    }
    __device__ uint2 get(const memory<S> &m, int k, int n, int lane) const {
        return S::QUERY_IN_SHARED ? m.query[(k * S::N_TILES + n) * 32 + lane] : own[S::QUERY_IN_SHARED ? 0 : k][n];
    }
};

/* s [16 keys, columns] of the warp's 16 keys of a tile. Two sums a tile of columns, so that products need not wait for
 * each other. */
template <class S>
__device__ void scores(const memory<S> &m, uint32_t stage, const queries<S> &q, const place &at,
                       float (&s)[S::N_TILES][4]) {
    float odd[S::N_TILES][4];
    for (int n = 0; n < S::N_TILES; n++)
        for (int k = 0; k < 4; k++)
            s[n][k] = odd[n][k] = 0;
    int row = 16 * at.key_warp + at.lane % 16,
        half = at.lane / 16; // the row whose address this lane gives, and the piece
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k += S::BYTES ? 2 : 1) {
        uint32_t a[4];
        uint32_t side = 16 * k * (S::BYTES ? 1 : 2) < S::KEY_ROW ? S::ROW * TILE : 0;
        load_matrices(a, piece<S>(stage + side, row, (S::BYTES ? k : 2 * k) + half));
        if constexpr (S::BYTES) {
            uint32_t b[4], c[4];
            int8_to_pairs(a[0], b[0], b[2]);
            int8_to_pairs(a[1], b[1], b[3]);
            int8_to_pairs(a[2], c[0], c[2]);
            int8_to_pairs(a[3], c[1], c[3]);
            for (int n = 0; n < S::N_TILES; n++) {
                uint2 x = q.get(m, k, n, at.lane), y = q.get(m, k + 1, n, at.lane);
                multiply_add<false>(s[n], b, x.x, x.y);
                multiply_add<false>(odd[n], c, y.x, y.y);
            }
        } else {
            for (int n = 0; n < S::N_TILES; n++) {
                uint2 x = q.get(m, k, n, at.lane);
                multiply_add<S::BF16>(k % 2 ? odd[n] : s[n], a, x.x, x.y);
            }
        }
    }
    for (int n = 0; n < S::N_TILES; n++)
        for (int k = 0; k < 4; k++)
            s[n][k] += odd[n][k];
}

/* Scores of the two keys of this lane, times scale and log2 e, through the softcap. */
template <class S>
__device__ void scale_scores(const arguments &p, float scale0, float scale1, float (&s)[S::N_TILES][4]) {
    constexpr float LOG2_E = 1.4426950408889634f;
    if (p.a.softcap > 0) { // cap * tanh(x / cap), as 1 - 2 / (1 + e^2x)
        float by = p.per_softcap * LOG2_E, cap = p.a.softcap * LOG2_E;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[n][k] = cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(s[n][k] * (k < 2 ? scale0 : scale1) * by)));
        return;
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] *= (k < 2 ? scale0 : scale1) * LOG2_E;
}

/* -inf where the column does not see the key. */
template <class S, class P> __device__ void hide(const task<S> &t, int key, const P &at, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int column = 8 * n + 2 * at.quarter + k % 2, j = key + 8 * (k / 2);
            if (j < t.first[column] || j > t.last[column])
                s[n][k] = -INFINITY;
        }
}

/* Over the eight lanes that hold the other keys of the same columns. */
__device__ float largest_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ float sum_of_keys(float x) {
    for (int step = 4; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <class S> __device__ void shrink(sums<S> &o, int n, float by0, float by1) {
#pragma unroll
    for (int i = 0; i < S::M_TILES; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o.o[i][n][k] *= k % 2 ? by1 : by0;
}

/* Raises m where a score passed it by more than 8, and what was summed shrinks. */
template <class S> __device__ void raise(sums<S> &o, const float (&s)[S::N_TILES][4]) {
    constexpr float SLACK = 8;
    bool passed = false;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        passed = passed || fmaxf(s[n][0], s[n][2]) > o.m[n][0] + SLACK || fmaxf(s[n][1], s[n][3]) > o.m[n][1] + SLACK;
    if (!__any_sync(0xffffffffu, passed))
        return;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float by[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float m = fmaxf(o.m[n][k], largest_of_keys(fmaxf(s[n][k], s[n][k + 2])));
            by[k] = m == -INFINITY ? 1.0f : exp2_fast(o.m[n][k] - m);
            o.m[n][k] = m;
            o.l[n][k] *= by[k];
        }
        shrink<S>(o, n, by[0], by[1]);
    }
}

/* P of two keys and this lane's columns into s. */
template <class S> __device__ void exponentials(sums<S> &o, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float m = o.m[n][k % 2];
            s[n][k] = exp2_fast(s[n][k] - (m == -INFINITY ? 0.0f : m));
            o.l[n][k % 2] += s[n][k];
        }
}

/* P times the scales of the values' rows, divided by the largest scale yet. */
template <class S> __device__ void scale_values(sums<S> &o, float scale0, float scale1, float (&s)[S::N_TILES][4]) {
    float most = fmaxf(scale0, scale1);
    if (__any_sync(0xffffffffu, most > o.reference)) {
        most = fmaxf(o.reference, largest_of_keys(most));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            shrink<S>(o, n, __fdividef(o.reference, most), __fdividef(o.reference, most));
        o.reference = most;
        o.per_reference = 1.0f / most;
    }
    float by0 = scale0 * o.per_reference, by1 = scale1 * o.per_reference;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[n][k] *= k < 2 ? by0 : by1;
}

/* o += V^T P^T of the warp's 16 keys and its channels. P in bfloat16 would be off by 1.6e-3, so it is the sum of two:
 * what that costs hides behind the loads of values. */
template <class S>
__device__ void add_values(uint32_t stage, const place &at, const float (&s)[S::N_TILES][4], sums<S> &o) {
    uint2 b[S::N_TILES], rest[S::BF16 ? S::N_TILES : 1];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        b[n] = {to_pair<S::BF16>(s[n][0], s[n][1]), to_pair<S::BF16>(s[n][2], s[n][3])};
        if constexpr (S::BF16)
            rest[n] = {turn_matrix(rest_of_pair(s[n][0], s[n][1], b[n].x)),
                       turn_matrix(rest_of_pair(s[n][2], s[n][3], b[n].y))};
        b[n] = {turn_matrix(b[n].x), turn_matrix(b[n].y)};
    }
    int first = at.channel_warp * S::CHANNELS / (S::BYTES ? 16 : 8); // piece
    if constexpr (S::BYTES) {
        int row = 16 * at.key_warp + at.lane % 16,
            half = at.lane / 16; // keys 0-7 and 8-15 of a piece, then of the next
#pragma unroll
        for (int i = 0; i < S::M_TILES; i += 2) {
            uint32_t words[4];
            load_matrices_turned(words, piece<S>(stage, row, first + i + half));
#pragma unroll
            for (int j = 0; j < 2;
                 j++) { // rows g and g + 8 of the left operand are channels 2g and 2g + 1 of the piece
                uint32_t a[4];
                int8_to_pairs(__byte_perm(words[2 * j], 0, 0x3120), a[0], a[1]);
                int8_to_pairs(__byte_perm(words[2 * j + 1], 0, 0x3120), a[2], a[3]);
#pragma unroll
                for (int n = 0; n < S::N_TILES; n++)
                    multiply_add<false>(o.o[i + j][n], a, b[n].x, b[n].y);
            }
        }
    } else {
        int row = 16 * at.key_warp + at.lane % 8 + at.lane / 16 * 8, half = at.lane / 8 % 2;
#pragma unroll
        for (int i = 0; i < S::M_TILES; i++) {
            uint32_t a[4];
            load_matrices_turned(a, piece<S>(stage, row, first + 2 * i + half));
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++) {
                if constexpr (S::BF16)
                    multiply_add<true>(o.o[i][n], a, rest[n].x, rest[n].y);
                multiply_add<S::BF16>(o.o[i][n], a, b[n].x, b[n].y);
            }
        }
    }
}

/* Zeroes rows of values that nobody sees, which may be anything: 0 times it must be 0. A warp clears what it reads
 * itself. */
template <class S>
__device__ void clear_rows(const memory<S> &m, int stage, int tile, int low, int end, const place &at) {
    constexpr int PIECES = S::CHANNELS * (S::BYTES ? 1 : 2) / 16;
    char *base = m.stages + stage * S::STAGE;
    for (int r = 0; r < 16; r++) {
        int row = 16 * at.key_warp + r, key = tile + row;
        if (key >= low && key < end)
            continue;
        for (int c = at.lane; c < PIECES; c += 32)
            *reinterpret_cast<uint4 *>(base + piece<S>(0, row, at.channel_warp * PIECES + c)) = {0, 0, 0, 0};
    }
    fence_bulk();
    __syncwarp();
}

template <class S>
__device__ void take_tile(const arguments &p, const memory<S> &m, const task<S> &t, int tile, const queries<S> &q,
                          const place &at, ring_place &r, sums<S> &o) {
    int key = tile + 16 * at.key_warp, end = t.part.end;
    bool inside = tile >= t.inside_from && tile + TILE <= t.inside_to, seen = key < end && key + 16 > t.low;
    float s[S::N_TILES][4], key_scale[2] = {p.a.scale, p.a.scale};
    barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if constexpr (S::BYTES) {
            const float *scale =
                reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::SIDE) + 16 * at.key_warp;
            key_scale[0] *= scale[at.group];
            key_scale[1] *= scale[at.group + 8];
        }
        scores<S>(m, m.ring + r.stage * S::STAGE, q, at, s);
    }
    if constexpr (S::SHARED_KV) {
        if (tile < t.low || tile + TILE > end)
            threads_sync(1, S::COMPUTE); // all have read the keys, of which some are cleared as values
    } else {
        __syncwarp();
        barrier_arrive_warp(m.empty + r.stage * 8, at.lane);
        r.next(S::N_STAGES);
    }
    if (seen) {
        scale_scores<S>(p, key_scale[0], key_scale[1], s);
        if (!inside)
            hide<S>(t, key + at.group, at, s);
        raise<S>(o, s);
        exponentials<S>(o, s);
    }
    if (!S::SHARED_KV)
        barrier_wait(m.full + r.stage * 8, r.parity);
    if (seen) {
        if (key < t.low || key + 16 > end)
            clear_rows<S>(m, r.stage, tile, t.low, end, at);
        if constexpr (S::BYTES) {
            const float *scale =
                reinterpret_cast<const float *>(m.stages + r.stage * S::STAGE + S::SIDE) + 16 * at.key_warp;
            int j = key + at.group;
            scale_values<S>(o, j >= t.low && j < end ? scale[at.group] : 0.0f,
                            j + 8 >= t.low && j + 8 < end ? scale[at.group + 8] : 0.0f, s);
        }
        add_values<S>(m.ring + r.stage * S::STAGE, at, s, o);
    }
    __syncwarp();
    barrier_arrive_warp(m.empty + r.stage * 8, at.lane);
    r.next(S::N_STAGES);
}

} // namespace
