/* decode_bytes_queries.cuh - of attention_decode_bytes.cu: queries as terms of e4m3, placed for the tensor core. */
#pragma once

#include "backend/cuda/attention/decode/decode_bytes_shape.cuh"

namespace {

/* Four floats as a term of e4m3; they become 16 times what it left. */
__device__ uint32_t take_term(float4 &x) {
    uint32_t term = e4m3_of_floats(x.x, x.y) | (uint32_t)e4m3_of_floats(x.z, x.w) << 16, a, b;
    e4m3_to_pairs(term, a, b);
    float2 p = __half22float2(reinterpret_cast<__half2 &>(a)), q = __half22float2(reinterpret_cast<__half2 &>(b));
    x = {(x.x - p.x) * 16, (x.y - p.y) * 16, (x.z - q.x) * 16, (x.w - q.y) * 16};
    return term;
}

/* Likewise two pairs of float16. */
__device__ uint32_t take_term(__half2 &x, __half2 &y) {
    uint32_t term = e4m3_of_pairs(reinterpret_cast<uint32_t &>(x), reinterpret_cast<uint32_t &>(y)), a, b;
    e4m3_to_pairs(term, a, b);
    __half2 unit = __float2half2_rn(16);
    x = __hmul2(__hsub2(x, reinterpret_cast<__half2 &>(a)), unit);
    y = __hmul2(__hsub2(y, reinterpret_cast<__half2 &>(b)), unit);
    return term;
}

__device__ float4 four_of_16(uint2 x, element e) {
    float2 a, b;
    if (e == ELEMENT_F16) {
        a = __half22float2(reinterpret_cast<__half2 &>(x.x)), b = __half22float2(reinterpret_cast<__half2 &>(x.y));
    } else {
        a = {__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u)};
        b = {__uint_as_float(x.y << 16), __uint_as_float(x.y & 0xffff0000u)};
    }
    return {a.x, a.y, b.x, b.y};
}
__device__ float4 four_of_query(const char *row, element e, int channel) {
    return e == ELEMENT_F32 ? *reinterpret_cast<const float4 *>(row + channel * 4)
                            : four_of_16(*reinterpret_cast<const uint2 *>(row + channel * 2), e);
}

__device__ float largest_size(float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); }

/* What this warp and lane have of the queries: columns warp, warp + 4 ..., channels 4 lane .. and 128 further. All are
 * under way before one is used; columns that nobody has are zero, whatever lies there. */
template <class S, int EACH, int FOURS>
__device__ void load_queries(const arguments &p, const byte_memory<S> &m, int n_columns, const byte_place &at,
                             float4 (&x)[EACH][FOURS]) {
    int four = S::DIM < 128 ? at.lane % (S::DIM / 4) : at.lane;
    if (p.q.element == ELEMENT_F32) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[i][j] = reinterpret_cast<const float4 *>(m.queries + (at.warp + i * KEY_WARPS) *
                                                                           (S::DIM * 4 + 32))[four + 32 * j];
    } else {
        uint2 half[EACH][FOURS];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                half[i][j] = reinterpret_cast<const uint2 *>(m.queries + (at.warp + i * KEY_WARPS) *
                                                                             (S::DIM * 2 + 32))[four + 32 * j];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[i][j] = four_of_16(half[i][j], p.q.element);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            if (at.warp + i * KEY_WARPS >= n_columns || 4 * (at.lane + 32 * j) >= S::DIM)
                x[i][j] = {0, 0, 0, 0};
}

/* Queries as they came become the right operand, each times a power of two that makes its largest size 128 to 256;
 * query_factor undoes that. A warp takes every fourth. */
template <class S>
__device__ void place_queries(const arguments &p, const byte_memory<S> &m, int n_columns, const byte_place &at) {
    constexpr int FOURS = (S::DIM + 127) / 128;  // of a lane
    constexpr int EACH = S::COLUMNS / KEY_WARPS; // columns of a warp
    float4 x[EACH][FOURS];
    float by[EACH];
    load_queries<S>(p, m, n_columns, at, x);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int column = at.warp + i * KEY_WARPS;
        float most = 0;
#pragma unroll
        for (int j = 0; j < FOURS; j++)
            most = fmaxf(most, largest_size(x[i][j]));
        int exponent = (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(most)) >> 23);
        exponent = min(max(exponent, 30), 230);
        by[i] = __uint_as_float((uint32_t)(261 - exponent) << 23);
        if (at.lane == 0)
            m.query_factor[column] = __uint_as_float((uint32_t)(exponent - 7) << 23);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            int column = at.warp + i * KEY_WARPS, channel = 4 * (at.lane + 32 * j);
            float4 rest = {x[i][j].x * by[i], x[i][j].y * by[i], x[i][j].z * by[i], x[i][j].w * by[i]};
#pragma unroll
            for (int term = 0; term < S::QUERY_TERMS; term++) {
                int row = term * S::COLUMNS + column;
                uint32_t word = take_term(rest);
                int to = S::moved(channel);
                if (channel < S::DIM)
                    store_shared(m.query + (to / S::PANEL) * S::QUERY_ROWS * S::PANEL + row * S::PANEL +
                                     kv_swizzled(S::PANEL, row, to % S::PANEL),
                                 word);
            }
        }
    fence_bulk();
    threads_sync(1, S::COMPUTE); // the queries are there
}

} // namespace
