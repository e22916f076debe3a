/* wide_feed.cuh - how a block of wide.cu is fed: what it is told, the tiles that are its own, the ring of stages in shared memory and the
 * thread that fills it.
 *
 *     ring    n_stages of [rows of W of the tile][128 bytes], then [128 tokens][128 bytes], each in the 128-byte swizzle
 *     full    a stage's bytes have come
 *     empty   who multiplies the tile is done with them, in each block of the cluster */
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/cuda/ring.cuh"
#include "backend/cuda/wgmma_e4m3.cuh"

namespace {

enum { MAX_STAGES = 12, GROUPS = 2, PARTS = 2, PART_TOKENS = 64, TOKENS = PARTS * PART_TOKENS };
enum { CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + WARPGROUP, WARPS = CONSUMERS / 32, X_BYTES = TOKENS * PIECE_BYTES };
enum { LINE = 64, PITCH = LINE + 16, STAGING = 16 * PITCH }; // of a warp: 16 tokens, 64 bytes of each

struct wide_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    uint32_t *most;
    int64_t y_stride;
    int n_columns; // of y
    int n_tokens, n_pieces, octets, token_tiles, n_tiles, n_stages, sharers;
    float bend, twist; // of the activation
    element y_element;
    uint8_t *twin; // NULL: none
    int64_t twin_stride;
    float twin_factor; // 1 / static_scale
};

struct shared_places { // addresses
    uint32_t ring, staging, scales, full, empty;
};

/* The tiles of a block, one after the other. Those of the same rows and all tokens lie together, so that W is read once; the blocks of a
 * cluster have the same rows at the same time, each with tokens of its own. The last of the tokens may be fewer: they come to each cluster
 * in turn, where a pass has whole rows of tiles. */
struct tile_walk {
    int at, step, n, abreast, turn, sharers, rank; // at, step, n, abreast: of a cluster's tiles
    __device__ tile_walk(const wide_args &a, int rank)
        : at(blockIdx.x / a.sharers), step(gridDim.x / a.sharers), n(a.n_tiles), abreast(a.token_tiles / a.sharers), turn(0),
          sharers(a.sharers), rank(rank) {}
    __device__ bool there() const { return at < n; }
    __device__ int left() const { return there() ? (n - 1 - at) / step + 1 : 0; }
    __device__ void next() {
        at += step;
        turn += step % abreast == 0;
    }
    __device__ int token_tile() const { return (at + turn) % abreast * sharers + rank; }
    __device__ int row_tile() const { return at / abreast; }
};

// ---- copying --------------------------------------------------------------------------------------------------------

/* A copy to come: a piece of a tile. What is the same for all pieces is computed once a tile: a stage must not wait for divisions. */
struct copy_place {
    tile_walk walk;
    int piece, n_pieces, octet, token;
    __device__ copy_place(const wide_args &a, int rank) : walk(a, rank), piece(0), n_pieces(a.n_pieces) { find(a); }
    __device__ void find(const wide_args &a) {
        octet = walk.row_tile() * a.octets;
        token = walk.token_tile() * TOKENS;
    }
    __device__ void step(const wide_args &a) {
        if (++piece == n_pieces) {
            piece = 0;
            walk.next();
            find(a);
        }
    }
};

struct producer {
    const wide_args &a;
    const CUtensorMap *w_map, *x_map;
    const shared_places &m;
    int rank, stage_bytes, w_bytes;
    copy_place w, x;
    int n_copies, n_early;
    uint32_t to_w; // in a stage
    uint64_t of_w, often;

    __device__ producer(const wide_args &a, const CUtensorMap *w_map, const CUtensorMap *x_map, const shared_places &m, int rank,
                        int w_bytes)
        : a(a), w_map(w_map), x_map(x_map), m(m), rank(rank), stage_bytes(w_bytes + X_BYTES), w_bytes(w_bytes), w(a, rank), x(a, rank),
          n_copies(w.walk.left() * a.n_pieces), n_early(min(n_copies, a.n_stages)), to_w(w_bytes / 2 * rank),
          of_w(a.token_tiles > a.sharers ? policy_read_again() : policy_read_once()), often(policy_read_often()) {}

    /* Two that share copy the gates and what they let through, one each, to both. */
    __device__ void put_w(int slot) {
        uint32_t full = m.full + slot * 8, to = m.ring + slot * stage_bytes + to_w;
        barrier_expect(full, stage_bytes);
        if (a.sharers == 2)
            bulk_copy_box_to(3, to, w_map, w.piece * PIECE_BYTES, 0, w.octet, rank, full, of_w);
        else
            bulk_copy_box(to, w_map, w.piece * PIECE_BYTES, 0, w.octet, 0, full, of_w);
        w.step(a);
    }
    __device__ void put_x(int slot) {
        bulk_copy_box(m.ring + slot * stage_bytes + w_bytes, x_map, x.piece * PIECE_BYTES, x.token, m.full + slot * 8, often);
        x.step(a);
    }

    /* W into all of the ring: before anything else. */
    __device__ void begin() {
        for (int i = 0; i < n_early; i++)
            put_w(i);
    }
    __device__ void run() {
        wait_for_previous();
        for (int i = 0; i < n_early; i++)
            put_x(i);
        ring_place at = {0, a.n_stages, 0};
        for (int i = n_early; i < n_copies; i++) {
            barrier_wait(m.empty + at.slot * 8, at.parity);
            put_w(at.slot);
            put_x(at.slot);
            at.step();
        }
    }
};

} // namespace
