/* moe_down_join.cuh - moe_down and moe_join in one node, of few tokens; of weights in blocks by a warpgroup's products.
 *
 * A block has 16 rows of y of a token, and a warp for each of its experts: the warp's weights fill its queue before
 * moe_up has ended, its row of hidden it brings for itself. Sums are the same as moe_stream's, to the bit, and are
 * added in the order of the token's slots as moe_join adds them. Tokens read their experts each for itself. */
#pragma once

#include "backend/cuda/moe/moe_group.cuh"

enum { JOINED_WARPS = 16 };

struct down_join_args {
    stream_args down; // y: not used
    const int32_t *ids;
    int64_t ids_stride;
    dmat weights, y;
};

/* What all experts of a token have summed up for the block's rows, together. */
static __device__ __forceinline__ void join_rows(const down_join_args &all, const float (*results)[TILE_ROWS],
                                                 bool there) {
    const stream_args &a = all.down;
    __syncthreads(); // all experts' are there
    int d = blockIdx.x * TILE_ROWS + threadIdx.x;
    if (threadIdx.x >= TILE_ROWS || d >= a.units || !there)
        return;
    float sum = 0;
    for (int k = 0; k < a.top_k; k++)
        sum = fmaf(load(all.weights, blockIdx.y, k), results[k][threadIdx.x], sum);
    store(all.y, blockIdx.y, d, sum);
}

/* DEPTH: of a warp's queue. */
template <class W, int DEPTH>
static __global__ void __launch_bounds__(JOINED_WARPS * 32, 1)
    moe_down_join(device_plan plan, const __grid_constant__ down_join_args all) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ dmoe_tile tiles[JOINED_WARPS];
    __shared__ float results[JOINED_WARPS][TILE_ROWS];
    const stream_args &a = all.down;
    int slot = threadIdx.x / 32, lane = threadIdx.x % 32, token = blockIdx.y, row_tile = blockIdx.x;
    unsigned char *x = shared + a.top_k * expert_queue<W, false, DEPTH>::BYTES + slot * a.x_pitch;
    // moe_up waited for the node that routed before it let this one start.
    bool there = token < step_tokens(plan);
    if (lane == 0)
        tiles[slot] = {there ? expert_of(a, all.ids[token * all.ids_stride + slot]) : 0, token * a.top_k + slot, 1};
    __syncwarp();
    int mine = slot * a.n_row_tiles + row_tile;
    expert_queue<W, false, DEPTH> queue(a, tiles, 0, mine, mine + 1, shared);
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
    join_rows(all, results, there);
}

/* The same where W is in blocks. Rows of hidden are the columns of one right operand: a warp's rows of W are its
 * expert's, and of the products of them with all of the token's pairs it keeps its own. Warps behind the last expert
 * go with it. */
template <class W, int OCTETS>
static __global__ void __launch_bounds__(JOINED_WARPS * 32, 1)
    moe_down_group(device_plan plan, const __grid_constant__ down_join_args all) {
    extern __shared__ __align__(1024) unsigned char panels_and_queues[];
    __shared__ dmoe_tile tiles[JOINED_WARPS];
    __shared__ float results[JOINED_WARPS][TILE_ROWS];
    __shared__ int pairs[JOINED_WARPS];
    __shared__ group_row token_rows[JOINED_WARPS];
    const stream_args &a = all.down;
    int slot = min((int)threadIdx.x / 32, a.top_k - 1), lane = threadIdx.x % 32, token = blockIdx.y;
    bool there = token < step_tokens(plan);
    // moe_up waited for the node that routed before it let this one start.
    if ((int)threadIdx.x < a.top_k)
        tiles[threadIdx.x] = {there ? expert_of(a, all.ids[token * all.ids_stride + threadIdx.x]) : 0, 0, 1};
    __syncthreads(); // they are there
    const dmoe_tile mine = tiles[slot], of_token = {0, token * a.top_k, a.top_k};
    int row_tile = slot * a.n_row_tiles + (int)blockIdx.x;
    block_queue<W, false, W::DEPTH> queue(a, tiles, 0, row_tile, row_tile + 1,
                                          panels_and_queues + OCTETS * group_panels<W>(a.in) * GROUP_ROWS);
    const rows_of_tile<false> rows(a, mine.expert, blockIdx.x);
    const row_ends<false> ends(a, rows);
    let_next_start();
    wait_for_previous();
    bring_tiles<W, false>(a, nullptr, &of_token, 1, panels_and_queues, pairs, token_rows);
    __syncthreads(); // the rows are there
    float sums[OCTETS * 4] = {}, own[2] = {};
    sum_unit<W, OCTETS * 8>(a, queue, shared_address(panels_and_queues), octets_of(of_token) * GROUP_ROWS, sums);
#pragma unroll
    for (int i = 0; i < OCTETS * 4; i++) // sums of columns 8o + 2t and the next, of rows g and g + 8
        if (i / 4 * 8 + lane % 4 * 2 + i % 2 == slot)
            own[i % 4 / 2] = sums[i];
    if (slot % 8 / 2 == lane % 4)
        results[slot][lane / 4] = ends.of(0, own[0]), results[slot][lane / 4 + 8] = ends.of(1, own[1]);
    join_rows(all, results, there);
}
