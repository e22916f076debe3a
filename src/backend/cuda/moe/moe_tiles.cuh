/* moe_tiles.cuh - the same products as moe_stream_kernel.cuh's, to the bit, where experts have many tokens.
 *
 * A block computes 256 rows of W, of gates and ups 128 of each, by up to 64 tokens. A step has 128 bytes of every row:
 * those of W each lane copies for itself, 32 rows a warp; those of the tokens all warps share. Steps are in a ring of
 * SLOTS; a barrier a step says that what all threads copied is there, and that the slot of the step before is free.
 * Blocks take tiles by turns, so that those of one expert run side by side and find its weights in the L2.
 *
 * A warp's loads from shared memory, not the tensor core, are what limits 16 rows to a warp; of 32 both take as long.
 * Sums have the order of moe_stream's, so that a row is the same by either. */
#pragma once

#include "backend/cuda/moe/moe_kernels.h"
#include "backend/cuda/moe/moe_stream_kernel.cuh"

enum {
    TILE_OCTETS = TILE_TOKENS / 8,
    ROW_TILES = 2,
    GROUP = STREAM_WARPS * ROW_TILES,
    SLOTS = 4,
    TILE_CHUNKS = 2 // of a step
};

template <class W> struct tile_slot {
    static constexpr int X_BYTES = TILE_CHUNKS * x_chunk_bytes<W>(), X_PITCH = X_BYTES + W::X_ASIDE,
                         ROWS_BYTES = TILE_CHUNKS * W::CHUNK_BYTES, // of 16 rows
        W_BYTES = GROUP * ROWS_BYTES, BYTES = W_BYTES + TILE_TOKENS * X_PITCH;
};

/* A tile of W, of which a warp copies steps of CHUNKS chunks: of rows each lane what it will itself read. `to`: the
 * step in shared memory. */
template <class W, bool UP, bool IN_BLOCKS = W::IN_BLOCKS> struct tile_source {
    const unsigned char *from[2];
    int row_bytes;
    bool there[2];
    __device__ __forceinline__ void begin(const stream_args &a, int expert, int row_tile) {
        const rows_of_tile<UP> rows(a, expert, row_tile);
        row_bytes = a.in * W::BYTES;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            there[half] = rows.unit[half] >= 0;
            from[half] = a.w + (there[half] ? (int64_t)rows.row[half] * row_bytes : 0) + threadIdx.x % 4 * PIECE;
        }
    }
    template <int CHUNKS>
    __device__ __forceinline__ void copy(const stream_args &a, uint32_t to, int step, uint64_t policy) const {
        constexpr int CHUNK = W::COLUMNS * W::BYTES;
#pragma unroll
        for (int j = 0; j < CHUNKS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = (step * CHUNKS + j) * CHUNK;
                bool zeros = !there[half] || at + (int)threadIdx.x % 4 * PIECE >= row_bytes;
                copy_later(to + ((j * 2 + half) * 32 + threadIdx.x % 32) * PIECE, zeros ? a.w : from[half] + at, zeros,
                           policy);
            }
    }
};

template <class W, bool UP> struct tile_source<W, UP, true> {
    const unsigned char *from;
    int n_chunks;
    __device__ __forceinline__ void begin(const stream_args &a, int expert, int row_tile) {
        n_chunks = (a.in + W::COLUMNS - 1) / W::COLUMNS;
        from = a.w + ((int64_t)expert * a.n_row_tiles + row_tile) * n_chunks * W::CHUNK_BYTES;
    }
    template <int CHUNKS>
    __device__ __forceinline__ void copy(const stream_args &a, uint32_t to, int step, uint64_t policy) const {
        constexpr int PIECES = CHUNKS * W::CHUNK_BYTES / PIECE;
        int at = step * CHUNKS * W::CHUNK_BYTES, end = n_chunks * W::CHUNK_BYTES;
#pragma unroll
        for (int i = 0; i < PIECES; i += 32) {
            int byte = (i + threadIdx.x % 32) * PIECE;
            bool zeros = at + byte >= end;
            if (i + 32 <= PIECES || i + (int)threadIdx.x % 32 < PIECES)
                copy_later(to + byte, zeros ? a.w : from + at + byte, zeros, policy);
        }
    }
};

