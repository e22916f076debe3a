/* prefix_cache.h - which full blocks of cache hold what text, so that a prompt that begins like an earlier one does not
 * compute it again.
 *
 * A node is a full block of tokens after a given parent node, that is: after one particular text. Nodes form a tree;
 * each knows the blocks, one a cache group, that hold its tokens' keys and values, as long as nobody else took them.
 *
 *     root(salt) ── [Once upon a ...] ── [there was a fox ...] ── ...          64 tokens a node
 *                                     └─ [there was a cat ...]
 *
 * A node is found by a keyed hash of its parent and tokens, and then compared: parent and all tokens must be equal, so
 * two texts are never taken for each other, and nobody who cannot see the key can aim at a bucket. Tenant, adapter and
 * salt of a request are part of the root, and compared as well: requests of two tenants share nothing, whatever salts
 * they bring.
 *
 * A node lives while it has a block, a child, or a sequence that stands on it. No allocation after init: when nodes
 * run out, new text is simply not remembered. Knows nothing of sequences, steps or memory. */
#pragma once

#include "core/plan.h"
#include "gyre.h"

#include <stdbool.h>

enum { NO_NODE = -1 };

struct prefix_salt {
    int32_t tenant, adapter; // adapter: plan.h
    uint64_t word[2];        // a keyed digest of the request's salt; zero: none
};

struct prefix_node {
    uint64_t hash;
    int32_t parent;                  // NO_NODE: a root's child
    struct prefix_salt salt;         // of roots' children
    int32_t n_holders;               // children and sequences
    int32_t block[MAX_CACHE_GROUPS]; // -1: none
    int32_t next;                    // in its bucket, or in the free list
};

struct prefix_cache {
    int block_size, n_nodes, n_used;
    struct prefix_node *nodes; // [n_nodes]
    int32_t *tokens;           // [n_nodes][block_size]
    int32_t *buckets;          // [n_buckets], a power of two
    uint32_t n_buckets;
    int32_t free;
    uint64_t key;
    uint64_t *seen; // [n_seen], a power of two: hashes of text that once was here, each at its own place until another
                    // takes it
    uint32_t n_seen;
};

void prefix_cache_init(struct prefix_cache *pc, int n_nodes, int block_size);
void prefix_cache_release(struct prefix_cache *pc);

/* The node of these block_size tokens after `parent` (NO_NODE: at the beginning, under salt), or NO_NODE. */
int32_t prefix_cache_find(const struct prefix_cache *pc, int32_t parent, struct prefix_salt salt,
                          const int32_t *tokens);

/* Why find gave NO_NODE, as well as is remembered: nodes that went, and first blocks under other salts, leave their
 * hashes for a while. */
enum gyre_cache_miss prefix_cache_why_not(const struct prefix_cache *pc, int32_t parent, struct prefix_salt salt,
                                          const int32_t *tokens);

/* The node as find gives it, made if it is not there; NO_NODE when nodes have run out. A new node lives only once it is
 * held or has a block. */
int32_t prefix_cache_add(struct prefix_cache *pc, int32_t parent, struct prefix_salt salt, const int32_t *tokens);

/* A sequence stands on the node, or leaves it; leaving may free it. NO_NODE is fine. */
void prefix_cache_hold(struct prefix_cache *pc, int32_t node);
void prefix_cache_leave(struct prefix_cache *pc, int32_t node);

/* The block of a group was taken for something else; may free the node. */
void prefix_cache_forget(struct prefix_cache *pc, int32_t node, int group);
