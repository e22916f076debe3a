/* test_spec.c - config.json to model_spec: layouts, defaults, bounds. */
#include "check.h"

#include "base/file.h"
#include "model/spec/spec.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/gyre_spec_XXXXXX";

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int remove_dir(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static const char *write_json(const char *name, const char *text) {
    static char path[200];
    struct error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    EXPECT_OK(file_write(path, str_of(text), &err), err);
    return path;
}

static json_t *parse(const char *text) {
    json_t *v;
    struct error err;
    EXPECT_OK(jv_parse(str_of(text), "test", 0, &v, &err), err);
    return v;
}

/* base with the members of `patch` put in; a member "-" lists keys to take out. */
static char *patched(const char *base, const char *patch) {
    json_t *config = parse(base), *changes = parse(patch), *gone = json_object_get(changes, "-"), *key;
    size_t i;
    json_array_foreach(gone, i, key) json_object_del(config, json_string_value(key));
    json_object_del(changes, "-");
    json_object_update(config, changes);
    char *text = json_dumps(config, 0);
    json_decref(config);
    json_decref(changes);
    return text;
}

static struct model_spec *spec_of(const char *base, const char *patch) {
    char *text = patched(base, patch);
    struct model_spec *s;
    struct error err;
    EXPECT_OK(model_spec_open(write_json("config.json", text), &s, &err), err);
    free(text);
    return s;
}

static void expect_refusal(const char *base, const char *patch, enum status status, const char *says) {
    char *text = patched(base, patch);
    struct model_spec *s;
    struct error err = {0};
    const char *path = write_json("config.json", text);
    enum status st = model_spec_open(path, &s, &err);
    if (st != status || !strstr(err.text, says) || !strstr(err.text, "config.json"))
        fail_msg("%s: %s \"%s\", wanted %s with \"%s\"", patch, status_name(st), err.text, status_name(status), says);
    model_spec_free(s);
    free(text);
}

#define LLAMA                                                                                                          \
    "{\"model_type\":\"llama\",\"hidden_size\":256,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_" \
    "heads\":2,"                                                                                                       \
    "\"intermediate_size\":512,\"vocab_size\":1000,\"max_position_embeddings\":2048}"
#define QWEN2                                                                                                          \
    "{\"model_type\":\"qwen2\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_" \
    "heads\":2,"                                                                                                       \
    "\"intermediate_size\":512,\"vocab_size\":1000}"
#define DEEPSEEK                                                                                                       \
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":8,"           \
    "\"intermediate_size\":512,"                                                                                       \
    "\"vocab_size\":1000,\"rope_theta\":10000,\"max_position_embeddings\":163840,\"rope_scaling\":{\"type\":\"yarn\"," \
    "\"factor\":40,"                                                                                                   \
    "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}"
#define GEMMA4                                                                                                       \
    "{\"model_type\":\"gemma4_text\",\"hidden_size\":256,\"num_hidden_layers\":12,\"num_attention_heads\":8,\"num_"  \
    "key_value_heads\":4,"                                                                                           \
    "\"head_dim\":64,\"intermediate_size\":512,\"vocab_size\":1000,\"global_head_dim\":128,\"hidden_size_per_layer_" \
    "input\":0}"
#define QWEN3_MOE                                                                                                    \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_" \
    "value_heads\":2,"                                                                                               \
    "\"intermediate_size\":512,\"vocab_size\":1000,\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_"  \
    "size\":64}"
#define HYBRID                                                                                                      \
    "{\"model_type\":\"qwen3_5_text\",\"hidden_size\":256,\"num_hidden_layers\":8,\"num_attention_heads\":8,\"num_" \
    "key_value_heads\":2,"                                                                                          \
    "\"head_dim\":64,\"intermediate_size\":512,\"vocab_size\":1000}"

/* ---- rope ---- */

static void faulty_rope_parameters_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        enum status status;
        const char *says;
    } cases[] = {
        {"{\"rope_scaling\":[]}", ERR_FORMAT, "rope parameters are an array"},
        {"{\"rope_scaling\":{\"type\":\"spiral\"}}", ERR_UNSUPPORTED, "spiral"},
        {"{\"rope_scaling\":{\"type\":7}}", ERR_FORMAT, "\"type\""},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", ERR_FORMAT, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", ERR_FORMAT, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}}", ERR_FORMAT, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1e300}}", ERR_FORMAT, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1}}",
         ERR_FORMAT, "low_freq_factor"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":0}}", ERR_FORMAT,
         "original_max_position"},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8},\"rope_theta\":1}", ERR_FORMAT, "rope_theta"},
        {"{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]}}", ERR_FORMAT,
         "\"short_factor\""},
        {"{\"rope_theta\":0}", ERR_FORMAT, "rope_theta"},
        {"{\"rope_theta\":\"x\"}", ERR_FORMAT, "rope_theta"},
        {"{\"partial_rotary_factor\":2}", ERR_FORMAT, "partial_rotary_factor"},
        {"{\"partial_rotary_factor\":0.03,\"model_type\":\"phi3\",\"architectures\":[\"Phi3ForCausalLM\"]}", ERR_FORMAT,
         "0 of the 32 channels"},
        {"{\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", ERR_UNSUPPORTED,
         "partial_rotary_factor"},
        {"{\"head_dim\":33}", ERR_FORMAT, "33 of the 33 channels"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect_refusal(LLAMA, cases[i].patch, cases[i].status, cases[i].says);
}

