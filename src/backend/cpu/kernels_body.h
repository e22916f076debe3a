/* kernels_body.h - the kernels of kernels.h, over the vector vocabulary of a simd_*.h that is included before.
 * A kernels_SET.c includes its simd_SET.h, defines KERNELS as the table's name, and includes this. */
#include "backend/cpu/kernels.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Constant trip counts are unrolled whole, so that small arrays of vectors live in registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* The vector at p, of which `left` elements exist: all of it, or what is left with zeros behind. */
static ALWAYS_INLINE vf vf_some(const float *p, int64_t left) { return left >= LANES ? vf_load(p) : vf_load_n(p, left); }
static ALWAYS_INLINE void vf_put(float *p, vf v, int64_t left) {
    if (left >= LANES)
        vf_store(p, v);
    else
        vf_store_n(p, v, left);
}

/* ---- rows ---- */

static float dot(const float *a, const float *b, int64_t n) {
    vf sum[2] = {vf_set(0), vf_set(0)};
    for (int64_t i = 0; i < n; i += 2 * LANES) {
        sum[0] = vf_fma(vf_some(a + i, n - i), vf_some(b + i, n - i), sum[0]);
        if (n - i > LANES)
            sum[1] = vf_fma(vf_some(a + i + LANES, n - i - LANES), vf_some(b + i + LANES, n - i - LANES), sum[1]);
    }
    return vf_sum(vf_add(sum[0], sum[1]));
}

static void add_scaled(float *y, float factor, const float *x, int64_t n) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(f, vf_some(x + i, n - i), vf_some(y + i, n - i)), n - i);
}

static void multiply_add(float *y, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(vf_some(a + i, n - i), vf_some(b + i, n - i), vf_some(y + i, n - i)), n - i);
}

static void blend(float *y, float keep, float factor, const float *x, int64_t n) {
    vf k = vf_set(keep), f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(f, vf_some(x + i, n - i), vf_mul(k, vf_some(y + i, n - i))), n - i);
}

static void scale(float *y, float factor, int64_t n) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_mul(f, vf_some(y + i, n - i)), n - i);
}

static float largest(const float *x, int64_t n) {
    vf most = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        most = vf_max(vf_load(x + i), most);
    float max = vf_largest(most);
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 7 for e^r (coefficients of Cephes' expf,
 * error about one unit in the last place). 0 below -87.3, where e^x is no normal float; e^88 above 88. */
static ALWAYS_INLINE vf vf_exp(vf x) {
    const vf low = vf_set(-87.33654f);
    vf y = vf_min(vf_set(88.0f), vf_max(low, x));
    vf n = vf_round(vf_mul(y, vf_set(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), y);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_add(vf_fma(vf_mul(r, r), p, r), vf_set(1));
    return vf_zero_where_less(vf_ldexp(p, n), x, low);
}

static ALWAYS_INLINE vf vf_sigmoid(vf x) { return vf_div(vf_set(1), vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), x)))); }

static float exp_sum(float *x, float max, int64_t n) {
    vf sum = vf_set(0), m = vf_set(max);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf p = vf_exp(vf_sub(vf_load(x + i), m));
        vf_store(x + i, p);
        sum = vf_add(sum, p);
    }
    float total = vf_sum(sum);
    if (i < n) {
        vf_store_n(x + i, vf_exp(vf_sub(vf_load_n(x + i, n - i), m)), n - i);
        for (; i < n; i++)
            total += x[i];
    }
    return total;
}

/* tanh(u) = 2 sigmoid(2u) - 1 */
static void softcap(float *x, float cap, int64_t n) {
    vf two_cap = vf_set(2 * cap), two_over_cap = vf_set(2 / cap);
    for (int64_t i = 0; i < n; i += LANES) {
        vf s = vf_sigmoid(vf_mul(vf_some(x + i, n - i), two_over_cap));
        vf_put(x + i, vf_fma(two_cap, s, vf_set(-cap)), n - i);
    }
}

