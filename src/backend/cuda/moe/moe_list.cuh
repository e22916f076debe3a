/* moe_list.cuh - the list of experts and their tokens, by one block; moe_list.cu says how. */
#pragma once

#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { MOST_THREADS = 1024, COUNTS_SHARED = 32 << 10 };

struct list_args {
    int n_experts, tile, n_counters; // n_counters: warps that count
    int n_shared;                    // experts that all tokens have
    int first_expert;                // n_experts from this one on are here, and in the list
    bool is_counted;                 // in list.seen
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

/* Of 32 experts, one a lane: how many lanes have the same, and how many of those are lower. */
static __device__ void look_at_warp(int expert, int &before, int &all) {
    uint32_t same = __match_any_sync(0xffffffffu, expert);
    all = __popc(same);
    before = __popc(same & ((1u << threadIdx.x % 32) - 1));
}

/* A warp's pairs: n_counters warps have as many each, in whole 32. */
struct run {
    int begin, end;
    __device__ run(const list_args &a, int n_pairs) {
        int warp = threadIdx.x / 32, length = ((n_pairs + 31) / 32 + a.n_counters - 1) / a.n_counters * 32;
        begin = warp < a.n_counters ? min(warp * length, n_pairs) : n_pairs;
        end = min(begin + length, n_pairs);
    }
};

enum { AT_ONCE = 8 }; // ids of a lane that are on their way together

/* Counts of the warp's pairs; a pair's rank among those of the warp. */
template <class F>
static __device__ void count_pairs(const list_args &a, const dmoe_list &list, int n_pairs, F expert_of,
                                   uint16_t *counts) {
    uint16_t *mine = counts + threadIdx.x / 32 * a.n_experts;
    const run pairs(a, n_pairs);
    for (int base = pairs.begin + threadIdx.x % 32; base - threadIdx.x % 32 < pairs.end; base += 32 * AT_ONCE) {
        int experts[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            experts[k] = base + 32 * k < pairs.end ? expert_of(base + 32 * k) : -1;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            int i = base + 32 * k, expert = experts[k], before, all, rank = 0;
            look_at_warp(expert, before, all);
            if (expert >= 0)
                rank = mine[expert] + before;
            __syncwarp(); // all have read it
            if (expert >= 0 && before == 0)
                mine[expert] += all;
            __syncwarp(); // it is there for the next
            if (i < pairs.end)
                list.rank[i] = rank;
        }
    }
}

/* Counts of warps become those of the warps before; returns the expert's. */
static __device__ int sum_over_warps(const list_args &a, uint16_t *counts, int expert) {
    int sum = 0;
#pragma unroll 4
    for (int w = 0; w < a.n_counters; w++) {
        int n = counts[w * a.n_experts + expert];
        counts[w * a.n_experts + expert] = (uint16_t)sum;
        sum += n;
    }
    return sum;
}

static __device__ int3 sum_of(int3 a, int3 b) { return make_int3(a.x + b.x, a.y + b.y, a.z + b.z); }

/* Of what each thread has: the sum over the threads before it, and over all of them. */
static __device__ int3 sum_before(int3 mine, int3 *shared, int3 &all) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    int3 sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        int3 other = make_int3(__shfl_up_sync(0xffffffffu, sum.x, step), __shfl_up_sync(0xffffffffu, sum.y, step),
                               __shfl_up_sync(0xffffffffu, sum.z, step));
        sum = lane >= step ? sum_of(sum, other) : sum;
    }
    if (lane == 31)
        shared[warp] = sum;
    __syncthreads(); // every warp's sum is there
    int3 before = make_int3(sum.x - mine.x, sum.y - mine.y, sum.z - mine.z);
    all = make_int3(0, 0, 0);
    for (int w = 0; w < n_warps; w++) {
        before = w < warp ? sum_of(before, shared[w]) : before;
        all = sum_of(all, shared[w]);
    }
    return before;
}

