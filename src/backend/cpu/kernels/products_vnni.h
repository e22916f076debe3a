/* products_vnni.h - sixteen rows of blocks at a time times rows of x, over the steps of steps_vnni.h. PRODUCTS(id)
 * defines functions_id; the files of products share the formats out, so that they are compiled at the same time.
 *
 *     one row of x      codes as they are stored, lanes are columns; sums are folded until lanes are rows
 *     more rows of x    a step made ready: each vector is four columns of sixteen rows, to meet four of x broadcast
 *                       (vnni/tiles.h)
 *
 * D is exact, so whoever makes it gives the same bits. */
#pragma once

#include "backend/cpu/kernels/kernels_vnni.h"
#include "backend/cpu/kernels/scales_vnni.h"

#include "base/status.h"

enum { MOST_BLOCK_BYTES = 210 };

/* To memory sixteen rows are one linear stream, fetched into the second-level cache well ahead of its use. */
static ALWAYS_INLINE const uint8_t *fetch(const uint8_t *ahead, const int n_bytes) {
    UNROLL for (int i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);
    return ahead + n_bytes;
}

/* Columns 64 k to 64 k + 63 of a row: of a block of 256, or of two of 32 of which the second may be missing. */
static ALWAYS_INLINE __m512i step_codes(const enum qformat_id f, const uint8_t *p, const int k, const bool whole) {
    static const uint8_t none[64];
    if (cols_of_block(f) == 256)
        return codes_of(f, p, k);
    return two_blocks(f, p, whole ? p + bytes_of_block(f) : none);
}

static ALWAYS_INLINE void step_scales(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                      const bool whole, const struct packed_scales *packed, struct step_scales *s) {
    if (cols_of_block(f) == 256) {
        large_scales(f, packed, k, s);
        return;
    }
    small_scales(f, p, stride, 0, s);
    s->scale[1] = s->min[1] = _mm512_setzero_ps();
    if (whole)
        small_scales(f, p + bytes_of_block(f), stride, 1, s);
}

/* Four times four vectors of 128 bits: out[q] has quarter q of each. */
static ALWAYS_INLINE void turn_quarters(const __m512i v[4], __m512i out[4]) {
    __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44), b = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
    __m512i c = _mm512_shuffle_i32x4(v[0], v[1], 0xEE), d = _mm512_shuffle_i32x4(v[2], v[3], 0xEE);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88), out[1] = _mm512_shuffle_i32x4(a, b, 0xDD);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88), out[3] = _mm512_shuffle_i32x4(c, d, 0xDD);
}

/* ---- one row of x ---- */

/* Whether so many products of codes fit in 16 bits. */
static ALWAYS_INLINE bool fit_in_words(const enum qformat_id f, const int n_products) {
    switch (f) {
    case QFORMAT_Q8_0:
    case QFORMAT_IQ4_NL:
    case QFORMAT_IQ4_XS: return false;
    case QFORMAT_Q6_K: return n_products <= 4; // 4 * 63 * 127
    case QFORMAT_Q5_0:
    case QFORMAT_Q5_1:
    case QFORMAT_Q5_K:
    case QFORMAT_MXFP4_HALVES: return n_products <= 8; // 8 * 31 * 127
    default: return n_products <= 16;                  // 16 * 15 * 127
    }
}

/* In each 128 bits: of a two sums, each of two of its integers, then of b. */
static ALWAYS_INLINE __m512i fold_words(__m512i a, __m512i b) {
    return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
}

/* Of four vectors a, b, c, d with sums of n products: in each 128 bits the sums of a's, b's, c's and d's. */
static ALWAYS_INLINE __m512i fold_four(const enum qformat_id f, const int n, const __m512i v[4]) {
    __m512i a, b;
    if (fit_in_words(f, n)) {
        a = fold_words(v[0], v[1]), b = fold_words(v[2], v[3]);
        if (fit_in_words(f, 2 * n))
            return fold_words(a, b);
        __m512 even = _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88),
               odd = _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xDD);
        return _mm512_add_epi32(_mm512_castps_si512(even), _mm512_castps_si512(odd));
    }
    a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* D of the parts of a step, whose codes of a row fill a vector. */
