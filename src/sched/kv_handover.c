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

/* The latest of what is said of entries [from, end) of each group, and of the slot. */
static int64_t latest(const struct kv_pool *pool, const struct sequence *seq, int32_t from,
                      int64_t *(*said)(const struct block_list *l)) {
    int64_t at = seq->state_slot == NO_STATE_SLOT ? 0 : said(&pool->states)[seq->state_slot];
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = MAX(from, seq->tables[g].first); pool->groups[g].paged && i < seq->tables[g].end; i++)
            at = MAX(at, said(&pool->groups[g].blocks)[seq->tables[g].block[i]]);
    return at;
}
static int64_t *filled(const struct block_list *l) { return l->filled_at; }
static int64_t *left(const struct block_list *l) { return l->left_at; }

/* Of the path that was found last. */
static void hold_path(struct kv_pool *pool, struct sequence *seq, int32_t n) {
    kv_pool_share_blocks(pool, seq, n);
    seq->node = n > 0 ? pool->path[n - 1] : NO_NODE;
    prefix_cache_hold(&pool->prefix, seq->node);
    seq->n_remembered = n;
}

void kv_handover_hold(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, int64_t *settles_at) {
    BUG_IF(kv_pool_find_path(pool, seq, n) < n || n < 1);
    pool->n_handovers++;
    hold_path(pool, seq, n);
    if (pool->has_state) {
        seq->state_slot = pool->prefix.nodes[seq->node].block[pool->state_group];
        blocks_share(&pool->states, seq->state_slot);
    }
    *settles_at = latest(pool, seq, from, filled);
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

enum status kv_handover_take(struct kv_pool *pool, struct sequence *seq, int32_t from, int32_t n, int64_t *settles_at,
                             struct error *err) {
    BUG_IF(!pool->remembers || from > n || seq->n_tokens < n * pool->block_size || seq->n_computed > 0);
    if (kv_handover_known(pool, seq, from * pool->block_size) < from) // of a window its last blocks may be gone
        return fail(err, ERR_FULL, "what was remembered of the text is not there any more");
    pool->n_handovers++;
    hold_path(pool, seq, from); // so that they are not taken for the new ones
    enum status st = from < n ? take_room(pool, seq, n, err) : OK;
    *settles_at = latest(pool, seq, from, left);
    if (st != OK)
        kv_handover_end(pool, seq);
    return st;
}

void kv_handover_remember(struct kv_pool *pool, struct sequence *seq, int32_t n) {
    if (seq->n_remembered < n) {
        seq->n_computed = seq->n_known = n * pool->block_size;
        seq->checkpoints[0] = pool->has_state ? seq->n_computed : 0;
        kv_pool_remember(pool, seq);
    }
    kv_handover_end(pool, seq);
}

void kv_handover_end(struct kv_pool *pool, struct sequence *seq) {
    BUG_IF(pool->n_handovers < 1);
    pool->n_handovers--;
    kv_pool_drop(pool, seq);
}
