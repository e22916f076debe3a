/* test_device.c - a device's engine against the CPU's on whole models: what captured graphs, long decoding, full
 * batches and eight-bit weights and caches do to tokens. On the CPU alone (no GYRE_TEST_BACKEND) the claims are about
 * itself, and cheap.
 *
 * Texts are drawn by the models themselves at temperature 1, so that they are neither loops nor noise.
 *
 * Bounds: a log-probability is off by at most rounding() from float32's, as test_goldens has it. So two engines that
 * round are up to twice that apart, and their most probable tokens are the same wherever the two best of one are more
 * than four times that apart; against the CPU, which is exact, twice. What does not change the shape of a step changes
 * no bit. */
#include "check.h"
#include "op_rig.h"
#include "reports.h"

#include "engine/engine.h"
#include "gyre.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TOKENS = 4400, N_PROMPT = 12 };

/* Of a log-probability; bfloat16 was seen to reach 0.099. */
static double rounding(void) {
    const char *dtype = getenv("GYRE_TEST_DTYPE");
    if (rig_backend() == &backend_cpu || (dtype && strcmp(dtype, "float32") == 0))
        return 1e-3;
    return dtype && strcmp(dtype, "bfloat16") == 0 ? 0.12 : 0.03;
}

/* A sequence, and what an engine said about it. */
struct text {
    int32_t tokens[MOST_TOKENS], best[MOST_TOKENS];  // best[i]: the most probable token after tokens[0 .. i-1]
    float logprob[MOST_TOKENS], margin[MOST_TOKENS]; // of tokens[i]; of best[i] over the next best
    int n;
};

static const char *const eager_option[] = {"eager=1", NULL};

static struct gyre *open_model(const char *folder, const struct backend_ops *ops, struct gyre_options options) {
    struct gyre *g;
    struct gyre_error err;
    options.model = folder;
    options.backend = ops;
    if (ops != &backend_cpu && !options.dtype)
        options.dtype = getenv("GYRE_TEST_DTYPE");
    options.n_threads = 1;
    options.max_seqs = options.max_seqs ? options.max_seqs : 8;
    options.no_prefix_cache = true;
    if (gyre_open(&options, &g, &err) != 0)
        fail_msg("%s: %s", folder, err.text);
    return g;
}

static void take_event(const struct gyre_event *e) {
    struct text *t = e->user;
    if (e->kind == GYRE_TOKEN) {
        t->tokens[e->position] = e->token;
        t->logprob[e->position] = e->logprob;
        t->best[e->position] = e->n_top ? e->top_tokens[0] : -1;
        t->n = (int)e->position + 1;
    } else if (e->kind == GYRE_PROMPT && e->position + 1 < MOST_TOKENS) {
        t->best[e->position + 1] = e->token;
        t->logprob[e->position + 1] = e->logprob;
        t->margin[e->position + 1] = e->n_top > 1 ? e->top_logprobs[0] - e->top_logprobs[1] : 0;
    } else if (e->error) {
        fail_msg("%s", e->error);
    }
}

static void finish(struct gyre *g) {
    struct gyre_event events[64];
    while (gyre_busy(g)) {
        int n = gyre_poll(g, events, 64);
        for (int i = 0; i < n; i++)
            take_event(&events[i]);
    }
}

static void submit(struct gyre *g, const struct gyre_request *q) {
    uint64_t id;
    struct gyre_error err;
    EXPECT_OK(gyre_submit(g, q, &id, &err), err);
}

/* The text goes on to n tokens, with the most probable token at each place. */
static void submit_writing(struct gyre *g, struct text *t, int n_prompt, int n, float temperature, uint64_t seed) {
    struct gyre_request q = gyre_request_default(g);
    q.prompt = t->tokens, q.n_prompt = n_prompt, q.max_tokens = n - n_prompt;
    q.temperature = temperature, q.top_k = 0, q.top_p = 1, q.min_p = 0, q.repetition_penalty = 1, q.seed = seed;
    q.ignore_eos = q.logprobs = true, q.n_top_logprobs = 1, q.user = t;
    submit(g, &q);
}

