/* explain.c - what a step that only decodes is made of (backend_probes.nodes). */
#include "backend/cuda/device/probes.h"
#include "backend/cuda/step/launch.h"
#include "backend/cuda/step/node.h"
#include "backend/cuda/step/padded.h"

static struct device_node told(const struct executable *exe, const struct node *n) {
    bool is_linear = n->linear != NULL;
    return (struct device_node){.op = program_op_of(exe->program, (int)(n->c - exe->ops)),
                                .op_name = op_name(n->c->op->code),
                                .n_rows = n->n_rows,
                                .kernel = is_linear ? n->linear->name : n->kernel->name,
                                .file = is_linear ? n->linear->file : n->kernel->file,
                                .why = is_linear ? linear_why(n->c, n->n_rows) : NULL};
}

int cuda_nodes(struct executable *exe, int n_rows, struct device_node *out, int most) {
    struct launch l = launch_of(exe, padded_rows(n_rows));
    int n = step_lower(exe, &l, 0, exe->program->n_ops);
    for (int i = 0; i < MIN(n, most); i++)
        out[i] = told(exe, &exe->nodes[i]);
    return n;
}
