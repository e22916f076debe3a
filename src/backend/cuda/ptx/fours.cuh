/* fours.cuh - four neighbouring columns at a time: 16 bytes of float32, 8 of half precision, 4 of e4m3, and a row's
 * e4m3 qact.
 *
 * A qact is what ELEMENT_E4M3 says in value.h: scale[row] = the row's largest size / E4M3_FULL, or a power of two where
 * a static scale is known (launch_requantise), elements value / scale[row], rounded to nearest. NaN stays NaN, in the
 * element and in nothing else. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/qact/quantise.h"
#include "backend/cuda/value.h"

#include <cuda_fp8.h>

__device__ inline float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ inline float4 operator+(float4 a, float b) { return make_float4(a.x + b, a.y + b, a.z + b, a.w + b); }
__device__ inline float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ inline float4 operator*(float4 a, float b) { return make_float4(a.x * b, a.y * b, a.z * b, a.w * b); }
__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w); }
__device__ inline float largest(float4 a) {
    return fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(a.z), fabsf(a.w)));
}

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
        float2 low = __half22float2(reinterpret_cast<__half2 &>(x.x)),
               high = __half22float2(reinterpret_cast<__half2 &>(x.y));
        return make_float4(low.x, low.y, high.x, high.y);
    } else {
        return make_float4(__uint_as_float(x.x << 16), __uint_as_float(x.x & 0xffff0000u), __uint_as_float(x.y << 16),
                           __uint_as_float(x.y & 0xffff0000u));
    }
}

/* The same where the element is known at run time alone. */
__device__ inline float4 load_four(const dmat &m, int64_t row, int col) {
    switch (m.element) {
    case ELEMENT_F32: return load_four<ELEMENT_F32>(m, row, col);
    case ELEMENT_F16: return floats_of<ELEMENT_F16>(load_four<ELEMENT_F16>(m, row, col));
    default: return floats_of<ELEMENT_BF16>(load_four<ELEMENT_BF16>(m, row, col));
    }
}

template <element E> __device__ inline typename four_of<E>::stored stored_of(float4 x) {
    if constexpr (E == ELEMENT_F32) {
        return x;
    } else if constexpr (E == ELEMENT_F16) {
        return make_uint2(finite_halves(__floats2half2_rn(x.x, x.y)), finite_halves(__floats2half2_rn(x.z, x.w)));
    } else {
        __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y), high = __floats2bfloat162_rn(x.z, x.w);
        return make_uint2(reinterpret_cast<uint32_t &>(low), reinterpret_cast<uint32_t &>(high));
    }
}

template <element E> __device__ inline void store_four(const dmat &m, int64_t row, int col, float4 x) {
    char *at = static_cast<char *>(m.at) + (row * m.stride + col) * (E == ELEMENT_F32 ? 4 : 2);
    *reinterpret_cast<typename four_of<E>::stored *>(at) = stored_of<E>(x);
}

__device__ inline void store_four(const dmat &m, int64_t row, int col, float4 x) {
    switch (m.element) {
    case ELEMENT_F32: store_four<ELEMENT_F32>(m, row, col, x); break;
    case ELEMENT_F16: store_four<ELEMENT_F16>(m, row, col, x); break;
    default: store_four<ELEMENT_BF16>(m, row, col, x);
    }
}

/* Eight at once, in 16 bytes of half precision or twice that of float32. */
template <element E> struct eight_of { typename four_of<E>::stored low, high; };

template <element E> __device__ inline eight_of<E> load_eight(const dmat &m, int64_t row, int col) {
    if constexpr (E == ELEMENT_F32) {
        return {load_four<E>(m, row, col), load_four<E>(m, row, col + 4)};
    } else {
        uint4 all = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(m.at) + row * m.stride + col);
        return {make_uint2(all.x, all.y), make_uint2(all.z, all.w)};
    }
}

/* Of half precision. */
template <element E> __device__ inline void store_eight(const dmat &m, int64_t row, int col, const eight_of<E> &x) {
    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(m.at) + row * m.stride + col) =
        make_uint4(x.low.x, x.low.y, x.high.x, x.high.y);
}

/* Whether fours of a value lie as their loads want them. */
inline bool lies_in_fours(const dmat &m) {
    uintptr_t four_bytes = m.element == ELEMENT_F32 ? 16 : m.element == ELEMENT_E4M3 ? 4 : 8;
    return !m.at || (m.width % 4 == 0 && m.stride % 4 == 0 && (uintptr_t)m.at % four_bytes == 0);
}

inline bool lies_in_eights(const dmat &m) {
    return !m.at || (m.width % 8 == 0 && m.stride % 8 == 0 && (uintptr_t)m.at % 16 == 0);
}

// ---- qacts ------------------------------------------------------------------------------------------------------

/* As quantise.cu has it: a row of zeros has the smallest scale. */
__device__ inline float e4m3_scale(float largest) { return fmaxf(largest, 1e-30f) * (1.0f / E4M3_FULL); }
__device__ inline float e4m3_inverse(float largest) { return __fdividef(E4M3_FULL, fmaxf(largest, 1e-30f)); }

/* Whether a row with such a largest size may keep its static scale: neither clamped nor so small that subnormal
 * elements lose much. What is not a number may not. */
__device__ inline bool static_scale_fits(float largest, float static_scale) {
    return largest == 0 || (largest >= STATIC_LEAST * static_scale && largest <= STATIC_MOST * static_scale);
}

/* The scale of a row that its static scale does not fit: the least power of two for which the largest is E4M3_FULL at
 * most. */
__device__ inline float static_scale_else(float largest) {
    static_assert(E4M3_FULL == 1.75f * 16, "0x1fffff carries what is beyond 1.75");
    return __uint_as_float(__float_as_uint(fmaxf(largest, 1e-30f) / 16) + 0x1fffffu & 0xff800000u); // infinity stays so
}

__device__ inline uint32_t e4m3_of(float4 x) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x.x, x.y), __NV_SATFINITE, __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x.z, x.w), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

/* x: values times the row's e4m3_inverse. */
__device__ inline void store_e4m3(const dmat &qact, int64_t row, int col, float4 x) {
    *reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(qact.at) + row * qact.stride + col) = e4m3_of(x);
}
__device__ inline void store_e4m3(const dmat &qact, int64_t row, int col, float4 low, float4 high) {
    *reinterpret_cast<uint2 *>(static_cast<uint8_t *>(qact.at) + row * qact.stride + col) =
        make_uint2(e4m3_of(low), e4m3_of(high));
}
__device__ inline void store_e4m3(const dmat &qact, int64_t row, int col, float x) {
    static_cast<uint8_t *>(qact.at)[row * qact.stride + col] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
