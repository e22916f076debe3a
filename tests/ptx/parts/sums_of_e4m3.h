/* sums_of_e4m3.h - part of matrices.c: what the device makes of sums of e4m3. */
#pragma once

/* The tensor core adds a sum and its 32 terms as multiples of 2^(E - CUT), cut towards zero, E being the largest
 * exponent among them, a term's the sum of its elements' exponents; what comes of that is cut to as many bits of a
 * fraction, or rounded to float16 (tests/cuda/e4m3_sums.cuh has the same for the device, where it is compared). An
 * element that is no number makes the sum none. */
enum { CUT = 13, NO_EXPONENT = -64 };

static inline int32_t exponent_of(float f) { return (int32_t)(bits_of_float(f) >> 23 & 255) - 127; }
static inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t exponent_of_e4m3(float f) { return f == 0 ? NO_EXPONENT : larger(exponent_of(f), -6); }
static inline float power_of(int32_t exponent) { return float_of_bits(EXPONENT(127 + exponent)); }
static inline float cut(float f) { return float_of_bits(bits_of_float(f) & ~0u << (23 - CUT)); }

struct left_of_e4m3 {
    int32_t exponent[MOST_K][ROWS];
    float not_a_number[ROWS]; // or 0
};
static void look_at_left(struct left_of_e4m3 *l, const float left[MOST_K][ROWS]) {
    memset(l->not_a_number, 0, sizeof l->not_a_number);
    for (int k = 0; k < MOST_K; k++)
        for (int row = 0; row < ROWS; row++) {
            l->exponent[k][row] = exponent_of_e4m3(left[k][row]);
            l->not_a_number[row] += 0 * left[k][row];
        }
}

/* A column. */
static void multiply_e4m3(float *restrict sums, const float left[MOST_K][ROWS], const struct left_of_e4m3 *restrict l,
                          const float *restrict right, bool to_half) {
    int32_t e[ROWS], units[ROWS];
    float scale[ROWS], not_a_number = 0;
    for (int row = 0; row < ROWS; row++)
        e[row] = larger(exponent_of(sums[row]), NO_EXPONENT);
    for (int k = 0; k < MOST_K; k++) {
        int32_t more = exponent_of_e4m3(right[k]);
        not_a_number += 0 * right[k];
        for (int row = 0; row < ROWS; row++)
            e[row] = larger(e[row], l->exponent[k][row] + more);
    }
    for (int row = 0; row < ROWS; row++) {
        scale[row] = power_of(CUT - e[row]);
        units[row] = (int32_t)(sums[row] * scale[row]);
    }
    for (int k = 0; k < MOST_K; k++)
        for (int row = 0; row < ROWS; row++)
            units[row] += (int32_t)(left[k][row] * right[k] * scale[row]);
    for (int row = 0; row < ROWS; row++) {
        float sum = (float)units[row] * power_of(e[row] - CUT) + l->not_a_number[row] + not_a_number;
        sums[row] = exponent_of(sums[row]) == 128 ? sums[row] + sum
                    : to_half                     ? sum
                                                  : cut(sum); // 128: not finite, and stays so
    }
}
