/* block_list.c - see block_list.h. */
#include "sched/block_list.h"

#include "sched/prefix_cache.h"

#include <stdlib.h>

/* Between two neighbours of the free list, either of them NO_BLOCK at its end. */
static void list_between(struct block_list *l, int32_t before, int32_t b, int32_t after) {
    l->prev[b] = before;
    l->next[b] = after;
    *(before == NO_BLOCK ? &l->oldest : &l->next[before]) = b;
    *(after == NO_BLOCK ? &l->newest : &l->prev[after]) = b;
    l->n_free++;
    l->n_blank += l->node[b] == NO_NODE;
}

static void unlist(struct block_list *l, int32_t b) {
    *(l->prev[b] == NO_BLOCK ? &l->oldest : &l->next[l->prev[b]]) = l->next[b];
    *(l->next[b] == NO_BLOCK ? &l->newest : &l->prev[l->next[b]]) = l->prev[b];
    l->n_free--;
    l->n_blank -= l->node[b] == NO_NODE;
}

int32_t blocks_take(struct block_list *l) {
    int32_t b = l->oldest;
    BUG_IF(b == NO_BLOCK || l->ref_count[b] != 0);
    unlist(l, b);
    l->ref_count[b] = 1;
    return b;
}

void blocks_share(struct block_list *l, int32_t b) {
    if (l->ref_count[b]++ == 0)
        unlist(l, b);
}

void blocks_give_back(struct block_list *l, int32_t b) {
    BUG_IF(b < 0 || b >= l->n_blocks || l->ref_count[b] <= 0);
    if (--l->ref_count[b] > 0)
        return;
    l->left_at[b] = l->now;
    if (l->node[b] == NO_NODE)
        list_between(l, NO_BLOCK, b, l->oldest);
    else
        list_between(l, l->newest, b, NO_BLOCK);
}

void blocks_init(struct block_list *l, int n_blocks, int n_usable) {
    size_t n = (size_t)n_blocks;
    *l = (struct block_list){.n_blocks = n_blocks, .oldest = NO_BLOCK, .newest = NO_BLOCK, .now = 1};
    l->ref_count = xcalloc(n, sizeof *l->ref_count);
    l->prev = xcalloc(n, sizeof *l->prev);
    l->next = xcalloc(n, sizeof *l->next);
    l->node = xcalloc(n, sizeof *l->node);
    l->filled_at = xcalloc(n, sizeof *l->filled_at);
    l->left_at = xcalloc(n, sizeof *l->left_at);
    for (int32_t b = 0; b < n_blocks; b++)
        l->node[b] = NO_NODE;
    blocks_set_usable(l, n_usable);
}

/* Blank ones are the first of the list. */
static int32_t last_blank(const struct block_list *l) {
    int32_t b = l->n_blank > 0 ? l->oldest : NO_BLOCK;
    for (int i = 1; i < l->n_blank; i++)
        b = l->next[b];
    return b;
}

/* New ones come behind the blank ones, in order: what has had memory for longest is used first. */
void blocks_set_usable(struct block_list *l, int n) {
    BUG_IF(n < 0 || n > l->n_blocks);
    int32_t before = n > l->n_usable ? last_blank(l) : NO_BLOCK;
    for (; l->n_usable < n; before = l->n_usable++)
        list_between(l, before, l->n_usable, before == NO_BLOCK ? l->oldest : l->next[before]);
    for (; l->n_usable > n; l->n_usable--) {
        BUG_IF(l->ref_count[l->n_usable - 1] != 0 || l->node[l->n_usable - 1] != NO_NODE);
        unlist(l, l->n_usable - 1);
    }
}

void blocks_release(struct block_list *l) {
    free(l->ref_count);
    free(l->prev);
    free(l->next);
    free(l->node);
    free(l->filled_at);
    free(l->left_at);
}

const char *blocks_check(const struct block_list *l) {
    int n = 0, n_unheld = 0, n_blank = 0;
    for (int32_t b = l->oldest, before = NO_BLOCK; b != NO_BLOCK; before = b, b = l->next[b], n++) {
        if (n > l->n_blocks || l->prev[b] != before || l->ref_count[b] != 0 || b >= l->n_usable)
            return "the free list is broken";
        n_blank += l->node[b] == NO_NODE;
    }
    for (int32_t b = 0; b < l->n_usable; b++)
        n_unheld += l->ref_count[b] == 0;
    if (n_blank != l->n_blank)
        return "the blocks that nobody knows are not counted right";
    return n == l->n_free && n_unheld == n ? NULL : "a block is neither free nor held";
}
