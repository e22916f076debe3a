/* kv_pool.c - see kv_pool.h. */
#include "sched/kv_pool_internal.h"

#include <stdlib.h>
#include <string.h>

/* A node a block, and twice that: text outlives the blocks that a window gave back, as long as what comes after it is
 * remembered. Where few blocks or none go a long way (windows, states) the text itself is counted, to a limit. */
static int count_nodes(const struct kv_pool *pool, int64_t n_tokens) {
    enum { MOST_FOR_TEXT = 1 << 16 };
    int64_t most = MIN(n_tokens / pool->block_size, MOST_FOR_TEXT);
    for (int g = 0; g < pool->n_groups; g++)
        most = MAX(most, pool->groups[g].blocks.n_blocks);
    return n_tokens > 0 ? (int)(2 * MIN(most, INT32_MAX / 4)) : 0;
}

void kv_pool_init(struct kv_pool *pool, const struct kv_pool_options *o) {
    BUG_IF(o->n_groups > MAX_CACHE_GROUPS || o->block_size < 1 || o->max_chunk < 1);
    *pool = (struct kv_pool){.n_groups = o->n_groups,
                             .block_size = o->block_size,
                             .max_chunk = o->max_chunk,
                             .max_copies = o->max_copies,
                             .n_back = o->n_back,
                             .remembers = o->remember_tokens > 0,
                             .holds_all = o->holds_all,
                             .commit = o->commit,
                             .commit_context = o->commit_context};
    for (int g = 0; g < o->n_groups; g++) {
        struct kv_group *group = &pool->groups[g];
        group->paged = o->groups[g].kind != CACHE_STATE;
        group->window = o->groups[g].window;
        blocks_init(&group->blocks, group->paged ? o->n_blocks[g] : 0, group->paged && !o->commit ? o->n_blocks[g] : 0);
        blocks_init(&group->host, group->paged ? o->n_host_blocks[g] : 0, group->paged ? o->n_host_blocks[g] : 0);
        group->block_bytes = o->block_bytes[g];
        pool->state_bytes += group->paged ? 0 : o->block_bytes[g];
        if (!group->paged)
            pool->has_state = true, pool->state_group = g;
    }
    int n_states = pool->has_state ? o->n_states : 0, n_host_states = pool->has_state ? o->n_host_states : 0;
    blocks_init(&pool->states, n_states, n_states);
    blocks_init(&pool->host_states, n_host_states, n_host_states);
    int n_nodes = count_nodes(pool, o->remember_tokens);
    prefix_cache_init(&pool->prefix, n_nodes, o->block_size);
    pool->path = xcalloc((size_t)n_nodes, sizeof *pool->path);
    pool->copies = xcalloc((size_t)o->max_copies, sizeof *pool->copies);
}

void kv_pool_release(struct kv_pool *pool) {
    for (int g = 0; g < pool->n_groups; g++) {
        blocks_release(&pool->groups[g].blocks);
        blocks_release(&pool->groups[g].host);
    }
    blocks_release(&pool->states);
    blocks_release(&pool->host_states);
    prefix_cache_release(&pool->prefix);
    free(pool->path);
    free(pool->copies);
    *pool = (struct kv_pool){0};
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A step sees window - 1 tokens before its chunk; a span of s tokens touches at most (s - 2) / block_size + 2 blocks.
 */
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
        if (group->paged &&
            blocks_for(group->window, n_tokens, pool->block_size, pool->max_chunk) > group->blocks.n_blocks)
            return false;
    }
    return !pool->has_state || pool->states.n_blocks > 0;
}

// ---- memory behind blocks ---------------------------------------------------------------------------------------

static void commit(struct kv_pool *pool, int g, int64_t n) {
    struct kv_group *group = &pool->groups[g];
    n = MIN(n, group->blocks.n_blocks);
    if (!pool->commit || n <= group->blocks.n_usable)
        return;
    int usable = pool->commit(pool->commit_context, g, (int)n);
    group->is_short = usable < n;
    if (usable > group->blocks.n_usable)
        blocks_set_usable(&group->blocks, usable);
}

void kv_pool_want_blank(struct kv_pool *pool, int g, int64_t n) {
    const struct block_list *l = &pool->groups[g].blocks;
    if (pool->groups[g].paged && n > l->n_blank)
        commit(pool, g, l->n_usable + n - l->n_blank);
}

