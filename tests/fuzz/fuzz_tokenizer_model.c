/* fuzz_tokenizer_model.c - any bytes are a SentencePiece model that encodes and decodes, or one sentence. */
#include "tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    fuzz_write("tokenizer.model", (struct str){(const char *)bytes, n_bytes}, path);
    fuzz_tokenizer(path);
    return 0;
}