/* What a thread copies of each step: pieces of its warp's rows of W, and of a token. */
template <class W, bool UP> struct tile_copies {
    using slot = tile_slot<W>;
    tile_source<W, UP> w[ROW_TILES];
    const unsigned char *x; // NULL: not there
    uint32_t w_to, x_to;
    int x_bytes;

    __device__ __forceinline__ tile_copies(const stream_args &a, const dmoe_tile &tile, int row_tile, uint32_t shared) {
        int warp = threadIdx.x / 32, token = threadIdx.x / 4;
        x_bytes = a.in * 2;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            w[m].begin(a, tile.expert, min(row_tile + m, a.n_row_tiles - 1)); // beyond them it is never looked at
        x = nullptr;
        if (token < tile.n) {
            int64_t row = a.list.pair[tile.first + token];
            if (UP)
                row = a.first_token + row / a.top_k;
            x = static_cast<const unsigned char *>(a.x.at) + row * a.x.stride * 2;
        }
        w_to = shared + warp * ROW_TILES * slot::ROWS_BYTES;
        x_to = shared + slot::W_BYTES + token * slot::X_PITCH + threadIdx.x % 4 * PIECE;
    }

    __device__ __forceinline__ void copy(const stream_args &a, int step, uint64_t policy) const {
        uint32_t at = step % SLOTS * slot::BYTES;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            w[m].template copy<TILE_CHUNKS>(a, w_to + at + m * slot::ROWS_BYTES, step, policy);
#pragma unroll
        for (int i = 0; i < slot::X_BYTES / (4 * PIECE); i++) {
            int byte = step * slot::X_BYTES + (i * 4 + threadIdx.x % 4) * PIECE;
            bool zeros = !x || byte >= x_bytes;
            copy_later(x_to + at + i * 4 * PIECE, zeros ? a.w : x + byte, zeros, policy);
        }
    }
};

/* A step's products, of the octets of tokens that are there. */
template <class W>
static __device__ __forceinline__ void multiply_step(const unsigned char *slot, int n_octets,
                                                     float (&sums)[ROW_TILES][TILE_OCTETS][4]) {
    using slots = tile_slot<W>;
    constexpr int X_CHUNK = x_chunk_bytes<W>();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned char *mine = slot + warp * ROW_TILES * slots::ROWS_BYTES;
    const unsigned char *x = slot + slots::W_BYTES + lane / 4 * slots::X_PITCH + lane % 4 * (X_CHUNK / 4);
#pragma unroll
    for (int j = 0; j < TILE_CHUNKS; j++) {
        typename W::chunk w[ROW_TILES];
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            w[m].load(mine + m * slots::ROWS_BYTES + j * W::CHUNK_BYTES);
#pragma unroll
        for (int s = 0; s < W::STEPS; s += 2) {
            uint32_t e[2][ROW_TILES][4];
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++)
                    w[m].fragment(s + k, e[k][m]);
#pragma unroll
            for (int o = 0; o < TILE_OCTETS; o++)
                if (o < n_octets) {
                    uint4 b =
                        *reinterpret_cast<const uint4 *>(x + o * 8 * slots::X_PITCH + j * X_CHUNK + s / 2 * PIECE);
#pragma unroll
                    for (int m = 0; m < ROW_TILES; m++) {
                        multiply_add<W::BF16>(sums[m][o], e[0][m], b.x, b.y);
                        multiply_add<W::BF16>(sums[m][o], e[1][m], b.z, b.w);
                    }
                }
        }
    }
}

/* A group of rows by a tile of tokens. */
template <class W, bool UP>
static __device__ __forceinline__ void compute_tile(const stream_args &a, const dmoe_tile &tile, int group,
                                                    unsigned char *shared, int *pairs, uint64_t policy) {
    int row_tile = group * GROUP + threadIdx.x / 32 * ROW_TILES, n_octets = (tile.n + 7) / 8,
        n_steps = (a.in + W::COLUMNS * TILE_CHUNKS - 1) / (W::COLUMNS * TILE_CHUNKS);
    const rows_of_tile<UP> rows[ROW_TILES] = {{a, tile.expert, row_tile}, {a, tile.expert, row_tile + 1}};
    const tile_copies<W, UP> copies(a, tile, row_tile, shared_address(shared));
    if ((int)threadIdx.x < tile.n)
        pairs[threadIdx.x] = a.list.pair[tile.first + threadIdx.x];
    float sums[ROW_TILES][TILE_OCTETS][4] = {};
    for (int i = 0; i < SLOTS - 1; i++) {
        if (i < n_steps)
            copies.copy(a, i, policy);
        close_batch();
    }
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        wait_batches<SLOTS - 2>();
        __syncthreads(); // what all copied of this step is there, and the step before has been read
        if (step + SLOTS - 1 < n_steps)
            copies.copy(a, step + SLOTS - 1, policy);
        close_batch();
        multiply_step<W>(shared + step % SLOTS * tile_slot<W>::BYTES, n_octets, sums);
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
        const row_ends<UP> ends(a, rows[m]);
#pragma unroll
        for (int o = 0; o < TILE_OCTETS; o++) {
            finish<W, UP>(a, tile, pairs, o, rows[m], ends, sums[m][o], rows[m].unit[0]);
        }
    }
}

template <class W, bool UP>
static __global__ void __launch_bounds__(STREAM_WARPS * 32, 1) moe_tiles(const __grid_constant__ stream_args a) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ int pairs[TILE_TOKENS];
    let_next_start();
    wait_for_previous();
    int n_groups = (a.n_row_tiles + GROUP - 1) / GROUP, n = *a.list.n_tiles * n_groups;
    uint64_t policy = policy_read_again();
    for (int i = blockIdx.x; i < n; i += gridDim.x) {
        compute_tile<W, UP>(a, a.list.tiles[i / n_groups], i % n_groups, shared, pairs, policy);
        __syncthreads(); // slots and pairs have been read
    }
}
