/* qformat_blocks.c - GGUF's block types: a row is blocks of 32 or 256 columns, each with scales of its own.
 *
 *   q4_0 q5_0 q8_0   d, q             d q, q around 0          q4_1 q5_1   d, m, q        d q + m
 *   iq4_nl           d, codes         d T[code]                mxfp4       e, codes       2^(e-128) E[code]
 *   q2_k q4_k q5_k   d, dmin, scales and mins of sub-blocks    d s q - dmin m
 *   q3_k q6_k        d, signed scales                          d s q
 *   iq4_xs           d, signed scales, codes                   d s T[code]
 *   tq1_0 tq2_0      d, digits -1, 0, 1                        d q
 *   iq1 iq2 iq3      qformat_iq.c
 *
 * d, m and dmin are float16, little-endian. In blocks of 32 columns byte j of the codes holds column j (low bits) and
 * column 16 + j (high bits). Layouts byte by byte: docs/formats.md. Products and sums are single floats, in the order
 * of the formulas, so that every implementation gives the same bits. */
#include "core/formats/qformat_internal.h"

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The code of column c of 32, in 16 bytes of low halves before high ones. */
static int nibble(const uint8_t *codes, int c) { return c < 16 ? codes[c] & 15 : codes[c - 16] >> 4; }

/* ---- blocks of 32 ---- */

static void q4_0_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    for (int c = 0; c < 32; c++)
        out[c] = d * (float)(nibble(b + 2, c) - 8);
}

static void q4_1_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b), m = f16_at(b + 2);
    for (int c = 0; c < 32; c++) {
        float product = d * (float)nibble(b + 4, c);
        out[c] = product + m;
    }
}

static void q5_0_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    uint32_t high = u32_at(b + 2);
    for (int c = 0; c < 32; c++)
        out[c] = d * (float)((nibble(b + 6, c) | (int)(high >> c & 1) << 4) - 16);
}

static void q5_1_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b), m = f16_at(b + 2);
    uint32_t high = u32_at(b + 4);
    for (int c = 0; c < 32; c++) {
        float product = d * (float)(nibble(b + 8, c) | (int)(high >> c & 1) << 4);
        out[c] = product + m;
    }
}

static void q8_0_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    for (int c = 0; c < 32; c++)
        out[c] = d * (float)(int8_t)b[2 + c];
}

static void iq4_nl_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    for (int c = 0; c < 32; c++)
        out[c] = d * (float)iq4_values[nibble(b + 2, c)];
}

/* e2m1 times 2^(e - 127), with no code for NaN and no negative zero. */
static void mxfp4_to_f32(const uint8_t *b, float *out) {
    float d = f8_e8m0_to_f32(b[0] == 255 ? 254 : b[0]) * (b[0] == 255 ? 1 : 0.5f);
    for (int c = 0; c < 32; c++) {
        int code = nibble(b + 1, c);
        out[c] = code == 8 ? 0 : d * (e2m1_to_f32((unsigned)code) * 2);
    }
}

/* ---- blocks of 256 ---- */

void k_scale_and_min(const uint8_t s[static 12], int b, int *scale, int *min) {
    if (b < 4) {
        *scale = s[b] & 63;
        *min = s[b + 4] & 63;
    } else {
        *scale = (s[b + 4] & 15) | s[b - 4] >> 6 << 4;
        *min = s[b + 4] >> 4 | s[b] >> 6 << 4;
    }
}

static void q2_k_to_f32(const uint8_t *b, float *out) {
    const uint8_t *scales = b, *codes = b + 16;
    float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int c = 0; c < 256; c++) {
        uint8_t s = scales[c / 16];
        float scale = d * (float)(s & 15), min = dmin * (float)(s >> 4);
        float product = scale * (float)(codes[c / 128 * 32 + c % 32] >> c % 128 / 32 * 2 & 3);
        out[c] = product - min;
    }
}

