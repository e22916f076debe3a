/* gemm_w4_kernel.cuh - the kernel of gemm_w4.cu, which says how it works. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4.h"
#include "backend/cuda/linear/w4/gemm_w4_ends.cuh"
#include "backend/cuda/linear/w4/gemm_w4_product.cuh"
#include "backend/cuda/linear/w4/quads_gguf.cuh"

// ---- products -------------------------------------------------------------------------------------------------------

/* The words of two steps of a block. The compiler may not move it over products or other such loads. */
template <quad_kind KIND>
static __device__ __forceinline__ void w4_load_two_steps(quads_words<KIND> &words, uint32_t at, int batch) {
    static_assert(quads_words<KIND>::OF_STEP == 1, "two words are eight bytes");
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words.of[2 * batch]), "=r"(words.of[2 * batch + 1])
                 : "r"(at + batch / 2 * 512 + batch % 2 * 8)
                 : "memory");
}

/* A warpgroup's products of its four tiles by the tokens, block by block. The fragments of some steps are made while
 * those before are multiplied: of half a block, or of less where sums take more registers.
 *
 * LATE: codes are loaded where they are wanted, behind the products before; else ptxas makes all fragments of a block
 * first and multiplies then. INT4 by 32 tokens is 3 to 4 per cent faster for it, by 8 one per cent slower. */
template <quad_kind KIND, int GROUP, int EIGHTS> struct w4_products {
    using fragments = quads_fragments<KIND, GROUP>;
    static constexpr bool LATE = KIND == QUADS_INT4 && EIGHTS == 4;
    static constexpr int STEPS = EIGHTS < 4 ? 4 : 2; // together
    float d[EIGHTS * 4];                             // of a block where scales go to its sums, else of all
    uint32_t f[2][STEPS][4];
    float2 by; // of the block that d has
    int n = 0; // blocks so far

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; LATE && i < EIGHTS * 4; i++)
            d[i] = 0, by = {0, 0};
    }
    __device__ __forceinline__ void make(fragments &scales, const quads_words<KIND> &words, int batch) {
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            scales.fragment(batch * STEPS + k, words.of, f[batch % 2][k]);
    }
    __device__ __forceinline__ void multiply(uint64_t x, int batch) {
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            registers_settle(f[batch % 2][k]);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            int step = batch * STEPS + k;
            w4_product<EIGHTS * 8>::multiply(d, f[batch % 2][k], x + (step / 4 * EIGHTS * ATOM + step % 4 * 32) / 16,
                                             step > 0 || (!fragments::ON_SUMS && n > 0));
        }
        products_commit();
    }
    /* All products have been made: what they read may change. */
    __device__ __forceinline__ void settle(w4_sums<EIGHTS> &sums) {
        products_wait<0>();
        registers_settle(d);
        if constexpr (fragments::ON_SUMS)
            if (LATE || n > 0)
#pragma unroll
                for (int i = 0; i < EIGHTS * 4; i++)
                    sums[i / 4][i % 4] = fmaf(d[i], i % 4 < 2 ? by.x : by.y, sums[i / 4][i % 4]);
    }
    /* words: the lane's in a block in shared memory; x: of its columns. read: when the block before has been read. */
    template <class READ>
    __device__ __forceinline__ void add(uint32_t at, uint64_t x, int lane, bool has_zeros, w4_sums<EIGHTS> &sums,
                                        READ read) {
        fragments scales;
        scales.load(at - lane * 16, lane, has_zeros);
        quads_words<KIND> words;
        if (!LATE)
            words.load(at);
#pragma unroll
        for (int batch = 0; batch < QUADS_STEPS / STEPS; batch++) {
            if constexpr (LATE)
                w4_load_two_steps(words, at, batch);
            if (batch != 1)
                products_wait<1>(); // of what was made in the same registers
            make(scales, words, batch);
            if (batch == 0) {
                settle(sums);
                if (!LATE)
                    read();
            }
            multiply(x, batch);
            if (LATE && batch == 0)
                read();
        }
        by = scales.on_sums(), n++;
    }
    __device__ __forceinline__ void finish(w4_sums<EIGHTS> &sums) {
        settle(sums);
        if constexpr (!fragments::ON_SUMS)
#pragma unroll
            for (int i = 0; i < EIGHTS * 4; i++)
                sums[i / 4][i % 4] = n > 0 ? d[i] : 0;
    }
};

template <quad_kind KIND, int GROUP, int EIGHTS>
static __device__ __forceinline__ void w4_multiply(const gemm_w4_args &a, const w4_place &p, ring_place &at,
                                                   w4_sums<EIGHTS> &sums) {
    int column_warp = p.warp / a.row_warps, row_warp = p.warp % a.row_warps;
    int n_mine = (p.piece_end - p.piece_begin - column_warp + a.column_warps - 1) / a.column_warps; // of n_turns
    uint32_t w = kept(p.w + (row_warp * a.column_warps + column_warp) * a.block_bytes + p.lane * 16),
             x = of_warp(p.x + column_warp * W4_HALVES * EIGHTS * ATOM), lane = kept(p.lane);
    w4_products<KIND, GROUP, EIGHTS> products;
    products.begin();
    int last = 0; // the barrier of the slot that is read
    auto read = [&] {
        if (last && lane < WARP_ARRIVALS)
            barrier_arrive(last);
    };
#pragma unroll 1
    for (int turn = 0; turn < n_mine; turn++) {
        barrier_wait(p.full + 8 * at.slot, at.parity);
        products.add(w + at.slot * p.w_room, operand_rows(of_warp(x + at.slot * p.x_bytes)), lane, a.has_zeros, sums,
                     read);
        last = p.empty + 8 * at.slot;
        at.step();
    }
    products.finish(sums);
    read();
    if (n_mine < p.n_turns) { // the last, of others alone
        barrier_wait(p.full + 8 * at.slot, at.parity);
        last = p.empty + 8 * at.slot;
        read();
        at.step();
    }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------

template <quad_kind KIND, int GROUP, int EIGHTS>
static __global__ void __launch_bounds__((GEMM_W4_MOST_WARPS + 1) * 32, 1)
    gemm_w4(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
            const __grid_constant__ gemm_w4_args a) {
    let_next_start();
    extern __shared__ unsigned char unaligned[];
    __shared__ __align__(8) uint64_t full[W4_MOST_STAGES], empty[W4_MOST_STAGES], all_sums;
    unsigned char *ring = unaligned + (-shared_address(unaligned) & (ATOM - 1));
    w4_place p = w4_place_of<EIGHTS>(a, shared_address(ring));
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
        cluster_is_here();
    if (p.warp == n_warps) {
        w4_filler filler(a, p, &w_map, &x_map);
        if (p.lane == 0)
            filler.begin();
        __syncwarp();
        wait_for_previous();
        if (a.split > 1)
            cluster_wait(); // as the others do
        if (p.lane == 0)
            filler.fill();
        return;
    }
    w4_bring_scales(a, p, scales, biases);
    threads_sync(1, n_warps * 32); // scales are there
    wait_for_previous();
    if (a.split > 1)
        cluster_wait(); // all have begun
    ring_place at = {0, a.n_stages, 0};
    for (int pass = 0; pass < p.n_passes; pass++) {
        w4_sums<EIGHTS> sums = {};
        w4_multiply<KIND, GROUP, EIGHTS>(a, p, at, sums);
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
