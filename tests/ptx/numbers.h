/* numbers.h - formats of numbers that C has not: float16, bfloat16, e4m3 and e5m2, to and from float32.
 *
 * To float is exact, subnormals too. From float is to nearest, ties to even, as cvt.rn has it; what is not a number
 * becomes the one NaN that the device makes. No branches, no tables: a loop over lanes, or over an operand of a
 * product, becomes vectors. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* An exponent field of float32, which is also the power of two with that field. */
#define EXPONENT(field) ((uint32_t)(field) << 23)

/* Where `is` is 1, a; where it is 0, b. Not ?:, of which the compiler makes branches, as floats are computed on either
 * side. */
static inline uint32_t pick(uint32_t is, uint32_t a, uint32_t b) { return b ^ ((a ^ b) & (0u - is)); }
/* Of magnitudes, which have no sign: vectors compare only numbers that do. */
static inline uint32_t is_below(uint32_t a, uint32_t b) { return (int32_t)a < (int32_t)b; }
static inline uint32_t lesser(uint32_t a, uint32_t b) { return (int32_t)a < (int32_t)b ? a : b; }

/* Magnitudes whose exponent and fraction stand where float32 has them, `bias` off. Those below `normal_from` are
 * subnormal: the fraction is of the smallest exponent, and has no leading one, which is taken off. */
static inline uint32_t rebias(uint32_t magnitude, uint32_t bias, uint32_t normal_from) {
    uint32_t subnormal =
        bits_of_float(float_of_bits(magnitude + EXPONENT(bias + 1)) - float_of_bits(EXPONENT(bias + 1)));
    return pick(is_below(magnitude, normal_from), subnormal, magnitude + EXPONENT(bias));
}

// ---- float16: 5 bits of exponent, 10 of fraction --------------------------------------------------------------------

static inline float half_to_float(uint16_t h) {
    uint32_t magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    uint32_t finite = rebias(magnitude, 127 - 15, EXPONENT(1)), infinite = magnitude | EXPONENT(255);
    return float_of_bits(pick(is_below(magnitude, EXPONENT(31)), finite, infinite) | sign);
}

/* Bits of a float's magnitude as those of a float16's: up to infinity; not of NaN. Adding 1/2, whose last place is
 * 2^-24, rounds subnormal ones. */
static inline uint32_t half_magnitude(uint32_t magnitude) {
    uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - EXPONENT(126);
    uint32_t normal = (magnitude - EXPONENT(127 - 15) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return pick(is_below(magnitude, EXPONENT(127 - 14)), subnormal, lesser(normal, 0x7c00));
}
static inline uint16_t half_from_float(float f) {
    uint32_t u = bits_of_float(f), magnitude = u & 0x7fffffffu;
    return (uint16_t)pick(is_below(EXPONENT(255), magnitude), 0x7fff, half_magnitude(magnitude) | (u >> 16 & 0x8000));
}
/* What is too large, infinity too, as the largest number. */
static inline uint16_t half_from_float_satfinite(float f) {
    uint32_t u = bits_of_float(f), magnitude = u & 0x7fffffffu, half = lesser(half_magnitude(magnitude), 0x7bff);
    return (uint16_t)pick(is_below(EXPONENT(255), magnitude), 0x7fff, half | (u >> 16 & 0x8000));
}
/* As a float that is a float16 again: half_to_float(half_from_float(f)), but for the bits of NaN. */
static inline float half_rounded(float f) {
    uint32_t u = bits_of_float(f), magnitude = u & 0x7fffffffu;
    uint32_t subnormal = bits_of_float((float_of_bits(magnitude) + 0.5f) - 0.5f),
             normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & ~0x1fffu;
    normal = pick(is_below(normal, EXPONENT(127 + 16)), normal, EXPONENT(255));
    uint32_t rounded = pick(is_below(magnitude, EXPONENT(127 - 14)), subnormal, normal);
    return float_of_bits(pick(is_below(EXPONENT(255), magnitude), magnitude, rounded) | (u & 0x80000000u));
}

// ---- bfloat16: the upper half of a float32 --------------------------------------------------------------------------

static inline float bf16_to_float(uint16_t b) { return float_of_bits((uint32_t)b << 16); }
static inline uint16_t bf16_from_float(float f) {
    uint32_t u = bits_of_float(f);
    return (uint16_t)pick(is_below(EXPONENT(255), u & 0x7fffffffu), 0x7fff, (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// ---- 8 bits ---------------------------------------------------------------------------------------------------------

/* e4m3: 4 bits of exponent, 3 of fraction, no infinity; 0x7f and 0xff are no numbers. */
static inline float e4m3_to_float(uint8_t v) {
    uint32_t magnitude = (v & 0x7fu) << 20, sign = (v & 0x80u) << 24;
    uint32_t number = rebias(magnitude, 127 - 7, EXPONENT(1));
    return float_of_bits(pick(magnitude == 0x7fu << 20, 0x7fc00000u, number) | sign);
}
/* Always satfinite: what is too large, infinity too, as 448. Adding 2^14, whose last place is 2^-9, rounds subnormal
 * ones. */
static inline uint8_t e4m3_from_float(float f) {
    uint32_t u = bits_of_float(f), magnitude = u & 0x7fffffffu;
    uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0x1p14f) - EXPONENT(127 + 14);
    uint32_t normal = (magnitude - EXPONENT(127 - 7) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    uint32_t number = pick(is_below(magnitude, EXPONENT(127 - 6)), subnormal, lesser(normal, 0x7e));
    return (uint8_t)pick(is_below(EXPONENT(255), magnitude), 0x7f, number | (u >> 24 & 0x80));
}
/* e5m2: the upper half of a float16. */
static inline float e5m2_to_float(uint8_t v) { return half_to_float((uint16_t)(v << 8)); }
