/* mma.cuh - single instructions that kernels (attention, gemv.cu, the experts) are made of: matrices from shared
 * memory, and products of 16 x 8 x 16.
 *
 * Fragments, with g = lane / 4 and t = lane % 4 (PTX manual, mma.m16n8k16):
 *     A [16, 16]  a[0]: row g, columns 2t, 2t+1; a[1]: row g + 8, the same; a[2], a[3]: the same rows, columns + 8
 *     B [16, 8]   b[0]: rows 2t, 2t+1, column g; b[1]: rows + 8
 *     C [16, 8]   c[0], c[1]: row g, columns 2t, 2t+1; c[2], c[3]: row g + 8 */
#pragma once

#include "backend/cuda/ptx/arch.cuh"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/value.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* As threads_sync, and whether any of them came with `x`. */
__device__ __forceinline__ bool threads_any(int barrier, int n_threads, bool x) {
    uint32_t any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 q, %3, 0;\nbar.red.or.pred p, %1, %2, q;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(any)
                 : "r"(barrier), "r"(n_threads), "r"((uint32_t)x)
                 : "memory");
    return any;
}

/* Words of shared memory, by their addresses there; 16 bytes are aligned. */
__device__ __forceinline__ void store_shared(uint32_t at, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

// ---- matrices ---------------------------------------------------------------------------------------------------

__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}
/* The other way: lane l tells where row l % 8 of matrix l / 8 goes. */
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&m)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ uint32_t turn_matrix(uint32_t m) {
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(m));
    return turned;
}

template <bool BF16>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
            "%1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
            "%2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two floats as a pair of 16 bits, the first in the low half. */
template <bool BF16> __device__ __forceinline__ uint32_t to_pair(float low, float high) {
    uint32_t pair;
    if (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* What rounding them to this pair of bfloat16 has left of two floats, as such a pair too: both together have 16 bits of
 * fraction. */
__device__ __forceinline__ uint32_t rest_of_pair(float low, float high, uint32_t pair) {
    return to_pair<true>(low - __uint_as_float(pair << 16), high - __uint_as_float(pair & 0xffff0000u));
}

__device__ __forceinline__ float exp2_fast(float x) { // 2 units in the last place; 2^-inf is 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- 8 bits and 16 ----------------------------------------------------------------------------------------------

/* Two floats, or two pairs of float16, as e4m3, the first in the lowest byte: to nearest, what is too large as 448. */
__device__ __forceinline__ uint16_t e4m3_of_floats(float low, float high) {
#if GYRE_HOPPER
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
#else
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
#endif
}
__device__ __forceinline__ uint16_t e4m3_of_pair(uint32_t pair) {
#if GYRE_HOPPER
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(two) : "r"(pair));
    return two;
#else
    return __nv_cvt_halfraw2_to_fp8x2(reinterpret_cast<__half2_raw &>(pair), __NV_SATFINITE, __NV_E4M3);
#endif
}
__device__ __forceinline__ uint32_t e4m3_of_pairs(uint32_t low, uint32_t high) {
    return e4m3_of_pair(low) | (uint32_t)e4m3_of_pair(high) << 16;
}

/* A pair of 16 bits times a power of two. What is not a number stays so. */
template <bool BF16> __device__ __forceinline__ uint16_t e4m3_of_scaled_pair(uint32_t pair, float factor) {
    if (BF16)
        return e4m3_of_floats(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
    __half2 scaled = __hmul2(reinterpret_cast<__half2 &>(pair), __float2half2_rn(factor));
    return e4m3_of_pair(reinterpret_cast<uint32_t &>(scaled));
}
/* Whether eight elements of a static qact tell what they were made of (launch_requantise). */
__device__ __forceinline__ bool qact_tells(uint2 elements) {
    const uint32_t EXPONENTS = 0x78787878u, FROM_1_8 = 0x60606060u, ONE = 0x08080808u,
                   CARRIED = 0x80808080u; // 1/8: an exponent of 4, 256: of 15
    uint32_t beyond = ((elements.x & EXPONENTS) + ONE | (elements.y & EXPONENTS) + ONE) & CARRIED;
    return ((elements.x | elements.y) & FROM_1_8) != 0 && beyond == 0;
}
/* Whether a kernel can write this qact beside 16 bits: its factor, 1 / static_scale, is exact in half precision. */
inline bool is_static_qact(const dmat &qact) {
    return (uintptr_t)qact.at % 8 == 0 && qact.stride % 8 == 0 && qact.static_scale >= 0x1p-15f &&
           qact.static_scale <= 0x1p15f;
}

/* Two e4m3 as a pair of float16. */
__device__ __forceinline__ uint32_t e4m3_to_pair(uint16_t two) {
#if GYRE_HOPPER
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(two));
    return pair;
#else
    __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);
    return reinterpret_cast<uint32_t &>(pair);
#endif
}

/* The e4m3 in the low, then the high half of `fours` as pairs of float16. */
__device__ __forceinline__ void e4m3_to_pairs(uint32_t fours, uint32_t &low, uint32_t &high) {
#if GYRE_HOPPER
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(low), "=r"(high)
        : "r"(fours));
#else
    low = e4m3_to_pair((uint16_t)fours), high = e4m3_to_pair((uint16_t)(fours >> 16));
#endif
}

/* Likewise int8: 1024 + 128 + x is the float16 of bits 0x6400 + (x ^ 0x80), exactly. */
__device__ __forceinline__ void int8_to_pairs(uint32_t fours, uint32_t &low, uint32_t &high) {
    uint32_t biased = fours ^ 0x80808080u, offset = 0x64806480u;
    low = __byte_perm(biased, 0x64u, 0x4140);
    high = __byte_perm(biased, 0x64u, 0x4342);
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(low) : "r"(offset));
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(high) : "r"(offset));
}
