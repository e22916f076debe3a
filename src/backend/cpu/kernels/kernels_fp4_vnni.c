/* kernels_fp4_vnni.c - NVFP4 and MXFP4 times activations of 8 bits, by AVX-512 VNNI (fp4/products.h). */
#if defined(__x86_64__)
#include "backend/cpu/kernels/fp4/layout.h"

#include <limits.h>
#include <string.h>

typedef __m512 fv;
enum { LANES = 16, MAX_TILE = 4, FP4_ARRANGEMENT = FP4_ARRANGEMENTS };
// As in products_vnni.h: x has four loads a step, which are to serve more than one row.
#define TILE(n_x) ((n_x) <= 2 ? MAX_TILE : 2)
#define FP4_AHEAD_BYTES AHEAD_BYTES

static ALWAYS_INLINE fv fv_set(float f) { return _mm512_set1_ps(f); }
static ALWAYS_INLINE fv fv_load(const float *p) { return _mm512_loadu_ps(p); }
static ALWAYS_INLINE void fv_store(float *p, fv v) { _mm512_storeu_ps(p, v); }
static ALWAYS_INLINE float fv_total(fv v) { return _mm512_reduce_add_ps(v); }

#include "backend/cpu/kernels/fp4/products.h"

/* Eight e4m3, each for two lanes: as float16, of which denormal numbers cost nothing, they are 2^-8 of themselves. */
static ALWAYS_INLINE __m512 e4m3_scales(const uint8_t *p) {
    __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)p);
    b = _mm_unpacklo_epi8(b, b);
    __mmask16 none = _mm_cmpeq_epi8_mask(_mm_or_si128(b, _mm_set1_epi8((char)0x80)), _mm_set1_epi8((char)0xFF));
    __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7); // the sign stood eight times more
    halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xBFFF));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(halves, none, _mm256_set1_epi16(0x7FFF)));
}

/* Four powers of two, each for four lanes. */
static ALWAYS_INLINE __m512 e8m0_scales(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    __m128i b =
        _mm_shuffle_epi8(_mm_cvtsi32_si128(four), _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
    __mmask16 least = _mm_testn_epi8_mask(b, b), none = _mm_cmpeq_epi8_mask(b, _mm_set1_epi8((char)0xFF));
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(b), 23);
    bits = _mm512_mask_mov_epi32(bits, least, _mm512_set1_epi32(0x00400000)); // 2^-127 is denormal
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, none, _mm512_set1_epi32(0x7FC00000)));
}

static ALWAYS_INLINE void add_step(const bool nv, const int n_w, const int n_x, const struct fp4_rows *w,
                                   const float *x, fv sum[][FEW_ROWS]) {
    const __m512i table = _mm512_broadcast_i32x4(fp4_table()), half = _mm512_set1_epi8(15);
    __m512i even[MAX_TILE], odd[MAX_TILE];
    __m512 scale[MAX_TILE];
    UNROLL for (int i = 0; i < n_w; i++) {
        __m512i b = _mm512_loadu_si512(w->codes + i * w->codes_stride);
        even[i] = _mm512_shuffle_epi8(table, _mm512_and_si512(b, half));
        odd[i] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(b, 4), half));
        const uint8_t *scales = w->scales + i * w->scales_stride;
        scale[i] = nv ? e4m3_scales(scales) : e8m0_scales(scales);
    }
    UNROLL for (int t = 0; t < n_x; t++) {
        const float *at = x + t * FP4_X_FLOATS;
        __m512i x_even = _mm512_loadu_si512(at), x_odd = _mm512_loadu_si512(at + FP4_ODD);
        __m512i less = _mm512_loadu_si512(at + FP4_LESS);
        __m512 s_x = _mm512_loadu_ps(at + FP4_SCALE_X);
        UNROLL for (int i = 0; i < n_w; i++) {
            __m512i d = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(less, even[i], x_even), odd[i], x_odd);
            sum[i][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale[i], s_x), sum[i][t]);
        }
    }
}

const struct block_products products_fp4_vnni = {.of = fp4_product_of,
                                                 .arrangements = FP4_ARRANGEMENTS,
                                                 .arrangement = fp4_arrangement,
                                                 .arrange = fp4_arrange,
                                                 .direct_groups = INT_MAX,
                                                 .others = &products_vnni};
const struct block_products products_fp4_amx = {.of = fp4_product_of,
                                                .arrangements = FP4_ARRANGEMENTS,
                                                .arrangement = fp4_arrangement,
                                                .arrange = fp4_arrange,
                                                .direct_groups = INT_MAX,
                                                .others = &products_amx};
#endif
