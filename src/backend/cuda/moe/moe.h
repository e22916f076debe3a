/* moe.h - moe.cu: routing and experts. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- moe.cu ---- */
struct droute {
    int how, n_experts, top_k, n_groups, top_groups;
    bool renormalise;
    float scale;
    int n_shared; // slots behind top_k
    /* Of shared experts: their gate's value, or what makes it, a row of weights and x, in the same 16 bits; at NULL:
     * neither, and their weight is 1. */
    struct dmat gate, gate_x;
    struct dweight gate_w;
};
/* Whether routing multiplies by such a gate itself. */
bool moe_route_gates(struct dweight w, struct dmat x);
void launch_moe_route(const struct launch *l, const struct droute *a, struct dmat logits, struct dweight bias,
                      struct dweight expert_scale, struct dmat ids, struct dmat weights);

enum {
    MOE_MOST_TOP_K = 64,
    MOE_GRAPH_TOKENS = 512
}; // experts to a token; tokens up to which a step may be launched for more than it has
struct dmoe {
    int n_experts, top_k, ffn_size, act;
    float limit;
    void *scratch;  // floats [tokens * top_k][ffn_size], or what moe_stream.h says
    void *list;     // of the stream: dmoe_list
    bool is_listed; // it is there
    bool is_posted; // one token's ids are: the node before is moe_router.cu's, has the same x, and posts them
    int n_shared;   // of the experts, the last, that all tokens have: they are not counted among those that were seen
    /* Of ranks that have whole experts: tokens are sent to n_all, of which first_expert .. first_expert + n_experts - 1
     * are here; what others make is left out. n_all 0: all are here. */
    int first_expert, n_all;
};
void launch_moe_ffn(const struct launch *l, const struct dmoe *a, struct dmat x, struct dmat ids, struct dmat weights,
                    struct dweight w13, struct dweight w2, struct dweight b13, struct dweight b2, struct dmat y);

#ifdef __cplusplus
}
#endif
