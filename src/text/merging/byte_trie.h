/* byte_trie.h - a fixed set of keys, walked byte by byte: which keys begin here, and which is the longest?
 *
 * The children of a node are neighbours in one array and their labels neighbours in another, sorted, so a step
 * is a search among a few bytes. Node 0 is the root. */
#pragma once

#include "base/str.h"

struct trie_node {
    uint32_t first; // child
    uint16_t n;     // children
    int32_t value;  // -1: no key ends here
};

struct byte_trie {
    struct trie_node *nodes;
    uint8_t *labels; // [n_nodes]; the byte that leads to the node
    uint32_t n_nodes;
    uint32_t root[256]; // the root's children; 0 is none
};

struct trie_key {
    struct str text; // borrowed while building
    int32_t value;   // not negative
};

/* Sorts keys in place. Of equal keys the one with the greater value counts. Empty keys are left out. */
void byte_trie_build(struct byte_trie *t, struct trie_key *keys, size_t n);
void byte_trie_release(struct byte_trie *t);

/* The child of node by one byte; 0 is none. */
static inline uint32_t byte_trie_step(const struct byte_trie *t, uint32_t node, char byte) {
    if (node == 0)
        return t->root[(unsigned char)byte];
    const struct trie_node *at = &t->nodes[node];
    for (uint32_t i = 0; i < at->n; i++)
        if (t->labels[at->first + i] == (unsigned char)byte)
            return at->first + i;
    return 0;
}

/* The longest key that text begins with, walking on from `node`: its value, or -1; *len is its length. */
int32_t byte_trie_longest(const struct byte_trie *t, uint32_t node, struct str text, size_t *len);
