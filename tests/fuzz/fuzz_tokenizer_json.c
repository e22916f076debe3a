/* fuzz_tokenizer_json.c - any bytes are a tokenizer.json that encodes and decodes, or one sentence. */
#include "tokenizer_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    fuzz_write("tokenizer.json", (struct str){(const char *)bytes, n_bytes}, path);
    fuzz_tokenizer(path);
    return 0;
}
