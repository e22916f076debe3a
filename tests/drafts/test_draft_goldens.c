/* test_draft_goldens.c - trained drafts against their golden.json: logits of the first drafts, chains, and how many are
 * accepted in each step. The checkpoints are not in this repository, they are too large: GYRE_DRAFTS names a folder
 * with story-draft, story-eagle3 ..., each with config, weights and golden.json. Without it everything is skipped. Runs
 * on the backend of $GYRE_TEST_BACKEND, in float32. */
#include "op_rig.h"

#include "engine/draft/program_drafter.h"
#include "engine/engine.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

enum { MOST = 70, MOST_PROMPT = 400 };

static const double LOGIT_BOUND = 2e-3; // float32 sums in another order

struct pair {
    const char *draft, *target, *method;
};

/* The target's folder is in the draft's own where that holds both. */
static void open_pair(const struct pair *p, int k, struct gyre **g) {
    static char draft[256];
    struct gyre_options o = {.struct_size = sizeof o,
                             .backend = rig_backend(),
                             .n_threads = 1,
                             .dtype = "float32",
                             .max_model_len = 512,
                             .max_seqs = 4,
                             .max_batched_tokens = 256};
    struct gyre_error err;
    snprintf(draft, sizeof draft, "%s/%s", getenv("GYRE_DRAFTS"), p->draft);
    o.model = p->target ? p->target : draft;
    o.draft_model = p->target ? draft : NULL;
    o.draft_method = p->method;
    o.kv_cache_bytes = 32 << 20, o.block_size = 16, o.n_guesses = k, o.no_prefix_cache = true;
    EXPECT_OK(gyre_open(&o, g, &err), err);
    (*g)->drafter.is_fixed = (*g)->drafter.tells_logits = true;
}

static uint64_t submit(struct gyre *g, const json_t *golden) {
    const json_t *ids = json_object_get(golden, "prompt_ids");
    static int32_t prompt[MOST_PROMPT];
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    q.n_prompt = (int64_t)json_array_size(ids);
    EXPECT(q.n_prompt <= MOST_PROMPT);
    for (int64_t i = 0; i < q.n_prompt; i++)
        prompt[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    q.prompt = prompt, q.max_tokens = 80, q.ignore_eos = true, q.temperature = 0, q.repetition_penalty = 1;
    EXPECT_OK(gyre_submit(g, &q, &id, &err), err);
    return id;
}

static int32_t token_at(const json_t *golden, size_t i) {
    const json_t *greedy = json_object_get(golden, "greedy"), *beyond = json_object_get(golden, "greedy_beyond");
    size_t n = json_array_size(greedy);
    return (int32_t)json_integer_value(i < n ? json_array_get(greedy, i) : json_array_get(beyond, i - n));
}

/* Up to the first step that another order of sums may choose otherwise. */
static void check_chain(const struct request *r, const json_t *golden) {
    size_t at = (size_t)(r->sequence.n_known - r->n_prompt) - 1;
    const json_t *chain = json_array_get(json_object_get(golden, "chains"), at);
    const json_t *close = json_array_get(json_object_get(chain, "close"), 0);
    int n = close ? (int)json_integer_value(close) : r->draft.n;
    for (int i = 0; chain && i < MIN(n, r->draft.n); i++)
        EXPECT_EQ(r->draft.tokens[i], json_integer_value(json_array_get(json_object_get(chain, "tokens"), (size_t)i)));
}

static void check_logits(struct gyre *g, const struct request *r, const json_t *golden) {
    size_t at = (size_t)(r->sequence.n_known - r->n_prompt) - 1;
    const json_t *want = json_array_get(json_object_get(golden, "draft_logits"), at);
    const float *logits;
    struct error err;
    if (!want)
        return;
    int row;
    struct executable *exe = program_drafter_exe(g, &row);
    EXPECT_OK(g->ops->logits(exe, row, &logits, &err), err);
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!(fabs(logits[i] - json_real_value(json_array_get(want, i))) <= LOGIT_BOUND))
            fail_msg("logit %zu of draft %zu is %g, wanted %g", i, at, (double)logits[i],
                     json_real_value(json_array_get(want, i)));
}

