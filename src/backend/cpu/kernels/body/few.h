/* few.h - part of kernels_body.h: few rows of activations, and weights as fast as memory gives them.
 *
 * few_direct goes over tiles, few_tile over a tile's columns, and few_step multiplies.
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

#ifndef FEW_AHEAD_BYTES
#define FEW_AHEAD_BYTES AHEAD_BYTES
#endif
#ifndef FEW_NEAR_FLOATS
#define FEW_NEAR_FLOATS 0
#endif

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
    return is_direct(part) && comes_apart(part->dtype) ? BY_STEP_APART : BY_STEP;
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

/* What is fetched when columns [from, to) of row r begin. By blocks of columns all of the rows come again and again:
 * then it is what lies behind them, which comes next, as far along as they are. */
static ALWAYS_INLINE const unsigned char *few_ahead(const enum dtype dt, const struct few_rows *f, int64_t r,
                                                    int64_t from, int64_t to) {
    const int64_t row_bytes = f->part->row_stride * element_bytes(dt);
    const unsigned char *w = (const unsigned char *)f->part->data + f->row * row_bytes;
    if (!f->partial)
        return w + r * row_bytes + FEW_AHEAD_BYTES;
    return w + f->n_rows * row_bytes + (from * f->n_rows + r * (to - from)) * element_bytes(dt);
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
    walk.ahead = few_ahead(dt, f, r, from, to);
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
