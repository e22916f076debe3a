/* argmax_filter_units.cuh - of argmax_filter.cu: where the head's copy lies, so that multiprocessors read what is on
 * their side of the L2 (l2_topology.h), and which of them reads what of it.
 *
 *     unit    64 rows of W, a warpgroup's of a tile. A piece of it, 128 bytes of each row, is one copy of 8 KB
 *     group   32 KB, of which four chunks of 4 KB are on either side (l2_copy.h). Such a half has two pieces of a unit:
 *             row r in chunk r / 16, the first piece in that one's first 2 KB
 *     pair    units u and u + n_half have their groups in common: the first half of all units are on side 0, the others
 *             on side 1
 *     share   a block's units, next to each other. Blocks claim them, those of side 0 the first that is left, those of
 *             side 1 the last: so each share has one block wherever blocks run, and where there are as many on either
 *             side all is near
 *
 * Flips and sides tell only what is near. What a block reads is right whatever they are; where they are not known, a
 * unit's groups are on either side by turns. */
#pragma once

#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/head/lm_head_ring.cuh"
#include "backend/cuda/value.h"

namespace screen {

enum {
    UNIT_BYTES = M_ROWS * PIECE_BYTES,
    CHUNK_ROWS = M_ROWS / 4,
    MOST_PAGES = 1024
}; // MOST_PAGES: with flips of their own

struct units {
    char *at;                // whole pages, or nothing is near
    int n, n_half, n_groups; // n_groups: of a pair
    uint32_t hash;           // of dl2_sides; 0: what is where is not known, and each unit is on both sides, by turns
    uint32_t flips[MOST_PAGES / 32], sm_sides[SIDES_MOST_SMS / 32];

