/* test_regex.c - splitting patterns: Oniguruma's language over PCRE2, and the scanners that replace known ones. */
#include "check.h"

#include "base/buf.h"
#include "base/json/json.h"
#include "base/random.h"
#include "text/regex/pattern.h"
#include "text/regex/regex_syntax.h"
#include "text/regex/unicode.h"

#include <inttypes.h>
#include <utf8proc.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

struct pieces {
    struct str text;
    json_t *list;
};

static enum status keep_piece(void *arg, size_t begin, size_t end, struct error *err) {
    (void)err;
    struct pieces *p = arg;
    json_array_append_new(p->list, json_stringn(p->text.ptr + begin, end - begin));
    return OK;
}

static json_t *pieces_of(const struct pattern *pattern, struct regex_memory *m, struct str text) {
    struct pieces p = {text, json_array()};
    struct error err;
    EXPECT_OK(split_text(pattern, SPLIT_REMOVED, true, m, text, keep_piece, &p, &err), err);
    return p.list;
}

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

static void check_pattern(const json_t *c, struct regex_memory *m) {
    struct pattern pattern;
    struct error err;
    struct str regex = string_of(json_object_get(c, "regex"));
    EXPECT_OK(pattern_of_regex(regex, REGEX_ONIGURUMA, "case", &pattern, &err), err);
    size_t i;
    json_t *result;
    json_array_foreach(json_object_get(c, "results"), i, result) {
        json_t *got = pieces_of(&pattern, m, string_of(json_object_get(result, "text")));
        if (!json_equal(got, json_object_get(result, "pieces")))
            fail_msg("%.*s: \"%s\" gives %s", STR_ARG(regex), json_string_value(json_object_get(result, "text")),
                     json_dumps(got, 0));
        json_decref(got);
    }
    EXPECT(i > 0);
    pattern_release(&pattern);
}

static void patterns_of_real_models_match_as_oniguruma_does(void **state) {
    (void)state;
    struct error err;
    json_t *file, *c;
    EXPECT_OK(jv_load("build/data/tokenizers/split_regex_cases.json", 1 << 20, 0, &file, &err), err);
    struct regex_memory *m = regex_memory_open();
    size_t i;
    json_array_foreach(json_object_get(file, "cases"), i, c) check_pattern(c, m);
    EXPECT_EQ(i, 70);
    regex_memory_free(m);
    json_decref(file);
}

static void what_has_no_equal_is_refused_by_name(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "(?~abc)", "a\\y", "(?{x})", "\\p{NoSuch}", "[[:nosuch:]]", "(?s:.)",   "(?<n", "[a",
        "(a",      "a)",   "*a",     "\\u12",       "[z-a]",        "(?<=a+)b", "\\12", "\\xD800\\x{D800}"};
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        struct error err = {0};
        struct pattern p = {0};
        enum status st = pattern_of_regex(str_of(patterns[i]), REGEX_ONIGURUMA, "tokenizer.json", &p, &err);
        if (st == OK)
            fail_msg("%s is accepted", patterns[i]);
        EXPECT(strstr(err.text, "tokenizer.json") && strstr(err.text, "pattern"));
    }
    char deep[2001];
    memset(deep, '(', 1000);
    memset(deep + 1000, ')', 1000);
    struct buf out = {0};
    struct error err;
    EXPECT_EQ(regex_translate((struct str){deep, 2000}, &out, &err), ERR_LIMIT);
    buf_release(&out);
}

