/* steps.h - block formats as what AVX2 multiplies: 32 columns of eight rows of weights, an octet.
 *
 *     codes   of 16 columns of two rows, i and i + 4: unsigned bytes u, signed ones for formats with seven bits or more
 *     scales  what lanes 0 to 7 of a sum, rows 0 to 7, are multiplied with:
 *             y += s_x (scale D - min S)        D = sum of u x and S = sum of x over the 32 columns
 *             formats with a scale for each 16 columns: D = sum over halves of by_half (sum of u x), min S likewise
 *
 * An offset that makes codes unsigned is a min: o times the scale. D is exact, so the order in which it is summed is
 * free, and kernels differ in that. */
#pragma once

#include "backend/cpu/kernels/avx2/codes.h"

struct scales {
    __m256 scale, min, min_of_second; // the last of HALVES, whose first is of columns 0 to 15
    __m256i by_half[2];               // of HALVES, 32 bits
};

/* ---- scales ---- */

static ALWAYS_INLINE uint64_t u16_at(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* What each of eight rows, `stride` bytes apart, has at p. */
static ALWAYS_INLINE __m256i words_at(const uint8_t *p, int64_t stride) {
    const uint8_t *q = p + 4 * stride;
    return _mm256_setr_epi32(u32_at(p), u32_at(p + stride), u32_at(p + 2 * stride), u32_at(p + 3 * stride), u32_at(q),
                             u32_at(q + stride), u32_at(q + 2 * stride), u32_at(q + 3 * stride));
}
static ALWAYS_INLINE long long four_shorts_at(const uint8_t *p, int64_t stride) {
    return (long long)(u16_at(p) | u16_at(p + stride) << 16 | u16_at(p + 2 * stride) << 32 |
                       u16_at(p + 3 * stride) << 48); // where vectors are shuffled is what is busy
}
static ALWAYS_INLINE __m128i shorts_at(const uint8_t *p, int64_t stride) {
    return _mm_set_epi64x(four_shorts_at(p + 4 * stride, stride), four_shorts_at(p, stride));
}
static ALWAYS_INLINE __m256 f16_at(const uint8_t *p, int64_t stride) { return _mm256_cvtph_ps(shorts_at(p, stride)); }

/* Half of 2^(e - 127), e the byte at each row's p: e2m1_values are doubled. */
static ALWAYS_INLINE __m256 e8m0_at(const uint8_t *p, int64_t stride) {
    const uint8_t *q = p + 4 * stride;
    __m256i e =
        _mm256_setr_epi32(p[0], p[stride], p[2 * stride], p[3 * stride], q[0], q[stride], q[2 * stride], q[3 * stride]);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

static ALWAYS_INLINE __m256 times(__m256 v, float factor) { return _mm256_mul_ps(v, _mm256_set1_ps(factor)); }

/* Of blocks of 32 columns. */
static ALWAYS_INLINE struct scales small_scales(const enum qformat_id f, const uint8_t *p, int64_t stride) {
    struct scales s = {.scale = f == QFORMAT_MXFP4_HALVES ? e8m0_at(p, stride) : f16_at(p, stride)};
    switch (f) {
    case QFORMAT_Q4_0: s.min = times(s.scale, 8); break;
    case QFORMAT_Q5_0: s.min = times(s.scale, 16); break;
    case QFORMAT_MXFP4_HALVES: s.min = times(s.scale, 12); break;
    case QFORMAT_Q4_1:
    case QFORMAT_Q5_1: s.min = times(f16_at(p + 2, stride), -1); break; // which is added
    default: break;                                                     // Q8_0, IQ4_NL: signed
    }
    return s;
}

/* Of a block of 256 columns: bytes of 16 scales or of eight, then of eight mins; and what they are times. */
struct packed_scales {
    __m256i bytes[4];
    __m256 d, d_min;
};

static ALWAYS_INLINE __m256i and_all(__m256i v, const int shift, const int mask) {
    return _mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32(mask));
}

static ALWAYS_INLINE struct packed_scales packed_scales(const enum qformat_id f, const uint8_t *p, int64_t stride) {
    struct packed_scales s = {.d_min = _mm256_setzero_ps()};
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K: {
        __m256i a = words_at(p + 4, stride), b = words_at(p + 8, stride), c = words_at(p + 12, stride);
        s.bytes[0] = and_all(a, 0, 0x3F3F3F3F);
        s.bytes[1] = _mm256_or_si256(and_all(c, 0, 0x0F0F0F0F), _mm256_slli_epi32(and_all(a, 6, 0x03030303), 4));
        s.bytes[2] = and_all(b, 0, 0x3F3F3F3F);
        s.bytes[3] = _mm256_or_si256(and_all(c, 4, 0x0F0F0F0F), _mm256_slli_epi32(and_all(b, 6, 0x03030303), 4));
        s.d = f16_at(p, stride), s.d_min = f16_at(p + 2, stride);
        return s;
    }
    case QFORMAT_Q6_K:
        UNROLL for (int i = 0; i < 4; i++) s.bytes[i] = words_at(p + 192 + 4 * i, stride);
        s.d = f16_at(p + 208, stride), s.d_min = times(s.d, 32);
        return s;
    case QFORMAT_Q2_K:
        UNROLL for (int i = 0; i < 4; i++) s.bytes[i] = words_at(p + 4 * i, stride);
        s.d = f16_at(p + 80, stride), s.d_min = f16_at(p + 82, stride);
        return s;
    case QFORMAT_Q3_K: {
        __m256i low[2] = {words_at(p + 96, stride), words_at(p + 100, stride)}, high = words_at(p + 104, stride);
        UNROLL for (int i = 0; i < 4; i++) s.bytes[i] = _mm256_or_si256(
            and_all(low[i % 2], i / 2 * 4, 0x0F0F0F0F), _mm256_slli_epi32(and_all(high, 2 * i, 0x03030303), 4));
        s.d = f16_at(p + 108, stride), s.d_min = times(s.d, 4);
        return s;
    }
    case QFORMAT_IQ4_XS:
        s.bytes[0] = words_at(p + 4, stride), s.bytes[1] = _mm256_cvtepu16_epi32(shorts_at(p + 2, stride));
        s.d = f16_at(p, stride);
        return s;
    default: // TQ1_0, TQ2_0
        s.d = f16_at(p + (f == QFORMAT_TQ1_0 ? 52 : 64), stride);
        return s;
    }
}

