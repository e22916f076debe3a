/* launch.h - the nodes of a step on the stream, captured or not. */
#pragma once

#include "backend/cuda/cuda.h"

/* All ops, one after the other; all but SAMPLE, which is the last; those before the head; or some of them. */
enum status step_launch(struct executable *exe, const struct launch *l, struct error *err);
enum status step_launch_forward(struct executable *exe, const struct launch *l, struct error *err);
enum status step_launch_body(struct executable *exe, const struct launch *l, struct error *err);
enum status step_launch_ops(struct executable *exe, const struct launch *l, int first, int end, struct error *err);

void op_described(const struct executable *exe, const struct compiled_op *c, int n_rows, char *out, size_t n);

struct trace_mark { // before an op
    cudaEvent_t event;
    int n_kernels; // captured so far
};

enum status trace_mark(struct executable *exe, int op, struct error *err); // nothing, unless a step is traced

/* Ends the capture of the backend's stream, whatever came of recording: *out is the caller's where that was OK, else
 * nothing is left and the status given on. `what` of so many rows, for the sentence of a capture that fails. */
enum status graph_captured(struct loaded *loaded, enum status recorded, const char *what, int rows, cudaGraph_t *out,
                           struct error *err);
struct launch launch_of(const struct executable *exe, int rows); // a step that decodes in so many rows
struct launch launch_for(const struct executable *exe, const struct batch_plan *plan);
enum status graphs_capture(struct executable *exe, struct error *err);
bool graphs_have(const struct executable *exe, const struct batch_plan *plan); // one for this step
/* That graph, or of a late step the part up to there. Of a size that is rare it is captured first. */
enum status graphs_run(struct executable *exe, const struct batch_plan *plan, enum step_part part, struct error *err);
void graphs_free(struct executable *exe);
