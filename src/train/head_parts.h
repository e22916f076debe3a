/* head_parts.h - what the files of a head share: its tensors among the weights, and weights found in a program, as
 * those of a target or of a draft that was read. */
#pragma once

#include "train/head_files.h"

static inline float *head_tensor_at(const struct head_config *c, float *weight, enum head_tensor t) {
    return weight + head_at(&c->shape, t);
}
bool head_is_norm(enum head_tensor t);

/* What a layer of a program multiplies by, what stands before the layers, and what behind them; NULL: it has no such
 * thing. */
struct layer_weights {
    const struct weight *norm, *second_norm, *qkv, *q_norm, *k_norm, *out, *ffn_norm, *gate_up, *down;
    const struct weight *embed_norm, *hidden_norm, *fc;
    const struct weight *last_norm, *lm_head;
    bool norms_hold_one; // a norm multiplies by 1 + weight
};
struct layer_weights weights_of(const struct program *p, int layer);

/* Rows of `from`, the first `cols` numbers of each, to rows of a matrix that are `stride` apart. */
void copy_rows(const struct weight *from, int64_t row, int64_t n, int64_t cols, float *to, int64_t stride);

/* The base of a plain rotation of the first rope.dim channels of a head; 0: it is another. */
double theta_of(const struct model_spec *s);

/* The layer that a target's predictor is like: its last with attention. -1: it has none. */
int layer_of_predictor(const struct model_spec *s);
