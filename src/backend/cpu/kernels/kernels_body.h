/* kernels_body.h - the kernels of kernels.h, over the vector vocabulary of a simd_*.h that is included before.
 * A kernels_SET.c includes its simd_SET.h, defines KERNELS as the table's name, and includes this. */
#include "backend/cpu/kernels/kernels.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Constant trip counts are unrolled whole, so that small arrays of vectors live in registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* The vector at p, of which `left` elements exist: all of it, or what is left with zeros behind. */
static ALWAYS_INLINE vf vf_some(const float *p, int64_t left) {
    return left >= LANES ? vf_load(p) : vf_load_n(p, left);
}
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

static void add(const float *a, const float *b, float factor, int64_t n, float *y) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_mul(f, b ? vf_add(vf_some(a + i, n - i), vf_some(b + i, n - i)) : vf_some(a + i, n - i)),
               n - i);
}

static void weigh(const float *x, float factor, const float *w, bool plus_one, int64_t n, float *y) {
    vf f = vf_set(factor), more = vf_set(plus_one ? 1 : 0);
    for (int64_t i = 0; i < n; i += LANES) {
        vf v = vf_mul(vf_some(x + i, n - i), f);
        vf_put(y + i, w ? vf_mul(v, vf_add(vf_some(w + i, n - i), more)) : v, n - i);
    }
}

static void rotate_halves(const float *cos_sin, int64_t half, float *x) {
    for (int64_t i = 0; i < half; i += LANES) {
        vf cosine = vf_some(cos_sin + i, half - i), sine = vf_some(cos_sin + half + i, half - i);
        vf a = vf_some(x + i, half - i), b = vf_some(x + half + i, half - i);
        vf_put(x + i, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)), half - i);
        vf_put(x + half + i, vf_fma(b, cosine, vf_mul(a, sine)), half - i);
    }
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

