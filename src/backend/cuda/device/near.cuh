/* near.cuh - weights near their reader (near.h), as kernels copy them: a kernel has struct dnear and near_maps as parameters, and a block takes what is on its
 * multiprocessor's side. Two blocks that share what they copy are of one side, as clusters are; were they not, one of them would be served from afar. */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/device/near.h"

namespace {

/* A piece of a tile: half[near_half()], [128 bytes][rows of a chunk][2][2][group], and of a part of its tail, [128 bytes][row]. */
struct near_maps {
    CUtensorMap half[2], tail;
};

/* False: the driver refuses. */
[[maybe_unused]] static bool near_maps_of(const struct dnear *n, near_maps *m) {
    cuuint64_t n_groups = (cuuint64_t)near_pages(n) * (SIDES_PAGE / NEAR_GROUP), rows = n_groups * (NEAR_GROUP / NEAR_PIECE), row = NEAR_PIECE;
    cuuint64_t size[5] = {NEAR_PIECE, NEAR_CHUNK_ROWS, 2, 2, n_groups}, strides[4] = {NEAR_PIECE, 4 * NEAR_CHUNK, 0, NEAR_GROUP};
    cuuint64_t tail_size[2] = {NEAR_PIECE, rows};
    cuuint32_t box[5] = {NEAR_PIECE, (cuuint32_t)n->chunk_rows, 2, 2, 1}, tail_box[2] = {NEAR_PIECE, (cuuint32_t)(n->tail_rows ? n->tail_rows : 1)};
    bool there = encode_rows(&m->tail, n->at, 2, tail_size, &row, tail_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    for (int half = 0; half < 2; half++) {
        strides[2] = near_chunk(half, 2) - near_chunk(half, 0);
        there = there && encode_rows(&m->half[half], n->at + near_chunk(half, 0), 5, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    }
    return there;
}

static __device__ __forceinline__ int near_own_side(const dnear &n) {
    int multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return near_bit(n.sm_sides, multiprocessor);
}

/* A piece of a tile, of which the first group is `first`, to the same place in each block of the cluster of `ranks` (bits), or of this one (0). Few instructions,
 * and none of them a division: one thread does it for all stages. */
static __device__ __forceinline__ void near_copy(const dnear &n, const near_maps *maps, int first, int side, int piece, uint32_t to, uint32_t barrier,
                                                 uint64_t policy, int ranks) {
    int group = first + (piece >> n.pieces_log), chunk_row = near_chunk_row(&n, piece);
    const CUtensorMap *half = &maps->half[near_half(&n, group, side)];
    if (ranks)
        bulk_copy_box_to(ranks, to, half, 0, chunk_row, 0, 0, group, barrier, policy);
    else
        bulk_copy_box(to, half, 0, chunk_row, 0, 0, group, barrier, policy);
    to += 4 * n.chunk_rows * NEAR_PIECE;
#pragma unroll 1
    for (int part = 0; part < n.n_tail_parts; part++, to += n.tail_rows * NEAR_PIECE) {
        int row = (int)(near_tail(&n, first, side, piece, part) / NEAR_PIECE);
        if (ranks)
            bulk_copy_box_to(ranks, to, &maps->tail, 0, row, barrier, policy);
        else
            bulk_copy_box(to, &maps->tail, 0, row, barrier, policy);
    }
}

} // namespace
