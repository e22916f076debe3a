/* blocks.h - rows of numbers as GGUF's block types, of what core/formats/qformat_blocks.c reads back.
 *
 * Scales and codes are those that leave the least squared error, as far as a search finds them (scales.h): of types
 * with two levels the scales of sub-blocks are chosen first, then the numbers that they are multiples of, and then both
 * in turns for the codes that they make. Codes are rounded under the scales as stored. Q8_0 is the one exception: its
 * scale is the largest number / 127, as every writer has it. With `importance` an error counts as often as that of its
 * column says.
 *
 * Not written, since readers of them are rare: Q4_K's relatives IQ4_XS, TQ1_0 and TQ2_0. */
#pragma once

#include "core/qformat.h"

bool blocks_are_written(enum qformat_id id);

/* n numbers, a multiple of the format's block_cols, into block_row_bytes(n) bytes. x is finite; importance is NULL or
 * [n], each at least 0. Thread-safe. */
void blocks_write(enum qformat_id id, const float *x, const float *importance, int64_t n, uint8_t *out);

/* One block each: of 32 columns (blocks_small.c), of 256 (blocks_large.c). importance may be NULL. */
typedef void (*block_writer)(const float *x, const float *importance, uint8_t *out);
extern const block_writer block_writers[N_QFORMATS];
void q2_k_write(const float *x, const float *w, uint8_t *out);
void q3_k_write(const float *x, const float *w, uint8_t *out);
void q4_k_write(const float *x, const float *w, uint8_t *out);
void q5_k_write(const float *x, const float *w, uint8_t *out);
void q6_k_write(const float *x, const float *w, uint8_t *out);

static inline void put_f16(uint8_t *out, uint16_t h) {
    out[0] = (uint8_t)h;
    out[1] = (uint8_t)(h >> 8);
}
