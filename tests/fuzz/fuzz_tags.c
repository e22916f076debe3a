/* fuzz_tags.c - any bytes as a structural tag, with the grammars and schemas in it, and what they say as texts: refused
 * with a sentence, or a grammar whose masks and matcher agree, and that never stands where no text can be finished. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct error err = {0};
    json_t *tag;
    if (jv_parse((struct str){(const char *)data, n_bytes}, "tag", JV_ALLOW_DUPLICATES, &tag, &err) != OK)
        return 0;
    fuzz_source(&(struct grammar_source){.kind = GRAMMAR_STRUCTURAL_TAG, .value = tag}, data, n_bytes);
    json_decref(tag);
    return 0;
}
