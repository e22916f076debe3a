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
#include "backend/cpu/kernels/vnni/tiles.h"

/* All of what `at` points to is written here, and may be written behind this: the tiles' intrinsics do not say it. */
#define TILE_FENCE(at) __asm__ volatile("" ::"r"(at) : "memory")

/* C of both parts of a step. It must have left the store buffer before it is loaded, as nothing is forwarded from a
 * tile. It is not where C is being stored in 4 KiB, as the processor compares 12 bits of addresses. */
typedef __m512i step_sums[2][MOST_X];
enum { STEPS_KEPT = 4, STEPS_BEHIND = 3, HALF = SIXTEEN / 2 };

/* Tiles 0 to 3 are C of two steps, 4 and 5 are A, 6 and 7 are B. */
static void configure(enum qformat_id id, int n_x) {
    (void)id;
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = i == 4 || i == 5 ? BLOCK : 64;
        config.rows[i] = (uint8_t)(i < 6 ? n_x : HALF);
    }
    TILE_FENCE(&config);
    _tile_loadconfig(&config);
}

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

const struct tile_products tiles_by_amx = {configure, multiply_tile, release};
#endif
