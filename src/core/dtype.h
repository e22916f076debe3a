/* dtype.h - element types and their exact conversions to and from float32. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*    id          name      safetensors bits */
#define DTYPES(X)                                                           \
    X(DT_F32, "f32", "F32", 32)                                             \
    X(DT_F16, "f16", "F16", 16)                                             \
    X(DT_BF16, "bf16", "BF16", 16)                                          \
    X(DT_F8_E4M3, "f8_e4m3", "F8_E4M3", 8) /* FN: no infinity, max 448 */   \
    X(DT_F8_E5M2, "f8_e5m2", "F8_E5M2", 8)                                  \
    X(DT_F8_E8M0, "f8_e8m0", "F8_E8M0", 8) /* 2^(b-127), a block's scale */ \
    X(DT_F64, "f64", "F64", 64)                                             \
    X(DT_I8, "i8", "I8", 8)                                                 \
    X(DT_U8, "u8", "U8", 8)                                                 \
    X(DT_I16, "i16", "I16", 16)                                             \
    X(DT_U16, "u16", "U16", 16)                                             \
    X(DT_I32, "i32", "I32", 32)                                             \
    X(DT_U32, "u32", "U32", 32)                                             \
    X(DT_I64, "i64", "I64", 64)                                             \
    X(DT_U64, "u64", "U64", 64)                                             \
    X(DT_BOOL, "bool", "BOOL", 8)

enum dtype {
#define X(id, name, file_name, bits) id,
    DTYPES(X)
#undef X
        N_DTYPES,
};

const char *dtype_name(enum dtype dt); // "bf16"
size_t dtype_bytes(enum dtype dt);     // bytes an element
bool dtype_is_float(enum dtype dt);    // one that weights are computed from: f64 f32 f16 bf16 f8_e4m3 f8_e5m2
bool dtype_from_file_name(const char *name, enum dtype *out); // "BF16", as safetensors spells it
bool dtype_from_name(const char *name, enum dtype *out);      // "bf16", "bfloat16", "float32", "torch.float16" ...

/* Exact: every bf16, f16 and f8 value is a float. */
static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); // nearest even, overflow to infinity
float f8_e4m3_to_f32(uint8_t b);
uint8_t f32_to_f8_e4m3(float f); // nearest even, saturates at +-448 as every engine does; NaN stays NaN
float f8_e5m2_to_f32(uint8_t b);
float f8_e8m0_to_f32(uint8_t b);

// Of the low 4 bits: sign and magnitude.
static inline float e2m1_to_f32(unsigned code) {
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    return values[code & 15];
}

/* n elements of type dt at src, `stride` elements apart, to floats. Integers convert by value. */
void dtype_to_f32(enum dtype dt, const void *src, int64_t stride, int64_t n, float *out);
