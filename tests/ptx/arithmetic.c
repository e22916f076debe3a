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

#include "parts/types.h"

#include "parts/values.h"

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
