/* kernels_fp4_avx2.c - NVFP4 and MXFP4 times activations of 8 bits, by AVX2 (fp4/products.h), and how x is rounded for
 * them. Sums of two pairs of products fill 16 bits: 4 * 24 * 127 < 2^15. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/avx2/round.h"
#include "backend/cpu/kernels/fp4/layout.h"

#include <limits.h>
#include <string.h>

typedef __m256 fv;
enum { LANES = 8, MAX_TILE = 4, FP4_ARRANGEMENT = FP4_ARRANGEMENTS };
#define TILE(n_x) ((n_x) == 1 ? MAX_TILE : (n_x) <= 3 ? 2 : 1)
#define FP4_AHEAD_BYTES (8 << 10)

static ALWAYS_INLINE fv fv_set(float f) { return _mm256_set1_ps(f); }
static ALWAYS_INLINE fv fv_load(const float *p) { return _mm256_loadu_ps(p); }
static ALWAYS_INLINE void fv_store(float *p, fv v) { _mm256_storeu_ps(p, v); }
static ALWAYS_INLINE float fv_total(fv v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#include "backend/cpu/kernels/fp4/products.h"

/* Eight e4m3: as float16, of which denormal numbers cost nothing, they are 2^-8 of themselves. */
static ALWAYS_INLINE __m256 e4m3_scales(const uint8_t *p) {
    const __m128i most = _mm_set1_epi16((short)0xBF80), sign = _mm_set1_epi16((short)0x8000);
    __m128i halves = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    halves = _mm_and_si128(_mm_slli_epi16(halves, 7), most); // the sign stood eight times more
    return _mm256_cvtph_ps(_mm_or_si128(halves, _mm_cmpeq_epi16(_mm_or_si128(halves, sign), most)));
}

/* Four powers of two, and four more. */
static ALWAYS_INLINE __m256 e8m0_scales(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    __m128i b = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
    __m128i least = _mm_and_si128(_mm_cmpeq_epi32(b, _mm_setzero_si128()), _mm_set1_epi32(0x00400000)); // 2^-127
    __m128i none = _mm_cmpeq_epi32(b, _mm_set1_epi32(0xFF));
    __m128i bits = _mm_or_si128(_mm_or_si128(_mm_slli_epi32(b, 23), least), none);
    return _mm256_castps128_ps256(_mm_castsi128_ps(bits));
}

/* Scales of half a step for its lanes. */
static ALWAYS_INLINE __m256 of_lanes(const bool nv, __m256 scales, const int half) {
    const __m256i nvfp4 = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), mxfp4 = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    return _mm256_permutevar8x32_ps(scales, nv ? _mm256_add_epi32(nvfp4, _mm256_set1_epi32(4 * half))
                                               : _mm256_add_epi32(mxfp4, _mm256_set1_epi32(2 * half)));
}

static ALWAYS_INLINE __m256i load32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

static ALWAYS_INLINE void add_step(const bool nv, const int n_w, const int n_x, const struct fp4_rows *w,
                                   const float *x, fv sum[][FEW_ROWS]) {
    const __m256i table = _mm256_broadcastsi128_si256(fp4_table()), low = _mm256_set1_epi8(15);
    __m256 scales[MAX_TILE];
    UNROLL for (int i = 0; i < n_w; i++) scales[i] =
        nv ? e4m3_scales(w->scales + i * w->scales_stride) : e8m0_scales(w->scales + i * w->scales_stride);
    UNROLL for (int half = 0; half < 2; half++) {
        __m256i even[MAX_TILE], odd[MAX_TILE];
        __m256 scale[MAX_TILE];
        UNROLL for (int i = 0; i < n_w; i++) {
            __m256i b = load32(w->codes + i * w->codes_stride + 32 * half);
            even[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(b, low));
            odd[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(b, 4), low));
            scale[i] = of_lanes(nv, scales[i], half);
        }
        UNROLL for (int t = 0; t < n_x; t++) {
            const float *at = x + t * FP4_X_FLOATS + half * LANES;
            __m256i x_even = load32(at), x_odd = load32(at + FP4_ODD), less = load32(at + FP4_LESS);
            __m256 s_x = _mm256_loadu_ps(at + FP4_SCALE_X);
            UNROLL for (int i = 0; i < n_w; i++) {
                __m256i words =
                    _mm256_add_epi16(_mm256_maddubs_epi16(even[i], x_even), _mm256_maddubs_epi16(odd[i], x_odd));
                __m256i d = _mm256_add_epi32(_mm256_madd_epi16(words, _mm256_set1_epi16(1)), less);
                sum[i][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(scale[i], s_x), sum[i][t]);
            }
        }
    }
}

/* ---- activations ---- */

/* Block k of a step, of which `left` columns exist, to the step's place in out. */
static void round_to_step(const float *x, int64_t left, int k, float *out) {
    float some[32] = {0};
    if (left < 32)
        memcpy(some, x, (size_t)MAX(left, 0) * sizeof *x);
    struct rounded r = round_columns(left < 32 ? some : x);
    __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(r.first, r.second), 0xD8);
    const __m256i apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes, apart), 0xD8);
    __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    __m128i eights = _mm_hadd_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    _mm_storeu_si128((__m128i *)(void *)(out + 4 * k), _mm256_castsi256_si128(halves));
    _mm_storeu_si128((__m128i *)(void *)(out + FP4_ODD + 4 * k), _mm256_extracti128_si256(halves, 1));
    _mm_storeu_si128((__m128i *)(void *)(out + FP4_LESS + 4 * k), _mm_mullo_epi32(eights, _mm_set1_epi32(-FP4_MORE)));
    _mm_storeu_ps(out + FP4_SCALE_X + 4 * k, _mm_set1_ps(r.scale));
}

void fp4_arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    (void)how;
    for (int64_t c = 0; c < n; c += FP4_STEP)
        for (int t = 0; t < n_x; t++, out += FP4_X_FLOATS)
            for (int k = 0; k < FP4_STEP / 32; k++)
                round_to_step(x + t * x_stride + c + 32 * k, n - c - 32 * k, k, out);
}

const struct block_products products_fp4_avx2 = {.of = fp4_product_of,
                                                 .arrangements = FP4_ARRANGEMENTS,
                                                 .arrangement = fp4_arrangement,
                                                 .arrange = fp4_arrange,
                                                 .direct_groups = INT_MAX,
                                                 .others = &products_avx2};
#endif
