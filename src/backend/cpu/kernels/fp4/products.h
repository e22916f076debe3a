/* products.h - NVFP4 and MXFP4 of safetensors times activations of 8 bits: rows of weights by rows of x. A set's file
 * (kernels_fp4_SET.c) defines the vectors below, and makes a table of block_products of what this gives.
 *
 * A step is 128 columns, 64 bytes of codes: low halves are the even columns, high halves the odd ones. A byte shuffle
 * makes of a code its value doubled, plus 12: u, unsigned. Lane i of 16 then belongs to columns 8 i to 8 i + 7:
 *
 *     D     = sum of u x - 12 S, S the sum of x's eight             integers, exact
 *     y    += D (scale s_x)                                         float32, one sum a lane
 *     y     = (sum of lanes) tensor_scale / 2 + bias                of NVFP4 times 2^8: its scales come as 2^-8 of them
 *
 * x is arranged so: of each step and row 64 bytes of even columns, 64 of odd ones, 16 integers -12 S, 16 floats s_x,
 * where s_x = max |x| / 127 of 32 columns and x / s_x is rounded to even. What is no number in x makes s_x none.
 * What stands beside a row in a step, how columns are cut and which tile a row is of changes none of its sums.
 *
 *     fv, fv_set, fv_load, fv_store, fv_total      LANES floats, and their sum in one order
 *     add_step                                     of n_w rows of weights and n_x rows of x, to their sums
 *     TILE(n_x)                                    rows of weights that are taken together */
#pragma once

#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/fp4/layout.h"

#include "base/status.h"

/* Weights of a tile: codes and scales of its first row at a step, and bytes from row to row. */
struct fp4_rows {
    const uint8_t *codes, *scales;
    int64_t codes_stride, scales_stride;
};

static ALWAYS_INLINE void add_step(const bool nv, const int n_w, const int n_x, const struct fp4_rows *w,
                                   const float *x, fv sum[][FEW_ROWS]);

/* To memory the codes of a tile are one linear stream, and so are its scales; both are fetched well ahead. */
static ALWAYS_INLINE void fetch_ahead(const uint8_t *codes, const uint8_t *scales, const int n_bytes) {
    UNROLL for (int i = 0; i < n_bytes; i += 64) __builtin_prefetch(codes + i, 0, 2);
    __builtin_prefetch(scales, 0, 2);
}

/* The last columns of a row, fewer than a step: copied, so that no byte behind a row is read. */
static ALWAYS_INLINE void add_rest(const bool nv, const int n_w, const int n_x, const struct fp4_rows *w, int64_t n,
                                   const float *x, fv sum[][FEW_ROWS]) {
    uint8_t codes[MAX_TILE][FP4_STEP / 2] = {{0}}, scales[MAX_TILE][FP4_SCALES] = {{0}};
    const int width = nv ? 16 : 32;
    for (int i = 0; i < n_w; i++) {
        memcpy(codes[i], w->codes + i * w->codes_stride, (size_t)(n + 1) / 2);
        memcpy(scales[i], w->scales + i * w->scales_stride, (size_t)((n + width - 1) / width));
    }
    add_step(nv, n_w, n_x, &(struct fp4_rows){codes[0], scales[0], sizeof codes[0], sizeof scales[0]}, x, sum);
}

static ALWAYS_INLINE void add_columns(const bool nv, const int n_w, const int n_x, const int64_t n_all,
                                      const struct few_rows *few, int64_t r, int64_t t0, int64_t from, int64_t to,
                                      fv sum[][FEW_ROWS]) {
    const struct weight_part *part = few->part;
    const struct qscale *s = &part->scale;
    const int64_t row = few->row + r, step_scales = nv ? 8 : 4;
    const float *x = few->x + (from / FP4_STEP * n_all + t0) * FP4_X_FLOATS;
    struct fp4_rows w = {
        .codes = (const uint8_t *)part->data + row * part->row_stride + from / 2,
        .scales = (const uint8_t *)s->data + (part->first_row + row) * s->stride + from / FP4_STEP * step_scales,
        .codes_stride = part->row_stride,
        .scales_stride = s->stride,
    };
    const int64_t ahead = FP4_AHEAD_BYTES + MIN(n_w * part->row_stride, AHEAD_BYTES - FP4_AHEAD_BYTES); // as few_ahead
    const uint8_t *codes = w.codes + ahead, *scales = w.scales + ahead * step_scales / 64;
    const bool far = !few->near && from == 0;
    int64_t c = from;
    for (; c + FP4_STEP <= to; c += FP4_STEP, x += n_all * FP4_X_FLOATS) {
        if (far) {
            fetch_ahead(codes, scales, n_w * FP4_STEP / 2);
            codes += n_w * FP4_STEP / 2;
            scales += n_w * step_scales;
        }
        add_step(nv, n_w, n_x, &w, x, sum);
        w.codes += FP4_STEP / 2;
        w.scales += step_scales;
    }
    if (c < to)
        add_rest(nv, n_w, n_x, &w, to - c, x, sum);
}

