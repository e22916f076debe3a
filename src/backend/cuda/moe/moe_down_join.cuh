/* moe_down_join.cuh - moe_down and moe_join in one node, of few tokens.
 *
 * A block has 16 rows of y of a token, and a warp for each of its experts: the warp's weights fill its queue before
 * moe_up has ended, its row of hidden it brings for itself. Sums are the same as moe_stream's, to the bit, and are
 * added in the order of the token's slots as moe_join adds them. Tokens read their experts each for itself. */
#pragma once

#include "backend/cuda/moe/moe_stream_kernel.cuh"

enum { JOINED_WARPS = 16 };

struct down_join_args {
    stream_args down; // y: not used
    const int32_t *ids;
    int64_t ids_stride;
    dmat weights, y;
};

template <class W>
static __global__ void __launch_bounds__(JOINED_WARPS * 32, 1)
    moe_down_join(device_plan plan, const __grid_constant__ down_join_args all) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ dmoe_tile tiles[JOINED_WARPS];
    __shared__ float results[JOINED_WARPS][TILE_ROWS];
    const stream_args &a = all.down;
    int slot = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y, row_tile = blockIdx.x;
    unsigned char *x = shared + a.top_k * expert_queue<W, false, W::DEPTH>::BYTES + slot * a.x_pitch;
    // moe_up waited for the node that routed before it let this one start.
    bool there = token < step_tokens(plan);
    if (lane == 0)
        tiles[slot] = {there ? expert_of(a, all.ids[token * all.ids_stride + slot]) : 0, token * a.top_k + slot, 1};
    __syncwarp();
    int mine = slot * a.n_row_tiles + row_tile;
    expert_queue<W, false, W::DEPTH> queue(a, tiles, 0, mine, mine + 1, shared);
    const rows_of_tile<false> rows(a, tiles[slot].expert, row_tile);
    const row_ends<false> ends(a, rows);
    let_next_start();
    wait_for_previous();
    bring_row<W>(a, token * a.top_k + slot, x);
    __syncwarp(); // the row is there
    float sums[1][4] = {};
    sum_tile<W, false, 1>(a, queue, 1, x, sums);
    if (lane % 4 == 0) // the first column
        results[slot][lane / 4] = ends.of(0, sums[0][0]), results[slot][lane / 4 + 8] = ends.of(1, sums[0][2]);
    __syncthreads(); // all experts' are there
    int d = row_tile * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || d >= a.units || !there)
        return;
    float sum = 0;
    for (int k = 0; k < a.top_k; k++)
        sum = fmaf(load(all.weights, token, k), results[k][threadIdx.x], sum);
    store(all.y, token, d, sum);
}
