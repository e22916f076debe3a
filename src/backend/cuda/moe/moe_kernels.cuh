/* moe_kernels.cuh - how the kernels of a format W are launched; see moe_kernels.h. */
#pragma once

#include "backend/cuda/moe/moe_kernels.h"
#include "backend/cuda/moe/moe_tiles.cuh"
#include "backend/cuda/moe/moe_wide.cuh"
#include "backend/cuda/ptx/launching.cuh"

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Places of the list that a block holds at once: of all that it computes, if they fit. Where half of a multiprocessor's
 * memory is enough, moe_down's blocks have a place beside moe_up's, and their weights are on their way before that one
 * ends. */
static inline int places_of(const struct dmoe_cut *c, const struct dmoe *a, int n_blocks, int queue_bytes, int pitch,
                            bool halves) {
    int64_t of_block = ((c->most_tiles + n_blocks - 1) / n_blocks + 1) * least(c->tile, c->piece),
            pairs = (int64_t)c->piece * a->top_k, half = (SHARED_HALF - queue_bytes) / pitch,
            all = (SHARED_MOST - queue_bytes) / pitch, wanted = least(of_block, pairs);
    return (int)least(least(wanted, MOST_PLACES), halves || wanted <= half ? half : all);
}

/* Bytes of a block's queues. */
template <class W, int OCTETS> static constexpr int queues_of() {
    using shape = stream_shape<W, OCTETS>;
    return shape::WARPS * expert_queue<W, true, shape::DEPTH>::BYTES;
}

template <class W> static stream_format stream_format_of() {
    return {W::COLUMNS * W::CHUNKS,
            queues_of<W, 1>(),
            queues_of<W, MOST_OCTETS>(),
            W::X_ASIDE,
            W::BLOCKS,
            W::NATURAL ? 0 : W::COLUMNS,
            W::WIDTH_OF,
            W::WIDE_TOKENS};
}

template <class W, bool UP> static void launch_tiles(const stream_call &c) {
    auto kernel = moe_tiles<W, UP>;
    const int n_bytes = SLOTS * tile_slot<W>::BYTES;
    allow_shared(kernel, n_bytes);
    launch_node(kernel, n_multiprocessors(), STREAM_WARPS * 32, n_bytes, c.l->stream, c.args);
}

/* Rows of W for moe_wide's copies: boxes of 64 bytes of 64 rows, one behind the other, or in wide_unit's order. False:
 * the driver refuses. */
template <class W, bool UP> static bool map_rows(CUtensorMap *map, const struct dweight &w) {
    cuuint64_t row = (cuuint64_t)w.in * W::BYTES, rows = (cuuint64_t)w.out;
    auto encode = [&](int rank, const cuuint64_t *size, const cuuint64_t *apart, const cuuint32_t *box) {
        return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, w.at, rank, size, apart, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    };
    if constexpr (!rows_turned<W>) {
        cuuint64_t size[2] = {row, rows};
        cuuint32_t box[2] = {WIDE_BOX, WIDE_BOX};
        return encode(2, size, &row, box);
    } else if constexpr (UP) {
        cuuint64_t size[5] = {row, rows / 16, 2, 2, 4}, apart[4] = {16 * row, 2 * row, row, 4 * row};
        cuuint32_t box[5] = {WIDE_BOX, 4, 2, 2, 4};
        return encode(5, size, apart, box);
    } else {
        cuuint64_t size[4] = {row, rows / 4, 4, 2}, apart[3] = {4 * row, row, 32 * row};
        cuuint32_t box[4] = {WIDE_BOX, 8, 4, 2};
        return encode(4, size, apart, box);
    }
}

template <class W, bool UP> static void launch_wide(const stream_call &c) {
    auto kernel = moe_wide<W, UP>;
    using ring = wide_ring<W, UP>;
    const int n_bytes = ring::N * ring::BYTES;
    CUtensorMap map = {};
    bool there = true;
    if constexpr (!W::IN_BLOCKS)
        there = map_rows<W, UP>(&map, c.w);
    allow_shared(kernel, n_bytes);
    // A map that the driver refuses shows as a launch of no blocks, which fails.
    launch_cluster(kernel, there ? n_multiprocessors() / WIDE_SHARERS * WIDE_SHARERS : 0, WIDE_SHARERS, WIDE_THREADS,
                   n_bytes, c.l->stream, map, c.args);
}

