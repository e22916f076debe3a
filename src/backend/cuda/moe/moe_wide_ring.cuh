/* moe_wide_ring.cuh - of moe_wide.cuh: the ring of stages in shared memory, and who computes what.
 *
 *     stage    [panel of 64 columns][token][128 bytes], in the 128-byte swizzle; then W's chunks
 *     W        in blocks: [tile of 16 rows][chunk], as in memory. Else [chunk][256 rows][64 bytes]; of gates and ups
 *              128 rows each */
#pragma once

#include "backend/cuda/moe/moe_order.cuh"
#include "backend/cuda/moe/moe_tiles.cuh"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/ring.cuh"

enum {
    WIDE_SHARED = 222 << 10, // beside wide_aside
    WIDE_STAGES = 7, // at the most
    WIDE_QUARTERS = 4,
    WIDE_SHARERS = 2,              // blocks of a cluster
    WIDE_BOX = 64,                 // rows of W, and bytes of each, that a copy brings
    WIDE_ROWS = GROUP * TILE_ROWS, // of W, of a block
    WIDE_CONSUMERS = 2 * WARPGROUP,
    WIDE_THREADS = WIDE_CONSUMERS + WARPGROUP
};

template <class W, bool UP> struct wide_ring {
    static constexpr int PANELS = W::COLUMNS > PANEL_COLUMNS ? W::COLUMNS / PANEL_COLUMNS : 1,
                         COLUMNS = PANELS * PANEL_COLUMNS, CHUNKS = COLUMNS / W::COLUMNS,
                         ROWS_BYTES = CHUNKS * W::CHUNK_BYTES, // of 16 rows
        PANEL_BYTES = W::WIDE_TOKENS * 128, QUARTER_BYTES = GROUP / WIDE_QUARTERS * ROWS_BYTES,
                         X_BYTES = PANELS * PANEL_BYTES, BYTES = X_BYTES + (GROUP * ROWS_BYTES + 1023) / 1024 * 1024,
                         N = WIDE_SHARED / BYTES < WIDE_STAGES ? WIDE_SHARED / BYTES : WIDE_STAGES,
                         LAG = N > 4 ? 3 : N - 2;
    static constexpr int ROW_BYTES = WIDE_BOX, CHUNK_ROWS_BYTES = WIDE_ROWS * ROW_BYTES; // of rows, in a chunk
    static_assert(WIDE_ROWS == WIDE_BOX * WIDE_QUARTERS, "a quarter is a copy, or one for each chunk");
    static_assert(N >= LAG + 2 && LAG > 0, "who waits for the oldest stage has told of it");

    uint32_t at, full, empty; // the stages; barriers, eight bytes each
    __device__ uint32_t stage(int slot) const { return at + slot * BYTES; }
    /* By a thread. */
    __device__ void prepare() const {
        for (int i = 0; i < N; i++) {
            barrier_init(full + i * 8, 2 * WIDE_QUARTERS);
            barrier_init(empty + i * 8, WIDE_SHARERS * STREAM_WARPS);
        }
        barrier_init_done();
    }
};

/* Rows of W that are not in blocks may come in any order: so that a lane's are neighbours where they go, its units in
 * hidden's order, or four rows of result. Of a warpgroup's 64 units, or 128 rows: that of a warp's lane r, rows r and
 * r + 8 of tile m. */
template <class W> constexpr bool rows_turned = !W::IN_BLOCKS && W::COLUMNS == PANEL_COLUMNS;
template <class W, bool UP> static __device__ __forceinline__ int wide_unit(int warp, int m, int half, int r) {
    if (!rows_turned<W>)
        return UP ? warp * 16 + m * 8 + r : warp * 32 + m * 16 + half * 8 + r;
    return UP ? r % 4 * 16 + warp * 4 + r / 4 * 2 + m : warp * 32 + r * 4 + m * 2 + half;
}

/* Tiles of tokens by two groups of rows, of which clusters take theirs by turns: those of one expert run side by side.
 * Groups beyond the last are computed for nothing. */
struct wide_work {
    int at, n, n_pairs;
    __device__ explicit wide_work(const stream_args &a)
        : at(blockIdx.x / WIDE_SHARERS), n_pairs((a.n_row_tiles + GROUP * WIDE_SHARERS - 1) / (GROUP * WIDE_SHARERS)) {
        n = *a.list.n_tiles * n_pairs;
    }
    __device__ bool there() const { return at < n; }
    __device__ void next() { at += gridDim.x / WIDE_SHARERS; }
    __device__ int group() const { return at % n_pairs * WIDE_SHARERS + blockIdx.x % WIDE_SHARERS; }
    __device__ const dmoe_tile *tile_at(const stream_args &a) const { return a.list.tiles + at / n_pairs; }
    __device__ dmoe_tile tile(const stream_args &a) const { return *tile_at(a); }
};

/* The tokens of a tile that a warp of either block brings, neighbours. */
struct wide_tokens {
    int begin, n;
    __device__ wide_tokens(int n_tokens, int rank, int quarter) {
        int half = (n_tokens + 15) / 16 * 8, each = half / WIDE_QUARTERS;
        begin = rank * half + quarter * each;
        n = max(min(begin + each, n_tokens) - begin, 0);
    }
};
