/* moe_wide_feed.cuh - of moe_wide.cuh: the warpgroup that fills the ring of stages.
 *
 * Two blocks, a cluster, have the same tokens and groups of rows beside one another. Each brings half of the tokens and
 * gives them to the other, so that those leave the L2 once for both: 2 per cent of gpt-oss-20b's experts, level of
 * Qwen3-30B-A3B's (docs/lab/cuda_experts.md).
 *
 * Each warp brings a quarter of W by bulk copies, of which a lane asks for one, and a quarter of the block's tokens by
 * cp.async, as their rows lie anywhere; when those have come it copies them to the other block. A barrier tells that a
 * stage is full: of each warp one arrival for W and one for its tokens, and the bytes of W and of the other block's
 * tokens. So that many are on their way, the arrival for tokens is LAG stages later; or, if there is no room for
 * another stage, at once. There is room when both blocks' warps have read what was there. */
#pragma once

#include "backend/cuda/moe/moe_wide_ring.cuh"

/* A quarter of a stage's W, by the lanes of a warp that ask for a copy. */
template <class W, bool UP> struct wide_rows {
    using ring = wide_ring<W, UP>;
    static constexpr int COPIES = W::IN_BLOCKS ? GROUP / WIDE_QUARTERS : ring::CHUNKS;
    const CUtensorMap *map;
    const unsigned char *from; // in blocks; the lane's tile of rows
    int row, n_chunks, quarter, lane;

    __device__ wide_rows(const stream_args &a, const CUtensorMap *map)
        : map(map), from(nullptr), row(0), n_chunks((a.in + W::COLUMNS - 1) / W::COLUMNS),
          quarter(threadIdx.x / 32 % WIDE_QUARTERS), lane(threadIdx.x % 32) {}

    __device__ __forceinline__ void begin(const stream_args &a, int expert, int group) {
        if constexpr (W::IN_BLOCKS) {
            int tile = min(group * GROUP + quarter * COPIES + lane % COPIES, a.n_row_tiles - 1);
            from = a.w + ((int64_t)expert * a.n_row_tiles + tile) * n_chunks * W::CHUNK_BYTES;
        } else { // what is beyond the expert's nobody looks at
            row = UP ? (expert * 2 + quarter / 2) * a.units + group * (WIDE_ROWS / 2) + quarter % 2 * WIDE_BOX
                     : expert * a.units + group * WIDE_ROWS + quarter * WIDE_BOX;
        }
    }
    /* others: bytes of tokens that come from the other block. */
    __device__ __forceinline__ void put(uint32_t to, uint32_t full, int step, int others, uint64_t policy) const {
        if constexpr (W::IN_BLOCKS) {
            int n_bytes = min(ring::CHUNKS, n_chunks - step * ring::CHUNKS) * W::CHUNK_BYTES;
            if (lane == 0)
                barrier_expect(full, n_bytes * COPIES + others);
            __syncwarp(); // bytes are told before they come
            if (lane < COPIES)
                bulk_copy(to + (quarter * COPIES + lane) * ring::ROWS_BYTES, from + step * ring::ROWS_BYTES, n_bytes,
                          full);
        } else {
            if (lane == 0)
                barrier_expect(full, ring::QUARTER_BYTES + others);
            __syncwarp(); // likewise
            if (lane < COPIES) {
                uint32_t at = to + lane * ring::CHUNK_ROWS_BYTES + quarter * (ring::CHUNK_ROWS_BYTES / WIDE_QUARTERS);
                int column = (step * ring::CHUNKS + lane) * ring::ROW_BYTES;
                if constexpr (!rows_turned<W>)
                    bulk_copy_box(at, map, column, row, full, policy);
                else if constexpr (UP)
                    bulk_copy_box(at, map, column, row / 16, 0, 0, 0, full, policy);
                else
                    bulk_copy_box(at, map, column, row / 4, 0, 0, full, policy);
            }
        }
    }
};