/* A golden run: the text, and accepted drafts step by step. */
static void check_case(struct gyre *g, int k, const json_t *golden) {
    char key[8];
    snprintf(key, sizeof key, "%d", k);
    const json_t *accepted = json_object_get(json_object_get(json_object_get(golden, "verify"), key), "accepted");
    const struct request *r = request_table_find(&g->requests, submit(g, golden));
    struct gyre_event e[32];
    size_t n_made = 0, step = 0;
    while (gyre_busy(g)) {
        size_t before = n_made;
        for (int i = 0, n = gyre_poll(g, e, 32); i < n; i++)
            if (e[i].kind == GYRE_TOKEN && n_made < MOST)
                EXPECT_EQ(e[i].token, token_at(golden, n_made++));
        if (n_made == before)
            continue;
        if (before > 0 && step < json_array_size(accepted))
            EXPECT_EQ(n_made - before - 1, json_integer_value(json_array_get(accepted, step++)));
        if (n_made >= 64)
            break;
        check_chain(r, golden);
        if (k == 1)
            check_logits(g, r, golden);
    }
    EXPECT_EQ(step, json_array_size(accepted));
    gyre_cancel(g, r->id);
    while (gyre_busy(g))
        gyre_poll(g, e, 32);
}

static void check_pair(const struct pair *p) {
    char path[256];
    json_error_t error;
    struct gyre *g;
    if (!getenv("GYRE_DRAFTS"))
        skip();
    snprintf(path, sizeof path, "%s/%s/golden.json", getenv("GYRE_DRAFTS"), p->draft);
    json_t *golden = json_load_file(path, 0, &error), *one;
    size_t i;
    if (!golden)
        fail_msg("%s: %s", path, error.text);
    for (int k = 1; k <= (test_is_brief() ? 1 : 5); k += 2) {
        open_pair(p, k, &g);
        json_array_foreach(json_object_get(golden, "cases"), i, one) if (i == 0 || !test_is_brief())
            check_case(g, k, one);
        gyre_close(g);
    }
    json_decref(golden);
}

#define PAIR(name, ...)                                \
    static void name(void **state) {                   \
        (void)state;                                   \
        check_pair(&(const struct pair){__VA_ARGS__}); \
    }

PAIR(a_draft_model_guesses_as_its_golden, "story-draft", "models/story", "draft_model")

PAIR(eagle3_of_few_tokens_guesses_as_its_golden, "story-eagle3", "models/story", "eagle3")
PAIR(eagle3_of_all_tokens_guesses_as_its_golden, "qwen3-eagle3", "tests/models/qwen3", NULL)

PAIR(the_predictor_of_qwen3_5_guesses_as_its_golden, "qwen3_5-mtp", NULL, "mtp")
PAIR(the_predictor_of_deepseek_guesses_as_its_golden, "deepseek_v3-mtp", NULL, "mtp")

PAIR(a_block_draft_guesses_as_its_golden, "qwen3-dflash", "tests/models/qwen3", NULL)
PAIR(the_assistant_of_gemma4_guesses_as_its_golden, "gemma4-assistant", "tests/models/gemma4", NULL)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_model_guesses_as_its_golden),
        cmocka_unit_test(eagle3_of_few_tokens_guesses_as_its_golden),
        cmocka_unit_test(eagle3_of_all_tokens_guesses_as_its_golden),
        cmocka_unit_test(a_block_draft_guesses_as_its_golden),
        cmocka_unit_test(the_assistant_of_gemma4_guesses_as_its_golden),
        cmocka_unit_test(the_predictor_of_qwen3_5_guesses_as_its_golden),
        cmocka_unit_test(the_predictor_of_deepseek_guesses_as_its_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
