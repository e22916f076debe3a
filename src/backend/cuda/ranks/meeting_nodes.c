/* meeting_nodes.c - ALL_REDUCE and ALL_GATHER of a step as nodes; see meeting.h. */
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/ranks/meeting.h"
#include "backend/cuda/step/node.h"

/* How many rows the step has of those of the node's op, on the device. */
static const int32_t *rows_counted(const struct executable *exe, const struct compiled_op *c) {
    return exe->plan_view.counts + (exe->program->values[c->op->in[0].id].rows == ROWS_TOKENS ? 0 : 2);
}

static enum status put_all_reduce(const struct node *n, const struct launch *l, struct error *err) {
    (void)err; // what does not start shows as cudaGetLastError
    launch_all_reduce(l, n->n_rows, ranks_meeting(n->exe->loaded), rows_counted(n->exe, n->c), n->in[0], n->c->out[0]);
    return OK;
}

/* Logits that no row asks for stay where they are, if the largest are told. */
static enum status put_all_gather(const struct node *n, const struct launch *l, struct error *err) {
    const struct executable *exe = n->exe;
    const int32_t *rows = rows_counted(exe, n->c), *asked = exe->plan_view.counts + 3;
    (void)err;
    launch_all_gather(l, n->n_rows, ranks_meeting(exe->loaded), rows, ranks_have_bests(exe, n->n_rows) ? asked : rows,
                      n->c->in[0], n->c->op->args.all_gather.first, n->c->out[0]);
    return OK;
}

static enum status put_gather_largest(const struct node *n, const struct launch *l, struct error *err) {
    (void)err;
    launch_gather_largest(l, n->n_rows, ranks_meeting(n->exe->loaded), rows_counted(n->exe, n->c), n->c->in[0],
                          n->c->op->args.all_gather.first, (struct dlargest *)n->exe->bests, HEAD_BESTS);
    return OK;
}

static enum status put_rescale(const struct node *n, const struct launch *l, struct error *err) {
    (void)err;
    launch_rescale(l, n->n_rows, n->in[0], n->out);
    return OK;
}

static const struct node_kernel by_all_reduce = {"all_reduce", "meeting.cu", put_all_reduce, NULL},
                                by_all_gather = {"all_gather", "meeting.cu", put_all_gather, NULL},
                                by_gather_largest = {"gather_largest", "meeting.cu", put_gather_largest, NULL},
                                by_rescale = {"rescale", "quantise.cu", put_rescale, NULL};

static bool is_in_norm(const struct executable *exe, const struct compiled_op *add_norm, int n_rows) {
    const struct compiled_op *reduce = add_norm->reduce;
    return reduce && exe->loaded->device->is_fast && n_rows <= ADD_NORM_FEW &&
           (int64_t)n_rows * reduce->in[0].width <= MEETING_IN_NORM;
}

void lower_reduce_in_norm(struct lowering *w, const struct compiled_op *add_norm, int n_rows, struct node *n) {
    if (!is_in_norm(w->exe, add_norm, n_rows))
        return;
    n->in[1] = input_of(w->exe, add_norm->reduce, 0, n_rows);
    n->args.add_norm.meeting = ranks_meeting(w->exe->loaded);
    n->args.add_norm.rows = rows_counted(w->exe, add_norm->reduce);
}

/* Products that are unscaled go into packets as values; where ranks read each other's they become values first, in y.
 */
void lower_all_reduce(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (c->reduce && is_in_norm(w->exe, c->reduce, n_rows))
        return;
    struct dmat x = input_of(w->exe, c, 0, n_rows);
    if (x.col_scale && !all_reduce_takes_unscaled(ranks_meeting(w->exe->loaded), x, n_rows)) {
        struct node *n = lower_node(w, &by_rescale, c, n_rows);
        n->in[0] = x, n->out = c->out[0];
        x = c->out[0];
    }
    lower_node(w, &by_all_reduce, c, n_rows)->in[0] = x;
}

void lower_all_gather(struct lowering *w, const struct compiled_op *c, int n_rows) {
    if (ranks_have_bests(w->exe, n_rows))
        lower_node(w, &by_gather_largest, c, n_rows);
    lower_node(w, &by_all_gather, c, n_rows);
}
