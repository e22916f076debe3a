/* matcher.h - where one sequence is in a grammar.
 *
 * A matcher reads tokens, or bytes where there is no tokenizer. It says which tokens may come next, goes back, and
 * tells the bytes that must come next. A text is accepted if it is the beginning of a text of the grammar: a matcher
 * never enters a state from which no text can be finished.
 *
 * A matcher is for one thread at a time; those of one grammar share what they learn, under a lock, and read what is met
 * again side by side. The first mask in a kind of state may take milliseconds, the next ones microseconds. Accepting
 * allocates; so no call belongs in a stretch of code in which nothing may be allocated (base/guard.h).
 *
 * A grammar that grows past its memory, or an ambiguity past what one step may cost, makes a matcher dead: it accepts
 * nothing from then on, and matcher_is_dead says why. */
#pragma once

#include "base/buf.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

struct matcher;

/* trie NULL: bytes only. Holds references to both. ERR_ARG where the grammar names a special token that the vocabulary
 * lacks, or names one and there is no vocabulary. */
enum status matcher_open(struct grammar *grammar, struct token_trie *trie, struct matcher **out, struct error *err);
void matcher_free(struct matcher *matcher); // NULL is fine

/* A matcher at the same place, with the same past. */
struct matcher *matcher_copy(const struct matcher *matcher);

/* Takes one token. False, with nothing changed, if the grammar does not allow it here. An end token is taken where the
 * text may end; after it nothing more is. */
bool matcher_accept(struct matcher *matcher, int32_t token);

/* Takes bytes of text, all or none. They count as one token for matcher_back. No bytes: true, and one token. */
bool matcher_accept_bytes(struct matcher *matcher, struct str bytes);

/* Forgets the last n tokens; n <= matcher_n_tokens. O(1). */
void matcher_back(struct matcher *matcher, size_t n);
size_t matcher_n_tokens(const struct matcher *matcher);

/* Writes the mask of the next token: bit t % 32 of word t / 32 is set if matcher_accept would take token t. bits is
 * [token_trie_n_words]; bits past n_vocab are 0. Needs a vocabulary. A dead matcher, and one that has taken an end
 * token, allow nothing. */
void matcher_mask(struct matcher *matcher, uint32_t *bits);

bool matcher_may_end(const struct matcher *matcher);
bool matcher_has_ended(const struct matcher *matcher); // an end token was the last

/* Whether it met a limit and cannot go on; *err says which. */
bool matcher_is_dead(const struct matcher *matcher, struct error *err);

/* Appends the bytes that must come next, at most max of them: where there is one possible byte, and the text may not
 * end. Returns how many. Nothing is taken. The last bytes may be the beginning of a character. */
size_t matcher_forced(struct matcher *matcher, size_t max, struct buf *out);
