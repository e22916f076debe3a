/* constrain.c - grammars in the step: which mask a row is drawn with, and when it can be known.
 *
 * A row whose last token is known has its mask when the step is planned. One that follows a token of the step in flight
 * has it only when that is collected, so its step is late (backend_ops.draw): started without masks, drawn with them.
 * While it runs the helpers work (constraint.h). Rows without a grammar that share a late step wait with it, up to a
 * bound.
 *
 * Jump-forward: where the grammar leaves no choice the host knows what a row will draw, and may put all of what must
 * come into the sequence before the next step is planned, which computes it at once. Otherwise it is drawn, a token a
 * step, without a mask. */
#include "engine/engine.h"

#include "base/clock.h"

#include <unistd.h>

enum { MOST_HELPERS = 8, PROCESSORS_A_HELPER = 4, REST_US = 5000 };

enum status engine_constrain_begin(struct gyre *g, struct error *err) {
    long n = sysconf(_SC_NPROCESSORS_ONLN) / PROCESSORS_A_HELPER;
    if (!g->mask_crew)
        g->mask_crew = mask_crew_open((int)MAX(MIN(n, MOST_HELPERS), 1));
    return g->mask_crew ? OK : fail(err, ERR_MEMORY, "no thread could be started for grammars");
}

bool engine_is_constrained(const struct gyre *g, const struct request *r) {
    return r->constraint && g->mask_crew && !mask_crew_await_until(g->mask_crew, r->constraint, 0);
}

static bool draws(const struct request *r, int32_t position) {
    return r->asked.max_tokens > 0 && position >= r->sequence.n_known - 1;
}

bool engine_mask_is_late(const struct request *r, int32_t position) {
    return r->constraint && draws(r, position) && sequence_expects(&r->sequence, position);
}

bool engine_mask_row(struct gyre *g, const struct request *r, int32_t position, int64_t until_us,
                     struct sample_params *p) {
    struct constraint *c = r->constraint;
    if (!c || r->ended || !draws(r, position))
        return true;
    if (until_us >= 0 && !mask_crew_await_until(g->mask_crew, c, until_us))
        return false;
    mask_crew_await(g->mask_crew, c);
    int guess = position - r->sequence.n_known; // the row is behind this one; -1: behind what is known
    bool is_behind = guess >= 0 && guess < c->most_guesses;
    p->mask = is_behind ? c->guess_masks + (size_t)guess * c->n_words : c->mask;
    if (is_behind ? c->guess_must_end[guess] : c->must_end)
        p->n_banned = 0;
    if (c->n_forced > 0) // the mask is of what follows
        p->mask = NULL, p->n_banned = 0, p->allowed = &c->forced[c->n_put], p->n_allowed = 1;
    return true;
}

void engine_constrain_next(struct gyre *g, struct request *r) {
    if (r->constraint)
        mask_crew_give(g->mask_crew, r->constraint, r->sequence.n_known);
}

bool engine_may_constrain_guesses(const struct gyre *g, const struct request *r) {
    const struct constraint *c = r->constraint;
    return c->most_guesses > 0 && !engine_is_constrained(g, r) && c->n_forced == 0 && c->failed.status == OK &&
           !sequence_expects(&r->sequence, r->sequence.n_tokens - 1);
}

void engine_constrain_guesses(struct gyre *g, struct request *r, int n) {
    const struct sequence *seq = &r->sequence;
    if (!r->constraint || n == 0)
        return;
    mask_crew_give_guesses(g->mask_crew, r->constraint, seq->tokens + seq->n_known, n);
    mask_crew_go(g->mask_crew);
}

void engine_constrain_go(struct gyre *g) {
    if (g->mask_crew)
        mask_crew_go(g->mask_crew);
}

// ---- masks that take long ---------------------------------------------------------------------------------------
//
// The first mask in a new kind of state of a large grammar may take a hundred milliseconds; other rows of the step wait
// for mask_patience_us at most. A held request is paused for the scheduler (scheduler_pause): it keeps its cache, and
// goes on where it was once the helper has done. If its row was in a late step, what is drawn there is void, as behind
// a wrong guess: its last token is computed again. Where a recurrent state cannot go back the step waits.

static void hold(struct gyre *g, struct request *r) {
    r->is_held = true;
    r->next_held = g->held;
    g->held = r;
    g->n_held++;
    scheduler_pause(&g->scheduler, &r->sequence, true);
}

void engine_hold_no_more(struct gyre *g, struct request *r) {
    struct request **at = &g->held;
    if (!r->is_held)
        return;
    while (*at != r)
        at = &(*at)->next_held;
    *at = r->next_held;
    r->is_held = false;
    scheduler_pause(&g->scheduler, &r->sequence, r->is_paused);
}

void engine_hold_slow(struct gyre *g) {
    struct request *next;
    int64_t until_us = clock_us() + g->mask_patience_us;
    for (struct request *r = g->held; r; r = next) {
        next = r->next_held;
        if (!engine_is_constrained(g, r))
            engine_hold_no_more(g, r);
    }
    for (int i = 0; i < g->scheduler.n_running && g->mask_crew; i++) {
        struct sequence *seq = g->scheduler.running[i];
        struct request *r = seq->owner;
        bool is_known = !sequence_expects(seq, seq->n_tokens - 1);
        if (r->constraint && !r->is_held && is_known && !mask_crew_await_until(g->mask_crew, r->constraint, until_us))
            hold(g, r);
    }
}

int64_t engine_patience_until_us(const struct gyre *g) {
    bool goes_back = !g->pool.has_state && g->pool.max_chunk >= 4 && !program_rope_depends_on_length(g->program);
    return goes_back ? clock_us() + g->mask_patience_us : -1;
}

void engine_hold_row(struct gyre *g, struct request *r) {
    struct sequence *seq = &r->sequence;
    sequence_expect_no_more(seq);
    seq->n_computed = MIN(seq->n_computed, seq->n_known - 1);
    seq->n_backs++;
    kv_pool_truncate(&g->pool, seq);
    hold(g, r);
}

void engine_await_held(struct gyre *g) {
    if (g->held)
        mask_crew_await_until(g->mask_crew, g->held->constraint, clock_us() + REST_US);
}