/* ---- layouts and defaults ---- */

static void both_layouts_say_the_same(void **state) {
    (void)state;
    struct model_spec *old = spec_of(
        LLAMA, "{\"rope_theta\":5e5,\"torch_dtype\":\"float16\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}");
    struct model_spec *new = spec_of(LLAMA, "{\"dtype\":\"float16\",\"rope_parameters\":{\"rope_theta\":500000.0,"
                                            "\"rope_type\":\"linear\",\"factor\":4.0}}");
    struct model_spec *keyed = spec_of(LLAMA, "{\"dtype\":\"float16\",\"rope_parameters\":{\"full_attention\":{\"rope_"
                                              "theta\":5e5,\"rope_type\":\"linear\",\"factor\":4}}}");
    EXPECT(old->dtype == DT_F16 && new->dtype == DT_F16);
    for (int i = 0; i < 16; i++)
        EXPECT(old->ropes[0].inv_freq[i] == new->ropes[0].inv_freq[i] &&
               old->ropes[0].inv_freq[i] == keyed->ropes[0].inv_freq[i]);
    EXPECT_STR(old->rope_notes[0], "linear, theta 500000, factor 4");
    EXPECT_STR(new->rope_notes[0], old->rope_notes[0]);
    model_spec_free(old);
    model_spec_free(new);
    model_spec_free(keyed);
}

/* Llama's class turns whole heads whatever the file says; yarn and dynamic make room for their factor. */
static void what_a_class_does_not_compute_is_not_computed(void **state) {
    (void)state;
    struct model_spec *s = spec_of(LLAMA, "{\"partial_rotary_factor\":0.5}");
    EXPECT_EQ(s->ropes[0].dim, s->head_dim);
    model_spec_free(s);
    s = spec_of(LLAMA, "{\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":3}}");
    EXPECT(s->max_positions == 300 && s->ropes[0].original_context == 100);
    model_spec_free(s);
    s = spec_of(LLAMA, "{\"max_position_embeddings\":100,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                       "\"original_max_position_embeddings\":50}}");
    EXPECT_EQ(s->max_positions, 200);
    model_spec_free(s);
}

