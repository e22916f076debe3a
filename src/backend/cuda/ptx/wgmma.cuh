/* wgmma.cuh - what products of a warpgroup (128 threads) have in common, whatever is multiplied: wgmma_halves.cuh,
 * wgmma_e4m3.cuh and wgmma_int8.cuh have the products themselves, of 64 rows by N columns by 32 bytes.
 *
 *     d (+)= a b^T        a: 64 rows, b: N rows, in shared memory, or a in registers; d in registers
 *
 * Sums d of 64 x N: thread 32w + 4g + t has rows 16w + g and 16w + g + 8; d[4j], d[4j + 1] are columns 8j + 2t, 8j + 2t
 * + 1 of the first, d[4j + 2], d[4j + 3] those of the second.
 *
 * Shared operands are panels of 128-byte rows with the 128-byte swizzle that bulk copies of tensor maps make (kv.cuh's
 * layout), 1024-byte aligned: eight rows are 1,024 bytes. `rows` panels have the contraction along the row, and the
 * next 32 bytes of it are 2 further in the descriptor; `turned` ones, of 16 bits, have it across, which only a right
 * operand may. Around products go products_begin, products_commit and products_wait. */
#pragma once

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/value.h"

#include <type_traits>

/* of rows: 8 rows further is 1,024 bytes; of turned: 8 of the contraction further is 1,024 bytes, the next 64 columns
 * `panel` bytes. */
