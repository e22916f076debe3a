/* registry.c - the model families. A new one is a file and a name here. */
#include "model/families/family.h"

#define FAMILIES(X)                                                                                               \
    X(llama)                                                                                                      \
    X(qwen2)                                                                                                      \
    X(qwen3)                                                                                                      \
    X(gemma2) X(gemma3) X(gemma4) X(mixtral) X(phi3) X(qwen3_moe) X(gpt_oss) X(deepseek) X(qwen3_next) X(smollm3) \
        X(diffllama) X(llama4) X(gemma) X(qwen2_moe) X(gpt2) X(qwen) X(eagle3) X(dflash) X(gemma4_assistant)

// clang-format off
#define DECLARE(name) extern const struct family family_##name;
#define ADDRESS(name) &family_##name,
// clang-format on
FAMILIES(DECLARE)
static const struct family *const families[] = {FAMILIES(ADDRESS)};

/* Calls of the loop body with every type of every family. */
#define EACH_TYPE(f, t)                              \
    for (size_t f = 0; f < ARRAY_LEN(families); f++) \
        for (const struct model_type *t = families[f]->types; t->name; t++)

const struct family *family_find(const char *model_type) {
    EACH_TYPE(f, t)
    if (strcmp(t->name, model_type) == 0)
        return families[f];
    return NULL;
}

const struct model_type *model_type_find(const char *name, const char *architecture) {
    // a text_config may leave its type out, and then the wrapper's stands for it
    static const char *const aliases[][2] = {
        {"gemma3", "gemma3_text"},           {"gemma4", "gemma4_text"},   {"gemma4_unified_text", "gemma4_text"},
        {"gemma4_unified", "gemma4_text"},   {"qwen3_5", "qwen3_5_text"}, {"llama4", "llama4_text"},
        {"qwen3_5_moe", "qwen3_5_moe_text"}, {"kimi_k25", "kimi_k2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(aliases); i++)
        if (strcmp(name, aliases[i][0]) == 0)
            name = aliases[i][1];
    EACH_TYPE(f, t)
    if (architecture && strcmp(architecture, t->class_name) == 0)
        return t;
    EACH_TYPE(f, t)
    if (strcmp(t->name, name) == 0)
        return t;
    return NULL;
}