static ALWAYS_INLINE void activate_row(const enum activation act, float limit, const float *gate, const float *up,
                                       int64_t n, float *y) {
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

/* ---- few rows: weights as fast as memory gives them ----
 *
 * A bf16 weight costs half a shift or mask and, for each row of activations, one lane of a multiply-add: up to
 * some 8 rows memory sets the pace, if it is kept busy. What it takes to keep it busy on Zen 4 (measured
 * 2026-11-21, two cores, weights of 896 to 8192 columns, per cent of the rate at which plain loads read):
 *
 *     one row of weights at a time               35 to 97; good only while x fits in a page: the loads of x, two
 *                                                for each of weights, crowd out what the prefetcher would do
 *     8 rows at a time, so that x is loaded once  35 to 75; worse the shorter the rows, each a stream of its own
 *     8 rows, and prefetch 64 KB ahead into the
 *     second-level cache, in order of address     80 to 95
 *
 * so the last: to memory the weights are one linear stream, to the core a tile that is already near. */

enum { MAX_TILE_WEIGHTS = 8 };

/* Rows of weights that are taken together with n_x rows of activations: their sums, two vectors of each row and
 * one of activations must find room in registers. */
#define TILE_FIT(n_x) ((VECTOR_REGISTERS - 3) / ((n_x) + 2))
#define TILE_WEIGHTS(n_x) (TILE_FIT(n_x) > MAX_TILE_WEIGHTS ? MAX_TILE_WEIGHTS : TILE_FIT(n_x) < 1 ? 1 : TILE_FIT(n_x))

static bool is_direct_plain(const struct weight_part *part) {
    return part->dtype == DT_BF16 || part->dtype == DT_F16 || part->dtype == DT_F32 || part->dtype == DT_F8_E4M3;
}

static bool is_direct_scaled(const struct weight_part *part) {
    bool by_row = part->scale.block_cols == 0 || part->scale.block_cols % (2 * LANES) == 0;
    return by_row && (part->dtype == DT_I8 || part->dtype == DT_F8_E4M3);
}

/* Whether elements can be multiplied as they are loaded; others are made ready first. */
static bool is_direct(const struct weight_part *part) {
    const struct format_kernels *f = format_of(part);
    return f->is_direct && f->is_direct(part);
}

/* Up to so many groups of rows, converting weights for each costs less than storing them. */
static int direct_groups(const struct weight_part *part) { return is_direct(part) ? 2 : 0; }

enum {
    BY_STEP = 1,  // [step of 2 * LANES columns][row]
    BY_STEP_APART // the same, and within a step even columns before odd ones
};

static int arrangement(const struct weight_part *part) {
    return is_direct(part) && part->dtype == DT_BF16 ? BY_STEP_APART : BY_STEP;
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    for (int64_t c = 0; c < n; c += 2 * LANES)
        for (int t = 0; t < n_x; t++, out += 2 * LANES) {
            const float *from = x + t * x_stride + c;
            vf a = vf_some(from, n - c), b = n - c > LANES ? vf_some(from + LANES, n - c - LANES) : vf_set(0);
            if (how == BY_STEP_APART)
                vf_separate(&a, &b);
            vf_store(out, a);
            vf_store(out + LANES, b);
        }
    int64_t n_behind = arranged_cols(n) - (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    memset(out, 0, (size_t)(n_behind * n_x) * sizeof *out);
}

/* Two vectors of weights of each of n_w rows, w_stride bytes apart, times the scale of the row's block. */
static ALWAYS_INLINE void load_step(const enum dtype dt, const bool scaled, const int n_w, const unsigned char *w,
                                    int64_t w_stride, const vf *scale, vf *first, vf *second) {
    UNROLL for (int i = 0; i < n_w; i++) {
        load_pair(dt, w + i * w_stride, &first[i], &second[i]);
        if (scaled) {
            first[i] = vf_mul(first[i], scale[i]);
            second[i] = vf_mul(second[i], scale[i]);
        }
    }
}

/* sum[i][t] += the weights of a step of row i times those of x [n_x][2 * LANES]. Whatever n_w and n_x are, and whoever
 * has made floats of the weights, a sum has the same terms in the same order in the same lanes: what a row of x gives
 * does not depend on the rows beside it. */
static ALWAYS_INLINE void few_step(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                   const unsigned char *w, int64_t w_stride, const vf *scale, const float *x,
                                   vf sum[][FEW_ROWS]) {
    vf first[MAX_TILE_WEIGHTS], second[MAX_TILE_WEIGHTS];
    load_step(dt, scaled, n_w, w, w_stride, scale, first, second);
    UNROLL for (int t = 0; t < n_x; t++) {
        vf x0 = vf_keep(vf_load(x + t * 2 * LANES));
        UNROLL for (int i = 0; i < n_w; i++) sum[i][t] = vf_fma(first[i], x0, sum[i][t]);
    }
    UNROLL for (int t = 0; t < n_x; t++) {
        vf x1 = vf_keep(vf_load(x + t * 2 * LANES + LANES));
        UNROLL for (int i = 0; i < n_w; i++) sum[i][t] = vf_fma(second[i], x1, sum[i][t]);
    }
}

/* A tile of weights that is walked over: w, rows w_stride bytes apart, their scales; and the weights to come, fetched
 * ahead_step bytes a step (0: they are here). */
struct few_walk {
    const unsigned char *w, *ahead;
    int64_t w_stride, ahead_step;
    int64_t x_step; // floats of all rows of x in a column
    vf scale[MAX_TILE_WEIGHTS];
};

/* sum[i][t] += the product of columns [from, to) of row i of n_w rows with x[t]. Activations behind n_cols are zeros;
 * a last step of fewer weights than two vectors is copied, so that no byte behind a row is read. */
static ALWAYS_INLINE void few_run(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                  struct few_walk *walk, const float *x, int64_t from, int64_t to, vf out[][FEW_ROWS]) {
    const int size = element_bytes(dt), step_lines = (n_w * 2 * LANES * size + 63) / 64;
    const unsigned char *w = walk->w, *ahead = walk->ahead;
    const int64_t w_stride = walk->w_stride, ahead_step = walk->ahead_step, x_step = walk->x_step;
    vf sum[MAX_TILE_WEIGHTS][FEW_ROWS], scale[MAX_TILE_WEIGHTS];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] = out[i][t];
    UNROLL for (int i = 0; i < n_w; i++) scale[i] = scaled ? walk->scale[i] : vf_set(1);
    int64_t c = from;
    for (; c + 2 * LANES <= to; c += 2 * LANES) {
        if (ahead_step) {
            UNROLL for (int line = 0; line < step_lines; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
            ahead += ahead_step;
        }
        few_step(dt, scaled, n_w, n_x, w + c * size, w_stride, scale, x + c * x_step, sum);
    }
    if (c < to) {
        unsigned char last[MAX_TILE_WEIGHTS][2 * LANES * sizeof(float)] = {{0}};
        UNROLL for (int i = 0; i < n_w; i++) memcpy(last[i], w + i * w_stride + c * size, (size_t)((to - c) * size));
        few_step(dt, scaled, n_w, n_x, last[0], sizeof last[0], scale, x + c * x_step, sum);
    }
    walk->ahead = ahead;
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) out[i][t] = sum[i][t];
}

/* The lanes of every sum together, and the bias, to y. */
static ALWAYS_INLINE void few_put(const int n_w, const int n_x, const struct few_rows *f, int64_t r, int64_t first,
                                  vf sum[][FEW_ROWS]) {
    float total[(MAX_TILE_WEIGHTS * FEW_ROWS + LANES - 1) / LANES * LANES];
    UNROLL for (int k = 0; k < n_w * n_x; k += LANES) {
        vf v[LANES];
        UNROLL for (int j = 0; j < LANES; j++) v[j] = k + j < n_w * n_x ? sum[(k + j) / n_x][(k + j) % n_x] : vf_set(0);
        vf_store(total + k, vf_sums(v));
    }
    float *y = f->y + first * f->y_stride + r;
    UNROLL for (int i = 0; i < n_w; i++) {
        float bias = f->bias ? f->bias[r + i] : 0.0f;
        UNROLL for (int t = 0; t < n_x; t++) y[t * f->y_stride + i] = total[i * n_x + t] + bias;
    }
}

static ALWAYS_INLINE void few_begin(const int n_w, const int n_x, vf sum[][FEW_ROWS]) {
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] = vf_set(0);
}

