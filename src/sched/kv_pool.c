/* kv_pool.c - see kv_pool.h. */
#include "sched/kv_pool.h"

#include <stdlib.h>
#include <string.h>

// ---- one list of blocks -----------------------------------------------------------------------------------------

static void blocks_append_free(struct block_list *l, int32_t b) {
    l->prev[b] = l->newest;
    l->next[b] = NO_BLOCK;
    if (l->newest == NO_BLOCK)
        l->oldest = b;
    else
        l->next[l->newest] = b;
    l->newest = b;
    l->n_free++;
}

static void blocks_unlist(struct block_list *l, int32_t b) {
    *(l->prev[b] == NO_BLOCK ? &l->oldest : &l->next[l->prev[b]]) = l->next[b];
    *(l->next[b] == NO_BLOCK ? &l->newest : &l->prev[l->next[b]]) = l->prev[b];
    l->n_free--;
}

static int32_t blocks_take(struct block_list *l) {
    int32_t b = l->oldest;
    BUG_IF(b == NO_BLOCK || l->ref_count[b] != 0);
    blocks_unlist(l, b);
    l->ref_count[b] = 1;
    return b;
}

static void blocks_share(struct block_list *l, int32_t b) {
    if (l->ref_count[b]++ == 0)
        blocks_unlist(l, b);
}

static void blocks_give_back(struct block_list *l, int32_t b) {
    BUG_IF(b < 0 || b >= l->n_blocks || l->ref_count[b] <= 0);
    if (--l->ref_count[b] == 0)
        blocks_append_free(l, b);
}

static void blocks_init(struct block_list *l, int n_blocks) {
    size_t n = (size_t)n_blocks;
    *l = (struct block_list){.n_blocks = n_blocks, .oldest = NO_BLOCK, .newest = NO_BLOCK};
    l->ref_count = xcalloc(n, sizeof *l->ref_count);
    l->prev = xcalloc(n, sizeof *l->prev);
    l->next = xcalloc(n, sizeof *l->next);
    l->node = xcalloc(n, sizeof *l->node);
    for (int32_t b = 0; b < n_blocks; b++) {
        l->node[b] = NO_NODE;
        blocks_append_free(l, b);
    }
}

static void blocks_release(struct block_list *l) {
    free(l->ref_count);
    free(l->prev);
    free(l->next);
    free(l->node);
}

// ---- the pool ---------------------------------------------------------------------------------------------------

void kv_pool_init(struct kv_pool *pool, const struct cache_group *groups, int n_groups, int block_size, int max_chunk, const int *n_blocks,
                  int n_states, bool remember) {
    BUG_IF(n_groups > MAX_CACHE_GROUPS || block_size < 1 || max_chunk < 1);
    *pool = (struct kv_pool){.n_groups = n_groups, .block_size = block_size, .max_chunk = max_chunk};
    for (int g = 0; g < n_groups; g++) {
        struct kv_group *group = &pool->groups[g];
        group->paged = groups[g].kind != CACHE_STATE;
        group->window = groups[g].window;
        pool->has_state |= !group->paged;
        blocks_init(&group->blocks, group->paged ? n_blocks[g] : 0);
    }
    blocks_init(&pool->states, pool->has_state ? n_states : 0);
    pool->remembers = remember && !pool->has_state;
    // Nodes outlive the blocks that a window gave back, as long as text behind them is remembered: hence twice.
    int most = 0;
    for (int g = 0; g < n_groups; g++)
        most = MAX(most, pool->groups[g].blocks.n_blocks);
    int n_nodes = pool->remembers ? 2 * MIN(most, INT32_MAX / 4) : 0;
    prefix_cache_init(&pool->prefix, n_nodes, block_size);
    pool->path = xcalloc((size_t)n_nodes, sizeof *pool->path);
}

