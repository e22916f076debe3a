/* arithmetic.c - what lanes compute: integers, floats, halves, bits, predicates, choices, conversions. The instructions
 * are in arithmetic.def, here is what they are made of.
 *
 * Results are those of the device to the bit where PTX says what they are: NaNs are the device's one NaN, subnormals
 * are kept unless .ftz, shifts and divisions have the device's values where C has none. Approximations (ex2, rcp, tanh,
 * ...) are the true value, rounded: the device's own errors are not known here.
 *
 * Loops over the lanes are to become vectors: this needs O3, and that nobody asks for errno or for floating-point
 * traps. */
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")

#include "machine.h"
#include "numbers.h"

#include <float.h>
#include <math.h>
#include <string.h>

// ---- types of lanes: from a register, into a register ---------------------------------------------------------------

typedef int8_t type_s8;
typedef uint8_t type_u8;
typedef int16_t type_s16;
typedef uint16_t type_u16;
typedef int32_t type_s32;
typedef uint32_t type_u32;
typedef int64_t type_s64;
typedef uint64_t type_u64;
typedef float type_f16, type_bf16, type_f32, type_ftz, type_sat, type_ftz_sat;
typedef double type_f64;

/* The device makes one NaN only. */
static inline float one_nan(float v) { return v != v ? float_of_bits(0x7fffffff) : v; }
static inline float flushed(float v) {
    uint32_t bits = bits_of_float(v);
    return float_of_bits((bits & 0x7f800000) ? bits : bits & 0x80000000);
}
static inline float within_1(float v) {
    v = v > 0 ? v : 0; // a NaN is 0
    return v < 1 ? v : 1;
}

#define TAKE_u16(bits) ((uint16_t)(bits))
#define TAKE_s16(bits) ((int16_t)(bits))
#define TAKE_f16(bits) half_to_float((uint16_t)(bits))
#define TAKE_bf16(bits) bf16_to_float((uint16_t)(bits))
#define MAKE_u16(v) ((uint16_t)(v))
#define MAKE_s16(v) ((uint16_t)(v))
#define MAKE_f16(v) half_from_float(v)
#define MAKE_bf16(v) bf16_from_float(v)
#define MAKE_PAIR(E, low, high) ((uint32_t)MAKE_##E(low) | (uint32_t)MAKE_##E(high) << 16)

#define GET_s8(r, l) ((int8_t)(r)->u32[l])
#define GET_u8(r, l) ((uint8_t)(r)->u32[l])
#define GET_s16(r, l) TAKE_s16((r)->u32[l])
#define GET_u16(r, l) TAKE_u16((r)->u32[l])
#define GET_f16(r, l) TAKE_f16((r)->u32[l])
#define GET_bf16(r, l) TAKE_bf16((r)->u32[l])
#define GET_s32(r, l) (r)->s32[l]
#define GET_u32(r, l) (r)->u32[l]
#define GET_s64(r, l) (r)->s64[l]
#define GET_u64(r, l) (r)->u64[l]
#define GET_f32(r, l) (r)->f32[l]
#define GET_ftz(r, l) flushed((r)->f32[l])
#define GET_f64(r, l) (r)->f64[l]

#define PUT_s16(r, l, v) (r)->u32[l] = MAKE_s16(v)
#define PUT_u16(r, l, v) (r)->u32[l] = MAKE_u16(v)
#define PUT_f16(r, l, v) (r)->u32[l] = MAKE_f16(v)
#define PUT_bf16(r, l, v) (r)->u32[l] = MAKE_bf16(v)
#define PUT_s32(r, l, v) (r)->u32[l] = (uint32_t)(v)
#define PUT_u32(r, l, v) (r)->u32[l] = (uint32_t)(v)
#define PUT_s64(r, l, v) (r)->u64[l] = (uint64_t)(v)
#define PUT_u64(r, l, v) (r)->u64[l] = (uint64_t)(v)
#define PUT_f32(r, l, v) (r)->f32[l] = one_nan(v)
#define PUT_ftz(r, l, v) (r)->f32[l] = flushed(one_nan(v))
#define PUT_sat(r, l, v) (r)->f32[l] = within_1(v)
#define PUT_ftz_sat(r, l, v) (r)->f32[l] = flushed(within_1(v))
#define PUT_f64(r, l, v) (r)->f64[l] = (v)

