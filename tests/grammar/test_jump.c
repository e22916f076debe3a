/* test_jump.c - jump-forward on real models, greedy: the same tokens with it as without, up to the first place where
 * the model by itself would have cut what must come otherwise than the tokenizer does. Prints how often it does. Runs
 * on the backend of $GYRE_TEST_BACKEND, in float32. */
#include "letters.h"
#include "op_rig.h"

#include "base/random.h"
#include "engine/engine.h"

enum { LONGEST = 120, TRIALS = 6 };

static uint64_t counter;
static int below(int n) { return (int)(philox_uniform(test_seed(), counter++, 9) * n); }

struct answer_seen {
    int32_t tokens[LONGEST];
    int n;
    bool is_forced[LONGEST]; // put in, or drawn where nothing else could come
    int n_forced;
};

/* Counts from the prompt's end; one helper works at a time. */
struct watched {
    struct answer_seen *answer;
    int n_prompt;
};

static int split_watched(void *context, const int32_t *before, int n_before, struct str text, int32_t *out, int max) {
    struct watched *w = context;
    int n = letters_split(NULL, before, n_before, text, out, max);
    for (int i = 0; i < n && n_before - w->n_prompt + i < LONGEST; i++)
        w->answer->is_forced[n_before - w->n_prompt + i] = true;
    return n;
}

static void run(const char *model, struct gyre_grammar grammar, struct gyre_request q, bool jumps,
                struct answer_seen *out) {
    struct backend_ops ops = *rig_backend();
    ops.max_in_flight = 2;
    struct gyre_options o = {.model = model,
                             .backend = &ops,
                             .n_threads = 1,
                             .dtype = "float32",
                             .kv_cache_bytes = 16 << 20,
                             .max_model_len = 192,
                             .max_seqs = 2,
                             .block_size = 8};
    struct watched watched = {out, (int)q.n_prompt};
    struct gyre *g;
    struct gyre_error err;
    uint64_t id;
    *out = (struct answer_seen){0};
    grammar.split = jumps ? split_watched : NULL;
    grammar.split_context = &watched;
    q.grammar = &grammar;
    EXPECT_OK(gyre_open(&o, &g, &err), err);
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    while (gyre_busy(g)) {
        struct gyre_event e[16];
        for (int k = 0, n = gyre_poll(g, e, 16); k < n; k++)
            if (e[k].kind == GYRE_TOKEN)
                out->tokens[out->n++] = e[k].token;
    }
    out->n_forced = (int)g->n_forced_tokens;
    gyre_close(g);
}

/* Returns whether the model cut all of it as the tokenizer does. */
static bool expect_same_to_there(const char *model, const struct answer_seen *with, const struct answer_seen *without) {
    for (int i = 0; i < with->n && i < without->n; i++) {
        if (with->tokens[i] == without->tokens[i])
            continue;
        if (!with->is_forced[i])
            fail_msg("%s: token %d is %d with jumps, %d without, and was not forced", model, i, with->tokens[i],
                     without->tokens[i]);
        return false;
    }
    EXPECT_EQ(with->n, without->n);
    return true;
}

static void jumps_change_nothing_but_how_a_text_is_cut(void **state) {
    (void)state;
    static const char *const models[] = {"llama",  "mistral", "qwen2",   "qwen3",   "gemma2",      "gemma3",
                                         "gemma4", "mixtral", "gpt_oss", "qwen3_5", "deepseek_v3", "diffllama"};
    static const char *const grammars[] = {"([a-d]{2}acegikmoq[u-z]){6}", "(acacacacacac[a-c]|bdbdbdbdbdbd[b-d]){8}",
                                           "([x-z]abcegikghmoqst[m-o]){5}"};
    int n_same = 0, n_all = 0, n_forced = 0;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        char path[100];
        snprintf(path, sizeof path, "tests/models/%s", models[m]);
        struct gyre_options o = {.model = path, .backend = rig_backend(), .n_threads = 1, .max_model_len = 32};
        struct gyre *g;
        struct gyre_error err;
        EXPECT_OK(gyre_open(&o, &g, &err), err);
        int n_vocab = gyre_info(g)->vocab_size;
        struct gyre_request q = gyre_request_default(g);
        gyre_close(g);
        struct token_trie *letters = letters_open(n_vocab, false);
        for (int trial = 0; trial < (rig_is_brief() ? 1 : TRIALS); trial++) {
            struct gyre_grammar grammar = letters_grammar(letters, grammars[trial % 3], NULL);
            struct answer_seen with, without;
            int32_t prompt[8];
            for (int i = 0; i < 8; i++)
                prompt[i] = below(n_vocab);
            q.prompt = prompt, q.n_prompt = 1 + below(8), q.max_tokens = LONGEST - 1, q.temperature = 0;
            run(path, grammar, q, true, &with);
            run(path, grammar, q, false, &without);
            EXPECT(without.n_forced == 0);
            n_forced += with.n_forced;
            n_same += expect_same_to_there(path, &with, &without);
            n_all++;
            grammar_release(grammar.grammar);
        }
        token_trie_free(letters);
    }
    printf("%d of %d texts are the same in every token; %d tokens were forced\n", n_same, n_all, n_forced);
    EXPECT(n_forced > 10 * n_all && n_same > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(jumps_change_nothing_but_how_a_text_is_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