void kv_pool_release(struct kv_pool *pool) {
    for (int g = 0; g < pool->n_groups; g++)
        blocks_release(&pool->groups[g].blocks);
    blocks_release(&pool->states);
    prefix_cache_release(&pool->prefix);
    free(pool->path);
    *pool = (struct kv_pool){0};
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A step sees window - 1 tokens before its chunk; a span of s tokens touches at most (s - 2) / block_size + 2 blocks. */
static int64_t blocks_for(int window, int64_t n_tokens, int block_size, int max_chunk) {
    int64_t all = ceil_div(n_tokens, block_size);
    if (window == 0)
        return all;
    int64_t span = (int64_t)window - 1 + max_chunk;
    return MIN(all, ceil_div(span - 1, block_size) + 1);
}

int64_t kv_group_blocks_for(const struct cache_group *group, int64_t n_tokens, int block_size, int max_chunk) {
    return group->kind == CACHE_STATE ? 0 : blocks_for(group->window, n_tokens, block_size, max_chunk);
}

bool kv_pool_could_hold(const struct kv_pool *pool, int64_t n_tokens) {
    for (int g = 0; g < pool->n_groups; g++) {
        const struct kv_group *group = &pool->groups[g];
        if (group->paged && blocks_for(group->window, n_tokens, pool->block_size, pool->max_chunk) > group->blocks.n_blocks)
            return false;
    }
    return !pool->has_state || pool->states.n_blocks > 0;
}

bool kv_pool_has_room(const struct kv_pool *pool, const struct sequence *seq, int64_t n_tokens) {
    for (int g = 0; g < pool->n_groups; g++) {
        const struct kv_group *group = &pool->groups[g];
        int64_t held = seq->tables[g].end - seq->tables[g].first;
        if (group->paged && blocks_for(group->window, n_tokens, pool->block_size, pool->max_chunk) - held > group->blocks.n_free)
            return false;
    }
    return !pool->has_state || seq->state_slot != NO_STATE_SLOT || pool->states.n_free > 0;
}

/* The first position that a layer of this group may still look at when n_computed is the next one computed. */
static int32_t first_visible(const struct kv_group *group, int32_t n_computed) {
    return group->window == 0 ? 0 : MAX(0, n_computed - group->window + 1);
}

/* A block for new text; what it held is forgotten. */
static int32_t take_block(struct kv_pool *pool, int g) {
    struct block_list *l = &pool->groups[g].blocks;
    int32_t b = blocks_take(l), node = l->node[b];
    l->node[b] = NO_NODE;
    if (node != NO_NODE)
        prefix_cache_forget(&pool->prefix, node, g);
    return b;
}

static void give_back_unseen(struct kv_pool *pool, struct kv_group *group, struct block_table *table, int32_t n_computed) {
    int32_t keep = MIN(first_visible(group, n_computed) / pool->block_size, table->end);
    for (; table->first < keep; table->first++) {
        blocks_give_back(&group->blocks, table->block[table->first]);
        table->block[table->first] = NO_BLOCK;
    }
}

enum status kv_pool_extend(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens) {
    BUG_IF(n_tokens > seq->capacity || n_tokens - seq->n_computed > pool->max_chunk);
    int32_t end = (int32_t)ceil_div(n_tokens, pool->block_size);
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].paged)
            give_back_unseen(pool, &pool->groups[g], &seq->tables[g], seq->n_computed);
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].paged && end - seq->tables[g].end > pool->groups[g].blocks.n_free)
            return ERR_FULL;
    bool wants_slot = pool->has_state && seq->state_slot == NO_STATE_SLOT;
    if (wants_slot && pool->states.n_free == 0)
        return ERR_FULL;
    for (int g = 0; g < pool->n_groups; g++)
        for (struct block_table *table = &seq->tables[g]; pool->groups[g].paged && table->end < end;)
            table->block[table->end++] = take_block(pool, g);
    if (wants_slot)
        seq->state_slot = blocks_take(&pool->states);
    return OK;
}

/* The end of the sequence goes first, so that the front of a context, which others may share, is evicted last. */
static void shrink_table(struct kv_group *group, struct block_table *table, int32_t end) {
    while (table->end > MAX(end, table->first)) {
        blocks_give_back(&group->blocks, table->block[--table->end]);
        table->block[table->end] = NO_BLOCK;
    }
}

void kv_pool_drop(struct kv_pool *pool, struct sequence *seq) {
    prefix_cache_leave(&pool->prefix, seq->node);
    seq->node = NO_NODE;
    seq->n_remembered = 0;
    for (int g = 0; g < pool->n_groups; g++) {
        shrink_table(&pool->groups[g], &seq->tables[g], 0);
        seq->tables[g].first = seq->tables[g].end = 0;
    }
    if (seq->state_slot != NO_STATE_SLOT)
        blocks_give_back(&pool->states, seq->state_slot);
    seq->state_slot = NO_STATE_SLOT;
    seq->n_computed = 0;
}

static bool can_rewind(const struct kv_pool *pool, const struct sequence *seq, int32_t n_tokens) {
    if (pool->has_state)
        return false;
    for (int g = 0; g < pool->n_groups; g++)
        if (seq->tables[g].first * pool->block_size > first_visible(&pool->groups[g], n_tokens))
            return false;
    return true;
}

static void stand_on_earlier_node(struct kv_pool *pool, struct sequence *seq, int32_t n_blocks) {
    while (seq->n_remembered > n_blocks) {
        int32_t parent = pool->prefix.nodes[seq->node].parent;
        prefix_cache_hold(&pool->prefix, parent);
        prefix_cache_leave(&pool->prefix, seq->node);
        seq->node = parent;
        seq->n_remembered--;
    }
}

