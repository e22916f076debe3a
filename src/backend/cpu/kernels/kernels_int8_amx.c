/* kernels_int8_amx.c - sixteen rows of weights made ready times eight to sixteen rows of x, in the tiles of AMX: the
 * integers are those of AVX-512 VNNI and floats are added in its order, so the bits are the same.
 *
 * TDPBSSD does C += A B with C [M][16] in int32, A [M][K] and B [K][16] signed bytes, four columns of a row beside each
 * other:
 *
 *     A   rows of x as arranged, the columns of a part
 *     B   the part's codes made ready, signed
 *     C   D - o S of each row of x, lanes are rows of weights
 *
 * It takes M cycles, and 10 at least; storing C takes 16, however many rows it has. So sixteen rows of x cost little
 * more than eight. Formats with a scale for each 16 columns fill a half of A and B, and gain nothing: they are left to
 * AVX-512. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/kernels_vnni.h"
#include "backend/cpu/kernels/scales_vnni.h"

#include "base/status.h"

enum { HALF = SIXTEEN / 2 };

/* Where a step of a tile is, of tile->n_tiles of n_steps. */
struct place {
    const __m512i *w;
    const float *x;
    int64_t step, tile;
};

static void configure(int n_x) { tiles_configure(n_x, HALF, BLOCK, 64); }
static void release(void) { _tile_release(); }

#define MULTIPLY(c, a, b)                          \
    _tile_zero(c);                                 \
    _tile_loadd(a, x, X_TILE_ROW * sizeof(float)); \
    _tile_loadd(b, w, sizeof *w);                  \
    _tile_dpbssd(c, a, b)

static ALWAYS_INLINE void multiply_part(const int part, const struct place *at) {
    const __m512i *w = at->w + part * HALF;
    const float *x = at->x + part * HALF;
    if (part) {
        MULTIPLY(1, 5, 7);
    } else {
        MULTIPLY(0, 4, 6);
    }
}

/* As add_part, over all rows of x. */
static ALWAYS_INLINE void add_sums(const bool min, const int n_x, const int part, const struct place *at,
                                   const __m512i sums[MOST_X], __m512 y[MOST_X]) {
    const __m512i *numbers = at->w + SIXTEEN + part;
    const float *x = at->x + n_x * X_TILE_ROW + part * MOST_X;
    const __m512 scale = _mm512_loadu_ps(numbers), less = min ? _mm512_loadu_ps(numbers + 2) : scale;
    UNROLL for (int t = 0; t < n_x; t++) {
        y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums + t)),
                               _mm512_mul_ps(scale, _mm512_set1_ps(x[t])), y[t]);
        if (min)
            y[t] = _mm512_fmadd_ps(less, _mm512_set1_ps(x[2 * MOST_X + t]), y[t]);
    }
}

/* To the next step; behind the last one it stays there. */
static ALWAYS_INLINE void pass_step(const struct tile *tile, const int vectors, const int x_floats, struct place *at) {
    if (++at->step < tile->n_steps) {
        at->w += vectors;
        at->x += x_floats;
    } else if (at->tile + 1 < tile->n_tiles) {
        at->tile++;
        at->step = 0;
        at->w += vectors;
        at->x = tile->x;
    }
}

/* A part is multiplied, its C stored behind the product after it, and added two products later, when it has left the
 * store buffer: nothing is forwarded from a tile. Vectors, products and stores of tiles share ports, so they take turns
 * part by part. With more tiles under way nothing is gained, and all goes half as fast where another thread uses the
 * core. Tiles follow each other without a gap. */
static ALWAYS_INLINE void multiply_steps(const bool min, const int n_x, const struct tile *tile) {
    const int vectors = SIXTEEN + 2 * (min ? 2 : 1);
    const int64_t n = tile->n_steps * tile->n_tiles;
    _Alignas(64) __m512i sums[2][2][MOST_X];
    struct place from = {tile->w, tile->x}, at = from; // what is multiplied, what is added
    const uint8_t *ahead = tile->ahead;
    __m512 y[MOST_X] = {0};
    TILE_FENCE(sums);
    for (int64_t s = 0; s < n + 2; s++) { // that is multiplied; the last two are not added
        __m512i(*own)[MOST_X] = sums[s % 2], (*before)[MOST_X] = sums[(s + 1) % 2];
        for (const uint8_t *to = ahead + tile->ahead_bytes; ahead < to; ahead += 64)
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        multiply_part(0, &from);
        _tile_stored(1, before[1], sizeof **before);
        if (s >= 2) { // the step two before
            add_sums(min, n_x, 1, &at, own[1], y);
            if (at.step + 1 == tile->n_steps)
                UNROLL for (int t = 0; t < n_x; t++) tile->y[at.tile * MOST_X + t] = y[t];
            pass_step(tile, vectors, X_TILE(n_x), &at);
        }
        multiply_part(1, &from);
        _tile_stored(0, own[0], sizeof **own);
        pass_step(tile, vectors, X_TILE(n_x), &from);
        if (s >= 1 && s <= n) { // the step before
            if (at.step == 0)
                UNROLL for (int t = 0; t < n_x; t++) y[t] = tile->y[at.tile * MOST_X + t];
            add_sums(min, n_x, 0, &at, before[0], y);
        }
        TILE_FENCE(sums);
    }
}

