/* sample_weight.h - the arithmetic of a draw, in operations that every processor rounds alike: for core/sample.c and
 * for kernels.
 *
 * The mass of a candidate is an integer, so sums do not depend on the order in which they are made, and whoever
 * computes a draw from the same logits, by however many threads, draws the same token. Nothing here may be contracted
 * to a fused multiply-add: on the device the operations are written as intrinsics, C17 without extensions does not
 * contract, and clang is told. */
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define SAMPLE_INLINE static __host__ __device__ inline
#else
#define SAMPLE_INLINE static inline
#endif

#ifdef __CUDA_ARCH__
#define SAMPLE_MUL(a, b) __fmul_rn(a, b)
#define SAMPLE_ADD(a, b) __fadd_rn(a, b)
#define SAMPLE_DIV(a, b) __fdiv_rn(a, b)
#else
#define SAMPLE_MUL(a, b) ((a) * (b))
#define SAMPLE_ADD(a, b) ((a) + (b))
#define SAMPLE_DIV(a, b) ((a) / (b))
#endif

enum { SAMPLE_WEIGHT_BITS = 44 };       // the weight of the best candidate is 2^44, so 2^19 candidates stay below 2^63
#define SAMPLE_LEAST_EXPONENT (-30.49f) // below, the weight would round to less than one

SAMPLE_INLINE uint32_t sample_bits(float f) {
    union {
        float f;
        uint32_t bits;
    } u = {f};
    return u.bits;
}

/* exp(e) = what is returned, in 24 bits between 1/2 and 2, times 2^k; for -100 < e <= 0. No conversions: on a GPU they
 * are slow. */
SAMPLE_INLINE float sample_mantissa(float e, int32_t *k) {
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif
    float rounder = 12582912.0f, t = SAMPLE_ADD(SAMPLE_MUL(e, 1.44269504f), rounder), n = SAMPLE_ADD(t, -rounder);
    float r = SAMPLE_ADD(SAMPLE_ADD(e, SAMPLE_MUL(n, -0.693359375f)),
                         SAMPLE_MUL(n, 2.12194440e-4f));                 // e = n ln 2 + r, |r| < 0.347
    float p = SAMPLE_ADD(SAMPLE_MUL(r, 8.29028216e-3f), 4.18980985e-2f); // exp(r), minimax with p(0) = 1
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 1.66676376e-1f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 4.99991483e-1f);
    p = SAMPLE_ADD(SAMPLE_MUL(p, r), 9.99999707e-1f);
    *k = (int32_t)(sample_bits(t) - sample_bits(rounder));
    return SAMPLE_ADD(SAMPLE_MUL(p, r), 1.0f);
}

/* mantissa * 2^k * 2^44, cut to an integer; at most 2^44. */
SAMPLE_INLINE uint64_t sample_scaled(float mantissa, int32_t k) {
    uint32_t bits = sample_bits(mantissa);
    uint64_t whole = (bits & 0x7fffffu) | 0x800000u;
    return whole << (SAMPLE_WEIGHT_BITS - 23) >> (127 - k - (int32_t)(bits >> 23));
}

/* exp(e) * 2^44, relative error 2^-22; 0 for e below SAMPLE_LEAST_EXPONENT and for what is not a number. e <= 0. */
SAMPLE_INLINE uint64_t sample_weight(float e) {
    int32_t k;
    if (!(e >= SAMPLE_LEAST_EXPONENT))
        return 0;
    float mantissa = sample_mantissa(e, &k);
    return sample_scaled(mantissa, k);
}

/* What a candidate's logit is to the draw. max may be +infinity, by a bias. */
SAMPLE_INLINE float sample_exponent(float logit, float max, float temperature) {
    return logit == max ? 0.0f : SAMPLE_DIV(SAMPLE_ADD(logit, -max), temperature);
}

/* Unsigned integers that order as the floats do; -0 and 0 are one. */
SAMPLE_INLINE uint32_t sample_key(float f) {
    union {
        float f;
        uint32_t bits;
    } u = {SAMPLE_ADD(f, 0.0f)};
    return u.bits & 0x80000000u ? ~u.bits : u.bits | 0x80000000u;
}

SAMPLE_INLINE float sample_key_logit(uint32_t key) {
    union {
        uint32_t bits;
        float f;
    } u = {key & 0x80000000u ? key & 0x7fffffffu : ~key};
    return u.f;
}

/* A run of candidates has reached top_p of the total when its mass exceeds this. total >= 1. */
SAMPLE_INLINE uint64_t sample_reach(float top_p, uint64_t total) {
    double need = ceil((double)top_p * (double)total);
    uint64_t n = need < 1 ? 1 : (uint64_t)need;
    return (n < total ? n : total) - 1;
}

/* The first candidate at which the mass exceeds this is drawn: floor(u * total), u = bits / 2^53. */
SAMPLE_INLINE uint64_t sample_point(uint64_t bits, uint64_t total) {
    return (uint64_t)(((unsigned __int128)bits * total) >> 53);
}