static void a_pattern_without_end_is_given_up(void **state) {
    (void)state;
    struct error err;
    struct pattern p;
    struct regex_memory *m = regex_memory_open();
    EXPECT_OK(pattern_of_regex(STR("(a|a|aa)+$"), REGEX_ONIGURUMA, "case", &p, &err), err);
    struct regex_walk walk = {.text = STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")};
    size_t begin, end;
    bool found;
    EXPECT_EQ(pattern_next(&p, m, &walk, &begin, &end, &found, &err), ERR_LIMIT);
    pattern_release(&p);
    regex_memory_free(m);
}

/* Cuts a text; *us is what that took of the processor. */
static enum status cut_all(const char *regex, struct str text, int64_t *us, struct error *err) {
    struct pattern p;
    struct timespec from, to;
    struct regex_memory *m = regex_memory_open();
    struct regex_walk walk = {.text = text};
    size_t begin, end;
    bool found = true;
    EXPECT_OK(pattern_of_regex(str_of(regex), REGEX_ONIGURUMA, "case", &p, err), *err);
    regex_memory_begin(m, text.len);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    enum status st = OK;
    while (st == OK && found)
        st = pattern_next(&p, m, &walk, &begin, &end, &found, err);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    *us = (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000;
    pattern_release(&p);
    regex_memory_free(m);
    return st;
}

static struct str repeated(struct buf *out, const char *unit, int n) {
    buf_clear(out);
    for (int i = 0; i < n; i++)
        buf_str(out, str_of(unit));
    return buf_view(out);
}

/* Each match is within the bounds of one, and a short text has hundreds of them. */
static void matches_of_a_text_are_bounded_together(void **state) {
    (void)state;
    static const char dead_end[] = "aaaaaaaaaaaaaaaaaaaaac", steps[] = "too many steps for this text",
                      either[] = "for this text";
    static const struct {
        const char *regex, *unit;
        int n;
        const char *says; // NULL: it is cut
    } cases[] = {
        {"(?:a|a)*b|[\\s\\S]", dead_end, 1, NULL},
        {"(?:a|a)*b|[\\s\\S]", dead_end, 50, steps},
        {"(?:a|a)*b|[\\s\\S]", dead_end, 100, steps},
        {"(?=(?:a|a)*b)|[\\s\\S]", dead_end, 100, steps},
        {"\\G(?:a|a)*b|[\\s\\S]", dead_end, 100, steps},
        {"\\d+\\.?\\d*[eE]|\\Gx", "7", 100000, either}, // each place reads to the end
        {"\\d+\\.?\\d*[eE]|(?<=\\G..)x", "7", 100000, either},
        {"(?:a+)+[bd]", dead_end, 100, steps},
        {"a*a*a*a*[bd]|.", "a", 2200, either}, // few steps, each of which reads far
        {"\\d+\\.?\\d*[eE]|\\d", "7", 100000, either},
        {"\\s*[\\r\\n]+|\\s", " ", 3000, NULL}, // in honest patterns, and its square is bearable
        {"\\d{1,3}(?=(?:\\d{3})*\\b)", "7", 4000, NULL},
    };
    struct buf text = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (test_is_brief() && (i + test_seed()) % 6 != 0)
            continue;
        int64_t us;
        struct error err = {0};
        enum status st = cut_all(cases[i].regex, repeated(&text, cases[i].unit, cases[i].n), &us, &err);
        bool right = cases[i].says ? st == ERR_LIMIT && strstr(err.text, cases[i].says) : st == OK;
        if (!right || us > 1500000 + 2 * (int64_t)text.len)
            fail_msg("%s on %d times \"%s\": status %d after %" PRId64 " us: %s", cases[i].regex, cases[i].n,
                     cases[i].unit, st, us, err.text);
    }
    buf_release(&text);
}

/* regex_fold.c looks for letters that fold to several in these ranges only. */
/* \\G is where the search began, which is the end of the last match. */
static void a_start_is_met_at_the_start_alone(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"\\Ga|b", "aaxbaab", "0-1 1-2 3-4 4-5 5-6 6-7 "},
        {"(?<=\\Gx)a|c", "xaxac", "1-2 3-4 4-5 "},
        {"(?<=\\G.)b|d", "abdabd", "1-2 2-3 4-5 5-6 "},
        {"x*\\Gy|z", "yxyz", "0-1 3-4 "},
        {"\\\\G|k", "\\Gk", "0-2 2-3 "},
        {"(?<!\\G)a", "aaa", "1-2 "},
        {"\\b(?<!\\Ga)b|\\G ", "ab b", "3-4 "},
        {"\\Ga", "aab", "0-1 1-2 "},
        {"(?<=\\G\xc3\xa9)b|q",
         "\xc3\xa9"
         "b q",
         "2-3 4-5 "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pattern p;
        struct error err;
        struct buf got = {0};
        struct regex_memory *m = regex_memory_open();
        struct regex_walk walk = {.text = str_of(cases[i][1])};
        size_t begin, end;
        bool found;
        EXPECT_OK(pattern_of_regex(str_of(cases[i][0]), REGEX_ONIGURUMA, "case", &p, &err), err);
        while (pattern_next(&p, m, &walk, &begin, &end, &found, &err) == OK && found)
            buf_printf(&got, "%zu-%zu ", begin, end);
        EXPECT_STR(got.ptr ? got.ptr : "", cases[i][2]);
        buf_release(&got);
        pattern_release(&p);
        regex_memory_free(m);
    }
}

