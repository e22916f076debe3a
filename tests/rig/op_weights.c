/* op_weights.c - see op_weights.h. */
#include "op_weights.h"

#include <math.h>

static const struct stored {
    const char *name;
    enum dtype dtype;
    int bits;
    const struct qformat *format;
    int block_rows, block_cols; // of scales; 0: all
    enum dtype scale;
} stored[N_STORED_FORMATS] = {
    [FORMAT_F32] = {"f32", DT_F32, 32, &qformat_plain, 0, 0, 0},
    [FORMAT_F16] = {"f16", DT_F16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16] = {"bf16", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_SPLIT] = {"bf16 split", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_INTERLEAVED] = {"bf16 interleaved", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_BF16_TURNED] = {"bf16 turned", DT_BF16, 16, &qformat_plain, 0, 0, 0},
    [FORMAT_F8_CHANNEL] = {"f8 channel", DT_F8_E4M3, 8, &qformat_scaled, 1, 0, DT_BF16},
    [FORMAT_F8_TENSOR] = {"f8 tensor", DT_F8_E4M3, 8, &qformat_scaled, 0, 0, DT_F32},
    [FORMAT_F8_BLOCK] = {"f8 block", DT_F8_E4M3, 8, &qformat_scaled, 32, 16, DT_F32},
    [FORMAT_I8_TENSOR] = {"i8 tensor", DT_I8, 8, &qformat_scaled, 0, 0, DT_F32},
    [FORMAT_I8_CHANNEL] = {"i8 channel", DT_I8, 8, &qformat_scaled, 1, 0, DT_F32},
    [FORMAT_MXFP4] = {"mxfp4", DT_U8, 4, &qformat_mxfp4, 1, 32, DT_F8_E8M0},
    [FORMAT_NVFP4] = {"nvfp4", DT_U8, 4, &qformat_nvfp4, 1, 16, DT_F8_E4M3},
    [FORMAT_INT4] = {"int4", DT_I32, 4, &qformat_int4, 1, 32, DT_F16},
    [FORMAT_INT8] = {"int8", DT_I32, 8, &qformat_int8, 1, 32, DT_F16},
    [FORMAT_Q4_0] = {"q4_0", DT_U8, 0, &block_formats[QFORMAT_Q4_0], 0, 0, 0},
    [FORMAT_Q8_0] = {"q8_0", DT_U8, 0, &block_formats[QFORMAT_Q8_0], 0, 0, 0},
    [FORMAT_Q4_K] = {"q4_k", DT_U8, 0, &block_formats[QFORMAT_Q4_K], 0, 0, 0},
    [FORMAT_Q6_K] = {"q6_k", DT_U8, 0, &block_formats[QFORMAT_Q6_K], 0, 0, 0},
    [FORMAT_Q4_K_AND_Q6_K] = {"q4_k and q6_k", DT_U8, 0, &block_formats[QFORMAT_Q4_K], 0, 0, 0},
};

const char *rig_format_name(enum rig_format format) { return stored[format].name; }

