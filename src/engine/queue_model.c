/* queue_model.c - see queue_model.h. */
#include "engine/queue_model.h"

#include "base/status.h"
#include "sched/scheduler.h"

#include <stdlib.h>

void queue_model_init(struct queue_model *q, int n_tenants) {
    *q = (struct queue_model){.tenants = xcalloc((size_t)n_tenants, sizeof *q->tenants), .n_tenants = n_tenants};
    counter_set(&q->mean_answer, 64 * 16);
    counter_set(&q->correction, 1000);
}

void queue_model_release(struct queue_model *q) { free(q->tenants); }

static void count(struct queue_model *q, int tenant, int64_t n, int64_t tokens) {
    struct tenant_queue *t = &q->tenants[tenant];
    int64_t before = atomic_fetch_add(&t->n, n);
    atomic_fetch_add(&t->tokens, tokens);
    atomic_fetch_add(&q->all.n, n);
    atomic_fetch_add(&q->all.tokens, tokens);
    if (before == 0 || before + n == 0)
        atomic_fetch_add(&q->n_waiting_tenants, n);
}

void queue_model_enter(struct queue_model *q, int tenant, int64_t n_prompt) {
    atomic_fetch_add(&q->n_unfinished, 1);
    count(q, tenant, 1, n_prompt);
}
void queue_model_leave(struct queue_model *q, int tenant, int64_t n_prompt) { count(q, tenant, -1, -n_prompt); }
void queue_model_end(struct queue_model *q) { atomic_fetch_sub(&q->n_unfinished, 1); }

/* How many tenants take turns once this one waits too. */
static int64_t tenants_with(const struct queue_model *q, int tenant) {
    return atomic_load(&q->n_waiting_tenants) + (atomic_load(&q->tenants[tenant].n) == 0);
}

/* Of what a tenant has waiting, with what others come between; of what all have, no more than that. */
static int64_t ahead(int64_t own, int64_t n_tenants, int64_t all) {
    return MAX(0, MIN(own * n_tenants + n_tenants - 1, all));
}

int64_t queue_model_plain_us(const struct queue_model *q, int tenant) {
    int64_t n_tenants = tenants_with(q, tenant), all = atomic_load(&q->all.n), tokens = atomic_load(&q->all.tokens);
    if (atomic_load(&q->n_unfinished) == 0)
        return 0; // whatever the last step said
    int64_t n = ahead(atomic_load(&q->tenants[tenant].n), n_tenants, all);
    double share = all > 0 ? (double)n / (double)all : 0;
    int64_t turns = MAX(0, n + 1 - counter_get(&q->free_places));
    double answers = (double)turns * (double)counter_get(&q->mean_answer) / 16;
    double ns =
        share * (double)tokens * (double)counter_get(&q->prompt_ns) + answers * (double)counter_get(&q->answer_ns);
    return (int64_t)(ns * 1e-3);
}

int64_t queue_model_wait_us(const struct queue_model *q, int tenant) {
    return (int64_t)((double)queue_model_plain_us(q, tenant) * (double)counter_get(&q->correction) * 1e-3);
}

bool queue_model_is_full(const struct queue_model *q, int tenant, int64_t max_queued) {
    return atomic_load(&q->all.n) >= max_queued &&
           atomic_load(&q->tenants[tenant].n) >= MAX(1, max_queued / tenants_with(q, tenant));
}

bool queue_model_is_own(const struct queue_model *q, int tenant) {
    int64_t own = atomic_load(&q->tenants[tenant].n), all = atomic_load(&q->all.n);
    return q->n_tenants > 1 && own > 0 && own * tenants_with(q, tenant) >= all;
}

// ---- the engine thread --------------------------------------------------------------------------------------------

void queue_model_step(struct queue_model *q, const struct scheduler *s) {
    int64_t n_tokens = s->limits.max_tokens, n_running = MAX(s->n_running, 1), context = 0;
    for (int i = 0; i < s->n_running; i++)
        context += s->running[i]->n_computed;
    struct step_work prompts = {n_tokens, n_tokens * MAX(n_tokens, context / n_running) / 2};
    // Who waits does so behind a full batch, whatever runs now; if somebody waits, what runs is as much as can.
    int64_t n_full = scheduler_n_queued(s) > 0 ? n_running : s->limits.max_seqs;
    struct step_work answers = {n_full, context / n_running * n_full};
    counter_set(&q->prompt_ns, (int64_t)(step_cost_predict(&s->cost, prompts) * 1e3) / n_tokens);
    counter_set(&q->answer_ns, (int64_t)(step_cost_predict(&s->cost, answers) * 1e3) / n_full);
    counter_set(&q->free_places, scheduler_n_queued(s) > 0 ? 0 : s->limits.max_seqs - s->n_running);
}

/* Follows the last dozen of waits; those of less than a few steps say nothing about the model. A request is compared
 * with what was said before any correction: those of a burst all end waiting long after they came, and would correct
 * for each other. */
void queue_model_waited(struct queue_model *q, int64_t plain_us, int64_t waited_us) {
    double correction = (double)counter_get(&q->correction) * 1e-3;
    if (plain_us < 10000)
        return;
    double ratio = MIN(MAX((double)waited_us / (double)plain_us, 0.1), 10.0);
    counter_set(&q->correction, (int64_t)((correction + (ratio - correction) / 12) * 1e3));
}

void queue_model_answered(struct queue_model *q, int64_t n_tokens) {
    int64_t mean = counter_get(&q->mean_answer);
    counter_set(&q->mean_answer, mean + (n_tokens * 16 - mean) / 16);
}
