/* attention.h - attention.cu and qkv_prep.cu: QKV_PREP and the plain ATTENTION. */
#pragma once

#include "backend/cuda/rows/rows.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- attention.cu ---- */
struct dqkv {
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float eps;
    bool plus_one, v_norm, v_from_k, k_absent;
    int rotary_dim; // core/ops.h, as in dattention
};
void launch_qkv_prep(const struct launch *l, const struct dqkv *a, const struct drope *rope, struct dmat x,
                     struct dweight q_norm, struct dweight k_norm, struct dcache cache, struct dmat q);

struct dattention {
    int n_heads, n_kv_heads, head_dim, v_head_dim;
    float scale, softcap;
    int window, chunk;
    bool paired_values;
    int rotary_dim;
    int reach; // enum attention_reach; the plain kernel alone has others than REACH_CAUSAL
};
/* The plain kernel: any shape and element, block tables and all; the oracle of those below. */
void launch_attention(const struct launch *l, const struct dattention *a, struct dmat q, struct dweight sinks,
                      struct dcache cache, struct dmat out);

#ifdef __cplusplus
}
#endif
