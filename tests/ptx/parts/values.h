/* values.h - part of arithmetic.c: what integers, bits and floats become. */
#pragma once

// ---- integers and bits ----------------------------------------------------------------------------------------------

static inline int32_t cut_s32(int64_t v) { return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v; }
static inline uint32_t highest_bit(uint64_t v) { return v ? 63 - (uint32_t)__builtin_clzll(v) : UINT32_MAX; }
static inline uint32_t shift_to_top(uint64_t v, uint32_t top) { return v ? top - highest_bit(v) : UINT32_MAX; }
static inline uint32_t reversed_32(uint32_t v) {
    v = (v & 0x55555555) << 1 | (v >> 1 & 0x55555555);
    v = (v & 0x33333333) << 2 | (v >> 2 & 0x33333333);
    v = (v & 0x0f0f0f0f) << 4 | (v >> 4 & 0x0f0f0f0f);
    return __builtin_bswap32(v);
}
static inline uint32_t dot_u8(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (int k = 0; k < 32; k += 8)
        sum += (a >> k & 255) * (b >> k & 255);
    return sum;
}
static inline uint32_t dot_s8(uint32_t a, uint32_t b) {
    int32_t sum = 0;
    for (int k = 0; k < 32; k += 8)
        sum += (int8_t)(a >> k) * (int8_t)(b >> k);
    return (uint32_t)sum;
}

/* Four of eight bytes, b above a; a nibble of the selector for each, whose highest bit asks for the byte's sign
 * instead. */
static inline uint32_t bytes_chosen(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t chosen = 0;
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t s = selector >> 4 * k, byte = (s & 4 ? b : a) >> 8 * (s & 3) & 255, sign = (0 - (byte >> 7)) & 255;
        chosen |= (s & 8 ? sign : byte) << 8 * k;
    }
    return chosen;
}
/* A bit of table for each of the eight values that three bits may have. */
static inline uint32_t logic_of_3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (uint32_t k = 0; k < 8; k++)
        result |= (0 - (table >> k & 1)) & (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return result;
}
static inline uint64_t lowest_ones(uint32_t n) { return n < 64 ? ((uint64_t)1 << (n & 63)) - 1 : UINT64_MAX; }
static inline uint64_t bits_into_64(uint64_t bits, uint64_t v, uint32_t at, uint32_t n) {
    at &= 255, n &= 255;
    uint64_t mask = at < 64 ? lowest_ones(n) << (at & 63) : 0;
    return (v & ~mask) | ((bits << (at & 63)) & mask);
}
static inline uint32_t bits_into_32(uint32_t bits, uint32_t v, uint32_t at, uint32_t n) {
    return (uint32_t)bits_into_64(bits, v, at, n);
}
static inline uint64_t bits_of_u64(uint64_t v, uint32_t n, uint32_t at) {
    at &= 255, n &= 255;
    return at < 64 ? v >> (at & 63) & lowest_ones(n) : 0;
}
/* Bits beyond those asked for, or beyond the highest, are the sign of what was taken. */
static inline int64_t bits_of_s64(int64_t v, uint32_t n, uint32_t at, uint32_t highest) {
    at &= 255, n &= 255;
    uint32_t last = at + n - 1 < highest ? at + n - 1 : highest;
    uint64_t sign = n && (v >> last & 1) ? UINT64_MAX : 0, mask = lowest_ones(n);
    uint64_t bits = at <= highest ? (uint64_t)(v >> at) : sign;
    return n ? (int64_t)((bits & mask) | (sign & ~mask)) : 0;
}
static inline uint32_t ones(uint32_t at, uint32_t n) {
    return (uint32_t)bits_into_64(UINT64_MAX, 0, at < 32 ? at : 32, n < 32 ? n : 32);
}

// ---- floats ---------------------------------------------------------------------------------------------------------

/* In the order of keys -0 lies below 0. */
static inline int32_t order_of(float v) {
    int32_t bits = (int32_t)bits_of_float(v);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}
static inline float float_of_order(int32_t order) {
    return float_of_bits((uint32_t)order ^ (uint32_t)(order >> 31) >> 1);
}
/* Of a number and a NaN both give the number. */
static inline float smaller(float a, float b) {
    float v = order_of(a) < order_of(b) ? a : b;
    v = b != b ? a : v;
    return a != a ? b : v;
}
static inline float larger(float a, float b) {
    float v = order_of(a) > order_of(b) ? a : b;
    v = b != b ? a : v;
    return a != a ? b : v;
}
static inline double smaller_f64(double a, double b) {
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}
static inline double larger_f64(double a, double b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}
static inline float nan_or(float a, float b, float v) {
    v = a != a ? a : v;
    return b != b ? b : v;
}
/* v has no sign, its own becomes the product of those of a and b. */
static inline float with_signs(float a, float b, float v) {
    return float_of_bits(bits_of_float(v) | ((bits_of_float(a) ^ bits_of_float(b)) & 0x80000000));
}
/* .relu: a NaN stays, -0 and what is below become 0. */
static inline float positive(float v) { return v <= 0 ? 0 : v; }

