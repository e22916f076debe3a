/* test_ranks_engine.c - a model over several ranks behind the engine: prompts in chunks and in ragged steps, prefix
 * hits, requests that give way to others and come back, by recomputing and by swapping.
 *
 * Tokens are those of the reference where its two best logits are 0.01 or more apart; behind a nearer place texts may
 * part, since ranks sum in another order. Runs on the backend of $GYRE_TEST_BACKEND, in float32; on fewer cards than
 * ranks too. */
#include "check.h"
#include "op_rig.h"

#include "backend/ranks/ranks.h"
#include "base/json/json.h"
#include "engine/inspect.h"
#include "gyre.h"

#include <math.h>
#include <pthread.h>

enum { MAX_PROMPT = 600, N_GREEDY = 24, MAX_CASES = 8 };

struct text {
    const json_t *golden;
    int32_t prompt[MAX_PROMPT], got[N_GREEDY];
    int n_prompt, n_got, n_done;
    int64_t n_reused;
};

struct model_case {
    const char *folder;
    json_t *json;
    struct text texts[MAX_CASES];
    int n;
};

/* name: below tests/models, or whole. */
static void case_open(struct model_case *c, const char *name) {
    static char folder[100];
    char path[200];
    struct error err;
    snprintf(folder, sizeof folder, "%s%s", strchr(name, '/') ? "" : "tests/models/", name);
    snprintf(path, sizeof path, "%s/golden.json", folder);
    *c = (struct model_case){.folder = folder};
    EXPECT_OK(jv_load(path, 1 << 24, 0, &c->json, &err), err);
    const json_t *cases = json_object_get(c->json, "cases");
    c->n = (int)json_array_size(cases);
    EXPECT(c->n > 0 && c->n <= MAX_CASES);
    for (int i = 0; i < c->n; i++) {
        struct text *t = &c->texts[i];
        t->golden = json_array_get(cases, (size_t)i);
        const json_t *ids = json_object_get(t->golden, "ids");
        t->n_prompt = (int)json_array_size(ids);
        EXPECT(t->n_prompt <= MAX_PROMPT);
        for (int k = 0; k < t->n_prompt; k++)
            t->prompt[k] = (int32_t)json_integer_value(json_array_get(ids, (size_t)k));
    }
}

/* How a model is spread. */
struct spread {
    int n_ranks;
    bool by_expert;
};
static const struct spread alone = {1, false}, two = {2, false}, experts_apart = {2, true};

static struct gyre *open_ranks(const char *folder, struct gyre_options o, struct spread s) {
    struct gyre *g;
    struct gyre_error e;
    struct error err;
    static const char *const own[] = {"share-cards=1", "patience=600", NULL};
    o.backend = rig_backend();
    if (s.n_ranks > 1)
        EXPECT_OK(backend_ranks(rig_backend(), s.n_ranks, s.by_expert, &o.backend, &err), err);
    if (rig_backend() != &backend_cpu)
        o.device_options = own, o.dtype = o.dtype ? o.dtype : "float32";
    o.model = folder;
    o.n_threads = s.n_ranks;
    o.kv_cache_bytes = o.kv_cache_bytes ? o.kv_cache_bytes : 64 << 20;
    if (gyre_open(&o, &g, &e) != 0)
        fail_msg("%s: %s", folder, e.text);
    return g;
}

static void submit(struct gyre *g, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    struct gyre_error err;
    uint64_t id;
    t->n_got = t->n_done = 0;
    q.prompt = t->prompt, q.n_prompt = t->n_prompt, q.max_tokens = N_GREEDY;
    q.temperature = 0, q.repetition_penalty = 1, q.ignore_eos = true, q.user = t;
    if (gyre_submit(g, &q, &id, &err) != 0)
        fail_msg("%s", err.text);
}

static void finish(struct gyre *g) {
    while (gyre_busy(g)) {
        struct gyre_event events[16];
        int n = gyre_poll(g, events, 16);
        for (int i = 0; i < n; i++) {
            struct text *t = events[i].user;
            if (events[i].kind == GYRE_TOKEN)
                t->got[t->n_got++] = events[i].token;
            if (events[i].kind != GYRE_DONE)
                continue;
            EXPECT_EQ(events[i].finish, GYRE_LENGTH);
            t->n_done++;
            t->n_reused = events[i].timing.n_reused;
        }
    }
}

