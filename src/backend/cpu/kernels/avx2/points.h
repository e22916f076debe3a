/* points.h - blocks of GGUF's IQ1, IQ2 and IQ3, of eight rows: how their codes and scales become those of steps.h.
 *
 * A code stands for a point, 8 columns (of IQ3 4) that a table has as bytes. To look one up takes two loads, which is
 * most of what one row of x costs; so whatever else says something of columns is taken from eight rows at once before:
 *
 *   codes   more than 8 bits, as words           iq2_xs iq2_s iq3_s iq1_s iq1_m
 *   signs   a bit a column                       of seven bits the eighth is their parity
 *   scales  of 32 columns, or of 16              iq2_xs iq2_s iq1_m
 *
 * What a table has and how it becomes the code u of a column with value w, m being all bits where w is negative:
 *
 *   iq2      |w|: 8 25 43       words (2 s + 1) w, or x takes the sign
 *   iq3_xxs  31 + |w| / 2       u = 31 + w / 2, 0 to 62: 62 less the other's
 *   iq3_s    8 + (|w| - 1) / 2  u = (15 + w) / 2, 0 to 15: 15 less the other's
 *   iq1_s    1 + w              0 to 2; 1 less or more 1/8 is the min
 *   iq1_m    1 + w              u = 9 + 8 w - 1 or + 1 */
#pragma once

#include "backend/cpu/kernels/avx2/octets.h"

enum { SUBS = 8 }; // of 32 columns, that a block of 256 has

struct octet_points {
    struct scales scales[SUBS];
    __m256i signs[SUBS]; // four bytes a row, of 8 columns each, rows in order; of iq1_m 2 where 1/8 is added, else 0
    _Alignas(32) uint16_t codes[SUBS][64]; // of codes that are no bytes, as put_words has them
};

/* ---- bits of eight rows ---- */

/* Four fields of `bits` bits of each 32, of which no others are set, as four bytes. */
static ALWAYS_INLINE __m256i fields(__m256i v, const int bits) {
    const int mask = (1 << bits) - 1, twice = (1 << 2 * bits) - 1;
    v = _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi32(v, 16 - 2 * bits)), _mm256_set1_epi32(twice * 0x10001));
    return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi32(v, 8 - bits)), _mm256_set1_epi32(mask * 0x01010101));
}

/* Bytes of seven signs with the eighth. */
static ALWAYS_INLINE __m256i eight_signs(__m256i seven) {
    const __m256i parity = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    __m256i low = _mm256_shuffle_epi8(parity, seven), high = _mm256_shuffle_epi8(parity, bits_from(seven, 4, 7));
    return _mm256_xor_si256(_mm256_xor_si256(low, high), seven);
}

/* The same of the lowest 28 bits of each 32, four times seven. */
static ALWAYS_INLINE __m256i signs_of_28(__m256i v) {
    v = _mm256_blend_epi16(v, _mm256_slli_epi32(v, 2), 0xAA);
    __m256i odd = _mm256_and_si256(_mm256_slli_epi16(v, 1), _mm256_set1_epi32(0x7F007F00));
    return eight_signs(_mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0x007F007F)), odd));
}

/* Byte b of each row's four, four times. */
static ALWAYS_INLINE __m256i byte_of_each(__m256i v, const int b) {
    const __m256i first =
        _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, _mm256_set1_epi8((char)b)));
}

/* Four codes a row, whose low and high bytes these are: rows 0 1 4 5, then 2 3 6 7. */
static ALWAYS_INLINE void put_words(__m256i low, __m256i high, uint16_t *out) {
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_unpackhi_epi8(low, high));
}
static ALWAYS_INLINE int word_at(const int row, const int j) {
    return j / 4 * 32 + row % 4 / 2 * 16 + row / 4 * 8 + row % 2 * 4 + j % 4;
}

/* 32 bytes of each row, four a sub-block. */
static ALWAYS_INLINE void turned_32(const uint8_t *p, int64_t stride, __m256i out[SUBS]) {
    turned_at(p, stride, out);
    turned_at(p + 16, stride, out + 4);
}

