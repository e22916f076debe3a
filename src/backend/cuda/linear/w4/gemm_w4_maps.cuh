/* gemm_w4_maps.cuh - tensor maps of gemm_w4.cu and gemm_w4_many.cu. Host code. */
#pragma once

#include "backend/cuda/linear/w4/gemm_w4_ring.cuh"
#include "backend/cuda/ptx/launching.cuh"

static inline int w4_up_to(int64_t n, int64_t of) { return (int)((n + of - 1) / of); }
static inline int w4_units(const struct dweight *w) { return (int)(w->quads.gated ? w->out / 2 : w->out); }

/* A box has at most 256 of anything: of eight bytes, too. */
static inline int w4_block_runs(struct dquads q) { return quads_block_bytes(q) > 256 * 8 ? 2 : 1; }

/* [tile][piece, or half a piece][eight bytes]: boxes are whole pieces, of some tiles. */
static inline bool w4_map_weight(CUtensorMap *map, const struct dweight *w, int pieces_a_box, int tiles_a_box) {
    cuuint64_t runs = (cuuint64_t)w4_block_runs(w->quads), block = (cuuint64_t)quads_block_bytes(w->quads) / runs,
               pieces = (cuuint64_t)quads_blocks(w->in) * runs, tiles = (cuuint64_t)quads_tiles(w->quads, w->out);
    cuuint64_t size[4] = {block / 8, pieces, tiles, 1}, strides[3] = {block, block * pieces, block * pieces * tiles};
    cuuint32_t box[4] = {(cuuint32_t)(block / 8), (cuuint32_t)(pieces_a_box * (int)runs), (cuuint32_t)tiles_a_box, 1};
    return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT64, w->at, 4, size, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/* [64 columns][token][128 bytes]: boxes are some tokens by the columns of some halves of pieces. */
static inline bool w4_map_tokens(CUtensorMap *map, struct dmat x, int64_t in, int n_rows, int tokens_a_box,
                                 int halves_a_box) {
    cuuint64_t pitch = (cuuint64_t)x.stride * 2;
    cuuint64_t size[4] = {PIECE_BYTES, (cuuint64_t)n_rows, (cuuint64_t)in * 2 / PIECE_BYTES, 1},
               strides[3] = {pitch, PIECE_BYTES, pitch * (cuuint64_t)n_rows};
    cuuint32_t box[4] = {PIECE_BYTES, (cuuint32_t)tokens_a_box, (cuuint32_t)halves_a_box, 1};
    return encode_rows(map, x.at, 4, size, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

/* What both kernels are told of the matrices. */
static inline gemm_w4_args w4_args_of(int n_rows, const struct dgemm_w4 *a, struct dmat y) {
    const struct dweight *w = &a->w;
    gemm_w4_args args = {};
    args.scale = w->scale;
    args.bias = a->bias;
    args.y = y.at;
    args.y_stride = y.stride;
    args.y_element = y.element;
    args.ending = a->ending;
    args.gated = w->quads.gated;
    args.has_zeros = w->quads.has_zeros;
    args.n_units = w4_units(w);
    args.n_tokens = n_rows;
    args.n_tiles = (int)quads_tiles(w->quads, w->out);
    args.n_pieces = (int)quads_blocks(w->in);
    args.block_runs = w4_block_runs(w->quads);
    args.block_bytes = quads_block_bytes(w->quads);
    return args;
}
