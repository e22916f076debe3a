/* test_quant.c - settings of quantised checkpoints: how modules are stored, and what is refused. */
#include "check.h"

#include "model/weights/quant.h"

static json_t *parse(const char *text) {
    json_t *v;
    struct error err;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &v, &err), err);
    return v;
}

static void expect_refusal(const char *config, enum status status, const char *says) {
    struct arena arena = {0};
    struct quant_spec *spec;
    struct error err = {0};
    json_t *parsed = parse(config);
    enum status st = quant_spec_parse(&arena, parsed, "config.json", &spec, &err);
    if (st != status || !strstr(err.text, says) || !strstr(err.text, "config.json"))
        fail_msg("%s: %s \"%s\", wanted %s with \"%s\"", config, status_name(st), err.text, status_name(status), says);
    json_decref(parsed);
    arena_release(&arena);
}

static void modules_are_stored_as_the_settings_say(void **state) {
    (void)state;
    static const struct {
        const char *config, *module;
        enum quant_scheme scheme;
        int group_size;
    } cases[] = {
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\",\"model."
         "layers.0.mlp.gate\"]}",
         "model.layers.0.mlp.gate_proj", QUANT_FP8_BLOCK, 0},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"model.layers.0.mlp."
         "experts\"]}",
         "model.layers.0.mlp.experts.3.up_proj", QUANT_NONE, 0},
        {"{\"quant_method\":\"fp8\"}", "model.layers.0.mlp.down_proj", QUANT_FP8_TENSOR, 0},
        {"{\"quant_method\":\"fp8\"}", "lm_head", QUANT_NONE, 0},
        {"{\"quant_method\":\"fp8\"}", "model.embed_tokens", QUANT_NONE, 0},
        {"{\"quant_method\":\"fp8\"}", "model.layers.9.mlp.gate", QUANT_NONE, 0},
        {"{\"quant_method\":\"fp8\"}", "model.layers.9.linear_attn.conv1d", QUANT_NONE, 0},
        {"{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"model.layers.*.self_attn\"]}",
         "model.layers.3.mlp.experts", QUANT_MXFP4, 32},
        {"{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"model.layers.*.self_attn\"]}",
         "model.layers.3.self_attn.q_proj", QUANT_NONE, 0},
        {"{\"quant_algo\":\"NVFP4\",\"group_size\":16,\"exclude_modules\":[\"lm_head\",\"model.layers.61*\"]}",
         "model.layers.6.mlp.up_proj", QUANT_NVFP4, 16},
        {"{\"quant_algo\":\"NVFP4\",\"group_size\":16,\"exclude_modules\":[\"lm_head\",\"model.layers.61*\"]}",
         "model.layers.61.mlp.up_proj", QUANT_NONE, 0},
        {"{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"a.mlp\":{\"quant_algo\":\"FP8\"},\"a.mlp."
         "experts\":{\"quant_algo\":"
         "\"W4A16_NVFP4\","
         "\"group_size\":16}},\"ignore\":[\"mtp*\"]}",
         "a.mlp.experts.7.up_proj", QUANT_NVFP4, 16}, // the longer name
        {"{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"a.mlp\":{\"quant_algo\":\"FP8\"}}}",
         "a.mlp.shared.up_proj", QUANT_FP8_TENSOR, 0},
        {"{\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{\"a.mlp\":{\"quant_algo\":\"FP8\"}}}",
         "a.mlp2.up_proj", QUANT_NONE, 0},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"g\":{"
         "\"targets\":[\"Linear\"],"
         "\"weights\":{"
         "\"type\":\"float\",\"num_bits\":8,\"strategy\":\"channel\"}}},\"ignore\":[\"lm_head\",\"re:.*self_attn.*\"]}",
         "model.layers.0.mlp.up_proj", QUANT_FP8_CHANNEL, 0},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"g\":{"
         "\"targets\":[\"Linear\"],"
         "\"weights\":{"
         "\"type\":\"float\",\"num_bits\":8,\"strategy\":\"channel\"}}},\"ignore\":[\"lm_head\",\"re:.*self_attn.*\"]}",
         "model.layers.0.self_attn.o_proj", QUANT_NONE, 0},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"targets\":"
         "[\"re:.*experts.*\"]"
         ",\"weights\":{"
         "\"type\":\"int\",\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32}}}}",
         "model.layers.1.mlp.experts.0.up_proj", QUANT_INT4_GROUP, 32},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"targets\":"
         "[\"re:.*experts.*\"]"
         ",\"weights\":{"
         "\"type\":\"int\",\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32}}}}",
         "model.layers.1.self_attn.q_proj", QUANT_NONE, 0},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}", "model.layers.1.self_attn.q_proj", QUANT_GPTQ,
         128},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":-1}", "model.layers.1.self_attn.q_proj", QUANT_GPTQ, 0},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"modules_to_not_convert\":[\"self_attn\"]}",
         "model.layers.1.self_attn.q_proj", QUANT_NONE, 0},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}", "model.layers.1.mlp.down_proj", QUANT_AWQ, 128},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}", "model.layers.1.mlp.down_proj", QUANT_BNB_INT8,
         0},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}", "layers.1.mlp.up_proj", QUANT_BNB_CODES, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct arena arena = {0};
        struct quant_spec *spec;
        struct error err;
        json_t *config = parse(cases[i].config);
        EXPECT_OK(quant_spec_parse(&arena, config, "config.json", &spec, &err), err);
        struct quant_storage s = quant_of(spec, cases[i].module);
        if (s.scheme != cases[i].scheme || s.group_size != cases[i].group_size)
            fail_msg("%s: %s is stored by scheme %d in groups of %d", cases[i].config, cases[i].module, s.scheme,
                     s.group_size);
        json_decref(config);
        arena_release(&arena);
    }
    EXPECT(quant_of(NULL, "x").scheme == QUANT_NONE);
}

static void faulty_quantisation_settings_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *config;
        enum status status;
        const char *says;
    } cases[] = {
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", ERR_FORMAT, "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":128}", ERR_FORMAT, "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", ERR_UNSUPPORTED, "e5m2"},
        {"{\"quant_method\":\"fp8\",\"modules_to_not_convert\":[1]}", ERR_FORMAT, "modules_to_not_convert"},
        {"{\"quant_method\":\"gptq\"}", ERR_FORMAT, "\"bits\""},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"checkpoint_format\":\"marlin\"}", ERR_UNSUPPORTED, "marlin"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"version\":\"gemv\"}", ERR_UNSUPPORTED, "gemv"},
        {"{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"int4\"}", ERR_UNSUPPORTED,
         "int4"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}", ERR_UNSUPPORTED, "W4A8_AWQ"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\"}", ERR_FORMAT, "quantized_layers"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":32}", ERR_UNSUPPORTED, "group_size"},
        {"{\"quant_method\":\"compressed-tensors\"}", ERR_FORMAT, "config_groups"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":["
         "\"Linear\"]}}}",
         ERR_UNSUPPORTED, "quantises no weights"},
        {"{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":["
         "\"re:(\"],\"weights\":{"
         "\"type\":\"float\","
         "\"num_bits\":8,\"strategy\":\"tensor\"}}}}",
         ERR_FORMAT, "re:("},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect_refusal(cases[i].config, cases[i].status, cases[i].says);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_are_stored_as_the_settings_say),
        cmocka_unit_test(faulty_quantisation_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
