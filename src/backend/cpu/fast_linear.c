/* fast_linear.c - LINEAR and every other product with a weight.
 *
 * Counts, for T rows of x and a weight [out, in] of b bytes an element:
 *     bytes  out * in * b, each read once; x and y are small beside them
 *     flops  2 * T * out * in
 * On two Zen 4 cores (41 GB/s, 235 GFLOP/s in float32) bf16 weights are bound by memory up to some 11 rows:
 *     T = 1     floor out * in * 2 bytes / 41 GB/s
 *     T >= 16   floor 2 * T * out * in / 235 GFLOP/s
 * What is reached: docs/benchmarks.md, "CPU".
 *
 * Up to FEW_ROWS rows go through multiply_few, which multiplies weights as they are loaded. More rows go by
 * panels of 32 output columns x DEPTH inputs: a panel is converted to floats and turned once, stays in the
 * second-level cache, and all rows of x are multiplied with it in register tiles. */
#include "backend/cpu/fast.h"

enum { DEPTH = 512 };

int64_t product_scratch(int64_t width) { return MAX((FEW_ROWS + 1) * arranged_cols(width), 2 * PANEL_ROWS * DEPTH); }

/* Rows [row, row + n) of one part. scratch: the arranged rows of x, then one row of weights. */
static void multiply_few_rows(struct product *p, const struct weight_part *part, int64_t row, int64_t n, float *y, int64_t y_stride,
                              const float *bias) {
    struct mat x = p->x;
    int arrangement = p->kernels->arrangement(part);
    if (p->arranged != arrangement)
        p->kernels->arrange(arrangement, x.at, x.stride, (int)x.rows, x.width, p->scratch);
    p->arranged = arrangement;
    p->kernels->multiply_few(&(struct few_rows){.part = part,
                                                .row = row,
                                                .n_rows = n,
                                                .n_cols = x.width,
                                                .x = p->scratch,
                                                .n_x = (int)x.rows,
                                                .y = y,
                                                .y_stride = y_stride,
                                                .bias = bias,
                                                .scratch = p->scratch + FEW_ROWS * arranged_cols(x.width)});
}

/* panel [depth][PANEL_ROWS] from columns [col, col + depth) of n <= PANEL_ROWS rows. scratch: PANEL_ROWS * DEPTH floats. */
static void make_panel(const struct kernels *k, const struct weight_part *part, int64_t row, int64_t n, int64_t col, int64_t depth,
                       float *panel, float *scratch) {
    for (int64_t r = 0; r < n; r++)
        k->convert(part, row + r, col, depth, scratch + r * DEPTH);
    k->pack(scratch, DEPTH, n, depth, panel);
}

/* The weights of a panel, 32 short pieces of as many rows, come slowly when asked for one after the other; the
 * product with the panel before is long enough to fetch them. */
static void prefetch_panel(const struct weight_part *part, int64_t row, int64_t n, int64_t col, int64_t depth) {
    int64_t bits = part->format->bits == 4 ? 4 : 8 * (int64_t)dtype_bytes(part->dtype);
    int64_t row_bytes = part->row_stride * (int64_t)dtype_bytes(part->dtype);
    for (int64_t r = row; r < row + n; r++)
        prefetch_bytes((const char *)part->data + r * row_bytes + col * bits / 8, depth * bits / 8);
}

static void multiply_many_rows(struct product *p, const struct weight_part *part, int64_t row, int64_t n, float *y, int64_t y_stride,
                               const float *bias) {
    const struct kernels *k = p->kernels;
    struct mat x = p->x;
    float *panel = p->scratch, *converted = p->scratch + PANEL_ROWS * DEPTH;
    for (int64_t r = 0; r < n; r += PANEL_ROWS) {
        int64_t width = MIN(n - r, PANEL_ROWS);
        for (int64_t col = 0; col < x.width; col += DEPTH) {
            int64_t depth = MIN(x.width - col, DEPTH);
            make_panel(k, part, row + r, width, col, depth, panel, converted);
            if (col + depth < x.width)
                prefetch_panel(part, row + r, width, col + depth, MIN(x.width - col - depth, DEPTH));
            else
                prefetch_panel(part, row + r + width, MIN(n - r - width, PANEL_ROWS), 0, MIN(x.width, DEPTH));
            k->multiply(x.rows, width, depth, x.at + col, x.stride, panel, PANEL_ROWS, y + r, y_stride, col > 0);
        }
        for (int64_t t = 0; bias && t < x.rows; t++)
            k->add_scaled(y + t * y_stride + r, 1, bias + r, width);
    }
}

void product_rows(struct product *p, int64_t begin, int64_t end, struct mat y, const float *bias) {
    for (int64_t row = begin, n; row < end && p->x.rows > 0; row += n) {
        const struct weight_part *part;
        int64_t row_in_part, at = row - begin;
        n = MIN(placed_run(p->weight, row, &part, &row_in_part), end - row);
        if (p->x.rows <= FEW_ROWS)
            multiply_few_rows(p, part, row_in_part, n, y.at + at, y.stride, bias ? bias + at : NULL);
        else
            multiply_many_rows(p, part, row_in_part, n, y.at + at, y.stride, bias ? bias + at : NULL);
    }
}

void fast_linear(const struct call *c) {
    struct mat y = c->out[0];
    struct product p = {.kernels = c->backend->kernels, .weight = c->weight[0], .x = c->in[0], .scratch = c->scratch};
    const float *bias = call_floats(c, 1);
    for (int64_t begin, end; pool_range_take(c->rows, c->worker, &begin, &end);)
        product_rows(&p, begin, end, (struct mat){y.at + begin, y.stride, y.rows, end - begin}, bias ? bias + begin : NULL);
}
