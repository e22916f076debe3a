/* crew.h - the threads of a training step: all run the same code, each on its share of rows, and meet between loops.
 *
 *     static void add(void *arg, const struct worker *w) {
 *         int64_t first, end;
 *         worker_share(w, n, 1, &first, &end);
 *         ...                                  // items first .. end - 1
 *         worker_meet(w);                      // now all items are done
 *     }
 *     crew_run(crew, add, arg);
 *
 * Work is cut by what is written, never by what is summed: so the result is the same with any number of threads. */
#pragma once

#include "base/pool.h"

struct worker {
    struct pool *pool;
    int index, n;  // of n workers, the first is the caller
    void *scratch; // its own, as large as crew_open was told, aligned to 64 bytes
};

struct crew;
struct crew *crew_open(int n_threads, size_t scratch_bytes); // n_threads 0: one a processor
void crew_free(struct crew *crew);                           // NULL is fine
void crew_run(struct crew *crew, void (*work)(void *arg, const struct worker *w), void *arg);

static inline void worker_share(const struct worker *w, int64_t n, int64_t grain, int64_t *first, int64_t *end) {
    pool_share(n, grain, w->index, w->n, first, end);
}
static inline void worker_meet(const struct worker *w) { pool_barrier(w->pool); }