/* At least 32 bits without a sign, so that nothing overflows. */
#define WIDE(a) ((a) + 0u)

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

// ---- conversions ----------------------------------------------------------------------------------------------------

static inline float within(float v, float least, float most) {
    v = v != v ? 0 : v;
    v = v < least ? least : v;
    return v > most ? most : v;
}
static inline float within_halves(float v) {
    v = v < -65504 ? -65504 : v;
    return v > 65504 ? 65504 : v;
}
static inline int32_t float_to_s32(float v) {
    int32_t converted = (int32_t)(v >= 0x1p31f || v != v ? 0 : v < -0x1p31f ? -0x1p31f : v);
    return v >= 0x1p31f ? INT32_MAX : converted;
}
static inline uint32_t float_to_u32(float v) { return v >= 0x1p32f ? UINT32_MAX : v > 0 ? (uint32_t)v : 0; }
static inline int64_t float_to_s64(double v) { return v >= 0x1p63 ? INT64_MAX : v >= -0x1p63 ? (int64_t)v : INT64_MIN; }
static inline uint64_t float_to_u64(double v) {
    return v != v ? (uint64_t)1 << 63 : v >= 0x1p64 ? UINT64_MAX : v > 0 ? (uint64_t)v : 0;
}
static inline int32_t double_to_s32(double v) {
    return v >= 0x1p31 ? INT32_MAX : v >= -0x1p31 ? (int32_t)v : INT32_MIN;
}
static inline uint32_t double_to_u32(double v) {
    return v != v ? (uint32_t)1 << 31 : v >= 0x1p32 ? UINT32_MAX : v > 0 ? (uint32_t)v : 0;
}
static inline uint16_t half_from_e4m3(uint8_t v) { return half_from_float(e4m3_to_float(v)); }

// ---- predicates -----------------------------------------------------------------------------------------------------

/* As a word, a bit a lane. A constant is for all lanes. */
static inline uint32_t word_of(const struct warp *w, const struct insn *i, int k) {
    uint32_t word = *flag_of(w, i, k);
    return i->arg[k] & 1 ? 0 - (uint32_t)(word != 0) : word;
}
static inline void put_word(const struct warp *w, const struct insn *i, int k, uint32_t lanes, uint32_t word) {
    if (i->arg[k] == DISCARD)
        return;
    uint32_t *d = flag_of(w, i, k);
    *d = (*d & ~lanes) | (word & lanes);
}

/* setp how{.bool} p{|q}, a, b{, c}: where a is. */
static bool is_combined(const struct insn *i) {
    return strstr(i->name, ".and.") || strstr(i->name, ".or.") || strstr(i->name, ".xor.");
}
static int place_of_a(const struct insn *i) { return i->n_args == 3 ? 1 : i->n_args - 2 - is_combined(i); }
static uint32_t combined(const struct insn *i, uint32_t word, uint32_t c) {
    return strstr(i->name, ".and.") ? word & c : strstr(i->name, ".or.") ? word | c : word ^ c;
}
static void put_more_flags(const struct warp *w, const struct insn *i, uint32_t lanes, uint32_t word) {
    uint32_t not_word = ~word;
    if (is_combined(i)) {
        uint32_t c = word_of(w, i, i->n_args - 1);
        word = combined(i, word, c);
        not_word = combined(i, not_word, c);
    }
    put_word(w, i, 0, lanes, word);
    if (place_of_a(i) == 2)
        put_word(w, i, 1, lanes, not_word);
}
static inline enum outcome put_flags(const struct warp *w, const struct insn *i, uint32_t lanes, uint32_t word) {
    if (i->n_args == 3)
        put_word(w, i, 0, lanes, word);
    else
        put_more_flags(w, i, lanes, word);
    return NEXT;
}

