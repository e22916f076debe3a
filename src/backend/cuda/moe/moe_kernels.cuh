/* moe_kernels.cuh - how the kernels of a format W are launched; see moe_kernels.h. */
#pragma once

#include "backend/cuda/moe/moe_group.cuh"
#include "backend/cuda/moe/moe_kernels.h"
#include "backend/cuda/moe/moe_tiles.cuh"
#include "backend/cuda/moe/moe_wide.cuh"
#include "backend/cuda/ptx/card.cuh"

#include <cudaTypedefs.h>

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

template <class W> static int group_octet_of(int64_t in) {
    if constexpr (W::IN_BLOCKS)
        return group_panels<W>((int)in) * GROUP_ROWS;
    return 0;
}
template <class W> static constexpr int group_queues_of() {
    if constexpr (W::IN_BLOCKS)
        return GROUP_WARPS * group_queue<W, true>::BYTES;
    return 0;
}

template <class W> static stream_format stream_format_of() {
    return {
        W::COLUMNS * W::CHUNKS,      queues_of<W, 1>(), queues_of<W, MOST_OCTETS>(), W::X_ASIDE,        W::BLOCKS,
        W::NATURAL ? 0 : W::COLUMNS, W::WIDTH_OF,       group_queues_of<W>(),        group_octet_of<W>, W::WIDE_TOKENS};
}

template <class W, bool UP> static void launch_tiles(const stream_call &c) {
    auto kernel = moe_tiles<W, UP>;
    const int n_bytes = SLOTS * tile_slot<W>::BYTES;
    allow_shared(kernel, n_bytes);
    launch_node(kernel, n_multiprocessors(), STREAM_WARPS * 32, n_bytes, c.l->stream, c.args);
}

/* Rows of W for moe_wide's copies: boxes of 64 bytes of 64 rows, one behind the other. False: the driver refuses. */
static inline bool map_rows(CUtensorMap *map, const struct dweight &w, int bytes) {
    static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult result;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
        return result == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)found : nullptr;
    }();
    cuuint64_t row = (cuuint64_t)w.in * bytes, size[2] = {row, (cuuint64_t)w.out};
    cuuint32_t box[2] = {WIDE_BOX, WIDE_BOX}, ones[2] = {1, 1};
    return encode_tiled &&
           encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(w.at), size, &row, box, ones,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class W, bool UP> static void launch_wide(const stream_call &c) {
    auto kernel = moe_wide<W, UP>;
    using ring = wide_ring<W, UP>;
    const int n_bytes = ring::N * ring::BYTES;
    CUtensorMap map = {};
    bool there = true;
    if constexpr (!W::IN_BLOCKS)
        there = map_rows(&map, c.w, W::BYTES);
    allow_shared(kernel, n_bytes);
    // A map that the driver refuses shows as a launch of no blocks, which fails.
    launch_cluster(kernel, there ? n_multiprocessors() / WIDE_SHARERS * WIDE_SHARERS : 0, WIDE_SHARERS, WIDE_THREADS,
                   n_bytes, c.l->stream, map, c.args);
}

template <class W, bool UP, int OCTETS> static void launch_stream(stream_call c, int of_tile) {
    auto kernel = moe_stream<W, UP, OCTETS>;
    constexpr int QUEUES = queues_of<W, OCTETS>();
    c.args.x_pitch = stream_format_of<W>().x_pitch(c.w.in);
    int of_each = OCTETS == 1 && QUEUES + of_tile * c.args.x_pitch <= SHARED_HALF ? W::BLOCKS : 1,
        blocks = of_each * n_multiprocessors(), wanted = (c.cut->most_tiles + MOST_OF_BLOCK - 3) / (MOST_OF_BLOCK - 2);
    c.args.x_tokens = places_of(c.cut, c.a, blocks, QUEUES, c.args.x_pitch, of_each > 1);
    c.args.most_tiles = c.cut->most_tiles;
    size_t shared = (size_t)QUEUES + (size_t)c.args.x_tokens * (c.args.x_pitch + sizeof(int)),
           no_more = of_each == 1 ? SHARED_ALONE : SHARED_IN_PAIRS;
    if (UP && shared < no_more) // or one multiprocessor may get more blocks than another
        shared = no_more;
    allow_shared(kernel, SHARED_MOST + MOST_PLACES * (int)sizeof(int));
    launch_node(kernel, blocks > wanted ? blocks : wanted, stream_shape<W, OCTETS>::WARPS * 32, shared, c.l->stream,
                c.args);
}

