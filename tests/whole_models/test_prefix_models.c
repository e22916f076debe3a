/* test_prefix_models.c - on models with each kind of cache: what the prefix cache or the host's memory gives back is
 * what computing gives. Not in make test-fast: long prompts on four models. */
#include "check.h"

#include "base/random.h"
#include "base/status.h"
#include "engine/engine.h"
#include "sched/kv_pool_internal.h"

enum { PROMPT = 220, ANSWER = 24, BLOCK = 16 };

static const struct source {
    const char *folder, *kv_cache_dtype;
} models[] = {{"models/story", NULL},         {"tests/models/gemma4", NULL},   {"tests/models/qwen3_5", NULL},
              {"tests/models/deepseek_v3", NULL}, {"models/story", "int4"},        {"tests/models/gemma4", "int4"},
              {"tests/models/qwen3_5", "int4"}};

static struct gyre *open_model(const struct source *model, bool remember) {
    struct gyre_options o = {.model = model->folder,
                             .kv_cache_dtype = model->kv_cache_dtype,
                             .backend = &backend_cpu,
                             .n_threads = 1,
                             .block_size = BLOCK,
                             .max_batched_tokens = 96,
                             .max_seqs = 4,
                             .no_prefix_cache = !remember};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    return g;
}

struct outcome {
    int32_t tokens[ANSWER];
    int n_tokens;
    int64_t n_reused;
};

static struct outcome answer(struct gyre *g, const int32_t *prompt, int n) {
    struct outcome r = {0};
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    q.prompt = prompt, q.n_prompt = n, q.max_tokens = ANSWER, q.ignore_eos = true, q.temperature = 0;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    while (gyre_busy(g)) {
        struct gyre_event e[8];
        for (int i = 0, got = gyre_poll(g, e, 8); i < got; i++) {
            if (e[i].kind == GYRE_TOKEN)
                r.tokens[r.n_tokens++] = e[i].token;
            if (e[i].kind == GYRE_DONE)
                r.n_reused = e[i].timing.n_reused;
        }
    }
    EXPECT_EQ(r.n_tokens, ANSWER);
    return r;
}

/* The answer with a cache that knows something is that without; returns how much was reused. */
static int64_t reused(struct gyre *remembers, struct gyre *computes, const int32_t *prompt, int n) {
    struct outcome a = answer(remembers, prompt, n), b = answer(computes, prompt, n);
    EXPECT_EQ(b.n_reused, 0);
    for (int i = 0; i < ANSWER; i++)
        if (a.tokens[i] != b.tokens[i])
            fail_msg("token %d is %d after %lld reused, and %d computed", i, a.tokens[i], (long long)a.n_reused,
                     b.tokens[i]);
    return a.n_reused;
}

static void reused_text_gives_the_tokens_that_computing_gives(void **state) {
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct gyre *remembers = open_model(&models[m], true), *computes = open_model(&models[m], false);
        int vocab = gyre_info(computes)->vocab_size;
        int32_t text[PROMPT + ANSWER];
        for (int i = 0; i < PROMPT + ANSWER; i++)
            text[i] = (int32_t)(philox_uniform(test_seed(), (uint64_t)i, m) * vocab);
        EXPECT_EQ(reused(remembers, computes, text, PROMPT), 0);
        EXPECT_EQ(reused(remembers, computes, text, PROMPT), (PROMPT - 1) / BLOCK * BLOCK);
        struct outcome turn = answer(remembers, text, PROMPT); // and the conversation goes on
        memcpy(text + PROMPT, turn.tokens, sizeof turn.tokens);
        EXPECT_EQ(reused(remembers, computes, text, PROMPT + ANSWER), (PROMPT + ANSWER - 1) / BLOCK * BLOCK);
        for (int variant = 0; variant < 3; variant++) { // texts that part from it within a block
            text[200] = (text[200] + 1) % vocab;
            int64_t n = reused(remembers, computes, text, PROMPT);
            EXPECT(n == 192 || (variant == 0 && n == 0)); // where a state must be kept, the first of them makes it
        }
        gyre_close(remembers);
        gyre_close(computes);
    }
}

/* Four streams in a cache for two; whoever gives way goes to the host's memory and comes back. */
static void what_was_swapped_out_comes_back_as_it_was(void **state) {
    (void)state;
    enum { STREAMS = 4 };
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct gyre *alone = open_model(&models[m], false), *g;
        struct gyre_options o = {.model = models[m].folder,
                                 .kv_cache_dtype = models[m].kv_cache_dtype,
                                 .backend = &backend_cpu,
                                 .n_threads = 2,
                                 .block_size = BLOCK,
                                 .max_batched_tokens = 96,
                                 .max_model_len = 128,
                                 .max_seqs = STREAMS,
                                 .no_prefix_cache = true,
                                 .swap_bytes = 64 << 20};
        struct gyre_error err;
        EXPECT_OK(gyre_open(&o, &g, &err), err);
        g->scheduler.always_swap = true;
        for (int i = 0; i < g->pool.n_groups; i++) // a cache that is full soon
            while (g->pool.groups[i].paged && g->pool.groups[i].window == 0 && g->pool.groups[i].blocks.n_free > 11)
                kv_pool_take_block(&g->pool, i);
        int32_t text[STREAMS][60], got[STREAMS][ANSWER];
        int n_got[STREAMS] = {0};
        for (intptr_t s = 0; s < STREAMS; s++) {
            struct gyre_request q = gyre_request_default(g);
            uint64_t id;
            for (int i = 0; i < 60; i++)
                text[s][i] =
                    (int32_t)(philox_uniform(test_seed(), (uint64_t)(100 * s + i), 77 + m) * gyre_info(g)->vocab_size);
            q.prompt = text[s], q.n_prompt = 60, q.max_tokens = ANSWER, q.ignore_eos = true, q.temperature = 0;
            q.user = (void *)s; // NOLINT: a number
            EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
        }
        while (gyre_busy(g)) {
            struct gyre_event e[8];
            for (int i = 0, n = gyre_poll(g, e, 8); i < n; i++)
                if (e[i].kind == GYRE_TOKEN)
                    got[(intptr_t)e[i].user][n_got[(intptr_t)e[i].user]++] = e[i].token;
        }
        EXPECT(g->scheduler.n_swapped > 0 && g->scheduler.n_swapped == g->scheduler.n_preempted);
        for (int s = 0; s < STREAMS; s++) {
            struct outcome want = answer(alone, text[s], 60);
            EXPECT(n_got[s] == ANSWER && memcmp(got[s], want.tokens, sizeof want.tokens) == 0);
        }
        gyre_close(alone);
        gyre_close(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reused_text_gives_the_tokens_that_computing_gives),
                                       cmocka_unit_test(what_was_swapped_out_comes_back_as_it_was)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