static void expect_golden(const struct model_case *c, const char *how) {
    for (int i = 0; i < c->n; i++) {
        const struct text *t = &c->texts[i];
        EXPECT(t->n_done == 1 && t->n_got == N_GREEDY);
        for (int k = 0; k < N_GREEDY; k++) {
            const json_t *margin = json_array_get(json_object_get(t->golden, "greedy_margin"), (size_t)k);
            if (json_number_value(margin) < 0.01)
                break;
            if (t->got[k] != json_integer_value(json_array_get(json_object_get(t->golden, "greedy"), (size_t)k)))
                fail_msg("%s, %s: token %d of text %d differs", c->folder, how, k, i);
        }
    }
}

static void all_at_once(struct model_case *c, struct gyre_options o, struct spread s, const char *how) {
    struct gyre *g = open_ranks(c->folder, o, s);
    for (int i = 0; i < c->n; i++)
        submit(g, &c->texts[i]);
    finish(g);
    expect_golden(c, how);
    gyre_close(g);
}

static const char *const models[] = {"llama", "gemma3", "gpt_oss", "deepseek_v3", "qwen3_5_moe", "diffllama"};

/* Kernels that run from PTX take their time. */
static bool is_slow(void) { return test_is_brief() && rig_backend() != &backend_cpu; }

static void ranks_give_the_tokens_of_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < (is_slow() ? 2 : ARRAY_LEN(models)); i++) {
        static struct model_case c;
        if (test_is_brief() && (i + test_seed()) % 3 != 0)
            continue;
        case_open(&c, models[i]);
        if (is_slow()) {
            c.n = 3;
            all_at_once(&c, (struct gyre_options){.max_batched_tokens = 64}, two, "in one step");
            json_decref(c.json);
            continue;
        }
        all_at_once(&c, (struct gyre_options){.max_batched_tokens = 1024}, two, "in one step");
        all_at_once(&c, (struct gyre_options){.max_batched_tokens = 23, .max_seqs = 4, .block_size = 8}, two,
                    "in steps of 23");
        json_decref(c.json);
    }
}

static const char *const mixtures[] = {"qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen3_5_moe"};

static void ranks_with_whole_experts_give_the_tokens_of_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(mixtures); i++) {
        static struct model_case c;
        if (!rig_takes_case())
            continue;
        case_open(&c, mixtures[i]);
        c.n = is_slow() ? 2 : c.n;
        all_at_once(&c, (struct gyre_options){.max_batched_tokens = is_slow() ? 64 : 1024}, experts_apart,
                    "experts apart");
        json_decref(c.json);
    }
}

/* A cache of two texts at most; the longest prompts left out, so that six want it at once. */
static void requests_give_way_and_come_back(void **state) {
    (void)state;
    if (is_slow())
        skip();
    for (int swaps = 0; swaps < 2; swaps++) {
        static struct model_case c;
        case_open(&c, "llama");
        c.n--; // the last is of 503 tokens
        int64_t token_bytes = 3 * 2 * 2 * 64 * (int64_t)sizeof(float);
        struct gyre_options o = {.block_size = 8,
                                 .kv_cache_bytes = 96 * token_bytes,
                                 .max_model_len = 64,
                                 .swap_bytes = swaps ? 64 << 20 : 0};
        struct gyre *g = open_ranks(c.folder, o, two);
        for (int i = 0; i < c.n; i++)
            submit(g, &c.texts[i]);
        finish(g);
        expect_golden(&c, swaps ? "swapped" : "computed again");
        EXPECT(engine_steps(g).n_preempted > 0);
        gyre_close(g);
        json_decref(c.json);
    }
}

static void a_prompt_that_was_there_is_not_computed_again(void **state) {
    (void)state;
    if (is_slow())
        skip();
    static const char *const some[] = {"llama", "deepseek_v3", "qwen3_5"};
    for (size_t i = 0; i < ARRAY_LEN(some); i++) {
        static struct model_case c;
        case_open(&c, some[i]);
        struct gyre *g = open_ranks(c.folder, (struct gyre_options){.block_size = 8}, two);
        struct text *longest = &c.texts[c.n - 1];
        c.texts[0] = *longest;
        c.n = 1;
        for (int again = 0; again < 2; again++) {
            submit(g, &c.texts[0]);
            finish(g);
            expect_golden(&c, again ? "again" : "at first");
            EXPECT(again ? c.texts[0].n_reused > 0 : c.texts[0].n_reused == 0);
        }
        gyre_close(g);
        json_decref(c.json);
    }
}

