/* formats.h - part of kernels_body.h: multiply_few by format, of weights as they are stored (few.h); others, which are
 * made ready first; and the table of formats. */

/* NAME, a function multiply_few of a dtype: by one for each number of rows of x (few_bf16_1 is few_bf16 of one), since
 * the compiler's time for a function grows faster than the function. */
#define FEW_BY(name, dt, scaled, n_x) \
    static NOT_INLINE void name##_##n_x(const struct few_rows *f) { few_direct(dt, scaled, n_x, f, name##_rest); }
#define MULTIPLY_FEW(name, dt, scaled)                                                                              \
    static NOT_INLINE void name##_rest(const struct few_rows *f, int64_t r, int64_t from, int64_t to) {             \
        for (; r < f->n_rows; r++)                                                                                  \
            for (int t = 0; t < f->n_x; t++)                                                                        \
                few_tile(dt, scaled, 1, 1, f->n_x, f, r, t, from, to);                                              \
    }                                                                                                               \
    FEW_BY(name, dt, scaled, 1)                                                                                     \
    FEW_BY(name, dt, scaled, 2)                                                                                     \
    FEW_BY(name, dt, scaled, 3)                                                                                     \
    FEW_BY(name, dt, scaled, 4)                                                                                     \
    FEW_BY(name, dt, scaled, 5)                                                                                     \
    FEW_BY(name, dt, scaled, 6)                                                                                     \
    FEW_BY(name, dt, scaled, 7)                                                                                     \
    FEW_BY(name, dt, scaled, 8)                                                                                     \
    static void name(const struct few_rows *f) {                                                                    \
        static void (*const by_rows[FEW_ROWS])(const struct few_rows *) = {name##_1, name##_2, name##_3, name##_4,  \
                                                                           name##_5, name##_6, name##_7, name##_8}; \
        BUG_IF((unsigned)(f->n_x - 1) >= FEW_ROWS);                                                                 \
        by_rows[f->n_x - 1](f);                                                                                     \
    }
MULTIPLY_FEW(few_bf16, DT_BF16, false)
MULTIPLY_FEW(few_f16, DT_F16, false)
MULTIPLY_FEW(few_f32, DT_F32, false)
MULTIPLY_FEW(few_f8, DT_F8_E4M3, false)
MULTIPLY_FEW(few_scaled_i8, DT_I8, true)
MULTIPLY_FEW(few_scaled_f8, DT_F8_E4M3, true)

static void multiply_few_plain(const struct few_rows *f) {
    switch (f->part->dtype) {
    case DT_BF16: few_bf16(f); break;
    case DT_F16: few_f16(f); break;
    case DT_F32: few_f32(f); break;
    default: few_f8(f);
    }
}

static void multiply_few_scaled(const struct few_rows *f) {
    if (f->part->dtype == DT_I8)
        few_scaled_i8(f);
    else
        few_scaled_f8(f);
}

static void multiply_few(const struct few_rows *f) {
    BUG_IF(!is_direct(f->part));
    format_of(f->part)->multiply_few(f);
}

/* ---- weights made ready: converted once for many rows of activations ---- */

static ALWAYS_INLINE void ready_row(const enum dtype dt, const bool scaled, const struct weight_part *part, int64_t row,
                                    int64_t n, float *out) {
    const int size = element_bytes(dt);
    const unsigned char *w = (const unsigned char *)part->data + row * part->row_stride * size;
    const int64_t block = scaled && part->scale.block_cols ? part->scale.block_cols : n;
    vf scale = vf_set(1);
    for (int64_t c = 0; c < n; c += 2 * LANES) {
        unsigned char last[2 * LANES * sizeof(float)] = {0};
        vf first, second;
        if (scaled && c % block == 0)
            scale = vf_set(scale_at(&part->scale, part->first_row + row, c / block) * missing_of_weights(dt));
        if (n - c < 2 * LANES)
            memcpy(last, w + c * size, (size_t)((n - c) * size));
        load_step(dt, scaled, n - c < 2 * LANES ? last : w + c * size, scale, &first, &second);
        vf_store(out + c, first);
        vf_store(out + c + LANES, second);
    }
    if (misses_nan(dt) && has_nan(w, n))
        out[0] = NAN; // as good as any other place
    int64_t end = (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    memset(out + end, 0, (size_t)(arranged_cols(n) - end) * sizeof *out);
}

static void ready_plain(const struct weight_part *part, int64_t row, int64_t n, float *out) {
    switch (part->dtype) {
    case DT_BF16: ready_row(DT_BF16, false, part, row, n, out); break;
    case DT_F16: ready_row(DT_F16, false, part, row, n, out); break;
    case DT_F32: ready_row(DT_F32, false, part, row, n, out); break;
    default: ready_row(DT_F8_E4M3, false, part, row, n, out);
    }
}

static void ready_scaled(const struct weight_part *part, int64_t row, int64_t n, float *out) {
    if (part->dtype == DT_I8)
        ready_row(DT_I8, true, part, row, n, out);
    else
        ready_row(DT_F8_E4M3, true, part, row, n, out);
}

static struct weight_part ready(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n, float *out) {
    const struct format_kernels *f = format_of(part);
    struct weight_part floats = {.format = &qformat_plain,
                                 .dtype = DT_F32,
                                 .data = out,
                                 .n_rows = n_rows,
                                 .row_stride = arranged_cols(n),
                                 .col_stride = 1};
    bool direct = is_direct(part);
    for (int64_t r = row; r < row + n_rows; r++, out += arranged_cols(n)) {
        if (direct) {
            f->ready(part, r, n, out);
            continue;
        }
        f->convert(part, r, 0, n, out);
        memset(out + n, 0, (size_t)(arranged_cols(n) - n) * sizeof *out);
    }
    return floats;
}

/* ---- formats ---- */

static bool takes_plain(const struct weight_part *part) { return dtype_is_float(part->dtype); }
static bool takes_scaled(const struct weight_part *part) { return dtype_is_float(part->dtype) || part->dtype == DT_I8; }
static bool takes_packed(const struct weight_part *part) { return part->packed != NULL; }
static bool takes_codes(const struct weight_part *part) { return part->codes != NULL; }
static bool takes_blocks(const struct weight_part *part) { return part->dtype == DT_U8 && part->col_stride == 1; }
static bool takes_fp4(const struct weight_part *part) { return part->dtype == DT_U8 && part->col_stride == 1; }

static const struct format_kernels formats[] = {
    {&qformat_plain, takes_plain, convert_plain, is_direct_plain, multiply_few_plain, ready_plain},
    {&qformat_scaled, takes_scaled, convert_scaled, is_direct_scaled, multiply_few_scaled, ready_scaled},
    {&qformat_mxfp4, takes_fp4, convert_fp4, NULL, NULL, NULL},
    {&qformat_nvfp4, takes_fp4, convert_fp4, NULL, NULL, NULL},
    {&qformat_int2, takes_packed, packed_to_f32, NULL, NULL, NULL},
    {&qformat_int4, takes_packed, packed_to_f32, NULL, NULL, NULL},
    {&qformat_int8, takes_packed, packed_to_f32, NULL, NULL, NULL},
    {&qformat_codes4, takes_codes, codes_to_f32, NULL, NULL, NULL},
#define X(id, name, cols, bytes) {&block_formats[QFORMAT_##id], takes_blocks, convert_blocks, NULL, NULL, NULL},
    BLOCK_FORMATS(X)
#undef X
        {0},
};

static const struct format_kernels *format_of(const struct weight_part *part) {
    const struct format_kernels *f = formats;
    while (f->format != part->format)
        BUG_IF(!(f++)->format); // a format that was not refused when it was placed
    return f;
}
