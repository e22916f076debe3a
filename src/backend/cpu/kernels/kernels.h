/* kernels.h - the vector loops under the fast ops, once for each instruction set.
 *
 * kernels_body.h is written over a small vocabulary of vectors (simd_*.h) and compiled once for each set (portable,
 * AVX2, AVX-512, NEON), and kernels_amx.c puts products by tiles into that of AVX-512; the table of the best set that
 * the processor has is chosen when the backend is opened. Nothing here knows an op. Arithmetic is as exact as
 * float32, and only the order of sums differs from the reference, but in kernels_bf16 and in products of blocks, which
 * round activations (docs/numerics.md). */
#pragma once

#include "core/kv_int4.h"
#include "core/ops.h"
#include "core/weight.h"

/* A few rows of activations times a run of weight rows, at the speed that memory gives the weights:
 *     y[t * y_stride + r] = sum_i w[row + r][i] * x[t][i] + (bias ? bias[r] : 0)     t < n_x, r < n_rows
 * The order of the sum is the same for every n_x, so a row of x gives the same bits whatever rows are beside it. */
struct few_rows {
    const struct weight_part *part; // with direct_groups
    int64_t row, n_rows, n_cols;
    const float *x; // as arrange() wrote them
    int n_x;        // 1 .. FEW_ROWS, or 2 * FEW_ROWS where a set is wide
    float *y;
    int64_t y_stride;
    const float *bias;
    bool near;      // the weights are in a cache already: none are fetched ahead
    float *partial; // n_rows * n_x * MOST_LANES floats: go by NEAR_COLS columns, so that x stays in the first-level
                    // cache; NULL: by whole rows
};

enum {
    AHEAD_BYTES = 64 * 1024, // how far ahead of its use multiply_few prefetches, unless a set says FEW_AHEAD_BYTES
    FEW_ROWS = 8,            // activation rows that share one pass over the weights
    NEAR_COLS = 512,         // columns of x that stay in the first-level cache
    MOST_LANES = 16,         // of any set
    PARTIAL_ROWS = 64,       // of weights that `partial` has room for
    PANEL_ROWS = 32          // output columns of a packed panel
};

/* Columns of weights made ready, zeros behind the n that they have. */
static inline int64_t arranged_cols(int64_t n) { return (n + 63) / 64 * 64; }

/* Floats that FEW_ROWS rows of n columns take at most, however they are arranged. */
static inline int64_t arranged_floats(int64_t n) { return 2 * FEW_ROWS * (arranged_cols(n) + 32); }

/* What products need of a format: a row of body/formats.h. */
struct format_kernels {
    const struct qformat *format;
    bool (*takes)(const struct weight_part *part); // its elements and strides; other parts are refused when placed

    /* Columns [col, col + n) of a row as floats; col a multiple of 32. */
    void (*convert)(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out);

    /* Parts that are multiplied as they are loaded; NULL: none. Of those multiply_few, for direct parts alone, and a
     * row in the order in which it meets it, zeros behind. */
    bool (*is_direct)(const struct weight_part *part);
    void (*multiply_few)(const struct few_rows *f);
    void (*ready)(const struct weight_part *part, int64_t row, int64_t n, float *out);
};

struct kernels {
    const char *name;
    const struct format_kernels *formats; // ends with a format of NULL

    /* multiply_few wants the activations in the order in which it meets the weights of a part's format: a number
     * above 0 for that order, and rows of x, of n columns, brought into it; out [arranged_floats(n)], twice if wide. */
    int (*arrangement)(const struct weight_part *part);
    void (*arrange)(int arrangement, const float *x, int64_t x_stride, int n_x, int64_t n, float *out);
    void (*multiply_few)(const struct few_rows *f);
    /* In how many groups of its rows multiply_few should meet the part as it is stored, at most; weights for more
     * of them, and those of formats with 0, are made ready. */
    int (*direct_groups)(const struct weight_part *part);
    bool wide;     // arrange and multiply_few take 2 * FEW_ROWS rows, out and x [2 * arranged_floats(n)]
    bool rounds;   // activations that meet bf16 weights are rounded to bf16
    bool by_tiles; // multiply_few wants many rows of weights and no `partial`
    /* Rows of x of more floats than these go by blocks of columns, and want `partial`, in one group too; 0: never. */
    int64_t near_floats;

