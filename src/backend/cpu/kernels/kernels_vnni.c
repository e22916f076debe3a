/* kernels_vnni.c - block formats times activations of 8 bits.
 *
 * vpdpbusd adds to each of 16 sums of 32 bits the products of four unsigned and four signed bytes. So 64 columns are a
 * step, and lane i of all that follows belongs to columns 4 i to 4 i + 3:
 *
 *     codes   u, unsigned bytes made of what the block stores                                   once for all rows of x
 *     D       sum of u x                                                                          integers, exact
 *     y      += s_x (scale (D - o S) - min S), S the sum of x's four, o what makes u of signed numbers    float32
 *
 * x is arranged so: for each 64 columns and row 64 bytes x, 16 integers -S, 16 floats s_x, where s_x = max |x| / 127 of
 * 32 columns and x are rounded to even. D - o S is one sum that begins with -o S, and o is a power of two, so that a
 * shift makes it. What is no number in x makes s_x none.
 *
 * Rows of weights are taken in tiles of four with one or two rows of x, of two with more, since loads of x bound what
 * is not bound by memory; the sums of a row are the same in any tile. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels_vnni.h"

#include "base/status.h"

#include <immintrin.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    BY_BYTES = 200, // arrangement
    STEP = 64,      // columns
    X_FLOATS = 48,  // of a step of one row of x, as arranged
    LANES = 16,
    BLOCK = 32 // columns that share s_x
};

/* ---- activations ---- */

/* The columns of one block of x, `left` of which exist: bytes to q, -S to sums, s_x. */
static ALWAYS_INLINE float round_block(const float *x, int64_t left, int8_t *q, int32_t *sums) {
    __mmask16 some = left >= 16 ? 0xFFFF : (__mmask16)((1u << MAX(left, 0)) - 1);
    __mmask16 more = left >= 32 ? 0xFFFF : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
    __m512 a = _mm512_maskz_loadu_ps(some, x), b = _mm512_maskz_loadu_ps(more, x + 16);
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    __m512 zero = _mm512_fmadd_ps(a, _mm512_setzero_ps(), _mm512_mul_ps(b, _mm512_setzero_ps())); // NaN of what is none
    bool is_number = _mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q) == 0;
    __m512 factor = _mm512_set1_ps(is_number && most > 0 ? 127.0f / most : 0);
    if (is_number && !isfinite(127.0f / most)) // denormal: as zeros
        factor = _mm512_setzero_ps();
    __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(a, factor)), high = _mm512_cvtps_epi32(_mm512_mul_ps(b, factor));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtsepi32_epi8(low));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtsepi32_epi8(high));
    __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)q);
    __m256i sum = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    _mm256_storeu_si256((__m256i *)(void *)sums, _mm256_sub_epi32(_mm256_setzero_si256(), sum));
    return is_number ? most / 127.0f : NAN;
}

static void arrange_bytes(const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    for (int64_t c = 0; c < n; c += STEP)
        for (int t = 0; t < n_x; t++, out += X_FLOATS)
            for (int half = 0; half < 2; half++) {
                int64_t at = c + half * BLOCK;
                const float *from = at < n ? x + t * x_stride + at : x;
                float s = round_block(from, at < n ? n - at : 0, (int8_t *)out + half * BLOCK,
                                      (int32_t *)(void *)(out + LANES + half * LANES / 2));
                for (int i = 0; i < LANES / 2; i++)
                    out[2 * LANES + half * LANES / 2 + i] = s;
            }
}

/* ---- blocks ---- */

/* What a step needs of the weights. min: NULL in formats that have none, else what is subtracted. */
struct step {
    __m512i codes;
    __m512 scale, min;
};

static ALWAYS_INLINE float f16_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

static ALWAYS_INLINE __m512 two_scales(float a, float b) {
    return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}

/* Of two float16. */
static ALWAYS_INLINE __m512 two_f16(const uint8_t *a, const uint8_t *b) {
    uint16_t first, second;
    memcpy(&first, a, sizeof first);
    memcpy(&second, b, sizeof second);
    __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)(first | (uint32_t)second << 16)));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castps128_ps512(both));
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

