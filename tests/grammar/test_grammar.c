/* test_grammar.c - matchers: what they accept, masks against trying every token, going back, forced bytes, limits. */
#include "check.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/random.h"
#include "grammar/front.h"
#include "grammar/matcher.h"

#define JSON_GBNF                                                                                                   \
    "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"          \
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n"                     \
    "array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n"                                                      \
    "string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-f]{4}))* \"\\\"\" ws\n" \
    "number ::= \"-\"? [0-9]+ (\".\" [0-9]+)? ws\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

#define TRIGGERED                                                                                                     \
    "{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"{a\"], \"tags\": ["   \
    "{\"type\": \"tag\", \"begin\": \"{ab:\", \"content\": {\"type\": \"regex\", \"pattern\": \"[0-9]+\"}, \"end\": " \
    "\"}\"}, "                                                                                                        \
    "{\"type\": \"tag\", \"begin\": \"{ac:\", \"content\": {\"type\": \"or\", \"elements\": ["                        \
    "{\"type\": \"const_string\", \"value\": \"x\"}, {\"type\": \"grammar\", \"grammar\": \"root ::= [yz]+\"}]}, "    \
    "\"end\": \"}\"}]}}"

static const struct {
    enum grammar_kind kind;
    const char *text;
} grammars[] = {
    {GRAMMAR_GBNF, JSON_GBNF},
    {GRAMMAR_GBNF, "root ::= e\ne ::= e [+-] t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | [0-9]+"},
    {GRAMMAR_GBNF, "root ::= s\ns ::= s s | \"a\" | \"ab\" | \"\""},           // as ambiguous as can be
    {GRAMMAR_GBNF, "root ::= a b\na ::= (\"a\" a)?\nb ::= b \"b\" | \"\""},    // right, hidden left recursion
    {GRAMMAR_GBNF, "root ::= x\nx ::= y x \"c\" | \"d\"\ny ::= \"a\"?"},       // nullable before recursion
    {GRAMMAR_GBNF, "root ::= <think> [a-z ]* </think> \"{\" [0-9]{2,} \"}\""}, // special tokens
    {GRAMMAR_GBNF, "root ::= (p \",\"){2,5} p\np ::= [a-c] p | [a-c]"},        // a counter over a rule
    {GRAMMAR_GBNF, "root ::= \"\xC3\xA9t\xC3\xA9\" [^a-z\xC3\xA9]{1,3}"},      // cut characters
    {GRAMMAR_LARK, "start: (value \",\")* value\nvalue: \"[\" [value (\",\" value)*] \"]\" | NUMBER | ESCAPED_STRING\n"
                   "%import common (NUMBER, ESCAPED_STRING, WS)\n%ignore WS"},
    {GRAMMAR_LARK, "start: \"a\"i~2..3 B <think>?\nB.2: /b|c/i \"x\"..\"z\" -> named"},
    {GRAMMAR_REGEX, "(a|ab)(c|bcd)(d*)"},
    {GRAMMAR_REGEX, "\"name\": \"[^\"]{1,40}\", \"about\": \"[^\"\\n]*\", \"n\": -?\\d+"},
    {GRAMMAR_REGEX, "(?!.*ab)(?=.*c)[abc]{2,12}"},
    {GRAMMAR_REGEX, "[\\w\\s]{0,9}$"},
    {GRAMMAR_REGEX, "(?i:ab|[^d\\\\s]{3,5})*x(?!z).y+$"}, // rounds for ever before a lookahead have no end
    {GRAMMAR_CHOICE, "[\"yes\", \"no\", \"yes, indeed\", \"\"]"},
    {GRAMMAR_STRUCTURAL_TAG, TRIGGERED},
    {GRAMMAR_STRUCTURAL_TAG,
     "{\"format\": {\"type\": \"tags_with_separator\", \"separator\": \", \", \"at_least_one\": true, \"tags\": ["
     "{\"type\": \"tag\", \"begin\": \"<think>\", \"end\": [\"</think>\", \"!\"], \"content\": "
     "{\"type\": \"any_text\", \"excludes\": [\"no\"]}}]}}"},
};

static const char *const words[] = {
    "the",          " the", "\":",  "\": ",    "\": \"", "\",\"", "{\"",       "{\"a\":", "\"}",  "}}",
    "]}",           "[1",   "],[",  "[[",      "true",   "nul",   "null,",     "12",      "3.14", "-1",
    "0,",           "ab",   "abc",  "abcd",    "bcd",    "aa",    "aaaa",      "+1",      "*(",   ")*",
    "((",           "))",   "1+",   "a,b",     "a,",     ",b,",   "\xC3\xA9t", "t\xC3",   "\xA9", "\xE2\x82",
    "\xF0\x9F\x99", "\n\t", "\n\n", "  ",      "    ",   "\\n",   "\\u00",     "\\\"",    "name", "\"name",
    "about",        "yes",  "yes,", " indeed", "no",     "no\"",  "c",         "ca",      "cb",   "d",
    "cc",           "{1",   "23}",  "x y",     "y}",     "ing",   "er\"",
};
enum { N_WORDS = ARRAY_LEN(words), END = 256 + N_WORDS, THINK, THINK_END, N_VOCAB };

/* Every byte, some words, and three special tokens. */
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
    tokens[THINK] = (struct token_text){STR("<think>"), TOKEN_SPECIAL};
    tokens[THINK_END] = (struct token_text){STR("</think>"), TOKEN_SPECIAL};
    struct token_trie *trie;
    struct error err;
    EXPECT_OK(token_trie_open(tokens, N_VOCAB, &(int32_t){END}, 1, &trie, &err), err);
    return trie;
}