static void random_prompt(const struct gyre *g, struct text *t, uint64_t which) {
    for (int i = 0; i < N_PROMPT; i++)
        t->tokens[i] =
            (int32_t)(test_seed() * 2654435761u + which * 40503u + (uint64_t)i * 1013u) % gyre_info(g)->vocab_size;
    for (int i = 0; i < N_PROMPT; i++)
        t->tokens[i] = t->tokens[i] < 0 ? -t->tokens[i] : t->tokens[i];
    t->n = N_PROMPT;
}

/* What the engine says of every token of a text that is there. */
static void score(struct gyre *g, struct text *t) {
    struct gyre_request q = gyre_request_default(g);
    q.prompt = t->tokens, q.n_prompt = t->n, q.max_tokens = 0, q.score_prompt = true, q.n_prompt_top_logprobs = 2,
    q.user = t;
    submit(g, &q);
    finish(g);
}

static double mean_loss(const struct text *t) {
    double sum = 0;
    for (int i = 1; i < t->n; i++)
        sum -= (double)t->logprob[i];
    return sum / (t->n - 1);
}

static const char *const dense[] = {"tests/models/llama", "tests/models/mistral", "tests/models/qwen2",
                                    "tests/models/qwen3", "tests/models/gemma2",  "tests/models/gemma3",
                                    "tests/models/gemma4"};

static int n_prompt_of(int i) { return 1 + i % N_PROMPT; }

// ---- graphs -----------------------------------------------------------------------------------------------------

static void write_five(struct gyre *g, struct text *texts) {
    for (int i = 0; i < 5; i++) {
        random_prompt(g, &texts[i], (uint64_t)i);
        submit_writing(g, &texts[i], N_PROMPT - i, 70 - 9 * i, i % 2 ? 1.0f : 0, 5);
    }
    finish(g);
}

static void captured_steps_equal_steps_that_are_not_bit_for_bit(void **state) {
    static struct text eager[5], replayed[5];
    (void)state;
    if (rig_backend() == &backend_cpu) // which has no graphs
        skip();
    for (size_t m = 0; m < ARRAY_LEN(dense); m++) {
        struct gyre *a = open_model(dense[m], rig_backend(), (struct gyre_options){.device_options = eager_option});
        struct gyre *b = open_model(dense[m], rig_backend(), (struct gyre_options){0});
        write_five(a, eager);
        write_five(b, replayed);
        for (int i = 0; i < 5; i++) {
            EXPECT_EQ(eager[i].n, replayed[i].n);
            if (memcmp(eager[i].tokens, replayed[i].tokens, (size_t)eager[i].n * sizeof(int32_t)) != 0 ||
                memcmp(eager[i].logprob, replayed[i].logprob, (size_t)eager[i].n * sizeof(float)) != 0)
                fail_msg("%s: sequence %d differs", dense[m], i);
        }
        gyre_close(a);
        gyre_close(b);
    }
}

// ---- a screened head --------------------------------------------------------------------------------------------

static const char *const trained[] = {
    "tests/models/llama",     "tests/models/mistral",     "tests/models/qwen2",   "tests/models/qwen3",
    "tests/models/gemma2",    "tests/models/gemma3",      "tests/models/gemma4",  "tests/models/mixtral",
    "tests/models/diffllama", "tests/models/deepseek_v3", "tests/models/qwen3_5", "tests/models/gpt_oss",
    "tests/models/qwen3_moe", "tests/models/qwen3_5_moe",
};

enum { N_GREEDY = 21, GREEDY = 400 };

/* Greedy ones of all lengths; beside them, at the beginning, one that is drawn, one that is penalised and one that is
 * scored. */
static void write_greedy(struct gyre *g, struct text *texts) {
    for (int i = 0; i < N_GREEDY; i++) {
        random_prompt(g, &texts[i], 40 + (uint64_t)i);
        struct gyre_request q = gyre_request_default(g);
        int n_prompt = n_prompt_of(i), n = i < 3 ? 60 + i : GREEDY - 17 * i;
        q.prompt = texts[i].tokens, q.n_prompt = n_prompt, q.max_tokens = n - n_prompt, q.ignore_eos = true,
        q.user = &texts[i];
        q.temperature = i == 0 ? 0.8f : 0, q.top_k = 0, q.top_p = 1, q.min_p = 0, q.seed = 3;
        q.repetition_penalty = i == 1 ? 1.3f : 1;
        q.logprobs = i == 2;
        submit(g, &q);
    }
    finish(g);
}

