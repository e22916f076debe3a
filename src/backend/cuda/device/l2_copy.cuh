/* l2_copy.cuh - weights near their reader (l2_copy.h), as kernels copy them: a kernel has struct dl2_copy and
 * l2_copy_maps as parameters, and a block takes what is on its multiprocessor's side. Two blocks that share what they
 * copy are of one side, as clusters are; were they not, one of them would be served from afar. */
#pragma once

#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/launching.cuh"
#include "backend/cuda/value.h"

namespace {

/* A piece of a tile: half[l2_copy_half()], [128 bytes][rows of a chunk][2][2][group], and of a part of its tail, [128
 * bytes][row]. */
struct l2_copy_maps {
    CUtensorMap half[2], tail;
};

/* False: the driver refuses. */
[[maybe_unused]] static bool l2_copy_maps_of(const struct dl2_copy *n, l2_copy_maps *m) {
    cuuint64_t n_groups = (cuuint64_t)l2_copy_pages(n) * (SIDES_PAGE / L2_COPY_GROUP),
               rows = n_groups * (L2_COPY_GROUP / L2_COPY_PIECE), row = L2_COPY_PIECE;
    cuuint64_t size[5] = {L2_COPY_PIECE, L2_COPY_CHUNK_ROWS, 2, 2, n_groups},
               strides[4] = {L2_COPY_PIECE, 4 * L2_COPY_CHUNK, 0, L2_COPY_GROUP};
    cuuint64_t tail_size[2] = {L2_COPY_PIECE, rows};
    cuuint32_t box[5] = {L2_COPY_PIECE, (cuuint32_t)n->chunk_rows, 2, 2, 1},
               tail_box[2] = {L2_COPY_PIECE, (cuuint32_t)(n->tail_rows ? n->tail_rows : 1)};
    bool there = encode_rows(&m->tail, n->at, 2, tail_size, &row, tail_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    for (int half = 0; half < 2; half++) {
        strides[2] = l2_copy_chunk(half, 2) - l2_copy_chunk(half, 0);
        there = there && encode_rows(&m->half[half], n->at + l2_copy_chunk(half, 0), 5, size, strides, box,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    }
    return there;
}

static __device__ __forceinline__ int l2_copy_own_side(const dl2_copy &n) {
    int multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    return l2_copy_bit(n.sm_sides, multiprocessor);
}

/* A piece of a tile, of which the first group is `first`, to the same place in each block of the cluster of `ranks`
 * (bits), or of this one (0). Few instructions, and none of them a division: one thread does it for all stages. */
static __device__ __forceinline__ void l2_copy_make(const dl2_copy &n, const l2_copy_maps *maps, int first, int side,
                                                    int piece, uint32_t to, uint32_t barrier, uint64_t policy,
                                                    int ranks) {
    int group = first + (piece >> n.pieces_log), chunk_row = l2_copy_chunk_row(&n, piece);
    const CUtensorMap *half = &maps->half[l2_copy_half(&n, group, side)];
    if (ranks)
        bulk_copy_box_to(ranks, to, half, 0, chunk_row, 0, 0, group, barrier, policy);
    else
        bulk_copy_box(to, half, 0, chunk_row, 0, 0, group, barrier, policy);
    to += 4 * n.chunk_rows * L2_COPY_PIECE;
#pragma unroll 1
    for (int part = 0; part < n.n_tail_parts; part++, to += n.tail_rows * L2_COPY_PIECE) {
        int row = (int)(l2_copy_tail(&n, first, side, piece, part) / L2_COPY_PIECE);
        if (ranks)
            bulk_copy_box_to(ranks, to, &maps->tail, 0, row, barrier, policy);
        else
            bulk_copy_box(to, &maps->tail, 0, row, barrier, policy);
    }
}

} // namespace