/* The last logits of each prompt, [n][vocab]. */
static float *last_logits(struct model_case *c, struct gyre_options o, struct spread s, size_t *n_vocab) {
    struct gyre *g = open_ranks(c->folder, o, s);
    size_t vocab = *n_vocab = (size_t)gyre_info(g)->vocab_size;
    float *logits = calloc((size_t)c->n * vocab, sizeof *logits);
    EXPECT(logits);
    for (int i = 0; i < c->n; i++) {
        struct gyre_request q = gyre_request_default(g);
        struct gyre_error err;
        uint64_t id;
        q.prompt = c->texts[i].prompt, q.n_prompt = c->texts[i].n_prompt, q.max_tokens = 3;
        q.temperature = 0, q.ignore_eos = true, q.score_prompt = true, q.want_last_logits = true;
        q.user = logits + (size_t)i * vocab;
        if (gyre_submit(g, &q, &id, &err) != 0)
            fail_msg("%s", err.text);
    }
    while (gyre_busy(g)) {
        struct gyre_event events[64];
        for (int i = 0, n = gyre_poll(g, events, 64); i < n; i++) {
            EXPECT(!events[i].error);
            if (events[i].kind == GYRE_PROMPT && events[i].logits)
                memcpy(events[i].user, events[i].logits, vocab * sizeof *logits);
        }
    }
    gyre_close(g);
    return logits;
}

/* By how much logits of 16 bits and less are off those of float32, squared and summed: on ranks not more than twice as
 * much as on one. */
static void expect_as_near_as_one(const char *name, const char *quantization, int n_texts, struct spread s) {
    static struct model_case c;
    size_t vocab;
    case_open(&c, name);
    c.n = MIN(c.n, n_texts);
    struct gyre_options o = {.max_batched_tokens = 64, .quantization = quantization, .dtype = "float16"};
    float *one = last_logits(&c, o, alone, &vocab), *apart = last_logits(&c, o, s, &vocab);
    o.quantization = NULL, o.dtype = "float32";
    float *wide = last_logits(&c, o, alone, &vocab);
    double off_one = 0, off_apart = 0;
    for (size_t k = 0; k < (size_t)c.n * vocab; k++)
        off_one += pow(one[k] - wide[k], 2), off_apart += pow(apart[k] - wide[k], 2);
    if (!(off_one > 0 && off_apart > 0 && off_apart < 2 * off_one))
        fail_msg("%s, %s: off by %g on one, %g on ranks", name, quantization, off_one, off_apart);
    json_decref(c.json);
    free(one), free(apart), free(wide);
}

/* Products of e4m3: matrices whose columns are cut have a scale a row of each share, none coarser than the whole's, so
 * logits are off by what e4m3 leaves and no more. */
static void eight_bits_on_ranks_are_near_those_of_one(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    expect_as_near_as_one("llama", "fp8", 3, two);
}

/* Of e4m3, 16 bits, and MXFP4 of three experts. Experts of NVFP4 and INT4 are in test_ops_moe.c. Of the others e4m3
 * changes what tokens are sent to, and logits by more than that, over ranks of either kind. */
static void whole_experts_on_ranks_are_near_those_of_one(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    static const struct {
        const char *name, *quantization;
    } cases[] = {{"qwen3_moe", "fp8"},  {"mixtral", "fp8"},    {"gpt_oss", NULL},
                 {"deepseek_v3", NULL}, {"qwen3_5_moe", NULL}, {"tests/models_random/gpt_oss_mxfp4", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (rig_takes_case())
            expect_as_near_as_one(cases[i].name, cases[i].quantization, is_slow() ? 2 : 3, experts_apart);
}

/* No stack is that large, so no thread can be started. */
static void ranks_without_threads_are_refused(void **state) {
    (void)state;
    const struct backend_ops *ops;
    struct device *device;
    struct error err;
    pthread_attr_t usual, huge;
    pthread_getattr_default_np(&usual);
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, (size_t)1 << 50);
    EXPECT(pthread_setattr_default_np(&huge) == 0);
    EXPECT_OK(backend_ranks(&backend_cpu, 2, false, &ops, &err), err);
    enum status st = ops->open(&(struct device_options){0}, &device, &err);
    pthread_setattr_default_np(&usual);
    pthread_attr_destroy(&huge);
    pthread_attr_destroy(&usual);
    EXPECT(st == ERR_MEMORY && !device && strstr(err.text, "thread"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_tokens_of_the_reference),
        cmocka_unit_test(requests_give_way_and_come_back),
        cmocka_unit_test(ranks_with_whole_experts_give_the_tokens_of_the_reference),
        cmocka_unit_test(eight_bits_on_ranks_are_near_those_of_one),
        cmocka_unit_test(whole_experts_on_ranks_are_near_those_of_one),
        cmocka_unit_test(ranks_without_threads_are_refused),
        cmocka_unit_test(a_prompt_that_was_there_is_not_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