/* gelu_tanh(g) = g/2 (1 + tanh z) = g sigmoid(2z), z = sqrt(2/pi) (g + 0.044715 g^3) */
static ALWAYS_INLINE vf vf_activate(const enum activation act, vf g, vf u, float limit) {
    switch (act) {
    case ACT_SILU: return vf_mul(vf_mul(g, vf_sigmoid(g)), u);
    case ACT_SIGMOID: return vf_mul(vf_sigmoid(g), u);
    case ACT_GELU_TANH: {
        vf z = vf_mul(vf_mul(g, vf_set(2 * 0.7978845608028654f)), vf_fma(vf_mul(g, g), vf_set(0.044715f), vf_set(1)));
        return vf_mul(vf_mul(g, vf_sigmoid(z)), u);
    }
    case ACT_SWIGLU_CLAMPED: {
        vf gate = vf_min(vf_set(limit), g), up = vf_max(vf_set(-limit), vf_min(vf_set(limit), u));
        return vf_mul(vf_mul(vf_add(up, vf_set(1)), gate), vf_sigmoid(vf_mul(gate, vf_set(1.702f))));
    }
    case ACT_GELU: break;
    }
    bug(__FILE__, __LINE__, "an activation without a vector form");
}

static ALWAYS_INLINE void activate_row(const enum activation act, float limit, const float *gate, const float *up, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_activate(act, vf_some(gate + i, n - i), vf_some(up + i, n - i), limit), n - i);
}

static void activate_rows(struct act_args act, const float *gate, const float *up, int64_t n, float *y) {
    switch (act.act) {
    case ACT_SILU: activate_row(ACT_SILU, 0, gate, up, n, y); break;
    case ACT_SIGMOID: activate_row(ACT_SIGMOID, 0, gate, up, n, y); break;
    case ACT_GELU_TANH: activate_row(ACT_GELU_TANH, 0, gate, up, n, y); break;
    case ACT_SWIGLU_CLAMPED: activate_row(ACT_SWIGLU_CLAMPED, act.limit, gate, up, n, y); break;
    case ACT_GELU: BUG_IF(act.act == ACT_GELU);
    }
}

/* ---- elements of weights ---- */

/* 2 * LANES elements from p: in order, but the even and the odd ones of bf16, which shift and mask alone
 * separate; activations are arranged to match. */
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
        *first = vf_load_f8_e4m3(p);
        *second = vf_load_f8_e4m3(p + LANES);
    }
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
    int64_t i = 0, size = (int64_t)dtype_bytes(dt);
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, load_in_order(dt, p + i * size));
    dtype_to_f32(dt, p + i * size, 1, n - i, out + i);
}

static float scale_at(const struct qscale *s, int64_t stored_row, int64_t block_col) {
    int64_t block_row = s->block_rows ? stored_row / s->block_rows : 0, at = block_row * s->stride + block_col;
    if (s->dtype == DT_F32) { // what checkpoints have most
        float f;
        memcpy(&f, (const unsigned char *)s->data + at * 4, sizeof f);
        return f;
    }
    float f;
    dtype_to_f32(s->dtype, (const unsigned char *)s->data + at * (int64_t)dtype_bytes(s->dtype), 1, 1, &f);
    return f;
}

static void convert_plain(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    const unsigned char *p = (const unsigned char *)part->data + (row * part->row_stride + col) * (int64_t)dtype_bytes(part->dtype);
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

static void convert_fp4(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    const struct qscale *s = &part->scale;
    const unsigned char *p = (const unsigned char *)part->data + row * part->row_stride + col / 2;
    int64_t i = 0, end;
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, vf_load_e2m1(p + i / 2));
    for (; i < n; i++)
        out[i] = e2m1_to_f32(i & 1 ? p[i / 2] >> 4 : p[i / 2] & 15);
    for (int64_t c = col; c < col + n; c = end) {
        end = MIN((c / s->block_cols + 1) * s->block_cols, col + n);
        scale(out + (c - col), scale_at(s, part->first_row + row, c / s->block_cols) * s->tensor_scale, end - c);
    }
}

