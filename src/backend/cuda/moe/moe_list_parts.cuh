/* moe_list_parts.cuh - the list of many pairs, by a block for every 512 of them, in two nodes:
 *
 *     count    how many of each expert's a part has, into list.rank: [part][expert], two to a word
 *     place    where a part's pairs go: behind those of experts before, of parts before, of warps before, of lanes
 *              before. Every block sums over the parts for itself; the first one cuts tiles
 *
 * The order is that of the pairs, whatever runs when. */
#pragma once

#include "backend/cuda/moe/moe_list.cuh"

enum { PART_PAIRS = 512, PART_WARPS = PART_PAIRS / 32, PARTS_SHARED = 180 << 10 }; // of 4,096 experts

struct parts_args {
    list_args list;
    dmat ids;
    int first, n, top_k; // tokens
    __device__ int n_pairs(const device_plan &plan) const { return max(min(step_tokens(plan) - first, n), 0) * top_k; }
    __device__ int expert_of(int pair) const {
        return list.here(static_cast<const int32_t *>(ids.at)[(first + pair / top_k) * ids.stride + pair % top_k]);
    }
};

static __host__ __device__ int part_words(int n_experts) { return (n_experts + 1) / 2; }

/* Of 32 experts, one a lane: how many lanes have the same, and how many of those are lower. */
static __device__ void look_at_warp(int expert, int &before, int &all) {
    uint32_t same = __match_any_sync(0xffffffffu, expert);
    all = __popc(same);
    before = __popc(same & ((1u << threadIdx.x % 32) - 1));
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

/* all: pairs, tiles and experts of the list. */
static __device__ void end_list(const list_args &a, const dmoe_list &list, int3 all) {
    if (threadIdx.x == 0)
        *list.n_tiles = all.y;
    count_experts(a, list, all.z);
}

static __global__ void __launch_bounds__(PART_PAIRS)
    moe_list_count(device_plan plan, const __grid_constant__ parts_args a, dmoe_list list) {
    let_next_start();
    extern __shared__ int counts[];
    int words = part_words(a.list.n_experts);
    for (int i = threadIdx.x; i < 2 * words; i += PART_PAIRS)
        counts[i] = 0;
    wait_for_previous();
    __syncthreads(); // counts are zero
    int pair = blockIdx.x * PART_PAIRS + threadIdx.x, expert = pair < a.n_pairs(plan) ? a.expert_of(pair) : -1;
    if (expert >= 0)
        atomicAdd(counts + expert, 1);
    __syncthreads(); // all are counted
    for (int i = threadIdx.x; i < words; i += PART_PAIRS)
        list.rank[blockIdx.x * words + i] = counts[2 * i] | counts[2 * i + 1] << 16;
}

/* Of each expert, how many pairs there are, and in the parts before this one. Both are zero. */
static __device__ void sum_over_parts(const dmoe_list &list, int words, int *all, int *before) {
    int n_slices = max(PART_PAIRS / words, 1), n_parts = gridDim.x;
    for (int i = threadIdx.x; i < words * n_slices; i += PART_PAIRS) {
        int word = i % words, low = 0, high = 0, low_before = 0, high_before = 0;
#pragma unroll 8
        for (int part = i / words; part < n_parts; part += n_slices) {
            int two = list.rank[part * words + word], of_low = two & 0xffff, of_high = two >> 16;
            low += of_low, high += of_high;
            if (part < blockIdx.x)
                low_before += of_low, high_before += of_high;
        }
        atomicAdd(all + 2 * word, low), atomicAdd(all + 2 * word + 1, high);
        atomicAdd(before + 2 * word, low_before), atomicAdd(before + 2 * word + 1, high_before);
    }
}

/* all: becomes where an expert's pairs begin. Behind a barrier. */
static __device__ void put_experts(const list_args &a, const dmoe_list &list, int *all) {
    __shared__ int3 sums[PART_WARPS];
    int per_thread = (a.n_experts + PART_PAIRS - 1) / PART_PAIRS,
        begin = min((int)threadIdx.x * per_thread, a.n_experts), end = min(begin + per_thread, a.n_experts);
    int3 mine = make_int3(0, 0, 0), total; // pairs, tiles, experts
    for (int e = begin; e < end; e++)
        mine.x += all[e], mine.y += (all[e] + a.tile - 1) / a.tile, mine.z += all[e] > 0;
    int3 at = sum_before(mine, sums, total);
    for (int e = begin; e < end; e++) {
        int n = all[e];
        if (blockIdx.x == 0 && list.tiles) // of one token nobody reads them, and there are none
            put_tiles(a, list, e, at.x, n, at.y);
        all[e] = at.x;
        at.x += n, at.y += (n + a.tile - 1) / a.tile;
    }
    if (blockIdx.x == 0)
        end_list(a, list, total);
}

static __global__ void __launch_bounds__(PART_PAIRS) moe_list_place(device_plan plan, parts_args a, dmoe_list list) {
    let_next_start();
    extern __shared__ int shared[];
    int words = part_words(a.list.n_experts), *all = shared, *before = all + 2 * words, warp = threadIdx.x / 32;
    uint16_t *of_warps = reinterpret_cast<uint16_t *>(before + 2 * words); // [warp][expert]
    for (int i = threadIdx.x; i < words * (4 + PART_WARPS); i += PART_PAIRS)
        shared[i] = 0;
    wait_for_previous();
    __syncthreads(); // all is zero
    int pair = blockIdx.x * PART_PAIRS + threadIdx.x, expert = pair < a.n_pairs(plan) ? a.expert_of(pair) : -1, rank, n;
    look_at_warp(expert, rank, n);
    if (expert >= 0 && rank == 0)
        of_warps[warp * 2 * words + expert] = (uint16_t)n;
    sum_over_parts(list, words, all, before);
    __syncthreads(); // all sums are there
    a.list.is_counted = a.first == 0 && decodes(plan);
    put_experts(a.list, list, all);
    __syncthreads(); // all experts' beginnings are there
    if (expert < 0)
        return;
    int place = all[expert] + before[expert] + rank;
#pragma unroll
    for (int w = 0; w < PART_WARPS; w++)
        place += w < warp ? of_warps[w * 2 * words + expert] : 0;
    list.pair[place] = pair;
}

// ---- host -----------------------------------------------------------------------------------------------------------

static void launch_parts(const struct launch *l, const parts_args &a, struct dmoe_list list) {
    int n_parts = up_to(a.n * a.top_k, PART_PAIRS), words = part_words(a.list.n_experts);
    allow_shared(moe_list_count, PARTS_SHARED);
    allow_shared(moe_list_place, PARTS_SHARED);
    launch_node(moe_list_count, n_parts, PART_PAIRS, 2 * words * sizeof(int), l->stream, l->plan, a, list);
    launch_node(moe_list_place, n_parts, PART_PAIRS, words * (4 + PART_WARPS) * sizeof(int), l->stream, l->plan, a,
                list);
}
