/* moe_wide.cuh - the same products as moe_tiles.cuh's where experts have many tokens and widths are multiples of 64: by
 * a warpgroup's products (wgmma), of which one takes 64 rows of W. On an H200 these and mma.sync give the same bits, so
 * that a row is the same by either.
 *
 * A block computes 256 rows of W, of gates and ups 128 of each, by a tile of up to 160 tokens; two warpgroups have half
 * of the rows each. W is the left operand, in registers: a warp makes 16 columns of its 32 rows as the stream does,
 * while those before are multiplied. Tokens are the right operand, in shared memory: panels of 64 columns, 128 bytes a
 * token in the 128-byte swizzle. What a lane has of a row of W are neighbours, but of NATURAL formats, where a product
 * wants columns 2q, 2q + 1 and those 8 further; so tokens' columns lie in another order in memory (column_place):
 * moe_order puts them so, and moe_wide's up writes hidden so.
 *
 * A third warpgroup fills a ring of stages, a panel or two (moe_wide_feed.cuh), and runs on into the next tiles. The
 * second one that multiplies begins LEAD steps behind the first, and stays behind: so one multiplies while the other
 * ends a tile. Two blocks share a tile's tokens.
 *
 * Floor, at 2,048 multiply-adds a clock: a step of 256 rows by 128 tokens takes 1,024 clocks, and gets 16 KB of e4m3
 * and 8 KB of tokens out of the L2. */
#pragma once

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

template <class W> using wide_sums = float[ROW_TILES][W::WIDE_TOKENS / 2];

/* 16 columns of the warp's rows times N tokens. */
template <class W, int N>
static __device__ __forceinline__ void multiply_columns(wide_sums<W> &sums, const uint32_t (&rows)[ROW_TILES][4],
                                                        uint64_t tokens) {
    products_begin();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        halves_product<N, W::BF16>::add(reinterpret_cast<float(&)[N / 2]>(sums[m]), rows[m], tokens);
    products_commit();
}

/* Barriers of threads: each warpgroup's, and where the second waits for the first. */
enum { WIDE_MEETS = 1, WIDE_LEADS = 3, WIDE_LEAD = 3 };

/* A warpgroup that multiplies: what it keeps from tile to tile. */
template <class W, bool UP> struct wide_place {
    using ring_type = wide_ring<W, UP>;
    const wide_ring<W, UP> &ring;
    const unsigned char *stages;
    int *pairs; // [W::WIDE_TOKENS], the warpgroup's
    ring_place at = {0, ring_type::N, 0};
    int lane = threadIdx.x % 32, group = threadIdx.x / WARPGROUP, steps_to_lead;
    int last = -1; // the slot that is read
    uint32_t told; // of the block whom this lane tells that a slot is free; 0: nobody

    /* Those of a tile, behind wait_batches and a barrier; returns how many. */
    __device__ __forceinline__ int bring_pairs(const stream_args &a, const dmoe_tile &tile) const {
        threads_sync(WIDE_MEETS + group, WARPGROUP); // those of the tile before have been read
        for (int i = threadIdx.x % WARPGROUP; i < tile.n; i += WARPGROUP)
            copy_word_later(shared_address(pairs + i), a.list.pair + tile.first + i);
        close_batch();
        return tile.n;
    }
    __device__ __forceinline__ void release() {
        if (last >= 0 && told)
            barrier_arrive_at_rank(told + last * 8);
    }
    /* The second begins when the first has taken so many steps. */
    __device__ __forceinline__ void lead() {
        if (--steps_to_lead == 0 && group == 0)
            threads_arrive(WIDE_LEADS, WIDE_CONSUMERS);
    }
};

/* Of N tokens; of more columns of sums nothing is said. */
template <class W, bool UP, int N>
static __device__ __forceinline__ void multiply_wide(int n_steps, wide_place<W, UP> &p, wide_sums<W> &sums) {
    using ring = wide_ring<W, UP>;
    constexpr int STEPS = ring::CHUNKS * W::STEPS, OF_PANEL = PANEL_COLUMNS / HALVES_K;
    uint32_t made[2][ROW_TILES][4]; // of 16 columns that are multiplied, and of the next
    typename W::chunk chunks[ROW_TILES];
#pragma unroll 1
    for (int step = 0; step < n_steps; step++) {
        const unsigned char *stage = p.stages + p.at.slot * ring::BYTES;
        uint64_t tokens = operand_rows(of_warp(p.ring.stage(p.at.slot)));
        barrier_wait(p.ring.full + p.at.slot * 8, p.at.parity);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            if (k % W::STEPS == 0)
                load_chunks<W, UP>(stage + ring::X_BYTES, k / W::STEPS, chunks);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
                chunks[m].fragment(k % W::STEPS, made[k % 2][m]);
            multiply_columns<W, N>(sums, made[k % 2],
                                   tokens + k / OF_PANEL * (ring::PANEL_BYTES >> 4) + k % OF_PANEL * 2);
            products_wait<1>(); // the columns before
            if (k == 0)
                p.release();
        }
        p.last = p.at.slot;
        p.at.step();
        p.lead();
    }
    products_wait<0>();
    p.release();
    p.last = -1;
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
        registers_settle(sums[m]);
}

enum { SILU = 0, CLAMPED = 4 }; // activations (core/ops.h) that have an end of their own

