/* decode_prep_rows.cuh - of decode_prep.cuh: half a warp and a row of a query, key or value: norm, weights, angles. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/attention/decode/attention_decode.h"
#include "backend/cuda/attention/decode/decode_bytes.cuh"
#include "backend/cuda/attention/decode/decode_feed.cuh"
#include "backend/cuda/ptx/late.cuh"
#include "backend/cuda/value.h"

namespace {

/* What the telling warp makes of a pair. */
template <class S> struct alignas(16) fresh_rows {
    char row[2][S::DIM]; // key and value as the cache has them, not swizzled
    float scale[2];
    float factor; // of unscaled products
};

template <class S> struct prep_memory {
    fresh_rows<S> *fresh; // [2], of tasks
    float *angles;        // [DIM]
    uint32_t fresh_full;  // [2]

    __device__ explicit prep_memory(const byte_memory<S> &m) {
        char *at = reinterpret_cast<char *>(m.query_factor + S::COLUMNS);
        at += (16 - (shared_address(at) & 15)) % 16;
        fresh = reinterpret_cast<fresh_rows<S> *>(at);
        angles = reinterpret_cast<float *>(fresh + 2);
        fresh_full = shared_address(angles + S::DIM);
    }
};

/* Whether the part ends with its sequence's new token. */
__device__ inline bool has_newest(const dpart &part) { return part.end > part.position; }

// ---- half a warp and a row ----------------------------------------------------------------------------------------

__device__ inline float4 operator*(float4 a, float4 b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
__device__ inline float4 operator*(float4 a, float b) { return {a.x * b, a.y * b, a.z * b, a.w * b}; }
__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ inline float4 operator+(float4 a, float b) { return {a.x + b, a.y + b, a.z + b, a.w + b}; }
__device__ inline float4 operator-(float4 a, float4 b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
__device__ inline float sum_of(float4 a) { return (a.x + a.y) + (a.z + a.w); }

/* Bits of the largest size: what is not a number is above all. */
template <int FOURS> __device__ uint32_t largest_of_half(const float4 (&x)[FOURS]) {
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < FOURS; j++)
        most = max(max(most, max(size_bits(x[j].x), size_bits(x[j].y))), max(size_bits(x[j].z), size_bits(x[j].w)));
    for (int step = 8; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

/* What the norm multiplies a row by. */
template <class S, int FOURS> __device__ float norm_of_half(const float4 (&x)[FOURS], float eps) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < FOURS; j++)
        sum += sum_of(x[j] * x[j]);
    for (int step = 8; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return rsqrtf(sum * (1.0f / S::DIM) + eps);
}

template <int FOURS> __device__ void load_fours(const float *from, int l, float4 (&x)[FOURS]) {
#pragma unroll
    for (int j = 0; j < FOURS; j++)
        x[j] = *reinterpret_cast<const float4 *>(from + 64 * j + 4 * l);
}

/* What does not depend on the token: of unscaled products the scales and biases from column col. */
template <class S> struct row_weights {
    static constexpr int FOURS = S::DIM / 64;
    float4 scale[FOURS], bias[FOURS];

    __device__ void load(const dmat &x, int col, int l) {
        if (x.col_scale)
            load_fours(x.col_scale + col, l, scale);
        if (x.col_scale && x.bias)
            load_fours(x.bias + col, l, bias);
    }
    /* What elements of a row mean; factor: of unscaled products, the row's scale. */
    __device__ void apply(const dmat &m, float factor, float4 (&x)[FOURS]) const {
        if (m.col_scale)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[j] = x[j] * (scale[j] * factor);
        if (m.col_scale && m.bias)
#pragma unroll
            for (int j = 0; j < FOURS; j++)
                x[j] = x[j] + bias[j];
    }
};

template <class S> struct row_angles {
    static constexpr int HALF = S::DIM / 128;
    float4 cosine[HALF], sine[HALF];

    __device__ void load(const float *cos_sin, int l) { // of the token
        load_fours(cos_sin, l, cosine);
        load_fours(cos_sin + S::DIM / 2, l, sine);
    }
    __device__ void turn(float4 (&x)[2 * HALF]) const {
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            float4 first = x[j], second = x[j + HALF];
            x[j] = first * cosine[j] - second * sine[j];
            x[j + HALF] = second * cosine[j] + first * sine[j];
        }
    }
};

} // namespace