/* screen: GYRE_ARGMAX_FILTER (backend/cuda/head/argmax_filter.c). */
static void write_screened(const char *folder, const char *screen, const char *dtype, bool eager, struct text *texts) {
    setenv("GYRE_ARGMAX_FILTER", screen, 1);
    struct gyre *g = open_model(
        folder, rig_backend(),
        (struct gyre_options){.max_seqs = 32, .dtype = dtype, .device_options = eager ? eager_option : NULL});
    EXPECT_EQ(report_of(g->ops, g->exe, "head_screen_bytes") > 0, strcmp(screen, "0") != 0); // or nothing is compared
    write_greedy(g, texts);
    gyre_close(g);
    unsetenv("GYRE_ARGMAX_FILTER");
}

static void expect_the_same(const char *folder, const char *dtype, const char *screen, bool eager) {
    static struct text all[N_GREEDY], some[N_GREEDY];
    write_screened(folder, "0", dtype, false, all);
    write_screened(folder, screen, dtype, eager, some);
    for (int i = 0; i < N_GREEDY; i++) {
        EXPECT_EQ(all[i].n, some[i].n);
        for (int t = 0; t < all[i].n; t++)
            if (all[i].tokens[t] != some[i].tokens[t])
                fail_msg("%s, %s, GYRE_ARGMAX_FILTER=%s, sequence %d: token %d is %d, without %d", folder, dtype,
                         screen, i, t, some[i].tokens[t], all[i].tokens[t]);
    }
}

static void screening_the_head_changes_no_token(void **state) {
    (void)state;
    if (rig_backend() == &backend_cpu)
        skip();
    for (size_t m = 0; m < ARRAY_LEN(trained); m++)
        for (int k = 0; k < 2; k++) {
            const char *dtype = k ? "bfloat16" : "float16";
            if (!rig_takes_case())
                continue;
            expect_the_same(trained[m], dtype, "64", m % 3 == 2);
            expect_the_same(trained[m], dtype, "1", false); // a budget that is passed most of the time
        }
}

// ---- long texts -------------------------------------------------------------------------------------------------

/* The same model with room for longer texts: a copy of the folder with another config.json. */
static void longer_context(const char *folder, char out[64]) {
    char command[512];
    strcpy(out, "/tmp/gyre-longer-XXXXXX");
    EXPECT(mkdtemp(out) != NULL);
    snprintf(command, sizeof command,
             "cp -r %s/. %s && sed 's/\"max_position_embeddings\": *[0-9]*/\"max_position_embeddings\": 8192/' "
             "%s/config.json > %s/config.json",
             folder, out, folder, out);
    EXPECT_EQ(system(command), 0);
}

static int compare_best(const struct text *device, const struct text *cpu, const char *what) {
    int wrong = 0, compared = 0;
    for (int i = N_PROMPT; i < device->n; i++) {
        if ((double)cpu->margin[i] < 2 * rounding())
            continue;
        compared++;
        wrong += device->best[i] != cpu->best[i];
    }
    print_message("%s: %d of %d next tokens differ, of %d generated\n", what, wrong, compared, device->n - N_PROMPT);
    EXPECT(compared > (device->n - N_PROMPT) / 4);
    return wrong;
}

/* Of a few texts of n tokens the most probable: some wander off to where the model was never trained and all tokens are
 * alike. */
static const struct text *write_long(struct gyre *g, int n, uint64_t which) {
    enum { TEXTS = 4 };
    static struct text texts[TEXTS];
    int best = 0;
    for (int i = 0; i < TEXTS; i++) {
        random_prompt(g, &texts[i], TEXTS * which + (uint64_t)i);
        submit_writing(g, &texts[i], 1, n, 0.7f, test_seed() + (uint64_t)i);
    }
    finish(g);
    for (int i = 0; i < TEXTS; i++) {
        EXPECT_EQ(texts[i].n, n);
        best = mean_loss(&texts[i]) < mean_loss(&texts[best]) ? i : best;
    }
    return &texts[best];
}