// ---- registers of several -------------------------------------------------------------------------------------------

/* mov.b32|b64 d, {low, .., high} */
static enum outcome pack(struct warp *w, const struct insn *i, uint32_t lanes) {
    union lanes *d = arg_of(w, i, 0);
    bool is_64 = strcmp(i->name, "pack.b64") == 0;
    uint32_t n = i->n_args - 1u, bits = (is_64 ? 64 : 32) / n;
    if (bits != 16 && bits != 32)
        machine_fault(w, "%s of %u elements", i->name, n);
    EACH_LANE (l, lanes) {
        uint64_t v = 0;
        for (uint32_t k = 0; k < n; k++)
            v |= (uint64_t)(arg_of(w, i, (int)k + 1)->u32[l] & (uint32_t)lowest_ones(bits)) << k * bits;
        if (is_64)
            d->u64[l] = v;
        else
            d->u32[l] = (uint32_t)v;
    }
    return NEXT;
}
/* mov.b32|b64 {low, .., high}, a */
static enum outcome unpack(struct warp *w, const struct insn *i, uint32_t lanes) {
    const union lanes *a = arg_of(w, i, i->n_args - 1);
    bool is_64 = strcmp(i->name, "unpack.b64") == 0;
    uint32_t n = i->n_args - 1u, bits = (is_64 ? 64 : 32) / n;
    if (bits != 16 && bits != 32)
        machine_fault(w, "%s of %u elements", i->name, n);
    for (uint32_t k = 0; k < n; k++) {
        if (i->arg[k] == DISCARD)
            continue;
        union lanes *d = arg_of(w, i, (int)k);
        EACH_LANE (l, lanes)
            d->u32[l] = (uint32_t)((is_64 ? a->u64[l] : a->u32[l]) >> k * bits & lowest_ones(bits));
    }
    return NEXT;
}
/* The usual ones: two halves of 32 bits. */
static enum outcome pack_b32(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (lanes != ~0u || i->n_args != 3)
        return pack(w, i, lanes);
    union lanes *d = arg_of(w, i, 0);
    const union lanes *low = arg_of(w, i, 1), *high = arg_of(w, i, 2);
#pragma GCC ivdep
    for (uint32_t l = 0; l < LANES; l++)
        d->u32[l] = (low->u32[l] & 0xffff) | high->u32[l] << 16;
    return NEXT;
}
static enum outcome unpack_b32(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (lanes != ~0u || i->n_args != 3 || i->arg[0] == DISCARD || i->arg[1] == DISCARD)
        return unpack(w, i, lanes);
    union lanes *low = arg_of(w, i, 0), *high = arg_of(w, i, 1);
    const union lanes *a = arg_of(w, i, 2);
#pragma GCC ivdep
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t v = a->u32[l];
        low->u32[l] = v & 0xffff;
        high->u32[l] = v >> 16;
    }
    return NEXT;
}

/* And of 64 bits. */
static enum outcome pack_b64(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (lanes != ~0u || i->n_args != 3)
        return pack(w, i, lanes);
    union lanes *d = arg_of(w, i, 0);
    const union lanes *low = arg_of(w, i, 1), *high = arg_of(w, i, 2);
#pragma GCC ivdep
    for (uint32_t l = 0; l < LANES; l++)
        d->u64[l] = (uint64_t)high->u32[l] << 32 | low->u32[l];
    return NEXT;
}
static enum outcome unpack_b64(struct warp *w, const struct insn *i, uint32_t lanes) {
    if (lanes != ~0u || i->n_args != 3)
        return unpack(w, i, lanes);
    const union lanes *a = arg_of(w, i, 2);
    for (int k = 0; k < 2; k++) {
        if (i->arg[k] == DISCARD)
            continue;
        union lanes *d = arg_of(w, i, k);
#pragma GCC ivdep
        for (uint32_t l = 0; l < LANES; l++)
            d->u32[l] = (uint32_t)(a->u64[l] >> 32 * k);
    }
    return NEXT;
}

