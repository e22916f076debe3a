/* one.h - an octet of weights as it is stored times one row of x.
 *
 * Lanes are columns, and sums of eight rows are folded together until lanes are rows. As long as sums fit in 16 bits
 * they are folded there, which is half the work:
 *     32 columns of a row in as many bytes (of 256 columns)    a vector is a row; two rows' halves are added crosswise
 *     in 16 bytes                                              a vector is rows i and i + 4, as they are loaded
 * An instruction counts here, not a byte: Q4_K takes 66 a block of 32 columns of eight rows, Q6_K 100. */
#pragma once

#include "backend/cpu/kernels/avx2/octets.h"

/* How far ahead weights are fetched: to the last row's first block at least, when an octet begins. */
static ALWAYS_INLINE int64_t fetched_ahead(int64_t stride) { return MAX(12 << 10, OCTET * stride + (2 << 10)); }

static ALWAYS_INLINE __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
static ALWAYS_INLINE __m256i ones(void) { return _mm256_set1_epi16(1); }

static ALWAYS_INLINE bool by_whole_rows(const enum qformat_id f, const int k) {
    return cols_of_block(f) > BLOCK && f != QFORMAT_IQ4_XS && (f != QFORMAT_TQ1_0 || k < 5);
}

/* ---- folds: of a and b the sums of both halves ---- */

/* Of 128 bits, as two of these. */
static ALWAYS_INLINE __m256i fold_lanes(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_blend_epi32(a, b, 0xF0), _mm256_permute2x128_si256(a, b, 0x21));
}
/* In each lane of 64 bits: a's, b's. */
static ALWAYS_INLINE __m256i fold_quads(__m256i a, __m256i b) {
    return _mm256_add_epi16(_mm256_blend_epi32(a, b, 0xCC), _mm256_alignr_epi8(b, a, 8));
}
static ALWAYS_INLINE __m256i fold_quads_of_ints(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xCC), _mm256_alignr_epi8(b, a, 8));
}
/* In each lane of 32 bits, both of a's, both of b's. */
static ALWAYS_INLINE __m256i evens(__m256i a, __m256i b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
}
static ALWAYS_INLINE __m256i odds(__m256i a, __m256i b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xDD));
}

/* Four vectors with sums of 16 bits of row i, then of row i + 4: D. Two more such fit with codes of five bits, four
 * with four. */
static ALWAYS_INLINE __m256i sums_of_words(const enum kind kind, const __m256i v[4]) {
    __m256i a = fold_quads(v[0], v[1]), b = fold_quads(v[2], v[3]);
    if (kind == FOUR_BITS)
        return _mm256_madd_epi16(_mm256_add_epi16(evens(a, b), odds(a, b)), ones());
    a = _mm256_madd_epi16(a, ones()), b = _mm256_madd_epi16(b, ones());
    return _mm256_add_epi32(evens(a, b), odds(a, b));
}
static ALWAYS_INLINE __m256i sums_of_ints(const __m256i v[4]) {
    __m256i a = fold_quads_of_ints(v[0], v[1]), b = fold_quads_of_ints(v[2], v[3]);
    return _mm256_add_epi32(evens(a, b), odds(a, b));
}

/* Eight vectors of a row's sums of 16 bits, columns 0 to 15 in the first lane: D of both halves. Two such fit. */
static ALWAYS_INLINE void sums_of_halves(const __m256i v[8], __m256i d[2]) {
    __m256i two[4], four[2];
    UNROLL for (int i = 0; i < 4; i++) two[i] = _mm256_madd_epi16(fold_quads(v[2 * i], v[2 * i + 1]), ones());
    UNROLL for (int i = 0; i < 2; i++) four[i] =
        _mm256_add_epi32(evens(two[2 * i], two[2 * i + 1]), odds(two[2 * i], two[2 * i + 1]));
    d[0] = _mm256_permute2x128_si256(four[0], four[1], 0x20);
    d[1] = _mm256_permute2x128_si256(four[0], four[1], 0x31);
}

