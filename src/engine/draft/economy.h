/* economy.h - how many guesses pay.
 *
 * A guess saves a token with the probability that it and those before it are right. It costs a row of the step and, of
 * a draft, a pass: its price, in the tokens that the engine makes in that time without guesses. So guess i pays while
 * a^i > price, with a how often the sequence's guesses were right lately. Where none pays, one is made once in a while,
 * after twice as many steps each time, since texts change. */
#pragma once

#include "sched/scheduler.h"

enum { MOST_REST_STEPS = 128 };

/* How a sequence's guesses fared; zeros at its beginning. */
struct guess_record {
    float n_right, n_judged; // of the last ones: halved now and then
    int rest, n_rests;       // steps without a guess; and the next time
};

void guess_judged(struct guess_record *r, bool is_right);

/* With which n guesses are not all right; 0 of none. */
double guess_risk(const struct guess_record *r, int n);

/* At most max. */
int guess_most(struct guess_record *r, double price, int max);

/* Of one guess behind each sequence that decodes; pass_us: that a draft takes for it. 0 as long as nothing is known. */
double guess_price(const struct scheduler *s, double pass_us);