static void letters_that_fold_to_several_are_where_they_are_looked_for(void **state) {
    (void)state;
    int n = 0;
    for (int32_t cp = 0; cp <= 0x10FFFF; cp++) {
        int32_t folded[8];
        int last_class = 0;
        if ((cp >= 0xD800 && cp <= 0xDFFF) ||
            utf8proc_decompose_char(cp, folded, 8, UTF8PROC_CASEFOLD, &last_class) < 2)
            continue;
        n++;
        EXPECT((cp >= 0xDF && cp <= 0x587) || (cp >= 0x1E96 && cp <= 0x1FFC) || (cp >= 0xFB00 && cp <= 0xFB17));
    }
    EXPECT_EQ(n, 104);
}

/* Characters of whose kind utf8proc and PCRE2 think alike: each knows the Unicode of its own time. */
static bool both_know(uint32_t cp) {
    static pcre2_code *unassigned;
    int code;
    size_t offset;
    if (!unassigned)
        unassigned =
            pcre2_compile((PCRE2_SPTR) "\\p{Cn}", PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    char utf8[4];
    size_t n = (size_t)utf8_encode(cp, utf8);
    bool assigned = pcre2_match(unassigned, (PCRE2_SPTR)utf8, n, 0, 0, data, NULL) == PCRE2_ERROR_NOMATCH;
    pcre2_match_data_free(data);
    return assigned && utf8proc_category((int32_t)cp) != UTF8PROC_CATEGORY_CN;
}

static uint32_t random_character(uint64_t seed, uint64_t n) {
    static const char common[] = "''''   \t\n\r/stmdSTllLLveRE0129aAbB.,!_";
    static const uint32_t wide[] = {0x17F,  0x130,  0xE9,   0xC9,    0x1C5,   0x2B0,   0x301,  0x64B, 0x93E,  0x20DD,
                                    0x4E2D, 0x3042, 0xAC00, 0x5D0,   0x660,   0x2167,  0xBD,   0xA0,  0x3000, 0x2028,
                                    0x85,   0x180E, 0x200B, 0x1F98A, 0x1D4B3, 0x1D7D8, 0x2014, 0x20AC};
    struct philox r = philox4x32(seed, n, 0);
    if (r.v[0] % 100 < 60)
        return (uint32_t)common[r.v[1] % (sizeof common - 1)];
    if (r.v[0] % 100 < 90)
        return wide[r.v[1] % ARRAY_LEN(wide)];
    uint32_t cp = r.v[1] % (r.v[2] % 3 ? 0x3000 : 0x110000);
    return (cp >= 0xD800 && cp <= 0xDFFF) || !both_know(cp) ? 'x' : cp;
}

static void check_scanner(const char *pattern, struct str text) {
    const struct word_rules *rules = word_rules_find(str_of(pattern));
    struct regex *regex;
    struct error err;
    char same[4096];
    snprintf(same, sizeof same, "(?:%s)", pattern); // another text, so that no scanner is chosen for it
    EXPECT_OK(regex_compile(str_of(same), REGEX_ONIGURUMA, "case", &regex, &err), err);
    struct regex_memory *m = regex_memory_open();
    struct regex_walk walk = {.text = text};
    for (const char *at = text.ptr, *end = at + text.len; at < end;) {
        size_t first, last;
        bool found;
        EXPECT_OK(regex_next(regex, m, &walk, &first, &last, &found, &err), err);
        const char *stop = word_scan(rules, at, end);
        if (!found || text.ptr + first != at || text.ptr + last != stop)
            fail_msg("%s: at byte %td the word has %td bytes, by PCRE2 %zu: \"%.*s\"", pattern, at - text.ptr,
                     stop - at, last - first, (int)MIN(end - at, 40), at);
        at = stop;
    }
    regex_memory_free(m);
    regex_free(regex);
}

static void scanners_find_the_words_of_their_patterns(void **state) {
    (void)state;
    struct buf text = {0};
    for (uint64_t n = 0, end = test_is_brief() ? 60000 : 300000; n < end; n++)
        buf_push_code_point(&text, random_character(test_seed(), n));
    int n_patterns = 0;
    for (; word_rules_pattern((size_t)n_patterns); n_patterns++)
        check_scanner(word_rules_pattern((size_t)n_patterns), buf_view(&text));
    EXPECT_EQ(n_patterns, 7);
    buf_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_of_real_models_match_as_oniguruma_does),
        cmocka_unit_test(what_has_no_equal_is_refused_by_name),
        cmocka_unit_test(a_pattern_without_end_is_given_up),
        cmocka_unit_test(matches_of_a_text_are_bounded_together),
        cmocka_unit_test(a_start_is_met_at_the_start_alone),
        cmocka_unit_test(letters_that_fold_to_several_are_where_they_are_looked_for),
        cmocka_unit_test(scanners_find_the_words_of_their_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
