/* shard_index.h - model.safetensors.index.json: which tensor is in which file of a split checkpoint.
 *
 *     {"metadata": {"total_size": 9086705888}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors",
 *     ...}}
 *
 * total_size must be a number that is not negative but is compared with nothing: tools that strip or
 * quantise tensors leave it stale, and what the shards hold is checked tensor by tensor. */
#pragma once

#include "base/arena.h"
#include "base/status.h"

enum { MAX_SHARDS = 2000 };

struct shard_entry {
    const char *name; // tensor
    int file;         // index into files
};

struct shard_index {
    const char **files; // paths below the folder that end in ".safetensors", each once, in order of first mention
    int n_files;
    struct shard_entry *entries; // tensor names are unique
    size_t n_entries;            // at least 1
};

/* Everything in *out lives in `arena`. Errors name path, and the tensor where there is one. */
enum status shard_index_parse(struct str text, const char *path, struct arena *arena, struct shard_index *out,
                              struct error *err);
