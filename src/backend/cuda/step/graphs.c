/* graphs.c - the ops of a step that only decodes, captured when an executable is compiled, once for each number of
 * rows.
 *
 * Nothing that a node was captured with depends on the step: addresses are frozen, and how many rows there are is read
 * from the plan on the device. Those of late steps, all but SAMPLE, are captured when the first of their size comes:
 * that takes some milliseconds once, where otherwise each start would for graphs that few need. A step that also
 * computes prompts, and one of more than MOST_GRAPH_ROWS rows, has work enough to hide its launches. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/moe/moe.h"
#include "backend/cuda/step/graph_fills.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/padded.h"
#include "backend/cuda/value.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GRAPH_ROWS = 512 };
_Static_assert((int)MOST_GRAPH_ROWS == (int)MOE_GRAPH_TOKENS, "larger steps have no padding");

struct launch launch_of(const struct executable *exe, int rows) {
    return (struct launch){exe->loaded->device->stream, rows, rows, rows, exe->plan_view,
                           exe->loaded->block_size,     true};
}

// ---- capturing --------------------------------------------------------------------------------------------------

enum status graph_captured(struct loaded *loaded, enum status recorded, const char *what, int rows, cudaGraph_t *out,
                           struct error *err) {
    cudaError_t code = cudaStreamEndCapture(loaded->device->stream, out);
    if (recorded == OK)
        DEVICE_TRY(loaded->device, err, code, "%s of %d rows", what, rows);
    else if (code == cudaSuccess)
        cudaGraphDestroy(*out);
    return recorded;
}

typedef enum status launches(struct executable *exe, const struct launch *l, struct error *err);

/* The nodes of a step, or of a part of one. */
static enum status record(struct executable *exe, const struct launch *l, launches *part,
                          enum cudaStreamCaptureMode mode, cudaGraph_t *out, struct error *err) {
    struct loaded *loaded = exe->loaded;
    DEVICE_TRY(loaded->device, err, cudaStreamBeginCapture(loaded->device->stream, mode), "a graph for %d rows",
               l->n_tokens);
    return graph_captured(loaded, part(exe, l, err), "a graph", l->n_tokens, out, err);
}

static enum status instantiate(struct executable *exe, int rows, launches *part, cudaGraphExec_t *out,
                               struct error *err) {
    struct loaded *loaded = exe->loaded;
    struct launch l = launch_of(exe, rows);
    cudaGraph_t graph;
    TRY(record(exe, &l, part, cudaStreamCaptureModeThreadLocal, &graph, err));
    cudaError_t code = graph_gather_fills(graph, exe->counters, (size_t)exe->program->n_ops * COUNTER_BYTES);
    if (code == cudaSuccess)
        code = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    DEVICE_TRY(loaded->device, err, code, "a graph for %d rows", rows);
    return OK;
}

/* Once outside of a graph before: what a kernel's first launch loads must not be loaded while capturing. The plan on
 * the device is that of a step without rows. */
static enum status capture(struct executable *exe, int rows, cudaGraphExec_t *out, struct error *err) {
    struct launch l = launch_of(exe, rows);
    TRY(step_launch(exe, &l, err));
    return instantiate(exe, rows, step_launch, out, err);
}

/* Steps of prompts are no graphs, but recording one loads the kernels that it would launch, as this mode lets it,
 * without computing: the first prompts need not wait for them (where plans are kept the library's have not run yet). */
static enum status load_prompts(struct executable *exe, struct error *err) {
    int last = padded_index(exe->bucket.max_tokens);
    for (int i = exe->n_graphs; i <= last; i++) {
        int rows = MIN(padded_rows_at(i), exe->bucket.max_tokens);
        struct launch l = {exe->loaded->device->stream, rows,           1, 1, exe->plan_view,
                           exe->loaded->block_size,     .watches = true};
        cudaGraph_t graph;
        TRY(record(exe, &l, step_launch, cudaStreamCaptureModeRelaxed, &graph, err));
        cudaGraphDestroy(graph);
    }
    return OK;
}

enum status graphs_capture(struct executable *exe, struct error *err) {
    struct loaded *loaded = exe->loaded;
    if (loaded->device->eager)
        return OK;
    int n = padded_index(MIN(padded_rows(exe->bucket.max_seqs), MOST_GRAPH_ROWS)) + 1;
    exe->graphs = xcalloc((size_t)n, sizeof *exe->graphs);
    exe->late_graphs = xcalloc((size_t)n, sizeof *exe->late_graphs);
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(exe->plan_device, 0, exe->plan_bytes, loaded->device->stream),
               "an empty plan");
    for (int i = 0; i < n; i++) {
        TRY(capture(exe, padded_rows_at(i), &exe->graphs[i], err));
        exe->n_graphs = i + 1; // to be freed, whatever comes
        DEVICE_TRY(loaded->device, err, cudaGraphUpload(exe->graphs[i], loaded->device->stream), "a graph for %d rows",
                   padded_rows_at(i));
    }
    TRY(load_prompts(exe, err));
    DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream), "%s: steps without rows",
               exe->program->name);
    return OK;
}

/* As graphs are captured: a token a sequence, and a row a token. */
static bool decodes_only(const struct batch_plan *p) {
    bool is = p->n_tokens == p->n_seqs && p->n_rows == p->n_seqs;
    for (int r = 0; is && r < p->n_rows; r++)
        is = p->out_row[r] == r;
    return is;
}

/* A step that could be a graph is started as one would have been captured, so that without graphs it computes the same.
 */
struct launch launch_for(const struct executable *exe, const struct batch_plan *p) {
    if (decodes_only(p) && p->n_tokens > 0 && p->n_tokens <= MOST_GRAPH_ROWS)
        return launch_of(exe, padded_rows(p->n_tokens));
    return (struct launch){exe->loaded->device->stream, p->n_tokens, p->n_seqs, p->n_rows, exe->plan_view,
                           exe->loaded->block_size,     false};
}

bool graphs_have(const struct executable *exe, const struct batch_plan *p) {
    return decodes_only(p) && p->n_tokens > 0 && padded_index(padded_rows(p->n_tokens)) < exe->n_graphs;
}

enum status graphs_run(struct executable *exe, int n_rows, struct error *err) {
    struct loaded *loaded = exe->loaded;
    DEVICE_TRY(loaded->device, err,
               cudaGraphLaunch(exe->graphs[padded_index(padded_rows(n_rows))], loaded->device->stream),
               "the graph for %d rows", n_rows);
    return OK;
}

enum status graphs_run_forward(struct executable *exe, int n_rows, struct error *err) {
    int i = padded_index(padded_rows(n_rows));
    if (!exe->late_graphs[i])
        TRY(instantiate(exe, padded_rows_at(i), step_launch_forward, &exe->late_graphs[i], err));
    DEVICE_TRY(exe->loaded->device, err, cudaGraphLaunch(exe->late_graphs[i], exe->loaded->device->stream),
               "the late graph for %d rows", n_rows);
    return OK;
}

void graphs_free(struct executable *exe) {
    for (int i = 0; i < exe->n_graphs; i++) {
        cudaGraphExecDestroy(exe->graphs[i]);
        if (exe->late_graphs[i])
            cudaGraphExecDestroy(exe->late_graphs[i]);
    }
    free(exe->graphs);
    free(exe->late_graphs);
}
