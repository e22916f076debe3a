/* moe_wide.cuh - the same products as moe_tiles.cuh's where experts have many tokens and widths are multiples of 64: by
 * a warpgroup's products (wgmma), of which one takes 64 rows of W. On an H200 these and mma.sync give the same bits, so
 * that a row is the same by either.
 *
 * A block computes 256 rows of W, of gates and ups 128 of each, by a tile of up to 144 tokens; two warpgroups have half
 * of the rows each. W is the left operand, in registers: a warp makes 16 columns of its 32 rows as the stream does,
 * while those before are multiplied. Tokens are the right operand, in shared memory: panels of 64 columns, 128 bytes a
 * token in the 128-byte swizzle. What a lane has of a row of W are neighbours, but of NATURAL formats, where a product
 * wants columns 2q, 2q + 1 and those 8 further; so tokens' columns lie in another order in memory (column_place):
 * moe_order puts them so, and moe_wide's up writes hidden so.
 *
 * A third warpgroup fills a ring of stages, a panel or two (moe_wide_feed.cuh), and runs on into the next tiles. The
 * second one that multiplies begins LEAD steps behind the first, and has caught up by the end of a tile, as the ring is
 * not longer: nothing hides a tile's end (moe_wide_end.cuh). Two blocks share a tile's tokens.
 *
 * Floor, at 2,048 multiply-adds a clock: a step of 256 rows by 128 tokens takes 1,024 clocks, and gets 16 KB of e4m3
 * and 8 KB of tokens out of the L2. */
#pragma once

#include "backend/cuda/moe/moe_wide_end.cuh"
#include "backend/cuda/moe/moe_wide_feed.cuh"
#include "backend/cuda/ptx/wgmma_halves.cuh"

/* A chunk of the warp's rows. */
template <class W, bool UP>
static __device__ __forceinline__ void load_chunks(const unsigned char *rows, int j,
                                                   typename W::chunk (&chunks)[ROW_TILES]) {
    using ring = wide_ring<W, UP>;
    int row_tile = threadIdx.x / 32 * ROW_TILES;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        if constexpr (W::IN_BLOCKS)
            chunks[m].load(rows + (row_tile + m) * ring::ROWS_BYTES + j * W::CHUNK_BYTES);
        else
            chunks[m].load(rows + j * ring::CHUNK_ROWS_BYTES + (row_tile + m) * (UP ? 8 : TILE_ROWS) * ring::ROW_BYTES,
                           (UP ? WIDE_ROWS / 2 : 8) * ring::ROW_BYTES);
}

/* 16 columns of the warp's rows times N tokens; the first ones begin the sums. */
template <class W, int N>
static __device__ __forceinline__ void multiply_columns(wide_sums<W> &sums, const uint32_t (&rows)[ROW_TILES][4],
                                                        uint64_t tokens, bool first) {
    products_begin();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        halves_product<N, W::BF16>::add_or_put(reinterpret_cast<float(&)[N / 2]>(sums[m]), rows[m], tokens, !first);
    products_commit();
}

/* Barriers of threads: each warpgroup's, and where the second waits for the first. */
enum { WIDE_MEETS = 1, WIDE_LEADS = 3, WIDE_LEAD = 3 };

