/* codes.h - the codes of block formats as bytes.
 *
 * Unsigned ones u, or signed ones of formats with seven bits or more. They follow byte by byte from those that are
 * stored, so that the bytes of several rows may be brought into another order first. */
#pragma once

#include "backend/cpu/kernels/fp4/mxfp4.h"
#include "core/qformat.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* By how many products of codes fit in 16 bits: eight pairs of up to 15, four of up to 31, two of up to 63, which may
 * have a scale for 16 columns; words are signed, and none of their pairs is added to another in 16 bits. */
enum kind { FOUR_BITS, FIVE_BITS, SIX_BITS, HALVES, WORDS };

static ALWAYS_INLINE enum kind kind_of(const enum qformat_id f) {
    switch (f) {
    case QFORMAT_Q8_0:
    case QFORMAT_IQ4_NL:
    case QFORMAT_IQ4_XS:
    case QFORMAT_IQ2_XXS:
    case QFORMAT_IQ2_XS:
    case QFORMAT_IQ2_S: return WORDS;
    case QFORMAT_Q2_K:
    case QFORMAT_Q3_K:
    case QFORMAT_Q6_K:
    case QFORMAT_IQ1_M: return HALVES;
    case QFORMAT_IQ3_XXS: return SIX_BITS;
    case QFORMAT_Q5_0:
    case QFORMAT_Q5_1:
    case QFORMAT_Q5_K:
    case QFORMAT_MXFP4_HALVES: return FIVE_BITS;
    default: return FOUR_BITS;
    }
}

/* Words that have a scale for 16 columns are made ready with it. */
static ALWAYS_INLINE bool by_halves(const enum qformat_id f) {
    return kind_of(f) == HALVES || f == QFORMAT_IQ2_XS || f == QFORMAT_IQ2_S;
}

static ALWAYS_INLINE __m128i load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)(const void *)p); }
static ALWAYS_INLINE __m256i two(const uint8_t *a, const uint8_t *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(a)), load16(b), 1);
}
static ALWAYS_INLINE __m256i bits_from(__m256i v, const int shift, const int mask) {
    return _mm256_and_si256(shift ? _mm256_srli_epi16(v, shift) : v, _mm256_set1_epi8((char)mask));
}

/* The bits of the mask from bit `from` of each byte on, at bit `to`. */
static ALWAYS_INLINE __m256i bits_moved(__m256i v, const int from, const int to, const int mask) {
    v = from < to ? _mm256_slli_epi16(v, to - from) : from > to ? _mm256_srli_epi16(v, from - to) : v;
    return _mm256_and_si256(v, _mm256_set1_epi8((char)(mask << to)));
}

static ALWAYS_INLINE __m256i looked_up(__m256i codes, const int8_t values[16], const int more) {
    int8_t table[16];
    UNROLL for (int i = 0; i < 16; i++) table[i] = (int8_t)(values[i] + more);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16((const uint8_t *)table)), codes);
}

/* The last 16 columns of TQ1_0 are digits 0 to 3 of four bytes, the last of the 16. */
static ALWAYS_INLINE bool four_digits(const enum qformat_id f, const int k, const int h) {
    return f == QFORMAT_TQ1_0 && k == 7 && h == 1;
}

/* Digit `digit` of bytes that are fractions of 256: after so many times 3, how often a third goes into them. */
static ALWAYS_INLINE __m256i ternary(__m256i v, const int digit) {
    v = _mm256_xor_si256(v, _mm256_set1_epi8((char)128)); // 3 (v + 128) = 3 v + 128, and comparisons are signed
    UNROLL for (int i = 0; i < digit; i++) v = _mm256_add_epi8(_mm256_add_epi8(v, v), v);
    __m256i one = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(85 - 128)),
            two = _mm256_cmpgt_epi8(v, _mm256_set1_epi8(170 - 128));
    return _mm256_abs_epi8(_mm256_add_epi8(one, two));
}

/* Where the 16 bytes lie that columns 32 k + 16 h to 32 k + 16 h + 15 of a block are made of; and those with the bits
 * that some formats keep apart. */
