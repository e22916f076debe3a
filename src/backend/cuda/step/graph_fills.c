/* graph_fills.c - see graph_fills.h. */
#include "backend/cuda/step/graph_fills.h"

#include <stdbool.h>

/* The node behind this one; NULL: none, or several. */
static cudaError_t node_behind(cudaGraphNode_t node, cudaGraphNode_t *out) {
    cudaGraphNode_t behind[2];
    cudaGraphEdgeData edges[2];
    size_t n = 0;
    *out = NULL;
    cudaError_t code = cudaGraphNodeGetDependentNodes(node, NULL, NULL, &n);
    if (code != cudaSuccess || n != 1)
        return code;
    code = cudaGraphNodeGetDependentNodes(node, behind, edges, &n);
    *out = behind[0];
    return code;
}

static bool zeroes_in(cudaGraphNode_t node, const char *at, size_t n_bytes) {
    enum cudaGraphNodeType type;
    struct cudaMemsetParams fill;
    if (cudaGraphNodeGetType(node, &type) != cudaSuccess || type != cudaGraphNodeTypeMemset ||
        cudaGraphMemsetNodeGetParams(node, &fill) != cudaSuccess)
        return false;
    const char *from = fill.dst;
    return fill.value == 0 && fill.height <= 1 && from >= at && from < at + n_bytes &&
           fill.width * fill.elementSize <= n_bytes - (size_t)(from - at);
}

/* What followed the node follows the one before it, which may be none. */
static cudaError_t take_out(cudaGraph_t graph, cudaGraphNode_t before, cudaGraphNode_t node, cudaGraphNode_t behind) {
    cudaError_t code = cudaGraphDestroyNode(node);
    return code == cudaSuccess && before && behind ? cudaGraphAddDependencies(graph, &before, &behind, NULL, 1) : code;
}

cudaError_t graph_gather_fills(cudaGraph_t graph, void *at, size_t n_bytes) {
    cudaGraphNode_t roots[2], before = NULL, behind = NULL, first = NULL, fill;
    size_t n_roots = 0;
    bool any = false;
    cudaError_t code = cudaGraphGetRootNodes(graph, NULL, &n_roots);
    if (code != cudaSuccess || n_roots != 1)
        return code;
    code = cudaGraphGetRootNodes(graph, roots, &n_roots);
    for (cudaGraphNode_t node = roots[0]; code == cudaSuccess && node; node = behind) {
        code = node_behind(node, &behind);
        if (code == cudaSuccess && behind && zeroes_in(node, at, n_bytes)) {
            code = take_out(graph, before, node, behind);
            any = true;
            continue;
        }
        first = any && !first ? node : first;
        before = node;
    }
    if (code != cudaSuccess || !any)
        return code;
    struct cudaMemsetParams zeros = {.dst = at, .elementSize = 1, .width = n_bytes, .height = 1};
    code = cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &zeros);
    return code == cudaSuccess ? cudaGraphAddDependencies(graph, &fill, &first, NULL, 1) : code;
}
