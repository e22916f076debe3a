/* kv_branches.c - blocks of branches, which live from the plan of a step until its tokens are known; see branches.h. */
#include "sched/branches.h"
#include "sched/kv_pool_internal.h"

#include <string.h>

/* Entries of the table that are the branch's own: [first, end). */
static int32_t first_entry(const struct kv_pool *pool, const struct branch *b) { return b->first / pool->block_size; }
static int32_t end_entry(const struct kv_pool *pool, const struct branch *b) {
    return (b->first + b->n - 1) / pool->block_size + 1;
}

bool kv_pool_hold_branch(struct kv_pool *pool, struct sequence *seq, int number, int n_kept) {
    struct branch *b = &seq->branches->at[number - 1];
    int32_t first = first_entry(pool, b), n = end_entry(pool, b) - first;
    bool is_begun = first * pool->block_size < seq->n_computed; // before this step
    BUG_IF(pool->has_state || b->n_blocks > 0 || n > MOST_BRANCH_BLOCKS || b->first <= seq->n_computed);
    for (int g = 0; g < pool->n_groups; g++)
        if (pool->groups[g].blocks.n_free < n + n_kept)
            return false;
    if (is_begun && pool->n_copies + pool->n_groups > pool->max_copies)
        return false;
    for (int g = 0; g < pool->n_groups; g++) {
        for (int32_t i = 0; i < n; i++)
            b->blocks[g][i] = kv_pool_take_block(pool, g);
        if (is_begun)
            pool->copies[pool->n_copies++] = (struct cache_copy){g, seq->tables[g].block[first], b->blocks[g][0]};
    }
    b->n_blocks = n;
    return true;
}

void kv_pool_take_branch(struct kv_pool *pool, struct sequence *seq, int number) {
    struct branch *b = &seq->branches->at[number - 1];
    int32_t first = first_entry(pool, b);
    BUG_IF(b->n_blocks == 0 || b->first != seq->n_known);
    for (int g = 0; g < pool->n_groups; g++) {
        struct block_table *table = &seq->tables[g];
        kv_pool_shrink(pool, g, table, first);
        BUG_IF(table->end != first);
        memcpy(table->block + first, b->blocks[g], (size_t)b->n_blocks * sizeof *table->block);
        table->end = first + b->n_blocks;
    }
    b->n_blocks = 0;
    seq->branches->taken = number;
    sequence_expect_no_more(seq);
    memcpy(seq->tokens + b->first, b->tokens, (size_t)b->n * sizeof *b->tokens);
    seq->n_tokens = seq->n_computed = b->first + b->n;
}

void kv_pool_drop_branches(struct kv_pool *pool, struct sequence *seq) {
    for (int i = branches_n(seq) - 1; i >= 0; i--) {
        struct branch *b = &seq->branches->at[i];
        for (int g = 0; g < pool->n_groups; g++)
            for (int32_t k = 0; k < b->n_blocks; k++)
                blocks_give_back(&pool->groups[g].blocks, b->blocks[g][k]);
        b->n_blocks = 0;
    }
    if (seq->branches)
        seq->branches->n = 0;
}