/* What a block keeps in shared memory: counts [n_counters][n_experts], begin [n_experts] of an expert's pairs. */
struct list_memory {
    int *begin;
    uint16_t *counts;
    __device__ list_memory(const list_args &a, int *shared)
        : begin(shared), counts(reinterpret_cast<uint16_t *>(shared + a.n_experts)) {}
    __device__ void clear(const list_args &a) const {
        for (int i = threadIdx.x; i < a.n_counters * a.n_experts; i += blockDim.x)
            counts[i] = 0;
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

/* all: pairs, tiles and experts of the list. */
static __device__ void end_list(const list_args &a, const dmoe_list &list, int3 all) {
    if (threadIdx.x == 0)
        *list.n_tiles = all.y;
    count_experts(a, list, all.z);
}

/* Pairs of a block to their places; those of the list begin at `from`. */
template <class F>
static __device__ void put_pairs(const list_args &a, const dmoe_list &list, int n_pairs, int from, F expert_of,
                                 const list_memory &m) {
    const uint16_t *of_warps_before = m.counts + threadIdx.x / 32 * a.n_experts;
    const run pairs(a, n_pairs);
    for (int base = pairs.begin + threadIdx.x % 32; base < pairs.end; base += 32 * AT_ONCE) {
        int experts[AT_ONCE], ranks[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            bool there = base + 32 * k < pairs.end;
            experts[k] = there ? expert_of(base + 32 * k) : -1, ranks[k] = there ? list.rank[base + 32 * k] : 0;
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (experts[k] >= 0)
                list.pair[m.begin[experts[k]] + of_warps_before[experts[k]] + ranks[k]] = from + base + 32 * k;
    }
}

/* By all threads, behind a barrier after clear; sums [warps], shared. expert_of: of a pair, as list_args.here. */
template <class F>
static __device__ void make_list(const list_args &a, const dmoe_list &list, int n_pairs, F expert_of,
                                 const list_memory &m, int3 *sums) {
    if (!list.tiles) { // of a token, whose pairs are as many experts
        if (threadIdx.x != 0 || !a.is_counted)
            return;
        int n = 0;
        for (int i = 0; i < n_pairs; i++)
            n += expert_of(i) >= 0;
        count_experts(a, list, n);
        return;
    }
    count_pairs(a, list, n_pairs, expert_of, m.counts);
    __syncthreads(); // all warps' counts are there
    int per_thread = (a.n_experts + blockDim.x - 1) / blockDim.x,
        begin = min((int)threadIdx.x * per_thread, a.n_experts), end = min(begin + per_thread, a.n_experts);
    int3 mine = make_int3(0, 0, 0), all; // pairs, tiles, experts
    for (int e = begin; e < end; e++) {
        int n = m.begin[e] = sum_over_warps(a, m.counts, e);
        mine.x += n, mine.y += (n + a.tile - 1) / a.tile, mine.z += n > 0;
    }
    int3 at = sum_before(mine, sums, all);
    for (int e = begin; e < end; e++) {
        int n = m.begin[e];
        put_tiles(a, list, e, at.x, n, at.y);
        m.begin[e] = at.x;
        at.x += n, at.y += (n + a.tile - 1) / a.tile;
    }
    end_list(a, list, all);
    __syncthreads(); // all experts' beginnings are there
    put_pairs(a, list, n_pairs, 0, expert_of, m);
}

// ---- host -----------------------------------------------------------------------------------------------------------

static int up_to(int n, int of) { return (n + of - 1) / of; }
static int least(int a, int b) { return a < b ? a : b; }

static list_args args_of(const struct dmoe *a, int n_tokens, int tile) {
    int fit = COUNTS_SHARED / (a->n_experts * (int)sizeof(uint16_t)),
        most = least(MOST_THREADS / 32, up_to(n_tokens * a->top_k, 32));
    return {a->n_experts, tile, fit < 1 ? 1 : least(fit, most), a->n_shared, a->first_expert, false};
}
static size_t list_bytes(const list_args &a) {
    return a.n_experts * sizeof(int) + (size_t)(a.n_counters * a.n_experts + 1) / 2 * 2 * sizeof(uint16_t);
}
static int threads_for(int n_pairs, int n_experts) {
    return least(up_to(n_pairs > n_experts ? n_pairs : n_experts, 32) * 32, MOST_THREADS);
}
