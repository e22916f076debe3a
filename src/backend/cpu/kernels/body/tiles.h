/* tiles.h - part of kernels_body.h: matrices of floats multiplied, for attention and recurrences and not for LINEAR
 * (few.h): tiles of C in registers.
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
