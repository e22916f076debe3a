/* blocks.h - place_blocks.cu: experts' matrices of four bits as the device keeps them.
 *
 * A matrix of an expert is tiles of 16 rows, one after another, and a tile is blocks of 64 columns (ptx/nibbles.cuh has
 * a block's nibbles, 512 bytes). Of gates and ups a tile has 8 rows each, so that a lane has both sums of a unit. Rows
 * and columns beyond the matrix fill the last ones up. Scales of a block, behind its nibbles:
 *
 *     ELEMENT_MXFP4   32 bytes: b of row r, columns 32c to 32c + 31 at 2 (2 (r % 8) + c) + r / 8; columns are e2m1
 *                     times 2^(b - 29), b of 1 to 29 or 0 for zeros, times the row's scale (dweight.scale), a power of
 *                     two: what the row's largest scale is. Nothing is lost but of groups 2^23 times smaller. */
#pragma once

#include "backend/cuda/value.h"
#include "backend/cuda/weights/place.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BLOCK_ROWS = 16, BLOCK_COLUMNS = 64, BLOCK_NIBBLES = 512, MXFP4_COLUMNS = 32, MXFP4_BLOCK = BLOCK_NIBBLES + 32 };

static inline bool is_in_blocks(enum element e) { return e == ELEMENT_MXFP4; }
static inline int64_t block_bytes(enum element e) { return e == ELEMENT_MXFP4 ? MXFP4_BLOCK : 0; }

/* How rows fall into tiles: an expert has `units` rows, or as many of gates and then of ups. */
struct dblocks {
    int64_t units;
    bool gated;
};
static inline int64_t blocks_tiles(struct dblocks b) { // of an expert
    int64_t units = b.gated ? BLOCK_ROWS / 2 : BLOCK_ROWS;
    return (b.units + units - 1) / units;
}
static inline int64_t blocks_bytes(enum element e, int64_t out, int64_t in, struct dblocks b) {
    int64_t n_experts = out / (b.units * (b.gated ? 2 : 1));
    return n_experts * blocks_tiles(b) * ((in + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS) * block_bytes(e);
}

/* As launch_place_rows. Rows of x are stored in the same format (its codes, two to a byte, and its scales), or are
 * numbers, that become the nearest of that format. */
void launch_place_blocks(cudaStream_t stream, const struct dstored *x, int64_t n_rows, struct dweight to,
                         struct dblocks rows, int64_t first_row, struct dplaced *counts);

#ifdef __cplusplus
}
#endif
