/* test_guesses.c - how many tokens are guessed, what a client predicts as guesses, and acceptance that is made up for
 * benchmarks. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

#include <math.h>
#define LLAMA "tests/models/llama" // whose tokens take a tenth of the story model's time

// ---- how many ---------------------------------------------------------------------------------------------------

static struct guess_price of(double each, double fixed) { return (struct guess_price){each, fixed}; }

static void guesses_that_do_not_pay_are_not_made(void **state) {
    (void)state;
    struct guess_record r = {0};
    EXPECT_EQ(guess_most(&r, of(0, 0), 5), 5);   // nothing is known of what they cost
    EXPECT_EQ(guess_most(&r, of(0.6, 0), 5), 1); // 1.7 / 1.6, 2.19 / 2.2
    for (int i = 0; i < 30; i++)
        guess_judged(&r, i % 10 != 0); // nine of ten are right, a = 27.7 / 31
    EXPECT_EQ(guess_most(&r, of(0.3, 0), 16), 5);
    EXPECT_EQ(guess_most(&r, of(0.7, 0), 16), 2);
    EXPECT_EQ(guess_most(&r, of(0.3, 0), 4), 4);
    EXPECT_EQ(guess_most(&r, of(0.3, 1), 16), 7); // a step with any is dear: then many
    EXPECT_EQ(guess_most(&r, of(0.9, 1), 16), 1); // or none, but for one once in a while
    EXPECT_EQ(guess_most(&r, of(0.9, 1), 16), 0);
}

static void wrong_guesses_rest_longer_each_time(void **state) {
    (void)state;
    struct guess_record r = {0};
    int n_made = 0, n_steps = 4000;
    for (int i = 0; i < n_steps; i++)
        if (guess_most(&r, of(0.1, 0), 5) > 0) {
            n_made++;
            guess_judged(&r, false);
        }
    EXPECT(n_made > 20 && n_made < n_steps / 50); // still tried
    for (int i = 0; i < 80; i++)
        guess_judged(&r, true);
    EXPECT(guess_most(&r, of(0.1, 0), 5) == 5);
}

/* Of eight sequences whose guesses are all wrong, in steps that take 1.15 times as long, though rows are free. */
static void guesses_end_where_no_step_was_without(void **state) {
    (void)state;
    struct scheduler s = {0};
    struct arena arena = {0};
    struct sequence seqs[8], *running[8];
    struct guess_record records[8] = {0};
    struct guess_times times = {0};
    int n_steps = 4000, n_guessed = 0, n_late = 0;
    arena_init(&arena), step_cost_init(&s.cost);
    s.running = running, s.n_running = 8;
    for (int i = 0; i < 8; i++) {
        sequence_init(&seqs[i], &arena, 50, 1, 16);
        seqs[i].n_known = seqs[i].n_tokens = 10, seqs[i].n_computed = 9, running[i] = &seqs[i];
    }
    for (int k = 0, n = 0; k < n_steps; k++, n = 0) {
        struct guess_price price = guess_price(&s, &times, 0);
        bool is_plain = guess_wants_plain(&times);
        for (int i = 0; i < 8; i++)
            for (int left = is_plain ? 0 : guess_most(&records[i], price, 4); left > 0; left--, n++)
                if (left == 1) // those behind a wrong one are not judged
                    guess_judged(&records[i], false);
        double us = n > 0 ? 1150 : 1000;
        step_cost_learn(&s.cost, (struct step_work){.tokens = 8 + n, .pairs = 10 * (8 + n)}, us);
        guess_timed(&times, 8, n, us);
        n_guessed += n > 0, n_late += k > n_steps / 2 && n > 0;
    }
    EXPECT(times.plain_us > 900 && n_guessed < n_steps / 10);
    EXPECT(n_late > 0 && n_late < n_steps / 2 / 8); // still tried
    arena_release(&arena);
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
    struct guess_times times = {0};
    EXPECT(guess_price(&s, &times, 0).each == 0); // no step was measured
    for (int n = 1; n < 40; n++)
        step_cost_learn(&s.cost, (struct step_work){.tokens = n, .pairs = 10 * n}, 900 + 50 * n);
    double rows = guess_price(&s, &times, 0).each, passes = guess_price(&s, &times, 100).each;
    EXPECT(fabs(rows - 2 * 50.0 / 1000) < 0.01); // two tokens are made in 1000 us
    EXPECT(fabs(passes - 2 * 150.0 / 1000) < 0.01);
    guess_timed(&times, 2, 0, 1000);
    EXPECT(guess_price(&s, &times, 0).fixed == 0); // no step with guesses was
    guess_timed(&times, 2, 4, 1000 + 4 * 50 + 70);
    EXPECT(fabs(guess_price(&s, &times, 0).fixed - 0.07) < 0.01);
    guess_timed(&times, 8, 0, 1300); // of other batches nothing is known
    EXPECT(guess_price(&s, &times, 0).fixed == 0);
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

// ---- rejection --------------------------------------------------------------------------------------------------

enum { N_LETTERS = 11 };

struct rejection {
    float temperature, top_p;
    int top_k;
    bool is_certain; // the guess could be no other
};

/* Draws with guesses have the distribution of the row: chi-square over all draws, of at most N_LETTERS - 1 degrees of
 * freedom, is above 46 once in a million times. As many guesses are kept as the two distributions have in common. */
static void judge_rejection(const struct rejection *c, uint64_t round, int n_draws) {
    float row[N_LETTERS], other[N_LETTERS], p[N_LETTERS], q[N_LETTERS];
    int64_t drawn[N_LETTERS] = {0}, kept = 0;
    double common = 0, chi = 0;
    struct sample_scratch scratch;
    struct sample_result r;
    struct sample_params target = sample_params_default();
    target.temperature = c->temperature, target.top_p = c->top_p, target.top_k = c->top_k, target.seed = test_seed();
    target.sequence = round;
    struct sample_params draft = target;
    draft.seed ^= 0x6472616674, draft.top_k = 0;
    sample_scratch_init(&scratch, N_LETTERS);
    for (int i = 0; i < N_LETTERS; i++) {
        row[i] = (float)(4 * philox_uniform(test_seed(), round, (uint64_t)i));
        other[i] = row[i] + (float)(2 * philox_uniform(test_seed(), round, (uint64_t)i + 100));
    }
    sample_distribution(row, N_LETTERS, &target, &scratch, p);
    sample_distribution(other, N_LETTERS, &draft, &scratch, q);
    for (int i = 0; i < N_LETTERS; i++)
        common += c->is_certain ? 0 : (double)MIN(p[i], q[i]);
    for (int i = 0; i < n_draws; i++) {
        draft.position = target.position = (uint64_t)i;
        sample_row(other, N_LETTERS, &draft, &scratch, &r);
        target.guess = (struct sample_guess){true, c->is_certain ? 3 : r.token, c->is_certain ? NULL : q};
        common += c->is_certain ? (double)p[3] / n_draws : 0;
        sample_row(row, N_LETTERS, &target, &scratch, &r);
        drawn[r.token]++;
        kept += r.token == target.guess.token;
    }
    for (int i = 0; i < N_LETTERS; i++) {
        double want = (double)p[i] * n_draws;
        EXPECT(want > 0 || drawn[i] == 0);
        chi += want > 0 ? ((double)drawn[i] - want) * ((double)drawn[i] - want) / want : 0;
    }
    if (!(chi < 46))
        fail_msg("chi-square is %g", chi);
    if (!(fabs((double)kept / n_draws - common) < 5 * sqrt(0.25 / n_draws)))
        fail_msg("%g of the guesses are kept, %g could be", (double)kept / n_draws, common);
    sample_scratch_release(&scratch);
}

static void rejection_keeps_the_distribution(void **state) {
    (void)state;
    static const struct rejection cases[] = {{1, 1, 0, false},    {0.7f, 1, 0, false}, {1, 0.8f, 0, false},
                                             {1.3f, 1, 4, false}, {1, 1, 0, true},     {1, 0.9f, 5, true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        judge_rejection(&cases[i], i, test_is_brief() ? 25000 : 1000000);
}

// ---- recent answers ---------------------------------------------------------------------------------------------

static int suffix_after(struct suffix_index *x, struct suffix_match *m, uint64_t owner, const int32_t *tokens, int n,
                        int n_tokens, int32_t *out, int max) {
    struct sequence seq = {.tokens = (int32_t *)tokens, .n_known = n, .n_tokens = n_tokens};
    return suffix_guess(x, m, owner, &seq, out, max);
}

static void what_followed_in_an_answer_is_guessed(void **state) {
    (void)state;
    struct suffix_index *x = suffix_open(64);
    const int32_t one[] = {1, 2, 3, 4, 5, 6}, other[] = {9, 2, 3, 4, 7, 8};
    const int32_t text[] = {50, 9, 2, 3, 4, 7, 8};
    struct suffix_match m = {0}, fresh = {0};
    int32_t out[8];
    suffix_add(x, 1, one, 6);
    suffix_add(x, 1, other, 6);
    EXPECT_EQ(suffix_after(x, &m, 1, text, 3, 3, out, 8), 0); // "9 2": too short
    EXPECT_EQ(suffix_after(x, &m, 1, text, 5, 5, out, 8), 2); // "9 2 3 4" was in the other one
    EXPECT(out[0] == 7 && out[1] == 8);
    EXPECT_EQ(suffix_after(x, &m, 1, text, 5, 6, out, 8), 1); // the 7 is expected already
    EXPECT_EQ(out[0], 8);
    EXPECT_EQ(suffix_after(x, &m, 1, text, 7, 7, out, 8), 0);     // nothing follows in it
    EXPECT_EQ(suffix_after(x, &fresh, 2, text, 5, 5, out, 8), 0); // another's
    fresh = (struct suffix_match){0};
    EXPECT_EQ(suffix_after(x, &fresh, 1 + (UINT64_C(1) << 32), text, 5, 5, out, 8),
              0); // another's, of the same low bits
    suffix_free(x);
}

/* Against a search through all answers that are remembered. */
static void it_finds_the_longest_end_that_stands_there(void **state) {
    (void)state;
    enum { CAPACITY = 200, LETTERS = 3, LONGEST = 40 };
    uint64_t n_draws = 0;
    for (int round = 0; round < 30; round++) {
        struct suffix_index *x = suffix_open(CAPACITY);
        static int32_t all[2 * CAPACITY], text[300];
        int n_all = 0;
        struct suffix_match m = {0};
        for (int i = 0; i < 300; i++)
            text[i] = (int32_t)(philox_uniform(test_seed(), n_draws++, 1) * LETTERS);
        for (int n = 1; n < 300; n++) {
            int32_t answer[LONGEST], out[1];
            int length = n % 37 == 0 && n_all + LONGEST < CAPACITY ? LONGEST - 1 : 0;
            for (int i = 0; i < length; i++)
                all[n_all++] = answer[i] = (int32_t)(philox_uniform(test_seed(), n_draws++, 2) * LETTERS);
            if (length > 0) {
                suffix_add(x, 0, answer, length);
                all[n_all++] = -1;
                memset(&m, 0, sizeof m);
            }
            int longest = 0;
            for (int at = 0; at < n_all; at++) {
                int same = 0;
                while (same < SUFFIX_CONTEXT && same <= at && same < n && all[at - same] == text[n - 1 - same])
                    same++;
                longest = MAX(longest, same);
            }
            suffix_after(x, &m, 0, text, n, n, out, 1);
            EXPECT_EQ(MIN(m.length[0], SUFFIX_CONTEXT), longest);
        }
        suffix_free(x);
    }
}

static void old_answers_are_forgotten(void **state) {
    (void)state;
    struct suffix_index *x = suffix_open(32);
    int32_t out[4], first[10], other[10];
    struct suffix_match m = {0};
    for (int i = 0; i < 10; i++)
        first[i] = 100 + i;
    suffix_add(x, 0, first, 10);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 10; i++)
            other[i] = 1000 + 10 * round + i;
        suffix_add(x, 0, other, 10);
        int n = suffix_after(x, &m, 0, first, 5, 5, out, 4);
        EXPECT(n == 0 || (n == 4 && out[0] == 105));
        EXPECT(round > 0 || n == 4); // in the older generation
        EXPECT(round < 8 || n == 0);
        EXPECT_EQ(suffix_after(x, &(struct suffix_match){0}, 0, other, 5, 5, out, 4), 4);
    }
    suffix_free(x);
}

enum { N_PROMPT = 12, N_TOKENS = 60 };

struct told {
    int32_t tokens[N_TOKENS];
    int n, n_polls;
    struct gyre_timing timing;
};

static void answer_salted(struct gyre *g, float temperature, const struct told *expected, const char *salt,
                          struct told *t) {
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
    q.cache_salt = salt;
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

static void answer(struct gyre *g, float temperature, const struct told *expected, struct told *t) {
    answer_salted(g, temperature, expected, NULL, t);
}

static struct gyre *open_llama(const char *method, int n_guesses, double synthetic) {
    struct gyre_options o = {.struct_size = sizeof o, .model = LLAMA, .backend = &backend_cpu, .n_threads = 1};
    struct gyre *g;
    struct gyre_error err;
    o.kv_cache_bytes = 16 << 20, o.max_model_len = 128, o.n_guesses = n_guesses, o.draft_method = method,
    o.synthetic_acceptance = synthetic;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

/* Without any flag: what a client predicts is guessed. */
static void predicted_answers_are_the_same_in_fewer_steps(void **state) {
    (void)state;
    for (int drawn = 0; drawn < 2; drawn++) {
        static struct told plain, edited, guessed;
        struct gyre *g = open_llama(NULL, 0, 0);
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

static void an_answer_given_before_is_guessed(void **state) {
    (void)state;
    static struct told plain, first, again;
    struct gyre *without = open_llama(NULL, 0, 0), *g = open_llama("suffix", 5, 0);
    g->drafter.is_fixed = true;
    answer(without, 0.9f, NULL, &plain);
    answer(g, 0.9f, NULL, &first);
    answer(g, 0.9f, NULL, &again);
    assert_memory_equal(plain.tokens, first.tokens, sizeof plain.tokens);
    assert_memory_equal(plain.tokens, again.tokens, sizeof plain.tokens);
    EXPECT(again.n_polls < first.n_polls / 2);
    gyre_close(without);
    gyre_close(g);
}

/* Guesses that were right would tell of an answer that was given under another salt. */
static void answers_of_one_salt_guess_no_others(void **state) {
    (void)state;
    const char *const salts[] = {"one", "other", NULL};
    static struct told first, alone, again;
    struct gyre *g = open_llama("suffix", 5, 0), *quiet = open_llama("suffix", 5, 0);
    g->drafter.is_fixed = quiet->drafter.is_fixed = true;
    answer(quiet, 0.9f, NULL, &alone); // as many steps as its own text allows
    for (size_t i = 0; i < ARRAY_LEN(salts); i++) {
        answer_salted(g, 0.9f, NULL, salts[i], &first);
        assert_memory_equal(first.tokens, alone.tokens, sizeof alone.tokens);
        EXPECT_EQ(first.n_polls, alone.n_polls);
    }
    for (size_t i = 0; i < ARRAY_LEN(salts); i++) {
        answer_salted(g, 0.9f, NULL, salts[i], &again);
        EXPECT(again.n_polls < alone.n_polls / 2); // its own
    }
    gyre_close(quiet);
    gyre_close(g);
}

/* A draft that draws by itself: texts are others, all of the model's tokens; the draft is the target, so that every
 * guess of a plain draw is kept. */
static void a_draft_that_is_the_target_is_never_rejected(void **state) {
    (void)state;
    static struct told t;
    struct gyre_options o = {.struct_size = sizeof o, .model = LLAMA, .backend = &backend_cpu, .n_threads = 1};
    struct gyre *g;
    struct gyre_error err;
    o.kv_cache_bytes = 16 << 20, o.max_model_len = 128, o.n_guesses = 4, o.always_guess = true;
    o.draft_model = LLAMA, o.draft_rejection = true;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    for (int i = 0; i < 4; i++)
        answer(g, 0.9f, NULL, &t);
    EXPECT(g->drafter.n_guessed > 150);
    EXPECT(g->drafter.n_guessed - g->drafter.n_accepted < g->drafter.n_guessed / 50); // sums in another order
    gyre_close(g);
}

enum { N_SHARING = 5 };

/* Steps hold the rows of a part of their guesses. */
static struct gyre *open_sharing(void) {
    struct gyre_options o = {.struct_size = sizeof o, .model = LLAMA, .backend = &backend_cpu, .n_threads = 1};
    struct gyre *g;
    struct gyre_error err;
    o.kv_cache_bytes = 16 << 20, o.max_model_len = 128, o.n_guesses = 4, o.always_guess = true;
    o.draft_model = LLAMA, o.draft_rejection = true, o.max_batched_tokens = 13, o.max_seqs = N_SHARING;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    for (int i = 0; i < N_SHARING; i++) {
        struct gyre_request q = gyre_request_default(g);
        int32_t prompt[N_PROMPT];
        uint64_t id;
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = 11 + (17 + 2 * i) * k;
        q.prompt = prompt, q.n_prompt = N_PROMPT, q.max_tokens = N_TOKENS + 7 * i, q.ignore_eos = true;
        q.temperature = 1, q.seed = (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0, q.repetition_penalty = 1;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    return g;
}

static int drafted(struct gyre *g, const struct request *r) {
    int32_t out[MOST_GUESSES];
    return g->drafter.guess(g->drafter.context, &r->sequence, out, MOST_GUESSES);
}

/* What its guesses were drawn from is gone then. */
static void who_missed_a_step_has_no_guess_of_before(void **state) {
    (void)state;
    struct gyre *g = open_sharing();
    struct gyre_event e[64];
    while (g->scheduler.n_running < N_SHARING || drafted(g, g->scheduler.running[0]->owner) == 0)
        gyre_poll(g, e, 64);
    const struct request *r = g->scheduler.running[0]->owner;
    int32_t n_known = r->sequence.n_known;
    engine_pause(g, r->id, true);
    for (int64_t until = g->n_collected + 1; g->n_collected < until;)
        engine_step(g);
    EXPECT_EQ(r->sequence.n_known, n_known);
    EXPECT(r->draft.n > 0 && r->draft.at == n_known);
    EXPECT_EQ(drafted(g, r), 0);
    engine_pause(g, r->id, false);
    while (gyre_busy(g))
        gyre_poll(g, e, 64);
    gyre_close(g);
}

static void made_up_acceptance_is_that_asked_for(void **state) {
    (void)state;
    static struct told t;
    struct gyre *g = open_llama(NULL, 4, 2.5);
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
    struct gyre *g = open_llama(NULL, 0, 0);
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
    struct gyre_options o = {.struct_size = sizeof o, .model = LLAMA, .backend = &backend_cpu};
    o.n_guesses = 3, o.synthetic_acceptance = 4.5;
    EXPECT_EQ(gyre_open(&o, &g, &err), GYRE_ARGUMENT);
    EXPECT(strstr(err.text, "synthetic_acceptance"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_that_do_not_pay_are_not_made),
        cmocka_unit_test(wrong_guesses_rest_longer_each_time),
        cmocka_unit_test(guesses_end_where_no_step_was_without),
        cmocka_unit_test(rows_have_a_price),
        cmocka_unit_test(a_prediction_goes_on_behind_an_edit),
        cmocka_unit_test(rejection_keeps_the_distribution),
        cmocka_unit_test(what_followed_in_an_answer_is_guessed),
        cmocka_unit_test(it_finds_the_longest_end_that_stands_there),
        cmocka_unit_test(old_answers_are_forgotten),
        cmocka_unit_test(an_answer_given_before_is_guessed),
        cmocka_unit_test(answers_of_one_salt_guess_no_others),
        cmocka_unit_test(predicted_answers_are_the_same_in_fewer_steps),
        cmocka_unit_test(a_draft_that_is_the_target_is_never_rejected),
        cmocka_unit_test(who_missed_a_step_has_no_guess_of_before),
        cmocka_unit_test(made_up_acceptance_is_that_asked_for),
        cmocka_unit_test(wrong_fields_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
