/* mask_table.h - the part of masks that depends on the state of one terminal alone, made once for all grammars.
 *
 * From a state of a terminal's automaton a token may stay within the terminal to its last byte: it is allowed, whatever
 * stands around. Or the terminal may end within it: what is left of the token belongs to what follows. So a table has
 * the tokens that stay, and the nodes of the vocabulary's trie where the terminal may end and something stands below
 * that does not stay anyway. A mask is then a union of tables, and short walks from a row's threads below those nodes.
 *
 * Tables are found by the structure of the state's expression (rx_hash), not by grammar: all grammars with a JSON
 * string share those of its states. Those that nobody holds are dropped when they take more than TABLES_MAX_BYTES
 * together. */
#pragma once

#include "grammar/rx_pool.h"
#include "grammar/trie.h"

enum { TABLES_MAX_BYTES = 256 << 20 };

struct mask_table {
    struct rx_hash key;
    int references;  // under the trie's lock; the trie's is one
    uint32_t *stay;  // [n_words], or NULL: few has them
    int32_t *few;    // [n_few]
    uint32_t *exits; // [n_exits] nodes, in order
    uint32_t n_few, n_exits;
    uint64_t n_below; // nodes below the exits, those below two of them twice
    size_t bytes;
};

/* The table of a state, with a reference for the caller, or NULL where the pool met a limit. */
struct mask_table *mask_table_get(struct token_trie *trie, struct rx_pool *pool, rx_id state);
void mask_table_put(struct token_trie *trie, struct mask_table *table);
void mask_tables_free(struct token_trie *trie);
