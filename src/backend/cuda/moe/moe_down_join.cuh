/* moe_down_join.cuh - moe_down and moe_join in one node, of few tokens.
 *
 * A block has 16 rows of y of a token, and a warp for each of its experts that are here: the warp's weights fill its
 * queue before moe_up has ended, its row of hidden it brings for itself. Sums are the same as moe_stream's, to the bit,
 * and are added in the order of the token's slots as moe_join adds them. Tokens read their experts each for itself. */
#pragma once

#include "backend/cuda/moe/moe_stream_kernel.cuh"

enum { JOINED_WARPS = 16 };

struct down_join_args {
    stream_args down; // y: not used
    const int32_t *ids;
    int64_t ids_stride;
    dmat weights, y;
    __device__ __forceinline__ own_slots slots_of(int token, bool there) const {
        return down.list.posted ? own_slots(down, look_posted(down.list.posted))
                                : own_slots(down, there ? ids + token * ids_stride : nullptr);
    }
};

/* What all experts of a token have summed up for the block's rows, together. weight: of the slot that is the thread's
 * number. */
static __device__ __forceinline__ void join_rows(const down_join_args &all, const float (*results)[TILE_ROWS],
                                                 uint32_t own, bool there, float weight) {
    const stream_args &a = all.down;
    __syncthreads(); // all experts' are there
    int row = threadIdx.x % TILE_ROWS, d = blockIdx.x * TILE_ROWS + row;
    if (threadIdx.x >= 32)
        return;
    float sum = 0;
#pragma unroll 4
    for (int k = 0; k < a.top_k; k++) {
        float more = own >> k & 1 ? results[k][row] : 0; // as moe_join has it: -0 and 0 are 0
        sum = fmaf(__shfl_sync(0xffffffffu, weight, k), more, sum);
    }
    if (threadIdx.x < TILE_ROWS && d < a.units && there)
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
    // moe_up waited for the node that routed, or for its ids, before it let this one start.
    bool there = token < step_tokens(plan);
    const own_slots own = all.slots_of(token, there);
    int expert = own.expert(slot), mine = slot * a.n_row_tiles + row_tile, is_own = own.mask >> slot & 1;
    if (lane == 0)
        tiles[slot] = {expert, token * a.top_k + slot, 1};
    __syncwarp();
    expert_queue<W, false, DEPTH> queue(a, tiles, 0, mine, mine + is_own, shared);
    const rows_of_tile<false> rows(a, expert, row_tile);
    const row_ends<false> ends(a, rows);
    let_next_start();
    wait_for_previous();
    float weight = there && (int)threadIdx.x < a.top_k ? load(all.weights, token, threadIdx.x) : 0;
    if (is_own) {
        bring_row<W>(a, token * a.top_k + slot, x);
        __syncwarp(); // the row is there
        float sums[1][4] = {};
        sum_tile<W, false, 1>(a, queue, 1, x, sums);
        if (lane % 4 == 0) // the first column
            results[slot][lane / 4] = ends.of(0, sums[0][0]), results[slot][lane / 4 + 8] = ends.of(1, sums[0][2]);
    }
    join_rows(all, results, own.mask, there, weight);
}
