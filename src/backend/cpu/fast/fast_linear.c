/* fast_linear.c - LINEAR and every other product with a weight.
 *
 * Counts, for T rows of x and a weight [out, in] of b bytes an element:
 *     bytes  out * in * b, each read once; x and y are small beside them
 *     flops  2 * T * out * in
 * On two Zen 4 cores (41 GB/s, 235 GFLOP/s in float32) bf16 weights are bound by memory up to some 11 rows:
 *     T = 1     floor out * in * 2 bytes / 41 GB/s
 *     T >= 16   floor 2 * T * out * in / 235 GFLOP/s
 * What is reached: docs/lab/cpu.md.
 *
 * Every row of x is multiplied in a group of at most group_rows by multiply_few, which sums in an order that does not
 * depend on the group: a sequence gets the same bits alone, in a batch and in any cut of its prompt. One group
 * multiplies weights as they are loaded. For several, weights are taken in pieces that stay in the second-level cache:
 * a few groups load them from there, many have them made floats first (AMX multiplies bf16 as it is for any number). */
#include "backend/cpu/fast/fast.h"

enum {
    NEAR_BYTES = 640 << 10,   // weights of a piece as stored ...
    READY_FLOATS = 160 << 10, // ... and as floats
    LEAST_READY = 8,          // rows that few rows of x meet ...
    LEAST_KEPT = 16,          // ... and many: AVX-512's products with blocks take so many at a time
    COMPACT = 3,              // of struct kernels, is_compact
    LEAST_DIRECT = 16,
    MOST_READY = PARTIAL_ROWS,
    MOST_TILED = 256,
    STREAM_BYTES = 128 << 10 // weights of a piece that few rows of x meet
};

/* Rows of a piece that is made ready, of so many times fewer bytes than as floats. */
static int64_t ready_rows(int64_t width, int64_t fewer) {
    int64_t n = fewer * READY_FLOATS / arranged_cols(width) / LEAST_READY * LEAST_READY;
    return MIN(MAX(n, LEAST_KEPT), MOST_READY);
}
static int64_t ready_floats(const struct kernels *k, int64_t width) {
    int64_t floats = ready_rows(width, 1), compact = k->is_compact ? (ready_rows(width, COMPACT) + 2) / COMPACT : 0;
    return MAX(floats, compact) * arranged_cols(width);
}

static int64_t group_rows(const struct kernels *k) { return k->wide ? 2 * FEW_ROWS : FEW_ROWS; }
static int64_t group_floats(const struct kernels *k, int64_t width) {
    return group_rows(k) / FEW_ROWS * arranged_floats(width);
}

/* The arranged rows of a group, then their sums so far with the rows of a piece, then weights made ready. */
int64_t product_scratch(const struct kernels *k, int64_t width) {
    return group_floats(k, width) + MOST_READY * FEW_ROWS * MOST_LANES + ready_floats(k, width);
}

/* Rows of a part, what they add to and where the result goes. */
struct run {
    const struct weight_part *part;
    int64_t row, n;
    float *y;
    int64_t y_stride;
    const float *bias;
};

static struct run piece_of(const struct run *run, int64_t at, int64_t n) {
    return (struct run){run->part, run->row + at, n, run->y + at, run->y_stride, run->bias ? run->bias + at : NULL};
}

static int64_t groups_of_rows(const struct kernels *k, int64_t n) { return (n + group_rows(k) - 1) / group_rows(k); }
static int64_t n_groups(const struct product *p) { return groups_of_rows(p->kernels, p->x.rows); }

/* The first row of group g: groups are of about the same size. */
static int64_t group_start(const struct product *p, int64_t g) { return p->x.rows * g / n_groups(p); }

static void arrange_group(const struct product *p, int arrangement, int64_t g, float *out) {
    int64_t t = group_start(p, g);
    p->kernels->arrange(arrangement, p->x.at + t * p->x.stride, p->x.stride, (int)(group_start(p, g + 1) - t),
                        p->x.width, out);
}

/* Group g as weights of this arrangement want it: what all workers share, or in this worker's scratch. */
static const float *arranged_group(struct product *p, int arrangement, int64_t g) {
    if (p->shared && p->shared_arrangement == arrangement)
        return p->shared + g * group_floats(p->kernels, p->x.width);
    if (n_groups(p) > 1 || p->arranged != arrangement)
        arrange_group(p, arrangement, g, p->scratch);
    p->arranged = arrangement;
    return p->scratch;
}

/* Whether columns go by blocks, so that x stays in the first-level cache. */
static bool goes_by_blocks(const struct product *p, const struct weight_part *part) {
    bool is_far = p->kernels->near_floats > 0 && p->x.rows > 1 && p->x.rows * p->x.width > p->kernels->near_floats;
    return p->x.rows > FEW_ROWS || (is_far && part->format->block_cols == 0);
}

/* All rows of x with n_cols columns of `part`, which is the run's or what was made of it, from row `row` on. */
static void multiply_groups(struct product *p, const struct run *run, const struct weight_part *part, int64_t row,
                            int64_t n_cols, bool near) {
    for (int64_t g = 0; g < n_groups(p); g++) {
        int64_t t = group_start(p, g);
        // kernels/blocks.c has those of blocks (GGUF, NVFP4, MXFP4), and leaves others to the set's:
        // body/formats.h:multiply_few; body/few.h:few_direct, few_tile; body/few_steps.h:few_run, few_step, whose
        // vf_fma is simd_SET.h's. Rounded to bf16: kernels_bf16.c, or kernels_amx.c.
        p->kernels->multiply_few(&(struct few_rows){
            .part = part,
            .row = row,
            .n_rows = run->n,
            .n_cols = n_cols,
            .x = arranged_group(p, p->kernels->arrangement(run->part), g),
            .n_x = (int)(group_start(p, g + 1) - t),
            .y = run->y + t * run->y_stride,
            .y_stride = run->y_stride,
            .bias = run->bias,
            .near = near || g > 0,
            .partial = goes_by_blocks(p, run->part) ? p->scratch + group_floats(p->kernels, p->x.width) : NULL,
        });
    }
}