static void absent_is_the_default_of_the_class_and_null_is_none(void **state) {
    (void)state;
    struct model_spec *s = spec_of("{\"model_type\":\"mistral\"}", "{}");
    EXPECT(s->hidden_size == 4096 && s->n_layers == 32 && s->n_kv_heads == 8 && s->head_dim == 128 &&
           s->vocab_size == 32000);
    EXPECT(s->sliding_window == 4096 && s->layers[31].mixer == MIX_SLIDING && s->bos == 1 && s->n_eos == 1 &&
           s->eos[0] == 2 && s->pad == -1);
    model_spec_free(s);
    s = spec_of("{\"model_type\":\"mistral\"}",
                "{\"sliding_window\":null,\"bos_token_id\":null,\"eos_token_id\":null}");
    EXPECT(s->sliding_window == 0 && s->layers[31].mixer == MIX_FULL && s->bos == -1 && s->n_eos == 0);
    model_spec_free(s);
    s = spec_of(DEEPSEEK, "{\"q_lora_rank\":null}");
    EXPECT(s->mla.q_rank == 0);
    model_spec_free(s);
    s = spec_of(DEEPSEEK, "{}");
    EXPECT(s->mla.q_rank == 1536 && s->mla.kv_rank == 512 && s->moe.n_experts == 256 && s->moe.scale == 2.5f &&
           s->n_mtp_layers == 1);
    EXPECT(s->layers[2].ffn_size == 512 && !s->layers[2].moe && s->layers[3].ffn_size == 0 && s->layers[3].moe);
    model_spec_free(s);
    s = spec_of(LLAMA, "{\"-\":[\"num_key_value_heads\"]}"); // Llama's class: as many as heads; Qwen2's: 32
    EXPECT_EQ(s->n_kv_heads, 8);
    model_spec_free(s);
    expect_refusal(QWEN2, "{\"-\":[\"num_key_value_heads\"]}", ERR_FORMAT,
                   "\"num_key_value_heads\" 32 does not divide");
}

/* A wrapper's config keeps the text model inside, and the flags of the whole outside. */
static void a_nested_text_config_is_found(void **state) {
    (void)state;
    struct model_spec *s = spec_of(
        "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"torch_dtype\":"
        "\"bfloat16\",\"eos_token_id\":["
        "1,"
        "106],\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"num_hidden_layers\":34,"
        "\"intermediate_size\":10240,"
        "\"sliding_window\":1024,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}},\"vision_config\":{}}",
        "{}");
    EXPECT(s->multimodal && s->hidden_size == 2560 && s->n_heads == 8 && s->vocab_size == 262208 && s->tied_embeddings);
    EXPECT_STR(s->model_type, "gemma3_text");
    EXPECT(s->n_eos == 2 && s->eos[1] == 106 && s->bos == 2);
    EXPECT_STR(s->rope_notes[s->layers[0].rope], "default, theta 10000");
    EXPECT_STR(s->rope_notes[s->layers[5].rope], "linear, theta 1e+06, factor 8");
    EXPECT(s->layers[4].mixer == MIX_SLIDING && s->layers[5].mixer == MIX_FULL && s->layers[33].mixer == MIX_SLIDING);
    EXPECT(fabs(s->embedding_scale - sqrt(2560)) < 1e-12 && fabs(s->attention_scale - 1.0 / 16) < 1e-12);
    model_spec_free(s);
}

static void qwen_windows_need_to_be_switched_on(void **state) {
    (void)state;
    struct model_spec *s = spec_of(QWEN2, "{\"sliding_window\":64,\"max_window_layers\":2}");
    EXPECT(s->sliding_window == 0 && s->layers[3].mixer == MIX_FULL && s->qkv_bias && !s->o_bias);
    model_spec_free(s);
    s = spec_of(QWEN2, "{\"sliding_window\":64,\"max_window_layers\":2,\"use_sliding_window\":true}");
    EXPECT(s->layers[1].mixer == MIX_FULL && s->layers[2].mixer == MIX_SLIDING && s->sliding_window == 64);
    model_spec_free(s);
    const char *types =
        "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}";
    expect_refusal(QWEN2, types, ERR_FORMAT, "layer 1 has a sliding window");
}