template <class W, bool UP, int OCTETS> static void launch_group(stream_call c) {
    auto kernel = moe_group<W, UP, OCTETS>;
    int of_octet = group_octet_of<W>(c.w.in), queues = group_queues_of<W>(),
        wanted = (c.cut->most_tiles + MOST_OF_BLOCK - 3) / (MOST_OF_BLOCK - 2),
        octets = (GROUP_SHARED - queues) / of_octet;
    c.args.x_tokens = 8 * (octets < MOST_PLACES / 8 ? octets : MOST_PLACES / 8);
    c.args.most_tiles = c.cut->most_tiles;
    allow_shared(kernel, GROUP_SHARED);
    launch_node(kernel, wanted > n_multiprocessors() ? wanted : n_multiprocessors(), GROUP_WARPS * 32,
                c.args.x_tokens / 8 * of_octet + queues, c.l->stream, c.args);
}

template <class W, bool UP> static void launch_weights(stream_call c) {
    if constexpr (W::IN_BLOCKS)
        if (c.cut->is_grouped)
            switch (c.cut->tile / 8) {
            case 1: return launch_group<W, UP, 1>(c);
            case 2: return launch_group<W, UP, 2>(c);
            default: return launch_group<W, UP, GROUP_OCTETS>(c);
            }
    if (c.cut->is_wide)
        return launch_wide<W, UP>(c);
    if constexpr (!W::NATURAL)
        if (c.cut->is_tiled)
            return launch_tiles<W, UP>(c);
    int of_tile = c.cut->tile < c.cut->piece ? c.cut->tile : c.cut->piece;
    of_tile <= 8 ? launch_stream<W, UP, 1>(c, of_tile) : launch_stream<W, UP, MOST_OCTETS>(c, of_tile);
}

template <class W, int OCTETS> static void launch_down_group(const stream_call &c, down_join_args args) {
    auto kernel = moe_down_group<W, OCTETS>;
    int warps = (c.a->top_k + GROUP_OF - 1) / GROUP_OF * GROUP_OF,
        n_bytes = OCTETS * group_octet_of<W>(c.w.in) + warps * block_queue<W, false, W::DEPTH>::BYTES;
    allow_shared(kernel, GROUP_SHARED);
    launch_node(kernel, dim3(args.down.n_row_tiles, c.l->n_tokens), warps * 32, n_bytes, c.l->stream, c.l->plan, args);
}

/* With as long queues as leave it a place beside a block of moe_up. */
template <class W, int DEPTH = W::DEPTH> static void launch_joined(const stream_call &c, down_join_args args) {
    if constexpr (W::IN_BLOCKS)
        if (c.cut->is_grouped)
            return c.a->top_k <= 8 ? launch_down_group<W, 1>(c, args) : launch_down_group<W, 2>(c, args);
    auto kernel = moe_down_join<W, DEPTH>;
    args.down.x_pitch = stream_format_of<W>().x_pitch(c.w.in);
    int n_bytes = c.a->top_k * (expert_queue<W, false, DEPTH>::BYTES + args.down.x_pitch);
    if constexpr (!W::IN_BLOCKS && DEPTH > LEAST_JOINED_DEPTH)
        if (n_bytes > SHARED_BESIDE)
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