#define TILE(n)                                                                        \
    static void plain_##n(const struct tile *tile) { multiply_steps(false, n, tile); } \
    static void with_min_##n(const struct tile *tile) { multiply_steps(true, n, tile); }
#define EACH_N(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
EACH_N(TILE)
#define ROW(kind) \
    { kind##_8, kind##_9, kind##_10, kind##_11, kind##_12, kind##_13, kind##_14, kind##_15, kind##_16 }

static void multiply_tile(enum qformat_id id, int n_x, const struct tile *tile) {
    static void (*const functions[2][MOST_X - FEW_ROWS + 1])(const struct tile *tile) = {ROW(plain), ROW(with_min)};
    BUG_IF(n_x < FEW_ROWS || n_x > MOST_X);
    functions[has_min(id)][n_x - FEW_ROWS](tile);
}

const struct tile_products tiles_by_amx = {
    .is_signed = true, .is_wide = true, .begin = configure, .multiply = multiply_tile, .end = release};

/* ---- weights as stored ---- */

/* With a few rows of x what took the time is codes' way to columns. So weights are A here, rows as they are,
 * and x is B; lanes are rows of x. C is D of sixteen rows of weights, which float by float are those of other ways. */
enum { BLOCKS_KEPT = 4, BLOCKS_BEHIND = 3, CODES_AHEAD = 2 };

struct stored {
    const uint8_t *p; // sixteen rows
    int64_t stride;
    const float *x;
    const uint8_t *ahead; // NULL: nothing is fetched
    int64_t n;            // blocks of a row
    uint8_t codes[BLOCKS_KEPT][SIXTEEN][BLOCK];
    int32_t sums[BLOCKS_KEPT][SIXTEEN][FEW_ROWS];
    float scales[BLOCKS_KEPT][SIXTEEN];
};

/* Codes of block b, where they are not bytes as they are stored. */
static ALWAYS_INLINE void take_codes(const enum qformat_id f, struct stored *at, int64_t b) {
    if (f == QFORMAT_Q8_0 || b >= at->n)
        return;
    // of each byte the low four bits or the high ones, less eight: bit 3 inverted, and as bits 4 to 7
    const int64_t low = 0x0102040808080808, high = 0x1020408080808080;
    const __m512i bits = _mm512_setr_epi64(low, low, high, high, low, low, high, high);
    const uint8_t *p = at->p + b * bytes_of_block(f) + halves_at(f);
    UNROLL for (int r = 0; r < SIXTEEN; r += 2) {
        const __m128i *rows[] = {(const void *)(p + r * at->stride), (const void *)(p + (r + 1) * at->stride)};
        __m512i v = _mm512_broadcast_i64x2(_mm_loadu_si128(rows[0]));
        v = _mm512_mask_broadcast_i64x2(v, 0xF0, _mm_loadu_si128(rows[1]));
        _mm512_storeu_si512(at->codes[b % BLOCKS_KEPT][r], _mm512_gf2p8affine_epi64_epi8(v, bits, 0xF8));
    }
}

static ALWAYS_INLINE void multiply_block(const enum qformat_id f, const int odd, const struct stored *at, int64_t b) {
    const uint8_t *codes = f == QFORMAT_Q8_0 ? at->p + b * bytes_of_block(f) + 2 : at->codes[b % BLOCKS_KEPT][0];
    const int64_t stride = f == QFORMAT_Q8_0 ? at->stride : BLOCK;
    const float *x = at->x + b / 2 * X_COLUMNS + b % 2 * HALF * FEW_ROWS;
    _tile_loadd(4, codes, stride);
    _tile_loadd(6, x, FEW_ROWS * sizeof(float));
    if (odd) {
        _tile_zero(1);
        _tile_dpbssd(1, 4, 6);
    } else {
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
    }
}

static ALWAYS_INLINE void store_block(const int odd, int32_t sums[SIXTEEN][FEW_ROWS]) {
    if (odd)
        _tile_stored(1, sums, FEW_ROWS * sizeof(int32_t));
    else
        _tile_stored(0, sums, FEW_ROWS * sizeof(int32_t));
}

/* y[i] is of rows of weights 2 i and 2 i + 1. */
static ALWAYS_INLINE void add_block(const struct stored *at, int64_t b, __m512 y[FEW_ROWS]) {
    const float *s_x = at->x + b / 2 * X_COLUMNS + (16 + b % 2) * FEW_ROWS;
    const __m512 both = _mm512_castpd_ps(_mm512_broadcast_f64x4(_mm256_loadu_pd((const double *)(const void *)s_x)));
    const __m512 scale = _mm512_loadu_ps(at->scales[b % BLOCKS_KEPT]);
    UNROLL for (int i = 0; i < FEW_ROWS; i++) {
        const int a = 2 * i, c = 2 * i + 1;
        const __m512i rows = _mm512_setr_epi32(a, a, a, a, a, a, a, a, c, c, c, c, c, c, c, c);
        __m512 d = _mm512_cvtepi32_ps(_mm512_loadu_si512(at->sums[b % BLOCKS_KEPT][a]));
        y[i] = _mm512_fmadd_ps(d, _mm512_mul_ps(_mm512_permutexvar_ps(rows, scale), both), y[i]);
    }
}

static ALWAYS_INLINE void pass_block(const enum qformat_id f, const int odd, struct stored *at, int64_t b,
                                     __m512 y[FEW_ROWS]) {
    struct step_scales s;
    if (at->ahead)
        UNROLL for (int i = 0; i < SIXTEEN * bytes_of_block(f); i += 64)
            _mm_prefetch((const char *)at->ahead + b * SIXTEEN * bytes_of_block(f) + i, _MM_HINT_T1);
    take_codes(f, at, b + CODES_AHEAD);
    small_scales(f, at->p + b * bytes_of_block(f), at->stride, 0, &s);
    _mm512_storeu_ps(at->scales[b % BLOCKS_KEPT], s.scale[0]);
    TILE_FENCE(at);
    multiply_block(f, odd, at, b);
    if (b > 0)
        store_block(!odd, at->sums[(b - 1) % BLOCKS_KEPT]);
    if (b >= BLOCKS_BEHIND)
        add_block(at, b - BLOCKS_BEHIND, y);
}

static ALWAYS_INLINE void multiply_sixteen(const enum qformat_id f, struct stored *at, __m512 y[FEW_ROWS]) {
    int64_t b = 0;
    UNROLL for (int r = 0; r < FEW_ROWS; r++) y[r] = _mm512_setzero_ps();
    for (int i = 0; i < CODES_AHEAD; i++)
        take_codes(f, at, i);
    for (; b + 2 <= at->n; b += 2) {
        pass_block(f, 0, at, b, y);
        pass_block(f, 1, at, b + 1, y);
    }
    if (b < at->n) {
        pass_block(f, 0, at, b, y);
        store_block(0, at->sums[b % BLOCKS_KEPT]);
    } else {
        store_block(1, at->sums[(b - 1) % BLOCKS_KEPT]);
    }
    for (b = MAX(at->n - BLOCKS_BEHIND, 0); b < at->n; b++)
        add_block(at, b, y);
}

/* To y, with the bias: the sixteen rows of weights from r on. */
static void put_columns(const struct few_rows *f, int64_t r, const __m512 y[FEW_ROWS]) {
    const __m512 bias = f->bias ? _mm512_loadu_ps(f->bias + r) : _mm512_setzero_ps();
    const __m512i rows = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                            _mm512_set1_epi32(FEW_ROWS));
    for (int t = 0; t < f->n_x; t++) {
        __m512 v = _mm512_i32gather_ps(rows, (const float *)(const void *)y + t, sizeof(float));
        _mm512_storeu_ps(f->y + t * f->y_stride + r, f->bias ? _mm512_add_ps(v, bias) : v);
    }
}

