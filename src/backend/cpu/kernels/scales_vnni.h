/* scales_vnni.h - scales and mins of blocks, of sixteen rows, `stride` bytes apart: lanes are rows. */
#pragma once

#include "backend/cpu/kernels/steps_vnni.h"

/* Of a step: part i of scale, and of min what is subtracted, in formats that have it. */
struct step_scales {
    __m512 scale[MOST_PARTS], min[MOST_PARTS];
};

static ALWAYS_INLINE __m256i shorts_at(const uint8_t *p, int64_t stride) {
    return _mm256_set_epi64x(four_shorts_at(p + 12 * stride, stride), four_shorts_at(p + 8 * stride, stride),
                             four_shorts_at(p + 4 * stride, stride), four_shorts_at(p, stride));
}
static ALWAYS_INLINE __m512 f16_at(const uint8_t *p, int64_t stride) { return _mm512_cvtph_ps(shorts_at(p, stride)); }

/* The 16 bytes of each row at p as four vectors of four bytes of sixteen rows. */
static ALWAYS_INLINE void turned_at(const uint8_t *p, int64_t stride, __m512i out[4]) {
    __m512i v[4];
    UNROLL for (int i = 0; i < 4; i++) {
        __m128i rows[4];
        UNROLL for (int q = 0; q < 4; q++) rows[q] =
            _mm_loadu_si128((const __m128i *)(const void *)(p + (4 * q + i) * stride));
        v[i] = from_four(rows);
    }
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}

/* The four bytes of each row at p. */
static ALWAYS_INLINE __m512i words_at(const uint8_t *p, int64_t stride) {
    __m128i v[4];
    UNROLL for (int q = 0; q < 4; q++, p += 4 * stride) v[q] = _mm_setr_epi32(
        (int)u32_at(p), (int)u32_at(p + stride), (int)u32_at(p + 2 * stride), (int)u32_at(p + 3 * stride));
    return from_four(v);
}

static ALWAYS_INLINE int four_bytes_at(const uint8_t *p, int64_t stride) {
    return (int)(p[0] | (uint32_t)p[stride] << 8 | (uint32_t)p[2 * stride] << 16 | (uint32_t)p[3 * stride] << 24);
}

/* Half of 2^(e - 127), e the byte at each row's p: e2m1_values are doubled. */
static ALWAYS_INLINE __m512 e8m0_at(const uint8_t *p, int64_t stride) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_setr_epi32(four_bytes_at(p, stride), four_bytes_at(p + 4 * stride, stride),
                                                    four_bytes_at(p + 8 * stride, stride),
                                                    four_bytes_at(p + 12 * stride, stride)));
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), e));
}

/* Of a block of 32 columns: part i. */
static ALWAYS_INLINE void small_scales(const enum qformat_id f, const uint8_t *p, int64_t stride, const int i,
                                       struct step_scales *s) {
    s->scale[i] = f == QFORMAT_MXFP4_HALVES ? e8m0_at(p, stride) : f16_at(p, stride);
    if (has_min(f)) // which is added: taken from nothing
        s->min[i] = _mm512_sub_ps(_mm512_setzero_ps(), f16_at(p + 2, stride));
}

/* Of a block of 256 columns: bytes of 16 scales or of eight, then of eight mins; and what they are times. */
struct packed_scales {
    __m512i bytes[4];
    __m512 d, d_min;
};

static ALWAYS_INLINE __m512i and_all(__m512i v, const unsigned shift, const int mask) {
    return _mm512_and_si512(_mm512_srli_epi32(v, shift), _mm512_set1_epi32(mask));
}

/* The 6-bit scales and mins of q4_k and q5_k, whose blocks begin with both float16. */
static ALWAYS_INLINE void six_bits_at(const uint8_t *p, int64_t stride, struct packed_scales *s) {
    __m512i head[4];
    turned_at(p, stride, head);
    __m512i a = head[1], b = head[2], c = head[3];
    s->bytes[0] = and_all(a, 0, 0x3F3F3F3F);
    s->bytes[1] = _mm512_or_si512(and_all(c, 0, 0x0F0F0F0F), _mm512_slli_epi32(and_all(a, 6, 0x03030303), 4));
    s->bytes[2] = and_all(b, 0, 0x3F3F3F3F);
    s->bytes[3] = _mm512_or_si512(and_all(c, 4, 0x0F0F0F0F), _mm512_slli_epi32(and_all(b, 6, 0x03030303), 4));
    s->d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(head[0]));
    s->d_min = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(head[0], 16)));
}