template <class W> static void launch_posted(const stream_call &c, int n_blocks, size_t shared) {
    auto kernel = moe_stream<W, true, 1, posted_shape<W>>;
    int n_warps = posted_shape<W>::WARPS;
    if constexpr (W::SPREADS) {
        int of_block = (c.a->top_k * c.args.n_row_tiles + n_blocks - 1) / n_blocks;
        bool fits = of_block <= spread_shape::WARPS && of_block * expert_queue<W, true, spread_shape::DEPTH>::BYTES <=
                                                           n_warps * expert_queue<W, true, W::DEPTH>::BYTES;
        if (of_block > n_warps && fits)
            kernel = moe_stream<W, true, 1, spread_shape>, n_warps = of_block;
    }
    allow_shared(kernel, SHARED_MOST + MOST_PLACES * (int)sizeof(int));
    launch_node(kernel, n_blocks, n_warps * 32, shared, c.l->stream, c.args);
}

/* In the mean, if all experts are alike. */
static inline int tokens_of_tile(const stream_call &c) {
    int64_t pairs = (int64_t)c.cut->piece * c.a->top_k, n_all = c.a->n_all > 0 ? c.a->n_all : c.a->n_experts;
    return (int)least(c.cut->tile, (pairs + n_all - 1) / n_all);
}

template <class W, bool UP, int OCTETS> static void launch_stream(stream_call c, int of_tile) {
    auto kernel = moe_stream<W, UP, OCTETS>;
    using shape = stream_shape<W, OCTETS>;
    int queues = queues_of<W, OCTETS>();
    c.args.x_pitch = stream_format_of<W>().x_pitch(c.w.in);
    int of_each = OCTETS == 1 && queues + of_tile * c.args.x_pitch <= SHARED_HALF ? W::BLOCKS : 1,
        blocks = of_each * n_multiprocessors(), wanted = (c.cut->most_tiles + MOST_OF_BLOCK - 3) / (MOST_OF_BLOCK - 2);
    int no_more = of_each == 1 ? SHARED_ALONE : SHARED_IN_PAIRS;
    c.args.x_tokens = places_of(c.cut, c.a, blocks, queues, c.args.x_pitch, of_each > 1);
    c.args.most_tiles = c.cut->most_tiles;
    c.args.change = c.args.x_tokens < 2 * tokens_of_tile(c) ? shape::WARPS : 0; // about a turn of its warps
    size_t shared = (size_t)queues + (size_t)c.args.x_tokens * (c.args.x_pitch + sizeof(int));
    if (UP && shared < (size_t)no_more) // or one multiprocessor may get more blocks than another
        shared = no_more;
    if constexpr (UP && OCTETS == 1)
        if (c.args.list.posted)
            return launch_posted<W>(c, blocks > wanted ? blocks : wanted, shared);
    allow_shared(kernel, SHARED_MOST + MOST_PLACES * (int)sizeof(int));
    launch_node(kernel, blocks > wanted ? blocks : wanted, shape::WARPS * 32, shared, c.l->stream, c.args);
}

template <class W, bool UP> static void launch_weights(stream_call c) {
    if (c.cut->is_wide)
        return launch_wide<W, UP>(c);
    if constexpr (!W::NATURAL)
        if (c.cut->is_tiled)
            return launch_tiles<W, UP>(c);
    int of_tile = c.cut->tile < c.cut->piece ? c.cut->tile : c.cut->piece;
    of_tile <= 8 ? launch_stream<W, UP, 1>(c, of_tile) : launch_stream<W, UP, MOST_OCTETS>(c, of_tile);
}

/* With as long queues as leave it a place beside a block of moe_up. */
template <class W, int DEPTH = W::DEPTH> static void launch_joined(const stream_call &c, down_join_args args) {
    auto kernel = moe_down_join<W, DEPTH>;
    args.down.x_pitch = stream_format_of<W>().x_pitch(c.w.in);
    int n_bytes = c.a->top_k * (expert_queue<W, false, DEPTH>::BYTES + args.down.x_pitch);
    constexpr bool may_be_shorter = !W::IN_BLOCKS && (DEPTH > LEAST_JOINED_DEPTH || (W::SPREADS && DEPTH > 2));
    if constexpr (may_be_shorter)
        if (n_bytes > SHARED_BESIDE && (DEPTH > LEAST_JOINED_DEPTH || c.w.in <= (DEPTH - 1) * W::CHUNKS * W::COLUMNS))
            return launch_joined<W, DEPTH - 1>(c, args);
    allow_shared(kernel, SHARED_MOST);
    launch_node(kernel, dim3(args.down.n_row_tiles, c.l->n_tokens), c.a->top_k * 32, n_bytes, c.l->stream, c.l->plan,
                args);
}
template <class W> static const expert_kernels *kernels_of() {
    static const expert_kernels k = {stream_format_of<W>(), launch_weights<W, true>, launch_weights<W, false>,
                                     launch_joined<W>};
    return &k;
}
