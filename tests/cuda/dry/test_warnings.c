/* test_warnings.c - what a start says of what will be slow or large, and that plain kernels run every family. */
#include "rig.h"

static void attention_that_is_slow_is_told(void **state) {
    (void)state;
    static const struct {
        int hidden, block_size; // one head of as many channels
        const char *dtype, *word;
    } cases[] = {{64, 64, "float16", NULL},
                 {96, 64, "float16", "here 96"},
                 {64, 8, "float16", "here 8)"},
                 {64, 64, "float32", "here 32"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[] = "/tmp/gyre-config-XXXXXX.json", told[400] = "";
        write_config(path, cases[i].hidden, 512);
        struct gyre_options options = options_for(path);
        options.dummy_weights = true, options.block_size = cases[i].block_size, options.dtype = cases[i].dtype;
        struct gyre *g = open_dry(&options);
        bool is_told = g->ops->warning(g->exe, 0, told, sizeof told) && strstr(told, "attention");
        if (is_told != (cases[i].word != NULL) || (is_told && (!strstr(told, cases[i].word) || !strchr(told, ')'))))
            fail_msg("heads of %d, blocks of %d, %s: told \"%s\"", cases[i].hidden, cases[i].block_size, cases[i].dtype,
                     told);
        gyre_close(g);
        expect_clean(path);
        remove(path);
    }
}

/* All sentences, a line each. */
static void tell_warnings(struct gyre *g, char *out, size_t n) {
    size_t at = 0;
    char one[400];
    for (int i = 0; g->ops->warning(g->exe, i, one, sizeof one); i++)
        at += (size_t)snprintf(out + at, n - at, "%s\n", one);
    EXPECT(at < n);
}

static const char *const plain_kernels[] = {"kernels=plain", NULL};

/* Of kernels=plain no node is one of Hopper's kernels, whatever the family, and it says so. */
static void plain_kernels_run_every_family(void **state) {
    (void)state;
    static const char *const hopper[] = {"attention_decode", "attention_prefill", "lm_head",
                                         "gemv.cu",          "gemm_fp8",          "argmax_filter"};
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            static struct device_node nodes[2000];
            char folder[80], told[1000];
            snprintf(folder, sizeof folder, "tests/models/%s", models[i]);
            struct gyre_options options = options_for(folder);
            options.device_options = plain_kernels, options.quantization = fp8 ? "fp8" : NULL;
            struct gyre *g = open_dry(&options);
            for (int rows = 1; rows <= 4; rows *= 4)
                for (int k = 0, n = g->ops->probes->nodes(g->exe, rows, nodes, ARRAY_LEN(nodes)); k < n; k++)
                    for (size_t h = 0; h < ARRAY_LEN(hopper); h++)
                        if (strstr(nodes[k].file, hopper[h]))
                            fail_msg("%s: %s runs on %s", folder, nodes[k].op_name, nodes[k].file);
            tell_warnings(g, told, sizeof told);
            EXPECT(strstr(told, "plain kernels, which are slow, as kernels=plain asks"));
            gyre_close(g);
            struct outcome o;
            dry_begin(0, DRY_ONCE);
            run(&options, false, &o);
            if (!o.opened || o.finish[0] != GYRE_LENGTH || o.finish[1] != GYRE_LENGTH)
                fail_msg("%s: %s; %s; %s", folder, o.opened ? "opened" : o.refused.text, o.why[0], o.why[1]);
            expect_clean(folder);
        }
    struct gyre *g;
    struct gyre_error e;
    struct gyre_options options = options_for("tests/models/llama");
    options.device_options = (const char *const[]){"kernels=best", NULL};
    EXPECT(gyre_open(&options, &g, &e) != 0 && strstr(e.text, "\"best\""));
}

static void states_in_bfloat16_are_told_and_refused_by_plain_kernels(void **state) {
    (void)state;
    char told[1000] = "";
    struct gyre *g;
    struct gyre_error e;
    struct gyre_options options = options_for("tests/models/qwen3_5");
    options.device_options = (const char *const[]){"state=bfloat16", NULL};
    g = open_dry(&options);
    tell_warnings(g, told, sizeof told);
    EXPECT(strstr(told, "states of 3 layers are kept in bfloat16"));
    gyre_close(g);
    options.device_options = (const char *const[]){"state=bfloat16", "kernels=plain", NULL};
    EXPECT(gyre_open(&options, &g, &e) != 0 && strstr(e.text, "state=bfloat16: the plain kernels"));
    options.device_options = (const char *const[]){"state=half", NULL};
    EXPECT(gyre_open(&options, &g, &e) != 0 && strstr(e.text, "float32 or bfloat16 on CUDA, not \"half\""));
    expect_clean("states");
}

static void layers_on_slow_kernels_and_weights_that_grow_are_told(void **state) {
    (void)state;
    static const struct {
        const char *folder, *dtype, *words, *kv;
    } cases[] = {{"tests/models/qwen3_moe", "float32", "the mixture of experts of "},
                 {"tests/models/deepseek_v3", "float16", "latent attention of "},
                 {"tests/models/qwen3_5", "float16", NULL},
                 {"tests/models_random/gpt_oss_mxfp4", "float32", "weights of mxfp4 take "},
                 {"tests/models_random/gpt_oss_mxfp4", "float16", "!weights of mxfp4 take "},
                 {"tests/models/qwen3_moe", "float16", NULL},
                 {"tests/models/llama", "float16", "attention of prompts over int4 of ", "int4"},
                 {"tests/models/diffllama", "float16", "attention of 3 layers is slow", "int4"},
                 {"tests/models/llama", "float16", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char told[1000] = "";
        struct gyre_options options = options_for(cases[i].folder);
        options.dtype = cases[i].dtype, options.kv_cache_dtype = cases[i].kv;
        struct gyre *g = open_dry(&options);
        tell_warnings(g, told, sizeof told);
        const char *words = cases[i].words;
        bool wrong = strstr(told, "slow") || strstr(told, "MiB in the file");
        if (words) // or, behind an exclamation mark, words that are not to be there
            wrong = words[0] == '!' ? strstr(told, words + 1) != NULL : !strstr(told, words);
        if (wrong)
            fail_msg("%s: told \"%s\"", cases[i].folder, told);
        gyre_close(g);
    }
    expect_clean("warnings");
}

int main(void) {
    set_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_that_is_slow_is_told),
        cmocka_unit_test(plain_kernels_run_every_family),
        cmocka_unit_test(states_in_bfloat16_are_told_and_refused_by_plain_kernels),
        cmocka_unit_test(layers_on_slow_kernels_and_weights_that_grow_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
