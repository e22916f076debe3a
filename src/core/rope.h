/* rope.h - a rotary position embedding, reduced to what a kernel needs.
 *
 * Channel pairs of a head are rotated by the angle position * inv_freq[i]:
 *     ROPE_HALF         pair i is (x[i], x[i + dim/2])     Hugging Face checkpoints, "NeoX"
 *     ROPE_INTERLEAVED  pair i is (x[2i], x[2i + 1])       DeepSeek
 * within the first `dim` channels; the rest pass. cos and sin are multiplied by `factor` (YaRN, LongRoPE).
 * Frequencies that depend on the length of the sequence (dynamic NTK, LongRoPE) are chosen by the tokens
 * known when a step is planned, so that a prompt gives the same keys however it is cut into chunks.
 * Angles are computed in float32 as in transformers' modeling_rope_utils.py. Built by model/spec/rope.c. */
#pragma once

#include <stdint.h>

enum rope_pairing { ROPE_HALF, ROPE_INTERLEAVED };

enum rope_by_length {
    ROPE_FIXED,   // inv_freq, always
    ROPE_LONG,    // inv_freq_long and factor_long for sequences longer than original_context
    ROPE_DYNAMIC, // theta grows with the sequence past original_context (NTK)
};

struct rope {
    enum rope_pairing pairing;
    int dim;               // channels rotated, even; 0: no rotation at all
    const float *inv_freq; // [dim/2]; a zero leaves its pair alone
    float factor;          // on cos and sin
    enum rope_by_length by_length;
    const float *inv_freq_long; // [dim/2], ROPE_LONG
    float factor_long;
    int64_t original_context;
    double theta, scaling; // ROPE_DYNAMIC
};

/* How many channels it changes, at any position, if those are a leading share of each half of the dim: pairs from some
 * number on have no frequency, and the factor is 1. Else dim. */
int rope_turned(const struct rope *rope);

/* cos and sin [dim/2] of a position in a sequence of which n_known tokens are known. */
void rope_cos_sin(const struct rope *rope, int64_t position, int64_t n_known, float *cos_out, float *sin_out);
