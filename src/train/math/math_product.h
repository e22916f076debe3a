/* math_product.h - part of math_body.h: c = a b in tiles that lie in registers (Goto and van de Geijn 2008).
 *
 * Panels of a (TILE_ROWS rows) and of b (TILE_COLS columns) are copied so that the innermost loop reads both in order,
 * whatever their strides; DEPTH of the sum at a time. An element is always summed in the same order, wherever it stands
 * in a tile and whoever computes it. */

enum { TILE_COLS = 2 * LANES, DEPTH = 128, ROWS = 8 * TILE_ROWS, COLS = 512 };

/* [TILE_ROWS, depth] of a, as depth columns; rows beyond are 0. */
static void pack_rows(const struct NAME(matrix) * a, int64_t row, int64_t k, int64_t depth, REAL *out) {
    int64_t n = a->rows - row < TILE_ROWS ? a->rows - row : TILE_ROWS;
    for (int64_t r = 0; r < TILE_ROWS; r++) {
        const REAL *from = a->at + (row + r) * a->row_stride + k * a->col_stride;
        for (int64_t i = 0; i < depth; i++)
            out[i * TILE_ROWS + r] = r < n ? from[i * a->col_stride] : 0;
    }
}

/* [depth, TILE_COLS] of b; columns beyond are 0. */
static void pack_cols(const struct NAME(matrix) * b, int64_t k, int64_t col, int64_t depth, REAL *out) {
    int64_t n = b->cols - col < TILE_COLS ? b->cols - col : TILE_COLS;
    const REAL *from = b->at + k * b->row_stride + col * b->col_stride;
    if (b->col_stride == 1 && n == TILE_COLS) {
        for (int64_t i = 0; i < depth; i++)
            memcpy(out + i * TILE_COLS, from + i * b->row_stride, TILE_COLS * sizeof *out);
        return;
    }
    for (int64_t j = 0; j < TILE_COLS; j++)
        for (int64_t i = 0; i < depth; i++)
            out[i * TILE_COLS + j] = j < n ? from[i * b->row_stride + j * b->col_stride] : 0;
}

/* A tile of the sum over `depth`, added to or written to c, of which rows x cols are there. */
static void tile(int64_t depth, const REAL *a, const REAL *b, REAL *c, int64_t stride, int64_t rows, int64_t cols,
                 bool add_it) {
    vec sum[TILE_ROWS][2];
    for (int r = 0; r < TILE_ROWS; r++)
        sum[r][0] = sum[r][1] = vec_set(0);
    for (int64_t i = 0; i < depth; i++) {
        vec b0 = *(const vec *)(b + i * TILE_COLS), b1 = *(const vec *)(b + i * TILE_COLS + LANES);
        _Pragma("GCC unroll 12") for (int r = 0; r < TILE_ROWS; r++) {
            vec x = vec_set(a[i * TILE_ROWS + r]);
            sum[r][0] = vec_fma(x, b0, sum[r][0]);
            sum[r][1] = vec_fma(x, b1, sum[r][1]);
        }
    }
    if (cols == TILE_COLS) {
        for (int r = 0; r < rows; r++) {
            vec *to = (vec *)(c + r * stride);
            for (int i = 0; i < 2; i++)
                if (add_it)
                    to[i] += sum[r][i];
                else
                    to[i] = sum[r][i];
        }
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++)
            c[r * stride + j] = ((const REAL *)sum[r])[j] + (add_it ? c[r * stride + j] : 0);
}

/* Rows [row, row + ROWS) and columns [col, col + COLS) of c, the columns packed. */
static void block(const struct NAME(matrix) * c, bool add_it, const struct NAME(matrix) * a, int64_t row, int64_t end,
                  int64_t k, int64_t depth, int64_t col, int64_t cols, const REAL *packed_b, REAL *packed_a) {
    for (int64_t r = row; r < end; r += TILE_ROWS)
        pack_rows(a, r, k, depth, packed_a + (r - row) * depth);
    for (int64_t j = 0; j < cols; j += TILE_COLS)
        for (int64_t r = row; r < end; r += TILE_ROWS)
            tile(depth, packed_a + (r - row) * depth, packed_b + j * depth, c->at + r * c->row_stride + col + j,
                 c->row_stride, end - r < TILE_ROWS ? end - r : TILE_ROWS, cols - j < TILE_COLS ? cols - j : TILE_COLS,
                 add_it);
}

/* The rows [first, end) of c, by one worker. */
static void product_rows(REAL *scratch, const struct NAME(matrix) * c, bool add_it, const struct NAME(matrix) * a,
                         const struct NAME(matrix) * b, int64_t first, int64_t end) {
    REAL *packed_a = scratch, *packed_b = scratch + ROWS * DEPTH;
    for (int64_t col = 0; col < b->cols; col += COLS) {
        int64_t cols = b->cols - col < COLS ? b->cols - col : COLS;
        for (int64_t k = 0; k < a->cols; k += DEPTH) {
            int64_t depth = a->cols - k < DEPTH ? a->cols - k : DEPTH;
            for (int64_t j = 0; j < cols; j += TILE_COLS)
                pack_cols(b, k, col + j, depth, packed_b + j * depth);
            for (int64_t row = first; row < end; row += ROWS)
                block(c, add_it || k > 0, a, row, end - row < ROWS ? end : row + ROWS, k, depth, col, cols, packed_b,
                      packed_a);
        }
    }
}

static void product(const struct worker *w, const struct NAME(matrix) * c, bool add_it, const struct NAME(matrix) * a,
                    const struct NAME(matrix) * b) {
    int64_t first, end;
    BUG_IF(c->col_stride != 1 || a->cols != b->rows || c->rows != a->rows || c->cols != b->cols || a->cols == 0);
    worker_share(w, c->rows, TILE_ROWS, &first, &end);
    if (first < end)
        product_rows(w->scratch, c, add_it, a, b, first, end);
}