    /* n_rows rows of n columns of any format as what multiply_few takes fastest, in out [n_rows in multiples of 8]
     * [arranged_cols(n)]: mostly floats, dequantised, in the order in which it meets them. As the part that is
     * returned, of arranged_cols(n) columns and from row 0 on, with x in the arrangement of the part that they come
     * from, they give the same bits as that part. */
    struct weight_part (*ready)(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, float *out);
    /* Whether rows made ready take a third of that room at most; NULL: none do. */
    bool (*is_compact)(const struct weight_part *part);

    /* Columns [col, col + n) of a weight's row as floats, any format; col a multiple of 32. */
    void (*convert)(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out);
    /* Turns n_rows <= PANEL_ROWS rows of k floats, `stride` apart, into panel [k][PANEL_ROWS], zeros beyond n_rows. */
    void (*pack)(const float *rows, int64_t stride, int64_t n_rows, int64_t k, float *panel);
    /* C [m, n] = A [m, k] B [k, n], or += with `add`. Row-major with strides; no two overlap. */
    void (*multiply)(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float *c, int64_t ldc, bool add);

    /* Keys of n <= PANEL_ROWS neighbouring slots as panel [dim][PANEL_ROWS], of which columns from n on are not meant;
     * and n values, one row of codes and of scales behind the other, as rows [n][dim]. */
    void (*int4_keys)(struct kv_int4_row from, int64_t dim, int64_t n, float *panel);
    void (*int4_values)(struct kv_int4_row from, int64_t dim, int64_t n, float *rows);

    float (*dot)(const float *a, const float *b, int64_t n);
    void (*add_scaled)(float *y, float factor, const float *x, int64_t n);        // y += factor * x
    void (*multiply_add)(float *y, const float *a, const float *b, int64_t n);    // y += a * b
    void (*blend)(float *y, float keep, float factor, const float *x, int64_t n); // y = keep * y + factor * x
    void (*scale)(float *y, float factor, int64_t n);
    float (*largest)(const float *x, int64_t n);      // -infinity for none; NaNs are passed over
    float (*exp_sum)(float *x, float max, int64_t n); // x = e^(x - max); returns the sum
    void (*softcap)(float *x, float cap, int64_t n);  // x = cap * tanh(x / cap)
    void (*add)(const float *a, const float *b, float factor, int64_t n, float *y); // y = (a + b) * factor; b NULL: 0
    /* y = x * factor * w, or * (w + 1) with plus_one; w may be NULL, y may be x. */
    void (*weigh)(const float *x, float factor, const float *w, bool plus_one, int64_t n, float *y);
    /* Rotates pairs (x[i], x[half + i]) by the angles of cos_sin: cos [half], sin [half]. */
    void (*rotate_halves)(const float *cos_sin, int64_t half, float *x);
    void (*activate)(struct act_args act, const float *gate, const float *up, int64_t n, float *y); // not ACT_GELU

    /* For measuring the machine: a sum of n floats, n a multiple of 256, as fast as they come; and n multiply-adds,
     * n a multiple of 384, in registers. The results only keep the work from being dropped. */
    float (*read)(const float *x, int64_t n);
    float (*multiply_adds)(int64_t n);
};

extern const struct kernels kernels_portable, kernels_avx2, kernels_avx512, kernels_neon;
const struct kernels *kernels_bf16(void); // NULL where the processor lacks AVX-512 BF16; by name or --dtype, serve too
const struct kernels *kernels_amx(void);  // NULL where the processor has no tiles or the system gives none

/* NULL: there is none. */
static inline const struct format_kernels *kernels_format(const struct kernels *k, const struct qformat *format) {
    const struct format_kernels *f = k->formats;
    while (f->format && f->format != format)
        f++;
    return f->format ? f : NULL;
}

/* The named set, or with NULL the best; NULL if this processor lacks it. */
const struct kernels *kernels_find(const char *name);
