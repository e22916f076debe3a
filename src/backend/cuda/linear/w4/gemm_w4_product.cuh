/* gemm_w4_product.cuh - the product of gemm_w4.cu and gemm_w4_many.cu: 64 rows of W by N tokens by 16 columns. */
#pragma once

#include "backend/cuda/ptx/wgmma.cuh"

/* d (+)= a b^T: a of a warpgroup's registers, b N rows in shared memory. */
template <int N> struct w4_product;
#define W4_PRODUCT(N, J, O0, O1, O2, O3, O4, O5)                                                               \
    template <> struct w4_product<N> {                                                                         \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, \
                                                        int add) {                                             \
            WGMMA(N, J, "k16.f32.f16.f16", "+f", "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}", "%" #O4, "%" #O5, \
                  ", 1, 1, 0", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                  \
        }                                                                                                      \
    };
WGMMA_SIZES(W4_PRODUCT)
#undef W4_PRODUCT
