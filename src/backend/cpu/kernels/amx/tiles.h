/* tiles.h - how the tiles of AMX are configured: 0 to 3 are C, 4 and 5 are A, 6 and 7 are B. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

/* All of what `at` points to is written here, and may be written behind this: the tiles' intrinsics do not say it. */
#define TILE_FENCE(at) __asm__ volatile("" ::"r"(at) : "memory")

/* Rows of A and C, of B; bytes of a row of A, and of B and C. */
static inline void tiles_configure(int rows, int rows_of_b, int bytes_of_a, int bytes) {
    struct {
        uint8_t palette, start_row, unused[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes_of_a : bytes);
        config.rows[i] = (uint8_t)(i < 6 ? rows : rows_of_b);
    }
    TILE_FENCE(&config);
    _tile_loadconfig(&config);
}
