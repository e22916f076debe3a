/* kernels_vnni.c - block formats times activations of 8 bits: how x is rounded (kernels_vnni.h has its order), and
 * rows of weights by sixteens. One row of x meets them as they are stored, several meet them made ready, for many rows
 * of x once; with AMX kernels_int8_amx.c says which do not. */
#if defined(__x86_64__)
#include "backend/cpu/kernels/vnni/tiles.h"

#include "base/status.h"

#include <limits.h>
#include <math.h>

enum {
    BY_BYTES = VNNI_ARRANGEMENTS,
    FOR_AMX = AMX_ARRANGEMENTS,
    WITH_COLUMNS,
    MOST_TILES = 4,
    LEAST_TILED = FEW_ROWS + 1 // rows of x that tiles are faster for, where codes are made ready for each time
};

/* ---- activations ---- */

/* The columns of block b of a step, `left` of which exist. */
static ALWAYS_INLINE void round_block(const float *x, int64_t left, const int b, float *out) {
    __mmask16 some = left >= 16 ? 0xFFFF : (__mmask16)((1u << MAX(left, 0)) - 1);
    __mmask16 more = left >= 32 ? 0xFFFF : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
    __m512 v[2] = {_mm512_maskz_loadu_ps(some, x), _mm512_maskz_loadu_ps(more, x + 16)};
    float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])));
    __m512 zero = _mm512_setzero_ps(); // NaN of what is none
    zero = _mm512_fmadd_ps(v[0], zero, _mm512_mul_ps(v[1], zero));
    bool is_number = _mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q) == 0;
    float factor = is_number && most > 0 ? 127.0f / most : 0;
    if (!isfinite(factor)) // denormal: as zeros
        factor = 0;
    float s = is_number ? most / 127.0f : NAN;
    int32_t taken[2];
    UNROLL for (int h = 0; h < 2; h++) {
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[h], _mm512_set1_ps(factor)));
        _mm_storeu_si128((__m128i *)(void *)out + 2 * b + h, _mm512_cvtsepi32_epi8(q));
        taken[h] = -_mm512_reduce_add_epi32(q);
        memcpy(out + X_TAKEN_QUARTERS + 2 * b + h, &taken[h], sizeof taken[h]);
        out[X_MIN_QUARTERS + 2 * b + h] = s * (float)taken[h];
    }
    int32_t both = taken[0] + taken[1];
    memcpy(out + X_TAKEN + b, &both, sizeof both);
    out[X_SCALE + b] = s;
    out[X_MIN + b] = s * (float)both;
}

/* A step of a row, of whose columns `left` exist. */
static ALWAYS_INLINE void arrange_step(const float *x, int64_t left, float out[X_FLOATS]) {
    round_block(x, left, 0, out);
    round_block(left > BLOCK ? x + BLOCK : x, left - BLOCK, 1, out);
    out[X_FLOATS - 2] = out[X_FLOATS - 1] = 0;
}

static void arrange(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    (void)how;
    for (int64_t c = 0; c < n; c += STEP)
        for (int t = 0; t < n_x; t++, out += X_FLOATS)
            arrange_step(x + t * x_stride + c, n - c, out);
}

/* Rows that are arranged already, by columns (kernels_vnni.h): those that are not there as zeros. */
static void turn_columns(const float *x, int n_x, int64_t n_steps, float *out) {
    memset(out, 0, (size_t)(n_steps * X_COLUMNS) * sizeof *out);
    for (int64_t s = 0; s < n_steps; s++, out += X_COLUMNS)
        for (int t = 0; t < n_x; t++, x += X_FLOATS) {
            for (int k = 0; k < 16; k++)
                memcpy(out + k * FEW_ROWS + t, x + k, sizeof *out);
            for (int b = 0; b < 2; b++)
                out[(16 + b) * FEW_ROWS + t] = x[X_SCALE + b];
        }
}

/* Row t of a step of n_x, arranged already, for tiles. */
static ALWAYS_INLINE void put_tile_row(const float row[X_FLOATS], int n_x, int t, float *step) {
    float *numbers = step + n_x * X_TILE_ROW + t;
    memcpy(step + t * X_TILE_ROW, row, STEP);
    for (int b = 0; b < 2; b++) {
        numbers[b * MOST_X] = row[X_SCALE + b];
        numbers[(2 + b) * MOST_X] = row[X_MIN + b];
    }
}

