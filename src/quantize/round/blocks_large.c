/* blocks_large.c - blocks of 256 columns: a float16 scale (and one of minima) of the scales of sub-blocks.
 *
 *     x ~ (d scale[b]) q - dmin min[b]        b = column / (256 / n_sub)
 *
 * fit() finds d, dmin, scale, min and q for any of these types; the functions behind it only store them. */
#include "quantize/round/blocks.h"
#include "quantize/round/scales.h"

#include "base/status.h"

#include <math.h>

enum { N = 256, MOST_SUB = 16, ROUNDS = 2 };

struct shape {
    int n_sub;                 // sub-blocks
    int low, high;             // codes
    int scale_low, scale_high; // scales of sub-blocks
    int min_high;              // their minima; 0: there are none
};

struct block {
    uint16_t d, dmin; // float16
    int scale[MOST_SUB], min[MOST_SUB];
    int q[N];
};

/* One sub-block: its numbers, weights and size. */
struct sub {
    const float *x, *w;
    int n;
};

static struct sub sub_of(const struct shape *s, const float *x, const float *w, int b) {
    int n = N / s->n_sub;
    return (struct sub){x + b * n, w ? w + b * n : NULL, n};
}

static float largest(const float *v, int n) { // by size, with its sign
    float most = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(v[i]) > fabsf(most))
            most = v[i];
    return most;
}

static uint16_t half_of(float x) { return f32_to_f16(clamped(x, -65504, 65504)); }

static int whole(float x, float step, int low, int high) {
    return step != 0 ? (int)nearest(clamped(x / step, (float)low, (float)high)) : 0;
}

/* The first guess: each sub-block's best scale, and d such that the largest is the largest that can be stored. */
static void guess(const struct shape *s, const float *x, const float *w, struct block *out) {
    float scale[MOST_SUB], min[MOST_SUB] = {0};
    for (int b = 0; b < s->n_sub; b++) {
        struct sub v = sub_of(s, x, w, b);
        if (!s->min_high) {
            scale[b] = scale_symmetric(v.x, v.w, v.n, s->low, s->high);
            continue;
        }
        struct affine a = scale_affine(v.x, v.w, v.n, s->high, true);
        scale[b] = a.scale;
        min[b] = -a.min;
    }
    float peak = largest(scale, s->n_sub);
    out->d = half_of(peak / (float)(s->scale_low < 0 ? s->scale_low : s->scale_high));
    out->dmin = s->min_high ? half_of(largest(min, s->n_sub) / (float)s->min_high) : 0;
    for (int b = 0; b < s->n_sub; b++) {
        out->scale[b] = whole(scale[b], f16_to_f32(out->d), s->scale_low, s->scale_high);
        out->min[b] = s->min_high ? whole(min[b], f16_to_f32(out->dmin), 0, s->min_high) : 0;
    }
}

/* Of a sub-block's scale and minimum as stored, or one more or less, what leaves the least. Returns that. */
static float choose(const struct shape *s, const struct sub *v, float d, float dmin, int *scale, int *min) {
    int scale_at = *scale, min_at = *min;
    float best = INFINITY;
    for (int k = MAX(scale_at - 1, s->scale_low); k <= MIN(scale_at + 1, s->scale_high); k++)
        for (int m = MAX(min_at - 1, 0); m <= MIN(min_at + 1, s->min_high); m++) {
            float error = affine_error(v->x, v->w, v->n, d * (float)k, -dmin * (float)m, s->low, s->high);
            if (error < best)
                best = error, *scale = k, *min = m;
        }
    return best;
}

static void round_codes(const struct shape *s, const float *x, struct block *out) {
    float d = f16_to_f32(out->d), dmin = f16_to_f32(out->dmin);
    for (int c = 0; c < N; c++) {
        int b = c / (N / s->n_sub);
        out->q[c] = whole(x[c] + dmin * (float)out->min[b], d * (float)out->scale[b], s->low, s->high);
    }
}

static float choose_all(const struct shape *s, const float *x, const float *w, struct block *out) {
    float error = 0, d = f16_to_f32(out->d), dmin = f16_to_f32(out->dmin);
    for (int b = 0; b < s->n_sub; b++) {
        struct sub v = sub_of(s, x, w, b);
        error += choose(s, &v, d, dmin, &out->scale[b], &out->min[b]);
    }
    round_codes(s, x, out);
    return error;
}

/* d and dmin that suit the codes, scales and minima best: least squares in two unknowns. */
static void refit(const struct shape *s, const float *x, const float *w, struct block *out) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int c = 0; c < N; c++) {
        int b = c / (N / s->n_sub);
        double u = (double)out->scale[b] * out->q[c], v = -(double)out->min[b], weight = w ? (double)w[c] : 1;
        aa += weight * u * u, ab += weight * u * v, bb += weight * v * v;
        ax += weight * u * (double)x[c], bx += weight * v * (double)x[c];
    }
    double det = aa * bb - ab * ab;
    if (det > 1e-9 * aa * bb) {
        out->d = half_of((float)((ax * bb - bx * ab) / det));
        out->dmin = half_of((float)((bx * aa - ax * ab) / det));
    } else if (aa > 0 && bb == 0) {
        out->d = half_of((float)(ax / aa));
    }
}

