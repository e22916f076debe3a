/* wgmma_halves.cuh - the products of a warpgroup (128 threads) from operands of 16 bits in shared memory: 64 rows by N columns by 16.
 *
 *     d (+)= a b^T        a: 64 rows, b: N rows, of 16 elements; operands and d as in wgmma_e4m3.cuh, the next 16 columns + HALVES_K_STEP */
#pragma once

#include "backend/cuda/wgmma_e4m3.cuh"

enum { HALVES_K = 16, HALVES_K_STEP = HALVES_K * 2 >> 4 }; // columns of a product, and what they are in an operand

template <int N, bool BF16> struct halves_product; // N: a multiple of 8 up to 256

// clang-format off
#define HALVES_PRODUCT_OF(N, J, BF16, TYPE, A, B, ADD)                                                                       \
    template <> struct halves_product<N, BF16> {                                                                         \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {            \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" E4M3_D_##J "}, " A ", " B ", p, 1, 1, 0, 0;\n}" \
                         : E4M3_R_##J : "l"(a), "l"(b), "r"(add));                                                            \
        }                                                                                                                \
    }
#define HALVES_PRODUCT(N, J, A, B, ADD) HALVES_PRODUCT_OF(N, J, false, "f16", A, B, ADD); HALVES_PRODUCT_OF(N, J, true, "bf16", A, B, ADD)
// clang-format on

HALVES_PRODUCT(8, 1, "%4", "%5", "%6");
HALVES_PRODUCT(16, 2, "%8", "%9", "%10");
HALVES_PRODUCT(32, 4, "%16", "%17", "%18");
HALVES_PRODUCT(64, 8, "%32", "%33", "%34");
HALVES_PRODUCT(128, 16, "%64", "%65", "%66");
HALVES_PRODUCT(192, 24, "%96", "%97", "%98");
HALVES_PRODUCT(256, 32, "%128", "%129", "%130");

#undef HALVES_PRODUCT
#undef HALVES_PRODUCT_OF
