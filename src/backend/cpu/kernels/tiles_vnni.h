/* tiles_vnni.h - sixteen rows of weights made ready times up to eight rows of x.
 *
 * A vector of weights serves as many products as there are rows of x, whose bytes are broadcast from memory. D is exact
 * and a row's float is added to part by part, so that it is the same with any number of rows. */
#pragma once

#include "backend/cpu/kernels/kernels_vnni.h"

#include "base/status.h"

struct tile {
    const __m512i *w;
    int64_t n_steps;
    const float *x;       // as arranged: [n_steps][n_x][X_FLOATS]
    __m512 *y;            // [n_x], which is added to
    const uint8_t *ahead; // fetched meanwhile, ahead_bytes of them a step: all at once they would be more lines than
    int64_t ahead_bytes;  // the core can have under way
};

/* What of a format matters here: what takes its offset away, and what runs have a scale. */
struct tile_kind {
    int parts, offset_bits;
    bool min;
};

/* Part i of a step. */
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

typedef void tile_function(const struct tile *tile);

#define TILE_BY(name, n_x, ...) \
    static void name##_##n_x(const struct tile *tile) { multiply_steps((struct tile_kind)__VA_ARGS__, n_x, tile); }
#define TILES(name, ...)                                                                  \
    TILE_BY(name, 1, __VA_ARGS__)                                                         \
    TILE_BY(name, 2, __VA_ARGS__)                                                         \
    TILE_BY(name, 3, __VA_ARGS__)                                                         \
    TILE_BY(name, 4, __VA_ARGS__)                                                         \
    TILE_BY(name, 5, __VA_ARGS__)                                                         \
    TILE_BY(name, 6, __VA_ARGS__)                                                         \
    TILE_BY(name, 7, __VA_ARGS__)                                                         \
    TILE_BY(name, 8, __VA_ARGS__)                                                         \
    static tile_function *const name[FEW_ROWS] = {name##_1, name##_2, name##_3, name##_4, \
                                                  name##_5, name##_6, name##_7, name##_8};
TILES(tiles_of_128, {2, 7, false})
TILES(tiles_of_16, {2, 4, false})
TILES(tiles_of_8, {2, 3, false})
TILES(tiles_of_1, {2, 0, false})
TILES(tiles_of_min, {2, -1, true})
TILES(tiles_of_quarters_32, {4, 5, false})
TILES(tiles_of_quarters_4, {4, 2, false})
TILES(tiles_of_quarters_min, {4, -1, true})

static void multiply_tile(enum qformat_id id, int n_x, const struct tile *tile) {
    BUG_IF((unsigned)(n_x - 1) >= FEW_ROWS);
    tile_function *const *tiles = tiles_of_min;
    switch (offset_bits(id)) {
    case 7: tiles = tiles_of_128; break;
    case 5: tiles = tiles_of_quarters_32; break;
    case 4: tiles = tiles_of_16; break;
    case 3: tiles = tiles_of_8; break;
    case 2: tiles = tiles_of_quarters_4; break;
    case 0: tiles = tiles_of_1; break;
    default: tiles = n_parts(id) == 4 ? tiles_of_quarters_min : tiles_of_min;
    }
    tiles[n_x - 1](tile);
}
