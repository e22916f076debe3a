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

/* How `value` grows from x[i] by -by to x[i] by +by. */
static inline double growth(double (*value)(void *arg), void *arg, double *x, double by) {
    double at = *x, up, down;
    *x = at + by, up = value(arg);
    *x = at - by, down = value(arg);
    *x = at;
    return up - down;
}

/* The slope of `value` along x[i], and that it is `claimed`, where slopes are about 1. Five points: a norm's row of one
 * number near zero bends within sqrt(eps), and what two points miss of that is above any bound worth having. */
static inline void expect_slope(double (*value)(void *arg), void *arg, double *x, double claimed) {
    double slope = (8 * growth(value, arg, x, STEP) - growth(value, arg, x, 2 * STEP)) / (12 * STEP);
    if (fabs(slope - claimed) > 1e-7 + 1e-6 * fabs(slope))
        fail_msg("the gradient is %.9g, finite differences say %.9g", claimed, slope);
}

enum { N_LABELS = 3 };