    __host__ __device__ int side(int unit) const { return unit >= n_half; }
    __host__ __device__ int group(int unit, int piece) const {
        return (unit - side(unit) * n_half) * n_groups + piece / 2;
    }
    /* Which half of the group: 0 is that of its first chunk. */
    __host__ __device__ int half(int group, int side) const {
        return l2_copy_turn(hash, group) ^ l2_copy_bit(flips, group >> 6 & (MOST_PAGES - 1)) ^ side;
    }
    __host__ __device__ int8_t *byte(int64_t row, int k) const {
        int unit = (int)(row / M_ROWS), r = (int)(row % M_ROWS), piece = k / PIECE_BYTES, g = group(unit, piece);
        int in_chunk = (piece % 2 * CHUNK_ROWS + r % CHUNK_ROWS) * PIECE_BYTES + k % PIECE_BYTES;
        return reinterpret_cast<int8_t *>(at) + (int64_t)g * L2_COPY_GROUP +
               l2_copy_chunk(half(g, side(unit)), r / CHUNK_ROWS) + in_chunk;
    }
};

/* Of out rows of so many bytes; at, flips and sides are left open. */
static units units_of(int64_t out, int64_t row_bytes) {
    units u = {};
    u.n = (int)((out + M_ROWS - 1) / M_ROWS);
    u.n_half = (u.n + 1) / 2;
    u.n_groups = (int)((row_bytes + 2 * PIECE_BYTES - 1) / (2 * PIECE_BYTES));
    return u;
}
static int64_t bytes_of(const units &u) { return (int64_t)u.n_half * u.n_groups * L2_COPY_GROUP; }

/* A piece of a unit from either half of a group: [128 bytes][row of a chunk][2][2][group]. */
struct unit_maps {
    CUtensorMap of_half[2];
};
static bool map_units(unit_maps *maps, const units &u) {
    for (int half = 0; half < 2; half++) {
        cuuint64_t size[5] = {PIECE_BYTES, L2_COPY_CHUNK_ROWS, 2, 2, (cuuint64_t)u.n_half * u.n_groups};
        cuuint64_t strides[4] = {PIECE_BYTES, (cuuint64_t)(l2_copy_chunk(half, 1) - l2_copy_chunk(half, 0)),
                                 (cuuint64_t)(l2_copy_chunk(half, 2) - l2_copy_chunk(half, 0)), L2_COPY_GROUP};
        cuuint32_t box[5] = {PIECE_BYTES, CHUNK_ROWS, 2, 2, 1};
        if (!encode_rows(&maps->of_half[half], u.at + l2_copy_chunk(half, 0), 5, size, strides, box,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
            return false;
    }
    return true;
}

/* Of n_shares of equal units, which one is the block's. claims: 0 whenever nobody claims; the last claimer sees to it
 * before the next launch may start. */
static __device__ int claim_share(const units &u, uint32_t *claims, int n_shares) {
    int multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    bool other = l2_copy_bit(u.sm_sides, multiprocessor);
    uint32_t had = atomicAdd(claims, (other ? 1u << 10 : 1u) + (1u << 20));
    if ((int)(had >> 20) == n_shares - 1 && atomicExch(claims, 0) == 0)
        __trap(); // it was not; the result is waited for
    return other ? n_shares - 1 - (int)(had >> 10 & 1023) : (int)(had & 1023);
}

/* What a block does: those units by some tokens, GROUPS at a time. Blocks that share tokens take as many passes. */
struct share {
    int rank, first_token, n_shares, first, n, n_passes; // rank: in the cluster; first, n: units
    int end;                                             // row
};
template <int N, int GROUPS, class ARGS>
static __device__ share share_of_units(const ARGS &a, int rank, int token_tile, int claimed, int n_shares) {
    share s = {rank, token_tile * N, n_shares, a.w.n * claimed / n_shares, 0, 0, 0};
    s.n = a.w.n * (claimed + 1) / n_shares - s.first;
    s.end = min((s.first + s.n) * M_ROWS, a.n_rows);
    int most = a.sharers > 1 ? (a.w.n + n_shares - 1) / n_shares : s.n;
    s.n_passes = (most + GROUPS - 1) / GROUPS;
    return s;
}

/* Fills the ring. A warp's thread copies a unit of each stage, another's x: one that did all were too slow for it. The
 * latter expects the bytes of all of them, which may come before that. */
template <int N, int GROUPS, class ARGS> struct units_filler {
    const ARGS &a;
    const shared_places &m;
    const share &s;
    int n, n_early;
    __device__ units_filler(const ARGS &a, const shared_places &m, const share &s)
        : a(a), m(m), s(s), n(s.n_passes * a.n_pieces), n_early(min(n, a.n_stages)) {}

    /* Units of the pass in which that stage is. */
    __device__ int w_bytes(int pass) const { return min(max(s.n - pass * GROUPS, 0), (int)GROUPS) * UNIT_BYTES; }

    /* Stages from..to of those of the which-th unit of each pass. */
    __device__ void copy_units(const unit_maps *maps, int which, int from, int to) const {
        uint64_t policy = a.token_tiles > 1 ? policy_read_again() : policy_read_once();
        uint32_t w = m.w + which * UNIT_BYTES;
        int pass = from / a.n_pieces, piece = from % a.n_pieces, unit = s.first + pass * GROUPS + which;
        ring_place at = {0, a.n_stages, 1};
        at.skip(from);
        for (int i = from; i < to; i++, at.step()) {
            bool there = unit < s.first + s.n;
            int group = a.w.group(unit, piece), half = there ? a.w.half(group, a.w.side(unit)) : 0;
            if (i >= a.n_stages)
                barrier_wait(m.empty + 8 * at.slot, at.parity);
            if (there)
                bulk_copy_box(w + at.slot * GROUPS * UNIT_BYTES, &maps->of_half[half], 0, piece % 2 * CHUNK_ROWS, 0, 0,
                              group, m.full + 8 * at.slot, policy);
            if (++piece == a.n_pieces)
                piece = 0, unit += GROUPS;
        }
    }
    __device__ void copy_tokens(const CUtensorMap *map) const {
        uint64_t policy = policy_read_often();
        ring_place at = {0, a.n_stages, 1};
        int pass = 0, piece = 0;
        for (int i = 0; i < n; i++, at.step()) {
            if (i >= a.n_stages)
                barrier_wait(m.empty + 8 * at.slot, at.parity);
            barrier_expect(m.full + 8 * at.slot, N * PIECE_BYTES + w_bytes(pass));
            copy_x<N>(a, m, map, s.rank, s.first_token, piece, at.slot, policy);
            if (++piece == a.n_pieces)
                piece = 0, pass++;
        }
    }
    /* Nothing is wanted: the first units, which are on their way, come before the block ends. */
    __device__ void leave() const {
        for (int i = 0; i < n_early; i++) {
            barrier_expect(m.full + 8 * i, w_bytes(i / a.n_pieces));
            barrier_wait(m.full + 8 * i, 0);
        }
    }
};

} // namespace screen
