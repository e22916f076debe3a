/* suffix.h - guesses from what the server answered lately: a suffix automaton over the tokens of recent answers.
 *
 * It knows each run of tokens that stands in them, and where the longest end of a text stands in it, token by token in
 * constant time (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985). What followed there
 * is the guess. Symbols are pairs of owner and token, so nobody finds another's answers: an owner
 * is 64 bits of a digest of all that parts them.
 *
 * Two generations of `capacity` tokens each: the newer is filled; when it is full it becomes the older one, which is
 * only read, and the one before that is forgotten. All memory is taken at the beginning, some 160 bytes a token. */
#pragma once

#include "sched/sequence.h"

enum { LEAST_SUFFIX = 3, SUFFIX_CONTEXT = 16 };

struct suffix_index; // of both generations

/* Where a text's end stands in them; zeros at its beginning. */
struct suffix_match {
    int32_t state[2], length[2];
    int64_t generation[2]; // of the automaton that these are of
    int32_t n_seen;        // tokens of the text that were followed
};

struct suffix_index *suffix_open(int32_t capacity);
void suffix_free(struct suffix_index *x); // NULL is fine

/* An answer: the last tokens of its prompt, and what followed. What is longer than a generation is cut. */
void suffix_add(struct suffix_index *x, uint64_t owner, const int32_t *tokens, int32_t n);

/* At most max tokens that may follow those of seq, of which the last may be expected; returns how many. */
int suffix_guess(const struct suffix_index *x, struct suffix_match *m, uint64_t owner, const struct sequence *seq,
                 int32_t *out, int max);
