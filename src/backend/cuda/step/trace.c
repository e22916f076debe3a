/* trace.c - how long each op of a step takes, and of how many nodes it is: the step captured once more with an event
 * before every op (backend_probes.trace).
 *
 * The plan on the device is that of the step that ran last, so the same rows are computed again, to the same places.
 * Between events nothing starts early, so the sum is more than the step takes; an op that is part of another's kernel
 * shows about a microsecond. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/device/probes.h"
#include "backend/cuda/step/graph_fills.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/step.h"
#include "backend/cuda/value.h"

#include <stdlib.h>

enum { REPLAYS = 15 };

static enum status capture(struct executable *exe, cudaGraphExec_t *out, struct error *err) {
    struct loaded *loaded = exe->loaded;
    struct launch l = launch_for(exe, step_collected(exe)->plan);
    cudaGraph_t graph;
    DEVICE_TRY(loaded->device, err, cudaStreamBeginCapture(loaded->device->stream, cudaStreamCaptureModeThreadLocal),
               "a graph with events");
    enum status st = step_launch(exe, &l, err);
    if (st == OK)
        st = trace_mark(exe, exe->program->n_ops, err);
    TRY(graph_captured(loaded, st, "a graph with events", l.n_tokens, &graph, err));
    cudaError_t code = graph_gather_fills(graph, exe->counters, (size_t)exe->program->n_ops * COUNTER_BYTES);
    if (code == cudaSuccess)
        code = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    DEVICE_TRY(loaded->device, err, code, "a graph with events");
    return OK;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static enum status replay(struct executable *exe, cudaGraphExec_t graph, float *ms, double *op_us, struct error *err) {
    struct loaded *loaded = exe->loaded;
    int n = exe->program->n_ops;
    for (int r = 0; r < REPLAYS; r++) {
        DEVICE_TRY(loaded->device, err, cudaGraphLaunch(graph, loaded->device->stream), "a graph with events");
        DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream), "a graph with events");
        for (int i = 0; i < n; i++)
            DEVICE_TRY(loaded->device, err,
                       cudaEventElapsedTime(&ms[i * REPLAYS + r], exe->marks[i].event, exe->marks[i + 1].event),
                       "op %d", i);
    }
    for (int i = 0; i < n; i++) {
        qsort(ms + i * REPLAYS, REPLAYS, sizeof *ms, by_value);
        op_us[program_op_of(exe->program, i)] = (double)ms[i * REPLAYS + REPLAYS / 2] * 1e3;
    }
    return OK;
}

static enum status trace(struct executable *exe, float *ms, double *op_us, struct error *err) {
    cudaGraphExec_t graph = NULL;
    for (int i = 0; i <= exe->program->n_ops; i++)
        DEVICE_TRY(exe->loaded->device, err, cudaEventCreate(&exe->marks[i].event), "an event");
    enum status st = capture(exe, &graph, err);
    if (st == OK)
        st = replay(exe, graph, ms, op_us, err);
    if (graph)
        cudaGraphExecDestroy(graph);
    return st;
}

enum status cuda_trace(struct executable *exe, double *op_us, int *op_nodes, struct error *err) {
    TRY(device_enter(exe->loaded->device, err));
    int n = exe->program->n_ops;
    float *ms = xcalloc((size_t)n * REPLAYS, sizeof *ms);
    exe->marks = xcalloc((size_t)n + 1, sizeof *exe->marks);
    enum status st = trace(exe, ms, op_us, err);
    for (int i = 0; i < n; i++)
        op_nodes[program_op_of(exe->program, i)] = exe->marks[i + 1].n_kernels - exe->marks[i].n_kernels;
    for (int i = 0; i <= n; i++)
        if (exe->marks[i].event)
            cudaEventDestroy(exe->marks[i].event);
    free(exe->marks);
    exe->marks = NULL;
    free(ms);
    return st;
}
