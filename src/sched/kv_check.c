/* kv_check.c - the pool's integrity, for tests; see kv_pool_check. */
#include "sched/branches.h"
#include "sched/kv_pool.h"

#include <stdlib.h>
#include <string.h>

/* Takes one holder off each block that a table names, from number `first` on; false when a block has none left. */
static bool uncount_held(int32_t *holders, int first, int n_blocks, const struct block_table *t) {
    for (int32_t i = t->first; i < t->end; i++) {
        int32_t b = t->block[i] - first;
        if (b < 0 || b >= n_blocks || holders[b]-- <= 0)
            return false;
    }
    return true;
}

static bool uncount_branches(int32_t *holders, int n_blocks, struct sequence *seq, int group) {
    bool good = true;
    for (int i = 0; i < branches_n(seq) && good; i++)
        good =
            uncount_held(holders, 0, n_blocks,
                         &(struct block_table){seq->branches->at[i].blocks[group], 0, seq->branches->at[i].n_blocks});
    return good;
}

/* Blocks of a group (or slots, STATE_SLOTS): those of the device, or after these those of the host. */
static const char *check_list(const struct block_list *l, int first, struct sequence *const *seqs, size_t n_seqs,
                              int group) {
    const char *wrong = blocks_check(l);
    if (wrong)
        return wrong;
    int32_t *holders = xcalloc((size_t)l->n_blocks, sizeof *holders);
    memcpy(holders, l->ref_count, (size_t)l->n_blocks * sizeof *holders);
    for (size_t s = 0; s < n_seqs && !wrong; s++) {
        struct block_table slot = {&seqs[s]->state_slot, 0, seqs[s]->state_slot != NO_STATE_SLOT};
        bool on_host = first > 0;
        if (seqs[s]->swapped != on_host)
            continue;
        if (!uncount_held(holders, first, l->n_blocks, group == STATE_SLOTS ? &slot : &seqs[s]->tables[group]))
            wrong = "a sequence holds a block that is not counted as held";
        if (group != STATE_SLOTS && !uncount_branches(holders, l->n_blocks, seqs[s], group))
            wrong = "a branch holds a block that is not counted as held";
    }
    for (int b = 0; b < l->n_blocks && !wrong; b++)
        if (holders[b] != 0)
            wrong = "a block is counted as held and nobody holds it";
    free(holders);
    return wrong;
}

static const struct block_list *list_of(const struct kv_pool *pool, int group) {
    return pool->has_state && group == pool->state_group ? &pool->states : &pool->groups[group].blocks;
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
                if (pc->nodes[n].block[g] != NO_BLOCK && list_of(pool, g)->node[pc->nodes[n].block[g]] != n)
                    wrong = "a remembered block does not know its node";
        }
    for (uint32_t i = 0; i < pc->n_buckets; i++)
        for (int32_t n = pc->buckets[i]; n != NO_NODE; n = pc->nodes[n].next)
            if (holders[n] != pc->nodes[n].n_holders)
                wrong = "a node's holders are not counted right";
    for (int g = 0; g < pool->n_groups; g++)
        for (int b = 0; b < list_of(pool, g)->n_blocks; b++) {
            int32_t node = list_of(pool, g)->node[b];
            if (node != NO_NODE && pc->nodes[node].block[g] != b)
                wrong = "a node does not know its block";
        }
    free(holders);
    return wrong ? wrong : n_used == pc->n_used ? NULL : "nodes are not counted right";
}

const char *kv_pool_check(const struct kv_pool *pool, struct sequence *const *seqs, size_t n_seqs) {
    const char *wrong = check_list(&pool->states, 0, seqs, n_seqs, STATE_SLOTS);
    for (int g = 0; g < pool->n_groups && !wrong; g++)
        wrong = check_list(&pool->groups[g].blocks, 0, seqs, n_seqs, g);
    if (!wrong && pool->host_states.n_blocks > 0)
        wrong = check_list(&pool->host_states, pool->states.n_blocks, seqs, n_seqs, STATE_SLOTS);
    for (int g = 0; g < pool->n_groups && !wrong; g++)
        if (pool->groups[g].host.n_blocks > 0)
            wrong = check_list(&pool->groups[g].host, pool->groups[g].blocks.n_blocks, seqs, n_seqs, g);
    return wrong ? wrong : check_nodes(pool, seqs, n_seqs);
}
