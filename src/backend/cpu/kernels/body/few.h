/* few.h - part of kernels_body.h: few rows of activations, and weights as fast as memory gives them.
 *
 * few_direct goes over tiles, few_tile over a tile's columns, and few_step of few_steps.h multiplies.
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

/* What is fetched when columns [from, to) of rows [r, r + n_w) begin. Of one-byte weights, which take longest to
 * multiply, far enough that a tile's last row is here when its first begins. By blocks of columns all of the rows come
 * again and again: then it is what lies behind them, which comes next, as far along as they are. */
static ALWAYS_INLINE const unsigned char *few_ahead(const enum dtype dt, const int n_w, const struct few_rows *f,
                                                    int64_t r, int64_t from, int64_t to) {
    const int64_t row_bytes = f->part->row_stride * element_bytes(dt),
                  tile_bytes = element_bytes(dt) == 1 ? MIN(n_w * row_bytes, AHEAD_BYTES - FEW_AHEAD_BYTES) : 0;
    const unsigned char *w = (const unsigned char *)f->part->data + f->row * row_bytes;
    if (!f->partial)
        return w + r * row_bytes + FEW_AHEAD_BYTES + tile_bytes;
    return w + f->n_rows * row_bytes + (from * f->n_rows + r * (to - from)) * element_bytes(dt);
}

/* Columns [from, to) of rows [r, r + n_w) of f with n_x of its n_all rows of x, from `first` on. */
static ALWAYS_INLINE void few_tile(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                   const int64_t n_all, const struct few_rows *f, int64_t r, int64_t first,
                                   int64_t from, int64_t to) {
    const struct weight_part *part = f->part;
    const int size = element_bytes(dt);
    const int64_t row = f->row + r;
    float *partial = f->partial + (r * n_all + first) * LANES;
    const float *x = f->x + first * 2 * LANES;
    struct few_walk walk;
    walk.w_stride = part->row_stride * size;
    walk.x_step = n_all;
    walk.w = (const unsigned char *)part->data + row * walk.w_stride;
    walk.ahead = few_ahead(dt, n_w, f, r, from, to);
    walk.ahead_step = f->near || first > 0 || part->row_stride != f->n_cols ? 0 : n_w * 2 * LANES * size;
    walk.block = scaled && part->scale.block_cols ? part->scale.block_cols : f->n_cols;
    vf sum[MAX_TILE_WEIGHTS][FEW_ROWS];
    if (from > 0)
        few_resume(n_w, n_x, n_all, partial, sum);
    else
        few_begin(n_w, n_x, sum);
    for (int64_t c = from, end; c < to; c = end) {
        end = scaled ? MIN((c / walk.block + MOST_SCALES) * walk.block, to) : to;
        walk.first_end = (c / walk.block + 1) * walk.block;
        for (int i = 0; scaled && i < n_w; i++)
            few_scales_of(part, row + i, c / walk.block, (end - 1) / walk.block + 1, missing_of_weights(dt),
                          walk.scales[i]);
        few_run(dt, scaled, n_w, n_x, &walk, x, c, end, sum);
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
