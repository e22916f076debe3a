/* quads.h - place_quads.cu, place_gguf.cu: matrices of four bits, of integers of eight, and of GGUF's blocks, as the
 * device keeps them, ELEMENT_QUADS, whatever the checkpoint's format.
 *
 *     w[o, i] = scale[o] * s[o, i / group] * c[o, i]        c: q - z[o, i / group] of INT4, e2m1 of FP4
 *
 * A matrix is tiles of 16 rows, one after another; a tile is blocks of 128 columns, one after another, so that who
 * walks a tile reads memory from end to end. A gated matrix (GATED_ACT follows its LINEAR) has tiles of 8 gates and
 * their 8 ups, so that a lane has both sums of a unit. Rows and columns beyond the matrix fill the last ones up: their
 * scales are zero.
 *
 * A block is nibbles, 1024 bytes, and behind them scales. Nibbles are in words of eight, what a lane of m16n8k16 takes
 * as the first operand (ptx/mma.cuh): lane 4g + t has of step k, columns 16k to 16k + 15, the word at 512 (k / 4) + 16
 * lane + 4 (k % 4), whose slots 0 and 1 are row g, columns 2t and 2t + 1; 2 and 3 the same of row g + 8; 4 to 7
 * likewise, columns + 8. Where a slot's bits are: e2m1_in_word and int4_in_word (ptx/nibbles.cuh); row g's are in other
 * bytes than row g + 8's.
 *
 *     INT4    float16 s at 2 (2 (128 / group g + c) + half), of group c; half 0 is row g, 1 is row g + 8. With
 *             has_zeros behind those, likewise, a byte z each, of 0 to 16. scale[o] is a power of two, with which a
 *             row's largest s is from 1 to 2
 *     NVFP4   e4m3 s at 16 g + 2 k + half; scale[o] is 2^14 times the tensor's
 *     MXFP4   the high byte of float16 s = 2^(b - 15) at 8 g + 2 c + half; b of 1 to 29, or 0 for zeros; scale[o] is
 *             2^14 times what makes the row's largest b 29. Nothing is lost but of groups 2^24 times smaller
 *
 * GGUF's block types have their own numbers, of which scale[o], a power of two, is taken off d and dmin alone; Q4_0 is
 * INT4 in groups of 32. Other integers of eight bits with zero points of 128 are Q8_0; with one scale a row that is
 * scale[o], and d is 1. What a code is: c of Q8_0 q; of Q4_K q, less dmin m; of Q6_K q - 32.
 *
 *     Q8_0    q + 128, a byte each, in 2048 bytes: step k at 512 (k / 2) + 16 lane + 8 (k % 2), row g's columns 2t, 2t
 *             + 1, 2t + 8 and 2t + 9, then row g + 8's; behind them float16 d at 2 (2 (4 g + c) + half)
 *     Q4_K    nibbles as INT4's, of each group c bytes s and m of rows g and g + 8 at 16 g + 4 c: s, s, m, m; then
 *             float16 d, d, dmin, dmin at 128 + 8 g
 *     Q6_K    the low four bits as INT4's; in 512 bytes the high two, words of two steps at 16 lane + 4 (k / 2): of a
 *             half word row g's in the low byte, row g + 8's in the high one; of a byte bits 5, 4 and 7, 6 are the even
 *             step's columns 2t and 2t + 8 (2t + 1 and 2t + 9 in the high half), 1, 0 and 3, 2 the odd one's; behind
 *             those bytes 128 + s at 16 g + 2 k + half, and float16 d at 128 + 4 g + 2 half
 *
 * e2m1 is read times 2^-14 (nibbles.cuh): with that NVFP4's and MXFP4's products of c and s are float16, exactly. */
#pragma once

#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"

#ifdef __cplusplus
#define QUADS_FUNCTION static inline __host__ __device__
extern "C" {
#else
#define QUADS_FUNCTION static inline
#endif

enum { QUADS_ROWS = 16, QUADS_COLUMNS = 128, QUADS_NIBBLES = 1024, QUADS_BYTES = 2048, QUADS_SIXES = 1536 };

/* Of a block. */
QUADS_FUNCTION int quads_groups(struct dquads q) { return QUADS_COLUMNS / q.group; }
QUADS_FUNCTION int quads_code_bytes(enum quad_kind kind) {
    return kind == QUADS_Q8_0 ? QUADS_BYTES : kind == QUADS_Q6_K ? QUADS_SIXES : QUADS_NIBBLES;
}
QUADS_FUNCTION int quads_scale_bytes(struct dquads q) { // without zeros
    switch (q.kind) {
    case QUADS_Q4_K: return 128 + QUADS_ROWS * 4;
    case QUADS_Q6_K: return 128 + QUADS_ROWS * 2;
    case QUADS_INT4:
    case QUADS_Q8_0: return QUADS_ROWS * quads_groups(q) * 2;
    default: return QUADS_ROWS * quads_groups(q);
    }
}
QUADS_FUNCTION int quads_block_bytes(struct dquads q) {
    return quads_code_bytes(q.kind) + quads_scale_bytes(q) + (q.has_zeros ? QUADS_ROWS * quads_groups(q) : 0);
}
QUADS_FUNCTION int64_t quads_tiles(struct dquads q, int64_t out) { // of a matrix
    int64_t units = q.gated ? out / 2 : out, of_tile = q.gated ? QUADS_ROWS / 2 : QUADS_ROWS;
    return (units + of_tile - 1) / of_tile;
}
QUADS_FUNCTION int64_t quads_blocks(int64_t in) { return (in + QUADS_COLUMNS - 1) / QUADS_COLUMNS; } // of a tile
QUADS_FUNCTION int64_t quads_bytes(struct dquads q, int64_t out, int64_t in) {
    return quads_tiles(q, out) * quads_blocks(in) * quads_block_bytes(q);
}

/* Whether LINEAR alone computes by the kind, and no experts. */
QUADS_FUNCTION bool quads_of_linear_alone(struct dquads q) { return q.kind >= QUADS_Q8_0; }

/* Rows as they are sent: codes two to a byte, the low nibble first, or of Q8_0 q + 128, a byte each; and for each group
 * of columns a scale and, of INT4, perhaps a zero point. */
struct dstored_quads {
    const uint8_t *codes; // [rows][in / 2], of Q8_0 [rows][in]
    int64_t in;           // even
    enum quad_kind kind;
    int group;           // columns of a scale: 16 of NVFP4, else a multiple of 32, or all
    const float *scale;  // [rows][groups]: what MXFP4's bytes mean, too
    const uint8_t *zero; // likewise; NULL: 8
    float tensor_scale;  // of NVFP4, else 1
};
/* As launch_place_rows: rows of x become rows [first_row, first_row + n_rows) of `to`. Nothing is rounded but what
 * counts tell. */
void launch_place_quads(cudaStream_t stream, const struct dstored_quads *x, int64_t n_rows, struct dweight to,
                        int64_t first_row, struct dplaced *counts);
/* Likewise from numbers, which become the nearest with scales that leave least off. */
void launch_quantise_quads(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                           int64_t first_row, struct dplaced *counts);
/* place_gguf.cu. Likewise rows of GGUF's blocks as the file has them, one after another: of Q4_0 where the tiles are
 * INT4, else of the type that their kind names. */
struct dstored_gguf {
    const uint8_t *blocks;
    int64_t in, row_bytes;
};
void launch_place_gguf(cudaStream_t stream, const struct dstored_gguf *x, int64_t n_rows, struct dweight to,
                       int64_t first_row, struct dplaced *counts);

#ifdef __cplusplus
}
#endif
