/* blocks_small.c - blocks of 32 columns, and the table of all; see blocks.h. Layouts: docs/formats.md. */
#include "quantize/round/blocks.h"
#include "quantize/round/scales.h"

#include "base/status.h"

#include <math.h>

enum { N = 32 };

/* A scale as float16, and what readers make of it; one past the largest is taken for that. */
static float put_scale(uint8_t *out, float s) {
    uint16_t h = f32_to_f16(clamped(s, -65504, 65504));
    put_f16(out, h);
    return f16_to_f32(h);
}

static int code(float x, float s, float m, int low, int high) {
    return s != 0 ? (int)nearest(clamped((x - m) / s, (float)low, (float)high)) : 0;
}

/* Column c in the low half of byte c, column 16 + c in the high one. */
static void put_halves(uint8_t *out, const int *codes) {
    for (int c = 0; c < N / 2; c++)
        out[c] = (uint8_t)((codes[c] & 15) | (codes[c + N / 2] & 15) << 4);
}

static void put_fifths(uint8_t *out, const int *codes) {
    for (int i = 0; i < 4; i++) {
        out[i] = 0;
        for (int k = 0; k < 8; k++)
            out[i] = (uint8_t)(out[i] | (codes[8 * i + k] >> 4 & 1) << k);
    }
}

/* d, codes around 0; half the number of codes. */
static void symmetric(const float *x, const float *w, int half, uint8_t *out, int codes[N]) {
    float d = put_scale(out, scale_symmetric(x, w, N, -half, half - 1));
    for (int c = 0; c < N; c++)
        codes[c] = code(x[c], d, 0, -half, half - 1) + half;
}

static void affine(const float *x, const float *w, int levels, uint8_t *out, int codes[N]) {
    struct affine a = scale_affine(x, w, N, levels, false);
    float d = put_scale(out, a.scale), m = put_scale(out + 2, a.min);
    for (int c = 0; c < N; c++)
        codes[c] = code(x[c], d, m, 0, levels);
}

static void q4_0_write(const float *x, const float *w, uint8_t *out) {
    int codes[N];
    symmetric(x, w, 8, out, codes);
    put_halves(out + 2, codes);
}

static void q4_1_write(const float *x, const float *w, uint8_t *out) {
    int codes[N];
    affine(x, w, 15, out, codes);
    put_halves(out + 4, codes);
}

static void q5_0_write(const float *x, const float *w, uint8_t *out) {
    int codes[N];
    symmetric(x, w, 16, out, codes);
    put_fifths(out + 2, codes);
    put_halves(out + 6, codes);
}

static void q5_1_write(const float *x, const float *w, uint8_t *out) {
    int codes[N];
    affine(x, w, 31, out, codes);
    put_fifths(out + 4, codes);
    put_halves(out + 8, codes);
}

/* Codes are rounded under the scale before it becomes float16, halves away from 0: so do all writers. */
static void q8_0_write(const float *x, const float *w, uint8_t *out) {
    (void)w;
    float most = 0;
    for (int c = 0; c < N; c++)
        most = MAX(most, fabsf(x[c]));
    float d = most / 127, inverse = d != 0 ? 1 / d : 0;
    put_scale(out, d);
    for (int c = 0; c < N; c++)
        out[2 + c] = (uint8_t)(int8_t)clamped(roundf(x[c] * inverse), -127, 127);
}

/* ---- codes that stand for numbers of a table, in rising order ---- */

static int nearest_in(const float *table, int n, float x) {
    int at = 0;
    for (int i = 1; i < n; i++)
        at += x > (table[i - 1] + table[i]) * 0.5f;
    return at;
}

