/* kernels_int8_amx.c - tiles of sixteen rows of weights made ready times up to sixteen rows of x (vnni/tiles.h), in the
 * tiles of AMX: the integers are those of AVX-512 VNNI and floats are added in its order, so the bits are the same.
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
 * AVX-512. A store waits for its product with all that came behind it, so it follows a step later. */
#if defined(__x86_64__)
#define WIDE_TILES
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/scales_vnni.h"
#include "backend/cpu/kernels/vnni/tiles.h"

/* C of both parts of a step. It must have left the store buffer before it is loaded, as nothing is forwarded from a
 * tile. It is not where C is being stored in 4 KiB, as the processor compares 12 bits of addresses. */
typedef __m512i step_sums[2][MOST_X];
enum { STEPS_KEPT = 4, STEPS_BEHIND = 3, HALF = SIXTEEN / 2 };

/* C of two steps. */
static void configure(int n_x) { tiles_configure(n_x, HALF, BLOCK, 64); }
static void release(void) { _tile_release(); }

/* A step, to the tiles of even ones or of odd ones. */
static ALWAYS_INLINE void multiply_step(const int odd, const __m512i *w, const float *x) {
    _tile_loadd(6, w, sizeof *w);
    _tile_loadd(4, x, X_FLOATS * sizeof(float));
    _tile_loadd(7, w + HALF, sizeof *w);
    _tile_loadd(5, x + HALF, X_FLOATS * sizeof(float));
    if (odd) {
        _tile_zero(2);
        _tile_zero(3);
        _tile_dpbssd(2, 4, 6);
        _tile_dpbssd(3, 5, 7);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 7);
    }
}

static ALWAYS_INLINE void store_step(const int odd, step_sums *sums) {
    if (odd) {
        _tile_stored(2, (*sums)[0], sizeof(__m512i));
        _tile_stored(3, (*sums)[1], sizeof(__m512i));
    } else {
        _tile_stored(0, (*sums)[0], sizeof(__m512i));
        _tile_stored(1, (*sums)[1], sizeof(__m512i));
    }
}

static ALWAYS_INLINE void add_step(const struct tile_kind kind, const int n_x, const __m512i *w, const float *x,
                                   step_sums *sums, __m512 y[MOST_X]) {
    UNROLL for (int i = 0; i < 2; i++) {
        __m512 scale = _mm512_loadu_ps(w + SIXTEEN + i), less = kind.min ? _mm512_loadu_ps(w + SIXTEEN + 2 + i) : scale;
        UNROLL for (int t = 0; t < n_x; t++) y[t] =
            add_part(kind.min, 2, _mm512_load_si512(&(*sums)[i][t]), scale, less, x + t * X_FLOATS, i, y[t]);
    }
}

/* Where a tile is. */
struct place {
    const struct tile *tile;
    int vectors, x_floats; // of a step
    const uint8_t *ahead;
    step_sums sums[STEPS_KEPT];
};

static ALWAYS_INLINE void add_kept(const struct tile_kind kind, const int n_x, struct place *at, int64_t s,
                                   __m512 y[MOST_X]) {
    add_step(kind, n_x, at->tile->w + s * at->vectors, at->tile->x + s * at->x_floats, &at->sums[s % STEPS_KEPT], y);
}

/* Step s: multiplied, the one before stored, an earlier one added to y. */
static ALWAYS_INLINE void pass_step(const struct tile_kind kind, const int n_x, const int odd, struct place *at,
                                    int64_t s, __m512 y[MOST_X]) {
    const uint8_t *to = at->ahead + at->tile->ahead_bytes;
    for (; at->ahead < to; at->ahead += 64)
        _mm_prefetch((const char *)at->ahead, _MM_HINT_T1);
    multiply_step(odd, at->tile->w + s * at->vectors, at->tile->x + s * at->x_floats);
    if (s > 0)
        store_step(!odd, &at->sums[(s - 1) % STEPS_KEPT]);
    if (s >= STEPS_BEHIND)
        add_kept(kind, n_x, at, s - STEPS_BEHIND, y);
}

static ALWAYS_INLINE void multiply_steps(const struct tile_kind kind, const int n_x, const struct tile *tile) {
    const int64_t n = tile->n_steps;
    struct place at = {
        .tile = tile, .vectors = SIXTEEN + 2 * (kind.min ? 2 : 1), .x_floats = n_x * X_FLOATS, .ahead = tile->ahead};
    __m512 y[MOST_X];
    UNROLL for (int t = 0; t < n_x; t++) y[t] = tile->y[t];
    TILE_FENCE(&at);
    int64_t s = 0;
    for (; s + 2 <= n; s += 2) {
        pass_step(kind, n_x, 0, &at, s, y);
        pass_step(kind, n_x, 1, &at, s + 1, y);
    }
    if (s < n) {
        pass_step(kind, n_x, 0, &at, s, y);
        store_step(0, &at.sums[s % STEPS_KEPT]);
    } else if (n > 0) {
        store_step(1, &at.sums[(n - 1) % STEPS_KEPT]);
    }
    for (s = MAX(n - STEPS_BEHIND, 0); s < n; s++)
        add_kept(kind, n_x, &at, s, y);
    UNROLL for (int t = 0; t < n_x; t++) tile->y[t] = y[t];
}

const struct tile_products tiles_by_amx = {true, configure, multiply_tile, release};

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
    const uint8_t *p = at->p + b * bytes_of_block(f);
    const __m512i eight = _mm512_set1_epi8(8);
    uint8_t(*to)[BLOCK] = at->codes[b % BLOCKS_KEPT];
    UNROLL for (int r = 0; r < SIXTEEN; r += 4) {
        struct two_codes c = codes_of_halves(f, p + r * at->stride, at->stride);
        c.low = _mm512_sub_epi8(c.low, eight), c.high = _mm512_sub_epi8(c.high, eight);
        // quarters are rows: low and high of two rows beside each other
        __m512i first = _mm512_permutex2var_epi64(c.low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), c.high);
        __m512i last = _mm512_permutex2var_epi64(c.low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), c.high);
        _mm512_storeu_si512(to[r], first);
        _mm512_storeu_si512(to[r + 2], last);
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

static ALWAYS_INLINE void add_block(const struct stored *at, int64_t b, __m256 y[SIXTEEN]) {
    const __m256 s_x = _mm256_loadu_ps(at->x + b / 2 * X_COLUMNS + (16 + b % 2) * FEW_ROWS);
    const float *scale = at->scales[b % BLOCKS_KEPT];
    UNROLL for (int r = 0; r < SIXTEEN; r++) {
        __m256 d = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(const void *)at->sums[b % BLOCKS_KEPT][r]));
        y[r] = _mm256_fmadd_ps(d, _mm256_mul_ps(_mm256_set1_ps(scale[r]), s_x), y[r]);
    }
}

static ALWAYS_INLINE void pass_block(const enum qformat_id f, const int odd, struct stored *at, int64_t b,
                                     __m256 y[SIXTEEN]) {
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

static ALWAYS_INLINE void multiply_sixteen(const enum qformat_id f, struct stored *at, __m256 y[SIXTEEN]) {
    int64_t b = 0;
    UNROLL for (int r = 0; r < SIXTEEN; r++) y[r] = _mm256_setzero_ps();
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
static void put_columns(const struct few_rows *f, int64_t r, const __m256 y[SIXTEEN]) {
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
        __m256 y[SIXTEEN];
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
