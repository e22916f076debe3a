/* rx_pool.h - what the files of regular expressions share: nodes, their constructors without checks, their automaton.
 *
 * A node is also a state of its own automaton: rx_step(pool, a, byte) is the expression of what may follow `byte` in a,
 * and RX_NEVER where nothing may. Rows of transitions are made when they are first asked for. */
#pragma once

#include "grammar/rx.h"

#include <stdlib.h>

enum rx_kind { RX_K_NEVER, RX_K_EMPTY, RX_K_BYTES, RX_K_SEQ, RX_K_ALT, RX_K_AND, RX_K_NOT, RX_K_REPEAT, RX_K_MULTIPLE };
enum rx_flags {
    RX_NULLABLE = 1,
    RX_BOOLEAN = 2, // has AND or NOT within: may be empty without being RX_NEVER
    RX_COUNTS = 4,  // has a bounded repeat within
    RX_ALIVE = 8,   // known to match something
    RX_DEAD = 16,   // known to match nothing
};

enum { RX_LENGTH_MAX = 65535 };

struct rx_hash {
    uint64_t lo, hi;
};

struct rx_node {
    uint8_t kind, flags;
    uint16_t depth;    // of recursion in a derivative; the right end of a sequence does not count
    uint32_t a, b;     // BYTES: a set; SEQ: parts; ALT, AND: [a, a + b) of lists; NOT, REPEAT: a
    int32_t min, max;  // REPEAT; of a MULTIPLE the decimals left, and 1 behind the point (a: step, b: remainder);
                       // AND: max is the part that bounds the other (rx_at_most), 0 where that is not known
    uint32_t row;      // its transitions, 0: not made yet
    bool clean;        // dead targets of the row are RX_NEVER
    uint16_t shortest; // no text is shorter, and without BOOLEAN one is as short; RX_LENGTH_MAX stands for more, too
    uint16_t ending;   // from wherever texts may lead, one ends within so many bytes; RX_LENGTH_MAX: or more
    uint32_t searched; // number of the last search for a text that met it
    uint16_t slack;    // see rx_slack; of no meaning before `free` is known
    rx_id free;        // RX_NEVER: not looked for yet
    struct rx_hash id; // of its structure, the same in every pool
};

struct rx_set { // of bytes
    uint64_t w[4];
};

struct rx_row {
    uint32_t map;        // 256 bytes to classes
    uint32_t targets;    // offset
    uint16_t n;          // classes
    struct rx_set first; // bytes that lead on; of a clean row
};

struct rx_pool {
    struct rx_node *nodes;
    uint32_t n_nodes, cap_nodes, max_nodes;
    uint32_t *table; // of node numbers + 1, open addressing
    uint32_t table_mask;
    uint32_t *lists; // of ALT and AND
    size_t n_lists, cap_lists;
    struct rx_set *sets;
    uint32_t n_sets, cap_sets, *set_table, set_table_mask;
    struct rx_row *rows; // [0] leads nowhere
    uint32_t n_rows, cap_rows;
    uint8_t (*maps)[256];
    uint32_t n_maps, cap_maps, *map_table, map_table_mask;
    rx_id *targets;
    size_t n_targets, cap_targets;
    uint32_t *memo_epoch, *memo; // [cap_nodes], of one derivative
    uint32_t epoch;
    rx_id *scratch; // of constructors of lists
    size_t n_scratch, cap_scratch;
    int64_t allowed_us, deadline_us; // of this thread's processor time; it begins to run when it is first looked at
    uint32_t n_searches;
    uint32_t max_states; // that a search for a text may visit
    enum status failed;
    const char *why;
};

/* Grows *array for one more beyond n. */
#define RX_GROW(array, n, cap)                                           \
    do {                                                                 \
        if ((n) >= (cap)) {                                              \
            (cap) = (cap) ? (cap)*2 : 64;                                \
            (array) = xrealloc((array), (size_t)(cap), sizeof *(array)); \
        }                                                                \
    } while (0)