static ALWAYS_INLINE void few_resume(const int n_w, const int n_x, const int64_t n_all, const float *partial,
                                     vf sum[][FEW_ROWS]) {
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] =
        vf_load(partial + (i * n_all + t) * LANES);
}

static ALWAYS_INLINE void few_keep(const int n_w, const int n_x, const int64_t n_all, float *partial,
                                   vf sum[][FEW_ROWS]) {
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++)
        vf_store(partial + (i * n_all + t) * LANES, sum[i][t]);
}

/* Columns [from, to) of rows [r, r + n_w) of f with n_x of its n_all rows of x, from `first` on. */
static ALWAYS_INLINE void few_tile(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                   const int64_t n_all, const struct few_rows *f, int64_t r, int64_t first,
                                   int64_t from, int64_t to) {
    const struct weight_part *part = f->part;
    const int size = element_bytes(dt);
    const int64_t row = f->row + r, block = scaled && part->scale.block_cols ? part->scale.block_cols : f->n_cols;
    float *partial = f->partial + (r * n_all + first) * LANES;
    const float *x = f->x + first * 2 * LANES;
    struct few_walk walk = {.w_stride = part->row_stride * size, .x_step = n_all};
    walk.w = (const unsigned char *)part->data + row * walk.w_stride;
    walk.ahead = walk.w + AHEAD_BYTES;
    walk.ahead_step = f->near || first > 0 || part->row_stride != f->n_cols ? 0 : n_w * 2 * LANES * size;
    vf sum[MAX_TILE_WEIGHTS][FEW_ROWS];
    if (from > 0)
        few_resume(n_w, n_x, n_all, partial, sum);
    else
        few_begin(n_w, n_x, sum);
    if (!scaled)
        few_run(dt, false, n_w, n_x, &walk, x, from, to, sum);
    for (int64_t c = from, end; scaled && c < to; c = end) {
        end = MIN((c / block + 1) * block, to);
        for (int i = 0; i < n_w; i++)
            walk.scale[i] = vf_set(scale_at(&part->scale, part->first_row + row + i, c / block));
        few_run(dt, true, n_w, n_x, &walk, x, c, end, sum);
    }
    if (to < f->n_cols)
        few_keep(n_w, n_x, n_all, partial, sum);
    else
        few_put(n_w, n_x, f, r, first, sum);
}

/* Rows of weights that fill no tile, each with each row of x alone: rare and few, so one loop for any n_x. */
typedef void few_rest(const struct few_rows *f, int64_t r, int64_t from, int64_t to);

/* Rows of x of a tile at most: with 16 registers loads bound tiles of eight, for which one row of weights is left. */
enum { TILE_X = VECTOR_REGISTERS < 32 ? 4 : FEW_ROWS };

static ALWAYS_INLINE void few_direct(const enum dtype dt, const bool scaled, const int n_x, const struct few_rows *f,
                                     few_rest *rest) {
    const int first = n_x < TILE_X ? n_x : TILE_X, n_w = TILE_WEIGHTS(first);
    const int64_t block = f->partial ? NEAR_COLS : f->n_cols;
    for (int64_t from = 0; from < f->n_cols; from += block) {
        int64_t r = 0, to = MIN(from + block, f->n_cols);
        for (; r + n_w <= f->n_rows; r += n_w) {
            few_tile(dt, scaled, n_w, first, n_x, f, r, 0, from, to);
            if (n_x > first)
                few_tile(dt, scaled, n_w, n_x - first, n_x, f, r, first, from, to);
        }
        if (r < f->n_rows)
            rest(f, r, from, to);
    }
}