/* The warpgroup that copies. A lane has the same 16 bytes of the panel of every fourth token of its warp's. */
template <class W, bool UP> struct wide_feed {
    using ring_type = wide_ring<W, UP>;
    enum { EVERY = 4, MOST = W::WIDE_TOKENS / WIDE_SHARERS / WIDE_QUARTERS, TOKENS = (MOST + EVERY - 1) / EVERY };
    static_assert(MOST * WIDE_QUARTERS * WIDE_SHARERS == W::WIDE_TOKENS, "all have as many");
    const stream_args &a;
    const ring_type &ring;
    ring_place at = {0, ring_type::N, 1}; // the parity of the round before
    int told_slot = 0, n_untold = 0, lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % WIDE_QUARTERS;
    int rank = cluster_rank(), n_before = 0; // of those untold, in the tile before
    wide_tokens mine = {0, 0, 0}, before = {0, 0, 0};
    bool refills = false;

    __device__ wide_feed(const stream_args &a, const ring_type &ring) : a(a), ring(ring) {}

    /* The oldest stage's tokens are there: here, and soon in the other block. */
    __device__ __forceinline__ void tell() {
        const wide_tokens t = n_before > 0 ? before : mine;
        n_before = max(n_before - 1, 0);
        fence_bulk();
        __syncwarp(); // all lanes' tokens are there
        if (lane == 0) {
            uint32_t full = ring.full + told_slot * 8, from = ring.stage(told_slot) + t.begin * 128;
            barrier_arrive(full);
#pragma unroll
            for (int p = 0; p < ring_type::PANELS; p++)
                if (t.n > 0)
                    bulk_copy_to_rank(address_at_rank(from + p * ring_type::PANEL_BYTES, rank ^ 1),
                                      from + p * ring_type::PANEL_BYTES, t.n * 128, address_at_rank(full, rank ^ 1));
        }
        told_slot = told_slot + 1 == ring_type::N ? 0 : told_slot + 1;
        n_untold--;
    }
    __device__ __forceinline__ void tell_all() {
        wait_batches<0>();
        while (n_untold > 0)
            tell();
    }
    /* Room for a stage. */
    __device__ __forceinline__ void wait() {
        if (!refills)
            return;
        uint32_t empty = ring.empty + at.slot * 8;
        if (!__all_sync(0xffffffffu, barrier_passed_already(empty, at.parity))) {
            tell_all();
            barrier_wait(empty, at.parity);
        }
    }
    __device__ __forceinline__ void put_tokens(const uint32_t (&x)[TOKENS], int step, uint64_t policy) const {
#pragma unroll
        for (int p = 0; p < ring_type::PANELS; p++) {
            int panel = step * ring_type::PANELS + p;
            bool zeros = ring_type::PANELS > 1 && panel * PANEL_COLUMNS >= a.in;
#pragma unroll
            for (int i = 0; i < TOKENS; i++) { // what products make of tokens that are not there, nobody reads
                int t = lane / 8 + i * EVERY, row = mine.begin + t;
                if (t < mine.n)
                    copy_later(ring.stage(at.slot) + p * ring_type::PANEL_BYTES + row * 128 +
                                   (lane % 8 ^ row % 8) * PIECE,
                               static_cast<const uint4 *>(a.x.at) + (zeros ? 0 : x[i] + panel * 8), zeros, policy);
            }
        }
        close_batch();
    }
    __device__ __forceinline__ void look_up(const dmoe_tile &tile, int (&pairs)[TOKENS]) const {
        const wide_tokens next(tile.n, rank, quarter);
#pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            int t = lane / 8 + i * EVERY;
            pairs[i] = t < next.n ? a.list.pair[tile.first + next.begin + t] : 0;
        }
    }
    /* What is untold is of the tile before from now on. */
    __device__ __forceinline__ void begin(const dmoe_tile &tile) {
        if (n_before > 0)
            tell_all(); // of two before
        before = mine, n_before = n_untold;
        mine = wide_tokens(tile.n, rank, quarter);
    }

    /* Who is told of a free slot must be there: no block ends before all that it filled is free. */
    __device__ __forceinline__ void drain() {
        int n = refills ? (int)ring_type::N : at.slot;
        if (!refills)
            at = {0, ring_type::N, 0};
        for (; n > 0; n--) {
            barrier_wait(ring.empty + at.slot * 8, at.parity);
            at.step();
        }
    }

    /* The next tile's tokens are looked up while this one's come. */
    __device__ void run(const CUtensorMap *map) {
        const uint64_t policy = policy_read_again();
        int n_steps = (a.in + ring_type::COLUMNS - 1) / ring_type::COLUMNS, pairs[TOKENS];
        wide_rows<W, UP> rows(a, map);
        wide_work work(a);
        if (!work.there())
            return;
        dmoe_tile tile = work.tile(a);
        look_up(tile, pairs);
        while (work.there()) {
            uint32_t x[TOKENS];
#pragma unroll
            for (int i = 0; i < TOKENS; i++) // in pieces
                x[i] = (uint32_t)((UP ? a.first_token + pairs[i] / a.top_k : pairs[i]) * (a.x.stride / 8) + lane % 8);
            rows.begin(a, tile.expert, work.group());
            begin(tile);
            int others = wide_tokens(tile.n, rank ^ 1, quarter).n * ring_type::PANELS * 128;
            work.next();
#pragma unroll 1
            for (int step = 0; step < n_steps; step++) {
                wait();
                rows.put(ring.stage(at.slot) + ring_type::X_BYTES, ring.full + at.slot * 8, step, others, policy);
                put_tokens(x, step, policy);
                if (++n_untold > ring_type::LAG) {
                    wait_batches<ring_type::LAG>();
                    tell();
                }
                at.step();
                refills = refills || at.slot == 0;
                if (step == 0 && work.there())
                    tile = work.tile(a);
                if (step == n_steps / 2 && work.there())
                    look_up(tile, pairs);
            }
        }
        tell_all();
        drain();
    }
};
