/* test_queue_model.c - predicted waits against real ones, in a simulated engine with a clock of its own: a few places,
 * steps whose time is a linear function of their tokens (times what the model cannot know), requests that come in
 * bursts. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>

enum { PLACES = 4, MOST = 600, PROMPT_BUDGET = 64 };

static uint64_t n_drawn;
static int below(int n) { return (int)(philox_uniform(test_seed(), n_drawn++, 5) * n); }

struct job {
    int tenant, n_prompt, n_answer, n_done; // tokens of both computed
    int64_t came_us, predicted_us, plain_us, waited_us;
    struct sequence sequence; // the model looks at n_computed
};

struct world {
    struct gyre g;
    struct queue_model q;
    struct sequence *running[PLACES];
    struct job jobs[MOST], *waiting[MOST], *places[PLACES];
    int n_jobs, n_waiting, n_running;
    int64_t now_us;
    double hidden; // factor of a step's time that only the later half of the test has
};

static void world_init(struct world *w, int n_tenants) {
    memset(w, 0, sizeof *w);
    w->hidden = 1;
    w->g.scheduler.limits = (struct step_limits){.max_tokens = PROMPT_BUDGET, .max_seqs = PLACES, .max_rows = PLACES};
    w->g.scheduler.running = w->running;
    step_cost_init(&w->g.scheduler.cost);
    queue_model_init(&w->q, n_tenants);
}

static void come(struct world *w, int tenant) {
    struct job *j = &w->jobs[w->n_jobs++];
    *j = (struct job){.tenant = tenant, .n_prompt = 8 + below(40), .n_answer = 10 + below(40), .came_us = w->now_us};
    j->plain_us = queue_model_plain_us(&w->q, tenant);
    j->predicted_us = queue_model_wait_us(&w->q, tenant);
    queue_model_enter(&w->q, tenant, j->n_prompt);
    w->waiting[w->n_waiting++] = j;
}

static void start_first(struct world *w) {
    struct job *j = w->waiting[0];
    memmove(w->waiting, w->waiting + 1, (size_t)--w->n_waiting * sizeof *w->waiting);
    w->places[w->n_running++] = j;
    j->waited_us = w->now_us - j->came_us;
    queue_model_leave(&w->q, j->tenant, j->n_prompt);
    queue_model_waited(&w->q, j->plain_us, j->waited_us);
}

/* Prompts share what the answers leave of the budget. */
static void step(struct world *w) {
    int budget = PROMPT_BUDGET, n_tokens = 0, n_left = 0;
    while (w->n_running < PLACES && w->n_waiting > 0)
        start_first(w);
    for (int i = 0; i < w->n_running; i++)
        w->running[i] = &w->places[i]->sequence;
    w->g.scheduler.n_running = w->n_running;
    w->g.scheduler.waiting.n = w->n_waiting;
    queue_model_step(&w->q, &w->g.scheduler);
    for (int i = 0; i < w->n_running; i++) {
        struct job *j = w->places[i];
        int n = j->n_done < j->n_prompt ? MIN(j->n_prompt - j->n_done, budget - PLACES) : 1;
        n = MAX(n, 0);
        budget -= n;
        n_tokens += n;
        j->n_done += n;
        j->sequence.n_computed = j->n_done;
    }
    double us = (300 + 40.0 * n_tokens) * w->hidden;
    step_cost_learn(&w->g.scheduler.cost, (struct step_work){n_tokens, 0},
                    us / w->hidden); // it is not told of the factor
    w->now_us += (int64_t)us;
    for (int i = 0; i < w->n_running; i++) {
        struct job *j = w->places[i];
        if (j->n_done >= j->n_prompt + j->n_answer) {
            queue_model_end(&w->q);
            queue_model_answered(&w->q, j->n_answer);
        } else {
            w->places[n_left++] = j;
        }
    }
    w->n_running = n_left;
}

static void burst(struct world *w, int n) {
    while (n-- > 0)
        come(w, 0);
    while (w->n_waiting + w->n_running > 0)
        step(w);
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Of the jobs from `first` on that waited 20 ms or more. */
static double median_ratio(const struct world *w, int first) {
    static double ratio[MOST];
    size_t n = 0;
    for (int i = first; i < w->n_jobs; i++)
        if (w->jobs[i].waited_us >= 20000)
            ratio[n++] = (double)w->jobs[i].predicted_us / (double)w->jobs[i].waited_us;
    EXPECT(n >= 10);
    qsort(ratio, n, sizeof *ratio, by_value);
    return ratio[n / 2];
}

static struct world w;

/* Also when steps take four times as long as they were learned to: bursts of 40 may not correct for each other until
 * nothing fits. Of 30,000 seeds a burst's ratio was within 0.56 and 1.62, and the geometric mean of three bursts within
 * 0.85 and 1.18. */
static void waits_are_predicted_within_a_fifth(void **state) {
    (void)state;
    world_init(&w, 1);
    burst(&w, 40);
    for (int half = 0; half < 2; half++) {
        double product = 1;
        if (half == 1) {
            w.hidden = 4;
            burst(&w, 40);
        }
        for (int round = 0; round < 3; round++) {
            int first = w.n_jobs;
            burst(&w, 40);
            double ratio = median_ratio(&w, first);
            print_message("    predicted over waited: %.2f\n", ratio);
            EXPECT(ratio > 0.4 && ratio < 2.5);
            product *= ratio;
        }
        double mean = cbrt(product);
        EXPECT(mean > 0.8 && mean < 1.25);
    }
    queue_model_release(&w.q);
}

static void an_idle_engine_makes_nobody_wait(void **state) {
    (void)state;
    world_init(&w, 1);
    burst(&w, 40);
    counter_set(&w.q.free_places, 0); // as if the last step had left somebody waiting who then went away
    EXPECT_EQ(queue_model_wait_us(&w.q, 0), 0);
    queue_model_release(&w.q);
}

static void a_flood_of_one_tenant_is_its_own_wait(void **state) {
    (void)state;
    world_init(&w, 3);
    burst(&w, 40);
    for (int i = 0; i < 100; i++)
        come(&w, 1);
    step(&w);
    int64_t flood = queue_model_wait_us(&w.q, 1), guest = queue_model_wait_us(&w.q, 2);
    EXPECT(guest > 0 && flood > 20 * guest);
    EXPECT(queue_model_is_own(&w.q, 1) && !queue_model_is_own(&w.q, 2));
    EXPECT(queue_model_is_full(&w.q, 1, 50) && !queue_model_is_full(&w.q, 2, 50));
    EXPECT(!queue_model_is_full(&w.q, 1, 1000));
    for (int i = 0; i < 25; i++)
        come(&w, 2);
    EXPECT(queue_model_is_full(&w.q, 2, 50)); // its part of 50, with the two of them
    queue_model_release(&w.q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_are_predicted_within_a_fifth),
        cmocka_unit_test(an_idle_engine_makes_nobody_wait),
        cmocka_unit_test(a_flood_of_one_tenant_is_its_own_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
