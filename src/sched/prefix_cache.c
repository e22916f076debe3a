/* prefix_cache.c - see prefix_cache.h. */
#include "sched/prefix_cache.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

void prefix_cache_init(struct prefix_cache *pc, int n_nodes, int block_size) {
    *pc = (struct prefix_cache){.block_size = block_size, .n_nodes = n_nodes, .n_buckets = 64};
    while (pc->n_buckets < 2 * (uint32_t)n_nodes)
        pc->n_buckets *= 2;
    pc->nodes = xcalloc((size_t)n_nodes, sizeof *pc->nodes);
    pc->tokens = xcalloc((size_t)n_nodes * (size_t)block_size, sizeof *pc->tokens);
    pc->buckets = xcalloc(pc->n_buckets, sizeof *pc->buckets);
    pc->n_seen = MAX(4 * pc->n_buckets, 1u << 14); // hashes overwrite each other: few do, even of a small cache's
    pc->seen = xcalloc(pc->n_seen, sizeof *pc->seen);
    for (uint32_t i = 0; i < pc->n_buckets; i++)
        pc->buckets[i] = NO_NODE;
    for (int i = 0; i < n_nodes; i++)
        pc->nodes[i].next = i + 1 < n_nodes ? i + 1 : NO_NODE;
    pc->free = n_nodes > 0 ? 0 : NO_NODE;
    if (getrandom(&pc->key, sizeof pc->key, 0) != sizeof pc->key)
        pc->key = (uintptr_t)pc->nodes; // no entropy this early: the address differs from run to run
}

void prefix_cache_release(struct prefix_cache *pc) {
    free(pc->nodes);
    free(pc->tokens);
    free(pc->buckets);
    free(pc->seen);
    *pc = (struct prefix_cache){0};
}

static int32_t *tokens_of(const struct prefix_cache *pc, int32_t node) {
    return pc->tokens + (size_t)node * (size_t)pc->block_size;
}

static uint64_t hash_of(const struct prefix_cache *pc, int32_t parent, struct prefix_salt salt, const int32_t *tokens) {
    uint64_t before = parent == NO_NODE ? XXH3_64bits_withSeed(&salt, sizeof salt, pc->key) : pc->nodes[parent].hash;
    return XXH3_64bits_withSeed(tokens, (size_t)pc->block_size * sizeof *tokens, pc->key ^ before);
}

static bool same_salt(struct prefix_salt a, struct prefix_salt b) {
    return a.tenant == b.tenant && a.adapter == b.adapter && a.word[0] == b.word[0] && a.word[1] == b.word[1];
}

static int32_t find_hashed(const struct prefix_cache *pc, uint64_t hash, int32_t parent, struct prefix_salt salt,
                           const int32_t *tokens) {
    int32_t i = pc->buckets[hash & (pc->n_buckets - 1)];
    for (; i != NO_NODE; i = pc->nodes[i].next) {
        const struct prefix_node *n = &pc->nodes[i];
        if (n->hash == hash && n->parent == parent && (parent != NO_NODE || same_salt(n->salt, salt)) &&
            memcmp(tokens_of(pc, i), tokens, (size_t)pc->block_size * sizeof *tokens) == 0)
            return i;
    }
    return NO_NODE;
}

int32_t prefix_cache_find(const struct prefix_cache *pc, int32_t parent, struct prefix_salt salt,
                          const int32_t *tokens) {
    return find_hashed(pc, hash_of(pc, parent, salt, tokens), parent, salt, tokens);
}

// ---- what once was here -----------------------------------------------------------------------------------------

static uint64_t *seen_at(const struct prefix_cache *pc, uint64_t hash) { return &pc->seen[hash & (pc->n_seen - 1)]; }

/* Of a first block, whatever its salt. */
static uint64_t hash_of_any_salt(const struct prefix_cache *pc, const int32_t *tokens) {
    return XXH3_64bits_withSeed(tokens, (size_t)pc->block_size * sizeof *tokens, ~pc->key);
}

enum gyre_cache_miss prefix_cache_why_not(const struct prefix_cache *pc, int32_t parent, struct prefix_salt salt,
                                          const int32_t *tokens) {
    uint64_t hash = hash_of(pc, parent, salt, tokens), any = hash_of_any_salt(pc, tokens);
    if (*seen_at(pc, hash) == hash)
        return GYRE_MISS_EVICTED;
    return parent == NO_NODE && *seen_at(pc, any) == any ? GYRE_MISS_SALT : GYRE_MISS_NEW;
}

// ---- nodes ------------------------------------------------------------------------------------------------------

int32_t prefix_cache_add(struct prefix_cache *pc, int32_t parent, struct prefix_salt salt, const int32_t *tokens) {
    uint64_t hash = hash_of(pc, parent, salt, tokens);
    int32_t i = find_hashed(pc, hash, parent, salt, tokens);
    if (i != NO_NODE || pc->free == NO_NODE)
        return i;
    i = pc->free;
    struct prefix_node *n = &pc->nodes[i];
    int32_t *bucket = &pc->buckets[hash & (pc->n_buckets - 1)];
    pc->free = n->next;
    pc->n_used++;
    *n = (struct prefix_node){.hash = hash, .parent = parent, .salt = salt, .next = *bucket};
    memset(n->block, 0xFF, sizeof n->block);
    memcpy(tokens_of(pc, i), tokens, (size_t)pc->block_size * sizeof *tokens);
    *bucket = i;
    if (parent == NO_NODE) {
        uint64_t any = hash_of_any_salt(pc, tokens);
        *seen_at(pc, any) = any;
    }
    prefix_cache_hold(pc, parent);
    return i;
}

void prefix_cache_hold(struct prefix_cache *pc, int32_t node) {
    if (node != NO_NODE)
        pc->nodes[node].n_holders++;
}

static bool is_needed(const struct prefix_node *n) {
    bool needed = n->n_holders > 0;
    for (int g = 0; g < MAX_CACHE_GROUPS; g++)
        needed |= n->block[g] >= 0;
    return needed;
}

static void unlink_node(struct prefix_cache *pc, int32_t node) {
    int32_t *at = &pc->buckets[pc->nodes[node].hash & (pc->n_buckets - 1)];
    while (*at != node)
        at = &pc->nodes[*at].next;
    *at = pc->nodes[node].next;
    *seen_at(pc, pc->nodes[node].hash) = pc->nodes[node].hash;
    pc->nodes[node].next = pc->free;
    pc->free = node;
    pc->n_used--;
}

/* A node that goes gives up its parent, which may go with it. */
static void free_unneeded(struct prefix_cache *pc, int32_t node) {
    while (node != NO_NODE && !is_needed(&pc->nodes[node])) {
        int32_t parent = pc->nodes[node].parent;
        unlink_node(pc, node);
        if (parent != NO_NODE)
            pc->nodes[parent].n_holders--;
        node = parent;
    }
}

void prefix_cache_leave(struct prefix_cache *pc, int32_t node) {
    if (node == NO_NODE)
        return;
    BUG_IF(pc->nodes[node].n_holders <= 0);
    pc->nodes[node].n_holders--;
    free_unneeded(pc, node);
}

void prefix_cache_forget(struct prefix_cache *pc, int32_t node, int group) {
    pc->nodes[node].block[group] = -1;
    free_unneeded(pc, node);
}
