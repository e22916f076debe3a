/* kv_recall.c - what the pool remembers of earlier sequences, and what a new one takes over; see kv_pool.h. */
#include "sched/kv_pool_internal.h"

#include <string.h>

int32_t kv_pool_find_path(struct kv_pool *pool, const struct sequence *seq, int32_t max_blocks) {
    int32_t n = 0, node = NO_NODE;
    for (; n < max_blocks && n < pool->prefix.n_nodes; n++) {
        node = prefix_cache_find(&pool->prefix, node, seq->salt, seq->tokens + (size_t)n * (size_t)pool->block_size);
        if (node == NO_NODE)
            break;
        pool->path[n] = node;
    }
    return n;
}

static int32_t checkpoint_of(const struct kv_pool *pool, int32_t node) {
    return pool->prefix.nodes[node].block[pool->state_group];
}

/* What keeps a sequence from going on after the first n blocks: NONE if every group still holds those that the next
 * token can see. */
static enum gyre_cache_miss missing_after(const struct kv_pool *pool, int32_t n) {
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = kv_group_first_visible(&pool->groups[g], n * pool->block_size) / pool->block_size;
             pool->groups[g].paged && i < n; i++)
            if (pool->prefix.nodes[pool->path[i]].block[g] == NO_BLOCK)
                return pool->groups[g].window ? GYRE_MISS_WINDOW : GYRE_MISS_EVICTED;
    if (pool->has_state && n > 0 && checkpoint_of(pool, pool->path[n - 1]) == NO_BLOCK)
        return GYRE_MISS_CHECKPOINT;
    return GYRE_MISS_NONE;
}

int32_t kv_pool_usable_path(const struct kv_pool *pool, int32_t n) {
    while (missing_after(pool, n) != GYRE_MISS_NONE)
        n--;
    return n;
}

void kv_pool_share_blocks(struct kv_pool *pool, struct sequence *seq, int32_t n) {
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_table *table = &seq->tables[g];
        if (!pool->groups[g].paged)
            continue;
        table->first = kv_group_first_visible(&pool->groups[g], n * pool->block_size) / pool->block_size;
        table->end = n;
        for (int32_t i = table->first; i < n; i++) {
            table->block[i] = pool->prefix.nodes[pool->path[i]].block[g];
            blocks_share(&pool->groups[g].blocks, table->block[i]);
        }
    }
}

/* Why the text after the first n blocks, which are known, is not. */
static enum gyre_cache_miss why_no_longer(const struct kv_pool *pool, const struct sequence *seq, int32_t n,
                                          int32_t max_blocks) {
    if (n == max_blocks)
        return max_blocks == 0 ? GYRE_MISS_SHORT : GYRE_MISS_NONE;
    return prefix_cache_why_not(&pool->prefix, n > 0 ? pool->path[n - 1] : NO_NODE, seq->salt,
                                seq->tokens + (size_t)n * (size_t)pool->block_size);
}

static void copy_state(struct kv_pool *pool, int32_t from, int32_t to) {
    BUG_IF(pool->n_copies == pool->max_copies);
    pool->copies[pool->n_copies++] = (struct cache_copy){STATE_SLOTS, from, to};
}

/* The checkpoint of the node, copied to a slot of seq's own, and now the newest; or itself where there is no other. */
static void restore_state(struct kv_pool *pool, struct sequence *seq, int32_t node) {
    int32_t from = checkpoint_of(pool, node);
    blocks_share(&pool->states, from);
    if (pool->states.n_free > 0 && pool->n_copies < pool->max_copies) {
        seq->state_slot = kv_pool_take_slot(pool);
        copy_state(pool, from, seq->state_slot);
        blocks_give_back(&pool->states, from);
        return;
    }
    pool->states.node[from] = NO_NODE;
    prefix_cache_forget(&pool->prefix, node, pool->state_group);
    seq->state_slot = from;
}

static void go_on_after(struct kv_pool *pool, struct sequence *seq, int32_t n) {
    kv_pool_share_blocks(pool, seq, n);
    seq->node = pool->path[n - 1];
    prefix_cache_hold(&pool->prefix, seq->node);
    if (pool->has_state)
        restore_state(pool, seq, seq->node);
    seq->n_remembered = n;
    seq->n_computed = n * pool->block_size;
}

/* A text that is known up to `parting` and no further: the next that parts from it there shall find the state. The same
 * text again, and what goes on after it, begin at the last whole block before its last token. */
static void choose_checkpoints(const struct kv_pool *pool, struct sequence *seq, int32_t parting) {
    int32_t end = (seq->n_tokens - 1) / pool->block_size * pool->block_size, n = 0;
    memset(seq->checkpoints, 0, sizeof seq->checkpoints);
    if (parting > seq->n_computed && parting < end)
        seq->checkpoints[n++] = parting;
    if (end > seq->n_computed)
        seq->checkpoints[n++] = end;
}