static void convert(const struct weight_part *part, int64_t row, int64_t col, int64_t n, float *out) {
    if (part->format == &qformat_plain)
        convert_plain(part, row, col, n, out);
    else if (part->format == &qformat_scaled)
        convert_scaled(part, row, col, n, out);
    else
        convert_fp4(part, row, col, n, out);
}

/* ---- few rows: one stream of weights a worker ----
 *
 * A weight of 2 bytes costs half a shift or mask and, for each activation row, one multiply-add lane, so up to
 * some 8 rows memory sets the pace. Rows are walked one after the other: the worker's weights are one linear
 * stream, which the processor's own prefetcher follows best. */

/* Formats whose elements are multiplied as they are loaded; others are converted row by row first. */
static bool is_direct(const struct weight_part *part) {
    bool by_row = part->scale.block_cols == 0 || part->scale.block_cols % (2 * LANES) == 0;
    if (part->format == &qformat_plain)
        return part->dtype == DT_BF16 || part->dtype == DT_F16 || part->dtype == DT_F32 || part->dtype == DT_F8_E4M3;
    return part->format == &qformat_scaled && by_row && (part->dtype == DT_I8 || part->dtype == DT_F8_E4M3 || part->dtype == DT_BF16);
}

static bool is_in_pairs(const struct weight_part *part) { return is_direct(part) && part->dtype == DT_BF16; }

