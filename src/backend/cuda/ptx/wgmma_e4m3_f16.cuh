/* wgmma_e4m3_f16.cuh - the products of wgmma_e4m3.cuh with sums in half precision: half the registers, and less energy
 * a multiplication.
 *
 * Sums d of 64 x N, N = 8 j: d[2j] is what d[4j] and d[4j + 1] are in wgmma.cuh, columns 8j + 2t (in the low half) and
 * 8j + 2t + 1 of the thread's first row; d[2j + 1] those of its second.
 *
 * Sums are rounded to nearest every 32 columns. Nothing looks whether they fit: operands must be such that they do
 * (value.h). */
#pragma once

#include "backend/cuda/ptx/wgmma_e4m3.cuh"

// The registers of N = 8 j columns, as names and as operands.
#define WGMMA_H_1 "%0, %1"
#define WGMMA_H_2 WGMMA_H_1 ", %2, %3"
#define WGMMA_H_3 WGMMA_H_2 ", %4, %5"
#define WGMMA_H_4 WGMMA_H_3 ", %6, %7"
#define WGMMA_H_5 WGMMA_H_4 ", %8, %9"
#define WGMMA_H_6 WGMMA_H_5 ", %10, %11"
#define WGMMA_H_7 WGMMA_H_6 ", %12, %13"
#define WGMMA_H_8 WGMMA_H_7 ", %14, %15"
#define WGMMA_H_9 WGMMA_H_8 ", %16, %17"
#define WGMMA_H_10 WGMMA_H_9 ", %18, %19"
#define WGMMA_H_11 WGMMA_H_10 ", %20, %21"
#define WGMMA_H_12 WGMMA_H_11 ", %22, %23"
#define WGMMA_H_13 WGMMA_H_12 ", %24, %25"
#define WGMMA_H_14 WGMMA_H_13 ", %26, %27"
#define WGMMA_H_15 WGMMA_H_14 ", %28, %29"
#define WGMMA_H_16 WGMMA_H_15 ", %30, %31"
#define WGMMA_H_17 WGMMA_H_16 ", %32, %33"
#define WGMMA_H_18 WGMMA_H_17 ", %34, %35"
#define WGMMA_H_19 WGMMA_H_18 ", %36, %37"
#define WGMMA_H_20 WGMMA_H_19 ", %38, %39"
#define WGMMA_H_21 WGMMA_H_20 ", %40, %41"
#define WGMMA_H_22 WGMMA_H_21 ", %42, %43"
#define WGMMA_H_23 WGMMA_H_22 ", %44, %45"
#define WGMMA_H_24 WGMMA_H_23 ", %46, %47"
#define WGMMA_H_25 WGMMA_H_24 ", %48, %49"
#define WGMMA_H_26 WGMMA_H_25 ", %50, %51"
#define WGMMA_H_27 WGMMA_H_26 ", %52, %53"
#define WGMMA_H_28 WGMMA_H_27 ", %54, %55"
#define WGMMA_H_29 WGMMA_H_28 ", %56, %57"
#define WGMMA_H_30 WGMMA_H_29 ", %58, %59"
#define WGMMA_H_31 WGMMA_H_30 ", %60, %61"
#define WGMMA_H_32 WGMMA_H_31 ", %62, %63"
#define WGMMA_P_1 "+r"(d[0]), "+r"(d[1])
#define WGMMA_P_2 WGMMA_P_1, "+r"(d[2]), "+r"(d[3])
#define WGMMA_P_3 WGMMA_P_2, "+r"(d[4]), "+r"(d[5])
#define WGMMA_P_4 WGMMA_P_3, "+r"(d[6]), "+r"(d[7])
#define WGMMA_P_5 WGMMA_P_4, "+r"(d[8]), "+r"(d[9])
#define WGMMA_P_6 WGMMA_P_5, "+r"(d[10]), "+r"(d[11])
#define WGMMA_P_7 WGMMA_P_6, "+r"(d[12]), "+r"(d[13])
#define WGMMA_P_8 WGMMA_P_7, "+r"(d[14]), "+r"(d[15])
#define WGMMA_P_9 WGMMA_P_8, "+r"(d[16]), "+r"(d[17])
#define WGMMA_P_10 WGMMA_P_9, "+r"(d[18]), "+r"(d[19])
#define WGMMA_P_11 WGMMA_P_10, "+r"(d[20]), "+r"(d[21])
#define WGMMA_P_12 WGMMA_P_11, "+r"(d[22]), "+r"(d[23])
#define WGMMA_P_13 WGMMA_P_12, "+r"(d[24]), "+r"(d[25])
#define WGMMA_P_14 WGMMA_P_13, "+r"(d[26]), "+r"(d[27])
#define WGMMA_P_15 WGMMA_P_14, "+r"(d[28]), "+r"(d[29])
#define WGMMA_P_16 WGMMA_P_15, "+r"(d[30]), "+r"(d[31])
#define WGMMA_P_17 WGMMA_P_16, "+r"(d[32]), "+r"(d[33])
#define WGMMA_P_18 WGMMA_P_17, "+r"(d[34]), "+r"(d[35])
#define WGMMA_P_19 WGMMA_P_18, "+r"(d[36]), "+r"(d[37])
#define WGMMA_P_20 WGMMA_P_19, "+r"(d[38]), "+r"(d[39])
#define WGMMA_P_21 WGMMA_P_20, "+r"(d[40]), "+r"(d[41])
#define WGMMA_P_22 WGMMA_P_21, "+r"(d[42]), "+r"(d[43])
#define WGMMA_P_23 WGMMA_P_22, "+r"(d[44]), "+r"(d[45])
#define WGMMA_P_24 WGMMA_P_23, "+r"(d[46]), "+r"(d[47])
#define WGMMA_P_25 WGMMA_P_24, "+r"(d[48]), "+r"(d[49])
#define WGMMA_P_26 WGMMA_P_25, "+r"(d[50]), "+r"(d[51])
#define WGMMA_P_27 WGMMA_P_26, "+r"(d[52]), "+r"(d[53])
#define WGMMA_P_28 WGMMA_P_27, "+r"(d[54]), "+r"(d[55])
#define WGMMA_P_29 WGMMA_P_28, "+r"(d[56]), "+r"(d[57])
#define WGMMA_P_30 WGMMA_P_29, "+r"(d[58]), "+r"(d[59])
#define WGMMA_P_31 WGMMA_P_30, "+r"(d[60]), "+r"(d[61])
#define WGMMA_P_32 WGMMA_P_31, "+r"(d[62]), "+r"(d[63])