void kv_pool_commit_ahead(struct kv_pool *pool, int n_blank) {
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].paged && pool->groups[g].blocks.n_blank < n_blank)
            commit(pool, g, (int64_t)pool->groups[g].blocks.n_usable + 1);
}

void kv_pool_commit_first(struct kv_pool *pool, int n_blank, int64_t most_bytes) {
    for (int g = 0; g < pool->n_groups; g++)
        kv_pool_want_blank(pool, g, MIN(n_blank, most_bytes / MAX(pool->groups[g].block_bytes, 1)));
}

static void forget_from(struct kv_pool *pool, int g, int32_t first) {
    struct block_list *l = &pool->groups[g].blocks;
    for (int32_t b = first; b < l->n_usable; b++)
        if (l->node[b] != NO_NODE) {
            int32_t node = l->node[b];
            blocks_share(l, b); // what is in the list does not change what it is known as
            l->node[b] = NO_NODE;
            prefix_cache_forget(&pool->prefix, node, g);
            blocks_give_back(l, b);
        }
}

/* Copies of blocks that the next step would begin with: nobody is left who wants them. Checkpoints' states stay. */
static void forget_block_copies(struct kv_pool *pool) {
    int n = 0;
    for (int i = 0; i < pool->n_copies; i++)
        if (pool->copies[i].group == STATE_SLOTS)
            pool->copies[n++] = pool->copies[i];
    pool->n_copies = n;
}

void kv_pool_uncommit(struct kv_pool *pool) {
    forget_block_copies(pool);
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_list *l = &pool->groups[g].blocks;
        int n = l->n_usable;
        while (n > 1 && l->ref_count[n - 1] == 0)
            n--;
        if (!pool->commit || !pool->groups[g].paged || n == l->n_usable)
            continue;
        forget_from(pool, g, n);
        blocks_set_usable(l, n);
        blocks_set_usable(l, pool->commit(pool->commit_context, g, n));
        pool->groups[g].is_short = false;
    }
}

bool kv_pool_is_short(const struct kv_pool *pool) {
    bool is = false;
    for (int g = 0; g < pool->n_groups; g++)
        is |= pool->groups[g].is_short;
    return is;
}

// ---- holding them -----------------------------------------------------------------------------------------------

bool kv_pool_has_room(struct kv_pool *pool, const struct sequence *seq, int64_t n_tokens, bool others_run) {
    for (int g = 0; g < pool->n_groups; g++) {
        const struct kv_group *group = &pool->groups[g];
        const struct block_list *l = &group->blocks;
        int64_t held = seq->swapped ? 0 : seq->tables[g].end - seq->tables[g].first;
        int64_t kept = others_run && !pool->holds_all && group->window == 0 ? l->n_blocks / 25 : 0;
        int64_t wanted =
            group->paged ? blocks_for(group->window, n_tokens, pool->block_size, pool->max_chunk) - held : 0;
        kv_pool_want_blank(pool, g, wanted);
        int64_t to_come = group->is_short ? 0 : l->n_blocks - l->n_usable;
        if (group->paged && wanted > MIN(l->n_free, l->n_free + to_come - kept))
            return false;
    }
    bool has_slot = seq->state_slot != NO_STATE_SLOT && !seq->swapped;
    return !pool->has_state || has_slot || pool->states.n_free > 0;
}

static void give_back_unseen(struct kv_pool *pool, struct kv_group *group, struct block_table *table,
                             int32_t n_computed) {
    int32_t keep = MIN(kv_group_first_visible(group, n_computed) / pool->block_size, table->end);
    for (; table->first < keep; table->first++) {
        blocks_give_back(&group->blocks, table->block[table->first]);
        table->block[table->first] = NO_BLOCK;
    }
}

static int32_t take_and_forget(struct kv_pool *pool, struct block_list *l, int group) {
    int32_t b = blocks_take(l), node = l->node[b];
    l->node[b] = NO_NODE;
    if (node != NO_NODE)
        prefix_cache_forget(&pool->prefix, node, group);
    return b;
}

int32_t kv_pool_take_block(struct kv_pool *pool, int group) {
    return take_and_forget(pool, &pool->groups[group].blocks, group);
}
int32_t kv_pool_take_slot(struct kv_pool *pool) { return take_and_forget(pool, &pool->states, pool->state_group); }

// ---- steps ------------------------------------------------------------------------------------------------------

void kv_pool_step_started(struct kv_pool *pool) {
    pool->n_started++;
    for (int g = 0; g < pool->n_groups; g++)
        pool->groups[g].blocks.now = pool->n_started + 1;
    pool->states.now = pool->n_started + 1;
}