/* A warpgroup that multiplies: what it keeps from tile to tile. */
template <class W, bool UP> struct wide_place {
    using ring_type = wide_ring<W, UP>;
    const wide_ring<W, UP> &ring;
    const unsigned char *stages;
    wide_aside<W> &aside; // the warpgroup's
    ring_place at = {0, ring_type::N, 0};
    int lane = threadIdx.x % 32, group = threadIdx.x / WARPGROUP, steps_to_lead;
    int last = -1; // the slot that is read
    uint32_t told; // of the block whom this lane tells that a slot is free; 0: nobody

    /* What a tile's end reads, behind wait_batches and a barrier, and which tile comes next: nobody waits for them. */
    __device__ __forceinline__ void bring(const stream_args &a, const dmoe_tile &tile, wide_work next, int row_tile) {
        int i = threadIdx.x % WARPGROUP;
        threads_sync(WIDE_MEETS + group, WARPGROUP); // those of the tile before have been read
        for (int k = i; k < tile.n; k += WARPGROUP)
            copy_word_later(shared_address(aside.pairs + k), a.list.pair + tile.first + k);
        int half = i % TILE_ROWS / 8,
            unit = row_tile * (UP ? 8 : TILE_ROWS) + wide_unit<W, UP>(i / 32, i % 32 / TILE_ROWS, half, i % 8),
            row = UP ? (tile.expert * 2 + half) * a.units + unit : tile.expert * a.units + unit;
        if (a.scale && unit < a.units)
            copy_word_later(shared_address(aside.scale + i), a.scale + row);
        if (a.bias && unit < a.units)
            copy_word_later(shared_address(aside.bias + i), a.bias + row);
        if (i < 3 && next.there())
            copy_word_later(shared_address(&aside.next.expert + i), &next.tile_at(a)->expert + i);
        close_batch();
    }
    __device__ __forceinline__ void release() {
        if (last >= 0 && told)
            barrier_arrive_at_rank(told + last * 8);
    }
    /* A step's last products are put. The second begins when the first has put so many. */
    __device__ __forceinline__ void pass() {
        last = at.slot;
        at.step();
        if (--steps_to_lead == 0 && group == 0)
            threads_arrive(WIDE_LEADS, WIDE_CONSUMERS);
    }
};

/* Of N tokens; of more columns of sums nothing is said. What the next products read is made while those before run,
 * beyond the end of a step too. aside: what is brought before; once for all sizes it would take registers. */
template <class W, bool UP, int N, class ASIDE>
static __device__ __forceinline__ void multiply_wide(int n_steps, wide_place<W, UP> &p, wide_sums<W> &sums,
                                                     ASIDE aside) {
    using ring = wide_ring<W, UP>;
    constexpr int STEPS = ring::CHUNKS * W::STEPS, OF_PANEL = PANEL_COLUMNS / HALVES_K;
    static_assert(STEPS % 2 == 0, "a step begins with the first of both");
    uint32_t made[2][ROW_TILES][4]; // of 16 columns that are multiplied, and of the next
    typename W::chunk chunks[ROW_TILES];
    uint64_t tokens;
    const unsigned char *stage;
    auto come = [&] { // the stage that is read next
        stage = p.stages + p.at.slot * ring::BYTES + ring::X_BYTES;
        tokens = operand_rows(of_warp(p.ring.stage(p.at.slot)));
        barrier_wait(p.ring.full + p.at.slot * 8, p.at.parity);
        load_chunks<W, UP>(stage, 0, chunks);
    };
    auto make = [&](int k) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            chunks[m].fragment(k % W::STEPS, made[k % 2][m]);
    };
    aside();
    if (!W::AS_LOADED) {
        come();
        make(0);
    }
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        if (W::AS_LOADED) { // into what products read, which may not change while they run
            come();
            make(0);
        }
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            bool chunk_ends = k + 1 < STEPS && (k + 1) % W::STEPS == 0;
            multiply_columns<W, N>(sums, made[k % 2],
                                   tokens + k / OF_PANEL * (ring::PANEL_BYTES >> 4) + k % OF_PANEL * 2,
                                   k == 0 && step == 0);
            if (k + 1 == STEPS)
                p.pass();
            if (!W::AS_LOADED && k + 1 == STEPS && step + 1 < n_steps)
                come();
            if (!W::AS_LOADED && chunk_ends)
                load_chunks<W, UP>(stage, (k + 1) / W::STEPS, chunks);
            products_wait<1>(); // the columns before
            if (k == 0)
                p.release();
            if (W::AS_LOADED && chunk_ends)
                load_chunks<W, UP>(stage, (k + 1) / W::STEPS, chunks);
            if (!W::AS_LOADED || k + 1 < STEPS)
                make((k + 1) % STEPS);
        }
    }
    products_wait<0>();
    p.release();
    p.last = -1;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        registers_settle(sums[m]);
}

