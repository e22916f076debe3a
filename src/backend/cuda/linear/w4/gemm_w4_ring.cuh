/* gemm_w4_ring.cuh - of gemm_w4.cu: where a thread block works, and the thread that fills its ring of stages.
 *
 * A stage is asked for by two copies of tensor maps: a copy costs the thread that asks some 65 clocks, whatever its
 * size (a copy for each block of W and each row of x took two to four times as long in all). */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/quads.h"

enum { W4_MOST_STAGES = 16, W4_HALVES = QUADS_COLUMNS * 2 / PIECE_BYTES }; // of a block's columns, 128 bytes of x each

struct gemm_w4_args {
    const float *scale, *bias;
    void *y;
    int64_t y_stride;
    element y_element;
    dending ending;
    bool gated, has_zeros;
    int n_units, n_tokens;
    int n_tiles, n_pieces; // of the matrix; pieces: blocks of a tile
    int block_runs;        // of what a tensor map takes at once: 2 of blocks that are too long
    int block_bytes, row_warps, column_warps, split, n_stages;
    int n_early;    // stages whose W is asked for before the wait for the node before
    int scale_room; // floats
};

/* Of a warp: of its tile by eight tokens each, as the tensor core leaves them. */
template <int EIGHTS> using w4_sums = float[EIGHTS][4];

/* Of a stage, in shared memory: x in the 128-byte swizzle, [half of a block's columns][token][128 bytes]; then W,
 * [tile] [piece]. */
__host__ __device__ constexpr int w4_x_bytes(int pieces, int eights) { return pieces * W4_HALVES * eights * ATOM; }
__host__ __device__ constexpr int w4_w_bytes(int pieces, int tiles, int block_bytes) {
    return pieces * tiles * block_bytes;
}
__host__ __device__ constexpr int w4_w_room(int pieces, int tiles, int block_bytes) {
    return (w4_w_bytes(pieces, tiles, block_bytes) + 127) / 128 * 128;
}

/* Where a thread block works. */
struct w4_place {
    int warp, lane, rank, first_token, n_tokens;
    int tiles; // that it computes at once
    int first_tile, tile_step, n_passes;
    int piece_begin, piece_end, n_turns; // a turn: a piece for each column warp
    int w_bytes, w_room, x_bytes;        // of a stage
    uint32_t w, x, full, empty, all_sums;
    __device__ uint32_t w_stage(int slot) const { return w + slot * w_room; }
    __device__ uint32_t x_stage(int slot) const { return x + slot * x_bytes; }
};

template <int EIGHTS> static __device__ w4_place w4_place_of(const gemm_w4_args &a, uint32_t ring) {
    w4_place p;
    p.warp = threadIdx.x / 32, p.lane = threadIdx.x % 32;
    p.rank = blockIdx.x % a.split;
    p.first_token = blockIdx.y * EIGHTS * 8;
    p.n_tokens = min(a.n_tokens - p.first_token, EIGHTS * 8);
    p.tiles = a.row_warps;
    p.first_tile = blockIdx.x / a.split * p.tiles;
    p.tile_step = gridDim.x / a.split * p.tiles;
    p.n_passes = p.first_tile < a.n_tiles ? (a.n_tiles - p.first_tile + p.tile_step - 1) / p.tile_step : 0;
    p.piece_begin = a.n_pieces * p.rank / a.split;
    p.piece_end = a.n_pieces * (p.rank + 1) / a.split;
    p.n_turns = (p.piece_end - p.piece_begin + a.column_warps - 1) / a.column_warps;
    p.w_bytes = w4_w_bytes(a.column_warps, p.tiles, a.block_bytes);
    p.w_room = w4_w_room(a.column_warps, p.tiles, a.block_bytes);
    p.x_bytes = w4_x_bytes(a.column_warps, EIGHTS);
    p.x = ring;
    p.w = ring + a.n_stages * p.x_bytes;
    return p;
}

/* One thread's: brings W and x into the ring. What lies beyond the matrices comes as zeros, and counts. */
struct w4_filler {
    const gemm_w4_args &a;
    const w4_place &p;
    const CUtensorMap *w_map, *x_map;
    uint64_t once, often;
    int n, n_early; // stages in all; of W before the wait
    int tile, piece, x_piece;

    __device__ w4_filler(const gemm_w4_args &a, const w4_place &p, const CUtensorMap *w_map, const CUtensorMap *x_map)
        : a(a), p(p), w_map(w_map), x_map(x_map), once(policy_read_once()), often(policy_read_often()),
          n(p.n_passes * p.n_turns), n_early(min(n, a.n_early)), tile(p.first_tile), piece(p.piece_begin),
          x_piece(p.piece_begin) {}

    __device__ void put_w(int slot) {
        barrier_expect(p.full + 8 * slot, p.w_bytes + p.x_bytes);
        bulk_copy_box(p.w_stage(slot), w_map, 0, piece * a.block_runs, tile, 0, p.full + 8 * slot, once);
        if ((piece += a.column_warps) >= p.piece_end) {
            piece = p.piece_begin;
            tile += p.tile_step;
        }
    }
    __device__ void put_x(int slot) {
        bulk_copy_box(p.x_stage(slot), x_map, 0, p.first_token, x_piece * W4_HALVES, 0, p.full + 8 * slot, often);
        if ((x_piece += a.column_warps) >= p.piece_end)
            x_piece = p.piece_begin;
    }
    __device__ void begin() {
        for (int i = 0; i < n_early; i++)
            put_w(i);
    }
    __device__ void fill() {
        for (int i = 0; i < n_early; i++)
            put_x(i);
        ring_place at = {0, a.n_stages, 1}; // the parity of the round before, whose end is waited for
        at.skip(n_early);
        for (int i = n_early; i < n; i++) {
            barrier_wait(p.empty + 8 * at.slot, at.parity);
            put_w(at.slot);
            put_x(at.slot);
            at.step();
        }
    }
};
