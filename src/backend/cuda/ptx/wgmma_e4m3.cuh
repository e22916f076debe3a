/* wgmma_e4m3.cuh - the products of a warpgroup from e4m3 operands: 64 rows by N columns by 32 (wgmma.cuh).
 *
 * A left operand in registers: thread 32w + 4g + t has rows 16w + g (a[0], a[2]) and 16w + g + 8 (a[1], a[3]); a[0],
 * a[1] are columns 4t .. 4t + 3, a[2], a[3] columns 16 more (load_matrices). Both operands have the contraction along
 * the row: of bytes there is no other way.
 *
 * The tensor core keeps 13 bits below the largest exponent of a sum and its terms (tests/cuda/e4m3_sums.cuh): sums of
 * many are to be cut, and the pieces added in float32. */
#pragma once

#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/value.h"

enum { E4M3_K = 32, E4M3_K_STEP = E4M3_K >> 4 }; // columns of a product, and what they are in an operand

/* An operand of rows of PANEL bytes, 128 or 64, swizzled as kv.cuh says, 8 of them aligned to their size, in two steps:
 * the lower half, to which offsets are added, and the whole. */
__device__ __forceinline__ uint32_t byte_rows_low(uint32_t address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }
template <int PANEL> __device__ __forceinline__ uint64_t byte_rows_at(uint32_t low) {
    uint64_t whole;
    asm("mov.b64 %0, {%1, %2};" : "=l"(whole) : "r"(low), "n"((PANEL * 8 >> 4) | (PANEL == 128 ? 1 : 2) << 30));
    return whole;
}

template <int N> struct e4m3_product; // N: a multiple of 8 up to 256

#define E4M3_PRODUCT(N, J, O0, O1, O2, O3, O4, O5)                                                                 \
    template <> struct e4m3_product<N> {                                                                           \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {      \
            WGMMA(N, J, "k32.f32.e4m3.e4m3", "+f", "%" #O0, "%" #O1, "%" #O2, ", 1, 1", "l"(a), "l"(b), "r"(add)); \
        }                                                                                                          \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,     \
                                                        int add) {                                                 \
            WGMMA(N, J, "k32.f32.e4m3.e4m3", "+f", "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}", "%" #O4, "%" #O5,   \
                  ", 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                         \
        }                                                                                                          \
    };
WGMMA_SIZES(E4M3_PRODUCT)
#undef E4M3_PRODUCT
