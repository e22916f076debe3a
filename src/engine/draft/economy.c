/* economy.c - see economy.h. */
#include "engine/draft/economy.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>

enum { REMEMBERED = 48, FIRST_GUESSED = 16, FIRST_PLAIN = 2, MOST_GUESSED = 1000 };
static const double least_gain = 1.02; // less is lost again in what is not measured
static const double prior_right = 0.7f, prior_judged = 1; // of a sequence without guesses

void guess_judged(struct guess_record *r, bool is_right) {
    r->n_judged++;
    if (is_right) {
        r->n_right++;
        r->rest = r->n_rests = 0;
    }
    if (r->n_judged >= REMEMBERED) {
        r->n_judged /= 2;
        r->n_right /= 2;
        r->n_halved = MIN(r->n_halved + 1, 30);
    }
}

static double share_right(const struct guess_record *r) {
    double prior = ldexp(1, -r->n_halved);
    return (r->n_right + prior * prior_right) / (r->n_judged + prior * prior_judged);
}

double guess_risk(const struct guess_record *r, int n) { return 1 - pow(share_right(r), n); }

/* How many give most in the time of a token; 0: none gives least_gain. */
static int best_number(double a, struct guess_price price, int max) {
    double tokens = 1, right = 1, most = least_gain;
    int best = 0;
    for (int n = 1; n <= max; n++) {
        tokens += right *= a;
        double gain = tokens / (1 + price.fixed + n * price.each);
        if (gain > most)
            most = gain, best = n;
    }
    return best;
}

int guess_most(struct guess_record *r, struct guess_price price, int max) {
    int n = best_number(share_right(r), price, max);
    if (n > 0)
        return n;
    if (r->rest > 0) {
        r->rest--;
        return 0;
    }
    r->n_rests = MIN(2 * r->n_rests + 1, MOST_REST_STEPS);
    r->rest = r->n_rests;
    return MIN(max, 1);
}

static void mean(double *of, double x) { *of += *of == 0 ? x : 0.1 * (x - *of); }

void guess_timed(struct guess_times *t, int n_seqs, int n_guesses, double us) {
    if (4 * abs(n_seqs - t->n_seqs) > t->n_seqs)
        *t = (struct guess_times){.n_seqs = n_seqs};
    mean(n_guesses > 0 ? &t->guessed_us : &t->plain_us, us);
    if (n_guesses > 0)
        mean(&t->n_guesses, (double)n_guesses / n_seqs);
    t->n_plain = n_guesses > 0 ? t->n_plain : MIN(t->n_plain + 1, FIRST_PLAIN);
    t->n_since = n_guesses > 0 ? t->n_since + 1 : t->n_plain < FIRST_PLAIN ? t->n_since : 0;
}

bool guess_wants_plain(const struct guess_times *t) {
    return t->n_since >= (t->n_plain < FIRST_PLAIN ? FIRST_GUESSED : MOST_GUESSED);
}

struct guess_price guess_price(const struct scheduler *s, const struct guess_times *t, double pass_us) {
    struct guess_price price = {0};
    struct step_work work = {0};
    for (int i = 0; i < s->n_running; i++)
        if (sequence_decodes(s->running[i])) {
            work.tokens++;
            work.pairs += s->running[i]->n_known;
        }
    double step_us = step_cost_predict(&s->cost, work), n = (double)work.tokens;
    if (work.tokens == 0 || step_us <= 0)
        return price;
    struct step_work more = {.tokens = 2 * work.tokens, .pairs = 2 * work.pairs};
    double rows_us = MAX(step_cost_predict(&s->cost, more) - step_us, 0); // of one more each
    price.row = rows_us / step_us;
    price.each = price.row + pass_us * n / step_us;
    if (t->plain_us > 0 && t->guessed_us > 0)
        price.fixed = MAX(t->guessed_us - t->plain_us - t->n_guesses * rows_us, 0) / t->plain_us;
    return price;
}
