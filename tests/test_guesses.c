/* test_guesses.c - how many tokens are guessed, what a client predicts as guesses, and acceptance that is made up for
 * benchmarks. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

#include <math.h>

// ---- how many ---------------------------------------------------------------------------------------------------

static void guesses_that_do_not_pay_are_not_made(void **state) {
    (void)state;
    struct guess_record r = {0};
    EXPECT_EQ(guess_most(&r, 0, 5), 5); // nothing is known of what they cost
    EXPECT_EQ(guess_most(&r, 0.6, 5), 1 + 0);
    for (int i = 0; i < 30; i++)
        guess_judged(&r, i % 10 != 0); // nine of ten are right
    EXPECT_EQ(guess_most(&r, 0.3, 16), 10);
    EXPECT_EQ(guess_most(&r, 0.7, 16), 3);
    EXPECT_EQ(guess_most(&r, 0.3, 4), 4);
}

static void wrong_guesses_rest_longer_each_time(void **state) {
    (void)state;
    struct guess_record r = {0};
    int n_made = 0, n_steps = 4000;
    for (int i = 0; i < n_steps; i++)
        if (guess_most(&r, 0.1, 5) > 0) {
            n_made++;
            guess_judged(&r, false);
        }
    EXPECT(n_made > 20 && n_made < n_steps / 50); // still tried
    for (int i = 0; i < 40; i++)
        guess_judged(&r, true);
    EXPECT(guess_most(&r, 0.1, 5) == 5);
}

static void rows_have_a_price(void **state) {
    (void)state;
    struct scheduler s = {0};
    struct arena arena = {0};
    struct sequence seqs[2], *running[2] = {&seqs[0], &seqs[1]};
    arena_init(&arena);
    step_cost_init(&s.cost);
    s.running = running, s.n_running = 2;
    for (int i = 0; i < 2; i++) {
        sequence_init(&seqs[i], &arena, 50, 1, 16);
        seqs[i].n_known = seqs[i].n_tokens = 10, seqs[i].n_computed = 9;
    }
    EXPECT(guess_price(&s, 0) == 0); // no step was measured
    for (int n = 1; n < 40; n++)
        step_cost_learn(&s.cost, (struct step_work){.tokens = n, .pairs = 10 * n}, 900 + 50 * n);
    double rows = guess_price(&s, 0), passes = guess_price(&s, 100);
    EXPECT(fabs(rows - 2 * 50.0 / 1000) < 0.01); // two tokens are made in 1000 us
    EXPECT(fabs(passes - 2 * 150.0 / 1000) < 0.01);
    arena_release(&arena);
}

// ---- predictions ------------------------------------------------------------------------------------------------

static int predicted(struct prediction *p, const int32_t *tokens, int n_prompt, int n, int32_t *out, int max) {
    struct sequence seq = {.tokens = (int32_t *)tokens, .n_known = n, .n_tokens = n};
    return prediction_guess(p, &seq, n_prompt, out, max);
}

static void a_prediction_goes_on_behind_an_edit(void **state) {
    (void)state;
    const int32_t said[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, text[] = {90, 91, 1, 2, 30, 31, 5, 6, 7};
    struct prediction p = {.tokens = said, .n = 9, .n_seen = 2};
    int32_t out[16];
    EXPECT_EQ(predicted(&p, text, 2, 2, out, 4), 4); // from its beginning
    EXPECT(out[0] == 1 && out[3] == 4);
    EXPECT_EQ(predicted(&p, text, 2, 4, out, 16), 7);
    EXPECT_EQ(out[0], 3);
    EXPECT_EQ(predicted(&p, text, 2, 5, out, 4), 0); // 30 is not in it
    EXPECT_EQ(predicted(&p, text, 2, 7, out, 4), 0); // 5 alone says too little
    EXPECT_EQ(predicted(&p, text, 2, 8, out, 4), 3); // 5 6: it goes on with 7
    EXPECT(out[0] == 7 && out[2] == 9);
    EXPECT_EQ(predicted(&p, text, 2, 9, out, 1), 1);
    EXPECT_EQ(out[0], 8);
    struct prediction none = {0};
    EXPECT_EQ(predicted(&none, text, 2, 9, out, 4), 0);
}

enum { N_PROMPT = 12, N_TOKENS = 60 };

struct told {
    int32_t tokens[N_TOKENS];
    int n, n_polls;
    struct gyre_timing timing;
};

static void answer(struct gyre *g, float temperature, const struct told *expected, struct told *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    struct gyre_event e[64];
    int32_t prompt[N_PROMPT];
    uint64_t id;
    *t = (struct told){0};
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 11 + 17 * i;
    q.prompt = prompt, q.n_prompt = N_PROMPT, q.max_tokens = N_TOKENS, q.ignore_eos = true;
    q.temperature = temperature, q.seed = 9, q.top_k = 0, q.top_p = 1, q.min_p = 0, q.repetition_penalty = 1;
    if (expected)
        q.prediction = expected->tokens, q.n_prediction = (size_t)expected->n;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    for (; gyre_busy(g); t->n_polls++)
        for (int i = 0, n = gyre_poll(g, e, 64); i < n; i++)
            if (e[i].kind == GYRE_TOKEN)
                t->tokens[t->n++] = e[i].token;
            else if (e[i].kind == GYRE_DONE)
                t->timing = e[i].timing;
}

static struct gyre *open_story(int n_guesses, double synthetic) {
    struct gyre_options o = {.struct_size = sizeof o, .model = "models/story", .backend = &backend_cpu, .n_threads = 1};
    struct gyre *g;
    struct gyre_error err;
    o.kv_cache_bytes = 16 << 20, o.max_model_len = 128, o.n_guesses = n_guesses, o.synthetic_acceptance = synthetic;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

/* Without any flag: what a client predicts is guessed. */
static void predicted_answers_are_the_same_in_fewer_steps(void **state) {
    (void)state;
    for (int drawn = 0; drawn < 2; drawn++) {
        static struct told plain, edited, guessed;
        struct gyre *g = open_story(0, 0);
        g->drafter.is_fixed = true;
        answer(g, drawn ? 0.9f : 0, NULL, &plain);
        edited = plain;
        edited.tokens[20] ^= 1, edited.tokens[40] ^= 1;
        answer(g, drawn ? 0.9f : 0, &edited, &guessed);
        assert_memory_equal(plain.tokens, guessed.tokens, sizeof plain.tokens);
        EXPECT(guessed.n_polls < plain.n_polls / 3);
        EXPECT(guessed.timing.n_predicted_right > 45 && guessed.timing.n_predicted_wrong > 0);
        EXPECT_EQ(plain.timing.n_predicted_right, 0);
        gyre_close(g);
    }
}

