/* crew.c - see crew.h. */
#include "train/math/crew.h"

#include <stdlib.h>

struct crew {
    struct pool *pool;
    size_t scratch_bytes; // of a worker
    char *scratch;
    void (*work)(void *arg, const struct worker *w);
    void *arg;
};

struct crew *crew_open(int n_threads, size_t scratch_bytes) {
    struct crew *c = xcalloc(1, sizeof *c);
    c->pool = pool_open(n_threads);
    c->scratch_bytes = scratch_bytes / 64 * 64 + 64;
    c->scratch = aligned_alloc(64, (size_t)pool_size(c->pool) * c->scratch_bytes);
    BUG_IF(!c->scratch);
    return c;
}

void crew_free(struct crew *c) {
    if (!c)
        return;
    pool_free(c->pool);
    free(c->scratch);
    free(c);
}

static void run_worker(void *arg, int index, int n) {
    struct crew *c = arg;
    struct worker w = {c->pool, index, n, c->scratch + (size_t)index * c->scratch_bytes};
    c->work(c->arg, &w);
}

void crew_run(struct crew *c, void (*work)(void *arg, const struct worker *w), void *arg) {
    c->work = work;
    c->arg = arg;
    pool_run(c->pool, run_worker, c);
}
