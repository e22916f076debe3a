/* lifecycle.c - the life of a request in the engine: it is queued, in a step for the first time, over.
 *
 * Calls the scheduler, the fair share and the table of requests only, and what is done while there are none; step.c,
 * commit.c and gyre.c call it. */
#include "engine/engine.h"

#include "base/clock.h"

/* When its turn is: the number of its arrival, or with several tenants its tag, in units of 16 tokens. */
static int64_t turn_of(struct gyre *g, struct request *r, int64_t arrival) {
    if (g->fair.n_tenants == 1)
        return arrival;
    r->fair_cost = fair_share_cost(&g->fair, r->n_prompt, r->asked.max_tokens);
    r->fair_tag = fair_share_arrive(&g->fair, r->asked.tenant, r->fair_cost,
                                    g->scheduler.n_running + g->scheduler.waiting.n == 0);
    return r->fair_tag / 16;
}

/* sjf: a prompt token counts for a whole request that came later (or for 16 tokens of the tenant's share), a
 * thousand at most, so that even the longest is first in its turn. The number of arrivals makes ranks differ. */
static struct sequence_rank rank_of(struct gyre *g, struct request *r) {
    int64_t arrival = g->n_accepted++, size = g->policy == GYRE_SJF ? MIN(r->n_prompt, 1000) : 0;
    return (struct sequence_rank){r->asked.priority,
                                  (turn_of(g, r, arrival) + size) * ((int64_t)1 << 24) + arrival % (1 << 24)};
}

void engine_started(struct gyre *g, struct request *r, int64_t now_us) {
    r->started_us = now_us;
    fair_share_start(&g->fair, r->fair_tag);
}

void engine_accept(struct gyre *g, struct request *r) {
    r->accepted_step = g->n_steps;
    r->sequence.rank = rank_of(g, r);
    request_table_add(&g->requests, r);
    g->n_predictions += r->prediction.n > 0;
    scheduler_add(&g->scheduler, &r->sequence);
    g->n_busy++;
    struct error err;
    if (r->constraint && engine_constrain_begin(g, &err) != OK)
        engine_end(g, r, GYRE_FAILED, &err);
}

void engine_end(struct gyre *g, struct request *r, enum gyre_finish finish, const struct error *err) {
    engine_hold_no_more(g, r);
    sequence_expect_no_more(&r->sequence);
    engine_draft_end(g, r);
    scheduler_remove(&g->scheduler, &r->sequence);
    if (g->fair.n_tenants > 1)
        fair_share_settle(&g->fair, r->asked.tenant, r->fair_cost,
                          r->started_us ? r->n_prompt - MAX(r->sequence.n_recalled, 0) : 0,
                          r->sequence.n_tokens - r->n_prompt);
    r->ended = true;
    r->finish = finish;
    if (err)
        r->error = *err;
    *(g->ended_tail ? &g->ended_tail->next_ended : &g->ended_head) = r;
    g->ended_tail = r;
}

void engine_pause(struct gyre *g, uint64_t id, bool paused) {
    struct request *r = request_table_find(&g->requests, id);
    if (!r || r->ended)
        return;
    r->is_paused = paused;
    scheduler_pause(&g->scheduler, &r->sequence, paused || r->is_held);
}

bool engine_has_work(const struct gyre *g) {
    return g->n_busy > g->scheduler.n_paused || g->n_collected < g->n_steps || g->held ||
           (g->failed.status != OK && g->n_busy > 0);
}

// ---- while nothing runs -----------------------------------------------------------------------------------------

static int64_t check_us(const struct gyre *g) {
    enum { EACH_US = 2000000 };
    bool can = g->ops->check && g->failed.status == OK && !engine_has_work(g);
    return can ? MAX(MAX(g->collected_us, g->checked_us) + EACH_US - clock_us(), 0) : -1;
}

int64_t engine_rest_us(const struct gyre *g) {
    int64_t spare_us = engine_spare_us(g), until_check_us = check_us(g);
    return spare_us < 0 || (until_check_us >= 0 && until_check_us < spare_us) ? until_check_us : spare_us;
}

void engine_rest(struct gyre *g) {
    if (engine_spare_us(g) == 0)
        engine_give_spare(g);
    if (check_us(g) != 0)
        return;
    g->ops->check(g->device, &g->failed);
    g->checked_us = clock_us();
}