/* d (2 s + 1), d (2 s + 1) as a float and 2 s + 1 as an integer. */
static ALWAYS_INLINE __m256 odd_times(__m256i s, __m256 d) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), _mm256_add_ps(d, d), d);
}
static ALWAYS_INLINE __m256i odd(__m256i s) { return _mm256_or_si256(_mm256_add_epi32(s, s), _mm256_set1_epi32(1)); }

/* ---- blocks ---- */

static ALWAYS_INLINE void points_iq2_xxs(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256 d = times(f16_at(p, stride), 0.125f);
    UNROLL for (int k = 0; k < SUBS; k += 2) {
        __m256i words[4];
        turned_at(p + 2 + 8 * k, stride, words);
        UNROLL for (int i = 0; i < 2; i++) {
            __m256i rest = words[2 * i + 1];
            o->signs[k + i] = signs_of_28(rest);
            o->scales[k + i].scale = odd_times(_mm256_srli_epi32(rest, 28), d);
        }
    }
}

static ALWAYS_INLINE void points_iq3_xxs(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256 d = times(f16_at(p, stride), 0.5f);
    __m256i rest[SUBS];
    turned_32(p + 66, stride, rest);
    UNROLL for (int k = 0; k < SUBS; k++) {
        o->signs[k] = signs_of_28(rest[k]);
        o->scales[k].scale = odd_times(_mm256_srli_epi32(rest[k], 28), d);
        o->scales[k].min = times(o->scales[k].scale, 31);
    }
}

/* Scales of iq2_xs and iq2_s: 8 bytes at p, a half byte for each 16 columns. */
static ALWAYS_INLINE void halves_of_iq2(const uint8_t *p, int64_t stride, __m256 d, struct octet_points *o) {
    __m256i s[2] = {words_at(p, stride), words_at(p + 4, stride)};
    UNROLL for (int k = 0; k < SUBS; k++) {
        o->scales[k].scale = times(d, 0.125f);
        UNROLL for (int h = 0; h < 2; h++) o->scales[k].by_half[h] = odd(and_all(s[k / 4], k % 4 * 8 + 4 * h, 15));
    }
}

static ALWAYS_INLINE void points_iq2_xs(const uint8_t *p, int64_t stride, struct octet_points *o) {
    halves_of_iq2(p + 66, stride, f16_at(p, stride), o);
    UNROLL for (int k = 0; k < SUBS; k += 2) {
        __m256i two_rows[4], seven[2][2];
        UNROLL for (int i = 0; i < 4; i++) {
            const uint8_t *at = p + 2 + 8 * k + i * stride;
            two_rows[i] = two(at, at + 4 * stride);
        }
        UNROLL for (int j = 0; j < 2; j++) UNROLL for (int i = 0; i < 2; i++) {
            __m256i a = two_rows[2 * j], b = two_rows[2 * j + 1],
                    words = i ? _mm256_unpackhi_epi64(a, b) : _mm256_unpacklo_epi64(a, b);
            seven[i][j] = _mm256_srli_epi16(words, 9);
            _mm256_storeu_si256((__m256i *)(void *)(o->codes[k + i] + 16 * j),
                                _mm256_and_si256(words, _mm256_set1_epi16(511)));
        }
        UNROLL for (int i = 0; i < 2; i++) o->signs[k + i] = eight_signs(_mm256_packus_epi16(seven[i][0], seven[i][1]));
    }
}

static ALWAYS_INLINE void points_iq2_s(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256i low[SUBS], high[2] = {words_at(p + 66, stride), words_at(p + 70, stride)};
    halves_of_iq2(p + 74, stride, f16_at(p, stride), o);
    turned_32(p + 2, stride, low);
    turned_32(p + 34, stride, o->signs);
    UNROLL for (int k = 0; k < SUBS; k++)
        put_words(low[k], fields(and_all(high[k / 4], k % 4 * 8, 255), 2), o->codes[k]);
}

