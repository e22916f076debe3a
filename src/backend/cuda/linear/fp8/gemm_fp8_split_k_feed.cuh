/* gemm_fp8_split_k_feed.cuh - what a block of gemm_fp8_split_k.cu is told and has in shared memory, and the thread that
 * copies W and x into its rings. */
#pragma once

#include "backend/cuda/device/l2_copy.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/qact/requant.cuh"
#include "backend/cuda/value.h"

#include <cuda.h>

namespace {

enum { GROUPS = 2, CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + 32 };
enum {
    GROUP_TOKENS = 64,
    TOKENS = GROUPS * GROUP_TOKENS,
    X_BYTES = TOKENS * PIECE_BYTES,
    MOST_STAGES = 24,
    SHARED_MOST = 226 << 10
};
enum { PAIRS_BYTES = 8, OCTET_BYTES = CONSUMERS * PAIRS_BYTES }; // of a thread, for eight columns; of all
enum { LINE = 64, PITCH = LINE + 16, STAGING = 16 * PITCH };     // of a warp: 16 tokens, 64 bytes of each
enum { AGAIN = 3 };                                              // a barrier, behind those of requant.cuh
enum { BEGUN = 4 };                                              // stages of W that are asked for before the wait

struct split_k_args {
    void *y;
    int64_t y_stride;
    int n_columns, n_tokens, n_pieces; // of y; of 128 columns of x
    int tile_tokens;                   // a multiple of 8
    requant_args requant;
    dl2_copy l2_copy; // without `at`: W is read where its rows lie
};

struct w_maps {
    CUtensorMap w;
    l2_copy_maps l2_copy; // of split_k_args.l2_copy
};

/* Shared memory: W's ring, x's, then what the others of the cluster send: [from][octet of columns][thread] of two pairs
 * of sums. */
template <int N, int SPLIT> struct shape {
    static constexpr int EIGHTS = N / 8, MOST_EIGHTS = (EIGHTS + SPLIT - 1) / SPLIT, W_BYTES = N * PIECE_BYTES;
    static constexpr int SENT_BYTES = MOST_EIGHTS * OCTET_BYTES, JOIN_BYTES = (SPLIT - 1) * SENT_BYTES;
    static constexpr int w_stages(int of_x) {
        int n = (SHARED_MOST - ATOM - JOIN_BYTES - of_x * X_BYTES) / W_BYTES;
        return n < MOST_STAGES ? n : MOST_STAGES;
    }
    static constexpr int x_stages() { // barriers are those of W's ring, which is the longer one
        int n = 8;
        while (w_stages(n) <= n)
            n--;
        return n;
    }
    static constexpr int X_STAGES = x_stages(), W_STAGES = w_stages(X_STAGES);
    static constexpr int SHARED = ATOM + W_STAGES * W_BYTES + X_STAGES * X_BYTES + JOIN_BYTES;
    static_assert(X_STAGES >= 3 && W_STAGES >= BEGUN && WARPGROUP / 32 * GROUPS * STAGING <= W_STAGES * W_BYTES, "");
    /* The first octet that a block finishes. */
    static constexpr __host__ __device__ int first_of(int rank) { return EIGHTS * rank / SPLIT; }
};

template <int N, int SPLIT, int SHARERS> struct block_feed {
    using S = shape<N, SPLIT>;
    const split_k_args &a;
    uint32_t w, x, join, full, done, joined; // in shared memory
    int rank, sharer;                        // among those with the same tile; which of the cluster's tiles
    int side, first_group;                   // of an L2 copy: what this block reads
    int row_tile, token_tile, piece, n_pieces;

    __device__ int end_token() const { return min(a.n_tokens, (token_tile + 1) * a.tile_tokens); } // of the tile

    /* barriers: full, a stage's bytes have come; done, both warpgroups of all sharers are done with it; joined, all
     * that is sent to this block has come. */
    __device__ block_feed(const split_k_args &a, uint32_t ring, uint32_t barriers)
        : a(a), w(ring), x(ring + S::W_STAGES * S::W_BYTES), join(x + S::X_STAGES * X_BYTES), full(barriers),
          done(barriers + S::W_STAGES * 8), joined(barriers + S::W_STAGES * 16), rank(blockIdx.x % SPLIT),
          sharer(blockIdx.x / SPLIT % SHARERS), side(l2_copy_own_side(a.l2_copy)),
          first_group(l2_copy_group(&a.l2_copy, blockIdx.x / (SPLIT * SHARERS), 0)),
          row_tile(blockIdx.x / (SPLIT * SHARERS)), token_tile(blockIdx.y * SHARERS + sharer),
          piece(a.n_pieces * rank / SPLIT), n_pieces(a.n_pieces * (rank + 1) / SPLIT - piece) {}

    // ---- copying: one thread's ----

    __device__ void prepare() const {
        for (int i = 0; i < S::W_STAGES; i++) {
            barrier_init(full + i * 8, 1);
            barrier_init(done + i * 8, GROUPS * SHARERS);
        }
        barrier_init(joined, 1);
        barrier_init_done();
        barrier_expect(joined, (SPLIT - 1) * (S::first_of(rank + 1) - S::first_of(rank)) * OCTET_BYTES);
        fence_bulk();
    }
    __device__ void put_w(const w_maps &maps, int i, int slot, uint64_t policy) const {
        const int ranks = SHARERS == 1 ? 0 : (1 | 1 << SPLIT) << rank;
        uint32_t to = w + slot * S::W_BYTES, full_there = full + slot * 8;
        barrier_expect(full_there, S::W_BYTES + a.tile_tokens * PIECE_BYTES);
        if (i % SHARERS != sharer) // those bytes may come before this block expects them
            return;
        if (a.l2_copy.at)
            l2_copy_make(a.l2_copy, &maps.l2_copy, first_group, side, piece + i, to, full_there, policy, ranks);
        else if (SHARERS == 1)
            bulk_copy_box(to, &maps.w, (piece + i) * PIECE_BYTES, row_tile * N, full_there, policy);
        else
            bulk_copy_box_to(ranks, to, &maps.w, (piece + i) * PIECE_BYTES, row_tile * N, full_there, policy);
    }
    __device__ void put_x(const CUtensorMap *x_map, int i, int slot, int x_slot, uint64_t policy) const {
        bulk_copy_box(x + x_slot * X_BYTES, x_map, (piece + i) * PIECE_BYTES, token_tile * a.tile_tokens,
                      full + slot * 8, policy);
    }
    __device__ int n_begun() const { return min(n_pieces, (int)BEGUN); }
    __device__ void begin(const w_maps &maps, uint64_t policy) const {
#pragma unroll 1
        for (int i = 0; i < n_begun(); i++)
            put_w(maps, i, i, policy);
    }
    /* What the rings have room for. */
    __device__ void fill(const w_maps &maps, const CUtensorMap *x_map, uint64_t policy) const {
        uint64_t often = policy_read_often();
#pragma unroll 1
        for (int i = 0; i < n_pieces && i < S::W_STAGES; i++) {
            if (i >= n_begun())
                put_w(maps, i, i, policy);
            if (i < S::X_STAGES)
                put_x(x_map, i, i, i, often);
        }
    }
    /* x once more, whose rows have changed: when all is there that was asked for, as that would come over it. */
    __device__ void fill_again(const CUtensorMap *x_map) const {
        uint64_t often = policy_read_often();
#pragma unroll 1
        for (int i = 0; i < n_pieces && i < S::X_STAGES; i++) {
            barrier_wait(full + i * 8, 0);
            barrier_expect(full + i * 8, a.tile_tokens * PIECE_BYTES);
            put_x(x_map, i, i, i, often);
        }
    }
    __device__ void feed(const w_maps &maps, const CUtensorMap *x_map, uint64_t policy) const {
        uint64_t often = policy_read_often();
        int slot = 0, parity = 0, x_slot = 0, x_full = S::X_STAGES;
#pragma unroll 1
        for (int i = 0; i + S::X_STAGES < n_pieces; i++) { // where piece i was there is room
            barrier_wait(done + slot * 8, parity);
            if (i + S::W_STAGES < n_pieces)
                put_w(maps, i + S::W_STAGES, slot, policy);
            put_x(x_map, i + S::X_STAGES, x_full, x_slot, often);
            x_slot = x_slot + 1 == S::X_STAGES ? 0 : x_slot + 1;
            x_full = x_full + 1 == S::W_STAGES ? 0 : x_full + 1;
            if (++slot == S::W_STAGES)
                slot = 0, parity ^= 1;
        }
    }
};

} // namespace
