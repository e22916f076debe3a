/* kernels_amx.c - products with bf16 weights in the tiles of AMX; all else is the set for AVX-512.
 *
 * TDPBF16PS does C += A B with C [16][N] in float32, A [16][32] and B [32][N] in bf16: 512 multiply-adds a cycle where
 * AVX-512 has 32. The product of two bf16 numbers is exact in float32, and a float is the sum of three: its first eight
 * bits, the next eight, the last eight. So a row of x is three columns of B, and y = w high + (w middle + w low) is as
 * exact as sums in float32 are:
 *
 *     A   16 rows of weights, 32 columns, as the checkpoint stores them
 *     B   4 rows of x: [16 pairs of columns][high x 4, middle x 4, low x 4, nothing x 4][the pair], a line of 64 bytes
 *         a pair
 *     C   [16 rows of weights][high x 4, middle x 4, low x 4]
 *
 * A tile whose rows begin with a cache line is loaded twice as fast as one whose rows lie in two, and checkpoints align
 * nothing. So where all rows of a part lie alike, columns are counted from the line in which a row begins: before its
 * first and behind its last column a tile holds what else is stored there, and x zeros. Whether that would be read
 * outside the part, where it may be no weights but bytes that mean infinity, is looked at, and the step then taken from
 * a copy. So the last bits of a sum depend on where in a line its file has the row, though on nothing of the step.
 *
 * A column of C is a sum of its own, over the same terms in the same order whatever is beside it. Denormal numbers
 * count as zeros. Two A and two B meet in four C, so that each is loaded once for two products.
 *
 * One core of an Intel Xeon, the products of models/story one after the other, best of 300 (2026-11-22): with eight
 * rows of x 310 GFLOP/s from the second-level cache, where AVX-512 makes 110, and 174 from the third, 108; with one row
 * as fast as the third-level cache gives the weights, like AVX-512. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/kernels.h"

#include "base/status.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <immintrin.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef ARCH_REQ_XCOMP_PERM // headers before Linux 5.16
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    BY_TILE = 100, // and more, by columns_before: arrangements that the set for AVX-512 does not know
    TILE_ROWS = 16,
    TILE_COLS = 32,
    LINE = 16,      // floats
    ROWS_OF_B = 4,  // of x
    B_FLOATS = 256, // of a tile
    AHEAD_STEPS = 4,
    NEXT_BYTES = 16 << 10 // fetched ahead of weights: more than a core has under way, and little is fetched behind the
                          // worker's last row
};

static bool is_tiled(const struct weight_part *part) {
    return part->format == &qformat_plain && part->dtype == DT_BF16;
}

/* Columns between the line in which a row begins and the row; 0 if rows differ in that. */
static int columns_before(const struct weight_part *part) {
    uintptr_t at = (uintptr_t)part->data % 64;
    return at % 2 == 0 && part->row_stride % TILE_COLS == 0 ? (int)at / 2 : 0;
}

static int arrangement(const struct weight_part *part) {
    return is_tiled(part) ? BY_TILE + columns_before(part) : kernels_avx512.arrangement(part);
}

/* However many rows: a tile is not made faster by floats. */
static int direct_groups(const struct weight_part *part) {
    return is_tiled(part) ? INT_MAX : kernels_avx512.direct_groups(part);
}

/* ---- activations ---- */