static void arrange(const struct weight_part *part, const float *x, int64_t n, float *out) {
    memset(out + n / 64 * 64, 0, (size_t)(padded_cols(n) - n / 64 * 64) * sizeof *out);
    if (!is_in_pairs(part)) {
        memcpy(out, x, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t block = 0; block < n; block += 2 * LANES)
        for (int64_t i = 0; i < MIN(2 * LANES, n - block); i++)
            out[block + i / 2 + (i & 1) * LANES] = x[block + i];
}

/* sum[t][.] += w[from, to) * x[t]. A last run shorter than two vectors is copied, so that no byte behind the
 * row is read; the activations behind n_cols are zeros. */
static ALWAYS_INLINE void few_run(const enum dtype dt, const int n_x, const unsigned char *w, const float *x, int64_t x_stride,
                                  int64_t from, int64_t to, vf sum[][2]) {
    const int64_t size = (int64_t)dtype_bytes(dt);
    int64_t i = from;
    vf first, second;
    for (; i + 2 * LANES <= to; i += 2 * LANES) {
        load_pair(dt, w + i * size, &first, &second);
        UNROLL for (int t = 0; t < n_x; t++) {
            sum[t][0] = vf_fma(first, vf_load(x + t * x_stride + i), sum[t][0]);
            sum[t][1] = vf_fma(second, vf_load(x + t * x_stride + i + LANES), sum[t][1]);
        }
    }
    if (i < to) {
        unsigned char last[2 * LANES * sizeof(float)] = {0};
        memcpy(last, w + i * size, (size_t)((to - i) * size));
        load_pair(dt, last, &first, &second);
        UNROLL for (int t = 0; t < n_x; t++) {
            sum[t][0] = vf_fma(first, vf_load(x + t * x_stride + i), sum[t][0]);
            sum[t][1] = vf_fma(second, vf_load(x + t * x_stride + i + LANES), sum[t][1]);
        }
    }
}

static ALWAYS_INLINE void few_direct(const enum dtype dt, const int n_x, const struct few_rows *f) {
    const struct weight_part *part = f->part;
    const bool scaled = part->format == &qformat_scaled;
    const int64_t x_stride = padded_cols(f->n_cols), block = scaled && part->scale.block_cols ? part->scale.block_cols : f->n_cols;
    for (int64_t r = 0; r < f->n_rows; r++) {
        int64_t row = f->row + r;
        const unsigned char *w = (const unsigned char *)part->data + row * part->row_stride * (int64_t)dtype_bytes(dt);
        vf total[FEW_ROWS];
        UNROLL for (int t = 0; t < n_x; t++) total[t] = vf_set(0);
        for (int64_t c = 0; c < f->n_cols; c += block) {
            vf sum[FEW_ROWS][2];
            UNROLL for (int t = 0; t < n_x; t++) sum[t][0] = sum[t][1] = vf_set(0);
            few_run(dt, n_x, w, f->x, x_stride, c, MIN(c + block, f->n_cols), sum);
            vf s = vf_set(scaled ? scale_at(&part->scale, part->first_row + row, c / block) : 1.0f);
            UNROLL for (int t = 0; t < n_x; t++) total[t] = vf_fma(s, vf_add(sum[t][0], sum[t][1]), total[t]);
        }
        UNROLL for (int t = 0; t < n_x; t++) f->y[t * f->y_stride + r] = vf_sum(total[t]) + (f->bias ? f->bias[r] : 0.0f);
    }
}

static ALWAYS_INLINE void few_direct_any(const int n_x, const struct few_rows *f) {
    switch (f->part->dtype) {
    case DT_BF16: few_direct(DT_BF16, n_x, f); break;
    case DT_F16: few_direct(DT_F16, n_x, f); break;
    case DT_F32: few_direct(DT_F32, n_x, f); break;
    case DT_I8: few_direct(DT_I8, n_x, f); break;
    default: few_direct(DT_F8_E4M3, n_x, f);
    }
}

static void few_converted(const struct few_rows *f) {
    for (int64_t r = 0; r < f->n_rows; r++) {
        convert(f->part, f->row + r, 0, f->n_cols, f->scratch);
        for (int t = 0; t < f->n_x; t++)
            f->y[t * f->y_stride + r] = dot(f->scratch, f->x + t * padded_cols(f->n_cols), f->n_cols) + (f->bias ? f->bias[r] : 0.0f);
    }
}

static void multiply_few(const struct few_rows *f) {
    if (!is_direct(f->part)) {
        few_converted(f);
        return;
    }
    switch (f->n_x) {
    case 1: few_direct_any(1, f); break;
    case 2: few_direct_any(2, f); break;
    case 3: few_direct_any(3, f); break;
    case 4: few_direct_any(4, f); break;
    case 5: few_direct_any(5, f); break;
    case 6: few_direct_any(6, f); break;
    case 7: few_direct_any(7, f); break;
    case 8: few_direct_any(8, f); break;
    default: bug(__FILE__, __LINE__, "more rows than few");
    }
}

/* ---- many rows: tiles of C in registers ----
 *
 * TILE_ROWS x 2 vectors of C stay in registers while k runs: for each k two vectors of B and TILE_ROWS
 * broadcasts of A feed twice as many multiply-adds, which is what saturates the two FMA pipes of Zen 4 and of
 * the server cores of Intel since Skylake. */

struct tile {
    int64_t k, lda, ldb, ldc;
    const float *a, *b;
    float *c;
    int64_t n; // columns: 2 * LANES, LANES, or fewer than LANES
    bool add;
};

static ALWAYS_INLINE void tile_of(const int m, const int n_vectors, const bool whole, const struct tile *t) {
    const int64_t lda = t->lda, ldb = t->ldb, left = whole ? LANES : t->n;
    vf sum[TILE_ROWS][2];
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < n_vectors; j++) {
        float *c = t->c + i * t->ldc + j * LANES;
        sum[i][j] = !t->add ? vf_set(0) : whole ? vf_load(c) : vf_load_n(c, left);
    }
    // Rows of A are reached as one of three bases plus 0 to 3 strides, so that the addresses fit in registers.
    const float *a[3] = {t->a, m > 4 ? t->a + 4 * lda : t->a, m > 8 ? t->a + 8 * lda : t->a}, *b = t->b;
    for (int64_t k = 0; k < t->k; k++) {
        vf bv[2];
        UNROLL for (int j = 0; j < n_vectors; j++) bv[j] = whole ? vf_load(b + j * LANES) : vf_load_n(b, left);
        UNROLL for (int i = 0; i < m; i++) {
            vf av = vf_set(a[i / 4][i % 4 * lda]);
            UNROLL for (int j = 0; j < n_vectors; j++) sum[i][j] = vf_fma(av, bv[j], sum[i][j]);
        }
        b += ldb;
        UNROLL for (int i = 0; i < 3; i++) a[i]++;
    }
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < n_vectors; j++) {
        float *c = t->c + i * t->ldc + j * LANES;
        vf_put(c, sum[i][j], left);
    }
}

