/* test_overlap.c - real models with two steps in flight: the same tokens as one step at a time. The CPU computes a step
 * when it is started, so a second one in flight reads the tokens of the first before the engine knows them, as a GPU's
 * does, and rows with grammars make steps late. Runs on the backend of $GYRE_TEST_BACKEND, in float32.
 *
 * Which rows share a step differs, and with it the order of some sums: log-probabilities agree to 1e-4. */
#include "letters.h"
#include "op_rig.h"

#include "base/random.h"
#include "engine/engine.h"

#include <math.h>

enum { MOST = 7, LONGEST = 60 };

struct answer_seen {
    int32_t tokens[LONGEST];
    float logprobs[LONGEST];
    int n;
    enum gyre_finish finish;
};

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 3) * n); }

/* All that a draw may depend on: penalties look at the token that is only expected, and so does a grammar. */
static void some_request(const struct gyre *g, const struct gyre_grammar *grammar, struct gyre_request *q,
                         int32_t *prompt, int i) {
    *q = gyre_request_default(g);
    q->prompt = prompt, q->n_prompt = 1 + below(30);
    for (int k = 0; k < q->n_prompt; k++)
        prompt[k] = below(gyre_info(g)->vocab_size);
    q->max_tokens = 2 + below(LONGEST - 32);
    q->temperature = i % 3 == 0 ? 0 : 0.9f;
    q->seed = (uint64_t)below(100);
    q->logprobs = i % 2;
    if (i % 3 != 1)
        q->repetition_penalty = 1.4f, q->presence_penalty = 0.7f, q->frequency_penalty = 0.5f;
    q->min_tokens = i % 4 == 3 ? q->max_tokens / 2 : 0;
    q->grammar = i % 5 < 2 ? grammar : NULL;
}

static void run_all(const char *model, int depth, const struct gyre_request *asked, int n, struct answer_seen *out) {
    struct backend_ops ops = *rig_backend();
    ops.max_in_flight = depth;
    struct gyre_options o = {.model = model,
                             .backend = &ops,
                             .n_threads = 1,
                             .dtype = "float32",
                             .kv_cache_bytes = 16 << 20,
                             .max_model_len = 128,
                             .max_batched_tokens = 24,
                             .max_seqs = 4,
                             .block_size = 8};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    for (int i = 0; i < n; i++) {
        struct gyre_request q = asked[i];
        uint64_t id;
        q.user = &out[i];
        EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    }
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int k = 0, got = gyre_poll(g, e, 16); k < got; k++) {
            struct answer_seen *a = e[k].user;
            if (e[k].kind == GYRE_TOKEN) {
                a->logprobs[a->n] = e[k].logprob;
                a->tokens[a->n++] = e[k].token;
            } else {
                a->finish = e[k].finish;
            }
        }
    }
    gyre_close(g);
}

static void expect_same_at_both_depths(const char *model) {
    static struct gyre_request asked[MOST];
    static int32_t prompts[MOST][LONGEST];
    static struct answer_seen one[MOST], two[MOST];
    memset(one, 0, sizeof one);
    memset(two, 0, sizeof two);
    struct gyre_options o = {.model = model,
                             .backend = rig_backend(),
                             .n_threads = 1,
                             .dtype = "float32",
                             .kv_cache_bytes = 16 << 20,
                             .max_model_len = 64};
    struct gyre *g;
    struct gyre_error err;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    struct token_trie *letters = letters_open(gyre_info(g)->vocab_size, false);
    struct gyre_grammar grammar = letters_grammar(letters, "([a-m]{2,4}[n-z]?)*", NULL);
    for (int i = 0; i < MOST; i++)
        some_request(g, &grammar, &asked[i], prompts[i], i);
    gyre_close(g);
    run_all(model, 1, asked, MOST, one);
    run_all(model, 2, asked, MOST, two);
    for (int i = 0; i < MOST; i++) {
        EXPECT(one[i].n > 0);
        EXPECT(one[i].n == two[i].n && one[i].finish == two[i].finish);
        for (int k = 0; k < one[i].n; k++)
            if (one[i].tokens[k] != two[i].tokens[k] ||
                (asked[i].logprobs && fabsf(one[i].logprobs[k] - two[i].logprobs[k]) > 1e-4f))
                fail_msg("%s, request %d: token %d is %d (%g) with overlap, %d (%g) without", model, i, k,
                         two[i].tokens[k], (double)two[i].logprobs[k], one[i].tokens[k], (double)one[i].logprobs[k]);
    }
    grammar_release(grammar.grammar);
    token_trie_free(letters);
}

static void overlapping_steps_change_no_token(void **state) {
    (void)state;
    expect_same_at_both_depths("models/story");
    expect_same_at_both_depths("tests/models/gemma4");  // windows
    expect_same_at_both_depths("tests/models/qwen3_5"); // recurrent state
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(overlapping_steps_change_no_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
