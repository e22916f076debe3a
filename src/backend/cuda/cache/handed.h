/* handed.h - handed.cu: blocks of a cache as bytes in a row, and bytes as blocks. */
#pragma once

#include "backend/cuda/value.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOST_HANDED = 64 }; // blocks of a launch

/* Blocks in the cache, and in a row: block i at row + i * stride, layer after layer, without what pads them there. */
struct dhanded {
    char *block[MOST_HANDED]; // where its first layer's part is
    int64_t pitch, part;      // bytes from layer to layer; of a part
    int n_layers;
    char *row;
    int64_t stride;
    int64_t first, end; // bytes of all blocks, one behind the other, that are copied; row is where `first` goes
};
void launch_gather(cudaStream_t stream, const struct dhanded *h);  // out of the cache
void launch_scatter(cudaStream_t stream, const struct dhanded *h); // into it

#ifdef __cplusplus
}
#endif
