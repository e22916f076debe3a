/* test_draft_models.c - drafts that are programs change no token and no log-probability: greedy and drawn, several
 * texts at once, prompts that were seen before, caches too small for all, with and without the host's memory. */
#include "check.h"

#include "base/random.h"
#include "engine/engine.h"

enum { N_TEXTS = 6, N_PROMPT = 40, N_TOKENS = 48, N_ROUNDS = 2 };

struct text {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    int n;
};

struct pair {
    const char *target, *draft, *method;
    int least_right; // per cent of the guesses
};

static const struct pair pairs[] = {
    {"models/story", "models/story", "draft_model", 60}, // the target itself; penalties are not guessed
    {"tests/models/qwen3", "tests/models/llama", "draft_model", 0},
    {"tests/models/deepseek_v3", "tests/models/qwen3", NULL, 0},
    {"tests/models/gemma3", "tests/models/gemma2", NULL, 0},
};

struct world {
    const struct pair *pair; // draft NULL: nobody guesses
    int64_t cache_bytes, swap_bytes;
};

static struct gyre *open_world(const struct world *w, bool drafted) {
    struct gyre_options o = {.struct_size = sizeof o};
    struct gyre *g;
    struct gyre_error err;
    o.model = w->pair->target, o.backend = &backend_cpu, o.n_threads = 2, o.max_model_len = 112, o.block_size = 8,
    o.kv_cache_bytes = w->cache_bytes, o.swap_bytes = w->swap_bytes, o.max_batched_tokens = 48;
    if (drafted)
        o.n_guesses = 4, o.draft_model = w->pair->draft, o.draft_method = w->pair->method;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    g->scheduler.always_swap = w->swap_bytes > 0;
    return g;
}

static void submit(struct gyre *g, int i, int round, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    int32_t prompt[N_PROMPT];
    uint64_t id;
    for (int k = 0; k < N_PROMPT; k++)
        prompt[k] = k < 17 ? 3 + 7 * k : 3 + 5 * (k % 6) + 11 * i; // all begin alike
    q.prompt = prompt, q.n_prompt = N_PROMPT - 3 * i, q.max_tokens = N_TOKENS - i, q.ignore_eos = true, q.user = t;
    q.temperature = i < 3 ? 0 : 0.7f, q.seed = test_seed() + (uint64_t)i, q.top_k = 0, q.top_p = 1, q.min_p = 0;
    q.repetition_penalty = i == 1 || i == 4 ? 1.2f : 1;
    q.logprobs = round == 0;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    t->n = 0;
}

/* Each round asks the same again, so that prompts are found in the cache. */
static void write_texts(const struct world *w, bool drafted, struct text (*texts)[N_TEXTS], struct drafter *seen) {
    struct gyre *g = open_world(w, drafted);
    struct gyre_event e[64];
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_TEXTS; i++)
            submit(g, i, round, &texts[round][i]);
        while (gyre_busy(g))
            for (int i = 0, n = gyre_poll(g, e, 64); i < n; i++)
                if (e[i].kind == GYRE_TOKEN) {
                    struct text *t = e[i].user;
                    t->logprobs[t->n] = round == 0 ? e[i].logprob : 0;
                    t->tokens[t->n++] = e[i].token;
                }
        EXPECT(scheduler_check(&g->scheduler) == NULL);
    }
    *seen = g->drafter;
    gyre_close(g);
}

static void compare(const struct world *w, int least_right) {
    static struct text plain[N_ROUNDS][N_TEXTS], guessed[N_ROUNDS][N_TEXTS];
    struct drafter none, seen;
    memset(plain, 0, sizeof plain), memset(guessed, 0, sizeof guessed);
    write_texts(w, false, plain, &none);
    write_texts(w, true, guessed, &seen);
    EXPECT_EQ(none.n_guessed, 0);
    if (seen.n_accepted * 100 < seen.n_guessed * least_right || seen.n_guessed < 100)
        fail_msg("%s: of %lld guesses %lld are right", w->pair->draft, (long long)seen.n_guessed,
                 (long long)seen.n_accepted);
    for (int round = 0; round < N_ROUNDS; round++)
        for (int i = 0; i < N_TEXTS; i++) {
            EXPECT_EQ(guessed[round][i].n, N_TOKENS - i);
            assert_memory_equal(guessed[round][i].tokens, plain[round][i].tokens, sizeof plain[0][0].tokens);
            assert_memory_equal(guessed[round][i].logprobs, plain[round][i].logprobs, sizeof plain[0][0].logprobs);
        }
}

static void texts_and_logprobs_are_those_without(void **state) {
    (void)state;
    for (size_t i = 0; i < (test_is_brief() ? 2 : ARRAY_LEN(pairs)); i++)
        compare(&(const struct world){&pairs[i], 32 << 20, 0}, pairs[i].least_right);
}

/* Room for two texts and a half: the others give way and come back. */
static void texts_are_the_same_where_sequences_give_way(void **state) {
    (void)state;
    for (int swap = 0; swap < 2; swap++)
        compare(&(const struct world){&pairs[1], 1200 << 10, swap ? 1 << 20 : 0}, 0);
}

static void what_cannot_guess_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *draft, *method, *word;
    } cases[] = {
        {"models/story", "tests/models/qwen3", "draft_model", "4096"}, // another vocabulary
        {"tests/models/qwen3", "tests/models/qwen3_5", "draft_model", "recurrent"},
        {"tests/models/mistral", "tests/models/llama", "draft_model", "whole text"},
        {"tests/models/qwen3", "tests/models/none", "draft_model", "none"},
        {"tests/models/qwen3", "tests/models/llama", "medusa", "medusa"},
        {"tests/models/qwen3", NULL, "draft_model", "folder"},
    };
    struct gyre *g;
    struct gyre_error err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gyre_options o = {.struct_size = sizeof o, .model = cases[i].model, .backend = &backend_cpu};
        o.kv_cache_bytes = 16 << 20, o.n_guesses = 3, o.draft_model = cases[i].draft, o.draft_method = cases[i].method;
        EXPECT(gyre_open(&o, &g, &err) != 0);
        if (!strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_and_logprobs_are_those_without),
        cmocka_unit_test(texts_are_the_same_where_sequences_give_way),
        cmocka_unit_test(what_cannot_guess_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
