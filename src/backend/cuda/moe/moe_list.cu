/* moe_list.cu - which tokens each expert multiplies: pairs of a token and an expert sorted by expert, and cut into
 * tiles. See moe_stream.h.
 *
 * One block. Each of its warps has a run of pairs, and counts how many of an expert it has; sums over the warps before
 * tell where a warp's pairs of an expert begin among the expert's, sums over the experts before where those begin. So
 * the list is the same every time, and no atomic is needed. Of more than MANY_PAIRS see moe_list_parts.cuh. */
#include "backend/cuda/moe/moe_list.cuh"
#include "backend/cuda/moe/moe_list_parts.cuh"
#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/moe/moe_route_shared.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { SHARED = 44 << 10, MANY_PAIRS = 256 };

static __global__ void __launch_bounds__(MOST_THREADS)
    moe_list(device_plan plan, list_args a, dmat ids, int first, int n, int top_k, dmoe_list list) {
    let_next_start();
    extern __shared__ int shared[];
    __shared__ int3 sums[MOST_THREADS / 32];
    const list_memory memory(a, shared);
    memory.clear(a);
    wait_for_previous();
    __syncthreads(); // counts are zero
    auto expert_of = [&](int pair) {
        return a.here(static_cast<const int32_t *>(ids.at)[(first + pair / top_k) * ids.stride + pair % top_k]);
    };
    a.is_counted = first == 0 && decodes(plan);
    make_list(a, list, max(min(step_tokens(plan) - first, n), 0) * top_k, expert_of, memory, sums);
}

/* MOE_ROUTE of a few tokens, a warp each, and their list. */
static __global__ void __launch_bounds__(MOST_THREADS)
    moe_route_listed(device_plan plan, route_args route, list_args a, int n, dmoe_list list) {
    let_next_start();
    extern __shared__ int shared[];
    __shared__ int3 sums[MOST_THREADS / 32];
    __shared__ int ids[MOE_LISTED_TOKENS * MOE_LISTED_TOP_K];
    const list_memory memory(a, shared);
    float *scores = reinterpret_cast<float *>(memory.counts + (a.n_counters * a.n_experts + 1) / 2 * 2) +
                    threadIdx.x / 32 * route_floats(route.how);
    memory.clear(a);
    wait_for_previous();
    int n_tokens = min(step_tokens(plan), n), slots = route_slots(route.how);
    for (int t = threadIdx.x / 32; t < n_tokens; t += blockDim.x / 32) {
        route_token(route, t, scores, ids + t * slots);
        route_shared(route, t);
    }
    __syncthreads(); // all ids are there, and counts are zero
    a.is_counted = decodes(plan);
    make_list(
        a, list, n_tokens * slots, [&](int pair) { return a.here(ids[pair]); }, memory, sums);
}

// ---- the launchers --------------------------------------------------------------------------------------------------

void launch_moe_list(const struct launch *l, const struct dmoe *a, int tile, int first, int n, struct dmat ids,
                     struct dmoe_list list) {
    list_args args = args_of(a, n, tile);
    if (n * a->top_k > MANY_PAIRS)
        return launch_parts(l, {args, ids, first, n, a->top_k}, list);
    launch_node(moe_list, 1, threads_for(n * a->top_k, a->n_experts), list_bytes(args), l->stream, l->plan, args, ids,
                first, n, a->top_k, list);
}

/* As many warps as the list wants, or tokens, if their scores have room. */
static int route_warps(const struct droute *a, const list_args &args, int n_tokens) {
    int lanes = n_tokens * (route_slots(*a) > 32 ? route_slots(*a) : 32),
        warps = threads_for(lanes, args.n_experts) / 32, floats = route_floats(*a);
    return floats == 0 ? warps : least(warps, (SHARED - (int)list_bytes(args)) / (floats * (int)sizeof(float)));
}

bool moe_route_lists(const struct droute *a, const struct dmoe *experts, int n_tokens) {
    list_args args = args_of(experts, n_tokens, 1);
    return n_tokens <= MOE_LISTED_TOKENS && route_slots(*a) <= MOE_LISTED_TOP_K &&
           route_warps(a, args, n_tokens) >= args.n_counters;
}

void launch_moe_route_listed(const struct launch *l, const struct droute *a, const struct dmoe *experts,
                             struct dmat logits, struct dweight bias, struct dweight expert_scale, struct dmat ids,
                             struct dmat weights, int tile, struct dmoe_list list) {
    route_args route = {*a, logits, bias, expert_scale, ids, weights};
    list_args args = args_of(experts, l->n_tokens, tile);
    int warps = route_warps(a, args, l->n_tokens);
    size_t shared = list_bytes(args) + (size_t)warps * route_floats(*a) * sizeof(float);
    launch_node(moe_route_listed, 1, warps * 32, shared, l->stream, l->plan, route, args, l->n_tokens, list);
}
