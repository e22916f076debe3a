/* test_seam.c - what core/backend.h allows beyond one program on one device, on the CPU, on the toy, and on the backend
 * of $GYRE_TEST_BACKEND. */
#include "op_rig.h"

#include "backend/toy/toy.h"
#include "base/random.h"
#include "model/model.h"

enum { BLOCK = 8, N_BLOCKS = 6, N_PROMPT = 7, N_TOKENS = 20, MOST_VOCAB = 1024 };

/* A program that is loaded, and one sequence of it, which goes on with its most probable tokens. */
struct text {
    const struct backend_ops *ops;
    struct loaded *loaded;
    struct executable *exe;
    struct batch_plan plan;
    struct sample_params sample;
    int32_t tokens[N_PROMPT + N_TOKENS];
    float logits[N_TOKENS][MOST_VOCAB]; // behind each, where the device has any
    int n, n_vocab;
};

static void text_load(struct text *t, const struct backend_ops *ops, struct device *d, const struct program *p,
                      const char *dtype) {
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {N_PROMPT, 1, 1, 0};
    struct error err;
    *t = (struct text){.ops = ops, .n = N_PROMPT, .n_vocab = p->vocab_size};
    EXPECT(p->vocab_size <= MOST_VOCAB);
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = N_BLOCKS;
    EXPECT_OK(ops->load(d, p, &(struct load_options){.dtype = dtype}, &t->loaded, &err), err);
    EXPECT_OK(ops->alloc_cache(t->loaded, &config, &err), err);
    EXPECT_OK(ops->compile(t->loaded, bucket, &t->exe, &err), err);
    batch_plan_init(&t->plan, bucket, p->n_groups, config.table_width);
    for (int g = 0; g < p->n_groups; g++)
        for (int i = 0; i < N_BLOCKS; i++)
            t->plan.block_table[g][i] = i;
    for (int i = 0; i < N_PROMPT; i++)
        t->tokens[i] = (int32_t)(philox_uniform(test_seed(), (uint64_t)i, 5) * p->vocab_size);
}

static void text_unload(struct text *t) {
    t->ops->free_executable(t->exe);
    t->ops->unload(t->loaded);
    batch_plan_release(&t->plan);
}

/* The prompt, or the token that came last. */
static void text_start(struct text *t) {
    struct batch_plan *p = &t->plan;
    struct error err;
    int first = t->n == N_PROMPT ? 0 : t->n - 1;
    p->n_tokens = p->query_start[1] = t->n - first;
    p->n_seqs = p->n_rows = 1;
    p->seq_len[0] = p->n_known[0] = t->n;
    p->out_row[0] = t->n - first - 1;
    for (int i = first; i < t->n; i++) {
        p->token_id[i - first] = t->tokens[i];
        p->position[i - first] = i;
    }
    t->sample = sample_params_default();
    t->sample.want_logits = true;
    EXPECT_OK(t->ops->run(t->exe, p, &t->sample, &err), err);
}

static void text_end(struct text *t) {
    struct sample_result result;
    struct error err;
    const float *logits;
    EXPECT_OK(t->ops->collect(t->exe, &result, &err), err);
    EXPECT_OK(t->ops->logits(t->exe, 0, &logits, &err), err);
    if (t->ops != &backend_toy) // which fills no logits for greedy rows
        memcpy(t->logits[t->n - N_PROMPT], logits, (size_t)t->n_vocab * sizeof *logits);
    t->tokens[t->n++] = result.token;
}

static void expect_same(const struct text *a, const struct text *b) {
    EXPECT_EQ(a->n, b->n);
    EXPECT(memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens) == 0);
    EXPECT(memcmp(a->logits, b->logits, sizeof a->logits) == 0);
}

/* Each alone on a device of its own; then both on one, step by step in turns, with one in flight of each; then the
 * second goes on while the first is unloaded, and loaded again from its beginning. */
static void two_share(const struct backend_ops *ops, const struct program *a, const struct program *b,
                      const char *dtype) {
    static struct text alone[2], target, draft, again;
    const struct program *programs[] = {a, b};
    struct on_device at[3];
    struct error err;
    struct how how = {.n_threads = 2};
    EXPECT_EQ(a->vocab_size, b->vocab_size);
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(on_device_open(ops, how, &at[i], &err), err);
        text_load(&alone[i], ops, at[i].device, programs[i], dtype);
        for (int n = 0; n < N_TOKENS; n++) {
            text_start(&alone[i]);
            text_end(&alone[i]);
        }
        text_unload(&alone[i]);
        on_device_close(&at[i]);
    }
    EXPECT_OK(on_device_open(ops, how, &at[2], &err), err);
    text_load(&target, ops, at[2].device, a, dtype);
    text_load(&draft, ops, at[2].device, b, dtype);
    for (int n = 0; n < N_TOKENS; n++) {
        text_start(&target);
        if (n < N_TOKENS / 2)
            text_start(&draft);
        text_end(&target);
        if (n < N_TOKENS / 2)
            text_end(&draft);
    }
    expect_same(&target, &alone[0]);
    text_unload(&target);
    text_load(&again, ops, at[2].device, a, dtype);
    for (int n = N_TOKENS / 2; n < N_TOKENS; n++) {
        text_start(&draft);
        text_start(&again);
        text_end(&draft);
        text_end(&again);
    }
    expect_same(&draft, &alone[1]);
    EXPECT(memcmp(again.tokens, alone[0].tokens, (size_t)again.n * sizeof *again.tokens) == 0);
    text_unload(&draft);
    text_unload(&again);
    on_device_close(&at[2]);
}

