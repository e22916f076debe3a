/* acceptance.h - how many guesses of a head would have been accepted: along the target's own greedy answers to prompts
 * that training has not seen. */
#pragma once

#include "train/examples.h"

enum { ACCEPTANCE_GUESSES = 5, ACCEPTANCE_TOKENS = 64 };

struct acceptance {
    int64_t n_steps;    // of verification
    double mean_length; // tokens that a step makes: the accepted guesses and one more
    int64_t n_reached[ACCEPTANCE_GUESSES],
        n_right[ACCEPTANCE_GUESSES]; // guess i: those before it were right; it was too
};

/* Walks one text: `prompt` tokens and n_made greedy ones behind them. guess(context, i, row) is the target's id that
 * step i of the chains says in a row of the text. Each step of verification follows the one before; one whose guesses
 * would lie behind the text's end is not judged, nor one that begins behind the ACCEPTANCE_TOKENSth token. */
void acceptance_add(struct acceptance *a, const int32_t *ids, int64_t prompt, int64_t n_made,
                    int32_t (*guess)(const void *context, int i, int64_t row), const void *context);
