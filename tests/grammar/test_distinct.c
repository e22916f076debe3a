/* test_distinct.c - members that differ (uniqueItems, minProperties over free keys): the mask is what the matcher says
 * of each token by itself, with tokens that hold several whole members, on random walks. */
#include "check.h"

#include "base/random.h"
#include "grammar/matcher.h"

static const char *const words[] = {
    "\",\"", "\"a\"",     "\"a\",\"a\"", "a\",\"a",       "1,1",         ",1",        "1,",      "\"\",\"\"",
    ",\"\"", "2,1",       "12,",         "\"a\",",        ",\"a\"",      "[\"a\",\"", "a\"",     "b",
    "3,2,",  "\", \"a\"", "true,",       "null,true",     "{\"a\":1,",   "\":1,\"",   "\"b\":2", ",\"a\":1",
    ", 3]",  "3]",        "\"x\",\"",    "x\",\"y\",\"x", "\":1,\"a\":", "1}",
};
enum { N_WORDS = ARRAY_LEN(words), END = 256 + N_WORDS, N_VOCAB, N_MASK = (N_VOCAB + 31) / 32 };

static const char *const schemas[] = {
    "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":1,\"pattern\":\"^[ab]?$\"},\"uniqueItems\":true}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":3},\"uniqueItems\":true,"
    "\"minItems\":2}",
    "{\"type\":\"array\",\"items\":{\"type\":[\"boolean\",\"null\",\"integer\"]},\"uniqueItems\":true,\"maxItems\":4}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^(x|y.*)$\"},\"uniqueItems\":true}",
    "{\"type\":\"object\",\"minProperties\":2,\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"minProperties\":3,\"propertyNames\":{\"pattern\":\"^[abx]$\"}}",
};

static struct token_trie *open_trie(void) {
    struct token_text tokens[N_VOCAB];
    static char bytes[256];
    for (int b = 0; b < 256; b++) {
        bytes[b] = (char)b;
        tokens[b] = (struct token_text){{&bytes[b], 1}, TOKEN_TEXT};
    }
    for (size_t i = 0; i < N_WORDS; i++)
        tokens[256 + i] = (struct token_text){str_of(words[i]), TOKEN_TEXT};
    tokens[END] = (struct token_text){STR("<end>"), TOKEN_SPECIAL};
    struct token_trie *trie;
    struct error err;
    EXPECT_OK(token_trie_open(tokens, N_VOCAB, &(int32_t){END}, 1, &trie, &err), err);
    return trie;
}

static bool in(const uint32_t *mask, int32_t t) { return mask[t / 32] >> (t % 32) & 1; }

static void check_mask(struct matcher *m, uint32_t mask[N_MASK]) {
    matcher_mask(m, mask);
    for (int32_t t = 0; t < N_VOCAB; t++) {
        bool takes = matcher_accept(m, t);
        if (takes)
            matcher_back(m, 1);
        if (takes != in(mask, t))
            fail_msg("token %d: accepted %d, in the mask %d", t, takes, in(mask, t));
    }
}

/* An allowed token; words with several members rather than bytes. */
static int32_t draw(const uint32_t *mask, uint64_t seed, uint64_t step) {
    int32_t found = -1;
    uint32_t best = 0;
    for (int32_t t = 0; t < N_VOCAB; t++) {
        uint32_t score = philox4x32(seed, step, (uint64_t)t).v[0] >> (t < 128 ? 3 : t < 256 ? 8 : 0);
        if (in(mask, t) && score >= best) {
            best = score;
            found = t;
        }
    }
    return found;
}

static void walk(struct grammar *g, struct token_trie *trie, uint64_t seed) {
    struct matcher *m;
    struct error err;
    EXPECT_OK(matcher_open(g, trie, &m, &err), err);
    for (uint64_t step = 0; step < 40; step++) {
        uint32_t mask[N_MASK];
        check_mask(m, mask);
        int32_t t = draw(mask, seed, step);
        EXPECT(t >= 0 || matcher_has_ended(m)); // there is always a way on, or the end
        if (t < 0)
            break;
        EXPECT(matcher_accept(m, t));
    }
    matcher_free(m);
}

static void masks_are_what_each_token_would_say(void **state) {
    (void)state;
    struct token_trie *trie = open_trie();
    uint64_t seed = test_seed();
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        json_t *schema;
        struct grammar *g;
        struct error err;
        EXPECT_OK(jv_parse(str_of(schemas[i]), "test", 0, &schema, &err), err);
        struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .value = schema};
        EXPECT_OK(grammar_compile(&source, NULL, &g, &err), err);
        for (uint64_t k = 0; k < (test_is_brief() ? 8 : 30); k++)
            walk(g, trie, seed + 1000 * i + k);
        grammar_release(g);
        json_decref(schema);
    }
    token_trie_free(trie);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_are_what_each_token_would_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
