/* read_ahead.c - see model.h: which tensors of the checkpoint a program computes with, to be read, and to be put in
 * large pages. A weight keeps addresses in the
 * map and no names, so the tensors are found by those. */
#include "model/model.h"

#include <pthread.h>
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

/* wanted [tensors of the checkpoint], to be freed. */
static bool *tensors_of(const struct checkpoint *c, const struct program *p) {
    size_t n = checkpoint_count(c);
    struct marking m = {c, xcalloc(n + 1, sizeof *m.by_address), n, xcalloc(n + 1, sizeof *m.wanted)};
    for (size_t i = 0; i < n; i++)
        m.by_address[i] = i;
    qsort_r(m.by_address, n, sizeof *m.by_address, by_address, &m);
    for (int i = 0; i < p->n_ops; i++)
        for (int slot = 0; slot < OP_MAX_WEIGHTS; slot++)
            if (p->ops[i].weights[slot])
                mark_weight(&m, p->ops[i].weights[slot]);
    free(m.by_address);
    return m.wanted;
}

void model_read_ahead(const struct model *m, const struct program *part, const struct load_progress *progress) {
    if (m->checkpoint && part) {
        bool *wanted = tensors_of(m->checkpoint, part);
        checkpoint_read_ahead_some(m->checkpoint, wanted, progress);
        free(wanted);
    } else if (m->checkpoint) {
        checkpoint_read_ahead(m->checkpoint, progress);
    }
}

struct settling {
    const struct checkpoint *checkpoint;
    bool *wanted;
    int64_t reserved;
    atomic_bool stop;
    bool is_joined;
    pthread_t thread;
};

static void *settle(void *arg) {
    struct settling *s = arg;
    checkpoint_put_in_large_pages(s->checkpoint, s->wanted, s->reserved, &s->stop);
    return NULL;
}

struct settling *model_settle_begin(const struct model *m, const struct program *part, int64_t reserved) {
    if (!m->checkpoint)
        return NULL;
    struct settling *s = xcalloc(1, sizeof *s);
    *s = (struct settling){.checkpoint = m->checkpoint, .reserved = reserved};
    s->wanted = tensors_of(m->checkpoint, part ? part : m->program);
    s->is_joined = pthread_create(&s->thread, NULL, settle, s) != 0; // no thread: all stays where it is
    return s;
}

void model_settle_wait(struct settling *s) {
    if (s && !s->is_joined)
        pthread_join(s->thread, NULL);
    if (s)
        s->is_joined = true;
}

void model_settle_end(struct settling *s) {
    if (!s)
        return;
    atomic_store(&s->stop, true);
    model_settle_wait(s);
    free(s->wanted);
    free(s);
}