static void a_target_and_a_second_model_share_a_device_and_each_may_be_freed(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"llama", "qwen2"}, {"qwen3_5", "llama"}, {"gemma3", "llama"}, {"deepseek_v3", "gpt_oss"}};
    size_t n = rig_is_brief() ? 1 : ARRAY_LEN(pairs);
    for (size_t i = 0; i < n; i++) {
        struct model *m[2];
        char folder[80];
        struct error err;
        for (int k = 0; k < 2; k++) {
            snprintf(folder, sizeof folder, "tests/models/%s", pairs[i][k]);
            EXPECT_OK(model_open(folder, &(struct model_options){0}, &m[k], &err), err);
        }
        two_share(rig_backend(), m[0]->program, m[1]->program, NULL);
        for (int k = 0; k < 2; k++)
            model_free(m[k]);
    }
}

static void so_do_two_toys(void **state) {
    (void)state;
    struct toy_shape shapes[] = {{.vocab_size = 100, .full = true, .recurrent = true},
                                 {.vocab_size = 100, .window = 5, .latent = true}};
    struct program *a = toy_program(&shapes[0]), *b = toy_program(&shapes[1]);
    two_share(&backend_toy, a, b, NULL);
    program_free(a);
    program_free(b);
}

/* Rows of any tokens of a prompt, drawn with what came when the step had been started, as if it had been there before.
 */
static void late_draws_equal_early_ones(const struct backend_ops *ops, const struct program *p) {
    enum { N = 12 };
    static const int32_t rows[] = {1, 4, 5, 11};
    struct cache_config config = {.block_size = BLOCK, .n_states = 1};
    struct bucket bucket = {N, 1, N, 0};
    struct sample_params sample[ARRAY_LEN(rows)];
    struct sample_result got[2][ARRAY_LEN(rows)];
    int32_t allowed[] = {3, 7, 20, 90};
    for (int g = 0; g < p->n_groups; g++)
        config.n_blocks[g] = config.table_width[g] = N_BLOCKS;
    for (int late = 0; late < 2; late++) {
        struct on_device at;
        struct batch_plan plan;
        struct error err;
        on_device_compile(ops, (struct how){.n_threads = 2}, p, &config, bucket, &at);
        batch_plan_init(&plan, bucket, p->n_groups, config.table_width);
        plan.n_tokens = plan.query_start[1] = plan.seq_len[0] = plan.n_known[0] = N;
        plan.n_seqs = 1;
        plan.n_rows = (int)ARRAY_LEN(rows);
        memcpy(plan.out_row, rows, sizeof rows);
        for (int i = 0; i < N; i++)
            plan.token_id[i] = 2 * i + 1, plan.position[i] = i;
        for (int g = 0; g < p->n_groups; g++)
            for (int i = 0; i < N_BLOCKS; i++)
                plan.block_table[g][i] = i;
        if (late)
            EXPECT_OK(ops->run(at.exe, &plan, NULL, &err), err);
        for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
            sample[r] = sample_params_default();
            sample[r].temperature = r == 1 ? 0 : 0.9f;
            sample[r].position = (uint64_t)rows[r];
            sample[r].allowed = allowed, sample[r].n_allowed = r == 3 ? 0 : (int32_t)ARRAY_LEN(allowed) - (int32_t)r;
        }
        EXPECT_OK(late ? ops->draw(at.exe, sample, &err) : ops->run(at.exe, &plan, sample, &err), err);
        EXPECT_OK(ops->collect(at.exe, got[late], &err), err);
        batch_plan_release(&plan);
        on_device_close(&at);
    }
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        EXPECT_EQ(got[0][r].token, got[1][r].token);
        EXPECT_EQ(got[0][r].argmax, got[1][r].argmax);
        EXPECT(r == 3 || got[1][r].token == 3 || got[1][r].token == 7 || got[1][r].token == 20 ||
               got[1][r].token == 90);
    }
}

static void what_comes_after_a_step_was_started_is_drawn_with_as_if_it_had_been_there(void **state) {
    (void)state;
    struct toy_shape shape = {.vocab_size = 100, .full = true, .window = 6};
    struct program *toy = toy_program(&shape);
    struct model *m;
    struct error err;
    late_draws_equal_early_ones(&backend_toy, toy);
    program_free(toy);
    EXPECT_OK(model_open("tests/models/qwen3", &(struct model_options){0}, &m, &err), err);
    late_draws_equal_early_ones(rig_backend(), m->program);
    model_free(m);
}

static void an_option_that_a_device_has_not_is_refused_with_those_that_it_has(void **state) {
    (void)state;
    static const struct {
        const char *option;
        bool good;
    } cases[] = {{"kernels=portable", true}, {"kernels=", true}, {"kernels", false},
                 {"kernel=portable", false}, {"", false},        {"=", false}};
    struct error err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *own[] = {cases[i].option, NULL};
        EXPECT_EQ(device_options_check(&backend_cpu, own, &err) == OK, cases[i].good);
        EXPECT(cases[i].good || (err.status == ERR_ARG && strstr(err.text, "kernels=portable|")));
    }
    const char *own[] = {"kernels=avx2", "kernelsx=1", "kernels=portable", NULL};
    EXPECT(strcmp(device_option(own, "kernels"), "portable") == 0 && !device_option(own, "kernel") &&
           !device_option(NULL, "kernels"));
    EXPECT_EQ(device_options_check(&backend_toy, own, &err), ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_target_and_a_second_model_share_a_device_and_each_may_be_freed),
        cmocka_unit_test(so_do_two_toys),
        cmocka_unit_test(what_comes_after_a_step_was_started_is_drawn_with_as_if_it_had_been_there),
        cmocka_unit_test(an_option_that_a_device_has_not_is_refused_with_those_that_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
