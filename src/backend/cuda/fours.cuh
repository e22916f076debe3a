/* fours.cuh - four neighbouring columns at a time: 16 bytes of float32, 8 of half precision, 4 of e4m3, and a row's e4m3 twin.
 *
 * A twin is what ELEMENT_E4M3 says in kernels.h: scale[row] = the row's largest size / 448, elements value / scale[row], rounded to
 * nearest. A row of zeros has scale 0. NaN stays NaN, in the element and in nothing else. */
#pragma once

#include "backend/cuda/device.cuh"

#include <cuda_fp8.h>

__device__ inline float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ inline float4 operator+(float4 a, float b) { return make_float4(a.x + b, a.y + b, a.z + b, a.w + b); }
__device__ inline float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
__device__ inline float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w); }
__device__ inline float largest(float4 a) { return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w))); }

__device__ inline float4 silu(float4 x) { return make_float4(silu(x.x), silu(x.y), silu(x.z), silu(x.w)); }

/* How four elements lie in registers as loaded, so that many loads can be under way before the first is looked at. */
template <element E> struct four_of { typedef uint2 stored; };
template <> struct four_of<ELEMENT_F32> { typedef float4 stored; };

template <element E> __device__ inline typename four_of<E>::stored load_four(const dmat &m, int64_t row, int col) {
    const char *at = static_cast<const char *>(m.at) + (row * m.stride + col) * (E == ELEMENT_F32 ? 4 : 2);
    return *reinterpret_cast<const typename four_of<E>::stored *>(at);
}

template <element E> __device__ inline float4 floats_of(typename four_of<E>::stored x) {
    if constexpr (E == ELEMENT_F32) {
        return x;
    } else if constexpr (E == ELEMENT_F16) {
        float2 low = __half22float2(reinterpret_cast<__half2 &>(x.x)), high = __half22float2(reinterpret_cast<__half2 &>(x.y));
        return make_float4(low.x, low.y, high.x, high.y);
    } else {
        return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                           __uint_as_float(x.y & 0xffff0000u));
    }
}

/* Eight at once, in 16 bytes of half precision or twice that of float32. */
template <element E> struct eight_of { typename four_of<E>::stored low, high; };
template <element E> __device__ inline eight_of<E> load_eight(const dmat &m, int64_t row, int col) {
    if constexpr (E == ELEMENT_F32)
        return {load_four<E>(m, row, col), load_four<E>(m, row, col + 4)};
    uint4 all = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(m.at) + row * m.stride + col);
    eight_of<E> out;
    reinterpret_cast<uint2 &>(out.low) = make_uint2(all.x, all.y);
    reinterpret_cast<uint2 &>(out.high) = make_uint2(all.z, all.w);
    return out;
}

/* The same where the element is known at run time alone. */
__device__ inline float4 load_four(const dmat &m, int64_t row, int col) {
    switch (m.element) {
    case ELEMENT_F32: return load_four<ELEMENT_F32>(m, row, col);
    case ELEMENT_F16: return floats_of<ELEMENT_F16>(load_four<ELEMENT_F16>(m, row, col));
    default: return floats_of<ELEMENT_BF16>(load_four<ELEMENT_BF16>(m, row, col));
    }
}

__device__ inline void store_four(const dmat &m, int64_t row, int col, float4 x) {
    int64_t i = row * m.stride + col;
    if (m.element == ELEMENT_F32) {
        *reinterpret_cast<float4 *>(static_cast<float *>(m.at) + i) = x;
    } else if (m.element == ELEMENT_F16) {
        __half2 pair[2] = {__halves2half2(to_half(x.x), to_half(x.y)), __halves2half2(to_half(x.z), to_half(x.w))};
        *reinterpret_cast<uint2 *>(static_cast<__half *>(m.at) + i) = reinterpret_cast<uint2 &>(pair);
    } else {
        __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w)};
        *reinterpret_cast<uint2 *>(static_cast<__nv_bfloat16 *>(m.at) + i) = reinterpret_cast<uint2 &>(pair);
    }
}

/* Four raw products as values; `factor` is RAW_UNIT times the row's scale. */
__device__ inline float4 scaled_four(const dmat &raw, int col, float factor, float4 x) {
    x = x * (*reinterpret_cast<const float4 *>(raw.col_scale + col) * factor);
    return raw.bias ? x + *reinterpret_cast<const float4 *>(raw.bias + col) : x;
}

/* Four as they were loaded, as values. */
template <element E> __device__ inline float4 values_of(const dmat &m, int64_t row, int col, typename four_of<E>::stored x) {
    float4 v = floats_of<E>(x);
    if constexpr (E == ELEMENT_F16)
        return m.col_scale ? scaled_four(m, col, RAW_UNIT * m.row_scale[row], v) : v;
    return v;
}

/* Whether fours of a value lie as their loads want them. */
inline bool lies_in_fours(const dmat &m) {
    uintptr_t four_bytes = m.element == ELEMENT_F32 ? 16 : m.element == ELEMENT_E4M3 ? 4 : 8;
    return !m.at || (m.width % 4 == 0 && m.stride % 4 == 0 && (uintptr_t)m.at % four_bytes == 0);
}

inline bool lies_in_eights(const dmat &m) { return !m.at || (m.width % 8 == 0 && m.stride % 8 == 0 && (uintptr_t)m.at % 16 == 0); }

// ---- twins ------------------------------------------------------------------------------------------------------

__device__ inline float e4m3_scale(float largest) { return largest / 448.0f; }
__device__ inline float e4m3_inverse(float largest) { return largest > 0 ? 448.0f / largest : 0.0f; }

/* x: values times the row's e4m3_inverse. */
__device__ inline void store_e4m3(const dmat &twin, int64_t row, int col, float4 x) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x.x, x.y), __NV_SATFINITE, __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x.z, x.w), __NV_SATFINITE, __NV_E4M3);
    *reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(twin.at) + row * twin.stride + col) = low | high << 16;
}
__device__ inline void store_e4m3(const dmat &twin, int64_t row, int col, float x) {
    static_cast<uint8_t *>(twin.at)[row * twin.stride + col] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// ---- reductions with one barrier --------------------------------------------------------------------------------

__device__ inline float2 join_sum_max(float2 a, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        a.x += __shfl_xor_sync(0xffffffffu, a.x, step);
        a.y = fmaxf(a.y, __shfl_xor_sync(0xffffffffu, a.y, step));
    }
    return a;
}

/* Sum of x and largest of y (>= 0) over the block, known to every thread. `shared` is used once. */
__device__ inline float2 block_sum_max(float2 mine, float2 *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = (blockDim.x + 31) / 32;
    mine = join_sum_max(mine, 32);
    if (lane == 0)
        shared[warp] = mine;
    __syncthreads(); // every warp's share is there
    if (n_warps <= 8)
        return join_sum_max(lane % 8 < n_warps ? shared[lane % 8] : make_float2(0, 0), 8);
    return join_sum_max(lane < n_warps ? shared[lane] : make_float2(0, 0), 32);
}