/* Rows of a piece that goes by blocks, for many rows of x or few: a power of two, as tiles are. */
static int64_t direct_rows(const struct kernels *kernels, const struct weight_part *part, int64_t n_x) {
    int64_t row_bytes = part->row_stride * (int64_t)dtype_bytes(part->dtype),
            n = kernels->by_tiles ? MOST_TILED : MOST_READY, most_bytes = n_x > FEW_ROWS ? NEAR_BYTES : STREAM_BYTES,
            least = n_x > FEW_ROWS ? LEAST_DIRECT : LEAST_READY;
    while (n > least && n * row_bytes > most_bytes)
        n /= 2;
    return n;
}

static void multiply_direct(struct product *p, const struct run *run) {
    int64_t n = goes_by_blocks(p, run->part) ? direct_rows(p->kernels, run->part, p->x.rows) : run->n;
    for (int64_t r = 0; r < run->n; r += n) {
        struct run piece = piece_of(run, r, MIN(n, run->n - r));
        multiply_groups(p, &piece, piece.part, piece.row, p->x.width, false);
    }
}

static void multiply_ready(struct product *p, const struct run *run) {
    const struct kernels *k = p->kernels;
    int64_t width = arranged_cols(p->x.width), fewer = k->is_compact && k->is_compact(run->part) ? COMPACT : 1;
    int64_t n = p->x.rows <= FEW_ROWS ? LEAST_READY : ready_rows(p->x.width, fewer);
    float *floats = p->scratch + group_floats(p->kernels, p->x.width) + MOST_READY * FEW_ROWS * MOST_LANES;
    for (int64_t r = 0; r < run->n; r += n) {
        struct run piece = piece_of(run, r, MIN(n, run->n - r));
        struct weight_part part = p->kernels->ready(piece.part, piece.row, piece.n, p->x.width, floats);
        multiply_groups(p, &piece, &part, 0, width, true);
    }
}

void product_rows(struct product *p, int64_t begin, int64_t end, struct mat y, const float *bias) {
    for (int64_t row = begin, n; row < end && p->x.rows > 0; row += n) {
        const struct weight_part *part;
        int64_t row_in_part, at = row - begin;
        n = MIN(placed_run(p->weight, row, &part, &row_in_part), end - row);
        struct run run = {part, row_in_part, n, y.at + at, y.stride, bias ? bias + at : NULL};
        if (n_groups(p) <= p->kernels->direct_groups(part))
            multiply_direct(p, &run);
        else
            multiply_ready(p, &run);
    }
}

/* In pieces of so many bytes of weights, or fewer: long streams for few rows of x; for many, what a second-level cache
 * keeps while all of x passes by. */
void deal_columns(const struct op *op, int64_t n_x, int n_workers, struct pool_range *columns) {
    enum { KEPT_BYTES = 640 << 10, GRAIN = 32 };
    const struct weight *w = op->weights[0];
    int64_t row_bytes = MAX(weight_stored_bytes(w) / w->out, 1),
            half_share = (w->out + 2 * n_workers - 1) / (2 * n_workers);
    int64_t piece = MIN((n_x > FEW_ROWS ? KEPT_BYTES : STREAM_BYTES) / row_bytes, half_share);
    pool_range_deal(columns, w->out, MAX(piece / GRAIN * GRAIN, GRAIN));
}

static struct need linear_need(const struct loaded *l, const struct op *op, struct bucket bucket) {
    int64_t rows = MAX(bucket.max_tokens, bucket.max_rows);
    const struct kernels *k = l->products;
    return (struct need){.worker = product_scratch(k, op->in[0].width),
                         .shared = groups_of_rows(k, rows) * group_floats(k, op->in[0].width)};
}

/* x of several groups is arranged once, by all workers together. */
static void share_arranged(const struct call *c, struct product *p) {
    const struct weight_part *part;
    int64_t row, begin, end;
    placed_run(p->weight, 0, &part, &row);
    p->shared = c->shared;
    p->shared_arrangement = p->kernels->arrangement(part);
    call_share(c, n_groups(p), 1, &begin, &end);
    for (int64_t g = begin; g < end; g++)
        arrange_group(p, p->shared_arrangement, g, c->shared + g * group_floats(p->kernels, p->x.width));
    call_barrier(c); // all of x, before anyone multiplies it
}

static void fast_linear(const struct call *c) {
    struct mat y = c->out[0];
    struct product p = {.kernels = c->loaded->products, .weight = c->weight[0], .x = c->in[0], .scratch = c->scratch};
    const float *bias = call_floats(c, 1);
    if (n_groups(&p) > 1)
        share_arranged(c, &p);
    for (int64_t begin, end; pool_range_take(c->rows, c->worker, &begin, &end);)
        product_rows(&p, begin, end, (struct mat){y.at + begin, y.stride, y.rows, end - begin},
                     bias ? bias + begin : NULL);
}

const struct fast_op fast_op_linear = {fast_linear, linear_need};