static enum status compile(enum grammar_kind kind, const char *text, const struct grammar_limits *limits,
                           struct grammar **out, struct error *err) {
    struct grammar_source source = {.kind = kind, .text = str_of(text)};
    json_t *value = NULL;
    if (kind == GRAMMAR_CHOICE || kind == GRAMMAR_STRUCTURAL_TAG)
        EXPECT_OK(jv_parse(str_of(text), "test", 0, &value, err), *err);
    source.value = value;
    enum status st = grammar_compile(&source, limits, out, err);
    json_decref(value);
    return st;
}

static struct grammar *must_compile(enum grammar_kind kind, const char *text) {
    struct grammar *g;
    struct error err;
    EXPECT_OK(compile(kind, text, NULL, &g, &err), err);
    return g;
}

static struct matcher *must_open(struct grammar *g, struct token_trie *trie) {
    struct matcher *m;
    struct error err;
    EXPECT_OK(matcher_open(g, trie, &m, &err), err);
    return m;
}

enum { N_MASK = (N_VOCAB + 31) / 32 };

/* The mask is what matcher_accept says of each token by itself. */
static void check_mask(struct matcher *m, uint32_t mask[N_MASK]) {
    matcher_mask(m, mask);
    for (int32_t t = 0; t < N_VOCAB; t++) {
        bool takes = matcher_accept(m, t), allowed = mask[t / 32] >> (t % 32) & 1;
        if (takes)
            matcher_back(m, 1);
        if (takes != allowed)
            fail_msg("token %d: accepted %d, in the mask %d", t, takes, allowed);
    }
    for (int32_t t = N_VOCAB; t < N_MASK * 32; t++)
        EXPECT(!(mask[t / 32] >> (t % 32) & 1));
}

static int32_t draw(const uint32_t mask[N_MASK], struct philox r) {
    int32_t found = -1;
    uint32_t n = 0;
    for (int32_t t = 0; t < N_VOCAB; t++)
        if (mask[t / 32] >> (t % 32) & 1) {
            struct philox x = philox4x32(r.v[0], (uint64_t)t, 1);
            if (x.v[0] % ++n == 0)
                found = t;
        }
    return found;
}

static void same_state(struct matcher *a, struct matcher *b) {
    uint32_t x[N_MASK], y[N_MASK];
    matcher_mask(a, x);
    matcher_mask(b, y);
    EXPECT(memcmp(x, y, sizeof x) == 0);
    EXPECT_EQ(matcher_may_end(a), matcher_may_end(b));
}

