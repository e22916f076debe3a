/* kv_pool_internal.h - what the files of the pool share: kv_pool.c (who holds what), kv_recall.c (what is remembered),
 * kv_handover.c (what others computed).
 */
#pragma once

#include "sched/kv_pool.h"

/* The first position that a layer of this group may still look at when n_computed is the next one computed. */
static inline int32_t kv_group_first_visible(const struct kv_group *group, int32_t n_computed) {
    return group->window == 0 ? 0 : MAX(0, n_computed - group->window + 1);
}

/* A block or slot for something new; what it held is forgotten. There must be a free one. */
int32_t kv_pool_take_block(struct kv_pool *pool, int group);
int32_t kv_pool_take_slot(struct kv_pool *pool);

/* Gives back what a table holds from entry `end` on. */
void kv_pool_shrink(struct kv_pool *pool, int group, struct block_table *table, int32_t end);

/* So that n free blocks of a group hold nothing, as far as there is memory (kv_pool_options.commit). */
void kv_pool_want_blank(struct kv_pool *pool, int g, int64_t n);

/* The nodes of seq's first blocks, as far as they are known, to pool->path; returns how many. Of the first n of these,
 * how many a sequence can go on after: every group still holds what the next token sees. Holds their blocks for seq. */
int32_t kv_pool_find_path(struct kv_pool *pool, const struct sequence *seq, int32_t max_blocks);
int32_t kv_pool_usable_path(const struct kv_pool *pool, int32_t n);
void kv_pool_share_blocks(struct kv_pool *pool, struct sequence *seq, int32_t n);