// ---- handlers -------------------------------------------------------------------------------------------------------

#define PASTED(line, tag) op_##line##_##tag
#define OF_LINE(line, tag) PASTED(line, tag)
#define HANDLER(tag) OF_LINE(__LINE__, tag)

/* The statement for each lane l of a mask. A register is the same as another or apart from it, and a lane reads its own
 * only: there is nothing to wait for. */
#define FOR_LANES(...)                                                            \
    if (lanes == ~0u) {                                                           \
        _Pragma("GCC ivdep") for (uint32_t l = 0; l < LANES; l++) { __VA_ARGS__ } \
    } else {                                                                      \
        EACH_LANE (l, lanes) {                                                    \
            __VA_ARGS__                                                           \
        }                                                                         \
    }
#define RUNS(tag, n, ...)                                                                     \
    static enum outcome HANDLER(tag)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        union lanes *d = arg_of(w, i, 0);                                                     \
        const union lanes *x[n];                                                              \
        for (int k = 0; k < n; k++)                                                           \
            x[k] = arg_of(w, i, k + 1);                                                       \
        FOR_LANES(__VA_ARGS__)                                                                \
        return NEXT;                                                                          \
    }
#define OPERAND(name, T, k) type_##T name = GET_##T(x[k], l);
#define OP1(name, d_, A, value) RUNS(d_, 1, OPERAND(a, A, 0) PUT_##d_(d, l, value);)
#define OP2(name, d_, A, B, value) RUNS(d_, 2, OPERAND(a, A, 0) OPERAND(b, B, 1) PUT_##d_(d, l, value);)
#define OP3(name, d_, A, B, C, value) \
    RUNS(d_, 3, OPERAND(a, A, 0) OPERAND(b, B, 1) OPERAND(c, C, 2) PUT_##d_(d, l, value);)
#define OP4(name, d_, A, B, C, E, value) \
    RUNS(d_, 4, OPERAND(a, A, 0) OPERAND(b, B, 1) OPERAND(c, C, 2) OPERAND(e, E, 3) PUT_##d_(d, l, value);)

#define HALF_OF(name, E, k) type_##E name = TAKE_##E(x[k]->u32[l] >> shift);
#define PAIRED(E, n, ...)                  \
    RUNS(pair_##E, n, uint32_t result = 0; \
         for (int shift = 0; shift < 32; shift += 16){__VA_ARGS__} d->u32[l] = result;)
#define PAIR1(name, E, value) PAIRED(E, 1, HALF_OF(a, E, 0) result |= (uint32_t)MAKE_##E(value) << shift;)
#define PAIR2(name, E, value) \
    PAIRED(E, 2, HALF_OF(a, E, 0) HALF_OF(b, E, 1) result |= (uint32_t)MAKE_##E(value) << shift;)
#define PAIR3(name, E, value) \
    PAIRED(E, 3, HALF_OF(a, E, 0) HALF_OF(b, E, 1) HALF_OF(c, E, 2) result |= (uint32_t)MAKE_##E(value) << shift;)

#define FLAG1(name, value)                                                                     \
    static enum outcome HANDLER(flag)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        uint32_t a = word_of(w, i, 1);                                                         \
        put_word(w, i, 0, lanes, value);                                                       \
        return NEXT;                                                                           \
    }
#define FLAG2(name, value)                                                                     \
    static enum outcome HANDLER(flag)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        uint32_t a = word_of(w, i, 1), b = word_of(w, i, 2);                                   \
        put_word(w, i, 0, lanes, value);                                                       \
        return NEXT;                                                                           \
    }
#define SELP(name, D)                                                                       \
    static enum outcome HANDLER(D)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        union lanes *d = arg_of(w, i, 0);                                                   \
        const union lanes *x[2] = {arg_of(w, i, 1), arg_of(w, i, 2)};                       \
        uint32_t word = word_of(w, i, 3);                                                   \
        FOR_LANES(OPERAND(a, D, 0) OPERAND(b, D, 1) PUT_##D(d, l, word >> l & 1 ? a : b);)  \
        return NEXT;                                                                        \
    }
#define SETP(how, type, A, value)                                                                 \
    static enum outcome HANDLER(set_##A)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        int at = place_of_a(i);                                                                   \
        const union lanes *x[2] = {arg_of(w, i, at), arg_of(w, i, at + 1)};                       \
        uint32_t word = 0;                                                                        \
        for (uint32_t l = 0; l < LANES; l++) {                                                    \
            OPERAND(a, A, 0)                                                                      \
            OPERAND(b, A, 1)                                                                      \
            word |= (uint32_t)(value) << l;                                                       \
        }                                                                                         \
        return put_flags(w, i, lanes, word);                                                      \
    }
#define TESTS(T, value)                                                                            \
    static enum outcome HANDLER(test_##T)(struct warp * w, const struct insn *i, uint32_t lanes) { \
        const union lanes *x[1] = {arg_of(w, i, 1)};                                               \
        uint32_t word = 0;                                                                         \
        for (uint32_t l = 0; l < LANES; l++) {                                                     \
            OPERAND(a, T, 0)                                                                       \
            word |= (uint32_t)(value) << l;                                                        \
        }                                                                                          \
        put_word(w, i, 0, lanes, word);                                                            \
        return NEXT;                                                                               \
    }
#define TESTP(what, value, value_f64) TESTS(f32, value) TESTS(f64, value_f64)
#define ALSO(name, D)
#define ALSO_PAIR(name, E)
#define ALSO_SETP(how, type, A)

#include "arithmetic.def"

#undef OP1
#undef OP2
#undef OP3
#undef OP4
#undef PAIR1
#undef PAIR2
#undef PAIR3
#undef FLAG1
#undef FLAG2
#undef SELP
#undef SETP
#undef TESTP
#undef ALSO
#undef ALSO_PAIR
#undef ALSO_SETP
#define OP1(name, D, A, value) {name, HANDLER(D)},
#define OP2(name, D, A, B, value) {name, HANDLER(D)},
#define OP3(name, D, A, B, C, value) {name, HANDLER(D)},
#define OP4(name, D, A, B, C, E, value) {name, HANDLER(D)},
#define PAIR1(name, E, value) {name, HANDLER(pair_##E)},
#define PAIR2(name, E, value) {name, HANDLER(pair_##E)},
#define PAIR3(name, E, value) {name, HANDLER(pair_##E)},
#define FLAG1(name, value) {name, HANDLER(flag)},
#define FLAG2(name, value) {name, HANDLER(flag)},
#define SELP(name, D) {name, HANDLER(D)},
#define SETP(how, type, A, value) ALSO_SETP(how, type, A)
#define TESTP(what, value, value_f64) \
    {"testp." what ".f32", HANDLER(test_f32)}, {"testp." what ".f64", HANDLER(test_f64)},
#define ALSO(name, D) {name, HANDLER(D)},
#define ALSO_PAIR(name, E) {name, HANDLER(pair_##E)},
#define ALSO_SETP(how, type, A)                                                             \
    {"setp." how "." type, HANDLER(set_##A)}, {"setp." how ".and." type, HANDLER(set_##A)}, \
        {"setp." how ".or." type, HANDLER(set_##A)}, {"setp." how ".xor." type, HANDLER(set_##A)},

const struct opcode arithmetic_ops[] = {
#include "arithmetic.def"
    {"pack.b32", pack_b32},     {"pack.b64", pack_b64}, {"unpack.b32", unpack_b32},
    {"unpack.b64", unpack_b64}, {NULL, NULL},
};