static ALWAYS_INLINE void tile_rows(const int m, const struct tile *t) {
    if (t->n == 2 * LANES)
        tile_of(m, 2, true, t);
    else if (t->n == LANES)
        tile_of(m, 1, true, t);
    else
        tile_of(m, 1, false, t);
}

#define TILE(m) \
    static void tile_##m(const struct tile *t) { tile_rows(m, t); }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
#if TILE_ROWS_MORE_THAN_4
TILE(5)
TILE(6)
#endif
#if TILE_ROWS_MORE_THAN_6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

static void (*const tiles[TILE_ROWS + 1])(const struct tile *t) = {
    NULL,   tile_1, tile_2, tile_3,  tile_4,
#if TILE_ROWS_MORE_THAN_4
    tile_5, tile_6,
#endif
#if TILE_ROWS_MORE_THAN_6
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12,
#endif
};

static int64_t tile_width(int64_t n) { return n >= 2 * LANES ? 2 * LANES : MIN(n, LANES); }

static void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc,
                     bool add) {
    for (int64_t j = 0, width; j < n; j += width) {
        width = tile_width(n - j);
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            struct tile t = {k, lda, ldb, ldc, a + i * lda, b + j, c + i * ldc + j, width, add};
            tiles[MIN(m - i, TILE_ROWS)](&t);
        }
    }
}

static void pack(const float *rows, int64_t stride, int64_t n_rows, int64_t k, float *panel) {
    for (int64_t r = 0; r < PANEL_ROWS; r += LANES)
        for (int64_t c = 0; c < k; c += LANES) {
            vf v[LANES];
            UNROLL for (int i = 0; i < LANES; i++) v[i] = r + i < n_rows ? vf_some(rows + (r + i) * stride + c, k - c) : vf_set(0);
            vf_transpose(v);
            for (int i = 0; i < MIN(LANES, k - c); i++)
                vf_store(panel + (c + i) * PANEL_ROWS + r, v[i]);
        }
}

/* ---- measuring ---- */

static float read_floats(const float *x, int64_t n) {
    enum { CHAINS = 4 };
    vf sum[CHAINS];
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set(0);
    for (int64_t i = 0; i < n; i += CHAINS * LANES)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vf_add(sum[j], vf_load(x + i + j * LANES));
    return vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
}

/* Twelve chains cover a latency of four or five cycles on two pipes and leave registers for the factors. */
static float multiply_adds(int64_t n) {
    enum { CHAINS = 12 };
    vf sum[CHAINS], factor = vf_set(0.5f), term = vf_set(1);
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set((float)i);
    for (int64_t i = 0; i < n; i += CHAINS * LANES)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vf_fma(sum[j], factor, term);
    vf all = sum[0];
    for (int i = 1; i < CHAINS; i++)
        all = vf_add(all, sum[i]);
    return vf_sum(all);
}

const struct kernels KERNELS = {
    .name = KERNELS_NAME,
    .arrange = arrange,
    .multiply_few = multiply_few,
    .convert = convert,
    .pack = pack,
    .multiply = multiply,
    .dot = dot,
    .add_scaled = add_scaled,
    .multiply_add = multiply_add,
    .blend = blend,
    .scale = scale,
    .largest = largest,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .activate = activate_rows,
    .read = read_floats,
    .multiply_adds = multiply_adds,
};
