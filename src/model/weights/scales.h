/* scales.h - scales that a checkpoint stores for quantised keys, values, queries and outputs.
 *
 * They belong to no weight. Caches of 8 bits here make a scale for each key and value from itself, and activations are
 * not quantised with stored scales, so these are read past. Exporters have put them at
 *
 *     layers.N.self_attn[.attn].{q,k,v,kv}_scale, .{q,k,v}_{zero_point,global_scale}, .prob[_output]_scale
 *                                                          compressed-tensors, Quark, AutoFP8
 *     layers.N.self_attn.X_proj.{q,k,v,kv}_scale           modelopt; X is q, k, v, qkv, kv_b ...
 *     layers.N.**.output_{scale,zero_point,global_scale}   AutoFP8, Quark, compressed-tensors; of any module */
#pragma once

#include "file/checkpoint.h"

/* Whether t is one: its name is of the above with N < n_layers, and it is a vector at most. */
bool is_unused_scale(const struct stored_tensor *t, int n_layers);

/* How many a checkpoint has. */
int64_t count_unused_scales(const struct checkpoint *c, int n_layers);
