/* replicas.c - see replicas.h. Rank 0 acts for all between two meetings: at the first it knows that everybody's part is
 * there, at the second they know what came of it. */
#include "backend/xla/replicas.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct replicas {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n, n_left;      // n_left: not unloaded yet
    int n_here;         // of the meeting that is gathering ...
    int64_t n_meetings; // ... and how many were held before
    bool is_broken;     // a rank has failed, and comes to no meeting any more
    struct error fault; // its sentence
    struct loaded **of;
    struct pjrt_buffer *const **arguments; // [n], of the launch at hand
    struct pjrt_buffer ***outputs;
    const struct compiled *compiled; // what rank 0 found
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

/* What each rank decides by itself is the same on all: rank 0 compiles for all, and cards may tell different sizes. */
static void level_dense(struct loaded *const *loaded, int n) {
    int64_t least = loaded[0]->device->dense_bytes;
    for (int i = 1; i < n; i++)
        least = MIN(least, loaded[i]->device->dense_bytes);
    for (int i = 0; i < n; i++)
        loaded[i]->device->dense_bytes = least;
}

enum status replicas_join(struct loaded *const *loaded, int n, struct error *err) {
    TRY(check(loaded, n, err));
    struct replicas *r = xcalloc(1, sizeof *r);
    r->n = r->n_left = n;
    r->of = xcalloc((size_t)n, sizeof *r->of);
    r->arguments = xcalloc((size_t)n, sizeof *r->arguments);
    r->outputs = xcalloc((size_t)n, sizeof *r->outputs);
    level_dense(loaded, n);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    for (int i = 0; i < n; i++) {
        r->of[i] = loaded[i];
        loaded[i]->replicas = r;
        loaded[i]->n_ids = n;
        for (int k = 0; k < n; k++)
            loaded[i]->ids[k] = pjrt_device_id(loaded[k]->device->pjrt, loaded[k]->device->index);
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
    pthread_mutex_destroy(&r->mutex);
    pthread_cond_destroy(&r->changed);
    free(r->of);
    free(r->arguments);
    free(r->outputs);
    free(r);
}

/* Returns when all ranks are here; or with the fault of one that does not come. */
static enum status meet(struct replicas *r, struct error *err) {
    pthread_mutex_lock(&r->mutex);
    int64_t meeting = r->n_meetings;
    if (++r->n_here == r->n) {
        r->n_here = 0;
        r->n_meetings++;
        pthread_cond_broadcast(&r->changed);
    }
    while (r->n_meetings == meeting && !r->is_broken)
        pthread_cond_wait(&r->changed, &r->mutex);
    enum status st = r->n_meetings == meeting || r->is_broken ? r->fault.status : OK;
    if (st != OK)
        *err = r->fault;
    pthread_mutex_unlock(&r->mutex);
    return st;
}

void replicas_break(struct loaded *l, const struct error *fault) {
    struct replicas *r = l->replicas;
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    if (!r->is_broken) {
        r->fault = *fault;
        r->fault.status = ERR_DEVICE;
    }
    r->is_broken = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

enum status replicas_compiled(struct loaded *l, const struct launch_shape *shape, const struct compiled **out,
                              struct error *err) {
    struct replicas *r = l->replicas;
    if (!r)
        return compiled_step(l, shape, out, err);
    TRY(meet(r, err));
    if (l->program->rank == 0)
        TRY(compiled_step(l, shape, &r->compiled, err)); // whose caller breaks up the meeting
    TRY(meet(r, err));
    *out = r->compiled;
    return OK;
}

enum status replicas_execute(struct loaded *l, const struct compiled *program, int n_arguments, struct error *err) {
    struct replicas *r = l->replicas;
    if (!r)
        return compiled_execute(l, program, n_arguments, err);
    r->arguments[l->program->rank] = l->arguments;
    r->outputs[l->program->rank] = l->outputs;
    TRY(meet(r, err));
    if (l->program->rank == 0)
        TRY(pjrt_execute(l->device->pjrt, program->program, (struct pjrt_buffer *const *const *)r->arguments, r->n,
                         n_arguments, (struct pjrt_buffer * *const *)r->outputs, err));
    return meet(r, err);
}
