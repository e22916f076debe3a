/* streams.h - part of device.c: streams, captures and graphs. */
#pragma once

// ---- streams, captures and graphs -------------------------------------------------------------------------------

struct CUgraphNode_st {
    struct CUgraphNode_st *before, *behind;
    struct CUgraph_st *graph;
    enum cudaGraphNodeType type;
    struct cudaMemsetParams fill;
};
struct CUgraph_st {
    struct CUgraphNode_st *first, *end, *beside; // in order, and nodes that begin beside the first
};
struct CUgraphExec_st {
    int64_t n_kernels;
};
struct CUstream_st {
    struct CUgraph_st *captured; // NULL: it is not
    enum cudaStreamCaptureMode mode;
    bool invalid;
};
struct CUevent_st {
    int64_t at; // kernels that had started when it was recorded
};
static _Thread_local struct CUstream_st *capturing;

/* Of calls that a capture does not allow. */
static bool is_allowed(void) {
    if (!capturing || capturing->mode == cudaStreamCaptureModeRelaxed)
        return true;
    capturing->invalid = true;
    misused("a call that may not be made while a stream is captured");
    return false;
}
#define MUST_BE_ALLOWED() \
    if (!is_allowed())    \
    return told(cudaErrorStreamCaptureUnsupported)

static struct CUgraphNode_st *put(struct CUstream_st *s, enum cudaGraphNodeType type) {
    struct CUgraph_st *g = s ? s->captured : NULL;
    if (!g)
        return NULL;
    struct CUgraphNode_st *node = xcalloc(1, sizeof *node);
    *node = (struct CUgraphNode_st){.before = g->end, .graph = g, .type = type};
    *(g->end ? &g->end->behind : &g->first) = node;
    return g->end = node;
}

static void drop_nodes(struct CUgraph_st *g) {
    for (struct CUgraphNode_st *n = g->first, *behind; n; n = behind)
        behind = n->behind, free(n);
    for (struct CUgraphNode_st *n = g->beside, *behind; n; n = behind)
        behind = n->behind, free(n);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    if (flags != cudaStreamNonBlocking)
        misused("a stream that others wait for");
    *out = made(STREAM, xcalloc(1, sizeof **out), 0);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    if (given_back(STREAM, s) >= 0)
        free(s);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (s && s->captured) {
        s->invalid = true;
        misused("waiting for a stream that is captured");
        return told(cudaErrorStreamCaptureUnsupported);
    }
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorLaunchFailure);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    MAY_FAIL(cudaErrorUnknown);
    if (s->captured)
        return misused("a second capture"), told(cudaErrorIllegalState);
    s->captured = made(GRAPH, xcalloc(1, sizeof *s->captured), 0);
    s->mode = mode;
    s->invalid = false;
    capturing = s;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    struct CUgraph_st *g = s->captured;
    cudaError_t code =
        s->invalid ? cudaErrorStreamCaptureInvalidated : may_fail(__func__, cudaErrorStreamCaptureInvalidated);
    *out = NULL;
    s->captured = NULL;
    capturing = NULL;
    if (!g)
        return misused("the end of no capture"), told(cudaErrorIllegalState);
    if (code == cudaSuccess)
        return *out = g, cudaSuccess;
    given_back(GRAPH, g);
    drop_nodes(g);
    free(g);
    return told(code);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n) {
    (void)id, (void)nodes, (void)edges, (void)n;
    MAY_FAIL(cudaErrorUnknown);
    *status = s->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    *graph = s->captured;
    return cudaSuccess;
}

static cudaError_t nodes_from(struct CUgraphNode_st *first, cudaGraphNode_t *out, size_t *n, size_t most) {
    size_t found = 0;
    for (struct CUgraphNode_st *node = first; node && found < most; node = node->behind, found++)
        if (out && found < *n)
            out[found] = node;
    *n = found;
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *out, size_t *n) {
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(g->first, out, n, SIZE_MAX);
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t g, cudaGraphNode_t *out, size_t *n) {
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(g->first, out, n, 1);
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *out, cudaGraphEdgeData *edges,
                                           size_t *n) {
    (void)edges;
    MAY_FAIL(cudaErrorUnknown);
    return nodes_from(node->behind, out, n, 1);
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *out) {
    MAY_FAIL(cudaErrorUnknown);
    *out = node->type;
    return cudaSuccess;
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, struct cudaMemsetParams *out) {
    MAY_FAIL(cudaErrorUnknown);
    *out = node->fill;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    MAY_FAIL(cudaErrorUnknown);
    *(node->before ? &node->before->behind : &node->graph->first) = node->behind;
    *(node->behind ? &node->behind->before : &node->graph->end) = node->before;
    free(node);
    return cudaSuccess;
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t g, const cudaGraphNode_t *before, size_t n,
                                   const struct cudaMemsetParams *fill) {
    (void)before, (void)n;
    MAY_FAIL(cudaErrorMemoryAllocation);
    struct CUgraphNode_st *node = xcalloc(1, sizeof *node);
    *node = (struct CUgraphNode_st){.behind = g->beside, .graph = g, .type = cudaGraphNodeTypeMemset, .fill = *fill};
    *out = g->beside = node;
    return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *edges, size_t n) {
    (void)g, (void)from, (void)to, (void)edges, (void)n;
    MAY_FAIL(cudaErrorUnknown);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    if (given_back(GRAPH, g) >= 0) {
        drop_nodes(g);
        free(g);
    }
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags) {
    (void)flags;
    MUST_BE_ALLOWED();
    MAY_FAIL(cudaErrorMemoryAllocation);
    *out = made(EXEC, xcalloc(1, sizeof **out), 0);
    for (const struct CUgraphNode_st *n = g->first; n; n = n->behind)
        (*out)->n_kernels += n->type == cudaGraphNodeTypeKernel;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
    if (given_back(EXEC, e) >= 0)
        free(e);
    return told(dry.is_lost ? cudaErrorIllegalAddress : cudaSuccess);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t e, cudaStream_t s) {
    (void)e, (void)s;
    MAY_FAIL(cudaErrorMemoryAllocation);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    (void)s;
    MAY_FAIL(cudaErrorLaunchFailure);
    dry.n_kernels += e->n_kernels;
    return cudaSuccess;
}
