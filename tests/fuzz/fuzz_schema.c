/* fuzz_schema.c - any bytes as a JSON Schema, and what they say as texts: refused with a sentence, or a grammar
 * that takes bytes, goes back, and never stands where no text can be finished. */
#include "base/json/json.h"
#include "grammar/matcher.h"

/* Takes what the grammar allows of the bytes, each tried once. */
static void walk(struct matcher *m, const uint8_t *data, size_t n_bytes) {
    size_t taken = 0;
    for (size_t i = 0; i < n_bytes && i < 512; i++)
        taken += matcher_accept_bytes(m, (struct str){(const char *)&data[i], 1});
    struct buf forced = {0};
    matcher_forced(m, 64, &forced);
    BUG_IF(!matcher_is_dead(m, NULL) && forced.len > 0 && !matcher_accept_bytes(m, buf_view(&forced)));
    buf_release(&forced);
    BUG_IF(matcher_n_tokens(m) < taken);
    matcher_back(m, matcher_n_tokens(m));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    struct error err = {0};
    json_t *schema;
    struct str text = {(const char *)data, n_bytes};
    if (jv_parse(text, "schema", JV_ALLOW_DUPLICATES, &schema, &err) != OK)
        return 0;
    struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .value = schema};
    struct grammar_limits limits = {.nodes = 200000, .memory_bytes = 64 << 20};
    struct grammar *grammar;
    struct matcher *matcher;
    if (grammar_compile(&source, &limits, &grammar, &err) == OK) {
        if (matcher_open(grammar, NULL, &matcher, &err) == OK) {
            walk(matcher, data, n_bytes);
            matcher_free(matcher);
        }
        grammar_release(grammar);
    } else {
        BUG_IF(err.text[0] == '\0' || !utf8_valid(str_of(err.text)));
    }
    json_decref(schema);
    return 0;
}
