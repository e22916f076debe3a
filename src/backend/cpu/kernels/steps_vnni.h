/* steps_vnni.h - block formats as what AVX-512 VNNI multiplies: 64 columns of sixteen rows of weights, a step.
 *
 * vpdpbusd adds to each of 16 sums of 32 bits the products of four unsigned and four signed bytes. The lanes of a float
 * are rows, so of sixteen rows a block of 32 columns, or half of one in formats with a scale for each 16, gives 16
 * integers, and then
 *
 *     codes   u, unsigned bytes made of what the block stores
 *     D       sum of u x                                                                          integers, exact
 *     y      += s_x (scale (D - o S) - min S), S the sum of x's, o what makes u of signed numbers    float32
 *
 * D - o S is one sum, and o is a power of two, so that a shift makes o S. s_x = max |x| / 127 of 32 columns, and x is
 * rounded to even. What is no number in x makes s_x none. */
#pragma once

#include "backend/cpu/kernels/fp4/mxfp4.h"
#include "backend/cpu/kernels/kernels.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    STEP = 64,     // columns
    SIXTEEN = 16,  // rows
    BLOCK = 32,    // columns that share s_x
    MOST_PARTS = 4 // of a step: runs of columns that share a scale
};

static ALWAYS_INLINE uint32_t u32_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}
static ALWAYS_INLINE uint64_t u16_at(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
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

/* Parts of a step. */
static ALWAYS_INLINE int n_parts(const enum qformat_id f) {
    return f == QFORMAT_Q2_K || f == QFORMAT_Q3_K || f == QFORMAT_Q6_K ? 4 : 2;
}

/* ---- codes of a row ---- */

/* Of two blocks of 32 columns, at a and b. */
static ALWAYS_INLINE __m512i two_blocks(const enum qformat_id f, const uint8_t *a, const uint8_t *b) {
    switch (f) {
    case QFORMAT_Q8_0: return _mm512_xor_si512(two(load32(a + 2), load32(b + 2)), _mm512_set1_epi8((char)0x80));
    case QFORMAT_Q4_0: return nibbles(a + 2, b + 2);
    case QFORMAT_Q5_0: return with_fifth_bits(nibbles(a + 6, b + 6), a + 2, b + 2);
    case QFORMAT_Q4_1: return nibbles(a + 4, b + 4);
    case QFORMAT_Q5_1: return with_fifth_bits(nibbles(a + 8, b + 8), a + 4, b + 4);
    case QFORMAT_IQ4_NL: return looked_up(nibbles(a + 2, b + 2), iq4_values, 128);
    default: return looked_up(nibbles(a + 1, b + 1), e2m1_values, 16); // MXFP4_HALVES
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

/* ---- codes of four rows ---- */

static ALWAYS_INLINE long long four_shorts_at(const uint8_t *p, int64_t stride) {
    return (long long)(u16_at(p) | u16_at(p + stride) << 16 | u16_at(p + 2 * stride) << 32 |
                       u16_at(p + 3 * stride) << 48); // where vectors are shuffled is what is busy
}
static ALWAYS_INLINE __m512i from_four(const __m128i v[4]) {
    __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(v[0]), v[1], 1),
            b = _mm256_inserti128_si256(_mm256_castsi128_si256(v[2]), v[3], 1);
    return two(a, b);
}

/* Whether a block is 32 columns, of which 16 bytes have low halves, then high halves. */
static ALWAYS_INLINE bool by_halves(const enum qformat_id f) {
    return f == QFORMAT_Q4_0 || f == QFORMAT_Q4_1 || f == QFORMAT_Q5_0 || f == QFORMAT_Q5_1 || f == QFORMAT_IQ4_NL ||
           f == QFORMAT_MXFP4_HALVES;
}

static ALWAYS_INLINE int halves_at(const enum qformat_id f) {
    return f == QFORMAT_MXFP4_HALVES ? 1 : f == QFORMAT_Q4_1 ? 4 : f == QFORMAT_Q5_0 ? 6 : f == QFORMAT_Q5_1 ? 8 : 2;
}

/* Columns 0 to 15 of each row, and 16 to 31. */
struct two_codes {
    __m512i low, high;
};

static ALWAYS_INLINE struct two_codes codes_of_halves(const enum qformat_id f, const uint8_t *p, int64_t stride) {
    __m128i rows[4];
    UNROLL for (int i = 0; i < 4; i++) rows[i] =
        _mm_loadu_si128((const __m128i *)(const void *)(p + i * stride + halves_at(f)));
    __m512i bytes = from_four(rows), mask = _mm512_set1_epi8(15);
    struct two_codes c = {_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask)};
    if (f == QFORMAT_IQ4_NL || f == QFORMAT_MXFP4_HALVES) {
        const int8_t *values = f == QFORMAT_IQ4_NL ? iq4_values : e2m1_values;
        c.low = looked_up(c.low, values, 1 << offset_bits(f)), c.high = looked_up(c.high, values, 1 << offset_bits(f));
    }
    if (f == QFORMAT_Q5_0 || f == QFORMAT_Q5_1) {
        const uint8_t *fifth = p + halves_at(f) - 4;
        __mmask64 low = (__mmask64)four_shorts_at(fifth, stride), high = (__mmask64)four_shorts_at(fifth + 2, stride);
        c.low = _mm512_or_si512(c.low, _mm512_maskz_set1_epi8(low, 16));
        c.high = _mm512_or_si512(c.high, _mm512_maskz_set1_epi8(high, 16));
    }
    return c;
}
