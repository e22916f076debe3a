/* train_rig.h - what tests of training share: random numbers, and gradients held to finite differences. */
#pragma once

#include "check.h"

#include "base/random.h"

#include <math.h>

static uint64_t n_drawn;

static inline double draw(void) { return 2 * philox_uniform(test_seed(), n_drawn++, 0) - 1; }
static inline int64_t draw_int(int64_t least, int64_t most) {
    return least + (int64_t)(philox_uniform(test_seed(), n_drawn++, 1) * (double)(most - least + 1));
}
static inline double *draw_all(int64_t n) {
    double *x = xcalloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = draw();
    return x;
}
static inline float *narrow(const double *x, int64_t n) {
    float *y = xcalloc((size_t)n, sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)x[i];
    return y;
}
static inline double dot(int64_t n, const double *a, const double *b) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* A step so large that what double cannot tell is below 1e-9 of numbers about 1. */
static const double STEP = 1e-5;

/* The slope of `value` along x[i], and that it is `claimed`, where slopes are about 1. */
static inline void expect_slope(double (*value)(void *arg), void *arg, double *x, double claimed) {
    double at = *x, up, down;
    *x = at + STEP, up = value(arg);
    *x = at - STEP, down = value(arg);
    *x = at;
    double slope = (up - down) / (2 * STEP);
    if (fabs(slope - claimed) > 1e-7 + 1e-6 * fabs(slope))
        fail_msg("the gradient is %.9g, finite differences say %.9g", claimed, slope);
}

enum { N_LABELS = 3 };