static ALWAYS_INLINE void points_iq3_s(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256i low[2][SUBS], high[2] = {words_at(p + 66, stride), words_at(p + 70, stride)}, s = words_at(p + 106, stride);
    __m256 d = f16_at(p, stride);
    turned_32(p + 2, stride, low[0]);
    turned_32(p + 34, stride, low[1]);
    turned_32(p + 74, stride, o->signs);
    UNROLL for (int k = 0; k < SUBS; k++) {
        __m256i bits = byte_of_each(high[k / 4], k % 4);
        UNROLL for (int j = 0; j < 2; j++) {
            __m256i one = _mm256_and_si256(bits, _mm256_set1_epi32(j ? (int)0x80402010 : 0x08040201));
            put_words(low[k / 4][k % 4 * 2 + j], _mm256_min_epu8(one, _mm256_set1_epi8(1)), o->codes[k] + 32 * j);
        }
        __m256 scale = odd_times(and_all(s, 4 * k, 15), d);
        o->scales[k].scale = _mm256_add_ps(scale, scale);
        o->scales[k].min = times(scale, 15);
    }
}

static ALWAYS_INLINE void points_iq1_s(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256i low[SUBS], rest[4];
    __m256 d = f16_at(p, stride);
    turned_32(p + 2, stride, low);
    turned_at(p + 34, stride, rest);
    UNROLL for (int k = 0; k < SUBS; k++) {
        const int at = k % 2 * 16;
        put_words(low[k], fields(and_all(rest[k / 2], at, 0xFFF), 3), o->codes[k]);
        __m256 minus = _mm256_cvtepi32_ps(and_all(rest[k / 2], at + 15, 1));
        o->scales[k].scale = odd_times(and_all(rest[k / 2], at + 12, 7), d);
        minus = _mm256_fmadd_ps(minus, _mm256_set1_ps(0.25f), _mm256_set1_ps(0.875f));
        o->scales[k].min = _mm256_mul_ps(o->scales[k].scale, minus);
    }
}

/* d of iq1_m: the highest four bits of each of the words that have the scales. */
static ALWAYS_INLINE __m256 d_of_iq1_m(__m256i first, __m256i second) {
    __m256i low = _mm256_or_si256(and_all(first, 12, 0xF), and_all(first, 24, 0xF0)),
            high = _mm256_or_si256(and_all(second, 4, 0xF00), and_all(second, 16, 0xF000)),
            d = _mm256_packus_epi32(_mm256_or_si256(low, high), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(d, 0xD8)));
}

static ALWAYS_INLINE void points_iq1_m(const uint8_t *p, int64_t stride, struct octet_points *o) {
    __m256i low[SUBS], high[4], s[2] = {words_at(p + 48, stride), words_at(p + 52, stride)};
    __m256 d = times(d_of_iq1_m(s[0], s[1]), 0.125f), nine = times(d, 9);
    turned_32(p, stride, low);
    turned_at(p + 32, stride, high);
    UNROLL for (int k = 0; k < SUBS; k++) {
        const __m256i two = _mm256_set1_epi8(2);
        struct scales *to = &o->scales[k];
        __m256i rest = fields(and_all(high[k / 2], k % 2 * 16, 0xFFFF), 4);
        put_words(low[k], _mm256_and_si256(rest, _mm256_set1_epi8(7)), o->codes[k]);
        o->signs[k] = _mm256_andnot_si256(_mm256_srli_epi16(rest, 2), two);
        to->scale = d;
        UNROLL for (int h = 0; h < 2; h++) to->by_half[h] =
            odd(and_all(s[k / 4], k / 2 % 2 * 16 + k % 2 * 6 + 3 * h, 7));
        to->min = _mm256_mul_ps(_mm256_cvtepi32_ps(to->by_half[0]), nine);
        to->min_of_second = _mm256_mul_ps(_mm256_cvtepi32_ps(to->by_half[1]), nine);
    }
}
