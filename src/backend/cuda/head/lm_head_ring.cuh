/* lm_head_ring.cuh - what lm_head.cu and argmax_filter.cu's product have in common: both multiply all rows of a large W
 * by few tokens, W as the first operand (m64nN), and differ in what W holds and in the end of a tile. lm_head.cu says
 * what tiles, blocks and clusters are.
 *
 *     ring    n_stages of [octets of rows of W][8 rows][128 bytes], then as many of [N tokens][128 bytes]
 *
 * ARGS has n_rows (of W), n_tokens, n_pieces, octets, n_tiles, n_stages, token_tiles, sharers. */
#pragma once

#include "backend/cuda/head/lm_head.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/ptx/ring.cuh"
#include "backend/cuda/ptx/wgmma.cuh"
#include "backend/cuda/value.h"

namespace {

enum {
    MAX_STAGES = 16,
    M_ROWS = 64,                      // of W, that a warpgroup has of a tile
    STEP_BYTES = 32,                  // of each row in a product of the tensor core
    STEPS = PIECE_BYTES / STEP_BYTES, // of a stage
};

struct shared_places { // addresses
    uint32_t w, x, full, empty;
};

/* Which tiles are the block's: those of some tokens, in each n_parts-th tile of rows of W. Blocks that share tokens do
 * as many. */
struct share_of_block {
    int rank, first_token, part, n_parts, n_passes;
};

/* Of the block that this is; rank: in its cluster. */
template <int N, class ARGS> static __device__ share_of_block share_of(const ARGS &a, int rank) {
    int cluster = (int)blockIdx.x / a.sharers, n_parts = (int)gridDim.x / a.token_tiles;
    share_of_block s = {rank, cluster % a.token_tiles * N, cluster / a.token_tiles * a.sharers + rank, n_parts, 0};
    s.n_passes = (a.n_tiles + n_parts - 1 - (a.sharers > 1 ? 0 : s.part)) / n_parts;
    return s;
}

template <class ARGS>
static __device__ shared_places places_of(const ARGS &a, unsigned char *unaligned, const uint64_t *full,
                                          const uint64_t *empty) {
    shared_places m;
    m.w = kept((shared_address(unaligned) + ATOM - 1) & ~(uint32_t)(ATOM - 1));
    m.x = m.w + a.n_stages * a.octets * ATOM;
    m.full = kept(shared_address(full));
    m.empty = kept(shared_address(empty));
    return m;
}

/* Its barriers, by the thread that copies. n_groups: warpgroups that multiply. */
template <class ARGS> static __device__ void prepare_ring(const ARGS &a, const shared_places &m, int n_groups) {
    for (int i = 0; i < a.n_stages; i++) {
        barrier_init(m.full + 8 * i, 1);
        barrier_init(m.empty + 8 * i, n_groups * a.sharers);
    }
    barrier_init_done();
}

// ---- filling the ring -----------------------------------------------------------------------------------------------

/* A piece of the block's tokens. Two that share them copy half of it each, to both. */
template <int N, class ARGS>
static __device__ __forceinline__ void copy_x(const ARGS &a, const shared_places &m, const CUtensorMap *x_map, int rank,
                                              int first_token, int piece, int slot, uint64_t policy) {
    uint32_t full = m.full + 8 * slot, to = m.x + slot * N * PIECE_BYTES;
    if (a.sharers == 2)
        bulk_copy_box_to(3, to + rank * (N / 2 * PIECE_BYTES), x_map, piece * PIECE_BYTES, first_token + rank * (N / 2),
                         full, policy);
    else
        bulk_copy_box(to, x_map, piece * PIECE_BYTES, first_token, full, policy);
}

/* One thread's: brings W and x into the ring. */
template <int N, class ARGS> struct filler {
    const ARGS &a;
    const shared_places &m;
    const share_of_block &s;
    const CUtensorMap *w_map, *x_map;
    uint64_t once, often;
    int n, n_early, w_bytes;
    int tile, piece, x_piece;

    __device__ filler(const ARGS &a, const shared_places &m, const share_of_block &s, const CUtensorMap *w_map,
                      const CUtensorMap *x_map)
        : a(a), m(m), s(s), w_map(w_map), x_map(x_map),
          once(a.token_tiles > 1 ? policy_read_again() : policy_read_once()), often(policy_read_often()),
          n(s.n_passes * a.n_pieces), n_early(min(n, a.n_stages)), w_bytes(a.octets * ATOM), tile(s.part), piece(0),
          x_piece(0) {}

    __device__ void put_w(int slot) {
        uint32_t full = m.full + 8 * slot;
        barrier_expect(full, w_bytes + N * PIECE_BYTES);
        bulk_copy_box(m.w + slot * w_bytes, w_map, piece * PIECE_BYTES, tile * a.octets * 8, full, once);
        if (++piece == a.n_pieces) {
            piece = 0;
            tile += s.n_parts;
        }
    }
    __device__ void put_x(int slot) {
        copy_x<N>(a, m, x_map, s.rank, s.first_token, x_piece, slot, often);
        if (++x_piece == a.n_pieces)
            x_piece = 0;
    }
    __device__ void begin() {
        for (int i = 0; i < n_early; i++)
            put_w(i);
    }
    /* Behind the wait for the node before. */
    __device__ void run() {
        for (int i = 0; i < n_early; i++)
            put_x(i);
        ring_place at = {0, a.n_stages, 0};
        for (int i = n_early; i < n; i++) {
            barrier_wait(m.empty + 8 * at.slot, at.parity);
            put_w(at.slot);
            put_x(at.slot);
            at.step();
        }
    }
};

// ---- multiplying ----------------------------------------------------------------------------------------------------

/* A warpgroup's 64 rows of a tile by the tokens, by PRODUCT::multiply. empty_there: of the block whom this lane tells
 * that a slot is free; 0: nobody. meanwhile(piece): what else is done once a piece's products are under way. */
template <class PRODUCT, int N, class ARGS, class SUM, class MEANWHILE>
__device__ __forceinline__ void multiply(const ARGS &a, const shared_places &m, uint32_t empty_there, ring_place &at,
                                         SUM (&sums)[N / 2], MEANWHILE meanwhile) {
    int last = -1, group = threadIdx.x / WARPGROUP;
    const uint64_t first_w = operand_rows(m.w + group * M_ROWS * PIECE_BYTES), first_x = operand_rows(m.x);
    const uint64_t high = first_w & 0xffffffff00000000u;
    const uint32_t w0 = kept((uint32_t)first_w), x0 = kept((uint32_t)first_x), w_step = a.octets * ATOM >> 4;
    auto release = [&](int slot) {
        if (slot >= 0 && empty_there)
            barrier_arrive_at_rank(empty_there + 8 * slot);
    };
    for (int piece = 0; piece < a.n_pieces; piece++) {
        uint32_t w = of_warp(w0 + at.slot * w_step), x = of_warp(x0 + at.slot * (N * PIECE_BYTES >> 4));
        barrier_wait(m.full + 8 * at.slot, at.parity);
        products_begin();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
            PRODUCT::multiply(sums, high | (w + k * (STEP_BYTES >> 4)), high | (x + k * (STEP_BYTES >> 4)),
                              piece > 0 || k > 0);
        products_commit();
        products_wait<1>(); // of the stage before
        release(last);
        meanwhile(piece);
        last = at.slot;
        at.step();
    }
    products_wait<0>();
    registers_settle(sums);
    release(last);
}

// ---- how it is cut --------------------------------------------------------------------------------------------------

enum { SHARED_MOST = 227 << 10, MAX_SHARERS = 2 };

int up_to(int n, int of) { return (n + of - 1) / of; }
/* Tokens of a tile: of few rows as many as there are; of more, 192 or 256, whichever leaves less of the last tile
 * empty. */
int tokens_of(int n_rows) {
    static const int sizes[] = {8, 16, 32, 64, 128, 192, 256};
    if (n_rows > 256)
        return n_rows <= 384 ? 192 : 256;
    int i = 0;
    while (sizes[i] < n_rows)
        i++;
    return sizes[i];
}
/* Warpgroups that multiply: all sums of 256 tokens fit the registers of two. */
int groups_of(int n_rows) { return tokens_of(n_rows) <= 192 ? 3 : 2; }
int token_tiles_of(int n_rows) { return up_to(n_rows, tokens_of(n_rows)); }

/* Rows of W in a tile, in eights: as many as let all blocks end at once. */
int octets_of(int64_t out, int n_rows, int n_blocks, int sharers) {
    int parts = n_blocks / token_tiles_of(n_rows) / sharers * sharers, octets = up_to((int)out, 8);
    return up_to(octets, parts * up_to(octets, parts * groups_of(n_rows) * M_ROWS / 8));
}

/* How many parts W is cut into, each in the hands of a block for each tile of tokens. Blocks that share have parts of
 * their own. */
int parts_of(int64_t out, int n_rows, const struct head_cut *c) {
    int most = c->n_blocks / token_tiles_of(n_rows) / c->sharers,
        n_tiles = up_to(up_to((int)out, c->octets * 8), c->sharers);
    return (most < n_tiles ? most : n_tiles) * c->sharers;
}

/* The tensor core reads whole 64 rows of a tile: behind the last stage of W that is x, and where x is little, more. */
int shared_bytes(int n_rows, const struct head_cut *c) {
    int w = c->octets * ATOM, ring = c->n_stages * (w + tokens_of(n_rows) * PIECE_BYTES);
    int read = (c->n_stages - 1) * w + groups_of(n_rows) * M_ROWS * PIECE_BYTES;
    return (ring > read ? ring : read) + ATOM;
}

/* Rows of so many bytes, so far apart. */
bool map_rows(CUtensorMap *map, const void *at, int64_t row_bytes, int64_t n_rows, int64_t pitch, int box_rows) {
    cuuint64_t size[2] = {(cuuint64_t)row_bytes, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)pitch};
    cuuint32_t box[2] = {PIECE_BYTES, (cuuint32_t)box_rows};
    return encode_rows(map, at, 2, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

} // namespace
