/* gemm_fp8_gated_products.cuh - the products of a tile of gemm_fp8_gated.cu that a warpgroup makes, over all stages.
 *
 * Sums are laid out as wgmma_e4m3_f16.cuh says: a lane has columns 2t and 2t + 1 of every eight, a pair of halves, for
 * tokens g and g + 8 of the warp's 16, here of each part of 64 tokens. */
#pragma once

#include "backend/cuda/linear/fp8/gemm_fp8_gated_feed.cuh"
#include "backend/cuda/value.h"

namespace {

/* N: rows of W that a product has: gates, then as many that they let through. PARTS: of tokens, all of the tile's.
 *
 * A warpgroup's product 2f + r is its f-th part of tokens by the r-th N rows of W; of an odd number both warpgroups
 * have the last part, each with N rows of its own. */
template <int N, int PARTS> struct tile_products {
    static constexpr int OCTETS = N / 16, STEPS = PIECE_BYTES / E4M3_K,
                         TILE_OCTETS = GROUPS * OCTETS; // octets: of y's columns
    static constexpr int W_BYTES = N * PIECE_BYTES, STAGE = GROUPS * W_BYTES + PARTS * PART_BYTES;
    static constexpr int OWN = (PARTS + 1) / 2,
                         ALONE = PARTS % 2 ? OWN - 1 : OWN; // parts of the warpgroup; which has N rows alone, if any

    const gated_args &a;
    const shared_places &m;
    int rank, group, warp, lane; // rank: in the cluster; warp: of the group
    uint32_t empty_there;        // of the block whom this lane tells that a slot is free; 0: nobody
    uint32_t sums[PARTS][N / 4];

    __device__ void meet() const { threads_sync(1, CONSUMERS); }
    /* The part of the tile's tokens that is the warpgroup's f-th. */
    __device__ int part_of(int f) const { return min(2 * f + group, PARTS - 1); }

    // ---- products ---------------------------------------------------------------------------------------------------

    /* A lane of the first warp for each block that copies to this one: a product of the tensor core ends for all four
     * warps, and what they had loaded for it was there when it began. racecheck does not follow that, so in a build for
     * it all lanes tell all blocks (TELLERS). */
    __device__ uint32_t told() const {
        if (warp > 0 || lane >= a.sharers())
            return 0;
        return a.sharers() > 1 ? address_at_rank(m.empty, lane) : m.empty;
    }
    __device__ void release(int slot) const {
        if (slot < 0)
            return;
        if (TELLERS > 1)
            for (int i = 0; i < a.sharers(); i++)
                barrier_arrive_at_rank(address_at_rank(m.empty, i) + slot * 8);
        else if (empty_there)
            barrier_arrive_at_rank(empty_there + slot * 8);
    }

    /* Of the stage, as the tensor core is told where it lies: of W, or behind it of tokens. */
    __device__ uint64_t operand(int slot, int offset) const {
        uint64_t first = operand_rows(m.ring);
        uint32_t low = of_warp((uint32_t)first + (slot * STAGE + offset >> 4));
        return (first & 0xffffffff00000000u) | low;
    }

    /* Tokens as products have them, of a step: 32 columns. */
    using fragments = uint32_t[OWN][4];
    static __device__ void settle(fragments &x) {
#pragma unroll
        for (int f = 0; f < OWN; f++)
            registers_settle(x[f]);
    }
    /* Where the lane's row of the warpgroup's first part lies in the first stage, as load_matrices wants it. */
    __device__ uint32_t first_row() const {
        return m.ring + GROUPS * W_BYTES + part_of(0) * PART_BYTES + (warp * 16 + lane % 16) * PIECE_BYTES +
               (lane / 16 ^ lane % 8) * 16;
    }
    /* Tokens come through registers, each for two products: those of a step while products of the step before run. All
     * products but the last step's have ended behind it. frees: the slot of the stage before is nobody's then. */
    __device__ void multiply_stage(ring_place &at, int &last, bool add, bool frees, uint32_t row, fragments (&x)[2]) {
        constexpr int NEXT_ROWS = W_BYTES >> 4;
        uint64_t w = operand(at.slot, 0), own_rows = of_warp(group * NEXT_ROWS);
        row += at.slot * STAGE;
        barrier_wait(m.full + at.slot * 8, at.parity);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            fragments &now = x[k % 2];
#pragma unroll
            for (int f = 0; f < OWN; f++)
                load_matrices(now[f], (row ^ k * E4M3_K) + (part_of(f) - part_of(0)) * PART_BYTES);
            products_begin();
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                e4m3_half_product<N>::multiply(sums[i], now[i / 2],
                                               w + k * E4M3_K_STEP + (i / 2 == ALONE ? own_rows : i % 2 * NEXT_ROWS),
                                               add || k > 0);
            products_commit();
            products_wait<1>();
            settle(x[1 - k % 2]); // until here they were read
            if (k == 0 && frees)
                release(last);
        }
        last = at.slot;
        at.step();
    }

    /* All pieces of the tile. The last slots, as many as there are, stay: sums leave through them. */
    __device__ void multiply(ring_place &at) {
        int last = -1;
        fragments x[2] = {};
        uint32_t row = first_row();
#pragma unroll
        for (int i = 0; i < PARTS; i++) // their registers are free until here
#pragma unroll
            for (int k = 0; k < N / 4; k++)
                sums[i][k] = 0;
        for (int piece = 0; piece < a.n_pieces; piece++)
            multiply_stage(at, last, piece > 0, piece <= a.n_pieces - a.n_stages, row, x);
        products_wait<0>();
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            registers_settle(sums[i]);
    }
    /* The ring is the copying thread's again. */
    __device__ void give_back(ring_place at) const {
        for (int i = 0; i < a.n_stages; i++, at.step())
            release(at.slot);
    }
};

} // namespace
