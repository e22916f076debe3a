/* kernels_vnni.c - block formats times activations of 8 bits: how x is rounded (steps_vnni.h says for what), and which
 * format has which product. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels_vnni.h"

#include "backend/cpu/kernels/steps_vnni.h"
#include "base/status.h"

#include <limits.h>
#include <math.h>

enum { BY_BYTES = VNNI_ARRANGEMENTS };

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

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    (void)how;
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

static block_product *multiply_of(const struct weight_part *part) {
    static block_product *const functions[N_QFORMATS] = {
#define ROW(id) [QFORMAT_##id] = product_##id,
        SMALL_BLOCKS(ROW) LARGE_BLOCKS(ROW) RARE_BLOCKS(ROW)
#undef ROW
    };
    return functions[part->format->id];
}

static int arrangement(const struct weight_part *part) { return (void)part, BY_BYTES; }

const struct block_products products_vnni = {.of = multiply_of,
                                             .arrangements = VNNI_ARRANGEMENTS,
                                             .arrangement = arrangement,
                                             .arrange = arrange,
                                             .direct_groups = INT_MAX,
                                             .others = &products_avx2};
#endif
