/* rope.h - from the rope parameters of a config.json to core's struct rope.
 *
 * Follows transformers' modeling_rope_utils.py (5.x) to the rounding: frequencies are computed in float32.
 * Types: default, linear, dynamic, llama3, yarn, longrope (alias su), proportional. `rope_type` may be spelt `type`. */
#pragma once

#include "base/arena.h"
#include "base/json/json.h"
#include "core/rope.h"

struct rope_request {
    const json_t *parameters;  // the object with rope_type and the rest, of one layer type; NULL: default
    const char *where;         // config.json, for messages
    double theta, partial;     // for parameters without rope_theta, partial_rotary_factor
    int head_dim;              // channels of a head; int(head_dim * partial) of them are rotated
    enum rope_pairing pairing; //
    int64_t max_positions;     // max_position_embeddings
    int64_t original_context;  // config.json's own original_max_position_embeddings, which wins; 0: none
    bool yarn_is_longrope;     // Phi-3 wrote "yarn" for it once
    bool whole_heads; // the class has no partial rotation: its plain rope ignores the key, scaled ones refuse it
};

/* Frequencies live in `arena`. *note is one line for people: "yarn, theta 10000, factor 40, original context 4096". */
enum status rope_build(const struct rope_request *request, struct arena *arena, struct rope *out, const char **note,
                       struct error *err);

/* How many positions the rope is made for: max_positions, or more where yarn and dynamic extend them by a factor. */
enum status rope_context(const struct rope_request *request, int64_t *out, struct error *err);

/* What DeepSeek multiplies the softmax scale with, squared already: (0.1 * mscale_all_dim * ln(factor) + 1)^2, or 1. */
enum status rope_softmax_factor(const json_t *parameters, const char *where, double *out, struct error *err);
