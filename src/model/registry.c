/* registry.c - the model families. A new one is a file and a row. */
#include "model/family.h"

static const struct family *const families[] = {
    &family_llama,     &family_qwen2,      &family_qwen3,     &family_gemma2,    &family_gemma3,
    &family_gemma4,    &family_mixtral,    &family_phi3,      &family_qwen3_moe, &family_gpt_oss,
    &family_deepseek,  &family_qwen3_next, &family_diffllama, &family_llama4,    &family_gemma,
    &family_qwen2_moe, &family_gpt2,       &family_qwen,      &family_eagle3,    &family_dflash,
};

const struct family *family_find(const char *model_type) {
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            if (strcmp(*t, model_type) == 0)
                return families[i];
    return NULL;
}
