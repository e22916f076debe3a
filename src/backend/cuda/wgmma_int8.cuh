/* wgmma_int8.cuh - products of a warpgroup (128 threads) of int8 by int8 in shared memory: 64 rows by N columns by 32, sums in int32 registers.
 *
 *     d (+)= a b^T        operands and d as in wgmma_e4m3.cuh. Sums are exact while they fit. */
#pragma once

#include "backend/cuda/wgmma_e4m3.cuh"

enum { INT8_K = 32, INT8_K_STEP = INT8_K >> 4 }; // columns of a product, and what they are in an operand

template <int N> struct int8_product; // N: a power of two from 8 on, or 192

#define INT8_FOUR(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define INT8_16(i) INT8_FOUR(i), INT8_FOUR(i + 4), INT8_FOUR(i + 8), INT8_FOUR(i + 12)
#define INT8_R_1 INT8_FOUR(0)
#define INT8_R_2 INT8_R_1, INT8_FOUR(4)
#define INT8_R_4 INT8_16(0)
#define INT8_R_8 INT8_R_4, INT8_16(16)
#define INT8_R_16 INT8_R_8, INT8_16(32), INT8_16(48)
#define INT8_R_24 INT8_R_16, INT8_16(64), INT8_16(80)
#define INT8_R_32 INT8_R_24, INT8_16(96), INT8_16(112)

// clang-format off
#define INT8_PRODUCT(N, J, A, B, ADD)                                                                                   \
    template <> struct int8_product<N> {                                                                                \
        static __device__ __forceinline__ void multiply(int (&d)[N / 2], uint64_t a, uint64_t b, int add) {             \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" E4M3_D_##J "}, " A ", " B ", p;\n}"    \
                         : INT8_R_##J : "l"(a), "l"(b), "r"(add));                                                       \
        }                                                                                                               \
    }
// clang-format on

INT8_PRODUCT(8, 1, "%4", "%5", "%6");
INT8_PRODUCT(16, 2, "%8", "%9", "%10");
INT8_PRODUCT(32, 4, "%16", "%17", "%18");
INT8_PRODUCT(64, 8, "%32", "%33", "%34");
INT8_PRODUCT(128, 16, "%64", "%65", "%66");
INT8_PRODUCT(192, 24, "%96", "%97", "%98");
INT8_PRODUCT(256, 32, "%128", "%129", "%130");

#undef INT8_PRODUCT
#undef INT8_R_32
#undef INT8_R_24
#undef INT8_R_16
#undef INT8_R_8
#undef INT8_R_4
#undef INT8_R_2
#undef INT8_R_1
#undef INT8_16
#undef INT8_FOUR
