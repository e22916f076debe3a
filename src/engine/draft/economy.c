/* economy.c - see economy.h. */
#include "engine/draft/economy.h"

#include "base/status.h"

enum { REMEMBERED = 48 };
static const float prior_right = 0.7f, prior_judged = 1; // of a sequence without guesses

void guess_judged(struct guess_record *r, bool is_right) {
    r->n_judged++;
    if (is_right) {
        r->n_right++;
        r->rest = r->n_rests = 0;
    }
    if (r->n_judged >= REMEMBERED) {
        r->n_judged /= 2;
        r->n_right /= 2;
    }
}

static double share_right(const struct guess_record *r) {
    return (double)(r->n_right + prior_right) / (double)(r->n_judged + prior_judged);
}

double guess_risk(const struct guess_record *r, int n) {
    double all = 1;
    for (int i = 0; i < n; i++)
        all *= share_right(r);
    return 1 - all;
}

int guess_most(struct guess_record *r, double price, int max) {
    double a = share_right(r), p = a;
    int n = 0;
    for (; n < max && p > price; n++)
        p *= a;
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

double guess_price(const struct scheduler *s, double pass_us) {
    struct step_work work = {0};
    for (int i = 0; i < s->n_running; i++)
        if (sequence_decodes(s->running[i])) {
            work.tokens++;
            work.pairs += s->running[i]->n_known;
        }
    double step_us = step_cost_predict(&s->cost, work);
    if (work.tokens == 0 || step_us <= 0)
        return 0;
    struct step_work more = {.tokens = 2 * work.tokens, .pairs = 2 * work.pairs};
    double row_us = MAX(step_cost_predict(&s->cost, more) - step_us, 0) / (double)work.tokens;
    return (row_us + pass_us) * (double)work.tokens / step_us;
}
