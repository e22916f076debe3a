/* elements.h - part of kernels_body.h: weights as floats, whatever they are stored as. */

/* 2 * LANES elements from p: in order, but the even and the odd ones of bf16, which shift and mask alone separate, and
 * of e4m3 where a set makes bf16 of it, times 2^-120; activations are arranged to match. */
static ALWAYS_INLINE void load_pair(const enum dtype dt, const unsigned char *p, vf *first, vf *second) {
    switch (dt) {
    case DT_BF16:
        *first = vf_bf16_even((const uint16_t *)(const void *)p);
        *second = vf_bf16_odd((const uint16_t *)(const void *)p);
        return;
    case DT_F16:
        *first = vf_load_f16((const uint16_t *)(const void *)p);
        *second = vf_load_f16((const uint16_t *)(const void *)p + LANES);
        return;
    case DT_F32:
        *first = vf_load((const float *)(const void *)p);
        *second = vf_load((const float *)(const void *)p + LANES);
        return;
    case DT_I8:
        *first = vf_load_i8((const int8_t *)p);
        *second = vf_load_i8((const int8_t *)p + LANES);
        return;
    default: // DT_F8_E4M3
#ifdef F8_APART
        vf_load_f8_e4m3_apart(p, first, second);
#else
        *first = vf_load_f8_e4m3(p);
        *second = vf_load_f8_e4m3(p + LANES);
#endif
    }
}

/* Whether these are the even columns of a step, then the odd ones; or they are in order. */
static ALWAYS_INLINE bool comes_apart(const enum dtype dt) {
#ifdef F8_APART
    if (dt == DT_F8_E4M3)
        return true;
#endif
    return dt == DT_BF16;
}

/* What load_pair lacks of e4m3: of 2^120 weights take so much, as a part of their scale if they have one, and
 * activations the rest. Then scales are finite below 2^28, activations below 2^108, and no product is denormal. */
static ALWAYS_INLINE float missing_of_weights(const enum dtype dt) {
    return dt == DT_F8_E4M3 && comes_apart(dt) ? 0x1p100f : 1;
}
#define MISSING_OF_X 0x1p20f

/* And NaN, which is looked for apart. */
static ALWAYS_INLINE bool misses_nan(const enum dtype dt) { return missing_of_weights(dt) != 1; }
#ifndef F8_APART
typedef char f8_largest;
static f8_largest f8_none(void) { return 0; }
static f8_largest f8_more(f8_largest seen, const unsigned char *p) { return (void)p, seen; }
static bool f8_has_nan(f8_largest seen) { return seen; }
#endif
static NOT_INLINE bool has_nan(const unsigned char *p, int64_t n) {
    f8_largest seen = f8_none();
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        seen = f8_more(seen, p + i);
    for (; i < n; i++)
        if ((p[i] & 0x7F) == 0x7F)
            return true;
    return f8_has_nan(seen);
}

/* dtype_bytes, known to the compiler. */
static ALWAYS_INLINE int element_bytes(const enum dtype dt) {
    return dt == DT_F32 ? 4 : dt == DT_BF16 || dt == DT_F16 ? 2 : 1;
}

static ALWAYS_INLINE vf load_in_order(const enum dtype dt, const unsigned char *p) {
    switch (dt) {
    case DT_BF16: return vf_load_bf16((const uint16_t *)(const void *)p);
    case DT_F16: return vf_load_f16((const uint16_t *)(const void *)p);
    case DT_I8: return vf_load_i8((const int8_t *)p);
    default: return vf_load_f8_e4m3(p);
    }
}

static ALWAYS_INLINE void convert_elements(const enum dtype dt, const unsigned char *p, int64_t n, float *out) {
    const int size = element_bytes(dt);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, load_in_order(dt, p + i * size));
    dtype_to_f32(dt, p + i * size, 1, n - i, out + i);
}

