/* dtype.c - see dtype.h. */
#include "core/dtype.h"

#include <math.h>

static const struct {
    const char *name, *file_name;
    int bits;
} table[N_DTYPES] = {
#define X(id, name, file_name, bits) [id] = {name, file_name, bits},
    DTYPES(X)
#undef X
};

const char *dtype_name(enum dtype dt) { return table[dt].name; }
size_t dtype_bytes(enum dtype dt) { return (size_t)table[dt].bits / 8; }

bool dtype_is_float(enum dtype dt) {
    return dt == DT_F32 || dt == DT_F16 || dt == DT_BF16 || dt == DT_F64 || dt == DT_F8_E4M3 || dt == DT_F8_E5M2;
}

bool dtype_from_file_name(const char *name, enum dtype *out) {
    if (strcmp(name, "F8_E4M3FN") == 0)
        name = "F8_E4M3";
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(name, table[i].file_name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

bool dtype_from_name(const char *name, enum dtype *out) {
    static const struct {
        const char *name;
        enum dtype dt;
    } aliases[] = {{"bfloat16", DT_BF16},      {"float16", DT_F16}, {"half", DT_F16},    {"float32", DT_F32},
                   {"float", DT_F32},          {"float64", DT_F64}, {"fp8", DT_F8_E4M3}, {"float8_e4m3fn", DT_F8_E4M3},
                   {"float8_e5m2", DT_F8_E5M2}};
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strcmp(name, aliases[i].name) == 0) {
            *out = aliases[i].dt;
            return true;
        }
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(name, table[i].name) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

static float f32_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    if (exponent == 31)
        return f32_from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent == 0) {
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float f) {
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) // rounds to 65536 or more
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) // below 2^-14: a multiple of 2^-24
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(f) * 0x1p24f));
    magnitude += 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

float f8_e4m3_to_f32(uint8_t b) {
    uint32_t sign = (uint32_t)(b & 0x80) << 24, magnitude = b & 0x7F;
    if (magnitude == 0x7F)
        return f32_from_bits(sign | 0x7FC00000);
    if (magnitude < 8) { // no exponent
        float f = (float)magnitude * 0x1p-9f;
        return sign ? -f : f;
    }
    return f32_from_bits(sign | (magnitude + (120 << 3)) << 20);
}

uint8_t f32_to_f8_e4m3(float f) {
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float a = fabsf(f);
    if (isnan(f))
        return sign | 0x7F;
    if (a >= 448)
        return sign | 0x7E;
    if (a < 0x1p-6f)
        return (uint8_t)(sign | (int)lrintf(a * 512));
    uint32_t u = f32_bits(a);
    u += 0x7FFFF + (u >> 20 & 1);
    uint32_t code = (u >> 20) - (120 << 3);
    return (uint8_t)(sign | (code > 0x7E ? 0x7E : code));
}

float f8_e5m2_to_f32(uint8_t b) { return f16_to_f32((uint16_t)(b << 8)); }
float f8_e8m0_to_f32(uint8_t b) { return b == 255 ? NAN : b ? f32_from_bits((uint32_t)b << 23) : 0x1p-127f; }

void dtype_to_f32(enum dtype dt, const void *src, int64_t stride, int64_t n, float *out) {
#define EACH(type, expr)                  \
    do {                                  \
        const type *p = src;              \
        for (int64_t i = 0; i < n; i++) { \
            type v = p[i * stride];       \
            out[i] = (float)(expr);       \
        }                                 \
    } while (0)
    switch (dt) {
    case DT_F32: EACH(float, v); break;
    case DT_F16: EACH(uint16_t, f16_to_f32(v)); break;
    case DT_BF16: EACH(uint16_t, bf16_to_f32(v)); break;
    case DT_F8_E4M3: EACH(uint8_t, f8_e4m3_to_f32(v)); break;
    case DT_F8_E5M2: EACH(uint8_t, f8_e5m2_to_f32(v)); break;
    case DT_F8_E8M0: EACH(uint8_t, f8_e8m0_to_f32(v)); break;
    case DT_F64: EACH(double, v); break;
    case DT_I8: EACH(int8_t, v); break;
    case DT_U8: EACH(uint8_t, v); break;
    case DT_I16: EACH(int16_t, v); break;
    case DT_U16: EACH(uint16_t, v); break;
    case DT_I32: EACH(int32_t, v); break;
    case DT_U32: EACH(uint32_t, v); break;
    case DT_I64: EACH(int64_t, v); break;
    case DT_U64: EACH(uint64_t, v); break;
    case DT_BOOL: EACH(uint8_t, v != 0); break;
    case N_DTYPES: break;
    }
#undef EACH
}
