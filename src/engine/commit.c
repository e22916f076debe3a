/* commit.c - memory of a device behind the cache's blocks, where the backend takes it by need
 * (backend_ops.commit_cache).
 *
 *     open    the pool has no block, then those of one piece of each group; then, if there is memory, two for each
 *             sequence that may run, of at most FIRST_BYTES: the first batch would wait for them (a piece takes 0.1 to
 *             3 ms, once in a while 30)
 *     step    while the device computes, a piece more where fewer blocks are blank than running sequences can want next
 *             a plan that wants more than that asks for it at once (sched/kv_pool.h)
 *     idle    after cache_idle_us without work all but the first piece goes back; remembered prompts go with it
 *
 * A device that has none left is not asked again for a second: meanwhile the pool is as large as it is. What else goes
 * wrong is the device's sticky fault (g->cache_fault), which the step tells that wanted the memory, or the next. */
#include "engine/engine.h"

#include "base/clock.h"

enum { ASK_AGAIN_US = 1000000, FIRST_BYTES = 1 << 30 };

int engine_commit(void *context, int group, int n) {
    struct gyre *g = context;
    struct error err;
    int usable = n, had = g->pool.groups[group].blocks.n_usable;
    if (n > had && g->refused_us != 0 && clock_us() - g->refused_us < ASK_AGAIN_US)
        return had;
    enum status st = g->ops->commit_cache(g->loaded, group, &usable, &err);
    if (st == ERR_DEVICE)
        g->cache_fault = err;
    g->holds_spare = true;
    g->refused_us = st == ERR_MEMORY ? clock_us() : 0;
    return usable;
}

void engine_commit_first(struct gyre *g, int max_seqs) {
    if (g->pool.commit) // as many as engine_commit_ahead wants behind those of a full batch, too
        kv_pool_commit_first(&g->pool, 2 * (max_seqs + 1), FIRST_BYTES);
    g->collected_us = clock_us(); // idle from now on
}

void engine_commit_ahead(struct gyre *g) {
    if (g->pool.commit)
        kv_pool_commit_ahead(&g->pool, g->scheduler.n_running + 1);
}

int64_t engine_spare_us(const struct gyre *g) {
    bool can = g->pool.commit && g->holds_spare && g->cache_idle_us > 0 && !engine_has_work(g);
    return can ? MAX(g->collected_us + g->cache_idle_us - clock_us(), 0) : -1;
}

void engine_give_spare(struct gyre *g) {
    kv_pool_uncommit(&g->pool);
    g->holds_spare = false;
}

static int64_t committed_bytes(const struct gyre *g) {
    int64_t n_bytes = 0;
    for (int i = 0; i < g->pool.n_groups; i++)
        n_bytes += g->pool.groups[i].blocks.n_usable * g->pool.groups[i].block_bytes;
    return n_bytes;
}

void engine_end_starved(struct gyre *g) {
    struct sequence *seq = g->scheduler.starved;
    struct error err;
    if (!seq || g->cache_fault.status != OK)
        return;
    g->scheduler.starved = NULL;
    fail(&err, ERR_MEMORY,
         "the device has no memory left for the cache of %d tokens: of the %lld MiB that the cache was to have it got "
         "%lld, others have "
         "taken the rest; start with a smaller --kv-cache-memory or --gpu-memory-utilization, or end what else runs "
         "there",
         seq->n_tokens, (long long)(g->info.kv_cache_bytes >> 20), (long long)(committed_bytes(g) >> 20));
    engine_end(g, seq->owner, GYRE_FAILED, &err);
}
