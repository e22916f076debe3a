/* tiles.h - octets of weights made ready (kernels_blocks_avx2.c) times several rows of x.
 *
 * Two octets and four rows of x are a tile: six loads serve eight products, whose sums fill half of the registers. A
 * row's D is exact and its float is added to block by block, so that it is the same in any tile. */
#pragma once

#include "backend/cpu/kernels/avx2/octets.h"

#include "base/status.h"

enum { TILE_ROWS = 4 };

struct tile {
    const __m256i *octet[2]; // made ready; both may be the same
    int64_t n_blocks;
    const float *x; // of the first block and row
    int64_t x_step; // floats from a block to the next
    __m256 *y[2];   // [n_t]
    const uint8_t *ahead;
    int64_t ahead_bytes; // that are fetched a block
};

static ALWAYS_INLINE __m256i four_of(const float *x, const int i) {
    return _mm256_set1_epi32(((const int32_t *)(const void *)x)[i]);
}

/* Keeps the compiler from adding in another order, for which there are too few registers. */
static ALWAYS_INLINE __m256i keep(__m256i v) {
    __asm__("" : "+x"(v));
    return v;
}

/* sum[o][t] = the products of vectors [from, from + n) of bytes, added in 16 bits. */
static ALWAYS_INLINE void bytes_times(const int n_t, const __m256i *const w[2], const float *x, const int from,
                                      const int n, __m256i sum[2][TILE_ROWS]) {
    UNROLL for (int i = from; i < from + n; i++) {
        __m256i a = _mm256_loadu_si256(w[0] + i), b = _mm256_loadu_si256(w[1] + i);
        UNROLL for (int t = 0; t < n_t; t++) {
            __m256i v = four_of(x + t * BYTES_FLOATS, i);
            __m256i p = _mm256_maddubs_epi16(a, v), q = _mm256_maddubs_epi16(b, v);
            sum[0][t] = keep(i == from ? p : _mm256_add_epi16(sum[0][t], p));
            sum[1][t] = keep(i == from ? q : _mm256_add_epi16(sum[1][t], q));
        }
    }
}

static ALWAYS_INLINE void words_times(const int n_t, const __m256i *const w[2], const float *x,
                                      __m256i sum[2][TILE_ROWS]) {
    UNROLL for (int i = 0; i < 16; i++) {
        __m256i a = _mm256_loadu_si256(w[0] + i), b = _mm256_loadu_si256(w[1] + i);
        UNROLL for (int t = 0; t < n_t; t++) {
            __m256i v = four_of(x + t * WORDS_FLOATS, i);
            __m256i p = _mm256_madd_epi16(a, v), q = _mm256_madd_epi16(b, v);
            sum[0][t] = keep(i == 0 ? p : _mm256_add_epi32(sum[0][t], p));
            sum[1][t] = keep(i == 0 ? q : _mm256_add_epi32(sum[1][t], q));
        }
    }
}

/* D of a block. So many vectors of bytes fit in 16 bits; each such sum goes to 32 bits times 1, or times its half's
 * scale. */
static ALWAYS_INLINE void sums_of_block(const enum kind kind, const int n_t, const __m256i *const w[2], const float *x,
                                        __m256i d[2][TILE_ROWS]) {
    const int fit = kind == FOUR_BITS ? 8 : kind == FIVE_BITS ? 4 : 2;
    if (kind == WORDS) {
        words_times(n_t, w, x, d);
        return;
    }
    UNROLL for (int from = 0; from < 8; from += fit) {
        __m256i sum[2][TILE_ROWS];
        bytes_times(n_t, w, x, from, fit, sum);
        UNROLL for (int o = 0; o < 2; o++) {
            __m256i by = kind == HALVES ? _mm256_loadu_si256(w[o] + 8 + from / 4) : _mm256_set1_epi16(1);
            UNROLL for (int t = 0; t < n_t; t++) {
                __m256i v = _mm256_madd_epi16(sum[o][t], by);
                d[o][t] = keep(from == 0 ? v : _mm256_add_epi32(d[o][t], v));
            }
        }
    }
}

