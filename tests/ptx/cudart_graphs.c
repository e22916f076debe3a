/* cudart_graphs.c - see runtime.h: what a captured stream records, and graphs of it.
 *
 * A graph runs in an order that its edges allow, drawn from the seed. Edges that let the later node start early order
 * as others do. */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct edge {
    cudaGraphNode_t to;
    bool early;
};
struct CUgraphNode_st {
    cudaGraph_t graph;
    struct work work;
    struct edge *behind;
    int n_behind, room, n_before;
    int at; // in the graph
};
struct CUgraph_st {
    cudaGraphNode_t *nodes; // as they were made
    int n, room;
};
struct CUgraphExec_st {
    cudaGraph_t graph; // a copy
};

// ---- nodes and edges ------------------------------------------------------------------------------------------------

static cudaGraphNode_t add_node(cudaGraph_t graph, const struct work *w) {
    cudaGraphNode_t node = calloc(1, sizeof *node);
    *node = (struct CUgraphNode_st){.graph = graph, .work = *w, .at = graph->n};
    if (w->type == cudaGraphNodeTypeKernel) {
        void *params = aligned_alloc(128, ((size_t)w->launch.param_bytes + 128) / 128 * 128);
        node->work.launch.params = memcpy(params, w->launch.params, w->launch.param_bytes);
    }
    if (graph->n == graph->room)
        graph->nodes = realloc(graph->nodes, (size_t)(graph->room = graph->room * 2 + 64) * sizeof *graph->nodes);
    return graph->nodes[graph->n++] = node;
}

static void add_edge(cudaGraphNode_t from, cudaGraphNode_t to, bool early) {
    if (from->n_behind == from->room)
        from->behind = realloc(from->behind, (size_t)(from->room = from->room * 2 + 2) * sizeof *from->behind);
    from->behind[from->n_behind++] = (struct edge){to, early};
    to->n_before++;
}

static void free_node(cudaGraphNode_t node) {
    if (node->work.type == cudaGraphNodeTypeKernel)
        free((void *)node->work.launch.params);
    free(node->behind);
    free(node);
}

static cudaGraph_t copy_of(cudaGraph_t graph) {
    cudaGraph_t copy = calloc(1, sizeof *copy);
    for (int i = 0; i < graph->n; i++)
        add_node(copy, &graph->nodes[i]->work);
    for (int i = 0; i < graph->n; i++)
        for (int k = 0; k < graph->nodes[i]->n_behind; k++)
            add_edge(copy->nodes[i], copy->nodes[graph->nodes[i]->behind[k].to->at], graph->nodes[i]->behind[k].early);
    return copy;
}

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
    if (!graph || flags)
        return runtime_said(cudaErrorInvalidValue);
    *graph = calloc(1, sizeof **graph);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (!graph)
        return runtime_said(cudaErrorInvalidValue);
    for (int i = 0; i < graph->n; i++)
        free_node(graph->nodes[i]);
    free(graph->nodes);
    free(graph);
    return cudaSuccess;
}

static bool has_edge(cudaGraphNode_t from, cudaGraphNode_t to) {
    int i = 0;
    while (i < from->n_behind && from->behind[i].to != to)
        i++;
    return i < from->n_behind;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!from[i] || !to[i] || from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i] ||
            has_edge(from[i], to[i]))
            return runtime_said(cudaErrorInvalidValue);
        add_edge(from[i], to[i], data && data[i].type == cudaGraphDependencyTypeProgrammatic);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *before,
                                   size_t n_before, const struct cudaMemsetParams *fill) {
    if (!out || !graph || !fill || !memory_holds(fill->dst, fill->width * fill->elementSize))
        return runtime_said(cudaErrorInvalidValue);
    *out = add_node(graph, &(struct work){.type = cudaGraphNodeTypeMemset, .fill = *fill});
    for (size_t i = 0; i < n_before; i++)
        add_edge(before[i], *out, false);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    if (!node)
        return runtime_said(cudaErrorInvalidValue);
    cudaGraph_t graph = node->graph;
    for (int i = 0; i < node->n_behind; i++)
        node->behind[i].to->n_before--;
    for (int i = 0; i < graph->n; i++) {
        cudaGraphNode_t from = graph->nodes[i];
        for (int k = 0; node->n_before > 0 && k < from->n_behind; k++)
            if (from->behind[k].to == node) {
                from->behind[k] = from->behind[--from->n_behind];
                node->n_before--;
                break;
            }
    }
    memmove(graph->nodes + node->at, graph->nodes + node->at + 1,
            (size_t)(--graph->n - node->at) * sizeof *graph->nodes);
    for (int i = node->at; i < graph->n; i++)
        graph->nodes[i]->at = i;
    free_node(node);
    return cudaSuccess;
}

// ---- questions ------------------------------------------------------------------------------------------------------

