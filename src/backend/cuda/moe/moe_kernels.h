/* moe_kernels.h - moe_kernels_*.cu: the kernels of each format of experts' weights, a table for moe_stream.cu. C++. */
#pragma once

#include "backend/cuda/moe/moe_down_join.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/value.h"

/* With SHARED_ALONE a multiprocessor has no room for two blocks of moe_up, but for one of moe_down beside it; with
 * SHARED_IN_PAIRS none for three. */
enum {
    SHARED_MOST = 222 << 10,
    SHARED_HALF = 110 << 10,
    SHARED_ALONE = 114432,
    SHARED_BESIDE = 112 << 10, // of moe_down_join beside that
    LEAST_JOINED_DEPTH = 4,    // of a queue that does not hold all of a row
    SHARED_IN_PAIRS = 75520,
    TILE_TOKENS = 64
};

/* What launchers ask of a format. */
struct stream_format {
    int columns, queue_bytes, many_queue_bytes, x_aside, blocks; // columns: of a step; bytes: of a block's queues
    int order;       // columns of a chunk whose tokens moe_order puts in order; 0: nobody does
    int width_of;    // what columns are a multiple of
    int wide_tokens; // of a tile of moe_wide.cuh, at the most
    int x_pitch(int64_t in) const { return (int)((in + columns - 1) / columns * columns * 2 + x_aside); }
};

/* A launch of moe_up or moe_down, by which of the kernels the cut says. */
struct stream_call {
    const struct launch *l;
    const struct dmoe *a;
    const struct dmoe_cut *cut;
    stream_args args;
    struct dweight w;
};

struct expert_kernels {
    stream_format format;
    void (*up)(stream_call), (*down)(stream_call);
    void (*joined)(const stream_call &, down_join_args);
};

/* NULL: the weights have no kernels. */
const expert_kernels *expert_kernels_f16(const struct dweight &w);
const expert_kernels *expert_kernels_bf16(const struct dweight &w);
const expert_kernels *expert_kernels_quads(const struct dweight &w); // of float16
