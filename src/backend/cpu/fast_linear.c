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

enum { DEPTH = 256 };

int64_t multiply_rows_scratch(int64_t width) { return MAX((FEW_ROWS + 1) * arranged_cols(width), 2 * PANEL_ROWS * DEPTH); }

/* Rows [row, row + n) of one part. scratch: the arranged rows of x, then one row of weights. */
static void multiply_few_rows(const struct kernels *k, const struct weight_part *part, int64_t row, int64_t n, struct mat x, float *y,
                              int64_t y_stride, const float *bias, float *scratch) {
    k->arrange(part, x.at, x.stride, (int)x.rows, x.width, scratch);
    k->multiply_few(&(struct few_rows){.part = part,
                                       .row = row,
                                       .n_rows = n,
                                       .n_cols = x.width,
                                       .x = scratch,
                                       .n_x = (int)x.rows,
                                       .y = y,
                                       .y_stride = y_stride,
                                       .bias = bias,
                                       .scratch = scratch + FEW_ROWS * arranged_cols(x.width)});
}

/* panel [depth][PANEL_ROWS] from columns [col, col + depth) of n <= PANEL_ROWS rows. scratch: PANEL_ROWS * DEPTH floats. */
static void make_panel(const struct kernels *k, const struct weight_part *part, int64_t row, int64_t n, int64_t col, int64_t depth,
                       float *panel, float *scratch) {
    for (int64_t r = 0; r < n; r++)
        k->convert(part, row + r, col, depth, scratch + r * DEPTH);
    k->pack(scratch, DEPTH, n, depth, panel);
}

static void multiply_many_rows(const struct kernels *k, const struct weight_part *part, int64_t row, int64_t n, struct mat x, float *y,
                               int64_t y_stride, const float *bias, float *scratch) {
    float *panel = scratch, *converted = scratch + PANEL_ROWS * DEPTH;
    for (int64_t r = 0; r < n; r += PANEL_ROWS) {
        int64_t width = MIN(n - r, PANEL_ROWS);
        for (int64_t col = 0; col < x.width; col += DEPTH) {
            int64_t depth = MIN(x.width - col, DEPTH);
            make_panel(k, part, row + r, width, col, depth, panel, converted);
            k->multiply(x.rows, width, depth, x.at + col, x.stride, panel, PANEL_ROWS, y + r, y_stride, col > 0);
        }
        for (int64_t t = 0; bias && t < x.rows; t++)
            k->add_scaled(y + t * y_stride + r, 1, bias + r, width);
    }
}

void multiply_rows(const struct kernels *k, const struct placed *w, int64_t begin, int64_t end, struct mat x, struct mat y,
                   const float *bias, float *scratch) {
    for (int64_t row = begin, n; row < end && x.rows > 0; row += n) {
        const struct weight_part *part;
        int64_t row_in_part, at = row - begin;
        n = MIN(placed_run(w, row, &part, &row_in_part), end - row);
        if (x.rows <= FEW_ROWS)
            multiply_few_rows(k, part, row_in_part, n, x, y.at + at, y.stride, bias ? bias + at : NULL, scratch);
        else
            multiply_many_rows(k, part, row_in_part, n, x, y.at + at, y.stride, bias ? bias + at : NULL, scratch);
    }
}

void fast_linear(const struct call *c) {
    struct mat x = c->in[0], y = c->out[0];
    const float *bias = call_floats(c, 1);
    int64_t begin, end;
    call_share(c, y.width, 32, &begin, &end);
    multiply_rows(c->backend->kernels, c->weight[0], begin, end, x, (struct mat){y.at + begin, y.stride, y.rows, end - begin},
                  bias ? bias + begin : NULL, c->scratch);
}