static void walk(struct grammar *g, struct token_trie *trie, uint64_t seed) {
    struct matcher *m = must_open(g, trie);
    int32_t past[64];
    size_t n = 0;
    for (int step = 0; step < 60; step++) {
        uint32_t mask[N_MASK];
        struct philox r = philox4x32(seed, (uint64_t)step, 0);
        check_mask(m, mask);
        int32_t t = draw(mask, r);
        EXPECT(t >= 0 || matcher_has_ended(m)); // there is always a way on, or the end
        if (t < 0)
            break;
        EXPECT(matcher_accept(m, t));
        past[n++] = t;
        if (r.v[1] % 8 == 0) {
            size_t back = r.v[2] % (n + 1);
            matcher_back(m, back);
            n -= back;
            struct matcher *fresh = must_open(g, trie), *copy = matcher_copy(m);
            for (size_t i = 0; i < n; i++)
                EXPECT(matcher_accept(fresh, past[i]));
            same_state(m, fresh);
            same_state(m, copy);
            matcher_free(fresh);
            matcher_free(copy);
        }
    }
    matcher_free(m);
}

static void masks_are_what_each_token_would_say(void **state) {
    (void)state;
    struct token_trie *trie = open_trie();
    uint64_t seed = test_seed();
    for (size_t i = 0; i < ARRAY_LEN(grammars); i++) {
        struct grammar *g = must_compile(grammars[i].kind, grammars[i].text);
        for (uint64_t k = 0; k < 12; k++)
            walk(g, trie, seed + 1000 * i + k);
        grammar_release(g);
    }
    token_trie_free(trie);
}

static bool follows(struct grammar *g, const char *text) {
    struct matcher *m = must_open(g, NULL);
    bool ok = matcher_accept_bytes(m, str_of(text)) && matcher_may_end(m);
    matcher_free(m);
    return ok;
}

static void gbnf_cases_of_llama_cpp(void **state) {
    (void)state;
    struct error err;
    json_t *all;
    EXPECT_OK(jv_load("tests/data/grammar/gbnf_cases.json", 1 << 20, 0, &all, &err), err);
    size_t i, k;
    json_t *c, *text;
    EXPECT(json_array_size(json_object_get(all, "cases")) > 5);
    json_array_foreach(json_object_get(all, "cases"), i, c) {
        struct grammar *g = must_compile(GRAMMAR_GBNF, json_string_value(json_object_get(c, "grammar")));
        json_array_foreach(json_object_get(c, "accepts"), k, text) EXPECT(follows(g, json_string_value(text)));
        json_array_foreach(json_object_get(c, "rejects"), k, text) EXPECT(!follows(g, json_string_value(text)));
        grammar_release(g);
    }
    json_decref(all);
}

static void tags_begin_where_triggers_are(void **state) {
    (void)state;
    struct grammar *g = must_compile(GRAMMAR_STRUCTURAL_TAG, TRIGGERED);
    EXPECT(follows(g, ""));
    EXPECT(follows(g, "free {text} with { braces"));
    EXPECT(follows(g, "so {ab:12}, and {ac:zyz} too"));
    EXPECT(!follows(g, "so {ab:12"));
    EXPECT(!follows(g, "so {ad:12}"));
    EXPECT(!follows(g, "so {ab:x}"));
    grammar_release(g);
    g = must_compile(GRAMMAR_STRUCTURAL_TAG,
                     "{\"structures\": [{\"begin\": \"<f>\", \"schema\": {\"type\": \"boolean\"}, \"end\": \"</f>\"}], "
                     "\"triggers\": [\"<f\"]}");
    EXPECT(follows(g, "see <f>true</f> there"));
    EXPECT(!follows(g, "see <f>1</f>"));
    grammar_release(g);
}

/* Free text until a pattern stands there, then what it calls for. */
static void patterns_call_for_forms(void **state) {
    (void)state;
    struct grammar *g = must_compile(
        GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"dispatch\", \"rules\": [[\"<n>\", {\"type\": \"regex\", "
                                "\"pattern\": \"[0-9]{2}\"}], [\"<b>\", {\"type\": \"json_schema\", "
                                "\"json_schema\": {\"type\": \"boolean\"}}]], \"excludes\": [\"no\"]}}");
    EXPECT(follows(g, "") && follows(g, "see <n>12 and <b>true<n>34"));
    EXPECT(!follows(g, "see <n>1x") && !follows(g, "<b>12") && !follows(g, "there is no <n>12"));
    grammar_release(g);
    struct token_trie *trie = open_trie();
    g = must_compile(GRAMMAR_STRUCTURAL_TAG,
                     "{\"format\": {\"type\": \"token_dispatch\", \"loop\": false, \"rules\": [[\"<think>\", "
                     "{\"type\": \"const_string\", \"value\": \"hm\"}]], \"exclude_tokens\": []}}");
    struct matcher *m = must_open(g, trie);
    EXPECT(matcher_accept_bytes(m, STR("a <think> ")) && matcher_may_end(m) && matcher_accept(m, THINK));
    EXPECT(!matcher_may_end(m) && matcher_accept_bytes(m, STR("hm")) && matcher_may_end(m));
    EXPECT(!matcher_accept(m, 'x'));
    matcher_free(m);
    grammar_release(g);
    token_trie_free(trie);
}