static void gemma4_layers_differ_in_heads_and_share_caches(void **state) {
    (void)state;
    struct model_spec *s = spec_of(GEMMA4, "{\"attention_k_eq_v\":true,\"num_global_key_value_heads\":2}");
    EXPECT(s->layers[5].mixer == MIX_FULL && s->layers[5].head_dim == 128 && s->layers[5].n_kv_heads == 2 &&
           s->layers[5].v_from_k);
    EXPECT(s->layers[4].mixer == MIX_SLIDING && s->layers[4].head_dim == 64 && s->layers[4].n_kv_heads == 4 &&
           !s->layers[4].v_from_k);
    EXPECT(s->attention_scale == 1 && s->ropes[s->layers[5].rope].dim == 128 &&
           s->ropes[s->layers[5].rope].inv_freq[16] == 0);
    EXPECT(s->ropes[s->layers[5].rope].inv_freq[15] > 0 && s->ropes[s->layers[4].rope].dim == 64);
    model_spec_free(s);
    s = spec_of(GEMMA4, "{\"attention_k_eq_v\":false}");
    EXPECT(!s->layers[5].v_from_k);
    model_spec_free(s);
    s = spec_of(GEMMA4,
                "{\"attention_k_eq_v\":true,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},"
                "\"sliding_attention\":{\"rope_type\":\"default\"}}}");
    EXPECT(s->layers[5].v_from_k && rope_turned(&s->ropes[s->layers[5].rope]) == 128); // all channels
    model_spec_free(s);
    s = spec_of(GEMMA4, "{\"attention_k_eq_v\":true,\"per_layer_config\":{\"5\":{\"head_dim\":128,\"num_key_value_"
                        "heads\":1},\"11\":{\"head_dim\":128}}}");
    EXPECT(s->layers[5].n_kv_heads == 1 && s->layers[11].n_kv_heads == 4 && s->layers[11].head_dim == 128);
    model_spec_free(s);
    s = spec_of(GEMMA4, "{\"num_kv_shared_layers\":4,\"use_double_wide_mlp\":true}"); // layers 8..11 share
    EXPECT(s->layers[7].kv_source == 7 && s->layers[8].kv_source == 7 && s->layers[10].kv_source == 7 &&
           s->layers[11].kv_source == 5);
    EXPECT(s->layers[7].ffn_size == 512 && s->layers[8].ffn_size == 1024);
    model_spec_free(s);
    expect_refusal(GEMMA4, "{\"num_kv_shared_layers\":8}", ERR_FORMAT, "layer 5 shares a cache");
    expect_refusal(GEMMA4, "{\"num_kv_shared_layers\":12}", ERR_FORMAT, "num_kv_shared_layers");
    expect_refusal(GEMMA4, "{\"num_kv_shared_layers\":1,\"per_layer_config\":{\"11\":{\"num_key_value_heads\":1}}}",
                   ERR_FORMAT, "heads are others");
    expect_refusal(GEMMA4, "{\"per_layer_config\":{\"5\":{\"hidden_size\":1}}}", ERR_UNSUPPORTED, "hidden_size");
    expect_refusal(GEMMA4, "{\"per_layer_config\":{\"12\":{\"head_dim\":1}}}", ERR_FORMAT, "layer \"12\"");
    expect_refusal(GEMMA4, "{\"enable_moe_block\":true}", ERR_FORMAT, "num_experts");
    expect_refusal(GEMMA4, "{\"use_bidirectional_attention\":\"all\"}", ERR_UNSUPPORTED, "all");
}

// MODELS of DeepSeek: m^2 on the softmax scale, 1 on cos and sin.
static void deepseek_scales_the_softmax_by_m_squared(void **state) {
    (void)state;
    struct model_spec *s = spec_of(DEEPSEEK, "{}");
    EXPECT(fabs(s->attention_scale / pow(192, -0.5) - 1.873854) < 1e-6);
    EXPECT(s->ropes[0].factor == 1 && s->ropes[0].pairing == ROPE_INTERLEAVED && s->ropes[0].dim == 64);
    model_spec_free(s);
    s = spec_of(DEEPSEEK, "{\"rope_interleave\":false}");
    EXPECT(s->ropes[0].pairing == ROPE_HALF);
    model_spec_free(s);
    s = spec_of(DEEPSEEK, "{\"-\":[\"rope_scaling\"],\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":40,"
                          "\"mscale\":0.707,\"mscale_all_dim\":0.707,"
                          "\"original_max_position_embeddings\":4096}}");
    EXPECT(fabs(s->attention_scale / pow(192, -0.5) - 1.589626) < 1e-6);
    model_spec_free(s);
}

static void experts_stand_where_the_step_puts_them(void **state) {
    (void)state;
    struct model_spec *s = spec_of(QWEN3_MOE, "{\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}");
    EXPECT(!s->layers[0].moe && s->layers[0].ffn_size == 512 && s->layers[1].moe && s->layers[1].ffn_size == 0 &&
           !s->layers[3].moe);
    EXPECT(s->moe.n_experts == 8 && s->moe.top_k == 2 && !s->moe.renormalise);
    model_spec_free(s);
    s = spec_of(QWEN3_MOE, "{\"-\":[\"num_experts\"],\"num_local_experts\":16}"); // as transformers 5 writes it
    EXPECT_EQ(s->moe.n_experts, 16);
    model_spec_free(s);
    s = spec_of("{\"model_type\":\"gpt_oss\"}", "{}");
    EXPECT(s->moe.n_experts == 128 && s->moe.top_k == 4 && s->layers[0].mixer == MIX_SLIDING &&
           s->layers[1].mixer == MIX_FULL && s->o_bias);
    EXPECT(fabs((double)s->ropes[0].factor - 1.3465735902799727) < 1e-6 && s->swiglu_limit == 7);
    model_spec_free(s);
}

