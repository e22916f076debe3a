/* scales.c - see scales.h. Sums are of eight lanes, so that compilers use vectors without other rounding rules. */
#include "quantize/round/scales.h"

#include "base/status.h"

#include <math.h>

enum { LANES = 8, STEPS = 9, TURNS = 3 };

/* Sums over numbers and their codes, each term times its weight. */
struct sums {
    float w, q, qq, x, xq;
};

static float total(const float lanes[LANES]) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* q = round((x - from) * inverse) within [low, high]. n is a multiple of LANES. */
static struct sums sums_of(const float *x, const float *w, int n, float from, float inverse, float low, float high) {
    float sw[LANES] = {0}, sq[LANES] = {0}, sqq[LANES] = {0}, sx[LANES] = {0}, sxq[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float q = nearest(clamped((x[i + k] - from) * inverse, low, high)), weight = w[i + k], wq = weight * q;
            sw[k] += weight;
            sq[k] += wq;
            sqq[k] += wq * q;
            sx[k] += weight * x[i + k];
            sxq[k] += wq * x[i + k];
        }
    return (struct sums){total(sw), total(sq), total(sqq), total(sx), total(sxq)};
}

/* The numbers of a call, behind which zeros without weight fill up the lanes. */
struct numbers {
    float x[SCALES_MOST], w[SCALES_MOST];
    int n;
};

static void copy_numbers(struct numbers *to, const float *x, const float *w, int n) {
    BUG_IF(n > SCALES_MOST);
    to->n = (n + LANES - 1) / LANES * LANES;
    for (int i = 0; i < to->n; i++) {
        to->x[i] = i < n ? x[i] : 0;
        to->w[i] = i >= n ? 0 : w ? w[i] : 1;
    }
}

/* ---- symmetric ---- */

/* A scale takes away xq^2 / qq of sum w x^2. */
struct candidate {
    float scale, gain;
};

static bool try_scale(const struct numbers *v, float inverse, int low, int high, struct candidate *best) {
    struct sums s = sums_of(v->x, v->w, v->n, 0, inverse, (float)low, (float)high);
    if (!(s.qq > 0) || !(s.xq * s.xq > best->gain * s.qq))
        return false;
    *best = (struct candidate){s.xq / s.qq, s.xq * s.xq / s.qq};
    return true;
}

float scale_symmetric(const float *x, const float *w, int n, int low, int high) {
    struct numbers v;
    copy_numbers(&v, x, w, n);
    float peak = 0;
    for (int i = 0; i < v.n; i++)
        if (v.w[i] > 0 && fabsf(v.x[i]) > fabsf(peak))
            peak = v.x[i];
    struct candidate best = {0, 0};
    if (!(fabsf(peak) > 1e-30f))
        return 0;
    for (int step = -STEPS; step <= STEPS; step++) {
        float edge = (float)low - 0.1f * (float)step;
        try_scale(&v, edge / peak, low, high, &best);
        if (high > 1)
            try_scale(&v, ((float)high + 0.1f * (float)step) / peak, low, high, &best);
    }
    for (int turn = 0; turn < TURNS && best.scale != 0; turn++)
        if (!try_scale(&v, 1 / best.scale, low, high, &best))
            break;
    return best.scale;
}

/* ---- affine ---- */

struct affine_fit {
    struct affine at;
    float error; // less sum w x^2
};

/* The best scale and minimum for the codes that `inverse` and `from` make. */
static bool try_affine(const struct numbers *v, float from, float inverse, int levels, bool min_is_low,
                       struct affine_fit *best) {
    struct sums s = sums_of(v->x, v->w, v->n, from, inverse, 0, (float)levels);
    float det = s.w * s.qq - s.q * s.q;
    if (!(det > 0))
        return false;
    struct affine a = {(s.w * s.xq - s.x * s.q) / det, (s.qq * s.x - s.q * s.xq) / det};
    if (min_is_low && a.min > 0)
        a = (struct affine){s.xq / s.qq, 0};
    float error = a.scale * (a.scale * s.qq - 2 * s.xq + 2 * a.min * s.q) + a.min * (a.min * s.w - 2 * s.x);
    if (!(a.scale > 0) || !(error < best->error))
        return false;
    *best = (struct affine_fit){a, error};
    return true;
}

struct affine scale_affine(const float *x, const float *w, int n, int levels, bool min_is_low) {
    struct numbers v;
    copy_numbers(&v, x, w, n);
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        low = MIN(low, x[i]);
        high = MAX(high, x[i]);
    }
    if (min_is_low)
        low = MIN(low, 0);
    struct affine_fit best = {{0, low}, INFINITY};
    if (!(high - low > 1e-30f))
        return best.at;
    for (int step = -10; step <= 2 * STEPS; step++)
        try_affine(&v, low, ((float)levels + 0.1f * (float)step) / (high - low), levels, min_is_low, &best);
    for (int turn = 0; turn < TURNS && best.at.scale > 0; turn++)
        if (!try_affine(&v, best.at.min, 1 / best.at.scale, levels, min_is_low, &best))
            break;
    return best.at;
}

float affine_error(const float *x, const float *w, int n, float s, float m, int low, int high) {
    float lanes[LANES] = {0}, inverse = s != 0 ? 1 / s : 0;
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES && i + k < n; k++) {
            float q = nearest(clamped((x[i + k] - m) * inverse, (float)low, (float)high));
            float off = x[i + k] - (s * q + m);
            lanes[k] += (w ? w[i + k] : 1) * off * off;
        }
    return total(lanes);
}
