/* wgmma_bytes.cuh - products of a warpgroup (128 threads) of e4m3 by e4m3: 64 rows by N columns by 32, sums in registers.
 *
 * Sums d of 64 x N lie as wgmma.cuh says. A left operand in registers of 64 x 32: thread 32w + 4g + t has rows 16w + g (a[0], a[2]) and
 * 16w + g + 8 (a[1], a[3]); a[0], a[1] are columns 4t .. 4t + 3, a[2], a[3] columns 16 more. Both operands have the contraction along the
 * row: of bytes there is no other way.
 *
 * The tensor core keeps some 14 bits of a sum of e4m3 products: sums of many are to be cut, and the pieces added in float32. */
#pragma once

#include "backend/cuda/wgmma.cuh"

/* An operand in shared memory: rows of `panel` bytes, 128 or 64, swizzled as kv.cuh says; 8 of them aligned to their size. The next 32
 * columns are 2 further in the descriptor. */
__device__ __forceinline__ uint64_t byte_rows(uint32_t address, int panel) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | 1ull << 16 | (uint64_t)(panel * 8 >> 4) << 32 | (panel == 128 ? 1ull : 2ull) << 62;
}

/* The same in two steps: the lower half, to which offsets are added, and the whole. */
__device__ __forceinline__ uint32_t byte_rows_low(uint32_t address) { return (address & 0x3FFFF) >> 4 | 1u << 16; }
template <int PANEL> __device__ __forceinline__ uint64_t byte_rows_at(uint32_t low) {
    uint64_t whole;
    asm("mov.b64 %0, {%1, %2};" : "=l"(whole) : "r"(low), "n"((PANEL * 8 >> 4) | (PANEL == 128 ? 1 : 2) << 30));
    return whole;
}

template <int N> struct byte_product;

template <> struct byte_product<16> {
    /* d = (or += with add) a b^T */
    static __device__ __forceinline__ void of_shared(float (&d)[8], uint64_t a, uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "%8, %9, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void of_registers(float (&d)[8], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "{%8, %9, %10, %11}, %12, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <> struct byte_product<24> {
    /* d = (or += with add) a b^T */
    static __device__ __forceinline__ void of_shared(float (&d)[12], uint64_t a, uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %14, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n24k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
                     "%12, %13, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
                     : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void of_registers(float (&d)[12], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %17, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n24k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
                     "{%12, %13, %14, %15}, %16, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <> struct byte_product<32> {
    /* d = (or += with add) a b^T */
    static __device__ __forceinline__ void of_shared(float (&d)[16], uint64_t a, uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
            "%16, %17, p, 1, 1;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
              "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
            : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void of_registers(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
            "{%16, %17, %18, %19}, %20, p, 1, 1;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
              "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <> struct byte_product<48> {
    /* d = (or += with add) a b^T */
    static __device__ __forceinline__ void of_shared(float (&d)[24], uint64_t a, uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %26, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
                     "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                     "%24, %25, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                       "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
                     : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void of_registers(float (&d)[24], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n48k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
                     "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                     "{%24, %25, %26, %27}, %28, p, 1, 1;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
                       "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                       "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