/* NAME, a function multiply_few of a dtype: by one for each number of rows of x, since the compiler's time for a
 * function grows faster than the function. */
#define NOT_INLINE __attribute__((noinline))
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
            scale = vf_set(scale_at(&part->scale, part->first_row + row, c / block));
        if (n - c < 2 * LANES)
            memcpy(last, w + c * size, (size_t)((n - c) * size));
        load_step(dt, scaled, 1, n - c < 2 * LANES ? last : w + c * size, 0, &scale, &first, &second);
        vf_store(out + c, first);
        vf_store(out + c + LANES, second);
    }
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
        memset(out, 0, (size_t)arranged_cols(n) * sizeof *out);
        f->convert(part, r, 0, n, out);
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

/* ---- many rows: tiles of C in registers ----
 *
 * TILE_ROWS x 2 vectors of C stay in registers while k runs: for each k two vectors of B and TILE_ROWS
 * broadcasts of A feed twice as many multiply-adds, which is what saturates the two FMA pipes of Zen 4 and of
 * the server cores of Intel since Skylake. With few rows of A those would be too few sums to hide the latency of an
 * addition, so four vectors of each are kept, and B is read in longer pieces. Whatever the tile, an element of C is
 * the same sum in the same order. */

enum { WIDE_VECTORS = 4, WIDE_ROWS = (VECTOR_REGISTERS - WIDE_VECTORS - 1) / WIDE_VECTORS };

struct tile {
    int64_t k, lda, ldb, ldc;
    const float *a, *b;
    float *c;
    int64_t n; // columns: WIDE_VECTORS, 2 or 1 times LANES, or fewer than LANES
    bool add;
};

static ALWAYS_INLINE void tile_of(const int m, const int n_vectors, const bool whole, const struct tile *t) {
    const int64_t lda = t->lda, ldb = t->ldb, left = whole ? LANES : t->n;
    vf sum[TILE_ROWS][WIDE_VECTORS];
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < n_vectors; j++) {
        float *c = t->c + i * t->ldc + j * LANES;
        sum[i][j] = !t->add ? vf_set(0) : whole ? vf_load(c) : vf_load_n(c, left);
    }
    // Rows of A are reached as one of three bases plus 0 to 3 strides, so that the addresses fit in registers.
    const float *a[3] = {t->a, m > 4 ? t->a + 4 * lda : t->a, m > 8 ? t->a + 8 * lda : t->a}, *b = t->b;
    for (int64_t k = 0; k < t->k; k++) {
        vf bv[WIDE_VECTORS];
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
    if (m <= WIDE_ROWS && t->n == WIDE_VECTORS * LANES)
        tile_of(m, WIDE_VECTORS, true, t);
    else if (t->n == 2 * LANES)
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

static int64_t tile_width(int64_t m, int64_t n) {
    if (m <= WIDE_ROWS && n >= WIDE_VECTORS * LANES)
        return WIDE_VECTORS * LANES;
    return n >= 2 * LANES ? 2 * LANES : MIN(n, LANES);
}

static void multiply(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float *c, int64_t ldc, bool add) {
    for (int64_t j = 0, width; j < n; j += width) {
        width = tile_width(m, n - j);
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
            UNROLL for (int i = 0; i < LANES; i++) v[i] =
                r + i < n_rows ? vf_some(rows + (r + i) * stride + c, k - c) : vf_set(0);
            vf_transpose(v);
            for (int i = 0; i < MIN(LANES, k - c); i++)
                vf_store(panel + (c + i) * PANEL_ROWS + r, v[i]);
        }
}

#include "backend/cpu/kernels/kv_int4_body.h"

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
    .formats = formats,
    .arrangement = arrangement,
    .arrange = arrange,
    .multiply_few = multiply_few,
    .direct_groups = direct_groups,
    .ready = ready,
    .convert = convert,
    .pack = pack,
    .multiply = multiply,
    .int4_keys = int4_keys,
    .int4_values = int4_values,
    .dot = dot,
    .add_scaled = add_scaled,
    .multiply_add = multiply_add,
    .blend = blend,
    .scale = scale,
    .add = add,
    .weigh = weigh,
    .rotate_halves = rotate_halves,
    .largest = largest,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .activate = activate_rows,
    .read = read_floats,
    .multiply_adds = multiply_adds,
};
