/* test_drafts.c - guesses of what comes next change no token: models on the CPU, greedy and drawn, with guesses from
 * the answer that came without any, some of them made up. Random schedules of them on the toy are in
 * test_random_load.c. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

enum { N_PROMPT = 9, N_TOKENS = 40, N_TEXTS = 3 };

struct text {
    int32_t tokens[N_PROMPT + N_TOKENS];
    int n;
};

static struct text told[N_TEXTS]; // what the drafter knows
static uint64_t n_draws;
static bool with_plain_kernels;

static int guess(void *context, const struct sequence *seq, int32_t *out, int max) {
    const struct request *r = seq->owner;
    const struct text *t = &told[(struct text *)r->asked.user - (struct text *)context];
    int n = MIN(MIN(max, 5), t->n - seq->n_tokens);
    for (int i = 0; i < n; i++)
        out[i] = t->tokens[seq->n_tokens + i] ^ (philox_uniform(test_seed(), n_draws++, 7) < 0.2);
    return MAX(n, 0);
}

/* n_guesses: that the engine is opened for. */
static void write_texts(const char *model, bool is_drafted, int n_guesses, struct text *texts, struct drafter *seen) {
    static const char *const plain[] = {"kernels=reference", NULL};
    struct gyre_options o = {.struct_size = sizeof o};
    struct gyre *g;
    struct gyre_error err;
    struct gyre_event e[16];
    o.model = model, o.backend = &backend_cpu, o.n_threads = 2, o.kv_cache_bytes = 16 << 20, o.max_model_len = 128,
    o.block_size = 8, o.n_guesses = n_guesses, o.device_options = with_plain_kernels ? plain : NULL;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    if (is_drafted)
        g->drafter = (struct drafter){.guess = guess, .context = texts, .is_fixed = true};
    for (int i = 0; i < N_TEXTS; i++) {
        struct gyre_request q = gyre_request_default(g);
        uint64_t id;
        texts[i].n = N_PROMPT;
        for (int k = 0; k < N_PROMPT; k++)
            texts[i].tokens[k] = 7 * k + 31 * i + 3;
        q.prompt = texts[i].tokens, q.n_prompt = N_PROMPT, q.max_tokens = N_TOKENS, q.ignore_eos = true,
        q.user = &texts[i];
        q.temperature = i == 0 ? 0 : 0.9f, q.seed = 5, q.top_k = 0, q.top_p = 1, q.min_p = 0;
        q.repetition_penalty = i == 2 ? 1.3f : 1;
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    while (gyre_busy(g))
        for (int i = 0, n = gyre_poll(g, e, 16); i < n; i++)
            if (e[i].kind == GYRE_TOKEN) {
                struct text *t = e[i].user;
                t->tokens[t->n++] = e[i].token;
            }
    *seen = g->drafter;
    gyre_close(g);
}

static void guesses_change_no_token_of_a_model(void **state) {
    (void)state;
    static const char *const models[] = {"llama",     "gemma2",  "gemma3",      "gemma4",    "deepseek_v3",
                                         "gpt_oss",   "mistral", "mixtral",     "qwen2",     "qwen3",
                                         "qwen3_moe", "qwen3_5", "qwen3_5_moe", "diffllama", "qwen3_5"};
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        if (test_is_brief() && (m + test_seed()) % 3 != 0)
            continue;
        static struct text plain[N_TEXTS], drafted[N_TEXTS];
        char folder[60];
        struct drafter seen;
        snprintf(folder, sizeof folder, "tests/models/%s", models[m]);
        with_plain_kernels = m + 1 == ARRAY_LEN(models);
        write_texts(folder, false, 0, plain, &seen);
        memcpy(told, plain, sizeof told);
        write_texts(folder, true, 5, drafted, &seen);
        EXPECT(memcmp(plain, drafted, sizeof plain) == 0);
        EXPECT(seen.n_guessed > seen.n_accepted && seen.n_accepted > N_TEXTS * N_TOKENS / 3);
    }
}

/* One that was not opened for guesses: states keep nothing to go back by. */
static void nothing_is_guessed_where_a_state_cannot_go_back(void **state) {
    (void)state;
    static struct text texts[N_TEXTS];
    struct drafter seen;
    with_plain_kernels = false;
    write_texts("tests/models/qwen3_5", false, 0, told, &seen);
    write_texts("tests/models/qwen3_5", true, 0, texts, &seen);
    EXPECT_EQ(seen.n_guessed, 0);
    EXPECT(memcmp(told, texts, sizeof told) == 0);
}

static void a_sequence_goes_back_to_where_a_guess_was_wrong(void **state) {
    (void)state;
    struct arena arena = {0};
    struct sequence s;
    arena_init(&arena);
    sequence_init(&s, &arena, 20, 1, 4);
    s.tokens[0] = 1, s.n_tokens = s.n_known = 1;
    sequence_guess(&s, (int32_t[]){2, 3, 4}, 3);
    EXPECT(sequence_decodes(&s) && sequence_rows(&s, 4) == 4 && sequence_row_start(&s) == 0);
    s.n_computed = 4;
    sequence_expect(&s); // of the row of 4
    EXPECT(s.n_tokens == 5 && sequence_expects(&s, 4) && !sequence_expects(&s, 3));
    sequence_guess(&s, (int32_t[]){6}, 1);
    EXPECT(sequence_decodes(&s) && sequence_row_start(&s) == 4);
    s.n_computed = 6;
    sequence_expect(&s);
    EXPECT(s.n_tokens == 7 && sequence_expects(&s, 4) && sequence_expects(&s, 6));
    EXPECT(sequence_append(&s, 2) && s.n_known == 2 && s.n_computed == 6 && s.n_backs == 0);
    EXPECT(!sequence_append(&s, 9)); // not 3
    EXPECT(s.n_known == 3 && s.n_tokens == 3 && s.n_computed == 2 && s.n_backs == 1 && s.tokens[2] == 9 &&
           !sequence_expects(&s, 4));
    EXPECT(sequence_append(&s, 4) && s.n_tokens == 4 && s.n_backs == 1); // nobody guesses it any more
    arena_release(&arena);
}

/* So that whoever reads the history may guess behind it. */
static void a_token_that_is_known_is_expected_no_more(void **state) {
    (void)state;
    struct arena arena = {0};
    struct sequence s;
    arena_init(&arena);
    sequence_init(&s, &arena, 8, 1, 4);
    s.tokens[0] = 1, s.n_tokens = s.n_known = s.n_computed = 1;
    sequence_expect(&s);
    EXPECT(sequence_expects(&s, 1) && s.n_tokens == 2);
    EXPECT(sequence_append(&s, 5) && s.tokens[1] == 5 && s.n_known == 2);
    EXPECT(!sequence_expects(&s, 1));
    arena_release(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_goes_back_to_where_a_guess_was_wrong),
        cmocka_unit_test(a_token_that_is_known_is_expected_no_more),
        cmocka_unit_test(guesses_change_no_token_of_a_model),
        cmocka_unit_test(nothing_is_guessed_where_a_state_cannot_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
