/* node.c - see node.h. */
#include "backend/cuda/step/node.h"

struct node *lower_node(struct lowering *w, const struct node_kernel *kernel, const struct compiled_op *c, int n_rows) {
    BUG_IF(w->n >= NODES_OF_OP * w->exe->program->n_ops);
    struct node *n = &w->nodes[w->n++];
    *n = (struct node){.kernel = kernel, .exe = w->exe, .c = c, .n_rows = n_rows};
    return n;
}