/* The number of the first scale of a stored row, and a scale by its number. */
static int64_t scale_row(const struct qscale *s, int64_t stored_row) {
    return s->block_rows ? stored_row / s->block_rows * s->stride : 0;
}
static float scale_of(const struct qscale *s, int64_t at) {
    float f;
    if (s->dtype == DT_F32) // what checkpoints have most
        memcpy(&f, (const unsigned char *)s->data + at * 4, sizeof f);
    else
        dtype_to_f32(s->dtype, (const unsigned char *)s->data + at * (int64_t)dtype_bytes(s->dtype), 1, 1, &f);
    return f;
}
static float scale_at(const struct qscale *s, int64_t stored_row, int64_t block_col) {
    return scale_of(s, scale_row(s, stored_row) + block_col);
}

static void convert_plain(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    const unsigned char *p =
        (const unsigned char *)part->data + (row * part->row_stride + col) * (int64_t)dtype_bytes(part->dtype);
    switch (part->dtype) {
    case DT_BF16: convert_elements(DT_BF16, p, n, out); break;
    case DT_F16: convert_elements(DT_F16, p, n, out); break;
    case DT_I8: convert_elements(DT_I8, p, n, out); break;
    case DT_F8_E4M3: convert_elements(DT_F8_E4M3, p, n, out); break;
    case DT_F32: memcpy(out, p, (size_t)n * sizeof *out); break;
    default: dtype_to_f32(part->dtype, p, 1, n, out);
    }
}

static void convert_scaled(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    const struct qscale *s = &part->scale;
    convert_plain(part, row, col, n, out);
    int64_t width = s->block_cols ? s->block_cols : col + n, end;
    for (int64_t c = col; c < col + n; c = end) {
        end = MIN((c / width + 1) * width, col + n);
        scale(out + (c - col), scale_at(s, part->first_row + row, c / width), end - c);
    }
}

/* Scales of n blocks of columns from block_col on. */
static void scales_at(const struct qscale *s, int64_t stored_row, int64_t block_col, int64_t n, float *out) {
    int64_t at = scale_row(s, stored_row) + block_col;
    const unsigned char *p = (const unsigned char *)s->data + at * (int64_t)dtype_bytes(s->dtype);
    if (s->dtype == DT_F8_E4M3)
        convert_elements(DT_F8_E4M3, p, n, out);
    else
        dtype_to_f32(s->dtype, p, 1, n, out);
}

/* n columns of a block from p on, times its scale. */
static ALWAYS_INLINE void convert_fp4_block(const unsigned char *p, float scale, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, vf_mul(vf_load_e2m1(p + i / 2), vf_set(scale)));
    for (; i < n; i++)
        out[i] = e2m1_to_f32(i & 1 ? p[i / 2] >> 4 : p[i / 2] & 15) * scale;
}

static void convert_fp4(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    enum { SCALES = 64 }; // that are made floats at a time
    const struct qscale *s = &part->scale;
    const unsigned char *p = (const unsigned char *)part->data + row * part->row_stride;
    const int64_t width = s->block_cols, behind = col + n;
    for (int64_t c = col, b = col / width; c < behind; b += SCALES) {
        float scales[SCALES];
        scales_at(s, part->first_row + row, b, MIN(SCALES, (behind + width - 1) / width - b), scales);
        for (int i = 0; i < SCALES && c < behind; i++) {
            int64_t end = MIN((b + i + 1) * width, behind);
            convert_fp4_block(p + c / 2, scales[i] * s->tensor_scale, end - c, out + (c - col));
            c = end;
        }
    }
}

/* Rows of blocks, by the reference of their format. */
static void convert_blocks(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    enum { MOST_COLS = 256 };
    const struct qformat *f = part->format;
    const unsigned char *blocks = (const unsigned char *)part->data + row * part->row_stride;
    for (int64_t c = col, end; c < col + n; c = end) {
        float values[MOST_COLS];
        int64_t b = c / f->block_cols;
        end = MIN((b + 1) * f->block_cols, col + n);
        f->block_to_f32(blocks + b * f->block_bytes, values);
        memcpy(out + (c - col), values + (c - b * f->block_cols), (size_t)(end - c) * sizeof *out);
    }
}

static const struct format_kernels *format_of(const struct weight_part *part);

static void convert(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    format_of(part)->convert(part, row, col, n, out);
}
