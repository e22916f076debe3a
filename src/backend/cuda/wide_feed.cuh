/* wide_feed.cuh - how a block of wide.cu is fed: what it is told, the tiles that are its own, the ring of stages in shared memory and the
 * thread that fills it.
 *
 *     ring    n_stages of [rows of W of the tile][128 bytes], then [128 tokens][128 bytes], each in the 128-byte swizzle
 *     full    a stage's bytes have come;  empty    both warpgroups are done with them */
#pragma once

#include "backend/cuda/kv.cuh"
#include "backend/cuda/wgmma_e4m3.cuh"

namespace {

enum { PIECE_BYTES = 128, ATOM = 1024, MAX_STAGES = 12, WARPGROUP = 128, GROUPS = 2, GROUP_TOKENS = 64, TOKENS = GROUPS * GROUP_TOKENS };
enum { CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32, X_BYTES = TOKENS * PIECE_BYTES };
enum { LINE = 64, PITCH = LINE + 16, STAGING = 16 * PITCH }; // of a warp: 16 tokens, 64 bytes of each

/* What becomes of sums: each a column of y; gate and up a column of y; two rows of a head turned by one another. */
enum variant { PLAIN, GATED, HEADS };
__host__ __device__ constexpr int halves_of(variant v) { return v == PLAIN ? 1 : 2; } // rows of W that go together

struct wide_args {
    const float *w_scale, *bias, *x_scale;
    void *y;
    uint32_t *most;
    int64_t y_stride;
    int n_units; // columns of y, but of heads pairs of rows of W
    int n_tokens, n_pieces, octets, token_tiles, n_tiles, n_stages, ring_bytes, split;
    float bend, twist; // of the activation
    element y_element;
    dheads heads;
};

/* Many sums take registers that the producer must leave (setmaxnreg), for which it is a whole warpgroup. Few leave room beside the block,
 * where the next node's may start early. */
__host__ __device__ constexpr bool is_large(int n, int parts) { return n * parts > 192; }
__host__ __device__ constexpr int threads_of(int n, int parts) { return CONSUMERS + (is_large(n, parts) ? WARPGROUP : 32); }

/* A place in the ring and which time round it is. */
struct ring_place {
    int slot, n_slots, parity;
    __device__ void step() {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* The tiles of a cluster, one after the other: those of the same rows and all tokens lie together, so that W is read once. The last of the
 * tokens may be fewer: they come to each cluster in turn, where a pass has whole rows of tiles. */
struct tile_walk {
    int at, step, n, token_tiles, turn;
    __device__ explicit tile_walk(const wide_args &a)
        : at(blockIdx.x / a.split), step(gridDim.x / a.split), n(a.n_tiles), token_tiles(a.token_tiles), turn(0) {}
    __device__ bool there() const { return at < n; }
    __device__ int left() const { return there() ? (n - 1 - at) / step + 1 : 0; }
    __device__ void next() {
        at += step;
        turn += step % token_tiles == 0;
    }
    __device__ int token_tile() const { return (at + turn) % token_tiles; }
    __device__ int row_tile() const { return at / token_tiles; }
};

/* The row of W of a unit, and of its partner. Of heads they are half a head apart. */
static __device__ int row_of(const wide_args &a, variant v, int unit, int half) {
    int apart = v == HEADS ? a.heads.head_dim / 2 : a.n_units;
    return v == HEADS ? unit + unit / apart * apart + half * apart : unit + half * apart;
}

struct shared_places { // addresses
    uint32_t ring, staging, scales, full, empty, all_read, all_sums;
};

/* Computed once: else where shared memory lies is asked for again in every stage. */
static __device__ uint32_t kept(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}
/* The same in all lanes, as the compiler sees it: what the tensor core is told must be, or every product waits for its operands' way into
 * uniform registers. */
static __device__ uint32_t of_warp(uint32_t v) { return __shfl_sync(0xffffffffu, v, 0); }

// ---- copying --------------------------------------------------------------------------------------------------------

template <variant V> struct producer {
    const wide_args &a;
    const CUtensorMap *w_map, *x_map;
    const shared_places &m;
    int w_bytes, piece_begin, piece_end;
    tile_walk w_walk, x_walk;
    int w_piece, x_piece, n_copies, n_early;
    uint64_t of_w, often;

    __device__ producer(const wide_args &a, const CUtensorMap *w_map, const CUtensorMap *x_map, const shared_places &m, int w_bytes,
                        int piece_begin, int piece_end)
        : a(a), w_map(w_map), x_map(x_map), m(m), w_bytes(w_bytes), piece_begin(piece_begin), piece_end(piece_end), w_walk(a), x_walk(a),
          w_piece(piece_begin), x_piece(piece_begin), n_copies(w_walk.left() * (piece_end - piece_begin)),
          n_early(min(n_copies, a.n_stages)), of_w(a.token_tiles > 1 ? policy_read_again() : policy_read_once()),
          often(policy_read_often()) {}

    __device__ void put_w(int slot) {
        uint32_t full = m.full + slot * 8;
        barrier_expect(full, w_bytes + X_BYTES);
        uint32_t to = m.ring + slot * (w_bytes + X_BYTES);
        int octet = w_walk.row_tile() * a.octets;
        if (V != HEADS)
            bulk_copy_box(to, w_map, w_piece * PIECE_BYTES, 0, 0, octet, full, of_w);
        for (int i = octet; V == HEADS && i < octet + a.octets; i++, to += 2 * ATOM) // partners are half a head apart, from any octet
            bulk_copy_box(to, w_map, w_piece * PIECE_BYTES, 0, 0, row_of(a, V, i * 8, 0) / 8, full, of_w);
        if (++w_piece == piece_end) {
            w_piece = piece_begin;
            w_walk.next();
        }
    }
    __device__ void put_x(int slot) {
        bulk_copy_box(m.ring + slot * (w_bytes + X_BYTES) + w_bytes, x_map, x_piece * PIECE_BYTES, x_walk.token_tile() * TOKENS,
                      m.full + slot * 8, often);
        if (++x_piece == piece_end) {
            x_piece = piece_begin;
            x_walk.next();
        }
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