/* For tiles (kernels_vnni.h). */
static void arrange_tiles(const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    for (int64_t c = 0; c < n; c += STEP, out += X_TILE(n_x))
        for (int t = 0; t < n_x; t++) {
            float row[X_FLOATS];
            arrange_step(x + t * x_stride + c, n - c, row);
            put_tile_row(row, n_x, t, out);
        }
}

/* The same from rows that are arranged already. */
static void copy_tiles(const float *x, int n_x, int64_t n_steps, float *out) {
    for (int64_t s = 0; s < n_steps; s++, out += X_TILE(n_x))
        for (int t = 0; t < n_x; t++, x += X_FLOATS)
            put_tile_row(x, n_x, t, out);
}

static int64_t n_steps(int64_t n_cols) { return (n_cols + STEP - 1) / STEP; }

/* Fewer are no faster. */
static bool has_columns(int n_x) { return n_x > FEW_ROWS / 2 && n_x <= FEW_ROWS; }

/* Up to FEW_ROWS as for VNNI, then by columns where the format has products for them. For tiles, which of up to
 * FEW_ROWS only a whole group meets, when weights are made ready, it comes last. */
static int64_t before_columns(int n_x, int64_t steps) { return steps * n_x * X_FLOATS; }
static int64_t before_tiles(int n_x, int64_t steps) {
    return n_x > FEW_ROWS ? 0 : before_columns(n_x, steps) + steps * X_COLUMNS;
}

static void arrange_for_amx(int how, const float *x, int64_t x_stride, int n_x, int64_t n, float *out) {
    const int64_t steps = n_steps(n);
    if (n_x > FEW_ROWS) {
        arrange_tiles(x, x_stride, n_x, n, out);
        return;
    }
    arrange(how, x, x_stride, n_x, n, out);
    if (how == WITH_COLUMNS && has_columns(n_x))
        turn_columns(out, n_x, steps, out + before_columns(n_x, steps));
    if (n_x == FEW_ROWS)
        copy_tiles(out, n_x, steps, out + before_tiles(n_x, steps));
}

/* ---- formats ---- */

static const struct sixteen_functions *functions_of(enum qformat_id id) {
    static const struct sixteen_functions *const functions[N_QFORMATS] = {
#define ROW(id) [QFORMAT_##id] = &sixteen_##id,
        SMALL_BLOCKS(ROW) LARGE_BLOCKS(ROW) RARE_BLOCKS(ROW)
#undef ROW
    };
    return functions[id];
}

/* What parts made ready name as their format: its number is that of the blocks they were. */
static const struct qformat ready_formats[N_QFORMATS] = {
#define ROW(name) [QFORMAT_##name] = {.id = QFORMAT_##name},
    SMALL_BLOCKS(ROW) LARGE_BLOCKS(ROW) RARE_BLOCKS(ROW)
#undef ROW
};

/* ---- tiles ---- */

/* Part i of a step: a vector of weights serves as many products as there are rows of x, whose bytes are broadcast from
 * memory. */
static ALWAYS_INLINE void multiply_part(const struct tile_kind kind, const int n_x, const __m512i *w, const float *x,
                                        const int i, __m512 y[FEW_ROWS]) {
    const int vectors = SIXTEEN / kind.parts;
    __m512i sum[FEW_ROWS];
    UNROLL for (int t = 0; t < n_x; t++) sum[t] =
        kind.offset_bits < 0 ? _mm512_setzero_si512()
                             : _mm512_slli_epi32(taken_of(x + t * X_FLOATS, kind.parts, i), (unsigned)kind.offset_bits);
    UNROLL for (int k = i * vectors; k < (i + 1) * vectors; k++) {
        __m512i codes = _mm512_loadu_si512(w + k);
        UNROLL for (int t = 0; t < n_x; t++) {
            const int32_t *four = (const int32_t *)(const void *)(x + t * X_FLOATS + k);
            sum[t] = _mm512_dpbusd_epi32(sum[t], codes, _mm512_set1_epi32(*four));
        }
    }
    __m512 scale = _mm512_loadu_ps(w + SIXTEEN + i),
           less = kind.min ? _mm512_loadu_ps(w + SIXTEEN + kind.parts + i) : scale;
    UNROLL for (int t = 0; t < n_x; t++) y[t] =
        add_part(kind.min, kind.parts, sum[t], scale, less, x + t * X_FLOATS, i, y[t]);
}

