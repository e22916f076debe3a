/* kv_handover.c - see kv_handover.h. */
#include "sched/kv_handover.h"

#include "sched/kv_pool_internal.h"

int32_t kv_handover_known(struct kv_pool *pool, const struct sequence *seq, int32_t max_tokens) {
    if (!pool->remembers)
        return 0;
    return kv_pool_usable_path(pool, kv_pool_find_path(pool, seq, max_tokens / pool->block_size));
}

int32_t kv_handover_first(const struct kv_pool *pool, int group, int32_t n) {
    const struct kv_group *g = &pool->groups[group];
    return g->paged ? kv_group_first_visible(g, n * pool->block_size) / pool->block_size : n;
}

int32_t kv_handover_entry(const struct kv_pool *pool, int group, int32_t entry) {
    bool is_paged = pool->groups[group].paged;
    return pool->prefix.nodes[pool->path[is_paged ? entry : entry - 1]].block[is_paged ? group : pool->state_group];
}

/* The blocks that are there, so that they are not taken for the new ones. */
static enum status hold_known(struct kv_pool *pool, struct sequence *seq, int32_t from, struct error *err) {
    if (kv_pool_find_path(pool, seq, from) < from)
        return fail(err, ERR_FULL, "what was remembered of the text is not there any more");
    kv_pool_share_blocks(pool, seq, from);
    seq->node = from > 0 ? pool->path[from - 1] : NO_NODE;
    prefix_cache_hold(&pool->prefix, seq->node);
    seq->n_remembered = from;
    return OK;
}

/* [first, end) becomes [what n blocks need, n), as far as there are free ones. */
static bool take_blocks(struct kv_pool *pool, int group, struct block_table *table, int32_t n) {
    int32_t first = kv_handover_first(pool, group, n);
    for (; table->first < MIN(first, table->end); table->first++) {
        blocks_give_back(&pool->groups[group].blocks, table->block[table->first]);
        table->block[table->first] = NO_BLOCK;
    }
    if (table->end < first)
        table->first = table->end = first;
    kv_pool_want_blank(pool, group, n - table->end);
    while (table->end < n && pool->groups[group].blocks.n_free > 0)
        table->block[table->end++] = kv_pool_take_block(pool, group);
    return table->end == n;
}

static enum status take_room(struct kv_pool *pool, struct sequence *seq, int32_t n, struct error *err) {
    bool has_room = !pool->has_state || pool->states.n_free > 1; // one to bring the state in, one to keep it in
    for (int g = 0; g < pool->n_groups && has_room; g++)
        has_room = !pool->groups[g].paged || take_blocks(pool, g, &seq->tables[g], n);
    if (!has_room)
        return fail(err, ERR_FULL, "the cache has no room for %d blocks that another engine computed", n);
    if (pool->has_state)
        seq->state_slot = kv_pool_take_slot(pool);
    return OK;
}

static enum status fill(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, kv_handover_put *put,
                        void *context, struct error *err) {
    for (int g = 0; g < pool->n_groups; g++) {
        if (!pool->groups[g].paged)
            TRY(put(context, g, n, seq->state_slot, err));
        for (int32_t i = MAX(from, kv_handover_first(pool, g, n)); pool->groups[g].paged && i < n; i++)
            TRY(put(context, g, i, seq->tables[g].block[i], err));
    }
    return OK;
}

static enum status take_new(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, kv_handover_put *put,
                            void *context, struct error *err) {
    TRY(take_room(pool, seq, n, err));
    TRY(fill(pool, seq, from, n, put, context, err));
    seq->n_computed = seq->n_known = n * pool->block_size;
    seq->checkpoints[0] = pool->has_state ? seq->n_computed : 0;
    kv_pool_remember(pool, seq);
    return OK;
}

enum status kv_handover_adopt(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, kv_handover_put *put,
                              void *context, struct error *err) {
    BUG_IF(!pool->remembers || from > n || seq->n_tokens < n * pool->block_size || seq->n_computed > 0);
    TRY(hold_known(pool, seq, from, err));
    enum status st = from < n ? take_new(pool, seq, from, n, put, context, err) : OK;
    kv_pool_drop(pool, seq);
    return st;
}