__device__ __forceinline__ uint64_t operand_rows(uint32_t address) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* The same of panels of 64-byte rows with the 64-byte swizzle, of which eight are 512 bytes. */
__device__ __forceinline__ uint64_t operand_rows_of_64(uint32_t address) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | 1ull << 16 | (uint64_t)(512 >> 4) << 32 | 2ull << 62;
}
__device__ __forceinline__ uint64_t operand_turned(uint32_t address, int panel) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           1ull << 62;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* A warpgroup's: from here on a thread has so many registers, a multiple of 8; what some leave others may take. */
template <int N> __device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* The compiler may not move reads or writes of these registers, floats or words, over this point. */
template <class T, int N> __device__ __forceinline__ void registers_settle(T (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if constexpr (std::is_floating_point_v<T>)
            asm volatile("" : "+f"(d[i])::"memory");
        else
            asm volatile("" : "+r"(d[i])::"memory");
}

// ---- for the headers of the products ------------------------------------------------------------------------------

// The registers of N = 8 j columns, as names and as operands of a constraint.
#define WGMMA_D_1 "%0, %1, %2, %3"
#define WGMMA_D_2 WGMMA_D_1 ", %4, %5, %6, %7"
#define WGMMA_D_3 WGMMA_D_2 ", %8, %9, %10, %11"
#define WGMMA_D_4 WGMMA_D_3 ", %12, %13, %14, %15"
#define WGMMA_D_5 WGMMA_D_4 ", %16, %17, %18, %19"
#define WGMMA_D_6 WGMMA_D_5 ", %20, %21, %22, %23"
#define WGMMA_D_7 WGMMA_D_6 ", %24, %25, %26, %27"
#define WGMMA_D_8 WGMMA_D_7 ", %28, %29, %30, %31"
#define WGMMA_D_9 WGMMA_D_8 ", %32, %33, %34, %35"
#define WGMMA_D_10 WGMMA_D_9 ", %36, %37, %38, %39"
#define WGMMA_D_11 WGMMA_D_10 ", %40, %41, %42, %43"
#define WGMMA_D_12 WGMMA_D_11 ", %44, %45, %46, %47"
#define WGMMA_D_13 WGMMA_D_12 ", %48, %49, %50, %51"
#define WGMMA_D_14 WGMMA_D_13 ", %52, %53, %54, %55"
#define WGMMA_D_15 WGMMA_D_14 ", %56, %57, %58, %59"
#define WGMMA_D_16 WGMMA_D_15 ", %60, %61, %62, %63"
#define WGMMA_D_17 WGMMA_D_16 ", %64, %65, %66, %67"
#define WGMMA_D_18 WGMMA_D_17 ", %68, %69, %70, %71"
#define WGMMA_D_19 WGMMA_D_18 ", %72, %73, %74, %75"
#define WGMMA_D_20 WGMMA_D_19 ", %76, %77, %78, %79"
#define WGMMA_D_21 WGMMA_D_20 ", %80, %81, %82, %83"
#define WGMMA_D_22 WGMMA_D_21 ", %84, %85, %86, %87"
#define WGMMA_D_23 WGMMA_D_22 ", %88, %89, %90, %91"
#define WGMMA_D_24 WGMMA_D_23 ", %92, %93, %94, %95"
#define WGMMA_D_25 WGMMA_D_24 ", %96, %97, %98, %99"
#define WGMMA_D_26 WGMMA_D_25 ", %100, %101, %102, %103"
#define WGMMA_D_27 WGMMA_D_26 ", %104, %105, %106, %107"
#define WGMMA_D_28 WGMMA_D_27 ", %108, %109, %110, %111"
#define WGMMA_D_29 WGMMA_D_28 ", %112, %113, %114, %115"
#define WGMMA_D_30 WGMMA_D_29 ", %116, %117, %118, %119"
#define WGMMA_D_31 WGMMA_D_30 ", %120, %121, %122, %123"
#define WGMMA_D_32 WGMMA_D_31 ", %124, %125, %126, %127"
#define WGMMA_FOUR(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define WGMMA_R_1(C) WGMMA_FOUR(C, 0)
#define WGMMA_R_2(C) WGMMA_R_1(C), WGMMA_FOUR(C, 4)
#define WGMMA_R_3(C) WGMMA_R_2(C), WGMMA_FOUR(C, 8)
#define WGMMA_R_4(C) WGMMA_R_3(C), WGMMA_FOUR(C, 12)
#define WGMMA_R_5(C) WGMMA_R_4(C), WGMMA_FOUR(C, 16)
#define WGMMA_R_6(C) WGMMA_R_5(C), WGMMA_FOUR(C, 20)
#define WGMMA_R_7(C) WGMMA_R_6(C), WGMMA_FOUR(C, 24)
#define WGMMA_R_8(C) WGMMA_R_7(C), WGMMA_FOUR(C, 28)
#define WGMMA_R_9(C) WGMMA_R_8(C), WGMMA_FOUR(C, 32)
#define WGMMA_R_10(C) WGMMA_R_9(C), WGMMA_FOUR(C, 36)
#define WGMMA_R_11(C) WGMMA_R_10(C), WGMMA_FOUR(C, 40)
#define WGMMA_R_12(C) WGMMA_R_11(C), WGMMA_FOUR(C, 44)
#define WGMMA_R_13(C) WGMMA_R_12(C), WGMMA_FOUR(C, 48)
#define WGMMA_R_14(C) WGMMA_R_13(C), WGMMA_FOUR(C, 52)
#define WGMMA_R_15(C) WGMMA_R_14(C), WGMMA_FOUR(C, 56)
#define WGMMA_R_16(C) WGMMA_R_15(C), WGMMA_FOUR(C, 60)
#define WGMMA_R_17(C) WGMMA_R_16(C), WGMMA_FOUR(C, 64)
#define WGMMA_R_18(C) WGMMA_R_17(C), WGMMA_FOUR(C, 68)
#define WGMMA_R_19(C) WGMMA_R_18(C), WGMMA_FOUR(C, 72)
#define WGMMA_R_20(C) WGMMA_R_19(C), WGMMA_FOUR(C, 76)
#define WGMMA_R_21(C) WGMMA_R_20(C), WGMMA_FOUR(C, 80)
#define WGMMA_R_22(C) WGMMA_R_21(C), WGMMA_FOUR(C, 84)
#define WGMMA_R_23(C) WGMMA_R_22(C), WGMMA_FOUR(C, 88)
#define WGMMA_R_24(C) WGMMA_R_23(C), WGMMA_FOUR(C, 92)
#define WGMMA_R_25(C) WGMMA_R_24(C), WGMMA_FOUR(C, 96)
#define WGMMA_R_26(C) WGMMA_R_25(C), WGMMA_FOUR(C, 100)
#define WGMMA_R_27(C) WGMMA_R_26(C), WGMMA_FOUR(C, 104)
#define WGMMA_R_28(C) WGMMA_R_27(C), WGMMA_FOUR(C, 108)
#define WGMMA_R_29(C) WGMMA_R_28(C), WGMMA_FOUR(C, 112)
#define WGMMA_R_30(C) WGMMA_R_29(C), WGMMA_FOUR(C, 116)
#define WGMMA_R_31(C) WGMMA_R_30(C), WGMMA_FOUR(C, 120)
#define WGMMA_R_32(C) WGMMA_R_31(C), WGMMA_FOUR(C, 124)

/* Of each size N = 8 j: N, j, and the numbers of the operands behind d. */
// clang-format off
#define WGMMA_SIZES(X) \
    X(8, 1, 4, 5, 6, 7, 8, 9) X(16, 2, 8, 9, 10, 11, 12, 13) \
    X(24, 3, 12, 13, 14, 15, 16, 17) X(32, 4, 16, 17, 18, 19, 20, 21) \
    X(40, 5, 20, 21, 22, 23, 24, 25) X(48, 6, 24, 25, 26, 27, 28, 29) \
    X(56, 7, 28, 29, 30, 31, 32, 33) X(64, 8, 32, 33, 34, 35, 36, 37) \
    X(72, 9, 36, 37, 38, 39, 40, 41) X(80, 10, 40, 41, 42, 43, 44, 45) \
    X(88, 11, 44, 45, 46, 47, 48, 49) X(96, 12, 48, 49, 50, 51, 52, 53) \
    X(104, 13, 52, 53, 54, 55, 56, 57) X(112, 14, 56, 57, 58, 59, 60, 61) \
    X(120, 15, 60, 61, 62, 63, 64, 65) X(128, 16, 64, 65, 66, 67, 68, 69) \
    X(136, 17, 68, 69, 70, 71, 72, 73) X(144, 18, 72, 73, 74, 75, 76, 77) \
    X(152, 19, 76, 77, 78, 79, 80, 81) X(160, 20, 80, 81, 82, 83, 84, 85) \
    X(168, 21, 84, 85, 86, 87, 88, 89) X(176, 22, 88, 89, 90, 91, 92, 93) \
    X(184, 23, 92, 93, 94, 95, 96, 97) X(192, 24, 96, 97, 98, 99, 100, 101) \
    X(200, 25, 100, 101, 102, 103, 104, 105) X(208, 26, 104, 105, 106, 107, 108, 109) \
    X(216, 27, 108, 109, 110, 111, 112, 113) X(224, 28, 112, 113, 114, 115, 116, 117) \
    X(232, 29, 116, 117, 118, 119, 120, 121) X(240, 30, 120, 121, 122, 123, 124, 125) \
    X(248, 31, 124, 125, 126, 127, 128, 129) X(256, 32, 128, 129, 130, 131, 132, 133)

/* The instruction: TYPES as it names them, C the constraint of d, A, B and ADD (whether to add to d) as the assembler
 * has them, SIGNS what it wants behind, then the constraints of the inputs. */
#define WGMMA(N, J, TYPES, C, A, B, ADD, SIGNS, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" WGMMA_D_##J "}, " A ", " B ", p" SIGNS ";\n}" \
                 : WGMMA_R_##J(C) : __VA_ARGS__)
// clang-format on
