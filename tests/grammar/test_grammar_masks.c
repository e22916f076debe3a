/* test_grammar_masks.c - masks at a vocabulary of 152k, where tables are made beside one another: against trying every
 * token. And threads that share a grammar.
 *
 * Not in make test-fast: each mask is compared token by token. */
#include "check.h"

#include "base/json/json.h"
#include "base/random.h"
#include "grammar/matcher.h"
#include "text/token_trie.h"

#include <pthread.h>

static struct token_trie *qwen3(void) {
    static struct token_trie *trie;
    struct tokenizer *tok;
    struct error err;
    if (trie)
        return trie;
    EXPECT_OK(tokenizer_open("build/data/tokenizers/qwen3/tokenizer.json", &tok, &err), err);
    int32_t end = tokenizer_find(tok, STR("<|im_end|>"));
    EXPECT(end > 0);
    EXPECT_OK(tokenizer_trie(tok, &end, 1, &trie, &err), err);
    tokenizer_free(tok);
    return trie;
}

static struct grammar *compile(enum grammar_kind kind, const char *text) {
    struct grammar *g;
    struct error err;
    json_t *value = NULL;
    if (kind == GRAMMAR_JSON_SCHEMA)
        EXPECT_OK(jv_parse(str_of(text), "test", 0, &value, &err), err);
    struct grammar_source source = {.kind = kind, .text = str_of(text), .value = value};
    EXPECT_OK(grammar_compile(&source, NULL, &g, &err), err);
    json_decref(value);
    return g;
}

/* Compares the mask with what each token by itself is answered, after `prefix`. */
static void check_mask(struct grammar *g, const char *prefix) {
    struct token_trie *trie = qwen3();
    struct matcher *m;
    struct error err;
    uint32_t *mask = xcalloc((size_t)token_trie_n_words(trie), sizeof *mask);
    EXPECT_OK(matcher_open(g, trie, &m, &err), err);
    EXPECT(matcher_accept_bytes(m, str_of(prefix)));
    matcher_mask(m, mask);
    int32_t n_allowed = 0;
    for (int32_t t = 0; t < token_trie_n_vocab(trie); t++) {
        bool takes = matcher_accept(m, t), allowed = mask[t / 32] >> (t % 32) & 1;
        if (matcher_is_dead(m, &err))
            fail_msg("behind %s, token %d: %s", prefix, t, err.text);
        if (takes)
            matcher_back(m, 1);
        if (takes != allowed)
            fail_msg("behind %s, token %d: accepted %d, in the mask %d", prefix, t, takes, allowed);
        n_allowed += allowed;
    }
    EXPECT(n_allowed > 0);
    matcher_free(m);
    free(mask);
}

#define SCHEMA                                                                                                 \
    "{\"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"note\": {\"type\": \"string\", " \
    "\"minLength\": 30, \"maxLength\": 70}, \"id\": {\"pattern\": \"[0-9a-f]{4}-x\"}, \"mail\": {\"format\": " \
    "\"email\"}}, "                                                                                            \
    "\"additionalProperties\": {\"type\": [\"string\", \"integer\"]}, \"type\": \"object\"}"

static void tables_beside_one_another_are_right(void **state) {
    (void)state;
    static const char *const prefixes[] = {
        "",
        "{\"",
        "{\"na",
        "{\"name\": \"",
        "{\"name\": \"seven..",
        "{\"name\": \"twelve chars",
        "{\"note\": \"",
        "{\"note\": \"\xC3",
        "{\"note\": \"thirty characters of a note..",
        "{\"note\": \"thirty characters of a note and thirty-six more of it by",
        "{\"id\": \"so 12ab",
        "{\"mail\": \"a",
        "{\"other\": \"\\u00",
        "{\"x\": 12",
    };
    struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, SCHEMA);
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
        check_mask(g, prefixes[i]);
    grammar_release(g);
}