void kv_pool_rewind(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens) {
    if (seq->n_computed <= n_tokens)
        return;
    if (n_tokens / pool->block_size < seq->n_remembered)
        n_tokens -= n_tokens % pool->block_size;
    if (n_tokens == 0 || !can_rewind(pool, seq, n_tokens)) {
        kv_pool_drop(pool, seq);
        return;
    }
    for (int g = 0; g < pool->n_groups; g++)
        shrink_table(&pool->groups[g], &seq->tables[g], (int32_t)ceil_div(n_tokens, pool->block_size));
    stand_on_earlier_node(pool, seq, n_tokens / pool->block_size);
    seq->n_computed = n_tokens;
}

// ---- the prefix cache -------------------------------------------------------------------------------------------

/* The nodes of seq's first blocks, as far as they are known. */
static int32_t find_path(struct kv_pool *pool, const struct sequence *seq, int32_t max_blocks) {
    int32_t n = 0, node = NO_NODE;
    for (; n < max_blocks && n < pool->prefix.n_nodes; n++) {
        node = prefix_cache_find(&pool->prefix, node, seq->salt, seq->tokens + (size_t)n * (size_t)pool->block_size);
        if (node == NO_NODE)
            break;
        pool->path[n] = node;
    }
    return n;
}

/* What keeps a sequence from going on after the first n blocks: NONE if every group still holds those that the next
 * token can see. */
static enum gyre_cache_miss missing_after(const struct kv_pool *pool, int32_t n) {
    for (int g = 0; g < pool->n_groups; g++)
        for (int32_t i = first_visible(&pool->groups[g], n * pool->block_size) / pool->block_size; i < n; i++)
            if (pool->prefix.nodes[pool->path[i]].block[g] == NO_BLOCK)
                return pool->groups[g].window ? GYRE_MISS_WINDOW : GYRE_MISS_EVICTED;
    return GYRE_MISS_NONE;
}

static void share_blocks(struct kv_pool *pool, struct sequence *seq, int32_t n) {
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_table *table = &seq->tables[g];
        table->first = first_visible(&pool->groups[g], n * pool->block_size) / pool->block_size;
        table->end = n;
        for (int32_t i = table->first; i < n; i++) {
            table->block[i] = pool->prefix.nodes[pool->path[i]].block[g];
            blocks_share(&pool->groups[g].blocks, table->block[i]);
        }
    }
}

/* Why the text after the first n blocks, which are known, is not. */
static enum gyre_cache_miss why_no_longer(const struct kv_pool *pool, const struct sequence *seq, int32_t n, int32_t max_blocks) {
    if (n == max_blocks)
        return max_blocks == 0 ? GYRE_MISS_SHORT : GYRE_MISS_NONE;
    return prefix_cache_why_not(&pool->prefix, n > 0 ? pool->path[n - 1] : NO_NODE, seq->salt,
                                seq->tokens + (size_t)n * (size_t)pool->block_size);
}

enum gyre_cache_miss kv_pool_recall(struct kv_pool *pool, struct sequence *seq, int32_t max_tokens) {
    BUG_IF(seq->n_computed != 0 || seq->node != NO_NODE);
    if (!pool->remembers)
        return GYRE_MISS_DISABLED;
    int32_t n = find_path(pool, seq, max_tokens / pool->block_size);
    enum gyre_cache_miss miss = missing_after(pool, n), shorter = miss;
    if (miss == GYRE_MISS_NONE)
        miss = why_no_longer(pool, seq, n, max_tokens / pool->block_size);
    while (shorter != GYRE_MISS_NONE)
        shorter = missing_after(pool, --n);
    if (n == 0)
        return miss;
    share_blocks(pool, seq, n);
    seq->node = pool->path[n - 1];
    prefix_cache_hold(&pool->prefix, seq->node);
    seq->n_remembered = n;
    seq->n_computed = n * pool->block_size;
    return miss;
}

/* A node that another sequence gave blocks to keeps those. */
static void give_blocks(struct kv_pool *pool, const struct sequence *seq, int32_t at, int32_t node) {
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t *known = &pool->prefix.nodes[node].block[g], b = at < seq->tables[g].first ? NO_BLOCK : seq->tables[g].block[at];
        if (*known != NO_BLOCK || b == NO_BLOCK)
            continue;
        *known = b;
        pool->groups[g].blocks.node[b] = node;
    }
}

