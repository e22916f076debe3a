/* attention_int4.h - qkv_prep_int4.cu and attention_int4.cu: QKV_PREP and ATTENTION over a cache of int4 (kv_int4.cuh),
 * for every shape. */
#pragma once

#include "backend/cuda/attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As those of attention.h. The first leaves queries rotated as keys are, but of shared keys (rotary_dim), which the
 * second rotates itself: the one reads what the other wrote, and nothing else does. */
void launch_qkv_prep_int4(const struct launch *l, const struct dqkv *a, const struct drope *rope, struct dmat x,
                          struct dweight q_norm, struct dweight k_norm, struct dcache cache, struct dmat q);
void launch_attention_int4(const struct launch *l, const struct dattention *a, struct dmat q, struct dweight sinks,
                           struct dcache cache, struct dmat out);

/* 1 / sqrt of the width of a row's Hadamard matrix. */
float int4_rotation_factor(int n);

#ifdef __cplusplus
}
#endif
