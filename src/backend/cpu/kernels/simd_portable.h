/* simd_portable.h - the vocabulary of kernels_body.h in vectors of four that gcc and clang map to SSE2 or NEON.
 *
 * LANES floats a vector; TILE_ROWS x 2 vectors are the sums that a matrix tile keeps in registers.
 * Loads and stores need no alignment. The _n forms touch the first n < LANES elements only and load zeros for
 * the rest. vf_max and vf_min give b where either is NaN. */
#pragma once

#include "core/dtype.h"

#include <math.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { LANES = 4, TILE_ROWS = 4, VECTOR_REGISTERS = 16 };
#define TILE_ROWS_MORE_THAN_4 0
#define TILE_ROWS_MORE_THAN_6 0
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf vf_set(float x) { return (vf){x, x, x, x}; }
static inline vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* v in a register: the compiler may not load it again where it is used. */
static inline vf vf_keep(vf v) { return v; }
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline vf vf_load_n(const float *p, int64_t n) {
    vf v = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}
static inline void vf_store_n(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        p[i] = v[i];
}

static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
/* Lane by lane: a where the mask is all ones, else b. */
static inline vf vf_select(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
static inline vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
static inline vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
#if defined(__aarch64__)
static inline vf vf_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
#endif
static inline float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
/* Lane i: vf_sum(v[i]), to the bit. */
static inline vf vf_sums(const vf v[LANES]) { return (vf){vf_sum(v[0]), vf_sum(v[1]), vf_sum(v[2]), vf_sum(v[3])}; }
static inline float vf_largest(vf v) { return fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])); }

/* To the nearest integer, for |v| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction. */
static inline vf vf_round(vf v) { return (v + vf_set(0x1.8p23f)) - vf_set(0x1.8p23f); }
/* v * 2^n, n integral and -126 <= n <= 127. */
static inline vf vf_ldexp(vf v, vf n) { return v * (vf)((__builtin_convertvector(n, vi) + 127) << 23); }
/* 0 where x < limit, else v; v where x is NaN. */
static inline vf vf_zero_where_less(vf v, vf x, vf limit) { return (vf)((vi)v & ~(x < limit)); }

/* The even and the odd ones of 2 * LANES bf16, as floats. */
static inline vi vf_pairs(const uint16_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline vf vf_bf16_even(const uint16_t *p) { return (vf)(vf_pairs(p) << 16); }
static inline vf vf_bf16_odd(const uint16_t *p) { return (vf)(vf_pairs(p) & (int32_t)0xFFFF0000); }
/* LANES elements in order. */
static inline vf vf_load_bf16(const uint16_t *p) {
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
    return (vf){bf16_to_f32(h[0]), bf16_to_f32(h[1]), bf16_to_f32(h[2]), bf16_to_f32(h[3])};
}
static inline vf vf_load_f16(const uint16_t *p) {
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
#if defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
#else
    return (vf){f16_to_f32(h[0]), f16_to_f32(h[1]), f16_to_f32(h[2]), f16_to_f32(h[3])};
#endif
}
static inline vf vf_load_i8(const int8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
static inline vf vf_load_f8_e4m3(const uint8_t *p) {
    return (vf){f8_e4m3_to_f32(p[0]), f8_e4m3_to_f32(p[1]), f8_e4m3_to_f32(p[2]), f8_e4m3_to_f32(p[3])};
}

/* The even elements of two vectors to *a, the odd ones to *b. */
static inline void vf_separate(vf *a, vf *b) {
    vf x = *a, y = *b;
    *a = (vf){x[0], x[2], y[0], y[2]};
    *b = (vf){x[1], x[3], y[1], y[3]};
}

/* LANES 4-bit floats, the low nibble of a byte first. */
static inline vf vf_load_e2m1(const uint8_t *p) {
    return (vf){e2m1_to_f32(p[0] & 15), e2m1_to_f32(p[0] >> 4), e2m1_to_f32(p[1] & 15), e2m1_to_f32(p[1] >> 4)};
}

/* The low and the high nibbles of LANES bytes. */
static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    *low = (vf){p[0] & 15, p[1] & 15, p[2] & 15, p[3] & 15};
    *high = (vf){p[0] >> 4, p[1] >> 4, p[2] >> 4, p[3] >> 4};
}

/* LANES vectors as rows of a square matrix, turned. */
static inline void vf_transpose(vf r[LANES]) {
    vf a = r[0], b = r[1], c = r[2], d = r[3];
    for (int i = 0; i < LANES; i++)
        r[i] = (vf){a[i], b[i], c[i], d[i]};
}