/* In each 128-bit quarter, column t of four rows becomes row t. */
static ALWAYS_INLINE void turn_quarters(__m512 v[4]) {
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1])), b = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3]));
    __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1])), d = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    v[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
    v[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    v[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
    v[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
}

/* The first eight bits of each float, which is a bf16 number. */
static ALWAYS_INLINE __m512i first_bits(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32((int)0xFFFF0000));
}

/* v as the sum of three numbers of eight bits; what is infinite or no number is all in the first. */
static ALWAYS_INLINE void split(__m512 v, __m512i parts[3]) {
    enum { NOT_FINITE = 0x80 | 0x10 | 0x08 | 0x01 };
    __mmask16 finite = _knot_mask16(_mm512_fpclass_ps_mask(v, NOT_FINITE));
    parts[0] = first_bits(v);
    __m512 rest = _mm512_maskz_sub_ps(finite, v, _mm512_castsi512_ps(parts[0]));
    parts[1] = first_bits(rest);
    parts[2] =
        first_bits(_mm512_sub_ps(rest, _mm512_castsi512_ps(parts[1]))); // of a denormal number more bits would be left
}

/* Columns [c, c + 32) of a row of n, zeros where there are none, as pairs of bf16: high, middle, low. */
static ALWAYS_INLINE void split_row(const float *x, int64_t c, int64_t n, __m512 parts[3]) {
    uint32_t some = (uint32_t)((UINT64_C(1) << MIN(n - c, TILE_COLS)) - 1) & UINT32_MAX << MAX(-c, 0);
    __m512 a = _mm512_maskz_loadu_ps((__mmask16)some, x + c),
           b = _mm512_maskz_loadu_ps((__mmask16)(some >> LINE), x + c + LINE);
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 even = _mm512_permutex2var_ps(a, evens, b);
    __m512 odd = _mm512_permutex2var_ps(a, _mm512_or_si512(evens, _mm512_set1_epi32(1)), b);
    __m512i first[3], second[3];
    split(even, first);
    split(odd, second);
    UNROLL for (int i = 0; i < 3; i++) parts[i] =
        _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(first[i], 16), second[i]));
}

/* B of columns [c, c + 32) of n_x <= 4 rows of n. */
static ALWAYS_INLINE void arrange_tile(const float *x, int64_t x_stride, int n_x, int64_t c, int64_t n, float *out) {
    __m512 parts[3][ROWS_OF_B], zero = _mm512_setzero_ps();
    UNROLL for (int t = 0; t < ROWS_OF_B; t++) {
        __m512 of_row[3] = {zero, zero, zero};
        if (t < n_x)
            split_row(x + t * x_stride, c, n, of_row);
        UNROLL for (int i = 0; i < 3; i++) parts[i][t] = of_row[i];
    }
    UNROLL for (int i = 0; i < 3; i++)
        turn_quarters(parts[i]); // quarter k of parts[i][q]: part i of pair 4k + q, of the four rows
    UNROLL for (int q = 0; q < 4; q++) {
        __m512 a = _mm512_shuffle_f32x4(parts[0][q], parts[1][q], 0x44),
               b = _mm512_shuffle_f32x4(parts[2][q], zero, 0x44);
        __m512 e = _mm512_shuffle_f32x4(parts[0][q], parts[1][q], 0xEE),
               g = _mm512_shuffle_f32x4(parts[2][q], zero, 0xEE);
        _mm512_storeu_ps(out + q * LINE, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(out + (4 + q) * LINE, _mm512_shuffle_f32x4(a, b, 0xDD));
        _mm512_storeu_ps(out + (8 + q) * LINE, _mm512_shuffle_f32x4(e, g, 0x88));
        _mm512_storeu_ps(out + (12 + q) * LINE, _mm512_shuffle_f32x4(e, g, 0xDD));
    }
}

/* Another core has often written x, and what it holds comes late: columns [c, c + 32) are asked for before they are
 * used. */
static ALWAYS_INLINE void fetch_columns(const float *x, int64_t x_stride, int n_x, int64_t c, int64_t n) {
    for (int t = 0; t < n_x && c + TILE_COLS <= n; t++) {
        __builtin_prefetch(x + t * x_stride + c);
        __builtin_prefetch(x + t * x_stride + c + LINE);
    }
}

/* [step of 32 columns][tile of four rows] */
static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    if (how < BY_TILE) {
        kernels_avx512.arrange(how, x, x_stride, n_x, n, out);
        return;
    }
    for (int64_t c = BY_TILE - how; c < n; c += TILE_COLS) {
        fetch_columns(x, x_stride, n_x, c + AHEAD_STEPS * TILE_COLS, n);
        for (int t = 0; t < n_x; t += ROWS_OF_B, out += B_FLOATS)
            arrange_tile(x + t * x_stride, x_stride, MIN(n_x - t, ROWS_OF_B), c, n, out);
    }
}

/* ---- products ---- */

