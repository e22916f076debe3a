/* economy.h - how many guesses pay.
 *
 * A guess saves a token with the probability that it and those before it are right. It costs a row of the step and, of
 * a draft, a pass: its price, in the tokens that the engine makes in that time without guesses. A step with any guesses
 * costs more beside, as it runs other kernels and hides less of the host's work. So n guesses give
 *
 *     (1 + a + a^2 + ... + a^n) / (1 + fixed + n * price)      tokens in the time of one
 *
 * with a how often the sequence's guesses were right lately, and the n with the most of them is made. Where none gives
 * a fiftieth more than one, one guess is made once in a while, after twice as many steps each time, since texts change.
 *
 * What a step costs without guesses is only known where there was one, so now and then there is. */
#pragma once

#include "sched/scheduler.h"

enum { MOST_REST_STEPS = 128 };

/* How a sequence's guesses fared; zeros at its beginning. */
struct guess_record {
    float n_right, n_judged; // of the last ones: halved now and then
    int n_halved;
    int rest, n_rests; // steps without a guess; and the next time
};

void guess_judged(struct guess_record *r, bool is_right);

/* With which n guesses are not all right; 0 of none. */
double guess_risk(const struct guess_record *r, int n);

struct guess_price {
    double each;  // of one guess behind each sequence that decodes
    double fixed; // of a step with guesses, in steps
    double row;   // what of `each` is the step's row
};

/* At most max. */
int guess_most(struct guess_record *r, struct guess_price price, int max);

/* What steps that decode took lately: without guesses, and with some. Forgotten where others run than before. */
struct guess_times {
    int n_seqs;
    int n_plain, n_since; // steps without guesses, and with some since the last of those
    double plain_us, guessed_us, n_guesses; // 0: there was none; n_guesses: of a sequence and step
};
void guess_timed(struct guess_times *t, int n_seqs, int n_guesses, double us);

/* Whether the next step should have none, for its time: two of the first twenty, then one of a thousand. */
bool guess_wants_plain(const struct guess_times *t);

/* pass_us: that a draft takes for a guess. Zeros as long as nothing is known. */
struct guess_price guess_price(const struct scheduler *s, const struct guess_times *t, double pass_us);