/* A group of rows by a tile of tokens; the next one is in `aside` behind it. */
template <class W, bool UP>
static __device__ __forceinline__ void compute_wide(const stream_args &a, const dmoe_tile &tile, const wide_work &work,
                                                    const wide_work &next, wide_place<W, UP> &p) {
    using ring = wide_ring<W, UP>;
    int n_steps = (a.in + ring::COLUMNS - 1) / ring::COLUMNS, n = tile.n,
        row_tile = work.group() * GROUP + p.group * (GROUP / 2);
    wide_sums<W> sums; // the first products begin them
    auto aside = [&] { p.bring(a, tile, next, row_tile); };
    if (n <= 80)
        multiply_wide<W, UP, 80>(n_steps, p, sums, aside);
    else if (n <= 112)
        multiply_wide<W, UP, 112>(n_steps, p, sums, aside);
    else if (W::WIDE_TOKENS > 128 && n <= 128)
        multiply_wide<W, UP, 128>(n_steps, p, sums, aside);
    else
        multiply_wide<W, UP, W::WIDE_TOKENS>(n_steps, p, sums, aside);
    wait_batches<0>();
    threads_sync(WIDE_MEETS + p.group, WARPGROUP); // what they brought is there
    row_tile += threadIdx.x / 32 % 4 * ROW_TILES;
    if (row_tile * (UP ? 8 : TILE_ROWS) >= a.units) // of a whole warp: units are a multiple of 64
        return;
    if (!UP || a.act == SILU)
        wide_end<W, UP, SILU>(a, p.aside, row_tile).put(n, sums);
    else if (a.act == CLAMPED)
        wide_end<W, UP, CLAMPED>(a, p.aside, row_tile).put(n, sums);
    else
        wide_end<W, UP, -1>(a, p.aside, row_tile).put(n, sums);
}

template <class W, bool UP>
static __device__ __forceinline__ void compute_tiles(const stream_args &a, wide_place<W, UP> &p) {
    wide_work work(a), next = work;
    if (!work.there())
        return;
    if (p.group == 1)
        threads_sync(WIDE_LEADS, WIDE_CONSUMERS);
    dmoe_tile tile = work.tile(a);
    for (; work.there(); work = next) {
        next.next();
        compute_wide(a, tile, work, next, p);
        tile = p.aside.next;
    }
}

/* w_map: W where it is not in blocks, [row][bytes], of which a box is 64 rows by 64 bytes. */
template <class W, bool UP>
static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    moe_wide(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ stream_args a) {
    using ring_type = wide_ring<W, UP>;
    extern __shared__ __align__(1024) unsigned char stages[];
    __shared__ wide_aside<W> aside[WIDE_CONSUMERS / WARPGROUP];
    __shared__ __align__(8) uint64_t full[ring_type::N], empty[ring_type::N];
    let_next_start();
    const ring_type ring = {kept(shared_address(stages)), kept(shared_address(full)), kept(shared_address(empty))};
    if (threadIdx.x == WIDE_CONSUMERS)
        ring.prepare();
    __syncthreads();
    cluster_sync(); // barriers are ready
    wait_for_previous();
    if (of_warp(threadIdx.x / 32) >= STREAM_WARPS) {
        registers_fewer<40>();
        wide_feed<W, UP>(a, ring).run(&w_map);
    } else {
        registers_more<232>();
        int n_steps = (a.in + ring_type::COLUMNS - 1) / ring_type::COLUMNS;
        wide_place<W, UP> p = {ring, stages, aside[threadIdx.x / WARPGROUP]};
        p.steps_to_lead = min(n_steps, min((int)WIDE_LEAD, ring_type::N - 1));
        p.told = p.lane < WIDE_SHARERS ? address_at_rank(ring.empty, p.lane) : 0;
        compute_tiles<W, UP>(a, p);
    }
    __syncwarp();
    cluster_sync(); // the other block copies to this one, and tells it what is free, to the end
}