static void fit(const struct shape *s, const float *x, const float *w, struct block *out) {
    guess(s, x, w, out);
    float error = choose_all(s, x, w, out);
    for (int i = 0; i < ROUNDS; i++) {
        struct block next = *out;
        refit(s, x, w, &next);
        float next_error = choose_all(s, x, w, &next);
        if (!(next_error < error) || f16_to_f32(next.dmin) < 0)
            break;
        *out = next, error = next_error;
    }
}

/* ---- storing ---- */

void q2_k_write(const float *x, const float *w, uint8_t *out) {
    static const struct shape shape = {16, 0, 3, 0, 15, 15};
    struct block b;
    fit(&shape, x, w, &b);
    memset(out, 0, 84);
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)(b.scale[i] | b.min[i] << 4);
    for (int c = 0; c < N; c++)
        out[16 + c / 128 * 32 + c % 32] |= (uint8_t)(b.q[c] << c % 128 / 32 * 2);
    put_f16(out + 80, b.d);
    put_f16(out + 82, b.dmin);
}

void q3_k_write(const float *x, const float *w, uint8_t *out) {
    static const struct shape shape = {16, -4, 3, -32, 31, 0};
    struct block b;
    fit(&shape, x, w, &b);
    memset(out, 0, 110);
    for (int c = 0; c < N; c++) {
        int q = b.q[c] + 4; // its third bit stands in `high`
        out[c % 32] |= (uint8_t)((q >> 2) << c / 32);
        out[32 + c / 128 * 32 + c % 32] |= (uint8_t)((q & 3) << c % 128 / 32 * 2);
    }
    for (int k = 0; k < 16; k++) {
        int scale = b.scale[k] + 32;
        out[96 + k % 8] |= (uint8_t)((scale & 15) << k / 8 * 4);
        out[104 + k % 4] |= (uint8_t)((scale >> 4) << k / 4 * 2);
    }
    put_f16(out + 108, b.d);
}

/* Scales and minima of 6 bits, as k_scale_and_min reads them. */
static void put_scales_and_mins(const struct block *b, uint8_t out[12]) {
    for (int k = 0; k < 4; k++) {
        out[k] = (uint8_t)(b->scale[k] | b->scale[k + 4] >> 4 << 6);
        out[k + 4] = (uint8_t)(b->min[k] | b->min[k + 4] >> 4 << 6);
        out[k + 8] = (uint8_t)((b->scale[k + 4] & 15) | (b->min[k + 4] & 15) << 4);
    }
}

static void put_k_head(const struct block *b, uint8_t *out) {
    put_f16(out, b->d);
    put_f16(out + 2, b->dmin);
    put_scales_and_mins(b, out + 4);
}

static void put_k_nibbles(const struct block *b, uint8_t *codes) {
    for (int c = 0; c < N; c++)
        codes[c / 64 * 32 + c % 32] |= (uint8_t)((b->q[c] & 15) << c / 32 % 2 * 4);
}

void q4_k_write(const float *x, const float *w, uint8_t *out) {
    static const struct shape shape = {8, 0, 15, 0, 63, 63};
    struct block b;
    fit(&shape, x, w, &b);
    memset(out, 0, 144);
    put_k_head(&b, out);
    put_k_nibbles(&b, out + 16);
}

void q5_k_write(const float *x, const float *w, uint8_t *out) {
    static const struct shape shape = {8, 0, 31, 0, 63, 63};
    struct block b;
    fit(&shape, x, w, &b);
    memset(out, 0, 176);
    put_k_head(&b, out);
    for (int c = 0; c < N; c++)
        out[16 + c % 32] |= (uint8_t)(b.q[c] >> 4 << c / 32);
    put_k_nibbles(&b, out + 48);
}

void q6_k_write(const float *x, const float *w, uint8_t *out) {
    static const struct shape shape = {16, -32, 31, -128, 127, 0};
    struct block b;
    fit(&shape, x, w, &b);
    memset(out, 0, 210);
    for (int c = 0; c < N; c++) {
        int half = c / 128, quarter = c % 128 / 32, t = c % 32, q = b.q[c] + 32;
        out[half * 64 + quarter % 2 * 32 + t] |= (uint8_t)((q & 15) << quarter / 2 * 4);
        out[128 + half * 32 + t] |= (uint8_t)(q >> 4 << quarter * 2);
    }
    for (int k = 0; k < 16; k++)
        out[192 + k] = (uint8_t)(int8_t)b.scale[k];
    put_f16(out + 208, b.d);
}
