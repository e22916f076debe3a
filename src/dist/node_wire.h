/* node_wire.h - what the node with the engine says to one with a stage of its model, in frames of wire.h. Each but
 * NODE_HELLO and NODE_LEAVE is answered by one NODE_DONE, with what is said here, or one NODE_FAILED, with a sentence.
 * Before the answer to what node_takes_long says there may be any number of NODE_STILL. */
#pragma once

#include "core/plan.h"

enum {
    NODE_HELLO,       // the node: struct node_hello
    NODE_LOAD,        // struct node_load. Done: nothing
    NODE_BLOCK_BYTES, // struct node_block. Done: int64_t
    NODE_ALLOC_CACHE, // struct cache_config. Done: nothing
    NODE_COMPILE,     // struct bucket. Done: int32_t, the executable's number
    NODE_RUN, // int32_t of that and 4 bytes of nothing, then a plan (plan_block.h). Done: taps, [T, their widths]
    NODE_DONE,
    NODE_FAILED,
    NODE_LEAVE,      // nothing: node 0 ends, and so may this one
    NODE_STILL,      // nothing: the node works on it
    NODE_CACHE_ROOM, // struct node_room. Done: int64_t, bytes
    NODE_CHECK,      // nothing. Done: nothing
};

/* What may take as long as it takes, as long as the node says that it works on it. */
static inline bool node_takes_long(uint32_t kind) {
    return kind == NODE_LOAD || kind == NODE_CACHE_ROOM || kind == NODE_ALLOC_CACHE || kind == NODE_COMPILE;
}

struct node_hello {
    uint64_t identity; // of model and numerics
    int32_t rank, n_nodes;
};
struct node_load {
    int32_t n_back, reserved;
};
struct node_block {
    int32_t group, block_size;
};
/* As backend_ops.cache_room is asked. */
struct node_room {
    struct bucket bucket;
    int32_t n, block_size, table_width[MAX_CACHE_GROUPS];
    double share;
};
