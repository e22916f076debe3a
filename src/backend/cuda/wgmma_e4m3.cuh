/* wgmma_e4m3.cuh - the products of a warpgroup (128 threads) from e4m3 operands in shared memory: 64 rows by N columns by 32.
 *
 *     d (+)= a b^T        a: 64 rows, b: N rows, of 32 elements; d in float32 registers as wgmma.cuh draws it:
 *                         thread 32w + 4g + t has rows 16w + g (d[4j], d[4j + 1]) and 16w + g + 8 (d[4j + 2], d[4j + 3]) of columns
 *                         8j + 2t and 8j + 2t + 1
 *
 * Operands lie in rows of 128 bytes, 8 rows after another 1,024 bytes further, in the 128-byte swizzle that bulk copies of tensor maps
 * make: operand_rows (wgmma.cuh) of a stage whose address is a multiple of 1,024 describes its first 32 columns, and + 2 k those from 32 k on.
 * Around them go products_begin, products_commit and products_wait. The tensor core keeps sums to some 14 bits below the largest term. */
#pragma once

#include "backend/cuda/wgmma.cuh"

enum { E4M3_K = 32, E4M3_K_STEP = E4M3_K >> 4 }; // columns of a product, and what they are in an operand

template <int N> struct e4m3_product; // N: a multiple of 8 up to 256

// Registers of N = 8 j columns, as names and as operands.
#define E4M3_D_1 "%0, %1, %2, %3"
#define E4M3_D_2 E4M3_D_1 ", %4, %5, %6, %7"
#define E4M3_D_3 E4M3_D_2 ", %8, %9, %10, %11"
#define E4M3_D_4 E4M3_D_3 ", %12, %13, %14, %15"
#define E4M3_D_5 E4M3_D_4 ", %16, %17, %18, %19"
#define E4M3_D_6 E4M3_D_5 ", %20, %21, %22, %23"
#define E4M3_D_7 E4M3_D_6 ", %24, %25, %26, %27"
#define E4M3_D_8 E4M3_D_7 ", %28, %29, %30, %31"
#define E4M3_D_9 E4M3_D_8 ", %32, %33, %34, %35"
#define E4M3_D_10 E4M3_D_9 ", %36, %37, %38, %39"
#define E4M3_D_11 E4M3_D_10 ", %40, %41, %42, %43"
#define E4M3_D_12 E4M3_D_11 ", %44, %45, %46, %47"
#define E4M3_D_13 E4M3_D_12 ", %48, %49, %50, %51"
#define E4M3_D_14 E4M3_D_13 ", %52, %53, %54, %55"
#define E4M3_D_15 E4M3_D_14 ", %56, %57, %58, %59"
#define E4M3_D_16 E4M3_D_15 ", %60, %61, %62, %63"
#define E4M3_D_17 E4M3_D_16 ", %64, %65, %66, %67"
#define E4M3_D_18 E4M3_D_17 ", %68, %69, %70, %71"
#define E4M3_D_19 E4M3_D_18 ", %72, %73, %74, %75"
#define E4M3_D_20 E4M3_D_19 ", %76, %77, %78, %79"
#define E4M3_D_21 E4M3_D_20 ", %80, %81, %82, %83"
#define E4M3_D_22 E4M3_D_21 ", %84, %85, %86, %87"
#define E4M3_D_23 E4M3_D_22 ", %88, %89, %90, %91"
#define E4M3_D_24 E4M3_D_23 ", %92, %93, %94, %95"
#define E4M3_D_25 E4M3_D_24 ", %96, %97, %98, %99"
#define E4M3_D_26 E4M3_D_25 ", %100, %101, %102, %103"
#define E4M3_D_27 E4M3_D_26 ", %104, %105, %106, %107"
#define E4M3_D_28 E4M3_D_27 ", %108, %109, %110, %111"
#define E4M3_D_29 E4M3_D_28 ", %112, %113, %114, %115"
#define E4M3_D_30 E4M3_D_29 ", %116, %117, %118, %119"
#define E4M3_D_31 E4M3_D_30 ", %120, %121, %122, %123"
#define E4M3_D_32 E4M3_D_31 ", %124, %125, %126, %127"
#define E4M3_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define E4M3_R_1 E4M3_FOUR(0)
#define E4M3_R_2 E4M3_R_1, E4M3_FOUR(4)
#define E4M3_R_3 E4M3_R_2, E4M3_FOUR(8)
#define E4M3_R_4 E4M3_R_3, E4M3_FOUR(12)
#define E4M3_R_5 E4M3_R_4, E4M3_FOUR(16)
#define E4M3_R_6 E4M3_R_5, E4M3_FOUR(20)
#define E4M3_R_7 E4M3_R_6, E4M3_FOUR(24)
#define E4M3_R_8 E4M3_R_7, E4M3_FOUR(28)
#define E4M3_R_9 E4M3_R_8, E4M3_FOUR(32)
#define E4M3_R_10 E4M3_R_9, E4M3_FOUR(36)
#define E4M3_R_11 E4M3_R_10, E4M3_FOUR(40)
#define E4M3_R_12 E4M3_R_11, E4M3_FOUR(44)
#define E4M3_R_13 E4M3_R_12, E4M3_FOUR(48)
#define E4M3_R_14 E4M3_R_13, E4M3_FOUR(52)
#define E4M3_R_15 E4M3_R_14, E4M3_FOUR(56)
#define E4M3_R_16 E4M3_R_15, E4M3_FOUR(60)
#define E4M3_R_17 E4M3_R_16, E4M3_FOUR(64)
#define E4M3_R_18 E4M3_R_17, E4M3_FOUR(68)
#define E4M3_R_19 E4M3_R_18, E4M3_FOUR(72)
#define E4M3_R_20 E4M3_R_19, E4M3_FOUR(76)
#define E4M3_R_21 E4M3_R_20, E4M3_FOUR(80)
#define E4M3_R_22 E4M3_R_21, E4M3_FOUR(84)
#define E4M3_R_23 E4M3_R_22, E4M3_FOUR(88)
#define E4M3_R_24 E4M3_R_23, E4M3_FOUR(92)
#define E4M3_R_25 E4M3_R_24, E4M3_FOUR(96)
#define E4M3_R_26 E4M3_R_25, E4M3_FOUR(100)
#define E4M3_R_27 E4M3_R_26, E4M3_FOUR(104)
#define E4M3_R_28 E4M3_R_27, E4M3_FOUR(108)
#define E4M3_R_29 E4M3_R_28, E4M3_FOUR(112)
#define E4M3_R_30 E4M3_R_29, E4M3_FOUR(116)
#define E4M3_R_31 E4M3_R_30, E4M3_FOUR(120)
#define E4M3_R_32 E4M3_R_31, E4M3_FOUR(124)

