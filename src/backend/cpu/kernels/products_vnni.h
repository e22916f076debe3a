/* products_vnni.h - rows of blocks times rows of x, over the steps of steps_vnni.h. PRODUCTS(id) defines product_id, a
 * multiply_few of that format; the files of products share them out, so that they are compiled at the same time. */
#pragma once

#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/steps_vnni.h"

#include "base/status.h"

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
                                       int64_t stride, int64_t from, int64_t to, const float *x, int64_t x_step,
                                       const bool near, __m512 sum[][FEW_ROWS]) {
    const int bytes = bytes_of_block(f);
    const uint8_t *b = row + from / BLOCK * bytes, *ahead = row + AHEAD_BYTES;
    struct step s[MAX_TILE];
    for (int64_t c = from; c + STEP <= to; c += STEP, b += 2 * bytes, x += x_step) {
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
                                       int64_t stride, int64_t from, int64_t to, const float *x, int64_t x_step,
                                       const bool near, __m512 sum[][FEW_ROWS]) {
    const int bytes = bytes_of_block(f);
    const uint8_t *b = row + from / 256 * bytes, *ahead = row + AHEAD_BYTES;
    for (int64_t c = from; c < to; c += 256, b += bytes, x += 4 * x_step) {
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
            add_step(f, n_w, n_x, s, x + k * x_step, sum);
        }
    }
}

/* Columns [from, to) of n_w rows from r on with n_x of few's n_all rows of x, from t0 on. */
static ALWAYS_INLINE void multiply_tile(const enum qformat_id f, const int n_w, const int n_x, const int64_t n_all,
                                        const struct few_rows *few, int64_t r, int64_t t0, int64_t from, int64_t to) {
    const int64_t n = few->n_cols, stride = few->part->row_stride;
    const uint8_t *row = (const uint8_t *)few->part->data + (few->row + r) * stride;
    const float *x = few->x + (from / STEP * n_all + t0) * X_FLOATS;
    float *kept = from > 0 || to < n ? few->partial + (r * n_all + t0) * LANES : NULL;
    __m512 sum[MAX_TILE][FEW_ROWS];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] =
        from > 0 ? _mm512_loadu_ps(kept + (i * n_x + t) * LANES) : _mm512_setzero_ps();
    if (cols_of_block(f) == 256)
        large_blocks(f, n_w, n_x, row, stride, from, to, x, n_all * X_FLOATS, few->near || from > 0, sum);
    else
        small_blocks(f, n_w, n_x, row, stride, from, to, x, n_all * X_FLOATS, few->near || from > 0, sum);
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) {
        if (to < n)
            _mm512_storeu_ps(kept + (i * n_x + t) * LANES, sum[i][t]);
        else
            few->y[(t0 + t) * few->y_stride + r + i] =
                _mm512_reduce_add_ps(sum[i][t]) + (few->bias ? few->bias[r + i] : 0);
    }
}

/* Columns go by so many, where several groups of x meet the rows: what of x is met again is near. */
enum { NEAR = 1024 };

/* Rows that fill no tile, each with each row of x alone: rare and few, so one loop for any n_x. */
typedef void rest_function(const struct few_rows *few, int64_t r, int64_t from, int64_t to);

static ALWAYS_INLINE void multiply_rest(const enum qformat_id f, const struct few_rows *few, int64_t r, int64_t from,
                                        int64_t to) {
    for (; r < few->n_rows; r++)
        for (int t = 0; t < few->n_x; t++)
            multiply_tile(f, 1, 1, few->n_x, few, r, t, from, to);
}

static ALWAYS_INLINE void multiply_rows(const enum qformat_id f, const int n_x, const struct few_rows *few,
                                        rest_function *rest) {
    const int64_t n = few->n_cols, piece = few->partial && few->n_rows <= PARTIAL_ROWS ? NEAR : n;
    for (int64_t from = 0, to; from < n; from = to) {
        int64_t r = 0;
        to = MIN(from + piece, n);
        for (; r + TILE(n_x) <= few->n_rows; r += TILE(n_x))
            multiply_tile(f, TILE(n_x), n_x, n_x, few, r, 0, from, to);
        rest(few, r, from, to);
    }
}

/* A function for each number of rows: one for all of them takes the compiler longer than linearly. */
#define NOT_INLINE __attribute__((noinline))
#define ROWS_BY(id, n_x)                                                     \
    static NOT_INLINE void multiply_##id##_##n_x(const struct few_rows *f) { \
        multiply_rows(QFORMAT_##id, n_x, f, rest_##id);                      \
    }
#define PRODUCTS(id)                                                                                  \
    static NOT_INLINE void rest_##id(const struct few_rows *f, int64_t r, int64_t from, int64_t to) { \
        multiply_rest(QFORMAT_##id, f, r, from, to);                                                  \
    }                                                                                                 \
    ROWS_BY(id, 1)                                                                                    \
    ROWS_BY(id, 2)                                                                                    \
    ROWS_BY(id, 3)                                                                                    \
    ROWS_BY(id, 4)                                                                                    \
    ROWS_BY(id, 5)                                                                                    \
    ROWS_BY(id, 6)                                                                                    \
    ROWS_BY(id, 7)                                                                                    \
    ROWS_BY(id, 8)                                                                                    \
    void product_##id(const struct few_rows *f) {                                                     \
        static void (*const by_rows[FEW_ROWS])(const struct few_rows *) = {                           \
            multiply_##id##_1, multiply_##id##_2, multiply_##id##_3, multiply_##id##_4,               \
            multiply_##id##_5, multiply_##id##_6, multiply_##id##_7, multiply_##id##_8};              \
        BUG_IF((unsigned)(f->n_x - 1) >= FEW_ROWS);                                                   \
        by_rows[f->n_x - 1](f);                                                                       \
    }
