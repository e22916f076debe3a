/* gemm_w4_kernel.cuh - the kernel of gemm_w4.cu, which says how it works. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4.h"
#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/linear/w4/quads.cuh"

// ---- products -------------------------------------------------------------------------------------------------------

/* What a lane has of a block. */
template <quad_kind KIND, int GROUP> struct w4_block {
    quads_fragments<KIND, GROUP> scales;
    uint4 words[2];
    __device__ __forceinline__ void load(const gemm_w4_args &a, uint32_t at, int lane) {
        scales.load(at, lane, a.has_zeros);
        words[0] = load_shared_16(at + lane * 16);
        words[1] = load_shared_16(at + 512 + lane * 16);
    }
};

/* A block by the tokens. x: where rows of the first half of the block's columns begin; swizzle: of the lane's row, at
 * its matrix's first 16 bytes. Even and odd steps are summed apart: a product waits for the one before it half as long.
 */
template <quad_kind KIND, int GROUP, int EIGHTS>
static __device__ __forceinline__ void w4_multiply_piece(w4_block<KIND, GROUP> &block, uint32_t x, uint32_t swizzle,
                                                         w4_sums<EIGHTS> &sums) {
    w4_sums<EIGHTS> of_piece[2] = {};
#pragma unroll
    for (int two = 0; two < QUADS_STEPS / 2; two++) {
        uint32_t b[EIGHTS][4];
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            load_matrices(b[j], x + (two / 2 * EIGHTS + j) * ATOM + (two % 2 ? swizzle ^ 64 : swizzle));
        const uint4 &v = block.words[two / 2];
        const uint32_t four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t f[4];
            block.scales.fragment(two * 2 + k, four[two % 2 * 2 + k], f);
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                multiply_add<false>(of_piece[k][j], f, b[j][2 * k], b[j][2 * k + 1]);
        }
    }
    float2 s = block.scales.on_sums();
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[j][i] = fmaf(of_piece[0][j][i] + of_piece[1][j][i], i < 2 ? s.x : s.y, sums[j][i]);
}

template <quad_kind KIND, int GROUP, int EIGHTS, int PIECES>
static __device__ void w4_multiply(const gemm_w4_args &a, const w4_place &p, ring_place &at, w4_sums<EIGHTS> &sums) {
    int column_warp = p.warp / a.row_warps, row_warp = p.warp % a.row_warps, r = p.lane % 8;
    int first = column_warp * PIECES;
    uint32_t w_there = (row_warp * a.turn_pieces + first) * a.block_bytes;
    uint32_t x_there = first * W4_HALVES * EIGHTS * ATOM + r * PIECE_BYTES, swizzle = (p.lane / 8 ^ r) * 16;
#pragma unroll 1
    for (int turn = 0; turn < p.n_turns; turn++) {
        barrier_wait(p.full + 8 * at.slot, at.parity);
        if (p.piece_begin + turn * a.turn_pieces + first < p.piece_end) {
            uint32_t w = p.w_stage(at.slot) + w_there, x = p.x_stage(at.slot) + x_there;
            w4_block<KIND, GROUP> blocks[PIECES];
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                blocks[i].load(a, w + i * a.block_bytes, p.lane);
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                w4_multiply_piece<KIND, GROUP, EIGHTS>(blocks[i], x + i * W4_HALVES * EIGHTS * ATOM, swizzle, sums);
        }
        __syncwarp(); // all lanes have read it
        barrier_arrive_warp(p.empty + 8 * at.slot, p.lane);
        at.step();
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* That multiply, of a block: as many as registers are enough for. */
static __host__ __device__ constexpr int w4_most_warps(int eights) { return eights < 4 ? 23 : 19; }

template <quad_kind KIND, int GROUP, int EIGHTS, int PIECES>
static __global__ void __launch_bounds__((w4_most_warps(EIGHTS) + 1) * 32, 1)
    gemm_w4(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
            const __grid_constant__ gemm_w4_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ __align__(8) uint64_t full[W4_MOST_STAGES], empty[W4_MOST_STAGES], all_sums;
    unsigned char *ring = unaligned + (-shared_address(unaligned) & (ATOM - 1));
    w4_place p = w4_place_of<EIGHTS, PIECES>(a, shared_address(ring));
    float4 *received = reinterpret_cast<float4 *>(ring + a.n_stages * (p.x_bytes + p.w_room));
    int n_warps = blockDim.x / 32 - 1, n_ranks = a.split * a.column_warps;
    int n_items = p.tiles * EIGHTS, most_owned = n_ranks > 1 ? (n_items + a.split - 1) / a.split : 0;
    float *scales = reinterpret_cast<float *>(received + most_owned * n_ranks * 32);
    float *biases = a.bias ? scales + a.scale_room : nullptr;
    p.full = kept(shared_address(full)), p.empty = kept(shared_address(empty)), p.all_sums = shared_address(&all_sums);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            barrier_init(p.full + 8 * i, 1);
            barrier_init(p.empty + 8 * i, n_warps * WARP_ARRIVALS);
        }
        barrier_init(p.all_sums, 1);
        barrier_init_done();
        int owned = (n_items - p.rank + a.split - 1) / a.split;
        barrier_expect(p.all_sums, a.split > 1 ? owned * n_ranks * 32 * (int)sizeof(float4) : 0);
    }
    __syncthreads(); // barriers are ready
    if (a.split > 1)
        cluster_arrive();
    w4_filler filler(a, p, &w_map, &x_map);
    bool fills = p.warp == n_warps;
    if (fills && p.lane == 0)
        filler.begin();
    __syncwarp();
    w4_bring_scales(a, p, scales, biases);
    __syncthreads(); // scales are there
    wait_for_previous();
    if (fills) {
        if (p.lane == 0)
            filler.fill();
        __syncwarp();
        if (a.split > 1)
            cluster_wait(); // as the others do
        return;
    }
    ring_place at = {0, a.n_stages, 0};
    for (int pass = 0; pass < p.n_passes; pass++) {
        w4_sums<EIGHTS> sums = {};
        w4_multiply<KIND, GROUP, EIGHTS, PIECES>(a, p, at, sums);
        if (n_ranks > 1) { // there is no other pass
            w4_join<EIGHTS>(a, p, received, n_warps, sums, scales, biases);
            return;
        }
        int row = (pass * p.tiles + p.warp) * 16;
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            w4_finish(a, p, p.first_tile + pass * p.tile_step + p.warp, j,
                      make_float4(sums[j][0], sums[j][1], sums[j][2], sums[j][3]), scales + row,
                      biases ? biases + row : nullptr);
    }
}
