/* test_ngram.c - guesses from the text itself: what they are, how they rest, and that no token changes by them: models
 * on the CPU, greedy and drawn, several at once. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

static const struct ngram ngram = {.most = 5, .longest = 3, .shortest = 2};

static int guess_after(const int32_t *tokens, int n_known, int n_tokens, struct guess_luck *luck, int32_t *out) {
    struct sequence seq = {.tokens = (int32_t *)tokens, .n_known = n_known, .n_tokens = n_tokens};
    return ngram_guess(&ngram, luck, &seq, out, 16);
}

static void the_longest_and_then_the_latest_place_is_taken(void **state) {
    (void)state;
    int32_t out[16];
    const int32_t longest[] = {1, 2, 3, 10, 11, 9, 2, 3, 20, 1, 2, 3}; // "1 2 3" beats the later "2 3"
    EXPECT_EQ(guess_after(longest, 12, 12, &(struct guess_luck){0}, out), 5);
    const int32_t want[] = {10, 11, 9, 2, 3};
    assert_memory_equal(out, want, sizeof want);
    const int32_t latest[] = {2, 3, 10, 2, 3, 20, 21, 2, 3};
    EXPECT_EQ(guess_after(latest, 9, 9, &(struct guess_luck){0}, out), 5);
    EXPECT_EQ(out[0], 20);
    EXPECT_EQ(out[1], 21);
    const int32_t once[] = {1, 2, 3, 4, 5, 4};
    EXPECT_EQ(guess_after(once, 6, 6, &(struct guess_luck){0}, out), 0);
}

static void a_text_that_repeats_is_guessed_past_its_end(void **state) {
    (void)state;
    int32_t out[16];
    const int32_t tokens[] = {7, 8, 9, 7, 8, 9, 7, 8};
    const int32_t want[] = {9, 7, 8, 9, 7};
    EXPECT_EQ(guess_after(tokens, 8, 8, &(struct guess_luck){0}, out), 5);
    assert_memory_equal(out, want, sizeof want);
    EXPECT_EQ(guess_after(tokens, 8, 9, &(struct guess_luck){0}, out), 5); // the 9 is expected already
    assert_memory_equal(out, want + 1, 4 * sizeof *want);
}

static void guesses_that_are_wrong_rest(void **state) {
    (void)state;
    const int32_t tokens[] = {7, 8, 9, 7, 8, 9, 7, 8};
    struct guess_luck luck = {0};
    int32_t out[16];
    int rests[5] = {0}, n;
    for (int round = 0; round < 5; round++) {
        while ((n = guess_after(tokens, 8, 8, &luck, out)) == 0)
            rests[round]++;
        ngram_was_wrong(&ngram, &luck);
    }
    EXPECT_EQ(rests[0], 0);
    EXPECT_EQ(rests[1], 0); // a run may have ended
    EXPECT_EQ(rests[2], 1);
    EXPECT_EQ(rests[3], 3);
    EXPECT_EQ(rests[4], 7);
    EXPECT_EQ(n, 1);
    while ((n = guess_after(tokens, 8, 8, &luck, out)) == 0)
        continue;
    ngram_was_right(&ngram, &luck);
    EXPECT_EQ(guess_after(tokens, 8, 8, &luck, out), 2); // one that is right ends it
    ngram_was_right(&ngram, &luck), ngram_was_right(&ngram, &luck);
    EXPECT_EQ(guess_after(tokens, 8, 8, &luck, out), 4);
    ngram_was_right(&ngram, &luck), ngram_was_wrong(&ngram, &luck);
    EXPECT_EQ(guess_after(tokens, 8, 8, &luck, out), 4); // that a run has ended changes nothing
    ngram_was_wrong(&ngram, &luck);
    EXPECT_EQ(guess_after(tokens, 8, 8, &luck, out), 4); // nor that it ended where a draft did
    ngram_was_wrong(&ngram, &luck);
    EXPECT_EQ(guess_after(tokens, 8, 8, &luck, out), 0);
}

enum { N_TEXTS = 4, N_PROMPT = 24, N_TOKENS = 60 };

struct text {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    int n;
};

static void write_texts(const char *model, int n_guesses, struct text *texts, struct drafter *seen) {
    struct gyre_options o = {.struct_size = sizeof o};
    struct gyre *g;
    struct gyre_error err;
    struct gyre_event e[64];
    o.model = model, o.backend = &backend_cpu, o.n_threads = 2, o.kv_cache_bytes = 16 << 20, o.max_model_len = 128,
    o.block_size = 8, o.n_guesses = n_guesses;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    g->drafter.is_fixed = true;
    for (int i = 0; i < N_TEXTS; i++) {
        struct gyre_request q = gyre_request_default(g);
        int32_t prompt[N_PROMPT];
        uint64_t id;
        for (int k = 0; k < N_PROMPT; k++)
            prompt[k] = 3 + 5 * (k % 6) + i;
        q.prompt = prompt, q.n_prompt = N_PROMPT, q.max_tokens = N_TOKENS, q.ignore_eos = true, q.user = &texts[i];
        q.temperature = i < 2 ? 0 : 0.7f, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
        q.repetition_penalty = i == 1 ? 1.2f : 1;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        texts[i].n = 0;
    }
    while (gyre_busy(g))
        for (int i = 0, n = gyre_poll(g, e, 64); i < n; i++)
            if (e[i].kind == GYRE_TOKEN) {
                struct text *t = e[i].user;
                t->logprobs[t->n] = e[i].logprob;
                t->tokens[t->n++] = e[i].token;
            }
    *seen = g->drafter;
    gyre_close(g);
}

static void texts_and_logprobs_are_those_without(void **state) {
    (void)state;
    static const char *const models[] = {"models/story", "tests/models/gemma2", "tests/models/gpt_oss",
                                         "tests/models/deepseek_v3", "tests/models/qwen3_5"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        if (test_is_brief() && (m + test_seed()) % 3 != 0)
            continue;
        static struct text plain[N_TEXTS], guessed[N_TEXTS];
        struct drafter none, seen;
        write_texts(models[m], 0, plain, &none);
        write_texts(models[m], 5, guessed, &seen);
        EXPECT_EQ(none.n_guessed, 0);
        assert_true(seen.n_accepted > 0 && seen.n_guessed >= seen.n_accepted);
        for (int i = 0; i < N_TEXTS; i++) {
            EXPECT_EQ(guessed[i].n, N_TOKENS);
            assert_memory_equal(guessed[i].tokens, plain[i].tokens, sizeof plain[i].tokens);
            assert_memory_equal(guessed[i].logprobs, plain[i].logprobs, sizeof plain[i].logprobs);
        }
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct gyre_options o = {.struct_size = sizeof o, .model = "models/story", .backend = &backend_cpu};
    struct gyre *g;
    struct gyre_error err;
    o.n_guesses = 17;
    EXPECT_EQ(gyre_open(&o, &g, &err), GYRE_ARGUMENT);
    o.n_guesses = 4, o.ngram_min = 5, o.ngram_max = 3;
    EXPECT_EQ(gyre_open(&o, &g, &err), GYRE_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_and_then_the_latest_place_is_taken),
        cmocka_unit_test(a_text_that_repeats_is_guessed_past_its_end),
        cmocka_unit_test(guesses_that_are_wrong_rest),
        cmocka_unit_test(texts_and_logprobs_are_those_without),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
