/* meeting_nodes.c - ALL_REDUCE and ALL_GATHER of a step as nodes; see meeting.h. */
#include "backend/cuda/ranks/join.h"
#include "backend/cuda/ranks/meeting.h"
#include "backend/cuda/step/node.h"

/* How many rows the step has of those of the node's op, on the device. */
static const int32_t *rows_counted(const struct node *n) {
    const struct program *p = n->exe->program;
    return n->exe->plan_view.counts + (p->values[n->c->op->in[0].id].rows == ROWS_TOKENS ? 0 : 2);
}

static enum status put_all_reduce(const struct node *n, const struct launch *l, struct error *err) {
    (void)err; // what does not start shows as cudaGetLastError
    launch_all_reduce(l, n->n_rows, ranks_meeting(n->exe->loaded), rows_counted(n), n->in[0], n->c->out[0]);
    return OK;
}

static enum status put_all_gather(const struct node *n, const struct launch *l, struct error *err) {
    (void)err;
    launch_all_gather(l, n->n_rows, ranks_meeting(n->exe->loaded), rows_counted(n), n->c->in[0],
                      n->c->op->args.all_gather.first, n->c->out[0]);
    return OK;
}

static enum status put_rescale(const struct node *n, const struct launch *l, struct error *err) {
    (void)err;
    launch_rescale(l, n->n_rows, n->in[0], n->out);
    return OK;
}

static const struct node_kernel by_all_reduce = {"all_reduce", "meeting.cu", put_all_reduce, NULL},
                                by_all_gather = {"all_gather", "meeting.cu", put_all_gather, NULL},
                                by_rescale = {"rescale", "quantise.cu", put_rescale, NULL};

/* Products that are unscaled go into packets as values; where ranks read each other's they become values first, in y.
 */
void lower_all_reduce(struct lowering *w, const struct compiled_op *c, int n_rows) {
    struct dmat x = input_of(w->exe, c, 0, n_rows);
    if (x.col_scale && !all_reduce_takes_unscaled(x, n_rows)) {
        struct node *n = lower_node(w, &by_rescale, c, n_rows);
        n->in[0] = x, n->out = c->out[0];
        x = c->out[0];
    }
    lower_node(w, &by_all_reduce, c, n_rows)->in[0] = x;
}

void lower_all_gather(struct lowering *w, const struct compiled_op *c, int n_rows) {
    lower_node(w, &by_all_gather, c, n_rows);
}
