/* block_list.h - numbered things of which some are held and the others free: blocks of one cache group, state slots.
 *
 * One is free or has ref_count holders. Free ones stand in a list in the order in which they are taken. What the prefix
 * cache knows (it has a node) goes to the end of that list when it is given back, so that it stays useful as long as
 * possible; what nobody knows goes to the front. Only the first n_usable of them exist for now (they have memory); the
 * others are neither free nor held. No allocation after init. */
#pragma once

#include "base/status.h"
#include "core/plan.h"

enum { NO_BLOCK = -1 };

struct block_list {
    int n_blocks, n_usable, n_free;
    int n_blank;          // free ones that nobody knows: those are taken first
    int32_t *ref_count;   // [n_blocks]
    int32_t *prev, *next; // [n_blocks], of free ones; NO_BLOCK at the ends
    int32_t *node;        // [n_blocks]: of the prefix cache; NO_NODE
    int32_t oldest, newest;
    int64_t *filled_at, *left_at; // [n_blocks]: see kv_pool_is_settled
    int64_t now;                  // left_at of what is given back
};

void blocks_init(struct block_list *l, int n_blocks, int n_usable);
void blocks_release(struct block_list *l);

/* The oldest free one, with one holder from now on. There must be one; its node is the caller's to forget. */
int32_t blocks_take(struct block_list *l);

/* One holder more, of one that is held or free; one holder less. */
void blocks_share(struct block_list *l, int32_t b);
void blocks_give_back(struct block_list *l, int32_t b);

/* n of them exist from now on: more, which are free, or fewer, of which those that go must be free and have no node. */
void blocks_set_usable(struct block_list *l, int n);

/* NULL, or what is wrong with the list of free ones. */
const char *blocks_check(const struct block_list *l);
