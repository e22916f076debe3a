/* block_run.h - a block of a cache group in all its layers, or a slot of a recurrent one: where it lies, copied within
 * the device, and to and from host blocks (swap). */
#pragma once

#include "backend/cuda/cuda.h"

struct block_run {
    char *at;     // of the first layer
    size_t pitch; // bytes from layer to layer
};

struct block_run block_run_of(const struct loaded *loaded, int group, int32_t id);

/* On the device's stream; `bytes` of each layer. */
enum status block_run_copy(struct loaded *loaded, int group, struct block_run from, struct block_run to, size_t bytes,
                           struct error *err);
