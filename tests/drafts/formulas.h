/* formulas.h - what layers of drafts are made of, in double, for tests that work out what a draft says from the tensors
 * of its checkpoint. */
#pragma once

#include "check.h"

#include "base/arena.h"
#include "file/checkpoint.h"

#include <math.h>
#include <string.h>

enum { MOST_ROWS = 60 };

struct tensors {
    struct checkpoint *checkpoint;
    struct arena arena;
    struct {
        const char *name;
        const double *data;
    } read[64];
    int n_read;
};

static const double *tensor(struct tensors *o, const char *prefix, const char *name) {
    const char *full = arena_printf(&o->arena, "%s%s", prefix, name);
    for (int i = 0; i < o->n_read; i++)
        if (strcmp(o->read[i].name, full) == 0)
            return o->read[i].data;
    const struct stored_tensor *t = checkpoint_find(o->checkpoint, full);
    EXPECT(o->n_read < (int)ARRAY_LEN(o->read));
    if (!t)
        fail_msg("%s is not there", full);
    size_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (size_t)t->shape[i];
    double *out = arena_calloc(&o->arena, n, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits =
            t->dtype == DT_F32 ? ((const uint32_t *)t->data)[i] : (uint32_t)((const uint16_t *)t->data)[i] << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        out[i] = (double)x;
    }
    o->read[o->n_read].name = full;
    o->read[o->n_read++].data = out;
    return out;
}

static void product(double *out, const double *w, const double *x, int rows, int cols) {
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < cols; c++)
            out[r] += w[r * cols + c] * x[c];
    }
}

/* more: what is added to w. */
static void norm(double *out, const double *x, const double *w, int n, double more) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + 1e-6) * (w[i] + more);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Of n channels, pairs of which are `apart`: i and i + n / 2, or neighbours where that is 1. */
static void rope(double *x, int n, int position, int apart) {
    for (int i = 0; i < n / 2; i++) {
        double angle = position * pow(10000, -2.0 * i / n), *a = apart == 1 ? x + 2 * i : x + i, *b = a + apart;
        double turned = *a * cos(angle) - *b * sin(angle);
        *b = *a * sin(angle) + *b * cos(angle), *a = turned;
    }
}

/* One head: keys and values of rows [0, n) stand `stride` rows of doubles apart. */
static void attend(double *out, const double *q, const double *k, int k_stride, int dim, const double *v, int v_stride,
                   int v_dim, int n) {
    double weight[MOST_ROWS], total = 0;
    for (int r = 0; r < n; r++) {
        double score = 0;
        for (int i = 0; i < dim; i++)
            score += q[i] * k[r * k_stride + i];
        total += weight[r] = exp(score / sqrt(dim));
    }
    for (int i = 0; i < v_dim; i++) {
        out[i] = 0;
        for (int r = 0; r < n; r++)
            out[i] += weight[r] / total * v[r * v_stride + i];
    }
}

static int best_of(const double *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}