static void thousands_of_tokens_past_a_window_are_the_cpus(void **state) {
    static const char *const models[] = {"tests/models/gemma4", "tests/models/gemma3", "tests/models/mistral",
                                         "tests/models/qwen3"};
    static struct text cpu;
    bool is_cpu = rig_backend() == &backend_cpu;
    int n = is_cpu ? 300 : 4096 + 200, wrong = 0;
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        char folder[64], command[80];
        longer_context(models[m], folder);
        struct gyre *g = open_model(folder, rig_backend(), (struct gyre_options){.max_model_len = n + 8});
        const struct text *device = write_long(g, n, m);
        gyre_close(g);
        cpu = *device;
        g = open_model(folder, &backend_cpu, (struct gyre_options){.max_model_len = n + 8});
        score(g, &cpu);
        gyre_close(g);
        wrong += compare_best(device, &cpu, models[m]);
        snprintf(command, sizeof command, "rm -r %s", folder);
        EXPECT_EQ(system(command), 0);
    }
    EXPECT_EQ(wrong, 0);
}

// ---- many at a time ---------------------------------------------------------------------------------------------

enum { N_BATCH = 33, LENGTH = 90 };

/* Texts of a batch; of every third its own number decides, of others `others` too. */
static void write_batch(struct gyre *g, struct text *texts, uint64_t others) {
    for (int i = 0; i < N_BATCH; i++) {
        uint64_t which = (uint64_t)i + (i % 3 == 0 ? 0 : others);
        random_prompt(g, &texts[i], which);
        submit_writing(g, &texts[i], n_prompt_of(i), LENGTH, 1, which);
    }
    finish(g);
}

static void what_others_of_a_batch_hold_changes_no_bit(void **state) {
    static struct text one[N_BATCH], two[N_BATCH];
    (void)state;
    for (int narrow = 0; narrow < (rig_backend() == &backend_cpu ? 1 : 2); narrow++)
        for (size_t m = 0; m < ARRAY_LEN(dense); m++) {
            if (!rig_takes_case())
                continue;
            bool fp8 = narrow;
            struct gyre *g = open_model(dense[m], rig_backend(),
                                        (struct gyre_options){.max_seqs = N_BATCH,
                                                              .max_batched_tokens = 150,
                                                              .dtype = fp8 ? "float16" : NULL,
                                                              .quantization = fp8 ? "fp8" : NULL,
                                                              .kv_cache_dtype = fp8 ? "fp8" : NULL});
            int n_other = 0;
            write_batch(g, one, 0);
            write_batch(g, two, 1000);
            for (int i = 0; i < N_BATCH; i++) {
                bool same = memcmp(one[i].tokens, two[i].tokens, LENGTH * sizeof(int32_t)) == 0 &&
                            memcmp(one[i].logprob + n_prompt_of(i), two[i].logprob + n_prompt_of(i),
                                   (size_t)(LENGTH - n_prompt_of(i)) * sizeof(float)) == 0;
                n_other += i % 3 != 0 && !same;
                if (i % 3 == 0 && !same)
                    fail_msg("%s%s: sequence %d depends on what others hold", dense[m], fp8 ? " in fp8" : "", i);
            }
            EXPECT(n_other > 0); // the others were others
            gyre_close(g);
        }
}

/* Decoded among others, and scored alone in one step: other kernels, other sizes of products, other parts of sums. */
static void each_of_a_full_batch_gets_what_it_gets_alone(void **state) {
    static struct text together[N_BATCH], alone;
    int wrong = 0;
    double worst = 0;
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(dense); m++) {
        if (!rig_takes_case())
            continue;
        struct gyre *g =
            open_model(dense[m], rig_backend(), (struct gyre_options){.max_seqs = N_BATCH, .max_batched_tokens = 150});
        write_batch(g, together, 0);
        for (int i = 0; i < N_BATCH; i += 4) {
            alone = together[i];
            score(g, &alone);
            for (int k = n_prompt_of(i); k < LENGTH; k++) {
                worst = fmax(worst, fabs((double)alone.logprob[k] - (double)together[i].logprob[k]));
                wrong += (double)alone.margin[k] >= 4 * rounding() && alone.best[k] != together[i].best[k];
            }
        }
        gyre_close(g);
    }
    print_message("log-probabilities of a batch and of each alone: at most %.5f apart, %.5f may be\n", worst,
                  rounding());
    EXPECT(worst <= rounding()); // twice that may be; 0.0074 is seen in float16
    EXPECT_EQ(wrong, 0);
}