/* Sum w (x - s T[code])^2; *fit: the best scale for the same codes. */
static float table_error(const float *table, int n, const float *x, const float *w, float s, float *fit) {
    float error = 0, tt = 0, xt = 0, inverse = s != 0 ? 1 / s : 0;
    for (int c = 0; c < N; c++) {
        float t = table[nearest_in(table, n, x[c] * inverse)], off = x[c] - s * t, weight = w ? w[c] : 1;
        error += weight * off * off;
        tt += weight * t * t;
        xt += weight * x[c] * t;
    }
    *fit = tt > 0 ? xt / tt : 0;
    return error;
}

static void keep_better(const float *table, int n, const float *x, const float *w, float s, float *best,
                        float *best_error) {
    float fit, fit_again, error = table_error(table, n, x, w, s, &fit);
    float fitted = table_error(table, n, x, w, fit, &fit_again);
    if (fitted < error)
        error = fitted, s = fit;
    if (error < *best_error)
        *best_error = error, *best = s;
}

static void iq4_nl_write(const float *x, const float *w, uint8_t *out) {
    float table[16], peak = 0, best = 0, best_error = INFINITY;
    int codes[N];
    for (int i = 0; i < 16; i++)
        table[i] = (float)iq4_values[i];
    for (int c = 0; c < N; c++)
        if (fabsf(x[c]) > fabsf(peak))
            peak = x[c];
    for (int step = -8; step <= 8 && peak != 0; step++) {
        keep_better(table, 16, x, w, peak / (table[0] + 2 * (float)step), &best, &best_error);
        keep_better(table, 16, x, w, peak / (table[15] + 2 * (float)step), &best, &best_error);
    }
    float d = put_scale(out, best);
    for (int c = 0; c < N; c++)
        codes[c] = nearest_in(table, 16, d != 0 ? x[c] / d : 0);
    put_halves(out + 2, codes);
}

/* The power of two that makes the largest number a code of 4 to 8, or one of its neighbours. */
static void mxfp4_write(const float *x, const float *w, uint8_t *out) {
    static const float table[15] = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    static const uint8_t code_of[15] = {15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7};
    float most = 0, best_error = INFINITY, fit;
    int codes[N], best = 0, exponent = 0;
    for (int c = 0; c < N; c++)
        most = MAX(most, fabsf(x[c]));
    if (most > 0)
        frexpf(most, &exponent); // most in [2^(exponent - 1), 2^exponent)
    for (int e = exponent - 4; most > 0 && e <= exponent - 2; e++) {
        int stored = MAX(0, MIN(254, e + 127));
        float error = table_error(table, 15, x, w, ldexpf(1, stored - 127), &fit);
        if (error < best_error)
            best_error = error, best = stored;
    }
    out[0] = (uint8_t)best;
    for (int c = 0; c < N; c++)
        codes[c] = code_of[nearest_in(table, 15, x[c] / ldexpf(1, best - 127))];
    put_halves(out + 1, codes);
}

/* ---- rows ---- */

const block_writer block_writers[N_QFORMATS] = {
    [QFORMAT_Q4_0] = q4_0_write, [QFORMAT_Q4_1] = q4_1_write, [QFORMAT_Q5_0] = q5_0_write,
    [QFORMAT_Q5_1] = q5_1_write, [QFORMAT_Q8_0] = q8_0_write, [QFORMAT_IQ4_NL] = iq4_nl_write,
    [QFORMAT_Q2_K] = q2_k_write, [QFORMAT_Q3_K] = q3_k_write, [QFORMAT_Q4_K] = q4_k_write,
    [QFORMAT_Q5_K] = q5_k_write, [QFORMAT_Q6_K] = q6_k_write, [QFORMAT_MXFP4_HALVES] = mxfp4_write,
};

bool blocks_are_written(enum qformat_id id) { return block_writers[id] != NULL; }

void blocks_write(enum qformat_id id, const float *x, const float *importance, int64_t n, uint8_t *out) {
    const struct qformat *f = qformat_of_blocks(id);
    for (int64_t at = 0; at + f->block_cols <= n; at += f->block_cols, out += f->block_bytes)
        block_writers[id](x + at, importance ? importance + at : NULL, out);
}