static ALWAYS_INLINE int low_at(const enum qformat_id f, const int k, const int h) {
    const int pairs = k / 4 * 32 + 16 * h;
    switch (f) {
    case QFORMAT_Q8_0: return 2 + 16 * h;
    case QFORMAT_Q4_0:
    case QFORMAT_IQ4_NL: return 2;
    case QFORMAT_Q4_1: return 4;
    case QFORMAT_Q5_0: return 6;
    case QFORMAT_Q5_1: return 8;
    case QFORMAT_MXFP4_HALVES: return 1;
    case QFORMAT_Q4_K: return 16 + k / 2 * 32 + 16 * h;
    case QFORMAT_Q5_K: return 48 + k / 2 * 32 + 16 * h;
    case QFORMAT_Q6_K: return k / 4 * 64 + k % 2 * 32 + 16 * h;
    case QFORMAT_Q2_K: return 16 + pairs;
    case QFORMAT_Q3_K: return 32 + pairs;
    case QFORMAT_IQ4_XS: return 8 + 16 * k;
    case QFORMAT_TQ1_0: return k < 5 ? 16 * h : four_digits(f, k, h) ? 36 : 32;
    default: return pairs; // TQ2_0
    }
}
static ALWAYS_INLINE bool has_high(const enum qformat_id f) {
    return f == QFORMAT_Q5_K || f == QFORMAT_Q6_K || f == QFORMAT_Q3_K;
}
static ALWAYS_INLINE int high_at(const enum qformat_id f, const int k, const int h) {
    return f == QFORMAT_Q5_K ? 16 + 16 * h : f == QFORMAT_Q6_K ? 128 + k / 4 * 32 + 16 * h : 16 * h; // Q3_K
}

/* 32 bits of a row with the fifth bits of its columns. */
static ALWAYS_INLINE bool has_fifth(const enum qformat_id f) { return f == QFORMAT_Q5_0 || f == QFORMAT_Q5_1; }
static ALWAYS_INLINE int fifth_at(const enum qformat_id f) { return f == QFORMAT_Q5_0 ? 2 : 4; }

/* Codes of those bytes, byte by byte, whosever they are; with fifth bits high has those, 16 each. */
static ALWAYS_INLINE __m256i codes_from(const enum qformat_id f, const int k, const int h, __m256i low, __m256i high) {
    switch (f) {
    case QFORMAT_Q8_0: return low;
    case QFORMAT_Q4_0:
    case QFORMAT_Q4_1: return bits_from(low, 4 * h, 15);
    case QFORMAT_Q5_0:
    case QFORMAT_Q5_1: return _mm256_or_si256(bits_from(low, 4 * h, 15), high);
    case QFORMAT_IQ4_NL:
    case QFORMAT_IQ4_XS: return looked_up(bits_from(low, 4 * h, 15), iq4_values, 0);
    case QFORMAT_MXFP4_HALVES: return looked_up(bits_from(low, 4 * h, 15), e2m1_values, 12);
    case QFORMAT_Q4_K: return bits_from(low, k % 2 * 4, 15);
    case QFORMAT_Q5_K: return _mm256_or_si256(bits_from(low, k % 2 * 4, 15), bits_moved(high, k, 4, 1));
    case QFORMAT_Q6_K: return _mm256_or_si256(bits_from(low, k / 2 % 2 * 4, 15), bits_moved(high, k % 4 * 2, 4, 3));
    case QFORMAT_Q3_K: return _mm256_or_si256(bits_from(low, k % 4 * 2, 3), bits_moved(high, k, 2, 1));
    case QFORMAT_TQ1_0: return ternary(low, k < 5 ? k : 2 * (k - 5) + h);
    default: return bits_from(low, k % 4 * 2, 3); // Q2_K, TQ2_0
    }
}

/* 16 in each byte whose bit is set in the byte of v that `byte` names. */
static ALWAYS_INLINE __m256i sixteens(__m256i v, __m256i byte, __m256i bit) {
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(v, byte), bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

static ALWAYS_INLINE int u32_at(const uint8_t *p) {
    int u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* Fifth bits of 16 columns of two rows. */
static ALWAYS_INLINE __m256i fifth_of_two(const uint8_t *a, const uint8_t *b, const int h) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201),
                  byte = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
    __m256i both = _mm256_set_m128i(_mm_cvtsi32_si128(u32_at(b)), _mm_cvtsi32_si128(u32_at(a)));
    return sixteens(both, _mm256_add_epi8(byte, _mm256_set1_epi8((char)(2 * h))), bit);
}

/* Columns 32 k + 16 h to 32 k + 16 h + 15 of the blocks of two rows. */
static ALWAYS_INLINE __m256i codes_of(const enum qformat_id f, const uint8_t *a, const uint8_t *b, const int k,
                                      const int h) {
    const int low = low_at(f, k, h), high = high_at(f, k, h), fifth = fifth_at(f);
    if (four_digits(f, k, h)) {
        __m256i digits[4], bytes = _mm256_shuffle_epi32(two(a + low, b + low), 0xFF);
        UNROLL for (int i = 0; i < 4; i++) digits[i] = ternary(bytes, i);
        return _mm256_blend_epi32(_mm256_blend_epi32(digits[0], digits[1], 0x22),
                                  _mm256_blend_epi32(digits[2], digits[3], 0x88), 0xCC);
    }
    return codes_from(f, k, h, two(a + low, b + low),
                      has_high(f)    ? two(a + high, b + high)
                      : has_fifth(f) ? fifth_of_two(a + fifth, b + fifth, h)
                                     : _mm256_setzero_si256());
}