/* Sign, exponent and mantissa by hand. The rig makes no codes for infinity and NaN. */
static double decode(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
    int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    double fraction = ldexp((double)(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    double value = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

/* A random element of about the size of 1, its code at `at` (for 4 bits: in the nibble of column col). */
static double random_element(struct rig *rig, enum dtype dtype, int bits, unsigned char *at, int64_t col) {
    double x = rig_uniform(rig, -1, 1);
    uint32_t sign = (uint32_t)(rig_bits(rig) & 1);
    uint16_t code16;
    uint32_t code = 0;
    switch (dtype) {
    case DT_F32: {
        float f = (float)x;
        memcpy(at, &f, 4);
        return f;
    }
    case DT_F16:
        code16 = (uint16_t)(sign << 15 | (uint32_t)rig_between(rig, rig->o.quantization ? 5 << 10 : 0,
                                                               15 << 10)); // subnormals, but not for FP8
        memcpy(at, &code16, 2);
        return decode(code16, 5, 10, 15);
    case DT_BF16:
        code16 = (uint16_t)(sign << 15 | (uint32_t)rig_between(rig, 118 << 7, 127 << 7));
        memcpy(at, &code16, 2);
        return decode(code16, 8, 7, 127);
    case DT_F8_E4M3:
        *at = (unsigned char)(sign << 7 | (uint32_t)rig_between(rig, 0, 8 << 3));
        return decode(*at, 4, 3, 7);
    case DT_I8: *at = (unsigned char)rig_between(rig, 0, 255); return (double)(int8_t)*at / 128;
    default:
        if (bits == 8)
            return *at = (unsigned char)rig_between(rig, 0, 255);
        BUG_IF(bits != 4);
        code = (uint32_t)rig_between(rig, 0, 15);
        *at = (unsigned char)(col & 1 ? (*at & 15) | code << 4 : (*at & 0xF0) | code);
        return dtype == DT_I32 ? (double)code : decode(code, 2, 1, 1);
    }
}

static double random_scale(struct rig *rig, enum dtype dtype, unsigned char *at) {
    uint16_t code16;
    float f;
    switch (dtype) {
    case DT_F32:
        f = (float)rig_uniform(rig, 0.5, 2);
        memcpy(at, &f, 4);
        return f;
    case DT_BF16:
        code16 = (uint16_t)rig_between(rig, 126 << 7, 128 << 7);
        memcpy(at, &code16, 2);
        return decode(code16, 8, 7, 127);
    case DT_F16:
        code16 = (uint16_t)(rig_between(rig, 11 << 4, 13 << 4) << 6); // products with codes have ten bits
        memcpy(at, &code16, 2);
        return decode(code16, 5, 10, 15);
    case DT_F8_E8M0: *at = (unsigned char)rig_between(rig, 125, 128); return ldexp(1, *at - 127);
    default: *at = (unsigned char)rig_between(rig, 6 << 3, 8 << 3); return decode(*at, 4, 3, 7);
    }
}

/* Zero points of a row and group each, and how they are stored: eight rows to a word. */
static const struct qpacked *random_zeros(struct rig *rig, int64_t out, int64_t in, int64_t n_groups, double *zero) {
    uint32_t *words = arena_calloc(&rig->arena, (size_t)((out + 7) / 8 * n_groups), sizeof *words);
    struct qpacked *packed = arena_calloc(&rig->arena, 1, sizeof *packed);
    for (int64_t o = 0; o < out; o++)
        for (int64_t g = 0; g < n_groups; g++) {
            uint32_t z = (uint32_t)rig_between(rig, 6, 9);
            zero[o * n_groups + g] = z;
            words[o / 8 * n_groups + g] |= z << o % 8 * 4;
        }
    *packed = (struct qpacked){.order = PACKED_COLUMNS,
                               .bits = 4,
                               .stored_rows = out,
                               .stored_cols = in,
                               .n_groups = n_groups,
                               .has_zeros = true,
                               .zeros = words};
    return packed;
}

static const struct qpacked *words_of_bytes(struct rig *rig, int64_t out, int64_t in, int64_t n_groups, double *zero) {
    struct qpacked *packed = arena_calloc(&rig->arena, 1, sizeof *packed);
    for (int64_t i = 0; i < out * n_groups; i++)
        zero[i] = 128;
    *packed = (struct qpacked){
        .order = PACKED_COLUMNS, .bits = 8, .stored_rows = out, .stored_cols = in, .n_groups = n_groups};
    return packed;
}

/* Blocks of random bytes, with multipliers that make values of about the size of 1; want is what the CPU makes of
 * them. */
static struct weight_part random_blocks(struct rig *rig, const struct qformat *f, int64_t out, int64_t in,
                                        double *want) {
    static const struct { // where float16 multipliers are, and about how large
        enum qformat_id id;
        int at[2], exponent[2];
    } multipliers[] = {{QFORMAT_Q4_0, {0, 0}, {12, 12}},
                       {QFORMAT_Q8_0, {0, 0}, {8, 8}},
                       {QFORMAT_Q4_K, {0, 2}, {5, 8}},
                       {QFORMAT_Q6_K, {208, 208}, {3, 3}}};
    int64_t row_bytes = block_row_bytes(f, in);
    unsigned char *data = arena_alloc(&rig->arena, (size_t)(out * row_bytes));
    BUG_IF(in % f->block_cols != 0);
    for (int64_t i = 0; i < out * row_bytes; i++)
        data[i] = (unsigned char)rig_bits(rig);
    for (size_t m = 0; m < ARRAY_LEN(multipliers); m++)
        for (int64_t b = 0; multipliers[m].id == f->id && b < out * in / f->block_cols; b++)
            for (int k = 0; k < 2; k++) {
                uint16_t code = (uint16_t)(rig_between(rig, 0, 1) << 15 | rig_between(rig, 0, 1023) |
                                           (multipliers[m].exponent[k] + rig_between(rig, 0, 1)) << 10);
                memcpy(data + b * f->block_bytes + multipliers[m].at[k], &code, 2);
            }
    struct weight_part part = {
        .format = f, .dtype = DT_U8, .data = data, .n_rows = out, .row_stride = row_bytes, .col_stride = 1};
    float *row = arena_alloc(&rig->arena, (size_t)in * sizeof *row);
    for (int64_t o = 0; o < out; o++) {
        f->row_to_f32(&part, o, in, row);
        for (int64_t i = 0; i < in; i++)
            want[o * in + i] = row[i];
    }
    return part;
}

/* One stored tensor [out, in] as a part; want[o * in + i] gets its meaning. */
static struct weight_part random_part(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double *want) {
    const struct stored *s = &stored[format];
    if (format >= N_FORMATS)
        return random_blocks(rig, s->format, out, in, want);
    bool turned = format == FORMAT_BF16_TURNED;
    int64_t row_bytes = (in * s->bits + 7) / 8, element = MAX(s->bits / 8, 1);
    unsigned char *data = arena_alloc(&rig->arena, (size_t)(out * row_bytes));
    int64_t block_rows = s->block_rows ? s->block_rows : out, block_cols = s->block_cols ? s->block_cols : in;
    int64_t n_col_blocks = (in + block_cols - 1) / block_cols, n_row_blocks = (out + block_rows - 1) / block_rows;
    bool scaled = s->format != &qformat_plain;
    double *scale = rig_doubles(rig, n_row_blocks * n_col_blocks), tensor_scale = format == FORMAT_NVFP4 ? 0.75 : 1;
    size_t scale_bytes = scaled ? dtype_bytes(s->scale) : 0;
    unsigned char *scales = arena_alloc(&rig->arena, (size_t)(n_row_blocks * n_col_blocks) * scale_bytes + 1);
    for (int64_t i = 0; i < n_row_blocks * n_col_blocks; i++)
        scale[i] = scaled ? random_scale(rig, s->scale, scales + (size_t)i * scale_bytes) : 1;
    double *zero = rig_doubles(rig, n_row_blocks * n_col_blocks);
    const struct qpacked *packed = format == FORMAT_INT4   ? random_zeros(rig, out, in, n_col_blocks, zero)
                                   : format == FORMAT_INT8 ? words_of_bytes(rig, out, in, n_col_blocks, zero)
                                                           : NULL;
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            int64_t at = turned         ? (i * out + o) * element
                         : s->bits == 4 ? o * row_bytes + i / 2
                                        : o * row_bytes + i * element;
            double x = random_element(rig, s->dtype, s->bits, data + at, i);
            if (s->dtype == DT_I8)
                x *= 128; // the tensor's scale below is meant for the integer
            if (packed)
                x -= zero[o * n_col_blocks + i / block_cols];
            want[o * in + i] = x * scale[o / block_rows * n_col_blocks + i / block_cols] * tensor_scale;
        }
    struct weight_part part = {.format = s->format,
                               .dtype = s->dtype,
                               .data = data,
                               .n_rows = out,
                               .row_stride = turned         ? 1
                                             : s->bits == 4 ? row_bytes
                                                            : in,
                               .col_stride = turned ? out : 1,
                               .packed = packed};
    if (scaled)
        part.scale = (struct qscale){scales, s->scale, s->block_rows, s->block_cols, n_col_blocks, (float)tensor_scale};
    return part;
}

static void add_part(struct rig *rig, struct weight *w, enum rig_format format, int64_t n_rows, double *want) {
    w->parts[w->n_parts++] = random_part(rig, format, n_rows, w->in, want);
}

const struct weight *rig_weight(struct rig *rig, enum rig_format format, int64_t out, int64_t in, double **values) {
    double *want = rig_doubles(rig, out * in);
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    *w = (struct weight){.name = stored[format].name, .out = out, .in = in};
    w->parts = arena_calloc(&rig->arena, 3, sizeof *w->parts);
    if ((format == FORMAT_BF16_SPLIT || format == FORMAT_F8_TENSOR) && out >= 3) {
        int64_t a = out / 3, b = out / 2;
        add_part(rig, w, format, a, want);
        add_part(rig, w, format, b, want + a * in);
        add_part(rig, w, format, out - a - b, want + (a + b) * in);
    } else if (format == FORMAT_Q4_K_AND_Q6_K) {
        int64_t first = out / 32 * 16;
        add_part(rig, w, FORMAT_Q4_K, first, want);
        add_part(rig, w, FORMAT_Q6_K, out - first, want + first * in);
    } else if (format == FORMAT_BF16_INTERLEAVED && out % 2 == 0) {
        double *tensor = rig_doubles(rig, out * in);
        struct weight_part whole = random_part(rig, format, out, in, tensor);
        for (int k = 0; k < 2; k++) {
            struct weight_part *part = &w->parts[w->n_parts++];
            *part = whole;
            part->n_rows = out / 2;
            part->row_stride = 2 * in;
            part->data = (const uint16_t *)whole.data + k * in;
            for (int64_t o = 0; o < out / 2; o++)
                memcpy(want + (k * out / 2 + o) * in, tensor + (2 * o + k) * in, (size_t)in * sizeof *want);
        }
    } else {
        add_part(rig, w, format, out, want);
    }
    if (values)
        *values = want;
    return w;
}

const struct weight *rig_vector(struct rig *rig, int64_t n, double low, double high, double **values) {
    uint16_t *data = arena_calloc(&rig->arena, (size_t)n, sizeof *data);
    double *want = rig_doubles(rig, n);
    for (int64_t i = 0; i < n; i++) {
        data[i] = f32_to_bf16((float)rig_uniform(rig, low, high));
        want[i] = decode(data[i], 8, 7, 127);
    }
    struct weight *w = arena_alloc(&rig->arena, sizeof *w);
    *w = (struct weight){.name = "rig.vector", .out = n, .in = 1, .n_parts = 1};
    w->parts = arena_alloc(&rig->arena, sizeof *w->parts);
    *w->parts = (struct weight_part){
        .format = &qformat_plain, .dtype = DT_BF16, .data = data, .n_rows = n, .row_stride = 1, .col_stride = 1};
    if (values)
        *values = want;
    return w;
}