static ALWAYS_INLINE void multiply_stored(const enum qformat_id id, const struct few_rows *f) {
    struct stored at = {.stride = f->part->row_stride, .x = f->x, .n = f->n_cols / BLOCK};
    tiles_configure(SIXTEEN, HALF, BLOCK, FEW_ROWS * 4); // of integers, and of x four columns
    for (int64_t r = 0; r < f->n_rows; r += SIXTEEN) {
        int64_t first = MIN(r, f->n_rows - SIXTEEN); // rows before the last sixteen may be computed twice
        __m512 y[FEW_ROWS];
        at.p = (const uint8_t *)f->part->data + (f->row + first) * at.stride;
        at.ahead = f->near ? NULL : at.p + far_ahead(at.stride);
        multiply_sixteen(id, &at, y);
        put_columns(f, first, y);
    }
    _tile_release();
}

static void stored_q8_0(const struct few_rows *f) { multiply_stored(QFORMAT_Q8_0, f); }
static void stored_q4_0(const struct few_rows *f) { multiply_stored(QFORMAT_Q4_0, f); }

block_product *stored_by_amx(enum qformat_id id) {
    return id == QFORMAT_Q8_0 ? stored_q8_0 : id == QFORMAT_Q4_0 ? stored_q4_0 : NULL;
}
#endif