static ALWAYS_INLINE struct scales ready_scales(const enum kind kind, const __m256i *w) {
    const float *floats = (const float *)(const void *)(w + (kind == WORDS ? 16 : kind == HALVES ? 10 : 8));
    struct scales s = {.scale = _mm256_loadu_ps(floats)};
    if (kind != WORDS)
        s.min = _mm256_loadu_ps(floats + OCTET);
    if (kind == HALVES)
        s.min_of_second = _mm256_loadu_ps(floats + 2 * OCTET);
    return s;
}

static ALWAYS_INLINE void multiply_tile(const enum kind kind, const int n_t, const struct tile *tile) {
    const int floats = kind == WORDS ? WORDS_FLOATS : BYTES_FLOATS;
    const float *x = tile->x;
    const __m256i *w[2] = {tile->octet[0], tile->octet[1]};
    const uint8_t *ahead = tile->ahead, *to = ahead;
    for (int64_t b = 0; b < tile->n_blocks; b++, x += tile->x_step) {
        __m256i d[2][TILE_ROWS];
        for (to += tile->ahead_bytes; ahead < to; ahead += 64)
            _mm_prefetch((const char *)ahead, _MM_HINT_T1);
        sums_of_block(kind, n_t, w, x, d);
        UNROLL for (int o = 0; o < 2; o++) {
            struct scales s = ready_scales(kind, w[o]);
            UNROLL for (int t = 0; t < n_t; t++) tile->y[o][t] =
                add_block(kind, d[o][t], &s, x + t * floats + floats - 4, tile->y[o][t]);
            w[o] += ready_vectors(kind);
        }
    }
}

typedef void tile_function(const struct tile *tile);

#define TILES(kind)                                                                 \
    static void kind##_1(const struct tile *tile) { multiply_tile(kind, 1, tile); } \
    static void kind##_2(const struct tile *tile) { multiply_tile(kind, 2, tile); } \
    static void kind##_3(const struct tile *tile) { multiply_tile(kind, 3, tile); } \
    static void kind##_4(const struct tile *tile) { multiply_tile(kind, 4, tile); }
TILES(FOUR_BITS)
TILES(FIVE_BITS)
TILES(SIX_BITS)
TILES(HALVES)
TILES(WORDS)
static tile_function *const tiles[][TILE_ROWS] = {{FOUR_BITS_1, FOUR_BITS_2, FOUR_BITS_3, FOUR_BITS_4},
                                                  {FIVE_BITS_1, FIVE_BITS_2, FIVE_BITS_3, FIVE_BITS_4},
                                                  {SIX_BITS_1, SIX_BITS_2, SIX_BITS_3, SIX_BITS_4},
                                                  {HALVES_1, HALVES_2, HALVES_3, HALVES_4},
                                                  {WORDS_1, WORDS_2, WORDS_3, WORDS_4}};

/* Two octets made ready, which may be the same; and bytes from `ahead` on, ahead_bytes of them a block, which are
 * fetched meanwhile. All at once they would be more lines than the core can have under way. */
struct octets {
    const __m256i *first, *second;
    int64_t n_blocks;
    const uint8_t *ahead;
    int64_t ahead_bytes;
};

/* Those times all rows of x: y [2][FEW_ROWS] += the products. */
static void multiply_octets(enum kind kind, const struct octets *octets, const float *x, int n_x, __m256 *y) {
    const int floats = x_floats(kind, n_x), n_tiles = (n_x + TILE_ROWS - 1) / TILE_ROWS;
    struct tile tile = {.octet = {octets->first, octets->second},
                        .n_blocks = octets->n_blocks,
                        .x_step = (int64_t)n_x * floats,
                        .ahead = octets->ahead,
                        .ahead_bytes = octets->ahead_bytes / n_tiles};
    for (int t = 0; t < n_x; t += TILE_ROWS, tile.ahead += tile.n_blocks * tile.ahead_bytes) {
        tile.x = x + t * floats;
        tile.y[0] = y + t, tile.y[1] = y + FEW_ROWS + t;
        tiles[kind][MIN(n_x - t, TILE_ROWS) - 1](&tile);
    }
}
