/* decode_scores.cuh - of attention_decode.cu: queries in a computing warp's registers, and their scores with a tile. */
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

} // namespace
