/* pool.h - a few threads that run one function together, again and again.
 *
 * A decode step is hundreds of short parallel loops, so starting one must cost about a microsecond:
 * workers spin on a generation counter for a while after their last piece of work and only then park on
 * a futex. The caller is worker 0 and takes part. */
#pragma once

#include "base/status.h"

struct pool;

/* n_threads >= 1 in all, the caller among them; 0 means one a processor this process may run on. */
struct pool *pool_open(int n_threads);
void pool_free(struct pool *pool); // NULL is fine

int pool_size(const struct pool *pool);

/* Runs fn(arg, worker, n_workers) on every worker, worker = 0 .. n_workers-1, and returns when all have
 * returned: everything they wrote is visible. Not reentrant; one caller at a time. */
void pool_run(struct pool *pool, void (*fn)(void *arg, int worker, int n_workers), void *arg);

/* Inside fn: waits until every worker of this run has called it. */
void pool_barrier(struct pool *pool);

/* The part [*begin, *end) of n items, in multiples of `grain`, that falls to a worker. */
static inline void pool_share(int64_t n, int64_t grain, int worker, int n_workers, int64_t *begin, int64_t *end) {
    int64_t n_grains = (n + grain - 1) / grain;
    int64_t b = n_grains * worker / n_workers * grain, e = n_grains * (worker + 1) / n_workers * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

/* A range of items that the workers of a run share out while they work: each takes from the front of its own
 * contiguous part, in pieces, and when that is used up from the back of the others'. For long loops on a machine
 * where a worker may be slowed down (another process, a slower core); what is read stays in order of address. */
struct pool_range;

struct pool_range *pool_range_new(int n_workers);
void pool_range_free(struct pool_range *range); // NULL is fine

/* Deals out n items in pieces of `piece`. By one worker, before a barrier that comes before the first take. */
void pool_range_deal(struct pool_range *range, int64_t n, int64_t piece);

/* The next piece [*begin, *end) for this worker; false when none is left anywhere. */
bool pool_range_take(struct pool_range *range, int worker, int64_t *begin, int64_t *end);