static ALWAYS_INLINE void multiply_steps(const struct tile_kind kind, const int n_x, const struct tile *tile) {
    const int vectors = SIXTEEN + kind.parts * (kind.min ? 2 : 1);
    const __m512i *w = tile->w;
    const float *x = tile->x;
    const uint8_t *ahead = tile->ahead, *to = ahead;
    __m512 y[FEW_ROWS];
    UNROLL for (int t = 0; t < n_x; t++) y[t] = tile->y[t];
    for (int64_t s = 0; s < tile->n_steps; s++, w += vectors, x += n_x * X_FLOATS) {
        for (to += tile->ahead_bytes; ahead < to; ahead += 64)
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        UNROLL for (int i = 0; i < kind.parts; i++) multiply_part(kind, n_x, w, x, i, y);
    }
    UNROLL for (int t = 0; t < n_x; t++) tile->y[t] = y[t];
}

static const struct tile_products tiles_by_vnni = {.multiply = multiply_tile};

/* ---- rows of weights ---- */

/* The sixteen at row r of n: the last one begins sixteen rows before the end, and some rows are computed twice. */
static int64_t sixteen_start(int64_t r, int64_t n) { return n >= SIXTEEN && r > n - SIXTEEN ? n - SIXTEEN : r; }

/* To y, with the bias: lanes [0, n) as rows r ... */
static ALWAYS_INLINE void put(const struct few_rows *f, int64_t r, int64_t n, int t, __m512 y) {
    __mmask16 some = (__mmask16)((1u << n) - 1);
    if (f->bias)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(some, f->bias + r));
    _mm512_mask_storeu_ps(f->y + t * f->y_stride + r, some, y);
}

/* One row of x. Fewer rows than sixteen go one by one, as sixteen times the same. */
static void multiply_one(const struct few_rows *f) {
    const int64_t stride = f->part->row_stride, n = f->n_rows, step = n < SIXTEEN ? 1 : SIXTEEN;
    const uint8_t *w = (const uint8_t *)f->part->data + f->row * stride;
    const struct sixteen_functions *sixteen = functions_of(f->part->format->id);
    for (int64_t at = 0; at < n; at += step) {
        int64_t r = sixteen_start(at, n);
        put(f, r, step, 0, sixteen->one(w + r * stride, n < SIXTEEN ? 0 : stride, f->x, f->n_cols, f->near));
    }
}

static void put_all(const struct few_rows *f, int64_t r, const __m512 *y) {
    for (int t = 0; t < f->n_x; t++)
        put(f, sixteen_start(r, f->n_rows), MIN(f->n_rows, SIXTEEN), t, y[t]);
}

static int64_t x_step(const struct tile_products *tiles, int n_x) {
    return tiles->is_wide ? X_TILE(n_x) : n_x * X_FLOATS;
}

static void multiply_ready(const struct tile_products *tiles, const struct few_rows *f) {
    const enum qformat_id id = f->part->format->id;
    const int64_t steps = n_steps(f->part->row_stride);
    const int64_t each = (tiles->is_wide ? MOST_TILES : 1) * SIXTEEN;
    struct tile tile = {.w = f->part->data, .n_steps = steps, .x = f->x};
    for (int64_t r = 0; r < f->n_rows; r += each) {
        __m512 y[MOST_TILES][MOST_X] = {0};
        tile.y = y[0];
        tile.n_tiles = (MIN(f->n_rows - r, each) + SIXTEEN - 1) / SIXTEEN;
        tiles->multiply(id, f->n_x, &tile);
        for (int64_t i = 0; i < tile.n_tiles; i++)
            put_all(f, r + i * SIXTEEN, y[i]);
        tile.w += tile.n_tiles * steps * step_vectors(id);
    }
}

/* Weights as they are stored, made ready by pieces that stay in the first-level cache. */
static void multiply_several(const struct tile_products *tiles, const struct few_rows *f) {
    enum { PIECE = 4, MOST_VECTORS = SIXTEEN + 2 * MOST_PARTS }; // steps
    const struct qformat *format = f->part->format;
    const int64_t stride = f->part->row_stride;
    __m512i ready[PIECE * MOST_VECTORS];
    for (int64_t r = 0; r < f->n_rows; r += SIXTEEN) {
        const uint8_t *p = (const uint8_t *)f->part->data + (f->row + sixteen_start(r, f->n_rows)) * stride;
        __m512 y[MOST_X] = {0};
        struct tile tile = {.w = ready, .n_tiles = 1, .x = f->x, .y = y};
        if (!f->near) {
            tile.ahead = p + far_ahead(stride);
            tile.ahead_bytes = SIXTEEN * STEP * format->block_bytes / format->block_cols;
        }
        for (int64_t c = 0; c < f->n_cols; c += PIECE * STEP) {
            int64_t n = MIN(f->n_cols - c, PIECE * STEP);
            functions_of(format->id)
                ->ready(p + block_row_bytes(format, c), stride, f->n_rows, n, tiles->is_signed, ready);
            tile.n_steps = n_steps(n);
            tiles->multiply(format->id, f->n_x, &tile);
            tile.x += tile.n_steps * x_step(tiles, f->n_x);
            tile.ahead += tile.n_steps * tile.ahead_bytes;
        }
        put_all(f, r, y);
    }
}

