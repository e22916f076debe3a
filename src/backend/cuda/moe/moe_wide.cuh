/* moe_wide.cuh - the same products as moe_tiles.cuh's where experts have many tokens and widths are multiples of 64: by
 * a warpgroup's products (wgmma), of which one takes 64 rows of W. On an H200 these and mma.sync give the same bits, so
 * that a row is the same by either.
 *
 * A block computes 256 rows of W, of gates and ups 128 of each, by up to 160 tokens. W is the left operand, in
 * registers: a warp makes half of its own 32 rows as the stream does, and makes the next 32 columns of them while those
 * before are multiplied. Tokens are the right operand, in shared memory: panels of 64 columns, 128 bytes a token in the
 * 128-byte swizzle. What a lane has of a row of W are neighbours, but of NATURAL formats, where a product wants columns
 * 2q, 2q + 1 and those 8 further; so tokens' columns lie in another order in memory (column_place): moe_order puts them
 * so, and moe_wide's up writes hidden so.
 *
 * A step is a panel or two, in a ring of slots; a barrier a step says that what all threads copied is there, and that
 * the slot of the step but one before is free. Blocks take tiles by turns, so that those of one expert run side by
 * side.
 *
 * Bytes from the L2 a step of 256 rows by 128 tokens: 16 KB of e4m3 and 16 KB of tokens for 2 M multiplications, which
 * take 1,024 cycles. */
#pragma once

#include "backend/cuda/moe/moe_order.cuh"
#include "backend/cuda/moe/moe_tiles.cuh"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"

enum { PANEL_BYTES = WIDE_TOKENS * 128, WIDE_SHARED = 208 << 10 };

/* A step: panels of the tokens, and behind them the rows of W. */
template <class W> struct wide_slot {
    static constexpr int PANELS = W::COLUMNS > PANEL_COLUMNS ? W::COLUMNS / PANEL_COLUMNS : 1,
                         COLUMNS = PANELS * PANEL_COLUMNS, CHUNKS = COLUMNS / W::COLUMNS, HALVES = 2 * PANELS,
                         ROWS_BYTES = CHUNKS * W::CHUNK_BYTES, X_BYTES = PANELS * PANEL_BYTES, // of 16 rows; of tokens
        BYTES = X_BYTES + (GROUP * ROWS_BYTES + 1023) / 1024 * 1024,
                         N = WIDE_SHARED / BYTES < 6 ? WIDE_SHARED / BYTES : 6;
};

/* What a thread copies of each step: its warp's rows of W, and 16 bytes of every 32nd token. */
template <class W, bool UP> struct wide_copies {
    using slot = wide_slot<W>;
    enum { TOKENS = WIDE_TOKENS / 32 };
    tile_source<W, UP> w[ROW_TILES];
    uint32_t x[TOKENS]; // in pieces, from the first token on
    uint32_t w_to, x_to;
    int n_tokens;

    __device__ __forceinline__ wide_copies(const stream_args &a, const dmoe_tile &tile, int row_tile, uint32_t shared) {
        int piece = threadIdx.x % 8, first = threadIdx.x / 8;
        n_tokens = tile.n;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            w[m].begin(a, tile.expert, min(row_tile + m, a.n_row_tiles - 1)); // beyond them it is never looked at
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            int token = first + i * 32, pair = token < tile.n ? a.list.pair[tile.first + token] : 0;
            x[i] = (uint32_t)((UP ? a.first_token + pair / a.top_k : pair) * (a.x.stride / 8) + piece);
        }
        w_to = shared + slot::X_BYTES + threadIdx.x / 32 * ROW_TILES * slot::ROWS_BYTES;
        x_to = shared + first * 128 + (piece ^ first % 8) * PIECE;
    }

    __device__ __forceinline__ void copy(const stream_args &a, int step, uint64_t policy) const {
        uint32_t at = step % slot::N * slot::BYTES;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            w[m].template copy<slot::CHUNKS>(a, w_to + at + m * slot::ROWS_BYTES, step, policy);
#pragma unroll
        for (int p = 0; p < slot::PANELS; p++) {
            int panel = step * slot::PANELS + p;
            bool zeros = slot::PANELS > 1 && panel * PANEL_COLUMNS >= a.in;
#pragma unroll
            for (int i = 0; i < TOKENS; i++) // what products make of tokens that are not there, nobody reads
                if ((int)threadIdx.x / 8 + i * 32 < n_tokens)
                    copy_later(x_to + at + p * PANEL_BYTES + i * 32 * 128,
                               static_cast<const uint4 *>(a.x.at) + (zeros ? 0 : x[i] + panel * 8), zeros, policy);
        }
    }
};