static void q3_k_to_f32(const uint8_t *b, float *out) {
    const uint8_t *high = b, *codes = b + 32, *s = b + 96;
    float d = f16_at(b + 108);
    for (int c = 0; c < 256; c++) {
        int k = c / 16, low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
        int scale = (low | (s[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32;
        int q = (codes[c / 128 * 32 + c % 32] >> c % 128 / 32 * 2 & 3) - (high[c % 32] >> c / 32 & 1 ? 0 : 4);
        float step = d * (float)scale;
        out[c] = step * (float)q;
    }
}

/* q4_k, and q5_k where there are high bits. */
static void q45_k_to_f32(const uint8_t *b, const uint8_t *high, const uint8_t *codes, float *out) {
    float d = f16_at(b), dmin = f16_at(b + 2);
    for (int sub = 0; sub < 8; sub++) {
        int s, m;
        k_scale_and_min(b + 4, sub, &s, &m);
        float scale = d * (float)s, min = dmin * (float)m;
        for (int t = 0; t < 32; t++) {
            int q = codes[sub / 2 * 32 + t] >> sub % 2 * 4 & 15;
            float product = scale * (float)(high ? q | (high[t] >> sub & 1) << 4 : q);
            out[sub * 32 + t] = product - min;
        }
    }
}

static void q4_k_to_f32(const uint8_t *b, float *out) { q45_k_to_f32(b, NULL, b + 16, out); }
static void q5_k_to_f32(const uint8_t *b, float *out) { q45_k_to_f32(b, b + 16, b + 48, out); }

static void q6_k_to_f32(const uint8_t *b, float *out) {
    const uint8_t *low = b, *high = b + 128, *scales = b + 192;
    float d = f16_at(b + 208);
    for (int c = 0; c < 256; c++) {
        int half = c / 128, quarter = c % 128 / 32, t = c % 32;
        int q = (low[half * 64 + quarter % 2 * 32 + t] >> quarter / 2 * 4 & 15) |
                (high[half * 32 + t] >> quarter * 2 & 3) << 4;
        float step = d * (float)(int8_t)scales[c / 16];
        out[c] = step * (float)(q - 32);
    }
}

static void iq4_xs_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b);
    int high = b[2] | b[3] << 8;
    for (int sub = 0; sub < 8; sub++) {
        int s = (b[4 + sub / 2] >> sub % 2 * 4 & 15) | (high >> sub * 2 & 3) << 4;
        float step = d * (float)(s - 32);
        for (int c = 0; c < 32; c++)
            out[sub * 32 + c] = step * (float)iq4_values[nibble(b + 8 + sub * 16, c)];
    }
}

/* A byte is a fraction of 256 whose ternary digits are the columns; times 3 a digit comes out. */
static int ternary(uint8_t byte, int digit) {
    static const uint8_t powers[] = {1, 3, 9, 27, 81};
    return ((uint8_t)(byte * powers[digit]) * 3 >> 8) - 1;
}

static void tq1_0_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b + 52);
    for (int c = 0; c < 160; c++)
        out[c] = d * (float)ternary(b[c % 32], c / 32);
    for (int c = 0; c < 80; c++)
        out[160 + c] = d * (float)ternary(b[32 + c % 16], c / 16);
    for (int c = 0; c < 16; c++)
        out[240 + c] = d * (float)ternary(b[48 + c % 4], c / 4);
}

static void tq2_0_to_f32(const uint8_t *b, float *out) {
    float d = f16_at(b + 64);
    for (int c = 0; c < 256; c++)
        out[c] = d * (float)((b[c / 128 * 32 + c % 32] >> c % 128 / 32 * 2 & 3) - 1);
}

/* ---- rows of blocks ---- */

static void row_to_f32(const struct weight_part *p, int64_t row, int64_t n_cols, float *out) {
    enum { MOST_COLS = 256 };
    const struct qformat *f = p->format;
    const uint8_t *block = (const uint8_t *)p->data + row * p->row_stride;
    for (; n_cols >= f->block_cols; n_cols -= f->block_cols, out += f->block_cols, block += f->block_bytes)
        f->block_to_f32(block, out);
    if (n_cols > 0) {
        float whole[MOST_COLS];
        f->block_to_f32(block, whole);
        memcpy(out, whole, (size_t)n_cols * sizeof *out);
    }
}

const struct qformat block_formats[N_QFORMATS] = {
#define X(id_, name_, cols, bytes)               \
    [QFORMAT_##id_] = {.id = QFORMAT_##id_,      \
                       .name = #name_,           \
                       .row_to_f32 = row_to_f32, \
                       .block_cols = cols,       \
                       .block_bytes = bytes,     \
                       .block_to_f32 = name_##_to_f32},
    BLOCK_FORMATS(X)
#undef X
};

const char *storage_name(int storage) {
    return storage < N_DTYPES ? dtype_name((enum dtype)storage) : block_formats[storage - N_DTYPES].name;
}
