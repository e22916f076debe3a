/* wgmma_int8.cuh - the products of a warpgroup from int8 operands in shared memory: 64 rows by N columns by 32, sums in
 * int32 registers (wgmma.cuh). Sums are exact while they fit. */
#pragma once

#include "backend/cuda/ptx/wgmma.cuh"

enum { INT8_K = 32 }; // columns of a product

template <int N> struct int8_product; // N: 8, 24 or a multiple of 16, up to 256

#define INT8_PRODUCT(N, J, O0, O1, O2, O3, O4, O5)                                                          \
    template <> struct int8_product<N> {                                                                    \
        static __device__ __forceinline__ void multiply(int (&d)[N / 2], uint64_t a, uint64_t b, int add) { \
            WGMMA(N, J, "k32.s32.s8.s8", "+r", "%" #O0, "%" #O1, "%" #O2, "", "l"(a), "l"(b), "r"(add));    \
        }                                                                                                   \
    };
WGMMA_SIZES(INT8_PRODUCT)
#undef INT8_PRODUCT
