/* moe_router.h - moe_router.cu: the router's LINEAR, MOE_ROUTE and the list of experts of a few tokens. */
#pragma once

#include "backend/cuda/moe/moe_stream.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Up to 32 tokens, 256 experts without groups, weights and x of the same 16 bits. */
bool moe_router_takes(const struct droute *a, struct dweight w, struct dmat x, int n_tokens);
/* linear_bias [E]: of the LINEAR, floats or absent; others as launch_moe_route_listed takes them. */
void launch_moe_router(const struct launch *l, const struct droute *a, const struct dmoe *experts, struct dmat x,
                       struct dweight w, struct dweight linear_bias, struct dweight bias, struct dweight expert_scale,
                       struct dmat ids, struct dmat weights, int tile, struct dmoe_list list);

#ifdef __cplusplus
}
#endif