/* The name of a special token in a tag is written as the token, or as text, or as either where both are there. */
static void marks_of_tags_may_be_tokens(void **state) {
    (void)state;
    struct token_trie *trie = open_trie();
    struct grammar *g =
        must_compile(GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"tag\", \"begin\": \"<think>\", \"content\": "
                                             "{\"type\": \"any_text\"}, \"end\": \"<nobody></think>\"}}");
    struct matcher *m = must_open(g, trie);
    EXPECT(matcher_accept(m, THINK) && matcher_accept_bytes(m, STR("hm <nobody>")) && matcher_accept(m, THINK_END));
    EXPECT(matcher_may_end(m));
    matcher_back(m, 3);
    EXPECT(matcher_accept_bytes(m, STR("<think>hm <nobody></think>")) && matcher_may_end(m));
    matcher_free(m);
    grammar_release(g);
    token_trie_free(trie);
}

static void special_tokens_are_no_text(void **state) {
    (void)state;
    struct token_trie *trie = open_trie();
    struct grammar *g = must_compile(GRAMMAR_GBNF, "root ::= \"<think>\" | <think> \"x\"");
    struct matcher *m = must_open(g, trie);
    EXPECT(matcher_accept_bytes(m, STR("<think>")));
    EXPECT(matcher_may_end(m));
    matcher_back(m, 1);
    EXPECT(matcher_accept(m, THINK));
    EXPECT(!matcher_may_end(m));
    EXPECT(matcher_accept(m, 'x') && matcher_accept(m, END) && matcher_has_ended(m));
    EXPECT(!matcher_accept(m, 'x'));
    matcher_free(m);
    grammar_release(g);
    g = must_compile(GRAMMAR_GBNF, "root ::= <think> !</think>* </think> \"x\"");
    m = must_open(g, trie);
    EXPECT(matcher_accept(m, THINK) && matcher_accept_bytes(m, STR("any \xC3\xA9")) && matcher_accept(m, THINK));
    EXPECT(matcher_accept(m, THINK_END) && !matcher_accept_bytes(m, STR("y")) && matcher_accept_bytes(m, STR("x")));
    EXPECT(matcher_may_end(m));
    matcher_free(m);
    grammar_release(g);
    g = must_compile(GRAMMAR_GBNF, "root ::= <nobody> \"x\"");
    struct error err;
    EXPECT_EQ(matcher_open(g, trie, &m, &err), ERR_ARG);
    EXPECT(strstr(err.text, "<nobody>"));
    grammar_release(g);
    token_trie_free(trie);
}

static void forced_bytes_are_those_that_must_come(void **state) {
    (void)state;
    struct grammar *g =
        must_compile(GRAMMAR_GBNF, "root ::= \"{\\\"name\\\": \\\"\" [a-z]+ \"\\\", \\\"age\\\": \" [0-9]");
    struct matcher *m = must_open(g, NULL);
    struct buf out = {0};
    EXPECT_EQ(matcher_forced(m, 100, &out), 10);
    EXPECT_STR(out.ptr, "{\"name\": \"");
    EXPECT(matcher_accept_bytes(m, buf_view(&out)));
    EXPECT_EQ(matcher_forced(m, 100, &out), 0);
    EXPECT(matcher_accept_bytes(m, STR("bob\"")));
    buf_clear(&out);
    EXPECT_EQ(matcher_forced(m, 5, &out), 5);
    EXPECT_STR(out.ptr, ", \"ag");
    matcher_free(m);
    grammar_release(g);
    buf_release(&out);
}

