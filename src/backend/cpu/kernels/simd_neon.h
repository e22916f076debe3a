/* simd_neon.h - the vocabulary of kernels_body.h in NEON, as every 64-bit Arm has it. What each word means:
 * simd_portable.h. */
#pragma once

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 4, TILE_ROWS = 12, VECTOR_REGISTERS = 32 };
#define TILE_ROWS_MORE_THAN_4 1
#define TILE_ROWS_MORE_THAN_6 1
typedef float32x4_t vf;

static inline vf vf_set(float x) { return vdupq_n_f32(x); }
static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline vf vf_keep(vf v) {
    __asm__("" : "+w"(v));
    return v;
}
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline vf vf_load_n(const float *p, int64_t n) {
    float32x2_t low = vdup_n_f32(0), high = low;
    if (n >= 2)
        low = vld1_f32(p);
    if (n == 1)
        low = vld1_lane_f32(p, low, 0);
    if (n == 3)
        high = vld1_lane_f32(p + 2, high, 0);
    return vcombine_f32(low, high);
}
static inline void vf_store_n(float *p, vf v, int64_t n) {
    if (n >= 2)
        vst1_f32(p, vget_low_f32(v));
    if (n == 1)
        vst1q_lane_f32(p, v, 0);
    if (n == 3)
        vst1q_lane_f32(p + 2, v, 2);
}

static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
/* FMAX and FMIN give NaN where either is. */
static inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf vf_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline float vf_sum(vf v) { return vaddvq_f32(v); } // (v0 + v1) + (v2 + v3)
static inline vf vf_sums(const vf v[LANES]) { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }
static inline float vf_largest(vf v) { return vmaxnmvq_f32(v); }

static inline vf vf_round(vf v) { return vrndnq_f32(v); }
static inline vf vf_ldexp(vf v, vf n) {
    int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    return vmulq_f32(v, vreinterpretq_f32_s32(exponent));
}
static inline vf vf_zero_where_less(vf v, vf x, vf limit) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, limit)));
}

static inline uint32x4_t vf_pairs(const uint16_t *p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
static inline vf vf_bf16_even(const uint16_t *p) { return vreinterpretq_f32_u32(vshlq_n_u32(vf_pairs(p), 16)); }
static inline vf vf_bf16_odd(const uint16_t *p) {
    return vreinterpretq_f32_u32(vandq_u32(vf_pairs(p), vdupq_n_u32(0xFFFF0000)));
}
static inline vf vf_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
/* Four bytes, in the low half; behind them zeros. */
static inline uint8x8_t vf_bytes(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vcreate_u8(four);
}
static inline vf vf_load_i8(const int8_t *p) {
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vf_bytes((const uint8_t *)p)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
static inline vf vf_load_f8_e4m3(const uint8_t *p) {
    uint32x4_t b = vmovl_u16(vget_low_u16(vmovl_u8(vf_bytes(p)))), most = vdupq_n_u32(0x7F);
    uint32x4_t magnitude = vandq_u32(b, most), sign = vshlq_n_u32(veorq_u32(b, magnitude), 24);
    vf v = vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(magnitude, 20)), vdupq_n_f32(0x1p120f));
    uint32x4_t nan = vceqq_u32(magnitude, most); // all ones is a NaN too
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), vorrq_u32(nan, sign)));
}

static inline void vf_separate(vf *a, vf *b) {
    vf x = *a, y = *b;
    *a = vuzp1q_f32(x, y);
    *b = vuzp2q_f32(x, y);
}
/* The three bits below the sign as exponent and first bit of fraction of a float32: the value times 2^-126, 0.5 as a
 * denormal number. */
static inline vf vf_load_e2m1(const uint8_t *p) {
    uint16_t two;
    memcpy(&two, p, sizeof two);
    const int32_t shifts[4] = {0, -4, -8, -12};
    uint32x4_t codes = vshlq_u32(vdupq_n_u32(two), vld1q_s32(shifts));
    uint32x4_t magnitude = vshlq_n_u32(vandq_u32(codes, vdupq_n_u32(7)), 22);
    uint32x4_t sign = vshlq_n_u32(vandq_u32(codes, vdupq_n_u32(8)), 28);
    vf v = vmulq_f32(vreinterpretq_f32_u32(magnitude), vdupq_n_f32(0x1p126f));
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), sign));
}

static inline void vf_load_nibbles(const uint8_t *p, vf *low, vf *high) {
    uint32x4_t b = vmovl_u16(vget_low_u16(vmovl_u8(vf_bytes(p))));
    *low = vcvtq_f32_u32(vandq_u32(b, vdupq_n_u32(15)));
    *high = vcvtq_f32_u32(vshrq_n_u32(b, 4));
}

static inline void vf_transpose(vf r[LANES]) {
    vf a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]), c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    r[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    r[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    r[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}
