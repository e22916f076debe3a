/* codes.c - see codes.h. */
#include "quantize/round/codes.h"

#include "base/status.h"
#include "quantize/round/scales.h"

#include <math.h>

int64_t codes_bytes(const struct codes *c, int64_t n) {
    switch (c->format) {
    case CODES_INT4: return (n + 7) / 8 * 4; // in words
    case CODES_NVFP4:
    case CODES_MXFP4: return n / 2;
    default: return n;
    }
}

int64_t codes_scales(const struct codes *c, int64_t n) { return c->group ? n / c->group : 1; }

static float largest(const float *x, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = MAX(most, fabsf(x[i]));
    return most;
}

/* A scale as stored, and what readers make of it. */
static float put_scale(enum dtype dt, float s, uint8_t *out) {
    uint16_t h = dt == DT_F16 ? f32_to_f16(s) : f32_to_bf16(s);
    if (dt == DT_F32) {
        memcpy(out, &s, 4);
        return s;
    }
    memcpy(out, &h, 2);
    return dt == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void write_fp8(const struct codes *c, const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *y) {
    float s = put_scale(c->scale_dtype, largest(x, n) / 448, scales), inverse = s > 0 ? 1 / s : 0;
    for (int64_t i = 0; i < n; i++) {
        codes[i] = f32_to_f8_e4m3(x[i] * inverse);
        y[i] = f8_e4m3_to_f32(codes[i]) * s;
    }
}

static void write_int8(const struct codes *c, const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *y) {
    float s = put_scale(c->scale_dtype, largest(x, n) / 127, scales), inverse = s > 0 ? 1 / s : 0;
    for (int64_t i = 0; i < n; i++) {
        float q = nearest(clamped(x[i] * inverse, -127, 127));
        codes[i] = (uint8_t)(int8_t)q;
        y[i] = q * s;
    }
}

float int4_scale(const struct codes *c, const float *x, const float *importance, int64_t n, uint8_t *put) {
    float s = n <= SCALES_MOST ? scale_symmetric(x, importance, (int)n, -8, 7) : largest(x, n) / 7;
    return put_scale(c->scale_dtype, s, put);
}

/* Codes of -8 to 7, stored with 8 more, eight to a word. */
static void write_int4(const struct codes *c, const float *x, const float *w, int64_t n, uint8_t *codes,
                       uint8_t *scales, float *y) {
    int64_t group = c->group ? c->group : n, width = (int64_t)dtype_bytes(c->scale_dtype);
    memset(codes, 0, (size_t)codes_bytes(c, n));
    for (int64_t at = 0; at < n; at += group, scales += width) {
        float s = int4_scale(c, x + at, w ? w + at : NULL, MIN(group, n - at), scales);
        for (int64_t i = at; i < MIN(at + group, n); i++) {
            float q = s != 0 ? nearest(clamped(x[i] / s, -8, 7)) : 0;
            codes[i / 2] |= (uint8_t)((int)(q + 8) << i % 2 * 4);
            y[i] = q * s;
        }
    }
}

/* ---- E2M1 ---- */

static unsigned e2m1_of(float x) { // nearest; ties to the even code
    static const float bounds[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    unsigned code = 0;
    float size = fabsf(x);
    for (unsigned i = 0; i < ARRAY_LEN(bounds); i++)
        code += size > bounds[i] || (size == bounds[i] && i % 2 == 1);
    return code | (x < 0 && code ? 8 : 0);
}

static float fp4_error(const float *x, const float *w, int n, float s) {
    float error = 0, inverse = s > 0 ? 1 / s : 0;
    for (int i = 0; i < n; i++) {
        float off = x[i] - s * e2m1_to_f32(e2m1_of(x[i] * inverse));
        error += (w ? w[i] : 1) * off * off;
    }
    return error;
}

static void put_fp4(const float *x, int n, float s, uint8_t *codes, float *y) {
    float inverse = s > 0 ? 1 / s : 0;
    for (int i = 0; i < n; i++) {
        unsigned code = e2m1_of(x[i] * inverse);
        codes[i / 2] = (uint8_t)(i % 2 ? codes[i / 2] | code << 4 : code);
        y[i] = s * e2m1_to_f32(code);
    }
}

float nvfp4_tensor_scale(float most) { return most > 0 ? 448 * 6 / most : 1; }

/* The scale that makes the largest number 6, or one of the next codes of E4M3 that leaves less. */
static void write_nvfp4(const struct codes *c, const float *x, const float *w, int64_t n, uint8_t *codes,
                        uint8_t *scales, float *y) {
    for (int64_t at = 0; at < n; at += 16, scales++) {
        int first = f32_to_f8_e4m3(largest(x + at, 16) / 6 * c->tensor_scale);
        float best = INFINITY;
        for (int code = MAX(first - 3, 0); code <= MIN(first + 4, 0x7E); code++) {
            float error = fp4_error(x + at, w ? w + at : NULL, 16, f8_e4m3_to_f32((uint8_t)code) / c->tensor_scale);
            if (error < best)
                best = error, *scales = (uint8_t)code;
        }
        put_fp4(x + at, 16, f8_e4m3_to_f32(*scales) / c->tensor_scale, codes + at / 2, y + at);
    }
}

static void write_mxfp4(const float *x, const float *w, int64_t n, uint8_t *codes, uint8_t *scales, float *y) {
    for (int64_t at = 0; at < n; at += 32, scales++) {
        int exponent = 0;
        float best = INFINITY, most = largest(x + at, 32);
        frexpf(most, &exponent);
        *scales = 127;
        for (int e = exponent - 4; most > 0 && e <= exponent - 2; e++) {
            int stored = MAX(0, MIN(254, e + 127));
            float error = fp4_error(x + at, w ? w + at : NULL, 32, f8_e8m0_to_f32((uint8_t)stored));
            if (error < best)
                best = error, *scales = (uint8_t)stored;
        }
        put_fp4(x + at, 32, f8_e8m0_to_f32(*scales), codes + at / 2, y + at);
    }
}

void codes_write(const struct codes *c, const float *x, const float *importance, int64_t n, uint8_t *codes,
                 uint8_t *scales, float *y) {
    switch (c->format) {
    case CODES_FP8: write_fp8(c, x, n, codes, scales, y); break;
    case CODES_INT8: write_int8(c, x, n, codes, scales, y); break;
    case CODES_INT4: write_int4(c, x, importance, n, codes, scales, y); break;
    case CODES_NVFP4: write_nvfp4(c, x, importance, n, codes, scales, y); break;
    case CODES_MXFP4: write_mxfp4(x, importance, n, codes, scales, y); break;
    case N_CODE_FORMATS: break;
    }
}