static void what_is_refused_is_named(void **state) {
    (void)state;
    static const struct {
        enum grammar_kind kind;
        const char *text, *named;
        enum status status;
    } cases[] = {
        {GRAMMAR_REGEX, "(a)\\1", "backreference \\1", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(?P<x>a)(?P=x)", "backreference", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(?<=a)b", "lookbehind", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "\\bword", "\\b", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "((?=a)a)*", "lookahead", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(?>a)", "atomic", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "a++", "possessive", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "\\p{Greek}", "\\p{Greek}", ERR_UNSUPPORTED},
        {GRAMMAR_REGEX, "(a", "( without )", ERR_FORMAT},
        {GRAMMAR_REGEX, "a)", ") without (", ERR_FORMAT},
        {GRAMMAR_REGEX, "[b-a]", "range", ERR_FORMAT},
        {GRAMMAR_REGEX, "*a", "nothing to repeat", ERR_FORMAT},
        {GRAMMAR_REGEX, "a{3,2}", "repeat of 3 to 2", ERR_FORMAT},
        {GRAMMAR_REGEX, "a(?!)", "no text", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= nobody", "nobody", ERR_FORMAT},
        {GRAMMAR_GBNF, "start ::= \"a\"", "root", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a", "line 1", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= (\"a\"", "( without )", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", "second definition", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= root \"a\"", "no text", ERR_FORMAT},
        {GRAMMAR_GBNF, "root ::= \"\\q\"", "\\q", ERR_FORMAT},
        {GRAMMAR_LARK, "start: a{b}", "templates", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "%declare X\nstart: X", "%declare", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "start[stop=\"x\"]: \"a\"", "attributes", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "%import python.X\nstart: X", "python", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "%import common.NOTHING\nstart: NOTHING", "NOTHING", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "start: /a/m", "flag", ERR_UNSUPPORTED},
        {GRAMMAR_LARK, "start: X", "no rule X", ERR_FORMAT},
        {GRAMMAR_LARK, "x: \"a\"", "start", ERR_FORMAT},
        {GRAMMAR_LARK, "start: \"a\n", "line 1", ERR_FORMAT},
        {GRAMMAR_LARK, "start: X\nX: y\ny: \"b\"", "a rule: y", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{}", "format", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"tag\", \"end\": \"x\"}}", "begin", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"tag\", \"begin\": \"x\", \"end\": \"y\"}}", "missing",
         ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"dance\"}}", "dance", ERR_UNSUPPORTED},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"regex\"}}", "pattern", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG,
         "{\"format\": {\"type\": \"json_schema\", \"json_schema\": true, \"style\": \"glm_xml\"}}", "glm_xml",
         ERR_UNSUPPORTED},
        {GRAMMAR_STRUCTURAL_TAG,
         "{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"a\"], \"tags\": [{\"type\": \"tag\", \"begin\": "
         "\"b\"}]}}",
         "exactly one", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"any_text\", \"max_chars\": 5}}", "any_text.max_chars",
         ERR_UNSUPPORTED},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"regex\", \"pattern\": \"a\", \"excludes\": [\"b\"]}}",
         "regex.excludes", ERR_UNSUPPORTED},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"any_text\", \"exclude\": [\"b\"]}}", "any_text.exclude",
         ERR_UNSUPPORTED},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"dispatch\", \"rules\": [[\"\", {}]]}}", "pairs",
         ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"dispatch\", \"rules\": []}}", "at least one", ERR_FORMAT},
        {GRAMMAR_STRUCTURAL_TAG, "{\"format\": {\"type\": \"token_dispatch\", \"rules\": [[1.5, {}]]}}", "a token",
         ERR_FORMAT},
        {GRAMMAR_CHOICE, "[]", "at least one", ERR_FORMAT},
        {GRAMMAR_CHOICE, "[1]", "choice 0", ERR_FORMAT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct grammar *g = NULL;
        struct error err = {0};
        enum status st = compile(cases[i].kind, cases[i].text, NULL, &g, &err);
        if (st != cases[i].status || !strstr(err.text, cases[i].named))
            fail_msg("%s: status %d, \"%s\"", cases[i].text, st, err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf_cases_of_llama_cpp),
        cmocka_unit_test(masks_are_what_each_token_would_say),
        cmocka_unit_test(tags_begin_where_triggers_are),
        cmocka_unit_test(patterns_call_for_forms),
        cmocka_unit_test(marks_of_tags_may_be_tokens),
        cmocka_unit_test(special_tokens_are_no_text),
        cmocka_unit_test(forced_bytes_are_those_that_must_come),
        cmocka_unit_test(what_is_refused_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
