/* moe_list.cu - which tokens each expert multiplies: pairs of a token and an expert sorted by expert, and cut into
 * tiles. See moe_stream.h.
 *
 * Of up to 32 tokens the block that routes them makes the list. An expert's tokens are bits of its mask: how many bits
 * are set tells how many pairs it has, those below a token's where that pair goes; sums over the experts before tell
 * where its pairs begin. So the list is the same every time: bits are set in any order. Of others see
 * moe_list_parts.cuh. */
#include "backend/cuda/moe/moe_list.cuh"
#include "backend/cuda/moe/moe_list_parts.cuh"
#include "backend/cuda/moe/moe_route.cuh"
#include "backend/cuda/moe/moe_route_shared.cuh"
#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

enum { LISTED_SHARED = 200 << 10 };

/* MOE_ROUTE of a few tokens, a warp each, and their list. n: tokens that the node has room for. */
static __global__ void __launch_bounds__(LISTED_WARPS * 32)
    moe_route_listed(device_plan plan, const __grid_constant__ route_args route, list_args a, int n, dmoe_list list) {
    let_next_start();
    extern __shared__ int shared[];
    int slots = route_slots(route.how), warp = threadIdx.x / 32;
    const list_memory memory(a, shared);
    float *scores = reinterpret_cast<float *>(memory.ids + n * slots) + warp * route_floats(route.how);
    memory.clear(a);
    wait_for_previous();
    int n_tokens = min(step_tokens(plan), n);
    for (int t = warp; t < n_tokens; t += LISTED_WARPS) {
        route_token(route, t, scores, memory.ids + t * slots);
        route_shared(route, t);
    }
    __syncthreads(); // all ids are there, and masks are zero
    a.is_counted = decodes(plan);
    make_list(a, list, n_tokens * slots, slots, memory);
}

// ---- the launchers --------------------------------------------------------------------------------------------------

void launch_moe_list(const struct launch *l, const struct dmoe *a, int tile, int first, int n, struct dmat ids,
                     struct dmoe_list list) {
    launch_parts(l, {args_of(a, tile), ids, first, n, a->top_k}, list);
}

static size_t route_bytes(const struct droute *a, const struct dmoe *experts, int n_tokens) {
    return list_bytes(args_of(experts, 1), n_tokens * route_slots(*a)) +
           (size_t)LISTED_WARPS * route_floats(*a) * sizeof(float);
}

bool moe_route_lists(const struct droute *a, const struct dmoe *experts, int n_tokens) {
    return n_tokens <= MOE_LISTED_TOKENS && route_slots(*a) <= MOE_LISTED_TOP_K &&
           experts->n_experts <= LISTED_WARPS * 32 && route_bytes(a, experts, n_tokens) <= LISTED_SHARED;
}

void launch_moe_route_listed(const struct launch *l, const struct droute *a, const struct dmoe *experts,
                             struct dmat logits, struct dweight bias, struct dweight expert_scale, struct dmat ids,
                             struct dmat weights, int tile, struct dmoe_list list) {
    route_args route = {*a, logits, bias, expert_scale, ids, weights};
    allow_shared(moe_route_listed, LISTED_SHARED);
    launch_node(moe_route_listed, 1, LISTED_WARPS * 32, route_bytes(a, experts, l->n_tokens), l->stream, l->plan, route,
                args_of(experts, tile), l->n_tokens, list);
}
