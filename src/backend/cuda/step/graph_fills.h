/* graph_fills.h - nodes of a graph that write zeros, gathered into one. */
#pragma once

#include <cuda_runtime_api.h>

/* Of a graph that was captured from one stream: nodes that write zeros somewhere in these bytes are taken out, and one
 * node zeroes all of the bytes before the first that followed any of them, beside what else the graph begins with. */
cudaError_t graph_gather_fills(cudaGraph_t graph, void *at, size_t n_bytes);