static ALWAYS_INLINE void packed_scales(const enum qformat_id f, const uint8_t *p, int64_t stride,
                                        struct packed_scales *s) {
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K: six_bits_at(p, stride, s); return;
    case QFORMAT_Q6_K:
        turned_at(p + 192, stride, s->bytes);
        s->d = f16_at(p + 208, stride);
        return;
    case QFORMAT_Q2_K:
        turned_at(p, stride, s->bytes);
        s->d = f16_at(p + 80, stride), s->d_min = f16_at(p + 82, stride);
        return;
    case QFORMAT_Q3_K: {
        __m512i low[2] = {words_at(p + 96, stride), words_at(p + 100, stride)}, high = words_at(p + 104, stride);
        UNROLL for (unsigned i = 0; i < 4; i++) s->bytes[i] = _mm512_or_si512(
            and_all(low[i % 2], i / 2 * 4, 0x0F0F0F0F), _mm512_slli_epi32(and_all(high, 2 * i, 0x03030303), 4));
        s->d = f16_at(p + 108, stride);
        return;
    }
    case QFORMAT_IQ4_XS:
        s->bytes[0] = words_at(p + 4, stride), s->bytes[1] = _mm512_cvtepu16_epi32(shorts_at(p + 2, stride));
        s->d = f16_at(p, stride);
        return;
    default: s->d = f16_at(p + 64, stride); return; // TQ2_0
    }
}

static ALWAYS_INLINE __m512i byte_of(const struct packed_scales *p, const int i) {
    return and_all(p->bytes[i / 4], i % 4 * 8, 255);
}
static ALWAYS_INLINE __m512 times(__m512i v, __m512 d) { return _mm512_mul_ps(_mm512_cvtepi32_ps(v), d); }

/* Of part i of such a block. */
static ALWAYS_INLINE __m512 large_scale(const enum qformat_id f, const struct packed_scales *p, const int i) {
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K: return times(byte_of(p, i), p->d);
    case QFORMAT_Q6_K: // signed
        return times(_mm512_srai_epi32(_mm512_slli_epi32(p->bytes[i / 4], 24 - i % 4 * 8), 24), p->d);
    case QFORMAT_Q2_K: return times(and_all(p->bytes[i / 4], i % 4 * 8, 15), p->d);
    case QFORMAT_Q3_K: return times(_mm512_sub_epi32(byte_of(p, i), _mm512_set1_epi32(32)), p->d);
    case QFORMAT_IQ4_XS: {
        __m512i high = _mm512_slli_epi32(and_all(p->bytes[1], 2 * i, 3), 4);
        __m512i scale = _mm512_or_si512(and_all(p->bytes[0], 4 * i, 15), high);
        return times(_mm512_sub_epi32(scale, _mm512_set1_epi32(32)), p->d);
    }
    default: return p->d; // TQ2_0
    }
}
static ALWAYS_INLINE __m512 large_min(const enum qformat_id f, const struct packed_scales *p, const int i) {
    return times(f == QFORMAT_Q2_K ? and_all(p->bytes[i / 4], i % 4 * 8 + 4, 15) : byte_of(p, 8 + i), p->d_min);
}

/* Of columns 64 k to 64 k + 63. */
static ALWAYS_INLINE void large_scales(const enum qformat_id f, const struct packed_scales *p, const int k,
                                       struct step_scales *s) {
    UNROLL for (int i = 0; i < n_parts(f); i++) {
        s->scale[i] = large_scale(f, p, n_parts(f) * k + i);
        if (has_min(f))
            s->min[i] = large_min(f, p, n_parts(f) * k + i);
    }
}
