/* steps_vnni.h - block formats as what AVX-512 VNNI multiplies: 64 columns of a row of weights as codes and scales.
 *
 * vpdpbusd adds to each of 16 sums of 32 bits the products of four unsigned and four signed bytes. So 64 columns are a
 * step, and lane i of all that follows belongs to columns 4 i to 4 i + 3:
 *
 *     codes   u, unsigned bytes made of what the block stores                                   once for all rows of x
 *     D       sum of u x                                                                          integers, exact
 *     y      += s_x (scale (D - o S) - min S), S the sum of x's four, o what makes u of signed numbers    float32
 *
 * x is arranged so: for each 64 columns and row 64 bytes x, 16 integers -S, 16 floats s_x, where s_x = max |x| / 127 of
 * 32 columns and x are rounded to even. D - o S is one sum that begins with -o S, and o is a power of two, so that a
 * shift makes it. What is no number in x makes s_x none.
 *
 * Rows of weights are taken in tiles of four with one or two rows of x, of two with more, since loads of x bound what
 * is not bound by memory; the sums of a row are the same in any tile. */
#pragma once

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/mxfp4.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    STEP = 64,     // columns
    X_FLOATS = 48, // of a step of one row of x, as arranged
    LANES = 16,
    BLOCK = 32 // columns that share s_x
};

/* What a step needs of the weights. min: NULL in formats that have none, else what is subtracted. */
struct step {
    __m512i codes;
    __m512 scale, min;
};

static ALWAYS_INLINE float f16_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

static ALWAYS_INLINE __m512 two_scales(float a, float b) {
    return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}

/* Of two float16. */
static ALWAYS_INLINE __m512 two_f16(const uint8_t *a, const uint8_t *b) {
    uint16_t first, second;
    memcpy(&first, a, sizeof first);
    memcpy(&second, b, sizeof second);
    __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)(first | (uint32_t)second << 16)));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castps128_ps512(both));
}

static ALWAYS_INLINE __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
static ALWAYS_INLINE __m512i two(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }

/* Of two runs of 16 bytes of codes: low halves, high halves, low, high. */
static ALWAYS_INLINE __m512i nibbles(const uint8_t *a, const uint8_t *b) {
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)a)),
                                           _mm_loadu_si128((const __m128i *)(const void *)b), 1);
    __m512i twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both));
    __m512i shifted = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    return _mm512_and_si512(shifted, _mm512_set1_epi8(15));
}

/* Of 32 bytes: low halves, then high halves. */
static ALWAYS_INLINE __m512i halves(__m256i b) {
    return _mm512_and_si512(two(b, _mm256_srli_epi16(b, 4)), _mm512_set1_epi8(15));
}

static ALWAYS_INLINE uint32_t u32_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* Adds 16 where the bits of two blocks are set. */
static ALWAYS_INLINE __m512i with_fifth_bits(__m512i codes, const uint8_t *a, const uint8_t *b) {
    __mmask64 set = (uint64_t)u32_at(a) | (uint64_t)u32_at(b) << 32;
    return _mm512_mask_or_epi32(codes, 0xFFFF, codes, _mm512_maskz_set1_epi8(set, 16));
}

static ALWAYS_INLINE __m512i looked_up(__m512i codes, const int8_t values[16], int more) {
    int8_t table[16];
    for (int i = 0; i < 16; i++)
        table[i] = (int8_t)(values[i] + more);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), codes);
}

/* What is added to the codes of a format, as a power of two; -1: nothing is. */
static ALWAYS_INLINE int offset_bits(const enum qformat_id f) {
    switch (f) {
    case QFORMAT_Q8_0:
    case QFORMAT_IQ4_NL:
    case QFORMAT_IQ4_XS: return 7;
    case QFORMAT_Q6_K: return 5;
    case QFORMAT_Q5_0:
    case QFORMAT_MXFP4_HALVES: return 4;
    case QFORMAT_Q4_0: return 3;
    case QFORMAT_Q3_K: return 2;
    case QFORMAT_TQ2_0: return 0;
    default: return -1;
    }
}

static ALWAYS_INLINE bool has_min(const enum qformat_id f) {
    return f == QFORMAT_Q4_1 || f == QFORMAT_Q5_1 || f == QFORMAT_Q4_K || f == QFORMAT_Q5_K || f == QFORMAT_Q2_K;
}

/* Two blocks of 32 columns, at a and b. */
static ALWAYS_INLINE struct step two_blocks(const enum qformat_id f, const uint8_t *a, const uint8_t *b) {
    struct step s = {.min = _mm512_setzero_ps()};
    switch (f) {
    case QFORMAT_Q8_0:
        s.codes = _mm512_xor_si512(two(load32(a + 2), load32(b + 2)), _mm512_set1_epi8((char)0x80));
        break;
    case QFORMAT_Q4_0: s.codes = nibbles(a + 2, b + 2); break;
    case QFORMAT_Q5_0: s.codes = with_fifth_bits(nibbles(a + 6, b + 6), a + 2, b + 2); break;
    case QFORMAT_Q4_1: s.codes = nibbles(a + 4, b + 4); break;
    case QFORMAT_Q5_1: s.codes = with_fifth_bits(nibbles(a + 8, b + 8), a + 4, b + 4); break;
    case QFORMAT_IQ4_NL: s.codes = looked_up(nibbles(a + 2, b + 2), iq4_values, 128); break;
    default: // MXFP4_HALVES
        s.codes = looked_up(nibbles(a + 1, b + 1), e2m1_values, 16);
        s.scale = two_scales(e8m0_half(a[0]), e8m0_half(b[0]));
        return s;
    }
    s.scale = two_f16(a, b);
    if (has_min(f)) // which is added: taken from nothing
        s.min = _mm512_sub_ps(s.min, two_f16(a + 2, b + 2));
    return s;
}

