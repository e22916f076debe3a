/* simd_avx2.h - the vocabulary of kernels_body.h in AVX2 with FMA and F16C. What each word means: simd_portable.h. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 8, TILE_ROWS = 6, VECTOR_REGISTERS = 16 };
#define TILE_ROWS_MORE_THAN_4 1
#define TILE_ROWS_MORE_THAN_6 0
typedef __m256 vf;

static inline vf vf_set(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf vf_keep(vf v) {
    __asm__("" : "+x"(v));
    return v;
}
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf vf_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
static inline void vf_store_n(float *p, vf v, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), v); }

static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline float vf_sum(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline vf vf_sums(const vf v[LANES]) {
    vf a[4], b[2];
    _Pragma("GCC unroll 8") for (int i = 0; i < 4; i++) // [v 2i folded | v 2i+1 folded]
        a[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x20),
                             _mm256_permute2f128_ps(v[2 * i], v[2 * i + 1], 0x31));
    _Pragma("GCC unroll 8") for (int i = 0; i < 2; i++) // half k: two of v 4i+k, two of v 4i+2+k
        b[i] = _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xEE));
    vf c = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88),
                         _mm256_shuffle_ps(b[0], b[1], 0xDD)); // half k: v k, 2+k, 4+k, 6+k
    return _mm256_permutevar8x32_ps(c, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
static inline float vf_largest(vf v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

static inline vf vf_round(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_ldexp(vf v, vf n) {
    __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(v, _mm256_castsi256_ps(exponent));
}
static inline vf vf_zero_where_less(vf v, vf x, vf limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), v);
}

static inline vf vf_bf16_even(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)p), 16));
}
static inline vf vf_bf16_odd(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi32((int)0xFFFF0000)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf vf_load_f8_e4m3(const uint8_t *p) {
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), most = _mm256_set1_epi32(0x7F);
    __m256i magnitude = _mm256_and_si256(b, most), sign = _mm256_slli_epi32(_mm256_xor_si256(b, magnitude), 24);
    vf v = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
    __m256i nan = _mm256_cmpeq_epi32(magnitude, most); // all ones is a NaN too
    return _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_or_si256(nan, sign)));
}

/* Of 16 e4m3 the even ones and the odd ones, 2^-120 of them each: as bfloat16 whose exponent is not yet right they are
 * the halves of a word. What is no number is one here: whoever loads many looks for it apart, at half the cost. */
#define F8_APART 1
static inline void vf_load_f8_e4m3_apart(const uint8_t *p, vf *even, vf *odd) {
    __m256i halves = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); // the sign eight times more
    halves = _mm256_and_si256(_mm256_slli_epi16(halves, 4), _mm256_set1_epi16((short)0x87F0));
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32((int)0xFFFF0000)));
}
/* The largest of 4 * LANES more, as their bits without the sign. */
typedef __m256i f8_largest;
static inline f8_largest f8_none(void) { return _mm256_setzero_si256(); }
static inline f8_largest f8_more(f8_largest seen, const uint8_t *p) {
    __m256i b = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_max_epu8(seen, _mm256_add_epi8(b, b));
}
static inline int f8_has_nan(f8_largest seen) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen, _mm256_set1_epi8((char)0xFE))) != 0;
}

static inline void vf_separate(vf *a, vf *b) {
    vf low = _mm256_permute2f128_ps(*a, *b, 0x20), high = _mm256_permute2f128_ps(*a, *b, 0x31);
    *a = _mm256_shuffle_ps(low, high, 0x88);
    *b = _mm256_shuffle_ps(low, high, 0xDD);
}
static inline vf vf_load_e2m1(const uint8_t *p) {
    const vf values = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    int32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(bytes), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(values, codes), _mm256_castsi256_ps(sign)); // the index is modulo 8
}

static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    *low = _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
    *high = _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}

static inline void vf_transpose(vf r[LANES]) {
    vf t[LANES], u[LANES];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            u[i + 2 * k] = _mm256_shuffle_ps(t[i + k], t[i + 2 + k], 0x44);
            u[i + 2 * k + 1] = _mm256_shuffle_ps(t[i + k], t[i + 2 + k], 0xEE);
        }
    for (int k = 0; k < 4; k++) {
        r[k] = _mm256_permute2f128_ps(u[k], u[k + 4], 0x20);
        r[k + 4] = _mm256_permute2f128_ps(u[k], u[k + 4], 0x31);
    }
}
