/* simd_avx512.h - the vocabulary of kernels_body.h in AVX-512 (F, BW, DQ, VL). What each word means: simd_portable.h.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16, TILE_ROWS = 12, VECTOR_REGISTERS = 32 };
#define TILE_ROWS_MORE_THAN_4 1
#define TILE_ROWS_MORE_THAN_6 1
typedef __m512 vf;

static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf vf_keep(vf v) {
    __asm__("" : "+v"(v));
    return v;
}
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }
static inline vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* Lane l and l + 8, then l + 4, l + 2, l + 1. */
static inline float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline vf vf_sums(const vf v[LANES]) {
    vf a[8], b[4], c[2];
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) // [v 2i folded | v 2i+1 folded]
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xEE));
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; i++) // quarter k: v 4i+k
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
    _Pragma("GCC unroll 8") for (int i = 0; i < 2; i++) // quarter k: two of v 8i+k, two of v 8i+4+k
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xEE));
    vf d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88),
                         _mm512_shuffle_ps(c[0], c[1], 0xDD)); // quarter k: v k, 4+k, 8+k, 12+k
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), d);
}
static inline float vf_largest(vf v) { return _mm512_reduce_max_ps(v); }

static inline vf vf_round(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_ldexp(vf v, vf n) { return _mm512_scalef_ps(v, n); }
static inline vf vf_zero_where_less(vf v, vf x, vf limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
}

static inline vf vf_bf16_even(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
static inline vf vf_bf16_odd(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xFFFF0000)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vf vf_load_f8_e4m3(const uint8_t *p) {
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i magnitude = _mm512_and_si512(b, _mm512_set1_epi32(0x7F));
    __m512i sign = _mm512_slli_epi32(_mm512_xor_si512(b, magnitude), 24);
    vf v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
    v = _mm512_mask_mov_ps(v, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F)),
                           _mm512_set1_ps(__builtin_nanf("")));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(v), sign));
}

/* As in simd_avx2.h, of 32. */
#define F8_APART 1
static inline void vf_load_f8_e4m3_apart(const uint8_t *p, vf *even, vf *odd) {
    __m512i halves = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)), 4);
    halves = _mm512_and_si512(halves, _mm512_set1_epi16((short)0x87F0));
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(halves, _mm512_set1_epi32((int)0xFFFF0000)));
}
typedef __m512i f8_largest;
static inline f8_largest f8_none(void) { return _mm512_setzero_si512(); }
static inline f8_largest f8_more(f8_largest seen, const uint8_t *p) {
    __m512i b = _mm512_loadu_si512(p);
    return _mm512_max_epu8(seen, _mm512_add_epi8(b, b));
}
static inline int f8_has_nan(f8_largest seen) {
    return _mm512_cmpeq_epi8_mask(seen, _mm512_set1_epi8((char)0xFE)) != 0;
}

static inline void vf_separate(vf *a, vf *b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vf e = _mm512_permutex2var_ps(*a, even, *b);
    *b = _mm512_permutex2var_ps(*a, _mm512_or_si512(even, _mm512_set1_epi32(1)), *b);
    *a = e;
}
static inline vf vf_load_e2m1(const uint8_t *p) {
    const vf values = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m128i b = _mm_loadl_epi64((const __m128i *)p), low = _mm_and_si128(b, _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15));
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high)), values);
}

static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    *low = _mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15)));
    *high = _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4));
}

/* 16 x 16, in four rounds of two by two: within pairs of floats, of doubles, of 128-bit quarters, of halves. */
static inline void vf_transpose(vf r[LANES]) {
    vf t[LANES], u[LANES];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            __m512d a = _mm512_castps_pd(t[i + k]), b = _mm512_castps_pd(t[i + 2 + k]);
            u[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (int k = 0; k < 4; k++) {
        t[k] = _mm512_shuffle_f32x4(u[k], u[k + 4], 0x88);
        t[k + 4] = _mm512_shuffle_f32x4(u[k], u[k + 4], 0xDD);
        t[k + 8] = _mm512_shuffle_f32x4(u[k + 8], u[k + 12], 0x88);
        t[k + 12] = _mm512_shuffle_f32x4(u[k + 8], u[k + 12], 0xDD);
    }
    for (int k = 0; k < 4; k++) {
        r[k] = _mm512_shuffle_f32x4(t[k], t[k + 8], 0x88);
        r[k + 8] = _mm512_shuffle_f32x4(t[k], t[k + 8], 0xDD);
        r[k + 4] = _mm512_shuffle_f32x4(t[k + 4], t[k + 12], 0x88);
        r[k + 12] = _mm512_shuffle_f32x4(t[k + 4], t[k + 12], 0xDD);
    }
}