void kv_pool_remember(struct kv_pool *pool, struct sequence *seq) {
    while (pool->remembers && (seq->n_remembered + 1) * pool->block_size <= MIN(seq->n_computed, seq->n_known)) {
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

void kv_pool_hand_over(const struct kv_pool *pool, struct sequence *from, struct sequence *to) {
    BUG_IF(to->n_computed != 0 || to->state_slot != NO_STATE_SLOT || from->n_computed > to->capacity);
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_table *a = &from->tables[g], *b = &to->tables[g];
        for (int32_t i = a->first; i < a->end; i++) {
            b->block[i] = a->block[i];
            a->block[i] = NO_BLOCK;
        }
        b->first = a->first;
        b->end = a->end;
        a->first = a->end = 0;
    }
    to->node = from->node;
    to->n_remembered = from->n_remembered;
    from->node = NO_NODE;
    from->n_remembered = 0;
    to->state_slot = from->state_slot;
    to->n_computed = from->n_computed;
    from->state_slot = NO_STATE_SLOT;
    from->n_computed = 0;
}

// ---- integrity --------------------------------------------------------------------------------------------------

/* Takes one holder off each block that a table names; false when a block has none left. */
static bool uncount_held(int32_t *holders, int n_blocks, const struct block_table *t) {
    for (int32_t i = t->first; i < t->end; i++)
        if (t->block[i] < 0 || t->block[i] >= n_blocks || holders[t->block[i]]-- <= 0)
            return false;
    return true;
}

static const char *check_free(const struct block_list *l) {
    int n = 0, n_unheld = 0;
    for (int32_t b = l->oldest, before = NO_BLOCK; b != NO_BLOCK; before = b, b = l->next[b], n++)
        if (n > l->n_blocks || l->prev[b] != before || l->ref_count[b] != 0)
            return "the free list is broken";
    for (int32_t b = 0; b < l->n_blocks; b++)
        n_unheld += l->ref_count[b] == 0;
    return n == l->n_free && n_unheld == n ? NULL : "a block is neither free nor held";
}

static const char *check_list(const struct block_list *l, struct sequence *const *seqs, size_t n_seqs, int group) {
    const char *wrong = check_free(l);
    if (wrong || l->n_blocks == 0)
        return wrong;
    int32_t *holders = xcalloc((size_t)l->n_blocks, sizeof *holders);
    memcpy(holders, l->ref_count, (size_t)l->n_blocks * sizeof *holders);
    for (size_t s = 0; s < n_seqs && !wrong; s++) {
        struct block_table slot = {&seqs[s]->state_slot, 0, seqs[s]->state_slot != NO_STATE_SLOT};
        if (!uncount_held(holders, l->n_blocks, group < 0 ? &slot : &seqs[s]->tables[group]))
            wrong = "a sequence holds a block that is not counted as held";
    }
    for (int b = 0; b < l->n_blocks && !wrong; b++)
        if (holders[b] != 0)
            wrong = "a block is counted as held and nobody holds it";
    free(holders);
    return wrong;
}

/* Holders of a node are its children and the sequences that stand on it. */
static const char *check_nodes(const struct kv_pool *pool, struct sequence *const *seqs, size_t n_seqs) {
    const struct prefix_cache *pc = &pool->prefix;
    int32_t *holders = xcalloc((size_t)pc->n_nodes, sizeof *holders);
    const char *wrong = NULL;
    int n_used = 0;
    for (size_t s = 0; s < n_seqs; s++)
        if (seqs[s]->node != NO_NODE)
            holders[seqs[s]->node]++;
    for (uint32_t i = 0; i < pc->n_buckets; i++)
        for (int32_t n = pc->buckets[i]; n != NO_NODE; n = pc->nodes[n].next, n_used++) {
            if (pc->nodes[n].parent != NO_NODE)
                holders[pc->nodes[n].parent]++;
            for (int g = 0; g < pool->n_groups; g++)
                if (pc->nodes[n].block[g] != NO_BLOCK && pool->groups[g].blocks.node[pc->nodes[n].block[g]] != n)
                    wrong = "a remembered block does not know its node";
        }
    for (uint32_t i = 0; i < pc->n_buckets; i++)
        for (int32_t n = pc->buckets[i]; n != NO_NODE; n = pc->nodes[n].next)
            if (holders[n] != pc->nodes[n].n_holders)
                wrong = "a node's holders are not counted right";
    for (int g = 0; g < pool->n_groups; g++)
        for (int b = 0; b < pool->groups[g].blocks.n_blocks; b++) {
            int32_t node = pool->groups[g].blocks.node[b];
            if (node != NO_NODE && pc->nodes[node].block[g] != b)
                wrong = "a node does not know its block";
        }
    free(holders);
    return wrong ? wrong : n_used == pc->n_used ? NULL : "nodes are not counted right";
}

const char *kv_pool_check(const struct kv_pool *pool, struct sequence *const *seqs, size_t n_seqs) {
    const char *wrong = check_list(&pool->states, seqs, n_seqs, -1);
    for (int g = 0; g < pool->n_groups && !wrong; g++)
        wrong = check_list(&pool->groups[g].blocks, seqs, n_seqs, g);
    return wrong ? wrong : check_nodes(pool, seqs, n_seqs);
}
