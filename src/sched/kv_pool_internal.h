/* kv_pool_internal.h - what the files of the pool share: kv_pool.c (who holds what), kv_recall.c (what is remembered).
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