enum gyre_cache_miss kv_pool_recall(struct kv_pool *pool, struct sequence *seq, int32_t max_tokens) {
    BUG_IF(seq->n_computed != 0 || seq->node != NO_NODE);
    if (!pool->remembers)
        return GYRE_MISS_DISABLED;
    int32_t n = kv_pool_find_path(pool, seq, max_tokens / pool->block_size);
    int32_t n_known = n;
    enum gyre_cache_miss miss = missing_after(pool, n);
    if (miss == GYRE_MISS_NONE)
        miss = why_no_longer(pool, seq, n, max_tokens / pool->block_size);
    n = kv_pool_usable_path(pool, n);
    if (n > 0)
        go_on_after(pool, seq, n);
    if (pool->has_state)
        choose_checkpoints(pool, seq, n_known * pool->block_size);
    return miss;
}

/* A node that another sequence gave blocks to keeps those. */
static void give_blocks(struct kv_pool *pool, const struct sequence *seq, int32_t at, int32_t node) {
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t *known = &pool->prefix.nodes[node].block[g],
                b = at < seq->tables[g].first ? NO_BLOCK : seq->tables[g].block[at];
        if (*known != NO_BLOCK || b == NO_BLOCK)
            continue;
        *known = b;
        pool->groups[g].blocks.node[b] = node;
        pool->groups[g].blocks.filled_at[b] = seq->n_in_flight > 0 ? pool->n_started : 0;
    }
}

static void remember_blocks(struct kv_pool *pool, struct sequence *seq) {
    while ((seq->n_remembered + 1) * pool->block_size <= MIN(seq->n_computed, seq->n_known)) {
        const int32_t *tokens = seq->tokens + (size_t)seq->n_remembered * (size_t)pool->block_size;
        int32_t node = prefix_cache_add(&pool->prefix, seq->node, seq->salt, tokens);
        if (node == NO_NODE)
            return;
        give_blocks(pool, seq, seq->n_remembered, node);
        prefix_cache_hold(&pool->prefix, node);
        prefix_cache_leave(&pool->prefix, seq->node);
        seq->node = node;
        seq->n_remembered++;
    }
}

// ---- checkpoints ------------------------------------------------------------------------------------------------

/* The next place, ahead of what is computed, that was chosen before the sequence ran; 0: none. */
static int32_t next_chosen(const struct sequence *seq) {
    for (size_t i = 0; i < ARRAY_LEN(seq->checkpoints); i++)
        if (seq->checkpoints[i] > seq->n_computed)
            return seq->checkpoints[i];
    return 0;
}

int32_t kv_pool_tokens_to_checkpoint(const struct kv_pool *pool, const struct sequence *seq) {
    int32_t next = pool->has_state && pool->remembers ? next_chosen(seq) : 0;
    return next ? next - seq->n_computed : INT32_MAX;
}

/* A free slot: that of the answer's last checkpoint if nobody is using it, else the oldest. */
static int32_t slot_for_checkpoint(struct kv_pool *pool, struct sequence *seq) {
    int32_t last = seq->answer_checkpoint, slot = last == NO_NODE ? NO_BLOCK : checkpoint_of(pool, last);
    if (slot == NO_BLOCK || pool->states.ref_count[slot] > 0)
        return kv_pool_take_slot(pool);
    blocks_share(&pool->states, slot);
    pool->states.node[slot] = NO_NODE;
    prefix_cache_forget(&pool->prefix, last, pool->state_group);
    return slot;
}

static void keep_state(struct kv_pool *pool, struct sequence *seq, bool in_answer) {
    int32_t slot = checkpoint_of(pool, seq->node);
    if (slot != NO_BLOCK) { // by another sequence with this text; in use again
        blocks_share(&pool->states, slot);
        blocks_give_back(&pool->states, slot);
        return;
    }
    if (pool->states.n_free == 0 || pool->n_copies == pool->max_copies)
        return;
    slot = slot_for_checkpoint(pool, seq);
    copy_state(pool, seq->state_slot, slot);
    pool->prefix.nodes[seq->node].block[pool->state_group] = slot;
    pool->states.node[slot] = seq->node;
    pool->states.filled_at[slot] = pool->n_started + 1;
    blocks_give_back(&pool->states, slot);
    if (in_answer)
        seq->answer_checkpoint = seq->node;
}

void kv_pool_remember(struct kv_pool *pool, struct sequence *seq) {
    if (!pool->remembers)
        return;
    remember_blocks(pool, seq);
    int32_t place = seq->n_remembered * pool->block_size;
    bool chosen = false, in_answer = next_chosen(seq) == 0;
    for (size_t i = 0; i < ARRAY_LEN(seq->checkpoints); i++)
        chosen |= seq->checkpoints[i] == place;
    bool stands_there = place == seq->n_computed;
    bool goes_back_there = pool->n_back > 0 && place < seq->n_computed && place >= seq->state_base;
    if (pool->has_state && place > 0 && (stands_there || goes_back_there) && (chosen || in_answer))
        keep_state(pool, seq, in_answer && !chosen);
}