static ALWAYS_INLINE uint32_t u32_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
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

/* Twice the values of e2m1. */
static const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static ALWAYS_INLINE float e8m0_half(uint8_t e) {
    uint32_t bits = e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
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

/* Two blocks of 32 columns, at a and b. */
static ALWAYS_INLINE struct step two_blocks(const enum qformat_id f, const uint8_t *a, const uint8_t *b) {
    struct step s = {.min = _mm512_setzero_ps()};
    switch (f) {
    case QFORMAT_Q8_0:
        s.codes = _mm512_xor_si512(two(load32(a + 2), load32(b + 2)), _mm512_set1_epi8((char)0x80));
        break;
    case QFORMAT_Q4_0: s.codes = nibbles(a + 2, b + 2); break;
    case QFORMAT_Q5_0: s.codes = with_fifth_bits(nibbles(a + 6, b + 6), a + 2, b + 2); break;
    case QFORMAT_Q4_1: s.codes = nibbles(a + 4, b + 4); break;
    case QFORMAT_Q5_1: s.codes = with_fifth_bits(nibbles(a + 8, b + 8), a + 4, b + 4); break;
    case QFORMAT_IQ4_NL: s.codes = looked_up(nibbles(a + 2, b + 2), iq4_values, 128); break;
    default: // MXFP4_HALVES
        s.codes = looked_up(nibbles(a + 1, b + 1), e2m1_values, 16);
        s.scale = two_scales(e8m0_half(a[0]), e8m0_half(b[0]));
        return s;
    }
    s.scale = two_f16(a, b);
    if (has_min(f)) // which is added: taken from nothing
        s.min = _mm512_sub_ps(s.min, two_f16(a + 2, b + 2));
    return s;
}

/* Scales of a block of 256 columns: 16, of 16 columns each. */
struct scales {
    __m512 scale, min;
};

/* 8 numbers, each for two neighbouring lanes. */
static ALWAYS_INLINE __m512 doubled(const uint8_t numbers[8]) {
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)numbers);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(b, b)));
}

/* The 6-bit scales and mins of q4_k and q5_k, 12 bytes at s, as 8 bytes each. */
static ALWAYS_INLINE void six_bits(const uint8_t *s, uint8_t scales[8], uint8_t mins[8]) {
    uint32_t a = u32_at(s), b = u32_at(s + 4), c = u32_at(s + 8);
    uint32_t out[4] = {a & 0x3F3F3F3F, (c & 0x0F0F0F0F) | (a >> 6 & 0x03030303) << 4, b & 0x3F3F3F3F,
                       (c >> 4 & 0x0F0F0F0F) | (b >> 6 & 0x03030303) << 4};
    memcpy(scales, out, 8);
    memcpy(mins, out + 2, 8);
}

static ALWAYS_INLINE struct scales scales_of(const enum qformat_id f, const uint8_t *b) {
    uint8_t scale[16], min[16];
    struct scales s = {.min = _mm512_setzero_ps()};
    switch (f) {
    case QFORMAT_Q4_K:
    case QFORMAT_Q5_K:
        six_bits(b + 4, scale, min);
        s.scale = _mm512_mul_ps(doubled(scale), _mm512_set1_ps(f16_at(b)));
        s.min = _mm512_mul_ps(doubled(min), _mm512_set1_ps(f16_at(b + 2)));
        return s;
    case QFORMAT_Q6_K:
        s.scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(b + 192))));
        s.scale = _mm512_mul_ps(s.scale, _mm512_set1_ps(f16_at(b + 208)));
        return s;
    case QFORMAT_Q2_K: {
        __m512i packed = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)b));
        s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(packed, _mm512_set1_epi32(15))),
                                _mm512_set1_ps(f16_at(b + 80)));
        s.min = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(packed, 4)), _mm512_set1_ps(f16_at(b + 82)));
        return s;
    }
    case QFORMAT_Q3_K: {
        const uint8_t *p = b + 96;
        for (int k = 0; k < 16; k++)
            scale[k] = (uint8_t)((k < 8 ? p[k] & 15 : p[k - 8] >> 4) | (p[8 + k % 4] >> k / 4 * 2 & 3) << 4);
        __m512i all = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)scale));
        s.scale = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(all, _mm512_set1_epi32(32))),
                                _mm512_set1_ps(f16_at(b + 108)));
        return s;
    }
    case QFORMAT_IQ4_XS:
        for (int k = 0; k < 8; k++)
            scale[k] = (uint8_t)((b[4 + k / 2] >> k % 2 * 4 & 15) | ((b[2] | b[3] << 8) >> 2 * k & 3) << 4);
        s.scale = _mm512_mul_ps(_mm512_sub_ps(doubled(scale), _mm512_set1_ps(32)), _mm512_set1_ps(f16_at(b)));
        return s;
    default: // TQ2_0
        s.scale = _mm512_set1_ps(f16_at(b + 64));
        return s;
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

