/* prediction.h - guesses from what a client expects the answer to be (OpenAI's predicted outputs): most of it comes as
 * it was, edited in places. Follows the answer through it; behind an edit it goes on where the answer's last tokens
 * stand in it again. Costs a comparison a token, and after an edit a pass over the prediction. */
#pragma once

#include "sched/sequence.h"

enum { MOST_PREDICTED = 1 << 17, LEAST_AGREEMENT = 2 };

struct prediction {
    const int32_t *tokens; // [n]; the request's
    int32_t n, at;         // at: the token that should come next; -1: the answer is somewhere else
    int32_t n_seen;        // known tokens of the sequence that it has followed; set to the prompt's length
    int64_t n_guessed, n_right;
};

/* At most max tokens that may follow those of seq, of which the last may be expected; returns how many. */
int prediction_guess(struct prediction *p, const struct sequence *seq, int32_t n_prompt, int32_t *out, int max);
