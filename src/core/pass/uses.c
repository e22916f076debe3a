/* uses.c - see uses.h. */
#include "core/pass/uses.h"

#include "base/status.h"

#include <stdlib.h>

void uses_init(struct uses *u, const struct program *p) {
    size_t n_values = (size_t)p->n_values;
    *u = (struct uses){.program = p};
    u->made_by = xcalloc(n_values + 1, sizeof *u->made_by);
    u->first = xcalloc(n_values + 2, sizeof *u->first);
    u->readers = xcalloc((size_t)p->n_ops * OP_MAX_IN + 1, sizeof *u->readers);
    for (int i = 0; i < p->n_ops; i++) {
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (val_given(p->ops[i].out[k]))
                u->made_by[p->ops[i].out[k].id] = i;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (val_given(p->ops[i].in[k]))
                u->first[p->ops[i].in[k].id + 2]++;
    }
    for (int v = 0; v < p->n_values; v++)
        u->first[v + 2] += u->first[v + 1];
    for (int i = 0; i < p->n_ops;
         i++) // first[v + 1] is where v's next reader goes, and in the end where the value behind it begins
        for (int k = 0; k < OP_MAX_IN; k++)
            if (val_given(p->ops[i].in[k]))
                u->readers[u->first[p->ops[i].in[k].id + 1]++] = i;
}

void uses_release(struct uses *u) {
    free(u->made_by);
    free(u->first);
    free(u->readers);
    *u = (struct uses){0};
}

const struct op *uses_only_reader(const struct uses *u, val v) {
    int begin = u->first[v.id], end = u->first[v.id + 1];
    bool is_one = begin < end && u->readers[begin] == u->readers[end - 1];
    return is_one ? &u->program->ops[u->readers[begin]] : NULL;
}
