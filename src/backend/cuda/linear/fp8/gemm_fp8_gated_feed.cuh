/* gemm_fp8_gated_feed.cuh - how a block of gemm_fp8_gated.cu is fed: what it is told, the tiles that are its own, the
 * ring of stages in shared memory and the thread that fills it.
 *
 *     ring    n_stages of [warpgroup][rows of W][128 bytes], then [tokens][128 bytes], in the 128-byte swizzle; when a
 *             tile ends its sums
 *     full    a stage's bytes have come
 *     empty   both warpgroups are done with them, in each block of the cluster */
#pragma once

#include "backend/cuda/device/l2_copy.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/ptx/wgmma_e4m3_f16.cuh"
#include "backend/cuda/value.h"

namespace {

enum { MAX_STAGES = 8, GROUPS = 2, PART_TOKENS = 64, PART_BYTES = PART_TOKENS * PIECE_BYTES };
enum { CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32 };
enum { TELLERS = WARP_ARRIVALS > 1 ? WARPGROUP : 1 }; // of a warpgroup, that it is done with a stage

struct gated_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    uint32_t *absmax;
    int64_t y_stride;
    int n_columns; // of y
    int n_tokens, n_pieces, n_stages;
    int n_begun;       // stages of W that are asked for before the node before has ended
    int octets, parts; // of a warpgroup's columns; of a tile's tokens
    int w_sharers,
        x_sharers; // blocks of a cluster: that have the same rows of W and each other tokens, and the other way round
    int token_tiles, n_cluster_tiles; // that each cluster goes through all tokens of: abreast
    float bend, twist;                // of the activation
    element y_element;
    uint8_t *qact; // NULL: none
    int64_t qact_stride;
    float qact_factor; // 1 / static_scale
    bool untold_only;  // of y, where there is a qact
    dl2_copy l2_copy;  // of W, tiles of a warpgroup's rows; at NULL: rows are read

    __device__ int sharers() const { return w_sharers * x_sharers; }
    __device__ int tile_tokens() const { return parts * PART_TOKENS; }
    __device__ int group_bytes() const { return octets * 2 * ATOM; } // of W in a stage, for a warpgroup
    __device__ int w_bytes() const { return GROUPS * group_bytes(); }
    __device__ int stage_bytes() const { return w_bytes() + parts * PART_BYTES; }
};

struct shared_places { // addresses
    uint32_t ring, scales, full, empty;
};

/* The tiles of a block, one after the other. Those of the same rows and all tokens lie together, so that W is read
 * once; the blocks of a cluster have the same rows or the same tokens at the same time. */
struct tile_walk {
    int at, step, n, abreast, w_sharers, x_sharers, rank; // at, step, n, abreast: of a cluster's tiles
    __device__ tile_walk(const gated_args &a, int rank)
        : at(blockIdx.x / a.sharers()), step(gridDim.x / a.sharers()), n(a.n_cluster_tiles),
          abreast(a.token_tiles / a.w_sharers), w_sharers(a.w_sharers), x_sharers(a.x_sharers), rank(rank) {}
    __device__ bool there() const { return at < n; }
    __device__ int left() const { return there() ? (n - 1 - at) / step + 1 : 0; }
    __device__ void next() { at += step; }
    __device__ int token_tile() const { return at % abreast * w_sharers + rank % w_sharers; }
    __device__ int row_tile() const { return at / abreast * x_sharers + rank % x_sharers; }
};

// ---- copying --------------------------------------------------------------------------------------------------------

/* A copy to come: a piece of a tile. What is the same for all pieces is computed once a tile: a stage must not wait for
 * divisions. */
struct copy_place {
    tile_walk walk;
    int piece, n_pieces, tile, token; // tile: of a warpgroup's rows of W, the first of them
    __device__ copy_place(const gated_args &a, int rank) : walk(a, rank), piece(0), n_pieces(a.n_pieces) { find(a); }
    __device__ void find(const gated_args &a) {
        tile = walk.row_tile() * GROUPS;
        token = walk.token_tile() * a.tile_tokens();
    }
    __device__ void step(const gated_args &a) {
        if (++piece == n_pieces) {
            piece = 0;
            walk.next();
            find(a);
        }
    }
};

struct all_maps {
    const CUtensorMap *w, *x;
    const l2_copy_maps *l2_copy;
};

struct producer {
    const gated_args &a;
    const all_maps &maps;
    const shared_places &m;
    int rank, side, stage_bytes, group_bytes, n_copies, n_begun;
    uint64_t of_w, often;

    __device__ producer(const gated_args &a, const all_maps &maps, const shared_places &m, int rank)
        : a(a), maps(maps), m(m), rank(rank), side(l2_copy_own_side(a.l2_copy)), stage_bytes(a.stage_bytes()),
          group_bytes(a.group_bytes()), n_copies(tile_walk(a, rank).left() * a.n_pieces),
          n_begun(min(n_copies, a.n_begun)),
          of_w(a.token_tiles > a.w_sharers ? policy_read_again() : policy_read_once()), often(policy_read_often()) {}

    /* The rows of a warpgroup, to both of those that share W. */
    __device__ void put_tile(uint32_t to, uint32_t full, int tile, int piece) const {
        if (a.l2_copy.at)
            l2_copy_make(a.l2_copy, maps.l2_copy, l2_copy_group(&a.l2_copy, tile, 0), side, piece, to, full, of_w,
                         a.w_sharers == 2 ? 3 : 0);
        else if (a.w_sharers == 2)
            bulk_copy_box_to(3, to, maps.w, piece * PIECE_BYTES, 0, tile * a.octets, 0, full, of_w);
        else
            bulk_copy_box(to, maps.w, piece * PIECE_BYTES, 0, tile * a.octets, 0, full, of_w);
    }
    /* Two that share W copy the rows of a warpgroup each. */
    __device__ void put_w(int slot, const copy_place &w) const {
        uint32_t full = m.full + slot * 8, to = m.ring + slot * stage_bytes;
        barrier_expect(full, stage_bytes);
        if (a.w_sharers == 2)
            put_tile(to + rank * group_bytes, full, w.tile + rank, w.piece);
        else
#pragma unroll 1
            for (int group = 0; group < GROUPS; group++)
                put_tile(to + group * group_bytes, full, w.tile + group, w.piece);
    }
    /* Two that share tokens copy half of them each. */
    __device__ void put_x(int slot, const copy_place &x) const {
        uint32_t full = m.full + slot * 8, to = m.ring + slot * stage_bytes + a.w_bytes();
        int half = rank * (a.tile_tokens() / 2);
        if (a.x_sharers == 2)
            bulk_copy_box_to(3, to + half * PIECE_BYTES, maps.x, x.piece * PIECE_BYTES, x.token + half, full, often);
        else
            bulk_copy_box(to, maps.x, x.piece * PIECE_BYTES, x.token, full, often);
    }

    /* W into the ring: before anything else. */
    __device__ void begin() const {
        copy_place next(a, rank);
#pragma unroll 1
        for (int i = 0; i < n_begun; i++, next.step(a))
            put_w(i, next);
    }
    /* All that is left. The first time round, slots are empty. */
    __device__ void run() const {
        copy_place next(a, rank);
        ring_place at = {0, a.n_stages, 1};
        wait_for_previous();
#pragma unroll 1
        for (int i = 0; i < n_copies; i++, next.step(a), at.step()) {
            if (i >= a.n_stages)
                barrier_wait(m.empty + at.slot * 8, at.parity);
            if (i >= n_begun)
                put_w(at.slot, next);
            put_x(at.slot, next);
        }
    }
};

} // namespace
