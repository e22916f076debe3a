/* qformat_iq.c - GGUF's block types of 1 to 3 bits whose codes are points of a grid: 8 columns (IQ3: 4) at once.
 *
 *   iq2_xxs iq3_xxs   d; codes; of 32 columns a u32 with 4 times 7 signs and a scale of 4 bits
 *   iq2_xs            d; u16 codes of 9 bits with 7 signs; scales of 4 bits, of 16 columns
 *   iq2_s iq3_s       d; codes' low bytes; signs; high bits; scales of 4 bits, of 16 and 32 columns
 *   iq1_s iq1_m       codes of 11 bits around -1/8 or 1/8; scales of 3 bits, of 32 and 16 columns; iq1_m's d lies in
 *                     the high bits of its scales
 *
 * Seven signs say eight: the number of minus signs is even. Layouts byte by byte: docs/formats.md. */
#include "core/formats/qformat_internal.h"

#include "base/status.h"

#include "core/formats/qformat_grids.inc"

static const uint8_t levels_2[] = {0x08, 0x19, 0x2b};
static const uint8_t levels_3_xxs[] = {0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e};
static const uint8_t levels_3_s[] = {0x01, 0x03, 0x05, 0x07, 0x09, 0x0b, 0x0d, 0x0f};

struct iq_points iq_points_of(enum qformat_id id) {
    switch (id) {
    case QFORMAT_IQ1_S:
    case QFORMAT_IQ1_M: return (struct iq_points){iq1_grid, ARRAY_LEN(iq1_grid), 2, NULL};
    case QFORMAT_IQ2_XXS: return (struct iq_points){iq2_xxs_grid, ARRAY_LEN(iq2_xxs_grid), 2, levels_2};
    case QFORMAT_IQ2_XS: return (struct iq_points){iq2_xs_grid, ARRAY_LEN(iq2_xs_grid), 2, levels_2};
    case QFORMAT_IQ2_S: return (struct iq_points){iq2_s_grid, ARRAY_LEN(iq2_s_grid), 2, levels_2};
    case QFORMAT_IQ3_XXS: return (struct iq_points){iq3_xxs_grid, ARRAY_LEN(iq3_xxs_grid), 3, levels_3_xxs};
    case QFORMAT_IQ3_S: return (struct iq_points){iq3_s_grid, ARRAY_LEN(iq3_s_grid), 3, levels_3_s};
    default: return (struct iq_points){NULL, 0, 0, NULL};
    }
}

static unsigned u16_at(const uint8_t *p) { return p[0] | (unsigned)p[1] << 8; }

static unsigned eight_signs(unsigned seven) { return seven | (unsigned)__builtin_parity(seven) << 7; }

/* A point of IQ2 as 8 columns: step times a level, minus where the sign's bit is set. */
static void put_8(unsigned point, float step, unsigned signs, float *out) {
    for (int i = 0; i < 8; i++) {
        float product = step * (float)levels_2[point >> 2 * i & 3];
        out[i] = product * (signs >> i & 1 ? -1.0f : 1.0f);
    }
}

/* Two points of IQ3. */
static void put_4_4(unsigned first, unsigned second, const uint8_t *levels, float step, unsigned signs, float *out) {
    for (int i = 0; i < 8; i++) {
        float product = step * (float)levels[(i < 4 ? first : second) >> 3 * (i % 4) & 7];
        out[i] = product * (signs >> i & 1 ? -1.0f : 1.0f);
    }
}

/* A point of IQ1 with what is added to each column. */
static void put_around(unsigned point, float step, float delta, float *out) {
    for (int i = 0; i < 8; i++)
        out[i] = step * ((float)((int)(point >> 2 * i & 3) - 1) + delta);
}

void iq2_xxs_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *codes = b + 2 + 8 * sub;
        uint32_t rest = u32_at(codes + 4);
        float half = 0.5f + (float)(rest >> 28), step = d * half;
        step *= 0.25f;
        for (int i = 0; i < 4; i++)
            put_8(iq2_xxs_grid[codes[i]], step, eight_signs(rest >> 7 * i & 127), out + 32 * sub + 8 * i);
    }
}

/* d (1/2 + scale) / 4, of the n-th 16 columns. */
static float iq2_step(float d, const uint8_t *scales, int n) {
    float half = 0.5f + (float)(scales[n / 2] >> n % 2 * 4 & 15), step = d * half;
    return step * 0.25f;
}

void iq2_xs_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) {
        unsigned code = u16_at(b + 2 + 2 * i);
        put_8(iq2_xs_grid[code & 511], iq2_step(d, b + 66, i / 2), eight_signs(code >> 9), out + 8 * i);
    }
}

void iq2_s_to_f32(const uint8_t *b, float *out) {
    const uint8_t *low = b + 2, *signs = b + 34, *high = b + 66;
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) {
        unsigned code = low[i] | (high[i / 4] >> i % 4 * 2 & 3u) << 8;
        put_8(iq2_s_grid[code], iq2_step(d, b + 74, i / 2), signs[i], out + 8 * i);
    }
}

void iq3_xxs_to_f32(const uint8_t *b, float *out) {
    const uint8_t *codes = b + 2;
    float d = f16_at(b);
    for (int sub = 0; sub < 8; sub++) {
        uint32_t rest = u32_at(b + 66 + 4 * sub);
        float half = 0.5f + (float)(rest >> 28), step = d * half;
        step *= 0.5f;
        for (int i = 0; i < 4; i++, codes += 2)
            put_4_4(iq3_xxs_grid[codes[0]], iq3_xxs_grid[codes[1]], levels_3_xxs, step,
                    eight_signs(rest >> 7 * i & 127), out + 32 * sub + 8 * i);
    }
}

void iq3_s_to_f32(const uint8_t *b, float *out) {
    const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) {
        float step = d * (float)(1 + 2 * (scales[i / 8] >> i / 4 % 2 * 4 & 15));
        unsigned first = low[2 * i] | (high[i / 4] >> i % 4 * 2 & 1u) << 8;
        unsigned second = low[2 * i + 1] | (high[i / 4] >> (i % 4 * 2 + 1) & 1u) << 8;
        put_4_4(iq3_s_grid[first], iq3_s_grid[second], levels_3_s, step, signs[i], out + 8 * i);
    }
}

void iq1_s_to_f32(const uint8_t *b, float *out) {
    const uint8_t *low = b + 2;
    float d = f16_at(b);
    for (int i = 0; i < 32; i++) {
        unsigned rest = u16_at(b + 34 + 2 * (i / 4)), code = low[i] | (rest >> 3 * (i % 4) & 7) << 8;
        put_around(iq1_grid[code], d * (float)(2 * (rest >> 12 & 7) + 1), rest >> 15 ? -0.125f : 0.125f, out + 8 * i);
    }
}

void iq1_m_to_f32(const uint8_t *b, float *out) {
    const uint8_t *low = b, *high = b + 32, *scales = b + 48;
    unsigned bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= u16_at(scales + 2 * i) >> 12 << 4 * i;
    float d = f16_to_f32((uint16_t)bits);
    for (int i = 0; i < 32; i++) {
        unsigned rest = high[i / 2] >> i % 2 * 4 & 15u, code = low[i] | (rest & 7) << 8;
        unsigned scale = u16_at(scales + 2 * (i / 8)) >> 3 * (i / 2 % 4) & 7;
        put_around(iq1_grid[code], d * (float)(2 * scale + 1), rest & 8 ? -0.125f : 0.125f, out + 8 * i);
    }
}
