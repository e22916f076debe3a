/* kernels_bf16.c - products with bf16 weights and activations rounded to bf16, by AVX-512 BF16; all else is the set for
 * AVX-512.
 *
 * VDPBF16PS adds the products of 16 pairs to 16 float32 sums: 32 multiply-adds an instruction, where float32 has 16,
 * and weights are multiplied as they lie in the file. A product of two bf16 numbers is exact in float32, so what is
 * lost is what rounding x loses: each term is off by at most 2^-8 of itself, and a sum by 2^-8 of the sum of its terms'
 * sizes. Denormal numbers count as zeros.
 *
 *     y[t][r] = tree(sum over steps of 32 columns of w[r][32] x[t][32])      16 sums, folded in halves at the end
 *
 * The steps go in order and the tree is one, so a row of x gives the same bits whatever rows are beside it. A step of 3
 * rows of weights and 8 of x loads 11 vectors for 24 instructions, and keeps 24 sums, which the 32 registers hold.
 * Long rows go by blocks of columns whose x stays in the first-level cache.
 *
 * Figures: docs/lab/cpu.md. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/kernels.h"

#include "base/status.h"

#include <cpuid.h>
#include <immintrin.h>
#include <limits.h>
#include <pthread.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    BY_PAIRS = 1000, // an arrangement that other sets do not know
    STEP = 32,       // columns
    LANES = 16,
    BLOCK = 1024, // columns of 8 rows of x are 16 KiB
    MOST_W = 8,   // rows of weights of a tile
};

static bool is_bf16(const struct weight_part *part) {
    return part->format == &qformat_plain && part->dtype == DT_BF16 && part->col_stride == 1;
}

static int arrangement(const struct weight_part *part) {
    return is_bf16(part) ? BY_PAIRS : kernels_avx512.arrangement(part);
}

static int direct_groups(const struct weight_part *part) {
    return is_bf16(part) ? INT_MAX : kernels_avx512.direct_groups(part);
}

/* ---- activations ---- */

/* bf16 [n_x][arranged_cols(n)], zeros behind each row. */
static void round_rows(const float *x, int64_t x_stride, int n_x, int64_t n, uint16_t *out) {
    for (int t = 0; t < n_x; t++, out += arranged_cols(n))
        for (int64_t c = 0; c < arranged_cols(n); c += LANES) {
            __mmask16 some = n - c >= LANES ? UINT16_MAX : (__mmask16)((1u << MAX(n - c, 0)) - 1);
            __m256bh v = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + t * x_stride + c));
            _mm256_storeu_si256((__m256i *)(out + c), (__m256i)v);
        }
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    if (how == BY_PAIRS)
        round_rows(x, x_stride, n_x, n, (uint16_t *)out);
    else
        kernels_avx512.arrange(how, x, x_stride, n_x, n, out);
}

/* ---- products ---- */

/* Four times 16 sums to four: halves are added until four are left of each, which go by a transposition. */
static ALWAYS_INLINE __m128 fold(__m512 v) {
    __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

static ALWAYS_INLINE __m128 sums_of(const __m512 v[4]) {
    __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d));
}

struct tile {
    const unsigned char *w; // the first row, at the first column of the block
    int64_t w_stride;       // bytes
    const uint16_t *x;      // the same column of the first row of x
    int64_t x_stride, n;    // elements; columns of the block
    bool ahead;             // fetch weights that come later
};

static ALWAYS_INLINE void add_step(const int n_w, const int n_t, const struct tile *b, int64_t c, __mmask32 some,
                                   __m512 sums[MOST_W][FEW_ROWS]) {
    __m512bh w[MOST_W];
    UNROLL for (int i = 0; i < n_w; i++) {
        const unsigned char *at = b->w + i * b->w_stride + c * 2;
        w[i] = (__m512bh)(some == UINT32_MAX ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi16(some, at));
        if (b->ahead)
            __builtin_prefetch(at + AHEAD_BYTES, 0, 2);
    }
    UNROLL for (int t = 0; t < n_t; t++) {
        __m512bh x = (__m512bh)_mm512_loadu_si512(b->x + t * b->x_stride + c);
        UNROLL for (int i = 0; i < n_w; i++) sums[i][t] = _mm512_dpbf16_ps(sums[i][t], w[i], x);
    }
}

