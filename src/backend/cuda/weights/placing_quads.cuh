/* placing_quads.cuh - where the codes and scales of a row lie in the tiles of quads.h. */
#pragma once

#include "backend/cuda/ptx/nibbles.cuh"
#include "backend/cuda/ptx/nibbles_int4.cuh"
#include "backend/cuda/weights/quads.h"

enum { QUADS_STEP = 16 }; // columns

/* Where a row's columns lie. */
struct place_of_row {
    uint8_t *tile;
    int half, g, block_bytes;
    dquads q;

    __device__ place_of_row(const dweight &to, int64_t row) : block_bytes(quads_block_bytes(to.quads)), q(to.quads) {
        int64_t n_units = q.gated ? to.out / 2 : to.out, unit = row % n_units;
        int in_tile = q.gated ? (int)(unit % 8 + row / n_units * 8) : (int)(unit % QUADS_ROWS);
        tile = static_cast<uint8_t *>(const_cast<void *>(to.at)) +
               unit / (q.gated ? QUADS_ROWS / 2 : QUADS_ROWS) * quads_blocks(to.in) * block_bytes;
        half = in_tile / 8, g = in_tile % 8;
    }
    __device__ bool is_e2m1() const { return q.kind == QUADS_NVFP4 || q.kind == QUADS_MXFP4; }
    __device__ uint8_t *block(int64_t col) const { return tile + col / QUADS_COLUMNS * block_bytes; }

    __device__ void put_codes(int64_t step, const uint32_t (&codes)[QUADS_STEP]) const {
        int k = (int)(step % (QUADS_COLUMNS / QUADS_STEP));
        for (int t = 0; t < 4; t++) {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++) {
                int slot = half * 2 + i % 2 + i / 2 * 4;
                uint32_t code = codes[2 * t + i % 2 + i / 2 * 8];
                word |= is_e2m1() ? e2m1_in_word(code, slot) : int4_in_word(code & 15, slot);
            }
            uint8_t *at = block(step * QUADS_STEP) + k / 4 * 512 + (g * 4 + t) * 16 + k % 4 * 4;
            int first = is_e2m1() ? 1 - half : half; // of the two bytes that are this row's
            at[first] = (uint8_t)(word >> 8 * first), at[first + 2] = (uint8_t)(word >> 8 * (first + 2));
        }
    }
    /* The highest two bits of Q6_K's codes, of two steps from an even one on. */
    __device__ void put_highs(int64_t step, const uint32_t (&codes)[2][QUADS_STEP]) const {
        int k = (int)(step % (QUADS_COLUMNS / QUADS_STEP));
        for (int t = 0; t < 4; t++)
            for (int u = 0; u < 2; u++) {
                const uint32_t *even = &codes[0][2 * t + u], *odd = &codes[1][2 * t + u];
                block(step * QUADS_STEP)[QUADS_NIBBLES + (g * 4 + t) * 16 + k / 2 * 4 + u * 2 + half] =
                    (uint8_t)(even[0] >> 4 << 4 | even[8] >> 4 << 6 | odd[0] >> 4 | odd[8] >> 4 << 2);
            }
    }
    /* Codes of eight bits. */
    __device__ void put_bytes(int64_t step, const uint32_t (&codes)[QUADS_STEP]) const {
        int k = (int)(step % (QUADS_COLUMNS / QUADS_STEP));
        for (int t = 0; t < 4; t++)
            for (int i = 0; i < 4; i++)
                block(step * QUADS_STEP)[k / 2 * 512 + (g * 4 + t) * 16 + k % 2 * 8 + half * 4 + i] =
                    (uint8_t)codes[2 * t + i % 2 + i / 2 * 8];
    }
    /* Of the group that begins at a column: bits of float16, or a byte. */
    __device__ void put_scale(int64_t col, uint16_t bits, int zero) const {
        uint8_t *scales = block(col) + quads_code_bytes(q.kind);
        int c = (int)(col % QUADS_COLUMNS) / q.group;
        if (q.kind == QUADS_NVFP4)
            scales[g * 16 + c * 2 + half] = (uint8_t)bits;
        else if (q.kind == QUADS_MXFP4)
            scales[g * 8 + c * 2 + half] = (uint8_t)bits;
        else
            reinterpret_cast<uint16_t *>(scales)[(g * quads_groups(q) + c) * 2 + half] = bits;
        if (q.has_zeros)
            scales[quads_scale_bytes(q) + (g * quads_groups(q) + c) * 2 + half] = (uint8_t)zero;
    }
};
