/* read_ahead.c - see model.h: which tensors of the checkpoint a program computes with. A weight keeps addresses in the
 * map and no names, so the tensors are found by those. */
#include "model/model.h"

#include <stdlib.h>

struct marking {
    const struct checkpoint *checkpoint;
    size_t *by_address; // [n], numbers of tensors
    size_t n;
    bool *wanted; // [n]
};

static uintptr_t address_of(const struct marking *m, size_t i) {
    return (uintptr_t)checkpoint_at(m->checkpoint, i)->data;
}

static int by_address(const void *a, const void *b, void *context) {
    uintptr_t x = address_of(context, *(const size_t *)a), y = address_of(context, *(const size_t *)b);
    return (x > y) - (x < y);
}

/* What is no address of a tensor was made when weights were bound. */
static void mark(struct marking *m, const void *at) {
    size_t low = 0, high = m->n;
    while (high > low) {
        size_t middle = (low + high) / 2;
        if (address_of(m, m->by_address[middle]) <= (uintptr_t)at)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return;
    size_t found = m->by_address[low - 1];
    const struct stored_tensor *t = checkpoint_at(m->checkpoint, found);
    if ((uintptr_t)at - (uintptr_t)t->data < t->n_bytes)
        m->wanted[found] = true;
}

static void mark_weight(struct marking *m, const struct weight *w) {
    for (const struct weight_part *p = w->parts; p < w->parts + w->n_parts; p++) {
        mark(m, p->data);
        mark(m, p->scale.data);
        if (p->packed)
            mark(m, p->packed->zeros), mark(m, p->packed->group_of);
        if (p->codes)
            mark(m, p->codes->scales), mark(m, p->codes->outer);
    }
}

static void read_part(const struct checkpoint *c, const struct program *p, const struct load_progress *progress) {
    size_t n = checkpoint_count(c);
    struct marking m = {c, xcalloc(n + 1, sizeof *m.by_address), n, xcalloc(n + 1, sizeof *m.wanted)};
    for (size_t i = 0; i < n; i++)
        m.by_address[i] = i;
    qsort_r(m.by_address, n, sizeof *m.by_address, by_address, &m);
    for (int i = 0; i < p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++)
            if (p->ops[i].weights[slot])
                mark_weight(&m, p->ops[i].weights[slot]);
    checkpoint_read_ahead_some(c, m.wanted, progress);
    free(m.by_address);
    free(m.wanted);
}

void model_read_ahead(const struct model *m, const struct program *part, const struct load_progress *progress) {
    if (m->checkpoint && part)
        read_part(m->checkpoint, part, progress);
    else if (m->checkpoint)
        checkpoint_read_ahead(m->checkpoint, progress);
}
