/* gemm_w4_kernel.cuh - the kernel of gemm_w4.cu, which says how it works. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4.h"
#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/linear/w4/quads.cuh"

// ---- products -------------------------------------------------------------------------------------------------------

/* A block of each of the warp's tiles, at w and `apart` from one another, by the tokens. x: where rows of the first
 * half of the block's columns begin; swizzle: of the lane's row, at its matrix's first 16 bytes. */
template <quad_kind KIND, int GROUP, int WARP_TILES, int EIGHTS>
static __device__ __forceinline__ void w4_multiply_piece(const gemm_w4_args &a, uint32_t w, int apart, uint32_t x,
                                                         uint32_t swizzle, int lane,
                                                         w4_sums<WARP_TILES, EIGHTS> &sums) {
    using fragments = quads_fragments<KIND, GROUP>;
    fragments tile[WARP_TILES];
    uint4 words[WARP_TILES][2];
    w4_sums<WARP_TILES, EIGHTS> of_piece = {};
#pragma unroll
    for (int m = 0; m < WARP_TILES; m++) {
        uint32_t block = w + m * apart;
        tile[m].load(block, lane, a.has_zeros);
        words[m][0] = load_shared_16(block + lane * 16);
        words[m][1] = load_shared_16(block + 512 + lane * 16);
    }
    auto &into = *[&]() {
        if constexpr (fragments::ON_SUMS)
            return &of_piece;
        else
            return &sums;
    }();
#pragma unroll
    for (int two = 0; two < QUADS_STEPS / 2; two++) {
        uint32_t b[EIGHTS][4];
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
            load_matrices(b[j], x + (two / 2 * EIGHTS + j) * ATOM + (two % 2 ? swizzle ^ 64 : swizzle));
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int m = 0; m < WARP_TILES; m++) {
                const uint4 &v = words[m][two / 2];
                const uint32_t four[4] = {v.x, v.y, v.z, v.w};
                uint32_t f[4];
                tile[m].fragment(two * 2 + k, four[two % 2 * 2 + k], f);
#pragma unroll
                for (int j = 0; j < EIGHTS; j++)
                    multiply_add<false>(into[m][j], f, b[j][2 * k], b[j][2 * k + 1]);
            }
    }
    if constexpr (fragments::ON_SUMS)
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++) {
            float2 s = tile[m].on_sums();
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[m][j][i] = fmaf(of_piece[m][j][i], i < 2 ? s.x : s.y, sums[m][j][i]);
        }
}

template <quad_kind KIND, int GROUP, int WARP_TILES, int EIGHTS>
static __device__ void w4_multiply(const gemm_w4_args &a, const w4_place &p, ring_place &at,
                                   w4_sums<WARP_TILES, EIGHTS> &sums) {
    int column_warp = p.warp / a.row_warps, row_warp = p.warp % a.row_warps, r = p.lane % 8;
    int apart = a.column_warps * a.block_bytes;
    uint32_t w_there = row_warp * WARP_TILES * apart + column_warp * a.block_bytes;
    uint32_t x_there = column_warp * W4_HALVES * EIGHTS * ATOM + r * PIECE_BYTES, swizzle = (p.lane / 8 ^ r) * 16;
#pragma unroll 1
    for (int turn = 0; turn < p.n_turns; turn++) {
        barrier_wait(p.full + 8 * at.slot, at.parity);
        if (p.piece_begin + turn * a.column_warps + column_warp < p.piece_end)
            w4_multiply_piece<KIND, GROUP, WARP_TILES, EIGHTS>(a, p.w_stage(at.slot) + w_there, apart,
                                                               p.x_stage(at.slot) + x_there, swizzle, p.lane, sums);
        __syncwarp(); // all lanes have read it
        barrier_arrive_warp(p.empty + 8 * at.slot, p.lane);
        at.step();
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

/* Scales and biases of the rows of all the block's tiles, in the order of tiles. */
static __device__ void w4_bring_scales(const gemm_w4_args &a, const w4_place &p, float *scales, float *biases) {
    int of_pass = p.tiles * 16;
    for (int i = threadIdx.x; i < p.n_passes * of_pass; i += blockDim.x) {
        int tile = p.first_tile + i / of_pass * p.tile_step + i % of_pass / 16, r = i % 16;
        int unit = a.gated ? tile * 8 + r % 8 : tile * 16 + r, row = a.gated && r >= 8 ? unit + a.n_units : unit;
        bool there = tile < a.n_tiles && unit < a.n_units;
        scales[i] = there ? a.scale[row] : 0;
        if (a.bias)
            biases[i] = there ? a.bias[row] : 0;
    }
}

template <quad_kind KIND, int GROUP, int WARP_TILES, int EIGHTS>
static __global__ void __launch_bounds__((GEMM_W4_MOST_WARPS + 1) * 32, 1)
    gemm_w4(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
            const __grid_constant__ gemm_w4_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ __align__(8) uint64_t full[W4_MOST_STAGES], empty[W4_MOST_STAGES], all_sums;
    unsigned char *ring = unaligned + (-shared_address(unaligned) & (ATOM - 1));
    w4_place p = w4_place_of<WARP_TILES, EIGHTS>(a, shared_address(ring));
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
        w4_sums<WARP_TILES, EIGHTS> sums = {};
        w4_multiply<KIND, GROUP, WARP_TILES, EIGHTS>(a, p, at, sums);
        if (n_ranks > 1) { // there is no other pass
            w4_join<WARP_TILES, EIGHTS>(a, p, received, n_warps, sums, scales, biases);
            return;
        }
        int first = p.warp * WARP_TILES;
#pragma unroll
        for (int m = 0; m < WARP_TILES; m++)
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
                w4_finish(a, p, p.first_tile + pass * p.tile_step + first + m, j,
                          make_float4(sums[m][j][0], sums[m][j][1], sums[m][j][2], sums[m][j][3]),
                          scales + (pass * p.tiles + first + m) * 16,
                          biases ? biases + (pass * p.tiles + first + m) * 16 : nullptr);
    }
}
