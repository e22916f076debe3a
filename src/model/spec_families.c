/* spec_families.c - the table of model types: class, defaults, reader.
 *
 * Defaults are those of transformers' configuration classes, compared with 5.23. */
#include "model/spec_read.h"

#define SILU "hidden_act", "silu"
#define GELU "hidden_activation", "gelu_pytorch_tanh"
#define GELU_1 "hidden_act", "gelu_pytorch_tanh"
#define GELU_NEW "activation_function", "gelu_new"

static const char *const gpt2_keys[][2] = {{"n_embd", "hidden_size"},
                                           {"n_layer", "num_hidden_layers"},
                                           {"n_head", "num_attention_heads"},
                                           {"n_inner", "intermediate_size"},
                                           {"n_positions", "max_position_embeddings"},
                                           {"layer_norm_epsilon", "rms_norm_eps"},
                                           {NULL, NULL}};
static const char *const qwen_keys[][2] = {{"layer_norm_epsilon", "rms_norm_eps"},
                                           {"rotary_emb_base", "rope_theta"},
                                           {"kv_channels", "head_dim"},
                                           {NULL, NULL}};

// clang-format off
static const struct spec_family families[] = {
    // type                class                       vocab  hidden    ffn  layers  heads   kv   hd  max_pos   eps    theta  partial act       tied      bos    eos    pad reader            renames
    {"llama",            "Llama",                   32000,   4096, 11008,     32,    32,   0,   0,    2048, 1e-6,   10000,       0, SILU,     false,     1,     2,    -1, read_llama,       NULL},
    {"mistral",          "Mistral",                 32000,   4096, 14336,     32,    32,   8,   0,  131072, 1e-6,   10000,       0, SILU,     false,     1,     2,    -1, read_mistral,     NULL},
    {"qwen2",            "Qwen2",                  151936,   4096, 22016,     32,    32,  32,   0,   32768, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_qwen2,       NULL},
    {"qwen3",            "Qwen3",                  151936,   4096, 22016,     32,    32,  32, 128,   32768, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_qwen3,       NULL},
    {"diffllama",        "DiffLlama",               32000,   2048,  8192,     16,    32,   0,   0,    2048, 1e-5,   10000,       0, SILU,     false,     1,     2,    -1, read_diffllama,   NULL},
    {"phi3",             "Phi3",                    32064,   3072,  8192,     32,    32,   0,   0,    4096, 1e-5,   10000,       1, SILU,     false,     1, 32000, 32000, read_phi3,        NULL},
    {"gemma",            "Gemma",                  256000,   3072, 24576,     28,    16,  16, 256,    8192, 1e-6,   10000,       0, GELU_1,   true,      2,     1,     0, read_gemma,       NULL},
    {"gemma2",           "Gemma2",                 256000,   2304,  9216,     26,     8,   4, 256,    8192, 1e-6,   10000,       0, GELU,     true,      2,     1,     0, read_gemma2,      NULL},
    {"gemma3_text",      "Gemma3",                 262208,   2304,  9216,     26,     8,   4, 256,  131072, 1e-6, 1000000,       0, GELU,     true,      2,     1,     0, read_gemma3,      NULL},
    {"gemma4_text",      "Gemma4",                 262144,   2304,  9216,     30,     8,   4, 256,  131072, 1e-6, 1000000,       0, GELU,     true,      2,     1,     0, read_gemma4,      NULL},
    {"mixtral",          "Mixtral",                 32000,   4096, 14336,     32,    32,   8,   0,  131072, 1e-5, 1000000,       0, SILU,     false,     1,     2,    -1, read_mixtral,     NULL},
    {"qwen2_moe",        "Qwen2Moe",               151936,   2048,  5632,     24,    16,  16,   0,   32768, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_qwen2_moe,   NULL},
    {"qwen3_moe",        "Qwen3Moe",               151936,   2048,  6144,     24,    32,   4,   0,   32768, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_qwen3_moe,   NULL},
    {"gpt_oss",          "GptOss",                 201088,   2880,  2880,     36,    64,   8,  64,  131072, 1e-5,  150000,       0, SILU,     false,    -1,    -1,    -1, read_gpt_oss,     NULL},
    {"deepseek_v2",      "DeepseekV2",             102400,   4096, 11008,     32,    32,   0,   0,    2048, 1e-6,   10000,       0, SILU,     false,     1,     2,    -1, read_deepseek_v2, NULL},
    {"deepseek_v3",      "DeepseekV3",             129280,   7168, 18432,     61,   128, 128,   0,    4096, 1e-6,   10000,       0, SILU,     false,     0,     1,    -1, read_deepseek_v3, NULL},
    {"kimi_k2",          "DeepseekV3",             129280,   7168, 18432,     61,   128, 128,   0,    4096, 1e-6,   10000,       0, SILU,     false,     0,     1,    -1, read_deepseek_v3, NULL},
    {"qwen3_next",       "Qwen3Next",              151936,   2048,  5632,     48,    16,   2, 256,   32768, 1e-6,   10000,    0.25, SILU,     false,    -1,    -1,    -1, read_qwen3_next,  NULL},
    {"qwen3_5_text",     "Qwen3_5",                248320,   4096, 12288,     32,    16,   4, 256,   32768, 1e-6,   10000,    0.25, SILU,     false,    -1,    -1,    -1, read_qwen3_5,     NULL},
    {"qwen3_5_moe_text", "Qwen3_5Moe",             248320,   2048,  5632,     40,    16,   2, 256,   32768, 1e-6,   10000,    0.25, SILU,     false,    -1,    -1,    -1, read_qwen3_5_moe, NULL},
    {"llama4_text",      "Llama4",                 202048,   5120,  8192,     48,    40,   8, 128,  131072, 1e-5,  500000,       0, SILU,     false,     1,     2,    -1, read_llama4,      NULL},
    {"gpt2",             "GPT2",                    50257,    768,  3072,     12,    12,   0,   0,    1024, 1e-5,   10000,       0, GELU_NEW, true,  50256, 50256,    -1, read_gpt2,        gpt2_keys},
    {"qwen",             "QWen",                   151936,   4096, 22016,     32,    32,   0,   0,    8192, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_qwen,        qwen_keys},
    {"eagle3",           "LlamaForCausalLMEagle3",  32000,   4096, 11008,      1,    32,   0,   0,    2048, 1e-6,   10000,       0, SILU,     false,     1,     2,    -1, read_eagle3,      NULL},
    {"dflash",           "DFlashDraftModel",       151936,   4096, 22016,      5,    32,  32, 128,   32768, 1e-6,   10000,       0, SILU,     false,    -1,    -1,    -1, read_dflash,      NULL},
};
// clang-format on

const struct spec_family *spec_family_find(const char *model_type, const char *architecture) {
    // a text_config may leave its type out, and then the wrapper's stands for it
    static const char *const aliases[][2] = {
        {"gemma3", "gemma3_text"},           {"gemma4", "gemma4_text"},   {"gemma4_unified_text", "gemma4_text"},
        {"gemma4_unified", "gemma4_text"},   {"qwen3_5", "qwen3_5_text"}, {"llama4", "llama4_text"},
        {"qwen3_5_moe", "qwen3_5_moe_text"}, {"kimi_k25", "kimi_k2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (strcmp(model_type, aliases[i][0]) == 0)
            model_type = aliases[i][1];
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (architecture && strcmp(architecture, families[i].class_name) == 0)
            return &families[i];
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strcmp(model_type, families[i].model_type) == 0)
            return &families[i];
    return NULL;
}
