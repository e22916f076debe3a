/* attention_decode.h - the three kernels of decode attention. */
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/attention_parts.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- attention_decode.cu ---- */
/* Whether the kernel takes the shape; `columns` it wants of a part. */
bool attention_decode_takes(const struct dattention *a, enum element cache, int block_size);
/* prefetch: the node before is the layer's QKV_PREP, so that keys of earlier steps may be read before it ends. out may
 * have most where no sequence has more than one token. */
void launch_attention_decode(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                             bool prefetch, struct dmat q, struct dweight sinks, struct dcache cache, struct dmat out);

/* A QKV_PREP that decode attention does on its way (decode_prep.cuh), in a step where no sequence has more than one
 * token: whole heads are rotated, the first half of the channels with the second. */
struct dprep {
    struct dqkv a;
    const float *cos_sin; // [tokens][head_dim], or NULL
    struct dmat x;        // raw or not
    struct dweight q_norm, k_norm;
};
/* Whether it can: heads of 128 channels, at most 8 to a KV head, over a cache of e4m3. */
bool attention_decode_prepares(const struct dattention *a, const struct dprep *prep, struct dcache cache);
/* The lists of parts are there before the node before this one begins: a node in between waits before it lets the next
 * start. */
void launch_attention_decode_prepares(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                      const struct dprep *prep, struct dweight sinks, struct dcache cache,
                                      struct dmat out);

/* ---- attention_decode_bytes.cu: the same of a cache of e4m3 ---- */
void launch_attention_decode_bytes(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                   bool prefetch, struct dmat q, struct dweight sinks, struct dcache cache,
                                   struct dmat out);

/* ---- attention_decode_warps.cu: of these 128 channels and up to 8 query heads to a KV head, where sequences have one
 * token each ---- */
int attention_teams(int n_warps); // of so many warps, that compute at once, each a pair of a part and a KV head
/* How many warps take a pair of a sequence and a KV head together: one where there are more pairs than teams of two,
 * two where there are half as many at least; 0 where attention_decode_bytes.cu takes them. */
int attention_team(int n_seqs, int n_kv_heads);
bool attention_takes_warps(const struct launch *l, enum element cache, int head_dim, int per_kv,
                           int n_kv_heads); // whether a step does
/* Queries of half precision or float32. */
void launch_attention_decode_warps(const struct launch *l, const struct dattention *a, const struct dparts *parts,
                                   bool prefetch, struct dmat q, struct dweight sinks, struct dcache cache,
                                   struct dmat out);

#ifdef __cplusplus
}
#endif
