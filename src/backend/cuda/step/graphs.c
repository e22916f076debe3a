/* graphs.c - the ops of a step of few tokens a sequence, captured once for each number of tokens: of one that only
 * decodes when an executable is compiled, of others when the first of their size comes.
 *
 * Nothing that a node was captured with depends on the step: addresses are frozen, and how many rows there are is read
 * from the plan on the device. Those of late steps, all but SAMPLE or what comes before the head, are captured when the
 * first of their size comes: that takes some milliseconds once, where otherwise each start would for graphs that few
 * need. A step that computes longer prompts, or one alone, and one of more than MOST_GRAPH_ROWS tokens has work enough
 * to hide its launches. */
#include "backend/cuda/attention/lists.h"
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
                           exe->loaded->block_size,     true, true};
}

/* Sequences have up to ATTENTION_FEW_TOKENS tokens, at least one of them several: so there are fewer than tokens. */
static struct launch launch_of_drafts(const struct executable *exe, int rows) {
    return (struct launch){exe->loaded->device->stream, rows, rows - 1, rows, exe->plan_view,
                           exe->loaded->block_size,     true, true};
}

/* Likewise, and not every token has a row. */
static struct launch launch_of_few(const struct executable *exe, int tokens) {
    int rows = MIN(tokens, padded_rows(MAX(exe->bucket.max_rows, 1)));
    return (struct launch){exe->loaded->device->stream, tokens, tokens - 1, rows, exe->plan_view,
                           exe->loaded->block_size,     true,   false};
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

static enum status instantiate(struct executable *exe, const struct launch *l, launches *part,
                               enum cudaStreamCaptureMode mode, cudaGraphExec_t *out, struct error *err) {
    struct loaded *loaded = exe->loaded;
    cudaGraph_t graph;
    TRY(record(exe, l, part, mode, &graph, err));
    cudaError_t code = graph_gather_fills(graph, exe->counters, (size_t)exe->program->n_ops * COUNTER_BYTES);
    if (code == cudaSuccess)
        code = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    DEVICE_TRY(loaded->device, err, code, "a graph for %d rows", l->n_tokens);
    return OK;
}

/* Once outside of a graph before: what a kernel's first launch loads must not be loaded while capturing. The plan on
 * the device is that of a step without rows. */
static enum status capture(struct executable *exe, int rows, cudaGraphExec_t *out, struct error *err) {
    struct launch l = launch_of(exe, rows);
    TRY(step_launch(exe, &l, err));
    return instantiate(exe, &l, step_launch, cudaStreamCaptureModeThreadLocal, out, err);
}

/* Steps of prompts are no graphs, but recording one loads the kernels that it would launch, as this mode lets it,
 * without computing: the first prompts need not wait for them (where plans are kept the library's have not run yet). */
static enum status load_prompts(struct executable *exe, struct error *err) {
    int last = padded_index(exe->bucket.max_tokens);
    for (int i = exe->graphs[STEP_DECODES].n; i <= last; i++) {
        int rows = MIN(padded_rows_at(i), exe->bucket.max_tokens);
        struct launch l = {exe->loaded->device->stream, rows,           1, 1, exe->plan_view,
                           exe->loaded->block_size,     .watches = true};
        cudaGraph_t graph;
        TRY(record(exe, &l, step_launch, cudaStreamCaptureModeRelaxed, &graph, err));
        cudaGraphDestroy(graph);
    }
    return OK;
}

/* Room for graphs of steps of up to so many rows. */
static void make_room(struct step_graphs *g, int rows) {
    g->n = padded_index(MIN(padded_rows(rows), MOST_GRAPH_ROWS)) + 1;
    for (int part = 0; part < N_STEP_PARTS; part++)
        g->of[part] = xcalloc((size_t)g->n, sizeof *g->of[part]);
}

enum status graphs_capture(struct executable *exe, struct error *err) {
    struct loaded *loaded = exe->loaded;
    struct step_graphs *decode = &exe->graphs[STEP_DECODES];
    if (loaded->device->eager)
        return OK;
    int most_rows = MAX(exe->bucket.max_rows, 1); // fewer than sequences where a draft is asked of some of them alone
    make_room(decode, MIN(exe->bucket.max_seqs, most_rows));
    make_room(&exe->graphs[STEP_DRAFTS], MIN(exe->bucket.max_tokens, most_rows));
    make_room(&exe->graphs[STEP_FEW], exe->bucket.max_tokens);
    cudaGraphExec_t *whole = decode->of[STEP_WHOLE];
    DEVICE_TRY(loaded->device, err, cudaMemsetAsync(exe->plan_device, 0, exe->plan_bytes, loaded->device->stream),
               "an empty plan");
    for (int i = 0; i < decode->n; i++) {
        TRY(capture(exe, padded_rows_at(i), &whole[i], err));
        DEVICE_TRY(loaded->device, err, cudaGraphUpload(whole[i], loaded->device->stream), "a graph for %d rows",
                   padded_rows_at(i));
    }
    TRY(load_prompts(exe, err));
    DEVICE_TRY(loaded->device, err, cudaStreamSynchronize(loaded->device->stream), "%s: steps without rows",
               exe->program->name);
    return OK;
}

// ---- steps ------------------------------------------------------------------------------------------------------

/* Whether each token has a row, in their order. */
static bool is_in_order(const struct batch_plan *p) {
    for (int r = 0; r < p->n_rows; r++)
        if (p->out_row[r] != r)
            return false;
    return p->n_rows == p->n_tokens;
}

/* As graphs are captured: few tokens a sequence, and rows. */
static enum step_shape shape_of(const struct batch_plan *p) {
    if (p->n_rows == 0 || p->n_tokens > MOST_GRAPH_ROWS)
        return STEP_OTHER;
    for (int s = 0; s < p->n_seqs; s++)
        if (p->query_start[s + 1] - p->query_start[s] > ATTENTION_FEW_TOKENS)
            return STEP_OTHER;
    if (is_in_order(p))
        return p->n_tokens == p->n_seqs ? STEP_DECODES : STEP_DRAFTS;
    return p->n_tokens > p->n_seqs && p->n_seqs > 1 ? STEP_FEW : STEP_OTHER;
}

/* A step that could be a graph is started as one would have been captured, so that without graphs it computes the same.
 */
struct launch launch_for(const struct executable *exe, const struct batch_plan *p) {
    switch (shape_of(p)) {
    case STEP_DECODES: return launch_of(exe, padded_rows(p->n_tokens));
    case STEP_DRAFTS: return launch_of_drafts(exe, padded_rows(p->n_tokens));
    case STEP_FEW: return launch_of_few(exe, padded_rows(p->n_tokens));
    default:
        return (struct launch){exe->loaded->device->stream, p->n_tokens, p->n_seqs, p->n_rows, exe->plan_view,
                               exe->loaded->block_size,     false,       false};
    }
}

bool graphs_have(const struct executable *exe, const struct batch_plan *p) {
    enum step_shape shape = shape_of(p);
    return shape != STEP_OTHER && padded_index(p->n_tokens) < exe->graphs[shape].n;
}

enum status graphs_run(struct executable *exe, const struct batch_plan *p, enum step_part part, struct error *err) {
    static launches *const launched[N_STEP_PARTS] = {step_launch, step_launch_forward, step_launch_body};
    cudaGraphExec_t *graph = &exe->graphs[shape_of(p)].of[part][padded_index(p->n_tokens)];
    struct launch l = launch_for(exe, p);
    if (!*graph) // recording loads kernels that have not run yet, as this mode lets it
        TRY(instantiate(exe, &l, launched[part], cudaStreamCaptureModeRelaxed, graph, err));
    DEVICE_TRY(exe->loaded->device, err, cudaGraphLaunch(*graph, exe->loaded->device->stream), "the graph for %d rows",
               l.n_tokens);
    return OK;
}

void graphs_free(struct executable *exe) {
    for (int shape = 0; shape < STEP_OTHER; shape++) {
        struct step_graphs *g = &exe->graphs[shape];
        for (int part = 0; part < N_STEP_PARTS; part++) {
            for (int i = 0; i < g->n; i++)
                if (g->of[part][i])
                    cudaGraphExecDestroy(g->of[part][i]);
            free(g->of[part]);
        }
    }
}
