/* wgmma_halves.cuh - the products of a warpgroup from operands of 16 bits: 64 rows by N columns by 16 (wgmma.cuh).
 *
 * A left operand in registers is laid out as sums are: a[0] row g and a[1] row g + 8 of columns 2t, 2t + 1; a[2], a[3]
 * columns + 8. So sums, rounded to pairs, are the next product's left operand. */
#pragma once

#include "backend/cuda/ptx/wgmma.cuh"

enum { HALVES_K = 16 }; // columns of a product

template <int N, bool BF16> struct halves_product; // N: a multiple of 8 up to 256

#define HALVES_PRODUCT_OF(N, J, BF16, TYPES, O0, O1, O2, O3, O4, O5)                                                   \
    template <> struct halves_product<N, BF16> {                                                                       \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {          \
            WGMMA(N, J, TYPES, "+f", "%" #O0, "%" #O1, "%" #O2, ", 1, 1, 0, 0", "l"(a), "l"(b), "r"(add));             \
        }                                                                                                              \
        /* d += a b^T */                                                                                               \
        static __device__ __forceinline__ void add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {            \
            WGMMA(N, J, TYPES, "+f", "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}", "%" #O4, "1", ", 1, 1, 0", "r"(a[0]), \
                  "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                            \
        }                                                                                                              \
        /* Likewise, or, where not add, d = a b^T. */                                                                  \
        static __device__ __forceinline__ void add_or_put(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,       \
                                                          int add) {                                                   \
            WGMMA(N, J, TYPES, "+f", "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}", "%" #O4, "%" #O5, ", 1, 1, 0",        \
                  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                       \
        }                                                                                                              \
        /* d += a b, b turned */                                                                                       \
        static __device__ __forceinline__ void add_turned(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {     \
            WGMMA(N, J, TYPES, "+f", "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}", "%" #O4, "1", ", 1, 1, 1", "r"(a[0]), \
                  "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                            \
        }                                                                                                              \
    };
#define HALVES_PRODUCT(N, J, O0, O1, O2, O3, O4, O5)                          \
    HALVES_PRODUCT_OF(N, J, false, "k16.f32.f16.f16", O0, O1, O2, O3, O4, O5) \
    HALVES_PRODUCT_OF(N, J, true, "k16.f32.bf16.bf16", O0, O1, O2, O3, O4, O5)
WGMMA_SIZES(HALVES_PRODUCT)
#undef HALVES_PRODUCT
#undef HALVES_PRODUCT_OF
