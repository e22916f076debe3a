/* fuzz_tokenizer_pattern.c - any bytes are a splitting pattern, in its first line, and a text that it cuts without
 * losing anything, or one sentence. */
#include "text/regex/pattern.h"

#include "text/regex/unicode.h"

struct tiles {
    size_t end;
};

static enum status next_tile(void *arg, size_t begin, size_t end, struct error *err) {
    (void)err;
    struct tiles *t = arg;
    BUG_IF(begin != t->end || end <= begin);
    t->end = end;
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    struct str all = {n_bytes ? (const char *)bytes : "", n_bytes};
    const char *line_end = memchr(all.ptr, '\n', all.len);
    struct str regex = {all.ptr, line_end ? (size_t)(line_end - all.ptr) : all.len};
    struct pattern pattern;
    struct error err;
    if (pattern_of_regex(regex, REGEX_ONIGURUMA, "fuzz", &pattern, &err) != OK)
        return 0;
    struct buf text = {0};
    utf8_append_lossy(&text, (struct str){all.ptr + regex.len, MIN(all.len - regex.len, 200)}, false);
    struct regex_memory *m = regex_memory_open();
    struct tiles tiles = {0};
    if (split_text(&pattern, SPLIT_ISOLATED, false, m, buf_view(&text), next_tile, &tiles, &err) == OK)
        BUG_IF(tiles.end != text.len);
    regex_memory_free(m);
    pattern_release(&pattern);
    buf_release(&text);
    return 0;
}
