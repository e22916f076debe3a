/* nibbles_int4.cuh - words of eight unsigned 4-bit codes, as nibbles.cuh has e2m1: few instructions turn one into four
 * pairs of float16, less a zero point, exactly.
 *
 *     column    0      1       2      3       4      5       6       7
 *     bits      3..0   19..16  11..8  27..24  7..4   23..20  15..12  31..28
 *
 * A code in the lowest bits of the fraction of 1024 is 1024 + q, four bits higher 1024 + 16 q; a zero point is taken
 * off in the same step as the rest. */
#pragma once

#include <cuda_fp16.h>
#include <stdint.h>

/* The code of a column of eight in its place. */
__host__ __device__ constexpr uint32_t int4_in_word(uint32_t code, int column) {
    return code << (column % 2 * 16 + (column / 2 % 2) * 8 + column / 4 * 4);
}

/* Zero points of two rows, a byte each, as both kinds of codes want them: a pair of 1024 + z, and one of 64 + z. */
struct int4_zeros {
    uint32_t low, high;
};
static __device__ __forceinline__ int4_zeros int4_zeros_of(uint32_t two) { // 0 to 63
    uint32_t low = __byte_perm(two, 0x64u, 0x4140), less = 0x63806380u;     // 960
    __half2 high = __hsub2(reinterpret_cast<__half2 &>(low), reinterpret_cast<__half2 &>(less));
    return {low, reinterpret_cast<uint32_t &>(high)};
}

/* word & mask | 0x64006400 as one instruction: of two constants the compiler makes two. */
static __device__ __forceinline__ uint32_t in_1024(uint32_t word, uint32_t mask) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "r"(0x64006400u));
    return v;
}
static __device__ __forceinline__ uint32_t int4_less_low(uint32_t word, uint32_t zero) {
    uint32_t v = in_1024(word, 0x000f000fu);
    __half2 is = __hsub2(reinterpret_cast<__half2 &>(v), reinterpret_cast<__half2 &>(zero));
    return reinterpret_cast<uint32_t &>(is);
}
static __device__ __forceinline__ uint32_t int4_less_high(uint32_t word, uint32_t zero) {
    uint32_t v = in_1024(word, 0x00f000f0u), sixteenth = 0x2c002c00u;
    __half2 is = __hfma2(reinterpret_cast<__half2 &>(v), reinterpret_cast<__half2 &>(sixteenth),
                         __hneg2(reinterpret_cast<__half2 &>(zero)));
    return reinterpret_cast<uint32_t &>(is);
}
