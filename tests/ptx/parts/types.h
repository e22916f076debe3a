/* types.h - part of arithmetic.c: types of lanes, from a register and into one. */
#pragma once

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
