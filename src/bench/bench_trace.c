/* bench_trace.c - see bench_trace.h. */
#include "bench/bench_trace.h"

#include "bench/bench_floor.h"
#include "engine/inspect.h"

#include <stdio.h>
#include <stdlib.h>

/* Ops that do the same with weights of the same shape are one line. */
static bool same_work(const struct op *a, const struct op *b) {
    const struct weight *x = a->weights[0], *y = b->weights[0];
    return a->code == b->code && a->in[0].width == b->in[0].width && a->out[0].width == b->out[0].width && !x == !y &&
           (!x || (x->out == y->out && x->in == y->in));
}

/* The layer with the fewest nodes and the one with the most; ops with nodes in that, in order. */
static void print_nodes_of_layers(const struct program *p, const int *op_nodes) {
    int least = 0, most = -1, first = 0, end = 0;
    for (int s = 0; s < p->n_sections; s++) {
        int from = p->sections[s].first_op, to = s + 1 < p->n_sections ? p->sections[s + 1].first_op : p->n_ops, n = 0;
        for (int i = from; i < to; i++)
            n += op_nodes[i];
        if (p->sections[s].layer < 0)
            continue;
        least = most < 0 ? n : MIN(least, n);
        if (n > most)
            most = n, first = from, end = to;
    }
    if (most < 0)
        return;
    if (least < most)
        printf("      layers have %d to %d nodes:", least, most);
    else
        printf("      a layer has %d nodes:", most);
    for (int i = first; i < end; i++)
        for (int k = 0; k < op_nodes[i]; k++)
            printf(" %s", op_name(p->ops[i].code));
    printf("\n");
}

/* Of a step in which n_seqs sequences, each with `before` tokens in the cache, computed n_new. */
static void print_ops(const struct gyre *g, const struct device_limits *limits, double n_seqs, double before,
                      double n_new, double n_experts, const double *op_us, const int *op_nodes) {
    const struct program *p = engine_parts(g).program;
    double all_us = 0;
    int all_nodes = 0;
    bool *told = xcalloc((size_t)p->n_ops, sizeof *told);
    for (int i = 0; i < p->n_ops; i++) {
        double us = 0, floor_us = 0;
        int n = 0, n_nodes = 0;
        for (int k = i; k < p->n_ops && !told[i]; k++)
            if (!told[k] && same_work(&p->ops[i], &p->ops[k])) {
                us += op_us[k];
                n_nodes += op_nodes[k];
                floor_us += bench_floor_op(g, limits, k, n_seqs, before, n_new, n_experts).seconds * 1e6;
                n++;
                told[k] = k != i;
            }
        if (n > 0 && us > 0)
            printf("      %-13s %7d > %-7d x %-3d %4d nodes %9.1f us %7.2f each   floor %9.1f us %6.1f %%\n",
                   op_name(p->ops[i].code), p->ops[i].in[0].width, p->ops[i].out[0].width, n, n_nodes, us, us / n,
                   floor_us, 100 * floor_us / us);
        all_us += us;
        all_nodes += n_nodes;
    }
    printf("      in all %.1f us, %d nodes\n", all_us, all_nodes);
    print_nodes_of_layers(p, op_nodes);
    free(told);
}

enum status bench_trace(struct gyre *g, const struct device_limits *limits, double n_seqs, double before, double n_new,
                        double n_experts, struct error *err) {
    struct engine_parts e = engine_parts(g);
    if (!e.ops->probes || !e.ops->probes->trace)
        return fail(err, ERR_UNSUPPORTED, "bench decode: --device %s cannot tell how long an op takes", e.ops->name);
    double *op_us = xcalloc((size_t)e.program->n_ops, sizeof *op_us);
    int *op_nodes = xcalloc((size_t)e.program->n_ops, sizeof *op_nodes);
    enum status st = e.ops->probes->trace(e.exe, op_us, op_nodes, err);
    if (st == OK)
        print_ops(g, limits, n_seqs, before, n_new, n_experts, op_us, op_nodes);
    free(op_nodes);
    free(op_us);
    return st;
}
