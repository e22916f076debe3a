/* l2_copy.h - how a second copy of a weight lies, which either side of the L2 has whole (l2_topology.h), so that every
 * multiprocessor reads what is near it: made by l2_copy.cu, kept by l2_copy.c, read by l2_copy.cuh.
 *
 *     page    2 MB of addresses. Which side a chunk of 4 KB in it is on is the parity of its offset's bits 12 and 13,
 *             some of 15 to 20 (dl2_sides.hash), and of the page's flip
 *     group   32 KB: eight chunks, of which a half is on either side: chunks 0, 4, 3, 7 or 1, 5, 2, 6. One copy by a
 *             tensor map brings a half; both halves hold the same
 *     tile    `rows` rows of W; a piece of it is 128 bytes of each, one row behind the other. The first 128 rows are in
 *             each half of a group, a quarter of them in each of its chunks; what there is beyond, the tail, in parts
 *             of up to 32 rows in chunks of groups behind those of the pieces
 *
 * Every tile is there to its end: zeros beyond the weight's rows and columns. Bytes of a chunk that are no row's are
 * never written, and never read. Wherever a block runs, what it reads is the same: were a flip or a multiprocessor's
 * side wrong, it would come from afar, and be right. */
#pragma once

#include "backend/cuda/device/l2_topology.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    L2_COPY_CHUNK = 4096,
    L2_COPY_GROUP = 8 * L2_COPY_CHUNK,
    L2_COPY_PIECE = 128,
    L2_COPY_CHUNK_ROWS = L2_COPY_CHUNK / L2_COPY_PIECE,
    L2_COPY_MOST_PAGES = 256
};

enum { L2_COPY_SHAPES = 2 }; // copies of a weight at most, in tiles of other rows

/* What a kernel's tiles are. */
struct l2_copy_shape {
    int rows;   // a multiple of 8
    int halves; // 2: half of the rows are of the first half of W's, half of the second's (gates, then what they let
                // through); else 1
};

struct dl2_copy {
    struct l2_copy_shape shape;
    char *at; // whole pages
    int n_tiles;
    int n_pieces;     // of W's columns
    int chunk_rows;   // of a piece's first 128 rows, that each of four chunks has
    int pieces_log;   // 1 << pieces_log pieces in a half-group, one behind the other in each chunk
    int tail_rows;    // of a part of the tail; 0: there is none
    int n_tail_parts; // of a piece
    int tails_log;    // 1 << tails_log parts of tails a chunk
    int tile_groups;
    uint32_t hash; // of dl2_sides
    uint32_t flips[L2_COPY_MOST_PAGES / 32];
    uint32_t sm_sides[SIDES_MOST_SMS / 32]; // by %smid
};

#ifdef __CUDACC__
#define L2_COPY_EVERYWHERE __host__ __device__ static inline
#else
#define L2_COPY_EVERYWHERE static inline
#endif

L2_COPY_EVERYWHERE int l2_copy_bit(const uint32_t *bits, int i) { return (int)(bits[i >> 5] >> (i & 31) & 1); }

/* Which half of a group is on side 0 where its page is not flipped: 0 is that of its first chunk. hash: of dl2_sides.
 */
L2_COPY_EVERYWHERE int l2_copy_turn(uint32_t hash, int group) {
    uint32_t g = (uint32_t)group & hash >> 3 & 63;
    g ^= g >> 3;
    return (int)(g ^ g >> 1 ^ g >> 2) & 1;
}
/* Which half of a group is on that side. */
L2_COPY_EVERYWHERE int l2_copy_half(const struct dl2_copy *n, int group, int side) {
    return l2_copy_turn(n->hash, group) ^ l2_copy_bit(n->flips, group >> 6) ^ side;
}
/* Where chunk i of four of a half begins in its group: i's first bit is 16 KB, its second 12 KB of half 0, 4 KB of
 * half 1. */
L2_COPY_EVERYWHERE int l2_copy_chunk(int half, int i) {
    return (i & 1) * 4 * L2_COPY_CHUNK + (half ? 1 + (i >> 1) : 3 * (i >> 1)) * L2_COPY_CHUNK;
}

/* The group of which either half has a tile's first 128 rows of a piece. */
L2_COPY_EVERYWHERE int l2_copy_group(const struct dl2_copy *n, int tile, int piece) {
    return tile * n->tile_groups + (piece >> n->pieces_log);
}
/* Of a chunk's rows, the piece's first. */
L2_COPY_EVERYWHERE int l2_copy_chunk_row(const struct dl2_copy *n, int piece) {
    return (piece & ((1 << n->pieces_log) - 1)) * n->chunk_rows;
}
/* Where a part of a piece's tail begins, in bytes from `at`; first: l2_copy_group of the tile and piece 0. Without a
 * division: readers' loops have it. */
L2_COPY_EVERYWHERE int64_t l2_copy_tail(const struct dl2_copy *n, int first, int side, int piece, int part) {
    int i = piece * n->n_tail_parts + part, chunk = i >> n->tails_log, group = first + n->n_pieces + (chunk >> 2);
    int row = (i & ((1 << n->tails_log) - 1)) * n->tail_rows;
    return (int64_t)group * L2_COPY_GROUP + l2_copy_chunk(l2_copy_half(n, group, side), chunk & 3) +
           row * L2_COPY_PIECE;
}
/* Where a row of a tile has its piece. */
L2_COPY_EVERYWHERE int64_t l2_copy_row(const struct dl2_copy *n, int tile, int side, int piece, int row) {
    int tail = row - 4 * n->chunk_rows, group = l2_copy_group(n, tile, piece);
    if (tail >= 0)
        return l2_copy_tail(n, l2_copy_group(n, tile, 0), side, piece, tail / n->tail_rows) +
               tail % n->tail_rows * L2_COPY_PIECE;
    int chunk = l2_copy_chunk(l2_copy_half(n, group, side), row / n->chunk_rows);
    return (int64_t)group * L2_COPY_GROUP + chunk + (l2_copy_chunk_row(n, piece) + row % n->chunk_rows) * L2_COPY_PIECE;
}

/* Whether w may have a copy of that shape: e4m3, in a multiple of 16, and of no more pages than there are flips for.
 * Then *out has all but `at`, flips and sides. */
bool l2_copy_lay_out(struct dweight w, struct l2_copy_shape shape, struct dl2_copy *out);
int l2_copy_pages(const struct dl2_copy *n);
/* All of w's bytes to where they lie, by flips. */
void launch_l2_copy(cudaStream_t stream, const struct dl2_copy *n, struct dweight w);

#ifdef __cplusplus
}
#endif