static ALWAYS_INLINE __m256i byte_of(const struct packed_scales *s, const int i) {
    return and_all(s->bytes[i / 4], i % 4 * 8, 255);
}

/* Of columns 32 k to 32 k + 31. */
static ALWAYS_INLINE struct scales large_scales(const enum qformat_id f, const struct packed_scales *p, const int k) {
    struct scales s = {.scale = p->d};
    __m256i mins[2];
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K:
        s.scale = _mm256_mul_ps(_mm256_cvtepi32_ps(byte_of(p, k)), p->d);
        s.min = _mm256_mul_ps(_mm256_cvtepi32_ps(byte_of(p, 8 + k)), p->d_min);
        return s;
    case QFORMAT_IQ4_XS: {
        __m256i high = _mm256_slli_epi32(and_all(p->bytes[1], 2 * k, 3), 4);
        __m256i scale = _mm256_or_si256(and_all(p->bytes[0], 4 * k, 15), high);
        s.scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32))), p->d);
        return s;
    }
    case QFORMAT_TQ1_0:
    case QFORMAT_TQ2_0: s.min = p->d; return s;
    default: break;
    }
    UNROLL for (int h = 0; h < 2; h++) {
        __m256i b = byte_of(p, 2 * k + h);
        if (f == QFORMAT_Q6_K) // signed
            b = _mm256_srai_epi32(_mm256_slli_epi32(b, 24), 24);
        if (f == QFORMAT_Q3_K)
            b = _mm256_sub_epi32(b, _mm256_set1_epi32(32));
        mins[h] = f == QFORMAT_Q2_K ? _mm256_srli_epi32(b, 4) : b;
        s.by_half[h] = f == QFORMAT_Q2_K ? and_all(b, 0, 15) : b;
    }
    s.min = _mm256_mul_ps(_mm256_cvtepi32_ps(mins[0]), p->d_min);
    s.min_of_second = _mm256_mul_ps(_mm256_cvtepi32_ps(mins[1]), p->d_min);
    return s;
}
