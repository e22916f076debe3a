/* quads_gguf.cuh - fragments of GGUF's kinds, as quads.cuh has those of four bits.
 *
 * A group's scale, d times s, is rounded to float16, and so is each code times it: what is off is at most 2^-10 of a
 * weight, and of Q4_K, whose minimum is rounded likewise, of c s + m. Q8_0's scale is d, exactly. */
#pragma once

#include "backend/cuda/linear/w4/quads.cuh"

static __device__ __forceinline__ uint32_t subtract_pair(uint32_t pair, uint32_t by) {
    __half2 is = __hsub2(reinterpret_cast<__half2 &>(pair), reinterpret_cast<__half2 &>(by));
    return reinterpret_cast<uint32_t &>(is);
}
/* pair * by - less, rounded once. */
static __device__ __forceinline__ uint32_t multiply_subtract_pair(uint32_t pair, uint32_t by, uint32_t less) {
    __half2 is = __hfma2(reinterpret_cast<__half2 &>(pair), reinterpret_cast<__half2 &>(by),
                         __hneg2(reinterpret_cast<__half2 &>(less)));
    return reinterpret_cast<uint32_t &>(is);
}
/* Two bytes as a pair of float16, less `less` (1024 and what else is to go, twice). */
static __device__ __forceinline__ uint32_t bytes_low(uint32_t bytes, uint32_t less) {
    return subtract_pair(__byte_perm(bytes, 0x64u, 0x4140), less);
}
static __device__ __forceinline__ uint32_t bytes_high(uint32_t bytes, uint32_t less) {
    return subtract_pair(__byte_perm(bytes, 0x64u, 0x4342), less);
}
enum : uint32_t { HALVES_1024 = 0x64006400u, HALVES_1056 = 0x64206420u, HALVES_1152 = 0x64806480u };

template <bool SUMS> struct quads_fragments<QUADS_Q8_0, 32, SUMS> {
    static constexpr bool ON_SUMS = false;
    uint32_t scales[4], by_row, by_row_8;

    __device__ __forceinline__ void load(uint32_t block, int lane, bool) {
        uint4 v = load_shared_16(block + QUADS_BYTES + lane / 4 * 16);
        scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        by_row = twice_low(scales[step / 2]), by_row_8 = twice_high(scales[step / 2]);
        uint32_t row = codes[2 * step], row_8 = codes[2 * step + 1];
        a[0] = multiply_pair(bytes_low(row, HALVES_1152), by_row);
        a[2] = multiply_pair(bytes_high(row, HALVES_1152), by_row);
        a[1] = multiply_pair(bytes_low(row_8, HALVES_1152), by_row_8);
        a[3] = multiply_pair(bytes_high(row_8, HALVES_1152), by_row_8);
    }
    __device__ __forceinline__ float2 on_sums() const { return make_float2(1, 1); }
};

template <bool SUMS> struct quads_fragments<QUADS_Q4_K, 32, SUMS> {
    static constexpr bool ON_SUMS = false;
    uint32_t groups[4], d, dmin; // d, dmin: of rows g and g + 8
    uint32_t scale, least;

    __device__ __forceinline__ void load(uint32_t block, int lane, bool) {
        uint4 v = load_shared_16(block + QUADS_NIBBLES + lane / 4 * 16);
        uint2 both = load_shared_8(block + QUADS_NIBBLES + 128 + lane / 4 * 8);
        groups[0] = v.x, groups[1] = v.y, groups[2] = v.z, groups[3] = v.w;
        d = both.x, dmin = both.y;
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        if (step % 2 == 0) {
            scale = multiply_pair(bytes_low(groups[step / 2], HALVES_1024), d);
            least = multiply_pair(bytes_high(groups[step / 2], HALVES_1024), dmin);
        }
        const uint32_t none = HALVES_1024, none_high = 0x54005400u; // 64
        uint32_t word = codes[step], behind = word >> 8;
        uint32_t s = twice_low(scale), s_8 = twice_high(scale), m = twice_low(least), m_8 = twice_high(least);
        a[0] = multiply_subtract_pair(int4_less_low(word, none), s, m);
        a[2] = multiply_subtract_pair(int4_less_high(word, none_high), s, m);
        a[1] = multiply_subtract_pair(int4_less_low(behind, none), s_8, m_8);
        a[3] = multiply_subtract_pair(int4_less_high(behind, none_high), s_8, m_8);
    }
    __device__ __forceinline__ float2 on_sums() const { return make_float2(1, 1); }
};

template <bool SUMS> struct quads_fragments<QUADS_Q6_K, 16, SUMS> {
    static constexpr bool ON_SUMS = false;
    uint32_t groups[4], high[4], d; // groups: of two steps

    __device__ __forceinline__ void load(uint32_t block, int lane, bool) {
        uint4 h = load_shared_16(block + QUADS_NIBBLES + lane * 16),
              v = load_shared_16(block + QUADS_SIXES + lane / 4 * 16);
        groups[0] = v.x, groups[1] = v.y, groups[2] = v.z, groups[3] = v.w;
        high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
        d = load_shared(block + QUADS_SIXES + 128 + lane / 4 * 4);
    }
    /* A pair's codes less 32: low bits at 3..0 (or 7..4 of `fours`), high ones at 5..4 (9..8), each of a half word. */
    static __device__ __forceinline__ uint32_t pair(uint32_t ones, uint32_t high) {
        return subtract_pair(in_1024(ones, 0x000f000fu) | (high & 0x00300030u), HALVES_1056);
    }
    static __device__ __forceinline__ uint32_t pair_of_fours(uint32_t fours, uint32_t high) {
        const uint32_t sixteenth = 0x2c002c00u, less = 0x56005600u; // 96
        return multiply_subtract_pair(in_1024(fours, 0x00f000f0u) | (high & 0x03000300u), sixteenth, less);
    }
    __device__ __forceinline__ void fragment(int step, const uint32_t *codes, uint32_t (&a)[4]) {
        uint32_t of_step =
                     step % 2 ? bytes_high(groups[step / 2], HALVES_1152) : bytes_low(groups[step / 2], HALVES_1152),
                 scale = multiply_pair(of_step, d), s = twice_low(scale), s_8 = twice_high(scale);
        uint32_t word = codes[step], behind = word >> 8, h = step % 2 ? high[step / 2] << 4 : high[step / 2],
                 h_8 = step % 2 ? high[step / 2] >> 4 : high[step / 2] >> 8;
        a[0] = multiply_pair(pair(word, h), s), a[2] = multiply_pair(pair_of_fours(word, h << 2), s);
        a[1] = multiply_pair(pair(behind, h_8), s_8), a[3] = multiply_pair(pair_of_fours(behind, h_8 << 2), s_8);
    }
    __device__ __forceinline__ float2 on_sums() const { return make_float2(1, 1); }
};
