/* shared.h - a grammar with a vocabulary: the machine and the masks that all matchers of the two share.
 *
 * A machine only grows, so once it has grown past a quarter of the grammar's memory, the next matcher gets a new one;
 * the old one goes with its last matcher. */
#pragma once

#include "grammar/grammar.h"
#include "grammar/machine/machine.h"
#include "grammar/mask_table.h"

#include <pthread.h>

struct token_list { // of a terminal that is special tokens
    int32_t *ids;   // [n], sorted
    int32_t n;
};

struct mask_slot {
    uint32_t *bits;  // [n_words], each of its own: as one block they would all move when there are more
    uint32_t config; // whose mask it is; 0: none
    bool used;       // since the clock's hand last passed; readers set it
};

struct shared {
    struct grammar *grammar; // borrowed: a matcher holds it
    struct token_trie *trie; // may be NULL
    struct machine *machine;
    pthread_rwlock_t lock; // of all below, and of the machine; what is known already is read side by side
    int references;       // under the grammar's lock; the grammar's list has one
    struct shared *next;
    struct token_list *token_lists; // [n_terminals]
    bool *chosen;                   // [n_terminals], working memory
    struct mask_slot *slots;
    int32_t n_slots, max_slots, hand;
    struct number_map table_of; // state of a terminal -> its table
    VEC(struct mask_table *) tables;
    uint32_t *walk; // [2][max_depth + 2], of a walk: configs, and ends of subtrees
};

struct grammar {
    struct net *net;
    size_t memory_bytes;
    int references; // under lock
    pthread_mutex_t lock;
    struct shared *current; // list, one a vocabulary
};

/* Who is kept out looks again for some microseconds before it sleeps: a new mask takes thirty, to be woken as long. */
void shared_lock_read(struct shared *shared);
void shared_lock_write(struct shared *shared);

enum status shared_get(struct grammar *grammar, struct token_trie *trie, struct shared **out, struct error *err);
void shared_put(struct shared *shared);

/* Masks (mask.c); the lock is held. The second only reads: false if the mask is not known. */
void shared_mask(struct shared *shared, uint32_t config, uint32_t *bits);
bool shared_known_mask(struct shared *shared, uint32_t config, uint32_t *bits);
bool token_list_has(const struct token_list *list, int32_t id);
