/* gptq.c - see gptq.h. Everything is in the order in which columns are rounded: order[k] is the k-th column. */
#include "quantize/calibrate/gptq.h"

#include "quantize/round/scales.h"

#include <math.h>
#include <stdlib.h>

struct gptq {
    int64_t n;
    int32_t *order;  // [n]
    float *diagonal; // [n], by column: importance for the choice of scales
    float *upper;    // [n][n]: the inverse of H is upper^T upper
};

struct pair {
    float size;
    int32_t column;
};

static int by_size(const void *a, const void *b) {
    const struct pair *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size) - (x->size > y->size)
                              : (x->column > y->column) - (x->column < y->column);
}

static void choose_order(struct gptq *g, const float *h) {
    struct pair *pairs = xcalloc((size_t)g->n, sizeof *pairs);
    for (int64_t i = 0; i < g->n; i++)
        pairs[i] = (struct pair){h[i * g->n + i], (int32_t)i};
    qsort(pairs, (size_t)g->n, sizeof *pairs, by_size);
    for (int64_t k = 0; k < g->n; k++) {
        g->order[k] = pairs[k].column;
        g->diagonal[k] = MAX(h[k * g->n + k], 1e-30f);
    }
    free(pairs);
}

/* a [n][n] symmetric and positive becomes its lower factor, a = L L^T; what is above the diagonal is left. */
static void factor(double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int64_t k = 0; k < j; k++)
                sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(fmax(sum, 1e-12)) : sum / a[j * n + j];
        }
}

/* L of a becomes its inverse, in place. */
static void invert_lower(double *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double inverse = 1 / a[i * n + i];
        for (int64_t j = 0; j < i; j++) {
            double sum = 0;
            for (int64_t k = j; k < i; k++)
                sum += a[i * n + k] * a[k * n + j];
            a[i * n + j] = -sum * inverse;
        }
        a[i * n + i] = inverse;
    }
}

/* With the columns turned round, H' = L L^T and the inverse of H' is L^-T L^-1. Turned back, L^-1 is upper. */
static void find_upper(struct gptq *g, const float *h, double *a) {
    int64_t n = g->n;
    double mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)h[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int32_t row = g->order[n - 1 - i], column = g->order[n - 1 - j];
            a[i * n + j] = (double)h[row * n + column] + (i == j ? fmax(0.01 * mean, 1e-12) : 0);
        }
    factor(a, n);
    invert_lower(a, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i; j < n; j++)
            g->upper[i * n + j] = (float)a[(n - 1 - i) * n + (n - 1 - j)];
}

enum status gptq_new(const float *h, int64_t n, struct gptq **out, struct error *err) {
    struct gptq *g = xcalloc(1, sizeof *g);
    double *a = malloc((size_t)(n * n) * sizeof *a);
    *g = (struct gptq){.n = n,
                       .order = xcalloc((size_t)n, sizeof *g->order),
                       .diagonal = xcalloc((size_t)n, sizeof *g->diagonal),
                       .upper = calloc((size_t)(n * n), sizeof *g->upper)};
    *out = g;
    if (!a || !g->upper) {
        free(a);
        gptq_free(g);
        *out = NULL;
        return fail(err, ERR_MEMORY, "no memory for the second order of %lld columns", (long long)n);
    }
    choose_order(g, h);
    find_upper(g, h, a);
    free(a);
    return OK;
}

void gptq_free(struct gptq *g) {
    if (!g)
        return;
    free(g->order), free(g->diagonal), free(g->upper);
    free(g);
}

static float stored_scale(const struct codes *c, const uint8_t *at) {
    float s;
    dtype_to_f32(c->scale_dtype, at, 1, 1, &s);
    return s;
}

/* upper's row k, over its first element, is how columns behind k answer for an error of 1 there: the inverse of what is
 * left of H, once the columns before k are fixed. */
void gptq_row(const struct gptq *g, const struct codes *c, const float *x, float *work, uint8_t *codes, uint8_t *scales,
              float *y) {
    int64_t n = g->n, group = c->group ? c->group : n;
    size_t width = dtype_bytes(c->scale_dtype);
    memset(codes, 0, (size_t)codes_bytes(c, n));
    for (int64_t at = 0; at < n; at += group)
        int4_scale(c, x + at, g->diagonal + at, MIN(group, n - at), scales + (size_t)(at / group) * width);
    for (int64_t k = 0; k < n; k++)
        work[k] = x[g->order[k]];
    for (int64_t k = 0; k < n; k++) {
        const float *row = g->upper + k * n;
        int64_t column = g->order[k];
        float s = stored_scale(c, scales + (size_t)(column / group) * width);
        float q = s != 0 ? nearest(clamped(work[k] / s, -8, 7)) : 0;
        y[column] = q * s;
        codes[column / 2] |= (uint8_t)((int)(q + 8) << column % 2 * 4);
        float error = (work[k] - y[column]) / row[k];
        for (int64_t j = k + 1; j < n; j++)
            work[j] -= error * row[j];
    }
}
