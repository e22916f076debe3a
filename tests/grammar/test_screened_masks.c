/* test_screened_masks.c - greedy answers of grammars beside others without, on trained models: on the backend of
 * $GYRE_TEST_BACKEND with a screened head, where it has one, the tokens are those without, and of most answers those of
 * the CPU in float32. Steps that wait for masks are screened too. */
#include "letters.h"
#include "op_rig.h"
#include "reports.h"

#include "base/random.h"
#include "engine/engine.h"

#include <stdlib.h>

enum { LONGEST = 40, REQUESTS = 5 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 23) * n); }

struct answer_seen {
    int32_t tokens[LONGEST];
    int n;
};

struct load {
    const char *model;
    struct gyre_request requests[REQUESTS];
    int32_t prompts[REQUESTS][8];
};

/* screen: GYRE_ARGMAX_FILTER. Returns how many steps were screened. */
static int64_t run(const struct load *l, const struct backend_ops *of, const char *screen, struct answer_seen *out) {
    struct backend_ops ops = *of;
    bool cpu = of == &backend_cpu;
    ops.max_in_flight = 2;
    struct gyre_options o = {.model = l->model,
                             .backend = &ops,
                             .n_threads = 1,
                             .dtype = cpu ? "float32" : "float16",
                             .kv_cache_bytes = 16 << 20,
                             .max_model_len = 64,
                             .max_seqs = REQUESTS,
                             .block_size = 8};
    struct gyre *g;
    struct gyre_error err;
    setenv("GYRE_ARGMAX_FILTER", screen, 1);
    memset(out, 0, REQUESTS * sizeof *out);
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    for (int i = 0; i < REQUESTS; i++) {
        struct gyre_request q = l->requests[i];
        uint64_t id;
        q.user = &out[i];
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int k = 0, n = gyre_poll(g, e, 16); k < n; k++) {
            struct answer_seen *a = e[k].user;
            EXPECT(e[k].kind == GYRE_TOKEN || e[k].finish != GYRE_FAILED);
            if (e[k].kind == GYRE_TOKEN)
                a->tokens[a->n++] = e[k].token;
        }
    }
    EXPECT(g->n_late_steps > 0);
    int64_t n_screened = cpu ? 0 : report_of(&ops, g->exe, "screened_steps_total");
    int64_t n_left = cpu ? 0 : report_of(&ops, g->exe, "screened_steps_left_total");
    gyre_close(g);
    return n_screened - n_left;
}

static bool is_same(const struct answer_seen *a, const struct answer_seen *b) {
    return a->n == b->n && memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens) == 0;
}

static void tokens_of_masks_are_those_of_all_logits(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "qwen2", "qwen3", "mistral"};
    static const char *const grammars[] = {"[a-z]*", "([a-d]{2}acegikmoq[u-z]){6}", "[xyz]*", "([a-c][k-z]{3})*", NULL};
    int n_like_cpu = 0, n_all = 0, shortest = rig_is_brief() ? 6 : 12;
    for (size_t m = (size_t)below(rig_is_brief() ? 4 : 2); m < ARRAY_LEN(models); m += rig_is_brief() ? 4 : 2) {
        char path[100];
        snprintf(path, sizeof path, "tests/models/%s", models[m]);
        struct load l = {.model = path};
        struct gyre_options o = {.model = path, .backend = rig_backend(), .n_threads = 1, .max_model_len = 32};
        struct gyre *g;
        struct gyre_error err;
        EXPECT_OK(gyre_open(&o, &g, &err), err);
        int n_vocab = gyre_info(g)->vocab_size;
        struct token_trie *letters = letters_open(n_vocab, false);
        struct gyre_grammar of[REQUESTS];
        for (int i = 0; i < REQUESTS; i++) {
            struct gyre_request *q = &l.requests[i];
            *q = gyre_request_default(g);
            for (int k = 0; k < 8; k++)
                l.prompts[i][k] = below(n_vocab);
            q->prompt = l.prompts[i], q->n_prompt = 1 + below(8),
            q->max_tokens = shortest + below(rig_is_brief() ? 6 : LONGEST - shortest);
            q->temperature = 0;
            if (grammars[i])
                of[i] = letters_grammar(letters, grammars[i], NULL), q->grammar = &of[i];
        }
        gyre_close(g);
        struct answer_seen with[REQUESTS], without[REQUESTS], cpu[REQUESTS];
        int64_t n_screened = run(&l, rig_backend(), "500", with);
        EXPECT_EQ(run(&l, rig_backend(), "0", without), 0);
        run(&l, &backend_cpu, "0", cpu);
        printf("%s: %lld steps were screened\n", path, (long long)n_screened);
        EXPECT(rig_backend() == &backend_cpu || n_screened >= shortest);
        for (int i = 0; i < REQUESTS; i++) {
            if (!is_same(&with[i], &without[i]))
                fail_msg("%s, %s: other tokens where the head is screened", path, grammars[i] ? grammars[i] : "any");
            n_like_cpu += is_same(&with[i], &cpu[i]);
            n_all++;
            if (grammars[i])
                grammar_release(of[i].grammar);
        }
        token_trie_free(letters);
    }
    printf("%d of %d answers are the CPU's\n", n_like_cpu, n_all);
    EXPECT(2 * n_like_cpu > n_all); // in float16 two logits may change places, and then all that follows
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_of_masks_are_those_of_all_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