/* Columns [from, to) of n_w rows from r on with n_x of few's n_all rows of x, from t0 on. */
static ALWAYS_INLINE void multiply_tile(const bool nv, const int n_w, const int n_x, const int64_t n_all,
                                        const struct few_rows *few, int64_t r, int64_t t0, int64_t from, int64_t to) {
    float *kept = from > 0 || to < few->n_cols ? few->partial + (r * n_all + t0) * LANES : NULL;
    const float factor = few->part->scale.tensor_scale * (nv ? 128 : 0.5f);
    fv sum[MAX_TILE][FEW_ROWS];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] =
        from > 0 ? fv_load(kept + (i * n_all + t) * LANES) : fv_set(0);
    add_columns(nv, n_w, n_x, n_all, few, r, t0, from, to, sum);
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) {
        if (to < few->n_cols)
            fv_store(kept + (i * n_all + t) * LANES, sum[i][t]);
        else
            few->y[(t0 + t) * few->y_stride + r + i] =
                fv_total(sum[i][t]) * factor + (few->bias ? few->bias[r + i] : 0);
    }
}

/* Columns go by so many, where several groups of x meet the rows: what of x is met again is near. */
enum { NEAR = 1024 };

/* Rows that fill no tile, each with each row of x alone: rare and few, so one loop for any n_x. */
typedef void rest_function(const struct few_rows *few, int64_t r, int64_t from, int64_t to);

static ALWAYS_INLINE void multiply_rest(const bool nv, const struct few_rows *few, int64_t r, int64_t from,
                                        int64_t to) {
    for (; r < few->n_rows; r++)
        for (int t = 0; t < few->n_x; t++)
            multiply_tile(nv, 1, 1, few->n_x, few, r, t, from, to);
}

static ALWAYS_INLINE void multiply_rows(const bool nv, const int n_x, const struct few_rows *few, rest_function *rest) {
    const int64_t n = few->n_cols, piece = few->partial && few->n_rows <= PARTIAL_ROWS ? NEAR : n;
    for (int64_t from = 0, to; from < n; from = to) {
        int64_t r = 0;
        to = MIN(from + piece, n);
        for (; r + TILE(n_x) <= few->n_rows; r += TILE(n_x))
            multiply_tile(nv, TILE(n_x), n_x, n_x, few, r, 0, from, to);
        rest(few, r, from, to);
    }
}

/* A function for each number of rows: one for all of them takes the compiler longer than linearly. */
#define NOT_INLINE __attribute__((noinline))
#define FP4_ROWS_BY(name, nv, n_x) \
    static NOT_INLINE void name##_##n_x(const struct few_rows *f) { multiply_rows(nv, n_x, f, name##_rest); }
#define FP4_PRODUCT(name, nv)                                                                                       \
    static NOT_INLINE void name##_rest(const struct few_rows *f, int64_t r, int64_t from, int64_t to) {             \
        multiply_rest(nv, f, r, from, to);                                                                          \
    }                                                                                                               \
    FP4_ROWS_BY(name, nv, 1)                                                                                        \
    FP4_ROWS_BY(name, nv, 2)                                                                                        \
    FP4_ROWS_BY(name, nv, 3)                                                                                        \
    FP4_ROWS_BY(name, nv, 4)                                                                                        \
    FP4_ROWS_BY(name, nv, 5)                                                                                        \
    FP4_ROWS_BY(name, nv, 6)                                                                                        \
    FP4_ROWS_BY(name, nv, 7)                                                                                        \
    FP4_ROWS_BY(name, nv, 8)                                                                                        \
    static void name(const struct few_rows *f) {                                                                    \
        static void (*const by_rows[FEW_ROWS])(const struct few_rows *) = {name##_1, name##_2, name##_3, name##_4,  \
                                                                           name##_5, name##_6, name##_7, name##_8}; \
        BUG_IF((unsigned)(f->n_x - 1) >= FEW_ROWS);                                                                 \
        by_rows[f->n_x - 1](f);                                                                                     \
    }
FP4_PRODUCT(multiply_nvfp4, true)
FP4_PRODUCT(multiply_mxfp4, false)

static block_product *fp4_product_of(const struct weight_part *part) {
    const struct qscale *s = &part->scale;
    if (part->format->id == QFORMAT_NVFP4 && s->dtype == DT_F8_E4M3 && s->block_cols == 16)
        return multiply_nvfp4;
    return part->format->id == QFORMAT_MXFP4 && s->dtype == DT_F8_E8M0 && s->block_cols == 32 ? multiply_mxfp4 : NULL;
}

static int fp4_arrangement(const struct weight_part *part) { return (void)part, FP4_ARRANGEMENT; }