void kv_pool_step_collected(struct kv_pool *pool) { pool->n_collected++; }

bool kv_pool_is_settled(const struct kv_pool *pool, int64_t at) {
    return pool->n_collected >= at || (pool->n_collected == pool->n_started && pool->n_copies == 0);
}

int kv_pool_take_copies(struct kv_pool *pool, struct cache_copy *to) {
    int n = pool->n_copies;
    memcpy(to, pool->copies, (size_t)n * sizeof *to);
    pool->n_copies = 0;
    return n;
}

void kv_pool_first_copy_done(struct kv_pool *pool) {
    BUG_IF(pool->n_copies == 0);
    pool->n_copies--;
    memmove(pool->copies, pool->copies + 1, (size_t)pool->n_copies * sizeof *pool->copies);
}

enum status kv_pool_extend(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens) {
    BUG_IF(n_tokens > seq->capacity || n_tokens - seq->n_computed > pool->max_chunk || seq->swapped);
    int32_t end = (int32_t)ceil_div(n_tokens, pool->block_size);
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].paged)
            give_back_unseen(pool, &pool->groups[g], &seq->tables[g],
                             MIN(seq->n_computed, seq->n_known)); // it may go back so far
    for (int g = 0; g < pool->n_groups; g++) {
        kv_pool_want_blank(pool, g, end - seq->tables[g].end);
        if (pool->groups[g].paged && end - seq->tables[g].end > pool->groups[g].blocks.n_free)
            return ERR_FULL;
    }
    bool wants_slot = pool->has_state && seq->state_slot == NO_STATE_SLOT;
    if (wants_slot && pool->states.n_free == 0)
        return ERR_FULL;
    for (int g = 0; g < pool->n_groups; g++)
        for (struct block_table *table = &seq->tables[g]; pool->groups[g].paged && table->end < end;)
            table->block[table->end++] = kv_pool_take_block(pool, g);
    if (wants_slot)
        seq->state_slot = kv_pool_take_slot(pool);
    return OK;
}

void kv_pool_extend_spare(struct kv_pool *pool, struct sequence *seq, int32_t n_tokens, int n_kept) {
    int32_t end = (int32_t)ceil_div(n_tokens, pool->block_size);
    bool wants = false, has = true;
    for (int g = 0; g < pool->n_groups; g++) {
        int32_t more = pool->groups[g].paged ? end - seq->tables[g].end : 0;
        wants |= more > 0;
        has = has && (more <= 0 || pool->groups[g].blocks.n_free >= more + n_kept);
    }
    if (wants && has)
        (void)kv_pool_extend(pool, seq, n_tokens);
}

/* A block or slot, of the device or of the host. */
static void give_back(struct block_list *device, struct block_list *host, int32_t b) {
    if (b >= device->n_blocks)
        blocks_give_back(host, b - device->n_blocks);
    else
        blocks_give_back(device, b);
}

/* The end of the sequence goes first, so that the front of a context, which others may share, is evicted last. */
static void shrink_table(struct kv_group *group, struct block_table *table, int32_t end) {
    while (table->end > MAX(end, table->first)) {
        give_back(&group->blocks, &group->host, table->block[--table->end]);
        table->block[table->end] = NO_BLOCK;
    }
}

void kv_pool_shrink(struct kv_pool *pool, int group, struct block_table *table, int32_t end) {
    shrink_table(&pool->groups[group], table, end);
}

void kv_pool_truncate(struct kv_pool *pool, struct sequence *seq) {
    for (int g = 0; g < pool->n_groups; g++)
        shrink_table(&pool->groups[g], &seq->tables[g], (int32_t)ceil_div(seq->n_computed, pool->block_size));
}

void kv_pool_drop(struct kv_pool *pool, struct sequence *seq) {
    kv_pool_drop_branches(pool, seq);
    prefix_cache_leave(&pool->prefix, seq->node);
    seq->node = NO_NODE;
    seq->answer_checkpoint = NO_NODE;
    seq->n_remembered = 0;
    for (int g = 0; g < pool->n_groups; g++) {
        shrink_table(&pool->groups[g], &seq->tables[g], 0);
        seq->tables[g].first = seq->tables[g].end = 0;
    }
    if (seq->state_slot != NO_STATE_SLOT)
        give_back(&pool->states, &pool->host_states, seq->state_slot);
    seq->state_slot = NO_STATE_SLOT;
    seq->swapped = false;
    seq->n_computed = 0;
}
