/* ngram.h - guesses from the sequence itself: what followed the last time that its last tokens stood in it.
 *
 * Of all places where the last `shortest` to `longest` tokens stood before, the one that agrees longest is taken, of
 * equals the latest. Its continuation is the guess; one that reaches the end of what is known goes on with itself, so a
 * text that repeats is guessed for ever. Costs one pass over the last NGRAM_WINDOW tokens a step and sequence, and no
 * memory. Where the first guess of several is wrong for the second time, and none was right between, fewer are made the
 * next time, after some steps of rest, twice as many each time. */
#pragma once

#include "sched/sequence.h"

enum { NGRAM_WINDOW = 16384, NGRAM_LONGEST = 64, NGRAM_MOST_REST = 64 };

struct ngram {
    int most;              // tokens guessed at once
    int longest, shortest; // of what must have stood there before, tokens
};

/* How a sequence's guesses fared; zeros at its beginning. */
struct guess_luck {
    int n_right;               // in a row, since it was judged last
    int n_wrong;               // first guesses of drafts, since one was right
    int n_next, rest, n_rests; // tokens of the next guess; steps without one, now and the next time
};

/* A guess came to be known: it was right, or it was wrong and those behind it are void. In the order of the text, and
 * when its step is collected; another guess may be in flight then. */
void ngram_was_right(const struct ngram *ngram, struct guess_luck *luck);
void ngram_was_wrong(const struct ngram *ngram, struct guess_luck *luck);

/* Writes at most max tokens that may follow those of seq, of which the last may be expected; returns how many. */
int ngram_guess(const struct ngram *ngram, struct guess_luck *luck, const struct sequence *seq, int32_t *out, int max);
