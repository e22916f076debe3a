/* scales.h - the scale, and the minimum, with which small codes come nearest to numbers.
 *
 *     symmetric   x ~ s q        q in [low, high], s of either sign
 *     affine      x ~ s q + m    q in [0, levels]
 *
 * Both minimise sum w (x - y)^2. Codes follow from the scale by rounding, and the best scale for given codes is a
 * quotient of two sums (least squares), so a search tries some twenty scales around the one that makes the largest
 * number the largest code, and takes turns of both steps from the best of them. Weights are at least 0; NULL is all 1.
 * n is at most SCALES_MOST. Numbers are finite. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SCALES_MOST = 256 };

/* The nearest whole number, halves to even; |x| < 2^22. */
static inline float nearest(float x) {
    const float shift = 12582912.0f; // 1.5 * 2^23: no digits are left behind the point
    float moved = x + shift;
    return moved - shift;
}

static inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

float scale_symmetric(const float *x, const float *w, int n, int low, int high);

struct affine {
    float scale, min;
};

/* min_is_low: m must not be above 0. */
struct affine scale_affine(const float *x, const float *w, int n, int levels, bool min_is_low);

/* What codes of [low, high] under y = s q + m leave: sum w (x - y)^2. s of 0 makes every y m. */
float affine_error(const float *x, const float *w, int n, float s, float m, int low, int high);
