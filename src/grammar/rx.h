/* rx.h - regular expressions over bytes, with boolean operations: the terminals of a grammar.
 *
 * An expression is a number in a pool. Equal expressions are one number (hash-consing), and constructors simplify, so
 * RX_NEVER is the only expression without and/not whose language is empty. Deterministic automata are made of them
 * lazily, by derivatives (Brzozowski 1964; Owens, Reppy, Turon 2009), so `and` and `not` cost no determinisation
 * beforehand, and a repeat {m,n} is a counter.
 *
 * What a constructor may not do for a limit of the pool (nodes, depth) makes it return RX_NEVER, and the pool failed:
 * whoever builds looks once, at the end (rx_check). */
#pragma once

#include "base/status.h"
#include "base/str.h"

typedef uint32_t rx_id;
struct rx_pool;

enum { RX_NEVER = 0, RX_EMPTY = 1, RX_ALL = 2 }; // no text; the empty text; every string of bytes
enum { RX_NO_MAX = -1 };

/* Code points first to last, 0 to 0x10FFFF; surrogates match nothing. */
struct code_range {
    uint32_t first, last;
};

struct rx_pool *rx_pool_open(uint32_t max_nodes);
void rx_pool_free(struct rx_pool *pool); // NULL is fine
enum status rx_check(const struct rx_pool *pool, struct error *err);

rx_id rx_bytes(struct rx_pool *pool, struct str literal);
rx_id rx_byte_range(struct rx_pool *pool, uint8_t first, uint8_t last); // one byte, of any kind

/* One character of the ranges, which may overlap and stand in any order, as UTF-8. */
rx_id rx_class(struct rx_pool *pool, const struct code_range *ranges, size_t n);
rx_id rx_not_class(struct rx_pool *pool, const struct code_range *ranges, size_t n);
rx_id rx_any_char(struct rx_pool *pool); // with line ends
rx_id rx_any_text(struct rx_pool *pool); // any number of them

rx_id rx_seq(struct rx_pool *pool, rx_id a, rx_id b);
rx_id rx_seq_of(struct rx_pool *pool, const rx_id *parts, size_t n);
rx_id rx_alt(struct rx_pool *pool, rx_id a, rx_id b);
rx_id rx_alt_of(struct rx_pool *pool, const rx_id *parts, size_t n);
rx_id rx_repeat(struct rx_pool *pool, rx_id a, int32_t min, int32_t max); // max RX_NO_MAX: any number
rx_id rx_optional(struct rx_pool *pool, rx_id a);

rx_id rx_and(struct rx_pool *pool, rx_id a, rx_id b);

/* The same, of a and a bound on its length: a repeat that takes all of a once it has no limits. What is far from the
 * limit is then seen to be a alone (rx_clamp). */
rx_id rx_at_most(struct rx_pool *pool, rx_id a, rx_id bound);

/* Every string of bytes that is not in a, ill-formed UTF-8 among them: `and` it with what is text (rx_any_text, or the
 * language that something is taken out of). */
rx_id rx_not(struct rx_pool *pool, rx_id a);

/* Decimals without a sign, "12", "12.50", that are multiples of step / 10^decimals: digits, and perhaps a point and
 * digits. 1 <= step <= RX_MAX_STEP, 0 <= decimals <= 18. Zeros before and behind do not matter. */
enum { RX_MAX_STEP = 100000000 };
rx_id rx_multiple(struct rx_pool *pool, uint32_t step, int decimals);

/* One of n literals, as a trie of their bytes: for long lists. Sorts the array. */
rx_id rx_choice(struct rx_pool *pool, struct str *literals, size_t n);

bool rx_nullable(const struct rx_pool *pool, rx_id a); // does it match the empty text?

/* Whether it matches no text. Exact; may walk many states of its automaton: after max_states of them it gives up, and
 * the pool has failed with ERR_LIMIT. */
bool rx_is_never(struct rx_pool *pool, rx_id a, uint32_t max_states);

/* Does it match this text, whole? */
bool rx_match(struct rx_pool *pool, rx_id a, struct str text);

/* Does a text exist that both match? Exact, as rx_is_never. */
bool rx_meet(struct rx_pool *pool, rx_id a, rx_id b, uint32_t max_states);