/* ---- a block of 32 columns ---- */

/* Of rows whose 32 columns are as many bytes. */
static ALWAYS_INLINE __m256i whole_rows(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                        const struct scales *s, const float *x) {
    const enum kind kind = kind_of(f);
    __m256i v[8], d[2], x_bytes = load32((const uint8_t *)x);
    UNROLL for (int i = 0; i < 8; i++) {
        const uint8_t *row = p + i * stride;
        __m256i high = has_high(f) ? load32(row + high_at(f, k, 0)) : _mm256_setzero_si256();
        v[i] = _mm256_maddubs_epi16(codes_from(f, k, 0, load32(row + low_at(f, k, 0)), high), x_bytes);
    }
    if (kind == HALVES) {
        sums_of_halves(v, d);
        return _mm256_add_epi32(_mm256_mullo_epi32(d[0], s->by_half[0]), _mm256_mullo_epi32(d[1], s->by_half[1]));
    }
    UNROLL for (int i = 0; i < 4; i++) v[i] = fold_lanes(v[i], v[i + 4]);
    return sums_of_words(kind, v);
}

/* Sums of 32 bits of 16 columns of two rows. */
static ALWAYS_INLINE __m256i pairs_of(__m256i codes, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)), ones());
}

/* Of two rows at a time. */
static ALWAYS_INLINE __m256i two_rows(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                      const float *x) {
    const enum kind kind = kind_of(f);
    __m256i x_low = _mm256_broadcastsi128_si256(load16((const uint8_t *)x)),
            x_high = _mm256_broadcastsi128_si256(load16((const uint8_t *)x + 16)), v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const uint8_t *a = p + i * stride, *b = p + (i + 4) * stride;
        __m256i first = codes_of(f, a, b, k, 0), second = codes_of(f, a, b, k, 1);
        v[i] = kind == WORDS
                   ? _mm256_add_epi32(pairs_of(first, x_low), pairs_of(second, x_high))
                   : _mm256_add_epi16(_mm256_maddubs_epi16(first, x_low), _mm256_maddubs_epi16(second, x_high));
    }
    return kind == WORDS ? sums_of_ints(v) : sums_of_words(kind, v);
}

static ALWAYS_INLINE __m256 one_block(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                      const struct scales *s, const float *x, __m256 y) {
    __m256i d = by_whole_rows(f, k) ? whole_rows(f, p, stride, k, s, x) : two_rows(f, p, stride, k, x);
    return add_block(kind_of(f), d, s, x + 8, y);
}

/* ---- an octet ---- */

/* To memory an octet is one linear stream, fetched into the second-level cache well ahead of its use. */
static ALWAYS_INLINE const uint8_t *fetch(const uint8_t *ahead, const int64_t n_bytes) {
    UNROLL for (int64_t i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);
    return ahead + n_bytes;
}

static ALWAYS_INLINE __m256 one_octet(const enum qformat_id f, const uint8_t *p, int64_t stride, const float *x,
                                      int64_t n_cols, bool near) {
    const int bytes = bytes_of_block(f), cols = cols_of_block(f);
    const uint8_t *ahead = p + fetched_ahead(stride);
    __m256 y = _mm256_setzero_ps();
    for (int64_t c = 0; c < n_cols; c += cols, p += bytes) {
        struct packed_scales packed;
        if (cols > BLOCK)
            packed = packed_scales(f, p, stride);
        UNROLL for (int k = 0; k < cols / BLOCK; k++, x += BYTES_FLOATS) {
            struct scales s = cols > BLOCK ? large_scales(f, &packed, k) : small_scales(f, p, stride);
            if (!near)
                ahead = fetch(ahead, OCTET * BLOCK * bytes / cols);
            y = one_block(f, p, stride, k, &s, x, y);
        }
    }
    return y;
}
