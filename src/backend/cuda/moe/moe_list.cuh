/* moe_list.cuh - the list of experts and their tokens, by one block, of up to 32 tokens; moe_list.cu says how. */
#pragma once

#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { LISTED_WARPS = 16 };

struct list_args {
    int n_experts, tile;
    int n_shared;     // experts that all tokens have
    int first_expert; // n_experts from this one on are here, and in the list
    bool is_counted;  // in list.seen
    /* Of an id; -1: the expert is on another rank. */
    __device__ int here(int32_t id) const {
        int expert = id - first_expert;
        return (uint32_t)expert < (uint32_t)n_experts ? expert : -1;
    }
};

/* Whether each sequence of the step has one token. */
static __device__ bool decodes(const device_plan &plan) {
    return step_tokens(plan) > 0 && step_tokens(plan) == step_seqs(plan);
}

/* What a block keeps in shared memory. */
struct list_memory {
    int *begin;      // [n_experts], of an expert's pairs
    uint32_t *masks; // [n_experts], a bit for each token that has the expert: no token has one twice
    int *of_warps;   // [LISTED_WARPS]
    int *ids;        // [n_pairs]
    __device__ list_memory(const list_args &a, int *shared)
        : begin(shared), masks(reinterpret_cast<uint32_t *>(shared + a.n_experts)), of_warps(shared + 2 * a.n_experts),
          ids(of_warps + LISTED_WARPS) {}
    __device__ void clear(const list_args &a) const {
        for (int i = threadIdx.x; i < a.n_experts; i += blockDim.x)
            masks[i] = 0;
    }
};

static __device__ void count_experts(const list_args &a, const dmoe_list &list, int n_experts) {
    if (threadIdx.x != 0 || !a.is_counted)
        return;
    atomicAdd(&list.seen[0], 1ull);
    atomicAdd(&list.seen[1], (unsigned long long)(n_experts - a.n_shared));
}

/* An expert's n pairs from the place `first` of the list on, as its tiles from tile `at` on: as few as there may be, of
 * equal sizes. */
static __device__ void put_tiles(const list_args &a, const dmoe_list &list, int expert, int first, int n, int at) {
    int n_tiles = (n + a.tile - 1) / a.tile;
    for (int k = 0; k < n_tiles; k++) {
        int begin = n * k / n_tiles, end = n * (k + 1) / n_tiles;
        list.tiles[at + k] = {expert, first + begin, end - begin};
    }
}

/* Where an expert's pairs begin, and its tiles: both in one word, as there are fewer than 1 << 15 of either. n: its
 * pairs, by the thread that has its number. */
static __device__ void begin_experts(const list_args &a, const dmoe_list &list, int n, const list_memory &m) {
    int expert = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
        mine = n | (n + a.tile - 1) / a.tile << 16, sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        m.of_warps[warp] = sum;
    int n_seen = __syncthreads_count(n > 0); // sums of warps are there
    count_experts(a, list, n_seen);
    if (expert >= a.n_experts)
        return;
    int at = sum - mine;
    for (int w = 0; w < warp; w++)
        at += m.of_warps[w];
    m.begin[expert] = at & 0xffff;
    put_tiles(a, list, expert, at & 0xffff, n, at >> 16);
    if (expert == a.n_experts - 1)
        *list.n_tiles = at + mine >> 16;
}

/* By all threads of a block of LISTED_WARPS, at least one for each expert, behind a barrier after ids and clear. */
static __device__ void make_list(const list_args &a, const dmoe_list &list, int n_pairs, int top_k,
                                 const list_memory &m) {
    if (!list.tiles) { // of a token, whose pairs are as many experts
        int n = 0;
        for (int i = 0; threadIdx.x == 0 && i < n_pairs; i++)
            n += a.here(m.ids[i]) >= 0;
        count_experts(a, list, n);
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pairs; i += blockDim.x) {
        int expert = a.here(m.ids[i]);
        if (expert >= 0)
            atomicOr(m.masks + expert, 1u << i / top_k);
    }
    __syncthreads(); // masks are whole
    begin_experts(a, list, (int)threadIdx.x < a.n_experts ? __popc(m.masks[threadIdx.x]) : 0, m);
    __syncthreads(); // all experts' beginnings are there
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pairs; i += blockDim.x) {
        int expert = a.here(m.ids[i]);
        if (expert >= 0)
            list.pair[m.begin[expert] + __popc(m.masks[expert] & ((1u << i / top_k) - 1))] = i;
    }
}

// ---- host -----------------------------------------------------------------------------------------------------------

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int least(int a, int b) { return a < b ? a : b; }

static list_args args_of(const struct dmoe *a, int tile) {
    return {a->n_experts, tile, a->n_shared, a->first_expert, false};
}
static size_t list_bytes(const list_args &a, int n_pairs) {
    return (2 * a.n_experts + LISTED_WARPS + n_pairs) * sizeof(int);
}
