/* fuzz_tokenizer_ranks.c - any bytes are tiktoken ranks, a splitting pattern and a tokenizer_config.json, parted by
 * lines of "==", or one sentence. */
#include "tokenizer_fuzz.h"

/* What is before the next "\n==\n"; rest is what is behind it. */
static struct str take_part(struct str *rest) {
    const char *mark = rest->len ? memmem(rest->ptr, rest->len, "\n==\n", 4) : NULL;
    struct str part = {rest->ptr, mark ? (size_t)(mark - rest->ptr) : rest->len};
    size_t used = part.len + (mark ? 4 : 0);
    *rest = (struct str){rest->ptr + used, rest->len - used};
    return part;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    struct str rest = {n_bytes ? (const char *)bytes : "", n_bytes};
    struct str ranks = take_part(&rest), pattern = take_part(&rest);
    fuzz_write("tokenizer_config.json", rest, path);
    fuzz_write("pattern.txt", pattern, path);
    fuzz_write("ranks.tiktoken", ranks, path);
    fuzz_tokenizer(path);
    return 0;
}
