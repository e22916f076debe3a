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

enum { DELTA_TAPS = 4, DELTA_MOST_GROUP = 8 }; // of a fast kernel: inputs of the convolution, value heads to a key head

struct ddelta_layer {
    struct ddelta shape;
    int kernel;          // of the convolution
    struct dmat u;       // [T, 2 key heads * key_dim + value heads * value_dim], before the convolution
    struct dmat z, b, a; // [T, value heads * value_dim], [T, value heads] twice
    struct dweight conv, a_log, dt_bias, norm; // norm: [value_dim] or absent
    float eps, plus, scale;                    // norm's weight is (norm + plus) * scale
    struct dcache cache;
    struct dmat y; // [T, value heads * value_dim]; its absmax is folded where that is given
};

/* Whether the fast kernels have these shapes: heads of 32, 64 or 128 channels, as many keys' as values'; at most
 * DELTA_TAPS inputs and DELTA_MOST_GROUP value heads to a key head. */
bool delta_layer_takes(const struct ddelta *shape, int kernel);

/* ---- delta_decode.cu: any number of tokens a sequence, one after the other ---- */
void launch_delta_decode(const struct launch *l, const struct ddelta_layer *a);

#ifdef __cplusplus
}
#endif
