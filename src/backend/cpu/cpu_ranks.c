/* cpu_ranks.c - ALL_REDUCE, ALL_GATHER: ranks of a model in one process, each loaded on a device (a pool of threads) of
 * its own, read each other's values where they lie.
 *
 *     publish x | all ranks | read every rank's x, write y | all ranks
 *
 * The first meeting says that every x is written, the second that every x was read, so that the next op may take its
 * memory. Worker 0 of a rank meets the others' while its own workers wait for it. Sums are made in the order of ranks,
 * by every rank for itself: all get the same bits.
 *
 * Waiting is bounded by the device option patience. Once a rank has been waited for in vain nobody waits any more: what
 * is computed then is worth nothing, and every run says so (ranks_fault). */
#include "backend/cpu/cpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ranks {
    pthread_mutex_t mutex;
    pthread_cond_t all_came;
    uint64_t phase; // meetings so far
    int n_came;     // to this one
    bool *came;     // [n]
    int missed;     // 1 + the rank that did not come; 0: none yet
    int n, n_left;  // n_left: not unloaded yet
    int patience_s;
    struct published {
        struct mat x;
        int first; // ALL_GATHER
    } * of;        // [n]
};

static enum status check_ranks(struct loaded *const *loaded, int n, struct error *err) {
    for (int i = 0; i < n; i++) {
        const struct program *p = loaded[i]->program;
        BUG_IF(loaded[i]->ranks);
        if (p->rank != i || p->n_ranks != n)
            return fail(err, ERR_ARG, "%s: rank %d of %d was joined as rank %d of %d", p->name, p->rank, p->n_ranks, i,
                        n);
        for (int k = 0; k < i; k++)
            if (loaded[k]->device == loaded[i]->device)
                return fail(err, ERR_ARG, "%s: ranks %d and %d are on one device, and would wait for each other",
                            p->name, k, i);
    }
    return OK;
}

enum status cpu_join(struct loaded *const *loaded, int n, struct error *err) {
    TRY(check_ranks(loaded, n, err));
    struct ranks *r = xcalloc(1, sizeof *r);
    pthread_condattr_t clock;
    r->n = r->n_left = n;
    r->patience_s = loaded[0]->device->patience_s;
    r->of = xcalloc((size_t)n, sizeof *r->of);
    r->came = xcalloc((size_t)n, sizeof *r->came);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&r->all_came, &clock);
    pthread_condattr_destroy(&clock);
    for (int i = 0; i < n; i++)
        loaded[i]->ranks = r;
    return OK;
}

void cpu_ranks_leave(struct ranks *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    bool is_last = --r->n_left == 0;
    pthread_mutex_unlock(&r->mutex);
    if (!is_last)
        return;
    pthread_cond_destroy(&r->all_came);
    pthread_mutex_destroy(&r->mutex);
    free(r->came);
    free(r->of);
    free(r);
}

static void all_have_come(struct ranks *r) {
    memset(r->came, 0, (size_t)r->n * sizeof *r->came);
    r->n_came = 0;
    r->phase++;
    pthread_cond_broadcast(&r->all_came);
}

static void give_up(struct ranks *r) {
    while (r->came[r->missed])
        r->missed++;
    r->missed++;
    pthread_cond_broadcast(&r->all_came);
}

static void meet_ranks(struct ranks *r, int rank) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += r->patience_s;
    pthread_mutex_lock(&r->mutex);
    uint64_t phase = r->phase;
    r->came[rank] = true;
    if (++r->n_came == r->n)
        all_have_come(r);
    while (r->phase == phase && !r->missed)
        if (pthread_cond_timedwait(&r->all_came, &r->mutex, &until) == ETIMEDOUT && r->phase == phase && !r->missed)
            give_up(r);
    pthread_mutex_unlock(&r->mutex);
}

static bool is_given_up(struct ranks *r) {
    pthread_mutex_lock(&r->mutex);
    bool yes = r->missed > 0;
    pthread_mutex_unlock(&r->mutex);
    return yes;
}

enum status ranks_fault(const struct loaded *l, struct error *err) {
    struct ranks *r = l->ranks;
    if (!r || !is_given_up(r))
        return OK;
    return fail(err, ERR_DEVICE, "%s: rank %d did not come within %d s (device option patience)", l->program->name,
                r->missed - 1, r->patience_s);
}

/* All workers of all ranks. */
static void meet(const struct call *c) {
    call_barrier(c);
    if (c->worker == 0)
        meet_ranks(c->loaded->ranks, c->program->rank);
    call_barrier(c);
}

static struct ranks *publish(const struct call *c) {
    struct ranks *r = c->loaded->ranks;
    if (c->worker == 0)
        r->of[c->program->rank] = (struct published){c->in[0], c->op->args.all_gather.first};
    meet(c);
    return r;
}

void cpu_all_reduce(const struct call *c) {
    struct ranks *r = publish(c);
    struct mat y = c->out[0];
    int64_t begin, end, n_rows = is_given_up(r) ? 0 : y.rows;
    call_share(c, y.width, 16, &begin, &end);
    for (int64_t t = 0; t < n_rows; t++) {
        memcpy(mat_row(y, t) + begin, mat_row(r->of[0].x, t) + begin, (size_t)(end - begin) * sizeof(float));
        for (int i = 1; i < r->n; i++)
            for (int64_t k = begin; k < end; k++)
                mat_row(y, t)[k] += mat_row(r->of[i].x, t)[k];
    }
    meet(c);
}

void cpu_all_gather(const struct call *c) {
    struct ranks *r = publish(c);
    for (int i = c->worker; i < r->n && !is_given_up(r); i += c->n_workers)
        for (int64_t t = 0; t < c->out[0].rows; t++)
            memcpy(mat_row(c->out[0], t) + r->of[i].first, mat_row(r->of[i].x, t),
                   (size_t)r->of[i].x.width * sizeof(float));
    meet(c);
}
