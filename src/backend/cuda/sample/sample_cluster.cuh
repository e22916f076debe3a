/* sample_cluster.cuh - of sample.cu: what the blocks of a row's cluster have in shared memory, and how they meet. */
#pragma once

#include "backend/cuda/ptx/bulk.cuh"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"
#include "core/sample_weight.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

#ifdef GYRE_RACECHECK
enum { THREADS = 256 }; // each barrier of a cluster of 512 threads costs racecheck 100 ms
#else
enum { THREADS = 512 };
#endif

enum {
    WARPS = THREADS / 32,
    EDGES = 8,
    BINS = 1024,       // of the range between two edges
    DIGITS = 256,      // of a cut by eight bits
    LIST = 256,        // candidates that the first block looks at one by one
    CHUNK = 8192,      // tokens whose history is counted at a time
    MOST_CLUSTER = 16, // more than 8 is not portable, but every Hopper has it
    PIECES = 4,        // that a slice is copied in
};

/* Range i of e reaches down to edge i; the last one to the end of the candidates. Deep edges are for rows that ask for
 * so many of the most probable, however improbable those are: the fiftieth is often beyond -11. Bins are powers of two
 * wide, so that an e is never on the wrong side of where one begins. */
static __device__ __forceinline__ float edge_of(bool deep, int i) {
    return i == 0   ? -1.0f
           : i == 1 ? -2.0f
           : i == 2 ? (deep ? -4.0f : -3.0f)
           : i == 3 ? (deep ? -7.0f : -4.0f)
           : i == 4 ? (deep ? -11.0f : -6.0f)
           : i == 5 ? (deep ? -15.0f : -8.0f)
           : i == 6 ? (deep ? -20.0f : -11.0f)
                    : -INFINITY;
}
static __device__ float bins_a_unit(bool deep, int range) { // BINS in the range at most
    if (deep)
        return range < 2 ? 1024.0f : range == 2 ? 512.0f : range < 6 ? 256.0f : range == 6 ? 128.0f : 64.0f;
    return range < 4 ? 1024.0f : range < 6 ? 512.0f : range == 6 ? 256.0f : 32.0f;
}

struct best {
    float logit;
    int id;
};

/* How many candidates are at each edge or above, and what they weigh. */
struct reached {
    uint32_t count[EDGES];
    unsigned long long mass[EDGES];
};

/* What is looked at: candidates of a range, of a bin of it unless that is -1, whose leading bits are `prefix`. */
struct pick {
    float low, high; // low <= e < high
    int range, bin, n;
    int shift; // of the bits that are not told apart; 64: all
    unsigned long long prefix, count_before, mass_before;
};

struct bins {
    uint32_t count[BINS], low[BINS], high[BINS]; // mass in two halves: shared memory adds 32 bits at a time
};

struct listed {
    unsigned long long place, weight;
};

/* Of the first block: the sums of all blocks' bins, then what stands before each; and candidates, with what stands
 * before them. */
struct joined {
    uint32_t count[BINS + 1];
    unsigned long long mass[BINS + 1];
    listed list[LIST];
    unsigned long long mass_before[LIST];
    uint32_t count_before[LIST];
};

struct cluster_shared {
    drow asked;
    uint64_t copied[PIECES];     // barriers
    best bests[2][MOST_CLUSTER]; // of every block; of the raw and of the changed row
    int bad[MOST_CLUSTER];
    reached of_blocks[2][MOST_CLUSTER]; // likewise
    reached all_reached;
    unsigned long long next[2][MOST_CLUSTER]; // the best not taken yet, by turns
    pick at;
    // of the first block
    unsigned long long mass_through; // up to the place found last, it included
    int found_id, n_list, above;     // above: the target
    // of a block
    int row, base;     // the cluster's row; the first of the next 32 that it looks at
    uint32_t left;     // of the last 32, those that it has still to do
    uint32_t n_copied; // rows that bulk copies brought
    best warp_bests[WARPS];
    reached of_warps[WARPS];
    unsigned long long warp_sums[WARPS];
    uint32_t warp_counts[WARPS];
    int any_bad;
    union {
        struct {
            bins own;
            joined all;
        };
        uint32_t marks[CHUNK]; // of tokens of the slice: how often generated, and whether seen or allowed
    };
};
enum { SHARED_BYTES = (sizeof(cluster_shared) + 127) / 128 * 128 };
enum : uint32_t { SEEN = 1u << 31, ALLOWED = 1u << 30, COUNT = ALLOWED - 1 };

/* What a thread knows of its row. */
struct row_view {
    const device_plan &plan;
    cluster_shared &s;
    float *x;          // the slice, in shared memory; before Hopper in global memory
    int r, first, n;   // row; the slice's first token and how many
    int rank, n_ranks; // of the block in its cluster
    const float *raw;  // the row in global memory
};

static __device__ best better(best a, best b) {
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

static __device__ best warp_best(best x) {
    for (int step = 16; step > 0; step /= 2)
        x = better(x, best{__shfl_xor_sync(0xffffffffu, x.logit, step), __shfl_xor_sync(0xffffffffu, x.id, step)});
    return x;
}

/* The blocks of a row. Before Hopper there is one: its barriers are the block's. */
static __device__ cluster_shared &of_rank(const row_view &v, int rank) {
#if GYRE_HOPPER
    return *cg::this_cluster().map_shared_rank(&v.s, rank);
#else
    return v.s;
#endif
}
static __device__ void row_sync() {
#if GYRE_HOPPER
    cg::this_cluster().sync();
#else
    __syncthreads();
#endif
}
static __device__ void row_arrive() {
#if GYRE_HOPPER
    cg::this_cluster().barrier_arrive();
#endif
}
static __device__ void row_wait() {
#if GYRE_HOPPER
    cg::this_cluster().barrier_wait();
#endif
}
static __device__ int row_blocks() {
#if GYRE_HOPPER
    return (int)cg::this_cluster().num_blocks();
#else
    return 1;
#endif
}
static __device__ int row_rank() {
#if GYRE_HOPPER
    return (int)cg::this_cluster().block_rank();
#else
    return 0;
#endif
}
