/* delta_layer.h - a gated DeltaNet layer between its two products, as fast kernels have it: SHORT_CONV, DELTA_RULE and
 * the gated NORM behind it (core/ops.def) in one node for steps of few tokens a sequence.
 *
 *     [ q | k | v | z | b | a ]  of the projection, unscaled products too
 *       u: conv, silu             |    z: gate of the norm
 *       q^, k^: unit rows         |    b, a: beta and decay
 *     S = e^g S + k^ (beta (v - k^T e^g S))^T;   o = q^T S;   y = norm(o) * w * silu(z)
 *
 * delta_layer.c says which ops become such a layer; ops that do not lie so, other shapes and cards before Hopper run on
 * the plain kernels of delta.h. A slot of recurrent state is what delta.h says. */
#pragma once

#include "backend/cuda/recurrent/delta.h"
#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a fast kernel: inputs of the convolution, value heads to a key head; tokens of a sequence that are walked one by
 * one, where a step has others; floats of a row that a block holds. */
enum { DELTA_TAPS = 4, DELTA_MOST_GROUP = 8, DELTA_FEW_TOKENS = 16, DELTA_MOST_ROW = 40000 };

struct ddelta_layer {
    struct ddelta shape;
    int kernel;          // of the convolution
    struct dmat u;       // [T, 2 key heads * key_dim + value heads * value_dim], before the convolution
    struct dmat z, b, a; // [T, value heads * value_dim], [T, value heads] twice; all of one projection, or float32
    struct dweight conv, a_log, dt_bias, norm; // norm: [value_dim] or absent
    float eps, plus, scale;                    // norm's weight is (norm + plus) * scale
    struct dcache cache;
    struct ddelta_back back;  // beside u a slot keeps b and a, in the places of delta_width
    struct dmat y, qact;      // [T, value heads * value_dim]
    struct dmat mixed, parts; // of float32, scratch of steps with prompts: as wide as u, as y (delta_chunks.cuh)
};

/* Whether the fast kernels have these shapes: heads of 32, 64 or 128 channels, as many keys' as values'; at most
 * DELTA_TAPS inputs and DELTA_MOST_GROUP value heads to a key head. */
bool delta_layer_takes(const struct ddelta *shape, int kernel);

/* Sequences of a step that may have more than DELTA_FEW_TOKENS. */
static inline int delta_most_long(const struct launch *l) {
    int n = l->n_tokens / (DELTA_FEW_TOKENS + 1);
    return n < l->n_seqs ? n : l->n_seqs;
}

/* Chunks of C tokens that those may have. */
static inline int delta_most_chunks(const struct launch *l, int C) { return l->n_tokens / C + delta_most_long(l); }

/* ---- delta_decode.cu: tokens of a sequence one after the other ----
 * y of all sequences, its absmax folded where that is given; or, beside the kernels of chunks, o in mixed of those of
 * at most DELTA_FEW_TOKENS tokens. */
void launch_delta_decode(const struct launch *l, const struct ddelta_layer *a);
void launch_delta_decode_few(const struct launch *l, const struct ddelta_layer *a);

/* ---- of sequences with more tokens than that, by chunks: one behind the other ---- */
void launch_delta_chunk_inputs(const struct launch *l, const struct ddelta_layer *a);
void launch_delta_chunk_parts(const struct launch *l, const struct ddelta_layer *a);
void launch_delta_chunk_scan(const struct launch *l, const struct ddelta_layer *a);
/* ---- delta_norm.cu: y of all rows, its qact, or both, from o in mixed ---- */
void launch_delta_norm(const struct launch *l, const struct ddelta_layer *a);

#ifdef __cplusplus
}
#endif