static void every_fourth_layer_of_a_hybrid_is_attention(void **state) {
    (void)state;
    struct model_spec *s = spec_of(HYBRID, "{\"mtp_num_hidden_layers\":1}");
    EXPECT(s->layers[2].mixer == MIX_DELTA && s->layers[3].mixer == MIX_FULL && s->layers[7].mixer == MIX_FULL &&
           s->n_mtp_layers == 1);
    EXPECT(s->ropes[0].dim == 16 && s->delta.n_value_heads == 32 && s->delta.conv_kernel == 4);
    model_spec_free(s);
    expect_refusal(HYBRID, "{\"linear_num_value_heads\":24}", ERR_FORMAT, "linear_num_value_heads");
    expect_refusal(HYBRID, "{\"linear_num_value_heads\":262144,\"linear_value_head_dim\":1}", ERR_FORMAT,
                   "the keys of linear attention would be 33554432 wide");
    expect_refusal(HYBRID, "{\"attn_output_gate\":false}", ERR_UNSUPPORTED, "attn_output_gate");
}

/* ---- what is refused ---- */

static void every_faulty_key_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *base, *patch;
        enum status status;
        const char *says;
    } cases[] = {
        {LLAMA, "{\"-\":[\"model_type\"]}", ERR_FORMAT, "\"model_type\" is missing"},
        {LLAMA, "{\"model_type\":\"mamba\"}", ERR_UNSUPPORTED, "mamba"},
        {LLAMA, "{\"model_type\":[]}", ERR_FORMAT, "\"model_type\" is an array"},
        {LLAMA, "{\"architectures\":[\"LlamaForCausalLMEagle\"]}", ERR_UNSUPPORTED, "LlamaForCausalLMEagle"},
        {LLAMA, "{\"architectures\":[\"LlamaForCausalLMEagle3\"]}", ERR_UNSUPPORTED, "EAGLE-3 head is 3"},
        {LLAMA, "{\"architectures\":[\"DFlashDraftModel\"]}", ERR_FORMAT, "target_layer_ids"},
        {LLAMA, "{\"architectures\":[\"LlamaForSequenceClassification\"]}", ERR_UNSUPPORTED,
         "LlamaForSequenceClassification"},
        {LLAMA, "{\"hidden_size\":0}", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA, "{\"hidden_size\":-4096}", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA, "{\"hidden_size\":4611686018427387904}", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA, "{\"hidden_size\":1e30}", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA, "{\"hidden_size\":\"4096\"}", ERR_FORMAT, "\"hidden_size\" is a string"},
        {LLAMA, "{\"hidden_size\":256.5}", ERR_FORMAT, "\"hidden_size\""},
        {LLAMA, "{\"num_hidden_layers\":0}", ERR_FORMAT, "\"num_hidden_layers\""},
        {LLAMA, "{\"num_hidden_layers\":1001}", ERR_FORMAT, "\"num_hidden_layers\" is 1001"},
        {LLAMA, "{\"num_attention_heads\":0}", ERR_FORMAT, "\"num_attention_heads\""},
        {LLAMA, "{\"num_key_value_heads\":3}", ERR_FORMAT, "\"num_key_value_heads\" 3 does not divide"},
        {LLAMA, "{\"num_key_value_heads\":16}", ERR_FORMAT, "\"num_key_value_heads\" 16 does not divide"},
        {LLAMA, "{\"num_attention_heads\":16777216,\"num_key_value_heads\":1,\"head_dim\":2}", ERR_FORMAT,
         "query heads"},
        {LLAMA, "{\"head_dim\":16777216}", ERR_FORMAT, "query heads"},
        {LLAMA, "{\"intermediate_size\":0}", ERR_FORMAT, "\"intermediate_size\""},
        {LLAMA, "{\"vocab_size\":0}", ERR_FORMAT, "\"vocab_size\""},
        {LLAMA, "{\"vocab_size\":2147483648}", ERR_FORMAT, "\"vocab_size\""},
        {LLAMA, "{\"max_position_embeddings\":0}", ERR_FORMAT, "\"max_position_embeddings\""},
        {LLAMA, "{\"rms_norm_eps\":-1}", ERR_FORMAT, "\"rms_norm_eps\""},
        {LLAMA, "{\"rms_norm_eps\":\"tiny\"}", ERR_FORMAT, "\"rms_norm_eps\""},
        {LLAMA, "{\"hidden_act\":\"relu2\"}", ERR_UNSUPPORTED, "relu2"},
        {LLAMA, "{\"torch_dtype\":\"float7\"}", ERR_FORMAT, "float7"},
        {LLAMA, "{\"tie_word_embeddings\":1}", ERR_FORMAT, "\"tie_word_embeddings\""},
        {LLAMA, "{\"attention_bias\":\"yes\"}", ERR_FORMAT, "\"attention_bias\""},
        {LLAMA, "{\"eos_token_id\":\"</s>\"}", ERR_FORMAT, "\"eos_token_id\""},
        {LLAMA, "{\"eos_token_id\":9999999999}", ERR_FORMAT, "\"eos_token_id\""},
        {LLAMA, "{\"bos_token_id\":-2}", ERR_FORMAT, "\"bos_token_id\""},
        {LLAMA, "{\"per_layer_config\":{\"0\":{\"head_dim\":64}}}", ERR_UNSUPPORTED, "per_layer_config"},
        {LLAMA, "{\"text_config\":7}", ERR_FORMAT, "\"text_config\""},
        {LLAMA, "{\"quantization_config\":[]}", ERR_FORMAT, "quantisation settings are an array"},
        {LLAMA, "{\"quantization_config\":{}}", ERR_UNSUPPORTED, "\"quant_method\""},
        {LLAMA, "{\"quantization_config\":{\"quant_method\":\"aqlm\"}}", ERR_UNSUPPORTED, "aqlm"},
        {LLAMA, "{\"quantization\":{\"group_size\":64,\"bits\":4}}", ERR_UNSUPPORTED, "MLX"},
        {QWEN2, "{\"layer_types\":[\"full_attention\"]}", ERR_FORMAT, "\"layer_types\" has 1 entries"},
        {QWEN2, "{\"layer_types\":[1,2,3,4]}", ERR_UNSUPPORTED, "\"layer_types\""},
        {QWEN2, "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_attention\"]}",
         ERR_UNSUPPORTED, "linear_attention"},
        {QWEN3_MOE, "{\"num_experts_per_tok\":9}", ERR_FORMAT, "9 of 8 experts"},
        {QWEN3_MOE, "{\"num_experts\":0}", ERR_FORMAT, "\"num_experts\""},
        {QWEN3_MOE, "{\"num_experts\":16777216}", ERR_FORMAT, "experts of all layers"},
        {QWEN3_MOE, "{\"num_experts\":65536,\"num_experts_per_tok\":1,\"moe_intermediate_size\":16777216}", ERR_FORMAT,
         "experts of a layer"},
        {QWEN3_MOE, "{\"decoder_sparse_step\":0}", ERR_FORMAT, "\"decoder_sparse_step\""},
        {DEEPSEEK, "{\"n_group\":7}", ERR_FORMAT, "\"n_group\" 7 does not divide"},
        {DEEPSEEK, "{\"topk_group\":9}", ERR_FORMAT, "\"topk_group\" 9"},
        {DEEPSEEK, "{\"n_group\":256,\"topk_group\":8}", ERR_FORMAT, "\"n_group\" 256"},
        {DEEPSEEK, "{\"scoring_func\":\"softmax\"}", ERR_UNSUPPORTED, "softmax"},
        {DEEPSEEK, "{\"moe_layer_freq\":2}", ERR_UNSUPPORTED, "\"moe_layer_freq\""},
        {DEEPSEEK, "{\"kv_lora_rank\":0}", ERR_FORMAT, "\"kv_lora_rank\""},
        {DEEPSEEK, "{\"qk_rope_head_dim\":7}", ERR_FORMAT, "rope"},
        {"{\"model_type\":\"gpt_oss\"}", "{\"hidden_size\":2888,\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
         ERR_FORMAT, "multiples of 32"},
        {"{\"model_type\":\"gpt_oss\"}", "{\"swiglu_alpha\":1}", ERR_UNSUPPORTED, "swiglu_alpha"},
        {"{\"model_type\":\"gemma2\"}", "{\"query_pre_attn_scalar\":0}", ERR_FORMAT, "query_pre_attn_scalar"},
        {"{\"model_type\":\"gemma2\"}", "{\"final_logit_softcapping\":-1}", ERR_FORMAT, "final_logit_softcapping"},
        {"{\"model_type\":\"gemma2\"}", "{\"sliding_window\":null}", ERR_FORMAT, "sliding_window"},
        {"{\"model_type\":\"diffllama\"}", "{\"num_attention_heads\":31}", ERR_FORMAT, "even"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect_refusal(cases[i].base, cases[i].patch, cases[i].status, cases[i].says);
}

static void what_is_no_config_is_refused(void **state) {
    (void)state;
    struct model_spec *s;
    struct error err;
    EXPECT_EQ(model_spec_open(write_json("config.json", "[1,2]"), &s, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "is an array"));
    EXPECT_EQ(
        model_spec_open(write_json("config.json", "{\"model_type\":\"llama\",\"model_type\":\"gemma\"}"), &s, &err),
        ERR_FORMAT);
    EXPECT(strstr(err.text, "duplicate"));
    EXPECT_EQ(model_spec_open(write_json("config.json", ""), &s, &err), ERR_FORMAT);
    EXPECT_EQ(model_spec_open("/nowhere/config.json", &s, &err), ERR_IO);
    EXPECT_EQ(model_spec_open("docs", &s, &err), ERR_IO);
    EXPECT(strstr(err.text, "config.json"));
}

static void generation_config_stands_over_config(void **state) {
    (void)state;
    char folder[200], path[300];
    struct model_spec *s;
    struct error err;
    snprintf(folder, sizeof folder, "%s/model", dir);
    mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/config.json", folder);
    EXPECT_OK(file_write(path, STR(LLAMA), &err), err);
    EXPECT_OK(model_spec_open(folder, &s, &err), err);
    EXPECT(s->eos[0] == 2 && s->generation.temperature < 0 && s->generation.top_k == -1);
    model_spec_free(s);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    EXPECT_OK(
        file_write(path,
                   STR("{\"eos_token_id\":[5,6],\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,\"do_sample\":true}"),
                   &err),
        err);
    EXPECT_OK(model_spec_open(folder, &s, &err), err);
    EXPECT(s->n_eos == 3 && s->eos[0] == 2 && s->eos[1] == 5 && s->eos[2] == 6 && s->generation.temperature == 0.6 &&
           s->generation.top_k == 20 && s->generation.do_sample);
    model_spec_free(s);
    EXPECT_OK(file_write(path, STR("{\"eos_token_id\":\"x\"}"), &err), err);
    EXPECT_EQ(model_spec_open(folder, &s, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "generation_config.json: \"eos_token_id\""));
    unlink(path);
    EXPECT_EQ(symlink("/etc/hostname", path), 0);
    EXPECT_EQ(model_spec_open(folder, &s, &err), ERR_FORMAT);
    EXPECT(strstr(err.text, "outside the model's folder"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faulty_rope_parameters_are_refused),
        cmocka_unit_test(both_layouts_say_the_same),
        cmocka_unit_test(what_a_class_does_not_compute_is_not_computed),
        cmocka_unit_test(absent_is_the_default_of_the_class_and_null_is_none),
        cmocka_unit_test(a_nested_text_config_is_found),
        cmocka_unit_test(qwen_windows_need_to_be_switched_on),
        cmocka_unit_test(gemma4_layers_differ_in_heads_and_share_caches),
        cmocka_unit_test(deepseek_scales_the_softmax_by_m_squared),
        cmocka_unit_test(experts_stand_where_the_step_puts_them),
        cmocka_unit_test(every_fourth_layer_of_a_hybrid_is_attention),
        cmocka_unit_test(every_faulty_key_is_refused_by_name),
        cmocka_unit_test(what_is_no_config_is_refused),
        cmocka_unit_test(generation_config_stands_over_config),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
