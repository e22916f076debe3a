/* octets.h - what products with octets of rows share: their weights' way to registers, and their results' to memory. */
#pragma once

#include "backend/cpu/kernels/avx2/steps.h"
#include "backend/cpu/kernels/blocks.h"

#include "base/status.h"

enum {
    BLOCK = 32, // columns
    OCTET = 8,
    BYTES_FLOATS = 12, // of a block of one row of x, as arranged
    WORDS_FLOATS = 20,
    MOST_BLOCK_BYTES = 256, // as stored
};

/* Vectors of a block of an octet made ready. */
static ALWAYS_INLINE int ready_vectors(const enum kind kind) { return kind == WORDS ? 17 : kind == HALVES ? 13 : 10; }

static ALWAYS_INLINE int x_floats(const enum kind kind, int n_x) {
    return kind == WORDS && n_x > 1 ? WORDS_FLOATS : BYTES_FLOATS;
}

static ALWAYS_INLINE __m256 at_each(const float *p) { return _mm256_broadcast_ss(p); }

/* y and what a block adds to it; x: its four floats. */
static ALWAYS_INLINE __m256 add_block(const enum kind kind, __m256i d, const struct scales *s, const float *x,
                                      __m256 y) {
    y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(s->scale, at_each(x)), y);
    if (kind == HALVES) {
        y = _mm256_fmadd_ps(s->min, at_each(x + 2), y);
        y = _mm256_fmadd_ps(s->min_of_second, at_each(x + 3), y);
    } else if (kind != WORDS) {
        y = _mm256_fmadd_ps(s->min, at_each(x + 1), y);
    }
    return y;
}

/* Of an octet of rows, `stride` bytes apart: their products with one row of x, as arranged; and n_blocks blocks of 32
 * columns of them made ready, where of n_rows < 8 the last one stands for those behind. */
struct octet_functions {
    __m256 (*one)(const uint8_t *p, int64_t stride, const float *x, int64_t n_cols, bool near);
    void (*ready)(const uint8_t *p, int64_t stride, int64_t n_rows, int64_t n_blocks, __m256i *out);
};

/* ---- octets made ready ---- */

/* A block of each of eight rows at p, of which there may be fewer: copies, then. */
static ALWAYS_INLINE const uint8_t *eight_rows(const uint8_t *p, int64_t *stride, int64_t n_rows, int n_bytes,
                                               uint8_t copies[OCTET][MOST_BLOCK_BYTES]) {
    if (n_rows >= OCTET)
        return p;
    for (int i = 0; i < OCTET; i++)
        memcpy(copies[i], p + MIN(i, n_rows - 1) * *stride, (size_t)n_bytes);
    *stride = MOST_BLOCK_BYTES;
    return copies[0];
}

/* Two times four vectors of 16 columns of two rows, as eight of four columns of eight rows. */
static ALWAYS_INLINE void turn(const __m256i v[4], __m256i out[4]) {
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c), out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d), out[3] = _mm256_unpackhi_epi64(b, d);
}

/* Twice the same 16 bits. */
static ALWAYS_INLINE __m256i as_pairs(__m256i v) {
    return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xFFFF)), _mm256_slli_epi32(v, 16));
}

/* 16 bytes of each of eight rows as four vectors of four bytes of eight rows. */
static ALWAYS_INLINE void turned_at(const uint8_t *p, int64_t stride, __m256i out[4]) {
    __m256i v[4];
    UNROLL for (int i = 0; i < 4; i++) v[i] = two(p + i * stride, p + (i + 4) * stride);
    turn(v, out);
}

/* Bytes, or words in the order of x. */
static ALWAYS_INLINE void put_codes(const enum kind kind, __m256i codes, const int h, const int i, __m256i *block) {
    const __m256i sign = _mm256_set1_epi8((char)128), even = _mm256_set1_epi16(255), less = _mm256_set1_epi16(128);
    if (kind != WORDS) {
        _mm256_storeu_si256(block + 4 * h + i, codes);
        return;
    }
    __m256i *to = block + 2 * (4 * h + i); // without a shift for the even ones: shifts wait for one another
    _mm256_storeu_si256(to, _mm256_sub_epi16(_mm256_and_si256(_mm256_xor_si256(codes, sign), even), less));
    _mm256_storeu_si256(to + 1, _mm256_srai_epi16(codes, 8));
}

static ALWAYS_INLINE void put_scales(const enum kind kind, const struct scales *s, __m256i *out) {
    out += kind == WORDS ? 16 : 8;
    if (kind == HALVES)
        UNROLL for (int h = 0; h < 2; h++) _mm256_storeu_si256(out++, as_pairs(s->by_half[h]));
    float *floats = (float *)(void *)out;
    _mm256_storeu_ps(floats, s->scale);
    if (kind != WORDS)
        _mm256_storeu_ps(floats + OCTET, s->min);
    if (kind == HALVES)
        _mm256_storeu_ps(floats + 2 * OCTET, s->min_of_second);
}

/* ---- formats ---- */

/* Formats whose codes lie by columns (steps.h), and those of points (points.h). */
#define SMALL_BLOCKS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES)
#define LARGE_BLOCKS(X) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) X(TQ1_0) X(TQ2_0)
#define POINT_BLOCKS(X) X(IQ1_S) X(IQ1_M) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S)

extern const struct octet_functions points_functions[N_QFORMATS]; // NULL for others
void points_prepare(void);                                        // once, before them

/* Over two functions of a format. */
#define OCTET_FUNCTIONS(id, one_octet, ready_octet)                                                            \
    static __m256 one_##id(const uint8_t *p, int64_t stride, const float *x, int64_t n_cols, bool near) {      \
        return one_octet(QFORMAT_##id, p, stride, x, n_cols, near);                                            \
    }                                                                                                          \
    static void ready_##id(const uint8_t *p, int64_t stride, int64_t n_rows, int64_t n_blocks, __m256i *out) { \
        ready_octet(QFORMAT_##id, p, stride, n_rows, n_blocks, out);                                           \
    }
#define OCTET_ROW(id) [QFORMAT_##id] = {one_##id, ready_##id},