/* C by A and then by B. */
static void configure(int rows) { tiles_configure(rows, TILE_ROWS, 64, 3 * ROWS_OF_B * (int)sizeof(float)); }

static ALWAYS_INLINE void multiply_step(const int n_a, const int n_b, const unsigned char *w, int64_t w_stride,
                                        const float *x) {
    _tile_loadd(6, x, LINE * sizeof(float));
    _tile_loadd(4, w, w_stride);
    _tile_dpbf16ps(0, 4, 6);
    if (n_b > 1) {
        _tile_loadd(7, x + B_FLOATS, LINE * sizeof(float));
        _tile_dpbf16ps(1, 4, 7);
    }
    if (n_a > 1) {
        _tile_loadd(5, w + TILE_ROWS * w_stride, w_stride);
        _tile_dpbf16ps(2, 5, 6);
        if (n_b > 1)
            _tile_dpbf16ps(3, 5, 7);
    }
}

/* Of each fourth row of C from c on, four sums that begin at `at`. */
static ALWAYS_INLINE __m512 gather_sums(const float *c, int at) {
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(c + at));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(c + 4 * LINE + at), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(c + 8 * LINE + at), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(c + 12 * LINE + at), 3);
}

/* C, of n rows of weights from r on, to rows [t, t + 4) of y, as far as they exist. */
static ALWAYS_INLINE void put_tile(const struct few_rows *f, int64_t r, int n, int t, const float *c) {
    __mmask16 some = (__mmask16)((1u << n) - 1);
    __m512 bias = f->bias ? _mm512_maskz_loadu_ps(some, f->bias + r) : _mm512_setzero_ps(), v[4];
    UNROLL for (int q = 0; q < 4; q++) {
        const float *row = c + q * LINE;
        v[q] = _mm512_add_ps(gather_sums(row, 0),
                             _mm512_add_ps(gather_sums(row, ROWS_OF_B), gather_sums(row, 2 * ROWS_OF_B)));
    }
    turn_quarters(v);
    for (int i = 0; i < MIN(f->n_x - t, ROWS_OF_B); i++)
        _mm512_mask_storeu_ps(f->y + (t + i) * f->y_stride + r, some, _mm512_add_ps(v[i], bias));
}

/* Tiles of C that are multiplied, but not yet in y. */
struct finished {
    int n_a, rows; // n_a tiles of so many rows of weights, from row r on; 0: none
    int64_t r;
    float sums[4][TILE_ROWS * LINE];
};

static ALWAYS_INLINE void put_finished(const int n_b, const struct few_rows *f, const struct finished *done) {
    for (int i = 0; i < done->n_a; i++)
        for (int j = 0; j < n_b; j++)
            put_tile(f, done->r + i * TILE_ROWS, done->rows, j * ROWS_OF_B, done->sums[i * 2 + j]);
}

/* A of columns [c, c + 32) of some rows of n from a copy, with zeros where there are none. */
static ALWAYS_INLINE void multiply_edge(const int n_a, const int n_b, const unsigned char *w, int64_t w_stride,
                                        int rows, int64_t c, int64_t n, const float *x) {
    uint16_t copy[2 * TILE_ROWS][TILE_COLS];
    uint32_t some = (uint32_t)((UINT64_C(1) << MIN(n - c, TILE_COLS)) - 1) & UINT32_MAX << MAX(-c, 0);
    for (int i = 0; i < n_a * rows; i++)
        _mm512_storeu_si512(copy[i], _mm512_maskz_loadu_epi16(some, w + i * w_stride + c * 2));
    TILE_FENCE(copy);
    multiply_step(n_a, n_b, (const unsigned char *)copy, sizeof *copy, x);
}

/* n_a tiles of `rows` rows of weights, from row r of f on, times n_b tiles of x. The tiles before these, whose sums
 * have long been stored, go to y while the processor still multiplies. */