static ALWAYS_INLINE void sums_of_step(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                       const bool whole, const float *x, __m512i d[MOST_PARTS]) {
    const __m512i q = _mm512_loadu_si512(x);
    __m512i four[4];
    UNROLL for (int g = 0; g < 4; g++) {
        __m512i v[4];
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), step_codes(f, p + (4 * g + i) * stride, k, whole), q);
        four[g] = fold_four(f, 4, v);
    }
    turn_quarters(four, d);
    if (n_parts(f) == 2)
        d[0] = _mm512_add_epi32(d[0], d[1]), d[1] = _mm512_add_epi32(d[2], d[3]);
}

/* D of a block of 32 columns in halves of 16 bytes: a vector is the bytes of four rows. */
static ALWAYS_INLINE __m512i sums_of_halves(const enum qformat_id f, const uint8_t *p, int64_t stride, const float *x) {
    const __m128i *halves_of_x = (const __m128i *)(const void *)x;
    const __m512i x_low = _mm512_broadcast_i32x4(_mm_loadu_si128(halves_of_x)),
                  x_high = _mm512_broadcast_i32x4(_mm_loadu_si128(halves_of_x + 1));
    __m512i v[4];
    UNROLL for (int g = 0; g < 4; g++) {
        struct two_codes codes = codes_of_halves(f, p + g * stride, 4 * stride);
        v[g] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.low, x_low);
        v[g] = _mm512_dpbusd_epi32(v[g], codes.high, x_high);
    }
    return fold_four(f, 8, v);
}

/* y and what a step adds to it. */
static ALWAYS_INLINE __m512 add_step(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                     const bool whole, const struct packed_scales *packed, const float *x, __m512 y) {
    const int parts = n_parts(f);
    __m512i d[MOST_PARTS] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    struct step_scales s = {0};
    if (by_halves(f)) {
        d[0] = sums_of_halves(f, p, stride, x);
        if (whole)
            d[1] = sums_of_halves(f, p + bytes_of_block(f), stride, x + BLOCK / sizeof *x);
    } else {
        sums_of_step(f, p, stride, k, whole, x, d);
    }
    step_scales(f, p, stride, k, whole, packed, &s);
    UNROLL for (int i = 0; i < parts; i++) {
        if (offset_bits(f) >= 0)
            d[i] = _mm512_add_epi32(d[i], _mm512_slli_epi32(taken_of(x, parts, i), (unsigned)MAX(offset_bits(f), 0)));
        y = add_part(has_min(f), parts, d[i], s.scale[i], s.min[i], x, i, y);
    }
    return y;
}

static ALWAYS_INLINE __m512 one_sixteen(const enum qformat_id f, const uint8_t *p, int64_t stride, const float *x,
                                        int64_t n_cols, bool near) {
    const int bytes = bytes_of_block(f), cols = cols_of_block(f), each = MAX(cols / STEP, 1);
    const int step_bytes = cols == 256 ? SIXTEEN * bytes / 4 : SIXTEEN * bytes * 2;
    const uint8_t *ahead = p + far_ahead(stride);
    struct packed_scales packed = {0};
    __m512 y = _mm512_setzero_ps();
    int64_t c = 0;
    for (; c + each * STEP <= n_cols; c += each * STEP) {
        if (cols == 256)
            packed_scales(f, p, stride, &packed);
        UNROLL for (int k = 0; k < each; k++, x += X_FLOATS) {
            if (!near)
                ahead = fetch(ahead, step_bytes);
            y = add_step(f, p, stride, k, true, &packed, x, y);
        }
        p += cols == 256 ? bytes : 2 * bytes;
    }
    return c < n_cols ? add_step(f, p, stride, 0, false, &packed, x, y) : y; // one block of 32 more
}

/* ---- sixteen rows made ready ---- */

