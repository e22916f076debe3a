/* nibbles.cuh - words of eight 4-bit codes, in an order of bits that few instructions turn into pairs of float16.
 *
 * e2m1 (sign, two bits of exponent, one of fraction): shifted to the sign, the lowest two bits of the exponent and the
 * highest of the fraction of a float16, a code is its value times 2^-14, exactly, zeros and subnormals too. So
 * a column's sign and its other three bits lie apart:
 *
 *     column       0       1       2      3       4       5       6      7
 *     sign         15      31      7      23      8       24      0      16
 *     others       11..9   27..25  3..1   19..17  14..12  30..28  6..4   22..20
 *
 * Nine instructions for eight columns. A caller multiplies by the scale of the columns, times 2^14.
 *
 * A block is what 16 rows have of 64 columns, as m16n8k16 takes it as the first operand: lane 4r + q has 16 bytes, two
 * words of row r and two of row r + 8, of columns 16q to 16q + 15. Behind those 512 bytes lie the scales, row r's
 * beside row r + 8's, so that a lane loads both at once (weights/blocks.h). */
#pragma once

#include <cuda_fp16.h>
#include <stdint.h>

/* The code of a column of eight in its place. */
__host__ __device__ constexpr uint32_t e2m1_in_word(uint32_t code, int column) {
    int high = column % 2 * 16;
    switch (column / 2) {
    case 0: return (code >> 3 << 15 | (code & 7) << 9) << high;
    case 1: return (code >> 3 << 7 | (code & 7) << 1) << high;
    case 2: return (code >> 3 << 8 | (code & 7) << 12) << high;
    default: return (code >> 3 | (code & 7) << 4) << high;
    }
}

/* Columns 0 to 3, and 4 to 7, of a word as pairs of float16, times 2^-14. */
static __device__ __forceinline__ void e2m1_to_pairs_low(uint32_t word, uint32_t &first, uint32_t &second) {
    first = word & 0x8e008e00u;
    second = word << 8 & 0x8e008e00u;
}
static __device__ __forceinline__ void e2m1_to_pairs_high(uint32_t word, uint32_t &first, uint32_t &second) {
    uint32_t bytes; // word >> 3 & 0x7f7f7f7f | word << 7 & 0x80808080, which becomes two instructions by itself
    asm("lop3.b32 %0, %1, %2, 0x80808080, 0xd8;" : "=r"(bytes) : "r"(word >> 3), "r"(word << 7));
    first = bytes & 0x8e008e00u;
    second = bytes << 8 & 0x8e008e00u;
}

static __device__ __forceinline__ uint32_t multiply_pair(uint32_t pair, uint32_t by) {
    __half2 product = __hmul2(reinterpret_cast<__half2 &>(pair), reinterpret_cast<__half2 &>(by));
    return reinterpret_cast<uint32_t &>(product);
}