static void made_up_acceptance_is_that_asked_for(void **state) {
    (void)state;
    static struct told t;
    struct gyre *g = open_story(4, 2.5);
    g->drafter.is_fixed = true;
    for (int i = 0; i < 30; i++)
        answer(g, 0, NULL, &t);
    double a_draft = 1 + (double)g->drafter.n_accepted / (double)g->drafter.n_drafts;
    EXPECT(g->drafter.n_drafts > 100);
    if (!(a_draft > 2.2 && a_draft < 2.8)) // ends of answers cut drafts short
        fail_msg("a draft gives %g tokens", a_draft);
    gyre_close(g);
}

static void wrong_fields_are_named(void **state) {
    (void)state;
    struct gyre *g = open_story(0, 0);
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    int32_t prompt[] = {5}, far[] = {1 << 20};
    uint64_t id;
    q.prompt = prompt, q.n_prompt = 1, q.prediction = far, q.n_prediction = 1;
    EXPECT_EQ(gyre_submit(g, &q, &id, &err), GYRE_ARGUMENT);
    EXPECT(strstr(err.text, "prediction"));
    q.prediction = NULL;
    EXPECT_EQ(gyre_submit(g, &q, &id, &err), GYRE_ARGUMENT);
    gyre_close(g);
    struct gyre_options o = {.struct_size = sizeof o, .model = "models/story", .backend = &backend_cpu};
    o.n_guesses = 3, o.synthetic_acceptance = 4.5;
    EXPECT_EQ(gyre_open(&o, &g, &err), GYRE_ARGUMENT);
    EXPECT(strstr(err.text, "synthetic_acceptance"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_that_do_not_pay_are_not_made),
        cmocka_unit_test(wrong_guesses_rest_longer_each_time),
        cmocka_unit_test(rows_have_a_price),
        cmocka_unit_test(a_prediction_goes_on_behind_an_edit),
        cmocka_unit_test(predicted_answers_are_the_same_in_fewer_steps),
        cmocka_unit_test(made_up_acceptance_is_that_asked_for),
        cmocka_unit_test(wrong_fields_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
