/* quads.cuh - blocks of weights in tiles (weights/quads.h) as the first operand of m16n8k16: what a lane loads of a
 * block in shared memory, and its fragment of a step of 16 columns. quads_gguf.cuh has GGUF's kinds.
 *
 * A fragment is c times s, rounded to float16, which of e2m1 is exact; of INT4 with a scale to all of a block it is c
 * alone, exactly, and s goes to the sums of the block (ON_SUMS), where SUMS lets it. */
#pragma once

#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/ptx/nibbles_int4.cuh"
#include "backend/cuda/weights/quads.h"

enum { QUADS_STEPS = 8 }; // of a block

/* Halves of a pair in both: an operand of a product takes them so for nothing, which of __byte_perm it does not. */
static __device__ __forceinline__ uint32_t twice_low(uint32_t pair) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %0;\nmov.b32 %0, {l, l};\n}" : "+r"(pair));
    return pair;
}
static __device__ __forceinline__ uint32_t twice_high(uint32_t pair) {
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %0;\nmov.b32 %0, {h, h};\n}" : "+r"(pair));
    return pair;
}
static __device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

/* The codes of a block that are a lane's: a word a step, or two. */
template <quad_kind KIND> struct quads_words {
    static constexpr int LOADS = KIND == QUADS_Q8_0 ? 4 : 2, OF_STEP = LOADS / 2;
    uint32_t of[LOADS * 4];
    __device__ __forceinline__ void load(uint32_t at) { // where the lane's begin
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            uint4 v = load_shared_16(at + i * 512);
            of[4 * i] = v.x, of[4 * i + 1] = v.y, of[4 * i + 2] = v.z, of[4 * i + 3] = v.w;
        }
    }
};

/* Eight nibbles of e2m1 to a lane's fragment, times the scales of its two rows. */
static __device__ __forceinline__ void e2m1_fragment(uint32_t word, uint32_t of_row, uint32_t of_row_8,
                                                     uint32_t (&a)[4]) {
    e2m1_to_pairs_low(word, a[0], a[1]);
    e2m1_to_pairs_high(word, a[2], a[3]);
    a[0] = multiply_pair(a[0], of_row), a[2] = multiply_pair(a[2], of_row);
    a[1] = multiply_pair(a[1], of_row_8), a[3] = multiply_pair(a[3], of_row_8);
}

template <quad_kind KIND, int GROUP, bool SUMS = true> struct quads_fragments;

template <bool SUMS> struct quads_fragments<QUADS_NVFP4, 16, SUMS> {
    static constexpr bool ON_SUMS = false;
    uint32_t scales[4];

    __device__ __forceinline__ void load(uint32_t block, int lane, bool) {
        uint4 v = load_shared_16(block + QUADS_NIBBLES + lane / 4 * 16);
        scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        uint32_t pair = e4m3_to_pair((uint16_t)(scales[step / 2] >> step % 2 * 16));
        e2m1_fragment(codes[step], twice_low(pair), twice_high(pair), a);
    }
    __device__ __forceinline__ float2 on_sums() const { return make_float2(1, 1); }
};

template <bool SUMS> struct quads_fragments<QUADS_MXFP4, 32, SUMS> {
    static constexpr bool ON_SUMS = false;
    uint32_t scales[2], of_row, of_row_8;

    __device__ __forceinline__ void load(uint32_t block, int lane, bool) {
        uint2 v = load_shared_8(block + QUADS_NIBBLES + lane / 4 * 8);
        scales[0] = v.x, scales[1] = v.y;
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        if (step % 2 == 0) {
            uint32_t two = scales[step / 4] >> step / 2 % 2 * 16;
            of_row = __byte_perm(two, 0, 0x0404), of_row_8 = __byte_perm(two, 0, 0x1414);
        }
        e2m1_fragment(codes[step], of_row, of_row_8, a);
    }
    __device__ __forceinline__ float2 on_sums() const { return make_float2(1, 1); }
};

template <int GROUP, bool SUMS> struct quads_fragments<QUADS_INT4, GROUP, SUMS> {
    static constexpr bool ON_SUMS = SUMS && GROUP == QUADS_COLUMNS;
    static constexpr int GROUPS = QUADS_COLUMNS / GROUP, STEPS = GROUP / 16;
    uint32_t scales[GROUPS], zeros[(GROUPS + 1) / 2]; // pairs of rows g and g + 8; of two groups
    int4_zeros zero;
    uint32_t by_row, by_row_8;

    __device__ __forceinline__ void load(uint32_t block, int lane, bool has_zeros) {
        uint32_t at = block + QUADS_NIBBLES + lane / 4 * 4 * GROUPS,
                 zeros_at = block + QUADS_NIBBLES + QUADS_ROWS * GROUPS * 2 + lane / 4 * 2 * GROUPS;
        zeros[0] = zeros[GROUPS / 3] = 0x08080808u;
        if constexpr (GROUPS == 1) {
            scales[0] = load_shared(at);
            if (has_zeros)
                asm volatile("ld.shared.u16 %0, [%1];" : "=r"(zeros[0]) : "r"(zeros_at) : "memory");
        } else if constexpr (GROUPS == 2) {
            uint2 s = load_shared_8(at);
            scales[0] = s.x, scales[1] = s.y;
            zeros[0] = has_zeros ? load_shared(zeros_at) : zeros[0];
        } else {
            uint4 s = load_shared_16(at);
            scales[0] = s.x, scales[1] = s.y, scales[2] = s.z, scales[3] = s.w;
            uint2 z = has_zeros ? load_shared_8(zeros_at) : make_uint2(zeros[0], zeros[1]);
            zeros[0] = z.x, zeros[1] = z.y;
        }
    }
    /* What the fragments of a step want, from its group's first step on. */
    __device__ __forceinline__ void begin_group(int step) {
        int c = step / STEPS;
        zero = int4_zeros_of(zeros[c / 2] >> c % 2 * 16);
        by_row = twice_low(scales[c]), by_row_8 = twice_high(scales[c]);
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        if (step % STEPS == 0)
            begin_group(step);
        uint32_t word = codes[step], behind = word >> 8;
        a[0] = int4_less_low(word, twice_low(zero.low)), a[2] = int4_less_high(word, twice_low(zero.high));
        a[1] = int4_less_low(behind, twice_high(zero.low)), a[3] = int4_less_high(behind, twice_high(zero.high));
        if (ON_SUMS)
            return;
        a[0] = multiply_pair(a[0], by_row), a[2] = multiply_pair(a[2], by_row);
        a[1] = multiply_pair(a[1], by_row_8), a[3] = multiply_pair(a[3], by_row_8);
    }
    /* Of the rows of sums. */
    __device__ __forceinline__ float2 on_sums() const {
        uint32_t s = ON_SUMS ? scales[0] : 0x3c003c00u; // else 1
        return __half22float2(reinterpret_cast<__half2 &>(s));
    }
};
