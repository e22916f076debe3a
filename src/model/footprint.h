/* footprint.h - what the cache of a model holds for a sequence, from the description alone.
 *
 * Layers with the same mixer and the same heads are one group; a layer that reads another's cache is in none. */
#pragma once

#include "model/spec/spec.h"

struct cache_need {
    enum mixer mixer;
    int n_layers;
    int n_kv_heads, head_dim; // MIX_LATENT: 1 head of latent and rope channels; MIX_DELTA: value heads, their width
    int64_t bytes_per_token;  // of all layers of the group, keys and values; 0 for MIX_DELTA
    int64_t max_tokens;       // a window or a chunk; 0: every token of the sequence
    int64_t state_bytes;      // MIX_DELTA: recurrent state of a sequence, float32
    int64_t conv_bytes;       // MIX_DELTA: the last inputs of the short convolutions
};

/* The groups in the order of their first layers, in the spec's arena; returns how many. Cached elements take
 * element_bytes, 2 for bf16. */
int cache_needs(struct model_spec *spec, int element_bytes, const struct cache_need **out);

const char *mixer_name(enum mixer mixer); // "full attention"