/* ---- products ---- */

/* Rows of weights that are taken together with n_x rows of x. A load of 64 bytes takes a cycle on Zen 4; x has three
 * a step: they are to serve more than one row. */
#define TILE(n_x) ((n_x) <= 2 ? MAX_TILE : 2)
enum { MAX_TILE = 4 };

/* One step of n_w rows of weights and n_x rows of x, as arranged. */
static ALWAYS_INLINE void add_step(const enum qformat_id f, const int n_w, const int n_x, const struct step *s,
                                   const float *x, __m512 sum[][FEW_ROWS]) {
    UNROLL for (int t = 0; t < n_x; t++) {
        const float *at = x + t * X_FLOATS;
        __m512i q = _mm512_loadu_si512(at), less = _mm512_loadu_si512(at + LANES), begin = _mm512_setzero_si512();
        __m512 s_x = _mm512_loadu_ps(at + 2 * LANES), taken = _mm512_setzero_ps();
        if (offset_bits(f) >= 0)
            begin = _mm512_slli_epi32(less, (unsigned)MAX(offset_bits(f), 0));
        if (has_min(f))
            taken = _mm512_cvtepi32_ps(less);
        UNROLL for (int i = 0; i < n_w; i++) {
            __m512 d = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(begin, s[i].codes, q));
            if (has_min(f))
                d = _mm512_fmadd_ps(s[i].min, taken, _mm512_mul_ps(s[i].scale, d));
            sum[i][t] = _mm512_fmadd_ps(d, has_min(f) ? s_x : _mm512_mul_ps(s[i].scale, s_x), sum[i][t]);
        }
    }
}

/* To memory the rows of a tile are one linear stream, fetched into the second-level cache well ahead of its use. */
static ALWAYS_INLINE const uint8_t *fetch(const uint8_t *ahead, const int n_bytes) {
    UNROLL for (int i = 0; i < n_bytes; i += 64) _mm_prefetch((const char *)ahead + i, _MM_HINT_T1);
    return ahead + n_bytes;
}

/* Columns [from, to), multiples of 64 or the end, of n_w rows of blocks of 32, `stride` bytes apart. */
static ALWAYS_INLINE void small_blocks(const enum qformat_id f, const int n_w, const int n_x, const uint8_t *row,
                                       int64_t stride, int64_t from, int64_t to, const float *x, const bool near,
                                       __m512 sum[][FEW_ROWS]) {
    const int bytes = block_formats[f].block_bytes;
    const uint8_t *b = row + from / BLOCK * bytes, *ahead = row + AHEAD_BYTES;
    struct step s[MAX_TILE];
    for (int64_t c = from; c + STEP <= to; c += STEP, b += 2 * bytes, x += n_x * X_FLOATS) {
        if (!near)
            ahead = fetch(ahead, n_w * 2 * bytes);
        UNROLL for (int i = 0; i < n_w; i++) s[i] = two_blocks(f, b + i * stride, b + i * stride + bytes);
        add_step(f, n_w, n_x, s, x, sum);
    }
    if ((to - from) % STEP) { // one block more; what is beside it meets zeros
        static const uint8_t none[64];
        UNROLL for (int i = 0; i < n_w; i++) s[i] = two_blocks(f, b + i * stride, none);
        add_step(f, n_w, n_x, s, x, sum);
    }
}