enum direction { DOWN, UP, TO_ZERO };
/* v + error, of which v is the nearest double; error is less than its last place. In the order of keys the next float
 * is the next number. */
static inline float rounded_toward(double v, double error, enum direction to) {
    float nearest = (float)v;
    int32_t above = ((double)nearest > v) | (((double)nearest == v) & (error < 0)),
            below = ((double)nearest < v) | (((double)nearest == v) & (error > 0));
    int32_t down = (to == DOWN) | ((to == TO_ZERO) & (v > 0)), up = (to == UP) | ((to == TO_ZERO) & (v < 0));
    return float_of_order(order_of(nearest) - (above & down) + (below & up));
}
/* What is lost by sum = a + b (Knuth). */
static inline double lost(double a, double b, double sum) {
    double b_in_sum = sum - a;
    return (a - (sum - b_in_sum)) + (b - b_in_sum);
}
/* Downward, the sum of opposite numbers is -0. */
static inline float sum_toward(double a, double b, enum direction to) {
    double sum = a + b;
    uint32_t zero =
        to == DOWN ? (bits_of_float((float)a) | bits_of_float((float)b)) & 0x80000000 : bits_of_float((float)sum);
    return sum == 0 ? float_of_bits(zero) : rounded_toward(sum, lost(a, b, sum), to);
}
/* a + b in a float that, where it is not exact, has its last bit set: so that it can be rounded again to fewer bits, as
 * if from the sum itself. */
static inline float sum_to_odd(double a, double b) {
    double sum = a + b, error = lost(a, b, sum);
    float f = (float)sum;
    error = (double)f != sum ? sum - (double)f : error; // its sign is that of what f lacks
    uint32_t bits = bits_of_float(f);
    uint32_t odd = (error > 0) == (f > 0) ? bits + 1 : bits - 1;
    bool exact = !(error > 0 || error < 0), is_infinite = (bits & 0x7fffffff) == 0x7f800000;
    return exact || (bits & 1) || is_infinite ? f : float_of_bits(f == 0 ? (uint32_t)(error < 0) << 31 | 1 : odd);
}

/* The device takes a reciprocal, which is 0 for divisors above 2^126. */
static inline float quotient_by_reciprocal(float a, float b) {
    float zero = float_of_bits(bits_of_float(b) & 0x80000000);
    return fabsf(b) > 0x1p126f ? (b != b ? b : a * zero) : a / b;
}
/* The upper half of 1 / a, from the upper half of a. */
static inline double gross_reciprocal(double a) {
    uint64_t bits;
    memcpy(&bits, &a, sizeof bits);
    bits &= bits >> 52 & 0x7ff ? 0xffffffff00000000 : (uint64_t)1 << 63;
    memcpy(&a, &bits, sizeof a);
    a = 1 / a;
    memcpy(&bits, &a, sizeof bits);
    bits &= bits >> 52 & 0x7ff ? 0xffffffff00000000 : (uint64_t)1 << 63;
    memcpy(&a, &bits, sizeof a);
    return a;
}

/* 2^v to 3e-10 of it; beyond floats' range, not within it, it stops growing or shrinking. */
static inline double power_of_2(double v) {
    const double magic = 0x1.8p52; // added, it leaves the nearest integer in the lowest bits
    v = v > 200 ? 200 : v;
    v = v < -200 ? -200 : v;
    double shifted = v + magic, x = (v - (shifted - magic)) * M_LN2, power, scale;
    power =
        1 + x * (1 + x * (1. / 2 +
                          x * (1. / 6 +
                               x * (1. / 24 + x * (1. / 120 + x * (1. / 720 + x * (1. / 5040 + x * (1. / 40320))))))));
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return power * scale;
}
static inline double hyperbolic_tangent(double v) {
    double by_power = 1 - 2 / (power_of_2(v * (2 * M_LOG2E)) + 1), square = v * v;
    double by_series = v * (1 + square * (-1. / 3 + square * (2. / 15 - square * (17. / 315))));
    return fabs(v) < 0x1p-5 ? by_series : by_power;
}
