/* test_shard.c - pass_shard: ranks give the logits of the whole model, and the reference's (float32, transformers), for
 * every family; or a sentence says what cannot be cut.
 * Not in make test-fast: all trained and random models, on two and four ranks. */
#include "on_ranks.h"

#include <glob.h>
#include <math.h>

static bool has_experts(const struct program *p) {
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == OP_MOE_FFN)
            return true;
    return false;
}

/* What cannot be cut, and why. */
struct refusal {
    const char *model, *sentence;
    bool by_expert;
};

static const char *refusal_of(const struct refusal *all, const char *folder, bool by_expert) {
    for (; all->model; all++)
        if (strcmp(strrchr(folder, '/') + 1, all->model) == 0 && all->by_expert == by_expert)
            return all->sentence;
    return NULL;
}

static void for_each_model(const char *pattern, int n, struct how how, const struct refusal *refusals) {
    glob_t found = {0};
    double worst = 0;
    EXPECT_EQ(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        static struct scene sc;
        struct ranks whole;
        *strrchr(found.gl_pathv[i], '/') = '\0';
        scene_open(&sc, found.gl_pathv[i]);
        if (how.n_threads > 1)
            scene_shorten(&sc, 24); // they spin, and more of them than there are processors
        whole_open(&sc, how, &whole);
        for (int by_expert = 0; by_expert <= has_experts(sc.model->program); by_expert++)
            scene_compare(&sc, &whole, n, by_expert, how, refusal_of(refusals, sc.folder, by_expert));
        worst = fmax(worst, sc.worst);
        ranks_close(&whole);
        scene_close(&sc);
    }
    print_message("%s, %d ranks: logits off by %g at most\n", pattern, n, worst);
    globfree(&found);
}

#define BLOCKS_OF_32 "gpt_oss: 32 channels of an FFN in blocks of 32 cannot be split over"
#define BLOCKS_OF_64 "qwen3: model.layers.0.self_attn.o_proj.weight is quantised in blocks of 64 columns, and rank 0 of"
#define TWO_HEADS "2 heads, or pairs of them, cannot be split over 4 devices (model.layers.0.self_attn.q_proj.weight)"

static void two_ranks_give_the_logits_of_every_trained_model(void **state) {
    (void)state;
    for_each_model("tests/models/*/golden.json", 2, (struct how){.n_threads = 1}, (struct refusal[]){{0}});
}

static void two_ranks_give_the_logits_of_every_random_model(void **state) {
    static const struct refusal refusals[] = {
        {"gpt_oss_mxfp4", BLOCKS_OF_32, false}, {"qwen3_fp8_64", BLOCKS_OF_64, false}, {0}};
    (void)state;
    for_each_model("tests/models_random/*/golden.json", 2, (struct how){.n_threads = 1}, refusals);
}

static void four_ranks_give_the_logits_of_every_trained_model(void **state) {
    static const struct refusal refusals[] = {
        {"qwen2", "qwen2: " TWO_HEADS, false}, {"diffllama", "diffllama: " TWO_HEADS, false}, {0}};
    (void)state;
    for_each_model("tests/models/*/golden.json", 4, (struct how){.n_threads = 1}, refusals);
}

static void four_ranks_give_the_logits_of_every_random_model(void **state) {
    static const char three[] = "3 experts cannot be split over 4 devices (model.layers.0.";
    static const struct refusal refusals[] = {
        {"diffllama_plain", TWO_HEADS, false}, {"gemma4_moe", three, true},
        {"gpt_oss_bf16", three, true},         {"gpt_oss_mxfp4", BLOCKS_OF_32, false},
        {"gpt_oss_mxfp4", three, true},        {"mixtral_plain", three, true},
        {"qwen3_fp8_64", BLOCKS_OF_64, false}, {0}};
    (void)state;
    for_each_model("tests/models_random/*/golden.json", 4, (struct how){.n_threads = 1}, refusals);
}

/* Devices of several threads, by the plain functions too; a model of each kind of op. */
static void ranks_of_several_threads_give_the_logits(void **state) {
    static const char *const models[] = {"deepseek_v3", "diffllama", "qwen3_5_moe", "gpt_oss"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (int k = 0; k < 2; k++) {
            char pattern[80];
            snprintf(pattern, sizeof pattern, "tests/models/%s/golden.json", models[i]);
            struct how how = {.n_threads = 2, .kernels = k ? "reference" : NULL};
            if (k == 0 || i % 2 == 0)
                for_each_model(pattern, 2, how, (struct refusal[]){{0}});
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_give_the_logits_of_every_trained_model),
        cmocka_unit_test(two_ranks_give_the_logits_of_every_random_model),
        cmocka_unit_test(four_ranks_give_the_logits_of_every_trained_model),
        cmocka_unit_test(four_ranks_give_the_logits_of_every_random_model),
        cmocka_unit_test(ranks_of_several_threads_give_the_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
