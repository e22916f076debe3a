/* fuzz_gguf_model.c - any bytes are a GGUF file whose tokenizer, chat template and description are read, or one
 * sentence each. */
#include "tokenizer_fuzz.h"

#include "model/model.h"
#include "text/chat/template_chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    struct error err = {0};
    struct model_spec *spec;
    struct chat_template *chat;
    int64_t n_parameters, stored_bytes[N_STORAGES];
    fuzz_write("m.gguf", (struct str){(const char *)bytes, n_bytes}, path);
    fuzz_tokenizer(path);
    if (chat_template_open(path, &chat, &err) == OK)
        chat_template_free(chat);
    if (model_spec_open(path, &spec, &err) != OK)
        return 0;
    if ((int64_t)spec->n_layers * (spec->moe.n_experts + 1) < 2000)
        (void)model_count_at(path, spec, &n_parameters, stored_bytes, &err, &err);
    model_spec_free(spec);
    return 0;
}
