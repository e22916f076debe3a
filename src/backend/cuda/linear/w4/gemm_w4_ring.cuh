/* gemm_w4_ring.cuh - of gemm_w4.cu: where a thread block works, and the warp that fills its ring of stages. */
#pragma once

#include "backend/cuda/linear/ending.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/mma.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/value.h"
#include "backend/cuda/weights/quads.h"

enum { W4_MOST_STAGES = 16, W4_X_ASIDE = 16, W4_COLUMN_BYTES = QUADS_COLUMNS * 2 };

struct gemm_w4_args {
    const unsigned char *w, *x;
    int64_t x_pitch; // bytes
    const float *scale, *bias;
    void *y;
    int64_t y_stride;
    element y_element;
    dending ending;
    bool gated, has_zeros;
    int in, n_units, n_tokens;
    int n_tiles, n_pieces; // of the matrix; pieces: blocks of a tile
    int block_bytes, row_warps, column_warps, split, n_stages;
    int scale_room; // floats
};

/* Of a warp: of its tiles by eight tokens each, as the tensor core leaves them. */
template <int WARP_TILES, int EIGHTS> using w4_sums = float[WARP_TILES][EIGHTS][4];

/* Where a thread block works. */
struct w4_place {
    int warp, lane, rank, first_token, n_tokens;
    int tiles; // that it computes at once
    int first_tile, tile_step, n_passes;
    int piece_begin, piece_end, n_turns; // a turn: a piece for each column warp
    int w_bytes, x_pitch, x_bytes;       // of a stage
    uint32_t w, x, full, empty, all_sums;
    __device__ uint32_t w_stage(int slot) const { return w + slot * w_bytes; }
    __device__ uint32_t x_stage(int slot) const { return x + slot * x_bytes; }
};

template <int WARP_TILES, int EIGHTS> static __device__ w4_place w4_place_of(const gemm_w4_args &a, uint32_t ring) {
    w4_place p;
    p.warp = threadIdx.x / 32, p.lane = threadIdx.x % 32;
    p.rank = blockIdx.x % a.split;
    p.first_token = blockIdx.y * EIGHTS * 8;
    p.n_tokens = min(a.n_tokens - p.first_token, EIGHTS * 8);
    p.tiles = a.row_warps * WARP_TILES;
    p.first_tile = blockIdx.x / a.split * p.tiles;
    p.tile_step = gridDim.x / a.split * p.tiles;
    p.n_passes = p.first_tile < a.n_tiles ? (a.n_tiles - p.first_tile + p.tile_step - 1) / p.tile_step : 0;
    p.piece_begin = a.n_pieces * p.rank / a.split;
    p.piece_end = a.n_pieces * (p.rank + 1) / a.split;
    p.n_turns = (p.piece_end - p.piece_begin + a.column_warps - 1) / a.column_warps;
    p.w_bytes = a.column_warps * p.tiles * a.block_bytes;
    p.x_pitch = a.column_warps * W4_COLUMN_BYTES + W4_X_ASIDE;
    p.x_bytes = EIGHTS * 8 * p.x_pitch;
    p.w = ring;
    p.x = ring + a.n_stages * p.w_bytes;
    return p;
}

// ---- who fills the ring ---------------------------------------------------------------------------------------------

/* A warp: lanes ask for a block of W or a row of x each. */
struct w4_filler {
    const gemm_w4_args &a;
    const w4_place &p;
    int n, n_early; // stages in all; that there is room for at first

    __device__ w4_filler(const gemm_w4_args &a, const w4_place &p)
        : a(a), p(p), n(p.n_passes * p.n_turns), n_early(min(n, a.n_stages)) {}

    __device__ int first_piece(int turn) const { return p.piece_begin + turn * a.column_warps; }
    __device__ int pieces_of(int turn) const { return min(p.piece_end - first_piece(turn), a.column_warps); }
    __device__ int tiles_of(int pass) const { return min(a.n_tiles - p.first_tile - pass * p.tile_step, p.tiles); }
    __device__ int x_bytes_of(int turn) const {
        return min(a.in - first_piece(turn) * QUADS_COLUMNS, pieces_of(turn) * QUADS_COLUMNS) * 2;
    }

    __device__ void put_w(int i, int slot) const {
        int pass = i / p.n_turns, turn = i % p.n_turns, n_pieces = pieces_of(turn), n_tiles = tiles_of(pass);
        if (p.lane == 0)
            barrier_expect(p.full + 8 * slot, n_pieces * n_tiles * a.block_bytes + p.n_tokens * x_bytes_of(turn));
        __syncwarp(); // it knows what to expect
        int64_t tile = p.first_tile + pass * p.tile_step;
        const unsigned char *from = a.w + (tile * a.n_pieces + first_piece(turn)) * a.block_bytes;
        for (int k = p.lane; k < n_tiles; k += 32)
            for (int c = 0; c < n_pieces; c++)
                bulk_copy(p.w_stage(slot) + (c * p.tiles + k) * a.block_bytes,
                          from + ((int64_t)k * a.n_pieces + c) * a.block_bytes, a.block_bytes, p.full + 8 * slot);
    }
    __device__ void put_x(int i, int slot) const {
        int turn = i % p.n_turns;
        if (p.lane < p.n_tokens)
            bulk_copy(p.x_stage(slot) + p.lane * p.x_pitch,
                      a.x + (p.first_token + p.lane) * a.x_pitch + first_piece(turn) * W4_COLUMN_BYTES,
                      x_bytes_of(turn), p.full + 8 * slot);
    }
    __device__ void begin() const {
        for (int i = 0; i < n_early; i++)
            put_w(i, i);
    }
    __device__ void fill() const {
        for (int i = 0; i < n_early; i++)
            put_x(i, i);
        ring_place at = {0, a.n_stages, 0};
        for (int i = n_early; i < n; i++) {
            barrier_wait(p.empty + 8 * at.slot, at.parity);
            put_w(i, at.slot);
            put_x(i, at.slot);
            at.step();
        }
    }
};