/* Whether a token stays within a string is told by its kinds of bytes, where these decide it (mask_states.h). */
static void kinds_of_bytes_tell_what_stays(void **state) {
    (void)state;
    static const char *const keys = // of four languages: with an a, a b, both or neither
        "{\"type\": \"object\", \"allOf\": [{\"patternProperties\": {\"a\": {\"type\": \"number\"}}}, "
        "{\"patternProperties\": {\"b\": {\"minimum\": 3}}}], \"minProperties\": 1}";
    static const char *const searched = "{\"type\": \"string\", \"pattern\": \"[0-9a-f]{4}-x\"}";
    static const char *const not_in = "{\"type\": \"string\", \"pattern\": \"^[^aé]*$\"}";
    static const char *const several = "{\"type\": \"string\", \"pattern\": \"^alpha|beta|rc|stable$\"}";
    static const struct {
        const char *schema, *prefix;
    } cases[] = {
        {keys, "{"},         {keys, "{\""},       {keys, "{\"c"},        {keys, "{\"xa"},       {keys, "{\"ab\":5,\""},
        {searched, "\""},    {searched, "\"zz"},  {searched, "\"0af"},   {searched, "\"0af9-"}, {searched, "\"0af9-x"},
        {searched, "\"\\u"}, {not_in, "\""},      {not_in, "\"xyz \\"},  {not_in, "\"\xC3"},    {several, "\""},
        {several, "\"xr"},   {several, "\"alph"}, {several, "\"stable"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, cases[i].schema);
        check_mask(g, cases[i].prefix);
        grammar_release(g);
    }
}

/* Of U+2000 to U+203F some characters may be none of a language that has all others: of ECMA's ".", or of quotes. */
static void characters_of_punctuation_are_told_apart(void **state) {
    (void)state;
    static const char *const dots = "{\"type\": \"string\", \"pattern\": \"^.+$\"}";
    static const char *const no_quotes = "{\"type\": \"string\", \"pattern\": \"^[^\u2019x]*$\"}";
    static const char *const none = "{\"type\": \"string\", \"pattern\": \"^[^\u2000-\u203f]*$\"}";
    static const char *const counted = "{\"type\": \"string\", \"pattern\": \"^[^\u2019]{2,5}$\"}";
    static const struct {
        const char *schema, *prefix;
    } cases[] = {
        {dots, "\""},      {dots, "\"a"},      {dots, "\"\xE2"},          {dots, "\"\xE2\x80"},
        {no_quotes, "\""}, {no_quotes, "\"b"}, {no_quotes, "\"\xE2\x80"}, {none, "\""},
        {none, "\"a\xE2"}, {counted, "\""},    {counted, "\"a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, cases[i].schema);
        check_mask(g, cases[i].prefix);
        grammar_release(g);
    }
}

/* Far from the bound a text is what it is without one (rx_at_most); near it the bound counts. */
static void a_bound_on_a_format_counts_where_it_is_near(void **state) {
    (void)state;
    static const char *const prefixes[] = {"\"", "\"https", "\"https://a.b/", "\"https://a.b/0123456789/0123456789/01"};
    static const int bounds[] = {24, 40, 150, 2000};
    for (size_t b = 0; b < ARRAY_LEN(bounds); b++) {
        char schema[128];
        snprintf(schema, sizeof schema, "{\"type\": \"string\", \"format\": \"uri\", \"maxLength\": %d}", bounds[b]);
        struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, schema);
        for (size_t i = 0; i < ARRAY_LEN(prefixes); i++)
            if ((int)strlen(prefixes[i]) <= bounds[b])
                check_mask(g, prefixes[i]);
        grammar_release(g);
    }
}

/* Where a state counts characters and no more, how many a token has tells whether it stays. */
static void counted_characters_are_counted(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "{\"type\": \"string\", \"maxLength\": 3}", "{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 9}",
        "{\"type\": \"string\", \"minLength\": 8}", "{\"type\": \"string\", \"pattern\": \"^[a-zA-Zé]{2,5}x?$\"}"};
    static const char *const prefixes[] = {"\"", "\"a", "\"ab", "\"ab\xC3"};
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        struct grammar *g = compile(GRAMMAR_JSON_SCHEMA, schemas[i]);
        for (size_t k = 0; k < ARRAY_LEN(prefixes); k++)
            check_mask(g, prefixes[k]);
        grammar_release(g);
    }
}