/* 64 columns of each of sixteen rows as vectors of four columns of all; signed: without the format's offset. */
static ALWAYS_INLINE void turn_codes(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                     const bool whole, const bool is_signed, __m512i out[SIXTEEN]) {
    const __m512i less = _mm512_set1_epi8(offset_bits(f) < 0 ? 0 : (char)(1 << MAX(offset_bits(f), 0)));
    __m512i by_four[4][4]; // [j][g]: of rows 4 g to 4 g + 3 columns 4 j to 4 j + 3 of each 16
    UNROLL for (int g = 0; g < 4; g++) {
        __m512i v[4];
        UNROLL for (int i = 0; i < 4; i++) v[i] = step_codes(f, p + (4 * g + i) * stride, k, whole);
        __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
        __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
        by_four[0][g] = _mm512_unpacklo_epi64(a, c), by_four[1][g] = _mm512_unpackhi_epi64(a, c);
        by_four[2][g] = _mm512_unpacklo_epi64(b, d), by_four[3][g] = _mm512_unpackhi_epi64(b, d);
    }
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i quarters[4];
        turn_quarters(by_four[j], quarters);
        if (is_signed)
            UNROLL for (int q = 0; q < 4; q++) quarters[q] = _mm512_sub_epi8(quarters[q], less);
        UNROLL for (int q = 0; q < 4; q++) _mm512_storeu_si512(out + 4 * q + j, quarters[q]);
    }
}

/* A step: codes, then scales, then mins. */
static ALWAYS_INLINE void ready_step(const enum qformat_id f, const uint8_t *p, int64_t stride, const int k,
                                     const bool whole, const bool is_signed, const struct packed_scales *packed,
                                     __m512i *out) {
    const int parts = n_parts(f);
    struct step_scales s = {0};
    turn_codes(f, p, stride, k, whole, is_signed, out);
    step_scales(f, p, stride, k, whole, packed, &s);
    UNROLL for (int i = 0; i < parts; i++) {
        _mm512_storeu_ps(out + SIXTEEN + i, s.scale[i]);
        if (has_min(f))
            _mm512_storeu_ps(out + SIXTEEN + parts + i, s.min[i]);
    }
}

/* What a step reads of each of sixteen rows, of which there are fewer: copies, the last one for those behind. */
static inline const uint8_t *copied_rows(const uint8_t *p, int64_t stride, int64_t n_rows, int n_bytes,
                                         uint8_t copies[SIXTEEN][MOST_BLOCK_BYTES]) {
    for (int i = 0; i < SIXTEEN; i++)
        memcpy(copies[i], p + MIN(i, n_rows - 1) * stride, (size_t)n_bytes);
    return copies[0];
}

static ALWAYS_INLINE void ready_sixteen(const enum qformat_id f, const uint8_t *p, int64_t stride, int64_t n_rows,
                                        int64_t n_cols, bool is_signed, __m512i *out) {
    const int bytes = bytes_of_block(f), cols = cols_of_block(f), each = MAX(cols / STEP, 1);
    const int most = cols == 256 ? bytes : 2 * bytes, vectors = step_vectors(f);
    uint8_t copies[SIXTEEN][MOST_BLOCK_BYTES];
    struct packed_scales packed = {0};
    for (int64_t c = 0; c < n_cols; c += each * STEP, p += most) {
        bool whole = c + each * STEP <= n_cols;
        const uint8_t *from = p;
        int64_t from_stride = stride;
        if (n_rows < SIXTEEN) {
            from = copied_rows(p, stride, n_rows, whole ? most : bytes, copies);
            from_stride = MOST_BLOCK_BYTES;
        }
        if (cols == 256)
            packed_scales(f, from, from_stride, &packed);
        if (!whole) {
            ready_step(f, from, from_stride, 0, false, is_signed, &packed, out);
            return;
        }
        UNROLL for (int k = 0; k < each; k++, out += vectors)
            ready_step(f, from, from_stride, k, true, is_signed, &packed, out);
    }
}

#define PRODUCTS(id)                                                                                         \
    static __m512 one_##id(const uint8_t *p, int64_t stride, const float *x, int64_t n_cols, bool near) {    \
        return one_sixteen(QFORMAT_##id, p, stride, x, n_cols, near);                                        \
    }                                                                                                        \
    static void ready_##id(const uint8_t *p, int64_t stride, int64_t n_rows, int64_t n_cols, bool is_signed, \
                           __m512i *out) {                                                                   \
        ready_sixteen(QFORMAT_##id, p, stride, n_rows, n_cols, is_signed, out);                              \
    }                                                                                                        \
    const struct sixteen_functions sixteen_##id = {one_##id, ready_##id};
