/* moe_stream.h - MOE_FFN as a stream of the experts' weights: moe_list.cu, moe_stream.cu.
 *
 *     moe_list    which tokens each expert multiplies, in tiles
 *     moe_up      hidden = act(W13_e x)          of each pair of a token and one of its experts
 *     moe_down    of a pair W2_e hidden + b2_e
 *     moe_join    y = the weighted sum of a token's pairs, in the order of its slots
 *
 * Of a token there is no list, and moe_down and moe_join are one node. If moe_router.cu routes it, moe_up has begun by
 * then, with x in its memory, and reads the ids as soon as they are posted.
 *
 * An expert's weights are read once for each of its tiles. What a row of y is depends on that row of x alone. */
#pragma once

#include "backend/cuda/moe/moe.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* So many tokens of an expert at the most, which its weights multiply together. */
struct dmoe_tile {
    int32_t expert, first, n; // pairs list.pair[first .. first + n)
};

enum { MOST_POSTED = 8, POSTED_EXPERTS = 256 };
#define NOT_POSTED 0xffffffffffffffffull // no token has an expert twice

/* Made on the device, of the tokens of a piece. A pair is token * top_k + slot. */
struct dmoe_list {
    unsigned long long *seen; // [2], of steps that decode: layers, and their experts that had a token; first in memory
    int32_t *n_tiles;
    struct dmoe_tile *tiles; // by expert
    int32_t *pair;           // [pairs], an expert's in their order
    int32_t *rank;           // [pairs], or counts of parts: scratch
    /* Of one token, the experts of its slots but for shared ones, a byte each, which moe_up awaits before the node that
     * routes ends; NOT_POSTED before that. NULL: nobody posts. */
    unsigned long long *posted;
};

/* How it is cut. launch_moe_stream takes what moe_cut_of says; benchmarks try others. */
struct dmoe_cut {
    int tile;       // tokens of a tile
    int piece;      // tokens that are computed together
    int most_tiles; // of a piece
    bool is_tiled;  // by moe_tiles.cuh: many tokens an expert
    bool is_wide;   // by moe_wide.cuh: more, and widths that are multiples of 64
    bool is_joined; // by moe_down_join.cuh: few tokens
    bool is_direct; // one token, whose ids say all that a list would: if another node counts, nobody makes one
};

/* Whether the stream computes with these weights: both e4m3 with rows of a multiple of 16 columns, MXFP4 of 32, or of
 * 16 bits with rows of a multiple of 8. */
bool moe_streams(struct dweight w13, struct dweight w2);
struct dmoe_cut moe_cut_of(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens);
/* Bytes of a->scratch and of a->list for steps of up to so many tokens. */
void moe_stream_bytes(const struct dmoe *a, struct dweight w13, struct dweight w2, int n_tokens, int64_t *scratch,
                      int64_t *list);
/* tiles is NULL where nobody reads the list. */
struct dmoe_list moe_list_at(const struct dmoe *a, const struct dmoe_cut *cut, void *at, int64_t *n_bytes);

/* The same as launch_moe_ffn, in float16 or, as `product` says, bfloat16: x and hidden are rounded to it. */
void launch_moe_stream(const struct launch *l, const struct dmoe *a, enum element product, struct dmat x,
                       struct dmat ids, struct dmat weights, struct dweight w13, struct dweight w2, struct dweight b13,
                       struct dweight b2, struct dmat y);
void launch_moe_stream_cut(const struct launch *l, const struct dmoe *a, enum element product, struct dmat x,
                           struct dmat ids, struct dmat weights, struct dweight w13, struct dweight w2,
                           struct dweight b13, struct dweight b2, struct dmat y, const struct dmoe_cut *cut);

/* ---- moe_list.cu ---- */
/* Of tokens first .. first + n of those that the step has. */
void launch_moe_list(const struct launch *l, const struct dmoe *a, int tile, int first, int n, struct dmat ids,
                     struct dmoe_list list);

/* MOE_ROUTE in the same node, of a step of few tokens. experts: whose list it is. */
enum { MOE_LISTED_TOKENS = 32, MOE_LISTED_TOP_K = 16 };
bool moe_route_lists(const struct droute *a, const struct dmoe *experts, int n_tokens);
void launch_moe_route_listed(const struct launch *l, const struct droute *a, const struct dmoe *experts,
                             struct dmat logits, struct dweight bias, struct dweight expert_scale, struct dmat ids,
                             struct dmat weights, int tile, struct dmoe_list list);

#ifdef __cplusplus
}
#endif