/* 32 columns of the warp's rows, as left operands of two products each. */
template <class W>
static __device__ __forceinline__ void take_half(const unsigned char *slot, int h, uint32_t (&to)[ROW_TILES][2][4]) {
    using slots = wide_slot<W>;
    constexpr int OF_CHUNK = slots::HALVES / slots::CHUNKS;
    const unsigned char *mine = slot + slots::X_BYTES + threadIdx.x / 32 * ROW_TILES * slots::ROWS_BYTES;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
        typename W::chunk chunk;
        chunk.load(mine + m * slots::ROWS_BYTES + h / OF_CHUNK * W::CHUNK_BYTES);
#pragma unroll
        for (int k = 0; k < 2; k++)
            chunk.fragment(h % OF_CHUNK * 2 + k, to[m][k]);
    }
}

template <class W, int N>
static __device__ __forceinline__ void multiply_half(float (&sums)[ROW_TILES][N / 2],
                                                     const uint32_t (&rows)[ROW_TILES][2][4], uint64_t tokens) {
    products_begin();
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            halves_product<N, W::BF16>::add(sums[m], rows[m][k], tokens + 2 * k);
    products_commit();
}

/* A group of rows by a tile of up to N tokens. */
template <class W, bool UP, int N>
static __device__ __forceinline__ void compute_wide(const stream_args &a, const dmoe_tile &tile, int group,
                                                    unsigned char *shared, int *pairs, uint64_t policy) {
    using slot = wide_slot<W>;
    int row_tile = group * GROUP + threadIdx.x / 32 * ROW_TILES, n_steps = (a.in + slot::COLUMNS - 1) / slot::COLUMNS;
    const wide_copies<W, UP> copies(a, tile, row_tile, shared_address(shared));
    if ((int)threadIdx.x < tile.n)
        pairs[threadIdx.x] = a.list.pair[tile.first + threadIdx.x];
    float sums[ROW_TILES][N / 2] = {};
    uint32_t rows_of[2][ROW_TILES][2][4]; // of a half that is multiplied, and of the next
    for (int i = 0; i < slot::N - 1; i++) {
        if (i < n_steps)
            copies.copy(a, i, policy);
        close_batch();
    }
    auto begin_step = [&](int step) { // a warp makes its rows of what it copied itself; all meet for the tokens
        __syncwarp();
        take_half<W>(shared + step % slot::N * slot::BYTES, 0, rows_of[0]);
        fence_bulk();
        __syncthreads(); // the step is there, and the one but one before has been read by all
    };
    wait_batches<slot::N - 2>();
    begin_step(0);
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        const unsigned char *at = shared + step % slot::N * slot::BYTES;
        uint64_t tokens = operand_rows(shared_address(at));
#pragma unroll
        for (int h = 0; h < slot::HALVES; h++) {
            multiply_half<W, N>(sums, rows_of[h % 2], tokens + h / 2 * (PANEL_BYTES >> 4) + h % 2 * 4);
            if (h == 0 && step > 0) { // while that is multiplied
                if (step + slot::N - 2 < n_steps)
                    copies.copy(a, step + slot::N - 2, policy);
                close_batch();
            }
            products_wait<1>(); // the half before
            if (h + 1 < slot::HALVES)
                take_half<W>(at, h + 1, rows_of[(h + 1) % 2]);
        }
        if (step + 1 == n_steps)
            break;
        wait_batches<slot::N - 3>();
        begin_step(step + 1);
    }
    products_wait<0>();
    wait_batches<0>();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
        registers_settle(sums[m]);
        const rows_of_tile<UP> rows(a, tile.expert, row_tile + m);
        const row_ends<UP> ends(a, rows);
        int place = rows.unit[0];
        if (UP && !W::NATURAL)
            place = place / PANEL_COLUMNS * PANEL_COLUMNS + column_place(W::COLUMNS, max(place, 0) % PANEL_COLUMNS);
#pragma unroll
        for (int o = 0; o < N / 8; o++) {
            const float of_octet[4] = {sums[m][4 * o], sums[m][4 * o + 1], sums[m][4 * o + 2], sums[m][4 * o + 3]};
            finish<W, UP>(a, tile, pairs, o, rows, ends, of_octet, place);
        }
    }
}

template <class W, bool UP>
static __global__ void __launch_bounds__(STREAM_WARPS * 32, 1) moe_wide(const __grid_constant__ stream_args a) {
    extern __shared__ __align__(1024) unsigned char panels[];
    __shared__ int pairs[WIDE_TOKENS];
    let_next_start();
    wait_for_previous();
    int n_groups = (a.n_row_tiles + GROUP - 1) / GROUP, n = *a.list.n_tiles * n_groups;
    uint64_t policy = policy_read_again();
    for (int i = blockIdx.x; i < n; i += gridDim.x) {
        const dmoe_tile tile = a.list.tiles[i / n_groups];
        if (tile.n <= 32)
            compute_wide<W, UP, 32>(a, tile, i % n_groups, panels, pairs, policy);
        else if (tile.n <= 64)
            compute_wide<W, UP, 64>(a, tile, i % n_groups, panels, pairs, policy);
        else if (tile.n <= 96)
            compute_wide<W, UP, 96>(a, tile, i % n_groups, panels, pairs, policy);
        else
            compute_wide<W, UP, WIDE_TOKENS>(a, tile, i % n_groups, panels, pairs, policy);
        __syncthreads(); // slots and pairs have been read
    }
}