/* A growing array: {0} is empty. */
#define VEC(type)      \
    struct {           \
        type *at;      \
        size_t n, cap; \
    }
#define VEC_PUSH(v, ...)                 \
    do {                                 \
        RX_GROW((v).at, (v).n, (v).cap); \
        (v).at[(v).n++] = __VA_ARGS__;   \
    } while (0)

static inline bool rx_set_has(const struct rx_set *s, unsigned byte) { return s->w[byte >> 6] >> (byte & 63) & 1; }
static inline void rx_set_add(struct rx_set *s, unsigned byte) { s->w[byte >> 6] |= (uint64_t)1 << (byte & 63); }
static inline bool rx_set_is_empty(const struct rx_set *s) { return !(s->w[0] | s->w[1] | s->w[2] | s->w[3]); }

/* Is its language empty? 1 alive, 0 dead, -1: to be searched for. */
static inline int rx_known_alive(const struct rx_pool *pool, rx_id a) {
    uint8_t f = pool->nodes[a].flags;
    if (f & (RX_NULLABLE | RX_ALIVE))
        return 1;
    if (f & RX_DEAD)
        return 0;
    return f & RX_BOOLEAN ? -1 : 1;
}
void rx_take_facts(const struct rx_pool *pool, struct rx_node *n, const uint32_t *list); // shortest, ending, ALIVE
rx_id rx_intern(struct rx_pool *pool, struct rx_node n, const uint32_t *list, const void *key, size_t key_bytes);
rx_id rx_derive_multiple(struct rx_pool *pool, rx_id a, uint8_t byte);
rx_id rx_fail(struct rx_pool *pool, enum status status, const char *why);
void rx_allow_time(struct rx_pool *pool, int64_t us); // 0: without end
void rx_check_time(struct rx_pool *pool);             // fails the pool past it
rx_id rx_of_set(struct rx_pool *pool, const struct rx_set *set);
enum { RX_LONG = 1 << 16 };
uint32_t rx_length(const struct rx_pool *pool, rx_id a);       // parts of a sequence, RX_LONG at most
rx_id rx_seq_as_is(struct rx_pool *pool, rx_id a, rx_id b);    // does not turn (ab)c to a(bc)
void rx_set_bound(struct rx_pool *pool, rx_id a, rx_id bound); // where a is an AND of two, one of them the bound
rx_id rx_list(struct rx_pool *pool, enum rx_kind kind, rx_id *parts, size_t n); // ALT or AND; sorts parts
rx_id rx_derive(struct rx_pool *pool, rx_id a, uint8_t byte);                   // as it is: may be dead

uint32_t rx_row_make(struct rx_pool *pool, rx_id state); // with dead targets taken out
static inline const struct rx_row *rx_row_get(struct rx_pool *pool, rx_id state) {
    uint32_t row = pool->nodes[state].clean ? pool->nodes[state].row : rx_row_make(pool, state);
    return &pool->rows[row];
}
static inline rx_id rx_step(struct rx_pool *pool, rx_id state, uint8_t byte) {
    const struct rx_row *row = rx_row_get(pool, state);
    return pool->targets[row->targets + pool->maps[row->map][byte]];
}
static inline bool rx_accepts(const struct rx_pool *pool, rx_id state) {
    return pool->nodes[state].flags & RX_NULLABLE;
}

/* The state that behaves like this one for the next n bytes, with counters beyond them left away (rx_clamp.c). */
rx_id rx_clamp(struct rx_pool *pool, rx_id state, int n);

/* The state with its counters let loose (*free: rounds that must be are for ever, those that may be any number), and
 * for how many bytes it behaves like that one. */
int rx_slack(struct rx_pool *pool, rx_id state, rx_id *free);

/* A copy, to be grown by itself. */
struct rx_pool *rx_pool_copy(const struct rx_pool *pool);
size_t rx_pool_bytes(const struct rx_pool *pool);