// ---- eight bits, and sixteen ------------------------------------------------------------------------------------

/* Texts that the CPU drew, and what it makes of them. The ratio of perplexities over one text of 1,000 tokens moves by
 * half a per cent from text to text. */
enum { N_DRAWN = 12, DRAWN = 1000 };

static const struct text *drawn_texts(size_t model) {
    static struct text texts[N_DRAWN];
    static size_t of = SIZE_MAX;
    if (of == model)
        return texts;
    of = model;
    struct gyre *g = open_model(dense[model], &backend_cpu, (struct gyre_options){0});
    for (int i = 0; i < N_DRAWN; i++) {
        random_prompt(g, &texts[i], 3 + (uint64_t)i);
        submit_writing(g, &texts[i], N_PROMPT, DRAWN, 1, 17 + (uint64_t)i);
    }
    finish(g);
    for (int i = 0; i < N_DRAWN; i++)
        score(g, &texts[i]);
    gyre_close(g);
    return texts;
}

/* The perplexity of those texts over what the CPU makes of them; how sure that is, is printed. */
static double perplexity_ratio(size_t model, struct gyre_options options, const char *what) {
    static struct text text;
    const struct text *drawn = drawn_texts(model);
    struct gyre *g = open_model(dense[model], rig_backend(), options);
    double sum = 0, squares = 0;
    for (int i = 0; i < N_DRAWN; i++) {
        text = drawn[i];
        score(g, &text);
        double more = mean_loss(&text) - mean_loss(&drawn[i]);
        sum += more;
        squares += more * more;
    }
    gyre_close(g);
    double mean = sum / N_DRAWN, deviation = sqrt(fmax(squares / N_DRAWN - mean * mean, 0) / (N_DRAWN - 1));
    print_message("%s: perplexity %.3f on the CPU, %s %+.2f %% (+- %.2f)\n", dense[model], exp(mean_loss(&drawn[0])),
                  what, (exp(mean) - 1) * 100, deviation * 100);
    return exp(mean);
}

static void sixteen_bit_products_keep_the_perplexity(void **state) {
    (void)state;
    int wrong = 0;
    if (rig_backend() == &backend_cpu)
        skip();
    for (size_t m = 0; m < ARRAY_LEN(dense); m++) {
        wrong += !(fabs(perplexity_ratio(m, (struct gyre_options){.dtype = "float16"}, "float16") - 1) < 0.005);
        wrong += !(fabs(perplexity_ratio(m, (struct gyre_options){.dtype = "bfloat16"}, "bfloat16") - 1) < 0.005);
    }
    EXPECT_EQ(wrong, 0);
}

static void eight_bit_weights_and_cache_cost_little_perplexity(void **state) {
    (void)state;
    int wrong = 0;
    if (rig_backend() == &backend_cpu)
        skip();
    for (size_t m = 0; m < ARRAY_LEN(dense); m++) {
        struct gyre_options narrow = {.dtype = "float16", .quantization = "fp8", .kv_cache_dtype = "fp8"};
        struct gyre_options cache = {.dtype = "float16", .kv_cache_dtype = "fp8"},
                            weights = {.dtype = "float16", .quantization = "fp8"};
        perplexity_ratio(m, cache, "fp8 cache alone");
        perplexity_ratio(m, weights, "fp8 weights alone");
        wrong += !(perplexity_ratio(m, narrow, "fp8") < 1.025);
    }
    EXPECT_EQ(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_steps_equal_steps_that_are_not_bit_for_bit),
        cmocka_unit_test(screening_the_head_changes_no_token),
        cmocka_unit_test(what_others_of_a_batch_hold_changes_no_bit),
        cmocka_unit_test(each_of_a_full_batch_gets_what_it_gets_alone),
        cmocka_unit_test(sixteen_bit_products_keep_the_perplexity),
        cmocka_unit_test(eight_bit_weights_and_cache_cost_little_perplexity),
        cmocka_unit_test(thousands_of_tokens_past_a_window_are_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