/* As the runtime tells lists: without a place for them how many there are, else as many as there is place for. */
static bool tells(size_t *n, size_t i) { return i < *n; }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    if (!graph || !n)
        return runtime_said(cudaErrorInvalidValue);
    for (int i = 0; nodes && i < graph->n && tells(n, (size_t)i); i++)
        nodes[i] = graph->nodes[i];
    if (!nodes || *n > (size_t)graph->n)
        *n = (size_t)graph->n;
    return cudaSuccess;
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *roots, size_t *n) {
    size_t found = 0;
    if (!graph || !n)
        return runtime_said(cudaErrorInvalidValue);
    for (int i = 0; i < graph->n; i++)
        if (graph->nodes[i]->n_before == 0) {
            if (roots && tells(n, found))
                roots[found] = graph->nodes[i];
            found++;
        }
    if (!roots || *n > found)
        *n = found;
    return cudaSuccess;
}

static cudaGraphEdgeData data_of(const struct edge *e) {
    return (cudaGraphEdgeData){.type = e->early ? cudaGraphDependencyTypeProgrammatic : cudaGraphDependencyTypeDefault,
                               .from_port =
                                   e->early ? cudaGraphKernelNodePortProgrammatic : cudaGraphKernelNodePortDefault};
}

/* Without a place for what edges are, plain edges alone can be told. */
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *behind, cudaGraphEdgeData *edges,
                                           size_t *n) {
    if (!node || !n)
        return runtime_said(cudaErrorInvalidValue);
    for (int i = 0; behind && i < node->n_behind && tells(n, (size_t)i); i++) {
        if (!edges && node->behind[i].early)
            return runtime_said(cudaErrorLossyQuery);
        behind[i] = node->behind[i].to;
        if (edges)
            edges[i] = data_of(&node->behind[i]);
    }
    if (!behind || *n > (size_t)node->n_behind)
        *n = (size_t)node->n_behind;
    return cudaSuccess;
}

cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to, cudaGraphEdgeData *data,
                              size_t *n) {
    size_t found = 0;
    if (!graph || !n)
        return runtime_said(cudaErrorInvalidValue);
    for (int i = 0; i < graph->n; i++)
        for (int k = 0; k < graph->nodes[i]->n_behind; k++, found++) {
            const struct edge *e = &graph->nodes[i]->behind[k];
            if (!from || !to || !tells(n, found))
                continue;
            if (!data && e->early)
                return runtime_said(cudaErrorLossyQuery);
            from[found] = graph->nodes[i], to[found] = e->to;
            if (data)
                data[found] = data_of(e);
        }
    if (!from || *n > found)
        *n = found;
    return cudaSuccess;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type) {
    if (!node || !type)
        return runtime_said(cudaErrorInvalidValue);
    *type = node->work.type;
    return cudaSuccess;
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, struct cudaMemsetParams *fill) {
    if (!node || !fill || node->work.type != cudaGraphNodeTypeMemset)
        return runtime_said(cudaErrorInvalidValue);
    *fill = node->work.fill;
    return cudaSuccess;
}

/* Of the driver. A function of it is a struct kernel. */
static CUresult kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out) {
    if (!node || !out || node->work.type != cudaGraphNodeTypeKernel)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)node->work.launch.kernel,
                                     .gridDimX = node->work.launch.grid[0],
                                     .gridDimY = node->work.launch.grid[1],
                                     .gridDimZ = node->work.launch.grid[2],
                                     .blockDimX = node->work.launch.threads[0],
                                     .blockDimY = node->work.launch.threads[1],
                                     .blockDimZ = node->work.launch.threads[2],
                                     .sharedMemBytes = node->work.launch.shared};
    return CUDA_SUCCESS;
}
static CUresult function_name(const char **name, CUfunction function) {
    *name = ((const struct kernel *)function)->name;
    return CUDA_SUCCESS;
}
const struct driver_function graph_functions[] = {{"cuGraphKernelNodeGetParams", (void *)kernel_params},
                                                  {"cuFuncGetName", (void *)function_name},
                                                  {"cuKernelGetName", (void *)function_name},
                                                  {NULL, NULL}};

// ---- running --------------------------------------------------------------------------------------------------------