/* The same of blocks of 256; from and to are multiples of 256. */
static ALWAYS_INLINE void large_blocks(const enum qformat_id f, const int n_w, const int n_x, const uint8_t *row,
                                       int64_t stride, int64_t from, int64_t to, const float *x, const bool near,
                                       __m512 sum[][FEW_ROWS]) {
    const int bytes = block_formats[f].block_bytes;
    const uint8_t *b = row + from / 256 * bytes, *ahead = row + AHEAD_BYTES;
    for (int64_t c = from; c < to; c += 256, b += bytes, x += 4 * n_x * X_FLOATS) {
        struct scales all[MAX_TILE];
        if (!near)
            ahead = fetch(ahead, n_w * bytes);
        UNROLL for (int i = 0; i < n_w; i++) all[i] = scales_of(f, b + i * stride);
        UNROLL for (int k = 0; k < 4; k++) {
            const __m512i lanes = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                                   _mm512_set1_epi32(4 * k));
            struct step s[MAX_TILE];
            UNROLL for (int i = 0; i < n_w; i++) {
                s[i].codes = codes_of(f, b + i * stride, k);
                s[i].scale = _mm512_permutexvar_ps(lanes, all[i].scale);
                if (has_min(f))
                    s[i].min = _mm512_permutexvar_ps(lanes, all[i].min);
            }
            add_step(f, n_w, n_x, s, x + k * n_x * X_FLOATS, sum);
        }
    }
}

/* Columns [from, to) of n_w rows from r on. */
static ALWAYS_INLINE void multiply_tile(const enum qformat_id f, const int n_w, const int n_x,
                                        const struct few_rows *few, int64_t r, int64_t from, int64_t to) {
    const int64_t n = few->n_cols, stride = few->part->row_stride;
    const uint8_t *row = (const uint8_t *)few->part->data + (few->row + r) * stride;
    const float *x = few->x + from / STEP * n_x * X_FLOATS;
    float *kept = from > 0 || to < n ? few->partial + r * n_x * LANES : NULL;
    __m512 sum[MAX_TILE][FEW_ROWS];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] =
        from > 0 ? _mm512_loadu_ps(kept + (i * n_x + t) * LANES) : _mm512_setzero_ps();
    if (block_formats[f].block_cols == 256)
        large_blocks(f, n_w, n_x, row, stride, from, to, x, few->near || from > 0, sum);
    else
        small_blocks(f, n_w, n_x, row, stride, from, to, x, few->near || from > 0, sum);
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) {
        if (to < n)
            _mm512_storeu_ps(kept + (i * n_x + t) * LANES, sum[i][t]);
        else
            few->y[t * few->y_stride + r + i] = _mm512_reduce_add_ps(sum[i][t]) + (few->bias ? few->bias[r + i] : 0);
    }
}

/* Columns go by so many, where several groups of x meet the rows: what of x is met again is near. */
enum { NEAR = 1024 };

static ALWAYS_INLINE void multiply_rows(const enum qformat_id f, const int n_x, const struct few_rows *few) {
    const int64_t n = few->n_cols, piece = few->partial && few->n_rows <= PARTIAL_ROWS ? NEAR : n;
    for (int64_t from = 0, to; from < n; from = to) {
        int64_t r = 0;
        to = MIN(from + piece, n);
        for (; r + TILE(n_x) <= few->n_rows; r += TILE(n_x))
            multiply_tile(f, TILE(n_x), n_x, few, r, from, to);
        for (; r < few->n_rows; r++)
            multiply_tile(f, 1, n_x, few, r, from, to);
    }
}

