/* few_steps.h - part of kernels_body.h: few rows of activations by the columns of a tile of weights (few.h). */

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
    BY_STEP = 1,   // [step of 2 * LANES columns][row]
    BY_STEP_APART, // the same, and within a step even columns before odd ones
    BY_STEP_F8     // the same, times MISSING_OF_X
};

static int arrangement(const struct weight_part *part) {
    if (!is_direct(part) || !comes_apart(part->dtype))
        return BY_STEP;
    return part->dtype == DT_F8_E4M3 ? BY_STEP_F8 : BY_STEP_APART;
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    for (int64_t c = 0; c < n; c += 2 * LANES)
        for (int t = 0; t < n_x; t++, out += 2 * LANES) {
            const float *from = x + t * x_stride + c;
            vf a = vf_some(from, n - c), b = n - c > LANES ? vf_some(from + LANES, n - c - LANES) : vf_set(0);
            if (how != BY_STEP)
                vf_separate(&a, &b);
            if (how == BY_STEP_F8) {
                a = vf_mul(a, vf_set(MISSING_OF_X));
                b = vf_mul(b, vf_set(MISSING_OF_X));
            }
            vf_store(out, a);
            vf_store(out + LANES, b);
        }
    int64_t n_behind = arranged_cols(n) - (n + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    memset(out, 0, (size_t)(n_behind * n_x) * sizeof *out);
}

enum { MOST_SCALES = 64 }; // of a row, that are made floats at a time

/* The scales of a tile's rows, MOST_SCALES floats apart; with 16 registers, which sums want, read in each step. */
struct few_scales {
    const float *at;
    vf kept[MAX_TILE_WEIGHTS];
};
static ALWAYS_INLINE void few_scales_from(const int n_w, const float *at, struct few_scales *s) {
    s->at = at;
    UNROLL for (int i = 0; i < n_w; i++) s->kept[i] = vf_set(at[i * MOST_SCALES]);
}
static ALWAYS_INLINE vf few_scale(const struct few_scales *s, const int i) {
    return VECTOR_REGISTERS < 32 ? vf_set(s->at[i * MOST_SCALES]) : s->kept[i];
}

/* Two vectors of weights, times the scale of the row's block. */
static ALWAYS_INLINE void load_step(const enum dtype dt, const bool scaled, const unsigned char *w, vf scale, vf *first,
                                    vf *second) {
    load_pair(dt, w, first, second);
    if (scaled || missing_of_weights(dt) != 1) {
        vf factor = scaled ? scale : vf_set(missing_of_weights(dt));
        *first = vf_mul(*first, factor);
        *second = vf_mul(*second, factor);
    }
}

/* Of one row of x: row by row, so that no weights wait in registers that sums want. */
static ALWAYS_INLINE void few_step_alone(const enum dtype dt, const bool scaled, const int n_w, const unsigned char *w,
                                         int64_t w_stride, const struct few_scales *scales, const float *x,
                                         vf sum[][FEW_ROWS]) {
    vf x0 = vf_keep(vf_load(x)), x1 = vf_keep(vf_load(x + LANES));
    UNROLL for (int i = 0; i < n_w; i++) {
        vf first, second;
        load_step(dt, scaled, w + i * w_stride, few_scale(scales, i), &first, &second);
        sum[i][0] = vf_fma(second, x1, vf_fma(first, x0, sum[i][0]));
    }
}

/* sum[i][t] += the weights of a step of row i, times its scale, times those of x [n_x][2 * LANES]. Whatever n_w and n_x
 * are, and whoever has made floats of the weights, a sum has the same terms in the same order in the same lanes: what a
 * row of x gives does not depend on the rows beside it. */
static ALWAYS_INLINE void few_step(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                   const unsigned char *w, int64_t w_stride, const struct few_scales *scales,
                                   const float *x, vf sum[][FEW_ROWS]) {
    vf first[MAX_TILE_WEIGHTS], second[MAX_TILE_WEIGHTS];
    if (n_x == 1) {
        few_step_alone(dt, scaled, n_w, w, w_stride, scales, x, sum);
        return;
    }
    UNROLL for (int i = 0; i < n_w; i++)
        load_step(dt, scaled, w + i * w_stride, few_scale(scales, i), &first[i], &second[i]);
    UNROLL for (int t = 0; t < n_x; t++) {
        vf x0 = vf_keep(vf_load(x + t * 2 * LANES));
        UNROLL for (int i = 0; i < n_w; i++) sum[i][t] = vf_fma(first[i], x0, sum[i][t]);
    }
    UNROLL for (int t = 0; t < n_x; t++) {
        vf x1 = vf_keep(vf_load(x + t * 2 * LANES + LANES));
        UNROLL for (int i = 0; i < n_w; i++) sum[i][t] = vf_fma(second[i], x1, sum[i][t]);
    }
}

/* A tile of weights that is walked over: w, rows w_stride bytes apart; their scales as floats; and the weights to come,
 * fetched ahead_step bytes a step (0: they are here). */
struct few_walk {
    const unsigned char *w, *ahead;
    int64_t w_stride, ahead_step;
    int64_t x_step;           // floats of all rows of x in a column
    int64_t block, first_end; // columns of a scale, and where the first's end
    float scales[MAX_TILE_WEIGHTS][MOST_SCALES];
};

/* Scales [from, to) of a row, times factor. */
static void few_scales_of(const struct weight_part *part, int64_t row, int64_t from, int64_t to, float factor,
                          float *out) {
    scales_at(&part->scale, part->first_row + row, from, to - from, out);
    for (int64_t i = 0; i < to - from; i++)
        out[i] *= factor;
}

/* Sums of rows that have a NaN in columns [from, to). */
static NOT_INLINE void few_spoil(int n_w, int n_x, const struct few_walk *walk, int64_t from, int64_t to,
                                 vf sum[][FEW_ROWS]) {
    for (int i = 0; i < n_w; i++)
        for (int t = 0; has_nan(walk->w + i * walk->w_stride + from, to - from) && t < n_x; t++)
            sum[i][t] = vf_set(NAN);
}

/* sum[i][t] += the product of columns [from, to) of row i of n_w rows with x[t]. Activations behind n_cols are zeros;
 * a last step of fewer weights than two vectors is copied, so that no byte behind a row is read. */
static ALWAYS_INLINE void few_run(const enum dtype dt, const bool scaled, const int n_w, const int n_x,
                                  struct few_walk *walk, const float *x, int64_t from, int64_t to, vf out[][FEW_ROWS]) {
    const int size = element_bytes(dt), step_lines = (n_w * 2 * LANES * size + 63) / 64;
    const unsigned char *w = walk->w, *ahead = walk->ahead;
    const int64_t w_stride = walk->w_stride, ahead_step = walk->ahead_step, x_step = walk->x_step;
    vf sum[MAX_TILE_WEIGHTS][FEW_ROWS];
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) sum[i][t] = out[i][t];
    struct few_scales scales;
    if (scaled)
        few_scales_from(n_w, walk->scales[0], &scales);
    int64_t c = from, scaled_to = walk->first_end, seen_to = from;
    f8_largest seen = f8_none();
    for (; c + 2 * LANES <= to; c += 2 * LANES) {
        if (scaled && c == scaled_to) {
            scaled_to += walk->block;
            few_scales_from(n_w, scales.at + 1, &scales);
        }
        if (misses_nan(dt) && n_x == 1 && c == seen_to && c + 4 * LANES <= to) {
            UNROLL for (int i = 0; i < n_w; i++) seen = f8_more(seen, w + i * w_stride + c);
            seen_to += 4 * LANES;
        }
        if (ahead_step) {
            UNROLL for (int line = 0; line < step_lines; line++) __builtin_prefetch(ahead + line * 64, 0, 2);
            ahead += ahead_step;
        }
        few_step(dt, scaled, n_w, n_x, w + c * size, w_stride, &scales, x + c * x_step, sum);
    }
    if (c < to) {
        unsigned char last[MAX_TILE_WEIGHTS][2 * LANES * sizeof(float)] = {{0}};
        UNROLL for (int i = 0; i < n_w; i++) memcpy(last[i], w + i * w_stride + c * size, (size_t)((to - c) * size));
        if (scaled && c == scaled_to)
            few_scales_from(n_w, scales.at + 1, &scales);
        few_step(dt, scaled, n_w, n_x, last[0], sizeof last[0], &scales, x + c * x_step, sum);
    }
    walk->ahead = ahead;
    UNROLL for (int i = 0; i < n_w; i++) UNROLL for (int t = 0; t < n_x; t++) out[i][t] = sum[i][t];
    if (misses_nan(dt) && (seen_to < to || f8_has_nan(seen)))
        few_spoil(n_w, n_x, walk, f8_has_nan(seen) ? from : seen_to, to, out);
}
