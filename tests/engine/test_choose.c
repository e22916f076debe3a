/* test_choose.c - which of several engines a request goes to. */
#include "check.h"

#include "engine/lanes/choose.h"

enum { N = 8, PROMPT = 640 };

struct world {
    struct queue_model queues[N];
    struct affinity *affinity;
    int32_t prompt[PROMPT];
};

static void world_init(struct world *w) {
    w->affinity = affinity_new(64, N);
    for (int i = 0; i < N; i++)
        queue_model_init(&w->queues[i], 1);
    for (int i = 0; i < PROMPT; i++)
        w->prompt[i] = i;
}

static void world_release(struct world *w) {
    for (int i = 0; i < N; i++)
        queue_model_release(&w->queues[i]);
    affinity_free(w->affinity);
}

/* What a step teaches. */
static void learn(struct queue_model *q) {
    counter_set(&q->prompt_ns, 50000);
    counter_set(&q->answer_ns, 100000);
    counter_set(&q->free_places, 4);
}

static int first_of(struct world *w, int failed) {
    struct engine_queue engines[N];
    struct gyre_request r = {.prompt = w->prompt, .n_prompt = PROMPT};
    int order[N];
    for (int i = 0; i < N; i++)
        engines[i] = (struct engine_queue){&w->queues[i], i == failed};
    engines_order(w->affinity, engines, N, &r, order);
    return order[0];
}

/* A burst comes before the last engine has learned what its steps take: it is not the cheapest for that. */
static void who_has_not_learned_gets_no_more_than_others(void **state) {
    (void)state;
    struct world w;
    int got[N] = {0};
    world_init(&w);
    for (int i = 0; i < N - 1; i++)
        learn(&w.queues[i]);
    for (int i = 0; i < 100 * N; i++) {
        int to = first_of(&w, -1);
        queue_model_enter(&w.queues[to], 0, PROMPT);
        got[to]++;
    }
    for (int i = 0; i < N; i++)
        if (got[i] < 60 || got[i] > 140)
            fail_msg("engine %d got %d of %d requests", i, got[i], 100 * N);
    world_release(&w);
}

static void a_prefix_is_worth_a_short_wait(void **state) {
    (void)state;
    struct world w;
    struct gyre_request r = {.prompt = w.prompt, .n_prompt = PROMPT};
    world_init(&w);
    for (int i = 0; i < N; i++)
        learn(&w.queues[i]);
    EXPECT_EQ(first_of(&w, -1), 0); // of equal ones the first
    affinity_note(w.affinity, &r, 5);
    EXPECT_EQ(first_of(&w, -1), 5);
    EXPECT_EQ(first_of(&w, 5), 0); // it has failed
    queue_model_enter(&w.queues[5], 0, PROMPT / 4);
    EXPECT_EQ(first_of(&w, -1), 5);
    for (int i = 0; i < 10; i++)
        queue_model_enter(&w.queues[5], 0, PROMPT);
    EXPECT_EQ(first_of(&w, -1), 0);
    world_release(&w);
}

/* The front of many engines knows of each as much as the front of one would. */
static void what_many_engines_were_sent_is_known(void **state) {
    (void)state;
    enum { EACH = 60000 / (PROMPT / 64) };
    struct affinity *a = affinity_new(64, N);
    int32_t prompt[PROMPT];
    struct gyre_request r = {.prompt = prompt, .n_prompt = PROMPT};
    int64_t known[N], n_known = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < EACH * N; k++) {
            for (int i = 0; i < PROMPT; i++)
                prompt[i] = k * 7919 + i;
            if (pass == 0)
                affinity_note(a, &r, k % N);
            else
                affinity_look(a, &r, N, known), n_known += known[k % N] > 0;
        }
    EXPECT(n_known > EACH * N / 3); // of places that others take too
    affinity_look(a, &r, N, known);
    EXPECT_EQ(known[(EACH * N - 1) % N], PROMPT);
    affinity_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_has_not_learned_gets_no_more_than_others),
                                       cmocka_unit_test(a_prefix_is_worth_a_short_wait),
                                       cmocka_unit_test(what_many_engines_were_sent_is_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