/* n_w rows of weights from row r on times n_t of x, in columns [begin, end). What is kept between blocks lies in
 * f->partial. */
static ALWAYS_INLINE void multiply_tile(const int n_w, const int n_t, const struct few_rows *f, int64_t r,
                                        int64_t begin, int64_t end) {
    const int64_t w_stride = f->part->row_stride * 2, x_stride = arranged_cols(f->n_cols);
    struct tile b = {
        .w = (const unsigned char *)f->part->data + (f->row + r) * w_stride + begin * 2,
        .w_stride = w_stride,
        .x = (const uint16_t *)f->x + begin,
        .x_stride = x_stride,
        .n = end - begin,
        .ahead = !f->near,
    };
    __m512 sums[MOST_W][FEW_ROWS];
    float *kept = f->partial ? f->partial + r * n_t * LANES : NULL;
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_t; t++) sums[i][t] =
        begin > 0 ? _mm512_loadu_ps(kept + (i * n_t + t) * LANES) : _mm512_setzero_ps();
    int64_t c = 0;
    for (; c + STEP <= b.n; c += STEP)
        add_step(n_w, n_t, &b, c, UINT32_MAX, sums);
    if (c < b.n)
        add_step(n_w, n_t, &b, c, (UINT32_C(1) << (b.n - c)) - 1, sums);
    if (end < f->n_cols) {
        UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_t; t++)
            _mm512_storeu_ps(kept + (i * n_t + t) * LANES, sums[i][t]);
        return;
    }
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_t; t += 4) {
        float four[4];
        __m512 v[4];
        UNROLL for (int k = 0; k < 4; k++) v[k] = t + k < n_t ? sums[i][t + k] : _mm512_setzero_ps();
        _mm_storeu_ps(four, _mm_add_ps(sums_of(v), _mm_set1_ps(f->bias ? f->bias[r + i] : 0)));
        UNROLL for (int k = 0; k < 4; k++) if (t + k < n_t) f->y[(t + k) * f->y_stride + r + i] = four[k];
    }
}

static ALWAYS_INLINE void multiply_block(const int n_w, const int n_t, const struct few_rows *f, int64_t begin,
                                         int64_t end) {
    int64_t r = 0;
    for (; r + n_w <= f->n_rows; r += n_w)
        multiply_tile(n_w, n_t, f, r, begin, end);
    for (; r < f->n_rows; r++)
        multiply_tile(1, n_t, f, r, begin, end);
}

static ALWAYS_INLINE void multiply_rows(const int n_w, const int n_t, const struct few_rows *f) {
    bool by_blocks = f->partial && f->n_rows <= PARTIAL_ROWS && f->n_cols > 2 * BLOCK;
    int64_t n = by_blocks ? BLOCK : f->n_cols;
    for (int64_t c = 0; c < f->n_cols; c += n)
        multiply_block(n_w, n_t, f, c, MIN(c + n, f->n_cols));
}

static void multiply_bf16(const struct few_rows *f) {
    switch (f->n_x) {
    case 1: multiply_rows(8, 1, f); return;
    case 2: multiply_rows(8, 2, f); return;
    case 3: multiply_rows(6, 3, f); return;
    case 4: multiply_rows(6, 4, f); return;
    case 5: multiply_rows(4, 5, f); return;
    case 6: multiply_rows(4, 6, f); return;
    case 7: multiply_rows(3, 7, f); return;
    default: multiply_rows(3, 8, f); return;
    }
}

static void multiply_few(const struct few_rows *f) {
    if (is_bf16(f->part))
        multiply_bf16(f);
    else
        kernels_avx512.multiply_few(f);
}

/* ---- the set ---- */

static struct kernels set;
static bool available;

static void fill_set(void) {
    enum { AVX512_BF16 = 1 << 5 };
    unsigned a, b, c, d;
    available = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
    if (!available)
        return; // the copy below may be made by instructions of AVX-512, as all of this file
    set = kernels_avx512;
    set.name = "bf16";
    set.arrangement = arrangement;
    set.arrange = arrange;
    set.direct_groups = direct_groups;
    set.by_tiles = true;
    set.rounds = true;
    set.multiply_few = multiply_few;
}

const struct kernels *kernels_bf16(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_set);
    return available ? &set : NULL;
}
#else
#include "backend/cpu/kernels/kernels.h"

const struct kernels *kernels_bf16(void) { return NULL; }
#endif
