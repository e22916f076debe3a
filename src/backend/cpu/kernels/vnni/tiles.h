/* tiles.h - sixteen rows of weights made ready times up to eight rows of x by AVX-512 VNNI, for kernels_vnni.c, which
 * defines multiply_steps. D is exact and a row's float is added to part by part, so that it is the same with any number
 * of rows and whoever multiplies. */
#pragma once

#include "backend/cpu/kernels/kernels_vnni.h"

#include "base/status.h"

/* What of a format matters here: what takes its offset away, and what runs have a scale. */
struct tile_kind {
    int parts, offset_bits;
    bool min;
};

static ALWAYS_INLINE void multiply_steps(const struct tile_kind kind, const int n_x, const struct tile *tile);

typedef void tile_function(const struct tile *tile);

#define TILE_BY(name, n_x, ...) \
    static void name##_##n_x(const struct tile *tile) { multiply_steps((struct tile_kind)__VA_ARGS__, n_x, tile); }
#define EIGHT_BY(name, ...)       \
    TILE_BY(name, 1, __VA_ARGS__) \
    TILE_BY(name, 2, __VA_ARGS__) \
    TILE_BY(name, 3, __VA_ARGS__) \
    TILE_BY(name, 4, __VA_ARGS__) \
    TILE_BY(name, 5, __VA_ARGS__) \
    TILE_BY(name, 6, __VA_ARGS__) \
    TILE_BY(name, 7, __VA_ARGS__) \
    TILE_BY(name, 8, __VA_ARGS__)
#define EIGHT(name) name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8
#define TILES(name, ...)        \
    EIGHT_BY(name, __VA_ARGS__) \
    static tile_function *const name[] = {EIGHT(name)};
TILES(tiles_of_128, {2, 7, false})
TILES(tiles_of_16, {2, 4, false})
TILES(tiles_of_8, {2, 3, false})
TILES(tiles_of_1, {2, 0, false})
TILES(tiles_of_min, {2, -1, true})
TILES(tiles_of_quarters_32, {4, 5, false})
TILES(tiles_of_quarters_4, {4, 2, false})
TILES(tiles_of_quarters_min, {4, -1, true})

static void multiply_tile(enum qformat_id id, int n_x, const struct tile *tile) {
    BUG_IF((size_t)(n_x - 1) >= ARRAY_LEN(tiles_of_128));
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