static void text_that_may_stop_anywhere_has_right_masks(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "a", "ab ", "x\n", "a1 b2 "};
    static const char *const regexes[] = {"[a-z]+ [^0-9]*", "(\\w+\\s)*\\d{0,20}", "[^x]{0,9}x?[^y]{5,}", "(?!.*the).*",
                                          "[^a]*[^b]*[^c]*[^d]*[^e]*"};

    for (size_t r = 0; r < ARRAY_LEN(regexes); r++) {
        struct grammar *g = compile(GRAMMAR_REGEX, regexes[r]);
        struct matcher *m;
        struct error err;
        for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
            EXPECT_OK(matcher_open(g, NULL, &m, &err), err);
            bool fits = matcher_accept_bytes(m, str_of(prefixes[i]));
            matcher_free(m);
            if (fits)
                check_mask(g, prefixes[i]);
        }
        grammar_release(g);
    }
}

/* A count of letters by threes: each state leads to the next, and would have its table made beside that one's. */
static void states_that_are_beside_one_another_in_a_circle_end(void **state) {
    (void)state;
    struct grammar *g =
        compile(GRAMMAR_JSON_SCHEMA, "{\"type\": \"string\", \"pattern\": \"^[^a]*(a[^a]*a[^a]*a[^a]*)*$\"}");
    check_mask(g, "\"");
    check_mask(g, "\"ba");
    grammar_release(g);
}

// ---- threads ----------------------------------------------------------------------------------------------------

struct walker {
    struct grammar *grammar;
    uint64_t seed;
    uint64_t digest; // of all masks on the way
};

static void *walk(void *arg) {
    struct walker *w = arg;
    struct token_trie *trie = qwen3();
    struct matcher *m;
    struct error err;
    size_t words = (size_t)token_trie_n_words(trie);
    uint32_t *mask = xcalloc(words, sizeof *mask);
    BUG_IF(matcher_open(w->grammar, trie, &m, &err) != OK);
    w->digest = 0;
    for (int step = 0; step < 40 && !matcher_has_ended(m); step++) {
        int32_t found = -1;
        uint32_t n = 0;
        matcher_mask(m, mask);
        for (size_t i = 0; i < words; i++) {
            w->digest = w->digest * 1099511628211u + mask[i];
            for (uint32_t bits = mask[i]; bits; bits &= bits - 1)
                if (philox4x32(w->seed, (uint64_t)step, i * 32 + (unsigned)__builtin_ctz(bits)).v[0] % ++n == 0)
                    found = (int32_t)(i * 32) + __builtin_ctz(bits);
        }
        BUG_IF(found < 0 || !matcher_accept(m, found));
    }
    matcher_free(m);
    free(mask);
    return NULL;
}

static void threads_that_share_a_grammar_see_what_one_alone_sees(void **state) {
    (void)state;
    enum { N = 4 };
    pthread_t threads[N];
    struct walker alone[N], together[N];
    uint64_t seed = test_seed();
    qwen3();
    for (int i = 0; i < N; i++) {
        alone[i] = (struct walker){compile(GRAMMAR_JSON_SCHEMA, SCHEMA), seed + (unsigned)i, 0};
        walk(&alone[i]);
        grammar_release(alone[i].grammar);
    }
    struct grammar *shared = compile(GRAMMAR_JSON_SCHEMA, SCHEMA);
    for (int i = 0; i < N; i++) {
        together[i] = (struct walker){shared, seed + (unsigned)i, 0};
        EXPECT_EQ(pthread_create(&threads[i], NULL, walk, &together[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(together[i].digest == alone[i].digest);
    }
    grammar_release(shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_beside_one_another_are_right),
        cmocka_unit_test(kinds_of_bytes_tell_what_stays),
        cmocka_unit_test(characters_of_punctuation_are_told_apart),
        cmocka_unit_test(a_bound_on_a_format_counts_where_it_is_near),
        cmocka_unit_test(counted_characters_are_counted),
        cmocka_unit_test(text_that_may_stop_anywhere_has_right_masks),
        cmocka_unit_test(states_that_are_beside_one_another_in_a_circle_end),
        cmocka_unit_test(threads_that_share_a_grammar_see_what_one_alone_sees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
