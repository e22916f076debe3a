/* grammar_cache.h - compiled grammars of recent requests, by what they were made of.
 *
 * Agents send the same schema with each request. Its grammar, with all that matchers have learnt about it, stays here
 * as long as there is room: those that were not asked for the longest go first. One that goes lives on while a matcher
 * has it. Any thread; grammars are compiled outside of the lock, so two threads may compile the same one at the same
 * time, and the first to end is kept. */
#pragma once

#include "grammar/grammar.h"

struct grammar_cache;

/* max_bytes 0: 512 MiB. */
struct grammar_cache *grammar_cache_open(size_t max_bytes);
void grammar_cache_free(struct grammar_cache *cache); // NULL is fine

/* As grammar_compile, which it calls for what it does not have. *out is a reference of the caller's. */
enum status grammar_cache_compile(struct grammar_cache *cache, const struct grammar_source *source,
                                  const struct grammar_limits *limits, struct grammar **out, struct error *err);

/* Since it was opened, and what is there now. */
struct grammar_cache_state {
    int64_t n_hits, n_compiled, n_refused; // of all that were asked for; refused: those that do not compile
    int64_t compile_us;                    // that compiling took, of refused ones too
    int64_t n_held;
    size_t held_bytes; // with what matchers have learnt about them
};
void grammar_cache_state(struct grammar_cache *cache, struct grammar_cache_state *out);