static void multiply_by(const struct tile_products *tiles, const struct few_rows *f) {
    const enum qformat_id id = f->part->format->id;
    bool is_ready = f->part->format == &ready_formats[id];
    if (f->n_x == 1 && !is_ready) {
        multiply_one(f);
        return;
    }
    if (tiles->begin)
        tiles->begin(f->n_x);
    if (is_ready)
        multiply_ready(tiles, f);
    else
        multiply_several(tiles, f);
    if (tiles->end)
        tiles->end();
}

static void multiply_vnni(const struct few_rows *f) { multiply_by(&tiles_by_vnni, f); }
static void multiply_amx(const struct few_rows *f) {
    bool is_ready = f->part->format == &ready_formats[f->part->format->id];
    block_product *stored = is_ready ? NULL : stored_by_amx(f->part->format->id);
    struct few_rows own = *f;
    BUG_IF(is_ready && f->n_x < FEW_ROWS);
    if (stored && has_columns(f->n_x) && f->n_rows >= SIXTEEN) {
        own.x += before_columns(f->n_x, n_steps(f->n_cols));
        stored(&own);
    } else if (f->n_x < LEAST_TILED && !is_ready) {
        multiply_by(&tiles_by_vnni, f);
    } else {
        own.x += before_tiles(f->n_x, n_steps(f->n_cols));
        multiply_by(&tiles_by_amx, &own);
    }
}

static block_product *product_by_vnni(const struct weight_part *part) {
    return functions_of(part->format->id) ? multiply_vnni : NULL;
}
static block_product *product_by_amx(const struct weight_part *part) {
    return functions_of(part->format->id) && n_parts(part->format->id) == 2 ? multiply_amx : NULL;
}

static int arrangement(const struct weight_part *part) { return (void)part, BY_BYTES; }
static int arrangement_for_amx(const struct weight_part *part) {
    return stored_by_amx(part->format->id) ? WITH_COLUMNS : FOR_AMX;
}

static struct weight_part make_codes(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n,
                                     bool is_signed, float *out) {
    const enum qformat_id id = part->format->id;
    const int64_t sixteen = n_steps(n) * step_vectors(id);
    const uint8_t *w = (const uint8_t *)part->data + row * part->row_stride;
    __m512i *to = (__m512i *)(void *)out;
    for (int64_t r = 0; r < n_rows; r += SIXTEEN, to += sixteen)
        functions_of(id)->ready(w + sixteen_start(r, n_rows) * part->row_stride, part->row_stride, n_rows, n, is_signed,
                                to);
    return (struct weight_part){
        .format = &ready_formats[id], .dtype = DT_U8, .data = out, .n_rows = n_rows, .row_stride = n, .col_stride = 1};
}

static struct weight_part make_ready(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n,
                                     float *out) {
    return make_codes(part, row, n_rows, n, false, out);
}
static struct weight_part make_signed(const struct weight_part *part, int64_t row, int64_t n_rows, int64_t n,
                                      float *out) {
    return make_codes(part, row, n_rows, n, true, out);
}

const struct block_products products_vnni = {.of = product_by_vnni,
                                             .arrangements = VNNI_ARRANGEMENTS,
                                             .arrangement = arrangement,
                                             .arrange = arrange,
                                             .direct_groups = 1,
                                             .ready = make_ready,
                                             .others = &products_avx2};
const struct block_products products_amx = {.of = product_by_amx,
                                            .arrangements = AMX_ARRANGEMENTS,
                                            .arrangement = arrangement_for_amx,
                                            .arrange = arrange_for_amx,
                                            .compact = true,
                                            .wide = true,
                                            .direct_groups = 1,
                                            .ready = make_signed,
                                            .others = &products_vnni};
#endif
