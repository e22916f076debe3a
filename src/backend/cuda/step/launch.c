/* launch.c - see launch.h: a loop over the nodes of a step. */
#include "backend/cuda/step/launch.h"
#include "backend/cuda/attention/lists.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/head/head.h"
#include "backend/cuda/step/node.h"

#include <stdlib.h>

// ---- marks between ops, while a step is traced ------------------------------------------------------------------

/* Kernels of the graph that is being captured; fills that a step's graph gathers and events are no kernels. */
static cudaError_t count_kernels(struct executable *exe, int *n_kernels) {
    enum cudaStreamCaptureStatus status;
    enum cudaGraphNodeType type;
    cudaGraph_t graph;
    size_t n = 0;
    cudaError_t code = cudaStreamGetCaptureInfo(exe->loaded->device->stream, &status, NULL, &graph, NULL, NULL, NULL);
    *n_kernels = 0;
    if (code == cudaSuccess)
        code = cudaGraphGetNodes(graph, NULL, &n);
    if (code != cudaSuccess || n == 0)
        return code;
    cudaGraphNode_t *nodes = xcalloc(n, sizeof *nodes);
    code = cudaGraphGetNodes(graph, nodes, &n);
    for (size_t i = 0; i < n && code == cudaSuccess; i++) {
        code = cudaGraphNodeGetType(nodes[i], &type);
        *n_kernels += code == cudaSuccess && type == cudaGraphNodeTypeKernel;
    }
    free(nodes);
    return code;
}

enum status trace_mark(struct executable *exe, int op, struct error *err) {
    if (!exe->marks)
        return OK;
    DEVICE_TRY(exe->loaded->device, err, count_kernels(exe, &exe->marks[op].n_kernels), "counting nodes before op %d",
               op);
    DEVICE_TRY(exe->loaded->device, err,
               cudaEventRecordWithFlags(exe->marks[op].event, exe->loaded->device->stream, cudaEventRecordExternal),
               "an event before op %d", op);
    return OK;
}

// ---- the nodes --------------------------------------------------------------------------------------------------

static enum status op_refused(struct executable *exe, const struct compiled_op *c, int n_rows, cudaError_t code,
                              struct error *err) {
    char what[280];
    op_described(exe, c, n_rows, what, sizeof what);
    return device_fault(exe->loaded->device, err, code, "%s", what);
}

static enum status put_node(const struct node *n, const struct launch *l, struct error *err) {
    TRY(n->kernel->put(n, l, err)); // lower.c chose it; LINEAR: linear/choose.c a row of linear/linear.c (gemv_put ...)
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? OK : op_refused(n->exe, n->c, n->n_rows, code, err);
}

/* Marks stand before ops that have no node too. */
static enum status marks_to(struct executable *exe, int *op, int end, struct error *err) {
    for (; *op < end; ++*op)
        TRY(trace_mark(exe, *op, err));
    return OK;
}

enum status step_launch_ops(struct executable *exe, const struct launch *l, int first, int end, struct error *err) {
    int n = step_lower(exe, l, first, end), op = first;
    for (int i = 0; i < n; i++) {
        TRY(marks_to(exe, &op, (int)(exe->nodes[i].c - exe->ops) + 1, err));
        TRY(put_node(&exe->nodes[i], l, err));
    }
    return marks_to(exe, &op, end, err);
}

static enum status launch_to(struct executable *exe, const struct launch *l, int end, struct error *err) {
    TRY(attention_lists_launch(exe, l, err));
    TRY(latent_parts_launch(exe, l, err));
    return step_launch_ops(exe, l, 0, end, err);
}

enum status step_launch(struct executable *exe, const struct launch *l, struct error *err) {
    return launch_to(exe, l, exe->program->n_ops, err);
}

enum status step_launch_forward(struct executable *exe, const struct launch *l, struct error *err) {
    return launch_to(exe, l, exe->program->n_ops - 1, err);
}

enum status step_launch_body(struct executable *exe, const struct launch *l, struct error *err) {
    return launch_to(exe, l, (int)(compiled_lm_head(exe) - exe->ops), err);
}
