/* replicas.c - see replicas.h. Rank 0 acts for all between two meetings: at the first it knows that everybody's part is
 * there, at the second they know what came of it. */
#include "backend/xla/replicas.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct replicas {
    pthread_barrier_t barrier;
    pthread_mutex_t mutex;
    int n, n_left; // n_left: not unloaded yet
    struct loaded **of;
    enum status *parts; // [n], of the launch at hand
    struct pjrt_buffer *const **arguments;
    struct pjrt_buffer ***outputs;
    const struct compiled *compiled; // what rank 0 found
    enum status status;              // what came of it
    struct error fault;
};

static enum status compare(const struct loaded *a, const struct loaded *b, struct error *err) {
    const struct program *p = b->program;
    for (int i = 0; i < b->n_weights; i++)
        if (!shape_equals(a->weights[i].shape, b->weights[i].shape))
            return fail(err, ERR_UNSUPPORTED,
                        "%s: %s: rank %d of %d has a share of another size than rank 0, and "
                        "device xla runs one program on all",
                        p->name, b->weights[i].weight->name, p->rank, p->n_ranks);
    return OK;
}

static enum status check(struct loaded *const *loaded, int n, struct error *err) {
    for (int i = 0; i < n; i++) {
        const struct program *p = loaded[i]->program;
        BUG_IF(loaded[i]->replicas || loaded[i]->n_weights != loaded[0]->n_weights);
        if (p->rank != i || p->n_ranks != n)
            return fail(err, ERR_ARG, "%s: rank %d of %d was joined as rank %d of %d", p->name, p->rank, p->n_ranks, i,
                        n);
        if (loaded[i]->device->pjrt != loaded[0]->device->pjrt)
            return fail(err, ERR_ARG, "%s: ranks 0 and %d are of two plugins", p->name, i);
        for (int k = 0; k < i; k++)
            if (loaded[k]->device->index == loaded[i]->device->index)
                return fail(err, ERR_ARG, "%s: ranks %d and %d are on one device", p->name, k, i);
        TRY(compare(loaded[0], loaded[i], err));
    }
    return OK;
}

enum status replicas_join(struct loaded *const *loaded, int n, struct error *err) {
    TRY(check(loaded, n, err));
    struct replicas *r = xcalloc(1, sizeof *r);
    r->n = r->n_left = n;
    r->of = xcalloc((size_t)n, sizeof *r->of);
    r->parts = xcalloc((size_t)n, sizeof *r->parts);
    r->arguments = xcalloc((size_t)n, sizeof *r->arguments);
    r->outputs = xcalloc((size_t)n, sizeof *r->outputs);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_barrier_init(&r->barrier, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        r->of[i] = loaded[i];
        loaded[i]->replicas = r;
    }
    return OK;
}

void replicas_leave(struct replicas *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    bool is_last = --r->n_left == 0;
    pthread_mutex_unlock(&r->mutex);
    if (!is_last)
        return;
    pthread_barrier_destroy(&r->barrier);
    pthread_mutex_destroy(&r->mutex);
    free(r->of);
    free(r->parts);
    free(r->arguments);
    free(r->outputs);
    free(r);
}

int replicas_devices(const struct loaded *l, int ids[XLA_MAX_RANKS]) {
    int n = l->replicas ? l->replicas->n : 1;
    for (int i = 0; i < n; i++) {
        const struct device *d = l->replicas ? l->replicas->of[i]->device : l->device;
        ids[i] = pjrt_device_id(d->pjrt, d->index);
    }
    return n;
}

static enum status come_of(const struct replicas *r, struct error *err) {
    if (r->status != OK)
        *err = r->fault;
    return r->status;
}

enum status replicas_compiled(struct loaded *l, const struct launch_shape *shape, const struct compiled **out,
                              struct error *err) {
    struct replicas *r = l->replicas;
    if (!r)
        return compiled_step(l, shape, out, err);
    pthread_barrier_wait(&r->barrier);
    if (l->program->rank == 0)
        r->status = compiled_step(l, shape, &r->compiled, &r->fault);
    pthread_barrier_wait(&r->barrier);
    *out = r->compiled;
    return come_of(r, err);
}

static enum status execute_all(struct replicas *r, const struct compiled *program, int n_arguments, struct error *err) {
    for (int i = 0; i < r->n; i++)
        if (r->parts[i] != OK)
            return fail(err, r->parts[i], "device xla: rank %d of %d has failed", i, r->n);
    return pjrt_execute(r->of[0]->device->pjrt, program->program, (struct pjrt_buffer *const *const *)r->arguments,
                        r->n, n_arguments, (struct pjrt_buffer * *const *)r->outputs, err);
}

enum status replicas_execute(struct loaded *l, const struct compiled *program, int n_arguments, enum status mine,
                             struct error *err) {
    struct replicas *r = l->replicas;
    if (!r)
        return mine == OK ? compiled_execute(l, program, n_arguments, err) : mine;
    int rank = l->program->rank;
    r->parts[rank] = mine;
    r->arguments[rank] = l->arguments;
    r->outputs[rank] = l->outputs;
    pthread_barrier_wait(&r->barrier);
    if (rank == 0)
        r->status = execute_all(r, program, n_arguments, &r->fault);
    pthread_barrier_wait(&r->barrier);
    return mine == OK ? come_of(r, err) : mine;
}