static uint64_t draw(void) {
    static uint64_t state;
    const char *seed = getenv("GYRE_PTX_SEED");
    if (!state)
        state = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u | 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* Nodes in an order that edges allow; how many there are, fewer than all if some wait for one another. */
static int order(cudaGraph_t graph, cudaGraphNode_t *out) {
    int *waits = malloc(((size_t)graph->n + 1) * sizeof *waits), done = 0, ready = 0;
    for (int i = 0; i < graph->n; i++)
        if ((waits[i] = graph->nodes[i]->n_before) == 0)
            out[ready++] = graph->nodes[i];
    while (done < ready) { // out: those that are done, those that could be next
        int next = done + (int)(draw() % (uint64_t)(ready - done));
        cudaGraphNode_t node = out[next];
        out[next] = out[done];
        out[done++] = node;
        for (int k = 0; k < node->n_behind; k++)
            if (--waits[node->behind[k].to->at] == 0)
                out[ready++] = node->behind[k].to;
    }
    free(waits);
    return done;
}

static cudaGraphNode_t *ordered(cudaGraph_t graph, int *n) {
    cudaGraphNode_t *nodes = malloc(((size_t)graph->n + 1) * sizeof *nodes);
    runtime_lock();
    *n = order(graph, nodes);
    runtime_unlock();
    return nodes;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    int n;
    if (!exec || !graph || flags)
        return runtime_said(cudaErrorInvalidValue);
    free(ordered(graph, &n));
    if (n < graph->n)
        return runtime_said(cudaErrorInvalidValue);
    *exec = calloc(1, sizeof **exec);
    (*exec)->graph = copy_of(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    if (!exec)
        return runtime_said(cudaErrorInvalidValue);
    cudaGraphDestroy(exec->graph);
    free(exec);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    (void)stream;
    return runtime_said(exec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    int n;
    if (!exec)
        return runtime_said(cudaErrorInvalidValue);
    if (gemv_of(stream)->graph)
        runtime_unknown("a graph is launched into a graph");
    cudaGraphNode_t *nodes = ordered(exec->graph, &n);
    for (int i = 0; i < n; i++)
        work_run(&nodes[i]->work);
    free(nodes);
    return cudaSuccess;
}

// ---- capture --------------------------------------------------------------------------------------------------------

cudaError_t capture_put(cudaStream_t stream, const struct work *w) {
    if (stream->spoilt)
        return cudaErrorStreamCaptureInvalidated;
    cudaGraphNode_t last = stream->last;
    stream->last = add_node(stream->graph, w);
    if (last)
        add_edge(last, stream->last,
                 w->type == cudaGraphNodeTypeKernel && w->launch.early && last->work.type == cudaGraphNodeTypeKernel);
    return cudaSuccess;
}

static bool is_this_thread(const struct CUstream_st *s) { return s->thread == (unsigned long)pthread_self(); }

cudaError_t capture_forbids(void) {
    cudaError_t code = cudaSuccess;
    runtime_lock();
    for (struct CUstream_st *s = &default_stream; s; s = s->next)
        if (s->graph &&
            (is_this_thread(s) ? s->mode != cudaStreamCaptureModeRelaxed : s->mode == cudaStreamCaptureModeGlobal)) {
            s->spoilt = true;
            code = cudaErrorStreamCaptureUnsupported;
        }
    runtime_unlock();
    return code;
}

cudaError_t capture_forbids_waiting(cudaStream_t stream) {
    cudaError_t code = cudaSuccess;
    runtime_lock();
    for (struct CUstream_st *s = &default_stream; s; s = s->next)
        if (s->graph && (s == stream || (stream == &default_stream && s->waits_for_default))) {
            s->spoilt = true;
            code = s == stream ? cudaErrorStreamCaptureUnsupported : cudaErrorStreamCaptureImplicit;
        }
    runtime_unlock();
    return code;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    static unsigned long n_captures;
    stream = gemv_of(stream);
    if (stream == &default_stream)
        return runtime_said(cudaErrorStreamCaptureUnsupported);
    if (stream->graph)
        return runtime_said(cudaErrorIllegalState);
    runtime_lock();
    stream->mode = mode;
    stream->thread = (unsigned long)pthread_self();
    stream->capture = ++n_captures;
    stream->last = NULL;
    stream->spoilt = false;
    stream->graph = calloc(1, sizeof *stream->graph);
    runtime_unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    stream = gemv_of(stream);
    if (!out || !stream->graph)
        return runtime_said(out ? cudaErrorIllegalState : cudaErrorInvalidValue);
    if (stream->mode != cudaStreamCaptureModeRelaxed && !is_this_thread(stream))
        return runtime_said(cudaErrorStreamCaptureWrongThread);
    runtime_lock();
    cudaGraph_t graph = stream->graph;
    stream->graph = NULL;
    runtime_unlock();
    if (stream->spoilt)
        cudaGraphDestroy(graph);
    *out = stream->spoilt ? NULL : graph;
    return runtime_said(stream->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **before,
                                     const cudaGraphEdgeData **edges, size_t *n_before) {
    stream = gemv_of(stream);
    if (!status || edges)
        return runtime_said(cudaErrorInvalidValue);
    *status = !stream->graph   ? cudaStreamCaptureStatusNone
              : stream->spoilt ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
    if (id)
        *id = stream->capture;
    if (graph)
        *graph = stream->graph;
    if (before)
        *before = &stream->last;
    if (n_before)
        *n_before = stream->last != NULL;
    return cudaSuccess;
}
