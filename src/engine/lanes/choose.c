/* choose.c - see choose.h. */
#include "engine/lanes/choose.h"

/* Times of a token, of a prompt and of an answer: what engines that are alike have measured, in the mean, so that none
 * is preferred for what others made of its steps; a guess while nothing has run. */
struct pace {
    int64_t prompt_ns, answer_ns;
};
enum { PROMPT_NS = 20000, ANSWER_NS = 100000 };

static struct pace pace_of(const struct engine_queue *engines, int n_engines) {
    struct pace sum = {0, 0};
    int n = 0;
    for (int i = 0; i < n_engines; i++) {
        int64_t prompt_ns = counter_get(&engines[i].queue->prompt_ns);
        int64_t answer_ns = counter_get(&engines[i].queue->answer_ns);
        if (prompt_ns > 0 && answer_ns > 0)
            sum.prompt_ns += prompt_ns, sum.answer_ns += answer_ns, n++;
    }
    return n ? (struct pace){MAX(sum.prompt_ns / n, 1), MAX(sum.answer_ns / n, 1)}
             : (struct pace){PROMPT_NS, ANSWER_NS};
}

/* Microseconds until those that wait before it have begun. An engine that has not learned yet what its steps take says
 * 0 of any queue: it would get all that comes until it has. */
static int64_t wait_us_of(const struct queue_model *q, struct pace pace, int32_t tenant) {
    if (atomic_load(&q->n_unfinished) == 0)
        return 0; // what is known is of the last step
    if (counter_get(&q->prompt_ns) > 0)
        return queue_model_wait_us(q, tenant);
    return atomic_load(&q->all.tokens) * pace.prompt_ns / 1000;
}

/* About how long the request would wait for its first token: for those before it, for the part of its prompt that the
 * engine has not seen, and a little for each that runs beside it. An engine that has failed comes last, though nothing
 * waits there. */
static int64_t cost_ns(const struct engine_queue *e, struct pace pace, const struct gyre_request *r, int64_t known) {
    if (e->has_failed)
        return INT64_MAX;
    int64_t n_unfinished = atomic_load(&e->queue->n_unfinished);
    return wait_us_of(e->queue, pace, r->tenant) * 1000 + (r->n_prompt - known) * pace.prompt_ns +
           n_unfinished * pace.answer_ns;
}

void engines_order(struct affinity *a, const struct engine_queue *engines, int n, const struct gyre_request *r,
                   int *order) {
    int64_t known[MOST_ENGINES], cost[MOST_ENGINES];
    struct pace pace = pace_of(engines, n);
    affinity_look(a, r, n, known);
    for (int i = 0; i < n; i++) {
        int64_t mine = cost_ns(&engines[i], pace, r, known[i]);
        int at = i;
        for (; at > 0 && cost[at - 1] > mine; at--)
            cost[at] = cost[at - 1], order[at] = order[at - 1];
        cost[at] = mine, order[at] = i;
    }
}