/* Scales of a block of 256 columns: 16, of 16 columns each. */
struct scales {
    __m512 scale, min;
};

/* 8 numbers, each for two neighbouring lanes. */
static ALWAYS_INLINE __m512 doubled(const uint8_t numbers[8]) {
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)numbers);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, b)));
}

/* The 6-bit scales and mins of q4_k and q5_k, 12 bytes at s, as 8 bytes each. */
static ALWAYS_INLINE void six_bits(const uint8_t *s, uint8_t scales[8], uint8_t mins[8]) {
    uint32_t a = u32_at(s), b = u32_at(s + 4), c = u32_at(s + 8);
    uint32_t out[4] = {a & 0x3F3F3F3F, (c & 0x0F0F0F0F) | (a >> 6 & 0x03030303) << 4, b & 0x3F3F3F3F,
                       (c >> 4 & 0x0F0F0F0F) | (b >> 6 & 0x03030303) << 4};
    memcpy(scales, out, 8);
    memcpy(mins, out + 2, 8);
}

static ALWAYS_INLINE struct scales scales_of(const enum qformat_id f, const uint8_t *b) {
    uint8_t scale[16], min[16];
    struct scales s = {.min = _mm512_setzero_ps()};
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K:
        six_bits(b + 4, scale, min);
        s.scale = _mm512_mul_ps(doubled(scale), _mm512_set1_ps(f16_at(b)));
        s.min = _mm512_mul_ps(doubled(min), _mm512_set1_ps(f16_at(b + 2)));
        return s;
    case QFORMAT_Q6_K:
        s.scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + 192))));
        s.scale = _mm512_mul_ps(s.scale, _mm512_set1_ps(f16_at(b + 208)));
        return s;
    case QFORMAT_Q2_K: {
        __m512i packed = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b));
        s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(packed, _mm512_set1_epi32(15))),
                                _mm512_set1_ps(f16_at(b + 80)));
        s.min = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(packed, 4)), _mm512_set1_ps(f16_at(b + 82)));
        return s;
    }
    case QFORMAT_Q3_K: {
        const uint8_t *p = b + 96;
        for (int k = 0; k < 16; k++)
            scale[k] = (uint8_t)((k < 8 ? p[k] & 15 : p[k - 8] >> 4) | (p[8 + k % 4] >> k / 4 * 2 & 3) << 4);
        __m512i all = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)scale));
        s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(all, _mm512_set1_epi32(32))),
                                _mm512_set1_ps(f16_at(b + 108)));
        return s;
    }
    case QFORMAT_IQ4_XS:
        for (int k = 0; k < 8; k++)
            scale[k] = (uint8_t)((b[4 + k / 2] >> k % 2 * 4 & 15) | ((b[2] | b[3] << 8) >> 2 * k & 3) << 4);
        s.scale = _mm512_mul_ps(_mm512_sub_ps(doubled(scale), _mm512_set1_ps(32)), _mm512_set1_ps(f16_at(b)));
        return s;
    default: // TQ2_0
        s.scale = _mm512_set1_ps(f16_at(b + 64));
        return s;
    }
}

/* The pairs of bits of 32 bytes at `at` that columns 64 k to 64 k + 63 of a half of a block have. */
static ALWAYS_INLINE __m512i bit_pairs(const uint8_t *at, const int k) {
    __m512i b = _mm512_broadcast_i64x4(load32(at));
    __m512i shifts = k ? _mm512_setr_epi64(4, 4, 4, 4, 6, 6, 6, 6) : _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    return _mm512_and_si512(_mm512_srlv_epi64(b, shifts), _mm512_set1_epi8(3));
}

/* Whether bit 2 k of each of 32 bytes is set, then bit 2 k + 1. */
static ALWAYS_INLINE __mmask64 bits_of(const uint8_t *at, const int k) {
    __m256i first = _mm256_set1_epi8((char)(1 << 2 * k)), second = _mm256_set1_epi8((char)(2 << 2 * k));
    return _mm512_test_epi8_mask(_mm512_broadcast_i64x4(load32(at)), two(first, second));
}

/* Columns 64 k to 64 k + 63 of a block of 256. */
static ALWAYS_INLINE __m512i codes_of(const enum qformat_id f, const uint8_t *b, const int k) {
    switch (f) {
    case QFORMAT_Q4_K: return halves(load32(b + 16 + 32 * k));
    case QFORMAT_Q5_K: {
        __m512i low = halves(load32(b + 48 + 32 * k));
        return _mm512_or_si512(low, _mm512_maskz_set1_epi8(bits_of(b + 16, k), 16));
    }
    case QFORMAT_Q6_K: {
        __m512i low = _mm512_loadu_si512(b + 64 * (k / 2));
        low = _mm512_and_si512(k % 2 ? _mm512_srli_epi16(low, 4) : low, _mm512_set1_epi8(15));
        __m512i high = bit_pairs(b + 128 + 32 * (k / 2), k % 2);
        return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
    }
    case QFORMAT_Q2_K: return bit_pairs(b + 16 + 32 * (k / 2), k % 2);
    case QFORMAT_Q3_K: {
        __m512i low = bit_pairs(b + 32 + 32 * (k / 2), k % 2);
        return _mm512_or_si512(low, _mm512_maskz_set1_epi8(bits_of(b, k), 4));
    }
    case QFORMAT_IQ4_XS: return looked_up(nibbles(b + 8 + 32 * k, b + 24 + 32 * k), iq4_values, 128);
    default: return bit_pairs(b + 32 * (k / 2), k % 2); // TQ2_0
    }
}