/* As finish, of gates and ups: lanes of two neighbouring units, r and r + 1, each take both of one of their two tokens.
 * Those are neighbours in hidden, too. */
template <class W, int ACT>
static __device__ __forceinline__ void finish_pairs(const stream_args &a, int n, const int *pairs, int octet,
                                                    const row_ends<true> &ends, const float (&sums)[4], int place) {
    using T = typename W::product;
    __align__(4) T mine[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float gate = ends.of(0, sums[i]), up = ends.of(1, sums[2 + i]);
        mine[i] = rounded<T>(ACT == CLAMPED  ? activate(CLAMPED, a.limit, gate, up)
                             : a.act == SILU ? silu(gate) * up
                                             : activate_rarely(a.act, a.limit, gate, up));
    }
    int odd = threadIdx.x / 4 % 2, token = octet * 8 + threadIdx.x % 4 * 2 + odd;
    uint32_t word = reinterpret_cast<const uint32_t &>(mine), other = __shfl_xor_sync(0xffffffffu, word, 4),
             both = odd ? __byte_perm(other, word, 0x7632) : __byte_perm(word, other, 0x5410);
    if (token < n)
        *reinterpret_cast<uint32_t *>(static_cast<T *>(a.y) + (int64_t)pairs[token] * a.units + place - odd) = both;
}

/* What becomes of 16 rows' sums. */
template <class W, bool UP, int ACT>
static __device__ __forceinline__ void finish_rows(const stream_args &a, const dmoe_tile &tile, const int *pairs,
                                                   int row_tile, const float (&sums)[W::WIDE_TOKENS / 2]) {
    const rows_of_tile<UP> rows(a, tile.expert, row_tile);
    const row_ends<UP> ends(a, rows);
    int place = rows.unit[0];
    if (UP && !W::NATURAL)
        place = place / PANEL_COLUMNS * PANEL_COLUMNS + column_place(W::COLUMNS, max(place, 0) % PANEL_COLUMNS);
#pragma unroll
    for (int o = 0; o < W::WIDE_TOKENS / 8; o++) {
        const float of_octet[4] = {sums[4 * o], sums[4 * o + 1], sums[4 * o + 2], sums[4 * o + 3]};
        asm volatile("" ::: "memory"); // what is looked up for later octets beforehand takes registers
        if (o * 8 >= tile.n)
            continue;
        if constexpr (!UP)
            finish<W, UP>(a, tile, pairs, o, rows, ends, of_octet, place);
        else if (rows.unit[0] >= 0) // of all lanes or none
            finish_pairs<W, ACT>(a, tile.n, pairs, o, ends, of_octet, place);
    }
}

/* A group of rows by a tile of tokens. The list is read again for the end: registers are what there is least of. */
template <class W, bool UP>
static __device__ __forceinline__ void compute_wide(const stream_args &a, const wide_work &work, wide_place<W, UP> &p) {
    using ring = wide_ring<W, UP>;
    int n_steps = (a.in + ring::COLUMNS - 1) / ring::COLUMNS, n = p.bring_pairs(a, work.tile(a));
    wide_sums<W> sums = {};
    if (n <= 64)
        multiply_wide<W, UP, 64>(n_steps, p, sums);
    else if (W::WIDE_TOKENS > 128 && n <= 128)
        multiply_wide<W, UP, 128>(n_steps, p, sums);
    else
        multiply_wide<W, UP, W::WIDE_TOKENS>(n_steps, p, sums);
    wait_batches<0>();
    threads_sync(WIDE_MEETS + p.group, WARPGROUP); // pairs are there
    const dmoe_tile tile = work.tile(a);
    int row_tile = work.group() * GROUP + threadIdx.x / 32 * ROW_TILES;
    if (UP && a.act == CLAMPED) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            finish_rows<W, UP, CLAMPED>(a, tile, p.pairs, row_tile + m, sums[m]);
    } else {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
            finish_rows<W, UP, SILU>(a, tile, p.pairs, row_tile + m, sums[m]);
    }
}

template <class W, bool UP>
static __device__ __forceinline__ void compute_tiles(const stream_args &a, wide_place<W, UP> &p) {
    wide_work work(a);
    if (p.group == 1 && work.there())
        threads_sync(WIDE_LEADS, WIDE_CONSUMERS);
    for (; work.there(); work.next())
        compute_wide(a, work, p);
}

/* w_map: W where it is not in blocks, [row][bytes], of which a box is 64 rows by 64 bytes. */
template <class W, bool UP>
static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    moe_wide(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ stream_args a) {
    using ring_type = wide_ring<W, UP>;
    extern __shared__ __align__(1024) unsigned char stages[];
    __shared__ int pairs[WIDE_CONSUMERS / WARPGROUP][W::WIDE_TOKENS];
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
        wide_place<W, UP> p = {ring, stages, pairs[threadIdx.x / WARPGROUP]};
        p.steps_to_lead = min(n_steps, min((int)WIDE_LEAD, ring_type::N - 1));
        p.told = p.lane < WIDE_SHARERS ? address_at_rank(ring.empty, p.lane) : 0;
        compute_tiles<W, UP>(a, p);
    }
    __syncwarp();
    cluster_sync(); // the other block copies to this one, and tells it what is free, to the end
}
