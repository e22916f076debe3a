/* trie.h - the inside of a vocabulary's trie (vocabulary.h), for those who walk it.
 *
 * Nodes stand in depth-first order: the first child of node i is i + 1, its next sibling i + skip. So a walk reads
 * memory from its beginning to its end, and leaves a subtree out by adding skip. The root is no node: it stands before
 * the first. */
#pragma once

#include "base/arena.h"
#include "grammar/numbers.h"
#include "grammar/vocabulary.h"

#include <pthread.h>
#include <stdatomic.h>

struct token_node {
    uint32_t skip; // nodes of the subtree, with this one
    uint16_t height;
    uint8_t byte;
};

/* A set of kinds of bytes: a bit for each byte of ASCII (the first four are one), one for bytes of characters beyond
 * ASCII, one for those behind E2 of U+2000 to U+203F, two of which ECMA's "." is not, and one for what is no UTF-8, or
 * begins within a character. */
struct kinds {
    uint64_t w[2];
};
enum { N_KINDS = 128, MAX_WAYS = 32, MAX_COUNTED = 64 };
enum { KIND_CHARACTER = 0, KIND_ILL_FORMED = 1, KIND_CONTROL = 2, KIND_PUNCTUATION = 3 };
static inline void kinds_add(struct kinds *k, unsigned kind) { k->w[kind >> 6] |= (uint64_t)1 << (kind & 63); }
static inline void kinds_add_ascii(struct kinds *k, uint8_t c) { kinds_add(k, c < 4 ? KIND_CONTROL : c); }
static inline bool kinds_have(struct kinds k, unsigned kind) { return k.w[kind >> 6] >> (kind & 63) & 1; }
static inline int kinds_count(struct kinds k) { return __builtin_popcountll(k.w[0]) + __builtin_popcountll(k.w[1]); }
static inline bool kinds_are_within(struct kinds a, struct kinds b) {
    return !((a.w[0] & ~b.w[0]) | (a.w[1] & ~b.w[1]));
}
static inline bool kinds_meet(struct kinds a, struct kinds b) { return (a.w[0] & b.w[0]) | (a.w[1] & b.w[1]); }

/* The automaton of well-formed UTF-8: 0 between characters, UTF8_PUNCTUATION behind E2 80, UTF8_ILL for ever after a
 * mistake. */
enum { UTF8_BETWEEN = 0, UTF8_PUNCTUATION = 9, UTF8_STATES = 10, UTF8_ILL = 255 };
uint8_t utf8_next(uint8_t state, uint8_t byte);

/* Nodes in order, each behind its parent: where a walk has to go that looks for some kinds of bytes. And the tokens
 * that have none of some others. */
struct way {
    struct kinds kinds, without;
    uint32_t *nodes, n;
    uint32_t *tokens; // [n_words]
};

struct special {
    int32_t id;
    const char *name;
    size_t len;
};

struct token_trie {
    struct token_node *nodes; // [n_nodes]
    uint32_t n_nodes, max_depth;
    struct kinds *below;       // [n_nodes]: bytes that occur below a node
    uint8_t *kind;             // [n_nodes]: of the node's byte
    uint32_t *having[N_KINDS]; // [n_words] tokens that have a byte of the kind; NULL: none has
    uint32_t *at_most;         // [MAX_COUNTED][n_words]: tokens of at most so many characters, begun ones too
    int32_t *order;            // [n_tokens] tokens of text, as their texts are sorted
    uint32_t
        *first_token; // [n_nodes + 1], into order: tokens of node i end at that of i + 1, of its subtree at i + skip
    int32_t n_vocab, n_words;
    uint32_t *is_text; // [n_words]
    int32_t *ends, n_ends;
    char *texts;
    struct str *text_of; // [n_vocab]; empty for what is no text
    struct special *specials;
    int32_t n_specials;
    atomic_int references;
    pthread_mutex_t lock; // of what follows
    struct arena memory;
    struct mask_table **tables; // of terminals' states (mask_table.h)
    uint32_t n_tables, cap_tables;
    struct number_index table_index;
    size_t table_bytes;
    struct way ways[MAX_WAYS];
    int n_ways;
};

/* Fills kind, below, having and at_most (trie_kinds.c). */
void trie_find_kinds(struct token_trie *trie);
void trie_kinds_free(struct token_trie *trie);
size_t trie_kinds_bytes(const struct token_trie *trie); // under the lock

/* The nodes of a byte of some kinds, and those above them; tokens without a byte of some others. NULL: there are too
 * many sets of kinds. */
const struct way *trie_way(struct token_trie *trie, struct kinds kinds, struct kinds without);