// clang-format off
#define E4M3_PRODUCT(N, J, A, B, ADD)                                                                                    \
    template <> struct e4m3_product<N> {                                                                                 \
        static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {            \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" E4M3_D_##J "}, " A ", " B ", p, 1, 1;\n}" \
                         : E4M3_R_##J : "l"(a), "l"(b), "r"(add));                                                            \
        }                                                                                                                \
    }

/* The same with a in registers: of 16 bytes by 8 rows each, rows 16w + g and 16w + g + 8 of bytes 4t .., then of bytes 16 + 4t .. (load_matrices). */
#define E4M3_PRODUCT_OF_REGISTERS(N, J, A, B, ADD)                                                                       \
    __device__ __forceinline__ void e4m3_multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" E4M3_D_##J "}, {" A "}, " B ", p, 1, 1;\n}" \
                     : E4M3_R_##J : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                       \
    }
// clang-format on

E4M3_PRODUCT(8, 1, "%4", "%5", "%6");
E4M3_PRODUCT(16, 2, "%8", "%9", "%10");
E4M3_PRODUCT(24, 3, "%12", "%13", "%14");
E4M3_PRODUCT(32, 4, "%16", "%17", "%18");
E4M3_PRODUCT(40, 5, "%20", "%21", "%22");
E4M3_PRODUCT(48, 6, "%24", "%25", "%26");
E4M3_PRODUCT(56, 7, "%28", "%29", "%30");
E4M3_PRODUCT(64, 8, "%32", "%33", "%34");
E4M3_PRODUCT(72, 9, "%36", "%37", "%38");
E4M3_PRODUCT(80, 10, "%40", "%41", "%42");
E4M3_PRODUCT(88, 11, "%44", "%45", "%46");
E4M3_PRODUCT(96, 12, "%48", "%49", "%50");
E4M3_PRODUCT(104, 13, "%52", "%53", "%54");
E4M3_PRODUCT(112, 14, "%56", "%57", "%58");
E4M3_PRODUCT(120, 15, "%60", "%61", "%62");
E4M3_PRODUCT(128, 16, "%64", "%65", "%66");
E4M3_PRODUCT(136, 17, "%68", "%69", "%70");
E4M3_PRODUCT(144, 18, "%72", "%73", "%74");
E4M3_PRODUCT(152, 19, "%76", "%77", "%78");
E4M3_PRODUCT(160, 20, "%80", "%81", "%82");
E4M3_PRODUCT(168, 21, "%84", "%85", "%86");
E4M3_PRODUCT(176, 22, "%88", "%89", "%90");
E4M3_PRODUCT(184, 23, "%92", "%93", "%94");
E4M3_PRODUCT(192, 24, "%96", "%97", "%98");
E4M3_PRODUCT(200, 25, "%100", "%101", "%102");
E4M3_PRODUCT(208, 26, "%104", "%105", "%106");
E4M3_PRODUCT(216, 27, "%108", "%109", "%110");
E4M3_PRODUCT(224, 28, "%112", "%113", "%114");
E4M3_PRODUCT(232, 29, "%116", "%117", "%118");
E4M3_PRODUCT(240, 30, "%120", "%121", "%122");
E4M3_PRODUCT(248, 31, "%124", "%125", "%126");
E4M3_PRODUCT(256, 32, "%128", "%129", "%130");

E4M3_PRODUCT_OF_REGISTERS(64, 8, "%32, %33, %34, %35", "%36", "%37")
E4M3_PRODUCT_OF_REGISTERS(128, 16, "%64, %65, %66, %67", "%68", "%69")

#undef E4M3_PRODUCT_OF_REGISTERS
#undef E4M3_PRODUCT