#define ROWS(id)                                                \
    static void multiply_##id(const struct few_rows *f) {       \
        switch (f->n_x) {                                       \
        case 1: multiply_rows(QFORMAT_##id, 1, f); break;       \
        case 2: multiply_rows(QFORMAT_##id, 2, f); break;       \
        case 3: multiply_rows(QFORMAT_##id, 3, f); break;       \
        case 4: multiply_rows(QFORMAT_##id, 4, f); break;       \
        case 5: multiply_rows(QFORMAT_##id, 5, f); break;       \
        case 6: multiply_rows(QFORMAT_##id, 6, f); break;       \
        case 7: multiply_rows(QFORMAT_##id, 7, f); break;       \
        case 8: multiply_rows(QFORMAT_##id, 8, f); break;       \
        default: bug(__FILE__, __LINE__, "more rows than few"); \
        }                                                       \
    }
#define EACH_FORMAT(X) \
    X(Q4_0)            \
    X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4_HALVES) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) X(TQ2_0)
EACH_FORMAT(ROWS)

typedef void multiply_function(const struct few_rows *f);

static multiply_function *multiply_of(const struct weight_part *part) {
    static multiply_function *const functions[N_QFORMATS] = {
#define ROW(id) [QFORMAT_##id] = multiply_##id,
        EACH_FORMAT(ROW)
#undef ROW
    };
    return functions[part->format->id];
}

/* ---- the sets ---- */

enum { MAX_SETS = 6 };
static struct kernels sets[MAX_SETS];
static const struct kernels *bases[MAX_SETS];
static int n_sets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Functions of one set, which must know its base. */
#define SET(i)                                                                                         \
    static int arrangement_##i(const struct weight_part *part) {                                       \
        return multiply_of(part) ? BY_BYTES : bases[i]->arrangement(part);                             \
    }                                                                                                  \
    static void arrange_##i(int how, const float *x, int64_t stride, int n_x, int64_t n, float *out) { \
        if (how == BY_BYTES)                                                                           \
            arrange_bytes(x, stride, n_x, n, out);                                                     \
        else                                                                                           \
            bases[i]->arrange(how, x, stride, n_x, n, out);                                            \
    }                                                                                                  \
    static void multiply_few_##i(const struct few_rows *f) {                                           \
        multiply_function *m = multiply_of(f->part);                                                   \
        (m ? m : bases[i]->multiply_few)(f);                                                           \
    }                                                                                                  \
    static int direct_groups_##i(const struct weight_part *part) {                                     \
        return multiply_of(part) ? INT_MAX : bases[i]->direct_groups(part);                            \
    }
SET(0)
SET(1)
SET(2)
SET(3)
SET(4)
SET(5)
#define FUNCTIONS(i) \
    { arrangement_##i, arrange_##i, multiply_few_##i, direct_groups_##i }
static const struct {
    int (*arrangement)(const struct weight_part *part);
    void (*arrange)(int arrangement, const float *x, int64_t x_stride, int n_x, int64_t n, float *out);
    void (*multiply_few)(const struct few_rows *f);
    int (*direct_groups)(const struct weight_part *part);
} functions[MAX_SETS] = {FUNCTIONS(0), FUNCTIONS(1), FUNCTIONS(2), FUNCTIONS(3), FUNCTIONS(4), FUNCTIONS(5)};

static const struct kernels *set_of(const struct kernels *base) {
    for (int i = 0; i < n_sets; i++)
        if (bases[i] == base)
            return &sets[i];
    BUG_IF(n_sets == MAX_SETS);
    int i = n_sets++;
    bases[i] = base;
    sets[i] = *base;
    sets[i].arrangement = functions[i].arrangement;
    sets[i].arrange = functions[i].arrange;
    sets[i].multiply_few = functions[i].multiply_few;
    sets[i].direct_groups = functions[i].direct_groups;
    return &sets[i];
}

const struct kernels *kernels_vnni(const struct kernels *base) {
    if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return NULL;
    pthread_mutex_lock(&lock);
    const struct kernels *set = set_of(base);
    pthread_mutex_unlock(&lock);
    return set;
}
#endif