static ALWAYS_INLINE void multiply_tiles(const int n_a, const int n_b, const struct few_rows *f, int64_t r, int rows,
                                         const struct finished *last, struct finished *out) {
    const struct weight_part *part = f->part;
    const int64_t w_stride = part->row_stride * 2, before = columns_before(part);
    const int64_t n_steps = (before + f->n_cols + TILE_COLS - 1) / TILE_COLS;
    const unsigned char *begin = part->data, *end = begin + (part->n_rows - 1) * w_stride + f->n_cols * 2;
    const unsigned char *w = begin + (f->row + r) * w_stride;
    const int64_t n_read = (n_a * rows - 1) * w_stride + (n_steps * TILE_COLS - before) * 2; // from w on
    const bool copy_last = n_read > end - w, fetch = !f->near && part->row_stride == f->n_cols;
    int64_t s = 0;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (w - before * 2 < begin)
        multiply_edge(n_a, n_b, w, w_stride, rows, -before, f->n_cols, f->x), s++;
    for (; s < n_steps - copy_last; s++) {
        if (fetch)
            UNROLL for (int i = 0; i < n_a * rows; i++)
                __builtin_prefetch(w + NEXT_BYTES + (s * n_a * rows + i) * 64, 0, 2);
        multiply_step(n_a, n_b, w + (s * TILE_COLS - before) * 2, w_stride, f->x + s * n_b * B_FLOATS);
    }
    if (s < n_steps)
        multiply_edge(n_a, n_b, w, w_stride, rows, s * TILE_COLS - before, f->n_cols, f->x + s * n_b * B_FLOATS);
    put_finished(n_b, f, last);
    out->n_a = n_a;
    out->rows = rows;
    out->r = r;
    if (rows < TILE_ROWS)
        memset(out->sums, 0, sizeof out->sums);
    TILE_FENCE(out);
    _tile_stored(0, out->sums[0], LINE * sizeof(float));
    if (n_b > 1)
        _tile_stored(1, out->sums[1], LINE * sizeof(float));
    if (n_a > 1)
        _tile_stored(2, out->sums[2], LINE * sizeof(float));
    if (n_a > 1 && n_b > 1)
        _tile_stored(3, out->sums[3], LINE * sizeof(float));
    TILE_FENCE(out);
}

static ALWAYS_INLINE void multiply_rows(const int n_b, const struct few_rows *f) {
    struct finished done[2];
    int64_t r = 0;
    int turn = 0;
    done[1].n_a = 0;
    configure(TILE_ROWS);
    for (; r + 2 * TILE_ROWS <= f->n_rows; r += 2 * TILE_ROWS, turn ^= 1)
        multiply_tiles(2, n_b, f, r, TILE_ROWS, &done[turn ^ 1], &done[turn]);
    for (; r + TILE_ROWS <= f->n_rows; r += TILE_ROWS, turn ^= 1)
        multiply_tiles(1, n_b, f, r, TILE_ROWS, &done[turn ^ 1], &done[turn]);
    if (r < f->n_rows) {
        configure((int)(f->n_rows - r));
        multiply_tiles(1, n_b, f, r, (int)(f->n_rows - r), &done[turn ^ 1], &done[turn]);
        turn ^= 1;
    }
    put_finished(n_b, f, &done[turn ^ 1]);
    _tile_release(); // a thread without tiles is switched faster, and its core may rest
}

static void multiply_few(const struct few_rows *f) {
    if (!is_tiled(f->part))
        kernels_avx512.multiply_few(f);
    else if (f->n_x <= ROWS_OF_B)
        multiply_rows(1, f);
    else
        multiply_rows(2, f);
}

/* ---- the set ---- */

/* The processor has tiles and GFNI, as all with tiles do, and the system, which must be asked once, lets this process
 * use them. */
static bool may_use_tiles(void) {
    enum { TILE_DATA = 18, GFNI = 1 << 8, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c & GFNI) || !(d & AMX_BF16) || !(d & AMX_TILE) ||
        !(d & AMX_INT8))
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

static struct kernels amx;
static bool available;

static void fill_set(void) {
    available = may_use_tiles();
    amx = kernels_avx512;
    amx.name = "amx";
    amx.arrangement = arrangement;
    amx.arrange = arrange;
    amx.direct_groups = direct_groups;
    amx.by_tiles = true;
    amx.multiply_few = multiply_few;
}

const struct kernels *kernels_amx(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_set);
    return available ? &amx : NULL;
}
#endif
