/* moe_list.cu - which tokens each expert multiplies: pairs of a token and an expert sorted by expert, and cut into
 * tiles. See moe_stream.h.
 *
 * One block. A pair's rank is how many of its expert's come before it: those of its warp are counted by shuffles, those
 * of earlier warps are in count[expert], which warps add to one after another. So the list is the same every time, and
 * no atomic is needed. Then offsets of experts and of their tiles are sums over the experts before. */
#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { MOST_THREADS = 1024, ROUTE_SHARED = 48 << 10 };

struct list_args {
    dmat ids;
    int first, n, top_k, n_experts, tile;
};

/* Of 32 experts, one a lane: how many lanes have the same, and how many of those are lower. */
static __device__ void look_at_warp(int expert, int &before, int &all) {
    int lane = threadIdx.x % 32;
    before = all = 0;
#pragma unroll 8
    for (int l = 0; l < 32; l++) {
        bool same = __shfl_sync(0xffffffffu, expert, l) == expert;
        all += same;
        before += same && l < lane;
    }
}

static __device__ int expert_of(const list_args &a, int pair) {
    return static_cast<const int32_t *>(a.ids.at)[(a.first + pair / a.top_k) * a.ids.stride + pair % a.top_k];
}

/* Ranks of all pairs; count [n_experts] is zero before, and then how many an expert has. */
static __device__ void rank_pairs(const list_args &a, const dmoe_list &list, int n_pairs, int *count) {
    int warp = threadIdx.x / 32;
    for (int base = 0; base < n_pairs; base += blockDim.x) {
        int i = base + threadIdx.x, n_warps = min((n_pairs - base + 31) / 32, (int)blockDim.x / 32);
        int expert = i < n_pairs ? expert_of(a, i) : -1, rank = 0, before, all;
        look_at_warp(expert, before, all);
        for (int w = 0; w < n_warps; w++) {
            if (w == warp) {
                rank = expert < 0 ? 0 : count[expert] + before;
                __syncwarp(); // all have read it
                if (expert >= 0 && before == 0)
                    count[expert] += all;
            }
            __syncthreads(); // the next warp reads it
        }
        if (i < n_pairs)
            list.rank[i] = rank;
    }
}

/* Of what each thread has: the sum over the threads before it, and over all of them. */
static __device__ int2 sum_before(int2 mine, int2 *shared, int2 &all) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    int2 sum = mine;
    for (int step = 1; step < 32; step *= 2) {
        int x = __shfl_up_sync(0xffffffffu, sum.x, step), y = __shfl_up_sync(0xffffffffu, sum.y, step);
        sum.x += lane >= step ? x : 0, sum.y += lane >= step ? y : 0;
    }
    if (lane == 31)
        shared[warp] = sum;
    __syncthreads(); // every warp's sum is there
    int2 of_warps = make_int2(0, 0);
    all = make_int2(0, 0);
    for (int w = 0; w < n_warps; w++) {
        of_warps.x += w < warp ? shared[w].x : 0, of_warps.y += w < warp ? shared[w].y : 0;
        all.x += shared[w].x, all.y += shared[w].y;
    }
    return make_int2(of_warps.x + sum.x - mine.x, of_warps.y + sum.y - mine.y);
}

/* count [n_experts] zero, sums [warps]: shared */
static __device__ void make_list(const list_args &a, const dmoe_list &list, int n_pairs, int *count, int2 *sums) {
    rank_pairs(a, list, n_pairs, count);
    int per_thread = (a.n_experts + blockDim.x - 1) / blockDim.x,
        begin = min((int)threadIdx.x * per_thread, a.n_experts), end = min(begin + per_thread, a.n_experts);
    int2 mine = make_int2(0, 0), all; // pairs, tiles
    for (int e = begin; e < end; e++)
        mine.x += count[e], mine.y += (count[e] + a.tile - 1) / a.tile;
    int2 at = sum_before(mine, sums, all);
    for (int e = begin; e < end; e++) {
        int n = count[e];
        for (int k = 0; k < n; k += a.tile)
            list.tiles[at.y++] = {e, at.x + k, min(a.tile, n - k)};
        count[e] = at.x; // from here on where its pairs begin
        at.x += n;
    }
    if (threadIdx.x == 0)
        *list.n_tiles = all.y;
    __syncthreads(); // all experts' beginnings are there
    for (int i = threadIdx.x; i < n_pairs; i += blockDim.x)
        list.pair[count[expert_of(a, i)] + list.rank[i]] = i;
}

static __global__ void __launch_bounds__(MOST_THREADS) moe_list(device_plan plan, list_args a, dmoe_list list) {
    let_next_start();
    extern __shared__ int count[];
    __shared__ int2 sums[MOST_THREADS / 32];
    for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x)
        count[e] = 0;
    wait_for_previous();
    __syncthreads(); // counts are zero
    make_list(a, list, max(min(step_tokens(plan) - a.first, a.n), 0) * a.top_k, count, sums);
}

/* MOE_ROUTE of a few tokens, a warp each by turns, and their list. */
static __global__ void __launch_bounds__(MOST_THREADS)
    moe_route_listed(device_plan plan, route_args route, list_args a, dmoe_list list) {
    let_next_start();
    extern __shared__ int count[];
    __shared__ int2 sums[MOST_THREADS / 32];
    float *memory = reinterpret_cast<float *>(count + a.n_experts) + threadIdx.x / 32 * route_floats(route.how);
    for (int e = threadIdx.x; e < a.n_experts; e += blockDim.x)
        count[e] = 0;
    wait_for_previous();
    int n_tokens = min(step_tokens(plan), a.n);
    for (int t = threadIdx.x / 32; t < n_tokens; t += blockDim.x / 32)
        route_token(route, t, memory);
    __syncthreads(); // all ids are there, and counts are zero
    make_list(a, list, n_tokens * a.top_k, count, sums);
}

static int threads_for(int n_pairs, int n_experts) {
    int most = n_pairs > n_experts ? n_pairs : n_experts, threads = (most + 31) / 32 * 32;
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

void launch_moe_list(const struct launch *l, const struct dmoe *a, int tile, int first, int n, struct dmat ids,
                     struct dmoe_list list) {
    list_args args = {ids, first, n, a->top_k, a->n_experts, tile};
    launch_node(moe_list, 1, threads_for(n * a->top_k, a->n_experts), a->n_experts * sizeof(int), l->stream, l->plan,
                args, list);
}

/* Warps whose logits have room: of one token at least. */
static int route_warps(const struct droute *a, int n_tokens) {
    int fits = ((ROUTE_SHARED / (int)sizeof(float)) - a->n_experts) / route_floats(*a);
    int warps = threads_for(n_tokens * a->top_k, a->n_experts) / 32;
    return fits < warps ? fits : warps;
}

bool moe_route_lists(const struct droute *a, int n_tokens) {
    return n_tokens <= MOE_LISTED_TOKENS && route_warps(a, n_tokens) > 0;
}

void launch_moe_route_listed(const struct launch *l, const struct droute *a, struct dmat logits, struct dweight bias,
                             struct dweight expert_scale, struct dmat ids, struct dmat weights, int tile,
                             struct dmoe_list list) {
    route_args route = {*a, logits, bias, expert_scale, ids, weights};
    list_args args = {ids, 0, l->n_tokens, a->top_k, a->n_experts, tile};
    int warps = route_warps(a, l->n_tokens);
    launch_node(moe_route_listed, 1, warps * 32,
                ((size_t)a->n_experts + (size_t)warps * route_floats(*a)) * sizeof(float), l->stream, l->plan, route,
                args, list);
}