template <int N> struct e4m3_half_product; // N: a multiple of 8 up to 256

// clang-format off
#define E4M3_HALF_PRODUCT(N, J, O0, O1, O2, O3, O4, O5) \
    template <> struct e4m3_half_product<N> { \
        static __device__ __forceinline__ void multiply(uint32_t (&d)[N / 4], uint64_t a, uint64_t b, int add) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #O2 ", 0;\n" \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f16.e4m3.e4m3 {" WGMMA_H_##J "}, " \
                         "%" #O0 ", %" #O1 ", p, 1, 1;\n}" \
                         : WGMMA_P_##J : "l"(a), "l"(b), "r"(add)); \
        } \
        static __device__ __forceinline__ void multiply(uint32_t (&d)[N / 4], const uint32_t (&a)[4], uint64_t b, \
                                                        int add) { \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #O5 ", 0;\n" \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k32.f16.e4m3.e4m3 {" WGMMA_H_##J "}, " \
                         "{%" #O0 ", %" #O1 ", %" #O2 ", %" #O3 "}, %" #O4 ", p, 1, 1;\n}" \
                         : WGMMA_P_##J : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
        } \
    };
E4M3_HALF_PRODUCT(8, 1, 2, 3, 4, 5, 6, 7)
E4M3_HALF_PRODUCT(16, 2, 4, 5, 6, 7, 8, 9)
E4M3_HALF_PRODUCT(24, 3, 6, 7, 8, 9, 10, 11)
E4M3_HALF_PRODUCT(32, 4, 8, 9, 10, 11, 12, 13)
E4M3_HALF_PRODUCT(40, 5, 10, 11, 12, 13, 14, 15)
E4M3_HALF_PRODUCT(48, 6, 12, 13, 14, 15, 16, 17)
E4M3_HALF_PRODUCT(56, 7, 14, 15, 16, 17, 18, 19)
E4M3_HALF_PRODUCT(64, 8, 16, 17, 18, 19, 20, 21)
E4M3_HALF_PRODUCT(72, 9, 18, 19, 20, 21, 22, 23)
E4M3_HALF_PRODUCT(80, 10, 20, 21, 22, 23, 24, 25)
E4M3_HALF_PRODUCT(88, 11, 22, 23, 24, 25, 26, 27)
E4M3_HALF_PRODUCT(96, 12, 24, 25, 26, 27, 28, 29)
E4M3_HALF_PRODUCT(104, 13, 26, 27, 28, 29, 30, 31)
E4M3_HALF_PRODUCT(112, 14, 28, 29, 30, 31, 32, 33)
E4M3_HALF_PRODUCT(120, 15, 30, 31, 32, 33, 34, 35)
E4M3_HALF_PRODUCT(128, 16, 32, 33, 34, 35, 36, 37)
E4M3_HALF_PRODUCT(136, 17, 34, 35, 36, 37, 38, 39)
E4M3_HALF_PRODUCT(144, 18, 36, 37, 38, 39, 40, 41)
E4M3_HALF_PRODUCT(152, 19, 38, 39, 40, 41, 42, 43)
E4M3_HALF_PRODUCT(160, 20, 40, 41, 42, 43, 44, 45)
E4M3_HALF_PRODUCT(168, 21, 42, 43, 44, 45, 46, 47)
E4M3_HALF_PRODUCT(176, 22, 44, 45, 46, 47, 48, 49)
E4M3_HALF_PRODUCT(184, 23, 46, 47, 48, 49, 50, 51)
E4M3_HALF_PRODUCT(192, 24, 48, 49, 50, 51, 52, 53)
E4M3_HALF_PRODUCT(200, 25, 50, 51, 52, 53, 54, 55)
E4M3_HALF_PRODUCT(208, 26, 52, 53, 54, 55, 56, 57)
E4M3_HALF_PRODUCT(216, 27, 54, 55, 56, 57, 58, 59)
E4M3_HALF_PRODUCT(224, 28, 56, 57, 58, 59, 60, 61)
E4M3_HALF_PRODUCT(232, 29, 58, 59, 60, 61, 62, 63)
E4M3_HALF_PRODUCT(240, 30, 60, 61, 62, 63, 64, 65)
E4M3_HALF_PRODUCT(248, 31, 62, 63, 64, 65, 66, 67)
E4M3_HALF_PRODUCT(256, 32, 64, 65, 66, 67, 68, 69)
#undef E4M3_HALF_PRODUCT
// clang-format on
